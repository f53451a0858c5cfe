//! Publishing an event: fan out, reserve capacity, commit, hand over.
//!
//! The commit callback hands leased deliveries to the dispatcher even if the publisher has disconnected: a
//! committed lease always reaches its lane.

use std::{collections::HashSet, sync::Arc, time::Duration};

use bytes::Bytes;
use redrive_core::{
    DeliveryId, EventId, TenantId, Time, WebhookId,
    cluster::ticket::CLAIM_GRACE,
    delivery::lane::{Lane, Priority},
    event::{Event, event_type, trace::Trace},
    field_error::FieldError,
    routing::filter::{Filter, Payload},
    webhook::WebhookState,
};
use redrive_store::{
    IdempotencyReservation, InitialState, NewDelivery, NewEvent, OrderedPosition, PublishResult, StoreError,
};
use tokio::sync::oneshot;

use crate::{
    Engine, Inner,
    checking::BatchState,
    clock,
    dispatch::LeasedDelivery,
    membership::NodeEpoch,
    queue::amqp::TicketItem,
    registry::{MatchedWebhooks, ResolvedWebhook},
    services::FaultPoint,
};

/// Maximum number of repeated fan-outs if the tenant's configuration keeps changing.
const MAX_FAN_OUT_RETRIES: usize = 19;
/// Number of times that a publish waits for a new epoch.
const MAX_EPOCH_WAITS: usize = 3;

/// An event to be published.
#[derive(Clone, Debug)]
pub struct EventDraft {
    /// Tenant of the event.
    pub tenant_id: TenantId,
    /// Event type.
    pub event_type: Box<str>,
    /// Payload: JSON, kept byte for byte.
    pub data: Bytes,
    /// Idempotency key of the publisher.
    pub idempotency_key: Option<Box<str>>,
    /// Origin of the event.
    pub source: Option<Box<str>>,
    /// Subject of the event.
    pub subject: Option<Box<str>>,
    /// Metadata of the publisher, a JSON object.
    pub metadata: Option<Bytes>,
    /// Priority.
    pub priority: Priority,
    /// Only recipient, whatever it subscribes to; for test events.
    pub only_webhook: Option<WebhookId>,
    /// Trace context of the publisher.
    pub trace: Option<Box<Trace>>,
    /// Number of Redrive deliveries that led to this event.
    pub hops: u8,
}

/// Result of a publish for the publisher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishReceipt {
    /// Event id; that of the original event for a duplicate.
    pub event_id: EventId,
    /// Time of publication.
    pub timestamp: Time,
    /// Position in the tenant's sequence; `None` for a duplicate.
    pub sequence_number: Option<i64>,
    /// Number of deliveries; `None` for a duplicate.
    pub deliveries: Option<usize>,
    /// Whether the idempotency key was used before for the same event.
    pub duplicate: bool,
}

