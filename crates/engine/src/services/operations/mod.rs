//! Bulk operations: each is run by one node at a time, and any node resumes it from its last step. Each step is
//! one transaction of the store; no progress is kept in memory only.

mod candidates;
mod run;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use redrive_core::{
    DeliveryId, OperationId, TenantId, Time,
    delivery::bulk_operation::{
        Candidate, MAX_ACTIVE_PER_TENANT, OperationAction, OperationState, OperationTarget,
    },
};
use redrive_store::{
    CreationKey, CreationResult, Creations, Delivery, History, NewObject, Operation, OperationProgress,
    OperationRequest, Operations, PageRequest, Scan, StoreError,
};
use tokio_util::sync::CancellationToken;

use self::candidates::CandidateScan;
use crate::{
    clock::{self, Clock},
    cluster::membership::Membership,
    publish::check_executor::CheckExecutor,
    record::Recorder,
    rollup_buffer::RollupBuffer,
    routing::Router,
    wakeups::Wakeups,
};

/// Maximum number of operations that one node runs concurrently. Others wait or are run by other nodes.
const MAX_RUNNING: usize = 16;
/// Maximum number of claimed operations including those that only wait for their deliveries to end, possibly for
/// days; running operations do not wait for these.
const MAX_SETTLING: usize = 1_000;
/// Interval between polls for unclaimed operations.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Time after which a dry run stops counting.
const DRY_RUN_TIMEOUT: Duration = Duration::from_secs(10);

/// Runs bulk operations.
pub(crate) struct OperationRunner {
    pub(crate) creations: Arc<dyn Creations>,
    pub(crate) history: Arc<dyn History>,
    pub(crate) operations: Arc<dyn Operations>,
    pub(crate) clock: Clock,
    pub(crate) membership: Arc<Membership>,
    pub(crate) router: Arc<Router>,
    pub(crate) recorder: Arc<Recorder>,
    pub(crate) checker: Arc<CheckExecutor>,
    pub(crate) rollups: Arc<RollupBuffer>,
    pub(crate) wakeups: Arc<Wakeups>,
    pub(crate) stop: CancellationToken,
    /// Operations claimed by this node, each with whether it still queues deliveries.
    pub(crate) claimed: Mutex<BTreeMap<OperationId, bool>>,
}

/// Result of a dry run.
#[derive(Clone, Debug)]
pub struct DryRunCount {
    /// Number of deliveries or events counted.
    pub total: u64,
    /// Number of matching deliveries that were delivered before, whether or not they are among those counted.
    pub already_delivered: u64,
    /// Whether all were counted before the timeout.
    pub complete: bool,
    /// First deliveries of the selection; empty for a backfill, whose events have no delivery yet.
    pub sample: Vec<Delivery>,
}

/// Result of starting an operation.
#[derive(Clone, Debug, PartialEq)]
pub enum OperationStart {
    /// It is stored, and starts now or later.
    Started(Box<Operation>),
    /// The tenant has too many active operations.
    TooMany,
    /// The idempotency key was used before.
    KeyUsed,
}

