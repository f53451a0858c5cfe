//! How webhooks did, minute by minute.

use std::sync::Arc;

use redrive_core::{FailureCategory, Time, WebhookId, health::Rollup};

use super::{Bench, at};
use crate::MinuteRollup;

const MINUTE: i64 = 60_000;

/// A minute with these attempts, each told by how long it took and how it failed.
fn minute(webhook: WebhookId, minute: i64, attempts: &[(u64, Option<FailureCategory>)]) -> MinuteRollup {
    let mut rollup = Rollup::default();
    for (n, (micros, category)) in (0..).zip(attempts) {
        rollup.add(*micros, *category, at(minute * MINUTE + n));
    }
    MinuteRollup { webhook, minute: at(minute * MINUTE), rollup }
}

async fn add(bench: &Bench, rollups: Vec<MinuteRollup>) {
    bench.store().add_rollups(rollups).await.unwrap();
}

async fn from(bench: &Bench, webhook: WebhookId, from: Time) -> Vec<MinuteRollup> {
    bench.store().rollups(webhook, from).await.unwrap()
}

pub async fn figures_of_a_minute_are_added_up(bench: &mut Arc<Bench>) {
    let webhook = bench.webhook;
    let one = minute(webhook, 0, &[(900, None), (70_000_000, Some(FailureCategory::Timeout)), (5000, None)]);
    let two = minute(webhook, 0, &[(4000, Some(FailureCategory::BlockedAddress)), (1, None)]);
    let elsewhere = minute(bench.webhook_id(), 0, &[(1000, None)]);
    add(bench, vec![one.clone(), elsewhere.clone()]).await;
    assert_eq!(from(bench, webhook, at(0)).await, std::slice::from_ref(&one));
    // Again in one go, and again after a restart.
    add(bench, vec![two.clone(), two.clone()]).await;
    Bench::reopen(bench).await;
    add(bench, vec![one.clone()]).await;
    let mut sum = one.clone();
    for other in [&two, &two, &one] {
        sum.rollup.merge(&other.rollup);
    }
    assert_eq!(from(bench, webhook, at(0)).await, [sum]);
    assert_eq!(from(bench, elsewhere.webhook, at(0)).await, [elsewhere]);
    add(bench, vec![]).await;
}

pub async fn minutes_are_read_from_a_time_on(bench: &Arc<Bench>) {
    let mut all = Vec::new();
    for n in [3, 0, 2, 1] {
        let added = minute(bench.webhook, n, &[(1000, None)]);
        add(bench, vec![added.clone(), minute(bench.webhook_id(), n, &[(1000, None)])]).await;
        all.push(added);
    }
    all.sort_by_key(|one| one.minute);
    assert_eq!(from(bench, bench.webhook, at(0)).await, all);
    assert_eq!(from(bench, bench.webhook, at(MINUTE)).await, all[1..]);
    assert_eq!(from(bench, bench.webhook, at(MINUTE + 1)).await, all[2..]);
    assert_eq!(from(bench, bench.webhook, at(4 * MINUTE)).await, []);
}

pub async fn the_last_success_is_known(bench: &Arc<Bench>) {
    let webhook = bench.webhook;
    let last = || async { bench.store().last_success(webhook).await.unwrap() };
    assert_eq!(last().await, None);
    let failed = (10, Some(FailureCategory::Dns));
    add(bench, vec![minute(webhook, 0, &[failed])]).await;
    add(bench, vec![minute(bench.webhook_id(), 9, &[(10, None)])]).await;
    assert_eq!(last().await, None);
    add(bench, vec![minute(webhook, 2, &[failed, (10, None), failed]), minute(webhook, 1, &[(10, None)])])
        .await;
    add(bench, vec![minute(webhook, 5, &[failed])]).await;
    assert_eq!(last().await, Some(at(2 * MINUTE + 1)));
}

pub async fn minutes_are_forgotten_in_bounded_steps(bench: &Arc<Bench>) {
    let webhooks = [bench.webhook, bench.webhook_id()];
    for webhook in webhooks {
        let minutes = (0..6).map(|n| minute(webhook, n, &[(1000, None)])).collect();
        add(bench, minutes).await;
    }
    let forget = |limit| bench.store().forget_rollups(at(4 * MINUTE), limit);
    assert_eq!(bench.store().forget_rollups(at(0), 10).await.unwrap(), 0);
    assert_eq!(forget(3).await.unwrap(), 3);
    assert_eq!(forget(3).await.unwrap(), 3);
    assert_eq!(forget(3).await.unwrap(), 2);
    assert_eq!(forget(3).await.unwrap(), 0);
    for webhook in webhooks {
        let left: Vec<_> = from(bench, webhook, at(0)).await.iter().map(|one| one.minute).collect();
        assert_eq!(left, [at(4 * MINUTE), at(5 * MINUTE)]);
    }
}
