//! Looking back: events, deliveries, attempts, dead letters. Every query names its tenant and walks an
//! index from the newest to the oldest, so that a page costs what it shows. What belongs to a row is looked up
//! row by row (`LATERAL`): the planner is left no other choice.

use redrive_core::{
    DeliveryId, DeliveryStatus, EventId, TenantId, Time, WebhookId, event::Event, id::first_at,
};
use tokio_postgres::{Row, types::ToSql};

use super::{
    Postgres,
    convert::{Col, get, get_opt, plain, text_opt},
    session::{Failure, Session, Tx},
};
use crate::{
    Answer, Attempt, Delivery, DeliveryCursor, DeliveryFilter, EventFilter, History, PageRequest,
    PhaseTimings, StatusFilter, StoredAttempt, StoredEvent,
};

/// Conditions with their values, put together as they are asked for.
#[derive(Default)]
struct Conditions {
    sql: String,
    values: Vec<Box<dyn ToSql + Sync + Send>>,
}

impl Conditions {
    /// Adds a condition; the `?` in it stands for the value.
    fn and(&mut self, condition: &str, value: impl ToSql + Sync + Send + 'static) {
        self.values.push(Box::new(value));
        let number = format!("${}", self.values.len());
        self.and_plain(&condition.replace('?', &number));
    }

    fn and_plain(&mut self, condition: &str) {
        self.sql.push_str(if self.sql.is_empty() { "WHERE " } else { " AND " });
        self.sql.push_str(condition);
    }

    fn and_opt<T: ToSql + Sync + Send + 'static>(&mut self, condition: &str, value: Option<T>) {
        if let Some(value) = value {
            self.and(condition, value);
        }
    }

    /// Ids begin with their time, so a range of times is a range of ids.
    fn and_times(&mut self, column: &str, from: Option<Time>, to: Option<Time>) {
        self.and_opt(&format!("{column} >= ?"), from.map(|time| Col(first_at(time))));
        self.and_opt(&format!("{column} < ?"), to.map(|time| Col(first_at(time))));
    }

    fn statement(&self, select: &str, rest: &str) -> String {
        format!("{select} {} {rest}", self.sql)
    }

    async fn query<T>(
        &self,
        session: &Session,
        select: &str,
        rest: &str,
        read: fn(&Row) -> Result<T, Failure>,
    ) -> Result<Vec<T>, Failure> {
        let values: Vec<&(dyn ToSql + Sync)> = self.values.iter().map(|value| &**value as _).collect();
        session.query(&self.statement(select, rest), &values).await?.iter().map(read).collect()
    }
}

fn limits<C>(page: &PageRequest<C>) -> String {
    format!("LIMIT {} OFFSET {}", page.limit, page.offset)
}

macro_rules! event {
    ($rest:literal) => {
        concat!(
            "SELECT id, tenant, seq, event_type, timestamp, idempotency_key, source, subject, metadata, data,
                    priority, erased_at FROM events ",
            $rest
        )
    };
}

fn read_event(row: &Row) -> Result<StoredEvent, Failure> {
    let text = |column| plain::<Option<String>>(row, column).map(|text| text.map(String::into_boxed_str));
    let event = Event {
        id: get(row, 0)?,
        tenant: get(row, 1)?,
        event_type: plain::<String>(row, 3)?.into(),
        timestamp: get(row, 4)?,
        idempotency_key: text(5)?,
        source: text(6)?,
        subject: text(7)?,
        metadata: plain::<Option<Vec<u8>>>(row, 8)?.map(Into::into),
        data: plain::<Vec<u8>>(row, 9)?.into(),
        priority: get(row, 10)?,
    };
    Ok(StoredEvent { event, sequence_number: plain(row, 2)?, erased_at: get_opt(row, 11)? })
}

