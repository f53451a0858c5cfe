//! One try: build the request, sign it, send it through the guard, and take down what came back.

use std::{sync::Arc, time::Duration};

use http::{HeaderMap, HeaderName, HeaderValue, header};
use redrive_core::{
    AttemptId, Time,
    delivery::response::{Answer, SendFailure},
    dispatch::retry_concurrency::Pace,
    event::Event,
    event::hops,
    event::trace::SpanId,
    protection::breaker::Call,
    security::signature,
};
use redrive_egress::{Answered, Exchange, Failed, Outbound, Timings};

use crate::{
    Inner,
    clock::{self, ticks},
    coordination::Report,
    dispatch::Ready,
    gate::{Gate, Pass},
    notify::occurrences,
    registry::Hook,
};

pub(crate) const WEBHOOK_ID: HeaderName = HeaderName::from_static("webhook-id");
pub(crate) const WEBHOOK_TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
pub(crate) const WEBHOOK_SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");
pub(crate) const X_WEBHOOK_ID: HeaderName = HeaderName::from_static("x-webhook-id");
pub(crate) const X_WEBHOOK_EVENT: HeaderName = HeaderName::from_static("x-webhook-event");
const X_WEBHOOK_DELIVERY: HeaderName = HeaderName::from_static("x-webhook-delivery");
const X_WEBHOOK_ATTEMPT: HeaderName = HeaderName::from_static("x-webhook-attempt");
const X_WEBHOOK_TIMESTAMP: HeaderName = HeaderName::from_static("x-webhook-timestamp");
pub(crate) const X_WEBHOOK_SIGNATURE: HeaderName = HeaderName::from_static("x-webhook-signature");
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");
/// How many deliveries of Redrive the event has come through with this one.
pub(crate) const REDRIVE_HOPS: HeaderName = HeaderName::from_static(hops::HEADER);
const X_IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("x-idempotency-key");

/// How long a delivery waits in the store whose address had no connection to spare.
const HOST_BUSY_DELAY: Duration = Duration::from_secs(1);

/// A try and what came of it.
pub(crate) struct Tried {
    pub(crate) id: AttemptId,
    pub(crate) executed_at: Time,
    pub(crate) exchange: Exchange,
    /// When it began, in nanoseconds, if it is to be in a trace.
    pub(crate) traced: Option<u64>,
}

impl Tried {
    /// What came back, as the rules want to hear it.
    pub(crate) fn answer(&self) -> Answer<'_> {
        match &self.exchange.result {
            Ok(answered) => Answer::Status {
                code: answered.status,
                retry_after: answered.headers.get(header::RETRY_AFTER).and_then(|value| value.to_str().ok()),
            },
            Err(failed) => Answer::Failed(failed.failure),
        }
    }
}

impl Inner {
    /// Takes one delivery through its last look and one attempt to its record.
    pub(crate) async fn deliver(self: Arc<Self>, ready: Ready, pass: Pass) {
        match self.gate(&ready, &pass.hook).await {
            Ok(Gate::Go) => {
                let tried = self.attempt(&ready, &pass.hook).await;
                match tried.answer() {
                    Answer::Failed(SendFailure::HostBusy) => self.put_back_busy(ready, pass).await,
                    _ => self.record_attempt(ready, pass, tried).await,
                }
            }
            Ok(Gate::Poison) => {
                let message = "the sending process died three times while sending this delivery";
                let tried = self.failed_try(&ready, SendFailure::SenderDied, message);
                self.record_attempt(ready, pass, tried).await;
            }
            Ok(Gate::End(ending)) => {
                self.not_sent(&ready, pass).await;
                self.record_end(ready, ending);
            }
            Ok(Gate::Lost) => {
                self.not_sent(&ready, pass).await;
                self.lost(&ready);
            }
            Ok(Gate::Late) => {
                self.not_sent(&ready, pass).await;
                self.give_back(ready);
            }
            Err(error) => {
                tracing::warn!(
                    delivery_id = %ready.id, webhook_id = %ready.webhook, tenant = %ready.event.tenant, %error,
                    "the store cannot be asked; the delivery goes back");
                self.not_sent(&ready, pass).await;
                self.give_back(ready);
            }
        }
    }

