//! Bulk operations: one node at a time, atomic steps, no duplicates, tenant isolation.

use redrive_core::delivery::outcome::Outcome;
use std::{collections::BTreeSet, sync::Arc};

use redrive_core::{
    DeliveryId, DeliveryStatus, OperationId, TenantId, Time, WebhookId,
    delivery::{
        bulk_operation::{OperationFilter, OperationKind, OperationState, OperationTarget},
        lane::Priority,
    },
    event::PayloadFormat,
};

use super::{Harness, RETRY, at, page};
use crate::{
    CancelResult, Epoch, InitialState, NewRound, Operation, OperationProgress, OperationRequest,
    OperationStep, OutcomeRecord, RecordResult, Scan, ScanCursor, StepResult, Task,
};

async fn create(harness: &Harness, kind: OperationKind, start_at: Time) -> Operation {
    let order = OperationRequest {
        kind,
        among: OperationTarget::Dead,
        selection: OperationFilter { event_types: vec!["a.b".into()], ..OperationFilter::default() },
        rate: Some(7),
        priority: Some(Priority::High),
    };
    let operation = Operation {
        id: OperationId::new(at(1), &harness.next()),
        tenant_id: harness.tenant_id.clone(),
        order,
        state: OperationState::Scheduled,
        created_by: "jane \u{1f511}".into(),
        created_at: at(1),
        start_at,
        began_at: None,
        finished_at: None,
        updated_at: at(1),
        claimed_by: None,
        cursor: None,
        progress: OperationProgress::default(),
        rate_since: None,
    };
    harness.store().create_operation(operation.clone()).await.unwrap();
    operation
}

async fn find(harness: &Harness, id: OperationId) -> Operation {
    harness.store().operation(harness.tenant_id.clone(), id).await.unwrap().unwrap()
}

async fn claim(harness: &Harness, epoch: Epoch, now: i64) -> Vec<OperationId> {
    let claimed = harness.store().claim_operations(epoch, Vec::new(), at(now), 10).await.unwrap();
    claimed.into_iter().map(|operation| operation.id).collect()
}

/// Creates an operation and claims it for the harness's epoch.
async fn create_claimed(harness: &Harness, kind: OperationKind) -> OperationId {
    let created = create(harness, kind, at(2)).await;
    assert!(claim(harness, harness.epoch, 10).await.contains(&created.id));
    created.id
}

fn step(harness: &Harness, id: OperationId, tasks: Vec<Task>) -> OperationStep {
    let (tenant_id, epoch) = (harness.tenant_id.clone(), harness.epoch);
    OperationStep { id, tenant_id, epoch, tasks, passed: 0, cursor: None, then: None, at: at(20) }
}

async fn apply_step(harness: &Harness, step: OperationStep) -> StepResult {
    harness.store().step_operation(step).await.unwrap()
}

fn done(done: usize) -> StepResult {
    StepResult::Applied { done, to_cancel: Vec::new() }
}

fn retry(harness: &Harness, delivery_id: DeliveryId) -> (DeliveryId, Task) {
    let new = harness.delivery_id(delivery_id.time());
    (new, Task::Retry(delivery_id, harness.redrive_options(new)))
}

pub async fn operation_is_stored_as_requested(harness: &mut Arc<Harness>) {
    let created = create(harness, OperationKind::Retry, at(5)).await;
    let later = create(harness, OperationKind::Purge, at(5)).await;
    Harness::reopen(harness).await;
    assert_eq!(find(harness, created.id).await, created);
    let listed = harness.store().list_operations(harness.tenant_id.clone(), page(10)).await.unwrap();
    let mut expected = [created.clone(), later];
    expected.sort_by_key(|operation| std::cmp::Reverse(operation.id));
    assert_eq!(listed, expected);
    let other = harness.new_tenant("globex").await;
    assert_eq!(harness.store().operation(other.clone(), created.id).await.unwrap(), None);
    assert_eq!(harness.store().list_operations(other, page(10)).await.unwrap(), []);
}

