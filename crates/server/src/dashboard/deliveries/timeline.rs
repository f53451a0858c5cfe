//! Timeline of a delivery: its attempts with the duration of each phase, and the periods in which a circuit
//! blocked it.

use redrive_core::delivery::outcome::AttemptStatus;
use redrive_core::{Time, event::Event};
use redrive_store::{PhaseTimings, StoredAttempt};

use crate::{
    api::{HeaderView, header_views, request_headers},
    app::attempts::{DeliveryHistory, HistoryEntry},
    dashboard::{
        format,
        untrusted::{BodySample, escape_invisible, sample},
    },
};

/// Width of the waterfall, in its own units.
const WIDTH: u64 = 1_000;
/// Minimum width of a phase, so that it stays visible.
const MIN_BAR_WIDTH: u64 = 4;
/// Number of newest attempts shown with request and response; the requested attempt is shown in full too.
const FULL_ATTEMPTS: usize = 4;
/// Maximum number of newest timeline entries shown.
const MAX_ENTRIES: usize = 60;

/// A line of the timeline.
pub(super) enum Line {
    /// An attempt.
    Attempt(Box<AttemptRow>),
    /// A period in which a circuit blocked the delivery.
    CircuitOpen {
        /// Start of the period.
        since: Time,
        /// Reason as text.
        description: String,
    },
}

/// An attempt as it is shown.
pub(super) struct AttemptRow {
    pub(super) number: u32,
    pub(super) status: AttemptStatus,
    /// Summary of the response.
    pub(super) response: String,
    /// Error message.
    pub(super) error: Option<String>,
    pub(super) scheduled_at: Time,
    pub(super) executed_at: Time,
    pub(super) next_retry_at: Option<Time>,
    pub(super) worker: String,
    pub(super) duration: String,
    pub(super) bars: Vec<Bar>,
    /// Durations of the phases as text.
    pub(super) phases: String,
    /// Request and response. `None` if the attempt is not shown in full.
    pub(super) exchange: Option<Exchange>,
    /// Whether it is initially expanded.
    pub(super) is_open: bool,
}

/// Request and response of an attempt.
pub(super) struct Exchange {
    pub(super) request_headers: Vec<HeaderView>,
    pub(super) response_headers: Vec<HeaderView>,
    pub(super) body: BodySample,
    /// Number of response body bytes that are stored.
    pub(super) bytes: usize,
}

/// A phase of an attempt in its waterfall.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Bar {
    pub(super) class: &'static str,
    pub(super) x: u64,
    pub(super) width: u64,
    /// Tooltip with the phase's name and duration.
    pub(super) tip: String,
}

impl AttemptRow {
    /// Returns the color of the attempt.
    pub(super) fn tone(&self) -> &'static str {
        match self.status {
            AttemptStatus::Success => "good",
            AttemptStatus::Failed => "waiting",
            AttemptStatus::FinalFailure => "bad",
        }
    }
}

/// Returns the timeline, newest first, and the number of older entries that are omitted.
pub(super) fn timeline(
    history: DeliveryHistory,
    event: &Event,
    requested: Option<u32>,
) -> (Vec<Line>, usize) {
    let longest = |entry: &HistoryEntry| match entry {
        HistoryEntry::Attempt(stored) => stored.attempt.timings.total,
        HistoryEntry::Blocked(_) => 0,
    };
    let scale = history.entries.iter().map(longest).max().unwrap_or(0);
    let omitted = history.entries.len().saturating_sub(MAX_ENTRIES);
    let mut in_full = FULL_ATTEMPTS;
    let mut lines = Vec::new();
    for entry in history.entries.into_iter().rev().take(MAX_ENTRIES) {
        lines.push(match entry {
            HistoryEntry::Blocked(blocked) => {
                Line::CircuitOpen { since: blocked.since, description: blocked.describe() }
            }
            HistoryEntry::Attempt(stored) => {
                let is_requested = requested == Some(stored.attempt.number);
                let is_newest = in_full == FULL_ATTEMPTS;
                let mut row = attempt_row(&stored, scale);
                if in_full > 0 || is_requested {
                    row.exchange = Some(exchange(&stored, event));
                }
                row.is_open = is_requested || (requested.is_none() && is_newest);
                in_full = in_full.saturating_sub(1);
                Line::Attempt(Box::new(row))
            }
        });
    }
    (lines, omitted)
}

