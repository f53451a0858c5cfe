//! Compares counted work with the time that it takes: prints the nanoseconds per unit of work for the worst
//! known input of each schema keyword and of filters. Fails if a unit of any of them takes more than
//! [`MAX_FACTOR`] times as long as a unit of plain rules: the bound on work per poll of the runtime would then
//! not bound its time.
//!
//! ```console
//! $ cargo bench -p redrive-core --bench prices
//! ```
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a benchmark reads the clock and prints what it measured"
)]

#[path = "../tests/costs/cases.rs"]
mod cases;

use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

use cases::{Case, filter_cases, schema_cases};
use redrive_core::{
    event::schema::Schema,
    routing::filter::{Filter, Payload},
};

/// Maximum time of a unit of any input, as a multiple of the time of a unit of plain rules.
const MAX_FACTOR: f64 = 12.0;
/// Number of runs, of which the fastest counts: the others were slowed by other processes.
const RUNS: usize = 10;
const BYTES: usize = 96 * 1024;

struct Measured {
    name: &'static str,
    bytes: usize,
    work: u64,
    fastest: Duration,
}

impl Measured {
    fn nanos_per_unit(&self) -> f64 {
        self.fastest.as_nanos() as f64 / self.work as f64
    }
}

fn fastest_run(run: impl Fn()) -> Duration {
    let time = |_| {
        let start = Instant::now();
        run();
        start.elapsed()
    };
    (0..RUNS).map(time).min().unwrap_or_default()
}

fn measure_schema(case: &Case) -> Measured {
    let schema = Schema::parse(&case.rule.to_string()).unwrap();
    let data = case.payload.as_bytes();
    let fastest = fastest_run(|| drop(std::hint::black_box(schema.check(data))));
    Measured { name: case.name, bytes: data.len(), work: schema.max_work(data), fastest }
}

fn measure_filter(case: &Case) -> Measured {
    let filter = Filter::parse(&case.rule.to_string()).unwrap();
    let data = case.payload.as_bytes();
    let fastest = fastest_run(|| {
        std::hint::black_box(filter.matches(&Payload::new(data)));
    });
    let work = Filter::work([&filter].into_iter(), data);
    Measured { name: case.name, bytes: data.len(), work, fastest }
}

fn main() -> ExitCode {
    let schemas: Vec<_> = schema_cases(BYTES).iter().map(measure_schema).collect();
    let filters: Vec<_> = filter_cases(BYTES).iter().map(measure_filter).collect();
    let plain = schemas[0].nanos_per_unit();
    let mut too_slow = 0;
    println!("| | units/byte | µs | ns/unit | of plain rules |");
    println!("|---|---|---|---|---|");
    let rows = schemas.iter().map(|row| ("", row)).chain(filters.iter().map(|row| ("filter: ", row)));
    for (kind, row) in rows {
        let factor = row.nanos_per_unit() / plain;
        let mark = if factor > MAX_FACTOR { " **too slow**" } else { "" };
        too_slow += usize::from(factor > MAX_FACTOR);
        println!(
            "| {kind}{} | {} | {:.0} | {:.2} | {factor:.1}×{mark} |",
            row.name,
            row.work / row.bytes as u64,
            row.fastest.as_nanos() as f64 / 1000.0,
            row.nanos_per_unit(),
        );
    }
    println!("\n{too_slow} of {} above {MAX_FACTOR}×", schemas.len() + filters.len());
    if too_slow == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
