//! Handing out waiting work: in order, within bounds, to one owner at a time.

use std::{collections::HashSet, sync::Arc};

use bytes::Bytes;
use redrive_core::{DeliveryId, DeliveryStatus, event::Event, tenancy::DEFAULT_POOL};

use super::{Bench, END, at, harness::FRESH, ids, together};
use crate::{Birth, Cancelled, Epoch, LaneKey, LaneRoom, Next, Owned, StoreError};

/// So many deliveries to the bench's webhook, due one millisecond after the other from `at(0)` on.
async fn queue(bench: &Bench, count: i64) -> Vec<DeliveryId> {
    let mut ids = Vec::new();
    for n in 0..count {
        ids.push(bench.waiting(at(n), at(n)).await);
    }
    ids
}

async fn wait_on(bench: &Bench, lane: &LaneKey, due: i64) -> DeliveryId {
    let new = bench.fan_out_to(bench.event(at(0)), &[(lane.clone(), Birth::Waiting(at(due)))]);
    bench.publish_new(new.clone()).await;
    new.deliveries[0].id
}

pub async fn claims_come_in_the_order_they_are_due(bench: &Arc<Bench>) {
    let mut expected = Vec::new();
    for due in [30, 10, 20, 10, 30, 20, 10] {
        expected.push((due, bench.waiting(at(0), at(due)).await));
    }
    expected.sort_unstable();
    let claimed = bench.claim(at(100)).await;
    assert_eq!(ids(&claimed), expected.iter().map(|(_, id)| *id).collect::<Vec<_>>());
}

pub async fn what_is_not_due_is_not_given(bench: &Arc<Bench>) {
    let due = bench.waiting(at(0), at(10)).await;
    let later = bench.waiting(at(0), at(11)).await;
    assert!(bench.claim(at(9)).await.is_empty());
    assert_eq!(ids(&bench.claim(at(10)).await), [due]);
    assert!(bench.claim(at(10)).await.is_empty(), "a delivery is given once");
    assert_eq!(ids(&bench.claim(at(11)).await), [later]);
}

pub async fn room_is_respected(bench: &Arc<Bench>) {
    let queued = queue(bench, 5).await;
    let claim = bench.claim_lane(bench.lane(), at(100), 2).await;
    assert_eq!((ids(&claim.deliveries), claim.more), (queued[..2].to_vec(), true));
    let claim = bench.claim_lane(bench.lane(), at(100), 3).await;
    assert_eq!((ids(&claim.deliveries), claim.more), (queued[2..].to_vec(), false), "exactly enough room");
}

pub async fn any_room_is_taken(bench: &Arc<Bench>) {
    let queued = queue(bench, 3).await;
    let claim = bench.claim_lane(bench.lane(), at(100), 0).await;
    assert!(claim.deliveries.is_empty() && claim.more);
    let claim = bench.claim_lane(bench.lane(), at(100), usize::MAX).await;
    assert_eq!((ids(&claim.deliveries), claim.more), (queued, false));
}

pub async fn bytes_are_respected_across_lanes(bench: &Arc<Bench>) {
    const SIZE: usize = 10_000;
    let (a, b) = (bench.webhook_id(), bench.webhook_id());
    for _ in 0..5 {
        let event = Event { data: Bytes::from(vec![b'1'; SIZE]), ..bench.event(at(0)) };
        bench.publish_new(bench.fan_out(event, &[a, b].map(|lane| (lane, Birth::Waiting(at(0)))))).await;
    }
    let mut seen: HashSet<DeliveryId> = HashSet::new();
    while seen.len() < 10 {
        let lanes = [a, b].map(|webhook| LaneRoom::new(bench.lane_of(webhook), 100)).to_vec();
        let claims = bench.store().claim(bench.epoch, at(1), lanes, 3 * SIZE).await.unwrap();
        let new: Vec<_> = claims.iter().flat_map(|claim| &claim.deliveries).map(|one| one.id).collect();
        // The one that crosses the line is the last.
        assert!((1..=3).contains(&new.len()), "{}", new.len());
        let before = seen.len();
        seen.extend(&new);
        assert_eq!(seen.len(), before + new.len());
        let left = 10 - seen.len();
        assert_eq!(claims.iter().any(|claim| claim.more), left > 0);
    }
}

