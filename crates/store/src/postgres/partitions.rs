//! Monthly partitions of events, deliveries and attempts. The first node to need one creates it ahead of time,
//! without blocking others: a new partition is a separate table until it is attached. A partition that is no
//! longer needed is dropped when no transaction uses the tables; if one does, the drop is tried again later.

use std::collections::BTreeSet;

use jiff::{Timestamp, ToSpan, civil::Date, tz::TimeZone};
use parking_lot::RwLock;
use redrive_core::{Time, id::min_bytes_at};

use super::{
    convert::{Col, plain},
    session::{Failure, Session, Sessions, Tx},
};
use crate::PartitionDrop;

/// First day of a month.
pub(super) type Month = Date;

/// Partitioned tables and their storage parameters.
const TABLES: [(&str, &str); 3] = [("events", ""), ("deliveries", "fillfactor = 50"), ("attempts", "")];

/// Months whose partitions are known to exist.
pub(super) struct Partitions {
    known: RwLock<BTreeSet<Month>>,
    schema: String,
}

impl Partitions {
    pub(super) fn new(schema: &str) -> Self {
        Self { known: RwLock::default(), schema: schema.to_owned() }
    }

    /// Returns the months of these times whose partitions are not known to exist.
    pub(super) fn missing(&self, times: impl Iterator<Item = Time>) -> BTreeSet<Month> {
        let known = self.known.read();
        let mut last = None;
        // Nearly every time equals the one before it.
        let times = times.filter(|time| last.replace(*time) != Some(*time));
        times.map(month_of).filter(|month| !known.contains(month)).collect()
    }

    /// Creates the partitions of months, if they do not exist.
    pub(super) async fn create(&self, sessions: &Sessions, months: BTreeSet<Month>) -> Result<(), Failure> {
        for month in months {
            sessions.write(|tx| create(tx, &self.schema, month)).await?;
            self.known.write().insert(month);
        }
        Ok(())
    }

    /// Creates the partitions of all months from that of `from` to that of `until`, inclusive.
    pub(super) async fn prepare(&self, sessions: &Sessions, from: Time, until: Time) -> Result<(), Failure> {
        let last = month_of(until);
        let mut month = month_of(from);
        let mut times = Vec::new();
        while month <= last {
            times.push(start_of(month));
            month = next(month);
        }
        self.create(sessions, self.missing(times.into_iter())).await
    }

    /// Drops the oldest partition that ended before a time and is not needed, or deletes rows of other tables that an
    /// earlier drop left behind.
    pub(super) async fn drop_one(
        &self,
        sessions: &Sessions,
        before: Time,
        only_empty: bool,
        rows: usize,
    ) -> Result<PartitionDrop, Failure> {
        let there = sessions.read(all).await?;
        if sessions.write(|tx| delete_dependents(tx, gaps(&there, before), rows)).await? > 0 {
            return Ok(PartitionDrop::Dropped { months: 0 });
        }
        for month in there {
            if start_of(next(month)) > before {
                break;
            }
            // Check without locks first.
            if !sessions.read(|session| is_droppable(session, month, only_empty)).await? {
                continue;
            }
            match sessions.write(|tx| drop_month(tx, &self.schema, month, only_empty)).await {
                Ok(true) => {
                    self.known.write().remove(&month);
                    return Ok(PartitionDrop::Dropped { months: 1 });
                }
                Ok(false) => {}
                Err(failure) if failure.is_lock_timeout() => return Ok(PartitionDrop::Busy),
                Err(failure) => return Err(failure),
            }
        }
        Ok(PartitionDrop::None)
    }
}

/// Returns the months that have partitions, oldest first.
async fn all(session: Tx) -> Result<Vec<Month>, Failure> {
    let parts = "SELECT right(inhrelid::regclass::text, 7) FROM pg_inherits
                 WHERE inhparent = 'events'::regclass ORDER BY 1";
    let rows = session.query(parts, &[]).await?;
    let month = |name: String| {
        let (year, month) = name.split_once('_')?;
        Date::new(year.parse().ok()?, month.parse().ok()?, 1).ok()
    };
    let mut months = Vec::with_capacity(rows.len());
    for row in &rows {
        months.extend(month(plain(row, 0)?));
    }
    Ok(months)
}

/// Returns the ranges of time before `before` that have no partition.
fn gaps(there: &[Month], before: Time) -> Vec<(Time, Time)> {
    let mut gaps = Vec::new();
    let mut from = Time::from_millis(0);
    for month in there {
        let (start, end) = (start_of(*month), start_of(next(*month)));
        if start >= before {
            break;
        }
        if from < start {
            gaps.push((from, start));
        }
        from = end;
    }
    if from < before && !there.is_empty() {
        // Without any partition, nothing is known about dropped ones.
        gaps.push((from, before));
    }
    gaps
}

fn range(from: Time, to: Time) -> (Col<[u8; 16]>, Col<[u8; 16]>) {
    (Col(min_bytes_at(from)), Col(min_bytes_at(to)))
}

/// Deletes the rows of other tables that belong to deliveries of dropped partitions.
async fn delete_dependents(tx: Tx, gaps: Vec<(Time, Time)>, rows: usize) -> Result<u64, Failure> {
    let mut pruned = 0;
    for (from, to) in gaps {
        let (from, to) = range(from, to);
        for table in ["dead", "undelivered", "attempt_index"] {
            let delete = format!(
                "DELETE FROM {table} WHERE delivery_id = ANY(ARRAY(SELECT delivery_id FROM {table}
                 WHERE delivery_id >= $1 AND delivery_id < $2 ORDER BY delivery_id LIMIT $3 FOR UPDATE SKIP LOCKED))"
            );
            pruned += tx.execute(&delete, &[&from, &to, &(rows as i64)]).await?;
        }
        if pruned > 0 {
            break;
        }
    }
    Ok(pruned)
}

