//! Retention: old data is pruned in steps of any size; newer, pending and other tenants' data stays.

use redrive_core::delivery::outcome::Outcome;
use std::{collections::BTreeSet, sync::Arc};

use redrive_core::{
    DeadReason, DeliveryId, DeliveryStatus, EventId, TenantId, Time, event::Event,
    protection::breaker::SavedCircuit,
};

use super::{Harness, at, closed, page, together};
use crate::{
    DeliveryCursor, DeliveryFilter, InitialState, NewEvent, PageRequest, PartitionDrop, PruneCounts,
    PruneRequest, RedriveResult, ReplayResult,
};

const DAY: i64 = 24 * 3600 * 1000;

fn old<C>(harness: &Harness, before: Time, after: Option<C>, rows: usize) -> PruneRequest<C> {
    PruneRequest { tenant_id: harness.tenant_id.clone(), before, after, rows, archive: false }
}

/// Prunes a tenant's old events in at most `steps` steps of `rows` rows.
async fn prune_of(
    harness: &Harness,
    tenant_id: &TenantId,
    before: Time,
    rows: usize,
    steps: usize,
) -> PruneCounts {
    let (mut counts, mut after) = (PruneCounts::default(), None);
    for _ in 0..steps {
        let request = PruneRequest { tenant_id: tenant_id.clone(), before, after, rows, archive: false };
        let step = harness.store().prune_events(request).await.unwrap();
        counts.events += step.left.events;
        counts.deliveries += step.left.deliveries;
        counts.attempts += step.left.attempts;
        if step.finished {
            break;
        }
        assert!(step.last > after || step.left.rows() > 0, "each step makes progress");
        after = step.last;
    }
    counts
}

async fn prune(harness: &Harness, before: Time) -> PruneCounts {
    prune_of(harness, &harness.tenant_id, before, 1_000, usize::MAX).await
}

async fn prune_dead(harness: &Harness, before: Time, rows: usize) -> usize {
    let (mut pruned, mut after) = (0, None);
    loop {
        let step = harness.store().prune_dead(old(harness, before, after, rows)).await.unwrap();
        pruned += step.left.deliveries;
        if step.finished {
            return pruned;
        }
        after = step.last;
    }
}

async fn events(harness: &Harness, tenant_id: &TenantId) -> BTreeSet<EventId> {
    let all = harness.store().list_events(tenant_id.clone(), Default::default(), page(10_000)).await.unwrap();
    all.found.into_iter().map(|stored| stored.event.id).collect()
}

async fn delivery_ids(harness: &Harness) -> BTreeSet<DeliveryId> {
    let all =
        harness.store().list_deliveries(harness.tenant_id.clone(), Default::default(), page(10_000)).await;
    all.unwrap().found.into_iter().map(|delivery| delivery.id).collect()
}

async fn is_pruned(harness: &Harness, event_id: EventId, delivery_id: DeliveryId) -> bool {
    let tenant = || harness.tenant_id.clone();
    let store = harness.store();
    let traces = [
        store.event(tenant(), event_id).await.unwrap().is_some(),
        store.delivery(tenant(), delivery_id).await.unwrap().is_some(),
        store.attempts(tenant(), delivery_id).await.unwrap().is_some(),
        store.attempts_of_event(tenant(), event_id).await.unwrap().is_some(),
        harness.dead_list().await.contains(&delivery_id),
    ];
    let pruned = traces.iter().all(|there| !there);
    assert!(pruned || traces[..4].iter().all(|there| *there), "the event is only partly pruned: {traces:?}");
    pruned
}

