//! What holds webhooks back: stored once, obeyed by every claim, and remembered.

use std::{sync::Arc, time::Duration};

use redrive_core::{
    DeliveryId, TenantId, Time, WebhookId,
    cluster::clock_discipline::SetBack,
    protection::breaker::{CircuitState, Counts, Forced, SavedCircuit},
    webhook::WebhookState,
};

use super::{Bench, END, FRESH, RETRY, at, closed, ids, order};
use crate::{
    Birth, Cancelled, Effects, Failing, Incident, LaneKey, LaneRoom, Next, Outcome, Period, Recorded,
    Runtime, Visibility,
};

const DONE: Recorded = Recorded::Done { config_version: None };

/// An open circuit, as it is stored after so many moves.
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

/// A circuit in this state, as it is stored after so many moves.
fn moved(state: CircuitState, generation: u64, since: i64) -> SavedCircuit {
    SavedCircuit { state, until: None, ..open(generation, since, 0) }
}

/// A circuit that somebody holds open or closed.
fn forced(open: bool, generation: u64, since: i64, until: Option<i64>) -> SavedCircuit {
    let state = if open { CircuitState::Open } else { CircuitState::Closed };
    let forced = Some(Forced { open, until: until.map(at), by: "somebody".into() });
    SavedCircuit { forced, ..moved(state, generation, since) }
}

async fn set(bench: &Bench, webhook: WebhookId, circuit: &SavedCircuit) {
    bench.store().set_circuit(bench.tenant.clone(), webhook, circuit.clone(), None).await.unwrap();
}

/// Records an outcome of a delivery to this webhook that has these effects.
async fn takes_effect(bench: &Bench, webhook: WebhookId, effects: Effects) {
    let new = bench.fan_out(bench.event(at(0)), &[(webhook, Birth::Leased)]);
    let id = new.deliveries[0].id;
    bench.publish_new(new).await;
    let outcome = bench.outcome(id, 1, Next::Delivered, at(1));
    assert_eq!(bench.record(Outcome { webhook, effects, ..outcome }).await, DONE);
}

async fn hold(bench: &Bench, webhook: WebhookId, until: i64) {
    takes_effect(bench, webhook, Effects { hold_until: Some(at(until)), ..Effects::default() }).await;
}

/// What is known of the only webhook of which something is.
async fn only_trouble(bench: &Bench) -> Runtime {
    let mut troubled = bench.store().troubled().await.unwrap();
    assert_eq!(troubled.len(), 1, "{troubled:?}");
    troubled.remove(0)
}

async fn stored_circuit(bench: &Bench) -> Option<SavedCircuit> {
    bench.store().troubled().await.unwrap().into_iter().find_map(|runtime| runtime.circuit)
}

/// One delivery in each kind of lane of a webhook, all due.
async fn one_in_each(bench: &Bench, webhook: WebhookId) -> (Vec<LaneKey>, Vec<DeliveryId>) {
    let keys: Vec<_> = [FRESH, RETRY, order("a")].map(|lane| LaneKey { webhook, lane }).into();
    let mut ids = Vec::new();
    for key in &keys {
        let new = bench.fan_out_to(bench.event(at(0)), &[(key.clone(), Birth::Waiting(at(0)))]);
        ids.push(new.deliveries[0].id);
        bench.publish_new(new).await;
    }
    (keys, ids)
}

/// Claims from all of these lanes at once.
async fn claim_all(bench: &Bench, keys: &[LaneKey], now: Time) -> Vec<DeliveryId> {
    let rooms = keys.iter().map(|key| LaneRoom::new(key.clone(), 10)).collect();
    let claims = bench.store().claim(bench.epoch, now, rooms, usize::MAX).await.unwrap();
    assert!(claims.iter().all(|claim| !claim.more));
    claims.iter().flat_map(|claim| ids(&claim.deliveries)).collect()
}

/// That nothing goes to this webhook before this time, and everything then.
async fn assert_blocked_until(bench: &Bench, keys: &[LaneKey], expected: &[DeliveryId], until: i64) {
    let look = bench.look(at(until - 1)).await;
    assert_eq!((look.lanes, look.next_wake), (vec![], Some(at(until))));
    assert_eq!(claim_all(bench, keys, at(until - 1)).await, [], "not even to one who asks");
    let look = bench.look(at(until - 1)).await;
    assert_eq!((look.lanes, look.next_wake), (vec![], Some(at(until))), "asking changes nothing");
    let mut due = bench.due_lanes(at(until)).await;
    due.sort();
    let mut keys = keys.to_vec();
    keys.sort();
    assert_eq!(due, keys);
    let mut claimed = claim_all(bench, &keys, at(until)).await;
    claimed.sort_unstable();
    assert_eq!(claimed, expected);
}

