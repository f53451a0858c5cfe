//! Listings: an access path yields candidate rows from newest to oldest, and each row is checked against the
//! filter. A listing ends with a full page, or when too many candidates were skipped. Nothing is sorted: SQLite
//! merges the candidates of several keys.

use redrive_core::{DeliveryStatus, EventId, WebhookId};
use rusqlite::{Connection, ToSql};

use super::{
    convert::{Col, get},
    history::{DELIVERY, EVENT, WITH_EVENT, read_delivery, read_event},
};
use crate::{
    Delivery, DeliveryCursor, DeliveryFilter, EventFilter, ListingPage, PageRequest, StatusFilter,
    StoredEvent,
    access_path::{AccessPath, IdRange, ListedTenants, PageBuilder, cursor_after},
};

/// Statement that is built together with its parameters.
#[derive(Default)]
pub(super) struct Sql {
    pub(super) text: String,
    values: Vec<Box<dyn ToSql>>,
}

impl Sql {
    pub(super) fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), values: Vec::new() }
    }

    pub(super) fn push(&mut self, text: &str) {
        self.text.push_str(text);
    }

    /// Adds a condition; its `?` is the parameter of the value.
    pub(super) fn and(&mut self, condition: &str, value: impl ToSql + 'static) {
        self.push(" AND ");
        self.push(condition);
        self.values.push(Box::new(value));
    }

    /// Adds text; its `?` is the parameter of the value.
    pub(super) fn bind(&mut self, text: &str, value: impl ToSql + 'static) {
        self.push(text);
        self.values.push(Box::new(value));
    }

    /// Adds a condition with two values.
    fn and_both(&mut self, condition: &str, first: impl ToSql + 'static, second: impl ToSql + 'static) {
        self.and(condition, first);
        self.values.push(Box::new(second));
    }

    pub(super) fn and_opt<T: ToSql + 'static>(&mut self, condition: &str, value: Option<T>) {
        if let Some(value) = value {
            self.and(condition, value);
        }
    }

    /// Adds the condition that a column has one of these values, unless there are none.
    pub(super) fn and_any<T: ToSql + 'static>(&mut self, column: &str, values: impl IntoIterator<Item = T>) {
        let values: Vec<_> = values.into_iter().map(|value| Box::new(value) as Box<dyn ToSql>).collect();
        if !values.is_empty() {
            let positions = vec!["?"; values.len()].join(", ");
            self.push(&format!(" AND {column} IN ({positions})"));
            self.values.extend(values);
        }
    }

    pub(super) fn values(&self) -> Vec<&dyn ToSql> {
        self.values.iter().map(|value| &**value).collect()
    }
}

/// Candidates of one key: rows of a table, newest first. A listing merges one or several of them.
struct Leg {
    select: &'static str,
    id: &'static str,
    values: Vec<Box<dyn ToSql>>,
}

/// Returns the statement that yields candidate ids, newest first. Returns `None` if there are no keys.
fn leading(legs: Vec<Leg>, range: IdRange) -> Option<Sql> {
    let mut all: Option<Sql> = None;
    for leg in legs {
        let mut sql = Sql::new(leg.select);
        sql.values = leg.values;
        sql.and(&format!("{} >= ?", leg.id), range.low);
        sql.and(&format!("{} < ?", leg.id), range.high);
        all = Some(match all {
            None => sql,
            Some(mut all) => {
                all.push(" UNION ALL ");
                all.push(&sql.text);
                all.values.extend(sql.values);
                all
            }
        });
    }
    let mut all = all?;
    all.push(" ORDER BY 1 DESC");
    Some(all)
}

fn one(select: &'static str, id: &'static str, values: Vec<Box<dyn ToSql>>) -> Leg {
    Leg { select, id, values }
}

fn owned(tenants: ListedTenants<'_>) -> Box<dyn ToSql> {
    Box::new(tenants.one().map(|tenant_id| tenant_id.as_str().to_owned()))
}

