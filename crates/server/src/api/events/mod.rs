//! `/v1/events`: publishing, looking up, replaying.

mod cloudevents;
mod erase;
mod publish;
mod trace;

use axum::{
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use redrive_core::{EventId, Invalid, TenantId, Time, WebhookId, delivery::lane::Priority};
use redrive_engine::ReplayTo;
use redrive_store::{EventFilter, StoredEvent};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

use self::publish::MAX_BATCH;
pub(super) use self::publish::PublishedView;
pub(crate) use self::{
    cloudevents::{binary_of, structured},
    publish::{Beside, bare, document},
};
use super::{
    AppState,
    deliveries::{AttemptView, DeliveryView, list_of_event},
    export::{Format, stream},
    extract::{Id, List, May, OptionalJson, Query, Reads, Resends},
    page::{Page, Paging},
    problem::{ChangeProblems, Problem, ReadProblems},
};
use crate::app::{App, TenantView};

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(publish::publish, list))
        .routes(routes!(publish::publish_batch))
        .routes(routes!(export))
        .routes(routes!(get))
        .routes(routes!(deliveries))
        .routes(routes!(attempts))
        .routes(routes!(replay))
        .routes(routes!(erase::erase_subject))
        .routes(routes!(erase::erase))
}

/// An event.
#[derive(Serialize, ToSchema)]
pub(super) struct EventView {
    /// Its id.
    #[schema(value_type = String)]
    id: EventId,
    /// Whose it is.
    #[schema(value_type = String)]
    tenant_id: TenantId,
    /// Its type.
    event_type: String,
    /// The payload; null once it was erased.
    #[schema(value_type = serde_json::Value)]
    data: Box<RawValue>,
    /// When it was published.
    #[schema(value_type = String, format = DateTime)]
    timestamp: Time,
    /// The key that a repeat would have.
    idempotency_key: String,
    /// Where it came from.
    source: Option<String>,
    /// What it is about.
    subject: Option<String>,
    /// The publisher's notes.
    #[schema(value_type = Option<Object>)]
    metadata: Option<Box<RawValue>>,
    /// How urgent it is.
    priority: Priority,
    /// Its place in the tenant's sequence.
    sequence_number: i64,
    /// When its payload was erased; `data` and `metadata` are null since.
    #[schema(value_type = Option<String>, format = DateTime)]
    erased_at: Option<Time>,
}

fn raw_json(bytes: &[u8]) -> Box<RawValue> {
    // It was checked when it was published.
    let text = String::from_utf8_lossy(bytes).into_owned();
    RawValue::from_string(text).unwrap_or_else(|_| RawValue::NULL.to_owned())
}

impl From<StoredEvent> for EventView {
    fn from(stored: StoredEvent) -> Self {
        let event = stored.event;
        Self {
            idempotency_key: event.key(),
            id: event.id,
            tenant_id: event.tenant,
            event_type: event.event_type.into(),
            data: raw_json(&event.data),
            timestamp: event.timestamp,
            source: event.source.map(Into::into),
            subject: event.subject.map(Into::into),
            metadata: event.metadata.as_deref().map(raw_json),
            priority: event.priority,
            sequence_number: stored.sequence_number,
            erased_at: stored.erased_at,
        }
    }
}

