//! Listings: an index leads to rows from the newest to the oldest, and each is asked whether it is wanted. A
//! statement looks at so many rows and says how far it came; it is asked again until the page is full, or too
//! many were not wanted. Statements are few and fixed, however many filters there are: what is not asked is null.

use redrive_core::{DeadReason, DeliveryStatus, EventId, FailureCategory, TenantId, WebhookId};
use tokio_postgres::{Row, types::ToSql};

use super::{
    convert::{Col, get_opt, plain},
    history::{DELIVERY, DELIVERY_COLUMNS, EVENT, EVENT_COLUMNS, read_delivery, read_event},
    session::{Failure, Tx},
};
use crate::{
    Delivery, DeliveryCursor, DeliveryFilter, EventFilter, Listed, PageRequest, StatusFilter, StoredEvent,
    access_path::{Lead, Range, Walk, behind},
};

/// Rows that the keys of one statement may lead to together.
const MOST_OF_KEYS: usize = 40_000;

/// How a listing is gone about.
#[derive(Clone, Copy, Debug)]
pub(super) struct Way {
    /// Where it begins.
    pub(super) lead: Lead,
    /// Whether it is about dead letters alone.
    pub(super) dead: bool,
}

/// The newest rows of a table that a key leads to; `$2` to `$4` say which and how many.
macro_rules! newest {
    ($table:literal, $id:literal, $condition:literal) => {
        concat!(
            "SELECT x.",
            $id,
            " AS id FROM ",
            $table,
            " x WHERE ",
            $condition,
            " AND x.",
            $id,
            " >= $2 AND x.",
            $id,
            " < $3 ORDER BY x.",
            $id,
            " DESC LIMIT $4"
        )
    };
}
/// The same of each of several keys, and of these the newest.
macro_rules! newest_of_each {
    ($keys:literal, $newest:expr) => {
        concat!(
            "SELECT c.id FROM unnest(",
            $keys,
            ") AS leg(key) CROSS JOIN LATERAL (",
            $newest,
            ") c ORDER BY c.id DESC LIMIT $4"
        )
    };
}
/// The same of each webhook that is the tenant's, as its newest delivery tells. Others would be walked through in
/// vain.
macro_rules! newest_of_webhooks {
    ($newest:expr) => {
        concat!(
            "SELECT c.id FROM unnest($6::uuid[]) AS leg(key)
             CROSS JOIN LATERAL (
                 SELECT o.tenant FROM deliveries o WHERE o.webhook = leg.key ORDER BY o.id DESC LIMIT 1) own
             CROSS JOIN LATERAL (", $newest, ") c WHERE own.tenant = $1 ORDER BY c.id DESC LIMIT $4"
        )
    };
}
/// Events with what listings ask of them.
macro_rules! newest_events {
    ($condition:literal) => {
        concat!(
            "SELECT e.id, e.event_type, e.subject, e.idempotency_key, e.source FROM events e WHERE e.tenant = $1",
            $condition, " AND e.id >= $2 AND e.id < $3 ORDER BY e.id DESC LIMIT $4"
        )
    };
}

