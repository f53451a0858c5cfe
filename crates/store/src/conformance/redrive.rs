//! Delivering again, or no more: a new round for what is over, never two, and nothing across tenants.

use std::sync::Arc;

use redrive_core::{
    DeliveryId, DeliveryStatus, EventId, TenantId, Time, WebhookId,
    event::{Event, PayloadFormat},
};

use super::{Bench, END, RETRY, at, ids, together};
use crate::{Birth, Cancelled, Delivery, LaneKey, NewEvent, NewRound, Next, Redriven, Replayed};

async fn retry(bench: &Bench, delivery: DeliveryId, new_round: DeliveryId, now: Time) -> Redriven {
    bench.retry(delivery, bench.again(new_round), now).await
}

async fn replay(bench: &Bench, event: EventId, rounds: &[NewRound], now: Time) -> Replayed {
    bench.store().replay(bench.tenant.clone(), event, rounds.to_vec(), None, now).await.unwrap()
}

fn round(bench: &Bench, webhook: WebhookId) -> NewRound {
    NewRound { id: bench.delivery_id(at(0)), webhook, format: PayloadFormat::Data, lane: RETRY }
}

async fn find(bench: &Bench, id: DeliveryId) -> Option<Delivery> {
    bench.store().delivery(bench.tenant.clone(), id).await.unwrap()
}

/// An event that two new lanes have in the given state.
async fn two_lanes(bench: &Bench, births: [Birth; 2]) -> NewEvent {
    let new = bench.fan_out(bench.event(at(0)), &births.map(|birth| (bench.webhook_id(), birth)));
    bench.publish_new(new.clone()).await;
    new
}

pub async fn retrying_what_waits_makes_it_due_now(bench: &Arc<Bench>) {
    let id = bench.waiting(at(0), at(5000)).await;
    let unused = bench.delivery_id(at(0));
    assert_eq!(retry(bench, id, unused, at(10)).await, Redriven::DueNow(id));
    assert_eq!(bench.delivery(id).await.due, Some(at(10)));
    assert_eq!(bench.due_lanes(at(10)).await, [bench.lane()]);
    assert_eq!(retry(bench, id, unused, at(20)).await, Redriven::DueNow(id));
    assert_eq!(bench.delivery(id).await.due, Some(at(10)), "what is due is not put off");
    assert_eq!(find(bench, unused).await, None);
    assert_eq!(ids(&bench.claim(at(10)).await), [id]);
}

pub async fn retrying_what_is_leased_changes_nothing(bench: &Arc<Bench>) {
    let id = bench.leased(at(0)).await;
    let unused = bench.delivery_id(at(0));
    assert_eq!(retry(bench, id, unused, at(10)).await, Redriven::DueNow(id));
    assert_eq!(bench.due_lanes(at(END)).await, []);
    assert_eq!(find(bench, unused).await, None);
    bench.ends(id, Next::Delivered, at(20)).await;
}

pub async fn retrying_what_is_over_makes_a_new_round(bench: &Arc<Bench>) {
    let dead = bench.dead(at(0)).await;
    let delivered = bench.leased(at(0)).await;
    bench.ends(delivered, Next::Delivered, at(1)).await;
    let cancelled = bench.waiting(at(0), at(5000)).await;
    assert_eq!(bench.cancel(cancelled, at(1)).await, Cancelled::Done);
    for old in [dead, delivered, cancelled] {
        let new = bench.delivery_id(at(0));
        let before = bench.delivery(old).await;
        assert_eq!(retry(bench, old, new, at(50)).await, Redriven::NewRound(new));
        assert_eq!(bench.delivery(old).await, Delivery { redriven_as: Some(new), ..before.clone() });
        let made = bench.delivery(new).await;
        assert_eq!((made.event, made.webhook), (before.event, before.webhook));
        assert_eq!((made.round, made.replay_of, made.redriven_as), (2, Some(old), None));
        assert_eq!((made.status, made.attempt_count), (DeliveryStatus::Pending, 0));
        assert_eq!((made.created_at, made.due, made.ended_at), (at(50), Some(at(50)), None));
        assert_eq!(bench.claim_one(at(50)).await.id, new);
    }
    assert_eq!(bench.dead_list().await, [], "what was redriven leaves the dead list");
}

