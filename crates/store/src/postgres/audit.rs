//! The audit log.

use redrive_core::{AuditId, Time};
use tokio_postgres::{Row, types::ToSql};

use super::{
    Postgres,
    convert::{Col, get, get_opt, plain},
    session::Failure,
};
use crate::{Audit, AuditEnd, AuditEntry, AuditFilter, PageRequest, StoreFuture};

const INSERT_ENTRY: &str =
    "INSERT INTO audit (id, tenant_id, actor, subject, key_id, address, action, object)
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8)";
const UPDATE_RESULT: &str =
    "UPDATE audit SET result = $2, object = coalesce($3, object), before = $4, after = $5
     WHERE id = $1 AND result IS NULL";
const PRUNE_ENTRIES: &str = "DELETE FROM audit WHERE id = ANY(ARRAY(
         SELECT id FROM audit WHERE id < $1 ORDER BY id LIMIT $2 FOR UPDATE SKIP LOCKED))";

impl Audit for Postgres {
    fn begin_audit(&self, entry: AuditEntry) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            let (id, key) = (Col(entry.id), entry.key.map(Col));
            let tenant = entry.tenant_id.as_ref().map(|tenant_id| tenant_id.as_str());
            let address = entry.address.map(|address| address.to_string());
            let values: [&(dyn ToSql + Sync); 8] =
                [&id, &tenant, &entry.actor, &entry.subject, &key, &address, &entry.action, &entry.object];
            let values = &values;
            self.administer(|tx| async move { tx.execute(INSERT_ENTRY, values).await.map(drop) }).await
        })
    }

    fn finish_audit(&self, id: AuditId, end: AuditEnd) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            let id = Col(id);
            let values: [&(dyn ToSql + Sync); 5] = [&id, &end.result, &end.object, &end.before, &end.after];
            let values = &values;
            self.administer(|tx| async move { tx.execute(UPDATE_RESULT, values).await.map(drop) }).await
        })
    }

    fn list_audit(
        &self,
        filter: AuditFilter,
        page: PageRequest<AuditId>,
    ) -> StoreFuture<'_, Vec<AuditEntry>> {
        Box::pin(async move {
            // The greatest id stands for "from the newest entry on".
            let before = page.after.unwrap_or(AuditId::from_bytes([0xff; 16]));
            let before = filter.to.map_or(before, |to| before.min(AuditId::first_at(to)));
            let from = filter.from.map_or(AuditId::from_bytes([0; 16]), AuditId::first_at);
            let (before, from) = (Col(before), Col(from));
            let tenant = filter.tenant_id.as_ref().map(|tenant_id| tenant_id.as_str());
            let (limit, offset) = (i64::from(page.limit), i64::from(page.offset));
            let listed = format!(
                "SELECT id, tenant_id, actor, key_id, address, action, object, result, before, after, subject
                 FROM audit
                 WHERE id < $1 AND id >= $2 AND ($3::text IS NULL OR starts_with(action, $3))
                     AND ($4::text IS NULL OR object = $4) AND {} ORDER BY id DESC LIMIT $6 OFFSET $7",
                if tenant.is_some() { "tenant_id = $5" } else { "$5::text IS NULL" }
            );
            let values: [&(dyn ToSql + Sync); 7] =
                [&before, &from, &filter.action, &filter.object, &tenant, &limit, &offset];
            let (listed, values) = (&listed, &values);
            self.read_for_user(|session| async move {
                session.query(listed, values).await?.iter().map(read_entry).collect()
            })
            .await
        })
    }

    fn prune_audit(&self, before: Time, limit: usize) -> StoreFuture<'_, usize> {
        Box::pin(async move {
            let (before, limit) = (Col(AuditId::first_at(before)), limit as i64);
            let (before, limit) = (&before, &limit);
            let pruned =
                self.write(|tx| async move { tx.execute(PRUNE_ENTRIES, &[before, limit]).await }).await?;
            Ok(pruned as usize)
        })
    }
}

fn read_entry(row: &Row) -> Result<AuditEntry, Failure> {
    let end = plain::<Option<String>>(row, 7)?.map(|result| {
        Ok::<_, Failure>(AuditEnd { result, object: None, before: plain(row, 8)?, after: plain(row, 9)? })
    });
    Ok(AuditEntry {
        id: get(row, 0)?,
        tenant_id: get_opt(row, 1)?,
        actor: plain(row, 2)?,
        subject: plain(row, 10)?,
        key: get_opt(row, 3)?,
        address: plain::<Option<String>>(row, 4)?.and_then(|address| address.parse().ok()),
        action: plain(row, 5)?,
        object: plain(row, 6)?,
        end: end.transpose()?,
    })
}
