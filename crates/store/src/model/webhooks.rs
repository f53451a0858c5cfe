//! Webhooks and their versions.

use redrive_core::{TenantId, Time, WebhookId, tenancy::TenantRules, webhook::Webhook};

/// Webhooks of a tenant that changed after a version.
#[derive(Clone, Debug)]
pub struct ConfigChanges {
    /// The version after these changes.
    pub version: i64,
    /// Whether there are further changes.
    pub more: bool,
    /// Rules of the tenant.
    pub rules: TenantRules,
    /// The version at which its event types last changed; 0 if it never had any.
    pub event_types_version: i64,
    /// The changed webhooks, including deleted ones unless the request was for version 0.
    pub webhooks: Vec<Webhook>,
}

/// Result of changing a webhook or an event type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UpdateResult {
    /// The change was stored.
    Updated {
        /// The tenant's new configuration version.
        version: i64,
    },
    /// It has changed since it was read: read it again.
    Stale,
    /// There is no such webhook, or no such tenant.
    NotFound,
    /// Another webhook of the tenant has its uid.
    Exists,
}

/// What names a webhook: texts that are searched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookLabel {
    /// The webhook.
    pub id: WebhookId,
    /// The application's own id.
    pub uid: Option<String>,
    /// Its URL.
    pub url: String,
    /// Its description.
    pub description: Option<String>,
}

impl From<Webhook> for WebhookLabel {
    fn from(webhook: Webhook) -> Self {
        let spec = webhook.spec;
        let uid = spec.uid.map(|uid| uid.to_string());
        Self { id: webhook.id, uid, url: spec.url, description: spec.description }
    }
}

/// A webhook with the configuration version of its last change.
#[derive(Clone, Debug, PartialEq)]
pub struct Versioned {
    /// The webhook.
    pub webhook: Webhook,
    /// The tenant's configuration version of its last change.
    pub revision: i64,
}

/// Progress of re-encryption.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RewrapProgress {
    /// The last webhook that was read; `None` if none was left.
    pub last: Option<WebhookId>,
    /// Number of re-encrypted webhooks.
    pub changed: usize,
}

/// Webhooks that are due to be disabled or verified.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WebhooksWithDueAction {
    /// Webhooks that are due.
    pub due: Vec<(TenantId, WebhookId)>,
    /// Time at which the next one is due.
    pub next: Option<Time>,
}
