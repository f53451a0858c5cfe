//! List of webhooks. A search scans a bounded number of them per page.

use askama::Template;
use axum::extract::State;
use redrive_core::{
    WebhookId,
    protection::breaker::CircuitState,
    webhook::{Webhook, status::WebhookStatus},
};
use redrive_store::PageRequest;
use serde::Deserialize;

use super::{name_of, status_badge};
use crate::{
    api::{AppState, Paging},
    app::{
        TenantSelection,
        webhook_summary::{WebhookSummary, with_summaries},
    },
    dashboard::{
        PageResult, format, overview,
        page::{FormQuery, Html, PageContext, PageQuery},
        viewer::TenantViewer,
    },
};

/// Rows on one page.
const PAGE_SIZE: usize = 25;
/// Maximum number of webhooks that a search scans per page.
const MAX_SCANNED: usize = 1_000;
/// Number of webhooks read per query while searching.
const SCAN_PAGE_SIZE: u32 = 250;

/// Query of the list.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ListQuery {
    /// Part of the URL, the description, the id or an event type.
    q: Option<String>,
    /// Status of the webhook.
    status: Option<WebhookStatus>,
    /// State of the circuit.
    circuit: Option<CircuitState>,
    cursor: Option<String>,
    /// Tenant, on the page of all tenants.
    tenant_id: Option<String>,
}

impl PageQuery for ListQuery {}

impl ListQuery {
    fn is_search(&self) -> bool {
        self.q.is_some() || self.status.is_some() || self.circuit.is_some()
    }

    /// Returns whether a webhook contains the text that is searched for.
    fn matches(&self, webhook: &Webhook) -> bool {
        self.q.as_deref().is_none_or(|text| contains_text(webhook, text.trim()))
    }
}

/// Returns whether the URL, description, id or a pattern contains the text, or a pattern matches it as event type.
fn contains_text(webhook: &Webhook, text: &str) -> bool {
    let spec = &webhook.spec;
    let lower = text.to_lowercase();
    let found = |value: &str| value.to_lowercase().contains(&lower);
    found(&spec.url)
        || spec.description.as_deref().is_some_and(found)
        || found(&webhook.id.to_string())
        || spec.events.iter().any(|pattern| found(&pattern.to_string()))
        || text.contains('.') && spec.events.iter().any(|pattern| pattern.matches(text))
}

/// Result of a search.
pub(in crate::dashboard) struct Found {
    pub(in crate::dashboard) rows: Vec<Webhook>,
    /// Cursor of the next page.
    pub(in crate::dashboard) next: Option<WebhookId>,
    /// Whether the scan limit was reached, so that there may be more.
    pub(in crate::dashboard) stopped: bool,
}

/// Finds the webhooks of one page of a list, of one tenant or of all.
pub(in crate::dashboard) async fn find_webhooks(
    app: &AppState,
    tenants: &TenantSelection,
    query: &ListQuery,
) -> Result<Found, crate::problem::Problem> {
    let cursor = Paging { cursor: query.cursor.clone(), ..Paging::default() };
    let mut after = cursor.request::<WebhookId>()?.after;
    let limit = if query.is_search() { SCAN_PAGE_SIZE } else { PAGE_SIZE as u32 + 1 };
    let (mut rows, mut scanned) = (Vec::with_capacity(PAGE_SIZE), 0);
    loop {
        let page = app.list_webhooks(tenants.clone(), PageRequest { after, offset: 0, limit }).await?;
        let is_last = page.len() < limit as usize;
        scanned += page.len();
        let last = page.last().map(|webhook| webhook.id);
        let mut matching: Vec<_> = page.into_iter().filter(|webhook| query.matches(webhook)).collect();
        if let Some(wanted) = query.circuit {
            let ids: Vec<_> = matching.iter().map(|webhook| webhook.id).collect();
            let states = app.circuit_states(tenants, &ids).await?;
            matching.retain(|webhook| states.get(&webhook.id) == Some(&wanted));
        }
        if query.status.is_some() {
            let facts = app.webhook_facts_of(tenants, &matching, query.status).await?;
            matching.retain(|webhook| facts.contains_key(&webhook.id));
        }
        for webhook in matching {
            if rows.len() == PAGE_SIZE {
                let next = rows.last().map(|row: &Webhook| row.id);
                return Ok(Found { rows, next, stopped: false });
            }
            rows.push(webhook);
        }
        after = last.or(after);
        match () {
            () if is_last => return Ok(Found { rows, next: None, stopped: false }),
            () if scanned >= MAX_SCANNED => return Ok(Found { rows, next: after, stopped: true }),
            () => {}
        }
    }
}

#[derive(Template)]
#[template(path = "webhooks.html")]
struct ListPage {
    layout: PageContext,
    query: FormQuery<ListQuery>,
    rows: Vec<(Webhook, WebhookSummary)>,
    next: Option<String>,
    stopped: bool,
}

/// Renders the list.
pub(in crate::dashboard) async fn list(
    State(app): State<AppState>,
    viewer: TenantViewer,
    query: FormQuery<ListQuery>,
) -> PageResult {
    let found = find_webhooks(&app, &TenantSelection::from(&viewer.tenant), &query.query).await?;
    let summaries = app.summaries(&viewer.tenant, &found.rows).await?;
    let next = found.next.map(|id| query.with("cursor", &id.to_string()));
    Html::render(&ListPage {
        layout: viewer.layout("webhooks"),
        rows: with_summaries(found.rows, summaries),
        next,
        stopped: found.stopped,
        query,
    })
}

#[cfg(test)]
mod tests {
    use redrive_core::{
        Time,
        event::event_type::Pattern,
        webhook::{WebhookSpec, WebhookState},
    };

    use super::*;

    fn webhook() -> Webhook {
        Webhook {
            id: WebhookId::new(Time::from_secs(1), &[7; 10]),
            tenant_id: redrive_core::TenantId::default(),
            spec: WebhookSpec {
                url: "https://Shop.example/hooks".into(),
                description: Some("Orders to the Größe shop".into()),
                events: vec![Pattern::parse("order.*").unwrap()],
                ..WebhookSpec::default()
            },
            secrets: Vec::new(),
            state: WebhookState::Paused,
            created_at: Time::default(),
            updated_at: Time::default(),
        }
    }

    #[test]
    fn search_matches_url_description_id_and_event_types() {
        let webhook = webhook();
        let id = webhook.id.to_string();
        for text in
            ["shop.EXAMPLE", "orders to", "GRÖSSE", "größe", "order.created", "order.*", &id, &id[..12]]
        {
            assert_eq!(contains_text(&webhook, text), text != "GRÖSSE", "{text}");
        }
        for text in ["invoice.paid", "ordered", "wh_9"] {
            assert!(!contains_text(&webhook, text), "{text}");
        }
    }

    #[test]
    fn query_has_a_status_and_a_text() {
        let query = |query: &str| serde_json::from_str::<ListQuery>(query);
        assert!(!query("{}").unwrap().is_search() && query("{}").unwrap().matches(&webhook()));
        let by_status = query(r#"{"status": "failing", "q": " shop "}"#).unwrap();
        assert_eq!((by_status.status, by_status.is_search()), (Some(WebhookStatus::Failing), true));
        assert!(by_status.matches(&webhook()) && !query(r#"{"q": "bank"}"#).unwrap().matches(&webhook()));
        assert!(query(r#"{"status": "gone"}"#).is_err());
    }
}
