//! `/v1/deliveries` and the deliveries of one webhook: history, attempts, retry, cancel.

mod attempt;
mod query;
mod view;

use axum::{
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use redrive_core::{DeliveryId, EventId, delivery::lane::Priority, webhook::uid::WebhookRef};
use redrive_store::{DeliveryCursor, DeliveryFilter};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

pub(super) use self::{
    attempt::{AttemptResultView, AttemptView},
    query::{DeadQuery, code_filter},
    view::DeliveryView,
};
pub(crate) use self::{
    attempt::{HeaderView, header_views, request_headers},
    query::{DeliveryQuery, ExportQuery},
};
use super::{
    AppState,
    export::stream,
    extract::{Id, Ids, OptionalJson, Query},
    page::{Page, Paging},
    scope::{CanRead, Resends, Scoped, ScopedBody, ScopedListing, TenantQuery, tenant_parameter},
};
use crate::{
    app::{
        App, AppError, TenantSelection, TenantView,
        deliveries::{DeliveryDetails, DeliverySelection},
    },
    problem::{ChangeProblems, Problem, ReadProblems},
};

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(export))
        .routes(routes!(get))
        .routes(routes!(attempts))
        .routes(routes!(retry))
        .routes(routes!(cancel))
        .routes(routes!(list_webhook_deliveries))
        .routes(routes!(retry_webhook_delivery))
}

/// Returns the cursor after a delivery.
pub(crate) fn cursor_of(details: &DeliveryDetails) -> DeliveryCursor {
    DeliveryCursor { event_id: details.delivery.event_id, delivery_id: details.delivery.id }
}

async fn page_of(
    app: &App,
    tenants: impl Into<TenantSelection>,
    selection: impl Into<DeliverySelection>,
    paging: &Paging,
) -> Result<Page<DeliveryView>, Problem> {
    let details = app.list_deliveries(tenants, selection, paging.request()?).await?;
    Ok(paging.page_of(details, cursor_of, DeliveryView::from))
}

pub(super) async fn list_of_event(
    app: &App,
    tenant: TenantView,
    event_id: EventId,
    paging: &Paging,
) -> Result<Page<DeliveryView>, Problem> {
    let filter = DeliveryFilter { event_id: Some(event_id), ..DeliveryFilter::default() };
    page_of(app, tenant, filter, paging).await
}

/// List deliveries
///
/// With an admin key, `tenant_id=*` lists those of all tenants; `subject` and `idempotency_key` need one tenant.
#[utoipa::path(
    get, path = "/v1/deliveries", operation_id = "listDeliveries", tag = "deliveries", params(DeliveryQuery),
    responses((status = 200, description = "Newest event first", body = Page<DeliveryView>), ReadProblems),
)]
async fn list(
    State(app): State<AppState>,
    ScopedListing { tenants, query: Query(query), .. }: ScopedListing<CanRead, Query<DeliveryQuery>>,
) -> Result<axum::Json<Page<DeliveryView>>, Problem> {
    page_of(&app, tenants.clone(), query.selection(&app, tenants).await?, &query.paging())
        .await
        .map(axum::Json)
}

/// Columns of the CSV export.
const COLUMNS: &[&str] = &[
    "id",
    "event_id",
    "event_type",
    "webhook_id",
    "round",
    "status",
    "priority",
    "attempt_count",
    "max_attempts",
    "last_status_code",
    "failure_category",
    "last_error",
    "dead_reason",
    "likely_recoverable",
    "recovery_hint",
    "cancel_reason",
    "waiting_on",
    "next_attempt_at",
    "replay_of",
    "redriven_as",
    "created_at",
    "delivered_at",
    "dead_at",
    "cancelled_at",
    "tenant_id",
];

