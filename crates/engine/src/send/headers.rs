//! Headers of requests, and of responses as they are recorded.

use http::{HeaderMap, HeaderName, HeaderValue, header};
use redrive_core::{AttemptId, Time, event::hops, security::signature};
use redrive_egress::EgressResponse;

use super::Sender;
use crate::{dispatch::LeasedDelivery, routing::ResolvedWebhook};

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

impl Sender {
    /// Returns the headers of a request, signed.
    pub(super) fn build_headers(
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
            (header::USER_AGENT, header_from_str(&self.user_agent)),
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
        if let Some(traceparent) = self.tracer.traceparent(&delivery.event, id) {
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
