//! Bounds, turns and refills of the lanes.

mod hosts;
mod others;

use bytes::Bytes;
use proptest::prelude::*;
use redrive_core::{EventId, delivery::lane::Priority};

use super::*;

const BOUNDS: Bounds = Bounds {
    max_in_flight: 5,
    max_items: 10,
    max_bytes: 1 << 20,
    lane_items: 4,
    host_max_in_flight: usize::MAX,
};
const FRESH: Lane = Lane::Free { priority: Priority::Normal, retry: false };

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
        priority: Priority::Normal,
        metadata: None,
        trace: None,
        hops: 0,
    };
    Ready {
        id: DeliveryId::new(at, &[n; 10]),
        term: Term::new("test", redrive_store::Epoch(1), 0),
        webhook: webhook(lane),
        lane: FRESH,
        event: Arc::new(event),
        format: PayloadFormat::Envelope,
        attempt: 1,
        created_at: at,
        due: at,
        rescues: 0,
        deaths: 0,
        began: None,
    }
}

/// A webhook of the tenant that has it in hand.
fn whom(ready: &Ready, max_in_flight: usize) -> Whom<'_> {
    let (webhook, tenant) = (ready.webhook, &ready.event.tenant);
    let host = HostKey::from_host(if webhook < self::webhook(2) { "a" } else { "b" });
    Whom { webhook, tenant, max_in_flight, tenant_max_in_flight: usize::MAX, host }
}

/// Publishes one delivery the way `publish` does. None if it finds no room.
fn offer(dispatch: &Dispatch, ready: Ready, max_in_flight: usize) -> Option<Moves> {
    let weight = ready.event.weight();
    dispatch.reserve(whom(&ready, max_in_flight), &ready.lane, weight).then(|| dispatch.admit([ready]))
}

/// Finds something due in a lane, as the scheduler does.
fn look(dispatch: &Dispatch, ready: &Ready) -> LaneRoom {
    dispatch.reserve_lane(whom(ready, 2), ready.lane.clone())
}

fn room(webhook: WebhookId, room: usize) -> LaneRoom {
    LaneRoom::new(LaneKey { webhook, lane: FRESH }, room)
}

fn finish(dispatch: &Dispatch, ready: &Ready) -> Moves {
    let mut moves = dispatch.answered(ready.webhook, ready.id);
    let more = dispatch.settled(ready, false);
    moves.start.extend(more.start);
    moves.refill |= more.refill;
    moves
}

fn empty(bounds: Bounds) -> Load {
    Load { items: 0, bytes: 0, unsettled: 0, slots: bounds.max_in_flight }
}

#[test]
fn a_webhook_gets_no_more_at_once_than_it_may() {
    let dispatch = Dispatch::new(BOUNDS);
    let first = offer(&dispatch, ready(1, 1), 1).unwrap();
    assert_eq!(first.start.len(), 1);
    assert!(offer(&dispatch, ready(1, 2), 1).unwrap().start.is_empty());
    assert_eq!(dispatch.whereabouts(webhook(1), ready(1, 1).id), Some(Whereabouts::Sending));
    assert_eq!(dispatch.whereabouts(webhook(1), ready(1, 2).id), Some(Whereabouts::Queued));
    // The webhook's slot is free with the answer, before the outcome is stored.
    let next = dispatch.answered(webhook(1), first.start[0].id);
    assert_eq!(next.start[0].id, ready(1, 2).id);
    assert_eq!(dispatch.load().unsettled, 2, "the node's slots are not");
}

#[test]
fn a_tenant_leaves_slots_to_others_until_outcomes_are_stored() {
    let dispatch = Dispatch::new(BOUNDS);
    let sent: Vec<_> = (1..=6).flat_map(|n| offer(&dispatch, ready(n, n), 5).unwrap().start).collect();
    assert_eq!(sent.len(), 4, "one of five is for whoever else comes");
    assert!(dispatch.answered(sent[0].webhook, sent[0].id).start.is_empty());
    assert_eq!(offer(&dispatch, of_tenant("other", ready(9, 9)), 5).unwrap().start.len(), 1);
    let next = dispatch.settled(&sent[0], false).start.len() + dispatch.settled(&sent[1], false).start.len();
    assert!(next >= 1);
}