pub async fn operation_is_claimed_by_one_node_at_a_time(harness: &Arc<Harness>) {
    let created = create(harness, OperationKind::Retry, at(5)).await;
    let other = harness.new_epoch().await;
    assert_eq!(claim(harness, harness.epoch, 4).await, [], "its start time is not reached");
    assert_eq!(claim(harness, harness.epoch, 5).await, [created.id]);
    let running = find(harness, created.id).await;
    assert_eq!((running.state, running.began_at), (OperationState::Running, Some(at(5))));
    assert_eq!((running.claimed_by, running.rate_since), (Some(harness.epoch), Some((at(5), 0))));
    assert_eq!(claim(harness, other, 6).await, [], "another node holds it");
    assert_eq!(claim(harness, harness.epoch, 6).await, [created.id], "its holder may claim it again");
    let but = harness.store().claim_operations(harness.epoch, vec![created.id], at(6), 10).await.unwrap();
    assert_eq!(but, [], "unless the holder excludes it");
    harness.rescue(harness.epoch, at(7)).await;
    assert_eq!(claim(harness, other, 8).await, [created.id], "the claim of a dead epoch ends");
    let running = find(harness, created.id).await;
    assert_eq!(
        (running.claimed_by, running.began_at),
        (Some(other), Some(at(5))),
        "its start time is set once"
    );
}

pub async fn step_is_applied_only_by_the_holder_of_a_running_operation(harness: &Arc<Harness>) {
    let dead = harness.dead(at(0)).await;
    let id = create_claimed(harness, OperationKind::Retry).await;
    let (_, task) = retry(harness, dead);
    let other = harness.new_epoch().await;
    let foreign = OperationStep { epoch: other, ..step(harness, id, vec![task.clone()]) };
    assert_eq!(apply_step(harness, foreign).await, StepResult::ClaimLost);
    let turn =
        |from, to| harness.store().set_operation_state(harness.tenant_id.clone(), id, from, to, at(15));
    assert!(turn(OperationState::Running, OperationState::Paused).await.unwrap());
    assert!(
        !turn(OperationState::Running, OperationState::Paused).await.unwrap(),
        "the operation is not running"
    );
    assert_eq!(apply_step(harness, step(harness, id, vec![task.clone()])).await, StepResult::ClaimLost);
    assert_eq!(harness.dead_list().await, [dead], "no delivery was redriven");
    assert!(turn(OperationState::Paused, OperationState::Running).await.unwrap());
    assert_eq!(apply_step(harness, step(harness, id, vec![task])).await, done(1));
    assert_eq!(harness.dead_list().await, []);
}

pub async fn step_redrives_each_delivery_once_across_operations(harness: &Arc<Harness>) {
    let (one, two) = (harness.dead(at(0)).await, harness.dead(at(1)).await);
    let waits = harness.waiting(at(0), at(5000)).await;
    let (first, second) = (
        create_claimed(harness, OperationKind::Retry).await,
        create_claimed(harness, OperationKind::Retry).await,
    );
    let ((new, task), (_, again)) = (retry(harness, one), retry(harness, one));
    assert_eq!(apply_step(harness, step(harness, first, vec![task])).await, done(1));
    let ((newer, other), (_, due)) = (retry(harness, two), retry(harness, waits));
    let unknown = retry(harness, harness.delivery_id(at(0))).1;
    let position = ScanCursor { event_id: harness.delivery(two).await.event_id, delivery_id: Some(two) };
    let tasks = vec![again, other, due, unknown];
    let last = OperationStep { cursor: Some(position), ..step(harness, second, tasks) };
    assert_eq!(apply_step(harness, last).await, done(2), "one was redriven, one is unknown");
    let rounds = (harness.delivery(one).await.redriven_as, harness.delivery(two).await.redriven_as);
    assert_eq!(rounds, (Some(new), Some(newer)));
    assert_eq!(harness.delivery(newer).await.round, 2);
    assert_eq!(harness.delivery(waits).await.due, Some(at(20)), "a waiting delivery is due now");
    let operation = find(harness, second).await;
    assert_eq!((operation.progress.done, operation.progress.skipped), (2, 2));
    assert_eq!((operation.cursor, operation.updated_at), (Some(position), at(20)));
    assert_eq!(harness.dead_list().await, []);
}

