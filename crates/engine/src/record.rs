//! Writing outcomes down: the only place that does. What the store does not take is kept and offered again
//! until it does, and until then nothing new is sent in its place.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use redrive_core::{
    DeliveryStatus, FailureCategory,
    decide::{Decided, Decision, Situation, decide},
    outcome::{Verdict, classify},
    webhook::WebhookState,
};
use redrive_egress::Timings;
use redrive_store::{Attempt, AttemptStatus, Disable, Next, Outcome, PhaseTimings, Recorded, StoreError};
use tokio::sync::Notify;

use crate::{
    Inner,
    attempt::{Tried, header_lines},
    clock,
    dispatch::Ready,
    registry::Hook,
};

/// How long to wait before outcomes are offered to a failed store again.
const OFFER_AGAIN: Duration = Duration::from_millis(200);

/// Why a webhook is disabled whose endpoint is gone.
const GONE: &str = "the endpoint answered 410 Gone";

/// An outcome on its way into the store, with what is needed to decide again or to let go.
pub(crate) struct Pending {
    outcome: Arc<Outcome>,
    ready: Ready,
    verdict: Option<(Verdict, Arc<Hook>)>,
}

/// Outcomes that the store has not taken yet.
#[derive(Default)]
pub(crate) struct Kept {
    pending: Mutex<Vec<Pending>>,
    trouble: Notify,
}

impl Inner {
    /// Decides what an attempt means and records it.
    pub(crate) fn record_attempt(self: &Arc<Self>, ready: Ready, hook: &Arc<Hook>, tried: Tried) {
        let now = self.clock.now();
        let verdict = classify(&tried.answer(), &hook.policy, now);
        let cancel = self.dispatch.cancel_reason(ready.id).or_else(|| self.webhook_over(&ready));
        let decided = self.decide(&ready, hook, &verdict, cancel.is_some());
        if decided.disable_webhook {
            // Before the slot is free: what is queued behind must not be sent while this is being stored.
            self.registry.presume_disabled(hook, GONE);
        }
        self.free_slot(&ready);
        let attempt = self.describe(&ready, hook, tried, &verdict, &decided);
        let outcome = Outcome {
            epoch: self.epoch,
            delivery: ready.id,
            tenant: ready.event.tenant.clone(),
            webhook: ready.webhook,
            next: next(&decided.decision, cancel.clone()),
            attempt: Some(attempt),
            knows_cancel: cancel.is_some(),
            disable: decided
                .disable_webhook
                .then(|| Disable { reason: GONE.to_owned(), url: hook.webhook.spec.url.clone() }),
            at: now,
        };
        self.offer(Pending { outcome: Arc::new(outcome), ready, verdict: Some((verdict, hook.clone())) });
    }

    /// Records the end of a delivery that was not sent.
    pub(crate) fn record_end(self: &Arc<Self>, ready: Ready, next: Next) {
        let outcome = Outcome {
            epoch: self.epoch,
            delivery: ready.id,
            tenant: ready.event.tenant.clone(),
            webhook: ready.webhook,
            attempt: None,
            next,
            knows_cancel: true,
            disable: None,
            at: self.clock.now(),
        };
        self.offer(Pending { outcome: Arc::new(outcome), ready, verdict: None });
    }

    /// Lets go of a delivery that turned out to be somebody else's.
    pub(crate) fn lost(self: &Arc<Self>, ready: &Ready) {
        tracing::warn!(delivery = %ready.id, "the lease was lost; another node has the delivery");
        self.metrics.fenced.inc();
        self.settle(ready);
    }

    /// Puts a delivery back into the store without an outcome, however long that takes.
    pub(crate) fn give_back(self: &Arc<Self>, ready: Ready) {
        let inner = self.clone();
        self.runtime.spawn(async move {
            while inner.store.release(inner.epoch, inner.clock.now(), vec![ready.id]).await.is_err() {
                tokio::time::sleep(OFFER_AGAIN).await;
            }
            inner.settle(&ready);
            inner.alarm.ring();
        });
    }

    /// Why nothing more is sent to this webhook, if so. It was known at the gate: if it no longer is, it was
    /// deleted meanwhile.
    fn webhook_over(&self, ready: &Ready) -> Option<String> {
        match self.registry.hook(ready.webhook) {
            Some(hook) => hook.webhook.state.cancels_because().map(str::to_owned),
            None => WebhookState::Deleted.cancels_because().map(str::to_owned),
        }
    }

