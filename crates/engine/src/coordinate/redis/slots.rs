//! Slots of this node for each webhook: its share of the cluster-wide limit of requests in flight, acquired from
//! Redis on demand and released when idle or when other nodes wait for slots.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use redrive_core::{WebhookId, cluster::limit_share::fair_share};

use crate::{clock::monotonic_now, ids::ById};

/// Time without a request after which a webhook's slots are released.
const IDLE_TIMEOUT: Duration = Duration::from_secs(1);
/// Interval at which held slots are renewed in Redis. They expire after three times as long.
const RENEW_INTERVAL: Duration = Duration::from_secs(5);
/// Time after another node waited for slots during which this node keeps no more than its fair share.
const FAIR_SHARE_PERIOD: Duration = Duration::from_millis(500);

/// Slots of this node by webhook. See the module.
#[derive(Default)]
pub(crate) struct Slots(Mutex<ById<WebhookId, WebhookSlots>>);

#[derive(Default)]
struct WebhookSlots {
    granted: u32,
    used: u32,
    cap: u32,
    /// Temporary maximum and when it was set, because other nodes wait.
    max: Option<(u32, Duration)>,
    idle_since: Option<Duration>,
    /// Time of the last report to Redis.
    reported: Duration,
    /// Whether the count in Redis is outdated.
    changed: bool,
}

impl WebhookSlots {
    /// Releases slots that are above the fair share and not in use.
    fn release_excess(&mut self, now: Duration) {
        if let Some((max, since)) = self.max {
            if now.saturating_sub(since) > FAIR_SHARE_PERIOD {
                self.max = None;
            } else if self.granted > max.max(self.used) {
                self.granted = max.max(self.used);
                self.changed = true;
            }
        }
    }
}

/// Slot of one request in flight, released on drop.
pub(crate) struct Slot {
    slots: Arc<Slots>,
    webhook_id: WebhookId,
}

impl Drop for Slot {
    fn drop(&mut self) {
        let slots = &mut *self.slots.0.lock();
        if let Some(held) = slots.get_mut(&self.webhook_id) {
            held.used = held.used.saturating_sub(1);
            let now = monotonic_now();
            held.release_excess(now);
            if held.used == 0 {
                held.idle_since = Some(now);
                if held.granted == 0 && !held.changed {
                    slots.remove(&self.webhook_id);
                }
            }
        }
    }
}

impl Slots {
    /// Acquires one of the slots that this node holds, if one is free. `cap` is the webhook's limit.
    pub(crate) fn try_acquire(self: &Arc<Self>, webhook_id: WebhookId, cap: u32) -> Option<Slot> {
        let slots = &mut *self.0.lock();
        let held = slots.get_mut(&webhook_id)?;
        held.cap = cap;
        if held.granted > cap.max(held.used) {
            held.granted = cap.max(held.used);
            held.changed = true;
        }
        held.release_excess(monotonic_now());
        (held.used < held.granted.min(cap)).then(|| {
            held.used += 1;
            held.idle_since = None;
            Slot { slots: self.clone(), webhook_id }
        })
    }

    /// Counts a request that starts during fallback. `cap` is the webhook's limit; Redis is informed when it is
    /// available.
    pub(crate) fn acquire_in_fallback(self: &Arc<Self>, webhook_id: WebhookId, cap: u32) -> Slot {
        {
            let slots = &mut *self.0.lock();
            let held = slots.entry(webhook_id).or_default();
            held.cap = cap;
            held.used += 1;
        }
        self.granted(webhook_id)
    }

    /// Returns the guard of a slot that was just granted and is already counted as used.
    pub(super) fn granted(self: &Arc<Self>, webhook_id: WebhookId) -> Slot {
        Slot { slots: self.clone(), webhook_id }
    }

    /// Returns how many slots this node reports to Redis as held, and how many of them are in use.
    pub(super) fn held_count(&self, webhook_id: WebhookId, cap: u32) -> (u32, u32) {
        let slots = &mut *self.0.lock();
        let held = slots.entry(webhook_id).or_default();
        (held.cap, held.reported, held.changed) = (cap, monotonic_now(), false);
        (held.granted, held.used.min(held.granted))
    }

    /// Applies a reply of Redis: the slots that this node now holds, relative to the number it had reported. `used`
    /// more are in use immediately; `nodes` nodes want slots, and `waiting` of them wait.
    pub(super) fn apply_reply(
        &self,
        webhook_id: WebhookId,
        reported: u32,
        used: u32,
        [total, nodes, waiting]: [u32; 3],
    ) {
        let slots = &mut *self.0.lock();
        let held = slots.entry(webhook_id).or_default();
        held.granted = (held.granted + total).saturating_sub(reported);
        held.used += used;
        if held.used > 0 {
            held.idle_since = None;
        } else {
            held.idle_since.get_or_insert_with(monotonic_now);
        }
        if waiting > 0 {
            held.max = Some((fair_share(held.cap, nodes), monotonic_now()));
            held.release_excess(monotonic_now());
        }
    }