pub async fn results_of_queued_deliveries_are_counted(harness: &Arc<Harness>) {
    let id = create_claimed(harness, OperationKind::Retry).await;
    let (mut tasks, mut new_ids) = (Vec::new(), Vec::new());
    for _ in 0..4 {
        let (new, task) = retry(harness, harness.dead(at(0)).await);
        new_ids.push(new);
        tasks.push(task);
    }
    harness.store().set_operation_counts(id, harness.epoch, 4, 7).await.unwrap();
    let last = OperationStep { then: Some(OperationState::Delivering), ..step(harness, id, tasks) };
    assert_eq!(apply_step(harness, last).await, done(4));
    let collect = |after| harness.store().collect_operation_results(id, harness.epoch, after, 10);
    assert_eq!(collect(None).await.unwrap().open, 4);
    assert_eq!(harness.claim(at(20)).await.len(), 4);
    harness.ends(new_ids[0], Outcome::Delivered, at(30)).await;
    harness.ends(new_ids[1], Outcome::Dead(redrive_core::DeadReason::Permanent), at(30)).await;
    harness.ends(new_ids[2], Outcome::Cancelled("x".into()), at(30)).await;
    assert_eq!(collect(None).await.unwrap().open, 1);
    assert_eq!(collect(None).await.unwrap().open, 1, "settling is idempotent");
    let progress = find(harness, id).await.progress;
    assert_eq!((progress.delivered, progress.failed, progress.cancelled, progress.total), (1, 1, 1, Some(4)));
    assert_eq!(progress.already_delivered, Some(7));
    assert_eq!(progress.errors.values().sum::<u64>(), 1);
    harness.ends(new_ids[3], Outcome::Delivered, at(31)).await;
    assert_eq!(collect(None).await.unwrap().open, 0);
    harness.store().complete_operation(id, harness.epoch, at(40)).await.unwrap();
    let over = find(harness, id).await;
    assert_eq!((over.state, over.finished_at), (OperationState::Completed, Some(at(40))));
    assert_eq!((over.claimed_by, over.progress.delivered), (None, 2));
    assert_eq!(claim(harness, harness.epoch, 50).await, []);
    assert_eq!(harness.store().prune_operations(at(40), 10).await.unwrap(), 0);
    assert_eq!(harness.store().prune_operations(at(41), 10).await.unwrap(), 1);
}

pub async fn queued_deliveries_are_settled_in_pages(harness: &Arc<Harness>) {
    let id = create_claimed(harness, OperationKind::Retry).await;
    let mut tasks = Vec::new();
    for _ in 0..5 {
        tasks.push(retry(harness, harness.dead(at(0)).await).1);
    }
    apply_step(harness, step(harness, id, tasks)).await;
    let (mut after, mut slices, mut open) = (None, 0, 0);
    loop {
        let settled = harness.store().collect_operation_results(id, harness.epoch, after, 2).await.unwrap();
        (slices, open, after) = (slices + 1, open + settled.open, settled.next);
        if after.is_none() {
            break;
        }
    }
    assert_eq!((slices, open), (3, 5));
}

pub async fn purged_dead_letters_leave_the_list_and_stay_in_history(harness: &Arc<Harness>) {
    let (dead, kept) = (harness.dead(at(0)).await, harness.dead(at(1)).await);
    let arrived = harness.leased(at(0)).await;
    harness.ends(arrived, Outcome::Delivered, at(1)).await;
    let id = create_claimed(harness, OperationKind::Purge).await;
    let tasks = vec![Task::Purge(dead), Task::Purge(arrived), Task::Purge(dead)];
    assert_eq!(apply_step(harness, step(harness, id, tasks)).await, done(1));
    assert_eq!(harness.dead_list().await, [kept]);
    let purged = harness.delivery(dead).await;
    assert_eq!((purged.status, purged.purged_at), (DeliveryStatus::Dead, Some(at(20))));
    assert_eq!(harness.delivery(arrived).await.purged_at, None);
    let (new, task) = retry(harness, dead);
    let Task::Retry(dead_letter, options) = task.clone() else { unreachable!() };
    let only_letters = Task::Retry(dead_letter, crate::RedriveOptions { unless_purged: true, ..options });
    assert_eq!(
        apply_step(harness, step(harness, id, vec![only_letters])).await,
        done(0),
        "unless_purged skips a purged dead letter"
    );
    assert_eq!(
        apply_step(harness, step(harness, id, vec![task])).await,
        done(1),
        "a purged delivery can still be retried"
    );
    assert_eq!(harness.delivery(new).await.replay_of, Some(dead));
}

