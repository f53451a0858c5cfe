//! Ordered lanes: a delivery starts only after the previous one has ended, on any node and in every case.

use redrive_core::delivery::outcome::Outcome;
use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
};

use redrive_core::{
    DeadReason, DeliveryId, DeliveryStatus, Time,
    delivery::lane::{Lane, Priority},
    event::PayloadFormat,
    webhook::WebhookState,
};

use super::{END, Harness, at, ids, order, page, together};
use crate::{
    BatchProgress, CancelResult, DeliveryFilter, Epoch, InitialState, LaneClaim, LaneKey, NewRound,
    OutcomeRecord, RecordResult, RedriveOptions, RedriveResult, ReplayResult,
};

const DONE: RecordResult = RecordResult::Recorded { config_version: None };

fn a() -> Lane {
    order("a")
}

/// Creates deliveries in an ordered lane of the harness's webhook, in sequence, due at these times.
async fn line(harness: &Harness, lane: &Lane, dues: &[i64]) -> Vec<DeliveryId> {
    let mut line = Vec::new();
    for (n, due) in (0..).zip(dues) {
        line.push(harness.waiting_in(lane, at(n), at(*due)).await);
    }
    line
}

async fn take(harness: &Harness, lane: &Lane, now: i64, capacity: usize) -> LaneClaim {
    harness.claim_lane(harness.own(lane.clone()), at(now), capacity).await
}

async fn take_as(harness: &Harness, epoch: Epoch, lane: &Lane, now: i64, capacity: usize) -> LaneClaim {
    harness.claim_lane_as(epoch, harness.own(lane.clone()), at(now), capacity).await
}

async fn end_as(harness: &Harness, epoch: Epoch, id: DeliveryId, next: Outcome, now: Time) {
    let outcome = OutcomeRecord { epoch, ..harness.outcome(id, 1, next, now) };
    assert_eq!(harness.record(outcome).await, DONE);
}

/// Asserts that a claim returned exactly these deliveries.
#[track_caller]
fn assert_given(claim: &LaneClaim, expected: &[DeliveryId], more: bool) {
    assert_eq!((ids(&claim.deliveries), claim.has_more_due), (expected.to_vec(), more));
}

pub async fn ordered_lane_is_claimed_by_sequence_not_due_time(harness: &Arc<Harness>) {
    for lane in [a(), order("")] {
        let line = line(harness, &lane, &[30, 10, 20, 0]).await;
        let claim = take(harness, &lane, 100, 3).await;
        assert_given(&claim, &line[..3], true);
        let numbers: Vec<_> = claim.deliveries.iter().map(|one| one.seq).collect();
        assert!(numbers.is_sorted_by(|before, after| before < after), "{numbers:?}");
        let dues: Vec<_> = claim.deliveries.iter().map(|one| one.due).collect();
        assert_eq!(dues, [at(30), at(10), at(20)]);
    }
}

pub async fn first_delivery_that_is_not_due_blocks_the_rest(harness: &Arc<Harness>) {
    let line = line(harness, &a(), &[500, 0, 700, 0]).await;
    let key = harness.own(a());
    assert_eq!((harness.due_lanes(at(499)).await, harness.next_wake(at(0)).await), (vec![], Some(at(500))));
    assert_given(&take(harness, &a(), 499, 10).await, &[], false);
    assert_eq!(harness.due_lanes(at(500)).await, std::slice::from_ref(&key));
    assert_given(&take(harness, &a(), 500, 10).await, &line[..2], false);
    assert_eq!(harness.next_wake(at(500)).await, Some(at(700)), "the third delivery is first now");
    for id in &line[..2] {
        harness.ends(*id, Outcome::Delivered, at(510)).await;
    }
    assert_eq!((harness.due_lanes(at(699)).await, harness.next_wake(at(0)).await), (vec![], Some(at(700))));
    assert_given(&take(harness, &a(), 700, 10).await, &line[2..], false);
}