/// Creates an event whose delivery has one of seven histories.
async fn publish_with_history(harness: &Harness, time: Time, index: usize) -> (EventId, DeliveryId) {
    let initial_state = if index == 0 { InitialState::Waiting(at(5_000)) } else { InitialState::Leased };
    let new = harness.new_event(time, initial_state);
    let (event_id, delivery_id) = (new.event.id, new.deliveries[0].id);
    harness.publish_new(new).await;
    match index {
        2 => harness.ends(delivery_id, Outcome::Delivered, time).await,
        3 => harness.ends(delivery_id, Outcome::Retry { at: at(9_000) }, time).await,
        4 => harness.ends(delivery_id, Outcome::Dead(DeadReason::Exhausted), time).await,
        5 => harness.ends(delivery_id, Outcome::Cancelled("enough".into()), time).await,
        // Delivered, then redriven: the new round is pending.
        6 => {
            harness.ends(delivery_id, Outcome::Delivered, time).await;
            let options = harness.redrive_options(harness.delivery_id(time));
            assert!(matches!(harness.retry(delivery_id, options, time).await, RedriveResult::NewRound(_)));
        }
        // Waiting since it was created, or leased.
        _ => {}
    }
    (event_id, delivery_id)
}

/// Returns whether a delivery with this history has ended.
fn is_ended(index: usize) -> bool {
    matches!(index, 2 | 4 | 5)
}

pub async fn old_event_is_pruned_with_all_dependent_rows(harness: &Arc<Harness>) {
    for index in [2, 4, 5] {
        let (event_id, delivery_id) = publish_with_history(harness, at(index as i64), index).await;
        assert!(!is_pruned(harness, event_id, delivery_id).await);
        assert_eq!(prune(harness, at(100)).await, PruneCounts { events: 1, deliveries: 1, attempts: 1 });
        assert!(is_pruned(harness, event_id, delivery_id).await);
    }
    assert_eq!(harness.store().stats().await.unwrap().dead, 0);
    assert_eq!(prune(harness, at(100)).await, PruneCounts::default());
    assert_eq!(harness.store().oldest_event(harness.tenant_id.clone()).await.unwrap(), None);
}

pub async fn retention_is_exact_to_the_millisecond(harness: &Arc<Harness>) {
    let (event_id, delivery_id) = publish_with_history(harness, at(50), 2).await;
    prune(harness, at(50)).await;
    assert!(!is_pruned(harness, event_id, delivery_id).await);
    assert_eq!(harness.store().oldest_event(harness.tenant_id.clone()).await.unwrap(), Some(at(50)));
    prune(harness, at(51)).await;
    assert!(is_pruned(harness, event_id, delivery_id).await);
}

pub async fn pending_deliveries_are_never_pruned(harness: &Arc<Harness>) {
    let mut created = Vec::new();
    for n in 0..35 {
        let index = n % 7;
        created.push((index, publish_with_history(harness, at(n as i64), index).await));
    }
    // One pending delivery is enough to keep an event with several.
    let both = harness.fan_out(
        harness.event(at(40)),
        &[
            (harness.webhook_id, InitialState::Leased),
            (harness.webhook_id(), InitialState::Waiting(at(9_000))),
        ],
    );
    harness.publish_new(both.clone()).await;
    harness.ends(both.deliveries[0].id, Outcome::Delivered, at(41)).await;
    prune(harness, at(10_000)).await;
    prune_dead(harness, at(10_000), 100).await;
    for (index, (event_id, delivery_id)) in created {
        assert_eq!(is_pruned(harness, event_id, delivery_id).await, is_ended(index), "{index}");
    }
    assert_eq!(harness.attempts(both.deliveries[0].id).await.len(), 1);
    // `drain` sends the pending deliveries at the end of the case, so their payloads must still exist.
}

pub async fn event_is_pruned_once_all_deliveries_have_ended(harness: &Arc<Harness>) {
    let (event_id, first) = publish_with_history(harness, at(0), 6).await;
    assert_eq!(prune(harness, at(1_000)).await, PruneCounts::default());
    let late = harness.claim_one(at(10)).await.id;
    assert_eq!(prune(harness, at(1_000)).await, PruneCounts::default(), "leased");
    harness.ends(late, Outcome::Delivered, at(11)).await;
    assert_eq!(prune(harness, at(1_000)).await, PruneCounts { events: 1, deliveries: 2, attempts: 2 });
    assert!(is_pruned(harness, event_id, first).await);
}

