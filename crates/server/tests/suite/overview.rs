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
use redrive_server::{
    app::{App, AppSettings, KeyCache, node_info::Identity, overview::Overview, session::Sessions},
    config::TenantMetricsAccess,
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
    start_fixture(Arc::new(Sqlite::open(&options).unwrap()), Box::new(folder)).await
}

async fn on_postgres() -> Fixture {
    let database = Postgres::shared().await;
    let options = postgres::Options {
        writers: 4,
        readers: 2,
        allow_unsafe_durability: true,
        ..postgres::Options::at(database.url()).with_vault(redrive_testkit::vault())
    };
    start_fixture(Arc::new(postgres::Postgres::open(&options).await.unwrap()), Box::new(database)).await
}

async fn start_fixture(store: Arc<dyn Store>, keep: Box<dyn Any>) -> Fixture {
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
        create_tenants: false,
        role: Role::All,
        urls: UrlRules { allow_http: true, egress: rules.clone() },
        max_payload_bytes: 1000,
        max_hops: 5,
        require_verification: RequireVerification::default(),
        api_rate: None,
        audit_retention: Duration::from_secs(3600),
        pools: Vec::new(),
        tenant_metrics: TenantMetricsAccess::default(),
        max_named_values: 50,
        retry: RetryPolicy::default(),
        public_url: None,
        user_login: None,
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
        let created = self.app.engine().create_webhook(webhook.clone(), None, None).await.unwrap();
        assert!(matches!(created, redrive_store::CreationResult::Created { .. }), "{created:?}");
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
                edited: None,
                trace: None,
                hops: 0,
            };
            self.app.engine().publish(draft).await.unwrap();
        }
    }

    async fn overview(&self, range: Range) -> Overview {
        self.app.overview(TenantId::default(), range).await.unwrap()
    }

    async fn wait_until(&self, what: &str, condition: impl Fn(&Overview) -> bool) -> Overview {
        let started = Instant::now();
        loop {
            let overview = self.overview(Range::Hour).await;
            if condition(&overview) {
                return overview;
            }
            assert!(
                started.elapsed() < redrive_testkit::WAIT_TIMEOUT,
                "timed out waiting for {what}: {overview:#?}"
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// Publishes seven events to three webhooks: a healthy one gets all, a failing one opens its circuit after five, a
/// paused one gets none.
async fn create_traffic(fixture: &Fixture) -> [Webhook; 3] {
    let (good, bad) = (Receiver::start().await, Receiver::responding(500).await);
    let good = fixture.create_webhook(&good.url(), "good", WebhookState::Active).await;
    let bad = fixture.create_webhook(&bad.url(), "bad", WebhookState::Active).await;
    let paused = fixture.create_webhook("http://127.0.0.1:2/", "paused", WebhookState::Paused).await;
    fixture.publish(5, Priority::Normal).await;
    fixture
        .wait_until("five dead deliveries", |overview| {
            overview.dead.last_hour.dead == 5 && overview.circuits.open == 1
        })
        .await;
    fixture.publish(2, Priority::High).await;
    fixture
        .wait_until("nine waiting deliveries", |overview| {
            overview.queue.total == 9 && overview.traffic.total.ended.delivered == 7
        })
        .await;
    [good, bad, paused]
}

fn check(overview: &Overview, bad: &Webhook) {
    let total = &overview.traffic.total;
    assert_eq!((total.attempts, total.successes, total.success_rate()), (12, 7, Some(7.0 / 12.0)));
    assert_eq!(total.ended, EndedCounts { delivered: 7, dead: 5, cancelled: 0 });
    assert_eq!(total.most_frequent(), Some(FailureCategory::ServerError));
    assert!(total.latencies.count() == 12 && total.latencies.percentile(95.0).is_some());
    let last = overview.traffic.points.last().unwrap();
    assert_eq!((last.traffic.sent.attempts, last.traffic.ended.dead), (12, 5));
    assert_eq!(overview.queue.by_waiting_on, BTreeMap::from([("circuit_open", 2), ("paused", 7)]));
    assert_eq!(
        (overview.queue.by_priority, overview.queue.webhooks, overview.queue.more),
        ([4, 5, 0], 2, false)
    );
    assert_eq!((overview.circuits.open, overview.circuits.half_open, overview.circuits.more), (1, 0, false));
    assert_eq!((overview.dead.size, overview.dead.more, overview.dead.last_hour.dead), (5, false, 5));
    assert_eq!(overview.dead.last_24_hours, EndedCounts { delivered: 7, dead: 5, cancelled: 0 });
    let worst = &overview.worst_webhooks.webhooks;
    assert_eq!((worst.len(), overview.worst_webhooks.failing), (1, 1));
    assert_eq!((worst[0].webhook.id, worst[0].last_hour.sum.failures()), (bad.id, 5));
    assert_eq!(worst[0].most_frequent, Some(FailureCategory::ServerError));
    assert_eq!(
        (worst[0].webhook.url.as_str(), worst[0].webhook.description.as_deref()),
        (&*bad.spec.url, Some("bad"))
    );
    let incidents = &overview.incidents;
    assert_eq!((incidents.len(), incidents[0].webhook.id, incidents[0].period.ended_at), (1, bad.id, None));
    assert_eq!((incidents[0].period.counts.total, incidents[0].period.forced), (5, false));
}

async fn overview_reports_traffic_queue_circuits_and_dead_letters(fixture: Fixture) {
    let [_, bad, _] = create_traffic(&fixture).await;
    check(&fixture.overview(Range::Hour).await, &bad);
    // The result must be the same once all rollups are stored, at every resolution.
    let started = Instant::now();
    let stored = async || {
        let stored =
            fixture.store.traffic(TenantId::default(), Resolution::Hour, Time::default()).await.unwrap();
        stored.iter().map(|(_, one)| (one.sent.attempts, one.ended.all())).collect::<Vec<_>>()
    };
    while stored().await != [(12, 12)] {
        assert!(started.elapsed() < redrive_testkit::WAIT_TIMEOUT, "the rollups were not stored in time");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for range in Range::ALL {
        let overview = fixture.overview(range).await;
        check(&overview, &bad);
        assert_eq!(overview.traffic.points.len(), range.axis(START).len());
    }
    // Another tenant sees none of it.
    let other = TenantId::parse("globex").unwrap();
    let tenant = Tenant {
        id: other.clone(),
        metadata: Default::default(),
        name: None,
        rules: Default::default(),
        created_at: START,
    };
    assert!(fixture.store.create_tenant(tenant).await.unwrap());
    let overview = fixture.app.overview(other, Range::Day).await.unwrap();
    assert_eq!((overview.traffic.total.attempts, overview.queue.total, overview.dead.size), (0, 0, 0));
    assert_eq!(
        (overview.worst_webhooks.webhooks.len(), overview.incidents.len(), overview.circuits.open),
        (0, 0, 0)
    );
    // An hour later the last hour is empty, except for probes: the circuit half-opens by then, and a failed probe ends one
    // of the two deliveries that waited for it.
    fixture.clock.advance(Duration::from_secs(3700));
    let later = fixture.overview(Range::Hour).await;
    let probes = 0..=2;
    assert!(probes.contains(&later.traffic.total.attempts), "{} attempts", later.traffic.total.attempts);
    assert!(probes.contains(&(later.dead.last_hour.dead as u64)), "{} dead", later.dead.last_hour.dead);
    assert!(probes.contains(&(later.dead.size as u64 - 5)), "{} dead letters", later.dead.size);
    assert!(probes.contains(&(later.dead.last_24_hours.dead as u64 - 5)));
    assert_eq!(later.incidents.len(), 1);
}

async fn webhook_list_shows_summary_of_each_webhook(fixture: Fixture) {
    let [good, bad, paused] = create_traffic(&fixture).await;
    let page = PageRequest { after: None, offset: 0, limit: 50 };
    let listed = fixture.app.list_webhooks(TenantId::default(), page).await.unwrap();
    let summaries = fixture.app.summaries(&TenantId::default(), &listed).await.unwrap();
    let ids = |webhooks: &[Webhook]| webhooks.iter().map(|webhook| webhook.id).collect::<Vec<_>>();
    assert_eq!(summaries.iter().map(|summary| summary.webhook_id).collect::<Vec<_>>(), ids(&listed));
    let summary_of =
        |webhook: &Webhook| summaries.iter().find(|summary| summary.webhook_id == webhook.id).unwrap();
    let summary = summary_of(&good);
    assert_eq!((summary.last_hour.sum.success_rate(), summary.last_success_at), (Some(1.0), Some(START)));
    assert_eq!(
        (summary.backlog.total, summary.circuit.state, summary.failing_since),
        (0, CircuitState::Closed, None)
    );
    let minutes = &summary.last_hour.minutes;
    assert_eq!((minutes.len(), minutes[59].attempts, minutes[59].successes), (60, 7, 7));
    let summary = summary_of(&bad);
    assert_eq!((summary.last_hour.sum.success_rate(), summary.last_success_at), (Some(0.0), None));
    assert_eq!((summary.circuit.state, summary.failing_since), (CircuitState::Open, Some(START)));
    assert_eq!(summary.backlog.by_waiting_on, BTreeMap::from([("circuit_open", 2)]));
    let summary = summary_of(&paused);
    assert_eq!((summary.last_hour.sum.attempts, summary.last_hour.minutes.len()), (0, 60));
    assert_eq!(summary.backlog.by_waiting_on, BTreeMap::from([("paused", 7)]));
    // `last_success_at` is kept for longer than the hour that is shown.
    fixture.clock.advance(Duration::from_secs(7200));
    let later = fixture.app.summaries(&TenantId::default(), std::slice::from_ref(&good)).await.unwrap();
    assert_eq!((later[0].last_hour.sum.attempts, later[0].last_success_at), (0, Some(START)));
    let foreign = fixture.app.summaries(&TenantId::parse("globex").unwrap(), &[good]).await.unwrap();
    assert_eq!(foreign.len(), 0, "webhooks of other tenants are left out");
    assert_eq!(fixture.app.summaries(&TenantId::default(), &[]).await.unwrap().len(), 0);
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
