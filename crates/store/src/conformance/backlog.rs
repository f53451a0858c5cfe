//! Backlog: counted at bounded cost, and expired in bounded steps.

use redrive_core::delivery::outcome::Outcome;
use std::sync::Arc;

use redrive_core::{
    DeadReason, DeliveryStatus, TenantId, WebhookId,
    delivery::lane::{Lane, Priority},
    protection::breaker::{CircuitState, SavedCircuit},
    webhook::WebhookState,
};

use super::{END, FRESH, Harness, RETRY, at, closed, ids, order};
use crate::{Backlog, BackloggedWebhooks, BatchProgress, InitialState, LaneKey, RedriveResult};

/// Returns the backlog of the harness's webhook.
async fn only(harness: &Harness, now: i64, max: usize) -> Backlog {
    let counted = harness
        .store()
        .backlogs(Some(harness.tenant_id.clone()), vec![harness.webhook_id], at(now), max)
        .await
        .unwrap();
    assert_eq!(counted.len(), 1);
    counted[0].1
}

/// Pauses the webhook, which parks its deliveries.
async fn block(harness: &Harness) {
    harness.set_state(harness.webhook_id, WebhookState::Paused).await;
}

pub async fn deliveries_parked_too_long_expire_in_bounded_steps(harness: &Arc<Harness>) {
    block(harness).await;
    let mut old = Vec::new();
    for n in 0..7 {
        let lane = [FRESH, RETRY, order("a"), order("b")][n as usize % 4].clone();
        old.push(harness.waiting_in(&lane, at(n), at(1000 * n)).await);
    }
    let young = harness.waiting(at(7), at(7)).await;
    let leased = harness.leased(at(0)).await;
    let other_tenants = harness.webhook_id();
    harness
        .publish_new(harness.fan_out(harness.event(at(0)), &[(other_tenants, InitialState::Waiting(at(0)))]))
        .await;
    let mut steps = Vec::new();
    loop {
        let step =
            harness.store().expire_deliveries(harness.webhook_id, at(7), at(100), 3, None).await.unwrap();
        steps.push(step.changed);
        if step.finished {
            break;
        }
    }
    assert_eq!(steps, [3, 3, 1]);
    for id in &old {
        let ended = harness.delivery(*id).await;
        assert_eq!((ended.status, ended.dead_reason), (DeliveryStatus::Dead, Some(DeadReason::Expired)));
        assert_eq!((ended.ended_at, ended.due, ended.attempt_count), (Some(at(100)), None, 0));
        assert_eq!(harness.attempts(*id).await, []);
    }
    old.reverse();
    assert_eq!(harness.dead_list().await, old);
    assert_eq!(harness.due_lanes(at(END)).await, [harness.lane_of(other_tenants)]);
    harness.set_state(harness.webhook_id, WebhookState::Active).await;
    assert_eq!(harness.claim_one(at(END)).await.id, young, "a younger delivery does not expire");
    harness.ends(leased, Outcome::Delivered, at(101)).await;
    let again = harness.delivery_id(old[0].time());
    assert_eq!(
        harness.retry(old[0], harness.redrive_options(again), at(102)).await,
        RedriveResult::NewRound(again)
    );
    let nothing = BatchProgress { changed: 0, finished: true };
    assert_eq!(
        harness.store().expire_deliveries(harness.webhook_id, at(102), at(103), 3, None).await.unwrap(),
        nothing
    );
}

pub async fn lanes_are_recomputed_on_expiry(harness: &Arc<Harness>) {
    harness.waiting(at(0), at(50)).await;
    harness.waiting(at(5), at(80)).await;
    harness.waiting_in(&RETRY, at(0), at(60)).await;
    assert_eq!(harness.next_wake(at(0)).await, Some(at(50)));
    let step = harness.store().expire_deliveries(harness.webhook_id, at(5), at(10), 10, None).await.unwrap();
    assert_eq!(step, BatchProgress { changed: 2, finished: true });
    assert_eq!(harness.next_wake(at(0)).await, Some(at(80)));
    // The holder of a lane keeps it, and finds no more deliveries once it is empty.
    harness.waiting(at(6), at(80)).await;
    assert!(harness.claim_lane(harness.lane(), at(80), 1).await.has_more_due);
    harness.store().expire_deliveries(harness.webhook_id, at(1000), at(90), 10, None).await.unwrap();
    let claim = harness.claim_lane(harness.lane(), at(90), 10).await;
    assert!(claim.deliveries.is_empty() && !claim.has_more_due);
    assert_eq!(harness.store().oldest_waiting(None, 10).await.unwrap(), []);
}

