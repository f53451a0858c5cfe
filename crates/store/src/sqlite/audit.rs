//! Audit log: who changed what.

use redrive_core::{AuditId, Time};
use rusqlite::Row;

use super::{
    Sqlite,
    convert::{Col, get, get_opt},
};
use crate::{Audit, AuditEnd, AuditEntry, AuditFilter, PageRequest, StoreFuture};

impl Audit for Sqlite {
    fn begin_audit(&self, entry: AuditEntry) -> StoreFuture<'_, ()> {
        self.write(move |transaction| {
            transaction
                .prepare_cached(
                    "INSERT INTO audit (id, tenant_id, actor, subject, key_id, address, action, object)
                     VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                )?
                .execute((
                    Col(entry.id),
                    entry.tenant_id.as_ref().map(|tenant_id| tenant_id.as_str()),
                    entry.actor,
                    entry.subject,
                    entry.key.map(Col),
                    entry.address.map(|address| address.to_string()),
                    entry.action,
                    entry.object,
                ))?;
            Ok(())
        })
    }

    fn finish_audit(&self, id: AuditId, end: AuditEnd) -> StoreFuture<'_, ()> {
        self.write(move |transaction| {
            transaction
                .prepare_cached(
                    "UPDATE audit SET result = ?2, object = coalesce(?3, object), before = ?4, after = ?5
                     WHERE id = ?1 AND result IS NULL",
                )?
                .execute((Col(id), end.result, end.object, end.before, end.after))?;
            Ok(())
        })
    }

    fn list_audit(
        &self,
        filter: AuditFilter,
        page: PageRequest<AuditId>,
    ) -> StoreFuture<'_, Vec<AuditEntry>> {
        self.read_for_user(move |connection| {
            // Ids are listed in descending order, so the greatest possible id starts at the first row.
            let before = page.after.unwrap_or(AuditId::from_bytes([0xff; 16]));
            let before = filter.to.map_or(before, |to| before.min(AuditId::first_at(to)));
            let from = filter.from.map_or(AuditId::from_bytes([0; 16]), AuditId::first_at);
            let tenant = filter.tenant_id.as_ref().map(|tenant_id| tenant_id.as_str());
            connection
                .prepare_cached(&format!(
                    "SELECT id, tenant_id, actor, key_id, address, action, object, result, before, after, subject
                     FROM audit
                     WHERE id < ?1 AND id >= ?2 AND (?3 IS NULL OR substr(action, 1, length(?3)) = ?3)
                         AND (?4 IS NULL OR object = ?4) AND {} ORDER BY id DESC LIMIT ?6 OFFSET ?7",
                    if tenant.is_some() { "tenant_id = ?5" } else { "?5 IS NULL" }
                ))?
                .query_map(
                    (Col(before), Col(from), filter.action, filter.object, tenant, page.limit, page.offset),
                    read_entry,
                )?
                .collect()
        })
    }

    fn prune_audit(&self, before: Time, limit: usize) -> StoreFuture<'_, usize> {
        self.write(move |transaction| {
            transaction.execute(
                "DELETE FROM audit WHERE id IN (SELECT id FROM audit WHERE id < ? ORDER BY id LIMIT ?)",
                (Col(AuditId::first_at(before)), limit as i64),
            )
        })
    }
}

fn read_entry(row: &Row<'_>) -> rusqlite::Result<AuditEntry> {
    let end = row.get::<_, Option<String>>(7)?.map(|result| {
        Ok::<_, rusqlite::Error>(AuditEnd { result, object: None, before: row.get(8)?, after: row.get(9)? })
    });
    Ok(AuditEntry {
        id: get(row, 0)?,
        tenant_id: get_opt(row, 1)?,
        actor: row.get(2)?,
        subject: row.get(10)?,
        key: get_opt(row, 3)?,
        address: row.get::<_, Option<String>>(4)?.and_then(|address| address.parse().ok()),
        action: row.get(5)?,
        object: row.get(6)?,
        end: end.transpose()?,
    })
}
