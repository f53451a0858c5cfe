//! Tenants and their keys, for admins.

use redrive_core::{Invalid, KeyId, TenantId, Time, tenancy::TenantRules};
use redrive_store::{ApiKey, PageRequest, Tenant, Visibility};

use super::{
    Actor, App, AppError, Caller, NewKey, TenantView,
    audit::{self, Deed, Traces},
    auth::Role,
};

/// The most networks that a key may be bound to.
const MOST_NETWORKS: usize = 50;

impl App {
    /// The tenant that a caller acts for, as the caller sees it. One that an admin names must exist.
    pub async fn acts_for(&self, caller: &Caller, named: Option<&str>) -> Result<TenantView, AppError> {
        let tenant = caller.acts_for(named)?;
        if caller.role == Role::Admin && named.is_some() && !self.engine.registry().knows(&tenant) {
            self.tenant(tenant.clone()).await?;
        }
        Ok(caller.view_of(tenant))
    }

    /// Makes a tenant.
    pub async fn create_tenant(
        &self,
        by: &Actor,
        id: &str,
        name: Option<String>,
        rules: TenantRules,
    ) -> Result<Tenant, AppError> {
        let id = TenantId::parse(id).map_err(|invalid| Invalid::new("id", invalid.message))?;
        let tenant = Tenant { id: id.clone(), name, rules, created_at: self.engine.clock().now() };
        check(&tenant)?;
        let deed = Deed { action: "tenant.create", tenant: Some(&id), object: Some(id.to_string()) };
        let created = self.audited(by, deed, async {
            if !self.store().create_tenant(tenant.clone()).await? {
                return Err(AppError::conflict(
                    "tenant_exists",
                    format!("the tenant {} exists already, or did once; names are not used twice", tenant.id),
                ));
            }
            let after = Some(audit::of_tenant(&tenant));
            Ok((tenant, Traces { after, ..Traces::default() }))
        });
        let created = created.await?;
        self.request_confirmations(&created.id, &created.rules.notifications.emails).await;
        Ok(created)
    }

    /// Changes a tenant.
    pub async fn change_tenant(
        &self,
        by: &Actor,
        id: TenantId,
        change: impl FnOnce(&mut Tenant),
    ) -> Result<Tenant, AppError> {
        // One at a time, so that two changes of different fields both last.
        let _turn = self.changing_tenants.lock().await;
        let mut tenant = self.tenant(id.clone()).await?;
        let before = Some(audit::of_tenant(&tenant));
        let emails = tenant.rules.notifications.emails.clone();
        change(&mut tenant);
        check(&tenant)?;
        let deed = Deed { action: "tenant.update", tenant: Some(&id), object: Some(id.to_string()) };
        let changed = self.audited(by, deed, async {
            if !self.engine.change_tenant(tenant.clone()).await? {
                return Err(AppError::NotFound("tenant"));
            }
            let after = Some(audit::of_tenant(&tenant));
            Ok((tenant, Traces { before, after, object: None }))
        });
        let changed = changed.await?;
        let all = changed.rules.notifications.emails.iter();
        let named: Vec<String> = all.filter(|email| !emails.contains(email)).cloned().collect();
        self.request_confirmations(&id, &named).await;
        Ok(changed)
    }

    /// Ends a tenant: its webhooks are deleted, its keys revoked, and its name is never used again. Its history stays
    /// until it is forgotten with everything else of its time.
    pub async fn delete_tenant(&self, by: &Actor, id: TenantId) -> Result<(), AppError> {
        let before = Some(audit::of_tenant(&self.tenant(id.clone()).await?));
        if id == TenantId::default() {
            return Err(AppError::conflict(
                "default_tenant",
                "the tenant default is always there; delete its webhooks",
            ));
        }
        let deed = Deed { action: "tenant.delete", tenant: Some(&id), object: Some(id.to_string()) };
        self.audited(by, deed, async {
            loop {
                let page = PageRequest { after: None, offset: 0, limit: 100 };
                let webhooks = self.store().list_webhooks(id.clone(), Visibility::All, page).await?;
                if webhooks.is_empty() {
                    break;
                }
                for webhook in webhooks {
                    self.delete_webhook(by, &id, webhook.id).await?;
                }
            }
            if !self.engine.delete_tenant(&id).await? {
                return Err(AppError::NotFound("tenant"));
            }
            self.keys.reload(self.store()).await?;
            Ok(((), Traces { before, ..Traces::default() }))
        })
        .await
    }

