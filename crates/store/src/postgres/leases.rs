//! Leases: noting that one is being sent, locking them, and giving deliveries back without an outcome.

use std::collections::{BTreeSet, HashMap};

use redrive_core::{DeliveryId, Time};
use tokio_postgres::Row;

use super::{
    claim::Code,
    convert::{Col, get, plain, text_opt},
    lanes::{self, Keys, Place, Rescued, Wait},
    redrive,
    session::{Failure, Session, Tx},
};
use crate::Epoch;

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
const CREATED: &str = "SELECT id, created_at FROM deliveries WHERE id = ANY($1::uuid[])";

/// The statements whose cost must follow what they change: a test explains their plans.
#[cfg(feature = "conformance")]
pub(super) const PLANNED: [(&str, &str); 4] =
    [("lock leases", LOCK_LEASES), ("mark as sending", MARK), ("release", RELEASE), ("when made", CREATED)];

/// Marks leases as being sent. Gives those that were there to be marked.
pub(super) async fn mark(
    tx: Tx,
    leases: &[(Epoch, DeliveryId)],
) -> Result<BTreeSet<(Epoch, DeliveryId)>, Failure> {
    let epochs: Vec<_> = leases.iter().map(|(epoch, _)| epoch.0).collect();
    let ids: Vec<_> = leases.iter().map(|(_, delivery)| Col(*delivery)).collect();
    lock_leases(&tx, &epochs, &ids).await?;
    let rows = tx.query(MARK, &[&epochs, &ids]).await?;
    rows.iter().map(|row| Ok((Epoch(plain(row, 0)?), get(row, 1)?))).collect()
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
    // Before they are kept as they are: two who do both would wait for each other.
    lanes::lock(&tx, &keys).await?;
    give_back(&tx, orphans, |delivery| due.get(&delivery).copied().unwrap_or(now), now).await?;
    lanes::let_go(&tx, &keys, epoch).await?;
    Ok(count)
}

/// Gives back leases of whose commit nobody was told. Their transactions are over once the node's row is ours, and a
/// statement that the server has not looked at yet finds the new fence there.
pub(super) async fn give_back_doubtful(
    tx: Tx,
    doubts: &[(Epoch, DeliveryId, Time)],
    held: &[(Epoch, Code)],
    fence: i64,
) -> Result<usize, Failure> {
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
    let given_back = orphans.iter().map(|one| (one.place.webhook, one.place.lane.code().into_owned()));
    let keys: Keys = given_back.chain(held.iter().map(|(_, lane)| lane.clone())).collect();
    lanes::lock(&tx, &keys).await?;
    let due_of = |delivery| due.get(&delivery).copied().unwrap_or_default();
    let latest = due.values().copied().max().unwrap_or_default();
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

async fn take_leases(tx: &Session, leases: &[(Epoch, DeliveryId)]) -> Result<Vec<Orphan>, Failure> {
    let epochs: Vec<_> = leases.iter().map(|(epoch, _)| epoch.0).collect();
    let ids: Vec<_> = leases.iter().map(|(_, delivery)| Col(*delivery)).collect();
    lock_leases(tx, &epochs, &ids).await?;
    tx.query(RELEASE, &[&epochs, &ids]).await?.iter().map(read_orphan).collect()
}

/// Locks leases by a statement of its own. A row that somebody changes meanwhile has another place afterwards,
/// which only a later statement sees.
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

/// Puts deliveries whose leases have just ended where they belong.
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
    lanes::wait(tx, &waits).await?;
    lanes::look_again(tx, &orders).await
}
