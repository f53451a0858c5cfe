//! API keys, of tenants and of admins. What a key is, is shown once when it is made, and never on a page.

use askama::Template;
use axum::extract::State;
use redrive_core::Time;
use redrive_store::ApiKey;
use serde::Deserialize;

use super::{
    Shown, format,
    page::{Asked, Frame, Html},
    viewer::Administering,
};
use crate::{
    api::{AppState, Paging, named},
    app::Scope,
};

/// Rows on one page.
const ROWS: u32 = 50;

/// Whose keys to list.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct KeysQuery {
    /// This tenant's; admin keys if left out.
    tenant: Option<String>,
    /// Where to go on.
    cursor: Option<String>,
}

#[derive(Template)]
#[template(path = "keys.html")]
struct KeysPage {
    frame: Frame,
    asked: Asked<KeysQuery>,
    rows: Vec<ApiKey>,
    next: Option<String>,
    now: Time,
}

impl KeysPage {
    /// What is called to make one.
    fn path(&self) -> String {
        match self.asked.value("tenant") {
            "" => "/v1/admin-keys".to_owned(),
            tenant => format!("/v1/tenants/{tenant}/api-keys"),
        }
    }

    /// Whether a key can be used, with its colour.
    fn state(&self, key: &ApiKey) -> (&'static str, &'static str) {
        match (key.revoked_at, key.expires_at) {
            (Some(_), _) => ("off", "revoked"),
            (None, Some(end)) if end <= self.now => ("off", "expired"),
            _ => ("good", "live"),
        }
    }

    fn is_live(&self, key: &ApiKey) -> bool {
        self.state(key).1 == "live"
    }

    /// What a key may be used for.
    fn scopes(&self, key: &ApiKey) -> String {
        match key.tenant {
            None => "everything".to_owned(),
            Some(_) => {
                Scope::from_bits(key.scopes).into_iter().map(Scope::name).collect::<Vec<_>>().join(", ")
            }
        }
    }

    /// Where a key may be used from.
    fn networks(&self, key: &ApiKey) -> String {
        match key.networks.is_empty() {
            true => "anywhere".to_owned(),
            false => key.networks.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
        }
    }
}

/// The listing.
pub(super) async fn list(
    State(app): State<AppState>,
    admin: Administering,
    asked: Asked<KeysQuery>,
) -> Shown {
    let tenant = match &asked.query.tenant {
        Some(tenant) => Some(named(&app, tenant).await?),
        None => None,
    };
    let paging = Paging { cursor: asked.query.cursor.clone(), limit: Some(ROWS), ..Paging::default() };
    let frame = match &tenant {
        Some(tenant) => admin.frame_of(tenant, "keys"),
        None => admin.frame("keys"),
    };
    let keys = app.list_keys(tenant, paging.request()?).await?;
    let page = paging.page(keys, |key| key.id, |key| key);
    let next = page.next_cursor.map(|cursor| asked.with("cursor", &cursor));
    Html::of(&KeysPage { frame, asked, rows: page.data, next, now: app.engine().clock().now() })
}
