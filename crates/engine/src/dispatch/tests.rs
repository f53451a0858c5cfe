//! Bounds, turns and refills of the lanes.

use bytes::Bytes;
use proptest::prelude::*;
use redrive_core::{EventId, TenantId};

use super::*;

const BOUNDS: Bounds = Bounds { max_in_flight: 4, max_items: 8, max_bytes: 1 << 20, lane_items: 4 };

fn webhook(n: u8) -> WebhookId {
    WebhookId::new(Time::from_millis(1), &[n; 10])
}

fn ready(lane: u8, n: u8) -> Ready {
    let at = Time::from_millis(1);
    let event = Event {
        id: EventId::new(at, &[n; 10]),
        tenant: TenantId::default(),
        event_type: "a.b".into(),
        data: Bytes::from_static(b"{}"),
        timestamp: at,
        idempotency_key: None,
        source: None,
        subject: None,
        metadata: None,
    };
    Ready {
        id: DeliveryId::new(at, &[n; 10]),
        webhook: webhook(lane),
        event: Arc::new(event),
        format: PayloadFormat::Envelope,
        attempt: 1,
        created_at: at,
        due: at,
        rescues: 0,
        deaths: 0,
    }
}

/// Publishes one delivery the way `publish` does. True if it was taken in.
fn offer(dispatch: &Dispatch, ready: Ready, max_in_flight: u32) -> Option<Moves> {
    let weight = ready.event.weight();
    dispatch.reserve(ready.webhook, weight).then(|| dispatch.admit([(ready, max_in_flight)]))
}

fn finish(dispatch: &Dispatch, ready: &Ready) -> Moves {
    let mut moves = dispatch.answered(ready.webhook, ready.id);
    let more = dispatch.settled(ready.webhook, ready.id, ready.event.weight());
    moves.start.extend(more.start);
    moves.refill |= more.refill;
    moves
}

#[test]
fn a_lane_sends_no_more_at_once_than_it_may() {
    let dispatch = Dispatch::new(BOUNDS);
    let first = offer(&dispatch, ready(1, 1), 1).unwrap();
    assert_eq!(first.start.len(), 1);
    assert!(offer(&dispatch, ready(1, 2), 1).unwrap().start.is_empty());
    assert_eq!(dispatch.whereabouts(webhook(1), ready(1, 1).id), Some(Whereabouts::Sending));
    assert_eq!(dispatch.whereabouts(webhook(1), ready(1, 2).id), Some(Whereabouts::InFlightLimit));
    // The webhook's slot is free with the answer, before the outcome is stored.
    let next = dispatch.answered(webhook(1), first.start[0].id);
    assert_eq!(next.start[0].id, ready(1, 2).id);
    assert_eq!(dispatch.load().unsettled, 2, "the node's slots are not");
}

#[test]
fn the_node_sends_no_more_than_it_may_until_outcomes_are_stored() {
    let dispatch = Dispatch::new(BOUNDS);
    let sent: Vec<_> = (1..=6).flat_map(|n| offer(&dispatch, ready(n, n), 5).unwrap().start).collect();
    assert_eq!(sent.len(), 4);
    assert!(dispatch.answered(sent[0].webhook, sent[0].id).start.is_empty());
    assert_eq!(dispatch.whereabouts(webhook(5), ready(5, 5).id), Some(Whereabouts::Capacity));
    assert_eq!(dispatch.settled(sent[0].webhook, sent[0].id, sent[0].event.weight()).start.len(), 1);
}

#[test]
fn lanes_take_turns() {
    let dispatch = Dispatch::new(Bounds { max_in_flight: 1, ..BOUNDS });
    let mut sent = offer(&dispatch, ready(1, 1), 5).unwrap().start;
    for (lane, n) in [(1, 2), (1, 3), (2, 4)] {
        assert!(offer(&dispatch, ready(lane, n), 5).unwrap().start.is_empty());
    }
    let mut order = Vec::new();
    while let Some(ready) = sent.pop() {
        order.push(ready.webhook);
        sent.extend(finish(&dispatch, &ready).start);
    }
    assert_eq!(
        order,
        [webhook(1), webhook(1), webhook(2), webhook(1)],
        "the second lane does not wait for all"
    );
    assert_eq!(dispatch.load(), Load { items: 0, bytes: 0, unsettled: 0 });
}

