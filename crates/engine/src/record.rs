//! Writing outcomes down: the only place that does. What the store does not take is kept and offered again
//! until it does, and until then nothing new is sent in its place.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use redrive_core::{
    AttemptId, DeliveryStatus, FailureCategory,
    delivery::decide::{Decided, Decision, Situation, decide, has_failed_for_too_long},
    delivery::lane::Lane,
    delivery::response::{SendFailure, Verdict, classify},
    event::ERASED,
    event::PayloadFormat,
    protection::breaker::{Call, SavedCircuit},
    webhook::WebhookState,
};
use redrive_egress::Timings;
use redrive_store::{
    Attempt, AttemptStatus, Disable, Effects, Next, Outcome, PhaseTimings, Recorded, StoreError,
};
use tokio::sync::Notify;

use crate::{
    Inner,
    attempt::{Tried, header_lines},
    clock,
    coordination::{Changed, Report},
    dispatch::Ready,
    gate::Pass,
    metrics::Fault,
    notify::occurrences,
    registry::Hook,
};

/// How long to wait before outcomes are offered to a failed store again.
pub(crate) const OFFER_AGAIN: Duration = Duration::from_millis(200);

/// How often a store that nobody uses is asked whether it works, and for how long.
const LOOK: Duration = Duration::from_secs(10);
/// Why a webhook is disabled whose endpoint is gone.
pub(crate) const GONE: &str = "the endpoint answered 410 Gone";

/// An outcome on its way into the store, with what is needed to decide again or to let go.
pub(crate) struct Pending {
    outcome: Arc<Outcome>,
    ready: Ready,
    verdict: Option<(Verdict, Arc<Hook>)>,
}

/// How a delivery ends without a request.
pub(crate) struct Ending {
    next: Next,
    requires_ended_webhook: bool,
}

impl Ending {
    /// Cancelled because of the state of its webhook, which the store confirms or refuses.
    pub(crate) fn of_webhook(reason: impl Into<String>) -> Self {
        Self { next: Next::Cancelled { reason: reason.into() }, requires_ended_webhook: true }
    }
}

impl From<Next> for Ending {
    fn from(next: Next) -> Self {
        Self { next, requires_ended_webhook: false }
    }
}

/// Outcomes that the store has not taken yet.
#[derive(Default)]
pub(crate) struct Kept {
    pending: Mutex<Vec<Pending>>,
    trouble: Notify,
}

impl Inner {
    /// Decides what an attempt means and records it.
    pub(crate) async fn record_attempt(self: &Arc<Self>, ready: Ready, mut pass: Pass, tried: Tried) {
        // The request is over, and another one may go in its place.
        drop(pass.slot.take());
        let now = self.clock.now();
        let hook = &pass.hook;
        let verdict = classify(&tried.answer(), &hook.policy, now);
        let requested = self.dispatch.cancel_reason(ready.id);
        let is_requested = requested.is_some();
        let cancel = requested.or_else(|| self.webhook_over(&ready));
        let decided = self.decide(&ready, hook, &verdict, cancel.is_some());
        let report = self.report(&pass, &tried, &verdict, &decided, cancel.is_some());
        let changed = self.tell_all(hook, report).await;
        let disable = self.disable(&decided, &changed, category(&verdict).is_some());
        self.circuit_changed(hook, &changed);
        // Before the slot is free: queued deliveries return to the store and wait there until this outcome is recorded
        // or refused. The webhook counts as disabled only once the store says so.
        if disable.is_some() {
            self.park(hook, None);
        }
        if let Some(until) = decided.hold_until {
            self.park(hook, Some(until));
        }
        self.free_slot(&ready);
        let told = changed.circuit.as_ref().and_then(occurrences::of_circuit);
        let effects = Effects {
            circuit: changed.circuit.map(|moved| Box::new(moved.saved)),
            hold_until: decided.hold_until,
            failing: changed.failing,
        };
        let (traced, timings) = (tried.traced, tried.exchange.timings);
        let mut attempt = self.describe(&ready, &pass, tried, &verdict, &decided);
        self.trace_attempt(&ready, &pass.hook, traced, &attempt, &timings);
        if cancel.as_deref() == Some(ERASED) {
            // It may repeat what it was sent.
            attempt.response_body_sample = None;
        }
        // Nearly always there is nothing to tell, and nothing is allocated for it.
        let mut causes: Vec<_> = told.into_iter().collect();
        causes.extend(occurrences::died_of(&ready, &decided, attempt.error_message.as_deref(), now));
        let because = |why: &String| occurrences::disabled(&ready.event.tenant, ready.webhook, why, now);
        causes.extend(disable.as_ref().map(because));
        let next = next(&decided.decision, cancel.clone());
        let outcome = Outcome {
            epoch: ready.term.epoch,
            delivery: ready.id,
            tenant: ready.event.tenant.clone(),
            webhook: ready.webhook,
            requires_ended_webhook: matches!(next, Next::Cancelled { .. }) && !is_requested,
            next,
            attempt: Some(attempt),
            knows_cancel: cancel.is_some(),
            disable: disable.map(|reason| Disable { reason, url: hook.url.to_string() }),
            effects,
            causes,
            at: now,
        };
        self.offer(Pending { outcome: Arc::new(outcome), ready, verdict: Some((verdict, pass.hook)) });
    }

