//! Statistics behind the dashboard's overview and webhook list, on both stores.

use std::{
    any::Any,
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use prometheus_client::registry::Registry;
use redrive_core::{
    FailureCategory, Role, TenantId, Time, WebhookId,
    delivery::{
        lane::Priority,
        retry::{RetryConfig, RetryPolicy},
    },
    event::event_type::Pattern,
    protection::breaker::{BreakerConfig, CircuitState},
    security::{address::AddressRules, egress_rules::EgressRules},
    statistics::traffic::{EndedCounts, Range, Resolution},
    time::HumanDuration,
    webhook::{UrlRules, Webhook, WebhookSpec, WebhookState, verification::RequireVerification},
};
use redrive_egress::Client;
use redrive_engine::{
    Engine, EventDraft, Settings,
    clock::{self, Clock},
};
use redrive_server::app::{
    App, AppSettings, KeyCache, node_info::Identity, overview::Overview, session::Sessions,
};
use redrive_store::{
    PageRequest, Store, Tenant, postgres,
    sqlite::{self, Sqlite},
};
use redrive_testkit::{Postgres, Receiver};

const START: Time = Time::from_secs(1_700_000_000);

struct Fixture {
    app: Arc<App>,
    clock: Clock,
    store: Arc<dyn Store>,
    _keep: Box<dyn Any>,
}

async fn on_sqlite() -> Fixture {
    let folder = tempfile::tempdir().unwrap();
    let options = sqlite::Options::at(folder.path().join("t.db")).with_vault(redrive_testkit::vault());
    house(Arc::new(Sqlite::open(&options).unwrap()), Box::new(folder)).await
}

async fn on_postgres() -> Fixture {
    let database = Postgres::shared().await;
    let options = postgres::Options {
        writers: 4,
        readers: 2,
        allow_unsafe_durability: true,
        ..postgres::Options::at(database.url()).with_vault(redrive_testkit::vault())
    };
    house(Arc::new(postgres::Postgres::open(&options).await.unwrap()), Box::new(database)).await
}

async fn house(store: Arc<dyn Store>, keep: Box<dyn Any>) -> Fixture {
    let networks = AddressRules { allow: vec!["127.0.0.0/8".parse().unwrap()], deny: Vec::new() };
    let rules = EgressRules { networks, ..EgressRules::default() };
    let egress = Client::new(redrive_egress::Config {
        rules: rules.clone(),
        ..redrive_egress::Config::new(clock::monotonic_now)
    })
    .unwrap();
    let clock = Clock::manual(START);
    let mut metrics = Registry::default();
    let settings = Settings { node: "test".into(), ..Settings::default() };
    let engine = Engine::start(store.clone(), egress, clock.clone(), settings, &mut metrics).await.unwrap();
    let keys = KeyCache::load(&*store, None).await.unwrap();
    let rules = AppSettings {
        role: Role::All,
        urls: UrlRules { allow_http: true, egress: rules.clone() },
        max_payload_bytes: 1000,
        max_hops: 5,
        require_verification: RequireVerification::default(),
        api_rate: None,
        audit_retention: Duration::from_secs(3600),
        pools: Vec::new(),
        retry: RetryPolicy::default(),
        public_url: None,
        demo: false,
        identity: Identity {
            node: "test".into(),
            store: "a store".into(),
            started_at: START,
            settings: Vec::new(),
        },
    };
    let sessions = Sessions::new(redrive_testkit::vault());
    Fixture { app: App::new(engine, keys, sessions, rules, metrics), clock, store, _keep: keep }
}

impl Fixture {
    /// Creates a webhook with one attempt per delivery and a circuit that opens at the fifth failure.
    async fn create_webhook(&self, url: &str, description: &str, state: WebhookState) -> Webhook {
        let now = self.clock.now();
        let retry_config = RetryConfig {
            schedule: Some(vec![HumanDuration::secs(0)]),
            jitter: Some(0.0),
            ..RetryConfig::default()
        };
        let webhook = Webhook {
            id: WebhookId::new(now, &clock::random_id_bytes()),
            tenant_id: TenantId::default(),
            spec: WebhookSpec {
                url: url.into(),
                description: Some(description.into()),
                events: vec![Pattern::All],
                retry_config,
                circuit_breaker_config: BreakerConfig {
                    minimum_throughput: Some(5),
                    ..BreakerConfig::default()
                },
                ..WebhookSpec::default()
            },
            secrets: Vec::new(),
            state,
            created_at: now,
            updated_at: now,
        };
        assert!(self.app.engine().create_webhook(webhook.clone()).await.unwrap());
        webhook
    }

    async fn publish(&self, count: usize, priority: Priority) {
        for n in 0..count {
            let draft = EventDraft {
                tenant_id: TenantId::default(),
                event_type: "order.created".into(),
                data: Bytes::from(n.to_string()),
                idempotency_key: None,
                source: None,
                subject: None,
                metadata: None,
                priority,
                only_webhook: None,
                trace: None,
                hops: 0,
            };
            self.app.engine().publish(draft).await.unwrap();
        }
    }

    async fn see(&self, range: Range) -> Overview {
        self.app.overview(TenantId::default(), range).await.unwrap()
    }

    async fn until(&self, what: &str, wanted: impl Fn(&Overview) -> bool) -> Overview {
        let deadline = Instant::now();
        loop {
            let seen = self.see(Range::Hour).await;
            if wanted(&seen) {
                return seen;
            }
            assert!(
                deadline.elapsed() < redrive_testkit::WAIT_TIMEOUT,
                "not seen: {what}; there is {seen:#?}"
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// Publishes seven events to three webhooks: a healthy one gets all, a failing one opens its circuit after five, a
/// paused one gets none.
async fn scene(house: &Fixture) -> [Webhook; 3] {
    let (good, bad) = (Receiver::start().await, Receiver::responding(500).await);
    let good = house.create_webhook(&good.url(), "good", WebhookState::Active).await;
    let bad = house.create_webhook(&bad.url(), "bad", WebhookState::Active).await;
    let paused = house.create_webhook("http://127.0.0.1:2/", "paused", WebhookState::Paused).await;
    house.publish(5, Priority::Normal).await;
    house.until("five die", |seen| seen.dead.last_hour.dead == 5 && seen.circuits.open == 1).await;
    house.publish(2, Priority::High).await;
    house
        .until("the others wait", |seen| seen.queue.total == 9 && seen.traffic.total.ended.delivered == 7)
        .await;
    [good, bad, paused]
}

fn check(seen: &Overview, bad: &Webhook) {
    let total = &seen.traffic.total;
    assert_eq!((total.attempts, total.successes, total.success_rate()), (12, 7, Some(7.0 / 12.0)));
    assert_eq!(total.ended, EndedCounts { delivered: 7, dead: 5, cancelled: 0 });
    assert_eq!(total.most_frequent(), Some(FailureCategory::ServerError));
    assert!(total.latencies.count() == 12 && total.latencies.percentile(95.0).is_some());
    let last = seen.traffic.points.last().unwrap();
    assert_eq!((last.traffic.sent.attempts, last.traffic.ended.dead), (12, 5));
    assert_eq!(seen.queue.by_waiting_on, BTreeMap::from([("circuit_open", 2), ("paused", 7)]));
    assert_eq!((seen.queue.by_priority, seen.queue.webhooks, seen.queue.more), ([4, 5, 0], 2, false));
    assert_eq!((seen.circuits.open, seen.circuits.half_open, seen.circuits.more), (1, 0, false));
    assert_eq!((seen.dead.size, seen.dead.more, seen.dead.last_hour.dead), (5, false, 5));
    assert_eq!(seen.dead.last_24_hours, EndedCounts { delivered: 7, dead: 5, cancelled: 0 });
    let worst = &seen.worst_endpoints.webhooks;
    assert_eq!((worst.len(), seen.worst_endpoints.failing), (1, 1));
    assert_eq!((worst[0].webhook.id, worst[0].last_hour.sum.failures()), (bad.id, 5));
    assert_eq!(worst[0].most_frequent, Some(FailureCategory::ServerError));
    assert_eq!(
        (worst[0].webhook.url.as_str(), worst[0].webhook.description.as_deref()),
        (&*bad.spec.url, Some("bad"))
    );
    let incidents = &seen.incidents;
    assert_eq!((incidents.len(), incidents[0].webhook.id, incidents[0].period.ended_at), (1, bad.id, None));
    assert_eq!((incidents[0].period.counts.total, incidents[0].period.forced), (5, false));
}

async fn overview_reports_traffic_queue_circuits_and_dead_letters(house: Fixture) {
    let [_, bad, _] = scene(&house).await;
    check(&house.see(Range::Hour).await, &bad);
    // The result must be the same once all rollups are stored, at every resolution.
    let deadline = Instant::now();
    let stored = async || {
        let stored =
            house.store.traffic(TenantId::default(), Resolution::Hour, Time::default()).await.unwrap();
        stored.iter().map(|(_, one)| (one.sent.attempts, one.ended.all())).collect::<Vec<_>>()
    };
    while stored().await != [(12, 12)] {
        assert!(deadline.elapsed() < Duration::from_secs(30), "never stored");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for range in Range::ALL {
        let seen = house.see(range).await;
        check(&seen, &bad);
        assert_eq!(seen.traffic.points.len(), range.axis(START).len());
    }
    // Another tenant sees none of it.
    let other = TenantId::parse("globex").unwrap();
    let tenant = Tenant { id: other.clone(), name: None, rules: Default::default(), created_at: START };
    assert!(house.store.create_tenant(tenant).await.unwrap());
    let seen = house.app.overview(other, Range::Day).await.unwrap();
    assert_eq!((seen.traffic.total.attempts, seen.queue.total, seen.dead.size), (0, 0, 0));
    assert_eq!((seen.worst_endpoints.webhooks.len(), seen.incidents.len(), seen.circuits.open), (0, 0, 0));
    // An hour later the last hour is empty, except for probes: the circuit half-opens by then, and a failed probe ends one
    // of the two deliveries that waited for it.
    house.clock.advance(Duration::from_secs(3700));
    let later = house.see(Range::Hour).await;
    let probes = 0..=2;
    assert!(probes.contains(&later.traffic.total.attempts), "{} attempts", later.traffic.total.attempts);
    assert!(probes.contains(&(later.dead.last_hour.dead as u64)), "{} dead", later.dead.last_hour.dead);
    assert!(probes.contains(&(later.dead.size as u64 - 5)), "{} dead letters", later.dead.size);
    assert!(probes.contains(&(later.dead.last_24_hours.dead as u64 - 5)));
    assert_eq!(later.incidents.len(), 1);
}

async fn webhook_list_shows_summary_of_each_webhook(house: Fixture) {
    let [good, bad, paused] = scene(&house).await;
    let page = PageRequest { after: None, offset: 0, limit: 50 };
    let listed = house.app.list_webhooks(TenantId::default(), page).await.unwrap();
    let seen = house.app.summaries(&TenantId::default(), &listed).await.unwrap();
    let ids = |webhooks: &[Webhook]| webhooks.iter().map(|webhook| webhook.id).collect::<Vec<_>>();
    assert_eq!(seen.iter().map(|glance| glance.webhook_id).collect::<Vec<_>>(), ids(&listed));
    let of = |webhook: &Webhook| seen.iter().find(|glance| glance.webhook_id == webhook.id).unwrap();
    let glance = of(&good);
    assert_eq!((glance.last_hour.sum.success_rate(), glance.last_success_at), (Some(1.0), Some(START)));
    assert_eq!(
        (glance.backlog.total, glance.circuit.state, glance.failing_since),
        (0, CircuitState::Closed, None)
    );
    let sparks = &glance.last_hour.minutes;
    assert_eq!((sparks.len(), sparks[59].attempts, sparks[59].successes), (60, 7, 7));
    let glance = of(&bad);
    assert_eq!((glance.last_hour.sum.success_rate(), glance.last_success_at), (Some(0.0), None));
    assert_eq!((glance.circuit.state, glance.failing_since), (CircuitState::Open, Some(START)));
    assert_eq!(glance.backlog.by_waiting_on, BTreeMap::from([("circuit_open", 2)]));
    let glance = of(&paused);
    assert_eq!((glance.last_hour.sum.attempts, glance.last_hour.minutes.len()), (0, 60));
    assert_eq!(glance.backlog.by_waiting_on, BTreeMap::from([("paused", 7)]));
    // `last_success_at` is kept for longer than the hour that is shown.
    house.clock.advance(Duration::from_secs(7200));
    let later = house.app.summaries(&TenantId::default(), std::slice::from_ref(&good)).await.unwrap();
    assert_eq!((later[0].last_hour.sum.attempts, later[0].last_success_at), (0, Some(START)));
    assert!(house.app.summaries(&TenantId::parse("globex").unwrap(), &[good]).await.is_err());
    assert_eq!(house.app.summaries(&TenantId::default(), &[]).await.unwrap().len(), 0);
}

/// Defines a test of each case on each store.
macro_rules! on_every_store {
    ($($case:ident),* $(,)?) => {
        mod sqlite_store {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $case() {
                super::$case(super::on_sqlite().await).await;
            })*
        }
        mod postgres_store {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $case() {
                super::$case(super::on_postgres().await).await;
            })*
        }
    };
}
on_every_store!(
    overview_reports_traffic_queue_circuits_and_dead_letters,
    webhook_list_shows_summary_of_each_webhook
);
