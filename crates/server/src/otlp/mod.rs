//! Exports spans to the operator's collector in batches, in the background. Deliveries never wait for the
//! collector; spans that cannot be sent are dropped and counted.

mod collector;
mod wire;

use std::time::Duration;

use opentelemetry_proto::tonic::resource::v1::Resource;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};
use redrive_engine::{Span, Tracing};
use tokio::{sync::mpsc, task::JoinHandle, time::timeout};
use tokio_util::sync::CancellationToken;

use crate::config::{self, ConfigError};
use collector::Collector;

/// Maximum number of queued spans. A span has a few hundred bytes.
const MAX_QUEUED_SPANS: usize = 16_384;
/// Maximum number of spans per request.
const BATCH_SIZE: usize = 512;
/// Time that an incomplete batch waits for more spans.
const MAX_BATCH_DELAY: Duration = Duration::from_millis(500);
/// Delays before a batch is sent again, one per retry.
const RETRY_DELAYS: [Duration; 3] = [Duration::from_secs(1), Duration::from_secs(2), Duration::from_secs(4)];
/// Timeout of exporting the remaining spans at shutdown.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(3);

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SpanOutcomeLabel {
    outcome: &'static str,
}

/// Counters of spans by outcome.
struct ExportMetrics {
    exported: Counter,
    failed: Counter,
    dropped: Counter,
}

impl ExportMetrics {
    fn new(registry: &mut Registry) -> Self {
        let spans = Family::<SpanOutcomeLabel, Counter>::default();
        let of = |outcome| spans.get_or_create(&SpanOutcomeLabel { outcome }).clone();
        let metrics = Self { exported: of("exported"), failed: of("failed"), dropped: of("dropped") };
        registry.register(
            "redrive_spans",
            "Spans by outcome: exported, failed at the collector, dropped because the queue was full",
            spans,
        );
        metrics
    }
}

/// Exporter of spans.
pub(crate) struct Exporter {
    spans: mpsc::Receiver<Span>,
    /// Spans of the next request.
    batch: Vec<Span>,
    collector: Collector,
    resource: Resource,
    metrics: ExportMetrics,
    /// Number of spans lost since the collector stopped accepting them. `None` while it accepts them.
    lost: Option<u64>,
}

/// Handle of a running exporter.
pub(crate) struct ExporterHandle {
    finish: CancellationToken,
    task: JoinHandle<()>,
}

impl Exporter {
    /// Creates the configured exporter and the engine's tracing settings. Returns `None` if tracing is off.
    pub(crate) fn from_settings(
        settings: &config::Tracing,
        node: &str,
        metrics: &mut Registry,
    ) -> Result<Option<(Tracing, Self)>, ConfigError> {
        let Some(collector) = Collector::from_settings(settings)? else { return Ok(None) };
        let (queue, spans) = mpsc::channel(MAX_QUEUED_SPANS);
        let export_metrics = ExportMetrics::new(metrics);
        let tracing = Tracing {
            sample_ratio: settings.sample_ratio,
            spans: queue,
            dropped: export_metrics.dropped.clone(),
        };
        let resource = wire::resource(&settings.service_name, node);
        Ok(Some((
            tracing,
            Self { spans, batch: Vec::new(), collector, resource, metrics: export_metrics, lost: None },
        )))
    }

    /// Starts exporting.
    pub(crate) fn start(self) -> ExporterHandle {
        let finish = CancellationToken::new();
        ExporterHandle { finish: finish.clone(), task: tokio::spawn(self.run(finish)) }
    }

    async fn run(mut self, finish: CancellationToken) {
        while finish.run_until_cancelled(self.gather()).await == Some(true) {
            let batch = std::mem::take(&mut self.batch);
            self.export(batch, &finish).await;
        }
        let last = async {
            loop {
                let mut batch = std::mem::take(&mut self.batch);
                while batch.len() < BATCH_SIZE
                    && let Ok(span) = self.spans.try_recv()
                {
                    batch.push(span);
                }
                if batch.is_empty() {
                    return;
                }
                self.export(batch, &finish).await;
            }
        };
        let _ = timeout(FLUSH_TIMEOUT, last).await;
        let left = std::iter::from_fn(|| self.spans.try_recv().ok()).count() as u64;
        self.metrics.dropped.inc_by(left);
    }

    /// Waits for spans, then briefly for more of them. Returns false if the queue is closed and no more will come.
    async fn gather(&mut self) -> bool {
        let Self { spans, batch, .. } = self;
        if spans.recv_many(batch, BATCH_SIZE).await == 0 {
            return false;
        }
        let more = async {
            while batch.len() < BATCH_SIZE {
                let capacity = BATCH_SIZE - batch.len();
                if spans.recv_many(batch, capacity).await == 0 {
                    return;
                }
            }
        };
        let _ = timeout(MAX_BATCH_DELAY, more).await;
        true
    }

    async fn export(&mut self, batch: Vec<Span>, finish: &CancellationToken) {
        let count = batch.len() as u64;
        let body = bytes::Bytes::from(wire::encode(&self.resource, batch));
        let mut waits = RETRY_DELAYS.into_iter();
        loop {
            let failed = match self.collector.post(body.clone()).await {
                Ok(response) => return self.on_accepted(count, wire::rejected(&response).min(count)),
                Err(failed) => failed,
            };
            if self.lost.is_none() {
                let (collector, error) = (self.collector.address(), &failed.why);
                tracing::warn!(collector, %error, "exporting spans failed; deliveries are not affected");
                self.lost = Some(0);
            }
            match waits.next().filter(|_| failed.retryable && !finish.is_cancelled()) {
                Some(wait) => {
                    let _ = finish.run_until_cancelled(tokio::time::sleep(wait)).await;
                }
                None => break,
            }
        }
        self.metrics.failed.inc_by(count);
        self.lost = self.lost.map(|lost| lost + count);
    }

    fn on_accepted(&mut self, count: u64, rejected: u64) {
        self.metrics.exported.inc_by(count - rejected);
        self.metrics.failed.inc_by(rejected);
        if let Some(lost) = self.lost.take() {
            let collector = self.collector.address();
            tracing::info!(collector, lost, "span export recovered");
        }
    }
}

impl ExporterHandle {
    /// Exports the remaining spans, up to the flush timeout.
    pub(crate) async fn finish(self) {
        self.finish.cancel();
        let _ = self.task.await;
    }
}
