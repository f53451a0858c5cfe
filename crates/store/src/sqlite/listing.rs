//! Listings: an index leads to rows from the newest to the oldest, and each is asked whether it is wanted. It ends
//! with a full page, or when too many were not wanted. No sorting: SQLite merges what several keys lead to.

use redrive_core::{DeliveryStatus, EventId, TenantId, WebhookId};
use rusqlite::{Connection, ToSql};

use super::{
    convert::{Col, get},
    history::{DELIVERY, EVENT, WITH_EVENT, read_delivery, read_event},
};
use crate::{
    Delivery, DeliveryCursor, DeliveryFilter, EventFilter, Listed, PageRequest, StatusFilter, StoredEvent,
    access_path::{Lead, Range, Walk, behind},
};

/// A statement with its values, put together as they are asked for.
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

    /// Adds a condition; its `?` stands for the value.
    pub(super) fn and(&mut self, condition: &str, value: impl ToSql + 'static) {
        self.push(" AND ");
        self.push(condition);
        self.values.push(Box::new(value));
    }

    /// Adds a condition with two values.
    fn and_both(&mut self, condition: &str, first: impl ToSql + 'static, second: impl ToSql + 'static) {
        self.and(condition, first);
        self.values.push(Box::new(second));
    }

    fn and_opt<T: ToSql + 'static>(&mut self, condition: &str, value: Option<T>) {
        if let Some(value) = value {
            self.and(condition, value);
        }
    }

    /// Adds that a column has one of these values, unless there are none.
    pub(super) fn and_any<T: ToSql + 'static>(&mut self, column: &str, values: impl IntoIterator<Item = T>) {
        let values: Vec<_> = values.into_iter().map(|value| Box::new(value) as Box<dyn ToSql>).collect();
        if !values.is_empty() {
            let places = vec!["?"; values.len()].join(", ");
            self.push(&format!(" AND {column} IN ({places})"));
            self.values.extend(values);
        }
    }

    pub(super) fn values(&self) -> Vec<&dyn ToSql> {
        self.values.iter().map(|value| &**value).collect()
    }
}

/// The rows of a table with a key, from the newest on: one of the legs that a listing may stand on.
struct Leg {
    select: &'static str,
    id: &'static str,
    values: Vec<Box<dyn ToSql>>,
}

