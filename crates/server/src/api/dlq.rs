//! `/v1/dlq`: deliveries that were given up on and not redriven yet.

use axum::{extract::State, response::Response};
use redrive_core::{FailureCategory, WebhookId};
use redrive_store::Ended;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    AppState,
    deliveries::{DeadQuery, DeliveryQuery, DeliveryView, ExportQuery, cursor_of, exported},
    extract::{May, Query, Reads},
    page::Page,
    problem::{Problem, ReadProblems},
};
use crate::app::dead_letters::{DeadStats, Tally};

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(stats)).routes(routes!(export))
}

/// List dead deliveries
#[utoipa::path(
    get, path = "/v1/dlq", tag = "dlq", params(DeliveryQuery),
    responses((status = 200, description = "Newest event first", body = Page<DeliveryView>), ReadProblems),
)]
async fn list(
    State(app): State<AppState>,
    May(caller, _): May<Reads>,
    Query(query): Query<DeliveryQuery>,
) -> Result<axum::Json<Page<DeliveryView>>, Problem> {
    let tenant = app.acts_for(&caller, query.tenant_id.as_deref()).await?;
    let paging = query.paging();
    let dead = app.list_dead(tenant, query.filter()?, paging.request()?).await?;
    Ok(axum::Json(paging.page_of(dead, cursor_of, DeliveryView::from)))
}

/// Export dead deliveries
///
/// Everything that the filter wants, newest event first, as one long answer. One that is broken off was not whole.
#[utoipa::path(
    get, path = "/v1/dlq/export", tag = "dlq", params(ExportQuery),
    responses(
        (status = 200, content((DeliveryView = "application/x-ndjson"), (String = "text/csv"))), ReadProblems,
    ),
)]
async fn export(
    State(app): State<AppState>,
    May(caller, _): May<Reads>,
    Query(query): Query<ExportQuery>,
) -> Result<Response, Problem> {
    let tenant = app.acts_for(&caller, query.tenant_id.as_deref()).await?;
    exported(&app, tenant, &query, true)
}

/// How many dead letters there are, since when, where and why.
#[derive(Serialize, ToSchema)]
pub(super) struct StatsView {
    /// How many there are, as far as was counted.
    size: u64,
    /// Null if all were counted. Else only so many were looked at, those of the newest events, and everything
    /// but `entries` is about these alone.
    counted_up_to: Option<u64>,
    /// How many died, against all deliveries that ended, of the tenant as a whole.
    entries: EntriesView,
    /// Since when they are dead.
    age: AgeView,
    /// Whether they may well succeed when they are sent again as they are.
    recoverability: RecoverabilityView,
    /// By kind of last failure, the most frequent first; null for those that never failed.
    by_failure_category: Vec<CategoryCount>,
    /// By event type, the 20 most frequent.
    by_event_type: Vec<TypeCount>,
    /// Those of all other event types.
    other_event_types: u64,
    /// By webhook, the 20 with most.
    by_webhook: Vec<WebhookCount>,
    /// Those of all other webhooks.
    other_webhooks: u64,
}

/// How many deliveries died lately, redriven since or not. Kept to the minute, and a few seconds behind.
#[derive(Serialize, ToSchema)]
pub(super) struct EntriesView {
    /// In the last hour.
    last_hour: RateView,
    /// In the last 24 hours.
    last_24_hours: RateView,
}

/// How many deliveries died of those that ended.
#[derive(Serialize, ToSchema)]
pub(super) struct RateView {
    /// Given up on.
    dead: u64,
    /// Delivered, dead or cancelled.
    ended: u64,
    /// The share that died, from 0 to 1; null if none ended.
    rate: Option<f64>,
}

/// Since when dead letters are dead.
#[derive(Serialize, ToSchema)]
pub(super) struct AgeView {
    /// For less than an hour.
    under_1_hour: u64,
    /// For an hour to a day.
    from_1_to_24_hours: u64,
    /// For longer.
    over_24_hours: u64,
}

/// How many dead letters are worth sending again as they are.
#[derive(Serialize, ToSchema)]
pub(super) struct RecoverabilityView {
    /// They may well succeed.
    likely_recoverable: u64,
    /// Something has to be mended first.
    permanent: u64,
}

/// Dead letters whose last attempts failed in one way.
#[derive(Serialize, ToSchema)]
pub(super) struct CategoryCount {
    /// In which; null if none was made.
    failure_category: Option<FailureCategory>,
    /// How many.
    count: u64,
}

/// Dead letters of one event type.
#[derive(Serialize, ToSchema)]
pub(super) struct TypeCount {
    /// The type.
    event_type: String,
    /// How many.
    count: u64,
}

/// Dead letters of one webhook.
#[derive(Serialize, ToSchema)]
pub(super) struct WebhookCount {
    /// The webhook.
    #[schema(value_type = String)]
    webhook_id: WebhookId,
    /// How many.
    count: u64,
}

impl From<Ended> for RateView {
    fn from(ended: Ended) -> Self {
        let all = ended.all();
        Self { dead: ended.dead, ended: all, rate: (all > 0).then(|| ended.dead as f64 / all as f64) }
    }
}

fn counts<K, V>(tally: Tally<K>, view: impl Fn((K, u64)) -> V) -> (Vec<V>, u64) {
    (tally.top.into_iter().map(view).collect(), tally.others)
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
        }
    }
}

/// Count dead deliveries
#[utoipa::path(
    get, path = "/v1/dlq/stats", tag = "dlq", params(DeadQuery),
    responses((status = 200, body = StatsView), ReadProblems),
)]
async fn stats(
    State(app): State<AppState>,
    May(caller, _): May<Reads>,
    Query(query): Query<DeadQuery>,
) -> Result<axum::Json<StatsView>, Problem> {
    let tenant = app.acts_for(&caller, query.tenant_id.as_deref()).await?;
    Ok(axum::Json(app.dead_stats(tenant, query.filter()).await?.into()))
}
