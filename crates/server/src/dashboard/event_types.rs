//! Event type pages: the catalogue, an event type, and the forms to register and change one.

use askama::Template;
use axum::extract::State;
use redrive_core::event::event_type;
use redrive_store::EventType;

use super::{
    PageResult, format, json,
    page::{FormQuery, Html, PageContext, PageError},
    viewer::TenantViewer,
};
use crate::{
    api::{AppState, EventTypeQuery},
    app::AppError,
};

/// Rows on one page.
const PAGE_SIZE: u32 = 50;

#[derive(Template)]
#[template(path = "event_types.html")]
struct ListPage {
    layout: PageContext,
    query: FormQuery<EventTypeQuery>,
    rows: Vec<EventType>,
    next: Option<String>,
    /// Whether only registered event types may be published.
    strict: bool,
}

/// Renders the catalogue.
pub(super) async fn list(
    State(app): State<AppState>,
    viewer: TenantViewer,
    query: FormQuery<EventTypeQuery>,
) -> PageResult {
    let paging = query.query.paging().or_limit(PAGE_SIZE);
    let listed =
        app.list_event_types(viewer.tenant.id.clone(), query.query.archived, paging.request()?).await?;
    let strict = app.tenant(viewer.tenant.id.clone()).await?.rules.strict_event_types;
    let page = paging.page(listed, |one| one.name.clone(), |one| one);
    let next = page.next_cursor.map(|cursor| query.with("cursor", &cursor));
    Html::render(&ListPage { layout: viewer.layout("event-types"), query, rows: page.data, next, strict })
}

#[derive(Template)]
#[template(path = "event_type.html")]
struct OnePage {
    layout: PageContext,
    event_type: EventType,
}

/// Renders an event type.
pub(super) async fn one(State(app): State<AppState>, viewer: TenantViewer) -> PageResult {
    let event_type = load_event_type(&app, &viewer).await?;
    Html::render(&OnePage { layout: viewer.layout("event-types"), event_type })
}

/// Returns the event type named by the path. An invalid name is reported as not found.
async fn load_event_type(app: &AppState, viewer: &TenantViewer) -> Result<EventType, PageError> {
    let name = viewer.name();
    event_type::validate(name).map_err(|_| AppError::NotFound("event type"))?;
    Ok(app.event_type(viewer.tenant.id.clone(), name.to_owned()).await?)
}

#[derive(Template)]
#[template(path = "event_type_form.html")]
struct FormPage {
    layout: PageContext,
    /// The event type to change. `None` for a new one.
    event_type: Option<EventType>,
}

impl FormPage {
    fn description(&self) -> &str {
        self.event_type.as_ref().and_then(|one| one.description.as_deref()).unwrap_or_default()
    }

    fn example(&self) -> String {
        self.format_json(|one| one.example.as_deref())
    }

    fn schema(&self) -> String {
        self.format_json(|one| one.schema.as_deref())
    }

    fn format_json(&self, part: impl Fn(&EventType) -> Option<&str>) -> String {
        self.event_type.as_ref().and_then(part).map(json::pretty).unwrap_or_default()
    }
}

/// Renders the form for a new event type.
pub(super) async fn new(viewer: TenantViewer) -> PageResult {
    viewer.require_operate()?;
    Html::render(&FormPage { layout: viewer.layout("event-types"), event_type: None })
}

/// Renders the form to change an event type.
pub(super) async fn edit(State(app): State<AppState>, viewer: TenantViewer) -> PageResult {
    viewer.require_operate()?;
    let event_type = Some(load_event_type(&app, &viewer).await?);
    Html::render(&FormPage { layout: viewer.layout("event-types"), event_type })
}
