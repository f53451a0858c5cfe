//! Property tests: invariants of a circuit under arbitrary sequences of operations.

use proptest::prelude::*;

use super::{
    CircuitState::*,
    tests::{FAILED, PROBE_TIMEOUT, at, event},
    *,
};

/// One operation on a circuit.
#[derive(Clone, Debug)]
enum Step {
    Ask(u64),
    Call(CallOutcome),
    Response(usize, CallOutcome),
    Tick,
    Pass(u64),
    Force(bool, Option<u64>),
    Reset,
    Restart,
}

fn any_call() -> impl Strategy<Value = CallOutcome> {
    prop_oneof![2 => Just(CallOutcome::Succeeded), 4 => Just(FAILED), 1 => Just(CallOutcome::Ignored)]
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..12u64).prop_map(Step::Ask),
        8 => any_call().prop_map(Step::Call),
        8 => (any::<usize>(), any_call()).prop_map(|(which, call)| Step::Response(which, call)),
        3 => Just(Step::Tick),
        6 => prop_oneof![0..2_000u64, 0..60_000u64, 0..100_000_000u64].prop_map(Step::Pass),
        1 => (any::<bool>(), proptest::option::of(0..200_000u64)).prop_map(|(open, ms)| Step::Force(open, ms)),
        1 => Just(Step::Reset),
        1 => Just(Step::Restart),
    ]
}

prop_compose! {
    fn any_policy()(
        window in 1_000..100_000u64, minimum_throughput in 1..6u32, error_threshold_percentage in 1.0..=100.0f64,
        sleep in 1_000..100_000_000u64, half_open_max_calls in 1..8u32,
        half_open_success_threshold in 0.01..=1.0f64, enabled in proptest::bool::weighted(0.9),
    ) -> BreakerPolicy {
        BreakerPolicy {
            enabled,
            window: Duration::from_millis(window),
            minimum_throughput,
            error_threshold_percentage,
            sleep_window: Duration::from_millis(sleep).min(MAX_SLEEP_WINDOW),
            half_open_max_calls,
            half_open_success_threshold,
        }
    }
}

/// A circuit and a model of its probes in the current half-open period.
struct Model {
    circuit: Circuit,
    policy: BreakerPolicy,
    now: Time,
    generation: u64,
    /// Probe ids without a result, with their deadlines, of all half-open periods.
    out: Vec<(u64, Time)>,
    /// Number of probes of this period that succeeded or failed.
    returned: usize,
    /// Probes in flight of this period, with their deadlines.
    in_flight: Vec<(u64, Time)>,
}

impl Model {
    fn new(policy: BreakerPolicy) -> Self {
        let (out, under_way) = Default::default();
        Self {
            circuit: Circuit::new(at(0)),
            policy,
            now: at(0),
            generation: 0,
            out,
            returned: 0,
            in_flight: under_way,
        }
    }

    fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        let (now, policy) = (self.now, self.policy);
        match step {
            Step::Ask(number) => self.ask(event(*number))?,
            Step::Call(call) => _ = self.circuit.record_call(&policy, now, *call, None),
            Step::Response(which, call) if !self.out.is_empty() => {
                let (probe_id, deadline) = self.out.swap_remove(which % self.out.len());
                let waited_for = self.in_flight.contains(&(probe_id, deadline)) && now < deadline;
                self.in_flight.retain(|(other, _)| *other != probe_id);
                self.returned += usize::from(waited_for && *call != CallOutcome::Ignored);
                self.circuit.record_call(&policy, now, *call, Some(probe_id));
            }
            Step::Response(..) => {}
            Step::Tick => _ = self.circuit.tick(&policy, now),
            Step::Pass(millis) => self.now = now + Duration::from_millis(*millis),
            Step::Force(open, millis) => {
                let until = millis.map(|millis| now + Duration::from_millis(millis));
                self.circuit.force(Forced { open: *open, until, by: "ops".into() }, now);
            }
            Step::Reset => _ = self.circuit.reset(now),
            Step::Restart => self.restart()?,
        }
        self.check()
    }

    fn ask(&mut self, event_id: EventId) -> Result<(), TestCaseError> {
        let decision = self.circuit.may_call(&self.policy, self.now, event_id, PROBE_TIMEOUT);
        self.new_period();
        match decision {
            CircuitDecision::Go => prop_assert_eq!(self.circuit.state(), Closed),
            CircuitDecision::Probe(probe_id) => {
                prop_assert_eq!(self.circuit.state(), HalfOpen);
                prop_assert!(self.out.iter().all(|(other, _)| *other != probe_id));
                self.in_flight.retain(|(_, deadline)| *deadline > self.now);
                self.in_flight.push((probe_id, self.now + PROBE_TIMEOUT));
                self.out.push((probe_id, self.now + PROBE_TIMEOUT));
                let max = self.policy.half_open_max_calls as usize;
                prop_assert!(self.returned + self.in_flight.len() <= max);
            }
            CircuitDecision::Wait { until, forced } => {
                prop_assert_ne!(self.circuit.state(), Closed);
                prop_assert_eq!(forced, self.circuit.forced().is_some());
                prop_assert!(
                    until.is_none_or(|until| until > self.now),
                    "the time to wait for is in the future"
                );
                prop_assert!(until.is_some() || forced, "only a forced state has no end");
                let longest = MAX_SLEEP_WINDOW + PROBE_TIMEOUT;
                prop_assert!(forced || until.is_some_and(|until| until <= self.now + longest));
            }
        }
        Ok(())
    }

    /// Replaces the process by one that restores the stored circuit. The old probes never return.
    fn restart(&mut self) -> Result<(), TestCaseError> {
        let saved = self.circuit.to_saved();
        self.circuit = Circuit::restore(saved.clone(), self.now);
        prop_assert_eq!(&self.circuit.to_saved(), &saved);
        prop_assert_eq!(self.circuit.state(), saved.state);
        self.out.clear();
        (self.returned, self.in_flight) = Default::default();
        Ok(())
    }

    fn new_period(&mut self) {
        let generation = self.circuit.to_saved().generation;
        if generation != self.generation {
            self.generation = generation;
            (self.returned, self.in_flight) = Default::default();
        }
    }

    fn check(&mut self) -> Result<(), TestCaseError> {
        let saved = self.circuit.to_saved();
        prop_assert!(saved.generation >= self.generation, "the generation never decreases");
        self.new_period();
        prop_assert!(saved.sleep_ms <= MAX_SLEEP_WINDOW.as_millis() as u64);
        prop_assert_eq!(saved.until.is_some(), saved.state == Open && saved.forced.is_none());
        let bound = self.now + MAX_SLEEP_WINDOW;
        prop_assert!(saved.forced.is_some() || saved.blocked_until().is_none_or(|until| until <= bound));
        let view = self.circuit.view(&self.policy, self.now);
        prop_assert!(view.half_open_attempts <= self.policy.half_open_max_calls);
        prop_assert!(view.half_open_successes <= view.half_open_attempts);
        prop_assert!(!self.circuit.is_idle(&self.policy, self.now) || saved.is_default());
        Ok(())
    }
}

proptest! {
    #[test]
    fn invariants_hold_and_circuit_closes_after_endpoint_recovery(
        policy in any_policy(), steps in proptest::collection::vec(any_step(), 0..150),
    ) {
        let mut model = Model::new(policy);
        for step in &steps {
            model.step(step)?;
        }
        if model.circuit.forced().is_some() {
            return Ok(());
        }
        // Round 1: probes in flight are lost and a half-open circuit decides. Round 2: an open circuit has slept.
        for round in 0..2 {
            model.now = model.now + MAX_SLEEP_WINDOW + PROBE_TIMEOUT;
            model.circuit.tick(&policy, model.now);
            for number in 100..200 {
                let decision = model.circuit.may_call(&policy, model.now, event(number + 100 * round), PROBE_TIMEOUT);
                if let CircuitDecision::Probe(probe_id) = decision {
                    model.circuit.record_call(&policy, model.now, CallOutcome::Succeeded, Some(probe_id));
                }
            }
        }
        prop_assert_eq!(model.circuit.state(), Closed);
        prop_assert_eq!(model.circuit.to_saved().consecutive_half_open_failures, 0);
    }

    #[test]
    fn tick_before_next_tick_changes_nothing(
        policy in any_policy(), steps in proptest::collection::vec(any_step(), 0..60),
        waits in proptest::collection::vec(0..100_000u64, 1..30),
    ) {
        let mut model = Model::new(policy);
        for step in &steps {
            model.step(step)?;
        }
        model.circuit.tick(&policy, model.now);
        for wait in waits {
            let next = model.circuit.next_tick(&policy);
            model.now = model.now + Duration::from_millis(wait);
            if next.is_none_or(|next| model.now < next) {
                prop_assert_eq!(model.circuit.tick(&policy, model.now), None);
            } else {
                model.circuit.tick(&policy, model.now);
                prop_assert!(model.circuit.next_tick(&policy).is_none_or(|next| next > model.now));
            }
        }
    }
}
