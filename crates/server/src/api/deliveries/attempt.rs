//! API view of attempts, including the periods between them in which a circuit blocked the delivery.

use redrive_core::{
    AttemptId, DeliveryId, EventId, FailureCategory, Time, WebhookId,
    event::{Event, hops},
    protection::breaker::CircuitState,
};
use redrive_engine::Settings;
use redrive_store::{Delivery, StoredAttempt};
use serde::Serialize;
use utoipa::ToSchema;

use crate::app::attempts::{BlockedPeriod, DeliveryHistory, HistoryEntry};

/// An HTTP header.
#[derive(Serialize, ToSchema)]
pub(crate) struct HeaderView {
    /// Header name.
    pub(crate) name: String,
    /// Header value; `[redacted]` for secrets.
    pub(crate) value: String,
}

/// Result of an attempt, in every view of it.
#[derive(Serialize, ToSchema)]
pub(in crate::api) struct AttemptResultView {
    /// Delivery id.
    #[schema(value_type = String)]
    delivery_id: DeliveryId,
    /// Event id.
    #[schema(value_type = String)]
    event_id: EventId,
    /// Webhook id.
    #[schema(value_type = String)]
    webhook_id: WebhookId,
    /// `success`; `failed`; `exhausted`: the attempt after which the delivery is dead, whatever its `dead_reason`; or, in
    /// the history of a delivery, `circuit_blocked`: not an attempt but a period in which an open circuit blocked it.
    #[schema(example = "success")]
    status: &'static str,
    /// Failure category.
    failure_category: Option<FailureCategory>,
    /// Status code of the response.
    http_status_code: Option<u16>,
    /// Error message.
    error_message: Option<String>,
    /// Due time; for `circuit_blocked`, start of the period.
    #[schema(value_type = String, format = DateTime)]
    scheduled_at: Time,
    /// Due time of the next attempt.
    #[schema(value_type = Option<String>, format = DateTime)]
    next_retry_at: Option<Time>,
    /// State of the webhook's circuit at the time of sending.
    circuit_state_at_attempt: CircuitState,
}

impl AttemptResultView {
    pub(in crate::api) fn new(stored: &StoredAttempt) -> Self {
        let attempt = &stored.attempt;
        Self {
            delivery_id: stored.delivery_id,
            event_id: stored.event_id,
            webhook_id: stored.webhook_id,
            status: attempt.status.name(),
            failure_category: attempt.failure_category,
            http_status_code: attempt.http_status_code,
            error_message: attempt.error_message.clone(),
            scheduled_at: attempt.scheduled_at,
            next_retry_at: attempt.next_retry_at,
            circuit_state_at_attempt: attempt.circuit,
        }
    }
}

/// One attempt of one delivery.
#[derive(Serialize, ToSchema)]
pub(crate) struct AttemptView {
    /// Attempt id; null for `circuit_blocked`.
    #[schema(value_type = Option<String>)]
    id: Option<AttemptId>,
    /// Attempt number, from 1; null for `circuit_blocked`.
    number: Option<u32>,
    #[serde(flatten)]
    result: AttemptResultView,
    /// Request headers, secrets redacted.
    request_headers: Vec<HeaderView>,
    /// Response headers.
    response_headers: Vec<HeaderView>,
    /// First KiB of the response body; bytes that are not UTF-8 are replaced.
    response_body_sample: Option<String>,
    /// Milliseconds of DNS resolution; null if it was not needed.
    dns_ms: Option<f64>,
    /// Milliseconds of connecting; null on a reused connection.
    connect_ms: Option<f64>,
    /// Milliseconds of the TLS handshake.
    tls_ms: Option<f64>,
    /// Milliseconds to the first byte of the response.
    ttfb_ms: Option<f64>,
    /// Total milliseconds; null for `circuit_blocked`.
    duration_ms: Option<f64>,
    /// Time of sending; null for `circuit_blocked`.
    #[schema(value_type = Option<String>, format = DateTime)]
    executed_at: Option<Time>,
    /// End of the period, for `circuit_blocked`; null while it lasts.
    #[schema(value_type = Option<String>, format = DateTime)]
    blocked_until: Option<Time>,
    /// Reason of the next attempt.
    retry_reason: Option<FailureCategory>,
    /// Node that sent the attempt; null for `circuit_blocked`.
    worker: Option<String>,
}

