//! How webhooks and tenants do: minutes and hours, added up as they come and read from a time on.

use std::collections::HashMap;

use redrive_core::{
    TenantId, Time, WebhookId,
    statistics::rollup::{self, Latencies, Rollup},
    statistics::traffic::{Ended, Grain, Traffic},
};
use rusqlite::{OptionalExtension, Row, Transaction};

use super::{
    Sqlite,
    convert::{Col, get, get_opt},
};
use crate::{Answer, Failures, Figures, MinuteRollup, TenantRollup};

const ROLLUPS: &str = "SELECT attempts, successes, categories, latencies, last_success_at, tenant, minute
     FROM rollups WHERE webhook = ? AND minute >= ? ORDER BY minute";
const ROLLUP: &str = "SELECT attempts, successes, categories, latencies, last_success_at
     FROM rollups WHERE webhook = ? AND minute = ?";
const NEW_ROLLUP: &str = "INSERT INTO rollups
         (webhook, minute, tenant, attempts, successes, failed, categories, latencies, last_success_at)
     VALUES (?1, ?2, ?3, ?4, ?5, ?4 > ?5, ?6, ?7, ?8)";
/// Indexes are touched only where what they are made of changes.
const SET_ROLLUP: &str =
    "UPDATE rollups SET attempts = ?3, successes = ?4, failed = ?3 > ?4, categories = ?5,
         latencies = ?6, last_success_at = ?7
     WHERE webhook = ?1 AND minute = ?2";
/// A minute's last success is later than those of the minutes before it.
const LAST_SUCCESS: &str = "SELECT last_success_at FROM rollups
     WHERE webhook = ? AND minute <= ? AND last_success_at IS NOT NULL ORDER BY minute DESC LIMIT 1";
const FAILURES: &str = "SELECT webhook, minute, attempts - successes FROM rollups INDEXED BY rollups_failed
     WHERE tenant = ? AND failed = 1 AND minute >= ? ORDER BY minute DESC LIMIT ?";
const FORGET_ROLLUPS: &str = "DELETE FROM rollups WHERE (webhook, minute) IN
         (SELECT webhook, minute FROM rollups WHERE minute < ? LIMIT ?)";
const TRAFFIC: &str =
    "SELECT attempts, successes, categories, latencies, last_success_at, delivered, dead, cancelled, start
     FROM tenant_rollups WHERE tenant = ? AND grain = ? AND start >= ? ORDER BY start";
const TRAFFIC_OF_ONE: &str =
    "SELECT attempts, successes, categories, latencies, last_success_at, delivered, dead, cancelled
     FROM tenant_rollups WHERE tenant = ? AND grain = ? AND start = ?";
const NEW_TRAFFIC: &str = "INSERT INTO tenant_rollups (tenant, grain, start, attempts, successes, categories,
         latencies, last_success_at, delivered, dead, cancelled, kept_until)
     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)";
const SET_TRAFFIC: &str = "UPDATE tenant_rollups SET attempts = ?4, successes = ?5, categories = ?6,
         latencies = ?7, last_success_at = ?8, delivered = ?9, dead = ?10, cancelled = ?11, kept_until = ?12
     WHERE tenant = ?1 AND grain = ?2 AND start = ?3";
const FORGET_TRAFFIC: &str = "DELETE FROM tenant_rollups WHERE (tenant, grain, start) IN
         (SELECT tenant, grain, start FROM tenant_rollups WHERE kept_until <= ? LIMIT ?)";

/// The statements whose cost must follow what they answer or change: a test explains their plans.
#[cfg(feature = "conformance")]
pub(super) const BOUNDED: [&str; 9] = [
    ROLLUPS,
    ROLLUP,
    SET_ROLLUP,
    LAST_SUCCESS,
    FAILURES,
    FORGET_ROLLUPS,
    TRAFFIC,
    SET_TRAFFIC,
    FORGET_TRAFFIC,
];