pub async fn retrying_twice_makes_one_round(bench: &Arc<Bench>) {
    let old = bench.dead(at(0)).await;
    let (second, third) = (bench.delivery_id(at(0)), bench.delivery_id(at(0)));
    assert_eq!(retry(bench, old, second, at(1)).await, Redriven::NewRound(second));
    assert_eq!(retry(bench, old, third, at(2)).await, Redriven::AlreadyAs(second));
    bench.claim_one(at(2)).await;
    bench.ends(second, Next::Delivered, at(3)).await;
    assert_eq!(retry(bench, old, third, at(4)).await, Redriven::AlreadyAs(second), "even once it is over");
    assert_eq!(find(bench, third).await, None);
}

pub async fn concurrent_retries_make_one_round(bench: &Arc<Bench>) {
    let old = bench.dead(at(0)).await;
    let retrier = |_| {
        let bench = bench.clone();
        async move { retry(&bench, old, bench.delivery_id(at(0)), at(1)).await }
    };
    let answers = together((0..20).map(retrier)).await;
    let new = bench.delivery(old).await.redriven_as.unwrap();
    assert_eq!(answers.iter().filter(|answer| **answer == Redriven::NewRound(new)).count(), 1);
    assert_eq!(answers.iter().filter(|answer| **answer == Redriven::AlreadyAs(new)).count(), 19);
    assert_eq!(ids(&bench.claim(at(1)).await), [new]);
}

pub async fn rounds_follow_one_another(bench: &Arc<Bench>) {
    let event = bench.event(at(0));
    let mut new = bench.fan_out(event, &[(bench.webhook, Birth::Leased)]);
    new.deliveries[0].format = PayloadFormat::Data;
    bench.publish_new(new.clone()).await;
    let mut last = new.deliveries[0].id;
    bench.ends(last, Next::Delivered, at(1)).await;
    for number in 2..=4 {
        let id = bench.delivery_id(at(0));
        assert_eq!(retry(bench, last, id, at(1)).await, Redriven::NewRound(id));
        assert_eq!(
            (bench.delivery(id).await.round, bench.delivery(id).await.replay_of),
            (number, Some(last))
        );
        let claimed = bench.claim_one(at(1)).await;
        assert_eq!(claimed.format, PayloadFormat::Data, "a retry keeps the format of the first round");
        assert_eq!(claimed.attempt_count, 0, "attempts are counted anew");
        bench.ends(id, Next::Delivered, at(1)).await;
        last = id;
    }
}

pub async fn a_replay_makes_a_round_for_each_webhook(bench: &Arc<Bench>) {
    let new = two_lanes(bench, [Birth::Leased, Birth::Leased]).await;
    for delivery in &new.deliveries {
        bench.ends(delivery.id, Next::Dead { reason: redrive_core::DeadReason::Exhausted }, at(1)).await;
    }
    let rounds: Vec<_> = new.deliveries.iter().map(|one| round(bench, one.webhook)).collect();
    let made: Vec<_> = rounds.iter().map(|round| round.id).collect();
    assert_eq!(replay(bench, new.event.id, &rounds, at(40)).await, Replayed::Done(made));
    assert_eq!(bench.dead_list().await, []);
    for (old, round) in new.deliveries.iter().zip(&rounds) {
        assert_eq!(bench.delivery(old.id).await.redriven_as, Some(round.id));
        let made = bench.delivery(round.id).await;
        assert_eq!((made.round, made.replay_of, made.due), (2, Some(old.id), Some(at(40))));
        let claim = bench.claim_lane(LaneKey { webhook: round.webhook, lane: RETRY }, at(40), 10).await;
        assert_eq!(ids(&claim.deliveries), [round.id]);
        assert_eq!(claim.deliveries[0].format, PayloadFormat::Data, "a replay has a format of its own");
    }
}

pub async fn a_replay_is_all_or_nothing(bench: &Arc<Bench>) {
    for birth in [Birth::Leased, Birth::Waiting(at(9000))] {
        let new = two_lanes(bench, [Birth::Leased, birth]).await;
        let [over, pending] = &new.deliveries[..] else { panic!("two deliveries") };
        bench.ends(over.id, Next::Delivered, at(1)).await;
        for order in [[over, pending], [pending, over]] {
            let rounds = order.map(|one| round(bench, one.webhook));
            let answer = replay(bench, new.event.id, &rounds, at(2)).await;
            assert_eq!(answer, Replayed::StillPending(pending.id));
            for round in &rounds {
                assert_eq!(find(bench, round.id).await, None);
            }
        }
        assert_eq!(bench.delivery(over.id).await.redriven_as, None);
        assert_eq!(bench.due_lanes(at(100)).await, []);
    }
}

