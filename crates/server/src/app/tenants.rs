//! Tenants and their keys, for admins.

use redrive_core::{Invalid, KeyId, TenantId, tenant::TenantRules};
use redrive_store::{ApiKey, PageRequest, Tenant};

use super::{App, AppError, Caller, Scope, auth::Role};

impl App {
    /// The tenant that a caller acts for. One that an admin names must exist.
    pub async fn acts_for(&self, caller: &Caller, named: Option<&str>) -> Result<TenantId, AppError> {
        let tenant = caller.acts_for(named)?;
        if caller.role == Role::Admin && named.is_some() && !self.engine.registry().knows(&tenant) {
            self.tenant(tenant.clone()).await?;
        }
        Ok(tenant)
    }

    /// Makes a tenant.
    pub async fn create_tenant(
        &self,
        id: &str,
        name: Option<String>,
        rules: TenantRules,
    ) -> Result<Tenant, AppError> {
        let id = TenantId::parse(id).map_err(|invalid| Invalid::new("id", invalid.message))?;
        let tenant = Tenant { id, name, rules, created_at: self.engine.clock().now() };
        check(&tenant)?;
        if !self.store().create_tenant(tenant.clone()).await? {
            return Err(AppError::conflict(
                "tenant_exists",
                format!("the tenant {} exists already", tenant.id),
            ));
        }
        Ok(tenant)
    }

    /// Changes a tenant.
    pub async fn change_tenant(
        &self,
        id: TenantId,
        change: impl FnOnce(&mut Tenant),
    ) -> Result<Tenant, AppError> {
        // One at a time, so that two changes of different fields both last.
        let _turn = self.changing_tenants.lock().await;
        let mut tenant = self.tenant(id).await?;
        change(&mut tenant);
        check(&tenant)?;
        match self.engine.change_tenant(tenant.clone()).await? {
            true => Ok(tenant),
            false => Err(AppError::NotFound("tenant")),
        }
    }

    /// One tenant.
    pub async fn tenant(&self, id: TenantId) -> Result<Tenant, AppError> {
        self.store().tenant(id).await?.ok_or(AppError::NotFound("tenant"))
    }

    /// Tenants by name.
    pub async fn list_tenants(&self, page: PageRequest<TenantId>) -> Result<Vec<Tenant>, AppError> {
        Ok(self.store().list_tenants(page).await?)
    }

    /// Makes a key for a tenant, or with none an admin key. The key itself is given this once.
    pub async fn create_key(
        &self,
        tenant: Option<TenantId>,
        name: String,
        scopes: &[Scope],
    ) -> Result<(ApiKey, String), AppError> {
        if name.len() > 256 || name.chars().any(char::is_control) {
            return Err(Invalid::new("name", "must be at most 256 bytes without control characters").into());
        }
        if scopes.is_empty() {
            return Err(Invalid::new("scopes", "must name at least one of publish, read, manage").into());
        }
        let now = self.engine.clock().now();
        let made = self.keys.create(self.store(), tenant, name, scopes, now).await?;
        made.ok_or(AppError::NotFound("tenant"))
    }

    /// The keys of a tenant, or with none the admin keys.
    pub async fn list_keys(
        &self,
        tenant: Option<TenantId>,
        page: PageRequest<KeyId>,
    ) -> Result<Vec<ApiKey>, AppError> {
        Ok(self.store().list_keys(tenant, page).await?)
    }

    /// Revokes a key; it stops working at once.
    pub async fn revoke_key(&self, tenant: Option<TenantId>, id: KeyId) -> Result<(), AppError> {
        let now = self.engine.clock().now();
        match self.keys.revoke(self.store(), tenant, id, now).await? {
            true => Ok(()),
            false => Err(AppError::NotFound("live API key")),
        }
    }
}

fn check(tenant: &Tenant) -> Result<(), AppError> {
    if tenant.name.as_ref().is_some_and(|name| name.len() > 256 || name.chars().any(char::is_control)) {
        return Err(Invalid::new("name", "must be at most 256 bytes without control characters").into());
    }
    Ok(tenant.rules.validate()?)
}
