//! Several nodes with one Redis: together they never exceed the limits of a single node.

use std::time::Duration;

use redrive_core::{
    FailureCategory,
    protection::breaker::{BreakerConfig, CircuitState},
};
use redrive_testkit::Redis;

use super::{super::*, Node, WAIT_TIMEOUT, event, webhook_for};
use crate::coordinate::RuntimeChange;

async fn nodes(redis: &Redis, count: usize) -> Vec<Node> {
    let mut nodes = Vec::new();
    for number in 1..=count {
        nodes.push(Node::start(&redis.url(), "test", &number.to_string()).await);
    }
    nodes
}

/// Advances the time of all nodes.
fn after(nodes: &[Node], millis: i64) {
    nodes.iter().for_each(|node| node.after(millis));
}

fn limited(requests_per_minute: u32, burst: u32) -> Arc<ResolvedWebhook> {
    webhook_for(&redrive_core::webhook::WebhookSpec {
        rate_limit: Some(RateLimit { requests_per_minute, burst: Some(burst) }),
        ..Default::default()
    })
}

fn capped(max_in_flight: u32) -> Arc<ResolvedWebhook> {
    let max_in_flight = Some(max_in_flight);
    webhook_for(&redrive_core::webhook::WebhookSpec { max_in_flight, ..Default::default() })
}

fn fragile() -> Arc<ResolvedWebhook> {
    let circuit_breaker_config = BreakerConfig {
        minimum_throughput: Some(3),
        half_open_max_calls: Some(2),
        sleep_window_ms: Some(1_000),
        ..Default::default()
    };
    webhook_for(&redrive_core::webhook::WebhookSpec { circuit_breaker_config, ..Default::default() })
}

async fn ask(node: &Node, webhook: &Arc<ResolvedWebhook>, count: u8) -> Vec<DecisionWithSlot> {
    let admission_requests = (0..count).map(|number| RedisAdmissionRequest {
        webhook: webhook.clone(),
        event_id: event(number),
        probe_timeout: WAIT_TIMEOUT.as_millis() as u64,
        has_slot: false,
    });
    node.through(node.shared.admit(admission_requests.collect())).await
}

/// Returns how many of `count` deliveries that already have slots are admitted.
async fn go(node: &Node, webhook: &Arc<ResolvedWebhook>, count: u8) -> usize {
    let events: Vec<_> = (0..count).map(event).collect();
    node.admit(webhook, &events)
        .await
        .iter()
        .filter(|decision| matches!(decision, AdmissionDecision::Go { .. }))
        .count()
}

fn gone(given: &[DecisionWithSlot]) -> usize {
    given.iter().filter(|(decision, _)| matches!(decision, AdmissionDecision::Go { .. })).count()
}

async fn fail(node: &Node, webhook: &Arc<ResolvedWebhook>) -> ReportReply {
    node.through(node.shared.report(webhook, CallOutcome::Failed(FailureCategory::ServerError), None)).await
}

fn state(node: &Node, webhook: &ResolvedWebhook) -> CircuitState {
    node.shared.local.snapshot(webhook, node.at()).circuit.state
}

#[tokio::test]
async fn bucket_tokens_are_granted_once_across_nodes() {
    let redis = Redis::start().await;
    let nodes = nodes(&redis, 3).await;
    let webhook = limited(600, 5);
    let mut went = 0;
    for node in &nodes {
        went += go(node, &webhook, 4).await;
    }
    assert_eq!(went, 0, "tokens taken before Redis was available are unknown");
    after(&nodes, 60_000);
    for node in &nodes {
        went += go(node, &webhook, 4).await;
    }
    assert_eq!(went, 5);
    after(&nodes, 250);
    assert_eq!(go(&nodes[1], &webhook, 4).await + go(&nodes[2], &webhook, 4).await, 2);
    // Redis loses its state: no second burst.
    redis.command(&["FLUSHALL"]).await;
    assert_eq!(go(&nodes[0], &webhook, 4).await, 0);
}

#[tokio::test]
async fn waiting_for_a_token_is_known_until_the_token_is_due() {
    let redis = Redis::start().await;
    let node = Node::start(&redis.url(), "test", "1").await;
    let webhook = limited(60, 1);
    let tokens = |node: &Node| {
        let find = |_| Some(webhook.clone());
        let local = &node.shared.local;
        local.evict_idle(node.at(), &find);
        let of_webhook = local.available_tokens(node.at(), &find, &|_| webhook.tenant.clone()).webhook;
        (of_webhook, local.snapshot(&webhook, node.at()).tokens[0])
    };
    assert_eq!(tokens(&node), (None, None));
    assert_eq!(go(&node, &webhook, 2).await, 0, "tokens taken before Redis was available are unknown");
    assert_eq!(tokens(&node), (Some(0), Some(node.at() + Duration::from_secs(1))));
    node.after(1_000);
    assert_eq!(tokens(&node), (None, None));
    assert_eq!(go(&node, &webhook, 2).await, 1);
    assert_eq!(tokens(&node), (Some(0), Some(node.at() + Duration::from_secs(1))));
}