    /// Tells the statistics how it went, and makes up what the circuit is told.
    fn report(
        &self,
        pass: &Pass,
        tried: &Tried,
        verdict: &Verdict,
        decided: &Decided,
        cancelled: bool,
    ) -> Report {
        let now = self.clock.now();
        let category = category(verdict);
        self.health.add(&pass.hook, tried.exchange.timings.total, category, now);
        if category == Some(FailureCategory::Dns) {
            self.suspect(pass.hook.id, &pass.hook.tenant.id);
        }
        // What we cut off ourselves, or was called off, tells nothing about the endpoint.
        let ours = matches!(&tried.exchange.result, Err(failed) if failed.failure == SendFailure::Drained);
        let tells_nothing = category.is_some() && (cancelled || ours);
        Report {
            call: if tells_nothing { Call::Ignored } else { Call::of(category) },
            probe: pass.probe,
            success: (!tells_nothing).then_some(category.is_none()),
            hold_until: decided.hold_until,
        }
    }

    /// Why the webhook is to be disabled, if it is.
    fn disable(&self, decided: &Decided, changed: &Changed, failed: bool) -> Option<String> {
        if decided.disable_webhook {
            return Some(GONE.to_owned());
        }
        let at_most = self.settings.disable_after;
        let confirmed_now = self.clock.confirmed_now();
        if !failed || !has_failed_for_too_long(changed.failing_since, at_most, confirmed_now) {
            return None;
        }
        let length = match at_most.unwrap_or_default().as_secs() {
            secs if secs % 86_400 == 0 => format!("{} days", secs / 86_400),
            secs => format!("{secs} seconds"),
        };
        Some(format!("no delivery succeeded for {length}"))
    }

    /// Records the end of a delivery that was not sent.
    pub(crate) fn record_end(self: &Arc<Self>, ready: Ready, ending: Ending) {
        let Ending { next, requires_ended_webhook } = ending;
        let at = self.clock.now();
        let died = match &next {
            Next::Dead { reason } => occurrences::died(&ready, *reason, None, at),
            _ => None,
        };
        let outcome = Outcome {
            epoch: ready.term.epoch,
            delivery: ready.id,
            tenant: ready.event.tenant.clone(),
            webhook: ready.webhook,
            attempt: None,
            next,
            knows_cancel: true,
            requires_ended_webhook,
            disable: None,
            effects: Effects::default(),
            causes: died.into_iter().collect(),
            at,
        };
        self.offer(Pending { outcome: Arc::new(outcome), ready, verdict: None });
    }

    /// Lets go of a delivery that turned out to be somebody else's.
    pub(crate) fn lost(self: &Arc<Self>, ready: &Ready) {
        tracing::warn!(
            delivery_id = %ready.id, event_id = %ready.event.id, webhook_id = %ready.webhook,
            tenant = %ready.event.tenant, "the lease was lost; another node has the delivery"
        );
        self.metrics.fenced.inc();
        if !ready.term.is_over() {
            self.fleet.alarm();
        }
        self.settle(ready, false);
    }

    /// Why nothing more is sent to this webhook, if so. It was known at the gate: if it no longer is, it was
    /// deleted meanwhile.
    fn webhook_over(&self, ready: &Ready) -> Option<String> {
        match self.registry.hook(ready.webhook) {
            Some(hook) => hook.state.cancels_because().map(str::to_owned),
            None => WebhookState::Deleted.cancels_because().map(str::to_owned),
        }
    }

