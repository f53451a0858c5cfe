//! Orders: each starts only when the one before it is over, whoever sends them and whatever happens to them.

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

use super::{Bench, END, at, ids, order, page, together};
use crate::{
    Again, Birth, Cancelled, DeliveryFilter, Epoch, LaneClaim, LaneKey, NewRound, Next, Outcome, Recorded,
    Redriven, Replayed, Step,
};

const DONE: Recorded = Recorded::Done { config_version: None };

fn a() -> Lane {
    order("a")
}

/// Deliveries in an order of the bench's webhook, published in this order and due at these times.
async fn line(bench: &Bench, lane: &Lane, dues: &[i64]) -> Vec<DeliveryId> {
    let mut line = Vec::new();
    for (n, due) in (0..).zip(dues) {
        line.push(bench.waiting_in(lane, at(n), at(*due)).await);
    }
    line
}

async fn take(bench: &Bench, lane: &Lane, now: i64, room: usize) -> LaneClaim {
    bench.claim_lane(bench.own(lane.clone()), at(now), room).await
}

async fn take_as(bench: &Bench, epoch: Epoch, lane: &Lane, now: i64, room: usize) -> LaneClaim {
    bench.claim_lane_as(epoch, bench.own(lane.clone()), at(now), room).await
}

async fn end_as(bench: &Bench, epoch: Epoch, id: DeliveryId, next: Next, now: Time) {
    let outcome = Outcome { epoch, ..bench.outcome(id, 1, next, now) };
    assert_eq!(bench.record(outcome).await, DONE);
}

/// That a claim gave exactly these.
#[track_caller]
fn assert_given(claim: &LaneClaim, expected: &[DeliveryId], more: bool) {
    assert_eq!((ids(&claim.deliveries), claim.more), (expected.to_vec(), more));
}

pub async fn an_order_is_claimed_by_sequence_whatever_the_due_times(bench: &Arc<Bench>) {
    for lane in [a(), order("")] {
        let line = line(bench, &lane, &[30, 10, 20, 0]).await;
        let claim = take(bench, &lane, 100, 3).await;
        assert_given(&claim, &line[..3], true);
        let numbers: Vec<_> = claim.deliveries.iter().map(|one| one.seq).collect();
        assert!(numbers.is_sorted_by(|before, after| before < after), "{numbers:?}");
        let dues: Vec<_> = claim.deliveries.iter().map(|one| one.due).collect();
        assert_eq!(dues, [at(30), at(10), at(20)]);
    }
}

pub async fn a_first_that_is_not_due_holds_the_rest_back(bench: &Arc<Bench>) {
    let line = line(bench, &a(), &[500, 0, 700, 0]).await;
    let key = bench.own(a());
    assert_eq!((bench.due_lanes(at(499)).await, bench.next_wake(at(0)).await), (vec![], Some(at(500))));
    assert_given(&take(bench, &a(), 499, 10).await, &[], false);
    assert_eq!(bench.due_lanes(at(500)).await, std::slice::from_ref(&key));
    assert_given(&take(bench, &a(), 500, 10).await, &line[..2], false);
    assert_eq!(bench.next_wake(at(500)).await, Some(at(700)), "the third is the first now");
    for id in &line[..2] {
        bench.ends(*id, Next::Delivered, at(510)).await;
    }
    assert_eq!((bench.due_lanes(at(699)).await, bench.next_wake(at(0)).await), (vec![], Some(at(700))));
    assert_given(&take(bench, &a(), 700, 10).await, &line[2..], false);
}

pub async fn nothing_is_given_while_another_node_has_one(bench: &Arc<Bench>) {
    let line = line(bench, &a(), &[0, 0, 0]).await;
    let (key, other) = (bench.own(a()), bench.new_epoch().await);
    assert_given(&take(bench, &a(), 1, 1).await, &line[..1], true);
    assert_given(&take_as(bench, other, &a(), 10, 10).await, &[], false);
    // Nobody holds it, and it is looked at again a little later.
    let look = bench.look(at(10)).await;
    assert_eq!((look.lanes, look.next_wake), (vec![], Some(at(60))));
    assert_eq!(bench.due_lanes(at(60)).await, std::slice::from_ref(&key));
    assert_given(&take_as(bench, other, &a(), 60, 10).await, &[], false);

    assert_eq!(bench.rescue(bench.epoch, at(70)).await, 1);
    assert_eq!(bench.due_lanes(at(70)).await, [key]);
    let claim = take_as(bench, other, &a(), 70, 10).await;
    assert_given(&claim, &line, false);
    assert_eq!(claim.deliveries[0].rescues, 1);
}