pub async fn ordered_lane_is_blocked_while_another_node_has_a_lease(harness: &Arc<Harness>) {
    let line = line(harness, &a(), &[0, 0, 0]).await;
    let (key, other) = (harness.own(a()), harness.new_epoch().await);
    assert_given(&take(harness, &a(), 1, 1).await, &line[..1], true);
    assert_given(&take_as(harness, other, &a(), 10, 10).await, &[], false);
    // No node has claimed the lane, and it is due again a little later.
    let query = harness.due_lanes_for_default_pool(at(10)).await;
    assert_eq!((query.lanes, query.next_wake), (vec![], Some(at(60))));
    assert_eq!(harness.due_lanes(at(60)).await, std::slice::from_ref(&key));
    assert_given(&take_as(harness, other, &a(), 60, 10).await, &[], false);

    assert_eq!(harness.rescue(harness.epoch, at(70)).await, 1);
    assert_eq!(harness.due_lanes(at(70)).await, [key]);
    let claim = take_as(harness, other, &a(), 70, 10).await;
    assert_given(&claim, &line, false);
    assert_eq!(claim.deliveries[0].abnormal_releases, 1);
}

pub async fn own_leases_block_an_ordered_lane(harness: &Arc<Harness>) {
    let line = line(harness, &a(), &[0, 0, 500]).await;
    assert_given(&take(harness, &a(), 1, 1).await, &line[..1], true);
    for _ in 0..2 {
        assert_given(&take(harness, &a(), 2, 10).await, &[], true);
        assert_eq!(harness.due_lanes(at(END)).await, [], "the lane is claimed");
    }
    harness.ends(line[0], Outcome::Delivered, at(3)).await;
    assert_eq!(harness.due_lanes(at(END)).await, [], "the lane is still claimed");
    assert_given(&take(harness, &a(), 4, 10).await, &line[1..2], false);

    // No further delivery is due, or none is left: `more` is false.
    assert_given(&take(harness, &a(), 5, 10).await, &[], false);
    assert_eq!(harness.next_wake(at(5)).await, Some(at(500)));
    harness.ends(line[1], Outcome::Delivered, at(6)).await;
    assert_given(&take(harness, &a(), 500, 10).await, &line[2..], false);
    assert_given(&take(harness, &a(), 501, 10).await, &[], false);
    let query = harness.due_lanes_for_default_pool(at(END)).await;
    assert_eq!((query.lanes, query.next_wake), (vec![], None));
}

pub async fn retry_stays_first_in_its_order(harness: &Arc<Harness>) {
    let line = line(harness, &a(), &[0, 0, 0]).await;
    assert_given(&take(harness, &a(), 1, 2).await, &line[..2], true);
    harness.ends(line[0], Outcome::Retry { at: at(500) }, at(2)).await;
    // While the second delivery is leased, not even the first can be claimed.
    assert_given(&take(harness, &a(), 600, 10).await, &[], true);
    assert_eq!(harness.store().release(harness.epoch, at(3), vec![(line[1], at(0))]).await.unwrap(), 1);
    let query = harness.due_lanes_for_default_pool(at(499)).await;
    assert_eq!(
        (query.lanes, query.next_wake),
        (vec![], Some(at(500))),
        "the remaining deliveries wait with the first"
    );
    assert_given(&take(harness, &a(), 499, 10).await, &[], false);
    let claim = take(harness, &a(), 500, 10).await;
    assert_given(&claim, &line, false);
    let attempts: Vec<_> = claim.deliveries.iter().map(|one| one.attempt_count).collect();
    assert_eq!(attempts, [1, 0, 0]);
}

