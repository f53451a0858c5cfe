//! Forgetting what is old. Rows go in small transactions that lock nothing but themselves; months that nobody needs
//! are dropped, see `partitions`.
//!
//! A new round holds its event (`hold_events`), and an event that goes is locked first: so either the round is
//! there and keeps its event, or the event is gone and there is no round.

use std::collections::HashMap;

use redrive_core::{
    DeliveryId, DeliveryStatus, EventId, TenantId, Time, WebhookId, delivery::lane::Priority, id::first_at,
    tenancy::TenantRules,
};

use super::{
    Postgres, archive_outbox,
    convert::{Col, get, plain},
    history,
    session::{Failure, Session, Tx},
    webhooks::from_json,
};
use crate::{Answer, Dropped, Left, Old, Pruned, Retain, archive::Packing};

/// The tenant's oldest events. Those that somebody is making a round of are passed by.
const OLD_EVENTS: &str = "SELECT id FROM events WHERE tenant = $1 AND id > $2 AND id < $3
     ORDER BY id LIMIT $4 FOR UPDATE SKIP LOCKED";
/// How many deliveries each of these events has, as far as that matters, and whether one is not over.
const STANDING: &str = "SELECT e.id,
         (SELECT count(*) FROM (SELECT 1 FROM deliveries d WHERE d.event = e.id AND d.id >= $2 AND d.id < $3
          LIMIT $5) d),
         EXISTS (SELECT 1 FROM deliveries d WHERE d.event = e.id AND d.id >= $2 AND d.id < $3 AND d.status = $4)
     FROM unnest($1::uuid[]) AS e(id)";
const OF_EVENTS: &str = "SELECT d.id FROM unnest($1::uuid[]) AS e(id)
     CROSS JOIN LATERAL (SELECT d.id FROM deliveries d WHERE d.event = e.id AND d.id >= $2 AND d.id < $3
         LIMIT $4) d LIMIT $4";
/// The tenant's dead letters by the times of their events, and whether each died long enough ago.
const OLD_DEAD: &str = "SELECT x.delivery, d.ended_at < $5
     FROM dead x CROSS JOIN LATERAL (SELECT * FROM deliveries d WHERE d.id = x.delivery LIMIT 1) d
     WHERE x.tenant = $1 AND x.delivery > $2 AND x.delivery < $3 ORDER BY x.delivery LIMIT $4";
/// Those of them that nobody sends again. In the order in which a retry locks: the delivery, then its place among
/// the dead.
const STILL_DEAD: &str = "SELECT id FROM deliveries WHERE id = ANY($1::uuid[]) AND id >= $2 AND id < $3
     AND redriven_as IS NULL FOR UPDATE SKIP LOCKED";
const FORGET_ATTEMPTS: &str =
    "DELETE FROM attempts WHERE delivery = ANY($1::uuid[]) AND delivery >= $2 AND delivery < $3";
const FORGET_DELIVERIES: &str = "DELETE FROM deliveries WHERE id = ANY($1::uuid[]) AND id >= $2 AND id < $3";
const FORGET_EVENTS: &str =
    "DELETE FROM events WHERE tenant = $1 AND id = ANY($2::uuid[]) AND id >= $3 AND id < $4";
const FORGET_DEAD: &str = "DELETE FROM dead WHERE delivery = ANY($1::uuid[])";
const FORGET_UNDELIVERED: &str = "DELETE FROM undelivered WHERE delivery = ANY($1::uuid[])";
/// Each webhook is looked up after the one before it: there may be very many periods to one.
const WITH_PERIODS: &str = "WITH RECURSIVE found(webhook, n) AS (
         (SELECT webhook, 1 FROM circuit_periods WHERE webhook > $1 ORDER BY webhook LIMIT 1)
         UNION ALL
         SELECT (SELECT p.webhook FROM circuit_periods p WHERE p.webhook > f.webhook ORDER BY p.webhook LIMIT 1),
                f.n + 1
         FROM found f WHERE f.webhook IS NOT NULL AND f.n < $2)
     SELECT f.webhook, (SELECT w.tenant FROM webhooks w WHERE w.id = f.webhook)
     FROM found f WHERE f.webhook IS NOT NULL";
const FORGET_PERIODS: &str = "DELETE FROM circuit_periods WHERE ctid = ANY(ARRAY(
         SELECT ctid FROM circuit_periods WHERE webhook = $1 AND opened_at < $2 AND ended_at < $2
         ORDER BY opened_at LIMIT $3 FOR UPDATE SKIP LOCKED))";
