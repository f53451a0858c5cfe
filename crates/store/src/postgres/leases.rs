//! Leases: noting that one is being sent, locking them, and giving deliveries back without an outcome.

use std::collections::{BTreeSet, HashMap};

use redrive_core::{DeliveryId, Time};
use tokio_postgres::Row;

use super::{
    convert::{Col, get, plain, text_opt},
    lanes::{self, Keys, LaneLocks, Place, Rescued, Wait},
    redrive,
    session::{Failure, Session, Tx},
    writer::Open,
};
use crate::{Epoch, LaneKey, Owned};

const LOCK_LEASES: &str = "SELECT 1 FROM unnest($1::bigint[], $2::uuid[]) AS k(epoch, delivery)
     CROSS JOIN LATERAL (
         SELECT 1 FROM leased l WHERE l.epoch = k.epoch AND l.delivery = k.delivery LIMIT 1 FOR UPDATE) l";
const MARK: &str = "WITH k AS MATERIALIZED (
         SELECT l.tid FROM unnest($1::bigint[], $2::uuid[]) AS k(epoch, delivery) CROSS JOIN LATERAL (
             SELECT ctid AS tid FROM leased l WHERE l.epoch = k.epoch AND l.delivery = k.delivery
             LIMIT 1) l)
     UPDATE leased SET sending = 1 WHERE ctid = ANY(ARRAY(SELECT tid FROM k)) RETURNING epoch, delivery";
const RELEASE: &str = "WITH k AS MATERIALIZED (
         SELECT l.tid FROM unnest($1::bigint[], $2::uuid[]) AS k(epoch, delivery) CROSS JOIN LATERAL (
             SELECT ctid AS tid FROM leased l WHERE l.epoch = k.epoch AND l.delivery = k.delivery
             LIMIT 1) l)
     DELETE FROM leased WHERE ctid = ANY(ARRAY(SELECT tid FROM k))
     RETURNING delivery, webhook, lane, seq, rescues, deaths, sending, cancel";
const UNASSIGN: &str = "DELETE FROM homes WHERE webhook = ANY($1::uuid[]) AND epoch = $2";
const OWNED_LEASES: &str =
    "SELECT delivery FROM leased WHERE epoch = $1 AND delivery > $2 ORDER BY delivery LIMIT $3";
const OWNED_LANES: &str = "SELECT webhook, lane FROM lanes WHERE held_by = $1 LIMIT $2";
const OWNED_ASSIGNMENTS: &str = "SELECT webhook FROM homes WHERE epoch = $1 LIMIT $2";
const CREATED: &str = "SELECT id, created_at FROM deliveries WHERE id = ANY($1::uuid[])";

/// The statements whose cost must follow what they change: a test explains their plans.
#[cfg(feature = "conformance")]
pub(super) const PLANNED: [(&str, &str); 7] = [
    ("lock leases", LOCK_LEASES),
    ("mark as sending", MARK),
    ("release", RELEASE),
    ("when made", CREATED),
    ("owned leases", OWNED_LEASES),
    ("owned lanes", OWNED_LANES),
    ("owned assignments", OWNED_ASSIGNMENTS),
];

/// Marks leases as being sent. Gives those that were there to be marked.
pub(super) async fn mark(
    tx: Tx,
    leases: &[(Epoch, DeliveryId)],
) -> Result<BTreeSet<(Epoch, DeliveryId)>, Failure> {
    let (epochs, ids) = in_order(leases.iter().copied());
    lock_leases(&tx, &epochs, &ids).await?;
    let rows = tx.query(MARK, &[&epochs, &ids]).await?;
    rows.iter().map(|row| Ok((Epoch(plain(row, 0)?), get(row, 1)?))).collect()
}

/// What an epoch owns, by pages of leases.
pub(super) async fn owned_by(
    session: Tx,
    epoch: Epoch,
    after: Option<DeliveryId>,
    limit: usize,
) -> Result<Owned, Failure> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let from = Col(after.unwrap_or(DeliveryId::from_bytes([0; 16])));
    let rows = session.query(OWNED_LEASES, &[&epoch.0, &from, &limit]).await?;
    let leases = rows.iter().map(|row| get(row, 0)).collect::<Result<_, Failure>>()?;
    if after.is_some() {
        return Ok(Owned { leases, ..Owned::default() });
    }
    let rows = session.query(OWNED_LANES, &[&epoch.0, &limit]).await?;
    let lane = |row: &Row| Ok(LaneKey { webhook: get(row, 0)?, lane: get(row, 1)? });
    let lanes = rows.iter().map(lane).collect::<Result<_, Failure>>()?;
    let rows = session.query(OWNED_ASSIGNMENTS, &[&epoch.0, &limit]).await?;
    let assignments = rows.iter().map(|row| get(row, 0)).collect::<Result<_, Failure>>()?;
    Ok(Owned { leases, lanes, assignments })
}

