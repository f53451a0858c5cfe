//! Handing out what a ticket names, one by one and not by lanes. A lane that is left empty is looked into once at
//! its time, and goes.

use redrive_core::Time;
use rusqlite::{OptionalExtension, Transaction};

use super::{
    claim::{HOME, lease, read_claimed},
    convert::Col,
    lanes, nodes,
};
use crate::{Claimed, Epoch, Wanted};

const WANTED: &str =
    "SELECT w.delivery, w.webhook, w.due, w.rescues, w.deaths, d.format, d.attempt_count, d.created_at,
            e.id, e.tenant, e.event_type, e.data, e.timestamp, e.idempotency_key, e.source, e.subject,
            e.priority, w.seq, e.trace, e.hops
     FROM waiting w JOIN deliveries d ON d.id = w.delivery JOIN events e ON e.tenant = d.tenant AND e.id = d.event
     WHERE w.delivery = ?1 AND w.webhook = ?2 AND w.lane = ?3 AND w.due <= ?4";

/// The statements whose cost must follow what is ready, never what is parked: a test explains their plans.
#[cfg(feature = "conformance")]
pub(super) const BOUNDED: [&str; 1] = [WANTED];

/// Takes each in turn. None: the epoch is over.
pub(super) fn take(
    transaction: &Transaction<'_>,
    epoch: Epoch,
    now: Time,
    by: Time,
    wanted: &[Wanted],
    max_bytes: usize,
) -> rusqlite::Result<Option<Vec<Claimed>>> {
    if !nodes::is_live(transaction, epoch)? {
        return Ok(None);
    }
    let (mut taken, mut bytes_left) = (Vec::new(), max_bytes);
    // An order is given from its first on, and by claims alone.
    for one in wanted.iter().filter(|one| !one.key.lane.is_ordered()) {
        if bytes_left == 0 {
            break;
        }
        let webhook = one.key.webhook;
        let home: Option<i64> =
            transaction.prepare_cached(HOME)?.query_row([Col(webhook)], |row| row.get(0)).optional()?;
        if home.is_some_and(|home| home != epoch.0) || lanes::blocked_until(transaction, webhook)? > now {
            continue;
        }
        let values = (Col(one.delivery), Col(webhook), one.key.lane.code(), Col(by));
        let found = transaction.prepare_cached(WANTED)?.query_row(values, read_claimed).optional()?;
        if let Some(claimed) = found {
            bytes_left = bytes_left.saturating_sub(claimed.event.weight());
            lease(transaction, epoch, &one.key.lane, &claimed)?;
            taken.push(claimed);
        }
    }
    Ok(Some(taken))
}