fn of_tenant(tenant: &str, ready: Ready) -> Ready {
    let event = Event { tenant: TenantId::parse(tenant).unwrap(), ..Event::clone(&ready.event) };
    Ready { event: Arc::new(event), ..ready }
}

#[test]
fn what_is_held_of_a_tenant_is_known_by_webhook_and_priority() {
    let dispatch = Dispatch::new(Bounds { max_in_flight: 100, max_items: 100, lane_items: 100, ..BOUNDS });
    let urgent = Lane::Free { priority: Priority::High, retry: true };
    let offered = [
        ready(1, 1),
        ready(1, 2),
        Ready { lane: urgent, ..ready(1, 3) },
        Ready { lane: Lane::Ordered("a".into()), ..ready(1, 4) },
        ready(2, 5),
        of_tenant("other", ready(3, 6)),
        of_tenant("other", ready(3, 7)),
    ];
    for ready in offered {
        assert!(offer(&dispatch, ready, 1).is_some());
    }
    let mine = dispatch.held(&TenantId::default());
    assert_eq!(mine, Held { queued: vec![(webhook(1), [1, 2, 0])], in_flight: 2 });
    let others = dispatch.held(&TenantId::parse("other").unwrap());
    assert_eq!(others, Held { queued: vec![(webhook(3), [0, 1, 0])], in_flight: 1 });
    assert_eq!(dispatch.held(&TenantId::parse("nobody").unwrap()), Held::default());
}

#[test]
fn a_tenants_own_cap_holds() {
    let dispatch = Dispatch::new(Bounds { max_in_flight: 100, max_items: 100, ..BOUNDS });
    let mut sent = 0;
    for n in 1..=5 {
        let ready = ready(n, n);
        let whom = Whom { tenant_max_in_flight: 3, ..whom(&ready, 5) };
        assert!(dispatch.reserve(whom, &ready.lane, ready.event.weight()));
        sent += dispatch.admit([ready]).start.len();
    }
    assert_eq!(sent, 3);
}

#[test]
fn webhooks_take_turns() {
    let bounds = Bounds { max_in_flight: 1, ..BOUNDS };
    let dispatch = Dispatch::new(bounds);
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
        "the second webhook does not wait for all"
    );
    assert_eq!(dispatch.load(), empty(bounds));
}

#[test]
fn tenants_take_turns_however_many_webhooks_they_have() {
    let bounds = Bounds { max_in_flight: 1, max_items: 1_000, ..BOUNDS };
    let dispatch = Dispatch::new(bounds);
    let mut sent = Vec::new();
    for n in 1..=20 {
        sent.extend(offer(&dispatch, ready(n, n), 5).unwrap().start);
    }
    sent.extend(offer(&dispatch, of_tenant("other", ready(100, 100)), 5).unwrap().start);
    let mut at = 0;
    while sent[at].event.tenant.as_str() != "other" {
        sent.extend(finish(&dispatch, &sent[at].clone()).start);
        at += 1;
    }
    assert!(at <= 2, "the only one of the other tenant waited for {at}");
}

#[test]
fn priorities_share_by_weight_and_nobody_starves() {
    let bounds =
        Bounds { max_in_flight: 1, max_items: 100_000, lane_items: 1_000, max_bytes: 1 << 30, ..BOUNDS };
    let dispatch = Dispatch::new(bounds);
    let mut sent = Vec::new();
    for n in 0..240 {
        for priority in Priority::ALL {
            let ready = Ready {
                lane: Lane::Free { priority, retry: false },
                id: DeliveryId::new(Time::from_millis(n), &[priority as u8; 10]),
                ..ready(1, 1)
            };
            sent.extend(offer(&dispatch, ready, 100).unwrap().start);
        }
    }
    let mut counts = [0; 3];
    for at in 0..210 {
        let next: Ready = Ready::clone(&sent[at]);
        let Lane::Free { priority, .. } = next.lane else { unreachable!() };
        counts[priority as usize] += 1;
        sent.extend(finish(&dispatch, &next).start);
    }
    assert_eq!(counts, [160, 40, 10], "16 : 4 : 1");
}

