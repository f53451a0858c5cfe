//! Forgetting what is old. What to forget is looked up by a reader; the writer takes it away in short transactions,
//! and looks once more whether it is over.

use redrive_core::{
    DeliveryId, DeliveryStatus, EventId, TenantId, Time, WebhookId, id, tenancy::TenantRules,
};
use rusqlite::{Connection, OptionalExtension, Transaction};

use super::{
    Sqlite, archive_outbox,
    convert::{Col, get},
    history,
    webhooks::from_json,
};
use crate::{Answer, Dropped, Left, Old, Pruned, Retain, archive::Packing};

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
            let unused = self.read(|connection| {
                let free = number(connection, "freelist_count")? - number(connection, "page_count")? / SPARE;
                Ok((free, number(connection, "page_size")?))
            });
            let (unused, size) = unused.await?;
            let pages = unused.min(bytes as i64 / size);
            if pages <= 0 {
                return Ok(0);
            }
            self.write(move |transaction| {
                let before = number(transaction, "page_count")?;
                // Each step of the statement gives back one page.
                let mut vacuum = transaction.prepare(&format!("PRAGMA incremental_vacuum({pages})"))?;
                let mut steps = vacuum.query(())?;
                while steps.next()?.is_some() {}
                // None, if the file was not made for this.
                Ok(((before - number(transaction, "page_count")?) * size) as usize)
            })
            .await
        })
    }
}

fn number(connection: &Connection, pragma: &str) -> rusqlite::Result<i64> {
    connection.query_row(&format!("PRAGMA {pragma}"), (), |row| row.get(0))
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
    let mut going = Going::new(transaction, old.rows, old.archive);
    let mut last = old.after;
    let mut is_all = true;
    for &event in &found.going {
        if going.is_enough() {
            is_all = false;
            break;
        }
        if !transaction.prepare_cached(IS_PENDING)?.exists((Col(event), Col(DeliveryStatus::Pending)))?
            && !going.take_event(&old.tenant, event)?
        {
            // One with more deliveries than fit goes in several steps, and last of all itself.
            is_all = false;
            break;
        }
        last = Some(event);
    }
    let left = going.finish()?;
    Ok(if is_all { found.end(left) } else { Pruned { left, last, finished: false } })
}

fn prune_dead(
    transaction: &Transaction<'_>,
    found: &Found<DeliveryId>,
    old: &Old<DeliveryId>,
) -> rusqlite::Result<Pruned<DeliveryId>> {
    let mut going = Going::new(transaction, old.rows, old.archive);
    let mut last = old.after;
    let mut is_all = true;
    for &delivery in &found.going {
        if going.is_enough() {
            is_all = false;
            break;
        }
        // It may have been sent again since.
        if transaction.prepare_cached("SELECT 1 FROM dead WHERE delivery = ?")?.exists([Col(delivery)])? {
            going.take_delivery(delivery)?;
        }
        last = Some(delivery);
    }
    let left = going.finish()?;
    Ok(if is_all { found.end(left) } else { Pruned { left, last, finished: false } })
}

/// What one step takes away.
struct Going<'a> {
    transaction: &'a Transaction<'a>,
    rows: usize,
    left: Left,
    packing: Option<Packing>,
}

impl<'a> Going<'a> {
    fn new(transaction: &'a Transaction<'a>, rows: usize, archive: bool) -> Self {
        Self {
            transaction,
            rows: rows.max(1),
            left: Left::default(),
            packing: archive.then(Packing::default),
        }
    }

    fn is_enough(&self) -> bool {
        self.left.rows() >= self.rows || self.packing.as_ref().is_some_and(Packing::is_full)
    }

    /// False: there was not enough room for all of its deliveries.
    fn take_event(&mut self, tenant: &TenantId, event: EventId) -> rusqlite::Result<bool> {
        let deliveries = self
            .transaction
            .prepare_cached(OF_EVENT)?
            .query_map((Col(event), self.rows as i64 + 1), |row| get(row, 0))?
            .collect::<rusqlite::Result<Vec<DeliveryId>>>()?;
        for delivery in deliveries {
            if self.is_enough() {
                return Ok(false);
            }
            self.take_delivery(delivery)?;
        }
        if self.transaction.prepare_cached(OF_EVENT)?.exists((Col(event), 1))? {
            return Ok(false);
        }
        if let Some(packing) = &mut self.packing
            && let Some(stored) = history::find_event(self.transaction, tenant, event)?
        {
            packing.event(&stored).map_err(archive_outbox::not_packed)?;
        }
        self.left.events += self
            .transaction
            .prepare_cached("DELETE FROM events WHERE tenant = ? AND id = ?")?
            .execute((tenant.as_str(), Col(event)))?;
        Ok(true)
    }

    fn take_delivery(&mut self, delivery: DeliveryId) -> rusqlite::Result<()> {
        if let Some(packing) = &mut self.packing
            && let Some((stored, attempts)) = history::find_history(self.transaction, delivery)?
        {
            packing.delivery(&stored, &attempts).map_err(archive_outbox::not_packed)?;
        }
        let (transaction, key) = (self.transaction, [Col(delivery)]);
        self.left.attempts +=
            transaction.prepare_cached("DELETE FROM attempts WHERE delivery = ?")?.execute(key)?;
        transaction.prepare_cached("DELETE FROM dead WHERE delivery = ?")?.execute(key)?;
        self.left.deliveries +=
            transaction.prepare_cached("DELETE FROM deliveries WHERE id = ?")?.execute(key)?;
        Ok(())
    }

    /// Puts what was taken where the archive finds it.
    fn finish(self) -> rusqlite::Result<Left> {
        if let Some(packing) = self.packing {
            archive_outbox::keep(self.transaction, packing)?;
        }
        Ok(self.left)
    }
}
