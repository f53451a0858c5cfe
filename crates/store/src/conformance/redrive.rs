//! Retry, replay and cancel: one new round for an ended delivery, never two, and tenant isolation.

use redrive_core::delivery::outcome::Outcome;
use std::sync::Arc;

use redrive_core::{
    DeliveryId, DeliveryStatus, EventId, TenantId, Time, WebhookId,
    event::{Event, PayloadFormat},
};

use super::{END, Harness, RETRY, at, ids, together};
use crate::{CancelResult, Delivery, InitialState, LaneKey, NewEvent, NewRound, RedriveResult, ReplayResult};

async fn retry(
    harness: &Harness,
    delivery_id: DeliveryId,
    new_round: DeliveryId,
    now: Time,
) -> RedriveResult {
    harness.retry(delivery_id, harness.redrive_options(new_round), now).await
}

async fn replay(harness: &Harness, event_id: EventId, rounds: &[NewRound], now: Time) -> ReplayResult {
    harness.store().replay(harness.tenant_id.clone(), event_id, rounds.to_vec(), None, now).await.unwrap()
}

fn round(harness: &Harness, webhook_id: WebhookId) -> NewRound {
    NewRound { id: harness.delivery_id(at(0)), webhook_id, format: PayloadFormat::Data, lane: RETRY }
}

async fn find(harness: &Harness, id: DeliveryId) -> Option<Delivery> {
    harness.store().delivery(harness.tenant_id.clone(), id).await.unwrap()
}

/// Publishes an event with two deliveries in new lanes, in the given initial states.
async fn two_lanes(harness: &Harness, initial_states: [InitialState; 2]) -> NewEvent {
    let new = harness.fan_out(
        harness.event(at(0)),
        &initial_states.map(|initial_state| (harness.webhook_id(), initial_state)),
    );
    harness.publish_new(new.clone()).await;
    new
}

pub async fn retry_of_a_waiting_delivery_makes_it_due_now(harness: &Arc<Harness>) {
    let id = harness.waiting(at(0), at(5000)).await;
    let unused = harness.delivery_id(at(0));
    assert_eq!(retry(harness, id, unused, at(10)).await, RedriveResult::DueNow(id));
    assert_eq!(harness.delivery(id).await.due, Some(at(10)));
    assert_eq!(harness.due_lanes(at(10)).await, [harness.lane()]);
    assert_eq!(retry(harness, id, unused, at(20)).await, RedriveResult::DueNow(id));
    assert_eq!(harness.delivery(id).await.due, Some(at(10)), "a due delivery is not postponed");
    assert_eq!(find(harness, unused).await, None);
    assert_eq!(ids(&harness.claim(at(10)).await), [id]);
}

pub async fn retry_of_a_leased_delivery_changes_nothing(harness: &Arc<Harness>) {
    let id = harness.leased(at(0)).await;
    let unused = harness.delivery_id(at(0));
    assert_eq!(retry(harness, id, unused, at(10)).await, RedriveResult::DueNow(id));
    assert_eq!(harness.due_lanes(at(END)).await, []);
    assert_eq!(find(harness, unused).await, None);
    harness.ends(id, Outcome::Delivered, at(20)).await;
}

pub async fn retry_of_an_ended_delivery_creates_a_new_round(harness: &Arc<Harness>) {
    let dead = harness.dead(at(0)).await;
    let delivered = harness.leased(at(0)).await;
    harness.ends(delivered, Outcome::Delivered, at(1)).await;
    let cancelled = harness.waiting(at(0), at(5000)).await;
    assert_eq!(harness.cancel(cancelled, at(1)).await, CancelResult::Done);
    for old in [dead, delivered, cancelled] {
        let new = harness.delivery_id(at(0));
        let before = harness.delivery(old).await;
        assert_eq!(retry(harness, old, new, at(50)).await, RedriveResult::NewRound(new));
        assert_eq!(harness.delivery(old).await, Delivery { redriven_as: Some(new), ..before.clone() });
        let created = harness.delivery(new).await;
        assert_eq!((created.event_id, created.webhook_id), (before.event_id, before.webhook_id));
        assert_eq!((created.round, created.replay_of, created.redriven_as), (2, Some(old), None));
        assert_eq!((created.status, created.attempt_count), (DeliveryStatus::Pending, 0));
        assert_eq!((created.created_at, created.due, created.ended_at), (at(50), Some(at(50)), None));
        assert_eq!(harness.claim_one(at(50)).await.id, new);
    }
    assert_eq!(harness.dead_list().await, [], "a redriven delivery is no longer a dead letter");
}

