//! Looking back: events, deliveries, attempts, dead letters. Every query names its tenant and walks an
//! index from the newest to the oldest, so that a page costs what it shows.

use redrive_core::{DeliveryId, DeliveryStatus, EventId, TenantId, Time, WebhookId, event::Event, id};
use rusqlite::{Connection, OptionalExtension, Row, ToSql};

use super::{
    Sqlite,
    convert::{Col, get, get_opt},
};
use crate::{
    Answer, Attempt, Delivery, DeliveryCursor, DeliveryFilter, EventFilter, History, PageRequest,
    PhaseTimings, StatusFilter, StoredAttempt, StoredEvent,
};

/// Conditions with their values, put together as they are asked for.
#[derive(Default)]
struct Conditions {
    sql: String,
    values: Vec<Box<dyn ToSql>>,
}

impl Conditions {
    /// Adds a condition; each `?` in it stands for the next value.
    fn and(&mut self, condition: &str, values: impl IntoIterator<Item = Box<dyn ToSql>>) {
        self.sql.push_str(if self.sql.is_empty() { "WHERE " } else { " AND " });
        self.sql.push_str(condition);
        self.values.extend(values);
    }

    fn and_opt<T: ToSql + 'static>(&mut self, condition: &str, value: Option<T>) {
        if let Some(value) = value {
            self.and(condition, [Box::new(value) as Box<dyn ToSql>]);
        }
    }

    /// Ids begin with their time, so a range of times is a range of ids.
    fn and_times(&mut self, column: &str, from: Option<Time>, to: Option<Time>) {
        self.and_opt(&format!("{column} >= ?"), from.map(id::first_at));
        self.and_opt(&format!("{column} < ?"), to.map(id::first_at));
    }

    fn query<T>(
        &self,
        connection: &Connection,
        select: &str,
        rest: &str,
        read: fn(&Row<'_>) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<Vec<T>> {
        let mut statement = connection.prepare_cached(&format!("{select} {} {rest}", self.sql))?;
        let values: Vec<&dyn ToSql> = self.values.iter().map(|value| &**value).collect();
        statement.query_map(&values[..], read)?.collect()
    }
}

fn limits<C>(page: &PageRequest<C>) -> String {
    format!("LIMIT {} OFFSET {}", page.limit, page.offset)
}

const EVENT: &str =
    "SELECT id, tenant, seq, event_type, timestamp, idempotency_key, source, subject, metadata, data,
            priority, erased_at FROM events";

fn read_event(row: &Row<'_>) -> rusqlite::Result<StoredEvent> {
    let event = Event {
        id: get(row, 0)?,
        tenant: get(row, 1)?,
        event_type: row.get(3)?,
        timestamp: get(row, 4)?,
        idempotency_key: row.get(5)?,
        source: row.get(6)?,
        subject: row.get(7)?,
        metadata: row.get::<_, Option<Vec<u8>>>(8)?.map(Into::into),
        data: row.get::<_, Vec<u8>>(9)?.into(),
        priority: get(row, 10)?,
    };
    Ok(StoredEvent { event, sequence_number: row.get(2)?, erased_at: get_opt(row, 11)? })
}

const DELIVERY: &str =
    "SELECT d.id, d.tenant, d.event, e.event_type, d.webhook, d.round, d.status, d.attempt_count,
            d.last_status_code, d.failure_category, d.last_error, d.dead_reason, d.cancel_reason,
            d.created_at, d.ended_at, d.replay_of, d.redriven_as, w.due, d.priority,
            CASE WHEN w.lane < 'A' THEN coalesce(
                (SELECT l.delivery FROM leased l WHERE l.webhook = w.webhook AND l.lane = w.lane AND l.lane < 'A'
                 AND l.seq < w.seq ORDER BY l.seq LIMIT 1),
                (SELECT f.delivery FROM waiting f WHERE f.webhook = w.webhook AND f.lane = w.lane
                 ORDER BY f.place, f.seq LIMIT 1)) END";
const WITH_EVENT: &str =
    "JOIN events e ON e.tenant = d.tenant AND e.id = d.event LEFT JOIN waiting w ON w.delivery = d.id";

fn read_delivery(row: &Row<'_>) -> rusqlite::Result<Delivery> {
    let id = get(row, 0)?;
    Ok(Delivery {
        id,
        tenant: get(row, 1)?,
        event: get(row, 2)?,
        event_type: row.get(3)?,
        webhook: get(row, 4)?,
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
        behind: get_opt(row, 19)?.filter(|first| *first != id),
    })
}

