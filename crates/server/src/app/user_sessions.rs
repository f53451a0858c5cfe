//! Sessions of all users, for admins: the list, and ending one of them or all of a user.

use redrive_core::Time;
use redrive_engine::clock;
use redrive_store::{BrowserSession, PageRequest, SessionCursor, SessionUser};

use super::{
    Actor, App, AppError,
    audit::{AuditChange, AuditedAction},
    session::with_timeout,
    user_login::user_hash,
};

/// Prefix of the subjects of users in the audit log.
const AUDIT_PREFIX: &str = "oidc:";

/// A live session of a user.
#[derive(Clone, Debug)]
pub struct UserSession {
    /// The user.
    pub user: SessionUser,
    /// The stored session.
    pub stored: BrowserSession,
    /// Last use on this node since it started, accurate to a second.
    pub last_used_at: Option<Time>,
}

impl App {
    /// Lists the live sessions of all users, newest first.
    pub async fn list_user_sessions(
        &self,
        page: PageRequest<SessionCursor>,
    ) -> Result<Vec<UserSession>, AppError> {
        let (now, monotonic) = (self.engine.clock().now(), clock::monotonic_now());
        let stored = with_timeout(self.store().list_user_sessions(now, page)).await?;
        let live = stored.into_iter().filter_map(|stored| {
            let user = stored.user.clone()?;
            let unused_for = self.sessions.unused_for(&stored.id, monotonic);
            Some(UserSession { user, stored, last_used_at: unused_for.map(|time| now.saturating_sub(time)) })
        });
        Ok(live.collect())
    }

    /// Ends one session of a user.
    pub async fn end_user_session(&self, actor: &Actor, id: [u8; 32]) -> Result<(), AppError> {
        let missing = || AppError::NotFound("session; it may have ended already");
        let stored = with_timeout(self.store().browser_session(id)).await?.ok_or_else(missing)?;
        // The sessions of a key end with the key.
        let user = stored.user.ok_or_else(missing)?;
        let object = Some(format!("{AUDIT_PREFIX}{}", user.subject));
        let audited = AuditedAction { action: "user.end_session", tenant: None, object };
        self.with_audit(actor, audited, async {
            match with_timeout(self.store().delete_browser_session(id)).await? {
                true => Ok(((), AuditChange::default())),
                false => Err(missing()),
            }
        })
        .await?;
        self.sessions.evict(|cached| cached.id == id);
        Ok(())
    }

    /// Ends all sessions of a user, and returns their number. The subject may have the prefix that the audit log adds. Without the identity provider, there are none.
    pub async fn end_sessions_of_user(&self, actor: &Actor, subject: &str) -> Result<usize, AppError> {
        let Some(provider) = self.identity_provider() else {
            return Err(AppError::NotFound("user; no identity provider is configured"));
        };
        let without_prefix = subject.strip_prefix(AUDIT_PREFIX).unwrap_or(subject);
        // A provider may assign a subject that begins like the prefix.
        let key_hashes = [subject, without_prefix].map(|one| user_hash(provider.issuer(), one));
        let object = Some(format!("{AUDIT_PREFIX}{without_prefix}"));
        let audited = AuditedAction { action: "user.end_sessions", tenant: None, object };
        let ended = self.with_audit(actor, audited, async {
            let mut ended = 0;
            for key_hash in key_hashes {
                ended += with_timeout(self.store().delete_browser_sessions_of_key(key_hash)).await?;
            }
            Ok((ended, AuditChange::default()))
        });
        let ended = ended.await?;
        self.sessions.evict(|cached| key_hashes.contains(&cached.key_hash));
        Ok(ended)
    }
}
