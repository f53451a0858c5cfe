//! What whoever decides must do, on a node alone and on Redis. One named test for each case and each of them.

use std::{cell::Cell, sync::Arc, time::Duration};

use redrive_core::{
    EventId, FailureCategory, Time,
    dispatch::gate::{Scope, WaitingOn},
    protection::breaker::{BreakerConfig, Call, CircuitState, Forced},
    protection::limiter::RateLimit,
    tenancy::DEFAULT_POOL,
    webhook::WebhookSpec,
};
use redrive_testkit::Redis;

use super::{
    Ask, CircuitAction, Grant, Local, Report,
    redis::tests::{Node, PATIENCE, event, hook_of},
};
use crate::{limit_shares::Shares, registry::Hook};

/// Whoever decides, and the time it is told.
enum Decider {
    Local { local: Local, now: Cell<Time> },
    Redis { node: Box<Node>, _server: Redis },
}

impl Decider {
    async fn local() -> Self {
        let shares = Arc::new(Shares::new(&[DEFAULT_POOL.into()], None));
        Self::Local { local: Local::new(shares), now: Cell::new(Time::from_secs(1_700_000_000)) }
    }

    async fn redis() -> Self {
        let server = Redis::start().await;
        let node = Node::start(&server.url(), "suite", "1").await;
        // Its buckets begin empty, and are full by now.
        node.through(node.shared.look(&hook_of(&WebhookSpec::default()))).await;
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

    async fn ask(&self, hook: &Arc<Hook>, events: &[EventId]) -> Vec<Grant> {
        match self {
            Self::Local { local, .. } => {
                let asks: Vec<_> =
                    events.iter().map(|event| Ask { hook, event: *event, patience: PATIENCE }).collect();
                local.admit(&asks, self.now())
            }
            Self::Redis { node, .. } => node.admit(hook, events).await,
        }
    }

    async fn report(&self, hook: &Arc<Hook>, call: Call, probe: Option<u64>) {
        match self {
            Self::Local { local, .. } => {
                let report = Report { call, probe, success: None, hold_until: None };
                local.report(hook, report, self.now());
            }
            Self::Redis { node, .. } => drop(node.through(node.shared.report(hook, call, probe)).await),
        }
    }

    async fn act(&self, hook: &Arc<Hook>, action: CircuitAction) {
        match self {
            Self::Local { local, .. } => drop(local.act(hook, action, self.now())),
            Self::Redis { node, .. } => drop(node.through(node.shared.act(hook, action)).await),
        }
    }

    async fn state(&self, hook: &Arc<Hook>) -> CircuitState {
        let local = match self {
            Self::Local { local, .. } => {
                local.move_on(hook, self.now());
                local
            }
            Self::Redis { node, .. } => {
                node.through(node.shared.look(hook)).await;
                &node.shared.local
            }
        };
        local.standing(hook, self.now()).circuit.state
    }
}

const FAILED: Call = Call::Failed(FailureCategory::ServerError);

fn fragile() -> Arc<Hook> {
    let circuit_breaker_config = BreakerConfig {
        minimum_throughput: Some(4),
        error_threshold_percentage: Some(50.0),
        sleep_window_ms: Some(1_000),
        half_open_max_calls: Some(2),
        half_open_success_threshold: Some(1.0),
        ..BreakerConfig::default()
    };
    hook_of(&WebhookSpec { circuit_breaker_config, ..WebhookSpec::default() })
}

async fn opened(decider: &Decider) -> Arc<Hook> {
    let hook = fragile();
    for _ in 0..4 {
        decider.report(&hook, FAILED, None).await;
    }
    assert_eq!(decider.state(&hook).await, CircuitState::Open);
    hook
}

fn goes(grant: &Grant) -> bool {
    matches!(grant, Grant::Go { .. })
}

fn probe(grant: &Grant) -> Option<u64> {
    match grant {
        Grant::Go { probe, .. } => *probe,
        _ => None,
    }
}

async fn a_circuit_opens_at_its_threshold_and_waits(decider: Decider) {
    let hook = fragile();
    for call in [Call::Succeeded, Call::Succeeded, FAILED, Call::Ignored] {
        decider.report(&hook, call, None).await;
    }
    assert_eq!(decider.state(&hook).await, CircuitState::Closed, "one of three failed");
    decider.report(&hook, FAILED, None).await;
    assert_eq!(decider.state(&hook).await, CircuitState::Open, "two of four did");
    let until = Some(decider.now() + Duration::from_secs(1));
    let wait = Grant::Wait { until, why: WaitingOn::CircuitOpen, scope: Scope::Webhook };
    assert_eq!(decider.ask(&hook, &[event(1), event(2)]).await, [wait, wait]);
}

async fn what_is_long_ago_counts_no_more(decider: Decider) {
    let hook = fragile();
    for _ in 0..3 {
        decider.report(&hook, FAILED, None).await;
    }
    decider.after(60_001);
    decider.report(&hook, FAILED, None).await;
    assert_eq!(decider.state(&hook).await, CircuitState::Closed);
}

async fn a_half_open_circuit_gives_its_probes_once_and_closes(decider: Decider) {
    let hook = opened(&decider).await;
    decider.after(1_000);
    let grants = decider.ask(&hook, &[event(1), event(2), event(3), event(1)]).await;
    let tickets: Vec<_> = grants.iter().filter_map(probe).collect();
    assert_eq!(tickets.len(), 2);
    assert_eq!(grants[2], Grant::NoProbe);
    assert!(matches!(grants[3], Grant::Probed { .. }), "{grants:?}");
    for ticket in tickets {
        assert_eq!(decider.state(&hook).await, CircuitState::HalfOpen);
        decider.report(&hook, Call::Succeeded, Some(ticket)).await;
    }
    assert_eq!(decider.state(&hook).await, CircuitState::Closed);
    assert!(goes(&decider.ask(&hook, &[event(4)]).await[0]));
}

async fn a_failed_recovery_doubles_the_sleep(decider: Decider) {
    let hook = opened(&decider).await;
    decider.after(1_000);
    let ticket = probe(&decider.ask(&hook, &[event(1)]).await[0]);
    decider.report(&hook, FAILED, ticket).await;
    assert_eq!(decider.state(&hook).await, CircuitState::Open);
    decider.after(1_999);
    assert_eq!(decider.state(&hook).await, CircuitState::Open);
    decider.after(1);
    assert_eq!(decider.state(&hook).await, CircuitState::HalfOpen);
}

async fn a_lost_probe_is_replaced(decider: Decider) {
    let hook = opened(&decider).await;
    decider.after(1_000);
    let grants = decider.ask(&hook, &[event(1), event(2), event(3)]).await;
    assert_eq!(grants.iter().filter(|grant| goes(grant)).count(), 2);
    decider.after(PATIENCE.as_millis() as i64);
    assert!(goes(&decider.ask(&hook, &[event(3)]).await[0]));
}

async fn a_bucket_gives_its_burst_and_then_its_rate(decider: Decider) {
    let rate_limit = Some(RateLimit { requests_per_minute: 600, burst: Some(3) });
    let hook = hook_of(&WebhookSpec { rate_limit, ..WebhookSpec::default() });
    let grants = decider.ask(&hook, &[event(1), event(2), event(3), event(4)]).await;
    assert!(grants[..3].iter().all(goes), "{grants:?}");
    let until = Some(decider.now() + Duration::from_millis(100));
    assert_eq!(grants[3], Grant::Wait { until, why: WaitingOn::RateLimit, scope: Scope::Webhook });
    decider.after(100);
    let grants = decider.ask(&hook, &[event(4), event(5)]).await;
    assert!(goes(&grants[0]) && !goes(&grants[1]), "{grants:?}");
}

async fn what_is_forced_stays_until_its_end(decider: Decider) {
    let hook = fragile();
    let until = Some(decider.now() + Duration::from_millis(500));
    let forced = |open, until| CircuitAction::Force(Forced { open, until, by: "somebody".into() });
    decider.act(&hook, forced(true, until)).await;
    let grant = decider.ask(&hook, &[event(1)]).await[0];
    assert_eq!(grant, Grant::Wait { until, why: WaitingOn::CircuitOpen, scope: Scope::Webhook });
    decider.after(500);
    assert!(goes(&decider.ask(&hook, &[event(1)]).await[0]));
    decider.act(&hook, forced(false, None)).await;
    for _ in 0..10 {
        decider.report(&hook, FAILED, None).await;
    }
    assert_eq!(decider.state(&hook).await, CircuitState::Closed, "whatever happens");
}

async fn a_reset_forgets_everything(decider: Decider) {
    let hook = opened(&decider).await;
    decider.act(&hook, CircuitAction::Reset).await;
    assert_eq!(decider.state(&hook).await, CircuitState::Closed);
    for _ in 0..3 {
        decider.report(&hook, FAILED, None).await;
    }
    assert_eq!(decider.state(&hook).await, CircuitState::Closed, "three of three are not four");
}

macro_rules! suite {
    ($($case:ident),+ $(,)?) => {
        mod local {
            $(#[tokio::test]
            async fn $case() {
                super::$case(super::Decider::local().await).await;
            })+
        }

        mod redis {
            $(#[tokio::test]
            async fn $case() {
                super::$case(super::Decider::redis().await).await;
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
    a_reset_forgets_everything,
);