/// The ids that lead to what is wanted, newest first.
fn leading(lead: Lead) -> &'static str {
    match lead {
        // Which one is in the range.
        Lead::Event(_) | Lead::Tenant => newest_events!(""),
        // An event without a key is known by its id.
        Lead::Key => concat!(
            "SELECT * FROM ((",
            newest_events!(" AND e.idempotency_key = $16"),
            ") UNION ALL (",
            newest_events!(" AND e.id = $17 AND e.idempotency_key IS NULL"),
            ")) c ORDER BY c.id DESC LIMIT $4"
        ),
        Lead::Subject => newest_events!(" AND e.subject = $18"),
        Lead::Webhooks => newest_of_webhooks!(newest!("deliveries", "id", "x.webhook = leg.key")),
        Lead::UndeliveredOfWebhooks => {
            newest_of_webhooks!(newest!("undelivered", "delivery", "x.webhook = leg.key"))
        }
        Lead::DeadOfWebhooks => newest_of_webhooks!(newest!("dead", "delivery", "x.webhook = leg.key")),
        Lead::Pending => newest!(
            "(SELECT delivery FROM waiting UNION ALL SELECT delivery FROM leased)",
            "delivery",
            "true"
        ),
        Lead::Leased => newest!("leased", "delivery", "true"),
        Lead::Code(_) => newest!("undelivered", "delivery", "x.tenant = $1 AND x.code = $9"),
        Lead::Categories => newest_of_each!(
            "$8::smallint[]",
            newest!("undelivered", "delivery", "x.tenant = $1 AND x.category = leg.key")
        ),
        Lead::Failed => newest!("undelivered", "delivery", "x.tenant = $1 AND x.category IS NOT NULL"),
        Lead::Ended(_) => newest!("undelivered", "delivery", "x.tenant = $1 AND x.status = $11"),
        Lead::Dead => newest!("dead", "delivery", "x.tenant = $1"),
        Lead::DeadOfTypes => newest_of_each!(
            "$7::text[]",
            newest!("dead", "delivery", "x.tenant = $1 AND x.event_type = leg.key")
        ),
        Lead::DeadOfCategories => newest_of_each!(
            "$8::smallint[]",
            newest!("dead", "delivery", "x.tenant = $1 AND x.category = leg.key")
        ),
    }
}

/// What is asked of events that are led to.
const ASK_EVENT: &str = "
    AND ($7::text[] IS NULL OR e.event_type = ANY($7::text[]))
    AND ($16::text IS NULL OR e.idempotency_key = $16::text OR (e.idempotency_key IS NULL AND e.id = $17::uuid))
    AND ($18::text IS NULL OR e.subject = $18::text)";
/// What is asked of deliveries that are led to.
const ASK_DELIVERY: &str = "
    AND ($6::uuid[] IS NULL OR d.webhook = ANY($6::uuid[]))
    AND ($8::smallint[] IS NULL OR d.failure_category = ANY($8::smallint[]))
    AND ($9::smallint IS NULL OR d.last_status_code BETWEEN $9::smallint AND $10::smallint)
    AND ($11::smallint IS NULL OR d.status = $11::smallint)
    AND (NOT $12::boolean OR w.due IS NULL)
    AND (NOT $13::boolean OR (d.failure_category IS NOT NULL AND d.status <> 2))
    AND ($14::smallint[] IS NULL OR d.dead_reason = ANY($14::smallint[]))
    AND ($15::integer[] IS NULL OR d.dead_reason * 100 + coalesce(d.failure_category, 0) = ANY($15::integer[]))
    AND (NOT $19::boolean OR NOT coalesce(
        (SELECT h.managed_by_operator FROM webhooks h WHERE h.id = d.webhook LIMIT 1), false))";
/// An event's deliveries are of the same millisecond, and so of the same month. They are looked up event by event.
const OF_EVENT: &str = "FROM (SELECT * FROM c ORDER BY c.id DESC OFFSET 0) e CROSS JOIN LATERAL (
         SELECT * FROM deliveries d WHERE d.event = e.id
             AND d.id >= (left(e.id::text, 13) || '-0000-0000-000000000000')::uuid
             AND d.id <= (left(e.id::text, 13) || '-ffff-ffff-ffffffffffff')::uuid OFFSET 0) d
     LEFT JOIN LATERAL (SELECT * FROM waiting w WHERE w.delivery = d.id LIMIT 1) w ON true
     WHERE d.tenant = $1 AND (e.id < $20 OR d.id < $21)";
const OF_DELIVERY: &str = "FROM (SELECT * FROM c ORDER BY c.id DESC OFFSET 0) c
     CROSS JOIN LATERAL (SELECT * FROM deliveries d WHERE d.id = c.id LIMIT 1) d
     CROSS JOIN LATERAL (SELECT * FROM events e WHERE e.tenant = d.tenant AND e.id = d.event LIMIT 1) e
     LEFT JOIN LATERAL (SELECT * FROM waiting w WHERE w.delivery = d.id LIMIT 1) w ON true
     WHERE d.tenant = $1";
const IS_DEAD: &str = " AND EXISTS (SELECT 1 FROM dead x WHERE x.delivery = d.id OFFSET 0)";

