//! `/v1/search` and `/v1/events/search`: find objects by what identifies them, and events by their payloads.

use axum::extract::State;
use redrive_core::{
    EventId, FieldError, TenantId, Time, event::event_type::ExactEventType, search::SearchText,
};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    AppState,
    events::EventView,
    extract::{List, Query},
    page::Paging,
    scope::{CanRead, Scoped, tenant_parameter},
};
use crate::{
    app::{
        payload_search::{PayloadMatches, PayloadSearchInput},
        search::SearchHit,
    },
    problem::{Problem, ReadProblems},
};

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(search)).routes(routes!(search_payloads))
}

/// What to search for.
#[derive(Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct SearchQuery {
    /// An id of a webhook, event, delivery or attempt, with or without its prefix; a part of a webhook's URL, uid or
    /// description, or of an event type's name; a subject or an idempotency key. For callers of all tenants also a
    /// tenant's id or name.
    pub(crate) q: Option<String>,
    /// Tenant whose event types and events are searched, `default` if it is missing; for callers of all tenants only. They
    /// find ids, tenants and webhooks in every tenant.
    tenant_id: Option<String>,
}

tenant_parameter!(SearchQuery);

/// An object that was found.
#[derive(Serialize, ToSchema)]
struct SearchHitView {
    /// `tenant`, `webhook`, `event_type`, `event`, `delivery` or `attempt`.
    #[serde(rename = "type")]
    #[schema(example = "delivery")]
    kind: &'static str,
    /// Its id; the name of an event type.
    id: String,
    /// Its tenant.
    #[schema(value_type = String)]
    tenant_id: TenantId,
    /// Text that describes it.
    title: String,
    /// The field that matched: `id`, `uid`, `name`, `url`, `description`, `subject` or `idempotency_key`.
    #[schema(example = "id")]
    matched: &'static str,
    /// Path of its page in the dashboard.
    url: String,
}

impl From<SearchHit> for SearchHitView {
    fn from(hit: SearchHit) -> Self {
        Self {
            kind: hit.kind.name(),
            id: hit.id,
            tenant_id: hit.tenant_id,
            title: hit.title,
            matched: hit.matched,
            url: hit.path,
        }
    }
}

/// Result of a search.
#[derive(Serialize, ToSchema)]
struct SearchView {
    /// Tenant whose event types, subjects and idempotency keys were searched.
    #[schema(value_type = String)]
    tenant_id: TenantId,
    /// Objects that were found, the most specific first; at most 8 of each kind and field.
    data: Vec<SearchHitView>,
    /// False if there may be more: more hits than are returned, more webhooks or tenants than the 2,000 that a search
    /// reads, or other tenants that the caller may view, whose event types and events were not searched.
    complete: bool,
}

/// Search
///
/// An id is looked up; any other text is compared with what identifies an object.
#[utoipa::path(
    get, path = "/v1/search", operation_id = "searchObjects", tag = "search", params(SearchQuery),
    responses((status = 200, description = "What was found", body = SearchView), ReadProblems),
)]
async fn search(
    State(app): State<AppState>,
    Scoped { actor, tenant, query: Query(query), .. }: Scoped<CanRead, (), Query<SearchQuery>>,
) -> Result<axum::Json<SearchView>, Problem> {
    let tenant_id = tenant.id.clone();
    let Some(text) = SearchText::parse(query.q.as_deref().unwrap_or_default())? else {
        return Ok(axum::Json(SearchView { tenant_id, data: Vec::new(), complete: true }));
    };
    let found = app.search(&actor.caller, tenant, &text).await?;
    let complete = found.is_complete && !found.skipped_tenants;
    let data = found.hits.into_iter().map(SearchHitView::from).collect();
    Ok(axum::Json(SearchView { tenant_id, data, complete }))
}