pub async fn a_blocked_webhook_gives_nothing_until_its_time(bench: &Arc<Bench>) {
    for way in 0..3 {
        let webhook = bench.webhook_id();
        let (keys, ids) = one_in_each(bench, webhook).await;
        let until = 500 + 100 * way;
        match way {
            0 => set(bench, webhook, &open(1, 0, until)).await,
            1 => set(bench, webhook, &forced(true, 1, 0, Some(until))).await,
            _ => hold(bench, webhook, until).await,
        }
        assert_blocked_until(bench, &keys, &ids, until).await;
    }
}

pub async fn what_blocks_longest_counts(bench: &Arc<Bench>) {
    for (n, (circuit, held)) in (0..).zip([(500, 400), (400, 500)]) {
        let webhook = bench.webhook_id();
        let (keys, ids) = one_in_each(bench, webhook).await;
        set(bench, webhook, &open(1, 0, circuit + 100 * n)).await;
        hold(bench, webhook, held + 100 * n).await;
        assert_blocked_until(bench, &keys, &ids, 500 + 100 * n).await;
    }
}

pub async fn a_webhook_blocked_without_end_never_wakes(bench: &Arc<Bench>) {
    let (keys, mut expected) = one_in_each(bench, bench.webhook).await;
    let nothing = || async {
        let look = bench.look(at(END)).await;
        assert_eq!((look.lanes, look.next_wake), (vec![], None));
        assert_eq!(claim_all(bench, &keys, at(END)).await, []);
    };
    bench.set_state(bench.webhook, WebhookState::Paused).await;
    expected.extend(one_in_each(bench, bench.webhook).await.1);
    nothing().await;
    set(bench, bench.webhook, &forced(true, 1, 0, None)).await;
    nothing().await;
    bench.set_state(bench.webhook, WebhookState::Active).await;
    nothing().await;
    set(bench, bench.webhook, &SavedCircuit { generation: 2, ..closed() }).await;
    let mut claimed = claim_all(bench, &keys, at(1)).await;
    claimed.sort_unstable();
    expected.sort_unstable();
    assert_eq!(claimed, expected);
}

pub async fn new_work_does_not_wake_a_blocked_webhook(bench: &Arc<Bench>) {
    let leased = [bench.leased(at(0)).await, bench.leased(at(0)).await, bench.leased(at(0)).await];
    let later = bench.waiting_in(&order("b"), at(0), at(9000)).await;
    let other = bench.new_epoch().await;
    let first = bench.waiting_in(&order("c"), at(0), at(0)).await;
    let claim = bench.claim_lane_as(other, bench.own(order("c")), at(0), 1).await;
    assert_eq!(ids(&claim.deliveries), [first]);
    set(bench, bench.webhook, &open(1, 0, 500)).await;

    let (mut keys, _) = one_in_each(bench, bench.webhook).await;
    bench.ends(leased[0], Next::Retry { due: at(10) }, at(2)).await;
    bench.store().release(bench.epoch, at(2), vec![(leased[1], at(2))]).await.unwrap();
    bench.ends(leased[2], Next::Delivered, at(2)).await;
    bench.retry(later, bench.again(bench.delivery_id(at(0))), at(3)).await;
    bench.retry(leased[2], bench.again(bench.delivery_id(at(0))), at(3)).await;
    assert_eq!(bench.rescue(other, at(4)).await, 1);
    let off = bench.waiting_in(&order("b"), at(0), at(0)).await;
    assert_eq!(bench.cancel(off, at(5)).await, Cancelled::Done);
    let much_later = bench.waiting_in(&order("d"), at(0), at(800)).await;

    let look = bench.look(at(499)).await;
    assert_eq!((look.lanes, look.next_wake), (vec![], Some(at(500))));
    keys.extend(["b", "c"].map(|key| bench.own(order(key))));
    assert_eq!(claim_all(bench, &keys, at(500)).await.len(), 8);
    assert_eq!(bench.next_wake(at(500)).await, Some(at(800)), "what is due later wakes it later");
    assert_eq!(claim_all(bench, &[bench.own(order("d"))], at(800)).await, [much_later]);
}

