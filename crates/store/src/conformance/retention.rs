//! Forgetting: what is old goes, in whatever steps; what is young, pending or somebody else's stays.

use std::{collections::BTreeSet, sync::Arc};

use redrive_core::{
    DeadReason, DeliveryId, DeliveryStatus, EventId, TenantId, Time, event::Event,
    protection::breaker::SavedCircuit,
};

use super::{Bench, at, closed, page, together};
use crate::{
    Birth, DeliveryCursor, DeliveryFilter, Dropped, Left, NewEvent, Next, Old, PageRequest, Redriven,
    Replayed,
};

const DAY: i64 = 24 * 3600 * 1000;

fn old<C>(bench: &Bench, before: Time, after: Option<C>, rows: usize) -> Old<C> {
    Old { tenant: bench.tenant.clone(), before, after, rows, archive: false }
}

/// Forgets a tenant's old events in steps of so many rows, no more than so many of them.
async fn prune_of(bench: &Bench, tenant: &TenantId, before: Time, rows: usize, steps: usize) -> Left {
    let (mut left, mut after) = (Left::default(), None);
    for _ in 0..steps {
        let old = Old { tenant: tenant.clone(), before, after, rows, archive: false };
        let step = bench.store().prune_events(old).await.unwrap();
        left.events += step.left.events;
        left.deliveries += step.left.deliveries;
        left.attempts += step.left.attempts;
        if step.finished {
            break;
        }
        assert!(step.last > after || step.left.rows() > 0, "a step leads on");
        after = step.last;
    }
    left
}

async fn prune(bench: &Bench, before: Time) -> Left {
    prune_of(bench, &bench.tenant, before, 1_000, usize::MAX).await
}

async fn prune_dead(bench: &Bench, before: Time, rows: usize) -> usize {
    let (mut gone, mut after) = (0, None);
    loop {
        let step = bench.store().prune_dead(old(bench, before, after, rows)).await.unwrap();
        gone += step.left.deliveries;
        if step.finished {
            return gone;
        }
        after = step.last;
    }
}

async fn events(bench: &Bench, tenant: &TenantId) -> BTreeSet<EventId> {
    let all = bench.store().list_events(tenant.clone(), Default::default(), page(10_000)).await.unwrap();
    all.found.into_iter().map(|stored| stored.event.id).collect()
}

async fn delivery_ids(bench: &Bench) -> BTreeSet<DeliveryId> {
    let all = bench.store().list_deliveries(bench.tenant.clone(), Default::default(), page(10_000)).await;
    all.unwrap().found.into_iter().map(|delivery| delivery.id).collect()
}

async fn is_gone(bench: &Bench, event: EventId, delivery: DeliveryId) -> bool {
    let tenant = || bench.tenant.clone();
    let store = bench.store();
    let traces = [
        store.event(tenant(), event).await.unwrap().is_some(),
        store.delivery(tenant(), delivery).await.unwrap().is_some(),
        store.attempts(tenant(), delivery).await.unwrap().is_some(),
        store.attempts_of_event(tenant(), event).await.unwrap().is_some(),
        bench.dead_list().await.contains(&delivery),
    ];
    let gone = traces.iter().all(|there| !there);
    assert!(gone || traces[..4].iter().all(|there| *there), "part of it is there: {traces:?}");
    gone
}

/// An event whose delivery has gone one of these ways.
async fn gone_by(bench: &Bench, time: Time, way: usize) -> (EventId, DeliveryId) {
    let birth = if way == 0 { Birth::Waiting(at(5_000)) } else { Birth::Leased };
    let new = bench.new_event(time, birth);
    let (event, delivery) = (new.event.id, new.deliveries[0].id);
    bench.publish_new(new).await;
    match way {
        2 => bench.ends(delivery, Next::Delivered, time).await,
        3 => bench.ends(delivery, Next::Retry { due: at(9_000) }, time).await,
        4 => bench.ends(delivery, Next::Dead { reason: DeadReason::Exhausted }, time).await,
        5 => bench.ends(delivery, Next::Cancelled { reason: "enough".into() }, time).await,
        // A late round of it.
        6 => {
            bench.ends(delivery, Next::Delivered, time).await;
            let again = bench.again(bench.delivery_id(time));
            assert!(matches!(bench.retry(delivery, again, time).await, Redriven::NewRound(_)));
        }
        // Waiting from birth, or on its way.
        _ => {}
    }
    (event, delivery)
}

/// Whether what went this way is over.
fn is_over(way: usize) -> bool {
    matches!(way, 2 | 4 | 5)
}

