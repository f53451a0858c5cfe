//! What matters only among other nodes.

use super::*;

const MANY: Bounds = Bounds { max_in_flight: 50, max_items: 100, lane_items: 50, ..BOUNDS };

fn under(term: &Arc<Term>, ready: Ready) -> Ready {
    Ready { term: term.clone(), ..ready }
}

fn term(epoch: i64) -> Arc<Term> {
    Term::new("test", redrive_store::Epoch(epoch), 0)
}

#[test]
fn a_silent_node_keeps_what_it_has_and_goes_on_where_it_was() {
    let dispatch = Dispatch::new(MANY);
    let start = offer(&dispatch, ready(1, 1), 2).unwrap().start;
    let refused = start.into_iter().map(|ready| Refused { ready, how: Refusal::Silence }).collect();
    assert!(dispatch.refuse(refused).start.is_empty());
    assert!(offer(&dispatch, ready(1, 2), 2).unwrap().start.is_empty(), "nor what comes now");
    assert_eq!(dispatch.load().unsettled, 0);
    let sent: Vec<_> = dispatch.speak().start.iter().map(|ready| ready.id).collect();
    assert_eq!(sent, [ready(1, 1).id, ready(1, 2).id]);
    assert!(dispatch.speak().start.is_empty());
}

#[test]
fn what_belongs_to_others_is_thrown_away_and_leaves_its_room() {
    let dispatch = Dispatch::new(MANY);
    let (old, new) = (term(1), term(2));
    let sent = offer(&dispatch, under(&old, ready(1, 1)), 1).unwrap().start;
    for n in 2..5 {
        offer(&dispatch, under(&old, ready(1, n)), 1).unwrap();
    }
    offer(&dispatch, under(&new, ready(1, 5)), 1).unwrap();
    old.end();
    dispatch.throw_away();
    assert_eq!(dispatch.load().items, 2, "one under way and one of the new term");
    let next = finish(&dispatch, &sent[0]).start;
    assert_eq!(next[0].id, ready(1, 5).id);
    finish(&dispatch, &next[0]);
    assert_eq!(dispatch.load(), empty(MANY));
    assert!(dispatch.state.lock().hooks.is_empty());
}

#[test]
fn a_lane_that_was_behind_is_asked_for_anew_under_the_new_term() {
    let dispatch = Dispatch::new(MANY);
    let old = term(1);
    let looked = look(&dispatch, &ready(1, 1));
    let taken = (0..looked.room).map(|n| under(&old, ready(1, n as u8))).collect();
    dispatch.claimed(&looked, taken, true);
    assert!(dispatch.take_hungry().is_empty(), "it has enough");
    old.end();
    assert!(dispatch.throw_away().refill);
    assert_eq!(dispatch.take_hungry().len(), 1);
}

#[test]
fn what_is_sent_from_elsewhere_goes_back_but_for_what_is_under_way() {
    let dispatch = Dispatch::new(MANY);
    let sent = offer(&dispatch, ready(1, 1), 1).unwrap().start;
    offer(&dispatch, ready(1, 2), 1).unwrap();
    let back = dispatch.surrender(webhook(1)).hand_back;
    assert_eq!(back.iter().map(|ready| ready.id).collect::<Vec<_>>(), [ready(1, 2).id]);
    assert!(!dispatch.is_quiet(webhook(1)) && dispatch.has_any(webhook(1)));
    assert!(finish(&dispatch, &sent[0]).start.is_empty());
    dispatch.unreserve(webhook(1), &FRESH, 1, back[0].event.weight());
    assert!(dispatch.is_quiet(webhook(1)) && !dispatch.has_any(webhook(1)));
    assert_eq!(dispatch.load(), empty(MANY));
}

#[test]
fn a_larger_part_is_made_use_of_at_once() {
    let dispatch = Dispatch::new(MANY);
    for n in 1..=6 {
        offer(&dispatch, ready(1, n), 2).unwrap();
    }
    assert_eq!((dispatch.sending(webhook(1)), dispatch.webhooks()), (2, vec![webhook(1)]));
    assert_eq!(dispatch.set_caps(whom(&ready(1, 1), 5)).start.len(), 3);
    assert!(dispatch.set_caps(whom(&ready(2, 9), 5)).start.is_empty(), "it is not here");
    assert_eq!(dispatch.webhooks(), [webhook(1)]);
}

#[test]
fn a_lane_without_room_is_left_to_others_and_asked_for_when_there_is_room() {
    let bounds = Bounds { max_items: 2, ..BOUNDS };
    let dispatch = Dispatch::new(bounds);
    let mut sent = offer(&dispatch, ready(1, 1), 5).unwrap().start;
    sent.extend(offer(&dispatch, of_tenant("other", ready(3, 3)), 5).unwrap().start);
    let looked = look(&dispatch, &ready(2, 2));
    assert_eq!(looked.room, 0);
    dispatch.decline(&looked.key);
    assert!(dispatch.take_hungry().is_empty(), "there is no room yet");
    assert!(!dispatch.is_quiet(webhook(2)));
    assert!(finish(&dispatch, &sent[0]).refill);
    assert_eq!(dispatch.take_hungry().len(), 1);
}

#[test]
fn a_lane_that_is_held_back_is_not_asked_for() {
    let dispatch = Dispatch::new(BOUNDS);
    dispatch.park(whom(&ready(1, 1), 1), Time::from_millis(5));
    dispatch.decline(&look(&dispatch, &ready(1, 1)).key);
    assert!(dispatch.is_quiet(webhook(1)));
    assert!(!dispatch.wake_up(Time::from_millis(5)).refill);
    assert!(dispatch.state.lock().hooks.is_empty());
}
