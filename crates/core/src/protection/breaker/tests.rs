//! Tests of every transition of a circuit.

use super::{CircuitState::*, *};
use crate::delivery::response::FailureCategory::{BlockedAddress, RateLimit, ServerError, Timeout};

pub(super) const FAILED: CallOutcome = CallOutcome::Failed(ServerError);
pub(super) const PROBE_TIMEOUT: Duration = Duration::from_secs(35);

pub(super) fn at(seconds: u64) -> Time {
    Time::from_secs(1_700_000_000) + Duration::from_secs(seconds)
}

pub(super) fn event(number: u64) -> EventId {
    let mut random = [0; 10];
    random[2..].copy_from_slice(&number.to_be_bytes());
    EventId::new(at(0), &random)
}

fn policy() -> BreakerPolicy {
    BreakerPolicy::default()
}

fn off() -> BreakerPolicy {
    BreakerPolicy { enabled: false, ..policy() }
}

fn transition(from: CircuitState, to: CircuitState, seconds: u64) -> Option<Transition> {
    Some(Transition { from, to, at: at(seconds) })
}

fn wait(seconds: u64) -> CircuitDecision {
    CircuitDecision::Wait { until: Some(at(seconds)), forced: false }
}

fn forced(open: bool, until: Option<u64>) -> Forced {
    Forced { open, until: until.map(at), by: "ops".into() }
}

fn call(circuit: &mut Circuit, seconds: u64, call: CallOutcome) -> Option<Transition> {
    circuit.record_call(&policy(), at(seconds), call, None)
}

fn ask(circuit: &mut Circuit, seconds: u64, number: u64) -> CircuitDecision {
    circuit.may_call(&policy(), at(seconds), event(number), PROBE_TIMEOUT)
}

fn probe(circuit: &mut Circuit, seconds: u64, number: u64) -> Option<u64> {
    match ask(circuit, seconds, number) {
        CircuitDecision::Probe(probe_id) => Some(probe_id),
        other => panic!("expected a probe, got {other:?}"),
    }
}

fn respond(
    circuit: &mut Circuit,
    seconds: u64,
    call: CallOutcome,
    probe_id: Option<u64>,
) -> Option<Transition> {
    circuit.record_call(&policy(), at(seconds), call, probe_id)
}

/// Returns a circuit that opened at this second.
fn opened(seconds: u64) -> Circuit {
    let mut circuit = Circuit::new(at(0));
    (0..19).for_each(|_| assert_eq!(call(&mut circuit, seconds, FAILED), None));
    assert_eq!(call(&mut circuit, seconds, FAILED), transition(Closed, Open, seconds));
    circuit
}

/// Returns a circuit that opened at 0 s and became half-open at 30 s.
fn half_open() -> Circuit {
    let mut circuit = opened(0);
    assert_eq!(circuit.tick(&policy(), at(30)), transition(Open, HalfOpen, 30));
    circuit
}

#[test]
fn circuit_opens_when_error_threshold_is_reached() {
    let mut circuit = Circuit::new(at(0));
    (0..8).for_each(|_| assert_eq!(call(&mut circuit, 1, CallOutcome::Succeeded), None));
    (0..11).for_each(|_| assert_eq!(call(&mut circuit, 2, FAILED), None));
    assert_eq!(ask(&mut circuit, 2, 1), CircuitDecision::Go);
    assert_eq!(call(&mut circuit, 3, CallOutcome::Failed(Timeout)), transition(Closed, Open, 3));
    assert_eq!(ask(&mut circuit, 3, 1), wait(33));
    assert_eq!(circuit.next_tick(&policy()), Some(at(33)));
    let view = circuit.view(&policy(), at(10));
    assert_eq!((view.state, view.counts.total, view.counts.failed), (Open, 20, 12));
    assert_eq!((view.error_percentage, view.counts.most_frequent()), (60.0, Some(ServerError)));
    assert_eq!((view.state_transition_at, view.next_half_open_at), (at(3), Some(at(33))));
}

