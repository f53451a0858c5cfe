//! Harness: three nodes on their own PostgreSQL server, with two tenants that have three webhooks each.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use parking_lot::Mutex;
use redrive_core::{DeliveryId, EventId, TenantId, WebhookId};
use redrive_store::{
    Epoch, Store, StoreError,
    conformance::{Harness, Opened},
    postgres::{Options, Postgres},
};

pub(crate) const NODES: usize = 3;
/// Small, so that operations access the same rows.
const MAX_KNOWN_DELIVERIES: usize = 60;

/// Delivery that was published by an operation.
#[derive(Clone)]
pub(crate) struct KnownDelivery {
    pub(crate) id: DeliveryId,
    pub(crate) event_id: EventId,
    pub(crate) tenant_id: TenantId,
    pub(crate) webhook_id: WebhookId,
}

/// State and counters shared by all nodes.
pub(crate) struct Shared {
    pub(crate) harness: Arc<Harness>,
    pub(crate) tenants: Vec<TenantId>,
    /// Deleted webhooks are replaced in place.
    pub(crate) webhooks: Mutex<Vec<(TenantId, WebhookId)>>,
    pub(crate) known: Mutex<VecDeque<KnownDelivery>>,
    pub(crate) generation: AtomicU64,
    successes: Mutex<BTreeMap<String, u64>>,
    errors: Mutex<Vec<String>>,
}

impl Shared {
    pub(crate) fn add_known(&self, deliveries: impl IntoIterator<Item = KnownDelivery>) {
        let mut known = self.known.lock();
        known.extend(deliveries);
        while known.len() > MAX_KNOWN_DELIVERIES {
            known.pop_front();
        }
    }

    /// Counts a success. Contention that outlasts all retries is allowed; any other error fails the test.
    pub(crate) fn check<T>(&self, what: &str, result: Result<T, StoreError>) -> Option<T> {
        match result {
            Ok(value) => {
                *self.successes.lock().entry(what.to_owned()).or_default() += 1;
                Some(value)
            }
            Err(StoreError::Unavailable(reason)) if reason.contains("conflicts with other transactions") => {
                None
            }
            Err(StoreError::Fenced | StoreError::Busy(_)) => None,
            Err(error) => {
                self.errors.lock().push(format!("{what}: {error}"));
                None
            }
        }
    }
}

/// One node, as used by one task.
pub(crate) struct Node {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) epoch: Epoch,
    pub(crate) shared: Arc<Shared>,
    random: u64,
}

impl Node {
    /// Returns a number below `limit`, from a sequence that depends only on the seed.
    pub(crate) fn pick(&mut self, limit: usize) -> usize {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) as usize % limit.max(1)
    }

    pub(crate) fn pick_tenant(&mut self) -> TenantId {
        let index = self.pick(self.shared.tenants.len());
        self.shared.tenants[index].clone()
    }

    pub(crate) fn pick_webhook(&mut self) -> (TenantId, WebhookId) {
        let webhooks = self.shared.webhooks.lock().clone();
        webhooks[self.pick(webhooks.len())].clone()
    }

    /// Returns up to `count` deliveries of one tenant, in random order.
    pub(crate) fn pick_deliveries(&mut self, tenant_id: &TenantId, count: usize) -> Vec<KnownDelivery> {
        let known: Vec<_> =
            self.shared.known.lock().iter().filter(|one| one.tenant_id == *tenant_id).cloned().collect();
        let mut picked: BTreeMap<usize, KnownDelivery> = BTreeMap::new();
        for _ in 0..count.min(known.len()) {
            let index = self.pick(known.len());
            picked.insert(index, known[index].clone());
        }
        let mut picked: Vec<_> = picked.into_values().collect();
        if self.pick(2) == 0 {
            picked.reverse();
        }
        picked
    }
}

pub(crate) struct LockHarness {
    server: redrive_testkit::Postgres,
    nodes: Vec<(Arc<dyn Store>, Epoch)>,
    shared: Arc<Shared>,
}