pub async fn step_cancels_several_deliveries(harness: &Arc<Harness>) {
    let (waits, leased) = (harness.waiting(at(0), at(5000)).await, harness.leased(at(0)).await);
    let behind = harness.waiting_in(&super::order("k"), at(0), at(0)).await;
    let dead = harness.dead(at(0)).await;
    let id = create_claimed(harness, OperationKind::Cancel).await;
    let cancel = |delivery_id| Task::Cancel(delivery_id, "not wanted".into());
    let tasks = vec![cancel(waits), cancel(leased), cancel(behind), cancel(dead)];
    let webhook_id = harness.delivery(leased).await.webhook_id;
    let stepped = apply_step(harness, step(harness, id, tasks)).await;
    assert_eq!(stepped, StepResult::Applied { done: 3, to_cancel: vec![(webhook_id, leased)] });
    for ended in [waits, behind] {
        let ended = harness.delivery(ended).await;
        assert_eq!((ended.status, ended.ended_at), (DeliveryStatus::Cancelled, Some(at(20))));
        assert_eq!(ended.cancel_reason.as_deref(), Some("not wanted"));
    }
    assert_eq!(harness.status(leased).await, DeliveryStatus::Pending, "a leased delivery stays pending");
    assert_eq!(harness.cancel(leased, at(21)).await, CancelResult::Requested);
    assert_eq!(harness.due_lanes(at(9000)).await, [], "no lane is left");
    let late = harness.outcome(leased, 1, Outcome::Delivered, at(30));
    let known = OutcomeRecord { record_despite_cancel: true, ..late };
    assert_eq!(harness.record(known).await, RecordResult::Recorded { config_version: None });
}

pub async fn backfill_sends_an_event_to_a_webhook_once(harness: &Arc<Harness>) {
    let event = harness.event(at(0));
    let had = harness.fan_out(event.clone(), &[(harness.webhook_id(), InitialState::Leased)]);
    let old = had.deliveries[0].webhook_id;
    harness.publish_new(had.clone()).await;
    harness.ends(had.deliveries[0].id, Outcome::Delivered, at(1)).await;
    let id = create_claimed(harness, OperationKind::Backfill).await;
    let late = harness.webhook_id();
    let send = |webhook_id: WebhookId, event_id| {
        let new = harness.delivery_id(at(0));
        let round = NewRound { id: new, webhook_id, format: PayloadFormat::Data, lane: RETRY };
        (new, Task::Send(event_id, round, Priority::Low))
    };
    let ((new, task), (_, doubled)) = (send(late, event.id), send(old, event.id));
    let unknown = send(late, redrive_core::EventId::from_bytes([9; 16])).1;
    assert_eq!(apply_step(harness, step(harness, id, vec![task, doubled, unknown])).await, done(1));
    let again = send(late, event.id).1;
    assert_eq!(apply_step(harness, step(harness, id, vec![again])).await, done(0));
    let sent = harness.delivery(new).await;
    assert_eq!((sent.event_id, sent.webhook_id, sent.round), (event.id, late, 1));
    assert_eq!((sent.replay_of, sent.priority, sent.due), (None, Priority::Low, Some(at(20))));
}

/// Returns everything that a scan finds, page by page.
async fn scan_all(harness: &Harness, tenant_id: &TenantId, scan: &Scan) -> Vec<DeliveryId> {
    let (mut found, mut after) = (Vec::new(), None);
    loop {
        let slice = Scan { after, ..scan.clone() };
        let page = harness.store().scan_deliveries(tenant_id.clone(), slice).await.unwrap();
        found.extend(page.found.iter().filter_map(|(position, _)| position.delivery_id));
        if page.next.is_none() {
            return found;
        }
        after = page.next;
    }
}

