//! Sessions for the customers of whoever runs Redrive: a short-lived key to one tenant's things.

use std::time::Duration;

use redrive_core::{Invalid, KeyId, TenantId};
use redrive_store::ApiKey;

use super::{Actor, App, AppError, NewKey, Scope};

/// How long a session lasts if nobody says otherwise, and at the most.
pub const USUAL: Duration = Duration::from_secs(3600);
/// The longest.
pub const LONGEST: Duration = Duration::from_secs(24 * 3600);

impl App {
    /// Opens a session for a tenant: it sees and changes the tenant's webhooks and deliveries, and publishes nothing.
    pub async fn open_portal(
        &self,
        by: &Actor,
        tenant: TenantId,
        name: String,
        lasts: Duration,
    ) -> Result<(ApiKey, String), AppError> {
        if lasts.is_zero() || lasts > LONGEST {
            let most = LONGEST.as_secs();
            return Err(Invalid::new("expires_in", format!("must be from 1 to {most} seconds")).into());
        }
        let new = NewKey {
            tenant: Some(tenant),
            name,
            scopes: vec![Scope::Read, Scope::Manage],
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
