//! Group commit: one task for publishes (see `publish_writer`), one for outcomes. Each collects queued items while
//! the previous batch is being committed.
//!
//! If the connection is lost during a commit, it is unknown whether the commit succeeded. Outcomes are recorded
//! again. The result of publishes and claims is determined: their transactions lock the node's row, so once that
//! lock is acquired they have ended. Leases that were committed without an acknowledgement are returned to their
//! lanes.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicI64, Ordering::SeqCst},
    },
    time::Duration,
};

use parking_lot::Mutex;
use redrive_core::{DeliveryId, Time, WebhookId};
use tokio::{
    sync::{Notify, mpsc},
    task::AbortHandle,
};

use super::{
    Options, Shared, claim, leases,
    publish_writer::{self, QueuedPublish},
    record,
    session::Failure,
};
use crate::{
    Completion, Epoch, InitialState, NewEvent, OutcomeRecord, PublishResult, RecordResult, SequencePosition,
    batch::{self, BatchItem, BisectingCommit, CommitError, WaitingLimit, complete},
    error::StoreError,
};

/// Delay before a task releases uncertain leases, and its upper limit while the database does not respond.
const MIN_SETTLE_DELAY: Duration = Duration::from_millis(200);
const MAX_SETTLE_DELAY: Duration = Duration::from_secs(5);

/// Write that concerns a lease.
enum LeaseWrite {
    OutcomeRecord(Arc<OutcomeRecord>, Completion<RecordResult>),
    /// Marks a delivery as about to be sent; after a crash there may be thousands of these concurrently.
    Sending(Epoch, DeliveryId, Completion<bool>),
}

impl BatchItem for LeaseWrite {
    fn weight(&self) -> (usize, usize) {
        match self {
            Self::OutcomeRecord(..) => (3, 512),
            Self::Sending(..) => (1, 64),
        }
    }
}

/// Leases, claimed lanes and assignments whose commit is uncertain.
#[derive(Default)]
pub(super) struct UncertainCommits {
    open: Mutex<UncertainLeases>,
    /// Held while uncertain leases are released: publishes and claims wait for it.
    settling: tokio::sync::Mutex<()>,
    /// Number of releases so far. A statement that was sent before the last one and arrives after it is refused.
    fence: AtomicI64,
    /// Wakes the task that releases uncertain leases.
    added: Arc<Notify>,
}

/// Leases, lanes and assignments to be released.
#[derive(Default)]
pub(super) struct UncertainLeases {
    pub(super) leases: Vec<(Epoch, DeliveryId, Time)>,
    pub(super) lanes: Vec<(Epoch, claim::LaneCode)>,
    /// Webhooks that a claim may have assigned to the node.
    pub(super) assigned: Vec<(Epoch, WebhookId)>,
}

impl UncertainLeases {
    fn is_empty(&self) -> bool {
        self.leases.is_empty() && self.lanes.is_empty() && self.assigned.is_empty()
    }
}

impl UncertainCommits {
    pub(super) fn add(&self, epoch: Epoch, leases: impl IntoIterator<Item = (DeliveryId, Time)>) {
        let leases = leases.into_iter().map(|(delivery_id, due)| (epoch, delivery_id, due));
        self.open.lock().leases.extend(leases);
        self.added.notify_one();
    }

    /// Adds lanes that a claim may have marked as claimed, and webhooks that it may have assigned to the node.
    pub(super) fn add_lanes(
        &self,
        epoch: Epoch,
        lanes: impl IntoIterator<Item = claim::LaneCode>,
        assigned: Vec<WebhookId>,
    ) {
        let mut open = self.open.lock();
        open.lanes.extend(lanes.into_iter().map(|lane| (epoch, lane)));
        open.assigned.extend(assigned.into_iter().map(|webhook_id| (epoch, webhook_id)));
        drop(open);
        self.added.notify_one();
    }

    /// Returns the fence that self-committing statements must carry, so that the server refuses those that arrive too
    /// late.
    pub(super) fn fence(&self) -> i64 {
        self.fence.load(SeqCst)
    }

    /// Returns leases, lanes and assignments whose commit is uncertain.
    pub(super) async fn release_uncertain(&self, shared: &Shared) -> Result<(), Failure> {
        let _alone = self.settling.lock().await;
        let open = std::mem::take(&mut *self.open.lock());
        if open.is_empty() {
            return Ok(());
        }
        let fence = self.fence.fetch_add(1, SeqCst) + 1;
        match shared.rescues.write(|tx| leases::return_uncertain(tx, &open, fence)).await {
            Ok(found) => {
                tracing::info!(found, "released leases of an interrupted commit");
                shared.hints.work();
                Ok(())
            }
            Err(failure) => {
                let mut still = self.open.lock();
                still.leases.extend(open.leases);
                still.lanes.extend(open.lanes);
                still.assigned.extend(open.assigned);
                Err(failure)
            }
        }
    }
}

/// Releases uncertain leases soon after they arise, since a node without traffic runs no publish or claim that
/// would. Ends with the store.
async fn run_uncertain_resolver(shared: Weak<Shared>, added: Arc<Notify>) {
    loop {
        added.notified().await;
        let mut delay = MIN_SETTLE_DELAY;
        loop {
            tokio::time::sleep(delay).await;
            let Some(shared) = shared.upgrade() else { return };
            match shared.doubts.release_uncertain(&shared).await {
                Ok(()) => break,
                Err(failure) => {
                    tracing::warn!(error = %failure, "result of an interrupted commit is not known yet; will retry");
                    delay = (delay * 2).min(MAX_SETTLE_DELAY);
                }
            }
        }
    }
}

