//! Waiting and leased: the only two places where a delivery that is not over can be, and the moves
//! between them. Putting something into `waiting` always touches its lane, so that no wake-up is lost.

use std::{sync::Arc, time::Duration};

use redrive_core::{DeliveryId, Time, WebhookId, delivery::lane::Lane, event::Event};
use rusqlite::{Connection, OptionalExtension, Row, Transaction};
use tokio::sync::oneshot;

use super::{
    Sqlite,
    convert::{Col, get, trace},
    lanes::{self, Place, Rescued},
    nodes, redrive, tickets,
    writer::Claiming,
};
use crate::{
    Answer, Claim, Claimed, DueLanes, Epoch, LaneClaim, LaneKey, LaneRoom, Owned, StoreError, Wanted,
};

const DUE_LANES: &str = "SELECT webhook, lane, wake_at FROM lanes l
     WHERE pool = ?1 AND held_by IS NULL AND wake_at <= ?2
         AND NOT EXISTS (SELECT 1 FROM homes h WHERE h.webhook = l.webhook AND h.epoch <> ?4)
     ORDER BY wake_at LIMIT ?3";
const NEXT_WAKE: &str = "SELECT min(wake_at) FROM lanes WHERE pool = ?1 AND held_by IS NULL AND wake_at > ?2";
const DUE: &str =
    "SELECT w.delivery, w.webhook, w.due, w.rescues, w.deaths, d.format, d.attempt_count, d.created_at,
            e.id, e.tenant, e.event_type, e.data, e.timestamp, e.idempotency_key, e.source, e.subject,
            e.priority, w.seq, e.trace, e.hops
     FROM waiting w JOIN deliveries d ON d.id = w.delivery JOIN events e ON e.tenant = d.tenant AND e.id = d.event
     WHERE w.webhook = ?1 AND w.lane = ?2 ORDER BY w.place, w.seq LIMIT ?3";
/// Who alone sends to a webhook.
pub(super) const HOME: &str = "SELECT epoch FROM homes WHERE webhook = ?";
/// Null if nobody has one of an order, else whether somebody else than ?3 has.
const TAKEN: &str = "SELECT max(epoch <> ?3) FROM leased WHERE webhook = ?1 AND lane = ?2 AND lane < 'A'";

/// Nearly all leases of an embedded store belong to the one epoch that is alive.
const OWNED_LEASES: &str =
    "SELECT delivery FROM leased WHERE delivery > ?2 AND epoch = ?1 ORDER BY delivery LIMIT ?3";
const OWNED_LANES: &str = "SELECT webhook, lane FROM lanes WHERE held_by = ?1 LIMIT ?2";
const OWNED_ASSIGNMENTS: &str = "SELECT webhook FROM homes WHERE epoch = ?1 LIMIT ?2";

/// The statements whose cost must follow what is ready, never what is parked: a test explains their plans.
#[cfg(feature = "conformance")]
pub(super) const HOT: [&str; 12] = [
    DUE_LANES,
    NEXT_WAKE,
    DUE,
    HOME,
    TAKEN,
    lanes::HEAD,
    lanes::BLOCKED_UNTIL,
    lanes::WAKE,
    lanes::LOOK_AT,
    OWNED_LEASES,
    OWNED_LANES,
    OWNED_ASSIGNMENTS,
];

/// How long an order is left alone of which another node has some.
const LEFT_ALONE: Duration = Duration::from_millis(50);