/// A query with every filter of events, and more.
macro_rules! event_query {
    ($(#[$doc:meta])* $name:ident { $($more:tt)* }) => {
        $(#[$doc])*
        #[derive(Deserialize, IntoParams)]
        #[into_params(parameter_in = Query)]
        #[serde(deny_unknown_fields)]
        pub(crate) struct $name {
            /// Only this event.
            #[param(value_type = Option<String>)]
            id: Option<EventId>,
            /// Only with this key; the event's id where it was published without one.
            idempotency_key: Option<String>,
            /// Only about this subject.
            subject: Option<String>,
            /// Only of this type, or one of these: up to 50, separated by commas, or the parameter repeated.
            #[param(value_type = Option<Vec<String>>)]
            event_type: Option<List<String>>,
            /// Only from this source.
            source: Option<String>,
            /// Only from this time on (RFC 3339).
            #[param(value_type = Option<String>)]
            from: Option<Time>,
            /// Only before this time (RFC 3339).
            #[param(value_type = Option<String>)]
            to: Option<Time>,
            /// The tenant to act for; admin keys only.
            tenant_id: Option<String>,
            $($more)*
        }

        impl $name {
            pub(crate) fn filter(&self) -> EventFilter {
                EventFilter {
                    id: self.id,
                    idempotency_key: self.idempotency_key.clone(),
                    subject: self.subject.clone(),
                    event_types: List::values(&self.event_type),
                    source: self.source.clone(),
                    from: self.from,
                    to: self.to,
                }
            }
        }
    };
}

event_query! {
    /// Which events to list.
    EventQuery {
        /// The `next_cursor` of the page before.
        cursor: Option<String>,
        /// How many to give: 1 to 500, 50 if left out.
        #[param(minimum = 1, maximum = 500)]
        limit: Option<u32>,
        /// How many to leave out first, up to 10,000; a cursor is better.
        #[param(maximum = 10000)]
        offset: Option<u32>,
    }
}

event_query! {
    /// Which events to export, and how.
    EventExportQuery {
        /// `ndjson`, one JSON object a line, if left out; or `csv`.
        #[serde(default)]
        #[param(inline)]
        format: Format,
    }
}

impl EventQuery {
    pub(crate) fn paging(&self) -> Paging {
        Paging { cursor: self.cursor.clone(), limit: self.limit, offset: self.offset, tenant_id: None }
    }
}

/// What a table of events has.
const COLUMNS: &[&str] = &[
    "id",
    "event_type",
    "timestamp",
    "sequence_number",
    "subject",
    "source",
    "idempotency_key",
    "priority",
    "data",
    "metadata",
    "tenant_id",
];

/// Export events
///
/// Everything that the filter wants, newest first, as one long answer. One that is broken off was not whole.
#[utoipa::path(
    get, path = "/v1/events/export", tag = "events", params(EventExportQuery),
    responses((status = 200, content((EventView = "application/x-ndjson"), (String = "text/csv"))), ReadProblems),
)]
async fn export(
    State(app): State<AppState>,
    May(caller, _): May<Reads>,
    Query(query): Query<EventExportQuery>,
) -> Result<Response, Problem> {
    let tenant = app.acts_for(&caller, query.tenant_id.as_deref()).await?;
    exported(&app, tenant, &query)
}

/// What a tenant's events are exported as.
pub(crate) fn exported(
    app: &AppState,
    tenant: TenantView,
    query: &EventExportQuery,
) -> Result<Response, Problem> {
    let pages = app.export_events(tenant, query.filter())?;
    Ok(stream::<_, EventView>("events", query.format, COLUMNS, pages))
}

/// List events
#[utoipa::path(
    get, path = "/v1/events", tag = "events", params(EventQuery),
    responses((status = 200, description = "Newest first", body = Page<EventView>), ReadProblems),
)]
async fn list(
    State(app): State<AppState>,
    May(caller, _): May<Reads>,
    Query(query): Query<EventQuery>,
) -> Result<axum::Json<Page<EventView>>, Problem> {
    let tenant = app.acts_for(&caller, query.tenant_id.as_deref()).await?;
    let paging = query.paging();
    let events = app.list_events(tenant, query.filter(), paging.request()?).await?;
    Ok(axum::Json(paging.page_of(events, |stored| stored.event.id, EventView::from)))
}

/// The tenant to act for.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct TenantQuery {
    /// The tenant to act for; admin keys only.
    pub(super) tenant_id: Option<String>,
}

/// Get an event
#[utoipa::path(
    get, path = "/v1/events/{id}", tag = "events", params(("id" = String, Path), TenantQuery),
    responses((status = 200, body = EventView), ReadProblems),
)]
async fn get(
    State(app): State<AppState>,
    May(caller, _): May<Reads>,
    Id(id): Id<EventId>,
    Query(query): Query<TenantQuery>,
) -> Result<axum::Json<EventView>, Problem> {
    let tenant = app.acts_for(&caller, query.tenant_id.as_deref()).await?;
    Ok(axum::Json(app.event(tenant, id).await?.into()))
}

