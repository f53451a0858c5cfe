//! Supervisor: runs the services of a node by name, restarts those that end, and reports those that are down.

use std::{
    any::Any,
    borrow::Cow,
    collections::{BTreeMap, HashMap},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};
use redrive_core::maintenance::restart::{RestartDecision, RestartHistory};
use tokio::{
    sync::{mpsc, watch},
    task::{Id, JoinError, JoinSet},
};
use tokio_util::sync::CancellationToken;

use super::Faults;
use crate::clock::monotonic_now;

/// Time for services to end after the engine was stopped; those that still run are then aborted.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// Name of a service, as logs, metrics and the status show it.
pub type ServiceName = Cow<'static, str>;

type ServiceFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A background service: a loop with a name.
pub struct Service {
    name: ServiceName,
    kind: ServiceKind,
    run: Box<dyn FnMut() -> ServiceFuture + Send>,
}

/// What the supervisor does when a service ends unexpectedly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceKind {
    /// The node does not deliver correctly without it: it is restarted, the node is not ready until it runs again, and
    /// the process exits if restarts do not help.
    Essential,
    /// Deliveries do not depend on it: it is restarted for as long as it takes.
    Auxiliary,
    /// The service ends by itself when its work is done. Until then it is treated as `Auxiliary`.
    Once,
}

impl Service {
    /// Creates a service. `run` is called for every start; what the service must not lose is kept outside its future.
    pub fn new<F>(
        name: impl Into<ServiceName>,
        kind: ServiceKind,
        mut run: impl FnMut() -> F + Send + 'static,
    ) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        Self { name: name.into(), kind, run: Box::new(move || Box::pin(run())) }
    }
}

/// A service as operators see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceStatus {
    /// The service's name.
    pub name: ServiceName,
    /// What follows when it ends.
    pub kind: ServiceKind,
    /// Whether it runs, or has reached its end; false while it waits for its restart.
    pub up: bool,
    /// Restarts since the start of the process.
    pub restarts: u64,
    /// Why it ended the last time.
    pub last_failure: Option<String>,
}

/// Why the engine cannot go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineFailure {
    /// What failed, for the log.
    pub reason: String,
    /// Whether requests in flight can still be finished and recorded.
    pub can_drain: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ServiceLabel {
    service: String,
}

/// Metrics of all services.
pub(crate) struct ServiceMetrics {
    restarts: Family<ServiceLabel, Counter>,
    up: Family<ServiceLabel, Gauge>,
}

impl ServiceMetrics {
    pub(crate) fn new(registry: &mut Registry) -> Self {
        let metrics = Self { restarts: Family::default(), up: Family::default() };
        registry.register(
            "redrive_service_restarts",
            "Restarts of a background service after it ended unexpectedly",
            metrics.restarts.clone(),
        );
        registry.register(
            "redrive_service_up",
            "0 while a background service waits for its restart or was given up, otherwise 1",
            metrics.up.clone(),
        );
        metrics
    }
}

/// Runs the services of one engine.
pub(crate) struct Supervisor {
    statuses: Mutex<BTreeMap<ServiceName, ServiceStatus>>,
    registrations: mpsc::UnboundedSender<Service>,
    failure: watch::Sender<Option<EngineFailure>>,
    metrics: ServiceMetrics,
    stop: CancellationToken,
    /// Cancelled once all services have ended.
    stopped: CancellationToken,
    #[cfg(feature = "fault_injection")]
    faults: Faults,
}

/// A service that runs or waits for its restart.
struct Supervised {
    service: Service,
    history: RestartHistory,
}

impl Supervised {
    /// Returns whether the service has reached its end.
    fn has_finished(&self, failure: &Option<String>) -> bool {
        self.service.kind == ServiceKind::Once && failure.is_none()
    }
}

