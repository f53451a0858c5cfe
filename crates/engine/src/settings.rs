//! What the operator decides about the data path.

use std::time::Duration;

use redrive_core::retry::RetryPolicy;

/// Limits and defaults of the data path.
#[derive(Clone, Debug)]
pub struct Settings {
    /// This node's name, shown with every attempt it makes.
    pub node: String,
    /// Requests under way at once, over all webhooks; one counts until its outcome is stored.
    pub max_in_flight: usize,
    /// Requests under way at once to one webhook that does not say otherwise.
    pub webhook_max_in_flight: u32,
    /// Deliveries held in memory; what does not fit waits in the store.
    pub max_items: usize,
    /// Payload bytes held in memory.
    pub max_bytes: usize,
    /// Deliveries held in memory for one webhook.
    pub lane_items: usize,
    /// How long an idempotency key is remembered.
    pub idempotency_window: Duration,
    /// The retry policy of webhooks that do not say otherwise.
    pub retry: RetryPolicy,
    /// What requests call us.
    pub user_agent: String,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            node: "redrive".into(),
            max_in_flight: 1_000,
            webhook_max_in_flight: 5,
            max_items: 20_000,
            max_bytes: 64 << 20,
            lane_items: 2_000,
            idempotency_window: Duration::from_secs(24 * 3600),
            retry: RetryPolicy::default(),
            user_agent: concat!("Redrive/", env!("CARGO_PKG_VERSION")).into(),
        }
    }
}
