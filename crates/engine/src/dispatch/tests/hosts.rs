//! Requests in flight to one destination host.

use super::*;

const WIDE: Bounds =
    Bounds { max_in_flight: 200, max_items: 1_000, lane_items: 50, host_max_in_flight: 10, ..BOUNDS };

fn at(host: &str) -> HostKey {
    HostKey::from_host(host)
}

/// Publishes one delivery to a webhook of a host. Returns what is started.
fn send(dispatch: &Dispatch, host: &str, ready: Ready) -> Vec<Ready> {
    let whom = Whom { host: at(host), ..whom(&ready, 5) };
    assert!(dispatch.reserve(whom, &ready.lane, ready.event.weight()));
    dispatch.admit([ready]).start
}

fn in_flight(dispatch: &Dispatch, host: &str) -> usize {
    let counts = dispatch.state.lock().hosts.counts();
    counts.into_iter().find(|(key, ..)| *key == at(host)).map_or(0, |(_, in_flight, _)| in_flight)
}

#[test]
fn host_at_its_limit_gets_the_next_request_when_one_ends() {
    let dispatch = Dispatch::new(Bounds { host_max_in_flight: 2, ..WIDE });
    let mut sent: Vec<_> = (1..=5).flat_map(|n| send(&dispatch, "a", ready(n, n))).collect();
    assert_eq!(sent.len(), 2);
    assert_eq!(dispatch.load().unsettled, 2, "a waiting delivery takes no slot of the node");
    let whom = Whom { host: at("a"), ..whom(&sent[0], 5) };
    assert!(!dispatch.usage(whom).host_has_slot);
    let mut ended = 0;
    while let Some(one) = sent.pop() {
        let next = dispatch.answered(one.webhook, one.id).start;
        ended += 1;
        assert_eq!(next.len(), usize::from(ended <= 3), "one for the one that ended");
        sent.extend(next);
        assert!(dispatch.settled(&one, false).start.is_empty());
        assert!(in_flight(&dispatch, "a") <= 2);
    }
    assert_eq!((ended, dispatch.load()), (5, empty(WIDE)));
    assert!(dispatch.state.lock().hosts.is_empty());
}

#[test]
fn full_host_delays_no_other_host() {
    let dispatch = Dispatch::new(Bounds { host_max_in_flight: 1, ..WIDE });
    let first = send(&dispatch, "a", ready(1, 1));
    assert!((2..=20).all(|n| send(&dispatch, "a", ready(n, n)).is_empty()));
    assert_eq!(send(&dispatch, "b", ready(21, 21)).len(), 1);
    assert_eq!(dispatch.answered(first[0].webhook, first[0].id).start.len(), 1);
}

#[test]
fn one_tenant_leaves_slots_of_a_host_to_another() {
    let dispatch = Dispatch::new(WIDE);
    let sent: usize = (1..=30).map(|n| send(&dispatch, "a", ready(n, n)).len()).sum();
    assert_eq!(sent, 8, "four times what is left");
    assert_eq!(send(&dispatch, "a", of_tenant("other", ready(40, 40))).len(), 1);
}

#[test]
fn waiting_tenants_take_turns_however_many_webhooks_they_have() {
    let dispatch = Dispatch::new(Bounds { host_max_in_flight: 1, ..WIDE });
    let mut sent: Vec<_> = (1..=30).flat_map(|n| send(&dispatch, "a", ready(n, n))).collect();
    assert!(send(&dispatch, "a", of_tenant("other", ready(40, 40))).is_empty());
    let mut turns = 0;
    while sent[0].event.tenant.as_str() != "other" {
        let one = sent.remove(0);
        sent.extend(finish(&dispatch, &one).start);
        turns += 1;
    }
    assert!(turns <= 2, "the only one of the other tenant waited for {turns}");
}

#[test]
fn challenge_counts_for_its_host() {
    let dispatch = Dispatch::new(Bounds { host_max_in_flight: 1, ..WIDE });
    let tenant = TenantId::default();
    assert!(dispatch.take_host(&tenant, at("a")));
    assert!(!dispatch.take_host(&tenant, at("a")) && dispatch.take_host(&tenant, at("b")));
    assert!(send(&dispatch, "a", ready(1, 1)).is_empty());
    let started = dispatch.free_host(&tenant, at("a")).start;
    assert_eq!(started.len(), 1);
    assert!(!dispatch.take_host(&tenant, at("a")), "the delivery has the slot");
    finish(&dispatch, &started[0]);
    dispatch.free_host(&tenant, at("b"));
    assert!(dispatch.state.lock().hosts.is_empty());
}

#[test]
fn request_counts_for_the_host_that_it_was_sent_to() {
    let dispatch = Dispatch::new(Bounds { host_max_in_flight: 1, ..WIDE });
    let sent = send(&dispatch, "a", ready(1, 1));
    assert!(send(&dispatch, "a", ready(1, 2)).is_empty());
    // The URL changes: what waited at the old host goes to the new one once it has its turn.
    dispatch.set_caps(Whom { host: at("b"), ..whom(&sent[0], 5) });
    assert_eq!((in_flight(&dispatch, "a"), in_flight(&dispatch, "b")), (1, 0));
    let next = dispatch.answered(sent[0].webhook, sent[0].id).start;
    assert_eq!(next.len(), 1);
    assert_eq!((in_flight(&dispatch, "a"), in_flight(&dispatch, "b")), (0, 1));
}

#[test]
fn greater_limit_starts_what_waits() {
    let dispatch = Dispatch::new(Bounds { host_max_in_flight: 1, ..WIDE });
    let sent: usize = (1..=6).map(|n| send(&dispatch, "a", ready(n, n)).len()).sum();
    assert_eq!(sent, 1);
    assert_eq!(dispatch.set_host_limit(usize::MAX).start.len(), 5);
}

#[test]
fn slot_that_a_parked_tenant_cannot_use_goes_to_another() {
    let dispatch = Dispatch::new(Bounds { host_max_in_flight: 1, ..WIDE });
    let cap = |ready: &Ready, host: &str| {
        let whom = Whom { host: at(host), tenant_max_in_flight: 1, ..whom(ready, 5) };
        assert!(dispatch.reserve(whom, &ready.lane, ready.event.weight()));
    };
    let other = send(&dispatch, "a", of_tenant("other", ready(1, 1)));
    // A tenant that may have one request waits at "a", and uses its one slot for "b".
    for (n, host) in [(2, "a"), (3, "b")] {
        cap(&ready(n, n), host);
        dispatch.admit([ready(n, n)]);
    }
    assert!(send(&dispatch, "a", of_tenant("third", ready(4, 4))).is_empty());
    let next = dispatch.answered(other[0].webhook, other[0].id).start;
    assert_eq!(next.len(), 1);
    assert_eq!(next[0].event.tenant.as_str(), "third", "the first in turn may not send");
}
