//! Authenticated callers and their permissions.

use redrive_core::{KeyId, TenantId, Time};
use redrive_store::ApiKey;

use super::{AppError, TenantView};

/// Scope of an API key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// Publish events.
    Publish,
    /// Read everything of the tenant.
    Read,
    /// Change everything of the tenant; includes `read`.
    Manage,
}

impl Scope {
    /// All scopes.
    pub const ALL: [Self; 3] = [Self::Publish, Self::Read, Self::Manage];

    fn bit(self) -> u32 {
        match self {
            Self::Publish => 1,
            Self::Read => 2,
            Self::Manage => 4,
        }
    }

    /// Returns the name used in the API and in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Publish => "publish",
            Self::Read => "read",
            Self::Manage => "manage",
        }
    }

    /// Encodes scopes as stored bits.
    pub fn to_bits(scopes: &[Self]) -> u32 {
        scopes.iter().fold(0, |bits, scope| bits | scope.bit())
    }

    /// Decodes scopes from stored bits.
    pub fn from_bits(bits: u32) -> Vec<Self> {
        Self::ALL.into_iter().filter(|scope| bits & scope.bit() != 0).collect()
    }
}

/// Capability of a portal session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Capability {
    /// Read the tenant's webhooks, events and deliveries. Every session has it.
    View,
    /// Create, update, test, pause and delete webhooks, and change notification preferences.
    ManageEndpoints,
    /// Retry, replay, cancel and purge deliveries, individually and in bulk.
    Resend,
    /// Set, rotate and, on creation, see the signing secret of a webhook.
    Secrets,
    /// Change limits and retry settings of webhooks, within the server's defaults.
    Limits,
}

impl Capability {
    /// All capabilities.
    pub const ALL: [Self; 5] = [Self::View, Self::ManageEndpoints, Self::Resend, Self::Secrets, Self::Limits];
    /// Capabilities of a session that is created without an explicit list.
    pub const DEFAULT: [Self; 4] = [Self::View, Self::ManageEndpoints, Self::Resend, Self::Secrets];

    /// Returns the stored bit. Capabilities share the field with the scopes, whose bits are below 256.
    fn bit(self) -> u32 {
        match self {
            Self::View => 1 << 8,
            Self::ManageEndpoints => 1 << 9,
            Self::Resend => 1 << 10,
            Self::Secrets => 1 << 11,
            Self::Limits => 1 << 12,
        }
    }

    /// Returns the name used in the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::View => "view",
            Self::ManageEndpoints => "manage_endpoints",
            Self::Resend => "resend",
            Self::Secrets => "secrets",
            Self::Limits => "limits",
        }
    }

    /// Encodes capabilities as stored bits, always including `view`.
    pub fn to_bits(capabilities: &[Self]) -> u32 {
        capabilities.iter().fold(Self::View.bit(), |bits, capability| bits | capability.bit())
    }

    /// Decodes capabilities from stored bits.
    pub fn from_bits(bits: u32) -> Vec<Self> {
        Self::ALL.into_iter().filter(|capability| bits & capability.bit() != 0).collect()
    }
}

/// Caller with a valid key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Id of the key; `None` for the admin key from the configuration.
    pub key: Option<KeyId>,
    /// Name of the key, shown as the actor of a change.
    pub name: String,
    /// Permissions of the key.
    pub role: Role,
    /// Whether the key is a portal session.
    pub session: bool,
    /// Expiration time of the key.
    pub expires_at: Option<Time>,
}

/// Permissions of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// Allows everything, in any tenant.
    Admin,
    /// Allows access to one tenant.
    Tenant {
        /// The tenant.
        tenant_id: TenantId,
        /// Scopes of the key, and capabilities of a session, as bits.
        scopes: u32,
    },
}

impl Caller {
    /// Returns the caller for the admin key from the configuration.
    pub(super) fn configured_admin() -> Self {
        Self { key: None, name: "admin".into(), role: Role::Admin, session: false, expires_at: None }
    }

    /// Returns the caller for a stored key.
    pub(super) fn from_key(key: &ApiKey) -> Self {
        let role = match &key.tenant_id {
            None => Role::Admin,
            Some(tenant_id) => Role::Tenant { tenant_id: tenant_id.clone(), scopes: key.scopes },
        };
        let name = match key.name.as_str() {
            "" => key.id.to_string(),
            name => name.to_owned(),
        };
        Self { key: Some(key.id), name, role, session: key.session, expires_at: key.expires_at }
    }