const HOLD: &str = "SELECT id, priority, erased_at IS NOT NULL FROM events
     WHERE tenant = $1 AND id = ANY($2::uuid[]) FOR KEY SHARE";

/// The statements whose cost must follow what they answer or change: a test explains their plans.
#[cfg(feature = "conformance")]
pub(super) const PLANNED: [(&str, &str); 13] = [
    ("hold events", HOLD),
    ("old events", OLD_EVENTS),
    ("how old events stand", STANDING),
    ("deliveries of old events", OF_EVENTS),
    ("old dead letters", OLD_DEAD),
    ("still dead", STILL_DEAD),
    ("forget attempts", FORGET_ATTEMPTS),
    ("forget deliveries", FORGET_DELIVERIES),
    ("forget events", FORGET_EVENTS),
    ("forget the dead", FORGET_DEAD),
    ("forget the undelivered", FORGET_UNDELIVERED),
    ("webhooks with periods", WITH_PERIODS),
    ("forget periods", FORGET_PERIODS),
];

impl Retain for Postgres {
    fn retained(&self, after: Option<TenantId>, limit: usize) -> Answer<'_, Vec<(TenantId, TenantRules)>> {
        Box::pin(async move {
            let after = after.as_ref().map_or("", TenantId::as_str);
            let all = "SELECT id, rules FROM tenants WHERE id > $1 ORDER BY id LIMIT $2";
            self.read(|session| async move {
                let rows = session.query(all, &[&after, &(limit as i64)]).await?;
                rows.iter().map(|row| Ok((get(row, 0)?, from_json(row, 1)?))).collect()
            })
            .await
        })
    }

    fn oldest_event(&self, tenant: TenantId) -> Answer<'_, Option<Time>> {
        Box::pin(async move {
            let oldest = "SELECT id FROM events WHERE tenant = $1 ORDER BY id LIMIT 1";
            let tenant = tenant.as_str();
            self.read(|session| async move {
                let row = session.query_opt(oldest, &[&tenant]).await?;
                Ok(row.map(|row| get::<EventId>(&row, 0)).transpose()?.map(|id| id.time()))
            })
            .await
        })
    }

    fn prune_events(&self, old: Old<EventId>) -> Answer<'_, Pruned<EventId>> {
        Box::pin(async move { self.write(|tx| prune_events(tx, &old)).await })
    }

    fn prune_dead(&self, old: Old<DeliveryId>) -> Answer<'_, Pruned<DeliveryId>> {
        Box::pin(async move { self.write(|tx| prune_dead(tx, &old)).await })
    }

    fn with_periods(&self, after: Option<WebhookId>, limit: usize) -> Answer<'_, Vec<(WebhookId, TenantId)>> {
        Box::pin(async move {
            let after = Col(after.unwrap_or(WebhookId::from_bytes([0; 16])));
            self.read(|session| async move {
                let rows = session.query(WITH_PERIODS, &[&after, &(limit as i32)]).await?;
                rows.iter().map(|row| Ok((get(row, 0)?, get(row, 1)?))).collect()
            })
            .await
        })
    }

    fn forget_periods(&self, old: Vec<(WebhookId, Time)>, limit: usize) -> Answer<'_, usize> {
        Box::pin(async move {
            let old = &old;
            self.write(|tx| async move {
                let mut forgotten = 0;
                for (webhook, before) in old {
                    let left = (limit - forgotten) as i64;
                    let values: [&(dyn tokio_postgres::types::ToSql + Sync); 3] =
                        [&Col(*webhook), &Col(*before), &left];
                    forgotten += tx.execute(FORGET_PERIODS, &values).await? as usize;
                    if forgotten >= limit {
                        break;
                    }
                }
                Ok(forgotten)
            })
            .await
        })
    }

    fn keeps_months(&self) -> bool {
        true
    }

    fn drop_month(&self, before: Time, only_empty: bool, rows: usize) -> Answer<'_, Dropped> {
        Box::pin(async move {
            let shared = &self.shared;
            let dropped = shared.partitions.drop_one(&shared.writers, before, only_empty, rows).await;
            dropped.map_err(crate::StoreError::from)
        })
    }

    fn give_space_back(&self, _bytes: usize) -> Answer<'_, usize> {
        // PostgreSQL's own vacuum sees to it.
        Box::pin(async { Ok(0) })
    }
}

