//! Webhooks and their versions.

use redrive_core::{TenantId, Time, WebhookId, tenancy::TenantRules, webhook::Webhook};

/// The webhooks of a tenant that changed after some version.
#[derive(Clone, Debug)]
pub struct ConfigChanges {
    /// The version that this leads to.
    pub version: i64,
    /// Whether there are changes after it.
    pub more: bool,
    /// What holds for the tenant as a whole.
    pub rules: TenantRules,
    /// The version at which its event types last changed; 0 if it never had any.
    pub types_version: i64,
    /// What changed; deleted webhooks included unless everything was asked for.
    pub webhooks: Vec<Webhook>,
}

/// What became of a change to a webhook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Changed {
    /// Stored; the tenant's configuration has this version now.
    Done {
        /// The version.
        version: i64,
    },
    /// Somebody changed the webhook since it was read: read it again.
    Stale,
    /// There is no such webhook, or no such tenant.
    Missing,
}

/// A webhook with the version at which it last changed.
#[derive(Clone, Debug, PartialEq)]
pub struct Versioned {
    /// The webhook.
    pub webhook: Webhook,
    /// The tenant's configuration version of its last change.
    pub revision: i64,
}

/// How far sealing anew has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rewrapped {
    /// The last webhook that was looked at; none if there was none left.
    pub last: Option<WebhookId>,
    /// How many were sealed anew.
    pub changed: usize,
}

/// Webhooks whose time is over.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Expiring {
    /// Those that have expired, and still get events.
    pub expired: Vec<(TenantId, WebhookId)>,
    /// When the next one does.
    pub next: Option<Time>,
}
