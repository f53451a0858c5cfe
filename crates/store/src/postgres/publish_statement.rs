//! The single statement that stores events with their fan-out.
//!
//! The statement takes every lock that a publish needs and commits by itself. A client that is frozen or cut off
//! before it has sent the whole statement holds no lock. Deliveries that wait in an ordered lane need a second
//! statement; both are sent together with BEGIN and COMMIT, without waiting for a result in between.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet, HashMap},
};

use redrive_core::{DeliveryStatus, TenantId, Time, WebhookId, tenancy::DEFAULT_POOL};
use tokio_postgres::types::ToSql;

use super::{
    convert::{Col, get_opt, plain},
    lanes::{self, Keys, early_lanes, wake_lanes},
    publish::key_hash,
    session::{Failure, Tx},
};
use crate::{InitialState, NewDelivery, NewEvent, codes::Code};

/// Inserts events and deliveries of tenants whose configuration version is still the expected one. Their sequence
/// numbers come from the tenant's row, which the UPDATE locks until the commit. A statement that reaches the
/// server after its sender raised the fence changes nothing.
macro_rules! insert_events {
    () => {
        "WITH live AS (SELECT epoch FROM nodes WHERE epoch = $1 AND fence <= $26 FOR KEY SHARE),
     t AS (
         UPDATE tenants t SET next_seq = t.next_seq + ($3::bigint[])[array_position($2::text[], t.id)]
         WHERE t.id = ANY($2::text[]) AND t.config_version = ($4::bigint[])[array_position($2::text[], t.id)]
             AND (SELECT true FROM live)
         RETURNING t.id, t.next_seq - ($3::bigint[])[array_position($2::text[], t.id)] AS first),
     new_events AS (
         INSERT INTO events (id, tenant_id, seq, event_type, timestamp, idempotency_key, source, subject, priority,
                             metadata, data, trace, hops, edited_from)
         SELECT e.id, e.tenant_id, t.first + e.nth, e.event_type, e.timestamp, e.idempotency_key, e.source, e.subject,
                e.priority, e.metadata, e.data, e.trace, e.hops, e.edited_from
         FROM unnest($5::uuid[], $6::text[], $7::bigint[], $8::text[], $9::bigint[], $27::text[], $10::text[],
                     $11::text[], $12::smallint[], $13::bytea[], $14::bytea[], $15::bytea[], $28::smallint[],
                     $29::uuid[])
              AS e(id, tenant_id, nth, event_type, timestamp, idempotency_key, source, subject, priority, metadata,
                   data, trace, hops, edited_from)
         JOIN t ON t.id = e.tenant_id COLLATE \"C\"),
     new_deliveries AS (
         INSERT INTO deliveries (id, tenant_id, event_id, webhook_id, round, status, format, priority, created_at)
         SELECT d.id, d.tenant_id, d.event_id, d.webhook_id, 1, $16::smallint, d.format, d.priority, d.created_at
         FROM unnest($17::uuid[], $18::text[], $19::uuid[], $20::uuid[], $21::smallint[], $22::smallint[],
                     $23::bigint[]) AS d(id, tenant_id, event_id, webhook_id, format, priority, created_at)
         JOIN t ON t.id = d.tenant_id COLLATE \"C\"), "
    };
}
/// Inserts leases of the same tenants' deliveries.
macro_rules! insert_leases {
    () => {
        "new_leases AS (
         INSERT INTO leased (epoch, delivery_id, webhook_id, lane, seq)
         SELECT $1, d.id, d.webhook_id, d.lane, t.first + d.nth
         FROM unnest($17::uuid[], $18::text[], $20::uuid[], $24::text[], $25::bigint[])
              AS d(id, tenant_id, webhook_id, lane, nth)
         JOIN t ON t.id = d.tenant_id COLLATE \"C\")"
    };
}
/// Inserts idempotency keys of the same tenants. A key that another transaction has committed is found by the
/// unique index, whatever the statement's snapshot shows; it is replaced only if it expired no later than $35.
macro_rules! take_keys {
    () => {
        "taken AS (
         INSERT INTO idempotency_keys (tenant_id, key_hash, event_id, body_hash, expires_at)
         SELECT c.tenant_id, c.key_hash, c.event_id, c.body_hash, c.expires_at
         FROM unnest($30::text[], $31::bytea[], $32::uuid[], $33::bytea[], $34::bigint[])
              AS c(tenant_id, key_hash, event_id, body_hash, expires_at)
         JOIN t ON t.id = c.tenant_id COLLATE \"C\"
         ON CONFLICT (tenant_id, key_hash) DO UPDATE
         SET event_id = excluded.event_id, body_hash = excluded.body_hash, expires_at = excluded.expires_at
         WHERE idempotency_keys.expires_at <= $35
         RETURNING tenant_id), "
    };
}
/// Ends a statement with keys. It divides by zero, which rolls everything back, if a key was not taken or if fewer
/// than $36 tenants were as expected.
macro_rules! return_checked {
    () => {
        "SELECT t.id, t.first, 1 / CASE WHEN (SELECT count(*) FROM taken) = (
                SELECT count(*) FROM unnest($30::text[]) AS c(tenant_id) JOIN t ON t.id = c.tenant_id COLLATE \"C\")
             AND (SELECT count(*) FROM t) >= $36::bigint THEN 1 ELSE 0 END
     FROM (VALUES (1)) AS one(row) LEFT JOIN t ON true"
    };
}
/// Publishes events without keys whose deliveries are all leased by the publishing node. Returns the tenants whose
/// events were stored, each with its first sequence number.
const INSERT_LEASED: &str = concat!(insert_events!(), insert_leases!(), "\n     SELECT t.id, t.first FROM t");
/// Publishes events with keys whose deliveries are all leased by the publishing node.
const INSERT_KEYED: &str =
    concat!(insert_events!(), take_keys!(), insert_leases!(), "\n     ", return_checked!());
/// Publishes events, with or without keys, some of whose deliveries wait.
const INSERT_WAITING: &str = concat!(
    insert_events!(),
    take_keys!(),
    "new_leases AS (
         INSERT INTO leased (epoch, delivery_id, webhook_id, lane, seq)
         SELECT $1, d.id, d.webhook_id, d.lane, t.first + d.nth
         FROM unnest($17::uuid[], $18::text[], $20::uuid[], $24::text[], $25::bigint[], $37::bigint[])
              AS d(id, tenant_id, webhook_id, lane, nth, due)
         JOIN t ON t.id = d.tenant_id COLLATE \"C\" WHERE d.due IS NULL),
     new_waits AS (
         INSERT INTO waiting (delivery_id, webhook_id, lane, sort_key, seq, due, created_at)
         SELECT d.id, d.webhook_id, d.lane, CASE WHEN d.lane COLLATE \"C\" < 'A' THEN 0 ELSE d.due END,
                t.first + d.nth, d.due, d.created_at
         FROM unnest($17::uuid[], $18::text[], $20::uuid[], $23::bigint[], $24::text[], $25::bigint[],
                     $37::bigint[]) AS d(id, tenant_id, webhook_id, created_at, lane, nth, due)
         JOIN t ON t.id = d.tenant_id COLLATE \"C\" WHERE d.due IS NOT NULL),
     k AS (
         SELECT k.webhook_id, k.lane, k.wake_at
         FROM unnest($38::uuid[], $39::text[], $40::bigint[], $41::text[]) AS k(webhook_id, lane, wake_at, tenant_id)
         JOIN t ON t.id = k.tenant_id COLLATE \"C\"), ",
    early_lanes!("$38", "$42"),
    ", woken AS (",
    wake_lanes!("$43"),
    ")
     ",
    return_checked!()
);

/// Statements whose cost must be proportional to the rows they write; a test checks their query plans.
#[cfg(feature = "conformance")]
pub(super) const PLANNED_STATEMENTS: [(&str, &str); 3] = [
    ("publish leased", INSERT_LEASED),
    ("publish with keys", INSERT_KEYED),
    ("publish waiting", INSERT_WAITING),
];

/// Events of one epoch that are published together. All events of a tenant have the same configuration version, and
/// no idempotency key occurs twice with two events that both keep it.
pub(super) struct Insertion<'a> {
    events: Vec<&'a NewEvent>,
    tenants: Tenants<'a>,
    /// Position of each event among those of its tenant.
    nth: Vec<i64>,
    wakes: Wakes<'a>,
    orders: Keys,
    /// Latest expiry among the keys that may be replaced.
    replaceable_until: Time,
}

/// Number of events of each tenant, and the configuration version that their fan-out was computed from.
type Tenants<'a> = BTreeMap<&'a TenantId, (i64, i64)>;

/// Wake times of the lanes into which deliveries are inserted, and their tenants.
type Wakes<'a> = BTreeMap<(WebhookId, Cow<'a, str>), (Time, &'a TenantId)>;

/// First sequence number of each tenant whose events were stored.
pub(super) type FirstNumbers = HashMap<TenantId, i64>;

impl<'a> Insertion<'a> {
    /// Returns `None` if the events differ in epoch, or those of a tenant in configuration version.
    pub(super) fn new(events: Vec<&'a NewEvent>, replaceable_until: Time) -> Option<Self> {
        let mut tenants = Tenants::new();
        let mut nth = Vec::with_capacity(events.len());
        for new in &events {
            let (count, version) = tenants.entry(&new.event.tenant_id).or_insert((0, new.config_version));
            if *version != new.config_version || new.epoch != events.first()?.epoch {
                return None;
            }
            nth.push(*count);
            *count += 1;
        }
        let (wakes, orders) = wakes(&events);
        Some(Self { events, tenants, nth, wakes, orders, replaceable_until })
    }

    /// Returns whether the events may be stored without reading tenants and idempotency keys first.
    pub(super) fn needs_no_reading(&self) -> bool {
        self.orders.is_empty() && self.events.iter().all(|new| new.idempotency.is_none())
    }

    pub(super) fn events(&self) -> &[&'a NewEvent] {
        &self.events
    }

    /// Returns the sequence numbers of the events, in their order; `None` for those that were not stored.
    pub(super) fn sequence_numbers(&self, first: &FirstNumbers) -> Vec<Option<i64>> {
        let numbers = self.events.iter().zip(&self.nth);
        numbers.map(|(new, nth)| Some(first.get(&new.event.tenant_id)? + nth)).collect()
    }

    /// Stores the events. Returns the tenants whose events were stored; nothing was stored for the others.
    pub(super) async fn run(&self, tx: &Tx, fence: i64) -> Result<FirstNumbers, Failure> {
        let mut columns = self.columns(fence);
        let statement = match (self.wakes.is_empty(), self.events.iter().any(|new| new.idempotency.is_some()))
        {
            (true, false) => INSERT_LEASED,
            (true, true) => INSERT_KEYED,
            (false, _) => INSERT_WAITING,
        };
        if statement != INSERT_LEASED {
            columns.extend(self.key_columns());
        }
        if statement == INSERT_WAITING {
            columns.extend(self.waiting_columns());
        }
        let columns: Vec<_> = columns.iter().map(|column| &**column as &(dyn ToSql + Sync)).collect();
        let rows = match self.orders.is_empty() {
            true => tx.query(statement, &columns).await?,
            false => self.run_in_order(tx, statement, &columns).await?,
        };
        tx.committed();
        let mut first = FirstNumbers::new();
        for row in &rows {
            if let Some(tenant_id) = get_opt(row, 0)? {
                first.insert(tenant_id, plain(row, 1)?);
            }
        }
        Ok(first)
    }

    /// Sends the statement between BEGIN and COMMIT, and before COMMIT the one that sets the wake time of ordered
    /// lanes from their first delivery.
    async fn run_in_order(
        &self,
        tx: &Tx,
        statement: &str,
        columns: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<tokio_postgres::Row>, Failure> {
        tx.prepare(&[statement, lanes::SET_WAKE]).await?;
        let (started, rows, set, committed) = tokio::join!(
            biased;
            tx.begin(),
            tx.query(statement, columns),
            lanes::set_by_first(tx, &self.orders),
            tx.commit_pipelined(),
        );
        started?;
        let rows = rows?;
        set?;
        committed?;
        Ok(rows)
    }

    /// Returns the values $1 to $29.
    fn columns(&self, fence: i64) -> Vec<Column<'_>> {
        let events = || self.events.iter().map(|new| &*new.event);
        let deliveries = || deliveries(&self.events);
        let positions =
            self.events.iter().zip(&self.nth).flat_map(|(new, nth)| new.deliveries.iter().map(move |_| *nth));
        vec![
            Box::new(self.events.first().map_or(0, |new| new.epoch.0)),
            column(self.tenants.keys(), |tenant| tenant.as_str()),
            column(self.tenants.values(), |(count, _)| *count),
            column(self.tenants.values(), |(_, version)| *version),
            column(events(), |event| Col(event.id)),
            column(events(), |event| event.tenant_id.as_str()),
            Box::new(&self.nth[..]),
            column(events(), |event| &*event.event_type),
            column(events(), |event| Col(event.timestamp)),
            column(events(), |event| event.source.as_deref()),
            column(events(), |event| event.subject.as_deref()),
            column(events(), |event| Col(event.priority)),
            column(events(), |event| event.metadata.as_deref()),
            column(events(), |event| &event.data[..]),
            column(events(), |event| event.trace.as_ref().map(|trace| trace.to_bytes())),
            Box::new(DeliveryStatus::Pending.code()),
            column(deliveries(), |(_, delivery)| Col(delivery.id)),
            column(deliveries(), |(new, _)| new.event.tenant_id.as_str()),
            column(deliveries(), |(new, _)| Col(new.event.id)),
            column(deliveries(), |(_, delivery)| Col(delivery.webhook_id)),
            column(deliveries(), |(_, delivery)| Col(delivery.format)),
            column(deliveries(), |(new, _)| Col(new.event.priority)),
            column(deliveries(), |(new, _)| Col(new.event.timestamp)),
            column(deliveries(), |(_, delivery)| delivery.lane.code()),
            Box::new(positions.collect::<Vec<_>>()),
            Box::new(fence),
            column(events(), |event| event.idempotency_key.as_deref()),
            column(events(), |event| i16::from(event.hops)),
            column(self.events.iter(), |new| new.edited_from.map(Col)),
        ]
    }

    /// Returns the values $30 to $36. Of two events with the same key the later one keeps it: the earlier one's has
    /// expired.
    fn key_columns(&self) -> Vec<Column<'_>> {
        let mut seen = BTreeSet::new();
        let mut keyed: Vec<_> = self
            .events
            .iter()
            .filter_map(|new| Some((&new.event, new.idempotency.as_ref()?, key_hash(&new.event))))
            .rev()
            .filter(|(event, _, hash)| seen.insert((&event.tenant_id, *hash)))
            .collect();
        // Two transactions that insert the same keys do so in the same order.
        keyed.sort_by(|(a, _, a_hash), (b, _, b_hash)| (&a.tenant_id, a_hash).cmp(&(&b.tenant_id, b_hash)));
        // Ordered lanes are set by a separate statement, which expects them to be locked: all tenants or none.
        let min_tenants = if self.orders.is_empty() { 0 } else { self.tenants.len() as i64 };
        vec![
            column(keyed.iter(), |(event, ..)| event.tenant_id.as_str()),
            column(keyed.iter(), |(_, _, hash)| hash.to_vec()),
            column(keyed.iter(), |(event, ..)| Col(event.id)),
            column(keyed.iter(), |(_, reservation, _)| reservation.body_hash.to_vec()),
            column(keyed.iter(), |(_, reservation, _)| Col(reservation.expires_at)),
            Box::new(Col(self.replaceable_until)),
            Box::new(min_tenants),
        ]
    }

    /// Returns the values $37 to $43.
    fn waiting_columns(&self) -> Vec<Column<'_>> {
        let due = |initial_state| match initial_state {
            InitialState::Leased => None,
            InitialState::Waiting(due) => Some(Col(due)),
        };
        let wakes = &self.wakes;
        vec![
            column(deliveries(&self.events), |(_, delivery)| due(delivery.initial_state)),
            column(wakes.keys(), |(webhook_id, _)| Col(*webhook_id)),
            column(wakes.keys(), |(_, code)| code.clone()),
            column(wakes.values(), |(at, _)| Col(*at)),
            column(wakes.values(), |(_, tenant)| tenant.as_str()),
            Box::new(Col(Time::FAR_FUTURE)),
            Box::new(DEFAULT_POOL),
        ]
    }
}

