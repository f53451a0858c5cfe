//! Waiting and leased: the only two places where a delivery that is not over can be, and the moves
//! between them. Putting something into `waiting` always touches its lane, so that no wake-up is lost.

use std::sync::Arc;

use redrive_core::{DeliveryId, Time, WebhookId, event::Event};
use rusqlite::{OptionalExtension, Row, Transaction};
use tokio::sync::oneshot;

use super::{
    Sqlite,
    convert::{Col, get},
    nodes, redrive,
};
use crate::{Answer, Claim, Claimed, DueLanes, Epoch, LaneClaim, LaneRoom, StoreError};

const DUE_LANES: &str =
    "SELECT webhook FROM lanes WHERE held_by IS NULL AND wake_at <= ?1 ORDER BY wake_at LIMIT ?2";
const NEXT_WAKE: &str = "SELECT min(wake_at) FROM lanes WHERE held_by IS NULL AND wake_at > ?1";
const NEXT_DUE: &str = "SELECT min(due) FROM waiting WHERE webhook = ?";
const DUE: &str =
    "SELECT w.delivery, w.webhook, w.due, w.rescues, w.deaths, d.format, d.attempt_count, d.created_at,
            e.id, e.tenant, e.event_type, e.data, e.timestamp, e.idempotency_key, e.source, e.subject
     FROM waiting w JOIN deliveries d ON d.id = w.delivery JOIN events e ON e.tenant = d.tenant AND e.id = d.event
     WHERE w.webhook = ?1 AND w.due <= ?2 ORDER BY w.due, w.delivery LIMIT ?3";

/// The statements whose cost must follow what is ready, never what is parked: a test explains their plans.
#[cfg(feature = "conformance")]
pub(super) const HOT: [&str; 4] = [DUE_LANES, NEXT_WAKE, NEXT_DUE, DUE];

/// What a delivery has been through on nodes that died.
#[derive(Clone, Copy, Default)]
pub(super) struct Rescued {
    pub(super) rescues: u32,
    pub(super) deaths: u32,
}

/// Leases a delivery to a node.
pub(super) fn lease(
    transaction: &Transaction<'_>,
    delivery: DeliveryId,
    webhook: WebhookId,
    epoch: Epoch,
    rescued: Rescued,
) -> rusqlite::Result<()> {
    transaction
        .prepare_cached(
            "INSERT INTO leased (delivery, epoch, webhook, rescues, deaths) VALUES (?, ?, ?, ?, ?)",
        )?
        .execute((Col(delivery), epoch.0, Col(webhook), rescued.rescues, rescued.deaths))?;
    Ok(())
}

/// Makes a delivery wait, and its lane look at it in time.
pub(super) fn wait(
    transaction: &Transaction<'_>,
    delivery: DeliveryId,
    webhook: WebhookId,
    due: Time,
    rescued: Rescued,
) -> rusqlite::Result<()> {
    transaction.prepare_cached("INSERT INTO waiting VALUES (?, ?, ?, ?, ?)")?.execute((
        Col(delivery),
        Col(webhook),
        Col(due),
        rescued.rescues,
        rescued.deaths,
    ))?;
    wake(transaction, webhook, due)
}

/// Makes a lane look for work no later than `at`.
pub(super) fn wake(transaction: &Transaction<'_>, webhook: WebhookId, at: Time) -> rusqlite::Result<()> {
    transaction
        .prepare_cached(
            "INSERT INTO lanes (webhook, wake_at) VALUES (?1, ?2)
             ON CONFLICT (webhook) DO UPDATE SET wake_at = ?2 WHERE wake_at > ?2",
        )?
        .execute((Col(webhook), Col(at)))?;
    Ok(())
}

/// Sets a lane's next look by what is left in it; a lane with nothing left goes.
pub(super) fn settle(
    transaction: &Transaction<'_>,
    webhook: WebhookId,
    holder: Option<Epoch>,
) -> rusqlite::Result<()> {
    let next: Option<i64> =
        transaction.prepare_cached(NEXT_DUE)?.query_row([Col(webhook)], |row| row.get(0))?;
    match next {
        Some(next) => transaction
            .prepare_cached("UPDATE lanes SET wake_at = ?2, held_by = ?3 WHERE webhook = ?1")?
            .execute((Col(webhook), next, holder.map(|epoch| epoch.0)))?,
        None => transaction.prepare_cached("DELETE FROM lanes WHERE webhook = ?")?.execute([Col(webhook)])?,
    };
    Ok(())
}