pub async fn a_replay_to_a_new_webhook_is_its_first_round(bench: &Arc<Bench>) {
    let new = bench.fan_out(bench.event(at(0)), &[]);
    bench.publish_new(new.clone()).await;
    let first = round(bench, bench.webhook);
    let answer = replay(bench, new.event.id, std::slice::from_ref(&first), at(5)).await;
    assert_eq!(answer, Replayed::Done(vec![first.id]));
    let made = bench.delivery(first.id).await;
    assert_eq!((made.round, made.replay_of, made.event), (1, None, new.event.id));
    let claimed = bench.claim_one(at(5)).await;
    assert_eq!((claimed.id, &claimed.event), (first.id, &new.event));
}

pub async fn what_waits_is_cancelled_at_once(bench: &Arc<Bench>) {
    let (off, on) = (bench.waiting(at(0), at(0)).await, bench.waiting(at(0), at(0)).await);
    assert_eq!(bench.cancel(off, at(3)).await, Cancelled::Done);
    let ended = bench.delivery(off).await;
    assert_eq!((ended.status, ended.ended_at), (DeliveryStatus::Cancelled, Some(at(3))));
    assert_eq!((ended.cancel_reason.as_deref(), ended.due), (Some("enough"), None));
    assert_eq!(ids(&bench.claim(at(10)).await), [on]);
}

pub async fn what_is_leased_is_asked_to_stop(bench: &Arc<Bench>) {
    let id = bench.leased(at(0)).await;
    assert_eq!(bench.cancel(id, at(3)).await, Cancelled::Requested);
    assert_eq!(bench.cancel(id, at(4)).await, Cancelled::Requested);
    let asked = bench.delivery(id).await;
    assert_eq!((asked.status, asked.ended_at), (DeliveryStatus::Pending, None));
    assert!(bench.store().mark_sending(bench.epoch, id).await.unwrap(), "its node still has it");
}

pub async fn what_is_over_stays_over(bench: &Arc<Bench>) {
    let dead = bench.dead(at(0)).await;
    let delivered = bench.leased(at(0)).await;
    bench.ends(delivered, Next::Delivered, at(1)).await;
    let cancelled = bench.waiting(at(0), at(5000)).await;
    assert_eq!(bench.cancel(cancelled, at(1)).await, Cancelled::Done);
    for (id, status) in [
        (dead, DeliveryStatus::Dead),
        (delivered, DeliveryStatus::Delivered),
        (cancelled, DeliveryStatus::Cancelled),
    ] {
        let before = bench.delivery(id).await;
        assert_eq!(bench.cancel(id, at(9)).await, Cancelled::Over(status));
        assert_eq!(bench.delivery(id).await, before);
    }
}

pub async fn other_tenants_reach_nothing(bench: &Arc<Bench>) {
    let other = bench.new_tenant("globex").await;
    let nobody = TenantId::parse("nobody").unwrap();
    let dead = bench.dead(at(0)).await;
    let waiting = bench.waiting(at(0), at(5000)).await;
    let leased = bench.leased(at(0)).await;
    for tenant in [other, nobody] {
        for id in [dead, waiting, leased] {
            let before = bench.delivery(id).await;
            let new_round = bench.delivery_id(at(0));
            let retried =
                bench.store().retry(tenant.clone(), id, bench.again(new_round), at(1)).await.unwrap();
            assert_eq!(retried, Redriven::Missing);
            let cancelled = bench.store().cancel(tenant.clone(), id, "theirs".into(), at(1)).await.unwrap();
            assert_eq!(cancelled, Cancelled::Missing);
            let rounds = vec![round(bench, bench.webhook)];
            let replayed =
                bench.store().replay(tenant.clone(), before.event, rounds, None, at(1)).await.unwrap();
            assert_eq!(replayed, Replayed::Missing);
            assert_eq!(bench.delivery(id).await, before);
        }
    }
    assert_eq!(bench.dead_list().await, [dead]);
    bench.ends(leased, Next::Delivered, at(2)).await;

    let unknown = bench.delivery_id(at(0));
    assert_eq!(retry(bench, unknown, bench.delivery_id(at(0)), at(1)).await, Redriven::Missing);
    assert_eq!(bench.cancel(unknown, at(1)).await, Cancelled::Missing);
    let Event { id: event, .. } = bench.event(at(0));
    assert_eq!(replay(bench, event, &[round(bench, bench.webhook)], at(1)).await, Replayed::Missing);
}
