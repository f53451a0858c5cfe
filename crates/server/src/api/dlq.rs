//! `/v1/dlq`: dead deliveries that were not redriven or purged.

use axum::{extract::State, response::Response};
use redrive_core::{FailureCategory, TenantId, WebhookId};
use redrive_store::EndedCounts;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    AppState,
    deliveries::{DeadQuery, DeliveryQuery, DeliveryView, ExportQuery, cursor_of, export_rows},
    extract::Query,
    page::Page,
    scope::{CanRead, Scoped, ScopedListing},
};
use crate::{
    app::dead_letters::{DeadStats, TopCounts},
    problem::{Problem, ReadProblems},
};

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(stats)).routes(routes!(export))
}

/// List dead deliveries
///
/// With an admin key, `tenant_id=*` lists those of all tenants; `subject` and `idempotency_key` need one tenant.
#[utoipa::path(
    get, path = "/v1/dlq", operation_id = "listDeadLetters", tag = "dlq", params(DeliveryQuery),
    responses((status = 200, description = "Newest event first", body = Page<DeliveryView>), ReadProblems),
)]
async fn list(
    State(app): State<AppState>,
    ScopedListing { tenants, query: Query(query), .. }: ScopedListing<CanRead, Query<DeliveryQuery>>,
) -> Result<axum::Json<Page<DeliveryView>>, Problem> {
    let paging = query.paging();
    let dead = app.list_dead(tenants.clone(), query.filter(&app, tenants).await?, paging.request()?).await?;
    Ok(axum::Json(paging.page_of(dead, cursor_of, DeliveryView::from)))
}

/// Export dead deliveries
///
/// Streams all dead deliveries that match the filter, newest event first. If the response is cut off, it is
/// incomplete.
#[utoipa::path(
    get, path = "/v1/dlq/export", operation_id = "exportDeadLetters", tag = "dlq", params(ExportQuery),
    responses(
        (status = 200, description = "All matching dead letters, newest event first", content((DeliveryView = "application/x-ndjson"), (String = "text/csv"))), ReadProblems,
    ),
)]
async fn export(
    State(app): State<AppState>,
    Scoped { tenant, query: Query(query), .. }: Scoped<CanRead, (), Query<ExportQuery>>,
) -> Result<Response, Problem> {
    export_rows(&app, tenant, &query, true).await
}

/// Statistics of dead letters.
#[derive(Serialize, ToSchema)]
pub(super) struct StatsView {
    /// Number of dead letters counted.
    size: u64,
    /// Null if all were counted. Otherwise the limit that was reached: only this many dead letters, of the newest
    /// events, were counted, and all fields except `entries` are about these.
    counted_up_to: Option<u64>,
    /// New dead deliveries compared with all ended deliveries, for the whole tenant or for all tenants.
    entries: EntriesView,
    /// Dead letters by age.
    age: AgeView,
    /// Dead letters by `likely_recoverable`: whether the last failure requires no change before a retry.
    recoverability: RecoverabilityView,
    /// Dead letters by category of the last failure, most frequent first; null for those that never failed.
    by_failure_category: Vec<CategoryCount>,
    /// Dead letters by event type, the 20 most frequent.
    by_event_type: Vec<TypeCount>,
    /// Number of dead letters of all other event types.
    other_event_types: u64,
    /// Dead letters by webhook, the 20 most frequent.
    by_webhook: Vec<WebhookCount>,
    /// Number of dead letters of all other webhooks.
    other_webhooks: u64,
    /// Dead letters by tenant, the 20 most frequent. Only for all tenants.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    by_tenant: Option<Vec<TenantCount>>,
    /// Number of dead letters of all other tenants. Only for all tenants.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    other_tenants: Option<u64>,
}

/// Deliveries that recently became dead, whether or not redriven since. Exact to the minute, with a few seconds of
/// delay.
#[derive(Serialize, ToSchema)]
pub(super) struct EntriesView {
    /// In the last hour.
    last_hour: RateView,
    /// In the last 24 hours.
    last_24_hours: RateView,
}

/// Dead deliveries among all ended deliveries.
#[derive(Serialize, ToSchema)]
pub(super) struct RateView {
    /// Number of deliveries that became dead.
    dead: u64,
    /// Number of deliveries that became delivered, dead or cancelled.
    ended: u64,
    /// Ratio of `dead` to `ended`, from 0 to 1; null if none ended.
    rate: Option<f64>,
}

