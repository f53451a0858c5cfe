//! Addresses that do not want to hear of something any more.

use redrive_core::{TenantId, Time, notification::Kind};
use rusqlite::{Row, types::Type};

use super::{
    Sqlite,
    convert::{Col, get},
};
use crate::{Answer, PageRequest, Unsubscribed, UnsubscribedCursor, Unsubscribing};

impl Unsubscribing for Sqlite {
    fn unsubscribe(&self, tenant: TenantId, address: String, kind: Kind, now: Time) -> Answer<'_, bool> {
        self.write(move |transaction| {
            let noted = transaction.execute(
                "INSERT INTO unsubscribed (tenant, address, kind, at)
                 SELECT id, ?2, ?3, ?4 FROM tenants WHERE id = ?1 AND deleted_at IS NULL ON CONFLICT DO NOTHING",
                (tenant.as_str(), address, kind.name(), Col(now)),
            )?;
            Ok(noted == 1)
        })
    }

    fn resubscribe(&self, tenant: TenantId, address: String, kind: Option<Kind>) -> Answer<'_, usize> {
        self.write(move |transaction| {
            transaction.execute(
                "DELETE FROM unsubscribed WHERE tenant = ?1 AND address = ?2 AND (?3 IS NULL OR kind = ?3)",
                (tenant.as_str(), address, kind.map(Kind::name)),
            )
        })
    }

    fn unsubscribed(&self, tenant: TenantId, kind: Kind, of: Vec<String>) -> Answer<'_, Vec<String>> {
        self.read(move |connection| {
            let mut find = connection.prepare_cached(
                "SELECT 1 FROM unsubscribed WHERE tenant = ?1 AND address = ?2 AND kind = ?3",
            )?;
            let mut found = Vec::new();
            for address in of {
                if find.exists((tenant.as_str(), &address, kind.name()))? {
                    found.push(address);
                }
            }
            Ok(found)
        })
    }

    fn list_unsubscribed(
        &self,
        tenant: TenantId,
        page: PageRequest<UnsubscribedCursor>,
    ) -> Answer<'_, Vec<Unsubscribed>> {
        self.list_for(tenant.clone(), move |connection| {
            let (address, kind) =
                page.after.map_or((String::new(), ""), |after| (after.address, after.kind.name()));
            connection
                .prepare_cached(
                    "SELECT address, kind, at FROM unsubscribed WHERE tenant = ?1 AND (address, kind) > (?2, ?3)
                     ORDER BY address, kind LIMIT ?4 OFFSET ?5",
                )?
                .query_map((tenant.as_str(), address, kind, page.limit, page.offset), read)?
                .collect()
        })
    }
}

fn read(row: &Row<'_>) -> rusqlite::Result<Unsubscribed> {
    let kind: String = row.get(1)?;
    let unknown = || rusqlite::Error::InvalidColumnType(1, kind.clone(), Type::Text);
    let kind = Kind::parse(&kind).ok_or_else(unknown)?;
    Ok(Unsubscribed { address: row.get(0)?, kind, at: get(row, 2)? })
}
