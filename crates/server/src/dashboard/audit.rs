//! The audit log: who changed what, when and from where, and what differed afterwards.

use askama::Template;
use axum::extract::State;
use redrive_store::AuditEntry;

use super::{
    Shown, format,
    json::{Differences, differences},
    page::{Asked, Frame, Html},
    viewer::Administering,
};
use crate::api::{AppState, AuditQuery};

/// Rows on one page.
const ROWS: u32 = 25;
/// What can be looked for by its beginning.
const KINDS: [(&str, &str); 9] = [
    ("webhook.", "webhooks"),
    ("event_type.", "event types"),
    ("delivery.", "deliveries"),
    ("event.", "events"),
    ("operation.", "bulk operations"),
    ("tenant.", "tenants"),
    ("api_key.", "API keys"),
    ("portal_session.", "portal sessions"),
    ("master_key.", "the master key"),
];

/// An entry as it is shown.
struct Row {
    entry: AuditEntry,
    differences: Differences,
}

impl Row {
    /// How it ended, with its colour.
    fn result(&self) -> (&'static str, &str) {
        match &self.entry.end {
            Some(end) if end.result == "done" => ("good", "done"),
            Some(_) => ("bad", "refused"),
            None => ("waiting", "not known"),
        }
    }

    /// Why not, if it was not done.
    fn why_not(&self) -> Option<&str> {
        match &self.entry.end {
            Some(end) => Some(end.result.as_str()).filter(|result| *result != "done"),
            None => Some("the server was stopped before it could note how it ended, or it is under way"),
        }
    }
}

impl From<AuditEntry> for Row {
    fn from(entry: AuditEntry) -> Self {
        let (before, after) = match &entry.end {
            Some(end) => (end.before.as_deref(), end.after.as_deref()),
            None => (None, None),
        };
        Self { differences: differences(before, after), entry }
    }
}

#[derive(Template)]
#[template(path = "audit.html")]
struct AuditPage {
    frame: Frame,
    asked: Asked<AuditQuery>,
    rows: Vec<Row>,
    next: Option<String>,
}

impl AuditPage {
    /// Whether an action that was asked for is none of the kinds.
    fn is_special(&self, action: &str) -> bool {
        !action.is_empty() && KINDS.iter().all(|(known, _)| *known != action)
    }
}

/// The log.
pub(super) async fn list(
    State(app): State<AppState>,
    admin: Administering,
    asked: Asked<AuditQuery>,
) -> Shown {
    let paging = asked.query.paging().or_limit(ROWS);
    let filter = asked.query.filter(&app).await?;
    let entries = app.list_audit(filter, paging.request()?).await?;
    let page = paging.page(entries, |entry| entry.id, Row::from);
    let next = page.next_cursor.map(|cursor| asked.with("cursor", &cursor));
    Html::of(&AuditPage { frame: admin.frame("audit"), asked, rows: page.data, next })
}