#[test]
fn retries_never_take_the_last_slots_nor_the_last_room() {
    let bounds = Bounds { max_in_flight: 10, max_items: 100, lane_items: 100, ..BOUNDS };
    let dispatch = Dispatch::new(bounds);
    let (mut sent, mut taken) = (0, 0);
    for n in 1..=100 {
        let lane = Lane::Free { priority: Priority::High, retry: true };
        if let Some(moves) = offer(&dispatch, Ready { lane, ..ready(n, n) }, 1) {
            taken += 1;
            sent += moves.start.len();
        }
    }
    assert_eq!((sent, taken), (5, 50), "half of either");
    assert_eq!(offer(&dispatch, ready(200, 200), 1).unwrap().start.len(), 1, "what is fresh goes at once");
}

#[test]
fn an_order_is_sent_one_by_one_and_waits_for_one_that_failed() {
    let dispatch = Dispatch::new(BOUNDS);
    let ordered = |n| Ready { lane: Lane::Ordered("a".into()), ..ready(1, n) };
    let looked = look(&dispatch, &ordered(1));
    let first = dispatch.claimed(&looked, vec![ordered(1), ordered(2), ordered(3)], false).start;
    assert_eq!(first.len(), 1);
    assert!(dispatch.answered(webhook(1), first[0].id).start.is_empty(), "not before its end is stored");
    let second = dispatch.settled(&first[0], false).start;
    assert_eq!(second[0].id, ordered(2).id);
    dispatch.answered(webhook(1), second[0].id);
    let moves = dispatch.settled(&second[0], true);
    assert!(moves.start.is_empty());
    assert_eq!(moves.hand_back[0].id, ordered(3).id, "what comes after it goes back");
    dispatch.unreserve(webhook(1), &ordered(3).lane, 1, ordered(3).event.weight());
    assert_eq!(dispatch.load(), empty(BOUNDS));
}

#[test]
fn nothing_passes_one_of_an_order_that_is_not_wanted_now() {
    let dispatch = Dispatch::new(BOUNDS);
    let ordered = |n| Ready { lane: Lane::Ordered("a".into()), ..ready(1, n) };
    let looked = look(&dispatch, &ordered(1));
    let first = dispatch.claimed(&looked, vec![ordered(1), ordered(2)], false).start.remove(0);
    let how = Refusal::Alone(Time::from_millis(50));
    let moves = dispatch.refuse(vec![Refused { ready: first, how }]);
    assert!(moves.start.is_empty());
    let back: Vec<_> = moves.hand_back.iter().map(|ready| (ready.id, ready.due.millis())).collect();
    assert_eq!(back, [(ordered(1).id, 50), (ordered(2).id, 1)]);
}

#[test]
fn what_is_held_back_for_a_moment_stays_first() {
    let dispatch = Dispatch::new(BOUNDS);
    let at = |millis| Time::from_millis(millis);
    let mut sent = offer(&dispatch, ready(1, 1), 2).unwrap().start;
    sent.extend(offer(&dispatch, ready(1, 2), 2).unwrap().start);
    offer(&dispatch, ready(1, 3), 2).unwrap();
    let refused =
        sent.into_iter().map(|ready| Refused { ready, how: Refusal::Soon(Scope::Webhook, at(50)) }).collect();
    assert!(dispatch.refuse(refused).start.is_empty());
    assert_eq!((dispatch.load().unsettled, dispatch.next_wake()), (0, Some(at(50))), "no slot is held");
    assert!(offer(&dispatch, ready(1, 4), 2).unwrap().start.is_empty());
    assert!(dispatch.wake_up(at(49)).start.is_empty());
    let ids: Vec<_> = dispatch.wake_up(at(50)).start.iter().map(|ready| ready.id).collect();
    assert_eq!(ids, [ready(1, 1).id, ready(1, 2).id]);
}

#[test]
fn a_tenants_limit_holds_all_its_webhooks_and_nobody_elses() {
    let dispatch = Dispatch::new(BOUNDS);
    let sent = offer(&dispatch, ready(1, 1), 2).unwrap().start;
    let how = Refusal::Soon(Scope::Tenant, Time::from_millis(50));
    let ready_1 = sent.into_iter().next().unwrap();
    assert!(dispatch.refuse(vec![Refused { ready: ready_1, how }]).start.is_empty());
    assert!(offer(&dispatch, ready(2, 2), 2).unwrap().start.is_empty());
    assert_eq!(offer(&dispatch, of_tenant("other", ready(3, 3)), 2).unwrap().start.len(), 1);
    assert_eq!(dispatch.wake_up(Time::from_millis(50)).start.len(), 2);
}

