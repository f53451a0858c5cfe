//! Health of a worker: the reasons for which it delivers nothing although it runs.

use std::time::Duration;

use crate::{delivery::response::FailureCategory, id::WebhookId};

/// Consecutive attempts without a response after which a worker is failing.
const MIN_UNANSWERED_ATTEMPTS: u32 = 20;
/// Number of different webhooks that these attempts must concern: one unreachable endpoint says nothing about the worker.
const MIN_UNANSWERED_WEBHOOKS: usize = 3;
/// Time over which these attempts must extend, so that a short interruption is not reported.
const MIN_UNANSWERED_DURATION: Duration = Duration::from_secs(60);
/// Time after the last of these attempts at which they say nothing about the present any more.
const UNANSWERED_TTL: Duration = Duration::from_secs(15 * 60);

/// Reason for which a worker delivers nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerFault {
    /// The store does not accept its writes, so sending is suspended.
    Store,
    /// A service that deliveries depend on is down.
    Service,
    /// It has no send lease: its heartbeats are not confirmed in time.
    Lease,
    /// No endpoint responds to it.
    Network,
}

impl WorkerFault {
    /// Every fault.
    pub const ALL: [Self; 4] = [Self::Store, Self::Service, Self::Lease, Self::Network];

    /// Returns the name used in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Store => "store",
            Self::Service => "service",
            Self::Lease => "lease",
            Self::Network => "network",
        }
    }
}

/// Conditions of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerConditions {
    /// Whether the store accepts its writes.
    pub store_up: bool,
    /// Whether every essential service runs.
    pub services_up: bool,
    /// Whether it has a send lease, or needs none.
    pub has_send_lease: bool,
    /// Whether some endpoint responds, as far as known.
    pub is_answered: bool,
}

impl WorkerConditions {
    /// Returns whether the worker has this fault.
    pub fn has_fault(&self, fault: WorkerFault) -> bool {
        !match fault {
            WorkerFault::Store => self.store_up,
            WorkerFault::Service => self.services_up,
            WorkerFault::Lease => self.has_send_lease,
            WorkerFault::Network => self.is_answered,
        }
    }
}

/// What a failed attempt shows about the network of the worker that sent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkEvidence {
    /// A server responded.
    Answered,
    /// Nothing came back.
    Unanswered,
    /// The request was not sent.
    Nothing,
}

impl NetworkEvidence {
    /// Returns what an attempt with this failure, or a success, shows.
    pub fn from_result(failure: Option<FailureCategory>) -> Self {
        match failure {
            None
            | Some(
                FailureCategory::ServerError
                | FailureCategory::ClientError
                | FailureCategory::RateLimit
                | FailureCategory::PayloadTooLarge
                | FailureCategory::Redirect,
            ) => Self::Answered,
            Some(
                FailureCategory::Timeout
                | FailureCategory::Network
                | FailureCategory::Dns
                | FailureCategory::Tls,
            ) => Self::Unanswered,
            Some(FailureCategory::BlockedAddress) => Self::Nothing,
        }
    }
}

/// Attempts since the last response of any endpoint. Times are monotonic.
#[derive(Clone, Debug, Default)]
pub struct UnansweredAttempts {
    count: u32,
    /// The first webhooks concerned, as many as matter.
    webhooks: Vec<WebhookId>,
    first_at: Duration,
    last_at: Duration,
}

impl UnansweredAttempts {
    /// Returns whether there is none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Records an attempt without a response.
    pub fn record(&mut self, webhook_id: WebhookId, now: Duration) {
        if now.saturating_sub(self.last_at) > UNANSWERED_TTL {
            *self = Self::default();
        }
        if self.count == 0 {
            self.first_at = now;
        }
        self.count = self.count.saturating_add(1);
        self.last_at = self.last_at.max(now);
        if self.webhooks.len() < MIN_UNANSWERED_WEBHOOKS && !self.webhooks.contains(&webhook_id) {
            self.webhooks.push(webhook_id);
        }
    }

    /// Returns whether some endpoint responds, as far as these attempts show.
    pub fn is_answered(&self, now: Duration) -> bool {
        self.count < MIN_UNANSWERED_ATTEMPTS
            || self.webhooks.len() < MIN_UNANSWERED_WEBHOOKS
            || self.last_at.saturating_sub(self.first_at) < MIN_UNANSWERED_DURATION
            || now.saturating_sub(self.last_at) > UNANSWERED_TTL
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    fn webhook(n: u8) -> WebhookId {
        WebhookId::from_bytes([n; 16])
    }

    /// Records `count` attempts to `webhooks` webhooks, spread over a time that begins at 1,000 s.
    fn unanswered(count: u32, webhooks: u8, over: u64) -> UnansweredAttempts {
        let mut attempts = UnansweredAttempts::default();
        for n in 0..count {
            let at = 1_000 + over * u64::from(n) / u64::from(count - 1);
            attempts.record(webhook((n % u32::from(webhooks)) as u8), secs(at));
        }
        attempts
    }

    #[test]
    fn worker_is_failing_only_if_many_endpoints_do_not_respond_for_a_while() {
        assert!(UnansweredAttempts::default().is_answered(secs(5_000)));
        for (count, webhooks, over, is_answered) in [
            (20, 3, 60, false),
            (500, 200, 3_600, false),
            (19, 3, 60, true),
            (500, 2, 3_600, true),
            (500, 200, 59, true),
        ] {
            let attempts = unanswered(count, webhooks, over);
            assert_eq!(attempts.is_answered(secs(1_000 + over)), is_answered, "{count} {webhooks} {over}");
        }
    }

    #[test]
    fn unanswered_attempts_expire_without_further_ones() {
        let mut attempts = unanswered(20, 3, 60);
        assert!(!attempts.is_answered(secs(1_060 + 900)));
        assert!(attempts.is_answered(secs(1_060 + 901)));
        attempts.record(webhook(1), secs(1_060 + 901));
        assert!(attempts.is_answered(secs(1_060 + 901)), "they are counted from the beginning again");
    }

    #[test]
    fn only_missing_responses_are_evidence_against_the_network() {
        let unanswered: Vec<_> = FailureCategory::ALL
            .into_iter()
            .filter(|category| NetworkEvidence::from_result(Some(*category)) == NetworkEvidence::Unanswered)
            .map(FailureCategory::name)
            .collect();
        assert_eq!(unanswered, ["timeout", "network", "dns", "tls"]);
        assert_eq!(NetworkEvidence::from_result(None), NetworkEvidence::Answered);
    }

    #[test]
    fn each_condition_is_one_fault() {
        let healthy =
            WorkerConditions { store_up: true, services_up: true, has_send_lease: true, is_answered: true };
        let faults = |conditions: WorkerConditions| {
            WorkerFault::ALL.into_iter().filter(|fault| conditions.has_fault(*fault)).collect::<Vec<_>>()
        };
        assert_eq!(faults(healthy), []);
        assert_eq!(faults(WorkerConditions { store_up: false, ..healthy }), [WorkerFault::Store]);
        assert_eq!(faults(WorkerConditions { services_up: false, ..healthy }), [WorkerFault::Service]);
        assert_eq!(faults(WorkerConditions { has_send_lease: false, ..healthy }), [WorkerFault::Lease]);
        assert_eq!(faults(WorkerConditions { is_answered: false, ..healthy }), [WorkerFault::Network]);
    }
}
