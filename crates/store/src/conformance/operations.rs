//! Bulk operations: one node at a time, each step whole, nothing twice, nothing of other tenants.

use std::{collections::BTreeSet, sync::Arc};

use redrive_core::{
    DeliveryId, DeliveryStatus, OperationId, TenantId, Time, WebhookId,
    delivery::bulk_operation::{Among, OperationKind, OperationState, Selection},
    delivery::lane::Priority,
    event::PayloadFormat,
};

use super::{Bench, RETRY, at, page};
use crate::{
    Birth, Cancelled, Epoch, NewRound, Next, Operation, OperationOrder, OperationStep, Outcome, Recorded,
    Stepped, Tally, Task, Walk, WalkCursor,
};

async fn create(bench: &Bench, kind: OperationKind, start_at: Time) -> Operation {
    let order = OperationOrder {
        kind,
        among: Among::Dead,
        selection: Selection { event_types: vec!["a.b".into()], ..Selection::default() },
        rate: Some(7),
        priority: Some(Priority::High),
    };
    let operation = Operation {
        id: OperationId::new(at(1), &bench.next()),
        tenant: bench.tenant.clone(),
        order,
        state: OperationState::Scheduled,
        created_by: "jane \u{1f511}".into(),
        created_at: at(1),
        start_at,
        began_at: None,
        finished_at: None,
        updated_at: at(1),
        held_by: None,
        cursor: None,
        tally: Tally::default(),
        pace_from: None,
    };
    bench.store().create_operation(operation.clone()).await.unwrap();
    operation
}

async fn find(bench: &Bench, id: OperationId) -> Operation {
    bench.store().operation(bench.tenant.clone(), id).await.unwrap().unwrap()
}

async fn take(bench: &Bench, epoch: Epoch, now: i64) -> Vec<OperationId> {
    let taken = bench.store().take_operations(epoch, Vec::new(), at(now), 10).await.unwrap();
    taken.into_iter().map(|operation| operation.id).collect()
}

/// One that this bench's epoch carries on.
async fn taken(bench: &Bench, kind: OperationKind) -> OperationId {
    let made = create(bench, kind, at(2)).await;
    assert!(take(bench, bench.epoch, 10).await.contains(&made.id));
    made.id
}

fn step(bench: &Bench, id: OperationId, tasks: Vec<Task>) -> OperationStep {
    let (tenant, epoch) = (bench.tenant.clone(), bench.epoch);
    OperationStep { id, tenant, epoch, tasks, passed: 0, cursor: None, then: None, at: at(20) }
}

async fn walk_step(bench: &Bench, step: OperationStep) -> Stepped {
    bench.store().step_operation(step).await.unwrap()
}

fn done(done: usize) -> Stepped {
    Stepped::Done { done, to_call_off: Vec::new() }
}

fn retry(bench: &Bench, delivery: DeliveryId) -> (DeliveryId, Task) {
    let new = bench.delivery_id(delivery.time());
    (new, Task::Retry(delivery, bench.again(new)))
}

pub async fn an_operation_is_kept_as_it_was_asked_for(bench: &mut Arc<Bench>) {
    let made = create(bench, OperationKind::Retry, at(5)).await;
    let later = create(bench, OperationKind::Purge, at(5)).await;
    Bench::reopen(bench).await;
    assert_eq!(find(bench, made.id).await, made);
    let listed = bench.store().list_operations(bench.tenant.clone(), page(10)).await.unwrap();
    let mut expected = [made.clone(), later];
    expected.sort_by_key(|operation| std::cmp::Reverse(operation.id));
    assert_eq!(listed, expected);
    let other = bench.new_tenant("globex").await;
    assert_eq!(bench.store().operation(other.clone(), made.id).await.unwrap(), None);
    assert_eq!(bench.store().list_operations(other, page(10)).await.unwrap(), []);
}

