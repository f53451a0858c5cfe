//! Tenants and API keys.

use std::collections::BTreeMap;

use redrive_core::{KeyId, TenantId, Time, WebhookId, tenancy::TenantRules};
use tokio_postgres::Row;

use super::{
    Postgres, browser_sessions, changes,
    convert::{Col, get, get_opt, hash, plain},
    email_addresses, notifications,
    session::{Failure, Session, Tx},
    webhooks::{from_json, to_json},
};
use crate::{ApiKey, Change, PageRequest, StoreFuture, Tenancy, Tenant};

macro_rules! keys {
    ($rest:literal) => {
        concat!(
            "SELECT id, tenant_id, name, hash, scopes, session, networks, created_at, expires_at, revoked_at,
             last_used_at, installation
             FROM api_keys ",
            $rest
        )
    };
}

impl Tenancy for Postgres {
    fn create_tenant(&self, tenant: Tenant) -> StoreFuture<'_, bool> {
        Box::pin(async move { self.administer(|tx| create_tenant(tx, &tenant)).await })
    }

    fn change_tenant(&self, tenant: Tenant) -> StoreFuture<'_, bool> {
        Box::pin(async move {
            let changed = self.administer(|tx| change_tenant(tx, &tenant)).await?;
            self.shared.hints.change();
            Ok(changed)
        })
    }

    fn delete_tenant(&self, id: TenantId, now: Time) -> StoreFuture<'_, bool> {
        Box::pin(async move {
            let deleted = self.administer(|tx| delete_tenant(tx, &id, now)).await?;
            self.shared.hints.change();
            Ok(deleted)
        })
    }

    fn tenant(&self, id: TenantId) -> StoreFuture<'_, Option<Tenant>> {
        Box::pin(async move {
            self.read(|session| {
                let id = &id;
                async move {
                    let found = "SELECT id, name, rules, created_at, metadata FROM tenants
                                 WHERE id = $1 AND deleted_at IS NULL";
                    let row = session.query_opt(found, &[&id.as_str()]).await?;
                    row.map(|row| read_tenant(&row)).transpose()
                }
            })
            .await
        })
    }

    fn list_tenants(&self, page: PageRequest<TenantId>) -> StoreFuture<'_, Vec<Tenant>> {
        Box::pin(async move { self.read_for_user(|session| list_tenants(session, &page)).await })
    }

    fn create_key(&self, key: ApiKey) -> StoreFuture<'_, bool> {
        Box::pin(async move {
            let created = self.administer(|tx| create_key(tx, &key)).await?;
            self.shared.hints.change();
            Ok(created)
        })
    }

    fn key(&self, tenant_id: Option<TenantId>, id: KeyId) -> StoreFuture<'_, Option<ApiKey>> {
        Box::pin(async move {
            let tenant_id = tenant_id.as_ref().map(TenantId::as_str);
            let found = keys!("WHERE id = $1 AND tenant_id IS NOT DISTINCT FROM $2");
            self.read_for_user(|session| async move {
                let row = session.query_opt(found, &[&Col(id), &tenant_id]).await?;
                row.as_ref().map(read_key).transpose()
            })
            .await
        })
    }

    fn live_keys(&self) -> StoreFuture<'_, Vec<ApiKey>> {
        Box::pin(async move {
            self.read(|session| async move {
                session.query(keys!("WHERE revoked_at IS NULL"), &[]).await?.iter().map(read_key).collect()
            })
            .await
        })
    }

    fn list_keys(
        &self,
        tenant_id: Option<TenantId>,
        page: PageRequest<KeyId>,
    ) -> StoreFuture<'_, Vec<ApiKey>> {
        Box::pin(
            async move { self.read_for_user(|session| list_keys(session, tenant_id.as_ref(), page)).await },
        )
    }

    fn revoke_key(&self, tenant_id: Option<TenantId>, id: KeyId, now: Time) -> StoreFuture<'_, bool> {
        Box::pin(async move {
            let revoked = self.administer(|tx| revoke_key(tx, tenant_id.as_ref(), id, now)).await?;
            self.shared.hints.change();
            Ok(revoked)
        })
    }

    fn record_key_use(&self, uses: Vec<(KeyId, Time)>) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            // All nodes update keys in the same order.
            let uses: BTreeMap<_, _> = uses.into_iter().collect();
            let ids: Vec<_> = uses.keys().map(|id| Col(*id)).collect();
            let times: Vec<_> = uses.values().map(|at| Col(*at)).collect();
            let note = "UPDATE api_keys k SET last_used_at = greatest(k.last_used_at, u.at)
                        FROM unnest($1::uuid[], $2::bigint[]) AS u(id, at) WHERE k.id = u.id";
            let (ids, times) = (&ids, &times);
            self.write(|tx| async move { tx.execute(note, &[ids, times]).await.map(drop) }).await
        })
    }

    fn prune_sessions(&self, before: Time, limit: usize) -> StoreFuture<'_, usize> {
        Box::pin(async move {
            let delete = "DELETE FROM api_keys WHERE id = ANY(ARRAY(
                SELECT id FROM api_keys WHERE session AND expires_at < $1 ORDER BY expires_at LIMIT $2
                FOR UPDATE SKIP LOCKED))";
            let values = (Col(before), limit as i64);
            let values = &values;
            let pruned =
                self.write(|tx| async move { tx.execute(delete, &[&values.0, &values.1]).await }).await?;
            Ok(pruned as usize)
        })
    }
}

