//! Coordination of all nodes through Redis: circuits, tokens and slots.
//!
//! Callers enqueue operations. One task collects all pending operations into one batch, runs it in the script, and
//! dispatches the replies; see `link`. While Redis is unavailable no operation is enqueued: every node uses its
//! local state (fallback), as in a cluster without Redis.

mod batch;
mod link;
mod slots;
#[cfg(test)]
pub(super) mod tests;
mod wire;

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use parking_lot::Mutex;
use redrive_core::{
    EventId, Time, WebhookId,
    protection::{breaker::CallOutcome, limiter::RateLimit},
};
use tokio::sync::{Notify, oneshot};

pub use self::link::{check_redis, check_redis_settings};
pub(crate) use self::{
    batch::{CircuitUpdate, PreparedBatch},
    link::{PeerMessage, PeerSubscriber, RedisLink, advice},
    slots::{Slot, Slots},
};
use super::{AdmissionDecision, CircuitAction, CircuitChange, LocalCoordinator};
use crate::routing::ResolvedWebhook;

/// Redis does not respond: the caller uses the local state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RedisUnavailable;

/// Request to send one delivery.
pub(crate) struct RedisAdmissionRequest {
    pub(crate) webhook: Arc<ResolvedWebhook>,
    pub(crate) event_id: EventId,
    /// Maximum time until its response, in milliseconds.
    pub(crate) probe_timeout: u64,
    /// Whether it already has one of the slots that this node holds.
    pub(crate) has_slot: bool,
}

/// The decision, and the slot granted with it.
pub(crate) type DecisionWithSlot = (AdmissionDecision, Option<Slot>);

/// Changes caused by a report.
#[derive(Debug, Default)]
pub(crate) struct ReportReply {
    pub(crate) change: Option<CircuitChange>,
    /// Maximum number of deliveries of a half-open circuit in memory.
    pub(crate) half_open_max_in_memory: Option<usize>,
}

/// State of a bucket after a token was requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenReply {
    /// Time at which a token is available; `None` if one was taken.
    pub due: Option<Time>,
    /// Number of tokens left.
    pub remaining: u32,
    /// Time in Redis at which this was decided.
    pub now: Time,
}

/// An operation with a waiting caller.
enum Op {
    Admit(Vec<RedisAdmissionRequest>, oneshot::Sender<Vec<DecisionWithSlot>>),
    Report(Arc<ResolvedWebhook>, CallOutcome, Option<u64>, oneshot::Sender<ReportReply>),
    Act(Arc<ResolvedWebhook>, CircuitAction, oneshot::Sender<Option<CircuitChange>>),
    Refresh(Arc<ResolvedWebhook>, Option<oneshot::Sender<()>>),
    Token(String, RateLimit, oneshot::Sender<TokenReply>),
    /// Only waits until everything enqueued before has been sent.
    Flush(oneshot::Sender<()>),
}

/// Operations that wait for the next round trip.
#[derive(Default)]
struct PendingOps {
    ops: Vec<Op>,
    /// Successful calls by webhook; no caller waits for their effect.
    successes: BTreeMap<WebhookId, (Arc<ResolvedWebhook>, u32)>,
    work: bool,
    change: bool,
    drain: bool,
}

/// Coordinator that decides through Redis. See the module.
pub(crate) struct RedisCoordinator {
    pending: Mutex<PendingOps>,
    /// Notified when a caller waits for a reply.
    ops_added: Notify,
    up: AtomicBool,
    pub(crate) slots: Arc<Slots>,
    pub(crate) local: Arc<LocalCoordinator>,
}

impl RedisCoordinator {
    pub(crate) fn new(local: Arc<LocalCoordinator>) -> Self {
        Self {
            pending: Mutex::default(),
            ops_added: Notify::new(),
            up: AtomicBool::new(false),
            slots: Arc::default(),
            local,
        }
    }

    /// Returns whether Redis responds.
    pub(crate) fn is_up(&self) -> bool {
        self.up.load(Relaxed)
    }

    /// Records that Redis responds. `drain` resets its buckets, since it does not know the tokens taken during
    /// fallback.
    pub(crate) fn mark_up(&self, drain: bool) {
        self.pending.lock().drain |= drain;
        self.slots.resume();
        self.up.store(true, Relaxed);
    }

    /// Records that Redis does not respond, so that no further operation is enqueued.
    pub(crate) fn mark_down(&self) {
        // Under the lock: an operation enqueued after this would never be sent.
        let _pending = self.pending.lock();
        self.up.store(false, Relaxed);
        self.slots.clear();
    }

    /// Fails all pending operations.
    pub(crate) fn fail_pending(&self) {
        let pending = std::mem::take(&mut *self.pending.lock());
        drop(pending);
    }

