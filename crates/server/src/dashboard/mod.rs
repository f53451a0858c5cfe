//! The dashboard: server-rendered pages over the same use cases as the API.
//!
//! Pages are read-only. Their scripts make changes through the API, with the session's cookie and token. There is
//! one file per section; shared code is in `viewer`, `page`, `format` and `live`.

mod all;
mod assets;
mod audit;
mod bulk;
mod chart;
mod code;
mod confirm;
mod dead_letters;
mod deliveries;
mod event_types;
mod events;
mod first_run;
mod form;
mod format;
mod json;
mod keys;
mod live;
mod login;
mod notifications;
mod operations;
mod outcome_text;
mod overview;
mod page;
mod publish;
mod search;
mod settings;
mod tenants;
mod text_diff;
mod unsubscribe;
pub(crate) mod untrusted;
mod user_login;
mod user_sessions;
mod viewer;
mod webhook_names;
mod webhooks;
mod zone;

use axum::{
    Router,
    http::Uri,
    middleware,
    response::Redirect,
    routing::{get, post},
};

use self::{
    live::Live,
    page::{Html, PageError},
    viewer::{Viewer, home_url},
};
use crate::{api::AppState, app::user_login::CALLBACK_PATH};

/// Returns the routes of all pages.
pub fn router(app: AppState) -> Router {
    let pages = Router::new()
        .route("/dashboard/t/{tenant}", get(overview::page))
        .route("/dashboard/t/{tenant}/deliveries", get(deliveries::list))
        .route("/dashboard/t/{tenant}/deliveries/{id}", get(deliveries::detail))
        .route("/dashboard/t/{tenant}/events", get(events::list))
        .route("/dashboard/t/{tenant}/events/{id}", get(events::detail))
        .route("/dashboard/t/{tenant}/dead", get(dead_letters::list))
        .route("/dashboard/t/{tenant}/operations", get(operations::list))
        .route("/dashboard/t/{tenant}/operations/{id}", get(operations::detail))
        .route("/dashboard/t/{tenant}/notifications", get(notifications::page))
        .route("/dashboard/t/{tenant}/webhooks", get(webhooks::list))
        .route("/dashboard/t/{tenant}/webhooks/new", get(webhooks::new))
        .route("/dashboard/t/{tenant}/webhooks/check", post(webhooks::check))
        .route("/dashboard/t/{tenant}/webhooks/{id}", get(webhooks::show))
        .route("/dashboard/t/{tenant}/webhooks/{id}/edit", get(webhooks::edit))
        .route("/dashboard/t/{tenant}/webhooks/{id}/attempts", get(webhooks::attempts))
        .route("/dashboard/t/{tenant}/event-types", get(event_types::list))
        .route("/dashboard/t/{tenant}/event-types/{id}", get(event_types::one))
        .route("/dashboard/t/{tenant}/event-types/{id}/edit", get(event_types::edit))
        .route("/dashboard/t/{tenant}/new-event-type", get(event_types::new))
        .route("/dashboard/t/{tenant}/publish", get(publish::page))
        .route("/dashboard/all", get(all::overview))
        .route("/dashboard/all/webhooks", get(all::webhooks))
        .route("/dashboard/all/deliveries", get(all::deliveries))
        .route("/dashboard/all/dead", get(all::dead))
        .route("/dashboard/all/notifications", get(all::notifications))
        .route("/dashboard/admin/tenants", get(tenants::list))
        .route("/dashboard/admin/tenants/{id}", get(tenants::one))
        .route("/dashboard/admin/new-tenant", get(tenants::new))
        .route("/dashboard/admin/keys", get(keys::list))
        .route("/dashboard/admin/user-sessions", get(user_sessions::list))
        .route("/dashboard/admin/audit", get(audit::list))
        .route("/dashboard/admin/settings", get(settings::page))
        .layer(middleware::from_fn_with_state(app.clone(), zone::in_browser_zone))
        .with_state(app.clone());
    let live = Live::new(pages.clone());
    let other_routes = Router::new()
        .route("/", get(async || Redirect::to("/dashboard")))
        .route("/dashboard", get(home))
        .route("/dashboard/login", get(login::page).post(login::log_in))
        .route("/dashboard/login/oidc", get(user_login::begin))
        .route(CALLBACK_PATH, get(user_login::finish))
        .route("/dashboard/logout", post(login::log_out))
        .route("/dashboard/session", get(login::show))
        .route("/portal", get(login::portal))
        .route("/confirm/{token}", get(confirm::ask).post(confirm::confirm))
        .route("/unsubscribe/{token}", get(unsubscribe::ask).post(unsubscribe::unsubscribe))
        .route("/unsubscribe/{token}/undo", post(unsubscribe::undo))
        .route("/dashboard/assets/{*file}", get(assets::serve))
        .route("/dashboard/live", get(live::listen))
        // A live page would repeat the search.
        .route("/dashboard/search", get(search::home))
        .route("/dashboard/t/{tenant}/search", get(search::page))
        .route("/dashboard/t/{tenant}/search/payloads", get(search::payloads))
        // Downloads are not live pages.
        .route("/dashboard/t/{tenant}/deliveries/export", get(deliveries::export))
        .route("/dashboard/t/{tenant}/deliveries/{id}/curl", get(deliveries::as_curl))
        .route("/dashboard/t/{tenant}/dead/export", get(deliveries::export_dead))
        .route("/dashboard/t/{tenant}/events/export", get(events::export))
        .route("/dashboard/t/{tenant}/events/{id}/payload", get(events::payload))
        .route("/dashboard/{*rest}", get(not_found_page))
        .layer(axum::Extension(live))
        .layer(middleware::from_fn_with_state(app.clone(), zone::in_browser_zone))
        .with_state(app);
    pages.merge(other_routes)
}

/// Redirects a logged-in viewer to the overview of its tenant.
async fn home(viewer: Viewer) -> Redirect {
    Redirect::to(&home_url(&viewer.by))
}

async fn not_found_page(_: Viewer, uri: Uri) -> PageError {
    PageError::not_found(uri.path())
}

/// A rendered page, or an error.
type PageResult = Result<Html, PageError>;
