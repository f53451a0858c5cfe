//! Reads history: events, deliveries, attempts, dead letters. Every query names its tenant. Listings are in
//! `listing.rs`.

use redrive_core::{DeliveryId, EventId, TenantId, Time, event::Event};
use rusqlite::{Connection, OptionalExtension, Row};

use super::{
    Sqlite,
    convert::{Col, get, get_opt, trace},
    dead, listing, scan,
};
use crate::{
    Attempt, DeadCounts, Delivery, DeliveryCursor, DeliveryFilter, EventFilter, History, ListingPage,
    PageRequest, PayloadPage, PayloadScan, PhaseTimings, StoreError, StoreFuture, StoredAttempt, StoredEvent,
    access_path::{AccessPath, ListedTenants},
};

pub(super) const EVENT: &str =
    "SELECT id, tenant_id, seq, event_type, timestamp, idempotency_key, source, subject, metadata, data,
            priority, erased_at, trace, hops, edited_from FROM events";

pub(super) fn read_event(row: &Row<'_>) -> rusqlite::Result<StoredEvent> {
    let event = Event {
        id: get(row, 0)?,
        tenant_id: get(row, 1)?,
        event_type: row.get(3)?,
        timestamp: get(row, 4)?,
        idempotency_key: row.get(5)?,
        source: row.get(6)?,
        subject: row.get(7)?,
        metadata: row.get::<_, Option<Vec<u8>>>(8)?.map(Into::into),
        data: row.get::<_, Vec<u8>>(9)?.into(),
        priority: get(row, 10)?,
        trace: trace(row, 12)?,
        hops: row.get(13)?,
    };
    Ok(StoredEvent {
        event,
        sequence_number: row.get(2)?,
        edited_from: get_opt(row, 14)?,
        erased_at: get_opt(row, 11)?,
    })
}

pub(super) const DELIVERY: &str =
    "SELECT d.id, d.tenant_id, d.event_id, e.event_type, d.webhook_id, d.round, d.status, d.attempt_count,
            d.last_status_code, d.failure_category, d.last_error, d.dead_reason, d.cancel_reason,
            d.created_at, d.ended_at, d.replay_of, d.redriven_as, w.due, d.priority,
            CASE WHEN w.lane < 'A' THEN coalesce(
                (SELECT l.delivery_id FROM leased l WHERE l.webhook_id = w.webhook_id AND l.lane = w.lane
                AND l.lane < 'A'
                 AND l.seq < w.seq ORDER BY l.seq LIMIT 1),
                (SELECT f.delivery_id FROM waiting f WHERE f.webhook_id = w.webhook_id AND f.lane = w.lane
                 ORDER BY f.sort_key, f.seq LIMIT 1)) END, d.purged_at, d.format";
pub(super) const WITH_EVENT: &str = "JOIN events e ON e.tenant_id = d.tenant_id AND e.id = d.event_id
     LEFT JOIN waiting w ON w.delivery_id = d.id";

pub(super) fn read_delivery(row: &Row<'_>) -> rusqlite::Result<Delivery> {
    let id = get(row, 0)?;
    Ok(Delivery {
        id,
        tenant_id: get(row, 1)?,
        event_id: get(row, 2)?,
        event_type: row.get(3)?,
        webhook_id: get(row, 4)?,
        round: row.get(5)?,
        status: get(row, 6)?,
        attempt_count: row.get(7)?,
        last_status_code: row.get(8)?,
        failure_category: get_opt(row, 9)?,
        last_error: row.get(10)?,
        dead_reason: get_opt(row, 11)?,
        cancel_reason: row.get(12)?,
        created_at: get(row, 13)?,
        ended_at: get_opt(row, 14)?,
        replay_of: get_opt(row, 15)?,
        redriven_as: get_opt(row, 16)?,
        due: get_opt(row, 17)?,
        priority: get(row, 18)?,
        predecessor: get_opt(row, 19)?.filter(|first| *first != id),
        purged_at: get_opt(row, 20)?,
        format: get(row, 21)?,
    })
}

