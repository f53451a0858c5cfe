//! `/v1/webhooks`: subscriptions of URLs to event types.

use std::collections::BTreeMap;

use axum::{
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use redrive_core::{
    Invalid, TenantId, Time, WebhookId,
    event::PayloadFormat,
    event_type::Pattern,
    retry::RetryConfig,
    signature::{Secret, SignatureConfig},
    time::Span,
    webhook::{Owner, Webhook, WebhookSpec, WebhookState},
};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    AppState,
    deliveries::TenantInput,
    events::{PublishedView, TenantQuery},
    extract::{Id, Json, Manages, May, OptionalJson, Query, Reads},
    page::{Page, Paging},
    problem::Problem,
};
use crate::app::{
    AppError,
    webhooks::{DEFAULT_OVERLAP, disabled_by_request},
};

/// What stands in for a value that is not shown. Sent back, it means "as it was".
const REDACTED: &str = "[redacted]";

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(create, list))
        .routes(routes!(get, patch, put, delete))
        .routes(routes!(rotate_secret))
        .routes(routes!(test))
        .routes(routes!(enable))
        .routes(routes!(disable))
}

/// Tells a field that is null (clear it) from one that is not there (leave it).
fn nullable<'de, D: Deserializer<'de>, T: Deserialize<'de>>(value: D) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(value).map(Some)
}

/// A webhook to make, or what to change about one. Whatever is left out keeps its default or its value.
#[derive(Clone, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct WebhookInput {
    /// Where events are sent.
    #[schema(example = "https://example.com/webhooks")]
    url: Option<String>,
    /// Which event types: `order.created`, `order.*` or `*`.
    #[schema(value_type = Option<Vec<String>>, example = json!(["order.*"]))]
    events: Option<Vec<Pattern>>,
    /// Only events about these subjects; all if empty.
    subjects: Option<Vec<String>>,
    /// What it is for.
    #[serde(deserialize_with = "nullable")]
    #[schema(value_type = Option<String>)]
    description: Option<Option<String>>,
    /// Who looks after it.
    #[serde(deserialize_with = "nullable")]
    #[schema(value_type = Option<Owner>)]
    owner: Option<Option<Owner>>,
    /// Short for `owner.id`.
    owner_id: Option<String>,
    /// What the request body looks like.
    payload_format: Option<PayloadFormat>,
    /// How requests are signed.
    signature: Option<SignatureConfig>,
    /// Your own signing secret, `whsec_…`; one is made if left out. Only when creating: see rotate-secret.
    secret: Option<String>,
    /// When to try again.
    retry_config: Option<RetryConfig>,
    /// Requests at once, 1 to 1000; null for the server's default.
    #[serde(deserialize_with = "nullable")]
    #[schema(value_type = Option<u32>)]
    max_in_flight: Option<Option<u32>>,
    /// Headers sent along with every request.
    headers: Option<BTreeMap<String, String>>,
    /// Your own notes.
    metadata: Option<BTreeMap<String, String>>,
    /// `active` or `disabled`.
    state: Option<InputState>,
    /// Short for `state`.
    active: Option<bool>,
    /// The tenant to act for; admin keys only.
    tenant_id: Option<String>,
}

/// The states that a webhook can be put in.
#[derive(Clone, Copy, Deserialize, Serialize, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "snake_case")]
enum InputState {
    Active,
    Disabled,
}

impl WebhookInput {
    /// Whether it is to be active, as far as it says.
    fn wants_active(&self) -> Result<Option<bool>, AppError> {
        let by_state = self.state.map(|state| state == InputState::Active);
        match (by_state, self.active) {
            (Some(state), Some(active)) if state != active => {
                Err(Invalid::new("active", "contradicts state; give one of them").into())
            }
            (state, active) => Ok(state.or(active)),
        }
    }

    fn owner(&self) -> Result<Option<Option<Owner>>, AppError> {
        match (&self.owner, &self.owner_id) {
            (Some(_), Some(_)) => {
                Err(Invalid::new("owner_id", "is short for owner.id; give one of them").into())
            }
            (None, Some(id)) => Ok(Some(Some(Owner { id: Some(id.clone()), email: None }))),
            (owner, None) => Ok(owner.clone()),
        }
    }

