//! Turns a finished run into one line of JSON. Rates are per second, latencies milliseconds.

use std::{
    error::Error,
    fs,
    io::{self, Write as _},
};

use hdrhistogram::Histogram;
use serde_json::{Value, json};

use crate::{Options, ledger::Ledger, publisher::Tally};

/// Prints the line; complaints go to standard error.
pub(crate) fn print(options: &Options, ledger: &Ledger, tally: &Tally) -> Result<(), Box<dyn Error>> {
    let mut late_us = Histogram::<u64>::new(3)?;
    let totals = ledger.sum_up(|late| late_us += late / 1_000);
    let refused: serde_json::Map<String, Value> =
        tally.refused.iter().map(|(status, events)| (status.to_string(), json!(events))).collect();
    if let Some(complaint) = &tally.complaint {
        eprintln!("first answer that was no acknowledgement: {complaint}");
    }
    let line = json!({
        "events": options.events,
        "fanout": options.fanout,
        "connections": options.connections,
        "rate": options.rate,
        "batch": options.batch,
        "payload": options.payload,
        "acked": tally.acknowledged,
        "acks_per_s": per_second(tally.acknowledged as f64, tally.began, tally.ended),
        "arrivals": totals.arrivals,
        "arrivals_per_s": per_second(totals.arrivals as f64, tally.began, totals.last_arrival),
        "ack_ms": percentiles(&tally.ack_us),
        "arrival_ms": percentiles(&late_us),
        "errors": tally.refused.values().sum::<usize>(),
        "errors_by_status": refused,
        "missing": totals.missing,
        "duplicates": totals.duplicates,
        "refused_on_purpose": totals.refused,
        "stray": totals.stray,
        "load_cpu_s": cpu_seconds(),
    });
    writeln!(io::stdout(), "{line}")?;
    Ok(())
}

fn per_second(count: f64, from: u64, to: u64) -> f64 {
    if to > from { (count * 1e9 / (to - from) as f64).round() } else { 0.0 }
}

fn percentiles(us: &Histogram<u64>) -> Value {
    let at = |quantile| us.value_at_quantile(quantile) as f64 / 1_000.0;
    json!({"p50": at(0.5), "p95": at(0.95), "p99": at(0.99), "max": us.max() as f64 / 1_000.0})
}

/// Processor time of this process so far: its share of the machine that the sender did not get. Linux counts
/// it in hundredths of a second, in fields 14 and 15 of its stat line.
fn cpu_seconds() -> Option<f64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    let (_, after_name) = stat.rsplit_once(')')?;
    let ticks = after_name.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<f64>().ok());
    Some(ticks.sum::<f64>() / 100.0)
}
