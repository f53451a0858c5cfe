//! What follows from the store's result for an outcome: it is settled, decided again, kept for later, or dropped.

use std::sync::Arc;

use redrive_core::{delivery::outcome::Outcome, event::REASON_ERASED, protection::breaker::SavedCircuit};
use redrive_store::{OutcomeRecord, RecordResult, StoreError};

use super::{Recorder, SubmittedOutcome};
use crate::{metrics::InternalError, occurrences, supervision::FaultPoint};

impl Recorder {
    /// Handles the result of the store. Must not block.
    pub(super) fn on_record_result(
        self: &Arc<Self>,
        pending: SubmittedOutcome,
        result: Result<RecordResult, StoreError>,
    ) {
        self.faults.inject(FaultPoint::Recorded);
        match result {
            Ok(RecordResult::Recorded { config_version }) => {
                self.on_recorded(pending, config_version.is_some())
            }
            // The first recording may not have been followed up, so its effects are applied again.
            Ok(RecordResult::AlreadyRecorded) => {
                let disabled = pending.outcome.disable.is_some();
                self.on_recorded(pending, disabled)
            }
            Ok(RecordResult::CancelRequested(reason)) => self.decide_again(pending, &reason),
            Ok(RecordResult::WebhookNotInactive) => self.decide_without_webhook_cancel(pending),
            Ok(RecordResult::NotLeased) => {
                self.persist_circuit(&pending.outcome);
                self.refresh_after_disable(&pending.outcome, false);
                self.drop_lost_lease(pending.delivery, true);
            }
            // The store will never accept this outcome as it is: retry without details.
            Err(StoreError::InvalidItem(why)) => self.resubmit_without_details(pending, &why),
            Err(_) => {
                self.unrecorded.keep(pending);
                self.monitor.record_failure();
            }
        }
    }

    /// The outcome was not recorded, but what it showed about the endpoint is valid, so the circuit transition is stored.
    /// What it showed about the series of failures is stored only with its outcome, so it is given up: the next read of the
    /// webhook's stored runtime state (`merge_stored`) overwrites the local value.
    fn persist_circuit(self: &Arc<Self>, outcome: &OutcomeRecord) {
        if let Some(circuit) = &outcome.effects.circuit {
            let occurrence = outcome
                .occurrences
                .iter()
                .find(|occurrence| occurrence.kind.is_circuit_transition())
                .cloned();
            self.runtime_updater.persist_in_background(
                outcome.tenant_id.clone(),
                outcome.webhook_id,
                SavedCircuit::clone(circuit),
                occurrence,
            );
        }
        if outcome.effects.failing.is_some() {
            self.coordinator.local.mark_failing_stored(outcome.webhook_id);
        }
    }

    fn mark_effects_stored(&self, outcome: &OutcomeRecord) {
        if outcome.effects.circuit.is_some() {
            self.coordinator.local.mark_circuit_stored(outcome.webhook_id);
        }
        if outcome.effects.failing.is_some() {
            self.coordinator.local.mark_failing_stored(outcome.webhook_id);
        }
    }

    fn on_recorded(self: &Arc<Self>, pending: SubmittedOutcome, disabled: bool) {
        self.monitor.record_success();
        let outcome = &pending.outcome;
        self.mark_effects_stored(outcome);
        if !outcome.occurrences.is_empty() || outcome.effects.failing.is_some() {
            self.wakeups.notifier.notify_one();
        }
        if let Some(at) = outcome.outcome.next_attempt_at() {
            self.wakeups.claims.wake_at(at);
        }
        let status = outcome.outcome.status();
        if status.is_final() {
            self.rollups.record_ended(&outcome.tenant_id, status, 1, outcome.at);
        }
        let attempt = outcome.attempt.as_ref().map(|attempt| (attempt.number, attempt.failure_category));
        let (event, webhook_id) = (&pending.delivery.event, pending.delivery.webhook_id);
        self.metrics.record_outcome(event, webhook_id, &outcome.outcome, attempt);
        self.refresh_after_disable(outcome, disabled);
        self.log_outcome(&pending);
        if !outcome.outcome.is_retry() {
            let attempts = pending.delivery.attempt - u32::from(outcome.attempt.is_none());
            self.tracer.trace_end(&pending.delivery, status, attempts);
        }
        pending.delivery.settle(outcome.outcome.is_retry());
    }

