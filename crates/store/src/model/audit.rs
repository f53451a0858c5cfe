//! The log of changes.

use std::net::IpAddr;

use redrive_core::{AuditId, KeyId, TenantId, Time};

/// Something that somebody changed, or tried to.
#[derive(Clone, Debug, PartialEq)]
pub struct AuditEntry {
    /// Its id, which begins with its time.
    pub id: AuditId,
    /// Whose thing it was; none for what belongs to no tenant.
    pub tenant: Option<TenantId>,
    /// Who did it, in words.
    pub actor: String,
    /// By which key; none for the admin key that was configured, or Redrive itself.
    pub key: Option<KeyId>,
    /// From where; none if nowhere in particular.
    pub address: Option<IpAddr>,
    /// What was done, such as `webhook.update`.
    pub action: String,
    /// The id of the thing; none if it had none yet.
    pub object: Option<String>,
    /// How it ended; none if that is not known, since the process was killed meanwhile.
    pub end: Option<AuditEnd>,
}

/// How a change ended.
#[derive(Clone, Debug, PartialEq)]
pub struct AuditEnd {
    /// `done`, or why not.
    pub result: String,
    /// The id of the thing, where it was made.
    pub object: Option<String>,
    /// The thing before, without its secrets, as JSON.
    pub before: Option<String>,
    /// The thing afterwards, without its secrets, as JSON.
    pub after: Option<String>,
}

/// Which entries are wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditFilter {
    /// Of this tenant; of all and of none if left out.
    pub tenant: Option<TenantId>,
    /// With an action that begins like this.
    pub action: Option<String>,
    /// About this thing.
    pub object: Option<String>,
    /// From this time on.
    pub from: Option<Time>,
    /// Before this time.
    pub to: Option<Time>,
}
