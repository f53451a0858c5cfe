//! Divides cluster-wide limits among nodes: each node computes its own share, and the shares add up to the limit.

use crate::protection::limiter::RateLimit;

/// This node's position among the live sending nodes, ordered by epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitShare {
    /// Position of this node, from 0.
    pub index: usize,
    /// Number of nodes that share the limit.
    pub sending_nodes: usize,
}

impl LimitShare {
    /// The whole limit, for a node that shares it with no other.
    pub const WHOLE: Self = Self { index: 0, sending_nodes: 1 };

    /// Returns this node's share of `total`. The shares of all nodes add up to exactly `total`; the remainder goes to
    /// the first nodes, one each.
    pub fn split_count(self, total: usize) -> usize {
        let count = self.sending_nodes.max(1);
        total / count + usize::from(self.index < total % count)
    }

    /// Returns this node's share of a rate, or `None` if its share is zero.
    ///
    /// The requests per minute of all nodes add up to exactly the limit. A share below one per minute cannot be
    /// expressed, so with fewer requests than nodes the last nodes get nothing; rounding up would exceed the limit.
    /// A burst is at least one, since a burst of zero would block all requests: the bursts add up to at most the
    /// limit's burst, or to one per node if that is more.
    ///
    /// ```
    /// use redrive_core::{cluster::limit_share::LimitShare, protection::limiter::RateLimit};
    ///
    /// let shares = [0, 1, 2].map(|index| LimitShare { index, sending_nodes: 3 });
    /// assert_eq!(shares.map(|share| share.split_count(10)), [4, 3, 3]);
    /// // Two requests per minute for three nodes: the third node sends nothing.
    /// let rates = shares.map(|share| share.split_rate(RateLimit::per_minute(2)).is_some());
    /// assert_eq!(rates, [true, true, false]);
    /// ```
    pub fn split_rate(self, limit: RateLimit) -> Option<RateLimit> {
        let part = |total: u32| self.split_count(total as usize) as u32;
        let requests_per_minute = part(limit.requests_per_minute);
        let burst = limit.burst.map(|burst| part(burst).max(1));
        (requests_per_minute > 0).then_some(RateLimit { requests_per_minute, burst })
    }
}

/// Returns how many of `total` slots one of `nodes` nodes may keep while another node wants slots and has none.
/// With fewer slots than nodes it returns 0, so that the slots rotate among the nodes.
pub fn fair_share(total: u32, nodes: u32) -> u32 {
    if total < nodes { 0 } else { total.div_ceil(nodes.max(1)) }
}

impl Default for LimitShare {
    fn default() -> Self {
        Self::WHOLE
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::protection::limiter::{BURST_RANGE, REQUESTS_PER_MINUTE_RANGE};

    fn all(of: usize) -> impl Iterator<Item = LimitShare> {
        (0..of).map(move |index| LimitShare { index, sending_nodes: of })
    }

    #[test]
    fn counts_are_divided_without_remainder() {
        let parts = |total, of| all(of).map(|share| share.split_count(total)).collect::<Vec<_>>();
        assert_eq!(parts(10, 1), [10]);
        assert_eq!(parts(10, 3), [4, 3, 3]);
        assert_eq!(parts(11, 3), [4, 4, 3]);
        assert_eq!(parts(2, 3), [1, 1, 0]);
        assert_eq!(parts(0, 2), [0, 0]);
        assert_eq!(LimitShare { index: 0, sending_nodes: 0 }.split_count(7), 7, "no sender counts as one");
    }

    #[test]
    fn fair_share_is_zero_with_fewer_slots_than_nodes() {
        let parts =
            [(5, 1), (5, 2), (5, 3), (2, 2), (1, 2), (3, 0)].map(|(total, nodes)| fair_share(total, nodes));
        assert_eq!(parts, [5, 3, 2, 1, 0, 3]);
    }

    #[test]
    fn rates_are_divided_with_their_bursts() {
        let limit = |requests_per_minute, burst| RateLimit { requests_per_minute, burst };
        let parts = |whole, of| all(of).map(|share| share.split_rate(whole)).collect::<Vec<_>>();
        assert_eq!(parts(limit(100, Some(5)), 2), [Some(limit(50, Some(3))), Some(limit(50, Some(2)))]);
        assert_eq!(parts(limit(601, None), 2), [Some(limit(301, None)), Some(limit(300, None))]);
        let few = Some(limit(1, Some(1)));
        assert_eq!(parts(limit(2, Some(1)), 3), [few, few, None]);
        for whole in [limit(1, None), limit(601, Some(9))] {
            assert_eq!(LimitShare::WHOLE.split_rate(whole), Some(whole));
        }
    }

    proptest! {
        #[test]
        fn count_shares_add_up_and_differ_by_at_most_one(total in any::<usize>(), of in 1..200usize) {
            let parts: Vec<usize> = all(of).map(|share| share.split_count(total)).collect();
            prop_assert_eq!(parts.iter().sum::<usize>(), total);
            prop_assert!(parts[0] - parts[of - 1] <= 1 && parts.is_sorted_by(|a, b| a >= b));
        }

        #[test]
        fn rate_shares_add_up_to_the_limit(
            rate in prop_oneof![1..=500u32, REQUESTS_PER_MINUTE_RANGE],
            burst in proptest::option::of(prop_oneof![1..=50u32, BURST_RANGE]),
            of in 1..200usize,
        ) {
            let whole = RateLimit { requests_per_minute: rate, burst };
            let parts: Vec<RateLimit> = all(of).filter_map(|share| share.split_rate(whole)).collect();
            prop_assert_eq!(parts.iter().map(|part| part.requests_per_minute).sum::<u32>(), rate);
            prop_assert!(parts.iter().all(|part| part.validate("rate_limit").is_ok()));
            let bursts: u32 = parts.iter().map(RateLimit::burst).sum();
            prop_assert!(bursts <= whole.burst().max(of as u32));
        }
    }
}
