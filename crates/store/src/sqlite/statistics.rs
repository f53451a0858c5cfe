//! Rollups of webhooks (per minute) and tenants (per minute and hour): added incrementally, read from a start
//! time.

use std::collections::HashMap;

use redrive_core::{
    TenantId, Time, WebhookId,
    statistics::{
        rollup::{self, Latencies, Rollup},
        traffic::{EndedCounts, Resolution, Traffic},
    },
};
use rusqlite::{Connection, OptionalExtension, Row, Transaction};

use super::{
    Sqlite,
    convert::{Col, get, get_opt},
    successes,
};
use crate::{
    ALL_TENANTS_ROLLUP_ID, MinuteRollup, Statistics, StoreFuture, TenantRollup, WebhookFailures,
    sum_over_tenants,
};

const ROLLUPS: &str = "SELECT attempts, successes, categories, latencies, last_success_at, tenant_id, minute
     FROM rollups WHERE webhook_id = ? AND minute >= ? ORDER BY minute";
const COUNT_SUCCESSES: &str =
    "SELECT coalesce(sum(CASE WHEN minute > ?2 THEN successes WHEN last_success_at > ?2 THEN 1 ELSE 0 END), 0)
     FROM rollups WHERE webhook_id = ?1 AND minute > ?2 - 60000";
const ROLLUP: &str = "SELECT attempts, successes, categories, latencies, last_success_at
     FROM rollups WHERE webhook_id = ? AND minute = ?";
const NEW_ROLLUP: &str = "INSERT INTO rollups
         (webhook_id, minute, tenant_id, attempts, successes, failed, categories, latencies, last_success_at)
     VALUES (?1, ?2, ?3, ?4, ?5, ?4 > ?5, ?6, ?7, ?8)";
/// SQLite updates an index only if one of its columns changes.
const SET_ROLLUP: &str =
    "UPDATE rollups SET attempts = ?3, successes = ?4, failed = ?3 > ?4, categories = ?5,
         latencies = ?6, last_success_at = ?7
     WHERE webhook_id = ?1 AND minute = ?2";
const FAILURES: &str =
    "SELECT webhook_id, minute, attempts - successes FROM rollups INDEXED BY rollups_failed
     WHERE tenant_id = ? AND failed = 1 AND minute >= ? ORDER BY minute DESC LIMIT ?";
const PRUNE_ROLLUPS: &str = "DELETE FROM rollups WHERE (webhook_id, minute) IN
         (SELECT webhook_id, minute FROM rollups WHERE minute < ? LIMIT ?)";
const TRAFFIC: &str =
    "SELECT attempts, successes, categories, latencies, last_success_at, delivered, dead, cancelled, start
     FROM tenant_rollups WHERE tenant_id = ? AND resolution = ? AND start >= ? ORDER BY start";
const TRAFFIC_OF_ONE: &str =
    "SELECT attempts, successes, categories, latencies, last_success_at, delivered, dead, cancelled
     FROM tenant_rollups WHERE tenant_id = ? AND resolution = ? AND start = ?";
const NEW_TRAFFIC: &str =
    "INSERT INTO tenant_rollups (tenant_id, resolution, start, attempts, successes, categories,
         latencies, last_success_at, delivered, dead, cancelled, expires_at)
     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)";
const SET_TRAFFIC: &str = "UPDATE tenant_rollups SET attempts = ?4, successes = ?5, categories = ?6,
         latencies = ?7, last_success_at = ?8, delivered = ?9, dead = ?10, cancelled = ?11, expires_at = ?12
     WHERE tenant_id = ?1 AND resolution = ?2 AND start = ?3";
const PRUNE_TRAFFIC: &str = "DELETE FROM tenant_rollups WHERE (tenant_id, resolution, start) IN
         (SELECT tenant_id, resolution, start FROM tenant_rollups WHERE expires_at <= ? LIMIT ?)";

/// Statements whose cost must be proportional to the rows they return or change; a test checks their query plans.
#[cfg(feature = "conformance")]
pub(super) const BOUNDED_STATEMENTS: [&str; 9] = [
    ROLLUPS,
    COUNT_SUCCESSES,
    ROLLUP,
    SET_ROLLUP,
    FAILURES,
    PRUNE_ROLLUPS,
    TRAFFIC,
    SET_TRAFFIC,
    PRUNE_TRAFFIC,
];

