//! Publishes several events of one tenant in their order.
//!
//! Every event is checked before it is offered to the store, one after the other, however long a check takes on another
//! thread. The store numbers events in the order in which they are offered. If one cannot be stored now, the store
//! refuses all behind it, so that a caller who repeats the rest keeps the order.

use std::sync::Arc;

use redrive_core::{
    TenantId, WebhookId,
    event::{Event, event_type},
};
use redrive_store::{OrderedPosition, PublishOrder, PublishResult, StoreError};
use tokio::sync::oneshot;

use super::{
    BatchState, EventDraft, MAX_EPOCH_WAITS, MAX_FAN_OUT_RETRIES, PublishError, PublishReceipt, Publisher,
    check::Checked, config_keeps_changing, stopped,
};
use crate::cluster::membership::NodeEpoch;

/// Units of work for publishing one event, in addition to parsing and checking it.
const WORK_PER_EVENT: u64 = 4_096;

/// Result of one event.
type EventResult = Result<PublishReceipt, PublishError>;

/// An event that is not published yet.
struct OpenEvent {
    index: usize,
    event: Arc<Event>,
    only: Option<WebhookId>,
}

/// An event that was offered to the store.
struct OfferedEvent {
    open: OpenEvent,
    epoch: Arc<NodeEpoch>,
    /// Number of deliveries that it becomes.
    deliveries: usize,
    reply: oneshot::Receiver<Result<PublishResult, StoreError>>,
}

/// A batch in progress: the results so far, and the events that are still to be offered.
struct Batch {
    results: Vec<Option<EventResult>>,
    open: Vec<OpenEvent>,
    state: BatchState,
}

impl Publisher {
    /// Publishes events of one tenant in this order, and returns their results in the same order. An event that is
    /// invalid is refused alone. An event that cannot be stored now is refused with all that come after it.
    pub(crate) async fn publish_batch(
        self: &Arc<Self>,
        tenant_id: &TenantId,
        drafts: Vec<EventDraft>,
    ) -> Vec<EventResult> {
        let mut batch = self.begin_batch(drafts);
        let mut epoch_waits = 0;
        for _ in 0..=MAX_FAN_OUT_RETRIES {
            if batch.open.is_empty() {
                break;
            }
            let offered = self.offer_all(&mut batch).await;
            // The store refuses all events behind one that it does not take now. They are offered again after it, or
            // fail with it.
            let (mut is_stale, mut fenced, mut failed) = (false, None, None);
            for offer in offered {
                let OfferedEvent { open, epoch, deliveries, reply } = offer;
                match reply.await.unwrap_or_else(|_| Err(stopped())) {
                    Ok(PublishResult::ConfigChanged) => is_stale = true,
                    Ok(PublishResult::Fenced) => fenced = Some(epoch),
                    Err(StoreError::OutOfOrder) if failed.is_none() => {}
                    result => {
                        let receipt = match (result, &failed) {
                            (Err(StoreError::OutOfOrder), Some(error)) => Err(PublishError::clone(error)),
                            (result, _) => self.receipt(&open.event, deliveries, result),
                        };
                        if let Err(error @ PublishError::Store(_)) = &receipt {
                            failed.get_or_insert(error.clone());
                        }
                        batch.results[open.index] = Some(receipt);
                        continue;
                    }
                }
                batch.open.push(open);
            }
            if is_stale && let Err(error) = self.router.refresh(tenant_id).await {
                return batch.end(&error.into());
            }
            if let Some(epoch) = fenced {
                epoch_waits += 1;
                if epoch_waits > MAX_EPOCH_WAITS || !self.membership.wait_for_new_epoch(&epoch).await {
                    return batch.end(&StoreError::Fenced.into());
                }
            }
        }
        batch.end(&config_keeps_changing())
    }

    /// Builds and validates the events. Those that are invalid have their result.
    fn begin_batch(&self, drafts: Vec<EventDraft>) -> Batch {
        let mut batch = Batch { results: Vec::new(), open: Vec::new(), state: BatchState::default() };
        for (index, draft) in drafts.into_iter().enumerate() {
            let (event, only) = self.build_event(draft);
            let valid = match event_type::is_reserved(&event.event_type) {
                true => Err(PublishError::Reserved),
                false => event.validate().map_err(PublishError::from),
            };
            batch.results.push(valid.err().map(Err));
            if batch.results[index].is_none() {
                batch.open.push(OpenEvent { index, event: Arc::new(event), only });
            }
        }
        batch
    }

    /// Checks the open events and offers them to the store, one after the other.
    async fn offer_all(self: &Arc<Self>, batch: &mut Batch) -> Vec<OfferedEvent> {
        let (order, mut offered) = (Arc::<PublishOrder>::default(), Vec::new());
        let mut open = std::mem::take(&mut batch.open).into_iter();
        while let Some(next) = open.next() {
            match self.check(&next.event, next.only, Some(&batch.state)).await {
                Ok(Checked::Accepted(matched)) => {
                    let deliveries = matched.webhooks.len();
                    let position = OrderedPosition { order: order.clone(), position: offered.len() as u64 };
                    // Read after the check, which may take a while: the epoch must be the current one.
                    let epoch = self.membership.current_epoch();
                    let reply = self.offer(&epoch, &next.event, matched, Some(position));
                    offered.push(OfferedEvent { open: next, epoch, deliveries, reply });
                }
                Ok(Checked::Duplicate(receipt)) => batch.results[next.index] = Some(Ok(receipt)),
                Err(
                    error @ (PublishError::Store(_) | PublishError::NoTenant | PublishError::BatchTooCostly),
                ) => {
                    // It may succeed later, so nothing behind it may be stored before it.
                    batch.results[next.index] = Some(Err(error.clone()));
                    for behind in open.by_ref() {
                        batch.results[behind.index] = Some(Err(error.clone()));
                    }
                }
                Err(refused) => batch.results[next.index] = Some(Err(refused)),
            }
            batch.state.add_inline_work(WORK_PER_EVENT);
            if batch.state.must_yield() {
                tokio::task::yield_now().await;
            }
        }
        offered
    }
}

impl Batch {
    /// Returns the results; events that have none get this error.
    fn end(self, error: &PublishError) -> Vec<EventResult> {
        self.results.into_iter().map(|result| result.unwrap_or_else(|| Err(error.clone()))).collect()
    }
}