impl LockHarness {
    pub(crate) async fn start() -> Self {
        let server = redrive_testkit::Postgres::start().await;
        // Deadlocks are detected soon, so that the test continues.
        server.execute("ALTER SYSTEM SET deadlock_timeout = '20ms'").await;
        server.execute("SELECT pg_reload_conf()").await;
        let options = || Options {
            writers: 8,
            readers: 2,
            ..Options::at(server.url()).with_vault(redrive_testkit::vault())
        };
        let mut stores: Vec<Arc<dyn Store>> = Vec::new();
        for _ in 0..NODES {
            stores.push(Arc::new(Postgres::open(&options()).await.unwrap()));
        }
        let never = Box::new(|| -> redrive_store::conformance::Reopening {
            panic!("this test does not reopen the store")
        });
        let harness =
            Harness::new(Opened { store: stores[0].clone(), keep: Box::new(()), reopen: never }).await;
        let tenants = vec![harness.tenant_id.clone(), harness.new_tenant("zebra").await];
        let mut webhooks = Vec::new();
        for tenant_id in &tenants {
            for _ in 0..3 {
                let webhook = harness.webhook_of(tenant_id);
                stores[0].create_webhook(webhook.clone()).await.unwrap();
                webhooks.push((tenant_id.clone(), webhook.id));
            }
        }
        let mut nodes = Vec::new();
        for store in stores {
            let epoch = store.join(Default::default(), redrive_store::conformance::at(0)).await.unwrap();
            nodes.push((store, epoch));
        }
        let shared = Shared {
            harness,
            tenants,
            webhooks: Mutex::new(webhooks),
            known: Mutex::default(),
            generation: AtomicU64::new(1),
            successes: Mutex::default(),
            errors: Mutex::default(),
        };
        Self { server, nodes, shared: Arc::new(shared) }
    }

    pub(crate) fn node(&self, index: usize, seed: u64) -> Node {
        let (store, epoch) = self.nodes[index].clone();
        Node { store, epoch, shared: self.shared.clone(), random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) }
    }

    /// Returns the number of deadlocks that the server has logged.
    pub(crate) fn deadlocks(&self) -> usize {
        self.server.log().matches("ERROR:  deadlock detected").count()
    }

    /// Returns the number of deadlocks that the server counts once every connection has reported its statistics.
    pub(crate) async fn counted_deadlocks(&self) -> u64 {
        tokio::time::sleep(Duration::from_millis(1500)).await;
        let rows =
            self.server.query("SELECT deadlocks FROM pg_stat_database WHERE datname = 'redrive'").await;
        rows[0][0].parse().unwrap()
    }

    /// Returns the log records of the server about the first deadlocks.
    pub(crate) fn deadlock_details(&self, count: usize) -> String {
        let log = self.server.log();
        let cut = |part: &str| part.lines().take(30).collect::<Vec<_>>().join("\n");
        log.split("ERROR:  deadlock detected")
            .skip(1)
            .take(count)
            .map(cut)
            .collect::<Vec<_>>()
            .join("\n---\n")
    }

    /// Fails if an operation returned an error that is not contention, or never succeeded.
    pub(crate) fn assert_operations_worked(&self) {
        let mut errors = self.shared.errors.lock().clone();
        // If the machine pauses for longer than a transaction may be idle, the server closes its connection.
        if self.server.log().contains("terminating connection due to idle-in-transaction timeout") {
            errors.retain(|error| !error.ends_with("connection closed"));
        }
        assert!(errors.is_empty(), "{} errors, such as {:?}", errors.len(), &errors[..errors.len().min(5)]);
        let successes = self.shared.successes.lock();
        for operation in super::Operation::ALL {
            let name = format!("{operation:?}");
            assert!(successes.get(&name).is_some_and(|count| *count > 0), "{name} never succeeded");
        }
    }
}