/// Export deliveries
///
/// Streams all deliveries that match the filter, newest event first. If the response is cut off, it is incomplete.
#[utoipa::path(
    get, path = "/v1/deliveries/export", operation_id = "exportDeliveries", tag = "deliveries", params(ExportQuery),
    responses(
        (status = 200, description = "All matching deliveries, newest event first", content((DeliveryView = "application/x-ndjson"), (String = "text/csv"))), ReadProblems,
    ),
)]
async fn export(
    State(app): State<AppState>,
    Scoped { tenant, query: Query(query), .. }: Scoped<CanRead, (), Query<ExportQuery>>,
) -> Result<Response, Problem> {
    export_rows(&app, tenant, &query, false).await
}

/// Streams the deliveries of a tenant; with `dead`, only dead letters.
pub(crate) async fn export_rows(
    app: &AppState,
    tenant: TenantView,
    query: &ExportQuery,
    dead: bool,
) -> Result<Response, Problem> {
    let name = if dead { "dead-letters" } else { "deliveries" };
    let selection = query.selection(app, &tenant).await?;
    let pages = app.export_deliveries(tenant, selection, dead)?;
    Ok(stream::<_, DeliveryView>(name, query.format, COLUMNS, pages))
}

/// List a webhook's deliveries
#[utoipa::path(
    get, path = "/v1/webhooks/{id}/deliveries", operation_id = "listWebhookDeliveries", tag = "deliveries", params(("id" = String, Path, description = "Id or uid of the webhook"), DeliveryQuery),
    responses((status = 200, description = "Newest event first", body = Page<DeliveryView>), ReadProblems),
)]
async fn list_webhook_deliveries(
    State(app): State<AppState>,
    Scoped { tenant, path: Id(webhook), query: Query(query), .. }: Scoped<
        CanRead,
        Id<WebhookRef>,
        Query<DeliveryQuery>,
    >,
) -> Result<axum::Json<Page<DeliveryView>>, Problem> {
    let id = app.webhook_id(&tenant, &webhook).await?;
    app.require_known_webhook(&tenant, id).await?;
    let mut selection = query.selection(&app, &tenant).await?;
    selection.filter.webhooks = vec![id];
    page_of(&app, tenant, selection, &query.paging()).await.map(axum::Json)
}

/// Get a delivery
#[utoipa::path(
    get, path = "/v1/deliveries/{id}", operation_id = "getDelivery", tag = "deliveries", params(("id" = String, Path), TenantQuery),
    responses((status = 200, description = "The delivery", body = DeliveryView), ReadProblems),
)]
async fn get(
    State(app): State<AppState>,
    Scoped { tenant, path: Id(id), .. }: Scoped<CanRead, Id<DeliveryId>>,
) -> Result<axum::Json<DeliveryView>, Problem> {
    Ok(axum::Json(app.delivery(tenant, id).await?.into()))
}

/// List a delivery's attempts
///
/// `circuit_blocked` entries are periods in which an open circuit blocked the delivery; they are not attempts and
/// have no number.
#[utoipa::path(
    get, path = "/v1/deliveries/{id}/attempts", operation_id = "listDeliveryAttempts", tag = "deliveries", params(("id" = String, Path), TenantQuery),
    responses((status = 200, description = "First to last", body = Page<AttemptView>), ReadProblems),
)]
async fn attempts(
    State(app): State<AppState>,
    Scoped { tenant, path: Id(id), .. }: Scoped<CanRead, Id<DeliveryId>>,
) -> Result<axum::Json<Page<AttemptView>>, Problem> {
    let history = app.history(tenant.clone(), id).await?;
    let event = app.event(tenant, history.delivery.event_id).await?.event;
    let data = AttemptView::all(history, &event);
    Ok(axum::Json(Page { data, next_cursor: None }))
}

/// Body of a request that needs only its path.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct TenantInput {
    /// The tenant to act for; admin keys only.
    #[serde(default)]
    pub(super) tenant_id: Option<String>,
}

tenant_parameter!(TenantInput);

