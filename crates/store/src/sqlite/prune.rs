//! Forgetting what is old. What to forget is looked up by a reader; the writer takes it away in short transactions,
//! and looks once more whether it is over.

use redrive_core::{DeliveryId, DeliveryStatus, EventId, TenantId, Time, WebhookId, id, tenant::TenantRules};
use rusqlite::{Connection, OptionalExtension, Transaction};

use super::{
    Sqlite,
    convert::{Col, get},
    webhooks::from_json,
};
use crate::{Answer, Dropped, Left, Old, Pruned, Retain};

/// The tenant's oldest events, and whether each has a delivery that is not over.
const OLD_EVENTS: &str =
    "SELECT e.id, EXISTS (SELECT 1 FROM deliveries d WHERE d.event = e.id AND d.status = ?5)
     FROM events e WHERE e.tenant = ?1 AND e.id > ?2 AND e.id < ?3 ORDER BY e.id LIMIT ?4";
/// The tenant's dead letters by the times of their events, and whether each died long enough ago.
const OLD_DEAD: &str = "SELECT x.delivery, d.ended_at < ?5
     FROM dead x CROSS JOIN deliveries d ON d.id = x.delivery
     WHERE x.tenant = ?1 AND x.delivery > ?2 AND x.delivery < ?3 ORDER BY x.delivery LIMIT ?4";
const OF_EVENT: &str = "SELECT id FROM deliveries WHERE event = ? LIMIT ?";
const IS_PENDING: &str = "SELECT 1 FROM deliveries WHERE event = ? AND status = ?";
const WITH_PERIODS: &str = "SELECT p.webhook, (SELECT w.tenant FROM webhooks w WHERE w.id = p.webhook)
     FROM circuit_periods p WHERE p.webhook > ? GROUP BY p.webhook ORDER BY p.webhook LIMIT ?";
const FORGET_PERIODS: &str = "DELETE FROM circuit_periods WHERE (webhook, opened_at) IN
         (SELECT webhook, opened_at FROM circuit_periods WHERE webhook = ?1 AND opened_at < ?2 AND ended_at < ?2
          ORDER BY opened_at LIMIT ?3)";

/// The statements whose cost must follow what they answer or change: a test explains their plans.
#[cfg(feature = "conformance")]
pub(super) const BOUNDED: [&str; 6] =
    [OLD_EVENTS, OLD_DEAD, OF_EVENT, IS_PENDING, WITH_PERIODS, FORGET_PERIODS];

/// So much of the file is kept for what comes next: growing it again costs more than it saves.
const SPARE: i64 = 10;

impl Retain for Sqlite {
    fn retained(&self, after: Option<TenantId>, limit: usize) -> Answer<'_, Vec<(TenantId, TenantRules)>> {
        self.read(move |connection| {
            let after = after.as_ref().map_or("", TenantId::as_str);
            connection
                .prepare_cached("SELECT id, rules FROM tenants WHERE id > ? ORDER BY id LIMIT ?")?
                .query_map((after, limit as i64), |row| Ok((get(row, 0)?, from_json(row, 1)?)))?
                .collect()
        })
    }

    fn oldest_event(&self, tenant: TenantId) -> Answer<'_, Option<Time>> {
        self.read(move |connection| {
            let oldest = "SELECT id FROM events WHERE tenant = ? ORDER BY id LIMIT 1";
            let id = connection.prepare_cached(oldest)?.query_row([tenant.as_str()], |row| get(row, 0));
            Ok(id.optional()?.map(|id: EventId| id.time()))
        })
    }

    fn prune_events(&self, old: Old<EventId>) -> Answer<'_, Pruned<EventId>> {
        Box::pin(async move {
            let asked = old.clone();
            let found = self.read(move |connection| old_events(connection, &asked)).await?;
            if found.going.is_empty() {
                return Ok(found.end(Left::default()));
            }
            self.write(move |transaction| prune_events(transaction, &found, &old)).await
        })
    }

    fn prune_dead(&self, old: Old<DeliveryId>) -> Answer<'_, Pruned<DeliveryId>> {
        Box::pin(async move {
            let asked = old.clone();
            let found = self.read(move |connection| old_dead(connection, &asked)).await?;
            if found.going.is_empty() {
                return Ok(found.end(Left::default()));
            }
            self.write(move |transaction| prune_dead(transaction, &found, &old)).await
        })
    }

    fn with_periods(&self, after: Option<WebhookId>, limit: usize) -> Answer<'_, Vec<(WebhookId, TenantId)>> {
        self.read(move |connection| {
            let after = Col(after.unwrap_or(WebhookId::from_bytes([0; 16])));
            connection
                .prepare_cached(WITH_PERIODS)?
                .query_map((after, limit as i64), |row| Ok((get(row, 0)?, get(row, 1)?)))?
                .collect()
        })
    }

    fn forget_periods(&self, old: Vec<(WebhookId, Time)>, limit: usize) -> Answer<'_, usize> {
        self.write(move |transaction| {
            let mut forgotten = 0;
            let mut forget = transaction.prepare_cached(FORGET_PERIODS)?;
            for (webhook, before) in old {
                forgotten += forget.execute((Col(webhook), Col(before), (limit - forgotten) as i64))?;
                if forgotten >= limit {
                    break;
                }
            }
            Ok(forgotten)
        })
    }

    fn keeps_months(&self) -> bool {
        false
    }

    fn drop_month(&self, _before: Time, _only_empty: bool, _rows: usize) -> Answer<'_, Dropped> {
        Box::pin(async { Ok(Dropped::None) })
    }

    fn give_space_back(&self, bytes: usize) -> Answer<'_, usize> {
        Box::pin(async move {
            let number = |connection: &Connection, pragma: &str| {
                connection.query_row(&format!("PRAGMA {pragma}"), (), |row| row.get::<_, i64>(0))
            };
            let unused = self.read(move |connection| {
                let (free, all) = (number(connection, "freelist_count")?, number(connection, "page_count")?);
                Ok((free - all / SPARE, number(connection, "page_size")?))
            });
            let (unused, size) = unused.await?;
            let pages = unused.min(bytes as i64 / size);
            if pages <= 0 {
                return Ok(0);
            }
            self.write(move |transaction| {
                // Each step of the statement gives back one page.
                let mut vacuum = transaction.prepare(&format!("PRAGMA incremental_vacuum({pages})"))?;
                let mut steps = vacuum.query(())?;
                while steps.next()?.is_some() {}
                Ok((pages * size) as usize)
            })
            .await
        })
    }
}