/// Column of [`ATTEMPT`] with the tenant.
pub(super) const TENANT_COLUMN: usize = 22;
pub(super) const ATTEMPT: &str =
    "SELECT d.id, d.event_id, d.webhook_id, a.id, a.number, a.status, a.failure_category,
            a.http_status_code, a.error_message, a.custom_headers, a.response_headers, a.response_body_sample,
            a.dns_us, a.connect_us, a.tls_us, a.ttfb_us, a.total_us, a.scheduled_at, a.executed_at,
            a.next_retry_at, a.worker, a.circuit, d.tenant_id
     FROM deliveries d JOIN attempts a ON a.delivery_id = d.id";

pub(super) fn read_attempt(row: &Row<'_>) -> rusqlite::Result<StoredAttempt> {
    let bytes = |column| Ok::<_, rusqlite::Error>(row.get::<_, Option<Vec<u8>>>(column)?.map(Into::into));
    let attempt = Attempt {
        id: get(row, 3)?,
        number: row.get(4)?,
        status: get(row, 5)?,
        failure_category: get_opt(row, 6)?,
        http_status_code: row.get(7)?,
        error_message: row.get(8)?,
        custom_headers: bytes(9)?,
        response_headers: bytes(10)?,
        response_body_sample: bytes(11)?,
        timings: PhaseTimings {
            dns: row.get(12)?,
            connect: row.get(13)?,
            tls: row.get(14)?,
            ttfb: row.get(15)?,
            total: row.get(16)?,
        },
        scheduled_at: get(row, 17)?,
        executed_at: get(row, 18)?,
        next_retry_at: get_opt(row, 19)?,
        worker: row.get::<_, String>(20)?.into(),
        circuit: get(row, 21)?,
    };
    Ok(StoredAttempt { delivery_id: get(row, 0)?, event_id: get(row, 1)?, webhook_id: get(row, 2)?, attempt })
}

/// Reads an event. Pruning also uses it, to write the archive.
pub(super) fn find_event(
    connection: &Connection,
    tenant_id: &TenantId,
    id: EventId,
) -> rusqlite::Result<Option<StoredEvent>> {
    connection
        .prepare_cached(&format!("{EVENT} WHERE id = ? AND tenant_id = ?"))?
        .query_row((Col(id), tenant_id.as_str()), read_event)
        .optional()
}

/// Reads a delivery of any tenant with its attempts, for the archive.
pub(super) fn find_history(
    connection: &Connection,
    id: DeliveryId,
) -> rusqlite::Result<Option<(Delivery, Vec<StoredAttempt>)>> {
    let delivery = connection
        .prepare_cached(&format!("{DELIVERY} FROM deliveries d {WITH_EVENT} WHERE d.id = ?"))?
        .query_row([Col(id)], read_delivery)
        .optional()?;
    let Some(delivery) = delivery else { return Ok(None) };
    let mut attempts = connection.prepare_cached(&format!("{ATTEMPT} WHERE d.id = ? ORDER BY a.number"))?;
    let attempts = attempts.query_map([Col(id)], read_attempt)?.collect::<rusqlite::Result<_>>()?;
    Ok(Some((delivery, attempts)))
}

