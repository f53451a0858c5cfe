//! Bulk operations: `retry-batch`, `cancel-batch`, the purge of dead letters, `backfill`, and their progress.

mod input;
mod view;

use axum::{
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use redrive_core::{
    DeliveryStatus, FieldError, OperationId,
    delivery::bulk_operation::{
        OperationAction, OperationFilter, OperationKind, OperationState, OperationTarget,
    },
    webhook::uid::WebhookRef,
};
use redrive_store::{CreationKey, Operation, OperationRequest};
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

pub(crate) use self::view::OperationView;
use self::{
    input::{BackfillInput, BatchFilter, CancelBatchInput, PurgeQuery, RetryBatchInput, rate},
    view::{DryRunView, NamedResultView},
};
use super::{
    AppState,
    creation::{Creation, mark_replayed},
    deliveries::TenantInput,
    extract::{Id, Json, MAX_SELECTION_BYTES, NoBody, OptionalJson, Query},
    page::{Page, Paging},
    scope::{CanRead, Resends, Scoped, ScopedBody, TenantQuery},
};
use crate::{
    app::{Actor, App, AppError, Created, TenantView, operations::backfill_selection},
    problem::{ChangeProblems, Problem, ReadProblems},
};

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

/// Order of a request, and the results of the deliveries that it names by id.
struct Order {
    request: OperationRequest,
    named: Option<Vec<NamedResultView>>,
}

impl Order {
    /// Completes an order with the filter of a request, or with the deliveries that it names by id.
    async fn new(
        app: &App,
        tenant: &TenantView,
        mut request: OperationRequest,
        filter: Option<BatchFilter>,
        delivery_ids: Option<Vec<String>>,
        include_delivered: Option<bool>,
    ) -> Result<Self, Problem> {
        if delivery_ids.is_some() && filter.is_some() {
            let what = "must be omitted if `filter` is given";
            return Err(FieldError::new("delivery_ids", what).into());
        }
        request.selection = filter.unwrap_or_default().selection(app, tenant).await?;
        let names_delivered = request.selection.statuses.contains(&DeliveryStatus::Delivered);
        request.selection.undelivered_only = request.kind == OperationKind::Retry
            && request.among != OperationTarget::Dead
            && !include_delivered.unwrap_or(names_delivered);
        let named = match delivery_ids {
            None => None,
            Some(texts) => {
                let named = app.select_named(tenant, &mut request, texts).await?;
                Some(named.into_iter().map(NamedResultView::from).collect())
            }
        };
        Ok(Self { request, named })
    }

    async fn dry_run(self, app: &App, tenant: TenantView) -> Result<Response, Problem> {
        let found = app.dry_run(tenant, self.request).await?;
        let mut view = DryRunView::from(found);
        view.results = self.named;
        Ok((StatusCode::OK, axum::Json(view)).into_response())
    }
}

async fn dry_run(app: &App, tenant: TenantView, request: OperationRequest) -> Result<Response, Problem> {
    Order { request, named: None }.dry_run(app, tenant).await
}

fn accepted(view: OperationView) -> Response {
    (StatusCode::ACCEPTED, axum::Json(view)).into_response()
}

async fn retry_batch(
    app: &App,
    actor: &Actor,
    tenant: TenantView,
    among: OperationTarget,
    (input, key): (RetryBatchInput, Option<CreationKey>),
) -> Result<Response, Problem> {
    let request = OperationRequest {
        kind: OperationKind::Retry,
        among,
        selection: OperationFilter::default(),
        rate: rate(input.rate_limit)?,
        priority: input.priority,
    };
    let RetryBatchInput { filter, delivery_ids, include_delivered, .. } = input;
    let order = Order::new(app, &tenant, request, filter, delivery_ids, include_delivered).await?;
    if input.dry_run {
        return order.dry_run(app, tenant).await;
    }
    let begin = app.begin_operation(actor, tenant.clone(), order.request, input.start_at, key.clone());
    let view = |operation| {
        let mut view = OperationView::new(operation, app.engine().clock().now());
        view.results = order.named;
        view
    };
    match app.create_once(key.as_ref(), begin).await? {
        Created::Now(operation) => Ok(accepted(view(operation))),
        Created::Before(id) => Ok(mark_replayed(accepted(view(operation_before(app, tenant, &id).await?)))),
    }
}

/// Returns the operation that an earlier request with the same key created.
async fn operation_before(app: &App, tenant: TenantView, id: &str) -> Result<Operation, AppError> {
    app.operation(tenant, id.parse().map_err(|_| AppError::NotFound("operation"))?).await
}

/// Retry dead letters in bulk
///
/// Creates a new delivery, with the next round, for each dead letter, in the order of their events and at the
/// given rate. The operation is durable: it survives restarts, and no delivery is retried twice by it or by
/// another operation over the same deliveries. With `delivery_ids` the response has a result for each id: an unknown
/// one, or one of another tenant, gets a 404, and a delivery that is not a dead letter a 409.
#[utoipa::path(
    post, path = "/v1/dlq/retry-batch", operation_id = "retryDeadLetters", tag = "dlq", params(TenantQuery, ("Idempotency-Key" = Option<String>, Header, description = "A repeated key with the same body returns the first operation")), request_body = Option<RetryBatchInput>,
    responses(
        (status = 202, description = "Operation accepted; it runs in the background", body = OperationView),
        (status = 200, description = "Result of the dry run", body = DryRunView),
        ChangeProblems,
    ),
)]
async fn retry_dead(
    State(app): State<AppState>,
    ScopedBody { actor, tenant, body: creation, .. }: ScopedBody<
        Resends,
        (),
        Creation<OptionalJson<RetryBatchInput, MAX_SELECTION_BYTES>>,
    >,
) -> Result<Response, Problem> {
    let (OptionalJson(input), key) = creation.into_parts(&app, Some(&tenant))?;
    retry_batch(&app, &actor, tenant, OperationTarget::Dead, (input, key)).await
}

