//! Erases payloads permanently: their bytes in the file are overwritten, not only freed.

use redrive_core::{DeliveryId, DeliveryStatus, EventId, TenantId, Time};
use rusqlite::{OptionalExtension, Transaction};

use super::{
    Sqlite,
    convert::{Col, get, get_opt},
};
use crate::{Erase, EraseResult, StoreFuture};

/// Statements whose cost must be proportional to the rows they return or change; a test checks their query plans.
#[cfg(feature = "conformance")]
pub(super) const BOUNDED_STATEMENTS: [&str; 3] =
    [SELECT_EVENTS_TO_ERASE, SELECT_DELIVERIES_WITH_RESPONSES, ERASE_RESPONSES];

const SELECT_EVENTS_TO_ERASE: &str =
    "SELECT id FROM events WHERE tenant_id = ? AND subject = ? AND erased_at IS NULL
     ORDER BY id LIMIT ?";
const SELECT_DELIVERIES_WITH_RESPONSES: &str = "SELECT d.id FROM deliveries d WHERE d.event_id = ? AND d.tenant_id = ? AND EXISTS
         (SELECT 1 FROM attempts a WHERE a.delivery_id = d.id AND a.response_body_sample IS NOT NULL) LIMIT ?";
const ERASE_RESPONSES: &str = "UPDATE attempts SET response_body_sample = NULL
     WHERE delivery_id = ? AND response_body_sample IS NOT NULL";

impl Erase for Sqlite {
    fn erase(&self, tenant_id: TenantId, event_id: EventId, now: Time) -> StoreFuture<'_, EraseResult> {
        self.write(move |transaction| {
            let known = transaction
                .prepare_cached("SELECT erased_at FROM events WHERE tenant_id = ? AND id = ?")?
                .query_row((tenant_id.as_str(), Col(event_id)), |row| get_opt(row, 0))
                .optional()?;
            match known {
                None => return Ok(EraseResult::NotFound),
                Some(Some(since)) => return Ok(EraseResult::AlreadyErased(since)),
                Some(None) => {}
            }
            with_secure_delete(transaction, || {
                transaction
                    .prepare_cached(
                        "UPDATE events SET data = x'', metadata = NULL, erased_at = ?3 WHERE tenant_id = ?1
                         AND id = ?2",
                    )?
                    .execute((tenant_id.as_str(), Col(event_id), Col(now)))?;
                delete_dead_letters(transaction, &tenant_id, event_id, now)?;
                Ok(EraseResult::Erased)
            })
        })
    }

    fn erase_responses(
        &self,
        tenant_id: TenantId,
        event_id: EventId,
        limit: usize,
    ) -> StoreFuture<'_, usize> {
        self.write(move |transaction| {
            let deliveries = transaction
                .prepare_cached(SELECT_DELIVERIES_WITH_RESPONSES)?
                .query_map((Col(event_id), tenant_id.as_str(), limit as i64), |row| get(row, 0))?
                .collect::<rusqlite::Result<Vec<DeliveryId>>>()?;
            with_secure_delete(transaction, || {
                for delivery_id in &deliveries {
                    transaction.prepare_cached(ERASE_RESPONSES)?.execute([Col(*delivery_id)])?;
                }
                Ok(deliveries.len())
            })
        })
    }

    fn events_to_erase(
        &self,
        tenant_id: TenantId,
        subject: String,
        limit: usize,
    ) -> StoreFuture<'_, Vec<EventId>> {
        self.read(move |connection| {
            connection
                .prepare_cached(SELECT_EVENTS_TO_ERASE)?
                .query_map((tenant_id.as_str(), subject, limit as i64), |row| get(row, 0))?
                .collect()
        })
    }
}

/// Deletes the dead letters of an erased event, since they can no longer be redriven.
fn delete_dead_letters(
    transaction: &Transaction<'_>,
    tenant_id: &TenantId,
    event_id: EventId,
    now: Time,
) -> rusqlite::Result<()> {
    let dead_letters = transaction
        .prepare_cached(
            "UPDATE deliveries SET purged_at = ?3 WHERE event_id = ?1 AND tenant_id = ?2 AND status = ?4
                 AND redriven_as IS NULL AND purged_at IS NULL RETURNING id",
        )?
        .query_map((Col(event_id), tenant_id.as_str(), Col(now), Col(DeliveryStatus::Dead)), |row| {
            get(row, 0)
        })?
        .collect::<rusqlite::Result<Vec<DeliveryId>>>()?;
    for dead_letter in dead_letters {
        transaction.prepare_cached("DELETE FROM dead WHERE delivery_id = ?")?.execute([Col(dead_letter)])?;
    }
    Ok(())
}

/// Runs a change with `secure_delete`, which overwrites freed bytes with zeros. It is not always on, because it
/// makes deletes more expensive.
fn with_secure_delete<T>(
    transaction: &Transaction<'_>,
    change: impl FnOnce() -> rusqlite::Result<T>,
) -> rusqlite::Result<T> {
    let set = |on: &str| {
        transaction.query_row(&format!("PRAGMA secure_delete = {on}"), (), |row| row.get::<_, i64>(0))
    };
    set("ON")?;
    let changed = change();
    set("OFF")?;
    changed
}

/// Returns whether an event's payload was erased.
pub(super) fn is_erased(
    transaction: &Transaction<'_>,
    tenant_id: &TenantId,
    event_id: EventId,
) -> rusqlite::Result<bool> {
    transaction
        .prepare_cached("SELECT 1 FROM events WHERE tenant_id = ? AND id = ? AND erased_at IS NOT NULL")?
        .exists((tenant_id.as_str(), Col(event_id)))
}