/// Payloads to search for.
#[derive(Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct PayloadQuery {
    /// Path of the value in the payload: a JSON pointer such as `/order/id`, or names separated by dots such as
    /// `order.items[0].sku`.
    #[param(required = true)]
    path: Option<String>,
    /// The value: a JSON string, number, `true`, `false` or `null`. A text that is not JSON is taken as a string; quote
    /// a string that looks like a number.
    #[param(required = true)]
    value: Option<String>,
    /// Only events of these types.
    #[param(value_type = Option<Vec<String>>)]
    event_type: Option<List<ExactEventType>>,
    /// Only events published at or after this time (RFC 3339, or a date: midnight UTC); 7 days before `to` by default.
    #[param(value_type = Option<String>, format = DateTime)]
    from: Option<Time>,
    /// Only events published before this time, at most 7 days after `from`; now by default.
    #[param(value_type = Option<String>, format = DateTime)]
    to: Option<Time>,
    /// `next_cursor` of the previous response.
    cursor: Option<String>,
    /// Maximum number of matches: 1 to 500, 50 by default.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<u32>,
    /// Tenant to act for; admin keys only.
    tenant_id: Option<String>,
}

tenant_parameter!(PayloadQuery);

impl PayloadQuery {
    /// Replaces the default limit; a limit from the request is kept.
    pub(crate) fn or_limit(self, limit: u32) -> Self {
        Self { limit: self.limit.or(Some(limit)), ..self }
    }

    /// Returns the search.
    pub(crate) fn input(&self) -> Result<PayloadSearchInput, Problem> {
        let paging = Paging { cursor: self.cursor.clone(), limit: self.limit, offset: None, tenant_id: None };
        let page = paging.request::<EventId>()?;
        let given = |field: &'static str, text: &Option<String>| match text {
            Some(text) => Ok(text.clone()),
            None => Err(Problem::from(FieldError::new(field, "is missing"))),
        };
        Ok(PayloadSearchInput {
            path: given("path", &self.path)?,
            value: given("value", &self.value)?,
            event_types: List::strings(&self.event_type),
            from: self.from,
            to: self.to,
            after: page.after,
            // The page has one row more than the limit.
            limit: page.limit.saturating_sub(1) as usize,
        })
    }
}

/// How far a search has come.
#[derive(Serialize, ToSchema)]
struct SearchProgress {
    /// Number of events that this request read.
    scanned: usize,
    /// All events of the range from this time on have been searched, by this request and those before it.
    #[schema(value_type = String, format = DateTime)]
    scanned_to: Time,
    /// Start of the range.
    #[schema(value_type = String, format = DateTime)]
    from: Time,
    /// End of the range.
    #[schema(value_type = String, format = DateTime)]
    to: Time,
}

/// Result of a payload search.
#[derive(Serialize, ToSchema)]
struct PayloadSearchView {
    /// The matching events, newest first.
    data: Vec<EventView>,
    /// Pass this as `cursor`, with the other parameters unchanged, to continue; null once the whole range was searched.
    next_cursor: Option<String>,
    /// How far the search has come.
    progress: SearchProgress,
}

impl From<PayloadMatches> for PayloadSearchView {
    fn from(matches: PayloadMatches) -> Self {
        Self {
            data: matches.found.into_iter().map(EventView::from).collect(),
            next_cursor: matches.next.map(|next| next.to_string()),
            progress: SearchProgress {
                scanned: matches.scanned,
                scanned_to: matches.scanned_to,
                from: matches.range.0,
                to: matches.range.1,
            },
        }
    }
}

/// Search payloads
///
/// Finds events whose payload has this value at this path, newest first. The range is at most 7 days. A request ends after
/// `limit` matches, 1,000,000 events or 5 seconds; `next_cursor` continues it. Each caller may run one search at a time,
/// and a node a few; further ones get 429.
#[utoipa::path(
    get, path = "/v1/events/search", operation_id = "searchEventPayloads", tag = "search", params(PayloadQuery),
    responses((status = 200, description = "Newest first", body = PayloadSearchView), ReadProblems),
)]
async fn search_payloads(
    State(app): State<AppState>,
    Scoped { actor, tenant, query: Query(query), .. }: Scoped<CanRead, (), Query<PayloadQuery>>,
) -> Result<axum::Json<PayloadSearchView>, Problem> {
    Ok(axum::Json(app.search_payloads(&actor.caller, tenant, query.input()?).await?.into()))
}