pub async fn what_is_old_goes_with_all_that_belongs_to_it(bench: &Arc<Bench>) {
    for way in [2, 4, 5] {
        let (event, delivery) = gone_by(bench, at(way as i64), way).await;
        assert!(!is_gone(bench, event, delivery).await);
        assert_eq!(prune(bench, at(100)).await, Left { events: 1, deliveries: 1, attempts: 1 });
        assert!(is_gone(bench, event, delivery).await);
    }
    assert_eq!(bench.store().vitals().await.unwrap().dead, 0);
    assert_eq!(prune(bench, at(100)).await, Left::default());
    assert_eq!(bench.store().oldest_event(bench.tenant.clone()).await.unwrap(), None);
}

pub async fn it_goes_by_the_millisecond(bench: &Arc<Bench>) {
    let (event, delivery) = gone_by(bench, at(50), 2).await;
    prune(bench, at(50)).await;
    assert!(!is_gone(bench, event, delivery).await);
    assert_eq!(bench.store().oldest_event(bench.tenant.clone()).await.unwrap(), Some(at(50)));
    prune(bench, at(51)).await;
    assert!(is_gone(bench, event, delivery).await);
}

pub async fn nothing_pending_is_ever_pruned(bench: &Arc<Bench>) {
    let mut made = Vec::new();
    for n in 0..35 {
        let way = n % 7;
        made.push((way, gone_by(bench, at(n as i64), way).await));
    }
    // Of several deliveries one that is not over is enough.
    let both = bench.fan_out(
        bench.event(at(40)),
        &[(bench.webhook, Birth::Leased), (bench.webhook_id(), Birth::Waiting(at(9_000)))],
    );
    bench.publish_new(both.clone()).await;
    bench.ends(both.deliveries[0].id, Next::Delivered, at(41)).await;
    prune(bench, at(10_000)).await;
    prune_dead(bench, at(10_000), 100).await;
    for (way, (event, delivery)) in made {
        assert_eq!(is_gone(bench, event, delivery).await, is_over(way), "{way}");
    }
    assert_eq!(bench.attempts(both.deliveries[0].id).await.len(), 1);
    // The end of every case sends what is pending, with its payload.
}

pub async fn what_was_pending_goes_once_it_is_over(bench: &Arc<Bench>) {
    let (event, first) = gone_by(bench, at(0), 6).await;
    assert_eq!(prune(bench, at(1_000)).await, Left::default());
    let late = bench.claim_one(at(10)).await.id;
    assert_eq!(prune(bench, at(1_000)).await, Left::default(), "leased");
    bench.ends(late, Next::Delivered, at(11)).await;
    assert_eq!(prune(bench, at(1_000)).await, Left { events: 1, deliveries: 2, attempts: 2 });
    assert!(is_gone(bench, event, first).await);
}

pub async fn other_tenants_are_left_alone(bench: &Arc<Bench>) {
    let globex = bench.new_tenant("globex").await;
    let version = bench.store().config_changes(globex.clone(), 0, 10).await.unwrap().unwrap().version;
    let event = Event { tenant: globex.clone(), ..bench.event(at(0)) };
    let theirs = event.id;
    bench.publish_new(NewEvent { config_version: version, ..bench.fan_out(event, &[]) }).await;
    gone_by(bench, at(0), 2).await;
    gone_by(bench, at(0), 4).await;
    prune_dead(bench, at(1_000), 10).await;
    prune(bench, at(1_000)).await;
    assert_eq!(events(bench, &bench.tenant).await, BTreeSet::new());
    assert_eq!(events(bench, &globex).await, BTreeSet::from([theirs]));
    let left = prune_of(bench, &globex, at(1_000), 10, 10).await;
    assert_eq!(left, Left { events: 1, ..Left::default() });
}

pub async fn dead_letters_go_before_their_events(bench: &Arc<Bench>) {
    let both = bench
        .fan_out(bench.event(at(0)), &[(bench.webhook, Birth::Leased), (bench.webhook_id(), Birth::Leased)]);
    bench.publish_new(both.clone()).await;
    let [dead, arrived] = [both.deliveries[0].id, both.deliveries[1].id];
    // It counts when it died, not when its event was published.
    bench.ends(dead, Next::Dead { reason: DeadReason::Exhausted }, at(500)).await;
    let outcome = bench.outcome(arrived, 1, Next::Delivered, at(1));
    bench.record(crate::Outcome { webhook: both.deliveries[1].webhook, ..outcome }).await;
    let (_, redriven) = gone_by(bench, at(1), 4).await;
    assert!(matches!(
        bench.retry(redriven, bench.again(bench.delivery_id(at(1))), at(2)).await,
        Redriven::NewRound(_)
    ));

    assert_eq!(prune_dead(bench, at(500), 10).await, 0);
    assert_eq!(bench.dead_list().await, [dead]);
    assert_eq!(prune_dead(bench, at(501), 10).await, 1);
    assert_eq!(bench.dead_list().await, []);
    let gone = bench.store().attempts(bench.tenant.clone(), dead).await.unwrap();
    assert_eq!(gone, None);
    assert_eq!(bench.attempts(arrived).await.len(), 1, "its event and the rest of it stay");
    assert_eq!(bench.status(redriven).await, DeliveryStatus::Dead, "no dead letter any more: history");
    assert_eq!(prune_dead(bench, at(501), 10).await, 0);
    assert_eq!(bench.retry(dead, bench.again(bench.delivery_id(at(0))), at(600)).await, Redriven::Missing);
}