#[test]
fn circuit_stays_closed_below_throughput_or_error_threshold() {
    let mut circuit = Circuit::new(at(0));
    (0..19).for_each(|_| assert_eq!(call(&mut circuit, 0, FAILED), None, "too few calls"));
    let mut circuit = Circuit::new(at(0));
    (0..9).for_each(|_| assert_eq!(call(&mut circuit, 0, CallOutcome::Succeeded), None));
    (0..13).for_each(|_| assert_eq!(call(&mut circuit, 0, FAILED), None, "59 percent"));
    assert_eq!(call(&mut circuit, 0, FAILED), transition(Closed, Open, 0));
    let mut circuit = Circuit::new(at(0));
    (0..19).for_each(|_| assert_eq!(call(&mut circuit, 0, FAILED), None));
    assert_eq!(call(&mut circuit, 1, CallOutcome::Succeeded), None, "a success never opens a circuit");
    assert_eq!(call(&mut circuit, 1, FAILED), transition(Closed, Open, 1));
}

#[test]
fn calls_before_the_window_do_not_count() {
    let mut circuit = Circuit::new(at(0));
    (0..19).for_each(|_| assert_eq!(call(&mut circuit, 5, FAILED), None));
    assert_eq!(call(&mut circuit.clone(), 64, FAILED), transition(Closed, Open, 64));
    assert!(!circuit.is_idle(&policy(), at(64)) && circuit.is_idle(&policy(), at(65)));
    assert_eq!(call(&mut circuit, 65, FAILED), None);
    assert_eq!(circuit.view(&policy(), at(65)).counts.total, 1);
    assert_eq!(circuit.view(&policy(), at(65)).window_start, at(5));
}

#[test]
fn ignored_call_outcomes_do_not_count() {
    assert_eq!(CallOutcome::from_category(None), CallOutcome::Succeeded);
    for category in FailureCategory::ALL {
        let ignored = matches!(category, RateLimit | BlockedAddress);
        assert_eq!(
            CallOutcome::from_category(Some(category)),
            if ignored { CallOutcome::Ignored } else { CallOutcome::Failed(category) }
        );
    }
    let mut circuit = Circuit::new(at(0));
    (0..100).for_each(|_| assert_eq!(call(&mut circuit, 0, CallOutcome::Ignored), None));
    assert!(circuit.is_idle(&policy(), at(0)));
}

#[test]
fn late_responses_do_not_change_open_circuit() {
    let mut circuit = opened(0);
    for late in [CallOutcome::Succeeded, FAILED, CallOutcome::Ignored] {
        assert_eq!(call(&mut circuit, 29, late), None);
    }
    assert_eq!(circuit.to_saved(), opened(0).to_saved());
    assert_eq!(
        call(&mut circuit, 30, CallOutcome::Succeeded),
        transition(Open, HalfOpen, 30),
        "the sleep window has passed"
    );
    (0..9).for_each(|_| assert_eq!(call(&mut circuit, 31, CallOutcome::Succeeded), None));
    assert_eq!(circuit.view(&policy(), at(31)).half_open_successes, 0, "these calls are not probes");
}

#[test]
fn circuit_closes_as_soon_as_enough_probes_succeed() {
    let mut circuit = half_open();
    assert_eq!((circuit.next_tick(&policy()), circuit.probes_left(&policy())), (None, Some(5)));
    let probe_ids: Vec<_> = (0..5).map(|number| probe(&mut circuit, 30, number)).collect();
    assert_eq!((circuit.probes_left(&policy()), ask(&mut circuit, 30, 9)), (Some(0), wait(65)));
    assert_eq!(respond(&mut circuit, 31, FAILED, probe_ids[0]), None);
    assert_eq!(respond(&mut circuit, 31, CallOutcome::Succeeded, probe_ids[1]), None);
    assert_eq!(respond(&mut circuit, 32, CallOutcome::Succeeded, probe_ids[2]), None);
    let view = circuit.view(&policy(), at(32));
    assert_eq!((view.half_open_attempts, view.half_open_successes, view.counts.total), (5, 2, 20));
    assert_eq!(
        (circuit.probes_left(&policy()), circuit.half_open_max_in_memory(&policy())),
        (Some(0), Some(2))
    );
    assert_eq!(
        respond(&mut circuit, 33, CallOutcome::Succeeded, probe_ids[3]),
        transition(HalfOpen, Closed, 33)
    );
    assert_eq!((ask(&mut circuit, 33, 9), circuit.probes_left(&policy())), (CircuitDecision::Go, None));
    assert_eq!(circuit.to_saved().consecutive_half_open_failures, 0);
    assert!(circuit.to_saved().is_default() && circuit.is_idle(&policy(), at(33)));
    assert_eq!(respond(&mut circuit, 34, FAILED, probe_ids[4]), None);
    assert_eq!(circuit.view(&policy(), at(34)).counts.failed, 1, "a late probe counts like any call");
}

