//! Email addresses that unsubscribed from a kind of notification.

use redrive_core::{TenantId, Time, notification::NotificationKind};
use rusqlite::{Row, types::Type};

use super::{
    Sqlite,
    convert::{Col, get},
};
use crate::{PageRequest, StoreFuture, Unsubscription, UnsubscriptionCursor, Unsubscriptions};

impl Unsubscriptions for Sqlite {
    fn unsubscribe(
        &self,
        tenant_id: TenantId,
        address: String,
        kind: NotificationKind,
        now: Time,
    ) -> StoreFuture<'_, bool> {
        self.write(move |transaction| {
            let noted = transaction.execute(
                "INSERT INTO unsubscriptions (tenant_id, address, kind, unsubscribed_at)
                 SELECT id, ?2, ?3, ?4 FROM tenants WHERE id = ?1 AND deleted_at IS NULL ON CONFLICT DO NOTHING",
                (tenant_id.as_str(), address, kind.name(), Col(now)),
            )?;
            Ok(noted == 1)
        })
    }

    fn resubscribe(
        &self,
        tenant_id: TenantId,
        address: String,
        kind: Option<NotificationKind>,
    ) -> StoreFuture<'_, usize> {
        self.write(move |transaction| {
            transaction.execute(
                "DELETE FROM unsubscriptions WHERE tenant_id = ?1 AND address = ?2 AND (?3 IS NULL OR kind = ?3)",
                (tenant_id.as_str(), address, kind.map(NotificationKind::name)),
            )
        })
    }

    fn unsubscribed(
        &self,
        tenant_id: TenantId,
        kind: NotificationKind,
        of: Vec<String>,
    ) -> StoreFuture<'_, Vec<String>> {
        self.read(move |connection| {
            let mut find = connection.prepare_cached(
                "SELECT 1 FROM unsubscriptions WHERE tenant_id = ?1 AND address = ?2 AND kind = ?3",
            )?;
            let mut found = Vec::new();
            for address in of {
                if find.exists((tenant_id.as_str(), &address, kind.name()))? {
                    found.push(address);
                }
            }
            Ok(found)
        })
    }

    fn list_unsubscribed(
        &self,
        tenant_id: TenantId,
        page: PageRequest<UnsubscriptionCursor>,
    ) -> StoreFuture<'_, Vec<Unsubscription>> {
        self.list_for(tenant_id.clone(), move |connection| {
            let (address, kind) =
                page.after.map_or((String::new(), ""), |after| (after.address, after.kind.name()));
            connection
                .prepare_cached(
                    "SELECT address, kind, unsubscribed_at FROM unsubscriptions WHERE tenant_id = ?1
                     AND (address, kind) > (?2, ?3)
                     ORDER BY address, kind LIMIT ?4 OFFSET ?5",
                )?
                .query_map((tenant_id.as_str(), address, kind, page.limit, page.offset), read)?
                .collect()
        })
    }
}

fn read(row: &Row<'_>) -> rusqlite::Result<Unsubscription> {
    let kind: String = row.get(1)?;
    let unknown = || rusqlite::Error::InvalidColumnType(1, kind.clone(), Type::Text);
    let kind = NotificationKind::parse(&kind).ok_or_else(unknown)?;
    Ok(Unsubscription { address: row.get(0)?, kind, unsubscribed_at: get(row, 2)? })
}
