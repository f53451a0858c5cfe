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

/// What was committed since a mark. The new mark is the oldest transaction that still runs: whatever it
/// changes is told the next time, and what came after it once more.
pub(super) async fn since(session: &Session, since: Option<Mark>) -> Result<Changes, Failure> {
    let from = since.map_or(i64::MAX, |mark| mark.0);
    let rows = session
        .query(
            "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint, c.kind, c.tenant, c.webhook, c.delivery
             FROM (SELECT 1) one LEFT JOIN changes c ON c.xact >= $1::bigint::text::xid8",
            &[&from],
        )
        .await?;
    let mut told = Changes { mark: Mark(from), changes: Vec::new() };
    for row in &rows {
        told.mark = Mark(plain(row, 0)?);
        if plain::<Option<i16>>(row, 1)?.is_some() {
            told.changes.push(read(row)?);
        }
    }
    told.changes.sort();
    told.changes.dedup();
    Ok(told)
}

fn read(row: &Row) -> Result<Change, Failure> {
    let tenant = || get::<TenantId>(row, 2);
    let webhook = || get::<WebhookId>(row, 3);
    Ok(match plain::<i16>(row, 1)? {
        1 => Change::Webhook(tenant()?, webhook()?),
        2 => Change::Tenant(tenant()?),
        3 => Change::Keys,
        4 => Change::Gate(webhook()?),
        _ => Change::Cancel(webhook()?, get::<DeliveryId>(row, 4)?),
    })
}

pub(super) async fn forget(tx: &Session, before: Mark) -> Result<(), Failure> {
    tx.execute("DELETE FROM changes WHERE xact < $1::bigint::text::xid8", &[&before.0]).await?;
    Ok(())
}