pub async fn ones_own_leases_hold_an_order(bench: &Arc<Bench>) {
    let line = line(bench, &a(), &[0, 0, 500]).await;
    assert_given(&take(bench, &a(), 1, 1).await, &line[..1], true);
    for _ in 0..2 {
        assert_given(&take(bench, &a(), 2, 10).await, &[], true);
        assert_eq!(bench.due_lanes(at(END)).await, [], "it is held");
    }
    bench.ends(line[0], Next::Delivered, at(3)).await;
    assert_eq!(bench.due_lanes(at(END)).await, [], "it still is");
    assert_given(&take(bench, &a(), 4, 10).await, &line[1..2], false);

    // Nothing more is due, or nothing is left at all: there is nothing to come back for.
    assert_given(&take(bench, &a(), 5, 10).await, &[], false);
    assert_eq!(bench.next_wake(at(5)).await, Some(at(500)));
    bench.ends(line[1], Next::Delivered, at(6)).await;
    assert_given(&take(bench, &a(), 500, 10).await, &line[2..], false);
    assert_given(&take(bench, &a(), 501, 10).await, &[], false);
    let look = bench.look(at(END)).await;
    assert_eq!((look.lanes, look.next_wake), (vec![], None));
}

pub async fn a_retry_keeps_its_place_in_front(bench: &Arc<Bench>) {
    let line = line(bench, &a(), &[0, 0, 0]).await;
    assert_given(&take(bench, &a(), 1, 2).await, &line[..2], true);
    bench.ends(line[0], Next::Retry { due: at(500) }, at(2)).await;
    // The second is still leased: as long as it is, not even the first is given.
    assert_given(&take(bench, &a(), 600, 10).await, &[], true);
    assert_eq!(bench.store().release(bench.epoch, at(3), vec![(line[1], at(0))]).await.unwrap(), 1);
    let look = bench.look(at(499)).await;
    assert_eq!((look.lanes, look.next_wake), (vec![], Some(at(500))), "the rest waits with it");
    assert_given(&take(bench, &a(), 499, 10).await, &[], false);
    let claim = take(bench, &a(), 500, 10).await;
    assert_given(&claim, &line, false);
    let attempts: Vec<_> = claim.deliveries.iter().map(|one| one.attempt_count).collect();
    assert_eq!(attempts, [1, 0, 0]);
}

pub async fn what_is_given_back_keeps_its_place(bench: &Arc<Bench>) {
    let line = line(bench, &a(), &[0, 0, 0, 0]).await;
    assert_given(&take(bench, &a(), 1, 3).await, &line[..3], true);
    // The last one first, and the first one last.
    let back = vec![(line[2], at(0)), (line[1], at(9)), (line[0], at(20))];
    assert_eq!(bench.store().release(bench.epoch, at(2), back).await.unwrap(), 3);
    let look = bench.look(at(19)).await;
    assert_eq!((look.lanes, look.next_wake), (vec![], Some(at(20))), "the first is due then");

    let dead = bench.new_epoch().await;
    assert_given(&take_as(bench, dead, &a(), 20, 3).await, &line[..3], true);
    let mut left = 3;
    while left > 0 {
        assert_given(&take(bench, &a(), 30, 10).await, &[], false);
        let step = bench.store().rescue(dead, at(30), 1).await.unwrap();
        assert_eq!(step, Step { moved: 1, finished: false });
        left -= 1;
    }
    assert_eq!(bench.due_lanes(at(30)).await, [bench.own(a())]);
    assert_given(&take(bench, &a(), 30, 10).await, &line, false);
}

pub async fn the_end_of_a_first_lets_the_next_go_at_once(bench: &Arc<Bench>) {
    let ends = [
        Next::Delivered,
        Next::Dead { reason: DeadReason::Permanent },
        Next::Cancelled { reason: "enough".into() },
    ];
    for (key, next) in ["a", "b", "c"].into_iter().zip(ends) {
        let (lane, other) = (order(key), bench.new_epoch().await);
        let line = line(bench, &lane, &[0, 0]).await;
        assert_given(&take(bench, &lane, 1, 1).await, &line[..1], true);
        assert_given(&take_as(bench, other, &lane, 10, 1).await, &[], false);
        assert_eq!(bench.due_lanes(at(11)).await, []);
        bench.ends(line[0], next, at(11)).await;
        assert_eq!(bench.due_lanes(at(11)).await, [bench.own(lane.clone())]);
        assert_given(&take_as(bench, other, &lane, 11, 1).await, &line[1..], false);
        end_as(bench, other, line[1], Next::Delivered, at(12)).await;
    }
}