pub async fn one_node_at_a_time_carries_an_operation_on(bench: &Arc<Bench>) {
    let made = create(bench, OperationKind::Retry, at(5)).await;
    let other = bench.new_epoch().await;
    assert_eq!(take(bench, bench.epoch, 4).await, [], "its time has not come");
    assert_eq!(take(bench, bench.epoch, 5).await, [made.id]);
    let running = find(bench, made.id).await;
    assert_eq!((running.state, running.began_at), (OperationState::Running, Some(at(5))));
    assert_eq!((running.held_by, running.pace_from), (Some(bench.epoch), Some((at(5), 0))));
    assert_eq!(take(bench, other, 6).await, [], "somebody has it");
    assert_eq!(take(bench, bench.epoch, 6).await, [made.id], "who has it may take it up again");
    let but = bench.store().take_operations(bench.epoch, vec![made.id], at(6), 10).await.unwrap();
    assert_eq!(but, [], "unless it knows");
    bench.rescue(bench.epoch, at(7)).await;
    assert_eq!(take(bench, other, 8).await, [made.id], "the dead carry nothing on");
    let running = find(bench, made.id).await;
    assert_eq!((running.held_by, running.began_at), (Some(other), Some(at(5))), "it began but once");
}

pub async fn a_step_is_taken_by_the_holder_while_it_runs(bench: &Arc<Bench>) {
    let dead = bench.dead(at(0)).await;
    let id = taken(bench, OperationKind::Retry).await;
    let (_, task) = retry(bench, dead);
    let other = bench.new_epoch().await;
    let foreign = OperationStep { epoch: other, ..step(bench, id, vec![task.clone()]) };
    assert_eq!(walk_step(bench, foreign).await, Stepped::Lost);
    let turn = |from, to| bench.store().turn_operation(bench.tenant.clone(), id, from, to, at(15));
    assert!(turn(OperationState::Running, OperationState::Paused).await.unwrap());
    assert!(!turn(OperationState::Running, OperationState::Paused).await.unwrap(), "it is not running");
    assert_eq!(walk_step(bench, step(bench, id, vec![task.clone()])).await, Stepped::Lost);
    assert_eq!(bench.dead_list().await, [dead], "nothing was done");
    assert!(turn(OperationState::Paused, OperationState::Running).await.unwrap());
    assert_eq!(walk_step(bench, step(bench, id, vec![task])).await, done(1));
    assert_eq!(bench.dead_list().await, []);
}

pub async fn a_step_makes_one_round_of_each_whoever_else_does(bench: &Arc<Bench>) {
    let (one, two) = (bench.dead(at(0)).await, bench.dead(at(1)).await);
    let waits = bench.waiting(at(0), at(5000)).await;
    let (first, second) =
        (taken(bench, OperationKind::Retry).await, taken(bench, OperationKind::Retry).await);
    let ((new, task), (_, again)) = (retry(bench, one), retry(bench, one));
    assert_eq!(walk_step(bench, step(bench, first, vec![task])).await, done(1));
    let ((newer, other), (_, due)) = (retry(bench, two), retry(bench, waits));
    let unknown = retry(bench, bench.delivery_id(at(0))).1;
    let place = WalkCursor { event: bench.delivery(two).await.event, delivery: Some(two) };
    let tasks = vec![again, other, due, unknown];
    let last = OperationStep { cursor: Some(place), ..step(bench, second, tasks) };
    assert_eq!(walk_step(bench, last).await, done(2), "one was redriven, one is unknown");
    let rounds = (bench.delivery(one).await.redriven_as, bench.delivery(two).await.redriven_as);
    assert_eq!(rounds, (Some(new), Some(newer)));
    assert_eq!(bench.delivery(newer).await.round, 2);
    assert_eq!(bench.delivery(waits).await.due, Some(at(20)), "what waits is due now");
    let operation = find(bench, second).await;
    assert_eq!((operation.tally.done, operation.tally.skipped), (2, 2));
    assert_eq!((operation.cursor, operation.updated_at), (Some(place), at(20)));
    assert_eq!(bench.dead_list().await, []);
}

