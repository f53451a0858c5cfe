//! Bulk operations: `retry-batch`, `cancel-batch`, the purge of dead letters, `backfill`, and their progress.

mod input;
mod view;

use axum::{
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use redrive_core::{
    Invalid, OperationId, WebhookId,
    delivery::bulk_operation::{Among, OperationKind, OperationState, Turn},
};
use redrive_store::OperationOrder;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

pub(crate) use self::view::OperationView;
use self::{
    input::{BackfillInput, CancelBatchInput, PurgeQuery, RetryBatchInput, rate},
    view::DryRunView,
};
use super::{
    AppState,
    deliveries::TenantInput,
    events::TenantQuery,
    extract::{Id, Json, MAX_SELECTION_BYTES, May, NoBody, OptionalJson, Query, Reads, Resends},
    page::{Page, Paging},
    problem::{ChangeProblems, Problem, ReadProblems},
};
use crate::app::{Actor, App, TenantView, operations::events_for};

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(retry_dead))
        .routes(routes!(purge))
        .routes(routes!(retry_deliveries))
        .routes(routes!(cancel_deliveries))
        .routes(routes!(backfill))
        .routes(routes!(list))
        .routes(routes!(get))
        .routes(routes!(cancel))
        .routes(routes!(pause))
        .routes(routes!(resume))
}

async fn dry_run(app: &App, tenant: TenantView, order: OperationOrder) -> Result<Response, Problem> {
    let view = DryRunView::from(app.dry_run(tenant, order).await?);
    Ok((StatusCode::OK, axum::Json(view)).into_response())
}

fn accepted(view: OperationView) -> Response {
    (StatusCode::ACCEPTED, axum::Json(view)).into_response()
}

async fn retry_batch(
    app: &App,
    caller: &Actor,
    among: Among,
    query: TenantQuery,
    input: RetryBatchInput,
) -> Result<Response, Problem> {
    let tenant = app.acts_for(caller, input.tenant_id.or(query.tenant_id).as_deref()).await?;
    let order = OperationOrder {
        kind: OperationKind::Retry,
        among,
        selection: input.filter.unwrap_or_default().selection()?,
        rate: rate(input.rate_limit)?,
        priority: input.priority,
    };
    if input.dry_run {
        return dry_run(app, tenant, order).await;
    }
    let operation = app.begin_operation(caller, tenant, order, input.start_at).await?;
    Ok(accepted(OperationView::new(operation, app.engine().clock().now())))
}

/// Retry dead letters in bulk
///
/// Each gets a new round, at the rate given, in the order of their events. The operation is durable: it survives
/// restarts, and no delivery gets two rounds from it, nor from another one over the same deliveries.
#[utoipa::path(
    post, path = "/v1/dlq/retry-batch", tag = "dlq", params(TenantQuery), request_body = Option<RetryBatchInput>,
    responses(
        (status = 202, description = "Under way", body = OperationView),
        (status = 200, description = "`dry_run`: what it would do", body = DryRunView),
        ChangeProblems,
    ),
)]
async fn retry_dead(
    State(app): State<AppState>,
    May(caller, _): May<Resends>,
    Query(query): Query<TenantQuery>,
    OptionalJson(input): OptionalJson<RetryBatchInput, MAX_SELECTION_BYTES>,
) -> Result<Response, Problem> {
    retry_batch(&app, &caller, Among::Dead, query, input).await
}

/// Retry deliveries in bulk
///
/// Whatever the filter names, delivered or not: what is over gets a new round, what waits after a failure is due
/// now, and what has not been tried yet is left alone. The filter must name something.
#[utoipa::path(
    post, path = "/v1/deliveries/retry-batch", tag = "deliveries", params(TenantQuery), request_body = RetryBatchInput,
    responses(
        (status = 202, description = "Under way", body = OperationView),
        (status = 200, description = "`dry_run`: what it would do", body = DryRunView),
        ChangeProblems,
    ),
)]
async fn retry_deliveries(
    State(app): State<AppState>,
    May(caller, _): May<Resends>,
    Query(query): Query<TenantQuery>,
    Json(input): Json<RetryBatchInput, MAX_SELECTION_BYTES>,
) -> Result<Response, Problem> {
    retry_batch(&app, &caller, Among::Deliveries, query, input).await
}