impl Claim for Sqlite {
    fn due_lanes(&self, epoch: Epoch, pools: Vec<String>, now: Time, limit: usize) -> Answer<'_, DueLanes> {
        self.read(move |connection| {
            let mut due: Vec<(Time, LaneKey)> = Vec::new();
            let mut next_wake: Option<Time> = None;
            for pool in &pools {
                let rows = connection
                    .prepare_cached(DUE_LANES)?
                    .query_map((pool, Col(now), limit as i64, epoch.0), |row| {
                        Ok((get(row, 2)?, lanes::read_key(row, 0, 1)?))
                    })?
                    .collect::<rusqlite::Result<Vec<_>>>()?;
                due.extend(rows);
                let wake = connection
                    .prepare_cached(NEXT_WAKE)?
                    .query_row((pool, Col(now)), |row| row.get::<_, Option<Col<Time>>>(0))?;
                next_wake = next_wake.into_iter().chain(wake.map(|col| col.0)).min();
            }
            if pools.len() > 1 {
                due.sort_by_key(|(wake_at, _)| *wake_at);
                due.truncate(limit);
            }
            let lanes = due.into_iter().map(|(_, key)| key).collect();
            Ok(DueLanes { lanes, next_wake: next_wake.filter(|wake| *wake < Time::FOREVER) })
        })
    }

    fn claim(
        &self,
        epoch: Epoch,
        now: Time,
        lanes: Vec<LaneRoom>,
        max_bytes: usize,
    ) -> Answer<'_, Vec<LaneClaim>> {
        let (answer, answered) = oneshot::channel();
        let done = Box::new(move |result| drop(answer.send(result)));
        self.writer.claim(Claiming { epoch, now, lanes, max_bytes }, done);
        Box::pin(async { answer_of(answered).await?.ok_or(StoreError::Fenced) })
    }

    fn take(
        &self,
        epoch: Epoch,
        now: Time,
        by: Time,
        wanted: Vec<Wanted>,
        max_bytes: usize,
    ) -> Answer<'_, Vec<Claimed>> {
        let taken =
            self.write(move |transaction| tickets::take(transaction, epoch, now, by, &wanted, max_bytes));
        Box::pin(async { taken.await?.ok_or(StoreError::Fenced) })
    }

    fn release(&self, epoch: Epoch, now: Time, deliveries: Vec<(DeliveryId, Time)>) -> Answer<'_, usize> {
        self.write(move |transaction| {
            let mut released = 0;
            for (delivery, due) in deliveries {
                released += usize::from(release(transaction, epoch, now, delivery, due)?);
            }
            Ok(released)
        })
    }

    fn leave(&self, epoch: Epoch, webhooks: Vec<WebhookId>) -> Answer<'_, ()> {
        self.write(move |transaction| {
            let mut left = transaction.prepare_cached("DELETE FROM homes WHERE webhook = ? AND epoch = ?")?;
            let mut let_go = transaction
                .prepare_cached("UPDATE lanes SET held_by = NULL WHERE webhook = ? AND held_by = ?")?;
            for webhook in webhooks {
                left.execute((Col(webhook), epoch.0))?;
                let_go.execute((Col(webhook), epoch.0))?;
            }
            Ok(())
        })
    }

    fn owned_by(&self, epoch: Epoch, after: Option<DeliveryId>, limit: usize) -> Answer<'_, Owned> {
        self.read(move |connection| owned_by(connection, epoch, after, limit))
    }

    fn mark_sending(&self, epoch: Epoch, delivery: DeliveryId) -> Answer<'_, bool> {
        let (answer, answered) = oneshot::channel();
        let done = Box::new(move |result| drop(answer.send(result)));
        self.writer.mark(epoch, delivery, done);
        Box::pin(answer_of(answered))
    }
}

async fn answer_of<T>(answered: oneshot::Receiver<Result<T, StoreError>>) -> Result<T, StoreError> {
    answered.await.unwrap_or_else(|_| Err(StoreError::Unavailable("the store is closed".into())))
}

/// Claims from each lane in turn. None: the epoch is over.
pub(super) fn take(
    transaction: &Transaction<'_>,
    claiming: &Claiming,
) -> rusqlite::Result<Option<Vec<LaneClaim>>> {
    if !nodes::is_live(transaction, claiming.epoch)? {
        return Ok(None);
    }
    let mut bytes_left = claiming.max_bytes;
    let claim =
        |room: &LaneRoom| claim_lane(transaction, claiming.epoch, claiming.now, room, &mut bytes_left);
    claiming.lanes.iter().map(claim).collect::<rusqlite::Result<_>>().map(Some)
}

/// Marks a lease as being sent. False: it is not this epoch's.
pub(super) fn mark(
    transaction: &Transaction<'_>,
    epoch: Epoch,
    delivery: DeliveryId,
) -> rusqlite::Result<bool> {
    let marked = transaction
        .prepare_cached("UPDATE leased SET sending = 1 WHERE delivery = ? AND epoch = ?")?
        .execute((Col(delivery), epoch.0))?;
    Ok(marked == 1)
}