#[test]
fn what_is_parked_goes_back_and_nothing_comes_in() {
    let dispatch = Dispatch::new(BOUNDS);
    let sent = offer(&dispatch, ready(1, 1), 1).unwrap().start;
    offer(&dispatch, ready(1, 2), 1).unwrap();
    let until = Time::from_millis(100);
    let back = dispatch.park(whom(&ready(1, 1), 1), until).hand_back;
    assert_eq!(back.len(), 1);
    assert!(offer(&dispatch, ready(1, 3), 1).is_none(), "it is born waiting");
    let looked = look(&dispatch, &ready(1, 3));
    assert_eq!(looked.room, 0);
    dispatch.claimed(&looked, vec![], false);
    dispatch.unreserve(webhook(1), &FRESH, 1, back[0].event.weight());
    assert!(finish(&dispatch, &sent[0]).start.is_empty(), "what was under way is let finish");
    dispatch.wake_up(until);
    assert_eq!(offer(&dispatch, ready(1, 4), 1).unwrap().start.len(), 1);
}

#[test]
fn pause_planned_by_a_wrong_clock_is_moved_with_it() {
    let dispatch = Dispatch::new(BOUNDS);
    let (wrong, right) = (Time::from_millis(600_000), Time::from_millis(100));
    dispatch.park(whom(&ready(1, 1), 1), wrong + Duration::from_millis(100));
    dispatch.park(whom(&ready(2, 2), 1), Time::from_millis(50));
    dispatch.set_back(&SetBack { from: wrong, by: Duration::from_millis(600_000) });
    dispatch.wake_up(Time::from_millis(99));
    assert!(offer(&dispatch, ready(1, 3), 1).is_none());
    assert_eq!(dispatch.next_wake(), Some(right));
    dispatch.wake_up(right);
    assert_eq!(offer(&dispatch, ready(1, 3), 1).unwrap().start.len(), 1);
}

#[test]
fn a_trickle_lets_few_in() {
    let dispatch = Dispatch::new(BOUNDS);
    dispatch.unpark(whom(&ready(1, 1), 4), Some(2));
    assert!(offer(&dispatch, ready(1, 1), 4).is_some());
    assert!(offer(&dispatch, ready(1, 2), 4).is_some());
    assert!(offer(&dispatch, ready(1, 3), 4).is_none());
    dispatch.unpark(whom(&ready(1, 1), 4), None);
    assert!(offer(&dispatch, ready(1, 3), 4).is_some());
}

#[test]
fn a_full_lane_is_born_waiting_and_refilled_in_order() {
    let dispatch = Dispatch::new(Bounds { max_in_flight: 100, max_items: 1_000, ..BOUNDS });
    let sent = offer(&dispatch, ready(1, 1), 1).unwrap().start;
    for n in 2..=4 {
        assert!(offer(&dispatch, ready(1, n), 1).is_some());
    }
    assert!(offer(&dispatch, ready(1, 5), 1).is_none(), "the lane is full");
    assert!(offer(&dispatch, ready(2, 9), 1).is_some(), "others are not");
    // It was born waiting: its lane is behind from now on.
    assert!(!dispatch.fell_behind(webhook(1), &FRESH).refill, "but there is no room yet");
    let second = finish(&dispatch, &sent[0]).start;
    assert!(offer(&dispatch, ready(1, 6), 1).is_none(), "nothing newer overtakes what waits");
    let refill = finish(&dispatch, &second[0]).refill;
    assert!(refill, "half of the lane is free");
    let rooms = dispatch.take_hungry();
    assert_eq!(rooms, [room(webhook(1), 2)]);
    dispatch.claimed(&rooms[0], vec![ready(1, 5)], false);
    assert!(offer(&dispatch, ready(1, 7), 1).is_some(), "caught up");
}

