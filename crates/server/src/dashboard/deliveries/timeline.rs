//! The timeline of a delivery: its attempts with how long each phase took, and when a circuit held it back.

use redrive_core::{Time, event::Event};
use redrive_store::{AttemptStatus, PhaseTimings, StoredAttempt};

use crate::{
    api::{HeaderView, header_views, request_headers},
    app::attempts::{Entry, History},
    dashboard::{
        format,
        untrusted::{Sample, sample, visible},
    },
};

/// The width of a whole waterfall, in its own units.
const WIDTH: u64 = 1_000;
/// The least that is still seen of a phase.
const LEAST: u64 = 4;
/// Attempts that are shown with all they sent and got: the newest, and the one asked for.
const IN_FULL: usize = 4;
/// Attempts that are shown at all: the newest.
const MOST: usize = 60;

/// A line of the timeline.
pub(super) enum Line {
    /// An attempt.
    Tried(Box<Tried>),
    /// A time for which a circuit held it back.
    Blocked {
        /// From when on.
        since: Time,
        /// Why, in words.
        words: String,
    },
}

/// An attempt.
pub(super) struct Tried {
    pub(super) number: u32,
    pub(super) status: AttemptStatus,
    /// What came back, in few words.
    pub(super) answer: String,
    /// What went wrong.
    pub(super) error: Option<String>,
    pub(super) scheduled_at: Time,
    pub(super) executed_at: Time,
    pub(super) next_retry_at: Option<Time>,
    pub(super) worker: String,
    pub(super) duration: String,
    pub(super) bars: Vec<Bar>,
    /// How long each phase took, in words.
    pub(super) phases: String,
    /// What was sent and what came back, where it is shown in full.
    pub(super) exchange: Option<Exchange>,
    /// Whether it is shown opened to begin with.
    pub(super) is_open: bool,
}

/// What was sent and what came back.
pub(super) struct Exchange {
    pub(super) request_headers: Vec<HeaderView>,
    pub(super) response_headers: Vec<HeaderView>,
    pub(super) body: Sample,
    /// How much of the body is known.
    pub(super) bytes: usize,
}

/// A phase of an attempt in its waterfall.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Bar {
    pub(super) class: &'static str,
    pub(super) x: u64,
    pub(super) width: u64,
    /// What it is and how long it took.
    pub(super) tip: String,
}

impl Tried {
    /// The colour of an attempt.
    pub(super) fn tone(&self) -> &'static str {
        match self.status {
            AttemptStatus::Success => "good",
            AttemptStatus::Failed => "waiting",
            AttemptStatus::Exhausted => "bad",
        }
    }
}

/// The timeline, newest first, and how many older attempts are left out.
pub(super) fn timeline(history: History, event: &Event, asked: Option<u32>) -> (Vec<Line>, usize) {
    let longest = |entry: &Entry| match entry {
        Entry::Attempt(stored) => stored.attempt.timings.total,
        Entry::Blocked(_) => 0,
    };
    let scale = history.entries.iter().map(longest).max().unwrap_or(0);
    let left_out = history.entries.len().saturating_sub(MOST);
    let mut in_full = IN_FULL;
    let mut lines = Vec::new();
    for entry in history.entries.into_iter().rev().take(MOST) {
        lines.push(match entry {
            Entry::Blocked(blocked) => Line::Blocked { since: blocked.since, words: blocked.words() },
            Entry::Attempt(stored) => {
                let is_asked = asked == Some(stored.attempt.number);
                let is_newest = in_full == IN_FULL;
                let mut tried = tried(&stored, scale);
                if in_full > 0 || is_asked {
                    tried.exchange = Some(exchange(&stored, event));
                }
                tried.is_open = is_asked || (asked.is_none() && is_newest);
                in_full = in_full.saturating_sub(1);
                Line::Tried(Box::new(tried))
            }
        });
    }
    (lines, left_out)
}

fn tried(stored: &StoredAttempt, scale: u32) -> Tried {
    let attempt = &stored.attempt;
    let parts = phases(&attempt.timings);
    let told: Vec<_> = parts.iter().map(|phase| format!("{} {}", phase.name, millis(phase.micros))).collect();
    let answer = match (attempt.http_status_code, attempt.failure_category) {
        (Some(code), Some(category)) => format!("{code} · {}", format::category(category)),
        (Some(code), None) => code.to_string(),
        (None, Some(category)) => format::category(category),
        (None, None) => "no answer".to_owned(),
    };
    Tried {
        number: attempt.number,
        status: attempt.status,
        answer,
        error: attempt.error_message.as_deref().map(visible),
        scheduled_at: attempt.scheduled_at,
        executed_at: attempt.executed_at,
        next_retry_at: attempt.next_retry_at,
        worker: attempt.worker.to_string(),
        duration: millis(attempt.timings.total),
        bars: bars(&parts, scale),
        phases: told.join(", "),
        exchange: None,
        is_open: false,
    }
}

