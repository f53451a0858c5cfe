//! Listings: an access path yields candidate rows from newest to oldest, and each row is checked against the
//! filter. One statement reads a limited number of candidates and returns its last position; it is repeated until
//! the page is full or too many candidates were skipped. The statements are few and fixed: an unused filter is
//! passed as null.

use redrive_core::{
    DeadReason, DeliveryStatus, EventId, FailureCategory, TenantId, Time, WebhookId,
    delivery::code_filter::CodeFilter,
};
use tokio_postgres::{Row, types::ToSql};

use super::{
    convert::{Col, get_opt, plain},
    history::{DELIVERY, DELIVERY_COLUMNS, EVENT, EVENT_COLUMNS, read_delivery, read_event},
    session::{Failure, Tx},
};
use crate::{
    Delivery, DeliveryCursor, DeliveryFilter, EventFilter, ListingPage, PageRequest, StatusFilter,
    StoredEvent,
    access_path::{AccessPath, IdRange, ListedTenants, PageBuilder, cursor_after},
};

/// Maximum candidates of one statement, over all of its keys.
const MAX_ROWS_PER_STATEMENT: usize = 40_000;

/// Plan of a listing.
#[derive(Clone, Copy, Debug)]
pub(super) struct ListingPlan {
    /// Access path of the candidates.
    pub(super) lead: AccessPath,
    /// Whether only dead letters are listed.
    pub(super) dead: bool,
    /// Whether those of all tenants are listed. The parameter `$1` is null then.
    pub(super) all: bool,
}

/// Selects the newest rows of a table for one key; `$2` to `$4` are the id range and the number of rows.
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
/// Selects the newest rows over several keys.
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
/// Selects the newest rows over several webhooks. Webhooks of another tenant, as shown by their newest delivery,
/// are skipped, since their rows would be read in vain.
macro_rules! newest_of_webhooks {
    ($newest:expr) => {
        concat!(
            "SELECT c.id FROM unnest($6::uuid[]) AS leg(key)
             CROSS JOIN LATERAL (
                 SELECT o.tenant_id FROM deliveries o WHERE o.webhook_id = leg.key ORDER BY o.id DESC LIMIT 1) own
             CROSS JOIN LATERAL (", $newest, ") c WHERE own.tenant_id = $1 ORDER BY c.id DESC LIMIT $4"
        )
    };
}
/// Selects the newest events of all tenants. The conditions on the id select the partitions.
const NEWEST_OF_ALL_EVENTS: &str =
    "SELECT e.id, e.event_type, e.subject, e.idempotency_key, e.source, e.tenant_id FROM events e
     WHERE uuid_send(e.id) >= uuid_send($2::uuid) AND uuid_send(e.id) < uuid_send($3::uuid)
         AND e.id >= $2::uuid AND e.id < $3::uuid
     ORDER BY uuid_send(e.id) DESC LIMIT $4";
/// Selects the newest events with the columns that filters use.
macro_rules! newest_events {
    ($condition:literal) => {
        concat!(
            "SELECT e.id, e.event_type, e.subject, e.idempotency_key, e.source FROM events e WHERE e.tenant_id = $1",
            $condition, " AND e.id >= $2 AND e.id < $3 ORDER BY e.id DESC LIMIT $4"
        )
    };
}

/// Returns the statement that yields candidate ids of an access path over all tenants, newest first.
fn leading_of_all(access_path: AccessPath) -> &'static str {
    match access_path {
        AccessPath::Webhooks => {
            newest_of_each!("$6::uuid[]", newest!("deliveries", "id", "x.webhook_id = leg.key"))
        }
        AccessPath::UndeliveredOfWebhooks => {
            newest_of_each!("$6::uuid[]", newest!("undelivered", "delivery_id", "x.webhook_id = leg.key"))
        }
        AccessPath::DeadOfWebhooks => {
            newest_of_each!("$6::uuid[]", newest!("dead", "delivery_id", "x.webhook_id = leg.key"))
        }
        access_path => leading(access_path),
    }
}

