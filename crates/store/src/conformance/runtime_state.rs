//! Runtime state of webhooks (circuit, pause after a 429, failures): persisted, and obeyed by every claim.

use redrive_core::delivery::outcome::Outcome;
use std::{sync::Arc, time::Duration};

use redrive_core::{
    DeliveryId, FailureCategory, TenantId, Time, WebhookId,
    cluster::clock_discipline::ClockStep,
    protection::breaker::{CircuitState, Counts, Forced, SavedCircuit},
    webhook::{Webhook, WebhookState, failures::FailureSeries},
};

use super::{END, FRESH, Harness, RETRY, at, closed, ids, order};
use crate::{
    CancelResult, CircuitPeriod, Incident, InitialState, LaneCapacity, LaneKey, OutcomeRecord, RecordResult,
    UpdateResult, Versioned, Visibility, WebhookEffects, WebhookRuntime,
};

const DONE: RecordResult = RecordResult::Recorded { config_version: None };

/// Returns an open circuit as stored after `generation` transitions.
fn open(generation: u64, since: i64, until: i64) -> SavedCircuit {
    let counts = Counts { total: 30, failed: 20, by_category: [0, 19, 0, 0, 1, 0, 0, 0, 0, 0] };
    SavedCircuit {
        state: CircuitState::Open,
        generation,
        since: at(since),
        until: Some(at(until)),
        sleep_ms: 30_000,
        consecutive_half_open_failures: 2,
        counts,
        ..closed()
    }
}

/// Returns a circuit in this state as stored after `generation` transitions.
fn transition(state: CircuitState, generation: u64, since: i64) -> SavedCircuit {
    SavedCircuit { state, until: None, ..open(generation, since, 0) }
}

/// Returns a circuit that is forced open or closed.
fn forced(open: bool, generation: u64, since: i64, until: Option<i64>) -> SavedCircuit {
    let state = if open { CircuitState::Open } else { CircuitState::Closed };
    let forced = Some(Forced { open, until: until.map(at), by: "jane".into() });
    SavedCircuit { forced, ..transition(state, generation, since) }
}

async fn set(harness: &Harness, webhook_id: WebhookId, circuit: &SavedCircuit) {
    harness.store().set_circuit(harness.tenant_id.clone(), webhook_id, circuit.clone(), None).await.unwrap();
}

/// Records an outcome of a delivery to this webhook with these effects.
async fn record_effects(harness: &Harness, webhook_id: WebhookId, effects: WebhookEffects) {
    let new = harness.fan_out(harness.event(at(0)), &[(webhook_id, InitialState::Leased)]);
    let id = new.deliveries[0].id;
    harness.publish_new(new).await;
    let outcome = harness.outcome(id, 1, Outcome::Delivered, at(1));
    assert_eq!(harness.record(OutcomeRecord { webhook_id, effects, ..outcome }).await, DONE);
}

async fn pause(harness: &Harness, webhook_id: WebhookId, until: i64) {
    record_effects(
        harness,
        webhook_id,
        WebhookEffects { pause_until: Some(at(until)), ..WebhookEffects::default() },
    )
    .await;
}

/// Returns the runtime state of the only webhook that has one.
async fn only_runtime(harness: &Harness) -> WebhookRuntime {
    let mut runtimes = harness.store().list_runtime().await.unwrap();
    assert_eq!(runtimes.len(), 1, "{runtimes:?}");
    runtimes.remove(0)
}

async fn stored_circuit(harness: &Harness) -> Option<SavedCircuit> {
    harness.store().list_runtime().await.unwrap().into_iter().find_map(|runtime| runtime.circuit)
}

/// Creates one due delivery in each kind of lane of a webhook.
async fn one_in_each(harness: &Harness, webhook_id: WebhookId) -> (Vec<LaneKey>, Vec<DeliveryId>) {
    let keys: Vec<_> = [FRESH, RETRY, order("a")].map(|lane| LaneKey { webhook_id, lane }).into();
    let mut ids = Vec::new();
    for key in &keys {
        let new = harness.fan_out_to(harness.event(at(0)), &[(key.clone(), InitialState::Waiting(at(0)))]);
        ids.push(new.deliveries[0].id);
        harness.publish_new(new).await;
    }
    (keys, ids)
}

/// Claims from all of these lanes in one call.
async fn claim_all(harness: &Harness, keys: &[LaneKey], now: Time) -> Vec<DeliveryId> {
    let capacities = keys.iter().map(|key| LaneCapacity::new(key.clone(), 10)).collect();
    let claims = harness.store().claim(harness.epoch, now, capacities, usize::MAX).await.unwrap();
    assert!(claims.iter().all(|claim| !claim.has_more_due));
    claims.iter().flat_map(|claim| ids(&claim.deliveries)).collect()
}

