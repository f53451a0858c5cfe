//! What is learnt from the store, and what is not forgotten for it.

use redrive_core::{
    FailureCategory,
    protection::breaker::Counts,
    tenancy::DEFAULT_POOL,
    webhook::{Webhook, WebhookSpec, WebhookState},
};

use redrive_store::Runtime;

use super::*;
use crate::{limit_shares::Shares, registry::Registry, settings::Settings};

const NOW: Time = Time::from_secs(1_700_000_000);
const MINUTE: Duration = Duration::from_secs(60);

fn bench() -> (Local, Arc<Hook>) {
    let shares = Arc::new(Shares::new(&[DEFAULT_POOL.into()], None));
    let registry = Registry::new(Settings::default(), shares.clone());
    let id = WebhookId::new(NOW, &[1; 10]);
    let spec = WebhookSpec { url: "http://127.0.0.1/".into(), ..WebhookSpec::default() };
    let (tenant, state) = (TenantId::default(), WebhookState::Active);
    registry.changed(
        Webhook { id, tenant, spec, secrets: Vec::new(), state, created_at: NOW, updated_at: NOW },
        1,
    );
    (Local::new(shares), registry.hook(id).unwrap())
}

fn saved(state: CircuitState, generation: u64) -> SavedCircuit {
    SavedCircuit {
        state,
        generation,
        since: NOW,
        until: (state == CircuitState::Open).then_some(NOW + MINUTE),
        sleep_ms: 60_000,
        consecutive_half_open_failures: 0,
        forced: None,
        counts: Counts::default(),
    }
}

fn runtime(hook: &Hook, circuit: Option<SavedCircuit>) -> Option<Runtime> {
    let tenant = hook.tenant.id.clone();
    Some(Runtime {
        webhook: hook.id,
        tenant,
        hold_until: None,
        generation: circuit.as_ref().map_or(0, |circuit| circuit.generation),
        circuit,
        failing_since: None,
    })
}

fn answer(hook: &Hook, local: &Local, call: Call) -> Changed {
    let success = Some(call == Call::Succeeded);
    local.report(hook, Report { call, probe: None, success, hold_until: None }, NOW)
}

fn state(hook: &Hook, local: &Local) -> CircuitState {
    local.standing(hook, NOW).circuit.state
}

#[test]
fn what_others_have_opened_blocks_until_they_close_it() {
    let (local, hook) = bench();
    let learn = |circuit| local.learn(&hook, runtime(&hook, circuit), local.moves(), NOW);
    assert_eq!(local.learn(&hook, None, 0, NOW), Learnt::Nothing);
    assert_eq!(learn(Some(saved(CircuitState::Open, 7))), Learnt::Blocked(NOW + MINUTE));
    assert!(local.is_troubled(hook.id, NOW));
    assert_eq!(learn(Some(saved(CircuitState::Open, 7))), Learnt::Nothing, "it is known");
    assert!(matches!(learn(Some(saved(CircuitState::HalfOpen, 8))), Learnt::Free(Some(_))));
    assert!(!local.is_at_rest(&hook, NOW), "its probes are counted where they are sent");
    assert_eq!(local.learn(&hook, None, local.moves(), NOW), Learnt::Free(None));
    assert!(!local.is_troubled(hook.id, NOW));
    assert_eq!(local.known(), [hook.id]);
}

/// A node counted failures, and another node opened and reset the circuit before this one read of it.
#[test]
fn circuit_reset_elsewhere_discards_earlier_failures() {
    let (local, hook) = bench();
    answer(&hook, &local, Call::Failed(FailureCategory::ServerError));
    assert_eq!(local.standing(&hook, NOW).circuit.counts.failed, 1);
    let reset = NOW.millis().unsigned_abs() + 7;
    let closed = runtime(&hook, None).map(|closed| Runtime { generation: reset, ..closed });
    local.learn(&hook, closed.clone(), local.moves(), NOW);
    assert_eq!(local.standing(&hook, NOW).circuit.counts.failed, 0, "counted before the reset");
    answer(&hook, &local, Call::Failed(FailureCategory::ServerError));
    local.learn(&hook, closed, local.moves(), NOW);
    assert_eq!(local.standing(&hook, NOW).circuit.counts.failed, 1, "counted after the reset");
    let opened = loop {
        if let Some(moved) = answer(&hook, &local, Call::Failed(FailureCategory::ServerError)).circuit {
            break moved;
        }
    };
    assert_eq!(opened.saved.generation, reset + 1, "the store takes it for newer than the reset");
}