pub async fn pruning_leaves_other_tenants_alone(harness: &Arc<Harness>) {
    let globex = harness.new_tenant("globex").await;
    let version = harness.store().config_changes(globex.clone(), 0, 10).await.unwrap().unwrap().version;
    let event = Event { tenant_id: globex.clone(), ..harness.event(at(0)) };
    let theirs = event.id;
    harness.publish_new(NewEvent { config_version: version, ..harness.fan_out(event, &[]) }).await;
    publish_with_history(harness, at(0), 2).await;
    publish_with_history(harness, at(0), 4).await;
    prune_dead(harness, at(1_000), 10).await;
    prune(harness, at(1_000)).await;
    assert_eq!(events(harness, &harness.tenant_id).await, BTreeSet::new());
    assert_eq!(events(harness, &globex).await, BTreeSet::from([theirs]));
    let counts = prune_of(harness, &globex, at(1_000), 10, 10).await;
    assert_eq!(counts, PruneCounts { events: 1, ..PruneCounts::default() });
}

pub async fn dead_letters_are_pruned_before_their_events(harness: &Arc<Harness>) {
    let both = harness.fan_out(
        harness.event(at(0)),
        &[(harness.webhook_id, InitialState::Leased), (harness.webhook_id(), InitialState::Leased)],
    );
    harness.publish_new(both.clone()).await;
    let [dead, arrived] = [both.deliveries[0].id, both.deliveries[1].id];
    // The time of death counts, not the time of publishing.
    harness.ends(dead, Outcome::Dead(DeadReason::Exhausted), at(500)).await;
    let outcome = harness.outcome(arrived, 1, Outcome::Delivered, at(1));
    harness.record(crate::OutcomeRecord { webhook_id: both.deliveries[1].webhook_id, ..outcome }).await;
    let (_, redriven) = publish_with_history(harness, at(1), 4).await;
    assert!(matches!(
        harness.retry(redriven, harness.redrive_options(harness.delivery_id(at(1))), at(2)).await,
        RedriveResult::NewRound(_)
    ));

    assert_eq!(prune_dead(harness, at(500), 10).await, 0);
    assert_eq!(harness.dead_list().await, [dead]);
    assert_eq!(prune_dead(harness, at(501), 10).await, 1);
    assert_eq!(harness.dead_list().await, []);
    let gone = harness.store().attempts(harness.tenant_id.clone(), dead).await.unwrap();
    assert_eq!(gone, None);
    assert_eq!(harness.attempts(arrived).await.len(), 1, "its event and the other deliveries are kept");
    assert_eq!(
        harness.status(redriven).await,
        DeliveryStatus::Dead,
        "a redriven delivery is history and not a dead letter"
    );
    assert_eq!(prune_dead(harness, at(501), 10).await, 0);
    assert_eq!(
        harness.retry(dead, harness.redrive_options(harness.delivery_id(at(0))), at(600)).await,
        RedriveResult::NotFound
    );
}

pub async fn dead_letters_are_pruned_in_bounded_steps(harness: &Arc<Harness>) {
    for n in 0..23 {
        // Some died late: they are scanned and stay.
        let id = harness.leased(at(n)).await;
        let died = if n % 5 == 0 { at(900) } else { at(n) };
        harness.ends(id, Outcome::Dead(DeadReason::Exhausted), died).await;
    }
    let step = harness.store().prune_dead(old(harness, at(500), None, 4)).await.unwrap();
    assert!(!step.finished && (1..=4).contains(&step.left.deliveries), "{step:?}");
    assert_eq!(step.left.deliveries + prune_dead(harness, at(500), 4).await, 18);
    assert_eq!(harness.dead_list().await.len(), 5);
}

pub async fn event_with_many_deliveries_is_pruned_in_several_steps(harness: &Arc<Harness>) {
    let to: Vec<_> = (0..25).map(|_| (harness.webhook_id(), InitialState::Leased)).collect();
    let new = harness.fan_out(harness.event(at(0)), &to);
    harness.publish_new(new.clone()).await;
    for delivery in &new.deliveries {
        let outcome = harness.outcome(delivery.id, 1, Outcome::Delivered, at(1));
        harness.record(crate::OutcomeRecord { webhook_id: delivery.webhook_id, ..outcome }).await;
    }
    let step = harness.store().prune_events(old(harness, at(10), None, 10)).await.unwrap();
    assert_eq!(step.left.events, 0, "the event is deleted after its deliveries");
    assert!(!step.finished && (1..=20).contains(&step.left.rows()), "{step:?}");
    prune_of(harness, &harness.tenant_id, at(10), 10, 100).await;
    assert!(is_pruned(harness, new.event.id, new.deliveries[0].id).await);
}