#[test]
fn circuit_reopens_as_soon_as_too_many_probes_fail() {
    let mut circuit = half_open();
    let probe_ids: Vec<_> = (0..4).map(|number| probe(&mut circuit, 30, number)).collect();
    assert_eq!(respond(&mut circuit, 31, CallOutcome::Succeeded, probe_ids[0]), None);
    assert_eq!(respond(&mut circuit, 31, FAILED, probe_ids[1]), None);
    assert_eq!(respond(&mut circuit, 31, FAILED, probe_ids[2]), None, "three of five can still succeed");
    assert_eq!(respond(&mut circuit, 32, FAILED, probe_ids[3]), transition(HalfOpen, Open, 32));
    let saved = circuit.to_saved();
    assert_eq!((saved.sleep_ms, saved.until), (60_000, Some(at(92))));
    assert_eq!((saved.consecutive_half_open_failures, saved.counts.total), (1, 20));
    assert_eq!(circuit.tick(&policy(), at(92)), transition(Open, HalfOpen, 92));
    assert_eq!(
        respond(&mut circuit, 93, CallOutcome::Succeeded, probe_ids[0]),
        None,
        "a probe of the previous half-open state"
    );
    assert_eq!(circuit.view(&policy(), at(93)).half_open_attempts, 0);
}

#[test]
fn failed_recovery_doubles_sleep_window_up_to_a_day() {
    let (mut circuit, mut now, mut sleeps) = (opened(0), 0, Vec::new());
    for _ in 0..15 {
        let until = circuit.to_saved().until.unwrap();
        sleeps.push(until.duration_since(at(now)).as_secs());
        now = until.duration_since(at(0)).as_secs();
        let probe_ids: Vec<_> = (0..3).map(|number| probe(&mut circuit, now, number)).collect();
        let last = probe_ids.into_iter().map(|probe_id| respond(&mut circuit, now, FAILED, probe_id)).last();
        assert_eq!(last, Some(transition(HalfOpen, Open, now)));
    }
    let doubled = (0..15).map(|n| (30u64 << n).min(86_400));
    assert!(sleeps.iter().copied().eq(doubled), "{sleeps:?}");
    now += 86_400;
    for number in 0..3 {
        let probe_id = probe(&mut circuit, now, number);
        respond(&mut circuit, now, CallOutcome::Succeeded, probe_id);
    }
    assert_eq!((circuit.state(), circuit.to_saved().consecutive_half_open_failures), (Closed, 0));
    (0..20).for_each(|_| _ = call(&mut circuit, now, FAILED));
    assert_eq!(circuit.to_saved().sleep_ms, 30_000);
}

#[test]
fn probes_are_spread_over_different_events() {
    let mut circuit = half_open();
    let first = probe(&mut circuit, 30, 1);
    assert_eq!(ask(&mut circuit, 30, 1), wait(65), "its probe is in flight");
    assert_eq!(respond(&mut circuit, 32, FAILED, first), None);
    assert_eq!(ask(&mut circuit, 33, 1), wait(62), "blocked until the decision at the latest");
    probe(&mut circuit, 33, 2);
    assert_eq!(ask(&mut circuit, 34, 1), wait(62));
}