pub async fn oldest_waiting_delivery_is_listed_per_webhook_in_pages(harness: &Arc<Harness>) {
    let webhooks: Vec<WebhookId> = (0..5).map(|_| harness.webhook_id()).collect();
    let mut expected = Vec::new();
    for (n, webhook_id) in (0..).zip(&webhooks) {
        for (lane, created) in [(FRESH, 50 + n), (order("a"), 20 + n), (RETRY, 90)] {
            let key = LaneKey { webhook_id: *webhook_id, lane };
            harness
                .publish_new(
                    harness.fan_out_to(harness.event(at(created)), &[(key, InitialState::Waiting(at(END)))]),
                )
                .await;
        }
        expected.push((*webhook_id, at(20 + n)));
    }
    harness.leased(at(0)).await;
    let page = |after, limit| harness.store().oldest_waiting(after, limit);
    assert_eq!(page(None, 10).await.unwrap(), expected);
    assert_eq!(page(None, 2).await.unwrap(), expected[..2]);
    assert_eq!(page(Some(webhooks[1]), 2).await.unwrap(), expected[2..4]);
    assert_eq!(page(Some(webhooks[3]), 2).await.unwrap(), expected[4..]);
    assert_eq!(page(Some(webhooks[4]), 2).await.unwrap(), []);
}

pub async fn backlog_is_counted_by_wait_reason(harness: &Arc<Harness>) {
    let count = async |now| only(harness, now, 100).await;
    assert_eq!(count(0).await, Backlog::default());
    for (lane, dues) in [
        (FRESH, &[0, 10, 500][..]),
        (RETRY, &[0, 500, 600]),
        (order("a"), &[0, 0, 0]),
        (order("b"), &[500, 0]),
        (order(""), &[10]),
    ] {
        for due in dues {
            harness.waiting_in(&lane, at(0), at(*due)).await;
        }
    }
    harness
        .publish_new(
            harness.fan_out(harness.event(at(0)), &[(harness.webhook_id(), InitialState::Waiting(at(0)))]),
        )
        .await;
    harness.leased(at(0)).await;
    let expected = Backlog { due: 5, scheduled: 4, in_order: 3, by_priority: [0, 12, 0], more: false };
    assert_eq!(count(10).await, expected);
    assert_eq!(count(9).await, Backlog { due: 3, scheduled: 6, ..expected });
    // A block does not change the due times.
    let circuit = SavedCircuit { state: CircuitState::Open, until: Some(at(900)), generation: 1, ..closed() };
    harness
        .store()
        .set_circuit(harness.tenant_id.clone(), harness.webhook_id, circuit.clone(), None)
        .await
        .unwrap();
    assert_eq!(count(10).await, expected);
    let reset = SavedCircuit { generation: 2, ..closed() };
    harness.store().set_circuit(harness.tenant_id.clone(), harness.webhook_id, reset, None).await.unwrap();

    let claim = harness.claim_lane(harness.own(order("a")), at(10), 1).await;
    assert_eq!(ids(&claim.deliveries).len(), 1);
    let behind = Backlog { due: 4, scheduled: 4, in_order: 3, by_priority: [0, 11, 0], more: false };
    assert_eq!(count(10).await, behind, "the remaining deliveries are behind a leased one");
}

pub async fn backlog_count_stops_at_the_limit(harness: &Arc<Harness>) {
    for n in 0..5 {
        harness.waiting(at(0), at(0)).await;
        harness.waiting_in(&RETRY, at(0), at(500)).await;
        harness.waiting_in(&order("a"), at(0), at(0)).await;
        harness.waiting_in(&order(&n.to_string()), at(0), at(500)).await;
    }
    let count = async |max| only(harness, 10, max).await;
    let all = Backlog { due: 6, scheduled: 10, in_order: 4, by_priority: [0, 20, 0], more: false };
    assert_eq!(count(100).await, all);
    assert_eq!(count(10).await, all);
    assert!(count(9).await.more);
    let few = count(3).await;
    assert!(few.more && few.due <= 3 && few.scheduled <= 3 && few.in_order <= 3, "{few:?}");
    assert_eq!(few.by_priority, [0, few.due + few.scheduled + few.in_order, 0]);
}

