//! Tenants and API keys.

use redrive_core::{KeyId, TenantId, Time, tenancy::TenantRules};
use rusqlite::{Connection, OptionalExtension, Row, Transaction};

use super::{
    Sqlite, changes,
    convert::{Col, get, get_opt},
    transaction::WriteTransaction,
    webhooks::{from_json, to_json},
};
use crate::{ApiKey, Change, PageRequest, StoreFuture, Tenancy, Tenant};

const KEY_COLUMNS: &str =
    "id, tenant_id, name, hash, scopes, session, networks, created_at, expires_at, revoked_at,
     last_used_at, installation";
const TENANT_COLUMNS: &str = "id, name, rules, created_at, metadata";

impl Tenancy for Sqlite {
    fn create_tenant(&self, tenant: Tenant) -> StoreFuture<'_, bool> {
        self.write(move |transaction| create_tenant(transaction, &tenant))
    }

    fn change_tenant(&self, tenant: Tenant) -> StoreFuture<'_, bool> {
        self.write(move |transaction| {
            let changed = transaction.execute(
                "UPDATE tenants SET name = ?2, rules = ?3, metadata = ?4, config_version = config_version + 1
                 WHERE id = ?1 AND deleted_at IS NULL",
                (tenant.id.as_str(), tenant.name, to_json(&tenant.rules)?, to_json(&tenant.metadata)?),
            )?;
            // The node that has claimed a lane may not serve the new pool.
            transaction.execute(
                "UPDATE lanes SET pool = ?2, claimed_by = NULL
                 WHERE webhook_id IN (SELECT id FROM webhooks WHERE tenant_id = ?1) AND pool <> ?2",
                (tenant.id.as_str(), tenant.rules.pool()),
            )?;
            changes::append(transaction, &Change::Tenant(tenant.id))?;
            Ok(changed == 1)
        })
    }

    fn delete_tenant(&self, id: TenantId, now: Time) -> StoreFuture<'_, bool> {
        self.write(move |transaction| {
            // The new version refuses publishes whose fan-out was computed before; they then find the tenant deleted.
            let deleted = transaction.execute(
                "UPDATE tenants SET deleted_at = ?2, config_version = config_version + 1
                 WHERE id = ?1 AND deleted_at IS NULL",
                (id.as_str(), Col(now)),
            )?;
            transaction.execute(
                "UPDATE api_keys SET revoked_at = ?2 WHERE tenant_id = ?1 AND revoked_at IS NULL",
                (id.as_str(), Col(now)),
            )?;
            transaction.execute("DELETE FROM unsubscriptions WHERE tenant_id = ?", [id.as_str()])?;
            transaction.execute("DELETE FROM email_addresses WHERE tenant_id = ?", [id.as_str()])?;
            transaction.execute(
                "DELETE FROM browser_sessions WHERE key_hash IN (SELECT hash FROM api_keys WHERE tenant_id = ?)",
                [id.as_str()],
            )?;
            // A deleted tenant has no recipients any more.
            transaction.execute("DELETE FROM notification_groups WHERE tenant_id = ?", [id.as_str()])?;
            changes::append(transaction, &Change::Keys)?;
            changes::append(transaction, &Change::Tenant(id))?;
            Ok(deleted == 1)
        })
    }

    fn tenant(&self, id: TenantId) -> StoreFuture<'_, Option<Tenant>> {
        self.read(move |connection| {
            connection
                .prepare_cached(&format!(
                    "SELECT {TENANT_COLUMNS} FROM tenants WHERE id = ? AND deleted_at IS NULL"
                ))?
                .query_row([id.as_str()], read_tenant)
                .optional()
        })
    }

    fn list_tenants(&self, page: PageRequest<TenantId>) -> StoreFuture<'_, Vec<Tenant>> {
        self.read_for_user(move |connection| {
            let after = page.after.as_ref().map_or("", TenantId::as_str);
            connection
                .prepare_cached(&format!(
                    "SELECT {TENANT_COLUMNS} FROM tenants
                     WHERE id > ? AND deleted_at IS NULL ORDER BY id LIMIT ? OFFSET ?"
                ))?
                .query_map((after, page.limit, page.offset), read_tenant)?
                .collect()
        })
    }

    fn create_key(&self, key: ApiKey) -> StoreFuture<'_, bool> {
        self.write(move |transaction| create_key(transaction, &key))
    }

    fn key(&self, tenant_id: Option<TenantId>, id: KeyId) -> StoreFuture<'_, Option<ApiKey>> {
        self.read_for_user(move |connection| {
            connection
                .prepare_cached(&format!(
                    "SELECT {KEY_COLUMNS} FROM api_keys WHERE id = ? AND tenant_id IS ?"
                ))?
                .query_row((Col(id), tenant_id.as_ref().map(TenantId::as_str)), read_key)
                .optional()
        })
    }

    fn live_keys(&self) -> StoreFuture<'_, Vec<ApiKey>> {
        self.read(|connection| {
            connection
                .prepare_cached(&format!("SELECT {KEY_COLUMNS} FROM api_keys WHERE revoked_at IS NULL"))?
                .query_map((), read_key)?
                .collect()
        })
    }

    fn list_keys(
        &self,
        tenant_id: Option<TenantId>,
        page: PageRequest<KeyId>,
    ) -> StoreFuture<'_, Vec<ApiKey>> {
        self.read_for_user(move |connection| {
            connection
                .prepare_cached(&format!(
                    "SELECT {KEY_COLUMNS} FROM api_keys WHERE tenant_id IS ?1 AND session = 0
                     AND (?2 IS NULL OR id < ?2)
                     ORDER BY id DESC LIMIT ?3 OFFSET ?4"
                ))?
                .query_map(
                    (tenant_id.as_ref().map(TenantId::as_str), page.after.map(Col), page.limit, page.offset),
                    read_key,
                )?
                .collect()
        })
    }

    fn revoke_key(&self, tenant_id: Option<TenantId>, id: KeyId, now: Time) -> StoreFuture<'_, bool> {
        self.write(move |transaction| {
            let revoked = transaction.execute(
                "UPDATE api_keys SET revoked_at = ?3 WHERE id = ?1 AND tenant_id IS ?2 AND revoked_at IS NULL",
                (Col(id), tenant_id.as_ref().map(TenantId::as_str), Col(now)),
            )?;
            if revoked == 1 {
                transaction.execute(
                    "DELETE FROM browser_sessions WHERE key_hash = (SELECT hash FROM api_keys WHERE id = ?)",
                    [Col(id)],
                )?;
            }
            changes::append(transaction, &Change::Keys)?;
            Ok(revoked == 1)
        })
    }

    fn record_key_use(&self, uses: Vec<(KeyId, Time)>) -> StoreFuture<'_, ()> {
        self.write(move |transaction| {
            let mut note = transaction.prepare_cached(
                "UPDATE api_keys SET last_used_at = max(coalesce(last_used_at, 0), ?2) WHERE id = ?1",
            )?;
            for (key, at) in uses {
                note.execute((Col(key), Col(at)))?;
            }
            Ok(())
        })
    }

    fn prune_sessions(&self, before: Time, limit: usize) -> StoreFuture<'_, usize> {
        self.write(move |transaction| {
            transaction.execute(
                "DELETE FROM api_keys WHERE id IN (
                     SELECT id FROM api_keys WHERE session = 1 AND expires_at < ? ORDER BY expires_at LIMIT ?)",
                (Col(before), limit as i64),
            )
        })
    }
}

