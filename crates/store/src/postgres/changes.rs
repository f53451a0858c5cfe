//! The row of changes that every node should know of.

use redrive_core::{DeliveryId, TenantId, WebhookId};
use tokio_postgres::Row;

use super::{
    convert::{Col, get, plain},
    session::{Failure, Session},
};
use crate::{Change, Changes, Mark};

/// Adds a change to the row.
pub(super) async fn tell(tx: &Session, change: &Change) -> Result<(), Failure> {
    let (kind, tenant, webhook, delivery) = match change {
        Change::Webhook(tenant, webhook) => (1i16, Some(tenant), Some(*webhook), None),
        Change::Tenant(tenant) => (2, Some(tenant), None, None),
        Change::Keys => (3, None, None, None),
        Change::Gate(webhook) => (4, None, Some(*webhook), None),
        Change::Cancel(webhook, delivery) => (5, None, Some(*webhook), Some(*delivery)),
    };
    let tenant = tenant.map(TenantId::as_str);
    tx.execute(
        "INSERT INTO changes (kind, tenant, webhook, delivery) VALUES ($1, $2, $3, $4)",
        &[&kind, &tenant, &webhook.map(Col), &delivery.map(Col)],
    )
    .await?;
    Ok(())
}

/// The snapshot that a read sees, and the oldest transaction that still runs.
const SNAPSHOT: &str =
    "SELECT pg_current_snapshot()::text, pg_snapshot_xmin(pg_current_snapshot())::text::bigint";
/// The same, with what was committed since the snapshot $1 was taken: changes of transactions that ran then, and of later
/// ones. Changes that $1 saw are not read again, however long another transaction keeps the oldest one from advancing.
const SINCE: &str =
    "SELECT pg_current_snapshot()::text, pg_snapshot_xmin(pg_current_snapshot())::text::bigint, c.*
     FROM (SELECT 1) one LEFT JOIN (
         SELECT kind, tenant, webhook, delivery FROM changes
         WHERE xact >= pg_snapshot_xmax($1::text::pg_snapshot)
         UNION ALL
         SELECT kind, tenant, webhook, delivery FROM changes
         WHERE xact = ANY(ARRAY(SELECT pg_snapshot_xip($1::text::pg_snapshot)))) c ON true";

/// The statements whose cost must follow what is new: a test explains their plans.
#[cfg(feature = "conformance")]
pub(super) const PLANNED: [(&str, &str); 1] = [("changes since a snapshot", SINCE)];

/// What was committed since a mark, each change once.
pub(super) async fn since(session: &Session, since: Option<Mark>) -> Result<Changes, Failure> {
    let Some(seen) = since.and_then(|mark| mark.snapshot) else {
        let mark = read_mark(&session.query_one(SNAPSHOT, &[]).await?)?;
        return Ok(Changes { mark, changes: Vec::new() });
    };
    let rows = session.query(SINCE, &[&&*seen]).await?;
    let first = rows.first().ok_or_else(|| Failure::Bad("the change feed returned no snapshot".into()))?;
    let mark = read_mark(first)?;
    let mut changes = Vec::new();
    for row in &rows {
        if plain::<Option<i16>>(row, 2)?.is_some() {
            changes.push(read(row)?);
        }
    }
    changes.sort();
    changes.dedup();
    Ok(Changes { mark, changes })
}

fn read_mark(row: &Row) -> Result<Mark, Failure> {
    Ok(Mark { snapshot: Some(plain::<String>(row, 0)?.into()), position: plain(row, 1)? })
}

fn read(row: &Row) -> Result<Change, Failure> {
    let tenant = || get::<TenantId>(row, 3);
    let webhook = || get::<WebhookId>(row, 4);
    Ok(match plain::<i16>(row, 2)? {
        1 => Change::Webhook(tenant()?, webhook()?),
        2 => Change::Tenant(tenant()?),
        3 => Change::Keys,
        4 => Change::Gate(webhook()?),
        _ => Change::Cancel(webhook()?, get::<DeliveryId>(row, 5)?),
    })
}

pub(super) async fn forget(tx: &Session, before: &Mark) -> Result<(), Failure> {
    // Rows that another node deletes at the moment are left to it.
    let forget = "DELETE FROM changes WHERE ctid = ANY(ARRAY(
             SELECT ctid FROM changes WHERE xact < $1::bigint::text::xid8 FOR UPDATE SKIP LOCKED))";
    tx.execute(forget, &[&before.position]).await?;
    Ok(())
}
