//! The audit log.

use std::net::IpAddr;

use redrive_core::{AuditId, KeyId, TenantId, Time};

/// A change that was made or attempted.
#[derive(Clone, Debug, PartialEq)]
pub struct AuditEntry {
    /// Id, which begins with the time.
    pub id: AuditId,
    /// Tenant of the changed object; `None` if it belongs to no tenant.
    pub tenant_id: Option<TenantId>,
    /// Name of the actor.
    pub actor: String,
    /// Subject of the actor at the identity provider; `None` if the actor is no user.
    pub subject: Option<String>,
    /// API key of the actor; `None` for users, the configured admin key and Redrive itself.
    pub key: Option<KeyId>,
    /// Client address; `None` if there is none.
    pub address: Option<IpAddr>,
    /// Action, such as `webhook.update`.
    pub action: String,
    /// Id of the object; `None` if it had none yet.
    pub object: Option<String>,
    /// Result; `None` if it is unknown because the process was killed before the change ended.
    pub end: Option<AuditEnd>,
}

/// Result of a change.
#[derive(Clone, Debug, PartialEq)]
pub struct AuditEnd {
    /// `done`, or the reason for the failure.
    pub result: String,
    /// Id of the object, if the change created it.
    pub object: Option<String>,
    /// The object before the change, without its secrets, as JSON.
    pub before: Option<String>,
    /// The object after the change, without its secrets, as JSON.
    pub after: Option<String>,
}

/// Filter of audit entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditFilter {
    /// Only this tenant; `None` for all entries, including those without a tenant.
    pub tenant_id: Option<TenantId>,
    /// Only actions with this prefix.
    pub action: Option<String>,
    /// Only this object.
    pub object: Option<String>,
    /// From this time on.
    pub from: Option<Time>,
    /// Before this time.
    pub to: Option<Time>,
}