pub async fn repeated_retries_create_one_round(harness: &Arc<Harness>) {
    let old = harness.dead(at(0)).await;
    let (second, third) = (harness.delivery_id(at(0)), harness.delivery_id(at(0)));
    assert_eq!(retry(harness, old, second, at(1)).await, RedriveResult::NewRound(second));
    assert_eq!(retry(harness, old, third, at(2)).await, RedriveResult::AlreadyRedriven(second));
    harness.claim_one(at(2)).await;
    harness.ends(second, Outcome::Delivered, at(3)).await;
    assert_eq!(
        retry(harness, old, third, at(4)).await,
        RedriveResult::AlreadyRedriven(second),
        "even after the new round has ended"
    );
    assert_eq!(find(harness, third).await, None);
}

pub async fn concurrent_retries_create_one_round(harness: &Arc<Harness>) {
    let old = harness.dead(at(0)).await;
    let retrier = |_| {
        let harness = harness.clone();
        async move { retry(&harness, old, harness.delivery_id(at(0)), at(1)).await }
    };
    let responses = together((0..20).map(retrier)).await;
    let new = harness.delivery(old).await.redriven_as.unwrap();
    assert_eq!(responses.iter().filter(|response| **response == RedriveResult::NewRound(new)).count(), 1);
    assert_eq!(
        responses.iter().filter(|response| **response == RedriveResult::AlreadyRedriven(new)).count(),
        19
    );
    assert_eq!(ids(&harness.claim(at(1)).await), [new]);
}

pub async fn rounds_are_numbered_in_sequence(harness: &Arc<Harness>) {
    let event = harness.event(at(0));
    let mut new = harness.fan_out(event, &[(harness.webhook_id, InitialState::Leased)]);
    new.deliveries[0].format = PayloadFormat::Data;
    harness.publish_new(new.clone()).await;
    let mut last = new.deliveries[0].id;
    harness.ends(last, Outcome::Delivered, at(1)).await;
    for number in 2..=4 {
        let id = harness.delivery_id(at(0));
        assert_eq!(retry(harness, last, id, at(1)).await, RedriveResult::NewRound(id));
        assert_eq!(
            (harness.delivery(id).await.round, harness.delivery(id).await.replay_of),
            (number, Some(last))
        );
        let claimed = harness.claim_one(at(1)).await;
        assert_eq!(claimed.format, PayloadFormat::Data, "a retry keeps the format of the first round");
        assert_eq!(claimed.attempt_count, 0, "attempts are counted from zero");
        harness.ends(id, Outcome::Delivered, at(1)).await;
        last = id;
    }
}

pub async fn replay_creates_a_round_for_each_webhook(harness: &Arc<Harness>) {
    let new = two_lanes(harness, [InitialState::Leased, InitialState::Leased]).await;
    for delivery in &new.deliveries {
        harness.ends(delivery.id, Outcome::Dead(redrive_core::DeadReason::Exhausted), at(1)).await;
    }
    let rounds: Vec<_> = new.deliveries.iter().map(|one| round(harness, one.webhook_id)).collect();
    let created: Vec<_> = rounds.iter().map(|round| round.id).collect();
    assert_eq!(replay(harness, new.event.id, &rounds, at(40)).await, ReplayResult::Done(created));
    assert_eq!(harness.dead_list().await, []);
    for (old, round) in new.deliveries.iter().zip(&rounds) {
        assert_eq!(harness.delivery(old.id).await.redriven_as, Some(round.id));
        let created = harness.delivery(round.id).await;
        assert_eq!((created.round, created.replay_of, created.due), (2, Some(old.id), Some(at(40))));
        let claim =
            harness.claim_lane(LaneKey { webhook_id: round.webhook_id, lane: RETRY }, at(40), 10).await;
        assert_eq!(ids(&claim.deliveries), [round.id]);
        assert_eq!(claim.deliveries[0].format, PayloadFormat::Data, "a replay has its own format");
    }
}

pub async fn replay_is_all_or_nothing(harness: &Arc<Harness>) {
    for initial_state in [InitialState::Leased, InitialState::Waiting(at(9000))] {
        let new = two_lanes(harness, [InitialState::Leased, initial_state]).await;
        let [over, pending] = &new.deliveries[..] else { panic!("two deliveries") };
        harness.ends(over.id, Outcome::Delivered, at(1)).await;
        for order in [[over, pending], [pending, over]] {
            let rounds = order.map(|one| round(harness, one.webhook_id));
            let response = replay(harness, new.event.id, &rounds, at(2)).await;
            assert_eq!(response, ReplayResult::StillPending(pending.id));
            for round in &rounds {
                assert_eq!(find(harness, round.id).await, None);
            }
        }
        assert_eq!(harness.delivery(over.id).await.redriven_as, None);
        assert_eq!(harness.due_lanes(at(100)).await, []);
    }
}

