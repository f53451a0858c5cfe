//! `/v1/events`: publish, read, export, replay and erase events.

mod cloudevents;
mod edited;
mod erase;
mod publish;
mod trace;

use axum::{
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use redrive_core::{
    EventId, FieldError, TenantId, Time, WebhookId, delivery::lane::Priority,
    event::event_type::ExactEventType,
};
use redrive_engine::{PastWebhooks, ReplayTo};
use redrive_store::{EventFilter, StoredEvent};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

use self::publish::MAX_BATCH;
pub(super) use self::publish::PublishedView;
use super::{
    AppState,
    deliveries::{AttemptView, DeliveryView, list_of_event},
    export::{Format, stream},
    extract::{Id, List, OptionalJson, Query},
    page::{Page, Paging},
    scope::{CanRead, Resends, Scoped, ScopedBody, ScopedListing, TenantQuery, tenant_parameter},
};
use crate::{
    app::{App, TenantView},
    problem::{ChangeProblems, Problem, ReadProblems},
};

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(publish::publish, list))
        .routes(routes!(publish::publish_batch))
        .routes(routes!(export))
        .routes(routes!(get))
        .routes(routes!(deliveries))
        .routes(routes!(attempts))
        .routes(routes!(replay))
        .routes(routes!(edited::resend_edited))
        .routes(routes!(erase::erase_subject))
        .routes(routes!(erase::erase))
}

/// An event.
#[derive(Serialize, ToSchema)]
pub(super) struct EventView {
    /// Unique id of the event.
    #[schema(value_type = String)]
    id: EventId,
    /// Tenant that the event belongs to.
    #[schema(value_type = String)]
    tenant_id: TenantId,
    /// Event type.
    event_type: String,
    /// Payload; null after it was erased.
    #[schema(value_type = serde_json::Value)]
    data: Box<RawValue>,
    /// Time at which the event was published.
    #[schema(value_type = String, format = DateTime)]
    timestamp: Time,
    /// Idempotency key; the event's id if it was published without one.
    idempotency_key: String,
    /// Source of the event, as given by the publisher.
    source: Option<String>,
    /// Subject of the event, such as the id of an order.
    subject: Option<String>,
    /// Metadata of the publisher; never sent to endpoints.
    #[schema(value_type = Option<Object>)]
    metadata: Option<Box<RawValue>>,
    /// Delivery priority.
    priority: Priority,
    /// Sequence number within the tenant.
    sequence_number: i64,
    /// Event that this one is an edited copy of.
    #[schema(value_type = Option<String>)]
    edited_from: Option<EventId>,
    /// Edited copies of this event, newest first, up to 100; only in `GET /v1/events/{id}`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Vec<String>, nullable = false)]
    edited_as: Option<Vec<EventId>>,
    /// Time at which the payload was erased; `data` and `metadata` are null from then on.
    #[schema(value_type = Option<String>, format = DateTime)]
    erased_at: Option<Time>,
}

fn raw_json(bytes: &[u8]) -> Box<RawValue> {
    // The JSON was validated when the event was published.
    let text = String::from_utf8_lossy(bytes).into_owned();
    RawValue::from_string(text).unwrap_or_else(|_| RawValue::NULL.to_owned())
}

