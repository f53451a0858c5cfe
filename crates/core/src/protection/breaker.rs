//! The circuit breaker: stops calling a failing endpoint and detects its recovery.
//!
//! There is one circuit per webhook. A blocked delivery uses no attempt. A circuit that is not forced always
//! lets a call through again after at most [`MAX_SLEEP_WINDOW`].

use std::time::Duration;

use crate::{
    cluster::clock_discipline::ClockStep, delivery::response::FailureCategory, id::EventId, time::Time,
};

mod config;
mod half_open;
mod state;
mod window;

pub use config::{BreakerConfig, BreakerPolicy};
use half_open::HalfOpenPeriod;
pub use state::{CircuitState, CircuitView, Counts, Forced, SavedCircuit};
use window::Window;

/// Maximum time that a circuit stays open before the endpoint is probed.
pub const MAX_SLEEP_WINDOW: Duration = Duration::from_secs(24 * 3600);

/// Decision of the circuit about one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CircuitDecision {
    /// The call may be made.
    Go,
    /// The call may be made as a probe for recovery. The probe id must be passed to [`Circuit::record_call`] with
    /// the outcome, or to [`Circuit::cancel_probe`] if the call is not made after all.
    Probe(u64),
    /// The call must wait.
    Wait {
        /// Until when; `None` if an operator forced the circuit open without an end.
        until: Option<Time>,
        /// Whether an operator forced the circuit open.
        forced: bool,
    },
}

/// Outcome of a call as the circuit counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallOutcome {
    /// The endpoint accepted it.
    Succeeded,
    /// The endpoint failed.
    Failed(FailureCategory),
    /// Carries no information about the endpoint's health: response 429, denied address, cancelled, cut at the drain
    /// deadline, lost, or not made at all.
    Ignored,
}

impl CallOutcome {
    /// Classifies an attempt that was made and not cut by this node; the category is `None` for a success.
    pub fn from_category(category: Option<FailureCategory>) -> Self {
        match category {
            None => Self::Succeeded,
            Some(FailureCategory::RateLimit | FailureCategory::BlockedAddress) => Self::Ignored,
            Some(category) => Self::Failed(category),
        }
    }
}

/// A transition of a circuit. The two states are equal if only the forced state changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transition {
    /// State before.
    pub from: CircuitState,
    /// State after.
    pub to: CircuitState,
    /// Time of the transition.
    pub at: Time,
}

/// Details of a circuit that is not closed.
#[derive(Clone, Debug, Default)]
struct OpenDetails {
    sleep_ms: u64,
    failed_recoveries: u32,
    counts: Counts,
}

#[derive(Clone, Debug)]
enum Phase {
    Closed(Option<Box<Window>>),
    Open { until: Time },
    HalfOpen(Box<HalfOpenPeriod>),
}

/// The circuit of one webhook. Small while it is closed.
///
/// ```
/// use std::time::Duration;
///
/// use redrive_core::{
///     EventId, FailureCategory, Time,
///     protection::breaker::{BreakerPolicy, CallOutcome, Circuit, CircuitState, CircuitDecision},
/// };
///
/// let policy = BreakerPolicy { minimum_throughput: 2, ..BreakerPolicy::default() };
/// let (now, timeout) = (Time::from_secs(1_000), Duration::from_secs(30));
/// let mut circuit = Circuit::new(now);
/// let failed = CallOutcome::from_category(Some(FailureCategory::ServerError));
/// assert_eq!(circuit.record_call(&policy, now, failed, None), None);
/// assert_eq!(circuit.record_call(&policy, now, failed, None).unwrap().to, CircuitState::Open);
/// // A 429 says nothing about the endpoint's health, so it never opens a circuit.
/// assert_eq!(CallOutcome::from_category(Some(FailureCategory::RateLimit)), CallOutcome::Ignored);
/// // After the sleep window each event may be a probe only once.
/// let (later, event_id) = (now + policy.sleep_window, EventId::from_bytes([1; 16]));
/// assert!(matches!(circuit.may_call(&policy, later, event_id, timeout), CircuitDecision::Probe(_)));
/// assert!(matches!(circuit.may_call(&policy, later, event_id, timeout), CircuitDecision::Wait { .. }));
/// ```
#[derive(Clone, Debug)]
pub struct Circuit {
    phase: Phase,
    generation: u64,
    since: Time,
    forced: Option<Box<Forced>>,
    open_details: Option<Box<OpenDetails>>,
    /// The state before a transition that was not reported yet; [`Circuit::may_call`] makes transitions without
    /// reporting them.
    unreported_from: Option<CircuitState>,
}

