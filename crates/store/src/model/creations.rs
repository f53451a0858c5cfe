//! Objects that are created at most once per idempotency key.

use redrive_core::{TenantId, Time, protection::breaker::SavedCircuit, webhook::Webhook};

use super::{ApiKey, EventType, Operation, RegisterResult, Tenant, UpdateResult};

/// Object to create. `W` is its webhook, sealed or not.
#[derive(Clone, Debug)]
pub enum NewObject<W = Box<Webhook>> {
    /// Webhook, with its circuit unless it is closed.
    Webhook(W, Option<SavedCircuit>),
    /// Tenant.
    Tenant(Tenant),
    /// API key or portal session.
    Key(ApiKey),
    /// Event type, unless the tenant already has this many.
    EventType(EventType, usize),
    /// Bulk operation.
    Operation(Box<Operation>),
}

impl NewObject {
    /// Returns the id of the object.
    pub fn id(&self) -> String {
        match self {
            Self::Webhook(webhook, _) => webhook.id.to_string(),
            Self::Tenant(tenant) => tenant.id.to_string(),
            Self::Key(key) => key.id.to_string(),
            Self::EventType(event_type, _) => event_type.name.clone(),
            Self::Operation(operation) => operation.id.to_string(),
        }
    }
}

/// Idempotency key of a request that creates an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreationKey {
    /// Tenant that the object belongs to; `None` if it belongs to no tenant.
    pub tenant_id: Option<TenantId>,
    /// Hash of the route and the key. The same key for another route is another key.
    pub key_hash: [u8; 32],
    /// Hash of the body: equal hashes mean the same body.
    pub body_hash: [u8; 32],
    /// Time from which the key may be used again.
    pub expires_at: Time,
    /// The confirmed time: a key that expires later is still in use.
    pub confirmed_now: Time,
}

impl CreationKey {
    /// Returns the stored tenant, which is empty for objects of no tenant.
    pub(crate) fn tenant(&self) -> &str {
        self.tenant_id.as_ref().map_or("", TenantId::as_str)
    }
}

/// Object that was created under an idempotency key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreatedObject {
    /// Id of the object.
    pub id: String,
    /// Hash of the body of the request that created it.
    pub body_hash: [u8; 32],
}

/// Result of creating an object under an idempotency key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CreationResult {
    /// It is stored, and so is the key.
    Created {
        /// The tenant's new configuration version; 0 for an object that is not part of the configuration.
        version: i64,
    },
    /// The key was used before. Nothing is stored.
    KeyUsed(CreatedObject),
    /// An object with this id, name or uid exists. Nothing is stored.
    Exists,
    /// The tenant has the maximum number of such objects. Nothing is stored.
    LimitReached,
    /// There is no such tenant. Nothing is stored.
    NoTenant,
}

impl From<UpdateResult> for CreationResult {
    fn from(result: UpdateResult) -> Self {
        match result {
            UpdateResult::Updated { version } => Self::Created { version },
            UpdateResult::Stale | UpdateResult::Exists => Self::Exists,
            UpdateResult::NotFound => Self::NoTenant,
        }
    }
}

impl From<RegisterResult> for CreationResult {
    fn from(result: RegisterResult) -> Self {
        match result {
            RegisterResult::Done => Self::Created { version: 0 },
            RegisterResult::Exists => Self::Exists,
            RegisterResult::LimitReached => Self::LimitReached,
            RegisterResult::NotFound => Self::NoTenant,
        }
    }
}
