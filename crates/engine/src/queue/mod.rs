//! How waiting work reaches this node. Only what is in here claims.

pub(crate) mod amqp;
mod store;

pub(crate) use store::Round;
