//! `/v1/webhooks/{id}/health`: health of a webhook and its endpoint.

use std::collections::BTreeMap;

use axum::extract::State;
use redrive_core::{
    FailureCategory, Time, WebhookId,
    dispatch::gate::WaitingOn,
    statistics::rollup::Rollup,
    webhook::{status::WebhookStatus, uid::WebhookRef},
};
use redrive_engine::WaitReason;
use serde::Serialize;
use utoipa::ToSchema;

use super::circuit::CircuitView;
use crate::{
    api::{
        AppState,
        extract::Id,
        scope::{CanRead, Scoped, TenantQuery},
    },
    app::health::{BacklogBreakdown, Health},
    problem::{Problem, ReadProblems},
};

/// Health of a webhook.
#[derive(Serialize, ToSchema)]
pub(super) struct HealthView {
    /// Id of the webhook.
    #[schema(value_type = String)]
    webhook_id: WebhookId,
    /// Status of the webhook.
    status: WebhookStatus,
    /// `active`, `paused`, `pending_verification` or `disabled`.
    state: &'static str,
    /// Circuit of the webhook.
    circuit: CircuitView,
    /// Attempts of the last five minutes, in whole minutes.
    last_5_minutes: WindowView,
    /// Attempts of the last hour.
    last_hour: WindowView,
    /// Attempts of the last 24 hours.
    last_24_hours: WindowView,
    /// Time of the last successful attempt, to the minute if it is more than a day ago; null if there was none.
    #[schema(value_type = Option<String>, format = DateTime)]
    last_success_at: Option<Time>,
    /// Time of the first failure since the last success.
    #[schema(value_type = Option<String>, format = DateTime)]
    failing_since: Option<Time>,
    /// Number of requests in flight.
    in_flight: usize,
    /// Reason why due deliveries wait; null if they only wait for a free slot.
    waiting: Option<WaitingView>,
    /// Deliveries waiting in the store.
    backlog: BacklogView,
}

/// Attempts of a period.
#[derive(Serialize, ToSchema)]
pub(super) struct WindowView {
    /// Number of attempts.
    attempts: u32,
    /// Number of successful attempts.
    successes: u32,
    /// Share of successful attempts, from 0 to 1; null without attempts.
    success_rate: Option<f64>,
    /// Response times.
    latency_ms: LatencyView,
    /// Number of failed attempts by failure category.
    #[schema(value_type = BTreeMap<String, u32>)]
    errors: BTreeMap<&'static str, u32>,
}

/// Percentiles of the duration of attempts, in milliseconds; null without attempts.
#[derive(Serialize, ToSchema)]
pub(super) struct LatencyView {
    /// 50th percentile.
    p50: Option<f64>,
    /// 95th percentile.
    p95: Option<f64>,
    /// 99th percentile.
    p99: Option<f64>,
}

/// Reason why deliveries wait.
#[derive(Serialize, ToSchema)]
pub(super) struct WaitingView {
    /// Reason, as a code.
    waiting_on: WaitingOn,
    /// End of the wait, if known.
    #[schema(value_type = Option<String>, format = DateTime)]
    until: Option<Time>,
    /// Human-readable explanation.
    explanation: String,
}

/// Backlog of a webhook.
#[derive(Serialize, ToSchema)]
pub(super) struct BacklogView {
    /// Number of waiting deliveries, up to the counting limit.
    total: u64,
    /// Number of waiting deliveries by reason.
    #[schema(value_type = BTreeMap<String, u64>)]
    by_waiting_on: BTreeMap<&'static str, u64>,
    /// Counting limit, if it was reached, for due, scheduled and ordered deliveries each; null if all were counted.
    counted_up_to: Option<usize>,
}

impl From<Rollup> for WindowView {
    fn from(rollup: Rollup) -> Self {
        let errors = FailureCategory::ALL.into_iter().zip(rollup.by_category);
        let percentile = |percent| rollup.latencies.percentile(percent).map(to_micros);
        Self {
            attempts: rollup.attempts,
            successes: rollup.successes,
            success_rate: rollup.success_rate(),
            latency_ms: LatencyView { p50: percentile(50.0), p95: percentile(95.0), p99: percentile(99.0) },
            errors: errors
                .filter(|(_, count)| *count > 0)
                .map(|(category, count)| (category.name(), count))
                .collect(),
        }
    }
}

/// Rounds to microseconds; further digits carry no information.
fn to_micros(millis: f64) -> f64 {
    (millis * 1000.0).round() / 1000.0
}

impl From<WaitReason> for WaitingView {
    fn from(waiting: WaitReason) -> Self {
        Self { waiting_on: waiting.on, until: waiting.until, explanation: waiting.explanation }
    }
}

impl From<BacklogBreakdown> for BacklogView {
    fn from(backlog: BacklogBreakdown) -> Self {
        let BacklogBreakdown { total, by_waiting_on, counted_up_to } = backlog;
        Self { total, by_waiting_on, counted_up_to }
    }
}

impl HealthView {
    fn new(webhook_id: WebhookId, health: Health) -> Self {
        Self {
            webhook_id,
            status: health.status,
            state: health.state.name(),
            circuit: health.circuit.into(),
            last_5_minutes: health.last_5_minutes.into(),
            last_hour: health.last_hour.into(),
            last_24_hours: health.last_24_hours.into(),
            last_success_at: health.last_success_at,
            failing_since: health.failing_since,
            in_flight: health.in_flight,
            waiting: health.waiting.map(WaitingView::from),
            backlog: health.backlog.into(),
        }
    }
}

/// Get the health of a webhook
///
/// Returns its circuit, the results of recent attempts, and its backlog by reason.
#[utoipa::path(
    get, path = "/v1/webhooks/{id}/health", operation_id = "getWebhookHealth", tag = "webhooks", params(("id" = String, Path, description = "Id or uid of the webhook"), TenantQuery),
    responses((status = 200, description = "Health of the webhook", body = HealthView), ReadProblems),
)]
pub(super) async fn get(
    State(app): State<AppState>,
    Scoped { tenant, path: Id(webhook), .. }: Scoped<CanRead, Id<WebhookRef>>,
) -> Result<axum::Json<HealthView>, Problem> {
    let id = app.webhook_id(&tenant, &webhook).await?;
    Ok(axum::Json(HealthView::new(id, app.health(tenant, id).await?)))
}
