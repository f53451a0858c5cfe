//! The last health of all tenants, counted again in the background: a page gets what was counted, and its age.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use redrive_engine::{Service, ServiceKind, clock::monotonic_now};
use redrive_store::StoreError;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::{
    AllTenants,
    health::{AllTenantsHealth, TenantChange},
};
use crate::app::{App, AppError};

/// Minimum time between two passes that requests start, as a multiple of the duration of the last one.
const MIN_IDLE_FACTOR: u32 = 10;
/// Time that a request waits for a pass that it has started.
const REFRESH_WAIT: Duration = Duration::from_millis(10);
/// Time between two passes without requests.
const BACKGROUND_INTERVAL: Duration = Duration::from_secs(60);
/// Minimum time between two passes without requests, as a multiple of the duration of the last one.
const BACKGROUND_IDLE_FACTOR: u32 = 100;
/// Age after which counts are no longer shown, and requests wait for newer ones: passes have failed for long.
const MAX_AGE: Duration = Duration::from_secs(30 * 60);
/// Timeout of a pass.
const PASS_TIMEOUT: Duration = Duration::from_secs(60);

/// The last health of all tenants, and the lock that allows one pass at a time.
#[derive(Default)]
pub struct HealthCache {
    state: Mutex<CacheState>,
    turn: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct CacheState {
    last: Option<Arc<AllTenantsHealth>>,
    /// Changes made while a pass runs, which may have read the tenants before; `None` without a pass.
    changes: Option<Vec<TenantChange>>,
}

impl HealthCache {
    /// Applies a change of a tenant, so that the next request sees it.
    pub(in crate::app) fn apply(&self, change: TenantChange) {
        let state = &mut *self.state.lock();
        if let Some(changes) = &mut state.changes {
            changes.push(change.clone());
        }
        if let Some(last) = &mut state.last {
            Arc::make_mut(last).apply(change);
        }
    }

    fn last(&self) -> Option<Arc<AllTenantsHealth>> {
        self.state.lock().last.clone()
    }

    fn begin_pass(&self) {
        self.state.lock().changes = Some(Vec::new());
    }

    /// Stores the counts of a pass; a failed one leaves the last.
    fn end_pass(&self, counted: Option<AllTenantsHealth>) {
        let state = &mut *self.state.lock();
        let changes = state.changes.take().unwrap_or_default();
        if let Some(mut counted) = counted {
            changes.into_iter().for_each(|change| counted.apply(change));
            state.last = Some(Arc::new(counted));
        }
    }
}

impl App {
    /// Counts the health of all tenants in the background from now on, until the engine stops.
    pub fn start_tenant_health(self: &Arc<Self>) {
        let (app, stop) = (Arc::downgrade(self), self.engine.stop_token());
        self.engine.run_service(Service::new("tenant_health", ServiceKind::Auxiliary, move || {
            run_tenant_health(app.clone(), stop.clone())
        }));
    }

    /// Returns the health of all tenants: current if a pass is quick, otherwise as it was counted last. Waits only for the
    /// first pass of this node.
    pub async fn health_of_all_tenants(
        self: &Arc<Self>,
        _: AllTenants,
    ) -> Result<Arc<AllTenantsHealth>, AppError> {
        let last = self.tenant_health.last().filter(|last| age_of(last) < MAX_AGE);
        if let Some(last) = &last
            && age_of(last) < last.duration * MIN_IDLE_FACTOR
        {
            return Ok(last.clone());
        }
        let app = self.clone();
        // The pass continues after the timeout; the next request uses its result.
        let pass = tokio::spawn(async move { app.refresh_tenant_health().await });
        match last {
            None => pass.await.map_err(|_| AppError::Store(unavailable()))?,
            Some(last) => match timeout(REFRESH_WAIT, pass).await {
                Ok(Ok(Ok(newer))) => Ok(newer),
                _ => Ok(last),
            },
        }
    }

