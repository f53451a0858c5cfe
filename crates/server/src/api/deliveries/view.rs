//! Deliveries and attempts as people see them.

use redrive_core::{
    AttemptId, DeadReason, DeliveryId, DeliveryStatus, EventId, FailureCategory, TenantId, Time, WebhookId,
    event::Event,
};
use redrive_engine::Settings;
use redrive_store::StoredAttempt;
use serde::Serialize;
use utoipa::ToSchema;

use crate::app::deliveries::{Seen, WaitingOn};

/// A delivery: one event owed to one webhook, in one round.
#[derive(Serialize, ToSchema)]
pub(crate) struct DeliveryView {
    /// Its id.
    #[schema(value_type = String)]
    id: DeliveryId,
    /// Whose it is.
    #[schema(value_type = String)]
    tenant_id: TenantId,
    /// The event.
    #[schema(value_type = String)]
    event_id: EventId,
    /// The event's type.
    event_type: String,
    /// The webhook.
    #[schema(value_type = String)]
    webhook_id: WebhookId,
    /// 1 for the first, counted up by retries and replays of ended ones.
    round: u32,
    /// Where it stands.
    status: DeliveryStatus,
    /// What it waits for, while it is pending.
    waiting_on: Option<WaitingOn>,
    /// When it is due, where that is known.
    #[schema(value_type = Option<String>, format = DateTime)]
    next_attempt_at: Option<Time>,
    /// Attempts made.
    attempt_count: u32,
    /// Attempts that its webhook allows.
    max_attempts: Option<u32>,
    /// The status code of the last answer.
    last_status_code: Option<u16>,
    /// What kind of failure the last one was.
    failure_category: Option<FailureCategory>,
    /// What went wrong last, in words.
    last_error: Option<String>,
    /// Why it was given up.
    dead_reason: Option<DeadReason>,
    /// Whether redriving a dead one, with nothing else changed, may well succeed.
    likely_recoverable: Option<bool>,
    /// Why it was cancelled.
    cancel_reason: Option<String>,
    /// The delivery that this one repeats.
    #[schema(value_type = Option<String>)]
    replay_of: Option<DeliveryId>,
    /// The delivery that repeats this one.
    #[schema(value_type = Option<String>)]
    redriven_as: Option<DeliveryId>,
    /// When it was made.
    #[schema(value_type = String, format = DateTime)]
    created_at: Time,
    /// When it was delivered.
    #[schema(value_type = Option<String>, format = DateTime)]
    delivered_at: Option<Time>,
    /// When it was given up.
    #[schema(value_type = Option<String>, format = DateTime)]
    dead_at: Option<Time>,
    /// When it was cancelled.
    #[schema(value_type = Option<String>, format = DateTime)]
    cancelled_at: Option<Time>,
}

impl From<Seen> for DeliveryView {
    fn from(seen: Seen) -> Self {
        let delivery = seen.delivery;
        let ended = |status| delivery.ended_at.filter(|_| delivery.status == status);
        Self {
            delivered_at: ended(DeliveryStatus::Delivered),
            dead_at: ended(DeliveryStatus::Dead),
            cancelled_at: ended(DeliveryStatus::Cancelled),
            id: delivery.id,
            tenant_id: delivery.tenant,
            event_id: delivery.event,
            event_type: delivery.event_type,
            webhook_id: delivery.webhook,
            round: delivery.round,
            status: delivery.status,
            waiting_on: seen.waiting_on,
            next_attempt_at: seen.next_attempt_at,
            attempt_count: delivery.attempt_count,
            max_attempts: seen.max_attempts,
            last_status_code: delivery.last_status_code,
            failure_category: delivery.failure_category,
            last_error: delivery.last_error,
            likely_recoverable: delivery.dead_reason.map(DeadReason::likely_recoverable),
            dead_reason: delivery.dead_reason,
            cancel_reason: delivery.cancel_reason,
            replay_of: delivery.replay_of,
            redriven_as: delivery.redriven_as,
            created_at: delivery.created_at,
        }
    }
}

/// A header.
#[derive(Serialize, ToSchema)]
pub(crate) struct HeaderView {
    /// Its name.
    name: String,
    /// Its value; `[redacted]` where it is a secret.
    value: String,
}

/// One try of one delivery.
#[derive(Serialize, ToSchema)]
pub(crate) struct AttemptView {
    /// Its id.
    #[schema(value_type = String)]
    id: AttemptId,
    /// 1 for the first.
    number: u32,
    /// The delivery.
    #[schema(value_type = String)]
    delivery_id: DeliveryId,
    /// The event.
    #[schema(value_type = String)]
    event_id: EventId,
    /// The webhook.
    #[schema(value_type = String)]
    webhook_id: WebhookId,
    /// `success`, `failed`, or `exhausted` where it ended its delivery dead.
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
    /// Milliseconds in all.
    duration_ms: f64,
    /// When it was due.
    #[schema(value_type = String, format = DateTime)]
    scheduled_at: Time,
    /// When it was sent.
    #[schema(value_type = String, format = DateTime)]
    executed_at: Time,
    /// When the next one is due.
    #[schema(value_type = Option<String>, format = DateTime)]
    next_retry_at: Option<Time>,
    /// Why there is a next one.
    retry_reason: Option<FailureCategory>,
    /// The node that sent it.
    worker: String,
}

impl AttemptView {
    /// An attempt of a delivery of this event.
    pub(crate) fn new(stored: StoredAttempt, event: &Event) -> Self {
        let request_headers = request_headers(&stored, event);
        let attempt = stored.attempt;
        let millis = |micros: u32| f64::from(micros) / 1000.0;
        let timings = attempt.timings;
        Self {
            id: attempt.id,
            number: attempt.number,
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
            duration_ms: millis(timings.total),
            scheduled_at: attempt.scheduled_at,
            executed_at: attempt.executed_at,
            retry_reason: attempt.failure_category.filter(|_| attempt.next_retry_at.is_some()),
            next_retry_at: attempt.next_retry_at,
            worker: attempt.worker.as_ref().into(),
        }
    }
}

/// What was sent follows from the attempt and its event; only the webhook's own headers were written down.
fn request_headers(stored: &StoredAttempt, event: &Event) -> Vec<HeaderView> {
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
    ];
    let mut headers: Vec<_> =
        own.into_iter().map(|(name, value)| HeaderView { name: name.into(), value }).collect();
    headers.extend(header_views(attempt.custom_headers.as_deref()));
    headers
}

fn header_views(lines: Option<&[u8]>) -> Vec<HeaderView> {
    let text = String::from_utf8_lossy(lines.unwrap_or_default());
    let split = text.lines().filter_map(|line| line.split_once(": "));
    split.map(|(name, value)| HeaderView { name: name.into(), value: value.into() }).collect()
}
