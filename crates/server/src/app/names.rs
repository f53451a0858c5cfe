//! What webhooks are called where something else is told about them: by their URLs, looked up all at once.

use std::collections::{BTreeSet, HashMap};

use redrive_core::{TenantId, WebhookId, webhook::Webhook};

use super::{App, AppError};

/// A webhook as others are told of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// Where it sends to.
    pub url: String,
    /// Whether it gets events.
    pub is_active: bool,
    /// Whether it is gone, and only its history is there.
    pub is_deleted: bool,
}

impl From<Webhook> for Named {
    fn from(webhook: Webhook) -> Self {
        Self {
            is_active: webhook.state.gets_events(),
            is_deleted: webhook.state == redrive_core::webhook::WebhookState::Deleted,
            url: webhook.spec.url,
        }
    }
}

impl App {
    /// What these webhooks are called, those that were deleted too. Other tenants' have no names here.
    pub async fn names(
        &self,
        tenant: &TenantId,
        ids: impl IntoIterator<Item = WebhookId>,
    ) -> Result<HashMap<WebhookId, Named>, AppError> {
        let ids: BTreeSet<_> = ids.into_iter().collect();
        if ids.is_empty() {
            return Ok(HashMap::new());
        }
        let found = self.store().webhooks_by_id(ids.into_iter().collect()).await?;
        let own = found.into_iter().filter(|webhook| webhook.tenant == *tenant);
        Ok(own.map(|webhook| (webhook.id, Named::from(webhook))).collect())
    }
}