pub async fn released_delivery_keeps_its_position(harness: &Arc<Harness>) {
    let line = line(harness, &a(), &[0, 0, 0, 0]).await;
    assert_given(&take(harness, &a(), 1, 3).await, &line[..3], true);
    // Released in reverse order.
    let back = vec![(line[2], at(0)), (line[1], at(9)), (line[0], at(20))];
    assert_eq!(harness.store().release(harness.epoch, at(2), back).await.unwrap(), 3);
    let query = harness.due_lanes_for_default_pool(at(19)).await;
    assert_eq!(
        (query.lanes, query.next_wake),
        (vec![], Some(at(20))),
        "the first delivery is due at that time"
    );

    let dead = harness.new_epoch().await;
    assert_given(&take_as(harness, dead, &a(), 20, 3).await, &line[..3], true);
    let mut left = 3;
    while left > 0 {
        assert_given(&take(harness, &a(), 30, 10).await, &[], false);
        let step = harness.store().rescue(dead, at(30), 1).await.unwrap();
        assert_eq!(step, BatchProgress { changed: 1, finished: false });
        left -= 1;
    }
    assert_eq!(harness.due_lanes(at(30)).await, [harness.own(a())]);
    assert_given(&take(harness, &a(), 30, 10).await, &line, false);
}

pub async fn next_delivery_is_due_when_the_first_ends(harness: &Arc<Harness>) {
    let ends =
        [Outcome::Delivered, Outcome::Dead(DeadReason::Permanent), Outcome::Cancelled("enough".into())];
    for (key, next) in ["a", "b", "c"].into_iter().zip(ends) {
        let (lane, other) = (order(key), harness.new_epoch().await);
        let line = line(harness, &lane, &[0, 0]).await;
        assert_given(&take(harness, &lane, 1, 1).await, &line[..1], true);
        assert_given(&take_as(harness, other, &lane, 10, 1).await, &[], false);
        assert_eq!(harness.due_lanes(at(11)).await, []);
        harness.ends(line[0], next, at(11)).await;
        assert_eq!(harness.due_lanes(at(11)).await, [harness.own(lane.clone())]);
        assert_given(&take_as(harness, other, &lane, 11, 1).await, &line[1..], false);
        end_as(harness, other, line[1], Outcome::Delivered, at(12)).await;
    }
}

pub async fn next_delivery_is_due_when_the_leased_first_is_cancelled(harness: &Arc<Harness>) {
    for key in ["released", "rescued", "recorded"] {
        let (lane, node, other) = (order(key), harness.new_epoch().await, harness.new_epoch().await);
        let line = line(harness, &lane, &[0, 0]).await;
        assert_given(&take_as(harness, node, &lane, 1, 1).await, &line[..1], true);
        assert_given(&take_as(harness, other, &lane, 10, 1).await, &[], false);
        assert_eq!(harness.cancel(line[0], at(10)).await, CancelResult::Requested);
        assert_eq!(harness.due_lanes(at(11)).await, [], "a leased delivery may still succeed");
        match key {
            "released" => {
                let back = vec![(line[0], at(9000))];
                assert_eq!(harness.store().release(node, at(11), back).await.unwrap(), 1);
            }
            "rescued" => assert_eq!(harness.rescue(node, at(11)).await, 1),
            _ => {
                let next = Outcome::Cancelled("enough".into());
                let outcome = OutcomeRecord { epoch: node, ..harness.outcome(line[0], 1, next, at(11)) };
                assert_eq!(
                    harness.record(OutcomeRecord { record_despite_cancel: true, ..outcome }).await,
                    DONE
                );
            }
        }
        assert_eq!(harness.status(line[0]).await, DeliveryStatus::Cancelled);
        assert_eq!(harness.due_lanes(at(11)).await, [harness.own(lane.clone())], "{key}");
        assert_given(&take_as(harness, other, &lane, 11, 1).await, &line[1..], false);
        end_as(harness, other, line[1], Outcome::Delivered, at(12)).await;
    }
}

