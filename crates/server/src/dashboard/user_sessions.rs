//! Sessions of users of the identity provider, for admins, who end one of them or all of a user.

use askama::Template;
use axum::extract::State;

use super::{
    PageResult, format,
    page::{FormQuery, Html, PageContext},
    viewer::AdminViewer,
};
use crate::{
    api::{AppState, Paging, session_id},
    app::user_sessions::UserSession,
};

/// Rows on one page.
const PAGE_SIZE: u32 = 50;

#[derive(Template)]
#[template(path = "user_sessions.html")]
struct SessionsPage {
    layout: PageContext,
    query: FormQuery<Paging>,
    rows: Vec<UserSession>,
    next: Option<String>,
    /// Whether users can log in at all.
    has_provider: bool,
}

impl SessionsPage {
    fn id(&self, row: &UserSession) -> String {
        session_id(&row.stored.id)
    }

    /// Returns the API path that ends all sessions of a user.
    fn all_of(&self, row: &UserSession) -> String {
        let subject: String = url::form_urlencoded::byte_serialize(row.user.subject.as_bytes()).collect();
        // In a path, a plus sign is itself.
        format!("/v1/users/{}/sessions", subject.replace('+', "%20"))
    }
}

/// Renders the list.
pub(super) async fn list(
    State(app): State<AppState>,
    admin: AdminViewer,
    query: FormQuery<Paging>,
) -> PageResult {
    let paging = query.query.clone().or_limit(PAGE_SIZE);
    let sessions = app.list_user_sessions(paging.request()?).await?;
    let page = paging.page(sessions, |one| one.stored.cursor(), |one| one);
    let next = page.next_cursor.map(|cursor| query.with("cursor", &cursor));
    Html::render(&SessionsPage {
        layout: admin.layout("user-sessions"),
        query,
        rows: page.data,
        next,
        has_provider: app.identity_provider().is_some(),
    })
}
