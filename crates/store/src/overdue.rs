//! How long what is due waits: what both backends ask of their lanes, and what they make of the answers.

use std::collections::BTreeMap;

use redrive_core::Time;

/// Each pool with lanes that nobody has taken on, and when the first of them is to be looked into.
pub(crate) const FREE: &str = "WITH RECURSIVE pools(pool) AS (
         SELECT (SELECT l.pool FROM lanes l WHERE l.held_by IS NULL AND l.pool > '' ORDER BY l.pool LIMIT 1)
         UNION ALL
         SELECT (SELECT l.pool FROM lanes l WHERE l.held_by IS NULL AND l.pool > p.pool ORDER BY l.pool LIMIT 1)
         FROM pools p WHERE p.pool IS NOT NULL)
     SELECT p.pool, (SELECT l.wake_at FROM lanes l WHERE l.pool = p.pool AND l.held_by IS NULL
                     ORDER BY l.wake_at LIMIT 1)
     FROM pools p WHERE p.pool IS NOT NULL";
/// The pools of lanes that somebody has taken on, and when the first of each is due.
pub(crate) const HELD: &str =
    "SELECT h.pool, (SELECT w.due FROM waiting w WHERE w.webhook = h.webhook AND w.lane = h.lane
                     ORDER BY w.place, w.seq LIMIT 1)
     FROM (SELECT webhook, lane, pool FROM lanes WHERE held_by > 0 LIMIT 1000) h";

/// The earliest time of each pool, of those that are there by now.
pub(crate) fn earliest(seen: Vec<(String, Option<Time>)>, now: Time) -> BTreeMap<String, Time> {
    let mut earliest = BTreeMap::new();
    for (pool, due) in seen {
        if let Some(due) = due.filter(|due| *due <= now) {
            let known = earliest.entry(pool).or_insert(due);
            *known = due.min(*known);
        }
    }
    earliest
}
