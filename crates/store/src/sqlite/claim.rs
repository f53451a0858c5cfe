//! Claims and releases: moves deliveries between `waiting` and `leased`. A delivery that has not ended is in
//! exactly one of the two tables. An insert into `waiting` always updates its lane, so that no wake-up is lost.

use std::{sync::Arc, time::Duration};

use redrive_core::{DeliveryId, Time, WebhookId, delivery::lane::Lane, event::Event};
use rusqlite::{Connection, OptionalExtension, Row, Transaction};
use tokio::sync::oneshot;

use super::{
    Sqlite,
    convert::{Col, get, trace},
    lanes::{self, LanePosition, ReleaseCounts},
    nodes, redrive, tickets,
    writer::Claiming,
};
use crate::{
    Claim, ClaimedDelivery, DueLanes, Epoch, LaneCapacity, LaneClaim, LaneKey, Leases, Owned, StoreError,
    StoreFuture, TicketEntry,
};

const SELECT_DUE_LANES: &str = "SELECT webhook_id, lane, wake_at FROM lanes l
     WHERE pool = ?1 AND claimed_by IS NULL AND wake_at <= ?2
         AND NOT EXISTS (SELECT 1 FROM webhook_assignments a WHERE a.webhook_id = l.webhook_id AND a.epoch <> ?4)
     ORDER BY wake_at LIMIT ?3";
const SELECT_NEXT_WAKE: &str =
    "SELECT min(wake_at) FROM lanes WHERE pool = ?1 AND claimed_by IS NULL AND wake_at > ?2";
const SELECT_DUE: &str =
    "SELECT w.delivery_id, w.webhook_id, w.due, w.abnormal_releases, w.crash_count, d.format, d.attempt_count, d.created_at,
            e.id, e.tenant_id, e.event_type, e.data, e.timestamp, e.idempotency_key, e.source, e.subject,
            e.priority, w.seq, e.trace, e.hops
     FROM waiting w JOIN deliveries d ON d.id = w.delivery_id JOIN events e ON e.tenant_id = d.tenant_id
     AND e.id = d.event_id
     WHERE w.webhook_id = ?1 AND w.lane = ?2 ORDER BY w.sort_key, w.seq LIMIT ?3";
/// Epoch of the node assigned to a webhook.
pub(super) const SELECT_ASSIGNED_EPOCH: &str = "SELECT epoch FROM webhook_assignments WHERE webhook_id = ?";
/// Whether an epoch other than ?3 has leases of an ordered lane. Null if the lane has no leases. The codes of ordered
/// lanes begin with `=`, which sorts before letters: see [`Lane::code`].
const SELECT_LEASED_ORDERS: &str =
    "SELECT max(epoch <> ?3) FROM leased WHERE webhook_id = ?1 AND lane = ?2 AND lane < 'A'";

/// Scans by delivery id, since nearly all leases of an embedded store belong to its one live epoch.
const SELECT_OWNED_LEASES: &str =
    "SELECT delivery_id FROM leased WHERE delivery_id > ?2 AND epoch = ?1 ORDER BY delivery_id LIMIT ?3";
const SELECT_OWNED_LANES: &str = "SELECT webhook_id, lane FROM lanes WHERE claimed_by = ?1 LIMIT ?2";
const SELECT_OWNED_ASSIGNMENTS: &str = "SELECT webhook_id FROM webhook_assignments WHERE epoch = ?1 LIMIT ?2";

/// Statements whose cost must be proportional to the deliveries that are ready, independent of those that are
/// parked; a test checks their query plans.
#[cfg(feature = "conformance")]
pub(super) const HOT_STATEMENTS: [&str; 12] = [
    SELECT_DUE_LANES,
    SELECT_NEXT_WAKE,
    SELECT_DUE,
    SELECT_ASSIGNED_EPOCH,
    SELECT_LEASED_ORDERS,
    lanes::SELECT_FIRST_DUE,
    lanes::SELECT_BLOCKED_UNTIL,
    lanes::UPDATE_WAKE_EARLIER,
    lanes::SET_WAKE,
    SELECT_OWNED_LEASES,
    SELECT_OWNED_LANES,
    SELECT_OWNED_ASSIGNMENTS,
];

