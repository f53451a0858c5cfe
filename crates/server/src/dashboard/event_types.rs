//! Event types: the catalogue, one of them, and the forms to register and to change one.

use askama::Template;
use axum::extract::State;
use redrive_core::event::event_type;
use redrive_store::EventType;

use super::{
    Shown, format, json,
    page::{Asked, Failed, Frame, Html},
    viewer::Looking,
};
use crate::{
    api::{AppState, EventTypeQuery},
    app::AppError,
};

/// Rows on one page.
const ROWS: u32 = 50;

#[derive(Template)]
#[template(path = "event_types.html")]
struct ListPage {
    frame: Frame,
    asked: Asked<EventTypeQuery>,
    rows: Vec<EventType>,
    next: Option<String>,
    /// Whether only what is listed may be published.
    strict: bool,
}

/// The catalogue.
pub(super) async fn list(
    State(app): State<AppState>,
    looking: Looking,
    asked: Asked<EventTypeQuery>,
) -> Shown {
    let paging = asked.query.paging().or_limit(ROWS);
    let listed =
        app.list_event_types(looking.tenant.id.clone(), asked.query.archived, paging.request()?).await?;
    let strict = app.tenant(looking.tenant.id.clone()).await?.rules.strict_event_types;
    let page = paging.page(listed, |one| one.name.clone(), |one| one);
    let next = page.next_cursor.map(|cursor| asked.with("cursor", &cursor));
    Html::of(&ListPage { frame: looking.frame("event-types"), asked, rows: page.data, next, strict })
}

#[derive(Template)]
#[template(path = "event_type.html")]
struct OnePage {
    frame: Frame,
    event_type: EventType,
}

/// One of them.
pub(super) async fn one(State(app): State<AppState>, looking: Looking) -> Shown {
    let event_type = found(&app, &looking).await?;
    Html::of(&OnePage { frame: looking.frame("event-types"), event_type })
}

/// The event type that a path names. What cannot be a name is the name of nothing.
async fn found(app: &AppState, looking: &Looking) -> Result<EventType, Failed> {
    let name = looking.name();
    event_type::validate(name).map_err(|_| AppError::NotFound("event type"))?;
    Ok(app.event_type(looking.tenant.id.clone(), name.to_owned()).await?)
}

#[derive(Template)]
#[template(path = "event_type_form.html")]
struct FormPage {
    frame: Frame,
    /// What is changed; none for a new one.
    event_type: Option<EventType>,
}

impl FormPage {
    fn description(&self) -> &str {
        self.event_type.as_ref().and_then(|one| one.description.as_deref()).unwrap_or_default()
    }

    fn example(&self) -> String {
        self.laid_out(|one| one.example.as_deref())
    }

    fn schema(&self) -> String {
        self.laid_out(|one| one.schema.as_deref())
    }

    fn laid_out(&self, part: impl Fn(&EventType) -> Option<&str>) -> String {
        self.event_type.as_ref().and_then(part).map(json::pretty).unwrap_or_default()
    }
}

/// The form for a new one.
pub(super) async fn new(looking: Looking) -> Shown {
    looking.must_operate()?;
    Html::of(&FormPage { frame: looking.frame("event-types"), event_type: None })
}

/// The form to change one.
pub(super) async fn edit(State(app): State<AppState>, looking: Looking) -> Shown {
    looking.must_operate()?;
    let event_type = Some(found(&app, &looking).await?);
    Html::of(&FormPage { frame: looking.frame("event-types"), event_type })
}
