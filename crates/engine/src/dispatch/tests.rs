//! Tests of the dispatcher's limits, scheduling and refills.

mod hosts;
mod others;

use std::time::Duration;

use bytes::Bytes;
use proptest::prelude::*;
use redrive_core::{
    DeliveryId, EventId, TenantId, Time, WebhookId,
    cluster::clock_discipline::ClockStep,
    delivery::lane::{Lane, Priority},
    dispatch::gate::{self, GateDecision, GateInput, LimitScope, Slots},
    event::{Event, PayloadFormat},
    protection::breaker::CircuitDecision,
    security::egress_rules::HostKey,
    webhook::WebhookState,
};
use redrive_store::{LaneCapacity, LaneKey};

use super::*;
use crate::cluster::membership::NodeEpoch;

const LIMITS: DispatchLimits = DispatchLimits {
    max_unsettled: 5,
    max_deliveries: 10,
    max_bytes: 1 << 20,
    max_lane_deliveries: 4,
    host_max_in_flight: usize::MAX,
};
const FRESH: Lane = Lane::Unordered { priority: Priority::Normal, retry: false };

fn webhook(n: u8) -> WebhookId {
    WebhookId::new(Time::from_millis(1), &[n; 10])
}

fn delivery(lane: u8, n: u8) -> LeasedDelivery {
    let at = Time::from_millis(1);
    let event = Event {
        id: EventId::new(at, &[n; 10]),
        tenant_id: TenantId::default(),
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
    LeasedDelivery {
        id: DeliveryId::new(at, &[n; 10]),
        epoch: NodeEpoch::new("test", redrive_store::Epoch(1), 0),
        webhook_id: webhook(lane),
        lane: FRESH,
        event: Arc::new(event),
        format: PayloadFormat::Envelope,
        attempt: 1,
        created_at: at,
        due: at,
        abnormal_releases: 0,
        crash_count: 0,
        publish_started_at: None,
    }
}

/// Returns the webhook and tenant of a delivery, with this limit.
fn webhook_limits(delivery: &LeasedDelivery, max_in_flight: usize) -> WebhookLimits<'_> {
    let (webhook_id, tenant_id) = (delivery.webhook_id, &delivery.event.tenant_id);
    let host = HostKey::from_host(if webhook_id < self::webhook(2) { "a" } else { "b" });
    WebhookLimits { webhook_id, tenant_id, max_in_flight, tenant_max_unsettled: usize::MAX, host }
}

/// Publishes one delivery as `publish` does. Returns `None` if there is no capacity.
fn offer(
    dispatch: &DispatchQueues,
    delivery: LeasedDelivery,
    max_in_flight: usize,
) -> Option<DispatchActions> {
    let bytes = delivery.event.memory_bytes();
    dispatch
        .reserve(webhook_limits(&delivery, max_in_flight), &delivery.lane, bytes)
        .then(|| dispatch.enqueue_published([delivery]))
}

/// Reserves capacity for a lane with due deliveries, as the claim loop does.
fn poll(dispatch: &DispatchQueues, delivery: &LeasedDelivery) -> LaneCapacity {
    dispatch.reserve_lane(webhook_limits(delivery, 2), delivery.lane.clone())
}

fn capacity(webhook_id: WebhookId, capacity: usize) -> LaneCapacity {
    LaneCapacity::new(LaneKey { webhook_id, lane: FRESH }, capacity)
}

fn finish(dispatch: &DispatchQueues, delivery: &LeasedDelivery) -> DispatchActions {
    let mut actions = dispatch.free_local_webhook_slot(delivery.webhook_id, delivery.id);
    let more = dispatch.settle(delivery, false);
    actions.start.extend(more.start);
    actions.refill |= more.refill;
    actions
}

fn empty(limits: DispatchLimits) -> Load {
    Load { deliveries: 0, bytes: 0, unsettled: 0, slots: limits.max_unsettled }
}

#[test]
fn webhook_in_flight_limit_holds() {
    let dispatch = DispatchQueues::new(LIMITS);
    let first = offer(&dispatch, delivery(1, 1), 1).unwrap();
    assert_eq!(first.start.len(), 1);
    assert!(offer(&dispatch, delivery(1, 2), 1).unwrap().start.is_empty());
    assert_eq!(dispatch.memory_state(webhook(1), delivery(1, 1).id), Some(MemoryState::Started));
    assert_eq!(dispatch.memory_state(webhook(1), delivery(1, 2).id), Some(MemoryState::Queued));
    // The webhook's slot is free after the response, before the outcome is stored.
    let next = dispatch.free_local_webhook_slot(webhook(1), first.start[0].id);
    assert_eq!(next.start[0].id, delivery(1, 2).id);
    assert_eq!(dispatch.load().unsettled, 2, "the node's slots are not free yet");
}

