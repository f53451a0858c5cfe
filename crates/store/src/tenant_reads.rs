//! Limits the listings that each tenant runs concurrently, so that one tenant cannot occupy all read connections.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use redrive_core::TenantId;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::StoreError;

/// Timeout of a listing that waits for other listings of its tenant.
const PERMIT_TIMEOUT: Duration = Duration::from_secs(5);
/// Number of entries above which those of tenants without listings are evicted.
const MAX_IDLE_ENTRIES: usize = 1_024;

/// Permits of all tenants.
pub(crate) struct TenantReads {
    max_per_tenant: usize,
    timeout: Duration,
    permits: Mutex<HashMap<TenantId, Arc<Semaphore>>>,
    /// Permits of listings over all tenants.
    all_tenants: Arc<Semaphore>,
}

impl TenantReads {
    pub(crate) fn new(max_per_tenant: usize) -> Self {
        let all_tenants = Arc::new(Semaphore::new(max_per_tenant));
        Self { max_per_tenant, timeout: PERMIT_TIMEOUT, permits: Mutex::default(), all_tenants }
    }

    /// Waits until the tenant may run one more listing. Fails after the timeout.
    pub(crate) async fn acquire(&self, tenant_id: &TenantId) -> Result<OwnedSemaphorePermit, StoreError> {
        self.wait(self.permits_for(tenant_id), "too many listings of this tenant are running").await
    }

    /// Waits until one more listing over all tenants may run. Fails after the timeout.
    pub(crate) async fn acquire_for_all_tenants(&self) -> Result<OwnedSemaphorePermit, StoreError> {
        self.wait(self.all_tenants.clone(), "too many listings over all tenants are running").await
    }

    async fn wait(&self, permits: Arc<Semaphore>, busy: &str) -> Result<OwnedSemaphorePermit, StoreError> {
        match tokio::time::timeout(self.timeout, permits.acquire_owned()).await {
            Ok(Ok(permit)) => Ok(permit),
            _ => Err(StoreError::Busy(busy.into())),
        }
    }

    fn permits_for(&self, tenant_id: &TenantId) -> Arc<Semaphore> {
        let mut permits = self.permits.lock();
        if permits.len() > MAX_IDLE_ENTRIES {
            // Each permit and each waiter holds its own reference.
            permits.retain(|_, semaphore| Arc::strong_count(semaphore) > 1);
        }
        permits
            .entry(tenant_id.clone())
            .or_insert_with(|| Arc::new(Semaphore::new(self.max_per_tenant)))
            .clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn listings_are_bounded_per_tenant() {
        let reads = TenantReads { timeout: Duration::from_millis(20), ..TenantReads::new(2) };
        let (acme, globex) = (TenantId::parse("acme").unwrap(), TenantId::parse("globex").unwrap());
        let first = reads.acquire(&acme).await.unwrap();
        let _second = reads.acquire(&acme).await.unwrap();
        assert!(matches!(reads.acquire(&acme).await, Err(StoreError::Busy(_))));
        assert!(reads.acquire(&globex).await.is_ok(), "another tenant is not affected");
        let across = [reads.acquire_for_all_tenants().await, reads.acquire_for_all_tenants().await];
        assert!(across.iter().all(Result::is_ok));
        assert!(matches!(reads.acquire_for_all_tenants().await, Err(StoreError::Busy(_))));
        drop(first);
        assert!(reads.acquire(&acme).await.is_ok());
    }

    #[tokio::test]
    async fn idle_tenants_are_evicted() {
        let reads = TenantReads::new(1);
        let held = TenantId::parse("held").unwrap();
        let _permit = reads.acquire(&held).await.unwrap();
        for n in 0..2 * MAX_IDLE_ENTRIES {
            drop(reads.acquire(&TenantId::parse(&format!("tenant-{n}")).unwrap()).await.unwrap());
        }
        let permits = reads.permits.lock();
        assert!(permits.len() <= MAX_IDLE_ENTRIES + 1 && permits.contains_key(&held), "{}", permits.len());
    }
}
