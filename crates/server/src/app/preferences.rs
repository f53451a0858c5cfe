//! What a tenant's owners want to hear of, and ending mails by a link that needs no login.

use std::{net::IpAddr, sync::Arc};

use redrive_core::{TenantId, notification::preferences::Notifications};
use redrive_store::{PageRequest, Unsubscribed, UnsubscribedCursor};
use serde_json::json;

use super::{
    Actor, App, AppError, Caller,
    audit::{Deed, Traces},
    auth::Role,
};
use crate::mail::links::Ending;

impl App {
    /// What a tenant's owners want to hear of.
    pub async fn notifications(&self, tenant: TenantId) -> Result<Notifications, AppError> {
        Ok(self.tenant(tenant).await?.rules.notifications)
    }

    /// Changes what a tenant's owners want to hear of.
    pub async fn change_notifications(
        &self,
        by: &Actor,
        tenant: TenantId,
        change: impl FnOnce(&mut Notifications),
    ) -> Result<Notifications, AppError> {
        let changed =
            self.change_tenant(by, tenant, |tenant| change(&mut tenant.rules.notifications)).await?;
        Ok(changed.rules.notifications)
    }

    /// Addresses of a tenant that have unsubscribed, by address and kind.
    pub async fn list_unsubscribed(
        &self,
        tenant: TenantId,
        page: PageRequest<UnsubscribedCursor>,
    ) -> Result<Vec<Unsubscribed>, AppError> {
        Ok(self.store().list_unsubscribed(tenant, page).await?)
    }

    /// What the token of a link in a mail ends, and what people call the tenant. None if it is no token of ours, or the
    /// tenant is gone.
    pub(crate) async fn ending(&self, token: &str) -> Result<Option<(Ending, String)>, AppError> {
        let Some(ending) = Ending::open(self.sessions.vault(), token) else { return Ok(None) };
        let tenant = self.store().tenant(ending.tenant.clone()).await?;
        Ok(tenant.map(|tenant| (ending, tenant.name.unwrap_or_else(|| tenant.id.to_string()))))
    }

    /// Ends mails as the token of a link says. Whoever has the link got the mail.
    pub(crate) async fn unsubscribe(&self, ending: &Ending, from: Option<IpAddr>) -> Result<(), AppError> {
        let Ending { tenant, kind, address, .. } = ending;
        let known = self.store().unsubscribed(tenant.clone(), *kind, vec![address.clone()]).await?;
        if !known.is_empty() {
            // Asked again, perhaps by a machine: there is nothing to change, nor to note.
            return Ok(());
        }
        let by = holder_of(tenant, address, from);
        let object = Some(address.clone());
        let deed = Deed { action: "notifications.unsubscribe", tenant: Some(tenant), object };
        self.audited(&by, deed, async {
            let now = self.engine.clock().now();
            self.store().unsubscribe(tenant.clone(), address.clone(), *kind, now).await?;
            Ok(((), Traces { after: Some(json!({"kind": kind})), ..Traces::default() }))
        })
        .await
    }

    /// Undoes what `unsubscribe` did, by the same link: only the holder of the address has it.
    pub(crate) async fn resubscribe(&self, ending: &Ending, from: Option<IpAddr>) -> Result<(), AppError> {
        let Ending { tenant, kind, address, .. } = ending;
        let known = self.store().unsubscribed(tenant.clone(), *kind, vec![address.clone()]).await?;
        if known.is_empty() {
            return Ok(());
        }
        let by = holder_of(tenant, address, from);
        let object = Some(address.clone());
        let deed = Deed { action: "notifications.resubscribe", tenant: Some(tenant), object };
        self.audited(&by, deed, async {
            self.store().resubscribe(tenant.clone(), address.clone(), Some(*kind)).await?;
            Ok(((), Traces { after: Some(json!({"kind": kind})), ..Traces::default() }))
        })
        .await
    }
}

/// The holder of an address, who came by a link in an e-mail.
pub(super) fn holder_of(tenant: &TenantId, address: &str, from: Option<IpAddr>) -> Actor {
    let role = Role::Tenant { tenant: tenant.clone(), scopes: 0 };
    let name = format!("{address}, by a link in a mail");
    let caller = Caller { key: None, name, role, session: false, expires_at: None };
    Actor { caller: Arc::new(caller), address: from }
}
