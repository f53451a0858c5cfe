//! Group commit: one task for publishes, one for outcomes. Each gathers what waits while the batch before it
//! is being committed.
//!
//! When the connection is lost at a commit, nobody knows whether it was made. Outcomes are simply offered
//! again. Of publishes and claims it is found out: their transactions hold the node's row, so once that row
//! can be had they are over. What was leased and nobody was told of goes back to its lane.

use std::sync::{
    Arc,
    atomic::{AtomicI64, Ordering::SeqCst},
};

use parking_lot::Mutex;
use redrive_core::{DeliveryId, Time};
use tokio::sync::mpsc;

use super::{
    Options, Shared, claim, leases, plain, publish, record,
    session::{Failure, TRIES},
};
use crate::{
    Birth, Done, Epoch, NewEvent, Outcome, Published, Recorded,
    batch::{self, Commit, CommitError, Queue, Weighed},
    error::StoreError,
};

/// An event on its way.
struct Publishing {
    new: NewEvent,
    done: Done<Published>,
}

impl Weighed for Publishing {
    fn weight(&self) -> (usize, usize) {
        (1 + 2 * self.new.deliveries.len(), self.new.event.weight())
    }
}

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
}

/// What is in doubt.
#[derive(Default)]
struct Open {
    leases: Vec<(Epoch, DeliveryId, Time)>,
    lanes: Vec<(Epoch, claim::Code)>,
}

impl Doubts {
    pub(super) fn add(&self, epoch: Epoch, leases: impl IntoIterator<Item = (DeliveryId, Time)>) {
        let leases = leases.into_iter().map(|(delivery, due)| (epoch, delivery, due));
        self.open.lock().leases.extend(leases);
    }

    pub(super) fn add_lanes(&self, epoch: Epoch, lanes: impl IntoIterator<Item = claim::Code>) {
        self.open.lock().lanes.extend(lanes.into_iter().map(|lane| (epoch, lane)));
    }

    /// What statements that begin and end by themselves have to say, or else they may come too late.
    pub(super) fn fence(&self) -> i64 {
        self.fence.load(SeqCst)
    }

    /// Gives back what was leased without anybody knowing.
    pub(super) async fn settle(&self, shared: &Shared) -> Result<(), Failure> {
        let _alone = self.settling.lock().await;
        let Open { leases, lanes } = std::mem::take(&mut *self.open.lock());
        if leases.is_empty() && lanes.is_empty() {
            return Ok(());
        }
        let fence = self.fence.fetch_add(1, SeqCst) + 1;
        match shared.writers.write(|tx| leases::give_back_doubtful(tx, &leases, &lanes, fence)).await {
            Ok(found) => {
                tracing::info!(found, "leases of a commit that was cut off go back to their lanes");
                shared.hints.work();
                Ok(())
            }
            Err(failure) => {
                let mut open = self.open.lock();
                open.leases.extend(leases);
                open.lanes.extend(lanes);
                Err(failure)
            }
        }
    }
}

/// The handle on the tasks that write.
pub(super) struct Writer {
    publishes: mpsc::UnboundedSender<Publishing>,
    notes: mpsc::UnboundedSender<Note>,
    queue: Arc<Queue>,
}

impl Writer {
    pub(super) fn start(shared: &Arc<Shared>, options: &Options) -> Self {
        let queue = Arc::new(Queue::new(options.max_waiting, options.max_waiting_bytes));
        let (publishes, publishing) = mpsc::unbounded_channel();
        let (notes, noting) = mpsc::unbounded_channel();
        tokio::spawn(keep_publishing(shared.clone(), publishing, queue.clone()));
        tokio::spawn(keep_noting(shared.clone(), noting));
        Self { publishes, notes, queue }
    }

