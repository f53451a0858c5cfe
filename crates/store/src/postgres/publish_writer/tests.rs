use std::sync::Arc;

use bytes::Bytes;
use redrive_core::{EventId, Time, delivery::lane::Priority, event::Event};

use super::*;
use crate::{Epoch, PublishSequence};

fn in_order(order: &Arc<PublishSequence>, position: u64) -> Option<SequencePosition> {
    Some(SequencePosition { sequence: order.clone(), position })
}

fn event(tenant: &str, order: Option<SequencePosition>) -> NewEvent {
    let event = Event {
        id: EventId::new(Time::default(), &[0; 10]),
        tenant_id: TenantId::parse(tenant).unwrap(),
        event_type: "order.created".into(),
        data: Bytes::from_static(b"{}"),
        timestamp: Time::default(),
        idempotency_key: None,
        source: None,
        subject: None,
        priority: Priority::Normal,
        metadata: None,
        trace: None,
        hops: 0,
    };
    NewEvent {
        event: Arc::new(event),
        edited_from: None,
        idempotency: None,
        config_version: 1,
        epoch: Epoch(1),
        deliveries: Vec::new(),
        position: order,
    }
}

fn unavailable() -> Result<PublishResult, StoreError> {
    Err(StoreError::Unavailable("the connection is lost".into()))
}

#[test]
fn events_do_not_overtake_a_failed_event_of_their_order() {
    let (broken, intact) = (Arc::default(), Arc::default());
    let orders = [in_order(&broken, 0), in_order(&broken, 1), in_order(&intact, 0), None];
    let events = orders.map(|order| event("acme", order));
    let events: Vec<_> = events.iter().collect();
    let mut progress = BatchProgress::new(&events);
    assert_eq!(progress.retain_free(vec![0]), [0]);
    progress.finish(0, unavailable());
    assert_eq!(progress.retain_free(vec![1, 2, 3]), [2, 3]);
    let results = progress.into_results();
    assert!(matches!(results[1], PublishProgress::Finished(Err(StoreError::PrecedingEventFailed))));
}

#[test]
fn events_before_a_broken_position_are_published() {
    let order: Arc<PublishSequence> = Arc::default();
    let events = [event("acme", in_order(&order, 0))];
    let events: Vec<_> = events.iter().collect();
    // A later event, outside this batch, could not be stored.
    SequencePosition { sequence: order, position: 1 }.break_off();
    assert_eq!(BatchProgress::new(&events).retain_free(vec![0]), [0]);
}

#[test]
fn invalid_event_does_not_break_its_order() {
    let order = Arc::default();
    let events = [0, 1].map(|position| event("acme", in_order(&order, position)));
    let events: Vec<_> = events.iter().collect();
    let mut progress = BatchProgress::new(&events);
    progress.finish(0, Err(StoreError::InvalidItem("it does not fit".into())));
    assert_eq!(progress.retain_free(vec![1]), [1]);
}

#[test]
fn events_do_not_overtake_a_blocked_event_of_their_tenant() {
    let events = [event("acme", None), event("globex", None), event("acme", None)];
    let events: Vec<_> = events.iter().collect();
    let mut progress = BatchProgress::new(&events);
    progress.block(0);
    assert_eq!(progress.retain_free(vec![1, 2]), [1]);
    assert!(matches!(progress.into_results()[2], PublishProgress::Blocked));
}
