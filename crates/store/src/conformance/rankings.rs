//! Rankings of the tenants and webhooks of the whole store.

use std::sync::Arc;

use redrive_core::{
    DeadReason, FailureCategory, TenantId, Time, WebhookId,
    delivery::outcome::Outcome,
    protection::breaker::{CircuitState, Forced, SavedCircuit},
    statistics::{
        rollup::Rollup,
        traffic::{EndedCounts, Resolution, Traffic},
    },
    webhook::failures::FailingRule,
};

use super::{Harness, at, closed};
use crate::{
    AttemptSums, FailingChange, InitialState, MinuteRollup, OutcomeRecord, PublishResult, RedriveResult,
    TenantRollup, TrafficRanking, TrafficRankingRequest, WebhookEffects, WebhookOfTenant,
    model::{DEAD_LETTERS_PER_READ, TENANTS_PER_READ},
};

const MINUTE: i64 = 60_000;

/// Returns the start of a minute.
fn minute(n: i64) -> Time {
    Resolution::Minute.start(at(n * MINUTE))
}

fn tenant_webhook(tenant_id: &TenantId, webhook_id: WebhookId) -> WebhookOfTenant {
    WebhookOfTenant { tenant_id: tenant_id.clone(), webhook_id }
}

/// Publishes to this webhook of the harness's tenant and marks the delivery dead.
async fn die(harness: &Harness, webhook_id: WebhookId) -> redrive_core::DeliveryId {
    let new = harness.fan_out(harness.event(at(0)), &[(webhook_id, InitialState::Leased)]);
    let id = new.deliveries[0].id;
    harness.publish_new(new).await;
    let outcome = harness.outcome(id, 1, Outcome::Dead(DeadReason::Expired), at(1));
    harness.record(OutcomeRecord { webhook_id, ..outcome }).await;
    id
}

fn rollup(at_minute: i64, attempts: u32, failures: u32) -> Rollup {
    let mut rollup = Rollup::default();
    for n in 0..attempts {
        rollup.add(1_000, (n < failures).then_some(FailureCategory::ServerError), minute(at_minute));
    }
    rollup
}

/// Stores attempts and dead deliveries of a webhook and its tenant in one minute.
async fn count(harness: &Harness, webhook: &WebhookOfTenant, at_minute: i64, sums: (u32, u32), dead: u64) {
    let WebhookOfTenant { tenant_id, webhook_id } = webhook.clone();
    let rollup = rollup(at_minute, sums.0, sums.1);
    let one = MinuteRollup {
        tenant_id: tenant_id.clone(),
        webhook_id,
        minute: minute(at_minute),
        rollup: rollup.clone(),
    };
    let tenant = |resolution: Resolution| TenantRollup {
        tenant_id: tenant_id.clone(),
        resolution,
        start: resolution.start(minute(at_minute)),
        expires_at: minute(1_000),
        traffic: Traffic { sent: rollup.clone(), ended: EndedCounts { delivered: 7, dead, cancelled: 3 } },
    };
    let traffic = Resolution::ALL.map(tenant).to_vec();
    harness.store().add_rollups(vec![one], traffic).await.unwrap();
}

fn request(attempts_from: i64, dead_from: i64) -> TrafficRankingRequest {
    TrafficRankingRequest {
        attempts_from: minute(attempts_from),
        dead_from: minute(dead_from),
        tolerated_failure_percent: 10,
        min_attempts: 20,
        max: 10,
    }
}

async fn traffic(harness: &Harness, attempts_from: i64, dead_from: i64) -> TrafficRanking {
    harness.store().rank_traffic(request(attempts_from, dead_from)).await.unwrap()
}

fn sums(attempts: u64, failures: u64) -> AttemptSums {
    AttemptSums { attempts, failures }
}

