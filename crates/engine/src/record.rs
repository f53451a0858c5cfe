//! Records outcomes of leased deliveries; no other module does. Outcomes that the store does not accept are kept in
//! memory and retried until it does; until then they occupy their node slots and nothing new is sent instead.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use parking_lot::Mutex;
use redrive_core::{
    AttemptId, DeliveryStatus, FailureCategory,
    delivery::{
        decide::{AttemptContext, Decision, DecisionEffects, decide, should_disable},
        lane::Lane,
        response::{ResponseClass, SendFailure, classify},
    },
    event::{PayloadFormat, REASON_ERASED},
    protection::breaker::{CallOutcome, SavedCircuit},
    webhook::WebhookState,
};
use redrive_egress::Timings;
use redrive_store::{
    Attempt, AttemptStatus, DisableWebhook, NextState, Outcome, PhaseTimings, RecordResult, StoreError,
    WebhookEffects,
};
use tokio::sync::Notify;

use crate::{
    Inner,
    attempt::{AttemptResult, header_lines},
    clock,
    coordination::{AttemptReport, ReportEffects},
    dispatch::LeasedDelivery,
    gate::Admission,
    metrics::InternalError,
    notify::occurrences,
    probe::Probe,
    registry::ResolvedWebhook,
    services::{EngineFailure, FaultPoint},
    unsettled::UnsettledDelivery,
};

/// Interval between attempts to record outcomes in a failed store.
pub(crate) const RECORD_RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// Interval between pings of an idle store, and their timeout.
const STORE_PING_INTERVAL: Duration = Duration::from_secs(10);
/// Disable reason of a webhook whose endpoint responded 410.
pub(crate) const REASON_GONE: &str = "the endpoint returned 410 Gone";

/// Outcome being recorded, with what is needed to decide again or to drop it.
pub(crate) struct PendingOutcome {
    outcome: Arc<Outcome>,
    delivery: UnsettledDelivery,
    response_class: Option<(ResponseClass, Arc<ResolvedWebhook>)>,
}

/// End of a delivery without a request.
pub(crate) struct EndWithoutAttempt {
    next: NextState,
    /// Whether the store must verify that the webhook is inactive.
    requires_inactive_webhook: bool,
}

impl EndWithoutAttempt {
    /// Creates a cancellation because the webhook is inactive, which the store verifies.
    pub(crate) fn for_inactive_webhook(reason: impl Into<String>) -> Self {
        Self { next: NextState::Cancelled { reason: reason.into() }, requires_inactive_webhook: true }
    }
}

impl From<NextState> for EndWithoutAttempt {
    fn from(next: NextState) -> Self {
        Self { next, requires_inactive_webhook: false }
    }
}

/// Outcomes that the store has not accepted yet.
#[derive(Default)]
pub(crate) struct UnrecordedOutcomes {
    pending: Mutex<VecDeque<PendingOutcome>>,
    /// Wakes the loop that records them after the store failed.
    retry_wakeup: Notify,
}

impl UnrecordedOutcomes {
    /// Drops all outcomes: the epoch has ended, and other nodes have the deliveries.
    pub(crate) fn clear(&self) {
        let dropped = std::mem::take(&mut *self.pending.lock());
        drop(dropped);
    }
}

