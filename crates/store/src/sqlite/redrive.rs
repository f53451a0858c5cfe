//! Retries, replays and cancellations.

use redrive_core::{
    DeliveryId, DeliveryStatus, EventId, TenantId, Time, WebhookId,
    delivery::lane::{Lane, Priority},
    event::PayloadFormat,
};
use rusqlite::{OptionalExtension, Transaction};

use super::{
    Sqlite, changes,
    convert::{Col, get, get_opt},
    erase,
    lanes::{self, LanePosition, ReleaseCounts},
    transaction::WriteTransaction,
};
use crate::{
    CancelResult, Change, NewRound, Redrive, RedriveOptions, RedriveResult, ReplayResult, StoreFuture,
};

impl Redrive for Sqlite {
    fn retry(
        &self,
        tenant_id: TenantId,
        delivery_id: DeliveryId,
        options: RedriveOptions,
        now: Time,
    ) -> StoreFuture<'_, RedriveResult> {
        self.write(move |transaction| retry(transaction, &tenant_id, delivery_id, &options, now))
    }

    fn replay(
        &self,
        tenant_id: TenantId,
        event_id: EventId,
        rounds: Vec<NewRound>,
        priority: Option<Priority>,
        now: Time,
    ) -> StoreFuture<'_, ReplayResult> {
        self.write(move |transaction| {
            let known = transaction
                .prepare_cached("SELECT priority FROM events WHERE id = ? AND tenant_id = ?")?
                .query_row((Col(event_id), tenant_id.as_str()), |row| get(row, 0))
                .optional()?;
            let Some(known) = known else { return Ok(ReplayResult::NotFound) };
            if erase::is_erased(transaction, &tenant_id, event_id)? {
                return Ok(ReplayResult::Erased);
            }
            let priority = priority.unwrap_or(known);
            for round in &rounds {
                if let Some(last) = last_round(transaction, event_id, round.webhook_id)?
                    && !last.status.is_final()
                {
                    return Ok(ReplayResult::StillPending(last.id));
                }
            }
            for round in &rounds {
                add_round(transaction, &tenant_id, event_id, round, priority, now)?;
            }
            Ok(ReplayResult::Done(rounds.iter().map(|round| round.id).collect()))
        })
    }

    fn cancel(
        &self,
        tenant_id: TenantId,
        delivery_id: DeliveryId,
        reason: String,
        now: Time,
    ) -> StoreFuture<'_, CancelResult> {
        self.write(move |transaction| Ok(cancel(transaction, &tenant_id, delivery_id, &reason, now)?.0))
    }
}

/// Makes a pending delivery due now, or creates a new round of an ended one.
pub(super) fn retry(
    transaction: &Transaction<'_>,
    tenant_id: &TenantId,
    delivery_id: DeliveryId,
    options: &RedriveOptions,
    now: Time,
) -> rusqlite::Result<RedriveResult> {
    let Some(previous) = find(transaction, tenant_id, delivery_id)? else {
        return Ok(RedriveResult::NotFound);
    };
    if erase::is_erased(transaction, tenant_id, previous.event_id)? {
        return Ok(RedriveResult::Erased);
    }
    if options.unless_purged && previous.is_purged {
        return Ok(RedriveResult::NotFound);
    }
    if !previous.status.is_final() {
        make_due(transaction, &previous, options.priority, now)?;
        return Ok(RedriveResult::DueNow(delivery_id));
    }
    if let Some(round) = previous.redriven_as {
        return Ok(RedriveResult::AlreadyRedriven(round));
    }
    let round = NewRound {
        id: options.id,
        webhook_id: previous.webhook_id,
        format: previous.format,
        lane: options.lane.clone(),
    };
    let priority = options.priority.unwrap_or(previous.priority);
    add_round(transaction, tenant_id, previous.event_id, &round, priority, now)?;
    Ok(RedriveResult::NewRound(options.id))
}

