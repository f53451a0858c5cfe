//! The publishers: each keeps one connection and, when its turn comes, posts the next event or batch of events.
//! An event is sent once; one that was refused or got no response is counted, not retried.

use std::{
    collections::BTreeMap,
    error::Error,
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
use serde_json::Value;

use crate::{
    arrival_schedule::ArrivalSchedule,
    ledger::Ledger,
    options::Sender,
    stream::{Call, Stream},
    wire::{Message, Wire},
};

/// How long the sender may be unavailable before the run fails.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(60);

/// Publisher-side statistics. Times are nanoseconds of the ledger, latencies microseconds.
pub(crate) struct PublishStats {
    pub(crate) started_at: u64,
    pub(crate) ended: u64,
    pub(crate) acknowledged: usize,
    pub(crate) ack_us: Histogram<u64>,
    /// Events that were not acknowledged, by status code of the response; 0 if there was no response.
    pub(crate) refused: BTreeMap<u16, usize>,
    /// The first such response, for diagnosis.
    pub(crate) first_error: Option<String>,
}

impl Default for PublishStats {
    fn default() -> Self {
        Self {
            started_at: 0,
            ended: 0,
            acknowledged: 0,
            ack_us: Histogram::new(3).expect("three significant digits are valid"),
            refused: BTreeMap::new(),
            first_error: None,
        }
    }
}

impl PublishStats {
    /// Counts the events that were not acknowledged.
    pub(crate) fn errors(&self) -> usize {
        self.refused.values().sum()
    }

    fn refuse(&mut self, status: u16, events: usize, body: &[u8]) {
        if events > 0 {
            *self.refused.entry(status).or_default() += events;
            self.first_error.get_or_insert_with(|| format!("{status} {}", String::from_utf8_lossy(body)));
        }
    }

    fn add(&mut self, other: Self) {
        self.acknowledged += other.acknowledged;
        self.ack_us += other.ack_us;
        for (status, events) in other.refused {
            *self.refused.entry(status).or_default() += events;
        }
        self.first_error = self.first_error.take().or(other.first_error);
    }
}

/// Flag that ends a stream before all of its events are published.
#[derive(Clone, Default)]
pub(crate) struct Stop(Arc<AtomicBool>);

impl Stop {
    pub(crate) fn now(&self) {
        self.0.store(true, Relaxed);
    }

    fn is_due(&self) -> bool {
        self.0.load(Relaxed)
    }
}

/// Timeout for publishing a stream; exceeded only if the sender is stuck.
fn timeout(stream: &Stream<'_>, events: usize) -> Duration {
    let slowest = if stream.rate == 0 { 100 } else { (stream.rate / 2).max(1) };
    CONNECT_TIMEOUT * 2 + Duration::from_secs(events as u64 / u64::from(slowest))
}

/// Publishes all events of the ledger and returns after the last response.
pub(crate) async fn publish(
    sender: &Sender,
    stream: &Stream<'_>,
    ledger: &Arc<Ledger>,
    stop: &Stop,
) -> Result<PublishStats, Box<dyn Error>> {
    let timeout = timeout(stream, ledger.events());
    let published = tokio::time::timeout(timeout, publish_all(sender, stream, ledger, stop)).await;
    published.map_err(|_| format!("{} was not published within {timeout:?}", stream.event_type))?
}

async fn publish_all(
    sender: &Sender,
    stream: &Stream<'_>,
    ledger: &Arc<Ledger>,
    stop: &Stop,
) -> Result<PublishStats, Box<dyn Error>> {
    let calls = ledger.events() / stream.batch as usize;
    let call = Call::new(sender, stream, ledger.mark());
    let next = Arc::new(AtomicUsize::new(0));
    // Connect before the clock starts: a fixed rate must not start with a queue.
    let mut wires = Vec::new();
    for _ in 0..sender.connections {
        wires.push(connect(sender.api).await?);
    }
    let mut all = PublishStats { started_at: ledger.now(), ..PublishStats::default() };
    let schedule = ArrivalSchedule::start(stream.rate, stream.batch, calls, sender.connections, ledger)?;
    let publishers: Vec<_> = wires
        .into_iter()
        .map(|wire| Publisher {
            wire,
            api: sender.api,
            call: call.clone(),
            calls,
            next: Arc::clone(&next),
            pace: Arc::clone(&schedule),
            stop: stop.clone(),
            ledger: Arc::clone(ledger),
            stats: PublishStats::default(),
        })
        .map(|publisher| tokio::spawn(publisher.run()))
        .collect();
    for publisher in publishers {
        all.add(publisher.await??);
    }
    all.ended = ledger.now();
    Ok(all)
}

/// Connects, retrying while the sender restarts.
pub(crate) async fn connect(api: SocketAddr) -> io::Result<Wire> {
    let started = Instant::now();
    loop {
        match Wire::connect(api).await {
            Ok(wire) => return Ok(wire),
            Err(error) if started.elapsed() > CONNECT_TIMEOUT => return Err(error),
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

struct Publisher {
    wire: Wire,
    api: SocketAddr,
    call: Call,
    calls: usize,
    next: Arc<AtomicUsize>,
    pace: Arc<ArrivalSchedule>,
    stop: Stop,
    ledger: Arc<Ledger>,
    stats: PublishStats,
}

impl Publisher {
    async fn run(mut self) -> io::Result<PublishStats> {
        let batch = self.call.events();
        loop {
            self.pace.wait_for_turn().await;
            let call = self.next.fetch_add(1, Relaxed);
            if call >= self.calls || self.stop.is_due() {
                return Ok(self.stats);
            }
            let due = self.pace.due(call, &self.ledger);
            let first = call * batch;
            self.call.number_from(first);
            (first..first + batch).for_each(|event| self.ledger.sent(event, due));
            if !self.post(first, due).await {
                self.wire = connect(self.api).await?;
            }
        }
    }

    /// Makes the call. Returns `false` if the connection cannot be used again.
    async fn post(&mut self, first: usize, due: u64) -> bool {
        let batch = self.call.events();
        let Ok(response) = self.wire.exchange(self.call.request()).await else {
            self.stats.refuse(0, batch, b"the connection broke");
            return false;
        };
        let took = self.ledger.now().saturating_sub(due) / 1_000;
        let mut acknowledged = 0;
        for item in accepted(&response, batch) {
            self.ledger.acknowledged(first + item);
            self.stats.ack_us += took;
            acknowledged += 1;
        }
        self.stats.acknowledged += acknowledged;
        self.stats.refuse(response.status(), batch - acknowledged, response.body);
        !response.close
    }
}

/// Returns the items of a call that were accepted. A batch response has one result per item; one with an error
/// was not accepted.
fn accepted(response: &Message<'_>, batch: usize) -> Vec<usize> {
    if !(200..300).contains(&response.status()) {
        return Vec::new();
    }
    if batch == 1 {
        return vec![0];
    }
    let parsed: Value = serde_json::from_slice(response.body).unwrap_or_default();
    let items = parsed.as_array().or_else(|| parsed.as_object()?.values().find_map(Value::as_array));
    let good = |item: &Value| {
        item.get("error").is_none_or(Value::is_null)
            && item.get("status").and_then(Value::as_u64).is_none_or(|status| status < 300)
    };
    let items = items.map(Vec::as_slice).unwrap_or_default();
    items.iter().take(batch).enumerate().filter(|(_, item)| good(item)).map(|(at, _)| at).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(status: &'static str, body: &'static str) -> Message<'static> {
        Message { first_line: status.as_bytes(), body: body.as_bytes(), close: false }
    }

    #[test]
    fn batch_response_is_evaluated_per_item() {
        let body = r#"{"data":[{"id":"a"},{"error":{"code":"x"}},{"status":409},{"id":"b","error":null}]}"#;
        assert_eq!(accepted(&response("HTTP/1.1 202 Accepted", body), 4), [0, 3]);
        assert_eq!(accepted(&response("HTTP/1.1 202 Accepted", "{}"), 1), [0]);
        assert!(accepted(&response("HTTP/1.1 503 Busy", body), 4).is_empty());
    }
}