    async fn refresh_tenant_health(&self) -> Result<Arc<AllTenantsHealth>, AppError> {
        let requested = monotonic_now();
        let _guard = self.tenant_health.turn.lock().await;
        // Another request may have counted while this one waited.
        if let Some(last) = self.tenant_health.last().filter(|last| last.at >= requested) {
            return Ok(last);
        }
        self.tenant_health.begin_pass();
        let counted = timeout(PASS_TIMEOUT, self.count_tenants()).await;
        let counted = counted.map_err(|_| AppError::Store(unavailable())).flatten();
        let (counted, failed) = match counted {
            Ok(counted) => (Some(counted), None),
            Err(error) => (None, Some(error)),
        };
        self.tenant_health.end_pass(counted);
        match failed {
            Some(error) => Err(error),
            None => self.tenant_health.last().ok_or(AppError::Store(unavailable())),
        }
    }
}

async fn run_tenant_health(app: Weak<App>, stop: CancellationToken) {
    loop {
        let Some(counted) = app.upgrade() else { return };
        if let Err(error) = counted.refresh_tenant_health().await {
            tracing::debug!(%error, "counting the health of all tenants failed; will retry");
        }
        let duration = counted.tenant_health.last().map_or(Duration::ZERO, |last| last.duration);
        drop(counted);
        tokio::select! {
            () = tokio::time::sleep(BACKGROUND_INTERVAL.max(duration * BACKGROUND_IDLE_FACTOR)) => {}
            () = stop.cancelled() => return,
        }
    }
}

fn age_of(health: &AllTenantsHealth) -> Duration {
    monotonic_now().saturating_sub(health.at)
}

fn unavailable() -> StoreError {
    StoreError::Unavailable("counting the health of all tenants failed".into())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use redrive_core::{TenantId, Time, tenancy::TenantRules};
    use redrive_store::Tenant;

    use super::*;
    use crate::app::overview::CircuitCounts;

    fn tenant(id: &str, name: &str) -> Tenant {
        let (id, name) = (TenantId::parse(id).unwrap(), Some(name.to_owned()));
        Tenant {
            id,
            name,
            metadata: Default::default(),
            rules: TenantRules::default(),
            created_at: Time::default(),
        }
    }

    fn nothing_counted() -> AllTenantsHealth {
        AllTenantsHealth {
            tenants: BTreeMap::new(),
            worst_webhooks: Vec::new(),
            webhooks_with_failures: 0,
            circuits: CircuitCounts::default(),
            more: false,
            counted_at: Time::default(),
            at: Duration::ZERO,
            duration: Duration::ZERO,
        }
    }

    #[test]
    fn changes_of_tenants_are_seen_despite_a_running_pass() {
        let cache = HealthCache::default();
        let names = || {
            let last = cache.last().unwrap();
            let names = last.tenants.values().map(|one| one.tenant.name.clone().unwrap());
            names.collect::<Vec<_>>()
        };
        cache.apply(TenantChange::Stored(tenant("early", "before the first pass")));
        cache.begin_pass();
        cache.end_pass(Some(nothing_counted()));
        cache.apply(TenantChange::Stored(tenant("acme", "Acme")));
        assert_eq!(names(), ["Acme"]);
        cache.begin_pass();
        cache.apply(TenantChange::Stored(tenant("acme", "Acme two")));
        cache.apply(TenantChange::Stored(tenant("globex", "Globex")));
        cache.apply(TenantChange::Deleted(TenantId::parse("acme").unwrap()));
        assert_eq!(names(), ["Globex"]);
        // The pass read the tenants before the changes.
        let mut counted = nothing_counted();
        counted.apply(TenantChange::Stored(tenant("acme", "Acme")));
        cache.end_pass(Some(counted));
        assert_eq!(names(), ["Globex"]);
        cache.begin_pass();
        cache.end_pass(None);
        assert_eq!(names(), ["Globex"], "a failed pass keeps what was counted");
    }
}