pub async fn calling_off_a_leased_first_lets_the_next_go_at_once(bench: &Arc<Bench>) {
    for key in ["released", "rescued", "recorded"] {
        let (lane, node, other) = (order(key), bench.new_epoch().await, bench.new_epoch().await);
        let line = line(bench, &lane, &[0, 0]).await;
        assert_given(&take_as(bench, node, &lane, 1, 1).await, &line[..1], true);
        assert_given(&take_as(bench, other, &lane, 10, 1).await, &[], false);
        assert_eq!(bench.cancel(line[0], at(10)).await, Cancelled::Requested);
        assert_eq!(bench.due_lanes(at(11)).await, [], "it may still succeed");
        match key {
            "released" => {
                let back = vec![(line[0], at(9000))];
                assert_eq!(bench.store().release(node, at(11), back).await.unwrap(), 1);
            }
            "rescued" => assert_eq!(bench.rescue(node, at(11)).await, 1),
            _ => {
                let next = Next::Cancelled { reason: "enough".into() };
                let outcome = Outcome { epoch: node, ..bench.outcome(line[0], 1, next, at(11)) };
                assert_eq!(bench.record(Outcome { knows_cancel: true, ..outcome }).await, DONE);
            }
        }
        assert_eq!(bench.status(line[0]).await, DeliveryStatus::Cancelled);
        assert_eq!(bench.due_lanes(at(11)).await, [bench.own(lane.clone())], "{key}");
        assert_given(&take_as(bench, other, &lane, 11, 1).await, &line[1..], false);
        end_as(bench, other, line[1], Next::Delivered, at(12)).await;
    }
}

pub async fn calling_off_a_waiting_first_lets_the_next_go_at_once(bench: &Arc<Bench>) {
    let line = line(bench, &a(), &[5000, 10, 7000, 20]).await;
    assert_eq!(bench.next_wake(at(0)).await, Some(at(5000)));
    assert_eq!(bench.cancel(line[2], at(1)).await, Cancelled::Done);
    assert_eq!(bench.next_wake(at(0)).await, Some(at(5000)), "the first counts");
    assert_eq!(bench.cancel(line[0], at(1)).await, Cancelled::Done);
    assert_eq!(bench.next_wake(at(0)).await, Some(at(10)));
    assert_given(&take(bench, &a(), 20, 1).await, &line[1..2], true);
    // Held by whoever has the one before it, who need not be told.
    assert_eq!(bench.cancel(line[3], at(21)).await, Cancelled::Done);
    let look = bench.look(at(END)).await;
    assert_eq!((look.lanes, look.next_wake), (vec![], None), "a lane with nothing left goes");
    bench.ends(line[1], Next::Delivered, at(22)).await;
    assert_given(&take(bench, &a(), 23, 10).await, &[], false);
}

pub async fn a_first_that_expires_or_is_swept_up_lets_the_next_go(bench: &Arc<Bench>) {
    let first = bench.waiting_in(&a(), at(0), at(5000)).await;
    let next = bench.waiting_in(&a(), at(50), at(60)).await;
    let step = bench.store().expire(bench.webhook, at(50), at(55), 10, None).await.unwrap();
    assert_eq!((step, bench.status(first).await), (Step { moved: 1, finished: true }, DeliveryStatus::Dead));
    assert_eq!(bench.next_wake(at(0)).await, Some(at(60)));
    assert_given(&take(bench, &a(), 60, 10).await, &[next], false);
    bench.ends(next, Next::Delivered, at(61)).await;

    // One of two is swept up before somebody thinks better of it.
    let line = line(bench, &a(), &[6000, 70]).await;
    bench.set_state(bench.webhook, WebhookState::Disabled("by its owner".into())).await;
    let step = bench.store().sweep(bench.webhook, "swept up".into(), at(62), 1).await.unwrap();
    assert_eq!(step, Step { moved: 1, finished: false });
    bench.set_state(bench.webhook, WebhookState::Active).await;
    let first_is_left = bench.status(line[0]).await == DeliveryStatus::Pending;
    assert_eq!(bench.next_wake(at(0)).await, Some(at(if first_is_left { 6000 } else { 70 })));
}

