//! Whose turn it is: classes by weight, tenants in turn within a class, webhooks in turn within a tenant.

use std::collections::VecDeque;

use redrive_core::{
    WebhookId,
    delivery::lane::CLASSES,
    dispatch::fairness::{self, RETRY_FACTOR, TENANT_FACTOR, Turns},
};

use super::{Moves, lanes::Sending, state::State};

/// The first class of retries.
const FIRST_RETRY: usize = CLASSES / 2;

/// Tenants with something to send, class by class.
#[derive(Default)]
pub(super) struct Rota {
    tenants: [VecDeque<usize>; CLASSES],
    turns: Turns,
}

impl State {
    /// Puts a lane in line if it may send.
    pub(super) fn give_turn(&mut self, webhook: WebhookId, lane: usize) {
        let Some(hook) = self.hooks.get_mut(&webhook) else { return };
        if hook.lanes[lane].in_turn || !hook.may_send(lane) {
            return;
        }
        let queue = &mut hook.lanes[lane];
        queue.in_turn = true;
        let (place, class) = (hook.tenant, queue.lane.class());
        self.tenants[place].turns[class].push_back((webhook, lane));
        self.join_rota(place, class);
    }

    /// Puts lanes of a webhook in line that may send now that a request is over: those of every class, among
    /// which the weights choose, and as many orders in turn as it may have requests.
    pub(super) fn give_next_turns(&mut self, webhook: WebhookId) {
        let Some(hook) = self.hooks.get(&webhook) else { return };
        let (lanes, first, orders) = (hook.lanes.len(), hook.look_at, hook.has_orders());
        let mut wanted = hook.max_in_flight.saturating_sub(hook.sending.len());
        for lane in hook.free_lanes() {
            self.give_turn(webhook, lane);
        }
        for at in (0..lanes).filter(|_| orders) {
            if wanted == 0 {
                break;
            }
            let lane = (first + at) % lanes;
            let Some(hook) = self.hooks.get(&webhook) else { return };
            if !hook.lanes[lane].lane.is_ordered() {
                continue;
            }
            self.give_turn(webhook, lane);
            if let Some(hook) = self.hooks.get_mut(&webhook)
                && hook.lanes[lane].in_turn
            {
                wanted -= 1;
                hook.look_at = lane + 1;
            }
        }
    }

    /// Puts every lane of a webhook in line that may send.
    pub(super) fn give_turns(&mut self, webhook: WebhookId) {
        let lanes = self.hooks.get(&webhook).map_or(0, |hook| hook.lanes.len());
        for lane in 0..lanes {
            self.give_turn(webhook, lane);
        }
    }

    pub(super) fn join_rota(&mut self, place: usize, class: usize) {
        let tenant = &mut self.tenants[place];
        if !tenant.parked && !tenant.in_rota[class] && !tenant.turns[class].is_empty() {
            tenant.in_rota[class] = true;
            self.rota.tenants[class].push_back(place);
        }
    }

    /// Puts a tenant aside that may not send more for now. [`State::wake_hosts`] has to follow: slots of hosts that
    /// its lanes were woken for are left to others.
    pub(super) fn park_tenant(&mut self, place: usize) {
        let tenant = &mut self.tenants[place];
        if !tenant.parked {
            tenant.parked = true;
            self.parked.push_back(place);
            self.return_wakes(place);
        }
    }

    /// Puts a tenant back in line that was set aside. It may be set aside again when its turn comes.
    pub(super) fn unpark_tenant(&mut self, place: usize) {
        if !self.tenants[place].parked {
            return;
        }
        self.tenants[place].parked = false;
        self.parked.retain(|parked| *parked != place);
        for class in 0..CLASSES {
            self.join_rota(place, class);
        }
        self.wake_hosts_of(place);
        self.forget_tenant_if_idle(place);
    }

    /// A slot is free: whoever was set aside for want of one is asked again, in turn.
    pub(super) fn unpark_one(&mut self, place: usize) {
        if self.tenants[place].parked {
            self.unpark_tenant(place);
        } else if let Some(first) = self.parked.front().copied() {
            self.unpark_tenant(first);
        }
    }

    pub(super) fn may_send(&self, place: usize) -> bool {
        let tenant = &self.tenants[place];
        tenant.blocked_until.is_none()
            && tenant.unsettled < tenant.max_in_flight
            && fairness::may_take(self.bounds.max_in_flight, self.unsettled, tenant.unsettled, TENANT_FACTOR)
    }

    /// Which classes have somebody in line. Retries never take the last free slots.
    fn classes_in_line(&self) -> [bool; CLASSES] {
        let retries = self.retries < self.retry_window
            && fairness::may_take(self.bounds.max_in_flight, self.unsettled, self.retries, RETRY_FACTOR);
        let mut in_line = [false; CLASSES];
        for (class, tenants) in self.rota.tenants.iter().enumerate() {
            in_line[class] = !tenants.is_empty() && (retries || class < FIRST_RETRY);
        }
        in_line
    }

    /// Starts as many requests as may be started, each class getting its share.
    pub(super) fn pump(&mut self) -> Moves {
        let mut moves = Moves { refill: !self.hungry.is_empty() && !self.draining, ..Moves::default() };
        if self.draining || self.store_down || self.silent || self.blocked_until.is_some() {
            return moves;
        }
        while self.unsettled < self.bounds.max_in_flight {
            let Some(class) = self.rota.turns.next(self.classes_in_line()) else { break };
            let Some(place) = self.rota.tenants[class].pop_front() else { break };
            self.tenants[place].in_rota[class] = false;
            if self.may_send(place) {
                self.start_one(place, class, &mut moves);
                self.join_rota(place, class);
            } else {
                self.park_tenant(place);
                self.wake_hosts();
            }
            self.forget_tenant_if_idle(place);
        }
        moves
    }

    /// Starts one request of a tenant's next webhook in this class that may send.
    fn start_one(&mut self, place: usize, class: usize, moves: &mut Moves) {
        while let Some((webhook, lane)) = self.tenants[place].turns[class].pop_front() {
            let Some(hook) = self.hooks.get_mut(&webhook) else { continue };
            let was_woken = hook.lanes[lane].woken_at.is_some();
            hook.lanes[lane].in_turn = false;
            let started = self.start_lane(webhook, lane, class, moves);
            if was_woken {
                // After its start, so that the slot it was woken for is not seen as free.
                self.end_wake(webhook, lane);
                self.wake_hosts();
            }
            self.forget_if_idle(webhook);
            if started {
                return;
            }
        }
    }

    /// Starts the first delivery of a lane, unless the webhook may not send or its host is full.
    fn start_lane(&mut self, webhook: WebhookId, lane: usize, class: usize, moves: &mut Moves) -> bool {
        let Some(hook) = self.hooks.get_mut(&webhook) else { return false };
        if !hook.may_send(lane) {
            hook.vacate_if_idle(lane);
            return false;
        }
        if !self.hosts.may_take(hook.host, hook.tenant) {
            self.wait_at_host(webhook, lane, false);
            return false;
        }
        let Some(ready) = hook.lanes[lane].queue.pop_front() else { return false };
        self.hosts.take(hook.host, hook.tenant);
        hook.sending.push(Sending { delivery: ready.id, host: hook.host });
        self.take_slot(webhook, lane);
        self.rota.turns.took(class);
        moves.start.push(ready);
        self.give_turn(webhook, lane);
        true
    }
}
