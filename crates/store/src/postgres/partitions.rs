//! Months: the partitions of events, deliveries and attempts. Made ahead, by whichever node is first, without
//! holding anybody up: a new month is a table of its own until it is attached.

use std::collections::BTreeSet;

use jiff::{Timestamp, ToSpan, civil::Date, tz::TimeZone};
use parking_lot::RwLock;
use redrive_core::{Time, id::first_at};

use super::session::{Failure, Sessions, Tx};

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
        let part = format!("{table}_{:04}_{:02}", month.year(), month.month());
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