/// Asserts that no delivery to this webhook can be claimed before `until`, and all of them then.
async fn assert_blocked_until(harness: &Harness, keys: &[LaneKey], expected: &[DeliveryId], until: i64) {
    let query = harness.due_lanes_for_default_pool(at(until - 1)).await;
    assert_eq!((query.lanes, query.next_wake), (vec![], Some(at(until))));
    assert_eq!(claim_all(harness, keys, at(until - 1)).await, [], "a blocked lane yields no claim");
    let query = harness.due_lanes_for_default_pool(at(until - 1)).await;
    assert_eq!(
        (query.lanes, query.next_wake),
        (vec![], Some(at(until))),
        "a claim of a blocked lane changes nothing"
    );
    let mut due = harness.due_lanes(at(until)).await;
    due.sort();
    let mut keys = keys.to_vec();
    keys.sort();
    assert_eq!(due, keys);
    let mut claimed = claim_all(harness, &keys, at(until)).await;
    claimed.sort_unstable();
    assert_eq!(claimed, expected);
}

pub async fn blocked_webhook_yields_no_claims_until_unblocked(harness: &Arc<Harness>) {
    for way in 0..3 {
        let webhook_id = harness.webhook_id();
        let (keys, ids) = one_in_each(harness, webhook_id).await;
        let until = 500 + 100 * way;
        match way {
            0 => set(harness, webhook_id, &open(1, 0, until)).await,
            1 => set(harness, webhook_id, &forced(true, 1, 0, Some(until))).await,
            _ => pause(harness, webhook_id, until).await,
        }
        assert_blocked_until(harness, &keys, &ids, until).await;
    }
}

pub async fn longest_block_applies(harness: &Arc<Harness>) {
    for (n, (circuit, paused)) in (0..).zip([(500, 400), (400, 500)]) {
        let webhook_id = harness.webhook_id();
        let (keys, ids) = one_in_each(harness, webhook_id).await;
        set(harness, webhook_id, &open(1, 0, circuit + 100 * n)).await;
        pause(harness, webhook_id, paused + 100 * n).await;
        assert_blocked_until(harness, &keys, &ids, 500 + 100 * n).await;
    }
}

pub async fn webhook_blocked_indefinitely_never_wakes(harness: &Arc<Harness>) {
    let (keys, mut expected) = one_in_each(harness, harness.webhook_id).await;
    let nothing = || async {
        let query = harness.due_lanes_for_default_pool(at(END)).await;
        assert_eq!((query.lanes, query.next_wake), (vec![], None));
        assert_eq!(claim_all(harness, &keys, at(END)).await, []);
    };
    harness.set_state(harness.webhook_id, WebhookState::Paused).await;
    expected.extend(one_in_each(harness, harness.webhook_id).await.1);
    nothing().await;
    set(harness, harness.webhook_id, &forced(true, 1, 0, None)).await;
    nothing().await;
    harness.set_state(harness.webhook_id, WebhookState::Active).await;
    nothing().await;
    set(harness, harness.webhook_id, &SavedCircuit { generation: 2, ..closed() }).await;
    let mut claimed = claim_all(harness, &keys, at(1)).await;
    claimed.sort_unstable();
    expected.sort_unstable();
    assert_eq!(claimed, expected);
}

pub async fn new_deliveries_do_not_wake_a_blocked_webhook(harness: &Arc<Harness>) {
    let leased = [harness.leased(at(0)).await, harness.leased(at(0)).await, harness.leased(at(0)).await];
    let later = harness.waiting_in(&order("b"), at(0), at(9000)).await;
    let other = harness.new_epoch().await;
    let first = harness.waiting_in(&order("c"), at(0), at(0)).await;
    let claim = harness.claim_lane_as(other, harness.own(order("c")), at(0), 1).await;
    assert_eq!(ids(&claim.deliveries), [first]);
    set(harness, harness.webhook_id, &open(1, 0, 500)).await;

    let (mut keys, _) = one_in_each(harness, harness.webhook_id).await;
    harness.ends(leased[0], Outcome::Retry { at: at(10) }, at(2)).await;
    harness.store().release(harness.epoch, at(2), vec![(leased[1], at(2))]).await.unwrap();
    harness.ends(leased[2], Outcome::Delivered, at(2)).await;
    harness.retry(later, harness.redrive_options(harness.delivery_id(at(0))), at(3)).await;
    harness.retry(leased[2], harness.redrive_options(harness.delivery_id(at(0))), at(3)).await;
    assert_eq!(harness.rescue(other, at(4)).await, 1);
    let off = harness.waiting_in(&order("b"), at(0), at(0)).await;
    assert_eq!(harness.cancel(off, at(5)).await, CancelResult::Done);
    let much_later = harness.waiting_in(&order("d"), at(0), at(800)).await;

    let query = harness.due_lanes_for_default_pool(at(499)).await;
    assert_eq!((query.lanes, query.next_wake), (vec![], Some(at(500))));
    keys.extend(["b", "c"].map(|key| harness.own(order(key))));
    assert_eq!(claim_all(harness, &keys, at(500)).await.len(), 8);
    assert_eq!(harness.next_wake(at(500)).await, Some(at(800)), "a later due time is a later wake");
    assert_eq!(claim_all(harness, &[harness.own(order("d"))], at(800)).await, [much_later]);
}