/// Returns the keys of an access path that yields events.
fn event_legs(
    access_path: AccessPath,
    tenants: ListedTenants<'_>,
    key: Option<&str>,
    subject: Option<&str>,
) -> Vec<Leg> {
    let text = |text: Option<&str>| Box::new(text.unwrap_or_default().to_owned()) as Box<dyn ToSql>;
    match access_path {
        AccessPath::Event(event_id) => {
            let select = "SELECT id FROM events WHERE tenant_id = ? AND id = ?";
            vec![one(select, "id", vec![owned(tenants), Box::new(Col(event_id))])]
        }
        AccessPath::Key => {
            let select = "SELECT id FROM events WHERE tenant_id = ? AND idempotency_key = ?";
            let mut legs = vec![one(select, "id", vec![owned(tenants), text(key)])];
            // The effective key of an event without an idempotency key is its id.
            if let Some(id) = key.and_then(|key| key.parse::<EventId>().ok()) {
                let select =
                    "SELECT id FROM events WHERE tenant_id = ? AND id = ? AND idempotency_key IS NULL";
                legs.push(one(select, "id", vec![owned(tenants), Box::new(Col(id))]));
            }
            legs
        }
        AccessPath::Subject => {
            let select = "SELECT id FROM events WHERE tenant_id = ? AND subject = ?";
            vec![one(select, "id", vec![owned(tenants), text(subject)])]
        }
        AccessPath::EventsOfAllTenants => {
            vec![one("SELECT id FROM events INDEXED BY events_by_id WHERE true", "id", Vec::new())]
        }
        _ => vec![one("SELECT id FROM events WHERE tenant_id = ?", "id", vec![owned(tenants)])],
    }
}

/// Returns the keys of the access path of a delivery filter.
fn legs(
    access_path: AccessPath,
    tenants: ListedTenants<'_>,
    filter: &DeliveryFilter,
    webhooks: &[WebhookId],
) -> Vec<Leg> {
    let of_webhooks = |select, id| -> Vec<Leg> {
        webhooks.iter().map(|webhook_id| one(select, id, vec![Box::new(Col(*webhook_id))])).collect()
    };
    let categories = || filter.failure_categories.iter().copied();
    let with = |value: Box<dyn ToSql>| vec![owned(tenants), value];
    let by_category = "SELECT id FROM deliveries WHERE tenant_id = ? AND failure_category = ?";
    match access_path {
        AccessPath::Webhooks => of_webhooks("SELECT id FROM deliveries WHERE webhook_id = ?", "id"),
        AccessPath::UndeliveredOfWebhooks => of_webhooks(
            "SELECT id FROM deliveries WHERE webhook_id = ? AND (status >= 3 OR failure_category IS NOT NULL)",
            "id",
        ),
        AccessPath::Pending => vec![
            one("SELECT delivery_id FROM waiting WHERE true", "delivery_id", Vec::new()),
            one("SELECT delivery_id FROM leased WHERE true", "delivery_id", Vec::new()),
        ],
        AccessPath::Leased => {
            vec![one("SELECT delivery_id FROM leased WHERE true", "delivery_id", Vec::new())]
        }
        AccessPath::Code(code) => vec![one(
            "SELECT id FROM deliveries WHERE tenant_id = ? AND last_status_code = ? AND last_status_code >= 300",
            "id",
            with(Box::new(code)),
        )],
        AccessPath::Categories => {
            categories().map(|category| one(by_category, "id", with(Box::new(Col(category))))).collect()
        }
        AccessPath::Failed => redrive_core::FailureCategory::ALL
            .into_iter()
            .map(|category| one(by_category, "id", with(Box::new(Col(category)))))
            .collect(),
        AccessPath::Ended(status) => vec![one(
            "SELECT id FROM deliveries WHERE tenant_id = ? AND status = ? AND status >= 3",
            "id",
            with(Box::new(Col(status))),
        )],
        AccessPath::Dead => {
            vec![one("SELECT delivery_id FROM dead WHERE tenant_id = ?", "delivery_id", vec![owned(tenants)])]
        }
        AccessPath::DeadOfWebhooks => {
            of_webhooks("SELECT delivery_id FROM dead WHERE webhook_id = ?", "delivery_id")
        }
        AccessPath::DeadOfTypes => {
            let select = "SELECT delivery_id FROM dead WHERE tenant_id = ? AND event_type = ?";
            let types = filter.event_types.iter();
            types.map(|name| one(select, "delivery_id", with(Box::new(name.clone())))).collect()
        }
        AccessPath::DeadOfCategories => {
            let select = "SELECT delivery_id FROM dead WHERE tenant_id = ? AND category = ?";
            categories().map(|kind| one(select, "delivery_id", with(Box::new(Col(kind))))).collect()
        }
        AccessPath::DeliveriesOfAllTenants => {
            vec![one("SELECT id FROM deliveries WHERE true", "id", Vec::new())]
        }
        AccessPath::UndeliveredOfAllTenants => vec![one(
            "SELECT id FROM deliveries INDEXED BY deliveries_undelivered_by_id
             WHERE (status >= 3 OR failure_category IS NOT NULL)",
            "id",
            Vec::new(),
        )],
        AccessPath::DeadOfAllTenants => {
            vec![one("SELECT delivery_id FROM dead WHERE true", "delivery_id", Vec::new())]
        }
        AccessPath::Event(_)
        | AccessPath::Key
        | AccessPath::Subject
        | AccessPath::Tenant
        | AccessPath::EventsOfAllTenants => {
            event_legs(access_path, tenants, filter.idempotency_key.as_deref(), filter.subject.as_deref())
        }
    }
}

