//! Several nodes at one Redis: together they never do more than one alone might.

use redrive_core::{
    FailureCategory,
    protection::breaker::{BreakerConfig, CircuitState},
};
use redrive_testkit::Redis;

use super::{super::*, Node, PATIENCE, event, hook_of};
use crate::coordination::Learnt;

async fn nodes(redis: &Redis, count: usize) -> Vec<Node> {
    let mut nodes = Vec::new();
    for number in 1..=count {
        nodes.push(Node::start(&redis.url(), "test", &number.to_string()).await);
    }
    nodes
}

/// The same time for all.
fn after(nodes: &[Node], millis: i64) {
    nodes.iter().for_each(|node| node.after(millis));
}

fn limited(requests_per_minute: u32, burst: u32) -> Arc<Hook> {
    hook_of(&redrive_core::webhook::WebhookSpec {
        rate_limit: Some(RateLimit { requests_per_minute, burst: Some(burst) }),
        ..Default::default()
    })
}

fn capped(max_in_flight: u32) -> Arc<Hook> {
    let max_in_flight = Some(max_in_flight);
    hook_of(&redrive_core::webhook::WebhookSpec { max_in_flight, ..Default::default() })
}

fn fragile() -> Arc<Hook> {
    let circuit_breaker_config = BreakerConfig {
        minimum_throughput: Some(3),
        half_open_max_calls: Some(2),
        sleep_window_ms: Some(1_000),
        ..Default::default()
    };
    hook_of(&redrive_core::webhook::WebhookSpec { circuit_breaker_config, ..Default::default() })
}

async fn ask(node: &Node, hook: &Arc<Hook>, count: u8) -> Vec<Given> {
    let asks = (0..count).map(|number| Asked {
        hook: hook.clone(),
        event: event(number),
        patience: PATIENCE.as_millis() as u64,
        has_slot: false,
    });
    node.through(node.shared.admit(asks.collect())).await
}

/// How many of so many go that have slots already.
async fn go(node: &Node, hook: &Arc<Hook>, count: u8) -> usize {
    let events: Vec<_> = (0..count).map(event).collect();
    node.admit(hook, &events).await.iter().filter(|grant| matches!(grant, Grant::Go { .. })).count()
}

fn gone(given: &[Given]) -> usize {
    given.iter().filter(|(grant, _)| matches!(grant, Grant::Go { .. })).count()
}

async fn fail(node: &Node, hook: &Arc<Hook>) -> Reported {
    node.through(node.shared.report(hook, Call::Failed(FailureCategory::ServerError), None)).await
}

fn state(node: &Node, hook: &Hook) -> CircuitState {
    node.shared.local.standing(hook, node.at()).circuit.state
}

#[tokio::test]
async fn a_bucket_has_its_tokens_once() {
    let redis = Redis::start().await;
    let nodes = nodes(&redis, 3).await;
    let hook = limited(600, 5);
    let mut went = 0;
    for node in &nodes {
        went += go(node, &hook, 4).await;
    }
    assert_eq!(went, 0, "nobody knows what was taken before Redis was there");
    after(&nodes, 60_000);
    for node in &nodes {
        went += go(node, &hook, 4).await;
    }
    assert_eq!(went, 5);
    after(&nodes, 250);
    assert_eq!(go(&nodes[1], &hook, 4).await + go(&nodes[2], &hook, 4).await, 2);
    // Another one forgets everything: no second burst.
    redis.command(&["FLUSHALL"]).await;
    assert_eq!(go(&nodes[0], &hook, 4).await, 0);
}

#[tokio::test]
async fn a_batch_that_comes_twice_is_carried_out_once() {
    let redis = Redis::start().await;
    let proxy = redrive_testkit::Proxy::to(redis.address()).await;
    let node = Node::start(&redis.url_through(&proxy), "test", "1").await;
    let hook = limited(60, 3);
    node.through(node.shared.look(&hook)).await;
    node.after(600_000);
    proxy.cut();
    proxy.pass();
    assert_eq!(go(&node, &hook, 2).await, 2, "sent again over a new connection");
    assert_eq!(go(&node, &hook, 2).await, 1, "two were taken, not four");
    let answered = redis.command(&["GET", "test:answer:1"]).await;
    assert!(answered.starts_with("4 {"), "{answered}");
}

