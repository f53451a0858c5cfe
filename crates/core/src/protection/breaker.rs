//! The circuit breaker: stops calling an endpoint that fails, and finds out when it has recovered.
//!
//! One circuit per webhook. Being blocked costs a delivery nothing: no attempt is used. Whatever happens, a
//! circuit that nobody forced lets somebody through again after at most [`LONGEST_SLEEP`].

use std::time::Duration;

use crate::{
    cluster::clock_discipline::SetBack, delivery::response::FailureCategory, id::EventId, time::Time,
};

mod config;
mod half_open;
mod state;
mod window;

pub use config::{BreakerConfig, BreakerPolicy};
use half_open::Trial;
pub use state::{CircuitState, CircuitView, Counts, Forced, SavedCircuit};
use window::Window;

/// The longest that a circuit stays open before the endpoint is tried again.
pub const LONGEST_SLEEP: Duration = Duration::from_secs(24 * 3600);

/// Whether a call may be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permit {
    /// It may.
    Go,
    /// It may, to find out whether the endpoint has recovered. The ticket is handed back to
    /// [`Circuit::called`] with the outcome, or to [`Circuit::give_back`] if the call is not made after all.
    Probe(u64),
    /// It has to wait.
    Wait {
        /// Until when; none if it is held open until somebody says otherwise.
        until: Option<Time>,
        /// Whether a person has decided it.
        forced: bool,
    },
}

/// What came of a call, as far as a circuit cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// The endpoint took it.
    Succeeded,
    /// The endpoint failed.
    Failed(FailureCategory),
    /// It says nothing about the endpoint's health: answered 429, refused address, cancelled, cut at a
    /// drain, lost, or not made at all.
    Ignored,
}

impl Call {
    /// What an attempt that was made and not cut by ourselves counts as; no category for a success.
    pub fn of(category: Option<FailureCategory>) -> Self {
        match category {
            None => Self::Succeeded,
            Some(FailureCategory::RateLimit | FailureCategory::BlockedAddress) => Self::Ignored,
            Some(category) => Self::Failed(category),
        }
    }
}

/// A move of a circuit. The states are equal if only what a person has decided about it changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transition {
    /// Its state before.
    pub from: CircuitState,
    /// Its state now.
    pub to: CircuitState,
    /// When it moved.
    pub at: Time,
}

/// Why a circuit is not closed.
#[derive(Clone, Debug, Default)]
struct Trouble {
    sleep_ms: u64,
    failed_recoveries: u32,
    counts: Counts,
}

#[derive(Clone, Debug)]
enum Phase {
    Closed(Option<Box<Window>>),
    Open { until: Time },
    HalfOpen(Box<Trial>),
}

/// The circuit of one webhook. Small while it is closed.
#[derive(Clone, Debug)]
pub struct Circuit {
    phase: Phase,
    generation: u64,
    since: Time,
    forced: Option<Box<Forced>>,
    trouble: Option<Box<Trouble>>,
    /// The state before a move that nobody was told of yet: [`Circuit::may_call`] moves it in passing.
    untold: Option<CircuitState>,
}

impl Circuit {
    /// A closed circuit. Its generations begin with the time, so that they are later than those of a circuit
    /// of the same webhook that was evicted.
    pub fn new(now: Time) -> Self {
        Self::closed_after(0, now)
    }

    /// A closed circuit with an empty window whose next transition is newer than `generation`.
    pub fn closed_after(generation: u64, now: Time) -> Self {
        let generation = generation.max(generation_at(now));
        Self { phase: Phase::Closed(None), generation, since: now, forced: None, trouble: None, untold: None }
    }

