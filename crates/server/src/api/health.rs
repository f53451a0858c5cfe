//! Routes for operators: liveness and readiness.

use axum::{extract::State, http::StatusCode};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::AppState;
use crate::{app::ErrorCode, problem::Problem};

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(healthz)).routes(routes!(readyz))
}

/// Liveness check
#[utoipa::path(
    get, path = "/healthz", operation_id = "getHealth", tag = "health", security(()),
    responses((status = 200, description = "The process is running", body = String, content_type = "text/plain")),
)]
async fn healthz() -> &'static str {
    "ok\n"
}

/// Readiness check
///
/// Succeeds while the store accepts writes, every essential background service runs, and the server is not
/// shutting down.
#[utoipa::path(
    get, path = "/readyz", operation_id = "getReadiness", tag = "health", security(()),
    responses(
        (status = 200, description = "Ready", body = String, content_type = "text/plain"),
        (status = 503, description = "Not ready: the store is unavailable, a background service has failed, or the server is shutting down", body = Problem, content_type = "application/problem+json"),
    ),
)]
async fn readyz(State(app): State<AppState>) -> Result<&'static str, Problem> {
    if app.is_draining() {
        return Err(Problem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            ErrorCode::Draining,
            "the server is shutting down",
        ));
    }
    if let Some(failure) = app.engine().failure() {
        let detail = format!("this node cannot go on and is exiting: {}", failure.reason);
        return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, ErrorCode::ServiceDown, detail));
    }
    if let Some(down) = app.services_down().into_iter().find(|service| service.essential) {
        let detail = format!("the service {} failed and is being restarted: {}", down.name, down.failure);
        return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, ErrorCode::ServiceDown, detail));
    }
    app.check_store().await.map_err(|error| {
        // The caller is an operator, so the error of the store is returned.
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, ErrorCode::StoreUnavailable, error.to_string())
    })?;
    Ok("ready\n")
}