macro_rules! delivery {
    ($rest:literal) => {
        concat!(
            "SELECT d.id, d.tenant, d.event, e.event_type, d.webhook, d.round, d.status, d.attempt_count,
                    d.last_status_code, d.failure_category, d.last_error, d.dead_reason, d.cancel_reason,
                    d.created_at, d.ended_at, d.replay_of, d.redriven_as, w.due, d.priority,
                    CASE WHEN w.lane < 'A' THEN coalesce(
                        (SELECT l.delivery FROM leased l WHERE l.webhook = w.webhook AND l.lane = w.lane
                         AND l.lane < 'A' AND l.seq < w.seq ORDER BY l.seq LIMIT 1),
                        (SELECT f.delivery FROM waiting f WHERE f.webhook = w.webhook AND f.lane = w.lane
                         ORDER BY f.place, f.seq LIMIT 1)) END ",
            $rest
        )
    };
}

const OF_DELIVERIES: &str = delivery!(
    "FROM deliveries d
     CROSS JOIN LATERAL (SELECT * FROM events e WHERE e.tenant = d.tenant AND e.id = d.event LIMIT 1) e
     LEFT JOIN LATERAL (SELECT * FROM waiting w WHERE w.delivery = d.id LIMIT 1) w ON true"
);
/// Deliveries that a smaller table leads to.
macro_rules! led_to_by {
    ($table:literal) => {
        concat!(
            delivery!("FROM "),
            $table,
            " x CROSS JOIN LATERAL (SELECT * FROM deliveries d WHERE d.id = x.delivery LIMIT 1) d
     CROSS JOIN LATERAL (SELECT * FROM events e WHERE e.tenant = d.tenant AND e.id = d.event LIMIT 1) e
     LEFT JOIN LATERAL (SELECT * FROM waiting w WHERE w.delivery = d.id LIMIT 1) w ON true"
        )
    };
}
const OF_DEAD: &str = led_to_by!("dead");
/// Those that did not simply arrive, see `undelivered`.
const OF_UNDELIVERED: &str = led_to_by!("undelivered");
/// Those that are not over wait or are leased.
const OF_PENDING: &str = led_to_by!("(SELECT delivery FROM waiting UNION ALL SELECT delivery FROM leased)");
/// Those under way are few: as many as nodes have in memory.
const OF_LEASED: &str = led_to_by!("leased");
/// An event's deliveries are of the same millisecond, and so of the same month. They are looked up event by event.
const OF_EVENTS: &str = delivery!(
    "FROM events e CROSS JOIN LATERAL (
         SELECT * FROM deliveries d WHERE d.event = e.id
             AND d.id >= (left(e.id::text, 13) || '-0000-0000-000000000000')::uuid
             AND d.id <= (left(e.id::text, 13) || '-ffff-ffff-ffffffffffff')::uuid OFFSET 0) d
     LEFT JOIN LATERAL (SELECT * FROM waiting w WHERE w.delivery = d.id LIMIT 1) w ON true"
);

fn read_delivery(row: &Row) -> Result<Delivery, Failure> {
    let id = get(row, 0)?;
    Ok(Delivery {
        id,
        tenant: get(row, 1)?,
        event: get(row, 2)?,
        event_type: plain(row, 3)?,
        webhook: get(row, 4)?,
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
        behind: get_opt(row, 19)?.filter(|first| *first != id),
    })
}

macro_rules! attempt {
    ($rest:literal) => {
        concat!(
            "SELECT d.id, d.event, d.webhook, a.id, a.number, a.status, a.failure_category, a.http_status_code,
                    a.error_message, a.custom_headers, a.response_headers, a.response_body_sample, a.dns_us,
                    a.connect_us, a.tls_us, a.ttfb_us, a.total_us, a.scheduled_at, a.executed_at, a.next_retry_at,
                    a.worker, a.circuit, d.created_at
             FROM deliveries d CROSS JOIN LATERAL (SELECT * FROM attempts a WHERE a.delivery = d.id OFFSET 0) a ",
            $rest
        )
    };
}

const ATTEMPTS: &str = attempt!("WHERE d.id = $1 AND d.tenant = $2");
const ATTEMPTS_OF_EVENT: &str =
    attempt!("WHERE d.event = $1 AND d.tenant = $2 AND d.id >= $3 AND d.id <= $4");