/// Returns whether a partition is not needed: it has no pending deliveries or, with `only_empty`, no rows.
async fn is_droppable(session: Tx, month: Month, only_empty: bool) -> Result<bool, Failure> {
    let (from, to) = range(start_of(month), start_of(next(month)));
    if only_empty {
        let any = "SELECT EXISTS (SELECT 1 FROM events WHERE id >= $1 AND id < $2)
                       OR EXISTS (SELECT 1 FROM deliveries WHERE id >= $1 AND id < $2)";
        return Ok(!plain::<bool>(&session.query_one(any, &[&from, &to]).await?, 0)?);
    }
    has_pending(&session, from, to).await.map(|pending| !pending)
}

/// Returns whether any delivery in this id range is waiting or leased. It is one statement, so that a delivery
/// that moves between the two concurrently is seen in one of them.
async fn has_pending(session: &Session, from: Col<[u8; 16]>, to: Col<[u8; 16]>) -> Result<bool, Failure> {
    let pending = "SELECT EXISTS (SELECT 1 FROM waiting WHERE delivery_id >= $1 AND delivery_id < $2)
         OR EXISTS (SELECT 1 FROM leased WHERE delivery_id >= $1 AND delivery_id < $2)";
    plain(&session.query_one(pending, &[&from, &to]).await?, 0)
}

/// Lock timeout of a drop, which limits how long other transactions wait behind it.
const LOCK_TIMEOUT_MS: u32 = 50;

/// Drops a partition, unless it is needed after all. The tables are locked exclusively: a round that was being
/// created from a row in it has been committed by then and keeps the partition, and one that starts later finds no
/// row.
async fn drop_month(tx: Tx, schema: &str, month: Month, only_empty: bool) -> Result<bool, Failure> {
    tx.query("SELECT pg_advisory_xact_lock(hashtext('redrive partitions'), hashtext($1))", &[&schema])
        .await?;
    let parts: Vec<_> = TABLES.iter().map(|(table, _)| part(table, month)).collect();
    tx.run(&format!("SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}")).await?;
    tx.run("LOCK TABLE ONLY events, ONLY deliveries, ONLY attempts IN ACCESS EXCLUSIVE MODE").await?;
    if !is_droppable(tx.clone(), month, only_empty).await? {
        return Ok(false);
    }
    tx.run(&format!("DROP TABLE IF EXISTS {}", parts.join(", "))).await?;
    Ok(true)
}

fn part(table: &str, month: Month) -> String {
    format!("{table}_{:04}_{:02}", month.year(), month.month())
}

fn month_of(time: Time) -> Month {
    let stamp = Timestamp::from_millisecond(time.millis()).unwrap_or(Timestamp::UNIX_EPOCH);
    stamp.to_zoned(TimeZone::UTC).date().first_of_month()
}

fn next(month: Month) -> Month {
    month.checked_add(1.month()).unwrap_or(month)
}

fn start_of(month: Month) -> Time {
    let stamp = month.to_zoned(TimeZone::UTC).map(|zoned| zoned.timestamp().as_millisecond());
    Time::from_millis(stamp.unwrap_or_default())
}

/// Formats an id as PostgreSQL accepts it.
fn text_of(id: [u8; 16]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

async fn create(tx: Tx, schema: &str, month: Month) -> Result<(), Failure> {
    // One node at a time: the others wait, and find the partition attached.
    tx.query("SELECT pg_advisory_xact_lock(hashtext('redrive partitions'), hashtext($1))", &[&schema])
        .await?;
    let from = text_of(min_bytes_at(start_of(month)));
    let to = text_of(min_bytes_at(start_of(next(month))));
    for (table, storage) in TABLES {
        let part = part(table, month);
        let attached = "SELECT 1 FROM pg_inherits WHERE inhrelid = to_regclass($1)";
        if tx.exists(attached, &[&part]).await? {
            continue;
        }
        let mut statements = format!("CREATE TABLE IF NOT EXISTS {part} (LIKE {table} INCLUDING ALL);");
        if !storage.is_empty() {
            statements += &format!("ALTER TABLE {part} SET ({storage});");
        }
        if table == "deliveries" {
            statements += &format!(
                "CREATE UNIQUE INDEX IF NOT EXISTS {part}_by_event ON {part} (event_id, webhook_id, round);"
            );
        }
        statements +=
            &format!("ALTER TABLE {table} ATTACH PARTITION {part} FOR VALUES FROM ('{from}') TO ('{to}');");
        tx.run(&statements).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn month_boundaries_are_utc_month_starts() {
        let time = |text: &str| Time::parse(text).unwrap();
        for (at, start, after) in [
            ("2026-11-15T12:00:00Z", "2026-11-01T00:00:00Z", "2026-12-01T00:00:00Z"),
            ("2026-12-31T23:59:59.999Z", "2026-12-01T00:00:00Z", "2027-01-01T00:00:00Z"),
            ("2028-02-29T00:00:00Z", "2028-02-01T00:00:00Z", "2028-03-01T00:00:00Z"),
        ] {
            let month = month_of(time(at));
            assert_eq!(start_of(month), time(start));
            assert_eq!(start_of(next(month)), time(after));
            assert!(min_bytes_at(start_of(month)) <= min_bytes_at(time(at)));
            assert!(min_bytes_at(time(at)) < min_bytes_at(start_of(next(month))));
        }
    }
}
