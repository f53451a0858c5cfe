//! Rounds: delivering again, or calling off.

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
    lanes::{self, Place, Rescued},
    transaction::WriteTransaction,
};
use crate::{Again, Answer, Cancelled, Change, NewRound, Redrive, Redriven, Replayed};

impl Redrive for Sqlite {
    fn retry(&self, tenant: TenantId, delivery: DeliveryId, again: Again, now: Time) -> Answer<'_, Redriven> {
        self.write(move |transaction| retry(transaction, &tenant, delivery, &again, now))
    }

    fn replay(
        &self,
        tenant: TenantId,
        event: EventId,
        rounds: Vec<NewRound>,
        priority: Option<Priority>,
        now: Time,
    ) -> Answer<'_, Replayed> {
        self.write(move |transaction| {
            let known = transaction
                .prepare_cached("SELECT priority FROM events WHERE id = ? AND tenant = ?")?
                .query_row((Col(event), tenant.as_str()), |row| get(row, 0))
                .optional()?;
            let Some(known) = known else { return Ok(Replayed::Missing) };
            if erase::is_erased(transaction, &tenant, event)? {
                return Ok(Replayed::Erased);
            }
            let priority = priority.unwrap_or(known);
            for round in &rounds {
                if let Some(last) = last_round(transaction, event, round.webhook)?
                    && !last.status.is_final()
                {
                    return Ok(Replayed::StillPending(last.id));
                }
            }
            for round in &rounds {
                add_round(transaction, &tenant, event, round, priority, now)?;
            }
            Ok(Replayed::Done(rounds.iter().map(|round| round.id).collect()))
        })
    }

    fn cancel(
        &self,
        tenant: TenantId,
        delivery: DeliveryId,
        reason: String,
        now: Time,
    ) -> Answer<'_, Cancelled> {
        self.write(move |transaction| Ok(cancel(transaction, &tenant, delivery, &reason, now)?.0))
    }
}

/// Makes a pending delivery due now, or an ended one a new round.
pub(super) fn retry(
    transaction: &Transaction<'_>,
    tenant: &TenantId,
    delivery: DeliveryId,
    again: &Again,
    now: Time,
) -> rusqlite::Result<Redriven> {
    let Some(old) = find(transaction, tenant, delivery)? else { return Ok(Redriven::Missing) };
    if erase::is_erased(transaction, tenant, old.event)? {
        return Ok(Redriven::Erased);
    }
    if again.unless_purged && old.is_purged {
        return Ok(Redriven::Missing);
    }
    if !old.status.is_final() {
        make_due(transaction, &old, again.priority, now)?;
        return Ok(Redriven::DueNow(delivery));
    }
    if let Some(round) = old.redriven_as {
        return Ok(Redriven::AlreadyAs(round));
    }
    let round = NewRound { id: again.id, webhook: old.webhook, format: old.format, lane: again.lane.clone() };
    let priority = again.priority.unwrap_or(old.priority);
    add_round(transaction, tenant, old.event, &round, priority, now)?;
    Ok(Redriven::NewRound(again.id))
}

/// Delivers an event to a webhook that has had none of it. False: it has, or there is no such event any more.
pub(super) fn send_first(
    transaction: &Transaction<'_>,
    tenant: &TenantId,
    event: EventId,
    round: &NewRound,
    priority: Priority,
    now: Time,
) -> rusqlite::Result<bool> {
    let known = "SELECT 1 FROM events WHERE id = ? AND tenant = ? AND erased_at IS NULL";
    let is_known = transaction.prepare_cached(known)?.exists((Col(event), tenant.as_str()))?;
    if !is_known || last_round(transaction, event, round.webhook)?.is_some() {
        return Ok(false);
    }
    add_round(transaction, tenant, event, round, priority, now)?;
    Ok(true)
}

/// Calls a delivery off, and tells whose it was.
pub(super) fn cancel(
    transaction: &WriteTransaction<'_>,
    tenant: &TenantId,
    delivery: DeliveryId,
    reason: &str,
    now: Time,
) -> rusqlite::Result<(Cancelled, Option<WebhookId>)> {
    let Some(old) = find(transaction, tenant, delivery)? else { return Ok((Cancelled::Missing, None)) };
    let webhook = Some(old.webhook);
    if old.status.is_final() {
        return Ok((Cancelled::Over(old.status), webhook));
    }
    let waited = transaction
        .prepare_cached("DELETE FROM waiting WHERE delivery = ? RETURNING lane")?
        .query_row([Col(delivery)], |row| row.get::<_, String>(0))
        .optional()?;
    if let Some(lane) = waited {
        end_cancelled(transaction, delivery, reason, now)?;
        // Whatever waited behind it may be due long before it was.
        lanes::look_again(transaction, old.webhook, &lane)?;
        return Ok((Cancelled::Done, webhook));
    }
    transaction
        .prepare_cached("UPDATE leased SET cancel = ? WHERE delivery = ?")?
        .execute((reason, Col(delivery)))?;
    changes::tell(transaction, &Change::Cancel(old.webhook, delivery))?;
    Ok((Cancelled::Requested, webhook))
}

