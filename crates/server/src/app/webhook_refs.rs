//! Webhooks that a request names by id or by uid.

use redrive_core::{
    FieldError, WebhookId,
    webhook::uid::{WebhookRef, WebhookUid},
};

use super::{App, AppError, TenantSelection, TenantView};

impl App {
    /// Returns the id of the webhook that a request for one tenant names. An id is returned without a check.
    pub async fn webhook_id(&self, tenant: &TenantView, named: &WebhookRef) -> Result<WebhookId, AppError> {
        match named {
            WebhookRef::Id(id) => Ok(*id),
            WebhookRef::Uid(uid) => {
                self.find_webhook_by_uid(tenant, uid).await?.ok_or(AppError::NotFound("webhook"))
            }
        }
    }

    /// Returns the ids of the webhooks that a request names, each once. Over all tenants, a uid names no webhook.
    pub async fn webhook_ids(
        &self,
        tenants: impl Into<TenantSelection>,
        named: &[WebhookRef],
    ) -> Result<Vec<WebhookId>, AppError> {
        let mut ids = Vec::with_capacity(named.len());
        let mut uids = Vec::new();
        for one in named {
            match one {
                WebhookRef::Id(id) => ids.push(*id),
                WebhookRef::Uid(uid) => uids.push(uid.clone()),
            }
        }
        if !uids.is_empty() {
            let TenantSelection::One(view) = tenants.into() else {
                let message = "names a webhook by its uid, which is unique in its tenant only; replace tenant_id=* \
                               with the id of a tenant, or send the id of the webhook (wh_…)";
                return Err(FieldError::new("webhook_id", message).into());
            };
            uids.sort_unstable();
            uids.dedup();
            let count = uids.len();
            let found = self.visible_by_uid(&view, uids).await?;
            if found.len() < count {
                return Err(AppError::NotFound("webhook"));
            }
            ids.extend(found);
        }
        ids.sort_unstable();
        ids.dedup();
        Ok(ids)
    }

    /// Returns the webhook with this uid. Returns `None` if the tenant has none that the caller may see.
    pub(super) async fn find_webhook_by_uid(
        &self,
        view: &TenantView,
        uid: &WebhookUid,
    ) -> Result<Option<WebhookId>, AppError> {
        Ok(self.visible_by_uid(view, vec![uid.clone()]).await?.pop())
    }

    async fn visible_by_uid(
        &self,
        view: &TenantView,
        uids: Vec<WebhookUid>,
    ) -> Result<Vec<WebhookId>, AppError> {
        let found = self.store().webhooks_by_uid(view.id.clone(), uids).await?;
        let ids: Vec<WebhookId> = found.into_iter().map(|(_, id)| id).collect();
        if !view.tenant_managed_only || ids.is_empty() {
            return Ok(ids);
        }
        let webhooks = self.store().tenant_webhooks_by_id(view.id.clone(), ids).await?;
        Ok(webhooks.iter().filter(|webhook| view.can_see(webhook)).map(|webhook| webhook.id).collect())
    }
}