    fn new_spec(&self) -> Result<WebhookSpec, AppError> {
        let Some(url) = self.url.clone() else {
            return Err(Invalid::new("url", "is missing; say where events are to be sent").into());
        };
        let Some(events) = self.events.clone() else {
            return Err(Invalid::new("events", "is missing; list event types, such as [\"order.*\"]").into());
        };
        let mut spec = WebhookSpec {
            url,
            events,
            description: None,
            owner: None,
            subjects: Vec::new(),
            payload_format: PayloadFormat::default(),
            signature: SignatureConfig::default(),
            retry_config: RetryConfig::default(),
            max_in_flight: None,
            headers: BTreeMap::new(),
            metadata: BTreeMap::new(),
        };
        self.apply_to(&mut spec)?;
        Ok(spec)
    }

    fn apply_to(&self, spec: &mut WebhookSpec) -> Result<(), AppError> {
        fn put<T: Clone>(to: &mut T, from: &Option<T>) {
            if let Some(value) = from {
                to.clone_from(value);
            }
        }
        put(&mut spec.url, &self.url);
        put(&mut spec.events, &self.events);
        put(&mut spec.subjects, &self.subjects);
        put(&mut spec.description, &self.description);
        put(&mut spec.payload_format, &self.payload_format);
        put(&mut spec.signature, &self.signature);
        put(&mut spec.retry_config, &self.retry_config);
        put(&mut spec.max_in_flight, &self.max_in_flight);
        put(&mut spec.metadata, &self.metadata);
        put(&mut spec.owner, &self.owner()?);
        if let Some(headers) = &self.headers {
            spec.headers = unredacted(headers, &spec.headers)?;
        }
        Ok(())
    }
}

/// Headers with the values that were shown redacted put back.
fn unredacted(
    given: &BTreeMap<String, String>,
    known: &BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>, AppError> {
    let value = |(name, value): (&String, &String)| match (value.as_str(), known.get(name)) {
        (REDACTED, Some(known)) => Ok((name.clone(), known.clone())),
        (REDACTED, None) => {
            Err(Invalid::new(format!("headers.{}", name.escape_debug()), "has no value yet").into())
        }
        _ => Ok((name.clone(), value.clone())),
    };
    given.iter().map(value).collect()
}

/// A webhook.
#[derive(Serialize, ToSchema)]
pub(super) struct WebhookView {
    /// Its id.
    #[schema(value_type = String)]
    id: WebhookId,
    /// Whose it is.
    #[schema(value_type = String)]
    tenant_id: TenantId,
    /// Where events are sent.
    url: String,
    /// What it is for.
    description: Option<String>,
    /// Who looks after it.
    owner: Option<Owner>,
    /// Which event types it wants.
    #[schema(value_type = Vec<String>)]
    events: Vec<Pattern>,
    /// Only events about these subjects; all if empty.
    subjects: Vec<String>,
    /// What the request body looks like.
    payload_format: PayloadFormat,
    /// How requests are signed.
    signature: SignatureConfig,
    /// The signing secret, shown only when it is made.
    #[serde(skip_serializing_if = "Option::is_none")]
    secret: Option<String>,
    /// The secrets that sign now, newest first, without their values.
    secrets: Vec<SecretView>,
    /// `active` or `disabled`.
    state: &'static str,
    /// Whether events are sent.
    active: bool,
    /// Why it is disabled.
    disabled_reason: Option<String>,
    /// When to try again, as far as it differs from the server's defaults.
    retry_config: RetryConfig,
    /// Requests at once; null for the server's default.
    max_in_flight: Option<u32>,
    /// Headers sent along; values are not shown.
    headers: BTreeMap<String, String>,
    /// Your own notes.
    metadata: BTreeMap<String, String>,
    /// When it was made.
    #[schema(value_type = String, format = DateTime)]
    created_at: Time,
    /// When it was last changed.
    #[schema(value_type = String, format = DateTime)]
    updated_at: Time,
}

/// A secret without its value.
#[derive(Serialize, ToSchema)]
pub(super) struct SecretView {
    /// When it was made.
    #[schema(value_type = String, format = DateTime)]
    created_at: Time,
    /// Until when it signs; null for as long as it is not rotated.
    #[schema(value_type = Option<String>, format = DateTime)]
    expires_at: Option<Time>,
}

impl From<Webhook> for WebhookView {
    fn from(webhook: Webhook) -> Self {
        let spec = webhook.spec;
        let secrets = webhook.secrets.iter();
        Self {
            id: webhook.id,
            tenant_id: webhook.tenant,
            url: spec.url,
            description: spec.description,
            owner: spec.owner,
            events: spec.events,
            subjects: spec.subjects,
            payload_format: spec.payload_format,
            signature: spec.signature,
            secret: None,
            secrets: secrets
                .map(|live| SecretView { created_at: live.created_at, expires_at: live.expires_at })
                .collect(),
            state: webhook.state.name(),
            active: webhook.state == WebhookState::Active,
            disabled_reason: webhook.state.cancels_because().map(str::to_owned),
            retry_config: spec.retry_config,
            max_in_flight: spec.max_in_flight,
            headers: spec.headers.into_keys().map(|name| (name, REDACTED.to_owned())).collect(),
            metadata: spec.metadata,
            created_at: webhook.created_at,
            updated_at: webhook.updated_at,
        }
    }
}

/// A webhook with its newest secret, which is shown this once.
fn with_secret(webhook: Webhook) -> WebhookView {
    let secret = webhook.secrets.first().map(|live| live.secret.reveal());
    WebhookView { secret, ..webhook.into() }
}

fn parse_secret(text: Option<&str>) -> Result<Option<Secret>, Problem> {
    Ok(text.map(Secret::parse).transpose()?)
}

/// Register a webhook
///
/// Every event that is acknowledged from then on reaches it.
#[utoipa::path(
    post, path = "/v1/webhooks", tag = "webhooks", request_body = WebhookInput,
    responses(
        (status = 201, description = "`secret` is shown this once", body = WebhookView),
        (status = 400, body = Problem), (status = 401, body = Problem), (status = 403, body = Problem),
        (status = 404, description = "No such tenant", body = Problem), (status = 413, body = Problem),
        (status = 415, body = Problem), (status = 503, body = Problem),
    ),
)]
async fn create(
    State(app): State<AppState>,
    May(caller, _): May<Manages>,
    Json(input): Json<WebhookInput>,
) -> Result<Response, Problem> {
    let tenant = caller.acts_for(input.tenant_id.as_deref())?;
    let secret = parse_secret(input.secret.as_deref())?;
    let active = input.wants_active()?.unwrap_or(true);
    let webhook = app.create_webhook(tenant, input.new_spec()?, secret, active).await?;
    Ok((StatusCode::CREATED, axum::Json(with_secret(webhook))).into_response())
}

