//! The figures of the whole application as text.

use std::{fmt::Write, time::Duration};

use redrive_core::{breaker::CircuitState, lane::Priority};
use redrive_engine::Engine;
use redrive_store::Vitals;
use tokio::time::timeout;

use super::App;

/// How long the store may take: whoever collects figures does not wait for ever.
const PATIENCE: Duration = Duration::from_secs(5);

/// One figure, with a value for each set of labels.
struct Figure {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    /// Labels as they are written, empty or `{name="value"}`, and the value.
    values: Vec<(String, f64)>,
}

impl Figure {
    fn gauge(name: &'static str, help: &'static str, value: u64) -> Self {
        Self::by_label(name, help, [(String::new(), value as f64)])
    }

    fn counter(name: &'static str, help: &'static str, value: u64) -> Self {
        Self { kind: "counter", ..Self::gauge(name, help, value) }
    }

    fn by_label(
        name: &'static str,
        help: &'static str,
        values: impl IntoIterator<Item = (String, f64)>,
    ) -> Self {
        Self { name, kind: "gauge", help, values: values.into_iter().collect() }
    }

    fn write(&self, text: &mut String) -> std::fmt::Result {
        let Self { name, kind, help, .. } = self;
        writeln!(text, "# HELP {name} {help}.\n# TYPE {name} {kind}")?;
        let total = if *kind == "counter" { "_total" } else { "" };
        for (labels, value) in &self.values {
            writeln!(text, "{name}{total}{labels} {value}")?;
        }
        Ok(())
    }
}

impl App {
    /// OpenMetrics text: what the data path counted, and how the store and this node are doing now.
    /// What only the store knows is left out while it does not answer; `webhook_store_up` says so.
    pub async fn metrics_text(&self) -> String {
        let mut figures = self.of_this_node();
        figures.extend(of_circuits(&self.engine));
        let (blocked, vitals) = tokio::join!(
            timeout(PATIENCE, self.engine.blocked_deliveries()),
            timeout(PATIENCE, self.store().vitals())
        );
        if let Ok(Ok(blocked)) = blocked {
            let help = "Due deliveries held back by an open circuit";
            figures.push(Figure::gauge("webhook_circuit_blocked_deliveries", help, blocked));
        }
        if let Ok(Ok(vitals)) = vitals {
            figures.extend(of_the_store(&vitals));
        }
        let mut text = String::new();
        let encoded = prometheus_client::encoding::text::encode(&mut text, &self.metrics.lock());
        debug_assert!(encoded.is_ok(), "writing to memory does not fail");
        let end = text.rfind("# EOF").unwrap_or(text.len());
        text.truncate(end);
        for figure in figures {
            let written = figure.write(&mut text);
            debug_assert!(written.is_ok(), "writing to memory does not fail");
        }
        text.push_str("# EOF\n");
        text
    }

    fn of_this_node(&self) -> Vec<Figure> {
        let load = self.engine.load();
        let used = load.unsettled as f64 / load.slots.max(1) as f64;
        vec![
            Figure::by_label(
                "webhook_worker_pool_utilization",
                "The share of this node's sending slots that is taken, shown for each pool it sends for",
                self.rules.pools.iter().map(|pool| (format!("{{pool=\"{pool}\"}}"), used)),
            ),
            Figure::gauge(
                "redrive_deliveries_in_memory",
                "Deliveries in this node's memory",
                load.items as u64,
            ),
            Figure::gauge(
                "redrive_requests_unsettled",
                "Requests whose outcome is not stored yet",
                load.unsettled as u64,
            ),
        ]
    }
}

fn of_circuits(engine: &Engine) -> [Figure; 2] {
    let circuits = engine.circuits();
    let by_state = CircuitState::ALL.map(|state| {
        let count = match state {
            CircuitState::Closed => circuits.closed,
            CircuitState::Open => circuits.open,
            CircuitState::HalfOpen => circuits.half_open,
        };
        (format!("{{state=\"{}\"}}", state.name()), count as f64)
    });
    [
        Figure::by_label("webhook_circuit_breaker_state", "Circuits by state", by_state),
        Figure::gauge(
            "webhook_circuits_open_over_1h",
            "Circuits that have been open for more than an hour",
            circuits.open_over_an_hour as u64,
        ),
    ]
}

fn of_the_store(vitals: &Vitals) -> [Figure; 5] {
    let by_priority = Priority::ALL.into_iter().zip(vitals.waiting);
    let by_priority =
        by_priority.map(|(priority, count)| (format!("{{priority=\"{}\"}}", priority.name()), count as f64));
    [
        Figure::by_label("webhook_queue_depth", "Deliveries waiting in the store", by_priority),
        Figure::gauge("webhook_dlq_size", "Dead deliveries that were not redriven", vitals.dead),
        Figure::gauge("redrive_deliveries_leased", "Deliveries leased to nodes", vitals.leased),
        Figure::counter(
            "redrive_store_commits",
            "Transactions that this node has committed in the store",
            vitals.commits,
        ),
        Figure::counter(
            "redrive_store_statements",
            "Statements that this node has sent to a database server",
            vitals.statements,
        ),
    ]
}
