//! What is old, and what a step of forgetting it did.

use redrive_core::{TenantId, Time};

/// What of a tenant is old, and where to look for it.
#[derive(Clone, Debug)]
pub struct Old<C> {
    /// Whose.
    pub tenant: TenantId,
    /// What is from before this time.
    pub before: Time,
    /// Only what comes after this one.
    pub after: Option<C>,
    /// About so many rows in one step, and at least one thing.
    pub rows: usize,
    /// Whether what goes is put among what waits for the archive, in the same transaction.
    pub archive: bool,
}

/// How many things left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// Events.
    pub events: usize,
    /// Deliveries.
    pub deliveries: usize,
    /// Attempts.
    pub attempts: usize,
}

impl Left {
    /// Rows in all.
    pub fn rows(&self) -> usize {
        self.events + self.deliveries + self.attempts
    }
}

/// What a step did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pruned<C> {
    /// What left.
    pub left: Left,
    /// Where to go on from.
    pub last: Option<C>,
    /// Whether nothing else is old.
    pub finished: bool,
}

/// What became of months that nobody needs any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dropped {
    /// One was dropped, or some of what was left of one; there may be more.
    Some {
        /// Months.
        months: usize,
    },
    /// Others were in the way for longer than they may be kept waiting: try again later.
    Busy,
    /// There is none.
    None,
}

/// What became of a payload that was to be erased.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Erased {
    /// It is gone now.
    Now,
    /// It was gone before, since then.
    Before(Time),
    /// There is no such event.
    Missing,
}

/// A part of the archive that is to be stored. What is in it has left the tables, and waits for nothing else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArchiveObject {
    /// What it is called: the day of its events, and a name that nothing else has.
    pub name: String,
    /// How many things are in it.
    pub holds: Left,
    /// Lines of JSON, compressed.
    pub bytes: Vec<u8>,
}
