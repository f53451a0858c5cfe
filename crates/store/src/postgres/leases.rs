//! Leases: marking them as being sent, locking them, and releasing deliveries without an outcome.

use std::collections::{BTreeSet, HashMap};

use redrive_core::{DeliveryId, Time};
use tokio_postgres::Row;

use super::{
    convert::{Col, get, plain, text_opt},
    lanes::{self, Keys, LaneLocks, LanePosition, ReleaseCounts, WaitingDelivery},
    redrive,
    session::{Failure, Session, Tx},
    writer::UncertainLeases,
};
use crate::{Epoch, LaneKey, Owned};

const LOCK_LEASES: &str = "SELECT 1 FROM unnest($1::bigint[], $2::uuid[]) AS k(epoch, delivery_id)
     CROSS JOIN LATERAL (
         SELECT 1 FROM leased l WHERE l.epoch = k.epoch AND l.delivery_id = k.delivery_id LIMIT 1 FOR UPDATE) l";
const MARK_SENDING: &str = "WITH k AS MATERIALIZED (
         SELECT l.tid FROM unnest($1::bigint[], $2::uuid[]) AS k(epoch, delivery_id) CROSS JOIN LATERAL (
             SELECT ctid AS tid FROM leased l WHERE l.epoch = k.epoch AND l.delivery_id = k.delivery_id
             LIMIT 1) l)
     UPDATE leased SET sending = 1 WHERE ctid = ANY(ARRAY(SELECT tid FROM k)) RETURNING epoch, delivery_id";
const RELEASE_LEASES: &str = "WITH k AS MATERIALIZED (
         SELECT l.tid FROM unnest($1::bigint[], $2::uuid[]) AS k(epoch, delivery_id) CROSS JOIN LATERAL (
             SELECT ctid AS tid FROM leased l WHERE l.epoch = k.epoch AND l.delivery_id = k.delivery_id
             LIMIT 1) l)
     DELETE FROM leased WHERE ctid = ANY(ARRAY(SELECT tid FROM k))
     RETURNING delivery_id, webhook_id, lane, seq, abnormal_releases, crash_count, sending, cancel";
const DELETE_ASSIGNMENTS: &str =
    "DELETE FROM webhook_assignments WHERE webhook_id = ANY($1::uuid[]) AND epoch = $2";
const SELECT_OWNED_LEASES: &str =
    "SELECT delivery_id FROM leased WHERE epoch = $1 AND delivery_id > $2 ORDER BY delivery_id LIMIT $3";
const SELECT_OWNED_LANES: &str = "SELECT webhook_id, lane FROM lanes WHERE claimed_by = $1 LIMIT $2";
const SELECT_OWNED_ASSIGNMENTS: &str = "SELECT webhook_id FROM webhook_assignments WHERE epoch = $1 LIMIT $2";
const SELECT_CREATED_AT: &str = "SELECT id, created_at FROM deliveries WHERE id = ANY($1::uuid[])";

/// Statements whose cost must be proportional to the rows they change; a test checks their query plans.
#[cfg(feature = "conformance")]
pub(super) const PLANNED_STATEMENTS: [(&str, &str); 7] = [
    ("lock leases", LOCK_LEASES),
    ("mark as sending", MARK_SENDING),
    ("release", RELEASE_LEASES),
    ("creation times", SELECT_CREATED_AT),
    ("owned leases", SELECT_OWNED_LEASES),
    ("owned lanes", SELECT_OWNED_LANES),
    ("owned assignments", SELECT_OWNED_ASSIGNMENTS),
];

/// Marks leases as being sent. Returns those that existed.
pub(super) async fn mark_sending(
    tx: Tx,
    leases: &[(Epoch, DeliveryId)],
) -> Result<BTreeSet<(Epoch, DeliveryId)>, Failure> {
    let (epochs, ids) = in_order(leases.iter().copied());
    lock_leases(&tx, &epochs, &ids).await?;
    let rows = tx.query(MARK_SENDING, &[&epochs, &ids]).await?;
    rows.iter().map(|row| Ok((Epoch(plain(row, 0)?), get(row, 1)?))).collect()
}

