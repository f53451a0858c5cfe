//! Bulk operations: the node that runs each, its progress, and its steps, each in one transaction.

use redrive_core::{
    DeliveryId, DeliveryStatus, EventId, FailureCategory, OperationId, TenantId, Time, WebhookId,
    delivery::bulk_operation::OperationState,
};
use rusqlite::{OptionalExtension, Row, Transaction, named_params, types::Type};

use super::{
    Sqlite,
    convert::{Col, get, get_opt},
    redrive, scan,
    transaction::WriteTransaction,
};
use crate::{
    CancelResult, CollectProgress, Epoch, EventSummary, Operation, OperationProgress, OperationStep,
    Operations, PageRequest, RedriveResult, Scan, ScanCursor, ScanPage, StepResult, StoreFuture, Task,
};

const OPERATION: &str = "SELECT id, tenant_id, request, state, created_by, created_at, start_at, started_at,
    finished_at,
         updated_at, claimed_by, cursor_event_id, cursor_delivery_id, total, done, skipped, delivered, failed, cancelled,
         errors, rate_since, rate_base, already_delivered FROM operations";

fn read_operation(row: &Row<'_>) -> rusqlite::Result<Operation> {
    let json = |column: usize, error: serde_json::Error| {
        rusqlite::Error::FromSqlConversionFailure(column, Type::Text, Box::new(error))
    };
    let count = |column| row.get::<_, i64>(column).map(i64::unsigned_abs);
    let state: String = row.get(3)?;
    let event_id: Option<EventId> = get_opt(row, 11)?;
    let delivery_id = get_opt(row, 12)?;
    let pace_from: Option<Time> = get_opt(row, 20)?;
    Ok(Operation {
        id: get(row, 0)?,
        tenant_id: get(row, 1)?,
        order: serde_json::from_str(&row.get::<_, String>(2)?).map_err(|error| json(2, error))?,
        state: OperationState::parse(&state).ok_or(rusqlite::Error::InvalidQuery)?,
        created_by: row.get(4)?,
        created_at: get(row, 5)?,
        start_at: get(row, 6)?,
        began_at: get_opt(row, 7)?,
        finished_at: get_opt(row, 8)?,
        updated_at: get(row, 9)?,
        claimed_by: row.get::<_, Option<i64>>(10)?.map(Epoch),
        cursor: event_id.map(|event_id| ScanCursor { event_id, delivery_id }),
        progress: OperationProgress {
            total: row.get::<_, Option<i64>>(13)?.map(i64::unsigned_abs),
            already_delivered: row.get::<_, Option<i64>>(22)?.map(i64::unsigned_abs),
            done: count(14)?,
            skipped: count(15)?,
            delivered: count(16)?,
            failed: count(17)?,
            cancelled: count(18)?,
            errors: serde_json::from_str(&row.get::<_, String>(19)?).map_err(|error| json(19, error))?,
        },
        rate_since: pace_from.map(|from| Ok::<_, rusqlite::Error>((from, count(21)?))).transpose()?,
    })
}

