//! Walking deliveries and events from the oldest on, along an index and in slices. What else is asked of them is
//! asked of what comes out: a walk costs what it looks at, whoever walks.

use redrive_core::{
    DeliveryId, EventId, TenantId, Time,
    delivery::bulk_operation::{Among, Candidate},
    id::first_at,
};
use tokio_postgres::Row;

use super::{
    convert::{Col, get, get_opt, plain},
    session::{Failure, Session},
};
use crate::{EventHead, Walk, WalkCursor, Walked};

/// Deliveries looked at for each event that is, at the most and on average.
const FAN_OUT: i64 = 4;

macro_rules! seen {
    ($rest:literal) => {
        concat!(
            "SELECT d.event, d.id, e.event_type, d.webhook, d.status, d.failure_category, d.priority, d.created_at,
                    d.ended_at, d.redriven_as IS NOT NULL, d.dead_reason,
                    coalesce((SELECT h.managed_by_operator FROM webhooks h WHERE h.id = d.webhook LIMIT 1), false), ",
            $rest
        )
    };
}

/// Letters of which nothing else is left are passed by.
const OF_DEAD: &str = seen!(
    "x.delivery, e.id FROM (SELECT delivery FROM dead WHERE tenant = $1 AND delivery >= $2 AND delivery < $3
         AND delivery > $4 ORDER BY delivery LIMIT $5) x
     LEFT JOIN LATERAL (SELECT * FROM deliveries d WHERE d.id = x.delivery LIMIT 1) d ON true
     LEFT JOIN LATERAL (SELECT * FROM events e WHERE e.tenant = d.tenant AND e.id = d.event LIMIT 1) e ON true
     ORDER BY x.delivery"
);
/// What waits is not kept by tenant: others' are passed by. What is leased is little.
const OF_PENDING: &str = seen!(
    "x.delivery, e.id FROM (SELECT delivery FROM (
         (SELECT delivery FROM waiting WHERE delivery >= $2 AND delivery < $3 AND delivery > $4
          ORDER BY delivery LIMIT $5)
         UNION ALL SELECT delivery FROM leased WHERE delivery >= $2 AND delivery < $3 AND delivery > $4) p
         ORDER BY delivery LIMIT $5) x
     LEFT JOIN LATERAL (SELECT * FROM deliveries d WHERE d.id = x.delivery AND d.tenant = $1 LIMIT 1) d ON true
     LEFT JOIN LATERAL (SELECT * FROM events e WHERE e.tenant = d.tenant AND e.id = d.event LIMIT 1) e ON true
     ORDER BY x.delivery"
);
const OF_WEBHOOK: &str = seen!(
    "d.id, e.id FROM (SELECT * FROM deliveries d WHERE d.webhook = $6 AND d.tenant = $1 AND d.id >= $2 AND d.id < $3
         AND d.id > $4 ORDER BY d.id LIMIT $5) d
     CROSS JOIN LATERAL (SELECT * FROM events e WHERE e.tenant = d.tenant AND e.id = d.event LIMIT 1) e
     ORDER BY d.id"
);
/// So many events, those without deliveries too, and so many of their deliveries. An event's deliveries are of the same
/// millisecond, and so of the same month.
const OF_EVENTS: &str = seen!(
    "d.id, e.id FROM (SELECT * FROM events e WHERE e.tenant = $1 AND e.id >= $2 AND e.id < $3
         ORDER BY e.id LIMIT $5::int8 + 1) e
     LEFT JOIN LATERAL (
         SELECT * FROM deliveries d WHERE d.event = e.id
             AND d.id >= (left(e.id::text, 13) || '-0000-0000-000000000000')::uuid
             AND d.id <= (left(e.id::text, 13) || '-ffff-ffff-ffffffffffff')::uuid OFFSET 0) d ON true
     WHERE e.id > $2 OR d.id > $4 OR d.id IS NULL ORDER BY e.id, d.id LIMIT $6"
);
const EVENTS: &str = "SELECT id, event_type, subject, priority FROM events
     WHERE tenant = $1 AND id >= $2 AND id < $3 AND id > $4 ORDER BY id LIMIT $5";

/// The statements whose cost must follow what they look at: a test explains their plans.
#[cfg(feature = "conformance")]
pub(super) const PLANNED: [(&str, &str); 5] = [
    ("walk dead letters", OF_DEAD),
    ("walk a webhook's deliveries", OF_WEBHOOK),
    ("walk deliveries", OF_EVENTS),
    ("walk what is pending", OF_PENDING),
    ("walk events", EVENTS),
];