/// Delay before an ordered lane is checked again while another node has leases of it.
const ORDER_RETRY_DELAY: Duration = Duration::from_millis(50);

impl Claim for Sqlite {
    fn due_lanes(
        &self,
        epoch: Epoch,
        pools: Vec<String>,
        now: Time,
        limit: usize,
    ) -> StoreFuture<'_, DueLanes> {
        self.read(move |connection| {
            let mut due: Vec<(Time, LaneKey)> = Vec::new();
            let mut next_wake: Option<Time> = None;
            for pool in &pools {
                let rows = connection
                    .prepare_cached(SELECT_DUE_LANES)?
                    .query_map((pool, Col(now), limit as i64, epoch.0), |row| {
                        Ok((get(row, 2)?, lanes::read_key(row, 0, 1)?))
                    })?
                    .collect::<rusqlite::Result<Vec<_>>>()?;
                due.extend(rows);
                let wake = connection
                    .prepare_cached(SELECT_NEXT_WAKE)?
                    .query_row((pool, Col(now)), |row| row.get::<_, Option<Col<Time>>>(0))?;
                next_wake = next_wake.into_iter().chain(wake.map(|col| col.0)).min();
            }
            if pools.len() > 1 {
                due.sort_by_key(|(wake_at, _)| *wake_at);
                due.truncate(limit);
            }
            let lanes = due.into_iter().map(|(_, key)| key).collect();
            Ok(DueLanes { lanes, next_wake: next_wake.filter(|wake| *wake < Time::FAR_FUTURE) })
        })
    }

    fn claim(
        &self,
        epoch: Epoch,
        now: Time,
        lanes: Vec<LaneCapacity>,
        max_bytes: usize,
    ) -> StoreFuture<'_, Vec<LaneClaim>> {
        let (sender, reply) = oneshot::channel();
        let done = Box::new(move |result| drop(sender.send(result)));
        self.writer.claim(Claiming { epoch, now, lanes, max_bytes }, done);
        Box::pin(async { await_result(reply).await?.ok_or(StoreError::Fenced) })
    }

    fn claim_tickets(
        &self,
        epoch: Epoch,
        now: Time,
        due_before: Time,
        wanted: Vec<TicketEntry>,
        max_bytes: usize,
    ) -> StoreFuture<'_, Vec<ClaimedDelivery>> {
        let taken = self.write(move |transaction| {
            tickets::claim_tickets(transaction, epoch, now, due_before, &wanted, max_bytes)
        });
        Box::pin(async { taken.await?.ok_or(StoreError::Fenced) })
    }

    fn release_assignments(&self, epoch: Epoch, webhooks: Vec<WebhookId>) -> StoreFuture<'_, ()> {
        self.write(move |transaction| {
            let mut delete_assignment = transaction.prepare_cached(
                "DELETE FROM webhook_assignments WHERE webhook_id = ?
                 AND epoch = ?",
            )?;
            let mut clear_claimed_by = transaction.prepare_cached(
                "UPDATE lanes SET claimed_by = NULL WHERE webhook_id = ? AND claimed_by = ?",
            )?;
            for webhook_id in webhooks {
                delete_assignment.execute((Col(webhook_id), epoch.0))?;
                clear_claimed_by.execute((Col(webhook_id), epoch.0))?;
            }
            Ok(())
        })
    }
}

impl Leases for Sqlite {
    fn release(
        &self,
        epoch: Epoch,
        now: Time,
        deliveries: Vec<(DeliveryId, Time)>,
    ) -> StoreFuture<'_, usize> {
        self.write(move |transaction| release_all(transaction, epoch, now, deliveries, 0))
    }

    fn release_crashed(
        &self,
        epoch: Epoch,
        now: Time,
        deliveries: Vec<(DeliveryId, Time)>,
    ) -> StoreFuture<'_, usize> {
        self.write(move |transaction| release_all(transaction, epoch, now, deliveries, 1))
    }

    fn owned_by(&self, epoch: Epoch, after: Option<DeliveryId>, limit: usize) -> StoreFuture<'_, Owned> {
        self.read(move |connection| owned_by(connection, epoch, after, limit))
    }

    fn mark_sending(&self, epoch: Epoch, delivery_id: DeliveryId) -> StoreFuture<'_, bool> {
        let (sender, reply) = oneshot::channel();
        let done = Box::new(move |result| drop(sender.send(result)));
        self.writer.mark_sending(epoch, delivery_id, done);
        Box::pin(await_result(reply))
    }
}

