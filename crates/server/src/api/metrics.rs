//! Metrics for Prometheus.

use axum::{
    extract::{FromRequestParts, State},
    http::{HeaderMap, HeaderValue, StatusCode, header, request::Parts},
    response::{IntoResponse, Response},
};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    AppState,
    scope::{Authorized, CanAdminister},
};
use crate::{
    app::{ErrorCode, metrics::Exposition},
    config::TenantMetricsAccess,
    problem::{Problem, ReadProblems},
};

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(metrics)).routes(routes!(tenant_metrics))
}

/// Prometheus metrics
///
/// Metrics in the Prometheus text format, or as OpenMetrics text if the header `Accept` prefers that.
#[utoipa::path(
    get, path = "/metrics", operation_id = "getMetrics", tag = "health", security(()),
    responses((status = 200, description = "Metrics of this node, and of the whole store", content(
        (String = "text/plain"),
        (String = "application/openmetrics-text"),
    ))),
)]
async fn metrics(State(app): State<AppState>, headers: HeaderMap) -> Response {
    let exposition = accepted_exposition(&headers);
    respond(exposition, app.metrics_text(exposition).await)
}

/// Prometheus metrics that name tenants and webhooks
///
/// The worst tenants and webhooks of the whole store, and the sums of all others. The setting `metrics.tenants` decides
/// who may read them: by default callers with an admin key. The format is selected as for `/metrics`.
#[utoipa::path(
    get, path = "/metrics/tenants", operation_id = "getTenantMetrics", tag = "health",
    responses(
        (status = 200, description = "Metrics of tenants and webhooks", content(
            (String = "text/plain"),
            (String = "application/openmetrics-text"),
        )),
        ReadProblems,
    ),
)]
async fn tenant_metrics(
    State(app): State<AppState>,
    _: MayReadTenantMetrics,
    headers: HeaderMap,
) -> Response {
    let exposition = accepted_exposition(&headers);
    respond(exposition, app.tenant_metrics_text(exposition).await)
}

/// Caller that may read the metrics that name tenants.
struct MayReadTenantMetrics;

impl FromRequestParts<AppState> for MayReadTenantMetrics {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &AppState) -> Result<Self, Problem> {
        match app.rules().tenant_metrics {
            TenantMetricsAccess::Open => {}
            TenantMetricsAccess::Key => {
                Authorized::<CanAdminister>::from_request_parts(parts, app).await?;
            }
            TenantMetricsAccess::Off => {
                let detail = "metrics that name tenants are not served: the setting metrics.tenants is off";
                return Err(Problem::new(StatusCode::NOT_FOUND, ErrorCode::RouteNotFound, detail));
            }
        }
        Ok(Self)
    }
}

fn accepted_exposition(headers: &HeaderMap) -> Exposition {
    let accept = headers.get_all(header::ACCEPT).iter();
    Exposition::from_accept(accept.filter_map(|value| value.to_str().ok()))
}

fn respond(exposition: Exposition, text: String) -> Response {
    let kind = HeaderValue::from_static(exposition.content_type());
    ([(header::CONTENT_TYPE, kind), (header::VARY, HeaderValue::from_static("accept"))], text).into_response()
}
