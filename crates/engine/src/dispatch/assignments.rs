//! Assignments: webhooks that only one node may send to, and what that means for the other nodes. A single node has no
//! assignments; its limits are whole.

use std::{sync::Arc, time::Duration};

use super::{Dispatcher, WebhookLimits};
use crate::{
    clock::Clock,
    cluster::{limit_shares::LimitShares, membership::Membership},
    coordinate::Coordinator,
    ids::ById,
    routing::ResolvedWebhook,
};
use parking_lot::Mutex;
use redrive_core::{
    WebhookId,
    cluster::assignment::{self, AssignmentInput},
    delivery::lane::Ordering,
};

/// Idle time after which an assignment is released.
const IDLE_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval between checks for idle assignments.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Webhooks assigned to this node, and the limits of webhooks that follow from assignments.
pub(crate) struct Assignments {
    state: Mutex<AssignmentState>,
    pub(crate) shares: Arc<LimitShares>,
    /// Maximum number of requests in flight to one destination host, over all nodes.
    host_max_in_flight: Option<usize>,
    pub(super) clock: Clock,
    pub(super) membership: Arc<Membership>,
    pub(super) coordinator: Arc<Coordinator>,
}

#[derive(Default)]
struct AssignmentState {
    /// Assigned webhooks, each with the time since which it has been idle.
    idle_since: ById<WebhookId, Option<Duration>>,
    checked_at: Duration,
}

impl Assignments {
    pub(crate) fn new(
        shares: Arc<LimitShares>,
        host_max_in_flight: Option<usize>,
        clock: Clock,
        membership: Arc<Membership>,
        coordinator: Arc<Coordinator>,
    ) -> Self {
        Self { state: Mutex::default(), shares, host_max_in_flight, clock, membership, coordinator }
    }

    /// Records that a claim assigned the webhook to this node.
    pub(crate) fn assign(&self, webhook_id: WebhookId) {
        self.state.lock().idle_since.insert(webhook_id, None);
    }

    /// Returns whether the webhook is assigned to this node.
    pub(crate) fn is_assigned_here(&self, webhook_id: WebhookId) -> bool {
        self.state.lock().idle_since.contains_key(&webhook_id)
    }

    /// Removes all assignments; they belonged to an epoch that has ended.
    pub(crate) fn clear(&self) {
        self.state.lock().idle_since.clear();
    }

    /// Returns all assigned webhooks if a check is due.
    pub(crate) fn due_for_check(&self, now: Duration) -> Vec<WebhookId> {
        let state = &mut *self.state.lock();
        if state.idle_since.is_empty() || now.saturating_sub(state.checked_at) < CHECK_INTERVAL {
            return Vec::new();
        }
        state.checked_at = now;
        state.idle_since.keys().copied().collect()
    }

    /// Updates the idle time of an assignment and returns whether it has reached `IDLE_TIMEOUT`.
    fn has_reached_idle_timeout(&self, webhook_id: WebhookId, idle: bool, now: Duration) -> bool {
        let state = &mut *self.state.lock();
        let Some(since) = state.idle_since.get_mut(&webhook_id) else { return false };
        *since = idle.then_some(since.unwrap_or(now));
        since.is_some_and(|since| now.saturating_sub(since) >= IDLE_TIMEOUT)
    }

    /// Removes assignments that were released.
    pub(crate) fn unassign(&self, webhooks: &[WebhookId]) {
        let state = &mut *self.state.lock();
        for webhook_id in webhooks {
            state.idle_since.remove(webhook_id);
        }
    }

    /// Returns whether only one node may send to a webhook.
    pub(crate) fn needs_assigned_node(&self, webhook: &ResolvedWebhook) -> bool {
        self.membership.is_shared()
            && assignment::needs_assigned_node(&AssignmentInput {
                ordered: webhook.ordering != Ordering::None,
                // With Redis, limits and circuits are counted for all nodes, so any node may send.
                rate_limited: self.coordinator.redis().is_none() && webhook.rate_limit().is_some(),
                impaired: self.coordinator.redis().is_none()
                    && self.coordinator.local.is_impaired(webhook.id, self.clock.now()),
                max_in_flight: webhook.max_in_flight as usize,
                sending_nodes: webhook.tenant.local_share().sending_nodes,
            })
    }

    /// Returns the limits of a webhook on this node: its whole `max_in_flight` if it needs an assigned node, else this
    /// node's share.
    pub(crate) fn webhook_limits<'a>(&self, webhook: &'a ResolvedWebhook) -> WebhookLimits<'a> {
        let max = webhook.max_in_flight as usize;
        WebhookLimits {
            webhook_id: webhook.id,
            tenant_id: &webhook.tenant.id,
            max_in_flight: if self.needs_assigned_node(webhook) {
                max
            } else {
                webhook.tenant.local_share().split_count(max)
            },
            tenant_max_unsettled: webhook.tenant.max_in_flight(),
            host: webhook.host(),
        }
    }

    /// Returns how many requests this node may have in flight to one destination host: its share of the limit for all
    /// sending nodes, at least one.
    pub(super) fn host_limit(&self) -> usize {
        let limit = self.host_max_in_flight;
        limit.map_or(usize::MAX, |limit| self.shares.cluster_share().split_count(limit).max(1))
    }
}

impl Dispatcher {
    /// Returns whether the assignment of a webhook to this node may be released: it is not needed any more, or the
    /// webhook has been idle for a while.
    pub(crate) fn may_unassign(&self, webhook_id: WebhookId, now: Duration) -> bool {
        let webhook = self.router.webhook(webhook_id);
        if let Some(webhook) = &webhook
            && !self.assignments.needs_assigned_node(webhook)
        {
            // Other nodes use their shares from now on, so this node must be within its own.
            let max = self.assignments.webhook_limits(webhook).max_in_flight;
            return self.queues.in_flight_count(webhook_id) <= max;
        }
        let is_idle = self.queues.is_webhook_idle(webhook_id);
        if self.queues.is_draining() {
            return is_idle;
        }
        // Tokens used and probes sent are known to this node only.
        let is_transferable =
            |webhook: &ResolvedWebhook| self.coordinator.local.is_transferable(webhook, self.clock.now());
        self.assignments.has_reached_idle_timeout(
            webhook_id,
            is_idle && webhook.is_none_or(|webhook| is_transferable(&webhook)),
            now,
        )
    }
}