pub async fn what_is_sent_again_goes_to_the_back(bench: &Arc<Bench>) {
    let line = line(bench, &a(), &[0, 0, 0]).await;
    let again = || Again {
        id: bench.delivery_id(line[0].time()),
        lane: a(),
        priority: Some(Priority::High),
        unless_purged: false,
    };
    take(bench, &a(), 1, 2).await;
    bench.ends(line[0], Next::Dead { reason: DeadReason::Exhausted }, at(2)).await;
    bench.ends(line[1], Next::Delivered, at(3)).await;
    let retried = again();
    let id = retried.id;
    assert_eq!(bench.retry(line[0], retried, at(4)).await, Redriven::NewRound(id));
    let event = bench.delivery(line[1]).await.event;
    let round = NewRound {
        id: bench.delivery_id(event.time()),
        webhook: bench.webhook,
        format: PayloadFormat::Envelope,
        lane: a(),
    };
    let (tenant, replayed) = (bench.tenant.clone(), round.id);
    let answer = bench.store().replay(tenant, event, vec![round], None, at(5)).await.unwrap();
    assert_eq!(answer, Replayed::Done(vec![replayed]));
    let last = bench.waiting_in(&a(), at(6), at(6)).await;
    assert_given(&take(bench, &a(), 10, 10).await, &[line[2], id, replayed, last], false);
}

pub async fn orders_of_a_webhook_are_independent(bench: &Arc<Bench>) {
    let keys = ["a", "b", "", "a.b", "a"];
    let elsewhere = bench.webhook_id();
    let lanes = keys.map(|key| LaneKey { webhook: bench.webhook, lane: order(key) });
    let lanes = [&lanes[..4], &[LaneKey { webhook: elsewhere, lane: order("a") }]].concat();
    let mut lines = Vec::new();
    for (n, lane) in (0..).zip(&lanes) {
        let mut line = Vec::new();
        for due in [100 * n, 0] {
            let new = bench.fan_out_to(bench.event(at(0)), &[(lane.clone(), Birth::Waiting(at(due)))]);
            line.push(new.deliveries[0].id);
            bench.publish_new(new).await;
        }
        lines.push(line);
    }
    for (n, (lane, line)) in (0..).zip(lanes.iter().zip(&lines)) {
        let look = bench.look(at(100 * n)).await;
        assert_eq!(look.lanes, std::slice::from_ref(lane), "the others are held, or not due");
        let claim = bench.claim_lane(lane.clone(), at(100 * n), 1).await;
        assert_given(&claim, &line[..1], true);
    }
}

pub async fn deliveries_outside_of_an_order_pass_by(bench: &Arc<Bench>) {
    let line = line(bench, &a(), &[9000, 0]).await;
    let free = bench.waiting(at(5), at(5)).await;
    let retried = bench.waiting(at(6), at(6)).await;
    assert_eq!(ids(&bench.claim(at(10)).await), [free, retried]);
    bench.ends(retried, Next::Retry { due: at(20) }, at(11)).await;
    assert_eq!(bench.claim_one(at(20)).await.id, retried);
    assert_given(&take(bench, &a(), 9000, 10).await, &line, false);
    bench.waiting(at(7), at(7)).await;
    assert_eq!(bench.claim(at(9000)).await.len(), 1, "nor do leases of an order keep them");
}

pub async fn making_a_later_one_due_does_not_let_it_overtake(bench: &Arc<Bench>) {
    let unused = |priority| Again { id: bench.delivery_id(at(0)), lane: a(), priority, unless_purged: false };
    let line = line(bench, &a(), &[500, 800, 0]).await;
    assert_eq!(bench.retry(line[1], unused(None), at(10)).await, Redriven::DueNow(line[1]));
    let look = bench.look(at(499)).await;
    assert_eq!((look.lanes, look.next_wake), (vec![], Some(at(500))));
    let urgent = unused(Some(Priority::High));
    assert_eq!(bench.retry(line[2], urgent, at(10)).await, Redriven::DueNow(line[2]));
    assert_eq!(bench.delivery(line[2]).await.priority, Priority::High);
    assert_eq!(bench.next_wake(at(10)).await, Some(at(500)), "order comes before priority");
    assert_eq!(bench.retry(line[0], unused(None), at(20)).await, Redriven::DueNow(line[0]));
    assert_eq!(bench.due_lanes(at(20)).await, [bench.own(a())]);
    assert_given(&take(bench, &a(), 20, 10).await, &line, false);
}

