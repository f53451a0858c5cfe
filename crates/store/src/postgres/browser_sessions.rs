//! Stores browser sessions, which are identified by a cookie.

use redrive_core::{KeyId, TenantId, Time};
use tokio_postgres::{Row, types::ToSql};

use super::{
    Postgres,
    convert::{Col, get, get_opt, hash, plain},
    session::{Failure, Session, Tx},
};
use crate::{BrowserSession, BrowserSessions, PageRequest, SessionCursor, SessionUser, StoreFuture};

/// Columns that `read` expects.
const COLUMNS: &str = "id, key_hash, created_at, expires_at, issuer, subject, user_name, role, login_hash";

impl BrowserSessions for Postgres {
    fn create_browser_session(&self, session: BrowserSession, max_per_key: usize) -> StoreFuture<'_, bool> {
        Box::pin(async move { self.administer(|tx| create(tx, &session, max_per_key)).await })
    }

    fn browser_session(&self, id: [u8; 32]) -> StoreFuture<'_, Option<BrowserSession>> {
        Box::pin(async move {
            let select = format!("SELECT {COLUMNS} FROM browser_sessions WHERE id = $1");
            let (id, select) = (&id, &select);
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
            let select = format!(
                "SELECT {COLUMNS} FROM browser_sessions
                 WHERE key_hash = $1 AND expires_at > $2 ORDER BY created_at DESC, id DESC"
            );
            let (key_hash, select) = (&key_hash, &select);
            self.read_for_user(|session| async move {
                let rows = session.query(select, &[&&key_hash[..], &Col(now)]).await?;
                rows.iter().map(read).collect()
            })
            .await
        })
    }

    fn list_user_sessions(
        &self,
        now: Time,
        page: PageRequest<SessionCursor>,
    ) -> StoreFuture<'_, Vec<BrowserSession>> {
        Box::pin(async move {
            let select = format!(
                "SELECT {COLUMNS} FROM browser_sessions
                 WHERE issuer IS NOT NULL AND expires_at > $1
                     AND ($2::bigint IS NULL OR (created_at, id) < ($2, $3::bytea))
                 ORDER BY created_at DESC, id DESC LIMIT $4 OFFSET $5"
            );
            let (page, select) = (&page, &select);
            self.read_for_user(|session| async move {
                let before = page.after.map(|after| Col(after.created_at));
                let id = page.after.as_ref().map(|after| &after.id[..]);
                let (limit, offset) = (i64::from(page.limit), i64::from(page.offset));
                let values: [&(dyn ToSql + Sync); 5] = [&Col(now), &before, &id, &limit, &offset];
                session.query(select, &values).await?.iter().map(read).collect()
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

async fn create(tx: Tx, session: &BrowserSession, max_per_key: usize) -> Result<bool, Failure> {
    let insert = "INSERT INTO browser_sessions
            (id, key_hash, created_at, expires_at, issuer, subject, user_name, role, login_hash)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
        ON CONFLICT (login_hash) WHERE login_hash IS NOT NULL DO NOTHING";
    let (created_at, expires_at) = (Col(session.created_at), Col(session.expires_at));
    let user = session.user.as_ref();
    let role = user.map(|user| Col(user.role));
    let login_hash = user.map(|user| &user.login_hash[..]);
    let (issuer, subject) = (user.map(|user| &user.issuer), user.map(|user| &user.subject));
    let name = user.map(|user| &user.name);
    let values: [&(dyn ToSql + Sync); 9] = [
        &&session.id[..],
        &&session.key_hash[..],
        &created_at,
        &expires_at,
        &issuer,
        &subject,
        &name,
        &role,
        &login_hash,
    ];
    if tx.execute(insert, &values).await? == 0 {
        return Ok(false);
    }
    // The new session is kept even if this node's clock is behind. Rows that another transaction is deleting are
    // skipped.
    let evict = "DELETE FROM browser_sessions WHERE id = ANY(ARRAY(
        SELECT id FROM browser_sessions WHERE key_hash = $1 AND id <> $2
        ORDER BY created_at DESC, id DESC OFFSET $3 FOR UPDATE SKIP LOCKED))";
    let remaining = max_per_key.saturating_sub(1) as i64;
    tx.execute(evict, &[&&session.key_hash[..], &&session.id[..], &remaining]).await?;
    Ok(true)
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
    let user = match get_opt(row, 7)? {
        None => None,
        Some(role) => Some(SessionUser {
            issuer: plain(row, 4)?,
            subject: plain(row, 5)?,
            name: plain(row, 6)?,
            role,
            login_hash: hash(row, 8)?,
        }),
    };
    Ok(BrowserSession {
        id: hash(row, 0)?,
        key_hash: hash(row, 1)?,
        user,
        created_at: get(row, 2)?,
        expires_at: get(row, 3)?,
    })
}
