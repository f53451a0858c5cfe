//! How waiting work reaches this node. Only what is in here claims.

mod store;

pub(crate) use store::Round;
