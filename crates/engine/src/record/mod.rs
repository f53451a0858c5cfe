//! Records outcomes of leased deliveries; no other module does. Outcomes that the store does not accept are kept in
//! memory and retried until it does; until then they occupy their node slots and nothing new is sent instead.

pub(crate) mod attempt;
pub(crate) mod outcome_retry;
mod probe;
pub(crate) mod release;
mod results;
mod store_monitor;
mod webhook_changes;
pub(crate) mod webhook_runtime;

use redrive_core::delivery::outcome::Outcome;
use std::{collections::VecDeque, sync::Arc, time::Duration};

use parking_lot::Mutex;
use redrive_core::{
    Time,
    delivery::{
        decide::{AttemptContext, DecisionEffects, decide_outcome},
        response::ResponseClass,
    },
    event::REASON_ERASED,
    protection::breaker::CircuitState,
};
use redrive_store::{DisableWebhook, OutcomeRecord, Record, WebhookEffects};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use self::attempt::failure_category;
pub(crate) use self::{
    probe::Probe, release::Releaser, store_monitor::StoreMonitor, webhook_runtime::WebhookRuntimeUpdater,
};
use crate::{
    clock::{self, Clock},
    cluster::membership::Membership,
    coordinate::{Coordinator, ReportEffects},
    dispatch::{Dispatcher, EndWithoutAttempt, LeasedDelivery, UnsettledDelivery},
    metrics::Metrics,
    occurrences,
    rollup_buffer::RollupBuffer,
    routing::{ResolvedWebhook, Router},
    send::AttemptResult,
    supervision::{FaultPoint, Faults},
    trace::Tracer,
    wakeups::Wakeups,
};

/// Interval between attempts to record outcomes in a failed store.
pub(crate) const RECORD_RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// Outcome being recorded, with what is needed to decide again or to drop it.
struct SubmittedOutcome {
    outcome: Arc<OutcomeRecord>,
    delivery: UnsettledDelivery,
    response_class: Option<(ResponseClass, Arc<ResolvedWebhook>)>,
}

/// A finished attempt with all that was decided about it.
pub(crate) struct DecidedAttempt {
    /// When its response was classified.
    pub(crate) at: Time,
    pub(crate) webhook: Arc<ResolvedWebhook>,
    /// State of the circuit when the attempt was admitted.
    pub(crate) circuit: CircuitState,
    pub(crate) result: AttemptResult,
    pub(crate) response_class: ResponseClass,
    pub(crate) decided: DecisionEffects,
    /// Why the delivery is cancelled unless it was delivered.
    pub(crate) cancellation: Option<Cancellation>,
    /// What the result has changed for the webhook, to be stored with the outcome.
    pub(crate) report_effects: ReportEffects,
    pub(crate) disable_reason: Option<String>,
}

/// Why a delivery is cancelled.
pub(crate) struct Cancellation {
    pub(crate) reason: String,
    /// Whether it was cancelled on request. Otherwise its webhook is inactive, which the store verifies.
    pub(crate) by_request: bool,
}

/// Records the outcomes of deliveries.
pub(crate) struct Recorder {
    pub(crate) store: Arc<dyn Record>,
    pub(crate) clock: Clock,
    pub(crate) membership: Arc<Membership>,
    pub(crate) router: Arc<Router>,
    pub(crate) coordinator: Arc<Coordinator>,
    pub(crate) dispatcher: Arc<Dispatcher>,
    pub(crate) runtime_updater: Arc<WebhookRuntimeUpdater>,
    pub(crate) monitor: Arc<StoreMonitor>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) rollups: Arc<RollupBuffer>,
    pub(crate) tracer: Arc<Tracer>,
    pub(crate) wakeups: Arc<Wakeups>,
    pub(crate) faults: Faults,
    pub(crate) tokio: Handle,
    pub(crate) stop: CancellationToken,
    pub(crate) unrecorded: UnrecordedOutcomes,
}

/// Outcomes that the store has not accepted yet.
#[derive(Default)]
pub(crate) struct UnrecordedOutcomes(Mutex<VecDeque<SubmittedOutcome>>);

impl UnrecordedOutcomes {
    /// Returns whether the store has accepted all outcomes.
    #[cfg(test)]
    fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// Returns how many outcomes are kept.
    fn len(&self) -> usize {
        self.0.lock().len()
    }

    /// Keeps an outcome that the store did not accept.
    fn keep(&self, pending: SubmittedOutcome) {
        self.0.lock().push_back(pending);
    }

    /// Takes the outcome that has been kept for longest.
    fn pop_first(&self) -> Option<SubmittedOutcome> {
        self.0.lock().pop_front()
    }

    /// Drops all outcomes: the epoch has ended, and other nodes have the deliveries.
    pub(crate) fn clear(&self) {
        let dropped = std::mem::take(&mut *self.0.lock());
        drop(dropped);
    }
}

