//! State on which all senders of a webhook must agree: its circuit, its tokens and its pause after a 429.
//!
//! Admission is requested in batches, once for everything that is about to be sent. A single node decides from
//! memory (`local`). Nodes that share a store merge what the others have stored, and limits that need a single
//! counter are counted by the webhook's assigned node. Nodes that also share a Redis let it decide for all of them
//! (`redis`), and their memory is a mirror of it (`redis_mirror`).

#[cfg(test)]
mod conformance;
mod entry;
mod local;
pub(crate) mod redis;
mod redis_mirror;
#[cfg(test)]
mod tests;
mod tokens;

use std::{sync::Arc, time::Duration};

use redrive_core::{
    EventId, FailureCategory, TenantId, Time, WebhookId,
    dispatch::gate::{LimitScope, WaitingOn},
    protection::breaker::{CallOutcome, CircuitState, CircuitView, Forced, SavedCircuit, Transition},
    webhook::failures::FailureSeries,
};
use redrive_store::FailingChange;

pub(crate) use local::LocalCoordinator;
pub(crate) use redis_mirror::LocalDecision;
pub use tokens::AvailableTokens;

use self::redis::{RedisCoordinator, RedisUnavailable};
use crate::{clock::Clock, routing::ResolvedWebhook};

/// Decides admission for webhooks: this node itself, or Redis for all nodes while it responds.
pub(crate) struct Coordinator {
    /// This node's own state; while Redis responds, a mirror of it.
    pub(crate) local: Arc<LocalCoordinator>,
    /// `None` without Redis.
    redis: Option<Arc<RedisCoordinator>>,
    clock: Clock,
}

impl Coordinator {
    pub(crate) fn new(local: Arc<LocalCoordinator>, has_redis: bool, clock: Clock) -> Self {
        let redis = has_redis.then(|| Arc::new(RedisCoordinator::new(local.clone())));
        Self { local, redis, clock }
    }

    /// Returns the Redis coordinator, whether or not Redis responds; `None` if it is not configured.
    pub(crate) fn configured_redis(&self) -> Option<&Arc<RedisCoordinator>> {
        self.redis.as_ref()
    }

    /// Returns the Redis coordinator while Redis responds, else `None`.
    pub(crate) fn redis(&self) -> Option<&Arc<RedisCoordinator>> {
        self.redis.as_ref().filter(|redis| redis.is_up())
    }

    /// Records the result of a request. Returns the resulting changes, local and cluster-wide.
    pub(crate) async fn report_attempt(
        &self,
        webhook: &Arc<ResolvedWebhook>,
        report: AttemptReport,
    ) -> ReportEffects {
        let now = self.clock.now();
        let Some(redis) = self.redis() else {
            return self.local.record_attempt(webhook, report, now);
        };
        let reported = match (report.circuit_outcome, report.probe) {
            (CallOutcome::Succeeded, None) => {
                redis.report_success(webhook);
                return self.local.record_without_circuit(webhook, report, now);
            }
            (CallOutcome::Ignored, None) => {
                return self.local.record_without_circuit(webhook, report, now);
            }
            (call, probe) => redis.report(webhook, call, probe).await,
        };
        match reported {
            Ok(reported) => ReportEffects {
                circuit: reported.change,
                half_open_max_in_memory: reported.half_open_max_in_memory,
                ..self.local.record_without_circuit(webhook, report, now)
            },
            Err(RedisUnavailable) => self.local.record_attempt(webhook, report, now),
        }
    }

    /// Applies an operator's action to a circuit.
    pub(crate) async fn apply_action(
        &self,
        webhook: &Arc<ResolvedWebhook>,
        action: CircuitAction,
    ) -> Option<CircuitChange> {
        if let Some(redis) = self.redis()
            && let Ok(change) = redis.apply_action(webhook, action.clone()).await
        {
            return change;
        }
        self.local.apply_action(webhook, action, self.clock.now())
    }

    /// Refreshes the local copy of a webhook's circuit for display.
    pub(crate) async fn refresh_circuit(&self, webhook: &Arc<ResolvedWebhook>) {
        if let Some(redis) = self.redis() {
            // If there is no reply, the local copy is displayed.
            let _ = redis.refresh_circuit(webhook).await;
        }
    }
}

