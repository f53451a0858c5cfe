//! What can go wrong with a store, as its callers need to tell it apart.

/// Why a verb was not carried out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The store cannot be written or read now: disk full, I/O error, gone. Nothing is wrong with the request.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
    /// More is waiting to be written than the store takes on.
    #[error("the store has more to write than it can take on")]
    Overloaded,
    /// An event before it in the same order was not stored, so this one was not either.
    #[error("an event before this one was not stored; publish again from that one on")]
    OutOfOrder,
    /// The caller's epoch is over: its deliveries belong to somebody else now.
    #[error("this node's epoch is over")]
    Fenced,
    /// What the request needs is occupied: another transaction has locked it, or too many requests like it are running.
    /// The store itself works.
    #[error("the store is busy: {0}")]
    Busy(String),
    /// A query took longer than a query may.
    #[error("the query took too long and was stopped")]
    TooSlow,
    /// So many of a listing cannot be left out: what is wanted is too rare. The same question has the same answer.
    #[error("what is wanted is too rare for so many of it to be left out")]
    OffsetTooFar,
    /// This one item cannot be stored, whatever is tried; its neighbours are fine.
    #[error("the store refused an item: {0}")]
    Refused(String),
}

/// Why a store did not open.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Somebody else has the file.
    #[error("{path} is in use by another redrive process; stop it first, or choose another --database-url")]
    InUse {
        /// The database's path.
        path: String,
    },
    /// The schema was written by a newer version.
    #[error(
        "{path} has schema version {found}, and this redrive knows only up to {known}; \
         start the newer redrive that wrote it"
    )]
    NewerSchema {
        /// The database's path.
        path: String,
        /// The version in the file.
        found: i64,
        /// The newest version that this binary knows.
        known: i64,
    },
    /// The server cannot be reached, or does not let us in.
    #[error("the database at {place} cannot be used: {reason}; check database.url and that the server runs")]
    Unreachable {
        /// Where it is, without the password.
        place: String,
        /// What went wrong.
        reason: String,
    },
    /// A crash of the server could lose what was acknowledged.
    #[error(
        "the database at {place} is not durable: {reason}. If losing events is acceptable, set \
         database.allow_unsafe_durability = true"
    )]
    Unsafe {
        /// Where it is, without the password.
        place: String,
        /// Which setting is wrong, and what to do.
        reason: String,
    },
    /// The URL says something that cannot be.
    #[error("the database URL cannot be used: {0}")]
    BadUrl(String),
    /// The schema is older than this binary, and was not to be changed.
    #[error(
        "the database at {place} has schema version {found}, and this redrive needs {known}; \
         run: redrive migrate"
    )]
    OlderSchema {
        /// Where it is, without the password.
        place: String,
        /// The version there.
        found: i64,
        /// The version needed.
        known: i64,
    },
    /// Somebody began to copy an embedded store into it, and has not finished.
    #[error("a copy into the database at {place} is not finished; run redrive store copy again")]
    UnfinishedCopy {
        /// Where it is, without the password.
        place: String,
    },
    /// The file is there but is no database of ours, or is broken.
    #[error(
        "{path} cannot be opened: {reason}; check it, or choose another place with --database-url sqlite:PATH"
    )]
    Unusable {
        /// The database's path.
        path: String,
        /// What the database said.
        reason: String,
    },
}
