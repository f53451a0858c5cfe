//! Bulk operations: the node that runs each, its progress, and its steps, each in one transaction. A transaction
//! that locks an operation does so before anything else.

use redrive_core::{
    DeliveryId, DeliveryStatus, EventId, OperationId, TenantId, Time,
    delivery::bulk_operation::OperationState,
};
use tokio_postgres::Row;

use super::{
    Postgres,
    convert::{Col, get, get_opt, plain},
    redrive, scan,
    session::{Failure, Session, Tx},
};
use crate::{
    CancelResult, CollectProgress, Epoch, EventSummary, Operation, OperationProgress, OperationStep,
    Operations, PageRequest, RedriveResult, Scan, ScanCursor, ScanPage, StepResult, StoreFuture, Task,
};

macro_rules! operation {
    ($before:literal, $after:literal) => {
        concat!(
            $before,
            " id, tenant_id, request, state, created_by, created_at, start_at, started_at, finished_at, updated_at,
             claimed_by,
              cursor_event_id, cursor_delivery_id, total, done, skipped, delivered, failed, cancelled, errors,
              rate_since,
              rate_base, already_delivered ",
            $after
        )
    };
}

const INSERT_OPERATION: &str =
    "INSERT INTO operations (id, tenant_id, request, state, created_by, created_at, start_at, updated_at)
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8)";
const SELECT_OPERATION: &str = operation!("SELECT", "FROM operations WHERE id = $1 AND tenant_id = $2");
const LOCK_HELD_OPERATION: &str =
    operation!("SELECT", "FROM operations WHERE id = $1 AND claimed_by = $2 FOR UPDATE");
const LIST_OPERATIONS: &str = operation!(
    "SELECT",
    "FROM operations WHERE tenant_id = $1 AND id < $2 ORDER BY id DESC LIMIT $3 OFFSET $4"
);
/// Closes an operation that is cancelled before it started, since it has queued nothing.
const SET_STATE: &str = "UPDATE operations SET state = $4, updated_at = $5,
         finished_at = CASE WHEN $4 = 'cancelled' THEN coalesce(finished_at, $5) END,
         open = CASE WHEN $4 = 'cancelled' AND started_at IS NULL THEN false ELSE open END,
         rate_since = $5, rate_base = done
     WHERE id = $1 AND tenant_id = $2 AND state = $3";
const CLAIM_OPERATIONS: &str = operation!(
    "UPDATE operations SET claimed_by = $1, rate_since = $2, rate_base = done, started_at = coalesce(started_at, $2),
         state = CASE WHEN state = 'scheduled' THEN 'running' ELSE state END
     WHERE id = ANY(ARRAY(
         SELECT id FROM operations o WHERE open AND start_at <= $2 AND state <> 'paused'
             AND NOT id = ANY($3::uuid[])
             AND (claimed_by IS NULL OR claimed_by = $1 OR NOT EXISTS (SELECT 1 FROM nodes n WHERE n.epoch = o.claimed_by))
         ORDER BY start_at LIMIT $4 FOR UPDATE SKIP LOCKED)) RETURNING",
    ""
);
const SET_COUNTS: &str =
    "UPDATE operations SET total = $3, already_delivered = $4 WHERE id = $1 AND claimed_by = $2";
const IS_HELD: &str =
    "SELECT 1 FROM operations WHERE id = $1 AND tenant_id = $2 AND claimed_by = $3 AND state = 'running'
    FOR UPDATE";
const SAVE_PROGRESS: &str = "UPDATE operations SET done = done + $2, skipped = skipped + $3, updated_at = $4,
         cursor_event_id = coalesce($5, cursor_event_id),
         cursor_delivery_id = CASE WHEN $5 IS NULL THEN cursor_delivery_id ELSE $6 END,
         state = coalesce($7, state) WHERE id = $1";
const INSERT_ITEMS: &str =
    "INSERT INTO operation_items (operation_id, delivery_id) SELECT $1, unnest($2::uuid[])
     ON CONFLICT DO NOTHING";
/// Locks in the same order as a retry: the delivery, then its dead letter.
const PURGE_DELIVERIES: &str =
    "UPDATE deliveries SET purged_at = $3 WHERE id = ANY($1::uuid[]) AND tenant_id = $2 AND status = $4
         AND redriven_as IS NULL AND purged_at IS NULL RETURNING id";
const DELETE_DEAD_LETTERS: &str = "DELETE FROM dead WHERE delivery_id = ANY($1::uuid[])";
const SELECT_ITEMS: &str = "SELECT i.delivery_id, d.status, d.failure_category FROM (
         SELECT delivery_id FROM operation_items WHERE operation_id = $1 AND delivery_id > $2 ORDER BY delivery_id
         LIMIT $3) i
     LEFT JOIN LATERAL (SELECT * FROM deliveries d WHERE d.id = i.delivery_id LIMIT 1) d ON true
     ORDER BY i.delivery_id";