impl Operations for Sqlite {
    fn create_operation(&self, operation: Operation) -> StoreFuture<'_, ()> {
        self.write(move |transaction| create(transaction, &operation))
    }

    fn operation(&self, tenant_id: TenantId, id: OperationId) -> StoreFuture<'_, Option<Operation>> {
        self.list_for(tenant_id.clone(), move |connection| {
            connection
                .prepare_cached(&format!("{OPERATION} WHERE id = ? AND tenant_id = ?"))?
                .query_row((Col(id), tenant_id.as_str()), read_operation)
                .optional()
        })
    }

    fn list_operations(
        &self,
        tenant_id: TenantId,
        page: PageRequest<OperationId>,
    ) -> StoreFuture<'_, Vec<Operation>> {
        self.list_for(tenant_id.clone(), move |connection| {
            let before = page.after.unwrap_or(OperationId::from_bytes([0xff; 16]));
            connection
                .prepare_cached(&format!(
                    "{OPERATION} WHERE tenant_id = ? AND id < ? ORDER BY id DESC LIMIT ? OFFSET ?"
                ))?
                .query_map((tenant_id.as_str(), Col(before), page.limit, page.offset), read_operation)?
                .collect()
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
        self.write(move |transaction| {
            // An operation that is cancelled before it started is closed, since it has queued nothing.
            let turned = transaction
                .prepare_cached(
                    "UPDATE operations SET state = :to, updated_at = :now,
                         finished_at = CASE WHEN :to = 'cancelled' THEN coalesce(finished_at, :now) END,
                         open = CASE WHEN :to = 'cancelled' AND started_at IS NULL THEN 0 ELSE open END,
                         rate_since = :now, rate_base = done
                     WHERE id = :id AND tenant_id = :tenant AND state = :from",
                )?
                .execute(named_params! {
                    ":id": Col(id), ":tenant": tenant_id.as_str(), ":from": from.name(), ":to": to.name(), ":now": Col(now),
                })?;
            Ok(turned == 1)
        })
    }

    fn claim_operations(
        &self,
        epoch: Epoch,
        except: Vec<OperationId>,
        now: Time,
        limit: usize,
    ) -> StoreFuture<'_, Vec<Operation>> {
        self.write(move |transaction| {
            let due: Vec<OperationId> = transaction
                .prepare_cached(
                    "SELECT id FROM operations WHERE open = 1 AND start_at <= ?2 AND state <> 'paused'
                         AND (claimed_by IS NULL OR claimed_by = ?1 OR claimed_by NOT IN (SELECT epoch FROM nodes))
                     ORDER BY start_at",
                )?
                .query_map((epoch.0, Col(now)), |row| get(row, 0))?
                .collect::<Result<_, _>>()?;
            let mut taken = Vec::new();
            for id in due.into_iter().filter(|id| !except.contains(id)).take(limit) {
                transaction
                    .prepare_cached(
                        "UPDATE operations SET claimed_by = ?2, rate_since = ?3, rate_base = done,
                             started_at = coalesce(started_at, ?3),
                             state = CASE WHEN state = 'scheduled' THEN 'running' ELSE state END WHERE id = ?1",
                    )?
                    .execute((Col(id), epoch.0, Col(now)))?;
                let found = format!("{OPERATION} WHERE id = ?");
                taken.push(transaction.prepare_cached(&found)?.query_row([Col(id)], read_operation)?);
            }
            Ok(taken)
        })
    }

    fn set_operation_counts(
        &self,
        id: OperationId,
        epoch: Epoch,
        total: u64,
        already_delivered: u64,
    ) -> StoreFuture<'_, ()> {
        self.write(move |transaction| {
            transaction
                .prepare_cached(
                    "UPDATE operations SET total = ?, already_delivered = ? WHERE id = ? AND claimed_by = ?",
                )?
                .execute((total as i64, already_delivered as i64, Col(id), epoch.0))?;
            Ok(())
        })
    }

    fn step_operation(&self, step: OperationStep) -> StoreFuture<'_, StepResult> {
        self.write(move |transaction| {
            if !is_claimed(transaction, &step)? {
                return Ok(StepResult::ClaimLost);
            }
            let (mut done, mut to_cancel) = (0, Vec::new());
            for task in &step.tasks {
                if perform(transaction, &step, task, &mut to_cancel)? {
                    done += 1;
                }
            }
            let (event_id, delivery_id) =
                step.cursor.map_or((None, None), |at| (Some(at.event_id), at.delivery_id));
            transaction
                .prepare_cached(
                    "UPDATE operations SET done = done + ?2, skipped = skipped + ?3, updated_at = ?4,
                         cursor_event_id = coalesce(?5, cursor_event_id),
                         cursor_delivery_id = CASE WHEN ?5 IS NULL THEN cursor_delivery_id ELSE ?6 END,
                         state = coalesce(?7, state) WHERE id = ?1",
                )?
                .execute((
                    Col(step.id),
                    done as i64,
                    (step.tasks.len() - done + step.passed) as i64,
                    Col(step.at),
                    event_id.map(Col),
                    delivery_id.map(Col),
                    step.then.map(OperationState::name),
                ))?;
            Ok(StepResult::Applied { done, to_cancel })
        })
    }

    fn collect_operation_results(
        &self,
        id: OperationId,
        epoch: Epoch,
        after: Option<DeliveryId>,
        limit: usize,
    ) -> StoreFuture<'_, CollectProgress> {
        self.write(move |transaction| collect_results(transaction, id, epoch, after, limit))
    }

    fn complete_operation(&self, id: OperationId, epoch: Epoch, now: Time) -> StoreFuture<'_, ()> {
        self.write(move |transaction| {
            transaction
                .prepare_cached(
                    "UPDATE operations SET claimed_by = NULL, open = (state = 'paused'),
                         state = CASE WHEN state = 'delivering' THEN 'completed' ELSE state END,
                         finished_at = CASE WHEN state = 'paused' THEN NULL ELSE coalesce(finished_at, ?3) END
                     WHERE id = ?1 AND claimed_by = ?2 AND state IN ('delivering', 'cancelled', 'paused')",
                )?
                .execute((Col(id), epoch.0, Col(now)))?;
            Ok(())
        })
    }

    fn scan_deliveries(&self, tenant_id: TenantId, scan: Scan) -> StoreFuture<'_, ScanPage> {
        self.read(move |connection| scan::deliveries(connection, &tenant_id, &scan))
    }

    fn scan_deliveries_for_user(&self, tenant_id: TenantId, scan: Scan) -> StoreFuture<'_, ScanPage> {
        self.list_for(tenant_id.clone(), move |connection| scan::deliveries(connection, &tenant_id, &scan))
    }

    fn scan_events(
        &self,
        tenant_id: TenantId,
        from: Option<Time>,
        to: Option<Time>,
        after: Option<EventId>,
        limit: usize,
    ) -> StoreFuture<'_, Vec<EventSummary>> {
        self.read(move |connection| scan::events(connection, &tenant_id, (from, to), after, limit))
    }

    fn prune_operations(&self, before: Time, limit: usize) -> StoreFuture<'_, usize> {
        self.write(move |transaction| {
            transaction.execute(
                "DELETE FROM operations WHERE id IN (
                     SELECT id FROM operations WHERE open = 0 AND id < ?1 AND finished_at < ?2 ORDER BY id LIMIT ?3)",
                (Col(OperationId::first_at(before)), Col(before), limit as i64),
            )
        })
    }
}

