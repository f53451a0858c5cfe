//! Receivers that behave badly on purpose: each attempt ends in time and is judged rightly, and nobody else
//! has to suffer.

use std::time::{Duration, Instant};

use redrive_testkit::{Gate, Hostile, Hostility, Receiver, Redrive, Reply};
use redrive_tests::{attempts_when, column, deliveries_of, delivery_is, entries, id, text};
use serde_json::{Value, json};

/// How long an attempt may take, and by how much it may be late.
const TIMEOUT_MS: u64 = 500;
const LATE_MS: f64 = 1000.0;

/// One attempt that may not take long.
fn one_quick_try() -> Value {
    json!({"retry_config": {"schedule": [0], "timeout_ms": TIMEOUT_MS}})
}

/// How the delivery ends: its status, and the categories that its failure may have.
fn expected(hostility: Hostility) -> (&'static str, &'static [&'static str]) {
    match hostility {
        // Whether the endpoint did its work is unknown: it is as if no answer had come.
        Hostility::SlowHeaders
        | Hostility::SlowBody
        | Hostility::ResetMidBody
        | Hostility::WrongContentLength
        | Hostility::NeverAnswers
        | Hostility::TlsStall => ("dead", &["timeout"]),
        Hostility::ResetAtOnce
        | Hostility::Garbage
        | Hostility::HeaderFlood
        | Hostility::TwoLengths
        | Hostility::CloseWithoutAnswer => ("dead", &["network"]),
        // Whoever loses patience before the deadline is right as well.
        Hostility::InformationalFlood => ("dead", &["timeout", "network"]),
        // It said 200 and then too much; what was too much is not read.
        Hostility::EndlessBody
        | Hostility::HugeBody
        | Hostility::CompressedBomb
        | Hostility::AnswersBeforeReading => ("delivered", &[]),
    }
}

#[tokio::test]
async fn every_hostility_ends_in_time_and_is_judged_rightly() {
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let healthy = Receiver::start().await;
    api.create_webhook(&healthy.url(), Value::Null).await;
    let mut hostiles = Vec::new();
    for hostility in Hostility::ALL {
        let hostile = Hostile::start(hostility).await;
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
        delivery_is(&api, id(delivery), status).await;
        let took = attempt["duration_ms"].as_f64().unwrap();
        assert!(took <= TIMEOUT_MS as f64 + LATE_MS, "{hostility:?} took {took} ms");
        // What is no text is shown with replacements, one for a byte.
        let kept = attempt["response_body_sample"].as_str().map_or(0, |sample| sample.chars().count());
        assert!(kept <= 1024, "{hostility:?}: {kept} bytes kept");
        assert_eq!(hostile.connections(), 1, "{hostility:?}: one attempt is one connection");
    }
}

#[tokio::test]
async fn a_redirect_inside_is_not_followed() {
    let canary = Receiver::start().await;
    let inside = canary.url();
    let receiver = Receiver::with(move |_| Reply::status(307).header("location", &inside)).await;
    let redrive = Redrive::start().await;
    let api = redrive.api();
    api.create_webhook(&receiver.url(), one_quick_try()).await;
    let event = api.publish("order.created", json!({})).await;
    let delivery = deliveries_of(&api, &event).await.remove(0);
    let delivery = delivery_is(&api, id(&delivery), "dead").await;
    assert_eq!(
        (&delivery["failure_category"], &delivery["last_status_code"]),
        (&json!("redirect"), &json!(307))
    );
    assert_eq!((receiver.count(), canary.count()), (1, 0));
}

#[tokio::test]
async fn a_compressed_answer_is_kept_as_it_came() {
    // A bomb is harmless to who never unpacks it; what is no text is shown with replacements.
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

/// Kilobytes of a figure in `/proc/<pid>/status`.
fn memory(redrive: &Redrive, figure: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", redrive.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with(figure)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_hostile_webhooks_take_bounded_memory_and_slow_nobody_down() {
    const WEBHOOKS: usize = 50;
    const EVENTS: usize = 10;
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let healthy = Receiver::start().await;
    api.create_webhook(&healthy.url(), Value::Null).await;
    let warm = api.publish("warm.up", json!({})).await;
    delivery_is(&api, id(&deliveries_of(&api, &warm).await[0]), "delivered").await;
    let before = memory(&redrive, "VmRSS:");

    let mut hostiles = Vec::new();
    for hostility in Hostility::ALL.into_iter().cycle().take(WEBHOOKS) {
        let hostile = Hostile::start(hostility).await;
        api.create_webhook(&hostile.url(), one_quick_try()).await;
        hostiles.push(hostile);
    }
    let mut slowest = Duration::ZERO;
    let mut events = Vec::new();
    for n in 0..EVENTS {
        let published = Instant::now();
        let event = api.publish("order.created", json!({"n": n, "pad": "x".repeat(10_000)})).await;
        let arrived = |one: &redrive_testkit::Arrival| one.webhook_id() == id(&event);
        let arrivals = healthy.wait_until("the event", |arrivals| arrivals.iter().any(arrived)).await;
        let arrival = arrivals.into_iter().find(arrived).unwrap();
        slowest = slowest.max(arrival.at.saturating_duration_since(published));
        events.push(event);
    }
    let over = |page: &Value| page["data"].as_array().unwrap().is_empty();
    api.eventually("every delivery to be over", "/v1/deliveries?status=pending&limit=1", over).await;
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

/// A publisher can be hostile too: a small payload in a large body must not keep the body in memory.
#[tokio::test]
async fn small_payloads_in_large_bodies_take_little_memory() {
    let gate = Gate::closed();
    let held = gate.clone();
    let receiver = Receiver::with(move |_| Reply::status(200).held_by(&held)).await;
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
        let answer = api.raw("POST", "/v1/events/batch", &headers, body.into_bytes()).await;
        assert_eq!(answer.status, 202);
    }
    let grown = resident().saturating_sub(before);
    assert!(grown < 64, "{grown} MB more for 30 payloads of one byte");
    gate.open();
    receiver.wait_for(30).await;
}
