//! The one group commit: gather what waits, never waiting for more, and commit it together.
//!
//! It knows nothing of databases. A backend hands in how to commit a slice; when the slice fails because
//! of one of its items, halves of it are tried until the bad item stands alone and only it fails.

use std::{
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use crate::{Done, NewEvent, error::StoreError};

/// How much may go into one transaction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Rows at the most.
    pub(crate) rows: usize,
    /// Bytes at the most.
    pub(crate) bytes: usize,
}

/// What every transaction is held to.
pub(crate) const LIMITS: Limits = Limits { rows: 5_000, bytes: 8 << 20 };

/// Something that waits to be written.
pub(crate) trait Weighed {
    /// Rows and bytes it will write, roughly.
    fn weight(&self) -> (usize, usize);
}

/// Adds what already waits to `batch`, until it is full or nothing waits.
pub(crate) fn gather<T: Weighed>(batch: &mut Vec<T>, limits: Limits, mut next: impl FnMut() -> Option<T>) {
    let (mut rows, mut bytes) = batch.iter().map(Weighed::weight).fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
    while rows < limits.rows && bytes < limits.bytes {
        let Some(item) = next() else { return };
        let weight = item.weight();
        rows += weight.0;
        bytes += weight.1;
        batch.push(item);
    }
}

/// Why a slice was not committed.
#[derive(Debug)]
pub(crate) enum CommitError {
    /// One of its items is bad; which one need not be known.
    Item(String),
    /// The store itself failed: no item would fare better now.
    Store(StoreError),
}

/// The work of committing items together if possible, each alone if need be. Whoever drives it commits what
/// [`Commit::next`] gives and tells what came of it, until there is nothing left.
pub(crate) struct Commit<R> {
    results: Vec<Option<Result<R, StoreError>>>,
    /// What is still to be tried; the last one first.
    todo: Vec<Range<usize>>,
}

impl<R> Commit<R> {
    /// So many items.
    pub(crate) fn of(items: usize) -> Self {
        Self {
            results: (0..items).map(|_| None).collect(),
            todo: Vec::from_iter((items > 0).then_some(0..items)),
        }
    }

    /// The items to commit next.
    pub(crate) fn next(&mut self) -> Option<Range<usize>> {
        self.todo.pop()
    }

    /// What came of committing those.
    pub(crate) fn came_to(&mut self, items: Range<usize>, result: Result<Vec<R>, CommitError>) {
        match result {
            Ok(results) => {
                debug_assert_eq!(results.len(), items.len(), "one result per item");
                for (at, result) in items.zip(results) {
                    self.results[at] = Some(Ok(result));
                }
            }
            Err(CommitError::Store(error)) => {
                // What is left must not be stored before these, since some events keep an order.
                let left = self.todo.drain(..).flatten();
                for at in items.chain(left) {
                    self.results[at] = Some(Err(error.clone()));
                }
            }
            Err(CommitError::Item(reason)) if items.len() == 1 => {
                self.results[items.start] = Some(Err(StoreError::Refused(reason)));
            }
            Err(CommitError::Item(_)) => {
                let middle = items.start + items.len() / 2;
                self.todo.push(middle..items.end);
                self.todo.push(items.start..middle);
            }
        }
    }

    /// One result per item, in order.
    pub(crate) fn finish(self) -> Vec<Result<R, StoreError>> {
        let unknown = || Err(StoreError::Unavailable("the commit was not finished".into()));
        self.results.into_iter().map(|result| result.unwrap_or_else(unknown)).collect()
    }
}

/// Commits all items by a function that does not wait.
pub(crate) fn commit<T, R>(
    items: &[T],
    commit_slice: &mut impl FnMut(&[T]) -> Result<Vec<R>, CommitError>,
) -> Vec<Result<R, StoreError>> {
    let mut commit = Commit::of(items.len());
    while let Some(range) = commit.next() {
        let result = commit_slice(&items[range.clone()]);
        commit.came_to(range, result);
    }
    commit.finish()
}

