//! Slots that tenants share: a limit for all, a lower one for each tenant, and waiting tenants served in turn.
//!
//! One tenant never holds all slots, and however many of its requests wait, another tenant's request waits for at most
//! one of each tenant. Waiting is bounded in number and in time.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use redrive_core::{TenantId, dispatch::fairness::may_take};
use tokio::sync::oneshot;

/// Limits of slots and of waiting requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotLimits {
    pub(crate) total: usize,
    pub(crate) per_tenant: usize,
    /// Multiple of the free slots that one tenant may hold (`fairness::may_take`), so that a tenant without slots
    /// finds one.
    pub(crate) factor: usize,
    pub(crate) waiting_per_tenant: usize,
    pub(crate) waiting: usize,
    pub(crate) timeout: Duration,
}

/// Error if no slot was granted: too many requests wait, or the timeout has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Overloaded;

#[derive(Clone)]
pub(crate) struct TenantSlots(Arc<Shared>);

struct Shared {
    limits: SlotLimits,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    used: usize,
    waiting: usize,
    tenants: HashMap<TenantId, TenantState>,
    /// Tenants with waiting requests; the first is served next.
    order: VecDeque<TenantId>,
}

#[derive(Default)]
struct TenantState {
    used: usize,
    waiting: VecDeque<oneshot::Sender<Slot>>,
}

/// A slot, held until dropped.
pub(crate) struct Slot {
    shared: Arc<Shared>,
    tenant_id: TenantId,
}

impl TenantSlots {
    pub(crate) fn new(limits: SlotLimits) -> Self {
        Self(Arc::new(Shared { limits, state: Mutex::default() }))
    }

    /// Takes a slot if one is free for this tenant now.
    pub(crate) fn try_acquire(&self, tenant_id: &TenantId) -> Option<Slot> {
        let mut state = self.0.state.lock();
        state.take(&self.0.limits, tenant_id).then(|| self.slot(tenant_id))
    }

    /// Waits for a slot.
    pub(crate) async fn acquire(&self, tenant_id: &TenantId) -> Result<Slot, Overloaded> {
        let granted = {
            let limits = &self.0.limits;
            let mut state = self.0.state.lock();
            if state.take(limits, tenant_id) {
                return Ok(self.slot(tenant_id));
            }
            state.drop_abandoned();
            let waits = state.tenants.get(tenant_id).map_or(0, |own| own.waiting.len());
            if state.waiting >= limits.waiting || waits >= limits.waiting_per_tenant {
                return Err(Overloaded);
            }
            state.enqueue(tenant_id)
        };
        match tokio::time::timeout(self.0.limits.timeout, granted).await {
            Ok(Ok(slot)) => Ok(slot),
            _ => Err(Overloaded),
        }
    }

    fn slot(&self, tenant_id: &TenantId) -> Slot {
        Slot { shared: self.0.clone(), tenant_id: tenant_id.clone() }
    }
}

impl State {
    /// Counts one more slot of a tenant, if there is one.
    fn take(&mut self, limits: &SlotLimits, tenant_id: &TenantId) -> bool {
        let own = self.tenants.get(tenant_id).map_or(0, |own| own.used);
        if own >= limits.per_tenant || !may_take(limits.total, self.used, own, limits.factor) {
            return false;
        }
        self.tenants.entry(tenant_id.clone()).or_default().used += 1;
        self.used += 1;
        true
    }

    fn enqueue(&mut self, tenant_id: &TenantId) -> oneshot::Receiver<Slot> {
        let (sender, granted) = oneshot::channel();
        let own = self.tenants.entry(tenant_id.clone()).or_default();
        if own.waiting.is_empty() {
            self.order.push_back(tenant_id.clone());
        }
        own.waiting.push_back(sender);
        self.waiting += 1;
        granted
    }

    /// Removes requests whose callers have stopped waiting.
    fn drop_abandoned(&mut self) {
        for own in self.tenants.values_mut() {
            own.waiting.retain(|sender| !sender.is_closed());
        }
        self.waiting = self.tenants.values().map(|own| own.waiting.len()).sum();
        let tenants = &mut self.tenants;
        self.order.retain(|tenant_id| tenants.get(tenant_id).is_some_and(|own| !own.waiting.is_empty()));
        tenants.retain(|_, own| own.used > 0 || !own.waiting.is_empty());
    }

