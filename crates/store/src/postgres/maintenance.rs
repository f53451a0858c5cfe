//! Housekeeping and health.

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
    Answer, Upkeep, Vitals,
    error::StoreError,
    overdue::{FREE, HELD, earliest},
};

/// Months are made from a few days before a time on: clocks differ.
const BEFORE: Duration = Duration::from_secs(45 * 24 * 3600);

/// The statements whose cost must follow what is ready, never what is parked: a test explains their plans.
#[cfg(feature = "conformance")]
pub(super) const PLANNED: [(&str, &str); 2] = [("overdue free lanes", FREE), ("overdue held lanes", HELD)];

impl Upkeep for Postgres {
    fn read_count(&self) -> u64 {
        self.shared.read_count.load(Relaxed)
    }

    fn forget_keys(&self, now: Time, limit: usize) -> Answer<'_, usize> {
        Box::pin(async move {
            let forget = "DELETE FROM idempotency WHERE ctid = ANY(ARRAY(
                 SELECT ctid FROM idempotency WHERE expires_at <= $1 ORDER BY expires_at LIMIT $2
                 FOR UPDATE SKIP LOCKED))";
            let limit = limit as i64;
            let forgotten =
                self.write(|tx| async move { tx.execute(forget, &[&Col(now), &limit]).await }).await?;
            Ok(forgotten as usize)
        })
    }

    fn prepare(&self, until: Time) -> Answer<'_, ()> {
        Box::pin(async move {
            let from = Time::from_millis(until.millis() - BEFORE.as_millis() as i64);
            let shared = &self.shared;
            shared.partitions.prepare(&shared.writers, from, until).await.map_err(StoreError::from)
        })
    }

    fn ping(&self) -> Answer<'_, ()> {
        // Not a replica, and not about to stop: one that can be written. Whether its disk is full shows when
        // something is written.
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
                return Err(StoreError::Unavailable("PostgreSQL takes no writes: it is a replica".into()));
            }
            // A server can change these settings while it runs.
            match durability.risk() {
                Some(risk) if !self.shared.allow_unsafe_durability => Err(StoreError::Unavailable(risk)),
                _ => Ok(()),
            }
        })
    }

    fn durability(&self) -> Answer<'_, Option<Durability>> {
        Box::pin(async move {
            let read = self.read(|session| async move { durability::read(&session).await });
            read.await.map(Some)
        })
    }

    fn overdue(&self, now: Time) -> Answer<'_, BTreeMap<String, Time>> {
        Box::pin(async move {
            let rows = self.read(|session| async move {
                let mut rows = session.query(FREE, &[]).await?;
                rows.extend(session.query(HELD, &[]).await?);
                Ok::<_, Failure>(rows)
            });
            let rows = rows.await?;
            let seen = rows.iter().map(|row| Ok((plain(row, 0)?, get_opt(row, 1)?)));
            Ok(earliest(seen.collect::<Result<Vec<_>, Failure>>()?, now))
        })
    }

    fn vitals(&self) -> Answer<'_, Vitals> {
        Box::pin(async move {
            let counts = &self.shared.counts;
            let vitals = self.read_for_user(|session| async move { vitals(session).await }).await?;
            Ok(Vitals {
                commits: counts.commits.load(Relaxed),
                statements: counts.statements.load(Relaxed),
                ..vitals
            })
        })
    }

    fn crowded(&self, dead: usize) -> Answer<'_, u64> {
        // Of each tenant no more is looked at than it takes to know.
        let crowded = "SELECT count(*) FROM tenants WHERE EXISTS
             (SELECT 1 FROM dead WHERE dead.tenant = tenants.id LIMIT 1 OFFSET $1)";
        Box::pin(async move {
            let dead = dead as i64;
            let row = self
                .read_for_user(|session| async move { session.query_one(crowded, &[&dead]).await })
                .await?;
            let count: i64 = row.try_get(0).map_err(|error| StoreError::Refused(error.to_string()))?;
            Ok(count.unsigned_abs())
        })
    }
}

async fn vitals(session: Tx) -> Result<Vitals, Failure> {
    let mut vitals = Vitals::default();
    let by_lane = "SELECT lane, count(*) FROM waiting GROUP BY webhook, lane";
    for row in session.query(by_lane, &[]).await? {
        let priority = match get(&row, 0)? {
            Lane::Free { priority, .. } => priority,
            Lane::Ordered(_) => Priority::Normal,
        };
        vitals.waiting[priority as usize] += plain::<i64>(&row, 1)?.unsigned_abs();
    }
    let counts = "SELECT (SELECT count(*) FROM leased), (SELECT count(*) FROM dead),
                  (SELECT count(*) FROM webhooks WHERE NOT deleted)";
    let row = session.query_one(counts, &[]).await?;
    vitals.leased = plain::<i64>(&row, 0)?.unsigned_abs();
    vitals.dead = plain::<i64>(&row, 1)?.unsigned_abs();
    vitals.webhooks = plain::<i64>(&row, 2)?.unsigned_abs();
    Ok(vitals)
}