const DELETE_ITEMS: &str =
    "DELETE FROM operation_items WHERE operation_id = $1 AND delivery_id = ANY($2::uuid[])";
const UPDATE_SETTLED: &str =
    "UPDATE operations SET delivered = $2, failed = $3, cancelled = $4, errors = $5 WHERE id = $1";
const RELEASE_ENDED_OPERATION: &str = "UPDATE operations SET claimed_by = NULL, open = (state = 'paused'),
         state = CASE WHEN state = 'delivering' THEN 'completed' ELSE state END,
         finished_at = CASE WHEN state = 'paused' THEN NULL ELSE coalesce(finished_at, $3) END
     WHERE id = $1 AND claimed_by = $2 AND state IN ('delivering', 'cancelled', 'paused')";
const PRUNE_OPERATIONS: &str = "DELETE FROM operations WHERE id = ANY(ARRAY(
         SELECT id FROM operations WHERE NOT open AND id < $1 AND finished_at < $2 ORDER BY id LIMIT $3
         FOR UPDATE SKIP LOCKED))";

/// Statements whose cost must be proportional to the rows they change; a test checks their query plans.
#[cfg(feature = "conformance")]
pub(super) const PLANNED_STATEMENTS: [(&str, &str); 4] = [
    ("purge dead letters", PURGE_DELIVERIES),
    ("delete dead letters", DELETE_DEAD_LETTERS),
    ("results of queued deliveries", SELECT_ITEMS),
    ("delete operation items", DELETE_ITEMS),
];

fn read_operation(row: &Row) -> Result<Operation, Failure> {
    let count = |column| plain::<i64>(row, column).map(i64::unsigned_abs);
    let state: &str = plain(row, 3)?;
    let event_id: Option<EventId> = get_opt(row, 11)?;
    let delivery_id = get_opt(row, 12)?;
    let pace_from: Option<Time> = get_opt(row, 20)?;
    Ok(Operation {
        id: get(row, 0)?,
        tenant_id: get(row, 1)?,
        order: serde_json::from_str(plain(row, 2)?)?,
        state: OperationState::parse(state)
            .ok_or_else(|| Failure::InvalidData(format!("unknown state {state}")))?,
        created_by: plain(row, 4)?,
        created_at: get(row, 5)?,
        start_at: get(row, 6)?,
        began_at: get_opt(row, 7)?,
        finished_at: get_opt(row, 8)?,
        updated_at: get(row, 9)?,
        claimed_by: plain::<Option<i64>>(row, 10)?.map(Epoch),
        cursor: event_id.map(|event_id| ScanCursor { event_id, delivery_id }),
        progress: OperationProgress {
            total: plain::<Option<i64>>(row, 13)?.map(i64::unsigned_abs),
            already_delivered: plain::<Option<i64>>(row, 22)?.map(i64::unsigned_abs),
            done: count(14)?,
            skipped: count(15)?,
            delivered: count(16)?,
            failed: count(17)?,
            cancelled: count(18)?,
            errors: serde_json::from_str(plain(row, 19)?)?,
        },
        rate_since: pace_from.map(|from| Ok::<_, Failure>((from, count(21)?))).transpose()?,
    })
}

