//! The last look before sending: may this delivery go out now, or is it over?

use std::sync::Arc;

use redrive_core::{DeadReason, decide};
use redrive_store::{Next, StoreError};

use crate::{Inner, dispatch::Ready, registry::Hook};

/// What the gate says.
pub(crate) enum Gate {
    /// Send it.
    Go(Arc<Hook>),
    /// It is over without a request.
    End(Next),
    /// Nodes keep dying while they send it: counted as a failed attempt.
    Poison(Arc<Hook>),
    /// It is not ours any more.
    Lost,
}

impl Inner {
    /// Looks at the webhook as it is now, not as it was when the delivery was queued.
    pub(crate) async fn gate(&self, ready: &Ready) -> Result<Gate, StoreError> {
        let hook = self.registry.find(&*self.store, ready.webhook).await?;
        let Some(hook) = hook else {
            return Ok(Gate::End(Next::Cancelled { reason: "the webhook is gone".into() }));
        };
        if let Some(reason) = hook.webhook.state.cancels_because() {
            return Ok(Gate::End(Next::Cancelled { reason: reason.to_owned() }));
        }
        if self.clock.now() >= decide::gives_up_at(ready.created_at, &hook.policy) {
            return Ok(Gate::End(Next::Dead { reason: DeadReason::Expired }));
        }
        if ready.deaths >= decide::POISON_DEATHS {
            return Ok(Gate::Poison(hook));
        }
        // Only a delivery that has already outlived a node is worth a note of its own before it is sent.
        if ready.rescues > 0 && !self.store.mark_sending(self.epoch, ready.id).await? {
            return Ok(Gate::Lost);
        }
        Ok(Gate::Go(hook))
    }
}