impl Recorder {
    /// Decides what the result of an attempt means for the delivery.
    pub(crate) fn decide(
        &self,
        delivery: &LeasedDelivery,
        webhook: &ResolvedWebhook,
        response_class: &ResponseClass,
        cancel: Option<&str>,
    ) -> DecisionEffects {
        let context = AttemptContext {
            attempt: delivery.attempt,
            created_at: delivery.created_at,
            confirmed_now: self.clock.confirmed_now(),
            cancel,
            policy: &webhook.retry_policy,
        };
        decide_outcome(&context, response_class, self.clock.now(), clock::random_unit())
    }

    /// Records an attempt with the outcome that was decided.
    pub(crate) fn record_attempt(self: &Arc<Self>, delivery: UnsettledDelivery, attempt: DecidedAttempt) {
        let DecidedAttempt {
            at: now,
            webhook,
            circuit,
            result,
            response_class,
            decided,
            cancellation,
            report_effects,
            disable_reason,
        } = attempt;
        let since = report_effects.failing_since;
        let transition = report_effects
            .circuit
            .as_ref()
            .and_then(|change| crate::occurrences::circuit_transition(change, since));
        let effects = WebhookEffects {
            circuit: report_effects.circuit.map(|change| Box::new(change.saved)),
            pause_until: decided.pause_until,
            failing: report_effects.failing,
        };
        let (started_nanos, timings) = (result.started_nanos, result.exchange.timings);
        let category = failure_category(&response_class);
        let mut attempt =
            self.build_attempt(&delivery, &webhook, circuit, result, category, &decided.outcome);
        self.tracer.trace_attempt(&delivery, &webhook, started_nanos, &attempt, &timings);
        if cancellation.as_ref().is_some_and(|cancel| cancel.reason == REASON_ERASED) {
            // The response may repeat the erased payload.
            attempt.response_body_sample = None;
        }
        // Usually empty, which allocates nothing.
        let mut occurrences: Vec<_> = transition.into_iter().collect();
        let error = attempt.error_message.as_deref();
        occurrences.extend(crate::occurrences::delivery_dead_by(&delivery, &decided, error, now));
        let disabled_occurrence = |reason: &String| {
            crate::occurrences::webhook_disabled(&delivery.event.tenant_id, delivery.webhook_id, reason, now)
        };
        occurrences.extend(disable_reason.as_ref().map(disabled_occurrence));
        let (record_despite_cancel, by_request) =
            (cancellation.is_some(), cancellation.as_ref().is_some_and(|cancel| cancel.by_request));
        let record = OutcomeRecord {
            epoch: delivery.epoch.epoch,
            delivery_id: delivery.id,
            tenant_id: delivery.event.tenant_id.clone(),
            webhook_id: delivery.webhook_id,
            requires_inactive_webhook: matches!(decided.outcome, Outcome::Cancelled(_)) && !by_request,
            outcome: decided.outcome,
            attempt: Some(attempt),
            record_despite_cancel,
            disable: disable_reason.map(|reason| DisableWebhook { reason, url: webhook.url.to_string() }),
            effects,
            occurrences,
            at: now,
        };
        self.submit(SubmittedOutcome {
            outcome: Arc::new(record),
            delivery,
            response_class: Some((response_class, webhook)),
        });
    }

    /// Records the end of a delivery without a request.
    pub(crate) fn record_without_attempt(
        self: &Arc<Self>,
        delivery: UnsettledDelivery,
        end: EndWithoutAttempt,
    ) {
        let EndWithoutAttempt { outcome, requires_inactive_webhook } = end;
        let at = self.clock.now();
        let dead_occurrence = match &outcome {
            Outcome::Dead(reason) => occurrences::delivery_dead(&delivery, *reason, None, at),
            _ => None,
        };
        let record = OutcomeRecord {
            epoch: delivery.epoch.epoch,
            delivery_id: delivery.id,
            tenant_id: delivery.event.tenant_id.clone(),
            webhook_id: delivery.webhook_id,
            attempt: None,
            outcome,
            record_despite_cancel: true,
            requires_inactive_webhook,
            disable: None,
            effects: WebhookEffects::default(),
            occurrences: dead_occurrence.into_iter().collect(),
            at,
        };
        self.submit(SubmittedOutcome { outcome: Arc::new(record), delivery, response_class: None });
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
        self.metrics.leases_lost.inc();
        if !delivery.epoch.is_ended() {
            self.membership.check_epoch_now();
        }
        delivery.settle(false);
    }

    fn submit(self: &Arc<Self>, pending: SubmittedOutcome) {
        self.faults.inject(FaultPoint::Record);
        let recorder = self.clone();
        let outcome = pending.outcome.clone();
        self.store.record(outcome, Box::new(move |result| recorder.on_record_result(pending, result)));
    }
}
