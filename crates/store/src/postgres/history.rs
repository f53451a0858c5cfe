//! Reads history: events, deliveries, attempts, dead letters. Every query names its tenant. Related rows are
//! looked up row by row (`LATERAL`), so that the planner has no other choice. Listings are in `listing.rs`.

use redrive_core::{DeliveryId, EventId, TenantId, Time, event::Event, id::min_bytes_at};
use tokio_postgres::{Row, types::ToSql};

use super::{
    Postgres,
    convert::{Col, get, get_opt, hops, plain, text_opt, trace},
    dead, listing, scan,
    session::{Failure, Session, Tx},
};
use crate::{
    Attempt, DeadCounts, Delivery, DeliveryCursor, DeliveryFilter, EventFilter, History, ListingPage,
    PageRequest, PayloadPage, PayloadScan, PhaseTimings, StoreError, StoreFuture, StoredAttempt, StoredEvent,
    access_path::{AccessPath, ListedTenants},
};

macro_rules! event {
    ($rest:literal) => {
        concat!(
            "SELECT e.id, e.tenant_id, e.seq, e.event_type, e.timestamp, e.idempotency_key, e.source, e.subject,
                    e.metadata, e.data, e.priority, e.erased_at, e.trace, e.hops, e.edited_from ",
            $rest
        )
    };
}
/// Columns read of an event `e`, and their number.
pub(super) const EVENT: &str = event!("");
pub(super) const EVENT_COLUMNS: usize = 15;
const EDITED_COPIES: &str =
    "SELECT e.id FROM events e WHERE e.tenant_id = $1 AND e.edited_from = $2 ORDER BY e.id DESC LIMIT $3";
const ONE_EVENT: &str = event!("FROM events e WHERE e.tenant_id = $1 AND e.id = $2");

pub(super) fn read_event(row: &Row) -> Result<StoredEvent, Failure> {
    let text = |column| plain::<Option<String>>(row, column).map(|text| text.map(String::into_boxed_str));
    let event = Event {
        id: get(row, 0)?,
        tenant_id: get(row, 1)?,
        event_type: plain::<String>(row, 3)?.into(),
        timestamp: get(row, 4)?,
        idempotency_key: text(5)?,
        source: text(6)?,
        subject: text(7)?,
        metadata: plain::<Option<Vec<u8>>>(row, 8)?.map(Into::into),
        data: plain::<Vec<u8>>(row, 9)?.into(),
        priority: get(row, 10)?,
        trace: trace(row, 12)?,
        hops: hops(row, 13)?,
    };
    Ok(StoredEvent {
        event,
        sequence_number: plain(row, 2)?,
        edited_from: get_opt(row, 14)?,
        erased_at: get_opt(row, 11)?,
    })
}

macro_rules! delivery {
    ($rest:literal) => {
        concat!(
            "SELECT d.id, d.tenant_id, d.event_id, e.event_type, d.webhook_id, d.round, d.status, d.attempt_count,
                    d.last_status_code, d.failure_category, d.last_error, d.dead_reason, d.cancel_reason,
                    d.created_at, d.ended_at, d.replay_of, d.redriven_as, w.due, d.priority,
                    CASE WHEN w.lane < 'A' THEN coalesce(
                        (SELECT l.delivery_id FROM leased l WHERE l.webhook_id = w.webhook_id AND l.lane = w.lane
                         AND l.lane < 'A' AND l.seq < w.seq ORDER BY l.seq LIMIT 1),
                        (SELECT f.delivery_id FROM waiting f WHERE f.webhook_id = w.webhook_id AND f.lane = w.lane
                         ORDER BY f.sort_key, f.seq LIMIT 1)) END, d.purged_at, d.format ",
            $rest
        )
    };
}

