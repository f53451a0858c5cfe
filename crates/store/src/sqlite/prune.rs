//! Pruning. A reader finds the rows to prune; the writer deletes them in short transactions, after checking again
//! that they have ended.

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
use crate::{
    PartitionDrop, Prune, PruneCounts, PruneProgress, PruneRequest, StoreFuture, archive::FrameBuilder,
};

/// Oldest events of the tenant, and whether each has a pending delivery.
const SELECT_OLD_EVENTS: &str =
    "SELECT e.id, EXISTS (SELECT 1 FROM deliveries d WHERE d.event_id = e.id AND d.status = ?5)
     FROM events e WHERE e.tenant_id = ?1 AND e.id > ?2 AND e.id < ?3 ORDER BY e.id LIMIT ?4";
/// Dead letters of the tenant in the order of their ids, and whether each died before ?5.
const SELECT_OLD_DEAD: &str = "SELECT x.delivery_id, d.ended_at < ?5
     FROM dead x CROSS JOIN deliveries d ON d.id = x.delivery_id
     WHERE x.tenant_id = ?1 AND x.delivery_id > ?2 AND x.delivery_id < ?3 ORDER BY x.delivery_id LIMIT ?4";
const SELECT_DELIVERIES: &str = "SELECT id FROM deliveries WHERE event_id = ? LIMIT ?";
const HAS_PENDING: &str = "SELECT 1 FROM deliveries WHERE event_id = ? AND status = ?";
const SELECT_WEBHOOKS_WITH_PERIODS: &str =
    "SELECT p.webhook_id, (SELECT w.tenant_id FROM webhooks w WHERE w.id = p.webhook_id)
     FROM circuit_periods p WHERE p.webhook_id > ? GROUP BY p.webhook_id ORDER BY p.webhook_id LIMIT ?";
const PRUNE_PERIODS: &str = "DELETE FROM circuit_periods WHERE (webhook_id, opened_at) IN
         (SELECT webhook_id, opened_at FROM circuit_periods WHERE webhook_id = ?1 AND opened_at < ?2 AND ended_at < ?2
          AND (continues OR closed_at < ?2) ORDER BY opened_at LIMIT ?3)";

/// Statements whose cost must be proportional to the rows they return or change; a test checks their query plans.
#[cfg(feature = "conformance")]
pub(super) const BOUNDED_STATEMENTS: [&str; 6] = [
    SELECT_OLD_EVENTS,
    SELECT_OLD_DEAD,
    SELECT_DELIVERIES,
    HAS_PENDING,
    SELECT_WEBHOOKS_WITH_PERIODS,
    PRUNE_PERIODS,
];

/// One page in this many stays free for new rows: growing the file again costs more than freeing them saves.
const MIN_FREE_DIVISOR: i64 = 10;

