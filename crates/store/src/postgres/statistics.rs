//! How webhooks and tenants do: minutes and hours, added up as they come and read from a time on.

use std::collections::BTreeMap;

use redrive_core::{
    TenantId, Time, WebhookId,
    statistics::rollup::{self, Latencies, Rollup},
    statistics::traffic::{Ended, Grain, Traffic},
};
use tokio_postgres::Row;

use super::{
    Postgres,
    convert::{Col, get, get_opt, plain},
    session::{Failure, Session, Tx, Values},
};
use crate::{Answer, Failures, Figures, MinuteRollup, TenantRollup, codes::Code};

const ROLLUPS: &str =
    "SELECT r.attempts, r.successes, r.categories, r.latencies, r.last_success_at, r.tenant,
            r.webhook, r.minute
     FROM unnest($1::uuid[]) AS k(webhook)
     CROSS JOIN LATERAL (SELECT * FROM rollups r WHERE r.webhook = k.webhook AND r.minute >= $2
                         ORDER BY r.minute) r";
/// A minute's last success is later than those of the minutes before it.
const LAST_SUCCESSES: &str = "SELECT k.webhook, r.last_success_at
     FROM unnest($1::uuid[], $2::bigint[]) AS k(webhook, at)
     CROSS JOIN LATERAL (SELECT r.last_success_at FROM rollups r
         WHERE r.webhook = k.webhook AND r.minute <= k.at AND r.last_success_at IS NOT NULL
         ORDER BY r.minute DESC LIMIT 1) r";
const FAILURES: &str = "SELECT r.webhook, sum(r.failures)::bigint, count(*), min(r.minute)
     FROM (SELECT webhook, minute, attempts - successes AS failures FROM rollups
           WHERE tenant = $1 AND failed AND minute >= $2 ORDER BY minute DESC LIMIT $3) r
     GROUP BY r.webhook";
macro_rules! put_rollups {
    ($conflict:literal) => {
        concat!(
            "INSERT INTO rollups
                 (webhook, minute, tenant, attempts, successes, failed, categories, latencies, last_success_at)
             SELECT webhook, minute, tenant, attempts, successes, attempts > successes, categories, latencies, last
             FROM unnest($1::uuid[], $2::bigint[], $3::text[], $4::bigint[], $5::bigint[], $6::bytea[],
                 $7::bytea[], $8::bigint[])
                 AS k(webhook, minute, tenant, attempts, successes, categories, latencies, last) ",
            $conflict
        )
    };
}
const NEW_ROLLUPS: &str = put_rollups!("ON CONFLICT DO NOTHING RETURNING webhook, minute");
/// Those that are known by now, and locked. Not by a join: its plan would be up to guesses about how many there are.
const SET_ROLLUPS: &str = put_rollups!(
    "ON CONFLICT (webhook, minute) DO UPDATE SET attempts = excluded.attempts, successes = excluded.successes,
         failed = excluded.failed, categories = excluded.categories, latencies = excluded.latencies,
         last_success_at = excluded.last_success_at"
);
/// One after the other, as they are named: in the order in which all nodes lock them.
const KNOWN_ROLLUPS: &str = "SELECT r.attempts, r.successes, r.categories, r.latencies, r.last_success_at,
            r.webhook, r.minute
     FROM unnest($1::uuid[], $2::bigint[]) AS k(webhook, minute)
     CROSS JOIN LATERAL (SELECT * FROM rollups r WHERE r.webhook = k.webhook AND r.minute = k.minute
                         LIMIT 1 FOR UPDATE) r";
const FORGET_ROLLUPS: &str = "DELETE FROM rollups WHERE ctid = ANY(ARRAY(
         SELECT ctid FROM rollups WHERE minute / 60000 < ($1::bigint + 59999) / 60000 AND minute < $1
         ORDER BY minute / 60000 LIMIT $2 FOR UPDATE SKIP LOCKED))";
const TRAFFIC: &str =
    "SELECT attempts, successes, categories, latencies, last_success_at, delivered, dead, cancelled, start
     FROM tenant_rollups WHERE tenant = $1 AND grain = $2 AND start >= $3 ORDER BY start";
