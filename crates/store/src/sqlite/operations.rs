//! Bulk operations: who carries them on, how far they are, and each step as one transaction.

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
    Answer, Cancelled, Epoch, EventHead, Operation, OperationStep, Operations, PageRequest, Redriven,
    Settled, Stepped, Tally, Task, Walk, WalkCursor, Walked,
};

const OPERATION: &str = "SELECT id, tenant, asked, state, created_by, created_at, start_at, began_at, finished_at,
         updated_at, held_by, cursor_event, cursor_delivery, total, done, skipped, delivered, failed, cancelled,
         errors, pace_from, pace_done FROM operations";

fn read_operation(row: &Row<'_>) -> rusqlite::Result<Operation> {
    let json = |column: usize, error: serde_json::Error| {
        rusqlite::Error::FromSqlConversionFailure(column, Type::Text, Box::new(error))
    };
    let count = |column| row.get::<_, i64>(column).map(i64::unsigned_abs);
    let state: String = row.get(3)?;
    let event: Option<EventId> = get_opt(row, 11)?;
    let delivery = get_opt(row, 12)?;
    let pace_from: Option<Time> = get_opt(row, 20)?;
    Ok(Operation {
        id: get(row, 0)?,
        tenant: get(row, 1)?,
        order: serde_json::from_str(&row.get::<_, String>(2)?).map_err(|error| json(2, error))?,
        state: OperationState::parse(&state).ok_or(rusqlite::Error::InvalidQuery)?,
        created_by: row.get(4)?,
        created_at: get(row, 5)?,
        start_at: get(row, 6)?,
        began_at: get_opt(row, 7)?,
        finished_at: get_opt(row, 8)?,
        updated_at: get(row, 9)?,
        held_by: row.get::<_, Option<i64>>(10)?.map(Epoch),
        cursor: event.map(|event| WalkCursor { event, delivery }),
        tally: Tally {
            total: row.get::<_, Option<i64>>(13)?.map(i64::unsigned_abs),
            done: count(14)?,
            skipped: count(15)?,
            delivered: count(16)?,
            failed: count(17)?,
            cancelled: count(18)?,
            errors: serde_json::from_str(&row.get::<_, String>(19)?).map_err(|error| json(19, error))?,
        },
        pace_from: pace_from.map(|from| Ok::<_, rusqlite::Error>((from, count(21)?))).transpose()?,
    })
}

