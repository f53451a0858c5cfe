//! Rollups of webhooks and tenants, per minute and per hour.

use std::sync::Arc;

use redrive_core::{
    FailureCategory, TenantId, Time, WebhookId,
    statistics::{
        rollup::Rollup,
        traffic::{EndedCounts, Resolution, Traffic},
    },
};

use super::{Harness, at};
use crate::{MinuteRollup, TenantRollup, WebhookFailures};

const MINUTE: i64 = 60_000;

/// Returns a minute rollup of these attempts, each given by its duration and failure category.
fn minute_of(
    tenant_id: &TenantId,
    webhook_id: WebhookId,
    minute: i64,
    attempts: &[(u64, Option<FailureCategory>)],
) -> MinuteRollup {
    let mut rollup = Rollup::default();
    for (n, (micros, category)) in (0..).zip(attempts) {
        rollup.add(*micros, *category, at(minute * MINUTE + n));
    }
    MinuteRollup { tenant_id: tenant_id.clone(), webhook_id, minute: at(minute * MINUTE), rollup }
}

/// Returns a minute rollup of the harness's tenant.
fn minute(webhook_id: WebhookId, minute: i64, attempts: &[(u64, Option<FailureCategory>)]) -> MinuteRollup {
    minute_of(&TenantId::parse("acme").unwrap(), webhook_id, minute, attempts)
}

async fn add(harness: &Harness, rollups: Vec<MinuteRollup>) {
    harness.store().add_rollups(rollups, vec![]).await.unwrap();
}

async fn from(harness: &Harness, webhook_id: WebhookId, from: Time) -> Vec<MinuteRollup> {
    harness.store().rollups(Some(harness.tenant_id.clone()), vec![webhook_id], from).await.unwrap()
}

pub async fn rollups_of_a_minute_are_summed(harness: &mut Arc<Harness>) {
    let webhook_id = harness.webhook_id;
    let one =
        minute(webhook_id, 0, &[(900, None), (70_000_000, Some(FailureCategory::Timeout)), (5000, None)]);
    let two = minute(webhook_id, 0, &[(4000, Some(FailureCategory::BlockedAddress)), (1, None)]);
    let elsewhere = minute(harness.webhook_id(), 0, &[(1000, None)]);
    add(harness, vec![one.clone(), elsewhere.clone()]).await;
    assert_eq!(from(harness, webhook_id, at(0)).await, std::slice::from_ref(&one));
    // Twice in one call, and once more after reopening.
    add(harness, vec![two.clone(), two.clone()]).await;
    Harness::reopen(harness).await;
    add(harness, vec![one.clone()]).await;
    let mut sum = one.clone();
    for other in [&two, &two, &one] {
        sum.rollup.merge(&other.rollup);
    }
    assert_eq!(from(harness, webhook_id, at(0)).await, [sum]);
    assert_eq!(from(harness, elsewhere.webhook_id, at(0)).await, [elsewhere]);
    add(harness, vec![]).await;
}

pub async fn minute_rollups_are_read_since_a_time(harness: &Arc<Harness>) {
    let mut all = Vec::new();
    for n in [3, 0, 2, 1] {
        let added = minute(harness.webhook_id, n, &[(1000, None)]);
        add(harness, vec![added.clone(), minute(harness.webhook_id(), n, &[(1000, None)])]).await;
        all.push(added);
    }
    all.sort_by_key(|one| one.minute);
    assert_eq!(from(harness, harness.webhook_id, at(0)).await, all);
    assert_eq!(from(harness, harness.webhook_id, at(MINUTE)).await, all[1..]);
    assert_eq!(from(harness, harness.webhook_id, at(MINUTE + 1)).await, all[2..]);
    assert_eq!(from(harness, harness.webhook_id, at(4 * MINUTE)).await, []);
}

pub async fn minute_rollups_of_several_webhooks_are_read_together(harness: &Arc<Harness>) {
    let [one, other, third] = [harness.webhook_id, harness.webhook_id(), harness.webhook_id()];
    let mut all = Vec::new();
    for (webhook_id, minutes) in [(one, &[0, 3][..]), (other, &[1, 2, 5]), (third, &[4])] {
        for n in minutes {
            all.push(minute(webhook_id, *n, &[(1000, None), (2000, Some(FailureCategory::Tls))]));
        }
    }
    add(harness, all.iter().rev().cloned().collect()).await;
    let read = async |webhooks: &[WebhookId], from| {
        harness.store().rollups(None, webhooks.to_vec(), at(from * MINUTE)).await.unwrap()
    };
    assert_eq!(read(&[one, other, third], 0).await, all);
    assert_eq!(read(&[one, other], 2).await, [&all[1..2], &all[3..5]].concat());
    assert_eq!(read(&[third, harness.webhook_id()], 0).await, all[5..]);
    assert_eq!(read(&[], 0).await, []);
}