/// Adds the filter conditions on events.
fn ask_event(sql: &mut Sql, key: Option<&String>, subject: Option<&String>, types: &[String]) {
    if let Some(key) = key {
        let id = key.parse().map_or([0; 16], |id: EventId| *id.as_bytes());
        // The effective key of an event without an idempotency key is its id.
        sql.and_both("(e.idempotency_key = ? OR (e.idempotency_key IS NULL AND e.id = ?))", key.clone(), id);
    }
    sql.and_opt("e.subject = ?", subject.cloned());
    sql.and_any("e.event_type", types.iter().cloned());
}

/// Returns the condition that the webhook in this column is not managed by the operator.
pub(super) fn is_tenant_managed(column: &str) -> String {
    format!("NOT coalesce((SELECT h.managed_by_operator FROM webhooks h WHERE h.id = {column}), 0)")
}

/// Adds the filter conditions on deliveries. Times are part of the id range instead.
fn ask_delivery(sql: &mut Sql, filter: &DeliveryFilter) {
    match filter.status {
        Some(StatusFilter::Exactly(DeliveryStatus::InFlight)) => {
            sql.and("w.due IS NULL AND d.status = ?", Col(DeliveryStatus::Pending));
        }
        Some(StatusFilter::Exactly(status)) => sql.and("d.status = ?", Col(status)),
        Some(StatusFilter::Failed) => {
            sql.and("d.failure_category IS NOT NULL AND d.status <> ?", Col(DeliveryStatus::Delivered));
        }
        None => {}
    }
    sql.and_any("d.webhook_id", filter.webhooks.iter().copied().map(Col));
    if filter.tenant_managed_only {
        sql.push(&format!(" AND {}", is_tenant_managed("d.webhook_id")));
    }
    sql.and_any("d.failure_category", filter.failure_categories.iter().copied().map(Col));
    if let Some(code) = filter.status_code {
        let (first, last) = code.range();
        sql.and_both("d.last_status_code BETWEEN ? AND ?", first, last);
    }
    sql.and_any("d.dead_reason", filter.dead_reasons.iter().copied().map(Col));
    ask_failure_time(sql, filter);
    if let Some(combinations) = filter.recoverable_codes() {
        sql.and_any(
            "d.dead_reason * 100 + coalesce(d.failure_category, 0)",
            combinations.into_iter().map(crate::codes::death_code),
        );
    }
    ask_event(sql, filter.idempotency_key.as_ref(), filter.subject.as_ref(), &filter.event_types);
}

/// Adds the conditions on the time of the failure. That of a pending delivery has no end yet.
fn ask_failure_time(sql: &mut Sql, filter: &DeliveryFilter) {
    const IS_DEAD_LETTER: &str = "d.status = 3 AND d.redriven_as IS NULL AND d.purged_at IS NULL";
    if let Some(from) = filter.failed_from {
        sql.and(
            &format!(
                "(({IS_DEAD_LETTER} AND d.ended_at >= ?) OR (d.status = 0 AND d.failure_category IS NOT NULL))"
            ),
            Col(from),
        );
    }
    if let Some(to) = filter.failed_to {
        sql.and(&format!("{IS_DEAD_LETTER} AND d.ended_at < ?"), Col(to));
    }
}