pub async fn unblocking_wakes_a_webhook_immediately(harness: &Arc<Harness>) {
    let (keys, expected) = one_in_each(harness, harness.webhook_id).await;
    let later = harness.waiting_in(&order("b"), at(0), at(300)).await;
    let all_due = || async {
        let query = harness.due_lanes_for_default_pool(at(1)).await;
        assert_eq!((query.lanes.len(), query.next_wake), (3, Some(at(300))));
    };
    let steps = [
        (open(1, 0, 5000), SavedCircuit { generation: 2, ..closed() }),
        (open(3, 0, 5000), transition(CircuitState::HalfOpen, 4, 1)),
        (forced(true, 5, 0, None), forced(false, 6, 0, None)),
    ];
    for (blocks, frees) in steps {
        set(harness, harness.webhook_id, &blocks).await;
        assert_eq!(harness.due_lanes(at(4999)).await, []);
        set(harness, harness.webhook_id, &frees).await;
        all_due().await;
    }
    harness.set_state(harness.webhook_id, WebhookState::Paused).await;
    assert_eq!(harness.due_lanes(at(END)).await, []);
    harness.set_state(harness.webhook_id, WebhookState::Active).await;
    all_due().await;
    let mut claimed = claim_all(harness, &keys, at(1)).await;
    claimed.sort_unstable();
    assert_eq!(claimed, expected);
    assert_eq!(claim_all(harness, &[harness.own(order("b"))], at(300)).await, [later]);
}

pub async fn blocking_releases_held_lanes(harness: &Arc<Harness>) {
    for _ in 0..3 {
        harness.waiting(at(0), at(0)).await;
    }
    assert!(harness.claim_lane(harness.lane(), at(1), 1).await.has_more_due);
    set(harness, harness.webhook_id, &open(1, 0, 500)).await;
    assert_eq!(harness.next_wake(at(1)).await, Some(at(500)), "the lane is not claimed");
    let claim = harness.claim_lane(harness.lane(), at(2), 1).await;
    assert!(claim.deliveries.is_empty() && !claim.has_more_due, "the former holder gets no deliveries");
    assert_eq!(harness.due_lanes(at(500)).await, [harness.lane()], "any node may claim it afterwards");
    assert_eq!(harness.claim_lane(harness.lane(), at(500), 10).await.deliveries.len(), 2);
}

pub async fn paused_webhook_keeps_its_new_deliveries(harness: &mut Arc<Harness>) {
    harness.set_state(harness.webhook_id, WebhookState::Paused).await;
    let id = harness.waiting(at(0), at(0)).await;
    Harness::reopen(harness).await;
    assert_eq!(harness.due_lanes(at(END)).await, []);
    assert_eq!(harness.store().list_runtime().await.unwrap(), [], "a paused webhook has no runtime row");
    assert_eq!(harness.store().webhooks_to_cancel_for().await.unwrap(), []);
    harness.set_state(harness.webhook_id, WebhookState::Active).await;
    assert_eq!(harness.claim_one(at(1)).await.id, id);
}

/// Returns effects of every kind.
fn every_effect() -> WebhookEffects {
    WebhookEffects {
        circuit: Some(Box::new(open(1, 5, 700))),
        pause_until: Some(at(600)),
        failing: Some(super::failures::failed(5)),
    }
}

