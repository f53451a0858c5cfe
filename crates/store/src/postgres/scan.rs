//! Scans of deliveries and events from the oldest on, along an index and in pages. Other filters are applied to
//! the rows of a page, so the cost of a scan is proportional to the rows it reads.

use redrive_core::{
    DeliveryId, EventId, TenantId, Time,
    delivery::bulk_operation::{Candidate, OperationTarget},
    id::min_bytes_at,
};
use tokio_postgres::Row;

use super::{
    convert::{Col, get, get_opt, plain},
    session::{Failure, Session, Tx},
};
use crate::{EventSummary, PayloadPage, PayloadScan, Scan, ScanCursor, ScanPage};

/// Maximum deliveries read per event of a page, on average.
const FAN_OUT: i64 = 4;

macro_rules! scan_columns {
    ($rest:literal) => {
        concat!(
            "SELECT d.event_id, d.id, e.event_type, d.webhook_id, d.status, d.failure_category, d.priority,
             d.created_at,
                    d.ended_at, d.redriven_as, d.dead_reason,
                    coalesce((SELECT h.managed_by_operator FROM webhooks h WHERE h.id = d.webhook_id
                    LIMIT 1), false), d.last_status_code, e.idempotency_key, e.subject, d.purged_at IS NOT NULL,
                    e.erased_at IS NOT NULL, ",
            $rest
        )
    };
}

/// Columns after those: the scanned delivery, and its event.
const SCANNED_DELIVERY: usize = 17;
const SCANNED_EVENT: usize = 18;

