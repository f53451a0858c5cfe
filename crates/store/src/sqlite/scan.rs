//! Walking deliveries and events from the oldest on, along an index and in slices. What else is asked of them is
//! asked of what comes out: a walk costs what it looks at, whoever walks.

use redrive_core::{
    DeliveryId, EventId, TenantId, Time,
    delivery::bulk_operation::{Among, Candidate},
    id::first_at,
};
use rusqlite::{Connection, Row, Rows};

use super::convert::{Col, get, get_opt};
use crate::{EventHead, Walk, WalkCursor, Walked};

const SEEN: &str =
    "d.event, d.id, e.event_type, d.webhook, d.status, d.failure_category, d.priority, d.created_at,
         d.ended_at, d.redriven_as IS NOT NULL, d.dead_reason,
         coalesce((SELECT h.managed_by_operator FROM webhooks h WHERE h.id = d.webhook), 0)";
const EVENT: &str = "events e ON e.tenant = d.tenant AND e.id = d.event";

/// Deliveries looked at for each event that is, at the most and on average.
const FAN_OUT: usize = 4;

/// The statement of a walk. The ids of deliveries take their events' times, so a range of times is one of ids.
/// CROSS JOIN keeps the order of tables: the index that is walked leads.
pub(super) fn statement(walk: &Walk) -> String {
    match (walk.among, walk.webhook) {
        (Among::Dead, _) => format!(
            "SELECT {SEEN}, x.delivery FROM dead x CROSS JOIN deliveries d ON d.id = x.delivery CROSS JOIN {EVENT}
             WHERE x.tenant = ?1 AND x.delivery >= ?2 AND x.delivery < ?3 AND x.delivery > ?4
                 AND (?6 IS NULL OR d.webhook = ?6) ORDER BY x.delivery LIMIT ?5"
        ),
        // What waits is not kept by tenant: others' are passed by.
        (Among::Pending, _) => format!(
            "SELECT {SEEN}, x.delivery FROM (
                 SELECT delivery FROM waiting WHERE delivery >= ?2 AND delivery < ?3 AND delivery > ?4
                 UNION ALL SELECT delivery FROM leased WHERE delivery >= ?2 AND delivery < ?3 AND delivery > ?4
                 ORDER BY delivery LIMIT ?5) x
             LEFT JOIN deliveries d ON d.id = x.delivery AND d.tenant = ?1 AND (?6 IS NULL OR d.webhook = ?6)
             LEFT JOIN {EVENT} ORDER BY x.delivery"
        ),
        (Among::Deliveries | Among::Events, Some(_)) => format!(
            "SELECT {SEEN}, d.id FROM deliveries d CROSS JOIN {EVENT}
             WHERE d.webhook = ?6 AND d.tenant = ?1 AND d.id >= ?2 AND d.id < ?3 AND d.id > ?4
             ORDER BY d.id LIMIT ?5"
        ),
        // So many events, those without deliveries too, and so many of their deliveries.
        (Among::Deliveries | Among::Events, None) => format!(
            "SELECT {SEEN}, d.id, e.id FROM (
                 SELECT id, tenant, event_type FROM events WHERE tenant = ?1 AND id >= ?2 AND id < ?3
                 ORDER BY id LIMIT ?5 + 1) e
             LEFT JOIN deliveries d ON d.event = e.id
             WHERE (e.id > ?2 OR d.id > ?4 OR d.id IS NULL) AND ?6 IS NULL
             ORDER BY e.id, d.id LIMIT ?5 * {FAN_OUT}"
        ),
    }
}