impl Operations for Postgres {
    fn create_operation(&self, operation: Operation) -> StoreFuture<'_, ()> {
        Box::pin(async move { self.administer(|tx| create(tx, &operation)).await })
    }

    fn operation(&self, tenant_id: TenantId, id: OperationId) -> StoreFuture<'_, Option<Operation>> {
        Box::pin(async move {
            let tenant_id = &tenant_id;
            self.list_for(tenant_id, |session| async move {
                let row = session.query_opt(SELECT_OPERATION, &[&Col(id), &tenant_id.as_str()]).await?;
                row.map(|row| read_operation(&row)).transpose()
            })
            .await
        })
    }

    fn list_operations(
        &self,
        tenant_id: TenantId,
        page: PageRequest<OperationId>,
    ) -> StoreFuture<'_, Vec<Operation>> {
        Box::pin(async move {
            let (tenant_id, page) = (&tenant_id, &page);
            self.list_for(tenant_id, |session| async move {
                let before = Col(page.after.unwrap_or(OperationId::from_bytes([0xff; 16])));
                let (limit, offset) = (i64::from(page.limit), i64::from(page.offset));
                let rows =
                    session.query(LIST_OPERATIONS, &[&tenant_id.as_str(), &before, &limit, &offset]).await?;
                rows.iter().map(read_operation).collect()
            })
            .await
        })
    }

    fn set_operation_state(
        &self,
        tenant_id: TenantId,
        id: OperationId,
        from: OperationState,
        to: OperationState,
        now: Time,
    ) -> StoreFuture<'_, bool> {
        Box::pin(async move {
            let tenant_id = &tenant_id;
            let turned = self.administer(|tx| async move {
                tx.execute(SET_STATE, &[&Col(id), &tenant_id.as_str(), &from.name(), &to.name(), &Col(now)])
                    .await
            });
            Ok(turned.await? == 1)
        })
    }

    fn claim_operations(
        &self,
        epoch: Epoch,
        except: Vec<OperationId>,
        now: Time,
        limit: usize,
    ) -> StoreFuture<'_, Vec<Operation>> {
        Box::pin(async move {
            let except: Vec<_> = except.into_iter().map(Col).collect();
            let except = &except;
            self.write(|tx| async move {
                let rows =
                    tx.query(CLAIM_OPERATIONS, &[&epoch.0, &Col(now), except, &(limit as i64)]).await?;
                rows.iter().map(read_operation).collect()
            })
            .await
        })
    }

    fn set_operation_counts(
        &self,
        id: OperationId,
        epoch: Epoch,
        total: u64,
        already_delivered: u64,
    ) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            self.write(|tx| async move {
                let counts = [total as i64, already_delivered as i64];
                tx.execute(SET_COUNTS, &[&Col(id), &epoch.0, &counts[0], &counts[1]]).await.map(drop)
            })
            .await
        })
    }

    fn step_operation(&self, step: OperationStep) -> StoreFuture<'_, StepResult> {
        Box::pin(async move {
            let stepped = self.write(|tx| take_step(tx, &step)).await?;
            self.shared.hints.work();
            if matches!(&stepped, StepResult::Applied { to_cancel, .. } if !to_cancel.is_empty()) {
                self.shared.hints.change();
            }
            Ok(stepped)
        })
    }

    fn collect_operation_results(
        &self,
        id: OperationId,
        epoch: Epoch,
        after: Option<DeliveryId>,
        limit: usize,
    ) -> StoreFuture<'_, CollectProgress> {
        Box::pin(async move { self.write(|tx| collect_results(tx, id, epoch, after, limit)).await })
    }

    fn complete_operation(&self, id: OperationId, epoch: Epoch, now: Time) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            self.write(|tx| async move {
                tx.execute(RELEASE_ENDED_OPERATION, &[&Col(id), &epoch.0, &Col(now)]).await.map(drop)
            })
            .await
        })
    }

    fn scan_deliveries(&self, tenant_id: TenantId, scan: Scan) -> StoreFuture<'_, ScanPage> {
        Box::pin(async move {
            let (tenant_id, scan) = (&tenant_id, &scan);
            self.read(|session| async move { scan::deliveries(&session, tenant_id, scan).await }).await
        })
    }

    fn scan_deliveries_for_user(&self, tenant_id: TenantId, scan: Scan) -> StoreFuture<'_, ScanPage> {
        Box::pin(async move {
            let (tenant, scan) = (&tenant_id, &scan);
            self.list_for(tenant, |session| async move { scan::deliveries(&session, tenant, scan).await })
                .await
        })
    }

    fn scan_events(
        &self,
        tenant_id: TenantId,
        from: Option<Time>,
        to: Option<Time>,
        after: Option<EventId>,
        limit: usize,
    ) -> StoreFuture<'_, Vec<EventSummary>> {
        Box::pin(async move {
            let tenant_id = &tenant_id;
            self.read(
                |session| async move { scan::events(&session, tenant_id, (from, to), after, limit).await },
            )
            .await
        })
    }

    fn prune_operations(&self, before: Time, limit: usize) -> StoreFuture<'_, usize> {
        Box::pin(async move {
            let first = Col(OperationId::first_at(before));
            let pruned = self.write(|tx| async move {
                tx.execute(PRUNE_OPERATIONS, &[&first, &Col(before), &(limit as i64)]).await
            });
            Ok(pruned.await? as usize)
        })
    }
}

pub(super) async fn create(tx: Tx, operation: &Operation) -> Result<(), Failure> {
    let request = serde_json::to_string(&operation.order)?;
    tx.execute(
        INSERT_OPERATION,
        &[
            &Col(operation.id),
            &operation.tenant_id.as_str(),
            &request,
            &operation.state.name(),
            &operation.created_by,
            &Col(operation.created_at),
            &Col(operation.start_at),
            &Col(operation.updated_at),
        ],
    )
    .await
    .map(drop)
}

