//! Compares the script with the rules of `redrive-core`, as used by [`LocalCoordinator`]: both must decide alike.

use std::time::Duration;

use proptest::prelude::*;
use redrive_core::{
    FailureCategory,
    protection::breaker::{BreakerConfig, CircuitState, Forced},
    tenancy::DEFAULT_POOL,
    webhook::{WebhookSpec, failures::FailingRule},
};
use redrive_testkit::Redis;

use super::{super::*, Node, WAIT_TIMEOUT, event, webhook_for};
use crate::{
    cluster::limit_shares::LimitShares,
    coordinate::{AdmissionRequest, AttemptReport, EndpointResult},
};

#[derive(Clone, Debug)]
enum Step {
    Wait(i64),
    Ask(u8),
    Succeeded(u8),
    Failed(FailureCategory),
    /// The oldest probe in flight returns its result.
    Response(Option<bool>),
    Force {
        open: bool,
        length: Option<u32>,
    },
    Reset,
    /// The webhook's policy and rate limit change.
    Change(Box<WebhookSpec>),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let category = (0..FailureCategory::ALL.len()).prop_map(|index| FailureCategory::ALL[index]);
    let step = prop_oneof![
        3 => prop_oneof![0..200i64, 500..3_000i64, 5_000..40_000i64].prop_map(Step::Wait),
        5 => (0..12u8).prop_map(Step::Ask),
        3 => (1..4u8).prop_map(Step::Succeeded),
        6 => category.prop_map(Step::Failed),
        4 => any::<Option<bool>>().prop_map(Step::Response),
        1 => (any::<bool>(), proptest::option::of(1..5_000u32)).prop_map(|(open, length)| Step::Force { open, length }),
        1 => Just(Step::Reset),
        1 => specs().prop_map(|spec| Step::Change(Box::new(spec))),
    ];
    prop::collection::vec(step, 1..60)
}

fn specs() -> impl Strategy<Value = WebhookSpec> {
    let breaker =
        (1..6u32, 1.0..100.0f64, 1_000..4_000u64, 1..5u32, 0.05..1.0f64, 1_000..9_000u64, any::<bool>());
    let limit = proptest::option::of((1..3_000u32, proptest::option::of(1..5u32)));
    (breaker, limit).prop_map(|((min, errors, sleep, probes, good, window, on), limit)| WebhookSpec {
        circuit_breaker_config: BreakerConfig {
            enabled: Some(on || min > 2),
            minimum_throughput: Some(min),
            error_threshold_percentage: Some(errors),
            sleep_window_ms: Some(sleep),
            half_open_max_calls: Some(probes),
            half_open_success_threshold: Some(good),
            window_size_ms: Some(window),
        },
        rate_limit: limit.map(|(requests_per_minute, burst)| RateLimit { requests_per_minute, burst }),
        ..WebhookSpec::default()
    })
}

/// One history, applied to both coordinators.
struct Both<'a> {
    node: &'a Node,
    model: LocalCoordinator,
    webhook: Arc<ResolvedWebhook>,
    /// Probes in flight, by their ids in the model and in Redis.
    probes: Vec<(u64, u64)>,
}

impl Both<'_> {
    async fn step(&mut self, step: &Step) {
        let (node, webhook, now) = (self.node, &self.webhook, self.node.at());
        match step {
            Step::Wait(millis) => node.after(*millis),
            Step::Ask(number) => {
                let event_id = event(*number);
                let here = self
                    .model
                    .admit(&[AdmissionRequest { webhook, event_id, probe_timeout: WAIT_TIMEOUT }], now)[0];
                let redis_decision = node.admit(webhook, &[event_id]).await[0];
                match (here, redis_decision) {
                    (
                        AdmissionDecision::Go { probe: one, circuit },
                        AdmissionDecision::Go { probe: other, circuit: same },
                    ) => {
                        assert_eq!((circuit, one.is_some()), (same, other.is_some()));
                        self.probes.extend(one.zip(other));
                    }
                    (here, redis_decision) => assert_eq!(here, redis_decision, "asked at {now}"),
                }
            }
            Step::Succeeded(count) => {
                for _ in 0..*count {
                    self.report(CallOutcome::Succeeded, None);
                    node.shared.report_success(webhook);
                }
                if webhook.breaker.enabled {
                    node.exchange().await;
                }
            }
            Step::Failed(category) => {
                self.report(CallOutcome::Failed(*category), None);
                node.through(node.shared.report(webhook, CallOutcome::Failed(*category), None)).await;
            }
            Step::Response(good) => {
                if self.probes.is_empty() {
                    return;
                }
                let (one, other) = self.probes.remove(0);
                let call = match good {
                    Some(true) => CallOutcome::Succeeded,
                    Some(false) => CallOutcome::Failed(FailureCategory::Timeout),
                    None => CallOutcome::Ignored,
                };
                self.report(call, Some(one));
                node.through(node.shared.report(webhook, call, Some(other))).await;
            }
            Step::Force { open, length } => {
                let until = length.map(|length| now + Duration::from_millis(length.into()));
                let action = CircuitAction::Force(Forced { open: *open, until, by: "operator".into() });
                self.model.apply_action(webhook, action.clone(), now);
                node.through(node.shared.apply_action(webhook, action)).await;
            }
            Step::Change(spec) => {
                self.webhook = webhook_for(spec);
                self.model.refresh_half_open_limit(&self.webhook);
            }
            Step::Reset => {
                self.model.apply_action(webhook, CircuitAction::Reset, now);
                node.through(node.shared.apply_action(webhook, CircuitAction::Reset)).await;
            }
        }
    }

    fn report(&self, outcome: CallOutcome, probe: Option<u64>) {
        let report = AttemptReport {
            circuit_outcome: outcome,
            probe,
            endpoint: EndpointResult::Inconclusive,
            pause_until: None,
        };
        self.model.record_attempt(&self.webhook, report, self.node.at());
    }

    /// Makes the timed transitions of both, and asserts that their states are equal.
    async fn compare(&self) {
        let now = self.node.at();
        self.model.advance(&self.webhook, now);
        self.node.through(self.node.shared.refresh_circuit(&self.webhook)).await;
        let seen = |local: &LocalCoordinator| {
            let circuit = local.snapshot(&self.webhook, now).circuit;
            let changed = (circuit.state != CircuitState::Closed).then_some(circuit.state_transition_at);
            (
                (circuit.state, circuit.forced, changed, circuit.next_half_open_at),
                (circuit.counts, circuit.half_open_attempts, circuit.half_open_successes),
                circuit.consecutive_half_open_failures,
            )
        };
        assert_eq!(seen(&self.model), seen(&self.node.shared.local), "at {now}");
    }
}

#[test]
fn script_and_core_rules_decide_alike() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let redis = runtime.block_on(Redis::start());
    let case = std::cell::Cell::new(0);
    proptest!(ProptestConfig::with_cases(300), |(spec in specs(), steps in steps())| {
        case.set(case.get() + 1);
        runtime.block_on(async {
            let node = Node::start(&redis.url(), &format!("case{}", case.get()), "1").await;
            let webhook = webhook_for(&spec);
            // Redis starts with empty buckets; after an hour they are full.
            node.through(node.shared.refresh_circuit(&webhook)).await;
            node.after(3_600_000);
            let shares = Arc::new(LimitShares::new(&[DEFAULT_POOL.into()], None));
            let mut both = Both { node: &node, model: LocalCoordinator::new(shares, FailingRule::default()), webhook, probes: Vec::new() };
            for step in &steps {
                both.step(step).await;
                both.compare().await;
            }
        });
    });
}