pub async fn scan_returns_each_delivery_once_oldest_first(harness: &Arc<Harness>) {
    let (a, b) = (harness.webhook_id(), harness.webhook_id());
    let mut all = BTreeSet::new();
    // Events without deliveries are skipped by the scan.
    for _ in 0..7 {
        harness.publish_new(harness.fan_out(harness.event(at(0)), &[])).await;
    }
    for time in 0..6 {
        let fan_out = harness.fan_out(
            harness.event(at(time)),
            &[(a, InitialState::Leased), (b, InitialState::Waiting(at(900)))],
        );
        harness.publish_new(fan_out.clone()).await;
        all.extend(fan_out.deliveries.iter().map(|delivery| (delivery.webhook_id, delivery.id)));
    }
    let other = harness.new_tenant("globex").await;
    for (_, delivery_id) in
        all.iter().filter(|(webhook_id, delivery_id)| *webhook_id == a && delivery_id.time() < at(4))
    {
        harness.ends(*delivery_id, Outcome::Dead(redrive_core::DeadReason::Exhausted), at(10)).await;
    }
    let of = |wanted: fn(Time) -> bool, webhook_id: Option<WebhookId>| -> BTreeSet<DeliveryId> {
        let named = all
            .iter()
            .filter(|(of, id)| webhook_id.is_none_or(|webhook_id| webhook_id == *of) && wanted(id.time()));
        named.map(|(_, id)| *id).collect()
    };
    let any = Scan {
        among: OperationTarget::Deliveries,
        webhook_id: None,
        failing_only: false,
        ids: None,
        from: None,
        to: None,
        after: None,
        limit: 3,
    };
    let cases = [
        (any.clone(), of(|_| true, None)),
        (Scan { webhook_id: Some(b), ..any.clone() }, of(|_| true, Some(b))),
        (
            Scan { from: Some(at(1)), to: Some(at(4)), ..any.clone() },
            of(|time| (at(1)..at(4)).contains(&time), None),
        ),
        (Scan { among: OperationTarget::Dead, ..any.clone() }, of(|time| time < at(4), Some(a))),
        (
            Scan { among: OperationTarget::Dead, from: Some(at(2)), ..any.clone() },
            of(|time| (at(2)..at(4)).contains(&time), Some(a)),
        ),
        (
            Scan { among: OperationTarget::Pending, webhook_id: Some(a), ..any.clone() },
            of(|time| time >= at(4), Some(a)),
        ),
        (Scan { among: OperationTarget::Pending, webhook_id: Some(b), ..any.clone() }, of(|_| true, Some(b))),
    ];
    let by_one = cases.clone().map(|(which, expected)| (Scan { limit: 1, ..which }, expected));
    for (which, expected) in cases.into_iter().chain(by_one) {
        let found = scan_all(harness, &harness.tenant_id, &which).await;
        assert!(found.is_sorted_by_key(DeliveryId::time), "oldest first: {which:?}");
        assert_eq!(found.len(), expected.len(), "{which:?}");
        assert_eq!(found.into_iter().collect::<BTreeSet<_>>(), expected, "{which:?}");
        assert_eq!(scan_all(harness, &other, &which).await, [], "{which:?}");
    }
    for among in [OperationTarget::Dead, OperationTarget::Deliveries] {
        let all = Scan { among, limit: 99, ..any.clone() };
        let page = harness.store().scan_deliveries(harness.tenant_id.clone(), all).await.unwrap();
        let reasons = page.found.iter().filter_map(|(_, one)| one.dead_reason);
        assert_eq!(reasons.collect::<Vec<_>>(), [redrive_core::DeadReason::Exhausted; 4], "{among:?}");
    }
    let heads = harness
        .store()
        .scan_events(harness.tenant_id.clone(), Some(at(1)), Some(at(5)), None, 2)
        .await
        .unwrap();
    assert_eq!(heads.iter().map(|head| head.id.time()).collect::<Vec<_>>(), [at(1), at(2)]);
    let after = Some(heads[1].id);
    let rest = harness
        .store()
        .scan_events(harness.tenant_id.clone(), Some(at(1)), Some(at(5)), after, 9)
        .await
        .unwrap();
    assert_eq!(rest.iter().map(|head| head.id.time()).collect::<Vec<_>>(), [at(3), at(4)]);
}