/// Prevents concurrent changes and publishes of a tenant until the end of the transaction.
pub(super) async fn lock(tx: &Session, tenant_id: &TenantId) -> Result<(), Failure> {
    tx.query("SELECT 1 FROM tenants WHERE id = $1 FOR NO KEY UPDATE", &[&tenant_id.as_str()]).await?;
    Ok(())
}

pub(super) async fn create_tenant(tx: Tx, tenant: &Tenant) -> Result<bool, Failure> {
    let created = tx
        .execute(
            "INSERT INTO tenants (id, name, rules, pool, created_at, metadata) VALUES ($1, $2, $3, $4, $5, $6)
             ON CONFLICT DO NOTHING",
            &[
                &tenant.id.as_str(),
                &tenant.name,
                &to_json(&tenant.rules)?,
                &tenant.rules.pool(),
                &Col(tenant.created_at),
                &to_json(&tenant.metadata)?,
            ],
        )
        .await?;
    Ok(created == 1)
}

async fn change_tenant(tx: Tx, tenant: &Tenant) -> Result<bool, Failure> {
    let pool = tenant.rules.pool();
    let changed = tx
        .execute(
            "UPDATE tenants SET name = $2, rules = $3, pool = $4, metadata = $5, config_version = config_version + 1
             WHERE id = $1 AND deleted_at IS NULL",
            &[&tenant.id.as_str(), &tenant.name, &to_json(&tenant.rules)?, &pool, &to_json(&tenant.metadata)?],
        )
        .await?;
    // In the order in which all transactions lock lanes.
    let lock = "SELECT l.webhook_id, l.lane FROM webhooks w JOIN lanes l ON l.webhook_id = w.id
         WHERE w.tenant_id = $1 AND l.pool <> $2 ORDER BY l.webhook_id, l.lane FOR NO KEY UPDATE OF l";
    let rows = tx.query(lock, &[&tenant.id.as_str(), &pool]).await?;
    let webhooks = rows.iter().map(|row| get(row, 0).map(Col)).collect::<Result<Vec<Col<WebhookId>>, _>>()?;
    let lanes = rows.iter().map(|row| plain(row, 1)).collect::<Result<Vec<String>, _>>()?;
    // The node that has claimed a lane may not serve the new pool.
    let move_lanes = "UPDATE lanes l SET pool = $3, claimed_by = NULL
         FROM unnest($1::uuid[], $2::text[]) AS k(webhook_id, lane)
         WHERE l.webhook_id = k.webhook_id AND l.lane = k.lane COLLATE \"C\"";
    tx.execute(move_lanes, &[&webhooks, &lanes, &pool]).await?;
    changes::append(&tx, &Change::Tenant(tenant.id.clone())).await?;
    Ok(changed == 1)
}

async fn delete_tenant(tx: Tx, id: &TenantId, now: Time) -> Result<bool, Failure> {
    // The new version refuses publishes whose fan-out was computed before; they then find the tenant deleted.
    let delete = "UPDATE tenants SET deleted_at = $2, config_version = config_version + 1
                  WHERE id = $1 AND deleted_at IS NULL";
    let revoke = "UPDATE api_keys SET revoked_at = $2 WHERE tenant_id = $1 AND revoked_at IS NULL";
    let deleted = tx.execute(delete, &[&id.as_str(), &Col(now)]).await?;
    tx.execute(revoke, &[&id.as_str(), &Col(now)]).await?;
    tx.execute("DELETE FROM unsubscriptions WHERE tenant_id = $1", &[&id.as_str()]).await?;
    browser_sessions::delete_of_tenant(&tx, id).await?;
    email_addresses::delete_tenant(&tx, id).await?;
    changes::append(&tx, &Change::Keys).await?;
    changes::append(&tx, &Change::Tenant(id.clone())).await?;
    notifications::delete_tenant(&tx, id).await?;
    Ok(deleted == 1)
}