pub async fn it_is_counted_how_queued_deliveries_went(bench: &Arc<Bench>) {
    let id = taken(bench, OperationKind::Retry).await;
    let (mut tasks, mut news) = (Vec::new(), Vec::new());
    for _ in 0..4 {
        let (new, task) = retry(bench, bench.dead(at(0)).await);
        news.push(new);
        tasks.push(task);
    }
    bench.store().count_operation(id, bench.epoch, 4).await.unwrap();
    let last = OperationStep { then: Some(OperationState::Delivering), ..step(bench, id, tasks) };
    assert_eq!(walk_step(bench, last).await, done(4));
    let settle = |after| bench.store().settle_operation(id, bench.epoch, after, 10);
    assert_eq!(settle(None).await.unwrap().open, 4);
    assert_eq!(bench.claim(at(20)).await.len(), 4);
    bench.ends(news[0], Next::Delivered, at(30)).await;
    bench.ends(news[1], Next::Dead { reason: redrive_core::DeadReason::Permanent }, at(30)).await;
    bench.ends(news[2], Next::Cancelled { reason: "x".into() }, at(30)).await;
    assert_eq!(settle(None).await.unwrap().open, 1);
    assert_eq!(settle(None).await.unwrap().open, 1, "twice is once");
    let tally = find(bench, id).await.tally;
    assert_eq!((tally.delivered, tally.failed, tally.cancelled, tally.total), (1, 1, 1, Some(4)));
    assert_eq!(tally.errors.values().sum::<u64>(), 1);
    bench.ends(news[3], Next::Delivered, at(31)).await;
    assert_eq!(settle(None).await.unwrap().open, 0);
    bench.store().close_operation(id, bench.epoch, at(40)).await.unwrap();
    let over = find(bench, id).await;
    assert_eq!((over.state, over.finished_at), (OperationState::Completed, Some(at(40))));
    assert_eq!((over.held_by, over.tally.delivered), (None, 2));
    assert_eq!(take(bench, bench.epoch, 50).await, []);
    assert_eq!(bench.store().forget_operations(at(40), 10).await.unwrap(), 0);
    assert_eq!(bench.store().forget_operations(at(41), 10).await.unwrap(), 1);
}

pub async fn what_was_queued_is_looked_at_in_slices(bench: &Arc<Bench>) {
    let id = taken(bench, OperationKind::Retry).await;
    let mut tasks = Vec::new();
    for _ in 0..5 {
        tasks.push(retry(bench, bench.dead(at(0)).await).1);
    }
    walk_step(bench, step(bench, id, tasks)).await;
    let (mut after, mut slices, mut open) = (None, 0, 0);
    loop {
        let settled = bench.store().settle_operation(id, bench.epoch, after, 2).await.unwrap();
        (slices, open, after) = (slices + 1, open + settled.open, settled.next);
        if after.is_none() {
            break;
        }
    }
    assert_eq!((slices, open), (3, 5));
}

pub async fn purged_letters_leave_the_list_and_stay_in_history(bench: &Arc<Bench>) {
    let (dead, kept) = (bench.dead(at(0)).await, bench.dead(at(1)).await);
    let arrived = bench.leased(at(0)).await;
    bench.ends(arrived, Next::Delivered, at(1)).await;
    let id = taken(bench, OperationKind::Purge).await;
    let tasks = vec![Task::Purge(dead), Task::Purge(arrived), Task::Purge(dead)];
    assert_eq!(walk_step(bench, step(bench, id, tasks)).await, done(1));
    assert_eq!(bench.dead_list().await, [kept]);
    let purged = bench.delivery(dead).await;
    assert_eq!((purged.status, purged.purged_at), (DeliveryStatus::Dead, Some(at(20))));
    assert_eq!(bench.delivery(arrived).await.purged_at, None);
    let (new, task) = retry(bench, dead);
    let Task::Retry(letter, again) = task.clone() else { unreachable!() };
    let only_letters = Task::Retry(letter, crate::Again { unless_purged: true, ..again });
    assert_eq!(walk_step(bench, step(bench, id, vec![only_letters])).await, done(0), "but not by accident");
    assert_eq!(walk_step(bench, step(bench, id, vec![task])).await, done(1), "it can still be sent again");
    assert_eq!(bench.delivery(new).await.replay_of, Some(dead));
}

