//! How webhooks and tenants did, by the minute and by the hour.

use std::sync::Arc;

use redrive_core::{
    FailureCategory, TenantId, Time, WebhookId,
    statistics::rollup::Rollup,
    statistics::traffic::{Ended, Grain, Traffic},
};

use super::{Bench, at};
use crate::{Failures, MinuteRollup, TenantRollup};

const MINUTE: i64 = 60_000;

/// A minute with these attempts, each told by how long it took and how it failed.
fn minute_of(
    tenant: &TenantId,
    webhook: WebhookId,
    minute: i64,
    attempts: &[(u64, Option<FailureCategory>)],
) -> MinuteRollup {
    let mut rollup = Rollup::default();
    for (n, (micros, category)) in (0..).zip(attempts) {
        rollup.add(*micros, *category, at(minute * MINUTE + n));
    }
    MinuteRollup { tenant: tenant.clone(), webhook, minute: at(minute * MINUTE), rollup }
}

/// The same of the bench's tenant.
fn minute(webhook: WebhookId, minute: i64, attempts: &[(u64, Option<FailureCategory>)]) -> MinuteRollup {
    minute_of(&TenantId::parse("acme").unwrap(), webhook, minute, attempts)
}

async fn add(bench: &Bench, rollups: Vec<MinuteRollup>) {
    bench.store().add_figures(rollups, vec![]).await.unwrap();
}

