//! Bulk operations: any node carries them on, one at a time each, and whoever comes after it goes on where it
//! stopped. Each step is one transaction of the store; nothing that matters is in memory alone.

mod candidates;
mod run;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use redrive_core::{
    OperationId, TenantId, Time,
    delivery::bulk_operation::{MAX_OF_A_TENANT, OperationState, Turn},
};
use redrive_store::{Delivery, Operation, OperationOrder, PageRequest, StoreError, Tally};
use tokio::sync::Notify;

use self::candidates::Source;
use crate::{Engine, Inner, clock};

/// Operations that one node works on at once. Others wait, or go to other nodes.
const AT_ONCE: usize = 16;
/// Those of which it only looks how their deliveries go, for days perhaps: others may not have to wait for that.
const LOOKED_AFTER: usize = 1_000;
/// How often is looked for operations that nobody carries on.
const LOOK: Duration = Duration::from_secs(1);
/// How long a dry run counts at the most.
const PATIENCE: Duration = Duration::from_secs(10);

/// The operations that this node carries on.
#[derive(Default)]
pub(crate) struct Operating {
    /// Each with whether there is still something to be queued.
    held: Mutex<BTreeMap<OperationId, bool>>,
    alarm: Notify,
}

impl Operating {
    /// Notes whether one still queues something, or is only looked after.
    fn is_at_work(&self, id: OperationId, at_work: bool) {
        let before = self.held.lock().insert(id, at_work);
        if before == Some(true) && !at_work {
            self.alarm.notify_one();
        }
    }
}

/// What an operation would take on.
#[derive(Clone, Debug)]
pub struct Survey {
    /// How many.
    pub total: u64,
    /// Whether all were counted; there may be more if not.
    pub complete: bool,
    /// The first few of them; of events that were never sent there are none.
    pub sample: Vec<Delivery>,
}

/// Why an operation was not turned.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TurnError {
    /// There is no such operation.
    #[error("there is no such operation")]
    Missing,
    /// It cannot be, as it stands.
    #[error("{0}")]
    NotNow(&'static str),
    /// The store did not take it.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Engine {
    /// Begins an operation, now or at a later time. None: the tenant has too many that are not through.
    pub async fn begin_operation(
        &self,
        tenant: TenantId,
        order: OperationOrder,
        start_at: Option<Time>,
        created_by: String,
    ) -> Result<Option<Operation>, StoreError> {
        let now = self.0.clock.now();
        let page = PageRequest { after: None, offset: 0, limit: 500 };
        let known = self.0.store.list_operations(tenant.clone(), page).await?;
        // What is to begin later takes no place until then.
        let waits = |one: &&Operation| one.state.is_under_way() && one.start_at <= now;
        if known.iter().filter(waits).count() >= MAX_OF_A_TENANT {
            return Ok(None);
        }
        let operation = Operation {
            id: OperationId::new(now, &clock::randomness()),
            tenant,
            order,
            state: OperationState::Scheduled,
            created_by,
            created_at: now,
            start_at: start_at.unwrap_or(now),
            began_at: None,
            finished_at: None,
            updated_at: now,
            held_by: None,
            cursor: None,
            tally: Tally::default(),
            pace_from: None,
        };
        self.0.store.create_operation(operation.clone()).await?;
        self.0.operating.alarm.notify_one();
        Ok(Some(operation))
    }

    /// Holds an operation, lets it go on, or ends it.
    pub async fn turn_operation(
        &self,
        tenant: TenantId,
        id: OperationId,
        turn: Turn,
    ) -> Result<Operation, TurnError> {
        loop {
            let found = self.0.store.operation(tenant.clone(), id).await?.ok_or(TurnError::Missing)?;
            let to = found.state.turned(turn, found.began_at.is_some()).map_err(TurnError::NotNow)?;
            if to == found.state {
                return Ok(found);
            }
            let now = self.0.clock.now();
            // It may have moved by itself meanwhile.
            if self.0.store.turn_operation(tenant.clone(), id, found.state, to, now).await? {
                self.0.operating.alarm.notify_one();
                return self.0.store.operation(tenant, id).await?.ok_or(TurnError::Missing);
            }
        }
    }

    /// Counts what an operation would take on now, for some seconds at the most, and gives the first few.
    pub async fn survey(
        &self,
        tenant: &TenantId,
        order: &OperationOrder,
        sample: usize,
    ) -> Result<Survey, StoreError> {
        let inner = &self.0;
        let mut source = Source::new(tenant.clone(), order.clone(), inner.clock.now(), None);
        let counted = tokio::time::timeout(PATIENCE, source.count(inner)).await;
        let complete = counted.is_ok();
        if let Ok(counted) = counted {
            counted?;
        }
        let mut deliveries = Vec::new();
        for id in source.first.iter().take(sample) {
            deliveries.extend(inner.store.delivery(tenant.clone(), *id).await?);
        }
        Ok(Survey { total: source.counted, complete, sample: deliveries })
    }
}

impl Inner {
    /// Carries operations on, for as long as the engine runs.
    pub(crate) async fn keep_operating(self: Arc<Self>) {
        loop {
            if let Err(error) = self.take_operations().await {
                tracing::warn!(%error, "bulk operations cannot be taken on now");
            }
            tokio::select! {
                () = tokio::time::sleep(LOOK) => {}
                () = self.operating.alarm.notified() => {}
                () = self.stop.cancelled() => return,
            }
        }
    }

    async fn take_operations(self: &Arc<Self>) -> Result<(), StoreError> {
        let (held, at_work): (Vec<_>, usize) = {
            let held = self.operating.held.lock();
            (held.keys().copied().collect(), held.values().filter(|at_work| **at_work).count())
        };
        let room = AT_ONCE.saturating_sub(at_work).min(LOOKED_AFTER.saturating_sub(held.len()));
        if room == 0 {
            return Ok(());
        }
        let (epoch, now) = (self.fleet.term().epoch, self.clock.now());
        for operation in self.store.take_operations(epoch, held, now, room).await? {
            self.operating.is_at_work(operation.id, operation.state == OperationState::Running);
            tokio::spawn(self.clone().carry_on(operation));
        }
        Ok(())
    }

    async fn carry_on(self: Arc<Self>, operation: Operation) {
        let id = operation.id;
        tracing::info!(operation_id = %id, kind = operation.order.kind.name(), "carrying a bulk operation on");
        if let Err(error) = self.run_operation(operation).await {
            // It goes on from its last step.
            tracing::warn!(%error, operation_id = %id, "a bulk operation has stopped for now");
            tokio::time::sleep(LOOK).await;
        }
        self.operating.held.lock().remove(&id);
        self.operating.alarm.notify_one();
    }
}
