//! Lanes: which one a delivery waits in, and which nodes claim from it.

use redrive_core::delivery::outcome::Outcome;
use std::sync::Arc;

use redrive_core::{
    DeadReason, DeliveryId, Time, WebhookId,
    delivery::lane::{Lane, Priority},
    event::{Event, PayloadFormat},
    tenancy::{DEFAULT_POOL, TenantRules},
};

use super::{END, FRESH, Harness, RETRY, at, ids, order};
use crate::{
    DueLanes, InitialState, LaneKey, NewEvent, NewRound, PublishResult, RedriveOptions, RedriveResult,
    ReplayResult, Tenant, UpdateResult,
};

fn free(priority: Priority, retry: bool) -> Lane {
    Lane::Unordered { priority, retry }
}

pub async fn retry_moves_to_the_retry_lane(harness: &Arc<Harness>) {
    for priority in Priority::ALL {
        let event = Event { priority, ..harness.event(at(0)) };
        let new = harness.fan_out(event, &[(harness.webhook_id, InitialState::Waiting(at(0)))]);
        let id = new.deliveries[0].id;
        harness.publish_new(new).await;
        let (fresh, retry) = (harness.own(free(priority, false)), harness.own(free(priority, true)));
        assert_eq!(harness.due_lanes(at(0)).await, std::slice::from_ref(&fresh));
        let claim = harness.claim_lane(fresh.clone(), at(0), 1).await;
        assert_eq!((ids(&claim.deliveries), claim.deliveries[0].event.priority), (vec![id], priority));
        for attempt in 1..3 {
            harness.record(harness.outcome(id, attempt, Outcome::Retry { at: at(50) }, at(1))).await;
            assert_eq!(harness.due_lanes(at(50)).await, std::slice::from_ref(&retry));
            assert_eq!(ids(&harness.claim_lane(fresh.clone(), at(50), 1).await.deliveries), []);
            assert_eq!(ids(&harness.claim_lane(retry.clone(), at(50), 1).await.deliveries), [id]);
        }
        assert_eq!(harness.delivery(id).await.priority, priority);
        harness.record(harness.outcome(id, 3, Outcome::Delivered, at(51))).await;
    }
}

pub async fn released_delivery_returns_to_its_lane(harness: &Arc<Harness>) {
    for lane in [free(Priority::High, false), free(Priority::Low, true), order("a")] {
        let id = harness.waiting_in(&lane, at(0), at(0)).await;
        let key = harness.own(lane);
        let node = harness.new_epoch().await;
        assert_eq!(ids(&harness.claim_lane_as(node, key.clone(), at(0), 1).await.deliveries), [id]);
        harness.store().release(node, at(1), vec![(id, at(1))]).await.unwrap();
        assert_eq!(harness.due_lanes(at(1)).await, std::slice::from_ref(&key));
        harness.claim_lane_as(node, key.clone(), at(1), 1).await;
        assert_eq!(harness.rescue(node, at(2)).await, 1);
        assert_eq!(harness.due_lanes(at(2)).await, std::slice::from_ref(&key));
        assert_eq!(ids(&harness.claim_lane(key, at(2), 1).await.deliveries), [id]);
    }
}

pub async fn claim_takes_only_from_the_named_lane(harness: &Arc<Harness>) {
    let mut expected = Vec::new();
    for retry in [false, true] {
        for priority in Priority::ALL {
            let lane = free(priority, retry);
            expected.push((harness.own(lane.clone()), harness.waiting_in(&lane, at(0), at(0)).await));
        }
    }
    for key in ["", "a", "hf"] {
        expected.push((harness.own(order(key)), harness.waiting_in(&order(key), at(0), at(0)).await));
    }
    for (key, id) in expected {
        let claim = harness.claim_lane(key.clone(), at(0), 10).await;
        assert_eq!((ids(&claim.deliveries), claim.has_more_due), (vec![id], false), "{key:?}");
    }
}

/// Retries a delivery with another priority.
async fn retry(harness: &Harness, id: DeliveryId, priority: Option<Priority>, now: Time) -> RedriveResult {
    harness
        .retry(id, RedriveOptions { priority, ..harness.redrive_options(harness.delivery_id(at(0))) }, now)
        .await
}