pub async fn unblocking_wakes_a_webhook_at_once(bench: &Arc<Bench>) {
    let (keys, expected) = one_in_each(bench, bench.webhook).await;
    let later = bench.waiting_in(&order("b"), at(0), at(300)).await;
    let all_due = || async {
        let look = bench.look(at(1)).await;
        assert_eq!((look.lanes.len(), look.next_wake), (3, Some(at(300))));
    };
    let steps = [
        (open(1, 0, 5000), SavedCircuit { generation: 2, ..closed() }),
        (open(3, 0, 5000), moved(CircuitState::HalfOpen, 4, 1)),
        (forced(true, 5, 0, None), forced(false, 6, 0, None)),
    ];
    for (blocks, frees) in steps {
        set(bench, bench.webhook, &blocks).await;
        assert_eq!(bench.due_lanes(at(4999)).await, []);
        set(bench, bench.webhook, &frees).await;
        all_due().await;
    }
    bench.set_state(bench.webhook, WebhookState::Paused).await;
    assert_eq!(bench.due_lanes(at(END)).await, []);
    bench.set_state(bench.webhook, WebhookState::Active).await;
    all_due().await;
    let mut claimed = claim_all(bench, &keys, at(1)).await;
    claimed.sort_unstable();
    assert_eq!(claimed, expected);
    assert_eq!(claim_all(bench, &[bench.own(order("b"))], at(300)).await, [later]);
}

pub async fn blocking_takes_a_lane_from_its_holder(bench: &Arc<Bench>) {
    for _ in 0..3 {
        bench.waiting(at(0), at(0)).await;
    }
    assert!(bench.claim_lane(bench.lane(), at(1), 1).await.more);
    set(bench, bench.webhook, &open(1, 0, 500)).await;
    assert_eq!(bench.next_wake(at(1)).await, Some(at(500)), "nobody holds it");
    let claim = bench.claim_lane(bench.lane(), at(2), 1).await;
    assert!(claim.deliveries.is_empty() && !claim.more, "who holds it is told that there is no more");
    assert_eq!(bench.due_lanes(at(500)).await, [bench.lane()], "anybody may take it on afterwards");
    assert_eq!(bench.claim_lane(bench.lane(), at(500), 10).await.deliveries.len(), 2);
}

pub async fn a_paused_webhook_keeps_what_it_gets(bench: &mut Arc<Bench>) {
    bench.set_state(bench.webhook, WebhookState::Paused).await;
    let id = bench.waiting(at(0), at(0)).await;
    Bench::reopen(bench).await;
    assert_eq!(bench.due_lanes(at(END)).await, []);
    assert_eq!(bench.store().troubled().await.unwrap(), [], "its state tells that it is paused");
    assert_eq!(bench.store().sweeping().await.unwrap(), []);
    bench.set_state(bench.webhook, WebhookState::Active).await;
    assert_eq!(bench.claim_one(at(1)).await.id, id);
}

/// Effects of every kind.
fn every_effect() -> Effects {
    Effects {
        circuit: Some(Box::new(open(1, 5, 700))),
        hold_until: Some(at(600)),
        failing: Some(Failing::Since(at(5))),
    }
}

pub async fn an_outcomes_effects_are_stored_with_it(bench: &mut Arc<Bench>) {
    let id = bench.leased(at(0)).await;
    let outcome =
        Outcome { effects: every_effect(), ..bench.outcome(id, 1, Next::Retry { due: at(10) }, at(5)) };
    assert_eq!(bench.record(outcome.clone()).await, DONE);
    let expected = Runtime {
        webhook: bench.webhook,
        tenant: bench.tenant.clone(),
        hold_until: Some(at(600)),
        circuit: Some(open(1, 5, 700)),
        generation: 1,
        failing_since: Some(at(5)),
    };
    assert_eq!(only_trouble(bench).await, expected);
    assert_eq!(bench.next_wake(at(0)).await, Some(at(700)), "it blocks the delivery itself");
    Bench::reopen(bench).await;
    assert_eq!(only_trouble(bench).await, expected);
    let periods =
        bench.store().circuit_periods(bench.tenant.clone(), bench.webhook, at(0), 10).await.unwrap();
    assert_eq!(periods.len(), 1);

    // Known already: what has happened since stands.
    set(bench, bench.webhook, &SavedCircuit { generation: 2, since: at(50), ..closed() }).await;
    assert_eq!(bench.record(outcome).await, Recorded::Again);
    assert_eq!(only_trouble(bench).await, Runtime { circuit: None, generation: 2, ..expected });
}