macro_rules! put_traffic {
    ($conflict:literal) => {
        concat!(
            "INSERT INTO tenant_rollups (tenant, grain, start, attempts, successes, categories, latencies,
                 last_success_at, delivered, dead, cancelled, kept_until)
             SELECT * FROM unnest($1::text[], $2::smallint[], $3::bigint[], $4::bigint[], $5::bigint[],
                 $6::bytea[], $7::bytea[], $8::bigint[], $9::bigint[], $10::bigint[], $11::bigint[],
                 $12::bigint[]) ",
            $conflict
        )
    };
}
const NEW_TRAFFIC: &str = put_traffic!("ON CONFLICT DO NOTHING RETURNING tenant, grain, start");
const SET_TRAFFIC: &str = put_traffic!(
    "ON CONFLICT (tenant, grain, start) DO UPDATE SET attempts = excluded.attempts,
         successes = excluded.successes, categories = excluded.categories, latencies = excluded.latencies,
         last_success_at = excluded.last_success_at, delivered = excluded.delivered, dead = excluded.dead,
         cancelled = excluded.cancelled RETURNING tenant, grain, start"
);
const KNOWN_TRAFFIC: &str = "SELECT r.attempts, r.successes, r.categories, r.latencies, r.last_success_at,
            r.delivered, r.dead, r.cancelled, r.tenant, r.grain, r.start
     FROM unnest($1::text[], $2::smallint[], $3::bigint[]) AS k(tenant, grain, start)
     CROSS JOIN LATERAL (SELECT * FROM tenant_rollups r
                         WHERE r.tenant = k.tenant AND r.grain = k.grain AND r.start = k.start
                         LIMIT 1 FOR UPDATE) r";
const FORGET_TRAFFIC: &str = "DELETE FROM tenant_rollups WHERE ctid = ANY(ARRAY(
         SELECT ctid FROM tenant_rollups WHERE kept_until <= $1 ORDER BY kept_until LIMIT $2
         FOR UPDATE SKIP LOCKED))";

/// The statements whose cost must follow what they answer or change: a test explains their plans.
#[cfg(feature = "conformance")]
pub(super) const PLANNED: [(&str, &str); 11] = [
    ("minutes", ROLLUPS),
    ("last successes", LAST_SUCCESSES),
    ("failures", FAILURES),
    ("new minutes", NEW_ROLLUPS),
    ("known minutes", KNOWN_ROLLUPS),
    ("set minutes", SET_ROLLUPS),
    ("forget minutes", FORGET_ROLLUPS),
    ("traffic", TRAFFIC),
    ("known traffic", KNOWN_TRAFFIC),
    ("set traffic", SET_TRAFFIC),
    ("forget traffic", FORGET_TRAFFIC),
];

