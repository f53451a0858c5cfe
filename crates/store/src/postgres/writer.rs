//! Group commit: one task for publishes (see `publish_writer`), one for outcomes. Each gathers what waits while the
//! batch before it is being committed.
//!
//! When the connection is lost at a commit, nobody knows whether it was made. Outcomes are simply offered
//! again. Of publishes and claims it is found out: their transactions hold the node's row, so once that row
//! can be had they are over. What was leased and nobody was told of goes back to its lane.

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
    Birth, Done, Epoch, NewEvent, OrderedPosition, Outcome, Published, Recorded,
    batch::{self, Commit, CommitError, Queue, Weighed, complete},
    error::StoreError,
};

/// The delay before doubts are settled by their own task, and its upper limit while the database does not respond.
const MIN_SETTLE_DELAY: Duration = Duration::from_millis(200);
const MAX_SETTLE_DELAY: Duration = Duration::from_secs(5);

/// Something to be written down about a lease.
enum Note {
    Outcome(Arc<Outcome>, Done<Recorded>),
    /// Notes that a delivery is about to be sent; after a crash there may be thousands at once.
    Sending(Epoch, DeliveryId, Done<bool>),
}

impl Weighed for Note {
    fn weight(&self) -> (usize, usize) {
        match self {
            Self::Outcome(..) => (3, 512),
            Self::Sending(..) => (1, 64),
        }
    }
}

/// Leases, and lanes held, that may have been committed without anybody knowing.
#[derive(Default)]
pub(super) struct Doubts {
    open: Mutex<Open>,
    /// Held while doubts are settled: nothing else is leased before that.
    settling: tokio::sync::Mutex<()>,
    /// How often doubts were settled. What was sent before the last time, and comes after it, is refused.
    fence: AtomicI64,
    /// Wakes the task that settles doubts.
    added: Arc<Notify>,
}

/// What is in doubt.
#[derive(Default)]
pub(super) struct Open {
    pub(super) leases: Vec<(Epoch, DeliveryId, Time)>,
    pub(super) lanes: Vec<(Epoch, claim::Code)>,
    /// Webhooks that a claim may have assigned to the node.
    pub(super) assigned: Vec<(Epoch, WebhookId)>,
}

impl Open {
    fn is_empty(&self) -> bool {
        self.leases.is_empty() && self.lanes.is_empty() && self.assigned.is_empty()
    }
}

impl Doubts {
    pub(super) fn add(&self, epoch: Epoch, leases: impl IntoIterator<Item = (DeliveryId, Time)>) {
        let leases = leases.into_iter().map(|(delivery, due)| (epoch, delivery, due));
        self.open.lock().leases.extend(leases);
        self.added.notify_one();
    }

    /// Adds lanes that a claim may hold, and webhooks that it may have assigned to the node.
    pub(super) fn add_lanes(
        &self,
        epoch: Epoch,
        lanes: impl IntoIterator<Item = claim::Code>,
        assigned: Vec<WebhookId>,
    ) {
        let mut open = self.open.lock();
        open.lanes.extend(lanes.into_iter().map(|lane| (epoch, lane)));
        open.assigned.extend(assigned.into_iter().map(|webhook| (epoch, webhook)));
        drop(open);
        self.added.notify_one();
    }

    /// What statements that begin and end by themselves have to say, or else they may come too late.
    pub(super) fn fence(&self) -> i64 {
        self.fence.load(SeqCst)
    }

