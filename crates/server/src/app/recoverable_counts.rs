//! Counts of the deliveries that a recovery of a webhook would resend. Pages that show them are rendered every few seconds,
//! and a count reads up to 10,000 deliveries, so each is cached for some seconds.

use std::{collections::HashMap, time::Duration};

use parking_lot::Mutex;
use redrive_core::{
    TenantId, Time, WebhookId,
    delivery::bulk_operation::{OperationFilter, OperationKind, OperationTarget},
};
use redrive_engine::clock::monotonic_now;
use redrive_store::OperationRequest;

use super::{App, AppError, TenantView};

/// Time for which a count is returned again.
const MAX_AGE: Duration = Duration::from_secs(5);
/// Maximum number of cached counts.
const MAX_COUNTS: usize = 1_000;

/// Deliveries that a recovery would resend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecoverableCount {
    /// Their number.
    pub count: u64,
    /// Whether all were counted.
    pub is_complete: bool,
}

/// What is counted: the tenant, its webhook, the time since which deliveries failed, and whether only tenant-managed webhooks count.
type CountKey = (TenantId, WebhookId, Time, bool);

/// Counts of the last seconds.
#[derive(Default)]
pub(super) struct RecoverableCounts(Mutex<HashMap<CountKey, (Duration, RecoverableCount)>>);

impl RecoverableCounts {
    fn get(&self, key: &CountKey, now: Duration) -> Option<RecoverableCount> {
        let counts = self.0.lock();
        counts.get(key).filter(|(at, _)| now.saturating_sub(*at) < MAX_AGE).map(|(_, count)| *count)
    }

    fn put(&self, key: CountKey, now: Duration, count: RecoverableCount) {
        let mut counts = self.0.lock();
        if counts.len() >= MAX_COUNTS {
            counts.retain(|_, (at, _)| now.saturating_sub(*at) < MAX_AGE);
        }
        if counts.len() < MAX_COUNTS {
            counts.insert(key, (now, count));
        }
    }
}

impl App {
    /// Counts the deliveries to a webhook that failed since this time, among the first candidates. The count may be some
    /// seconds old.
    pub async fn count_recoverable(
        &self,
        view: &TenantView,
        webhook_id: WebhookId,
        since: Time,
    ) -> Result<RecoverableCount, AppError> {
        let key = (view.id.clone(), webhook_id, since, view.tenant_managed_only);
        let now = monotonic_now();
        if let Some(count) = self.recoverable_counts.get(&key, now) {
            return Ok(count);
        }
        let selection = OperationFilter {
            webhook_ids: vec![webhook_id],
            failed_from: Some(since),
            undelivered_only: true,
            tenant_managed_only: view.tenant_managed_only,
            ..OperationFilter::default()
        };
        let order = OperationRequest {
            kind: OperationKind::Retry,
            among: OperationTarget::Deliveries,
            selection,
            rate: None,
            priority: None,
        };
        let (count, is_complete) = self.engine.count_first_candidates(&view.id, &order).await?;
        let count = RecoverableCount { count, is_complete };
        self.recoverable_counts.put(key, now, count);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn count_is_returned_again_for_some_seconds() {
        let counts = RecoverableCounts::default();
        let key = |n: usize| {
            let bytes = (n as u128).to_be_bytes();
            (TenantId::default(), WebhookId::from_bytes(bytes), Time::default(), false)
        };
        let count = RecoverableCount { count: 3, is_complete: true };
        let begin = Duration::from_secs(100);
        counts.put(key(0), begin, count);
        assert_eq!(counts.get(&key(0), begin + MAX_AGE / 2), Some(count));
        let restricted = (TenantId::default(), key(0).1, Time::default(), true);
        assert_eq!(counts.get(&restricted, begin), None, "of another view");
        assert_eq!(counts.get(&key(0), begin + MAX_AGE), None);
        for n in 0..2 * MAX_COUNTS {
            counts.put(key(n), begin, count);
        }
        assert_eq!(counts.0.lock().len(), MAX_COUNTS);
        counts.put(key(0), begin + MAX_AGE, count);
        assert_eq!(counts.0.lock().len(), 1, "old counts leave");
    }
}
