//! Rounds: delivering again, or calling off.

use redrive_core::{DeliveryId, DeliveryStatus, EventId, TenantId, Time, WebhookId, event::PayloadFormat};
use rusqlite::{OptionalExtension, Transaction};

use super::{
    Sqlite,
    claim::{self, Rescued},
    convert::{Col, get, get_opt},
};
use crate::{Answer, Cancelled, NewRound, Redrive, Redriven, Replayed};

impl Redrive for Sqlite {
    fn retry(
        &self,
        tenant: TenantId,
        delivery: DeliveryId,
        new_round: DeliveryId,
        now: Time,
    ) -> Answer<'_, Redriven> {
        self.write(move |transaction| {
            let Some(old) = find(transaction, &tenant, delivery)? else { return Ok(Redriven::Missing) };
            if !old.status.is_final() {
                make_due(transaction, delivery, old.webhook, now)?;
                return Ok(Redriven::DueNow(delivery));
            }
            if let Some(round) = old.redriven_as {
                return Ok(Redriven::AlreadyAs(round));
            }
            let round = NewRound { id: new_round, webhook: old.webhook, format: old.format };
            add_round(transaction, &tenant, old.event, &round, now)?;
            Ok(Redriven::NewRound(new_round))
        })
    }

    fn replay(
        &self,
        tenant: TenantId,
        event: EventId,
        rounds: Vec<NewRound>,
        now: Time,
    ) -> Answer<'_, Replayed> {
        self.write(move |transaction| {
            let known = transaction
                .prepare_cached("SELECT 1 FROM events WHERE id = ? AND tenant = ?")?
                .exists((Col(event), tenant.as_str()))?;
            if !known {
                return Ok(Replayed::Missing);
            }
            for round in &rounds {
                if let Some(last) = last_round(transaction, event, round.webhook)?
                    && !last.status.is_final()
                {
                    return Ok(Replayed::StillPending(last.id));
                }
            }
            for round in &rounds {
                add_round(transaction, &tenant, event, round, now)?;
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
        self.write(move |transaction| {
            let Some(old) = find(transaction, &tenant, delivery)? else { return Ok(Cancelled::Missing) };
            if old.status.is_final() {
                return Ok(Cancelled::Over(old.status));
            }
            let waited = transaction
                .prepare_cached("DELETE FROM waiting WHERE delivery = ?")?
                .execute([Col(delivery)])?;
            if waited == 1 {
                end_cancelled(transaction, delivery, &reason, now)?;
                return Ok(Cancelled::Done);
            }
            transaction
                .prepare_cached("UPDATE leased SET cancel = ? WHERE delivery = ?")?
                .execute((reason, Col(delivery)))?;
            Ok(Cancelled::Requested)
        })
    }
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
}

const OLD: &str = "SELECT id, event, webhook, round, status, format, redriven_as FROM deliveries";

fn read_old(row: &rusqlite::Row<'_>) -> rusqlite::Result<Old> {
    Ok(Old {
        id: get(row, 0)?,
        event: get(row, 1)?,
        webhook: get(row, 2)?,
        round: row.get(3)?,
        status: get(row, 4)?,
        format: get(row, 5)?,
        redriven_as: get_opt(row, 6)?,
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

fn make_due(
    transaction: &Transaction<'_>,
    delivery: DeliveryId,
    webhook: WebhookId,
    now: Time,
) -> rusqlite::Result<()> {
    let waited = transaction
        .prepare_cached("UPDATE waiting SET due = ?1 WHERE delivery = ?2 AND due > ?1")?
        .execute((Col(now), Col(delivery)))?;
    if waited == 1 {
        claim::wake(transaction, webhook, now)?;
    }
    Ok(())
}

fn add_round(
    transaction: &Transaction<'_>,
    tenant: &TenantId,
    event: EventId,
    round: &NewRound,
    now: Time,
) -> rusqlite::Result<()> {
    let last = last_round(transaction, event, round.webhook)?;
    transaction
        .prepare_cached(
            "INSERT INTO deliveries (id, tenant, event, webhook, round, status, format, created_at, replay_of)
             VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        )?
        .execute((
            Col(round.id),
            tenant.as_str(),
            Col(event),
            Col(round.webhook),
            last.as_ref().map_or(1, |last| last.round + 1),
            Col(DeliveryStatus::Pending),
            Col(round.format),
            Col(now),
            last.as_ref().map(|last| Col(last.id)),
        ))?;
    if let Some(last) = last {
        transaction
            .prepare_cached("UPDATE deliveries SET redriven_as = ? WHERE id = ?")?
            .execute((Col(round.id), Col(last.id)))?;
        transaction.prepare_cached("DELETE FROM dead WHERE delivery = ?")?.execute([Col(last.id)])?;
    }
    claim::wait(transaction, round.id, round.webhook, now, Rescued::default())
}
