//! Tenants and their keys, for admins.

use std::sync::Arc;

use redrive_core::{
    FieldError, KeyId, TenantId, Time,
    metadata::{self, Metadata},
    statistics::tenant_health::TenantHealth,
    tenancy::TenantRules,
};
use redrive_store::{ApiKey, CreationKey, CreationResult, NewObject, PageRequest, Tenant, Visibility};

use super::{
    Actor, App, AppError, Caller, ErrorCode, NewKey, TenantView,
    across_tenants::{AllTenants, TenantChange, TenantOrder},
    audit::{self, AuditChange, AuditedAction},
    creations::key_used,
    keys::KeyCreation,
};

/// A tenant of a listing. Its health is unknown if it was created after the last count.
#[derive(Clone, Debug)]
pub struct TenantWithHealth {
    /// The tenant.
    pub tenant: Tenant,
    /// Its health.
    pub health: Option<TenantHealth>,
}

/// Maximum number of networks that a key can be restricted to.
const MAX_NETWORKS: usize = 50;

impl App {
    /// Returns the tenant that a caller acts for, with what the caller may see. A tenant named by a caller of all tenants must exist.
    pub async fn resolve_tenant(&self, caller: &Caller, named: Option<&str>) -> Result<TenantView, AppError> {
        let tenant_id = caller.resolve_tenant(named)?;
        if caller.may_view_all_tenants() && named.is_some() && !self.engine.router().knows(&tenant_id) {
            self.tenant(tenant_id.clone()).await?;
        }
        Ok(caller.view_of(tenant_id))
    }

    /// Returns the tenant in the path of a page. One that the caller may not view is reported as not found.
    pub async fn resolve_tenant_in_path(&self, caller: &Caller, named: &str) -> Result<TenantView, AppError> {
        let tenant_id = caller.resolve_tenant(Some(named)).map_err(|_| AppError::NotFound("tenant"))?;
        self.resolve_tenant(caller, Some(tenant_id.as_str())).await
    }

    /// Returns a tenant with default settings that is not stored.
    pub fn new_tenant(&self, id: &str) -> Result<Tenant, AppError> {
        let id = TenantId::parse(id).map_err(|invalid| FieldError::new("id", invalid.message))?;
        let created_at = self.engine.clock().now();
        let (metadata, rules) = (Metadata::default(), TenantRules::default());
        Ok(Tenant { id, name: None, metadata, rules, created_at })
    }

    /// Creates a tenant. With a key, it is created only if the key was not used before.
    pub async fn create_tenant(
        &self,
        actor: &Actor,
        tenant: Tenant,
        key: Option<CreationKey>,
    ) -> Result<Tenant, AppError> {
        check(&tenant)?;
        let id = tenant.id.clone();
        let audited =
            AuditedAction { action: "tenant.create", tenant: Some(&id), object: Some(id.to_string()) };
        let created = self.with_audit(actor, audited, async {
            let created = match key {
                None => self.store().create_tenant(tenant.clone()).await?,
                Some(key) => match self.store().create(NewObject::Tenant(tenant.clone()), key).await? {
                    CreationResult::KeyUsed(_) => return Err(key_used()),
                    created => matches!(created, CreationResult::Created { .. }),
                },
            };
            if !created {
                return Err(tenant_exists(&tenant.id));
            }
            let after = Some(audit::tenant_json(&tenant));
            Ok((tenant, AuditChange { after, ..AuditChange::default() }))
        });
        let created = created.await?;
        self.tenant_health.apply(TenantChange::Stored(created.clone()));
        self.request_confirmations(&created.id, &created.rules.notifications.emails).await;
        Ok(created)
    }

    /// Changes a tenant, or creates it if it does not exist. Returns whether it was created.
    pub async fn put_tenant(
        &self,
        actor: &Actor,
        id: &str,
        change: impl Fn(&mut Tenant),
    ) -> Result<(Tenant, bool), AppError> {
        let new = self.new_tenant(id)?;
        loop {
            if self.store().tenant(new.id.clone()).await?.is_some() {
                match self.change_tenant(actor, new.id.clone(), &change).await {
                    Err(AppError::NotFound(_)) => {}
                    changed => return Ok((changed?, false)),
                }
            }
            let mut tenant = new.clone();
            change(&mut tenant);
            match self.create_tenant(actor, tenant, None).await {
                // It was created concurrently, unless it was deleted.
                Err(error) if error.code() == ErrorCode::TenantExists => {
                    self.store().tenant(new.id.clone()).await?.ok_or(error)?;
                }
                created => return Ok((created?, true)),
            }
        }
    }