impl Supervisor {
    /// Starts supervising. The services end when `stop` is cancelled.
    ///
    /// `poisoned` is cancelled when shared state is inconsistent; then the engine fails.
    pub(crate) fn start(
        metrics: ServiceMetrics,
        stop: CancellationToken,
        poisoned: CancellationToken,
        faults: &Faults,
    ) -> Arc<Self> {
        #[cfg(not(feature = "fault_injection"))]
        let _ = faults;
        let (registrations, registered) = mpsc::unbounded_channel();
        let supervisor = Arc::new(Self {
            statuses: Mutex::default(),
            registrations,
            failure: watch::Sender::new(None),
            metrics,
            stop,
            stopped: CancellationToken::new(),
            #[cfg(feature = "fault_injection")]
            faults: faults.clone(),
        });
        tokio::spawn(supervisor.clone().supervise(registered, poisoned));
        supervisor
    }

    /// Starts a service.
    pub(crate) fn run(&self, service: Service) {
        let (name, kind) = (service.name.clone(), service.kind);
        let label = label(&name);
        self.metrics.up.get_or_create(&label).set(1);
        drop(self.metrics.restarts.get_or_create(&label));
        let status = ServiceStatus { name: name.clone(), kind, up: true, restarts: 0, last_failure: None };
        let replaced = self.statuses.lock().insert(name, status);
        debug_assert!(replaced.is_none(), "two services are called {}", service.name);
        // The supervisor has ended if the engine was stopped: then nothing is to be started.
        let _ = self.registrations.send(service);
    }