/// Returns what an epoch owns: a page of its leases and, on the first page, its lanes and assignments.
pub(super) async fn owned_by(
    session: Tx,
    epoch: Epoch,
    after: Option<DeliveryId>,
    limit: usize,
) -> Result<Owned, Failure> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let from = Col(after.unwrap_or(DeliveryId::from_bytes([0; 16])));
    let rows = session.query(SELECT_OWNED_LEASES, &[&epoch.0, &from, &limit]).await?;
    let leases = rows.iter().map(|row| get(row, 0)).collect::<Result<_, Failure>>()?;
    if after.is_some() {
        return Ok(Owned { leases, ..Owned::default() });
    }
    let rows = session.query(SELECT_OWNED_LANES, &[&epoch.0, &limit]).await?;
    let lane = |row: &Row| Ok(LaneKey { webhook_id: get(row, 0)?, lane: get(row, 1)? });
    let lanes = rows.iter().map(lane).collect::<Result<_, Failure>>()?;
    let rows = session.query(SELECT_OWNED_ASSIGNMENTS, &[&epoch.0, &limit]).await?;
    let assignments = rows.iter().map(|row| get(row, 0)).collect::<Result<_, Failure>>()?;
    Ok(Owned { leases, lanes, assignments })
}

/// Ends leases without outcomes: the deliveries wait again, or are cancelled if a cancellation was requested. Adds
/// `crashes` to their counts.
pub(super) async fn release(
    tx: Tx,
    epoch: Epoch,
    now: Time,
    deliveries: &[(DeliveryId, Time)],
    crashes: i32,
) -> Result<usize, Failure> {
    // A delivery that is listed twice is released once, with its first due time.
    let due: HashMap<_, _> = deliveries.iter().rev().copied().collect();
    let leases: Vec<_> = due.keys().map(|delivery_id| (epoch, *delivery_id)).collect();
    let mut orphans = delete_leases(&tx, &leases).await?;
    for orphan in &mut orphans {
        orphan.release_counts.abnormal_releases += crashes;
        orphan.release_counts.crash_count += crashes;
    }
    let keys: Keys =
        orphans.iter().map(|one| (one.position.webhook_id, one.position.lane.code().into_owned())).collect();
    let count = orphans.len();
    let due_of = |delivery_id| due.get(&delivery_id).copied().unwrap_or(now);
    let mut locks = locks_for(&orphans, due_of);
    locks.change_all();
    for (webhook_id, code) in &keys {
        locks.release(*webhook_id, code);
    }
    locks.lock(&tx).await?;
    return_to_lanes(&tx, orphans, due_of, now).await?;
    lanes::release_lanes(&tx, &keys, epoch).await?;
    Ok(count)
}

/// Returns leases whose commit is uncertain. Once this transaction has locked the node's row, the transactions in
/// doubt have ended, and a statement that the server has yet to execute finds the raised fence there.
pub(super) async fn return_uncertain(tx: Tx, open: &UncertainLeases, fence: i64) -> Result<usize, Failure> {
    let UncertainLeases { leases: doubts, lanes: claimed_lanes, assigned } = open;
    let epochs: BTreeSet<_> = doubts
        .iter()
        .map(|(epoch, ..)| epoch.0)
        .chain(claimed_lanes.iter().map(|(epoch, _)| epoch.0))
        .collect();
    let epochs: Vec<_> = epochs.into_iter().collect();
    let wait_for = "SELECT epoch FROM nodes WHERE epoch = ANY($1::bigint[]) ORDER BY epoch FOR UPDATE";
    tx.query(wait_for, &[&epochs]).await?;
    tx.execute("UPDATE nodes SET fence = $2 WHERE epoch = ANY($1::bigint[])", &[&epochs, &fence]).await?;
    let leases: Vec<_> = doubts.iter().map(|(epoch, delivery_id, _)| (*epoch, *delivery_id)).collect();
    let due: HashMap<_, _> = doubts.iter().map(|(_, delivery_id, due)| (*delivery_id, *due)).collect();
    let orphans = delete_leases(&tx, &leases).await?;
    let count = orphans.len();
    let due_of = |delivery_id| due.get(&delivery_id).copied().unwrap_or_default();
    let latest = due.values().copied().max().unwrap_or_default();
    let mut locks = locks_for(&orphans, due_of);
    locks.change_all();
    for (_, (webhook_id, code)) in claimed_lanes {
        locks.release(*webhook_id, code);
    }
    locks.lock(&tx).await?;
    for epoch in &epochs {
        let assigned: BTreeSet<_> =
            assigned.iter().filter(|(of, _)| of.0 == *epoch).map(|(_, webhook_id)| *webhook_id).collect();
        if !assigned.is_empty() {
            let webhook_ids: Vec<_> = assigned.into_iter().map(Col).collect();
            tx.execute(DELETE_ASSIGNMENTS, &[&webhook_ids, epoch]).await?;
        }
    }
    return_to_lanes(&tx, orphans, due_of, latest).await?;
    for epoch in epochs {
        let own: Keys =
            claimed_lanes.iter().filter(|(of, _)| of.0 == epoch).map(|(_, lane)| lane.clone()).collect();
        lanes::release_lanes(&tx, &own, Epoch(epoch)).await?;
    }
    Ok(count)
}