pub async fn outcome_effects_are_stored_with_the_outcome(harness: &mut Arc<Harness>) {
    let id = harness.leased(at(0)).await;
    let outcome = OutcomeRecord {
        effects: every_effect(),
        ..harness.outcome(id, 1, Outcome::Retry { at: at(10) }, at(5))
    };
    assert_eq!(harness.record(outcome.clone()).await, DONE);
    let mut series = FailureSeries::starting_at(at(5));
    series.add(FailureCategory::Timeout);
    let expected = WebhookRuntime {
        webhook_id: harness.webhook_id,
        tenant_id: harness.tenant_id.clone(),
        pause_until: Some(at(600)),
        circuit: Some(open(1, 5, 700)),
        generation: 1,
        failures: Some(series),
    };
    assert_eq!(only_runtime(harness).await, expected);
    assert_eq!(harness.next_wake(at(0)).await, Some(at(700)), "the effect also blocks its own delivery");
    Harness::reopen(harness).await;
    assert_eq!(only_runtime(harness).await, expected);
    let periods = harness
        .store()
        .circuit_periods(harness.tenant_id.clone(), harness.webhook_id, at(0), 10)
        .await
        .unwrap();
    assert_eq!(periods.len(), 1);

    // The outcome is already recorded, so a later change of the circuit stays.
    set(harness, harness.webhook_id, &SavedCircuit { generation: 2, since: at(50), ..closed() }).await;
    assert_eq!(harness.record(outcome).await, RecordResult::AlreadyRecorded);
    assert_eq!(only_runtime(harness).await, WebhookRuntime { circuit: None, generation: 2, ..expected });
}

pub async fn rejected_outcome_has_no_effects(harness: &Arc<Harness>) {
    let (id, off) = (harness.leased(at(0)).await, harness.leased(at(0)).await);
    let epoch = harness.new_epoch().await;
    let outcome =
        |id| OutcomeRecord { effects: every_effect(), ..harness.outcome(id, 1, Outcome::Delivered, at(5)) };
    assert_eq!(harness.record(OutcomeRecord { epoch, ..outcome(id) }).await, RecordResult::NotLeased);
    assert_eq!(harness.cancel(off, at(1)).await, CancelResult::Requested);
    assert_eq!(harness.record(outcome(off)).await, RecordResult::CancelRequested("enough".into()));
    harness.rescue(harness.epoch, at(6)).await;
    assert_eq!(harness.record(outcome(id)).await, RecordResult::NotLeased);
    assert_eq!(harness.store().list_runtime().await.unwrap(), []);
    assert_eq!(
        harness
            .store()
            .circuit_periods(harness.tenant_id.clone(), harness.webhook_id, at(0), 10)
            .await
            .unwrap(),
        []
    );
    assert_eq!(harness.due_lanes(at(6)).await, [harness.lane()]);
}

pub async fn older_circuit_never_replaces_a_newer_one(harness: &Arc<Harness>) {
    let newest = open(3, 100, 500);
    set(harness, harness.webhook_id, &newest).await;
    for older in [SavedCircuit { generation: 2, since: at(90), ..closed() }, open(2, 200, 900)] {
        set(harness, harness.webhook_id, &older).await;
        let effects = WebhookEffects { circuit: Some(Box::new(older)), ..WebhookEffects::default() };
        record_effects(harness, harness.webhook_id, effects).await;
        assert_eq!(stored_circuit(harness).await.as_ref(), Some(&newest));
    }
    let id = harness.waiting(at(0), at(0)).await;
    assert_eq!(harness.next_wake(at(0)).await, Some(at(500)));
    set(harness, harness.webhook_id, &SavedCircuit { generation: 4, since: at(300), ..closed() }).await;
    set(harness, harness.webhook_id, &newest).await;
    assert_eq!(stored_circuit(harness).await, None, "a late older circuit is ignored");
    assert_eq!(harness.claim_one(at(300)).await.id, id);
    let periods = harness
        .store()
        .circuit_periods(harness.tenant_id.clone(), harness.webhook_id, at(0), 10)
        .await
        .unwrap();
    assert_eq!(periods.iter().map(|one| one.ended_at).collect::<Vec<_>>(), [Some(at(300))]);
}

/// A node that has not read a reset yet may open the circuit from its earlier counts, and store that later.
pub async fn late_opening_does_not_undo_a_reset(harness: &mut Arc<Harness>) {
    set(harness, harness.webhook_id, &open(7, 100, 500)).await;
    set(harness, harness.webhook_id, &SavedCircuit { generation: 9, since: at(300), ..closed() }).await;
    let opened = open(8, 400, 800);
    let effects = WebhookEffects { circuit: Some(Box::new(opened.clone())), ..WebhookEffects::default() };
    record_effects(harness, harness.webhook_id, effects).await;
    let stored = harness
        .store()
        .set_circuit(harness.tenant_id.clone(), harness.webhook_id, opened, None)
        .await
        .unwrap();
    assert!(!stored, "the reset has a newer generation");
    assert_eq!(stored_circuit(harness).await, None);
    Harness::reopen(harness).await;
    // Closed circuits are not listed at start, but a node that reads this one gets the generation to continue from.
    assert_eq!(harness.store().list_runtime().await.unwrap(), []);
    let runtime = harness.store().get_runtime(vec![harness.webhook_id]).await.unwrap();
    assert_eq!(runtime.iter().map(|one| one.generation).collect::<Vec<_>>(), [9]);
    let opened = open(10, 400, 800);
    set(harness, harness.webhook_id, &opened).await;
    assert_eq!(stored_circuit(harness).await, Some(opened));
    harness.waiting(at(0), at(0)).await;
    assert_eq!(harness.next_wake(at(0)).await, Some(at(800)));
}

