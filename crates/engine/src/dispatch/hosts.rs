//! Limits the requests in flight to one destination host, over all webhooks and tenants of this node.
//!
//! A lane whose turn comes while its host is full leaves its tenant's queue and waits at the host, so that it
//! delays no other lane. When a request to the host ends, waiting lanes are enqueued again: one of each class per
//! free slot, so that the class weights choose among them, with round-robin over tenants. A lane that cannot use
//! its slot passes it on. One tenant never gets all slots of a host: see [`fairness::may_take`].

use std::collections::{HashMap, VecDeque};

use redrive_core::{
    WebhookId,
    delivery::lane::CLASS_COUNT,
    dispatch::fairness::{self, TENANT_FACTOR},
    security::egress_rules::HostKey,
};

use super::state::State;

type LaneRef = (WebhookId, usize);

/// Lanes of one class that wait at a host, round-robin over tenants.
#[derive(Debug, Default)]
struct WaitQueue {
    tenants: VecDeque<usize>,
    lanes: HashMap<usize, VecDeque<LaneRef>>,
}

impl WaitQueue {
    fn push(&mut self, tenant: usize, lane: LaneRef, first: bool) {
        let lanes = self.lanes.entry(tenant).or_default();
        if lanes.is_empty() {
            match first {
                true => self.tenants.push_front(tenant),
                false => self.tenants.push_back(tenant),
            }
        }
        match first {
            true => lanes.push_front(lane),
            false => lanes.push_back(lane),
        }
    }

    /// Removes the lanes of a webhook, and returns their indexes.
    fn remove(&mut self, tenant: usize, webhook_id: WebhookId) -> Vec<usize> {
        let Some(lanes) = self.lanes.get_mut(&tenant) else { return Vec::new() };
        let mut removed = Vec::new();
        lanes.retain(|(waiting_id, lane)| {
            let stays = *waiting_id != webhook_id;
            if !stays {
                removed.push(*lane);
            }
            stays
        });
        if lanes.is_empty() {
            self.lanes.remove(&tenant);
            self.tenants.retain(|waiting| *waiting != tenant);
        }
        removed
    }

    /// Takes a lane of the first tenant that `may_go`, and moves the tenant to the end.
    fn pop(&mut self, mut may_go: impl FnMut(usize) -> bool) -> Option<(usize, LaneRef)> {
        let index = self.tenants.iter().position(|tenant| may_go(*tenant))?;
        let tenant = self.tenants.remove(index)?;
        let lanes = self.lanes.get_mut(&tenant)?;
        let lane = lanes.pop_front()?;
        match lanes.is_empty() {
            true => drop(self.lanes.remove(&tenant)),
            false => self.tenants.push_back(tenant),
        }
        Some((tenant, lane))
    }
}

/// A host to which a webhook in memory sends.
#[derive(Debug, Default)]
struct Host {
    key: HostKey,
    /// Number of webhooks, requests and lanes that refer to its index. It is removed when there are none.
    references: usize,
    in_flight: usize,
    /// Requests in flight by tenant; tenants without any are removed, so the list is short.
    by_tenant: Vec<(usize, usize)>,
    waiting: [WaitQueue; CLASS_COUNT],
    waiting_lanes: usize,
    /// Number of lanes that were granted a slot, so that they were enqueued again, and have not been started yet.
    granted: [usize; CLASS_COUNT],
}

/// The hosts of all webhooks in memory.
#[derive(Debug)]
pub(super) struct Hosts {
    max_in_flight: usize,
    indexes: HashMap<HostKey, usize>,
    hosts: Vec<Host>,
    free_indexes: Vec<usize>,
    /// Hosts whose waiting lanes must be checked.
    to_check: Vec<usize>,
}

impl Hosts {
    pub(super) fn new(max_in_flight: usize) -> Self {
        Self {
            max_in_flight: max_in_flight.max(1),
            indexes: HashMap::new(),
            hosts: Vec::new(),
            free_indexes: Vec::new(),
            to_check: Vec::new(),
        }
    }

    /// Returns the index of a host and adds a reference to it, which [`Hosts::drop_reference`] removes.
    pub(super) fn acquire_host_index(&mut self, key: HostKey) -> usize {
        let index = match self.indexes.get(&key) {
            Some(index) => *index,
            None => {
                let index = self.free_indexes.pop().unwrap_or_else(|| {
                    self.hosts.push(Host::default());
                    self.hosts.len() - 1
                });
                self.hosts[index].key = key;
                self.indexes.insert(key, index);
                index
            }
        };
        self.hosts[index].references += 1;
        index
    }

