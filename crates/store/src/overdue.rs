//! Age of due deliveries by pool: the queries of both backends, and the evaluation of their rows.

use std::collections::BTreeMap;

use redrive_core::Time;

/// Each pool with lanes that no node has claimed, and the earliest wake time of these lanes.
pub(crate) const SELECT_UNCLAIMED_LANES: &str = "WITH RECURSIVE pools(pool) AS (
         SELECT (SELECT l.pool FROM lanes l WHERE l.claimed_by IS NULL AND l.pool > '' ORDER BY l.pool LIMIT 1)
         UNION ALL
         SELECT (SELECT l.pool FROM lanes l WHERE l.claimed_by IS NULL AND l.pool > p.pool ORDER BY l.pool LIMIT 1)
         FROM pools p WHERE p.pool IS NOT NULL)
     SELECT p.pool, (SELECT l.wake_at FROM lanes l WHERE l.pool = p.pool AND l.claimed_by IS NULL
                     ORDER BY l.wake_at LIMIT 1)
     FROM pools p WHERE p.pool IS NOT NULL";
/// The pools of up to 1,000 claimed lanes, each with the due time of the lane's first delivery.
pub(crate) const SELECT_CLAIMED_LANES: &str =
    "SELECT h.pool, (SELECT w.due FROM waiting w WHERE w.webhook_id = h.webhook_id AND w.lane = h.lane
                     ORDER BY w.sort_key, w.seq LIMIT 1)
     FROM (SELECT webhook_id, lane, pool FROM lanes WHERE claimed_by > 0 LIMIT 1000) h";

/// Returns the earliest time of each pool, leaving out times after `now`.
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
