//! The commit of an event, and the hand-over of its deliveries to the dispatcher.

use std::sync::Arc;

use redrive_core::event::Event;
use redrive_store::{
    IdempotencyReservation, InitialState, NewDelivery, NewEvent, PublishResult, SequencePosition, StoreError,
};
use tokio::sync::oneshot;

use super::{PublishOptions, Publisher, plan::PlannedDeliveries};
use crate::{
    clock, cluster::membership::NodeEpoch, routing::MatchedWebhooks, schedule::tickets::TicketItem,
    supervision::FaultPoint,
};

impl Publisher {
    /// Submits an event with one fan-out to the store, which takes events in the order of these calls. The commit hands
    /// its leased deliveries to the dispatcher, whether or not the caller awaits the reply.
    pub(super) fn submit(
        self: &Arc<Self>,
        epoch: &Arc<NodeEpoch>,
        event: &Arc<Event>,
        options: &PublishOptions,
        matched: MatchedWebhooks,
        position: Option<SequencePosition>,
    ) -> oneshot::Receiver<Result<PublishResult, StoreError>> {
        let started = clock::monotonic_now();
        let started_nanos = self.tracer.nanos_if_sampled(event);
        // Open until the leases are handed to the dispatcher, so that the lease auditor does not suspect them.
        let transfer = self.dispatcher.lease_transfers.begin();
        let planned = PlannedDeliveries {
            dispatcher: self.dispatcher.clone(),
            epoch: epoch.clone(),
            event: event.clone(),
            deliveries: self.plan(event, matched.webhooks),
            started,
        };
        let new = NewEvent {
            event: event.clone(),
            edited_from: options.edited.as_ref().map(|edited| edited.original_id),
            idempotency: event.idempotency_key.as_ref().map(|_| IdempotencyReservation {
                body_hash: event.body_hash(),
                expires_at: event.timestamp + self.settings.idempotency_window,
                confirmed_now: self.clock.confirmed_now(),
            }),
            config_version: matched.version,
            epoch: epoch.epoch,
            deliveries: planned
                .deliveries
                .iter()
                .map(|delivery| NewDelivery {
                    id: delivery.id,
                    webhook_id: delivery.webhook.id,
                    format: delivery.webhook.payload_format,
                    lane: delivery.lane.clone(),
                    initial_state: delivery.initial_state,
                })
                .collect(),
            position,
        };
        let (reply_to, reply) = oneshot::channel();
        let (publisher, event) = (self.clone(), event.clone());
        let done = Box::new(move |result: Result<PublishResult, StoreError>| {
            publisher.trace_commit(&event, started_nanos, &result);
            publisher.on_committed(planned, &result);
            drop(transfer);
            // The publisher may have disconnected; its event is published nevertheless.
            let _ = reply_to.send(result);
        });
        self.store.publish(new, done);
        reply
    }

    /// Hands committed deliveries to the dispatcher, or frees the capacity that was reserved for them.
    fn on_committed(
        self: &Arc<Self>,
        planned: PlannedDeliveries,
        result: &Result<PublishResult, StoreError>,
    ) {
        self.faults.inject(FaultPoint::Committed);
        match result {
            Ok(PublishResult::New { .. }) => self.dispatch_committed(planned),
            _ => planned.free_capacity(),
        }
        match result {
            Ok(_) => self.monitor.record_success(),
            Err(StoreError::Unavailable(_) | StoreError::WriterEnded(_)) => self.monitor.record_failure(),
            Err(_) => {}
        }
    }

    fn dispatch_committed(self: &Arc<Self>, planned: PlannedDeliveries) {
        let event = &planned.event;
        let ticketed = planned.deliveries.iter().filter(|delivery| delivery.ticketed);
        let ticketed = ticketed.map(|delivery| TicketItem {
            pool: delivery.webhook.tenant.pool(),
            priority: event.priority,
            webhook_id: delivery.webhook.id,
            delivery_id: delivery.id,
        });
        if let Some(broker) = &self.tickets {
            broker.publish_tickets(ticketed.collect());
        }
        for delivery in &planned.deliveries {
            if let InitialState::Waiting(due) = delivery.initial_state {
                self.wakeups.claims.wake_at(due);
                if due <= event.timestamp && self.may_send_immediately(&delivery.webhook, &delivery.lane) {
                    self.dispatcher.mark_more_due(delivery.webhook.id, &delivery.lane);
                }
            }
        }
        self.dispatcher.enqueue_published(planned.into_leased());
    }
}