pub async fn successes_after_a_time_are_counted_per_webhook(harness: &Arc<Harness>) {
    let [one, other] = [harness.webhook_id, harness.webhook_id()];
    let (failed, ok) = ((10, Some(FailureCategory::Dns)), (10, None));
    // The attempts of a minute are one millisecond apart.
    let stored = vec![
        minute(one, 0, &[ok; 5]),
        minute(one, 1, &[ok, failed, ok]),
        minute(one, 3, &[failed]),
        minute(one, 4, &[ok; 4]),
        minute(other, 4, &[ok; 9]),
    ];
    add(harness, stored).await;
    let pairs: Vec<_> = [
        (one, at(5 * MINUTE)),
        (one, at(4 * MINUTE + 3)),
        (one, at(4 * MINUTE + 1)),
        (other, at(0)),
        (one, at(3 * MINUTE)),
        (one, at(MINUTE + 1)),
        (one, at(MINUTE - 1)),
        (one, at(0)),
        (harness.webhook_id(), at(0)),
    ]
    .into();
    let expected = [0, 0, 1, 9, 4, 5, 6, 7, 0];
    for tenant_id in [Some(harness.tenant_id.clone()), None] {
        let counted = harness.store().count_successes(tenant_id, pairs.clone()).await.unwrap();
        assert_eq!(counted, expected);
    }
    assert_eq!(harness.store().count_successes(None, vec![]).await.unwrap(), Vec::<u64>::new());
}

pub async fn last_success_is_found_and_kept(harness: &Arc<Harness>) {
    let webhook_id = harness.webhook_id;
    let found = async || {
        let webhooks = vec![webhook_id, harness.webhook_id()];
        harness.store().last_successes(Some(harness.tenant_id.clone()), webhooks).await.unwrap()
    };
    assert_eq!(found().await, []);
    let (failed, ok) = ((10, Some(FailureCategory::Dns)), (10, None));
    add(harness, vec![minute(webhook_id, 0, &[failed])]).await;
    let other = harness.webhook_id();
    add(harness, vec![minute(other, 9, &[ok])]).await;
    assert_eq!(found().await, []);
    add(harness, vec![minute(webhook_id, 2, &[failed, ok, failed]), minute(webhook_id, 1, &[ok])]).await;
    add(harness, vec![minute(webhook_id, 5, &[failed])]).await;
    assert_eq!(found().await, [(webhook_id, at(2 * MINUTE + 1))]);
    // A later success of a minute in which an earlier one is stored, and one of a minute that had only failures.
    add(harness, vec![minute(webhook_id, 2, &[failed, failed, failed, ok])]).await;
    assert_eq!(found().await, [(webhook_id, at(2 * MINUTE + 3))]);
    add(harness, vec![minute(webhook_id, 5, &[failed, ok])]).await;
    add(harness, vec![minute(webhook_id, 4, &[ok])]).await;
    assert_eq!(found().await, [(webhook_id, at(5 * MINUTE + 1))], "an earlier minute that is stored later");
    let both = vec![webhook_id, other];
    let mut both = harness.store().last_successes(None, both).await.unwrap();
    both.sort_unstable();
    let mut expected = [(webhook_id, at(5 * MINUTE + 1)), (other, at(9 * MINUTE))];
    expected.sort_unstable();
    assert_eq!(both, expected);
    while harness.store().prune_rollups(at(90 * MINUTE), 100).await.unwrap() > 0 {}
    assert_eq!(found().await, [(webhook_id, at(5 * MINUTE + 1))], "kept without the rollups");
}