const ATTEMPT: &str = "SELECT d.id, d.event, d.webhook, a.id, a.number, a.status, a.failure_category,
            a.http_status_code, a.error_message, a.custom_headers, a.response_headers, a.response_body_sample,
            a.dns_us, a.connect_us, a.tls_us, a.ttfb_us, a.total_us, a.scheduled_at, a.executed_at,
            a.next_retry_at, a.worker, a.circuit
     FROM deliveries d JOIN attempts a ON a.delivery = d.id";

fn read_attempt(row: &Row<'_>) -> rusqlite::Result<StoredAttempt> {
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
    Ok(StoredAttempt { delivery: get(row, 0)?, event: get(row, 1)?, webhook: get(row, 2)?, attempt })
}

/// What a filter says about deliveries, but for the webhook, the event and the times.
fn filter_deliveries(conditions: &mut Conditions, filter: &DeliveryFilter) {
    match filter.status {
        Some(StatusFilter::Is(DeliveryStatus::InFlight)) => {
            conditions.and("d.status = ? AND w.due IS NULL", [Box::new(Col(DeliveryStatus::Pending)) as _]);
        }
        Some(StatusFilter::Is(status)) => conditions.and("d.status = ?", [Box::new(Col(status)) as _]),
        Some(StatusFilter::Failed) => conditions.and(
            "d.failure_category IS NOT NULL AND d.status <> ?",
            [Box::new(Col(DeliveryStatus::Delivered)) as _],
        ),
        None => {}
    }
    conditions.and_opt("e.event_type = ?", filter.event_type.clone());
    conditions.and_opt("d.failure_category = ?", filter.failure_category.map(Col));
}

/// An event, for whoever takes it away.
pub(super) fn find_event(
    connection: &Connection,
    tenant: &TenantId,
    id: EventId,
) -> rusqlite::Result<Option<StoredEvent>> {
    connection
        .prepare_cached(&format!("{EVENT} WHERE id = ? AND tenant = ?"))?
        .query_row((Col(id), tenant.as_str()), read_event)
        .optional()
}

/// A delivery of whatever tenant with its attempts, for whoever takes it away.
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
    fn event(&self, tenant: TenantId, id: EventId) -> Answer<'_, Option<StoredEvent>> {
        self.read(move |connection| find_event(connection, &tenant, id))
    }

    fn list_events(
        &self,
        tenant: TenantId,
        filter: EventFilter,
        page: PageRequest<EventId>,
    ) -> Answer<'_, Vec<StoredEvent>> {
        self.read(move |connection| {
            let mut conditions = Conditions::default();
            conditions.and("tenant = ?", [Box::new(tenant.as_str().to_owned()) as _]);
            conditions.and_opt("id < ?", page.after.map(Col));
            conditions.and_times("id", filter.from, filter.to);
            conditions.and_opt("event_type = ?", filter.event_type.clone());
            conditions.and_opt("subject = ?", filter.subject.clone());
            conditions.query(connection, EVENT, &format!("ORDER BY id DESC {}", limits(&page)), read_event)
        })
    }

    fn delivery(&self, tenant: TenantId, id: DeliveryId) -> Answer<'_, Option<Delivery>> {
        self.read(move |connection| {
            connection
                .prepare_cached(&format!(
                    "{DELIVERY} FROM deliveries d {WITH_EVENT} WHERE d.id = ? AND d.tenant = ?"
                ))?
                .query_row((Col(id), tenant.as_str()), read_delivery)
                .optional()
        })
    }

    fn list_deliveries(
        &self,
        tenant: TenantId,
        filter: DeliveryFilter,
        page: PageRequest<DeliveryCursor>,
    ) -> Answer<'_, Vec<Delivery>> {
        self.read(move |connection| match filter.webhook {
            Some(webhook) if filter.event.is_none() => {
                of_webhook(connection, &tenant, webhook, &filter, &page)
            }
            _ => of_tenant(connection, &tenant, &filter, &page),
        })
    }

    fn list_dead(
        &self,
        tenant: TenantId,
        filter: DeliveryFilter,
        page: PageRequest<DeliveryId>,
    ) -> Answer<'_, Vec<Delivery>> {
        self.read(move |connection| {
            let mut conditions = Conditions::default();
            conditions.and("x.tenant = ?", [Box::new(tenant.as_str().to_owned()) as _]);
            conditions.and_opt("x.delivery < ?", page.after.map(Col));
            conditions.and_times("x.delivery", filter.from, filter.to);
            conditions.and_opt("d.webhook = ?", filter.webhook.map(Col));
            conditions.and_opt("d.event = ?", filter.event.map(Col));
            filter_deliveries(&mut conditions, &filter);
            let select =
                format!("{DELIVERY} FROM dead x JOIN deliveries d ON d.id = x.delivery {WITH_EVENT}");
            let order = format!("ORDER BY x.delivery DESC {}", limits(&page));
            conditions.query(connection, &select, &order, read_delivery)
        })
    }

    fn attempts(&self, tenant: TenantId, delivery: DeliveryId) -> Answer<'_, Option<Vec<StoredAttempt>>> {
        self.read(move |connection| {
            let key = (Col(delivery), tenant.as_str());
            let known = "SELECT 1 FROM deliveries WHERE id = ? AND tenant = ?";
            if !connection.prepare_cached(known)?.exists(key)? {
                return Ok(None);
            }
            let mut attempts = connection
                .prepare_cached(&format!("{ATTEMPT} WHERE d.id = ? AND d.tenant = ? ORDER BY a.number"))?;
            attempts.query_map(key, read_attempt)?.collect::<rusqlite::Result<_>>().map(Some)
        })
    }

    fn attempts_of_event(&self, tenant: TenantId, event: EventId) -> Answer<'_, Option<Vec<StoredAttempt>>> {
        self.read(move |connection| {
            let key = (Col(event), tenant.as_str());
            let known = "SELECT 1 FROM events WHERE id = ? AND tenant = ?";
            if !connection.prepare_cached(known)?.exists(key)? {
                return Ok(None);
            }
            let mut attempts = connection.prepare_cached(&format!(
                "{ATTEMPT} WHERE d.event = ? AND d.tenant = ? ORDER BY d.created_at, d.id, a.number"
            ))?;
            attempts.query_map(key, read_attempt)?.collect::<rusqlite::Result<_>>().map(Some)
        })
    }
}