/// An operation that may be over by the time of the answer.
async fn soon(app: &App, operation: redrive_store::Operation) -> Result<Response, Problem> {
    let operation = app.finished_soon(operation).await?;
    let status = match operation.state {
        OperationState::Completed => StatusCode::OK,
        _ => StatusCode::ACCEPTED,
    };
    let view = OperationView::new(operation, app.engine().clock().now());
    Ok((status, axum::Json(view)).into_response())
}

/// Cancel pending deliveries in bulk
///
/// Requests that are under way are let finish: what succeeds is delivered.
#[utoipa::path(
    post, path = "/v1/deliveries/cancel-batch", tag = "deliveries", params(TenantQuery),
    request_body = CancelBatchInput,
    responses(
        (status = 200, description = "Done; or `dry_run`: what it would do", body = inline(DoneOrDryRun)),
        (status = 202, description = "Under way", body = OperationView),
        ChangeProblems,
    ),
)]
async fn cancel_deliveries(
    State(app): State<AppState>,
    May(caller, _): May<Resends>,
    Query(query): Query<TenantQuery>,
    Json(input): Json<CancelBatchInput, MAX_SELECTION_BYTES>,
) -> Result<Response, Problem> {
    let tenant = app.acts_for(&caller, input.tenant_id.or(query.tenant_id).as_deref()).await?;
    let order = OperationOrder {
        kind: OperationKind::Cancel,
        among: Among::Pending,
        selection: input.filter.unwrap_or_default().selection()?,
        rate: None,
        priority: None,
    };
    if input.dry_run {
        return dry_run(&app, tenant, order).await;
    }
    let operation = app.begin_operation(&caller, tenant, order, None).await?;
    soon(&app, operation).await
}

/// What came of it, or what would.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
#[allow(dead_code, reason = "describes an answer that is written as one of the two")]
pub(super) enum DoneOrDryRun {
    /// An operation that is over.
    Done(Box<OperationView>),
    /// What it would do.
    DryRun(DryRunView),
}

/// Purge dead letters
///
/// They leave the list of dead letters and stay in history, from where each can still be retried.
#[utoipa::path(
    delete, path = "/v1/dlq", tag = "dlq", params(PurgeQuery),
    responses(
        (status = 200, description = "Done; or `dry_run`: what it would do", body = inline(DoneOrDryRun)),
        (status = 202, description = "Under way", body = OperationView),
        ChangeProblems,
    ),
)]
async fn purge(
    State(app): State<AppState>,
    May(caller, _): May<Resends>,
    Query(query): Query<PurgeQuery>,
    NoBody: NoBody,
) -> Result<Response, Problem> {
    let tenant = app.acts_for(&caller, query.tenant_id.as_deref()).await?;
    let order = OperationOrder {
        kind: OperationKind::Purge,
        among: Among::Dead,
        selection: query.selection(),
        rate: None,
        priority: None,
    };
    if query.dry_run == Some(true) {
        return dry_run(&app, tenant, order).await;
    }
    let operation = app.begin_operation(&caller, tenant, order, None).await?;
    soon(&app, operation).await
}

/// Send a webhook past events
///
/// Those that it subscribes to and has not had, such as those from before it was made.
#[utoipa::path(
    post, path = "/v1/webhooks/{id}/backfill", tag = "webhooks", params(("id" = String, Path), TenantQuery),
    request_body = BackfillInput,
    responses(
        (status = 202, description = "Under way", body = OperationView),
        (status = 200, description = "`dry_run`: what it would do", body = DryRunView),
        ChangeProblems,
    ),
)]
async fn backfill(
    State(app): State<AppState>,
    May(caller, _): May<Resends>,
    Id(id): Id<WebhookId>,
    Query(query): Query<TenantQuery>,
    Json(input): Json<BackfillInput, MAX_SELECTION_BYTES>,
) -> Result<Response, Problem> {
    let tenant = app.acts_for(&caller, input.tenant_id.or(query.tenant_id).as_deref()).await?;
    app.may_backfill(&tenant, id).await?;
    if input.from.is_none() {
        return Err(
            Invalid::new("from", "name the time of the first event, such as 2026-01-01T00:00:00Z").into()
        );
    }
    let order = OperationOrder {
        kind: OperationKind::Backfill,
        among: Among::Events,
        selection: events_for(id, input.event_types, input.from, input.to),
        rate: rate(input.rate_limit)?,
        priority: input.priority,
    };
    if input.dry_run {
        return dry_run(&app, tenant, order).await;
    }
    let operation = app.begin_operation(&caller, tenant, order, input.start_at).await?;
    Ok(accepted(OperationView::new(operation, app.engine().clock().now())))
}