impl From<StoredEvent> for EventView {
    fn from(stored: StoredEvent) -> Self {
        let event = stored.event;
        Self {
            edited_from: stored.edited_from,
            edited_as: None,
            idempotency_key: event.effective_key(),
            id: event.id,
            tenant_id: event.tenant_id,
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

/// Declares a query struct with all event filters and the given additional parameters.
macro_rules! event_query {
    ($(#[$doc:meta])* $name:ident { $($more:tt)* }) => {
        $(#[$doc])*
        #[derive(Deserialize, IntoParams)]
        #[into_params(parameter_in = Query)]
        #[serde(deny_unknown_fields)]
        pub(crate) struct $name {
            /// Return only the event with this id.
            #[param(value_type = Option<String>)]
            id: Option<EventId>,
            /// Return only the event with this idempotency key; the event's id if it was published without a key.
            idempotency_key: Option<String>,
            /// Return only events with this subject.
            subject: Option<String>,
            /// Return only events of these types: up to 50, separated by commas or as repeated parameters.
            #[param(value_type = Option<Vec<String>>)]
            event_type: Option<List<ExactEventType>>,
            /// Return only events from this source.
            source: Option<String>,
            /// Return only events published at or after this time (RFC 3339, or a date: midnight UTC).
            #[param(value_type = Option<String>, format = DateTime)]
            from: Option<Time>,
            /// Return only events published before this time (RFC 3339, or a date: midnight UTC).
            #[param(value_type = Option<String>, format = DateTime)]
            to: Option<Time>,
            /// Tenant to act for; admin keys only.
            tenant_id: Option<String>,
            $($more)*
        }

        tenant_parameter!($name);

        impl $name {
            pub(crate) fn filter(&self) -> EventFilter {
                EventFilter {
                    id: self.id,
                    idempotency_key: self.idempotency_key.clone(),
                    subject: self.subject.clone(),
                    event_types: List::strings(&self.event_type),
                    source: self.source.clone(),
                    from: self.from,
                    to: self.to,
                }
            }
        }
    };
}

event_query! {
    /// Filter and paging of an event listing.
    EventQuery {
        /// `next_cursor` of the previous page.
        cursor: Option<String>,
        /// Page size: 1 to 500, 50 by default.
        #[param(minimum = 1, maximum = 500)]
        limit: Option<u32>,
        /// Number of events to skip, up to 10,000. Prefer a cursor.
        #[param(maximum = 10000)]
        offset: Option<u32>,
    }
}

event_query! {
    /// Filter and format of an event export.
    EventExportQuery {
        /// `ndjson` (default), one JSON object per line, or `csv`.
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

/// Columns of the CSV export.
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
/// Streams all matching events, newest first, in one response. If the connection is aborted, the export is
/// incomplete.
#[utoipa::path(
    get, path = "/v1/events/export", operation_id = "exportEvents", tag = "events", params(EventExportQuery),
    responses((status = 200, description = "All matching events, newest first", content((EventView = "application/x-ndjson"), (String = "text/csv"))), ReadProblems),
)]
async fn export(
    State(app): State<AppState>,
    Scoped { tenant, query: Query(query), .. }: Scoped<CanRead, (), Query<EventExportQuery>>,
) -> Result<Response, Problem> {
    export_rows(&app, tenant, &query)
}

/// Builds the export response for a tenant's events.
pub(crate) fn export_rows(
    app: &AppState,
    tenant: TenantView,
    query: &EventExportQuery,
) -> Result<Response, Problem> {
    let pages = app.export_events(tenant, query.filter())?;
    Ok(stream::<_, EventView>("events", query.format, COLUMNS, pages))
}

/// List events
///
/// With an admin key, `tenant_id=*` lists those of all tenants; `subject` and `idempotency_key` need one tenant.
#[utoipa::path(
    get, path = "/v1/events", operation_id = "listEvents", tag = "events", params(EventQuery),
    responses((status = 200, description = "Newest first", body = Page<EventView>), ReadProblems),
)]
async fn list(
    State(app): State<AppState>,
    ScopedListing { tenants, query: Query(query), .. }: ScopedListing<CanRead, Query<EventQuery>>,
) -> Result<axum::Json<Page<EventView>>, Problem> {
    let paging = query.paging();
    let events = app.list_events(tenants, query.filter(), paging.request()?).await?;
    Ok(axum::Json(paging.page_of(events, |stored| stored.event.id, EventView::from)))
}

/// Get an event
#[utoipa::path(
    get, path = "/v1/events/{id}", operation_id = "getEvent", tag = "events", params(("id" = String, Path), TenantQuery),
    responses((status = 200, description = "The event", body = EventView), ReadProblems),
)]
async fn get(
    State(app): State<AppState>,
    Scoped { tenant, path: Id(id), .. }: Scoped<CanRead, Id<EventId>>,
) -> Result<axum::Json<EventView>, Problem> {
    let view = EventView::from(app.event(&tenant, id).await?);
    let edited_as = Some(app.edited_copies(&tenant, id).await?);
    Ok(axum::Json(EventView { edited_as, ..view }))
}

/// List an event's deliveries
#[utoipa::path(
    get, path = "/v1/events/{id}/deliveries", operation_id = "listEventDeliveries", tag = "events", params(("id" = String, Path), Paging),
    responses((status = 200, description = "Deliveries of the event", body = Page<DeliveryView>), ReadProblems),
)]
async fn deliveries(
    State(app): State<AppState>,
    Scoped { tenant, path: Id(id), query: Query(paging), .. }: Scoped<CanRead, Id<EventId>, Query<Paging>>,
) -> Result<axum::Json<Page<DeliveryView>>, Problem> {
    app.event(tenant.clone(), id).await?;
    list_of_event(&app, tenant, id, &paging).await.map(axum::Json)
}