pub async fn what_is_not_recorded_has_no_effects(bench: &Arc<Bench>) {
    let (id, off) = (bench.leased(at(0)).await, bench.leased(at(0)).await);
    let epoch = bench.new_epoch().await;
    let outcome = |id| Outcome { effects: every_effect(), ..bench.outcome(id, 1, Next::Delivered, at(5)) };
    assert_eq!(bench.record(Outcome { epoch, ..outcome(id) }).await, Recorded::Fenced);
    assert_eq!(bench.cancel(off, at(1)).await, Cancelled::Requested);
    assert_eq!(bench.record(outcome(off)).await, Recorded::CancelRequested("enough".into()));
    bench.rescue(bench.epoch, at(6)).await;
    assert_eq!(bench.record(outcome(id)).await, Recorded::Fenced);
    assert_eq!(bench.store().troubled().await.unwrap(), []);
    assert_eq!(
        bench.store().circuit_periods(bench.tenant.clone(), bench.webhook, at(0), 10).await.unwrap(),
        []
    );
    assert_eq!(bench.due_lanes(at(6)).await, [bench.lane()]);
}

pub async fn an_older_circuit_never_replaces_a_newer_one(bench: &Arc<Bench>) {
    let newest = open(3, 100, 500);
    set(bench, bench.webhook, &newest).await;
    for older in [SavedCircuit { generation: 2, since: at(90), ..closed() }, open(2, 200, 900)] {
        set(bench, bench.webhook, &older).await;
        let effects = Effects { circuit: Some(Box::new(older)), ..Effects::default() };
        takes_effect(bench, bench.webhook, effects).await;
        assert_eq!(stored_circuit(bench).await.as_ref(), Some(&newest));
    }
    let id = bench.waiting(at(0), at(0)).await;
    assert_eq!(bench.next_wake(at(0)).await, Some(at(500)));
    set(bench, bench.webhook, &SavedCircuit { generation: 4, since: at(300), ..closed() }).await;
    set(bench, bench.webhook, &newest).await;
    assert_eq!(stored_circuit(bench).await, None, "nor does one that comes late");
    assert_eq!(bench.claim_one(at(300)).await.id, id);
    let periods =
        bench.store().circuit_periods(bench.tenant.clone(), bench.webhook, at(0), 10).await.unwrap();
    assert_eq!(periods.iter().map(|one| one.ended_at).collect::<Vec<_>>(), [Some(at(300))]);
}

/// A node that has not read a reset yet may open the circuit from what it counted before, and store that later.
pub async fn late_opening_does_not_undo_a_reset(bench: &mut Arc<Bench>) {
    set(bench, bench.webhook, &open(7, 100, 500)).await;
    set(bench, bench.webhook, &SavedCircuit { generation: 9, since: at(300), ..closed() }).await;
    let opened = open(8, 400, 800);
    let effects = Effects { circuit: Some(Box::new(opened.clone())), ..Effects::default() };
    takes_effect(bench, bench.webhook, effects).await;
    let stored = bench.store().set_circuit(bench.tenant.clone(), bench.webhook, opened, None).await.unwrap();
    assert!(!stored, "the reset is newer");
    assert_eq!(stored_circuit(bench).await, None);
    Bench::reopen(bench).await;
    // Closed circuits are not listed at start, but a node that asks for this one learns where to count on.
    assert_eq!(bench.store().troubled().await.unwrap(), []);
    let runtime = bench.store().trouble_of(vec![bench.webhook]).await.unwrap();
    assert_eq!(runtime.iter().map(|one| one.generation).collect::<Vec<_>>(), [9]);
    let opened = open(10, 400, 800);
    set(bench, bench.webhook, &opened).await;
    assert_eq!(stored_circuit(bench).await, Some(opened));
    bench.waiting(at(0), at(0)).await;
    assert_eq!(bench.next_wake(at(0)).await, Some(at(800)));
}

pub async fn a_hold_is_never_shortened(bench: &Arc<Bench>) {
    bench.waiting(at(0), at(0)).await;
    for (until, held) in [(500, 500), (300, 500), (500, 500), (700, 700)] {
        hold(bench, bench.webhook, until).await;
        assert_eq!(only_trouble(bench).await.hold_until, Some(at(held)));
        assert_eq!(bench.next_wake(at(0)).await, Some(at(held)));
    }
}