    /// Starts a service that belongs to a component. `run` is called for every start.
    pub(crate) fn start_service<C, F>(
        &self,
        name: &'static str,
        kind: ServiceKind,
        component: &Arc<C>,
        mut run: impl FnMut(Arc<C>) -> F + Send + 'static,
    ) where
        C: Send + Sync + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let component = component.clone();
        self.run(Service::new(name, kind, move || run(component.clone())));
    }

    /// Returns all services in the order of their names.
    pub(crate) fn statuses(&self) -> Vec<ServiceStatus> {
        self.statuses.lock().values().cloned().collect()
    }

    /// Ends the engine: what failed cannot be repaired by a restart of one service.
    pub(crate) fn fail(&self, failure: EngineFailure) {
        self.failure.send_if_modified(|current| {
            let is_first = current.is_none();
            current.get_or_insert(failure);
            is_first
        });
    }

    /// Returns why the engine cannot go on; `None` while it can.
    pub(crate) fn failure(&self) -> Option<EngineFailure> {
        self.failure.borrow().clone()
    }

    /// Waits until the engine cannot go on.
    pub(crate) async fn failed(&self) -> EngineFailure {
        let mut failure = self.failure.subscribe();
        match failure.wait_for(Option::is_some).await.map(|failure| failure.clone()) {
            Ok(Some(failure)) => failure,
            // The sender lives as long as `self`.
            _ => std::future::pending().await,
        }
    }

    /// Waits until all services have ended. The engine must have been stopped before.
    pub(crate) async fn stopped(&self) {
        self.stopped.cancelled().await;
    }

    async fn supervise(
        self: Arc<Self>,
        mut registered: mpsc::UnboundedReceiver<Service>,
        poisoned: CancellationToken,
    ) {
        let mut running = JoinSet::new();
        let mut services: HashMap<Id, Supervised> = HashMap::new();
        loop {
            tokio::select! {
                biased;
                () = poisoned.cancelled(), if self.failure().is_none() => {
                    let reason = "a panic has left the dispatcher's state inconsistent".into();
                    self.fail(EngineFailure { reason, can_drain: false });
                }
                () = self.stop.cancelled() => break,
                Some(service) = registered.recv() => {
                    let supervised = Supervised { service, history: RestartHistory::default() };
                    self.spawn(&mut running, &mut services, supervised, Duration::ZERO);
                }
                Some(ended) = running.join_next_with_id(), if !running.is_empty() => {
                    let (id, failure) = match ended {
                        Ok((id, ())) => (id, None),
                        Err(error) => (error.id(), Some(panic_message(error))),
                    };
                    let Some(supervised) = services.remove(&id) else { continue };
                    if self.stop.is_cancelled() || supervised.has_finished(&failure) {
                        continue;
                    }
                    self.restart(&mut running, &mut services, supervised, failure);
                }
            }
        }
        let all_end = async { while running.join_next().await.is_some() {} };
        if tokio::time::timeout(STOP_TIMEOUT, all_end).await.is_err() {
            running.shutdown().await;
        }
        self.stopped.cancel();
    }

    /// Restarts a service that ended, or ends the engine if that does not help.
    fn restart(
        self: &Arc<Self>,
        running: &mut JoinSet<()>,
        services: &mut HashMap<Id, Supervised>,
        mut supervised: Supervised,
        failure: Option<String>,
    ) {
        let (name, kind) = (supervised.service.name.clone(), supervised.service.kind);
        let failure = failure.unwrap_or_else(|| "it returned although the engine was not stopped".into());
        self.metrics.up.get_or_create(&label(&name)).set(0);
        if let Some(status) = self.statuses.lock().get_mut(&name) {
            status.up = false;
            status.last_failure = Some(failure.clone());
        }
        let delay = match supervised.history.on_failure(monotonic_now()) {
            RestartDecision::GiveUp(_) if kind == ServiceKind::Essential => {
                let reason = format!(
                    "the service {name} failed more than {} times within {} s; last failure: {failure}",
                    RestartHistory::MAX_RESTARTS,
                    RestartHistory::WINDOW.as_secs(),
                );
                return self.fail(EngineFailure { reason, can_drain: true });
            }
            RestartDecision::After(delay) | RestartDecision::GiveUp(delay) => delay,
        };
        tracing::error!(service = %name, reason = failure, restart_in = ?delay, "a background service failed");
        self.spawn(running, services, supervised, delay);
    }

    fn spawn(
        self: &Arc<Self>,
        running: &mut JoinSet<()>,
        services: &mut HashMap<Id, Supervised>,
        mut supervised: Supervised,
        delay: Duration,
    ) {
        let (supervisor, name) = (self.clone(), supervised.service.name.clone());
        // The supervisor must survive a panic of the code that starts a service.
        let started = catch_unwind(AssertUnwindSafe(|| (supervised.service.run)()));
        let service = started.unwrap_or_else(|_| Box::pin(async { panic!("starting the service failed") }));
        let task = running.spawn(async move {
            if !delay.is_zero() {
                tokio::select! {
                    () = tokio::time::sleep(delay) => supervisor.mark_restarted(&name),
                    () = supervisor.stop.cancelled() => return,
                }
            }
            #[cfg(not(feature = "fault_injection"))]
            service.await;
            #[cfg(feature = "fault_injection")]
            tokio::select! {
                () = service => {}
                () = supervisor.faults.injection.panic_when_requested(&name) => {}
            }
        });
        services.insert(task.id(), supervised);
    }

    fn mark_restarted(&self, name: &ServiceName) {
        let label = label(name);
        self.metrics.up.get_or_create(&label).set(1);
        self.metrics.restarts.get_or_create(&label).inc();
        if let Some(status) = self.statuses.lock().get_mut(name) {
            status.up = true;
            status.restarts += 1;
        }
    }
}

fn label(name: &ServiceName) -> ServiceLabel {
    ServiceLabel { service: name.to_string() }
}

/// Returns the message of a panic.
fn panic_message(error: JoinError) -> String {
    let text = |panic: Box<dyn Any + Send>| match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(panic) => {
            panic.downcast_ref::<&str>().map_or("a panic without a message".into(), |text| (*text).into())
        }
    };
    match error.try_into_panic() {
        Ok(panic) => format!("panic: {}", text(panic)),
        Err(_) => "it was aborted".into(),
    }
}
