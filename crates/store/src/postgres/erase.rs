//! Taking payloads away for good: from the tables, and with the next vacuum from the files.

use redrive_core::{DeliveryId, DeliveryStatus, EventId, TenantId, Time, id::first_at};

use super::{
    Postgres,
    convert::{Col, get, get_opt},
    session::{Failure, Tx},
    tenancy,
};
use crate::{Answer, Erase, Erased};

const TO_ERASE: &str = "SELECT id FROM events WHERE tenant = $1 AND subject = $2 AND erased_at IS NULL
     ORDER BY id LIMIT $3";
/// An event's deliveries are of the same millisecond.
const ANSWERED: &str = "SELECT d.id FROM deliveries d
     WHERE d.event = $1 AND d.id >= $2 AND d.id < $3 AND d.tenant = $4 AND (SELECT true FROM attempts a
         WHERE a.delivery = d.id AND a.response_body_sample IS NOT NULL LIMIT 1) LIMIT $5";
const ANSWERS: &str = "UPDATE attempts SET response_body_sample = NULL
     WHERE delivery = ANY($1::uuid[]) AND delivery >= $2 AND delivery < $3 AND response_body_sample IS NOT NULL";

/// In the order of ids, as a purge locks them.
const LETTERS: &str = "UPDATE deliveries SET purged_at = $5 WHERE id = ANY(ARRAY(
             SELECT id FROM deliveries WHERE event = $1 AND id >= $2 AND id < $3 AND tenant = $4))
         AND id >= $2 AND id < $3 AND status = $6 AND redriven_as IS NULL AND purged_at IS NULL RETURNING id";

/// The statements whose cost must follow what they answer or change: a test explains their plans.
#[cfg(feature = "conformance")]
pub(super) const PLANNED: [(&str, &str); 3] = [
    ("deliveries of an event that is erased", ANSWERED),
    ("answers that are erased", ANSWERS),
    ("letters that are erased", LETTERS),
];

impl Erase for Postgres {
    fn erase(&self, tenant: TenantId, event: EventId, now: Time) -> Answer<'_, Erased> {
        Box::pin(async move { self.administer(|tx| erase(tx, &tenant, event, now)).await })
    }

    fn erase_answers(&self, tenant: TenantId, event: EventId, limit: usize) -> Answer<'_, usize> {
        Box::pin(async move { self.write(|tx| erase_answers(tx, &tenant, event, limit)).await })
    }

    fn events_to_erase(&self, tenant: TenantId, subject: String, limit: usize) -> Answer<'_, Vec<EventId>> {
        Box::pin(async move {
            let (tenant, subject) = (tenant.as_str(), &subject);
            self.read(|session| async move {
                let rows = session.query(TO_ERASE, &[&tenant, subject, &(limit as i64)]).await?;
                rows.iter().map(|row| get(row, 0)).collect()
            })
            .await
        })
    }
}

async fn erase(tx: Tx, tenant: &TenantId, event: EventId, now: Time) -> Result<Erased, Failure> {
    // Rounds are made under the same lock: from here on there is none, or it sees that there is nothing to send.
    tenancy::lock(&tx, tenant).await?;
    let known = "SELECT erased_at FROM events WHERE tenant = $1 AND id = $2 FOR UPDATE";
    let Some(row) = tx.query_opt(known, &[&tenant.as_str(), &Col(event)]).await? else {
        return Ok(Erased::Missing);
    };
    if let Some(since) = get_opt(&row, 0)? {
        return Ok(Erased::Before(since));
    }
    let erase = "UPDATE events SET data = '', metadata = NULL, erased_at = $3 WHERE tenant = $1 AND id = $2";
    tx.execute(erase, &[&tenant.as_str(), &Col(event), &Col(now)]).await?;
    // Nobody can send its dead letters again.
    let ((from, to), dead) = (of_its_time(event), Col(DeliveryStatus::Dead));
    let letters = tx.query(LETTERS, &[&Col(event), &from, &to, &tenant.as_str(), &Col(now), &dead]).await?;
    let letters =
        letters.iter().map(|row| get(row, 0).map(Col)).collect::<Result<Vec<Col<DeliveryId>>, _>>()?;
    if !letters.is_empty() {
        tx.execute("DELETE FROM dead WHERE delivery = ANY($1::uuid[])", &[&letters]).await?;
    }
    Ok(Erased::Now)
}

/// The range of ids of an event's deliveries, which are of the same millisecond.
fn of_its_time(event: EventId) -> (Col<[u8; 16]>, Col<[u8; 16]>) {
    let next = Time::from_millis(event.time().millis() + 1);
    (Col(first_at(event.time())), Col(first_at(next)))
}

async fn erase_answers(tx: Tx, tenant: &TenantId, event: EventId, limit: usize) -> Result<usize, Failure> {
    let (from, to) = of_its_time(event);
    let values: super::session::Values<'_> = &[&Col(event), &from, &to, &tenant.as_str(), &(limit as i64)];
    let rows = tx.query(ANSWERED, values).await?;
    let ids = rows.iter().map(|row| get(row, 0).map(Col)).collect::<Result<Vec<Col<DeliveryId>>, _>>()?;
    if !ids.is_empty() {
        tx.execute(ANSWERS, &[&ids, &from, &to]).await?;
    }
    Ok(ids.len())
}