/// Deliveries, oldest event first.
pub(super) fn deliveries(
    connection: &Connection,
    tenant: &TenantId,
    walk: &Walk,
) -> rusqlite::Result<Walked> {
    let least = walk.from.map_or(EventId::from_bytes([0; 16]), |from| EventId::from_bytes(first_at(from)));
    let end = walk.to.map_or(EventId::from_bytes([0xff; 16]), |to| EventId::from_bytes(first_at(to)));
    let begin = walk.after.map_or(least, |after| after.event.max(least));
    // Where deliveries are walked, their own ids tell where to begin.
    let by_event = walk.webhook.is_none() && matches!(walk.among, Among::Deliveries | Among::Events);
    let begin = if by_event { begin } else { least };
    let after = walk.after.and_then(|after| after.delivery).unwrap_or(DeliveryId::from_bytes([0; 16]));
    let mut statement = connection.prepare_cached(&statement(walk))?;
    let mut rows = statement.query((
        tenant.as_str(),
        Col(begin),
        Col(end),
        Col(after),
        walk.limit as i64,
        walk.webhook.map(Col),
    ))?;
    if by_event {
        return of_events(&mut rows, walk);
    }
    let (mut walked, mut seen, mut last) = (Walked::default(), 0, None);
    while let Some(row) = rows.next()? {
        seen += 1;
        let at = get(row, 12)?;
        match get_opt(row, 0)? {
            Some(event) => {
                let cursor = WalkCursor { event, delivery: Some(at) };
                walked.found.push((cursor, candidate(row)?));
                last = Some(cursor);
            }
            // Somebody else's.
            None => last = Some(WalkCursor { event: EventId::first_at(at.time()), delivery: Some(at) }),
        }
    }
    walked.next = last.filter(|_| seen == walk.limit);
    Ok(walked)
}

/// Deliveries of a slice of events. It ends with the last of the events, or where there are too many deliveries.
fn of_events(rows: &mut Rows<'_>, walk: &Walk) -> rusqlite::Result<Walked> {
    let (mut walked, mut seen, mut events, mut last) = (Walked::default(), 0, 0, None);
    while let Some(row) = rows.next()? {
        seen += 1;
        let (event, delivery): (EventId, Option<DeliveryId>) = (get(row, 13)?, get_opt(row, 12)?);
        if last.is_none_or(|(before, _)| before != event) {
            events += 1;
        }
        last = Some((event, delivery));
        if delivery.is_some() {
            walked.found.push((WalkCursor { event, delivery }, candidate(row)?));
        }
    }
    let is_full = seen == walk.limit * FAN_OUT;
    // The one to begin with may be through, and is not among the rows then: there was room for one more.
    walked.next = last.filter(|_| is_full || events >= walk.limit).map(|(event, delivery)| {
        let all = DeliveryId::from_bytes([0xff; 16]);
        WalkCursor { event, delivery: Some(delivery.filter(|_| is_full).unwrap_or(all)) }
    });
    Ok(walked)
}

fn candidate(row: &Row<'_>) -> rusqlite::Result<Candidate> {
    Ok(Candidate {
        event_type: row.get(2)?,
        webhook: get(row, 3)?,
        status: get(row, 4)?,
        failure_category: get_opt(row, 5)?,
        priority: get(row, 6)?,
        created_at: get(row, 7)?,
        ended_at: get_opt(row, 8)?,
        is_redriven: row.get(9)?,
        dead_reason: get_opt(row, 10)?,
        is_operator_managed: row.get(11)?,
    })
}

/// Events, oldest first.
pub(super) fn events(
    connection: &Connection,
    tenant: &TenantId,
    (from, to): (Option<Time>, Option<Time>),
    after: Option<EventId>,
    limit: usize,
) -> rusqlite::Result<Vec<EventHead>> {
    let from = from.map_or(EventId::from_bytes([0; 16]), EventId::first_at);
    let to = to.map_or(EventId::from_bytes([0xff; 16]), EventId::first_at);
    let after = after.unwrap_or(EventId::from_bytes([0; 16]));
    let heads = |row: &Row<'_>| {
        Ok(EventHead {
            id: get(row, 0)?,
            event_type: row.get(1)?,
            subject: row.get(2)?,
            priority: get(row, 3)?,
        })
    };
    connection
        .prepare_cached(
            "SELECT id, event_type, subject, priority FROM events
             WHERE tenant = ? AND id >= ? AND id < ? AND id > ? ORDER BY id LIMIT ?",
        )?
        .query_map((tenant.as_str(), Col(from), Col(to), Col(after), limit as i64), heads)?
        .collect()
}
