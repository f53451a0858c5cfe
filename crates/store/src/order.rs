//! Publishes that must be stored in the order in which they were made, although many wait for their commits
//! concurrently: those of a source, which has to keep the order of its queue.
//!
//! Events take their places when they are handed to the store, and the store commits them in that order. What could
//! break the order is one that fails while one behind it is stored. So the first failure breaks the order off: the
//! store refuses all that come behind it, and the publisher starts again with a new order from the one that failed.

use tokio::sync::watch;

use crate::{Published, error::StoreError};

/// An order of publishes. Positions count from 0.
#[derive(Debug)]
pub struct PublishOrder(watch::Sender<Progress>);

#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    /// The position that may be handed to the store now.
    next: u64,
    is_broken: bool,
}

impl Default for PublishOrder {
    fn default() -> Self {
        Self(watch::Sender::new(Progress::default()))
    }
}

impl PublishOrder {
    /// Waits until everything before this position was handed to the store or left out.
    pub async fn wait_for_turn(&self, position: u64) -> Result<(), StoreError> {
        let mut progress = self.0.subscribe();
        let reached = progress.wait_for(|progress| progress.is_broken || progress.next >= position).await;
        match reached {
            Ok(progress) if !progress.is_broken => Ok(()),
            _ => Err(StoreError::OutOfOrder),
        }
    }

    /// Notes that this position was handed to the store. Its turn must have come.
    pub fn advance(&self, position: u64) {
        self.0.send_if_modified(|progress| {
            let is_new = progress.next == position;
            progress.next += u64::from(is_new);
            is_new
        });
    }

    /// Leaves out a position that is not to be stored at all.
    pub async fn leave_out(&self, position: u64) {
        if self.wait_for_turn(position).await.is_ok() {
            self.advance(position);
        }
    }

    /// Refuses everything that is not stored yet.
    pub fn break_off(&self) {
        self.0.send_if_modified(|progress| !std::mem::replace(&mut progress.is_broken, true));
    }

    /// Whether something failed.
    pub fn is_broken(&self) -> bool {
        self.0.borrow().is_broken
    }

    /// Breaks the order off unless this result is final: stored, known before, or never to be stored.
    pub(crate) fn note(&self, result: &Result<Published, StoreError>) {
        if !is_final(result) {
            self.break_off();
        }
    }
}

/// Whether a publish with this result is not to be repeated.
pub(crate) fn is_final(result: &Result<Published, StoreError>) -> bool {
    match result {
        Ok(Published::New { .. } | Published::Duplicate { .. } | Published::KeyReused { .. })
        | Err(StoreError::Refused(_)) => true,
        Ok(Published::ConfigChanged | Published::NoTenant | Published::Fenced) | Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test]
    async fn positions_take_turns() {
        let order = Arc::new(PublishOrder::default());
        assert_eq!(order.wait_for_turn(0).await, Ok(()));
        let second = tokio::spawn({
            let order = order.clone();
            async move { order.wait_for_turn(2).await }
        });
        order.advance(0);
        tokio::task::yield_now().await;
        assert!(!second.is_finished(), "position 1 is still to come");
        order.leave_out(1).await;
        assert_eq!(second.await.unwrap(), Ok(()));
        order.advance(0);
        assert_eq!(order.wait_for_turn(2).await, Ok(()), "a position counts once");
    }

    #[tokio::test]
    async fn after_a_failure_nothing_behind_it_has_a_turn() {
        let order = Arc::new(PublishOrder::default());
        let waiting = tokio::spawn({
            let order = order.clone();
            async move { order.wait_for_turn(1).await }
        });
        order.note(&Ok(Published::New { sequence_number: 1 }));
        order.note(&Err(StoreError::Refused("never".into())));
        assert!(!order.is_broken());
        order.note(&Err(StoreError::Overloaded));
        assert!(order.is_broken());
        assert_eq!(waiting.await.unwrap(), Err(StoreError::OutOfOrder));
        assert_eq!(order.wait_for_turn(0).await, Err(StoreError::OutOfOrder));
    }
}
