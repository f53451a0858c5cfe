//! Fair order of sending: classes by weight, tenants round-robin within a class, webhooks round-robin within a
//! tenant.

use std::collections::VecDeque;

use redrive_core::{
    WebhookId,
    delivery::lane::CLASS_COUNT,
    dispatch::fairness::{self, ClassScheduler, RETRY_FACTOR, TENANT_FACTOR},
};

use super::{DispatchActions, lanes::InFlightRequest, state::State};

/// The first class of retries.
const FIRST_RETRY_CLASS: usize = CLASS_COUNT / 2;

/// Tenants with deliveries to send, by class.
#[derive(Default)]
pub(super) struct ClassQueues {
    tenants: [VecDeque<usize>; CLASS_COUNT],
    scheduler: ClassScheduler,
}

impl State {
    /// Enqueues a lane if it may send.
    pub(super) fn enqueue_lane(&mut self, webhook_id: WebhookId, lane: usize) {
        let Some(queues) = self.webhooks.get_mut(&webhook_id) else { return };
        if queues.lanes[lane].is_ready_or_waiting_at_host || !queues.lane_may_send(lane) {
            return;
        }
        let queue = &mut queues.lanes[lane];
        queue.is_ready_or_waiting_at_host = true;
        let (index, class) = (queues.tenant, queue.lane.class());
        self.tenants[index].ready_lanes[class].push_back((webhook_id, lane));
        self.enqueue_tenant(index, class);
    }

    /// Enqueues the lanes of a webhook that may send after a request has ended: those of every class, among which the
    /// weights choose, and in turn as many ordered lanes as it has free slots.
    pub(super) fn enqueue_next_lanes(&mut self, webhook_id: WebhookId) {
        let Some(queues) = self.webhooks.get(&webhook_id) else { return };
        let (lanes, first, has_ordered) = (queues.lanes.len(), queues.next_lane, queues.has_ordered_lanes());
        let mut wanted = queues.max_in_flight.saturating_sub(queues.in_flight.len());
        for lane in queues.unordered_lanes() {
            self.enqueue_lane(webhook_id, lane);
        }
        for offset in (0..lanes).filter(|_| has_ordered) {
            if wanted == 0 {
                break;
            }
            let lane = (first + offset) % lanes;
            let Some(queues) = self.webhooks.get(&webhook_id) else { return };
            if !queues.lanes[lane].lane.is_ordered() {
                continue;
            }
            self.enqueue_lane(webhook_id, lane);
            if let Some(queues) = self.webhooks.get_mut(&webhook_id)
                && queues.lanes[lane].is_ready_or_waiting_at_host
            {
                wanted -= 1;
                queues.next_lane = lane + 1;
            }
        }
    }

    /// Enqueues every lane of a webhook that may send.
    pub(super) fn enqueue_lanes(&mut self, webhook_id: WebhookId) {
        let lanes = self.webhooks.get(&webhook_id).map_or(0, |queues| queues.lanes.len());
        for lane in 0..lanes {
            self.enqueue_lane(webhook_id, lane);
        }
    }

    pub(super) fn enqueue_tenant(&mut self, index: usize, class: usize) {
        let tenant = &mut self.tenants[index];
        if !tenant.is_suspended && !tenant.is_enqueued[class] && !tenant.ready_lanes[class].is_empty() {
            tenant.is_enqueued[class] = true;
            self.round_robin.tenants[class].push_back(index);
        }
    }

    /// Suspends a tenant that may not send more for now. The caller must call [`State::grant_host_slots`] afterwards: host
    /// slots that its lanes were granted are left to other tenants.
    ///
    /// The end of its hold, a free slot of its own or a changed limit resumes it; if only the fair limit prevents it from
    /// sending, a free slot of any tenant may do so too.
    pub(super) fn suspend_tenant(&mut self, index: usize) {
        let tenant = &mut self.tenants[index];
        if tenant.is_suspended {
            return;
        }
        tenant.is_suspended = true;
        self.update_fair_limit_queue(index);
        self.return_host_grants(index);
    }

    /// Enqueues a suspended tenant again. It may be suspended again when it reaches the front.
    pub(super) fn resume_tenant(&mut self, index: usize) {
        if !self.tenants[index].is_suspended {
            return;
        }
        self.leave_fair_limit_queue(index);
        self.tenants[index].is_suspended = false;
        for class in 0..CLASS_COUNT {
            self.enqueue_tenant(index, class);
        }
        self.grant_host_slots_to(index);
        self.evict_tenant_if_idle(index);
    }

    /// Removes a tenant from those that wait for a higher fair limit.
    fn leave_fair_limit_queue(&mut self, index: usize) {
        if let Some(unsettled) = self.tenants[index].fair_limit_key.take() {
            self.tenants_at_fair_limit.remove(&(unsettled, index));
        }
    }

    /// Places a tenant among those that wait for a higher fair limit, by its unsettled deliveries, or removes it if a
    /// higher fair limit would not let it send. Must follow every change of the unsettled deliveries of a suspended
    /// tenant.
    pub(super) fn update_fair_limit_queue(&mut self, index: usize) {
        self.leave_fair_limit_queue(index);
        let tenant = &mut self.tenants[index];
        if tenant.is_suspended && tenant.held_until.is_none() && tenant.unsettled < tenant.max_unsettled {
            tenant.fair_limit_key = Some(tenant.unsettled);
            self.tenants_at_fair_limit.insert((tenant.unsettled, index));
        }
    }