    fn decide(&self, ready: &Ready, hook: &Hook, verdict: &Verdict, cancel_requested: bool) -> Decided {
        let situation = Situation {
            attempt: ready.attempt,
            created_at: ready.created_at,
            cancel_requested,
            policy: &hook.policy,
        };
        decide(&situation, verdict, self.clock.now(), clock::roll())
    }

    fn describe(
        &self,
        ready: &Ready,
        hook: &Hook,
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
            custom_headers: custom_headers(hook),
            response_headers: None,
            response_body_sample: None,
            timings,
            scheduled_at: ready.due,
            executed_at,
            next_retry_at: match decided.decision {
                Decision::Retry { at } => Some(at),
                _ => None,
            },
            worker: self.worker.clone(),
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
            Ok(Recorded::Fenced) => self.lost(&pending.ready),
            // Never to be stored as it is: without its details it can be.
            Err(StoreError::Refused(why)) => self.without_details(pending, &why),
            Err(_) => {
                self.kept.pending.lock().push(pending);
                self.store_failed();
            }
        }
    }

    fn done(self: &Arc<Self>, pending: &Pending, disabled: bool) {
        self.metrics.store_up.set(1);
        let outcome = &pending.outcome;
        let status = match &outcome.next {
            Next::Delivered => DeliveryStatus::Delivered,
            Next::Retry { due } => {
                self.alarm.ring_at(*due);
                DeliveryStatus::Pending
            }
            Next::Dead { .. } => {
                self.metrics.dead.inc();
                DeliveryStatus::Dead
            }
            Next::Cancelled { .. } => DeliveryStatus::Cancelled,
        };
        match &outcome.attempt {
            Some(attempt) => self.metrics.attempted(attempt.number, status, attempt.failure_category),
            None => self.metrics.ended_unsent(status),
        }
        if disabled {
            self.webhook_disabled(pending.ready.webhook, outcome.tenant.clone());
        }
        self.settle(&pending.ready);
    }

    fn settle(self: &Arc<Self>, ready: &Ready) {
        let moves = self.dispatch.settled(ready.webhook, ready.id, ready.event.weight());
        self.carry_out(moves);
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
            outcome.next = next(&decided.decision, Some(reason));
        }
        self.offer(Pending { outcome: Arc::new(outcome), ready, verdict });
    }

    fn without_details(self: &Arc<Self>, pending: Pending, why: &str) {
        let Pending { outcome, ready, verdict } = pending;
        let mut outcome = Outcome::clone(&outcome);
        match &mut outcome.attempt {
            Some(attempt) if attempt.response_headers.is_some() => {
                tracing::error!(delivery = %ready.id, why, "an outcome was refused; recording it without details");
                attempt.response_headers = None;
                attempt.response_body_sample = None;
                attempt.custom_headers = None;
                self.offer(Pending { outcome: Arc::new(outcome), ready, verdict });
            }
            // Its lease stays in the store: the next start finds and sends it again.
            _ => {
                tracing::error!(delivery = %ready.id, why, "an outcome cannot be recorded");
                self.settle(&ready);
            }
        }
    }

    pub(crate) fn store_failed(&self) {
        if self.metrics.store_up.set(0) == 1 {
            tracing::error!("the store does not take writes; nothing is sent until it does");
        }
        self.dispatch.store_failed();
        self.kept.trouble.notify_one();
    }

    /// After a failure of the store: asks until it works, then offers what was kept and lets sending go on.
    pub(crate) async fn keep_offering(self: Arc<Self>) {
        loop {
            tokio::select! {
                () = self.kept.trouble.notified() => {}
                () = self.stop.cancelled() => return,
            }
            while self.store.ping().await.is_err() {
                tokio::time::sleep(OFFER_AGAIN).await;
            }
            if self.metrics.store_up.set(1) == 0 {
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

/// The names of the webhook's own headers. Values may be credentials: they are not kept.
fn custom_headers(hook: &Hook) -> Option<bytes::Bytes> {
    if hook.headers.is_empty() {
        return None;
    }
    let lines: String = hook.headers.keys().map(|name| format!("{name}: [redacted]\n")).collect();
    Some(lines.into())
}