/// What a new round needs to know of its event.
pub(super) struct Held {
    pub(super) priority: Priority,
    pub(super) erased: bool,
}

/// Keeps events from being forgotten until the end of the transaction, as far as they are there.
pub(super) async fn hold_events(
    tx: &Session,
    tenant: &TenantId,
    events: impl IntoIterator<Item = EventId>,
) -> Result<HashMap<EventId, Held>, Failure> {
    let events: Vec<_> = events.into_iter().map(Col).collect();
    let rows = tx.query(HOLD, &[&tenant.as_str(), &events]).await?;
    let held =
        rows.iter().map(|row| Ok((get(row, 0)?, Held { priority: get(row, 1)?, erased: plain(row, 2)? })));
    held.collect()
}

/// The ids that may belong to events of these times. A delivery's id takes its event's time.
struct Range(Col<[u8; 16]>, Col<[u8; 16]>);

impl Range {
    fn of(first: Time, last: Time) -> Self {
        Self(Col(first_at(first)), Col(first_at(Time::from_millis(last.millis() + 1))))
    }
}

async fn prune_events(tx: Tx, old: &Old<EventId>) -> Result<Pruned<EventId>, Failure> {
    let most = old.rows.max(1);
    let after = old.after.unwrap_or(EventId::from_bytes([0; 16]));
    let values: super::session::Values<'_> =
        &[&old.tenant.as_str(), &Col(after), &Col(first_at(old.before)), &(most as i64)];
    let rows = tx.query(OLD_EVENTS, values).await?;
    let events = rows.iter().map(|row| get(row, 0)).collect::<Result<Vec<EventId>, _>>()?;
    let (Some(first), Some(last)) = (events.first(), events.last()) else {
        return Ok(Pruned { left: Left::default(), last: old.after, finished: true });
    };
    let range = Range::of(first.time(), last.time());
    // Another look, now that no round of them can be made any more.
    let standing = standing(&tx, &events, &range, most).await?;
    let (mut whole, mut part, mut budget) = (Vec::new(), None, most);
    let mut done = old.after;
    for event in &events {
        let Some(&(deliveries, pending)) = standing.get(event) else { continue };
        if !pending {
            if budget == 0 {
                break;
            }
            if deliveries > budget {
                part = Some(*event);
                break;
            }
            budget -= deliveries.max(1).min(budget);
            whole.push(*event);
        }
        done = Some(*event);
    }
    let mut packing = old.archive.then(Packing::default);
    if let Some(packing) = &mut packing
        && let Some(more) = pack_events(&tx, old, &mut whole, &range, packing).await?
    {
        (done, part) = (more, None);
    }
    let mut left = forget_events(&tx, old, &whole, &range, most).await?;
    // One with more deliveries than fit goes in several steps, and last of all itself.
    if let Some(event) = part
        && whole.is_empty()
    {
        let some = deliveries_of(&tx, &[event], &range, most).await?;
        if let Some(packing) = &mut packing {
            pack_deliveries(&tx, &some, packing).await?;
        }
        forget_deliveries(&tx, &some, &range, &mut left).await?;
    }
    if let Some(packing) = packing {
        archive_outbox::keep(&tx, packing).await?;
    }
    let finished = done == events.last().copied() && events.len() < most;
    Ok(Pruned { left, last: done, finished })
}

/// Gathers events with all that belongs to them, until it is enough for one step: what is left is taken out of
/// `events`, and the place to go on from is given.
async fn pack_events(
    tx: &Session,
    old: &Old<EventId>,
    events: &mut Vec<EventId>,
    range: &Range,
    packing: &mut Packing,
) -> Result<Option<Option<EventId>>, Failure> {
    for (index, event) in events.iter().enumerate() {
        if packing.is_full() {
            let last = index.checked_sub(1).map_or(old.after, |last| Some(events[last]));
            events.truncate(index);
            return Ok(Some(last));
        }
        let deliveries = deliveries_of(tx, &[*event], range, usize::MAX >> 1).await?;
        pack_deliveries(tx, &deliveries, packing).await?;
        if let Some(stored) = history::find_event(tx, &old.tenant, *event).await? {
            packing.event(&stored)?;
        }
    }
    Ok(None)
}