pub async fn a_lane_with_more_is_held_until_it_is_empty(bench: &Arc<Bench>) {
    let queued = queue(bench, 5).await;
    let other = bench.lane_of(bench.webhook_id());
    wait_on(bench, &other, 0).await;
    let mut got = Vec::new();
    loop {
        let claim = bench.claim_lane(bench.lane(), at(100), 2).await;
        got.extend(ids(&claim.deliveries));
        if !claim.more {
            break;
        }
        assert_eq!(
            bench.due_lanes(at(100)).await,
            std::slice::from_ref(&other),
            "nobody else is sent to a held lane"
        );
    }
    assert_eq!(got, queued);
    bench.waiting(at(101), at(101)).await;
    assert_eq!(bench.due_lanes(at(101)).await, [other, bench.lane()], "the lane is free again");
}

pub async fn new_work_on_a_held_lane_reaches_its_holder(bench: &Arc<Bench>) {
    let mut expected = queue(bench, 3).await;
    assert!(bench.claim_lane(bench.lane(), at(100), 1).await.more);
    expected.push(bench.waiting(at(50), at(50)).await);
    let later = bench.waiting(at(50), at(500)).await;
    assert_eq!(bench.due_lanes(at(100)).await, []);
    let claim = bench.claim_lane(bench.lane(), at(100), 100).await;
    assert_eq!((ids(&claim.deliveries), claim.more), (expected[1..].to_vec(), false));
    let due = bench.look(at(100)).await;
    assert_eq!((due.lanes, due.next_wake), (vec![], Some(at(500))));
    assert_eq!(ids(&bench.claim(at(500)).await), [later]);
}

pub async fn the_longest_overdue_lanes_come_first(bench: &Arc<Bench>) {
    let lanes: Vec<_> = (0..4).map(|_| bench.lane_of(bench.webhook_id())).collect();
    for (lane, due) in lanes.iter().zip([30, 10, 40, 20]) {
        wait_on(bench, lane, due).await;
    }
    // A lane is as overdue as its first delivery.
    wait_on(bench, &lanes[2], 5).await;
    assert_eq!(bench.due_lanes(at(30)).await, [2, 1, 3, 0].map(|n: usize| lanes[n].clone()));
    let first = bench.store().due_lanes(bench.epoch, vec![DEFAULT_POOL.into()], at(30), 2).await.unwrap();
    assert_eq!(first.lanes, [2, 1].map(|n: usize| lanes[n].clone()));
}

pub async fn the_next_wake_is_the_earliest_that_nobody_holds(bench: &Arc<Bench>) {
    let next_wake = |now| bench.next_wake(at(now));
    assert_eq!(next_wake(0).await, None);
    let [a, b] = [(); 2].map(|()| bench.lane_of(bench.webhook_id()));
    wait_on(bench, &a, 200).await;
    wait_on(bench, &b, 300).await;
    assert_eq!(next_wake(0).await, Some(at(200)));
    assert_eq!(next_wake(200).await, Some(at(300)), "what is due needs no wake");
    assert_eq!(next_wake(300).await, None);
    wait_on(bench, &b, 100).await;
    assert_eq!(next_wake(0).await, Some(at(100)), "earlier work moves a lane's wake forward");
    bench.claim_lane(b.clone(), at(100), 10).await;
    assert_eq!(next_wake(0).await, Some(at(200)));
    bench.claim_lane(a, at(200), 10).await;
    assert_eq!(next_wake(0).await, Some(at(300)), "what is left in a lane still wakes it");
    bench.claim_lane(b, at(300), 10).await;
    assert_eq!(next_wake(0).await, None);
}