/// Returns the statement that yields candidate ids of an access path, newest first.
fn leading(access_path: AccessPath) -> &'static str {
    match access_path {
        AccessPath::EventsOfAllTenants => NEWEST_OF_ALL_EVENTS,
        AccessPath::DeliveriesOfAllTenants => newest!("deliveries", "id", "true"),
        AccessPath::UndeliveredOfAllTenants => newest!("undelivered", "delivery_id", "true"),
        AccessPath::DeadOfAllTenants => newest!("dead", "delivery_id", "true"),
        // The id range selects the event.
        AccessPath::Event(_) | AccessPath::Tenant => newest_events!(""),
        // The effective key of an event without an idempotency key is its id.
        AccessPath::Key => concat!(
            "SELECT * FROM ((",
            newest_events!(" AND e.idempotency_key = $16"),
            ") UNION ALL (",
            newest_events!(" AND e.id = $17 AND e.idempotency_key IS NULL"),
            ")) c ORDER BY c.id DESC LIMIT $4"
        ),
        AccessPath::Subject => newest_events!(" AND e.subject = $18"),
        AccessPath::Webhooks => newest_of_webhooks!(newest!("deliveries", "id", "x.webhook_id = leg.key")),
        AccessPath::UndeliveredOfWebhooks => {
            newest_of_webhooks!(newest!("undelivered", "delivery_id", "x.webhook_id = leg.key"))
        }
        AccessPath::DeadOfWebhooks => {
            newest_of_webhooks!(newest!("dead", "delivery_id", "x.webhook_id = leg.key"))
        }
        AccessPath::Pending => newest!(
            "(SELECT delivery_id FROM waiting UNION ALL SELECT delivery_id FROM leased)",
            "delivery_id",
            "true"
        ),
        AccessPath::Leased => newest!("leased", "delivery_id", "true"),
        AccessPath::Code(_) => newest!("undelivered", "delivery_id", "x.tenant_id = $1 AND x.code = $9"),
        AccessPath::Categories => newest_of_each!(
            "$8::smallint[]",
            newest!("undelivered", "delivery_id", "x.tenant_id = $1 AND x.category = leg.key")
        ),
        AccessPath::Failed => {
            newest!("undelivered", "delivery_id", "x.tenant_id = $1 AND x.category IS NOT NULL")
        }
        AccessPath::Ended(_) => newest!("undelivered", "delivery_id", "x.tenant_id = $1 AND x.status = $11"),
        AccessPath::Dead => newest!("dead", "delivery_id", "x.tenant_id = $1"),
        AccessPath::DeadOfTypes => newest_of_each!(
            "$7::text[]",
            newest!("dead", "delivery_id", "x.tenant_id = $1 AND x.event_type = leg.key")
        ),
        AccessPath::DeadOfCategories => newest_of_each!(
            "$8::smallint[]",
            newest!("dead", "delivery_id", "x.tenant_id = $1 AND x.category = leg.key")
        ),
    }
}

/// Filter conditions on events.
const EVENT_CONDITIONS: &str = "
    AND ($7::text[] IS NULL OR e.event_type = ANY($7::text[]))
    AND ($16::text IS NULL OR e.idempotency_key = $16::text OR (e.idempotency_key IS NULL AND e.id = $17::uuid))
    AND ($18::text IS NULL OR e.subject = $18::text)";
