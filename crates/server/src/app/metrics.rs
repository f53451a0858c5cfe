//! The figures of the whole application as text.

use std::fmt::Write;

use super::App;

impl App {
    /// OpenMetrics text: what the data path counted, and how the store and this node are doing now.
    /// What only the store knows is left out while it does not answer; `webhook_store_up` says so.
    pub async fn metrics_text(&self) -> String {
        let vitals = self.store().vitals().await.ok();
        let load = self.engine.load();
        let mut text = String::new();
        let encoded = prometheus_client::encoding::text::encode(&mut text, &self.metrics.lock());
        debug_assert!(encoded.is_ok(), "writing to memory does not fail");
        let end = text.rfind("# EOF").unwrap_or(text.len());
        text.truncate(end);
        let mut figures = vec![
            ("redrive_deliveries_in_memory", "gauge", "Deliveries in this node's memory", load.items as u64),
            (
                "redrive_requests_unsettled",
                "gauge",
                "Requests whose outcome is not stored yet",
                load.unsettled as u64,
            ),
        ];
        if let Some(vitals) = vitals {
            figures.extend([
                ("webhook_queue_depth", "gauge", "Deliveries waiting in the store", vitals.waiting),
                ("webhook_dlq_size", "gauge", "Dead deliveries that were not redriven", vitals.dead),
                ("redrive_deliveries_leased", "gauge", "Deliveries leased to nodes", vitals.leased),
                ("redrive_store_commits", "counter", "Transactions committed by the store", vitals.commits),
            ]);
        }
        for (name, kind, help, value) in figures {
            let total = if kind == "counter" { "_total" } else { "" };
            let written =
                writeln!(text, "# HELP {name} {help}.\n# TYPE {name} {kind}\n{name}{total} {value}");
            debug_assert!(written.is_ok(), "writing to memory does not fail");
        }
        text.push_str("# EOF\n");
        text
    }
}