#[test]
fn tenant_leaves_slots_until_outcomes_are_stored() {
    let dispatch = DispatchQueues::new(LIMITS);
    let sent: Vec<_> = (1..=6).flat_map(|n| offer(&dispatch, delivery(n, n), 5).unwrap().start).collect();
    assert_eq!(sent.len(), 4, "one of five slots stays free for other tenants");
    assert!(dispatch.free_local_webhook_slot(sent[0].webhook_id, sent[0].id).start.is_empty());
    assert_eq!(offer(&dispatch, with_tenant("other", delivery(9, 9)), 5).unwrap().start.len(), 1);
    let next = dispatch.settle(&sent[0], false).start.len() + dispatch.settle(&sent[1], false).start.len();
    assert!(next >= 1);
}

fn with_tenant(tenant: &str, delivery: LeasedDelivery) -> LeasedDelivery {
    let event = Event { tenant_id: TenantId::parse(tenant).unwrap(), ..Event::clone(&delivery.event) };
    LeasedDelivery { event: Arc::new(event), ..delivery }
}

#[test]
fn tenant_in_memory_is_counted_by_webhook_and_priority() {
    let dispatch = DispatchQueues::new(DispatchLimits {
        max_unsettled: 100,
        max_deliveries: 100,
        max_lane_deliveries: 100,
        ..LIMITS
    });
    let urgent = Lane::Unordered { priority: Priority::High, retry: true };
    let offered = [
        delivery(1, 1),
        delivery(1, 2),
        LeasedDelivery { lane: urgent, ..delivery(1, 3) },
        LeasedDelivery { lane: Lane::Ordered("a".into()), ..delivery(1, 4) },
        delivery(2, 5),
        with_tenant("other", delivery(3, 6)),
        with_tenant("other", delivery(3, 7)),
    ];
    for delivery in offered {
        assert!(offer(&dispatch, delivery, 1).is_some());
    }
    let in_memory = dispatch.tenant_in_memory(&TenantId::default());
    assert_eq!(in_memory, TenantInMemory { queued: vec![(webhook(1), [1, 2, 0])], unsettled: 2 });
    let others = dispatch.tenant_in_memory(&TenantId::parse("other").unwrap());
    assert_eq!(others, TenantInMemory { queued: vec![(webhook(3), [0, 1, 0])], unsettled: 1 });
    assert_eq!(dispatch.tenant_in_memory(&TenantId::parse("unknown").unwrap()), TenantInMemory::default());
    let expected = [(TenantId::default(), 3), (TenantId::parse("other").unwrap(), 1)];
    assert_eq!(dispatch.queued_by_tenant(), expected.into());
}

#[test]
fn tenant_in_flight_limit_holds() {
    let dispatch = DispatchQueues::new(DispatchLimits { max_unsettled: 100, max_deliveries: 100, ..LIMITS });
    let mut sent = 0;
    for n in 1..=5 {
        let delivery = delivery(n, n);
        let limits = WebhookLimits { tenant_max_unsettled: 3, ..webhook_limits(&delivery, 5) };
        assert!(dispatch.reserve(limits, &delivery.lane, delivery.event.memory_bytes()));
        sent += dispatch.enqueue_published([delivery]).start.len();
    }
    assert_eq!(sent, 3);
}

#[test]
fn webhooks_take_turns() {
    let limits = DispatchLimits { max_unsettled: 1, ..LIMITS };
    let dispatch = DispatchQueues::new(limits);
    let mut sent = offer(&dispatch, delivery(1, 1), 5).unwrap().start;
    for (lane, n) in [(1, 2), (1, 3), (2, 4)] {
        assert!(offer(&dispatch, delivery(lane, n), 5).unwrap().start.is_empty());
    }
    let mut order = Vec::new();
    while let Some(delivery) = sent.pop() {
        order.push(delivery.webhook_id);
        sent.extend(finish(&dispatch, &delivery).start);
    }
    assert_eq!(
        order,
        [webhook(1), webhook(1), webhook(2), webhook(1)],
        "the second webhook does not wait for all deliveries of the first"
    );
    assert_eq!(dispatch.load(), empty(limits));
}

#[test]
fn tenants_take_turns_regardless_of_webhook_count() {
    let limits = DispatchLimits { max_unsettled: 1, max_deliveries: 1_000, ..LIMITS };
    let dispatch = DispatchQueues::new(limits);
    let mut sent = Vec::new();
    for n in 1..=20 {
        sent.extend(offer(&dispatch, delivery(n, n), 5).unwrap().start);
    }
    sent.extend(offer(&dispatch, with_tenant("other", delivery(100, 100)), 5).unwrap().start);
    let mut at = 0;
    while sent[at].event.tenant_id.as_str() != "other" {
        sent.extend(finish(&dispatch, &sent[at].clone()).start);
        at += 1;
    }
    assert!(at <= 2, "the only delivery of the other tenant waited for {at}");
}

