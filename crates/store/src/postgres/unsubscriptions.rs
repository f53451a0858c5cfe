//! Email addresses that unsubscribed from a kind of notification.

use redrive_core::{TenantId, Time, notification::NotificationKind};
use tokio_postgres::Row;

use super::{
    Postgres,
    convert::{Col, get, plain},
    session::{Failure, Tx},
    tenancy,
};
use crate::{PageRequest, StoreFuture, Unsubscription, UnsubscriptionCursor, Unsubscriptions};

impl Unsubscriptions for Postgres {
    fn unsubscribe(
        &self,
        tenant_id: TenantId,
        address: String,
        kind: NotificationKind,
        now: Time,
    ) -> StoreFuture<'_, bool> {
        Box::pin(async move { self.administer(|tx| unsubscribe(tx, &tenant_id, &address, kind, now)).await })
    }

    fn resubscribe(
        &self,
        tenant_id: TenantId,
        address: String,
        kind: Option<NotificationKind>,
    ) -> StoreFuture<'_, usize> {
        Box::pin(async move {
            let delete = "DELETE FROM unsubscriptions
                          WHERE tenant_id = $1 AND address = $2 AND ($3::text IS NULL OR kind = $3)";
            let (tenant_id, address, kind) = (&tenant_id, &address, kind.map(NotificationKind::name));
            let values = &(tenant_id.as_str(), address.as_str(), kind);
            let write = |tx: Tx| async move { tx.execute(delete, &[&values.0, &values.1, &values.2]).await };
            Ok(self.administer(write).await? as usize)
        })
    }

    fn unsubscribed(
        &self,
        tenant_id: TenantId,
        kind: NotificationKind,
        of: Vec<String>,
    ) -> StoreFuture<'_, Vec<String>> {
        Box::pin(async move {
            let found = "SELECT address FROM unsubscriptions
                         WHERE tenant_id = $1 AND kind = $2 AND address = ANY($3) ORDER BY address";
            let (tenant_id, of) = (&tenant_id, &of);
            self.read(|session| async move {
                let rows = session.query(found, &[&tenant_id.as_str(), &kind.name(), of]).await?;
                rows.iter().map(|row| plain(row, 0)).collect()
            })
            .await
        })
    }

    fn list_unsubscribed(
        &self,
        tenant_id: TenantId,
        page: PageRequest<UnsubscriptionCursor>,
    ) -> StoreFuture<'_, Vec<Unsubscription>> {
        Box::pin(async move { self.list_for(&tenant_id, |session| list(session, &tenant_id, &page)).await })
    }
}

async fn unsubscribe(
    tx: Tx,
    tenant_id: &TenantId,
    address: &str,
    kind: NotificationKind,
    now: Time,
) -> Result<bool, Failure> {
    // The lock prevents a concurrent deletion of the tenant, which would leave this row behind.
    tenancy::lock(&tx, tenant_id).await?;
    let note = "INSERT INTO unsubscriptions (tenant_id, address, kind, unsubscribed_at)
                SELECT id, $2, $3, $4 FROM tenants WHERE id = $1 AND deleted_at IS NULL ON CONFLICT DO NOTHING";
    let noted = tx.execute(note, &[&tenant_id.as_str(), &address, &kind.name(), &Col(now)]).await?;
    Ok(noted == 1)
}

async fn list(
    session: Tx,
    tenant_id: &TenantId,
    page: &PageRequest<UnsubscriptionCursor>,
) -> Result<Vec<Unsubscription>, Failure> {
    let (address, kind) =
        page.after.as_ref().map_or(("", ""), |after| (after.address.as_str(), after.kind.name()));
    let listed = "SELECT address, kind, unsubscribed_at FROM unsubscriptions WHERE tenant_id = $1
         AND (address, kind) > ($2, $3)
                  ORDER BY address, kind LIMIT $4 OFFSET $5";
    let (limit, offset) = (i64::from(page.limit), i64::from(page.offset));
    let rows = session.query(listed, &[&tenant_id.as_str(), &address, &kind, &limit, &offset]).await?;
    rows.iter().map(read).collect()
}

fn read(row: &Row) -> Result<Unsubscription, Failure> {
    let kind: &str = plain(row, 1)?;
    let kind = NotificationKind::parse(kind)
        .ok_or_else(|| Failure::InvalidData(format!("{kind:?} is not a kind of notification")))?;
    Ok(Unsubscription { address: plain(row, 0)?, kind, unsubscribed_at: get(row, 2)? })
}
