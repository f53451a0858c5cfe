//! Tenants: the listing, which is also the way from one to another, and the page of one of them.

use askama::Template;
use axum::extract::State;
use redrive_core::{TenantId, tenancy::TenantRules};
use redrive_store::Tenant;

use super::{
    Shown, format,
    page::{Asked, Frame, Html},
    viewer::Administering,
};
use crate::{
    api::{AppState, TenantsQuery, named},
    app::{Capability, confirmations::AddressStatus, portal},
};

/// Rows on one page.
const ROWS: u32 = 50;

#[derive(Template)]
#[template(path = "tenants.html")]
struct ListPage {
    frame: Frame,
    asked: Asked<TenantsQuery>,
    rows: Vec<Tenant>,
    next: Option<String>,
}

impl ListPage {
    /// What a tenant may, in a few words.
    fn limits(&self, tenant: &Tenant) -> String {
        limits(&tenant.rules)
    }
}

/// The listing.
pub(super) async fn list(
    State(app): State<AppState>,
    admin: Administering,
    asked: Asked<TenantsQuery>,
) -> Shown {
    let paging = asked.query.paging().or_limit(ROWS);
    // Names have no capitals; whoever writes one means the name.
    let prefix = asked.query.prefix.as_ref().map(|prefix| prefix.trim().to_lowercase());
    let tenants = app.list_tenants(prefix.as_deref(), paging.request()?).await?;
    let page = paging.page(tenants, |tenant| tenant.id.clone(), |tenant| tenant);
    let next = page.next_cursor.map(|cursor| asked.with("cursor", &cursor));
    Html::of(&ListPage { frame: admin.frame("tenants"), asked, rows: page.data, next })
}

#[derive(Template)]
#[template(path = "tenant.html")]
struct OnePage {
    frame: Frame,
    tenant: Tenant,
    /// Addresses that receive nothing yet.
    unconfirmed: Vec<String>,
}

impl OnePage {
    /// How long a portal session may last, in seconds and in words.
    fn lengths(&self) -> [(u64, &'static str); 4] {
        let longest = portal::LONGEST.as_secs();
        [(900, "15 minutes"), (portal::USUAL.as_secs(), "1 hour"), (8 * 3600, "8 hours"), (longest, "1 day")]
    }

    /// What a portal session may be allowed, in words, and whether it is unless unticked.
    fn capabilities(&self) -> [(Capability, &'static str, bool); 4] {
        let choice = |capability, text| (capability, text, Capability::DEFAULT.contains(&capability));
        [
            choice(Capability::ManageEndpoints, "manage endpoints"),
            choice(Capability::Resend, "send again and cancel"),
            choice(Capability::Secrets, "see and rotate signing secrets"),
            choice(Capability::Limits, "change limits and retries"),
        ]
    }

    fn is_always_there(&self) -> bool {
        self.tenant.id == TenantId::default()
    }
}

/// One of them.
pub(super) async fn one(State(app): State<AppState>, admin: Administering) -> Shown {
    let tenant = named(&app, admin.name()).await?;
    let tenant = app.tenant(tenant).await?;
    let emails = tenant.rules.notifications.emails.iter().map(String::as_str);
    let states = app.address_states(tenant.id.clone(), emails).await?;
    let unconfirmed = states.into_iter().filter(|state| state.status == AddressStatus::Unconfirmed);
    let unconfirmed = unconfirmed.map(|state| state.address).collect();
    Html::of(&OnePage { frame: admin.frame_of(&tenant.id, "tenants"), tenant, unconfirmed })
}

#[derive(Template)]
#[template(path = "tenant_new.html")]
struct NewPage {
    frame: Frame,
    rules: TenantRules,
}

/// The form for a new one.
pub(super) async fn new(admin: Administering) -> Shown {
    Html::of(&NewPage { frame: admin.frame("tenants"), rules: TenantRules::default() })
}

fn limits(rules: &TenantRules) -> String {
    let number = |n: u32| format::number(u64::from(n));
    let rate = rules.rate_limit.map(|rate| format!("{} requests/min", number(rate.requests_per_minute)));
    let at_once = rules.max_in_flight.map(|most| format!("{} at once", number(most)));
    let webhooks = rules.quotas.max_webhooks.map(|most| format!("{} webhooks", number(most)));
    let events = rules.quotas.max_events_per_day.map(|most| format!("{} events/day", number(most)));
    let all: Vec<_> = [rate, at_once, webhooks, events].into_iter().flatten().collect();
    if all.is_empty() { "–".to_owned() } else { all.join(" · ") }
}

#[cfg(test)]
mod tests {
    use redrive_core::{protection::limiter::RateLimit, tenancy::TenantQuotas};

    use super::*;

    #[test]
    fn limits_are_told_in_a_few_words() {
        assert_eq!(limits(&TenantRules::default()), "–");
        let quotas = TenantQuotas { max_events_per_day: Some(10_000), ..TenantQuotas::default() };
        let rate_limit = Some(RateLimit::per_minute(600));
        let rules = TenantRules { rate_limit, quotas, ..TenantRules::default() };
        assert_eq!(limits(&rules), "600 requests/min · 10,000 events/day");
    }
}