fn claim_lane(
    transaction: &Transaction<'_>,
    epoch: Epoch,
    now: Time,
    room: &LaneRoom,
    bytes_left: &mut usize,
) -> rusqlite::Result<LaneClaim> {
    let LaneKey { webhook, ref lane } = room.key;
    let code = lane.code();
    let nothing = LaneClaim { key: room.key.clone(), deliveries: Vec::new(), more: false };
    let home: Option<i64> =
        transaction.prepare_cached(HOME)?.query_row([Col(webhook)], |row| row.get(0)).optional()?;
    if home.is_some_and(|home| home != epoch.0) {
        // The home could not see a lane that is held by somebody else.
        unhold(transaction, &room.key, epoch)?;
        return Ok(nothing);
    }
    let blocked_until = lanes::blocked_until(transaction, webhook)?;
    if blocked_until > now {
        lanes::settle(transaction, webhook, &code, None, blocked_until)?;
        return Ok(nothing);
    }
    if lane.is_ordered() {
        let elsewhere: Option<bool> =
            transaction.prepare_cached(TAKEN)?.query_row((Col(webhook), &code, epoch.0), |row| row.get(0))?;
        match elsewhere {
            Some(true) => {
                lanes::settle(transaction, webhook, &code, None, now + LEFT_ALONE)?;
                return Ok(nothing);
            }
            Some(false) => {
                // The caller comes back for what is due once its own are over.
                let more = lanes::head(transaction, webhook, &code)?.is_some_and(|due| due <= now);
                lanes::settle(transaction, webhook, &code, more.then_some(epoch), Time::default())?;
                return Ok(LaneClaim { more, ..nothing });
            }
            None => {}
        }
    }
    let (deliveries, more) = take_due(transaction, now, room, bytes_left)?;
    if room.alone && home.is_none() && !deliveries.is_empty() {
        transaction
            .prepare_cached("INSERT INTO homes (webhook, epoch) VALUES (?, ?)")?
            .execute((Col(webhook), epoch.0))?;
    }
    for claimed in &deliveries {
        lease(transaction, epoch, lane, claimed)?;
    }
    lanes::settle(transaction, webhook, &code, more.then_some(epoch), Time::default())?;
    Ok(LaneClaim { deliveries, more, ..nothing })
}

/// Out of waiting, into leased.
pub(super) fn lease(
    transaction: &Transaction<'_>,
    epoch: Epoch,
    lane: &Lane,
    claimed: &Claimed,
) -> rusqlite::Result<()> {
    transaction.prepare_cached("DELETE FROM waiting WHERE delivery = ?")?.execute([Col(claimed.id)])?;
    let rescued = Rescued { rescues: claimed.rescues, deaths: claimed.deaths };
    let place =
        Place { delivery: claimed.id, webhook: claimed.webhook, lane: lane.clone(), seq: claimed.seq };
    lanes::lease(transaction, &place, epoch, rescued)
}

/// What is due in a lane from its first on, as much as there is room for, and whether there is more.
fn take_due(
    transaction: &Transaction<'_>,
    now: Time,
    room: &LaneRoom,
    bytes_left: &mut usize,
) -> rusqlite::Result<(Vec<Claimed>, bool)> {
    let mut taken = Vec::new();
    let mut due = transaction.prepare_cached(DUE)?;
    // One more than there is room for, to know whether there is more.
    let limit = i64::try_from(room.room).unwrap_or(i64::MAX).saturating_add(1);
    let mut rows = due.query((Col(room.key.webhook), room.key.lane.code(), limit))?;
    while let Some(row) = rows.next()? {
        if get::<Time>(row, 2)? > now {
            return Ok((taken, false));
        }
        if taken.len() >= room.room || *bytes_left == 0 {
            return Ok((taken, true));
        }
        let claimed = read_claimed(row)?;
        *bytes_left = bytes_left.saturating_sub(claimed.event.weight());
        taken.push(claimed);
    }
    Ok((taken, false))
}