    /// Drops a reference to a host, and removes the host with its last one.
    pub(super) fn drop_reference(&mut self, index: usize) {
        let host = &mut self.hosts[index];
        host.references -= 1;
        if host.references == 0 {
            self.indexes.remove(&host.key);
            *host = Host::default();
            self.free_indexes.push(index);
        }
    }

    pub(super) fn key(&self, index: usize) -> HostKey {
        self.hosts[index].key
    }

    /// Returns whether a tenant may have one more request in flight to a host.
    pub(super) fn may_take(&self, index: usize, tenant: usize) -> bool {
        let host = &self.hosts[index];
        let own = host.by_tenant.iter().find(|(other, _)| *other == tenant).map_or(0, |(_, own)| *own);
        fairness::may_take(self.max_in_flight, host.in_flight, own, TENANT_FACTOR)
    }

    /// Returns whether a tenant may have one more request in flight to a host. `None` is a tenant without requests
    /// here.
    pub(super) fn may_take_by_key(&self, key: HostKey, tenant: Option<usize>) -> bool {
        let index = self.indexes.get(&key);
        index.is_none_or(|index| self.may_take(*index, tenant.unwrap_or(usize::MAX)))
    }

    /// Counts a request, and adds a reference that keeps the host.
    pub(super) fn take(&mut self, index: usize, tenant: usize) {
        let host = &mut self.hosts[index];
        host.references += 1;
        host.in_flight += 1;
        match host.by_tenant.iter_mut().find(|(other, _)| *other == tenant) {
            Some((_, own)) => *own += 1,
            None => host.by_tenant.push((tenant, 1)),
        }
    }

    /// Ends a request. The caller must call [`State::grant_host_slots`] afterwards.
    pub(super) fn free(&mut self, index: usize, tenant: usize) {
        let host = &mut self.hosts[index];
        host.in_flight -= 1;
        if let Some(entry) = host.by_tenant.iter().position(|(other, _)| *other == tenant) {
            host.by_tenant[entry].1 -= 1;
            if host.by_tenant[entry].1 == 0 {
                host.by_tenant.swap_remove(entry);
            }
        }
        if host.waiting_lanes > 0 {
            self.to_check.push(index);
        }
        self.drop_reference(index);
    }

    fn wait(&mut self, index: usize, class: usize, tenant: usize, lane: LaneRef, first: bool) {
        let host = &mut self.hosts[index];
        host.references += 1;
        host.waiting_lanes += 1;
        host.waiting[class].push(tenant, lane, first);
    }

    /// Removes the lanes of a webhook that wait at a host, and returns their indexes.
    pub(super) fn remove_waiting(
        &mut self,
        index: usize,
        tenant: usize,
        webhook_id: WebhookId,
    ) -> Vec<usize> {
        let host = &mut self.hosts[index];
        let lanes: Vec<_> =
            host.waiting.iter_mut().flat_map(|queue| queue.remove(tenant, webhook_id)).collect();
        host.waiting_lanes -= lanes.len();
        // The caller still has the webhook's own reference.
        host.references -= lanes.len();
        lanes
    }

    /// Ends the grant of a lane: it was started, or leaves the queue without being started.
    fn end_host_grant(&mut self, index: usize, class: usize) {
        self.hosts[index].granted[class] -= 1;
        self.to_check.push(index);
        self.drop_reference(index);
    }

    fn has_lanes_of(&self, index: usize, tenant: usize) -> bool {
        let waiting = self.hosts.get(index).map(|host| &host.waiting);
        waiting.is_some_and(|queues| queues.iter().any(|queue| queue.lanes.contains_key(&tenant)))
    }
}

impl State {
    /// Lets a lane wait at its webhook's host. It stays marked, so that it is not enqueued a second time.
    pub(super) fn wait_at_host(&mut self, webhook_id: WebhookId, lane: usize, first: bool) {
        let Some(queues) = self.webhooks.get_mut(&webhook_id) else { return };
        let (host, tenant) = (queues.host, queues.tenant);
        let queue = &mut queues.lanes[lane];
        queue.is_ready_or_waiting_at_host = true;
        let class = queue.lane.class();
        self.hosts.wait(host, class, tenant, (webhook_id, lane), first);
        self.tenants[tenant].waiting_hosts.insert(host);
    }