pub async fn hold_is_never_shortened(harness: &Arc<Harness>) {
    harness.waiting(at(0), at(0)).await;
    for (until, expected) in [(500, 500), (300, 500), (500, 500), (700, 700)] {
        pause(harness, harness.webhook_id, until).await;
        assert_eq!(only_runtime(harness).await.pause_until, Some(at(expected)));
        assert_eq!(harness.next_wake(at(0)).await, Some(at(expected)));
    }
}

pub async fn pauses_and_circuits_set_by_a_wrong_clock_are_moved(harness: &Arc<Harness>) {
    const WRONG: i64 = 600_000;
    let clock_step = ClockStep { from: at(WRONG), by: Duration::from_millis(WRONG.unsigned_abs()) };
    let [before, opened, forced_open] =
        [harness.new_webhook().await.id, harness.new_webhook().await.id, harness.new_webhook().await.id];
    pause(harness, before, 500).await;
    pause(harness, harness.webhook_id, WRONG + 700).await;
    set(harness, opened, &open(1, WRONG + 10, WRONG + 800)).await;
    let forced = forced(true, 1, 10, Some(WRONG + 900));
    set(harness, forced_open, &forced).await;
    harness.store().adjust_pauses_for_clock_step(clock_step).await.unwrap();
    let runtimes = harness.store().list_runtime().await.unwrap();
    let find = |webhook_id| runtimes.iter().find(|runtime| runtime.webhook_id == webhook_id).unwrap();
    assert_eq!(find(before).pause_until, Some(at(500)), "a pause set by the correct clock is unchanged");
    assert_eq!(find(harness.webhook_id).pause_until, Some(at(700)));
    assert_eq!(find(opened).circuit, Some(open(1, 10, 800)));
    assert_eq!(find(forced_open).circuit, Some(forced), "a forced circuit is unchanged");
    let new = harness.fan_out(harness.event(at(0)), &[(opened, InitialState::Waiting(at(0)))]);
    harness.publish_new(new).await;
    assert_eq!(harness.next_wake(at(0)).await, Some(at(800)), "claims follow the moved circuit");
}

pub async fn webhook_and_its_circuit_are_stored_together_or_not_at_all(harness: &mut Arc<Harness>) {
    let Versioned { webhook, revision } = harness.stored_webhook(harness.webhook_id).await;
    let described = |text: &str| {
        let mut webhook = webhook.clone();
        webhook.spec.description = Some(text.into());
        webhook
    };
    let store_both = async |harness: &Harness, text: &str, revision, circuit: &SavedCircuit| {
        let webhook = described(text);
        harness.store().store_webhook_with_circuit(webhook, revision, circuit.clone()).await.unwrap()
    };
    let open = forced(true, 5, 10, Some(9000));
    let stored = store_both(harness, "forced", Some(revision), &open).await;
    assert!(matches!(stored, UpdateResult::Updated { .. }), "{stored:?}");
    Harness::reopen(harness).await;
    let Versioned { webhook: now, revision: newer } = harness.stored_webhook(harness.webhook_id).await;
    assert_eq!(now.spec.description.as_deref(), Some("forced"));
    assert_eq!(only_runtime(harness).await.circuit, Some(open.clone()));

    let later = forced(true, 6, 20, Some(8000));
    assert_eq!(store_both(harness, "changed since", Some(revision), &later).await, UpdateResult::Stale);
    let older = forced(true, 4, 20, Some(8000));
    assert_eq!(store_both(harness, "older circuit", Some(newer), &older).await, UpdateResult::Stale);
    let unchanged = harness.stored_webhook(harness.webhook_id).await;
    assert_eq!((unchanged.webhook, unchanged.revision), (now, newer));
    assert_eq!(only_runtime(harness).await.circuit, Some(open));

    let new = Webhook { id: harness.webhook_id(), ..described("new") };
    let circuit = forced(true, 1, 30, Some(7000));
    let stored =
        harness.store().store_webhook_with_circuit(new.clone(), None, circuit.clone()).await.unwrap();
    assert!(matches!(stored, UpdateResult::Updated { .. }), "{stored:?}");
    let runtime = harness.store().get_runtime(vec![new.id]).await.unwrap().remove(0);
    assert_eq!(runtime.circuit, Some(circuit));
}

