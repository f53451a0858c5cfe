//! What was pruned and waits for the archive.

use rusqlite::{OptionalExtension, Transaction};

use super::Sqlite;
use crate::{
    Answer, ArchiveObject, Archiving, Left,
    archive::{self, Packing},
};

const BEGUN: &str = "SELECT object FROM archive WHERE object IS NOT NULL ORDER BY object LIMIT 1";
const FRAMES: &str = "SELECT number, day, events, deliveries, attempts, frame FROM archive
     WHERE object IS ? AND (?2 IS NULL OR day = ?2) ORDER BY number";

impl Archiving for Sqlite {
    fn next_object(&self, least: usize, most: usize) -> Answer<'_, Option<ArchiveObject>> {
        self.write(move |transaction| {
            let begun: Option<String> = transaction.query_row(BEGUN, (), |row| row.get(0)).optional()?;
            if let Some(name) = begun {
                let (object, _) = string_together(transaction, Some(&name), None, usize::MAX)?;
                return Ok(object.map(|object| ArchiveObject { name, ..object }));
            }
            let waiting: i64 =
                transaction
                    .query_row("SELECT ifnull(sum(length(frame)), 0) FROM archive", (), |row| row.get(0))?;
            let day = "SELECT day FROM archive ORDER BY number LIMIT 1";
            let day: Option<String> = transaction.query_row(day, (), |row| row.get(0)).optional()?;
            let Some(day) = day.filter(|_| waiting >= least as i64) else { return Ok(None) };
            let (object, last) = string_together(transaction, None, Some(&day), most)?;
            if let Some(object) = &object {
                transaction.execute(
                    "UPDATE archive SET object = ?1 WHERE object IS NULL AND day = ?2 AND number <= ?3",
                    (&object.name, &day, last),
                )?;
            }
            Ok(object)
        })
    }

    fn object_stored(&self, name: String) -> Answer<'_, ()> {
        self.write(move |transaction| {
            transaction.execute("DELETE FROM archive WHERE object = ?", [name]).map(drop)
        })
    }
}

/// Frames of an object, or of those that have none yet, as many as fit. With the number of the last.
fn string_together(
    transaction: &Transaction<'_>,
    object: Option<&str>,
    day: Option<&str>,
    most: usize,
) -> rusqlite::Result<(Option<ArchiveObject>, i64)> {
    let mut statement = transaction.prepare_cached(FRAMES)?;
    let mut rows = statement.query((object, day))?;
    let (mut frames, mut holds, mut bytes, mut last) = (Vec::<Vec<u8>>::new(), Left::default(), 0, 0);
    let mut first: Option<(i64, String)> = None;
    while let Some(row) = rows.next()? {
        last = row.get(0)?;
        if first.is_none() {
            first = Some((last, row.get(1)?));
        }
        holds.events += row.get::<_, i64>(2)? as usize;
        holds.deliveries += row.get::<_, i64>(3)? as usize;
        holds.attempts += row.get::<_, i64>(4)? as usize;
        let frame: Vec<u8> = row.get(5)?;
        bytes += frame.len();
        frames.push(frame);
        if bytes >= most {
            break;
        }
    }
    Ok((first.map(|(number, day)| archive::object(&day, number, &frames, holds)), last))
}

/// Keeps what was gathered until it is in the archive.
pub(super) fn keep(transaction: &Transaction<'_>, packing: Packing) -> rusqlite::Result<()> {
    for frame in packing.frames().map_err(not_packed)? {
        transaction
            .prepare_cached(
                "INSERT INTO archive (day, events, deliveries, attempts, frame) VALUES (?, ?, ?, ?, ?)",
            )?
            .execute((
                &frame.day,
                frame.holds.events as i64,
                frame.holds.deliveries as i64,
                frame.holds.attempts as i64,
                &frame.bytes,
            ))?;
    }
    Ok(())
}

pub(super) fn not_packed(error: impl std::error::Error + Send + Sync + 'static) -> rusqlite::Error {
    rusqlite::Error::ToSqlConversionFailure(Box::new(error))
}
