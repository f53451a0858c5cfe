//! `/v1/webhooks/{id}/health`: how an endpoint is doing.

use std::collections::BTreeMap;

use axum::extract::State;
use redrive_core::{FailureCategory, Time, WebhookId, dispatch::gate::WaitingOn, statistics::rollup::Rollup};
use redrive_engine::Waiting;
use serde::Serialize;
use utoipa::ToSchema;

use super::circuit::CircuitView;
use crate::{
    api::{
        AppState,
        events::TenantQuery,
        extract::{Id, May, Query, Reads},
        problem::{Problem, ReadProblems},
    },
    app::health::{BacklogSeen, Health},
};

/// How a webhook is doing.
#[derive(Serialize, ToSchema)]
pub(super) struct HealthView {
    /// The webhook.
    #[schema(value_type = String)]
    webhook_id: WebhookId,
    /// `active`, `paused` or `disabled`.
    state: &'static str,
    /// Its circuit.
    circuit: CircuitView,
    /// The attempts of the last five minutes, to the minute.
    last_5_minutes: WindowView,
    /// The attempts of the last hour.
    last_hour: WindowView,
    /// The attempts of the last day.
    last_24_hours: WindowView,
    /// When it last took a delivery, as far as is remembered: about a day.
    #[schema(value_type = Option<String>, format = DateTime)]
    last_success_at: Option<Time>,
    /// When the first of an unbroken row of failures was.
    #[schema(value_type = Option<String>, format = DateTime)]
    failing_since: Option<Time>,
    /// Requests under way.
    in_flight: usize,
    /// What its due deliveries wait for; null if they only wait for their turn.
    waiting: Option<WaitingView>,
    /// What waits for it in the store.
    backlog: BacklogView,
}

/// The attempts of some span of time.
#[derive(Serialize, ToSchema)]
pub(super) struct WindowView {
    /// How many were made.
    attempts: u32,
    /// How many succeeded.
    successes: u32,
    /// The share that succeeded, from 0 to 1; null without attempts.
    success_rate: Option<f64>,
    /// How long they took.
    latency_ms: LatencyView,
    /// In what ways the others failed.
    #[schema(value_type = BTreeMap<String, u32>)]
    errors: BTreeMap<&'static str, u32>,
}

/// How long attempts took, in milliseconds; null without attempts.
#[derive(Serialize, ToSchema)]
pub(super) struct LatencyView {
    /// Half of them ended within this time.
    p50: Option<f64>,
    /// 95 % of them did.
    p95: Option<f64>,
    /// 99 % of them did.
    p99: Option<f64>,
}

/// What deliveries wait for.
#[derive(Serialize, ToSchema)]
pub(super) struct WaitingView {
    /// What for.
    waiting_on: WaitingOn,
    /// Until when, where that is known.
    #[schema(value_type = Option<String>, format = DateTime)]
    until: Option<Time>,
    /// The same in words.
    explanation: String,
}

/// What waits for a webhook.
#[derive(Serialize, ToSchema)]
pub(super) struct BacklogView {
    /// How many deliveries, as far as they were counted.
    total: u64,
    /// How many wait for what.
    #[schema(value_type = BTreeMap<String, u64>)]
    by_waiting_on: BTreeMap<&'static str, u64>,
    /// Where counting stopped, of due ones, scheduled ones and those in an order each; null if all were counted.
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

/// More digits than microseconds say nothing.
fn to_micros(millis: f64) -> f64 {
    (millis * 1000.0).round() / 1000.0
}

impl From<Waiting> for WaitingView {
    fn from(waiting: Waiting) -> Self {
        Self { waiting_on: waiting.on, until: waiting.until, explanation: waiting.explanation }
    }
}

impl From<BacklogSeen> for BacklogView {
    fn from(backlog: BacklogSeen) -> Self {
        let BacklogSeen { total, by_waiting_on, counted_up_to } = backlog;
        Self { total, by_waiting_on, counted_up_to }
    }
}

impl HealthView {
    fn new(webhook_id: WebhookId, health: Health) -> Self {
        Self {
            webhook_id,
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

/// See how a webhook is doing
///
/// Its circuit, what came back lately, and what waits for what.
#[utoipa::path(
    get, path = "/v1/webhooks/{id}/health", tag = "webhooks", params(("id" = String, Path), TenantQuery),
    responses((status = 200, body = HealthView), ReadProblems),
)]
pub(super) async fn get(
    State(app): State<AppState>,
    May(caller, _): May<Reads>,
    Id(id): Id<WebhookId>,
    Query(query): Query<TenantQuery>,
) -> Result<axum::Json<HealthView>, Problem> {
    let tenant = app.acts_for(&caller, query.tenant_id.as_deref()).await?;
    Ok(axum::Json(HealthView::new(id, app.health(tenant, id).await?)))
}
