//! The probes of a half-open circuit, and the decision to close or reopen it.

use std::time::Duration;

use super::{BreakerPolicy, CircuitDecision};
use crate::{cluster::clock_discipline::ClockStep, id::EventId, time::Time};

/// A call in flight that tests whether the endpoint has recovered.
#[derive(Clone, Debug)]
struct Probe {
    probe_id: u64,
    event_id: EventId,
    /// When the probe counts as lost.
    deadline: Time,
}

/// One half-open period.
#[derive(Clone, Debug, Default)]
pub(super) struct HalfOpenPeriod {
    in_flight: Vec<Probe>,
    /// Events whose probes have a result. Probes are spread over different events, since a single event may be what
    /// makes the endpoint fail.
    results: Vec<EventId>,
    successes: u32,
    first_result_at: Option<Time>,
    issued: u16,
}

impl HalfOpenPeriod {
    /// Admits a probe or returns until when to wait. The caller must call [`HalfOpenPeriod::expire`] first.
    pub(super) fn admit(
        &mut self,
        policy: &BreakerPolicy,
        generation: u64,
        event_id: EventId,
        now: Time,
        deadline: Time,
    ) -> CircuitDecision {
        let decision_at = self.decision_at(policy);
        // After the decision time no new probes are admitted; otherwise the decision could be postponed forever.
        let late = decision_at.is_some_and(|at| now >= at);
        let known = self.has_probed(event_id);
        if !known && !late && self.probes_left(policy) > 0 {
            let probe_id = generation << 16 | u64::from(self.issued);
            self.issued = self.issued.wrapping_add(1);
            self.in_flight.push(Probe { probe_id, event_id, deadline });
            return CircuitDecision::Probe(probe_id);
        }
        let decision = decision_at.filter(|at| known && *at > now);
        CircuitDecision::Wait { until: decision.or(self.first_deadline()), forced: false }
    }

    /// Returns whether a probe of this event was sent.
    pub(super) fn has_probed(&self, event_id: EventId) -> bool {
        self.results.contains(&event_id) || self.in_flight.iter().any(|probe| probe.event_id == event_id)
    }

    /// Records the result of a probe: whether it succeeded, or `None` if it says nothing about the endpoint. Ignores
    /// a probe that is not in flight.
    pub(super) fn record_result(&mut self, probe_id: u64, success: Option<bool>, now: Time) {
        let Some(index) = self.in_flight.iter().position(|probe| probe.probe_id == probe_id) else { return };
        let probe = self.in_flight.swap_remove(index);
        if let Some(success) = success {
            self.results.push(probe.event_id);
            self.successes += u32::from(success);
            self.first_result_at.get_or_insert(now);
        }
    }

    /// Shifts planned times after the clock was set back.
    pub(super) fn adjust_for_clock_step(&mut self, clock_step: &ClockStep) {
        self.in_flight.iter_mut().for_each(|probe| probe.deadline = clock_step.apply(probe.deadline));
        self.first_result_at = self.first_result_at.map(|at| clock_step.apply(at));
    }

    /// Removes the probes whose deadline has passed.
    pub(super) fn expire(&mut self, now: Time) {
        self.in_flight.retain(|probe| now < probe.deadline);
    }

    /// Returns whether the endpoint has recovered, or `None` if that is not decided yet.
    pub(super) fn decision(&self, policy: &BreakerPolicy, now: Time) -> Option<bool> {
        let needed = policy.successes_needed();
        if self.successes >= needed {
            return Some(true);
        }
        let open = policy.half_open_max_calls.saturating_sub(self.returned());
        if self.successes + open < needed {
            return Some(false);
        }
        let over = self.in_flight.is_empty() && self.decision_at(policy).is_some_and(|at| now >= at);
        over.then(|| policy.is_recovered(self.returned(), self.successes))
    }

    /// Returns when the results so far decide, if no more arrive: one sleep window after the first result.
    fn decision_at(&self, policy: &BreakerPolicy) -> Option<Time> {
        self.first_result_at.map(|at| at + policy.sleep_window.max(Duration::from_millis(1)))
    }

    fn first_deadline(&self) -> Option<Time> {
        self.in_flight.iter().map(|probe| probe.deadline).min()
    }

    /// Returns when time alone changes something.
    pub(super) fn next_tick(&self, policy: &BreakerPolicy) -> Option<Time> {
        self.first_deadline().or_else(|| self.decision_at(policy))
    }

    /// Returns how many more probes may be sent.
    pub(super) fn probes_left(&self, policy: &BreakerPolicy) -> u32 {
        policy.half_open_max_calls.saturating_sub(self.attempts())
    }

    /// Returns how many probes were sent: those with a result and those in flight.
    pub(super) fn attempts(&self) -> u32 {
        self.returned() + u32::try_from(self.in_flight.len()).unwrap_or(u32::MAX)
    }

    /// Returns how many probes are in flight.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    pub(super) fn successes(&self) -> u32 {
        self.successes
    }

    fn returned(&self) -> u32 {
        u32::try_from(self.results.len()).unwrap_or(u32::MAX)
    }
}
