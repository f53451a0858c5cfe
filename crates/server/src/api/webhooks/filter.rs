//! Conditions on payloads as the API documents them, and trying one out.

use axum::extract::State;
use redrive_core::{
    WebhookId,
    routing::filter::{self, Filter, Payload, Verdict},
};
use redrive_engine::MAX_INLINE_WORK;
use serde::{Deserialize, Serialize};
use serde_json::{Value, value::RawValue};
use utoipa::ToSchema;

use crate::api::{
    AppState,
    events::TenantQuery,
    extract::{Id, May, PayloadJson, Query, Reads, nullable},
    problem::{ChangeProblems, Problem},
};

/// A condition on a payload. It is read by `core`; this is what it looks like.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
#[allow(dead_code, reason = "it is there to be documented")]
pub(crate) enum FilterExpression {
    /// Each of them has to hold.
    All {
        /// 1 or more.
        #[schema(no_recursion, min_items = 1)]
        all: Vec<FilterExpression>,
    },
    /// One of them has to hold.
    Any {
        /// 1 or more.
        #[schema(no_recursion, min_items = 1)]
        any: Vec<FilterExpression>,
    },
    /// It must not hold.
    Not {
        /// What must not.
        #[schema(no_recursion)]
        not: Box<FilterExpression>,
    },
    /// Everything that is said of the value at a path has to hold.
    Condition(Box<FilterCondition>),
}

/// What has to hold of the value at a path.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"path": "/amount", "gte": 100}))]
#[allow(dead_code, reason = "it is there to be documented")]
pub(crate) struct FilterCondition {
    /// Where to look in `data`: a JSON pointer; empty for all of it.
    #[schema(pattern = "^(/([^~/]|~[01])*)*$")]
    path: String,
    /// Equal to this text, number, true, false or null.
    #[serde(skip_serializing_if = "Option::is_none")]
    eq: Option<Value>,
    /// Not equal to it, or not there.
    #[serde(skip_serializing_if = "Option::is_none")]
    ne: Option<Value>,
    /// Greater than this number or text.
    #[serde(skip_serializing_if = "Option::is_none")]
    gt: Option<Value>,
    /// Greater or equal.
    #[serde(skip_serializing_if = "Option::is_none")]
    gte: Option<Value>,
    /// Less.
    #[serde(skip_serializing_if = "Option::is_none")]
    lt: Option<Value>,
    /// Less or equal.
    #[serde(skip_serializing_if = "Option::is_none")]
    lte: Option<Value>,
    /// Equal to one of these.
    #[serde(rename = "in", skip_serializing_if = "Option::is_none")]
    one_of: Option<Vec<Value>>,
    /// There, or not there.
    #[serde(skip_serializing_if = "Option::is_none")]
    exists: Option<bool>,
    /// A text that begins so.
    #[serde(skip_serializing_if = "Option::is_none")]
    prefix: Option<String>,
    /// A text that ends so.
    #[serde(skip_serializing_if = "Option::is_none")]
    suffix: Option<String>,
}

/// How often the reason asks each condition at the most: once for each level.
const EXPLAINED_TIMES: u64 = filter::MAX_DEPTH as u64;

/// What to try.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct FilterTestInput {
    /// The payload, as it would be published.
    #[schema(value_type = serde_json::Value)]
    data: Box<RawValue>,
    /// The filter to try instead of the webhook's own; null for none.
    #[serde(default, deserialize_with = "nullable")]
    #[schema(value_type = Option<FilterExpression>)]
    filter: Option<Option<Box<RawValue>>>,
    /// The tenant to act for; admin keys only.
    #[serde(default)]
    tenant_id: Option<String>,
}

/// What came of it.
#[derive(Serialize, ToSchema)]
pub(crate) struct FilterTestView {
    /// Whether an event with this payload would become a delivery, as far as the filter goes.
    matches: bool,
    /// Which condition decided it.
    #[schema(example = "filter.all[0]: /amount is 50, so gte 100 does not hold")]
    why: String,
}

/// Try a filter
///
/// Asks the webhook's filter, or the one given, about a payload. Nothing is sent and nothing is changed.
#[utoipa::path(
    post, path = "/v1/webhooks/{id}/filter/test", tag = "webhooks",
    params(("id" = String, Path), TenantQuery), request_body = FilterTestInput,
    responses((status = 200, body = FilterTestView), ChangeProblems),
)]
pub(super) async fn try_filter(
    State(app): State<AppState>,
    May(caller, _): May<Reads>,
    Id(id): Id<WebhookId>,
    Query(query): Query<TenantQuery>,
    PayloadJson(input): PayloadJson<FilterTestInput>,
) -> Result<axum::Json<FilterTestView>, Problem> {
    let tenant = app.acts_for(&caller, input.tenant_id.or(query.tenant_id).as_deref()).await?;
    let webhook = app.webhook(tenant.clone(), id).await?;
    let filter = match input.filter {
        Some(given) => given.map(|raw| Filter::parse(raw.get())).transpose()?,
        None => webhook.spec.filter,
    };
    let data = input.data;
    let Verdict { matches, why } = match filter {
        // Each level of a filter is asked again for the reason.
        Some(filter)
            if Filter::work([&filter].into_iter(), data.get().as_bytes())
                > MAX_INLINE_WORK / EXPLAINED_TIMES =>
        {
            let explain = move || filter.explain(&Payload::new(data.get().as_bytes()));
            app.engine().run_check(&tenant, explain).await?
        }
        Some(filter) => filter.explain(&Payload::new(data.get().as_bytes())),
        None => Verdict { matches: true, why: "there is no filter, so every payload passes".to_owned() },
    };
    Ok(axum::Json(FilterTestView { matches, why }))
}