pub async fn replay_to_a_new_webhook_is_its_first_round(harness: &Arc<Harness>) {
    let new = harness.fan_out(harness.event(at(0)), &[]);
    harness.publish_new(new.clone()).await;
    let first = round(harness, harness.webhook_id);
    let response = replay(harness, new.event.id, std::slice::from_ref(&first), at(5)).await;
    assert_eq!(response, ReplayResult::Done(vec![first.id]));
    let created = harness.delivery(first.id).await;
    assert_eq!((created.round, created.replay_of, created.event_id), (1, None, new.event.id));
    let claimed = harness.claim_one(at(5)).await;
    assert_eq!((claimed.id, &claimed.event), (first.id, &new.event));
}

pub async fn waiting_delivery_is_cancelled_immediately(harness: &Arc<Harness>) {
    let (off, on) = (harness.waiting(at(0), at(0)).await, harness.waiting(at(0), at(0)).await);
    assert_eq!(harness.cancel(off, at(3)).await, CancelResult::Done);
    let ended = harness.delivery(off).await;
    assert_eq!((ended.status, ended.ended_at), (DeliveryStatus::Cancelled, Some(at(3))));
    assert_eq!((ended.cancel_reason.as_deref(), ended.due), (Some("enough"), None));
    assert_eq!(ids(&harness.claim(at(10)).await), [on]);
}

pub async fn cancel_of_a_leased_delivery_is_requested(harness: &Arc<Harness>) {
    let id = harness.leased(at(0)).await;
    assert_eq!(harness.cancel(id, at(3)).await, CancelResult::Requested);
    assert_eq!(harness.cancel(id, at(4)).await, CancelResult::Requested);
    let request = harness.delivery(id).await;
    assert_eq!((request.status, request.ended_at), (DeliveryStatus::Pending, None));
    assert!(harness.store().mark_sending(harness.epoch, id).await.unwrap(), "its node still has the lease");
}

pub async fn cancel_does_not_change_an_ended_delivery(harness: &Arc<Harness>) {
    let dead = harness.dead(at(0)).await;
    let delivered = harness.leased(at(0)).await;
    harness.ends(delivered, Outcome::Delivered, at(1)).await;
    let cancelled = harness.waiting(at(0), at(5000)).await;
    assert_eq!(harness.cancel(cancelled, at(1)).await, CancelResult::Done);
    for (id, status) in [
        (dead, DeliveryStatus::Dead),
        (delivered, DeliveryStatus::Delivered),
        (cancelled, DeliveryStatus::Cancelled),
    ] {
        let before = harness.delivery(id).await;
        assert_eq!(harness.cancel(id, at(9)).await, CancelResult::AlreadyEnded(status));
        assert_eq!(harness.delivery(id).await, before);
    }
}

pub async fn retry_replay_and_cancel_are_isolated_by_tenant(harness: &Arc<Harness>) {
    let other = harness.new_tenant("globex").await;
    let unknown = TenantId::parse("unknown").unwrap();
    let dead = harness.dead(at(0)).await;
    let waiting = harness.waiting(at(0), at(5000)).await;
    let leased = harness.leased(at(0)).await;
    for tenant_id in [other, unknown] {
        for id in [dead, waiting, leased] {
            let before = harness.delivery(id).await;
            let new_round = harness.delivery_id(at(0));
            let retried = harness
                .store()
                .retry(tenant_id.clone(), id, harness.redrive_options(new_round), at(1))
                .await
                .unwrap();
            assert_eq!(retried, RedriveResult::NotFound);
            let cancelled =
                harness.store().cancel(tenant_id.clone(), id, "theirs".into(), at(1)).await.unwrap();
            assert_eq!(cancelled, CancelResult::NotFound);
            let rounds = vec![round(harness, harness.webhook_id)];
            let replayed = harness
                .store()
                .replay(tenant_id.clone(), before.event_id, rounds, None, at(1))
                .await
                .unwrap();
            assert_eq!(replayed, ReplayResult::NotFound);
            assert_eq!(harness.delivery(id).await, before);
        }
    }
    assert_eq!(harness.dead_list().await, [dead]);
    harness.ends(leased, Outcome::Delivered, at(2)).await;

    let unknown = harness.delivery_id(at(0));
    assert_eq!(retry(harness, unknown, harness.delivery_id(at(0)), at(1)).await, RedriveResult::NotFound);
    assert_eq!(harness.cancel(unknown, at(1)).await, CancelResult::NotFound);
    let Event { id: event_id, .. } = harness.event(at(0));
    assert_eq!(
        replay(harness, event_id, &[round(harness, harness.webhook_id)], at(1)).await,
        ReplayResult::NotFound
    );
}
