//! Notifications to the owners of all tenants.

use askama::Template;
use axum::extract::State;
use redrive_store::StoredNotification;

use super::{PAGE_SIZE, selected_tenants};
use crate::{
    api::{AppState, Paging},
    dashboard::{
        PageResult, format,
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
    rows: Vec<StoredNotification>,
    next: Option<String>,
}

impl ListPage {
    /// Returns the base path of the pages of a row's tenant.
    fn base_of(&self, row: &StoredNotification) -> String {
        format!("/dashboard/t/{}", row.notification.tenant_id)
    }
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
    Html::render(&ListPage { layout: viewer.layout("all"), query, names, rows: page.data, next })
}