pub async fn holds_and_circuits_of_a_wrong_clock_are_moved(bench: &Arc<Bench>) {
    const WRONG: i64 = 600_000;
    let set_back = SetBack { from: at(WRONG), by: Duration::from_millis(WRONG.unsigned_abs()) };
    let [before, opened, forced_open] =
        [bench.new_webhook().await.id, bench.new_webhook().await.id, bench.new_webhook().await.id];
    hold(bench, before, 500).await;
    hold(bench, bench.webhook, WRONG + 700).await;
    set(bench, opened, &open(1, WRONG + 10, WRONG + 800)).await;
    let forced = forced(true, 1, 10, Some(WRONG + 900));
    set(bench, forced_open, &forced).await;
    bench.store().set_holds_back(set_back).await.unwrap();
    let runtimes = bench.store().troubled().await.unwrap();
    let find = |webhook| runtimes.iter().find(|runtime| runtime.webhook == webhook).unwrap();
    assert_eq!(find(before).hold_until, Some(at(500)), "it was set by the right time");
    assert_eq!(find(bench.webhook).hold_until, Some(at(700)));
    assert_eq!(find(opened).circuit, Some(open(1, 10, 800)));
    assert_eq!(find(forced_open).circuit, Some(forced), "an operator's decision stays");
    let new = bench.fan_out(bench.event(at(0)), &[(opened, Birth::Waiting(at(0)))]);
    bench.publish_new(new).await;
    assert_eq!(bench.next_wake(at(0)).await, Some(at(800)), "claims follow the moved circuit");
}

pub async fn failures_count_from_the_first(bench: &mut Arc<Bench>) {
    let failing = |failing| Effects { failing: Some(failing), ..Effects::default() };
    let since = |bench: &Arc<Bench>| {
        let bench = bench.clone();
        async move { bench.store().troubled().await.unwrap().first().and_then(|one| one.failing_since) }
    };
    takes_effect(bench, bench.webhook, failing(Failing::Over)).await;
    assert_eq!(bench.store().troubled().await.unwrap(), []);
    for time in [50, 60] {
        takes_effect(bench, bench.webhook, failing(Failing::Since(at(time)))).await;
        assert_eq!(since(bench).await, Some(at(50)));
    }
    Bench::reopen(bench).await;
    assert_eq!(since(bench).await, Some(at(50)));
    takes_effect(bench, bench.webhook, failing(Failing::Over)).await;
    assert_eq!(bench.store().troubled().await.unwrap(), []);
    takes_effect(bench, bench.webhook, failing(Failing::Since(at(70)))).await;
    assert_eq!(since(bench).await, Some(at(70)));
}

pub async fn trouble_is_told_as_it_was_stored(bench: &mut Arc<Bench>) {
    let other = bench.new_webhook().await.id;
    let circuits = [
        forced(true, 1, 10, None),
        forced(false, 2, 20, Some(9000)),
        moved(CircuitState::HalfOpen, 3, 30),
        open(4, 40, 800),
    ];
    for circuit in circuits {
        set(bench, bench.webhook, &circuit).await;
        set(bench, other, &circuit).await;
        Bench::reopen(bench).await;
        let mut troubled = bench.store().troubled().await.unwrap();
        troubled.sort_by_key(|runtime| runtime.webhook);
        let expected = [bench.webhook, other].map(|webhook| Runtime {
            webhook,
            tenant: bench.tenant.clone(),
            hold_until: None,
            circuit: Some(circuit.clone()),
            generation: circuit.generation,
            failing_since: None,
        });
        assert_eq!(troubled, expected);
    }
    set(bench, other, &SavedCircuit { generation: 5, since: at(50), ..closed() }).await;
    assert_eq!(only_trouble(bench).await.webhook, bench.webhook, "a closed circuit is forgotten");
    bench.set_state(bench.webhook, WebhookState::Deleted).await;
    let step = bench.store().sweep(bench.webhook, "gone".into(), at(60), 10).await.unwrap();
    assert!(step.finished);
    assert_eq!(bench.store().troubled().await.unwrap(), [], "and so is whatever was deleted");
}