pub async fn next_delivery_is_due_when_the_waiting_first_is_cancelled(harness: &Arc<Harness>) {
    let line = line(harness, &a(), &[5000, 10, 7000, 20]).await;
    assert_eq!(harness.next_wake(at(0)).await, Some(at(5000)));
    assert_eq!(harness.cancel(line[2], at(1)).await, CancelResult::Done);
    assert_eq!(harness.next_wake(at(0)).await, Some(at(5000)), "the wake time is that of the first delivery");
    assert_eq!(harness.cancel(line[0], at(1)).await, CancelResult::Done);
    assert_eq!(harness.next_wake(at(0)).await, Some(at(10)));
    assert_given(&take(harness, &a(), 20, 1).await, &line[1..2], true);
    // The node that leases the previous delivery has claimed the lane; it need not be notified.
    assert_eq!(harness.cancel(line[3], at(21)).await, CancelResult::Done);
    let query = harness.due_lanes_for_default_pool(at(END)).await;
    assert_eq!((query.lanes, query.next_wake), (vec![], None), "an empty lane is deleted");
    harness.ends(line[1], Outcome::Delivered, at(22)).await;
    assert_given(&take(harness, &a(), 23, 10).await, &[], false);
}

pub async fn next_delivery_is_due_when_the_first_expires_or_is_cancelled(harness: &Arc<Harness>) {
    let first = harness.waiting_in(&a(), at(0), at(5000)).await;
    let next = harness.waiting_in(&a(), at(50), at(60)).await;
    let step = harness.store().expire_deliveries(harness.webhook_id, at(50), at(55), 10, None).await.unwrap();
    assert_eq!(
        (step, harness.status(first).await),
        (BatchProgress { changed: 1, finished: true }, DeliveryStatus::Dead)
    );
    assert_eq!(harness.next_wake(at(0)).await, Some(at(60)));
    assert_given(&take(harness, &a(), 60, 10).await, &[next], false);
    harness.ends(next, Outcome::Delivered, at(61)).await;

    // One of two deliveries is cancelled before the webhook is enabled again.
    let line = line(harness, &a(), &[6000, 70]).await;
    harness.set_state(harness.webhook_id, WebhookState::Disabled("disabled by the owner".into())).await;
    let step = harness
        .store()
        .cancel_pending(harness.webhook_id, "webhook disabled".into(), at(62), 1)
        .await
        .unwrap();
    assert_eq!(step, BatchProgress { changed: 1, finished: false });
    harness.set_state(harness.webhook_id, WebhookState::Active).await;
    let first_is_left = harness.status(line[0]).await == DeliveryStatus::Pending;
    assert_eq!(harness.next_wake(at(0)).await, Some(at(if first_is_left { 6000 } else { 70 })));
}

pub async fn redriven_delivery_goes_to_the_end_of_its_order(harness: &Arc<Harness>) {
    let line = line(harness, &a(), &[0, 0, 0]).await;
    let options = || RedriveOptions {
        id: harness.delivery_id(line[0].time()),
        lane: a(),
        priority: Some(Priority::High),
        unless_purged: false,
    };
    take(harness, &a(), 1, 2).await;
    harness.ends(line[0], Outcome::Dead(DeadReason::Exhausted), at(2)).await;
    harness.ends(line[1], Outcome::Delivered, at(3)).await;
    let retried = options();
    let id = retried.id;
    assert_eq!(harness.retry(line[0], retried, at(4)).await, RedriveResult::NewRound(id));
    let event_id = harness.delivery(line[1]).await.event_id;
    let round = NewRound {
        id: harness.delivery_id(event_id.time()),
        webhook_id: harness.webhook_id,
        format: PayloadFormat::Envelope,
        lane: a(),
    };
    let (tenant_id, replayed) = (harness.tenant_id.clone(), round.id);
    let response = harness.store().replay(tenant_id, event_id, vec![round], None, at(5)).await.unwrap();
    assert_eq!(response, ReplayResult::Done(vec![replayed]));
    let last = harness.waiting_in(&a(), at(6), at(6)).await;
    assert_given(&take(harness, &a(), 10, 10).await, &[line[2], id, replayed, last], false);
}