/// The ids that lead to what is wanted, newest first. None: nothing does.
fn leading(legs: Vec<Leg>, range: Range) -> Option<Sql> {
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

fn owned(tenant: &TenantId) -> Box<dyn ToSql> {
    Box::new(tenant.as_str().to_owned())
}

/// What of events leads to what is wanted.
fn event_legs(lead: Lead, tenant: &TenantId, key: Option<&str>, subject: Option<&str>) -> Vec<Leg> {
    let text = |text: Option<&str>| Box::new(text.unwrap_or_default().to_owned()) as Box<dyn ToSql>;
    match lead {
        Lead::Event(event) => {
            let select = "SELECT id FROM events WHERE tenant = ? AND id = ?";
            vec![one(select, "id", vec![owned(tenant), Box::new(Col(event))])]
        }
        Lead::Key => {
            let select = "SELECT id FROM events WHERE tenant = ? AND idempotency_key = ?";
            let mut legs = vec![one(select, "id", vec![owned(tenant), text(key)])];
            // An event without a key is known by its id.
            if let Some(id) = key.and_then(|key| key.parse::<EventId>().ok()) {
                let select = "SELECT id FROM events WHERE tenant = ? AND id = ? AND idempotency_key IS NULL";
                legs.push(one(select, "id", vec![owned(tenant), Box::new(Col(id))]));
            }
            legs
        }
        Lead::Subject => {
            let select = "SELECT id FROM events WHERE tenant = ? AND subject = ?";
            vec![one(select, "id", vec![owned(tenant), text(subject)])]
        }
        _ => vec![one("SELECT id FROM events WHERE tenant = ?", "id", vec![owned(tenant)])],
    }
}

/// What leads to deliveries that a filter wants.
fn legs(lead: Lead, tenant: &TenantId, filter: &DeliveryFilter, webhooks: &[WebhookId]) -> Vec<Leg> {
    let of_webhooks = |select, id| -> Vec<Leg> {
        webhooks.iter().map(|webhook| one(select, id, vec![Box::new(Col(*webhook))])).collect()
    };
    let categories = || filter.failure_categories.iter().copied();
    let with = |value: Box<dyn ToSql>| vec![owned(tenant), value];
    let by_category = "SELECT id FROM deliveries WHERE tenant = ? AND failure_category = ?";
    match lead {
        Lead::Webhooks => of_webhooks("SELECT id FROM deliveries WHERE webhook = ?", "id"),
        Lead::UndeliveredOfWebhooks => of_webhooks(
            "SELECT id FROM deliveries WHERE webhook = ? AND (status >= 3 OR failure_category IS NOT NULL)",
            "id",
        ),
        Lead::Pending => vec![
            one("SELECT delivery FROM waiting WHERE true", "delivery", Vec::new()),
            one("SELECT delivery FROM leased WHERE true", "delivery", Vec::new()),
        ],
        Lead::Leased => vec![one("SELECT delivery FROM leased WHERE true", "delivery", Vec::new())],
        Lead::Code(code) => vec![one(
            "SELECT id FROM deliveries WHERE tenant = ? AND last_status_code = ? AND last_status_code >= 300",
            "id",
            with(Box::new(code)),
        )],
        Lead::Categories => {
            categories().map(|category| one(by_category, "id", with(Box::new(Col(category))))).collect()
        }
        Lead::Failed => redrive_core::FailureCategory::ALL
            .into_iter()
            .map(|category| one(by_category, "id", with(Box::new(Col(category)))))
            .collect(),
        Lead::Ended(status) => vec![one(
            "SELECT id FROM deliveries WHERE tenant = ? AND status = ? AND status >= 3",
            "id",
            with(Box::new(Col(status))),
        )],
        Lead::Dead => {
            vec![one("SELECT delivery FROM dead WHERE tenant = ?", "delivery", vec![owned(tenant)])]
        }
        Lead::DeadOfWebhooks => of_webhooks("SELECT delivery FROM dead WHERE webhook = ?", "delivery"),
        Lead::DeadOfTypes => {
            let select = "SELECT delivery FROM dead WHERE tenant = ? AND event_type = ?";
            let types = filter.event_types.iter();
            types.map(|name| one(select, "delivery", with(Box::new(name.clone())))).collect()
        }
        Lead::DeadOfCategories => {
            let select = "SELECT delivery FROM dead WHERE tenant = ? AND category = ?";
            categories().map(|kind| one(select, "delivery", with(Box::new(Col(kind))))).collect()
        }
        Lead::Event(_) | Lead::Key | Lead::Subject | Lead::Tenant => {
            event_legs(lead, tenant, filter.idempotency_key.as_deref(), filter.subject.as_deref())
        }
    }
}

/// Adds what a filter says about events.
fn ask_event(sql: &mut Sql, key: Option<&String>, subject: Option<&String>, types: &[String]) {
    if let Some(key) = key {
        let id = key.parse().map_or([0; 16], |id: EventId| *id.as_bytes());
        // An event without a key is known by its id.
        sql.and_both("(e.idempotency_key = ? OR (e.idempotency_key IS NULL AND e.id = ?))", key.clone(), id);
    }
    sql.and_opt("e.subject = ?", subject.cloned());
    sql.and_any("e.event_type", types.iter().cloned());
}

/// The condition that the tenant manages the webhook in this column.
pub(super) fn is_tenant_managed(column: &str) -> String {
    format!("NOT coalesce((SELECT h.managed_by_operator FROM webhooks h WHERE h.id = {column}), 0)")
}

/// Adds what a filter says about deliveries. The times are in the range that is walked.
fn ask_delivery(sql: &mut Sql, filter: &DeliveryFilter) {
    match filter.status {
        Some(StatusFilter::Is(DeliveryStatus::InFlight)) => {
            sql.and("w.due IS NULL AND d.status = ?", Col(DeliveryStatus::Pending));
        }
        Some(StatusFilter::Is(status)) => sql.and("d.status = ?", Col(status)),
        Some(StatusFilter::Failed) => {
            sql.and("d.failure_category IS NOT NULL AND d.status <> ?", Col(DeliveryStatus::Delivered));
        }
        None => {}
    }
    sql.and_any("d.webhook", filter.webhooks.iter().copied().map(Col));
    if filter.tenant_managed_only {
        sql.push(&format!(" AND {}", is_tenant_managed("d.webhook")));
    }
    sql.and_any("d.failure_category", filter.failure_categories.iter().copied().map(Col));
    if let Some(code) = filter.status_code {
        let (first, last) = code.range();
        sql.and_both("d.last_status_code BETWEEN ? AND ?", first, last);
    }
    sql.and_any("d.dead_reason", filter.dead_reasons.iter().copied().map(Col));
    if let Some(ways) = filter.recoverable_ways() {
        sql.and_any(
            "d.dead_reason * 100 + coalesce(d.failure_category, 0)",
            ways.into_iter().map(crate::codes::way),
        );
    }
    ask_event(sql, filter.idempotency_key.as_ref(), filter.subject.as_ref(), &filter.event_types);
}

/// The webhooks that are named and are the tenant's, as their newest deliveries tell. Others would be walked
/// through in vain.
fn own_webhooks(
    connection: &Connection,
    tenant: &TenantId,
    named: &[WebhookId],
) -> rusqlite::Result<Vec<WebhookId>> {
    let newest = "SELECT tenant = ? FROM deliveries WHERE webhook = ? ORDER BY id DESC LIMIT 1";
    let mut newest = connection.prepare_cached(newest)?;
    let mut own = Vec::new();
    for webhook in named {
        let mut rows = newest.query((tenant.as_str(), Col(*webhook)))?;
        if let Some(row) = rows.next()?
            && row.get(0)?
        {
            own.push(*webhook);
        }
    }
    Ok(own)
}

/// Deliveries; `dead` for those on the dead-letter list alone. None: nobody knows what to leave out.
pub(super) fn deliveries(
    connection: &Connection,
    tenant: &TenantId,
    lead: Lead,
    filter: &DeliveryFilter,
    page: &PageRequest<DeliveryCursor>,
    dead: bool,
) -> rusqlite::Result<Option<Listed<Delivery, DeliveryCursor>>> {
    let mut walk = Walk::new(page);
    let range = Range::of_deliveries(lead, filter, page.after);
    let webhooks = own_webhooks(connection, tenant, &filter.webhooks)?;
    let Some(leading) = leading(legs(lead, tenant, filter, &webhooks), range).filter(|_| walk.missing() > 0)
    else {
        return Ok(walk.page());
    };
    let wanted = wanted(tenant, lead, filter, page.after, dead);
    // Both are of one moment: what is read while the first is open is.
    let mut leading_statement = connection.prepare_cached(&leading.text)?;
    let mut wanted_statement = connection.prepare_cached(&wanted.text)?;
    let mut ids = leading_statement.query(&leading.values()[..])?;
    while let Some(row) = ids.next()? {
        let id: [u8; 16] = row.get(0)?;
        let mut values: Vec<&dyn ToSql> = vec![&id];
        values.extend(wanted.values());
        let found = wanted_statement.query_map(&values[..], read_delivery)?;
        let found = found.take(walk.missing()).collect::<rusqlite::Result<Vec<_>>>()?;
        if !walk.add(1, found, behind(lead, id)) {
            break;
        }
    }
    Ok(walk.page())
}

/// Those that an id leads to, the first value, and that are wanted.
fn wanted(
    tenant: &TenantId,
    lead: Lead,
    filter: &DeliveryFilter,
    after: Option<DeliveryCursor>,
    dead: bool,
) -> Sql {
    let mut sql = match lead.is_by_event() {
        // CROSS JOIN keeps this order of tables: the event leads.
        true => Sql::new(format!(
            "{DELIVERY} FROM events e CROSS JOIN deliveries d ON d.event = e.id
             LEFT JOIN waiting w ON w.delivery = d.id WHERE e.id = ?"
        )),
        false => Sql::new(format!("{DELIVERY} FROM deliveries d {WITH_EVENT} WHERE d.id = ?")),
    };
    sql.and("e.tenant = ?", tenant.as_str().to_owned());
    if dead {
        sql.push(" AND EXISTS (SELECT 1 FROM dead x WHERE x.delivery = d.id)");
    }
    ask_delivery(&mut sql, filter);
    if lead.is_by_event() {
        if let Some(after) = after {
            sql.and_both("(e.id < ? OR d.id < ?)", Col(after.event), Col(after.delivery));
        }
        sql.push(" ORDER BY d.id DESC");
    }
    sql
}

/// Events. None: nobody knows what to leave out.
pub(super) fn events(
    connection: &Connection,
    tenant: &TenantId,
    filter: &EventFilter,
    page: &PageRequest<EventId>,
) -> rusqlite::Result<Option<Listed<StoredEvent, EventId>>> {
    let mut walk = Walk::new(page);
    let (leading, wanted) = event_statements(tenant, filter, page.after);
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

fn event_statements(tenant: &TenantId, filter: &EventFilter, after: Option<EventId>) -> (Option<Sql>, Sql) {
    let lead = Lead::of_events(filter);
    let (key, subject) = (filter.idempotency_key.as_ref(), filter.subject.as_ref());
    let legs = event_legs(lead, tenant, key.map(String::as_str), subject.map(String::as_str));
    let leading = leading(legs, Range::of_events(filter, after));
    let mut wanted = Sql::new(format!("{EVENT} e WHERE e.id = ?"));
    wanted.and("e.tenant = ?", tenant.as_str().to_owned());
    wanted.and_opt("e.source = ?", filter.source.clone());
    ask_event(&mut wanted, key, subject, &filter.event_types);
    (leading, wanted)
}

/// Every statement of a listing, for tests that look at their plans.
#[cfg(feature = "conformance")]
pub(super) fn planned() -> Vec<(String, String)> {
    let tenant = TenantId::default();
    let mut planned = Vec::new();
    for (name, filter) in crate::access_path::planned_filters() {
        for (list, lead, dead) in
            [("deliveries", Lead::of(&filter), false), ("dead", Lead::of_dead(&filter), true)]
        {
            let after = Some(behind(lead, [9; 16]));
            let range = Range::of_deliveries(lead, &filter, after);
            if let Some(leading) = leading(legs(lead, &tenant, &filter, &filter.webhooks), range) {
                planned.push((format!("{list} {name}: leading"), leading.text));
            }
            let wanted = wanted(&tenant, lead, &filter, after, dead);
            planned.push((format!("{list} {name}: wanted"), wanted.text));
        }
    }
    for (name, filter) in crate::access_path::planned_event_filters() {
        let (leading, wanted) = event_statements(&tenant, &filter, Some(EventId::from_bytes([9; 16])));
        planned.extend(leading.map(|leading| (format!("events {name}: leading"), leading.text)));
        planned.push((format!("events {name}: wanted"), wanted.text));
    }
    planned.extend(super::dead::planned());
    planned
}