#[test]
fn priorities_share_by_weight_without_starvation() {
    let limits = DispatchLimits {
        max_unsettled: 1,
        max_deliveries: 100_000,
        max_lane_deliveries: 1_000,
        max_bytes: 1 << 30,
        ..LIMITS
    };
    let dispatch = DispatchQueues::new(limits);
    let mut sent = Vec::new();
    for n in 0..240 {
        for priority in Priority::ALL {
            let delivery = LeasedDelivery {
                lane: Lane::Unordered { priority, retry: false },
                id: DeliveryId::new(Time::from_millis(n), &[priority as u8; 10]),
                ..delivery(1, 1)
            };
            sent.extend(offer(&dispatch, delivery, 100).unwrap().start);
        }
    }
    let mut counts = [0; 3];
    for at in 0..210 {
        let next: LeasedDelivery = LeasedDelivery::clone(&sent[at]);
        let Lane::Unordered { priority, .. } = next.lane else { unreachable!() };
        counts[priority as usize] += 1;
        sent.extend(finish(&dispatch, &next).start);
    }
    assert_eq!(counts, [160, 40, 10], "16 : 4 : 1");
}

#[test]
fn retries_never_take_last_slots_or_capacity() {
    let limits =
        DispatchLimits { max_unsettled: 10, max_deliveries: 100, max_lane_deliveries: 100, ..LIMITS };
    let dispatch = DispatchQueues::new(limits);
    let (mut sent, mut taken) = (0, 0);
    for n in 1..=100 {
        let lane = Lane::Unordered { priority: Priority::High, retry: true };
        if let Some(actions) = offer(&dispatch, LeasedDelivery { lane, ..delivery(n, n) }, 1) {
            taken += 1;
            sent += actions.start.len();
        }
    }
    assert_eq!((sent, taken), (5, 50), "half of slots and of capacity");
    assert_eq!(
        offer(&dispatch, delivery(200, 200), 1).unwrap().start.len(),
        1,
        "a fresh delivery starts immediately"
    );
}

#[test]
fn ordered_lane_sends_one_at_a_time_and_waits_for_failed() {
    let dispatch = DispatchQueues::new(LIMITS);
    let ordered = |n| LeasedDelivery { lane: Lane::Ordered("a".into()), ..delivery(1, n) };
    let lane = poll(&dispatch, &ordered(1));
    let first = dispatch.enqueue_claimed(&lane, vec![ordered(1), ordered(2), ordered(3)], false).start;
    assert_eq!(first.len(), 1);
    assert!(
        dispatch.free_local_webhook_slot(webhook(1), first[0].id).start.is_empty(),
        "not before its outcome is stored"
    );
    let second = dispatch.settle(&first[0], false).start;
    assert_eq!(second[0].id, ordered(2).id);
    dispatch.free_local_webhook_slot(webhook(1), second[0].id);
    let actions = dispatch.settle(&second[0], true);
    assert!(actions.start.is_empty());
    assert_eq!(actions.release[0].id, ordered(3).id, "its successors are released");
    dispatch.unreserve(webhook(1), &ordered(3).lane, 1, ordered(3).event.memory_bytes());
    assert_eq!(dispatch.load(), empty(LIMITS));
}

#[test]
fn deferred_delivery_of_ordered_lane_is_not_overtaken() {
    let dispatch = DispatchQueues::new(LIMITS);
    let ordered = |n| LeasedDelivery { lane: Lane::Ordered("a".into()), ..delivery(1, n) };
    let lane = poll(&dispatch, &ordered(1));
    let first = dispatch.enqueue_claimed(&lane, vec![ordered(1), ordered(2)], false).start.remove(0);
    let deferral = Deferral::ReleaseOne(Time::from_millis(50));
    let actions = dispatch.defer(vec![DeferredDelivery { delivery: first, deferral }]);
    assert!(actions.start.is_empty());
    let back: Vec<_> = actions.release.iter().map(|delivery| (delivery.id, delivery.due.millis())).collect();
    assert_eq!(back, [(ordered(1).id, 50), (ordered(2).id, 1)]);
}

#[test]
fn held_deliveries_stay_first_in_their_lane() {
    let dispatch = DispatchQueues::new(LIMITS);
    let at = |millis| Time::from_millis(millis);
    let mut sent = offer(&dispatch, delivery(1, 1), 2).unwrap().start;
    sent.extend(offer(&dispatch, delivery(1, 2), 2).unwrap().start);
    offer(&dispatch, delivery(1, 3), 2).unwrap();
    let deferred = sent
        .into_iter()
        .map(|delivery| DeferredDelivery { delivery, deferral: Deferral::Hold(LimitScope::Webhook, at(50)) })
        .collect();
    assert!(dispatch.defer(deferred).start.is_empty());
    assert_eq!((dispatch.load().unsettled, dispatch.next_wake()), (0, Some(at(50))), "no slot is held");
    assert!(offer(&dispatch, delivery(1, 4), 2).unwrap().start.is_empty());
    assert!(dispatch.expire_blocks(at(49)).start.is_empty());
    let ids: Vec<_> = dispatch.expire_blocks(at(50)).start.iter().map(|delivery| delivery.id).collect();
    assert_eq!(ids, [delivery(1, 1).id, delivery(1, 2).id]);
}