impl History for Sqlite {
    fn event(&self, tenant_id: TenantId, id: EventId) -> StoreFuture<'_, Option<StoredEvent>> {
        self.list_for(tenant_id.clone(), move |connection| find_event(connection, &tenant_id, id))
    }

    fn edited_copies(&self, tenant_id: TenantId, id: EventId, limit: usize) -> StoreFuture<'_, Vec<EventId>> {
        self.list_for(tenant_id.clone(), move |connection| {
            connection
                .prepare_cached(
                    "SELECT id FROM events WHERE tenant_id = ? AND edited_from = ? ORDER BY id DESC LIMIT ?",
                )?
                .query_map((tenant_id.as_str(), Col(id), limit as i64), |row| get(row, 0))?
                .collect()
        })
    }

    fn list_events(
        &self,
        tenant_id: TenantId,
        filter: EventFilter,
        page: PageRequest<EventId>,
    ) -> StoreFuture<'_, ListingPage<StoredEvent, EventId>> {
        let listed = self.list_for(tenant_id.clone(), move |connection| {
            listing::events(connection, ListedTenants::One(&tenant_id), &filter, &page)
        });
        Box::pin(async move { listed.await?.ok_or(StoreError::OffsetTooFar) })
    }

    fn scan_payloads(&self, tenant_id: TenantId, scan: PayloadScan) -> StoreFuture<'_, PayloadPage> {
        self.list_for(tenant_id.clone(), move |connection| scan::payloads(connection, &tenant_id, &scan))
    }

    fn delivery(&self, tenant_id: TenantId, id: DeliveryId) -> StoreFuture<'_, Option<Delivery>> {
        self.list_for(tenant_id.clone(), move |connection| {
            connection
                .prepare_cached(&format!(
                    "{DELIVERY} FROM deliveries d {WITH_EVENT} WHERE d.id = ? AND d.tenant_id = ?"
                ))?
                .query_row((Col(id), tenant_id.as_str()), read_delivery)
                .optional()
        })
    }

    fn list_deliveries(
        &self,
        tenant_id: TenantId,
        filter: DeliveryFilter,
        page: PageRequest<DeliveryCursor>,
    ) -> StoreFuture<'_, ListingPage<Delivery, DeliveryCursor>> {
        let access_path = AccessPath::for_filter(&filter);
        let listed = self.list_for(tenant_id.clone(), move |connection| {
            listing::deliveries(
                connection,
                ListedTenants::One(&tenant_id),
                access_path,
                &filter,
                &page,
                false,
            )
        });
        Box::pin(async move { listed.await?.ok_or(StoreError::OffsetTooFar) })
    }

    fn list_dead(
        &self,
        tenant_id: TenantId,
        filter: DeliveryFilter,
        page: PageRequest<DeliveryCursor>,
    ) -> StoreFuture<'_, ListingPage<Delivery, DeliveryCursor>> {
        let access_path = AccessPath::for_dead_filter(&filter);
        let listed = self.list_for(tenant_id.clone(), move |connection| {
            listing::deliveries(connection, ListedTenants::One(&tenant_id), access_path, &filter, &page, true)
        });
        Box::pin(async move { listed.await?.ok_or(StoreError::OffsetTooFar) })
    }

    fn count_dead(
        &self,
        tenant_id: TenantId,
        filter: DeliveryFilter,
        bounds: [Time; 2],
        max: usize,
    ) -> StoreFuture<'_, DeadCounts> {
        self.list_for(tenant_id.clone(), move |connection| {
            dead::count(connection, ListedTenants::One(&tenant_id), &filter, bounds, max)
        })
    }

    fn count_dead_up_to(&self, tenant_id: TenantId, max: usize) -> StoreFuture<'_, usize> {
        self.list_for(tenant_id.clone(), move |connection| dead::size(connection, &tenant_id, max))
    }

    fn attempts(
        &self,
        tenant_id: TenantId,
        delivery_id: DeliveryId,
    ) -> StoreFuture<'_, Option<Vec<StoredAttempt>>> {
        self.list_for(tenant_id.clone(), move |connection| {
            let key = (Col(delivery_id), tenant_id.as_str());
            let known = "SELECT 1 FROM deliveries WHERE id = ? AND tenant_id = ?";
            if !connection.prepare_cached(known)?.exists(key)? {
                return Ok(None);
            }
            let mut attempts = connection
                .prepare_cached(&format!("{ATTEMPT} WHERE d.id = ? AND d.tenant_id = ? ORDER BY a.number"))?;
            attempts.query_map(key, read_attempt)?.collect::<rusqlite::Result<_>>().map(Some)
        })
    }

    fn attempts_of_event(
        &self,
        tenant_id: TenantId,
        event_id: EventId,
    ) -> StoreFuture<'_, Option<Vec<StoredAttempt>>> {
        self.list_for(tenant_id.clone(), move |connection| {
            let key = (Col(event_id), tenant_id.as_str());
            let known = "SELECT 1 FROM events WHERE id = ? AND tenant_id = ?";
            if !connection.prepare_cached(known)?.exists(key)? {
                return Ok(None);
            }
            let mut attempts = connection.prepare_cached(&format!(
                "{ATTEMPT} WHERE d.event_id = ? AND d.tenant_id = ? ORDER BY d.created_at, d.id, a.number"
            ))?;
            attempts.query_map(key, read_attempt)?.collect::<rusqlite::Result<_>>().map(Some)
        })
    }
}