/// Creates the first delivery of an event to a webhook. Returns `false` if the webhook got the event before, or
/// the event no longer exists or was erased.
pub(super) fn create_first_delivery(
    transaction: &Transaction<'_>,
    tenant_id: &TenantId,
    event_id: EventId,
    round: &NewRound,
    priority: Priority,
    now: Time,
) -> rusqlite::Result<bool> {
    let known = "SELECT 1 FROM events WHERE id = ? AND tenant_id = ? AND erased_at IS NULL";
    let is_known = transaction.prepare_cached(known)?.exists((Col(event_id), tenant_id.as_str()))?;
    if !is_known || last_round(transaction, event_id, round.webhook_id)?.is_some() {
        return Ok(false);
    }
    add_round(transaction, tenant_id, event_id, round, priority, now)?;
    Ok(true)
}

/// Cancels a delivery. Also returns its webhook.
pub(super) fn cancel(
    transaction: &WriteTransaction<'_>,
    tenant_id: &TenantId,
    delivery_id: DeliveryId,
    reason: &str,
    now: Time,
) -> rusqlite::Result<(CancelResult, Option<WebhookId>)> {
    let Some(previous) = find(transaction, tenant_id, delivery_id)? else {
        return Ok((CancelResult::NotFound, None));
    };
    let webhook_id = Some(previous.webhook_id);
    if previous.status.is_final() {
        return Ok((CancelResult::AlreadyEnded(previous.status), webhook_id));
    }
    let waited = transaction
        .prepare_cached("DELETE FROM waiting WHERE delivery_id = ? RETURNING lane")?
        .query_row([Col(delivery_id)], |row| row.get::<_, String>(0))
        .optional()?;
    if let Some(lane) = waited {
        end_cancelled(transaction, delivery_id, reason, now)?;
        // The deliveries behind it may be due earlier.
        lanes::recompute_wake(transaction, previous.webhook_id, &lane)?;
        return Ok((CancelResult::Done, webhook_id));
    }
    transaction
        .prepare_cached("UPDATE leased SET cancel = ? WHERE delivery_id = ?")?
        .execute((reason, Col(delivery_id)))?;
    changes::append(transaction, &Change::Cancel(previous.webhook_id, delivery_id))?;
    Ok((CancelResult::Requested, webhook_id))
}

/// Ends a delivery as cancelled. It must be neither waiting nor leased any more.
pub(super) fn end_cancelled(
    transaction: &Transaction<'_>,
    delivery_id: DeliveryId,
    reason: &str,
    now: Time,
) -> rusqlite::Result<()> {
    transaction
        .prepare_cached("UPDATE deliveries SET status = ?, ended_at = ?, cancel_reason = ? WHERE id = ?")?
        .execute((Col(DeliveryStatus::Cancelled), Col(now), reason, Col(delivery_id)))?;
    Ok(())
}

struct PreviousRound {
    id: DeliveryId,
    event_id: EventId,
    webhook_id: WebhookId,
    round: u32,
    status: DeliveryStatus,
    format: PayloadFormat,
    redriven_as: Option<DeliveryId>,
    priority: Priority,
    is_purged: bool,
}

const SELECT_PREVIOUS_ROUND: &str =
    "SELECT id, event_id, webhook_id, round, status, format, redriven_as, priority,
     purged_at IS NOT NULL FROM deliveries";

fn read_old(row: &rusqlite::Row<'_>) -> rusqlite::Result<PreviousRound> {
    Ok(PreviousRound {
        id: get(row, 0)?,
        event_id: get(row, 1)?,
        webhook_id: get(row, 2)?,
        round: row.get(3)?,
        status: get(row, 4)?,
        format: get(row, 5)?,
        redriven_as: get_opt(row, 6)?,
        priority: get(row, 7)?,
        is_purged: row.get(8)?,
    })
}

