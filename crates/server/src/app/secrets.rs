//! Sealing everything with a new master key, while the server runs.

use redrive_store::{Store, StoreError};

use super::{
    Actor, App, AppError,
    audit::{Deed, Traces},
};

/// Webhooks sealed anew in one step.
const STEP: usize = 200;

impl App {
    /// Seals every webhook with the current master key, as far as it is not. Gives how many were.
    pub async fn rotate_master_key(&self, by: &Actor) -> Result<usize, AppError> {
        let deed = Deed { action: "master_key.rotate", tenant: None, object: None };
        self.audited(by, deed, async {
            let changed = rewrap_all(self.store()).await?;
            Ok((changed, Traces::default()))
        })
        .await
    }
}

/// Seals every webhook of a store with the current master key, as far as it is not. Gives how many were.
pub async fn rewrap_all(store: &dyn Store) -> Result<usize, StoreError> {
    let (mut after, mut changed) = (None, 0);
    loop {
        let step = store.rewrap(after, STEP).await?;
        changed += step.changed;
        match step.last {
            Some(last) => after = Some(last),
            None => return Ok(changed),
        }
    }
}