    /// Releases all slots, and returns when Redis has recorded it.
    pub(crate) async fn release_slots(&self) {
        self.slots.release_all();
        let _ = self.enqueue(Op::Flush).await;
    }

    async fn enqueue<T>(&self, op: impl FnOnce(oneshot::Sender<T>) -> Op) -> Result<T, RedisUnavailable> {
        let (reply_to, reply) = oneshot::channel();
        {
            let pending = &mut *self.pending.lock();
            // Checked under the lock: an operation enqueued after `mark_down` would never be sent.
            if !self.is_up() {
                return Err(RedisUnavailable);
            }
            pending.ops.push(op(reply_to));
        }
        self.ops_added.notify_one();
        reply.await.map_err(|_| RedisUnavailable)
    }

    /// Decides which of these may be sent now: one decision each, in the same order. A decision to send takes its
    /// tokens and slot.
    pub(crate) async fn admit(
        &self,
        asks: Vec<RedisAdmissionRequest>,
    ) -> Result<Vec<DecisionWithSlot>, RedisUnavailable> {
        self.enqueue(|reply| Op::Admit(asks, reply)).await
    }

    /// Records a call that may change the circuit: a failure, or the result of a probe.
    pub(crate) async fn report(
        &self,
        webhook: &Arc<ResolvedWebhook>,
        circuit_outcome: CallOutcome,
        probe: Option<u64>,
    ) -> Result<ReportReply, RedisUnavailable> {
        self.enqueue(|reply| Op::Report(webhook.clone(), circuit_outcome, probe, reply)).await
    }

    /// Records a successful call with the next batch.
    pub(crate) fn report_success(&self, webhook: &Arc<ResolvedWebhook>) {
        if self.is_up() && webhook.breaker.enabled {
            self.pending.lock().successes.entry(webhook.id).or_insert_with(|| (webhook.clone(), 0)).1 += 1;
        }
    }

    /// Applies an operator's action to a circuit.
    pub(crate) async fn apply_action(
        &self,
        webhook: &Arc<ResolvedWebhook>,
        action: CircuitAction,
    ) -> Result<Option<CircuitChange>, RedisUnavailable> {
        self.enqueue(|reply| Op::Act(webhook.clone(), action, reply)).await
    }

    /// Refreshes the local state of a webhook's circuit.
    pub(crate) async fn refresh_circuit(
        &self,
        webhook: &Arc<ResolvedWebhook>,
    ) -> Result<(), RedisUnavailable> {
        self.enqueue(|reply| Op::Refresh(webhook.clone(), Some(reply))).await
    }

    /// Refreshes the local state of a webhook's circuit without waiting for the reply.
    pub(crate) fn refresh_circuit_in_background(&self, webhook: Arc<ResolvedWebhook>) {
        let pending = &mut *self.pending.lock();
        if self.is_up() {
            pending.ops.push(Op::Refresh(webhook, None));
            self.ops_added.notify_one();
        }
    }

    /// Takes a token from the bucket of this name.
    pub(crate) async fn take_token(
        &self,
        name: String,
        limit: RateLimit,
    ) -> Result<TokenReply, RedisUnavailable> {
        self.enqueue(|reply| Op::Token(name, limit, reply)).await
    }

    /// Notifies the other nodes that deliveries are due, or that something changed. Returns false if Redis is
    /// unavailable.
    pub(crate) fn publish_hint(&self, work: bool, change: bool) -> bool {
        let pending = &mut *self.pending.lock();
        if !self.is_up() {
            return false;
        }
        pending.work |= work;
        pending.change |= change;
        self.ops_added.notify_one();
        true
    }

    /// Waits until a caller waits for a reply.
    pub(crate) async fn wait_for_ops(&self) {
        self.ops_added.notified().await;
    }

    /// Takes up to `max` pending operations and the slot updates as a batch.
    pub(crate) fn take(&self, max: usize) -> PreparedBatch {
        let mut pending = std::mem::take(&mut *self.pending.lock());
        if pending.ops.len() > max {
            let rest = pending.ops.split_off(max);
            self.pending.lock().ops.splice(0..0, rest);
            self.ops_added.notify_one();
        }
        PreparedBatch::new(pending, &self.slots, &self.local)
    }

    /// Reports all slots again, since Redis may have lost them.
    pub(crate) fn resend_slots(&self) {
        self.slots.resend_all();
        self.ops_added.notify_one();
    }

    /// Handles slot demand: `nodes` nodes want slots of this webhook, and one of them has none.
    pub(crate) fn on_slot_demand(&self, webhook_id: WebhookId, nodes: u32) {
        if self.slots.on_demand(webhook_id, nodes) {
            self.ops_added.notify_one();
        }
    }
}