/// List the attempts of all deliveries of an event
///
/// Oldest delivery first. `circuit_blocked` entries are periods during which an open circuit blocked a delivery.
#[utoipa::path(
    get, path = "/v1/events/{id}/attempts", operation_id = "listEventAttempts", tag = "events", params(("id" = String, Path), TenantQuery),
    responses((status = 200, description = "Oldest delivery first", body = Page<AttemptView>), ReadProblems),
)]
async fn attempts(
    State(app): State<AppState>,
    Scoped { tenant, path: Id(id), .. }: Scoped<CanRead, Id<EventId>>,
) -> Result<axum::Json<Page<AttemptView>>, Problem> {
    let event = app.event(tenant.clone(), id).await?.event;
    let histories = app.histories_of_event(tenant, id).await?;
    let data = histories.into_iter().flat_map(|history| AttemptView::all(history, &event)).collect();
    Ok(axum::Json(Page { data, next_cursor: None }))
}

/// Targets of a replay.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ReplayInput {
    /// Webhooks to deliver to; by default all that the event was delivered to before.
    #[serde(default)]
    #[schema(value_type = Option<Vec<String>>)]
    webhook_ids: Option<Vec<WebhookId>>,
    /// Whether webhooks that have received the event receive it again; `true` by default. Those in `webhook_ids` do in any
    /// case.
    #[serde(default)]
    include_delivered: Option<bool>,
    /// Priority of the new deliveries; the event's priority by default.
    #[serde(default)]
    priority: Option<Priority>,
    /// Whether to count only: nothing is created.
    #[serde(default)]
    dry_run: bool,
    /// Tenant to act for; admin keys only.
    #[serde(default)]
    tenant_id: Option<String>,
}

tenant_parameter!(ReplayInput);

impl ReplayInput {
    /// Returns the webhooks to send to.
    fn targets(&self) -> Result<ReplayTo, FieldError> {
        match &self.webhook_ids {
            None => Ok(ReplayTo::Past(PastWebhooks {
                tenant_managed_only: false,
                include_delivered: self.include_delivered.unwrap_or(true),
            })),
            Some(ids) if ids.is_empty() || ids.len() > MAX_BATCH => {
                Err(FieldError::new("webhook_ids", "must name 1 to 1000 webhooks; leave it out for all"))
            }
            Some(ids) => Ok(ReplayTo::Webhooks(ids.clone())),
        }
    }
}

/// Result of a replay.
#[derive(Serialize, ToSchema)]
pub(super) struct ReplayView {
    /// Id of the event.
    #[schema(value_type = String)]
    event_id: EventId,
    /// Ids of the new deliveries, one per webhook; none in a dry run.
    #[schema(value_type = Vec<String>)]
    delivery_ids: Vec<redrive_core::DeliveryId>,
    /// Number of new deliveries; in a dry run, of those that the replay would create.
    total: usize,
    /// Number of webhooks that had received the event: part of `total`, or left out with `include_delivered: false`.
    already_delivered: usize,
}

/// Replay an event
///
/// Creates a new delivery, with the next round, for each webhook. Returns a conflict if a delivery of the event is
/// still pending.
#[utoipa::path(
    post, path = "/v1/events/{id}/replay", operation_id = "replayEvent", tag = "events", params(("id" = String, Path), TenantQuery),
    request_body = Option<ReplayInput>,
    responses(
        (status = 202, description = "The new deliveries", body = ReplayView),
        (status = 200, description = "With `dry_run`, the number of new deliveries that the replay would create", body = ReplayView),
        ChangeProblems
    ),
)]
async fn replay(
    State(app): State<AppState>,
    ScopedBody { actor, tenant, path: Id(id), body: OptionalJson(input), .. }: ScopedBody<
        Resends,
        Id<EventId>,
        OptionalJson<ReplayInput>,
    >,
) -> Result<Response, Problem> {
    let to = input.targets()?;
    if input.dry_run {
        let count = app.count_replay(tenant, id, to).await?;
        let view = ReplayView {
            event_id: id,
            delivery_ids: Vec::new(),
            total: count.total,
            already_delivered: count.already_delivered,
        };
        return Ok(axum::Json(view).into_response());
    }
    let receipt = App::replay(&app, &actor, tenant, id, to, input.priority).await?;
    let view = ReplayView {
        event_id: id,
        total: receipt.delivery_ids.len(),
        delivery_ids: receipt.delivery_ids,
        already_delivered: receipt.already_delivered,
    };
    Ok((StatusCode::ACCEPTED, axum::Json(view)).into_response())
}
