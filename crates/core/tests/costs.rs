//! Checks the work counted for the worst known input of each schema keyword and of filters. Only the counts are
//! checked here; `cargo bench -p redrive-core --bench prices` compares them with the measured time.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should panic")]

#[path = "costs/cases.rs"]
mod cases;

use cases::{Case, filter_cases, schema_cases};
use redrive_core::{
    event::schema::{MAX_WORK, Schema},
    routing::filter::Filter,
};

const SMALL: usize = 24 * 1024;
const LARGE: usize = 96 * 1024;
/// Maximum work done on a Tokio worker thread (`MAX_INLINE_COST_UNITS` of the engine).
const MAX_INLINE_COST_UNITS: u64 = 1 << 18;

fn schema_work(case: &Case) -> u64 {
    let schema =
        Schema::parse(&case.rule.to_string()).unwrap_or_else(|error| panic!("{}: {error}", case.name));
    schema.max_work(case.payload.as_bytes())
}

fn filter_work(case: &Case) -> u64 {
    let filter =
        Filter::parse(&case.rule.to_string()).unwrap_or_else(|error| panic!("{}: {error}", case.name));
    Filter::work([&filter].into_iter(), case.payload.as_bytes())
}

/// Asserts that work is at least linear: one unit or more per byte of payload, and per additional byte.
fn assert_linear(work: fn(&Case) -> u64, small: &[Case], large: &[Case]) {
    for (small, large) in small.iter().zip(large) {
        let (less, more) = (work(small), work(large));
        let (short, long) = (small.payload.len() as u64, large.payload.len() as u64);
        assert!(less >= short && more >= long, "{}: {less} for {short} bytes, {more} for {long}", small.name);
        assert!(more - less >= long - short, "{}: {less} for {short} bytes, {more} for {long}", small.name);
    }
}

#[test]
fn schema_work_grows_with_payload() {
    assert_linear(schema_work, &schema_cases(SMALL), &schema_cases(LARGE));
}

#[test]
fn filter_work_grows_with_payload() {
    assert_linear(filter_work, &filter_cases(SMALL), &filter_cases(LARGE));
}

#[test]
fn every_keyword_costs_more_than_parsing_payload() {
    let reads_only = |case: &Case| case.rule == true;
    for case in schema_cases(LARGE).into_iter().filter(|case| !reads_only(case)) {
        let work = schema_work(&case);
        let reading = schema_work(&Case { rule: true.into(), ..case });
        assert!(work > reading, "{}: {work}, reading alone {reading}", case.name);
        assert!(work <= MAX_WORK, "{}: {work}", case.name);
    }
}

#[test]
fn multiple_of_extremes_is_not_checked_on_runtime_thread() {
    let cases: Vec<_> =
        schema_cases(LARGE).into_iter().filter(|case| case.name.starts_with("multipleOf")).collect();
    assert_eq!(cases.len(), 3);
    for case in cases {
        // A refused schema causes no work.
        let Ok(schema) = Schema::parse(&case.rule.to_string()) else { continue };
        let work = schema.max_work(case.payload.as_bytes());
        assert!(work > MAX_INLINE_COST_UNITS, "{}: {work} units for {} bytes", case.name, case.payload.len());
    }
}