/// Dead letters whose delivery or event is gone are skipped by the caller.
const SCAN_DEAD: &str = scan_columns!(
    "x.delivery_id, e.id FROM (SELECT delivery_id FROM dead WHERE tenant_id = $1 AND delivery_id >= $2
     AND delivery_id < $3
         AND delivery_id > $4 ORDER BY delivery_id LIMIT $5) x
     LEFT JOIN LATERAL (SELECT * FROM deliveries d WHERE d.id = x.delivery_id LIMIT 1) d ON true
     LEFT JOIN LATERAL (SELECT * FROM events e WHERE e.tenant_id = d.tenant_id AND e.id = d.event_id LIMIT 1) e ON true
     ORDER BY x.delivery_id"
);
/// `waiting` has no index by tenant: rows of other tenants are skipped by the caller. There are few rows in
/// `leased`.
const SCAN_PENDING: &str = scan_columns!(
    "x.delivery_id, e.id FROM (SELECT delivery_id FROM (
         (SELECT delivery_id FROM waiting WHERE delivery_id >= $2 AND delivery_id < $3 AND delivery_id > $4
          ORDER BY delivery_id LIMIT $5)
         UNION ALL SELECT delivery_id FROM leased WHERE delivery_id >= $2 AND delivery_id < $3 AND delivery_id > $4) p
         ORDER BY delivery_id LIMIT $5) x
     LEFT JOIN LATERAL (SELECT * FROM deliveries d WHERE d.id = x.delivery_id AND d.tenant_id = $1 LIMIT 1) d ON true
     LEFT JOIN LATERAL (SELECT * FROM events e WHERE e.tenant_id = d.tenant_id AND e.id = d.event_id LIMIT 1) e ON true
     ORDER BY x.delivery_id"
);
const SCAN_WEBHOOK: &str = scan_columns!(
    "d.id, e.id FROM (SELECT * FROM deliveries d WHERE d.webhook_id = $6 AND d.tenant_id = $1 AND d.id >= $2
     AND d.id < $3
         AND d.id > $4 ORDER BY d.id LIMIT $5) d
     CROSS JOIN LATERAL (SELECT * FROM events e WHERE e.tenant_id = d.tenant_id AND e.id = d.event_id LIMIT 1) e
     ORDER BY d.id"
);
/// Dead letters of a webhook, and its pending deliveries with a failed attempt.
const SCAN_FAILING: &str = scan_columns!(
    "x.delivery_id, e.id FROM (SELECT delivery_id FROM (
         (SELECT delivery_id FROM dead WHERE webhook_id = $6 AND delivery_id >= $2 AND delivery_id < $3
          AND delivery_id > $4 ORDER BY delivery_id LIMIT $5)
         UNION ALL (SELECT delivery_id FROM undelivered WHERE webhook_id = $6 AND status = 0 AND delivery_id >= $2
          AND delivery_id < $3 AND delivery_id > $4 ORDER BY delivery_id LIMIT $5)) f
         ORDER BY delivery_id LIMIT $5) x
     LEFT JOIN LATERAL (SELECT * FROM deliveries d WHERE d.id = x.delivery_id AND d.tenant_id = $1 LIMIT 1) d ON true
     LEFT JOIN LATERAL (SELECT * FROM events e WHERE e.tenant_id = d.tenant_id AND e.id = d.event_id LIMIT 1) e ON true
     ORDER BY x.delivery_id"
);
/// Named deliveries.
const SCAN_NAMED: &str = scan_columns!(
    "x.id, e.id FROM unnest($2::uuid[]) AS x(id)
     CROSS JOIN LATERAL (SELECT * FROM deliveries d WHERE d.id = x.id AND d.tenant_id = $1 LIMIT 1) d
     CROSS JOIN LATERAL (SELECT * FROM events e WHERE e.tenant_id = d.tenant_id AND e.id = d.event_id LIMIT 1) e"
);
/// Up to $5 + 1 events, including those without deliveries, and up to $6 of their deliveries. The ids of an
/// event's deliveries have the event's millisecond, so they are in the same monthly partition.
const SCAN_DELIVERIES: &str = scan_columns!(
    "d.id, e.id FROM (SELECT * FROM events e WHERE e.tenant_id = $1 AND e.id >= $2 AND e.id < $3
         ORDER BY e.id LIMIT $5::int8 + 1) e
     LEFT JOIN LATERAL (
         SELECT * FROM deliveries d WHERE d.event_id = e.id
             AND d.id >= (left(e.id::text, 13) || '-0000-0000-000000000000')::uuid
             AND d.id <= (left(e.id::text, 13) || '-ffff-ffff-ffffffffffff')::uuid OFFSET 0) d ON true
     WHERE e.id > $2 OR d.id > $4 OR d.id IS NULL ORDER BY e.id, d.id LIMIT $6"
);
const SCAN_EVENTS: &str = "SELECT id, event_type, subject, priority FROM events
     WHERE tenant_id = $1 AND id >= $2 AND id < $3 AND id > $4 ORDER BY id LIMIT $5";

/// Events with the payloads of those of one of the types, up to $6 bytes together, and the number of events read.
const SELECT_PAYLOADS: &str = "SELECT w.id, w.data, w.scanned FROM (
         SELECT e.id, e.data, e.size, sum(e.size) OVER (ORDER BY e.id DESC) AS total, count(*) OVER () AS scanned
         FROM (SELECT x.id,
                   CASE WHEN $5::text[] IS NULL OR x.event_type = ANY($5::text[]) THEN x.data END AS data,
                   CASE WHEN $5::text[] IS NULL OR x.event_type = ANY($5::text[]) THEN octet_length(x.data) ELSE 0
                   END AS size
               FROM events x WHERE x.tenant_id = $1 AND x.id >= $2 AND x.id < $3
               ORDER BY x.id DESC LIMIT $4) e) w
     WHERE w.total <= $6 OR w.total = w.size";

/// Statements whose cost must be proportional to the rows they read; a test checks their query plans.
#[cfg(feature = "conformance")]
pub(super) const PLANNED_STATEMENTS: [(&str, &str); 8] = [
    ("scan dead letters", SCAN_DEAD),
    ("scan a webhook's deliveries", SCAN_WEBHOOK),
    ("scan a webhook's failing deliveries", SCAN_FAILING),
    ("scan named deliveries", SCAN_NAMED),
    ("scan deliveries", SCAN_DELIVERIES),
    ("scan pending deliveries", SCAN_PENDING),
    ("scan events", SCAN_EVENTS),
    ("scan payloads", SELECT_PAYLOADS),
];

