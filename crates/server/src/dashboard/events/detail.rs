//! Event page: its payload, its deliveries, and resending it.

use std::collections::HashSet;

use askama::Template;
use axum::{
    extract::State,
    http::header,
    response::{IntoResponse, Response},
};
use redrive_core::{DeliveryStatus, EventId, WebhookId};
use redrive_store::{PageRequest, StoredEvent};
use serde::Deserialize;

use super::compare::Comparison;
use crate::{
    api::AppState,
    app::{AppError, deliveries::DeliveryDetails},
    dashboard::{
        PageResult,
        code::CodeHtml,
        deliveries::filter_for_event,
        format, outcome_text,
        page::{FormQuery, Html, PageContext, PageError, PageQuery},
        text_diff::DiffLine,
        untrusted::{self, pretty},
        viewer::TenantViewer,
        webhook_names::Names,
    },
};

/// Bytes of the payload shown initially, and at most.
const PREVIEW_BYTES: usize = 22 * 1024;
const MAX_BYTES: usize = 4 << 20;
/// Maximum numbers of deliveries and webhooks shown.
const MAX_DELIVERIES: u32 = 50;
const MAX_WEBHOOKS: u32 = 100;

/// Query of the page: whether to show the whole payload, and the event to compare it with.
#[derive(Default, Deserialize)]
pub(in crate::dashboard) struct DetailQuery {
    whole: Option<bool>,
    compare: Option<String>,
}

impl PageQuery for DetailQuery {}

/// A webhook that an event can be replayed to.
struct Target {
    id: WebhookId,
    url: String,
    /// Whether the event already has a delivery to this webhook.
    has_delivery: bool,
    /// Reason why the event cannot be sent to this webhook.
    unavailable: Option<&'static str>,
}

#[derive(Template)]
#[template(path = "event.html")]
struct DetailPage {
    layout: PageContext,
    stored: StoredEvent,
    /// Ids of the edited copies of the event.
    edited_copies: Vec<EventId>,
    payload: CodeHtml,
    is_cut: bool,
    metadata: Option<CodeHtml>,
    comparison: Comparison,
    deliveries: Vec<DeliveryDetails>,
    has_more: bool,
    names: Names,
    targets: Vec<Target>,
    /// Whether there are webhooks that are not offered.
    has_more_targets: bool,
}

/// Renders the page.
pub(in crate::dashboard) async fn detail(
    State(app): State<AppState>,
    viewer: TenantViewer,
    query: FormQuery<DetailQuery>,
) -> PageResult {
    let id: EventId = viewer.id("event")?;
    let tenant = viewer.tenant.clone();
    let stored = app.event(tenant.clone(), id).await?;
    let edited_copies = app.edited_copies(&tenant, id).await?;
    let page = PageRequest { after: None, offset: 0, limit: MAX_DELIVERIES + 1 };
    let mut deliveries = app.list_deliveries(tenant.clone(), filter_for_event(id), page).await?.found;
    let has_more = deliveries.len() > MAX_DELIVERIES as usize;
    deliveries.truncate(MAX_DELIVERIES as usize);
    let names =
        Names::load(&app, &tenant, deliveries.iter().map(|details| details.delivery.webhook_id)).await?;
    let with_delivery: HashSet<_> = deliveries.iter().map(|details| details.delivery.webhook_id).collect();
    let newest = PageRequest { after: None, offset: 0, limit: MAX_WEBHOOKS + 1 };
    let webhooks = app.list_webhooks(tenant, newest).await?;
    let has_more_targets = webhooks.len() > MAX_WEBHOOKS as usize;
    let mut targets: Vec<_> = webhooks
        .into_iter()
        .take(MAX_WEBHOOKS as usize)
        .map(|webhook| Target {
            has_delivery: with_delivery.contains(&webhook.id),
            unavailable: (!webhook.state.receives_events()).then(|| webhook.state.name()),
            id: webhook.id,
            url: webhook.spec.url,
        })
        .collect();
    targets.sort_by_key(|target| !target.has_delivery);
    let max = if query.query.whole == Some(true) { MAX_BYTES } else { PREVIEW_BYTES };
    let (payload, is_cut) = pretty(&stored.event.data, max);
    let payload = CodeHtml::from_text(&payload);
    let metadata =
        stored.event.metadata.as_deref().map(|notes| CodeHtml::from_text(&pretty(notes, PREVIEW_BYTES).0));
    let comparison = Comparison::load(&app, &viewer.tenant, &stored, query.query.compare.as_deref()).await?;
    let layout = viewer.layout("events");
    Html::render(&DetailPage {
        layout,
        stored,
        edited_copies,
        payload,
        is_cut,
        metadata,
        comparison,
        deliveries,
        has_more,
        names,
        targets,
        has_more_targets,
    })
}

/// Returns the payload as it was published, as a download.
pub(in crate::dashboard) async fn payload(
    State(app): State<AppState>,
    viewer: TenantViewer,
) -> Result<Response, PageError> {
    let id: EventId = viewer.id("event")?;
    let stored = app.event(viewer.tenant, id).await?;
    if stored.event.is_erased() {
        return Err(AppError::NotFound("payload").into());
    }
    let disposition = format!("attachment; filename=\"{id}.json\"");
    let headers =
        [(header::CONTENT_TYPE, "application/json".to_owned()), (header::CONTENT_DISPOSITION, disposition)];
    Ok((headers, stored.event.data).into_response())
}
