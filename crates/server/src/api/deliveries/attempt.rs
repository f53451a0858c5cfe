//! Attempts as people see them, with the times between them for which a circuit held the delivery back.

use redrive_core::{
    AttemptId, DeliveryId, EventId, FailureCategory, Time, WebhookId, event::Event, event::hops,
    protection::breaker::CircuitState,
};
use redrive_engine::Settings;
use redrive_store::{Delivery, StoredAttempt};
use serde::Serialize;
use utoipa::ToSchema;

use crate::app::attempts::{Blocked, Entry, History};

/// A header.
#[derive(Serialize, ToSchema)]
pub(crate) struct HeaderView {
    /// Its name.
    pub(crate) name: String,
    /// Its value; `[redacted]` where it is a secret.
    pub(crate) value: String,
}

/// One try of one delivery.
#[derive(Serialize, ToSchema)]
pub(crate) struct AttemptView {
    /// Its id; null for `circuit_blocked`.
    #[schema(value_type = Option<String>)]
    id: Option<AttemptId>,
    /// 1 for the first; null for `circuit_blocked`.
    number: Option<u32>,
    /// The delivery.
    #[schema(value_type = String)]
    delivery_id: DeliveryId,
    /// The event.
    #[schema(value_type = String)]
    event_id: EventId,
    /// The webhook.
    #[schema(value_type = String)]
    webhook_id: WebhookId,
    /// `success`, `failed`, `exhausted` where it ended its delivery dead, or `circuit_blocked`: no attempt, but
    /// a time for which an open circuit held the delivery back.
    #[schema(example = "success")]
    status: &'static str,
    /// What kind of failure it was.
    failure_category: Option<FailureCategory>,
    /// The answer's status code.
    http_status_code: Option<u16>,
    /// What went wrong, in words.
    error_message: Option<String>,
    /// The headers that were sent, secrets redacted.
    request_headers: Vec<HeaderView>,
    /// The headers that came back.
    response_headers: Vec<HeaderView>,
    /// The first KiB of the answer's body; bytes that are no text are replaced.
    response_body_sample: Option<String>,
    /// Milliseconds for looking the name up; null where that was not needed.
    dns_ms: Option<f64>,
    /// Milliseconds for connecting; null on a reused connection.
    connect_ms: Option<f64>,
    /// Milliseconds for the TLS handshake.
    tls_ms: Option<f64>,
    /// Milliseconds to the first byte of the answer.
    ttfb_ms: Option<f64>,
    /// Milliseconds in all; null for `circuit_blocked`.
    duration_ms: Option<f64>,
    /// When it was due; for `circuit_blocked`, when it was first held back.
    #[schema(value_type = String, format = DateTime)]
    scheduled_at: Time,
    /// When it was sent; null for `circuit_blocked`.
    #[schema(value_type = Option<String>, format = DateTime)]
    executed_at: Option<Time>,
    /// Until when it was held back, for `circuit_blocked`; null while it is.
    #[schema(value_type = Option<String>, format = DateTime)]
    blocked_until: Option<Time>,
    /// When the next one is due.
    #[schema(value_type = Option<String>, format = DateTime)]
    next_retry_at: Option<Time>,
    /// Why there is a next one.
    retry_reason: Option<FailureCategory>,
    /// The state of the webhook's circuit when it was sent.
    circuit_state_at_attempt: CircuitState,
    /// The node that sent it; null for `circuit_blocked`.
    worker: Option<String>,
}

impl AttemptView {
    /// The history of a delivery of this event.
    pub(crate) fn all(history: History, event: &Event) -> Vec<Self> {
        let delivery = history.delivery;
        let view = |entry| match entry {
            Entry::Attempt(stored) => Self::tried(stored, event),
            Entry::Blocked(blocked) => Self::held_back(&blocked, &delivery),
        };
        history.entries.into_iter().map(view).collect()
    }

    fn held_back(blocked: &Blocked, delivery: &Delivery) -> Self {
        Self {
            id: None,
            number: None,
            delivery_id: delivery.id,
            event_id: delivery.event,
            webhook_id: delivery.webhook,
            status: "circuit_blocked",
            failure_category: None,
            http_status_code: None,
            error_message: Some(blocked.words()),
            request_headers: Vec::new(),
            response_headers: Vec::new(),
            response_body_sample: None,
            dns_ms: None,
            connect_ms: None,
            tls_ms: None,
            ttfb_ms: None,
            duration_ms: None,
            scheduled_at: blocked.since,
            executed_at: None,
            blocked_until: blocked.until,
            next_retry_at: None,
            retry_reason: None,
            circuit_state_at_attempt: CircuitState::Open,
            worker: None,
        }
    }

    fn tried(stored: StoredAttempt, event: &Event) -> Self {
        let request_headers = request_headers(&stored, event);
        let attempt = stored.attempt;
        let millis = |micros: u32| f64::from(micros) / 1000.0;
        let timings = attempt.timings;
        Self {
            id: Some(attempt.id),
            number: Some(attempt.number),
            delivery_id: stored.delivery,
            event_id: stored.event,
            webhook_id: stored.webhook,
            status: attempt.status.name(),
            failure_category: attempt.failure_category,
            http_status_code: attempt.http_status_code,
            error_message: attempt.error_message,
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
            scheduled_at: attempt.scheduled_at,
            executed_at: Some(attempt.executed_at),
            blocked_until: None,
            retry_reason: attempt.failure_category.filter(|_| attempt.next_retry_at.is_some()),
            next_retry_at: attempt.next_retry_at,
            circuit_state_at_attempt: attempt.circuit,
            worker: Some(attempt.worker.as_ref().into()),
        }
    }
}

/// What was sent follows from the attempt and its event; only the webhook's own headers were written down.
pub(crate) fn request_headers(stored: &StoredAttempt, event: &Event) -> Vec<HeaderView> {
    let attempt = &stored.attempt;
    let own = [
        ("content-type", "application/json".into()),
        ("user-agent", Settings::default().user_agent),
        ("webhook-id", stored.event.to_string()),
        ("webhook-timestamp", attempt.executed_at.secs().to_string()),
        ("webhook-signature", "[redacted]".into()),
        ("x-webhook-id", stored.webhook.to_string()),
        ("x-webhook-event", event.event_type.to_string()),
        ("x-webhook-delivery", stored.delivery.to_string()),
        ("x-webhook-attempt", attempt.number.to_string()),
        ("x-webhook-timestamp", attempt.executed_at.to_string()),
        ("x-webhook-signature", "[redacted]".into()),
        ("x-idempotency-key", event.key()),
        (hops::HEADER, hops::next(event.hops).to_string()),
    ];
    let noted = header_views(attempt.custom_headers.as_deref());
    let is_noted = |name: &str| noted.iter().any(|header| header.name == name);
    let own = own.into_iter().filter(|(name, _)| !is_noted(name));
    let own: Vec<_> = own.map(|(name, value)| HeaderView { name: name.into(), value }).collect();
    own.into_iter().chain(noted).collect()
}

/// Headers that were written down as lines.
pub(crate) fn header_views(lines: Option<&[u8]>) -> Vec<HeaderView> {
    let text = String::from_utf8_lossy(lines.unwrap_or_default());
    let split = text.lines().filter_map(|line| line.split_once(": "));
    split.map(|(name, value)| HeaderView { name: name.into(), value: value.into() }).collect()
}
