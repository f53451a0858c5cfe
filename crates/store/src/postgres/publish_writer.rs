//! The publish writer task: it collects queued publishes while the previous batch is being committed.
//!
//! A tenant whose rows another transaction has locked does not delay the others. When a batch fails because a lock
//! was not available in time, events of locked tenants move to separate queues, see `blocked`.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::Future,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use redrive_core::TenantId;
use tokio::{sync::mpsc, task::AbortHandle};

use super::{
    Options, Shared,
    blocked::BlockedTenants,
    publish,
    session::{Failure, MAX_TRIES, Sessions},
};
use crate::{
    Completion, InitialState, NewEvent, PublishResult, SequencePosition,
    batch::{self, BatchItem, CommitError, WaitingLimit, complete},
    error::StoreError,
};

/// Lock timeout of a publish statement.
pub(super) const PUBLISH_LOCK_TIMEOUT: Duration = Duration::from_millis(250);
/// Duration of a batch after which the node is not ready.
const STALL_THRESHOLD: Duration = Duration::from_secs(3);

/// Event that waits to be stored, and the callback that gets the result.
pub(super) struct QueuedPublish {
    pub(super) new: NewEvent,
    pub(super) done: Completion<PublishResult>,
    /// Time it has waited for a locked tenant.
    pub(super) blocked_for: Duration,
}

impl BatchItem for QueuedPublish {
    fn weight(&self) -> (usize, usize) {
        (1 + 2 * self.new.deliveries.len(), self.new.event.memory_bytes())
    }
}

/// State of an event of a batch.
pub(super) enum PublishProgress {
    Finished(Result<PublishResult, StoreError>),
    /// A row of its tenant is locked by another transaction. Nothing was stored.
    Blocked,
}

/// Detects a batch that takes too long to commit.
#[derive(Default)]
pub(super) struct PublishWatch {
    stalled: AtomicBool,
}

impl PublishWatch {
    /// Waits for a batch, and sets `stalled` while it takes too long.
    async fn watch<T>(&self, batch: impl Future<Output = T>) -> T {
        let mut batch = pin!(batch);
        if let Ok(result) = tokio::time::timeout(STALL_THRESHOLD, batch.as_mut()).await {
            return result;
        }
        self.stalled.store(true, Relaxed);
        tracing::warn!(
            "publishing has not progressed for {STALL_THRESHOLD:?}; this node is not ready until it does"
        );
        let result = batch.await;
        self.stalled.store(false, Relaxed);
        result
    }

    /// Fails if the batch has been running for too long.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        match self.stalled.load(Relaxed) {
            false => Ok(()),
            true => Err(StoreError::Unavailable(format!(
                "publishing has not progressed for {STALL_THRESHOLD:?}; look in pg_stat_activity for locks, for slow \
                 statements and for commits that wait for a standby"
            ))),
        }
    }
}

/// Starts the publish writer task. It ends when the sender is dropped.
pub(super) fn start(
    shared: &Arc<Shared>,
    options: &Options,
    queue: &Arc<WaitingLimit>,
) -> (mpsc::UnboundedSender<QueuedPublish>, AbortHandle) {
    let (sender, waiting) = mpsc::unbounded_channel();
    let blocked = Arc::new(BlockedTenants::new(shared, queue, options.statement_timeout));
    let task = tokio::spawn(run_publish_writer(shared.clone(), waiting, queue.clone(), blocked));
    (sender, task.abort_handle())
}

async fn run_publish_writer(
    shared: Arc<Shared>,
    mut waiting: mpsc::UnboundedReceiver<QueuedPublish>,
    queue: Arc<WaitingLimit>,
    blocked: Arc<BlockedTenants>,
) {
    while let Some(first) = waiting.recv().await {
        let mut batch = vec![first];
        batch::gather(&mut batch, batch::LIMITS, || waiting.try_recv().ok());
        // Events of a blocked tenant are queued behind those already waiting.
        let mut batch: Vec<_> = batch.into_iter().filter_map(|publish| blocked.try_push(publish)).collect();
        refuse_after_failure(&mut batch, &queue);
        let events: Vec<_> = batch.iter().map(|publish| &publish.new).collect();
        let publishing = publish_batch(&shared, &shared.publishing, &events);
        let results = shared.publish_watch.watch(publishing).await;
        let mut changed: BTreeMap<TenantId, Vec<QueuedPublish>> = BTreeMap::new();
        for (publish, progress) in batch.into_iter().zip(results) {
            match progress {
                PublishProgress::Finished(result) => finish(&queue, publish, result),
                PublishProgress::Blocked => {
                    changed.entry(publish.new.event.tenant_id.clone()).or_default().push(publish);
                }
            }
        }
        for (tenant_id, publishes) in changed {
            blocked.open(tenant_id, publishes);
        }
    }
}