/// Request to send one delivery.
pub(crate) struct AdmissionRequest<'a> {
    pub(crate) webhook: &'a ResolvedWebhook,
    pub(crate) event_id: EventId,
    /// Maximum time until its response.
    pub(crate) probe_timeout: Duration,
}

/// Decision about an admission request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AdmissionDecision {
    /// Send it now.
    Go {
        /// Id of the probe, if the circuit is half-open.
        probe: Option<u64>,
        circuit: CircuitState,
    },
    /// Do not send it now, nor anything else in this scope.
    Wait {
        /// Time to wait until; `None` if unknown.
        until: Option<Time>,
        reason: WaitingOn,
        scope: LimitScope,
    },
    /// The circuit is half-open, and this event was already a probe in the current half-open period. Other events may
    /// become probes.
    AlreadyProbed {
        /// Time by which the half-open circuit has closed or opened again.
        until: Time,
    },
    /// The circuit is half-open and all its probes are in flight.
    NoProbe,
}

/// What one attempt shows about the endpoint.
#[derive(Clone, Copy)]
pub(crate) struct AttemptReport {
    /// How the circuit counts it. A 429 is ignored by the circuit.
    pub(crate) circuit_outcome: CallOutcome,
    /// Id of the probe it was sent as.
    pub(crate) probe: Option<u64>,
    /// Whether the endpoint accepted it, which a 429 does not.
    pub(crate) endpoint: EndpointResult,
    /// End of the pause after a 429.
    pub(crate) pause_until: Option<Time>,
}

/// Whether an endpoint accepted a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndpointResult {
    Accepted,
    Failed(FailureCategory),
    /// The result says nothing about the endpoint.
    Inconclusive,
}

/// Changes caused by a report.
#[derive(Debug, Default)]
pub(crate) struct ReportEffects {
    pub(crate) circuit: Option<CircuitChange>,
    pub(crate) failing: Option<FailingChange>,
    /// Time since which there were only failures.
    pub(crate) failing_since: Option<Time>,
    /// Maximum number of deliveries of a half-open circuit in memory, including those in flight.
    pub(crate) half_open_max_in_memory: Option<usize>,
}

/// A transition of a circuit, and the state to store.
#[derive(Clone, Debug)]
pub(crate) struct CircuitChange {
    pub(crate) webhook_id: WebhookId,
    pub(crate) tenant_id: TenantId,
    pub(crate) transition: Transition,
    pub(crate) saved: SavedCircuit,
    pub(crate) half_open_max_in_memory: Option<usize>,
}

/// Effects of due timers.
#[derive(Default)]
pub(crate) struct TimerEffects {
    /// Circuits that made a transition.
    pub(crate) changes: Vec<(Arc<ResolvedWebhook>, CircuitChange)>,
    /// Circuits that are half-open and may need more deliveries as probes.
    pub(crate) half_open: Vec<Arc<ResolvedWebhook>>,
    /// Circuits to refresh from Redis.
    pub(crate) to_refresh: Vec<Arc<ResolvedWebhook>>,
}

/// Manual action on a circuit.
#[derive(Clone, Debug)]
pub enum CircuitAction {
    /// Closes it, with an empty window.
    Reset,
    /// Forces it open or closed, for a time or until it is reset.
    Force(Forced),
}

/// Result of merging stored runtime state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RuntimeChange {
    /// The local state may be newer: read the store again.
    Stale,
    /// Redis is authoritative: ask it.
    AskRedis,
    /// No relevant change.
    Unchanged,
    /// Sending is blocked until then.
    Blocked(Time),
    /// Sending is no longer blocked, with the probe limit if the circuit is half-open.
    Unblocked(Option<usize>),
}

/// What blocks a webhook, for display.
#[derive(Clone, Debug)]
pub(crate) struct BlockSnapshot {
    pub(crate) circuit: CircuitView,
    /// End of the pause after a 429, if it has not passed.
    pub(crate) paused_by_429_until: Option<Time>,
    /// Failures since the last success.
    pub(crate) failures: Option<FailureSeries>,
    /// Due time of the next token of the webhook, its tenant and the cluster; `None` if one is available.
    pub(crate) tokens: [Option<Time>; 3],
}

/// Number of circuits that are not closed, by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct UnclosedCircuitCounts {
    pub(crate) open: usize,
    /// Of the open ones, those that were forced open.
    pub(crate) forced_open: usize,
    pub(crate) half_open: usize,
    pub(crate) open_over_an_hour: usize,
}
