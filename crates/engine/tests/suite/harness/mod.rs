//! Harness of the data path in one process: a real store, real sockets, and a manual clock.

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
    delivery::{lane::Priority, retry::RetryConfig},
    event::event_type::Pattern,
    protection::breaker::{BreakerConfig, CircuitView},
    security::{
        address::AddressRules,
        egress_rules::EgressRules,
        signature::{LiveSecret, Secret},
    },
    time::HumanDuration,
    webhook::{Webhook, WebhookSpec, WebhookState},
};
use redrive_egress::Client;
use redrive_engine::{
    Engine, EventDraft, Load, Settings,
    clock::{self, Clock},
};
use redrive_store::{
    CreationResult, Delivery, DeliveryFilter, PageRequest, Store,
    sqlite::{Options, Sqlite},
};
use redrive_testkit::{ReceivedRequest, Receiver, Reply};

pub(crate) const START: Time = Time::from_secs(1_700_000_000);

pub(crate) struct Harness {
    pub(crate) engine: Engine,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Clock,
    /// Keeps the store's directory or server alive.
    pub(crate) _keep: Arc<dyn Any + Send + Sync>,
}

pub(crate) fn settings() -> Settings {
    Settings { node: "test".into(), ..Settings::default() }
}

pub(crate) async fn world() -> Harness {
    world_with(settings()).await
}

pub(crate) async fn world_with(settings: Settings) -> Harness {
    let folder = tempfile::tempdir().unwrap();
    let store: Arc<dyn Store> = Arc::new(
        Sqlite::open(&Options::at(folder.path().join("t.db")).with_vault(redrive_testkit::vault())).unwrap(),
    );
    let clock = Clock::manual(START);
    let engine = start(store.clone(), clock.clone(), settings).await;
    Harness { engine, store, clock, _keep: Arc::new(folder) }
}

pub(crate) async fn start(store: Arc<dyn Store>, clock: Clock, settings: Settings) -> Engine {
    let networks = AddressRules { allow: vec!["127.0.0.0/8".parse().unwrap()], deny: Vec::new() };
    let rules = EgressRules { networks, ..EgressRules::default() };
    let egress =
        Client::new(redrive_egress::Config { rules, ..redrive_egress::Config::new(clock::monotonic_now) })
            .unwrap();
    Engine::start(store, egress, clock, settings, &mut Registry::default()).await.unwrap()
}