    /// Resumes the tenant with the fewest unsettled deliveries among those at the fair limit, if the limit has become
    /// higher. Returns whether one was taken out of their queue.
    fn resume_first_at_fair_limit(&mut self) -> bool {
        let Some((unsettled, index)) = self.tenants_at_fair_limit.first().copied() else { return false };
        if !fairness::may_take(self.limits.max_unsettled, self.unsettled, unsettled, TENANT_FACTOR) {
            return false;
        }
        if self.tenant_may_send(index) {
            self.resume_tenant(index);
        } else {
            // It is held or its limit has become lower: the end of its hold or a free slot of its own resumes it.
            self.leave_fair_limit_queue(index);
        }
        true
    }

    /// Returns whether the limits of this tenant allow it to send.
    pub(super) fn tenant_may_send(&self, index: usize) -> bool {
        let tenant = &self.tenants[index];
        tenant.held_until.is_none()
            && tenant.unsettled < tenant.max_unsettled
            && fairness::may_take(self.limits.max_unsettled, self.unsettled, tenant.unsettled, TENANT_FACTOR)
    }

    /// Returns whether a delivery of the retry class (retries and resends) may be sent. That class never takes the last
    /// free slots.
    pub(super) fn retries_may_send(&self) -> bool {
        self.unsettled_retries < self.retry_limit
            && fairness::may_take(
                self.limits.max_unsettled,
                self.unsettled,
                self.unsettled_retries,
                RETRY_FACTOR,
            )
    }

    /// Returns the classes that have a tenant to serve.
    fn ready_classes(&self) -> [bool; CLASS_COUNT] {
        let retries = self.retries_may_send();
        let mut ready = [false; CLASS_COUNT];
        for (class, tenants) in self.round_robin.tenants.iter().enumerate() {
            ready[class] = !tenants.is_empty() && (retries || class < FIRST_RETRY_CLASS);
        }
        ready
    }

    /// Starts as many requests as the limits allow, each class by its weight.
    pub(super) fn start_ready(&mut self) -> DispatchActions {
        let mut actions = DispatchActions {
            refill: !self.refills.is_empty() && !self.draining,
            ..DispatchActions::default()
        };
        if self.draining || self.store_down || self.node_suspended || self.held_until.is_some() {
            return actions;
        }
        while self.unsettled < self.limits.max_unsettled {
            // At most one in each iteration: the request that starts next may take the slot.
            let was_taken = self.resume_first_at_fair_limit();
            let Some(class) = self.round_robin.scheduler.next(self.ready_classes()) else {
                if was_taken {
                    continue;
                }
                break;
            };
            let Some(index) = self.round_robin.tenants[class].pop_front() else { break };
            self.tenants[index].is_enqueued[class] = false;
            if self.tenant_may_send(index) {
                self.start_next(index, class, &mut actions);
                self.enqueue_tenant(index, class);
            } else {
                self.suspend_tenant(index);
                self.grant_host_slots();
            }
            self.evict_tenant_if_idle(index);
        }
        actions
    }

    /// Starts one request of the tenant's next webhook in this class that may send.
    fn start_next(&mut self, index: usize, class: usize, actions: &mut DispatchActions) {
        while let Some((webhook_id, lane)) = self.tenants[index].ready_lanes[class].pop_front() {
            let Some(queues) = self.webhooks.get_mut(&webhook_id) else { continue };
            let was_granted = queues.lanes[lane].granted_by_host.is_some();
            queues.lanes[lane].is_ready_or_waiting_at_host = false;
            let started = self.start_lane(webhook_id, lane, class, actions);
            if was_granted {
                // After the start, so that the granted slot does not count as free.
                self.end_host_grant(webhook_id, lane);
                self.grant_host_slots();
            }
            self.evict_if_idle(webhook_id);
            if started {
                return;
            }
        }
    }

    /// Starts the first delivery of a lane, unless the webhook may not send or its host is full.
    fn start_lane(
        &mut self,
        webhook_id: WebhookId,
        lane: usize,
        class: usize,
        actions: &mut DispatchActions,
    ) -> bool {
        let Some(queues) = self.webhooks.get_mut(&webhook_id) else { return false };
        if !queues.lane_may_send(lane) {
            queues.free_if_idle(lane);
            return false;
        }
        if !self.hosts.may_take(queues.host, queues.tenant) {
            self.wait_at_host(webhook_id, lane, false);
            return false;
        }
        let Some(delivery) = queues.lanes[lane].queue.pop_front() else { return false };
        self.hosts.take(queues.host, queues.tenant);
        queues.in_flight.push(InFlightRequest { delivery_id: delivery.id, host: queues.host });
        self.count_unsettled(webhook_id, lane);
        self.round_robin.scheduler.charge(class);
        actions.start.push(delivery);
        self.enqueue_lane(webhook_id, lane);
        true
    }
}