#[test]
fn a_lane_that_was_asked_for_without_room_is_not_forgotten() {
    let dispatch = Dispatch::new(BOUNDS);
    dispatch.park(whom(&ready(1, 1), 1), Time::from_millis(5));
    let looked = look(&dispatch, &ready(1, 1));
    assert_eq!(looked.room, 0);
    // What parked it is over before the store has answered that the lane is held for this node.
    dispatch.wake_up(Time::from_millis(5));
    dispatch.claimed(&looked, vec![], true);
    assert_eq!(dispatch.take_hungry().len(), 1);
}

#[test]
fn a_failed_claim_is_made_again() {
    let dispatch = Dispatch::new(BOUNDS);
    let looked = look(&dispatch, &ready(1, 1));
    dispatch.claimed(&looked, vec![], true);
    let rooms = dispatch.take_hungry();
    assert_eq!(rooms.len(), 1);
    dispatch.claim_failed(&rooms);
    assert_eq!(dispatch.take_hungry(), rooms);
}

#[test]
fn tickets_get_room_but_pass_nothing_that_is_older() {
    let dispatch = Dispatch::new(BOUNDS);
    let first = ready(1, 1);
    assert_eq!(dispatch.reserve_for_tickets(whom(&first, 2), &FRESH, 100), 4, "as much as a lane may hold");
    let moves = dispatch.taken(&room(webhook(1), 4), vec![ready(1, 1), ready(1, 2), ready(1, 3)]);
    assert_eq!(moves.start.len(), 2);
    assert_eq!(dispatch.load().items, 3, "what was not there to be taken needs no room");
    dispatch.fell_behind(webhook(1), &FRESH);
    assert_eq!(dispatch.reserve_for_tickets(whom(&first, 2), &FRESH, 1), 0, "the store has older ones");
    assert!(!dispatch.is_crowded());
    assert_eq!(dispatch.reserve_for_tickets(whom(&ready(2, 9), 2), &FRESH, 100), 4);
    assert!(dispatch.is_crowded());
    dispatch.claim_failed(&[room(webhook(2), 4)]);
    assert!(!dispatch.is_crowded());
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
    dispatch.settled(&queued, false);
    assert_eq!(dispatch.load(), empty(BOUNDS));
}

/// What the property below does with what dispatch gives out.
#[derive(Default)]
struct Desk {
    under_way: Vec<Ready>,
    started: std::collections::HashSet<DeliveryId>,
}

impl Desk {
    fn take(&mut self, dispatch: &Dispatch, moves: Moves) {
        for back in moves.hand_back {
            self.started.remove(&back.id);
            dispatch.unreserve(back.webhook, &back.lane, 1, back.event.weight());
        }
        for ready in moves.start {
            assert!(self.started.insert(ready.id), "sent twice at once");
            let before = self.under_way.iter().filter(|other| {
                other.webhook == ready.webhook && other.lane == ready.lane && ready.lane.is_ordered()
            });
            assert_eq!(before.count(), 0, "two of an order at once");
            self.under_way.push(ready);
        }
    }

    fn pick(&mut self, which: u8) -> Option<Ready> {
        let at = usize::from(which) % self.under_way.len().max(1);
        let ready = (at < self.under_way.len()).then(|| self.under_way.remove(at))?;
        self.started.remove(&ready.id);
        Some(ready)
    }
}

fn made(which: u8, n: u16) -> Ready {
    let lane = match n % 4 {
        0 => Lane::Ordered("k".into()),
        1 => Lane::Free { priority: Priority::Low, retry: true },
        _ => FRESH,
    };
    let made = Ready { id: DeliveryId::new(Time::from_millis(n.into()), &[9; 10]), lane, ..ready(which, 1) };
    if which == 3 { of_tenant("other", made) } else { made }
}

