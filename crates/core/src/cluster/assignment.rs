//! Whether a webhook must be sent from one node alone, its home, or may be sent from all of them at once.

/// What that depends on.
#[derive(Clone, Copy, Debug)]
pub struct HomeFacts {
    /// Whether its deliveries wait for one another: an order is kept by whoever sends all of it.
    pub ordered: bool,
    /// Whether it has a rate limit of its own: the tokens are in one bucket.
    pub rate_limited: bool,
    /// Whether its circuit is not closed, was set by hand, or the endpoint asked to be left alone: probes and
    /// pauses are counted in one place, so that a sick endpoint does not get them from every node.
    pub troubled: bool,
    /// How many requests it may have under way.
    pub max_in_flight: usize,
    /// How many nodes might send to it.
    pub senders: usize,
}

/// Whether one node alone must send. With fewer requests than nodes some would get no part of them, and
/// whatever they have taken would wait for ever.
pub fn needs_home(facts: &HomeFacts) -> bool {
    facts.ordered || facts.rate_limited || facts.troubled || facts.max_in_flight < facts.senders
}

#[cfg(test)]
mod tests {
    use super::*;

    const FREE: HomeFacts =
        HomeFacts { ordered: false, rate_limited: false, troubled: false, max_in_flight: 3, senders: 3 };

    #[test]
    fn each_reason_is_enough() {
        assert!(!needs_home(&FREE));
        assert!(needs_home(&HomeFacts { ordered: true, ..FREE }));
        assert!(needs_home(&HomeFacts { rate_limited: true, ..FREE }));
        assert!(needs_home(&HomeFacts { troubled: true, ..FREE }));
        assert!(needs_home(&HomeFacts { max_in_flight: 2, ..FREE }));
    }

    #[test]
    fn a_lone_sender_is_at_home_anyway() {
        assert!(!needs_home(&HomeFacts { max_in_flight: 1, senders: 1, ..FREE }));
        assert!(!needs_home(&HomeFacts { max_in_flight: 1, senders: 0, ..FREE }));
        assert!(needs_home(&HomeFacts { ordered: true, senders: 1, ..FREE }), "others may join at any time");
    }
}