pub async fn retry_can_change_the_priority_of_a_waiting_delivery(harness: &Arc<Harness>) {
    let first = harness.waiting_in(&RETRY, at(0), at(500)).await;
    let changed = harness.waiting_in(&RETRY, at(0), at(400)).await;
    assert_eq!(retry(harness, changed, Some(Priority::High), at(10)).await, RedriveResult::DueNow(changed));
    let key = harness.own(free(Priority::High, true));
    let query = harness.due_lanes_for_default_pool(at(10)).await;
    assert_eq!(
        (query.lanes, query.next_wake),
        (vec![key.clone()], Some(at(500))),
        "its old lane no longer contains it"
    );
    let shown = harness.delivery(changed).await;
    assert_eq!((shown.priority, shown.due), (Priority::High, Some(at(10))));
    assert_eq!(retry(harness, changed, None, at(11)).await, RedriveResult::DueNow(changed));
    assert_eq!(harness.delivery(changed).await.priority, Priority::High, "its priority is unchanged");
    assert_eq!(ids(&harness.claim_lane(key, at(11), 10).await.deliveries), [changed]);

    assert_eq!(retry(harness, first, Some(Priority::Low), at(20)).await, RedriveResult::DueNow(first));
    let key = harness.own(free(Priority::Low, true));
    let query = harness.due_lanes_for_default_pool(at(20)).await;
    assert_eq!((query.lanes, query.next_wake), (vec![key], None), "an empty lane is deleted");
}

pub async fn new_round_can_have_another_priority(harness: &Arc<Harness>) {
    let old = harness.dead(at(0)).await;
    let id = harness.delivery_id(at(0));
    let options = RedriveOptions { priority: Some(Priority::High), ..harness.redrive_options(id) };
    assert_eq!(harness.retry(old, options, at(1)).await, RedriveResult::NewRound(id));
    assert_eq!(harness.due_lanes(at(1)).await, [harness.own(free(Priority::High, true))]);
    let shown = (harness.delivery(id).await.priority, harness.delivery(old).await.priority);
    assert_eq!(shown, (Priority::High, Priority::Normal));
    harness.claim_one(at(1)).await;
    harness.ends(id, Outcome::Dead(DeadReason::Exhausted), at(2)).await;

    // Without a given priority, a retry keeps the priority of the delivery and a replay that of the event.
    let second = harness.delivery_id(at(0));
    assert_eq!(
        harness.retry(id, harness.redrive_options(second), at(3)).await,
        RedriveResult::NewRound(second)
    );
    assert_eq!(harness.delivery(second).await.priority, Priority::High);
    harness.claim_one(at(3)).await;
    harness.ends(second, Outcome::Delivered, at(4)).await;
    for (given, expected) in [(None, Priority::Normal), (Some(Priority::Low), Priority::Low)] {
        let (id, webhook_id, format) =
            (harness.delivery_id(at(0)), harness.webhook_id, PayloadFormat::Envelope);
        let rounds = vec![NewRound { id, webhook_id, format, lane: RETRY }];
        let event_id = harness.delivery(old).await.event_id;
        let response =
            harness.store().replay(harness.tenant_id.clone(), event_id, rounds, given, at(5)).await.unwrap();
        assert_eq!(response, ReplayResult::Done(vec![id]));
        assert_eq!(harness.delivery(id).await.priority, expected);
        let claim = harness.claim_lane(harness.own(free(expected, true)), at(5), 10).await;
        assert_eq!(ids(&claim.deliveries), [id]);
        harness.ends(id, Outcome::Delivered, at(6)).await;
    }
}

async fn due_lanes(harness: &Harness, pools: &[&str], now: i64) -> DueLanes {
    let pools = pools.iter().map(|pool| (*pool).to_owned()).collect();
    harness.store().due_lanes(harness.epoch, pools, at(now), 10).await.unwrap()
}

async fn use_pool(harness: &Harness, tenant: &Tenant, pool: Option<&str>) {
    let rules = TenantRules { pool: pool.map(Into::into), ..TenantRules::default() };
    assert!(harness.store().change_tenant(Tenant { rules, ..tenant.clone() }).await.unwrap());
}

/// Publishes with the tenant's current configuration version.
async fn wait_on(harness: &Harness, webhook_id: WebhookId, tenant: &Tenant, due: i64) -> DeliveryId {
    let version = harness.store().config_changes(tenant.id.clone(), 0, 1_000).await.unwrap().unwrap().version;
    let event = Event { tenant_id: tenant.id.clone(), ..harness.event(at(0)) };
    let new = harness.fan_out(event, &[(webhook_id, InitialState::Waiting(at(due)))]);
    let id = new.deliveries[0].id;
    harness.publish_new(NewEvent { config_version: version, ..new }).await;
    id
}

/// Creates a tenant in a pool of its own, with a webhook.
async fn pooled(harness: &Harness, name: &str, pool: &str) -> (Tenant, LaneKey) {
    let rules = TenantRules { pool: Some(pool.into()), ..TenantRules::default() };
    let id = redrive_core::TenantId::parse(name).unwrap();
    let tenant = Tenant { id, metadata: Default::default(), name: None, rules, created_at: at(0) };
    assert!(harness.store().create_tenant(tenant.clone()).await.unwrap());
    let webhook = harness.webhook_of(&tenant.id);
    let response = harness.store().create_webhook(webhook.clone()).await.unwrap();
    assert!(matches!(response, UpdateResult::Updated { .. }));
    (tenant, LaneKey { webhook_id: webhook.id, lane: FRESH })
}

