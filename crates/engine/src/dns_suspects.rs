//! Webhooks whose host could not be resolved recently; the periodic check decides whether their owners are notified.

use std::collections::HashMap;

use parking_lot::Mutex;
use redrive_core::{TenantId, WebhookId};

/// Maximum number of webhooks tracked; further ones are ignored until there is capacity.
const MAX_SUSPECTS: usize = 10_000;

/// Webhooks with recent DNS failures.
#[derive(Default)]
pub(crate) struct DnsSuspects(Mutex<HashMap<WebhookId, TenantId>>);

impl DnsSuspects {
    /// Tracks a webhook whose host could not be resolved.
    pub(crate) fn add(&self, webhook_id: WebhookId, tenant_id: &TenantId) {
        let mut suspects = self.0.lock();
        if suspects.len() < MAX_SUSPECTS {
            suspects.entry(webhook_id).or_insert_with(|| tenant_id.clone());
        }
    }

    /// Returns all tracked webhooks.
    pub(crate) fn list(&self) -> Vec<(WebhookId, TenantId)> {
        self.0.lock().iter().map(|(webhook_id, tenant_id)| (*webhook_id, tenant_id.clone())).collect()
    }

    /// Stops tracking a webhook.
    pub(crate) fn remove(&self, webhook_id: WebhookId) {
        self.0.lock().remove(&webhook_id);
    }
}