/// Returns a page of deliveries, oldest event first.
pub(super) async fn deliveries(
    session: &Session,
    tenant_id: &TenantId,
    scan: &Scan,
) -> Result<ScanPage, Failure> {
    if let Some(ids) = &scan.ids {
        return named(session, tenant_id, scan, ids).await;
    }
    let min = scan.from.map_or([0; 16], min_bytes_at);
    let end = scan.to.map_or([0xff; 16], min_bytes_at);
    let after =
        Col(scan.after.and_then(|after| after.delivery_id).unwrap_or(DeliveryId::from_bytes([0; 16])));
    let (tenant, begin, end, limit) = (tenant_id.as_str(), Col(min), Col(end), scan.limit as i64);
    let rows = match (scan.among, scan.webhook_id) {
        (OperationTarget::Dead, _) => {
            session.query(SCAN_DEAD, &[&tenant, &begin, &end, &after, &limit]).await?
        }
        (OperationTarget::Pending, _) => {
            session.query(SCAN_PENDING, &[&tenant, &begin, &end, &after, &limit]).await?
        }
        (_, Some(webhook_id)) if scan.failing_only => {
            session.query(SCAN_FAILING, &[&tenant, &begin, &end, &after, &limit, &Col(webhook_id)]).await?
        }
        (_, Some(webhook_id)) => {
            session.query(SCAN_WEBHOOK, &[&tenant, &begin, &end, &after, &limit, &Col(webhook_id)]).await?
        }
        (_, None) => {
            let begin = Col(scan.after.map_or(min, |after| min.max(*after.event_id.as_bytes())));
            let max = limit * FAN_OUT;
            let rows = session.query(SCAN_DELIVERIES, &[&tenant, &begin, &end, &after, &limit, &max]).await?;
            return read_events(&rows, scan, max as usize);
        }
    };
    let (mut page, mut last) = (ScanPage::default(), None);
    for row in &rows {
        let at: DeliveryId = get(row, SCANNED_DELIVERY)?;
        let Some(event_id) = get_opt(row, SCANNED_EVENT)? else {
            // It belongs to another tenant, or no longer exists.
            last = Some(ScanCursor { event_id: EventId::first_at(at.time()), delivery_id: Some(at) });
            continue;
        };
        let cursor = ScanCursor { event_id, delivery_id: Some(at) };
        last = Some(cursor);
        let candidate = candidate(row)?;
        if scan.webhook_id.is_none_or(|webhook_id| candidate.webhook_id == webhook_id) {
            page.found.push((cursor, candidate));
        }
    }
    page.next = last.filter(|_| rows.len() == scan.limit);
    Ok(page)
}

/// Returns those of the named deliveries that exist, in the order of a scan.
async fn named(
    session: &Session,
    tenant_id: &TenantId,
    scan: &Scan,
    ids: &[DeliveryId],
) -> Result<ScanPage, Failure> {
    let (ids, next) = scan.named_page(ids);
    let ids: Vec<_> = ids.into_iter().map(Col).collect();
    let mut page = ScanPage { next, ..ScanPage::default() };
    for row in session.query(SCAN_NAMED, &[&tenant_id.as_str(), &ids]).await? {
        let (event_id, delivery_id) = (get(&row, SCANNED_EVENT)?, get(&row, SCANNED_DELIVERY)?);
        page.found.push((ScanCursor { event_id, delivery_id: Some(delivery_id) }, candidate(&row)?));
    }
    page.found.sort_by_key(|(position, _)| position.delivery_id);
    Ok(page)
}

