//! This node's share of limits that all sending nodes use together. Read often, so each pool's share is one atomic
//! word.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use redrive_core::{cluster::limit_share::LimitShare, protection::limiter::RateLimit};
use redrive_store::{Epoch, Node};

/// Smallest rate that can be expressed. A node without a share of a rate sends nothing: see
/// [`LimitShares::has_allowance`].
const MIN_RATE: RateLimit = RateLimit { requests_per_minute: 1, burst: Some(1) };

/// Shares of this node. A node that is alone has the whole of every limit.
#[derive(Debug)]
pub(crate) struct LimitShares {
    /// Pools that this node serves, with its share among the nodes that serve them.
    pools: Box<[(String, AtomicShare)]>,
    /// Share among all sending nodes.
    all: AtomicShare,
    /// Rate limit of all requests together.
    global_rate: Option<RateLimit>,
    /// Redis counts for all nodes, so that limits are not divided.
    whole: AtomicBool,
}

/// A share in one atomic word.
#[derive(Debug)]
struct AtomicShare(AtomicU64);

impl AtomicShare {
    fn new() -> Self {
        Self(AtomicU64::new(Self::word(LimitShare::WHOLE)))
    }

    fn word(share: LimitShare) -> u64 {
        (share.index as u64) << 32 | share.sending_nodes as u64
    }

    fn get(&self) -> LimitShare {
        let word = self.0.load(Relaxed);
        LimitShare { index: (word >> 32) as usize, sending_nodes: (word & u64::from(u32::MAX)) as usize }
    }

    /// Sets the share. Returns true if it has changed.
    fn set(&self, share: LimitShare) -> bool {
        let word = Self::word(share);
        self.0.swap(word, Relaxed) != word
    }
}

impl LimitShares {
    pub(crate) fn new(pools: &[String], global: Option<RateLimit>) -> Self {
        let pools = pools.iter().map(|pool| (pool.clone(), AtomicShare::new())).collect();
        Self { pools, all: AtomicShare::new(), global_rate: global, whole: AtomicBool::new(false) }
    }

    /// Recomputes the shares from the live nodes. Returns true if a share of this node has changed.
    pub(crate) fn update(&self, own: Epoch, nodes: &[&Node]) -> bool {
        let share_of = |serves: &dyn Fn(&Node) -> bool| {
            let mut sending_nodes: Vec<Epoch> =
                nodes.iter().filter(|node| serves(node)).map(|node| node.epoch).collect();
            sending_nodes.sort_unstable();
            let position = sending_nodes.iter().position(|epoch| *epoch == own);
            position
                .map_or(LimitShare::WHOLE, |index| LimitShare { index, sending_nodes: sending_nodes.len() })
        };
        let mut changed = self.all.set(share_of(&|node| !node.pools.is_empty()));
        for (pool, cell) in &self.pools {
            changed |= cell.set(share_of(&|node| node.pools.contains(pool)));
        }
        changed
    }

    /// Returns whether Redis counts for all nodes, so that limits are not divided.
    pub(crate) fn is_undivided(&self) -> bool {
        self.whole.load(Relaxed)
    }

    pub(crate) fn set_undivided(&self, whole: bool) {
        self.whole.store(whole, Relaxed);
    }

    /// Returns the index of a pool among those that this node serves.
    pub(crate) fn pool_index(&self, pool: &str) -> Option<usize> {
        self.pools.iter().position(|(name, _)| name == pool)
    }

    /// Returns this node's share of the limits of a pool's tenants.
    pub(crate) fn pool_share(&self, index: usize) -> LimitShare {
        self.pools.get(index).map_or(LimitShare::WHOLE, |(_, cell)| cell.get())
    }

    /// Returns this node's share among all sending nodes.
    pub(crate) fn cluster_share(&self) -> LimitShare {
        self.all.get()
    }