#[test]
fn ignored_or_lost_probe_frees_its_slot() {
    let mut circuit = half_open();
    let first = probe(&mut circuit, 30, 1);
    assert_eq!(respond(&mut circuit, 31, CallOutcome::Ignored, first), None);
    assert_eq!(circuit.probes_left(&policy()), Some(5));
    let again = probe(&mut circuit, 31, 1);
    assert_ne!(again, first);
    (2..6).for_each(|number| _ = probe(&mut circuit, 40, number));
    assert_eq!(ask(&mut circuit, 41, 6), wait(66));
    assert_eq!(circuit.next_tick(&policy()), Some(at(66)));
    assert_eq!(circuit.tick(&policy(), at(66)), None);
    probe(&mut circuit, 66, 6);
    assert_eq!(respond(&mut circuit, 67, CallOutcome::Succeeded, again), None);
    assert_eq!(circuit.view(&policy(), at(67)).half_open_successes, 0, "a lost probe does not count");
    let saved = circuit.to_saved();
    assert_eq!((saved.state, saved.blocked_until()), (HalfOpen, None));
}

#[test]
fn returned_probes_decide_when_no_more_are_sent() {
    for (good, bad, expected) in [(1, 0, Closed), (0, 1, Open), (2, 1, Closed), (1, 1, Open)] {
        let mut circuit = half_open();
        for number in 0..good + bad {
            let probe_id = probe(&mut circuit, 40, number);
            let call = if number < good { CallOutcome::Succeeded } else { FAILED };
            assert_eq!(respond(&mut circuit, 50, call, probe_id), None);
        }
        assert_eq!((circuit.next_tick(&policy()), circuit.tick(&policy(), at(79))), (Some(at(80)), None));
        assert_eq!(circuit.tick(&policy(), at(80)), transition(HalfOpen, expected, 80), "{good} {bad}");
    }
    let mut circuit = half_open();
    assert_eq!(circuit.tick(&policy(), at(1_000_000)), None, "without probes nothing is decided");
    probe(&mut circuit, 1_000_000, 1);
}

#[test]
fn decision_waits_for_probes_in_flight_and_admits_no_more() {
    let mut circuit = half_open();
    let first = probe(&mut circuit, 30, 1);
    assert_eq!(respond(&mut circuit, 31, CallOutcome::Succeeded, first), None);
    let second = probe(&mut circuit, 50, 2);
    assert_eq!(circuit.tick(&policy(), at(61)), None);
    assert_eq!((ask(&mut circuit, 61, 3), ask(&mut circuit, 61, 1)), (wait(85), wait(85)));
    assert_eq!(respond(&mut circuit, 62, FAILED, second), transition(HalfOpen, Open, 62));
    let mut circuit = half_open();
    let first = probe(&mut circuit, 30, 1);
    assert_eq!(respond(&mut circuit, 31, CallOutcome::Succeeded, first), None);
    probe(&mut circuit, 50, 2);
    assert_eq!(circuit.tick(&policy(), at(85)), transition(HalfOpen, Closed, 85), "the second was lost");
}

#[test]
fn transition_made_by_may_call_is_reported_later() {
    let mut circuit = opened(0);
    assert_eq!(circuit.next_tick(&policy()), Some(at(30)));
    let probe_id = probe(&mut circuit, 31, 1);
    assert_eq!(circuit.next_tick(&policy()), Some(at(31)), "a transition is unreported");
    assert_eq!(circuit.clone().tick(&policy(), at(32)), transition(Open, HalfOpen, 31));
    assert_eq!(respond(&mut circuit, 33, CallOutcome::Succeeded, probe_id), transition(Open, HalfOpen, 31));
    assert_eq!(circuit.tick(&policy(), at(34)), None);
    let mut circuit = opened(0);
    let probe_id = probe(&mut circuit, 31, 1);
    circuit.cancel_probe(at(31), probe_id.unwrap());
    assert_eq!(
        (circuit.probes_left(&policy()), circuit.half_open_max_in_memory(&policy())),
        (Some(5), Some(5))
    );
    assert_eq!(
        circuit.tick(&policy(), at(31)),
        transition(Open, HalfOpen, 31),
        "cancelling a probe reports no transition"
    );
}

