//! The JSON API: one file per resource, thin over `app`.

mod audit;
mod clock;
mod deliveries;
mod dlq;
mod event_types;
mod events;
mod export;
mod extract;
mod health;
mod limit;
mod notifications;
mod operations;
mod page;
mod portal;
mod preferences;
mod problem;
mod secrets;
mod status;
mod tenants;
mod webhooks;

use std::sync::Arc;

use axum::{Router, extract::Request, http::StatusCode, middleware};
use utoipa::{
    Modify, OpenApi,
    openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme},
};
use utoipa_axum::router::OpenApiRouter;
use utoipa_swagger_ui::SwaggerUi;

pub(crate) use self::{
    audit::AuditQuery,
    deliveries::{
        DeliveryQuery, ExportQuery, HeaderView, cursor_of, exported as exported_deliveries, header_views,
        request_headers,
    },
    event_types::EventTypeQuery,
    events::{
        Beside, EventExportQuery, EventQuery, bare as bare_payload, binary_of as binary_cloudevent, document,
        exported as exported_events, structured as structured_cloudevent,
    },
    extract::{Json, Manages, May, Query, client_address},
    operations::OperationView,
    page::{Cursor, Paging},
    problem::{Problem, name_request},
    tenants::{TenantsQuery, named},
    webhooks::{REDACTED, WebhookInput, check_written},
};
use crate::app::App;

/// What every handler has at hand.
pub type AppState = Arc<App>;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Redrive",
        description = "Webhook delivery that never loses an event. Errors are RFC 9457 problem details with a \
                       stable `code`."
    ),
    components(schemas(Problem)),
    modifiers(&BearerKey),
    security(("api_key" = [])),
    tags(
        (name = "webhooks", description = "Subscriptions of URLs to event types"),
        (name = "events", description = "Publishing and looking up"),
        (name = "event types", description = "The catalogue of what is published"),
        (name = "deliveries", description = "What became of each event at each webhook"),
        (name = "dlq", description = "Deliveries that were given up on"),
        (name = "notifications", description = "What owners are told without asking"),
        (name = "tenants", description = "For admins"),
        (name = "health", description = "For operators"),
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
        .merge(event_types::routes())
        .merge(deliveries::routes())
        .merge(dlq::routes())
        .merge(operations::routes())
        .merge(notifications::routes())
        .merge(preferences::routes())
        .merge(tenants::routes())
        .merge(portal::routes())
        .merge(audit::routes())
        .merge(secrets::routes())
        .merge(health::routes())
        .merge(status::routes())
        .merge(clock::routes())
}

/// The API's own description, OpenAPI 3.1.
pub fn openapi() -> utoipa::openapi::OpenApi {
    described().into_openapi()
}

/// All routes that a node of this role has.
pub fn router(app: AppState) -> Router {
    if !app.rules().role.serves_api() {
        let router = health::routes().merge(status::routes()).split_for_parts().0;
        return router.fallback(no_api).method_not_allowed_fallback(wrong_method).with_state(app);
    }
    let (router, openapi) = described().split_for_parts();
    let router = router.merge(page(openapi)).fallback(no_such_path).method_not_allowed_fallback(wrong_method);
    let router = match app.throttle() {
        Some(_) => router.layer(middleware::from_fn_with_state(app.clone(), limit::limited)),
        None => router,
    };
    router.with_state(app)
}

/// The page that shows the document. It asks nobody else about it.
fn page(document: utoipa::openapi::OpenApi) -> SwaggerUi {
    let config = utoipa_swagger_ui::Config::default().validator_url("none");
    SwaggerUi::new("/docs").config(config).url("/openapi.json", document)
}

async fn no_such_path(request: Request) -> Problem {
    let path: String = request.uri().path().chars().take(200).collect();
    let detail = format!("there is nothing at {path}; see /docs for what there is");
    Problem::new(StatusCode::NOT_FOUND, "no_such_path", detail)
}

async fn no_api() -> Problem {
    let detail = "this node is a worker: it sends, and serves only /healthz, /readyz, /metrics and /v1/status; \
                  call a node that runs with --role api or all";
    Problem::new(StatusCode::NOT_FOUND, "worker_node", detail)
}

async fn wrong_method(request: Request) -> Problem {
    let detail = format!("{} is not allowed here; the Allow header lists what is", request.method());
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", detail)
}
