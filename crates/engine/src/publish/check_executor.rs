//! Runs work whose cost depends on tenants' schemas, filters and payloads. The cost is computed first: cheap work
//! runs on a Tokio worker thread, expensive work on a few threads that tenants share.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use redrive_core::TenantId;
use redrive_store::StoreError;
use tokio::runtime::Handle;

use super::PublishError;
use crate::{
    metrics::Metrics,
    tenant_slots::{SlotLimits, TenantSlots},
};

/// Maximum work done on a Tokio worker thread without yielding: about half a millisecond. A cost unit takes one to
/// four nanoseconds.
pub const MAX_INLINE_COST_UNITS: u64 = 1 << 18;
/// Maximum total work of the checks of one batch: about a second.
pub const MAX_BATCH_COST_UNITS: u64 = 1 << 29;
/// Work charged for compiling a schema: a few milliseconds.
pub(super) const COMPILE_COST_UNITS: u64 = 1 << 21;
/// Maximum number of checks waiting for a thread, per tenant and in total.
const MAX_WAITING_PER_TENANT: usize = 256;
const MAX_WAITING: usize = 4096;
/// Maximum time that a check waits for a thread.
const THREAD_TIMEOUT: Duration = Duration::from_secs(5);

/// Creates the slots of the threads for expensive checks. One tenant gets at most half of them.
fn check_slots() -> TenantSlots {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let total = (cores / 2).max(2);
    TenantSlots::new(SlotLimits {
        total,
        per_tenant: total / 2,
        factor: total,
        waiting_per_tenant: MAX_WAITING_PER_TENANT,
        waiting: MAX_WAITING,
        timeout: THREAD_TIMEOUT,
    })
}

/// State of one batch, shared by all its publishes: the work that its checks may still cost, and its progress.
#[derive(Debug)]
pub(crate) struct BatchState {
    /// Remaining work budget.
    left: AtomicU64,
    /// Work done on a Tokio worker thread since the last yield.
    inline: AtomicU64,
    /// Version of the tenant's configuration that was verified to be current.
    current_version: AtomicI64,
}

impl BatchState {
    pub(super) fn new(max_work: u64) -> Self {
        Self {
            left: AtomicU64::new(max_work),
            inline: AtomicU64::new(0),
            current_version: AtomicI64::new(i64::MIN),
        }
    }
}

impl BatchState {
    /// Counts work done on a Tokio worker thread.
    pub(super) fn add_inline_work(&self, work: u64) {
        self.inline.fetch_add(work, Ordering::Relaxed);
    }

    /// Returns whether the batch should yield to other tasks, and resets the counter if so.
    pub(super) fn must_yield(&self) -> bool {
        let must = self.inline.load(Ordering::Relaxed) > MAX_INLINE_COST_UNITS / 2;
        if must {
            self.inline.store(0, Ordering::Relaxed);
        }
        must
    }

    pub(crate) fn is_current(&self, version: i64) -> bool {
        self.current_version.load(Ordering::Relaxed) == version
    }

    pub(crate) fn set_current(&self, version: i64) {
        self.current_version.store(version, Ordering::Relaxed);
    }

    fn charge(&self, work: u64) -> Result<(), PublishError> {
        // The publishes of a batch run sequentially, so load and store need not be atomic together.
        let left = self.left.load(Ordering::Relaxed);
        match left.checked_sub(work) {
            Some(left) => {
                self.left.store(left, Ordering::Relaxed);
                Ok(())
            }
            None => Err(PublishError::BatchTooCostly),
        }
    }
}

/// Runs checks of tenants' payloads, and counts what they cost.
pub(crate) struct CheckExecutor {
    /// Slots of the threads for expensive checks.
    slots: TenantSlots,
    /// Largest cost of one check that ran on a Tokio worker thread.
    largest_inline_work: AtomicU64,
    metrics: Arc<Metrics>,
    tokio: Handle,
}

impl CheckExecutor {
    pub(crate) fn new(metrics: Arc<Metrics>) -> Self {
        Self {
            slots: check_slots(),
            largest_inline_work: AtomicU64::new(0),
            metrics,
            tokio: Handle::current(),
        }
    }

    /// Runs work of a known cost for a tenant: inline if it is cheap, otherwise on one of the threads for checks.
    /// Fails if too many checks are waiting.
    pub(crate) async fn run_work<T: Send + 'static>(
        &self,
        tenant_id: &TenantId,
        work: u64,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, StoreError> {
        if work > MAX_INLINE_COST_UNITS {
            return self.run_on_thread(tenant_id, job).await;
        }
        self.record_inline_work(work);
        Ok(job())
    }

    /// Runs work as [`CheckExecutor::run_work`] does, and charges it to the budget of its batch, if it has one.
    pub(crate) async fn run_batch_work<T: Send + 'static>(
        &self,
        tenant_id: &TenantId,
        work: u64,
        batch: Option<&BatchState>,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, PublishError> {
        if let Some(batch) = batch {
            batch.charge(work)?;
        }
        if work > MAX_INLINE_COST_UNITS {
            return Ok(self.run_on_thread(tenant_id, job).await?);
        }
        self.record_inline_work(work);
        if let Some(batch) = batch {
            batch.add_inline_work(work);
        }
        Ok(job())
    }

    /// Records work that the caller does on a Tokio worker thread itself: at most [`MAX_INLINE_COST_UNITS`].
    pub(crate) fn record_inline_work(&self, work: u64) {
        // Read first: most work is below the maximum, and a plain load does not take the cache line from other cores.
        if work > self.largest_inline_work.load(Ordering::Relaxed)
            && work > self.largest_inline_work.fetch_max(work, Ordering::Relaxed)
        {
            self.metrics.largest_inline_work.set(i64::try_from(work).unwrap_or(i64::MAX));
        }
    }

    /// Runs possibly expensive work of a tenant on one of the threads for checks. Fails if too many checks are waiting.
    pub(crate) async fn run_on_thread<T: Send + 'static>(
        &self,
        tenant_id: &TenantId,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, StoreError> {
        let busy = |_| StoreError::Busy("too many large payloads and schemas are being checked".into());
        let slot = self.slots.acquire(tenant_id).await.map_err(busy)?;
        // The job holds the slot until it ends, even if the caller was cancelled.
        let job = self.tokio.spawn_blocking(move || {
            let _slot = slot;
            job()
        });
        job.await.map_err(|error| StoreError::Unavailable(format!("a check failed: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batch_beyond_its_budget_is_refused() {
        let batch = BatchState::new(MAX_BATCH_COST_UNITS);
        assert_eq!(batch.charge(MAX_BATCH_COST_UNITS - 10), Ok(()));
        assert_eq!(batch.charge(11), Err(PublishError::BatchTooCostly));
        assert_eq!(batch.charge(10), Ok(()), "a smaller check still fits");
    }

    #[test]
    fn batch_yields_after_little_work() {
        let batch = BatchState::new(MAX_BATCH_COST_UNITS);
        batch.add_inline_work(MAX_INLINE_COST_UNITS / 2);
        assert!(!batch.must_yield());
        batch.add_inline_work(1);
        assert!(batch.must_yield() && !batch.must_yield(), "the work counter restarts at zero");
    }
}
