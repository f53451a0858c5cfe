//! Requests that create an object at most once per idempotency key.

use redrive_core::{FieldError, TenantId, event::check_idempotency_key};
use redrive_store::CreationKey;
use sha2::{Digest, Sha256};

use super::{App, AppError, ErrorCode};

/// Object that a request created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Created<T> {
    /// It was created now.
    Now(T),
    /// It has this id, and an earlier request with the same key created it.
    Before(String),
}

/// Idempotency key of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestKey {
    /// The key.
    pub key: String,
    /// Method and path of the request.
    pub route: String,
    /// Hash of the body.
    pub body_hash: [u8; 32],
}

impl App {
    /// Returns the stored form of a request's key. The same key is another one for another tenant or route.
    pub fn creation_key(
        &self,
        tenant_id: Option<&TenantId>,
        request: &RequestKey,
    ) -> Result<CreationKey, AppError> {
        check_idempotency_key(&request.key)
            .map_err(|invalid| FieldError::new("Idempotency-Key", invalid.message))?;
        let key_hash =
            Sha256::new().chain_update(&request.route).chain_update([0]).chain_update(&request.key);
        let clock = self.engine.clock();
        Ok(CreationKey {
            tenant_id: tenant_id.cloned(),
            key_hash: key_hash.finalize().into(),
            body_hash: request.body_hash,
            expires_at: clock.now() + self.engine.idempotency_window(),
            confirmed_now: clock.confirmed_now(),
        })
    }

    /// Creates an object, unless an earlier request with the same key created one. Without a key it is always created.
    /// `create` must store the key together with the object, and fail with [`key_used`] if another request has just
    /// stored it.
    pub async fn create_once<T>(
        &self,
        key: Option<&CreationKey>,
        create: impl Future<Output = Result<T, AppError>>,
    ) -> Result<Created<T>, AppError> {
        let Some(key) = key else { return create.await.map(Created::Now) };
        if let Some(id) = self.created_before(key).await? {
            return Ok(Created::Before(id));
        }
        match create.await {
            Ok(created) => Ok(Created::Now(created)),
            Err(error) if error.code() == ErrorCode::IdempotencyKeyReused => {
                self.created_before(key).await?.map(Created::Before).ok_or(error)
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the id of the object that was created under this key. Rejects a key that was used with another body.
    async fn created_before(&self, key: &CreationKey) -> Result<Option<String>, AppError> {
        match self.store().created_object(key.clone()).await? {
            None => Ok(None),
            Some(found) if found.body_hash == key.body_hash => Ok(Some(found.id)),
            Some(found) => Err(AppError::conflict(
                ErrorCode::IdempotencyKeyReused,
                format!(
                    "the idempotency key was used before with another body, to create {}; use a new key for a new object",
                    found.id
                ),
            )),
        }
    }
}

/// Returns the error for a key that another request has just stored.
pub(super) fn key_used() -> AppError {
    let detail = "another request with this idempotency key was processed just now; send the request again";
    AppError::conflict(ErrorCode::IdempotencyKeyReused, detail)
}