pub async fn failing_webhooks_are_found_among_many_healthy_ones(harness: &Arc<Harness>) {
    let [one, other] = [harness.webhook_id, harness.webhook_id()];
    let globex = harness.new_tenant("globex").await;
    let ok = (10, None);
    let failed = (10, Some(FailureCategory::ServerError));
    let fine = (0..50).map(|n| minute(harness.webhook_id(), n, &[ok, ok]));
    add(harness, fine.collect()).await;
    add(harness, vec![minute(one, 3, &[ok]), minute(other, 3, &[failed, ok]), minute(one, 5, &[failed; 3])])
        .await;
    // The failures of one minute and more of another minute's attempts are added by a later call.
    add(harness, vec![minute(one, 3, &[failed]), minute(other, 3, &[ok]), minute(other, 1, &[failed])]).await;
    add(harness, vec![minute_of(&globex, harness.webhook_id(), 4, &[failed])]).await;
    let look = async |from: i64, max| {
        let found =
            harness.store().failures(harness.tenant_id.clone(), at(from * MINUTE), max).await.unwrap();
        let mut by_webhook = found.by_webhook;
        by_webhook.sort_unstable_by_key(|(webhook_id, _)| *webhook_id);
        WebhookFailures { by_webhook, ..found }
    };
    let found = |counts: &[(WebhookId, u64)], since: Option<i64>| WebhookFailures {
        by_webhook: counts.to_vec(),
        only_since: since.map(|minute| at(minute * MINUTE)),
    };
    assert_eq!(look(0, 100).await, found(&[(one, 4), (other, 2)], None));
    assert_eq!(look(0, 4).await, found(&[(one, 4), (other, 2)], None), "the limit equals the number of rows");
    assert_eq!(look(3, 100).await, found(&[(one, 4), (other, 1)], None));
    assert_eq!(look(4, 100).await, found(&[(one, 3)], None));
    assert_eq!(look(6, 100).await, WebhookFailures::default());
    let few = look(0, 2).await;
    assert_eq!(few.only_since, Some(at(3 * MINUTE)));
    assert!(
        few.by_webhook.iter().any(|(webhook_id, failures)| *webhook_id == one && *failures >= 3),
        "{few:?}"
    );
}

fn hour(tenant_id: &TenantId, resolution: Resolution, start: i64, attempts: u32, dead: u64) -> TenantRollup {
    let mut sent = Rollup::default();
    for n in 0..attempts {
        let category = (n % 3 == 1).then_some(FailureCategory::Network);
        sent.add(u64::from(n) * 5000, category, at(start * MINUTE + i64::from(n)));
    }
    let start = at(start * MINUTE);
    let ended = EndedCounts { delivered: u64::from(attempts), dead, cancelled: 1 };
    TenantRollup {
        tenant_id: tenant_id.clone(),
        resolution,
        start,
        expires_at: start + resolution.retention(),
        traffic: Traffic { sent, ended },
    }
}

pub async fn tenant_rollups_are_summed_and_read_since_a_time(harness: &mut Arc<Harness>) {
    let globex = harness.new_tenant("globex").await;
    let acme = harness.tenant_id.clone();
    let minute = |n, attempts, dead| hour(&acme, Resolution::Minute, n, attempts, dead);
    let first = vec![minute(0, 5, 1), hour(&globex, Resolution::Minute, 0, 7, 0), minute(2, 0, 2)];
    harness.store().add_rollups(vec![], first.clone()).await.unwrap();
    Harness::reopen(harness).await;
    // Several rollups of one minute in one call, and an hour that starts with the same minute.
    let more =
        vec![minute(0, 2, 0), minute(0, 1, 1), minute(1, 3, 0), hour(&acme, Resolution::Hour, 0, 9, 9)];
    harness.store().add_rollups(vec![], more.clone()).await.unwrap();
    harness.store().add_rollups(vec![], vec![]).await.unwrap();
    let sum = |of: &[&TenantRollup]| {
        let mut sum = Traffic::default();
        of.iter().for_each(|one| sum.merge(&one.traffic));
        (of[0].start, sum)
    };
    let all = [sum(&[&first[0], &more[0], &more[1]]), sum(&[&more[2]]), sum(&[&first[2]])];
    let read = async |tenant_id: &TenantId, resolution, from| {
        harness.store().traffic(tenant_id.clone(), resolution, from).await.unwrap()
    };
    assert_eq!(read(&acme, Resolution::Minute, at(0)).await, all);
    assert_eq!(read(&acme, Resolution::Minute, at(1)).await, all[1..]);
    assert_eq!(read(&acme, Resolution::Minute, at(2 * MINUTE)).await, all[2..]);
    assert_eq!(read(&acme, Resolution::Minute, at(3 * MINUTE)).await, []);
    assert_eq!(read(&acme, Resolution::Hour, at(0)).await, [sum(&[&more[3]])]);
    assert_eq!(read(&globex, Resolution::Minute, at(0)).await, [sum(&[&first[1]])]);
}