pub async fn backlogs_are_counted_by_priority_and_webhook(harness: &Arc<Harness>) {
    let other = harness.webhook_id();
    for (webhook_id, priority, retry, dues) in [
        (harness.webhook_id, Priority::High, false, &[0, 1, 900][..]),
        (harness.webhook_id, Priority::Low, true, &[800, 900]),
        (harness.webhook_id, Priority::High, true, &[5]),
        (other, Priority::Low, false, &[0]),
    ] {
        for due in dues {
            let key = LaneKey { webhook_id, lane: Lane::Unordered { priority, retry } };
            harness
                .publish_new(
                    harness.fan_out_to(harness.event(at(0)), &[(key, InitialState::Waiting(at(*due)))]),
                )
                .await;
        }
    }
    let key = LaneKey { webhook_id: other, lane: order("a") };
    harness
        .publish_new(harness.fan_out_to(harness.event(at(0)), &[(key, InitialState::Waiting(at(0)))]))
        .await;
    let nothing = harness.webhook_id();
    let count = |max| harness.store().backlogs(None, vec![other, nothing, harness.webhook_id], at(10), max);
    let of_other = Backlog { due: 2, by_priority: [0, 1, 1], ..Backlog::default() };
    let own = Backlog { due: 3, scheduled: 3, by_priority: [4, 0, 2], ..Backlog::default() };
    let expected = [(other, of_other), (nothing, Backlog::default()), (harness.webhook_id, own)];
    assert_eq!(count(100).await.unwrap(), expected);
    let few = Backlog { due: 2, scheduled: 2, by_priority: [3, 0, 1], more: true, ..Backlog::default() };
    assert_eq!(count(2).await.unwrap()[2], (harness.webhook_id, few), "higher priorities are counted first");
    assert_eq!(harness.store().backlogs(None, vec![], at(10), 100).await.unwrap(), []);
}

pub async fn backlogged_webhooks_of_a_tenant_are_found(harness: &Arc<Harness>) {
    let globex = harness.new_tenant("globex").await;
    let mut webhooks = Vec::new();
    for n in 0..6 {
        let webhook_id = harness.new_webhook().await.id;
        if n % 2 == 0 {
            for lane in [FRESH, RETRY, order("a"), order("b")] {
                let key = LaneKey { webhook_id, lane };
                let new = harness.fan_out_to(harness.event(at(n)), &[(key, InitialState::Waiting(at(END)))]);
                harness.publish_new(new).await;
            }
            webhooks.push(webhook_id);
        }
    }
    harness.leased(at(0)).await;
    let check = |tenant_id: &TenantId, limit| harness.store().backlogged(tenant_id.clone(), limit);
    let found = |webhooks: &[WebhookId], more| BackloggedWebhooks { webhooks: webhooks.to_vec(), more };
    // Seven webhooks, three of them with a backlog. With a limit below seven the lanes are scanned instead of the
    // webhooks.
    assert_eq!(check(&harness.tenant_id, 100).await.unwrap(), found(&webhooks, false));
    assert_eq!(check(&harness.tenant_id, 7).await.unwrap(), found(&webhooks, false));
    assert_eq!(check(&harness.tenant_id, 6).await.unwrap(), found(&webhooks, false));
    assert_eq!(check(&harness.tenant_id, 2).await.unwrap(), found(&webhooks[..2], true));
    assert_eq!(check(&globex, 100).await.unwrap(), BackloggedWebhooks::default());
    harness.set_state(webhooks[0], WebhookState::Deleted).await;
    for limit in [5, 100] {
        assert_eq!(
            check(&harness.tenant_id, limit).await.unwrap().webhooks,
            webhooks[1..],
            "a deleted webhook is not listed while its deliveries are cancelled"
        );
    }
}