pub async fn runtime_is_listed_as_stored(harness: &mut Arc<Harness>) {
    let other = harness.new_webhook().await.id;
    let circuits = [
        forced(true, 1, 10, None),
        forced(false, 2, 20, Some(9000)),
        transition(CircuitState::HalfOpen, 3, 30),
        open(4, 40, 800),
    ];
    for circuit in circuits {
        set(harness, harness.webhook_id, &circuit).await;
        set(harness, other, &circuit).await;
        Harness::reopen(harness).await;
        let mut runtimes = harness.store().list_runtime().await.unwrap();
        runtimes.sort_by_key(|runtime| runtime.webhook_id);
        let expected = [harness.webhook_id, other].map(|webhook_id| WebhookRuntime {
            webhook_id,
            tenant_id: harness.tenant_id.clone(),
            pause_until: None,
            circuit: Some(circuit.clone()),
            generation: circuit.generation,
            failures: None,
        });
        assert_eq!(runtimes, expected);
    }
    set(harness, other, &SavedCircuit { generation: 5, since: at(50), ..closed() }).await;
    assert_eq!(only_runtime(harness).await.webhook_id, harness.webhook_id, "a closed circuit is not listed");
    harness.set_state(harness.webhook_id, WebhookState::Deleted).await;
    let step = harness.store().cancel_pending(harness.webhook_id, "gone".into(), at(60), 10).await.unwrap();
    assert!(step.finished);
    assert_eq!(harness.store().list_runtime().await.unwrap(), [], "a deleted webhook is not listed");
}

async fn periods(harness: &Harness, from: i64, limit: usize) -> Vec<(i64, Option<i64>, bool)> {
    let periods: Vec<CircuitPeriod> = harness
        .store()
        .circuit_periods(harness.tenant_id.clone(), harness.webhook_id, at(from), limit)
        .await
        .unwrap();
    let millis = |time: Time| time.millis() - at(0).millis();
    periods.iter().map(|one| (millis(one.opened_at), one.ended_at.map(millis), one.forced)).collect()
}

pub async fn circuit_periods_begin_and_end_once(harness: &mut Arc<Harness>) {
    let other_tenants = harness.webhook_id();
    set(harness, other_tenants, &open(1, 10, 400)).await;
    assert_eq!(periods(harness, 0, 10).await, []);
    let transitions = [
        (open(1, 10, 400), vec![(10, None, false)]),
        (open(1, 10, 400), vec![(10, None, false)]),
        // Forced open while it is open: the period continues.
        (forced(true, 2, 15, None), vec![(10, None, false)]),
        (transition(CircuitState::HalfOpen, 3, 20), vec![(10, Some(20), false)]),
        (transition(CircuitState::HalfOpen, 4, 25), vec![(10, Some(20), false)]),
        (open(5, 30, 500), vec![(10, Some(20), false), (30, None, false)]),
        (forced(false, 6, 40, None), vec![(10, Some(20), false), (30, Some(40), false)]),
        (
            SavedCircuit { generation: 7, since: at(50), ..closed() },
            vec![(10, Some(20), false), (30, Some(40), false)],
        ),
        (forced(true, 8, 60, Some(90)), vec![(10, Some(20), false), (30, Some(40), false), (60, None, true)]),
        (
            SavedCircuit { generation: 9, since: at(90), ..closed() },
            vec![(10, Some(20), false), (30, Some(40), false), (60, Some(90), true)],
        ),
    ];
    for (circuit, expected) in transitions {
        set(harness, harness.webhook_id, &circuit).await;
        assert_eq!(periods(harness, 0, 10).await, expected);
    }
    Harness::reopen(harness).await;
    let stored = harness
        .store()
        .circuit_periods(harness.tenant_id.clone(), harness.webhook_id, at(0), 10)
        .await
        .unwrap();
    assert_eq!(stored[0].counts, open(1, 10, 400).counts, "a period has the counts that opened its circuit");
    let elsewhere =
        harness.store().circuit_periods(harness.tenant_id.clone(), other_tenants, at(0), 10).await.unwrap();
    assert_eq!(elsewhere.iter().map(|one| one.ended_at).collect::<Vec<_>>(), [None]);
}

pub async fn circuit_periods_are_listed_since_a_time(harness: &Arc<Harness>) {
    let mut all = Vec::new();
    for n in 0..5 {
        let generation = 1 + 2 * n as u64;
        set(harness, harness.webhook_id, &open(generation, 100 * n, 9000)).await;
        if n == 4 {
            all.push((400, None, false));
            break;
        }
        set(harness, harness.webhook_id, &transition(CircuitState::HalfOpen, generation + 1, 100 * n + 50))
            .await;
        all.push((100 * n, Some(100 * n + 50), false));
    }
    assert_eq!(periods(harness, 0, 10).await, all, "oldest first");
    assert_eq!(periods(harness, 149, 10).await, all[1..], "a period that had not ended by then is listed");
    assert_eq!(periods(harness, 150, 10).await, all[2..]);
    assert_eq!(periods(harness, END, 10).await, all[4..], "an open period has not ended");
    assert_eq!(
        periods(harness, 0, 2).await,
        all[3..],
        "the newest are listed if there are more than the limit"
    );
    assert_eq!(periods(harness, 0, 0).await, []);
}

