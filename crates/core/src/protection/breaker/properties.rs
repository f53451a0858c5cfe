//! What holds for a circuit whatever happens to it.

use proptest::prelude::*;

use super::{
    CircuitState::*,
    tests::{FAILED, PATIENCE, at, event},
    *,
};

/// Something that happens to a circuit.
#[derive(Clone, Debug)]
enum Step {
    Ask(u64),
    Call(Call),
    Answer(usize, Call),
    Tick,
    Pass(u64),
    Force(bool, Option<u64>),
    Reset,
    Restart,
}

fn any_call() -> impl Strategy<Value = Call> {
    prop_oneof![2 => Just(Call::Succeeded), 4 => Just(FAILED), 1 => Just(Call::Ignored)]
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..12u64).prop_map(Step::Ask),
        8 => any_call().prop_map(Step::Call),
        8 => (any::<usize>(), any_call()).prop_map(|(which, call)| Step::Answer(which, call)),
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
            sleep_window: Duration::from_millis(sleep).min(LONGEST_SLEEP),
            half_open_max_calls,
            half_open_success_threshold,
        }
    }
}

/// A circuit, and what the world knows of its probes in this half-open period.
struct World {
    circuit: Circuit,
    policy: BreakerPolicy,
    now: Time,
    generation: u64,
    /// Tickets that were given out and not answered, with their deadlines, whenever they were given out.
    out: Vec<(u64, Time)>,
    /// How many of the probes of this period were answered with success or failure.
    returned: usize,
    /// The deadlines of those of this period that were not.
    under_way: Vec<(u64, Time)>,
}

impl World {
    fn new(policy: BreakerPolicy) -> Self {
        let (out, under_way) = Default::default();
        Self { circuit: Circuit::new(at(0)), policy, now: at(0), generation: 0, out, returned: 0, under_way }
    }

    fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        let (now, policy) = (self.now, self.policy);
        match step {
            Step::Ask(number) => self.ask(event(*number))?,
            Step::Call(call) => _ = self.circuit.called(&policy, now, *call, None),
            Step::Answer(which, call) if !self.out.is_empty() => {
                let (ticket, deadline) = self.out.swap_remove(which % self.out.len());
                let waited_for = self.under_way.contains(&(ticket, deadline)) && now < deadline;
                self.under_way.retain(|(other, _)| *other != ticket);
                self.returned += usize::from(waited_for && *call != Call::Ignored);
                self.circuit.called(&policy, now, *call, Some(ticket));
            }
            Step::Answer(..) => {}
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

    fn ask(&mut self, event: EventId) -> Result<(), TestCaseError> {
        let permit = self.circuit.may_call(&self.policy, self.now, event, PATIENCE);
        self.new_period();
        match permit {
            Permit::Go => prop_assert_eq!(self.circuit.state(), Closed),
            Permit::Probe(ticket) => {
                prop_assert_eq!(self.circuit.state(), HalfOpen);
                prop_assert!(self.out.iter().all(|(other, _)| *other != ticket));
                self.under_way.retain(|(_, deadline)| *deadline > self.now);
                self.under_way.push((ticket, self.now + PATIENCE));
                self.out.push((ticket, self.now + PATIENCE));
                let most = self.policy.half_open_max_calls as usize;
                prop_assert!(self.returned + self.under_way.len() <= most);
            }
            Permit::Wait { until, forced } => {
                prop_assert_ne!(self.circuit.state(), Closed);
                prop_assert_eq!(forced, self.circuit.forced().is_some());
                prop_assert!(until.is_none_or(|until| until > self.now), "never for what has passed");
                prop_assert!(until.is_some() || forced, "always known but for a forced state");
                let longest = LONGEST_SLEEP + PATIENCE;
                prop_assert!(forced || until.is_some_and(|until| until <= self.now + longest));
            }
        }
        Ok(())
    }

    /// A process dies and another takes over from what was stored. No probe of the old one comes back.
    fn restart(&mut self) -> Result<(), TestCaseError> {
        let saved = self.circuit.saved();
        self.circuit = Circuit::restore(saved.clone(), self.now);
        prop_assert_eq!(&self.circuit.saved(), &saved);
        prop_assert_eq!(self.circuit.state(), saved.state);
        self.out.clear();
        (self.returned, self.under_way) = Default::default();
        Ok(())
    }

    fn new_period(&mut self) {
        let generation = self.circuit.saved().generation;
        if generation != self.generation {
            self.generation = generation;
            (self.returned, self.under_way) = Default::default();
        }
    }

    fn check(&mut self) -> Result<(), TestCaseError> {
        let saved = self.circuit.saved();
        prop_assert!(saved.generation >= self.generation, "it only goes up");
        self.new_period();
        prop_assert!(saved.sleep_ms <= LONGEST_SLEEP.as_millis() as u64);
        prop_assert_eq!(saved.until.is_some(), saved.state == Open && saved.forced.is_none());
        let bound = self.now + LONGEST_SLEEP;
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
    fn whatever_happens_it_keeps_its_rules_and_lets_a_recovered_endpoint_back_in(
        policy in any_policy(), steps in proptest::collection::vec(any_step(), 0..150),
    ) {
        let mut world = World::new(policy);
        for step in &steps {
            world.step(step)?;
        }
        if world.circuit.forced().is_some() {
            return Ok(());
        }
        // First those under way are lost, and what is half-open is decided; then what is open has slept.
        for round in 0..2 {
            world.now = world.now + LONGEST_SLEEP + PATIENCE;
            world.circuit.tick(&policy, world.now);
            for number in 100..200 {
                let permit = world.circuit.may_call(&policy, world.now, event(number + 100 * round), PATIENCE);
                if let Permit::Probe(ticket) = permit {
                    world.circuit.called(&policy, world.now, Call::Succeeded, Some(ticket));
                }
            }
        }
        prop_assert_eq!(world.circuit.state(), Closed);
        prop_assert_eq!(world.circuit.saved().consecutive_half_open_failures, 0);
    }

    #[test]
    fn ticking_when_told_to_is_as_good_as_ticking_always(
        policy in any_policy(), steps in proptest::collection::vec(any_step(), 0..60),
        waits in proptest::collection::vec(0..100_000u64, 1..30),
    ) {
        let mut world = World::new(policy);
        for step in &steps {
            world.step(step)?;
        }
        world.circuit.tick(&policy, world.now);
        for wait in waits {
            let next = world.circuit.next_tick(&policy);
            world.now = world.now + Duration::from_millis(wait);
            if next.is_none_or(|next| world.now < next) {
                prop_assert_eq!(world.circuit.tick(&policy, world.now), None);
            } else {
                world.circuit.tick(&policy, world.now);
                prop_assert!(world.circuit.next_tick(&policy).is_none_or(|next| next > world.now));
            }
        }
    }
}