/// Retry deliveries in bulk
///
/// A matching delivery that has ended gets a new delivery with the next round, one that waits after a failure becomes
/// due now, and one without an attempt so far is left unchanged. Delivered ones are counted and left out, unless
/// `include_delivered` is true. The filter must not be empty. With `delivery_ids` the response has a result for each
/// id, and a named delivery without an attempt becomes due now too.
#[utoipa::path(
    post, path = "/v1/deliveries/retry-batch", operation_id = "retryDeliveries", tag = "deliveries", params(TenantQuery, ("Idempotency-Key" = Option<String>, Header, description = "A repeated key with the same body returns the first operation")), request_body = RetryBatchInput,
    responses(
        (status = 202, description = "Operation accepted; it runs in the background", body = OperationView),
        (status = 200, description = "Result of the dry run", body = DryRunView),
        ChangeProblems,
    ),
)]
async fn retry_deliveries(
    State(app): State<AppState>,
    ScopedBody { actor, tenant, body: creation, .. }: ScopedBody<
        Resends,
        (),
        Creation<Json<RetryBatchInput, MAX_SELECTION_BYTES>>,
    >,
) -> Result<Response, Problem> {
    let (Json(input), key) = creation.into_parts(&app, Some(&tenant))?;
    retry_batch(&app, &actor, tenant, OperationTarget::Deliveries, (input, key)).await
}

/// Waits briefly for the operation to finish; responds with 200 if it has completed, otherwise with 202.
async fn finished_or_pending(
    app: &App,
    operation: Operation,
    results: Option<Vec<NamedResultView>>,
) -> Result<Response, Problem> {
    let operation = app.wait_briefly(operation).await?;
    let status = match operation.state {
        OperationState::Completed => StatusCode::OK,
        _ => StatusCode::ACCEPTED,
    };
    let mut view = OperationView::new(operation, app.engine().clock().now());
    view.results = results;
    Ok((status, axum::Json(view)).into_response())
}

