//! Many nodes on one store.

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
use redrive_testkit::{Gate, Postgres, Receiver, Reply};
use tokio::{
    runtime::Runtime,
    sync::{Semaphore, SemaphorePermit},
};

use crate::harness::{START, World, start};

/// Short enough for a test to wait for its end.
pub(crate) const LEASE: Duration = Duration::from_secs(1);

/// What the nodes share.
#[derive(Clone, Copy)]
pub(crate) enum On {
    /// A database file of this process.
    Sqlite,
    /// A server, to which each node has connections of its own.
    Postgres,
}

/// Makes a test of each case on each store.
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

/// Nodes on one store, and how to open it.
pub(crate) struct Fleet {
    on: Shared,
    clock: Clock,
}

enum Shared {
    Sqlite(Arc<dyn Store>, Arc<tempfile::TempDir>),
    Postgres(Arc<(redrive_testkit::Database, SemaphorePermit<'static>)>),
}

/// Servers have only so many connections.
static SERVERS: Semaphore = Semaphore::const_new(4);

impl Fleet {
    pub(crate) async fn on(on: On) -> Self {
        let on = match on {
            On::Sqlite => {
                let folder = tempfile::tempdir().unwrap();
                let options = sqlite::Options {
                    shared: true,
                    ..sqlite::Options::at(folder.path().join("t.db")).sealed_by(redrive_testkit::vault())
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
                    ..postgres::Options::at(server.0.url()).sealed_by(redrive_testkit::vault())
                };
                Arc::new(postgres::Postgres::open(&options).await.unwrap())
            }
        }
    }

    /// One more node.
    pub(crate) async fn node(&self, settings: Settings) -> World {
        let store = self.store().await;
        let engine = start(store.clone(), self.clock.clone(), settings).await;
        World { engine, store, clock: self.clock.clone(), _keep: self.keep() }
    }

    /// One more node, with a runtime of its own.
    pub(crate) async fn apart(&self, settings: Settings) -> Apart {
        let (store, clock) = (self.store().await, self.clock.clone());
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let started = runtime.spawn({
            let (store, clock) = (store.clone(), clock.clone());
            async { start(store, clock, settings).await }
        });
        let engine = started.await.unwrap();
        Apart { world: World { engine, store, clock, _keep: self.keep() }, runtime }
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

/// Nodes that know of each other.
pub(crate) async fn nodes<const N: usize>(on: On, settings: [Settings; N]) -> Vec<World> {
    let fleet = Fleet::on(on).await;
    let mut nodes: Vec<World> = Vec::new();
    for settings in settings {
        nodes.push(fleet.node(settings).await);
    }
    a_beat().await;
    nodes
}

/// Time for each node to see who is there.
pub(crate) async fn a_beat() {
    tokio::time::sleep(LEASE / 5 + Duration::from_millis(100)).await;
}

/// A node with a runtime of its own, so that it can be stopped as a process can.
pub(crate) struct Apart {
    pub(crate) world: World,
    runtime: Runtime,
}

impl Apart {
    /// As by SIGKILL: whatever it was doing is not done.
    pub(crate) fn kill(self) {
        self.runtime.shutdown_background();
    }

    /// As by SIGSTOP: nothing happens on it until the answer is dropped.
    pub(crate) fn freeze(&self) -> mpsc::Sender<()> {
        let (thaw, frozen) = mpsc::channel::<()>();
        self.runtime.spawn(async move { frozen.recv() });
        thaw
    }
}

/// Who made attempts, by the names that the nodes were given.
pub(crate) async fn workers(world: &World) -> Vec<String> {
    let mut workers = Vec::new();
    for delivery in world.deliveries().await {
        let attempts = world.store.attempts(TenantId::default(), delivery.id).await.unwrap().unwrap();
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

/// A receiver that holds the first `n` requests until the gate is opened, and takes the others at once.
pub(crate) async fn holding(n: usize) -> (Receiver, Gate) {
    let gate = Gate::closed();
    let held = gate.clone();
    let receiver = Receiver::with(move |arrival| {
        let reply = Reply::status(200);
        if arrival.number <= n { reply.held_by(&held) } else { reply }
    })
    .await;
    (receiver, gate)
}
