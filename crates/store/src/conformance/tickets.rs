//! Taking what a ticket names: what waits where it should, once, and nothing that anything holds back.

use std::{collections::HashSet, sync::Arc};

use bytes::Bytes;
use redrive_core::{
    DeliveryId, WebhookId,
    delivery::lane::{Lane, Priority},
    event::Event,
    protection::breaker::{CircuitState, SavedCircuit},
    webhook::WebhookState,
};

use super::{Bench, END, at, closed, ids, together};
use crate::{Birth, Cancelled, Epoch, LaneKey, LaneRoom, Next, StoreError, Wanted};

const SOON: i64 = 5_000;

fn wanted(key: &LaneKey, deliveries: &[DeliveryId]) -> Vec<Wanted> {
    deliveries.iter().map(|id| Wanted { key: key.clone(), delivery: *id }).collect()
}

/// Takes by the bench's epoch what is due soon.
async fn take(bench: &Bench, now: i64, wanted: Vec<Wanted>) -> Vec<DeliveryId> {
    take_as(bench, bench.epoch, now, wanted).await
}

async fn take_as(bench: &Bench, epoch: Epoch, now: i64, wanted: Vec<Wanted>) -> Vec<DeliveryId> {
    let taken = bench.store().take(epoch, at(now), at(now + SOON), wanted, usize::MAX).await.unwrap();
    ids(&taken)
}

pub async fn what_waits_is_taken_before_it_is_due_and_once(bench: &Arc<Bench>) {
    let (now, soon) = (bench.waiting(at(0), at(0)).await, bench.waiting(at(0), at(SOON)).await);
    let later = bench.waiting(at(0), at(SOON + 1)).await;
    let all = wanted(&bench.lane(), &[soon, now, later, soon, bench.delivery_id(at(0))]);
    let mut taken = take(bench, 0, all.clone()).await;
    taken.sort_unstable();
    let mut expected = vec![now, soon];
    expected.sort_unstable();
    assert_eq!(taken, expected, "what is due later than that is not meant, nor is what nobody knows");
    assert_eq!(take(bench, 0, all.clone()).await, [], "a ticket that comes twice finds nothing");
    assert_eq!(take_as(bench, bench.new_epoch().await, 0, all).await, []);
    assert!(bench.store().mark_sending(bench.epoch, now).await.unwrap(), "it is leased");
    assert_eq!(bench.claim_one(at(END)).await.id, later);
}

pub async fn what_was_tried_since_is_left_where_it_waits(bench: &Arc<Bench>) {
    let id = bench.waiting(at(0), at(0)).await;
    let ticket = wanted(&bench.lane(), &[id]);
    assert_eq!(take(bench, 0, ticket.clone()).await, [id]);
    bench.ends(id, Next::Retry { due: at(100) }, at(1)).await;
    assert_eq!(take(bench, 2, ticket.clone()).await, [], "its next attempt has its time");
    let claimed = bench.claim_one(at(100)).await;
    assert_eq!((claimed.id, claimed.attempt_count), (id, 1));
    bench.record(bench.outcome(id, 2, Next::Delivered, at(101))).await;
    assert_eq!(take(bench, 102, ticket).await, []);
}

pub async fn what_is_taken_has_all_that_sending_needs(bench: &Arc<Bench>) {
    let event = Event { source: Some("shop".into()), subject: Some("order-1".into()), ..bench.event(at(5)) };
    let new = bench.fan_out(event.clone(), &[(bench.webhook, Birth::Waiting(at(7)))]);
    bench.publish_new(new.clone()).await;
    let all = wanted(&bench.lane(), &[new.deliveries[0].id]);
    let taken = bench.store().take(bench.epoch, at(6), at(6 + SOON), all, usize::MAX).await.unwrap();
    let [one] = &taken[..] else { panic!("{taken:?}") };
    assert_eq!((one.id, one.webhook), (new.deliveries[0].id, bench.webhook));
    assert_eq!(*one.event, event);
    assert_eq!((one.format, one.due, one.created_at), (new.deliveries[0].format, at(7), at(5)));
    assert_eq!((one.attempt_count, one.rescues, one.deaths), (0, 0, 0));
}