#[test]
fn forced_open_circuit_blocks_all_and_ends_closed() {
    let mut circuit = Circuit::new(at(0));
    assert_eq!(circuit.force(forced(true, Some(100)), at(10)), transition(Closed, Open, 10));
    assert_eq!(
        circuit.force(forced(true, Some(100)), at(11)),
        None,
        "forcing the same state is no transition"
    );
    for policy in [policy(), off()] {
        let decision = circuit.may_call(&policy, at(99), event(1), PROBE_TIMEOUT);
        assert_eq!(decision, CircuitDecision::Wait { until: Some(at(100)), forced: true });
        assert_eq!((circuit.tick(&policy, at(99)), circuit.next_tick(&policy)), (None, Some(at(100))));
    }
    let saved = circuit.to_saved();
    assert_eq!((saved.blocked_until(), saved.until, saved.is_default()), (Some(at(100)), None, false));
    assert_eq!(circuit.view(&policy(), at(99)).next_half_open_at, None);
    assert_eq!(call(&mut circuit, 99, FAILED), None);
    assert_eq!(circuit.tick(&policy(), at(100)), transition(Open, Closed, 100));
    assert!(circuit.is_idle(&policy(), at(100)) && circuit.forced().is_none());
    circuit.force(forced(true, None), at(200));
    assert_eq!(ask(&mut circuit, 1_000_000, 1), CircuitDecision::Wait { until: None, forced: true });
    assert_eq!((circuit.next_tick(&policy()), circuit.tick(&policy(), Time::FAR_FUTURE)), (None, None));
    assert_eq!(circuit.to_saved().blocked_until(), Some(Time::FAR_FUTURE));
    assert_eq!(circuit.reset(at(300)), transition(Open, Closed, 300));
    assert_eq!(ask(&mut circuit, 300, 1), CircuitDecision::Go);
}

#[test]
fn forced_closed_circuit_counts_but_does_not_open() {
    let mut circuit = opened(0);
    assert_eq!(circuit.force(forced(false, Some(50)), at(10)), transition(Open, Closed, 10));
    (0..30).for_each(|_| assert_eq!(call(&mut circuit, 11, FAILED), None));
    assert_eq!(ask(&mut circuit, 11, 1), CircuitDecision::Go);
    let view = circuit.view(&policy(), at(12));
    assert_eq!((view.counts.failed, view.consecutive_half_open_failures), (30, 0));
    assert_eq!((circuit.to_saved().is_default(), circuit.to_saved().blocked_until()), (false, None));
    assert!(!circuit.is_idle(&policy(), at(500)));
    assert_eq!(circuit.tick(&policy(), at(50)), transition(Closed, Closed, 50));
    assert!(circuit.is_idle(&policy(), at(50)), "with an empty window");
    let mut circuit = Circuit::new(at(0));
    call(&mut circuit, 1, FAILED);
    assert_eq!(circuit.force(forced(false, None), at(2)), transition(Closed, Closed, 2));
    assert_eq!(circuit.view(&policy(), at(2)).counts.failed, 1, "the window is kept");
    assert_eq!(circuit.force(forced(true, None), at(3)), transition(Closed, Open, 3));
    assert_eq!(circuit.view(&policy(), at(3)).counts.failed, 1);
}

#[test]
fn reset_closes_circuit_and_empties_window() {
    for mut circuit in [opened(0), half_open()] {
        let before = circuit.state();
        assert_eq!(circuit.reset(at(40)), transition(before, Closed, 40));
        assert!(circuit.is_idle(&policy(), at(40)) && circuit.to_saved().is_default());
    }
    let mut circuit = Circuit::new(at(0));
    (0..19).for_each(|_| _ = call(&mut circuit, 0, FAILED));
    assert_eq!(circuit.reset(at(1)), None, "the circuit was closed already");
    assert_eq!(call(&mut circuit, 1, FAILED), None);
}

