//! One attempt: builds and signs the request, sends it through the egress client and passes its result on to be
//! recorded.

use std::{sync::Arc, time::Duration};

use http::{HeaderMap, HeaderName, HeaderValue, header};
use redrive_core::{
    AttemptId, Time,
    delivery::response::{AttemptResponse, SendFailure},
    dispatch::retry_concurrency::RetryConcurrency,
    event::{Event, hops, trace::SpanId},
    security::signature,
};
use redrive_egress::{EgressFailure, EgressResponse, Exchange, OutboundRequest, Timings};

use crate::{
    Inner,
    clock::{self, monotonic_now},
    dispatch::LeasedDelivery,
    gate::{Admission, PreSendCheck},
    registry::ResolvedWebhook,
    services::FaultPoint,
    unsettled::UnsettledDelivery,
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
/// Number of Redrive deliveries that the event has passed through, including this one.
pub(crate) const REDRIVE_HOPS: HeaderName = HeaderName::from_static(hops::HEADER);
const X_IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("x-idempotency-key");

/// Delay of a delivery that is released to the store because the connection limit of its address was reached.
const CONNECTION_LIMIT_DELAY: Duration = Duration::from_secs(1);

/// An attempt and its result.
pub(crate) struct AttemptResult {
    pub(crate) id: AttemptId,
    pub(crate) executed_at: Time,
    pub(crate) exchange: Exchange,
    /// Start time in nanoseconds, if the trace is sampled.
    pub(crate) started_nanos: Option<u64>,
}

impl AttemptResult {
    /// Returns the response in the form that the decision rules take.
    pub(crate) fn response(&self) -> AttemptResponse<'_> {
        match &self.exchange.result {
            Ok(response) => AttemptResponse::Status {
                code: response.status,
                retry_after: response.headers.get(header::RETRY_AFTER).and_then(|value| value.to_str().ok()),
            },
            Err(failed) => AttemptResponse::Failed(failed.failure),
        }
    }
}

impl Inner {
    /// Takes one delivery through the pre-send check, one attempt and its recording.
    pub(crate) async fn deliver(self: Arc<Self>, mut delivery: UnsettledDelivery, admission: Admission) {
        delivery.begin_task();
        self.inject_fault(FaultPoint::Check);
        match self.pre_send_check(&delivery, &admission.webhook).await {
            Ok(PreSendCheck::Send) => {
                let result = self.send_request(&delivery, &admission.webhook).await;
                match result.response() {
                    AttemptResponse::Failed(SendFailure::ConnectionLimit) => {
                        self.release_for_connection_limit(delivery, admission).await
                    }
                    _ => self.record_attempt(delivery, admission, result).await,
                }
            }
            Ok(PreSendCheck::Poison) => {
                let message =
                    "the sender of this delivery died three times: its process ended, or its task panicked";
                let result = self.failed_without_request(&delivery, SendFailure::SenderDied, message);
                self.record_attempt(delivery, admission, result).await;
            }
            Ok(PreSendCheck::Finish(end)) => {
                self.release_admission(&mut delivery, admission).await;
                self.record_without_attempt(delivery, end);
            }
            Ok(PreSendCheck::LeaseLost) => {
                self.release_admission(&mut delivery, admission).await;
                self.drop_lost_lease(delivery, false);
            }
            Ok(PreSendCheck::LeaseUncertain) => {
                self.release_admission(&mut delivery, admission).await;
                delivery.release();
            }
            Err(error) => {
                tracing::warn!(
                    delivery_id = %delivery.id, webhook_id = %delivery.webhook_id, tenant_id = %delivery.event.tenant_id, %error,
                    "store access failed; delivery released");
                self.release_admission(&mut delivery, admission).await;
                delivery.release();
            }
        }
    }

    /// Releases a delivery to the store because the connection limit of its address was reached. No request was sent,
    /// so this is not an attempt and says nothing about the endpoint.
    async fn release_for_connection_limit(
        self: &Arc<Self>,
        mut delivery: UnsettledDelivery,
        admission: Admission,
    ) {
        self.metrics.connection_limit.inc();
        self.release_admission(&mut delivery, admission).await;
        delivery.delay_until(self.clock.now() + CONNECTION_LIMIT_DELAY);
        delivery.release();
    }

