//! The listing of attempts, which merges two sources of candidates, newest first: the attempt index, which has every
//! attempt other than prompt successes, and deliveries, through which prompt successes are found. Backends read pages
//! of candidates; this file decides which to read and which of them belong to the page.

use std::{cmp::Reverse, slice::Chunks};

use redrive_core::{
    AttemptId, DeliveryId, FailureCategory, Time,
    delivery::outcome::{AttemptStatus, PROMPT_SUCCESS_WINDOW},
    id::min_bytes_at,
};

use crate::{
    AttemptCursor, AttemptFilter, ListedAttempt, ListingPage, PageRequest,
    access_path::{IdRange, PageBuilder},
};

/// Minimum number of candidates whose attempts are read at a time.
const MIN_CHUNK: usize = 50;

/// Row of the attempt index.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IndexedAttempt {
    pub(crate) id: AttemptId,
    pub(crate) delivery_id: DeliveryId,
    pub(crate) status: AttemptStatus,
    pub(crate) category: Option<FailureCategory>,
    pub(crate) code: Option<u16>,
}

/// Delivery that may have ended with a prompt success, at the id that it was found by: its own, or that of its event.
/// An event without deliveries is a candidate without a delivery.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PossiblePrompt {
    pub(crate) position: [u8; 16],
    pub(crate) delivery_id: Option<DeliveryId>,
}

/// Candidate whose attempt is to be read: the attempt with this id, or the prompt success if there is no id.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttemptCandidate {
    pub(crate) cursor: AttemptCursor,
    pub(crate) delivery_id: DeliveryId,
    pub(crate) id: Option<AttemptId>,
}

/// Next candidates to read.
pub(crate) struct AttemptReads {
    /// Maximum number of rows of each source.
    pub(crate) rows: usize,
    /// Attempt ids.
    pub(crate) indexed: IdRange,
    /// Ids of deliveries or events; `None` if no prompt success can match.
    pub(crate) prompt: Option<IdRange>,
}

/// A listing in progress.
pub(crate) struct AttemptWalk<'a> {
    filter: &'a AttemptFilter,
    page: PageBuilder<ListedAttempt, AttemptCursor>,
    after: Option<AttemptCursor>,
}

/// One step of a listing: what was read, and where it ends.
pub(crate) struct AttemptStep {
    /// Candidates that may match, newest first.
    pub(crate) candidates: Vec<AttemptCandidate>,
    scanned: usize,
    end: Option<AttemptCursor>,
}

impl<'a> AttemptWalk<'a> {
    pub(crate) fn new(filter: &'a AttemptFilter, page: &PageRequest<AttemptCursor>) -> Self {
        Self { filter, page: PageBuilder::new(page), after: page.after }
    }

    /// Returns what to read next, or `None` if the page needs no rows.
    pub(crate) fn next_reads(&self) -> Option<AttemptReads> {
        if self.page.missing() == 0 {
            return None;
        }
        let low = |at: Option<Time>| at.map_or([0; 16], min_bytes_at);
        let high = self.filter.to.map_or([0xff; 16], min_bytes_at);
        let (mut indexed, mut prompt) = (high, high);
        if let Some(after) = self.after {
            indexed = indexed.min(after.position);
            // The event of the last delivery may have more deliveries, unless all of them have been read.
            let is_read = after.delivery_id == DeliveryId::from_bytes([0; 16]);
            let next = u128::from_be_bytes(after.position).saturating_add(u128::from(!is_read));
            prompt = prompt.min(next.to_be_bytes());
        }
        // A prompt success was sent within the window after its event.
        let early = |at: Time| Time::from_millis(at.millis() - PROMPT_SUCCESS_WINDOW.as_millis() as i64);
        let prompt_low = low(self.filter.from.map(early));
        Some(AttemptReads {
            rows: self.page.next_batch_size(),
            indexed: IdRange { low: low(self.filter.from), high: indexed },
            prompt: (!self.filter.is_failed_only()).then_some(IdRange { low: prompt_low, high: prompt }),
        })
    }