/// What a reader found.
struct Found<C> {
    /// What is old, as far as it is known to be over, with those that lie in between.
    going: Vec<C>,
    /// The last that was looked at.
    last: Option<C>,
    /// Whether there may be more.
    more: bool,
}

impl<C: Copy> Found<C> {
    fn of(rows: Vec<(C, bool)>, limit: usize) -> Self {
        Self {
            last: rows.last().map(|(id, _)| *id),
            more: rows.len() >= limit,
            going: rows.into_iter().filter_map(|(id, goes)| goes.then_some(id)).collect(),
        }
    }

    /// All of it was looked at.
    fn end(&self, left: Left) -> Pruned<C> {
        Pruned { left, last: self.last, finished: !self.more }
    }
}

fn old_events(connection: &Connection, old: &Old<EventId>) -> rusqlite::Result<Found<EventId>> {
    let after = Col(old.after.unwrap_or(EventId::from_bytes([0; 16])));
    let values = (
        old.tenant.as_str(),
        after,
        id::first_at(old.before),
        old.rows.max(1) as i64,
        Col(DeliveryStatus::Pending),
    );
    let mut found = connection.prepare_cached(OLD_EVENTS)?;
    let rows = found.query_map(values, |row| Ok((get(row, 0)?, !row.get::<_, bool>(1)?)))?;
    Ok(Found::of(rows.collect::<rusqlite::Result<_>>()?, old.rows.max(1)))
}

fn old_dead(connection: &Connection, old: &Old<DeliveryId>) -> rusqlite::Result<Found<DeliveryId>> {
    let after = Col(old.after.unwrap_or(DeliveryId::from_bytes([0; 16])));
    // Nothing dies before its event.
    let before = id::first_at(old.before);
    let mut found = connection.prepare_cached(OLD_DEAD)?;
    let values = (old.tenant.as_str(), after, before, old.rows.max(1) as i64, Col(old.before));
    let rows = found.query_map(values, |row| Ok((get(row, 0)?, row.get(1)?)))?;
    Ok(Found::of(rows.collect::<rusqlite::Result<_>>()?, old.rows.max(1)))
}

fn prune_events(
    transaction: &Transaction<'_>,
    found: &Found<EventId>,
    old: &Old<EventId>,
) -> rusqlite::Result<Pruned<EventId>> {
    let mut left = Left::default();
    let (mut done, rows) = (old.after, old.rows.max(1));
    for &event in &found.going {
        if left.rows() >= rows {
            return Ok(Pruned { left, last: done, finished: false });
        }
        if transaction.prepare_cached(IS_PENDING)?.exists((Col(event), Col(DeliveryStatus::Pending)))? {
            done = Some(event);
            continue;
        }
        let deliveries = deliveries_of(transaction, event, rows)?;
        let is_all = deliveries.len() < rows;
        for delivery in deliveries {
            if left.rows() >= rows {
                return Ok(Pruned { left, last: done, finished: false });
            }
            forget_delivery(transaction, delivery, &mut left)?;
        }
        if !is_all {
            return Ok(Pruned { left, last: done, finished: false });
        }
        left.events += transaction
            .prepare_cached("DELETE FROM events WHERE tenant = ? AND id = ?")?
            .execute((old.tenant.as_str(), Col(event)))?;
        done = Some(event);
    }
    Ok(found.end(left))
}

fn deliveries_of(
    transaction: &Transaction<'_>,
    event: EventId,
    most: usize,
) -> rusqlite::Result<Vec<DeliveryId>> {
    let mut deliveries = transaction.prepare_cached(OF_EVENT)?;
    deliveries.query_map((Col(event), most as i64), |row| get(row, 0))?.collect()
}

fn prune_dead(
    transaction: &Transaction<'_>,
    found: &Found<DeliveryId>,
    old: &Old<DeliveryId>,
) -> rusqlite::Result<Pruned<DeliveryId>> {
    let mut left = Left::default();
    let (mut done, rows) = (old.after, old.rows.max(1));
    for &delivery in &found.going {
        if left.rows() >= rows {
            return Ok(Pruned { left, last: done, finished: false });
        }
        // It may have been sent again since.
        if transaction.prepare_cached("SELECT 1 FROM dead WHERE delivery = ?")?.exists([Col(delivery)])? {
            forget_delivery(transaction, delivery, &mut left)?;
        }
        done = Some(delivery);
    }
    Ok(found.end(left))
}

fn forget_delivery(
    transaction: &Transaction<'_>,
    delivery: DeliveryId,
    left: &mut Left,
) -> rusqlite::Result<()> {
    let key = [Col(delivery)];
    left.attempts += transaction.prepare_cached("DELETE FROM attempts WHERE delivery = ?")?.execute(key)?;
    transaction.prepare_cached("DELETE FROM dead WHERE delivery = ?")?.execute(key)?;
    left.deliveries += transaction.prepare_cached("DELETE FROM deliveries WHERE id = ?")?.execute(key)?;
    Ok(())
}
