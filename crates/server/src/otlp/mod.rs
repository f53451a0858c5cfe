//! Sending spans to the operator's collector, in batches, beside everything else: whatever becomes of the collector,
//! no delivery waits for it. What cannot be sent is dropped, and counted.

mod collector;
mod wire;

use std::time::Duration;

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
use wire::Resource;

/// Spans that may wait. One has some hundred bytes.
const QUEUE: usize = 16_384;
/// Spans of one request.
const BATCH: usize = 512;
/// How long a batch that is not full waits for more.
const LINGER: Duration = Duration::from_millis(500);
/// How long to wait before a batch is sent again: as often as there are entries.
const AGAIN: [Duration; 3] = [Duration::from_secs(1), Duration::from_secs(2), Duration::from_secs(4)];
/// How long the last spans may take at the end.
const LAST_WORDS: Duration = Duration::from_secs(3);

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Fate {
    fate: &'static str,
}

/// What became of spans.
struct Figures {
    exported: Counter,
    failed: Counter,
    dropped: Counter,
}

impl Figures {
    fn new(registry: &mut Registry) -> Self {
        let spans = Family::<Fate, Counter>::default();
        let of = |fate| spans.get_or_create(&Fate { fate }).clone();
        let figures = Self { exported: of("exported"), failed: of("failed"), dropped: of("dropped") };
        registry.register(
            "redrive_spans",
            "Spans of traces: exported, failed with the collector, dropped because too many waited",
            spans,
        );
        figures
    }
}

/// What sends spans.
pub(crate) struct Exporter {
    spans: mpsc::Receiver<Span>,
    /// Those of the next request.
    batch: Vec<Span>,
    collector: Collector,
    resource: Resource,
    figures: Figures,
    /// How many spans were lost since the collector was last heard.
    lost: Option<u64>,
}

/// Spans on their way, until the end.
pub(crate) struct Exporting {
    finish: CancellationToken,
    task: JoinHandle<()>,
}

impl Exporter {
    /// What the settings ask for, if anything, and what the engine needs to know of it.
    pub(crate) fn of(
        settings: &config::Tracing,
        node: &str,
        metrics: &mut Registry,
    ) -> Result<Option<(Tracing, Self)>, ConfigError> {
        let Some(collector) = Collector::of(settings)? else { return Ok(None) };
        let (queue, spans) = mpsc::channel(QUEUE);
        let figures = Figures::new(metrics);
        let tracing =
            Tracing { share: settings.sample_ratio, spans: queue, dropped: figures.dropped.clone() };
        let resource = Resource::new(&settings.service_name, node);
        Ok(Some((tracing, Self { spans, batch: Vec::new(), collector, resource, figures, lost: None })))
    }

    /// Starts sending.
    pub(crate) fn start(self) -> Exporting {
        let finish = CancellationToken::new();
        Exporting { finish: finish.clone(), task: tokio::spawn(self.run(finish)) }
    }

    async fn run(mut self, finish: CancellationToken) {
        while finish.run_until_cancelled(self.gather()).await == Some(true) {
            let batch = std::mem::take(&mut self.batch);
            self.export(batch, &finish).await;
        }
        let last = async {
            loop {
                let mut batch = std::mem::take(&mut self.batch);
                while batch.len() < BATCH
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
        let _ = timeout(LAST_WORDS, last).await;
        let left = std::iter::from_fn(|| self.spans.try_recv().ok()).count() as u64;
        self.figures.dropped.inc_by(left);
    }

    /// Waits for spans, and a moment for more of them. Whether there are any; otherwise there will be none.
    async fn gather(&mut self) -> bool {
        let Self { spans, batch, .. } = self;
        if spans.recv_many(batch, BATCH).await == 0 {
            return false;
        }
        let more = async {
            while batch.len() < BATCH {
                let room = BATCH - batch.len();
                if spans.recv_many(batch, room).await == 0 {
                    return;
                }
            }
        };
        let _ = timeout(LINGER, more).await;
        true
    }

    async fn export(&mut self, batch: Vec<Span>, finish: &CancellationToken) {
        let count = batch.len() as u64;
        let body = bytes::Bytes::from(wire::encode(&self.resource, batch));
        let mut waits = AGAIN.into_iter();
        loop {
            let failed = match self.collector.post(body.clone()).await {
                Ok(answer) => return self.taken(count, wire::rejected(&answer).min(count)),
                Err(failed) => failed,
            };
            if self.lost.is_none() {
                let (collector, error) = (self.collector.address(), &failed.why);
                tracing::warn!(collector, %error, "spans cannot be exported; deliveries go on without them");
                self.lost = Some(0);
            }
            match waits.next().filter(|_| failed.later && !finish.is_cancelled()) {
                Some(wait) => {
                    let _ = finish.run_until_cancelled(tokio::time::sleep(wait)).await;
                }
                None => break,
            }
        }
        self.figures.failed.inc_by(count);
        self.lost = self.lost.map(|lost| lost + count);
    }

    fn taken(&mut self, count: u64, rejected: u64) {
        self.figures.exported.inc_by(count - rejected);
        self.figures.failed.inc_by(rejected);
        if let Some(lost) = self.lost.take() {
            let collector = self.collector.address();
            tracing::info!(collector, lost, "spans are exported again");
        }
    }
}

impl Exporting {
    /// Sends what is left, for a moment.
    pub(crate) async fn finish(self) {
        self.finish.cancel();
        let _ = self.task.await;
    }
}