impl AttemptView {
    /// Returns the history of a delivery of this event.
    pub(crate) fn all(history: DeliveryHistory, event: &Event) -> Vec<Self> {
        let delivery = history.delivery;
        let view = |entry| match entry {
            HistoryEntry::Attempt(stored) => Self::from_attempt(stored, event),
            HistoryEntry::Blocked(blocked) => Self::from_blocked(&blocked, &delivery),
        };
        history.entries.into_iter().map(view).collect()
    }

    fn from_blocked(blocked: &BlockedPeriod, delivery: &Delivery) -> Self {
        Self {
            id: None,
            number: None,
            result: AttemptResultView {
                delivery_id: delivery.id,
                event_id: delivery.event_id,
                webhook_id: delivery.webhook_id,
                status: "circuit_blocked",
                failure_category: None,
                http_status_code: None,
                error_message: Some(blocked.describe()),
                scheduled_at: blocked.since,
                next_retry_at: None,
                circuit_state_at_attempt: CircuitState::Open,
            },
            request_headers: Vec::new(),
            response_headers: Vec::new(),
            response_body_sample: None,
            dns_ms: None,
            connect_ms: None,
            tls_ms: None,
            ttfb_ms: None,
            duration_ms: None,
            executed_at: None,
            blocked_until: blocked.until,
            retry_reason: None,
            worker: None,
        }
    }

    /// Returns the view of an attempt for this event.
    pub(in crate::api) fn from_attempt(stored: StoredAttempt, event: &Event) -> Self {
        let (request_headers, result) = (request_headers(&stored, event), AttemptResultView::new(&stored));
        let attempt = stored.attempt;
        let millis = |micros: u32| f64::from(micros) / 1000.0;
        let timings = attempt.timings;
        Self {
            id: Some(attempt.id),
            number: Some(attempt.number),
            result,
            request_headers,
            response_headers: header_views(attempt.response_headers.as_deref()),
            response_body_sample: attempt
                .response_body_sample
                .map(|sample| String::from_utf8_lossy(&sample).into_owned()),
            dns_ms: timings.dns.map(millis),
            connect_ms: timings.connect.map(millis),
            tls_ms: timings.tls.map(millis),
            ttfb_ms: timings.ttfb.map(millis),
            duration_ms: Some(millis(timings.total)),
            executed_at: Some(attempt.executed_at),
            blocked_until: None,
            retry_reason: attempt.failure_category.filter(|_| attempt.next_retry_at.is_some()),
            worker: Some(attempt.worker.as_ref().into()),
        }
    }
}

/// Reconstructs the request headers from the attempt and its event; only headers that not every request has are
/// stored.
pub(crate) fn request_headers(stored: &StoredAttempt, event: &Event) -> Vec<HeaderView> {
    let attempt = &stored.attempt;
    let own = [
        ("content-type", "application/json".into()),
        ("user-agent", Settings::default().user_agent),
        ("webhook-id", stored.event_id.to_string()),
        ("webhook-timestamp", attempt.executed_at.secs().to_string()),
        ("webhook-signature", "[redacted]".into()),
        ("x-webhook-id", stored.webhook_id.to_string()),
        ("x-webhook-event", event.event_type.to_string()),
        ("x-webhook-delivery", stored.delivery_id.to_string()),
        ("x-webhook-attempt", attempt.number.to_string()),
        ("x-webhook-timestamp", attempt.executed_at.to_string()),
        ("x-webhook-signature", "[redacted]".into()),
        ("x-idempotency-key", event.effective_key()),
        (hops::HEADER, hops::next(event.hops).to_string()),
    ];
    let noted = header_views(attempt.custom_headers.as_deref());
    let is_noted = |name: &str| noted.iter().any(|header| header.name == name);
    let own = own.into_iter().filter(|(name, _)| !is_noted(name));
    let own: Vec<_> = own.map(|(name, value)| HeaderView { name: name.into(), value }).collect();
    own.into_iter().chain(noted).collect()
}

/// Parses headers that were stored as lines.
pub(crate) fn header_views(lines: Option<&[u8]>) -> Vec<HeaderView> {
    let text = String::from_utf8_lossy(lines.unwrap_or_default());
    let split = text.lines().filter_map(|line| line.split_once(": "));
    split.map(|(name, value)| HeaderView { name: name.into(), value: value.into() }).collect()
}
