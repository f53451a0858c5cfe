//! Counts of dead letters. Counting scans one index that contains all the columns it needs.

use redrive_core::{TenantId, Time};
use tokio_postgres::Row;

use super::{
    convert::{Col, get, get_opt, plain},
    listing::FilterValues,
    session::{Failure, Tx, Values},
};
use crate::{
    DeadCounts, DeadGroup, DeliveryFilter,
    access_path::{AccessPath, IdRange, ListedTenants},
};

/// Counts the matching rows among the newest $6 dead letters, in the order of an index that contains all columns
/// used. It reads no more than $6 rows even if few of them match.
const COUNT_DEAD: &str = "SELECT x.webhook_id, x.event_type, x.category, x.reason,
            (x.died_at <= $4)::int + (x.died_at <= $5)::int AS age, x.tenant_id, count(*)
     FROM (SELECT * FROM dead x WHERE x.tenant_id = $1 AND x.delivery_id >= $2 AND x.delivery_id < $3
           ORDER BY x.delivery_id DESC LIMIT $6) x
     WHERE ($7::uuid[] IS NULL OR x.webhook_id = ANY($7::uuid[]))
         AND ($8::text[] IS NULL OR x.event_type = ANY($8::text[]))
         AND ($9::smallint[] IS NULL OR x.category = ANY($9::smallint[]))
         AND ($10::smallint[] IS NULL OR x.reason = ANY($10::smallint[]))
         AND ($11::integer[] IS NULL OR x.reason * 100 + coalesce(x.category, 0) = ANY($11::integer[]))
         AND (NOT $12::boolean OR NOT coalesce(
             (SELECT h.managed_by_operator FROM webhooks h WHERE h.id = x.webhook_id LIMIT 1), false))
         AND ($13::bigint IS NULL OR x.died_at >= $13::bigint)
         AND ($14::bigint IS NULL OR x.died_at < $14::bigint)
     GROUP BY 1, 2, 3, 4, 5, 6";
const HAS_MORE_DEAD: &str =
    "SELECT 1 FROM dead x WHERE x.tenant_id = $1 AND x.delivery_id >= $2 AND x.delivery_id < $3
     ORDER BY x.delivery_id DESC LIMIT 1 OFFSET $4";
const COUNT_DEAD_UP_TO: &str = "SELECT count(*) FROM (SELECT 1 FROM dead x WHERE x.tenant_id = $1
     ORDER BY x.delivery_id DESC LIMIT $2) x";

/// Returns a statement over one tenant, or the same over all tenants, whose first parameter is null.
fn statement_for(tenants: ListedTenants<'_>, statement: &str) -> String {
    match tenants {
        ListedTenants::One(_) => statement.to_owned(),
        ListedTenants::All => statement.replace("x.tenant_id = $1", "$1::text IS NULL"),
    }
}

/// Statements over all tenants, for the same test.
#[cfg(feature = "conformance")]
pub(super) fn planned() -> Vec<(String, String)> {
    let all = |statement| statement_for(ListedTenants::All, statement);
    vec![
        ("count dead letters of all tenants".into(), all(COUNT_DEAD)),
        ("more dead letters of all tenants".into(), all(HAS_MORE_DEAD)),
    ]
}

/// Statements whose cost must be proportional to what they count; a test checks their query plans.
#[cfg(feature = "conformance")]
pub(super) const PLANNED_STATEMENTS: [(&str, &str); 3] = [
    ("count dead letters", COUNT_DEAD),
    ("more dead letters", HAS_MORE_DEAD),
    ("count dead letters up to a limit", COUNT_DEAD_UP_TO),
];

pub(super) async fn count(
    session: Tx,
    tenants: ListedTenants<'_>,
    filter: &DeliveryFilter,
    bounds: [Time; 2],
    max: usize,
) -> Result<DeadCounts, Failure> {
    let IdRange { low, high } = IdRange::for_deliveries(AccessPath::Dead, filter, None);
    let query = FilterValues::new(filter, AccessPath::Dead);
    let tenant = tenants.one().map(TenantId::as_str);
    let rows = session
        .query(
            &statement_for(tenants, COUNT_DEAD),
            &[
                &tenant,
                &Col(low),
                &Col(high),
                &Col(bounds[0]),
                &Col(bounds[1]),
                &(max as i64),
                &query.webhooks,
                &query.types,
                &query.categories,
                &query.reasons,
                &query.ways,
                &query.tenant_managed_only,
                &query.failed_from,
                &query.failed_to,
            ],
        )
        .await?;
    let read = |row: &Row| {
        Ok::<_, Failure>(DeadGroup {
            tenant_id: get(row, 5)?,
            webhook_id: get(row, 0)?,
            event_type: plain(row, 1)?,
            category: get_opt(row, 2)?,
            reason: get(row, 3)?,
            age: plain::<i32>(row, 4)? as u8,
            count: plain::<i64>(row, 6)?.unsigned_abs(),
        })
    };
    let groups = rows.iter().map(read).collect::<Result<_, _>>()?;
    let beyond: Values<'_> = &[&tenant, &Col(low), &Col(high), &(max as i64)];
    let more = session.exists(&statement_for(tenants, HAS_MORE_DEAD), beyond).await?;
    Ok(DeadCounts { groups, more })
}

/// Counts the dead letters of a tenant, up to the given maximum.
pub(super) async fn size(session: Tx, tenant_id: &TenantId, max: usize) -> Result<usize, Failure> {
    let max = i64::try_from(max).unwrap_or(i64::MAX);
    let row = session.query_one(COUNT_DEAD_UP_TO, &[&tenant_id.as_str(), &max]).await?;
    Ok(plain::<i64>(&row, 0)?.unsigned_abs() as usize)
}