#[test]
fn a_rest_that_an_endpoint_asked_for_is_kept_by_all() {
    let (local, hook) = bench();
    let held = runtime(&hook, None).map(|held| Runtime { hold_until: Some(NOW + MINUTE), ..held });
    assert_eq!(local.learn(&hook, held, 0, NOW), Learnt::Blocked(NOW + MINUTE));
    assert!(local.is_troubled(hook.id, NOW) && !local.is_troubled(hook.id, NOW + MINUTE));
    assert_eq!(local.learn(&hook, None, 0, NOW), Learnt::Nothing, "nobody takes it back");
    assert_eq!(local.learn(&hook, None, 0, NOW + MINUTE), Learnt::Nothing);
}

#[test]
fn what_moved_here_is_not_forgotten_for_what_was_read_before_it_was_stored() {
    let (local, hook) = bench();
    let read_after = local.moves();
    while state(&hook, &local) == CircuitState::Closed {
        answer(&hook, &local, Call::Failed(FailureCategory::ServerError));
    }
    assert_eq!(local.learn(&hook, None, local.moves(), NOW), Learnt::Unsure, "it is not stored yet");
    local.circuit_stored(hook.id);
    assert_eq!(local.learn(&hook, None, read_after, NOW), Learnt::Unsure, "it was read before");
    assert_eq!(state(&hook, &local), CircuitState::Open);
    assert_eq!(local.standing(&hook, NOW).failing_since, Some(NOW), "nor that it fails");
    assert_eq!(local.learn(&hook, None, local.moves(), NOW), Learnt::Free(None), "somebody has closed it");
    local.failing_stored(hook.id);
    local.learn(&hook, None, local.moves(), NOW);
    assert_eq!(local.standing(&hook, NOW).failing_since, None);
}

#[test]
fn probes_go_on_when_the_same_is_read_again() {
    let (local, hook) = bench();
    let half_open = |generation| runtime(&hook, Some(saved(CircuitState::HalfOpen, generation)));
    local.restore(half_open(7).unwrap(), NOW);
    let ask = |n| Ask { hook: &hook, event: EventId::new(NOW, &[n; 10]), patience: MINUTE };
    let most = local.reconsider(&hook).unwrap();
    let admitted = |from: u8| {
        let asks: Vec<_> = (from..from + 20).map(ask).collect();
        local.admit(&asks, NOW).iter().filter(|grant| matches!(grant, Grant::Go { .. })).count()
    };
    assert_eq!(admitted(0), most);
    assert_eq!(local.learn(&hook, half_open(7), local.moves(), NOW), Learnt::Nothing);
    assert_eq!(admitted(20), 0, "all of them are out");
    local.learn(&hook, half_open(9), local.moves(), NOW);
    assert_eq!(admitted(40), most, "others have failed meanwhile, and these are new ones");
}

#[test]
fn the_moves_of_others_are_left_to_them_for_a_while() {
    let (local, hook) = bench();
    local.learn(&hook, runtime(&hook, Some(saved(CircuitState::Open, 7))), 0, NOW);
    let find = |_| Some(hook.clone());
    let moved = |after: u64, ours: bool| {
        let now = NOW + MINUTE + Duration::from_secs(after);
        local.tick(now, &find, &|_| ours).moved.len()
    };
    assert_eq!(local.foresee(&hook, NOW), None);
    assert!(matches!(local.foresee(&hook, NOW + MINUTE), Some(Some(_))));
    assert_eq!((moved(0, false), moved(9, false), moved(10, false)), (0, 0, 1), "nobody else did it");
    let (local, hook) = bench();
    local.learn(&hook, runtime(&hook, Some(saved(CircuitState::Open, 7))), 0, NOW);
    assert_eq!(local.tick(NOW + MINUTE, &|_| Some(hook.clone()), &|_| true).moved.len(), 1);
    assert!(local.move_on(&hook, NOW + MINUTE).is_none(), "it has moved");
}
