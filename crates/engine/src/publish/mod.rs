//! Publishing an event: check, fan out, reserve capacity, commit, hand over.
//!
//! The commit callback hands leased deliveries to the dispatcher even if the publisher has disconnected: a
//! committed lease always reaches its lane.

mod batch;
pub(crate) mod check_executor;
mod commit;
mod draft;
mod event_checks;
mod plan;
mod spans;

use std::sync::Arc;

use redrive_core::{
    EventId, WebhookId,
    event::{Event, event_type},
};
use redrive_store::{Publish, PublishResult, StoreError};

use self::{check_executor::BatchState, event_checks::CheckResult};
pub use self::{
    check_executor::{MAX_BATCH_COST_UNITS, MAX_INLINE_COST_UNITS},
    draft::{EditedCopy, EventDraft, PublishError, PublishReceipt},
};
use crate::{
    Settings,
    clock::{self, Clock},
    cluster::membership::Membership,
    coordinate::Coordinator,
    dispatch::Dispatcher,
    metrics::Metrics,
    publish::check_executor::CheckExecutor,
    record::StoreMonitor,
    routing::Router,
    schedule::tickets::TicketBroker,
    supervision::Faults,
    trace::Tracer,
    wakeups::Wakeups,
};

/// Maximum number of repeated fan-outs if the tenant's configuration keeps changing.
const MAX_FAN_OUT_RETRIES: usize = 19;
/// Number of times that a publish waits for a new epoch.
const MAX_EPOCH_WAITS: usize = 3;

/// What a draft says about its publish, in addition to the event.
#[derive(Default)]
struct PublishOptions {
    only_webhook: Option<WebhookId>,
    edited: Option<EditedCopy>,
}

impl PublishOptions {
    /// Returns whether the event is a test event.
    fn is_test(&self) -> bool {
        self.only_webhook.is_some()
    }

    /// Returns the recipients if they are named: they receive the event whatever they subscribe to.
    fn recipients(&self) -> Option<&[WebhookId]> {
        let named = self.edited.as_ref().and_then(|edited| edited.webhook_ids.as_deref());
        self.only_webhook.as_ref().map(std::slice::from_ref).or(named)
    }
}

/// Publishes events.
pub(crate) struct Publisher {
    pub(crate) store: Arc<dyn Publish>,
    pub(crate) clock: Clock,
    pub(crate) settings: Arc<Settings>,
    pub(crate) membership: Arc<Membership>,
    pub(crate) router: Arc<Router>,
    pub(crate) coordinator: Arc<Coordinator>,
    pub(crate) dispatcher: Arc<Dispatcher>,
    pub(crate) monitor: Arc<StoreMonitor>,
    /// `None` without a broker.
    pub(crate) tickets: Option<Arc<TicketBroker>>,
    pub(crate) checker: Arc<CheckExecutor>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) tracer: Arc<Tracer>,
    pub(crate) wakeups: Arc<Wakeups>,
    pub(crate) faults: Faults,
}

impl Publisher {
    /// Publishes an event of a tenant, which must not use the types reserved for Redrive. A test event does, and goes to
    /// one webhook.
    pub(crate) async fn publish_for_tenant(
        self: &Arc<Self>,
        draft: EventDraft,
    ) -> Result<PublishReceipt, PublishError> {
        if event_type::is_reserved(&draft.event_type) && draft.only_webhook.is_none() {
            return Err(PublishError::Reserved);
        }
        self.publish(draft).await
    }

    /// Publishes an event. The event and all its deliveries are durable when this returns.
    pub(crate) async fn publish(self: &Arc<Self>, draft: EventDraft) -> Result<PublishReceipt, PublishError> {
        let (event, options) = self.build_event(draft);
        event.validate()?;
        let event = Arc::new(event);
        let publishing = self.trace_publish(&event);
        let published = self.publish_event(&event, &options).await;
        if let Some(publishing) = publishing {
            publishing.set_result(&published);
        }
        published
    }

    async fn publish_event(
        self: &Arc<Self>,
        event: &Arc<Event>,
        options: &PublishOptions,
    ) -> Result<PublishReceipt, PublishError> {
        let mut epoch_waits = 0;
        for _ in 0..=MAX_FAN_OUT_RETRIES {
            let matched = match self.check(event, options, None).await? {
                CheckResult::Accepted(matched) => matched,
                CheckResult::Duplicate(receipt) => return Ok(receipt),
            };
            let deliveries = matched.webhooks.len();
            // Read after the checks, which may take a while: the epoch must be the current one.
            let epoch = self.membership.current_epoch();
            let reply = self.submit(&epoch, event, options, matched, None).await;
            match reply.unwrap_or_else(|_| Err(stopped())) {
                Ok(PublishResult::ConfigChanged) => drop(self.router.refresh(&event.tenant_id).await?),
                Ok(PublishResult::Fenced) => {
                    epoch_waits += 1;
                    if epoch_waits > MAX_EPOCH_WAITS || !self.membership.wait_for_new_epoch(&epoch).await {
                        return Err(StoreError::Fenced.into());
                    }
                }
                result => return self.receipt(event, deliveries, result),
            }
        }
        Err(PublishError::ConfigKeepsChanging)
    }

    /// Returns the receipt for a final result of the store.
    fn receipt(
        &self,
        event: &Event,
        deliveries: usize,
        result: Result<PublishResult, StoreError>,
    ) -> Result<PublishReceipt, PublishError> {
        match result? {
            PublishResult::New { sequence_number } => {
                self.metrics.published.inc();
                Ok(PublishReceipt {
                    event_id: event.id,
                    timestamp: event.timestamp,
                    sequence_number: Some(sequence_number),
                    deliveries: Some(deliveries),
                    duplicate: false,
                })
            }
            PublishResult::Duplicate { event_id } => Ok(self.duplicate_receipt(event_id)),
            PublishResult::KeyReused { event_id } => Err(PublishError::KeyReused(event_id)),
            PublishResult::NoTenant => Err(PublishError::NoTenant),
            PublishResult::ConfigChanged | PublishResult::Fenced => Err(PublishError::ConfigKeepsChanging),
        }
    }

    /// Builds the event, and returns it with what is not part of it.
    fn build_event(&self, draft: EventDraft) -> (Event, PublishOptions) {
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
            trace: self.tracer.trace_of(id, draft.trace),
            hops: draft.hops,
        };
        (event, PublishOptions { only_webhook: draft.only_webhook, edited: draft.edited })
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
}

fn stopped() -> StoreError {
    StoreError::Unavailable("the store has stopped".into())
}
