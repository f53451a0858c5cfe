//! Publishes several events of one tenant in their order.
//!
//! Every event is checked before it is submitted to the store, one after the other, however long a check takes on another
//! thread. The store numbers events in the order in which they are submitted. If one cannot be stored now, the store
//! refuses all behind it, so that a caller who repeats the rest keeps the order.

use std::sync::Arc;

use redrive_core::{
    TenantId,
    event::{Event, event_type},
};
use redrive_store::{PublishResult, PublishSequence, SequencePosition, StoreError};
use tokio::sync::oneshot;

use super::{
    BatchState, EventDraft, MAX_EPOCH_WAITS, MAX_FAN_OUT_RETRIES, PublishError, PublishOptions,
    PublishReceipt, Publisher, event_checks::CheckResult, spans::PublishSpan, stopped,
};
use crate::cluster::membership::NodeEpoch;

/// Units of work for publishing one event, in addition to parsing and checking it.
const EVENT_COST_UNITS: u64 = 4_096;

/// Result of one event.
type EventResult = Result<PublishReceipt, PublishError>;

/// An event that is not published yet.
struct UnpublishedEvent {
    index: usize,
    event: Arc<Event>,
    options: PublishOptions,
}

/// An event that was submitted to the store.
struct SubmittedEvent {
    unpublished: UnpublishedEvent,
    epoch: Arc<NodeEpoch>,
    /// Number of deliveries that it becomes.
    deliveries: usize,
    reply: oneshot::Receiver<Result<PublishResult, StoreError>>,
}

/// A batch in progress: the results so far, and the events that are still to be submitted.
struct Batch {
    /// Spans of the publishes, ended with their results.
    spans: Vec<Option<PublishSpan>>,
    results: Vec<Option<EventResult>>,
    remaining: Vec<UnpublishedEvent>,
    state: BatchState,
}

impl Publisher {
    /// Publishes events of one tenant in this order, and returns their results in the same order. An event that is
    /// invalid, or whose checks would exceed `max_work`, is refused alone. An event that cannot be stored now is refused with all that come after it.
    pub(crate) async fn publish_batch(
        self: &Arc<Self>,
        tenant_id: &TenantId,
        drafts: Vec<EventDraft>,
        max_work: u64,
    ) -> Vec<EventResult> {
        let mut batch = self.begin_batch(drafts, max_work);
        let (mut epoch_waits, mut retries) = (0, 0);
        let mut last_cause = PublishError::ConfigKeepsChanging;
        while !batch.remaining.is_empty() && retries <= MAX_FAN_OUT_RETRIES {
            let remaining_before = batch.remaining.len();
            let submitted = self.submit_all(&mut batch).await;
            // The store refuses all events behind one that it does not take now. They are submitted again after it, or
            // fail with it.
            let (mut is_stale, mut fenced, mut failed) = (false, None, None);
            for event in submitted {
                let SubmittedEvent { unpublished, epoch, deliveries, reply } = event;
                match reply.await.unwrap_or_else(|_| Err(stopped())) {
                    Ok(PublishResult::ConfigChanged) => is_stale = true,
                    Ok(PublishResult::Fenced) => fenced = Some(epoch),
                    Err(StoreError::PrecedingEventFailed) if failed.is_none() => {}
                    result => {
                        let receipt = match (result, &failed) {
                            (Err(StoreError::PrecedingEventFailed), Some(error)) => {
                                Err(PublishError::clone(error))
                            }
                            (result, _) => self.receipt(&unpublished.event, deliveries, result),
                        };
                        if let Err(error) = &receipt
                            && may_succeed_later(error)
                        {
                            failed.get_or_insert(error.clone());
                        }
                        batch.results[unpublished.index] = Some(receipt);
                        continue;
                    }
                }
                batch.remaining.push(unpublished);
            }
            // Only passes in which no event got its result count.
            retries = if batch.remaining.len() < remaining_before { 0 } else { retries + 1 };
            if is_stale {
                last_cause = PublishError::ConfigKeepsChanging;
            }
            if is_stale && let Err(error) = self.router.refresh(tenant_id).await {
                return batch.end(&error.into());
            }
            if let Some(epoch) = fenced {
                last_cause = StoreError::Fenced.into();
                epoch_waits += 1;
                if epoch_waits > MAX_EPOCH_WAITS || !self.membership.wait_for_new_epoch(&epoch).await {
                    return batch.end(&StoreError::Fenced.into());
                }
            }
        }
        batch.end(&last_cause)
    }

