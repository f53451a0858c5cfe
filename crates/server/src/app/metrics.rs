//! The figures of the whole application as text.

use std::fmt::Write;

use super::{App, AppError};

impl App {
    /// OpenMetrics text: what the data path counted, and how the store and this node are doing now.
    pub async fn metrics_text(&self) -> Result<String, AppError> {
        let vitals = self.store().vitals().await?;
        let load = self.engine.load();
        let mut text = String::new();
        let encoded = prometheus_client::encoding::text::encode(&mut text, &self.metrics.lock());
        debug_assert!(encoded.is_ok(), "writing to memory does not fail");
        let end = text.rfind("# EOF").unwrap_or(text.len());
        text.truncate(end);
        let gauges = [
            ("webhook_queue_depth", "Deliveries waiting in the store", vitals.waiting),
            ("webhook_dlq_size", "Dead deliveries that were not redriven", vitals.dead),
            ("redrive_deliveries_leased", "Deliveries leased to nodes", vitals.leased),
            ("redrive_deliveries_in_memory", "Deliveries in this node's memory", load.items as u64),
            ("redrive_requests_unsettled", "Requests whose outcome is not stored yet", load.unsettled as u64),
        ];
        for (name, help, value) in gauges {
            let written = writeln!(text, "# HELP {name} {help}.\n# TYPE {name} gauge\n{name} {value}");
            debug_assert!(written.is_ok(), "writing to memory does not fail");
        }
        let name = "redrive_store_commits";
        let help = "Transactions committed by the store";
        let commits = vitals.commits;
        let written =
            write!(text, "# HELP {name} {help}.\n# TYPE {name} counter\n{name}_total {commits}\n# EOF\n");
        debug_assert!(written.is_ok(), "writing to memory does not fail");
        Ok(text)
    }
}