pub(crate) fn webhook(url: &str, retry_config: RetryConfig) -> Webhook {
    let now = START;
    Webhook {
        id: WebhookId::new(now, &clock::random_id_bytes()),
        tenant_id: TenantId::default(),
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

pub(crate) fn draft(n: usize) -> EventDraft {
    EventDraft {
        tenant_id: TenantId::default(),
        event_type: "order.created".into(),
        data: Bytes::from(format!("{{\"n\":{n}}}")),
        idempotency_key: None,
        source: None,
        subject: None,
        metadata: None,
        priority: Priority::Normal,
        only_webhook: None,
        edited: None,
        trace: None,
        hops: 0,
    }
}

impl Harness {
    pub(crate) async fn deliveries(&self) -> Vec<Delivery> {
        let page = PageRequest { after: None, offset: 0, limit: 10_000 };
        self.store.list_deliveries(TenantId::default(), DeliveryFilter::default(), page).await.unwrap().found
    }

    /// Waits until the deliveries meet a condition, and returns them.
    pub(crate) async fn until(&self, what: &str, wanted: impl Fn(&[Delivery]) -> bool) -> Vec<Delivery> {
        let deadline = Instant::now();
        loop {
            let deliveries = self.deliveries().await;
            if wanted(&deliveries) {
                return deliveries;
            }
            assert!(
                deadline.elapsed() < redrive_testkit::WAIT_TIMEOUT,
                "timed out waiting until {what}: {deliveries:?}"
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Asserts that nothing is left in memory and that the store has no leases.
    pub(crate) async fn assert_settled(&self) {
        let deadline = Instant::now();
        while self.engine.load()
            != (Load { deliveries: 0, bytes: 0, unsettled: 0, slots: self.engine.load().slots })
        {
            assert!(
                deadline.elapsed() < redrive_testkit::WAIT_TIMEOUT,
                "still in memory: {:?}",
                self.engine.load()
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(self.store.stats().await.unwrap().leased, 0, "leases without a delivery in memory");
    }
}

pub(crate) fn all_are(status: DeliveryStatus, count: usize) -> impl Fn(&[Delivery]) -> bool {
    move |deliveries| deliveries.len() == count && deliveries.iter().all(|delivery| delivery.status == status)
}

/// Returns a retry schedule in seconds without jitter.
pub(crate) fn schedule(seconds: &[u64]) -> RetryConfig {
    RetryConfig {
        schedule: Some(seconds.iter().map(|seconds| HumanDuration::secs(*seconds)).collect()),
        jitter: Some(0.0),
        ..RetryConfig::default()
    }
}

impl Harness {
    /// Creates a webhook, modified by `change` before it is stored.
    pub(crate) async fn create_webhook(&self, url: &str, change: impl FnOnce(&mut Webhook)) -> Webhook {
        let mut webhook = webhook(url, schedule(&[0, 5, 5, 5, 5, 5, 5, 5, 5, 5]));
        change(&mut webhook);
        let created = self.engine.create_webhook(webhook.clone(), None, None).await.unwrap();
        assert!(matches!(created, CreationResult::Created { .. }), "{created:?}");
        webhook
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
        self.engine.change_webhook(&webhook.tenant_id, webhook.id, change).await.unwrap();
    }

    /// Returns the number of pending deliveries by wait reason.
    pub(crate) async fn waiting_on(&self) -> std::collections::BTreeMap<&'static str, usize> {
        let mut counts = std::collections::BTreeMap::new();
        for delivery in self.deliveries().await {
            if delivery.status == DeliveryStatus::Pending {
                let waiting = self.engine.wait_reason(&delivery).await.unwrap();
                *counts.entry(waiting.map_or("in_flight", |waiting| waiting.on.name())).or_default() += 1;
            }
        }
        counts
    }

    /// Waits until a condition holds; panics with `what` after the timeout.
    pub(crate) async fn eventually(&self, what: &str, mut holds: impl AsyncFnMut() -> bool) {
        let deadline = Instant::now();
        while !holds().await {
            assert!(deadline.elapsed() < redrive_testkit::WAIT_TIMEOUT, "timed out waiting until {what}");
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
    }

    /// Waits long enough for an unexpected effect to become visible.
    pub(crate) async fn settle_time(&self) {
        tokio::time::sleep(Duration::from_millis(60)).await;
    }

    pub(crate) async fn circuit(&self, webhook: &Webhook) -> CircuitView {
        self.engine.gate_status(webhook.id).await.unwrap().unwrap().circuit
    }

    /// Stops this engine and starts another on the same store and clock.
    pub(crate) async fn restart(self, settings: Settings) -> Self {
        self.engine.drain(Duration::from_secs(5)).await;
        self.engine.stop().await;
        let engine = start(self.store.clone(), self.clock.clone(), settings).await;
        Self { engine, ..self }
    }
}

/// Returns the numbers that `draft` put into the received payloads, in the order of arrival.
pub(crate) fn numbers(arrivals: &[ReceivedRequest]) -> Vec<usize> {
    arrivals.iter().map(|arrival| arrival.json()["data"]["n"].as_u64().unwrap() as usize).collect()
}

pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// Returns a receiver that responds 500 until its flag is set.
pub(crate) async fn failing_receiver() -> (Receiver, Arc<AtomicBool>) {
    let works = Arc::new(AtomicBool::new(false));
    let reported = works.clone();
    let receiver =
        Receiver::with(move |_| Reply::status(if reported.load(SeqCst) { 200 } else { 500 })).await;
    (receiver, works)
}

/// Returns a circuit breaker configuration that opens after `minimum` calls.
pub(crate) fn breaker(minimum: u32) -> BreakerConfig {
    BreakerConfig { minimum_throughput: Some(minimum), ..BreakerConfig::default() }
}

/// Small seeded generator, so that failures are reproducible.
pub(crate) struct TestRng(pub(crate) u64);

impl TestRng {
    pub(crate) fn random(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}
