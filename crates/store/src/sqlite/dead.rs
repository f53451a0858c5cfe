//! Counting dead letters. Counting walks one index that has all it needs.

use std::collections::HashMap;

use redrive_core::{TenantId, Time, WebhookId};
use rusqlite::{Connection, Row, ToSql};

use super::{
    convert::Col,
    listing::{Sql, is_tenant_managed},
};
use crate::{
    DeadCount, DeadGroup, DeliveryFilter,
    access_path::{Lead, Range},
    codes::Code,
};

/// The newest dead letters of a tenant, in the order of the index that has all that is counted.
const NEWEST: &str = "SELECT webhook, event_type, category, reason, died_at FROM dead
     WHERE tenant = ? AND delivery >= ? AND delivery < ? ORDER BY delivery DESC LIMIT ?";
const IS_MORE: &str = "SELECT 1 FROM dead WHERE tenant = ? AND delivery >= ? AND delivery < ?
     ORDER BY delivery DESC LIMIT 1 OFFSET ?";

const SIZE: &str =
    "SELECT count(*) FROM (SELECT 1 FROM dead WHERE tenant = ? ORDER BY delivery DESC LIMIT ?)";

/// Counts those of the newest `most` that a filter wants: however rare they are, no more are looked at.
pub(super) fn count(
    connection: &Connection,
    tenant: &TenantId,
    filter: &DeliveryFilter,
    bounds: [Time; 2],
    most: usize,
) -> rusqlite::Result<DeadCount> {
    let Range { low, high } = Range::of_deliveries(Lead::Dead, filter, None);
    let mut sql = Sql::new(format!(
        "SELECT webhook, event_type, category, reason, (died_at <= ?) + (died_at <= ?) FROM ({NEWEST}) WHERE true"
    ));
    sql.and_any("webhook", filter.webhooks.iter().copied().map(Col));
    if filter.tenant_managed_only {
        sql.push(&format!(" AND {}", is_tenant_managed("webhook")));
    }
    sql.and_any("event_type", filter.event_types.iter().cloned());
    sql.and_any("category", filter.failure_categories.iter().copied().map(Col));
    sql.and_any("reason", filter.dead_reasons.iter().copied().map(Col));
    if let Some(ways) = filter.recoverable_ways() {
        sql.and_any("reason * 100 + coalesce(category, 0)", ways.into_iter().map(crate::codes::way));
    }
    let (bounds, tenant, most) = (bounds.map(Col), tenant.as_str(), most as i64);
    let mut values: Vec<&dyn ToSql> = vec![&bounds[0], &bounds[1], &tenant, &low, &high, &most];
    values.extend(sql.values());
    // Added up here: SQLite would sort them all first.
    let mut sums: HashMap<Kind, HashMap<String, u64>> = HashMap::new();
    let mut statement = connection.prepare_cached(&sql.text)?;
    let mut rows = statement.query(&values[..])?;
    while let Some(row) = rows.next()? {
        let by_type = sums.entry((row.get(0)?, row.get(2)?, row.get(3)?, row.get(4)?)).or_default();
        let event_type = row.get_ref(1)?.as_str()?;
        match by_type.get_mut(event_type) {
            Some(count) => *count += 1,
            None => drop(by_type.insert(event_type.to_owned(), 1)),
        }
    }
    let mut groups = Vec::new();
    for ((webhook, category, reason, age), by_type) in sums {
        for (event_type, count) in by_type {
            groups.push(DeadGroup {
                webhook: WebhookId::from_bytes(webhook),
                event_type,
                category: category.map(known).transpose()?,
                reason: known(reason)?,
                age,
                count,
            });
        }
    }
    let more = connection.prepare_cached(IS_MORE)?.exists((tenant, low, high, most))?;
    Ok(DeadCount { groups, more })
}

/// A webhook, how its deliveries failed, why they died, and when, as they are stored.
type Kind = ([u8; 16], Option<i16>, i16, u8);

/// What a small number stands for.
fn known<T: Code>(code: i16) -> rusqlite::Result<T> {
    T::of(code).ok_or(rusqlite::Error::IntegralValueOutOfRange(0, code.into()))
}

/// How many there are of a tenant, counted no further than `most`.
pub(super) fn size(connection: &Connection, tenant: &TenantId, most: usize) -> rusqlite::Result<usize> {
    let most = i64::try_from(most).unwrap_or(i64::MAX);
    let count = |row: &Row<'_>| row.get::<_, i64>(0);
    let counted = connection.prepare_cached(SIZE)?.query_row((tenant.as_str(), most), count)?;
    Ok(counted.unsigned_abs() as usize)
}

/// The statements that count, for a test that looks at their plans.
#[cfg(feature = "conformance")]
pub(super) fn planned() -> [(String, String); 2] {
    [("count the dead".into(), NEWEST.into()), ("more of the dead".into(), IS_MORE.into())]
}

/// One whose cost must follow what it counts: for another such test.
#[cfg(feature = "conformance")]
pub(super) const BOUNDED: [&str; 1] = [SIZE];
