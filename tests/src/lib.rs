//! Whole-system suites against the real binary, in `tests/`, and the helpers they share.
//!
//! Build the binary first (`cargo build -p redrive`). A suite waits for signals, never for the clock.

// A test that cannot continue should panic.
#![allow(clippy::unwrap_used)]

pub mod browser;
pub mod cluster;
pub mod egress_paths;
pub mod oidc_provider;
pub mod openapi_diff;
pub mod packages;
pub mod user_login;

use std::time::{Duration, SystemTime};

use redrive_core::Time;
use redrive_testkit::{Api, Redrive, Setup};
use serde_json::Value;

/// Starts a server whose retry clock runs `speed` times as fast as the real one.
pub async fn redrive_at_speed(speed: u32) -> Redrive {
    Redrive::start_with(Setup::new().env("REDRIVE_DEV_CLOCK_SPEED", speed.to_string())).await
}

/// Returns the `id` of an object.
pub fn id(object: &Value) -> &str {
    text(&object["id"])
}

/// Returns a value that must be a string.
pub fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("expected a string, not {value}"))
}

/// Returns the entries of a listing.
pub fn entries(page: &Value) -> Vec<Value> {
    page["data"].as_array().unwrap_or_else(|| panic!("expected a listing, not {page}")).clone()
}

/// Converts a time of the API to milliseconds since the Unix epoch.
pub fn millis(time: &Value) -> i64 {
    Time::parse(text(time)).unwrap_or_else(|| panic!("{time} is not a time")).millis()
}

/// Formats an HTTP date from seconds since the Unix epoch.
pub fn http_date(secs: i64) -> String {
    httpdate::fmt_http_date(SystemTime::UNIX_EPOCH + Duration::from_secs(secs.unsigned_abs()))
}

/// Returns all deliveries of an event (as the publish returned it).
pub async fn deliveries_of(api: &Api, event: &Value) -> Vec<Value> {
    entries(&api.get(&format!("/v1/events/{}/deliveries?limit=500", id(event))).await.expect(200))
}

/// Returns the only delivery of an event.
pub async fn delivery_of(api: &Api, event: &Value) -> Value {
    let mut deliveries = deliveries_of(api, event).await;
    assert_eq!(deliveries.len(), 1, "{deliveries:#?}");
    deliveries.remove(0)
}

/// Waits until `condition` holds for a delivery, and returns it.
pub async fn wait_for_delivery(
    api: &Api,
    delivery: &str,
    what: &str,
    condition: impl Fn(&Value) -> bool,
) -> Value {
    api.wait_until(what, &format!("/v1/deliveries/{delivery}"), condition).await
}

/// Waits until a delivery has this status, and returns it.
pub async fn wait_for_status(api: &Api, delivery: &str, status: &str) -> Value {
    wait_for_delivery(api, delivery, status, |delivery| delivery["status"] == status).await
}

/// Waits until the only delivery of an event has this status, and returns it.
pub async fn wait_for_event_status(api: &Api, event: &Value, status: &str) -> Value {
    let delivery = delivery_of(api, event).await;
    wait_for_status(api, id(&delivery), status).await
}

/// Returns the attempts of a delivery, first to last.
pub async fn attempts_of(api: &Api, delivery: &str) -> Vec<Value> {
    entries(&api.get(&format!("/v1/deliveries/{delivery}/attempts")).await.expect(200))
}

/// Waits until a delivery has `count` attempts, and returns them.
pub async fn attempts_when(api: &Api, delivery: &str, count: usize) -> Vec<Value> {
    let path = format!("/v1/deliveries/{delivery}/attempts");
    let what = format!("{count} attempts");
    entries(&api.wait_until(&what, &path, |page| page["data"].as_array().unwrap().len() >= count).await)
}

/// Returns the values of one field of each object.
pub fn column<'a>(objects: &'a [Value], name: &str) -> Vec<&'a Value> {
    objects.iter().map(|object| &object[name]).collect()
}
