//! All metrics of the application, in the format that the client asked for.
//!
//! Metrics of the whole store are reported by every node with the same value, as their help text says: aggregate
//! them over nodes with `max`, never with `sum`.

mod cached_query;
mod exposition;
mod process;
mod store_counts;
mod tenants;
mod text_format;

use std::sync::{Arc, atomic::AtomicU64};

use prometheus_client::{
    metrics::{
        counter::{ConstCounter, Counter},
        family::Family,
        gauge::Gauge,
        info::Info,
    },
    registry::Registry,
};
use redrive_core::{
    cluster::worker_health::WorkerFault, delivery::lane::Priority, protection::breaker::CircuitState,
};

pub use self::exposition::Exposition;
use self::store_counts::{StoreCounts, TENANT_DLQ_THRESHOLD};
pub(super) use self::{store_counts::StoreCounter, tenants::TenantMetrics};
use super::App;

/// Gauge for a ratio from 0 to 1.
type Share = Gauge<f64, AtomicU64>;
/// One label and its value.
type Label = [(&'static str, String); 1];

/// Registers the constant metric with version, node, role and store.
pub fn register_build_info(registry: &mut Registry, node: &str, role: &str, store: &str) {
    let labels = [
        ("version", env!("CARGO_PKG_VERSION").to_owned()),
        ("node", node.to_owned()),
        ("role", role.to_owned()),
        ("store", store.to_owned()),
    ];
    registry.register(
        "redrive_build",
        "Version, node, role and store of this node",
        Info::new(labels.to_vec()),
    );
}

fn gauge(registry: &mut Registry, name: &str, help: &str, value: u64) {
    let gauge: Gauge = Gauge::default();
    gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
    registry.register(name, help, gauge);
}

fn by_label(
    registry: &mut Registry,
    name: &str,
    help: &str,
    label: &'static str,
    values: impl IntoIterator<Item = (String, u64)>,
) {
    let family = Family::<Label, Gauge>::default();
    for (value, number) in values {
        family.get_or_create(&[(label, value)]).set(i64::try_from(number).unwrap_or(i64::MAX));
    }
    registry.register(name, help, family);
}

impl App {
    /// Returns all metrics: the registered ones, and the current state of the store and this node. Counts from the store
    /// are omitted while it does not respond; `webhook_store_up` shows that.
    pub async fn metrics_text(self: &Arc<Self>, exposition: Exposition) -> String {
        let counted = self.store_counts().await;
        let mut now = Registry::default();
        self.node_metrics(&mut now);
        if self.rules.role.sends() {
            self.worker_metrics(&mut now);
        }
        self.circuit_metrics(&mut now, counted.as_ref());
        if let Some(counted) = counted {
            store_metrics(&mut now, &counted);
        }
        process::list(&mut now);
        exposition.encode(&[&self.metrics.lock(), &now])
    }

    fn node_metrics(&self, registry: &mut Registry) {
        let load = self.engine.load();
        let used = self.engine.slots_by_pool();
        let pools = Family::<Label, Share>::default();
        for pool in &self.rules.pools {
            let used = used.get(pool).copied().unwrap_or_default();
            pools.get_or_create(&[("pool", pool.clone())]).set(used as f64 / load.slots.max(1) as f64);
        }
        registry.register(
            "webhook_worker_pool_utilization",
            "Share of this node's send slots that a pool uses, for each pool that the node serves",
            pools,
        );
        let slots = if self.rules.pools.is_empty() { 0 } else { load.slots };
        let idle = slots.saturating_sub(load.unsettled);
        by_label(
            registry,
            "webhook_workers",
            "Send slots of this node; active slots have a request whose outcome is not stored yet",
            "state",
            [("active".to_owned(), load.unsettled as u64), ("idle".to_owned(), idle as u64)],
        );
        gauge(
            registry,
            "redrive_deliveries_in_memory",
            "Deliveries in the memory of this node",
            load.deliveries as u64,
        );
        gauge(
            registry,
            "redrive_requests_unsettled",
            "Requests whose outcome is not stored yet",
            load.unsettled as u64,
        );
        let reads = ConstCounter::new(self.store().read_count());
        registry.register("redrive_store_reads", "Reads of the store by this node", reads);
        let searches = Family::<Label, Counter>::default();
        for (outcome, count) in self.payload_searches.ended() {
            searches.get_or_create(&[("outcome", outcome.to_owned())]).inc_by(count);
        }
        gauge(
            registry,
            "redrive_payload_searches_running",
            "Payload searches that run on this node",
            self.payload_searches.running() as u64,
        );
        registry.register(
            "redrive_payload_searches",
            "Requests for a payload search on this node, by how they ended",
            searches,
        );
    }

    fn worker_metrics(&self, registry: &mut Registry) {
        let conditions = self.engine.worker_conditions();
        by_label(
            registry,
            "redrive_worker_failing",
            "1 while this worker delivers nothing for this reason; absent on nodes that do not send",
            "reason",
            WorkerFault::ALL.map(|fault| (fault.name().to_owned(), u64::from(conditions.has_fault(fault)))),
        );
        let tokens = self.engine.available_tokens();
        let by_scope = [("webhook", tokens.webhook), ("tenant", tokens.tenant), ("cluster", tokens.cluster)];
        by_label(
            registry,
            "webhook_rate_limit_tokens_available",
            "Tokens in the emptiest bucket of this node, by what the bucket limits; absent while no such bucket is in use",
            "scope",
            by_scope.into_iter().filter_map(|(scope, tokens)| Some((scope.to_owned(), tokens?.into()))),
        );
    }

    fn circuit_metrics(&self, registry: &mut Registry, counted: Option<&StoreCounts>) {
        let circuits = self.engine.circuits();
        // A node tracks only webhooks in use; the total number comes from the store.
        let moved_count = circuits.open + circuits.half_open;
        let closed = counted.map_or(circuits.closed, |counted| {
            usize::try_from(counted.vitals.webhooks).unwrap_or(usize::MAX).saturating_sub(moved_count)
        });
        let by_state = CircuitState::ALL.map(|state| {
            let count = match state {
                CircuitState::Closed => closed,
                CircuitState::Open => circuits.open,
                CircuitState::HalfOpen => circuits.half_open,
            };
            (state.name().to_owned(), count as u64)
        });
        by_label(
            registry,
            "webhook_circuit_breaker_state",
            "Circuits by state, of the whole store: aggregate over nodes with max, not sum",
            "state",
            by_state,
        );
        gauge(
            registry,
            "webhook_circuits_forced_open",
            "Open circuits that were forced open, of the whole store: aggregate with max, not sum",
            circuits.forced_open as u64,
        );
        gauge(
            registry,
            "webhook_circuits_open_over_1h",
            "Circuits that have been open for more than an hour and were not forced open, of the whole store: aggregate with max, not sum",
            circuits.open_over_an_hour as u64,
        );
    }
}

fn store_metrics(registry: &mut Registry, counted: &StoreCounts) {
    let vitals = &counted.vitals;
    by_label(
        registry,
        "webhook_queue_depth",
        "Deliveries waiting in the store, including scheduled retries; of the whole store: aggregate with max, not sum",
        "priority",
        Priority::ALL
            .into_iter()
            .zip(vitals.waiting)
            .map(|(priority, count)| (priority.name().to_owned(), count)),
    );
    let help = "Dead deliveries that were not redriven, of the whole store: aggregate with max, not sum";
    gauge(registry, "webhook_dlq_size", help, vitals.dead);
    let help = format!(
        "Tenants with more than {TENANT_DLQ_THRESHOLD} dead letters, of the whole store: aggregate with max, not sum"
    );
    gauge(registry, "webhook_tenants_dlq_over_threshold", &help, counted.crowded);
    let help = "Due deliveries blocked by an open circuit, of the first hundred circuits and up to ten thousand of each; \
         of the whole store: aggregate with max, not sum";
    gauge(registry, "webhook_circuit_blocked_deliveries", help, counted.blocked);
    let help = "Deliveries leased to nodes, of the whole store: aggregate with max, not sum";
    gauge(registry, "redrive_deliveries_leased", help, vitals.leased);
    let help = "Webhooks, of the whole store: aggregate with max, not sum";
    gauge(registry, "redrive_webhooks", help, vitals.webhooks);
    registry.register(
        "redrive_store_commits",
        "Transactions that this node has committed",
        ConstCounter::new(vitals.commits),
    );
    registry.register(
        "redrive_store_statements",
        "SQL statements that this node has sent",
        ConstCounter::new(vitals.statements),
    );
}