pub async fn interrupted_pruning_reaches_the_same_result(harness: &mut Arc<Harness>) {
    let (mut stay, mut go) = (BTreeSet::new(), BTreeSet::new());
    for n in 0..42_usize {
        // Every third event is too new to be pruned.
        let young = n % 3 == 0;
        let time = at(if young { 2_000 } else { 0 } + n as i64);
        let (event_id, _) = publish_with_history(harness, time, n % 7).await;
        if !young && is_ended(n % 7) {
            go.insert(event_id)
        } else {
            stay.insert(event_id)
        };
    }
    for steps in 0.. {
        // A step may have any size, and the process may be killed after any step.
        prune_of(harness, &harness.tenant_id, at(1_000), 1 + steps % 5, steps / 2).await;
        Harness::reopen(harness).await;
        let there = events(harness, &harness.tenant_id).await;
        assert!(stay.is_subset(&there), "no unexpired event is pruned");
        if there == stay {
            break;
        }
        assert!(steps < 200, "{} events are left", there.len() - stay.len());
    }
    assert_eq!(prune(harness, at(1_000)).await, PruneCounts::default(), "nothing is left to prune");
    assert_eq!(events(harness, &harness.tenant_id).await, stay);
}

pub async fn concurrent_pruners_prune_each_event_once(harness: &Arc<Harness>) {
    let mut stay = BTreeSet::new();
    for n in 0..70 {
        let (event_id, _) = publish_with_history(harness, at(n), n as usize % 7).await;
        if !is_ended(n as usize % 7) {
            stay.insert(event_id);
        }
    }
    let pruner = |rows| {
        let harness = harness.clone();
        async move { prune_of(&harness, &harness.tenant_id, at(1_000), rows, 1_000).await.events }
    };
    let pruned: usize = together([2, 3, 5, 7].map(pruner)).await.into_iter().sum();
    // Concurrent pruners skip events that another one is pruning; the next pass prunes them.
    let rest = prune(harness, at(1_000)).await.events;
    assert_eq!(pruned + rest, 70 - stay.len(), "each event is pruned once");
    assert_eq!(events(harness, &harness.tenant_id).await, stay);
}

pub async fn pruned_delivery_cannot_be_retried_replayed_or_cancelled(harness: &Arc<Harness>) {
    let (event_id, delivery_id) = publish_with_history(harness, at(0), 4).await;
    prune(harness, at(1)).await;
    let options = harness.redrive_options(harness.delivery_id(at(0)));
    assert_eq!(harness.retry(delivery_id, options, at(5)).await, RedriveResult::NotFound);
    let replay = harness.store().replay(harness.tenant_id.clone(), event_id, Vec::new(), None, at(5));
    assert_eq!(replay.await.unwrap(), ReplayResult::NotFound);
    assert_eq!(harness.cancel(delivery_id, at(5)).await, crate::CancelResult::NotFound);
}

pub async fn concurrent_retry_keeps_the_event_or_is_not_found(harness: &Arc<Harness>) {
    let mut created = Vec::new();
    for n in 0..60 {
        created.push(publish_with_history(harness, at(n), if n % 2 == 0 { 2 } else { 4 }).await);
    }
    let pruner = tokio::spawn({
        let harness = harness.clone();
        async move {
            prune_dead(&harness, at(1_000), 3).await;
            prune_of(&harness, &harness.tenant_id, at(1_000), 3, 1_000).await;
        }
    });
    let retry = |(event_id, delivery_id): (EventId, DeliveryId)| {
        let harness = harness.clone();
        async move {
            let options = harness.redrive_options(harness.delivery_id(event_id.time()));
            (event_id, harness.retry(delivery_id, options, at(2_000)).await)
        }
    };
    // From newest to oldest, so that retries and pruning overlap.
    let responses = together(created.into_iter().rev().map(retry)).await;
    pruner.await.unwrap();
    let there = events(harness, &harness.tenant_id).await;
    for (event_id, response) in responses {
        match response {
            RedriveResult::NewRound(round) => {
                assert!(there.contains(&event_id));
                assert_eq!(harness.status(round).await, DeliveryStatus::Pending);
            }
            RedriveResult::NotFound => {}
            other => panic!("{other:?}"),
        }
    }
}