fn exchange(stored: &StoredAttempt, event: &Event) -> Exchange {
    let body = stored.attempt.response_body_sample.as_deref().unwrap_or_default();
    let shown = |mut header: HeaderView| {
        header.value = visible(&header.value);
        header
    };
    let response_headers = header_views(stored.attempt.response_headers.as_deref());
    Exchange {
        request_headers: request_headers(stored, event).into_iter().map(shown).collect(),
        response_headers: response_headers.into_iter().map(shown).collect(),
        body: sample(body),
        bytes: body.len(),
    }
}

/// A part of an attempt.
#[derive(Debug, PartialEq, Eq)]
struct Phase {
    class: &'static str,
    name: &'static str,
    micros: u32,
}

/// The phases of an attempt, one after the other. The time to the first byte is told from the beginning: what came
/// before is taken off.
fn phases(timings: &PhaseTimings) -> Vec<Phase> {
    let before =
        [("dns", "DNS", timings.dns), ("connect", "connect", timings.connect), ("tls", "TLS", timings.tls)];
    let mut phases: Vec<_> = before
        .into_iter()
        .filter_map(|(class, name, micros)| Some(Phase { class, name, micros: micros? }))
        .collect();
    let connected: u32 = phases.iter().fold(0, |sum, phase| sum.saturating_add(phase.micros));
    match timings.ttfb {
        Some(ttfb) => {
            let wait = ttfb.saturating_sub(connected);
            phases.push(Phase { class: "wait", name: "waiting for the first byte", micros: wait });
            let rest = timings.total.saturating_sub(ttfb.max(connected));
            phases.push(Phase { class: "rest", name: "rest of the answer", micros: rest });
        }
        None => {
            let rest = timings.total.saturating_sub(connected);
            phases.push(Phase { class: "none", name: "no answer for", micros: rest });
        }
    }
    phases
}

/// The phases as parts of a line that stands for the longest attempt.
fn bars(phases: &[Phase], scale: u32) -> Vec<Bar> {
    let scale = u64::from(scale.max(1));
    let mut begin = 0u64;
    let mut bars = Vec::with_capacity(phases.len());
    for phase in phases {
        let (x, width) = (begin * WIDTH / scale, u64::from(phase.micros) * WIDTH / scale);
        begin += u64::from(phase.micros);
        if phase.micros > 0 {
            let x = x.min(WIDTH - LEAST);
            let width = width.max(LEAST).min(WIDTH - x);
            let tip = format!("{} {}", phase.name, millis(phase.micros));
            bars.push(Bar { class: phase.class, x, width, tip });
        }
    }
    bars
}

fn millis(micros: u32) -> String {
    format::millis(f64::from(micros) / 1_000.0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn phases_follow_one_another() {
        let timings = PhaseTimings {
            dns: Some(1_000),
            connect: Some(2_000),
            tls: Some(3_000),
            ttfb: Some(10_000),
            total: 20_000,
        };
        let parts = phases(&timings);
        let told: Vec<_> = parts.iter().map(|phase| (phase.class, phase.micros)).collect();
        let expected =
            [("dns", 1_000), ("connect", 2_000), ("tls", 3_000), ("wait", 4_000), ("rest", 10_000)];
        assert_eq!(told, expected);
        let drawn: Vec<_> = bars(&parts, 20_000).into_iter().map(|bar| (bar.x, bar.width)).collect();
        assert_eq!(drawn, [(0, 50), (50, 100), (150, 150), (300, 200), (500, 500)]);
        let refused = PhaseTimings { dns: Some(500), total: 700, ..PhaseTimings::default() };
        assert_eq!(phases(&refused)[1], Phase { class: "none", name: "no answer for", micros: 200 });
    }

    proptest! {
        #[test]
        fn whatever_was_measured_stays_within_its_line(
            dns: Option<u32>, connect: Option<u32>, tls: Option<u32>, ttfb: Option<u32>, total: u32, scale: u32,
        ) {
            let parts = phases(&PhaseTimings { dns, connect, tls, ttfb, total });
            for bar in bars(&parts, scale.max(total)) {
                prop_assert!(bar.width >= LEAST && bar.x + bar.width <= WIDTH, "{bar:?}");
            }
        }
    }
}
