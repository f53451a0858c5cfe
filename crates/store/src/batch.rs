//! The one group commit: gather what waits, never waiting for more, and commit it together.
//!
//! It knows nothing of databases. A backend hands in how to commit a slice; when the slice fails because
//! of one of its items, halves of it are tried until the bad item stands alone and only it fails.

use crate::error::StoreError;

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

/// Commits all items, together if possible, each alone if need be. Gives one result per item, in order.
pub(crate) fn commit<T, R>(
    items: &[T],
    commit_slice: &mut impl FnMut(&[T]) -> Result<Vec<R>, CommitError>,
) -> Vec<Result<R, StoreError>> {
    match commit_slice(items) {
        Ok(results) => {
            debug_assert_eq!(results.len(), items.len(), "one result per item");
            results.into_iter().map(Ok).collect()
        }
        Err(CommitError::Store(error)) => items.iter().map(|_| Err(error.clone())).collect(),
        Err(CommitError::Item(reason)) if items.len() == 1 => vec![Err(StoreError::Refused(reason))],
        Err(CommitError::Item(_)) => {
            let (left, right) = items.split_at(items.len() / 2);
            let mut results = commit(left, commit_slice);
            results.extend(commit(right, commit_slice));
            results
        }
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
