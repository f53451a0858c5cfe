//! Overview of all tenants.

use askama::Template;
use axum::extract::State;
use redrive_core::statistics::{tenant_health::TenantHealth, traffic::Range};

use crate::{
    api::AppState,
    app::across_tenants::OverviewOfAll,
    dashboard::{
        PageResult, format,
        overview::{self, ChartCard, OverviewQuery, charts, rate_tone},
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

impl OverviewPage {
    /// Returns the selectable ranges, each with whether it is the current one.
    fn ranges(&self) -> Vec<(&'static str, bool)> {
        Range::ALL.iter().map(|range| (range.name(), *range == self.overview.traffic.range)).collect()
    }

    /// Returns a percentile of the attempts' duration.
    fn percentile(&self, percent: f64) -> String {
        let millis = self.overview.traffic.total.latencies.percentile(percent);
        millis.map_or_else(|| "–".to_owned(), format::millis)
    }

    fn success_rate(&self) -> String {
        self.overview.traffic.total.success_rate().map_or_else(|| "–".to_owned(), format::percent)
    }

    /// Returns the color of the success rate.
    fn success_tone(&self) -> &'static str {
        rate_tone(self.overview.traffic.total.success_rate())
    }

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
