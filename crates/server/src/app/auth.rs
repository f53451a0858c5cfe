//! Authenticated callers and their permissions.

use redrive_core::{FieldError, KeyId, TenantId, Time, tenancy::user_role::UserRole};
use redrive_store::{ApiKey, SessionUser};

use super::{AppError, TenantView};

/// Value of `tenant_id` that selects all tenants.
pub const ALL_TENANTS: &str = "*";

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
    /// Id of the key; `None` for users and for the admin key from the configuration.
    pub key: Option<KeyId>,
    /// The user of the identity provider; `None` for a key.
    pub user: Option<User>,
    /// Name of the key or user, shown as the actor of a change.
    pub name: String,
    /// Permissions of the key or user.
    pub role: Role,
    /// Whether the key is a portal session.
    pub session: bool,
    /// Expiration time of the key.
    pub expires_at: Option<Time>,
}

/// User of the identity provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// Identifier of the user at the provider.
    pub subject: String,
    /// Id under which calls of the user are counted, as those of a key are under the id of the key.
    rate_limit_id: KeyId,
}

impl User {
    /// Returns how the audit log identifies the user.
    pub fn audit_subject(&self) -> String {
        format!("oidc:{}", self.subject)
    }
}

/// Permissions of a key or user.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Allows everything, in any tenant.
    Admin,
    /// Allows reading and changing what belongs to any tenant, except keys, settings of the tenant and erasure.
    Operator,
    /// Allows reading everything of any tenant.
    Viewer,
    /// Allows access to one tenant.
    Tenant {
        /// The tenant.
        tenant_id: TenantId,
        /// Scopes of the key, and capabilities of a session, as bits.
        scopes: u32,
    },
}

impl Role {
    /// Returns the tenant that the role is limited to. Returns `None` if it is valid for all tenants.
    pub fn tenant_id(&self) -> Option<&TenantId> {
        match self {
            Self::Admin | Self::Operator | Self::Viewer => None,
            Self::Tenant { tenant_id, .. } => Some(tenant_id),
        }
    }

    /// Returns the name of a role of users. Returns `None` for the permissions of a tenant's key.
    pub fn user_role_name(&self) -> Option<&'static str> {
        match self {
            Self::Admin => Some(UserRole::Admin.name()),
            Self::Operator => Some(UserRole::Operator.name()),
            Self::Viewer => Some(UserRole::Viewer.name()),
            Self::Tenant { .. } => None,
        }
    }
}

impl From<UserRole> for Role {
    fn from(role: UserRole) -> Self {
        match role {
            UserRole::Viewer => Self::Viewer,
            UserRole::Operator => Self::Operator,
            UserRole::Admin => Self::Admin,
        }
    }
}

impl Caller {
    /// Returns the caller for the admin key from the configuration.
    pub(super) fn configured_admin() -> Self {
        Self::unlimited("admin")
    }

    /// Returns a caller that is neither a stored key nor a user, and may do everything.
    pub(crate) fn unlimited(name: &str) -> Self {
        Self { key: None, user: None, name: name.into(), role: Role::Admin, session: false, expires_at: None }
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
        Self { key: Some(key.id), user: None, name, role, session: key.session, expires_at: key.expires_at }
    }

    /// Returns the caller for the user of a session. `user_hash` identifies the user.
    pub(super) fn from_user(user_hash: [u8; 32], user: &SessionUser) -> Self {
        let mut rate_limit_id = [0; 16];
        rate_limit_id.copy_from_slice(&user_hash[..16]);
        Self {
            key: None,
            user: Some(User {
                subject: user.subject.clone(),
                rate_limit_id: KeyId::from_bytes(rate_limit_id),
            }),
            name: user.name.clone(),
            role: user.role.into(),
            session: false,
            expires_at: None,
        }
    }

    /// Returns the id under which calls are counted for the rate limit; `None` for the configured admin key.
    pub fn rate_limit_id(&self) -> Option<KeyId> {
        self.user.as_ref().map(|user| user.rate_limit_id).or(self.key)
    }

    /// Returns whether the caller may view the data of every tenant.
    pub fn may_view_all_tenants(&self) -> bool {
        self.role.tenant_id().is_none()
    }