proptest! {
    /// Whatever happens in whatever order: the bounds hold, and nothing is left over or sent twice.
    #[test]
    fn bounds_hold_and_the_books_balance(
        steps in proptest::collection::vec((0u8..13, 0u8..4), 1..300),
        host_max_in_flight in prop_oneof![1..4usize, Just(usize::MAX)],
    ) {
        let dispatch = Dispatch::new(Bounds { host_max_in_flight, ..BOUNDS });
        let mut challenges = Vec::new();
        let mut desk = Desk::default();
        let mut term = Term::new("test", redrive_store::Epoch(1), 0);
        let (mut n, mut now) = (0u16, 0i64);
        for (what, which) in steps {
            n += 1;
            let ready = Ready { term: term.clone(), ..made(which, n) };
            let moves = match what {
                // An order comes from the store alone.
                0 | 1 if !ready.lane.is_ordered() => offer(&dispatch, ready, 2).unwrap_or_default(),
                2 => desk.pick(which).map(|done| finish(&dispatch, &done)).unwrap_or_default(),
                3 => match desk.pick(which) {
                    Some(failed) => {
                        let moves = dispatch.answered(failed.webhook, failed.id);
                        desk.take(&dispatch, moves);
                        dispatch.settled(&failed, true)
                    }
                    None => Moves::default(),
                },
                // Tickets name three, of which one is still there; or the store fails.
                11 if !ready.lane.is_ordered() => {
                    let most = dispatch.reserve_for_tickets(whom(&ready, 2), &ready.lane, 3);
                    let key = LaneKey { webhook: ready.webhook, lane: ready.lane.clone() };
                    match (LaneRoom::new(key, most), most) {
                        (_, 0) => Moves::default(),
                        (room, _) if n.is_multiple_of(5) => {
                            dispatch.claim_failed(&[room]);
                            Moves::default()
                        }
                        (room, _) => dispatch.taken(&room, vec![ready]),
                    }
                }
                // The scheduler finds something due in a lane, and perhaps more than fits.
                4 | 5 => {
                    let looked = look(&dispatch, &ready);
                    let found = if looked.room > 0 { vec![ready] } else { vec![] };
                    dispatch.claimed(&looked, found, n.is_multiple_of(2))
                }
                6 => {
                    for room in dispatch.take_hungry() {
                        let moves = dispatch.claimed(&room, vec![], which == 0);
                        desk.take(&dispatch, moves);
                    }
                    Moves::default()
                }
                7 => {
                    dispatch.claim_failed(&dispatch.take_hungry());
                    Moves::default()
                }
                8 => match desk.pick(which) {
                    Some(ready) => {
                        let until = Time::from_millis(now + 3);
                        let how = match n % 7 {
                            0 => Refusal::Soon(Scope::Webhook, until),
                            1 => Refusal::Soon(Scope::Tenant, until),
                            2 => Refusal::Soon(Scope::Node, until),
                            3 => Refusal::Alone(until),
                            4 => Refusal::NoProbe,
                            5 => Refusal::Silence,
                            _ => Refusal::Park(until),
                        };
                        dispatch.refuse(vec![Refused { ready, how }])
                    }
                    None => Moves::default(),
                },
                9 => match n % 5 {
                    0 => dispatch.surrender(ready.webhook),
                    1 => dispatch.set_caps(whom(&ready, usize::from(which) + 1)),
                    2 => dispatch.speak(),
                    3 => {
                        let looked = look(&dispatch, &ready);
                        if looked.room == 0 {
                            dispatch.decline(&looked.key);
                        } else {
                            dispatch.claim_failed(&[looked]);
                        }
                        Moves::default()
                    }
                    _ => {
                        std::mem::replace(&mut term, Term::new("test", redrive_store::Epoch(2), 0)).end();
                        dispatch.throw_away()
                    }
                },
                // A challenge begins or ends, or a webhook's URL changes to another host.
                12 => match n % 3 {
                    0 => {
                        let (tenant, host) = (ready.event.tenant.clone(), whom(&ready, 2).host);
                        if dispatch.take_host(&tenant, host) {
                            challenges.push((tenant, host));
                        }
                        Moves::default()
                    }
                    1 => {
                        let ended = challenges.pop();
                        ended.map(|(tenant, host)| dispatch.free_host(&tenant, host)).unwrap_or_default()
                    }
                    _ => dispatch.set_caps(Whom { host: HostKey::from_host("c"), ..whom(&ready, 2) }),
                },
                _ => {
                    now += 1;
                    dispatch.wake_up(Time::from_millis(now))
                }
            };
            desk.take(&dispatch, moves);
            let load = dispatch.load();
            prop_assert!(load.items <= BOUNDS.max_items && load.unsettled <= BOUNDS.max_in_flight);
            prop_assert_eq!(load.unsettled, desk.under_way.len());
            let hosts = dispatch.state.lock().hosts.counts();
            prop_assert!(hosts.iter().all(|(_, in_flight, _)| *in_flight <= host_max_in_flight), "{:?}", hosts);
            let counted: usize = hosts.iter().map(|(_, in_flight, _)| in_flight).sum();
            prop_assert_eq!(counted, desk.under_way.len() + challenges.len());
        }
        for (tenant, host) in challenges {
            let moves = dispatch.free_host(&tenant, host);
            desk.take(&dispatch, moves);
        }
        let moves = dispatch.speak();
        desk.take(&dispatch, moves);
        let moves = dispatch.wake_up(Time::from_millis(now + 1_000));
        desk.take(&dispatch, moves);
        for which in 0..4 {
            let moves = dispatch.unpark(whom(&made(which, 1), 2), None);
            desk.take(&dispatch, moves);
        }
        // Memory may not hold all at once: each lane that is behind gets its turn to find that there is no more.
        for _ in 0..50 {
            while let Some(done) = desk.pick(0) {
                let moves = finish(&dispatch, &done);
                desk.take(&dispatch, moves);
            }
            for room in dispatch.take_hungry() {
                let moves = dispatch.claimed(&room, vec![], false);
                desk.take(&dispatch, moves);
            }
        }
        prop_assert!(!dispatch.store_works().refill, "nothing is left to ask the store for");
        prop_assert_eq!(dispatch.load(), empty(BOUNDS));
        let state = dispatch.state.lock();
        prop_assert!(state.hooks.is_empty(), "idle webhooks cost nothing: {:?}", state.hooks);
        prop_assert!(state.hosts.is_empty(), "idle hosts cost nothing: {:?}", state.hosts);
    }
}

