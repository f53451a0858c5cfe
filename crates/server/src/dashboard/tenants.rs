//! Tenant pages: the list, which is also used to switch tenants, and a tenant's page.

use askama::Template;
use axum::extract::State;
use redrive_core::{TenantId, tenancy::TenantRules};
use redrive_store::Tenant;

use super::{
    PageResult, format,
    page::{FormQuery, Html, PageContext},
    viewer::{AdminViewer, AllTenantsViewer},
};
use crate::{
    api::{AppState, TenantsQuery, named},
    app::{Capability, confirmations::AddressStatus, portal},
};

/// Rows on one page.
const PAGE_SIZE: u32 = 50;

#[derive(Template)]
#[template(path = "tenants.html")]
struct ListPage {
    layout: PageContext,
    query: FormQuery<TenantsQuery>,
    rows: Vec<Tenant>,
    next: Option<String>,
}

impl ListPage {
    /// Formats the limits of a tenant.
    fn limits(&self, tenant: &Tenant) -> String {
        limits(&tenant.rules)
    }
}

/// Renders the list.
pub(super) async fn list(
    State(app): State<AppState>,
    viewer: AllTenantsViewer,
    query: FormQuery<TenantsQuery>,
) -> PageResult {
    let paging = query.query.paging().or_limit(PAGE_SIZE);
    // Tenant names are lower case, so the search ignores case.
    let prefix = query.query.prefix.as_ref().map(|prefix| prefix.trim().to_lowercase());
    let tenants = app.list_tenants(prefix.as_deref(), paging.request()?).await?;
    let page = paging.page(tenants, |tenant| tenant.id.clone(), |tenant| tenant);
    let next = page.next_cursor.map(|cursor| query.with("cursor", &cursor));
    Html::render(&ListPage { layout: viewer.layout("tenants"), query, rows: page.data, next })
}

#[derive(Template)]
#[template(path = "tenant.html")]
struct OnePage {
    layout: PageContext,
    tenant: Tenant,
    /// Addresses that are not confirmed yet and receive no notifications.
    unconfirmed: Vec<String>,
}

impl OnePage {
    /// Returns the selectable lifetimes of a portal session, in seconds and as text.
    fn lengths(&self) -> [(u64, &'static str); 4] {
        let max = portal::MAX_TTL.as_secs();
        [
            (900, "15 minutes"),
            (portal::DEFAULT_TTL.as_secs(), "1 hour"),
            (8 * 3600, "8 hours"),
            (max, "1 day"),
        ]
    }

    /// Returns the selectable capabilities of a portal session, each with its text and whether it is on by default.
    fn capabilities(&self) -> [(Capability, &'static str, bool); 4] {
        let choice = |capability, text| (capability, text, Capability::DEFAULT.contains(&capability));
        [
            choice(Capability::ManageEndpoints, "manage endpoints"),
            choice(Capability::Resend, "resend and cancel"),
            choice(Capability::Secrets, "see and rotate signing secrets"),
            choice(Capability::Limits, "change limits and retries"),
        ]
    }

    fn is_default(&self) -> bool {
        self.tenant.id == TenantId::default()
    }
}

/// Renders a tenant's page.
pub(super) async fn one(State(app): State<AppState>, admin: AdminViewer) -> PageResult {
    let tenant_id = named(&app, admin.name()).await?;
    let tenant = app.tenant(tenant_id).await?;
    let emails = tenant.rules.notifications.emails.iter().map(String::as_str);
    let states = app.address_states(tenant.id.clone(), emails).await?;
    let unconfirmed = states.into_iter().filter(|state| state.status == AddressStatus::Unconfirmed);
    let unconfirmed = unconfirmed.map(|state| state.address).collect();
    Html::render(&OnePage { layout: admin.layout_for(&tenant.id, "tenants"), tenant, unconfirmed })
}

#[derive(Template)]
#[template(path = "tenant_new.html")]
struct NewPage {
    layout: PageContext,
    rules: TenantRules,
}

/// Renders the form for a new tenant.
pub(super) async fn new(admin: AdminViewer) -> PageResult {
    Html::render(&NewPage { layout: admin.layout("tenants"), rules: TenantRules::default() })
}

fn limits(rules: &TenantRules) -> String {
    let number = |n: u32| format::number(u64::from(n));
    let rate = rules.rate_limit.map(|rate| format!("{} requests/min", number(rate.requests_per_minute)));
    let concurrency = rules.max_in_flight.map(|max| format!("{} concurrent", number(max)));
    let webhooks = rules.quotas.max_webhooks.map(|max| format!("{} webhooks", number(max)));
    let events = rules.quotas.max_events_per_day.map(|max| format!("{} events/day", number(max)));
    let all: Vec<_> = [rate, concurrency, webhooks, events].into_iter().flatten().collect();
    if all.is_empty() { "–".to_owned() } else { all.join(" · ") }
}

#[cfg(test)]
mod tests {
    use redrive_core::{protection::limiter::RateLimit, tenancy::TenantQuotas};

    use super::*;

    #[test]
    fn limits_are_formatted_briefly() {
        assert_eq!(limits(&TenantRules::default()), "–");
        let quotas = TenantQuotas { max_events_per_day: Some(10_000), ..TenantQuotas::default() };
        let rate_limit = Some(RateLimit::per_minute(600));
        let rules = TenantRules { rate_limit, quotas, ..TenantRules::default() };
        assert_eq!(limits(&rules), "600 requests/min · 10,000 events/day");
    }
}
