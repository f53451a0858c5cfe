//! Transactions of the writer: their context, their commit, and the meaning of their errors.

use std::ops::Deref;

use rusqlite::{Connection, ErrorCode, Transaction, TransactionBehavior};

use super::file::DatabaseFiles;
use crate::error::StoreError;

/// Write connection, with what every transaction needs.
pub(super) struct Database {
    pub(super) connection: Connection,
    pub(super) files: DatabaseFiles,
    pub(super) writes_change_feed: bool,
}

/// Transaction of the writer.
pub(super) struct WriteTransaction<'a> {
    transaction: Transaction<'a>,
    writes_change_feed: bool,
}

impl WriteTransaction<'_> {
    /// Returns whether changes must be written to the change feed, because other nodes read it.
    pub(super) fn writes_change_feed(&self) -> bool {
        self.writes_change_feed
    }
}

impl<'a> Deref for WriteTransaction<'a> {
    type Target = Transaction<'a>;

    fn deref(&self) -> &Transaction<'a> {
        &self.transaction
    }
}

/// Reason why a transaction was not committed, or must not be reported as committed.
pub(super) enum WriteError {
    Sqlite(rusqlite::Error),
    Store(StoreError),
}

impl From<rusqlite::Error> for WriteError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

impl From<WriteError> for StoreError {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::Sqlite(error) => store_error(&error),
            WriteError::Store(error) => error,
        }
    }
}

/// Runs and commits a change. A commit into a file that was removed or replaced is reported as an error.
pub(super) fn in_transaction<T>(
    database: &mut Database,
    change: impl FnOnce(&WriteTransaction<'_>) -> rusqlite::Result<T>,
) -> Result<T, WriteError> {
    let Database { connection, files, writes_change_feed } = database;
    files.failure().map_err(WriteError::Store)?;
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let transaction = WriteTransaction { transaction, writes_change_feed: *writes_change_feed };
    let result = change(&transaction)?;
    transaction.transaction.commit()?;
    files.check().map_err(WriteError::Store)?;
    Ok(result)
}

pub(super) fn store_error(error: &rusqlite::Error) -> StoreError {
    match error.sqlite_error_code() {
        Some(ErrorCode::OperationInterrupted) => StoreError::TooSlow,
        Some(ErrorCode::ConstraintViolation | ErrorCode::TooBig) => {
            StoreError::InvalidItem(error.to_string())
        }
        _ => StoreError::Unavailable(error.to_string()),
    }
}
