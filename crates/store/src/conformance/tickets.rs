//! Claims by ticket: only deliveries that wait in the named lane, once, and none that is blocked.

use redrive_core::delivery::outcome::Outcome;
use std::{collections::HashSet, sync::Arc};

use bytes::Bytes;
use redrive_core::{
    DeliveryId, WebhookId,
    delivery::lane::{Lane, Priority},
    event::Event,
    protection::breaker::{CircuitState, SavedCircuit},
    webhook::WebhookState,
};

use super::{END, Harness, at, closed, ids, together};
use crate::{CancelResult, Epoch, InitialState, LaneCapacity, LaneKey, StoreError, TicketEntry};

const NEAR_FUTURE: i64 = 5_000;

fn wanted(key: &LaneKey, deliveries: &[DeliveryId]) -> Vec<TicketEntry> {
    deliveries.iter().map(|id| TicketEntry { key: key.clone(), delivery_id: *id }).collect()
}

/// Claims by ticket for the harness's epoch, up to `SOON` ahead of the due time.
async fn take(harness: &Harness, now: i64, wanted: Vec<TicketEntry>) -> Vec<DeliveryId> {
    take_as(harness, harness.epoch, now, wanted).await
}

async fn take_as(harness: &Harness, epoch: Epoch, now: i64, wanted: Vec<TicketEntry>) -> Vec<DeliveryId> {
    let taken = harness
        .store()
        .claim_tickets(epoch, at(now), at(now + NEAR_FUTURE), wanted, usize::MAX)
        .await
        .unwrap();
    ids(&taken)
}

pub async fn waiting_delivery_is_claimed_by_ticket_before_due_and_once(harness: &Arc<Harness>) {
    let (now, soon) = (harness.waiting(at(0), at(0)).await, harness.waiting(at(0), at(NEAR_FUTURE)).await);
    let later = harness.waiting(at(0), at(NEAR_FUTURE + 1)).await;
    let all = wanted(&harness.lane(), &[soon, now, later, soon, harness.delivery_id(at(0))]);
    let mut taken = take(harness, 0, all.clone()).await;
    taken.sort_unstable();
    let mut expected = vec![now, soon];
    expected.sort_unstable();
    assert_eq!(taken, expected, "later due times and unknown ids are skipped");
    assert_eq!(take(harness, 0, all.clone()).await, [], "a repeated ticket claims nothing");
    assert_eq!(take_as(harness, harness.new_epoch().await, 0, all).await, []);
    assert!(harness.store().mark_sending(harness.epoch, now).await.unwrap(), "the delivery is leased");
    assert_eq!(harness.claim_one(at(END)).await.id, later);
}

pub async fn delivery_attempted_since_its_ticket_is_skipped(harness: &Arc<Harness>) {
    let id = harness.waiting(at(0), at(0)).await;
    let ticket = wanted(&harness.lane(), &[id]);
    assert_eq!(take(harness, 0, ticket.clone()).await, [id]);
    harness.ends(id, Outcome::Retry { at: at(100) }, at(1)).await;
    assert_eq!(take(harness, 2, ticket.clone()).await, [], "a retry waits for its due time");
    let claimed = harness.claim_one(at(100)).await;
    assert_eq!((claimed.id, claimed.attempt_count), (id, 1));
    harness.record(harness.outcome(id, 2, Outcome::Delivered, at(101))).await;
    assert_eq!(take(harness, 102, ticket).await, []);
}

pub async fn ticket_claim_contains_all_data_for_sending(harness: &Arc<Harness>) {
    let event =
        Event { source: Some("shop".into()), subject: Some("order-1".into()), ..harness.event(at(5)) };
    let new = harness.fan_out(event.clone(), &[(harness.webhook_id, InitialState::Waiting(at(7)))]);
    harness.publish_new(new.clone()).await;
    let all = wanted(&harness.lane(), &[new.deliveries[0].id]);
    let taken = harness
        .store()
        .claim_tickets(harness.epoch, at(6), at(6 + NEAR_FUTURE), all, usize::MAX)
        .await
        .unwrap();
    let [one] = &taken[..] else { panic!("{taken:?}") };
    assert_eq!((one.id, one.webhook_id), (new.deliveries[0].id, harness.webhook_id));
    assert_eq!(*one.event, event);
    assert_eq!((one.format, one.due, one.created_at), (new.deliveries[0].format, at(7), at(5)));
    assert_eq!((one.attempt_count, one.abnormal_releases, one.crash_count), (0, 0, 0));
}

