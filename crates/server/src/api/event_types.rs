//! `/v1/event-types`: the catalogue of event types, for publishers and subscribers.

use axum::{
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use redrive_core::{FieldError, TenantId, Time};
use redrive_store::EventType;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    AppState,
    creation::{Creation, replayed},
    extract::{Id, Json, MAX_EVENT_TYPE_BODY_BYTES, Query},
    page::{Page, Paging},
    scope::{CanOperate, CanRead, Identifies, Scoped, ScopedBody, TenantQuery, tenant_parameter},
};
use crate::{
    app::{Created, parse::json::nullable},
    problem::{ChangeProblems, Problem, ReadProblems},
};

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(create, list)).routes(routes!(get, patch, put, delete))
}

/// An event type to register, or changes to one. Fields that are left out keep their values.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct EventTypeInput {
    /// Name: segments separated by dots. Required for registration, cannot be changed.
    #[schema(example = "order.created", max_length = 256, pattern = r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$")]
    name: Option<String>,
    /// Description; null for none.
    #[serde(deserialize_with = "nullable")]
    #[schema(value_type = Option<String>, max_length = 4096)]
    description: Option<Option<String>>,
    /// Example payload; null for none. It must satisfy the schema.
    #[serde(deserialize_with = "nullable")]
    #[schema(value_type = Option<serde_json::Value>)]
    example: Option<Option<Box<RawValue>>>,
    /// JSON Schema (draft 2020-12) of payloads; null allows any payload.
    #[serde(deserialize_with = "nullable")]
    #[schema(value_type = Option<serde_json::Value>, example = json!({"type": "object", "required": ["order"]}))]
    schema: Option<Option<Box<RawValue>>>,
    /// Whether it is archived, that is, cannot be published any more.
    archived: Option<bool>,
    /// The tenant to act for; admin keys only.
    tenant_id: Option<String>,
}

tenant_parameter!(EventTypeInput);

impl EventTypeInput {
    fn apply_to(&self, event_type: &mut EventType) {
        let text = |raw: &Option<Box<RawValue>>| raw.as_ref().map(|raw| raw.get().to_owned());
        if let Some(description) = &self.description {
            event_type.description.clone_from(description);
        }
        if let Some(example) = &self.example {
            event_type.example = text(example);
        }
        if let Some(schema) = &self.schema {
            event_type.schema = text(schema);
        }
        event_type.archived = self.archived.unwrap_or(event_type.archived);
    }
}

/// An event type.
#[derive(Serialize, ToSchema)]
pub(super) struct EventTypeView {
    /// Name.
    name: String,
    /// Tenant id.
    #[schema(value_type = String)]
    tenant_id: TenantId,
    /// Description.
    description: Option<String>,
    /// Example payload.
    #[schema(value_type = Option<serde_json::Value>)]
    example: Option<Box<RawValue>>,
    /// JSON Schema of payloads.
    #[schema(value_type = Option<serde_json::Value>)]
    schema: Option<Box<RawValue>>,
    /// Whether it is archived, that is, cannot be published any more.
    archived: bool,
    /// Time of registration.
    #[schema(value_type = String, format = DateTime)]
    created_at: Time,
    /// Time of the last change.
    #[schema(value_type = String, format = DateTime)]
    updated_at: Time,
}

impl From<EventType> for EventTypeView {
    fn from(event_type: EventType) -> Self {
        let json = |text: Option<String>| RawValue::from_string(text?).ok();
        Self {
            name: event_type.name,
            tenant_id: event_type.tenant_id,
            description: event_type.description,
            example: json(event_type.example),
            schema: json(event_type.schema),
            archived: event_type.archived,
            created_at: event_type.created_at,
            updated_at: event_type.updated_at,
        }
    }
}

/// Event type name in a path. An invalid name is treated as not found.
struct Name(String);

impl Identifies for Name {}

impl std::str::FromStr for Name {
    type Err = FieldError;

    fn from_str(text: &str) -> Result<Self, FieldError> {
        redrive_core::event::event_type::validate(text)?;
        Ok(Self(text.to_owned()))
    }
}

/// Register an event type
///
/// From then on payloads that violate its schema are rejected.
#[utoipa::path(
    post, path = "/v1/event-types", operation_id = "createEventType", tag = "event types", request_body = EventTypeInput,
    params(TenantQuery, ("Idempotency-Key" = Option<String>, Header, description = "A repeated key with the same body returns the first object, without its secret")),
    responses(
        (status = 201, description = "The registered event type", body = EventTypeView),
        (status = 200, description = "The event type that an earlier request with this idempotency key registered", body = EventTypeView),
        ChangeProblems,
    ),
)]
async fn create(
    State(app): State<AppState>,
    ScopedBody { actor, tenant, body: creation, .. }: ScopedBody<
        CanOperate,
        (),
        Creation<Json<EventTypeInput, MAX_EVENT_TYPE_BODY_BYTES>>,
    >,
) -> Result<Response, Problem> {
    let (Json(input), key) = creation.into_parts(&app, Some(&tenant))?;
    let Some(name) = input.name.clone() else {
        return Err(FieldError::new("name", "is missing; name an event type, such as order.created").into());
    };
    let fill = |new: &mut EventType| input.apply_to(new);
    let create = app.create_event_type(&actor, tenant.id.clone(), name, fill, key.clone());
    match app.create_once(key.as_ref(), create).await? {
        Created::Now(created) => {
            Ok((StatusCode::CREATED, axum::Json(EventTypeView::from(created))).into_response())
        }
        Created::Before(name) => Ok(replayed(EventTypeView::from(app.event_type(tenant.id, name).await?))),
    }
}