/// Reason for rejecting an event.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PublishError {
    /// A field is invalid.
    #[error(transparent)]
    Invalid(#[from] FieldError),
    /// The event type is reserved for Redrive.
    #[error("event types starting with \"redrive.\" are reserved for Redrive")]
    Reserved,
    /// The payload violates the schema of its type.
    #[error(transparent)]
    SchemaViolation(FieldError),
    /// The tenant allows only registered event types, and this one is not registered.
    #[error(
        "the event type {0} is not registered, and this tenant accepts only registered types; register it with \
         POST /v1/event-types, or publish one that GET /v1/event-types lists"
    )]
    Unregistered(Box<str>),
    /// The event type is archived.
    #[error(
        "the event type {0} is archived; PATCH /v1/event-types/{0} with \"archived\": false to publish it again"
    )]
    Archived(Box<str>),
    /// The idempotency key belongs to another event.
    #[error("the idempotency key was used before for another event ({0})")]
    KeyReused(EventId),
    /// Checking the batch of this event costs too much.
    #[error(
        "checking the events of this batch against schemas and filters takes too much work; this event was not published: \
         publish it in a smaller batch"
    )]
    BatchTooCostly,
    /// The tenant does not exist.
    #[error("there is no such tenant")]
    NoTenant,
    /// The store failed: the event was not published.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Engine {
    /// Loads a tenant's webhooks if they are not cached. Events published one right after the other from then on keep
    /// their order.
    pub async fn preload_tenant(&self, tenant_id: &TenantId) -> Result<(), StoreError> {
        self.0.registry.load_tenant(&*self.0.store, tenant_id).await
    }

    /// Returns the webhooks of a tenant that the operator manages, without deleted ones.
    pub async fn operator_webhooks(&self, tenant_id: &TenantId) -> Result<HashSet<WebhookId>, StoreError> {
        self.preload_tenant(tenant_id).await?;
        Ok(self.0.registry.operator_webhooks(tenant_id))
    }

    /// Publishes an event. The event and all its deliveries are durable when this returns.
    pub async fn publish(&self, draft: EventDraft) -> Result<PublishReceipt, PublishError> {
        // A test event has a reserved type and goes to one webhook.
        if event_type::is_reserved(&draft.event_type) && draft.only_webhook.is_none() {
            return Err(PublishError::Reserved);
        }
        self.validate_and_publish(draft, PublishContext::default()).await
    }

    /// Publishes an event of a batch.
    pub async fn publish_in_batch(
        &self,
        draft: EventDraft,
        batch: &BatchState,
    ) -> Result<PublishReceipt, PublishError> {
        if event_type::is_reserved(&draft.event_type) {
            return Err(PublishError::Reserved);
        }
        self.validate_and_publish(draft, PublishContext { batch: Some(batch), position: None }).await
    }

    /// Publishes an event at its position in a sequence of publishes: it is stored after all earlier positions, and
    /// fails if one of those fails. This is unrelated to ordered lanes, which order the deliveries to a webhook.
    pub async fn publish_in_order(
        &self,
        draft: EventDraft,
        position: OrderedPosition,
    ) -> Result<PublishReceipt, PublishError> {
        if event_type::is_reserved(&draft.event_type) {
            return Err(PublishError::Reserved);
        }
        self.validate_and_publish(draft, PublishContext { position: Some(&position), batch: None }).await
    }

    /// Publishes an operational event of Redrive.
    pub(crate) async fn publish_operational(
        &self,
        draft: EventDraft,
    ) -> Result<PublishReceipt, PublishError> {
        self.validate_and_publish(draft, PublishContext::default()).await
    }

    async fn validate_and_publish(
        &self,
        draft: EventDraft,
        context: PublishContext<'_>,
    ) -> Result<PublishReceipt, PublishError> {
        let inner = &self.0;
        let (event, only) = inner.build_event(draft);
        event.validate()?;
        let event = Arc::new(event);
        let publishing = inner.trace_publish(&event);
        let published = self.publish_event(&event, only, context).await;
        if let Some(publishing) = publishing {
            publishing.set_result(&published);
        }
        published
    }

    async fn publish_event(
        &self,
        event: &Arc<Event>,
        only: Option<WebhookId>,
        context: PublishContext<'_>,
    ) -> Result<PublishReceipt, PublishError> {
        let inner = &self.0;
        let mut epoch_waits = 0;
        for _ in 0..=MAX_FAN_OUT_RETRIES {
            let store = &*inner.store;
            let subject = event.subject.as_deref();
            let matched = inner
                .registry
                .match_webhooks(store, &event.tenant_id, &event.event_type, subject, only)
                .await?;
            let Some(mut matched) = matched else { return Err(PublishError::NoTenant) };
            matched.webhooks.retain(|webhook| !webhook.has_expired(inner.clock.confirmed_now()));
            inner.apply_payload_filters(event, only, &mut matched.webhooks, context.batch).await?;
            let deliveries = matched.webhooks.len();
            // Redrive's own event types are in no catalogue.
            if only.is_none()
                && !event_type::is_reserved(&event.event_type)
                && let Err(refused) = inner.check_event_type(event, &matched.type_status, context.batch).await
            {
                match inner.recheck_catalogue(event, matched, refused, context.batch).await? {
                    Some(receipt) => return Ok(receipt),
                    None => continue,
                }
            }
            // Read after the checks, which may take a while: the epoch must be the current one.
            let epoch = inner.membership.current_epoch();
            match inner.commit(&epoch, event, matched, context).await? {
                PublishResult::ConfigChanged => inner.registry.refresh(store, &event.tenant_id).await?,
                PublishResult::New { sequence_number } => {
                    inner.metrics.published.inc();
                    return Ok(PublishReceipt {
                        event_id: event.id,
                        timestamp: event.timestamp,
                        sequence_number: Some(sequence_number),
                        deliveries: Some(deliveries),
                        duplicate: false,
                    });
                }
                PublishResult::Duplicate { event_id } => return Ok(inner.duplicate_receipt(event_id)),
                PublishResult::KeyReused { event_id } => return Err(PublishError::KeyReused(event_id)),
                PublishResult::NoTenant => return Err(PublishError::NoTenant),
                PublishResult::Fenced => {
                    epoch_waits += 1;
                    if epoch_waits > MAX_EPOCH_WAITS || !inner.wait_for_new_epoch(&epoch).await {
                        return Err(StoreError::Fenced.into());
                    }
                    true
                }
            };
        }
        Err(PublishError::Store(StoreError::Unavailable("the tenant's webhooks keep changing".into())))
    }
}

