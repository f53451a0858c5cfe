//! OpenAPI schema of payload filters, and the route that tests a filter.

use axum::extract::State;
use redrive_core::{
    routing::filter::{self, Filter, FilterExplanation, Payload},
    webhook::uid::WebhookRef,
};
use redrive_engine::MAX_INLINE_COST_UNITS;
use serde::{Deserialize, Serialize};
use serde_json::{Value, value::RawValue};
use utoipa::ToSchema;

use crate::{
    api::{
        AppState,
        extract::{Id, PayloadJson},
        scope::{CanRead, ScopedBody, TenantQuery, tenant_parameter},
    },
    app::parse::json::nullable,
    problem::{ChangeProblems, Problem},
};

/// Condition on an event's payload.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
#[allow(dead_code, reason = "it is there to be documented")]
pub(crate) enum FilterExpression {
    /// All conditions must match.
    All(Box<FilterAll>),
    /// At least one condition must match.
    Any(Box<FilterAny>),
    /// The condition must not match.
    Not(Box<FilterNot>),
    /// All tests on the value at a path must match.
    Condition(Box<FilterCondition>),
}

/// All conditions must match.
#[derive(Serialize, ToSchema)]
#[allow(dead_code, reason = "it is there to be documented")]
pub(crate) struct FilterAll {
    /// One or more conditions.
    #[schema(no_recursion, min_items = 1)]
    all: Vec<FilterExpression>,
}

/// At least one condition must match.
#[derive(Serialize, ToSchema)]
#[allow(dead_code, reason = "it is there to be documented")]
pub(crate) struct FilterAny {
    /// One or more conditions.
    #[schema(no_recursion, min_items = 1)]
    any: Vec<FilterExpression>,
}

/// The condition must not match.
#[derive(Serialize, ToSchema)]
#[allow(dead_code, reason = "it is there to be documented")]
pub(crate) struct FilterNot {
    /// Condition that must not match.
    #[schema(no_recursion)]
    not: Box<FilterExpression>,
}

/// Tests on the value at a path; all must match.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"path": "/amount", "gte": 100}))]
#[allow(dead_code, reason = "it is there to be documented")]
pub(crate) struct FilterCondition {
    /// Path in `data`, as a JSON Pointer; empty for the whole payload.
    #[schema(pattern = "^(/([^~/]|~[01])*)*$")]
    path: String,
    /// Equal to this string, number, boolean or null.
    #[serde(skip_serializing_if = "Option::is_none")]
    eq: Option<Value>,
    /// Not equal to this value, or missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    ne: Option<Value>,
    /// Greater than this number or string.
    #[serde(skip_serializing_if = "Option::is_none")]
    gt: Option<Value>,
    /// Greater than or equal to this number or string.
    #[serde(skip_serializing_if = "Option::is_none")]
    gte: Option<Value>,
    /// Less than this number or string.
    #[serde(skip_serializing_if = "Option::is_none")]
    lt: Option<Value>,
    /// Less than or equal to this number or string.
    #[serde(skip_serializing_if = "Option::is_none")]
    lte: Option<Value>,
    /// Equal to one of these values.
    #[serde(rename = "in", skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    one_of: Option<Vec<Value>>,
    /// Present (`true`) or missing (`false`).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    exists: Option<bool>,
    /// String that starts with this prefix.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    prefix: Option<String>,
    /// String that ends with this suffix.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    suffix: Option<String>,
}

/// Maximum number of times that the explanation evaluates each condition: once per nesting level.
const EXPLAINED_TIMES: u64 = filter::MAX_DEPTH as u64;

/// Payload and filter to test.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct FilterTestInput {
    /// Payload, as it would be published.
    #[schema(value_type = serde_json::Value)]
    data: Box<RawValue>,
    /// Filter to test instead of the webhook's own; null for no filter.
    #[serde(default, deserialize_with = "nullable")]
    #[schema(value_type = Option<FilterExpression>)]
    filter: Option<Option<Box<RawValue>>>,
    /// Tenant to act for; admin keys only.
    #[serde(default)]
    tenant_id: Option<String>,
}

tenant_parameter!(FilterTestInput);

/// Result of a filter test.
#[derive(Serialize, ToSchema)]
pub(crate) struct FilterTestView {
    /// Whether the payload passes the filter.
    matches: bool,
    /// Condition that decided the result.
    #[schema(example = "filter.all[0]: /amount is 50, so gte 100 does not hold")]
    why: String,
}

/// Test a filter
///
/// Evaluates the webhook's filter, or the given one, against a payload. Nothing is sent or changed.
#[utoipa::path(
    post, path = "/v1/webhooks/{id}/filter/test", operation_id = "testFilter", tag = "webhooks",
    params(("id" = String, Path, description = "Id or uid of the webhook"), TenantQuery), request_body = FilterTestInput,
    responses((status = 200, description = "Whether the payload passes, and why not", body = FilterTestView), ChangeProblems),
)]
pub(super) async fn try_filter(
    State(app): State<AppState>,
    ScopedBody { tenant, path: Id(webhook), body: PayloadJson(input), .. }: ScopedBody<
        CanRead,
        Id<WebhookRef>,
        PayloadJson<FilterTestInput>,
    >,
) -> Result<axum::Json<FilterTestView>, Problem> {
    let id = app.webhook_id(&tenant, &webhook).await?;
    let webhook = app.webhook(tenant.clone(), id).await?;
    let filter = match input.filter {
        Some(given) => given.map(|raw| Filter::parse(raw.get())).transpose()?,
        None => webhook.spec.filter,
    };
    let data = input.data;
    let FilterExplanation { matches, why } = match filter {
        // The explanation evaluates the filter again for each nesting level.
        Some(filter)
            if Filter::work([&filter].into_iter(), data.get().as_bytes())
                > MAX_INLINE_COST_UNITS / EXPLAINED_TIMES =>
        {
            let explain = move || filter.explain(&Payload::new(data.get().as_bytes()));
            app.engine().run_check(&tenant, explain).await?
        }
        Some(filter) => filter.explain(&Payload::new(data.get().as_bytes())),
        None => {
            FilterExplanation { matches: true, why: "there is no filter, so every payload passes".to_owned() }
        }
    };
    Ok(axum::Json(FilterTestView { matches, why }))
}