#[tokio::test]
async fn batch_sent_twice_is_applied_once() {
    let redis = Redis::start().await;
    let proxy = redrive_testkit::Proxy::to(redis.address()).await;
    let node = Node::start(&redis.url_through(&proxy), "test", "1").await;
    let webhook = limited(60, 3);
    node.through(node.shared.refresh_circuit(&webhook)).await;
    node.after(600_000);
    proxy.cut();
    proxy.pass();
    assert_eq!(go(&node, &webhook, 2).await, 2, "sent again over a new connection");
    assert_eq!(go(&node, &webhook, 2).await, 1, "two tokens were taken, not four");
    let response = redis.command(&["GET", "test:reply:1"]).await;
    assert!(response.starts_with("4 {"), "{response}");
}

#[tokio::test]
async fn nodes_never_hold_more_slots_than_the_cap() {
    let redis = Redis::start().await;
    let nodes = nodes(&redis, 2).await;
    let webhook = capped(4);
    let first = ask(&nodes[0], &webhook, 4).await;
    assert_eq!(gone(&first), 4, "no other node waits for slots");
    let second = ask(&nodes[1], &webhook, 4).await;
    assert_eq!(gone(&second), 0);
    assert!(matches!(
        second[0].0,
        AdmissionDecision::Wait { reason: redrive_core::dispatch::gate::WaitingOn::InFlightLimit, .. }
    ));
    // The node that holds all slots is notified, and releases half of them when they are free.
    nodes[0].shared.on_slot_demand(webhook.id, 2);
    drop(first);
    nodes[0].exchange().await;
    let second = ask(&nodes[1], &webhook, 4).await;
    assert_eq!(gone(&second), 2);
    let own: Vec<_> = (0..4).filter_map(|_| nodes[0].shared.slots.try_acquire(webhook.id, 4)).collect();
    assert_eq!(own.len(), 2, "held slots are used without a request");
}

#[tokio::test]
async fn slots_of_dead_node_expire() {
    let redis = Redis::start().await;
    let nodes = nodes(&redis, 2).await;
    let webhook = capped(1);
    let kept = ask(&nodes[0], &webhook, 1).await;
    assert_eq!(gone(&kept), 1);
    after(&nodes, 14_000);
    assert_eq!(gone(&ask(&nodes[1], &webhook, 1).await), 0);
    after(&nodes, 1_500);
    assert_eq!(gone(&ask(&nodes[1], &webhook, 1).await), 1);
    // The slot that the first node believes to hold has been granted to the other.
    let again = ask(&nodes[0], &webhook, 1).await;
    assert_eq!(gone(&again), 0);
}

#[tokio::test]
async fn stopping_node_releases_its_slots() {
    let redis = Redis::start().await;
    let nodes = nodes(&redis, 2).await;
    let webhook = capped(2);
    drop(ask(&nodes[0], &webhook, 2).await);
    assert_eq!(gone(&ask(&nodes[1], &webhook, 1).await), 0, "the first node holds them, though it uses none");
    tokio::join!(biased; nodes[0].shared.release_slots(), nodes[0].exchange());
    assert_eq!(gone(&ask(&nodes[1], &webhook, 2).await), 2);
}

#[tokio::test]
async fn lowered_cap_applies_to_nodes_that_hold_more() {
    let redis = Redis::start().await;
    let nodes = nodes(&redis, 2).await;
    let (first, second) = (ask(&nodes[0], &capped(4), 4).await, ask(&nodes[1], &capped(6), 2).await);
    assert_eq!((gone(&first), gone(&second)), (4, 2), "six of six");
    drop((first, second));
    let lowered = |node: &Node| {
        (0..6).filter_map(|_| node.shared.slots.try_acquire(capped(2).id, 2)).collect::<Vec<_>>()
    };
    for node in &nodes {
        drop(lowered(node));
        node.exchange().await;
    }
    let (one, other) = (lowered(&nodes[0]), lowered(&nodes[1]));
    assert!(one.len() + other.len() <= 2, "{} and {}", one.len(), other.len());
}

