//! Persisted clock state.

use redrive_core::{Time, WebhookId};

/// Persisted clock state of the nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockState {
    /// The last confirmed time stored by a node.
    pub confirmed_at: Option<Time>,
    /// Number of times an operator has confirmed the clock.
    pub confirmations: i64,
}

/// A lane as a position in the order of all lanes.
pub type LaneCursor = (WebhookId, String);