impl Statistics for Sqlite {
    fn add_rollups(&self, minutes: Vec<MinuteRollup>, traffic: Vec<TenantRollup>) -> StoreFuture<'_, ()> {
        self.write(move |transaction| {
            for minute in &minutes {
                add_minute(transaction, minute)?;
            }
            for one in &traffic {
                add_traffic(transaction, one.tenant_id.as_str(), one)?;
            }
            for one in &sum_over_tenants(&traffic) {
                add_traffic(transaction, ALL_TENANTS_ROLLUP_ID, one)?;
            }
            Ok(())
        })
    }

    fn rollups(
        &self,
        for_tenant: Option<TenantId>,
        webhooks: Vec<WebhookId>,
        from: Time,
    ) -> StoreFuture<'_, Vec<MinuteRollup>> {
        self.read_for(for_tenant, move |connection| {
            let mut of_one = connection.prepare_cached(ROLLUPS)?;
            let mut found = Vec::new();
            for webhook_id in webhooks {
                let mut rows = of_one.query((Col(webhook_id), Col(from)))?;
                while let Some(row) = rows.next()? {
                    let rollup = read_rollup(row)?;
                    found.push(MinuteRollup {
                        tenant_id: get(row, 5)?,
                        webhook_id,
                        minute: get(row, 6)?,
                        rollup,
                    });
                }
            }
            Ok(found)
        })
    }

    fn count_successes(
        &self,
        for_tenant: Option<TenantId>,
        webhooks: Vec<(WebhookId, Time)>,
    ) -> StoreFuture<'_, Vec<u64>> {
        self.list_for_selection(for_tenant, move |connection| {
            let mut of_one = connection.prepare_cached(COUNT_SUCCESSES)?;
            let mut count = |(webhook_id, since)| {
                of_one.query_row((Col(webhook_id), Col(since)), |row| row.get(0)).map(i64::unsigned_abs)
            };
            webhooks.into_iter().map(&mut count).collect()
        })
    }

    fn last_successes(
        &self,
        for_tenant: Option<TenantId>,
        webhooks: Vec<WebhookId>,
    ) -> StoreFuture<'_, Vec<(WebhookId, Time)>> {
        self.list_for_selection(for_tenant, move |connection| successes::list(connection, webhooks))
    }

    fn traffic(
        &self,
        tenant_id: TenantId,
        resolution: Resolution,
        from: Time,
    ) -> StoreFuture<'_, Vec<(Time, Traffic)>> {
        self.list_for(tenant_id.clone(), move |connection| {
            traffic_of(connection, tenant_id.as_str(), resolution, from)
        })
    }

    fn traffic_of_all_tenants(
        &self,
        resolution: Resolution,
        from: Time,
    ) -> StoreFuture<'_, Vec<(Time, Traffic)>> {
        self.list_for_all_tenants(move |connection| {
            traffic_of(connection, ALL_TENANTS_ROLLUP_ID, resolution, from)
        })
    }

    fn failures(&self, tenant_id: TenantId, from: Time, max: usize) -> StoreFuture<'_, WebhookFailures> {
        self.list_for(tenant_id.clone(), move |connection| failures_of(connection, &tenant_id, from, max))
    }

    fn prune_rollups(&self, before: Time, limit: usize) -> StoreFuture<'_, usize> {
        self.write(move |transaction| transaction.execute(PRUNE_ROLLUPS, (Col(before), limit as i64)))
    }

    fn prune_traffic(&self, now: Time, limit: usize) -> StoreFuture<'_, usize> {
        self.write(move |transaction| transaction.execute(PRUNE_TRAFFIC, (Col(now), limit as i64)))
    }
}

fn traffic_of(
    connection: &Connection,
    tenant_id: &str,
    resolution: Resolution,
    from: Time,
) -> rusqlite::Result<Vec<(Time, Traffic)>> {
    let read = |row: &Row<'_>| Ok((get(row, 8)?, read_traffic(row)?));
    let mut traffic = connection.prepare_cached(TRAFFIC)?;
    traffic.query_map((tenant_id, Col(resolution), Col(from)), read)?.collect()
}

