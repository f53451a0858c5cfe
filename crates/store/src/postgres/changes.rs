//! The change feed: configuration and runtime changes that every node reads.

use redrive_core::{DeliveryId, TenantId, WebhookId};
use tokio_postgres::Row;

use super::{
    convert::{Col, get, plain},
    session::{Failure, Session},
};
use crate::{Change, ChangeCursor, Changes};

/// Appends a change to the feed.
pub(super) async fn append(tx: &Session, change: &Change) -> Result<(), Failure> {
    let (kind, tenant_id, webhook_id, delivery_id) = match change {
        Change::Webhook(tenant_id, webhook_id) => (1i16, Some(tenant_id), Some(*webhook_id), None),
        Change::Tenant(tenant_id) => (2, Some(tenant_id), None, None),
        Change::Keys => (3, None, None, None),
        Change::Runtime(webhook_id) => (4, None, Some(*webhook_id), None),
        Change::Cancel(webhook_id, delivery_id) => (5, None, Some(*webhook_id), Some(*delivery_id)),
    };
    let tenant = tenant_id.map(TenantId::as_str);
    tx.execute(
        "INSERT INTO change_log (kind, tenant_id, webhook_id, delivery_id) VALUES ($1, $2, $3, $4)",
        &[&kind, &tenant, &webhook_id.map(Col), &delivery_id.map(Col)],
    )
    .await?;
    Ok(())
}

/// Snapshot of the read, and the oldest transaction that is still running in it.
const SELECT_SNAPSHOT: &str =
    "SELECT pg_current_snapshot()::text, pg_snapshot_xmin(pg_current_snapshot())::text::bigint";
/// Same columns as `SELECT_SNAPSHOT`, plus the changes committed since snapshot $1 was taken: those of transactions that
/// were running then and those of later ones. Changes visible in $1 are not read again, even if a long transaction
/// keeps xmin from advancing.
const SELECT_CHANGES_SINCE: &str =
    "SELECT pg_current_snapshot()::text, pg_snapshot_xmin(pg_current_snapshot())::text::bigint, c.*
     FROM (SELECT 1) one LEFT JOIN (
         SELECT kind, tenant_id, webhook_id, delivery_id FROM change_log
         WHERE xact >= pg_snapshot_xmax($1::text::pg_snapshot)
         UNION ALL
         SELECT kind, tenant_id, webhook_id, delivery_id FROM change_log
         WHERE xact = ANY(ARRAY(SELECT pg_snapshot_xip($1::text::pg_snapshot)))) c ON true";

/// Statements whose cost must be proportional to the new changes; a test checks their query plans.
#[cfg(feature = "conformance")]
pub(super) const PLANNED_STATEMENTS: [(&str, &str); 1] = [("changes since a snapshot", SELECT_CHANGES_SINCE)];

/// Returns the changes committed since a cursor, each one once.
pub(super) async fn read_since(session: &Session, since: Option<ChangeCursor>) -> Result<Changes, Failure> {
    let Some(seen) = since.and_then(|cursor| cursor.snapshot) else {
        let cursor = read_mark(&session.query_one(SELECT_SNAPSHOT, &[]).await?)?;
        return Ok(Changes { cursor, changes: Vec::new() });
    };
    let rows = session.query(SELECT_CHANGES_SINCE, &[&&*seen]).await?;
    let first =
        rows.first().ok_or_else(|| Failure::InvalidData("the change feed returned no snapshot".into()))?;
    let cursor = read_mark(first)?;
    let mut changes = Vec::new();
    for row in &rows {
        if plain::<Option<i16>>(row, 2)?.is_some() {
            changes.push(read(row)?);
        }
    }
    changes.sort();
    changes.dedup();
    Ok(Changes { cursor, changes })
}

fn read_mark(row: &Row) -> Result<ChangeCursor, Failure> {
    Ok(ChangeCursor { snapshot: Some(plain::<String>(row, 0)?.into()), position: plain(row, 1)? })
}

fn read(row: &Row) -> Result<Change, Failure> {
    let tenant = || get::<TenantId>(row, 3);
    let webhook = || get::<WebhookId>(row, 4);
    Ok(match plain::<i16>(row, 2)? {
        1 => Change::Webhook(tenant()?, webhook()?),
        2 => Change::Tenant(tenant()?),
        3 => Change::Keys,
        4 => Change::Runtime(webhook()?),
        _ => Change::Cancel(webhook()?, get::<DeliveryId>(row, 5)?),
    })
}

pub(super) async fn prune(tx: &Session, before: &ChangeCursor) -> Result<(), Failure> {
    // Rows that another node is deleting are skipped.
    let delete = "DELETE FROM change_log WHERE ctid = ANY(ARRAY(
             SELECT ctid FROM change_log WHERE xact < $1::bigint::text::xid8 FOR UPDATE SKIP LOCKED))";
    tx.execute(delete, &[&before.position]).await?;
    Ok(())
}
