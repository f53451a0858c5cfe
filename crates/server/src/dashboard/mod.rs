//! The dashboard: pages for people, rendered here, over the same use cases as the API.
//!
//! Pages only show. Whatever they change, their scripts change through the API, with the session's cookie and token.
//! One file per room; what all of them share is in `viewer`, `page`, `words` and `live`.

mod assets;
mod audit;
mod deliveries;
mod event_types;
mod first_run;
mod json;
mod keys;
mod live;
mod login;
mod overview;
mod page;
mod publish;
mod settings;
mod tenants;
mod viewer;
mod words;

use axum::{
    Router,
    http::Uri,
    response::Redirect,
    routing::{get, post},
};

use self::{
    live::Live,
    page::{Failed, Html},
    viewer::{Viewer, home_of},
};
use crate::api::AppState;

/// All pages.
pub fn router(app: AppState) -> Router {
    let pages = Router::new()
        .route("/dashboard/t/{tenant}", get(overview::page))
        .route("/dashboard/t/{tenant}/deliveries", get(deliveries::list))
        .route("/dashboard/t/{tenant}/event-types", get(event_types::list))
        .route("/dashboard/t/{tenant}/event-types/{id}", get(event_types::one))
        .route("/dashboard/t/{tenant}/event-types/{id}/edit", get(event_types::edit))
        .route("/dashboard/t/{tenant}/new-event-type", get(event_types::new))
        .route("/dashboard/t/{tenant}/publish", get(publish::page))
        .route("/dashboard/admin/tenants", get(tenants::list))
        .route("/dashboard/admin/tenants/{id}", get(tenants::one))
        .route("/dashboard/admin/new-tenant", get(tenants::new))
        .route("/dashboard/admin/keys", get(keys::list))
        .route("/dashboard/admin/audit", get(audit::list))
        .route("/dashboard/admin/settings", get(settings::page))
        .with_state(app.clone());
    let live = Live::new(pages.clone());
    let around = Router::new()
        .route("/", get(async || Redirect::to("/dashboard")))
        .route("/dashboard", get(home))
        .route("/dashboard/login", get(login::page).post(login::log_in))
        .route("/dashboard/logout", post(login::log_out))
        .route("/portal", get(login::portal))
        .route("/dashboard/assets/{*file}", get(assets::serve))
        .route("/dashboard/live", get(live::listen))
        .route("/dashboard/{*rest}", get(nothing_here))
        .layer(axum::Extension(live))
        .with_state(app);
    pages.merge(around)
}

/// Where somebody who is logged in begins.
async fn home(viewer: Viewer) -> Redirect {
    Redirect::to(&home_of(&viewer.by))
}

async fn nothing_here(_: Viewer, uri: Uri) -> Failed {
    Failed::nothing_at(uri.path())
}

/// A page, or why there is none.
type Shown = Result<Html, Failed>;