async fn periods(bench: &Bench, from: i64, limit: usize) -> Vec<(i64, Option<i64>, bool)> {
    let periods: Vec<Period> =
        bench.store().circuit_periods(bench.tenant.clone(), bench.webhook, at(from), limit).await.unwrap();
    let millis = |time: Time| time.millis() - at(0).millis();
    periods.iter().map(|one| (millis(one.opened_at), one.ended_at.map(millis), one.forced)).collect()
}

pub async fn periods_begin_and_end_once(bench: &mut Arc<Bench>) {
    let elsewhere = bench.webhook_id();
    set(bench, elsewhere, &open(1, 10, 400)).await;
    assert_eq!(periods(bench, 0, 10).await, []);
    let moves = [
        (open(1, 10, 400), vec![(10, None, false)]),
        (open(1, 10, 400), vec![(10, None, false)]),
        // Held open by hand while it is open: it is the same period.
        (forced(true, 2, 15, None), vec![(10, None, false)]),
        (moved(CircuitState::HalfOpen, 3, 20), vec![(10, Some(20), false)]),
        (moved(CircuitState::HalfOpen, 4, 25), vec![(10, Some(20), false)]),
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
    for (circuit, expected) in moves {
        set(bench, bench.webhook, &circuit).await;
        assert_eq!(periods(bench, 0, 10).await, expected);
    }
    Bench::reopen(bench).await;
    let stored = bench.store().circuit_periods(bench.tenant.clone(), bench.webhook, at(0), 10).await.unwrap();
    assert_eq!(stored[0].counts, open(1, 10, 400).counts, "and say what had opened it");
    let elsewhere = bench.store().circuit_periods(bench.tenant.clone(), elsewhere, at(0), 10).await.unwrap();
    assert_eq!(elsewhere.iter().map(|one| one.ended_at).collect::<Vec<_>>(), [None]);
}

pub async fn periods_are_listed_from_a_time_on(bench: &Arc<Bench>) {
    let mut all = Vec::new();
    for n in 0..5 {
        let generation = 1 + 2 * n as u64;
        set(bench, bench.webhook, &open(generation, 100 * n, 9000)).await;
        if n == 4 {
            all.push((400, None, false));
            break;
        }
        set(bench, bench.webhook, &moved(CircuitState::HalfOpen, generation + 1, 100 * n + 50)).await;
        all.push((100 * n, Some(100 * n + 50), false));
    }
    assert_eq!(periods(bench, 0, 10).await, all, "oldest first");
    assert_eq!(periods(bench, 149, 10).await, all[1..], "one that was not over then");
    assert_eq!(periods(bench, 150, 10).await, all[2..]);
    assert_eq!(periods(bench, END, 10).await, all[4..], "one that is open is not over");
    assert_eq!(periods(bench, 0, 2).await, all[3..], "the newest of too many");
    assert_eq!(periods(bench, 0, 0).await, []);
}

pub async fn periods_of_several_webhooks_are_read_together(bench: &Arc<Bench>) {
    let globex = bench.new_tenant("globex").await;
    let [one, other, foreign, quiet] =
        [bench.webhook, bench.webhook_id(), bench.webhook_id(), bench.webhook_id()];
    for n in 0..3 {
        let generation = 1 + 2 * n as u64;
        set(bench, one, &open(generation, 100 * n, 9000)).await;
        set(bench, one, &moved(CircuitState::HalfOpen, generation + 1, 100 * n + 50)).await;
    }
    set(bench, other, &open(1, 20, 400)).await;
    bench.store().set_circuit(globex.clone(), foreign, open(1, 50, 400), None).await.unwrap();
    for (from, limit) in [(0, 10), (50, 10), (149, 10), (0, 2), (END, 10)] {
        let ids = vec![one, other, foreign, quiet];
        let mut found =
            bench.store().circuit_periods_of(bench.tenant.clone(), ids, at(from), limit).await.unwrap();
        found.sort_by_key(|(webhook, _)| *webhook);
        let mut expected = Vec::new();
        for webhook in [one, other] {
            let periods =
                bench.store().circuit_periods(bench.tenant.clone(), webhook, at(from), limit).await.unwrap();
            if !periods.is_empty() {
                expected.push((webhook, periods));
            }
        }
        expected.sort_by_key(|(webhook, _)| *webhook);
        assert_eq!(found, expected, "from {from}, {limit} at the most");
    }
}

pub async fn a_tenants_incidents_are_listed_the_last_first(bench: &Arc<Bench>) {
    let globex = bench.new_tenant("globex").await;
    let [one, other] = [bench.webhook, bench.webhook_id()];
    let incidents = async |tenant: &TenantId, limit| -> Vec<(WebhookId, i64, Option<i64>, bool)> {
        let found = bench.store().incidents(tenant.clone(), Visibility::All, limit).await.unwrap();
        let millis = |time: Time| time.millis() - at(0).millis();
        let told = |incident: &Incident| {
            let period = &incident.period;
            (incident.webhook, millis(period.opened_at), period.ended_at.map(millis), period.forced)
        };
        found.iter().map(told).collect()
    };
    assert_eq!(incidents(&bench.tenant, 10).await, []);
    set(bench, one, &open(1, 10, 400)).await;
    set(bench, other, &open(1, 20, 400)).await;
    set(bench, one, &moved(CircuitState::HalfOpen, 2, 30)).await;
    set(bench, one, &forced(true, 3, 40, None)).await;
    bench.store().set_circuit(globex.clone(), bench.webhook_id(), open(1, 50, 400), None).await.unwrap();
    let all = [(one, 40, None, true), (other, 20, None, false), (one, 10, Some(30), false)];
    assert_eq!(incidents(&bench.tenant, 10).await, all);
    assert_eq!(incidents(&bench.tenant, 2).await, all[..2]);
    assert_eq!(incidents(&globex, 10).await.len(), 1);
    let counts =
        bench.store().incidents(bench.tenant.clone(), Visibility::All, 3).await.unwrap()[2].period.counts;
    assert_eq!(counts, open(1, 10, 400).counts);
}

pub async fn a_tenants_circuits_are_listed_while_they_are_not_closed(bench: &Arc<Bench>) {
    let globex = bench.new_tenant("globex").await;
    let mut webhooks = [bench.webhook_id(), bench.webhook_id(), bench.webhook_id(), bench.webhook_id()];
    webhooks.sort_unstable();
    let half_open = moved(CircuitState::HalfOpen, 2, 30);
    set(bench, webhooks[0], &open(1, 10, 400)).await;
    set(bench, webhooks[1], &half_open).await;
    set(bench, webhooks[2], &forced(false, 1, 20, None)).await;
    // Only held back, or closed again.
    hold(bench, bench.webhook, 900).await;
    set(bench, webhooks[3], &open(1, 10, 400)).await;
    set(bench, webhooks[3], &SavedCircuit { generation: 2, since: at(40), ..closed() }).await;
    bench.store().set_circuit(globex.clone(), bench.webhook_id(), open(1, 50, 400), None).await.unwrap();
    let circuits =
        async |limit| bench.store().circuits(bench.tenant.clone(), Visibility::All, limit).await.unwrap();
    let found = circuits(10).await;
    assert_eq!(found.iter().map(|one| one.webhook).collect::<Vec<_>>(), webhooks[..3]);
    assert_eq!(found[1].circuit, Some(half_open));
    assert!(found.iter().all(|one| one.tenant == bench.tenant));
    assert_eq!(circuits(2).await, found[..2]);
    assert_eq!(bench.store().circuits(globex, Visibility::All, 10).await.unwrap().len(), 1);
}

pub async fn circuits_of_operator_managed_webhooks_are_left_out_where_asked(bench: &Arc<Bench>) {
    let hidden = [
        bench.operator_webhook(WebhookState::Active).await,
        bench.operator_webhook(WebhookState::Deleted).await,
    ];
    let own = bench.new_webhook().await.id;
    for webhook in hidden.into_iter().chain([own]) {
        set(bench, webhook, &open(1, 10, 400)).await;
    }
    for (visibility, seen) in [(Visibility::All, 3), (Visibility::TenantManaged, 1)] {
        let circuits = bench.store().circuits(bench.tenant.clone(), visibility, 10).await.unwrap();
        let incidents = bench.store().incidents(bench.tenant.clone(), visibility, 10).await.unwrap();
        assert_eq!((circuits.len(), incidents.len()), (seen, seen), "{visibility:?}");
        assert!(circuits.iter().any(|one| one.webhook == own));
        assert!(incidents.iter().any(|one| one.webhook == own));
    }
    // The limit counts what is listed alone.
    let circuits = bench.store().circuits(bench.tenant.clone(), Visibility::TenantManaged, 1).await.unwrap();
    assert_eq!(circuits[0].webhook, own);
}