#[test]
fn tenant_hold_affects_only_its_own_webhooks() {
    let dispatch = DispatchQueues::new(LIMITS);
    let sent = offer(&dispatch, delivery(1, 1), 2).unwrap().start;
    let deferral = Deferral::Hold(LimitScope::Tenant, Time::from_millis(50));
    let ready_1 = sent.into_iter().next().unwrap();
    assert!(dispatch.defer(vec![DeferredDelivery { delivery: ready_1, deferral }]).start.is_empty());
    assert!(offer(&dispatch, delivery(2, 2), 2).unwrap().start.is_empty());
    assert_eq!(offer(&dispatch, with_tenant("other", delivery(3, 3)), 2).unwrap().start.len(), 1);
    assert_eq!(dispatch.expire_blocks(Time::from_millis(50)).start.len(), 2);
}

#[test]
fn parked_webhook_releases_queue_and_accepts_nothing() {
    let dispatch = DispatchQueues::new(LIMITS);
    let sent = offer(&dispatch, delivery(1, 1), 1).unwrap().start;
    offer(&dispatch, delivery(1, 2), 1).unwrap();
    let until = Time::from_millis(100);
    let back = dispatch.park(webhook_limits(&delivery(1, 1), 1), until).release;
    assert_eq!(back.len(), 1);
    assert!(
        offer(&dispatch, delivery(1, 3), 1).is_none(),
        "a new delivery of a parked webhook waits in the store"
    );
    let lane = poll(&dispatch, &delivery(1, 3));
    assert_eq!(lane.max_deliveries, 0);
    dispatch.enqueue_claimed(&lane, vec![], false);
    dispatch.unreserve(webhook(1), &FRESH, 1, back[0].event.memory_bytes());
    assert!(finish(&dispatch, &sent[0]).start.is_empty(), "the request in flight finishes");
    dispatch.expire_blocks(until);
    assert_eq!(offer(&dispatch, delivery(1, 4), 1).unwrap().start.len(), 1);
}

#[test]
fn block_computed_from_wrong_clock_is_adjusted() {
    let dispatch = DispatchQueues::new(LIMITS);
    let (wrong, right) = (Time::from_millis(600_000), Time::from_millis(100));
    dispatch.park(webhook_limits(&delivery(1, 1), 1), wrong + Duration::from_millis(100));
    dispatch.park(webhook_limits(&delivery(2, 2), 1), Time::from_millis(50));
    dispatch.adjust_for_clock_step(&ClockStep { from: wrong, by: Duration::from_millis(600_000) });
    dispatch.expire_blocks(Time::from_millis(99));
    assert!(offer(&dispatch, delivery(1, 3), 1).is_none());
    assert_eq!(dispatch.next_wake(), Some(right));
    dispatch.expire_blocks(right);
    assert_eq!(offer(&dispatch, delivery(1, 3), 1).unwrap().start.len(), 1);
}

#[test]
fn probe_limit_caps_queued_deliveries() {
    let dispatch = DispatchQueues::new(LIMITS);
    dispatch.unpark(webhook_limits(&delivery(1, 1), 4), Some(2));
    assert!(offer(&dispatch, delivery(1, 1), 4).is_some());
    assert!(offer(&dispatch, delivery(1, 2), 4).is_some());
    assert!(offer(&dispatch, delivery(1, 3), 4).is_none());
    dispatch.unpark(webhook_limits(&delivery(1, 1), 4), None);
    assert!(offer(&dispatch, delivery(1, 3), 4).is_some());
}

#[test]
fn delivery_of_full_lane_waits_and_is_refilled_in_order() {
    let dispatch =
        DispatchQueues::new(DispatchLimits { max_unsettled: 100, max_deliveries: 1_000, ..LIMITS });
    let sent = offer(&dispatch, delivery(1, 1), 1).unwrap().start;
    for n in 2..=4 {
        assert!(offer(&dispatch, delivery(1, n), 1).is_some());
    }
    assert!(offer(&dispatch, delivery(1, 5), 1).is_none(), "the lane is full");
    assert!(offer(&dispatch, delivery(2, 9), 1).is_some(), "other lanes are not full");
    // The delivery was created as waiting, so its lane has a backlog.
    assert!(!dispatch.mark_more_due(webhook(1), &FRESH).refill, "there is no capacity yet");
    let second = finish(&dispatch, &sent[0]).start;
    assert!(offer(&dispatch, delivery(1, 6), 1).is_none(), "a newer delivery does not overtake the backlog");
    let refill = finish(&dispatch, &second[0]).refill;
    assert!(refill, "half of the lane is free");
    let capacities = dispatch.take_lanes_to_refill();
    assert_eq!(capacities, [capacity(webhook(1), 2)]);
    dispatch.enqueue_claimed(&capacities[0], vec![delivery(1, 5)], false);
    assert!(offer(&dispatch, delivery(1, 7), 1).is_some(), "the backlog is empty");
}