    fn decide(&self, ready: &Ready, hook: &Hook, verdict: &Verdict, cancel_requested: bool) -> Decided {
        let situation = Situation {
            attempt: ready.attempt,
            created_at: ready.created_at,
            confirmed_now: self.clock.confirmed_now(),
            cancel_requested,
            policy: &hook.policy,
        };
        decide(&situation, verdict, self.clock.now(), clock::roll())
    }

    fn describe(
        &self,
        ready: &Ready,
        pass: &Pass,
        tried: Tried,
        verdict: &Verdict,
        decided: &Decided,
    ) -> Attempt {
        let timings = phases(&tried.exchange.timings);
        let failure_category = category(verdict);
        let (id, executed_at) = (tried.id, tried.executed_at);
        let mut attempt = Attempt {
            id,
            number: ready.attempt,
            status: attempt_status(&decided.decision),
            failure_category,
            http_status_code: None,
            error_message: None,
            custom_headers: self.custom_headers(ready, &pass.hook, id),
            response_headers: None,
            response_body_sample: None,
            timings,
            scheduled_at: ready.due,
            executed_at,
            next_retry_at: match decided.decision {
                Decision::Retry { at } => Some(at),
                _ => None,
            },
            circuit: pass.circuit,
            worker: ready.term.worker.clone(),
        };
        match tried.exchange.result {
            Ok(answered) => {
                attempt.http_status_code = Some(answered.status);
                attempt.error_message =
                    failure_category.map(|_| format!("the endpoint answered {}", answered.status));
                attempt.response_headers = Some(header_lines(&answered).into());
                attempt.response_body_sample =
                    (!answered.body_sample.is_empty()).then_some(answered.body_sample);
            }
            Err(failed) => {
                attempt.http_status_code = failed.status;
                attempt.error_message = Some(failed.message);
            }
        }
        attempt
    }

    fn offer(self: &Arc<Self>, pending: Pending) {
        let inner = self.clone();
        let outcome = pending.outcome.clone();
        self.store.record(outcome, Box::new(move |result| inner.recorded(pending, result)));
    }

    /// What to do once the store has spoken. It must not block.
    fn recorded(self: &Arc<Self>, pending: Pending, result: Result<Recorded, StoreError>) {
        match result {
            Ok(Recorded::Done { config_version }) => self.done(&pending, config_version.is_some()),
            // Whatever followed from it may not have been done.
            Ok(Recorded::Again) => self.done(&pending, pending.outcome.disable.is_some()),
            Ok(Recorded::CancelRequested(reason)) => self.decide_again(pending, reason),
            Ok(Recorded::WebhookNotEnded) => self.decide_without_end(pending),
            Ok(Recorded::Fenced) => {
                self.keep_effects(&pending.outcome);
                self.refresh_after_disable(&pending.outcome, false);
                self.lost(&pending.ready);
            }
            // Never to be stored as it is: without its details it can be.
            Err(StoreError::Refused(why)) => self.without_details(pending, &why),
            Err(_) => {
                self.kept.pending.lock().push(pending);
                self.store_failed();
            }
        }
    }

    /// An outcome is not recorded. What it has shown of its endpoint's circuit is no less true.
    fn keep_effects(self: &Arc<Self>, outcome: &Outcome) {
        if let Some(circuit) = &outcome.effects.circuit {
            let cause = outcome.causes.iter().find(|cause| cause.kind.counterpart().is_some()).cloned();
            self.keep_soon(outcome.tenant.clone(), outcome.webhook, SavedCircuit::clone(circuit), cause);
        }
        if outcome.effects.failing.is_some() {
            self.coordination.failing_stored(outcome.webhook);
        }
    }

    fn effects_stored(&self, outcome: &Outcome) {
        if outcome.effects.circuit.is_some() {
            self.coordination.circuit_stored(outcome.webhook);
        }
        if outcome.effects.failing.is_some() {
            self.coordination.failing_stored(outcome.webhook);
        }
    }

    fn done(self: &Arc<Self>, pending: &Pending, disabled: bool) {
        self.metrics.store.works();
        let outcome = &pending.outcome;
        self.effects_stored(outcome);
        if !outcome.causes.is_empty() {
            self.notifying.ring();
        }
        let status = match &outcome.next {
            Next::Delivered => DeliveryStatus::Delivered,
            Next::Retry { due } => {
                self.alarm.ring_at(*due);
                DeliveryStatus::Pending
            }
            Next::Dead { .. } => DeliveryStatus::Dead,
            Next::Cancelled { .. } => DeliveryStatus::Cancelled,
        };
        self.health.ended(&outcome.tenant, status, 1, outcome.at);
        let attempt = outcome.attempt.as_ref().map(|attempt| (attempt.number, attempt.failure_category));
        self.metrics.ended(&pending.ready, status, attempt);
        self.refresh_after_disable(outcome, disabled);
        self.say(pending);
        if status != DeliveryStatus::Pending {
            let attempts = pending.ready.attempt - u32::from(outcome.attempt.is_none());
            self.trace_end(&pending.ready, status, attempts);
        }
        self.settle(&pending.ready, status == DeliveryStatus::Pending);
    }