/// Ends leases without outcomes: the deliveries wait again, or are cancelled if that was asked for.
pub(super) async fn release(
    tx: Tx,
    epoch: Epoch,
    now: Time,
    deliveries: &[(DeliveryId, Time)],
) -> Result<usize, Failure> {
    // Whoever is named twice is given back once, as named first.
    let due: HashMap<_, _> = deliveries.iter().rev().copied().collect();
    let leases: Vec<_> = due.keys().map(|delivery| (epoch, *delivery)).collect();
    let orphans = take_leases(&tx, &leases).await?;
    let keys: Keys =
        orphans.iter().map(|one| (one.place.webhook, one.place.lane.code().into_owned())).collect();
    let count = orphans.len();
    let due_of = |delivery| due.get(&delivery).copied().unwrap_or(now);
    let mut locks = locks_for(&orphans, due_of);
    locks.change_all();
    for (webhook, code) in &keys {
        locks.release(*webhook, code);
    }
    locks.lock(&tx).await?;
    give_back(&tx, orphans, due_of, now).await?;
    lanes::let_go(&tx, &keys, epoch).await?;
    Ok(count)
}

/// Gives back leases of whose commit nobody was told. Their transactions are over once the node's row is ours, and a
/// statement that the server has not looked at yet finds the new fence there.
pub(super) async fn give_back_doubtful(tx: Tx, open: &Open, fence: i64) -> Result<usize, Failure> {
    let Open { leases: doubts, lanes: held, assigned } = open;
    let epochs: BTreeSet<_> =
        doubts.iter().map(|(epoch, ..)| epoch.0).chain(held.iter().map(|(epoch, _)| epoch.0)).collect();
    let epochs: Vec<_> = epochs.into_iter().collect();
    let wait_for = "SELECT epoch FROM nodes WHERE epoch = ANY($1::bigint[]) ORDER BY epoch FOR UPDATE";
    tx.query(wait_for, &[&epochs]).await?;
    tx.execute("UPDATE nodes SET fence = $2 WHERE epoch = ANY($1::bigint[])", &[&epochs, &fence]).await?;
    let leases: Vec<_> = doubts.iter().map(|(epoch, delivery, _)| (*epoch, *delivery)).collect();
    let due: HashMap<_, _> = doubts.iter().map(|(_, delivery, due)| (*delivery, *due)).collect();
    let orphans = take_leases(&tx, &leases).await?;
    let count = orphans.len();
    let due_of = |delivery| due.get(&delivery).copied().unwrap_or_default();
    let latest = due.values().copied().max().unwrap_or_default();
    let mut locks = locks_for(&orphans, due_of);
    locks.change_all();
    for (_, (webhook, code)) in held {
        locks.release(*webhook, code);
    }
    locks.lock(&tx).await?;
    for epoch in &epochs {
        let assigned: BTreeSet<_> =
            assigned.iter().filter(|(of, _)| of.0 == *epoch).map(|(_, webhook)| *webhook).collect();
        if !assigned.is_empty() {
            let webhook_ids: Vec<_> = assigned.into_iter().map(Col).collect();
            tx.execute(UNASSIGN, &[&webhook_ids, epoch]).await?;
        }
    }
    give_back(&tx, orphans, due_of, latest).await?;
    for epoch in epochs {
        let own: Keys = held.iter().filter(|(of, _)| of.0 == epoch).map(|(_, lane)| lane.clone()).collect();
        lanes::let_go(&tx, &own, Epoch(epoch)).await?;
    }
    Ok(count)
}

/// A delivery whose lease has just ended.
pub(super) struct Orphan {
    pub(super) place: Place,
    pub(super) rescued: Rescued,
    pub(super) sending: i32,
    pub(super) cancel: Option<String>,
}