/// Dead letters by time since they became dead.
#[derive(Serialize, ToSchema)]
pub(super) struct AgeView {
    /// Less than one hour.
    under_1_hour: u64,
    /// One hour to one day.
    from_1_to_24_hours: u64,
    /// More than one day.
    over_24_hours: u64,
}

/// Dead letters by `likely_recoverable`: whether the last failure requires no change before a retry.
#[derive(Serialize, ToSchema)]
pub(super) struct RecoverabilityView {
    /// Number whose last failure requires no change before a retry.
    likely_recoverable: u64,
    /// Number that the endpoint rejected, or that otherwise require a change before a retry.
    permanent: u64,
}

/// Number of dead letters by category of the last failure.
#[derive(Serialize, ToSchema)]
pub(super) struct CategoryCount {
    /// Failure category; null if there was no attempt.
    failure_category: Option<FailureCategory>,
    /// Number of dead letters.
    count: u64,
}

/// Number of dead letters of one event type.
#[derive(Serialize, ToSchema)]
pub(super) struct TypeCount {
    /// Event type.
    event_type: String,
    /// Number of dead letters.
    count: u64,
}

/// Number of dead letters of one webhook.
#[derive(Serialize, ToSchema)]
pub(super) struct WebhookCount {
    /// Webhook id.
    #[schema(value_type = String)]
    webhook_id: WebhookId,
    /// Number of dead letters.
    count: u64,
}

/// Number of dead letters of one tenant.
#[derive(Serialize, ToSchema)]
pub(super) struct TenantCount {
    /// Tenant.
    #[schema(value_type = String)]
    tenant_id: TenantId,
    /// Number of dead letters.
    count: u64,
}

impl From<EndedCounts> for RateView {
    fn from(ended: EndedCounts) -> Self {
        let all = ended.all();
        Self { dead: ended.dead, ended: all, rate: (all > 0).then(|| ended.dead as f64 / all as f64) }
    }
}

fn counts<K, V>(progress: TopCounts<K>, view: impl Fn((K, u64)) -> V) -> (Vec<V>, u64) {
    (progress.top.into_iter().map(view).collect(), progress.others)
}

impl From<DeadStats> for StatsView {
    fn from(stats: DeadStats) -> Self {
        let [last_hour, last_24_hours] = stats.ended.map(RateView::from);
        let [under_1_hour, from_1_to_24_hours, over_24_hours] = stats.by_age;
        let [likely_recoverable, permanent] = stats.by_recoverability;
        let (by_failure_category, _) =
            counts(stats.by_category, |(failure_category, count)| CategoryCount { failure_category, count });
        let (by_event_type, other_event_types) =
            counts(stats.by_event_type, |(event_type, count)| TypeCount { event_type, count });
        let (by_webhook, other_webhooks) =
            counts(stats.by_webhook, |(webhook_id, count)| WebhookCount { webhook_id, count });
        let by_tenant = stats
            .by_tenant
            .map(|by_tenant| counts(by_tenant, |(tenant_id, count)| TenantCount { tenant_id, count }));
        let (by_tenant, other_tenants) = by_tenant.unzip();
        Self {
            size: stats.size,
            counted_up_to: stats.counted_up_to,
            entries: EntriesView { last_hour, last_24_hours },
            age: AgeView { under_1_hour, from_1_to_24_hours, over_24_hours },
            recoverability: RecoverabilityView { likely_recoverable, permanent },
            by_failure_category,
            by_event_type,
            other_event_types,
            by_webhook,
            other_webhooks,
            by_tenant,
            other_tenants,
        }
    }
}

/// Count dead deliveries
///
/// With an admin key, `tenant_id=*` counts those of all tenants, also by tenant.
#[utoipa::path(
    get, path = "/v1/dlq/stats", operation_id = "getDeadLetterStats", tag = "dlq", params(DeadQuery),
    responses((status = 200, description = "Dead letters by cause, webhook, event type and age", body = StatsView), ReadProblems),
)]
async fn stats(
    State(app): State<AppState>,
    ScopedListing { tenants, query: Query(query), .. }: ScopedListing<CanRead, Query<DeadQuery>>,
) -> Result<axum::Json<StatsView>, Problem> {
    let filter = query.filter(&app, &tenants).await?;
    Ok(axum::Json(app.dead_stats(tenants, filter).await?.into()))
}