/// Reports the result of a publish to its caller.
pub(super) fn finish(
    queue: &WaitingLimit,
    publish: QueuedPublish,
    result: Result<PublishResult, StoreError>,
) {
    queue.release(publish.new.event.memory_bytes());
    publish.new.position.iter().for_each(|ordered| ordered.record(&result));
    complete(publish.done, result);
}

/// Removes and refuses publishes of a batch that would break their order.
pub(super) fn refuse_after_failure(batch: &mut Vec<QueuedPublish>, queue: &WaitingLimit) {
    let mut is_refused = batch::find_refused(batch.iter().map(|publish| &publish.new)).into_iter();
    for refused in batch.extract_if(.., |_| is_refused.next().unwrap_or(false)) {
        finish(queue, refused, Err(StoreError::PrecedingEventFailed));
    }
}

/// Events that are tried together, by their positions in the batch.
struct Group {
    positions: Vec<usize>,
    attempts: usize,
}

/// Publishes a batch, in as few groups as possible. Results are in the order of the events.
pub(super) async fn publish_batch(
    shared: &Shared,
    sessions: &Sessions,
    events: &[&NewEvent],
) -> Vec<PublishProgress> {
    let mut progress = BatchProgress::new(events);
    let mut groups = match prepare_batch(shared, events).await {
        Ok(()) => group_by_epoch(events),
        Err(failure) => {
            let error = StoreError::Unavailable(failure.to_string());
            return events.iter().map(|_| PublishProgress::Finished(Err(error.clone()))).collect();
        }
    };
    while let Some(group) = groups.pop() {
        let Group { positions, attempts: tries } = group;
        let positions = progress.retain_free(positions);
        if positions.is_empty() {
            continue;
        }
        let members: Vec<_> = positions.iter().map(|at| events[*at]).collect();
        match publish::publish_group(shared, sessions, &members, tries > 0).await {
            Ok(published) => {
                if members.iter().any(|new| is_due(new)) {
                    shared.hints.work();
                }
                let mut changed = Vec::new();
                for (at, published) in positions.into_iter().zip(published) {
                    match published {
                        Some(published) => progress.finish(at, Ok(published)),
                        None => changed.push(at),
                    }
                }
                retry(&mut groups, &mut progress, changed, tries);
            }
            Err(failure) if failure.is_lock_timeout() => {
                let (free, locked) = split_by_lock(sessions, events, positions).await;
                locked.into_iter().for_each(|at| progress.block(at));
                retry(&mut groups, &mut progress, free, tries);
            }
            // Only blocked tenants compete for connections. They are retried for a bounded time.
            Err(Failure::PoolExhausted) => positions.into_iter().for_each(|at| progress.block(at)),
            Err(failure) if failure.is_stale_read() || failure.is_contention() => {
                retry(&mut groups, &mut progress, positions, tries);
            }
            Err(failure) => fail(&mut groups, &mut progress, Group { positions, attempts: tries }, failure),
        }
    }
    progress.into_results()
}

/// Results of the events of a batch so far. Groups of a batch can fail separately, and no event may overtake one
/// that failed or is blocked: an event of a broken order is refused, one of a blocked tenant is blocked as well.
struct BatchProgress<'a> {
    events: &'a [&'a NewEvent],
    results: Vec<Option<PublishProgress>>,
    blocked: BTreeSet<&'a TenantId>,
}

impl<'a> BatchProgress<'a> {
    fn new(events: &'a [&'a NewEvent]) -> Self {
        let results = events.iter().map(|_| None).collect();
        Self { events, results, blocked: BTreeSet::new() }
    }

    fn finish(&mut self, at: usize, result: Result<PublishResult, StoreError>) {
        self.events[at].position.iter().for_each(|ordered| ordered.record(&result));
        self.results[at] = Some(PublishProgress::Finished(result));
    }

    fn block(&mut self, at: usize) {
        self.blocked.insert(&self.events[at].event.tenant_id);
        self.results[at] = Some(PublishProgress::Blocked);
    }

    /// Returns the positions that may be published now.
    fn retain_free(&mut self, mut positions: Vec<usize>) -> Vec<usize> {
        positions.retain(|at| {
            let new = self.events[*at];
            if self.blocked.contains(&new.event.tenant_id) {
                self.results[*at] = Some(PublishProgress::Blocked);
                return false;
            }
            let is_refused = new.position.as_ref().is_some_and(SequencePosition::is_refused);
            if is_refused {
                self.results[*at] = Some(PublishProgress::Finished(Err(StoreError::PrecedingEventFailed)));
            }
            !is_refused
        });
        positions
    }

    /// Returns one result per event, in order.
    fn into_results(self) -> Vec<PublishProgress> {
        let unknown = || PublishProgress::Finished(Err(contended()));
        self.results.into_iter().map(|result| result.unwrap_or_else(unknown)).collect()
    }
}