#[tokio::test]
async fn nodes_hold_no_more_slots_than_there_are() {
    let redis = Redis::start().await;
    let nodes = nodes(&redis, 2).await;
    let hook = capped(4);
    let first = ask(&nodes[0], &hook, 4).await;
    assert_eq!(gone(&first), 4, "nobody else wants any");
    let second = ask(&nodes[1], &hook, 4).await;
    assert_eq!(gone(&second), 0);
    assert!(matches!(
        second[0].0,
        Grant::Wait { why: redrive_core::dispatch::gate::WaitingOn::InFlightLimit, .. }
    ));
    // The one that has all of them hears of it, and gives half of them up when they are free.
    nodes[0].shared.slots_wanted(hook.id, 2);
    drop(first);
    nodes[0].carry().await;
    let second = ask(&nodes[1], &hook, 4).await;
    assert_eq!(gone(&second), 2);
    let own: Vec<_> = (0..4).filter_map(|_| nodes[0].shared.slots.take(hook.id, 4)).collect();
    assert_eq!(own.len(), 2, "what it kept it uses without asking");
}

#[tokio::test]
async fn slots_of_a_node_that_is_gone_come_back() {
    let redis = Redis::start().await;
    let nodes = nodes(&redis, 2).await;
    let hook = capped(1);
    let kept = ask(&nodes[0], &hook, 1).await;
    assert_eq!(gone(&kept), 1);
    after(&nodes, 14_000);
    assert_eq!(gone(&ask(&nodes[1], &hook, 1).await), 0);
    after(&nodes, 1_500);
    assert_eq!(gone(&ask(&nodes[1], &hook, 1).await), 1);
    // What the first believes to hold is not its own any more.
    let again = ask(&nodes[0], &hook, 1).await;
    assert_eq!(gone(&again), 0);
}

#[tokio::test]
async fn a_node_that_stops_gives_its_slots_back() {
    let redis = Redis::start().await;
    let nodes = nodes(&redis, 2).await;
    let hook = capped(2);
    drop(ask(&nodes[0], &hook, 2).await);
    assert_eq!(gone(&ask(&nodes[1], &hook, 1).await), 0, "the first holds them, though it uses none");
    tokio::join!(biased; nodes[0].shared.give_up(), nodes[0].carry());
    assert_eq!(gone(&ask(&nodes[1], &hook, 2).await), 2);
}

#[tokio::test]
async fn a_cap_that_is_lowered_holds_for_those_that_hold_more() {
    let redis = Redis::start().await;
    let nodes = nodes(&redis, 2).await;
    let (first, second) = (ask(&nodes[0], &capped(4), 4).await, ask(&nodes[1], &capped(6), 2).await);
    assert_eq!((gone(&first), gone(&second)), (4, 2), "six of six");
    drop((first, second));
    let lowered =
        |node: &Node| (0..6).filter_map(|_| node.shared.slots.take(capped(2).id, 2)).collect::<Vec<_>>();
    for node in &nodes {
        drop(lowered(node));
        node.carry().await;
    }
    let (one, other) = (lowered(&nodes[0]), lowered(&nodes[1]));
    assert!(one.len() + other.len() <= 2, "{} and {}", one.len(), other.len());
}

