//! Turns what was seen into JSON. Rates are per second, latencies milliseconds.

use std::{error::Error, fs, ops::RangeBounds, sync::Arc};

use hdrhistogram::Histogram;
use serde_json::{Value, json};

use crate::{
    ledger::Ledger,
    options::{Load, Sender},
    publisher::Tally,
    run_log::Books,
};

/// A stream that was published, and what arrived of it.
pub(crate) struct Played {
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) tally: Tally,
}

impl Played {
    /// Publish to arrival, of the events due in a span of time. One that is missing counts as late as it is
    /// by now: a sender must not look quicker for what it lost.
    pub(crate) fn late_ms(&self, span: impl RangeBounds<u64> + Clone) -> Result<Value, Box<dyn Error>> {
        let mut late_us = Histogram::<u64>::new(3)?;
        self.ledger.sum_up(span.clone(), |late| late_us += late / 1_000);
        self.ledger.overdue(span, |late| late_us += late / 1_000);
        Ok(percentiles(&late_us))
    }

    /// Arrivals over the time until the last of them.
    pub(crate) fn arrivals_per_s(&self) -> f64 {
        let totals = self.ledger.sum_up(.., |_| ());
        per_second(totals.arrivals as f64, self.tally.began, totals.last_arrival)
    }
}

/// The line of a single load.
pub(crate) fn single(
    sender: &Sender,
    load: &Load,
    books: &Books,
    played: &Played,
) -> Result<Value, Box<dyn Error>> {
    let Played { ledger, tally } = played;
    let mut late_us = Histogram::<u64>::new(3)?;
    let totals = ledger.sum_up(.., |late| late_us += late / 1_000);
    let refused: serde_json::Map<String, Value> =
        tally.refused.iter().map(|(status, events)| (status.to_string(), json!(events))).collect();
    let mut line = json!({
        "events": load.events,
        "fanout": load.fanout,
        "connections": sender.connections,
        "rate": load.rate,
        "batch": load.batch,
        "payload": sender.payload,
        "acks_per_s": per_second(tally.acknowledged as f64, tally.began, tally.ended),
        "arrivals": totals.arrivals,
        "arrivals_per_s": per_second(totals.arrivals as f64, tally.began, totals.last_arrival),
        "ack_ms": percentiles(&tally.ack_us),
        "arrival_ms": percentiles(&late_us),
        "errors_by_status": refused,
    });
    merge(&mut line, promises(books, &[played]));
    Ok(line)
}

/// What was promised and kept, over all streams of a run; complaints go to standard error.
pub(crate) fn promises(books: &Books, played: &[&Played]) -> Value {
    let (mut acked, mut errors, mut missing, mut duplicates, mut refused) = (0, 0, 0, 0, 0);
    for Played { ledger, tally } in played {
        let totals = ledger.sum_up(.., |_| ());
        acked += tally.acknowledged;
        errors += tally.errors();
        missing += totals.missing;
        duplicates += totals.duplicates;
        refused += totals.refused;
    }
    if let Some(complaint) = played.iter().find_map(|played| played.tally.complaint.as_ref()) {
        eprintln!("first answer that was no acknowledgement: {complaint}");
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

/// Processor time of this process so far: its share of the machine that the sender did not get. Linux counts
/// it in hundredths of a second, in fields 14 and 15 of its stat line.
fn cpu_seconds() -> Option<f64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    let (_, after_name) = stat.rsplit_once(')')?;
    let ticks = after_name.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<f64>().ok());
    Some(ticks.sum::<f64>() / 100.0)
}