fn contended() -> StoreError {
    StoreError::Unavailable("the tenant is being changed by other transactions; publish again".into())
}

/// Groups events by epoch, since events of one epoch are stored together. The last group is published first.
fn group_by_epoch(events: &[&NewEvent]) -> Vec<Group> {
    let mut epochs: BTreeMap<i64, Vec<usize>> = BTreeMap::new();
    for (at, new) in events.iter().enumerate() {
        epochs.entry(new.epoch.0).or_default().push(at);
    }
    epochs.into_values().map(|positions| Group { positions, attempts: 0 }).collect()
}

/// Retries events before the remaining groups, or gives up after the maximum number of tries.
fn retry(groups: &mut Vec<Group>, progress: &mut BatchProgress<'_>, positions: Vec<usize>, tries: usize) {
    if positions.is_empty() {
        return;
    }
    if tries + 1 < MAX_TRIES {
        return groups.push(Group { positions, attempts: tries + 1 });
    }
    positions.into_iter().for_each(|at| progress.finish(at, Err(contended())));
}

/// Splits a group with an invalid event into halves, so that the event fails alone. Any other failure fails the
/// group.
fn fail(groups: &mut Vec<Group>, progress: &mut BatchProgress<'_>, group: Group, failure: Failure) {
    let error = match CommitError::from(failure) {
        CommitError::Item(_) if group.positions.len() > 1 => {
            let (first, second) = group.positions.split_at(group.positions.len() / 2);
            groups.push(Group { positions: second.to_vec(), attempts: group.attempts });
            groups.push(Group { positions: first.to_vec(), attempts: group.attempts });
            return;
        }
        CommitError::Item(reason) => StoreError::InvalidItem(reason),
        CommitError::Store(error) => error,
    };
    group.positions.into_iter().for_each(|at| progress.finish(at, Err(error.clone())));
}

/// Splits events into those whose tenants can be published now, and those of locked tenants. If no tenant's row is
/// locked, the lock is on a lane, and only events with waiting deliveries need one: those are treated as locked.
async fn split_by_lock(
    sessions: &Sessions,
    events: &[&NewEvent],
    positions: Vec<usize>,
) -> (Vec<usize>, Vec<usize>) {
    let tenants: BTreeSet<_> = positions.iter().map(|at| &events[*at].event.tenant_id).collect();
    let locked = match tenants.len() {
        1 => tenants.clone(),
        _ => publish::locked_tenants(sessions, &tenants).await.unwrap_or_default(),
    };
    let locked = match locked.is_empty() {
        true => positions
            .iter()
            .filter(|at| has_waiting(events[**at]))
            .map(|at| &events[*at].event.tenant_id)
            .collect(),
        false => locked,
    };
    positions.into_iter().partition(|at| !locked.contains(&events[*at].event.tenant_id))
}

/// Releases uncertain leases, and creates the monthly partitions that are missing.
async fn prepare_batch(shared: &Shared, events: &[&NewEvent]) -> Result<(), Failure> {
    shared.doubts.release_uncertain(shared).await?;
    let months = events.iter().flat_map(|new| {
        std::iter::once(new.event.id.time()).chain(new.deliveries.iter().map(|delivery| delivery.id.time()))
    });
    let missing = shared.partitions.missing(months);
    shared.partitions.create(&shared.writers, missing).await
}

fn has_waiting(new: &NewEvent) -> bool {
    new.deliveries.iter().any(|delivery| matches!(delivery.initial_state, InitialState::Waiting(_)))
}

/// Returns whether the event has a waiting delivery that is due immediately.
fn is_due(new: &NewEvent) -> bool {
    let due =
        |initial_state| matches!(initial_state, InitialState::Waiting(due) if due <= new.event.timestamp);
    new.deliveries.iter().any(|delivery| due(delivery.initial_state))
}

#[cfg(test)]
mod tests;
