//! Counting dead letters, and how many deliveries end. Counting walks one index that has all it needs.

use redrive_core::{TenantId, Time};
use tokio_postgres::Row;

use super::{
    convert::{Col, get, get_opt, plain},
    listing::Asked,
    session::{Failure, Session, Tx, Values},
};
use crate::{
    DeadCount, DeadGroup, DeliveryFilter, Ended, EndedSlot,
    lead::{Lead, Range},
};

/// Of the newest dead letters, in the order of the index that has all that is counted, those that are wanted:
/// however rare they are, no more are looked at.
const COUNT: &str = "SELECT x.webhook, x.event_type, x.category, x.reason,
            (x.died_at <= $4)::int + (x.died_at <= $5)::int AS age, count(*)
     FROM (SELECT * FROM dead x WHERE x.tenant = $1 AND x.delivery >= $2 AND x.delivery < $3
           ORDER BY x.delivery DESC LIMIT $6) x
     WHERE ($7::uuid[] IS NULL OR x.webhook = ANY($7::uuid[]))
         AND ($8::text[] IS NULL OR x.event_type = ANY($8::text[]))
         AND ($9::smallint[] IS NULL OR x.category = ANY($9::smallint[]))
         AND ($10::smallint[] IS NULL OR x.reason = ANY($10::smallint[]))
         AND ($11::integer[] IS NULL OR x.reason * 100 + coalesce(x.category, 0) = ANY($11::integer[]))
     GROUP BY 1, 2, 3, 4, 5";
const IS_MORE: &str = "SELECT 1 FROM dead x WHERE x.tenant = $1 AND x.delivery >= $2 AND x.delivery < $3
     ORDER BY x.delivery DESC LIMIT 1 OFFSET $4";
const ADD: &str = "INSERT INTO ended VALUES ($1, $2, $3, $4, $5) ON CONFLICT (tenant, slot) DO UPDATE SET
         delivered = ended.delivered + excluded.delivered, dead = ended.dead + excluded.dead,
         cancelled = ended.cancelled + excluded.cancelled";
const ENDED: &str =
    "SELECT slot, delivered, dead, cancelled FROM ended WHERE tenant = $1 AND slot >= $2 ORDER BY slot";
const FORGET: &str = "DELETE FROM ended WHERE ctid = ANY(ARRAY(
         SELECT ctid FROM ended WHERE slot < $1 ORDER BY slot LIMIT $2 FOR UPDATE SKIP LOCKED))";

/// The statements whose cost must follow what they count: a test explains their plans.
#[cfg(feature = "conformance")]
pub(super) const PLANNED: [(&str, &str); 4] = [
    ("count the dead", COUNT),
    ("more of the dead", IS_MORE),
    ("what ended", ENDED),
    ("forget what ended", FORGET),
];

pub(super) async fn count(
    session: Tx,
    tenant: &TenantId,
    filter: &DeliveryFilter,
    bounds: [Time; 2],
    most: usize,
) -> Result<DeadCount, Failure> {
    let Range { low, high } = Range::of_deliveries(Lead::Dead, filter, None);
    let asked = Asked::of(filter, Lead::Dead);
    let rows = session
        .query(
            COUNT,
            &[
                &tenant.as_str(),
                &Col(low),
                &Col(high),
                &Col(bounds[0]),
                &Col(bounds[1]),
                &(most as i64),
                &asked.webhooks,
                &asked.types,
                &asked.categories,
                &asked.reasons,
                &asked.ways,
            ],
        )
        .await?;
    let read = |row: &Row| {
        Ok::<_, Failure>(DeadGroup {
            webhook: get(row, 0)?,
            event_type: plain(row, 1)?,
            category: get_opt(row, 2)?,
            reason: get(row, 3)?,
            age: plain::<i32>(row, 4)? as u8,
            count: plain::<i64>(row, 5)?.unsigned_abs(),
        })
    };
    let groups = rows.iter().map(read).collect::<Result<_, _>>()?;
    let beyond: Values<'_> = &[&tenant.as_str(), &Col(low), &Col(high), &(most as i64)];
    Ok(DeadCount { groups, more: session.exists(IS_MORE, beyond).await? })
}

/// In the order of tenants and times, so that nodes that add at once do not wait for one another in a circle.
pub(super) async fn add(tx: &Session, ended: &[EndedSlot]) -> Result<(), Failure> {
    let mut ended: Vec<_> = ended.iter().collect();
    ended.sort_by(|a, b| (a.tenant.as_str(), a.slot).cmp(&(b.tenant.as_str(), b.slot)));
    for one in ended {
        let Ended { delivered, dead, cancelled } = one.ended;
        let [delivered, dead, cancelled] = [delivered, dead, cancelled].map(|count| count as i64);
        tx.execute(ADD, &[&one.tenant.as_str(), &Col(one.slot), &delivered, &dead, &cancelled]).await?;
    }
    Ok(())
}

pub(super) async fn ended(session: Tx, tenant: &TenantId, from: Time) -> Result<Vec<(Time, Ended)>, Failure> {
    let count = |row: &Row, column| plain::<i64>(row, column).map(i64::unsigned_abs);
    let rows = session.query(ENDED, &[&tenant.as_str(), &Col(from)]).await?;
    let read = |row: &Row| {
        let ended = Ended { delivered: count(row, 1)?, dead: count(row, 2)?, cancelled: count(row, 3)? };
        Ok((get(row, 0)?, ended))
    };
    rows.iter().map(read).collect()
}

pub(super) async fn forget(tx: &Session, before: Time, limit: usize) -> Result<usize, Failure> {
    Ok(tx.execute(FORGET, &[&Col(before), &(limit as i64)]).await? as usize)
}
