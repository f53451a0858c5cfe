//! The change feed, from which nodes read what other nodes have changed. A store that is not shared has one node,
//! which knows its own changes: nothing is written then, since nothing would read or prune it.

use redrive_core::{DeliveryId, TenantId, WebhookId};
use rusqlite::{Connection, Row, Transaction};

use super::{
    convert::{Col, get},
    transaction::WriteTransaction,
};
use crate::{Change, ChangeCursor, Changes};

/// Appends a change to the feed, if the store is shared.
pub(super) fn append(transaction: &WriteTransaction<'_>, change: &Change) -> rusqlite::Result<()> {
    if !transaction.writes_change_feed() {
        return Ok(());
    }
    let (kind, tenant_id, webhook_id, delivery_id) = match change {
        Change::Webhook(tenant_id, webhook_id) => (1, Some(tenant_id), Some(*webhook_id), None),
        Change::Tenant(tenant_id) => (2, Some(tenant_id), None, None),
        Change::Keys => (3, None, None, None),
        Change::Runtime(webhook_id) => (4, None, Some(*webhook_id), None),
        Change::Cancel(webhook_id, delivery_id) => (5, None, Some(*webhook_id), Some(*delivery_id)),
    };
    transaction
        .prepare_cached(
            "INSERT INTO change_log (kind, tenant_id, webhook_id, delivery_id) VALUES (?, ?, ?, ?)",
        )?
        .execute((kind, tenant_id.map(TenantId::as_str), webhook_id.map(Col), delivery_id.map(Col)))?;
    Ok(())
}

pub(super) fn read_since(connection: &Connection, since: Option<&ChangeCursor>) -> rusqlite::Result<Changes> {
    let Some(since) = since else {
        let mark =
            connection.query_row("SELECT ifnull(max(number), 0) FROM change_log", (), |row| row.get(0))?;
        return Ok(Changes { cursor: ChangeCursor::at(mark), changes: Vec::new() });
    };
    let mut changed = connection.prepare_cached(
        "SELECT kind, tenant_id, webhook_id, delivery_id, number FROM change_log WHERE number > ? ORDER BY number",
    )?;
    let mut rows = changed.query([since.position])?;
    let mut reported = Changes { cursor: since.clone(), changes: Vec::new() };
    while let Some(row) = rows.next()? {
        reported.cursor = ChangeCursor::at(row.get(4)?);
        reported.changes.push(read(row)?);
    }
    reported.changes.sort();
    reported.changes.dedup();
    Ok(reported)
}

fn read(row: &Row<'_>) -> rusqlite::Result<Change> {
    let tenant = || get::<TenantId>(row, 1);
    let webhook = || get::<WebhookId>(row, 2);
    Ok(match row.get::<_, i64>(0)? {
        1 => Change::Webhook(tenant()?, webhook()?),
        2 => Change::Tenant(tenant()?),
        3 => Change::Keys,
        4 => Change::Runtime(webhook()?),
        _ => Change::Cancel(webhook()?, get::<DeliveryId>(row, 3)?),
    })
}

pub(super) fn prune(transaction: &Transaction<'_>, before: &ChangeCursor) -> rusqlite::Result<()> {
    transaction.execute("DELETE FROM change_log WHERE number < ?", [before.position])?;
    Ok(())
}

/// Deletes all changes. Earlier versions also wrote them for stores that are not shared.
pub(super) fn delete_all(connection: &Connection) -> rusqlite::Result<usize> {
    // Without WHERE: SQLite then frees whole pages instead of deleting row by row.
    connection.execute("DELETE FROM change_log", ())
}