pub(super) fn create(transaction: &Transaction<'_>, operation: &Operation) -> rusqlite::Result<()> {
    let request = serde_json::to_string(&operation.order)
        .map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))?;
    transaction
        .prepare_cached(
            "INSERT INTO operations (id, tenant_id, request, state, created_by, created_at, start_at, updated_at)
             VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        )?
        .execute((
            Col(operation.id),
            operation.tenant_id.as_str(),
            request,
            operation.state.name(),
            &operation.created_by,
            Col(operation.created_at),
            Col(operation.start_at),
            Col(operation.updated_at),
        ))?;
    Ok(())
}

fn is_claimed(transaction: &Transaction<'_>, step: &OperationStep) -> rusqlite::Result<bool> {
    transaction
        .prepare_cached(
            "SELECT 1 FROM operations WHERE id = ? AND tenant_id = ? AND claimed_by = ? AND state = 'running'",
        )?
        .exists((Col(step.id), step.tenant_id.as_str(), step.epoch.0))
}

/// Performs one task. Returns `false` if it had no effect.
fn perform(
    transaction: &WriteTransaction<'_>,
    step: &OperationStep,
    task: &Task,
    to_cancel: &mut Vec<(WebhookId, DeliveryId)>,
) -> rusqlite::Result<bool> {
    let (tenant_id, now) = (&step.tenant_id, step.at);
    match task {
        Task::Retry(delivery_id, options) => {
            match redrive::retry(transaction, tenant_id, *delivery_id, options, now)? {
                RedriveResult::DueNow(id) | RedriveResult::NewRound(id) => {
                    follow(transaction, step.id, id).map(|()| true)
                }
                RedriveResult::AlreadyRedriven(_) | RedriveResult::Erased | RedriveResult::NotFound => {
                    Ok(false)
                }
            }
        }
        Task::Cancel(delivery_id, reason) => {
            let (cancelled, webhook_id) = redrive::cancel(transaction, tenant_id, *delivery_id, reason, now)?;
            if let (CancelResult::Requested, Some(webhook_id)) = (&cancelled, webhook_id) {
                to_cancel.push((webhook_id, *delivery_id));
            }
            Ok(matches!(cancelled, CancelResult::Done | CancelResult::Requested))
        }
        Task::Purge(delivery_id) => {
            let dead = transaction
                .prepare_cached("DELETE FROM dead WHERE delivery_id = ? AND tenant_id = ?")?
                .execute((Col(*delivery_id), tenant_id.as_str()))?;
            transaction
                .prepare_cached("UPDATE deliveries SET purged_at = ? WHERE id = ? AND ?")?
                .execute((Col(now), Col(*delivery_id), dead == 1))?;
            Ok(dead == 1)
        }
        Task::Send(event_id, round, priority) => {
            let sent =
                redrive::create_first_delivery(transaction, tenant_id, *event_id, round, *priority, now)?;
            if sent {
                follow(transaction, step.id, round.id)?;
            }
            Ok(sent)
        }
    }
}