/// Cancel pending deliveries in bulk
///
/// Requests in flight are allowed to finish; if one succeeds, its delivery is delivered. With `delivery_ids` the
/// response has a result for each id.
#[utoipa::path(
    post, path = "/v1/deliveries/cancel-batch", operation_id = "cancelDeliveries", tag = "deliveries", params(TenantQuery, ("Idempotency-Key" = Option<String>, Header, description = "A repeated key with the same body returns the first operation")),
    request_body = CancelBatchInput,
    responses(
        (status = 200, description = "Operation completed, or result of the dry run", body = inline(DoneOrDryRun)),
        (status = 202, description = "Operation accepted; it runs in the background", body = OperationView),
        ChangeProblems,
    ),
)]
async fn cancel_deliveries(
    State(app): State<AppState>,
    ScopedBody { actor, tenant, body: creation, .. }: ScopedBody<
        Resends,
        (),
        Creation<Json<CancelBatchInput, MAX_SELECTION_BYTES>>,
    >,
) -> Result<Response, Problem> {
    let (Json(input), key) = creation.into_parts(&app, Some(&tenant))?;
    let request = OperationRequest {
        kind: OperationKind::Cancel,
        among: OperationTarget::Pending,
        selection: OperationFilter::default(),
        rate: None,
        priority: None,
    };
    let order = Order::new(&app, &tenant, request, input.filter, input.delivery_ids, None).await?;
    if input.dry_run {
        return order.dry_run(&app, tenant).await;
    }
    let begin = app.begin_operation(&actor, tenant.clone(), order.request, None, key.clone());
    match app.create_once(key.as_ref(), begin).await? {
        Created::Now(operation) => finished_or_pending(&app, operation, order.named).await,
        Created::Before(id) => {
            let operation = operation_before(&app, tenant, &id).await?;
            finished_or_pending(&app, operation, order.named).await.map(mark_replayed)
        }
    }
}

/// Completed operation, or the result of a dry run.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
#[allow(dead_code, reason = "describes a response that is serialized as one of the two")]
pub(super) enum DoneOrDryRun {
    /// Completed operation.
    Done(Box<OperationView>),
    /// Result of a dry run.
    DryRun(DryRunView),
}

/// Purge dead letters
///
/// Purged deliveries are removed from the list of dead letters. They stay in the delivery history, and each can
/// still be retried from there.
#[utoipa::path(
    delete, path = "/v1/dlq", operation_id = "purgeDeadLetters", tag = "dlq", params(PurgeQuery),
    responses(
        (status = 200, description = "Operation completed, or result of the dry run", body = inline(DoneOrDryRun)),
        (status = 202, description = "Operation accepted; it runs in the background", body = OperationView),
        ChangeProblems,
    ),
)]
async fn purge(
    State(app): State<AppState>,
    Scoped { actor, tenant, query: Query(query), .. }: Scoped<Resends, (), Query<PurgeQuery>, NoBody>,
) -> Result<Response, Problem> {
    let order = OperationRequest {
        kind: OperationKind::Purge,
        among: OperationTarget::Dead,
        selection: query.selection(&app, &tenant).await?,
        rate: None,
        priority: None,
    };
    if query.dry_run == Some(true) {
        return dry_run(&app, tenant, order).await;
    }
    let operation = app.begin_operation(&actor, tenant, order, None, None).await?;
    finished_or_pending(&app, operation, None).await
}

/// Backfill past events to a webhook
///
/// Delivers past events that the webhook subscribes to and has not received, such as events published before it
/// was created.
#[utoipa::path(
    post, path = "/v1/webhooks/{id}/backfill", operation_id = "backfillWebhook", tag = "webhooks", params(("id" = String, Path, description = "Id or uid of the webhook"), TenantQuery, ("Idempotency-Key" = Option<String>, Header, description = "A repeated key with the same body returns the first operation")),
    request_body = BackfillInput,
    responses(
        (status = 202, description = "Operation accepted; it runs in the background", body = OperationView),
        (status = 200, description = "Result of the dry run", body = DryRunView),
        ChangeProblems,
    ),
)]
async fn backfill(
    State(app): State<AppState>,
    ScopedBody { actor, tenant, path: Id(webhook), body: creation, .. }: ScopedBody<
        Resends,
        Id<WebhookRef>,
        Creation<Json<BackfillInput, MAX_SELECTION_BYTES>>,
    >,
) -> Result<Response, Problem> {
    let (Json(input), key) = creation.into_parts(&app, Some(&tenant))?;
    let id = app.webhook_id(&tenant, &webhook).await?;
    app.check_backfill(&tenant, id).await?;
    if input.from.is_none() {
        return Err(FieldError::new(
            "from",
            "is missing; set the time of the first event, such as 2026-01-01T00:00:00Z",
        )
        .into());
    }
    let order = OperationRequest {
        kind: OperationKind::Backfill,
        among: OperationTarget::Events,
        selection: backfill_selection(
            id,
            input.event_types.into_iter().map(String::from).collect(),
            input.from,
            input.to,
        ),
        rate: rate(input.rate_limit)?,
        priority: input.priority,
    };
    if input.dry_run {
        return dry_run(&app, tenant, order).await;
    }
    let begin = app.begin_operation(&actor, tenant.clone(), order, input.start_at, key.clone());
    let view = |operation| OperationView::new(operation, app.engine().clock().now());
    match app.create_once(key.as_ref(), begin).await? {
        Created::Now(operation) => Ok(accepted(view(operation))),
        Created::Before(id) => Ok(mark_replayed(accepted(view(operation_before(&app, tenant, &id).await?)))),
    }
}

