//! Claims the deliveries that a ticket names, one by one instead of by lane. A lane that becomes empty is deleted
//! by the next claim after its wake time.

use redrive_core::Time;
use rusqlite::{OptionalExtension, Transaction};

use super::{
    claim::{SELECT_ASSIGNED_EPOCH, lease, read_claimed},
    convert::Col,
    lanes, nodes,
};
use crate::{ClaimedDelivery, Epoch, TicketEntry};

const SELECT_BY_TICKETS: &str =
    "SELECT w.delivery_id, w.webhook_id, w.due, w.abnormal_releases, w.crash_count, d.format, d.attempt_count, d.created_at,
            e.id, e.tenant_id, e.event_type, e.data, e.timestamp, e.idempotency_key, e.source, e.subject,
            e.priority, w.seq, e.trace, e.hops
     FROM waiting w JOIN deliveries d ON d.id = w.delivery_id JOIN events e ON e.tenant_id = d.tenant_id
     AND e.id = d.event_id
     WHERE w.delivery_id = ?1 AND w.webhook_id = ?2 AND w.lane = ?3 AND w.due <= ?4";

/// Statements whose cost must be proportional to the deliveries that are ready, independent of those that are
/// parked; a test checks their query plans.
#[cfg(feature = "conformance")]
pub(super) const BOUNDED_STATEMENTS: [&str; 1] = [SELECT_BY_TICKETS];

/// Claims each delivery in turn. Returns `None` if the epoch has ended.
pub(super) fn claim_tickets(
    transaction: &Transaction<'_>,
    epoch: Epoch,
    now: Time,
    due_before: Time,
    wanted: &[TicketEntry],
    max_bytes: usize,
) -> rusqlite::Result<Option<Vec<ClaimedDelivery>>> {
    if !nodes::is_live(transaction, epoch)? {
        return Ok(None);
    }
    let (mut taken, mut bytes_left) = (Vec::new(), max_bytes);
    // Ordered lanes must be claimed from their head, which only lane claims do.
    for one in wanted.iter().filter(|one| !one.key.lane.is_ordered()) {
        if bytes_left == 0 {
            break;
        }
        let webhook_id = one.key.webhook_id;
        let assigned_epoch: Option<i64> = transaction
            .prepare_cached(SELECT_ASSIGNED_EPOCH)?
            .query_row([Col(webhook_id)], |row| row.get(0))
            .optional()?;
        if assigned_epoch.is_some_and(|assigned_epoch| assigned_epoch != epoch.0)
            || lanes::blocked_until(transaction, webhook_id)? > now
        {
            continue;
        }
        let values = (Col(one.delivery_id), Col(webhook_id), one.key.lane.code(), Col(due_before));
        let found =
            transaction.prepare_cached(SELECT_BY_TICKETS)?.query_row(values, read_claimed).optional()?;
        if let Some(claimed) = found {
            bytes_left = bytes_left.saturating_sub(claimed.event.memory_bytes());
            lease(transaction, epoch, &one.key.lane, &claimed)?;
            taken.push(claimed);
        }
    }
    Ok(Some(taken))
}
