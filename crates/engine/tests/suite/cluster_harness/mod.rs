//! Harness for several nodes on one store.

use std::{
    sync::{Arc, mpsc},
    time::Duration,
};

use redrive_core::{DeliveryStatus, TenantId};
use redrive_engine::{Settings, clock::Clock};
use redrive_store::{
    Delivery, Store, postgres,
    sqlite::{self, Sqlite},
};
use redrive_testkit::{Latch, Postgres, Receiver, Reply};
use tokio::{
    runtime::Runtime,
    sync::{Semaphore, SemaphorePermit},
};

use crate::harness::{Harness, START, start};

/// Lease of the nodes; short enough for a test to wait until it expires.
pub(crate) const LEASE: Duration = Duration::from_secs(1);

/// Store that the nodes share.
#[derive(Clone, Copy)]
pub(crate) enum On {
    /// A database file in this process.
    Sqlite,
    /// A server, with separate connections per node.
    Postgres,
}

/// Defines each case as a test on each store.
macro_rules! on_every_store {
    ($($case:ident),* $(,)?) => {
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $case() {
                super::$case(crate::cluster_harness::On::Sqlite).await;
            })*
        }
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $case() {
                super::$case(crate::cluster_harness::On::Postgres).await;
            })*
        }
    };
}
pub(crate) use on_every_store;

/// Nodes on one store.
pub(crate) struct TestCluster {
    on: Shared,
    clock: Clock,
}

enum Shared {
    Sqlite(Arc<dyn Store>, Arc<tempfile::TempDir>),
    Postgres(Arc<(redrive_testkit::Database, SemaphorePermit<'static>)>),
}

/// Limits concurrent tests on PostgreSQL, because the server has a limited number of connections.
static SERVERS: Semaphore = Semaphore::const_new(4);

impl TestCluster {
    pub(crate) async fn on(on: On) -> Self {
        let on = match on {
            On::Sqlite => {
                let folder = tempfile::tempdir().unwrap();
                let options = sqlite::Options {
                    shared: true,
                    ..sqlite::Options::at(folder.path().join("t.db")).with_vault(redrive_testkit::vault())
                };
                Shared::Sqlite(Arc::new(Sqlite::open(&options).unwrap()), Arc::new(folder))
            }
            On::Postgres => {
                let turn = SERVERS.acquire().await.unwrap();
                Shared::Postgres(Arc::new((Postgres::shared().await, turn)))
            }
        };
        Self { on, clock: Clock::manual(START) }
    }

    async fn store(&self) -> Arc<dyn Store> {
        match &self.on {
            Shared::Sqlite(store, _) => store.clone(),
            Shared::Postgres(server) => {
                let options = postgres::Options {
                    writers: 4,
                    readers: 2,
                    allow_unsafe_durability: true,
                    ..postgres::Options::at(server.0.url()).with_vault(redrive_testkit::vault())
                };
                Arc::new(postgres::Postgres::open(&options).await.unwrap())
            }
        }
    }

    /// Starts another node.
    pub(crate) async fn node(&self, settings: Settings) -> Harness {
        let store = self.store().await;
        let engine = start(store.clone(), self.clock.clone(), settings).await;
        Harness { engine, store, clock: self.clock.clone(), _keep: self.keep() }
    }

    /// Starts another node on its own runtime.
    pub(crate) async fn isolated_node(&self, settings: Settings) -> IsolatedNode {
        let (store, clock) = (self.store().await, self.clock.clone());
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let started = runtime.spawn({
            let (store, clock) = (store.clone(), clock.clone());
            async { start(store, clock, settings).await }
        });
        let engine = started.await.unwrap();
        IsolatedNode { world: Harness { engine, store, clock, _keep: self.keep() }, runtime }
    }

    fn keep(&self) -> Arc<dyn std::any::Any + Send + Sync> {
        match &self.on {
            Shared::Sqlite(_, folder) => folder.clone(),
            Shared::Postgres(server) => server.clone(),
        }
    }
}

pub(crate) fn named(name: &str) -> Settings {
    Settings { node: name.into(), lease: LEASE, ..Settings::default() }
}

/// Starts nodes and waits until they have seen each other.
pub(crate) async fn nodes<const N: usize>(on: On, settings: [Settings; N]) -> Vec<Harness> {
    let cluster = TestCluster::on(on).await;
    let mut nodes: Vec<Harness> = Vec::new();
    for settings in settings {
        nodes.push(cluster.node(settings).await);
    }
    one_heartbeat().await;
    nodes
}

/// Waits for one heartbeat, so that each node has seen the others.
pub(crate) async fn one_heartbeat() {
    tokio::time::sleep(LEASE / 5 + Duration::from_millis(100)).await;
}

/// Node with its own runtime, which can be killed or frozen like a process.
pub(crate) struct IsolatedNode {
    pub(crate) world: Harness,
    runtime: Runtime,
}

impl IsolatedNode {
    /// Kills the node as SIGKILL does: whatever it was doing stays unfinished.
    pub(crate) fn kill(self) {
        self.runtime.shutdown_background();
    }

    /// Freezes the node as SIGSTOP does, until the returned sender is dropped.
    pub(crate) fn freeze(&self) -> mpsc::Sender<()> {
        let (thaw, frozen) = mpsc::channel::<()>();
        self.runtime.spawn(async move { frozen.recv() });
        thaw
    }
}

/// Returns the names of the nodes that made attempts.
pub(crate) async fn workers(harness: &Harness) -> Vec<String> {
    let mut workers = Vec::new();
    for delivery in harness.deliveries().await {
        let attempts = harness.store.attempts(TenantId::default(), delivery.id).await.unwrap().unwrap();
        workers.extend(attempts.iter().map(|one| one.attempt.worker.split('#').next().unwrap().to_owned()));
    }
    workers.sort();
    workers.dedup();
    workers
}

pub(crate) fn count(all: &[Delivery], status: DeliveryStatus) -> usize {
    all.iter().filter(|one| one.status == status).count()
}

pub(crate) fn delivered(all: &[Delivery]) -> usize {
    count(all, DeliveryStatus::Delivered)
}

/// Returns a receiver that holds the first `n` requests until the latch is opened, and replies to others
/// immediately.
pub(crate) async fn holding(n: usize) -> (Receiver, Latch) {
    let gate = Latch::closed();
    let held = gate.clone();
    let receiver = Receiver::with(move |arrival| {
        let reply = Reply::status(200);
        if arrival.number <= n { reply.latched_by(&held) } else { reply }
    })
    .await;
    (receiver, gate)
}