/// Which webhooks to list.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct WebhookQuery {
    /// Only active ones, or only others.
    active: Option<bool>,
    /// Only those that want events of this type.
    event_type: Option<String>,
    /// The `next_cursor` of the page before.
    cursor: Option<String>,
    /// How many to look at: 1 to 500, 50 if left out.
    limit: Option<u32>,
    /// How many to leave out first, up to 10,000; a cursor is better.
    offset: Option<u32>,
    /// The tenant to act for; admin keys only.
    tenant_id: Option<String>,
}

/// List webhooks
///
/// With `active` or `event_type`, a page may hold fewer than `limit`; go on while there is a `next_cursor`.
#[utoipa::path(
    get, path = "/v1/webhooks", tag = "webhooks", params(WebhookQuery),
    responses(
        (status = 200, description = "Newest first", body = Page<WebhookView>),
        (status = 400, body = Problem), (status = 401, body = Problem), (status = 403, body = Problem),
        (status = 503, body = Problem),
    ),
)]
async fn list(
    State(app): State<AppState>,
    May(caller, _): May<Reads>,
    Query(query): Query<WebhookQuery>,
) -> Result<axum::Json<Page<WebhookView>>, Problem> {
    let tenant = caller.acts_for(query.tenant_id.as_deref())?;
    let paging = Paging { cursor: query.cursor, limit: query.limit, offset: query.offset, tenant_id: None };
    let webhooks = app.list_webhooks(tenant, paging.request()?).await?;
    let wanted = |webhook: &Webhook| {
        query.active.is_none_or(|active| active == (webhook.state == WebhookState::Active))
            && query
                .event_type
                .as_deref()
                .is_none_or(|name| webhook.spec.events.iter().any(|p| p.matches(name)))
    };
    let page = paging.page(webhooks, |webhook| webhook.id, |webhook| webhook);
    let data = page.data.into_iter().filter(wanted).map(WebhookView::from).collect();
    Ok(axum::Json(Page { data, next_cursor: page.next_cursor }))
}

/// Get a webhook
#[utoipa::path(
    get, path = "/v1/webhooks/{id}", tag = "webhooks", params(("id" = String, Path), TenantQuery),
    responses(
        (status = 200, body = WebhookView),
        (status = 400, body = Problem), (status = 401, body = Problem), (status = 403, body = Problem),
        (status = 404, body = Problem), (status = 503, body = Problem),
    ),
)]
async fn get(
    State(app): State<AppState>,
    May(caller, _): May<Reads>,
    Id(id): Id<WebhookId>,
    Query(query): Query<TenantQuery>,
) -> Result<axum::Json<WebhookView>, Problem> {
    let tenant = caller.acts_for(query.tenant_id.as_deref())?;
    Ok(axum::Json(app.webhook(tenant, id).await?.into()))
}

