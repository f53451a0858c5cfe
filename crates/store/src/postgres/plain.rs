//! Storing events without keys, which is most of them: one statement does it all, so that the tenant's row is
//! locked no longer than that. Whatever it cannot do is left to `publish`.

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap},
};

use redrive_core::{DeliveryStatus, TenantId, Time, WebhookId, tenant::DEFAULT_POOL};
use tokio_postgres::types::ToSql;

use super::{
    convert::{Col, get, plain},
    lanes::{early_lanes, wake_lanes},
    session::{Failure, Tx},
};
use crate::{Birth, NewDelivery, NewEvent, Published, codes::Code};

/// The beginning of the statements: events and deliveries. Those of tenants whose version is as it was get their
/// numbers from the row itself. Nothing is done by a statement that comes late, after whoever sent it has given it up.
macro_rules! plain_events {
    () => {
        "WITH live AS (SELECT epoch FROM nodes WHERE epoch = $1 AND fence <= $26 FOR KEY SHARE),
     t AS (
         UPDATE tenants t SET next_seq = t.next_seq + ($3::bigint[])[array_position($2::text[], t.id)]
         WHERE t.id = ANY($2::text[]) AND t.config_version = ($4::bigint[])[array_position($2::text[], t.id)]
             AND (SELECT true FROM live)
         RETURNING t.id, t.next_seq - ($3::bigint[])[array_position($2::text[], t.id)] AS first),
     new_events AS (
         INSERT INTO events (id, tenant, seq, event_type, timestamp, source, subject, priority, metadata, data,
                             trace)
         SELECT e.id, e.tenant, t.first + e.nth, e.event_type, e.timestamp, e.source, e.subject, e.priority,
                e.metadata, e.data, e.trace
         FROM unnest($5::uuid[], $6::text[], $7::bigint[], $8::text[], $9::bigint[], $10::text[], $11::text[],
                     $12::smallint[], $13::bytea[], $14::bytea[], $15::bytea[])
              AS e(id, tenant, nth, event_type, timestamp, source, subject, priority, metadata, data, trace)
         JOIN t ON t.id = e.tenant COLLATE \"C\"),
     new_deliveries AS (
         INSERT INTO deliveries (id, tenant, event, webhook, round, status, format, priority, created_at)
         SELECT d.id, d.tenant, d.event, d.webhook, 1, $16::smallint, d.format, d.priority, d.created_at
         FROM unnest($17::uuid[], $18::text[], $19::uuid[], $20::uuid[], $21::smallint[], $22::smallint[],
                     $23::bigint[]) AS d(id, tenant, event, webhook, format, priority, created_at)
         JOIN t ON t.id = d.tenant COLLATE \"C\"), "
    };
}
/// Publishes events that are all sent at once from here. Gives the tenants it could be done for, each with its
/// first number.
const PLAIN: &str = concat!(
    plain_events!(),
    "new_leases AS (
         INSERT INTO leased (epoch, delivery, webhook, lane, seq)
         SELECT $1, d.id, d.webhook, d.lane, t.first + d.nth
         FROM unnest($17::uuid[], $18::text[], $20::uuid[], $24::text[], $25::bigint[])
              AS d(id, tenant, webhook, lane, nth)
         JOIN t ON t.id = d.tenant COLLATE \"C\")
     SELECT t.id, t.first FROM t"
);
/// The same if some wait, outside of orders.
const PLAIN_WAITING: &str = concat!(
    plain_events!(),
    "new_leases AS (
         INSERT INTO leased (epoch, delivery, webhook, lane, seq)
         SELECT $1, d.id, d.webhook, d.lane, t.first + d.nth
         FROM unnest($17::uuid[], $18::text[], $20::uuid[], $24::text[], $25::bigint[], $27::bigint[])
              AS d(id, tenant, webhook, lane, nth, due)
         JOIN t ON t.id = d.tenant COLLATE \"C\" WHERE d.due IS NULL),
     new_waits AS (
         INSERT INTO waiting (delivery, webhook, lane, place, seq, due, created_at)
         SELECT d.id, d.webhook, d.lane, d.due, t.first + d.nth, d.due, d.created_at
         FROM unnest($17::uuid[], $18::text[], $20::uuid[], $23::bigint[], $24::text[], $25::bigint[],
                     $27::bigint[]) AS d(id, tenant, webhook, created_at, lane, nth, due)
         JOIN t ON t.id = d.tenant COLLATE \"C\" WHERE d.due IS NOT NULL),
     k AS (
         SELECT k.webhook, k.lane, k.wake_at
         FROM unnest($28::uuid[], $29::text[], $30::bigint[], $31::text[]) AS k(webhook, lane, wake_at, tenant)
         JOIN t ON t.id = k.tenant COLLATE \"C\"), ",
    early_lanes!("$28", "$32"),
    ", woken AS (",
    wake_lanes!("$33"),
    ")
     SELECT t.id, t.first FROM t"
);

/// The statements whose cost must follow what they write: a test explains their plans.
#[cfg(feature = "conformance")]
pub(super) const PLANNED: [(&str, &str); 2] =
    [("publish at once", PLAIN), ("publish for others", PLAIN_WAITING)];

/// Publishes a batch by one statement. None if not all of it is plain, and within it none for events of tenants
/// that something stands against: nothing was done about those.
pub(super) async fn commit(
    tx: &Tx,
    batch: &[NewEvent],
    fence: i64,
) -> Result<Option<Vec<Option<Published>>>, Failure> {
    let Some(tenants) = tenants(batch) else { return Ok(None) };
    let nth = places(batch);
    let wakes = wakes(batch);
    let mut columns = columns(batch, &tenants, &nth);
    columns.push(Box::new(fence));
    let statement = match wakes.is_empty() {
        true => PLAIN,
        false => {
            columns.extend(waiting_columns(batch, &wakes));
            PLAIN_WAITING
        }
    };
    let columns: Vec<_> = columns.iter().map(|column| &**column as &(dyn ToSql + Sync)).collect();
    let rows = tx.query(statement, &columns).await?;
    tx.committed();
    let mut firsts: HashMap<TenantId, i64> = HashMap::new();
    for row in &rows {
        firsts.insert(get(row, 0)?, plain(row, 1)?);
    }
    let published = batch.iter().zip(&nth).map(|(new, nth)| {
        firsts.get(&new.event.tenant).map(|first| Published::New { sequence_number: first + nth })
    });
    Ok(Some(published.collect()))
}

/// How many events each tenant has, and the version they all fanned out by.
type Tenants<'a> = BTreeMap<&'a TenantId, (i64, i64)>;

/// The tenants of a batch. None if one event is not plain: it has a key, something of it waits in an order, or it
/// was made by another epoch or version.
fn tenants(batch: &[NewEvent]) -> Option<Tenants<'_>> {
    let mut tenants = Tenants::new();
    for new in batch {
        let waits_in_order = |one: &NewDelivery| one.birth != Birth::Leased && one.lane.is_ordered();
        if new.claim.is_some()
            || new.event.idempotency_key.is_some()
            || new.epoch != batch.first()?.epoch
            || new.deliveries.iter().any(waits_in_order)
        {
            return None;
        }
        let (count, version) = tenants.entry(&new.event.tenant).or_insert((0, new.config_version));
        if *version != new.config_version {
            return None;
        }
        *count += 1;
    }
    Some(tenants)
}

/// The place of each event among those of its tenant.
fn places(batch: &[NewEvent]) -> Vec<i64> {
    let mut counts: HashMap<&TenantId, i64> = HashMap::new();
    let mut places = Vec::with_capacity(batch.len());
    for new in batch {
        let count = counts.entry(&new.event.tenant).or_default();
        places.push(*count);
        *count += 1;
    }
    places
}

/// When the lanes that something is put into are to look for work, and whose they are.
type Wakes<'a> = BTreeMap<(WebhookId, Cow<'a, str>), (Time, &'a TenantId)>;

fn wakes(batch: &[NewEvent]) -> Wakes<'_> {
    let mut wakes = Wakes::new();
    for (new, delivery) in deliveries(batch) {
        if let Birth::Waiting(due) = delivery.birth {
            let key = (delivery.webhook, delivery.lane.code());
            let (at, _) = wakes.entry(key).or_insert((due, &new.event.tenant));
            *at = due.min(*at);
        }
    }
    wakes
}

fn deliveries(batch: &[NewEvent]) -> impl Iterator<Item = (&NewEvent, &NewDelivery)> + Clone {
    batch.iter().flat_map(|new| new.deliveries.iter().map(move |delivery| (new, delivery)))
}

type Column<'a> = Box<dyn ToSql + Send + Sync + 'a>;

/// The values $1 to $25.
fn columns<'a>(batch: &'a [NewEvent], tenants: &Tenants<'a>, nth: &'a [i64]) -> Vec<Column<'a>> {
    fn of<'a, T, C: ToSql + Send + Sync + 'a>(
        rows: impl Iterator<Item = T>,
        get: impl Fn(T) -> C,
    ) -> Column<'a> {
        Box::new(rows.map(get).collect::<Vec<_>>())
    }
    let events = || batch.iter().map(|new| &*new.event);
    let deliveries = || deliveries(batch);
    let places = batch.iter().zip(nth).flat_map(|(new, nth)| new.deliveries.iter().map(move |_| *nth));
    vec![
        Box::new(batch.first().map_or(0, |new| new.epoch.0)),
        of(tenants.keys(), |tenant| tenant.as_str()),
        of(tenants.values(), |(count, _)| *count),
        of(tenants.values(), |(_, version)| *version),
        of(events(), |event| Col(event.id)),
        of(events(), |event| event.tenant.as_str()),
        Box::new(nth),
        of(events(), |event| &*event.event_type),
        of(events(), |event| Col(event.timestamp)),
        of(events(), |event| event.source.as_deref()),
        of(events(), |event| event.subject.as_deref()),
        of(events(), |event| Col(event.priority)),
        of(events(), |event| event.metadata.as_deref()),
        of(events(), |event| &event.data[..]),
        of(events(), |event| event.trace.as_ref().map(|trace| trace.to_bytes())),
        Box::new(DeliveryStatus::Pending.code()),
        of(deliveries(), |(_, delivery)| Col(delivery.id)),
        of(deliveries(), |(new, _)| new.event.tenant.as_str()),
        of(deliveries(), |(new, _)| Col(new.event.id)),
        of(deliveries(), |(_, delivery)| Col(delivery.webhook)),
        of(deliveries(), |(_, delivery)| Col(delivery.format)),
        of(deliveries(), |(new, _)| Col(new.event.priority)),
        of(deliveries(), |(new, _)| Col(new.event.timestamp)),
        of(deliveries(), |(_, delivery)| delivery.lane.code()),
        Box::new(places.collect::<Vec<_>>()),
    ]
}

/// The values $27 to $33.
fn waiting_columns<'a>(batch: &'a [NewEvent], wakes: &Wakes<'a>) -> Vec<Column<'a>> {
    let due = |birth| match birth {
        Birth::Leased => None,
        Birth::Waiting(due) => Some(Col(due)),
    };
    vec![
        Box::new(deliveries(batch).map(|(_, delivery)| due(delivery.birth)).collect::<Vec<_>>()),
        Box::new(wakes.keys().map(|(webhook, _)| Col(*webhook)).collect::<Vec<_>>()),
        Box::new(wakes.keys().map(|(_, code)| code.clone()).collect::<Vec<_>>()),
        Box::new(wakes.values().map(|(at, _)| Col(*at)).collect::<Vec<_>>()),
        Box::new(wakes.values().map(|(_, tenant)| tenant.as_str()).collect::<Vec<_>>()),
        Box::new(Col(Time::FOREVER)),
        Box::new(DEFAULT_POOL),
    ]
}