#[test]
fn lane_without_capacity_is_refilled_later() {
    let dispatch = DispatchQueues::new(LIMITS);
    dispatch.park(webhook_limits(&delivery(1, 1), 1), Time::from_millis(5));
    let lane = poll(&dispatch, &delivery(1, 1));
    assert_eq!(lane.max_deliveries, 0);
    // The park ends before the store has replied that this node has claimed the lane.
    dispatch.expire_blocks(Time::from_millis(5));
    dispatch.enqueue_claimed(&lane, vec![], true);
    assert_eq!(dispatch.take_lanes_to_refill().len(), 1);
}

#[test]
fn failed_claim_is_retried() {
    let dispatch = DispatchQueues::new(LIMITS);
    let lane = poll(&dispatch, &delivery(1, 1));
    dispatch.enqueue_claimed(&lane, vec![], true);
    let capacities = dispatch.take_lanes_to_refill();
    assert_eq!(capacities.len(), 1);
    dispatch.free_failed_claim(&capacities);
    assert_eq!(dispatch.take_lanes_to_refill(), capacities);
}

#[test]
fn tickets_get_capacity_but_do_not_overtake_backlog() {
    let dispatch = DispatchQueues::new(LIMITS);
    let first = delivery(1, 1);
    assert_eq!(
        dispatch.reserve_for_tickets(webhook_limits(&first, 2), &FRESH, 100),
        4,
        "the maximum of a lane"
    );
    let actions = dispatch
        .enqueue_ticketed(&capacity(webhook(1), 4), vec![delivery(1, 1), delivery(1, 2), delivery(1, 3)]);
    assert_eq!(actions.start.len(), 2);
    assert_eq!(dispatch.load().deliveries, 3, "unclaimed deliveries free their capacity");
    dispatch.mark_more_due(webhook(1), &FRESH);
    assert_eq!(
        dispatch.reserve_for_tickets(webhook_limits(&first, 2), &FRESH, 1),
        0,
        "the store has older deliveries"
    );
    assert!(!dispatch.is_nearly_full());
    assert_eq!(dispatch.reserve_for_tickets(webhook_limits(&delivery(2, 9), 2), &FRESH, 100), 4);
    assert!(dispatch.is_nearly_full());
    dispatch.free_failed_claim(&[capacity(webhook(2), 4)]);
    assert!(!dispatch.is_nearly_full());
}

#[test]
fn sending_is_suspended_while_store_is_down() {
    let dispatch = DispatchQueues::new(LIMITS);
    dispatch.suspend_for_store();
    assert!(offer(&dispatch, delivery(1, 1), 1).unwrap().start.is_empty());
    assert_eq!(dispatch.resume_after_store_recovery().start.len(), 1);
}

#[test]
fn cancel_removes_queued_delivery_and_marks_in_flight_one() {
    let dispatch = DispatchQueues::new(LIMITS);
    let sent = offer(&dispatch, delivery(1, 1), 1).unwrap().start;
    offer(&dispatch, delivery(1, 2), 1).unwrap();
    let queued = dispatch.cancel(webhook(1), delivery(1, 2).id, "no".into()).unwrap();
    assert_eq!(queued.id, delivery(1, 2).id);
    assert!(dispatch.cancel(webhook(1), sent[0].id, "no".into()).is_none());
    assert_eq!(dispatch.cancel_reason(sent[0].id).as_deref(), Some("no"));
    finish(&dispatch, &sent[0]);
    assert_eq!(dispatch.cancel_reason(sent[0].id), None);
    dispatch.settle(&queued, false);
    assert_eq!(dispatch.load(), empty(LIMITS));
}

/// Deliveries that the dispatcher gave out during the property test.
#[derive(Default)]
struct Harness {
    in_flight: Vec<LeasedDelivery>,
    started: std::collections::HashSet<DeliveryId>,
}

impl Harness {
    fn take(&mut self, dispatch: &DispatchQueues, actions: DispatchActions) {
        for back in actions.release {
            self.started.remove(&back.id);
            dispatch.unreserve(back.webhook_id, &back.lane, 1, back.event.memory_bytes());
        }
        for delivery in actions.start {
            assert!(self.started.insert(delivery.id), "sent twice concurrently");
            let before = self.in_flight.iter().filter(|other| {
                other.webhook_id == delivery.webhook_id
                    && other.lane == delivery.lane
                    && delivery.lane.is_ordered()
            });
            assert_eq!(before.count(), 0, "two of one ordering key concurrently");
            self.in_flight.push(delivery);
        }
    }