/// Returns the deliveries of a page of events. The page ends with its last event, or at the maximum of deliveries.
fn read_events(rows: &[Row], scan: &Scan, max: usize) -> Result<ScanPage, Failure> {
    let (mut page, mut events, mut last) = (ScanPage::default(), 0, None);
    for row in rows {
        let (event_id, delivery_id): (EventId, Option<DeliveryId>) =
            (get(row, SCANNED_EVENT)?, get_opt(row, SCANNED_DELIVERY)?);
        if last.is_none_or(|(before, _)| before != event_id) {
            events += 1;
        }
        last = Some((event_id, delivery_id));
        if delivery_id.is_some() {
            page.found.push((ScanCursor { event_id, delivery_id }, candidate(row)?));
        }
    }
    // The first event may have no rows left, because the page before it had all of them. That is why one more is read.
    page.next = last.filter(|_| rows.len() == max || events >= scan.limit).map(|(event_id, delivery_id)| {
        let all = DeliveryId::from_bytes([0xff; 16]);
        ScanCursor { event_id, delivery_id: Some(delivery_id.filter(|_| rows.len() == max).unwrap_or(all)) }
    });
    Ok(page)
}

fn candidate(row: &Row) -> Result<Candidate, Failure> {
    Ok(Candidate {
        event_id: get(row, 0)?,
        event_type: plain(row, 2)?,
        idempotency_key: plain(row, 13)?,
        subject: plain(row, 14)?,
        webhook_id: get(row, 3)?,
        status: get(row, 4)?,
        failure_category: get_opt(row, 5)?,
        priority: get(row, 6)?,
        created_at: get(row, 7)?,
        ended_at: get_opt(row, 8)?,
        redriven_as: get_opt(row, 9)?,
        dead_reason: get_opt(row, 10)?,
        is_operator_managed: plain(row, 11)?,
        status_code: plain::<Option<i16>>(row, 12)?.map(i16::unsigned_abs),
        is_purged: plain(row, 15)?,
        is_erased: plain(row, 16)?,
    })
}

/// Returns a page of events, oldest first.
pub(super) async fn events(
    session: &Session,
    tenant_id: &TenantId,
    (from, to): (Option<Time>, Option<Time>),
    after: Option<EventId>,
    limit: usize,
) -> Result<Vec<EventSummary>, Failure> {
    let (from, to) = (Col(from.map_or([0; 16], min_bytes_at)), Col(to.map_or([0xff; 16], min_bytes_at)));
    let after = Col(after.map_or([0; 16], |after| *after.as_bytes()));
    let rows =
        session.query(SCAN_EVENTS, &[&tenant_id.as_str(), &from, &to, &after, &(limit as i64)]).await?;
    let heads = rows.iter().map(|row| {
        Ok(EventSummary {
            id: get(row, 0)?,
            event_type: plain(row, 1)?,
            subject: plain(row, 2)?,
            priority: get(row, 3)?,
        })
    });
    heads.collect()
}

/// Reads payloads, newest event first, until the limit of rows or bytes.
pub(super) async fn payloads(
    session: Tx,
    tenant_id: &TenantId,
    scan: &PayloadScan,
) -> Result<PayloadPage, Failure> {
    let low = Col(min_bytes_at(scan.from));
    let high = scan.after.map_or([0xff; 16], |after| *after.as_bytes()).min(min_bytes_at(scan.to));
    let types: Vec<_> = scan.event_types.iter().filter(|name| !name.contains('\0')).collect();
    let types = (!scan.event_types.is_empty()).then_some(types);
    let (limit, max_bytes) = (scan.rows as i64, scan.max_bytes as i64);
    let rows = session
        .query(SELECT_PAYLOADS, &[&tenant_id.as_str(), &low, &Col(high), &limit, &types, &max_bytes])
        .await?;
    let mut page = PayloadPage { scanned: rows.len(), ..PayloadPage::default() };
    let mut read = 0;
    for row in &rows {
        let id = get(row, 0)?;
        page.last = Some(page.last.map_or(id, |last: EventId| last.min(id)));
        read = plain::<i64>(row, 2)?.unsigned_abs() as usize;
        if let Some(data) = plain::<Option<Vec<u8>>>(row, 1)? {
            page.payloads.push((id, data.into()));
        }
    }
    page.payloads.sort_unstable_by_key(|(id, _)| std::cmp::Reverse(*id));
    page.finished = page.scanned == read && read < scan.rows;
    Ok(page)
}