    /// A delivery that was given up on is worth a line; a failed attempt is for whoever asks for details.
    fn say(&self, pending: &Pending) {
        let Pending { outcome, ready, .. } = pending;
        let failed = outcome.attempt.as_ref().and_then(|attempt| Some((attempt, attempt.failure_category?)));
        let failure_category = failed.map(|(_, category)| category.name());
        match (&outcome.next, failed) {
            (Next::Dead { reason }, _) => tracing::info!(
                delivery_id = %ready.id, event_id = %ready.event.id, webhook_id = %ready.webhook,
                tenant = %outcome.tenant, attempt = ready.attempt, reason = reason.name(), failure_category,
                "a delivery is dead"
            ),
            (_, Some((attempt, _))) => tracing::debug!(
                delivery_id = %ready.id, event_id = %ready.event.id, webhook_id = %ready.webhook,
                tenant = %outcome.tenant, attempt = attempt.number, status = attempt.http_status_code,
                failure_category, "an attempt failed"
            ),
            _ => {}
        }
    }

    /// The delivery is out of our hands. If it still waits, so does what comes after it in its order.
    pub(crate) fn settle(self: &Arc<Self>, ready: &Ready, still_waits: bool) {
        let moves = self.dispatch.settled(ready, still_waits);
        self.carry_out(moves);
        if matches!(ready.lane, Lane::Free { retry: true, .. }) {
            self.pace(|pace, retries, now| pace.retried(retries, now));
        }
    }

    /// The delivery was called off between the decision and its record.
    fn decide_again(self: &Arc<Self>, pending: Pending, reason: String) {
        let Pending { outcome, ready, verdict } = pending;
        let mut outcome = Outcome::clone(&outcome);
        outcome.knows_cancel = true;
        if let (Some((verdict, hook)), Some(attempt)) = (&verdict, &mut outcome.attempt) {
            let decided = self.decide(&ready, hook, verdict, true);
            attempt.status = attempt_status(&decided.decision);
            attempt.next_retry_at = None;
            if reason == ERASED {
                attempt.response_body_sample = None;
            }
            outcome.next = next(&decided.decision, Some(reason));
        }
        self.offer(Pending { outcome: Arc::new(outcome), ready, verdict });
    }

    /// The delivery was to be cancelled because its webhook has ended, and the stored webhook has not: memory was
    /// wrong. The webhook is read again; then an attempt is decided without the cancellation, and a delivery without
    /// one returns to its lane.
    fn decide_without_end(self: &Arc<Self>, pending: Pending) {
        let Pending { outcome, ready, verdict } = pending;
        let inner = self.clone();
        self.runtime.spawn(async move {
            inner.reload_webhook(&outcome.tenant, outcome.webhook).await;
            let mut outcome = Outcome::clone(&outcome);
            let (Some((failure, hook)), Some(attempt)) = (&verdict, &mut outcome.attempt) else {
                return inner.give_back(ready);
            };
            let decided = inner.decide(&ready, hook, failure, false);
            attempt.status = attempt_status(&decided.decision);
            attempt.next_retry_at = match decided.decision {
                Decision::Retry { at } => Some(at),
                _ => None,
            };
            let error = attempt.error_message.as_deref();
            outcome.causes.extend(occurrences::died_of(&ready, &decided, error, outcome.at));
            outcome.next = next(&decided.decision, None);
            outcome.requires_ended_webhook = false;
            outcome.knows_cancel = false;
            inner.offer(Pending { outcome: Arc::new(outcome), ready, verdict });
        });
    }