/// Ends a delivery that is neither waiting nor leased any more.
pub(super) fn end_cancelled(
    transaction: &Transaction<'_>,
    delivery: DeliveryId,
    reason: &str,
    now: Time,
) -> rusqlite::Result<()> {
    transaction
        .prepare_cached("UPDATE deliveries SET status = ?, ended_at = ?, cancel_reason = ? WHERE id = ?")?
        .execute((Col(DeliveryStatus::Cancelled), Col(now), reason, Col(delivery)))?;
    Ok(())
}

struct Old {
    id: DeliveryId,
    event: EventId,
    webhook: WebhookId,
    round: u32,
    status: DeliveryStatus,
    format: PayloadFormat,
    redriven_as: Option<DeliveryId>,
    priority: Priority,
    is_purged: bool,
}

const OLD: &str = "SELECT id, event, webhook, round, status, format, redriven_as, priority,
     purged_at IS NOT NULL FROM deliveries";

fn read_old(row: &rusqlite::Row<'_>) -> rusqlite::Result<Old> {
    Ok(Old {
        id: get(row, 0)?,
        event: get(row, 1)?,
        webhook: get(row, 2)?,
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
    tenant: &TenantId,
    delivery: DeliveryId,
) -> rusqlite::Result<Option<Old>> {
    transaction
        .prepare_cached(&format!("{OLD} WHERE id = ? AND tenant = ?"))?
        .query_row((Col(delivery), tenant.as_str()), read_old)
        .optional()
}

fn last_round(
    transaction: &Transaction<'_>,
    event: EventId,
    webhook: WebhookId,
) -> rusqlite::Result<Option<Old>> {
    transaction
        .prepare_cached(&format!("{OLD} WHERE event = ? AND webhook = ? ORDER BY round DESC LIMIT 1"))?
        .query_row((Col(event), Col(webhook)), read_old)
        .optional()
}

/// Makes what waits due now, in the lane of its priority. What a node has is on its way already.
fn make_due(
    transaction: &Transaction<'_>,
    old: &Old,
    priority: Option<Priority>,
    now: Time,
) -> rusqlite::Result<()> {
    let waits = transaction
        .prepare_cached("SELECT lane, due FROM waiting WHERE delivery = ?")?
        .query_row([Col(old.id)], |row| Ok((get::<Lane>(row, 0)?, get::<Time>(row, 1)?)))
        .optional()?;
    let Some((lane, due)) = waits else { return Ok(()) };
    let due = due.min(now);
    let new_lane = priority.map_or_else(|| lane.clone(), |priority| lane.with_priority(priority));
    let place = if lane.is_ordered() { 0 } else { due.millis() };
    transaction
        .prepare_cached("UPDATE waiting SET lane = ?2, place = ?3, due = ?4 WHERE delivery = ?1")?
        .execute((Col(old.id), new_lane.code(), place, Col(due)))?;
    if let Some(priority) = priority {
        transaction
            .prepare_cached("UPDATE deliveries SET priority = ? WHERE id = ?")?
            .execute((Col(priority), Col(old.id)))?;
    }
    if new_lane != lane {
        lanes::look_again(transaction, old.webhook, &lane.code())?;
    }
    lanes::look_again(transaction, old.webhook, &new_lane.code())
}

fn add_round(
    transaction: &Transaction<'_>,
    tenant: &TenantId,
    event: EventId,
    round: &NewRound,
    priority: Priority,
    now: Time,
) -> rusqlite::Result<()> {
    let last = last_round(transaction, event, round.webhook)?;
    transaction
        .prepare_cached(
            "INSERT INTO deliveries
                 (id, tenant, event, webhook, round, status, format, priority, created_at, replay_of)
             VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        )?
        .execute((
            Col(round.id),
            tenant.as_str(),
            Col(event),
            Col(round.webhook),
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
        transaction.prepare_cached("DELETE FROM dead WHERE delivery = ?")?.execute([Col(last.id)])?;
    }
    // A number of its own from the sequence: in an order it goes to the back.
    let seq = transaction
        .prepare_cached("UPDATE tenants SET next_seq = next_seq + 1 WHERE id = ? RETURNING next_seq - 1")?
        .query_row([tenant.as_str()], |row| row.get(0))?;
    let lane = round.lane.with_priority(priority);
    let place = Place { delivery: round.id, webhook: round.webhook, lane, seq };
    lanes::wait(transaction, &place, now, now, Rescued::default())
}
