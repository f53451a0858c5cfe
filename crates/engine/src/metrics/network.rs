//! Whether endpoints respond to this node at all. On the path of a delivery this is one atomic read while they do.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use parking_lot::Mutex;
use redrive_core::{
    FailureCategory, WebhookId,
    cluster::worker_health::{NetworkEvidence, UnansweredAttempts},
};

use crate::clock::monotonic_now;

/// Attempts since the last response of any endpoint.
#[derive(Default)]
pub(crate) struct NetworkHealth {
    unanswered: Mutex<UnansweredAttempts>,
    /// Whether there is any. Written while `unanswered` is locked.
    any_unanswered: AtomicBool,
}

impl NetworkHealth {
    /// Records the result of an attempt.
    pub(super) fn record(&self, webhook_id: WebhookId, failure: Option<FailureCategory>) {
        match NetworkEvidence::from_result(failure) {
            NetworkEvidence::Answered if !self.any_unanswered.load(Relaxed) => {}
            NetworkEvidence::Answered => {
                let mut unanswered = self.unanswered.lock();
                *unanswered = UnansweredAttempts::default();
                self.any_unanswered.store(false, Relaxed);
            }
            NetworkEvidence::Unanswered => {
                let mut unanswered = self.unanswered.lock();
                unanswered.record(webhook_id, monotonic_now());
                self.any_unanswered.store(true, Relaxed);
            }
            NetworkEvidence::Nothing => {}
        }
    }

    /// Returns whether some endpoint responds, as far as known.
    pub(crate) fn is_answered(&self) -> bool {
        !self.any_unanswered.load(Relaxed) || self.unanswered.lock().is_answered(monotonic_now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn response_of_any_endpoint_clears_unanswered_attempts() {
        let health = NetworkHealth::default();
        for n in 0..100 {
            health.record(WebhookId::from_bytes([n % 5; 16]), Some(FailureCategory::Timeout));
        }
        assert!(!health.unanswered.lock().is_empty());
        health.record(WebhookId::from_bytes([9; 16]), Some(FailureCategory::BlockedAddress));
        assert!(!health.unanswered.lock().is_empty(), "a refused request is no response");
        health.record(WebhookId::from_bytes([9; 16]), Some(FailureCategory::ServerError));
        assert!(health.unanswered.lock().is_empty() && health.is_answered());
    }
}
