//! Tenants and API keys.

use ipnet::IpNet;
use redrive_core::{KeyId, TenantId, Time, metadata::Metadata, tenancy::TenantRules};

/// A tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenant {
    /// Its id.
    pub id: TenantId,
    /// Display name.
    pub name: Option<String>,
    /// Metadata set by the application.
    pub metadata: Metadata,
    /// Its rules: pool, limits, quotas and notification preferences.
    pub rules: TenantRules,
    /// Creation time.
    pub created_at: Time,
}

/// An API key, without the key itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiKey {
    /// Its id.
    pub id: KeyId,
    /// Its tenant; `None` for a key of the whole installation.
    pub tenant_id: Option<TenantId>,
    /// Whether a key of the whole installation is limited to its scopes; otherwise it is an admin key.
    pub installation: bool,
    /// Name given by its owner.
    pub name: String,
    /// SHA-256 of the key.
    pub hash: [u8; 32],
    /// Scopes as bits, defined by the server.
    pub scopes: u32,
    /// Whether it is a portal session: short-lived, and not listed among the keys.
    pub session: bool,
    /// Networks it may be used from; any if empty.
    pub networks: Vec<IpNet>,
    /// Creation time.
    pub created_at: Time,
    /// Time from which it is invalid.
    pub expires_at: Option<Time>,
    /// Time of its revocation.
    pub revoked_at: Option<Time>,
    /// Time of its last use, to about a minute.
    pub last_used_at: Option<Time>,
}
