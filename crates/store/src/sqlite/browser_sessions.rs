//! Stores browser sessions, which are identified by a cookie.

use redrive_core::Time;
use rusqlite::{OptionalExtension, Row, params};

use super::{
    Sqlite,
    convert::{Col, get, get_opt},
};
use crate::{BrowserSession, BrowserSessions, PageRequest, SessionCursor, SessionUser, StoreFuture};

/// Columns that `read` expects.
const COLUMNS: &str = "id, key_hash, created_at, expires_at, issuer, subject, user_name, role, login_hash";

impl BrowserSessions for Sqlite {
    fn create_browser_session(&self, session: BrowserSession, max_per_key: usize) -> StoreFuture<'_, bool> {
        self.write(move |transaction| {
            let user = session.user.as_ref();
            let inserted = transaction.execute(
                "INSERT INTO browser_sessions
                     (id, key_hash, created_at, expires_at, issuer, subject, user_name, role, login_hash)
                 VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
                 ON CONFLICT (login_hash) WHERE login_hash IS NOT NULL DO NOTHING",
                params![
                    session.id,
                    session.key_hash,
                    Col(session.created_at),
                    Col(session.expires_at),
                    user.map(|user| &user.issuer),
                    user.map(|user| &user.subject),
                    user.map(|user| &user.name),
                    user.map(|user| Col(user.role)),
                    user.map(|user| user.login_hash),
                ],
            )?;
            if inserted == 0 {
                return Ok(false);
            }
            // The new session is kept even if the clock was set back and all others are newer.
            transaction.execute(
                "DELETE FROM browser_sessions WHERE id IN (
                     SELECT id FROM browser_sessions WHERE key_hash = ?1 AND id <> ?2
                     ORDER BY created_at DESC, id DESC LIMIT -1 OFFSET ?3)",
                (session.key_hash, session.id, max_per_key.saturating_sub(1) as i64),
            )?;
            Ok(true)
        })
    }

    fn browser_session(&self, id: [u8; 32]) -> StoreFuture<'_, Option<BrowserSession>> {
        self.read_for_user(move |connection| {
            connection
                .prepare_cached(&format!("SELECT {COLUMNS} FROM browser_sessions WHERE id = ?"))?
                .query_row([id], read)
                .optional()
        })
    }

    fn delete_browser_session(&self, id: [u8; 32]) -> StoreFuture<'_, bool> {
        self.write(move |transaction| {
            Ok(transaction.execute("DELETE FROM browser_sessions WHERE id = ?", [id])? == 1)
        })
    }

    fn browser_sessions_of_key(&self, key_hash: [u8; 32], now: Time) -> StoreFuture<'_, Vec<BrowserSession>> {
        self.read_for_user(move |connection| {
            connection
                .prepare_cached(&format!(
                    "SELECT {COLUMNS} FROM browser_sessions
                     WHERE key_hash = ? AND expires_at > ? ORDER BY created_at DESC, id DESC"
                ))?
                .query_map((key_hash, Col(now)), read)?
                .collect()
        })
    }

    fn list_user_sessions(
        &self,
        now: Time,
        page: PageRequest<SessionCursor>,
    ) -> StoreFuture<'_, Vec<BrowserSession>> {
        self.read_for_user(move |connection| {
            let (before, id) = page.after.map(|after| (Col(after.created_at), after.id)).unzip();
            connection
                .prepare_cached(&format!(
                    "SELECT {COLUMNS} FROM browser_sessions
                     WHERE issuer IS NOT NULL AND expires_at > ?1
                         AND (?2 IS NULL OR (created_at, id) < (?2, ?3))
                     ORDER BY created_at DESC, id DESC LIMIT ?4 OFFSET ?5"
                ))?
                .query_map((Col(now), before, id, page.limit, page.offset), read)?
                .collect()
        })
    }

    fn delete_browser_sessions_of_key(&self, key_hash: [u8; 32]) -> StoreFuture<'_, usize> {
        self.write(move |transaction| {
            transaction.execute("DELETE FROM browser_sessions WHERE key_hash = ?", [key_hash])
        })
    }

    fn prune_browser_sessions(&self, before: Time, limit: usize) -> StoreFuture<'_, usize> {
        self.write(move |transaction| {
            transaction.execute(
                "DELETE FROM browser_sessions WHERE id IN (
                     SELECT id FROM browser_sessions WHERE expires_at < ? ORDER BY expires_at LIMIT ?)",
                (Col(before), limit as i64),
            )
        })
    }
}

fn read(row: &Row<'_>) -> rusqlite::Result<BrowserSession> {
    let user = match get_opt(row, 7)? {
        None => None,
        Some(role) => Some(SessionUser {
            issuer: row.get(4)?,
            subject: row.get(5)?,
            name: row.get(6)?,
            role,
            login_hash: row.get(8)?,
        }),
    };
    Ok(BrowserSession {
        id: row.get(0)?,
        key_hash: row.get(1)?,
        user,
        created_at: get(row, 2)?,
        expires_at: get(row, 3)?,
    })
}
