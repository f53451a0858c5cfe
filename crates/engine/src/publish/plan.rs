//! The deliveries of an event: how each is created, and the capacity that is reserved for those sent immediately.

use std::{sync::Arc, time::Duration};

use redrive_core::{
    DeliveryId, cluster::ticket::TICKET_CLAIM_TIMEOUT, delivery::lane::Lane, event::Event,
    webhook::WebhookState,
};
use redrive_store::InitialState;

use super::Publisher;
use crate::{
    clock,
    cluster::membership::NodeEpoch,
    dispatch::{Dispatcher, LeasedDelivery, ReleaseItem},
    routing::ResolvedWebhook,
};

/// One delivery to be stored; capacity is reserved for it if its initial state is leased.
pub(super) struct PlannedDelivery {
    pub(super) id: DeliveryId,
    pub(super) webhook: Arc<ResolvedWebhook>,
    pub(super) lane: Lane,
    pub(super) initial_state: InitialState,
    /// A ticket is published for it.
    pub(super) ticketed: bool,
}

/// The deliveries of an event that is being committed. Dropped without the store's result, those that may be leased go to
/// the releaser, with the capacity that is reserved for them; releasing what is not leased changes nothing.
pub(super) struct PlannedDeliveries {
    pub(super) dispatcher: Arc<Dispatcher>,
    pub(super) epoch: Arc<NodeEpoch>,
    pub(super) event: Arc<Event>,
    pub(super) deliveries: Vec<PlannedDelivery>,
    /// Monotonic time at which the publish started.
    pub(super) started: Duration,
}

impl PlannedDeliveries {
    /// Frees the capacity: nothing was committed.
    pub(super) fn free_capacity(mut self) {
        let bytes = self.event.memory_bytes();
        for delivery in std::mem::take(&mut self.deliveries) {
            if delivery.initial_state == InitialState::Leased {
                self.dispatcher.queues.unreserve(delivery.webhook.id, &delivery.lane, 1, bytes);
            }
        }
    }

    /// Returns the deliveries that were committed as leased.
    pub(super) fn into_leased(mut self) -> impl Iterator<Item = LeasedDelivery> {
        let deliveries = std::mem::take(&mut self.deliveries).into_iter();
        let leased = deliveries.filter(|delivery| delivery.initial_state == InitialState::Leased);
        leased.map(move |delivery| self.to_leased(delivery))
    }

    fn to_leased(&self, delivery: PlannedDelivery) -> LeasedDelivery {
        LeasedDelivery {
            id: delivery.id,
            epoch: self.epoch.clone(),
            webhook_id: delivery.webhook.id,
            lane: delivery.lane,
            event: self.event.clone(),
            format: delivery.webhook.payload_format,
            attempt: 1,
            created_at: self.event.timestamp,
            due: self.event.timestamp,
            abnormal_releases: 0,
            crash_count: 0,
            publish_started_at: Some(self.started),
        }
    }
}

impl Drop for PlannedDeliveries {
    fn drop(&mut self) {
        let without_result = std::mem::take(&mut self.deliveries).into_iter();
        let leased = without_result.filter(|delivery| delivery.initial_state == InitialState::Leased);
        leased.for_each(|delivery| {
            let leased = self.to_leased(delivery);
            self.dispatcher.release_queue.add(ReleaseItem::queued(leased));
        });
    }
}

impl Publisher {
    /// Decides the initial state of each delivery, and reserves capacity for those that are sent immediately.
    pub(super) fn plan(&self, event: &Event, webhooks: Vec<Arc<ResolvedWebhook>>) -> Vec<PlannedDelivery> {
        let bytes = event.memory_bytes();
        let issues_tickets = self.tickets.as_ref().is_some_and(|broker| broker.issues_tickets());
        let plan_delivery = |webhook: Arc<ResolvedWebhook>| {
            let ordering = webhook.ordering;
            let lane = Lane::for_new_delivery(ordering, &event.event_type, event.priority, false);
            let wait = webhook.retry_policy.first_delay();
            let ticketed = issues_tickets && wait.is_zero() && self.wants_ticket(&webhook, &lane);
            let initial_state = if !wait.is_zero() {
                InitialState::Waiting(event.timestamp + wait)
            } else if ticketed {
                // If no node claims it by its ticket, it is claimed from the store after this time.
                InitialState::Waiting(event.timestamp + TICKET_CLAIM_TIMEOUT)
            } else if self.may_send_immediately(&webhook, &lane)
                && self.dispatcher.queues.reserve(
                    self.dispatcher.assignments.webhook_limits(&webhook),
                    &lane,
                    bytes,
                )
            {
                InitialState::Leased
            } else {
                InitialState::Waiting(event.timestamp)
            };
            // A delivery id has the time of its event, so that both are pruned together.
            PlannedDelivery {
                id: DeliveryId::new(event.timestamp, &clock::random_id_bytes()),
                webhook,
                lane,
                initial_state,
                ticketed,
            }
        };
        webhooks.into_iter().map(plan_delivery).collect()
    }

    /// Returns whether a delivery that is due immediately should get a ticket: only other nodes serve its pool, any of them
    /// may send it, and nothing blocks it.
    fn wants_ticket(&self, webhook: &ResolvedWebhook, lane: &Lane) -> bool {
        if webhook.state != WebhookState::Active {
            return false;
        }
        if webhook.tenant.is_pool_served_here()
            || lane.is_ordered()
            || self.dispatcher.assignments.needs_assigned_node(webhook)
        {
            return false;
        }
        let sending_nodes = self.membership.sending_nodes(&webhook.tenant.pool());
        // With fewer slots than sending nodes the webhook needs an assigned node, unless Redis distributes the slots.
        sending_nodes > 0
            && (sending_nodes <= webhook.max_in_flight as usize || self.coordinator.redis().is_some())
    }

    /// Returns whether webhook and lane allow to send a delivery from memory right after its commit. Ordered
    /// deliveries, and those of webhooks that need an assigned node, are only sent after a claim from the store.
    pub(super) fn may_send_immediately(&self, webhook: &ResolvedWebhook, lane: &Lane) -> bool {
        webhook.state == WebhookState::Active
            && webhook.tenant.may_send_here()
            && !lane.is_ordered()
            && !self.dispatcher.assignments.needs_assigned_node(webhook)
    }
}
