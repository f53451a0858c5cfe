//! The data path in one process: a real store, real sockets, and a clock that the test moves.

use std::{
    any::Any,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use prometheus_client::registry::Registry;
use redrive_core::{
    DeliveryStatus, TenantId, Time, WebhookId,
    delivery::lane::Priority,
    delivery::retry::RetryConfig,
    event::event_type::Pattern,
    protection::breaker::{BreakerConfig, CircuitView},
    security::address::AddressRules,
    security::egress_rules::ReachRules,
    security::signature::{LiveSecret, Secret},
    time::Span,
    webhook::{Webhook, WebhookSpec, WebhookState},
};
use redrive_egress::Client;
use redrive_engine::{
    Draft, Engine, Load, Settings,
    clock::{self, Clock},
};
use redrive_store::{
    Delivery, DeliveryFilter, PageRequest, Store,
    sqlite::{Options, Sqlite},
};
use redrive_testkit::{Arrival, Receiver, Reply};

pub(crate) const START: Time = Time::from_secs(1_700_000_000);

pub(crate) struct World {
    pub(crate) engine: Engine,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Clock,
    /// What the store is in.
    pub(crate) _keep: Arc<dyn Any + Send + Sync>,
}

pub(crate) fn settings() -> Settings {
    Settings { node: "test".into(), ..Settings::default() }
}

pub(crate) async fn world() -> World {
    world_with(settings()).await
}

pub(crate) async fn world_with(settings: Settings) -> World {
    let folder = tempfile::tempdir().unwrap();
    let store: Arc<dyn Store> = Arc::new(
        Sqlite::open(&Options::at(folder.path().join("t.db")).sealed_by(redrive_testkit::vault())).unwrap(),
    );
    let clock = Clock::manual(START);
    let engine = start(store.clone(), clock.clone(), settings).await;
    World { engine, store, clock, _keep: Arc::new(folder) }
}

pub(crate) async fn start(store: Arc<dyn Store>, clock: Clock, settings: Settings) -> Engine {
    let networks = AddressRules { allow: vec!["127.0.0.0/8".parse().unwrap()], deny: Vec::new() };
    let rules = ReachRules { networks, ..ReachRules::default() };
    let egress =
        Client::new(redrive_egress::Config { rules, ..redrive_egress::Config::new(clock::ticks) }).unwrap();
    Engine::start(store, egress, clock, settings, &mut Registry::default()).await.unwrap()
}

pub(crate) fn webhook(url: &str, retry_config: RetryConfig) -> Webhook {
    let now = START;
    Webhook {
        id: WebhookId::new(now, &clock::randomness()),
        tenant: TenantId::default(),
        spec: WebhookSpec {
            url: url.into(),
            events: vec![Pattern::All],
            retry_config,
            ..WebhookSpec::default()
        },
        secrets: vec![LiveSecret { secret: Secret::from_bytes(&[7; 32]), created_at: now, expires_at: None }],
        state: WebhookState::Active,
        created_at: now,
        updated_at: now,
    }
}

pub(crate) fn draft(n: usize) -> Draft {
    Draft {
        tenant: TenantId::default(),
        event_type: "order.created".into(),
        data: Bytes::from(format!("{{\"n\":{n}}}")),
        idempotency_key: None,
        source: None,
        subject: None,
        metadata: None,
        priority: Priority::Normal,
        only: None,
        trace: None,
        hops: 0,
    }
}

impl World {
    pub(crate) async fn deliveries(&self) -> Vec<Delivery> {
        let page = PageRequest { after: None, offset: 0, limit: 10_000 };
        self.store.list_deliveries(TenantId::default(), DeliveryFilter::default(), page).await.unwrap().found
    }

    /// Waits until the deliveries look as wanted.
    pub(crate) async fn until(&self, what: &str, wanted: impl Fn(&[Delivery]) -> bool) -> Vec<Delivery> {
        let patience = Instant::now();
        loop {
            let deliveries = self.deliveries().await;
            if wanted(&deliveries) {
                return deliveries;
            }
            assert!(
                patience.elapsed() < redrive_testkit::PATIENCE,
                "not seen: {what}; there is {deliveries:?}"
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Nothing is left over: what the store has leased is what is in memory, and both are empty.
    pub(crate) async fn assert_settled(&self) {
        let patience = Instant::now();
        while self.engine.load()
            != (Load { items: 0, bytes: 0, unsettled: 0, slots: self.engine.load().slots })
        {
            assert!(patience.elapsed() < redrive_testkit::PATIENCE, "left over: {:?}", self.engine.load());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(self.store.vitals().await.unwrap().leased, 0, "leases without a delivery in memory");
    }
}

pub(crate) fn all_are(status: DeliveryStatus, count: usize) -> impl Fn(&[Delivery]) -> bool {
    move |deliveries| deliveries.len() == count && deliveries.iter().all(|delivery| delivery.status == status)
}

/// A schedule of waits in seconds, without chance.
pub(crate) fn schedule(seconds: &[u64]) -> RetryConfig {
    RetryConfig {
        schedule: Some(seconds.iter().map(|seconds| Span::secs(*seconds)).collect()),
        jitter: Some(0.0),
        ..RetryConfig::default()
    }
}

impl World {
    /// A webhook that is changed before it is stored.
    pub(crate) async fn hook(&self, url: &str, change: impl FnOnce(&mut Webhook)) -> Webhook {
        let mut hook = webhook(url, schedule(&[0, 5, 5, 5, 5, 5, 5, 5, 5, 5]));
        change(&mut hook);
        assert!(self.engine.create_webhook(hook.clone()).await.unwrap());
        hook
    }

    pub(crate) async fn publish(&self, numbers: std::ops::Range<usize>) {
        for n in numbers {
            self.engine.publish(draft(n)).await.unwrap();
        }
    }

    pub(crate) async fn set_state(&self, webhook: &Webhook, state: WebhookState) {
        let change = |webhook: &mut Webhook| {
            webhook.state = state.clone();
            Ok::<_, ()>(())
        };
        self.engine.change_webhook(&webhook.tenant, webhook.id, change).await.unwrap();
    }

    /// How many deliveries wait for what.
    pub(crate) async fn waiting_on(&self) -> std::collections::BTreeMap<&'static str, usize> {
        let mut counts = std::collections::BTreeMap::new();
        for delivery in self.deliveries().await {
            if delivery.status == DeliveryStatus::Pending {
                let waiting = self.engine.waiting(&delivery).await.unwrap();
                *counts.entry(waiting.map_or("in_flight", |waiting| waiting.on.name())).or_default() += 1;
            }
        }
        counts
    }

    /// Waits until something holds, and says what it waited for if it never does.
    pub(crate) async fn eventually(&self, what: &str, mut holds: impl AsyncFnMut() -> bool) {
        let patience = Instant::now();
        while !holds().await {
            assert!(patience.elapsed() < redrive_testkit::PATIENCE, "not seen: {what}");
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
    }

    /// Time for whatever should not happen to happen.
    pub(crate) async fn a_moment(&self) {
        tokio::time::sleep(Duration::from_millis(60)).await;
    }

    pub(crate) async fn circuit(&self, webhook: &Webhook) -> CircuitView {
        self.engine.gate_view(webhook.id).await.unwrap().unwrap().circuit
    }

    /// Stops this engine and starts another on the same store and clock.
    pub(crate) async fn restart(self, settings: Settings) -> Self {
        self.engine.drain(Duration::from_secs(5)).await;
        self.engine.stop().await;
        let engine = start(self.store.clone(), self.clock.clone(), settings).await;
        Self { engine, ..self }
    }
}

/// The numbers that `draft` put into what arrived, in the order of arrival.
pub(crate) fn numbers(arrivals: &[Arrival]) -> Vec<usize> {
    arrivals.iter().map(|arrival| arrival.json()["data"]["n"].as_u64().unwrap() as usize).collect()
}

pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// A receiver that fails until it is told to work.
pub(crate) async fn broken() -> (Receiver, Arc<AtomicBool>) {
    let works = Arc::new(AtomicBool::new(false));
    let told = works.clone();
    let receiver = Receiver::with(move |_| Reply::status(if told.load(SeqCst) { 200 } else { 500 })).await;
    (receiver, works)
}

/// A breaker that opens after so many calls.
pub(crate) fn breaker(minimum: u32) -> BreakerConfig {
    BreakerConfig { minimum_throughput: Some(minimum), ..BreakerConfig::default() }
}

/// A small generator of its own, so that a failure shows itself again.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}