    fn pick(&mut self, which: u8) -> Option<LeasedDelivery> {
        let at = usize::from(which) % self.in_flight.len().max(1);
        let delivery = (at < self.in_flight.len()).then(|| self.in_flight.remove(at))?;
        self.started.remove(&delivery.id);
        Some(delivery)
    }
}

fn sample_delivery(which: u8, n: u16) -> LeasedDelivery {
    let lane = match n % 4 {
        0 => Lane::Ordered("k".into()),
        1 => Lane::Unordered { priority: Priority::Low, retry: true },
        _ => FRESH,
    };
    let delivery = LeasedDelivery {
        id: DeliveryId::new(Time::from_millis(n.into()), &[9; 10]),
        lane,
        ..delivery(which, 1)
    };
    if which == 3 { with_tenant("other", delivery) } else { delivery }
}

/// Asserts that nothing is queued that the gate lets go: users are shown the gate's reason, so the dispatcher must not have
/// another one. It only adds the fair shares of tenants and retries, which are shown as missing capacity.
fn assert_gate_agrees(dispatch: &DispatchQueues) {
    let state = dispatch.state.lock();
    if state.draining || state.store_down || state.node_suspended || state.held_until.is_some() {
        return;
    }
    let slots =
        |used: usize, max: usize| Slots { used: used as u32, max: u32::try_from(max).unwrap_or(u32::MAX) };
    for (webhook_id, queues) in &state.webhooks {
        let tenant = &state.tenants[queues.tenant];
        let is_blocked = queues.block.is_some() || tenant.held_until.is_some();
        for lane in queues.lanes.iter().filter(|lane| !lane.queue.is_empty()) {
            let input = GateInput {
                state: &WebhookState::Active,
                pool_served: true,
                paused_by_429_until: None,
                circuit: CircuitDecision::Go,
                is_first_in_order: lane.unsettled == 0 || !lane.lane.is_ordered(),
                webhook_slots: slots(queues.in_flight.len(), queues.max_in_flight),
                tenant_slots: slots(tenant.unsettled, tenant.max_unsettled),
                host_has_slot: state.hosts.may_take(queues.host, queues.tenant),
                node_slots: slots(state.unsettled, state.limits.max_unsettled),
                webhook_token: None,
                tenant_token: None,
                global_token: None,
                now: Time::default(),
            };
            let may_go = matches!(gate::decide_admission(&input), GateDecision::Go { .. }) && !is_blocked;
            let has_share =
                state.tenant_may_send(queues.tenant) && (!lane.is_retry() || state.retries_may_send());
            assert!(
                !(may_go && has_share),
                "{webhook_id}: the gate lets {:?} go, and {} deliveries are queued",
                lane.lane,
                lane.queue.len()
            );
        }
    }
}