    /// Builds and validates the events. Those that are invalid have their result.
    fn begin_batch(&self, drafts: Vec<EventDraft>, max_work: u64) -> Batch {
        let state = BatchState::new(max_work);
        let mut batch = Batch { spans: Vec::new(), results: Vec::new(), remaining: Vec::new(), state };
        for (index, draft) in drafts.into_iter().enumerate() {
            let (event, options) = self.build_event(draft);
            let valid = match event_type::is_reserved(&event.event_type) {
                true => Err(PublishError::Reserved),
                false => event.validate().map_err(PublishError::from),
            };
            let event = Arc::new(event);
            let is_valid = valid.is_ok();
            batch.spans.push(if is_valid { self.trace_publish(&event) } else { None });
            batch.results.push(valid.err().map(Err));
            if is_valid {
                batch.remaining.push(UnpublishedEvent { index, event, options });
            }
        }
        batch
    }

    /// Checks the remaining events and submits them to the store, one after the other.
    async fn submit_all(self: &Arc<Self>, batch: &mut Batch) -> Vec<SubmittedEvent> {
        let (sequence, mut submitted) = (Arc::<PublishSequence>::default(), Vec::new());
        let mut open = std::mem::take(&mut batch.remaining).into_iter();
        while let Some(next) = open.next() {
            match self.check(&next.event, &next.options, Some(&batch.state)).await {
                Ok(CheckResult::Accepted(matched)) => {
                    let deliveries = matched.webhooks.len();
                    let position =
                        SequencePosition { sequence: sequence.clone(), position: submitted.len() as u64 };
                    // Read after the check, which may take a while: the epoch must be the current one.
                    let epoch = self.membership.current_epoch();
                    let reply = self.submit(&epoch, &next.event, &next.options, matched, Some(position));
                    submitted.push(SubmittedEvent { unpublished: next, epoch, deliveries, reply });
                }
                Ok(CheckResult::Duplicate(receipt)) => batch.results[next.index] = Some(Ok(receipt)),
                Err(error) if may_succeed_later(&error) => {
                    // Nothing behind it may be stored before it.
                    batch.results[next.index] = Some(Err(error.clone()));
                    for behind in open.by_ref() {
                        batch.results[behind.index] = Some(Err(error.clone()));
                    }
                }
                Err(refused) => batch.results[next.index] = Some(Err(refused)),
            }
            batch.state.add_inline_work(EVENT_COST_UNITS);
            if batch.state.must_yield() {
                tokio::task::yield_now().await;
            }
        }
        submitted
    }
}

/// Returns whether an event that was refused for this may be published later as it is.
fn may_succeed_later(error: &PublishError) -> bool {
    match error {
        PublishError::Store(StoreError::InvalidItem(_)) => false,
        PublishError::Store(_) | PublishError::NoTenant | PublishError::ConfigKeepsChanging => true,
        _ => false,
    }
}