impl Prune for Sqlite {
    fn retention_by_tenant(
        &self,
        after: Option<TenantId>,
        limit: usize,
    ) -> StoreFuture<'_, Vec<(TenantId, TenantRules)>> {
        self.read(move |connection| {
            let after = after.as_ref().map_or("", TenantId::as_str);
            connection
                .prepare_cached("SELECT id, rules FROM tenants WHERE id > ? ORDER BY id LIMIT ?")?
                .query_map((after, limit as i64), |row| Ok((get(row, 0)?, from_json(row, 1)?)))?
                .collect()
        })
    }

    fn oldest_event(&self, tenant_id: TenantId) -> StoreFuture<'_, Option<Time>> {
        self.read(move |connection| {
            let oldest = "SELECT id FROM events WHERE tenant_id = ? ORDER BY id LIMIT 1";
            let id = connection.prepare_cached(oldest)?.query_row([tenant_id.as_str()], |row| get(row, 0));
            Ok(id.optional()?.map(|id: EventId| id.time()))
        })
    }

    fn prune_events(&self, requested: PruneRequest<EventId>) -> StoreFuture<'_, PruneProgress<EventId>> {
        Box::pin(async move {
            let request = requested.clone();
            let found = self.read(move |connection| old_events(connection, &request)).await?;
            if found.going.is_empty() {
                return Ok(found.end(PruneCounts::default()));
            }
            self.write(move |transaction| prune_events(transaction, &found, &requested)).await
        })
    }

    fn prune_dead(&self, requested: PruneRequest<DeliveryId>) -> StoreFuture<'_, PruneProgress<DeliveryId>> {
        Box::pin(async move {
            let request = requested.clone();
            let found = self.read(move |connection| old_dead(connection, &request)).await?;
            if found.going.is_empty() {
                return Ok(found.end(PruneCounts::default()));
            }
            self.write(move |transaction| prune_dead(transaction, &found, &requested)).await
        })
    }

    fn webhooks_with_periods(
        &self,
        after: Option<WebhookId>,
        limit: usize,
    ) -> StoreFuture<'_, Vec<(WebhookId, TenantId)>> {
        self.read(move |connection| {
            let after = Col(after.unwrap_or(WebhookId::from_bytes([0; 16])));
            connection
                .prepare_cached(SELECT_WEBHOOKS_WITH_PERIODS)?
                .query_map((after, limit as i64), |row| Ok((get(row, 0)?, get(row, 1)?)))?
                .collect()
        })
    }

    fn prune_periods(&self, old: Vec<(WebhookId, Time)>, limit: usize) -> StoreFuture<'_, usize> {
        self.write(move |transaction| {
            let mut pruned = 0;
            let mut delete = transaction.prepare_cached(PRUNE_PERIODS)?;
            for (webhook_id, before) in old {
                pruned += delete.execute((Col(webhook_id), Col(before), (limit - pruned) as i64))?;
                if pruned >= limit {
                    break;
                }
            }
            Ok(pruned)
        })
    }

    fn has_partitions(&self) -> bool {
        false
    }

    fn drop_oldest_partition(
        &self,
        _before: Time,
        _only_empty: bool,
        _rows: usize,
    ) -> StoreFuture<'_, PartitionDrop> {
        Box::pin(async { Ok(PartitionDrop::None) })
    }

    fn reclaim_space(&self, bytes: usize) -> StoreFuture<'_, usize> {
        Box::pin(async move {
            let unused = self.read(|connection| {
                let free = number(connection, "freelist_count")?
                    - number(connection, "page_count")? / MIN_FREE_DIVISOR;
                Ok((free, number(connection, "page_size")?))
            });
            let (unused, size) = unused.await?;
            let pages = unused.min(bytes as i64 / size);
            if pages <= 0 {
                return Ok(0);
            }
            self.write(move |transaction| {
                let before = number(transaction, "page_count")?;
                // Each step of the statement frees one page.
                let mut vacuum = transaction.prepare(&format!("PRAGMA incremental_vacuum({pages})"))?;
                let mut steps = vacuum.query(())?;
                while steps.next()?.is_some() {}
                // Zero if the file was not created with incremental vacuum.
                Ok(((before - number(transaction, "page_count")?) * size) as usize)
            })
            .await
        })
    }
}

fn number(connection: &Connection, pragma: &str) -> rusqlite::Result<i64> {
    connection.query_row(&format!("PRAGMA {pragma}"), (), |row| row.get(0))
}

/// Rows that a reader found for pruning.
struct PruneCandidates<C> {
    /// Rows that may be pruned, as far as the reader could tell.
    going: Vec<C>,
    /// Last row that was read.
    last: Option<C>,
    /// Whether there may be more.
    more: bool,
}

impl<C: Copy> PruneCandidates<C> {
    fn from_rows(rows: Vec<(C, bool)>, limit: usize) -> Self {
        Self {
            last: rows.last().map(|(id, _)| *id),
            more: rows.len() >= limit,
            going: rows.into_iter().filter_map(|(id, goes)| goes.then_some(id)).collect(),
        }
    }

    /// Returns the progress after all rows that were read have been handled.
    fn end(&self, counts: PruneCounts) -> PruneProgress<C> {
        PruneProgress { left: counts, last: self.last, finished: !self.more }
    }
}

fn old_events(
    connection: &Connection,
    request: &PruneRequest<EventId>,
) -> rusqlite::Result<PruneCandidates<EventId>> {
    let after = Col(request.after.unwrap_or(EventId::from_bytes([0; 16])));
    let values = (
        request.tenant_id.as_str(),
        after,
        id::min_bytes_at(request.before),
        request.rows.max(1) as i64,
        Col(DeliveryStatus::Pending),
    );
    let mut found = connection.prepare_cached(SELECT_OLD_EVENTS)?;
    let rows = found.query_map(values, |row| Ok((get(row, 0)?, !row.get::<_, bool>(1)?)))?;
    Ok(PruneCandidates::from_rows(rows.collect::<rusqlite::Result<_>>()?, request.rows.max(1)))
}

fn old_dead(
    connection: &Connection,
    request: &PruneRequest<DeliveryId>,
) -> rusqlite::Result<PruneCandidates<DeliveryId>> {
    let after = Col(request.after.unwrap_or(DeliveryId::from_bytes([0; 16])));
    // A delivery cannot die before its event's time, so the id range contains every old dead letter.
    let before = id::min_bytes_at(request.before);
    let mut found = connection.prepare_cached(SELECT_OLD_DEAD)?;
    let values = (request.tenant_id.as_str(), after, before, request.rows.max(1) as i64, Col(request.before));
    let rows = found.query_map(values, |row| Ok((get(row, 0)?, row.get(1)?)))?;
    Ok(PruneCandidates::from_rows(rows.collect::<rusqlite::Result<_>>()?, request.rows.max(1)))
}

