//! Publishes that must be stored in the order in which they were made, although many wait for their commits
//! concurrently: those of a source, which has to keep the order of its queue.
//!
//! Events take their positions when they are handed to the store, and the store commits them in that order. The
//! order would break if an event failed and a later one were stored. So a failure breaks the order off at its
//! position: the store refuses all later events, and the publisher starts again with a new order from the event
//! that failed. Events before that position are stored as usual.

use std::sync::Arc;

use tokio::sync::watch;

use crate::{PublishResult, error::StoreError};

/// An order of publishes. Positions count from 0.
#[derive(Debug)]
pub struct PublishOrder(watch::Sender<Progress>);

#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    /// The next position to be handed to the store.
    next: u64,
    /// The first position that failed: it and all later ones are refused.
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
    /// The position, from 0.
    pub position: u64,
}

impl OrderedPosition {
    /// Refuses this position and all later ones.
    pub fn break_off(&self) {
        self.order.break_off(self.position);
    }

    /// Returns whether this position or an earlier one has failed.
    pub(crate) fn is_refused(&self) -> bool {
        self.order.0.borrow().refuses(self.position)
    }

    /// Breaks the order off unless this result is final: stored, already stored, or never to be stored.
    pub(crate) fn record(&self, result: &Result<PublishResult, StoreError>) {
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
    /// Waits until all earlier positions were handed to the store or left out.
    pub async fn wait_for_turn(&self, position: u64) -> Result<(), StoreError> {
        let mut progress = self.0.subscribe();
        let reached =
            progress.wait_for(|progress| progress.refuses(position) || progress.next >= position).await;
        match reached {
            Ok(progress) if !progress.refuses(position) => Ok(()),
            _ => Err(StoreError::OutOfOrder),
        }
    }

    /// Records that this position was handed to the store. All earlier positions must have been.
    pub fn advance(&self, position: u64) {
        self.0.send_if_modified(|progress| {
            let is_new = progress.next == position;
            progress.next += u64::from(is_new);
            is_new
        });
    }

    /// Leaves out a position that must not be stored.
    pub async fn leave_out(&self, position: u64) {
        if self.wait_for_turn(position).await.is_ok() {
            self.advance(position);
        }
    }

    /// Refuses this position and all later ones. Earlier ones are stored as usual.
    pub fn break_off(&self, position: u64) {
        self.0.send_if_modified(|progress| {
            let is_first = !progress.refuses(position);
            if is_first {
                progress.broken_at = Some(position);
            }
            is_first
        });
    }

    /// Returns whether a position has failed.
    pub fn is_broken(&self) -> bool {
        self.0.borrow().broken_at.is_some()
    }
}

/// Returns whether a publish with this result must not be repeated.
pub(crate) fn is_final(result: &Result<PublishResult, StoreError>) -> bool {
    match result {
        Ok(PublishResult::New { .. } | PublishResult::Duplicate { .. } | PublishResult::KeyReused { .. })
        | Err(StoreError::InvalidItem(_)) => true,
        Ok(PublishResult::ConfigChanged | PublishResult::NoTenant | PublishResult::Fenced) | Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test]
    async fn position_waits_for_all_earlier_ones() {
        let order = Arc::new(PublishOrder::default());
        assert_eq!(order.wait_for_turn(0).await, Ok(()));
        let second = tokio::spawn({
            let order = order.clone();
            async move { order.wait_for_turn(2).await }
        });
        order.advance(0);
        tokio::task::yield_now().await;
        assert!(!second.is_finished(), "position 1 is still expected");
        order.leave_out(1).await;
        assert_eq!(second.await.unwrap(), Ok(()));
        order.advance(0);
        assert_eq!(order.wait_for_turn(2).await, Ok(()), "a position counts once");
    }

    #[tokio::test]
    async fn failed_position_refuses_itself_and_all_later_ones() {
        let order = Arc::new(PublishOrder::default());
        let at = |position| OrderedPosition { order: order.clone(), position };
        order.advance(0);
        let behind = tokio::spawn({
            let order = order.clone();
            async move { order.wait_for_turn(3).await }
        });
        at(1).record(&Ok(PublishResult::New { sequence_number: 1 }));
        at(1).record(&Err(StoreError::InvalidItem("never".into())));
        assert!(!order.is_broken());
        at(2).record(&Err(StoreError::Overloaded));
        assert!(order.is_broken());
        assert_eq!(behind.await.unwrap(), Err(StoreError::OutOfOrder));
        assert_eq!(order.wait_for_turn(2).await, Err(StoreError::OutOfOrder));
        assert_eq!(order.wait_for_turn(1).await, Ok(()), "events before the failure are stored");
        at(4).break_off();
        assert!(at(2).is_refused() && !at(1).is_refused(), "a later failure changes nothing");
        at(1).break_off();
        assert!(at(1).is_refused() && !at(0).is_refused(), "an earlier failure rejects more events");
    }
}