pub async fn concurrent_claims_give_each_delivery_once(bench: &Arc<Bench>) {
    let lanes: Vec<_> = (0..5).map(|_| bench.webhook_id()).collect();
    let everywhere: Vec<_> = lanes.iter().map(|lane| (*lane, Birth::Waiting(at(0)))).collect();
    for _ in 0..60 {
        bench.publish_new(bench.fan_out(bench.event(at(0)), &everywhere)).await;
    }
    let claimer = |epoch: Epoch| {
        let (bench, lanes) = (bench.clone(), lanes.clone());
        async move {
            let mut got = Vec::new();
            loop {
                let rooms = lanes.iter().map(|id| LaneRoom::new(bench.lane_of(*id), 7)).collect();
                let claims = bench.store().claim(epoch, at(1), rooms, usize::MAX).await.unwrap();
                got.extend(claims.iter().flat_map(|claim| ids(&claim.deliveries)));
                if claims.iter().all(|claim| !claim.more) {
                    return got;
                }
            }
        }
    };
    let mut epochs = Vec::new();
    for _ in 0..8 {
        epochs.push(bench.new_epoch().await);
    }
    let got = together(epochs.into_iter().map(claimer)).await.concat();
    assert_eq!(got.len(), 300);
    assert_eq!(got.iter().collect::<HashSet<_>>().len(), 300);
}

pub async fn a_claim_has_all_that_sending_needs(bench: &Arc<Bench>) {
    let event = Event {
        idempotency_key: Some("key".into()),
        source: Some("shop".into()),
        subject: Some("order-1".into()),
        ..bench.event(at(5))
    };
    let new = bench.fan_out(event.clone(), &[(bench.webhook, Birth::Waiting(at(7)))]);
    bench.publish_new(new.clone()).await;
    let claimed = bench.claim_one(at(20)).await;
    assert_eq!((claimed.id, claimed.webhook), (new.deliveries[0].id, bench.webhook));
    assert_eq!(*claimed.event, event);
    assert_eq!(claimed.format, new.deliveries[0].format);
    assert_eq!((claimed.created_at, claimed.due), (at(5), at(7)));
    assert_eq!((claimed.attempt_count, claimed.rescues, claimed.deaths), (0, 0, 0));

    bench.ends(claimed.id, Next::Retry { due: at(30) }, at(21)).await;
    let claimed = bench.claim_one(at(40)).await;
    assert_eq!((claimed.attempt_count, claimed.due, claimed.created_at), (1, at(30), at(5)));
}

pub async fn released_deliveries_are_due_when_told(bench: &Arc<Bench>) {
    let (a, b) = (bench.leased(at(0)).await, bench.leased(at(0)).await);
    let later = bench.leased(at(0)).await;
    let unknown = bench.delivery_id(at(0));
    let back = vec![(later, at(90)), (a, at(70)), (unknown, at(70)), (b, at(70)), (a, at(80))];
    assert_eq!(bench.store().release(bench.epoch, at(60), back).await.unwrap(), 3);
    assert!(!bench.store().mark_sending(bench.epoch, a).await.unwrap(), "the lease is over");
    assert_eq!(bench.delivery(a).await.due, Some(at(70)));
    assert_eq!(bench.due_lanes(at(69)).await, []);
    let claimed = bench.claim(at(70)).await;
    assert_eq!(ids(&claimed), [a, b]);
    assert!(claimed.iter().all(|one| one.attempt_count == 0 && one.rescues == 0));
    assert_eq!(bench.next_wake(at(70)).await, Some(at(90)));
    assert_eq!(bench.claim_one(at(90)).await.id, later);
}

pub async fn only_the_owner_releases(bench: &Arc<Bench>) {
    let id = bench.leased(at(0)).await;
    let other = bench.new_epoch().await;
    assert_eq!(bench.store().release(other, at(1), vec![(id, at(1))]).await.unwrap(), 0);
    assert_eq!(bench.due_lanes(at(END)).await, []);
    bench.ends(id, Next::Delivered, at(2)).await;
    assert_eq!(bench.store().release(bench.epoch, at(3), vec![(id, at(3))]).await.unwrap(), 0);
    assert_eq!(bench.status(id).await, DeliveryStatus::Delivered);
}

