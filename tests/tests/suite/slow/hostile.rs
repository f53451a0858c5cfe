//! Misbehaving receivers: each attempt ends in time and is classified correctly, and no other webhook is affected.

use std::time::{Duration, Instant};

use redrive_testkit::{Latch, MisbehavingReceiver, Misbehavior, Receiver, Redrive, Reply};
use redrive_tests::{attempts_when, column, deliveries_of, entries, id, text, wait_for_status};
use serde_json::{Value, json};

/// The attempt timeout; `LATE_MS` is how late an attempt may end.
const TIMEOUT_MS: u64 = 500;
const LATE_MS: f64 = 10_000.0;

/// Returns settings for one attempt with a short timeout.
fn one_quick_try() -> Value {
    json!({"retry_config": {"schedule": [0], "timeout_ms": TIMEOUT_MS}})
}

/// Returns the expected status of the delivery, and the allowed failure categories.
fn expected(hostility: Misbehavior) -> (&'static str, &'static [&'static str]) {
    match hostility {
        // Whether the endpoint processed the request is unknown, so it counts as no response.
        Misbehavior::SlowHeaders
        | Misbehavior::SlowBody
        | Misbehavior::ResetMidBody
        | Misbehavior::WrongContentLength
        | Misbehavior::NeverAnswers
        | Misbehavior::TlsStall => ("dead", &["timeout"]),
        Misbehavior::ResetAtOnce
        | Misbehavior::Garbage
        | Misbehavior::HeaderFlood
        | Misbehavior::TwoLengths
        | Misbehavior::CloseWithoutAnswer => ("dead", &["network"]),
        // The client may also give up before the timeout.
        Misbehavior::InformationalFlood => ("dead", &["timeout", "network"]),
        // The endpoint sent 200 and then too much data; the excess is not read.
        Misbehavior::EndlessBody
        | Misbehavior::HugeBody
        | Misbehavior::CompressedBomb
        | Misbehavior::RespondsBeforeReading => ("delivered", &[]),
    }
}

#[tokio::test]
async fn misbehaving_receivers_end_in_time_and_are_classified() {
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let healthy = Receiver::start().await;
    api.create_webhook(&healthy.url(), Value::Null).await;
    let mut hostiles = Vec::new();
    for hostility in Misbehavior::ALL {
        let hostile = MisbehavingReceiver::start(hostility).await;
        let webhook = api.create_webhook(&hostile.url(), one_quick_try()).await;
        hostiles.push((hostility, id(&webhook).to_owned(), hostile));
    }

    let published = Instant::now();
    let event = api.publish("order.created", json!({"n": 1})).await;
    let arrivals = healthy.wait_for(1).await;
    println!("the healthy endpoint waited {:?}", arrivals[0].at - published);

    let deliveries = deliveries_of(&api, &event).await;
    for (hostility, webhook, hostile) in &hostiles {
        let delivery = deliveries.iter().find(|delivery| delivery["webhook_id"] == **webhook).unwrap();
        let attempt = attempts_when(&api, id(delivery), 1).await.remove(0);
        let (status, categories) = expected(*hostility);
        match attempt["failure_category"].as_str() {
            Some(category) => assert!(categories.contains(&category), "{hostility:?}: {attempt:#}"),
            None => assert!(categories.is_empty(), "{hostility:?}: {attempt:#}"),
        }
        wait_for_status(&api, id(delivery), status).await;
        let took = attempt["duration_ms"].as_f64().unwrap();
        assert!(took <= TIMEOUT_MS as f64 + LATE_MS, "{hostility:?} took {took} ms");
        // Bytes that are not text are shown as replacement characters, one per byte.
        let stored = attempt["response_body_sample"].as_str().map_or(0, |sample| sample.chars().count());
        assert!(stored <= 1024, "{hostility:?}: {stored} bytes stored");
        assert_eq!(hostile.connections(), 1, "{hostility:?}: one attempt is one connection");
    }
}

#[tokio::test]
async fn redirect_to_internal_address_is_not_followed() {
    let canary = Receiver::start().await;
    let inside = canary.url();
    let receiver = Receiver::with(move |_| Reply::status(307).header("location", &inside)).await;
    let redrive = Redrive::start().await;
    let api = redrive.api();
    api.create_webhook(&receiver.url(), one_quick_try()).await;
    let event = api.publish("order.created", json!({})).await;
    let delivery = deliveries_of(&api, &event).await.remove(0);
    let delivery = wait_for_status(&api, id(&delivery), "dead").await;
    assert_eq!(
        (&delivery["failure_category"], &delivery["last_status_code"]),
        (&json!("redirect"), &json!(307))
    );
    assert_eq!((receiver.count(), canary.count()), (1, 0));
}

#[tokio::test]
async fn compressed_response_is_stored_as_received() {
    // Redrive never decompresses responses; bytes that are not text are shown as replacement characters.
    let receiver = Receiver::with(|_| {
        let gzip: &[u8] = &[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3];
        Reply::status(500).header("content-encoding", "gzip").body([gzip, &[0xff; 4000]].concat())
    })
    .await;
    let redrive = Redrive::start().await;
    let api = redrive.api();
    api.create_webhook(&receiver.url(), one_quick_try()).await;
    let event = api.publish("order.created", json!({})).await;
    let delivery = deliveries_of(&api, &event).await.remove(0);
    let attempt = attempts_when(&api, id(&delivery), 1).await.remove(0);
    assert!(text(&attempt["response_body_sample"]).starts_with('\u{1f}'), "{attempt:#}");
    assert_eq!(text(&attempt["response_body_sample"]).chars().count(), 1024);
}

/// Returns a value of `/proc/<pid>/status`, in kilobytes.
fn memory(redrive: &Redrive, field: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", redrive.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with(field)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_webhooks_use_bounded_memory_and_delay_no_others() {
    const WEBHOOKS: usize = 50;
    const EVENTS: usize = 10;
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let healthy = Receiver::start().await;
    api.create_webhook(&healthy.url(), Value::Null).await;
    let warm = api.publish("warm.up", json!({})).await;
    wait_for_status(&api, id(&deliveries_of(&api, &warm).await[0]), "delivered").await;
    let before = memory(&redrive, "VmRSS:");

    let mut hostiles = Vec::new();
    for hostility in Misbehavior::ALL.into_iter().cycle().take(WEBHOOKS) {
        let hostile = MisbehavingReceiver::start(hostility).await;
        api.create_webhook(&hostile.url(), one_quick_try()).await;
        hostiles.push(hostile);
    }
    let mut slowest = Duration::ZERO;
    let mut events = Vec::new();
    for n in 0..EVENTS {
        let published = Instant::now();
        let event = api.publish("order.created", json!({"n": n, "pad": "x".repeat(10_000)})).await;
        let arrived = |one: &redrive_testkit::ReceivedRequest| one.webhook_id() == id(&event);
        let arrivals = healthy.wait_until("the event", |arrivals| arrivals.iter().any(arrived)).await;
        let arrival = arrivals.into_iter().find(arrived).unwrap();
        slowest = slowest.max(arrival.at.saturating_duration_since(published));
        events.push(event);
    }
    let over = |page: &Value| page["data"].as_array().unwrap().is_empty();
    api.wait_until("every delivery has ended", "/v1/deliveries?status=pending&limit=1", over).await;
    let dead = api.get("/v1/dlq?limit=500").await.expect(200)["data"].as_array().unwrap().clone();
    assert!(column(&dead, "dead_reason").iter().all(|reason| *reason == "exhausted"));

    let mut longest: f64 = 0.0;
    for event in &events {
        let attempts = entries(&api.get(&format!("/v1/events/{}/attempts", id(event))).await.expect(200));
        assert_eq!(attempts.len(), WEBHOOKS + 1);
        let took = attempts.iter().map(|attempt| attempt["duration_ms"].as_f64().unwrap());
        longest = took.fold(longest, f64::max);
    }
    let (peak, after) = (memory(&redrive, "VmHWM:"), memory(&redrive, "VmRSS:"));
    println!("hostile: {before} kB before, {peak} kB at most, {after} kB after");
    println!("hostile: the healthy webhook within {slowest:?}, the longest attempt {longest:.0} ms");
    assert!(peak - before < 64 * 1024, "from {before} kB to {peak} kB");
    assert!(longest <= TIMEOUT_MS as f64 + LATE_MS, "an attempt took {longest} ms");
}

/// A hostile publisher: a small payload in a large body must not keep the body in memory.
#[tokio::test]
async fn small_payloads_in_large_bodies_take_little_memory() {
    let gate = Latch::closed();
    let held = gate.clone();
    let receiver = Receiver::with(move |_| Reply::status(200).latched_by(&held)).await;
    let redrive = Redrive::start().await;
    let api = redrive.api();
    api.create_webhook(&receiver.url(), json!({})).await;
    let resident = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", redrive.pid())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap().to_owned();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
    };
    let before = resident();
    let padding = " ".repeat(4 << 20);
    for _ in 0..30 {
        let body = format!(r#"{{"events": [{{"event_type": "a.b", "data": 1}}]{padding}}}"#);
        let headers = [("content-type", "application/json")];
        let response = api.raw("POST", "/v1/events/batch", &headers, body.into_bytes()).await;
        assert_eq!(response.status, 202);
    }
    let grown = resident().saturating_sub(before);
    assert!(grown < 64, "{grown} MB more for 30 payloads of one byte");
    gate.open();
    receiver.wait_for(30).await;
}
