//! What piles up: counted without looking at all of it, and ended when its time is over.

use std::sync::Arc;

use redrive_core::{
    DeadReason, DeliveryStatus, WebhookId,
    breaker::{CircuitState, SavedCircuit},
    webhook::WebhookState,
};

use super::{Bench, END, FRESH, RETRY, at, closed, ids, order};
use crate::{Backlog, Birth, Next, Redriven, Step};

/// Parks what a webhook has until somebody says otherwise.
async fn block(bench: &Bench) {
    bench.set_state(bench.webhook, WebhookState::Paused).await;
}

pub async fn what_was_parked_too_long_expires_in_bounded_steps(bench: &Arc<Bench>) {
    block(bench).await;
    let mut old = Vec::new();
    for n in 0..7 {
        let lane = [FRESH, RETRY, order("a"), order("b")][n as usize % 4].clone();
        old.push(bench.waiting_in(&lane, at(n), at(1000 * n)).await);
    }
    let young = bench.waiting(at(7), at(7)).await;
    let leased = bench.leased(at(0)).await;
    let elsewhere = bench.webhook_id();
    bench.publish_new(bench.fan_out(bench.event(at(0)), &[(elsewhere, Birth::Waiting(at(0)))])).await;
    let mut steps = Vec::new();
    loop {
        let step = bench.store().expire(bench.webhook, at(7), at(100), 3).await.unwrap();
        steps.push(step.moved);
        if step.finished {
            break;
        }
    }
    assert_eq!(steps, [3, 3, 1]);
    for id in &old {
        let ended = bench.delivery(*id).await;
        assert_eq!((ended.status, ended.dead_reason), (DeliveryStatus::Dead, Some(DeadReason::Expired)));
        assert_eq!((ended.ended_at, ended.due, ended.attempt_count), (Some(at(100)), None, 0));
        assert_eq!(bench.attempts(*id).await, []);
    }
    old.reverse();
    assert_eq!(bench.dead_list().await, old);
    assert_eq!(bench.due_lanes(at(END)).await, [bench.lane_of(elsewhere)]);
    bench.set_state(bench.webhook, WebhookState::Active).await;
    assert_eq!(bench.claim_one(at(END)).await.id, young, "what was made later is kept");
    bench.ends(leased, Next::Delivered, at(101)).await;
    let again = bench.delivery_id(old[0].time());
    assert_eq!(bench.retry(old[0], bench.again(again), at(102)).await, Redriven::NewRound(again));
    let nothing = Step { moved: 0, finished: true };
    assert_eq!(bench.store().expire(bench.webhook, at(102), at(103), 3).await.unwrap(), nothing);
}

pub async fn lanes_settle_when_something_expires(bench: &Arc<Bench>) {
    bench.waiting(at(0), at(50)).await;
    bench.waiting(at(5), at(80)).await;
    bench.waiting_in(&RETRY, at(0), at(60)).await;
    assert_eq!(bench.next_wake(at(0)).await, Some(at(50)));
    let step = bench.store().expire(bench.webhook, at(5), at(10), 10).await.unwrap();
    assert_eq!(step, Step { moved: 2, finished: true });
    assert_eq!(bench.next_wake(at(0)).await, Some(at(80)));
    // Who holds a lane keeps it, and finds nothing more once it is empty.
    bench.waiting(at(6), at(80)).await;
    assert!(bench.claim_lane(bench.lane(), at(80), 1).await.more);
    bench.store().expire(bench.webhook, at(1000), at(90), 10).await.unwrap();
    let claim = bench.claim_lane(bench.lane(), at(90), 10).await;
    assert!(claim.deliveries.is_empty() && !claim.more);
    assert_eq!(bench.store().oldest(None, 10).await.unwrap(), []);
}