    /// Logs a dead delivery at info level, and a failed attempt at debug level.
    fn log_outcome(&self, pending: &SubmittedOutcome) {
        let SubmittedOutcome { outcome, delivery, .. } = pending;
        let failed = outcome.attempt.as_ref().and_then(|attempt| Some((attempt, attempt.failure_category?)));
        let failure_category = failed.map(|(_, category)| category.name());
        match (&outcome.outcome, failed) {
            (Outcome::Dead(reason), _) => tracing::info!(
                delivery_id = %delivery.id, event_id = %delivery.event.id, webhook_id = %delivery.webhook_id,
                tenant_id = %outcome.tenant_id, attempt = delivery.attempt, reason = reason.name(), failure_category,
                "delivery marked dead"
            ),
            (_, Some((attempt, _))) => tracing::debug!(
                delivery_id = %delivery.id, event_id = %delivery.event.id, webhook_id = %delivery.webhook_id,
                tenant_id = %outcome.tenant_id, attempt = attempt.number, status = attempt.http_status_code,
                failure_category, "attempt failed"
            ),
            _ => {}
        }
    }

    /// Decides again because the delivery was cancelled between the decision and its recording.
    fn decide_again(self: &Arc<Self>, pending: SubmittedOutcome, reason: &str) {
        let SubmittedOutcome { outcome, delivery, response_class } = pending;
        let mut outcome = OutcomeRecord::clone(&outcome);
        outcome.record_despite_cancel = true;
        if let (Some((response_class, webhook)), Some(attempt)) = (&response_class, &mut outcome.attempt) {
            let decided = self.decide(&delivery, webhook, response_class, Some(reason));
            attempt.status = decided.outcome.attempt_status();
            attempt.next_retry_at = None;
            if reason == REASON_ERASED {
                attempt.response_body_sample = None;
            }
            outcome.outcome = decided.outcome;
        }
        self.submit(SubmittedOutcome { outcome: Arc::new(outcome), delivery, response_class });
    }

    /// Decides again because the delivery was to be cancelled for an inactive webhook, and the stored webhook is not
    /// inactive: the cache was outdated. Reloads the webhook; then an attempt is decided without the cancellation, and
    /// a delivery without an attempt is released.
    fn decide_without_webhook_cancel(self: &Arc<Self>, pending: SubmittedOutcome) {
        let SubmittedOutcome { outcome, delivery, response_class } = pending;
        let recorder = self.clone();
        self.tokio.spawn(async move {
            recorder.reload_webhook(&outcome.tenant_id, outcome.webhook_id).await;
            let mut outcome = OutcomeRecord::clone(&outcome);
            let (Some((class, webhook)), Some(attempt)) = (&response_class, &mut outcome.attempt) else {
                return delivery.release();
            };
            let decided = recorder.decide(&delivery, webhook, class, None);
            attempt.status = decided.outcome.attempt_status();
            attempt.next_retry_at = decided.outcome.next_attempt_at();
            let error = attempt.error_message.as_deref();
            outcome.occurrences.extend(occurrences::delivery_dead_by(&delivery, &decided, error, outcome.at));
            outcome.outcome = decided.outcome;
            outcome.requires_inactive_webhook = false;
            outcome.record_despite_cancel = false;
            recorder.submit(SubmittedOutcome { outcome: Arc::new(outcome), delivery, response_class });
        });
    }