/// Filter and page of an event type listing.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct EventTypeQuery {
    /// Only archived event types (`true`), or only others (`false`).
    pub(crate) archived: Option<bool>,
    /// The `next_cursor` of the previous page.
    cursor: Option<String>,
    /// Page size: 1 to 500, default 50.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<u32>,
    /// Number of event types to skip, up to 10,000; prefer `cursor`.
    #[param(maximum = 10000)]
    offset: Option<u32>,
    /// The tenant to act for; admin keys only.
    tenant_id: Option<String>,
}

tenant_parameter!(EventTypeQuery);

impl EventTypeQuery {
    /// Returns the requested page.
    pub(crate) fn paging(&self) -> Paging {
        Paging { cursor: self.cursor.clone(), limit: self.limit, offset: self.offset, tenant_id: None }
    }
}

/// List event types
///
/// The catalogue of event types that can be published and subscribed to.
#[utoipa::path(
    get, path = "/v1/event-types", operation_id = "listEventTypes", tag = "event types", params(EventTypeQuery),
    responses((status = 200, description = "By name", body = Page<EventTypeView>), ReadProblems),
)]
async fn list(
    State(app): State<AppState>,
    Scoped { tenant, query: Query(query), .. }: Scoped<CanRead, (), Query<EventTypeQuery>>,
) -> Result<axum::Json<Page<EventTypeView>>, Problem> {
    let paging = query.paging();
    let listed = app.list_event_types(tenant.id, query.archived, paging.request()?).await?;
    Ok(axum::Json(paging.page(listed, |one| one.name.clone(), EventTypeView::from)))
}

/// Get an event type
#[utoipa::path(
    get, path = "/v1/event-types/{name}", operation_id = "getEventType", tag = "event types", params(("name" = String, Path), TenantQuery),
    responses((status = 200, description = "The event type", body = EventTypeView), ReadProblems),
)]
async fn get(
    State(app): State<AppState>,
    Scoped { tenant, path: Id(Name(name)), .. }: Scoped<CanRead, Id<Name>>,
) -> Result<axum::Json<EventTypeView>, Problem> {
    Ok(axum::Json(app.event_type(tenant.id, name).await?.into()))
}

/// Request that changes an event type.
type ChangeRequest = ScopedBody<CanOperate, Id<Name>, Json<EventTypeInput, MAX_EVENT_TYPE_BODY_BYTES>>;

/// Change an event type
///
/// Fields that are left out keep their values. A new schema applies to events published from then on.
#[utoipa::path(
    patch, path = "/v1/event-types/{name}", operation_id = "updateEventType", tag = "event types", params(("name" = String, Path), TenantQuery),
    request_body = EventTypeInput,
    responses((status = 200, description = "The changed event type", body = EventTypeView), ChangeProblems),
)]
async fn patch(
    State(app): State<AppState>,
    ScopedBody { actor, tenant, path: Id(Name(name)), body: Json(input), .. }: ChangeRequest,
) -> Result<axum::Json<EventTypeView>, Problem> {
    if input.name.as_ref().is_some_and(|given| *given != name) {
        return Err(FieldError::new("name", "cannot be changed; register another event type instead").into());
    }
    let changed = app.change_event_type(&actor, tenant.id, name, |one| input.apply_to(one)).await?;
    Ok(axum::Json(changed.into()))
}

/// Change an event type
///
/// Same as PATCH: fields that are left out keep their values.
#[utoipa::path(
    put, path = "/v1/event-types/{name}", operation_id = "replaceEventType", tag = "event types", params(("name" = String, Path), TenantQuery),
    request_body = EventTypeInput,
    responses((status = 200, description = "The changed event type", body = EventTypeView), ChangeProblems),
)]
async fn put(state: State<AppState>, request: ChangeRequest) -> Result<axum::Json<EventTypeView>, Problem> {
    patch(state, request).await
}

/// Delete an event type
///
/// Its events stay. If the tenant requires registered types, it cannot be published any more; archiving has the
/// same effect and keeps it in the catalogue.
#[utoipa::path(
    delete, path = "/v1/event-types/{name}", operation_id = "deleteEventType", tag = "event types", params(("name" = String, Path), TenantQuery),
    responses((status = 204, description = "Deleted"), ReadProblems),
)]
async fn delete(
    State(app): State<AppState>,
    Scoped { actor, tenant, path: Id(Name(name)), .. }: Scoped<CanOperate, Id<Name>>,
) -> Result<StatusCode, Problem> {
    app.delete_event_type(&actor, tenant.id, name).await?;
    Ok(StatusCode::NO_CONTENT)
}
