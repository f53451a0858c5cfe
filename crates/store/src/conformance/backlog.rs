//! What piles up: counted without looking at all of it, and ended when its time is over.

use std::sync::Arc;

use redrive_core::{
    DeadReason, DeliveryStatus, TenantId, WebhookId,
    delivery::lane::{Lane, Priority},
    protection::breaker::{CircuitState, SavedCircuit},
    webhook::WebhookState,
};

use super::{Bench, END, FRESH, RETRY, at, closed, ids, order};
use crate::{Backlog, Backlogged, Birth, LaneKey, Next, Redriven, Step};

/// What waits for the bench's webhook.
async fn only(bench: &Bench, now: i64, most: usize) -> Backlog {
    let counted =
        bench.store().backlogs(Some(bench.tenant.clone()), vec![bench.webhook], at(now), most).await.unwrap();
    assert_eq!(counted.len(), 1);
    counted[0].1
}

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
        let step = bench.store().expire(bench.webhook, at(7), at(100), 3, None).await.unwrap();
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
    assert_eq!(bench.store().expire(bench.webhook, at(102), at(103), 3, None).await.unwrap(), nothing);
}

pub async fn lanes_settle_when_something_expires(bench: &Arc<Bench>) {
    bench.waiting(at(0), at(50)).await;
    bench.waiting(at(5), at(80)).await;
    bench.waiting_in(&RETRY, at(0), at(60)).await;
    assert_eq!(bench.next_wake(at(0)).await, Some(at(50)));
    let step = bench.store().expire(bench.webhook, at(5), at(10), 10, None).await.unwrap();
    assert_eq!(step, Step { moved: 2, finished: true });
    assert_eq!(bench.next_wake(at(0)).await, Some(at(80)));
    // Who holds a lane keeps it, and finds nothing more once it is empty.
    bench.waiting(at(6), at(80)).await;
    assert!(bench.claim_lane(bench.lane(), at(80), 1).await.more);
    bench.store().expire(bench.webhook, at(1000), at(90), 10, None).await.unwrap();
    let claim = bench.claim_lane(bench.lane(), at(90), 10).await;
    assert!(claim.deliveries.is_empty() && !claim.more);
    assert_eq!(bench.store().oldest(None, 10).await.unwrap(), []);
}