    /// Releases the slot and the probe of a delivery that is not sent.
    async fn release_admission(self: &Arc<Self>, delivery: &mut UnsettledDelivery, mut admission: Admission) {
        drop(admission.slot.take());
        if let Some(probe) = admission.probe.take() {
            probe.return_unused().await;
        }
        delivery.free_webhook_slot();
    }

    /// Updates the retry concurrency controller and applies a changed limit of concurrent retries.
    pub(crate) fn adjust_retry_concurrency(
        self: &Arc<Self>,
        update: impl FnOnce(&mut RetryConcurrency, usize, Duration),
    ) {
        let retries = self.dispatcher.unsettled_retries();
        let changed_limit = {
            let mut concurrency = self.retry_concurrency.lock();
            let before = concurrency.limit();
            update(&mut concurrency, retries, monotonic_now());
            Some(concurrency.limit()).filter(|limit| *limit != before)
        };
        if let Some(limit) = changed_limit {
            let actions = self.dispatcher.set_retry_limit(limit);
            self.apply_actions(actions);
        }
    }

    /// Frees the webhook's slot of a delivery: its request has ended, or is not sent.
    pub(crate) fn free_webhook_slot(self: &Arc<Self>, delivery: &LeasedDelivery) {
        let actions = self.dispatcher.free_webhook_slot(delivery.webhook_id, delivery.id);
        self.apply_actions(actions);
    }

    /// Sends the request of one attempt, and returns its result.
    async fn send_request(
        self: &Arc<Self>,
        delivery: &LeasedDelivery,
        webhook: &ResolvedWebhook,
    ) -> AttemptResult {
        let executed_at = self.clock.now();
        let traced = self.nanos_if_sampled(&delivery.event);
        let id = AttemptId::new(executed_at, &clock::random_id_bytes());
        if let Some(started) = delivery.publish_started_at {
            self.adjust_retry_concurrency(|concurrency, retries, now| {
                concurrency.on_fresh_sent(now.saturating_sub(started), retries, now)
            });
        }
        self.metrics.dispatch_latency.observe(executed_at.duration_since(delivery.due).as_secs_f64());
        let Some(target) = webhook.target().cloned() else {
            return self.failed_without_request(
                delivery,
                SendFailure::Protocol,
                "the webhook's URL cannot be used",
            );
        };
        let body = delivery.format.render(&delivery.event);
        let request = OutboundRequest {
            headers: self.build_headers(delivery, webhook, id, executed_at, &body),
            target,
            body,
            timeout: webhook.retry_policy.timeout(delivery.attempt),
            tenant_key: webhook.tenant.key,
        };
        self.inject_fault(FaultPoint::Send);
        let started = monotonic_now();
        let exchange = tokio::select! {
            exchange = self.egress.post(request) => exchange,
            () = self.cancel_requests.cancelled() => shutdown_failure(started),
        };
        self.metrics.record_exchange(&exchange.timings);
        if exchange.result.is_err() {
            self.metrics.set_egress_refused(self.egress.refusals());
        }
        AttemptResult { id, executed_at, exchange, started_nanos: traced }
    }

    /// Creates the result of an attempt that failed before a request was sent.
    fn failed_without_request(
        &self,
        delivery: &LeasedDelivery,
        failure: SendFailure,
        message: &str,
    ) -> AttemptResult {
        let executed_at = self.clock.now();
        let failed = EgressFailure { failure, message: message.into(), status: None };
        AttemptResult {
            id: AttemptId::new(executed_at, &clock::random_id_bytes()),
            executed_at,
            exchange: Exchange { result: Err(failed), timings: Timings::default() },
            started_nanos: self.nanos_if_sampled(&delivery.event),
        }
    }

    /// Returns the `traceparent` of a request: the attempt's span if the trace is recorded here, otherwise the
    /// publisher's context unchanged.
    pub(crate) fn traceparent(&self, event: &Event, attempt: AttemptId) -> Option<String> {
        let trace = event.trace.as_ref()?;
        let span = match self.recording(event) {
            Some(_) => SpanId::for_attempt(attempt),
            None => trace.parent.unwrap_or_else(|| SpanId::for_event(event.id)),
        };
        Some(trace.traceparent(span))
    }