/// Another node counts since 20 s; when it opens the circuit, however late, that must not replace an operator's
/// action of 40 s.
#[test]
fn operator_action_is_newer_than_transitions_from_earlier_counts() {
    let mut elsewhere = Circuit::new(at(20));
    (0..20).for_each(|_| _ = call(&mut elsewhere, 41, FAILED));
    assert_eq!(elsewhere.state(), Open);
    let mut reset = opened(0);
    reset.reset(at(40));
    let mut held = opened(0);
    held.force(forced(true, None), at(40));
    for action in [reset.to_saved(), held.to_saved()] {
        assert!(action.generation > elsewhere.to_saved().generation);
        assert!(Circuit::closed_after(action.generation, at(30)).to_saved().generation >= action.generation);
    }
}

#[test]
fn disabled_breaker_blocks_and_counts_nothing() {
    let mut circuit = Circuit::new(at(0));
    (0..50).for_each(|_| assert_eq!(circuit.record_call(&off(), at(0), FAILED, None), None));
    assert!(circuit.is_idle(&off(), at(0)));
    for mut circuit in [opened(0), half_open()] {
        let before = circuit.state();
        assert_eq!(circuit.next_tick(&off()), Some(circuit.since), "immediately");
        assert_eq!(circuit.may_call(&off(), at(31), event(1), PROBE_TIMEOUT), CircuitDecision::Go);
        assert_eq!(circuit.tick(&off(), at(32)), transition(before, Closed, 31));
        assert_eq!(circuit.next_tick(&off()), None);
    }
}

#[test]
fn circuit_state_survives_restart() {
    for circuit in [opened(0), half_open(), Circuit::new(at(0))] {
        let json = serde_json::to_string(&circuit.to_saved()).unwrap();
        let saved: SavedCircuit = serde_json::from_str(&json).unwrap();
        assert_eq!(saved, circuit.to_saved());
        assert_eq!(Circuit::restore(saved.clone(), at(31)).to_saved(), saved);
    }
    let mut circuit = Circuit::restore(half_open().to_saved(), at(40));
    for number in 0..3 {
        let probe_id = probe(&mut circuit, 40, number);
        respond(&mut circuit, 41, CallOutcome::Succeeded, probe_id);
    }
    assert_eq!(circuit.state(), Closed);
    let wrong = SavedCircuit { until: Some(Time::FAR_FUTURE), ..opened(0).to_saved() };
    assert_eq!(
        Circuit::restore(wrong.clone(), at(1)).to_saved().until,
        Some(at(86_401)),
        "at most the maximum sleep window"
    );
    let until = SavedCircuit { until: None, ..wrong };
    assert_eq!(Circuit::restore(until, at(1)).tick(&policy(), at(1)), transition(Open, HalfOpen, 1));
    let held = SavedCircuit { forced: Some(forced(true, Some(9))), ..Circuit::new(at(0)).to_saved() };
    assert_eq!(Circuit::restore(held, at(1)).tick(&policy(), at(9)), transition(Open, Closed, 9));
}

#[test]
fn changed_policy_applies_immediately() {
    let mut circuit = half_open();
    let probe_id = probe(&mut circuit, 30, 1);
    assert_eq!(respond(&mut circuit, 31, CallOutcome::Succeeded, probe_id), None);
    let single = BreakerPolicy { half_open_max_calls: 1, ..policy() };
    assert_eq!(circuit.tick(&single, at(32)), transition(HalfOpen, Closed, 32));
}

#[test]
fn success_threshold_is_rounded_exactly() {
    let needed = |half_open_max_calls, half_open_success_threshold| {
        BreakerPolicy { half_open_max_calls, half_open_success_threshold, ..policy() }.successes_needed()
    };
    let cases = [needed(5, 0.6), needed(100, 0.07), needed(100, 0.29), needed(10, 0.61), needed(1, 0.01)];
    assert_eq!(cases, [3, 7, 29, 7, 1]);
    assert_eq!((needed(3, 1.0), needed(100, 1e-12)), (3, 1));
}