pub async fn circuit_periods_of_several_webhooks_are_read_together(harness: &Arc<Harness>) {
    let globex = harness.new_tenant("globex").await;
    let [one, other, foreign, quiet] =
        [harness.webhook_id, harness.webhook_id(), harness.webhook_id(), harness.webhook_id()];
    for n in 0..3 {
        let generation = 1 + 2 * n as u64;
        set(harness, one, &open(generation, 100 * n, 9000)).await;
        set(harness, one, &transition(CircuitState::HalfOpen, generation + 1, 100 * n + 50)).await;
    }
    set(harness, other, &open(1, 20, 400)).await;
    harness.store().set_circuit(globex.clone(), foreign, open(1, 50, 400), None).await.unwrap();
    for (from, limit) in [(0, 10), (50, 10), (149, 10), (0, 2), (END, 10)] {
        let ids = vec![one, other, foreign, quiet];
        let mut found = harness
            .store()
            .circuit_periods_of(harness.tenant_id.clone(), ids, at(from), limit)
            .await
            .unwrap();
        found.sort_by_key(|(webhook_id, _)| *webhook_id);
        let mut expected = Vec::new();
        for webhook_id in [one, other] {
            let periods = harness
                .store()
                .circuit_periods(harness.tenant_id.clone(), webhook_id, at(from), limit)
                .await
                .unwrap();
            if !periods.is_empty() {
                expected.push((webhook_id, periods));
            }
        }
        expected.sort_by_key(|(webhook_id, _)| *webhook_id);
        assert_eq!(found, expected, "from {from}, limit {limit}");
    }
}

pub async fn incidents_of_a_tenant_are_listed_newest_first(harness: &Arc<Harness>) {
    let globex = harness.new_tenant("globex").await;
    let [one, other] = [harness.webhook_id, harness.webhook_id()];
    let incidents = async |tenant_id: &TenantId, limit| -> Vec<(WebhookId, i64, Option<i64>, bool)> {
        let found = harness.store().incidents(tenant_id.clone(), Visibility::All, limit).await.unwrap();
        let millis = |time: Time| time.millis() - at(0).millis();
        let reported = |incident: &Incident| {
            let period = &incident.period;
            (incident.webhook_id, millis(period.opened_at), period.ended_at.map(millis), period.forced)
        };
        found.iter().map(reported).collect()
    };
    assert_eq!(incidents(&harness.tenant_id, 10).await, []);
    set(harness, one, &open(1, 10, 400)).await;
    set(harness, other, &open(1, 20, 400)).await;
    set(harness, one, &SavedCircuit { generation: 2, since: at(30), ..closed() }).await;
    set(harness, one, &forced(true, 3, 40, None)).await;
    harness.store().set_circuit(globex.clone(), harness.webhook_id(), open(1, 50, 400), None).await.unwrap();
    let all = [(one, 40, None, true), (other, 20, None, false), (one, 10, Some(30), false)];
    assert_eq!(incidents(&harness.tenant_id, 10).await, all);
    assert_eq!(incidents(&harness.tenant_id, 2).await, all[..2]);
    assert_eq!(incidents(&globex, 10).await.len(), 1);
    let counts = harness.store().incidents(harness.tenant_id.clone(), Visibility::All, 3).await.unwrap()[2]
        .period
        .counts;
    assert_eq!(counts, open(1, 10, 400).counts);
}

