//! Notification preferences of a tenant, and unsubscription by an email link without a login.

use std::{net::IpAddr, sync::Arc};

use redrive_core::{TenantId, notification::preferences::TenantPreferences};
use redrive_store::{PageRequest, Unsubscription, UnsubscriptionCursor};
use serde_json::json;

use super::{
    Actor, App, AppError, Caller,
    audit::{AuditChange, AuditedAction},
    auth::Role,
};
use crate::mail::links::UnsubscribeToken;

impl App {
    /// Returns the notification preferences of a tenant.
    pub async fn notification_preferences(&self, tenant_id: TenantId) -> Result<TenantPreferences, AppError> {
        Ok(self.tenant(tenant_id).await?.rules.notifications)
    }

    /// Changes the notification preferences of a tenant.
    pub async fn change_notification_preferences(
        &self,
        actor: &Actor,
        tenant_id: TenantId,
        change: impl FnOnce(&mut TenantPreferences),
    ) -> Result<TenantPreferences, AppError> {
        let changed =
            self.change_tenant(actor, tenant_id, |tenant| change(&mut tenant.rules.notifications)).await?;
        Ok(changed.rules.notifications)
    }

    /// Lists the unsubscriptions of a tenant, by address and kind.
    pub async fn list_unsubscribed(
        &self,
        tenant_id: TenantId,
        page: PageRequest<UnsubscriptionCursor>,
    ) -> Result<Vec<Unsubscription>, AppError> {
        Ok(self.store().list_unsubscribed(tenant_id, page).await?)
    }

    /// Returns the content of an unsubscribe link's token and the display name of its tenant. Returns `None` if the
    /// token was not issued here or the tenant was deleted.
    pub(crate) async fn unsubscribe_target(
        &self,
        token: &str,
    ) -> Result<Option<(UnsubscribeToken, String)>, AppError> {
        let Some(token) = UnsubscribeToken::open(self.sessions.vault(), token) else { return Ok(None) };
        let tenant = self.store().tenant(token.tenant_id.clone()).await?;
        Ok(tenant.map(|tenant| (token, tenant.name.unwrap_or_else(|| tenant.id.to_string()))))
    }

    /// Unsubscribes an address by the token of an email link. Possession of the link is the authorization.
    pub(crate) async fn unsubscribe(
        &self,
        token: &UnsubscribeToken,
        from: Option<IpAddr>,
    ) -> Result<(), AppError> {
        let UnsubscribeToken { tenant_id, kind, address, .. } = token;
        let known = self.store().unsubscribed(tenant_id.clone(), *kind, vec![address.clone()]).await?;
        if !known.is_empty() {
            // Repeated request, perhaps by a link scanner: nothing to change or to audit.
            return Ok(());
        }
        let actor = holder_of(tenant_id, address, from);
        let object = Some(address.clone());
        let audited = AuditedAction { action: "notifications.unsubscribe", tenant: Some(tenant_id), object };
        self.with_audit(&actor, audited, async {
            let now = self.engine.clock().now();
            self.store().unsubscribe(tenant_id.clone(), address.clone(), *kind, now).await?;
            Ok(((), AuditChange { after: Some(json!({"kind": kind})), ..AuditChange::default() }))
        })
        .await
    }

    /// Reverts `unsubscribe` with the same link, which only the holder of the address has.
    pub(crate) async fn resubscribe(
        &self,
        token: &UnsubscribeToken,
        from: Option<IpAddr>,
    ) -> Result<(), AppError> {
        let UnsubscribeToken { tenant_id, kind, address, .. } = token;
        let known = self.store().unsubscribed(tenant_id.clone(), *kind, vec![address.clone()]).await?;
        if known.is_empty() {
            return Ok(());
        }
        let actor = holder_of(tenant_id, address, from);
        let object = Some(address.clone());
        let audited = AuditedAction { action: "notifications.resubscribe", tenant: Some(tenant_id), object };
        self.with_audit(&actor, audited, async {
            self.store().resubscribe(tenant_id.clone(), address.clone(), Some(*kind)).await?;
            Ok(((), AuditChange { after: Some(json!({"kind": kind})), ..AuditChange::default() }))
        })
        .await
    }
}

/// Returns the actor for the holder of an address who used a link in an email.
pub(super) fn holder_of(tenant_id: &TenantId, address: &str, from: Option<IpAddr>) -> Actor {
    let role = Role::Tenant { tenant_id: tenant_id.clone(), scopes: 0 };
    let name = format!("{address}, by an email link");
    let caller = Caller { role, ..Caller::unlimited(&name) };
    Actor { caller: Arc::new(caller), address: from }
}