pub async fn any_number_of_dead_letters_goes_in_bounded_steps(bench: &Arc<Bench>) {
    for n in 0..23 {
        // Some died late: they are looked at and stay.
        let id = bench.leased(at(n)).await;
        let died = if n % 5 == 0 { at(900) } else { at(n) };
        bench.ends(id, Next::Dead { reason: DeadReason::Exhausted }, died).await;
    }
    let step = bench.store().prune_dead(old(bench, at(500), None, 4)).await.unwrap();
    assert!(!step.finished && (1..=4).contains(&step.left.deliveries), "{step:?}");
    assert_eq!(step.left.deliveries + prune_dead(bench, at(500), 4).await, 18);
    assert_eq!(bench.dead_list().await.len(), 5);
}

pub async fn an_event_with_many_deliveries_goes_in_several_steps(bench: &Arc<Bench>) {
    let to: Vec<_> = (0..25).map(|_| (bench.webhook_id(), Birth::Leased)).collect();
    let new = bench.fan_out(bench.event(at(0)), &to);
    bench.publish_new(new.clone()).await;
    for delivery in &new.deliveries {
        let outcome = bench.outcome(delivery.id, 1, Next::Delivered, at(1));
        bench.record(crate::Outcome { webhook: delivery.webhook, ..outcome }).await;
    }
    let step = bench.store().prune_events(old(bench, at(10), None, 10)).await.unwrap();
    assert_eq!(step.left.events, 0, "it goes last");
    assert!(!step.finished && (1..=20).contains(&step.left.rows()), "{step:?}");
    prune_of(bench, &bench.tenant, at(10), 10, 100).await;
    assert!(is_gone(bench, new.event.id, new.deliveries[0].id).await);
}

pub async fn interrupted_anywhere_and_begun_anew_it_comes_to_the_same(bench: &mut Arc<Bench>) {
    let (mut stay, mut go) = (BTreeSet::new(), BTreeSet::new());
    for n in 0..42_usize {
        // Every third is young.
        let young = n % 3 == 0;
        let time = at(if young { 2_000 } else { 0 } + n as i64);
        let (event, _) = gone_by(bench, time, n % 7).await;
        if !young && is_over(n % 7) {
            go.insert(event)
        } else {
            stay.insert(event)
        };
    }
    for steps in 0.. {
        // A step can be of any size, and the process may be killed after any of them.
        prune_of(bench, &bench.tenant, at(1_000), 1 + steps % 5, steps / 2).await;
        Bench::reopen(bench).await;
        let there = events(bench, &bench.tenant).await;
        assert!(stay.is_subset(&there), "nothing is lost");
        if there == stay {
            break;
        }
        assert!(steps < 200, "{} are left", there.len() - stay.len());
    }
    assert_eq!(prune(bench, at(1_000)).await, Left::default(), "there is nothing else to do");
    assert_eq!(events(bench, &bench.tenant).await, stay);
}

pub async fn two_at_once_do_no_harm(bench: &Arc<Bench>) {
    let mut stay = BTreeSet::new();
    for n in 0..70 {
        let (event, _) = gone_by(bench, at(n), n as usize % 7).await;
        if !is_over(n as usize % 7) {
            stay.insert(event);
        }
    }
    let pruner = |rows| {
        let bench = bench.clone();
        async move { prune_of(&bench, &bench.tenant, at(1_000), rows, 1_000).await.events }
    };
    let pruned: usize = together([2, 3, 5, 7].map(pruner)).await.into_iter().sum();
    // What one had in hand, another passed by: the next round takes it.
    let rest = prune(bench, at(1_000)).await.events;
    assert_eq!(pruned + rest, 70 - stay.len(), "each went once");
    assert_eq!(events(bench, &bench.tenant).await, stay);
}