/// The batch or the order that a publish belongs to.
#[derive(Clone, Copy, Debug, Default)]
struct PublishContext<'a> {
    position: Option<&'a OrderedPosition>,
    batch: Option<&'a BatchState>,
}

/// One delivery to be stored; capacity is reserved for it if its initial state is leased.
struct PlannedDelivery {
    id: DeliveryId,
    webhook: Arc<ResolvedWebhook>,
    lane: Lane,
    initial_state: InitialState,
    /// A ticket is published for it.
    ticketed: bool,
}

/// The deliveries of an event that is being committed. Dropped without the store's result, those that may be leased go to
/// the releaser, with the capacity that is reserved for them; releasing what is not leased changes nothing.
struct PlannedDeliveries {
    inner: Arc<Inner>,
    epoch: Arc<NodeEpoch>,
    event: Arc<Event>,
    deliveries: Vec<PlannedDelivery>,
    /// Monotonic time at which the publish started.
    started: Duration,
}

impl PlannedDeliveries {
    /// Frees the capacity: nothing was committed.
    fn free_capacity(mut self) {
        let bytes = self.event.memory_bytes();
        for delivery in std::mem::take(&mut self.deliveries) {
            if delivery.initial_state == InitialState::Leased {
                self.inner.dispatcher.unreserve(delivery.webhook.id, &delivery.lane, 1, bytes);
            }
        }
    }

    /// Returns the deliveries that were committed as leased.
    fn into_leased(mut self) -> impl Iterator<Item = LeasedDelivery> {
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
            rescues: 0,
            sender_deaths: 0,
            publish_started_at: Some(self.started),
        }
    }
}

impl Drop for PlannedDeliveries {
    fn drop(&mut self) {
        let without_result = std::mem::take(&mut self.deliveries).into_iter();
        let leased = without_result.filter(|delivery| delivery.initial_state == InitialState::Leased);
        let leased = leased.map(|delivery| self.to_leased(delivery)).collect();
        self.inner.release_queued(leased);
    }
}

impl Inner {
    /// Builds the event, and returns it with its only recipient if it has one.
    fn build_event(&self, draft: EventDraft) -> (Event, Option<WebhookId>) {
        let now = self.clock.now();
        let id = EventId::new(now, &clock::random_id_bytes());
        let event = Event {
            id,
            tenant_id: draft.tenant_id,
            event_type: draft.event_type,
            data: draft.data,
            timestamp: now,
            idempotency_key: draft.idempotency_key,
            source: draft.source,
            subject: draft.subject,
            priority: draft.priority,
            metadata: draft.metadata,
            trace: self.trace_of(id, draft.trace),
            hops: draft.hops,
        };
        (event, draft.only_webhook)
    }