/// What is wanted of `$4` leading rows, up to `$5` of it, with how many there were and the last of them. One row
/// tells that much even if nothing is wanted.
fn statement(leading: &str, wanted: &str, order: &str) -> String {
    format!(
        "WITH c AS MATERIALIZED ({leading})
         SELECT m.*, s.looked_at, s.last
         FROM (SELECT (SELECT count(*) FROM c) AS looked_at, (SELECT id FROM c ORDER BY id LIMIT 1) AS last) s
         LEFT JOIN LATERAL ({wanted} ORDER BY {order} LIMIT $5) m ON true"
    )
}

fn deliveries_statement(way: Way) -> String {
    let dead = if way.dead { IS_DEAD } else { "" };
    let (of, order) = match way.lead.is_by_event() {
        true => (OF_EVENT, "e.id DESC, d.id DESC"),
        false => (OF_DELIVERY, "c.id DESC"),
    };
    statement(leading(way.lead), &format!("{DELIVERY} {of}{ASK_DELIVERY}{ASK_EVENT}{dead}"), order)
}

fn events_statement(lead: Lead) -> String {
    // Only what is about events is asked; the numbers stay what they are.
    let renumbered =
        |sql: &str| sql.replace("$7", "$6").replace("$16", "$7").replace("$17", "$8").replace("$18", "$9");
    let of = "FROM (SELECT * FROM c ORDER BY c.id DESC OFFSET 0) c
         CROSS JOIN LATERAL (SELECT * FROM events e WHERE e.tenant = $1 AND e.id = c.id LIMIT 1) e
         WHERE ($10::text IS NULL OR c.source = $10::text)";
    let ask = renumbered(ASK_EVENT).replace("e.", "c.");
    statement(&renumbered(leading(lead)), &format!("{EVENT} {of}{ask}"), "c.id DESC")
}

/// Whether a text can be in the database: none with a NUL is.
fn can_be(text: &str) -> bool {
    !text.contains('\0')
}

/// Whether texts are asked for that nothing can have.
fn is_hopeless(texts: [Option<&String>; 3], types: &[String]) -> bool {
    texts.into_iter().flatten().any(|text| !can_be(text))
        || (!types.is_empty() && !types.iter().any(|name| can_be(name)))
}

/// A list, or null where nothing is asked.
fn some<T, U>(list: &[T], into: impl Fn(&T) -> U) -> Option<Vec<U>> {
    (!list.is_empty()).then(|| list.iter().map(into).collect())
}

/// Those of these event types that there can be.
fn possible(types: &[String]) -> Option<Vec<String>> {
    (!types.is_empty()).then(|| types.iter().filter(|name| can_be(name)).cloned().collect())
}

/// What a filter asks, as values.
pub(super) struct Asked {
    pub(super) webhooks: Option<Vec<Col<WebhookId>>>,
    pub(super) types: Option<Vec<String>>,
    pub(super) categories: Option<Vec<Col<FailureCategory>>>,
    codes: (Option<i16>, Option<i16>),
    status: Option<Col<DeliveryStatus>>,
    leased: bool,
    failed: bool,
    pub(super) reasons: Option<Vec<Col<DeadReason>>>,
    pub(super) ways: Option<Vec<i32>>,
    key: Option<String>,
    key_id: Option<Col<EventId>>,
    subject: Option<String>,
    pub(super) tenant_managed_only: bool,
}

