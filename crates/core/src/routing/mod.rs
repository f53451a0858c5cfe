//! Which webhooks receive an event: subscriptions and payload filters.

pub mod filter;
pub mod subscription;