impl Inner {
    /// Decides what an attempt means for the delivery and records the outcome.
    pub(crate) async fn record_attempt(
        self: &Arc<Self>,
        mut delivery: UnsettledDelivery,
        mut admission: Admission,
        result: AttemptResult,
    ) {
        // The request has ended, so its slot is free for another one.
        drop(admission.slot.take());
        let now = self.clock.now();
        let webhook = &admission.webhook;
        let response_class = classify(&result.response(), &webhook.retry_policy, now);
        self.inject_fault(FaultPoint::Classify);
        let requested_reason = self.dispatcher.cancel_reason(delivery.id);
        let cancel_requested = requested_reason.is_some();
        let cancel = requested_reason.or_else(|| self.webhook_cancel_reason(&delivery));
        let decided = self.decide(&delivery, webhook, &response_class, cancel.is_some());
        let report = self.build_report(&admission, &result, &response_class, &decided, cancel.is_some());
        let changed = self.report_attempt(webhook, report).await;
        if let Some(probe) = admission.probe.take() {
            probe.reported();
        }
        let disable_reason =
            self.disable_reason(&decided, &changed, failure_category(&response_class).is_some());
        self.apply_report_effects(webhook, &changed);
        // Parked before the slot is freed: queued deliveries return to the store and wait there until this outcome is
        // recorded or refused. The webhook counts as disabled only after the store has confirmed it.
        if disable_reason.is_some() {
            self.park(webhook, None);
        }
        if let Some(until) = decided.pause_until {
            self.park(webhook, Some(until));
        }
        delivery.free_webhook_slot();
        let reported = changed.circuit.as_ref().and_then(occurrences::circuit_transition);
        let effects = WebhookEffects {
            circuit: changed.circuit.map(|change| Box::new(change.saved)),
            pause_until: decided.pause_until,
            failing: changed.failing,
        };
        let (traced, timings) = (result.started_nanos, result.exchange.timings);
        let mut attempt = self.build_attempt(&delivery, &admission, result, &response_class, &decided);
        self.trace_attempt(&delivery, &admission.webhook, traced, &attempt, &timings);
        if cancel.as_deref() == Some(REASON_ERASED) {
            // The response may repeat the erased payload.
            attempt.response_body_sample = None;
        }
        // Usually empty, which allocates nothing.
        let mut recorded: Vec<_> = reported.into_iter().collect();
        recorded.extend(occurrences::delivery_dead_by(
            &delivery,
            &decided,
            attempt.error_message.as_deref(),
            now,
        ));
        let disabled_occurrence = |reason: &String| {
            occurrences::webhook_disabled(&delivery.event.tenant_id, delivery.webhook_id, reason, now)
        };
        recorded.extend(disable_reason.as_ref().map(disabled_occurrence));
        let next = next_state(&decided.decision, cancel.clone());
        let outcome = Outcome {
            epoch: delivery.epoch.epoch,
            delivery_id: delivery.id,
            tenant_id: delivery.event.tenant_id.clone(),
            webhook_id: delivery.webhook_id,
            requires_inactive_webhook: matches!(next, NextState::Cancelled { .. }) && !cancel_requested,
            next,
            attempt: Some(attempt),
            saw_cancel: cancel.is_some(),
            disable: disable_reason.map(|reason| DisableWebhook { reason, url: webhook.url.to_string() }),
            effects,
            occurrences: recorded,
            at: now,
        };
        self.submit(PendingOutcome {
            outcome: Arc::new(outcome),
            delivery,
            response_class: Some((response_class, admission.webhook)),
        });
    }

    /// Updates statistics and returns the report of the attempt for its circuit.
    fn build_report(
        &self,
        admission: &Admission,
        result: &AttemptResult,
        response_class: &ResponseClass,
        decided: &DecisionEffects,
        cancelled: bool,
    ) -> AttemptReport {
        let now = self.clock.now();
        let category = failure_category(response_class);
        self.rollups.record_attempt(&admission.webhook, result.exchange.timings.total, category, now);
        if category == Some(FailureCategory::Dns) {
            self.track_dns_failure(admission.webhook.id, &admission.webhook.tenant.id);
        }
        // A request that was cut by the drain deadline, or failed after its cancellation, says nothing about the
        // endpoint.
        let cut_by_drain =
            matches!(&result.exchange.result, Err(failed) if failed.failure == SendFailure::DrainDeadline);
        let is_inconclusive = category.is_some() && (cancelled || cut_by_drain);
        AttemptReport {
            call: if is_inconclusive { CallOutcome::Ignored } else { CallOutcome::from_category(category) },
            probe: admission.probe.as_ref().map(Probe::id),
            success: (!is_inconclusive).then_some(category.is_none()),
            pause_until: decided.pause_until,
        }
    }

    /// Returns the reason to disable the webhook, if there is one.
    fn disable_reason(
        &self,
        decided: &DecisionEffects,
        changed: &ReportEffects,
        failed: bool,
    ) -> Option<String> {
        if decided.disable_webhook {
            return Some(REASON_GONE.to_owned());
        }
        let disable_after = self.settings.disable_after;
        let confirmed_now = self.clock.confirmed_now();
        if !failed || !should_disable(changed.failing_since, disable_after, confirmed_now) {
            return None;
        }
        let length = match disable_after.unwrap_or_default().as_secs() {
            1 => "1 second".to_owned(),
            86_400 => "1 day".to_owned(),
            secs if secs % 86_400 == 0 => format!("{} days", secs / 86_400),
            secs => format!("{secs} seconds"),
        };
        Some(format!("no delivery succeeded for {length}"))
    }