impl Asked {
    pub(super) fn of(filter: &DeliveryFilter, lead: Lead) -> Self {
        let status = match (filter.status, lead) {
            (Some(StatusFilter::Is(DeliveryStatus::InFlight)), _) => Some(DeliveryStatus::Pending),
            (Some(StatusFilter::Is(status)), _) => Some(status),
            (_, Lead::Ended(status)) => Some(status),
            _ => None,
        };
        let codes = filter.status_code.map(crate::CodeFilter::range);
        Self {
            webhooks: some(&filter.webhooks, |id| Col(*id)),
            types: possible(&filter.event_types),
            categories: some(&filter.failure_categories, |kind| Col(*kind)),
            codes: (codes.map(|codes| codes.0 as i16), codes.map(|codes| codes.1 as i16)),
            status: status.map(Col),
            leased: filter.status == Some(StatusFilter::Is(DeliveryStatus::InFlight)),
            failed: filter.status == Some(StatusFilter::Failed),
            reasons: some(&filter.dead_reasons, |reason| Col(*reason)),
            ways: filter.recoverable_ways().map(|ways| ways.into_iter().map(crate::codes::way).collect()),
            key: filter.idempotency_key.clone(),
            key_id: filter.idempotency_key.as_ref().and_then(|key| key.parse().ok()).map(Col),
            subject: filter.subject.clone(),
            tenant_managed_only: filter.tenant_managed_only,
        }
    }

    /// How many keys one statement walks along.
    fn legs(&self, lead: Lead) -> usize {
        let legs = match lead {
            Lead::Webhooks | Lead::UndeliveredOfWebhooks | Lead::DeadOfWebhooks => {
                self.webhooks.as_ref().map(Vec::len)
            }
            Lead::Categories | Lead::DeadOfCategories => self.categories.as_ref().map(Vec::len),
            Lead::DeadOfTypes => self.types.as_ref().map(Vec::len),
            _ => None,
        };
        legs.unwrap_or(1).max(1)
    }
}

/// How many rows to look at for each of so many keys.
fn stride<T, C: Copy>(walk: &Walk<T, C>, legs: usize) -> usize {
    walk.stride().min(walk.missing().max(MOST_OF_KEYS / legs))
}

/// A range in which there is nothing but one event, where one leads.
fn narrowed(range: Range, lead: Lead) -> Range {
    let Lead::Event(event) = lead else { return range };
    let after = u128::from_be_bytes(*event.as_bytes()).saturating_add(1).to_be_bytes();
    Range { low: range.low.max(*event.as_bytes()), high: range.high.min(after) }
}

/// What a statement told: what was wanted, how many rows it looked at, and the last of them.
struct Told<T> {
    found: Vec<T>,
    looked_at: usize,
    last: [u8; 16],
}

impl<T> Told<T> {
    fn read(rows: &[Row], columns: usize, read: fn(&Row) -> Result<T, Failure>) -> Result<Self, Failure> {
        let Some(first) = rows.first() else { return Err(Failure::Bad("a listing told nothing".into())) };
        let looked_at = plain::<i64>(first, columns)?.unsigned_abs() as usize;
        let last = get_opt::<EventId>(first, columns + 1)?.map_or([0; 16], |id| *id.as_bytes());
        let is_found = |row: &&Row| get_opt::<EventId>(row, 0).map_or(true, |id| id.is_some());
        let found = rows.iter().filter(is_found).map(read).collect::<Result<_, _>>()?;
        Ok(Self { found, looked_at, last })
    }
}

/// Deliveries. None: nobody knows what to leave out.
pub(super) async fn deliveries(
    session: Tx,
    tenant: &TenantId,
    way: Way,
    filter: &DeliveryFilter,
    page: PageRequest<DeliveryCursor>,
) -> Result<Option<Listed<Delivery, DeliveryCursor>>, Failure> {
    let Way { lead, .. } = way;
    let statement = deliveries_statement(way);
    let asked = Asked::of(filter, lead);
    let mut walk = Walk::new(&page);
    let texts = [filter.idempotency_key.as_ref(), filter.subject.as_ref(), None];
    if is_hopeless(texts, &filter.event_types) {
        return Ok(walk.page());
    }
    let mut after = page.after;
    while walk.missing() > 0 {
        let Range { low, high } = narrowed(Range::of_deliveries(lead, filter, after), lead);
        let (low, high) = (Col(low), Col(high));
        let rows = stride(&walk, asked.legs(lead));
        let (most, missing) = (rows as i64, walk.missing() as i64);
        let tenant = tenant.as_str();
        // Where there is none, everything comes after it.
        let after_event = Col(after.map_or([0xff; 16], |after| *after.event.as_bytes()));
        let after_delivery = Col(after.map_or([0xff; 16], |after| *after.delivery.as_bytes()));
        let mut values: Vec<&(dyn ToSql + Sync)> = vec![
            &tenant,
            &low,
            &high,
            &most,
            &missing,
            &asked.webhooks,
            &asked.types,
            &asked.categories,
            &asked.codes.0,
            &asked.codes.1,
            &asked.status,
            &asked.leased,
            &asked.failed,
            &asked.reasons,
            &asked.ways,
            &asked.key,
            &asked.key_id,
            &asked.subject,
            &asked.tenant_managed_only,
        ];
        if lead.is_by_event() {
            values.extend([&after_event as &(dyn ToSql + Sync), &after_delivery]);
        }
        let told = session.query(&statement, &values).await?;
        let mut told = Told::read(&told, DELIVERY_COLUMNS, read_delivery)?;
        match lead.is_by_event() {
            true => told.found.sort_by_key(|one| std::cmp::Reverse((one.event, one.id))),
            false => told.found.sort_by_key(|one| std::cmp::Reverse(one.id)),
        }
        let place = behind(lead, told.last);
        let is_end = told.looked_at < rows;
        if is_end && told.found.len() < walk.missing() {
            walk.end(told.found);
            break;
        }
        if !walk.add(told.looked_at, told.found, place) {
            break;
        }
        after = Some(place);
    }
    Ok(walk.page())
}

