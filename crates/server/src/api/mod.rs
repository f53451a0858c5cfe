//! JSON API: one file per resource, a thin layer over `app`.

mod attempts;
mod audit;
mod clock;
mod deliveries;
mod dlq;
mod document;
mod event_types;
mod events;
mod export;
mod extract;
mod health;
mod invalid_fields;
mod limit;
mod metrics;
mod notifications;
mod operations;
mod overview;
mod page;
mod portal;
mod preferences;
mod scope;
mod search;
mod secrets;
mod status;
mod tenants;
mod users;
mod webhooks;

use std::sync::{Arc, LazyLock};

use axum::{Router, extract::Request, http::StatusCode, middleware};
use serde_json::Value;
use utoipa::{
    Modify, OpenApi,
    openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme},
};
use utoipa_axum::router::OpenApiRouter;
use utoipa_swagger_ui::SwaggerUi;

pub(crate) use self::{
    attempts::AttemptQuery,
    audit::AuditQuery,
    deliveries::{
        DeliveryQuery, ExportQuery, HeaderView, cursor_of, export_rows as exported_deliveries, header_views,
        request_headers,
    },
    event_types::EventTypeQuery,
    events::{EventExportQuery, EventQuery, export_rows as exported_events},
    extract::{Json, MAX_WEBHOOK_BODY_BYTES, Query},
    operations::OperationView,
    page::{Cursor, Paging},
    scope::{Authorized, ManagesEndpoints},
    search::{PayloadQuery, SearchQuery},
    tenants::{TenantsQuery, named},
    users::session_id,
    webhooks::{REDACTED, WebhookInput, validate_draft},
};
use crate::{
    app::{App, ErrorCode},
    problem::Problem,
};

/// State shared by all handlers.
pub type AppState = Arc<App>;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Redrive",
        description = "Webhook delivery that never loses an event. Errors are RFC 9457 problem details with a \
                       stable `code`."
    ),
    servers((url = "/", description = "The server that serves this document")),
    components(schemas(Problem)),
    modifiers(&BearerKey),
    security(("api_key" = [])),
    tags(
        (name = "webhooks", description = "Subscriptions of URLs to event types"),
        (name = "events", description = "Publish, read and replay events"),
        (name = "event types", description = "Catalogue of event types and their schemas"),
        (name = "deliveries", description = "Delivery of events to webhooks, with their attempts"),
        (name = "search", description = "Find objects by what identifies them, and events by their payloads"),
        (name = "dlq", description = "Dead letters: deliveries that are no longer attempted"),
        (name = "notifications", description = "Notifications to owners, and their preferences"),
        (name = "tenants", description = "Tenants, API keys and the audit log, for admins"),
        (name = "health", description = "Health, status and metrics, for operators"),
    )
)]
struct Description;

struct BearerKey;

impl Modify for BearerKey {
    fn modify(&self, openapi: &mut utoipa::openapi::OpenApi) {
        let scheme =
            HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some("An API key")).build();
        let components = openapi.components.get_or_insert_default();
        components.add_security_scheme("api_key", SecurityScheme::Http(scheme));
    }
}

fn described() -> OpenApiRouter<AppState> {
    OpenApiRouter::with_openapi(Description::openapi())
        .merge(webhooks::routes())
        .merge(events::routes())
        .merge(search::routes())
        .merge(event_types::routes())
        .merge(deliveries::routes())
        .merge(attempts::routes())
        .merge(dlq::routes())
        .merge(operations::routes())
        .merge(notifications::routes())
        .merge(preferences::routes())
        .merge(tenants::routes())
        .merge(portal::routes())
        .merge(audit::routes())
        .merge(secrets::routes())
        .merge(users::routes())
        .merge(health::routes())
        .merge(metrics::routes())
        .merge(overview::routes())
        .merge(status::routes())
        .merge(clock::routes())
}

/// Returns the OpenAPI 3.1 document of the API.
pub(crate) fn openapi() -> &'static Value {
    static DOCUMENT: LazyLock<Value> = LazyLock::new(|| {
        let derived = serde_json::to_value(described().into_openapi());
        document::finish(derived.unwrap_or_default())
    });
    &DOCUMENT
}

/// Builds the routes for this node's role.
pub fn router(app: AppState) -> Router {
    if !app.rules().role.serves_api() {
        let router = health::routes().merge(metrics::routes()).merge(status::routes()).split_for_parts().0;
        return router.fallback(api_disabled).method_not_allowed_fallback(method_not_allowed).with_state(app);
    }
    let router = described().split_for_parts().0;
    let router = router
        .merge(page())
        .merge(document::route(openapi()))
        .fallback(route_not_found)
        .method_not_allowed_fallback(method_not_allowed);
    let list_all = middleware::from_fn_with_state(app.clone(), invalid_fields::list_invalid_fields);
    let router = router.layer(list_all);
    let router = match app.throttle() {
        Some(_) => router.layer(middleware::from_fn_with_state(app.clone(), limit::enforce_rate_limit)),
        None => router,
    };
    router.with_state(app)
}

/// Returns the Swagger UI page for the OpenAPI document. The external validator is disabled.
fn page() -> SwaggerUi {
    let config = utoipa_swagger_ui::Config::new([document::PATH]).validator_url("none");
    SwaggerUi::new("/docs").config(config)
}

async fn route_not_found(request: Request) -> Problem {
    let path: String = request.uri().path().chars().take(200).collect();
    let detail = format!("no route matches {path}; /docs lists all routes");
    Problem::new(StatusCode::NOT_FOUND, ErrorCode::RouteNotFound, detail)
}

async fn api_disabled() -> Problem {
    let detail = "this node is a worker and serves only /healthz, /readyz, /metrics and /v1/status; \
                  call a node that runs with --role api or all";
    Problem::new(StatusCode::NOT_FOUND, ErrorCode::ApiNotServedHere, detail)
}

async fn method_not_allowed(request: Request) -> Problem {
    let detail = format!(
        "{} is not allowed for this route; the Allow header lists the allowed methods",
        request.method()
    );
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, ErrorCode::MethodNotAllowed, detail)
}
