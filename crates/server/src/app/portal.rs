//! Sessions for the customers of whoever runs Redrive: a short-lived key to one tenant's things.

use std::time::Duration;

use redrive_core::{Invalid, KeyId, TenantId};
use redrive_store::ApiKey;

use super::{Actor, App, AppError, Capability, NewKey, Scope};

/// How long a session lasts if nobody says otherwise, and at the most.
pub const USUAL: Duration = Duration::from_secs(3600);
/// The longest.
pub const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// The link that opens a session in a browser. The token is in the fragment, which browsers keep to themselves: it
/// reaches no server and no log on the way.
pub fn link(base: &str, token: &str) -> String {
    format!("{base}/portal#{token}")
}

impl App {
    /// How links to this server begin: as the operator says, or as whoever asks has reached it.
    pub fn base_url(&self, reached: Option<String>) -> Result<String, AppError> {
        self.rules.public_url.clone().or(reached).ok_or_else(|| {
            let what = "names no host that a link could lead to; send one, or set server.public_url";
            Invalid::new("Host", what).into()
        })
    }

    /// Opens a session for a tenant: it sees the tenant's webhooks and deliveries, may do with them what its
    /// capabilities say, and publishes nothing.
    pub async fn open_portal(
        &self,
        by: &Actor,
        tenant: TenantId,
        name: String,
        lasts: Duration,
        capabilities: &[Capability],
    ) -> Result<(ApiKey, String), AppError> {
        if lasts.is_zero() || lasts > LONGEST {
            let most = LONGEST.as_secs();
            return Err(Invalid::new("expires_in", format!("must be from 1 to {most} seconds")).into());
        }
        let new = NewKey {
            tenant: Some(tenant),
            name,
            scopes: vec![Scope::Read, Scope::Manage],
            capabilities: capabilities.to_vec(),
            session: true,
            networks: Vec::new(),
            expires_at: Some(self.engine.clock().now() + lasts),
        };
        self.create_key(by, new).await
    }

    /// Ends a session at once.
    pub async fn close_portal(&self, by: &Actor, tenant: TenantId, id: KeyId) -> Result<(), AppError> {
        if !self.keys.is_session(id) {
            return Err(AppError::NotFound("session"));
        }
        self.revoke_key(by, Some(tenant), id).await
    }
}
