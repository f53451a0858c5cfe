//! How many connections there may be, in all and from one address; behind a trusted proxy, how many requests.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};

/// The places for connections.
pub(super) struct Places {
    room: Arc<Semaphore>,
    addresses: Arc<AddressCounts>,
}

impl Places {
    /// So many in all, and for each address.
    pub(super) fn new(all: usize, each: usize) -> Self {
        let addresses = AddressCounts { max_per_address: each, counts: Mutex::default() };
        Self { room: Arc::new(Semaphore::new(all)), addresses: Arc::new(addresses) }
    }

    /// Waits for room.
    pub(super) async fn room(&self) -> Result<OwnedSemaphorePermit, AcquireError> {
        self.room.clone().acquire_owned().await
    }

    /// A place for a connection from this address, or from a client that is not counted. Returns `None` if the address has
    /// too many.
    pub(super) fn take(&self, room: OwnedSemaphorePermit, whose: Option<IpAddr>) -> Option<Place> {
        let counted = match whose {
            Some(address) => Some(self.count(address)?),
            None => None,
        };
        Some(Place { _counted: counted, _room: room })
    }

    /// Counts a connection from this address, or a request that a proxy forwards for it, until the result is dropped.
    /// Returns `None` if the address has as many as it may.
    pub(super) fn count(&self, address: IpAddr) -> Option<Counted> {
        let address = household(address);
        let mut counts = self.addresses.counts.lock();
        let count = counts.entry(address).or_default();
        if *count >= self.addresses.max_per_address {
            return None;
        }
        *count += 1;
        Some(Counted { addresses: self.addresses.clone(), address })
    }
}

/// How many connections and forwarded requests each address has.
struct AddressCounts {
    max_per_address: usize,
    counts: Mutex<HashMap<IpAddr, usize>>,
}

/// A connection's place, free again when dropped.
pub(super) struct Place {
    _counted: Option<Counted>,
    _room: OwnedSemaphorePermit,
}

/// One connection or forwarded request in the count of its address.
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

/// What counts as one address: in IPv6 everybody has a whole network to choose from.
pub(crate) fn household(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64)).into(),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_address_has_its_share_and_gets_it_back() {
        let places = Places::new(10, 2);
        let take = async |address: &str| {
            let room = places.room().await.unwrap();
            places.take(room, Some(address.parse().unwrap()))
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
        assert!(places.addresses.counts.lock().is_empty(), "an address without connections has no entry");
        assert_eq!(places.room.available_permits(), 10);
    }
}
