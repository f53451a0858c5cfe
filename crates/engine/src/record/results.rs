//! What follows from the store's result for an outcome: it is settled, decided again, kept for later, or dropped.

use std::sync::Arc;

use redrive_core::{
    DeliveryStatus, delivery::decide::Decision, event::REASON_ERASED, protection::breaker::SavedCircuit,
};
use redrive_store::{NextState, Outcome, RecordResult, StoreError};

use super::{
    PendingOutcome, Recorder,
    attempt::{attempt_status, next_state},
};
use crate::{metrics::InternalError, occurrences, supervision::FaultPoint};

impl Recorder {
    /// Handles the result of the store. Must not block.
    pub(super) fn on_record_result(
        self: &Arc<Self>,
        pending: PendingOutcome,
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
            Ok(RecordResult::CancelRequested(reason)) => self.decide_again(pending, reason),
            Ok(RecordResult::WebhookNotInactive) => self.decide_without_webhook_cancel(pending),
            Ok(RecordResult::Fenced) => {
                self.persist_effects(&pending.outcome);
                self.refresh_after_disable(&pending.outcome, false);
                self.drop_lost_lease(pending.delivery, true);
            }
            // The store will never accept this outcome as it is: retry without details.
            Err(StoreError::InvalidItem(why)) => self.retry_without_details(pending, &why),
            Err(_) => {
                self.unrecorded.0.lock().push_back(pending);
                self.monitor.record_failure();
            }
        }
    }

    /// Persists the circuit change of an outcome that was not recorded: its observation of the endpoint is still
    /// valid.
    fn persist_effects(self: &Arc<Self>, outcome: &Outcome) {
        if let Some(circuit) = &outcome.effects.circuit {
            let occurrence =
                outcome.occurrences.iter().find(|occurrence| occurrence.kind.opposite().is_some()).cloned();
            self.circuits.persist_later(
                outcome.tenant_id.clone(),
                outcome.webhook_id,
                SavedCircuit::clone(circuit),
                occurrence,
            );
        }
        if outcome.effects.failing.is_some() {
            self.coordinator.local.failing_stored(outcome.webhook_id);
        }
    }

    fn effects_stored(&self, outcome: &Outcome) {
        if outcome.effects.circuit.is_some() {
            self.coordinator.local.circuit_stored(outcome.webhook_id);
        }
        if outcome.effects.failing.is_some() {
            self.coordinator.local.failing_stored(outcome.webhook_id);
        }
    }

    fn on_recorded(self: &Arc<Self>, pending: PendingOutcome, disabled: bool) {
        self.monitor.record_success();
        let outcome = &pending.outcome;
        self.effects_stored(outcome);
        if !outcome.occurrences.is_empty() {
            self.wakeups.notifier.notify_one();
        }
        let status = match &outcome.next {
            NextState::Delivered => DeliveryStatus::Delivered,
            NextState::Retry { due } => {
                self.wakeups.scheduler.wake_at(*due);
                DeliveryStatus::Pending
            }
            NextState::Dead { .. } => DeliveryStatus::Dead,
            NextState::Cancelled { .. } => DeliveryStatus::Cancelled,
        };
        self.rollups.record_ended(&outcome.tenant_id, status, 1, outcome.at);
        let attempt = outcome.attempt.as_ref().map(|attempt| (attempt.number, attempt.failure_category));
        let (event, webhook_id) = (&pending.delivery.event, pending.delivery.webhook_id);
        self.metrics.record_end(event, webhook_id, status, attempt);
        self.refresh_after_disable(outcome, disabled);
        self.log_outcome(&pending);
        if status != DeliveryStatus::Pending {
            let attempts = pending.delivery.attempt - u32::from(outcome.attempt.is_none());
            self.tracer.trace_end(&pending.delivery, status, attempts);
        }
        pending.delivery.settle(status == DeliveryStatus::Pending);
    }

    /// Logs a dead delivery at info level, and a failed attempt at debug level.
    fn log_outcome(&self, pending: &PendingOutcome) {
        let PendingOutcome { outcome, delivery, .. } = pending;
        let failed = outcome.attempt.as_ref().and_then(|attempt| Some((attempt, attempt.failure_category?)));
        let failure_category = failed.map(|(_, category)| category.name());
        match (&outcome.next, failed) {
            (NextState::Dead { reason }, _) => tracing::info!(
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
    fn decide_again(self: &Arc<Self>, pending: PendingOutcome, reason: String) {
        let PendingOutcome { outcome, delivery, response_class } = pending;
        let mut outcome = Outcome::clone(&outcome);
        outcome.saw_cancel = true;
        if let (Some((response_class, webhook)), Some(attempt)) = (&response_class, &mut outcome.attempt) {
            let decided = self.decide(&delivery, webhook, response_class, true);
            attempt.status = attempt_status(&decided.decision);
            attempt.next_retry_at = None;
            if reason == REASON_ERASED {
                attempt.response_body_sample = None;
            }
            outcome.next = next_state(&decided.decision, Some(reason));
        }
        self.submit(PendingOutcome { outcome: Arc::new(outcome), delivery, response_class });
    }

    /// Decides again because the delivery was to be cancelled for an inactive webhook, and the stored webhook is not
    /// inactive: the cache was outdated. Reloads the webhook; then an attempt is decided without the cancellation, and
    /// a delivery without an attempt is released.
    fn decide_without_webhook_cancel(self: &Arc<Self>, pending: PendingOutcome) {
        let PendingOutcome { outcome, delivery, response_class } = pending;
        let recorder = self.clone();
        self.runtime.spawn(async move {
            recorder.reload_webhook(&outcome.tenant_id, outcome.webhook_id).await;
            let mut outcome = Outcome::clone(&outcome);
            let (Some((class, webhook)), Some(attempt)) = (&response_class, &mut outcome.attempt) else {
                return delivery.release();
            };
            let decided = recorder.decide(&delivery, webhook, class, false);
            attempt.status = attempt_status(&decided.decision);
            attempt.next_retry_at = match decided.decision {
                Decision::Retry { at } => Some(at),
                _ => None,
            };
            let error = attempt.error_message.as_deref();
            outcome.occurrences.extend(occurrences::delivery_dead_by(&delivery, &decided, error, outcome.at));
            outcome.next = next_state(&decided.decision, None);
            outcome.requires_inactive_webhook = false;
            outcome.saw_cancel = false;
            recorder.submit(PendingOutcome { outcome: Arc::new(outcome), delivery, response_class });
        });
    }

    fn retry_without_details(self: &Arc<Self>, pending: PendingOutcome, why: &str) {
        let PendingOutcome { outcome, delivery, response_class } = pending;
        let mut outcome = Outcome::clone(&outcome);
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
                self.submit(PendingOutcome { outcome: Arc::new(outcome), delivery, response_class });
            }
            // The delivery is sent again later. If its outcomes cannot be stored either, the delays grow, and it ends as
            // one whose sender died.
            _ => {
                tracing::error!(
                    delivery_id = %delivery.id, tenant_id = %outcome.tenant_id, error = why, "recording an outcome failed"
                );
                self.metrics.internal_error_counter(InternalError::Outcome).inc();
                self.persist_effects(&outcome);
                self.refresh_after_disable(&outcome, false);
                delivery.release_failed();
            }
        }
    }
}