async fn from(bench: &Bench, webhook: WebhookId, from: Time) -> Vec<MinuteRollup> {
    bench.store().rollups(Some(bench.tenant.clone()), vec![webhook], from).await.unwrap()
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

pub async fn minutes_of_several_webhooks_are_read_at_once(bench: &Arc<Bench>) {
    let [one, other, third] = [bench.webhook, bench.webhook_id(), bench.webhook_id()];
    let mut all = Vec::new();
    for (webhook, minutes) in [(one, &[0, 3][..]), (other, &[1, 2, 5]), (third, &[4])] {
        for n in minutes {
            all.push(minute(webhook, *n, &[(1000, None), (2000, Some(FailureCategory::Tls))]));
        }
    }
    add(bench, all.iter().rev().cloned().collect()).await;
    let read = async |webhooks: &[WebhookId], from| {
        bench.store().rollups(None, webhooks.to_vec(), at(from * MINUTE)).await.unwrap()
    };
    assert_eq!(read(&[one, other, third], 0).await, all);
    assert_eq!(read(&[one, other], 2).await, [&all[1..2], &all[3..5]].concat());
    assert_eq!(read(&[third, bench.webhook_id()], 0).await, all[5..]);
    assert_eq!(read(&[], 0).await, []);
}

pub async fn the_last_success_is_known(bench: &Arc<Bench>) {
    let webhook = bench.webhook;
    let by = async |minute: i64| {
        let asked = vec![(webhook, at(minute * MINUTE)), (bench.webhook_id(), at(minute * MINUTE))];
        bench.store().last_successes(bench.tenant.clone(), asked).await.unwrap()
    };
    assert_eq!(by(100).await, []);
    let failed = (10, Some(FailureCategory::Dns));
    add(bench, vec![minute(webhook, 0, &[failed])]).await;
    let other = bench.webhook_id();
    add(bench, vec![minute(other, 9, &[(10, None)])]).await;
    assert_eq!(by(100).await, []);
    add(bench, vec![minute(webhook, 2, &[failed, (10, None), failed]), minute(webhook, 1, &[(10, None)])])
        .await;
    add(bench, vec![minute(webhook, 5, &[failed])]).await;
    assert_eq!(by(100).await, [(webhook, at(2 * MINUTE + 1))]);
    assert_eq!(by(2).await, [(webhook, at(2 * MINUTE + 1))], "the minute itself counts");
    assert_eq!(by(1).await, [(webhook, at(MINUTE))]);
    assert_eq!(by(0).await, []);
    let mut both = bench
        .store()
        .last_successes(bench.tenant.clone(), vec![(webhook, Time::FOREVER), (other, Time::FOREVER)])
        .await
        .unwrap();
    both.sort_unstable();
    let mut expected = [(webhook, at(2 * MINUTE + 1)), (other, at(9 * MINUTE))];
    expected.sort_unstable();
    assert_eq!(both, expected);
}

pub async fn webhooks_that_fail_are_found_however_many_do_not(bench: &Arc<Bench>) {
    let [one, other] = [bench.webhook, bench.webhook_id()];
    let globex = bench.new_tenant("globex").await;
    let ok = (10, None);
    let failed = (10, Some(FailureCategory::ServerError));
    let fine = (0..50).map(|n| minute(bench.webhook_id(), n, &[ok, ok]));
    add(bench, fine.collect()).await;
    add(bench, vec![minute(one, 3, &[ok]), minute(other, 3, &[failed, ok]), minute(one, 5, &[failed; 3])])
        .await;
    // A minute that went well until it did not, and one that another node knows more of.
    add(bench, vec![minute(one, 3, &[failed]), minute(other, 3, &[ok]), minute(other, 1, &[failed])]).await;
    add(bench, vec![minute_of(&globex, bench.webhook_id(), 4, &[failed])]).await;
    let look = async |from: i64, most| {
        let found = bench.store().failures(bench.tenant.clone(), at(from * MINUTE), most).await.unwrap();
        let mut by_webhook = found.by_webhook;
        by_webhook.sort_unstable_by_key(|(webhook, _)| *webhook);
        Failures { by_webhook, ..found }
    };
    let found = |counts: &[(WebhookId, u64)], since: Option<i64>| Failures {
        by_webhook: counts.to_vec(),
        only_since: since.map(|minute| at(minute * MINUTE)),
    };
    assert_eq!(look(0, 100).await, found(&[(one, 4), (other, 2)], None));
    assert_eq!(look(0, 4).await, found(&[(one, 4), (other, 2)], None), "as many as there are");
    assert_eq!(look(3, 100).await, found(&[(one, 4), (other, 1)], None));
    assert_eq!(look(4, 100).await, found(&[(one, 3)], None));
    assert_eq!(look(6, 100).await, Failures::default());
    let few = look(0, 2).await;
    assert_eq!(few.only_since, Some(at(3 * MINUTE)));
    assert!(few.by_webhook.iter().any(|(webhook, failures)| *webhook == one && *failures >= 3), "{few:?}");
}

fn hour(tenant: &TenantId, grain: Grain, start: i64, attempts: u32, dead: u64) -> TenantRollup {
    let mut sent = Rollup::default();
    for n in 0..attempts {
        let category = (n % 3 == 1).then_some(FailureCategory::Network);
        sent.add(u64::from(n) * 5000, category, at(start * MINUTE + i64::from(n)));
    }
    let start = at(start * MINUTE);
    let ended = Ended { delivered: u64::from(attempts), dead, cancelled: 1 };
    TenantRollup {
        tenant: tenant.clone(),
        grain,
        start,
        kept_until: start + grain.kept(),
        traffic: Traffic { sent, ended },
    }
}

pub async fn traffic_is_added_up_and_read_from_a_time_on(bench: &mut Arc<Bench>) {
    let globex = bench.new_tenant("globex").await;
    let acme = bench.tenant.clone();
    let minute = |n, attempts, dead| hour(&acme, Grain::Minute, n, attempts, dead);
    let first = vec![minute(0, 5, 1), hour(&globex, Grain::Minute, 0, 7, 0), minute(2, 0, 2)];
    bench.store().add_figures(vec![], first.clone()).await.unwrap();
    Bench::reopen(bench).await;
    // Several of one at a time, and a minute beside an hour that begins with it.
    let more = vec![minute(0, 2, 0), minute(0, 1, 1), minute(1, 3, 0), hour(&acme, Grain::Hour, 0, 9, 9)];
    bench.store().add_figures(vec![], more.clone()).await.unwrap();
    bench.store().add_figures(vec![], vec![]).await.unwrap();
    let sum = |of: &[&TenantRollup]| {
        let mut sum = Traffic::default();
        of.iter().for_each(|one| sum.merge(&one.traffic));
        (of[0].start, sum)
    };
    let all = [sum(&[&first[0], &more[0], &more[1]]), sum(&[&more[2]]), sum(&[&first[2]])];
    let read = async |tenant: &TenantId, grain, from| {
        bench.store().traffic(tenant.clone(), grain, from).await.unwrap()
    };
    assert_eq!(read(&acme, Grain::Minute, at(0)).await, all);
    assert_eq!(read(&acme, Grain::Minute, at(1)).await, all[1..]);
    assert_eq!(read(&acme, Grain::Minute, at(2 * MINUTE)).await, all[2..]);
    assert_eq!(read(&acme, Grain::Minute, at(3 * MINUTE)).await, []);
    assert_eq!(read(&acme, Grain::Hour, at(0)).await, [sum(&[&more[3]])]);
    assert_eq!(read(&globex, Grain::Minute, at(0)).await, [sum(&[&first[1]])]);
}

pub async fn figures_are_added_all_or_nothing_by_many_at_once(bench: &Arc<Bench>) {
    let webhooks = [bench.webhook, bench.webhook_id(), bench.webhook_id()];
    let adds = (0..12_usize).map(|n| {
        let bench = bench.clone();
        async move {
            // In other orders each time, as several nodes would.
            let mut minutes: Vec<_> = webhooks
                .iter()
                .flat_map(|webhook| (0..3).map(|m| minute(*webhook, m, &[(1000, None)])))
                .collect();
            minutes.rotate_left(n % 9);
            let mut traffic: Vec<_> =
                (0..3).flat_map(|m| Grain::ALL.map(|grain| hour(&bench.tenant, grain, m, 1, 0))).collect();
            traffic.rotate_left(n % 6);
            bench.store().add_figures(minutes, traffic).await.unwrap();
        }
    });
    super::together(adds).await;
    let minutes = bench.store().rollups(None, webhooks.to_vec(), at(0)).await.unwrap();
    assert_eq!(minutes.len(), 9);
    assert!(minutes.iter().all(|one| one.rollup.attempts == 12 && one.rollup.latencies.count() == 12));
    for grain in Grain::ALL {
        let traffic = bench.store().traffic(bench.tenant.clone(), grain, at(0)).await.unwrap();
        let counts: Vec<_> =
            traffic.iter().map(|(_, one)| (one.sent.attempts, one.ended.cancelled)).collect();
        assert_eq!(counts, [(12, 12); 3]);
    }
}

pub async fn traffic_is_forgotten_in_bounded_steps_when_its_time_is_over(bench: &Arc<Bench>) {
    let minutes = (0..4).map(|n| hour(&bench.tenant, Grain::Minute, n, 1, 0));
    let hours = (0..2).map(|n| hour(&bench.tenant, Grain::Hour, 60 * n, 1, 0));
    let rows: Vec<_> = minutes.chain(hours).collect();
    bench.store().add_figures(vec![], rows.clone()).await.unwrap();
    let forget = async |now, limit| bench.store().forget_traffic(now, limit).await.unwrap();
    assert_eq!(forget(rows[0].kept_until.back(std::time::Duration::from_millis(1)), 10).await, 0);
    assert_eq!(forget(rows[2].kept_until, 2).await, 2);
    assert_eq!(forget(rows[2].kept_until, 2).await, 1);
    assert_eq!(forget(rows[2].kept_until, 2).await, 0);
    let left = async |grain| bench.store().traffic(bench.tenant.clone(), grain, at(0)).await.unwrap().len();
    assert_eq!((left(Grain::Minute).await, left(Grain::Hour).await), (1, 2));
    assert_eq!(forget(rows[4].kept_until, 10).await, 2);
    assert_eq!((left(Grain::Minute).await, left(Grain::Hour).await), (0, 1));
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
