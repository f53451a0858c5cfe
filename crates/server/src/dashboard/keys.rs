//! API key pages, for tenants and admins. A key is shown once when it is created, and never on a page.

use askama::Template;
use axum::extract::State;
use redrive_core::Time;
use redrive_store::ApiKey;
use serde::Deserialize;

use super::{
    PageResult, format,
    page::{FormQuery, Html, PageContext, PageQuery},
    viewer::AdminViewer,
};
use crate::{
    api::{AppState, Paging, named},
    app::Scope,
};

/// Rows on one page.
const PAGE_SIZE: u32 = 50;

/// Query of the page: owner of the keys, and cursor.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct KeysQuery {
    /// Tenant whose keys are listed. `None` for admin keys.
    tenant: Option<String>,
    /// Cursor of the next page.
    cursor: Option<String>,
}

impl PageQuery for KeysQuery {}

#[derive(Template)]
#[template(path = "keys.html")]
struct KeysPage {
    layout: PageContext,
    query: FormQuery<KeysQuery>,
    rows: Vec<ApiKey>,
    next: Option<String>,
    now: Time,
}

impl KeysPage {
    /// Returns the API path that creates a key.
    fn path(&self) -> String {
        match self.query.value("tenant") {
            "" => "/v1/admin-keys".to_owned(),
            tenant => format!("/v1/tenants/{tenant}/api-keys"),
        }
    }

    /// Returns the color and label of a key's state.
    fn state(&self, key: &ApiKey) -> (&'static str, &'static str) {
        match (key.revoked_at, key.expires_at) {
            (Some(_), _) => ("off", "revoked"),
            (None, Some(end)) if end <= self.now => ("off", "expired"),
            _ => ("good", "active"),
        }
    }

    fn is_active(&self, key: &ApiKey) -> bool {
        self.state(key).1 == "active"
    }

    /// Returns the scopes of a key as text.
    fn scopes(&self, key: &ApiKey) -> String {
        match key.tenant_id {
            None => "all".to_owned(),
            Some(_) => {
                Scope::from_bits(key.scopes).into_iter().map(Scope::name).collect::<Vec<_>>().join(", ")
            }
        }
    }

    /// Returns the networks that a key may be used from as text.
    fn networks(&self, key: &ApiKey) -> String {
        match key.networks.is_empty() {
            true => "any".to_owned(),
            false => key.networks.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
        }
    }
}

/// Renders the list.
pub(super) async fn list(
    State(app): State<AppState>,
    admin: AdminViewer,
    query: FormQuery<KeysQuery>,
) -> PageResult {
    let tenant_id = match &query.query.tenant {
        Some(tenant) => Some(named(&app, tenant).await?),
        None => None,
    };
    let paging = Paging { cursor: query.query.cursor.clone(), limit: Some(PAGE_SIZE), ..Paging::default() };
    let layout = match &tenant_id {
        Some(tenant_id) => admin.layout_for(tenant_id, "keys"),
        None => admin.layout("keys"),
    };
    let keys = app.list_keys(tenant_id, paging.request()?).await?;
    let page = paging.page(keys, |key| key.id, |key| key);
    let next = page.next_cursor.map(|cursor| query.with("cursor", &cursor));
    Html::render(&KeysPage { layout, query, rows: page.data, next, now: app.engine().clock().now() })
}