impl Operations for Sqlite {
    fn create_operation(&self, operation: Operation) -> Answer<'_, ()> {
        self.write(move |transaction| {
            let asked = serde_json::to_string(&operation.order)
                .map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))?;
            transaction
                .prepare_cached(
                    "INSERT INTO operations (id, tenant, asked, state, created_by, created_at, start_at, updated_at)
                     VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                )?
                .execute((
                    Col(operation.id),
                    operation.tenant.as_str(),
                    asked,
                    operation.state.name(),
                    operation.created_by,
                    Col(operation.created_at),
                    Col(operation.start_at),
                    Col(operation.updated_at),
                ))?;
            Ok(())
        })
    }

    fn operation(&self, tenant: TenantId, id: OperationId) -> Answer<'_, Option<Operation>> {
        self.list_for(tenant.clone(), move |connection| {
            connection
                .prepare_cached(&format!("{OPERATION} WHERE id = ? AND tenant = ?"))?
                .query_row((Col(id), tenant.as_str()), read_operation)
                .optional()
        })
    }

    fn list_operations(
        &self,
        tenant: TenantId,
        page: PageRequest<OperationId>,
    ) -> Answer<'_, Vec<Operation>> {
        self.list_for(tenant.clone(), move |connection| {
            let before = page.after.unwrap_or(OperationId::from_bytes([0xff; 16]));
            connection
                .prepare_cached(&format!(
                    "{OPERATION} WHERE tenant = ? AND id < ? ORDER BY id DESC LIMIT ? OFFSET ?"
                ))?
                .query_map((tenant.as_str(), Col(before), page.limit, page.offset), read_operation)?
                .collect()
        })
    }

    fn turn_operation(
        &self,
        tenant: TenantId,
        id: OperationId,
        from: OperationState,
        to: OperationState,
        now: Time,
    ) -> Answer<'_, bool> {
        self.write(move |transaction| {
            // One that never began, and never will, leaves nothing to be known.
            let turned = transaction
                .prepare_cached(
                    "UPDATE operations SET state = :to, updated_at = :now,
                         finished_at = CASE WHEN :to = 'cancelled' THEN coalesce(finished_at, :now) END,
                         open = CASE WHEN :to = 'cancelled' AND began_at IS NULL THEN 0 ELSE open END,
                         pace_from = :now, pace_done = done
                     WHERE id = :id AND tenant = :tenant AND state = :from",
                )?
                .execute(named_params! {
                    ":id": Col(id), ":tenant": tenant.as_str(), ":from": from.name(), ":to": to.name(), ":now": Col(now),
                })?;
            Ok(turned == 1)
        })
    }

    fn take_operations(
        &self,
        epoch: Epoch,
        but: Vec<OperationId>,
        now: Time,
        limit: usize,
    ) -> Answer<'_, Vec<Operation>> {
        self.write(move |transaction| {
            let due: Vec<OperationId> = transaction
                .prepare_cached(
                    "SELECT id FROM operations WHERE open = 1 AND start_at <= ?2 AND state <> 'paused'
                         AND (held_by IS NULL OR held_by = ?1 OR held_by NOT IN (SELECT epoch FROM nodes))
                     ORDER BY start_at",
                )?
                .query_map((epoch.0, Col(now)), |row| get(row, 0))?
                .collect::<Result<_, _>>()?;
            let mut taken = Vec::new();
            for id in due.into_iter().filter(|id| !but.contains(id)).take(limit) {
                transaction
                    .prepare_cached(
                        "UPDATE operations SET held_by = ?2, pace_from = ?3, pace_done = done,
                             began_at = coalesce(began_at, ?3),
                             state = CASE WHEN state = 'scheduled' THEN 'running' ELSE state END WHERE id = ?1",
                    )?
                    .execute((Col(id), epoch.0, Col(now)))?;
                let found = format!("{OPERATION} WHERE id = ?");
                taken.push(transaction.prepare_cached(&found)?.query_row([Col(id)], read_operation)?);
            }
            Ok(taken)
        })
    }

    fn count_operation(&self, id: OperationId, epoch: Epoch, total: u64) -> Answer<'_, ()> {
        self.write(move |transaction| {
            transaction
                .prepare_cached("UPDATE operations SET total = ? WHERE id = ? AND held_by = ?")?
                .execute((total as i64, Col(id), epoch.0))?;
            Ok(())
        })
    }

    fn step_operation(&self, step: OperationStep) -> Answer<'_, Stepped> {
        self.write(move |transaction| {
            if !is_held(transaction, &step)? {
                return Ok(Stepped::Lost);
            }
            let (mut done, mut to_call_off) = (0, Vec::new());
            for task in &step.tasks {
                if perform(transaction, &step, task, &mut to_call_off)? {
                    done += 1;
                }
            }
            let (event, delivery) = step.cursor.map_or((None, None), |at| (Some(at.event), at.delivery));
            transaction
                .prepare_cached(
                    "UPDATE operations SET done = done + ?2, skipped = skipped + ?3, updated_at = ?4,
                         cursor_event = coalesce(?5, cursor_event),
                         cursor_delivery = CASE WHEN ?5 IS NULL THEN cursor_delivery ELSE ?6 END,
                         state = coalesce(?7, state) WHERE id = ?1",
                )?
                .execute((
                    Col(step.id),
                    done as i64,
                    (step.tasks.len() - done + step.passed) as i64,
                    Col(step.at),
                    event.map(Col),
                    delivery.map(Col),
                    step.then.map(OperationState::name),
                ))?;
            Ok(Stepped::Done { done, to_call_off })
        })
    }

    fn settle_operation(
        &self,
        id: OperationId,
        epoch: Epoch,
        after: Option<DeliveryId>,
        limit: usize,
    ) -> Answer<'_, Settled> {
        self.write(move |transaction| settle(transaction, id, epoch, after, limit))
    }

    fn close_operation(&self, id: OperationId, epoch: Epoch, now: Time) -> Answer<'_, ()> {
        self.write(move |transaction| {
            transaction
                .prepare_cached(
                    "UPDATE operations SET held_by = NULL, open = (state = 'paused'),
                         state = CASE WHEN state = 'delivering' THEN 'completed' ELSE state END,
                         finished_at = CASE WHEN state = 'paused' THEN NULL ELSE coalesce(finished_at, ?3) END
                     WHERE id = ?1 AND held_by = ?2 AND state IN ('delivering', 'cancelled', 'paused')",
                )?
                .execute((Col(id), epoch.0, Col(now)))?;
            Ok(())
        })
    }

    fn walk_deliveries(&self, tenant: TenantId, walk: Walk) -> Answer<'_, Walked> {
        self.read(move |connection| scan::deliveries(connection, &tenant, &walk))
    }

    fn walk_events(
        &self,
        tenant: TenantId,
        from: Option<Time>,
        to: Option<Time>,
        after: Option<EventId>,
        limit: usize,
    ) -> Answer<'_, Vec<EventHead>> {
        self.read(move |connection| scan::events(connection, &tenant, (from, to), after, limit))
    }

    fn forget_operations(&self, before: Time, limit: usize) -> Answer<'_, usize> {
        self.write(move |transaction| {
            transaction.execute(
                "DELETE FROM operations WHERE id IN (
                     SELECT id FROM operations WHERE open = 0 AND id < ?1 AND finished_at < ?2 ORDER BY id LIMIT ?3)",
                (Col(OperationId::first_at(before)), Col(before), limit as i64),
            )
        })
    }
}

