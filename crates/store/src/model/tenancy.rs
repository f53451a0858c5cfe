//! Tenants and API keys.

use ipnet::IpNet;
use redrive_core::{KeyId, TenantId, Time, tenancy::TenantRules};

/// A tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenant {
    /// Its id.
    pub id: TenantId,
    /// A name for people.
    pub name: Option<String>,
    /// Who sends for it, and how fast.
    pub rules: TenantRules,
    /// When it was made.
    pub created_at: Time,
}

/// An API key, without the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiKey {
    /// Its id.
    pub id: KeyId,
    /// Whose it is; none for an admin key.
    pub tenant: Option<TenantId>,
    /// What it is for, in its owner's words.
    pub name: String,
    /// SHA-256 of the key.
    pub hash: [u8; 32],
    /// What it may do, as bits that the server gives meaning to.
    pub scopes: u32,
    /// Whether it is a session: short-lived, and not listed among the keys.
    pub session: bool,
    /// Where it may be used from; anywhere if empty.
    pub networks: Vec<IpNet>,
    /// When it was made.
    pub created_at: Time,
    /// From when on it is of no use.
    pub expires_at: Option<Time>,
    /// When it was revoked.
    pub revoked_at: Option<Time>,
    /// When it was last used, to about a minute.
    pub last_used_at: Option<Time>,
}
