//! `/v1/overview`: traffic, backlog, circuits, dead letters and webhooks with failures of one tenant, or of all.

use axum::extract::State;
use redrive_core::{
    FailureCategory, FieldError, TenantId, Time, WebhookId,
    statistics::traffic::{Point, Range, Totals},
};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    AppState,
    extract::Query,
    scope::{CanRead, ScopedListing, tenant_parameter},
    tenants::TenantHealthView,
};
use crate::{
    app::{
        TenantSelection,
        across_tenants::{OverviewOfAll, TenantSummary},
        auth::ALL_TENANTS,
        overview::{Overview, WorstWebhook},
        traffic::TrafficChart,
    },
    problem::{Problem, ReadProblems},
};

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(get))
}

/// Values of `range`, for the OpenAPI document.
#[derive(ToSchema)]
#[allow(dead_code, reason = "it is there to be documented")]
enum RangeParameter {
    #[schema(rename = "1h")]
    Hour,
    #[schema(rename = "6h")]
    SixHours,
    #[schema(rename = "24h")]
    Day,
    #[schema(rename = "7d")]
    Week,
    #[schema(rename = "30d")]
    Month,
}

/// Tenant and time range of an overview.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct OverviewQuery {
    /// Time range of the traffic: `1h` (default), `6h`, `24h`, `7d` or `30d`.
    #[param(value_type = Option<RangeParameter>, inline)]
    range: Option<String>,
    /// Tenant to act for, or `*` for all; admin keys only.
    tenant_id: Option<String>,
}

tenant_parameter!(OverviewQuery);

impl OverviewQuery {
    fn range(&self) -> Result<Range, FieldError> {
        let Some(name) = &self.range else { return Ok(Range::Hour) };
        Range::parse(name).ok_or_else(|| FieldError::new("range", "must be 1h, 6h, 24h, 7d or 30d"))
    }
}

/// Overview of one tenant, or of all.
#[derive(Serialize, ToSchema)]
struct OverviewView {
    /// The tenant; `*` for all.
    tenant_id: String,
    /// Time of the counts: some seconds ago for all tenants.
    #[schema(value_type = String, format = DateTime)]
    counted_at: Time,
    /// Traffic in the requested range.
    traffic: TrafficView,
    /// Number of waiting deliveries.
    backlog: CountView,
    /// Circuits that are not closed.
    circuits: CircuitsView,
    /// Number of dead letters.
    dead_letters: CountView,
    /// Number of webhooks with failed attempts in the last hour; not all of them have the status `failing`.
    webhooks_with_failures: usize,
    /// Webhooks with the most failed attempts in the last hour.
    worst_webhooks: Vec<WorstWebhookView>,
    /// Tenants that are failing or degraded, the worst first. Only for all tenants.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    worst_tenants: Option<Vec<WorstTenantView>>,
}

/// Number that may be lower than the real one, because counting is limited.
#[derive(Serialize, ToSchema)]
struct CountView {
    /// The number counted.
    total: u64,
    /// Whether there are more than were counted.
    more: bool,
}

/// Circuits that are not closed.
#[derive(Serialize, ToSchema)]
struct CircuitsView {
    /// Open circuits, including those forced open.
    open: usize,
    /// Half-open circuits.
    half_open: usize,
    /// Whether there are more than were counted.
    more: bool,
}

/// Traffic over time.
#[derive(Serialize, ToSchema)]
struct TrafficView {
    /// Time range.
    range: &'static str,
    /// Number of attempts.
    attempts: u64,
    /// Number of successful attempts.
    successes: u64,
    /// Ratio of successful attempts, from 0 to 1; null without attempts.
    success_rate: Option<f64>,
    /// Deliveries that were delivered.
    delivered: u64,
    /// Deliveries that became dead.
    dead: u64,
    /// Deliveries that were cancelled.
    cancelled: u64,
    /// Points of the range, oldest first, without gaps.
    points: Vec<PointView>,
}

/// Traffic of one point in time.
#[derive(Serialize, ToSchema)]
struct PointView {
    /// Start of the point.
    #[schema(value_type = String, format = DateTime)]
    start: Time,
    /// Number of attempts.
    attempts: u64,
    /// Number of successful attempts.
    successes: u64,
    /// Deliveries that were delivered.
    delivered: u64,
    /// Deliveries that became dead.
    dead: u64,
    /// Deliveries that were cancelled.
    cancelled: u64,
}

/// Webhook with failed attempts in the last hour.
#[derive(Serialize, ToSchema)]
struct WorstWebhookView {
    /// Its tenant.
    #[schema(value_type = String)]
    tenant_id: TenantId,
    /// The webhook.
    #[schema(value_type = String)]
    webhook_id: WebhookId,
    /// URL that events are sent to.
    url: String,
    /// Attempts in the last hour.
    attempts: u32,
    /// Failed attempts in the last hour.
    failures: u32,
    /// Most frequent category of the failures.
    failure_category: Option<FailureCategory>,
}

