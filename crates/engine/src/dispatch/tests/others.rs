//! Tests of the dispatcher with several nodes.

use super::*;

const MANY: DispatchLimits =
    DispatchLimits { max_unsettled: 50, max_deliveries: 100, max_lane_deliveries: 50, ..LIMITS };

fn under(epoch: &Arc<NodeEpoch>, delivery: LeasedDelivery) -> LeasedDelivery {
    LeasedDelivery { epoch: epoch.clone(), ..delivery }
}

fn epoch(epoch: i64) -> Arc<NodeEpoch> {
    NodeEpoch::new("test", redrive_store::Epoch(epoch), 0)
}

#[test]
fn suspended_node_keeps_queue_and_resumes_in_order() {
    let dispatch = DispatchQueues::new(MANY);
    let start = offer(&dispatch, delivery(1, 1), 2).unwrap().start;
    let deferred = start
        .into_iter()
        .map(|delivery| DeferredDelivery { delivery, deferral: Deferral::SuspendNode })
        .collect();
    assert!(dispatch.defer(deferred).start.is_empty());
    assert!(
        offer(&dispatch, delivery(1, 2), 2).unwrap().start.is_empty(),
        "a new delivery does not start either"
    );
    assert_eq!(dispatch.load().unsettled, 0);
    let sent: Vec<_> = dispatch.resume_node().start.iter().map(|delivery| delivery.id).collect();
    assert_eq!(sent, [delivery(1, 1).id, delivery(1, 2).id]);
    assert!(dispatch.resume_node().start.is_empty());
}

#[test]
fn deliveries_of_ended_epoch_are_discarded_and_free_capacity() {
    let dispatch = DispatchQueues::new(MANY);
    let (old, new) = (epoch(1), epoch(2));
    let sent = offer(&dispatch, under(&old, delivery(1, 1)), 1).unwrap().start;
    for n in 2..5 {
        offer(&dispatch, under(&old, delivery(1, n)), 1).unwrap();
    }
    offer(&dispatch, under(&new, delivery(1, 5)), 1).unwrap();
    old.end();
    dispatch.discard_ended_epoch();
    assert_eq!(dispatch.load().deliveries, 2, "one in flight and one of the new epoch");
    let next = finish(&dispatch, &sent[0]).start;
    assert_eq!(next[0].id, delivery(1, 5).id);
    finish(&dispatch, &next[0]);
    assert_eq!(dispatch.load(), empty(MANY));
    assert!(dispatch.state.lock().webhooks.is_empty());
}

#[test]
fn lane_with_backlog_is_refilled_under_new_epoch() {
    let dispatch = DispatchQueues::new(MANY);
    let old = epoch(1);
    let lane = poll(&dispatch, &delivery(1, 1));
    let taken = (0..lane.max_deliveries).map(|n| under(&old, delivery(1, n as u8))).collect();
    dispatch.enqueue_claimed(&lane, taken, true);
    assert!(dispatch.take_lanes_to_refill().is_empty(), "the lane needs no refill");
    old.end();
    assert!(dispatch.discard_ended_epoch().refill);
    assert_eq!(dispatch.take_lanes_to_refill().len(), 1);
}

#[test]
fn returning_queue_keeps_requests_in_flight() {
    let dispatch = DispatchQueues::new(MANY);
    let sent = offer(&dispatch, delivery(1, 1), 1).unwrap().start;
    offer(&dispatch, delivery(1, 2), 1).unwrap();
    let back = dispatch.release_queued(webhook(1)).release;
    assert_eq!(back.iter().map(|delivery| delivery.id).collect::<Vec<_>>(), [delivery(1, 2).id]);
    assert!(!dispatch.is_webhook_idle(webhook(1)) && dispatch.has_deliveries(webhook(1)));
    assert!(finish(&dispatch, &sent[0]).start.is_empty());
    dispatch.unreserve(webhook(1), &FRESH, 1, back[0].event.memory_bytes());
    assert!(dispatch.is_webhook_idle(webhook(1)) && !dispatch.has_deliveries(webhook(1)));
    assert_eq!(dispatch.load(), empty(MANY));
}

#[test]
fn raised_limit_takes_effect_immediately() {
    let dispatch = DispatchQueues::new(MANY);
    for n in 1..=6 {
        offer(&dispatch, delivery(1, n), 2).unwrap();
    }
    assert_eq!((dispatch.in_flight_count(webhook(1)), dispatch.webhooks()), (2, vec![webhook(1)]));
    assert_eq!(dispatch.set_webhook_limits(webhook_limits(&delivery(1, 1), 5)).start.len(), 3);
    assert!(
        dispatch.set_webhook_limits(webhook_limits(&delivery(2, 9), 5)).start.is_empty(),
        "the webhook is not in memory"
    );
    assert_eq!(dispatch.webhooks(), [webhook(1)]);
}

#[test]
fn deferred_lane_is_refilled_when_capacity_is_free() {
    let limits = DispatchLimits { max_deliveries: 2, ..LIMITS };
    let dispatch = DispatchQueues::new(limits);
    let mut sent = offer(&dispatch, delivery(1, 1), 5).unwrap().start;
    sent.extend(offer(&dispatch, with_tenant("other", delivery(3, 3)), 5).unwrap().start);
    let lane = poll(&dispatch, &delivery(2, 2));
    assert_eq!(lane.max_deliveries, 0);
    dispatch.defer_lane(&lane.key);
    assert!(dispatch.take_lanes_to_refill().is_empty(), "there is no capacity yet");
    assert!(!dispatch.is_webhook_idle(webhook(2)));
    assert!(finish(&dispatch, &sent[0]).refill);
    assert_eq!(dispatch.take_lanes_to_refill().len(), 1);
}

#[test]
fn lane_of_parked_webhook_is_not_refilled() {
    let dispatch = DispatchQueues::new(LIMITS);
    dispatch.park(webhook_limits(&delivery(1, 1), 1), Time::from_millis(5));
    dispatch.defer_lane(&poll(&dispatch, &delivery(1, 1)).key);
    assert!(dispatch.is_webhook_idle(webhook(1)));
    assert!(!dispatch.expire_blocks(Time::from_millis(5)).refill);
    assert!(dispatch.state.lock().webhooks.is_empty());
}
