//! Maintenance and health checks.

use std::{collections::BTreeMap, sync::atomic::Ordering::Relaxed, time::Duration};

use redrive_core::{
    Time,
    delivery::lane::{Lane, Priority},
    maintenance::durability::Durability,
};

use super::{
    Postgres,
    convert::{Col, get, get_opt, plain},
    durability,
    session::{Failure, Tx},
};
use crate::{
    Health, Maintenance, StoreFuture, StoreStats,
    error::StoreError,
    overdue::{SELECT_CLAIMED_LANES, SELECT_UNCLAIMED_LANES, earliest},
};

/// How long before the given time the created partitions begin, since clocks differ.
const PARTITION_LEAD_TIME: Duration = Duration::from_secs(45 * 24 * 3600);

/// Statements whose cost must be proportional to the deliveries that are ready, independent of those that are
/// parked; a test checks their query plans.
#[cfg(feature = "conformance")]
pub(super) const PLANNED_STATEMENTS: [(&str, &str); 2] =
    [("overdue unclaimed lanes", SELECT_UNCLAIMED_LANES), ("overdue claimed lanes", SELECT_CLAIMED_LANES)];

const PRUNE_EVENT_KEYS: &str = "DELETE FROM idempotency_keys WHERE ctid = ANY(ARRAY(
     SELECT ctid FROM idempotency_keys WHERE expires_at <= $1 ORDER BY expires_at LIMIT $2
     FOR UPDATE SKIP LOCKED))";
const PRUNE_CREATION_KEYS: &str = "DELETE FROM creation_keys WHERE ctid = ANY(ARRAY(
     SELECT ctid FROM creation_keys WHERE expires_at <= $1 ORDER BY expires_at LIMIT $2
     FOR UPDATE SKIP LOCKED))";

impl Maintenance for Postgres {
    fn prune_idempotency_keys(&self, now: Time, limit: usize) -> StoreFuture<'_, usize> {
        Box::pin(async move {
            let limit = limit as i64;
            let mut pruned = 0;
            for delete in [PRUNE_EVENT_KEYS, PRUNE_CREATION_KEYS] {
                pruned +=
                    self.write(|tx| async move { tx.execute(delete, &[&Col(now), &limit]).await }).await?;
            }
            Ok(pruned as usize)
        })
    }

    fn ensure_partitions(&self, until: Time) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            let from = Time::from_millis(until.millis() - PARTITION_LEAD_TIME.as_millis() as i64);
            let shared = &self.shared;
            shared.partitions.prepare(&shared.writers, from, until).await.map_err(StoreError::from)
        })
    }
}

impl Health for Postgres {
    fn ping(&self) -> StoreFuture<'_, ()> {
        // The server must accept writes: it must not be a replica or read-only. A full disk shows only at the next
        // write.
        Box::pin(async move {
            self.writer.check()?;
            self.shared.publish_watch.check()?;
            let writable =
                "SELECT NOT pg_is_in_recovery() AND current_setting('transaction_read_only') = 'off'";
            let (row, durability) = self
                .read(|session| async move {
                    let row = session.query_one(writable, &[]).await?;
                    Ok((row, durability::read(&session).await?))
                })
                .await?;
            if !matches!(row.try_get(0), Ok(true)) {
                return Err(StoreError::Unavailable(
                    "PostgreSQL is a replica and does not accept writes".into(),
                ));
            }
            // These settings can change while the server runs.
            match durability.risk() {
                Some(risk) if !self.shared.allow_unsafe_durability => Err(StoreError::Unavailable(risk)),
                _ => Ok(()),
            }
        })
    }

    fn durability(&self) -> StoreFuture<'_, Option<Durability>> {
        Box::pin(async move {
            let read = self.read(|session| async move { durability::read(&session).await });
            read.await.map(Some)
        })
    }

    fn overdue(&self, now: Time) -> StoreFuture<'_, BTreeMap<String, Time>> {
        Box::pin(async move {
            let rows = self.read(|session| async move {
                let mut rows = session.query(SELECT_UNCLAIMED_LANES, &[]).await?;
                rows.extend(session.query(SELECT_CLAIMED_LANES, &[]).await?);
                Ok::<_, Failure>(rows)
            });
            let rows = rows.await?;
            let seen = rows.iter().map(|row| Ok((plain(row, 0)?, get_opt(row, 1)?)));
            Ok(earliest(seen.collect::<Result<Vec<_>, Failure>>()?, now))
        })
    }

    fn stats(&self) -> StoreFuture<'_, StoreStats> {
        Box::pin(async move {
            let counts = &self.shared.counts;
            let stats = self.read_for_user(|session| async move { read_stats(session).await }).await?;
            Ok(StoreStats {
                commits: counts.commits.load(Relaxed),
                statements: counts.statements.load(Relaxed),
                ..stats
            })
        })
    }

    fn count_tenants_with_dead_letters_over(&self, max: usize) -> StoreFuture<'_, u64> {
        // Reads at most `max` + 1 rows per tenant.
        let crowded = "SELECT count(*) FROM tenants WHERE EXISTS
             (SELECT 1 FROM dead WHERE dead.tenant_id = tenants.id LIMIT 1 OFFSET $1)";
        Box::pin(async move {
            let max = max as i64;
            let row = self
                .read_for_user(|session| async move { session.query_one(crowded, &[&max]).await })
                .await?;
            let count: i64 = row.try_get(0).map_err(|error| StoreError::InvalidItem(error.to_string()))?;
            Ok(count.unsigned_abs())
        })
    }

    fn read_count(&self) -> u64 {
        self.shared.read_count.load(Relaxed)
    }
}

async fn read_stats(session: Tx) -> Result<StoreStats, Failure> {
    let mut stats = StoreStats::default();
    let by_lane = "SELECT lane, count(*) FROM waiting GROUP BY webhook_id, lane";
    for row in session.query(by_lane, &[]).await? {
        let priority = match get(&row, 0)? {
            Lane::Unordered { priority, .. } => priority,
            Lane::Ordered(_) => Priority::Normal,
        };
        stats.waiting[priority as usize] += plain::<i64>(&row, 1)?.unsigned_abs();
    }
    let counts = "SELECT (SELECT count(*) FROM leased), (SELECT count(*) FROM dead),
                  (SELECT count(*) FROM webhooks WHERE NOT deleted)";
    let row = session.query_one(counts, &[]).await?;
    stats.leased = plain::<i64>(&row, 0)?.unsigned_abs();
    stats.dead = plain::<i64>(&row, 1)?.unsigned_abs();
    stats.webhooks = plain::<i64>(&row, 2)?.unsigned_abs();
    Ok(stats)
}
