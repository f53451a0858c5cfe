//! Rollups of webhooks (per minute) and tenants (per minute and hour): added incrementally, read from a start
//! time.

use std::collections::BTreeMap;

use redrive_core::{
    TenantId, Time, WebhookId,
    statistics::{
        rollup::{self, Latencies, Rollup},
        traffic::{EndedCounts, Resolution, Traffic},
    },
};
use tokio_postgres::Row;

use super::{
    Postgres,
    convert::{Col, get, get_opt, plain},
    session::{Failure, Session, Tx, Values},
    successes,
};
use crate::{
    ALL_TENANTS_ROLLUP_ID, MinuteRollup, Statistics, StoreFuture, TenantRollup, WebhookFailures, codes::Code,
    sum_over_tenants,
};

const ROLLUPS: &str =
    "SELECT r.attempts, r.successes, r.categories, r.latencies, r.last_success_at, r.tenant_id,
            r.webhook_id, r.minute
     FROM unnest($1::uuid[]) AS k(webhook_id)
     CROSS JOIN LATERAL (SELECT * FROM rollups r WHERE r.webhook_id = k.webhook_id AND r.minute >= $2
                         ORDER BY r.minute) r";
const COUNT_SUCCESSES: &str =
    "SELECT s.successes, k.position FROM unnest($1::uuid[], $2::bigint[]) WITH ORDINALITY AS k(webhook_id, since, position)
     CROSS JOIN LATERAL (
         SELECT coalesce(sum(CASE WHEN r.minute > k.since THEN r.successes
                                  WHEN r.last_success_at > k.since THEN 1 ELSE 0 END), 0)::bigint AS successes
         FROM rollups r WHERE r.webhook_id = k.webhook_id AND r.minute > k.since - 60000) s";
const FAILURES: &str = "SELECT r.webhook_id, sum(r.failures)::bigint, count(*), min(r.minute)
     FROM (SELECT webhook_id, minute, attempts - successes AS failures FROM rollups
           WHERE tenant_id = $1 AND failed AND minute >= $2 ORDER BY minute DESC LIMIT $3) r
     GROUP BY r.webhook_id";
macro_rules! put_rollups {
    ($conflict:literal) => {
        concat!(
            "INSERT INTO rollups
                 (webhook_id, minute, tenant_id, attempts, successes, failed, categories, latencies, last_success_at)
             SELECT webhook_id, minute, tenant_id, attempts, successes, attempts > successes, categories, latencies,
             last
             FROM unnest($1::uuid[], $2::bigint[], $3::text[], $4::bigint[], $5::bigint[], $6::bytea[],
                 $7::bytea[], $8::bigint[])
                 AS k(webhook_id, minute, tenant_id, attempts, successes, categories, latencies, last) ",
            $conflict
        )
    };
}
const NEW_ROLLUPS: &str = put_rollups!("ON CONFLICT DO NOTHING RETURNING webhook_id, minute");
/// Updates rows that exist and are locked. It does not use a join, whose plan would depend on row estimates.
const SET_ROLLUPS: &str = put_rollups!(
    "ON CONFLICT (webhook_id, minute) DO UPDATE SET attempts = excluded.attempts, successes = excluded.successes,
         failed = excluded.failed, categories = excluded.categories, latencies = excluded.latencies,
         last_success_at = excluded.last_success_at"
);
/// Locks rows one after the other in the given order, which is the same on all nodes.
const KNOWN_ROLLUPS: &str = "SELECT r.attempts, r.successes, r.categories, r.latencies, r.last_success_at,
            r.webhook_id, r.minute
     FROM unnest($1::uuid[], $2::bigint[]) AS k(webhook_id, minute)
     CROSS JOIN LATERAL (SELECT * FROM rollups r WHERE r.webhook_id = k.webhook_id AND r.minute = k.minute
                         LIMIT 1 FOR UPDATE) r";
const PRUNE_ROLLUPS: &str = "DELETE FROM rollups WHERE ctid = ANY(ARRAY(
         SELECT ctid FROM rollups WHERE minute / 60000 < ($1::bigint + 59999) / 60000 AND minute < $1
         ORDER BY minute / 60000 LIMIT $2 FOR UPDATE SKIP LOCKED))";