    /// Puts a delivery back into the store whose address had no connection to spare. No request was made, so this is
    /// no attempt and says nothing about the endpoint.
    async fn put_back_busy(self: &Arc<Self>, mut ready: Ready, pass: Pass) {
        self.metrics.host_busy.inc();
        self.not_sent(&ready, pass).await;
        ready.due = ready.due.max(self.clock.now() + HOST_BUSY_DELAY);
        self.give_back(ready);
    }

    /// Frees what a delivery had taken that is not sent after all.
    async fn not_sent(self: &Arc<Self>, ready: &Ready, mut pass: Pass) {
        drop(pass.slot.take());
        if pass.probe.is_some() {
            let report = Report { call: Call::Ignored, probe: pass.probe, success: None, hold_until: None };
            let changed = self.tell_all(&pass.hook, report).await;
            self.circuit_changed(&pass.hook, &changed);
            if let Some(moved) = changed.circuit {
                let cause = occurrences::of_circuit(&moved);
                self.keep_soon(moved.tenant, moved.webhook, moved.saved, cause);
            }
        }
        self.free_slot(ready);
    }

    /// Lets more or fewer retries go at once, by what is learnt here.
    pub(crate) fn pace(self: &Arc<Self>, learn: impl FnOnce(&mut Pace, usize, Duration)) {
        let retries = self.dispatch.retries();
        let window = {
            let mut pace = self.pace.lock();
            let before = pace.window();
            learn(&mut pace, retries, ticks());
            Some(pace.window()).filter(|window| *window != before)
        };
        if let Some(window) = window {
            let moves = self.dispatch.set_retry_window(window);
            self.carry_out(moves);
        }
    }

    pub(crate) fn free_slot(self: &Arc<Self>, ready: &Ready) {
        let moves = self.dispatch.answered(ready.webhook, ready.id);
        self.carry_out(moves);
    }

    async fn attempt(self: &Arc<Self>, ready: &Ready, hook: &Hook) -> Tried {
        let executed_at = self.clock.now();
        let traced = self.nanos_if_recorded(&ready.event);
        let id = AttemptId::new(executed_at, &clock::randomness());
        if let Some(began) = ready.began {
            self.pace(|pace, retries, now| pace.fresh(now.saturating_sub(began), retries, now));
        }
        self.metrics.dispatch_latency.observe(executed_at.since(ready.due).as_secs_f64());
        let Some(target) = hook.target().cloned() else {
            return self.failed_try(ready, SendFailure::Protocol, "the webhook's URL cannot be used");
        };
        let body = ready.format.render(&ready.event);
        let request = Outbound {
            headers: self.headers(ready, hook, id, executed_at, &body),
            target,
            body,
            timeout: hook.policy.timeout(ready.attempt),
            owner: hook.tenant.key,
        };
        let began = ticks();
        let exchange = tokio::select! {
            exchange = self.egress.post(request) => exchange,
            () = self.cut.cancelled() => cut_off(began),
        };
        self.metrics.exchanged(&exchange.timings);
        if exchange.result.is_err() {
            self.metrics.set_egress_refused(self.egress.refusals());
        }
        Tried { id, executed_at, exchange, traced }
    }

    /// A try that did not get as far as a request.
    fn failed_try(&self, ready: &Ready, failure: SendFailure, message: &str) -> Tried {
        let executed_at = self.clock.now();
        let failed = Failed { failure, message: message.into(), status: None };
        Tried {
            id: AttemptId::new(executed_at, &clock::randomness()),
            executed_at,
            exchange: Exchange { result: Err(failed), timings: Timings::default() },
            traced: self.nanos_if_recorded(&ready.event),
        }
    }

