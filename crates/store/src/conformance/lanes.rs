//! Which queue a delivery waits in, and which nodes look there.

use std::sync::Arc;

use redrive_core::{
    DeadReason, DeliveryId, Time, WebhookId,
    delivery::lane::{Lane, Priority},
    event::{Event, PayloadFormat},
    tenancy::{DEFAULT_POOL, TenantRules},
};

use super::{Bench, END, FRESH, RETRY, at, ids, order};
use crate::{
    Again, Birth, Changed, DueLanes, LaneKey, NewEvent, NewRound, Next, Published, Redriven, Replayed, Tenant,
};

fn free(priority: Priority, retry: bool) -> Lane {
    Lane::Free { priority, retry }
}

pub async fn a_retry_leaves_the_fresh_lane(bench: &Arc<Bench>) {
    for priority in Priority::ALL {
        let event = Event { priority, ..bench.event(at(0)) };
        let new = bench.fan_out(event, &[(bench.webhook, Birth::Waiting(at(0)))]);
        let id = new.deliveries[0].id;
        bench.publish_new(new).await;
        let (fresh, retry) = (bench.own(free(priority, false)), bench.own(free(priority, true)));
        assert_eq!(bench.due_lanes(at(0)).await, std::slice::from_ref(&fresh));
        let claim = bench.claim_lane(fresh.clone(), at(0), 1).await;
        assert_eq!((ids(&claim.deliveries), claim.deliveries[0].event.priority), (vec![id], priority));
        for attempt in 1..3 {
            bench.record(bench.outcome(id, attempt, Next::Retry { due: at(50) }, at(1))).await;
            assert_eq!(bench.due_lanes(at(50)).await, std::slice::from_ref(&retry));
            assert_eq!(ids(&bench.claim_lane(fresh.clone(), at(50), 1).await.deliveries), []);
            assert_eq!(ids(&bench.claim_lane(retry.clone(), at(50), 1).await.deliveries), [id]);
        }
        assert_eq!(bench.delivery(id).await.priority, priority);
        bench.record(bench.outcome(id, 3, Next::Delivered, at(51))).await;
    }
}

pub async fn what_is_given_back_returns_to_its_lane(bench: &Arc<Bench>) {
    for lane in [free(Priority::High, false), free(Priority::Low, true), order("a")] {
        let id = bench.waiting_in(&lane, at(0), at(0)).await;
        let key = bench.own(lane);
        let node = bench.new_epoch().await;
        assert_eq!(ids(&bench.claim_lane_as(node, key.clone(), at(0), 1).await.deliveries), [id]);
        bench.store().release(node, at(1), vec![(id, at(1))]).await.unwrap();
        assert_eq!(bench.due_lanes(at(1)).await, std::slice::from_ref(&key));
        bench.claim_lane_as(node, key.clone(), at(1), 1).await;
        assert_eq!(bench.rescue(node, at(2)).await, 1);
        assert_eq!(bench.due_lanes(at(2)).await, std::slice::from_ref(&key));
        assert_eq!(ids(&bench.claim_lane(key, at(2), 1).await.deliveries), [id]);
    }
}

pub async fn a_claim_takes_from_the_lane_it_names_alone(bench: &Arc<Bench>) {
    let mut expected = Vec::new();
    for retry in [false, true] {
        for priority in Priority::ALL {
            let lane = free(priority, retry);
            expected.push((bench.own(lane.clone()), bench.waiting_in(&lane, at(0), at(0)).await));
        }
    }
    for key in ["", "a", "hf"] {
        expected.push((bench.own(order(key)), bench.waiting_in(&order(key), at(0), at(0)).await));
    }
    for (key, id) in expected {
        let claim = bench.claim_lane(key.clone(), at(0), 10).await;
        assert_eq!((ids(&claim.deliveries), claim.more), (vec![id], false), "{key:?}");
    }
}

/// Asks for a delivery to be retried with another urgency.
async fn retry(bench: &Bench, id: DeliveryId, priority: Option<Priority>, now: Time) -> Redriven {
    bench.retry(id, Again { priority, ..bench.again(bench.delivery_id(at(0))) }, now).await
}

