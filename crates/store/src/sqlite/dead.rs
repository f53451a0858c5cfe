//! Counts of dead letters. Counting scans one index that contains all the columns it needs.

use std::collections::{HashMap, hash_map::Entry};

use redrive_core::{TenantId, Time, WebhookId};
use rusqlite::{Connection, Row, ToSql};

use super::{
    convert::{Col, get},
    listing::{Sql, is_tenant_managed},
};
use crate::{
    DeadCounts, DeadGroup, DeliveryFilter,
    access_path::{AccessPath, IdRange, ListedTenants},
    codes::Code,
};

/// Newest dead letters of a tenant, in the order of an index that contains all columns used.
const SELECT_NEWEST_DEAD: &str =
    "SELECT webhook_id, event_type, category, reason, died_at, tenant_id FROM dead
     WHERE tenant_id = ? AND delivery_id >= ? AND delivery_id < ? ORDER BY delivery_id DESC LIMIT ?";
const HAS_MORE_DEAD: &str = "SELECT 1 FROM dead WHERE tenant_id = ? AND delivery_id >= ? AND delivery_id < ?
     ORDER BY delivery_id DESC LIMIT 1 OFFSET ?";

/// Returns a statement over one tenant, or the same over all tenants, whose first parameter is null.
fn statement_for(tenants: ListedTenants<'_>, statement: &str) -> String {
    match tenants {
        ListedTenants::One(_) => statement.to_owned(),
        ListedTenants::All => statement.replace("tenant_id = ?", "? IS NULL"),
    }
}

const COUNT_DEAD_UP_TO: &str =
    "SELECT count(*) FROM (SELECT 1 FROM dead WHERE tenant_id = ? ORDER BY delivery_id DESC LIMIT ?)";

/// Counts the rows that match a filter among the newest dead letters. It reads no more than the given maximum even
/// if few of them match.
pub(super) fn count(
    connection: &Connection,
    tenants: ListedTenants<'_>,
    filter: &DeliveryFilter,
    bounds: [Time; 2],
    max: usize,
) -> rusqlite::Result<DeadCounts> {
    let IdRange { low, high } = IdRange::for_deliveries(AccessPath::Dead, filter, None);
    let newest = statement_for(tenants, SELECT_NEWEST_DEAD);
    let mut sql = Sql::new(format!(
        "SELECT webhook_id, event_type, category, reason, (died_at <= ?) + (died_at <= ?), tenant_id
         FROM ({newest}) WHERE true"
    ));
    sql.and_any("webhook_id", filter.webhooks.iter().copied().map(Col));
    if filter.tenant_managed_only {
        sql.push(&format!(" AND {}", is_tenant_managed("webhook_id")));
    }
    sql.and_any("event_type", filter.event_types.iter().cloned());
    sql.and_any("category", filter.failure_categories.iter().copied().map(Col));
    sql.and_any("reason", filter.dead_reasons.iter().copied().map(Col));
    sql.and_opt("died_at >= ?", filter.failed_from.map(Col));
    sql.and_opt("died_at < ?", filter.failed_to.map(Col));
    if let Some(combinations) = filter.recoverable_codes() {
        sql.and_any(
            "reason * 100 + coalesce(category, 0)",
            combinations.into_iter().map(crate::codes::death_code),
        );
    }
    let (bounds, tenant, max) = (bounds.map(Col), tenants.one().map(TenantId::as_str), max as i64);
    let mut values: Vec<&dyn ToSql> = vec![&bounds[0], &bounds[1], &tenant, &low, &high, &max];
    values.extend(sql.values());
    // Grouped here: SQLite would sort all rows first.
    let mut sums: HashMap<Kind, (TenantId, HashMap<String, u64>)> = HashMap::new();
    let mut statement = connection.prepare_cached(&sql.text)?;
    let mut rows = statement.query(&values[..])?;
    while let Some(row) = rows.next()? {
        let by_type = match sums.entry((row.get(0)?, row.get(2)?, row.get(3)?, row.get(4)?)) {
            Entry::Occupied(of_kind) => &mut of_kind.into_mut().1,
            Entry::Vacant(new) => &mut new.insert((get(row, 5)?, HashMap::new())).1,
        };
        let event_type = row.get_ref(1)?.as_str()?;
        match by_type.get_mut(event_type) {
            Some(count) => *count += 1,
            None => drop(by_type.insert(event_type.to_owned(), 1)),
        }
    }
    let mut groups = Vec::new();
    for ((webhook, category, reason, age), (tenant_id, by_type)) in sums {
        for (event_type, count) in by_type {
            groups.push(DeadGroup {
                tenant_id: tenant_id.clone(),
                webhook_id: WebhookId::from_bytes(webhook),
                event_type,
                category: category.map(known).transpose()?,
                reason: known(reason)?,
                age,
                count,
            });
        }
    }
    let more = connection
        .prepare_cached(&statement_for(tenants, HAS_MORE_DEAD))?
        .exists((tenant, low, high, max))?;
    Ok(DeadCounts { groups, more })
}

/// Stored values of a group: webhook, failure category, reason and age bucket.
type Kind = ([u8; 16], Option<i16>, i16, u8);

/// Decodes a stored code.
fn known<T: Code>(code: i16) -> rusqlite::Result<T> {
    T::from_code(code).ok_or(rusqlite::Error::IntegralValueOutOfRange(0, code.into()))
}

/// Counts the dead letters of a tenant, up to the given maximum.
pub(super) fn size(connection: &Connection, tenant_id: &TenantId, max: usize) -> rusqlite::Result<usize> {
    let max = i64::try_from(max).unwrap_or(i64::MAX);
    let count = |row: &Row<'_>| row.get::<_, i64>(0);
    let counted = connection.prepare_cached(COUNT_DEAD_UP_TO)?.query_row((tenant_id.as_str(), max), count)?;
    Ok(counted.unsigned_abs() as usize)
}

/// Returns the counting statements; a test checks their query plans.
#[cfg(feature = "conformance")]
pub(super) fn planned() -> [(String, String); 4] {
    let all = |statement| statement_for(ListedTenants::All, statement);
    [
        ("count dead letters".into(), SELECT_NEWEST_DEAD.into()),
        ("more dead letters".into(), HAS_MORE_DEAD.into()),
        ("count dead letters of all tenants".into(), all(SELECT_NEWEST_DEAD)),
        ("more dead letters of all tenants".into(), all(HAS_MORE_DEAD)),
    ]
}

/// Statement whose cost must be proportional to what it counts; a test checks its query plan.
#[cfg(feature = "conformance")]
pub(super) const BOUNDED_STATEMENTS: [&str; 1] = [COUNT_DEAD_UP_TO];