pub async fn a_ticket_for_another_lane_or_webhook_takes_nothing(bench: &Arc<Bench>) {
    let id = bench.waiting(at(0), at(0)).await;
    let other = LaneKey { webhook: bench.webhook_id(), ..bench.lane() };
    assert_eq!(take(bench, 0, wanted(&other, &[id])).await, []);
    let lane = Lane::Free { priority: Priority::High, retry: false };
    assert_eq!(take(bench, 0, wanted(&LaneKey { lane, ..bench.lane() }, &[id])).await, []);
    assert_eq!(bench.claim_one(at(0)).await.id, id);
}

pub async fn an_order_is_taken_by_nobody(bench: &Arc<Bench>) {
    let key = LaneKey { webhook: bench.webhook_id(), lane: Lane::Ordered("".into()) };
    let new = bench.fan_out_to(bench.event(at(0)), &[(key.clone(), Birth::Waiting(at(0)))]);
    bench.publish_new(new.clone()).await;
    assert_eq!(take(bench, 0, wanted(&key, &[new.deliveries[0].id])).await, []);
}

pub async fn what_is_blocked_stays_where_it_is(bench: &Arc<Bench>) {
    let webhook = bench.new_webhook().await.id;
    let new = bench.fan_out(bench.event(at(0)), &[(webhook, Birth::Waiting(at(0)))]);
    bench.publish_new(new.clone()).await;
    let id = new.deliveries[0].id;
    let all = wanted(&bench.lane_of(webhook), &[id]);
    bench.set_state(webhook, WebhookState::Paused).await;
    assert_eq!(take(bench, 2, all.clone()).await, [], "it is paused");
    bench.set_state(webhook, WebhookState::Active).await;
    let open = SavedCircuit { state: CircuitState::Open, generation: 1, until: Some(at(50)), ..closed() };
    bench.store().set_circuit(bench.tenant.clone(), webhook, open, None).await.unwrap();
    assert_eq!(take(bench, 49, all.clone()).await, [], "its circuit is open");
    assert_eq!(take(bench, 50, all).await, [id]);
}

pub async fn what_is_at_home_elsewhere_is_left_to_its_home(bench: &Arc<Bench>) {
    let (first, second) = (bench.waiting(at(0), at(0)).await, bench.waiting(at(0), at(SOON)).await);
    let room = LaneRoom { alone: true, ..LaneRoom::new(bench.lane(), 10) };
    let claims = bench.store().claim(bench.epoch, at(0), vec![room], usize::MAX).await.unwrap();
    assert_eq!(ids(&claims[0].deliveries), [first]);
    let (all, other) = (wanted(&bench.lane(), &[second]), bench.new_epoch().await);
    assert_eq!(take_as(bench, other, 0, all.clone()).await, []);
    assert_eq!(take(bench, 0, all).await, [second], "the home may");
}

pub async fn a_fenced_node_takes_nothing(bench: &Arc<Bench>) {
    let id = bench.waiting(at(0), at(0)).await;
    let fenced = bench.new_epoch().await;
    bench.rescue(fenced, at(1)).await;
    let all = wanted(&bench.lane(), &[id]);
    let answer = bench.store().take(fenced, at(2), at(2), all, usize::MAX).await;
    assert!(matches!(answer, Err(StoreError::Fenced)), "{answer:?}");
    assert_eq!(bench.claim_one(at(2)).await.id, id);
}

pub async fn bytes_are_respected(bench: &Arc<Bench>) {
    const SIZE: usize = 10_000;
    let mut left = Vec::new();
    for _ in 0..5 {
        let event = Event { data: Bytes::from(vec![b'1'; SIZE]), ..bench.event(at(0)) };
        let new = bench.fan_out(event, &[(bench.webhook, Birth::Waiting(at(0)))]);
        left.push(new.deliveries[0].id);
        bench.publish_new(new).await;
    }
    while !left.is_empty() {
        let all = wanted(&bench.lane(), &left);
        let taken = bench.store().take(bench.epoch, at(1), at(1), all, 2 * SIZE).await.unwrap();
        // The one that crosses the line is the last.
        assert!((1..=2).contains(&taken.len()), "{}", taken.len());
        left.retain(|id| !ids(&taken).contains(id));
    }
}