fn read_attempt(row: &Row) -> Result<StoredAttempt, Failure> {
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
    Ok(StoredAttempt { delivery: get(row, 0)?, event: get(row, 1)?, webhook: get(row, 2)?, attempt })
}

/// What a filter says about deliveries, but for the webhook, the event and the times.
fn filter_deliveries(conditions: &mut Conditions, filter: &DeliveryFilter) {
    match filter.status {
        Some(StatusFilter::Is(DeliveryStatus::InFlight)) => {
            conditions.and("d.status = ? AND w.due IS NULL", Col(DeliveryStatus::Pending));
        }
        Some(StatusFilter::Is(status)) => conditions.and("d.status = ?", Col(status)),
        Some(StatusFilter::Failed) => {
            conditions
                .and("d.failure_category IS NOT NULL AND d.status <> ?", Col(DeliveryStatus::Delivered));
        }
        None => {}
    }
    conditions.and_opt("e.event_type = ?", filter.event_type.clone());
    conditions.and_opt("d.failure_category = ?", filter.failure_category.map(Col));
}

/// An event, for whoever takes it away.
pub(super) async fn find_event(
    session: &Session,
    tenant: &TenantId,
    id: EventId,
) -> Result<Option<StoredEvent>, Failure> {
    let found = event!("WHERE tenant = $1 AND id = $2");
    let row = session.query_opt(found, &[&tenant.as_str(), &Col(id)]).await?;
    row.map(|row| read_event(&row)).transpose()
}

/// A delivery of whatever tenant with its attempts, for whoever takes it away.
pub(super) async fn find_history(
    session: &Session,
    id: DeliveryId,
) -> Result<Option<(Delivery, Vec<StoredAttempt>)>, Failure> {
    let found = format!("{OF_DELIVERIES} WHERE d.id = $1");
    let Some(row) = session.query_opt(&found, &[&Col(id)]).await? else { return Ok(None) };
    let delivery = read_delivery(&row)?;
    let rows = session.query(ATTEMPTS, &[&Col(id), &delivery.tenant.as_str()]).await?;
    let mut attempts = rows.iter().map(read_attempt).collect::<Result<Vec<_>, _>>()?;
    attempts.sort_by_key(|stored| stored.attempt.number);
    Ok(Some((delivery, attempts)))
}

impl History for Postgres {
    fn event(&self, tenant: TenantId, id: EventId) -> Answer<'_, Option<StoredEvent>> {
        Box::pin(async move {
            let tenant = &tenant;
            self.read(|session| async move { find_event(&session, tenant, id).await }).await
        })
    }

    fn list_events(
        &self,
        tenant: TenantId,
        filter: EventFilter,
        page: PageRequest<EventId>,
    ) -> Answer<'_, Vec<StoredEvent>> {
        Box::pin(async move {
            let conditions = events_conditions(&tenant, &filter, page.after);
            let rest = format!("ORDER BY id DESC {}", limits(&page));
            self.read(|session| ask(session, &conditions, event!(""), &rest, read_event)).await
        })
    }

    fn delivery(&self, tenant: TenantId, id: DeliveryId) -> Answer<'_, Option<Delivery>> {
        Box::pin(async move {
            let mut conditions = Conditions::default();
            conditions.and("d.id = ?", Col(id));
            conditions.and("d.tenant = ?", tenant.as_str().to_owned());
            let found =
                self.read(|session| ask(session, &conditions, OF_DELIVERIES, "", read_delivery)).await?;
            Ok(found.into_iter().next())
        })
    }

    fn list_deliveries(
        &self,
        tenant: TenantId,
        filter: DeliveryFilter,
        page: PageRequest<DeliveryCursor>,
    ) -> Answer<'_, Vec<Delivery>> {
        Box::pin(async move {
            let (conditions, select, order) = deliveries_query(&tenant, &filter, page.after);
            let rest = format!("{order} {}", limits(&page));
            self.read(|session| ask(session, &conditions, select, &rest, read_delivery)).await
        })
    }

    fn list_dead(
        &self,
        tenant: TenantId,
        filter: DeliveryFilter,
        page: PageRequest<DeliveryId>,
    ) -> Answer<'_, Vec<Delivery>> {
        Box::pin(async move {
            let conditions = dead_conditions(&tenant, &filter, page.after);
            let rest = format!("ORDER BY x.delivery DESC {}", limits(&page));
            self.read(|session| ask(session, &conditions, OF_DEAD, &rest, read_delivery)).await
        })
    }

    fn attempts(&self, tenant: TenantId, delivery: DeliveryId) -> Answer<'_, Option<Vec<StoredAttempt>>> {
        Box::pin(async move { self.read(|session| attempts(session, &tenant, delivery)).await })
    }

    fn attempts_of_event(&self, tenant: TenantId, event: EventId) -> Answer<'_, Option<Vec<StoredAttempt>>> {
        Box::pin(async move { self.read(|session| attempts_of_event(session, &tenant, event)).await })
    }
}