/// Tracks a queued delivery, so that the operation counts how it ends.
fn follow(transaction: &Transaction<'_>, id: OperationId, delivery_id: DeliveryId) -> rusqlite::Result<()> {
    transaction
        .prepare_cached("INSERT OR IGNORE INTO operation_items (operation_id, delivery_id) VALUES (?, ?)")?
        .execute((Col(id), Col(delivery_id)))?;
    Ok(())
}

fn collect_results(
    transaction: &Transaction<'_>,
    id: OperationId,
    epoch: Epoch,
    after: Option<DeliveryId>,
    limit: usize,
) -> rusqlite::Result<CollectProgress> {
    let found = format!("{OPERATION} WHERE id = ? AND claimed_by = ?");
    let Some(operation) =
        transaction.prepare_cached(&found)?.query_row((Col(id), epoch.0), read_operation).optional()?
    else {
        return Ok(CollectProgress { next: None, open: 0, ended: 0 });
    };
    let mut progress = operation.progress;
    type Item = (DeliveryId, Option<DeliveryStatus>, Option<FailureCategory>);
    let items: Vec<Item> = transaction
        .prepare_cached(
            "SELECT i.delivery_id, d.status, d.failure_category FROM operation_items i
             LEFT JOIN deliveries d ON d.id = i.delivery_id
             WHERE i.operation_id = ? AND i.delivery_id > ? ORDER BY i.delivery_id LIMIT ?",
        )?
        .query_map((Col(id), Col(after.unwrap_or(DeliveryId::from_bytes([0; 16]))), limit as i64), |row| {
            Ok((get(row, 0)?, get_opt(row, 1)?, get_opt(row, 2)?))
        })?
        .collect::<Result<_, _>>()?;
    let mut open = 0;
    for (delivery_id, status, category) in &items {
        if status.is_some_and(|status| !status.is_final()) {
            open += 1;
            continue;
        }
        progress.record_end(*status, *category);
        transaction
            .prepare_cached("DELETE FROM operation_items WHERE operation_id = ? AND delivery_id = ?")?
            .execute((Col(id), Col(*delivery_id)))?;
    }
    if open < items.len() {
        let errors = serde_json::to_string(&progress.errors)
            .map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))?;
        transaction
            .prepare_cached(
                "UPDATE operations SET delivered = ?2, failed = ?3, cancelled = ?4, errors = ?5 WHERE id = ?1",
            )?
            .execute((
                Col(id),
                progress.delivered as i64,
                progress.failed as i64,
                progress.cancelled as i64,
                errors,
            ))?;
    }
    let next = items.last().filter(|_| items.len() == limit).map(|(delivery_id, ..)| *delivery_id);
    Ok(CollectProgress { next, open, ended: items.len() - open })
}