    /// Gives back what was leased without anybody knowing.
    pub(super) async fn settle(&self, shared: &Shared) -> Result<(), Failure> {
        let _alone = self.settling.lock().await;
        let open = std::mem::take(&mut *self.open.lock());
        if open.is_empty() {
            return Ok(());
        }
        let fence = self.fence.fetch_add(1, SeqCst) + 1;
        match shared.rescues.write(|tx| leases::give_back_doubtful(tx, &open, fence)).await {
            Ok(found) => {
                tracing::info!(found, "leases of a commit that was cut off go back to their lanes");
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

/// Settles doubts soon after they arise, since a node without traffic makes no publish or claim that would. Ends with the
/// store.
async fn keep_settling(shared: Weak<Shared>, added: Arc<Notify>) {
    loop {
        added.notified().await;
        let mut delay = MIN_SETTLE_DELAY;
        loop {
            tokio::time::sleep(delay).await;
            let Some(shared) = shared.upgrade() else { return };
            match shared.doubts.settle(&shared).await {
                Ok(()) => break,
                Err(failure) => {
                    tracing::warn!(error = %failure, "outcome of a lost commit is not known yet; will retry");
                    delay = (delay * 2).min(MAX_SETTLE_DELAY);
                }
            }
        }
    }
}

/// The handle on the tasks that write.
pub(super) struct Writer {
    publishes: mpsc::UnboundedSender<QueuedPublish>,
    notes: mpsc::UnboundedSender<Note>,
    tasks: [(&'static str, AbortHandle); 2],
    queue: Arc<Queue>,
    settling: AbortHandle,
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.settling.abort();
    }
}

impl Writer {
    pub(super) fn start(shared: &Arc<Shared>, options: &Options) -> Self {
        let queue = Arc::new(Queue::new(options.max_waiting, options.max_waiting_bytes));
        let (publishes, publisher) = publish_writer::start(shared, options, &queue);
        let (notes, noting) = mpsc::unbounded_channel();
        let recorder = tokio::spawn(keep_noting(shared.clone(), noting));
        let tasks = [("publishes", publisher), ("outcomes", recorder.abort_handle())];
        let settling = keep_settling(Arc::downgrade(shared), shared.doubts.added.clone());
        let settling = tokio::spawn(settling).abort_handle();
        Self { publishes, notes, tasks, queue, settling }
    }

    /// Checks that both tasks run. One that has ended was ended by a fault in the program, and nothing restarts it.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        match self.tasks.iter().find(|(_, task)| task.is_finished()) {
            None => Ok(()),
            Some((what, _)) => Err(StoreError::Unavailable(format!(
                "the store's writer of {what} has ended by a fault in the program; restart redrive"
            ))),
        }
    }

    /// Ends both tasks, as a fault in the program might: for tests.
    #[cfg(feature = "conformance")]
    pub(super) fn end(&self) {
        self.tasks.iter().for_each(|(_, task)| task.abort());
    }

    pub(super) fn publish(&self, new: NewEvent, done: Done<Published>) {
        if !self.queue.enter(new.event.weight()) {
            new.order.iter().for_each(OrderedPosition::break_off);
            return done(Err(StoreError::Overloaded));
        }
        let blocked_for = Duration::ZERO;
        if let Err(unsent) = self.publishes.send(QueuedPublish { new, done, blocked_for }) {
            (unsent.0.done)(Err(closed()));
        }
    }

    pub(super) fn record(&self, outcome: Arc<Outcome>, done: Done<Recorded>) {
        self.note(Note::Outcome(outcome, done));
    }

    pub(super) fn mark(&self, epoch: Epoch, delivery: DeliveryId, done: Done<bool>) {
        self.note(Note::Sending(epoch, delivery, done));
    }

    fn note(&self, note: Note) {
        if let Err(unsent) = self.notes.send(note) {
            match unsent.0 {
                Note::Outcome(_, done) => done(Err(closed())),
                Note::Sending(_, _, done) => done(Err(closed())),
            }
        }
    }
}

fn closed() -> StoreError {
    StoreError::Unavailable("the store's writer has ended; restart redrive".into())
}

/// The connection was lost at the commit. Whoever waits is told that it failed, which may be wrong: their
/// idempotency keys tell when they try again. What may have been leased is given back as soon as possible.
pub(super) fn in_doubt<'a>(shared: &Shared, events: impl Iterator<Item = &'a NewEvent>) {
    for new in events {
        let leased = new.deliveries.iter().filter(|delivery| delivery.birth == Birth::Leased);
        shared.doubts.add(new.epoch, leased.map(|delivery| (delivery.id, new.event.timestamp)));
    }
}

async fn keep_noting(shared: Arc<Shared>, mut waiting: mpsc::UnboundedReceiver<Note>) {
    while let Some(first) = waiting.recv().await {
        let mut batch = vec![first];
        batch::gather(&mut batch, batch::LIMITS, || waiting.try_recv().ok());
        let (mut outcomes, mut told, mut marks) = (Vec::new(), Vec::new(), Vec::new());
        for note in batch {
            match note {
                Note::Outcome(outcome, done) => {
                    outcomes.push(outcome);
                    told.push(done);
                }
                Note::Sending(epoch, delivery, done) => marks.push((epoch, delivery, done)),
            }
        }
        for (done, result) in told.into_iter().zip(record_all(&shared, &outcomes).await) {
            complete(done, result);
        }
        if !marks.is_empty() {
            mark_all(&shared, marks).await;
        }
    }
}

async fn record_all(shared: &Shared, outcomes: &[Arc<Outcome>]) -> Vec<Result<Recorded, StoreError>> {
    let mut commit = Commit::of(outcomes.len());
    while let Some(range) = commit.next() {
        let slice = &outcomes[range.clone()];
        let result = record::commit(shared, slice).await.map_err(CommitError::from);
        commit.came_to(range, result);
    }
    commit.finish()
}

async fn mark_all(shared: &Shared, marks: Vec<(Epoch, DeliveryId, Done<bool>)>) {
    let leases: Vec<_> = marks.iter().map(|(epoch, delivery, _)| (*epoch, *delivery)).collect();
    let marked = shared.recording.write(|tx| leases::mark(tx, &leases)).await.map_err(StoreError::from);
    for (epoch, delivery, done) in marks {
        let result = marked.as_ref().map(|marked| marked.contains(&(epoch, delivery)));
        complete(done, result.map_err(Clone::clone));
    }
}
