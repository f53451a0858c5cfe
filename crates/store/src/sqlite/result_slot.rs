//! Slots for the results of reads and writes. The jobs that run on other threads are type-erased, so that the code
//! around them is compiled once.

use std::sync::Arc;

use parking_lot::Mutex;
use rusqlite::Connection;

use super::{
    readers::ReadJob,
    transaction::{WriteTransaction, store_error},
    writer::WriteJob,
};
use crate::error::StoreError;

/// Result of one job, once it has run.
pub(super) struct ResultSlot<T>(Arc<Mutex<Option<rusqlite::Result<T>>>>);

impl<T> ResultSlot<T> {
    /// Returns the result of a job that has run.
    pub(super) fn take(self) -> Result<T, StoreError> {
        match self.0.lock().take() {
            Some(result) => result.map_err(|error| store_error(&error)),
            None => Err(StoreError::Unavailable("the query panicked".into())),
        }
    }
}

/// Creates a read job, and the slot for its result.
pub(super) fn for_read<T: Send + 'static>(
    read: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
) -> (ReadJob, ResultSlot<T>) {
    let slot = Arc::new(Mutex::new(None));
    let filled = slot.clone();
    (Box::new(move |connection| *filled.lock() = Some(read(connection))), ResultSlot(slot))
}

/// Creates a write job, and the slot for its result, which is valid if the job is committed.
pub(super) fn for_write<T: Send + 'static>(
    change: impl FnOnce(&WriteTransaction<'_>) -> rusqlite::Result<T> + Send + 'static,
) -> (WriteJob, ResultSlot<T>) {
    let slot = Arc::new(Mutex::new(None));
    let filled = slot.clone();
    let job = move |transaction: &WriteTransaction<'_>| {
        *filled.lock() = Some(Ok(change(transaction)?));
        Ok(())
    };
    (Box::new(job), ResultSlot(slot))
}
