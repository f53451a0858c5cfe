//! The requests that this node may have under way to each webhook: its part of what all nodes together may have, taken
//! from Redis when it is needed and given back when it is not, or when others wait for it.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use redrive_core::{WebhookId, cluster::limit_share::fair_part};

use crate::{clock::ticks, ids::ById};

/// After so long without a request a webhook's slots are given back.
const IDLE: Duration = Duration::from_secs(1);
/// How often Redis hears that slots are still held. It forgets them after three times as long.
const RENEW: Duration = Duration::from_secs(5);
/// For so long after somebody waited for slots this node takes no more than its fair part.
const MODEST: Duration = Duration::from_millis(500);

/// See the module.
#[derive(Default)]
pub(crate) struct Slots(Mutex<ById<WebhookId, Held>>);

#[derive(Default)]
struct Held {
    granted: u32,
    used: u32,
    cap: u32,
    /// No more than so many since then, because others wait.
    most: Option<(u32, Duration)>,
    idle_since: Option<Duration>,
    /// When Redis last heard of it.
    told: Duration,
    /// Redis believes that there are more.
    changed: bool,
}

impl Held {
    /// Gives up what is above the fair part and not in use.
    fn give_up(&mut self, now: Duration) {
        if let Some((most, since)) = self.most {
            if now.saturating_sub(since) > MODEST {
                self.most = None;
            } else if self.granted > most.max(self.used) {
                self.granted = most.max(self.used);
                self.changed = true;
            }
        }
    }
}

/// A request that may be under way; it ends when this is dropped.
pub(crate) struct Slot {
    slots: Arc<Slots>,
    webhook: WebhookId,
}

impl Drop for Slot {
    fn drop(&mut self) {
        let slots = &mut *self.slots.0.lock();
        if let Some(held) = slots.get_mut(&self.webhook) {
            held.used = held.used.saturating_sub(1);
            let now = ticks();
            held.give_up(now);
            if held.used == 0 {
                held.idle_since = Some(now);
                if held.granted == 0 && !held.changed {
                    slots.remove(&self.webhook);
                }
            }
        }
    }
}

impl Slots {
    /// One of those that this node holds, if there is one left, for a webhook that may have so many.
    pub(crate) fn take(self: &Arc<Self>, webhook: WebhookId, cap: u32) -> Option<Slot> {
        let slots = &mut *self.0.lock();
        let held = slots.get_mut(&webhook)?;
        held.cap = cap;
        if held.granted > cap.max(held.used) {
            held.granted = cap.max(held.used);
            held.changed = true;
        }
        held.give_up(ticks());
        (held.used < held.granted.min(cap)).then(|| {
            held.used += 1;
            held.idle_since = None;
            Slot { slots: self.clone(), webhook }
        })
    }

    /// A request that begins without Redis, to a webhook that may have so many: Redis hears of it when it is back.
    pub(crate) fn count(self: &Arc<Self>, webhook: WebhookId, cap: u32) -> Slot {
        {
            let slots = &mut *self.0.lock();
            let held = slots.entry(webhook).or_default();
            held.cap = cap;
            held.used += 1;
        }
        self.granted(webhook)
    }

    /// One that was just granted, and counted as used.
    pub(super) fn granted(self: &Arc<Self>, webhook: WebhookId) -> Slot {
        Slot { slots: self.clone(), webhook }
    }

    /// How many slots this node reports to Redis as held, and how many of them are in use.
    pub(super) fn tell(&self, webhook: WebhookId, cap: u32) -> (u32, u32) {
        let slots = &mut *self.0.lock();
        let held = slots.entry(webhook).or_default();
        (held.cap, held.told, held.changed) = (cap, ticks(), false);
        (held.granted, held.used.min(held.granted))
    }

    /// Redis was told that this node holds so many; it holds `total` now, of which so many more are `used` at once, and
    /// others want some as well.
    pub(super) fn answered(
        &self,
        webhook: WebhookId,
        told: u32,
        used: u32,
        [total, nodes, waiting]: [u32; 3],
    ) {
        let slots = &mut *self.0.lock();
        let held = slots.entry(webhook).or_default();
        held.granted = (held.granted + total).saturating_sub(told);
        held.used += used;
        if held.used > 0 {
            held.idle_since = None;
        } else {
            held.idle_since.get_or_insert_with(ticks);
        }
        if waiting > 0 {
            held.most = Some((fair_part(held.cap, nodes), ticks()));
            held.give_up(ticks());
        }
    }

