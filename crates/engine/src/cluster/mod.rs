//! This node among the nodes that share a store: its membership and its share of common limits, which the data path
//! reads, and the services that keep both current.

pub(crate) mod change_feed;
pub(crate) mod heartbeat;
pub(crate) mod limit_shares;
pub(crate) mod membership;
pub(crate) mod rescue;
pub(crate) mod timekeeping;