pub async fn many_are_called_off_at_once(bench: &Arc<Bench>) {
    let (waits, leased) = (bench.waiting(at(0), at(5000)).await, bench.leased(at(0)).await);
    let behind = bench.waiting_in(&super::order("k"), at(0), at(0)).await;
    let dead = bench.dead(at(0)).await;
    let id = taken(bench, OperationKind::Cancel).await;
    let cancel = |delivery| Task::Cancel(delivery, "not wanted".into());
    let tasks = vec![cancel(waits), cancel(leased), cancel(behind), cancel(dead)];
    let webhook = bench.delivery(leased).await.webhook;
    let stepped = walk_step(bench, step(bench, id, tasks)).await;
    assert_eq!(stepped, Stepped::Done { done: 3, to_call_off: vec![(webhook, leased)] });
    for ended in [waits, behind] {
        let ended = bench.delivery(ended).await;
        assert_eq!((ended.status, ended.ended_at), (DeliveryStatus::Cancelled, Some(at(20))));
        assert_eq!(ended.cancel_reason.as_deref(), Some("not wanted"));
    }
    assert_eq!(bench.status(leased).await, DeliveryStatus::Pending, "a node has it");
    assert_eq!(bench.cancel(leased, at(21)).await, Cancelled::Requested);
    assert_eq!(bench.due_lanes(at(9000)).await, [], "nothing is left to look for");
    let late = bench.outcome(leased, 1, Next::Delivered, at(30));
    let known = Outcome { knows_cancel: true, ..late };
    assert_eq!(bench.record(known).await, Recorded::Done { config_version: None });
}

pub async fn an_event_is_sent_to_a_new_webhook_once(bench: &Arc<Bench>) {
    let event = bench.event(at(0));
    let had = bench.fan_out(event.clone(), &[(bench.webhook_id(), Birth::Leased)]);
    let old = had.deliveries[0].webhook;
    bench.publish_new(had.clone()).await;
    bench.ends(had.deliveries[0].id, Next::Delivered, at(1)).await;
    let id = taken(bench, OperationKind::Backfill).await;
    let late = bench.webhook_id();
    let send = |webhook: WebhookId, event| {
        let new = bench.delivery_id(at(0));
        let round = NewRound { id: new, webhook, format: PayloadFormat::Data, lane: RETRY };
        (new, Task::Send(event, round, Priority::Low))
    };
    let ((new, task), (_, doubled)) = (send(late, event.id), send(old, event.id));
    let unknown = send(late, redrive_core::EventId::from_bytes([9; 16])).1;
    assert_eq!(walk_step(bench, step(bench, id, vec![task, doubled, unknown])).await, done(1));
    let again = send(late, event.id).1;
    assert_eq!(walk_step(bench, step(bench, id, vec![again])).await, done(0));
    let sent = bench.delivery(new).await;
    assert_eq!((sent.event, sent.webhook, sent.round), (event.id, late, 1));
    assert_eq!((sent.replay_of, sent.priority, sent.due), (None, Priority::Low, Some(at(20))));
}

/// Everything that a walk comes upon, in slices.
async fn walk(bench: &Bench, tenant: &TenantId, walk: &Walk) -> Vec<DeliveryId> {
    let (mut found, mut after) = (Vec::new(), None);
    loop {
        let slice = Walk { after, ..walk.clone() };
        let walked = bench.store().walk_deliveries(tenant.clone(), slice).await.unwrap();
        found.extend(walked.found.iter().filter_map(|(place, _)| place.delivery));
        if walked.next.is_none() {
            return found;
        }
        after = walked.next;
    }
}