const TRAFFIC: &str =
    "SELECT attempts, successes, categories, latencies, last_success_at, delivered, dead, cancelled, start
     FROM tenant_rollups WHERE tenant_id = $1 AND resolution = $2 AND start >= $3 ORDER BY start";
macro_rules! put_traffic {
    ($conflict:literal) => {
        concat!(
            "INSERT INTO tenant_rollups (tenant_id, resolution, start, attempts, successes, categories, latencies,
                 last_success_at, delivered, dead, cancelled, expires_at)
             SELECT * FROM unnest($1::text[], $2::smallint[], $3::bigint[], $4::bigint[], $5::bigint[],
                 $6::bytea[], $7::bytea[], $8::bigint[], $9::bigint[], $10::bigint[], $11::bigint[],
                 $12::bigint[]) ",
            $conflict
        )
    };
}
const NEW_TRAFFIC: &str = put_traffic!("ON CONFLICT DO NOTHING RETURNING tenant_id, resolution, start");
const SET_TRAFFIC: &str = put_traffic!(
    "ON CONFLICT (tenant_id, resolution, start) DO UPDATE SET attempts = excluded.attempts,
         successes = excluded.successes, categories = excluded.categories, latencies = excluded.latencies,
         last_success_at = excluded.last_success_at, delivered = excluded.delivered, dead = excluded.dead,
         cancelled = excluded.cancelled RETURNING tenant_id, resolution, start"
);
const KNOWN_TRAFFIC: &str = "SELECT r.attempts, r.successes, r.categories, r.latencies, r.last_success_at,
            r.delivered, r.dead, r.cancelled, r.tenant_id, r.resolution, r.start
     FROM unnest($1::text[], $2::smallint[], $3::bigint[]) AS k(tenant_id, resolution, start)
     CROSS JOIN LATERAL (SELECT * FROM tenant_rollups r
                         WHERE r.tenant_id = k.tenant_id AND r.resolution = k.resolution AND r.start = k.start
                         LIMIT 1 FOR UPDATE) r";
const PRUNE_TRAFFIC: &str = "DELETE FROM tenant_rollups WHERE ctid = ANY(ARRAY(
         SELECT ctid FROM tenant_rollups WHERE expires_at <= $1 ORDER BY expires_at LIMIT $2
         FOR UPDATE SKIP LOCKED))";

/// Statements whose cost must be proportional to the rows they return or change; a test checks their query plans.
#[cfg(feature = "conformance")]
pub(super) const PLANNED_STATEMENTS: [(&str, &str); 11] = [
    ("minutes", ROLLUPS),
    ("count successes", COUNT_SUCCESSES),
    ("failures", FAILURES),
    ("new minutes", NEW_ROLLUPS),
    ("known minutes", KNOWN_ROLLUPS),
    ("set minutes", SET_ROLLUPS),
    ("prune rollups", PRUNE_ROLLUPS),
    ("traffic", TRAFFIC),
    ("known traffic", KNOWN_TRAFFIC),
    ("set traffic", SET_TRAFFIC),
    ("prune tenant rollups", PRUNE_TRAFFIC),
];

