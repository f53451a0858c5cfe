//! Bounds the open connections per IP address, over all hosts, webhooks and tenants.
//!
//! One tenant never gets all of an address's connections: see [`redrive_core::dispatch::fairness::may_take`].

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use redrive_core::dispatch::fairness::{TENANT_FACTOR, may_take};
use tokio::{sync::Notify, time::timeout};

/// Counts of open connections by address. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Connections(Arc<Inner>);

struct Inner {
    /// Maximum number of connections per address; `None` for no limit.
    max: Option<usize>,
    by_address: Mutex<HashMap<IpAddr, Usage>>,
}

/// The connections of one address.
#[derive(Default)]
struct Usage {
    open: usize,
    /// Open connections by tenant key; tenants without any are removed.
    by_tenant: HashMap<u64, usize>,
    /// Notified whenever a connection is closed.
    closed: Arc<Notify>,
}

/// Permit for one open connection, released on drop.
pub(crate) struct Permit {
    connections: Weak<Inner>,
    address: IpAddr,
    tenant_key: u64,
}

impl Connections {
    pub(crate) fn new(max: Option<usize>) -> Self {
        Self(Arc::new(Inner { max: max.map(|max| max.max(1)), by_address: Mutex::default() }))
    }

    /// Acquires a permit for one more connection to `address`, waiting for at most `wait`. Returns `None` if none
    /// became available in that time.
    pub(crate) async fn acquire(&self, address: IpAddr, tenant_key: u64, wait: Duration) -> Option<Permit> {
        let address = address.to_canonical();
        timeout(wait, async {
            loop {
                let closed = match self.try_acquire(address, tenant_key) {
                    Ok(permit) => return permit,
                    Err(closed) => closed,
                };
                let mut next_close = std::pin::pin!(closed.notified());
                next_close.as_mut().enable();
                // Try again: a connection closed before this waiter was registered did not notify it.
                match self.try_acquire(address, tenant_key) {
                    Ok(permit) => return permit,
                    Err(_) => next_close.await,
                }
            }
        })
        .await
        .ok()
    }

    fn try_acquire(&self, address: IpAddr, tenant_key: u64) -> Result<Permit, Arc<Notify>> {
        let Some(max) = self.0.max else {
            return Ok(Permit { connections: Weak::new(), address, tenant_key });
        };
        let mut by_address = self.0.by_address.lock();
        let usage = by_address.entry(address).or_default();
        let own = usage.by_tenant.get(&tenant_key).copied().unwrap_or(0);
        if !may_take(max, usage.open, own, TENANT_FACTOR) {
            return Err(usage.closed.clone());
        }
        usage.open += 1;
        *usage.by_tenant.entry(tenant_key).or_default() += 1;
        Ok(Permit { connections: Arc::downgrade(&self.0), address, tenant_key })
    }

    #[cfg(test)]
    fn open(&self, address: IpAddr) -> usize {
        self.0.by_address.lock().get(&address).map_or(0, |usage| usage.open)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let Some(connections) = self.connections.upgrade() else { return };
        let mut by_address = connections.by_address.lock();
        let Some(usage) = by_address.get_mut(&self.address) else { return };
        usage.open -= 1;
        if let Some(own) = usage.by_tenant.get_mut(&self.tenant_key) {
            *own -= 1;
            if *own == 0 {
                usage.by_tenant.remove(&self.tenant_key);
            }
        }
        usage.closed.notify_waiters();
        if usage.open == 0 {
            by_address.remove(&self.address);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(20);
    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    #[tokio::test]
    async fn connection_beyond_the_limit_waits_until_one_is_closed() {
        let connections = Connections::new(Some(2));
        let first = connections.acquire(HERE, 1, SHORT).await.unwrap();
        let mapped = "::ffff:127.0.0.1".parse().unwrap();
        let second = connections.acquire(mapped, 2, SHORT).await.unwrap();
        assert!(connections.acquire(HERE, 3, SHORT).await.is_none());
        let elsewhere = "127.0.0.2".parse().unwrap();
        assert!(
            connections.acquire(elsewhere, 3, SHORT).await.is_some(),
            "another address has its own limit"
        );
        let waiting = tokio::spawn({
            let connections = connections.clone();
            async move { connections.acquire(HERE, 3, Duration::from_secs(5)).await }
        });
        tokio::task::yield_now().await;
        drop(first);
        let third = waiting.await.unwrap().unwrap();
        assert_eq!(connections.open(HERE), 2);
        drop((second, third));
        assert_eq!(connections.open(HERE), 0);
        assert!(connections.0.by_address.lock().is_empty(), "an address without connections is removed");
    }

    #[tokio::test]
    async fn tenant_cannot_take_all_connections_of_address() {
        let connections = Connections::new(Some(10));
        let mut held = Vec::new();
        while let Some(permit) = connections.acquire(HERE, 1, SHORT).await {
            held.push(permit);
        }
        assert_eq!(held.len(), 8, "four times the free connections");
        assert!(connections.acquire(HERE, 2, SHORT).await.is_some());
    }

    #[tokio::test]
    async fn connections_are_not_counted_without_limit() {
        let connections = Connections::new(None);
        let permits = [connections.acquire(HERE, 1, SHORT).await, connections.acquire(HERE, 1, SHORT).await];
        assert!(permits.iter().all(Option::is_some));
        assert_eq!(connections.open(HERE), 0);
    }
}
