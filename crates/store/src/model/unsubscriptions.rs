//! Addresses that do not want to hear of something any more.

use redrive_core::{Time, notification::Kind};

/// An address that is not told of one kind any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsubscribed {
    /// The address.
    pub address: String,
    /// What it is not told of.
    pub kind: Kind,
    /// Since when.
    pub at: Time,
}

/// Where a listing of them goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnsubscribedCursor {
    /// The address of the last.
    pub address: String,
    /// The kind of the last.
    pub kind: Kind,
}

impl Unsubscribed {
    /// Where a listing goes on after it.
    pub fn cursor(&self) -> UnsubscribedCursor {
        UnsubscribedCursor { address: self.address.clone(), kind: self.kind }
    }
}