    /// The `traceparent` of a request: within the attempt's span if it is recorded, otherwise the publisher's as it
    /// came.
    pub(crate) fn traceparent(&self, event: &Event, attempt: AttemptId) -> Option<String> {
        let trace = event.trace.as_ref()?;
        let span = match self.recording(event) {
            Some(_) => SpanId::of_attempt(attempt),
            None => trace.parent.unwrap_or_else(|| SpanId::of_event(event.id)),
        };
        Some(trace.traceparent(span))
    }

    fn headers(&self, ready: &Ready, hook: &Hook, id: AttemptId, at: Time, body: &[u8]) -> HeaderMap {
        let event_id = ready.event.id.to_string();
        let secrets: Vec<_> = signature::live(&hook.secrets, self.clock.confirmed_now()).collect();
        let signatures = signature::sign(hook.signature, &secrets, &event_id, at, body);
        let key = ready.event.idempotency_key.as_deref().unwrap_or(&event_id);
        let mut headers = HeaderMap::with_capacity(16 + hook.headers.as_ref().map_or(0, |own| own.len()));
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(ready.format.content_type()));
        let own = [
            (header::USER_AGENT, text(&self.settings.user_agent)),
            (WEBHOOK_TIMESTAMP, HeaderValue::from(at.secs())),
            (WEBHOOK_SIGNATURE, owned(signatures.webhook_signature)),
            (X_WEBHOOK_ID, owned(hook.id.to_string())),
            (X_WEBHOOK_EVENT, text(&ready.event.event_type)),
            (X_WEBHOOK_DELIVERY, owned(ready.id.to_string())),
            (X_WEBHOOK_ATTEMPT, HeaderValue::from(ready.attempt)),
            (X_WEBHOOK_TIMESTAMP, owned(at.to_string())),
            (X_WEBHOOK_SIGNATURE, owned(signatures.x_webhook_signature)),
            (X_IDEMPOTENCY_KEY, text(key)),
            (WEBHOOK_ID, owned(event_id)),
            (REDRIVE_HOPS, HeaderValue::from(u16::from(hops::next(ready.event.hops)))),
        ];
        headers.extend(own);
        for (name, value) in ready.format.headers(&ready.event) {
            if let Ok(name) = HeaderName::try_from(name) {
                headers.insert(name, owned(value));
            }
        }
        if let Some(traceparent) = self.traceparent(&ready.event, id) {
            headers.insert(TRACEPARENT, owned(traceparent));
            let state = ready.event.trace.as_ref().and_then(|trace| trace.state());
            headers.extend(state.map(|state| (TRACESTATE, text(state))));
        }
        for (name, value) in hook.headers.iter().flat_map(|own| own.iter()) {
            headers.insert(name.clone(), value.clone());
        }
        headers
    }
}

pub(crate) fn text(text: &str) -> HeaderValue {
    // Keys may hold any letters; a header value takes their bytes. Nothing checked at publish fails here.
    HeaderValue::from_bytes(text.as_bytes()).unwrap_or(HeaderValue::from_static(""))
}

pub(crate) fn owned(text: String) -> HeaderValue {
    HeaderValue::from_maybe_shared(bytes::Bytes::from(text)).unwrap_or(HeaderValue::from_static(""))
}

fn cut_off(began: Duration) -> Exchange {
    let failed = Failed {
        failure: SendFailure::Drained,
        message: "the request was cut off because the server was shutting down".into(),
        status: None,
    };
    let timings = Timings { total: ticks().saturating_sub(began), ..Timings::default() };
    Exchange { result: Err(failed), timings }
}

/// The headers of an answer as `name: value` lines, as many as fit.
pub(crate) fn header_lines(answered: &Answered) -> Vec<u8> {
    const MOST: usize = 4096;
    let mut lines = Vec::with_capacity(128);
    for (name, value) in &answered.headers {
        if lines.len() + name.as_str().len() + value.len() + 3 > MOST {
            break;
        }
        lines.extend_from_slice(name.as_str().as_bytes());
        lines.extend_from_slice(b": ");
        lines.extend_from_slice(value.as_bytes());
        lines.push(b'\n');
    }
    lines
}