#[test]
fn config_is_validated_and_completed_with_defaults() {
    let resolve =
        |json: &str| serde_json::from_str::<BreakerConfig>(json).unwrap().resolve(&BreakerPolicy::default());
    assert_eq!(resolve("{}").unwrap(), BreakerPolicy::default());
    assert_eq!(serde_json::to_string(&BreakerConfig::default()).unwrap(), "{}");
    let written = resolve(
        r#"{"enabled": false, "window_size_ms": 1000, "minimum_throughput": 1, "half_open_max_calls": 100,
            "error_threshold_percentage": 100, "sleep_window_ms": 86400000, "half_open_success_threshold": 1}"#,
    );
    let expected = BreakerPolicy {
        enabled: false,
        window: Duration::from_secs(1),
        minimum_throughput: 1,
        error_threshold_percentage: 100.0,
        sleep_window: MAX_SLEEP_WINDOW,
        half_open_max_calls: 100,
        half_open_success_threshold: 1.0,
    };
    assert_eq!(written.unwrap(), expected);
    for (field, values) in [
        ("window_size_ms", ["999", "3600001"]),
        ("minimum_throughput", ["0", "10001"]),
        ("error_threshold_percentage", ["0.9", "100.1"]),
        ("sleep_window_ms", ["999", "86400001"]),
        ("half_open_max_calls", ["0", "101"]),
        ("half_open_success_threshold", ["0", "1.01"]),
    ] {
        for value in values {
            let refused = resolve(&format!(r#"{{"{field}": {value}}}"#)).unwrap_err();
            assert_eq!(refused.field, format!("circuit_breaker_config.{field}"));
            assert!(refused.message.starts_with(&format!("is {value}; it must be ")), "{}", refused.message);
        }
    }
    assert!(serde_json::from_str::<BreakerConfig>(r#"{"enable": true}"#).is_err());
}

#[test]
fn state_names_and_counts_serialize_as_documented() {
    for state in CircuitState::ALL {
        assert_eq!(serde_json::to_string(&state).unwrap(), format!("\"{}\"", state.name()));
    }
    let counts = opened(0).to_saved().counts;
    let json = r#"{"total":20,"failed":20,"by_category":{"server_error":20}}"#;
    assert_eq!(serde_json::to_string(&counts).unwrap(), json);
    let newer = r#"{"total":20,"failed":20,"by_category":{"server_error":20,"bored":3}}"#;
    assert_eq!(serde_json::from_str::<Counts>(newer).unwrap(), counts);
    assert_eq!((Counts::default().most_frequent(), Counts::default().error_percentage()), (None, 0.0));
}

#[test]
fn circuit_size_is_bounded() {
    assert!(size_of::<Circuit>() <= 64, "{}", size_of::<Circuit>());
}

#[test]
fn circuit_times_shift_when_clock_is_set_back() {
    const WRONG: u64 = 6 * 24 * 3600;
    let clock_step = ClockStep { from: at(WRONG), by: Duration::from_secs(WRONG) };
    let mut circuit = opened(WRONG + 10);
    circuit.adjust_for_clock_step(&clock_step);
    assert_eq!(ask(&mut circuit, 20, 1), wait(40), "30 s after it opened");
    assert_eq!(circuit.tick(&policy(), at(40)), transition(Open, HalfOpen, 40));
    // A probe sent by the wrong clock is lost at its shifted deadline, not six days later.
    let mut circuit = opened(WRONG);
    probe(&mut circuit, WRONG + 30, 1);
    circuit.adjust_for_clock_step(&clock_step);
    assert_eq!(circuit.next_tick(&policy()), Some(at(30)), "the transition to half-open is reported first");
    circuit.tick(&policy(), at(31));
    assert_eq!(circuit.next_tick(&policy()), Some(at(30) + PROBE_TIMEOUT));
    // Times planned by the right clock are kept.
    let mut circuit = opened(0);
    circuit.adjust_for_clock_step(&clock_step);
    assert_eq!(ask(&mut circuit, 20, 1), wait(30));
}