async fn change(
    app: &AppState,
    tenant: &TenantId,
    id: WebhookId,
    input: &WebhookInput,
) -> Result<WebhookView, Problem> {
    if input.secret.is_some() {
        return Err(Invalid::new("secret", "is changed by POST /v1/webhooks/{id}/rotate-secret").into());
    }
    let active = input.wants_active()?;
    let apply = |webhook: &mut Webhook| {
        match active {
            Some(true) => webhook.state = WebhookState::Active,
            Some(false) if webhook.state == WebhookState::Active => webhook.state = disabled_by_request(),
            _ => {}
        }
        input.apply_to(&mut webhook.spec)
    };
    Ok(app.change_webhook(tenant, id, apply).await?.into())
}

/// Change a webhook
///
/// Whatever is left out keeps its value. Pending deliveries keep their body.
#[utoipa::path(
    patch, path = "/v1/webhooks/{id}", tag = "webhooks", params(("id" = String, Path), TenantQuery),
    request_body = WebhookInput,
    responses(
        (status = 200, body = WebhookView),
        (status = 400, body = Problem), (status = 401, body = Problem), (status = 403, body = Problem),
        (status = 404, body = Problem), (status = 413, body = Problem), (status = 415, body = Problem),
        (status = 503, body = Problem),
    ),
)]
async fn patch(
    State(app): State<AppState>,
    May(caller, _): May<Manages>,
    Id(id): Id<WebhookId>,
    Query(query): Query<TenantQuery>,
    Json(input): Json<WebhookInput>,
) -> Result<axum::Json<WebhookView>, Problem> {
    let named = input.tenant_id.as_deref().or(query.tenant_id.as_deref());
    let tenant = caller.acts_for(named)?;
    change(&app, &tenant, id, &input).await.map(axum::Json)
}

/// Change a webhook
///
/// The same as PATCH: whatever is left out keeps its value.
#[utoipa::path(
    put, path = "/v1/webhooks/{id}", tag = "webhooks", params(("id" = String, Path), TenantQuery),
    request_body = WebhookInput,
    responses(
        (status = 200, body = WebhookView),
        (status = 400, body = Problem), (status = 401, body = Problem), (status = 403, body = Problem),
        (status = 404, body = Problem), (status = 413, body = Problem), (status = 415, body = Problem),
        (status = 503, body = Problem),
    ),
)]
async fn put(
    state: State<AppState>,
    who: May<Manages>,
    id: Id<WebhookId>,
    query: Query<TenantQuery>,
    input: Json<WebhookInput>,
) -> Result<axum::Json<WebhookView>, Problem> {
    patch(state, who, id, query, input).await
}

/// Delete a webhook
///
/// What is pending is cancelled; its history stays.
#[utoipa::path(
    delete, path = "/v1/webhooks/{id}", tag = "webhooks", params(("id" = String, Path), TenantQuery),
    responses(
        (status = 204, description = "Deleted"),
        (status = 400, body = Problem), (status = 401, body = Problem), (status = 403, body = Problem),
        (status = 404, body = Problem), (status = 503, body = Problem),
    ),
)]
async fn delete(
    State(app): State<AppState>,
    May(caller, _): May<Manages>,
    Id(id): Id<WebhookId>,
    Query(query): Query<TenantQuery>,
) -> Result<StatusCode, Problem> {
    let tenant = caller.acts_for(query.tenant_id.as_deref())?;
    app.delete_webhook(&tenant, id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// How to rotate a secret.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RotateInput {
    /// The new secret, `whsec_…`; one is made if left out.
    secret: Option<String>,
    /// How long the old secret still signs, in seconds or as a text such as "24h"; a day if left out.
    #[schema(value_type = Option<f64>)]
    overlap: Option<Span>,
    /// The tenant to act for; admin keys only.
    tenant_id: Option<String>,
}

/// Rotate a webhook's secret
///
/// During the overlap every request carries a signature of each live secret.
#[utoipa::path(
    post, path = "/v1/webhooks/{id}/rotate-secret", tag = "webhooks",
    params(("id" = String, Path), TenantQuery), request_body = RotateInput,
    responses(
        (status = 200, description = "`secret` is shown this once", body = WebhookView),
        (status = 400, body = Problem), (status = 401, body = Problem), (status = 403, body = Problem),
        (status = 404, body = Problem), (status = 413, body = Problem), (status = 415, body = Problem),
        (status = 503, body = Problem),
    ),
)]
async fn rotate_secret(
    State(app): State<AppState>,
    May(caller, _): May<Manages>,
    Id(id): Id<WebhookId>,
    Query(query): Query<TenantQuery>,
    OptionalJson(input): OptionalJson<RotateInput>,
) -> Result<axum::Json<WebhookView>, Problem> {
    let tenant = caller.acts_for(input.tenant_id.or(query.tenant_id).as_deref())?;
    let secret = parse_secret(input.secret.as_deref())?;
    let overlap = input.overlap.unwrap_or(DEFAULT_OVERLAP).get();
    Ok(axum::Json(with_secret(app.rotate_secret(&tenant, id, secret, overlap).await?)))
}