    fn duplicate_receipt(&self, event_id: EventId) -> PublishReceipt {
        self.metrics.duplicates.inc();
        PublishReceipt {
            event_id,
            timestamp: event_id.time(),
            sequence_number: None,
            deliveries: None,
            duplicate: true,
        }
    }

    /// Handles an event that the cached catalogue rejects. Returns the receipt of the original if it repeats an event
    /// that was accepted before the catalogue changed. Returns `None` if the cached catalogue was outdated: check
    /// again.
    async fn recheck_catalogue(
        self: &Arc<Self>,
        event: &Arc<Event>,
        matched: MatchedWebhooks,
        refused: PublishError,
        batch: Option<&BatchState>,
    ) -> Result<Option<PublishReceipt>, PublishError> {
        // The check was not executed, so its failure says nothing about the event.
        if matches!(refused, PublishError::Store(_) | PublishError::BatchTooCostly) {
            return Err(refused);
        }
        let version = matched.version;
        if event.idempotency_key.is_some() {
            // Version -1 never matches, so this only checks the idempotency key and stores nothing.
            let key_check_only = MatchedWebhooks { version: -1, webhooks: Vec::new(), ..matched };
            let epoch = self.membership.current_epoch();
            if let PublishResult::Duplicate { event_id } =
                self.commit(&epoch, event, key_check_only, PublishContext::default()).await?
            {
                return Ok(Some(self.duplicate_receipt(event_id)));
            }
        }
        // One refresh is enough for all rejected events of a batch.
        if batch.is_some_and(|batch| batch.is_current(version)) {
            return Err(refused);
        }
        // A rejected event is never committed, so no commit would detect an outdated catalogue.
        self.registry.refresh(&*self.store, &event.tenant_id).await?;
        match self.registry.version(&event.tenant_id) == Some(version) {
            true => {
                if let Some(batch) = batch {
                    batch.set_current(version);
                }
                Err(refused)
            }
            false => Ok(None),
        }
    }

    /// Removes the webhooks whose filter rejects the payload. Parses the payload only if a webhook has a filter.
    /// Redrive's own events, including test events, are not filtered.
    async fn apply_payload_filters(
        &self,
        event: &Arc<Event>,
        only: Option<WebhookId>,
        webhooks: &mut Vec<Arc<ResolvedWebhook>>,
        batch: Option<&BatchState>,
    ) -> Result<(), PublishError> {
        let passes_always = only.is_some() || event_type::is_reserved(&event.event_type);
        if passes_always || !webhooks.iter().any(|webhook| webhook.has_filter()) {
            return Ok(());
        }
        let work = Filter::work(webhooks.iter().filter_map(|webhook| webhook.filter()), &event.data);
        let (event, mut candidates) = (event.clone(), std::mem::take(webhooks));
        let tenant_id = event.tenant_id.clone();
        let filter_webhooks = move || {
            let payload = Payload::new(&event.data);
            candidates.retain(|webhook| webhook.passes_filter(&payload));
            candidates
        };
        *webhooks = self.run_work(&tenant_id, work, batch, filter_webhooks).await?;
        Ok(())
    }

