//! Addresses that do not want to hear of something any more.

use redrive_core::{TenantId, Time, notification::Kind};
use tokio_postgres::Row;

use super::{
    Postgres,
    convert::{Col, get, plain},
    session::{Failure, Tx},
    tenancy,
};
use crate::{Answer, PageRequest, Unsubscribed, UnsubscribedCursor, Unsubscribing};

impl Unsubscribing for Postgres {
    fn unsubscribe(&self, tenant: TenantId, address: String, kind: Kind, now: Time) -> Answer<'_, bool> {
        Box::pin(async move { self.administer(|tx| unsubscribe(tx, &tenant, &address, kind, now)).await })
    }

    fn resubscribe(&self, tenant: TenantId, address: String, kind: Option<Kind>) -> Answer<'_, usize> {
        Box::pin(async move {
            let delete = "DELETE FROM unsubscribed
                          WHERE tenant = $1 AND address = $2 AND ($3::text IS NULL OR kind = $3)";
            let (tenant, address, kind) = (&tenant, &address, kind.map(Kind::name));
            let values = &(tenant.as_str(), address.as_str(), kind);
            let write = |tx: Tx| async move { tx.execute(delete, &[&values.0, &values.1, &values.2]).await };
            Ok(self.administer(write).await? as usize)
        })
    }

    fn unsubscribed(&self, tenant: TenantId, kind: Kind, of: Vec<String>) -> Answer<'_, Vec<String>> {
        Box::pin(async move {
            let found = "SELECT address FROM unsubscribed
                         WHERE tenant = $1 AND kind = $2 AND address = ANY($3) ORDER BY address";
            let (tenant, of) = (&tenant, &of);
            self.read(|session| async move {
                let rows = session.query(found, &[&tenant.as_str(), &kind.name(), of]).await?;
                rows.iter().map(|row| plain(row, 0)).collect()
            })
            .await
        })
    }

    fn list_unsubscribed(
        &self,
        tenant: TenantId,
        page: PageRequest<UnsubscribedCursor>,
    ) -> Answer<'_, Vec<Unsubscribed>> {
        Box::pin(async move { self.list_for(&tenant, |session| list(session, &tenant, &page)).await })
    }
}

async fn unsubscribe(
    tx: Tx,
    tenant: &TenantId,
    address: &str,
    kind: Kind,
    now: Time,
) -> Result<bool, Failure> {
    // Nobody deletes it meanwhile, and leaves this behind.
    tenancy::lock(&tx, tenant).await?;
    let note = "INSERT INTO unsubscribed (tenant, address, kind, at)
                SELECT id, $2, $3, $4 FROM tenants WHERE id = $1 AND deleted_at IS NULL ON CONFLICT DO NOTHING";
    let noted = tx.execute(note, &[&tenant.as_str(), &address, &kind.name(), &Col(now)]).await?;
    Ok(noted == 1)
}

async fn list(
    session: Tx,
    tenant: &TenantId,
    page: &PageRequest<UnsubscribedCursor>,
) -> Result<Vec<Unsubscribed>, Failure> {
    let (address, kind) =
        page.after.as_ref().map_or(("", ""), |after| (after.address.as_str(), after.kind.name()));
    let listed = "SELECT address, kind, at FROM unsubscribed WHERE tenant = $1 AND (address, kind) > ($2, $3)
                  ORDER BY address, kind LIMIT $4 OFFSET $5";
    let (limit, offset) = (i64::from(page.limit), i64::from(page.offset));
    let rows = session.query(listed, &[&tenant.as_str(), &address, &kind, &limit, &offset]).await?;
    rows.iter().map(read).collect()
}

fn read(row: &Row) -> Result<Unsubscribed, Failure> {
    let kind: &str = plain(row, 1)?;
    let kind = Kind::parse(kind).ok_or_else(|| Failure::Bad(format!("{kind:?} is no kind of notice")))?;
    Ok(Unsubscribed { address: plain(row, 0)?, kind, at: get(row, 2)? })
}
