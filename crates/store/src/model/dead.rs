//! What is counted of dead letters.

use redrive_core::{DeadReason, FailureCategory, TenantId, Time, WebhookId};

/// How many deliveries of a tenant ended in some minutes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndedSlot {
    /// The tenant.
    pub tenant: TenantId,
    /// When those minutes began.
    pub slot: Time,
    /// How many ended, and how.
    pub ended: Ended,
}

/// How many deliveries ended, and how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    /// Delivered.
    pub delivered: u64,
    /// Given up on.
    pub dead: u64,
    /// Called off.
    pub cancelled: u64,
}

impl Ended {
    /// Adds others.
    pub fn add(&mut self, other: Self) {
        self.delivered = self.delivered.saturating_add(other.delivered);
        self.dead = self.dead.saturating_add(other.dead);
        self.cancelled = self.cancelled.saturating_add(other.cancelled);
    }

    /// All of them.
    pub fn all(&self) -> u64 {
        self.delivered.saturating_add(self.dead).saturating_add(self.cancelled)
    }
}

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