fn is_held(transaction: &Transaction<'_>, step: &OperationStep) -> rusqlite::Result<bool> {
    transaction
        .prepare_cached(
            "SELECT 1 FROM operations WHERE id = ? AND tenant = ? AND held_by = ? AND state = 'running'",
        )?
        .exists((Col(step.id), step.tenant.as_str(), step.epoch.0))
}

/// Does one thing; false if it was not needed any more.
fn perform(
    transaction: &WriteTransaction<'_>,
    step: &OperationStep,
    task: &Task,
    to_call_off: &mut Vec<(WebhookId, DeliveryId)>,
) -> rusqlite::Result<bool> {
    let (tenant, now) = (&step.tenant, step.at);
    match task {
        Task::Retry(delivery, again) => match redrive::retry(transaction, tenant, *delivery, again, now)? {
            Redriven::DueNow(id) | Redriven::NewRound(id) => follow(transaction, step.id, id).map(|()| true),
            Redriven::AlreadyAs(_) | Redriven::Erased | Redriven::Missing => Ok(false),
        },
        Task::Cancel(delivery, reason) => {
            let (cancelled, webhook) = redrive::cancel(transaction, tenant, *delivery, reason, now)?;
            if let (Cancelled::Requested, Some(webhook)) = (&cancelled, webhook) {
                to_call_off.push((webhook, *delivery));
            }
            Ok(matches!(cancelled, Cancelled::Done | Cancelled::Requested))
        }
        Task::Purge(delivery) => {
            let dead = transaction
                .prepare_cached("DELETE FROM dead WHERE delivery = ? AND tenant = ?")?
                .execute((Col(*delivery), tenant.as_str()))?;
            transaction
                .prepare_cached("UPDATE deliveries SET purged_at = ? WHERE id = ? AND ?")?
                .execute((Col(now), Col(*delivery), dead == 1))?;
            Ok(dead == 1)
        }
        Task::Send(event, round, priority) => {
            let sent = redrive::send_first(transaction, tenant, *event, round, *priority, now)?;
            if sent {
                follow(transaction, step.id, round.id)?;
            }
            Ok(sent)
        }
    }
}

/// Has it noted later how a delivery went.
fn follow(transaction: &Transaction<'_>, id: OperationId, delivery: DeliveryId) -> rusqlite::Result<()> {
    transaction
        .prepare_cached("INSERT OR IGNORE INTO operation_items (operation, delivery) VALUES (?, ?)")?
        .execute((Col(id), Col(delivery)))?;
    Ok(())
}

fn settle(
    transaction: &Transaction<'_>,
    id: OperationId,
    epoch: Epoch,
    after: Option<DeliveryId>,
    limit: usize,
) -> rusqlite::Result<Settled> {
    let found = format!("{OPERATION} WHERE id = ? AND held_by = ?");
    let Some(operation) =
        transaction.prepare_cached(&found)?.query_row((Col(id), epoch.0), read_operation).optional()?
    else {
        return Ok(Settled { next: None, open: 0, ended: 0 });
    };
    let mut tally = operation.tally;
    type Item = (DeliveryId, Option<DeliveryStatus>, Option<FailureCategory>);
    let items: Vec<Item> = transaction
        .prepare_cached(
            "SELECT i.delivery, d.status, d.failure_category FROM operation_items i
             LEFT JOIN deliveries d ON d.id = i.delivery
             WHERE i.operation = ? AND i.delivery > ? ORDER BY i.delivery LIMIT ?",
        )?
        .query_map((Col(id), Col(after.unwrap_or(DeliveryId::from_bytes([0; 16]))), limit as i64), |row| {
            Ok((get(row, 0)?, get_opt(row, 1)?, get_opt(row, 2)?))
        })?
        .collect::<Result<_, _>>()?;
    let mut open = 0;
    for (delivery, status, category) in &items {
        if status.is_some_and(|status| !status.is_final()) {
            open += 1;
            continue;
        }
        tally.note(*status, *category);
        transaction
            .prepare_cached("DELETE FROM operation_items WHERE operation = ? AND delivery = ?")?
            .execute((Col(id), Col(*delivery)))?;
    }
    if open < items.len() {
        let errors = serde_json::to_string(&tally.errors)
            .map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))?;
        transaction
            .prepare_cached(
                "UPDATE operations SET delivered = ?2, failed = ?3, cancelled = ?4, errors = ?5 WHERE id = ?1",
            )?
            .execute((
                Col(id),
                tally.delivered as i64,
                tally.failed as i64,
                tally.cancelled as i64,
                errors,
            ))?;
    }
    let next = items.last().filter(|_| items.len() == limit).map(|(delivery, ..)| *delivery);
    Ok(Settled { next, open, ended: items.len() - open })
}