/// Error of pausing, resuming or cancelling an operation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OperationActionError {
    /// The operation does not exist.
    #[error("there is no such operation")]
    NotFound,
    /// The state of the operation does not allow the action.
    #[error("{0}")]
    InvalidState(&'static str),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl OperationRunner {
    /// Records whether an operation still queues deliveries or only waits for them to end.
    fn set_running(&self, id: OperationId, at_work: bool) {
        let before = self.claimed.lock().insert(id, at_work);
        if before == Some(true) && !at_work {
            self.wakeups.operations.notify_one();
        }
    }

    /// Creates an operation that starts now or at `start_at`. With a key, it is created only if the key was not used
    /// before.
    pub(crate) async fn begin_operation(
        &self,
        tenant_id: TenantId,
        order: OperationRequest,
        start_at: Option<Time>,
        created_by: String,
        key: Option<CreationKey>,
    ) -> Result<OperationStart, StoreError> {
        let now = self.clock.now();
        let page = PageRequest { after: None, offset: 0, limit: 500 };
        let known = self.operations.list_operations(tenant_id.clone(), page).await?;
        // An operation scheduled for later does not count against the limit until it starts.
        let waits = |one: &&Operation| one.state.is_active() && one.start_at <= now;
        if known.iter().filter(waits).count() >= MAX_ACTIVE_PER_TENANT {
            return Ok(OperationStart::TooMany);
        }
        let operation = Operation {
            id: OperationId::new(now, &clock::random_id_bytes()),
            tenant_id,
            order,
            state: OperationState::Scheduled,
            created_by,
            created_at: now,
            start_at: start_at.unwrap_or(now),
            began_at: None,
            finished_at: None,
            updated_at: now,
            claimed_by: None,
            cursor: None,
            progress: OperationProgress::default(),
            rate_since: None,
        };
        match key {
            None => self.operations.create_operation(operation.clone()).await?,
            Some(key) => {
                let object = NewObject::Operation(Box::new(operation.clone()));
                if let CreationResult::KeyUsed(_) = self.creations.create(object, key).await? {
                    return Ok(OperationStart::KeyUsed);
                }
            }
        }
        self.wakeups.operations.notify_one();
        Ok(OperationStart::Started(Box::new(operation)))
    }

    /// Pauses, resumes or cancels an operation.
    pub(crate) async fn control_operation(
        &self,
        tenant_id: TenantId,
        id: OperationId,
        action: OperationAction,
    ) -> Result<Operation, OperationActionError> {
        loop {
            let found = self
                .operations
                .operation(tenant_id.clone(), id)
                .await?
                .ok_or(OperationActionError::NotFound)?;
            let to = found
                .state
                .apply(action, found.began_at.is_some())
                .map_err(OperationActionError::InvalidState)?;
            if to == found.state {
                return Ok(found);
            }
            let now = self.clock.now();
            // Fails if the state changed since it was read; then the loop reads it again.
            if self.operations.set_operation_state(tenant_id.clone(), id, found.state, to, now).await? {
                self.wakeups.operations.notify_one();
                return self.operations.operation(tenant_id, id).await?.ok_or(OperationActionError::NotFound);
            }
        }
    }

    /// Counts what an operation would select now, for at most `DRY_RUN_TIMEOUT`, and returns the first deliveries.
    pub(crate) async fn count_candidates(
        &self,
        tenant_id: &TenantId,
        order: &OperationRequest,
        sample: usize,
    ) -> Result<DryRunCount, StoreError> {
        let mut source = CandidateScan::new(tenant_id.clone(), order.clone(), self.clock.now(), None);
        let counted = tokio::time::timeout(DRY_RUN_TIMEOUT, source.count(self)).await;
        let complete = counted.is_ok();
        if let Ok(counted) = counted {
            counted?;
        }
        let mut deliveries = Vec::new();
        for id in source.first.iter().take(sample) {
            deliveries.extend(self.history.delivery(tenant_id.clone(), *id).await?);
        }
        Ok(DryRunCount {
            total: source.counted,
            already_delivered: source.already_delivered,
            complete,
            sample: deliveries,
        })
    }

    /// Counts what an operation would select now among its first candidates, which bounds the time. Returns whether all
    /// were counted.
    pub(crate) async fn count_first_candidates(
        &self,
        tenant_id: &TenantId,
        order: &OperationRequest,
    ) -> Result<(u64, bool), StoreError> {
        let mut source =
            CandidateScan::new(tenant_id.clone(), order.clone(), self.clock.now(), None).for_user();
        let may_have_more = source.count_page(self).await?;
        Ok((source.counted, !may_have_more))
    }

    /// Returns those of the named deliveries that exist, with their state.
    pub(crate) async fn named_candidates(
        &self,
        tenant_id: TenantId,
        ids: Vec<DeliveryId>,
    ) -> Result<Vec<(DeliveryId, Candidate)>, StoreError> {
        let scan = Scan {
            among: OperationTarget::Deliveries,
            webhook_id: None,
            failing_only: false,
            limit: ids.len(),
            ids: Some(ids),
            from: None,
            to: None,
            after: None,
        };
        let page = self.operations.scan_deliveries_for_user(tenant_id, scan).await?;
        let found = page.found.into_iter();
        Ok(found.filter_map(|(position, candidate)| Some((position.delivery_id?, candidate))).collect())
    }

    /// Claims and runs operations until the engine stops.
    pub(crate) async fn run(self: Arc<Self>) {
        loop {
            if let Err(error) = self.claim_operations().await {
                tracing::warn!(%error, "claiming bulk operations failed; will retry");
            }
            tokio::select! {
                () = tokio::time::sleep(POLL_INTERVAL) => {}
                () = self.wakeups.operations.notified() => {}
                () = self.stop.cancelled() => return,
            }
        }
    }

    async fn claim_operations(self: &Arc<Self>) -> Result<(), StoreError> {
        let (claimed, at_work): (Vec<_>, usize) = {
            let claimed = self.claimed.lock();
            (claimed.keys().copied().collect(), claimed.values().filter(|at_work| **at_work).count())
        };
        let capacity = MAX_RUNNING.saturating_sub(at_work).min(MAX_SETTLING.saturating_sub(claimed.len()));
        if capacity == 0 {
            return Ok(());
        }
        let (epoch, now) = (self.membership.current_epoch().epoch, self.clock.now());
        for operation in self.operations.claim_operations(epoch, claimed, now, capacity).await? {
            self.set_running(operation.id, operation.state == OperationState::Running);
            tokio::spawn(self.clone().run_claimed(operation));
        }
        Ok(())
    }

    async fn run_claimed(self: Arc<Self>, operation: Operation) {
        let id = operation.id;
        let _held = HeldOperation { runner: &self, id };
        tracing::info!(operation_id = %id, kind = operation.order.kind.name(), "resuming a bulk operation");
        if let Err(error) = self.run_operation(operation).await {
            // It resumes from its last step after it is claimed again.
            tracing::warn!(%error, operation_id = %id, "bulk operation interrupted; will resume");
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
}

/// Entry in `claimed`. Dropped when the run ends, also by a panic; then the operation can be claimed again.
struct HeldOperation<'a> {
    runner: &'a OperationRunner,
    id: OperationId,
}

impl Drop for HeldOperation<'_> {
    fn drop(&mut self) {
        self.runner.claimed.lock().remove(&self.id);
        // After a panic the operation waits for the next poll, so that it cannot fail in a tight loop.
        if !std::thread::panicking() {
            self.runner.wakeups.operations.notify_one();
        }
    }
}