async fn behind(bench: &Bench, id: DeliveryId) -> Option<DeliveryId> {
    let shown = bench.delivery(id).await;
    let all = bench.store().list_deliveries(bench.tenant.clone(), DeliveryFilter::default(), page(1000));
    assert!(all.await.unwrap().found.contains(&shown), "listed as it is shown");
    shown.behind
}

pub async fn a_delivery_names_the_one_it_is_behind(bench: &Arc<Bench>) {
    let line = line(bench, &a(), &[0, 0, 0]).await;
    let elsewhere = [bench.waiting(at(0), at(0)).await, bench.waiting_in(&order("b"), at(0), at(0)).await];
    let all = || async {
        [behind(bench, line[0]).await, behind(bench, line[1]).await, behind(bench, line[2]).await]
    };
    let first = Some(line[0]);
    assert_eq!(all().await, [None, first, first]);
    for id in elsewhere {
        assert_eq!(behind(bench, id).await, None);
    }
    take(bench, &a(), 1, 1).await;
    assert_eq!(all().await, [None, first, first], "while it is on its way");
    bench.ends(line[0], Next::Retry { due: at(500) }, at(2)).await;
    assert_eq!(all().await, [None, first, first], "while it waits to be tried again");
    take(bench, &a(), 500, 2).await;
    assert_eq!(all().await, [None, None, first], "what a node has does not wait here");
    bench.record(bench.outcome(line[0], 2, Next::Retry { due: at(900) }, at(501))).await;
    assert_eq!(behind(bench, line[0]).await, None, "a first is behind nobody, even if the next is leased");
    bench.store().release(bench.epoch, at(502), vec![(line[1], at(0))]).await.unwrap();
    assert_eq!(all().await, [None, first, first]);
    assert_eq!(bench.cancel(line[0], at(503)).await, Cancelled::Done);
    assert_eq!(all().await, [None, None, Some(line[1])]);
}

pub async fn orders_survive_reopening(bench: &mut Arc<Bench>) {
    let line = line(bench, &a(), &[0, 0, 700]).await;
    assert_given(&take(bench, &a(), 1, 1).await, &line[..1], true);
    let kept = bench.waiting_in(&order("b"), at(0), at(600)).await;
    bench.waiting_in(&order("b"), at(0), at(0)).await;
    Bench::reopen(bench).await;
    let epoch = bench.new_epoch().await;
    assert_eq!(bench.delivery(line[1]).await.behind, Some(line[0]));
    assert_given(&take_as(bench, epoch, &a(), 2, 10).await, &[], false);
    assert_eq!(bench.rescue(bench.epoch, at(10)).await, 1);
    assert_eq!(bench.due_lanes(at(10)).await, [bench.own(a())]);
    assert_given(&take_as(bench, epoch, &a(), 10, 10).await, &line[..2], false);
    assert_eq!(bench.next_wake(at(10)).await, Some(at(600)));
    assert_given(&take_as(bench, epoch, &order("b"), 600, 1).await, &[kept], true);
}

pub async fn one_node_at_a_time_has_an_order(bench: &Arc<Bench>) {
    const COUNT: usize = 60;
    let started = Arc::new(Mutex::new(Vec::new()));
    line(bench, &a(), &[0; COUNT]).await;
    let sender = |epoch: Epoch| {
        let (bench, started) = (bench.clone(), started.clone());
        async move {
            while started.lock().unwrap().len() < COUNT {
                for one in take_as(&bench, epoch, &a(), 1, 3).await.deliveries {
                    // Nobody else may start one until the outcomes of these are stored.
                    started.lock().unwrap().push(one.seq);
                    end_as(&bench, epoch, one.id, Next::Delivered, at(2)).await;
                }
            }
        }
    };
    let mut epochs = Vec::new();
    for _ in 0..6 {
        epochs.push(bench.new_epoch().await);
    }
    together(epochs.into_iter().map(sender)).await;
    let started = started.lock().unwrap().clone();
    assert!(started.is_sorted_by(|before, after| before < after), "{started:?}");
    assert_eq!(started.iter().collect::<BTreeSet<_>>().len(), COUNT);
    assert_eq!(bench.due_lanes(at(END)).await, []);
}