impl Statistics for Postgres {
    fn add_rollups(&self, minutes: Vec<MinuteRollup>, traffic: Vec<TenantRollup>) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            self.write(|tx| {
                let (minutes, traffic) = (&minutes, &traffic);
                async move {
                    add_minutes(&tx, minutes).await?;
                    add_traffic(&tx, traffic).await
                }
            })
            .await
        })
    }

    fn rollups(
        &self,
        for_tenant: Option<TenantId>,
        webhooks: Vec<WebhookId>,
        from: Time,
    ) -> StoreFuture<'_, Vec<MinuteRollup>> {
        Box::pin(async move {
            let webhooks: Vec<_> = webhooks.into_iter().map(Col).collect();
            self.read_for(for_tenant.as_ref(), |session| {
                let webhooks = &webhooks;
                async move {
                    let rows = session.query(ROLLUPS, &[webhooks, &Col(from)]).await?;
                    let read = |row: &Row| {
                        let (tenant_id, webhook_id, minute) = (get(row, 5)?, get(row, 6)?, get(row, 7)?);
                        Ok(MinuteRollup { tenant_id, webhook_id, minute, rollup: read_rollup(row)? })
                    };
                    rows.iter().map(read).collect()
                }
            })
            .await
        })
    }

    fn count_successes(
        &self,
        for_tenant: Option<TenantId>,
        webhooks: Vec<(WebhookId, Time)>,
    ) -> StoreFuture<'_, Vec<u64>> {
        Box::pin(async move {
            let (ids, times): (Vec<_>, Vec<_>) =
                webhooks.into_iter().map(|(id, since)| (Col(id), Col(since))).unzip();
            self.list_for_selection(for_tenant.as_ref(), |session| {
                let (ids, times) = (&ids, &times);
                async move {
                    let rows = session.query(COUNT_SUCCESSES, &[ids, times]).await?;
                    let read = |row: &Row| {
                        Ok::<_, Failure>((plain::<i64>(row, 1)?, plain::<i64>(row, 0)?.unsigned_abs()))
                    };
                    let mut counts = rows.iter().map(read).collect::<Result<Vec<_>, Failure>>()?;
                    counts.sort_unstable_by_key(|(position, _)| *position);
                    Ok(counts.into_iter().map(|(_, count)| count).collect())
                }
            })
            .await
        })
    }

    fn last_successes(
        &self,
        for_tenant: Option<TenantId>,
        webhooks: Vec<WebhookId>,
    ) -> StoreFuture<'_, Vec<(WebhookId, Time)>> {
        Box::pin(async move {
            let webhooks: Vec<_> = webhooks.into_iter().map(Col).collect();
            self.list_for_selection(for_tenant.as_ref(), |session| successes::list(session, &webhooks)).await
        })
    }

    fn traffic(
        &self,
        tenant_id: TenantId,
        resolution: Resolution,
        from: Time,
    ) -> StoreFuture<'_, Vec<(Time, Traffic)>> {
        Box::pin(async move {
            self.list_for(&tenant_id, |session| traffic_of(session, tenant_id.as_str(), resolution, from))
                .await
        })
    }

    fn traffic_of_all_tenants(
        &self,
        resolution: Resolution,
        from: Time,
    ) -> StoreFuture<'_, Vec<(Time, Traffic)>> {
        Box::pin(async move {
            self.list_for_all_tenants(|session| traffic_of(session, ALL_TENANTS_ROLLUP_ID, resolution, from))
                .await
        })
    }

    fn failures(&self, tenant_id: TenantId, from: Time, max: usize) -> StoreFuture<'_, WebhookFailures> {
        Box::pin(async move {
            self.list_for(&tenant_id, |session| failures(session, &tenant_id, from, max)).await
        })
    }

    fn prune_rollups(&self, before: Time, limit: usize) -> StoreFuture<'_, usize> {
        Box::pin(async move { self.prune_before(PRUNE_ROLLUPS, before, limit).await })
    }

    fn prune_traffic(&self, now: Time, limit: usize) -> StoreFuture<'_, usize> {
        Box::pin(async move { self.prune_before(PRUNE_TRAFFIC, now, limit).await })
    }
}

impl Postgres {
    async fn prune_before(
        &self,
        statement: &str,
        time: Time,
        limit: usize,
    ) -> Result<usize, crate::StoreError> {
        let limit = limit as i64;
        let pruned =
            self.write(|tx| async move { tx.execute(statement, &[&Col(time), &limit]).await }).await?;
        Ok(pruned as usize)
    }
}

async fn traffic_of(
    session: Tx,
    tenant_id: &str,
    resolution: Resolution,
    from: Time,
) -> Result<Vec<(Time, Traffic)>, Failure> {
    let rows = session.query(TRAFFIC, &[&tenant_id, &Col(resolution), &Col(from)]).await?;
    rows.iter().map(|row| Ok((get(row, 8)?, read_traffic(row)?))).collect()
}