pub async fn paging_continues_during_pruning(harness: &Arc<Harness>) {
    for n in 0..40 {
        publish_with_history(harness, at(n), 2).await;
    }
    let mut seen = Vec::new();
    let mut after = None;
    loop {
        let request = PageRequest { after, ..page(7) };
        let part = harness
            .store()
            .list_deliveries(harness.tenant_id.clone(), DeliveryFilter::default(), request)
            .await;
        let part = part.unwrap().found;
        let Some(last) = part.last() else { break };
        after = Some(DeliveryCursor { event_id: last.event_id, delivery_id: last.id });
        seen.extend(part.iter().map(|delivery| delivery.id));
        prune(harness, at(seen.len() as i64)).await;
    }
    let distinct: BTreeSet<_> = seen.iter().copied().collect();
    assert_eq!(distinct.len(), seen.len(), "no delivery is listed twice");
    assert!(delivery_ids(harness).await.is_subset(&distinct), "every remaining delivery is listed");
}

pub async fn retention_by_tenant_includes_deleted_tenants(harness: &Arc<Harness>) {
    let globex = harness.new_tenant("globex").await;
    let mut tenant = harness.store().tenant(globex.clone()).await.unwrap().unwrap();
    tenant.rules.quotas.retention_days = Some(7);
    assert!(harness.store().change_tenant(tenant).await.unwrap());
    assert!(harness.store().delete_tenant(globex.clone(), at(1)).await.unwrap());
    let mut reported = Vec::new();
    loop {
        let after = reported.last().map(|(tenant_id, _): &(TenantId, _)| tenant_id.clone());
        let part = harness.store().retention_by_tenant(after, 2).await.unwrap();
        if part.is_empty() {
            break;
        }
        reported.extend(part);
    }
    let days: Vec<_> =
        reported.iter().map(|(id, rules)| (id.as_str(), rules.quotas.retention_days)).collect();
    assert_eq!(days, [("acme", None), ("default", None), ("globex", Some(7))]);
}

pub async fn ended_circuit_periods_are_pruned(harness: &Arc<Harness>) {
    let other = harness.new_webhook().await.id;
    for (webhook_id, start) in [(harness.webhook_id, 0), (harness.webhook_id, 100), (other, 0), (other, 300)]
    {
        let generation = start as u64 + 1;
        let opened = SavedCircuit {
            state: redrive_core::protection::breaker::CircuitState::Open,
            generation,
            since: at(start),
            until: Some(at(start + 40)),
            ..closed()
        };
        harness.store().set_circuit(harness.tenant_id.clone(), webhook_id, opened, None).await.unwrap();
        if start < 300 {
            let shut = SavedCircuit { generation: generation + 1, since: at(start + 50), ..closed() };
            harness.store().set_circuit(harness.tenant_id.clone(), webhook_id, shut, None).await.unwrap();
        }
    }
    let mut with: Vec<_> = harness.store().webhooks_with_periods(None, 1).await.unwrap();
    with.extend(harness.store().webhooks_with_periods(Some(with[0].0), 10).await.unwrap());
    let tenant_id = harness.tenant_id.clone();
    assert_eq!(with, [(harness.webhook_id, tenant_id.clone()), (other, tenant_id)]);
    let opened = |webhook_id| async move {
        let periods =
            harness.store().circuit_periods(harness.tenant_id.clone(), webhook_id, at(0), 10).await.unwrap();
        periods.iter().map(|period| period.opened_at).collect::<Vec<_>>()
    };
    let prune_periods =
        |webhook_id, before, limit| harness.store().prune_periods(vec![(webhook_id, before)], limit);
    assert_eq!(
        prune_periods(harness.webhook_id, at(50), 10).await.unwrap(),
        0,
        "no period ended before that time"
    );
    assert_eq!(prune_periods(harness.webhook_id, at(51), 10).await.unwrap(), 1);
    assert_eq!(opened(harness.webhook_id).await, [at(100)]);
    assert_eq!(opened(other).await, [at(0), at(300)]);
    let both = vec![(harness.webhook_id, at(9_000)), (other, at(9_000))];
    assert_eq!(harness.store().prune_periods(both.clone(), 1).await.unwrap(), 1);
    assert_eq!(harness.store().prune_periods(both.clone(), 10).await.unwrap(), 1);
    assert_eq!(harness.store().prune_periods(both, 10).await.unwrap(), 0);
    assert_eq!(opened(other).await, [at(300)], "an open period is kept");
}