#[test]
fn a_full_lane_is_born_waiting_and_refilled_in_order() {
    let dispatch = Dispatch::new(Bounds { max_in_flight: 100, max_items: 100, ..BOUNDS });
    let sent = offer(&dispatch, ready(1, 1), 1).unwrap().start;
    for n in 2..=4 {
        assert!(offer(&dispatch, ready(1, n), 1).is_some());
    }
    assert!(offer(&dispatch, ready(1, 5), 1).is_none(), "the lane is full");
    assert!(offer(&dispatch, ready(2, 9), 1).is_some(), "others are not");
    // The scheduler finds the lane due, but there is no room: it is behind from now on.
    let room = dispatch.reserve_lane(webhook(1));
    assert_eq!(room.room, 0);
    dispatch.claimed(room, [], true);
    let second = finish(&dispatch, &sent[0]).start;
    assert!(offer(&dispatch, ready(1, 6), 1).is_none(), "nothing newer overtakes what waits");
    let refill = finish(&dispatch, &second[0]).refill;
    assert!(refill, "half of the lane is free");
    let rooms = dispatch.take_hungry();
    assert_eq!(rooms, [LaneRoom { webhook: webhook(1), room: 2 }]);
    dispatch.claimed(rooms[0], [(ready(1, 5), 1)], false);
    assert!(offer(&dispatch, ready(1, 7), 1).is_some(), "caught up");
}

#[test]
fn a_failed_claim_is_made_again() {
    let dispatch = Dispatch::new(BOUNDS);
    let room = dispatch.reserve_lane(webhook(1));
    dispatch.claimed(room, [], true);
    let rooms = dispatch.take_hungry();
    dispatch.claim_failed(&rooms);
    assert_eq!(dispatch.take_hungry(), rooms);
}

#[test]
fn nothing_is_sent_while_the_store_is_down() {
    let dispatch = Dispatch::new(BOUNDS);
    dispatch.store_failed();
    assert!(offer(&dispatch, ready(1, 1), 1).unwrap().start.is_empty());
    assert_eq!(dispatch.store_works().start.len(), 1);
}

#[test]
fn a_queued_delivery_can_be_called_off_and_a_sent_one_is_marked() {
    let dispatch = Dispatch::new(BOUNDS);
    let sent = offer(&dispatch, ready(1, 1), 1).unwrap().start;
    offer(&dispatch, ready(1, 2), 1).unwrap();
    let queued = dispatch.cancel(webhook(1), ready(1, 2).id, "no".into()).unwrap();
    assert_eq!(queued.id, ready(1, 2).id);
    assert!(dispatch.cancel(webhook(1), sent[0].id, "no".into()).is_none());
    assert_eq!(dispatch.cancel_reason(sent[0].id).as_deref(), Some("no"));
    finish(&dispatch, &sent[0]);
    assert_eq!(dispatch.cancel_reason(sent[0].id), None);
    dispatch.settled(webhook(1), queued.id, queued.event.weight());
    assert_eq!(dispatch.load(), Load { items: 0, bytes: 0, unsettled: 0 });
}

proptest! {
    /// Whatever happens in whatever order: the bounds hold, and nothing is left over or sent twice.
    #[test]
    fn bounds_hold_and_the_books_balance(steps in proptest::collection::vec((0u8..6, 0u8..3), 1..200)) {
        let dispatch = Dispatch::new(BOUNDS);
        let (mut under_way, mut seen, mut next) = (Vec::new(), std::collections::HashSet::new(), 0u8);
        for (what, lane) in steps {
            let moves = match what {
                0 | 1 => {
                    next = next.wrapping_add(1);
                    offer(&dispatch, ready(lane, next), 2).unwrap_or_default()
                }
                2 if !under_way.is_empty() => {
                    let done: Ready = under_way.remove(lane as usize % under_way.len());
                    seen.remove(&done.id);
                    finish(&dispatch, &done)
                }
                // The scheduler finds something due in a lane, and perhaps more than fits.
                3 => {
                    next = next.wrapping_add(1);
                    let room = dispatch.reserve_lane(webhook(lane));
                    let found = (room.room > 0).then(|| (ready(lane, next), 2));
                    dispatch.claimed(room, found, next.is_multiple_of(2))
                }
                4 => {
                    let rooms = dispatch.take_hungry();
                    let claim = |room| dispatch.claimed(room, None, next.is_multiple_of(3)).start;
                    Moves { start: rooms.into_iter().flat_map(claim).collect(), refill: false }
                }
                5 => {
                    dispatch.claim_failed(&dispatch.take_hungry());
                    Moves::default()
                }
                _ => Moves::default(),
            };
            for ready in moves.start {
                prop_assert!(seen.insert(ready.id), "sent twice at once");
                under_way.push(ready);
            }
            let load = dispatch.load();
            prop_assert!(load.items <= BOUNDS.max_items && load.unsettled <= BOUNDS.max_in_flight);
            prop_assert_eq!(load.unsettled, under_way.len());
        }
        while let Some(done) = under_way.pop() {
            under_way.extend(finish(&dispatch, &done).start);
        }
        // Each lane that is behind gets its turn to find that there is no more: memory may not hold all at once.
        for _ in 0..3 {
            for room in dispatch.take_hungry() {
                dispatch.claimed(room, None, false);
            }
        }
        prop_assert!(!dispatch.store_works().refill, "nothing is left to ask the store for");
        prop_assert_eq!(dispatch.load(), Load { items: 0, bytes: 0, unsettled: 0 });
        prop_assert!(dispatch.state.lock().lanes.is_empty(), "idle lanes cost nothing");
    }
}