pub async fn walks_come_upon_everything_once_from_the_oldest_on(bench: &Arc<Bench>) {
    let (a, b) = (bench.webhook_id(), bench.webhook_id());
    let mut all = BTreeSet::new();
    // Events that nobody wanted are walked past.
    for _ in 0..7 {
        bench.publish_new(bench.fan_out(bench.event(at(0)), &[])).await;
    }
    for time in 0..6 {
        let fan_out =
            bench.fan_out(bench.event(at(time)), &[(a, Birth::Leased), (b, Birth::Waiting(at(900)))]);
        bench.publish_new(fan_out.clone()).await;
        all.extend(fan_out.deliveries.iter().map(|delivery| (delivery.webhook, delivery.id)));
    }
    let other = bench.new_tenant("globex").await;
    for (_, delivery) in all.iter().filter(|(webhook, delivery)| *webhook == a && delivery.time() < at(4)) {
        bench.ends(*delivery, Next::Dead { reason: redrive_core::DeadReason::Exhausted }, at(10)).await;
    }
    let of = |wanted: fn(Time) -> bool, webhook: Option<WebhookId>| -> BTreeSet<DeliveryId> {
        let named =
            all.iter().filter(|(of, id)| webhook.is_none_or(|webhook| webhook == *of) && wanted(id.time()));
        named.map(|(_, id)| *id).collect()
    };
    let any = Walk { among: Among::Deliveries, webhook: None, from: None, to: None, after: None, limit: 3 };
    let cases = [
        (any.clone(), of(|_| true, None)),
        (Walk { webhook: Some(b), ..any.clone() }, of(|_| true, Some(b))),
        (
            Walk { from: Some(at(1)), to: Some(at(4)), ..any.clone() },
            of(|time| (at(1)..at(4)).contains(&time), None),
        ),
        (Walk { among: Among::Dead, ..any.clone() }, of(|time| time < at(4), Some(a))),
        (
            Walk { among: Among::Dead, from: Some(at(2)), ..any.clone() },
            of(|time| (at(2)..at(4)).contains(&time), Some(a)),
        ),
        (Walk { among: Among::Pending, webhook: Some(a), ..any.clone() }, of(|time| time >= at(4), Some(a))),
        (Walk { among: Among::Pending, webhook: Some(b), ..any.clone() }, of(|_| true, Some(b))),
    ];
    let by_one = cases.clone().map(|(which, expected)| (Walk { limit: 1, ..which }, expected));
    for (which, expected) in cases.into_iter().chain(by_one) {
        let found = walk(bench, &bench.tenant, &which).await;
        assert!(found.is_sorted_by_key(DeliveryId::time), "oldest first: {which:?}");
        assert_eq!(found.len(), expected.len(), "{which:?}");
        assert_eq!(found.into_iter().collect::<BTreeSet<_>>(), expected, "{which:?}");
        assert_eq!(walk(bench, &other, &which).await, [], "{which:?}");
    }
    for among in [Among::Dead, Among::Deliveries] {
        let all = Walk { among, limit: 99, ..any.clone() };
        let walked = bench.store().walk_deliveries(bench.tenant.clone(), all).await.unwrap();
        let reasons = walked.found.iter().filter_map(|(_, one)| one.dead_reason);
        assert_eq!(reasons.collect::<Vec<_>>(), [redrive_core::DeadReason::Exhausted; 4], "{among:?}");
    }
    let heads =
        bench.store().walk_events(bench.tenant.clone(), Some(at(1)), Some(at(5)), None, 2).await.unwrap();
    assert_eq!(heads.iter().map(|head| head.id.time()).collect::<Vec<_>>(), [at(1), at(2)]);
    let after = Some(heads[1].id);
    let rest =
        bench.store().walk_events(bench.tenant.clone(), Some(at(1)), Some(at(5)), after, 9).await.unwrap();
    assert_eq!(rest.iter().map(|head| head.id.time()).collect::<Vec<_>>(), [at(3), at(4)]);
}
