//! Names (URL and description) of webhooks for pages and listings about other objects, loaded with one read.

use std::collections::{BTreeSet, HashMap};

use redrive_core::{
    WebhookId,
    webhook::{Webhook, WebhookState},
};

use super::{App, AppError, TenantSelection, TenantView};

/// Webhook as referenced by other objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookName {
    /// Id of the webhook.
    pub id: WebhookId,
    /// URL that events are sent to.
    pub url: String,
    /// Description given by its owner.
    pub description: Option<String>,
    /// State; `Deleted` if only its history is left.
    pub state: WebhookState,
}

impl WebhookName {
    /// Returns whether the webhook was deleted and only its history is left.
    pub fn is_deleted(&self) -> bool {
        self.state == WebhookState::Deleted
    }
}

impl From<Webhook> for WebhookName {
    fn from(webhook: Webhook) -> Self {
        let (url, description) = (webhook.spec.url, webhook.spec.description);
        Self { id: webhook.id, url, description, state: webhook.state }
    }
}

impl App {
    /// Returns the names of these webhooks, including deleted ones, but not of those that the caller may not see.
    pub async fn webhook_names(
        &self,
        tenants: impl Into<TenantSelection>,
        ids: Vec<WebhookId>,
    ) -> Result<HashMap<WebhookId, WebhookName>, AppError> {
        let ids: BTreeSet<_> = ids.into_iter().collect();
        if ids.is_empty() {
            return Ok(HashMap::new());
        }
        let ids = ids.into_iter().collect();
        let found = match tenants.into() {
            TenantSelection::One(view) => {
                let mut found = self.store().tenant_webhooks_by_id(view.id.clone(), ids).await?;
                found.retain(|webhook| view.can_see(webhook));
                found
            }
            TenantSelection::All(all) => self.read_webhooks_by_id(all, ids).await?,
        };
        Ok(found.into_iter().map(|webhook| (webhook.id, WebhookName::from(webhook))).collect())
    }

    /// Returns the addresses of the owners of these webhooks, of those that are not deleted and that the caller may see.
    pub async fn owner_emails(
        &self,
        view: &TenantView,
        ids: BTreeSet<WebhookId>,
    ) -> Result<HashMap<WebhookId, String>, AppError> {
        if ids.is_empty() {
            return Ok(HashMap::new());
        }
        let found = self.store().tenant_webhooks_by_id(view.id.clone(), ids.into_iter().collect()).await?;
        let own = found.into_iter().filter(|one| view.can_see(one) && one.state != WebhookState::Deleted);
        Ok(own.filter_map(|webhook| Some((webhook.id, webhook.spec.owner?.email?))).collect())
    }
}