    /// The circuit of which this was stored. A half-open one begins its probes anew.
    pub fn restore(saved: SavedCircuit, now: Time) -> Self {
        let phase = match (&saved.forced, saved.state) {
            (Some(forced), _) if forced.open => Phase::Open { until: Time::FOREVER },
            (None, CircuitState::Open) => {
                // A record from a clock gone wrong must not block longer than any circuit may.
                Phase::Open { until: saved.until.unwrap_or(now).min(now + LONGEST_SLEEP) }
            }
            (None, CircuitState::HalfOpen) => Phase::HalfOpen(Box::default()),
            _ => Phase::Closed(None),
        };
        let trouble = (!matches!(phase, Phase::Closed(_))).then(|| {
            Box::new(Trouble {
                sleep_ms: saved.sleep_ms,
                failed_recoveries: saved.consecutive_half_open_failures,
                counts: saved.counts,
            })
        });
        Self {
            phase,
            generation: saved.generation,
            since: saved.since,
            forced: saved.forced.map(Box::new),
            trouble,
            untold: None,
        }
    }

    /// What to store of it.
    pub fn saved(&self) -> SavedCircuit {
        let trouble = self.trouble.as_deref();
        SavedCircuit {
            state: self.state(),
            generation: self.generation,
            since: self.since,
            until: self.next_half_open(),
            sleep_ms: trouble.map_or(0, |trouble| trouble.sleep_ms),
            consecutive_half_open_failures: trouble.map_or(0, |trouble| trouble.failed_recoveries),
            forced: self.forced().cloned(),
            counts: trouble.map_or(Counts::default(), |trouble| trouble.counts),
        }
    }

    /// Whether a call about `event` may be made; to be asked right before sending. A probe counts as under
    /// way until [`Circuit::called`] hears of it, or is taken to be lost when `patience` is over.
    pub fn may_call(
        &mut self,
        policy: &BreakerPolicy,
        now: Time,
        event: EventId,
        patience: Duration,
    ) -> Permit {
        self.advance(policy, now);
        match (&self.forced, &mut self.phase) {
            (Some(forced), _) if forced.open => Permit::Wait { until: forced.until, forced: true },
            (_, Phase::Closed(_)) => Permit::Go,
            (_, Phase::Open { until }) => Permit::Wait { until: Some(*until), forced: false },
            (_, Phase::HalfOpen(trial)) => trial.admit(policy, self.generation, event, now, now + patience),
        }
    }

    /// Takes the outcome of a call. `probe` is the ticket of its permit, none for an ordinary call.
    pub fn called(
        &mut self,
        policy: &BreakerPolicy,
        now: Time,
        call: Call,
        probe: Option<u64>,
    ) -> Option<Transition> {
        match (&mut self.phase, call) {
            (Phase::Closed(window), Call::Succeeded | Call::Failed(_)) if policy.enabled => {
                let failure = if let Call::Failed(category) = call { Some(category) } else { None };
                let window = window.get_or_insert_with(|| Box::new(Window::new(policy.window, now)));
                window.add(policy.window, now, failure);
                let counts = window.counts(policy.window, now);
                if failure.is_some() && self.forced.is_none() && policy.opens_at(counts.total, counts.failed)
                {
                    self.open(policy, now, Trouble { counts, ..Trouble::default() });
                }
            }
            (Phase::HalfOpen(trial), call) => {
                let success = match call {
                    Call::Succeeded => Some(true),
                    Call::Failed(_) => Some(false),
                    Call::Ignored => None,
                };
                // What is lost is lost, whether or not somebody has looked since.
                trial.expire(now);
                // Calls that began before it opened say nothing about the endpoint now.
                probe.into_iter().for_each(|ticket| trial.answer(ticket, success, now));
            }
            // What comes back while it is open was sent before.
            _ => {}
        }
        self.tick(policy, now)
    }

    /// Takes back the ticket of a probe that was not sent after all. Nothing moves, and nothing is told.
    pub fn give_back(&mut self, now: Time, ticket: u64) {
        if let Phase::HalfOpen(trial) = &mut self.phase {
            trial.answer(ticket, None, now);
        }
    }

    /// Makes the moves that only time makes: from open to half-open, the end of a forced state, probes that
    /// are lost, and the verdict on a half-open circuit that gets no more probes.
    pub fn tick(&mut self, policy: &BreakerPolicy, now: Time) -> Option<Transition> {
        self.advance(policy, now);
        self.told()
    }