    fn without_details(self: &Arc<Self>, pending: Pending, why: &str) {
        let Pending { outcome, ready, verdict } = pending;
        let mut outcome = Outcome::clone(&outcome);
        match &mut outcome.attempt {
            Some(attempt) if attempt.response_headers.is_some() => {
                tracing::error!(
                    delivery_id = %ready.id, tenant = %outcome.tenant, error = why,
                    "an outcome was refused; recording it without details"
                );
                self.metrics.fault(Fault::Outcome).inc();
                attempt.response_headers = None;
                attempt.response_body_sample = None;
                attempt.custom_headers = None;
                self.offer(Pending { outcome: Arc::new(outcome), ready, verdict });
            }
            // Its lease stays in the store: the next start finds and sends it again.
            _ => {
                tracing::error!(
                    delivery_id = %ready.id, tenant = %outcome.tenant, error = why, "an outcome cannot be recorded"
                );
                self.metrics.fault(Fault::Outcome).inc();
                self.keep_effects(&outcome);
                self.refresh_after_disable(&outcome, false);
                self.settle(&ready, true);
                // Sent again at the next start, and not by the lease auditor every few minutes.
                self.dispatch.keep_owned(ready.id);
            }
        }
    }

    pub(crate) fn store_failed(&self) {
        if self.metrics.store.failed() {
            tracing::error!("the store does not take writes; nothing is sent until it does");
        }
        self.dispatch.store_failed();
        self.kept.trouble.notify_one();
    }

    /// Asks the store whether it works, if it was not heard of for a while: otherwise nobody would know before the
    /// next event comes.
    async fn look_at_store(&self) {
        if !self.metrics.store.was_quiet() {
            return;
        }
        match tokio::time::timeout(LOOK, self.store.ping()).await {
            Ok(Ok(())) => {}
            _ => self.store_failed(),
        }
    }

    /// After a failure of the store: asks until it works, then offers what was kept and lets sending go on.
    pub(crate) async fn keep_offering(self: Arc<Self>) {
        loop {
            tokio::select! {
                () = self.kept.trouble.notified() => {}
                () = tokio::time::sleep(LOOK) => {
                    self.look_at_store().await;
                    continue;
                }
                () = self.stop.cancelled() => return,
            }
            while self.store.ping().await.is_err() {
                self.metrics.store.failed();
                tokio::time::sleep(OFFER_AGAIN).await;
            }
            if self.metrics.store.works() {
                tracing::info!("the store takes writes again");
            }
            let kept = std::mem::take(&mut *self.kept.pending.lock());
            for pending in kept {
                self.offer(pending);
            }
            let moves = self.dispatch.store_works();
            self.carry_out(moves);
            self.alarm.ring();
            // A store that takes a ping but no outcome is not asked without end.
            tokio::time::sleep(OFFER_AGAIN).await;
        }
    }
}

fn next(decision: &Decision, cancel: Option<String>) -> Next {
    match decision {
        Decision::Delivered => Next::Delivered,
        Decision::Retry { at } => Next::Retry { due: *at },
        Decision::Dead(reason) => Next::Dead { reason: *reason },
        Decision::Cancelled => Next::Cancelled { reason: cancel.unwrap_or_default() },
    }
}

fn attempt_status(decision: &Decision) -> AttemptStatus {
    match decision {
        Decision::Delivered => AttemptStatus::Success,
        Decision::Dead(_) => AttemptStatus::Exhausted,
        Decision::Retry { .. } | Decision::Cancelled => AttemptStatus::Failed,
    }
}

fn category(verdict: &Verdict) -> Option<FailureCategory> {
    match verdict {
        Verdict::Success => None,
        Verdict::Failed(failure) => Some(failure.category),
    }
}

fn phases(timings: &Timings) -> PhaseTimings {
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
    /// The headers that not every request has: the format's, the trace's, and the names of the webhook's own. Their
    /// values may be credentials: they are not kept.
    fn custom_headers(&self, ready: &Ready, hook: &Hook, attempt: AttemptId) -> Option<bytes::Bytes> {
        let mut lines = String::new();
        if ready.format == PayloadFormat::Cloudevents {
            lines = format!("content-type: {}\n", ready.format.content_type());
        }
        for (name, value) in ready.format.headers(&ready.event) {
            lines += &format!("{name}: {value}\n");
        }
        if let Some(traceparent) = self.traceparent(&ready.event, attempt) {
            lines += &format!("traceparent: {traceparent}\n");
        }
        if let Some(state) = ready.event.trace.as_ref().and_then(|trace| trace.state()) {
            lines += &format!("tracestate: {state}\n");
        }
        for name in hook.headers.iter().flat_map(|headers| headers.keys()) {
            lines += &format!("{name}: [redacted]\n");
        }
        (!lines.is_empty()).then(|| lines.into())
    }
}