    /// Returns the next request that gets a slot, and counts the slot.
    fn next(&mut self, limits: &SlotLimits) -> Option<(TenantId, oneshot::Sender<Slot>)> {
        for _ in 0..self.order.len() {
            let tenant_id = self.order.pop_front()?;
            let Some(own) = self.tenants.get_mut(&tenant_id) else { continue };
            let may =
                own.used < limits.per_tenant && may_take(limits.total, self.used, own.used, limits.factor);
            let sender = if may { own.waiting.pop_front() } else { None };
            if !own.waiting.is_empty() {
                self.order.push_back(tenant_id.clone());
            }
            if let Some(sender) = sender {
                self.waiting -= 1;
                own.used += 1;
                self.used += 1;
                return Some((tenant_id, sender));
            }
        }
        None
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let next = {
            let mut state = self.shared.state.lock();
            state.used -= 1;
            if let Some(own) = state.tenants.get_mut(&self.tenant_id) {
                own.used -= 1;
                if own.used == 0 && own.waiting.is_empty() {
                    state.tenants.remove(&self.tenant_id);
                }
            }
            state.drop_abandoned();
            state.next(&self.shared.limits)
        };
        if let Some((tenant_id, sender)) = next {
            // A caller that stopped waiting at this moment drops the slot, which grants it to the next one.
            let _ = sender.send(Slot { shared: self.shared.clone(), tenant_id });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(name: &str) -> TenantId {
        TenantId::parse(name).unwrap()
    }

    fn slots(total: usize, per_tenant: usize) -> TenantSlots {
        slots_with_timeout(total, per_tenant, Duration::from_secs(60))
    }

    fn slots_with_timeout(total: usize, per_tenant: usize, timeout: Duration) -> TenantSlots {
        TenantSlots::new(SlotLimits {
            total,
            per_tenant,
            factor: total,
            waiting_per_tenant: 3,
            waiting: 5,
            timeout,
        })
    }

    #[tokio::test]
    async fn one_tenant_never_holds_all_slots() {
        let slots = slots(2, 1);
        let (acme, globex) = (tenant("acme"), tenant("globex"));
        let held = slots.try_acquire(&acme).unwrap();
        assert!(slots.try_acquire(&acme).is_none());
        let other = slots.try_acquire(&globex).unwrap();
        assert!(slots.try_acquire(&tenant("initech")).is_none(), "all slots are in use");
        drop((held, other));
        assert!(slots.try_acquire(&acme).is_some());
        assert!(slots.0.state.lock().tenants.is_empty(), "idle tenants use no memory");
    }

    #[tokio::test]
    async fn new_tenant_finds_slot_beside_greedy_tenants() {
        let limits = SlotLimits { factor: 1, ..slots(32, 8).0.limits };
        let slots = TenantSlots::new(limits);
        let mut held = Vec::new();
        for _ in 0..20 {
            for n in 0..8 {
                held.extend(slots.try_acquire(&tenant(&format!("greedy-{n}"))));
            }
        }
        assert!(held.len() >= 24, "{}", held.len());
        assert!(slots.try_acquire(&tenant("newcomer")).is_some());
    }

    #[tokio::test]
    async fn waiting_tenants_are_served_in_turn() {
        let slots = slots(1, 1);
        let held = slots.try_acquire(&tenant("acme")).unwrap();
        let (order, mut served) = tokio::sync::mpsc::unbounded_channel();
        for (n, name) in ["acme", "acme", "acme", "globex"].into_iter().enumerate() {
            let (waiting, order) = (slots.clone(), order.clone());
            tokio::spawn(async move {
                let slot = waiting.acquire(&tenant(name)).await.unwrap();
                let _ = order.send(name);
                drop(slot);
            });
            while slots_waiting(&slots) < n + 1 {
                tokio::task::yield_now().await;
            }
        }
        assert!(slots.acquire(&tenant("acme")).await.is_err(), "further requests of one tenant are refused");
        drop((held, order));
        let mut names = Vec::new();
        while let Some(name) = served.recv().await {
            names.push(name);
        }
        assert_eq!(names, ["acme", "globex", "acme", "acme"]);
    }

    fn slots_waiting(slots: &TenantSlots) -> usize {
        slots.0.state.lock().waiting
    }

    #[tokio::test]
    async fn waiting_request_times_out_and_is_removed() {
        let slots = slots_with_timeout(1, 1, Duration::from_millis(20));
        let held = slots.try_acquire(&tenant("acme")).unwrap();
        assert!(slots.acquire(&tenant("globex")).await.is_err());
        drop(held);
        assert!(slots.try_acquire(&tenant("globex")).is_some());
        assert!(slots.0.state.lock().order.is_empty());
    }
}
