//! Overview of all tenants: traffic, backlog, circuits, dead letters, and the worst tenants and endpoints.

use std::{collections::HashMap, sync::Arc};

use redrive_core::{
    TenantId,
    statistics::{
        tenant_health::{TenantHealth, TenantSort, TenantStatus},
        traffic::Range,
    },
};

use super::{AllTenants, AllTenantsHealth, TenantOrder, TenantSummary};
use crate::app::{App, AppError, overview::WorstWebhook, traffic::TrafficChart};

/// Maximum number of worst tenants and of worst webhooks returned.
const MAX_WORST: usize = 10;

/// A tenant that needs attention.
pub type WorstTenant = TenantSummary;

/// A webhook with many failures, and its tenant.
#[derive(Clone, Debug)]
pub struct WorstWebhookOfAll {
    /// The tenant.
    pub tenant_id: TenantId,
    /// The webhook with its results.
    pub worst: WorstWebhook,
}

/// Overview of all tenants.
#[derive(Clone, Debug)]
pub struct OverviewOfAll {
    /// Traffic of all tenants together.
    pub traffic: TrafficChart,
    /// Sums over all tenants.
    pub total: TenantHealth,
    /// Number of tenants by status, the worst first.
    pub by_status: [(TenantStatus, usize); TenantStatus::ALL.len()],
    /// Failing and degraded tenants, the worst first.
    pub worst_tenants: Vec<WorstTenant>,
    /// Webhooks with the most failures in the last hour.
    pub worst_webhooks: Vec<WorstWebhookOfAll>,
    /// The counts that this overview is made of.
    pub health: Arc<AllTenantsHealth>,
}

impl App {
    /// Returns the overview of all tenants, with their traffic in this range.
    pub async fn overview_of_all(
        self: &Arc<Self>,
        all: AllTenants,
        range: Range,
    ) -> Result<OverviewOfAll, AppError> {
        let (traffic, health) =
            tokio::try_join!(self.traffic_of_all(all, range), self.health_of_all_tenants(all))?;
        let worst_webhooks = self.worst_webhooks_of_all(all, &health).await?;
        Ok(OverviewOfAll {
            traffic,
            total: total(&health),
            by_status: by_status(&health),
            worst_tenants: worst_tenants(&health),
            worst_webhooks,
            health,
        })
    }

    /// Returns the traffic of all tenants together.
    pub async fn traffic_of_all(&self, _: AllTenants, range: Range) -> Result<TrafficChart, AppError> {
        let now = self.engine.clock().now();
        let begin = range.axis(now).begin();
        let rollups = self.engine.traffic_of_all_tenants(range.resolution(), begin).await?;
        Ok(TrafficChart::new(range, now, rollups))
    }

    async fn worst_webhooks_of_all(
        &self,
        all: AllTenants,
        health: &AllTenantsHealth,
    ) -> Result<Vec<WorstWebhookOfAll>, AppError> {
        let worst = || health.worst_webhooks.iter().take(MAX_WORST);
        let tenants: HashMap<_, _> = worst().map(|(tenant_id, id, _)| (*id, tenant_id)).collect();
        let ids = worst().map(|(_, id, _)| *id).collect();
        let found = self.describe_worst(&all.into(), ids, self.engine.clock().now()).await?;
        let with_tenant = |worst: WorstWebhook| {
            let tenant_id = (*tenants.get(&worst.webhook.id)?).clone();
            Some(WorstWebhookOfAll { tenant_id, worst })
        };
        Ok(found.into_iter().filter_map(with_tenant).collect())
    }
}

fn total(health: &AllTenantsHealth) -> TenantHealth {
    let mut total = TenantHealth::default();
    for TenantSummary { health, .. } in health.tenants.values() {
        total.deliveries += health.deliveries;
        total.attempts += health.attempts;
        total.successes += health.successes;
        total.backlog += health.backlog;
        total.open_circuits += health.open_circuits;
        total.dead_letters += health.dead_letters;
    }
    total
}

fn by_status(health: &AllTenantsHealth) -> [(TenantStatus, usize); TenantStatus::ALL.len()] {
    let of = |status| health.tenants.values().filter(|one| one.health.status() == status).count();
    TenantStatus::ALL.map(|status| (status, of(status)))
}

/// Returns the tenants that need attention: by status, then by success rate.
fn worst_tenants(health: &AllTenantsHealth) -> Vec<WorstTenant> {
    let order = TenantOrder { sort: Some(TenantSort::SuccessRate), ..TenantOrder::default() };
    let mut worst = health.sorted(&order);
    worst.retain(|one| matches!(one.health.status(), TenantStatus::Failing | TenantStatus::Degraded));
    worst.sort_by_key(|one| one.health.status());
    worst.into_iter().take(MAX_WORST).cloned().collect()
}
