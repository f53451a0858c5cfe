//! Scans of deliveries and events from the oldest on, along an index and in pages. Other filters are applied to
//! the rows of a page, so the cost of a scan is proportional to the rows it reads.

use redrive_core::{
    DeliveryId, EventId, TenantId, Time,
    delivery::bulk_operation::{Candidate, OperationTarget},
    id::min_bytes_at,
};
use rusqlite::{Connection, Row, Rows};

use super::convert::{Col, get, get_opt};
use crate::{EventSummary, PayloadPage, PayloadScan, Scan, ScanCursor, ScanPage};

const SCAN_COLUMNS: &str =
    "d.event_id, d.id, e.event_type, d.webhook_id, d.status, d.failure_category, d.priority, d.created_at,
         d.ended_at, d.redriven_as, d.dead_reason,
         coalesce((SELECT h.managed_by_operator FROM webhooks h WHERE h.id = d.webhook_id), 0), d.last_status_code,
         e.idempotency_key, e.subject, d.purged_at IS NOT NULL, e.erased_at IS NOT NULL";
/// Columns after those: the scanned delivery, and in a scan by event its event.
const SCANNED_DELIVERY: usize = 17;
const SCANNED_EVENT: usize = 18;
const JOIN_EVENT: &str = "events e ON e.tenant_id = d.tenant_id AND e.id = d.event_id";

/// Maximum deliveries read per event of a page, on average.
const FAN_OUT: usize = 4;

/// Returns the statement of a scan. Ids of deliveries have their events' times, so a time range is an id range.
/// CROSS JOIN fixes the order of tables: the scanned index comes first.
pub(super) fn statement(scan: &Scan) -> String {
    match (scan.among, scan.webhook_id) {
        (OperationTarget::Dead, _) => format!(
            "SELECT {SCAN_COLUMNS}, x.delivery_id FROM dead x CROSS JOIN deliveries d ON d.id = x.delivery_id CROSS JOIN {JOIN_EVENT}
             WHERE x.tenant_id = ?1 AND x.delivery_id >= ?2 AND x.delivery_id < ?3 AND x.delivery_id > ?4
                 AND (?6 IS NULL OR d.webhook_id = ?6) ORDER BY x.delivery_id LIMIT ?5"
        ),
        // `waiting` has no index by tenant: rows of other tenants are skipped by the caller.
        (OperationTarget::Pending, _) => format!(
            "SELECT {SCAN_COLUMNS}, x.delivery_id FROM (
                 SELECT delivery_id FROM waiting WHERE delivery_id >= ?2 AND delivery_id < ?3 AND delivery_id > ?4
                 UNION ALL SELECT delivery_id FROM leased WHERE delivery_id >= ?2 AND delivery_id < ?3
                 AND delivery_id > ?4
                 ORDER BY delivery_id LIMIT ?5) x
             LEFT JOIN deliveries d ON d.id = x.delivery_id AND d.tenant_id = ?1 AND (?6 IS NULL OR d.webhook_id = ?6)
             LEFT JOIN {JOIN_EVENT} ORDER BY x.delivery_id"
        ),
        (OperationTarget::Deliveries | OperationTarget::Events, Some(_)) if scan.failing_only => format!(
            "SELECT {SCAN_COLUMNS}, x.delivery_id FROM (
                 SELECT * FROM (
                     SELECT delivery_id FROM dead WHERE webhook_id = ?6 AND delivery_id >= ?2 AND delivery_id < ?3
                     AND delivery_id > ?4 ORDER BY delivery_id LIMIT ?5)
                 UNION ALL SELECT * FROM (
                     SELECT id FROM deliveries WHERE webhook_id = ?6 AND status = 0 AND failure_category IS NOT NULL
                     AND id >= ?2 AND id < ?3 AND id > ?4 ORDER BY id LIMIT ?5)
                 ORDER BY delivery_id LIMIT ?5) x
             LEFT JOIN deliveries d ON d.id = x.delivery_id AND d.tenant_id = ?1
             LEFT JOIN {JOIN_EVENT} ORDER BY x.delivery_id"
        ),
        (OperationTarget::Deliveries | OperationTarget::Events, Some(_)) => format!(
            "SELECT {SCAN_COLUMNS}, d.id FROM deliveries d CROSS JOIN {JOIN_EVENT}
             WHERE d.webhook_id = ?6 AND d.tenant_id = ?1 AND d.id >= ?2 AND d.id < ?3 AND d.id > ?4
             ORDER BY d.id LIMIT ?5"
        ),
        // A limited number of events, including those without deliveries, and of their deliveries.
        (OperationTarget::Deliveries | OperationTarget::Events, None) => format!(
            "SELECT {SCAN_COLUMNS}, d.id, e.id FROM (
                 SELECT id, tenant_id, event_type, idempotency_key, subject, erased_at FROM events
                 WHERE tenant_id = ?1 AND id >= ?2 AND id < ?3 ORDER BY id LIMIT ?5 + 1) e
             LEFT JOIN deliveries d ON d.event_id = e.id
             WHERE (e.id > ?2 OR d.id > ?4 OR d.id IS NULL) AND ?6 IS NULL
             ORDER BY e.id, d.id LIMIT ?5 * {FAN_OUT}"
        ),
    }
}