pub async fn scan_of_failing_deliveries_returns_dead_letters_and_failed_pending_ones(harness: &Arc<Harness>) {
    let fails = async |id: DeliveryId, outcome: Outcome, ended: i64| {
        let mut record = harness.outcome(id, 1, outcome, at(ended));
        record.attempt.as_mut().unwrap().failure_category = Some(redrive_core::FailureCategory::Timeout);
        harness.record(record).await;
    };
    let dead = |reason| Outcome::Dead(reason);
    let exhausted = redrive_core::DeadReason::Exhausted;
    let (old, letter, redriven) =
        (harness.leased(at(0)).await, harness.leased(at(1)).await, harness.leased(at(2)).await);
    for (id, ended) in [(old, 20), (letter, 30), (redriven, 30)] {
        fails(id, dead(exhausted), ended).await;
    }
    harness.retry(redriven, harness.redrive_options(harness.delivery_id(at(2))), at(40)).await;
    let retrying = harness.leased(at(3)).await;
    fails(retrying, Outcome::Retry { at: at(9_000) }, 35).await;
    let (arrived, cancelled) = (harness.leased(at(4)).await, harness.leased(at(5)).await);
    harness.ends(arrived, Outcome::Delivered, at(30)).await;
    harness.ends(cancelled, Outcome::Cancelled("x".into()), at(30)).await;
    harness.waiting(at(6), at(9_000)).await;
    let purged = harness.dead(at(7)).await;
    let id = create_claimed(harness, OperationKind::Purge).await;
    assert_eq!(apply_step(harness, step(harness, id, vec![Task::Purge(purged)])).await, done(1));
    let scan = Scan {
        among: OperationTarget::Deliveries,
        webhook_id: Some(harness.webhook_id),
        failing_only: true,
        ids: None,
        from: None,
        to: None,
        after: None,
        limit: 2,
    };
    assert_eq!(scan_all(harness, &harness.tenant_id, &scan).await, [old, letter, retrying]);
    let later = Scan { from: Some(at(1)), to: Some(at(3)), ..scan.clone() };
    assert_eq!(scan_all(harness, &harness.tenant_id, &later).await, [letter]);
    let other = harness.new_tenant("globex").await;
    assert_eq!(scan_all(harness, &other, &scan).await, []);
    let filter = |failed_from, failed_to| crate::DeliveryFilter {
        webhooks: vec![harness.webhook_id],
        failed_from,
        failed_to,
        ..crate::DeliveryFilter::default()
    };
    for (filter, expected) in [
        (filter(Some(at(0)), None), vec![retrying, letter, old]),
        (filter(Some(at(30)), None), vec![retrying, letter]),
        (filter(Some(at(20)), Some(at(30))), vec![old]),
        (filter(None, Some(at(31))), vec![letter, old]),
    ] {
        let listed = harness.store().list_deliveries(harness.tenant_id.clone(), filter.clone(), page(10));
        let listed: Vec<_> = listed.await.unwrap().found.iter().map(|one| one.id).collect();
        assert_eq!(listed, expected, "{filter:?}");
    }
}

pub async fn scan_of_named_deliveries_returns_those_of_the_tenant_once(harness: &Arc<Harness>) {
    let event = redrive_core::event::Event {
        idempotency_key: Some("key".into()),
        subject: Some("subject".into()),
        ..harness.event(at(2))
    };
    let new = harness.fan_out(event.clone(), &[(harness.webhook_id(), InitialState::Leased)]);
    harness.publish_new(new.clone()).await;
    let (first, second) = (harness.dead(at(0)).await, new.deliveries[0].id);
    let third = harness.dead(at(5)).await;
    let unknown = harness.delivery_id(at(1));
    let scan = Scan {
        among: OperationTarget::Dead,
        webhook_id: None,
        failing_only: false,
        ids: Some(vec![third, unknown, first, second, first]),
        from: None,
        to: None,
        after: None,
        limit: 2,
    };
    assert_eq!(scan_all(harness, &harness.tenant_id, &scan).await, [first, second, third]);
    let other = harness.new_tenant("globex").await;
    assert_eq!(scan_all(harness, &other, &scan).await, []);
    let none = Scan { ids: Some(Vec::new()), ..scan.clone() };
    assert_eq!(scan_all(harness, &harness.tenant_id, &none).await, [], "no delivery is named");
    let all = harness.store().scan_deliveries(harness.tenant_id.clone(), Scan { limit: 9, ..scan });
    let found = all.await.unwrap().found;
    let named = &found[1].1;
    assert_eq!((named.event_id, named.webhook_id), (event.id, new.deliveries[0].webhook_id));
    assert_eq!((named.idempotency_key.as_deref(), named.subject.as_deref()), (Some("key"), Some("subject")));
    assert_eq!((named.status_code, named.redriven_as), (None, None));
    assert!(!named.is_purged && !named.is_erased && !named.is_dead_letter() && found[0].1.is_dead_letter());
}
