//! Months: the partitions of events, deliveries and attempts. Made ahead, by whichever node is first, without
//! holding anybody up: a new month is a table of its own until it is attached. Dropped when nobody needs them, in
//! a moment when nobody uses them, which is not waited for.

use std::collections::BTreeSet;

use jiff::{Timestamp, ToSpan, civil::Date, tz::TimeZone};
use parking_lot::RwLock;
use redrive_core::{Time, id::first_at};

use super::{
    convert::{Col, plain},
    session::{Failure, Session, Sessions, Tx},
};
use crate::Dropped;

/// The first day of a month.
pub(super) type Month = Date;

/// What is kept by month, and how much room its pages leave for changes.
const TABLES: [(&str, &str); 3] = [("events", ""), ("deliveries", "fillfactor = 50"), ("attempts", "")];

/// The months that are known to be there.
pub(super) struct Partitions {
    known: RwLock<BTreeSet<Month>>,
    schema: String,
}

impl Partitions {
    pub(super) fn new(schema: &str) -> Self {
        Self { known: RwLock::default(), schema: schema.to_owned() }
    }

    /// The months of these times that are not known to be there.
    pub(super) fn missing(&self, times: impl Iterator<Item = Time>) -> BTreeSet<Month> {
        let known = self.known.read();
        let mut last = None;
        // Nearly all are of the time of the one before.
        let times = times.filter(|time| last.replace(*time) != Some(*time));
        times.map(month_of).filter(|month| !known.contains(month)).collect()
    }

    /// Makes months, those that are not there yet.
    pub(super) async fn make(&self, sessions: &Sessions, months: BTreeSet<Month>) -> Result<(), Failure> {
        for month in months {
            sessions.write(|tx| make(tx, &self.schema, month)).await?;
            self.known.write().insert(month);
        }
        Ok(())
    }

    /// Makes all months up to and with that of `until`, from that of `from` on.
    pub(super) async fn prepare(&self, sessions: &Sessions, from: Time, until: Time) -> Result<(), Failure> {
        let last = month_of(until);
        let mut month = month_of(from);
        let mut times = Vec::new();
        while month <= last {
            times.push(start_of(month));
            month = next(month);
        }
        self.make(sessions, self.missing(times.into_iter())).await
    }

    /// Drops the oldest month that was over before a time and is not needed, or takes away what is left beside
    /// one that was dropped.
    pub(super) async fn drop_one(
        &self,
        sessions: &Sessions,
        before: Time,
        only_empty: bool,
        rows: usize,
    ) -> Result<Dropped, Failure> {
        let there = sessions.read(all).await?;
        if sessions.write(|tx| forget_beside(tx, gaps(&there, before), rows)).await? > 0 {
            return Ok(Dropped::Some { months: 0 });
        }
        for month in there {
            if start_of(next(month)) > before {
                break;
            }
            // A look that costs nobody anything, before anything is locked.
            if !sessions.read(|session| is_done(session, month, only_empty)).await? {
                continue;
            }
            match sessions.write(|tx| drop_month(tx, &self.schema, month, only_empty)).await {
                Ok(true) => {
                    self.known.write().remove(&month);
                    return Ok(Dropped::Some { months: 1 });
                }
                Ok(false) => {}
                Err(failure) if failure.is_lock_timeout() => return Ok(Dropped::Busy),
                Err(failure) => return Err(failure),
            }
        }
        Ok(Dropped::None)
    }
}

/// The months that are there, the oldest first.
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

/// The times before a time that no month is there for.
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
        // Without any month, nothing is known of what was.
        gaps.push((from, before));
    }
    gaps
}

fn range(from: Time, to: Time) -> (Col<[u8; 16]>, Col<[u8; 16]>) {
    (Col(first_at(from)), Col(first_at(to)))
}

/// Takes away what is kept beside deliveries that went with their month.
async fn forget_beside(tx: Tx, gaps: Vec<(Time, Time)>, rows: usize) -> Result<u64, Failure> {
    let mut forgotten = 0;
    for (from, to) in gaps {
        let (from, to) = range(from, to);
        for table in ["dead", "undelivered"] {
            let forget = format!(
                "DELETE FROM {table} WHERE delivery = ANY(ARRAY(SELECT delivery FROM {table}
                 WHERE delivery >= $1 AND delivery < $2 ORDER BY delivery LIMIT $3 FOR UPDATE SKIP LOCKED))"
            );
            forgotten += tx.execute(&forget, &[&from, &to, &(rows as i64)]).await?;
        }
        if forgotten > 0 {
            break;
        }
    }
    Ok(forgotten)
}