async fn failures(
    session: Tx,
    tenant_id: &TenantId,
    from: Time,
    max: usize,
) -> Result<WebhookFailures, Failure> {
    // One more than the limit, to know whether there are more.
    let limit = i64::try_from(max).unwrap_or(i64::MAX).saturating_add(1);
    let (mut by_webhook, mut seen, mut earliest) = (Vec::new(), 0, None);
    for row in &session.query(FAILURES, &[&tenant_id.as_str(), &Col(from), &limit]).await? {
        by_webhook.push((get(row, 0)?, plain::<i64>(row, 1)?.unsigned_abs()));
        seen += plain::<i64>(row, 2)?;
        let minute: Time = get(row, 3)?;
        earliest = Some(earliest.map_or(minute, |before: Time| before.min(minute)));
    }
    Ok(WebhookFailures { by_webhook, only_since: earliest.filter(|_| seen == limit) })
}

fn read_rollup(row: &Row) -> Result<Rollup, Failure> {
    Ok(Rollup {
        attempts: plain::<i64>(row, 0)? as u32,
        successes: plain::<i64>(row, 1)? as u32,
        by_category: rollup::categories_from_bytes(plain(row, 2)?).unwrap_or_default(),
        latencies: Latencies::from_bytes(plain(row, 3)?).unwrap_or_default(),
        last_success_at: get_opt(row, 4)?,
    })
}

fn read_traffic(row: &Row) -> Result<Traffic, Failure> {
    let number = |column| plain::<i64>(row, column).map(i64::unsigned_abs);
    let ended = EndedCounts { delivered: number(5)?, dead: number(6)?, cancelled: number(7)? };
    Ok(Traffic { sent: read_rollup(row)?, ended })
}

/// Values of rollups, as one array per column.
#[derive(Default)]
struct Columns {
    attempts: Vec<i64>,
    successes: Vec<i64>,
    categories: Vec<Vec<u8>>,
    latencies: Vec<Vec<u8>>,
    last: Vec<Option<Col<Time>>>,
}

impl Columns {
    fn from_rollups<'a>(rollups: impl Iterator<Item = &'a Rollup>) -> Self {
        let mut columns = Self::default();
        for rollup in rollups {
            columns.attempts.push(rollup.attempts.into());
            columns.successes.push(rollup.successes.into());
            columns.categories.push(rollup::categories_to_bytes(&rollup.by_category));
            columns.latencies.push(rollup.latencies.to_bytes());
            columns.last.push(rollup.last_success_at.map(Col));
        }
        columns
    }
}

/// Per-minute rollups of webhooks, in the order in which all nodes lock them.
type Minutes<'a> = BTreeMap<(WebhookId, Time), (&'a TenantId, Rollup)>;

/// Adds rollups to the stored minutes. Several nodes may add to the same rows: each node creates and locks them in
/// order, which prevents deadlocks.
async fn add_minutes(tx: &Session, new: &[MinuteRollup]) -> Result<(), Failure> {
    let mut sums = Minutes::new();
    for one in new {
        sums.entry((one.webhook_id, one.minute))
            .and_modify(|(_, sum)| sum.merge(&one.rollup))
            .or_insert_with(|| (&one.tenant_id, one.rollup.clone()));
    }
    // Minutes in which no success is stored yet: the newest of each webhook, with its last success.
    let mut successes = BTreeMap::new();
    let mut note_success = |webhook_id: WebhookId, minute: Time, sum: &Rollup| {
        successes.extend(sum.last_success_at.map(|at| (webhook_id, (minute, at))));
    };
    for row in &put_minutes(tx, NEW_ROLLUPS, &sums).await? {
        let key = (get(row, 0)?, get(row, 1)?);
        if let Some((_, sum)) = sums.remove(&key) {
            note_success(key.0, key.1, &sum);
        }
    }
    if !sums.is_empty() {
        let (webhooks, minutes) = keys(&sums);
        for row in &tx.query(KNOWN_ROLLUPS, &[&webhooks, &minutes]).await? {
            let (key, known) = ((get(row, 5)?, get(row, 6)?), read_rollup(row)?);
            if let Some((_, sum)) = sums.get_mut(&key) {
                if known.last_success_at.is_none() {
                    note_success(key.0, key.1, sum);
                }
                sum.merge(&known);
            }
        }
        put_minutes(tx, SET_ROLLUPS, &sums).await?;
    }
    successes::set(tx, &successes).await
}