impl Figures for Postgres {
    fn add_figures(&self, minutes: Vec<MinuteRollup>, traffic: Vec<TenantRollup>) -> Answer<'_, ()> {
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
    ) -> Answer<'_, Vec<MinuteRollup>> {
        Box::pin(async move {
            let webhooks: Vec<_> = webhooks.into_iter().map(Col).collect();
            self.read_for(for_tenant.as_ref(), |session| {
                let webhooks = &webhooks;
                async move {
                    let rows = session.query(ROLLUPS, &[webhooks, &Col(from)]).await?;
                    let read = |row: &Row| {
                        let (tenant, webhook, minute) = (get(row, 5)?, get(row, 6)?, get(row, 7)?);
                        Ok(MinuteRollup { tenant, webhook, minute, rollup: read_rollup(row)? })
                    };
                    rows.iter().map(read).collect()
                }
            })
            .await
        })
    }

    fn last_successes(
        &self,
        for_tenant: TenantId,
        asked: Vec<(WebhookId, Time)>,
    ) -> Answer<'_, Vec<(WebhookId, Time)>> {
        Box::pin(async move {
            let (webhooks, times): (Vec<_>, Vec<_>) =
                asked.into_iter().map(|(webhook, at)| (Col(webhook), Col(at))).unzip();
            self.list_for(&for_tenant, |session| {
                let (webhooks, times) = (&webhooks, &times);
                async move {
                    let rows = session.query(LAST_SUCCESSES, &[webhooks, times]).await?;
                    rows.iter().map(|row| Ok((get(row, 0)?, get(row, 1)?))).collect()
                }
            })
            .await
        })
    }

    fn traffic(&self, tenant: TenantId, grain: Grain, from: Time) -> Answer<'_, Vec<(Time, Traffic)>> {
        Box::pin(async move {
            self.list_for(&tenant, |session| {
                let tenant = &tenant;
                async move {
                    let rows = session.query(TRAFFIC, &[&tenant.as_str(), &Col(grain), &Col(from)]).await?;
                    rows.iter().map(|row| Ok((get(row, 8)?, read_traffic(row)?))).collect()
                }
            })
            .await
        })
    }

    fn failures(&self, tenant: TenantId, from: Time, most: usize) -> Answer<'_, Failures> {
        Box::pin(
            async move { self.list_for(&tenant, |session| failures(session, &tenant, from, most)).await },
        )
    }

    fn forget_rollups(&self, before: Time, limit: usize) -> Answer<'_, usize> {
        Box::pin(async move { self.forget(FORGET_ROLLUPS, before, limit).await })
    }

    fn forget_traffic(&self, now: Time, limit: usize) -> Answer<'_, usize> {
        Box::pin(async move { self.forget(FORGET_TRAFFIC, now, limit).await })
    }
}

impl Postgres {
    async fn forget(&self, statement: &str, time: Time, limit: usize) -> Result<usize, crate::StoreError> {
        let limit = limit as i64;
        let forgotten =
            self.write(|tx| async move { tx.execute(statement, &[&Col(time), &limit]).await }).await?;
        Ok(forgotten as usize)
    }
}

async fn failures(session: Tx, tenant: &TenantId, from: Time, most: usize) -> Result<Failures, Failure> {
    // One more than is to be looked at, to know whether there is more.
    let limit = i64::try_from(most).unwrap_or(i64::MAX).saturating_add(1);
    let (mut by_webhook, mut seen, mut earliest) = (Vec::new(), 0, None);
    for row in &session.query(FAILURES, &[&tenant.as_str(), &Col(from), &limit]).await? {
        by_webhook.push((get(row, 0)?, plain::<i64>(row, 1)?.unsigned_abs()));
        seen += plain::<i64>(row, 2)?;
        let minute: Time = get(row, 3)?;
        earliest = Some(earliest.map_or(minute, |before: Time| before.min(minute)));
    }
    Ok(Failures { by_webhook, only_since: earliest.filter(|_| seen == limit) })
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
    let ended = Ended { delivered: number(5)?, dead: number(6)?, cancelled: number(7)? };
    Ok(Traffic { sent: read_rollup(row)?, ended })
}

/// What is written of rollups, column by column.
#[derive(Default)]
struct Columns {
    attempts: Vec<i64>,
    successes: Vec<i64>,
    categories: Vec<Vec<u8>>,
    latencies: Vec<Vec<u8>>,
    last: Vec<Option<Col<Time>>>,
}

impl Columns {
    fn of<'a>(rollups: impl Iterator<Item = &'a Rollup>) -> Self {
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

/// Webhooks' minutes, in the order in which all nodes lock them.
type Minutes<'a> = BTreeMap<(WebhookId, Time), (&'a TenantId, Rollup)>;

