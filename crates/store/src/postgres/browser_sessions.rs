//! Stores browser sessions, which are identified by a cookie.

use redrive_core::{KeyId, TenantId, Time};
use tokio_postgres::Row;

use super::{
    Postgres,
    convert::{Col, get, hash},
    session::{Failure, Session, Tx},
};
use crate::{BrowserSession, BrowserSessions, StoreFuture};

impl BrowserSessions for Postgres {
    fn create_browser_session(&self, session: BrowserSession, max_per_key: usize) -> StoreFuture<'_, ()> {
        Box::pin(async move { self.administer(|tx| create(tx, &session, max_per_key)).await })
    }

    fn browser_session(&self, id: [u8; 32]) -> StoreFuture<'_, Option<BrowserSession>> {
        Box::pin(async move {
            let select = "SELECT id, key_hash, created_at, expires_at FROM browser_sessions WHERE id = $1";
            let id = &id;
            self.read_for_user(|session| async move {
                let row = session.query_opt(select, &[&&id[..]]).await?;
                row.map(|row| read(&row)).transpose()
            })
            .await
        })
    }

    fn delete_browser_session(&self, id: [u8; 32]) -> StoreFuture<'_, bool> {
        Box::pin(async move {
            let id = &id;
            let delete = "DELETE FROM browser_sessions WHERE id = $1";
            let deleted = self.administer(|tx| async move { tx.execute(delete, &[&&id[..]]).await }).await?;
            Ok(deleted == 1)
        })
    }

    fn browser_sessions_of_key(&self, key_hash: [u8; 32], now: Time) -> StoreFuture<'_, Vec<BrowserSession>> {
        Box::pin(async move {
            let select = "SELECT id, key_hash, created_at, expires_at FROM browser_sessions
                          WHERE key_hash = $1 AND expires_at > $2 ORDER BY created_at DESC, id DESC";
            let key_hash = &key_hash;
            self.read_for_user(|session| async move {
                let rows = session.query(select, &[&&key_hash[..], &Col(now)]).await?;
                rows.iter().map(read).collect()
            })
            .await
        })
    }

    fn delete_browser_sessions_of_key(&self, key_hash: [u8; 32]) -> StoreFuture<'_, usize> {
        Box::pin(async move {
            let key_hash = &key_hash;
            let delete = "DELETE FROM browser_sessions WHERE id = ANY(ARRAY(
                SELECT id FROM browser_sessions WHERE key_hash = $1 ORDER BY id FOR UPDATE))";
            let deleted =
                self.administer(|tx| async move { tx.execute(delete, &[&&key_hash[..]]).await }).await?;
            Ok(deleted as usize)
        })
    }

    fn prune_browser_sessions(&self, before: Time, limit: usize) -> StoreFuture<'_, usize> {
        Box::pin(async move {
            let delete = "DELETE FROM browser_sessions WHERE id = ANY(ARRAY(
                SELECT id FROM browser_sessions WHERE expires_at < $1 ORDER BY expires_at LIMIT $2
                FOR UPDATE SKIP LOCKED))";
            let values = &(Col(before), limit as i64);
            let deleted =
                self.write(|tx| async move { tx.execute(delete, &[&values.0, &values.1]).await }).await?;
            Ok(deleted as usize)
        })
    }
}

async fn create(tx: Tx, session: &BrowserSession, max_per_key: usize) -> Result<(), Failure> {
    let insert =
        "INSERT INTO browser_sessions (id, key_hash, created_at, expires_at) VALUES ($1, $2, $3, $4)";
    let (created_at, expires_at) = (Col(session.created_at), Col(session.expires_at));
    tx.execute(insert, &[&&session.id[..], &&session.key_hash[..], &created_at, &expires_at]).await?;
    // The new session is kept even if this node's clock is behind. Rows that another transaction is deleting are
    // skipped.
    let evict = "DELETE FROM browser_sessions WHERE id = ANY(ARRAY(
        SELECT id FROM browser_sessions WHERE key_hash = $1 AND id <> $2
        ORDER BY created_at DESC, id DESC OFFSET $3 FOR UPDATE SKIP LOCKED))";
    let remaining = max_per_key.saturating_sub(1) as i64;
    tx.execute(evict, &[&&session.key_hash[..], &&session.id[..], &remaining]).await?;
    Ok(())
}

/// Deletes the sessions that were started with one API key.
pub(super) async fn delete_of_key(tx: &Session, key: KeyId) -> Result<(), Failure> {
    let delete = "DELETE FROM browser_sessions WHERE id = ANY(ARRAY(
        SELECT s.id FROM api_keys k JOIN browser_sessions s ON s.key_hash = k.hash
        WHERE k.id = $1 ORDER BY s.id FOR UPDATE OF s))";
    tx.execute(delete, &[&Col(key)]).await.map(drop)
}

/// Deletes the sessions that were started with a tenant's API keys.
pub(super) async fn delete_of_tenant(tx: &Session, tenant_id: &TenantId) -> Result<(), Failure> {
    let delete = "DELETE FROM browser_sessions WHERE id = ANY(ARRAY(
        SELECT s.id FROM api_keys k JOIN browser_sessions s ON s.key_hash = k.hash
        WHERE k.tenant_id = $1 ORDER BY s.id FOR UPDATE OF s))";
    tx.execute(delete, &[&tenant_id.as_str()]).await.map(drop)
}

fn read(row: &Row) -> Result<BrowserSession, Failure> {
    Ok(BrowserSession {
        id: hash(row, 0)?,
        key_hash: hash(row, 1)?,
        created_at: get(row, 2)?,
        expires_at: get(row, 3)?,
    })
}