/// Events. None: nobody knows what to leave out.
pub(super) async fn events(
    session: Tx,
    tenant: &TenantId,
    filter: &EventFilter,
    page: PageRequest<EventId>,
) -> Result<Option<Listed<StoredEvent, EventId>>, Failure> {
    let lead = Lead::of_events(filter);
    let statement = events_statement(lead);
    let types = possible(&filter.event_types);
    let key_id: Option<Col<EventId>> =
        filter.idempotency_key.as_ref().and_then(|key| key.parse().ok()).map(Col);
    let mut walk = Walk::new(&page);
    let texts = [filter.idempotency_key.as_ref(), filter.subject.as_ref(), filter.source.as_ref()];
    if is_hopeless(texts, &filter.event_types) {
        return Ok(walk.page());
    }
    let mut after = page.after;
    while walk.missing() > 0 {
        let Range { low, high } = narrowed(Range::of_events(filter, after), lead);
        let rows = stride(&walk, 1);
        let values: [&(dyn ToSql + Sync); 10] = [
            &tenant.as_str(),
            &Col(low),
            &Col(high),
            &(rows as i64),
            &(walk.missing() as i64),
            &types,
            &filter.idempotency_key,
            &key_id,
            &filter.subject,
            &filter.source,
        ];
        let told = session.query(&statement, &values).await?;
        let mut told = Told::read(&told, EVENT_COLUMNS, read_event)?;
        told.found.sort_by_key(|one| std::cmp::Reverse(one.event.id));
        let place = EventId::from_bytes(told.last);
        if told.looked_at < rows && told.found.len() < walk.missing() {
            walk.end(told.found);
            break;
        }
        if !walk.add(told.looked_at, told.found, place) {
            break;
        }
        after = Some(place);
    }
    Ok(walk.page())
}

/// Every listing, as it is asked for, for a test that looks at their plans.
#[cfg(feature = "conformance")]
pub(super) fn planned() -> Vec<(String, String)> {
    let filters = crate::access_path::planned_filters();
    let deliveries = filters.iter().flat_map(|(name, filter)| {
        let all = Way { lead: Lead::of(filter), dead: false };
        let dead = Way { lead: Lead::of_dead(filter), dead: true };
        [
            (format!("deliveries {name}"), deliveries_statement(all)),
            (format!("dead {name}"), deliveries_statement(dead)),
        ]
    });
    let events = crate::access_path::planned_event_filters().into_iter();
    let events =
        events.map(|(name, filter)| (format!("events {name}"), events_statement(Lead::of_events(&filter))));
    deliveries.chain(events).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codes::Code;

    #[test]
    fn numbers_in_statements_mean_what_they_should() {
        assert_eq!(DeliveryStatus::Delivered.code(), 2);
        assert!(ASK_DELIVERY.contains("d.status <> 2"));
    }
}