pub async fn a_retry_can_make_what_waits_more_urgent(bench: &Arc<Bench>) {
    let first = bench.waiting_in(&RETRY, at(0), at(500)).await;
    let moved = bench.waiting_in(&RETRY, at(0), at(400)).await;
    assert_eq!(retry(bench, moved, Some(Priority::High), at(10)).await, Redriven::DueNow(moved));
    let key = bench.own(free(Priority::High, true));
    let look = bench.look(at(10)).await;
    assert_eq!(
        (look.lanes, look.next_wake),
        (vec![key.clone()], Some(at(500))),
        "its old lane lets go of it"
    );
    let shown = bench.delivery(moved).await;
    assert_eq!((shown.priority, shown.due), (Priority::High, Some(at(10))));
    assert_eq!(retry(bench, moved, None, at(11)).await, Redriven::DueNow(moved));
    assert_eq!(bench.delivery(moved).await.priority, Priority::High, "as urgent as it was");
    assert_eq!(ids(&bench.claim_lane(key, at(11), 10).await.deliveries), [moved]);

    assert_eq!(retry(bench, first, Some(Priority::Low), at(20)).await, Redriven::DueNow(first));
    let key = bench.own(free(Priority::Low, true));
    let look = bench.look(at(20)).await;
    assert_eq!((look.lanes, look.next_wake), (vec![key], None), "a lane with nothing left goes");
}

pub async fn a_new_round_can_be_more_urgent(bench: &Arc<Bench>) {
    let old = bench.dead(at(0)).await;
    let id = bench.delivery_id(at(0));
    let again = Again { priority: Some(Priority::High), ..bench.again(id) };
    assert_eq!(bench.retry(old, again, at(1)).await, Redriven::NewRound(id));
    assert_eq!(bench.due_lanes(at(1)).await, [bench.own(free(Priority::High, true))]);
    let shown = (bench.delivery(id).await.priority, bench.delivery(old).await.priority);
    assert_eq!(shown, (Priority::High, Priority::Normal));
    bench.claim_one(at(1)).await;
    bench.ends(id, Next::Dead { reason: DeadReason::Exhausted }, at(2)).await;

    // Without a word about it, a retry is as urgent as what it repeats, and a replay as its event.
    let second = bench.delivery_id(at(0));
    assert_eq!(bench.retry(id, bench.again(second), at(3)).await, Redriven::NewRound(second));
    assert_eq!(bench.delivery(second).await.priority, Priority::High);
    bench.claim_one(at(3)).await;
    bench.ends(second, Next::Delivered, at(4)).await;
    for (given, expected) in [(None, Priority::Normal), (Some(Priority::Low), Priority::Low)] {
        let (id, webhook, format) = (bench.delivery_id(at(0)), bench.webhook, PayloadFormat::Envelope);
        let rounds = vec![NewRound { id, webhook, format, lane: RETRY }];
        let event = bench.delivery(old).await.event;
        let answer = bench.store().replay(bench.tenant.clone(), event, rounds, given, at(5)).await.unwrap();
        assert_eq!(answer, Replayed::Done(vec![id]));
        assert_eq!(bench.delivery(id).await.priority, expected);
        let claim = bench.claim_lane(bench.own(free(expected, true)), at(5), 10).await;
        assert_eq!(ids(&claim.deliveries), [id]);
        bench.ends(id, Next::Delivered, at(6)).await;
    }
}

async fn look(bench: &Bench, pools: &[&str], now: i64) -> DueLanes {
    let pools = pools.iter().map(|pool| (*pool).to_owned()).collect();
    bench.store().due_lanes(bench.epoch, pools, at(now), 10).await.unwrap()
}

async fn use_pool(bench: &Bench, tenant: &Tenant, pool: Option<&str>) {
    let rules = TenantRules { pool: pool.map(Into::into), ..TenantRules::default() };
    assert!(bench.store().change_tenant(Tenant { rules, ..tenant.clone() }).await.unwrap());
}

/// Publishes from whatever version the tenant's webhooks have now.
async fn wait_on(bench: &Bench, webhook: WebhookId, tenant: &Tenant, due: i64) -> DeliveryId {
    let version = bench.store().config_changes(tenant.id.clone(), 0, 1_000).await.unwrap().unwrap().version;
    let event = Event { tenant: tenant.id.clone(), ..bench.event(at(0)) };
    let new = bench.fan_out(event, &[(webhook, Birth::Waiting(at(due)))]);
    let id = new.deliveries[0].id;
    bench.publish_new(NewEvent { config_version: version, ..new }).await;
    id
}

/// A tenant that a pool of its own sends for, with a webhook.
async fn pooled(bench: &Bench, name: &str, pool: &str) -> (Tenant, LaneKey) {
    let rules = TenantRules { pool: Some(pool.into()), ..TenantRules::default() };
    let id = redrive_core::TenantId::parse(name).unwrap();
    let tenant = Tenant { id, name: None, rules, created_at: at(0) };
    assert!(bench.store().create_tenant(tenant.clone()).await.unwrap());
    let webhook = bench.webhook_of(&tenant.id);
    let answer = bench.store().create_webhook(webhook.clone()).await.unwrap();
    assert!(matches!(answer, Changed::Done { .. }));
    (tenant, LaneKey { webhook: webhook.id, lane: FRESH })
}

