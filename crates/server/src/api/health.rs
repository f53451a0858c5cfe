//! For operators: liveness, readiness, figures.

use axum::{
    extract::State,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{AppState, problem::Problem};

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(healthz)).routes(routes!(readyz)).routes(routes!(metrics))
}

/// Is the process alive?
#[utoipa::path(
    get, path = "/healthz", tag = "health", security(()),
    responses((status = 200, description = "It is", body = String, content_type = "text/plain")),
)]
async fn healthz() -> &'static str {
    "ok\n"
}

/// Should requests be sent here?
///
/// Only while the store can be written and the server is not shutting down.
#[utoipa::path(
    get, path = "/readyz", tag = "health", security(()),
    responses(
        (status = 200, description = "Yes", body = String, content_type = "text/plain"),
        (status = 503, description = "Not now", body = Problem, content_type = "application/problem+json"),
    ),
)]
async fn readyz(State(app): State<AppState>) -> Result<&'static str, Problem> {
    if app.is_draining() {
        return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "draining", "the server is shutting down"));
    }
    app.store_works().await.map_err(|error| {
        // Operators ask, so they are told why.
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "store_unavailable", error.to_string())
    })?;
    Ok("ready\n")
}

/// Figures for Prometheus
#[utoipa::path(
    get, path = "/metrics", tag = "health", security(()),
    responses(
        (status = 200, description = "OpenMetrics text", body = String, content_type = "application/openmetrics-text"),
    ),
)]
async fn metrics(State(app): State<AppState>) -> Response {
    let text = app.metrics_text().await;
    let kind = HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
    ([(header::CONTENT_TYPE, kind)], text).into_response()
}