pub async fn what_is_gone_is_sent_no_more(bench: &Arc<Bench>) {
    let (event, delivery) = gone_by(bench, at(0), 4).await;
    prune(bench, at(1)).await;
    let again = bench.again(bench.delivery_id(at(0)));
    assert_eq!(bench.retry(delivery, again, at(5)).await, Redriven::Missing);
    let replay = bench.store().replay(bench.tenant.clone(), event, Vec::new(), None, at(5));
    assert_eq!(replay.await.unwrap(), Replayed::Missing);
    assert_eq!(bench.cancel(delivery, at(5)).await, crate::Cancelled::Missing);
}

pub async fn a_round_made_meanwhile_keeps_its_event_or_is_not_made(bench: &Arc<Bench>) {
    let mut made = Vec::new();
    for n in 0..60 {
        made.push(gone_by(bench, at(n), if n % 2 == 0 { 2 } else { 4 }).await);
    }
    let pruner = tokio::spawn({
        let bench = bench.clone();
        async move {
            prune_dead(&bench, at(1_000), 3).await;
            prune_of(&bench, &bench.tenant, at(1_000), 3, 1_000).await;
        }
    });
    let retry = |(event, delivery): (EventId, DeliveryId)| {
        let bench = bench.clone();
        async move {
            let again = bench.again(bench.delivery_id(event.time()));
            (event, bench.retry(delivery, again, at(2_000)).await)
        }
    };
    // From the last to the first, so that the two meet.
    let answers = together(made.into_iter().rev().map(retry)).await;
    pruner.await.unwrap();
    let there = events(bench, &bench.tenant).await;
    for (event, answer) in answers {
        match answer {
            Redriven::NewRound(round) => {
                assert!(there.contains(&event));
                assert_eq!(bench.status(round).await, DeliveryStatus::Pending);
            }
            Redriven::Missing => {}
            other => panic!("{other:?}"),
        }
    }
}

pub async fn a_walk_goes_on_while_things_go(bench: &Arc<Bench>) {
    for n in 0..40 {
        gone_by(bench, at(n), 2).await;
    }
    let mut seen = Vec::new();
    let mut after = None;
    loop {
        let request = PageRequest { after, ..page(7) };
        let part =
            bench.store().list_deliveries(bench.tenant.clone(), DeliveryFilter::default(), request).await;
        let part = part.unwrap().found;
        let Some(last) = part.last() else { break };
        after = Some(DeliveryCursor { event: last.event, delivery: last.id });
        seen.extend(part.iter().map(|delivery| delivery.id));
        prune(bench, at(seen.len() as i64)).await;
    }
    let distinct: BTreeSet<_> = seen.iter().copied().collect();
    assert_eq!(distinct.len(), seen.len(), "nothing twice");
    assert!(delivery_ids(bench).await.is_subset(&distinct), "all that stayed");
}

pub async fn tenants_are_told_even_those_that_are_gone(bench: &Arc<Bench>) {
    let globex = bench.new_tenant("globex").await;
    let mut tenant = bench.store().tenant(globex.clone()).await.unwrap().unwrap();
    tenant.rules.quotas.retention_days = Some(7);
    assert!(bench.store().change_tenant(tenant).await.unwrap());
    assert!(bench.store().delete_tenant(globex.clone(), at(1)).await.unwrap());
    let mut told = Vec::new();
    loop {
        let after = told.last().map(|(tenant, _): &(TenantId, _)| tenant.clone());
        let part = bench.store().retained(after, 2).await.unwrap();
        if part.is_empty() {
            break;
        }
        told.extend(part);
    }
    let days: Vec<_> = told.iter().map(|(id, rules)| (id.as_str(), rules.quotas.retention_days)).collect();
    assert_eq!(days, [("acme", None), ("default", None), ("globex", Some(7))]);
}