pub async fn orders_of_a_webhook_are_independent(harness: &Arc<Harness>) {
    let keys = ["a", "b", "", "a.b", "a"];
    let other_tenants = harness.webhook_id();
    let lanes = keys.map(|key| LaneKey { webhook_id: harness.webhook_id, lane: order(key) });
    let lanes = [&lanes[..4], &[LaneKey { webhook_id: other_tenants, lane: order("a") }]].concat();
    let mut lines = Vec::new();
    for (n, lane) in (0..).zip(&lanes) {
        let mut line = Vec::new();
        for due in [100 * n, 0] {
            let new =
                harness.fan_out_to(harness.event(at(0)), &[(lane.clone(), InitialState::Waiting(at(due)))]);
            line.push(new.deliveries[0].id);
            harness.publish_new(new).await;
        }
        lines.push(line);
    }
    for (n, (lane, line)) in (0..).zip(lanes.iter().zip(&lines)) {
        let query = harness.due_lanes_for_default_pool(at(100 * n)).await;
        assert_eq!(query.lanes, std::slice::from_ref(lane), "the other lanes are claimed or not due");
        let claim = harness.claim_lane(lane.clone(), at(100 * n), 1).await;
        assert_given(&claim, &line[..1], true);
    }
}

pub async fn unordered_deliveries_are_not_blocked_by_an_order(harness: &Arc<Harness>) {
    let line = line(harness, &a(), &[9000, 0]).await;
    let free = harness.waiting(at(5), at(5)).await;
    let retried = harness.waiting(at(6), at(6)).await;
    assert_eq!(ids(&harness.claim(at(10)).await), [free, retried]);
    harness.ends(retried, Outcome::Retry { at: at(20) }, at(11)).await;
    assert_eq!(harness.claim_one(at(20)).await.id, retried);
    assert_given(&take(harness, &a(), 9000, 10).await, &line, false);
    harness.waiting(at(7), at(7)).await;
    assert_eq!(harness.claim(at(9000)).await.len(), 1, "leases of an ordered lane do not block other lanes");
}

pub async fn making_a_later_delivery_due_does_not_reorder(harness: &Arc<Harness>) {
    let unused = |priority| RedriveOptions {
        id: harness.delivery_id(at(0)),
        lane: a(),
        priority,
        unless_purged: false,
    };
    let line = line(harness, &a(), &[500, 800, 0]).await;
    assert_eq!(harness.retry(line[1], unused(None), at(10)).await, RedriveResult::DueNow(line[1]));
    let query = harness.due_lanes_for_default_pool(at(499)).await;
    assert_eq!((query.lanes, query.next_wake), (vec![], Some(at(500))));
    let urgent = unused(Some(Priority::High));
    assert_eq!(harness.retry(line[2], urgent, at(10)).await, RedriveResult::DueNow(line[2]));
    assert_eq!(harness.delivery(line[2]).await.priority, Priority::High);
    assert_eq!(
        harness.next_wake(at(10)).await,
        Some(at(500)),
        "the order takes precedence over the priority"
    );
    assert_eq!(harness.retry(line[0], unused(None), at(20)).await, RedriveResult::DueNow(line[0]));
    assert_eq!(harness.due_lanes(at(20)).await, [harness.own(a())]);
    assert_given(&take(harness, &a(), 20, 10).await, &line, false);
}

async fn predecessor(harness: &Harness, id: DeliveryId) -> Option<DeliveryId> {
    let shown = harness.delivery(id).await;
    let all =
        harness.store().list_deliveries(harness.tenant_id.clone(), DeliveryFilter::default(), page(1000));
    assert!(all.await.unwrap().found.contains(&shown), "the listing and the lookup return the same delivery");
    shown.predecessor
}

