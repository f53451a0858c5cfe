//! Webhooks that one node alone sends to, and what that means for the others. Where nodes do not share a store,
//! none of this matters.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use redrive_core::{
    WebhookId,
    cluster::assignment::{HomeFacts, needs_home},
    delivery::lane::Ordering,
};
use redrive_store::{LaneKey, StoreError};

use crate::{Inner, clock::ticks, dispatch::Whom, ids::ById, membership::Term, registry::Hook};

/// How long a home has nothing to do before it is left to whoever is next.
const REST: Duration = Duration::from_secs(2);
/// How often homes are looked at.
const LOOK: Duration = Duration::from_millis(500);

/// The webhooks that are at home here.
#[derive(Default)]
pub(crate) struct Homes(Mutex<Known>);

#[derive(Default)]
struct Known {
    /// Each with the time since which it has had nothing to do.
    idle_since: ById<WebhookId, Option<Duration>>,
    looked: Duration,
}

impl Homes {
    /// Something of the webhook was claimed alone.
    pub(crate) fn moved_in(&self, webhook: WebhookId) {
        self.0.lock().idle_since.insert(webhook, None);
    }

    pub(crate) fn has(&self, webhook: WebhookId) -> bool {
        self.0.lock().idle_since.contains_key(&webhook)
    }

    /// They belonged to an epoch that is over.
    pub(crate) fn forget_all(&self) {
        self.0.lock().idle_since.clear();
    }

    /// All of them, if it is time to look.
    fn to_look_at(&self, now: Duration) -> Vec<WebhookId> {
        let known = &mut *self.0.lock();
        if known.idle_since.is_empty() || now.saturating_sub(known.looked) < LOOK {
            return Vec::new();
        }
        known.looked = now;
        known.idle_since.keys().copied().collect()
    }

    /// Whether a home that is idle now has been so for long enough.
    fn is_rested(&self, webhook: WebhookId, idle: bool, now: Duration) -> bool {
        let known = &mut *self.0.lock();
        let Some(since) = known.idle_since.get_mut(&webhook) else { return false };
        *since = idle.then_some(since.unwrap_or(now));
        since.is_some_and(|since| now.saturating_sub(since) >= REST)
    }

    fn moved_out(&self, webhooks: &[WebhookId]) {
        let known = &mut *self.0.lock();
        for webhook in webhooks {
            known.idle_since.remove(webhook);
        }
    }
}

impl Inner {
    /// Whether one node alone must send to a webhook.
    pub(crate) fn needs_home(&self, hook: &Hook) -> bool {
        self.fleet.is_shared()
            && needs_home(&HomeFacts {
                ordered: hook.ordering != Ordering::None,
                // Redis counts for all nodes, wherever they send from.
                rate_limited: self.shared().is_none() && hook.rate_limit().is_some(),
                troubled: self.shared().is_none() && self.coordination.is_troubled(hook.id, self.clock.now()),
                max_in_flight: hook.max_in_flight as usize,
                senders: hook.tenant.part().of,
            })
    }

    /// Whether what is claimed from a lane makes this node the home of its webhook.
    pub(crate) fn claims_alone(&self, key: &LaneKey) -> bool {
        self.fleet.is_shared()
            && (key.lane.is_ordered()
                || self.registry.hook(key.webhook).is_some_and(|hook| self.needs_home(&hook)))
    }

    /// Whom something is for, and how many requests this node may have under way for it: all that the webhook
    /// may have if it is sent from one node alone, else this node's part of them.
    pub(crate) fn whom<'a>(&self, hook: &'a Hook) -> Whom<'a> {
        let most = hook.max_in_flight as usize;
        Whom {
            webhook: hook.id,
            tenant: &hook.tenant.id,
            max_in_flight: if self.needs_home(hook) { most } else { hook.tenant.part().of_count(most) },
            tenant_max_in_flight: hook.tenant.max_in_flight(),
            host: hook.host(),
        }
    }

    /// How many requests this node may have in flight to one destination host: its part of what all nodes that send
    /// may have together, and at least one.
    pub(crate) fn host_limit(&self) -> usize {
        let limit = self.settings.host_max_in_flight;
        limit.map_or(usize::MAX, |limit| self.shares.of_all().of_count(limit).max(1))
    }

    /// Gives back what is queued for a webhook that has to be sent from its home, if that is not here.
    pub(crate) fn leave_to_home(self: &Arc<Self>, hook: &Hook) {
        if self.needs_home(hook) && !self.fleet.homes.has(hook.id) {
            let moves = self.dispatch.surrender(hook.id);
            self.carry_out(moves);
        }
    }

    /// There are more or fewer to share with.
    pub(crate) fn shares_changed(self: &Arc<Self>) {
        let moves = self.dispatch.set_host_limit(self.host_limit());
        self.carry_out(moves);
        for webhook in self.dispatch.webhooks() {
            if let Some(hook) = self.registry.hook(webhook) {
                self.leave_to_home(&hook);
                let moves = self.dispatch.set_caps(self.whom(&hook));
                self.carry_out(moves);
            }
        }
        self.alarm.ring();
    }

    /// Leaves homes that have nothing to do, or are needed no longer. Only to be called where nothing is being
    /// claimed meanwhile: nobody may move out of a home while something moves in.
    pub(crate) async fn leave_homes(&self, term: &Term) -> Result<(), StoreError> {
        let now = ticks();
        let mut left = self.fleet.homes.to_look_at(now);
        left.retain(|webhook| self.may_leave(*webhook, now));
        if !left.is_empty() {
            self.store.leave(term.epoch, left.clone()).await?;
            self.fleet.homes.moved_out(&left);
        }
        Ok(())
    }

    fn may_leave(&self, webhook: WebhookId, now: Duration) -> bool {
        let hook = self.registry.hook(webhook);
        if let Some(hook) = &hook
            && !self.needs_home(hook)
        {
            // The others take their parts from now on, so this node must be content with its own.
            return self.dispatch.sending(webhook) <= self.whom(hook).max_in_flight;
        }
        let quiet = self.dispatch.is_quiet(webhook);
        if self.dispatch.is_draining() {
            return quiet;
        }
        // Tokens that were used up and probes that were sent are known here alone.
        let at_rest = |hook: &Hook| self.coordination.is_at_rest(hook, self.clock.now());
        self.fleet.homes.is_rested(webhook, quiet && hook.is_none_or(|hook| at_rest(&hook)), now)
    }
}