#[test]
fn a_cancel_between_commit_and_admission_is_not_lost() {
    let dispatch = Dispatch::new(BOUNDS);
    let (early, other) = (ready(1, 1), ready(1, 2));
    for one in [&early, &other] {
        assert!(dispatch.reserve(whom(one, 2), &one.lane, one.event.weight()));
    }
    assert!(dispatch.cancel(early.webhook, early.id, "enough".into()).is_none());
    let moves = dispatch.admit([early.clone(), other.clone()]);
    assert_eq!(moves.start.iter().map(|one| one.id).collect::<Vec<_>>(), [other.id]);
    assert_eq!(moves.hand_back.iter().map(|one| one.id).collect::<Vec<_>>(), [early.id]);
    dispatch.unreserve(early.webhook, &early.lane, 1, early.event.weight());
    finish(&dispatch, &other);
    assert_eq!(dispatch.load(), empty(BOUNDS));
}

#[test]
fn a_cancel_during_a_claim_is_not_lost() {
    let dispatch = Dispatch::new(BOUNDS);
    let (early, other) = (ready(1, 1), ready(1, 2));
    let room = look(&dispatch, &early);
    assert!(dispatch.take_cancelled(early.webhook, early.id).is_none());
    let moves = dispatch.claimed(&room, vec![early.clone(), other.clone()], false);
    assert_eq!(moves.start.iter().map(|one| one.id).collect::<Vec<_>>(), [other.id]);
    assert_eq!(moves.hand_back.iter().map(|one| one.id).collect::<Vec<_>>(), [early.id]);
    dispatch.unreserve(early.webhook, &early.lane, 1, early.event.weight());
    finish(&dispatch, &other);
    assert_eq!(dispatch.load(), empty(BOUNDS));
}

#[test]
fn early_cancels_are_remembered_only_while_capacity_is_reserved() {
    let dispatch = Dispatch::new(BOUNDS);
    let (known, unknown) = (ready(1, 1), ready(1, 2));
    assert!(dispatch.cancel(unknown.webhook, unknown.id, "enough".into()).is_none());
    assert_eq!(dispatch.state.lock().cancelled_early.len(), 0, "nothing of the webhook is expected");
    assert!(dispatch.reserve(whom(&known, 2), &known.lane, known.event.weight()));
    assert!(dispatch.cancel(unknown.webhook, unknown.id, "enough".into()).is_none());
    assert_eq!(dispatch.state.lock().cancelled_early.len(), 1);
    let sent = dispatch.admit([known]).start;
    finish(&dispatch, &sent[0]);
    assert_eq!(dispatch.state.lock().cancelled_early.len(), 0);
}