async fn ask<T>(
    session: Tx,
    conditions: &Conditions,
    select: &str,
    rest: &str,
    read: fn(&Row) -> Result<T, Failure>,
) -> Result<Vec<T>, Failure> {
    conditions.query(&session, select, rest, read).await
}

fn events_conditions(tenant: &TenantId, filter: &EventFilter, after: Option<EventId>) -> Conditions {
    let mut conditions = Conditions::default();
    conditions.and("tenant = ?", tenant.as_str().to_owned());
    conditions.and_opt("id < ?", after.map(Col));
    conditions.and_times("id", filter.from, filter.to);
    conditions.and_opt("event_type = ?", filter.event_type.clone());
    conditions.and_opt("subject = ?", filter.subject.clone());
    conditions
}

fn dead_conditions(tenant: &TenantId, filter: &DeliveryFilter, after: Option<DeliveryId>) -> Conditions {
    let mut conditions = Conditions::default();
    conditions.and("x.tenant = ?", tenant.as_str().to_owned());
    conditions.and_opt("x.delivery < ?", after.map(Col));
    conditions.and_times("x.delivery", filter.from, filter.to);
    conditions.and_opt("d.webhook = ?", filter.webhook.map(Col));
    conditions.and_opt("d.event = ?", filter.event.map(Col));
    filter_deliveries(&mut conditions, filter);
    conditions
}

/// The conditions of a listing, where it begins and its order.
fn deliveries_query(
    tenant: &TenantId,
    filter: &DeliveryFilter,
    after: Option<DeliveryCursor>,
) -> (Conditions, &'static str, &'static str) {
    let is_rare = matches!(
        filter.status,
        Some(StatusFilter::Failed | StatusFilter::Is(DeliveryStatus::Dead | DeliveryStatus::Cancelled))
    );
    let is = |status| filter.status == Some(StatusFilter::Is(status));
    match filter.webhook {
        _ if filter.event.is_some() => {
            (of_tenant(tenant, filter, after), OF_EVENTS, "ORDER BY e.id DESC, d.id DESC")
        }
        _ if is_rare || filter.failure_category.is_some() => {
            (of_undelivered(tenant, filter, after), OF_UNDELIVERED, "ORDER BY x.delivery DESC")
        }
        _ if is(DeliveryStatus::Pending) => {
            (of_pending(tenant, filter, after), OF_PENDING, "ORDER BY x.delivery DESC")
        }
        _ if is(DeliveryStatus::InFlight) => {
            (of_pending(tenant, filter, after), OF_LEASED, "ORDER BY x.delivery DESC")
        }
        Some(webhook) => (of_webhook(tenant, webhook, filter, after), OF_DELIVERIES, "ORDER BY d.id DESC"),
        None => (of_tenant(tenant, filter, after), OF_EVENTS, "ORDER BY e.id DESC, d.id DESC"),
    }
}