fn find(
    transaction: &Transaction<'_>,
    tenant_id: &TenantId,
    delivery_id: DeliveryId,
) -> rusqlite::Result<Option<PreviousRound>> {
    transaction
        .prepare_cached(&format!("{SELECT_PREVIOUS_ROUND} WHERE id = ? AND tenant_id = ?"))?
        .query_row((Col(delivery_id), tenant_id.as_str()), read_old)
        .optional()
}

fn last_round(
    transaction: &Transaction<'_>,
    event_id: EventId,
    webhook_id: WebhookId,
) -> rusqlite::Result<Option<PreviousRound>> {
    transaction
        .prepare_cached(&format!(
            "{SELECT_PREVIOUS_ROUND} WHERE event_id = ? AND webhook_id = ? ORDER BY round DESC LIMIT 1"
        ))?
        .query_row((Col(event_id), Col(webhook_id)), read_old)
        .optional()
}

/// Makes a waiting delivery due now, in the lane of its priority. A leased one is being sent already.
fn make_due(
    transaction: &Transaction<'_>,
    previous: &PreviousRound,
    priority: Option<Priority>,
    now: Time,
) -> rusqlite::Result<()> {
    let waits = transaction
        .prepare_cached("SELECT lane, due FROM waiting WHERE delivery_id = ?")?
        .query_row([Col(previous.id)], |row| Ok((get::<Lane>(row, 0)?, get::<Time>(row, 1)?)))
        .optional()?;
    let Some((lane, due)) = waits else { return Ok(()) };
    let due = due.min(now);
    let new_lane = priority.map_or_else(|| lane.clone(), |priority| lane.with_priority(priority));
    let index = if lane.is_ordered() { 0 } else { due.millis() };
    transaction
        .prepare_cached("UPDATE waiting SET lane = ?2, sort_key = ?3, due = ?4 WHERE delivery_id = ?1")?
        .execute((Col(previous.id), new_lane.code(), index, Col(due)))?;
    if let Some(priority) = priority {
        transaction
            .prepare_cached("UPDATE deliveries SET priority = ? WHERE id = ?")?
            .execute((Col(priority), Col(previous.id)))?;
    }
    if new_lane != lane {
        lanes::recompute_wake(transaction, previous.webhook_id, &lane.code())?;
    }
    lanes::recompute_wake(transaction, previous.webhook_id, &new_lane.code())
}

fn add_round(
    transaction: &Transaction<'_>,
    tenant_id: &TenantId,
    event_id: EventId,
    round: &NewRound,
    priority: Priority,
    now: Time,
) -> rusqlite::Result<()> {
    let last = last_round(transaction, event_id, round.webhook_id)?;
    transaction
        .prepare_cached(
            "INSERT INTO deliveries
                 (id, tenant_id, event_id, webhook_id, round, status, format, priority, created_at, replay_of)
             VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        )?
        .execute((
            Col(round.id),
            tenant_id.as_str(),
            Col(event_id),
            Col(round.webhook_id),
            last.as_ref().map_or(1, |last| last.round + 1),
            Col(DeliveryStatus::Pending),
            Col(round.format),
            Col(priority),
            Col(now),
            last.as_ref().map(|last| Col(last.id)),
        ))?;
    if let Some(last) = last {
        transaction
            .prepare_cached("UPDATE deliveries SET redriven_as = ? WHERE id = ?")?
            .execute((Col(round.id), Col(last.id)))?;
        transaction.prepare_cached("DELETE FROM dead WHERE delivery_id = ?")?.execute([Col(last.id)])?;
    }
    // It gets a new sequence number: in an ordered lane it goes to the end.
    let seq = transaction
        .prepare_cached("UPDATE tenants SET next_seq = next_seq + 1 WHERE id = ? RETURNING next_seq - 1")?
        .query_row([tenant_id.as_str()], |row| row.get(0))?;
    let lane = round.lane.with_priority(priority);
    let position = LanePosition { delivery_id: round.id, webhook_id: round.webhook_id, lane, seq };
    lanes::insert_waiting(transaction, &position, now, now, ReleaseCounts::default())
}