/// Adds minutes to those that are there. Several nodes may add to the same ones: each makes and locks them in
/// order, so that none waits for another in a circle.
async fn add_minutes(tx: &Session, new: &[MinuteRollup]) -> Result<(), Failure> {
    let mut sums = Minutes::new();
    for one in new {
        sums.entry((one.webhook, one.minute))
            .and_modify(|(_, sum)| sum.merge(&one.rollup))
            .or_insert_with(|| (&one.tenant, one.rollup.clone()));
    }
    for row in &put_minutes(tx, NEW_ROLLUPS, &sums).await? {
        sums.remove(&(get(row, 0)?, get(row, 1)?));
    }
    if sums.is_empty() {
        return Ok(());
    }
    let (webhooks, minutes) = keys(&sums);
    for row in &tx.query(KNOWN_ROLLUPS, &[&webhooks, &minutes]).await? {
        if let Some((_, sum)) = sums.get_mut(&(get(row, 5)?, get(row, 6)?)) {
            sum.merge(&read_rollup(row)?);
        }
    }
    put_minutes(tx, SET_ROLLUPS, &sums).await?;
    Ok(())
}

fn keys(sums: &Minutes<'_>) -> (Vec<Col<WebhookId>>, Vec<Col<Time>>) {
    sums.keys().map(|(webhook, minute)| (Col(*webhook), Col(*minute))).unzip()
}

async fn put_minutes(tx: &Session, how: &str, sums: &Minutes<'_>) -> Result<Vec<Row>, Failure> {
    let (webhooks, minutes) = keys(sums);
    let tenants: Vec<_> = sums.values().map(|(tenant, _)| tenant.as_str()).collect();
    let Columns { attempts, successes, categories, latencies, last } =
        Columns::of(sums.values().map(|(_, sum)| sum));
    let values: Values<'_> =
        &[&webhooks, &minutes, &tenants, &attempts, &successes, &categories, &latencies, &last];
    tx.query(how, values).await
}

/// Tenants' minutes and hours, in the order in which all nodes lock them, each with the time until which it is kept.
type Sums = BTreeMap<(TenantId, i16, Time), (Time, Traffic)>;

/// As [`add_minutes`] does.
async fn add_traffic(tx: &Session, new: &[TenantRollup]) -> Result<(), Failure> {
    let mut sums = Sums::new();
    for one in new {
        sums.entry((one.tenant.clone(), one.grain.code(), one.start))
            .and_modify(|(_, sum)| sum.merge(&one.traffic))
            .or_insert_with(|| (one.kept_until, one.traffic.clone()));
    }
    for row in &put_traffic(tx, NEW_TRAFFIC, &sums).await? {
        sums.remove(&(get(row, 0)?, plain(row, 1)?, get(row, 2)?));
    }
    if sums.is_empty() {
        return Ok(());
    }
    let (tenants, grains, starts) = split(&sums);
    let known = tx.query(KNOWN_TRAFFIC, &[&tenants, &grains, &starts]).await?;
    for row in &known {
        if let Some((_, sum)) = sums.get_mut(&(get(row, 8)?, plain(row, 9)?, get(row, 10)?)) {
            sum.merge(&read_traffic(row)?);
        }
    }
    put_traffic(tx, SET_TRAFFIC, &sums).await?;
    Ok(())
}

type Split<'a> = (Vec<&'a str>, Vec<i16>, Vec<Col<Time>>);

fn split(sums: &Sums) -> Split<'_> {
    let mut split = Split::default();
    for (tenant, grain, start) in sums.keys() {
        split.0.push(tenant.as_str());
        split.1.push(*grain);
        split.2.push(Col(*start));
    }
    split
}

async fn put_traffic(tx: &Session, how: &str, sums: &Sums) -> Result<Vec<Row>, Failure> {
    let (tenants, grains, starts) = split(sums);
    let Columns { attempts, successes, categories, latencies, last } =
        Columns::of(sums.values().map(|(_, sum)| &sum.sent));
    let ended = |count: fn(&Ended) -> u64| -> Vec<i64> {
        sums.values().map(|(_, sum)| count(&sum.ended) as i64).collect()
    };
    let (delivered, dead, cancelled) =
        (ended(|ended| ended.delivered), ended(|ended| ended.dead), ended(|ended| ended.cancelled));
    let kept_until: Vec<_> = sums.values().map(|(until, _)| Col(*until)).collect();
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
        &kept_until,
    ];
    tx.query(how, values).await
}