/// Finds the events that must not be stored with their batch, since that could break an order: something before them
/// has failed, or may have another result than they. Events of one order belong to one tenant, so those with the same
/// version and epoch are either stored together or refused together.
pub(crate) fn find_out_of_order<'a>(batch: impl Iterator<Item = &'a NewEvent>) -> Vec<bool> {
    let mut firsts: Vec<&NewEvent> = Vec::new();
    let mut is_out_of_order = |new: &'a NewEvent| {
        let Some(ordered) = &new.order else { return false };
        let is_same = |first: &&&NewEvent| {
            first.order.as_ref().is_some_and(|known| Arc::ptr_eq(&known.order, &ordered.order))
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

/// Calls back with a result. A panic in the callback ends here: it must not end the writer, nor keep the results of
/// the same batch from their callbacks. The panic hook has counted and logged it.
pub(crate) fn complete<T>(done: Done<T>, result: Result<T, StoreError>) {
    if catch_unwind(AssertUnwindSafe(|| done(result))).is_err() {
        tracing::error!("the callback of a commit panicked; the other results of its batch are reported");
    }
}

/// How much waits to be published, so that overload is refused instead of piled up. Outcomes are not
/// counted: there are never more of them than deliveries in memory.
pub(crate) struct Queue {
    items: AtomicUsize,
    bytes: AtomicUsize,
    max_items: usize,
    max_bytes: usize,
    /// The queue that counts the same items and others.
    whole: Option<Arc<Queue>>,
}

impl Queue {
    pub(crate) fn new(max_items: usize, max_bytes: usize) -> Self {
        Self { items: AtomicUsize::new(0), bytes: AtomicUsize::new(0), max_items, max_bytes, whole: None }
    }

    /// Counts items that another queue has counted already, up to half of what that one allows. An item that leaves
    /// this queue leaves the other one too.
    pub(crate) fn half_of(whole: &Arc<Self>) -> Self {
        Self { whole: Some(whole.clone()), ..Self::new(whole.max_items / 2, whole.max_bytes / 2) }
    }

    /// Counts something in. False: there is no room for it.
    pub(crate) fn enter(&self, bytes: usize) -> bool {
        let items = self.items.fetch_add(1, Relaxed);
        let held = self.bytes.fetch_add(bytes, Relaxed);
        let fits = items < self.max_items && held + bytes <= self.max_bytes;
        if !fits {
            self.subtract(bytes);
        }
        fits
    }

    /// Counts something out.
    pub(crate) fn leave(&self, bytes: usize) {
        self.subtract(bytes);
        if let Some(whole) = &self.whole {
            whole.leave(bytes);
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

    impl Weighed for u32 {
        fn weight(&self) -> (usize, usize) {
            (1, *self as usize)
        }
    }

    #[test]
    fn gathering_stops_at_the_limits_and_when_nothing_waits() {
        let limits = Limits { rows: 3, bytes: 100 };
        let gathered = |waiting: &[u32]| {
            let (mut batch, mut waiting) = (vec![], waiting.iter().copied());
            gather(&mut batch, limits, || waiting.next());
            batch
        };
        assert_eq!(gathered(&[1, 2]), [1, 2]);
        assert_eq!(gathered(&[1, 2, 3, 4]), [1, 2, 3]);
        assert_eq!(gathered(&[99, 99, 1]), [99, 99], "the one that crosses the line is the last");
    }

    #[test]
    fn half_of_a_queue_leaves_the_other_half_free() {
        let whole = Arc::new(Queue::new(4, 100));
        let half = Queue::half_of(&whole);
        assert!(whole.enter(10) && whole.enter(10) && whole.enter(10), "all of them fit into the queue");
        assert!(half.enter(10) && half.enter(10));
        assert!(!half.enter(10), "two are half of the items");
        assert!(whole.enter(10) && !whole.enter(10), "what did not fit into the half is still in the queue");
        half.leave(10);
        assert!(whole.enter(10), "an item that leaves the half leaves the queue");
        assert!(half.enter(40) && !half.enter(1), "50 are half of the bytes");
    }

    #[test]
    fn a_failing_store_is_not_asked_again() {
        let mut asked = 0;
        let results = commit(&[1, 2, 3], &mut |_: &[i32]| -> Result<Vec<()>, _> {
            asked += 1;
            Err(CommitError::Store(StoreError::Overloaded))
        });
        assert_eq!(asked, 1);
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
                    true => prop_assert_eq!(result, Err(StoreError::Refused("bad".into()))),
                    false => prop_assert_eq!(result, Ok(*item)),
                }
            }
        }
    }
}
