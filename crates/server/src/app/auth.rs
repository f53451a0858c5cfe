//! Who is calling, and what they may do.

use redrive_core::{KeyId, TenantId, Time};
use redrive_store::ApiKey;

use super::{AppError, TenantView};

/// What a key may be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// Publish events.
    Publish,
    /// Look at everything of the tenant.
    Read,
    /// Change everything of the tenant; takes in `read`.
    Manage,
}

impl Scope {
    /// Every scope.
    pub const ALL: [Self; 3] = [Self::Publish, Self::Read, Self::Manage];

    fn bit(self) -> u32 {
        match self {
            Self::Publish => 1,
            Self::Read => 2,
            Self::Manage => 4,
        }
    }

    /// The name used everywhere.
    pub fn name(self) -> &'static str {
        match self {
            Self::Publish => "publish",
            Self::Read => "read",
            Self::Manage => "manage",
        }
    }

    /// Scopes as they are stored.
    pub fn to_bits(scopes: &[Self]) -> u32 {
        scopes.iter().fold(0, |bits, scope| bits | scope.bit())
    }

    /// Scopes as they were stored.
    pub fn from_bits(bits: u32) -> Vec<Self> {
        Self::ALL.into_iter().filter(|scope| bits & scope.bit() != 0).collect()
    }
}

/// What a portal session may do beside looking.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Capability {
    /// Look at the tenant's webhooks, events and deliveries. Every session has it.
    View,
    /// Create, change, test, pause and delete webhooks, and change notification preferences.
    ManageEndpoints,
    /// Retry, replay, cancel and purge deliveries, singly and in bulk.
    Resend,
    /// See the signing secret of a webhook that it creates, choose it, and rotate it.
    Secrets,
    /// Change limits and retry settings of webhooks, within the server's defaults.
    Limits,
}

impl Capability {
    /// Every capability.
    pub const ALL: [Self; 5] = [Self::View, Self::ManageEndpoints, Self::Resend, Self::Secrets, Self::Limits];
    /// Those of a session for which none are named.
    pub const DEFAULT: [Self; 4] = [Self::View, Self::ManageEndpoints, Self::Resend, Self::Secrets];

    /// Stored with the key's scopes, whose bits are below 256.
    fn bit(self) -> u32 {
        match self {
            Self::View => 1 << 8,
            Self::ManageEndpoints => 1 << 9,
            Self::Resend => 1 << 10,
            Self::Secrets => 1 << 11,
            Self::Limits => 1 << 12,
        }
    }

    /// The name used everywhere.
    pub fn name(self) -> &'static str {
        match self {
            Self::View => "view",
            Self::ManageEndpoints => "manage_endpoints",
            Self::Resend => "resend",
            Self::Secrets => "secrets",
            Self::Limits => "limits",
        }
    }

    /// Capabilities as they are stored. `view` is always among them.
    pub fn to_bits(capabilities: &[Self]) -> u32 {
        capabilities.iter().fold(Self::View.bit(), |bits, capability| bits | capability.bit())
    }

    /// Capabilities as they were stored.
    pub fn from_bits(bits: u32) -> Vec<Self> {
        Self::ALL.into_iter().filter(|capability| bits & capability.bit() != 0).collect()
    }
}

/// Somebody with a valid key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The key; none for the admin key that was configured.
    pub key: Option<KeyId>,
    /// The key's name, for telling people who did something.
    pub name: String,
    /// What the key allows.
    pub role: Role,
    /// Whether the key is a customer's session.
    pub session: bool,
    /// From when on the key is of no use.
    pub expires_at: Option<Time>,
}

/// What a key allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// May do everything, for any tenant.
    Admin,
    /// Acts for one tenant.
    Tenant {
        /// The tenant.
        tenant: TenantId,
        /// What the key may be used for, as bits.
        scopes: u32,
    },
}

impl Caller {
    /// Whoever has the admin key that was configured.
    pub(super) fn configured_admin() -> Self {
        Self { key: None, name: "admin".into(), role: Role::Admin, session: false, expires_at: None }
    }

    /// Whoever has this key.
    pub(super) fn of(key: &ApiKey) -> Self {
        let role = match &key.tenant {
            None => Role::Admin,
            Some(tenant) => Role::Tenant { tenant: tenant.clone(), scopes: key.scopes },
        };
        let name = match key.name.as_str() {
            "" => key.id.to_string(),
            name => name.to_owned(),
        };
        Self { key: Some(key.id), name, role, session: key.session, expires_at: key.expires_at }
    }