pub async fn lanes_of_other_pools_are_not_given(bench: &Arc<Bench>) {
    let (slow, slow_lane) = pooled(bench, "globex", "slow").await;
    let (fast, fast_lane) = pooled(bench, "initech", "fast").await;
    wait_on(bench, slow_lane.webhook, &slow, 20).await;
    wait_on(bench, fast_lane.webhook, &fast, 10).await;
    bench.waiting(at(0), at(30)).await;
    let (slow_lane, fast_lane) = ([slow_lane], [fast_lane]);
    assert_eq!(look(bench, &["slow"], 100).await.lanes, slow_lane);
    assert_eq!(look(bench, &["fast"], 100).await.lanes, fast_lane);
    assert_eq!(look(bench, &[DEFAULT_POOL], 100).await.lanes, [bench.lane()]);
    assert_eq!(look(bench, &["nobody"], 100).await, DueLanes::default());
    assert_eq!(look(bench, &[], 100).await, DueLanes::default());
    // Of several pools together the longest overdue come first, and the next wake is the earliest.
    let all = look(bench, &["slow", DEFAULT_POOL, "fast"], 100).await;
    assert_eq!(all.lanes, [&fast_lane[..], &slow_lane, &[bench.lane()]].concat());
    let two = bench
        .store()
        .due_lanes(bench.epoch, ["slow", "default", "fast"].map(Into::into).to_vec(), at(100), 2)
        .await;
    assert_eq!(two.unwrap().lanes, all.lanes[..2]);
    let next = look(bench, &["slow", DEFAULT_POOL], 0).await;
    assert_eq!((next.lanes, next.next_wake), (vec![], Some(at(20))));
}

pub async fn changing_a_tenants_pool_moves_what_waits(bench: &mut Arc<Bench>) {
    let tenant = bench.store().tenant(bench.tenant.clone()).await.unwrap().unwrap();
    bench.waiting(at(0), at(0)).await;
    bench.waiting_in(&order("a"), at(0), at(0)).await;
    for _ in 0..2 {
        bench.waiting_in(&RETRY, at(0), at(0)).await;
    }
    assert!(bench.claim_lane(bench.own(RETRY), at(0), 1).await.more, "this one is held");
    let (theirs, their_lane) = pooled(bench, "globex", "theirs").await;
    wait_on(bench, their_lane.webhook, &theirs, 0).await;
    let stale = bench.new_event(at(1), Birth::Leased);
    use_pool(bench, &tenant, Some("slow")).await;
    assert_eq!(bench.publish(stale).await, Published::ConfigChanged);
    Bench::reopen(bench).await;

    assert_eq!(look(bench, &[DEFAULT_POOL], END).await, DueLanes::default());
    let mut moved = look(bench, &["slow"], END).await.lanes;
    moved.sort();
    let mut expected = [FRESH, RETRY, order("a")].map(|lane| bench.own(lane));
    expected.sort();
    assert_eq!(moved, expected, "whoever held one may not be of that pool");
    assert_eq!(look(bench, &["theirs"], END).await.lanes, [their_lane]);
    let told =
        bench.store().config_changes(bench.tenant.clone(), bench.version(), 1_000).await.unwrap().unwrap();
    assert_eq!((told.rules.pool(), told.version > bench.version()), ("slow", true));

    use_pool(bench, &tenant, None).await;
    assert_eq!(look(bench, &["slow"], END).await, DueLanes::default());
    assert_eq!(bench.due_lanes(at(END)).await.len(), 3);
}

pub async fn new_lanes_take_their_tenants_pool(bench: &Arc<Bench>) {
    let tenant = bench.store().tenant(bench.tenant.clone()).await.unwrap().unwrap();
    use_pool(bench, &tenant, Some("slow")).await;
    let id = wait_on(bench, bench.webhook, &tenant, 0).await;
    assert_eq!(bench.due_lanes(at(END)).await, []);
    assert_eq!(look(bench, &["slow"], 0).await.lanes, [bench.lane()]);
    bench.claim_one(at(0)).await;
    bench.ends(id, Next::Retry { due: at(50) }, at(1)).await;
    let look = look(bench, &["slow"], 1).await;
    assert_eq!((look.lanes, look.next_wake), (vec![], Some(at(50))));
}