/// Tenant that needs attention.
#[derive(Serialize, ToSchema)]
struct WorstTenantView {
    /// The tenant.
    #[schema(value_type = String)]
    tenant_id: TenantId,
    /// Display name.
    name: Option<String>,
    /// Health of the tenant.
    health: TenantHealthView,
}

impl From<TrafficChart> for TrafficView {
    fn from(chart: TrafficChart) -> Self {
        let Totals { attempts, successes, ended, .. } = chart.total;
        let success_rate = chart.total.success_rate();
        let point = |point: Point| PointView {
            start: point.start,
            attempts: point.traffic.sent.attempts.into(),
            successes: point.traffic.sent.successes.into(),
            delivered: point.traffic.ended.delivered,
            dead: point.traffic.ended.dead,
            cancelled: point.traffic.ended.cancelled,
        };
        Self {
            range: chart.range.name(),
            attempts,
            successes,
            success_rate,
            delivered: ended.delivered,
            dead: ended.dead,
            cancelled: ended.cancelled,
            points: chart.points.into_iter().map(point).collect(),
        }
    }
}

impl WorstWebhookView {
    fn new(tenant_id: TenantId, worst: WorstWebhook) -> Self {
        let sum = &worst.last_hour.sum;
        Self {
            tenant_id,
            webhook_id: worst.webhook.id,
            attempts: sum.attempts,
            failures: sum.failures(),
            failure_category: worst.most_frequent,
            url: worst.webhook.url,
        }
    }
}

impl WorstTenantView {
    fn new(summary: TenantSummary, counted_at: Time) -> Self {
        let TenantSummary { tenant, health } = summary;
        Self { tenant_id: tenant.id, name: tenant.name, health: TenantHealthView::new(health, counted_at) }
    }
}

impl OverviewView {
    fn of_tenant(tenant_id: &TenantId, overview: Overview) -> Self {
        let worst = overview.worst_webhooks;
        let circuits = overview.circuits;
        let view = |one| WorstWebhookView::new(tenant_id.clone(), one);
        Self {
            tenant_id: tenant_id.to_string(),
            counted_at: overview.traffic.now,
            traffic: overview.traffic.into(),
            backlog: CountView { total: overview.queue.total, more: overview.queue.more },
            circuits: CircuitsView {
                open: circuits.open,
                half_open: circuits.half_open,
                more: circuits.more,
            },
            dead_letters: CountView { total: overview.dead.size as u64, more: overview.dead.more },
            webhooks_with_failures: worst.failing,
            worst_webhooks: worst.webhooks.into_iter().map(view).collect(),
            worst_tenants: None,
        }
    }

    fn of_all(overview: OverviewOfAll) -> Self {
        let health = &overview.health;
        let (counted_at, circuits) = (health.counted_at, health.circuits);
        let tenants = overview.worst_tenants.into_iter().map(|one| WorstTenantView::new(one, counted_at));
        let webhooks = overview.worst_webhooks.into_iter();
        Self {
            tenant_id: ALL_TENANTS.to_owned(),
            counted_at,
            traffic: overview.traffic.into(),
            backlog: CountView { total: overview.total.backlog, more: health.more },
            circuits: CircuitsView {
                open: circuits.open,
                half_open: circuits.half_open,
                more: circuits.more,
            },
            dead_letters: CountView { total: overview.total.dead_letters, more: health.more },
            webhooks_with_failures: health.webhooks_with_failures,
            worst_webhooks: webhooks.map(|one| WorstWebhookView::new(one.tenant_id, one.worst)).collect(),
            worst_tenants: Some(tenants.collect()),
        }
    }
}

/// Get the overview
///
/// Traffic, backlog, circuits, dead letters and failing webhooks of one tenant or, with an admin key and `tenant_id=*`,
/// of all tenants.
#[utoipa::path(
    get, path = "/v1/overview", operation_id = "getOverview", tag = "health", params(OverviewQuery),
    responses((status = 200, description = "The overview", body = OverviewView), ReadProblems),
)]
async fn get(
    State(app): State<AppState>,
    ScopedListing { tenants, query: Query(query), .. }: ScopedListing<CanRead, Query<OverviewQuery>>,
) -> Result<axum::Json<OverviewView>, Problem> {
    let range = query.range()?;
    Ok(axum::Json(match tenants {
        TenantSelection::One(view) => {
            let tenant_id = view.id.clone();
            OverviewView::of_tenant(&tenant_id, app.overview(view, range).await?)
        }
        TenantSelection::All(all) => OverviewView::of_all(app.overview_of_all(all, range).await?),
    }))
}
