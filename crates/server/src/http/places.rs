//! How many connections there may be, in all and from one address.

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
    each: usize,
    taken: Mutex<HashMap<IpAddr, usize>>,
}

impl Places {
    /// So many in all, and for each address.
    pub(super) fn new(all: usize, each: usize) -> Arc<Self> {
        Arc::new(Self { room: Arc::new(Semaphore::new(all)), each, taken: Mutex::default() })
    }

    /// Waits for room.
    pub(super) async fn room(&self) -> Result<OwnedSemaphorePermit, AcquireError> {
        self.room.clone().acquire_owned().await
    }

    /// A place for a connection from this address, or from somebody who is not counted. None: it has too many.
    pub(super) fn take(self: &Arc<Self>, room: OwnedSemaphorePermit, whose: Option<IpAddr>) -> Option<Place> {
        let whose = whose.map(household);
        if let Some(whose) = whose {
            let mut taken = self.taken.lock();
            let count = taken.entry(whose).or_default();
            if *count >= self.each {
                return None;
            }
            *count += 1;
        }
        Some(Place { places: self.clone(), whose, _room: room })
    }
}

/// A connection's place, free again when dropped.
pub(super) struct Place {
    places: Arc<Places>,
    whose: Option<IpAddr>,
    _room: OwnedSemaphorePermit,
}

impl Drop for Place {
    fn drop(&mut self) {
        let Some(whose) = self.whose else { return };
        let mut taken = self.places.taken.lock();
        if let Some(count) = taken.get_mut(&whose) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&whose);
            }
        }
    }
}

/// What counts as one address: in IPv6 everybody has a whole network to choose from.
fn household(address: IpAddr) -> IpAddr {
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
        assert!(places.taken.lock().is_empty(), "nobody is remembered for nothing");
        assert_eq!(places.room.available_permits(), 10);
    }
}
