//! Notifications to the owners of all tenants.

use askama::Template;
use axum::extract::State;

use super::{PAGE_SIZE, selected_tenants};
use crate::{
    api::{AppState, Paging},
    dashboard::{
        PageResult, format,
        notifications::{NotificationRow, channel_tone},
        page::{FormQuery, Html, PageContext},
        viewer::AllTenantsViewer,
        webhook_names::Names,
    },
};

#[derive(Template)]
#[template(path = "all_notifications.html")]
struct ListPage {
    layout: PageContext,
    query: FormQuery<Paging>,
    names: Names,
    rows: Vec<NotificationRow>,
    next: Option<String>,
}

/// Renders the list.
pub(in crate::dashboard) async fn list(
    State(app): State<AppState>,
    viewer: AllTenantsViewer,
    query: FormQuery<Paging>,
) -> PageResult {
    let tenants = selected_tenants(&app, &viewer, query.value("tenant_id")).await?;
    let paging = query.query.clone().or_limit(PAGE_SIZE);
    let found = app.list_notifications(tenants, paging.request()?).await?;
    let page = paging.page_of(found, |one| one.notification.id, |one| one);
    let next = page.next_cursor.map(|cursor| query.with("cursor", &cursor));
    let all = viewer.actor().require_all_tenants()?;
    let names =
        Names::load(&app, all, page.data.iter().filter_map(|one| one.notification.webhook_id)).await?;
    let without_recipients = |stored| NotificationRow { stored, recipients: String::new() };
    let rows = page.data.into_iter().map(without_recipients).collect();
    Html::render(&ListPage { layout: viewer.layout("all"), query, names, rows, next })
}
