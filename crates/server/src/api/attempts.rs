//! `/v1/attempts`: attempts across deliveries.

use axum::extract::State;
use redrive_core::{
    AttemptId, DeliveryId, EventId, FailureCategory, FieldError, TenantId, Time, WebhookId,
    delivery::outcome::AttemptStatus, protection::breaker::CircuitState,
};
use redrive_store::{AttemptCursor, AttemptFilter, ListedAttempt};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    AppState,
    deliveries::{AttemptView, code_filter},
    extract::{Id, List, Query},
    page::{Cursor, Page, Paging},
    scope::{CanRead, Scoped, TenantQuery, tenant_parameter},
};
use crate::problem::{Problem, ReadProblems};

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(get))
}

/// Values of the filter by status.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
#[allow(dead_code, reason = "it is there to be documented")]
enum AttemptStatusParameter {
    Success,
    Failed,
    Exhausted,
}

/// Filter and paging of a listing of attempts.
#[derive(Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct AttemptQuery {
    /// Only attempts of deliveries to this webhook.
    #[param(value_type = Option<String>)]
    webhook_id: Option<WebhookId>,
    /// `success`, `failed` (more attempts were possible) or `exhausted` (the delivery is dead), or several of them,
    /// separated by commas.
    #[param(value_type = Option<Vec<AttemptStatusParameter>>, inline)]
    status: Option<String>,
    /// Only failures of one of these categories.
    #[param(value_type = Option<Vec<FailureCategory>>)]
    failure_category: Option<List<FailureCategory>>,
    /// Only attempts whose response had this status code, such as `503`, or class, such as `5xx`.
    http_status_code: Option<String>,
    /// Only attempts sent from this time on (RFC 3339, or a date: midnight UTC).
    #[param(value_type = Option<String>, format = DateTime)]
    from: Option<Time>,
    /// Only attempts sent before this time (RFC 3339, or a date: midnight UTC).
    #[param(value_type = Option<String>, format = DateTime)]
    to: Option<Time>,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
    /// Page size: 1 to 500, 50 by default.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<u32>,
    /// Number of attempts to skip, up to 10,000. Prefer a cursor.
    #[param(maximum = 10000)]
    offset: Option<u32>,
    /// Tenant to act for; admin keys only.
    tenant_id: Option<String>,
}

tenant_parameter!(AttemptQuery);

impl AttemptQuery {
    /// Returns the filter of the store.
    pub(crate) fn filter(&self) -> Result<AttemptFilter, Problem> {
        let code = self.http_status_code.as_deref();
        Ok(AttemptFilter {
            webhook_id: self.webhook_id,
            statuses: self.status.as_deref().map(statuses).transpose()?.unwrap_or_default(),
            failure_categories: List::values(&self.failure_category),
            status_code: code.map(|code| code_filter("http_status_code", code)).transpose()?,
            from: self.from,
            to: self.to,
            tenant_managed_only: false,
        })
    }

    pub(crate) fn paging(&self) -> Paging {
        Paging { cursor: self.cursor.clone(), limit: self.limit, offset: self.offset, tenant_id: None }
    }
}

fn statuses(text: &str) -> Result<Vec<AttemptStatus>, Problem> {
    let status = |name: &str| {
        let known = AttemptStatus::ALL.into_iter().find(|status| status.name() == name);
        known.ok_or_else(|| {
            let message = match name {
                "circuit_blocked" => {
                    "circuit_blocked is no attempt; GET /v1/deliveries?status=circuit_blocked lists the deliveries \
                     that wait for an open circuit"
                }
                _ => "must be success, failed or exhausted, or several of them separated by commas",
            };
            FieldError::new("status", message).into()
        })
    };
    text.split(',').map(status).collect()
}

impl Cursor for AttemptCursor {
    fn write(&self) -> String {
        format!("{}.{}", AttemptId::from_bytes(self.position), self.delivery_id)
    }

    fn read(text: &str) -> Option<Self> {
        let (position, delivery) = text.split_once('.')?;
        let position = position.parse::<AttemptId>().ok()?;
        Some(Self { position: *position.as_bytes(), delivery_id: delivery.parse().ok()? })
    }
}