/// What is rare is found by what it has in common.
fn of_undelivered(tenant: &TenantId, filter: &DeliveryFilter, after: Option<DeliveryCursor>) -> Conditions {
    let mut conditions = Conditions::default();
    conditions.and("x.tenant = ?", tenant.as_str().to_owned());
    match (filter.webhook, filter.failure_category, filter.status) {
        (Some(webhook), ..) => conditions.and("x.webhook = ?", Col(webhook)),
        (None, Some(category), _) => conditions.and("x.category = ?", Col(category)),
        (None, None, Some(StatusFilter::Is(status))) => conditions.and("x.status = ?", Col(status)),
        (None, None, _) => conditions.and_plain("x.category IS NOT NULL"),
    }
    among(conditions, filter, after)
}

/// What is not over is little beside what is.
fn of_pending(tenant: &TenantId, filter: &DeliveryFilter, after: Option<DeliveryCursor>) -> Conditions {
    let mut conditions = Conditions::default();
    conditions.and("d.tenant = ?", tenant.as_str().to_owned());
    conditions.and_opt("d.webhook = ?", filter.webhook.map(Col));
    among(conditions, filter, after)
}

/// What else is asked of deliveries that are found by their ids, `x.delivery`.
fn among(mut conditions: Conditions, filter: &DeliveryFilter, after: Option<DeliveryCursor>) -> Conditions {
    conditions.and_opt("x.delivery < ?", after.map(|cursor| Col(cursor.delivery)));
    conditions.and_times("x.delivery", filter.from, filter.to);
    filter_deliveries(&mut conditions, filter);
    conditions
}

/// A webhook's deliveries by their ids, which begin with their events' times.
fn of_webhook(
    tenant: &TenantId,
    webhook: WebhookId,
    filter: &DeliveryFilter,
    after: Option<DeliveryCursor>,
) -> Conditions {
    let mut conditions = Conditions::default();
    conditions.and("d.webhook = ?", Col(webhook));
    conditions.and("d.tenant = ?", tenant.as_str().to_owned());
    conditions.and_opt("d.id < ?", after.map(|cursor| Col(cursor.delivery)));
    conditions.and_times("d.id", filter.from, filter.to);
    filter_deliveries(&mut conditions, filter);
    conditions
}

/// A tenant's deliveries, event by event: the tenant's events are the index that leads to them.
fn of_tenant(tenant: &TenantId, filter: &DeliveryFilter, after: Option<DeliveryCursor>) -> Conditions {
    let mut conditions = Conditions::default();
    conditions.and("e.tenant = ?", tenant.as_str().to_owned());
    if let Some(after) = after {
        // The first is the range that the index can use.
        conditions.and("e.id <= ?", Col(after.event));
        let event = conditions.values.len();
        conditions.and(&format!("(e.id < ${event} OR d.id < ?)"), Col(after.delivery));
    }
    conditions.and_times("e.id", filter.from, filter.to);
    conditions.and_opt("e.id = ?", filter.event.map(Col));
    conditions.and_opt("d.webhook = ?", filter.webhook.map(Col));
    filter_deliveries(&mut conditions, filter);
    conditions
}

async fn attempts(
    session: Tx,
    tenant: &TenantId,
    delivery: DeliveryId,
) -> Result<Option<Vec<StoredAttempt>>, Failure> {
    let (id, tenant) = (Col(delivery), tenant.as_str());
    if !session.exists("SELECT 1 FROM deliveries WHERE id = $1 AND tenant = $2", &[&id, &tenant]).await? {
        return Ok(None);
    }
    let rows = session.query(ATTEMPTS, &[&id, &tenant]).await?;
    let mut attempts = rows.iter().map(read_attempt).collect::<Result<Vec<_>, _>>()?;
    attempts.sort_by_key(|one| one.attempt.number);
    Ok(Some(attempts))
}