pub async fn periods_of_circuits_are_forgotten(bench: &Arc<Bench>) {
    let other = bench.new_webhook().await.id;
    for (webhook, start) in [(bench.webhook, 0), (bench.webhook, 100), (other, 0), (other, 300)] {
        let generation = start as u64 + 1;
        let opened = SavedCircuit {
            state: redrive_core::protection::breaker::CircuitState::Open,
            generation,
            since: at(start),
            until: Some(at(start + 40)),
            ..closed()
        };
        bench.store().set_circuit(bench.tenant.clone(), webhook, opened, None).await.unwrap();
        if start < 300 {
            let shut = SavedCircuit { generation: generation + 1, since: at(start + 50), ..closed() };
            bench.store().set_circuit(bench.tenant.clone(), webhook, shut, None).await.unwrap();
        }
    }
    let mut with: Vec<_> = bench.store().with_periods(None, 1).await.unwrap();
    with.extend(bench.store().with_periods(Some(with[0].0), 10).await.unwrap());
    let tenant = bench.tenant.clone();
    assert_eq!(with, [(bench.webhook, tenant.clone()), (other, tenant)]);
    let opened = |webhook| async move {
        let periods = bench.store().circuit_periods(bench.tenant.clone(), webhook, at(0), 10).await.unwrap();
        periods.iter().map(|period| period.opened_at).collect::<Vec<_>>()
    };
    let forget = |webhook, before, limit| bench.store().forget_periods(vec![(webhook, before)], limit);
    assert_eq!(forget(bench.webhook, at(50), 10).await.unwrap(), 0, "not over before that");
    assert_eq!(forget(bench.webhook, at(51), 10).await.unwrap(), 1);
    assert_eq!(opened(bench.webhook).await, [at(100)]);
    assert_eq!(opened(other).await, [at(0), at(300)]);
    let both = vec![(bench.webhook, at(9_000)), (other, at(9_000))];
    assert_eq!(bench.store().forget_periods(both.clone(), 1).await.unwrap(), 1);
    assert_eq!(bench.store().forget_periods(both.clone(), 10).await.unwrap(), 1);
    assert_eq!(bench.store().forget_periods(both, 10).await.unwrap(), 0);
    assert_eq!(opened(other).await, [at(300)], "what still is open stays");
}

/// Drops all months that can be.
async fn drop_months(bench: &Bench, before: Time, only_empty: bool) -> usize {
    let mut dropped = 0;
    for _ in 0..1_000 {
        match bench.store().drop_month(before, only_empty, 2).await.unwrap() {
            Dropped::Some { months } => dropped += months,
            Dropped::Busy => tokio::task::yield_now().await,
            Dropped::None => break,
        }
    }
    dropped
}

pub async fn a_month_goes_when_all_of_it_is_over(bench: &Arc<Bench>) {
    if !bench.store().keeps_months() {
        return assert_eq!(bench.store().drop_month(at(0), false, 1).await.unwrap(), Dropped::None);
    }
    // The bench begins in the middle of a month.
    let (event, pending) = gone_by(bench, at(0), 3).await;
    for n in 1..20 {
        gone_by(bench, at(n), 4).await;
    }
    let later = gone_by(bench, at(20 * DAY), 2).await;
    assert_eq!(drop_months(bench, at(10 * DAY), false).await, 0, "it is not over");
    assert_eq!(drop_months(bench, at(20 * DAY), false).await, 0, "something waits");
    let leased = bench.claim_one(at(9_000)).await.id;
    assert_eq!(leased, pending);
    assert_eq!(drop_months(bench, at(20 * DAY), false).await, 0, "something is on its way");
    let outcome = bench.outcome(pending, 2, Next::Delivered, at(9_001));
    bench.record(outcome).await;
    assert_eq!(drop_months(bench, at(20 * DAY), true).await, 0, "it is not empty");
    assert_eq!(drop_months(bench, at(20 * DAY), false).await, 1);
    assert!(is_gone(bench, event, pending).await);
    assert!(!is_gone(bench, later.0, later.1).await);
    assert_eq!(bench.store().vitals().await.unwrap().dead, 0, "nothing of it is left beside");
    assert_eq!(drop_months(bench, at(20 * DAY), false).await, 0);
    // Whatever comes late makes its month anew.
    let late = gone_by(bench, at(30), 2).await;
    assert!(!is_gone(bench, late.0, late.1).await);
    prune(bench, at(DAY)).await;
    assert_eq!(drop_months(bench, at(20 * DAY), true).await, 1, "it is empty");
}

pub async fn a_round_made_while_its_month_goes_keeps_it_or_is_not_made(bench: &Arc<Bench>) {
    if !bench.store().keeps_months() {
        return;
    }
    for turn in 0..8 {
        let (_, delivery) = gone_by(bench, at(turn), 4).await;
        let dropper = tokio::spawn({
            let bench = bench.clone();
            async move { drop_months(&bench, at(20 * DAY), false).await }
        });
        let again = bench.again(bench.delivery_id(at(turn)));
        let answer = bench.retry(delivery, again, at(1_000)).await;
        let dropped = dropper.await.unwrap();
        match answer {
            Redriven::NewRound(round) => {
                assert_eq!(dropped, 0);
                bench.claim(at(2_000)).await;
                bench.ends(round, Next::Delivered, at(2_000)).await;
            }
            Redriven::Missing => assert_eq!(dropped, 1),
            other => panic!("{other:?}"),
        }
        drop_months(bench, at(20 * DAY), false).await;
    }
}