    pub(super) fn publish(&self, new: NewEvent, done: Done<Published>) {
        if !self.queue.enter(new.event.weight()) {
            return done(Err(StoreError::Overloaded));
        }
        if let Err(unsent) = self.publishes.send(Publishing { new, done }) {
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
    StoreError::Unavailable("the store is closed".into())
}

async fn keep_publishing(
    shared: Arc<Shared>,
    mut waiting: mpsc::UnboundedReceiver<Publishing>,
    queue: Arc<Queue>,
) {
    while let Some(first) = waiting.recv().await {
        let mut batch = vec![first];
        batch::gather(&mut batch, batch::LIMITS, || waiting.try_recv().ok());
        let (new, dones): (Vec<_>, Vec<_>) =
            batch.into_iter().map(|publishing| (publishing.new, publishing.done)).unzip();
        let results = publish_all(&shared, &new).await;
        for event in &new {
            queue.leave(event.event.weight());
        }
        for (done, result) in dones.into_iter().zip(results) {
            done(result);
        }
    }
}

/// Publishes a batch: by one statement what is plain, in the usual way what is left.
async fn publish_all(shared: &Shared, new: &[NewEvent]) -> Vec<Result<Published, StoreError>> {
    if let Err(failure) = make_ready(shared, new).await {
        let error = StoreError::Unavailable(failure.to_string());
        return new.iter().map(|_| Err(error.clone())).collect();
    }
    let plain = publish_plain(shared, new).await;
    let rest: Vec<_> =
        new.iter().zip(&plain).filter(|(_, result)| result.is_none()).map(|(new, _)| new).collect();
    let mut commit = Commit::of(rest.len());
    while let Some(range) = commit.next() {
        let result = publish_slice(shared, &rest[range.clone()]).await;
        commit.came_to(range, result);
    }
    let mut usual = commit.finish().into_iter();
    plain.into_iter().map_while(|result| result.or_else(|| usual.next())).collect()
}

/// Settles what is in doubt, and makes the months that are missing.
async fn make_ready(shared: &Shared, new: &[NewEvent]) -> Result<(), Failure> {
    shared.doubts.settle(shared).await?;
    let months = new.iter().flat_map(|new| {
        std::iter::once(new.event.id.time()).chain(new.deliveries.iter().map(|delivery| delivery.id.time()))
    });
    let missing = shared.partitions.missing(months);
    shared.partitions.make(&shared.writers, missing).await
}

/// Publishes by one statement. None for those that were not, and of which nothing was done.
async fn publish_plain(shared: &Shared, new: &[NewEvent]) -> Vec<Option<Result<Published, StoreError>>> {
    let tx = match shared.writers.get().await {
        Ok(tx) => tx,
        Err(failure) => {
            return new.iter().map(|_| Some(Err(StoreError::Unavailable(failure.to_string())))).collect();
        }
    };
    tx.set_busy(true);
    match plain::commit(&tx, new, shared.doubts.fence()).await {
        Ok(published) => {
            tx.set_busy(false);
            match published {
                Some(published) => {
                    if new.iter().any(is_due) {
                        shared.hints.work();
                    }
                    published.into_iter().map(|one| one.map(Ok)).collect()
                }
                None => new.iter().map(|_| None).collect(),
            }
        }
        Err(failure) if failure.leaves_doubt() => {
            in_doubt(shared, new.iter());
            new.iter().map(|_| Some(Err(StoreError::Unavailable(failure.to_string())))).collect()
        }
        Err(_) => {
            tx.set_busy(false);
            new.iter().map(|_| None).collect()
        }
    }
}

async fn publish_slice(shared: &Shared, slice: &[&NewEvent]) -> Result<Vec<Published>, CommitError> {
    let mut tries = 0;
    loop {
        tries += 1;
        let mut told = false;
        let tx = shared.writers.get().await?;
        match publish::commit(&tx, slice, &mut told).await {
            Ok(published) => {
                if slice.iter().any(|new| is_due(new)) {
                    shared.hints.work();
                }
                return Ok(published);
            }
            Err(failure) if told && failure.leaves_doubt() => {
                in_doubt(shared, slice.iter().copied());
                return Err(failure.into());
            }
            Err(failure) => {
                tx.roll_back().await;
                if !failure.is_passing() || tries >= TRIES {
                    return Err(failure.into());
                }
            }
        }
    }
}

/// Whether something of it waits, and is due at once.
fn is_due(new: &NewEvent) -> bool {
    let due = |birth| matches!(birth, Birth::Waiting(due) if due <= new.event.timestamp);
    new.deliveries.iter().any(|delivery| due(delivery.birth))
}

/// The connection was lost at the commit. Whoever waits is told that it failed, which may be wrong: their
/// idempotency keys tell when they try again. What may have been leased is given back as soon as possible.
fn in_doubt<'a>(shared: &Shared, events: impl Iterator<Item = &'a NewEvent>) {
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
            done(result);
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
    let marked = shared.writers.write(|tx| leases::mark(tx, &leases)).await.map_err(StoreError::from);
    for (epoch, delivery, done) in marks {
        done(marked.as_ref().map(|marked| marked.contains(&(epoch, delivery))).map_err(Clone::clone));
    }
}