/// Options of a retry.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RetryInput {
    /// New priority; unchanged if left out.
    priority: Option<Priority>,
    /// The tenant to act for; admin keys only.
    tenant_id: Option<String>,
}

tenant_parameter!(RetryInput);

/// Result of a retry.
#[derive(Serialize, ToSchema)]
pub(super) struct RetryView {
    /// Delivery to follow: the same one if it was pending, the new round if it had ended.
    #[schema(value_type = String)]
    delivery_id: DeliveryId,
    /// Priority of the delivery now.
    priority: Priority,
}

impl From<DeliveryDetails> for RetryView {
    fn from(details: DeliveryDetails) -> Self {
        Self { delivery_id: details.delivery.id, priority: details.delivery.priority }
    }
}

/// Retry a delivery
///
/// A pending delivery becomes due now. An ended one is delivered in a new round.
#[utoipa::path(
    post, path = "/v1/deliveries/{id}/retry", operation_id = "retryDelivery", tag = "deliveries", params(("id" = String, Path), TenantQuery),
    request_body = Option<RetryInput>,
    responses((status = 202, description = "The delivery that is attempted", body = RetryView), ChangeProblems),
)]
async fn retry(
    State(app): State<AppState>,
    ScopedBody { actor, tenant, path: Id(id), body: OptionalJson(input), .. }: ScopedBody<
        Resends,
        Id<DeliveryId>,
        OptionalJson<RetryInput>,
    >,
) -> Result<Response, Problem> {
    let view = RetryView::from(app.retry(&actor, tenant, id, input.priority).await?);
    Ok((StatusCode::ACCEPTED, axum::Json(view)).into_response())
}

/// Retry a webhook's delivery
#[utoipa::path(
    post, path = "/v1/webhooks/{id}/deliveries/{delivery_id}/retry", operation_id = "retryWebhookDelivery", tag = "deliveries",
    params(("id" = String, Path, description = "Id or uid of the webhook"), ("delivery_id" = String, Path), TenantQuery), request_body = Option<RetryInput>,
    responses((status = 202, description = "The delivery that is attempted", body = RetryView), ChangeProblems),
)]
async fn retry_webhook_delivery(
    State(app): State<AppState>,
    ScopedBody { actor, tenant, path: Ids(webhook, id), body: OptionalJson(input), .. }: ScopedBody<
        Resends,
        Ids<WebhookRef, DeliveryId>,
        OptionalJson<RetryInput>,
    >,
) -> Result<Response, Problem> {
    let webhook_id = app.webhook_id(&tenant, &webhook).await?;
    if app.delivery(tenant.clone(), id).await?.delivery.webhook_id != webhook_id {
        return Err(AppError::NotFound("delivery of this webhook").into());
    }
    let view = RetryView::from(app.retry(&actor, tenant, id, input.priority).await?);
    Ok((StatusCode::ACCEPTED, axum::Json(view)).into_response())
}

/// Cancel a pending delivery
///
/// A request in flight is allowed to finish: if it succeeds, the delivery is delivered.
#[utoipa::path(
    post, path = "/v1/deliveries/{id}/cancel", operation_id = "cancelDelivery", tag = "deliveries", params(("id" = String, Path), TenantQuery),
    request_body = Option<TenantInput>,
    responses((status = 202, description = "The delivery; it is cancelled now, or after the request in flight", body = DeliveryView), ChangeProblems),
)]
async fn cancel(
    State(app): State<AppState>,
    ScopedBody { actor, tenant, path: Id(id), .. }: ScopedBody<
        Resends,
        Id<DeliveryId>,
        OptionalJson<TenantInput>,
    >,
) -> Result<Response, Problem> {
    app.cancel(&actor, tenant.clone(), id).await?;
    let view = DeliveryView::from(app.delivery(tenant, id).await?);
    Ok((StatusCode::ACCEPTED, axum::Json(view)).into_response())
}