fn keys(sums: &Minutes<'_>) -> (Vec<Col<WebhookId>>, Vec<Col<Time>>) {
    sums.keys().map(|(webhook_id, minute)| (Col(*webhook_id), Col(*minute))).unzip()
}

async fn put_minutes(tx: &Session, how: &str, sums: &Minutes<'_>) -> Result<Vec<Row>, Failure> {
    let (webhooks, minutes) = keys(sums);
    let tenants: Vec<_> = sums.values().map(|(tenant, _)| tenant.as_str()).collect();
    let Columns { attempts, successes, categories, latencies, last } =
        Columns::from_rollups(sums.values().map(|(_, sum)| sum));
    let values: Values<'_> =
        &[&webhooks, &minutes, &tenants, &attempts, &successes, &categories, &latencies, &last];
    tx.query(how, values).await
}

/// Rollups of tenants per minute and hour, in the order in which all nodes lock them, with their retention time.
type Sums = BTreeMap<(String, i16, Time), (Time, Traffic)>;

/// Adds rollups to the stored traffic of tenants, with the same locking as [`add_minutes`]. The sums of all tenants,
/// which every flush of every node changes, are locked last and thus for the shortest time.
async fn add_traffic(tx: &Session, new: &[TenantRollup]) -> Result<(), Failure> {
    let mut sums = Sums::new();
    for one in new {
        sums.entry((one.tenant_id.to_string(), one.resolution.code(), one.start))
            .and_modify(|(_, sum)| sum.merge(&one.traffic))
            .or_insert_with(|| (one.expires_at, one.traffic.clone()));
    }
    add_sums(tx, sums).await?;
    let of_all = sum_over_tenants(new).into_iter().map(|one| {
        ((ALL_TENANTS_ROLLUP_ID.to_owned(), one.resolution.code(), one.start), (one.expires_at, one.traffic))
    });
    add_sums(tx, of_all.collect()).await
}

async fn add_sums(tx: &Session, mut sums: Sums) -> Result<(), Failure> {
    for row in &put_traffic(tx, NEW_TRAFFIC, &sums).await? {
        sums.remove(&(plain(row, 0)?, plain(row, 1)?, get(row, 2)?));
    }
    if sums.is_empty() {
        return Ok(());
    }
    let (tenants, grains, starts) = split(&sums);
    let known = tx.query(KNOWN_TRAFFIC, &[&tenants, &grains, &starts]).await?;
    for row in &known {
        if let Some((_, sum)) = sums.get_mut(&(plain(row, 8)?, plain(row, 9)?, get(row, 10)?)) {
            sum.merge(&read_traffic(row)?);
        }
    }
    put_traffic(tx, SET_TRAFFIC, &sums).await?;
    Ok(())
}

type Split<'a> = (Vec<&'a str>, Vec<i16>, Vec<Col<Time>>);

fn split(sums: &Sums) -> Split<'_> {
    let mut split = Split::default();
    for (tenant_id, resolution, start) in sums.keys() {
        split.0.push(tenant_id.as_str());
        split.1.push(*resolution);
        split.2.push(Col(*start));
    }
    split
}

async fn put_traffic(tx: &Session, how: &str, sums: &Sums) -> Result<Vec<Row>, Failure> {
    let (tenants, grains, starts) = split(sums);
    let Columns { attempts, successes, categories, latencies, last } =
        Columns::from_rollups(sums.values().map(|(_, sum)| &sum.sent));
    let ended = |count: fn(&EndedCounts) -> u64| -> Vec<i64> {
        sums.values().map(|(_, sum)| count(&sum.ended) as i64).collect()
    };
    let (delivered, dead, cancelled) =
        (ended(|ended| ended.delivered), ended(|ended| ended.dead), ended(|ended| ended.cancelled));
    let expires_at: Vec<_> = sums.values().map(|(until, _)| Col(*until)).collect();
    let values: Values<'_> = &[
        &tenants,
        &grains,
        &starts,
        &attempts,
        &successes,
        &categories,
        &latencies,
        &last,
        &delivered,
        &dead,
        &cancelled,
        &expires_at,
    ];
    tx.query(how, values).await
}