impl Batch {
    /// Returns the results; events that have none get this error.
    fn end(self, error: &PublishError) -> Vec<EventResult> {
        let results = self.results.into_iter().map(|result| result.unwrap_or_else(|| Err(error.clone())));
        let set_result = |(result, span): (EventResult, Option<PublishSpan>)| {
            if let Some(span) = span {
                span.set_result(&result);
            }
            result
        };
        results.zip(self.spans).map(set_result).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use parking_lot::Mutex;
    use redrive_store::{Completion, NewEvent, Publish};

    use super::*;
    use crate::testing::{TestPath, draft};

    /// A store that responds to publishes as the test says.
    #[derive(Default)]
    struct FakePublish {
        results: Mutex<VecDeque<Result<PublishResult, StoreError>>>,
        /// Payloads in the order in which they were submitted.
        submitted: Mutex<Vec<String>>,
    }

    impl Publish for FakePublish {
        fn publish(&self, event: NewEvent, done: Completion<PublishResult>) {
            let payload = String::from_utf8_lossy(&event.event.data).into_owned();
            let number = {
                let mut submitted = self.submitted.lock();
                submitted.push(payload);
                submitted.len() as i64
            };
            let result = self.results.lock().pop_front();
            done(result.unwrap_or(Ok(PublishResult::New { sequence_number: number })));
        }
    }

    async fn publish(
        results: impl IntoIterator<Item = Result<PublishResult, StoreError>>,
        drafts: Vec<EventDraft>,
    ) -> (Vec<EventResult>, Vec<String>, TestPath) {
        let (test, store) = (TestPath::new().await, Arc::new(FakePublish::default()));
        store.results.lock().extend(results);
        let real = &test.path.publisher;
        let publisher = Arc::new(Publisher {
            store: store.clone(),
            clock: real.clock.clone(),
            settings: real.settings.clone(),
            membership: real.membership.clone(),
            router: real.router.clone(),
            coordinator: real.coordinator.clone(),
            dispatcher: real.dispatcher.clone(),
            monitor: real.monitor.clone(),
            tickets: None,
            checker: real.checker.clone(),
            metrics: real.metrics.clone(),
            tracer: real.tracer.clone(),
            wakeups: real.wakeups.clone(),
            faults: real.faults.clone(),
        });
        let results = publisher.publish_batch(&TenantId::default(), drafts, u64::MAX).await;
        let submitted = store.submitted.lock().clone();
        (results, submitted, test)
    }

    fn numbered(n: usize) -> String {
        format!("{{\"n\":{n}}}")
    }

    #[tokio::test]
    async fn stale_tail_is_offered_again_in_its_order() {
        let new = |sequence_number| Ok(PublishResult::New { sequence_number });
        let behind = || Err(StoreError::PrecedingEventFailed);
        let stale = [new(1), Ok(PublishResult::ConfigChanged), behind(), behind()];
        let (results, submitted, _test) = publish(stale, (0..4).map(draft).collect()).await;
        assert!(results.iter().all(Result::is_ok), "{results:?}");
        assert_eq!(submitted, [0, 1, 2, 3, 1, 2, 3].map(numbered));
    }

    #[tokio::test]
    async fn events_behind_a_failure_are_refused_with_it() {
        let unavailable = StoreError::Unavailable("the disk is full".into());
        let results = [
            Ok(PublishResult::New { sequence_number: 1 }),
            Err(unavailable.clone()),
            Err(StoreError::PrecedingEventFailed),
        ];
        let (results, submitted, test) = publish(results, (0..3).map(draft).collect()).await;
        assert!(results[0].is_ok());
        let refused = Err(PublishError::Store(unavailable));
        assert_eq!(results[1..], [refused.clone(), refused]);
        assert_eq!(submitted.len(), 3, "nothing is submitted again");
        let load = test.path.dispatcher.queues.load();
        assert_eq!(load.deliveries, 1, "only what was committed occupies capacity");
    }

    #[tokio::test]
    async fn invalid_event_is_refused_alone() {
        let reserved = EventDraft { event_type: "redrive.circuit.opened".into(), ..draft(1) };
        let (results, submitted, _test) = publish([], vec![draft(0), reserved, draft(2)]).await;
        assert!(results[0].is_ok() && results[2].is_ok());
        assert_eq!(results[1], Err(PublishError::Reserved));
        assert_eq!(submitted, [0, 2].map(numbered));
    }
}