pub async fn dead_letters_are_ranked_by_tenant_and_webhook(harness: &Arc<Harness>) {
    let rank = async || harness.store().rank_dead_letters(10).await.unwrap();
    assert_eq!(rank().await, Default::default());
    let webhooks = [harness.webhook_id(), harness.webhook_id(), harness.webhook_id()];
    for (webhook_id, count) in webhooks.into_iter().zip([2, 3, 1]) {
        for _ in 0..count {
            die(harness, webhook_id).await;
        }
    }
    let ranking = rank().await;
    assert_eq!(ranking.tenants.top, [(harness.tenant_id.clone(), 6)]);
    assert_eq!((ranking.tenants.total, ranking.tenants.count), (6, 1));
    let expected = [(webhooks[1], 3), (webhooks[0], 2), (webhooks[2], 1)];
    let expected =
        expected.map(|(webhook_id, count)| (tenant_webhook(&harness.tenant_id, webhook_id), count));
    assert_eq!(ranking.webhooks.top, expected);
    assert_eq!((ranking.webhooks.total, ranking.webhooks.count), (6, 3));
}

pub async fn dead_letters_of_several_reads_are_ranked(harness: &Arc<Harness>) {
    const WEBHOOKS: usize = 10;
    let mut webhooks: Vec<_> = (0..WEBHOOKS).map(|_| harness.webhook_id()).collect();
    let lanes: Vec<_> =
        webhooks.iter().map(|id| (harness.lane_of(*id), InitialState::Waiting(at(0)))).collect();
    let each = DEAD_LETTERS_PER_READ / WEBHOOKS + 1;
    let published: Vec<_> =
        (0..each).map(|_| harness.submit(harness.fan_out_to(harness.event(at(0)), &lanes))).collect();
    for published in published {
        assert!(matches!(published.await.unwrap(), Ok(PublishResult::New { .. })));
    }
    for webhook_id in &webhooks {
        while !harness
            .store()
            .expire_deliveries(*webhook_id, at(1), at(2), 1_000, None)
            .await
            .unwrap()
            .finished
        {}
    }
    let all = (WEBHOOKS * each) as u64;
    let ranking = harness.store().rank_dead_letters(3).await.unwrap();
    assert_eq!(ranking.tenants.top, [(harness.tenant_id.clone(), all)]);
    webhooks.sort_unstable();
    let first = webhooks.iter().take(3).map(|id| (tenant_webhook(&harness.tenant_id, *id), each as u64));
    assert_eq!(ranking.webhooks.top, first.collect::<Vec<_>>());
    assert_eq!((ranking.webhooks.total, ranking.webhooks.count), (all, WEBHOOKS as u64));
}

pub async fn redriven_dead_letters_leave_the_ranking(harness: &Arc<Harness>) {
    let webhook_id = harness.webhook_id;
    let (first, _) = (die(harness, webhook_id).await, die(harness, webhook_id).await);
    let again = harness.delivery_id(at(0));
    let retried = harness.retry(first, harness.redrive_options(again), at(5)).await;
    assert!(!matches!(retried, RedriveResult::NotFound), "{retried:?}");
    let ranking = harness.store().rank_dead_letters(10).await.unwrap();
    assert_eq!(ranking.webhooks.top, [(tenant_webhook(&harness.tenant_id, webhook_id), 1)]);
}