    /// So many nodes want slots of this webhook, and one of them has none. True if this node gives some up.
    pub(super) fn wanted(&self, webhook: WebhookId, nodes: u32) -> bool {
        let slots = &mut *self.0.lock();
        let Some(held) = slots.get_mut(&webhook) else { return false };
        held.most = Some((fair_part(held.cap, nodes), ticks()));
        held.give_up(ticks());
        held.changed
    }

    /// Webhooks of which Redis has to hear again, each with its cap.
    pub(super) fn to_tell(&self) -> Vec<(WebhookId, u32)> {
        let now = ticks();
        let slots = &mut *self.0.lock();
        slots.retain(|_, held| held.granted > 0 || held.used > 0 || held.changed);
        let mut tell = Vec::new();
        for (webhook, held) in slots {
            held.give_up(now);
            if held.used == 0 && held.idle_since.is_some_and(|since| now.saturating_sub(since) > IDLE) {
                held.changed |= held.granted > 0;
                held.granted = 0;
            }
            if held.changed || held.granted > 0 && now.saturating_sub(held.told) > RENEW {
                tell.push((*webhook, held.cap));
            }
        }
        tell
    }

    /// Redis has forgotten what is held: it is told again.
    pub(super) fn tell_again(&self) {
        self.0.lock().values_mut().for_each(|held| held.changed = true);
    }

    /// Redis is back, and has never heard of what is under way: it is told of that, and of nothing else.
    pub(super) fn begin(&self) {
        self.forget_all();
        self.tell_again();
    }

    /// Nothing more is to be sent from here.
    pub(super) fn give_up_all(&self) {
        for held in self.0.lock().values_mut() {
            (held.granted, held.changed) = (held.used, true);
        }
    }

    /// Redis is gone, and so is what it granted. What is under way it hears of when it is back.
    pub(super) fn forget_all(&self) {
        self.0.lock().retain(|_, held| {
            (held.granted, held.most, held.changed) = (held.used, None, false);
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
    fn what_is_granted_is_used_and_given_up_when_others_wait() {
        let slots = Arc::new(Slots::default());
        assert!(slots.take(id(), 4).is_none(), "nothing was granted");
        assert_eq!(slots.tell(id(), 4), (0, 0));
        slots.answered(id(), 0, 0, [4, 1, 0]);
        let taken: Vec<_> = (0..4).map(|_| slots.take(id(), 4).unwrap()).collect();
        assert!(slots.take(id(), 4).is_none());
        assert!(!slots.wanted(id(), 2), "what is in use is not given up");
        drop(taken);
        assert_eq!(slots.to_tell(), [(id(), 4)]);
        assert_eq!(slots.tell(id(), 4), (2, 0), "half of it is kept");
    }

    #[test]
    fn what_began_without_redis_is_told_with_its_cap_when_it_is_back() {
        let slots = Arc::new(Slots::default());
        let (one, other) = (slots.count(id(), 4), slots.count(id(), 4));
        drop(other);
        slots.begin();
        assert_eq!(slots.to_tell(), [(id(), 4)]);
        assert_eq!(slots.tell(id(), 4), (1, 1), "one is in flight");
        drop(one);
    }

    #[test]
    fn an_answer_counts_from_what_was_told() {
        let slots = Arc::new(Slots::default());
        slots.tell(id(), 4);
        slots.answered(id(), 0, 0, [4, 2, 0]);
        let (told, _) = slots.tell(id(), 4);
        slots.wanted(id(), 2);
        slots.answered(id(), told, 0, [4, 2, 0]);
        assert_eq!(slots.tell(id(), 4), (2, 0), "given up in between");
    }

    #[test]
    fn what_goes_at_once_is_not_given_up_although_others_wait() {
        let slots = Arc::new(Slots::default());
        slots.tell(id(), 1);
        slots.answered(id(), 0, 1, [1, 3, 2]);
        let slot = slots.granted(id());
        assert_eq!(slots.tell(id(), 1), (1, 1), "a request is in flight");
        drop(slot);
        assert_eq!(slots.tell(id(), 1), (0, 0), "and now another node may have it");
    }
}
