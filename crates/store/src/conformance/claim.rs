//! Claims: in order, within limits, to one owner at a time.

use redrive_core::delivery::outcome::Outcome;
use std::{collections::HashSet, sync::Arc};

use bytes::Bytes;
use redrive_core::{DeliveryId, DeliveryStatus, event::Event, tenancy::DEFAULT_POOL};

use super::{END, Harness, at, harness::FRESH, ids, together};
use crate::{CancelResult, Epoch, InitialState, LaneCapacity, LaneKey, Owned, StoreError};

/// Creates `count` deliveries to the harness's webhook, due one millisecond apart from `at(0)` on.
async fn queue(harness: &Harness, count: i64) -> Vec<DeliveryId> {
    let mut ids = Vec::new();
    for n in 0..count {
        ids.push(harness.waiting(at(n), at(n)).await);
    }
    ids
}

async fn wait_on(harness: &Harness, lane: &LaneKey, due: i64) -> DeliveryId {
    let new = harness.fan_out_to(harness.event(at(0)), &[(lane.clone(), InitialState::Waiting(at(due)))]);
    harness.publish_new(new.clone()).await;
    new.deliveries[0].id
}

pub async fn deliveries_are_claimed_in_due_order(harness: &Arc<Harness>) {
    let mut expected = Vec::new();
    for due in [30, 10, 20, 10, 30, 20, 10] {
        expected.push((due, harness.waiting(at(0), at(due)).await));
    }
    expected.sort_unstable();
    let claimed = harness.claim(at(100)).await;
    assert_eq!(ids(&claimed), expected.iter().map(|(_, id)| *id).collect::<Vec<_>>());
}

pub async fn deliveries_that_are_not_due_are_not_claimed(harness: &Arc<Harness>) {
    let due = harness.waiting(at(0), at(10)).await;
    let later = harness.waiting(at(0), at(11)).await;
    assert!(harness.claim(at(9)).await.is_empty());
    assert_eq!(ids(&harness.claim(at(10)).await), [due]);
    assert!(harness.claim(at(10)).await.is_empty(), "a delivery is claimed once");
    assert_eq!(ids(&harness.claim(at(11)).await), [later]);
}

pub async fn lane_capacity_limits_a_claim(harness: &Arc<Harness>) {
    let queued = queue(harness, 5).await;
    let claim = harness.claim_lane(harness.lane(), at(100), 2).await;
    assert_eq!((ids(&claim.deliveries), claim.has_more_due), (queued[..2].to_vec(), true));
    let claim = harness.claim_lane(harness.lane(), at(100), 3).await;
    assert_eq!(
        (ids(&claim.deliveries), claim.has_more_due),
        (queued[2..].to_vec(), false),
        "no more is reported when the capacity is exactly used"
    );
}

pub async fn lane_capacity_may_be_zero_or_unlimited(harness: &Arc<Harness>) {
    let queued = queue(harness, 3).await;
    let claim = harness.claim_lane(harness.lane(), at(100), 0).await;
    assert!(claim.deliveries.is_empty() && claim.has_more_due);
    let claim = harness.claim_lane(harness.lane(), at(100), usize::MAX).await;
    assert_eq!((ids(&claim.deliveries), claim.has_more_due), (queued, false));
}

pub async fn byte_limit_applies_across_lanes(harness: &Arc<Harness>) {
    const SIZE: usize = 10_000;
    let (a, b) = (harness.webhook_id(), harness.webhook_id());
    for _ in 0..5 {
        let event = Event { data: Bytes::from(vec![b'1'; SIZE]), ..harness.event(at(0)) };
        harness
            .publish_new(harness.fan_out(event, &[a, b].map(|lane| (lane, InitialState::Waiting(at(0))))))
            .await;
    }
    let mut seen: HashSet<DeliveryId> = HashSet::new();
    while seen.len() < 10 {
        let lanes = [a, b].map(|webhook_id| LaneCapacity::new(harness.lane_of(webhook_id), 100)).to_vec();
        let claims = harness.store().claim(harness.epoch, at(1), lanes, 3 * SIZE).await.unwrap();
        let new: Vec<_> = claims.iter().flat_map(|claim| &claim.deliveries).map(|one| one.id).collect();
        // The delivery that reaches the byte limit is the last one of the claim.
        assert!((1..=3).contains(&new.len()), "{}", new.len());
        let before = seen.len();
        seen.extend(&new);
        assert_eq!(seen.len(), before + new.len());
        let left = 10 - seen.len();
        assert_eq!(claims.iter().any(|claim| claim.has_more_due), left > 0);
    }
}