/// List bulk operations
#[utoipa::path(
    get, path = "/v1/dlq/batch-operations", tag = "dlq", params(Paging),
    responses((status = 200, description = "Newest first", body = Page<OperationView>), ReadProblems),
)]
async fn list(
    State(app): State<AppState>,
    May(caller, _): May<Reads>,
    Query(paging): Query<Paging>,
) -> Result<axum::Json<Page<OperationView>>, Problem> {
    let tenant = app.acts_for(&caller, paging.tenant_id.as_deref()).await?;
    let found = app.list_operations(tenant, paging.request()?).await?;
    let now = app.engine().clock().now();
    Ok(axum::Json(paging.page_of(found, |one| one.id, |one| OperationView::new(one, now))))
}

/// Get a bulk operation
#[utoipa::path(
    get, path = "/v1/dlq/batch-operations/{id}", tag = "dlq", params(("id" = String, Path), TenantQuery),
    responses((status = 200, body = OperationView), ReadProblems),
)]
async fn get(
    State(app): State<AppState>,
    May(caller, _): May<Reads>,
    Id(id): Id<OperationId>,
    Query(query): Query<TenantQuery>,
) -> Result<axum::Json<OperationView>, Problem> {
    let tenant = app.acts_for(&caller, query.tenant_id.as_deref()).await?;
    let found = app.operation(tenant, id).await?;
    Ok(axum::Json(OperationView::new(found, app.engine().clock().now())))
}

async fn turn(
    app: &App,
    caller: &Actor,
    id: OperationId,
    tenant_id: Option<String>,
    turn: Turn,
) -> Result<axum::Json<OperationView>, Problem> {
    let tenant = app.acts_for(caller, tenant_id.as_deref()).await?;
    let turned = app.turn_operation(caller, tenant, id, turn).await?;
    Ok(axum::Json(OperationView::new(turned, app.engine().clock().now())))
}

/// Cancel a bulk operation
///
/// Nothing more is queued. What was queued before is delivered.
#[utoipa::path(
    post, path = "/v1/dlq/batch-operations/{id}/cancel", tag = "dlq", params(("id" = String, Path), TenantQuery),
    request_body = Option<TenantInput>, responses((status = 200, body = OperationView), ChangeProblems),
)]
async fn cancel(
    State(app): State<AppState>,
    May(caller, _): May<Resends>,
    Id(id): Id<OperationId>,
    Query(query): Query<TenantQuery>,
    OptionalJson(input): OptionalJson<TenantInput>,
) -> Result<axum::Json<OperationView>, Problem> {
    turn(&app, &caller, id, input.tenant_id.or(query.tenant_id), Turn::Cancel).await
}

/// Pause a bulk operation
#[utoipa::path(
    post, path = "/v1/dlq/batch-operations/{id}/pause", tag = "dlq", params(("id" = String, Path), TenantQuery),
    request_body = Option<TenantInput>, responses((status = 200, body = OperationView), ChangeProblems),
)]
async fn pause(
    State(app): State<AppState>,
    May(caller, _): May<Resends>,
    Id(id): Id<OperationId>,
    Query(query): Query<TenantQuery>,
    OptionalJson(input): OptionalJson<TenantInput>,
) -> Result<axum::Json<OperationView>, Problem> {
    turn(&app, &caller, id, input.tenant_id.or(query.tenant_id), Turn::Pause).await
}

/// Resume a bulk operation
#[utoipa::path(
    post, path = "/v1/dlq/batch-operations/{id}/resume", tag = "dlq", params(("id" = String, Path), TenantQuery),
    request_body = Option<TenantInput>, responses((status = 200, body = OperationView), ChangeProblems),
)]
async fn resume(
    State(app): State<AppState>,
    May(caller, _): May<Resends>,
    Id(id): Id<OperationId>,
    Query(query): Query<TenantQuery>,
    OptionalJson(input): OptionalJson<TenantInput>,
) -> Result<axum::Json<OperationView>, Problem> {
    turn(&app, &caller, id, input.tenant_id.or(query.tenant_id), Turn::Resume).await
}