pub async fn releasing_what_was_called_off_ends_it(bench: &Arc<Bench>) {
    let id = bench.leased(at(0)).await;
    let asked = bench.store().cancel(bench.tenant.clone(), id, "enough".into(), at(1)).await.unwrap();
    assert_eq!(asked, Cancelled::Requested);
    assert_eq!(bench.store().release(bench.epoch, at(2), vec![(id, at(9))]).await.unwrap(), 1);
    let ended = bench.delivery(id).await;
    assert_eq!((ended.status, ended.ended_at), (DeliveryStatus::Cancelled, Some(at(2))));
    assert_eq!(ended.cancel_reason.as_deref(), Some("enough"));
    assert_eq!(bench.due_lanes(at(END)).await, []);
}

pub async fn sending_is_noted_for_the_owner_alone(bench: &Arc<Bench>) {
    let mark = |epoch, id| bench.store().mark_sending(epoch, id);
    let (leased, waiting) = (bench.leased(at(0)).await, bench.waiting(at(0), at(0)).await);
    let other = bench.new_epoch().await;
    assert!(mark(bench.epoch, leased).await.unwrap());
    assert!(mark(bench.epoch, leased).await.unwrap(), "twice is as good as once");
    assert!(!mark(other, leased).await.unwrap());
    assert!(!mark(bench.epoch, waiting).await.unwrap());
    assert!(!mark(bench.epoch, bench.delivery_id(at(0))).await.unwrap());
    bench.ends(leased, Next::Delivered, at(1)).await;
    assert!(!mark(bench.epoch, leased).await.unwrap());
}

pub async fn a_fenced_node_claims_nothing(bench: &Arc<Bench>) {
    let id = bench.waiting(at(0), at(0)).await;
    let fenced = bench.new_epoch().await;
    bench.rescue(fenced, at(1)).await;
    let lanes = vec![LaneRoom::new(bench.lane(), 10)];
    let answer = bench.store().claim(fenced, at(2), lanes, usize::MAX).await;
    assert!(matches!(answer, Err(StoreError::Fenced)), "{answer:?}");
    assert_eq!(bench.store().others(bench.epoch).await.unwrap(), []);
    assert_eq!(bench.claim_one(at(2)).await.id, id);
}

pub async fn a_lane_left_empty_by_a_cancellation_goes(bench: &Arc<Bench>) {
    let id = bench.waiting(at(0), at(10)).await;
    let done = bench.store().cancel(bench.tenant.clone(), id, "enough".into(), at(1)).await.unwrap();
    assert_eq!(done, Cancelled::Done);
    // The lane may still be looked at once.
    assert!(bench.claim(at(10)).await.is_empty());
    assert_eq!(bench.due_lanes(at(END)).await, []);
}

pub async fn what_an_epoch_owns_is_read_by_pages(bench: &Arc<Bench>) {
    let store = bench.store();
    let mut leased = Vec::new();
    for n in 0..5 {
        leased.push(bench.leased(at(n)).await);
    }
    leased.sort();
    let other = bench.new_epoch().await;
    assert_eq!(store.owned_by(other, None, 10).await.unwrap(), Owned::default());
    let (mut read, mut after) = (Vec::new(), None);
    loop {
        let owned = store.owned_by(bench.epoch, after, 2).await.unwrap();
        if owned.leases.is_empty() {
            break;
        }
        after = owned.leases.last().copied();
        read.extend(owned.leases);
    }
    assert_eq!(read, leased);
    for n in 0..3 {
        let new = bench.new_event(at(n), Birth::Waiting(at(n)));
        bench.publish(new).await;
    }
    let key = LaneKey { webhook: bench.webhook, lane: FRESH };
    let room = LaneRoom { alone: true, ..LaneRoom::new(key.clone(), 1) };
    let claimed = store.claim(other, at(10), vec![room], 1 << 20).await.unwrap();
    let owned = store.owned_by(other, None, 10).await.unwrap();
    assert_eq!(owned.leases, ids(&claimed[0].deliveries));
    assert_eq!((owned.lanes, owned.assignments), (vec![key], vec![bench.webhook]));
}