/// Filter conditions on deliveries.
const DELIVERY_CONDITIONS: &str = "
    AND ($6::uuid[] IS NULL OR d.webhook_id = ANY($6::uuid[]))
    AND ($8::smallint[] IS NULL OR d.failure_category = ANY($8::smallint[]))
    AND ($9::smallint IS NULL OR d.last_status_code BETWEEN $9::smallint AND $10::smallint)
    AND ($11::smallint IS NULL OR d.status = $11::smallint)
    AND (NOT $12::boolean OR w.due IS NULL)
    AND (NOT $13::boolean OR (d.failure_category IS NOT NULL AND d.status <> 2))
    AND ($14::smallint[] IS NULL OR d.dead_reason = ANY($14::smallint[]))
    AND ($15::integer[] IS NULL OR d.dead_reason * 100 + coalesce(d.failure_category, 0) = ANY($15::integer[]))
    AND (NOT $19::boolean OR NOT coalesce(
        (SELECT h.managed_by_operator FROM webhooks h WHERE h.id = d.webhook_id LIMIT 1), false))
    AND ($20::bigint IS NULL OR (d.status = 0 AND d.failure_category IS NOT NULL)
        OR (d.status = 3 AND d.redriven_as IS NULL AND d.purged_at IS NULL AND d.ended_at >= $20::bigint))
    AND ($21::bigint IS NULL OR (d.status = 3 AND d.redriven_as IS NULL AND d.purged_at IS NULL
        AND d.ended_at < $21::bigint))";
/// Deliveries of candidate events, looked up event by event. Their ids have the event's millisecond, so they are
/// in the same monthly partition.
const FROM_EVENTS: &str = "FROM (SELECT * FROM c ORDER BY c.id DESC OFFSET 0) e CROSS JOIN LATERAL (
         SELECT * FROM deliveries d WHERE d.event_id = e.id
             AND d.id >= (left(e.id::text, 13) || '-0000-0000-000000000000')::uuid
             AND d.id <= (left(e.id::text, 13) || '-ffff-ffff-ffffffffffff')::uuid OFFSET 0) d
     LEFT JOIN LATERAL (SELECT * FROM waiting w WHERE w.delivery_id = d.id LIMIT 1) w ON true
     WHERE d.tenant_id = $1 AND (e.id < $22 OR d.id < $23)";
const FROM_DELIVERIES: &str = "FROM (SELECT * FROM c ORDER BY c.id DESC OFFSET 0) c
     CROSS JOIN LATERAL (SELECT * FROM deliveries d WHERE d.id = c.id LIMIT 1) d
     CROSS JOIN LATERAL (SELECT * FROM events e WHERE e.tenant_id = d.tenant_id AND e.id = d.event_id LIMIT 1) e
     LEFT JOIN LATERAL (SELECT * FROM waiting w WHERE w.delivery_id = d.id LIMIT 1) w ON true
     WHERE d.tenant_id = $1";
const IS_DEAD: &str = " AND EXISTS (SELECT 1 FROM dead x WHERE x.delivery_id = d.id OFFSET 0)";

/// Builds a statement that returns up to `$5` matches among `$4` candidates, with the number of candidates and the
/// last of them. It returns one row with these two even if there is no match.
fn statement(leading: &str, wanted: &str, order: &str) -> String {
    format!(
        "WITH c AS MATERIALIZED ({leading})
         SELECT m.*, s.looked_at, s.last
         FROM (SELECT (SELECT count(*) FROM c) AS looked_at, (SELECT id FROM c ORDER BY id LIMIT 1) AS last) s
         LEFT JOIN LATERAL ({wanted} ORDER BY {order} LIMIT $5) m ON true"
    )
}

fn deliveries_statement(plan: ListingPlan) -> String {
    let dead = if plan.dead { IS_DEAD } else { "" };
    let (of, order) = match plan.lead.is_by_event() {
        true => (FROM_EVENTS, "e.id DESC, d.id DESC"),
        false => (FROM_DELIVERIES, "c.id DESC"),
    };
    let (leading, of) = match plan.all {
        true => (leading_of_all(plan.lead), of.replace("d.tenant_id = $1", "$1::text IS NULL")),
        false => (leading(plan.lead), of.to_owned()),
    };
    statement(leading, &format!("{DELIVERY} {of}{DELIVERY_CONDITIONS}{EVENT_CONDITIONS}{dead}"), order)
}

