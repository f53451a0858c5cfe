//! What is counted of dead letters.

use redrive_core::{DeadReason, FailureCategory, WebhookId};

/// Dead letters that have everything in common that they are counted by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadGroup {
    /// Their webhook.
    pub webhook: WebhookId,
    /// Their event type.
    pub event_type: String,
    /// How their last attempts failed.
    pub category: Option<FailureCategory>,
    /// Why they died.
    pub reason: DeadReason,
    /// Since how many of the bounds asked about they are dead: 0 for those that died after the first.
    pub age: u8,
    /// How many there are.
    pub count: u64,
}

/// Dead letters, counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeadCount {
    /// By what they have in common, in no particular order.
    pub groups: Vec<DeadGroup>,
    /// Whether there are more than were to be looked at. Then these are of the newest events'.
    pub more: bool,
}
