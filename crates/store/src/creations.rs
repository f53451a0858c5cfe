//! Creating objects at most once per idempotency key.

use crate::{
    CreatedObject, CreationKey, CreationResult, NewObject, StoreError, StoreFuture,
    sealed::{SealedWebhook, WebhookSealer},
};

/// Objects that are created at most once per idempotency key.
pub trait Creations: Send + Sync {
    /// Stores an object and the key of the request in one transaction, unless the key was used before.
    fn create(&self, object: NewObject, key: CreationKey) -> StoreFuture<'_, CreationResult>;
    /// Returns the object that was created under this key.
    fn created_object(&self, key: CreationKey) -> StoreFuture<'_, Option<CreatedObject>>;
}

impl NewObject {
    /// Encrypts the secrets of the object.
    pub(crate) fn seal(self, seals: &WebhookSealer) -> Result<NewObject<SealedWebhook>, StoreError> {
        Ok(match self {
            Self::Webhook(webhook, circuit) => NewObject::Webhook(seals.seal(*webhook)?, circuit),
            Self::Tenant(tenant) => NewObject::Tenant(tenant),
            Self::Key(key) => NewObject::Key(key),
            Self::EventType(event_type, max) => NewObject::EventType(event_type, max),
            Self::Operation(operation) => NewObject::Operation(operation),
        })
    }
}