async fn await_result<T>(reply: oneshot::Receiver<Result<T, StoreError>>) -> Result<T, StoreError> {
    reply.await.unwrap_or_else(|_| Err(StoreError::Unavailable("the store is closed".into())))
}

/// Claims from each lane in turn. Returns `None` if the epoch has ended.
pub(super) fn claim_lanes(
    transaction: &Transaction<'_>,
    claiming: &Claiming,
) -> rusqlite::Result<Option<Vec<LaneClaim>>> {
    if !nodes::is_live(transaction, claiming.epoch)? {
        return Ok(None);
    }
    let mut bytes_left = claiming.max_bytes;
    let claim = |capacity: &LaneCapacity| {
        claim_lane(transaction, claiming.epoch, claiming.now, capacity, &mut bytes_left)
    };
    claiming.lanes.iter().map(claim).collect::<rusqlite::Result<_>>().map(Some)
}

/// Marks a lease as being sent. Returns `false` if the epoch does not have the lease.
pub(super) fn mark_sending(
    transaction: &Transaction<'_>,
    epoch: Epoch,
    delivery_id: DeliveryId,
) -> rusqlite::Result<bool> {
    let marked = transaction
        .prepare_cached("UPDATE leased SET sending = 1 WHERE delivery_id = ? AND epoch = ?")?
        .execute((Col(delivery_id), epoch.0))?;
    Ok(marked == 1)
}

fn claim_lane(
    transaction: &Transaction<'_>,
    epoch: Epoch,
    now: Time,
    capacity: &LaneCapacity,
    bytes_left: &mut usize,
) -> rusqlite::Result<LaneClaim> {
    let LaneKey { webhook_id, ref lane } = capacity.key;
    let code = lane.code();
    let nothing = LaneClaim { key: capacity.key.clone(), deliveries: Vec::new(), has_more_due: false };
    let assigned_epoch: Option<i64> = transaction
        .prepare_cached(SELECT_ASSIGNED_EPOCH)?
        .query_row([Col(webhook_id)], |row| row.get(0))
        .optional()?;
    if assigned_epoch.is_some_and(|assigned_epoch| assigned_epoch != epoch.0) {
        // Release the lane: the assigned node does not see lanes that another node has claimed.
        release_lane(transaction, &capacity.key, epoch)?;
        return Ok(nothing);
    }
    let blocked_until = lanes::blocked_until(transaction, webhook_id)?;
    if blocked_until > now {
        lanes::recompute_lane(transaction, webhook_id, &code, None, blocked_until)?;
        return Ok(nothing);
    }
    if lane.is_ordered() {
        let elsewhere: Option<bool> = transaction
            .prepare_cached(SELECT_LEASED_ORDERS)?
            .query_row((Col(webhook_id), &code, epoch.0), |row| row.get(0))?;
        match elsewhere {
            Some(true) => {
                lanes::recompute_lane(transaction, webhook_id, &code, None, now + ORDER_RETRY_DELAY)?;
                return Ok(nothing);
            }
            Some(false) => {
                // If the first delivery is due, the caller claims again once its own leases of the lane have ended.
                let more = lanes::first_due(transaction, webhook_id, &code)?.is_some_and(|due| due <= now);
                lanes::recompute_lane(
                    transaction,
                    webhook_id,
                    &code,
                    more.then_some(epoch),
                    Time::default(),
                )?;
                return Ok(LaneClaim { has_more_due: more, ..nothing });
            }
            None => {}
        }
    }
    let (deliveries, more) = take_due(transaction, now, capacity, bytes_left)?;
    if capacity.exclusive && assigned_epoch.is_none() && !deliveries.is_empty() {
        transaction
            .prepare_cached("INSERT INTO webhook_assignments (webhook_id, epoch) VALUES (?, ?)")?
            .execute((Col(webhook_id), epoch.0))?;
    }
    for claimed in &deliveries {
        lease(transaction, epoch, lane, claimed)?;
    }
    lanes::recompute_lane(transaction, webhook_id, &code, more.then_some(epoch), Time::default())?;
    Ok(LaneClaim { deliveries, has_more_due: more, ..nothing })
}