/// Drops all partitions that can be dropped.
async fn drop_months(harness: &Harness, before: Time, only_empty: bool) -> usize {
    let mut dropped = 0;
    for _ in 0..1_000 {
        match harness.store().drop_oldest_partition(before, only_empty, 2).await.unwrap() {
            PartitionDrop::Dropped { months } => dropped += months,
            PartitionDrop::Busy => tokio::task::yield_now().await,
            PartitionDrop::None => break,
        }
    }
    dropped
}

pub async fn partition_is_dropped_when_all_its_deliveries_have_ended(harness: &Arc<Harness>) {
    if !harness.store().has_partitions() {
        return assert_eq!(
            harness.store().drop_oldest_partition(at(0), false, 1).await.unwrap(),
            PartitionDrop::None
        );
    }
    // The harness starts in the middle of a month.
    let (event_id, pending) = publish_with_history(harness, at(0), 3).await;
    for n in 1..20 {
        publish_with_history(harness, at(n), 4).await;
    }
    let later = publish_with_history(harness, at(20 * DAY), 2).await;
    assert_eq!(
        drop_months(harness, at(10 * DAY), false).await,
        0,
        "the partition's time range has not ended"
    );
    assert_eq!(drop_months(harness, at(20 * DAY), false).await, 0, "a delivery is waiting");
    let leased = harness.claim_one(at(9_000)).await.id;
    assert_eq!(leased, pending);
    assert_eq!(drop_months(harness, at(20 * DAY), false).await, 0, "a delivery is leased");
    let outcome = harness.outcome(pending, 2, Outcome::Delivered, at(9_001));
    harness.record(outcome).await;
    assert_eq!(drop_months(harness, at(20 * DAY), true).await, 0, "the partition is not empty");
    assert_eq!(drop_months(harness, at(20 * DAY), false).await, 1);
    assert!(is_pruned(harness, event_id, pending).await);
    assert!(!is_pruned(harness, later.0, later.1).await);
    assert_eq!(harness.store().stats().await.unwrap().dead, 0, "no dependent row is left");
    assert_eq!(drop_months(harness, at(20 * DAY), false).await, 0);
    // A late event creates its partition again.
    let late = publish_with_history(harness, at(30), 2).await;
    assert!(!is_pruned(harness, late.0, late.1).await);
    prune(harness, at(DAY)).await;
    assert_eq!(drop_months(harness, at(20 * DAY), true).await, 1, "an empty partition is dropped");
}

pub async fn retry_during_partition_drop_keeps_it_or_is_not_found(harness: &Arc<Harness>) {
    if !harness.store().has_partitions() {
        return;
    }
    for turn in 0..8 {
        let (_, delivery_id) = publish_with_history(harness, at(turn), 4).await;
        let dropper = tokio::spawn({
            let harness = harness.clone();
            async move { drop_months(&harness, at(20 * DAY), false).await }
        });
        let options = harness.redrive_options(harness.delivery_id(at(turn)));
        let response = harness.retry(delivery_id, options, at(1_000)).await;
        let dropped = dropper.await.unwrap();
        match response {
            RedriveResult::NewRound(round) => {
                assert_eq!(dropped, 0);
                harness.claim(at(2_000)).await;
                harness.ends(round, Outcome::Delivered, at(2_000)).await;
            }
            RedriveResult::NotFound => assert_eq!(dropped, 1),
            other => panic!("{other:?}"),
        }
        drop_months(harness, at(20 * DAY), false).await;
    }
}