/// Whether nothing in a month is needed: all of it is over, or with `only_empty` there is nothing.
async fn is_done(session: Tx, month: Month, only_empty: bool) -> Result<bool, Failure> {
    let (from, to) = range(start_of(month), start_of(next(month)));
    if only_empty {
        let any = "SELECT EXISTS (SELECT 1 FROM events WHERE id >= $1 AND id < $2)
                       OR EXISTS (SELECT 1 FROM deliveries WHERE id >= $1 AND id < $2)";
        return Ok(!plain::<bool>(&session.query_one(any, &[&from, &to]).await?, 0)?);
    }
    has_pending(&session, from, to).await.map(|pending| !pending)
}

/// Whether anything of these ids waits or is leased. By one statement: what moves from one to the other meanwhile
/// is seen in one of the two.
async fn has_pending(session: &Session, from: Col<[u8; 16]>, to: Col<[u8; 16]>) -> Result<bool, Failure> {
    let pending = "SELECT EXISTS (SELECT 1 FROM waiting WHERE delivery >= $1 AND delivery < $2)
         OR EXISTS (SELECT 1 FROM leased WHERE delivery >= $1 AND delivery < $2)";
    plain(&session.query_one(pending, &[&from, &to]).await?, 0)
}

/// How long anybody may have to wait because a month is to be dropped.
const PATIENCE_MS: u32 = 50;

/// Drops a month, unless it is needed after all. Nobody else uses the tables meanwhile: a round that was being
/// made of something in it is there by then and keeps it, one that is made later finds nothing.
async fn drop_month(tx: Tx, schema: &str, month: Month, only_empty: bool) -> Result<bool, Failure> {
    tx.query("SELECT pg_advisory_xact_lock(hashtext('redrive partitions'), hashtext($1))", &[&schema])
        .await?;
    let parts: Vec<_> = TABLES.iter().map(|(table, _)| part(table, month)).collect();
    tx.run(&format!("SET LOCAL lock_timeout = {PATIENCE_MS}")).await?;
    tx.run("LOCK TABLE ONLY events, ONLY deliveries, ONLY attempts IN ACCESS EXCLUSIVE MODE").await?;
    if !is_done(tx.clone(), month, only_empty).await? {
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

/// An id as PostgreSQL writes it.
fn text_of(id: [u8; 16]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

async fn make(tx: Tx, schema: &str, month: Month) -> Result<(), Failure> {
    // One at a time: the others wait, and find it made.
    tx.query("SELECT pg_advisory_xact_lock(hashtext('redrive partitions'), hashtext($1))", &[&schema])
        .await?;
    let from = text_of(first_at(start_of(month)));
    let to = text_of(first_at(start_of(next(month))));
    for (table, storage) in TABLES {
        let part = part(table, month);
        let attached = "SELECT 1 FROM pg_inherits WHERE inhrelid = to_regclass($1)";
        if tx.exists(attached, &[&part]).await? {
            continue;
        }
        let mut make = format!("CREATE TABLE IF NOT EXISTS {part} (LIKE {table} INCLUDING ALL);");
        if !storage.is_empty() {
            make += &format!("ALTER TABLE {part} SET ({storage});");
        }
        if table == "deliveries" {
            make += &format!(
                "CREATE UNIQUE INDEX IF NOT EXISTS {part}_by_event ON {part} (event, webhook, round);"
            );
        }
        make +=
            &format!("ALTER TABLE {table} ATTACH PARTITION {part} FOR VALUES FROM ('{from}') TO ('{to}');");
        tx.run(&make).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn months_begin_where_they_should() {
        let time = |text: &str| Time::parse(text).unwrap();
        for (at, start, after) in [
            ("2026-11-15T12:00:00Z", "2026-11-01T00:00:00Z", "2026-12-01T00:00:00Z"),
            ("2026-12-31T23:59:59.999Z", "2026-12-01T00:00:00Z", "2027-01-01T00:00:00Z"),
            ("2028-02-29T00:00:00Z", "2028-02-01T00:00:00Z", "2028-03-01T00:00:00Z"),
        ] {
            let month = month_of(time(at));
            assert_eq!(start_of(month), time(start));
            assert_eq!(start_of(next(month)), time(after));
            assert!(first_at(start_of(month)) <= first_at(time(at)));
            assert!(first_at(time(at)) < first_at(start_of(next(month))));
        }
    }
}
