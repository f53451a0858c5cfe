//! Store statistics and health.

use redrive_core::delivery::outcome::Outcome;
use std::{collections::BTreeMap, sync::Arc};

use redrive_core::{
    DeadReason,
    delivery::lane::{Lane, Priority},
    event::Event,
    tenancy::DEFAULT_POOL,
    webhook::WebhookState,
};

use super::{Harness, RETRY, at, order};
use crate::InitialState;

pub async fn working_store_responds_to_ping(harness: &Arc<Harness>) {
    assert_eq!(harness.store().ping().await, Ok(()));
    assert_eq!(
        harness.publish_new(harness.new_event(at(0), InitialState::Leased)).await,
        1,
        "a ping changes nothing"
    );
}

pub async fn stats_count_waiting_leased_and_dead_deliveries(harness: &Arc<Harness>) {
    let stats = || async { harness.store().stats().await.unwrap() };
    let before = stats().await;
    assert_eq!((before.waiting, before.leased, before.dead), ([0; 3], 0, 0));
    harness.waiting(at(0), at(0)).await;
    harness.waiting(at(0), at(9000)).await;
    let id = harness.leased(at(0)).await;
    assert_eq!((stats().await.waiting, stats().await.leased), ([0, 2, 0], 1));
    harness.ends(id, Outcome::Dead(DeadReason::Expired), at(1)).await;
    harness.claim_one(at(0)).await;
    let after = stats().await;
    assert_eq!((after.waiting, after.leased, after.dead), ([0, 1, 0], 1, 1));
    assert!(after.commits > before.commits);
    harness.retry(id, harness.redrive_options(harness.delivery_id(at(0))), at(2)).await;
    assert_eq!((stats().await.waiting, stats().await.dead), ([0, 2, 0], 0));
}

pub async fn waiting_deliveries_are_counted_by_priority(harness: &Arc<Harness>) {
    for (priority, count) in Priority::ALL.into_iter().zip([1, 2, 4]) {
        for retry in [false, true] {
            for _ in 0..count {
                harness.waiting_in(&Lane::Unordered { priority, retry }, at(0), at(0)).await;
            }
        }
    }
    harness.waiting_in(&order("a"), at(0), at(0)).await;
    harness.waiting_in(&order(""), at(0), at(0)).await;
    let elsewhere = [(harness.webhook_id(), InitialState::Waiting(at(0)))];
    let urgent = Event { priority: Priority::High, ..harness.event(at(0)) };
    harness.publish_new(harness.fan_out(urgent, &elsewhere)).await;
    assert_eq!(harness.store().stats().await.unwrap().waiting, [3, 6, 8]);
}

pub async fn overdue_time_is_reported_by_pool(harness: &Arc<Harness>) {
    let overdue = |now| async move { harness.store().overdue(now).await.unwrap() };
    let since = |time| BTreeMap::from([(DEFAULT_POOL.to_owned(), time)]);
    assert_eq!(overdue(at(99)).await, BTreeMap::new());
    harness.waiting(at(0), at(50)).await;
    assert_eq!(overdue(at(49)).await, BTreeMap::new(), "no delivery is due");
    assert_eq!(overdue(at(99)).await, since(at(50)));
    harness.waiting_in(&RETRY, at(0), at(20)).await;
    harness.waiting_in(&RETRY, at(0), at(30)).await;
    assert_eq!(overdue(at(99)).await, since(at(20)));
    // Part of this lane is leased; the remaining delivery is still overdue.
    harness.claim_lane(harness.own(RETRY), at(99), 1).await;
    assert_eq!(overdue(at(99)).await, since(at(30)));
    harness.claim_lane(harness.own(RETRY), at(99), 1).await;
    assert_eq!(overdue(at(99)).await, since(at(50)));
}

pub async fn tenants_with_many_dead_letters_are_counted(harness: &Arc<Harness>) {
    let crowded =
        |max| async move { harness.store().count_tenants_with_dead_letters_over(max).await.unwrap() };
    assert_eq!((crowded(0).await, crowded(1).await), (0, 0));
    for _ in 0..3 {
        let id = harness.leased(at(0)).await;
        harness.ends(id, Outcome::Dead(DeadReason::Expired), at(1)).await;
    }
    assert_eq!((crowded(0).await, crowded(2).await, crowded(3).await), (1, 1, 0), "the limit is exclusive");
}

pub async fn webhooks_are_counted_until_they_are_deleted(harness: &Arc<Harness>) {
    let count = || async { harness.store().stats().await.unwrap().webhooks };
    let before = count().await;
    let webhook = harness.new_webhook().await;
    assert_eq!(count().await, before + 1);
    harness.set_state(webhook.id, WebhookState::Deleted).await;
    assert_eq!(count().await, before);
}