async fn pack_deliveries(
    tx: &Session,
    deliveries: &[Col<DeliveryId>],
    packing: &mut Packing,
) -> Result<(), Failure> {
    for delivery in deliveries {
        if let Some((stored, attempts)) = history::find_history(tx, delivery.0).await? {
            packing.delivery(&stored, &attempts)?;
        }
    }
    Ok(())
}

async fn standing(
    tx: &Session,
    events: &[EventId],
    range: &Range,
    most: usize,
) -> Result<HashMap<EventId, (usize, bool)>, Failure> {
    let ids: Vec<_> = events.iter().map(|event| Col(*event)).collect();
    let pending = Col(DeliveryStatus::Pending);
    let rows = tx.query(STANDING, &[&ids, &range.0, &range.1, &pending, &(most as i64 + 1)]).await?;
    let read = |row| Ok((get(row, 0)?, (plain::<i64>(row, 1)? as usize, plain(row, 2)?)));
    rows.iter().map(read).collect()
}

async fn deliveries_of(
    tx: &Session,
    events: &[EventId],
    range: &Range,
    most: usize,
) -> Result<Vec<Col<DeliveryId>>, Failure> {
    let ids: Vec<_> = events.iter().map(|event| Col(*event)).collect();
    let rows = tx.query(OF_EVENTS, &[&ids, &range.0, &range.1, &(most as i64)]).await?;
    rows.iter().map(|row| get(row, 0).map(Col)).collect()
}

async fn forget_events(
    tx: &Session,
    old: &Old<EventId>,
    events: &[EventId],
    range: &Range,
    most: usize,
) -> Result<Left, Failure> {
    let mut left = Left::default();
    if events.is_empty() {
        return Ok(left);
    }
    let deliveries = deliveries_of(tx, events, range, most).await?;
    forget_deliveries(tx, &deliveries, range, &mut left).await?;
    let ids: Vec<_> = events.iter().map(|event| Col(*event)).collect();
    let forgotten = tx.execute(FORGET_EVENTS, &[&old.tenant.as_str(), &ids, &range.0, &range.1]).await?;
    left.events += forgotten as usize;
    Ok(left)
}

async fn forget_deliveries(
    tx: &Session,
    deliveries: &[Col<DeliveryId>],
    range: &Range,
    left: &mut Left,
) -> Result<(), Failure> {
    if deliveries.is_empty() {
        return Ok(());
    }
    left.attempts += tx.execute(FORGET_ATTEMPTS, &[&deliveries, &range.0, &range.1]).await? as usize;
    // In the order in which a retry and a purge lock.
    left.deliveries += tx.execute(FORGET_DELIVERIES, &[&deliveries, &range.0, &range.1]).await? as usize;
    tx.execute(FORGET_DEAD, &[&deliveries]).await?;
    tx.execute(FORGET_UNDELIVERED, &[&deliveries]).await?;
    Ok(())
}

async fn prune_dead(tx: Tx, old: &Old<DeliveryId>) -> Result<Pruned<DeliveryId>, Failure> {
    let most = old.rows.max(1);
    let after = Col(old.after.unwrap_or(DeliveryId::from_bytes([0; 16])));
    // Nothing dies before its event.
    let before = Col(first_at(old.before));
    let rows = tx
        .query(OLD_DEAD, &[&old.tenant.as_str(), &after, &before, &(most as i64), &Col(old.before)])
        .await?;
    let mut ids = Vec::new();
    let (mut first, mut last) = (None, old.after);
    for row in &rows {
        let delivery: DeliveryId = get(row, 0)?;
        first.get_or_insert(delivery);
        last = Some(delivery);
        if plain(row, 1)? {
            ids.push(Col(delivery));
        }
    }
    let mut left = Left::default();
    if let (Some(first), Some(last), false) = (first, last, ids.is_empty()) {
        let range = Range::of(first.time(), last.time());
        let rows = tx.query(STILL_DEAD, &[&ids, &range.0, &range.1]).await?;
        let still = rows.iter().map(|row| get(row, 0).map(Col)).collect::<Result<Vec<_>, _>>()?;
        if old.archive {
            let mut packing = Packing::default();
            pack_deliveries(&tx, &still, &mut packing).await?;
            archive_outbox::keep(&tx, packing).await?;
        }
        forget_deliveries(&tx, &still, &range, &mut left).await?;
    }
    Ok(Pruned { left, last, finished: rows.len() < most })
}