/// Columns read of a delivery `d` with its event `e` and its `waiting` row `w`, and their number.
pub(super) const DELIVERY: &str = delivery!("");
pub(super) const DELIVERY_COLUMNS: usize = 22;
macro_rules! delivery_by_id {
    ($more:literal) => {
        concat!(
            delivery!(
                "FROM deliveries d
     CROSS JOIN LATERAL (SELECT * FROM events e WHERE e.tenant_id = d.tenant_id AND e.id = d.event_id LIMIT 1) e
     LEFT JOIN LATERAL (SELECT * FROM waiting w WHERE w.delivery_id = d.id LIMIT 1) w ON true
     WHERE d.id = $1"
            ),
            $more
        )
    };
}
const ONE_DELIVERY: &str = delivery_by_id!(" AND d.tenant_id = $2");
const ANY_DELIVERY: &str = delivery_by_id!("");

pub(super) fn read_delivery(row: &Row) -> Result<Delivery, Failure> {
    let id = get(row, 0)?;
    Ok(Delivery {
        id,
        tenant_id: get(row, 1)?,
        event_id: get(row, 2)?,
        event_type: plain(row, 3)?,
        webhook_id: get(row, 4)?,
        round: plain::<i32>(row, 5)?.unsigned_abs(),
        status: get(row, 6)?,
        attempt_count: plain::<i32>(row, 7)?.unsigned_abs(),
        last_status_code: plain::<Option<i16>>(row, 8)?.map(|code| code as u16),
        failure_category: get_opt(row, 9)?,
        last_error: text_opt(row, 10)?,
        dead_reason: get_opt(row, 11)?,
        cancel_reason: text_opt(row, 12)?,
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

macro_rules! attempt_columns {
    ($rest:expr) => {
        concat!(
            "SELECT d.id, d.event_id, d.webhook_id, a.id, a.number, a.status, a.failure_category, a.http_status_code,
                    a.error_message, a.custom_headers, a.response_headers, a.response_body_sample, a.dns_us,
                    a.connect_us, a.tls_us, a.ttfb_us, a.total_us, a.scheduled_at, a.executed_at, a.next_retry_at,
                    a.worker, a.circuit, d.created_at",
            $rest
        )
    };
}
macro_rules! attempt {
    ($rest:literal) => {
        attempt_columns!(concat!(
            " FROM deliveries d CROSS JOIN LATERAL (SELECT * FROM attempts a WHERE a.delivery_id = d.id OFFSET 0) a ",
            $rest
        ))
    };
}

/// Columns read of an attempt `a` with its delivery `d`, and their number.
pub(super) const ATTEMPT: &str = attempt_columns!("");
pub(super) const ATTEMPT_COLUMNS: usize = 23;

const ATTEMPTS: &str = attempt!("WHERE d.id = $1 AND d.tenant_id = $2");
const ATTEMPTS_OF_EVENT: &str =
    attempt!("WHERE d.event_id = $1 AND d.tenant_id = $2 AND d.id >= $3 AND d.id <= $4");

pub(super) fn read_attempt(row: &Row) -> Result<StoredAttempt, Failure> {
    let bytes = |column| plain::<Option<Vec<u8>>>(row, column).map(|bytes| bytes.map(Into::into));
    let micros = |column| plain::<Option<i64>>(row, column).map(|micros| micros.map(|micros| micros as u32));
    let attempt = Attempt {
        id: get(row, 3)?,
        number: plain::<i32>(row, 4)?.unsigned_abs(),
        status: get(row, 5)?,
        failure_category: get_opt(row, 6)?,
        http_status_code: plain::<Option<i16>>(row, 7)?.map(|code| code as u16),
        error_message: text_opt(row, 8)?,
        custom_headers: bytes(9)?,
        response_headers: bytes(10)?,
        response_body_sample: bytes(11)?,
        timings: PhaseTimings {
            dns: micros(12)?,
            connect: micros(13)?,
            tls: micros(14)?,
            ttfb: micros(15)?,
            total: micros(16)?.unwrap_or_default(),
        },
        scheduled_at: get(row, 17)?,
        executed_at: get(row, 18)?,
        next_retry_at: get_opt(row, 19)?,
        worker: plain::<String>(row, 20)?.into(),
        circuit: get(row, 21)?,
    };
    Ok(StoredAttempt { delivery_id: get(row, 0)?, event_id: get(row, 1)?, webhook_id: get(row, 2)?, attempt })
}

/// Reads an event. Pruning also uses it, to write the archive.
pub(super) async fn find_event(
    session: &Session,
    tenant_id: &TenantId,
    id: EventId,
) -> Result<Option<StoredEvent>, Failure> {
    let row = session.query_opt(ONE_EVENT, &[&tenant_id.as_str(), &Col(id)]).await?;
    row.map(|row| read_event(&row)).transpose()
}

/// Reads a delivery of any tenant with its attempts, for the archive.
pub(super) async fn find_history(
    session: &Session,
    id: DeliveryId,
) -> Result<Option<(Delivery, Vec<StoredAttempt>)>, Failure> {
    let Some(row) = session.query_opt(ANY_DELIVERY, &[&Col(id)]).await? else { return Ok(None) };
    let delivery = read_delivery(&row)?;
    let rows = session.query(ATTEMPTS, &[&Col(id), &delivery.tenant_id.as_str()]).await?;
    let mut attempts = rows.iter().map(read_attempt).collect::<Result<Vec<_>, _>>()?;
    attempts.sort_by_key(|stored| stored.attempt.number);
    Ok(Some((delivery, attempts)))
}

impl History for Postgres {
    fn event(&self, tenant_id: TenantId, id: EventId) -> StoreFuture<'_, Option<StoredEvent>> {
        Box::pin(async move {
            let tenant_id = &tenant_id;
            self.list_for(tenant_id, |session| async move { find_event(&session, tenant_id, id).await }).await
        })
    }

    fn edited_copies(&self, tenant_id: TenantId, id: EventId, limit: usize) -> StoreFuture<'_, Vec<EventId>> {
        Box::pin(async move {
            let tenant_id = &tenant_id;
            self.list_for(tenant_id, |session| async move {
                let limit = limit as i64;
                let rows = session.query(EDITED_COPIES, &[&tenant_id.as_str(), &Col(id), &limit]).await?;
                rows.iter().map(|row| get(row, 0)).collect()
            })
            .await
        })
    }

    fn list_events(
        &self,
        tenant_id: TenantId,
        filter: EventFilter,
        page: PageRequest<EventId>,
    ) -> StoreFuture<'_, ListingPage<StoredEvent, EventId>> {
        Box::pin(async move {
            let listed = self
                .list_for(&tenant_id, |session| {
                    listing::events(session, ListedTenants::One(&tenant_id), &filter, page)
                })
                .await?;
            listed.ok_or(StoreError::OffsetTooFar)
        })
    }

    fn scan_payloads(&self, tenant_id: TenantId, scan: PayloadScan) -> StoreFuture<'_, PayloadPage> {
        Box::pin(async move {
            self.list_for(&tenant_id, |session| scan::payloads(session, &tenant_id, &scan)).await
        })
    }

    fn delivery(&self, tenant_id: TenantId, id: DeliveryId) -> StoreFuture<'_, Option<Delivery>> {
        Box::pin(async move {
            self.list_for(&tenant_id, |session| {
                let tenant_id = &tenant_id;
                async move {
                    let row = session.query_opt(ONE_DELIVERY, &[&Col(id), &tenant_id.as_str()]).await?;
                    row.map(|row| read_delivery(&row)).transpose()
                }
            })
            .await
        })
    }

    fn list_deliveries(
        &self,
        tenant_id: TenantId,
        filter: DeliveryFilter,
        page: PageRequest<DeliveryCursor>,
    ) -> StoreFuture<'_, ListingPage<Delivery, DeliveryCursor>> {
        Box::pin(async move {
            let way = listing::ListingPlan { lead: AccessPath::for_filter(&filter), dead: false, all: false };
            let listed = self
                .list_for(&tenant_id, |session| {
                    listing::deliveries(session, ListedTenants::One(&tenant_id), way, &filter, page)
                })
                .await?;
            listed.ok_or(StoreError::OffsetTooFar)
        })
    }

    fn list_dead(
        &self,
        tenant_id: TenantId,
        filter: DeliveryFilter,
        page: PageRequest<DeliveryCursor>,
    ) -> StoreFuture<'_, ListingPage<Delivery, DeliveryCursor>> {
        Box::pin(async move {
            let way =
                listing::ListingPlan { lead: AccessPath::for_dead_filter(&filter), dead: true, all: false };
            let listed = self
                .list_for(&tenant_id, |session| {
                    listing::deliveries(session, ListedTenants::One(&tenant_id), way, &filter, page)
                })
                .await?;
            listed.ok_or(StoreError::OffsetTooFar)
        })
    }

    fn count_dead(
        &self,
        tenant_id: TenantId,
        filter: DeliveryFilter,
        bounds: [Time; 2],
        max: usize,
    ) -> StoreFuture<'_, DeadCounts> {
        Box::pin(async move {
            self.list_for(&tenant_id, |session| {
                dead::count(session, ListedTenants::One(&tenant_id), &filter, bounds, max)
            })
            .await
        })
    }

    fn count_dead_up_to(&self, tenant_id: TenantId, max: usize) -> StoreFuture<'_, usize> {
        Box::pin(
            async move { self.list_for(&tenant_id, |session| dead::size(session, &tenant_id, max)).await },
        )
    }

    fn attempts(
        &self,
        tenant_id: TenantId,
        delivery_id: DeliveryId,
    ) -> StoreFuture<'_, Option<Vec<StoredAttempt>>> {
        Box::pin(async move {
            self.list_for(&tenant_id, |session| attempts(session, &tenant_id, delivery_id)).await
        })
    }

    fn attempts_of_event(
        &self,
        tenant_id: TenantId,
        event_id: EventId,
    ) -> StoreFuture<'_, Option<Vec<StoredAttempt>>> {
        Box::pin(async move {
            self.list_for(&tenant_id, |session| attempts_of_event(session, &tenant_id, event_id)).await
        })
    }
}

