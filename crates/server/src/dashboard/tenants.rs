//! Tenant pages: the list, which is also used to switch tenants, and a tenant's page.

use askama::Template;
use axum::extract::State;
use redrive_core::{
    TenantId, Time,
    statistics::tenant_health::{TenantHealth, TenantSort, TenantStatus},
    tenancy::TenantRules,
};
use redrive_store::Tenant;

use super::{
    PageResult, format,
    page::{FormQuery, Html, PageContext},
    viewer::{AdminViewer, AllTenantsViewer},
};
use crate::{
    api::{AppState, TenantsQuery, named},
    app::{
        Capability, across_tenants::TenantOrder, confirmations::AddressStatus, portal,
        tenants::TenantWithHealth,
    },
};

/// Rows on one page.
const PAGE_SIZE: u32 = 50;

#[derive(Template)]
#[template(path = "tenants.html")]
struct ListPage {
    layout: PageContext,
    query: FormQuery<TenantsQuery>,
    order: TenantOrder,
    rows: Vec<TenantWithHealth>,
    next: Option<String>,
    counted_at: Time,
}

impl ListPage {
    /// Formats the limits of a tenant.
    fn limits(&self, tenant: &Tenant) -> String {
        limits(&tenant.rules)
    }

    /// Formats the success rate of a tenant.
    fn rate(&self, health: &TenantHealth) -> String {
        health.success_rate().map_or_else(|| "–".to_owned(), format::percent)
    }

    /// Returns the sortable columns.
    fn columns(&self) -> Vec<Column> {
        let column = |sort: TenantSort, title, numeric| {
            let default = sort.is_descending_by_default();
            let is_current = self.order.sort.unwrap_or(TenantSort::Id) == sort;
            let descending = self.order.descending.unwrap_or(default);
            // A second click reverses the order.
            let order = if is_current && descending == default { !default } else { default };
            let order = (order != default).then(|| order_name(order));
            let link = self.query.sorted_by(sort.name(), order);
            let state = match (is_current, descending) {
                (false, _) => "none",
                (true, true) => "descending",
                (true, false) => "ascending",
            };
            Column { title, numeric, link, state }
        };
        vec![
            column(TenantSort::Id, "Tenant", false),
            column(TenantSort::Name, "Name", false),
            column(TenantSort::Status, "Status", false),
            column(TenantSort::Deliveries, "Deliveries, last hour", true),
            column(TenantSort::SuccessRate, "Success rate", true),
            column(TenantSort::Backlog, "Backlog", true),
            column(TenantSort::OpenCircuits, "Open circuits", true),
            column(TenantSort::DeadLetters, "Dead letters", true),
        ]
    }
}

/// A sortable column.
struct Column {
    title: &'static str,
    numeric: bool,
    /// Link to the list sorted by this column.
    link: String,
    /// Value of `aria-sort`.
    state: &'static str,
}

fn order_name(descending: bool) -> &'static str {
    if descending { "desc" } else { "asc" }
}

/// Returns the color of a tenant's status.
pub(super) fn status_tone(health: &TenantHealth) -> &'static str {
    match health.status() {
        TenantStatus::Failing => "bad",
        TenantStatus::Degraded => "waiting",
        TenantStatus::Healthy => "good",
        TenantStatus::Idle => "off",
    }
}

/// Renders the list.
pub(super) async fn list(
    State(app): State<AppState>,
    viewer: AllTenantsViewer,
    query: FormQuery<TenantsQuery>,
) -> PageResult {
    let paging = query.query.paging().or_limit(PAGE_SIZE);
    let mut order = query.query.order()?;
    order.prefix = order.prefix.map(|prefix| prefix.trim().to_owned());
    let all = viewer.actor().require_all_tenants()?;
    let (tenants, counted_at) = app.list_tenants_with_health(all, &order, paging.request()?).await?;
    let page = paging.page(tenants, |row| row.tenant.id.clone(), |row| row);
    let next = page.next_cursor.map(|cursor| query.with("cursor", &cursor));
    let layout = viewer.layout("tenants");
    Html::render(&ListPage { layout, query, order, rows: page.data, next, counted_at })
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

    /// Returns the metadata as a JSON object; empty if there is none.
    fn metadata(&self) -> String {
        match self.tenant.metadata.is_empty() {
            true => String::new(),
            false => serde_json::to_string(&self.tenant.metadata).unwrap_or_default(),
        }
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
