//! What webhooks are called where something else is told about them: by their URLs, looked up all at once.

use std::collections::{BTreeSet, HashMap};

use redrive_core::{
    WebhookId,
    webhook::{Webhook, WebhookState},
};

use super::{App, AppError, TenantView};

/// A webhook as others are told of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// Its id.
    pub id: WebhookId,
    /// Where it sends to.
    pub url: String,
    /// What its owner says about it.
    pub description: Option<String>,
    /// Whether it gets events; it may be gone by now, with only its history left.
    pub state: WebhookState,
}

impl Named {
    /// Whether it is gone, and only its history is there.
    pub fn is_deleted(&self) -> bool {
        self.state == WebhookState::Deleted
    }
}

impl From<Webhook> for Named {
    fn from(webhook: Webhook) -> Self {
        let (url, description) = (webhook.spec.url, webhook.spec.description);
        Self { id: webhook.id, url, description, state: webhook.state }
    }
}

impl App {
    /// What these webhooks are called, those that were deleted too. Other tenants' have no names here.
    pub async fn names(
        &self,
        view: &TenantView,
        ids: Vec<WebhookId>,
    ) -> Result<HashMap<WebhookId, Named>, AppError> {
        let ids: BTreeSet<_> = ids.into_iter().collect();
        if ids.is_empty() {
            return Ok(HashMap::new());
        }
        let found = self.store().tenant_webhooks_by_id(view.id.clone(), ids.into_iter().collect()).await?;
        let own = found.into_iter().filter(|webhook| view.sees(webhook));
        Ok(own.map(|webhook| (webhook.id, Named::from(webhook))).collect())
    }
}