    /// Returns the tenant that a caller names to publish or to open a portal session. With `create`, or if the server is
    /// set up to do so, a tenant that does not exist is created.
    pub async fn resolve_or_create_tenant(
        &self,
        actor: &Actor,
        named: Option<&str>,
        create: bool,
    ) -> Result<TenantView, AppError> {
        let (id, what) = match (self.resolve_tenant(actor, named).await, named) {
            (Err(AppError::NotFound(what)), Some(id)) => (id, what),
            (resolved, _) => return resolved,
        };
        match actor.may_create_tenants() {
            true if create || self.rules.create_tenants => {
                let (tenant, _) = self.put_tenant(actor, id, |_| {}).await?;
                Ok(actor.view_of(tenant.id))
            }
            false if create => {
                let why = "create_tenant: this caller may not create tenants; an admin key or a key of the \
                           installation may";
                Err(AppError::Forbidden(why.into()))
            }
            _ => Err(AppError::NotFound(what)),
        }
    }

    /// Changes a tenant.
    pub async fn change_tenant(
        &self,
        actor: &Actor,
        id: TenantId,
        change: impl FnOnce(&mut Tenant),
    ) -> Result<Tenant, AppError> {
        // Serialized, so that concurrent changes of different fields do not overwrite each other.
        let _guard = self.changing_tenants.lock().await;
        let mut tenant = self.tenant(id.clone()).await?;
        let before = Some(audit::tenant_json(&tenant));
        let emails = tenant.rules.notifications.emails.clone();
        change(&mut tenant);
        check(&tenant)?;
        let audited =
            AuditedAction { action: "tenant.update", tenant: Some(&id), object: Some(id.to_string()) };
        let changed = self.with_audit(actor, audited, async {
            if !self.engine.change_tenant(tenant.clone()).await? {
                return Err(AppError::NotFound("tenant"));
            }
            let after = Some(audit::tenant_json(&tenant));
            Ok((tenant, AuditChange { before, after, object: None }))
        });
        let changed = changed.await?;
        self.tenant_health.apply(TenantChange::Stored(changed.clone()));
        let all = changed.rules.notifications.emails.iter();
        let named: Vec<String> = all.filter(|email| !emails.contains(email)).cloned().collect();
        self.request_confirmations(&id, &named).await;
        Ok(changed)
    }

    /// Deletes a tenant: deletes its webhooks, revokes its keys and reserves its id forever. Its history is kept until
    /// it is pruned by the usual retention.
    pub async fn delete_tenant(&self, actor: &Actor, id: TenantId) -> Result<(), AppError> {
        let before = Some(audit::tenant_json(&self.tenant(id.clone()).await?));
        if id == TenantId::default() {
            return Err(AppError::conflict(
                ErrorCode::DefaultTenantProtected,
                "the tenant default cannot be deleted; delete its webhooks instead",
            ));
        }
        let audited =
            AuditedAction { action: "tenant.delete", tenant: Some(&id), object: Some(id.to_string()) };
        self.with_audit(actor, audited, async {
            loop {
                let page = PageRequest { after: None, offset: 0, limit: 100 };
                let webhooks = self.store().list_webhooks(id.clone(), Visibility::All, page).await?;
                if webhooks.is_empty() {
                    break;
                }
                for webhook in webhooks {
                    self.delete_webhook(actor, &id, webhook.id).await?;
                }
            }
            if !self.engine.delete_tenant(&id).await? {
                return Err(AppError::NotFound("tenant"));
            }
            self.tenant_health.apply(TenantChange::Deleted(id.clone()));
            self.keys.reload(self.store()).await?;
            Ok(((), AuditChange { before, ..AuditChange::default() }))
        })
        .await
    }

    /// Returns one tenant.
    pub async fn tenant(&self, id: TenantId) -> Result<Tenant, AppError> {
        self.store().tenant(id).await?.ok_or(AppError::NotFound("tenant"))
    }

    /// Lists tenants in the requested order. The cursor is the last tenant of the previous page.
    pub async fn list_tenants_with_health(
        self: &Arc<Self>,
        all: AllTenants,
        order: &TenantOrder,
        page: PageRequest<TenantId>,
    ) -> Result<(Vec<TenantWithHealth>, Time), AppError> {
        let health = self.health_of_all_tenants(all).await?;
        if order.is_by_id() {
            // A tenant that was created on another node may not have been counted yet.
            let found = self.list_tenants(order.prefix.as_deref(), page).await?;
            let with_health = |tenant: Tenant| {
                let counted = health.tenants.get(&tenant.id).map(|one| one.health);
                TenantWithHealth { tenant, health: counted }
            };
            return Ok((found.into_iter().map(with_health).collect(), health.counted_at));
        }
        let sorted = health.sorted(order);
        let begin = match &page.after {
            None => 0,
            Some(after) => {
                let last = sorted.iter().position(|one| one.tenant.id == *after);
                1 + last.ok_or_else(|| {
                    FieldError::new(
                        "cursor",
                        "names a tenant that is no longer listed; start from the first page",
                    )
                })?
            }
        };
        let listed = sorted.into_iter().skip(begin + page.offset as usize).take(page.limit as usize);
        let listed = listed
            .map(|one| TenantWithHealth { tenant: one.tenant.clone(), health: Some(one.health) })
            .collect();
        Ok((listed, health.counted_at))
    }

