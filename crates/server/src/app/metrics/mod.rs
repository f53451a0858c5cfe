//! All metrics of the application, as OpenMetrics text.
//!
//! Metrics of the whole store are reported by every node with the same value, as their help text says: aggregate
//! them over nodes with `max`, never with `sum`.

mod process;
mod store_counts;

use std::sync::{Arc, atomic::AtomicU64};

use prometheus_client::{
    encoding::text::{encode_eof, encode_registry},
    metrics::{counter::ConstCounter, family::Family, gauge::Gauge, info::Info},
    registry::Registry,
};
use redrive_core::{delivery::lane::Priority, protection::breaker::CircuitState};

pub(super) use self::store_counts::StoreCounter;
use self::store_counts::{StoreCounts, TENANT_DLQ_THRESHOLD};
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
    /// Returns all metrics as OpenMetrics text: the registered ones, and the current state of the store and this node.
    /// Counts from the store are omitted while it does not respond; `webhook_store_up` shows that.
    pub async fn metrics_text(self: &Arc<Self>) -> String {
        let counted = self.store_counts().await;
        let mut now = Registry::default();
        self.node_metrics(&mut now);
        self.circuit_metrics(&mut now, counted.as_ref());
        if let Some(counted) = counted {
            store_metrics(&mut now, &counted);
        }
        process::list(&mut now);
        let mut text = String::new();
        let encoded = encode_registry(&mut text, &self.metrics.lock())
            .and_then(|()| encode_registry(&mut text, &now))
            .and_then(|()| encode_eof(&mut text));
        debug_assert!(encoded.is_ok(), "writing to memory does not fail");
        text
    }

    fn node_metrics(&self, registry: &mut Registry) {
        let load = self.engine.load();
        let used = load.unsettled as f64 / load.slots.max(1) as f64;
        let pools = Family::<Label, Share>::default();
        for pool in &self.rules.pools {
            pools.get_or_create(&[("pool", pool.clone())]).set(used);
        }
        registry.register(
            "webhook_worker_pool_utilization",
            "Share of this node's send slots in use, for each pool that it serves",
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
            "webhook_circuits_open_over_1h",
            "Circuits that have been open for more than an hour, of the whole store: aggregate with max, not sum",
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
