//! Form to publish a test event, with the deliveries of the published event, or an edited copy of an event.

use askama::Template;
use axum::extract::State;
use redrive_core::{
    EventId, WebhookId,
    delivery::lane::Priority,
    event::{Event, event_type},
};
use redrive_store::{DeliveryFilter, PageRequest, StoredEvent};
use serde::Deserialize;

use super::{
    PageResult, format,
    json::pretty,
    page::{FormQuery, Html, PageContext, PageError, PageQuery},
    viewer::TenantViewer,
};
use crate::{
    api::AppState,
    app::{AppError, Scope, deliveries::DeliveryDetails},
};

/// Maximum number of deliveries shown; the event's page lists all of them.
const PAGE_SIZE: u32 = 50;
/// Maximum number of event types offered; others can be typed.
const MAX_EVENT_TYPES: usize = 200;
/// Maximum size of a payload that is filled into the form again.
const MAX_REFILL_BYTES: usize = 32 * 1024;
/// Maximum size of a payload that is filled into the form to be edited.
const MAX_EDITED_BYTES: usize = 256 * 1024;
/// Maximum number of webhooks offered as recipients of an edited copy.
const MAX_WEBHOOKS: u32 = 100;

/// Initial content of the form.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PublishQuery {
    /// Event type whose example is filled in.
    #[serde(rename = "type")]
    event_type: Option<String>,
    /// Event that the form has just published.
    event: Option<EventId>,
    /// Event to edit and resend.
    edit: Option<EventId>,
    /// Whether the publish was a duplicate of an existing event.
    repeated: Option<bool>,
}

impl PageQuery for PublishQuery {}

/// Event that the form has just published, with its deliveries.
struct Published {
    event: StoredEvent,
    deliveries: Vec<DeliveryDetails>,
    repeated: bool,
}

#[derive(Template)]
#[template(path = "publish.html")]
struct PublishPage {
    layout: PageContext,
    query: FormQuery<PublishQuery>,
    /// Event types offered.
    types: Vec<String>,
    chosen: String,
    data: String,
    published: Option<Published>,
    /// Event that is edited.
    original: Option<Event>,
    /// Webhooks that can receive the edited copy.
    targets: Vec<Target>,
    /// Whether there are webhooks that are not offered.
    has_more_targets: bool,
}

/// A webhook that can receive an edited copy.
struct Target {
    id: WebhookId,
    url: String,
}

/// Renders the form.
pub(super) async fn page(
    State(app): State<AppState>,
    viewer: TenantViewer,
    query: FormQuery<PublishQuery>,
) -> PageResult {
    viewer.viewer.by.require_scope(Scope::Publish)?;
    if let Some(id) = query.query.edit {
        return edit_page(&app, viewer, query, id).await;
    }
    let mut types = app.event_type_names(viewer.tenant.id.clone()).await?;
    types.truncate(MAX_EVENT_TYPES);
    let published = match query.query.event {
        Some(id) => Some(load_published(&app, &viewer, id, query.query.repeated.unwrap_or(false)).await?),
        None => None,
    };
    let (chosen, data) = initial_values(&app, &viewer, &query.query, published.as_ref()).await?;
    let layout = viewer.layout("event-types");
    Html::render(&PublishPage {
        layout,
        query,
        types,
        chosen,
        data,
        published,
        original: None,
        targets: Vec::new(),
        has_more_targets: false,
    })
}

/// Renders the form with the payload of an event that is edited and resent.
async fn edit_page(
    app: &AppState,
    viewer: TenantViewer,
    query: FormQuery<PublishQuery>,
    id: EventId,
) -> PageResult {
    let original = app.event(viewer.tenant.clone(), id).await?.event;
    if original.is_erased() {
        return Err(AppError::NotFound("payload").into());
    }
    let newest = PageRequest { after: None, offset: 0, limit: MAX_WEBHOOKS + 1 };
    let webhooks = app.list_webhooks(viewer.tenant.clone(), newest).await?;
    let has_more_targets = webhooks.len() > MAX_WEBHOOKS as usize;
    let receiving =
        webhooks.into_iter().take(MAX_WEBHOOKS as usize).filter(|webhook| webhook.state.receives_events());
    let data = match std::str::from_utf8(&original.data) {
        Ok(data) if data.len() <= MAX_EDITED_BYTES => pretty(data),
        _ => String::new(),
    };
    Html::render(&PublishPage {
        layout: viewer.layout("events"),
        query,
        types: Vec::new(),
        chosen: String::new(),
        data,
        published: None,
        original: Some(original),
        targets: receiving.map(|webhook| Target { id: webhook.id, url: webhook.spec.url }).collect(),
        has_more_targets,
    })
}

async fn load_published(
    app: &AppState,
    viewer: &TenantViewer,
    id: EventId,
    repeated: bool,
) -> Result<Published, PageError> {
    let event = app.event(viewer.tenant.clone(), id).await?;
    let filter = DeliveryFilter { event_id: Some(id), ..DeliveryFilter::default() };
    let page = PageRequest { after: None, offset: 0, limit: PAGE_SIZE };
    let deliveries = app.list_deliveries(viewer.tenant.clone(), filter, page).await?.found;
    Ok(Published { event, deliveries, repeated })
}

/// Returns the initial type and payload: those of the last event, or the chosen type with its example.
async fn initial_values(
    app: &AppState,
    viewer: &TenantViewer,
    query: &PublishQuery,
    published: Option<&Published>,
) -> Result<(String, String), PageError> {
    if let Some(Published { event, .. }) = published {
        let data = std::str::from_utf8(&event.event.data).unwrap_or_default();
        let data = if data.len() <= MAX_REFILL_BYTES { pretty(data) } else { String::new() };
        return Ok((event.event.event_type.to_string(), data));
    }
    let chosen = query.event_type.clone().unwrap_or_default();
    let example = match event_type::validate(&chosen) {
        Ok(()) => match app.event_type(viewer.tenant.id.clone(), chosen.clone()).await {
            Ok(known) => known.example,
            Err(AppError::NotFound(_)) => None,
            Err(error) => return Err(error.into()),
        },
        Err(_) => None,
    };
    Ok((chosen, example.map_or_else(|| "{}".to_owned(), |example| pretty(&example))))
}