    /// Merges the candidates that were read. If a source has more, candidates older than its last one wait for the next
    /// step.
    pub(crate) fn merge(
        &self,
        reads: &AttemptReads,
        indexed: &[IndexedAttempt],
        prompt: &[PossiblePrompt],
    ) -> AttemptStep {
        let events = 1 + prompt.windows(2).filter(|pair| pair[0].position != pair[1].position).count();
        let last_indexed = indexed.last().filter(|_| indexed.len() >= reads.rows);
        let last_prompt = prompt.last().filter(|_| events >= reads.rows);
        let end = last_indexed
            .map(|last| *last.id.as_bytes())
            .max(last_prompt.map(|last| last.position))
            .map(|position| AttemptCursor { position, delivery_id: DeliveryId::from_bytes([0; 16]) });
        let is_read = |position: &[u8; 16]| end.is_none_or(|end| *position >= end.position);
        let mut scanned = 0;
        let mut candidates = Vec::new();
        for one in indexed.iter().filter(|one| is_read(one.id.as_bytes())) {
            scanned += 1;
            if self.filter.matches_result(one.status, one.category, one.code) {
                let cursor = AttemptCursor::at_attempt(one.id);
                candidates.push(AttemptCandidate { cursor, delivery_id: one.delivery_id, id: Some(one.id) });
            }
        }
        for one in prompt.iter().filter(|one| is_read(&one.position)) {
            let Some(delivery_id) = one.delivery_id else {
                scanned += 1;
                continue;
            };
            let cursor = AttemptCursor { position: one.position, delivery_id };
            if self.after.is_none_or(|after| cursor < after) {
                scanned += 1;
                candidates.push(AttemptCandidate { cursor, delivery_id, id: None });
            }
        }
        candidates.sort_unstable_by_key(|candidate| Reverse(candidate.cursor));
        AttemptStep { candidates, scanned, end }
    }

    /// Returns the candidates of a step in parts, newest first, of which the caller reads as many as the page needs: events
    /// with many deliveries have more candidates than a page, and attempts have headers and a body.
    pub(crate) fn chunks<'s>(&self, step: &'s AttemptStep) -> Chunks<'s, AttemptCandidate> {
        step.candidates.chunks(self.page.missing().max(MIN_CHUNK))
    }

    /// Returns whether the attempts that were read fill the page, so that older candidates are not needed.
    pub(crate) fn is_filled_by(&self, read: &[ListedAttempt]) -> bool {
        let matching = read.iter().filter(|one| self.filter.matches(&one.stored.attempt));
        matching.count() >= self.page.missing()
    }

    /// Adds the attempts that were read for the candidates of a step, in their order. Returns whether to go on.
    pub(crate) fn add(&mut self, step: &AttemptStep, read: Vec<ListedAttempt>) -> bool {
        let mut found = read;
        found.retain(|one| self.filter.matches(&one.stored.attempt));
        match step.end {
            None if found.len() < self.page.missing() => {
                self.page.end(found);
                false
            }
            None => {
                // The page is full, so the position does not matter.
                let position = AttemptCursor::at_attempt(AttemptId::from_bytes([0; 16]));
                self.page.add(step.scanned, found, position)
            }
            Some(end) => {
                self.after = Some(end);
                self.page.add(step.scanned, found, end)
            }
        }
    }

    /// Returns the page, or `None` if it stopped before the offset was reached.
    pub(crate) fn page(self) -> Option<ListingPage<ListedAttempt, AttemptCursor>> {
        self.page.page()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: u8) -> [u8; 16] {
        [n; 16]
    }

    fn delivery(n: u8) -> PossiblePrompt {
        PossiblePrompt { position: id(n), delivery_id: Some(DeliveryId::from_bytes(id(100 + n))) }
    }

    fn failed(n: u8) -> IndexedAttempt {
        IndexedAttempt {
            id: AttemptId::from_bytes(id(n)),
            delivery_id: DeliveryId::from_bytes(id(200)),
            status: AttemptStatus::Failed,
            category: None,
            code: None,
        }
    }

    fn positions(step: &AttemptStep) -> Vec<u8> {
        step.candidates.iter().map(|candidate| candidate.cursor.position[0]).collect()
    }

    #[test]
    fn source_with_more_rows_delays_older_candidates_of_the_other() {
        let filter = AttemptFilter::default();
        let walk = AttemptWalk::new(&filter, &PageRequest { after: None, offset: 0, limit: 1 });
        let reads = AttemptReads { rows: 2, ..walk.next_reads().unwrap() };
        let step = walk.merge(&reads, &[failed(9), failed(7)], &[delivery(8), delivery(6)]);
        assert_eq!(positions(&step), [9, 8, 7]);
        assert_eq!(step.end.map(|end| end.position), Some(id(7)));
        let step = walk.merge(&reads, &[failed(9)], &[delivery(8)]);
        assert_eq!(positions(&step), [9, 8]);
        assert!(step.end.is_none());
    }

    #[test]
    fn step_after_a_whole_event_does_not_read_it_again() {
        let filter = AttemptFilter::default();
        let at = |delivery_id| AttemptCursor { position: id(5), delivery_id };
        let high = |delivery_id| {
            let after = Some(at(delivery_id));
            let walk = AttemptWalk::new(&filter, &PageRequest { after, offset: 0, limit: 1 });
            walk.next_reads().unwrap().prompt.unwrap().high
        };
        assert_eq!(high(DeliveryId::from_bytes([0; 16])), id(5));
        assert!(high(DeliveryId::from_bytes(id(3))) > id(5), "the event has more deliveries");
    }
}