/// What to send as a test.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct TestInput {
    /// The payload; a greeting if left out.
    #[schema(value_type = Option<serde_json::Value>)]
    data: Option<Box<RawValue>>,
    /// The tenant to act for; admin keys only.
    tenant_id: Option<String>,
}

/// Send a test event
///
/// A `redrive.test` event goes through the real pipeline to this webhook alone.
#[utoipa::path(
    post, path = "/v1/webhooks/{id}/test", tag = "webhooks", params(("id" = String, Path), TenantQuery),
    request_body = TestInput,
    responses(
        (status = 202, body = PublishedView),
        (status = 400, body = Problem), (status = 401, body = Problem), (status = 403, body = Problem),
        (status = 404, body = Problem), (status = 409, body = Problem), (status = 413, body = Problem),
        (status = 415, body = Problem), (status = 503, body = Problem),
    ),
)]
async fn test(
    State(app): State<AppState>,
    May(caller, _): May<Manages>,
    Id(id): Id<WebhookId>,
    Query(query): Query<TenantQuery>,
    OptionalJson(input): OptionalJson<TestInput>,
) -> Result<Response, Problem> {
    let tenant = caller.acts_for(input.tenant_id.or(query.tenant_id).as_deref())?;
    let data = match input.data {
        Some(data) => Bytes::from(data.get().to_owned()),
        None => Bytes::from_static(br#"{"message":"Hello from Redrive"}"#),
    };
    let receipt = app.test_webhook(tenant, id, data).await?;
    Ok((StatusCode::ACCEPTED, axum::Json(PublishedView::from(receipt))).into_response())
}

/// Enable a webhook
#[utoipa::path(
    post, path = "/v1/webhooks/{id}/enable", tag = "webhooks", params(("id" = String, Path), TenantQuery),
    request_body = TenantInput,
    responses(
        (status = 200, body = WebhookView),
        (status = 400, body = Problem), (status = 401, body = Problem), (status = 403, body = Problem),
        (status = 404, body = Problem), (status = 413, body = Problem), (status = 415, body = Problem),
        (status = 503, body = Problem),
    ),
)]
async fn enable(
    State(app): State<AppState>,
    May(caller, _): May<Manages>,
    Id(id): Id<WebhookId>,
    Query(query): Query<TenantQuery>,
    OptionalJson(input): OptionalJson<TenantInput>,
) -> Result<axum::Json<WebhookView>, Problem> {
    let tenant = caller.acts_for(input.tenant_id.or(query.tenant_id).as_deref())?;
    let input = WebhookInput { active: Some(true), ..WebhookInput::default() };
    change(&app, &tenant, id, &input).await.map(axum::Json)
}

/// Disable a webhook
///
/// No new deliveries are made; those pending are cancelled.
#[utoipa::path(
    post, path = "/v1/webhooks/{id}/disable", tag = "webhooks", params(("id" = String, Path), TenantQuery),
    request_body = TenantInput,
    responses(
        (status = 200, body = WebhookView),
        (status = 400, body = Problem), (status = 401, body = Problem), (status = 403, body = Problem),
        (status = 404, body = Problem), (status = 413, body = Problem), (status = 415, body = Problem),
        (status = 503, body = Problem),
    ),
)]
async fn disable(
    State(app): State<AppState>,
    May(caller, _): May<Manages>,
    Id(id): Id<WebhookId>,
    Query(query): Query<TenantQuery>,
    OptionalJson(input): OptionalJson<TenantInput>,
) -> Result<axum::Json<WebhookView>, Problem> {
    let tenant = caller.acts_for(input.tenant_id.or(query.tenant_id).as_deref())?;
    let input = WebhookInput { active: Some(false), ..WebhookInput::default() };
    change(&app, &tenant, id, &input).await.map(axum::Json)
}
