//! The overview of a tenant: where everybody begins.

use askama::Template;
use axum::extract::State;

use super::{
    Shown,
    first_run::FirstRun,
    page::{Frame, Html},
    viewer::Looking,
    words,
};
use crate::api::AppState;

#[derive(Template)]
#[template(path = "overview.html")]
struct OverviewPage {
    frame: Frame,
    first_run: Option<FirstRun>,
}

/// The overview.
pub(super) async fn page(State(app): State<AppState>, looking: Looking) -> Shown {
    let first_run = FirstRun::of(&app, &looking.tenant).await?;
    Html::of(&OverviewPage { frame: looking.frame("overview"), first_run })
}