/// A webhook's deliveries by their ids, which begin with their events' times.
fn of_webhook(
    connection: &Connection,
    tenant: &TenantId,
    webhook: WebhookId,
    filter: &DeliveryFilter,
    page: &PageRequest<DeliveryCursor>,
) -> rusqlite::Result<Vec<Delivery>> {
    let mut conditions = Conditions::default();
    conditions.and("d.webhook = ?", [Box::new(Col(webhook)) as _]);
    conditions.and("d.tenant = ?", [Box::new(tenant.as_str().to_owned()) as _]);
    conditions.and_opt("d.id < ?", page.after.map(|cursor| Col(cursor.delivery)));
    conditions.and_times("d.id", filter.from, filter.to);
    filter_deliveries(&mut conditions, filter);
    let select = format!("{DELIVERY} FROM deliveries d {WITH_EVENT}");
    conditions.query(connection, &select, &format!("ORDER BY d.id DESC {}", limits(page)), read_delivery)
}

/// A tenant's deliveries, event by event: the tenant's events are the index that leads to them.
fn of_tenant(
    connection: &Connection,
    tenant: &TenantId,
    filter: &DeliveryFilter,
    page: &PageRequest<DeliveryCursor>,
) -> rusqlite::Result<Vec<Delivery>> {
    let mut conditions = Conditions::default();
    conditions.and("e.tenant = ?", [Box::new(tenant.as_str().to_owned()) as _]);
    if let Some(after) = page.after {
        conditions.and(
            "(e.id < ? OR e.id = ? AND d.id < ?)",
            [
                Box::new(Col(after.event)) as _,
                Box::new(Col(after.event)) as _,
                Box::new(Col(after.delivery)) as _,
            ],
        );
        // The range that the index can use.
        conditions.and("e.id <= ?", [Box::new(Col(after.event)) as _]);
    }
    conditions.and_times("e.id", filter.from, filter.to);
    conditions.and_opt("e.id = ?", filter.event.map(Col));
    conditions.and_opt("d.webhook = ?", filter.webhook.map(Col));
    filter_deliveries(&mut conditions, filter);
    // CROSS JOIN keeps this order of tables: events lead.
    let select = format!(
        "{DELIVERY} FROM events e CROSS JOIN deliveries d ON d.event = e.id LEFT JOIN waiting w ON w.delivery = d.id"
    );
    conditions.query(
        connection,
        &select,
        &format!("ORDER BY e.id DESC, d.id DESC {}", limits(page)),
        read_delivery,
    )
}
