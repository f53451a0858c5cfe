//! Counts of dead letters.

use redrive_core::{DeadReason, FailureCategory, TenantId, WebhookId};

/// Dead letters that are equal in every counted field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadGroup {
    /// Their tenant.
    pub tenant_id: TenantId,
    /// Their webhook.
    pub webhook_id: WebhookId,
    /// Their event type.
    pub event_type: String,
    /// Failure category of their last attempts.
    pub category: Option<FailureCategory>,
    /// Their dead reason.
    pub reason: DeadReason,
    /// Number of the requested bounds that are not earlier than their deaths: 0 for those that died after the first.
    pub age: u8,
    /// Number of dead letters.
    pub count: u64,
}

/// Dead letters by group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeadCounts {
    /// The groups, in no particular order.
    pub groups: Vec<DeadGroup>,
    /// Whether there are more than the limit. If so, those of the newest events were counted.
    pub more: bool,
}