async fn attempts(
    session: Tx,
    tenant_id: &TenantId,
    delivery_id: DeliveryId,
) -> Result<Option<Vec<StoredAttempt>>, Failure> {
    let (id, tenant) = (Col(delivery_id), tenant_id.as_str());
    if !session.exists("SELECT 1 FROM deliveries WHERE id = $1 AND tenant_id = $2", &[&id, &tenant]).await? {
        return Ok(None);
    }
    let rows = session.query(ATTEMPTS, &[&id, &tenant]).await?;
    let mut attempts = rows.iter().map(read_attempt).collect::<Result<Vec<_>, _>>()?;
    attempts.sort_by_key(|one| one.attempt.number);
    Ok(Some(attempts))
}

async fn attempts_of_event(
    session: Tx,
    tenant_id: &TenantId,
    event_id: EventId,
) -> Result<Option<Vec<StoredAttempt>>, Failure> {
    let known = "SELECT 1 FROM events WHERE tenant_id = $1 AND id = $2";
    if !session.exists(known, &[&tenant_id.as_str(), &Col(event_id)]).await? {
        return Ok(None);
    }
    let first = min_bytes_at(event_id.time());
    let mut last = [0xff; 16];
    last[..6].copy_from_slice(&first[..6]);
    let values: [&(dyn ToSql + Sync); 4] = [&Col(event_id), &tenant_id.as_str(), &Col(first), &Col(last)];
    let rows = session.query(ATTEMPTS_OF_EVENT, &values).await?;
    let mut attempts = rows
        .iter()
        .map(|row| Ok((get::<Time>(row, 22)?, read_attempt(row)?)))
        .collect::<Result<Vec<_>, Failure>>()?;
    attempts.sort_by_key(|(created_at, one)| (*created_at, one.delivery_id, one.attempt.number));
    Ok(Some(attempts.into_iter().map(|(_, one)| one).collect()))
}

/// Queries for a single object; a test checks their query plans.
#[cfg(feature = "conformance")]
pub(super) const PLANNED_STATEMENTS: [(&str, &str); 5] = [
    ("edited copies of an event", EDITED_COPIES),
    ("one event", ONE_EVENT),
    ("one delivery", ONE_DELIVERY),
    ("attempts of a delivery", ATTEMPTS),
    ("attempts of an event", ATTEMPTS_OF_EVENT),
];
