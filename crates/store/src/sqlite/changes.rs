//! The change feed, which nodes read to learn what other nodes have changed. A store that is not shared has one
//! node, which knows its own changes: nothing is written then, since nothing would read or prune it.

use redrive_core::{DeliveryId, TenantId, WebhookId};
use rusqlite::{Connection, Row, Transaction};

use super::{
    convert::{Col, get},
    transaction::WriteTransaction,
};
use crate::{Change, Changes, Mark};

/// Adds a change to the feed, if the store is shared.
pub(super) fn tell(transaction: &WriteTransaction<'_>, change: &Change) -> rusqlite::Result<()> {
    if !transaction.writes_change_feed() {
        return Ok(());
    }
    let (kind, tenant, webhook, delivery) = match change {
        Change::Webhook(tenant, webhook) => (1, Some(tenant), Some(*webhook), None),
        Change::Tenant(tenant) => (2, Some(tenant), None, None),
        Change::Keys => (3, None, None, None),
        Change::Gate(webhook) => (4, None, Some(*webhook), None),
        Change::Cancel(webhook, delivery) => (5, None, Some(*webhook), Some(*delivery)),
    };
    transaction
        .prepare_cached("INSERT INTO changes (kind, tenant, webhook, delivery) VALUES (?, ?, ?, ?)")?
        .execute((kind, tenant.map(TenantId::as_str), webhook.map(Col), delivery.map(Col)))?;
    Ok(())
}

pub(super) fn since(connection: &Connection, since: Option<&Mark>) -> rusqlite::Result<Changes> {
    let Some(since) = since else {
        let mark =
            connection.query_row("SELECT ifnull(max(number), 0) FROM changes", (), |row| row.get(0))?;
        return Ok(Changes { mark: Mark::at(mark), changes: Vec::new() });
    };
    let mut changed = connection.prepare_cached(
        "SELECT kind, tenant, webhook, delivery, number FROM changes WHERE number > ? ORDER BY number",
    )?;
    let mut rows = changed.query([since.position])?;
    let mut told = Changes { mark: since.clone(), changes: Vec::new() };
    while let Some(row) = rows.next()? {
        told.mark = Mark::at(row.get(4)?);
        told.changes.push(read(row)?);
    }
    told.changes.sort();
    told.changes.dedup();
    Ok(told)
}

fn read(row: &Row<'_>) -> rusqlite::Result<Change> {
    let tenant = || get::<TenantId>(row, 1);
    let webhook = || get::<WebhookId>(row, 2);
    Ok(match row.get::<_, i64>(0)? {
        1 => Change::Webhook(tenant()?, webhook()?),
        2 => Change::Tenant(tenant()?),
        3 => Change::Keys,
        4 => Change::Gate(webhook()?),
        _ => Change::Cancel(webhook()?, get::<DeliveryId>(row, 3)?),
    })
}

pub(super) fn forget(transaction: &Transaction<'_>, before: &Mark) -> rusqlite::Result<()> {
    transaction.execute("DELETE FROM changes WHERE number < ?", [before.position])?;
    Ok(())
}

/// Deletes all changes. Versions before this one wrote them for stores that are not shared, too.
pub(super) fn delete_all(connection: &Connection) -> rusqlite::Result<usize> {
    // Without WHERE: SQLite then frees whole pages instead of deleting row by row.
    connection.execute("DELETE FROM changes", ())
}