pub async fn ticket_for_another_lane_or_webhook_claims_nothing(harness: &Arc<Harness>) {
    let id = harness.waiting(at(0), at(0)).await;
    let other = LaneKey { webhook_id: harness.webhook_id(), ..harness.lane() };
    assert_eq!(take(harness, 0, wanted(&other, &[id])).await, []);
    let lane = Lane::Unordered { priority: Priority::High, retry: false };
    assert_eq!(take(harness, 0, wanted(&LaneKey { lane, ..harness.lane() }, &[id])).await, []);
    assert_eq!(harness.claim_one(at(0)).await.id, id);
}

pub async fn ticket_for_an_ordered_lane_claims_nothing(harness: &Arc<Harness>) {
    let key = LaneKey { webhook_id: harness.webhook_id(), lane: Lane::Ordered("".into()) };
    let new = harness.fan_out_to(harness.event(at(0)), &[(key.clone(), InitialState::Waiting(at(0)))]);
    harness.publish_new(new.clone()).await;
    assert_eq!(take(harness, 0, wanted(&key, &[new.deliveries[0].id])).await, []);
}

pub async fn ticket_for_a_blocked_webhook_claims_nothing(harness: &Arc<Harness>) {
    let webhook_id = harness.new_webhook().await.id;
    let new = harness.fan_out(harness.event(at(0)), &[(webhook_id, InitialState::Waiting(at(0)))]);
    harness.publish_new(new.clone()).await;
    let id = new.deliveries[0].id;
    let all = wanted(&harness.lane_of(webhook_id), &[id]);
    harness.set_state(webhook_id, WebhookState::Paused).await;
    assert_eq!(take(harness, 2, all.clone()).await, [], "the webhook is paused");
    harness.set_state(webhook_id, WebhookState::Active).await;
    let open = SavedCircuit { state: CircuitState::Open, generation: 1, until: Some(at(50)), ..closed() };
    harness.store().set_circuit(harness.tenant_id.clone(), webhook_id, open, None).await.unwrap();
    assert_eq!(take(harness, 49, all.clone()).await, [], "the circuit is open");
    assert_eq!(take(harness, 50, all).await, [id]);
}

pub async fn ticket_for_an_assigned_webhook_is_left_to_its_node(harness: &Arc<Harness>) {
    let (first, second) =
        (harness.waiting(at(0), at(0)).await, harness.waiting(at(0), at(NEAR_FUTURE)).await);
    let capacity = LaneCapacity { exclusive: true, ..LaneCapacity::new(harness.lane(), 10) };
    let claims = harness.store().claim(harness.epoch, at(0), vec![capacity], usize::MAX).await.unwrap();
    assert_eq!(ids(&claims[0].deliveries), [first]);
    let (all, other) = (wanted(&harness.lane(), &[second]), harness.new_epoch().await);
    assert_eq!(take_as(harness, other, 0, all.clone()).await, []);
    assert_eq!(take(harness, 0, all).await, [second], "the assigned node may claim it");
}

pub async fn fenced_node_claims_no_tickets(harness: &Arc<Harness>) {
    let id = harness.waiting(at(0), at(0)).await;
    let fenced = harness.new_epoch().await;
    harness.rescue(fenced, at(1)).await;
    let all = wanted(&harness.lane(), &[id]);
    let response = harness.store().claim_tickets(fenced, at(2), at(2), all, usize::MAX).await;
    assert!(matches!(response, Err(StoreError::Fenced)), "{response:?}");
    assert_eq!(harness.claim_one(at(2)).await.id, id);
}

pub async fn byte_limit_applies_to_ticket_claims(harness: &Arc<Harness>) {
    const SIZE: usize = 10_000;
    let mut left = Vec::new();
    for _ in 0..5 {
        let event = Event { data: Bytes::from(vec![b'1'; SIZE]), ..harness.event(at(0)) };
        let new = harness.fan_out(event, &[(harness.webhook_id, InitialState::Waiting(at(0)))]);
        left.push(new.deliveries[0].id);
        harness.publish_new(new).await;
    }
    while !left.is_empty() {
        let all = wanted(&harness.lane(), &left);
        let taken = harness.store().claim_tickets(harness.epoch, at(1), at(1), all, 2 * SIZE).await.unwrap();
        // The delivery that reaches the byte limit is the last one of the claim.
        assert!((1..=2).contains(&taken.len()), "{}", taken.len());
        left.retain(|id| !ids(&taken).contains(id));
    }
}