pub async fn due_lanes_excludes_other_pools(harness: &Arc<Harness>) {
    let (slow, slow_lane) = pooled(harness, "globex", "slow").await;
    let (fast, fast_lane) = pooled(harness, "initech", "fast").await;
    wait_on(harness, slow_lane.webhook_id, &slow, 20).await;
    wait_on(harness, fast_lane.webhook_id, &fast, 10).await;
    harness.waiting(at(0), at(30)).await;
    let (slow_lane, fast_lane) = ([slow_lane], [fast_lane]);
    assert_eq!(due_lanes(harness, &["slow"], 100).await.lanes, slow_lane);
    assert_eq!(due_lanes(harness, &["fast"], 100).await.lanes, fast_lane);
    assert_eq!(due_lanes(harness, &[DEFAULT_POOL], 100).await.lanes, [harness.lane()]);
    assert_eq!(due_lanes(harness, &["unknown"], 100).await, DueLanes::default());
    assert_eq!(due_lanes(harness, &[], 100).await, DueLanes::default());
    // Across pools the longest overdue lane comes first, and the next wake is the earliest.
    let all = due_lanes(harness, &["slow", DEFAULT_POOL, "fast"], 100).await;
    assert_eq!(all.lanes, [&fast_lane[..], &slow_lane, &[harness.lane()]].concat());
    let two = harness
        .store()
        .due_lanes(harness.epoch, ["slow", "default", "fast"].map(Into::into).to_vec(), at(100), 2)
        .await;
    assert_eq!(two.unwrap().lanes, all.lanes[..2]);
    let next = due_lanes(harness, &["slow", DEFAULT_POOL], 0).await;
    assert_eq!((next.lanes, next.next_wake), (vec![], Some(at(20))));
}

pub async fn changing_the_tenant_pool_moves_its_lanes(harness: &mut Arc<Harness>) {
    let tenant = harness.store().tenant(harness.tenant_id.clone()).await.unwrap().unwrap();
    harness.waiting(at(0), at(0)).await;
    harness.waiting_in(&order("a"), at(0), at(0)).await;
    for _ in 0..2 {
        harness.waiting_in(&RETRY, at(0), at(0)).await;
    }
    assert!(harness.claim_lane(harness.own(RETRY), at(0), 1).await.has_more_due, "this lane is claimed");
    let (theirs, their_lane) = pooled(harness, "globex", "theirs").await;
    wait_on(harness, their_lane.webhook_id, &theirs, 0).await;
    let stale = harness.new_event(at(1), InitialState::Leased);
    use_pool(harness, &tenant, Some("slow")).await;
    assert_eq!(harness.publish(stale).await, PublishResult::ConfigChanged);
    Harness::reopen(harness).await;

    assert_eq!(due_lanes(harness, &[DEFAULT_POOL], END).await, DueLanes::default());
    let mut changed = due_lanes(harness, &["slow"], END).await.lanes;
    changed.sort();
    let mut expected = [FRESH, RETRY, order("a")].map(|lane| harness.own(lane));
    expected.sort();
    assert_eq!(changed, expected, "the node that had claimed a lane may not serve that pool");
    assert_eq!(due_lanes(harness, &["theirs"], END).await.lanes, [their_lane]);
    let changes = harness
        .store()
        .config_changes(harness.tenant_id.clone(), harness.version(), 1_000)
        .await
        .unwrap()
        .unwrap();
    assert_eq!((changes.rules.pool(), changes.version > harness.version()), ("slow", true));

    use_pool(harness, &tenant, None).await;
    assert_eq!(due_lanes(harness, &["slow"], END).await, DueLanes::default());
    assert_eq!(harness.due_lanes(at(END)).await.len(), 3);
}

pub async fn new_lanes_get_the_tenant_pool(harness: &Arc<Harness>) {
    let tenant = harness.store().tenant(harness.tenant_id.clone()).await.unwrap().unwrap();
    use_pool(harness, &tenant, Some("slow")).await;
    let id = wait_on(harness, harness.webhook_id, &tenant, 0).await;
    assert_eq!(harness.due_lanes(at(END)).await, []);
    assert_eq!(due_lanes(harness, &["slow"], 0).await.lanes, [harness.lane()]);
    harness.claim_one(at(0)).await;
    harness.ends(id, Outcome::Retry { at: at(50) }, at(1)).await;
    let query = due_lanes(harness, &["slow"], 1).await;
    assert_eq!((query.lanes, query.next_wake), (vec![], Some(at(50))));
}
