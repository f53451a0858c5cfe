//! Work that a tenant's schemas, filters and payloads make expensive: counted before it is done, done on the runtime only
//! while it is little, and otherwise on a few threads that tenants share.

use std::{
    sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
    time::Duration,
};

use redrive_core::TenantId;
use redrive_store::StoreError;

use crate::{
    Engine, Inner,
    publish::PublishError,
    tenant_slots::{SlotLimits, TenantSlots},
};

/// The most work that is done on a runtime thread without a pause: about half a millisecond. A unit takes one to
/// four nanoseconds.
pub const MAX_INLINE_WORK: u64 = 1 << 18;
/// The most work that the checks of one batch may be: about a second.
pub const MAX_BATCH_WORK: u64 = 1 << 29;
/// What compiling a schema counts for: some milliseconds.
pub(crate) const COMPILE_WORK: u64 = 1 << 21;
/// How many checks of one tenant wait for a thread, and how many in all.
const MAX_WAITING_PER_TENANT: usize = 256;
const MAX_WAITING: usize = 4096;
/// How long a check waits for a thread.
const THREAD_TIMEOUT: Duration = Duration::from_secs(5);

/// The threads that do larger checks. One tenant has half of them at the most.
pub(crate) fn checking_slots() -> TenantSlots {
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

/// How far the publishes of one batch have come, and what their checks have cost. They share it.
#[derive(Debug)]
pub struct BatchProgress {
    /// Work that may still be done.
    left: AtomicU64,
    /// Work done on the runtime since it was last asked for.
    inline: AtomicU64,
    /// Whether an event was handed to the store since it was last asked for.
    handed_over: AtomicBool,
    /// The version of the tenant's configuration that was found to be the current one.
    current_version: AtomicI64,
}

impl Default for BatchProgress {
    fn default() -> Self {
        Self {
            left: AtomicU64::new(MAX_BATCH_WORK),
            inline: AtomicU64::new(0),
            handed_over: AtomicBool::new(false),
            current_version: AtomicI64::new(i64::MIN),
        }
    }
}

impl BatchProgress {
    /// Counts work that is done on the runtime outside of the engine, such as reading the batch itself.
    pub fn add_inline_work(&self, work: u64) {
        self.inline.fetch_add(work, Ordering::Relaxed);
    }

    /// Whether so much was done on the runtime that other tasks are due. Starts to count again if so.
    pub fn must_yield(&self) -> bool {
        let must = self.inline.load(Ordering::Relaxed) > MAX_INLINE_WORK / 2;
        if must {
            self.inline.store(0, Ordering::Relaxed);
        }
        must
    }

    /// Whether an event was handed to the store since the last call.
    pub fn take_handed_over(&self) -> bool {
        self.handed_over.swap(false, Ordering::Relaxed)
    }

    pub(crate) fn hand_over(&self) {
        self.handed_over.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_current(&self, version: i64) -> bool {
        self.current_version.load(Ordering::Relaxed) == version
    }

    pub(crate) fn set_current(&self, version: i64) {
        self.current_version.store(version, Ordering::Relaxed);
    }

    fn charge(&self, work: u64) -> Result<(), PublishError> {
        // The publishes of a batch run one after the other.
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

impl Engine {
    /// Does work for a tenant that may take long on one of the threads for checks. Fails if too much waits for them.
    pub async fn run_check<T: Send + 'static>(
        &self,
        tenant: &TenantId,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, StoreError> {
        self.0.run_on_thread(tenant, job).await
    }

    /// Does work of a known size for a tenant: immediately if it is little, otherwise on one of the threads for checks.
    /// Fails if too much waits for them.
    pub async fn run_counted<T: Send + 'static>(
        &self,
        tenant: &TenantId,
        work: u64,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, StoreError> {
        if work > MAX_INLINE_WORK {
            return self.run_check(tenant, job).await;
        }
        self.note_inline_work(work);
        Ok(job())
    }

    /// Counts work that the caller does on the runtime itself: at most [`MAX_INLINE_WORK`].
    pub fn note_inline_work(&self, work: u64) {
        self.0.note_inline_work(work);
    }
}

impl Inner {
    /// Does work of a known size: on the spot if it is little, otherwise on a thread for checks.
    pub(crate) async fn run_work<T: Send + 'static>(
        &self,
        tenant: &TenantId,
        work: u64,
        batch: Option<&BatchProgress>,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, PublishError> {
        if let Some(batch) = batch {
            batch.charge(work)?;
        }
        if work > MAX_INLINE_WORK {
            return Ok(self.run_on_thread(tenant, job).await?);
        }
        self.note_inline_work(work);
        if let Some(batch) = batch {
            batch.add_inline_work(work);
        }
        Ok(job())
    }

    fn note_inline_work(&self, work: u64) {
        // Most work is less than the largest so far, and reading alone does not take the cache line from other cores.
        if work > self.largest_inline_work.load(Ordering::Relaxed)
            && work > self.largest_inline_work.fetch_max(work, Ordering::Relaxed)
        {
            self.metrics.largest_inline_work.set(i64::try_from(work).unwrap_or(i64::MAX));
        }
    }

    pub(crate) async fn run_on_thread<T: Send + 'static>(
        &self,
        tenant: &TenantId,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, StoreError> {
        let busy = |_| StoreError::Busy("too many large payloads and schemas are being checked".into());
        let slot = self.checking.acquire(tenant).await.map_err(busy)?;
        // The slot lasts as long as the job, even if the caller has gone away.
        let job = self.runtime.spawn_blocking(move || {
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
        let batch = BatchProgress::default();
        assert_eq!(batch.charge(MAX_BATCH_WORK - 10), Ok(()));
        assert_eq!(batch.charge(11), Err(PublishError::BatchTooCostly));
        assert_eq!(batch.charge(10), Ok(()), "a smaller one still fits");
    }

    #[test]
    fn batch_yields_after_little_work() {
        let batch = BatchProgress::default();
        batch.add_inline_work(MAX_INLINE_WORK / 2);
        assert!(!batch.must_yield());
        batch.add_inline_work(1);
        assert!(batch.must_yield() && !batch.must_yield(), "counted from zero again");
        batch.hand_over();
        assert!(batch.take_handed_over() && !batch.take_handed_over());
    }
}