fn events_statement(access_path: AccessPath) -> String {
    // Only the parameters about events are passed, so they are renumbered.
    let renumbered =
        |sql: &str| sql.replace("$7", "$6").replace("$16", "$7").replace("$17", "$8").replace("$18", "$9");
    let (tenant, condition) = match access_path {
        AccessPath::EventsOfAllTenants => ("c.tenant_id", "$1::text IS NULL AND "),
        _ => ("$1", ""),
    };
    let of = format!(
        "FROM (SELECT * FROM c ORDER BY c.id DESC OFFSET 0) c
         CROSS JOIN LATERAL (SELECT * FROM events e WHERE e.tenant_id = {tenant} AND e.id = c.id LIMIT 1) e
         WHERE {condition}($10::text IS NULL OR c.source = $10::text)"
    );
    let ask = renumbered(EVENT_CONDITIONS).replace("e.", "c.");
    statement(&renumbered(leading(access_path)), &format!("{EVENT} {of}{ask}"), "c.id DESC")
}

/// Returns whether a text can be stored: PostgreSQL accepts no NUL.
fn is_storable(text: &str) -> bool {
    !text.contains('\0')
}

/// Returns whether a filter has texts that no stored row can have.
fn matches_nothing(texts: [Option<&String>; 3], types: &[String]) -> bool {
    texts.into_iter().flatten().any(|text| !is_storable(text))
        || (!types.is_empty() && !types.iter().any(|name| is_storable(name)))
}

/// Converts a list. Returns `None`, which becomes null, if it is empty.
fn some<T, U>(list: &[T], into: impl Fn(&T) -> U) -> Option<Vec<U>> {
    (!list.is_empty()).then(|| list.iter().map(into).collect())
}

/// Returns the event types that can be stored, or `None` if the filter has no event types.
fn possible(types: &[String]) -> Option<Vec<String>> {
    (!types.is_empty()).then(|| types.iter().filter(|name| is_storable(name)).cloned().collect())
}

/// Values of a filter as statement parameters.
pub(super) struct FilterValues {
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
    pub(super) failed_from: Option<Col<Time>>,
    pub(super) failed_to: Option<Col<Time>>,
}

impl FilterValues {
    pub(super) fn new(filter: &DeliveryFilter, access_path: AccessPath) -> Self {
        let status = match (filter.status, access_path) {
            (Some(StatusFilter::Exactly(DeliveryStatus::InFlight)), _) => Some(DeliveryStatus::Pending),
            (Some(StatusFilter::Exactly(status)), _) => Some(status),
            (_, AccessPath::Ended(status)) => Some(status),
            _ => None,
        };
        let codes = filter.status_code.map(CodeFilter::range);
        Self {
            webhooks: some(&filter.webhooks, |id| Col(*id)),
            types: possible(&filter.event_types),
            categories: some(&filter.failure_categories, |kind| Col(*kind)),
            codes: (codes.map(|codes| codes.0 as i16), codes.map(|codes| codes.1 as i16)),
            status: status.map(Col),
            leased: filter.status == Some(StatusFilter::Exactly(DeliveryStatus::InFlight)),
            failed: filter.status == Some(StatusFilter::Failed),
            reasons: some(&filter.dead_reasons, |reason| Col(*reason)),
            ways: filter
                .recoverable_codes()
                .map(|combinations| combinations.into_iter().map(crate::codes::death_code).collect()),
            key: filter.idempotency_key.clone(),
            key_id: filter.idempotency_key.as_ref().and_then(|key| key.parse().ok()).map(Col),
            subject: filter.subject.clone(),
            tenant_managed_only: filter.tenant_managed_only,
            failed_from: filter.failed_from.map(Col),
            failed_to: filter.failed_to.map(Col),
        }
    }

    /// Returns the number of keys that one statement scans.
    fn key_count(&self, access_path: AccessPath) -> usize {
        let legs = match access_path {
            AccessPath::Webhooks | AccessPath::UndeliveredOfWebhooks | AccessPath::DeadOfWebhooks => {
                self.webhooks.as_ref().map(Vec::len)
            }
            AccessPath::Categories | AccessPath::DeadOfCategories => self.categories.as_ref().map(Vec::len),
            AccessPath::DeadOfTypes => self.types.as_ref().map(Vec::len),
            _ => None,
        };
        legs.unwrap_or(1).max(1)
    }
}