proptest! {
    /// For any sequence of operations, the limits hold, no delivery is left over or sent twice, and the gate gives the
    /// reason for whatever is queued.
    #[test]
    fn limits_hold_and_accounting_balances(
        steps in proptest::collection::vec((0u8..15, 0u8..4), 1..300),
        host_max_in_flight in prop_oneof![1..4usize, Just(usize::MAX)],
    ) {
        let dispatch = DispatchQueues::new(DispatchLimits { host_max_in_flight, ..LIMITS });
        let mut challenges = Vec::new();
        // Deliveries that end without a request and are not recorded yet.
        let mut ending = Vec::new();
        let mut harness = Harness::default();
        let mut epoch = NodeEpoch::new("test", redrive_store::Epoch(1), 0);
        let (mut n, mut now) = (0u16, 0i64);
        for (what, which) in steps {
            n += 1;
            let delivery = LeasedDelivery { epoch: epoch.clone(), ..sample_delivery(which, n) };
            let actions = match what {
                // Deliveries of ordered lanes come only from the store.
                0 | 1 if !delivery.lane.is_ordered() => offer(&dispatch, delivery, 2).unwrap_or_default(),
                2 => harness.pick(which).map(|done| finish(&dispatch, &done)).unwrap_or_default(),
                3 => match harness.pick(which) {
                    Some(failed) => {
                        let actions = dispatch.free_local_webhook_slot(failed.webhook_id, failed.id);
                        harness.take(&dispatch, actions);
                        dispatch.settle(&failed, true)
                    }
                    None => DispatchActions::default(),
                },
                // Tickets name three deliveries, of which one still exists; or the store fails.
                11 if !delivery.lane.is_ordered() => {
                    let max = dispatch.reserve_for_tickets(webhook_limits(&delivery, 2), &delivery.lane, 3);
                    let key = LaneKey { webhook_id: delivery.webhook_id, lane: delivery.lane.clone() };
                    match (LaneCapacity::new(key, max), max) {
                        (_, 0) => DispatchActions::default(),
                        (capacity, _) if n.is_multiple_of(5) => {
                            dispatch.free_failed_claim(&[capacity]);
                            DispatchActions::default()
                        }
                        (capacity, _) => dispatch.enqueue_ticketed(&capacity, vec![delivery]),
                    }
                }
                // The claim loop finds due deliveries in a lane, possibly more than fit.
                4 | 5 => {
                    let lane = poll(&dispatch, &delivery);
                    let found = if lane.max_deliveries > 0 { vec![delivery] } else { vec![] };
                    dispatch.enqueue_claimed(&lane, found, n.is_multiple_of(2))
                }
                6 => {
                    for capacity in dispatch.take_lanes_to_refill() {
                        let actions = dispatch.enqueue_claimed(&capacity, vec![], which == 0);
                        harness.take(&dispatch, actions);
                    }
                    DispatchActions::default()
                }
                7 => {
                    dispatch.free_failed_claim(&dispatch.take_lanes_to_refill());
                    DispatchActions::default()
                }
                8 => match harness.pick(which) {
                    Some(delivery) => {
                        let until = Time::from_millis(now + 3);
                        let deferral = match n % 7 {
                            0 => Deferral::Hold(LimitScope::Webhook, until),
                            1 => Deferral::Hold(LimitScope::Tenant, until),
                            2 => Deferral::Hold(LimitScope::Node, until),
                            3 => Deferral::ReleaseOne(until),
                            4 => Deferral::NoProbe,
                            5 => Deferral::SuspendNode,
                            _ => Deferral::ParkWebhook(until),
                        };
                        dispatch.defer(vec![DeferredDelivery { delivery, deferral }])
                    }
                    None => DispatchActions::default(),
                },
                9 => match n % 5 {
                    0 => dispatch.release_queued(delivery.webhook_id),
                    1 => dispatch.set_webhook_limits(webhook_limits(&delivery, usize::from(which) + 1)),
                    2 => dispatch.resume_node(),
                    3 => {
                        let lane = poll(&dispatch, &delivery);
                        if lane.max_deliveries == 0 {
                            dispatch.defer_lane(&lane.key);
                        } else {
                            dispatch.free_failed_claim(&[lane]);
                        }
                        DispatchActions::default()
                    }
                    _ => {
                        std::mem::replace(&mut epoch, NodeEpoch::new("test", redrive_store::Epoch(2), 0)).end();
                        dispatch.discard_ended_epoch()
                    }
                },
                // A challenge starts or ends, or a webhook's URL changes to another host.
                12 => match n % 3 {
                    0 => {
                        let (tenant_id, host) = (delivery.event.tenant_id.clone(), webhook_limits(&delivery, 2).host);
                        if dispatch.take_host_slot(&tenant_id, host) {
                            challenges.push((tenant_id, host));
                        }
                        DispatchActions::default()
                    }
                    1 => {
                        let ended = challenges.pop();
                        ended.map(|(tenant_id, host)| dispatch.free_host_slot(&tenant_id, host)).unwrap_or_default()
                    }
                    _ => {
                        let host = HostKey::from_host("c");
                        dispatch.set_webhook_limits(WebhookLimits { host, ..webhook_limits(&delivery, 2) })
                    }
                },
                // The tenant's limit changes; each reservation sets it back to none.
                13 => {
                    let max = if n.is_multiple_of(2) { usize::from(which) + 1 } else { usize::MAX };
                    dispatch.apply_tenant_change(&delivery.event.tenant_id, max)
                }
                // Queued deliveries expire or are cancelled, and are recorded later.
                14 => match n % 3 {
                    0 => {
                        ending.extend(dispatch.take_queued(delivery.webhook_id));
                        DispatchActions::default()
                    }
                    1 => {
                        ending.extend(dispatch.take_expired(|delivery| delivery.webhook_id == webhook(which)));
                        DispatchActions::default()
                    }
                    _ => ending.pop().map(|ended| dispatch.settle(&ended, false)).unwrap_or_default(),
                },
                _ => {
                    now += 1;
                    dispatch.expire_blocks(Time::from_millis(now))
                }
            };
            harness.take(&dispatch, actions);
            // Reservations start nothing themselves; the engine's next call does.
            let actions = dispatch.expire_blocks(Time::from_millis(now));
            harness.take(&dispatch, actions);
            assert_gate_agrees(&dispatch);
            let load = dispatch.load();
            // Deliveries that end without a request occupy slots too, but take none that is free: only requests are limited.
            prop_assert!(
                load.deliveries <= LIMITS.max_deliveries && harness.in_flight.len() <= LIMITS.max_unsettled
            );
            prop_assert_eq!(load.unsettled, harness.in_flight.len() + ending.len());
            let hosts = dispatch.state.lock().hosts.counts();
            prop_assert!(hosts.iter().all(|(_, in_flight, _)| *in_flight <= host_max_in_flight), "{:?}", hosts);
            let counted: usize = hosts.iter().map(|(_, in_flight, _)| in_flight).sum();
            prop_assert_eq!(counted, harness.in_flight.len() + challenges.len());
        }
        for (tenant_id, host) in challenges {
            let actions = dispatch.free_host_slot(&tenant_id, host);
            harness.take(&dispatch, actions);
        }
        for ended in ending {
            let actions = dispatch.settle(&ended, false);
            harness.take(&dispatch, actions);
        }
        let actions = dispatch.resume_node();
        harness.take(&dispatch, actions);
        let actions = dispatch.expire_blocks(Time::from_millis(now + 1_000));
        harness.take(&dispatch, actions);
        for which in 0..4 {
            let actions = dispatch.unpark(webhook_limits(&sample_delivery(which, 1), 2), None);
            harness.take(&dispatch, actions);
        }
        // Not all lanes fit into memory together, so repeat until each lane with a backlog has been refilled.
        for _ in 0..50 {
            while let Some(done) = harness.pick(0) {
                let actions = finish(&dispatch, &done);
                harness.take(&dispatch, actions);
            }
            for capacity in dispatch.take_lanes_to_refill() {
                let actions = dispatch.enqueue_claimed(&capacity, vec![], false);
                harness.take(&dispatch, actions);
            }
        }
        prop_assert!(!dispatch.resume_after_store_recovery().refill, "no lane is left to refill");
        prop_assert_eq!(dispatch.load(), empty(LIMITS));
        let state = dispatch.state.lock();
        prop_assert!(state.webhooks.is_empty(), "idle webhooks use no memory: {:?}", state.webhooks);
        prop_assert!(state.hosts.is_empty(), "idle hosts use no memory: {:?}", state.hosts);
    }
}