fn prune_events(
    transaction: &Transaction<'_>,
    found: &PruneCandidates<EventId>,
    request: &PruneRequest<EventId>,
) -> rusqlite::Result<PruneProgress<EventId>> {
    let mut going = PruneStep::new(transaction, request.rows, request.archive);
    let mut last = request.after;
    let mut is_all = true;
    for &event_id in &found.going {
        if going.is_full() {
            is_all = false;
            break;
        }
        if !transaction.prepare_cached(HAS_PENDING)?.exists((Col(event_id), Col(DeliveryStatus::Pending)))?
            && !going.take_event(&request.tenant_id, event_id)?
        {
            // An event with more deliveries than fit into one step is deleted in several steps, the event itself last.
            is_all = false;
            break;
        }
        last = Some(event_id);
    }
    let counts = going.finish()?;
    Ok(if is_all { found.end(counts) } else { PruneProgress { left: counts, last, finished: false } })
}

fn prune_dead(
    transaction: &Transaction<'_>,
    found: &PruneCandidates<DeliveryId>,
    request: &PruneRequest<DeliveryId>,
) -> rusqlite::Result<PruneProgress<DeliveryId>> {
    let mut going = PruneStep::new(transaction, request.rows, request.archive);
    let mut last = request.after;
    let mut is_all = true;
    for &delivery_id in &found.going {
        if going.is_full() {
            is_all = false;
            break;
        }
        // It may have been redriven since.
        if transaction
            .prepare_cached("SELECT 1 FROM dead WHERE delivery_id = ?")?
            .exists([Col(delivery_id)])?
        {
            going.take_delivery(delivery_id)?;
        }
        last = Some(delivery_id);
    }
    let counts = going.finish()?;
    Ok(if is_all { found.end(counts) } else { PruneProgress { left: counts, last, finished: false } })
}

/// One step of pruning.
struct PruneStep<'a> {
    transaction: &'a Transaction<'a>,
    rows: usize,
    left: PruneCounts,
    packing: Option<FrameBuilder>,
}

impl<'a> PruneStep<'a> {
    fn new(transaction: &'a Transaction<'a>, rows: usize, archive: bool) -> Self {
        Self {
            transaction,
            rows: rows.max(1),
            left: PruneCounts::default(),
            packing: archive.then(FrameBuilder::default),
        }
    }

    fn is_full(&self) -> bool {
        self.left.rows() >= self.rows || self.packing.as_ref().is_some_and(FrameBuilder::is_full)
    }

    /// Deletes an event with its deliveries. Returns `false` if not all of its deliveries fit into the step.
    fn take_event(&mut self, tenant_id: &TenantId, event_id: EventId) -> rusqlite::Result<bool> {
        let deliveries = self
            .transaction
            .prepare_cached(SELECT_DELIVERIES)?
            .query_map((Col(event_id), self.rows as i64 + 1), |row| get(row, 0))?
            .collect::<rusqlite::Result<Vec<DeliveryId>>>()?;
        for delivery_id in deliveries {
            if self.is_full() {
                return Ok(false);
            }
            self.take_delivery(delivery_id)?;
        }
        if self.transaction.prepare_cached(SELECT_DELIVERIES)?.exists((Col(event_id), 1))? {
            return Ok(false);
        }
        if let Some(packing) = &mut self.packing
            && let Some(stored) = history::find_event(self.transaction, tenant_id, event_id)?
        {
            packing.event(&stored).map_err(archive_outbox::not_packed)?;
        }
        self.left.events += self
            .transaction
            .prepare_cached("DELETE FROM events WHERE tenant_id = ? AND id = ?")?
            .execute((tenant_id.as_str(), Col(event_id)))?;
        Ok(true)
    }

    fn take_delivery(&mut self, delivery_id: DeliveryId) -> rusqlite::Result<()> {
        if let Some(packing) = &mut self.packing
            && let Some((stored, attempts)) = history::find_history(self.transaction, delivery_id)?
        {
            packing.delivery(&stored, &attempts).map_err(archive_outbox::not_packed)?;
        }
        let (transaction, key) = (self.transaction, [Col(delivery_id)]);
        self.left.attempts +=
            transaction.prepare_cached("DELETE FROM attempts WHERE delivery_id = ?")?.execute(key)?;
        transaction.prepare_cached("DELETE FROM attempt_index WHERE delivery_id = ?")?.execute(key)?;
        transaction.prepare_cached("DELETE FROM dead WHERE delivery_id = ?")?.execute(key)?;
        self.left.deliveries +=
            transaction.prepare_cached("DELETE FROM deliveries WHERE id = ?")?.execute(key)?;
        Ok(())
    }

    /// Inserts the packed rows into the archive outbox, and returns the counts.
    fn finish(self) -> rusqlite::Result<PruneCounts> {
        if let Some(packing) = self.packing {
            archive_outbox::insert_frames(self.transaction, packing)?;
        }
        Ok(self.left)
    }
}
