//! Overview of all tenants.

use askama::Template;
use axum::extract::State;
use redrive_core::statistics::tenant_health::TenantHealth;

use crate::{
    api::AppState,
    app::{across_tenants::OverviewOfAll, traffic::TrafficChart},
    dashboard::{
        PageResult, format,
        overview::{self, ChartCard, OverviewQuery, TrafficPage, charts},
        page::{FormQuery, Html, PageContext},
        tenants::status_tone,
        viewer::AllTenantsViewer,
    },
};

#[derive(Template)]
#[template(path = "all_overview.html")]
struct OverviewPage {
    layout: PageContext,
    query: FormQuery<OverviewQuery>,
    overview: OverviewOfAll,
    charts: [ChartCard; 3],
}

impl TrafficPage for OverviewPage {
    fn traffic(&self) -> &TrafficChart {
        &self.overview.traffic
    }
}

impl OverviewPage {
    /// Formats the success rate of a tenant.
    fn rate(&self, health: &TenantHealth) -> String {
        health.success_rate().map_or_else(|| "–".to_owned(), format::percent)
    }
}

/// Renders the page.
pub(in crate::dashboard) async fn page(
    State(app): State<AppState>,
    viewer: AllTenantsViewer,
    query: FormQuery<OverviewQuery>,
) -> PageResult {
    let all = viewer.actor().require_all_tenants()?;
    let overview = app.overview_of_all(all, query.query.range()).await?;
    let charts = charts(&overview.traffic);
    Html::render(&OverviewPage { layout: viewer.layout("all"), query, overview, charts })
}
