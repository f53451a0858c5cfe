//! `/v1/attempts`: attempts across deliveries.

use axum::extract::State;
use redrive_core::{
    AttemptId, FailureCategory, FieldError, TenantId, Time, WebhookId, delivery::outcome::AttemptStatus,
    webhook::uid::WebhookRef,
};
use redrive_store::{AttemptCursor, AttemptFilter, ListedAttempt};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    AppState,
    deliveries::{AttemptResultView, AttemptView, code_filter},
    extract::{Id, List, Query, without_repetitions},
    page::{Cursor, Page, Paging},
    scope::{CanRead, Scoped, ScopedListing, TenantQuery, tenant_parameter},
};
use crate::{
    app::{App, TenantSelection},
    problem::{Problem, ReadProblems},
};

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
    /// Only attempts of deliveries to this webhook, by id or uid.
    #[param(value_type = Option<String>)]
    webhook_id: Option<WebhookRef>,
    /// `success`, `failed` (more attempts were possible) or `exhausted` (the delivery is dead), or several of them:
    /// separated by commas, or the parameter repeated.
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
    pub(crate) async fn filter(
        &self,
        app: &App,
        tenants: impl Into<TenantSelection>,
    ) -> Result<AttemptFilter, Problem> {
        self.filter_for(app.webhook_ids(tenants, self.webhook_id.as_slice()).await?.pop())
    }

    /// Returns the filter for this webhook; for all if there is none.
    pub(crate) fn filter_for(&self, webhook_id: Option<WebhookId>) -> Result<AttemptFilter, Problem> {
        let code = self.http_status_code.as_deref();
        Ok(AttemptFilter {
            webhook_id,
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
    text.split(',').map(status).collect::<Result<_, _>>().map(without_repetitions)
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
    #[serde(flatten)]
    result: AttemptResultView,
    /// Total milliseconds.
    duration_ms: f64,
    /// Time of sending.
    #[schema(value_type = String, format = DateTime)]
    executed_at: Time,
    /// Node that sent the attempt.
    worker: String,
}

impl From<ListedAttempt> for ListedAttemptView {
    fn from(listed: ListedAttempt) -> Self {
        let attempt = &listed.stored.attempt;
        Self {
            id: attempt.id,
            tenant_id: listed.tenant_id,
            number: attempt.number,
            duration_ms: f64::from(attempt.timings.total) / 1000.0,
            executed_at: attempt.executed_at,
            worker: attempt.worker.as_ref().into(),
            result: AttemptResultView::new(&listed.stored),
        }
    }
}

/// List attempts
///
/// Newest first: a success at the first attempt within a minute of its event is placed at the time of the event, every
/// other attempt at the time at which it was sent. With an admin key, `tenant_id=*` lists those of all tenants.
#[utoipa::path(
    get, path = "/v1/attempts", operation_id = "listAttempts", tag = "deliveries", params(AttemptQuery),
    responses((status = 200, description = "Newest first", body = Page<ListedAttemptView>), ReadProblems),
)]
async fn list(
    State(app): State<AppState>,
    ScopedListing { tenants, query: Query(query), .. }: ScopedListing<CanRead, Query<AttemptQuery>>,
) -> Result<axum::Json<Page<ListedAttemptView>>, Problem> {
    let paging = query.paging();
    let filter = query.filter(&app, tenants.clone()).await?;
    let listed = app.list_attempts(tenants, filter, paging.request()?).await?;
    Ok(axum::Json(paging.page_of(listed, |one| one.cursor, ListedAttemptView::from)))
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