/// Moves a delivery from `waiting` to `leased`.
pub(super) fn lease(
    transaction: &Transaction<'_>,
    epoch: Epoch,
    lane: &Lane,
    claimed: &ClaimedDelivery,
) -> rusqlite::Result<()> {
    transaction.prepare_cached("DELETE FROM waiting WHERE delivery_id = ?")?.execute([Col(claimed.id)])?;
    let release_counts =
        ReleaseCounts { abnormal_releases: claimed.abnormal_releases, crash_count: claimed.crash_count };
    let position = LanePosition {
        delivery_id: claimed.id,
        webhook_id: claimed.webhook_id,
        lane: lane.clone(),
        seq: claimed.seq,
    };
    lanes::lease(transaction, &position, epoch, release_counts)
}

/// Reads the due deliveries of a lane from its head, up to the capacity, and whether there are more.
fn take_due(
    transaction: &Transaction<'_>,
    now: Time,
    capacity: &LaneCapacity,
    bytes_left: &mut usize,
) -> rusqlite::Result<(Vec<ClaimedDelivery>, bool)> {
    let mut taken = Vec::new();
    let mut due = transaction.prepare_cached(SELECT_DUE)?;
    // One more than the capacity, to know whether there are more.
    let limit = i64::try_from(capacity.max_deliveries).unwrap_or(i64::MAX).saturating_add(1);
    let mut rows = due.query((Col(capacity.key.webhook_id), capacity.key.lane.code(), limit))?;
    while let Some(row) = rows.next()? {
        if get::<Time>(row, 2)? > now {
            return Ok((taken, false));
        }
        if taken.len() >= capacity.max_deliveries || *bytes_left == 0 {
            return Ok((taken, true));
        }
        let claimed = read_claimed(row)?;
        *bytes_left = bytes_left.saturating_sub(claimed.event.memory_bytes());
        taken.push(claimed);
    }
    Ok((taken, false))
}

pub(super) fn read_claimed(row: &Row<'_>) -> rusqlite::Result<ClaimedDelivery> {
    let text = |column| -> rusqlite::Result<Option<Box<str>>> { row.get(column) };
    let event = Event {
        id: get(row, 8)?,
        tenant_id: get(row, 9)?,
        event_type: row.get(10)?,
        data: row.get::<_, Vec<u8>>(11)?.into(),
        timestamp: get(row, 12)?,
        idempotency_key: text(13)?,
        source: text(14)?,
        subject: text(15)?,
        priority: get(row, 16)?,
        // The publisher's metadata is not sent.
        metadata: None,
        trace: trace(row, 18)?,
        hops: row.get(19)?,
    };
    Ok(ClaimedDelivery {
        id: get(row, 0)?,
        webhook_id: get(row, 1)?,
        due: get(row, 2)?,
        abnormal_releases: row.get(3)?,
        crash_count: row.get(4)?,
        format: get(row, 5)?,
        attempt_count: row.get(6)?,
        created_at: get(row, 7)?,
        seq: row.get(17)?,
        event: Arc::new(event),
    })
}

/// Ends leases without outcomes; see [`release`]. Returns how many there were.
fn release_all(
    transaction: &Transaction<'_>,
    epoch: Epoch,
    now: Time,
    deliveries: Vec<(DeliveryId, Time)>,
    crashes: u32,
) -> rusqlite::Result<usize> {
    let mut released = 0;
    for delivery in deliveries {
        released += usize::from(release(transaction, epoch, now, delivery, crashes)?);
    }
    Ok(released)
}

