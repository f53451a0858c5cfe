//! Audit log page: who changed what, when and from where, with the differences.

use askama::Template;
use axum::extract::State;
use redrive_store::AuditEntry;

use super::{
    PageResult, format,
    json::{Differences, differences},
    page::{FormQuery, Html, PageContext},
    viewer::AdminViewer,
};
use crate::api::{AppState, AuditQuery};

/// Rows on one page.
const PAGE_SIZE: u32 = 25;
/// Action prefixes that the filter offers, with their labels.
const OBJECT_KINDS: [(&str, &str); 10] = [
    ("webhook.", "webhooks"),
    ("event_type.", "event types"),
    ("delivery.", "deliveries"),
    ("event.", "events"),
    ("operation.", "bulk operations"),
    ("tenant.", "tenants"),
    ("api_key.", "API keys"),
    ("portal_session.", "portal sessions"),
    ("user.", "users"),
    ("master_key.", "the master key"),
];

/// An audit entry with its differences.
struct Row {
    entry: AuditEntry,
    differences: Differences,
}

impl Row {
    /// Returns the color and label of the entry's result.
    fn result(&self) -> (&'static str, &str) {
        match &self.entry.end {
            Some(end) if end.result == "done" => ("good", "done"),
            Some(_) => ("bad", "rejected"),
            None => ("waiting", "unknown"),
        }
    }

    /// Returns why the action failed, or why its result is unknown. Returns `None` if it succeeded.
    fn failure(&self) -> Option<&str> {
        match &self.entry.end {
            Some(end) => Some(end.result.as_str()).filter(|result| *result != "done"),
            None => Some("in progress, or the server stopped before it recorded the result"),
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
    layout: PageContext,
    query: FormQuery<AuditQuery>,
    rows: Vec<Row>,
    next: Option<String>,
}

impl AuditPage {
    /// Returns whether the requested action is not one of the offered prefixes.
    fn is_special(&self, action: &str) -> bool {
        !action.is_empty() && OBJECT_KINDS.iter().all(|(known, _)| *known != action)
    }
}

/// Renders the audit log.
pub(super) async fn list(
    State(app): State<AppState>,
    admin: AdminViewer,
    query: FormQuery<AuditQuery>,
) -> PageResult {
    let paging = query.query.paging().or_limit(PAGE_SIZE);
    let filter = query.query.filter(&app).await?;
    let entries = app.list_audit(filter, paging.request()?).await?;
    let page = paging.page(entries, |entry| entry.id, Row::from);
    let next = page.next_cursor.map(|cursor| query.with("cursor", &cursor));
    Html::render(&AuditPage { layout: admin.layout("audit"), query, rows: page.data, next })
}