impl Figures for Sqlite {
    fn add_figures(&self, minutes: Vec<MinuteRollup>, traffic: Vec<TenantRollup>) -> Answer<'_, ()> {
        self.write(move |transaction| {
            for minute in &minutes {
                add_minute(transaction, minute)?;
            }
            for one in &traffic {
                add_traffic(transaction, one)?;
            }
            Ok(())
        })
    }

    fn rollups(
        &self,
        for_tenant: Option<TenantId>,
        webhooks: Vec<WebhookId>,
        from: Time,
    ) -> Answer<'_, Vec<MinuteRollup>> {
        self.read_for(for_tenant, move |connection| {
            let mut of_one = connection.prepare_cached(ROLLUPS)?;
            let mut found = Vec::new();
            for webhook in webhooks {
                let mut rows = of_one.query((Col(webhook), Col(from)))?;
                while let Some(row) = rows.next()? {
                    let rollup = read_rollup(row)?;
                    found.push(MinuteRollup { tenant: get(row, 5)?, webhook, minute: get(row, 6)?, rollup });
                }
            }
            Ok(found)
        })
    }

    fn last_successes(
        &self,
        for_tenant: TenantId,
        asked: Vec<(WebhookId, Time)>,
    ) -> Answer<'_, Vec<(WebhookId, Time)>> {
        self.list_for(for_tenant, move |connection| {
            let mut of_one = connection.prepare_cached(LAST_SUCCESS)?;
            let mut found = Vec::new();
            for (webhook, at) in asked {
                let last = of_one.query_row((Col(webhook), Col(at)), |row| get(row, 0)).optional()?;
                found.extend(last.map(|last| (webhook, last)));
            }
            Ok(found)
        })
    }

    fn traffic(&self, tenant: TenantId, grain: Grain, from: Time) -> Answer<'_, Vec<(Time, Traffic)>> {
        self.list_for(tenant.clone(), move |connection| {
            connection
                .prepare_cached(TRAFFIC)?
                .query_map((tenant.as_str(), Col(grain), Col(from)), |row| {
                    Ok((get(row, 8)?, read_traffic(row)?))
                })?
                .collect()
        })
    }

    fn failures(&self, tenant: TenantId, from: Time, most: usize) -> Answer<'_, Failures> {
        self.list_for(tenant.clone(), move |connection| {
            // One more than is to be looked at, to know whether there is more.
            let limit = i64::try_from(most).unwrap_or(i64::MAX).saturating_add(1);
            let mut latest = connection.prepare_cached(FAILURES)?;
            let mut rows = latest.query((tenant.as_str(), Col(from), limit))?;
            let (mut sums, mut seen, mut earliest) = (HashMap::<WebhookId, u64>::new(), 0, None);
            while let Some(row) = rows.next()? {
                *sums.entry(get(row, 0)?).or_default() += row.get::<_, i64>(2)?.unsigned_abs();
                earliest = Some(get(row, 1)?);
                seen += 1;
            }
            Ok(Failures {
                by_webhook: sums.into_iter().collect(),
                only_since: earliest.filter(|_| seen == limit),
            })
        })
    }

    fn forget_rollups(&self, before: Time, limit: usize) -> Answer<'_, usize> {
        self.write(move |transaction| transaction.execute(FORGET_ROLLUPS, (Col(before), limit as i64)))
    }

    fn forget_traffic(&self, now: Time, limit: usize) -> Answer<'_, usize> {
        self.write(move |transaction| transaction.execute(FORGET_TRAFFIC, (Col(now), limit as i64)))
    }
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
    let ended = Ended { delivered: number(5)?, dead: number(6)?, cancelled: number(7)? };
    Ok(Traffic { sent: read_rollup(row)?, ended })
}

fn add_minute(transaction: &Transaction<'_>, new: &MinuteRollup) -> rusqlite::Result<()> {
    let key = (Col(new.webhook), Col(new.minute));
    let known = transaction.prepare_cached(ROLLUP)?.query_row(key, read_rollup).optional()?;
    let mut sum = new.rollup.clone();
    if let Some(known) = &known {
        sum.merge(known);
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
            new.tenant.as_str(),
            sum.attempts,
            sum.successes,
            categories,
            latencies,
            last,
        ))?,
    };
    Ok(())
}

fn add_traffic(transaction: &Transaction<'_>, new: &TenantRollup) -> rusqlite::Result<()> {
    let key = (new.tenant.as_str(), Col(new.grain), Col(new.start));
    let known = transaction.prepare_cached(TRAFFIC_OF_ONE)?.query_row(key, read_traffic).optional()?;
    let mut sum = new.traffic.clone();
    if let Some(known) = &known {
        sum.merge(known);
    }
    let (tenant, grain, start) = key;
    let write = if known.is_some() { SET_TRAFFIC } else { NEW_TRAFFIC };
    transaction.prepare_cached(write)?.execute((
        tenant,
        grain,
        start,
        sum.sent.attempts,
        sum.sent.successes,
        rollup::categories_to_bytes(&sum.sent.by_category),
        sum.sent.latencies.to_bytes(),
        sum.sent.last_success_at.map(Col),
        sum.ended.delivered as i64,
        sum.ended.dead as i64,
        sum.ended.cancelled as i64,
        Col(new.kept_until),
    ))?;
    Ok(())
}