/// Returns the failed attempts of a tenant by webhook, from the latest `max` minute rollups with a failure.
pub(super) fn failures_of(
    connection: &Connection,
    tenant_id: &TenantId,
    from: Time,
    max: usize,
) -> rusqlite::Result<WebhookFailures> {
    // One more than the limit, to know whether there are more.
    let limit = i64::try_from(max).unwrap_or(i64::MAX).saturating_add(1);
    let mut latest = connection.prepare_cached(FAILURES)?;
    let mut rows = latest.query((tenant_id.as_str(), Col(from), limit))?;
    let (mut sums, mut seen, mut earliest) = (HashMap::<WebhookId, u64>::new(), 0, None);
    while let Some(row) = rows.next()? {
        *sums.entry(get(row, 0)?).or_default() += row.get::<_, i64>(2)?.unsigned_abs();
        earliest = Some(get(row, 1)?);
        seen += 1;
    }
    let only_since = earliest.filter(|_| seen == limit);
    Ok(WebhookFailures { by_webhook: sums.into_iter().collect(), only_since })
}

fn read_rollup(row: &Row<'_>) -> rusqlite::Result<Rollup> {
    Ok(Rollup {
        attempts: row.get(0)?,
        successes: row.get(1)?,
        by_category: rollup::categories_from_bytes(row.get_ref(2)?.as_blob()?).unwrap_or_default(),
        latencies: Latencies::from_bytes(row.get_ref(3)?.as_blob()?).unwrap_or_default(),
        last_success_at: get_opt(row, 4)?,
    })
}

fn read_traffic(row: &Row<'_>) -> rusqlite::Result<Traffic> {
    let number = |column| row.get::<_, i64>(column).map(i64::unsigned_abs);
    let ended = EndedCounts { delivered: number(5)?, dead: number(6)?, cancelled: number(7)? };
    Ok(Traffic { sent: read_rollup(row)?, ended })
}

fn add_minute(transaction: &Transaction<'_>, new: &MinuteRollup) -> rusqlite::Result<()> {
    let key = (Col(new.webhook_id), Col(new.minute));
    let known = transaction.prepare_cached(ROLLUP)?.query_row(key, read_rollup).optional()?;
    let mut sum = new.rollup.clone();
    if let Some(known) = &known {
        sum.merge(known);
    }
    if known.as_ref().is_none_or(|known| known.last_success_at.is_none()) {
        successes::set(transaction, new)?;
    }
    let (categories, latencies) = (rollup::categories_to_bytes(&sum.by_category), sum.latencies.to_bytes());
    let last = sum.last_success_at.map(Col);
    let (webhook, minute) = key;
    match known {
        Some(_) => transaction.prepare_cached(SET_ROLLUP)?.execute((
            webhook,
            minute,
            sum.attempts,
            sum.successes,
            categories,
            latencies,
            last,
        ))?,
        None => transaction.prepare_cached(NEW_ROLLUP)?.execute((
            webhook,
            minute,
            new.tenant_id.as_str(),
            sum.attempts,
            sum.successes,
            categories,
            latencies,
            last,
        ))?,
    };
    Ok(())
}

fn add_traffic(transaction: &Transaction<'_>, tenant_id: &str, new: &TenantRollup) -> rusqlite::Result<()> {
    let key = (tenant_id, Col(new.resolution), Col(new.start));
    let known = transaction.prepare_cached(TRAFFIC_OF_ONE)?.query_row(key, read_traffic).optional()?;
    let mut sum = new.traffic.clone();
    if let Some(known) = &known {
        sum.merge(known);
    }
    let (tenant, resolution, start) = key;
    let write = if known.is_some() { SET_TRAFFIC } else { NEW_TRAFFIC };
    transaction.prepare_cached(write)?.execute((
        tenant,
        resolution,
        start,
        sum.sent.attempts,
        sum.sent.successes,
        rollup::categories_to_bytes(&sum.sent.by_category),
        sum.sent.latencies.to_bytes(),
        sum.sent.last_success_at.map(Col),
        sum.ended.delivered as i64,
        sum.ended.dead as i64,
        sum.ended.cancelled as i64,
        Col(new.expires_at),
    ))?;
    Ok(())
}