    /// Records the end of a delivery without a request.
    pub(crate) fn record_without_attempt(
        self: &Arc<Self>,
        delivery: UnsettledDelivery,
        end: EndWithoutAttempt,
    ) {
        let EndWithoutAttempt { next, requires_inactive_webhook } = end;
        let at = self.clock.now();
        let dead_occurrence = match &next {
            NextState::Dead { reason } => occurrences::delivery_dead(&delivery, *reason, None, at),
            _ => None,
        };
        let outcome = Outcome {
            epoch: delivery.epoch.epoch,
            delivery_id: delivery.id,
            tenant_id: delivery.event.tenant_id.clone(),
            webhook_id: delivery.webhook_id,
            attempt: None,
            next,
            saw_cancel: true,
            requires_inactive_webhook,
            disable: None,
            effects: WebhookEffects::default(),
            occurrences: dead_occurrence.into_iter().collect(),
            at,
        };
        self.submit(PendingOutcome { outcome: Arc::new(outcome), delivery, response_class: None });
    }

    /// Drops a delivery whose lease belongs to another node. If it `has_outcome`, that is discarded; otherwise nothing
    /// was sent.
    pub(crate) fn drop_lost_lease(&self, delivery: UnsettledDelivery, has_outcome: bool) {
        let message = match has_outcome {
            true => "lease lost; outcome discarded",
            false => "lease lost; delivery dropped",
        };
        tracing::warn!(
            delivery_id = %delivery.id, event_id = %delivery.event.id, webhook_id = %delivery.webhook_id,
            tenant_id = %delivery.event.tenant_id, "{message}"
        );
        self.metrics.fenced.inc();
        if !delivery.epoch.is_ended() {
            self.membership.check_epoch_now();
        }
        delivery.settle(false);
    }

    /// Returns the reason why the webhook's deliveries are cancelled, if they are. The webhook was cached at the gate,
    /// so one that is missing now was deleted since.
    fn webhook_cancel_reason(&self, delivery: &LeasedDelivery) -> Option<String> {
        match self.registry.webhook(delivery.webhook_id) {
            Some(webhook) => webhook.state.cancel_reason().map(str::to_owned),
            None => WebhookState::Deleted.cancel_reason().map(str::to_owned),
        }
    }

    fn decide(
        &self,
        delivery: &LeasedDelivery,
        webhook: &ResolvedWebhook,
        response_class: &ResponseClass,
        cancel_requested: bool,
    ) -> DecisionEffects {
        let context = AttemptContext {
            attempt: delivery.attempt,
            created_at: delivery.created_at,
            confirmed_now: self.clock.confirmed_now(),
            cancel_requested,
            policy: &webhook.retry_policy,
        };
        decide(&context, response_class, self.clock.now(), clock::random_unit())
    }

    fn build_attempt(
        &self,
        delivery: &LeasedDelivery,
        admission: &Admission,
        result: AttemptResult,
        response_class: &ResponseClass,
        decided: &DecisionEffects,
    ) -> Attempt {
        let timings = to_phase_timings(&result.exchange.timings);
        let category = failure_category(response_class);
        let (id, executed_at) = (result.id, result.executed_at);
        let mut attempt = Attempt {
            id,
            number: delivery.attempt,
            status: attempt_status(&decided.decision),
            failure_category: category,
            http_status_code: None,
            error_message: None,
            custom_headers: self.recorded_request_headers(delivery, &admission.webhook, id),
            response_headers: None,
            response_body_sample: None,
            timings,
            scheduled_at: delivery.due,
            executed_at,
            next_retry_at: match decided.decision {
                Decision::Retry { at } => Some(at),
                _ => None,
            },
            circuit: admission.circuit,
            worker: delivery.epoch.worker.clone(),
        };
        match result.exchange.result {
            Ok(response) => {
                attempt.http_status_code = Some(response.status);
                attempt.error_message =
                    category.map(|_| format!("the endpoint returned {}", response.status));
                attempt.response_headers = Some(header_lines(&response).into());
                attempt.response_body_sample =
                    (!response.body_sample.is_empty()).then_some(response.body_sample);
            }
            Err(failed) => {
                attempt.http_status_code = failed.status;
                attempt.error_message = Some(failed.message);
            }
        }
        attempt
    }

