//! Formats the results as JSON. Rates are per second, latencies in milliseconds.

use std::{error::Error, fs, ops::RangeBounds, sync::Arc};

use hdrhistogram::Histogram;
use serde_json::{Value, json};

use crate::{
    ledger::Ledger,
    options::{Load, Sender},
    publisher::PublishStats,
    run_log::RunLog,
};

/// A published stream with its publisher statistics and its ledger.
pub(crate) struct StreamResult {
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) stats: PublishStats,
}

impl StreamResult {
    /// Returns the latency from publish to arrival of the events due in a time range. A missing delivery counts with
    /// its current age, so that losing events does not improve the result.
    pub(crate) fn late_ms(&self, span: impl RangeBounds<u64> + Clone) -> Result<Value, Box<dyn Error>> {
        let mut late_us = Histogram::<u64>::new(3)?;
        self.ledger.summarize(span.clone(), |late| late_us += late / 1_000);
        self.ledger.overdue(span, |late| late_us += late / 1_000);
        Ok(percentiles(&late_us))
    }

    /// Returns the arrivals per second, until the last arrival.
    pub(crate) fn arrivals_per_s(&self) -> f64 {
        let totals = self.ledger.summarize(.., |_| ());
        per_second(totals.arrivals as f64, self.stats.started_at, totals.last_arrival)
    }
}

/// Returns the report line of a single load.
pub(crate) fn single(
    sender: &Sender,
    load: &Load,
    books: &RunLog,
    played: &StreamResult,
) -> Result<Value, Box<dyn Error>> {
    let StreamResult { ledger, stats: counts } = played;
    let mut late_us = Histogram::<u64>::new(3)?;
    let totals = ledger.summarize(.., |late| late_us += late / 1_000);
    let refused: serde_json::Map<String, Value> =
        counts.refused.iter().map(|(status, events)| (status.to_string(), json!(events))).collect();
    let mut line = json!({
        "events": load.events,
        "fanout": load.fanout,
        "connections": sender.connections,
        "rate": load.rate,
        "batch": load.batch,
        "payload": sender.payload,
        "acks_per_s": per_second(counts.acknowledged as f64, counts.started_at, counts.ended),
        "arrivals": totals.arrivals,
        "arrivals_per_s": per_second(totals.arrivals as f64, counts.started_at, totals.last_arrival),
        "ack_ms": percentiles(&counts.ack_us),
        "arrival_ms": percentiles(&late_us),
        "errors_by_status": refused,
    });
    merge(&mut line, delivery_guarantees(books, &[played]));
    Ok(line)
}

/// Returns how the delivery guarantees held over all streams of a run; error responses go to standard error.
pub(crate) fn delivery_guarantees(books: &RunLog, played: &[&StreamResult]) -> Value {
    let (mut acked, mut errors, mut missing, mut duplicates, mut refused) = (0, 0, 0, 0, 0);
    for StreamResult { ledger, stats: counts } in played {
        let totals = ledger.summarize(.., |_| ());
        acked += counts.acknowledged;
        errors += counts.errors();
        missing += totals.missing;
        duplicates += totals.duplicates;
        refused += totals.refused;
    }
    if let Some(first_error) = played.iter().find_map(|played| played.stats.first_error.as_ref()) {
        eprintln!("first response that is not an acknowledgement: {first_error}");
    }
    if missing > 0 {
        eprintln!("{missing} deliveries of acknowledged events did not arrive in time");
    }
    json!({
        "acked": acked,
        "errors": errors,
        "missing": missing,
        "duplicates": duplicates,
        "refused_on_purpose": refused,
        "stray": books.stray(),
        "load_cpu_s": cpu_seconds(),
    })
}

/// Adds the fields of one object to another.
pub(crate) fn merge(line: &mut Value, more: Value) {
    if let (Value::Object(line), Value::Object(more)) = (line, more) {
        line.extend(more);
    }
}

pub(crate) fn per_second(count: f64, from: u64, to: u64) -> f64 {
    if to > from { (count * 1e9 / (to - from) as f64).round() } else { 0.0 }
}

pub(crate) fn percentiles(us: &Histogram<u64>) -> Value {
    let at = |quantile| us.value_at_quantile(quantile) as f64 / 1_000.0;
    json!({
        "n": us.len(), "p50": at(0.5), "p95": at(0.95), "p99": at(0.99), "max": us.max() as f64 / 1_000.0,
    })
}

/// Returns the CPU time of this process so far, which the sender did not get. Linux counts it in hundredths of a
/// second, in fields 14 and 15 of its stat line.
fn cpu_seconds() -> Option<f64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    let (_, after_name) = stat.rsplit_once(')')?;
    let ticks = after_name.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<f64>().ok());
    Some(ticks.sum::<f64>() / 100.0)
}
