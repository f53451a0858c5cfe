//! Publishes that must be stored in the order in which they were made, although many wait for their commits
//! concurrently: those of a source, which has to keep the order of its queue.
//!
//! Events take their places when they are handed to the store, and the store commits them in that order. What could
//! break the order is one that fails while one behind it is stored. So a failure breaks the order off at its position:
//! the store refuses all that come behind it, and the publisher starts again with a new order from the one that failed.
//! Events before that position are stored as usual.

use std::sync::Arc;

use tokio::sync::watch;

use crate::{Published, error::StoreError};

/// An order of publishes. Positions count from 0.
#[derive(Debug)]
pub struct PublishOrder(watch::Sender<Progress>);

#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    /// The position that may be handed to the store now.
    next: u64,
    /// The first position that failed: it and all behind it are refused.
    broken_at: Option<u64>,
}

impl Progress {
    fn refuses(&self, position: u64) -> bool {
        self.broken_at.is_some_and(|broken_at| position >= broken_at)
    }
}

/// A position in an order of publishes.
#[derive(Clone, Debug)]
pub struct OrderedPosition {
    /// The order, which may be broken off.
    pub order: Arc<PublishOrder>,
    /// Counts from 0.
    pub position: u64,
}

impl OrderedPosition {
    /// Refuses this position and everything behind it.
    pub fn break_off(&self) {
        self.order.break_off(self.position);
    }

    /// Whether this position or one before it has failed.
    pub(crate) fn is_refused(&self) -> bool {
        self.order.0.borrow().refuses(self.position)
    }

    /// Breaks the order off unless this result is final: stored, known before, or never to be stored.
    pub(crate) fn note(&self, result: &Result<Published, StoreError>) {
        if !is_final(result) {
            self.break_off();
        }
    }
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
        let reached =
            progress.wait_for(|progress| progress.refuses(position) || progress.next >= position).await;
        match reached {
            Ok(progress) if !progress.refuses(position) => Ok(()),
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

    /// Refuses this position and everything behind it. What comes before it is stored as usual.
    pub fn break_off(&self, position: u64) {
        self.0.send_if_modified(|progress| {
            let is_first = !progress.refuses(position);
            if is_first {
                progress.broken_at = Some(position);
            }
            is_first
        });
    }

    /// Whether something failed.
    pub fn is_broken(&self) -> bool {
        self.0.borrow().broken_at.is_some()
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
    async fn failed_position_refuses_itself_and_all_behind_it() {
        let order = Arc::new(PublishOrder::default());
        let at = |position| OrderedPosition { order: order.clone(), position };
        order.advance(0);
        let behind = tokio::spawn({
            let order = order.clone();
            async move { order.wait_for_turn(3).await }
        });
        at(1).note(&Ok(Published::New { sequence_number: 1 }));
        at(1).note(&Err(StoreError::Refused("never".into())));
        assert!(!order.is_broken());
        at(2).note(&Err(StoreError::Overloaded));
        assert!(order.is_broken());
        assert_eq!(behind.await.unwrap(), Err(StoreError::OutOfOrder));
        assert_eq!(order.wait_for_turn(2).await, Err(StoreError::OutOfOrder));
        assert_eq!(order.wait_for_turn(1).await, Ok(()), "what comes before the failure is stored");
        at(4).break_off();
        assert!(at(2).is_refused() && !at(1).is_refused(), "a later failure changes nothing");
        at(1).break_off();
        assert!(at(1).is_refused() && !at(0).is_refused(), "an earlier failure refuses more");
    }
}