/// Returns the given webhooks that belong to the tenant, as shown by their newest delivery. The rows of others
/// would be read in vain.
fn own_webhooks(
    connection: &Connection,
    tenants: ListedTenants<'_>,
    named: &[WebhookId],
) -> rusqlite::Result<Vec<WebhookId>> {
    let Some(tenant_id) = tenants.one() else { return Ok(named.to_vec()) };
    let newest = "SELECT tenant_id = ? FROM deliveries WHERE webhook_id = ? ORDER BY id DESC LIMIT 1";
    let mut newest = connection.prepare_cached(newest)?;
    let mut own = Vec::new();
    for webhook_id in named {
        let mut rows = newest.query((tenant_id.as_str(), Col(*webhook_id)))?;
        if let Some(row) = rows.next()?
            && row.get(0)?
        {
            own.push(*webhook_id);
        }
    }
    Ok(own)
}

/// Lists deliveries, with `dead` only dead letters. Returns `None` if the scan stopped before it reached the
/// offset of the page.
pub(super) fn deliveries(
    connection: &Connection,
    tenants: ListedTenants<'_>,
    access_path: AccessPath,
    filter: &DeliveryFilter,
    page: &PageRequest<DeliveryCursor>,
    dead: bool,
) -> rusqlite::Result<Option<ListingPage<Delivery, DeliveryCursor>>> {
    let mut walk = PageBuilder::new(page);
    let range = IdRange::for_deliveries(access_path, filter, page.after);
    let webhooks = own_webhooks(connection, tenants, &filter.webhooks)?;
    let Some(leading) =
        leading(legs(access_path, tenants, filter, &webhooks), range).filter(|_| walk.missing() > 0)
    else {
        return Ok(walk.page());
    };
    let wanted = wanted(tenants, access_path, filter, page.after, dead);
    // Both statements read the same snapshot, since the first one stays open.
    let mut leading_statement = connection.prepare_cached(&leading.text)?;
    let mut wanted_statement = connection.prepare_cached(&wanted.text)?;
    let mut ids = leading_statement.query(&leading.values()[..])?;
    while let Some(row) = ids.next()? {
        let id: [u8; 16] = row.get(0)?;
        let mut values: Vec<&dyn ToSql> = vec![&id];
        values.extend(wanted.values());
        let found = wanted_statement.query_map(&values[..], read_delivery)?;
        let found = found.take(walk.missing()).collect::<rusqlite::Result<Vec<_>>>()?;
        if !walk.add(1, found, cursor_after(access_path, id)) {
            break;
        }
    }
    Ok(walk.page())
}

/// Builds the statement that reads the matching deliveries of a candidate id, which is its first parameter.
fn wanted(
    tenants: ListedTenants<'_>,
    access_path: AccessPath,
    filter: &DeliveryFilter,
    after: Option<DeliveryCursor>,
    dead: bool,
) -> Sql {
    let mut sql = match access_path.is_by_event() {
        // CROSS JOIN fixes the order of tables: the event first.
        true => Sql::new(format!(
            "{DELIVERY} FROM events e CROSS JOIN deliveries d ON d.event_id = e.id
             LEFT JOIN waiting w ON w.delivery_id = d.id WHERE e.id = ?"
        )),
        false => Sql::new(format!("{DELIVERY} FROM deliveries d {WITH_EVENT} WHERE d.id = ?")),
    };
    sql.and_opt("e.tenant_id = ?", tenants.one().map(|tenant_id| tenant_id.as_str().to_owned()));
    if dead {
        sql.push(" AND EXISTS (SELECT 1 FROM dead x WHERE x.delivery_id = d.id)");
    }
    ask_delivery(&mut sql, filter);
    if access_path.is_by_event() {
        if let Some(after) = after {
            sql.and_both("(e.id < ? OR d.id < ?)", Col(after.event_id), Col(after.delivery_id));
        }
        sql.push(" ORDER BY d.id DESC");
    }
    sql
}