/// Returns how many candidates to read per key.
fn stride<T, C: Copy>(page: &PageBuilder<T, C>, legs: usize) -> usize {
    page.next_batch_size().min(page.missing().max(MAX_ROWS_PER_STATEMENT / legs))
}

/// Narrows the range to one event if the access path is an event.
fn narrowed(range: IdRange, access_path: AccessPath) -> IdRange {
    let AccessPath::Event(event_id) = access_path else { return range };
    let after = u128::from_be_bytes(*event_id.as_bytes()).saturating_add(1).to_be_bytes();
    IdRange { low: range.low.max(*event_id.as_bytes()), high: range.high.min(after) }
}

/// Result of one statement: the matches, the number of candidates, and the last candidate.
struct ListingRows<T> {
    found: Vec<T>,
    scanned: usize,
    last: [u8; 16],
}

impl<T> ListingRows<T> {
    fn read(rows: &[Row], columns: usize, read: fn(&Row) -> Result<T, Failure>) -> Result<Self, Failure> {
        let Some(first) = rows.first() else {
            return Err(Failure::InvalidData("a listing returned no row".into()));
        };
        let looked_at = plain::<i64>(first, columns)?.unsigned_abs() as usize;
        let last = get_opt::<EventId>(first, columns + 1)?.map_or([0; 16], |id| *id.as_bytes());
        let is_found = |row: &&Row| get_opt::<EventId>(row, 0).map_or(true, |id| id.is_some());
        let found = rows.iter().filter(is_found).map(read).collect::<Result<_, _>>()?;
        Ok(Self { found, scanned: looked_at, last })
    }
}

/// Lists deliveries. Returns `None` if the scan stopped before it reached the offset of the page.
pub(super) async fn deliveries(
    session: Tx,
    tenants: ListedTenants<'_>,
    plan: ListingPlan,
    filter: &DeliveryFilter,
    page: PageRequest<DeliveryCursor>,
) -> Result<Option<ListingPage<Delivery, DeliveryCursor>>, Failure> {
    let ListingPlan { lead: access_path, .. } = plan;
    let statement = deliveries_statement(plan);
    let query = FilterValues::new(filter, access_path);
    let mut walk = PageBuilder::new(&page);
    let texts = [filter.idempotency_key.as_ref(), filter.subject.as_ref(), None];
    if matches_nothing(texts, &filter.event_types) {
        return Ok(walk.page());
    }
    let mut after = page.after;
    while walk.missing() > 0 {
        let IdRange { low, high } =
            narrowed(IdRange::for_deliveries(access_path, filter, after), access_path);
        let (low, high) = (Col(low), Col(high));
        let rows = stride(&walk, query.key_count(access_path));
        let (max, missing) = (rows as i64, walk.missing() as i64);
        let tenant = tenants.one().map(TenantId::as_str);
        // Without a cursor, everything comes after it.
        let after_event = Col(after.map_or([0xff; 16], |after| *after.event_id.as_bytes()));
        let after_delivery = Col(after.map_or([0xff; 16], |after| *after.delivery_id.as_bytes()));
        let mut values: Vec<&(dyn ToSql + Sync)> = vec![
            &tenant,
            &low,
            &high,
            &max,
            &missing,
            &query.webhooks,
            &query.types,
            &query.categories,
            &query.codes.0,
            &query.codes.1,
            &query.status,
            &query.leased,
            &query.failed,
            &query.reasons,
            &query.ways,
            &query.key,
            &query.key_id,
            &query.subject,
            &query.tenant_managed_only,
            &query.failed_from,
            &query.failed_to,
        ];
        if access_path.is_by_event() {
            values.extend([&after_event as &(dyn ToSql + Sync), &after_delivery]);
        }
        let reported = session.query(&statement, &values).await?;
        let mut listed = ListingRows::read(&reported, DELIVERY_COLUMNS, read_delivery)?;
        match access_path.is_by_event() {
            true => listed.found.sort_by_key(|one| std::cmp::Reverse((one.event_id, one.id))),
            false => listed.found.sort_by_key(|one| std::cmp::Reverse(one.id)),
        }
        let position = cursor_after(access_path, listed.last);
        let is_end = listed.scanned < rows;
        if is_end && listed.found.len() < walk.missing() {
            walk.end(listed.found);
            break;
        }
        if !walk.add(listed.scanned, listed.found, position) {
            break;
        }
        after = Some(position);
    }
    Ok(walk.page())
}