/// Returns the rules of those of these tenants that exist.
pub(super) fn rules_of(
    connection: &Connection,
    ids: Vec<TenantId>,
) -> rusqlite::Result<Vec<(TenantId, TenantRules)>> {
    let mut of_one =
        connection.prepare_cached("SELECT rules FROM tenants WHERE id = ? AND deleted_at IS NULL")?;
    let mut found = Vec::with_capacity(ids.len());
    for id in ids {
        let rules = of_one.query_row([id.as_str()], |row| from_json(row, 0)).optional()?;
        found.extend(rules.map(|rules| (id, rules)));
    }
    Ok(found)
}

pub(super) fn create_tenant(transaction: &Transaction<'_>, tenant: &Tenant) -> rusqlite::Result<bool> {
    let created = transaction.execute(
        "INSERT INTO tenants (id, name, rules, created_at, metadata) VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
        (
            tenant.id.as_str(),
            &tenant.name,
            to_json(&tenant.rules)?,
            Col(tenant.created_at),
            to_json(&tenant.metadata)?,
        ),
    )?;
    Ok(created == 1)
}

pub(super) fn create_key(transaction: &WriteTransaction<'_>, key: &ApiKey) -> rusqlite::Result<bool> {
    if let Some(tenant_id) = &key.tenant_id
        && !transaction
            .prepare_cached("SELECT 1 FROM tenants WHERE id = ? AND deleted_at IS NULL")?
            .exists([tenant_id.as_str()])?
    {
        return Ok(false);
    }
    transaction.execute(
        &format!("INSERT INTO api_keys ({KEY_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, NULL, NULL, ?)"),
        (
            Col(key.id),
            key.tenant_id.as_ref().map(TenantId::as_str),
            &key.name,
            key.hash,
            key.scopes,
            key.session,
            to_json(&key.networks)?,
            Col(key.created_at),
            key.expires_at.map(Col),
            key.installation,
        ),
    )?;
    changes::append(transaction, &Change::Keys)?;
    Ok(true)
}

pub(super) fn read_tenant(row: &Row<'_>) -> rusqlite::Result<Tenant> {
    Ok(Tenant {
        id: get(row, 0)?,
        name: row.get(1)?,
        rules: from_json(row, 2)?,
        created_at: get(row, 3)?,
        metadata: from_json(row, 4)?,
    })
}

fn read_key(row: &Row<'_>) -> rusqlite::Result<ApiKey> {
    Ok(ApiKey {
        id: get(row, 0)?,
        tenant_id: get_opt(row, 1)?,
        name: row.get(2)?,
        hash: row.get(3)?,
        scopes: row.get(4)?,
        session: row.get(5)?,
        networks: from_json(row, 6)?,
        created_at: get(row, 7)?,
        expires_at: get_opt(row, 8)?,
        revoked_at: get_opt(row, 9)?,
        last_used_at: get_opt(row, 10)?,
        installation: row.get(11)?,
    })
}