    /// Commits an event with one fan-out and hands its leased deliveries to the dispatcher.
    async fn commit(
        self: &Arc<Self>,
        epoch: &Arc<NodeEpoch>,
        event: &Arc<Event>,
        matched: MatchedWebhooks,
        context: PublishContext<'_>,
    ) -> Result<PublishResult, StoreError> {
        let position = context.position;
        if let Some(ordered) = position {
            ordered.order.wait_for_turn(ordered.position).await?;
        }
        let started = clock::monotonic_now();
        let traced = self.nanos_if_sampled(event);
        // Open until the leases are handed to the dispatcher, so that the lease auditor does not suspect them.
        let transfer = self.lease_transfers.begin();
        let planned = PlannedDeliveries {
            inner: self.clone(),
            epoch: epoch.clone(),
            event: event.clone(),
            deliveries: self.plan(event, matched.webhooks),
            started,
        };
        let new = NewEvent {
            event: event.clone(),
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
            order: position.cloned(),
        };
        let (reply_to, reply) = oneshot::channel();
        let (inner, event) = (self.clone(), event.clone());
        let done = Box::new(move |result: Result<PublishResult, StoreError>| {
            inner.trace_commit(&event, traced, &result);
            inner.on_committed(planned, &result);
            drop(transfer);
            // The publisher may have disconnected; its event is published nevertheless.
            let _ = reply_to.send(result);
        });
        self.store.publish(new, done);
        if let Some(batch) = context.batch {
            batch.hand_over();
        }
        if let Some(ordered) = position {
            ordered.order.advance(ordered.position);
        }
        reply.await.unwrap_or_else(|_| Err(StoreError::Unavailable("the store has stopped".into())))
    }

    /// Decides the initial state of each delivery, and reserves capacity for those that are sent immediately.
    fn plan(&self, event: &Event, webhooks: Vec<Arc<ResolvedWebhook>>) -> Vec<PlannedDelivery> {
        let bytes = event.memory_bytes();
        let issues_tickets = self.issues_tickets();
        let plan_delivery = |webhook: Arc<ResolvedWebhook>| {
            let ordering = webhook.ordering;
            let lane = Lane::for_new_delivery(ordering, &event.event_type, event.priority, false);
            let wait = webhook.retry_policy.first_delay();
            let ticketed = issues_tickets && wait.is_zero() && self.wants_ticket(&webhook, &lane);
            let initial_state = if !wait.is_zero() {
                InitialState::Waiting(event.timestamp + wait)
            } else if ticketed {
                // If no node claims it by its ticket, it is claimed from the store after this time.
                InitialState::Waiting(event.timestamp + CLAIM_GRACE)
            } else if self.may_send_immediately(&webhook, &lane)
                && self.dispatcher.reserve(self.webhook_limits(&webhook), &lane, bytes)
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

    /// Hands committed deliveries to the dispatcher, or frees the capacity that was reserved for them.
    fn on_committed(
        self: &Arc<Self>,
        planned: PlannedDeliveries,
        result: &Result<PublishResult, StoreError>,
    ) {
        self.inject_fault(FaultPoint::Committed);
        match result {
            Ok(PublishResult::New { .. }) => self.dispatch_committed(planned),
            _ => planned.free_capacity(),
        }
        match result {
            Ok(_) => drop(self.metrics.store.record_success()),
            Err(StoreError::Unavailable(_) | StoreError::WriterEnded(_)) => self.store_failed(),
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
        self.publish_tickets(ticketed.collect());
        for delivery in &planned.deliveries {
            if let InitialState::Waiting(due) = delivery.initial_state {
                self.scheduler_wakeup.wake_at(due);
                if due <= event.timestamp && self.may_send_immediately(&delivery.webhook, &delivery.lane) {
                    let actions = self.dispatcher.mark_backlogged(delivery.webhook.id, &delivery.lane);
                    self.apply_actions(actions);
                }
            }
        }
        let actions = self.dispatcher.enqueue_published(planned.into_leased());
        self.apply_actions(actions);
    }

    /// Returns whether webhook and lane allow to send a delivery from memory right after its commit. Ordered
    /// deliveries, and those of webhooks that need an assigned node, are only sent after a claim from the store.
    fn may_send_immediately(&self, webhook: &ResolvedWebhook, lane: &Lane) -> bool {
        webhook.state == WebhookState::Active
            && webhook.tenant.is_served()
            && !lane.is_ordered()
            && !self.needs_assignment(webhook)
    }
}
