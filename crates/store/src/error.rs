//! Errors of a store that callers distinguish.

/// Reason why a store operation failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The store cannot be read or written now (disk full, I/O error, server gone). The request itself is valid.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
    /// A writer of the store has ended by a panic. Only a restart of the process starts it again.
    #[error("the store is unavailable: {0}; restart redrive")]
    WriterEnded(String),
    /// More writes are waiting than the store accepts.
    #[error("the write queue of the store is full")]
    Overloaded,
    /// An earlier event of the same batch was not stored, so this one was not either.
    #[error("an earlier event of this batch was not stored; publish again from that event on")]
    PrecedingEventFailed,
    /// The caller's epoch has ended: its deliveries belong to other nodes now.
    #[error("this node's epoch has ended")]
    Fenced,
    /// A resource of the request is occupied: another transaction has locked it, or too many requests like it are
    /// running. The store itself works.
    #[error("the store is busy: {0}")]
    Busy(String),
    /// A query exceeded its time limit.
    #[error("the query took too long and was stopped")]
    TooSlow,
    /// The offset of a listing cannot be reached because matches are too rare. A retry gets the same result.
    #[error("the offset is too large for matches this rare")]
    OffsetTooFar,
    /// This item can never be stored; the other items of its batch are not affected.
    #[error("the store rejected an item: {0}")]
    InvalidItem(String),
}

/// Reason why a store did not open.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has the file open.
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
    /// The server cannot be reached, or refuses the connection.
    #[error(
        "the database at {database} cannot be used: {reason}; check database.url and that the server runs"
    )]
    Unreachable {
        /// Address of the database, without the password.
        database: String,
        /// Reason.
        reason: String,
    },
    /// A crash of the server could lose acknowledged events.
    #[error(
        "the database at {database} is not durable: {reason}. If losing events is acceptable, set \
         database.allow_unsafe_durability = true"
    )]
    Unsafe {
        /// Address of the database, without the password.
        database: String,
        /// The wrong setting, and how to fix it.
        reason: String,
    },
    /// The URL is invalid.
    #[error("the database URL cannot be used: {0}")]
    BadUrl(String),
    /// The schema is older than this binary, and automatic migration is off.
    #[error(
        "the database at {database} has schema version {found}, and this redrive needs {known}; \
         run: redrive migrate"
    )]
    OlderSchema {
        /// Address of the database, without the password.
        database: String,
        /// The version in the database.
        found: i64,
        /// The version needed.
        known: i64,
    },
    /// The database holds an unfinished copy of an embedded store.
    #[error("a copy into the database at {database} is not finished; run redrive store copy again")]
    UnfinishedCopy {
        /// Address of the database, without the password.
        database: String,
    },
    /// The file exists but is not a Redrive database, or is damaged.
    #[error(
        "{path} cannot be opened: {reason}; check it, or choose another place with --database-url sqlite:PATH"
    )]
    Unusable {
        /// The database's path.
        path: String,
        /// Error of the database.
        reason: String,
    },
}