/// List an event's deliveries
#[utoipa::path(
    get, path = "/v1/events/{id}/deliveries", tag = "events", params(("id" = String, Path), Paging),
    responses((status = 200, body = Page<DeliveryView>), ReadProblems),
)]
async fn deliveries(
    State(app): State<AppState>,
    May(caller, _): May<Reads>,
    Id(id): Id<EventId>,
    Query(paging): Query<Paging>,
) -> Result<axum::Json<Page<DeliveryView>>, Problem> {
    let tenant = app.acts_for(&caller, paging.tenant_id.as_deref()).await?;
    app.event(tenant.clone(), id).await?;
    list_of_event(&app, tenant, id, &paging).await.map(axum::Json)
}

/// List the attempts of all of an event's deliveries
///
/// The oldest delivery first. `circuit_blocked` entries tell when an open circuit held one back.
#[utoipa::path(
    get, path = "/v1/events/{id}/attempts", tag = "events", params(("id" = String, Path), TenantQuery),
    responses((status = 200, body = Page<AttemptView>), ReadProblems),
)]
async fn attempts(
    State(app): State<AppState>,
    May(caller, _): May<Reads>,
    Id(id): Id<EventId>,
    Query(query): Query<TenantQuery>,
) -> Result<axum::Json<Page<AttemptView>>, Problem> {
    let tenant = app.acts_for(&caller, query.tenant_id.as_deref()).await?;
    let event = app.event(tenant.clone(), id).await?.event;
    let histories = app.histories_of_event(tenant, id).await?;
    let data = histories.into_iter().flat_map(|history| AttemptView::all(history, &event)).collect();
    Ok(axum::Json(Page { data, next_cursor: None }))
}

/// Where to replay an event to.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ReplayInput {
    /// To these webhooks; to all that the event went to if left out.
    #[serde(default)]
    #[schema(value_type = Option<Vec<String>>)]
    webhook_ids: Option<Vec<WebhookId>>,
    /// How urgent the new deliveries are; as urgent as the event if left out.
    #[serde(default)]
    priority: Option<Priority>,
    /// The tenant to act for; admin keys only.
    #[serde(default)]
    tenant_id: Option<String>,
}

/// What a replay made.
#[derive(Serialize, ToSchema)]
pub(super) struct ReplayView {
    /// The event.
    #[schema(value_type = String)]
    event_id: EventId,
    /// The new deliveries, one for each webhook.
    #[schema(value_type = Vec<String>)]
    delivery_ids: Vec<redrive_core::DeliveryId>,
}

/// Deliver an event again
///
/// Makes a new round for each webhook. A delivery of the event that is still pending is a conflict.
#[utoipa::path(
    post, path = "/v1/events/{id}/replay", tag = "events", params(("id" = String, Path), TenantQuery),
    request_body = Option<ReplayInput>,
    responses((status = 202, body = ReplayView), ChangeProblems),
)]
async fn replay(
    State(app): State<AppState>,
    May(caller, _): May<Resends>,
    Id(id): Id<EventId>,
    Query(query): Query<TenantQuery>,
    OptionalJson(input): OptionalJson<ReplayInput>,
) -> Result<Response, Problem> {
    let tenant = app.acts_for(&caller, input.tenant_id.or(query.tenant_id).as_deref()).await?;
    let to = match input.webhook_ids {
        None => ReplayTo::All,
        Some(ids) if ids.is_empty() || ids.len() > MAX_BATCH => {
            return Err(
                Invalid::new("webhook_ids", "must name 1 to 1000 webhooks; leave it out for all").into()
            );
        }
        Some(ids) => ReplayTo::Webhooks(ids),
    };
    let delivery_ids = App::replay(&app, &caller, tenant, id, to, input.priority).await?;
    Ok((StatusCode::ACCEPTED, axum::Json(ReplayView { event_id: id, delivery_ids })).into_response())
}