    /// Returns this node's share of the rate limit of the whole cluster.
    pub(crate) fn global_rate(&self) -> Option<RateLimit> {
        self.global_rate
            .map(|limit| if self.is_undivided() { limit } else { share_of_rate(self.all.get(), limit) })
    }

    /// Returns whether this node's share of a limit allows any request. With fewer requests per minute than nodes some
    /// have no allowance and leave sending to the others.
    pub(crate) fn has_allowance(&self, share: LimitShare, limit: impl FnOnce() -> Option<RateLimit>) -> bool {
        let leaves = |share: LimitShare, limit: Option<RateLimit>| {
            limit.is_none_or(|limit| share.split_rate(limit).is_some())
        };
        let all = if self.is_undivided() { LimitShare::WHOLE } else { self.all.get() };
        (share == LimitShare::WHOLE || leaves(share, limit()))
            && (all == LimitShare::WHOLE || leaves(all, self.global_rate))
    }
}

/// Returns the share of a rate for which [`LimitShares::has_allowance`] was true.
pub(crate) fn share_of_rate(share: LimitShare, limit: RateLimit) -> RateLimit {
    share.split_rate(limit).unwrap_or(MIN_RATE)
}

#[cfg(test)]
mod tests {
    use redrive_core::Role;

    use super::*;

    fn node(epoch: i64, pools: &[&str]) -> Node {
        let pools = pools.iter().map(|pool| (*pool).to_owned()).collect();
        Node {
            epoch: Epoch(epoch),
            incarnation: 0,
            name: String::new(),
            role: Role::All,
            pools,
            heartbeats: 0,
        }
    }

    fn shares(global: u32) -> LimitShares {
        LimitShares::new(&["a".into(), "b".into()], Some(RateLimit::per_minute(global)))
    }

    #[test]
    fn single_node_has_whole_limit() {
        let shares = shares(10);
        assert_eq!(
            (shares.pool_share(0), shares.pool_share(usize::MAX)),
            (LimitShare::WHOLE, LimitShare::WHOLE)
        );
        assert_eq!(shares.global_rate(), Some(RateLimit::per_minute(10)));
        assert!(!shares.update(Epoch(7), &[&node(7, &["a", "b"])]), "nothing has changed");
        assert!(shares.has_allowance(LimitShare::WHOLE, || Some(RateLimit::per_minute(1))));
    }

    #[test]
    fn pool_limit_is_divided_among_its_nodes() {
        let shares = shares(10);
        let nodes = [node(3, &["b"]), node(5, &[]), node(7, &["a", "b"]), node(9, &["b", "c"])];
        assert!(shares.update(Epoch(7), &nodes.iter().collect::<Vec<_>>()));
        let location = |pool| shares.pool_share(shares.pool_index(pool).unwrap());
        assert_eq!(location("a"), LimitShare::WHOLE);
        assert_eq!(location("b"), LimitShare { index: 1, sending_nodes: 3 });
        assert_eq!(shares.pool_index("c"), None);
        assert_eq!(
            shares.global_rate(),
            Some(RateLimit::per_minute(3)),
            "a node that does not send has no share"
        );
        assert!(!shares.update(Epoch(7), &nodes.iter().collect::<Vec<_>>()));
    }

    #[test]
    fn rate_below_node_count_leaves_some_nodes_without_allowance() {
        let shares = shares(2);
        let nodes = [node(3, &["a"]), node(5, &["a"]), node(7, &["a"])];
        shares.update(Epoch(7), &nodes.iter().collect::<Vec<_>>());
        assert!(
            !shares.has_allowance(LimitShare::WHOLE, || None),
            "with two per minute, the third of three nodes gets none"
        );
        shares.update(Epoch(5), &nodes.iter().collect::<Vec<_>>());
        let share = shares.pool_share(0);
        assert!(shares.has_allowance(share, || None));
        assert!(shares.has_allowance(share, || Some(RateLimit::per_minute(2))));
        assert!(!shares.has_allowance(share, || Some(RateLimit::per_minute(1))));
    }
}
