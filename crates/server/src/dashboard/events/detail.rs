//! One event: its payload, where it went, and sending it again.

use std::collections::HashSet;

use askama::Template;
use axum::{
    extract::State,
    http::header,
    response::{IntoResponse, Response},
};
use redrive_core::{EventId, WebhookId};
use redrive_store::{PageRequest, StoredEvent};
use serde::Deserialize;

use crate::{
    api::AppState,
    app::{AppError, deliveries::Seen},
    dashboard::{
        Shown,
        deliveries::of_event,
        format, outcome_text,
        page::{Asked, Failed, Frame, Html},
        untrusted::{self, pretty},
        viewer::Looking,
        webhook_names::Names,
    },
};

/// How much of a payload is shown to begin with, and at the most.
const SHORT: usize = 24 * 1024;
const WHOLE: usize = 4 << 20;
/// The most deliveries and webhooks that are shown.
const DELIVERIES: u32 = 50;
const WEBHOOKS: u32 = 100;

/// How much to show.
#[derive(Default, Deserialize)]
pub(in crate::dashboard) struct DetailQuery {
    whole: Option<bool>,
}

/// A webhook that an event can be replayed to.
struct Target {
    id: WebhookId,
    url: String,
    /// Whether the event went there before.
    had_it: bool,
    /// Why nothing can be sent there.
    not_now: Option<&'static str>,
}

#[derive(Template)]
#[template(path = "event.html")]
struct DetailPage {
    frame: Frame,
    stored: StoredEvent,
    payload: String,
    is_cut: bool,
    metadata: Option<String>,
    deliveries: Vec<Seen>,
    is_more: bool,
    names: Names,
    targets: Vec<Target>,
}

/// The page.
pub(in crate::dashboard) async fn detail(
    State(app): State<AppState>,
    looking: Looking,
    asked: Asked<DetailQuery>,
) -> Shown {
    let id: EventId = looking.id("event")?;
    let tenant = looking.tenant.clone();
    let stored = app.event(tenant.clone(), id).await?;
    let page = PageRequest { after: None, offset: 0, limit: DELIVERIES + 1 };
    let mut deliveries = app.list_deliveries(tenant.clone(), of_event(id), page).await?.found;
    let is_more = deliveries.len() > DELIVERIES as usize;
    deliveries.truncate(DELIVERIES as usize);
    let names = Names::of(&app, &tenant, deliveries.iter().map(|seen| seen.delivery.webhook)).await?;
    let had: HashSet<_> = deliveries.iter().map(|seen| seen.delivery.webhook).collect();
    let webhooks = app.list_webhooks(tenant, PageRequest { after: None, offset: 0, limit: WEBHOOKS }).await?;
    let mut targets: Vec<_> = webhooks
        .into_iter()
        .map(|webhook| Target {
            had_it: had.contains(&webhook.id),
            not_now: (!webhook.state.gets_events()).then(|| webhook.state.name()),
            id: webhook.id,
            url: webhook.spec.url,
        })
        .collect();
    targets.sort_by_key(|target| !target.had_it);
    let most = if asked.query.whole == Some(true) { WHOLE } else { SHORT };
    let (payload, is_cut) = pretty(&stored.event.data, most);
    let metadata = stored.event.metadata.as_deref().map(|notes| pretty(notes, SHORT).0);
    let frame = looking.frame("events");
    Html::of(&DetailPage { frame, stored, payload, is_cut, metadata, deliveries, is_more, names, targets })
}

/// The payload as it was published, as a file.
pub(in crate::dashboard) async fn payload(
    State(app): State<AppState>,
    looking: Looking,
) -> Result<Response, Failed> {
    let id: EventId = looking.id("event")?;
    let stored = app.event(looking.tenant, id).await?;
    if stored.event.is_erased() {
        return Err(AppError::NotFound("payload").into());
    }
    let named = format!("attachment; filename=\"{id}.json\"");
    let headers =
        [(header::CONTENT_TYPE, "application/json".to_owned()), (header::CONTENT_DISPOSITION, named)];
    Ok((headers, stored.event.data).into_response())
}