    /// One tenant.
    pub async fn tenant(&self, id: TenantId) -> Result<Tenant, AppError> {
        self.store().tenant(id).await?.ok_or(AppError::NotFound("tenant"))
    }

    /// Tenants by name, all or those whose name begins like this.
    pub async fn list_tenants(
        &self,
        prefix: Option<&str>,
        mut page: PageRequest<TenantId>,
    ) -> Result<Vec<Tenant>, AppError> {
        let Some(prefix) = prefix else { return Ok(self.store().list_tenants(page).await?) };
        // What cannot be a name is the beginning of none.
        let Ok(first) = TenantId::parse(prefix) else { return Ok(Vec::new()) };
        let mut found = Vec::new();
        if page.after.as_ref().is_none_or(|after| *after < first) {
            // In the order of names the prefix itself comes first, and all that it begins follow at once.
            match (self.store().tenant(first.clone()).await?, page.offset) {
                (Some(whole), 0) => found.push(whole),
                (Some(_), _) => page.offset -= 1,
                (None, _) => {}
            }
            page.after = Some(first);
        }
        page.limit = page.limit.saturating_sub(found.len() as u32);
        let following = self.store().list_tenants(page).await?;
        found.extend(following.into_iter().take_while(|tenant| tenant.id.as_str().starts_with(prefix)));
        Ok(found)
    }

    /// Makes a key for a tenant, or with none an admin key. The key itself is given this once.
    pub async fn create_key(&self, by: &Actor, new: NewKey) -> Result<(ApiKey, String), AppError> {
        let now = self.engine.clock().now();
        check_key(&new, now)?;
        let tenant = new.tenant.clone();
        let action = if new.session { "portal_session.create" } else { "api_key.create" };
        let deed = Deed { action, tenant: tenant.as_ref(), object: None };
        self.audited(by, deed, async {
            let made = self.keys.create(self.store(), new, now).await?;
            let (key, secret) = made.ok_or(AppError::NotFound("tenant"))?;
            let (object, after) = (Some(key.id.to_string()), Some(audit::of_key(&key)));
            Ok(((key, secret), Traces { object, after, before: None }))
        })
        .await
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
    pub async fn revoke_key(&self, by: &Actor, tenant: Option<TenantId>, id: KeyId) -> Result<(), AppError> {
        let now = self.engine.clock().now();
        let owner = tenant.clone();
        let deed = Deed { action: "api_key.revoke", tenant: owner.as_ref(), object: Some(id.to_string()) };
        self.audited(by, deed, async {
            match self.keys.revoke(self.store(), tenant, id, now).await? {
                true => Ok(((), Traces::default())),
                false => Err(AppError::NotFound("live API key")),
            }
        })
        .await
    }
}

fn check_key(new: &NewKey, now: Time) -> Result<(), AppError> {
    if new.name.len() > 256 || new.name.chars().any(char::is_control) {
        return Err(Invalid::new("name", "must be at most 256 bytes without control characters").into());
    }
    if new.scopes.is_empty() {
        return Err(Invalid::new("scopes", "must name at least one of publish, read, manage").into());
    }
    if new.networks.len() > MOST_NETWORKS {
        return Err(Invalid::new("allowed_networks", format!("must be at most {MOST_NETWORKS}")).into());
    }
    match new.expires_at {
        Some(at) if at <= now => {
            Err(Invalid::new("expires_at", format!("must lie in the future; it is {now} now")).into())
        }
        _ => Ok(()),
    }
}

fn check(tenant: &Tenant) -> Result<(), AppError> {
    if tenant.name.as_ref().is_some_and(|name| name.len() > 256 || name.chars().any(char::is_control)) {
        return Err(Invalid::new("name", "must be at most 256 bytes without control characters").into());
    }
    Ok(tenant.rules.validate()?)
}
