//! Webhooks whose host could not be resolved recently; the periodic check decides whether their owners are notified.

use std::collections::HashMap;

use parking_lot::Mutex;
use redrive_core::{TenantId, WebhookId};

/// Maximum number of webhooks tracked; further ones are ignored until there is capacity.
const MAX_SUSPECTS: usize = 10_000;

/// Webhooks with recent DNS failures.
#[derive(Default)]
pub(crate) struct DnsSuspects(Mutex<HashMap<WebhookId, DnsSuspect>>);

/// A webhook whose host could not be resolved.
#[derive(Clone)]
pub(crate) struct DnsSuspect {
    pub(crate) tenant_id: TenantId,
    /// Number of failures since it is tracked.
    pub(crate) failures: u64,
}

impl DnsSuspects {
    /// Tracks a webhook whose host could not be resolved. The attempt must be counted before.
    pub(crate) fn add(&self, webhook_id: WebhookId, tenant_id: &TenantId) {
        let mut suspects = self.0.lock();
        if let Some(suspect) = suspects.get_mut(&webhook_id) {
            suspect.failures += 1;
        } else if suspects.len() < MAX_SUSPECTS {
            suspects.insert(webhook_id, DnsSuspect { tenant_id: tenant_id.clone(), failures: 1 });
        }
    }

    /// Returns all tracked webhooks.
    pub(crate) fn list(&self) -> Vec<(WebhookId, DnsSuspect)> {
        self.0.lock().iter().map(|(webhook_id, suspect)| (*webhook_id, suspect.clone())).collect()
    }

    /// Stops tracking a webhook that had these failures when its counts were read. One that failed again since stays,
    /// since the counts may not include that failure.
    pub(crate) fn remove(&self, webhook_id: WebhookId, failures: u64) {
        let mut suspects = self.0.lock();
        if suspects.get(&webhook_id).is_some_and(|suspect| suspect.failures == failures) {
            suspects.remove(&webhook_id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn webhook_that_failed_again_during_a_check_stays_tracked() {
        let (suspects, webhook_id, tenant_id) =
            (DnsSuspects::default(), WebhookId::from_bytes([1; 16]), TenantId::default());
        let listed = |suspects: &DnsSuspects| -> Vec<u64> {
            suspects.list().iter().map(|(_, suspect)| suspect.failures).collect()
        };
        suspects.add(webhook_id, &tenant_id);
        assert_eq!(listed(&suspects), [1]);
        suspects.add(webhook_id, &tenant_id);
        suspects.remove(webhook_id, 1);
        assert_eq!(listed(&suspects), [2]);
        suspects.remove(webhook_id, 2);
        assert!(listed(&suspects).is_empty());
    }
}