    /// Ends the grant of a lane that leaves its tenant's queue.
    pub(super) fn end_host_grant(&mut self, webhook_id: WebhookId, lane: usize) {
        let Some(queues) = self.webhooks.get_mut(&webhook_id) else { return };
        let queue = &mut queues.lanes[lane];
        if let Some(host) = queue.granted_by_host.take() {
            let class = queue.lane.class();
            self.hosts.end_host_grant(host, class);
        }
    }

    /// Enqueues waiting lanes of every host that may have a free slot.
    pub(super) fn grant_host_slots(&mut self) {
        while let Some(host) = self.hosts.to_check.pop() {
            for class in 0..CLASS_COUNT {
                while self.grant_one(host, class) {}
            }
        }
    }

    fn grant_one(&mut self, index: usize, class: usize) -> bool {
        let host = &self.hosts.hosts[index];
        let free = self.hosts.max_in_flight.saturating_sub(host.in_flight);
        if host.waiting_lanes == 0 || host.granted[class] >= free {
            return false;
        }
        let mut queue = std::mem::take(&mut self.hosts.hosts[index].waiting[class]);
        let next = queue.pop(|tenant| {
            if !self.tenant_may_send(tenant) {
                // The tenant is checked again when it is resumed.
                self.suspend_tenant(tenant);
            }
            !self.tenants[tenant].is_suspended && self.hosts.may_take(index, tenant)
        });
        // Suspending a tenant may have returned lanes to this host in the meantime.
        let returned = std::mem::replace(&mut self.hosts.hosts[index].waiting[class], queue);
        for (tenant, lanes) in returned.lanes {
            for lane in lanes.into_iter().rev() {
                self.hosts.hosts[index].waiting[class].push(tenant, lane, true);
            }
        }
        let Some((tenant, (webhook_id, lane))) = next else { return false };
        let host = &mut self.hosts.hosts[index];
        host.waiting_lanes -= 1;
        host.granted[class] += 1;
        // The lane keeps its reference to the host until its grant ends.
        if let Some(queues) = self.webhooks.get_mut(&webhook_id) {
            queues.lanes[lane].granted_by_host = Some(index);
        }
        self.tenants[tenant].ready_lanes[class].push_front((webhook_id, lane));
        self.enqueue_tenant(tenant, class);
        true
    }

    /// Lets the lanes of a tenant that may not send give up their grants and wait at their hosts again, so that other
    /// tenants can use the slots. Lanes with a grant are at the front of the queue.
    pub(super) fn return_host_grants(&mut self, tenant: usize) {
        for class in 0..CLASS_COUNT {
            while let Some((webhook_id, lane)) = self.tenants[tenant].ready_lanes[class].front().copied() {
                let granted = self
                    .webhooks
                    .get(&webhook_id)
                    .is_some_and(|queues| queues.lanes[lane].granted_by_host.is_some());
                if !granted {
                    break;
                }
                self.tenants[tenant].ready_lanes[class].pop_front();
                self.end_host_grant(webhook_id, lane);
                self.wait_at_host(webhook_id, lane, true);
            }
        }
    }

    /// Checks the lanes of a tenant that wait at hosts, after the tenant may send again.
    pub(super) fn grant_host_slots_to(&mut self, tenant: usize) {
        let waiting_hosts = &mut self.tenants[tenant].waiting_hosts;
        if waiting_hosts.is_empty() {
            return;
        }
        waiting_hosts.retain(|host| self.hosts.has_lanes_of(*host, tenant));
        self.hosts.to_check.extend(waiting_hosts.iter());
        self.grant_host_slots();
    }

    /// Changes the maximum number of requests in flight to each host.
    pub(super) fn set_host_limit(&mut self, max_in_flight: usize) {
        self.hosts.max_in_flight = max_in_flight.max(1);
        let waiting = (0..self.hosts.hosts.len()).filter(|index| self.hosts.hosts[*index].waiting_lanes > 0);
        let waiting: Vec<usize> = waiting.collect();
        self.hosts.to_check.extend(waiting);
        self.grant_host_slots();
    }
}

#[cfg(test)]
impl Hosts {
    /// Returns the number of requests in flight and of references of each host.
    pub(super) fn counts(&self) -> Vec<(HostKey, usize, usize)> {
        let used = self.indexes.values().map(|index| &self.hosts[*index]);
        used.map(|host| (host.key, host.in_flight, host.references)).collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.indexes.is_empty() && self.to_check.is_empty()
    }
}