    /// Lists tenants by id, optionally only those whose id starts with a prefix.
    pub async fn list_tenants(
        &self,
        prefix: Option<&str>,
        mut page: PageRequest<TenantId>,
    ) -> Result<Vec<Tenant>, AppError> {
        let Some(prefix) = prefix else { return Ok(self.store().list_tenants(page).await?) };
        // A prefix that is not a valid id matches no tenant.
        let Ok(first) = TenantId::parse(prefix) else { return Ok(Vec::new()) };
        let mut found = Vec::new();
        if page.after.as_ref().is_none_or(|after| *after < first) {
            // In id order the prefix itself comes first, directly followed by all ids that start with it.
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

    /// Creates a key for a tenant, or for the installation without one. Returns it with its secret, which is not
    /// available later. With an idempotency key, it is created only if that key was not used before.
    pub async fn create_key(
        &self,
        actor: &Actor,
        new: NewKey,
        key: Option<CreationKey>,
    ) -> Result<(ApiKey, String), AppError> {
        let now = self.engine.clock().now();
        check_key(&new, now)?;
        let tenant_id = new.tenant_id.clone();
        let action = if new.session { "portal_session.create" } else { "api_key.create" };
        let audited = AuditedAction { action, tenant: tenant_id.as_ref(), object: None };
        self.with_audit(actor, audited, async {
            let created = self.keys.create(self.store(), new, now, key).await?;
            let (key, secret) = match created {
                KeyCreation::Created(key, secret) => (*key, secret),
                KeyCreation::NoTenant => return Err(AppError::NotFound("tenant")),
                KeyCreation::KeyUsed => return Err(key_used()),
            };
            let (object, after) = (Some(key.id.to_string()), Some(audit::key_json(&key)));
            Ok(((key, secret), AuditChange { object, after, before: None }))
        })
        .await
    }

    /// Returns a key of a tenant, or of the installation, even if it was revoked.
    pub async fn key(&self, tenant_id: Option<TenantId>, id: KeyId) -> Result<ApiKey, AppError> {
        self.store().key(tenant_id, id).await?.ok_or(AppError::NotFound("API key"))
    }

    /// Lists the keys of a tenant, or the admin keys without one.
    pub async fn list_keys(
        &self,
        tenant_id: Option<TenantId>,
        page: PageRequest<KeyId>,
    ) -> Result<Vec<ApiKey>, AppError> {
        Ok(self.store().list_keys(tenant_id, page).await?)
    }

    /// Revokes a key, which stops working immediately.
    pub async fn revoke_key(
        &self,
        actor: &Actor,
        tenant_id: Option<TenantId>,
        id: KeyId,
    ) -> Result<(), AppError> {
        let now = self.engine.clock().now();
        let owner = tenant_id.clone();
        let audited =
            AuditedAction { action: "api_key.revoke", tenant: owner.as_ref(), object: Some(id.to_string()) };
        self.with_audit(actor, audited, async {
            match self.keys.revoke(self.store(), tenant_id, id, now).await? {
                true => Ok(((), AuditChange::default())),
                false => Err(AppError::NotFound("active API key")),
            }
        })
        .await
    }
}

fn tenant_exists(id: &TenantId) -> AppError {
    let detail = format!("the tenant {id} exists or was deleted; ids are not reused, choose another one");
    AppError::conflict(ErrorCode::TenantExists, detail)
}

fn check_key(new: &NewKey, now: Time) -> Result<(), AppError> {
    if new.name.len() > 256 || new.name.chars().any(char::is_control) {
        return Err(FieldError::new("name", "must be at most 256 bytes without control characters").into());
    }
    if new.scopes.is_empty() {
        return Err(FieldError::new("scopes", "must name at least one of publish, read, manage").into());
    }
    if new.networks.len() > MAX_NETWORKS {
        return Err(FieldError::new("allowed_networks", format!("must be at most {MAX_NETWORKS}")).into());
    }
    match new.expires_at {
        Some(at) if at <= now => {
            Err(FieldError::new("expires_at", format!("must be in the future; the time is {now}")).into())
        }
        _ => Ok(()),
    }
}

fn check(tenant: &Tenant) -> Result<(), AppError> {
    if tenant.name.as_ref().is_some_and(|name| name.len() > 256 || name.chars().any(char::is_control)) {
        return Err(FieldError::new("name", "must be at most 256 bytes without control characters").into());
    }
    metadata::validate(&tenant.metadata)?;
    Ok(tenant.rules.validate()?)
}