async fn list_tenants(session: Tx, page: &PageRequest<TenantId>) -> Result<Vec<Tenant>, Failure> {
    let after = page.after.as_ref().map_or("", TenantId::as_str);
    let listed =
        "SELECT id, name, rules, created_at, metadata FROM tenants WHERE id > $1 AND deleted_at IS NULL ORDER BY id
         LIMIT $2 OFFSET $3";
    let rows = session.query(listed, &[&after, &i64::from(page.limit), &i64::from(page.offset)]).await?;
    rows.iter().map(read_tenant).collect()
}

pub(super) async fn create_key(tx: Tx, key: &ApiKey) -> Result<bool, Failure> {
    let tenant = key.tenant_id.as_ref().map(TenantId::as_str);
    if let Some(tenant) = tenant
        && !tx.exists("SELECT 1 FROM tenants WHERE id = $1 AND deleted_at IS NULL", &[&tenant]).await?
    {
        return Ok(false);
    }
    tx.execute(
        "INSERT INTO api_keys (id, tenant_id, name, hash, scopes, session, networks, created_at, expires_at,
                               installation)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
        &[
            &Col(key.id),
            &tenant,
            &key.name,
            &&key.hash[..],
            &(key.scopes as i32),
            &key.session,
            &to_json(&key.networks)?,
            &Col(key.created_at),
            &key.expires_at.map(Col),
            &key.installation,
        ],
    )
    .await?;
    changes::append(&tx, &Change::Keys).await?;
    Ok(true)
}

async fn list_keys(
    session: Tx,
    tenant_id: Option<&TenantId>,
    page: PageRequest<KeyId>,
) -> Result<Vec<ApiKey>, Failure> {
    let after = page.after.unwrap_or(KeyId::from_bytes([0xff; 16]));
    let (after, limit, offset) = (Col(after), i64::from(page.limit), i64::from(page.offset));
    let rows = match tenant_id {
        Some(tenant_id) => {
            let listed =
                keys!("WHERE tenant_id = $1 AND NOT session AND id < $2 ORDER BY id DESC LIMIT $3 OFFSET $4");
            session.query(listed, &[&tenant_id.as_str(), &after, &limit, &offset]).await?
        }
        None => {
            let listed = keys!(
                "WHERE tenant_id IS NULL AND NOT session AND id < $1 ORDER BY id DESC LIMIT $2 OFFSET $3"
            );
            session.query(listed, &[&after, &limit, &offset]).await?
        }
    };
    rows.iter().map(read_key).collect()
}

async fn revoke_key(tx: Tx, tenant_id: Option<&TenantId>, id: KeyId, now: Time) -> Result<bool, Failure> {
    let revoke = "UPDATE api_keys SET revoked_at = $3
                  WHERE id = $1 AND tenant_id IS NOT DISTINCT FROM $2 AND revoked_at IS NULL";
    let revoked = tx.execute(revoke, &[&Col(id), &tenant_id.map(TenantId::as_str), &Col(now)]).await?;
    if revoked == 1 {
        browser_sessions::delete_of_key(&tx, id).await?;
    }
    changes::append(&tx, &Change::Keys).await?;
    Ok(revoked == 1)
}

/// Returns the rules of those of these tenants that exist.
pub(super) async fn rules_of(session: Tx, ids: &[TenantId]) -> Result<Vec<(TenantId, TenantRules)>, Failure> {
    let ids: Vec<_> = ids.iter().map(TenantId::as_str).collect();
    let found = "SELECT id, rules FROM tenants WHERE id = ANY($1::text[]) AND deleted_at IS NULL";
    let rows = session.query(found, &[&ids]).await?;
    rows.iter().map(|row| Ok((get(row, 0)?, from_json(row, 1)?))).collect()
}

pub(super) fn read_tenant(row: &Row) -> Result<Tenant, Failure> {
    Ok(Tenant {
        id: get(row, 0)?,
        name: plain(row, 1)?,
        rules: from_json(row, 2)?,
        created_at: get(row, 3)?,
        metadata: from_json(row, 4)?,
    })
}

fn read_key(row: &Row) -> Result<ApiKey, Failure> {
    Ok(ApiKey {
        id: get(row, 0)?,
        tenant_id: get_opt(row, 1)?,
        name: plain(row, 2)?,
        hash: hash(row, 3)?,
        scopes: plain::<i32>(row, 4)? as u32,
        session: plain(row, 5)?,
        networks: from_json(row, 6)?,
        created_at: get(row, 7)?,
        expires_at: get_opt(row, 8)?,
        revoked_at: get_opt(row, 9)?,
        last_used_at: get_opt(row, 10)?,
        installation: plain(row, 11)?,
    })
}