/// Ends a lease without an outcome: the delivery waits again, or is cancelled if a cancellation was requested. Adds
/// `crashes` to its counts.
fn release(
    transaction: &Transaction<'_>,
    epoch: Epoch,
    now: Time,
    (delivery_id, due): (DeliveryId, Time),
    crashes: u32,
) -> rusqlite::Result<bool> {
    let lease = transaction
        .prepare_cached(
            "DELETE FROM leased WHERE delivery_id = ? AND epoch = ?
             RETURNING webhook_id, lane, seq, abnormal_releases, crash_count, cancel",
        )?
        .query_row((Col(delivery_id), epoch.0), |row| {
            let position =
                LanePosition { delivery_id, webhook_id: get(row, 0)?, lane: get(row, 1)?, seq: row.get(2)? };
            let release_counts = ReleaseCounts { abnormal_releases: row.get(3)?, crash_count: row.get(4)? };
            Ok((position, release_counts, row.get::<_, Option<String>>(5)?))
        })
        .optional()?;
    let Some((position, mut release_counts, cancel)) = lease else { return Ok(false) };
    release_counts.abnormal_releases += crashes;
    release_counts.crash_count += crashes;
    return_to_lane(transaction, &position, release_counts, cancel.as_deref(), due, now)?;
    release_lane(transaction, &LaneKey { webhook_id: position.webhook_id, lane: position.lane }, epoch)?;
    Ok(true)
}

/// Ends the claim of a lane, if the epoch has claimed it.
fn release_lane(transaction: &Transaction<'_>, key: &LaneKey, epoch: Epoch) -> rusqlite::Result<()> {
    transaction
        .prepare_cached(
            "UPDATE lanes SET claimed_by = NULL WHERE webhook_id = ? AND lane = ? AND claimed_by = ?",
        )?
        .execute((Col(key.webhook_id), key.lane.code(), epoch.0))?;
    Ok(())
}

/// Inserts a delivery whose lease has just ended into its lane, or cancels it if that was requested.
pub(super) fn return_to_lane(
    transaction: &Transaction<'_>,
    position: &LanePosition,
    release_counts: ReleaseCounts,
    cancel: Option<&str>,
    due: Time,
    now: Time,
) -> rusqlite::Result<()> {
    if let Some(reason) = cancel {
        redrive::end_cancelled(transaction, position.delivery_id, reason, now)?;
        return lanes::wake_next_in_order(transaction, position.webhook_id, &position.lane);
    }
    let created_at = transaction
        .prepare_cached("SELECT created_at FROM deliveries WHERE id = ?")?
        .query_row([Col(position.delivery_id)], |row| get(row, 0))?;
    lanes::insert_waiting(transaction, position, due, created_at, release_counts)
}

/// Returns what an epoch owns: a page of its leases and, on the first page, its lanes and assignments.
fn owned_by(
    connection: &Connection,
    epoch: Epoch,
    after: Option<DeliveryId>,
    limit: usize,
) -> rusqlite::Result<Owned> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let from = Col(after.unwrap_or(DeliveryId::from_bytes([0; 16])));
    let leases = connection
        .prepare_cached(SELECT_OWNED_LEASES)?
        .query_map((epoch.0, from, limit), |row| get(row, 0))?
        .collect::<rusqlite::Result<_>>()?;
    if after.is_some() {
        return Ok(Owned { leases, ..Owned::default() });
    }
    let lanes = connection
        .prepare_cached(SELECT_OWNED_LANES)?
        .query_map((epoch.0, limit), |row| Ok(LaneKey { webhook_id: get(row, 0)?, lane: get(row, 1)? }))?
        .collect::<rusqlite::Result<_>>()?;
    let assignments = connection
        .prepare_cached(SELECT_OWNED_ASSIGNMENTS)?
        .query_map((epoch.0, limit), |row| get(row, 0))?
        .collect::<rusqlite::Result<_>>()?;
    Ok(Owned { leases, lanes, assignments })
}
