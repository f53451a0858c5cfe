//! Erases payloads permanently: from the tables, and with the next vacuum from the files.

use redrive_core::{DeliveryId, DeliveryStatus, EventId, TenantId, Time, id::min_bytes_at};

use super::{
    Postgres,
    convert::{Col, get, get_opt},
    session::{Failure, Tx},
    tenancy,
};
use crate::{Erase, EraseResult, StoreFuture};

const SELECT_EVENTS_TO_ERASE: &str =
    "SELECT id FROM events WHERE tenant_id = $1 AND subject = $2 AND erased_at IS NULL
     ORDER BY id LIMIT $3";
/// The ids of an event's deliveries have the event's millisecond, which limits the range.
const SELECT_DELIVERIES_WITH_RESPONSES: &str = "SELECT d.id FROM deliveries d
     WHERE d.event_id = $1 AND d.id >= $2 AND d.id < $3 AND d.tenant_id = $4 AND (SELECT true FROM attempts a
         WHERE a.delivery_id = d.id AND a.response_body_sample IS NOT NULL LIMIT 1) LIMIT $5";
const ERASE_RESPONSES: &str = "UPDATE attempts SET response_body_sample = NULL
     WHERE delivery_id = ANY($1::uuid[]) AND delivery_id >= $2 AND delivery_id < $3
     AND response_body_sample IS NOT NULL";

/// Updates in the order of ids, as a purge locks them.
const DELETE_DEAD_LETTERS: &str = "UPDATE deliveries SET purged_at = $5 WHERE id = ANY(ARRAY(
             SELECT id FROM deliveries WHERE event_id = $1 AND id >= $2 AND id < $3 AND tenant_id = $4))
         AND id >= $2 AND id < $3 AND status = $6 AND redriven_as IS NULL AND purged_at IS NULL RETURNING id";

/// Statements whose cost must be proportional to the rows they return or change; a test checks their query plans.
#[cfg(feature = "conformance")]
pub(super) const PLANNED_STATEMENTS: [(&str, &str); 3] = [
    ("deliveries of an event to erase", SELECT_DELIVERIES_WITH_RESPONSES),
    ("response samples to erase", ERASE_RESPONSES),
    ("dead letters to erase", DELETE_DEAD_LETTERS),
];

impl Erase for Postgres {
    fn erase(&self, tenant_id: TenantId, event_id: EventId, now: Time) -> StoreFuture<'_, EraseResult> {
        Box::pin(async move { self.administer(|tx| erase(tx, &tenant_id, event_id, now)).await })
    }

    fn erase_responses(
        &self,
        tenant_id: TenantId,
        event_id: EventId,
        limit: usize,
    ) -> StoreFuture<'_, usize> {
        Box::pin(async move { self.write(|tx| erase_answers(tx, &tenant_id, event_id, limit)).await })
    }

    fn events_to_erase(
        &self,
        tenant_id: TenantId,
        subject: String,
        limit: usize,
    ) -> StoreFuture<'_, Vec<EventId>> {
        Box::pin(async move {
            let (tenant, subject) = (tenant_id.as_str(), &subject);
            self.read(|session| async move {
                let rows =
                    session.query(SELECT_EVENTS_TO_ERASE, &[&tenant, subject, &(limit as i64)]).await?;
                rows.iter().map(|row| get(row, 0)).collect()
            })
            .await
        })
    }
}

async fn erase(tx: Tx, tenant_id: &TenantId, event_id: EventId, now: Time) -> Result<EraseResult, Failure> {
    // Redriving takes the same lock: a round that starts after this point sees that the payload is erased.
    tenancy::lock(&tx, tenant_id).await?;
    let known = "SELECT erased_at FROM events WHERE tenant_id = $1 AND id = $2 FOR UPDATE";
    let Some(row) = tx.query_opt(known, &[&tenant_id.as_str(), &Col(event_id)]).await? else {
        return Ok(EraseResult::NotFound);
    };
    if let Some(since) = get_opt(&row, 0)? {
        return Ok(EraseResult::AlreadyErased(since));
    }
    let erase =
        "UPDATE events SET data = '', metadata = NULL, erased_at = $3 WHERE tenant_id = $1 AND id = $2";
    tx.execute(erase, &[&tenant_id.as_str(), &Col(event_id), &Col(now)]).await?;
    // Its dead letters can no longer be redriven.
    let ((from, to), dead) = (id_range_at(event_id), Col(DeliveryStatus::Dead));
    let dead_letters = tx
        .query(DELETE_DEAD_LETTERS, &[&Col(event_id), &from, &to, &tenant_id.as_str(), &Col(now), &dead])
        .await?;
    let dead_letters =
        dead_letters.iter().map(|row| get(row, 0).map(Col)).collect::<Result<Vec<Col<DeliveryId>>, _>>()?;
    if !dead_letters.is_empty() {
        tx.execute("DELETE FROM dead WHERE delivery_id = ANY($1::uuid[])", &[&dead_letters]).await?;
    }
    Ok(EraseResult::Erased)
}

/// Returns the id range of an event's deliveries, whose ids have the event's millisecond.
fn id_range_at(event_id: EventId) -> (Col<[u8; 16]>, Col<[u8; 16]>) {
    let next = Time::from_millis(event_id.time().millis() + 1);
    (Col(min_bytes_at(event_id.time())), Col(min_bytes_at(next)))
}

async fn erase_answers(
    tx: Tx,
    tenant_id: &TenantId,
    event_id: EventId,
    limit: usize,
) -> Result<usize, Failure> {
    let (from, to) = id_range_at(event_id);
    let values: super::session::Values<'_> =
        &[&Col(event_id), &from, &to, &tenant_id.as_str(), &(limit as i64)];
    let rows = tx.query(SELECT_DELIVERIES_WITH_RESPONSES, values).await?;
    let ids = rows.iter().map(|row| get(row, 0).map(Col)).collect::<Result<Vec<Col<DeliveryId>>, _>>()?;
    if !ids.is_empty() {
        tx.execute(ERASE_RESPONSES, &[&ids, &from, &to]).await?;
    }
    Ok(ids.len())
}
