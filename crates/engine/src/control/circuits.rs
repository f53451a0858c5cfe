//! Circuits: an operator's actions, and counts.

use redrive_core::{TenantId, WebhookId};
use redrive_store::StoreError;

use super::Control;
use crate::coordinate::CircuitAction;

/// How many times an operator's action is tried, because another node may store a newer state concurrently.
const MAX_CIRCUIT_ACTION_TRIES: usize = 3;

impl Control {
    /// Resets or forces a webhook's circuit. Returns false if there is no such webhook.
    pub(crate) async fn control_circuit(
        &self,
        tenant_id: &TenantId,
        webhook_id: WebhookId,
        action: CircuitAction,
    ) -> Result<bool, StoreError> {
        let Some(webhook) = self.router.get_or_load(webhook_id).await? else {
            return Ok(false);
        };
        if webhook.tenant.id != *tenant_id {
            return Ok(false);
        }
        for _ in 0..MAX_CIRCUIT_ACTION_TRIES {
            if self.membership.is_shared() {
                // Another node may have just changed it.
                self.runtime_updater.refresh_runtime_state([webhook_id].into()).await?;
            }
            let change = self.coordinator.apply_action(&webhook, action.clone()).await;
            let Some(change) = change else { return Ok(true) };
            self.runtime_updater.apply_change(&webhook, &change);
            // Manual actions cause no notification.
            let stored = self
                .runtime_state
                .set_circuit(change.tenant_id.clone(), webhook_id, change.saved.clone(), None)
                .await;
            self.wakeups.claims.wake();
            self.wakeups.gate_timer.notify_one();
            match stored {
                Ok(stored) => {
                    self.coordinator.local.mark_circuit_stored(webhook_id);
                    if stored {
                        return Ok(true);
                    }
                }
                Err(error) => {
                    // The action is already in effect here, so store it in the background even though the caller gets an error.
                    self.runtime_updater.persist_in_background(
                        change.tenant_id,
                        webhook_id,
                        change.saved,
                        None,
                    );
                    return Err(error);
                }
            }
        }
        Err(StoreError::Busy("other nodes are changing this circuit; send the request again".into()))
    }

    /// Returns the number of circuits in each state.
    pub(crate) fn circuits(&self) -> CircuitCounts {
        let counts = self.coordinator.local.count_circuits(self.clock.now());
        CircuitCounts {
            closed: self.router.len().saturating_sub(counts.open + counts.half_open),
            half_open: counts.half_open,
            open: counts.open,
            forced_open: counts.forced_open,
            open_over_an_hour: counts.open_over_an_hour,
        }
    }

    /// Returns the number of due deliveries blocked by open circuits. Counts the first hundred circuits, and up to ten
    /// thousand deliveries of each.
    pub(crate) async fn blocked_deliveries(&self) -> Result<u64, StoreError> {
        const MAX_COUNTED_CIRCUITS: usize = 100;
        const MAX_COUNTED_PER_CIRCUIT: usize = 10_000;
        let now = self.clock.now();
        let open = self.coordinator.local.webhooks_with_open_circuit(MAX_COUNTED_CIRCUITS);
        let backlogs = self.webhook_history.backlogs(None, open, now, MAX_COUNTED_PER_CIRCUIT).await?;
        Ok(backlogs.iter().map(|(_, backlog)| backlog.due).sum())
    }
}

/// Number of circuits by state, among the webhooks known to this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CircuitCounts {
    /// Closed.
    pub closed: usize,
    /// Half open.
    pub half_open: usize,
    /// Open.
    pub open: usize,
    /// Of the open ones, those that were forced open.
    pub forced_open: usize,
    /// Open for more than an hour, without those that were forced open.
    pub open_over_an_hour: usize,
}