/// Returns a page of deliveries, oldest event first.
pub(super) fn deliveries(
    connection: &Connection,
    tenant_id: &TenantId,
    scan: &Scan,
) -> rusqlite::Result<ScanPage> {
    if let Some(ids) = &scan.ids {
        return named(connection, tenant_id, scan, ids);
    }
    let min = scan.from.map_or(EventId::from_bytes([0; 16]), |from| EventId::from_bytes(min_bytes_at(from)));
    let end = scan.to.map_or(EventId::from_bytes([0xff; 16]), |to| EventId::from_bytes(min_bytes_at(to)));
    let begin = scan.after.map_or(min, |after| after.event_id.max(min));
    // A scan by delivery starts at the id of the last delivery.
    let by_event = scan.webhook_id.is_none()
        && matches!(scan.among, OperationTarget::Deliveries | OperationTarget::Events);
    let begin = if by_event { begin } else { min };
    let after = scan.after.and_then(|after| after.delivery_id).unwrap_or(DeliveryId::from_bytes([0; 16]));
    let mut statement = connection.prepare_cached(&statement(scan))?;
    let mut rows = statement.query((
        tenant_id.as_str(),
        Col(begin),
        Col(end),
        Col(after),
        scan.limit as i64,
        scan.webhook_id.map(Col),
    ))?;
    if by_event {
        return read_events(&mut rows, scan);
    }
    let (mut page, mut seen, mut last) = (ScanPage::default(), 0, None);
    while let Some(row) = rows.next()? {
        seen += 1;
        let at = get(row, SCANNED_DELIVERY)?;
        match get_opt(row, 0)? {
            Some(event_id) => {
                let cursor = ScanCursor { event_id, delivery_id: Some(at) };
                page.found.push((cursor, candidate(row)?));
                last = Some(cursor);
            }
            // It belongs to another tenant.
            None => last = Some(ScanCursor { event_id: EventId::first_at(at.time()), delivery_id: Some(at) }),
        }
    }
    page.next = last.filter(|_| seen == scan.limit);
    Ok(page)
}

/// Returns those of the named deliveries that exist, in the order of a scan.
fn named(
    connection: &Connection,
    tenant_id: &TenantId,
    scan: &Scan,
    ids: &[DeliveryId],
) -> rusqlite::Result<ScanPage> {
    let (ids, next) = scan.named_page(ids);
    let one = format!(
        "SELECT {SCAN_COLUMNS} FROM deliveries d CROSS JOIN {JOIN_EVENT} WHERE d.id = ? AND d.tenant_id = ?"
    );
    let mut one = connection.prepare_cached(&one)?;
    let mut page = ScanPage { next, ..ScanPage::default() };
    for id in ids {
        let mut rows = one.query((Col(id), tenant_id.as_str()))?;
        if let Some(row) = rows.next()? {
            let cursor = ScanCursor { event_id: get(row, 0)?, delivery_id: Some(id) };
            page.found.push((cursor, candidate(row)?));
        }
    }
    Ok(page)
}

