//! Publishes of tenants whose rows another transaction has locked.
//!
//! Each blocked tenant has a queue and a task. Later events wait behind earlier ones, so the tenant's order is
//! kept. The number of tenants, the events and bytes per tenant and in total, and the time that an event waits
//! are bounded. All blocked tenants together may use half of the limit for waiting publishes, so that other
//! tenants are not refused because of them.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use redrive_core::TenantId;

use super::{
    Shared,
    publish_writer::{
        PUBLISH_LOCK_TIMEOUT, PublishProgress, QueuedPublish, finish, publish_batch, refuse_after_failure,
    },
};
use crate::{
    batch::{self, WaitingLimit},
    error::StoreError,
};

/// Maximum number of tenants blocked at the same time; publishes of further tenants fail immediately.
const MAX_BLOCKED_TENANTS: usize = 256;
/// Maximum number of waiting events of a blocked tenant.
const MAX_EVENTS_PER_TENANT: usize = 1_000;
/// Maximum number of bytes of a blocked tenant's waiting events.
const MAX_BYTES_PER_TENANT: usize = 8 * 1024 * 1024;
/// Delay before a blocked tenant is tried again.
const RETRY_DELAY: Duration = Duration::from_millis(50);

/// The queues of blocked tenants.
pub(super) struct BlockedTenants {
    shared: Arc<Shared>,
    /// Limit for waiting publishes of all tenants.
    publishing_limit: Arc<WaitingLimit>,
    /// Limit for waiting publishes of all blocked tenants.
    blocked_limit: WaitingLimit,
    /// Maximum time that an event waits before its publish fails.
    max_wait: Duration,
    queues: Mutex<HashMap<TenantId, TenantQueue>>,
}

/// The waiting events of a blocked tenant.
#[derive(Default)]
struct TenantQueue {
    publishes: Vec<QueuedPublish>,
    bytes: usize,
}

impl TenantQueue {
    fn has_room(&self) -> bool {
        self.publishes.len() < MAX_EVENTS_PER_TENANT && self.bytes < MAX_BYTES_PER_TENANT
    }

    fn replace(&mut self, publishes: Vec<QueuedPublish>) {
        self.bytes = publishes.iter().map(|publish| publish.new.event.memory_bytes()).sum();
        self.publishes = publishes;
    }
}

impl BlockedTenants {
    pub(super) fn new(
        shared: &Arc<Shared>,
        publishing_limit: &Arc<WaitingLimit>,
        max_wait: Duration,
    ) -> Self {
        Self {
            shared: shared.clone(),
            publishing_limit: publishing_limit.clone(),
            blocked_limit: WaitingLimit::half_of(publishing_limit),
            max_wait,
            queues: Mutex::default(),
        }
    }

    /// Queues an event behind those of its tenant, or returns it if its tenant is not blocked.
    pub(super) fn try_push(&self, publish: QueuedPublish) -> Option<QueuedPublish> {
        let mut queues = self.queues.lock();
        let Some(queue) = queues.get_mut(&publish.new.event.tenant_id) else { return Some(publish) };
        let bytes = publish.new.event.memory_bytes();
        if queue.has_room() && self.blocked_limit.try_acquire(bytes) {
            queue.publishes.push(publish);
            queue.bytes += bytes;
            return None;
        }
        drop(queues);
        finish(&self.publishing_limit, publish, Err(StoreError::Overloaded));
        None
    }

    /// Opens the queue of a tenant and starts its task.
    pub(super) fn open(self: &Arc<Self>, tenant_id: TenantId, publishes: Vec<QueuedPublish>) {
        let has_room = self.queues.lock().len() < MAX_BLOCKED_TENANTS;
        let (publishes, refused): (Vec<_>, Vec<_>) = publishes.into_iter().partition(|publish| {
            has_room && self.blocked_limit.try_acquire(publish.new.event.memory_bytes())
        });
        for publish in refused {
            finish(&self.publishing_limit, publish, Err(locked()));
        }
        if publishes.is_empty() {
            return;
        }
        tracing::warn!(%tenant_id, "another transaction has locked this tenant; its publishes wait in a separate queue");
        self.queues.lock().entry(tenant_id.clone()).or_default().replace(publishes);
        tokio::spawn(run_blocked_tenant(self.clone(), tenant_id));
    }

    /// Takes the events to publish next. Returns `None`, and closes the queue, if there are none.
    fn take(&self, tenant_id: &TenantId) -> Option<Vec<QueuedPublish>> {
        let mut queues = self.queues.lock();
        let queue = queues.get_mut(tenant_id)?;
        if queue.publishes.is_empty() {
            queues.remove(tenant_id);
            return None;
        }
        let mut rest = std::mem::take(&mut queue.publishes).into_iter();
        let mut batch = Vec::new();
        batch::gather(&mut batch, batch::LIMITS, || rest.next());
        queue.replace(rest.collect());
        Some(batch)
    }

    /// Puts events back in front of later ones.
    fn requeue(&self, tenant_id: &TenantId, mut publishes: Vec<QueuedPublish>) {
        let mut queues = self.queues.lock();
        let queue = queues.entry(tenant_id.clone()).or_default();
        publishes.append(&mut queue.publishes);
        queue.replace(publishes);
    }
}

fn locked() -> StoreError {
    let reason = "another transaction has locked this tenant; publish again, and check for long transactions";
    StoreError::Busy(reason.into())
}

/// Guard that closes the queue of a tenant when its task ends. After a panic the queue would otherwise stay and
/// fill up.
struct CloseQueue<'a> {
    tenants: &'a BlockedTenants,
    tenant_id: &'a TenantId,
}

impl Drop for CloseQueue<'_> {
    fn drop(&mut self) {
        let left = self.tenants.queues.lock().remove(self.tenant_id).unwrap_or_default();
        for publish in left.publishes {
            finish(&self.tenants.blocked_limit, publish, Err(locked()));
        }
    }
}

/// Publishes the events of a blocked tenant until its queue is empty.
async fn run_blocked_tenant(tenants: Arc<BlockedTenants>, tenant_id: TenantId) {
    let _close = CloseQueue { tenants: &tenants, tenant_id: &tenant_id };
    let limit = &tenants.blocked_limit;
    while let Some(mut batch) = tenants.take(&tenant_id) {
        refuse_after_failure(&mut batch, limit);
        let events: Vec<_> = batch.iter().map(|publish| &publish.new).collect();
        let results = publish_batch(&tenants.shared, &tenants.shared.blocked_publishing, &events).await;
        let mut blocked = Vec::new();
        for (publish, progress) in batch.into_iter().zip(results) {
            match progress {
                PublishProgress::Finished(result) => finish(limit, publish, result),
                PublishProgress::Blocked if publish.blocked_for > tenants.max_wait => {
                    finish(limit, publish, Err(locked()));
                }
                PublishProgress::Blocked => blocked.push(publish),
            }
        }
        for publish in &mut blocked {
            publish.blocked_for += PUBLISH_LOCK_TIMEOUT + RETRY_DELAY;
        }
        if !blocked.is_empty() {
            tenants.requeue(&tenant_id, blocked);
            tokio::time::sleep(RETRY_DELAY).await;
        }
    }
}