    fn build_headers(
        &self,
        delivery: &LeasedDelivery,
        webhook: &ResolvedWebhook,
        id: AttemptId,
        at: Time,
        body: &[u8],
    ) -> HeaderMap {
        let event_id = delivery.event.id.to_string();
        let secrets: Vec<_> = signature::live_secrets(&webhook.secrets, self.clock.confirmed_now()).collect();
        let signatures = signature::sign(webhook.signature, &secrets, &event_id, at, body);
        let key = delivery.event.idempotency_key.as_deref().unwrap_or(&event_id);
        let custom_count = webhook.headers.as_ref().map_or(0, |custom| custom.len());
        let mut headers = HeaderMap::with_capacity(16 + custom_count);
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(delivery.format.content_type()));
        let standard = [
            (header::USER_AGENT, header_from_str(&self.settings.user_agent)),
            (WEBHOOK_TIMESTAMP, HeaderValue::from(at.secs())),
            (WEBHOOK_SIGNATURE, header_from_string(signatures.webhook_signature)),
            (X_WEBHOOK_ID, header_from_string(webhook.id.to_string())),
            (X_WEBHOOK_EVENT, header_from_str(&delivery.event.event_type)),
            (X_WEBHOOK_DELIVERY, header_from_string(delivery.id.to_string())),
            (X_WEBHOOK_ATTEMPT, HeaderValue::from(delivery.attempt)),
            (X_WEBHOOK_TIMESTAMP, header_from_string(at.to_string())),
            (X_WEBHOOK_SIGNATURE, header_from_string(signatures.x_webhook_signature)),
            (X_IDEMPOTENCY_KEY, header_from_str(key)),
            (WEBHOOK_ID, header_from_string(event_id)),
            (REDRIVE_HOPS, HeaderValue::from(u16::from(hops::next(delivery.event.hops)))),
        ];
        headers.extend(standard);
        for (name, value) in delivery.format.headers(&delivery.event) {
            if let Ok(name) = HeaderName::try_from(name) {
                headers.insert(name, header_from_string(value));
            }
        }
        if let Some(traceparent) = self.traceparent(&delivery.event, id) {
            headers.insert(TRACEPARENT, header_from_string(traceparent));
            let state = delivery.event.trace.as_ref().and_then(|trace| trace.state());
            headers.extend(state.map(|state| (TRACESTATE, header_from_str(state))));
        }
        for (name, value) in webhook.headers.iter().flat_map(|custom| custom.iter()) {
            headers.insert(name.clone(), value.clone());
        }
        headers
    }
}

pub(crate) fn header_from_str(text: &str) -> HeaderValue {
    // Keys may contain non-ASCII text; a header value takes its bytes. Values validated on publish never fail here.
    HeaderValue::from_bytes(text.as_bytes()).unwrap_or(HeaderValue::from_static(""))
}

pub(crate) fn header_from_string(text: String) -> HeaderValue {
    HeaderValue::from_maybe_shared(bytes::Bytes::from(text)).unwrap_or(HeaderValue::from_static(""))
}

fn shutdown_failure(started: Duration) -> Exchange {
    let failed = EgressFailure {
        failure: SendFailure::DrainDeadline,
        message: "the request was cut off because the server was shutting down".into(),
        status: None,
    };
    let timings = Timings { total: monotonic_now().saturating_sub(started), ..Timings::default() };
    Exchange { result: Err(failed), timings }
}

/// Formats response headers as `name: value` lines, up to `MAX_HEADER_BYTES`.
pub(crate) fn header_lines(response: &EgressResponse) -> Vec<u8> {
    const MAX_HEADER_BYTES: usize = 4096;
    let mut lines = Vec::with_capacity(128);
    for (name, value) in &response.headers {
        if lines.len() + name.as_str().len() + value.len() + 3 > MAX_HEADER_BYTES {
            break;
        }
        lines.extend_from_slice(name.as_str().as_bytes());
        lines.extend_from_slice(b": ");
        lines.extend_from_slice(value.as_bytes());
        lines.push(b'\n');
    }
    lines
}
