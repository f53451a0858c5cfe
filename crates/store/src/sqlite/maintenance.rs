//! Maintenance and health checks.

use std::collections::BTreeMap;

use redrive_core::{
    Time,
    delivery::lane::{Lane, Priority},
    maintenance::durability::Durability,
};

use super::{
    Sqlite,
    convert::{Col, get},
};
use crate::{
    Health, Maintenance, StoreFuture, StoreStats,
    overdue::{SELECT_CLAIMED_LANES, SELECT_UNCLAIMED_LANES, earliest},
};

impl Maintenance for Sqlite {
    fn prune_idempotency_keys(&self, now: Time, limit: usize) -> StoreFuture<'_, usize> {
        self.write(move |transaction| {
            let mut pruned = 0;
            for table in ["idempotency_keys", "creation_keys"] {
                pruned += transaction.execute(
                    &format!(
                        "DELETE FROM {table} WHERE (tenant_id, key_hash) IN
                         (SELECT tenant_id, key_hash FROM {table} WHERE expires_at <= ? LIMIT ?)"
                    ),
                    (Col(now), limit as i64),
                )?;
            }
            Ok(pruned)
        })
    }

    fn ensure_partitions(&self, _until: Time) -> StoreFuture<'_, ()> {
        Box::pin(async { Ok(()) })
    }
}

impl Health for Sqlite {
    fn ping(&self) -> StoreFuture<'_, ()> {
        // A write, since reads still succeed on a full disk; and one that changes a value, since SQLite writes nothing
        // otherwise. Nothing else uses `user_version`.
        self.write(|transaction| {
            let count: i32 = transaction.query_row("PRAGMA user_version", (), |row| row.get(0))?;
            transaction.execute_batch(&format!("PRAGMA user_version = {}", count.wrapping_add(1)))
        })
    }

    fn durability(&self) -> StoreFuture<'_, Option<Durability>> {
        Box::pin(async { Ok(None) })
    }

    fn overdue(&self, now: Time) -> StoreFuture<'_, BTreeMap<String, Time>> {
        self.read(move |connection| {
            let mut seen = Vec::new();
            for statement in [SELECT_UNCLAIMED_LANES, SELECT_CLAIMED_LANES] {
                let mut statement = connection.prepare_cached(statement)?;
                let mut rows = statement.query(())?;
                while let Some(row) = rows.next()? {
                    seen.push((row.get(0)?, row.get::<_, Option<Col<Time>>>(1)?.map(|time| time.0)));
                }
            }
            Ok(earliest(seen, now))
        })
    }

    fn stats(&self) -> StoreFuture<'_, StoreStats> {
        let commits = self.writer.commits();
        self.read(move |connection| {
            let count = |table: &str| -> rusqlite::Result<u64> {
                let mut rows = connection.prepare_cached(&format!("SELECT count(*) FROM {table}"))?;
                rows.query_row((), |row| row.get::<_, i64>(0)).map(i64::unsigned_abs)
            };
            let mut waiting = [0; 3];
            // In the order of the index, so that nothing is sorted.
            let mut by_lane =
                connection.prepare_cached("SELECT lane, count(*) FROM waiting GROUP BY webhook_id, lane")?;
            let mut rows = by_lane.query(())?;
            while let Some(row) = rows.next()? {
                let priority = match get(row, 0)? {
                    Lane::Unordered { priority, .. } => priority,
                    Lane::Ordered(_) => Priority::Normal,
                };
                waiting[priority as usize] += row.get::<_, i64>(1)?.unsigned_abs();
            }
            Ok(StoreStats {
                commits,
                statements: 0,
                waiting,
                leased: count("leased")?,
                dead: count("dead")?,
                webhooks: count("webhooks WHERE deleted = 0")?,
            })
        })
    }

    fn count_tenants_with_dead_letters_over(&self, max: usize) -> StoreFuture<'_, u64> {
        self.read(move |connection| {
            // Reads at most `max` + 1 rows per tenant.
            let mut rows = connection.prepare_cached(
                "SELECT count(*) FROM tenants WHERE EXISTS
                 (SELECT 1 FROM dead WHERE dead.tenant_id = tenants.id LIMIT 1 OFFSET ?)",
            )?;
            rows.query_row([max as i64], |row| row.get::<_, i64>(0)).map(i64::unsigned_abs)
        })
    }

    fn read_count(&self) -> u64 {
        self.readers.count()
    }
}
