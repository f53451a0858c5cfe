//! Archive outbox: pruned rows that wait to be archived.

use rusqlite::{OptionalExtension, Transaction};

use super::Sqlite;
use crate::{
    ArchiveObject, ArchiveOutbox, PruneCounts, StoreFuture,
    archive::{self, FrameBuilder},
};

const SELECT_STARTED_OBJECT: &str =
    "SELECT object FROM archive_outbox WHERE object IS NOT NULL ORDER BY object LIMIT 1";
const FRAMES: &str = "SELECT number, day, events, deliveries, attempts, frame FROM archive_outbox
     WHERE object IS ? AND (?2 IS NULL OR day = ?2) ORDER BY number";

impl ArchiveOutbox for Sqlite {
    fn next_object(&self, min: usize, max: usize) -> StoreFuture<'_, Option<ArchiveObject>> {
        self.write(move |transaction| {
            let started: Option<String> =
                transaction.query_row(SELECT_STARTED_OBJECT, (), |row| row.get(0)).optional()?;
            if let Some(name) = started {
                let (object, _) = join_frames(transaction, Some(&name), None, usize::MAX)?;
                return Ok(object.map(|object| ArchiveObject { name, ..object }));
            }
            let waiting: i64 =
                transaction
                    .query_row("SELECT ifnull(sum(length(frame)), 0) FROM archive_outbox", (), |row| row.get(0))?;
            let day = "SELECT day FROM archive_outbox ORDER BY number LIMIT 1";
            let day: Option<String> = transaction.query_row(day, (), |row| row.get(0)).optional()?;
            let Some(day) = day.filter(|_| waiting >= min as i64) else { return Ok(None) };
            let (object, last) = join_frames(transaction, None, Some(&day), max)?;
            if let Some(object) = &object {
                transaction.execute(
                    "UPDATE archive_outbox SET object = ?1 WHERE object IS NULL AND day = ?2 AND number <= ?3",
                    (&object.name, &day, last),
                )?;
            }
            Ok(object)
        })
    }

    fn object_stored(&self, name: String) -> StoreFuture<'_, ()> {
        self.write(move |transaction| {
            transaction.execute("DELETE FROM archive_outbox WHERE object = ?", [name]).map(drop)
        })
    }
}

/// Joins the frames of an object, or of frames without an object, up to the size limit. Returns it with the number
/// of the last frame.
fn join_frames(
    transaction: &Transaction<'_>,
    object: Option<&str>,
    day: Option<&str>,
    max: usize,
) -> rusqlite::Result<(Option<ArchiveObject>, i64)> {
    let mut statement = transaction.prepare_cached(FRAMES)?;
    let mut rows = statement.query((object, day))?;
    let (mut frames, mut holds, mut bytes, mut last) = (Vec::<Vec<u8>>::new(), PruneCounts::default(), 0, 0);
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
        if bytes >= max {
            break;
        }
    }
    Ok((first.map(|(number, day)| archive::build_object(&day, number, &frames, holds)), last))
}

/// Inserts packed rows into the outbox.
pub(super) fn insert_frames(transaction: &Transaction<'_>, packing: FrameBuilder) -> rusqlite::Result<()> {
    for frame in packing.frames().map_err(not_packed)? {
        transaction
            .prepare_cached(
                "INSERT INTO archive_outbox (day, events, deliveries, attempts, frame) VALUES (?, ?, ?, ?, ?)",
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