/// Lists events. Returns `None` if the scan stopped before it reached the offset of the page.
pub(super) async fn events(
    session: Tx,
    tenants: ListedTenants<'_>,
    filter: &EventFilter,
    page: PageRequest<EventId>,
) -> Result<Option<ListingPage<StoredEvent, EventId>>, Failure> {
    let access_path = AccessPath::for_event_filter(tenants, filter);
    let statement = events_statement(access_path);
    let types = possible(&filter.event_types);
    let key_id: Option<Col<EventId>> =
        filter.idempotency_key.as_ref().and_then(|key| key.parse().ok()).map(Col);
    let mut walk = PageBuilder::new(&page);
    let texts = [filter.idempotency_key.as_ref(), filter.subject.as_ref(), filter.source.as_ref()];
    if matches_nothing(texts, &filter.event_types) {
        return Ok(walk.page());
    }
    let mut after = page.after;
    while walk.missing() > 0 {
        let IdRange { low, high } = narrowed(IdRange::for_events(filter, after), access_path);
        let rows = stride(&walk, 1);
        let values: [&(dyn ToSql + Sync); 10] = [
            &tenants.one().map(TenantId::as_str),
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
        let reported = session.query(&statement, &values).await?;
        let mut listed = ListingRows::read(&reported, EVENT_COLUMNS, read_event)?;
        listed.found.sort_by_key(|one| std::cmp::Reverse(one.event.id));
        let position = EventId::from_bytes(listed.last);
        if listed.scanned < rows && listed.found.len() < walk.missing() {
            walk.end(listed.found);
            break;
        }
        if !walk.add(listed.scanned, listed.found, position) {
            break;
        }
        after = Some(position);
    }
    Ok(walk.page())
}

/// Returns the statement of every kind of listing; a test checks their query plans.
#[cfg(feature = "conformance")]
pub(super) fn planned() -> Vec<(String, String)> {
    let filters = crate::access_path::planned_filters();
    let deliveries = filters.iter().flat_map(|(name, filter)| {
        let plan = |lead, dead| ListingPlan { lead, dead, all: false };
        [
            (format!("deliveries {name}"), deliveries_statement(plan(AccessPath::for_filter(filter), false))),
            (format!("dead {name}"), deliveries_statement(plan(AccessPath::for_dead_filter(filter), true))),
        ]
    });
    let across = filters.iter().filter_map(|(name, filter)| {
        let filter = crate::CrossTenantFilter::new(filter.clone()).ok()?;
        let plan = |lead, dead| ListingPlan { lead, dead, all: true };
        let all = plan(AccessPath::for_cross_tenant_filter(&filter), false);
        let dead = plan(AccessPath::for_cross_tenant_dead_filter(&filter), true);
        Some([
            (format!("deliveries {name}"), deliveries_statement(all)),
            (format!("dead {name}"), deliveries_statement(dead)),
        ])
    });
    let tenant_id = TenantId::default();
    let events = crate::access_path::planned_event_filters().into_iter();
    let events = events.map(|(name, filter)| {
        let access_path = AccessPath::for_event_filter(ListedTenants::One(&tenant_id), &filter);
        (format!("events {name}"), events_statement(access_path))
    });
    let all_events = [("events of all tenants".to_owned(), events_statement(AccessPath::EventsOfAllTenants))];
    deliveries.chain(across.flatten()).chain(events).chain(all_events).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codes::Code;

    #[test]
    fn status_code_in_statement_is_delivered() {
        assert_eq!(DeliveryStatus::Delivered.code(), 2);
        assert!(DELIVERY_CONDITIONS.contains("d.status <> 2"));
    }
}
