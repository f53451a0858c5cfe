//! Lists every invalid field of a rejected request. The parsers and the use cases stop at the first error. When they
//! reject a request, its query and body are compared with the OpenAPI document, and the response lists all differences.
//!
//! A request that is accepted costs nothing more. The comparison must never reject a request itself.

mod body;
mod formats;
mod members;
mod query;
mod schema;
#[cfg(test)]
mod tests;
mod words;

use std::sync::{Arc, OnceLock};

use axum::{
    extract::{MatchedPath, Request, State},
    http::{Extensions, Method, StatusCode, Uri},
    middleware::Next,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use redrive_core::{FieldError, TenantId};
use serde_json::Value;

use self::schema::Schema;
use super::{AppState, openapi, webhooks::broken_rules};
use crate::{
    app::parse::SKIP_WORK_PER_BYTE,
    problem::{InvalidField, InvalidFieldCode, Problem},
};

/// Number of times that the comparison passes over a body: once per level of the schemas.
const PASSES: u64 = 4;

/// Operations whose body is a webhook.
const WEBHOOK_CHANGES: [&str; 3] = ["createWebhook", "updateWebhook", "replaceWebhook"];

/// Body of a request, kept until the response is known.
#[derive(Default)]
struct KeptBody(OnceLock<(TenantId, Bytes)>);

/// Keeps the body of a request, with the tenant whose share of the check threads a comparison uses.
pub(super) fn keep_body(extensions: &Extensions, tenant_id: TenantId, body: &Bytes) {
    if let Some(kept) = extensions.get::<Arc<KeptBody>>() {
        // A request has only one body.
        let _ = kept.0.set((tenant_id, body.clone()));
    }
}

/// Adds all invalid fields to a response that names one.
pub(super) async fn list_invalid_fields(
    State(app): State<AppState>,
    mut request: Request,
    next: Next,
) -> Response {
    let path = request.extensions().get::<MatchedPath>().cloned();
    let (method, uri) = (request.method().clone(), request.uri().clone());
    let kept = Arc::new(KeptBody::default());
    request.extensions_mut().insert(kept.clone());
    let mut response = next.run(request).await;
    let names_field = response.extensions().get::<Problem>().is_some_and(Problem::names_field);
    if response.status() != StatusCode::BAD_REQUEST || !names_field {
        return response;
    }
    let found = find(&app, path.as_ref(), &method, &uri, &kept).await;
    let Some(problem) = response.extensions_mut().remove::<Problem>() else { return response };
    problem.with_invalid_fields(found).into_response()
}

async fn find(
    app: &AppState,
    path: Option<&MatchedPath>,
    method: &Method,
    uri: &Uri,
    kept: &KeptBody,
) -> Vec<InvalidField> {
    let Some(operation) = path.and_then(|path| operation(path.as_str(), method)) else { return Vec::new() };
    let mut found = query::invalid_parameters(openapi(), operation, uri.query().unwrap_or_default());
    if let Some((tenant_id, body)) = kept.0.get() {
        let (work, body) = (PASSES * SKIP_WORK_PER_BYTE * body.len() as u64, body.clone());
        let compare = move || in_body(operation, &body);
        // If no thread is free, the response names only the first field.
        found.extend(app.engine().run_work(tenant_id, work, compare).await.unwrap_or_default());
    }
    found
}

fn operation(path: &str, method: &Method) -> Option<&'static Value> {
    openapi().get("paths")?.get(path)?.get(method.as_str().to_ascii_lowercase())
}

fn in_body(operation: &'static Value, body: &[u8]) -> Vec<InvalidField> {
    let schema = operation.pointer("/requestBody/content/application~1json/schema");
    let schema = schema.and_then(|schema| Schema::new(openapi(), schema));
    let mut found = schema.map(|schema| body::invalid_fields(schema, body)).unwrap_or_default();
    if operation.get("operationId").and_then(Value::as_str).is_some_and(|id| WEBHOOK_CHANGES.contains(&id)) {
        let known = |error: &FieldError| found.iter().any(|known| known.field == error.field);
        let broken: Vec<_> = broken_rules(body).into_iter().filter(|error| !known(error)).collect();
        found.extend(broken.into_iter().map(|error| InvalidField {
            field: error.field.into_owned(),
            code: InvalidFieldCode::InvalidValue,
            message: error.message,
        }));
    }
    found
}

/// Returns every invalid field of an object that has a named schema.
pub(super) fn in_object(schema: &str, object: &[u8]) -> Vec<InvalidField> {
    let schemas = openapi().pointer("/components/schemas").and_then(|schemas| schemas.get(schema));
    let schema = schemas.and_then(|schema| Schema::new(openapi(), schema));
    schema.map(|schema| body::invalid_fields(schema, object)).unwrap_or_default()
}