pub async fn concurrent_rollup_additions_are_all_counted(harness: &Arc<Harness>) {
    let webhooks = [harness.webhook_id, harness.webhook_id(), harness.webhook_id()];
    let adds = (0..12_usize).map(|n| {
        let harness = harness.clone();
        async move {
            // In a different order each time, as several nodes would.
            let mut minutes: Vec<_> = webhooks
                .iter()
                .flat_map(|webhook_id| (0..3).map(|m| minute(*webhook_id, m, &[(1000, None)])))
                .collect();
            minutes.rotate_left(n % 9);
            let mut traffic: Vec<_> = (0..3)
                .flat_map(|m| Resolution::ALL.map(|resolution| hour(&harness.tenant_id, resolution, m, 1, 0)))
                .collect();
            traffic.rotate_left(n % 6);
            harness.store().add_rollups(minutes, traffic).await.unwrap();
        }
    });
    super::together(adds).await;
    let minutes = harness.store().rollups(None, webhooks.to_vec(), at(0)).await.unwrap();
    assert_eq!(minutes.len(), 9);
    assert!(minutes.iter().all(|one| one.rollup.attempts == 12 && one.rollup.latencies.count() == 12));
    for resolution in Resolution::ALL {
        let traffic = harness.store().traffic(harness.tenant_id.clone(), resolution, at(0)).await.unwrap();
        let counts: Vec<_> =
            traffic.iter().map(|(_, one)| (one.sent.attempts, one.ended.cancelled)).collect();
        assert_eq!(counts, [(12, 12); 3]);
    }
}

pub async fn expired_tenant_rollups_are_pruned_in_bounded_steps(harness: &Arc<Harness>) {
    let minutes = (0..4).map(|n| hour(&harness.tenant_id, Resolution::Minute, n, 1, 0));
    let hours = (0..2).map(|n| hour(&harness.tenant_id, Resolution::Hour, 60 * n, 1, 0));
    let rows: Vec<_> = minutes.chain(hours).collect();
    harness.store().add_rollups(vec![], rows.clone()).await.unwrap();
    let prune = async |now, limit| harness.store().prune_traffic(now, limit).await.unwrap();
    assert_eq!(prune(rows[0].expires_at.saturating_sub(std::time::Duration::from_millis(1)), 10).await, 0);
    // Each row of the tenant has one in the sums of all tenants.
    assert_eq!(prune(rows[2].expires_at, 4).await, 4);
    assert_eq!(prune(rows[2].expires_at, 4).await, 2);
    assert_eq!(prune(rows[2].expires_at, 4).await, 0);
    let left = async |resolution| {
        harness.store().traffic(harness.tenant_id.clone(), resolution, at(0)).await.unwrap().len()
    };
    assert_eq!((left(Resolution::Minute).await, left(Resolution::Hour).await), (1, 2));
    assert_eq!(prune(rows[4].expires_at, 10).await, 4);
    assert_eq!((left(Resolution::Minute).await, left(Resolution::Hour).await), (0, 1));
}

pub async fn old_minute_rollups_are_pruned_in_bounded_steps(harness: &Arc<Harness>) {
    let webhooks = [harness.webhook_id, harness.webhook_id()];
    for webhook_id in webhooks {
        let minutes = (0..6).map(|n| minute(webhook_id, n, &[(1000, None)])).collect();
        add(harness, minutes).await;
    }
    let prune = |limit| harness.store().prune_rollups(at(4 * MINUTE), limit);
    assert_eq!(harness.store().prune_rollups(at(0), 10).await.unwrap(), 0);
    assert_eq!(prune(3).await.unwrap(), 3);
    assert_eq!(prune(3).await.unwrap(), 3);
    assert_eq!(prune(3).await.unwrap(), 2);
    assert_eq!(prune(3).await.unwrap(), 0);
    for webhook_id in webhooks {
        let left: Vec<_> = from(harness, webhook_id, at(0)).await.iter().map(|one| one.minute).collect();
        assert_eq!(left, [at(4 * MINUTE), at(5 * MINUTE)]);
    }
}