    /// When [`Circuit::tick`] has something to do; none if only when something happens.
    pub fn next_tick(&self, policy: &BreakerPolicy) -> Option<Time> {
        if self.untold.is_some() {
            return Some(self.since);
        }
        match (&self.forced, &self.phase) {
            (Some(forced), _) => forced.until,
            (None, Phase::Closed(_)) => None,
            _ if !policy.enabled => Some(self.since),
            (None, Phase::Open { until }) => Some(*until),
            (None, Phase::HalfOpen(trial)) => trial.next_tick(policy),
        }
    }

    /// Holds it open or closed. A state that is forced until some time ends closed, with an empty window.
    pub fn force(&mut self, forced: Forced, now: Time) -> Option<Transition> {
        if self.forced.as_deref() == Some(&forced) {
            return self.told();
        }
        let window = if let Phase::Closed(window) = &mut self.phase { window.take() } else { None };
        if forced.open {
            self.trouble =
                Some(Box::new(Trouble { counts: self.counts_of(window, now), ..Trouble::default() }));
            self.enter(Phase::Open { until: Time::FOREVER }, now);
        } else {
            self.trouble = None;
            self.enter(Phase::Closed(window), now);
        }
        self.forced = Some(Box::new(forced));
        self.supersede(now);
        self.told()
    }

    /// Closes it, whatever it is: an empty window, nothing forced, no failed recoveries.
    pub fn reset(&mut self, now: Time) -> Option<Transition> {
        if self.forced.is_none()
            && let Phase::Closed(window) = &mut self.phase
        {
            *window = None;
        } else {
            self.close(now);
            self.supersede(now);
        }
        self.told()
    }

    /// Whether it may be forgotten: closed and not by force, with an empty window.
    pub fn is_idle(&self, policy: &BreakerPolicy, now: Time) -> bool {
        let empty = match &self.phase {
            Phase::Closed(None) => true,
            Phase::Closed(Some(window)) => window.counts(policy.window, now).total == 0,
            _ => false,
        };
        empty && self.forced.is_none() && self.untold.is_none()
    }

    /// Its state.
    pub fn state(&self) -> CircuitState {
        match self.phase {
            Phase::Closed(_) => CircuitState::Closed,
            Phase::Open { .. } => CircuitState::Open,
            Phase::HalfOpen(_) => CircuitState::HalfOpen,
        }
    }

    /// Whether it lets everything pass and nobody has a hand in it.
    pub fn is_plain(&self) -> bool {
        matches!(self.phase, Phase::Closed(_)) && self.forced.is_none()
    }

    /// What a person has decided about it.
    pub fn forced(&self) -> Option<&Forced> {
        self.forced.as_deref()
    }

    /// How many more probes may go now, while it is half-open.
    pub fn probes_left(&self, policy: &BreakerPolicy) -> Option<u32> {
        match &self.phase {
            Phase::HalfOpen(trial) if policy.enabled => Some(trial.left(policy)),
            _ => None,
        }
    }

    /// Whether this event had its probe in the half-open period that is.
    pub fn has_probed(&self, event: EventId) -> bool {
        match &self.phase {
            Phase::HalfOpen(trial) => trial.knows(event),
            _ => false,
        }
    }

    /// How many deliveries may be taken up for it at once while it is half-open: those that are probes, and
    /// those that may become some.
    pub fn may_hold(&self, policy: &BreakerPolicy) -> Option<usize> {
        match &self.phase {
            Phase::HalfOpen(trial) if policy.enabled => Some(trial.under_way() + trial.left(policy) as usize),
            _ => None,
        }
    }