pub async fn attempts_are_ranked_by_intolerable_failures(harness: &Arc<Harness>) {
    let (initech, globex) = (harness.new_tenant("initech").await, harness.new_tenant("globex").await);
    let webhook = |tenant_id: &TenantId| tenant_webhook(tenant_id, harness.webhook_id());
    let (busy, broken, quiet) = (webhook(&initech), webhook(&globex), webhook(&globex));
    // Many failures, all of them tolerated; a successful minute counts too.
    count(harness, &busy, 10, (1_000, 100), 0).await;
    count(harness, &busy, 11, (500, 0), 0).await;
    count(harness, &broken, 10, (15, 15), 0).await;
    count(harness, &broken, 12, (15, 14), 0).await;
    // Fails, with too few attempts to say so.
    count(harness, &quiet, 10, (3, 3), 0).await;
    count(harness, &webhook(&initech), 10, (40, 0), 0).await;
    // One bad minute among good ones is tolerated.
    let mixed = webhook(&globex);
    count(harness, &mixed, 10, (20, 5), 0).await;
    count(harness, &mixed, 11, (180, 0), 0).await;
    // Too early.
    count(harness, &busy, 9, (900, 900), 0).await;
    let ranking = traffic(harness, 10, 10).await;
    let expected = [
        (broken.clone(), sums(30, 29)),
        (quiet, sums(3, 3)),
        (mixed, sums(200, 5)),
        (busy.clone(), sums(1_500, 100)),
    ];
    assert_eq!(ranking.webhooks.top, expected);
    assert_eq!((ranking.webhooks.total, ranking.webhooks.count), (sums(1_773, 137), 1));
    assert_eq!(
        ranking.tenants.top,
        [(globex.clone(), sums(233, 37)), (initech.clone(), sums(1_540, 100))],
        "tenants are ranked alike"
    );
    assert_eq!((ranking.tenants.total, ranking.tenants.count), (sums(1_773, 137), 1));
    let later = traffic(harness, 12, 12).await;
    assert_eq!(later.webhooks.top, [(broken, sums(15, 14))]);
    assert_eq!((later.webhooks.count, later.tenants.top.len()), (0, 1), "15 attempts are too few");
    assert_eq!(traffic(harness, 13, 13).await, TrafficRanking::default());
}

pub async fn dead_deliveries_are_ranked_by_tenant(harness: &Arc<Harness>) {
    let (initech, globex) = (harness.new_tenant("initech").await, harness.new_tenant("globex").await);
    let idle = harness.new_tenant("idle").await;
    for (tenant_id, minute, dead) in
        [(&initech, 5, 4), (&initech, 61, 1), (&globex, 61, 2), (&initech, 2, 9), (&idle, 61, 0)]
    {
        count(harness, &tenant_webhook(tenant_id, harness.webhook_id()), minute, (1, 0), dead).await;
    }
    let ranking = traffic(harness, 61, 3).await;
    assert_eq!(ranking.dead.top, [(initech, 5), (globex, 2)]);
    assert_eq!((ranking.dead.total, ranking.dead.count), (7, 2));
    assert_eq!((ranking.tenants.total, ranking.tenants.top.len()), (sums(3, 0), 0), "nothing has failed");
}

pub async fn rankings_are_bounded(harness: &Arc<Harness>) {
    let [initech, globex] = [harness.new_tenant("initech").await, harness.new_tenant("globex").await];
    for (tenant_id, failures) in [(&initech, 20), (&globex, 30)] {
        count(harness, &tenant_webhook(tenant_id, harness.webhook_id()), 10, (30, failures), failures.into())
            .await;
    }
    for _ in 0..2 {
        die(harness, harness.webhook_id()).await;
    }
    let store = harness.store();
    let ranking = store.rank_traffic(TrafficRankingRequest { max: 1, ..request(10, 10) }).await.unwrap();
    assert_eq!(ranking.tenants.top, [(globex.clone(), sums(30, 30))]);
    assert_eq!((ranking.tenants.total, ranking.tenants.count), (sums(60, 50), 2));
    assert_eq!((ranking.webhooks.top.len(), ranking.webhooks.count), (1, 2));
    assert_eq!((&ranking.dead.top[..], ranking.dead.total), (&[(globex, 30)][..], 50));
    let dead = store.rank_dead_letters(1).await.unwrap();
    assert_eq!((dead.webhooks.top.len(), dead.webhooks.total, dead.webhooks.count), (1, 2, 2));
    assert_eq!(dead.tenants.top.len(), 1);
}

