//! Who is calling, and what they may do.

use redrive_core::{KeyId, TenantId, Time};
use redrive_store::ApiKey;

use super::AppError;

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
    fn only_an_admin_names_tenants() {
        let admin = Caller::configured_admin();
        assert_eq!(admin.acts_for(None).unwrap().as_str(), "default");
        assert_eq!(admin.acts_for(Some("acme")).unwrap().as_str(), "acme");
        assert!(key(&Scope::ALL).acts_for(Some("acme")).is_ok());
        assert!(key(&Scope::ALL).acts_for(Some("other")).is_err());
        assert!(key(&Scope::ALL).must_be_admin().is_err());
    }
}