#[test]
fn cancel_between_commit_and_acceptance_is_not_lost() {
    let dispatch = DispatchQueues::new(LIMITS);
    let (early, other) = (delivery(1, 1), delivery(1, 2));
    for one in [&early, &other] {
        assert!(dispatch.reserve(webhook_limits(one, 2), &one.lane, one.event.memory_bytes()));
    }
    assert!(dispatch.cancel(early.webhook_id, early.id, "enough".into()).is_none());
    let actions = dispatch.enqueue_published([early.clone(), other.clone()]);
    assert_eq!(actions.start.iter().map(|one| one.id).collect::<Vec<_>>(), [other.id]);
    assert_eq!(actions.release.iter().map(|one| one.id).collect::<Vec<_>>(), [early.id]);
    dispatch.unreserve(early.webhook_id, &early.lane, 1, early.event.memory_bytes());
    finish(&dispatch, &other);
    assert_eq!(dispatch.load(), empty(LIMITS));
}

#[test]
fn cancel_during_claim_is_not_lost() {
    let dispatch = DispatchQueues::new(LIMITS);
    let (early, other) = (delivery(1, 1), delivery(1, 2));
    let capacity = poll(&dispatch, &early);
    assert!(dispatch.take_cancelled(early.webhook_id, early.id).is_none());
    let actions = dispatch.enqueue_claimed(&capacity, vec![early.clone(), other.clone()], false);
    assert_eq!(actions.start.iter().map(|one| one.id).collect::<Vec<_>>(), [other.id]);
    assert_eq!(actions.release.iter().map(|one| one.id).collect::<Vec<_>>(), [early.id]);
    dispatch.unreserve(early.webhook_id, &early.lane, 1, early.event.memory_bytes());
    finish(&dispatch, &other);
    assert_eq!(dispatch.load(), empty(LIMITS));
}

#[test]
fn early_cancels_are_kept_only_while_capacity_is_reserved() {
    let dispatch = DispatchQueues::new(LIMITS);
    let (known, unknown) = (delivery(1, 1), delivery(1, 2));
    assert!(dispatch.cancel(unknown.webhook_id, unknown.id, "enough".into()).is_none());
    assert_eq!(dispatch.state.lock().cancelled_early.len(), 0, "no capacity is reserved for the webhook");
    assert!(dispatch.reserve(webhook_limits(&known, 2), &known.lane, known.event.memory_bytes()));
    assert!(dispatch.cancel(unknown.webhook_id, unknown.id, "enough".into()).is_none());
    assert_eq!(dispatch.state.lock().cancelled_early.len(), 1);
    let sent = dispatch.enqueue_published([known]).start;
    finish(&dispatch, &sent[0]);
    assert_eq!(dispatch.state.lock().cancelled_early.len(), 0);
}