/// Deliveries, oldest event first.
pub(super) async fn deliveries(session: &Session, tenant: &TenantId, walk: &Walk) -> Result<Walked, Failure> {
    let least = walk.from.map_or([0; 16], first_at);
    let end = walk.to.map_or([0xff; 16], first_at);
    let after = Col(walk.after.and_then(|after| after.delivery).unwrap_or(DeliveryId::from_bytes([0; 16])));
    let (tenant, begin, end, limit) = (tenant.as_str(), Col(least), Col(end), walk.limit as i64);
    let rows = match (walk.among, walk.webhook) {
        (Among::Dead, _) => session.query(OF_DEAD, &[&tenant, &begin, &end, &after, &limit]).await?,
        (Among::Pending, _) => session.query(OF_PENDING, &[&tenant, &begin, &end, &after, &limit]).await?,
        (_, Some(webhook)) => {
            session.query(OF_WEBHOOK, &[&tenant, &begin, &end, &after, &limit, &Col(webhook)]).await?
        }
        (_, None) => {
            let begin = Col(walk.after.map_or(least, |after| least.max(*after.event.as_bytes())));
            let most = limit * FAN_OUT;
            let rows = session.query(OF_EVENTS, &[&tenant, &begin, &end, &after, &limit, &most]).await?;
            return of_events(&rows, walk, most as usize);
        }
    };
    let (mut walked, mut last) = (Walked::default(), None);
    for row in &rows {
        let at: DeliveryId = get(row, 12)?;
        let Some(event) = get_opt(row, 13)? else {
            // Somebody else's, or not there any more.
            last = Some(WalkCursor { event: EventId::first_at(at.time()), delivery: Some(at) });
            continue;
        };
        let cursor = WalkCursor { event, delivery: Some(at) };
        last = Some(cursor);
        let candidate = candidate(row)?;
        if walk.webhook.is_none_or(|webhook| candidate.webhook == webhook) {
            walked.found.push((cursor, candidate));
        }
    }
    walked.next = last.filter(|_| rows.len() == walk.limit);
    Ok(walked)
}

/// Deliveries of a slice of events. It ends with the last of the events, or where there are too many deliveries.
fn of_events(rows: &[Row], walk: &Walk, most: usize) -> Result<Walked, Failure> {
    let (mut walked, mut events, mut last) = (Walked::default(), 0, None);
    for row in rows {
        let (event, delivery): (EventId, Option<DeliveryId>) = (get(row, 13)?, get_opt(row, 12)?);
        if last.is_none_or(|(before, _)| before != event) {
            events += 1;
        }
        last = Some((event, delivery));
        if delivery.is_some() {
            walked.found.push((WalkCursor { event, delivery }, candidate(row)?));
        }
    }
    // The one to begin with may be through, and is not among the rows then: there was room for one more.
    walked.next = last.filter(|_| rows.len() == most || events >= walk.limit).map(|(event, delivery)| {
        let all = DeliveryId::from_bytes([0xff; 16]);
        WalkCursor { event, delivery: Some(delivery.filter(|_| rows.len() == most).unwrap_or(all)) }
    });
    Ok(walked)
}

fn candidate(row: &Row) -> Result<Candidate, Failure> {
    Ok(Candidate {
        event_type: plain(row, 2)?,
        webhook: get(row, 3)?,
        status: get(row, 4)?,
        failure_category: get_opt(row, 5)?,
        priority: get(row, 6)?,
        created_at: get(row, 7)?,
        ended_at: get_opt(row, 8)?,
        is_redriven: plain(row, 9)?,
        dead_reason: get_opt(row, 10)?,
        is_operator_managed: plain(row, 11)?,
    })
}

/// Events, oldest first.
pub(super) async fn events(
    session: &Session,
    tenant: &TenantId,
    (from, to): (Option<Time>, Option<Time>),
    after: Option<EventId>,
    limit: usize,
) -> Result<Vec<EventHead>, Failure> {
    let (from, to) = (Col(from.map_or([0; 16], first_at)), Col(to.map_or([0xff; 16], first_at)));
    let after = Col(after.map_or([0; 16], |after| *after.as_bytes()));
    let rows = session.query(EVENTS, &[&tenant.as_str(), &from, &to, &after, &(limit as i64)]).await?;
    let heads = rows.iter().map(|row| {
        Ok(EventHead {
            id: get(row, 0)?,
            event_type: plain(row, 1)?,
            subject: plain(row, 2)?,
            priority: get(row, 3)?,
        })
    });
    heads.collect()
}