fn attempt_row(stored: &StoredAttempt, scale: u32) -> AttemptRow {
    let attempt = &stored.attempt;
    let parts = phases(&attempt.timings);
    let phase_texts: Vec<_> = parts.iter().map(|phase| phase.text()).collect();
    AttemptRow {
        number: attempt.number,
        status: attempt.status,
        response: describe_response(stored),
        error: attempt.error_message.as_deref().map(escape_invisible),
        scheduled_at: attempt.scheduled_at,
        executed_at: attempt.executed_at,
        next_retry_at: attempt.next_retry_at,
        worker: attempt.worker.to_string(),
        duration: millis(attempt.timings.total),
        bars: bars(&parts, scale),
        phases: phase_texts.join(", "),
        exchange: None,
        is_open: false,
    }
}

/// Describes the response of an attempt, or why there was none.
pub(super) fn describe_response(stored: &StoredAttempt) -> String {
    match (stored.attempt.http_status_code, stored.attempt.failure_category) {
        (Some(code), Some(category)) => format!("{code} · {}", format::category(category)),
        (Some(code), None) => code.to_string(),
        (None, Some(category)) => format::category(category),
        (None, None) => "no response".to_owned(),
    }
}

pub(super) fn exchange(stored: &StoredAttempt, event: &Event) -> Exchange {
    let body = stored.attempt.response_body_sample.as_deref().unwrap_or_default();
    let escape_value = |mut header: HeaderView| {
        header.value = escape_invisible(&header.value);
        header
    };
    let response_headers = header_views(stored.attempt.response_headers.as_deref());
    Exchange {
        request_headers: request_headers(stored, event).into_iter().map(escape_value).collect(),
        response_headers: response_headers.into_iter().map(escape_value).collect(),
        body: sample(body),
        bytes: body.len(),
    }
}

/// A phase of an attempt.
#[derive(Debug, PartialEq, Eq)]
struct Phase {
    class: &'static str,
    name: &'static str,
    micros: u32,
}

impl Phase {
    /// Formats its name and duration.
    fn text(&self) -> String {
        format!("{} ({})", self.name, millis(self.micros))
    }
}

/// Returns the phases of an attempt in order. `ttfb` is measured from the start of the attempt, so the preceding
/// phases are subtracted.
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
            phases.push(Phase { class: "rest", name: "content download", micros: rest });
        }
        None => {
            let rest = timings.total.saturating_sub(connected);
            phases.push(Phase { class: "none", name: "no response", micros: rest });
        }
    }
    phases
}

/// Returns the phases as bars, scaled to the longest attempt.
fn bars(phases: &[Phase], scale: u32) -> Vec<Bar> {
    let scale = u64::from(scale.max(1));
    let mut begin = 0u64;
    let mut bars = Vec::with_capacity(phases.len());
    for phase in phases {
        let (x, width) = (begin * WIDTH / scale, u64::from(phase.micros) * WIDTH / scale);
        begin += u64::from(phase.micros);
        if phase.micros > 0 {
            let x = x.min(WIDTH - MIN_BAR_WIDTH);
            let width = width.max(MIN_BAR_WIDTH).min(WIDTH - x);
            let tip = phase.text();
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
    fn phases_are_consecutive() {
        let timings = PhaseTimings {
            dns: Some(1_000),
            connect: Some(2_000),
            tls: Some(3_000),
            ttfb: Some(10_000),
            total: 20_000,
        };
        let parts = phases(&timings);
        let found: Vec<_> = parts.iter().map(|phase| (phase.class, phase.micros)).collect();
        let expected =
            [("dns", 1_000), ("connect", 2_000), ("tls", 3_000), ("wait", 4_000), ("rest", 10_000)];
        assert_eq!(found, expected);
        let drawn: Vec<_> = bars(&parts, 20_000).into_iter().map(|bar| (bar.x, bar.width)).collect();
        assert_eq!(drawn, [(0, 50), (50, 100), (150, 150), (300, 200), (500, 500)]);
        let refused = PhaseTimings { dns: Some(500), total: 700, ..PhaseTimings::default() };
        assert_eq!(phases(&refused)[1], Phase { class: "none", name: "no response", micros: 200 });
    }

    proptest! {
        #[test]
        fn bars_stay_within_width_for_any_timings(
            dns: Option<u32>, connect: Option<u32>, tls: Option<u32>, ttfb: Option<u32>, total: u32, scale: u32,
        ) {
            let parts = phases(&PhaseTimings { dns, connect, tls, ttfb, total });
            for bar in bars(&parts, scale.max(total)) {
                prop_assert!(bar.width >= MIN_BAR_WIDTH && bar.x + bar.width <= WIDTH, "{bar:?}");
            }
        }
    }
}