pub async fn what_was_taken_can_be_given_back_and_called_off(bench: &Arc<Bench>) {
    let (back, off) = (bench.waiting(at(0), at(SOON)).await, bench.waiting(at(0), at(SOON)).await);
    assert_eq!(take(bench, 0, wanted(&bench.lane(), &[back, off])).await.len(), 2);
    let asked = bench.store().cancel(bench.tenant.clone(), off, "enough".into(), at(1)).await.unwrap();
    assert_eq!(asked, Cancelled::Requested);
    let given = vec![(back, at(10)), (off, at(10))];
    assert_eq!(bench.store().release(bench.epoch, at(2), given).await.unwrap(), 2);
    assert_eq!(bench.claim_one(at(10)).await.id, back);
}

pub async fn a_lane_emptied_by_tickets_goes(bench: &Arc<Bench>) {
    let id = bench.waiting(at(0), at(SOON)).await;
    assert_eq!(take(bench, 0, wanted(&bench.lane(), &[id])).await, [id]);
    // The lane may still be looked at once.
    assert!(bench.claim(at(SOON)).await.is_empty());
    assert_eq!(bench.due_lanes(at(END)).await, []);
}

pub async fn what_comes_into_a_lane_emptied_by_tickets_is_found(bench: &Arc<Bench>) {
    let id = bench.waiting(at(0), at(SOON)).await;
    assert_eq!(take(bench, 0, wanted(&bench.lane(), &[id])).await, [id]);
    let next = bench.waiting(at(1), at(1)).await;
    assert_eq!(bench.claim_one(at(1)).await.id, next);
    let last = bench.waiting(at(2), at(SOON + 2)).await;
    assert_eq!(bench.claim_one(at(SOON + 2)).await.id, last);
}

/// Takers with the same tickets, claimers of the same lanes, and somebody who makes things due, all at once.
pub async fn takers_and_claimers_get_each_delivery_once(bench: &Arc<Bench>) {
    let webhooks: Vec<WebhookId> = (0..3).map(|_| bench.webhook_id()).collect();
    let everywhere: Vec<_> = webhooks.iter().map(|id| (*id, Birth::Waiting(at(0)))).collect();
    let mut all = Vec::new();
    for _ in 0..60 {
        let new = bench.fan_out(bench.event(at(0)), &everywhere);
        for (delivery, webhook) in new.deliveries.iter().zip(&webhooks) {
            all.push(Wanted { key: bench.lane_of(*webhook), delivery: delivery.id });
        }
        bench.publish_new(new).await;
    }
    let (count, all) = (all.len(), Arc::new(all));
    let taker = |epoch: Epoch, skip: usize| {
        let (bench, all) = (bench.clone(), all.clone());
        async move {
            let mut got = Vec::new();
            for part in all[skip..].chunks(17).chain(all[..skip].chunks(13)) {
                got.extend(take_as(&bench, epoch, 1, part.to_vec()).await);
            }
            got
        }
    };
    let claimer = |epoch: Epoch| {
        let (bench, webhooks) = (bench.clone(), webhooks.clone());
        async move {
            let mut got = Vec::new();
            loop {
                let rooms = webhooks.iter().map(|id| LaneRoom::new(bench.lane_of(*id), 9)).collect();
                let claims = bench.store().claim(epoch, at(1), rooms, usize::MAX).await.unwrap();
                got.extend(claims.iter().flat_map(|claim| ids(&claim.deliveries)));
                if claims.iter().all(|claim| !claim.more) {
                    return got;
                }
            }
        }
    };
    let mut work: Vec<std::pin::Pin<Box<dyn Future<Output = Vec<DeliveryId>> + Send>>> = Vec::new();
    for n in 0..4 {
        work.push(Box::pin(taker(bench.new_epoch().await, n * 7)));
        work.push(Box::pin(claimer(bench.new_epoch().await)));
    }
    let got = together(work).await.concat();
    assert_eq!(got.len(), got.iter().collect::<HashSet<_>>().len(), "nothing is given twice");
    // What a taker passed over was being taken by somebody, and what a claimer left was gone.
    let left = bench.claim(at(END)).await.len();
    assert_eq!(got.len() + left, count);
}