    /// Returns the tenant to act for. A caller that is limited to one tenant may not name another one.
    pub fn resolve_tenant(&self, named: Option<&str>) -> Result<TenantId, AppError> {
        match &self.role {
            Role::Admin | Role::Operator | Role::Viewer if named == Some(ALL_TENANTS) => {
                let detail = "* (all tenants) is accepted only by listings; name one tenant";
                Err(FieldError::new("tenant_id", detail).into())
            }
            Role::Admin | Role::Operator | Role::Viewer => {
                Ok(named.map(TenantId::parse).transpose()?.unwrap_or_default())
            }
            Role::Tenant { tenant_id, .. } if named.is_none_or(|named| named == tenant_id.as_str()) => {
                Ok(tenant_id.clone())
            }
            Role::Tenant { .. } => Err(AppError::Forbidden("tenant_id names another tenant; omit it".into())),
        }
    }

    /// Rejects a key without this scope, and a user whose role does not include it.
    pub fn require_scope(&self, scope: Scope) -> Result<(), AppError> {
        let scopes = match &self.role {
            Role::Admin | Role::Operator => return Ok(()),
            Role::Viewer if scope == Scope::Read => return Ok(()),
            Role::Viewer => {
                let why = "the role viewer may not change anything or publish; ask an administrator for the role operator";
                return Err(AppError::Forbidden(why.into()));
            }
            Role::Tenant { scopes, .. } => scopes,
        };
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
            Role::Admin | Role::Operator | Role::Tenant { .. } => true,
            Role::Viewer => capability == Capability::View,
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

    /// Returns whether the caller may create tenants.
    pub fn may_create_tenants(&self) -> bool {
        self.role == Role::Admin
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
            Role::Operator | Role::Viewer => Err(AppError::Forbidden("the role admin is required".into())),
            Role::Tenant { .. } => Err(AppError::Forbidden("an admin key is required".into())),
        }
    }

    /// Rejects callers that may not erase payloads, which cannot be undone: portal sessions and operators.
    pub fn require_erasure(&self) -> Result<(), AppError> {
        self.require_scope(Scope::Manage)?;
        self.reject_portal_session()?;
        match self.role {
            Role::Operator | Role::Viewer => self.require_admin(),
            Role::Admin | Role::Tenant { .. } => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(scopes: &[Scope]) -> Caller {
        let role =
            Role::Tenant { tenant_id: TenantId::parse("acme").unwrap(), scopes: Scope::to_bits(scopes) };
        Caller { role, ..Caller::unlimited("test") }
    }

    #[test]
    fn roles_of_users_include_each_other() {
        let user = |role: UserRole| Caller { role: role.into(), ..Caller::unlimited("jane") };
        let [viewer, operator, admin] = UserRole::ALL.map(user);
        for scope in Scope::ALL {
            assert_eq!(viewer.require_scope(scope).is_ok(), scope == Scope::Read, "{scope:?}");
            assert!(operator.require_scope(scope).is_ok() && admin.require_scope(scope).is_ok());
        }
        for capability in Capability::ALL {
            assert_eq!(viewer.is_capable(capability), capability == Capability::View, "{capability:?}");
            assert!(operator.is_capable(capability) && admin.is_capable(capability));
        }
        for caller in [&viewer, &operator, &admin] {
            assert!(caller.may_view_all_tenants() && caller.require_all_tenants().is_ok());
            assert_eq!(caller.resolve_tenant(Some("acme")).unwrap().as_str(), "acme");
            assert_eq!(caller.require_admin().is_ok(), caller.role == Role::Admin);
            assert_eq!(caller.require_erasure().is_ok(), caller.role == Role::Admin);
        }
        let tenant = key(&Scope::ALL);
        assert!(!tenant.may_view_all_tenants() && tenant.require_all_tenants().is_err());
        assert!(tenant.require_erasure().is_ok());
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
            Caller { role, session: true, ..Caller::unlimited("test") }
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
        assert!(admin.require_all_tenants().is_ok() && key(&Scope::ALL).require_all_tenants().is_err());
        assert!(admin.resolve_tenant(Some("*")).unwrap_err().to_string().contains("only by listings"));
        assert!(matches!(key(&Scope::ALL).resolve_tenant(Some("*")), Err(AppError::Forbidden(_))));
    }
}