    /// What to show of it.
    pub fn view(&self, policy: &BreakerPolicy, now: Time) -> CircuitView {
        let saved = self.saved();
        let (counts, end) = match &self.phase {
            Phase::Closed(Some(window)) => (window.counts(policy.window, now), now.millis()),
            Phase::Closed(None) => (Counts::default(), now.millis()),
            Phase::Open { .. } => (saved.counts, self.since.millis()),
            Phase::HalfOpen(_) => {
                let slept = i64::try_from(saved.sleep_ms).unwrap_or(i64::MAX);
                (saved.counts, self.since.millis().saturating_sub(slept))
            }
        };
        let trial = if let Phase::HalfOpen(trial) = &self.phase { Some(trial) } else { None };
        CircuitView {
            state: saved.state,
            forced: saved.forced,
            counts,
            error_percentage: counts.error_percentage(),
            window_start: Time::from_millis(end.saturating_sub(policy.window.as_millis() as i64)),
            state_transition_at: self.since,
            next_half_open_at: saved.until,
            half_open_attempts: trial.map_or(0, |trial| trial.attempts()),
            half_open_successes: trial.map_or(0, |trial| trial.successes()),
            consecutive_half_open_failures: saved.consecutive_half_open_failures,
        }
    }

    /// Time went back: moves what was planned by the time that is no longer used. What an operator forced stays.
    pub fn set_back(&mut self, set_back: &SetBack) {
        self.since = set_back.moved(self.since);
        match &mut self.phase {
            Phase::Closed(window) => {
                if let Some(window) = window {
                    window.set_back(set_back);
                }
            }
            Phase::Open { until } => *until = set_back.moved(*until),
            Phase::HalfOpen(trial) => trial.set_back(set_back),
        }
    }

    /// When it becomes half-open; a forced state never does.
    fn next_half_open(&self) -> Option<Time> {
        match self.phase {
            Phase::Open { until } if self.forced.is_none() => Some(until),
            _ => None,
        }
    }

    fn counts_of(&self, window: Option<Box<Window>>, now: Time) -> Counts {
        match (window, &self.trouble) {
            (Some(window), _) => window.counts(window.length(), now),
            (None, Some(trouble)) => trouble.counts,
            (None, None) => Counts::default(),
        }
    }

    /// Makes the move that is due, if one is. Nobody is told of it here.
    fn advance(&mut self, policy: &BreakerPolicy, now: Time) {
        if let Some(forced) = &self.forced {
            if forced.until.is_some_and(|end| now >= end) {
                self.close(now);
            }
            return;
        }
        match &mut self.phase {
            Phase::Closed(_) => {}
            // Somebody has turned the breaker off: nothing is held back by it any more.
            _ if !policy.enabled => self.close(now),
            Phase::Open { until } if now >= *until => self.enter(Phase::HalfOpen(Box::default()), now),
            Phase::Open { .. } => {}
            Phase::HalfOpen(trial) => {
                trial.expire(now);
                match trial.verdict(policy, now) {
                    Some(true) => self.close(now),
                    Some(false) => {
                        let mut trouble = self.trouble.take().unwrap_or_default();
                        trouble.failed_recoveries = trouble.failed_recoveries.saturating_add(1);
                        self.open(policy, now, *trouble);
                    }
                    None => {}
                }
            }
        }
    }

    fn open(&mut self, policy: &BreakerPolicy, now: Time, mut trouble: Trouble) {
        let sleep = policy.sleep_after(trouble.failed_recoveries);
        trouble.sleep_ms = u64::try_from(sleep.as_millis()).unwrap_or(u64::MAX);
        self.trouble = Some(Box::new(trouble));
        self.enter(Phase::Open { until: now + sleep }, now);
    }

    fn close(&mut self, now: Time) {
        self.trouble = None;
        self.enter(Phase::Closed(None), now);
        self.forced = None;
    }

    /// Makes an operator's action newer than every transition that another node derives from calls counted before
    /// it: such a node began to count earlier, and each of its transitions raises its generation by one.
    fn supersede(&mut self, now: Time) {
        self.generation = self.generation.max(generation_at(now));
    }

    fn enter(&mut self, phase: Phase, now: Time) {
        self.untold.get_or_insert(self.state());
        self.phase = phase;
        self.generation += 1;
        self.since = now;
    }

    /// Tells of the moves made since the last time, as one.
    fn told(&mut self) -> Option<Transition> {
        let from = self.untold.take()?;
        Some(Transition { from, to: self.state(), at: self.since })
    }
}

/// The generation with which a circuit that is created now begins.
fn generation_at(now: Time) -> u64 {
    now.millis().unsigned_abs()
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