pub async fn unclosed_circuits_are_listed_by_their_time_without_success(harness: &Arc<Harness>) {
    let list = async |max| {
        let circuits = harness.store().longest_unclosed_circuits(max).await.unwrap();
        let parts = circuits.into_iter().map(|one| (one.webhook.webhook_id, one.state, one.since));
        parts.collect::<Vec<_>>()
    };
    assert_eq!(list(10).await, []);
    let webhooks = [harness.webhook_id(), harness.webhook_id(), harness.webhook_id()];
    let set = async |webhook_id, state, generation, since: Time, forced| {
        let circuit = SavedCircuit { state, generation, since, forced, ..closed() };
        harness.store().set_circuit(harness.tenant_id.clone(), webhook_id, circuit, None).await.unwrap();
    };
    set(webhooks[0], CircuitState::Open, 1, at(300), None).await;
    set(webhooks[1], CircuitState::Open, 1, at(100), None).await;
    set(webhooks[2], CircuitState::HalfOpen, 2, at(200), None).await;
    let forced = Forced { open: false, until: None, by: "jane".into() };
    set(harness.webhook_id(), CircuitState::Closed, 1, at(1), Some(forced.clone())).await;
    // A circuit that was forced open is open on purpose.
    let paused = Forced { open: true, until: Some(at(9_000)), ..forced };
    set(harness.webhook_id(), CircuitState::Open, 1, at(1), Some(paused)).await;
    // It failed before its circuit opened, and its probes do not change that.
    let new = harness.fan_out(harness.event(at(0)), &[(webhooks[1], InitialState::Leased)]);
    let id = new.deliveries[0].id;
    harness.publish_new(new).await;
    let failed = FailingChange::Failed {
        since: at(50),
        category: FailureCategory::Timeout,
        rule: FailingRule::default(),
    };
    let effects = WebhookEffects { failing: Some(failed), ..Default::default() };
    let outcome = harness.outcome(id, 1, Outcome::Dead(DeadReason::Expired), at(60));
    harness.record(OutcomeRecord { webhook_id: webhooks[1], effects, ..outcome }).await;
    set(webhooks[1], CircuitState::HalfOpen, 2, at(400), None).await;
    set(webhooks[1], CircuitState::Open, 3, at(500), None).await;
    let expected = [
        (webhooks[1], CircuitState::Open, at(50)),
        (webhooks[2], CircuitState::HalfOpen, at(200)),
        (webhooks[0], CircuitState::Open, at(300)),
    ];
    assert_eq!(list(10).await, expected);
    assert_eq!(list(2).await, expected[..2]);
    set(webhooks[1], CircuitState::Closed, 4, at(700), None).await;
    assert_eq!(list(10).await, expected[1..]);
}

pub async fn tenants_of_several_reads_are_ranked_together(harness: &Arc<Harness>) {
    let mut tenants = Vec::new();
    for n in 0..=2 * TENANTS_PER_READ {
        tenants.push(harness.new_tenant(&format!("t{n:04}")).await);
    }
    let (first, last) = (&tenants[0], &tenants[2 * TENANTS_PER_READ]);
    for (tenant_id, failures) in [(first, 21), (&tenants[TENANTS_PER_READ], 25), (last, 23)] {
        count(harness, &tenant_webhook(tenant_id, harness.webhook_id()), 10, (30, failures), failures.into())
            .await;
    }
    let ranking = traffic(harness, 10, 10).await;
    let failures: Vec<_> = ranking.tenants.top.iter().map(|(_, sums)| sums.failures).collect();
    assert_eq!(failures, [25, 23, 21]);
    assert_eq!((ranking.tenants.total, ranking.tenants.count), (sums(90, 69), 3));
    let failures: Vec<_> = ranking.webhooks.top.iter().map(|(_, sums)| sums.failures).collect();
    assert_eq!((failures, ranking.webhooks.count), (vec![25, 23, 21], 3));
    let dead: Vec<_> = ranking.dead.top.iter().map(|(_, dead)| *dead).collect();
    assert_eq!((dead, ranking.dead.total, ranking.dead.count), (vec![25, 23, 21], 69, 3));
}
