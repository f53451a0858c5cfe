//! Taking payloads away for good. What was in the file is overwritten, not only given free.

use redrive_core::{DeliveryId, DeliveryStatus, EventId, TenantId, Time};
use rusqlite::{OptionalExtension, Transaction};

use super::{
    Sqlite,
    convert::{Col, get, get_opt},
};
use crate::{Answer, Erase, Erased};

/// The statements whose cost must follow what they answer or change: a test explains their plans.
#[cfg(feature = "conformance")]
pub(super) const BOUNDED: [&str; 3] = [TO_ERASE, ANSWERED, ANSWERS];

const TO_ERASE: &str = "SELECT id FROM events WHERE tenant = ? AND subject = ? AND erased_at IS NULL
     ORDER BY id LIMIT ?";
const ANSWERED: &str = "SELECT d.id FROM deliveries d WHERE d.event = ? AND d.tenant = ? AND EXISTS
         (SELECT 1 FROM attempts a WHERE a.delivery = d.id AND a.response_body_sample IS NOT NULL) LIMIT ?";
const ANSWERS: &str = "UPDATE attempts SET response_body_sample = NULL
     WHERE delivery = ? AND response_body_sample IS NOT NULL";

impl Erase for Sqlite {
    fn erase(&self, tenant: TenantId, event: EventId, now: Time) -> Answer<'_, Erased> {
        self.write(move |transaction| {
            let known = transaction
                .prepare_cached("SELECT erased_at FROM events WHERE tenant = ? AND id = ?")?
                .query_row((tenant.as_str(), Col(event)), |row| get_opt(row, 0))
                .optional()?;
            match known {
                None => return Ok(Erased::Missing),
                Some(Some(since)) => return Ok(Erased::Before(since)),
                Some(None) => {}
            }
            thoroughly(transaction, || {
                transaction
                    .prepare_cached(
                        "UPDATE events SET data = x'', metadata = NULL, erased_at = ?3 WHERE tenant = ?1 AND id = ?2",
                    )?
                    .execute((tenant.as_str(), Col(event), Col(now)))?;
                drop_letters(transaction, &tenant, event, now)?;
                Ok(Erased::Now)
            })
        })
    }

    fn erase_answers(&self, tenant: TenantId, event: EventId, limit: usize) -> Answer<'_, usize> {
        self.write(move |transaction| {
            let deliveries = transaction
                .prepare_cached(ANSWERED)?
                .query_map((Col(event), tenant.as_str(), limit as i64), |row| get(row, 0))?
                .collect::<rusqlite::Result<Vec<DeliveryId>>>()?;
            thoroughly(transaction, || {
                for delivery in &deliveries {
                    transaction.prepare_cached(ANSWERS)?.execute([Col(*delivery)])?;
                }
                Ok(deliveries.len())
            })
        })
    }

    fn events_to_erase(&self, tenant: TenantId, subject: String, limit: usize) -> Answer<'_, Vec<EventId>> {
        self.read(move |connection| {
            connection
                .prepare_cached(TO_ERASE)?
                .query_map((tenant.as_str(), subject, limit as i64), |row| get(row, 0))?
                .collect()
        })
    }
}

/// Takes its dead letters off the list: nobody can send them again.
fn drop_letters(
    transaction: &Transaction<'_>,
    tenant: &TenantId,
    event: EventId,
    now: Time,
) -> rusqlite::Result<()> {
    let letters = transaction
        .prepare_cached(
            "UPDATE deliveries SET purged_at = ?3 WHERE event = ?1 AND tenant = ?2 AND status = ?4
                 AND redriven_as IS NULL AND purged_at IS NULL RETURNING id",
        )?
        .query_map((Col(event), tenant.as_str(), Col(now), Col(DeliveryStatus::Dead)), |row| get(row, 0))?
        .collect::<rusqlite::Result<Vec<DeliveryId>>>()?;
    for letter in letters {
        transaction.prepare_cached("DELETE FROM dead WHERE delivery = ?")?.execute([Col(letter)])?;
    }
    Ok(())
}

/// Has what is given free meanwhile overwritten with zeros. Not always: it makes deleting dearer.
fn thoroughly<T>(
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

/// Whether an event's payload was erased.
pub(super) fn is_erased(
    transaction: &Transaction<'_>,
    tenant: &TenantId,
    event: EventId,
) -> rusqlite::Result<bool> {
    transaction
        .prepare_cached("SELECT 1 FROM events WHERE tenant = ? AND id = ? AND erased_at IS NOT NULL")?
        .exists((tenant.as_str(), Col(event)))
}