    /// Handles demand of other nodes: `nodes` nodes want slots, and one of them has none. Returns whether slots are
    /// released.
    pub(super) fn on_demand(&self, webhook_id: WebhookId, nodes: u32) -> bool {
        let slots = &mut *self.0.lock();
        let Some(held) = slots.get_mut(&webhook_id) else { return false };
        held.max = Some((fair_share(held.cap, nodes), monotonic_now()));
        held.release_excess(monotonic_now());
        held.changed
    }

    /// Returns the webhooks whose slots must be reported to Redis, each with its cap.
    pub(super) fn to_renew(&self) -> Vec<(WebhookId, u32)> {
        let now = monotonic_now();
        let slots = &mut *self.0.lock();
        slots.retain(|_, held| held.granted > 0 || held.used > 0 || held.changed);
        let mut report = Vec::new();
        for (webhook_id, held) in slots {
            held.release_excess(now);
            if held.used == 0 && held.idle_since.is_some_and(|since| now.saturating_sub(since) > IDLE_TIMEOUT)
            {
                held.changed |= held.granted > 0;
                held.granted = 0;
            }
            if held.changed || held.granted > 0 && now.saturating_sub(held.reported) > RENEW_INTERVAL {
                report.push((*webhook_id, held.cap));
            }
        }
        report
    }

    /// Marks all slots to be reported again, since Redis has lost them.
    pub(super) fn resend_all(&self) {
        self.0.lock().values_mut().for_each(|held| held.changed = true);
    }

    /// Resumes after Redis became available: reports only the requests in flight, which Redis does not know.
    pub(super) fn resume(&self) {
        self.clear();
        self.resend_all();
    }

    /// Releases all slots not in use, since this node stops sending.
    pub(super) fn release_all(&self) {
        for held in self.0.lock().values_mut() {
            (held.granted, held.changed) = (held.used, true);
        }
    }

    /// Drops all granted slots, since Redis is unavailable. Requests in flight stay counted and are reported later.
    pub(super) fn clear(&self) {
        self.0.lock().retain(|_, held| {
            (held.granted, held.max, held.changed) = (held.used, None, false);
            held.used > 0
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id() -> WebhookId {
        WebhookId::new(redrive_core::Time::default(), &[1; 10])
    }

    #[test]
    fn granted_slots_are_used_and_released_on_demand() {
        let slots = Arc::new(Slots::default());
        assert!(slots.try_acquire(id(), 4).is_none(), "nothing was granted");
        assert_eq!(slots.held_count(id(), 4), (0, 0));
        slots.apply_reply(id(), 0, 0, [4, 1, 0]);
        let taken: Vec<_> = (0..4).map(|_| slots.try_acquire(id(), 4).unwrap()).collect();
        assert!(slots.try_acquire(id(), 4).is_none());
        assert!(!slots.on_demand(id(), 2), "a slot in use is not released");
        drop(taken);
        assert_eq!(slots.to_renew(), [(id(), 4)]);
        assert_eq!(slots.held_count(id(), 4), (2, 0), "half of the slots are kept");
    }

    #[test]
    fn fallback_requests_are_reported_when_redis_returns() {
        let slots = Arc::new(Slots::default());
        let (one, other) = (slots.acquire_in_fallback(id(), 4), slots.acquire_in_fallback(id(), 4));
        drop(other);
        slots.resume();
        assert_eq!(slots.to_renew(), [(id(), 4)]);
        assert_eq!(slots.held_count(id(), 4), (1, 1), "one is in flight");
        drop(one);
    }

    #[test]
    fn reply_is_relative_to_reported_count() {
        let slots = Arc::new(Slots::default());
        slots.held_count(id(), 4);
        slots.apply_reply(id(), 0, 0, [4, 2, 0]);
        let (reported, _) = slots.held_count(id(), 4);
        slots.on_demand(id(), 2);
        slots.apply_reply(id(), reported, 0, [4, 2, 0]);
        assert_eq!(slots.held_count(id(), 4), (2, 0), "released in between");
    }

    #[test]
    fn slot_used_immediately_is_not_released_on_demand() {
        let slots = Arc::new(Slots::default());
        slots.held_count(id(), 1);
        slots.apply_reply(id(), 0, 1, [1, 3, 2]);
        let slot = slots.granted(id());
        assert_eq!(slots.held_count(id(), 1), (1, 1), "a request is in flight");
        drop(slot);
        assert_eq!(slots.held_count(id(), 1), (0, 0), "the idle slot may be released");
    }
}