pub async fn the_oldest_that_waits_is_told_page_by_page(bench: &Arc<Bench>) {
    let webhooks: Vec<WebhookId> = (0..5).map(|_| bench.webhook_id()).collect();
    let mut expected = Vec::new();
    for (n, webhook) in (0..).zip(&webhooks) {
        for (lane, made) in [(FRESH, 50 + n), (order("a"), 20 + n), (RETRY, 90)] {
            let key = crate::LaneKey { webhook: *webhook, lane };
            bench
                .publish_new(bench.fan_out_to(bench.event(at(made)), &[(key, Birth::Waiting(at(END)))]))
                .await;
        }
        expected.push((*webhook, at(20 + n)));
    }
    bench.leased(at(0)).await;
    let page = |after, limit| bench.store().oldest(after, limit);
    assert_eq!(page(None, 10).await.unwrap(), expected);
    assert_eq!(page(None, 2).await.unwrap(), expected[..2]);
    assert_eq!(page(Some(webhooks[1]), 2).await.unwrap(), expected[2..4]);
    assert_eq!(page(Some(webhooks[3]), 2).await.unwrap(), expected[4..]);
    assert_eq!(page(Some(webhooks[4]), 2).await.unwrap(), []);
}

pub async fn a_backlog_is_counted_by_what_it_waits_for(bench: &Arc<Bench>) {
    let count = |now| bench.store().backlog(bench.webhook, at(now), 100);
    assert_eq!(count(0).await.unwrap(), Backlog::default());
    for (lane, dues) in [
        (FRESH, &[0, 10, 500][..]),
        (RETRY, &[0, 500, 600]),
        (order("a"), &[0, 0, 0]),
        (order("b"), &[500, 0]),
        (order(""), &[10]),
    ] {
        for due in dues {
            bench.waiting_in(&lane, at(0), at(*due)).await;
        }
    }
    bench
        .publish_new(bench.fan_out(bench.event(at(0)), &[(bench.webhook_id(), Birth::Waiting(at(0)))]))
        .await;
    bench.leased(at(0)).await;
    let expected = Backlog { due: 5, scheduled: 4, in_order: 3, more: false };
    assert_eq!(count(10).await.unwrap(), expected);
    assert_eq!(count(9).await.unwrap(), Backlog { due: 3, scheduled: 6, ..expected });
    // Being blocked changes nothing about when they are due.
    let circuit = SavedCircuit { state: CircuitState::Open, until: Some(at(900)), generation: 1, ..closed() };
    bench.store().set_circuit(bench.tenant.clone(), bench.webhook, circuit.clone()).await.unwrap();
    assert_eq!(count(10).await.unwrap(), expected);
    let reset = SavedCircuit { generation: 2, ..closed() };
    bench.store().set_circuit(bench.tenant.clone(), bench.webhook, reset).await.unwrap();

    let claim = bench.claim_lane(bench.own(order("a")), at(10), 1).await;
    assert_eq!(ids(&claim.deliveries).len(), 1);
    let behind = Backlog { due: 4, scheduled: 4, in_order: 3, more: false };
    assert_eq!(count(10).await.unwrap(), behind, "the rest is behind one that is on its way");
}

pub async fn a_backlog_is_counted_no_further_than_asked(bench: &Arc<Bench>) {
    for n in 0..5 {
        bench.waiting(at(0), at(0)).await;
        bench.waiting_in(&RETRY, at(0), at(500)).await;
        bench.waiting_in(&order("a"), at(0), at(0)).await;
        bench.waiting_in(&order(&n.to_string()), at(0), at(500)).await;
    }
    let count = |most| bench.store().backlog(bench.webhook, at(10), most);
    let all = Backlog { due: 6, scheduled: 10, in_order: 4, more: false };
    assert_eq!(count(100).await.unwrap(), all);
    assert_eq!(count(10).await.unwrap(), all);
    assert!(count(9).await.unwrap().more);
    let few = count(3).await.unwrap();
    assert!(few.more && few.due <= 3 && few.scheduled <= 3 && few.in_order <= 3, "{few:?}");
}