pub(super) fn read_orphan(row: &Row) -> Result<Orphan, Failure> {
    let place =
        Place { delivery: get(row, 0)?, webhook: get(row, 1)?, lane: get(row, 2)?, seq: plain(row, 3)? };
    let rescued = Rescued { rescues: plain(row, 4)?, deaths: plain(row, 5)? };
    Ok(Orphan { place, rescued, sending: plain(row, 6)?, cancel: text_opt(row, 7)? })
}

/// Ends leases. A statement of its own locks them first: one that locked and deleted would miss a lease that another
/// transaction changed concurrently, since its snapshot does not contain the new version of the row.
pub(super) async fn take_leases(
    tx: &Session,
    leases: &[(Epoch, DeliveryId)],
) -> Result<Vec<Orphan>, Failure> {
    let (epochs, ids) = in_order(leases.iter().copied());
    lock_leases(tx, &epochs, &ids).await?;
    tx.query(RELEASE, &[&epochs, &ids]).await?.iter().map(read_orphan).collect()
}

/// Leases as two columns, in the order in which leases are locked.
fn in_order(leases: impl IntoIterator<Item = (Epoch, DeliveryId)>) -> (Vec<i64>, Vec<Col<DeliveryId>>) {
    let leases: BTreeSet<_> = leases.into_iter().collect();
    leases.into_iter().map(|(epoch, delivery)| (epoch.0, Col(delivery))).unzip()
}

/// The lanes that [`give_back`] puts deliveries into, and the orders that it takes cancelled ones out of.
pub(super) fn locks_for(orphans: &[Orphan], due: impl Fn(DeliveryId) -> Time) -> LaneLocks {
    let mut locks = LaneLocks::default();
    for Orphan { place, cancel, .. } in orphans {
        match cancel {
            None => locks.put_into(place.webhook, &place.lane, due(place.delivery)),
            Some(_) if place.lane.is_ordered() => {
                locks.take_from(place.webhook, place.lane.code().into_owned());
            }
            Some(_) => {}
        }
    }
    locks
}

/// Locks leases, given in their order, by a statement of its own. A row that another transaction changes concurrently
/// has another place afterwards, which only a later statement sees.
pub(super) async fn lock_leases(
    tx: &Session,
    epochs: &[i64],
    deliveries: &[Col<DeliveryId>],
) -> Result<(), Failure> {
    tx.query(LOCK_LEASES, &[&epochs, &deliveries]).await?;
    Ok(())
}

/// When these deliveries were made.
pub(super) async fn created(
    tx: &Session,
    deliveries: &[DeliveryId],
) -> Result<HashMap<DeliveryId, Time>, Failure> {
    let ids: Vec<_> = deliveries.iter().map(|delivery| Col(*delivery)).collect();
    let rows = tx.query(CREATED, &[&ids]).await?;
    rows.iter().map(|row| Ok((get(row, 0)?, get(row, 1)?))).collect()
}

/// Puts deliveries whose leases have just ended where they belong. The lanes of [`locks_for`] must be locked.
pub(super) async fn give_back(
    tx: &Session,
    orphans: Vec<Orphan>,
    due: impl Fn(DeliveryId) -> Time,
    now: Time,
) -> Result<(), Failure> {
    let (over, back): (Vec<_>, Vec<_>) = orphans.into_iter().partition(|orphan| orphan.cancel.is_some());
    let mut orders = Keys::new();
    for orphan in over {
        let reason = orphan.cancel.unwrap_or_default();
        redrive::end_cancelled(tx, &[orphan.place.delivery], &reason, now).await?;
        if orphan.place.lane.is_ordered() {
            orders.insert((orphan.place.webhook, orphan.place.lane.code().into_owned()));
        }
    }
    let ids: Vec<_> = back.iter().map(|orphan| orphan.place.delivery).collect();
    let created = created(tx, &ids).await?;
    let waits: Vec<_> = back
        .into_iter()
        .map(|orphan| Wait {
            due: due(orphan.place.delivery),
            created_at: created.get(&orphan.place.delivery).copied().unwrap_or(now),
            place: orphan.place,
            rescued: orphan.rescued,
        })
        .collect();
    lanes::insert_waiting(tx, &waits).await?;
    lanes::set_by_first(tx, &orders).await
}