pub async fn incident_lasts_until_the_circuit_closes(harness: &mut Arc<Harness>) {
    let webhook_id = harness.webhook_id;
    let half_open = |generation, since| transition(CircuitState::HalfOpen, generation, since);
    let transitions = [
        (open(1, 10, 400), vec![(10, None)]),
        (half_open(2, 20), vec![(10, None)]),
        (open(3, 30, 500), vec![(10, None)]),
        // Two nodes may store one transition.
        (open(3, 30, 500), vec![(10, None)]),
        (half_open(4, 40), vec![(10, None)]),
        (forced(true, 5, 50, None), vec![(10, None)]),
        (half_open(6, 60), vec![(10, None)]),
        (SavedCircuit { generation: 7, since: at(70), ..closed() }, vec![(10, Some(70))]),
        (SavedCircuit { generation: 8, since: at(75), ..closed() }, vec![(10, Some(70))]),
        (open(9, 80, 900), vec![(80, None), (10, Some(70))]),
        (forced(false, 10, 90, None), vec![(80, Some(90)), (10, Some(70))]),
    ];
    for (circuit, expected) in transitions {
        set(harness, webhook_id, &circuit).await;
        let found = harness.store().incidents(harness.tenant_id.clone(), Visibility::All, 10).await.unwrap();
        let millis = |time: Time| time.millis() - at(0).millis();
        let listed: Vec<_> =
            found.iter().map(|one| (millis(one.period.opened_at), one.period.ended_at.map(millis))).collect();
        assert_eq!(listed, expected, "after {circuit:?}");
    }
    let open_periods: Vec<_> = periods(harness, 0, 10).await.iter().map(|one| one.0).collect();
    assert_eq!(open_periods, [10, 30, 50, 80], "the circuit was half-open between them");
    Harness::reopen(harness).await;
    // The first period of an incident is kept until the incident is resolved, however old it is.
    set(harness, webhook_id, &open(11, 100, 900)).await;
    set(harness, webhook_id, &half_open(12, 110)).await;
    let pruned = harness.store().prune_periods(vec![(webhook_id, at(1_000))], 10).await.unwrap();
    assert_eq!(pruned, 4);
    let left = harness.store().incidents(harness.tenant_id.clone(), Visibility::All, 10).await.unwrap();
    assert_eq!(left.iter().map(|one| one.period.ended_at).collect::<Vec<_>>(), [None]);
    set(harness, webhook_id, &SavedCircuit { generation: 13, since: at(120), ..closed() }).await;
    assert_eq!(harness.store().prune_periods(vec![(webhook_id, at(1_000))], 10).await.unwrap(), 1);
}

pub async fn open_half_open_and_forced_circuits_of_a_tenant_are_listed(harness: &Arc<Harness>) {
    let globex = harness.new_tenant("globex").await;
    let mut webhooks =
        [harness.webhook_id(), harness.webhook_id(), harness.webhook_id(), harness.webhook_id()];
    webhooks.sort_unstable();
    let half_open = transition(CircuitState::HalfOpen, 2, 30);
    set(harness, webhooks[0], &open(1, 10, 400)).await;
    set(harness, webhooks[1], &half_open).await;
    set(harness, webhooks[2], &forced(false, 1, 20, None)).await;
    // A webhook that is only paused after a 429, and one whose circuit is closed again, are not listed.
    pause(harness, harness.webhook_id, 900).await;
    set(harness, webhooks[3], &open(1, 10, 400)).await;
    set(harness, webhooks[3], &SavedCircuit { generation: 2, since: at(40), ..closed() }).await;
    harness.store().set_circuit(globex.clone(), harness.webhook_id(), open(1, 50, 400), None).await.unwrap();
    let circuits = async |limit| {
        harness.store().circuits(harness.tenant_id.clone(), Visibility::All, limit).await.unwrap()
    };
    let found = circuits(10).await;
    assert_eq!(found.iter().map(|one| one.webhook_id).collect::<Vec<_>>(), webhooks[..3]);
    assert_eq!(found[1].circuit, Some(half_open));
    assert!(found.iter().all(|one| one.tenant_id == harness.tenant_id));
    assert_eq!(circuits(2).await, found[..2]);
    assert_eq!(harness.store().circuits(globex, Visibility::All, 10).await.unwrap().len(), 1);
}

pub async fn circuits_of_operator_managed_webhooks_can_be_excluded(harness: &Arc<Harness>) {
    let hidden = [
        harness.operator_webhook(WebhookState::Active).await,
        harness.operator_webhook(WebhookState::Deleted).await,
    ];
    let own = harness.new_webhook().await.id;
    for webhook_id in hidden.into_iter().chain([own]) {
        set(harness, webhook_id, &open(1, 10, 400)).await;
    }
    for (visibility, seen) in [(Visibility::All, 3), (Visibility::TenantManaged, 1)] {
        let circuits = harness.store().circuits(harness.tenant_id.clone(), visibility, 10).await.unwrap();
        let incidents = harness.store().incidents(harness.tenant_id.clone(), visibility, 10).await.unwrap();
        assert_eq!((circuits.len(), incidents.len()), (seen, seen), "{visibility:?}");
        assert!(circuits.iter().any(|one| one.webhook_id == own));
        assert!(incidents.iter().any(|one| one.webhook_id == own));
    }
    // Only listed circuits count towards the limit.
    let circuits =
        harness.store().circuits(harness.tenant_id.clone(), Visibility::TenantManaged, 1).await.unwrap();
    assert_eq!(circuits[0].webhook_id, own);
}