pub async fn delivery_claimed_by_ticket_can_be_released_and_cancelled(harness: &Arc<Harness>) {
    let (back, off) =
        (harness.waiting(at(0), at(NEAR_FUTURE)).await, harness.waiting(at(0), at(NEAR_FUTURE)).await);
    assert_eq!(take(harness, 0, wanted(&harness.lane(), &[back, off])).await.len(), 2);
    let request =
        harness.store().cancel(harness.tenant_id.clone(), off, "enough".into(), at(1)).await.unwrap();
    assert_eq!(request, CancelResult::Requested);
    let given = vec![(back, at(10)), (off, at(10))];
    assert_eq!(harness.store().release(harness.epoch, at(2), given).await.unwrap(), 2);
    assert_eq!(harness.claim_one(at(10)).await.id, back);
}

pub async fn lane_emptied_by_tickets_is_deleted(harness: &Arc<Harness>) {
    let id = harness.waiting(at(0), at(NEAR_FUTURE)).await;
    assert_eq!(take(harness, 0, wanted(&harness.lane(), &[id])).await, [id]);
    // An empty lane may still be claimed once.
    assert!(harness.claim(at(NEAR_FUTURE)).await.is_empty());
    assert_eq!(harness.due_lanes(at(END)).await, []);
}

pub async fn new_delivery_in_a_lane_emptied_by_tickets_is_claimed(harness: &Arc<Harness>) {
    let id = harness.waiting(at(0), at(NEAR_FUTURE)).await;
    assert_eq!(take(harness, 0, wanted(&harness.lane(), &[id])).await, [id]);
    let next = harness.waiting(at(1), at(1)).await;
    assert_eq!(harness.claim_one(at(1)).await.id, next);
    let last = harness.waiting(at(2), at(NEAR_FUTURE + 2)).await;
    assert_eq!(harness.claim_one(at(NEAR_FUTURE + 2)).await.id, last);
}

/// Nodes claim by the same tickets and from the same lanes concurrently.
pub async fn concurrent_ticket_and_lane_claims_return_each_delivery_once(harness: &Arc<Harness>) {
    let webhooks: Vec<WebhookId> = (0..3).map(|_| harness.webhook_id()).collect();
    let everywhere: Vec<_> = webhooks.iter().map(|id| (*id, InitialState::Waiting(at(0)))).collect();
    let mut all = Vec::new();
    for _ in 0..60 {
        let new = harness.fan_out(harness.event(at(0)), &everywhere);
        for (delivery, webhook_id) in new.deliveries.iter().zip(&webhooks) {
            all.push(TicketEntry { key: harness.lane_of(*webhook_id), delivery_id: delivery.id });
        }
        harness.publish_new(new).await;
    }
    let (count, all) = (all.len(), Arc::new(all));
    let taker = |epoch: Epoch, skip: usize| {
        let (harness, all) = (harness.clone(), all.clone());
        async move {
            let mut got = Vec::new();
            for part in all[skip..].chunks(17).chain(all[..skip].chunks(13)) {
                got.extend(take_as(&harness, epoch, 1, part.to_vec()).await);
            }
            got
        }
    };
    let claimer = |epoch: Epoch| {
        let (harness, webhooks) = (harness.clone(), webhooks.clone());
        async move {
            let mut got = Vec::new();
            loop {
                let capacities =
                    webhooks.iter().map(|id| LaneCapacity::new(harness.lane_of(*id), 9)).collect();
                let claims = harness.store().claim(epoch, at(1), capacities, usize::MAX).await.unwrap();
                got.extend(claims.iter().flat_map(|claim| ids(&claim.deliveries)));
                if claims.iter().all(|claim| !claim.has_more_due) {
                    return got;
                }
            }
        }
    };
    let mut work: Vec<std::pin::Pin<Box<dyn Future<Output = Vec<DeliveryId>> + Send>>> = Vec::new();
    for n in 0..4 {
        work.push(Box::pin(taker(harness.new_epoch().await, n * 7)));
        work.push(Box::pin(claimer(harness.new_epoch().await)));
    }
    let got = together(work).await.concat();
    assert_eq!(got.len(), got.iter().collect::<HashSet<_>>().len(), "no delivery is claimed twice");
    // A ticket claim skips deliveries that are being claimed concurrently, so some may be left.
    let left = harness.claim(at(END)).await.len();
    assert_eq!(got.len() + left, count);
}
