//! Unsubscriptions of email addresses.

use redrive_core::{Time, notification::NotificationKind};

/// An address that is unsubscribed from one kind of notification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsubscription {
    /// The address.
    pub address: String,
    /// The kind.
    pub kind: NotificationKind,
    /// Time of the unsubscription.
    pub unsubscribed_at: Time,
}

/// Position in a listing of unsubscriptions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnsubscriptionCursor {
    /// Address of the last one.
    pub address: String,
    /// Kind of the last one.
    pub kind: NotificationKind,
}

impl Unsubscription {
    /// Returns the position after it in a listing.
    pub fn cursor(&self) -> UnsubscriptionCursor {
        UnsubscriptionCursor { address: self.address.clone(), kind: self.kind }
    }
}