/// An attempt in a listing, without headers and body.
#[derive(Serialize, ToSchema)]
pub(super) struct ListedAttemptView {
    /// Attempt id.
    #[schema(value_type = String)]
    id: AttemptId,
    /// Tenant that the attempt belongs to.
    #[schema(value_type = String)]
    tenant_id: TenantId,
    /// Attempt number of its delivery, from 1.
    number: u32,
    /// Delivery id.
    #[schema(value_type = String)]
    delivery_id: DeliveryId,
    /// Event id.
    #[schema(value_type = String)]
    event_id: EventId,
    /// Webhook id.
    #[schema(value_type = String)]
    webhook_id: WebhookId,
    /// `success`, `failed` or `exhausted`.
    #[schema(example = "success")]
    status: &'static str,
    /// Failure category.
    failure_category: Option<FailureCategory>,
    /// Status code of the response.
    http_status_code: Option<u16>,
    /// Error message.
    error_message: Option<String>,
    /// Total milliseconds.
    duration_ms: f64,
    /// Due time.
    #[schema(value_type = String, format = DateTime)]
    scheduled_at: Time,
    /// Time of sending.
    #[schema(value_type = String, format = DateTime)]
    executed_at: Time,
    /// Due time of the next attempt.
    #[schema(value_type = Option<String>, format = DateTime)]
    next_retry_at: Option<Time>,
    /// State of the webhook's circuit at the time of sending.
    circuit_state_at_attempt: CircuitState,
    /// Node that sent the attempt.
    worker: String,
}

impl ListedAttemptView {
    fn new(tenant_id: TenantId, listed: ListedAttempt) -> Self {
        let stored = listed.stored;
        let attempt = stored.attempt;
        Self {
            id: attempt.id,
            tenant_id,
            number: attempt.number,
            delivery_id: stored.delivery_id,
            event_id: stored.event_id,
            webhook_id: stored.webhook_id,
            status: attempt.status.name(),
            failure_category: attempt.failure_category,
            http_status_code: attempt.http_status_code,
            error_message: attempt.error_message,
            duration_ms: f64::from(attempt.timings.total) / 1000.0,
            scheduled_at: attempt.scheduled_at,
            executed_at: attempt.executed_at,
            next_retry_at: attempt.next_retry_at,
            circuit_state_at_attempt: attempt.circuit,
            worker: attempt.worker.as_ref().into(),
        }
    }
}

/// List attempts
///
/// Newest first: a success at the first attempt within a minute of its event is placed at the time of the event, every
/// other attempt at the time at which it was sent.
#[utoipa::path(
    get, path = "/v1/attempts", operation_id = "listAttempts", tag = "deliveries", params(AttemptQuery),
    responses((status = 200, description = "Newest first", body = Page<ListedAttemptView>), ReadProblems),
)]
async fn list(
    State(app): State<AppState>,
    Scoped { tenant, query: Query(query), .. }: Scoped<CanRead, (), Query<AttemptQuery>>,
) -> Result<axum::Json<Page<ListedAttemptView>>, Problem> {
    let paging = query.paging();
    let listed = app.list_attempts(&tenant, query.filter()?, paging.request()?).await?;
    let view = |one| ListedAttemptView::new(tenant.id.clone(), one);
    Ok(axum::Json(paging.page_of(listed, |one| one.cursor, view)))
}

/// Get an attempt
#[utoipa::path(
    get, path = "/v1/attempts/{id}", operation_id = "getAttempt", tag = "deliveries",
    params(("id" = String, Path), TenantQuery),
    responses((status = 200, description = "The attempt", body = AttemptView), ReadProblems),
)]
async fn get(
    State(app): State<AppState>,
    Scoped { tenant, path: Id(id), .. }: Scoped<CanRead, Id<AttemptId>>,
) -> Result<axum::Json<AttemptView>, Problem> {
    let (stored, event) = app.attempt(tenant, id).await?;
    Ok(axum::Json(AttemptView::from_attempt(stored, &event)))
}