/// Handle of the writer tasks.
pub(super) struct Writer {
    publishes: mpsc::UnboundedSender<QueuedPublish>,
    lease_writes: mpsc::UnboundedSender<LeaseWrite>,
    tasks: [(&'static str, AbortHandle); 2],
    queue: Arc<WaitingLimit>,
    settling: AbortHandle,
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.settling.abort();
    }
}

impl Writer {
    pub(super) fn start(shared: &Arc<Shared>, options: &Options) -> Self {
        let queue = Arc::new(WaitingLimit::new(options.max_queued_publishes, options.max_queued_bytes));
        let (publishes, publisher) = publish_writer::start(shared, options, &queue);
        let (notes, noting) = mpsc::unbounded_channel();
        let recorder = tokio::spawn(run_outcome_writer(shared.clone(), noting));
        let tasks = [("publishes", publisher), ("outcomes", recorder.abort_handle())];
        let settling = run_uncertain_resolver(Arc::downgrade(shared), shared.doubts.added.clone());
        let settling = tokio::spawn(settling).abort_handle();
        Self { publishes, lease_writes: notes, tasks, queue, settling }
    }

    /// Checks that both tasks run. A task can only end by a bug, and nothing restarts it.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        match self.tasks.iter().find(|(_, task)| task.is_finished()) {
            None => Ok(()),
            Some((what, _)) => {
                Err(StoreError::WriterEnded(format!("the store's writer of {what} has ended by a panic")))
            }
        }
    }

    /// Aborts both tasks, as a bug might: for tests.
    #[cfg(feature = "conformance")]
    pub(super) fn end(&self) {
        self.tasks.iter().for_each(|(_, task)| task.abort());
    }

    pub(super) fn publish(&self, new: NewEvent, done: Completion<PublishResult>) {
        if !self.queue.try_acquire(new.event.memory_bytes()) {
            new.position.iter().for_each(SequencePosition::break_off);
            return done(Err(StoreError::Overloaded));
        }
        let blocked_for = Duration::ZERO;
        if let Err(unsent) = self.publishes.send(QueuedPublish { new, done, blocked_for }) {
            (unsent.0.done)(Err(closed()));
        }
    }

    pub(super) fn record(&self, outcome: Arc<OutcomeRecord>, done: Completion<RecordResult>) {
        self.enqueue_lease_write(LeaseWrite::OutcomeRecord(outcome, done));
    }

    pub(super) fn mark_sending(&self, epoch: Epoch, delivery_id: DeliveryId, done: Completion<bool>) {
        self.enqueue_lease_write(LeaseWrite::Sending(epoch, delivery_id, done));
    }

    fn enqueue_lease_write(&self, note: LeaseWrite) {
        if let Err(unsent) = self.lease_writes.send(note) {
            match unsent.0 {
                LeaseWrite::OutcomeRecord(_, done) => done(Err(closed())),
                LeaseWrite::Sending(_, _, done) => done(Err(closed())),
            }
        }
    }
}

fn closed() -> StoreError {
    StoreError::WriterEnded("the store's writer has ended".into())
}

/// Marks the leases of events as uncertain after the connection was lost during the commit. Publishers get an
/// error, which may be wrong; their idempotency keys reveal it when they retry. The leases are returned as soon as
/// possible.
pub(super) fn mark_uncertain<'a>(shared: &Shared, events: impl Iterator<Item = &'a NewEvent>) {
    for new in events {
        let leased = new.deliveries.iter().filter(|delivery| delivery.initial_state == InitialState::Leased);
        shared.doubts.add(new.epoch, leased.map(|delivery| (delivery.id, new.event.timestamp)));
    }
}

async fn run_outcome_writer(shared: Arc<Shared>, mut waiting: mpsc::UnboundedReceiver<LeaseWrite>) {
    while let Some(first) = waiting.recv().await {
        let mut batch = vec![first];
        batch::gather(&mut batch, batch::LIMITS, || waiting.try_recv().ok());
        let (mut outcomes, mut reported, mut marks) = (Vec::new(), Vec::new(), Vec::new());
        for note in batch {
            match note {
                LeaseWrite::OutcomeRecord(outcome, done) => {
                    outcomes.push(outcome);
                    reported.push(done);
                }
                LeaseWrite::Sending(epoch, delivery_id, done) => marks.push((epoch, delivery_id, done)),
            }
        }
        for (done, result) in reported.into_iter().zip(record_all(&shared, &outcomes).await) {
            complete(done, result);
        }
        if !marks.is_empty() {
            mark_all(&shared, marks).await;
        }
    }
}

async fn record_all(
    shared: &Shared,
    outcomes: &[Arc<OutcomeRecord>],
) -> Vec<Result<RecordResult, StoreError>> {
    let mut commit = BisectingCommit::new(outcomes.len());
    while let Some(range) = commit.next() {
        let slice = &outcomes[range.clone()];
        let result = record::commit(shared, slice).await.map_err(CommitError::from);
        commit.record_result(range, result);
    }
    commit.finish()
}

async fn mark_all(shared: &Shared, marks: Vec<(Epoch, DeliveryId, Completion<bool>)>) {
    let leases: Vec<_> = marks.iter().map(|(epoch, delivery_id, _)| (*epoch, *delivery_id)).collect();
    let marked =
        shared.recording.write(|tx| leases::mark_sending(tx, &leases)).await.map_err(StoreError::from);
    for (epoch, delivery_id, done) in marks {
        let result = marked.as_ref().map(|marked| marked.contains(&(epoch, delivery_id)));
        complete(done, result.map_err(Clone::clone));
    }
}