    /// The tenant to act for. Only an admin may name another than its own.
    pub fn acts_for(&self, named: Option<&str>) -> Result<TenantId, AppError> {
        match &self.role {
            Role::Admin => Ok(named.map(TenantId::parse).transpose()?.unwrap_or_default()),
            Role::Tenant { tenant, .. } if named.is_none_or(|named| named == tenant.as_str()) => {
                Ok(tenant.clone())
            }
            Role::Tenant { .. } => {
                Err(AppError::Forbidden("tenant_id names another tenant; leave it out".into()))
            }
        }
    }

    /// Refuses a key without this scope.
    pub fn must_have(&self, scope: Scope) -> Result<(), AppError> {
        let Role::Tenant { scopes, .. } = &self.role else { return Ok(()) };
        let enough = scopes & scope.bit() != 0 || scope == Scope::Read && scopes & Scope::Manage.bit() != 0;
        if enough {
            return Ok(());
        }
        Err(AppError::Forbidden(format!("this key lacks the scope \"{}\"", scope.name())))
    }

    /// Whether it is no portal session, or one with this capability.
    pub fn is_capable(&self, capability: Capability) -> bool {
        match &self.role {
            Role::Tenant { scopes, .. } if self.session => scopes & capability.bit() != 0,
            Role::Admin | Role::Tenant { .. } => true,
        }
    }

    /// Refuses a portal session without this capability.
    pub fn must_be_capable(&self, capability: Capability) -> Result<(), AppError> {
        match self.is_capable(capability) {
            true => Ok(()),
            false => {
                let name = capability.name();
                Err(AppError::Forbidden(format!("this portal session lacks the capability \"{name}\"")))
            }
        }
    }

    /// A tenant's things as this caller sees them.
    pub fn view_of(&self, tenant: TenantId) -> TenantView {
        TenantView { id: tenant, tenant_managed_only: self.session }
    }

    /// Refuses the customers of whoever publishes.
    pub fn must_not_be_session(&self) -> Result<(), AppError> {
        match self.session {
            true => Err(AppError::Forbidden("this needs an API key; a portal session may not do it".into())),
            false => Ok(()),
        }
    }

    /// Refuses everybody but an admin.
    pub fn must_be_admin(&self) -> Result<(), AppError> {
        match self.role {
            Role::Admin => Ok(()),
            Role::Tenant { .. } => Err(AppError::Forbidden("this needs an admin key".into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(scopes: &[Scope]) -> Caller {
        let role = Role::Tenant { tenant: TenantId::parse("acme").unwrap(), scopes: Scope::to_bits(scopes) };
        Caller { key: None, name: "test".into(), role, session: false, expires_at: None }
    }

    #[test]
    fn scopes_are_kept_apart() {
        let may = |scopes: &[Scope], scope| key(scopes).must_have(scope).is_ok();
        assert!(may(&[Scope::Publish], Scope::Publish));
        assert!(!may(&[Scope::Publish], Scope::Read));
        assert!(!may(&[Scope::Read], Scope::Manage));
        assert!(may(&[Scope::Manage], Scope::Read), "whoever changes things sees them");
        assert!(!may(&[Scope::Manage], Scope::Publish));
        assert_eq!(Scope::from_bits(Scope::to_bits(&Scope::ALL)), Scope::ALL);
    }

    #[test]
    fn capabilities_are_kept_apart_and_bind_sessions_alone() {
        let session = |capabilities: &[Capability]| {
            let scopes = Scope::to_bits(&[Scope::Read]) | Capability::to_bits(capabilities);
            let role = Role::Tenant { tenant: TenantId::default(), scopes };
            Caller { key: None, name: "test".into(), role, session: true, expires_at: None }
        };
        for given in Capability::ALL {
            for asked in Capability::ALL {
                let expected = given == asked || asked == Capability::View;
                assert_eq!(session(&[given]).is_capable(asked), expected, "{given:?} {asked:?}");
                assert!(key(&[]).is_capable(asked) && Caller::configured_admin().is_capable(asked));
            }
        }
        assert_eq!(Capability::from_bits(Capability::to_bits(&Capability::ALL)), Capability::ALL);
        assert_eq!(Scope::from_bits(Capability::to_bits(&Capability::ALL)), []);
        assert!(!Capability::DEFAULT.contains(&Capability::Limits));
    }

    #[test]
    fn only_an_admin_names_tenants() {
        let admin = Caller::configured_admin();
        assert_eq!(admin.acts_for(None).unwrap().as_str(), "default");
        assert_eq!(admin.acts_for(Some("acme")).unwrap().as_str(), "acme");
        assert!(key(&Scope::ALL).acts_for(Some("acme")).is_ok());
        assert!(key(&Scope::ALL).acts_for(Some("other")).is_err());
        assert!(key(&Scope::ALL).must_be_admin().is_err());
    }
}
