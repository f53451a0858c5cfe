//! The archive outbox: pruned rows that wait to be archived.

use super::{
    Postgres,
    convert::plain,
    session::{Failure, Session, Tx},
};
use crate::{
    ArchiveObject, ArchiveOutbox, PruneCounts, StoreFuture,
    archive::{self, FrameBuilder},
};

const SELECT_STARTED_OBJECT: &str =
    "SELECT object FROM archive_outbox WHERE object IS NOT NULL ORDER BY object LIMIT 1";
/// The frames of an object, or those of a day that belong to no object yet, until $3 bytes are reached.
const FRAMES: &str = "SELECT number, day, events, deliveries, attempts, frame FROM (
         SELECT a.*, (sum(octet_length(frame)) OVER (ORDER BY number) - octet_length(frame))::bigint AS before
         FROM archive_outbox a
         WHERE object IS NOT DISTINCT FROM $1 AND day = coalesce($2, day)) a
     WHERE before < $3 ORDER BY number";
const INSERT_FRAMES: &str =
    "INSERT INTO archive_outbox (day, events, deliveries, attempts, frame) VALUES ($1, $2, $3, $4, $5)";

impl ArchiveOutbox for Postgres {
    fn next_object(&self, min: usize, max: usize) -> StoreFuture<'_, Option<ArchiveObject>> {
        Box::pin(async move { self.write(|tx| next_object(tx, min, max)).await })
    }

    fn object_stored(&self, name: String) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            let name = &name;
            let stored = "DELETE FROM archive_outbox WHERE object = $1";
            self.write(|tx| async move { tx.execute(stored, &[name]).await.map(drop) }).await
        })
    }
}

async fn next_object(tx: Tx, min: usize, max: usize) -> Result<Option<ArchiveObject>, Failure> {
    // One transaction at a time: two nodes that start objects concurrently would share frames.
    tx.run("LOCK TABLE archive_outbox IN SHARE ROW EXCLUSIVE MODE").await?;
    if let Some(row) = tx.query_opt(SELECT_STARTED_OBJECT, &[]).await? {
        let name: String = plain(&row, 0)?;
        let strung = join_frames(&tx, Some(&name), None, usize::MAX).await?;
        return Ok(strung.map(|(object, _)| ArchiveObject { name, ..object }));
    }
    let waiting = "SELECT coalesce(sum(octet_length(frame)), 0)::bigint FROM archive_outbox";
    let waiting: i64 = plain(&tx.query_one(waiting, &[]).await?, 0)?;
    let day = tx.query_opt("SELECT day FROM archive_outbox ORDER BY number LIMIT 1", &[]).await?;
    let Some(day) = day.filter(|_| waiting >= min as i64) else { return Ok(None) };
    let day: String = plain(&day, 0)?;
    let Some((object, numbers)) = join_frames(&tx, None, Some(&day), max).await? else {
        return Ok(None);
    };
    let begin = "UPDATE archive_outbox SET object = $1 WHERE number = ANY($2::bigint[])";
    tx.execute(begin, &[&object.name, &numbers]).await?;
    Ok(Some(object))
}

/// Joins frames into one object and returns it with their numbers.
async fn join_frames(
    tx: &Session,
    object: Option<&str>,
    day: Option<&str>,
    max: usize,
) -> Result<Option<(ArchiveObject, Vec<i64>)>, Failure> {
    let max = i64::try_from(max).unwrap_or(i64::MAX);
    let rows = tx.query(FRAMES, &[&object, &day, &max]).await?;
    let (mut frames, mut numbers, mut holds) = (Vec::new(), Vec::new(), PruneCounts::default());
    for row in &rows {
        numbers.push(plain(row, 0)?);
        holds.events += plain::<i64>(row, 2)? as usize;
        holds.deliveries += plain::<i64>(row, 3)? as usize;
        holds.attempts += plain::<i64>(row, 4)? as usize;
        frames.push(plain::<Vec<u8>>(row, 5)?);
    }
    let Some(first) = rows.first() else { return Ok(None) };
    let day: String = plain(first, 1)?;
    Ok(Some((archive::build_object(&day, numbers[0], &frames, holds), numbers)))
}

/// Stores the collected lines as frames until they are archived.
pub(super) async fn insert_frames(tx: &Session, packing: FrameBuilder) -> Result<(), Failure> {
    let frames = packing.frames().map_err(|error| Failure::InvalidData(error.to_string()))?;
    for frame in frames {
        let PruneCounts { events, deliveries, attempts } = frame.holds;
        let counts = [events as i64, deliveries as i64, attempts as i64];
        tx.execute(INSERT_FRAMES, &[&frame.day, &counts[0], &counts[1], &counts[2], &frame.bytes]).await?;
    }
    Ok(())
}
