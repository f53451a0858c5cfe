//! Dividing what several nodes may use together: each works out its own part, and the parts add up.

use crate::protection::limiter::RateLimit;

/// This node's place among all that share: the live senders in the order of their epochs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Its place, from 0.
    pub place: usize,
    /// How many share.
    pub of: usize,
}

impl Share {
    /// All there is, for a node that shares with nobody.
    pub const ALONE: Self = Self { place: 0, of: 1 };

    /// This node's part of `total`. All parts add up to exactly that; what cannot be divided goes to the first
    /// places, one each.
    pub fn of_count(self, total: usize) -> usize {
        let of = self.of.max(1);
        total / of + usize::from(self.place < total % of)
    }

    /// This node's part of a rate; none if it gets nothing.
    ///
    /// The requests a minute add up to exactly the whole. Less than one a minute cannot be said, so with fewer
    /// requests than nodes the last places get nothing, rather than all of them together too much. A burst is
    /// at least one, or nothing would ever go: the bursts add up to no more than the whole, or to one for each
    /// node if that is more.
    pub fn of_rate(self, limit: RateLimit) -> Option<RateLimit> {
        let part = |total: u32| self.of_count(total as usize) as u32;
        let requests_per_minute = part(limit.requests_per_minute);
        let burst = limit.burst.map(|burst| part(burst).max(1));
        (requests_per_minute > 0).then_some(RateLimit { requests_per_minute, burst })
    }
}

/// How many of `total` places one of so many nodes keeps while another wants some and has none. With fewer places
/// than nodes they go round: nobody keeps any.
pub fn fair_part(total: u32, nodes: u32) -> u32 {
    if total < nodes { 0 } else { total.div_ceil(nodes.max(1)) }
}

impl Default for Share {
    fn default() -> Self {
        Self::ALONE
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::protection::limiter::{BURST, REQUESTS_PER_MINUTE};

    fn all(of: usize) -> impl Iterator<Item = Share> {
        (0..of).map(move |place| Share { place, of })
    }

    #[test]
    fn counts_are_divided_to_the_last_one() {
        let parts = |total, of| all(of).map(|share| share.of_count(total)).collect::<Vec<_>>();
        assert_eq!(parts(10, 1), [10]);
        assert_eq!(parts(10, 3), [4, 3, 3]);
        assert_eq!(parts(11, 3), [4, 4, 3]);
        assert_eq!(parts(2, 3), [1, 1, 0]);
        assert_eq!(parts(0, 2), [0, 0]);
        assert_eq!(Share { place: 0, of: 0 }.of_count(7), 7, "nobody is as good as alone");
    }

    #[test]
    fn with_fewer_places_than_nodes_they_go_round() {
        let parts =
            [(5, 1), (5, 2), (5, 3), (2, 2), (1, 2), (3, 0)].map(|(total, nodes)| fair_part(total, nodes));
        assert_eq!(parts, [5, 3, 2, 1, 0, 3]);
    }

    #[test]
    fn rates_are_divided_with_their_bursts() {
        let limit = |requests_per_minute, burst| RateLimit { requests_per_minute, burst };
        let parts = |whole, of| all(of).map(|share| share.of_rate(whole)).collect::<Vec<_>>();
        assert_eq!(parts(limit(100, Some(5)), 2), [Some(limit(50, Some(3))), Some(limit(50, Some(2)))]);
        assert_eq!(parts(limit(601, None), 2), [Some(limit(301, None)), Some(limit(300, None))]);
        let few = Some(limit(1, Some(1)));
        assert_eq!(parts(limit(2, Some(1)), 3), [few, few, None]);
        for whole in [limit(1, None), limit(601, Some(9))] {
            assert_eq!(Share::ALONE.of_rate(whole), Some(whole));
        }
    }

    proptest! {
        #[test]
        fn all_parts_add_up_and_are_alike(total in any::<usize>(), of in 1..200usize) {
            let parts: Vec<usize> = all(of).map(|share| share.of_count(total)).collect();
            prop_assert_eq!(parts.iter().sum::<usize>(), total);
            prop_assert!(parts[0] - parts[of - 1] <= 1 && parts.is_sorted_by(|a, b| a >= b));
        }

        #[test]
        fn all_rates_together_are_the_whole(
            rate in prop_oneof![1..=500u32, REQUESTS_PER_MINUTE],
            burst in proptest::option::of(prop_oneof![1..=50u32, BURST]),
            of in 1..200usize,
        ) {
            let whole = RateLimit { requests_per_minute: rate, burst };
            let parts: Vec<RateLimit> = all(of).filter_map(|share| share.of_rate(whole)).collect();
            prop_assert_eq!(parts.iter().map(|part| part.requests_per_minute).sum::<u32>(), rate);
            prop_assert!(parts.iter().all(|part| part.validate("rate_limit").is_ok()));
            let bursts: u32 = parts.iter().map(RateLimit::burst).sum();
            prop_assert!(bursts <= whole.burst().max(of as u32));
        }
    }
}