pub async fn the_oldest_that_waits_is_told_page_by_page(bench: &Arc<Bench>) {
    let webhooks: Vec<WebhookId> = (0..5).map(|_| bench.webhook_id()).collect();
    let mut expected = Vec::new();
    for (n, webhook) in (0..).zip(&webhooks) {
        for (lane, made) in [(FRESH, 50 + n), (order("a"), 20 + n), (RETRY, 90)] {
            let key = LaneKey { webhook: *webhook, lane };
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
    let count = async |now| only(bench, now, 100).await;
    assert_eq!(count(0).await, Backlog::default());
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
    let expected = Backlog { due: 5, scheduled: 4, in_order: 3, by_priority: [0, 12, 0], more: false };
    assert_eq!(count(10).await, expected);
    assert_eq!(count(9).await, Backlog { due: 3, scheduled: 6, ..expected });
    // Being blocked changes nothing about when they are due.
    let circuit = SavedCircuit { state: CircuitState::Open, until: Some(at(900)), generation: 1, ..closed() };
    bench.store().set_circuit(bench.tenant.clone(), bench.webhook, circuit.clone(), None).await.unwrap();
    assert_eq!(count(10).await, expected);
    let reset = SavedCircuit { generation: 2, ..closed() };
    bench.store().set_circuit(bench.tenant.clone(), bench.webhook, reset, None).await.unwrap();

    let claim = bench.claim_lane(bench.own(order("a")), at(10), 1).await;
    assert_eq!(ids(&claim.deliveries).len(), 1);
    let behind = Backlog { due: 4, scheduled: 4, in_order: 3, by_priority: [0, 11, 0], more: false };
    assert_eq!(count(10).await, behind, "the rest is behind one that is on its way");
}

pub async fn a_backlog_is_counted_no_further_than_asked(bench: &Arc<Bench>) {
    for n in 0..5 {
        bench.waiting(at(0), at(0)).await;
        bench.waiting_in(&RETRY, at(0), at(500)).await;
        bench.waiting_in(&order("a"), at(0), at(0)).await;
        bench.waiting_in(&order(&n.to_string()), at(0), at(500)).await;
    }
    let count = async |most| only(bench, 10, most).await;
    let all = Backlog { due: 6, scheduled: 10, in_order: 4, by_priority: [0, 20, 0], more: false };
    assert_eq!(count(100).await, all);
    assert_eq!(count(10).await, all);
    assert!(count(9).await.more);
    let few = count(3).await;
    assert!(few.more && few.due <= 3 && few.scheduled <= 3 && few.in_order <= 3, "{few:?}");
    assert_eq!(few.by_priority, [0, few.due + few.scheduled + few.in_order, 0]);
}

pub async fn backlogs_are_counted_by_priority_and_webhook(bench: &Arc<Bench>) {
    let other = bench.webhook_id();
    for (webhook, priority, retry, dues) in [
        (bench.webhook, Priority::High, false, &[0, 1, 900][..]),
        (bench.webhook, Priority::Low, true, &[800, 900]),
        (bench.webhook, Priority::High, true, &[5]),
        (other, Priority::Low, false, &[0]),
    ] {
        for due in dues {
            let key = LaneKey { webhook, lane: Lane::Free { priority, retry } };
            bench.publish_new(bench.fan_out_to(bench.event(at(0)), &[(key, Birth::Waiting(at(*due)))])).await;
        }
    }
    let key = LaneKey { webhook: other, lane: order("a") };
    bench.publish_new(bench.fan_out_to(bench.event(at(0)), &[(key, Birth::Waiting(at(0)))])).await;
    let nothing = bench.webhook_id();
    let count = |most| bench.store().backlogs(None, vec![other, nothing, bench.webhook], at(10), most);
    let of_other = Backlog { due: 2, by_priority: [0, 1, 1], ..Backlog::default() };
    let own = Backlog { due: 3, scheduled: 3, by_priority: [4, 0, 2], ..Backlog::default() };
    let expected = [(other, of_other), (nothing, Backlog::default()), (bench.webhook, own)];
    assert_eq!(count(100).await.unwrap(), expected);
    let few = Backlog { due: 2, scheduled: 2, by_priority: [3, 0, 1], more: true, ..Backlog::default() };
    assert_eq!(count(2).await.unwrap()[2], (bench.webhook, few), "the most urgent count first");
    assert_eq!(bench.store().backlogs(None, vec![], at(10), 100).await.unwrap(), []);
}

pub async fn the_webhooks_of_a_tenant_that_something_waits_for_are_found(bench: &Arc<Bench>) {
    let globex = bench.new_tenant("globex").await;
    let mut hooks = Vec::new();
    for n in 0..6 {
        let webhook = bench.new_webhook().await.id;
        if n % 2 == 0 {
            for lane in [FRESH, RETRY, order("a"), order("b")] {
                let key = LaneKey { webhook, lane };
                let new = bench.fan_out_to(bench.event(at(n)), &[(key, Birth::Waiting(at(END)))]);
                bench.publish_new(new).await;
            }
            hooks.push(webhook);
        }
    }
    bench.leased(at(0)).await;
    let look = |tenant: &TenantId, look_at| bench.store().backlogged(tenant.clone(), look_at);
    let found = |webhooks: &[WebhookId], more| Backlogged { webhooks: webhooks.to_vec(), more };
    // Seven webhooks, of which three have something; fewer than those are looked at from the other end.
    assert_eq!(look(&bench.tenant, 100).await.unwrap(), found(&hooks, false));
    assert_eq!(look(&bench.tenant, 7).await.unwrap(), found(&hooks, false));
    assert_eq!(look(&bench.tenant, 6).await.unwrap(), found(&hooks, false));
    assert_eq!(look(&bench.tenant, 2).await.unwrap(), found(&hooks[..2], true));
    assert_eq!(look(&globex, 100).await.unwrap(), Backlogged::default());
    bench.set_state(hooks[0], WebhookState::Deleted).await;
    for look_at in [5, 100] {
        assert_eq!(look(&bench.tenant, look_at).await.unwrap().webhooks, hooks[1..], "it is being swept up");
    }
}