    fn submit(self: &Arc<Self>, pending: PendingOutcome) {
        self.inject_fault(FaultPoint::Record);
        let inner = self.clone();
        let outcome = pending.outcome.clone();
        self.store.record(outcome, Box::new(move |result| inner.on_record_result(pending, result)));
    }

    /// Handles the result of the store. Must not block.
    fn on_record_result(self: &Arc<Self>, pending: PendingOutcome, result: Result<RecordResult, StoreError>) {
        self.inject_fault(FaultPoint::Recorded);
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
                self.unrecorded.pending.lock().push_back(pending);
                self.store_failed();
            }
        }
    }

    /// Persists the circuit change of an outcome that was not recorded: its observation of the endpoint is still
    /// valid.
    fn persist_effects(self: &Arc<Self>, outcome: &Outcome) {
        if let Some(circuit) = &outcome.effects.circuit {
            let occurrence =
                outcome.occurrences.iter().find(|occurrence| occurrence.kind.opposite().is_some()).cloned();
            self.persist_circuit_later(
                outcome.tenant_id.clone(),
                outcome.webhook_id,
                SavedCircuit::clone(circuit),
                occurrence,
            );
        }
        if outcome.effects.failing.is_some() {
            self.coordination.failing_stored(outcome.webhook_id);
        }
    }

    fn effects_stored(&self, outcome: &Outcome) {
        if outcome.effects.circuit.is_some() {
            self.coordination.circuit_stored(outcome.webhook_id);
        }
        if outcome.effects.failing.is_some() {
            self.coordination.failing_stored(outcome.webhook_id);
        }
    }

    fn on_recorded(self: &Arc<Self>, pending: PendingOutcome, disabled: bool) {
        self.metrics.store.record_success();
        let outcome = &pending.outcome;
        self.effects_stored(outcome);
        if !outcome.occurrences.is_empty() {
            self.notifier.wake();
        }
        let status = match &outcome.next {
            NextState::Delivered => DeliveryStatus::Delivered,
            NextState::Retry { due } => {
                self.scheduler_wakeup.wake_at(*due);
                DeliveryStatus::Pending
            }
            NextState::Dead { .. } => DeliveryStatus::Dead,
            NextState::Cancelled { .. } => DeliveryStatus::Cancelled,
        };
        self.rollups.record_ended(&outcome.tenant_id, status, 1, outcome.at);
        let attempt = outcome.attempt.as_ref().map(|attempt| (attempt.number, attempt.failure_category));
        self.metrics.record_end(&pending.delivery, status, attempt);
        self.refresh_after_disable(outcome, disabled);
        self.log_outcome(&pending);
        if status != DeliveryStatus::Pending {
            let attempts = pending.delivery.attempt - u32::from(outcome.attempt.is_none());
            self.trace_end(&pending.delivery, status, attempts);
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

    /// Settles a delivery. If it is still pending, its successors in an ordered lane wait as well.
    pub(crate) fn settle_delivery(self: &Arc<Self>, delivery: &LeasedDelivery, still_waits: bool) {
        let actions = self.dispatcher.settle(delivery, still_waits);
        self.apply_actions(actions);
        if matches!(delivery.lane, Lane::Unordered { retry: true, .. }) {
            self.adjust_retry_concurrency(|concurrency, retries, now| {
                concurrency.on_retry_done(retries, now)
            });
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
        let inner = self.clone();
        self.runtime.spawn(async move {
            inner.reload_webhook(&outcome.tenant_id, outcome.webhook_id).await;
            let mut outcome = Outcome::clone(&outcome);
            let (Some((class, webhook)), Some(attempt)) = (&response_class, &mut outcome.attempt) else {
                return delivery.release();
            };
            let decided = inner.decide(&delivery, webhook, class, false);
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
            inner.submit(PendingOutcome { outcome: Arc::new(outcome), delivery, response_class });
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

    pub(crate) fn store_failed(&self) {
        if self.metrics.store.record_failure() {
            tracing::error!("store is not accepting writes; sending suspended");
        }
        self.dispatcher.store_failed();
        self.unrecorded.retry_wakeup.notify_one();
    }

    /// Pings the store if no result was recorded for a while; otherwise an outage would be noticed only by the next
    /// event.
    async fn ping_store_if_idle(&self) {
        if !self.metrics.store.take_idle() {
            return;
        }
        match tokio::time::timeout(STORE_PING_INTERVAL, self.store.ping()).await {
            Ok(Ok(())) => {}
            _ => self.store_failed(),
        }
    }

    /// After a store failure, pings until it responds, then records the kept outcomes and resumes sending.
    pub(crate) async fn run_outcome_retry(self: Arc<Self>) {
        // A former run that failed may have taken the wake-up.
        self.unrecorded.retry_wakeup.notify_one();
        loop {
            tokio::select! {
                () = self.unrecorded.retry_wakeup.notified() => {}
                () = tokio::time::sleep(STORE_PING_INTERVAL) => {
                    self.ping_store_if_idle().await;
                    continue;
                }
                () = self.stop.cancelled() => return,
            }
            while let Err(error) = self.store.ping().await {
                if let StoreError::WriterEnded(_) = error {
                    // Outcomes cannot be recorded any more, so there is nothing to drain.
                    self.supervisor.fail(EngineFailure { reason: error.to_string(), can_drain: false });
                }
                if self.stop.is_cancelled() {
                    return;
                }
                self.metrics.store.record_failure();
                tokio::time::sleep(RECORD_RETRY_INTERVAL).await;
            }
            if self.metrics.store.record_success() {
                tracing::info!("store is accepting writes again; sending resumed");
            }
            // One by one, so that a panic loses at most one of them. Those that fail again are added at the end.
            let count = self.unrecorded.pending.lock().len();
            for _ in 0..count {
                let Some(pending) = self.unrecorded.pending.lock().pop_front() else { break };
                self.submit(pending);
            }
            let actions = self.dispatcher.store_recovered();
            self.apply_actions(actions);
            self.scheduler_wakeup.wake();
            // Limits the rate of retries if the store accepts pings but no outcomes.
            tokio::time::sleep(RECORD_RETRY_INTERVAL).await;
        }
    }
}

fn next_state(decision: &Decision, cancel: Option<String>) -> NextState {
    match decision {
        Decision::Delivered => NextState::Delivered,
        Decision::Retry { at } => NextState::Retry { due: *at },
        Decision::Dead(reason) => NextState::Dead { reason: *reason },
        Decision::Cancelled => NextState::Cancelled { reason: cancel.unwrap_or_default() },
    }
}

fn attempt_status(decision: &Decision) -> AttemptStatus {
    match decision {
        Decision::Delivered => AttemptStatus::Success,
        // `exhausted`: the attempt after which the delivery is dead, whatever its `dead_reason`.
        Decision::Dead(_) => AttemptStatus::Exhausted,
        Decision::Retry { .. } | Decision::Cancelled => AttemptStatus::Failed,
    }
}

fn failure_category(response_class: &ResponseClass) -> Option<FailureCategory> {
    match response_class {
        ResponseClass::Success => None,
        ResponseClass::Failed(failure) => Some(failure.category),
    }
}

fn to_phase_timings(timings: &Timings) -> PhaseTimings {
    let micros = |duration: Duration| u32::try_from(duration.as_micros()).unwrap_or(u32::MAX);
    PhaseTimings {
        dns: timings.dns.map(micros),
        connect: timings.connect.map(micros),
        tls: timings.tls.map(micros),
        ttfb: timings.ttfb.map(micros),
        total: micros(timings.total),
    }
}

impl Inner {
    /// Returns the headers that not every request has: those of the format and the trace, and the names of the
    /// webhook's custom headers. Their values may be credentials and are not stored.
    fn recorded_request_headers(
        &self,
        delivery: &LeasedDelivery,
        webhook: &ResolvedWebhook,
        attempt: AttemptId,
    ) -> Option<bytes::Bytes> {
        let mut lines = String::new();
        if delivery.format == PayloadFormat::Cloudevents {
            lines = format!("content-type: {}\n", delivery.format.content_type());
        }
        for (name, value) in delivery.format.headers(&delivery.event) {
            lines += &format!("{name}: {value}\n");
        }
        if let Some(traceparent) = self.traceparent(&delivery.event, attempt) {
            lines += &format!("traceparent: {traceparent}\n");
        }
        if let Some(state) = delivery.event.trace.as_ref().and_then(|trace| trace.state()) {
            lines += &format!("tracestate: {state}\n");
        }
        for name in webhook.headers.iter().flat_map(|headers| headers.keys()) {
            lines += &format!("{name}: [redacted]\n");
        }
        (!lines.is_empty()).then(|| lines.into())
    }
}
