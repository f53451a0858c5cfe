//! Claiming: how waiting deliveries reach this node. No other module claims.

pub(crate) mod amqp;
mod reservation;
mod store;

pub(crate) use store::ClaimResult;
