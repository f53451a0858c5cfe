//! What matters only where other nodes share the store.

use std::collections::VecDeque;

use redrive_core::{DeliveryId, WebhookId, delivery::lane::Lane};
use redrive_store::LaneKey;

use super::{Ready, Whom, state::State};

impl State {
    /// Takes one delivery out of its queue. It takes a slot, as if it were sent.
    pub(super) fn take_one(&mut self, webhook: WebhookId, delivery: DeliveryId) -> Option<Ready> {
        let hook = self.hooks.get_mut(&webhook)?;
        let (lane, at) = hook.lanes.iter().enumerate().find_map(|(lane, queue)| {
            Some((lane, queue.queue.iter().position(|ready| ready.id == delivery)?))
        })?;
        let ready = hook.lanes[lane].queue.remove(at)?;
        self.take_slot(webhook, lane);
        Some(ready)
    }

    /// Drops what is queued under a term that is over. Whatever of it is on its way in is found out at the gate.
    pub(super) fn throw_away(&mut self) {
        let webhooks: Vec<WebhookId> = self.hooks.keys().copied().collect();
        for webhook in webhooks {
            let Some(hook) = self.hooks.get_mut(&webhook) else { continue };
            let mut over = Vec::new();
            for queue in &mut hook.lanes {
                let queued = queue.queue.drain(..);
                let (gone, stays): (VecDeque<_>, VecDeque<_>) = queued.partition(|one| one.term.is_over());
                queue.queue = stays;
                over.extend(gone);
            }
            for ready in over {
                self.owned.remove(&ready.id);
                self.free_room(webhook, &ready.lane, 1, ready.event.weight());
            }
            // Whoever took over has let go of the lanes as well: whatever is behind is asked for anew.
            self.note_all_hunger(webhook);
            if let Some(hook) = self.hooks.get_mut(&webhook) {
                (0..hook.lanes.len()).for_each(|lane| hook.vacate_if_idle(lane));
            }
            self.forget_if_idle(webhook);
        }
    }

    pub(super) fn surrender(&mut self, webhook: WebhookId) -> Vec<Ready> {
        let mut hand_back = Vec::new();
        if let Some(hook) = self.hooks.get_mut(&webhook) {
            hook.lanes.iter_mut().for_each(|queue| queue.hand_back(&mut hand_back));
        }
        hand_back
    }

    pub(super) fn set_caps(&mut self, whom: Whom<'_>) {
        if self.hooks.contains_key(&whom.webhook) {
            let place = self.enter(whom).tenant;
            self.give_next_turns(whom.webhook);
            self.note_all_hunger(whom.webhook);
            self.unpark_tenant(place);
        }
    }

    /// Whether a lane that the store says is held by this node will be claimed from again.
    pub(super) fn knows_lane(&self, key: &LaneKey) -> bool {
        let Some(hook) = self.hooks.get(&key.webhook) else { return false };
        hook.position(&key.lane).is_some_and(|at| hook.lanes[at].backlog || hook.lanes[at].reserved > 0)
    }

    /// Has a lane that is held by this node claimed from as soon as there is capacity.
    pub(super) fn adopt_lane(&mut self, whom: Whom<'_>, lane: &Lane) {
        let at = self.enter(whom).lane(lane);
        if let Some(hook) = self.hooks.get_mut(&whom.webhook) {
            hook.lanes[at].backlog = true;
        }
        self.note_hunger(whom.webhook, at);
    }

    /// Room for a lane was asked for, and there is none. It is asked for again as soon as there is.
    pub(super) fn decline(&mut self, key: &LaneKey) {
        let Some(hook) = self.hooks.get_mut(&key.webhook) else { return };
        let Some(lane) = hook.position(&key.lane) else { return };
        // What is held back is found in the store again once nothing holds it back.
        hook.lanes[lane].backlog = !hook.is_parked();
        self.note_hunger(key.webhook, lane);
        if let Some(hook) = self.hooks.get_mut(&key.webhook) {
            hook.vacate_if_idle(lane);
        }
        self.forget_if_idle(key.webhook);
    }

    pub(super) fn is_quiet(&self, webhook: WebhookId) -> bool {
        self.hooks.get(&webhook).is_none_or(|hook| {
            // Nobody holds the lanes of a webhook that is blocked.
            let behind = hook.lanes.iter().any(|queue| queue.backlog) && !hook.is_parked();
            hook.sending.is_empty() && hook.held() == 0 && !behind
        })
    }
}
