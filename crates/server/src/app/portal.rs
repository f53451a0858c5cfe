//! Portal sessions: short-lived keys that give a customer's users access to one tenant.

use std::time::Duration;

use redrive_core::{FieldError, KeyId, TenantId};
use redrive_store::{ApiKey, CreationKey};

use super::{Actor, App, AppError, Capability, NewKey, Scope};

/// Default lifetime of a session.
pub const DEFAULT_TTL: Duration = Duration::from_secs(3600);
/// Maximum lifetime of a session.
pub const MAX_TTL: Duration = Duration::from_secs(24 * 3600);

/// Returns the link that opens a session in a browser. The token is in the URL fragment, which browsers do not
/// send, so it reaches no server and no log.
pub fn link(base: &str, token: &str) -> String {
    format!("{base}/portal#{token}")
}

/// Portal session to open.
pub struct NewSession {
    /// User of the session, for the audit log.
    pub name: String,
    /// Lifetime.
    pub lasts: Duration,
    /// Capabilities of the session.
    pub capabilities: Vec<Capability>,
}

impl App {
    /// Returns the base URL for links to this server: the configured one, or the one of the current request.
    pub fn base_url(&self, reached: Option<String>) -> Result<String, AppError> {
        self.rules.public_url.clone().or(reached).ok_or_else(|| {
            let what = "is not a valid host for a link; send one, or set server.public_url";
            FieldError::new("Host", what).into()
        })
    }

    /// Creates a session for a tenant. It can read the tenant's webhooks and deliveries, change them according to its
    /// capabilities, and publish nothing.
    pub async fn open_portal(
        &self,
        actor: &Actor,
        tenant_id: TenantId,
        new: NewSession,
        key: Option<CreationKey>,
    ) -> Result<(ApiKey, String), AppError> {
        let NewSession { name, lasts, capabilities } = new;
        if lasts.is_zero() || lasts > MAX_TTL {
            let max = MAX_TTL.as_secs();
            return Err(FieldError::new("expires_in", format!("must be from 1 to {max} seconds")).into());
        }
        let new = NewKey {
            tenant_id: Some(tenant_id),
            name,
            scopes: vec![Scope::Read, Scope::Manage],
            capabilities,
            session: true,
            networks: Vec::new(),
            expires_at: Some(self.engine.clock().now() + lasts),
        };
        self.create_key(actor, new, key).await
    }

    /// Ends a session immediately.
    pub async fn close_portal(&self, actor: &Actor, tenant_id: TenantId, id: KeyId) -> Result<(), AppError> {
        if !self.keys.is_session(id) {
            return Err(AppError::NotFound("session"));
        }
        self.revoke_key(actor, Some(tenant_id), id).await
    }
}
