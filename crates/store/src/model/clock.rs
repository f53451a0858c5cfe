//! What a store keeps about the clock.

use redrive_core::{Time, WebhookId};

/// What a store keeps about the clock of its nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockState {
    /// The last confirmed time that a node has stored.
    pub confirmed_at: Option<Time>,
    /// How often an operator has confirmed the clock.
    pub confirmations: i64,
}

/// A lane, as a position in the order of all lanes.
pub type LaneCursor = (WebhookId, String);
