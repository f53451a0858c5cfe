//! Assignments: webhooks that only one node may send to, and what that means for the other nodes. Unused if the
//! store is not shared.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use redrive_core::{
    WebhookId,
    cluster::assignment::{AssignmentInput, needs_assigned_node},
    delivery::lane::Ordering,
};
use redrive_store::{LaneKey, StoreError};

use crate::{
    Inner, clock::monotonic_now, dispatch::WebhookLimits, ids::ById, membership::NodeEpoch,
    registry::ResolvedWebhook,
};

/// Idle time after which an assignment is released.
const IDLE_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval between checks for idle assignments.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Webhooks assigned to this node.
#[derive(Default)]
pub(crate) struct Assignments(Mutex<AssignmentState>);

#[derive(Default)]
struct AssignmentState {
    /// Assigned webhooks, each with the time since which it has been idle.
    idle_since: ById<WebhookId, Option<Duration>>,
    checked_at: Duration,
}

impl Assignments {
    /// Records that a claim assigned the webhook to this node.
    pub(crate) fn assign(&self, webhook_id: WebhookId) {
        self.0.lock().idle_since.insert(webhook_id, None);
    }

    pub(crate) fn has(&self, webhook_id: WebhookId) -> bool {
        self.0.lock().idle_since.contains_key(&webhook_id)
    }

    /// Removes all assignments; they belonged to an epoch that has ended.
    pub(crate) fn clear(&self) {
        self.0.lock().idle_since.clear();
    }

    /// Returns all assigned webhooks if a check is due.
    fn due_for_check(&self, now: Duration) -> Vec<WebhookId> {
        let entry = &mut *self.0.lock();
        if entry.idle_since.is_empty() || now.saturating_sub(entry.checked_at) < CHECK_INTERVAL {
            return Vec::new();
        }
        entry.checked_at = now;
        entry.idle_since.keys().copied().collect()
    }

    /// Updates the idle time of an assignment and returns whether it has reached `IDLE_TIMEOUT`.
    fn is_idle_long_enough(&self, webhook_id: WebhookId, idle: bool, now: Duration) -> bool {
        let entry = &mut *self.0.lock();
        let Some(since) = entry.idle_since.get_mut(&webhook_id) else { return false };
        *since = idle.then_some(since.unwrap_or(now));
        since.is_some_and(|since| now.saturating_sub(since) >= IDLE_TIMEOUT)
    }

    fn unassign(&self, webhooks: &[WebhookId]) {
        let entry = &mut *self.0.lock();
        for webhook_id in webhooks {
            entry.idle_since.remove(webhook_id);
        }
    }
}

impl Inner {
    /// Returns whether only one node may send to a webhook.
    pub(crate) fn needs_assignment(&self, webhook: &ResolvedWebhook) -> bool {
        self.membership.is_shared()
            && needs_assigned_node(&AssignmentInput {
                ordered: webhook.ordering != Ordering::None,
                // With Redis, limits and circuits are counted for all nodes, so any node may send.
                rate_limited: self.redis_coordinator().is_none() && webhook.rate_limit().is_some(),
                impaired: self.redis_coordinator().is_none()
                    && self.coordination.is_impaired(webhook.id, self.clock.now()),
                max_in_flight: webhook.max_in_flight as usize,
                senders: webhook.tenant.coordinated_share().senders,
            })
    }

    /// Returns whether a claim from this lane assigns its webhook to this node.
    pub(crate) fn claims_exclusively(&self, key: &LaneKey) -> bool {
        self.membership.is_shared()
            && (key.lane.is_ordered()
                || self
                    .registry
                    .webhook(key.webhook_id)
                    .is_some_and(|webhook| self.needs_assignment(&webhook)))
    }

    /// Returns the limits of a webhook on this node: its whole `max_in_flight` if it needs an assigned node, else this
    /// node's share.
    pub(crate) fn webhook_limits<'a>(&self, webhook: &'a ResolvedWebhook) -> WebhookLimits<'a> {
        let max = webhook.max_in_flight as usize;
        WebhookLimits {
            webhook_id: webhook.id,
            tenant_id: &webhook.tenant.id,
            max_in_flight: if self.needs_assignment(webhook) {
                max
            } else {
                webhook.tenant.coordinated_share().split_count(max)
            },
            tenant_max_in_flight: webhook.tenant.max_in_flight(),
            host: webhook.host(),
        }
    }

    /// Returns how many requests this node may have in flight to one destination host: its share of the limit for all
    /// sending nodes, at least one.
    pub(crate) fn host_limit(&self) -> usize {
        let limit = self.settings.host_max_in_flight;
        limit.map_or(usize::MAX, |limit| self.shares.cluster_share().split_count(limit).max(1))
    }

    /// Releases queued deliveries of a webhook that needs an assigned node, if that is not this node.
    pub(crate) fn release_to_assigned_node(self: &Arc<Self>, webhook: &ResolvedWebhook) {
        if self.needs_assignment(webhook) && !self.membership.assignments.has(webhook.id) {
            let actions = self.dispatcher.release_queued(webhook.id);
            self.apply_actions(actions);
        }
    }

    /// Applies new limit shares after the number of nodes has changed.
    pub(crate) fn shares_changed(self: &Arc<Self>) {
        let actions = self.dispatcher.set_host_limit(self.host_limit());
        self.apply_actions(actions);
        for webhook_id in self.dispatcher.webhooks() {
            if let Some(webhook) = self.registry.webhook(webhook_id) {
                self.release_to_assigned_node(&webhook);
                let actions = self.dispatcher.set_webhook_limits(self.webhook_limits(&webhook));
                self.apply_actions(actions);
            }
        }
        self.scheduler_wakeup.wake();
    }

    /// Releases assignments that are idle or no longer needed. Must not run concurrently with a claim: the claim could
    /// take deliveries for an assignment that is being released, and two nodes would send to the webhook.
    pub(crate) async fn release_idle_assignments(&self, epoch: &NodeEpoch) -> Result<(), StoreError> {
        let now = monotonic_now();
        let mut left = self.membership.assignments.due_for_check(now);
        left.retain(|webhook_id| self.may_unassign(*webhook_id, now));
        if !left.is_empty() {
            self.store.release_assignments(epoch.epoch, left.clone()).await?;
            self.membership.assignments.unassign(&left);
        }
        Ok(())
    }

    fn may_unassign(&self, webhook_id: WebhookId, now: Duration) -> bool {
        let webhook = self.registry.webhook(webhook_id);
        if let Some(webhook) = &webhook
            && !self.needs_assignment(webhook)
        {
            // Other nodes use their shares from now on, so this node must be within its own.
            return self.dispatcher.in_flight_count(webhook_id) <= self.webhook_limits(webhook).max_in_flight;
        }
        let quiet = self.dispatcher.is_webhook_idle(webhook_id);
        if self.dispatcher.is_draining() {
            return quiet;
        }
        // Tokens used and probes sent are known to this node only.
        let at_rest =
            |webhook: &ResolvedWebhook| self.coordination.is_transferable(webhook, self.clock.now());
        self.membership.assignments.is_idle_long_enough(
            webhook_id,
            quiet && webhook.is_none_or(|webhook| at_rest(&webhook)),
            now,
        )
    }
}
