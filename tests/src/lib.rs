//! Whole-system suites against the real binary, in `tests/`, and the few questions that they all ask.
//!
//! Build the binary first (`cargo build -p redrive`). A suite waits for signals, never for the clock.

// A test that cannot go on should panic.
#![allow(clippy::unwrap_used)]

pub mod browser;
pub mod cluster;
pub mod egress_paths;

use std::time::{Duration, SystemTime};

use redrive_core::Time;
use redrive_testkit::{Api, Redrive, Setup};
use serde_json::Value;

/// A server whose clock of retries runs so many times as fast as the real one.
pub async fn redrive_at_speed(speed: u32) -> Redrive {
    Redrive::start_with(Setup::new().env("REDRIVE_DEV_CLOCK_SPEED", speed.to_string())).await
}

/// The `id` of an object.
pub fn id(object: &Value) -> &str {
    text(&object["id"])
}

/// A member that must be a text.
pub fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("expected a text, not {value}"))
}

/// The entries of a listing.
pub fn entries(page: &Value) -> Vec<Value> {
    page["data"].as_array().unwrap_or_else(|| panic!("expected a listing, not {page}")).clone()
}

/// Milliseconds since the epoch of a time that the API shows.
pub fn millis(time: &Value) -> i64 {
    Time::parse(text(time)).unwrap_or_else(|| panic!("{time} is no time")).millis()
}

/// An HTTP date so many whole seconds after the epoch.
pub fn http_date(secs: i64) -> String {
    httpdate::fmt_http_date(SystemTime::UNIX_EPOCH + Duration::from_secs(secs.unsigned_abs()))
}

/// All deliveries of an event (as publishing it answered).
pub async fn deliveries_of(api: &Api, event: &Value) -> Vec<Value> {
    entries(&api.get(&format!("/v1/events/{}/deliveries?limit=500", id(event))).await.expect(200))
}

/// The one delivery of an event.
pub async fn delivery_of(api: &Api, event: &Value) -> Value {
    let mut deliveries = deliveries_of(api, event).await;
    assert_eq!(deliveries.len(), 1, "{deliveries:#?}");
    deliveries.remove(0)
}

/// A delivery as soon as `condition` holds for it.
pub async fn delivery_when(
    api: &Api,
    delivery: &str,
    what: &str,
    condition: impl Fn(&Value) -> bool,
) -> Value {
    api.eventually(what, &format!("/v1/deliveries/{delivery}"), condition).await
}

/// A delivery once it has this status.
pub async fn delivery_is(api: &Api, delivery: &str, status: &str) -> Value {
    delivery_when(api, delivery, status, |delivery| delivery["status"] == status).await
}

/// The one delivery of an event once it has this status.
pub async fn event_is(api: &Api, event: &Value, status: &str) -> Value {
    let delivery = delivery_of(api, event).await;
    delivery_is(api, id(&delivery), status).await
}

/// The attempts of a delivery, first to last.
pub async fn attempts_of(api: &Api, delivery: &str) -> Vec<Value> {
    entries(&api.get(&format!("/v1/deliveries/{delivery}/attempts")).await.expect(200))
}

/// The attempts of a delivery as soon as there are so many.
pub async fn attempts_when(api: &Api, delivery: &str, count: usize) -> Vec<Value> {
    let path = format!("/v1/deliveries/{delivery}/attempts");
    let what = format!("{count} attempts");
    entries(&api.eventually(&what, &path, |page| page["data"].as_array().unwrap().len() >= count).await)
}

/// The values of one member of each object.
pub fn column<'a>(objects: &'a [Value], name: &str) -> Vec<&'a Value> {
    objects.iter().map(|object| &object[name]).collect()
}