#[tokio::test]
async fn requests_in_flight_count_against_a_cap_that_is_lowered() {
    let redis = Redis::start().await;
    let nodes = nodes(&redis, 2).await;
    let (first, second) = (ask(&nodes[0], &capped(4), 4).await, ask(&nodes[1], &capped(6), 2).await);
    assert_eq!((gone(&first), gone(&second)), (4, 2), "six of six are in flight");
    // Both nodes learn of the lower cap, and the second one's requests end.
    drop(second);
    assert_eq!(gone(&ask(&nodes[0], &capped(2), 1).await), 0);
    assert_eq!(gone(&ask(&nodes[1], &capped(2), 1).await), 0, "four of two are still in flight");
    assert!(nodes[1].shared.slots.take(capped(2).id, 2).is_none(), "what it held is not its own any more");
    drop(first);
    nodes[0].carry().await;
    let begun = gone(&ask(&nodes[0], &capped(2), 2).await) + gone(&ask(&nodes[1], &capped(2), 2).await);
    assert!(begun <= 2, "{begun} of two begin after all have ended");
}

#[tokio::test]
async fn one_moves_a_circuit_and_all_follow() {
    let redis = Redis::start().await;
    let nodes = nodes(&redis, 2).await;
    let hook = fragile();
    assert!(fail(&nodes[0], &hook).await.moved.is_none());
    assert!(fail(&nodes[1], &hook).await.moved.is_none());
    let moved = fail(&nodes[1], &hook).await.moved.expect("the third of them all");
    assert_eq!((moved.transition.from, moved.transition.to), (CircuitState::Closed, CircuitState::Open));
    assert_eq!(moved.saved.counts.failed, 3);
    assert_eq!(
        (state(&nodes[0], &hook), state(&nodes[1], &hook)),
        (CircuitState::Closed, CircuitState::Open)
    );
    nodes[0].through(nodes[0].shared.look(&hook)).await;
    assert_eq!(state(&nodes[0], &hook), CircuitState::Open);
    after(&nodes, 1_000);
    let probes = gone(&ask(&nodes[0], &hook, 3).await) + gone(&ask(&nodes[1], &hook, 3).await);
    assert_eq!(probes, 2, "one set of probes");
}

#[tokio::test]
async fn what_redis_forgets_it_is_told_again() {
    let redis = Redis::start().await;
    let nodes = nodes(&redis, 2).await;
    let hook = fragile();
    for _ in 0..3 {
        fail(&nodes[0], &hook).await;
    }
    assert_eq!(state(&nodes[0], &hook), CircuitState::Open);
    redis.command(&["FLUSHALL"]).await;
    // The other one has never heard of it, and Redis makes a circuit up.
    nodes[1].shared.succeeded(&hook);
    nodes[1].carry().await;
    nodes[0].through(nodes[0].shared.look(&hook)).await;
    assert_eq!(state(&nodes[0], &hook), CircuitState::Open, "who knows more is believed");
    nodes[1].through(nodes[1].shared.look(&hook)).await;
    assert_eq!(state(&nodes[1], &hook), CircuitState::Open);
}

#[tokio::test]
async fn what_happened_without_redis_counts_when_it_is_back() {
    let redis = Redis::start().await;
    let nodes = nodes(&redis, 1).await;
    let (node, hook) = (&nodes[0], fragile());
    for _ in 0..3 {
        fail(node, &hook).await;
    }
    let local = &node.shared.local;
    local.go_alone(node.at());
    assert_eq!(state(node, &hook), CircuitState::Open, "it is honoured until it was to be tried again");
    local.act(&hook, CircuitAction::Reset, node.at());
    local.follow();
    node.through(node.shared.look(&hook)).await;
    assert_eq!(state(node, &hook), CircuitState::Closed);
    assert_eq!(
        local.learn(&hook, None, local.moves(), node.at()),
        Learnt::Unsure,
        "that is still to be stored"
    );
}

#[tokio::test]
async fn without_redis_a_trial_counts_as_passed() {
    let redis = Redis::start().await;
    let nodes = nodes(&redis, 1).await;
    let (node, hook) = (&nodes[0], fragile());
    for _ in 0..3 {
        fail(node, &hook).await;
    }
    node.after(1_000);
    assert_eq!(gone(&ask(node, &hook, 1).await), 1);
    assert_eq!(state(node, &hook), CircuitState::HalfOpen);
    node.shared.local.go_alone(node.at());
    assert_eq!(state(node, &hook), CircuitState::Closed);
}
