//! Re-encrypts all secrets with a new master key while the server runs.

use redrive_store::{Store, StoreError};

use super::{
    Actor, App, AppError,
    audit::{AuditChange, AuditedAction},
};

/// Webhooks re-encrypted per step.
const BATCH_SIZE: usize = 200;

impl App {
    /// Re-encrypts every webhook that does not use the current master key. Returns how many were changed.
    pub async fn rotate_master_key(&self, actor: &Actor) -> Result<usize, AppError> {
        let audited = AuditedAction { action: "master_key.rotate", tenant: None, object: None };
        self.with_audit(actor, audited, async {
            let changed = rewrap_all(self.store()).await?;
            Ok((changed, AuditChange::default()))
        })
        .await
    }
}

/// Re-encrypts every webhook of a store that does not use the current master key. Returns how many were changed.
pub async fn rewrap_all(store: &dyn Store) -> Result<usize, StoreError> {
    let (mut after, mut changed) = (None, 0);
    loop {
        let step = store.rewrap(after, BATCH_SIZE).await?;
        changed += step.changed;
        match step.last {
            Some(last) => after = Some(last),
            None => return Ok(changed),
        }
    }
}