impl Claim for Sqlite {
    fn due_lanes(&self, now: Time, limit: usize) -> Answer<'_, DueLanes> {
        self.read(move |connection| {
            let lanes = connection
                .prepare_cached(DUE_LANES)?
                .query_map((Col(now), limit as i64), |row| get(row, 0))?
                .collect::<rusqlite::Result<_>>()?;
            let next_wake = connection
                .prepare_cached(NEXT_WAKE)?
                .query_row([Col(now)], |row| row.get::<_, Option<Col<Time>>>(0))?;
            Ok(DueLanes { lanes, next_wake: next_wake.map(|col| col.0) })
        })
    }

    fn claim(
        &self,
        epoch: Epoch,
        now: Time,
        lanes: Vec<LaneRoom>,
        max_bytes: usize,
    ) -> Answer<'_, Vec<LaneClaim>> {
        let claims = self.write(move |transaction| {
            if !nodes::is_live(transaction, epoch)? {
                return Ok(None);
            }
            let mut bytes_left = max_bytes;
            let claim = |lane: &LaneRoom| claim_lane(transaction, epoch, now, *lane, &mut bytes_left);
            lanes.iter().map(claim).collect::<rusqlite::Result<_>>().map(Some)
        });
        Box::pin(async { claims.await?.ok_or(StoreError::Fenced) })
    }

    fn release(&self, epoch: Epoch, now: Time, deliveries: Vec<DeliveryId>) -> Answer<'_, usize> {
        self.write(move |transaction| {
            let mut released = 0;
            for delivery in deliveries {
                released += usize::from(release(transaction, epoch, now, delivery)?);
            }
            Ok(released)
        })
    }

    fn mark_sending(&self, epoch: Epoch, delivery: DeliveryId) -> Answer<'_, bool> {
        let (answer, answered) = oneshot::channel();
        let done = Box::new(move |result| drop(answer.send(result)));
        self.writer.mark(epoch, delivery, done);
        Box::pin(async {
            answered.await.unwrap_or_else(|_| Err(StoreError::Unavailable("the store is closed".into())))
        })
    }
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
    lane: LaneRoom,
    bytes_left: &mut usize,
) -> rusqlite::Result<LaneClaim> {
    let mut claimed = Vec::new();
    let mut due = transaction.prepare_cached(DUE)?;
    // One more than there is room for, to know whether there is more.
    let limit = i64::try_from(lane.room).unwrap_or(i64::MAX).saturating_add(1);
    let mut rows = due.query((Col(lane.webhook), Col(now), limit))?;
    let mut more = false;
    while let Some(row) = rows.next()? {
        if claimed.len() >= lane.room || *bytes_left == 0 {
            more = true;
            break;
        }
        let delivery = read_claimed(row)?;
        *bytes_left = bytes_left.saturating_sub(delivery.event.weight());
        claimed.push(delivery);
    }
    drop(rows);
    for delivery in &claimed {
        transaction.prepare_cached("DELETE FROM waiting WHERE delivery = ?")?.execute([Col(delivery.id)])?;
        let rescued = Rescued { rescues: delivery.rescues, deaths: delivery.deaths };
        lease(transaction, delivery.id, delivery.webhook, epoch, rescued)?;
    }
    settle(transaction, lane.webhook, more.then_some(epoch))?;
    Ok(LaneClaim { webhook: lane.webhook, deliveries: claimed, more })
}

fn read_claimed(row: &Row<'_>) -> rusqlite::Result<Claimed> {
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
        // The publisher's own notes are not sent.
        metadata: None,
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
        event: Arc::new(event),
    })
}

/// Ends a lease without an outcome: the delivery waits again, or is cancelled if that was asked for.
fn release(
    transaction: &Transaction<'_>,
    epoch: Epoch,
    now: Time,
    delivery: DeliveryId,
) -> rusqlite::Result<bool> {
    let lease = transaction
        .prepare_cached(
            "DELETE FROM leased WHERE delivery = ? AND epoch = ? RETURNING webhook, rescues, deaths, cancel",
        )?
        .query_row((Col(delivery), epoch.0), |row| {
            let rescued = Rescued { rescues: row.get(1)?, deaths: row.get(2)? };
            Ok((get(row, 0)?, rescued, row.get::<_, Option<String>>(3)?))
        })
        .optional()?;
    let Some((webhook, rescued, cancel)) = lease else { return Ok(false) };
    give_back(transaction, delivery, webhook, rescued, cancel.as_deref(), now)?;
    Ok(true)
}

/// Puts a delivery whose lease has just ended where it belongs.
pub(super) fn give_back(
    transaction: &Transaction<'_>,
    delivery: DeliveryId,
    webhook: WebhookId,
    rescued: Rescued,
    cancel: Option<&str>,
    now: Time,
) -> rusqlite::Result<()> {
    match cancel {
        Some(reason) => redrive::end_cancelled(transaction, delivery, reason, now),
        None => wait(transaction, delivery, webhook, now, rescued),
    }
}
