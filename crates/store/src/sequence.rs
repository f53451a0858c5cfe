//! Publishes that must be stored in the order in which they were made, although many wait for their commits
//! concurrently: those of one batch.
//!
//! Events are submitted to the store in the order of their positions, and the store commits them in that order. The
//! order would be wrong if an event failed and a later one were stored. So a failure breaks the sequence off at its
//! position: the store refuses all later events, and the publisher starts again with a new sequence from the event
//! that failed. Events before that position are stored as usual.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::SeqCst},
};

use crate::{PublishResult, error::StoreError};

/// A sequence of publishes, which are stored in the order of their positions. Positions count from 0.
#[derive(Debug)]
pub struct PublishSequence {
    /// The first position that failed: it and all later ones are refused.
    broken_at: AtomicU64,
}

/// A position in a sequence of publishes.
#[derive(Clone, Debug)]
pub struct SequencePosition {
    /// The sequence, which may be broken off.
    pub sequence: Arc<PublishSequence>,
    /// The position, from 0.
    pub position: u64,
}

impl SequencePosition {
    /// Refuses this position and all later ones.
    pub(crate) fn break_off(&self) {
        self.sequence.broken_at.fetch_min(self.position, SeqCst);
    }

    /// Returns whether this position or an earlier one has failed.
    pub(crate) fn is_refused(&self) -> bool {
        self.position >= self.sequence.broken_at.load(SeqCst)
    }

    /// Breaks the sequence off unless this result is final: stored, already stored, or never to be stored.
    pub(crate) fn record(&self, result: &Result<PublishResult, StoreError>) {
        if !is_final(result) {
            self.break_off();
        }
    }
}

impl Default for PublishSequence {
    fn default() -> Self {
        Self { broken_at: AtomicU64::new(u64::MAX) }
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

    #[test]
    fn failed_position_refuses_itself_and_all_later_ones() {
        let sequence = Arc::new(PublishSequence::default());
        let at = |position| SequencePosition { sequence: sequence.clone(), position };
        at(1).record(&Ok(PublishResult::New { sequence_number: 1 }));
        at(1).record(&Err(StoreError::InvalidItem("never".into())));
        assert!(!at(9).is_refused(), "a final result refuses nothing");
        at(2).record(&Err(StoreError::Overloaded));
        assert!(at(2).is_refused() && at(3).is_refused() && !at(1).is_refused());
        at(4).break_off();
        assert!(at(2).is_refused() && !at(1).is_refused(), "a later failure changes nothing");
        at(1).break_off();
        assert!(at(1).is_refused() && !at(0).is_refused(), "an earlier failure rejects more events");
    }
}