async fn take_step(tx: Tx, step: &OperationStep) -> Result<StepResult, Failure> {
    if !tx.exists(IS_HELD, &[&Col(step.id), &step.tenant_id.as_str(), &step.epoch.0]).await? {
        return Ok(StepResult::ClaimLost);
    }
    let (done, to_cancel) = perform(&tx, step).await?;
    let (event, delivery) =
        step.cursor.map_or((None, None), |at| (Some(Col(at.event_id)), at.delivery_id.map(Col)));
    let skipped = (step.tasks.len() - done + step.passed) as i64;
    let then = step.then.map(OperationState::name);
    tx.execute(
        SAVE_PROGRESS,
        &[&Col(step.id), &(done as i64), &skipped, &Col(step.at), &event, &delivery, &then],
    )
    .await?;
    Ok(StepResult::Applied { done, to_cancel })
}

type CallOff = Vec<(redrive_core::WebhookId, DeliveryId)>;

/// Performs the tasks of a step. Returns how many of them had an effect, and the leased deliveries to cancel.
async fn perform(tx: &Session, step: &OperationStep) -> Result<(usize, CallOff), Failure> {
    let (mut retries, mut cancels, mut purges, mut sends) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut why = "";
    for task in &step.tasks {
        match task {
            Task::Retry(delivery_id, options) => retries.push((*delivery_id, options)),
            Task::Cancel(delivery_id, reason) => {
                why = reason;
                cancels.push(*delivery_id);
            }
            Task::Purge(delivery_id) => purges.push(Col(*delivery_id)),
            Task::Send(event_id, round, priority) => sends.push((*event_id, round, *priority)),
        }
    }
    let (tenant_id, now) = (&step.tenant_id, step.at);
    let mut queued = Vec::new();
    if !retries.is_empty() {
        let retried = redrive::retry_all(tx, tenant_id, &retries, now).await?;
        queued.extend(retried.into_iter().filter_map(|one| match one {
            RedriveResult::DueNow(id) | RedriveResult::NewRound(id) => Some(Col(id)),
            RedriveResult::AlreadyRedriven(_) | RedriveResult::Erased | RedriveResult::NotFound => None,
        }));
    }
    if !sends.is_empty() {
        queued.extend(redrive::create_first_delivery(tx, tenant_id, &sends, now).await?.into_iter().map(Col));
    }
    if !queued.is_empty() {
        tx.execute(INSERT_ITEMS, &[&Col(step.id), &queued]).await?;
    }
    let (mut done, mut to_cancel) = (queued.len(), Vec::new());
    if !cancels.is_empty() {
        for (webhook_id, delivery_id, cancelled) in
            redrive::cancel_all(tx, tenant_id, &cancels, why, now).await?
        {
            done += usize::from(matches!(cancelled, CancelResult::Done | CancelResult::Requested));
            if cancelled == CancelResult::Requested {
                to_cancel.push((webhook_id, delivery_id));
            }
        }
    }
    if !purges.is_empty() {
        let dead = Col(DeliveryStatus::Dead);
        let gone = tx.query(PURGE_DELIVERIES, &[&purges, &tenant_id.as_str(), &Col(now), &dead]).await?;
        let gone: Vec<Col<DeliveryId>> =
            gone.iter().map(|row| get(row, 0).map(Col)).collect::<Result<_, Failure>>()?;
        tx.execute(DELETE_DEAD_LETTERS, &[&gone]).await?;
        done += gone.len();
    }
    Ok((done, to_cancel))
}

async fn collect_results(
    tx: Tx,
    id: OperationId,
    epoch: Epoch,
    after: Option<DeliveryId>,
    limit: usize,
) -> Result<CollectProgress, Failure> {
    let Some(row) = tx.query_opt(LOCK_HELD_OPERATION, &[&Col(id), &epoch.0]).await? else {
        return Ok(CollectProgress { next: None, open: 0, ended: 0 });
    };
    let mut progress = read_operation(&row)?.progress;
    let after = Col(after.unwrap_or(DeliveryId::from_bytes([0; 16])));
    let items = tx.query(SELECT_ITEMS, &[&Col(id), &after, &(limit as i64)]).await?;
    let mut settled: Vec<Col<DeliveryId>> = Vec::new();
    for row in &items {
        let status: Option<DeliveryStatus> = get_opt(row, 1)?;
        if status.is_none_or(|status| status.is_final()) {
            progress.record_end(status, get_opt(row, 2)?);
            settled.push(Col(get(row, 0)?));
        }
    }
    if !settled.is_empty() {
        tx.execute(DELETE_ITEMS, &[&Col(id), &settled]).await?;
        let errors = serde_json::to_string(&progress.errors)?;
        let counts = [progress.delivered as i64, progress.failed as i64, progress.cancelled as i64];
        tx.execute(UPDATE_SETTLED, &[&Col(id), &counts[0], &counts[1], &counts[2], &errors]).await?;
    }
    let next = items.last().filter(|_| items.len() == limit).map(|row| get(row, 0)).transpose()?;
    Ok(CollectProgress { next, open: items.len() - settled.len(), ended: settled.len() })
}