/// Lists events. Returns `None` if the scan stopped before it reached the offset of the page.
pub(super) fn events(
    connection: &Connection,
    tenants: ListedTenants<'_>,
    filter: &EventFilter,
    page: &PageRequest<EventId>,
) -> rusqlite::Result<Option<ListingPage<StoredEvent, EventId>>> {
    let mut walk = PageBuilder::new(page);
    let (leading, wanted) = event_statements(tenants, filter, page.after);
    let Some(leading) = leading.filter(|_| walk.missing() > 0) else { return Ok(walk.page()) };
    let mut leading_statement = connection.prepare_cached(&leading.text)?;
    let mut wanted_statement = connection.prepare_cached(&wanted.text)?;
    let mut ids = leading_statement.query(&leading.values()[..])?;
    while let Some(row) = ids.next()? {
        let id: EventId = get(row, 0)?;
        let mut values: Vec<&dyn ToSql> = vec![id.as_bytes()];
        values.extend(wanted.values());
        let found = wanted_statement.query_map(&values[..], read_event)?;
        let found = found.collect::<rusqlite::Result<Vec<_>>>()?;
        if !walk.add(1, found, id) {
            break;
        }
    }
    Ok(walk.page())
}

fn event_statements(
    tenants: ListedTenants<'_>,
    filter: &EventFilter,
    after: Option<EventId>,
) -> (Option<Sql>, Sql) {
    let access_path = AccessPath::for_event_filter(tenants, filter);
    let (key, subject) = (filter.idempotency_key.as_ref(), filter.subject.as_ref());
    let legs = event_legs(access_path, tenants, key.map(String::as_str), subject.map(String::as_str));
    let leading = leading(legs, IdRange::for_events(filter, after));
    let mut wanted = Sql::new(format!("{EVENT} e WHERE e.id = ?"));
    wanted.and_opt("e.tenant_id = ?", tenants.one().map(|tenant_id| tenant_id.as_str().to_owned()));
    wanted.and_opt("e.source = ?", filter.source.clone());
    ask_event(&mut wanted, key, subject, &filter.event_types);
    (leading, wanted)
}

/// Returns every statement of the listings; tests check their query plans.
#[cfg(feature = "conformance")]
pub(super) fn planned() -> Vec<(String, String)> {
    let tenant_id = redrive_core::TenantId::default();
    let one = ListedTenants::One(&tenant_id);
    let mut planned = Vec::new();
    for (name, filter) in crate::access_path::planned_filters() {
        for (list, access_path, dead) in [
            ("deliveries", AccessPath::for_filter(&filter), false),
            ("dead", AccessPath::for_dead_filter(&filter), true),
        ] {
            planned.extend(planned_deliveries(&format!("{list} {name}"), one, access_path, &filter, dead));
        }
        let Ok(filter) = crate::CrossTenantFilter::new(filter) else { continue };
        for (list, access_path, dead) in [
            ("all deliveries", AccessPath::for_cross_tenant_filter(&filter), false),
            ("all dead", AccessPath::for_cross_tenant_dead_filter(&filter), true),
        ] {
            let name = format!("{list} {name}");
            planned.extend(planned_deliveries(&name, ListedTenants::All, access_path, &filter, dead));
        }
    }
    for (name, filter) in crate::access_path::planned_event_filters() {
        let across = crate::CrossTenantEventFilter::new(filter.clone()).is_ok();
        for tenants in [Some(one), across.then_some(ListedTenants::All)].into_iter().flatten() {
            let (leading, wanted) = event_statements(tenants, &filter, Some(EventId::from_bytes([9; 16])));
            planned.extend(leading.map(|leading| (format!("events {name}: leading"), leading.text)));
            planned.push((format!("events {name}: wanted"), wanted.text));
        }
    }
    planned.extend(super::dead::planned());
    planned.extend(super::attempts::planned());
    planned.push(("payloads".into(), super::scan::SELECT_PAYLOADS.into()));
    planned
}

#[cfg(feature = "conformance")]
fn planned_deliveries(
    name: &str,
    tenants: ListedTenants<'_>,
    access_path: AccessPath,
    filter: &DeliveryFilter,
    dead: bool,
) -> Vec<(String, String)> {
    let after = Some(cursor_after(access_path, [9; 16]));
    let range = IdRange::for_deliveries(access_path, filter, after);
    let leading = leading(legs(access_path, tenants, filter, &filter.webhooks), range);
    let leading = leading.map(|leading| (format!("{name}: leading"), leading.text));
    let wanted = wanted(tenants, access_path, filter, after, dead);
    leading.into_iter().chain([(format!("{name}: wanted"), wanted.text)]).collect()
}
