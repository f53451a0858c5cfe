//! The probes of a half-open circuit, and the verdict that they lead to.

use std::time::Duration;

use super::{BreakerPolicy, Permit};
use crate::{cluster::clock_discipline::SetBack, id::EventId, time::Time};

/// A call that is under way to find out whether the endpoint has recovered.
#[derive(Clone, Debug)]
struct Probe {
    ticket: u64,
    event: EventId,
    /// When it is taken to be lost.
    deadline: Time,
}

/// One half-open period.
#[derive(Clone, Debug, Default)]
pub(super) struct Trial {
    under_way: Vec<Probe>,
    /// The events whose probes came back. Probes are spread over different events, since one event may be
    /// what the endpoint chokes on.
    answered: Vec<EventId>,
    successes: u32,
    first_answer: Option<Time>,
    issued: u16,
}

impl Trial {
    /// Lets a probe through, or says until when to wait. Whoever asks has called [`Trial::expire`] first.
    pub(super) fn admit(
        &mut self,
        policy: &BreakerPolicy,
        generation: u64,
        event: EventId,
        now: Time,
        deadline: Time,
    ) -> Permit {
        let verdict_at = self.verdict_at(policy);
        // After the time of the verdict only those under way are waited for, or it might never come.
        let late = verdict_at.is_some_and(|at| now >= at);
        let known = self.knows(event);
        if !known && !late && self.left(policy) > 0 {
            let ticket = generation << 16 | u64::from(self.issued);
            self.issued = self.issued.wrapping_add(1);
            self.under_way.push(Probe { ticket, event, deadline });
            return Permit::Probe(ticket);
        }
        let verdict = verdict_at.filter(|at| known && *at > now);
        Permit::Wait { until: verdict.or(self.first_deadline()), forced: false }
    }

    /// Whether a probe of this event went out.
    pub(super) fn knows(&self, event: EventId) -> bool {
        self.answered.contains(&event) || self.under_way.iter().any(|probe| probe.event == event)
    }

    /// Takes an answer: whether the probe succeeded, or nothing if it says nothing about the endpoint. The
    /// answer of a probe that is not under way, or no longer, is nothing to it.
    pub(super) fn answer(&mut self, ticket: u64, success: Option<bool>, now: Time) {
        let Some(index) = self.under_way.iter().position(|probe| probe.ticket == ticket) else { return };
        let probe = self.under_way.swap_remove(index);
        if let Some(success) = success {
            self.answered.push(probe.event);
            self.successes += u32::from(success);
            self.first_answer.get_or_insert(now);
        }
    }

    /// Time went back: moves what was planned by the time that is no longer used.
    pub(super) fn set_back(&mut self, set_back: &SetBack) {
        self.under_way.iter_mut().for_each(|probe| probe.deadline = set_back.moved(probe.deadline));
        self.first_answer = self.first_answer.map(|at| set_back.moved(at));
    }

    /// Gives up on the probes that should have come back by now.
    pub(super) fn expire(&mut self, now: Time) {
        self.under_way.retain(|probe| now < probe.deadline);
    }

    /// Whether the endpoint has recovered, as soon as that is known.
    pub(super) fn verdict(&self, policy: &BreakerPolicy, now: Time) -> Option<bool> {
        let needed = policy.successes_needed();
        if self.successes >= needed {
            return Some(true);
        }
        let open = policy.half_open_max_calls.saturating_sub(self.returned());
        if self.successes + open < needed {
            return Some(false);
        }
        let over = self.under_way.is_empty() && self.verdict_at(policy).is_some_and(|at| now >= at);
        over.then(|| policy.is_recovered(self.returned(), self.successes))
    }

    /// When those that came back decide if no more do.
    fn verdict_at(&self, policy: &BreakerPolicy) -> Option<Time> {
        self.first_answer.map(|at| at + policy.sleep_window.max(Duration::from_millis(1)))
    }

    fn first_deadline(&self) -> Option<Time> {
        self.under_way.iter().map(|probe| probe.deadline).min()
    }

    /// When time alone changes something.
    pub(super) fn next_tick(&self, policy: &BreakerPolicy) -> Option<Time> {
        self.first_deadline().or_else(|| self.verdict_at(policy))
    }

    /// How many more probes may go.
    pub(super) fn left(&self, policy: &BreakerPolicy) -> u32 {
        policy.half_open_max_calls.saturating_sub(self.attempts())
    }

    /// How many probes went out: those that came back and those under way.
    pub(super) fn attempts(&self) -> u32 {
        self.returned() + u32::try_from(self.under_way.len()).unwrap_or(u32::MAX)
    }

    /// How many are under way.
    pub(super) fn under_way(&self) -> usize {
        self.under_way.len()
    }

    pub(super) fn successes(&self) -> u32 {
        self.successes
    }

    fn returned(&self) -> u32 {
        u32::try_from(self.answered.len()).unwrap_or(u32::MAX)
    }
}