type Column<'a> = Box<dyn ToSql + Send + Sync + 'a>;

fn column<'a, T, C: ToSql + Send + Sync + 'a>(
    rows: impl Iterator<Item = T>,
    get: impl Fn(T) -> C,
) -> Column<'a> {
    Box::new(rows.map(get).collect::<Vec<_>>())
}

fn deliveries<'s, 'a>(
    events: &'s [&'a NewEvent],
) -> impl Iterator<Item = (&'a NewEvent, &'a NewDelivery)> + Clone + 's {
    events.iter().flat_map(|new| new.deliveries.iter().map(move |delivery| (*new, delivery)))
}

/// Returns the wake times of lanes, and which of them are ordered.
fn wakes<'a>(events: &[&'a NewEvent]) -> (Wakes<'a>, Keys) {
    let (mut wakes, mut orders) = (Wakes::new(), Keys::new());
    for (new, delivery) in deliveries(events) {
        if let InitialState::Waiting(due) = delivery.initial_state {
            let code = delivery.lane.code();
            if delivery.lane.is_ordered() {
                orders.insert((delivery.webhook_id, code.clone().into_owned()));
            }
            let (at, _) = wakes.entry((delivery.webhook_id, code)).or_insert((due, &new.event.tenant_id));
            *at = due.min(*at);
        }
    }
    (wakes, orders)
}