async fn attempts_of_event(
    session: Tx,
    tenant: &TenantId,
    event: EventId,
) -> Result<Option<Vec<StoredAttempt>>, Failure> {
    let known = "SELECT 1 FROM events WHERE tenant = $1 AND id = $2";
    if !session.exists(known, &[&tenant.as_str(), &Col(event)]).await? {
        return Ok(None);
    }
    let first = first_at(event.time());
    let mut last = [0xff; 16];
    last[..6].copy_from_slice(&first[..6]);
    let values: [&(dyn ToSql + Sync); 4] = [&Col(event), &tenant.as_str(), &Col(first), &Col(last)];
    let rows = session.query(ATTEMPTS_OF_EVENT, &values).await?;
    let mut attempts = rows
        .iter()
        .map(|row| Ok((get::<Time>(row, 22)?, read_attempt(row)?)))
        .collect::<Result<Vec<_>, Failure>>()?;
    attempts.sort_by_key(|(created_at, one)| (*created_at, one.delivery, one.attempt.number));
    Ok(Some(attempts.into_iter().map(|(_, one)| one).collect()))
}

/// Every question that the API asks, with every filter, as it is sent.
#[cfg(feature = "conformance")]
pub(super) fn planned() -> Vec<(&'static str, String)> {
    use redrive_core::FailureCategory;
    let tenant = TenantId::default();
    let (event, delivery) = (EventId::from_bytes([1; 16]), DeliveryId::from_bytes([1; 16]));
    let webhook = WebhookId::from_bytes([1; 16]);
    let cursor = Some(DeliveryCursor { event, delivery });
    let times = (Some(Time::default()), Some(Time::FOREVER));
    let page = "LIMIT 50 OFFSET 0";
    let none = DeliveryFilter::default();
    let all = DeliveryFilter {
        webhook: None,
        event: None,
        status: Some(StatusFilter::Failed),
        event_type: Some("a.b".into()),
        failure_category: Some(FailureCategory::Timeout),
        from: times.0,
        to: times.1,
    };
    let event_filter =
        EventFilter { event_type: Some("a".into()), subject: Some("s".into()), from: times.0, to: times.1 };
    let mut planned = vec![
        ("one event", event!("WHERE tenant = $1 AND id = $2").to_owned()),
        ("attempts of a delivery", ATTEMPTS.to_owned()),
        ("attempts of an event", ATTEMPTS_OF_EVENT.to_owned()),
        (
            "events",
            events_conditions(&tenant, &EventFilter::default(), None)
                .statement(event!(""), &format!("ORDER BY id DESC {page}")),
        ),
        (
            "events, filtered, next page",
            events_conditions(&tenant, &event_filter, Some(event))
                .statement(event!(""), &format!("ORDER BY id DESC {page}")),
        ),
    ];
    let mut listing = |name, filter: &DeliveryFilter, after| {
        let (conditions, select, order) = deliveries_query(&tenant, filter, after);
        planned.push((name, conditions.statement(select, &format!("{order} {page}"))));
    };
    listing("deliveries", &none, None);
    listing("deliveries, filtered, next page", &all, cursor);
    for (name, status) in [
        ("deliveries that failed", StatusFilter::Failed),
        ("deliveries that are dead", StatusFilter::Is(DeliveryStatus::Dead)),
        ("deliveries that are cancelled", StatusFilter::Is(DeliveryStatus::Cancelled)),
        ("deliveries that are not over", StatusFilter::Is(DeliveryStatus::Pending)),
        ("deliveries under way", StatusFilter::Is(DeliveryStatus::InFlight)),
    ] {
        listing(name, &DeliveryFilter { status: Some(status), ..none.clone() }, None);
    }
    listing("deliveries of an event", &DeliveryFilter { event: Some(event), ..none.clone() }, None);
    listing("deliveries of a webhook", &DeliveryFilter { webhook: Some(webhook), ..none.clone() }, None);
    listing(
        "deliveries of a webhook, filtered, next page",
        &DeliveryFilter { webhook: Some(webhook), ..all.clone() },
        cursor,
    );
    for (name, filter, after) in [("dead", &none, None), ("dead, filtered, next page", &all, Some(delivery))]
    {
        let conditions = dead_conditions(&tenant, filter, after);
        planned.push((name, conditions.statement(OF_DEAD, &format!("ORDER BY x.delivery DESC {page}"))));
    }
    planned
}
