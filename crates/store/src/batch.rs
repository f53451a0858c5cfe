//! Group commit for every backend: collects all items that wait, never waits for more, and commits them together.
//!
//! It has no database code. A backend passes a function that commits a slice; if the slice fails because of one of
//! its items, its halves are tried until the bad item is alone and only that item fails.

use std::{
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use crate::{Completion, NewEvent, error::StoreError};

/// Limits of one transaction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Maximum number of rows.
    pub(crate) rows: usize,
    /// Maximum number of bytes.
    pub(crate) bytes: usize,
}

/// Limits of every transaction.
pub(crate) const LIMITS: Limits = Limits { rows: 5_000, bytes: 8 << 20 };

/// An item that waits to be written.
pub(crate) trait BatchItem {
    /// Returns the approximate number of rows and bytes it will write.
    fn weight(&self) -> (usize, usize);
}

/// Adds waiting items to `batch` until it is full or no item waits.
pub(crate) fn gather<T: BatchItem>(batch: &mut Vec<T>, limits: Limits, mut next: impl FnMut() -> Option<T>) {
    let (mut rows, mut bytes) =
        batch.iter().map(BatchItem::weight).fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
    while rows < limits.rows && bytes < limits.bytes {
        let Some(item) = next() else { return };
        let weight = item.weight();
        rows += weight.0;
        bytes += weight.1;
        batch.push(item);
    }
}

/// Reason why a slice was not committed.
#[derive(Debug)]
pub(crate) enum CommitError {
    /// One of the items is invalid; the backend need not know which one.
    Item(String),
    /// The store itself failed: every item would fail now.
    Store(StoreError),
}

/// Commits items together if possible, and bisects on a bad item. The caller commits the range that
/// [`BisectingCommit::next`] returns and reports the result, until no range is left.
pub(crate) struct BisectingCommit<R> {
    results: Vec<Option<Result<R, StoreError>>>,
    /// Ranges still to be tried; the last one is next.
    todo: Vec<Range<usize>>,
}

impl<R> BisectingCommit<R> {
    /// Starts a commit of `items` items.
    pub(crate) fn new(items: usize) -> Self {
        Self {
            results: (0..items).map(|_| None).collect(),
            todo: Vec::from_iter((items > 0).then_some(0..items)),
        }
    }

    /// Returns the items to commit next.
    pub(crate) fn next(&mut self) -> Option<Range<usize>> {
        self.todo.pop()
    }

    /// Records the result of committing these items.
    pub(crate) fn record_result(&mut self, items: Range<usize>, result: Result<Vec<R>, CommitError>) {
        match result {
            Ok(results) => {
                debug_assert_eq!(results.len(), items.len(), "one result per item");
                for (at, result) in items.zip(results) {
                    self.results[at] = Some(Ok(result));
                }
            }
            Err(CommitError::Store(error)) => {
                // Fail the remaining items too: some events keep an order, and later ones must not be stored before these.
                let left = self.todo.drain(..).flatten();
                for at in items.chain(left) {
                    self.results[at] = Some(Err(error.clone()));
                }
            }
            Err(CommitError::Item(reason)) if items.len() == 1 => {
                self.results[items.start] = Some(Err(StoreError::InvalidItem(reason)));
            }
            Err(CommitError::Item(_)) => {
                let middle = items.start + items.len() / 2;
                self.todo.push(middle..items.end);
                self.todo.push(items.start..middle);
            }
        }
    }

    /// Returns one result per item, in order.
    pub(crate) fn finish(self) -> Vec<Result<R, StoreError>> {
        let unknown = || Err(StoreError::Unavailable("the commit was not finished".into()));
        self.results.into_iter().map(|result| result.unwrap_or_else(unknown)).collect()
    }
}

/// Commits all items with a synchronous function.
pub(crate) fn commit<T, R>(
    items: &[T],
    commit_slice: &mut impl FnMut(&[T]) -> Result<Vec<R>, CommitError>,
) -> Vec<Result<R, StoreError>> {
    let mut commit = BisectingCommit::new(items.len());
    while let Some(range) = commit.next() {
        let result = commit_slice(&items[range.clone()]);
        commit.record_result(range, result);
    }
    commit.finish()
}

/// Finds the events that must not be stored with their batch because that could break an order: an event before
/// them has failed, or could get another result than theirs. Events of one order belong to one tenant, so those
/// with the same version and epoch are either stored together or refused together.
pub(crate) fn find_refused<'a>(batch: impl Iterator<Item = &'a NewEvent>) -> Vec<bool> {
    let mut firsts: Vec<&NewEvent> = Vec::new();
    let mut is_out_of_order = |new: &'a NewEvent| {
        let Some(ordered) = &new.position else { return false };
        let is_same = |first: &&&NewEvent| {
            first.position.as_ref().is_some_and(|known| Arc::ptr_eq(&known.sequence, &ordered.sequence))
        };
        match firsts.iter().find(is_same) {
            Some(first) if (first.config_version, first.epoch) != (new.config_version, new.epoch) => {
                ordered.break_off();
            }
            Some(_) => {}
            None => firsts.push(new),
        }
        ordered.is_refused()
    };
    batch.map(&mut is_out_of_order).collect()
}