pub async fn lane_with_more_is_held_until_it_is_empty(harness: &Arc<Harness>) {
    let queued = queue(harness, 5).await;
    let other = harness.lane_of(harness.webhook_id());
    wait_on(harness, &other, 0).await;
    let mut got = Vec::new();
    loop {
        let claim = harness.claim_lane(harness.lane(), at(100), 2).await;
        got.extend(ids(&claim.deliveries));
        if !claim.has_more_due {
            break;
        }
        assert_eq!(
            harness.due_lanes(at(100)).await,
            std::slice::from_ref(&other),
            "a claimed lane is not due for other nodes"
        );
    }
    assert_eq!(got, queued);
    harness.waiting(at(101), at(101)).await;
    assert_eq!(harness.due_lanes(at(101)).await, [other, harness.lane()], "the lane is free again");
}

pub async fn new_deliveries_in_a_held_lane_go_to_its_holder(harness: &Arc<Harness>) {
    let mut expected = queue(harness, 3).await;
    assert!(harness.claim_lane(harness.lane(), at(100), 1).await.has_more_due);
    expected.push(harness.waiting(at(50), at(50)).await);
    let later = harness.waiting(at(50), at(500)).await;
    assert_eq!(harness.due_lanes(at(100)).await, []);
    let claim = harness.claim_lane(harness.lane(), at(100), 100).await;
    assert_eq!((ids(&claim.deliveries), claim.has_more_due), (expected[1..].to_vec(), false));
    let due = harness.due_lanes_for_default_pool(at(100)).await;
    assert_eq!((due.lanes, due.next_wake), (vec![], Some(at(500))));
    assert_eq!(ids(&harness.claim(at(500)).await), [later]);
}

pub async fn longest_overdue_lanes_come_first(harness: &Arc<Harness>) {
    let lanes: Vec<_> = (0..4).map(|_| harness.lane_of(harness.webhook_id())).collect();
    for (lane, due) in lanes.iter().zip([30, 10, 40, 20]) {
        wait_on(harness, lane, due).await;
    }
    // A lane is as overdue as its first delivery.
    wait_on(harness, &lanes[2], 5).await;
    assert_eq!(harness.due_lanes(at(30)).await, [2, 1, 3, 0].map(|n: usize| lanes[n].clone()));
    let first = harness.store().due_lanes(harness.epoch, vec![DEFAULT_POOL.into()], at(30), 2).await.unwrap();
    assert_eq!(first.lanes, [2, 1].map(|n: usize| lanes[n].clone()));
}

pub async fn next_wake_is_the_earliest_of_unclaimed_lanes(harness: &Arc<Harness>) {
    let next_wake = |now| harness.next_wake(at(now));
    assert_eq!(next_wake(0).await, None);
    let [a, b] = [(); 2].map(|()| harness.lane_of(harness.webhook_id()));
    wait_on(harness, &a, 200).await;
    wait_on(harness, &b, 300).await;
    assert_eq!(next_wake(0).await, Some(at(200)));
    assert_eq!(next_wake(200).await, Some(at(300)), "a lane that is due has no wake time");
    assert_eq!(next_wake(300).await, None);
    wait_on(harness, &b, 100).await;
    assert_eq!(next_wake(0).await, Some(at(100)), "earlier work moves a lane's wake forward");
    harness.claim_lane(b.clone(), at(100), 10).await;
    assert_eq!(next_wake(0).await, Some(at(200)));
    harness.claim_lane(a, at(200), 10).await;
    assert_eq!(next_wake(0).await, Some(at(300)), "a remaining delivery still wakes its lane");
    harness.claim_lane(b, at(300), 10).await;
    assert_eq!(next_wake(0).await, None);
}