impl Circuit {
    /// Returns a closed circuit. Generations start at the current time, so that they are higher than those of an
    /// evicted circuit of the same webhook.
    pub fn new(now: Time) -> Self {
        Self::closed_after(0, now)
    }

    /// Returns a closed circuit with an empty window whose next transition is newer than `generation`.
    pub fn closed_after(generation: u64, now: Time) -> Self {
        let generation = generation.max(generation_at(now));
        Self {
            phase: Phase::Closed(None),
            generation,
            since: now,
            forced: None,
            open_details: None,
            unreported_from: None,
        }
    }

    /// Restores a stored circuit. A half-open circuit starts its probes again.
    pub fn restore(saved: SavedCircuit, now: Time) -> Self {
        let phase = match (&saved.forced, saved.state) {
            (Some(forced), _) if forced.open => Phase::Open { until: Time::FAR_FUTURE },
            (None, CircuitState::Open) => {
                // A record written with a wrong clock must not block for longer than the maximum.
                Phase::Open { until: saved.until.unwrap_or(now).min(now + MAX_SLEEP_WINDOW) }
            }
            (None, CircuitState::HalfOpen) => Phase::HalfOpen(Box::default()),
            _ => Phase::Closed(None),
        };
        let open_details = (!matches!(phase, Phase::Closed(_))).then(|| {
            Box::new(OpenDetails {
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
            open_details,
            unreported_from: None,
        }
    }

    /// Returns the circuit in its stored form.
    pub fn to_saved(&self) -> SavedCircuit {
        let open_details = self.open_details.as_deref();
        SavedCircuit {
            state: self.state(),
            generation: self.generation,
            since: self.since,
            until: self.next_half_open(),
            sleep_ms: open_details.map_or(0, |open_details| open_details.sleep_ms),
            consecutive_half_open_failures: open_details
                .map_or(0, |open_details| open_details.failed_recoveries),
            forced: self.forced().cloned(),
            counts: open_details.map_or(Counts::default(), |open_details| open_details.counts),
        }
    }

    /// Decides whether a call about `event` may be made; to be called right before sending. A probe counts as in
    /// flight until [`Circuit::record_call`] gets its outcome, and as lost when `timeout` has passed.
    pub fn may_call(
        &mut self,
        policy: &BreakerPolicy,
        now: Time,
        event_id: EventId,
        timeout: Duration,
    ) -> CircuitDecision {
        self.advance(policy, now);
        match (&self.forced, &mut self.phase) {
            (Some(forced), _) if forced.open => CircuitDecision::Wait { until: forced.until, forced: true },
            (_, Phase::Closed(_)) => CircuitDecision::Go,
            (_, Phase::Open { until }) => CircuitDecision::Wait { until: Some(*until), forced: false },
            (_, Phase::HalfOpen(half_open)) => {
                half_open.admit(policy, self.generation, event_id, now, now + timeout)
            }
        }
    }

    /// Records the outcome of a call. `probe` is the id from its decision, `None` for an ordinary call.
    pub fn record_call(
        &mut self,
        policy: &BreakerPolicy,
        now: Time,
        call: CallOutcome,
        probe: Option<u64>,
    ) -> Option<Transition> {
        match (&mut self.phase, call) {
            (Phase::Closed(window), CallOutcome::Succeeded | CallOutcome::Failed(_)) if policy.enabled => {
                let failure = if let CallOutcome::Failed(category) = call { Some(category) } else { None };
                let window = window.get_or_insert_with(|| Box::new(Window::new(policy.window, now)));
                window.add(policy.window, now, failure);
                let counts = window.counts(policy.window, now);
                if failure.is_some() && self.forced.is_none() && policy.opens_at(counts.total, counts.failed)
                {
                    self.open(policy, now, OpenDetails { counts, ..OpenDetails::default() });
                }
            }
            (Phase::HalfOpen(half_open), call) => {
                let success = match call {
                    CallOutcome::Succeeded => Some(true),
                    CallOutcome::Failed(_) => Some(false),
                    CallOutcome::Ignored => None,
                };
                // A probe past its deadline is lost, even if no tick has removed it yet.
                half_open.expire(now);
                // Calls without a probe id were sent before the circuit opened and do not count.
                probe.into_iter().for_each(|probe_id| half_open.record_result(probe_id, success, now));
            }
            // A call that completes while the circuit is open was sent before it opened.
            _ => {}
        }
        self.tick(policy, now)
    }

    /// Takes back a probe that was not sent. Makes and reports no transition.
    pub fn cancel_probe(&mut self, now: Time, probe_id: u64) {
        if let Phase::HalfOpen(half_open) = &mut self.phase {
            half_open.record_result(probe_id, None, now);
        }
    }

    /// Makes the transitions that depend on time alone: from open to half-open, the end of a forced state, lost
    /// probes, and the decision of a half-open circuit that gets no more probes.
    pub fn tick(&mut self, policy: &BreakerPolicy, now: Time) -> Option<Transition> {
        self.advance(policy, now);
        self.take_transition()
    }

    /// Returns when [`Circuit::tick`] must run next, or `None` if only a call or an operator can change the state.
    pub fn next_tick(&self, policy: &BreakerPolicy) -> Option<Time> {
        if self.unreported_from.is_some() {
            return Some(self.since);
        }
        match (&self.forced, &self.phase) {
            (Some(forced), _) => forced.until,
            (None, Phase::Closed(_)) => None,
            _ if !policy.enabled => Some(self.since),
            (None, Phase::Open { until }) => Some(*until),
            (None, Phase::HalfOpen(half_open)) => half_open.next_tick(policy),
        }
    }

    /// Forces the circuit open or closed. When a temporary force ends, the circuit is closed with an empty window.
    pub fn force(&mut self, forced: Forced, now: Time) -> Option<Transition> {
        if self.forced.as_deref() == Some(&forced) {
            return self.take_transition();
        }
        let window = if let Phase::Closed(window) = &mut self.phase { window.take() } else { None };
        if forced.open {
            self.open_details =
                Some(Box::new(OpenDetails { counts: self.counts_of(window, now), ..OpenDetails::default() }));
            self.enter(Phase::Open { until: Time::FAR_FUTURE }, now);
        } else {
            self.open_details = None;
            self.enter(Phase::Closed(window), now);
        }
        self.forced = Some(Box::new(forced));
        self.supersede(now);
        self.take_transition()
    }

    /// Closes the circuit from any state: empty window, not forced, no failed recoveries.
    pub fn reset(&mut self, now: Time) -> Option<Transition> {
        if self.forced.is_none()
            && let Phase::Closed(window) = &mut self.phase
        {
            *window = None;
        } else {
            self.close(now);
            self.supersede(now);
        }
        self.take_transition()
    }

    /// Returns whether the circuit may be evicted: closed, not forced, empty window, nothing left to report.
    pub fn is_idle(&self, policy: &BreakerPolicy, now: Time) -> bool {
        let empty = match &self.phase {
            Phase::Closed(None) => true,
            Phase::Closed(Some(window)) => window.counts(policy.window, now).total == 0,
            _ => false,
        };
        empty && self.forced.is_none() && self.unreported_from.is_none()
    }

    /// Returns the state.
    pub fn state(&self) -> CircuitState {
        match self.phase {
            Phase::Closed(_) => CircuitState::Closed,
            Phase::Open { .. } => CircuitState::Open,
            Phase::HalfOpen(_) => CircuitState::HalfOpen,
        }
    }

    /// Returns whether the circuit is closed and not forced.
    pub fn is_closed_unforced(&self) -> bool {
        matches!(self.phase, Phase::Closed(_)) && self.forced.is_none()
    }

    /// Returns the state that an operator forced, if any.
    pub fn forced(&self) -> Option<&Forced> {
        self.forced.as_deref()
    }

    /// Returns how many more probes may be sent now, or `None` if the circuit is not half-open.
    pub fn probes_left(&self, policy: &BreakerPolicy) -> Option<u32> {
        match &self.phase {
            Phase::HalfOpen(half_open) if policy.enabled => Some(half_open.probes_left(policy)),
            _ => None,
        }
    }

    /// Returns whether this event was probed in the current half-open period.
    pub fn has_probed(&self, event_id: EventId) -> bool {
        match &self.phase {
            Phase::HalfOpen(half_open) => half_open.has_probed(event_id),
            _ => false,
        }
    }

    /// Returns how many deliveries may be in memory for a half-open circuit: the probes in flight and those that may
    /// still be sent. Returns `None` if the circuit is not half-open.
    pub fn half_open_max_in_memory(&self, policy: &BreakerPolicy) -> Option<usize> {
        match &self.phase {
            Phase::HalfOpen(half_open) if policy.enabled => {
                Some(half_open.in_flight() + half_open.probes_left(policy) as usize)
            }
            _ => None,
        }
    }

    /// Returns the circuit as the API shows it.
    pub fn view(&self, policy: &BreakerPolicy, now: Time) -> CircuitView {
        let saved = self.to_saved();
        let (counts, end) = match &self.phase {
            Phase::Closed(Some(window)) => (window.counts(policy.window, now), now.millis()),
            Phase::Closed(None) => (Counts::default(), now.millis()),
            Phase::Open { .. } => (saved.counts, self.since.millis()),
            Phase::HalfOpen(_) => {
                let slept = i64::try_from(saved.sleep_ms).unwrap_or(i64::MAX);
                (saved.counts, self.since.millis().saturating_sub(slept))
            }
        };
        let half_open = if let Phase::HalfOpen(half_open) = &self.phase { Some(half_open) } else { None };
        CircuitView {
            state: saved.state,
            forced: saved.forced,
            counts,
            error_percentage: counts.error_percentage(),
            window_start: Time::from_millis(end.saturating_sub(policy.window.as_millis() as i64)),
            state_transition_at: self.since,
            next_half_open_at: saved.until,
            half_open_attempts: half_open.map_or(0, |half_open| half_open.attempts()),
            half_open_successes: half_open.map_or(0, |half_open| half_open.successes()),
            consecutive_half_open_failures: saved.consecutive_half_open_failures,
        }
    }

    /// Shifts planned times after the clock was set back. The end of a forced state is kept.
    pub fn adjust_for_clock_step(&mut self, clock_step: &ClockStep) {
        self.since = clock_step.apply(self.since);
        match &mut self.phase {
            Phase::Closed(window) => {
                if let Some(window) = window {
                    window.adjust_for_clock_step(clock_step);
                }
            }
            Phase::Open { until } => *until = clock_step.apply(*until),
            Phase::HalfOpen(half_open) => half_open.adjust_for_clock_step(clock_step),
        }
    }

    /// Returns when the circuit becomes half-open; `None` if it is forced or not open.
    fn next_half_open(&self) -> Option<Time> {
        match self.phase {
            Phase::Open { until } if self.forced.is_none() => Some(until),
            _ => None,
        }
    }

    fn counts_of(&self, window: Option<Box<Window>>, now: Time) -> Counts {
        match (window, &self.open_details) {
            (Some(window), _) => window.counts(window.length(), now),
            (None, Some(open_details)) => open_details.counts,
            (None, None) => Counts::default(),
        }
    }

    /// Makes the transition that is due, if any, without reporting it.
    fn advance(&mut self, policy: &BreakerPolicy, now: Time) {
        if let Some(forced) = &self.forced {
            if forced.until.is_some_and(|end| now >= end) {
                self.close(now);
            }
            return;
        }
        match &mut self.phase {
            Phase::Closed(_) => {}
            // The breaker was disabled: it blocks nothing any more.
            _ if !policy.enabled => self.close(now),
            Phase::Open { until } if now >= *until => self.enter(Phase::HalfOpen(Box::default()), now),
            Phase::Open { .. } => {}
            Phase::HalfOpen(half_open) => {
                half_open.expire(now);
                match half_open.decision(policy, now) {
                    Some(true) => self.close(now),
                    Some(false) => {
                        let mut open_details = self.open_details.take().unwrap_or_default();
                        open_details.failed_recoveries = open_details.failed_recoveries.saturating_add(1);
                        self.open(policy, now, *open_details);
                    }
                    None => {}
                }
            }
        }
    }

    fn open(&mut self, policy: &BreakerPolicy, now: Time, mut open_details: OpenDetails) {
        let sleep = policy.sleep_after(open_details.failed_recoveries);
        open_details.sleep_ms = u64::try_from(sleep.as_millis()).unwrap_or(u64::MAX);
        self.open_details = Some(Box::new(open_details));
        self.enter(Phase::Open { until: now + sleep }, now);
    }

    fn close(&mut self, now: Time) {
        self.open_details = None;
        self.enter(Phase::Closed(None), now);
        self.forced = None;
    }

    /// Makes an operator's action newer than every transition that another node derives from calls counted before
    /// it: such a node started counting earlier, and each of its transitions raises its generation by one.
    fn supersede(&mut self, now: Time) {
        self.generation = self.generation.max(generation_at(now));
    }

    fn enter(&mut self, phase: Phase, now: Time) {
        self.unreported_from.get_or_insert(self.state());
        self.phase = phase;
        self.generation += 1;
        self.since = now;
    }

    /// Returns the transitions since the last report, merged into one.
    fn take_transition(&mut self) -> Option<Transition> {
        let from = self.unreported_from.take()?;
        Some(Transition { from, to: self.state(), at: self.since })
    }
}

/// Returns the initial generation of a circuit created now.
fn generation_at(now: Time) -> u64 {
    now.millis().unsigned_abs()
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