/// Calls the callback with a result. A panic in the callback is caught: it must not end the writer or prevent the
/// callbacks of the other results of the batch. The panic handler of the process has counted and logged it.
pub(crate) fn complete<T>(done: Completion<T>, result: Result<T, StoreError>) {
    if catch_unwind(AssertUnwindSafe(|| done(result))).is_err() {
        tracing::error!("the callback of a commit panicked; the other results of its batch are reported");
    }
}

/// Counts the publishes that wait for a commit, so that overload is refused instead of queued. Outcomes are not
/// counted: there are never more of them than deliveries in memory.
pub(crate) struct WaitingLimit {
    items: AtomicUsize,
    bytes: AtomicUsize,
    max_items: usize,
    max_bytes: usize,
    /// The limit that counts the same items and others.
    whole: Option<Arc<WaitingLimit>>,
}

impl WaitingLimit {
    pub(crate) fn new(max_items: usize, max_bytes: usize) -> Self {
        Self { items: AtomicUsize::new(0), bytes: AtomicUsize::new(0), max_items, max_bytes, whole: None }
    }

    /// Creates a limit for items that `whole` has already counted, at half of its maximum. An item released here is
    /// released there too.
    pub(crate) fn half_of(whole: &Arc<Self>) -> Self {
        Self { whole: Some(whole.clone()), ..Self::new(whole.max_items / 2, whole.max_bytes / 2) }
    }

    /// Counts an item. Returns `false` if there is no capacity for it.
    pub(crate) fn try_acquire(&self, bytes: usize) -> bool {
        let items = self.items.fetch_add(1, Relaxed);
        let held = self.bytes.fetch_add(bytes, Relaxed);
        let fits = items < self.max_items && held + bytes <= self.max_bytes;
        if !fits {
            self.subtract(bytes);
        }
        fits
    }

    /// Releases an item.
    pub(crate) fn release(&self, bytes: usize) {
        self.subtract(bytes);
        if let Some(whole) = &self.whole {
            whole.release(bytes);
        }
    }

    fn subtract(&self, bytes: usize) {
        self.items.fetch_sub(1, Relaxed);
        self.bytes.fetch_sub(bytes, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    impl BatchItem for u32 {
        fn weight(&self) -> (usize, usize) {
            (1, *self as usize)
        }
    }

    #[test]
    fn gather_stops_at_limits_and_on_empty_queue() {
        let limits = Limits { rows: 3, bytes: 100 };
        let gathered = |waiting: &[u32]| {
            let (mut batch, mut waiting) = (vec![], waiting.iter().copied());
            gather(&mut batch, limits, || waiting.next());
            batch
        };
        assert_eq!(gathered(&[1, 2]), [1, 2]);
        assert_eq!(gathered(&[1, 2, 3, 4]), [1, 2, 3]);
        assert_eq!(gathered(&[99, 99, 1]), [99, 99], "the item that crosses the limit is the last");
    }

    #[test]
    fn half_limit_leaves_the_other_half_free() {
        let whole = Arc::new(WaitingLimit::new(4, 100));
        let half = WaitingLimit::half_of(&whole);
        assert!(
            whole.try_acquire(10) && whole.try_acquire(10) && whole.try_acquire(10),
            "all of them fit into the queue"
        );
        assert!(half.try_acquire(10) && half.try_acquire(10));
        assert!(!half.try_acquire(10), "two are half of the items");
        assert!(whole.try_acquire(10) && !whole.try_acquire(10), "an item that did not fit is still queued");
        half.release(10);
        assert!(whole.try_acquire(10), "releasing an item also releases its place in the queue");
        assert!(half.try_acquire(40) && !half.try_acquire(1), "50 are half of the bytes");
    }

    #[test]
    fn failing_store_is_not_retried() {
        let mut requests = 0;
        let results = commit(&[1, 2, 3], &mut |_: &[i32]| -> Result<Vec<()>, _> {
            requests += 1;
            Err(CommitError::Store(StoreError::Overloaded))
        });
        assert_eq!(requests, 1);
        assert_eq!(
            results,
            [Err(StoreError::Overloaded), Err(StoreError::Overloaded), Err(StoreError::Overloaded)]
        );
    }

    proptest! {
        #[test]
        fn only_bad_items_fail_and_order_is_kept(bad in proptest::collection::vec(any::<bool>(), 1..40)) {
            let items: Vec<usize> = (0..bad.len()).collect();
            let results = commit(&items, &mut |slice: &[usize]| {
                if slice.iter().any(|item| bad[*item]) {
                    return Err(CommitError::Item("bad".into()));
                }
                Ok(slice.to_vec())
            });
            for (item, result) in items.iter().zip(results) {
                match bad[*item] {
                    true => prop_assert_eq!(result, Err(StoreError::InvalidItem("bad".into()))),
                    false => prop_assert_eq!(result, Ok(*item)),
                }
            }
        }
    }
}
