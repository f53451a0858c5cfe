//! Conformance tests of coordinators: each case runs against the local coordinator and against Redis.

use std::{cell::Cell, sync::Arc, time::Duration};

use redrive_core::{
    EventId, FailureCategory, Time,
    dispatch::gate::{LimitScope, WaitingOn},
    protection::{
        breaker::{BreakerConfig, CallOutcome, CircuitState, Forced},
        limiter::RateLimit,
    },
    tenancy::DEFAULT_POOL,
    webhook::{WebhookSpec, failures::FailingRule},
};
use redrive_testkit::Redis;

use super::{
    AdmissionDecision, AdmissionRequest, AttemptReport, CircuitAction, EndpointResult, LocalCoordinator,
    redis::tests::{Node, WAIT_TIMEOUT, event, webhook_for},
};
use crate::{cluster::limit_shares::LimitShares, routing::ResolvedWebhook};

/// A coordinator under test, and its time.
enum Coordinator {
    Local { local: LocalCoordinator, now: Cell<Time> },
    Redis { node: Box<Node>, _server: Redis },
}

impl Coordinator {
    async fn local() -> Self {
        let shares = Arc::new(LimitShares::new(&[DEFAULT_POOL.into()], None));
        Self::Local {
            local: LocalCoordinator::new(shares, FailingRule::default()),
            now: Cell::new(Time::from_secs(1_700_000_000)),
        }
    }

    async fn redis() -> Self {
        let server = Redis::start().await;
        let node = Node::start(&server.url(), "suite", "1").await;
        // Buckets start empty; after an hour they are full.
        node.through(node.shared.refresh_circuit(&webhook_for(&WebhookSpec::default()))).await;
        node.after(3_600_000);
        Self::Redis { node: Box::new(node), _server: server }
    }

    fn now(&self) -> Time {
        match self {
            Self::Local { now, .. } => now.get(),
            Self::Redis { node, .. } => node.at(),
        }
    }

    fn after(&self, millis: i64) {
        match self {
            Self::Local { now, .. } => now.set(now.get() + Duration::from_millis(millis as u64)),
            Self::Redis { node, .. } => node.after(millis),
        }
    }

    async fn ask(&self, webhook: &Arc<ResolvedWebhook>, events: &[EventId]) -> Vec<AdmissionDecision> {
        match self {
            Self::Local { local, .. } => {
                let requests: Vec<_> = events
                    .iter()
                    .map(|event_id| AdmissionRequest {
                        webhook,
                        event_id: *event_id,
                        probe_timeout: WAIT_TIMEOUT,
                    })
                    .collect();
                local.admit(&requests, self.now())
            }
            Self::Redis { node, .. } => node.admit(webhook, events).await,
        }
    }

    async fn report(&self, webhook: &Arc<ResolvedWebhook>, outcome: CallOutcome, probe: Option<u64>) {
        match self {
            Self::Local { local, .. } => {
                let report = AttemptReport {
                    circuit_outcome: outcome,
                    probe,
                    endpoint: EndpointResult::Inconclusive,
                    pause_until: None,
                };
                local.record_attempt(webhook, report, self.now());
            }
            Self::Redis { node, .. } => drop(node.through(node.shared.report(webhook, outcome, probe)).await),
        }
    }

    async fn act(&self, webhook: &Arc<ResolvedWebhook>, action: CircuitAction) {
        match self {
            Self::Local { local, .. } => drop(local.apply_action(webhook, action, self.now())),
            Self::Redis { node, .. } => drop(node.through(node.shared.apply_action(webhook, action)).await),
        }
    }

    async fn state(&self, webhook: &Arc<ResolvedWebhook>) -> CircuitState {
        let local = match self {
            Self::Local { local, .. } => {
                local.advance(webhook, self.now());
                local
            }
            Self::Redis { node, .. } => {
                node.through(node.shared.refresh_circuit(webhook)).await;
                &node.shared.local
            }
        };
        local.snapshot(webhook, self.now()).circuit.state
    }
}

const FAILED: CallOutcome = CallOutcome::Failed(FailureCategory::ServerError);

fn low_threshold_policy() -> Arc<ResolvedWebhook> {
    let circuit_breaker_config = BreakerConfig {
        minimum_throughput: Some(4),
        error_threshold_percentage: Some(50.0),
        sleep_window_ms: Some(1_000),
        half_open_max_calls: Some(2),
        half_open_success_threshold: Some(1.0),
        ..BreakerConfig::default()
    };
    webhook_for(&WebhookSpec { circuit_breaker_config, ..WebhookSpec::default() })
}

async fn opened(decider: &Coordinator) -> Arc<ResolvedWebhook> {
    let webhook = low_threshold_policy();
    for _ in 0..4 {
        decider.report(&webhook, FAILED, None).await;
    }
    assert_eq!(decider.state(&webhook).await, CircuitState::Open);
    webhook
}

fn goes(decision: &AdmissionDecision) -> bool {
    matches!(decision, AdmissionDecision::Go { .. })
}

fn probe(decision: &AdmissionDecision) -> Option<u64> {
    match decision {
        AdmissionDecision::Go { probe, .. } => *probe,
        _ => None,
    }
}

async fn a_circuit_opens_at_its_threshold_and_waits(decider: Coordinator) {
    let webhook = low_threshold_policy();
    for call in [CallOutcome::Succeeded, CallOutcome::Succeeded, FAILED, CallOutcome::Ignored] {
        decider.report(&webhook, call, None).await;
    }
    assert_eq!(decider.state(&webhook).await, CircuitState::Closed, "one of three failed");
    decider.report(&webhook, FAILED, None).await;
    assert_eq!(decider.state(&webhook).await, CircuitState::Open, "two of four failed");
    let until = Some(decider.now() + Duration::from_secs(1));
    let wait = AdmissionDecision::Wait { until, reason: WaitingOn::CircuitOpen, scope: LimitScope::Webhook };
    assert_eq!(decider.ask(&webhook, &[event(1), event(2)]).await, [wait, wait]);
}