pub async fn concurrent_claims_return_each_delivery_once(harness: &Arc<Harness>) {
    let lanes: Vec<_> = (0..5).map(|_| harness.webhook_id()).collect();
    let everywhere: Vec<_> = lanes.iter().map(|lane| (*lane, InitialState::Waiting(at(0)))).collect();
    for _ in 0..60 {
        harness.publish_new(harness.fan_out(harness.event(at(0)), &everywhere)).await;
    }
    let claimer = |epoch: Epoch| {
        let (harness, lanes) = (harness.clone(), lanes.clone());
        async move {
            let mut got = Vec::new();
            loop {
                let capacities = lanes.iter().map(|id| LaneCapacity::new(harness.lane_of(*id), 7)).collect();
                let claims = harness.store().claim(epoch, at(1), capacities, usize::MAX).await.unwrap();
                got.extend(claims.iter().flat_map(|claim| ids(&claim.deliveries)));
                if claims.iter().all(|claim| !claim.has_more_due) {
                    return got;
                }
            }
        }
    };
    let mut epochs = Vec::new();
    for _ in 0..8 {
        epochs.push(harness.new_epoch().await);
    }
    let got = together(epochs.into_iter().map(claimer)).await.concat();
    assert_eq!(got.len(), 300);
    assert_eq!(got.iter().collect::<HashSet<_>>().len(), 300);
}

pub async fn claim_contains_all_data_for_sending(harness: &Arc<Harness>) {
    let event = Event {
        idempotency_key: Some("key".into()),
        source: Some("shop".into()),
        subject: Some("order-1".into()),
        ..harness.event(at(5))
    };
    let new = harness.fan_out(event.clone(), &[(harness.webhook_id, InitialState::Waiting(at(7)))]);
    harness.publish_new(new.clone()).await;
    let claimed = harness.claim_one(at(20)).await;
    assert_eq!((claimed.id, claimed.webhook_id), (new.deliveries[0].id, harness.webhook_id));
    assert_eq!(*claimed.event, event);
    assert_eq!(claimed.format, new.deliveries[0].format);
    assert_eq!((claimed.created_at, claimed.due), (at(5), at(7)));
    assert_eq!((claimed.attempt_count, claimed.abnormal_releases, claimed.crash_count), (0, 0, 0));

    harness.ends(claimed.id, Outcome::Retry { at: at(30) }, at(21)).await;
    let claimed = harness.claim_one(at(40)).await;
    assert_eq!((claimed.attempt_count, claimed.due, claimed.created_at), (1, at(30), at(5)));
}

pub async fn released_deliveries_are_due_at_the_given_time(harness: &Arc<Harness>) {
    let (a, b) = (harness.leased(at(0)).await, harness.leased(at(0)).await);
    let later = harness.leased(at(0)).await;
    let unknown = harness.delivery_id(at(0));
    let back = vec![(later, at(90)), (a, at(70)), (unknown, at(70)), (b, at(70)), (a, at(80))];
    assert_eq!(harness.store().release(harness.epoch, at(60), back).await.unwrap(), 3);
    assert!(!harness.store().mark_sending(harness.epoch, a).await.unwrap(), "the lease has ended");
    assert_eq!(harness.delivery(a).await.due, Some(at(70)));
    assert_eq!(harness.due_lanes(at(69)).await, []);
    let claimed = harness.claim(at(70)).await;
    assert_eq!(ids(&claimed), [a, b]);
    assert!(claimed.iter().all(|one| one.attempt_count == 0 && one.abnormal_releases == 0));
    assert_eq!(harness.next_wake(at(70)).await, Some(at(90)));
    assert_eq!(harness.claim_one(at(90)).await.id, later);
}

pub async fn only_the_lease_owner_can_release(harness: &Arc<Harness>) {
    let id = harness.leased(at(0)).await;
    let other = harness.new_epoch().await;
    assert_eq!(harness.store().release(other, at(1), vec![(id, at(1))]).await.unwrap(), 0);
    assert_eq!(harness.due_lanes(at(END)).await, []);
    harness.ends(id, Outcome::Delivered, at(2)).await;
    assert_eq!(harness.store().release(harness.epoch, at(3), vec![(id, at(3))]).await.unwrap(), 0);
    assert_eq!(harness.status(id).await, DeliveryStatus::Delivered);
}