pub(super) fn read_claimed(row: &Row<'_>) -> rusqlite::Result<Claimed> {
    let text = |column| -> rusqlite::Result<Option<Box<str>>> { row.get(column) };
    let event = Event {
        id: get(row, 8)?,
        tenant: get(row, 9)?,
        event_type: row.get(10)?,
        data: row.get::<_, Vec<u8>>(11)?.into(),
        timestamp: get(row, 12)?,
        idempotency_key: text(13)?,
        source: text(14)?,
        subject: text(15)?,
        priority: get(row, 16)?,
        // The publisher's own notes are not sent.
        metadata: None,
        trace: trace(row, 18)?,
        hops: row.get(19)?,
    };
    Ok(Claimed {
        id: get(row, 0)?,
        webhook: get(row, 1)?,
        due: get(row, 2)?,
        rescues: row.get(3)?,
        deaths: row.get(4)?,
        format: get(row, 5)?,
        attempt_count: row.get(6)?,
        created_at: get(row, 7)?,
        seq: row.get(17)?,
        event: Arc::new(event),
    })
}

/// Ends a lease without an outcome: the delivery waits again, or is cancelled if that was asked for.
fn release(
    transaction: &Transaction<'_>,
    epoch: Epoch,
    now: Time,
    delivery: DeliveryId,
    due: Time,
) -> rusqlite::Result<bool> {
    let lease = transaction
        .prepare_cached(
            "DELETE FROM leased WHERE delivery = ? AND epoch = ?
             RETURNING webhook, lane, seq, rescues, deaths, cancel",
        )?
        .query_row((Col(delivery), epoch.0), |row| {
            let place = Place { delivery, webhook: get(row, 0)?, lane: get(row, 1)?, seq: row.get(2)? };
            let rescued = Rescued { rescues: row.get(3)?, deaths: row.get(4)? };
            Ok((place, rescued, row.get::<_, Option<String>>(5)?))
        })
        .optional()?;
    let Some((place, rescued, cancel)) = lease else { return Ok(false) };
    give_back(transaction, &place, rescued, cancel.as_deref(), due, now)?;
    unhold(transaction, &LaneKey { webhook: place.webhook, lane: place.lane }, epoch)?;
    Ok(true)
}

/// Lets go of a lane that is held.
fn unhold(transaction: &Transaction<'_>, key: &LaneKey, epoch: Epoch) -> rusqlite::Result<()> {
    transaction
        .prepare_cached("UPDATE lanes SET held_by = NULL WHERE webhook = ? AND lane = ? AND held_by = ?")?
        .execute((Col(key.webhook), key.lane.code(), epoch.0))?;
    Ok(())
}

/// Puts a delivery whose lease has just ended where it belongs.
pub(super) fn give_back(
    transaction: &Transaction<'_>,
    place: &Place,
    rescued: Rescued,
    cancel: Option<&str>,
    due: Time,
    now: Time,
) -> rusqlite::Result<()> {
    if let Some(reason) = cancel {
        redrive::end_cancelled(transaction, place.delivery, reason, now)?;
        return lanes::let_next_go(transaction, place.webhook, &place.lane);
    }
    let created_at = transaction
        .prepare_cached("SELECT created_at FROM deliveries WHERE id = ?")?
        .query_row([Col(place.delivery)], |row| get(row, 0))?;
    lanes::wait(transaction, place, due, created_at, rescued)
}

/// What an epoch owns, by pages of leases.
fn owned_by(
    connection: &Connection,
    epoch: Epoch,
    after: Option<DeliveryId>,
    limit: usize,
) -> rusqlite::Result<Owned> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let from = Col(after.unwrap_or(DeliveryId::from_bytes([0; 16])));
    let leases = connection
        .prepare_cached(OWNED_LEASES)?
        .query_map((epoch.0, from, limit), |row| get(row, 0))?
        .collect::<rusqlite::Result<_>>()?;
    if after.is_some() {
        return Ok(Owned { leases, ..Owned::default() });
    }
    let lanes = connection
        .prepare_cached(OWNED_LANES)?
        .query_map((epoch.0, limit), |row| Ok(LaneKey { webhook: get(row, 0)?, lane: get(row, 1)? }))?
        .collect::<rusqlite::Result<_>>()?;
    let assignments = connection
        .prepare_cached(OWNED_ASSIGNMENTS)?
        .query_map((epoch.0, limit), |row| get(row, 0))?
        .collect::<rusqlite::Result<_>>()?;
    Ok(Owned { leases, lanes, assignments })
}