async fn what_is_long_ago_counts_no_more(decider: Coordinator) {
    let webhook = low_threshold_policy();
    for _ in 0..3 {
        decider.report(&webhook, FAILED, None).await;
    }
    decider.after(60_001);
    decider.report(&webhook, FAILED, None).await;
    assert_eq!(decider.state(&webhook).await, CircuitState::Closed);
}

async fn a_half_open_circuit_gives_its_probes_once_and_closes(decider: Coordinator) {
    let webhook = opened(&decider).await;
    decider.after(1_000);
    let decisions = decider.ask(&webhook, &[event(1), event(2), event(3), event(1)]).await;
    let probe_ids: Vec<_> = decisions.iter().filter_map(probe).collect();
    assert_eq!(probe_ids.len(), 2);
    assert_eq!(decisions[2], AdmissionDecision::NoProbe);
    assert!(matches!(decisions[3], AdmissionDecision::AlreadyProbed { .. }), "{decisions:?}");
    for probe_id in probe_ids {
        assert_eq!(decider.state(&webhook).await, CircuitState::HalfOpen);
        decider.report(&webhook, CallOutcome::Succeeded, Some(probe_id)).await;
    }
    assert_eq!(decider.state(&webhook).await, CircuitState::Closed);
    assert!(goes(&decider.ask(&webhook, &[event(4)]).await[0]));
}

async fn a_failed_recovery_doubles_the_sleep(decider: Coordinator) {
    let webhook = opened(&decider).await;
    decider.after(1_000);
    let probe_id = probe(&decider.ask(&webhook, &[event(1)]).await[0]);
    decider.report(&webhook, FAILED, probe_id).await;
    assert_eq!(decider.state(&webhook).await, CircuitState::Open);
    decider.after(1_999);
    assert_eq!(decider.state(&webhook).await, CircuitState::Open);
    decider.after(1);
    assert_eq!(decider.state(&webhook).await, CircuitState::HalfOpen);
}

async fn a_lost_probe_is_replaced(decider: Coordinator) {
    let webhook = opened(&decider).await;
    decider.after(1_000);
    let decisions = decider.ask(&webhook, &[event(1), event(2), event(3)]).await;
    assert_eq!(decisions.iter().filter(|decision| goes(decision)).count(), 2);
    decider.after(WAIT_TIMEOUT.as_millis() as i64);
    assert!(goes(&decider.ask(&webhook, &[event(3)]).await[0]));
}

async fn a_bucket_gives_its_burst_and_then_its_rate(decider: Coordinator) {
    let rate_limit = Some(RateLimit { requests_per_minute: 600, burst: Some(3) });
    let webhook = webhook_for(&WebhookSpec { rate_limit, ..WebhookSpec::default() });
    let decisions = decider.ask(&webhook, &[event(1), event(2), event(3), event(4)]).await;
    assert!(decisions[..3].iter().all(goes), "{decisions:?}");
    let until = Some(decider.now() + Duration::from_millis(100));
    assert_eq!(
        decisions[3],
        AdmissionDecision::Wait { until, reason: WaitingOn::RateLimit, scope: LimitScope::Webhook }
    );
    decider.after(100);
    let decisions = decider.ask(&webhook, &[event(4), event(5)]).await;
    assert!(goes(&decisions[0]) && !goes(&decisions[1]), "{decisions:?}");
}

async fn what_is_forced_stays_until_its_end(decider: Coordinator) {
    let webhook = low_threshold_policy();
    let until = Some(decider.now() + Duration::from_millis(500));
    let forced = |open, until| CircuitAction::Force(Forced { open, until, by: "operator".into() });
    decider.act(&webhook, forced(true, until)).await;
    let decision = decider.ask(&webhook, &[event(1)]).await[0];
    assert_eq!(
        decision,
        AdmissionDecision::Wait { until, reason: WaitingOn::CircuitOpen, scope: LimitScope::Webhook }
    );
    decider.after(500);
    assert!(goes(&decider.ask(&webhook, &[event(1)]).await[0]));
    decider.act(&webhook, forced(false, None)).await;
    for _ in 0..10 {
        decider.report(&webhook, FAILED, None).await;
    }
    assert_eq!(decider.state(&webhook).await, CircuitState::Closed, "whatever happens");
}

async fn reset_closes_circuit_and_empties_window(decider: Coordinator) {
    let webhook = opened(&decider).await;
    decider.act(&webhook, CircuitAction::Reset).await;
    assert_eq!(decider.state(&webhook).await, CircuitState::Closed);
    for _ in 0..3 {
        decider.report(&webhook, FAILED, None).await;
    }
    assert_eq!(decider.state(&webhook).await, CircuitState::Closed, "three of three are not four");
}

macro_rules! suite {
    ($($case:ident),+ $(,)?) => {
        mod local {
            $(#[tokio::test]
            async fn $case() {
                super::$case(super::Coordinator::local().await).await;
            })+
        }

        mod redis {
            $(#[tokio::test]
            async fn $case() {
                super::$case(super::Coordinator::redis().await).await;
            })+
        }
    };
}

suite!(
    a_circuit_opens_at_its_threshold_and_waits,
    what_is_long_ago_counts_no_more,
    a_half_open_circuit_gives_its_probes_once_and_closes,
    a_failed_recovery_doubles_the_sleep,
    a_lost_probe_is_replaced,
    a_bucket_gives_its_burst_and_then_its_rate,
    what_is_forced_stays_until_its_end,
    reset_closes_circuit_and_empties_window,
);
