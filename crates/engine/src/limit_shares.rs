//! This node's part of what all that send may use together. Most of the time it is read: a word for each pool.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use redrive_core::{cluster::limit_share::Share, protection::limiter::RateLimit};
use redrive_store::{Epoch, Node};

/// The smallest rate that can be said. Whoever has no part of a rate sends nothing: see [`Shares::has_part`].
const LEAST: RateLimit = RateLimit { requests_per_minute: 1, burst: Some(1) };

/// See the module. A node that is alone has all of everything.
#[derive(Debug)]
pub(crate) struct Shares {
    /// The pools that this node serves, with its share among those that serve them too.
    pools: Box<[(String, Cell)]>,
    /// Its share among all that send.
    all: Cell,
    /// How fast is sent for all together.
    global: Option<RateLimit>,
    /// Redis counts what all use together, so that nothing has to be divided.
    whole: AtomicBool,
}

/// A share in one word.
#[derive(Debug)]
struct Cell(AtomicU64);

impl Cell {
    fn new() -> Self {
        Self(AtomicU64::new(Self::word(Share::ALONE)))
    }

    fn word(share: Share) -> u64 {
        (share.place as u64) << 32 | share.of as u64
    }

    fn get(&self) -> Share {
        let word = self.0.load(Relaxed);
        Share { place: (word >> 32) as usize, of: (word & u64::from(u32::MAX)) as usize }
    }

    /// True if it was another one before.
    fn set(&self, share: Share) -> bool {
        let word = Self::word(share);
        self.0.swap(word, Relaxed) != word
    }
}

impl Shares {
    pub(crate) fn new(pools: &[String], global: Option<RateLimit>) -> Self {
        let pools = pools.iter().map(|pool| (pool.clone(), Cell::new())).collect();
        Self { pools, all: Cell::new(), global, whole: AtomicBool::new(false) }
    }

    /// Takes note of who is there. True if this node's part of anything has changed.
    pub(crate) fn learn(&self, own: Epoch, nodes: &[&Node]) -> bool {
        let share_of = |serves: &dyn Fn(&Node) -> bool| {
            let mut senders: Vec<Epoch> =
                nodes.iter().filter(|node| serves(node)).map(|node| node.epoch).collect();
            senders.sort_unstable();
            let place = senders.iter().position(|epoch| *epoch == own);
            place.map_or(Share::ALONE, |place| Share { place, of: senders.len() })
        };
        let mut changed = self.all.set(share_of(&|node| !node.pools.is_empty()));
        for (pool, cell) in &self.pools {
            changed |= cell.set(share_of(&|node| node.pools.contains(pool)));
        }
        changed
    }

    /// Whether Redis counts what all use together.
    pub(crate) fn is_whole(&self) -> bool {
        self.whole.load(Relaxed)
    }

    pub(crate) fn set_whole(&self, whole: bool) {
        self.whole.store(whole, Relaxed);
    }

    /// Where a pool is among those that this node serves.
    pub(crate) fn place_of(&self, pool: &str) -> Option<usize> {
        self.pools.iter().position(|(name, _)| name == pool)
    }

    /// This node's share of what those of a pool use together.
    pub(crate) fn of_pool(&self, place: usize) -> Share {
        self.pools.get(place).map_or(Share::ALONE, |(_, cell)| cell.get())
    }

    /// This node's share among all that send.
    pub(crate) fn of_all(&self) -> Share {
        self.all.get()
    }

    /// This node's part of what is sent for all together.
    pub(crate) fn global(&self) -> Option<RateLimit> {
        self.global.map(|limit| if self.is_whole() { limit } else { part(self.all.get(), limit) })
    }

    /// Whether a share leaves anything of a limit to this node. With fewer requests a minute than nodes some
    /// get none, and must leave the sending to the others.
    pub(crate) fn has_part(&self, share: Share, limit: impl FnOnce() -> Option<RateLimit>) -> bool {
        let leaves =
            |share: Share, limit: Option<RateLimit>| limit.is_none_or(|limit| share.of_rate(limit).is_some());
        let all = if self.is_whole() { Share::ALONE } else { self.all.get() };
        (share == Share::ALONE || leaves(share, limit())) && (all == Share::ALONE || leaves(all, self.global))
    }
}

/// A part of a rate that [`Shares::has_part`] was asked about.
pub(crate) fn part(share: Share, limit: RateLimit) -> RateLimit {
    share.of_rate(limit).unwrap_or(LEAST)
}

#[cfg(test)]
mod tests {
    use redrive_core::Role;

    use super::*;

    fn node(epoch: i64, pools: &[&str]) -> Node {
        let pools = pools.iter().map(|pool| (*pool).to_owned()).collect();
        Node { epoch: Epoch(epoch), incarnation: 0, name: String::new(), role: Role::All, pools, beats: 0 }
    }

    fn shares(global: u32) -> Shares {
        Shares::new(&["a".into(), "b".into()], Some(RateLimit::per_minute(global)))
    }

    #[test]
    fn a_node_that_is_alone_has_all_of_it() {
        let shares = shares(10);
        assert_eq!((shares.of_pool(0), shares.of_pool(usize::MAX)), (Share::ALONE, Share::ALONE));
        assert_eq!(shares.global(), Some(RateLimit::per_minute(10)));
        assert!(!shares.learn(Epoch(7), &[&node(7, &["a", "b"])]), "nothing has changed");
        assert!(shares.has_part(Share::ALONE, || Some(RateLimit::per_minute(1))));
    }

    #[test]
    fn each_pool_is_shared_by_those_that_serve_it() {
        let shares = shares(10);
        let nodes = [node(3, &["b"]), node(5, &[]), node(7, &["a", "b"]), node(9, &["b", "c"])];
        assert!(shares.learn(Epoch(7), &nodes.iter().collect::<Vec<_>>()));
        let place = |pool| shares.of_pool(shares.place_of(pool).unwrap());
        assert_eq!(place("a"), Share::ALONE);
        assert_eq!(place("b"), Share { place: 1, of: 3 });
        assert_eq!(shares.place_of("c"), None);
        assert_eq!(shares.global(), Some(RateLimit::per_minute(3)), "a node that sends nothing gets nothing");
        assert!(!shares.learn(Epoch(7), &nodes.iter().collect::<Vec<_>>()));
    }

    #[test]
    fn with_fewer_requests_than_nodes_some_send_nothing() {
        let shares = shares(2);
        let nodes = [node(3, &["a"]), node(5, &["a"]), node(7, &["a"])];
        shares.learn(Epoch(7), &nodes.iter().collect::<Vec<_>>());
        assert!(!shares.has_part(Share::ALONE, || None), "of two a minute the third of three gets none");
        shares.learn(Epoch(5), &nodes.iter().collect::<Vec<_>>());
        let share = shares.of_pool(0);
        assert!(shares.has_part(share, || None));
        assert!(shares.has_part(share, || Some(RateLimit::per_minute(2))));
        assert!(!shares.has_part(share, || Some(RateLimit::per_minute(1))));
    }
}