#[tokio::test]
async fn requests_in_flight_count_against_lowered_cap() {
    let redis = Redis::start().await;
    let nodes = nodes(&redis, 2).await;
    let (first, second) = (ask(&nodes[0], &capped(4), 4).await, ask(&nodes[1], &capped(6), 2).await);
    assert_eq!((gone(&first), gone(&second)), (4, 2), "six of six are in flight");
    // Both nodes get the lower cap, and the second node's requests end.
    drop(second);
    assert_eq!(gone(&ask(&nodes[0], &capped(2), 1).await), 0);
    assert_eq!(gone(&ask(&nodes[1], &capped(2), 1).await), 0, "four of two are still in flight");
    assert!(nodes[1].shared.slots.try_acquire(capped(2).id, 2).is_none(), "the held slots are lost");
    drop(first);
    nodes[0].exchange().await;
    let started = gone(&ask(&nodes[0], &capped(2), 2).await) + gone(&ask(&nodes[1], &capped(2), 2).await);
    assert!(started <= 2, "{started} of two start after all have ended");
}

#[tokio::test]
async fn circuit_transition_of_one_node_applies_to_all() {
    let redis = Redis::start().await;
    let nodes = nodes(&redis, 2).await;
    let webhook = fragile();
    assert!(fail(&nodes[0], &webhook).await.change.is_none());
    assert!(fail(&nodes[1], &webhook).await.change.is_none());
    let change = fail(&nodes[1], &webhook).await.change.expect("the third call of all nodes");
    assert_eq!((change.transition.from, change.transition.to), (CircuitState::Closed, CircuitState::Open));
    assert_eq!(change.saved.counts.failed, 3);
    assert_eq!(
        (state(&nodes[0], &webhook), state(&nodes[1], &webhook)),
        (CircuitState::Closed, CircuitState::Open)
    );
    nodes[0].through(nodes[0].shared.refresh_circuit(&webhook)).await;
    assert_eq!(state(&nodes[0], &webhook), CircuitState::Open);
    after(&nodes, 1_000);
    let probes = gone(&ask(&nodes[0], &webhook, 3).await) + gone(&ask(&nodes[1], &webhook, 3).await);
    assert_eq!(probes, 2, "one set of probes");
}

#[tokio::test]
async fn circuit_lost_by_redis_is_restored_by_a_node() {
    let redis = Redis::start().await;
    let nodes = nodes(&redis, 2).await;
    let webhook = fragile();
    for _ in 0..3 {
        fail(&nodes[0], &webhook).await;
    }
    assert_eq!(state(&nodes[0], &webhook), CircuitState::Open);
    redis.command(&["FLUSHALL"]).await;
    // The other node does not know the circuit, so Redis creates a default one.
    nodes[1].shared.report_success(&webhook);
    nodes[1].exchange().await;
    nodes[0].through(nodes[0].shared.refresh_circuit(&webhook)).await;
    assert_eq!(state(&nodes[0], &webhook), CircuitState::Open, "the newer state wins");
    nodes[1].through(nodes[1].shared.refresh_circuit(&webhook)).await;
    assert_eq!(state(&nodes[1], &webhook), CircuitState::Open);
}

#[tokio::test]
async fn fallback_transitions_count_when_redis_returns() {
    let redis = Redis::start().await;
    let nodes = nodes(&redis, 1).await;
    let (node, webhook) = (&nodes[0], fragile());
    for _ in 0..3 {
        fail(node, &webhook).await;
    }
    let local = &node.shared.local;
    local.enter_fallback(node.at());
    assert_eq!(state(node, &webhook), CircuitState::Open, "the open circuit is kept until its next probe");
    local.apply_action(&webhook, CircuitAction::Reset, node.at());
    local.delegate_to_redis();
    node.through(node.shared.refresh_circuit(&webhook)).await;
    assert_eq!(state(node, &webhook), CircuitState::Closed);
    assert_eq!(
        local.merge_stored(&webhook, None, local.transition_count(), node.at()),
        RuntimeChange::Stale,
        "the transition is still to be stored"
    );
}

#[tokio::test]
async fn half_open_circuit_closes_in_fallback() {
    let redis = Redis::start().await;
    let nodes = nodes(&redis, 1).await;
    let (node, webhook) = (&nodes[0], fragile());
    for _ in 0..3 {
        fail(node, &webhook).await;
    }
    node.after(1_000);
    assert_eq!(gone(&ask(node, &webhook, 1).await), 1);
    assert_eq!(state(node, &webhook), CircuitState::HalfOpen);
    node.shared.local.enter_fallback(node.at());
    assert_eq!(state(node, &webhook), CircuitState::Closed);
}