    /// Returns the tenant to act for. Only an admin may name another tenant than its own.
    pub fn resolve_tenant(&self, named: Option<&str>) -> Result<TenantId, AppError> {
        match &self.role {
            Role::Admin => Ok(named.map(TenantId::parse).transpose()?.unwrap_or_default()),
            Role::Tenant { tenant_id, .. } if named.is_none_or(|named| named == tenant_id.as_str()) => {
                Ok(tenant_id.clone())
            }
            Role::Tenant { .. } => Err(AppError::Forbidden("tenant_id names another tenant; omit it".into())),
        }
    }

    /// Rejects a key without this scope.
    pub fn require_scope(&self, scope: Scope) -> Result<(), AppError> {
        let Role::Tenant { scopes, .. } = &self.role else { return Ok(()) };
        let enough = scopes & scope.bit() != 0 || scope == Scope::Read && scopes & Scope::Manage.bit() != 0;
        if enough {
            return Ok(());
        }
        Err(AppError::Forbidden(format!("this key lacks the scope \"{}\"", scope.name())))
    }

    /// Returns whether the caller is not a portal session, or is one with this capability.
    pub fn is_capable(&self, capability: Capability) -> bool {
        match &self.role {
            Role::Tenant { scopes, .. } if self.session => scopes & capability.bit() != 0,
            Role::Admin | Role::Tenant { .. } => true,
        }
    }

    /// Rejects a portal session without this capability.
    pub fn require_capability(&self, capability: Capability) -> Result<(), AppError> {
        match self.is_capable(capability) {
            true => Ok(()),
            false => {
                let name = capability.name();
                Err(AppError::Forbidden(format!("this portal session lacks the capability \"{name}\"")))
            }
        }
    }

    /// Returns the part of a tenant that this caller may see.
    pub fn view_of(&self, tenant_id: TenantId) -> TenantView {
        TenantView { id: tenant_id, tenant_managed_only: self.session }
    }

    /// Rejects portal sessions.
    pub fn reject_portal_session(&self) -> Result<(), AppError> {
        match self.session {
            true => {
                Err(AppError::Forbidden("an API key is required; portal sessions are not allowed".into()))
            }
            false => Ok(()),
        }
    }

    /// Rejects every caller except admins.
    pub fn require_admin(&self) -> Result<(), AppError> {
        match self.role {
            Role::Admin => Ok(()),
            Role::Tenant { .. } => Err(AppError::Forbidden("an admin key is required".into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(scopes: &[Scope]) -> Caller {
        let role =
            Role::Tenant { tenant_id: TenantId::parse("acme").unwrap(), scopes: Scope::to_bits(scopes) };
        Caller { key: None, name: "test".into(), role, session: false, expires_at: None }
    }

    #[test]
    fn scope_checks_are_separate_except_manage_includes_read() {
        let may = |scopes: &[Scope], scope| key(scopes).require_scope(scope).is_ok();
        assert!(may(&[Scope::Publish], Scope::Publish));
        assert!(!may(&[Scope::Publish], Scope::Read));
        assert!(!may(&[Scope::Read], Scope::Manage));
        assert!(may(&[Scope::Manage], Scope::Read), "manage includes read");
        assert!(!may(&[Scope::Manage], Scope::Publish));
        assert_eq!(Scope::from_bits(Scope::to_bits(&Scope::ALL)), Scope::ALL);
    }

    #[test]
    fn capability_checks_are_separate_and_apply_to_sessions_only() {
        let session = |capabilities: &[Capability]| {
            let scopes = Scope::to_bits(&[Scope::Read]) | Capability::to_bits(capabilities);
            let role = Role::Tenant { tenant_id: TenantId::default(), scopes };
            Caller { key: None, name: "test".into(), role, session: true, expires_at: None }
        };
        for given in Capability::ALL {
            for request in Capability::ALL {
                let expected = given == request || request == Capability::View;
                assert_eq!(session(&[given]).is_capable(request), expected, "{given:?} {request:?}");
                assert!(key(&[]).is_capable(request) && Caller::configured_admin().is_capable(request));
            }
        }
        assert_eq!(Capability::from_bits(Capability::to_bits(&Capability::ALL)), Capability::ALL);
        assert_eq!(Scope::from_bits(Capability::to_bits(&Capability::ALL)), []);
        assert!(!Capability::DEFAULT.contains(&Capability::Limits));
    }

    #[test]
    fn only_admin_may_name_another_tenant() {
        let admin = Caller::configured_admin();
        assert_eq!(admin.resolve_tenant(None).unwrap().as_str(), "default");
        assert_eq!(admin.resolve_tenant(Some("acme")).unwrap().as_str(), "acme");
        assert!(key(&Scope::ALL).resolve_tenant(Some("acme")).is_ok());
        assert!(key(&Scope::ALL).resolve_tenant(Some("other")).is_err());
        assert!(key(&Scope::ALL).require_admin().is_err());
    }
}