/// Delivery whose lease has just ended.
pub(super) struct Orphan {
    pub(super) position: LanePosition,
    pub(super) release_counts: ReleaseCounts,
    pub(super) sending: i32,
    pub(super) cancel: Option<String>,
}

pub(super) fn read_orphan(row: &Row) -> Result<Orphan, Failure> {
    let position = LanePosition {
        delivery_id: get(row, 0)?,
        webhook_id: get(row, 1)?,
        lane: get(row, 2)?,
        seq: plain(row, 3)?,
    };
    let release_counts = ReleaseCounts { abnormal_releases: plain(row, 4)?, crash_count: plain(row, 5)? };
    Ok(Orphan { position, release_counts, sending: plain(row, 6)?, cancel: text_opt(row, 7)? })
}

/// Ends leases. They are locked by a separate statement first: a single statement that locks and deletes would
/// miss a lease that another transaction changed concurrently, since its snapshot does not contain the new row
/// version.
pub(super) async fn delete_leases(
    tx: &Session,
    leases: &[(Epoch, DeliveryId)],
) -> Result<Vec<Orphan>, Failure> {
    let (epochs, ids) = in_order(leases.iter().copied());
    lock_leases(tx, &epochs, &ids).await?;
    tx.query(RELEASE_LEASES, &[&epochs, &ids]).await?.iter().map(read_orphan).collect()
}

/// Returns leases as two columns, in the order in which leases are locked.
fn in_order(leases: impl IntoIterator<Item = (Epoch, DeliveryId)>) -> (Vec<i64>, Vec<Col<DeliveryId>>) {
    let leases: BTreeSet<_> = leases.into_iter().collect();
    leases.into_iter().map(|(epoch, delivery_id)| (epoch.0, Col(delivery_id))).unzip()
}

/// Returns the lanes into which [`return_to_lanes`] inserts, and the ordered lanes of cancelled deliveries.
pub(super) fn locks_for(orphans: &[Orphan], due: impl Fn(DeliveryId) -> Time) -> LaneLocks {
    let mut locks = LaneLocks::default();
    for Orphan { position, cancel, .. } in orphans {
        match cancel {
            None => locks.put_into(position.webhook_id, &position.lane, due(position.delivery_id)),
            Some(_) if position.lane.is_ordered() => {
                locks.take_from(position.webhook_id, position.lane.code().into_owned());
            }
            Some(_) => {}
        }
    }
    locks
}

/// Locks leases, given in lock order, by a separate statement. A row that another transaction changes concurrently
/// gets another `ctid`, which only a later statement sees.
pub(super) async fn lock_leases(
    tx: &Session,
    epochs: &[i64],
    deliveries: &[Col<DeliveryId>],
) -> Result<(), Failure> {
    tx.query(LOCK_LEASES, &[&epochs, &deliveries]).await?;
    Ok(())
}

/// Returns the creation times of deliveries.
pub(super) async fn created(
    tx: &Session,
    deliveries: &[DeliveryId],
) -> Result<HashMap<DeliveryId, Time>, Failure> {
    let ids: Vec<_> = deliveries.iter().map(|delivery_id| Col(*delivery_id)).collect();
    let rows = tx.query(SELECT_CREATED_AT, &[&ids]).await?;
    rows.iter().map(|row| Ok((get(row, 0)?, get(row, 1)?))).collect()
}

/// Inserts deliveries whose leases have just ended into their lanes, or cancels them if that was requested. The
/// lanes of [`locks_for`] must be locked.
pub(super) async fn return_to_lanes(
    tx: &Session,
    orphans: Vec<Orphan>,
    due: impl Fn(DeliveryId) -> Time,
    now: Time,
) -> Result<(), Failure> {
    let (over, back): (Vec<_>, Vec<_>) = orphans.into_iter().partition(|orphan| orphan.cancel.is_some());
    let mut orders = Keys::new();
    for orphan in over {
        let reason = orphan.cancel.unwrap_or_default();
        redrive::end_cancelled(tx, &[orphan.position.delivery_id], &reason, now).await?;
        if orphan.position.lane.is_ordered() {
            orders.insert((orphan.position.webhook_id, orphan.position.lane.code().into_owned()));
        }
    }
    let ids: Vec<_> = back.iter().map(|orphan| orphan.position.delivery_id).collect();
    let created = created(tx, &ids).await?;
    let waits: Vec<_> = back
        .into_iter()
        .map(|orphan| WaitingDelivery {
            due: due(orphan.position.delivery_id),
            created_at: created.get(&orphan.position.delivery_id).copied().unwrap_or(now),
            sort_key: orphan.position,
            release_counts: orphan.release_counts,
        })
        .collect();
    lanes::insert_waiting(tx, &waits).await?;
    lanes::set_by_first(tx, &orders).await
}
