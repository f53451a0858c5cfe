//! Publishing a test event by form, and seeing where it arrives.

use askama::Template;
use axum::extract::State;
use redrive_core::{EventId, delivery::lane::Priority, event::event_type};
use redrive_store::{DeliveryFilter, PageRequest, StoredEvent};
use serde::Deserialize;

use super::{
    Shown, format,
    json::pretty,
    page::{Asked, Failed, Frame, Html},
    viewer::Looking,
};
use crate::{
    api::AppState,
    app::{AppError, Scope, deliveries::Seen},
};

/// Rows of deliveries; the page of the event has them all.
const ROWS: u32 = 50;
/// Event types to choose from; any other can be written.
const TYPES: usize = 200;
/// The largest payload that is put into the form again.
const LARGEST: usize = 32 * 1024;

/// What the form begins with.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PublishQuery {
    /// An event type of the catalogue, whose example is filled in.
    #[serde(rename = "type")]
    event_type: Option<String>,
    /// An event that was published by the form just now.
    event: Option<EventId>,
    /// Whether it was there already.
    repeated: Option<bool>,
}

/// An event that was published by the form just now.
struct Sent {
    event: StoredEvent,
    deliveries: Vec<Seen>,
    repeated: bool,
}

#[derive(Template)]
#[template(path = "publish.html")]
struct PublishPage {
    frame: Frame,
    asked: Asked<PublishQuery>,
    /// What can be chosen from.
    types: Vec<String>,
    chosen: String,
    data: String,
    sent: Option<Sent>,
}

/// The form.
pub(super) async fn page(State(app): State<AppState>, looking: Looking, asked: Asked<PublishQuery>) -> Shown {
    looking.viewer.by.must_have(Scope::Publish)?;
    let mut types = app.event_type_names(looking.tenant.id.clone()).await?;
    types.truncate(TYPES);
    let sent = match asked.query.event {
        Some(id) => Some(sent(&app, &looking, id, asked.query.repeated.unwrap_or(false)).await?),
        None => None,
    };
    let (chosen, data) = filled(&app, &looking, &asked.query, sent.as_ref()).await?;
    Html::of(&PublishPage { frame: looking.frame("event-types"), asked, types, chosen, data, sent })
}

async fn sent(app: &AppState, looking: &Looking, id: EventId, repeated: bool) -> Result<Sent, Failed> {
    let event = app.event(looking.tenant.clone(), id).await?;
    let filter = DeliveryFilter { event: Some(id), ..DeliveryFilter::default() };
    let page = PageRequest { after: None, offset: 0, limit: ROWS };
    let deliveries = app.list_deliveries(looking.tenant.clone(), filter, page).await?.found;
    Ok(Sent { event, deliveries, repeated })
}

/// The type and the payload that the form begins with: those of the last event, or of the type that was chosen.
async fn filled(
    app: &AppState,
    looking: &Looking,
    query: &PublishQuery,
    sent: Option<&Sent>,
) -> Result<(String, String), Failed> {
    if let Some(Sent { event, .. }) = sent {
        let data = std::str::from_utf8(&event.event.data).unwrap_or_default();
        let data = if data.len() <= LARGEST { pretty(data) } else { String::new() };
        return Ok((event.event.event_type.to_string(), data));
    }
    let chosen = query.event_type.clone().unwrap_or_default();
    let example = match event_type::validate(&chosen) {
        Ok(()) => match app.event_type(looking.tenant.id.clone(), chosen.clone()).await {
            Ok(known) => known.example,
            Err(AppError::NotFound(_)) => None,
            Err(error) => return Err(error.into()),
        },
        Err(_) => None,
    };
    Ok((chosen, example.map_or_else(|| "{}".to_owned(), |example| pretty(&example))))
}
