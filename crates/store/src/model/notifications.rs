//! Stored notifications and their status per channel.

use redrive_core::{Time, notification::Notification};

/// A notification created from a group, pending or done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredNotification {
    /// The notification. Its id contains its creation time.
    pub notification: Notification,
    /// Status as an event for operational webhooks.
    pub webhook_status: ChannelStatus,
    /// Status as an email.
    pub email_status: ChannelStatus,
    /// Number of times it was claimed to be sent.
    pub attempts: u32,
    /// Time of the next attempt at the latest; `None` once there is nothing more to send.
    pub next_attempt_at: Option<Time>,
    /// Last error.
    pub error: Option<String>,
}

/// A channel for notifications.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    /// As an event, which operational webhooks receive.
    Webhook,
    /// By email.
    Email,
}

/// Status of a notification on a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChannelStatus {
    /// Still to be sent.
    Pending,
    /// Sent.
    Sent,
    /// There was no recipient, or none that wants it.
    NoRecipients,
    /// Sending failed permanently or for too long; it is not retried.
    Failed,
    /// Not sent, because an email limit was reached.
    Suppressed,
}

impl ChannelStatus {
    /// Returns the name used everywhere.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Sent => "sent",
            Self::NoRecipients => "no_recipients",
            Self::Failed => "failed",
            Self::Suppressed => "suppressed",
        }
    }
}

/// Result of sending a notification on a channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChannelResult {
    /// The channel is done: sent, no recipients, or failed.
    Done(ChannelStatus, Option<String>),
    /// Sending failed and is retried at this time.
    RetryAt(Time, String),
}
