//! Tests of the limit of requests in flight to one destination host.

use super::*;

const WIDE: DispatchLimits = DispatchLimits {
    max_unsettled: 200,
    max_deliveries: 1_000,
    max_lane_deliveries: 50,
    host_max_in_flight: 10,
    ..LIMITS
};

fn at(host: &str) -> HostKey {
    HostKey::from_host(host)
}

/// Publishes one delivery to a webhook of a host. Returns the deliveries that are started.
fn send(dispatch: &DispatchQueues, host: &str, delivery: LeasedDelivery) -> Vec<LeasedDelivery> {
    let limits = WebhookLimits { host: at(host), ..webhook_limits(&delivery, 5) };
    assert!(dispatch.reserve(limits, &delivery.lane, delivery.event.memory_bytes()));
    dispatch.enqueue_published([delivery]).start
}

fn in_flight(dispatch: &DispatchQueues, host: &str) -> usize {
    let counts = dispatch.state.lock().hosts.counts();
    counts.into_iter().find(|(key, ..)| *key == at(host)).map_or(0, |(_, in_flight, _)| in_flight)
}

#[test]
fn host_at_its_limit_gets_next_request_when_one_ends() {
    let dispatch = DispatchQueues::new(DispatchLimits { host_max_in_flight: 2, ..WIDE });
    let mut sent: Vec<_> = (1..=5).flat_map(|n| send(&dispatch, "a", delivery(n, n))).collect();
    assert_eq!(sent.len(), 2);
    assert_eq!(dispatch.load().unsettled, 2, "a waiting delivery takes no slot of the node");
    let limits = WebhookLimits { host: at("a"), ..webhook_limits(&sent[0], 5) };
    assert!(!dispatch.usage(limits).host_has_slot);
    let mut ended = 0;
    while let Some(one) = sent.pop() {
        let next = dispatch.free_local_webhook_slot(one.webhook_id, one.id).start;
        ended += 1;
        assert_eq!(next.len(), usize::from(ended <= 3), "one starts for the one that ended");
        sent.extend(next);
        assert!(dispatch.settle(&one, false).start.is_empty());
        assert!(in_flight(&dispatch, "a") <= 2);
    }
    assert_eq!((ended, dispatch.load()), (5, empty(WIDE)));
    assert!(dispatch.state.lock().hosts.is_empty());
}

#[test]
fn full_host_delays_no_other_host() {
    let dispatch = DispatchQueues::new(DispatchLimits { host_max_in_flight: 1, ..WIDE });
    let first = send(&dispatch, "a", delivery(1, 1));
    assert!((2..=20).all(|n| send(&dispatch, "a", delivery(n, n)).is_empty()));
    assert_eq!(send(&dispatch, "b", delivery(21, 21)).len(), 1);
    assert_eq!(dispatch.free_local_webhook_slot(first[0].webhook_id, first[0].id).start.len(), 1);
}

#[test]
fn tenant_leaves_host_slots_to_other_tenants() {
    let dispatch = DispatchQueues::new(WIDE);
    let sent: usize = (1..=30).map(|n| send(&dispatch, "a", delivery(n, n)).len()).sum();
    assert_eq!(sent, 8, "four times the free slots");
    assert_eq!(send(&dispatch, "a", with_tenant("other", delivery(40, 40))).len(), 1);
}

#[test]
fn waiting_tenants_take_turns_regardless_of_webhook_count() {
    let dispatch = DispatchQueues::new(DispatchLimits { host_max_in_flight: 1, ..WIDE });
    let mut sent: Vec<_> = (1..=30).flat_map(|n| send(&dispatch, "a", delivery(n, n))).collect();
    assert!(send(&dispatch, "a", with_tenant("other", delivery(40, 40))).is_empty());
    let mut turns = 0;
    while sent[0].event.tenant_id.as_str() != "other" {
        let one = sent.remove(0);
        sent.extend(finish(&dispatch, &one).start);
        turns += 1;
    }
    assert!(turns <= 2, "the only delivery of the other tenant waited for {turns}");
}

#[test]
fn challenge_counts_for_its_host() {
    let dispatch = DispatchQueues::new(DispatchLimits { host_max_in_flight: 1, ..WIDE });
    let tenant_id = TenantId::default();
    assert!(dispatch.take_host_slot(&tenant_id, at("a")));
    assert!(!dispatch.take_host_slot(&tenant_id, at("a")) && dispatch.take_host_slot(&tenant_id, at("b")));
    assert!(send(&dispatch, "a", delivery(1, 1)).is_empty());
    let started = dispatch.free_host_slot(&tenant_id, at("a")).start;
    assert_eq!(started.len(), 1);
    assert!(!dispatch.take_host_slot(&tenant_id, at("a")), "the delivery has the slot");
    finish(&dispatch, &started[0]);
    dispatch.free_host_slot(&tenant_id, at("b"));
    assert!(dispatch.state.lock().hosts.is_empty());
}

#[test]
fn request_counts_for_the_host_it_was_sent_to() {
    let dispatch = DispatchQueues::new(DispatchLimits { host_max_in_flight: 1, ..WIDE });
    let sent = send(&dispatch, "a", delivery(1, 1));
    assert!(send(&dispatch, "a", delivery(1, 2)).is_empty());
    // The URL changes: a delivery that waited at the old host goes to the new one.
    let moved = WebhookLimits { host: at("b"), ..webhook_limits(&sent[0], 5) };
    assert_eq!(dispatch.set_webhook_limits(moved).start.len(), 1);
    assert_eq!((in_flight(&dispatch, "a"), in_flight(&dispatch, "b")), (1, 1));
    dispatch.free_local_webhook_slot(sent[0].webhook_id, sent[0].id);
    assert_eq!((in_flight(&dispatch, "a"), in_flight(&dispatch, "b")), (0, 1));
}

#[test]
fn raised_host_limit_starts_waiting_deliveries() {
    let dispatch = DispatchQueues::new(DispatchLimits { host_max_in_flight: 1, ..WIDE });
    let sent: usize = (1..=6).map(|n| send(&dispatch, "a", delivery(n, n)).len()).sum();
    assert_eq!(sent, 1);
    assert_eq!(dispatch.set_host_limit(usize::MAX).start.len(), 5);
}

#[test]
fn slot_unusable_by_suspended_tenant_goes_to_another() {
    let dispatch = DispatchQueues::new(DispatchLimits { host_max_in_flight: 1, ..WIDE });
    let cap = |delivery: &LeasedDelivery, host: &str| {
        let limits = WebhookLimits { host: at(host), tenant_max_unsettled: 1, ..webhook_limits(delivery, 5) };
        assert!(dispatch.reserve(limits, &delivery.lane, delivery.event.memory_bytes()));
    };
    let other = send(&dispatch, "a", with_tenant("other", delivery(1, 1)));
    // A tenant limited to one request waits at "a", and uses its only slot for "b".
    for (n, host) in [(2, "a"), (3, "b")] {
        cap(&delivery(n, n), host);
        dispatch.enqueue_published([delivery(n, n)]);
    }
    assert!(send(&dispatch, "a", with_tenant("third", delivery(4, 4))).is_empty());
    let next = dispatch.free_local_webhook_slot(other[0].webhook_id, other[0].id).start;
    assert_eq!(next.len(), 1);
    assert_eq!(next[0].event.tenant_id.as_str(), "third", "the first tenant in turn is suspended");
}