pub async fn releasing_a_cancelled_delivery_ends_it(harness: &Arc<Harness>) {
    let id = harness.leased(at(0)).await;
    let request =
        harness.store().cancel(harness.tenant_id.clone(), id, "enough".into(), at(1)).await.unwrap();
    assert_eq!(request, CancelResult::Requested);
    assert_eq!(harness.store().release(harness.epoch, at(2), vec![(id, at(9))]).await.unwrap(), 1);
    let ended = harness.delivery(id).await;
    assert_eq!((ended.status, ended.ended_at), (DeliveryStatus::Cancelled, Some(at(2))));
    assert_eq!(ended.cancel_reason.as_deref(), Some("enough"));
    assert_eq!(harness.due_lanes(at(END)).await, []);
}

pub async fn only_the_lease_owner_can_mark_sending(harness: &Arc<Harness>) {
    let mark = |epoch, id| harness.store().mark_sending(epoch, id);
    let (leased, waiting) = (harness.leased(at(0)).await, harness.waiting(at(0), at(0)).await);
    let other = harness.new_epoch().await;
    assert!(mark(harness.epoch, leased).await.unwrap());
    assert!(mark(harness.epoch, leased).await.unwrap(), "marking is idempotent");
    assert!(!mark(other, leased).await.unwrap());
    assert!(!mark(harness.epoch, waiting).await.unwrap());
    assert!(!mark(harness.epoch, harness.delivery_id(at(0))).await.unwrap());
    harness.ends(leased, Outcome::Delivered, at(1)).await;
    assert!(!mark(harness.epoch, leased).await.unwrap());
}

pub async fn fenced_node_claims_nothing(harness: &Arc<Harness>) {
    let id = harness.waiting(at(0), at(0)).await;
    let fenced = harness.new_epoch().await;
    harness.rescue(fenced, at(1)).await;
    let lanes = vec![LaneCapacity::new(harness.lane(), 10)];
    let response = harness.store().claim(fenced, at(2), lanes, usize::MAX).await;
    assert!(matches!(response, Err(StoreError::Fenced)), "{response:?}");
    assert_eq!(harness.store().other_epochs(harness.epoch).await.unwrap(), []);
    assert_eq!(harness.claim_one(at(2)).await.id, id);
}

pub async fn lane_emptied_by_cancellation_is_deleted(harness: &Arc<Harness>) {
    let id = harness.waiting(at(0), at(10)).await;
    let done = harness.store().cancel(harness.tenant_id.clone(), id, "enough".into(), at(1)).await.unwrap();
    assert_eq!(done, CancelResult::Done);
    // An empty lane may still be claimed once.
    assert!(harness.claim(at(10)).await.is_empty());
    assert_eq!(harness.due_lanes(at(END)).await, []);
}

pub async fn leases_of_an_epoch_are_read_in_pages(harness: &Arc<Harness>) {
    let store = harness.store();
    let mut leased = Vec::new();
    for n in 0..5 {
        leased.push(harness.leased(at(n)).await);
    }
    leased.sort();
    let other = harness.new_epoch().await;
    assert_eq!(store.owned_by(other, None, 10).await.unwrap(), Owned::default());
    let (mut read, mut after) = (Vec::new(), None);
    loop {
        let owned = store.owned_by(harness.epoch, after, 2).await.unwrap();
        if owned.leases.is_empty() {
            break;
        }
        after = owned.leases.last().copied();
        read.extend(owned.leases);
    }
    assert_eq!(read, leased);
    for n in 0..3 {
        let new = harness.new_event(at(n), InitialState::Waiting(at(n)));
        harness.publish(new).await;
    }
    let key = LaneKey { webhook_id: harness.webhook_id, lane: FRESH };
    let capacity = LaneCapacity { exclusive: true, ..LaneCapacity::new(key.clone(), 1) };
    let claimed = store.claim(other, at(10), vec![capacity], 1 << 20).await.unwrap();
    let owned = store.owned_by(other, None, 10).await.unwrap();
    assert_eq!(owned.leases, ids(&claimed[0].deliveries));
    assert_eq!((owned.lanes, owned.assignments), (vec![key], vec![harness.webhook_id]));
}