/// Returns the deliveries of a page of events. The page ends with its last event, or at the maximum of deliveries.
fn read_events(rows: &mut Rows<'_>, scan: &Scan) -> rusqlite::Result<ScanPage> {
    let (mut page, mut seen, mut events, mut last) = (ScanPage::default(), 0, 0, None);
    while let Some(row) = rows.next()? {
        seen += 1;
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
    let is_full = seen == scan.limit * FAN_OUT;
    // The first event may have no rows left, because the page before it had all of them. That is why one more is read.
    page.next = last.filter(|_| is_full || events >= scan.limit).map(|(event_id, delivery_id)| {
        let all = DeliveryId::from_bytes([0xff; 16]);
        ScanCursor { event_id, delivery_id: Some(delivery_id.filter(|_| is_full).unwrap_or(all)) }
    });
    Ok(page)
}

fn candidate(row: &Row<'_>) -> rusqlite::Result<Candidate> {
    Ok(Candidate {
        event_id: get(row, 0)?,
        event_type: row.get(2)?,
        idempotency_key: row.get(13)?,
        subject: row.get(14)?,
        webhook_id: get(row, 3)?,
        status: get(row, 4)?,
        failure_category: get_opt(row, 5)?,
        priority: get(row, 6)?,
        created_at: get(row, 7)?,
        ended_at: get_opt(row, 8)?,
        redriven_as: get_opt(row, 9)?,
        dead_reason: get_opt(row, 10)?,
        is_operator_managed: row.get(11)?,
        status_code: row.get(12)?,
        is_purged: row.get(15)?,
        is_erased: row.get(16)?,
    })
}

/// Returns a page of events, oldest first.
pub(super) fn events(
    connection: &Connection,
    tenant_id: &TenantId,
    (from, to): (Option<Time>, Option<Time>),
    after: Option<EventId>,
    limit: usize,
) -> rusqlite::Result<Vec<EventSummary>> {
    let from = from.map_or(EventId::from_bytes([0; 16]), EventId::first_at);
    let to = to.map_or(EventId::from_bytes([0xff; 16]), EventId::first_at);
    let after = after.unwrap_or(EventId::from_bytes([0; 16]));
    let heads = |row: &Row<'_>| {
        Ok(EventSummary {
            id: get(row, 0)?,
            event_type: row.get(1)?,
            subject: row.get(2)?,
            priority: get(row, 3)?,
        })
    };
    connection
        .prepare_cached(
            "SELECT id, event_type, subject, priority FROM events
             WHERE tenant_id = ? AND id >= ? AND id < ? AND id > ? ORDER BY id LIMIT ?",
        )?
        .query_map((tenant_id.as_str(), Col(from), Col(to), Col(after), limit as i64), heads)?
        .collect()
}

/// Reads payloads; a test checks the query plan.
pub(super) const SELECT_PAYLOADS: &str = "SELECT id, event_type, data FROM events
     WHERE tenant_id = ? AND id >= ? AND id < ? ORDER BY id DESC LIMIT ?";

/// Reads payloads, newest event first, until the limit of rows or bytes.
pub(super) fn payloads(
    connection: &Connection,
    tenant_id: &TenantId,
    scan: &PayloadScan,
) -> rusqlite::Result<PayloadPage> {
    let low = min_bytes_at(scan.from);
    let high = scan.after.map_or([0xff; 16], |after| *after.as_bytes()).min(min_bytes_at(scan.to));
    let mut statement = connection.prepare_cached(SELECT_PAYLOADS)?;
    let mut rows = statement.query((tenant_id.as_str(), low, high, scan.rows as i64))?;
    let (mut page, mut bytes) = (PayloadPage::default(), 0);
    while let Some(row) = rows.next()? {
        let event_type = row.get_ref(1)?.as_str().map_err(rusqlite::Error::from)?;
        let id = get(row, 0)?;
        if scan.event_types.is_empty() || scan.event_types.iter().any(|wanted| wanted == event_type) {
            let data = row.get_ref(2)?.as_blob().map_err(rusqlite::Error::from)?;
            if bytes > 0 && bytes + data.len() > scan.max_bytes {
                return Ok(page);
            }
            bytes += data.len();
            page.payloads.push((id, data.to_vec().into()));
        }
        page.scanned += 1;
        page.last = Some(id);
    }
    page.finished = page.scanned < scan.rows;
    Ok(page)
}
