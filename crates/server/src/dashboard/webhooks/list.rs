//! The listing of webhooks: searched and filtered over a bounded number of them.

use std::collections::HashSet;

use askama::Template;
use axum::extract::State;
use redrive_core::{
    TenantId, WebhookId,
    protection::breaker::CircuitState,
    webhook::{Webhook, WebhookState},
};
use redrive_store::PageRequest;
use serde::Deserialize;

use super::status_text;
use crate::{
    api::{AppState, Paging},
    app::{AppError, TenantView, webhook_summary::Glance},
    dashboard::{
        Shown, format, overview,
        page::{Asked, Frame, Html},
        viewer::Looking,
    },
};

/// Rows on one page.
const ROWS: usize = 25;
/// The most webhooks that one page looks at to find them.
const LOOKED_AT: usize = 1_000;
/// How many are read at once while searching.
const STRIDE: u32 = 250;

/// What is looked for.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ListQuery {
    /// A part of the URL, the description, the id or an event type.
    q: Option<String>,
    /// Only in this state.
    state: Option<StateName>,
    /// Only with a circuit in this state.
    circuit: Option<CircuitState>,
    cursor: Option<String>,
}

/// The states that a webhook can be looked for by.
#[derive(Clone, Copy, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
enum StateName {
    Active,
    Paused,
    PendingVerification,
    Disabled,
}

impl StateName {
    fn is(self, state: &WebhookState) -> bool {
        match state {
            WebhookState::Active => self == Self::Active,
            WebhookState::Paused => self == Self::Paused,
            WebhookState::PendingVerification(_) => self == Self::PendingVerification,
            WebhookState::Disabled(_) => self == Self::Disabled,
            WebhookState::Deleted => false,
        }
    }
}

impl ListQuery {
    fn is_search(&self) -> bool {
        self.q.is_some() || self.state.is_some() || self.circuit.is_some()
    }

    /// Whether a webhook is looked for, as far as it says itself.
    fn wants(&self, webhook: &Webhook) -> bool {
        self.state.is_none_or(|state| state.is(&webhook.state))
            && self.q.as_deref().is_none_or(|text| has(webhook, text.trim()))
    }
}

/// Whether a text is found in what people know a webhook by; or it is an event type that the webhook wants.
fn has(webhook: &Webhook, text: &str) -> bool {
    let spec = &webhook.spec;
    let lower = text.to_lowercase();
    let found = |there: &str| there.to_lowercase().contains(&lower);
    found(&spec.url)
        || spec.description.as_deref().is_some_and(found)
        || found(&webhook.id.to_string())
        || spec.events.iter().any(|pattern| found(&pattern.to_string()))
        || text.contains('.') && spec.events.iter().any(|pattern| pattern.matches(text))
}

/// What a page has found.
struct Found {
    rows: Vec<Webhook>,
    /// Where the next page goes on.
    next: Option<WebhookId>,
    /// Whether it stopped before it knew whether there are more.
    stopped: bool,
}

async fn find(app: &AppState, tenant: &TenantView, query: &ListQuery) -> Result<Found, crate::api::Problem> {
    let cursor = Paging { cursor: query.cursor.clone(), ..Paging::default() };
    let mut after = cursor.request::<WebhookId>()?.after;
    let limit = if query.is_search() { STRIDE } else { ROWS as u32 + 1 };
    let (mut rows, mut looked_at) = (Vec::with_capacity(ROWS), 0);
    loop {
        let page = app.list_webhooks(tenant.clone(), PageRequest { after, offset: 0, limit }).await?;
        let is_last = page.len() < limit as usize;
        looked_at += page.len();
        let with_circuit = with_circuit(app, tenant, query.circuit, &page).await?;
        for webhook in page {
            after = Some(webhook.id);
            if !query.wants(&webhook) || with_circuit.as_ref().is_some_and(|ids| !ids.contains(&webhook.id)) {
                continue;
            }
            if rows.len() == ROWS {
                let next = rows.last().map(|row: &Webhook| row.id);
                return Ok(Found { rows, next, stopped: false });
            }
            rows.push(webhook);
        }
        match () {
            () if is_last => return Ok(Found { rows, next: None, stopped: false }),
            () if looked_at >= LOOKED_AT => return Ok(Found { rows, next: after, stopped: true }),
            () => {}
        }
    }
}

/// Those of the webhooks whose circuit is in this state; none if any state will do.
async fn with_circuit(
    app: &AppState,
    tenant: &TenantId,
    wanted: Option<CircuitState>,
    webhooks: &[Webhook],
) -> Result<Option<HashSet<WebhookId>>, AppError> {
    let Some(wanted) = wanted else { return Ok(None) };
    let ids: Vec<_> = webhooks.iter().map(|webhook| webhook.id).collect();
    let states = app.circuit_states(tenant, &ids).await?;
    Ok(Some(states.into_iter().filter(|(_, state)| *state == wanted).map(|(id, _)| id).collect()))
}

#[derive(Template)]
#[template(path = "webhooks.html")]
struct ListPage {
    frame: Frame,
    asked: Asked<ListQuery>,
    rows: Vec<(Webhook, Glance)>,
    next: Option<String>,
    stopped: bool,
}

/// The listing.
pub(in crate::dashboard) async fn list(
    State(app): State<AppState>,
    looking: Looking,
    asked: Asked<ListQuery>,
) -> Shown {
    let found = find(&app, &looking.tenant, &asked.query).await?;
    let glances = app.glance(&looking.tenant, &found.rows).await?;
    let next = found.next.map(|id| asked.with("cursor", &id.to_string()));
    Html::of(&ListPage {
        frame: looking.frame("webhooks"),
        rows: found.rows.into_iter().zip(glances).collect(),
        next,
        stopped: found.stopped,
        asked,
    })
}

#[cfg(test)]
mod tests {
    use redrive_core::{Time, event::event_type::Pattern, webhook::WebhookSpec};

    use super::*;

    fn webhook() -> Webhook {
        Webhook {
            id: WebhookId::new(Time::from_secs(1), &[7; 10]),
            tenant: redrive_core::TenantId::default(),
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
    fn a_webhook_is_found_by_whatever_people_know_it_by() {
        let webhook = webhook();
        let id = webhook.id.to_string();
        for text in
            ["shop.EXAMPLE", "orders to", "GRÖSSE", "größe", "order.created", "order.*", &id, &id[..12]]
        {
            assert_eq!(has(&webhook, text), text != "GRÖSSE", "{text}");
        }
        for text in ["invoice.paid", "ordered", "wh_9"] {
            assert!(!has(&webhook, text), "{text}");
        }
    }

    #[test]
    fn a_state_is_looked_for_by_name() {
        let wants = |query: &str| serde_json::from_str::<ListQuery>(query).unwrap().wants(&webhook());
        assert!(
            wants("{}") && wants(r#"{"state": "paused"}"#) && wants(r#"{"state": "paused", "q": " shop "}"#)
        );
        assert!(!wants(r#"{"state": "active"}"#) && !wants(r#"{"state": "paused", "q": "bank"}"#));
        assert!(serde_json::from_str::<ListQuery>(r#"{"state": "gone"}"#).is_err());
    }
}