pub async fn delivery_names_the_one_it_is_behind(harness: &Arc<Harness>) {
    let line = line(harness, &a(), &[0, 0, 0]).await;
    let elsewhere =
        [harness.waiting(at(0), at(0)).await, harness.waiting_in(&order("b"), at(0), at(0)).await];
    let all = || async {
        [
            predecessor(harness, line[0]).await,
            predecessor(harness, line[1]).await,
            predecessor(harness, line[2]).await,
        ]
    };
    let first = Some(line[0]);
    assert_eq!(all().await, [None, first, first]);
    for id in elsewhere {
        assert_eq!(predecessor(harness, id).await, None);
    }
    take(harness, &a(), 1, 1).await;
    assert_eq!(all().await, [None, first, first], "while the first delivery is leased");
    harness.ends(line[0], Outcome::Retry { at: at(500) }, at(2)).await;
    assert_eq!(all().await, [None, first, first], "while the first delivery waits for its retry");
    take(harness, &a(), 500, 2).await;
    assert_eq!(all().await, [None, None, first], "a leased delivery is behind no other");
    harness.record(harness.outcome(line[0], 2, Outcome::Retry { at: at(900) }, at(501))).await;
    assert_eq!(
        predecessor(harness, line[0]).await,
        None,
        "the first delivery is behind no other, even if the next is leased"
    );
    harness.store().release(harness.epoch, at(502), vec![(line[1], at(0))]).await.unwrap();
    assert_eq!(all().await, [None, first, first]);
    assert_eq!(harness.cancel(line[0], at(503)).await, CancelResult::Done);
    assert_eq!(all().await, [None, None, Some(line[1])]);
}

pub async fn orders_survive_reopening(harness: &mut Arc<Harness>) {
    let line = line(harness, &a(), &[0, 0, 700]).await;
    assert_given(&take(harness, &a(), 1, 1).await, &line[..1], true);
    let kept = harness.waiting_in(&order("b"), at(0), at(600)).await;
    harness.waiting_in(&order("b"), at(0), at(0)).await;
    Harness::reopen(harness).await;
    let epoch = harness.new_epoch().await;
    assert_eq!(harness.delivery(line[1]).await.predecessor, Some(line[0]));
    assert_given(&take_as(harness, epoch, &a(), 2, 10).await, &[], false);
    assert_eq!(harness.rescue(harness.epoch, at(10)).await, 1);
    assert_eq!(harness.due_lanes(at(10)).await, [harness.own(a())]);
    assert_given(&take_as(harness, epoch, &a(), 10, 10).await, &line[..2], false);
    assert_eq!(harness.next_wake(at(10)).await, Some(at(600)));
    assert_given(&take_as(harness, epoch, &order("b"), 600, 1).await, &[kept], true);
}

pub async fn order_is_sent_by_one_node_at_a_time(harness: &Arc<Harness>) {
    const COUNT: usize = 60;
    let started = Arc::new(Mutex::new(Vec::new()));
    line(harness, &a(), &[0; COUNT]).await;
    let sender = |epoch: Epoch| {
        let (harness, started) = (harness.clone(), started.clone());
        async move {
            while started.lock().unwrap().len() < COUNT {
                for one in take_as(&harness, epoch, &a(), 1, 3).await.deliveries {
                    // No other node may start a delivery of this lane until the outcomes of these are stored.
                    started.lock().unwrap().push(one.seq);
                    end_as(&harness, epoch, one.id, Outcome::Delivered, at(2)).await;
                }
            }
        }
    };
    let mut epochs = Vec::new();
    for _ in 0..6 {
        epochs.push(harness.new_epoch().await);
    }
    together(epochs.into_iter().map(sender)).await;
    let started = started.lock().unwrap().clone();
    assert!(started.is_sorted_by(|before, after| before < after), "{started:?}");
    assert_eq!(started.iter().collect::<BTreeSet<_>>().len(), COUNT);
    assert_eq!(harness.due_lanes(at(END)).await, []);
}