    fn resubmit_without_details(self: &Arc<Self>, pending: SubmittedOutcome, why: &str) {
        let SubmittedOutcome { outcome, delivery, response_class } = pending;
        let mut outcome = OutcomeRecord::clone(&outcome);
        match &mut outcome.attempt {
            Some(attempt) if attempt.response_headers.is_some() => {
                tracing::error!(
                    delivery_id = %delivery.id, tenant_id = %outcome.tenant_id, error = why,
                    "outcome rejected by the store; recording it without details"
                );
                self.metrics.internal_error_counter(InternalError::Outcome).inc();
                attempt.response_headers = None;
                attempt.response_body_sample = None;
                attempt.custom_headers = None;
                self.submit(SubmittedOutcome { outcome: Arc::new(outcome), delivery, response_class });
            }
            // The delivery is sent again later, with growing delays. If its outcomes cannot be stored either, it becomes a
            // poison delivery and gets a failed attempt; then the retry policy decides.
            _ => {
                tracing::error!(
                    delivery_id = %delivery.id, tenant_id = %outcome.tenant_id, error = why, "recording an outcome failed"
                );
                self.metrics.internal_error_counter(InternalError::Outcome).inc();
                self.persist_circuit(&outcome);
                self.refresh_after_disable(&outcome, false);
                delivery.release_as_crashed();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use parking_lot::Mutex;
    use redrive_store::{Completion, Record};

    use super::*;
    use crate::{
        dispatch::EndWithoutAttempt,
        record::{Recorder, UnrecordedOutcomes},
        testing::TestPath,
    };

    /// A store that responds to outcomes as the test says.
    #[derive(Default)]
    struct FakeRecord {
        results: Mutex<VecDeque<Result<RecordResult, StoreError>>>,
        outcomes: Mutex<Vec<Arc<OutcomeRecord>>>,
    }

    impl Record for FakeRecord {
        fn record(&self, outcome: Arc<OutcomeRecord>, done: Completion<RecordResult>) {
            self.outcomes.lock().push(outcome);
            let result = self.results.lock().pop_front();
            done(result.unwrap_or(Ok(RecordResult::Recorded { config_version: None })));
        }
    }

    fn recorder(test: &TestPath, store: &Arc<FakeRecord>) -> Arc<Recorder> {
        let real = &test.path.recorder;
        Arc::new(Recorder {
            store: store.clone(),
            clock: real.clock.clone(),
            membership: real.membership.clone(),
            router: real.router.clone(),
            coordinator: real.coordinator.clone(),
            dispatcher: real.dispatcher.clone(),
            runtime_updater: real.runtime_updater.clone(),
            monitor: real.monitor.clone(),
            metrics: real.metrics.clone(),
            rollups: real.rollups.clone(),
            tracer: real.tracer.clone(),
            wakeups: real.wakeups.clone(),
            faults: real.faults.clone(),
            tokio: real.tokio.clone(),
            stop: real.stop.clone(),
            unrecorded: UnrecordedOutcomes::default(),
        })
    }

    async fn record_with(
        results: impl IntoIterator<Item = Result<RecordResult, StoreError>>,
    ) -> (TestPath, Arc<Recorder>, Arc<FakeRecord>) {
        let (test, store) = (TestPath::new().await, Arc::new(FakeRecord::default()));
        store.results.lock().extend(results);
        let recorder = recorder(&test, &store);
        let end: EndWithoutAttempt = Outcome::Cancelled("by the test".into()).into();
        recorder.record_without_attempt(test.started_delivery().await, end);
        (test, recorder, store)
    }

    #[tokio::test]
    async fn recorded_outcome_frees_everything() {
        let (test, recorder, store) = record_with([]).await;
        let load = test.path.dispatcher.queues.load();
        assert_eq!((load.deliveries, load.bytes, load.unsettled), (0, 0, 0));
        assert!(recorder.unrecorded.is_empty());
        assert_eq!(store.outcomes.lock().len(), 1);
    }

    #[tokio::test]
    async fn outcome_that_the_store_cannot_take_is_kept_with_its_slot() {
        let (test, recorder, store) =
            record_with([Err(StoreError::Unavailable("the disk is full".into()))]).await;
        assert!(!recorder.unrecorded.is_empty());
        assert_eq!(test.path.dispatcher.queues.load().unsettled, 1, "nothing is sent instead");
        // As the outcome retrier does when the store responds again.
        let pending = recorder.unrecorded.pop_first().unwrap();
        recorder.submit(pending);
        assert_eq!(test.path.dispatcher.queues.load().unsettled, 0);
        assert_eq!(store.outcomes.lock().len(), 2);
    }

    #[tokio::test]
    async fn outcome_of_a_lost_lease_is_dropped() {
        let (test, recorder, _) = record_with([Ok(RecordResult::NotLeased)]).await;
        assert!(recorder.unrecorded.is_empty());
        assert_eq!(test.path.dispatcher.queues.load().unsettled, 0);
        assert_eq!(test.to_release(), 0, "another node has the lease");
    }

    #[tokio::test]
    async fn delivery_whose_outcome_is_invalid_is_released_as_crashed() {
        let (test, recorder, _) = record_with([Err(StoreError::InvalidItem("too large".into()))]).await;
        assert!(recorder.unrecorded.is_empty());
        assert_eq!(test.to_release(), 1);
    }
}
