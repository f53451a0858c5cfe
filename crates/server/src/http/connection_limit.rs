//! Connection limits, in total and per address; for clients behind a trusted proxy, a limit of requests.

use std::{collections::HashMap, net::IpAddr, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};

use crate::request::address_group;

/// Limiter of connections.
pub(super) struct ConnectionLimiter {
    capacity_freed: Arc<Semaphore>,
    addresses: Arc<AddressCounts>,
}

impl ConnectionLimiter {
    /// Creates a limiter with a total limit and a limit per address.
    pub(super) fn new(all: usize, each: usize) -> Self {
        let addresses = AddressCounts { max_per_address: each, counts: Mutex::default() };
        Self { capacity_freed: Arc::new(Semaphore::new(all)), addresses: Arc::new(addresses) }
    }

    /// Waits until the total is below its limit.
    pub(super) async fn wait_for_capacity(&self) -> Result<OwnedSemaphorePermit, AcquireError> {
        self.capacity_freed.clone().acquire_owned().await
    }

    /// Acquires a permit for a connection from this address; `None` stands for a client that is not counted. Returns
    /// `None` if the address has reached its limit.
    pub(super) fn try_acquire(
        &self,
        capacity: OwnedSemaphorePermit,
        address: Option<IpAddr>,
    ) -> Option<ConnectionPermit> {
        let counted = match address {
            Some(address) => Some(self.count(address)?),
            None => None,
        };
        Some(ConnectionPermit { _counted: counted, _capacity: capacity })
    }

    /// Counts a connection from this address, or a request that a proxy forwards for it, until the result is dropped.
    /// Returns `None` if the address has reached its limit.
    pub(super) fn count(&self, address: IpAddr) -> Option<Counted> {
        let address = address_group(address);
        let mut counts = self.addresses.counts.lock();
        let count = counts.entry(address).or_default();
        if *count >= self.addresses.max_per_address {
            return None;
        }
        *count += 1;
        Some(Counted { addresses: self.addresses.clone(), address })
    }
}

/// Number of connections and forwarded requests per address.
struct AddressCounts {
    max_per_address: usize,
    counts: Mutex<HashMap<IpAddr, usize>>,
}

/// Permit of a connection, released when dropped.
pub(super) struct ConnectionPermit {
    _counted: Option<Counted>,
    _capacity: OwnedSemaphorePermit,
}

/// One connection or forwarded request, counted for its address until dropped.
pub(super) struct Counted {
    addresses: Arc<AddressCounts>,
    address: IpAddr,
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut counts = self.addresses.counts.lock();
        if let Some(count) = counts.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn address_limit_is_enforced_and_released() {
        let positions = ConnectionLimiter::new(10, 2);
        let take = async |address: &str| {
            let capacity = positions.wait_for_capacity().await.unwrap();
            positions.try_acquire(capacity, Some(address.parse().unwrap()))
        };
        let first = take("192.0.2.1").await;
        let second = take("::ffff:192.0.2.1").await;
        assert!(first.is_some() && second.is_some());
        assert!(take("192.0.2.1").await.is_none());
        let network = [take("2001:db8::1").await, take("2001:db8::ffff:2").await];
        assert!(network.iter().all(Option::is_some) && take("2001:db8::3").await.is_none());
        assert!(take("2001:db8:0:1::1").await.is_some(), "another network");
        drop(first);
        assert!(take("192.0.2.1").await.is_some());
        drop((second, network));
        assert!(positions.addresses.counts.lock().is_empty(), "an address without connections has no entry");
        assert_eq!(positions.capacity_freed.available_permits(), 10);
    }
}