/// List bulk operations
#[utoipa::path(
    get, path = "/v1/dlq/batch-operations", operation_id = "listOperations", tag = "dlq", params(Paging),
    responses((status = 200, description = "Newest first", body = Page<OperationView>), ReadProblems),
)]
async fn list(
    State(app): State<AppState>,
    Scoped { tenant, query: Query(paging), .. }: Scoped<CanRead, (), Query<Paging>>,
) -> Result<axum::Json<Page<OperationView>>, Problem> {
    let found = app.list_operations(tenant, paging.request()?).await?;
    let now = app.engine().clock().now();
    Ok(axum::Json(paging.page_of(found, |one| one.id, |one| OperationView::new(one, now))))
}

/// Get a bulk operation
#[utoipa::path(
    get, path = "/v1/dlq/batch-operations/{id}", operation_id = "getOperation", tag = "dlq", params(("id" = String, Path), TenantQuery),
    responses((status = 200, description = "The bulk operation", body = OperationView), ReadProblems),
)]
async fn get(
    State(app): State<AppState>,
    Scoped { tenant, path: Id(id), .. }: Scoped<CanRead, Id<OperationId>>,
) -> Result<axum::Json<OperationView>, Problem> {
    let found = app.operation(tenant, id).await?;
    Ok(axum::Json(OperationView::new(found, app.engine().clock().now())))
}

/// Request that controls a bulk operation.
type ControlRequest = ScopedBody<Resends, Id<OperationId>, OptionalJson<TenantInput>>;

async fn control(
    app: &App,
    request: ControlRequest,
    action: OperationAction,
) -> Result<axum::Json<OperationView>, Problem> {
    let Scoped { actor, tenant, path: Id(id), .. } = request;
    let turned = app.control_operation(&actor, tenant, id, action).await?;
    Ok(axum::Json(OperationView::new(turned, app.engine().clock().now())))
}

/// Cancel a bulk operation
///
/// No further deliveries are queued. Deliveries that are already queued are still sent.
#[utoipa::path(
    post, path = "/v1/dlq/batch-operations/{id}/cancel", operation_id = "cancelOperation", tag = "dlq", params(("id" = String, Path), TenantQuery),
    request_body = Option<TenantInput>, responses((status = 200, description = "The cancelled bulk operation", body = OperationView), ChangeProblems),
)]
async fn cancel(
    State(app): State<AppState>,
    request: ControlRequest,
) -> Result<axum::Json<OperationView>, Problem> {
    control(&app, request, OperationAction::Cancel).await
}

/// Pause a bulk operation
#[utoipa::path(
    post, path = "/v1/dlq/batch-operations/{id}/pause", operation_id = "pauseOperation", tag = "dlq", params(("id" = String, Path), TenantQuery),
    request_body = Option<TenantInput>, responses((status = 200, description = "The paused bulk operation", body = OperationView), ChangeProblems),
)]
async fn pause(
    State(app): State<AppState>,
    request: ControlRequest,
) -> Result<axum::Json<OperationView>, Problem> {
    control(&app, request, OperationAction::Pause).await
}

/// Resume a bulk operation
#[utoipa::path(
    post, path = "/v1/dlq/batch-operations/{id}/resume", operation_id = "resumeOperation", tag = "dlq", params(("id" = String, Path), TenantQuery),
    request_body = Option<TenantInput>, responses((status = 200, description = "The resumed bulk operation", body = OperationView), ChangeProblems),
)]
async fn resume(
    State(app): State<AppState>,
    request: ControlRequest,
) -> Result<axum::Json<OperationView>, Problem> {
    control(&app, request, OperationAction::Resume).await
}
