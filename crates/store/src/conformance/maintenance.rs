//! Housekeeping and health.

use std::{collections::BTreeMap, sync::Arc};

use redrive_core::{
    DeadReason,
    delivery::lane::{Lane, Priority},
    event::Event,
    tenancy::DEFAULT_POOL,
    webhook::WebhookState,
};

use super::{Bench, RETRY, at, order};
use crate::{Birth, Next};

pub async fn a_store_that_works_answers(bench: &Arc<Bench>) {
    assert_eq!(bench.store().ping().await, Ok(()));
    assert_eq!(bench.publish_new(bench.new_event(at(0), Birth::Leased)).await, 1, "asking changes nothing");
}

pub async fn vitals_tell_what_waits_and_what_is_dead(bench: &Arc<Bench>) {
    let vitals = || async { bench.store().vitals().await.unwrap() };
    let before = vitals().await;
    assert_eq!((before.waiting, before.leased, before.dead), ([0; 3], 0, 0));
    bench.waiting(at(0), at(0)).await;
    bench.waiting(at(0), at(9000)).await;
    let id = bench.leased(at(0)).await;
    assert_eq!((vitals().await.waiting, vitals().await.leased), ([0, 2, 0], 1));
    bench.ends(id, Next::Dead { reason: DeadReason::Expired }, at(1)).await;
    bench.claim_one(at(0)).await;
    let after = vitals().await;
    assert_eq!((after.waiting, after.leased, after.dead), ([0, 1, 0], 1, 1));
    assert!(after.commits > before.commits);
    bench.retry(id, bench.again(bench.delivery_id(at(0))), at(2)).await;
    assert_eq!((vitals().await.waiting, vitals().await.dead), ([0, 2, 0], 0));
}

pub async fn what_waits_is_counted_by_priority(bench: &Arc<Bench>) {
    for (priority, count) in Priority::ALL.into_iter().zip([1, 2, 4]) {
        for retry in [false, true] {
            for _ in 0..count {
                bench.waiting_in(&Lane::Free { priority, retry }, at(0), at(0)).await;
            }
        }
    }
    bench.waiting_in(&order("a"), at(0), at(0)).await;
    bench.waiting_in(&order(""), at(0), at(0)).await;
    let elsewhere = [(bench.webhook_id(), Birth::Waiting(at(0)))];
    let urgent = Event { priority: Priority::High, ..bench.event(at(0)) };
    bench.publish_new(bench.fan_out(urgent, &elsewhere)).await;
    assert_eq!(bench.store().vitals().await.unwrap().waiting, [3, 6, 8]);
}

pub async fn it_is_known_how_long_what_is_due_waits(bench: &Arc<Bench>) {
    let overdue = |now| async move { bench.store().overdue(now).await.unwrap() };
    let since = |time| BTreeMap::from([(DEFAULT_POOL.to_owned(), time)]);
    assert_eq!(overdue(at(99)).await, BTreeMap::new());
    bench.waiting(at(0), at(50)).await;
    assert_eq!(overdue(at(49)).await, BTreeMap::new(), "nothing is due");
    assert_eq!(overdue(at(99)).await, since(at(50)));
    bench.waiting_in(&RETRY, at(0), at(20)).await;
    bench.waiting_in(&RETRY, at(0), at(30)).await;
    assert_eq!(overdue(at(99)).await, since(at(20)));
    // A lane of which somebody has some: what it still has is overdue all the same.
    bench.claim_lane(bench.own(RETRY), at(99), 1).await;
    assert_eq!(overdue(at(99)).await, since(at(30)));
    bench.claim_lane(bench.own(RETRY), at(99), 1).await;
    assert_eq!(overdue(at(99)).await, since(at(50)));
}

pub async fn tenants_with_many_dead_letters_are_counted(bench: &Arc<Bench>) {
    let crowded = |dead| async move { bench.store().crowded(dead).await.unwrap() };
    assert_eq!((crowded(0).await, crowded(1).await), (0, 0));
    for _ in 0..3 {
        let id = bench.leased(at(0)).await;
        bench.ends(id, Next::Dead { reason: DeadReason::Expired }, at(1)).await;
    }
    assert_eq!((crowded(0).await, crowded(2).await, crowded(3).await), (1, 1, 0), "more than so many");
}

pub async fn webhooks_are_counted_until_they_are_deleted(bench: &Arc<Bench>) {
    let count = || async { bench.store().vitals().await.unwrap().webhooks };
    let before = count().await;
    let webhook = bench.new_webhook().await;
    assert_eq!(count().await, before + 1);
    bench.set_state(webhook.id, WebhookState::Deleted).await;
    assert_eq!(count().await, before);
}
