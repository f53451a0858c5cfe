//! What one tenant can make expensive, and its effect on others: schemas, filters, batches, verifications,
//! listings.

#![allow(clippy::print_stdout)]

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use redrive_testkit::{Api, Browser, MisbehavingReceiver, Misbehavior, Receiver, Redrive, Reply};
use redrive_tests::{entries, id, text};
use serde_json::{Value, json};

/// The maximum units of work of one check on a Tokio worker thread.
const MAX_INLINE_COST_UNITS: u64 = 1 << 18;

/// Creates a tenant, and returns a client with its own key.
async fn tenant(api: &Api, name: &str) -> Api {
    api.post("/v1/tenants", json!({"id": name})).await.expect(201);
    let body = json!({"scopes": ["publish", "manage", "read"]});
    let key = api.post(&format!("/v1/tenants/{name}/api-keys"), body).await.expect(201);
    api.with_key(text(&key["key"]))
}

/// Polls the health of a server until stopped, and returns the longest response time.
fn watch_health(api: &Api, stop: &Arc<AtomicBool>) -> tokio::task::JoinHandle<Duration> {
    let (api, stop) = (api.clone(), stop.clone());
    tokio::spawn(async move {
        let mut longest = Duration::ZERO;
        while !stop.load(Relaxed) {
            let started = Instant::now();
            assert_eq!(api.get("/healthz").await.status, 200);
            longest = longest.max(started.elapsed());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        longest
    })
}

/// Returns the most expensive accepted payload for each kind of schema.
fn worst_inputs() -> Vec<(&'static str, Value, String)> {
    let list =
        |item: &str, bytes: usize| format!("[{}{item}]", format!("{item},").repeat(bytes / (item.len() + 1)));
    let brackets: Vec<_> = (0..4_000_u32)
        .map(|number| {
            let parts: Vec<_> =
                (0..12).map(|bit| if number >> bit & 1 == 1 { "[[]]" } else { "[]" }).collect();
            format!("[{}]", parts.join(","))
        })
        .collect();
    let rules: Vec<_> = (0..900).map(|n| json!({"maximum": 10 + n})).collect();
    vec![
        ("multiples", json!({"items": {"multipleOf": 1e-300}}), list("1e300", 200_000)),
        ("unique", json!({"uniqueItems": true}), format!("[{}]", brackets.join(","))),
        ("rules", json!({"items": {"allOf": rules}}), list("1", 40_000)),
        ("pattern", json!({"pattern": "[ab]*a[ab]{300}c"}), format!("\"{}\"", "abbab".repeat(12_000))),
        (
            "names",
            json!({"items": {"not": {"required": (0..900).map(|n| n.to_string()).collect::<Vec<_>>()}}}),
            list("{}", 40_000),
        ),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn health_responds_while_a_tenant_publishes_expensive_payloads() {
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let acme = tenant(&api, "acme").await;
    let mut bodies = Vec::new();
    for (name, schema, payload) in worst_inputs() {
        acme.post("/v1/event-types", json!({"name": name, "schema": schema})).await.expect(201);
        bodies.push(format!("{{\"event_type\":\"{name}\",\"data\":{payload}}}"));
    }
    let stop = Arc::new(AtomicBool::new(false));
    let health = watch_health(&api.without_key(), &stop);
    let globex = tenant(&api, "globex").await;
    let mut publishing = tokio::task::JoinSet::new();
    for body in bodies.into_iter().cycle().take(20) {
        let acme = acme.clone();
        let json = ("content-type", "application/json");
        publishing.spawn(async move { acme.raw("POST", "/v1/events", &[json], body).await });
    }
    // Another tenant publishes while the expensive payloads are checked.
    let mut slowest = Duration::ZERO;
    while !publishing.is_empty() {
        let started = Instant::now();
        globex.publish("order.created", json!({"n": 1})).await;
        slowest = slowest.max(started.elapsed());
        while let Some(response) = publishing.try_join_next() {
            let response = response.unwrap();
            assert!([202, 400, 503].contains(&response.status), "{}", response.status);
            assert!(response.status != 503 || response.header("retry-after").is_some());
        }
    }
    stop.store(true, Relaxed);
    let longest = health.await.unwrap();
    println!("longest health check {longest:?}, slowest publish of another tenant {slowest:?}");
    // A check beyond the work limit runs on its own thread, so no poll of the runtime does more work than the limit.
    acme.post("/v1/event-types", json!({"name": "small", "schema": {"type": "number"}})).await.expect(201);
    for _ in 0..2 {
        acme.publish("small", json!(1)).await;
    }
    let inline = metric(&api, "redrive_inline_work_max").await;
    assert!((1..=MAX_INLINE_COST_UNITS).contains(&inline), "{inline} units on the runtime");
}

#[tokio::test]
async fn deep_nesting_is_rejected_and_large_bodies_leave_the_runtime() {
    const JSON: (&str, &str) = ("content-type", "application/json");
    const BATCH: (&str, &str) = ("content-type", "application/cloudevents-batch+json");
    const CLOUDEVENT: (&str, &str) = ("content-type", "application/cloudevents+json");
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
    let event = |data: &str| format!("{{\"event_type\":\"deep\",\"data\":{data}}}");
    let batch = |event: &str| format!("{{\"events\":[{event}]}}");
    let cloudevent = |data: &str| {
        format!(
            "{{\"specversion\":\"1.0\",\"id\":\"{}\",\"source\":\"/s\",\"type\":\"deep\",\"data\":{data}}}",
            data.len()
        )
    };
    let deepest = nested(120);
    assert_eq!(api.raw("POST", "/v1/events", &[JSON], event(&deepest)).await.status, 202);
    assert_eq!(api.raw("POST", "/v1/events", &[CLOUDEVENT], cloudevent(&deepest)).await.status, 202);
    let taken = api.raw("POST", "/v1/events/batch", &[JSON], batch(&event(&deepest))).await.expect(202);
    assert_eq!(entries(&taken)[0]["status"], 202);
    for levels in [121, 120_000] {
        let data = nested(levels);
        for (kind, body) in [(JSON, event(&data)), (CLOUDEVENT, cloudevent(&data))] {
            let refused = api.raw("POST", "/v1/events", &[kind], body).await.expect(400);
            assert!(text(&refused["detail"]).contains("nested too deeply"), "{refused}");
        }
    }
    let refused = api.raw("POST", "/v1/events/batch", &[JSON], batch(&event(&nested(120_000)))).await;
    assert!(text(&refused.expect(400)["detail"]).contains("nested too deeply"));
    let refused = api.raw("POST", "/v1/events/batch", &[BATCH], nested(120_000)).await;
    assert!(text(&refused.expect(400)["detail"]).contains("nested too deeply"));

    // Each byte counts as work, so the largest body that is parsed on the runtime is known, and larger ones are not.
    let wide = |bytes: usize| format!("[{}[]]", "[],".repeat(bytes / 3));
    let small = event(&wide(100_000));
    let counted = 2 * small.len() as u64;
    assert_eq!(api.raw("POST", "/v1/events", &[JSON], small).await.status, 202);
    let inline = metric(&api, "redrive_inline_work_max").await;
    assert!(
        (counted..=MAX_INLINE_COST_UNITS).contains(&inline),
        "{inline} units on the runtime, {counted} counted"
    );
    assert_eq!(api.raw("POST", "/v1/events", &[JSON], event(&wide(240_000))).await.status, 202);
    assert_eq!(api.raw("POST", "/v1/events", &[CLOUDEVENT], cloudevent(&wide(200_000))).await.status, 202);
    let large = batch(&[event(&wide(200_000)), event(&wide(200_000))].join(","));
    let taken = api.raw("POST", "/v1/events/batch", &[JSON], large).await.expect(202);
    assert!(entries(&taken).iter().all(|item| item["status"] == 202), "{taken}");
    let body = json!({"name": "large", "example": "x".repeat(50_000)});
    api.post("/v1/event-types", body).await.expect(201);
    let inline = metric(&api, "redrive_inline_work_max").await;
    assert!(inline <= MAX_INLINE_COST_UNITS, "{inline} units on the runtime");
}

#[tokio::test]
async fn batch_items_over_budget_are_rejected_and_order_is_kept() {
    let redrive = Redrive::start().await;
    let api = redrive.api();
    // The schema's computed cost is high, but none of its rules apply to a string.
    let properties: serde_json::Map<_, _> = (0..1_900).map(|n| (n.to_string(), json!(true))).collect();
    api.post("/v1/event-types", json!({"name": "costly", "schema": {"properties": properties}}))
        .await
        .expect(201);
    let event = |event_type: &str, data: Value| json!({"event_type": event_type, "data": data});
    let mut events: Vec<_> = (0..8).map(|_| event("costly", json!("x".repeat(60_000)))).collect();
    events.push(event("free", json!(1)));
    let response = api.post("/v1/events/batch", json!({"events": events})).await.expect(202);
    let items = entries(&response);
    let taken = items.iter().take_while(|item| item["status"] == 202).count();
    assert!((2..8).contains(&taken), "{taken}");
    for item in &items[taken..8] {
        assert_eq!((&item["status"], &item["error"]["code"]), (&json!(413), &json!("batch_too_costly")));
    }
    assert_eq!(items[8]["status"], 202, "an event without a schema is accepted");
    // Published alone, each of them is accepted.
    api.publish("costly", json!("x".repeat(60_000))).await;

    let mixed: Vec<_> = (0..30)
        .map(|n| match n % 3 {
            0 => event("costly", json!("x".repeat(1_000))),
            _ => event("free", json!(n)),
        })
        .collect();
    let response = api.post("/v1/events/batch", json!({"events": mixed})).await.expect(202);
    let numbers: Vec<_> =
        entries(&response).iter().map(|item| item["sequence_number"].as_i64().unwrap()).collect();
    assert!(numbers.is_sorted(), "{numbers:?}");
}

#[tokio::test]
async fn self_referencing_schemas_of_older_drafts_are_rejected() {
    let redrive = Redrive::start().await;
    let schema = json!({"dependencies": {"a": {"$ref": "#"}}});
    let refused =
        redrive.api().post("/v1/event-types", json!({"name": "a", "schema": schema})).await.expect(400);
    assert_eq!(refused["field"], "schema/dependencies");
}

/// Starts a receiver that echoes challenges.
async fn echo() -> Receiver {
    Receiver::with(|arrival| Reply::status(200).body(arrival.body.clone())).await
}

#[tokio::test]
async fn verification_does_not_wait_for_tarpits_of_another_tenant() {
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let (acme, globex) = (tenant(&api, "acme").await, tenant(&api, "globex").await);
    let tarpit = MisbehavingReceiver::start(Misbehavior::NeverAnswers).await;
    for n in 0..96 {
        let url = format!("{}?{n}", tarpit.url());
        acme.create_webhook(&url, json!({"verify_url": true})).await;
    }
    let receiver = echo().await;
    let started = Instant::now();
    let webhook = globex.create_webhook(&receiver.url(), json!({"verify_url": true})).await;
    let path = format!("/v1/webhooks/{}", id(&webhook));
    globex.wait_until("the webhook is verified", &path, |webhook| webhook["state"] == "active").await;
    let waited = started.elapsed();
    println!("verified after {waited:?}");
    // A second group of challenges starts only after the first has timed out.
    assert!(tarpit.connections() <= 16, "{} endpoints of one tenant were called", tarpit.connections());
}

/// Returns the value of a metric without labels.
async fn metric(api: &Api, name: &str) -> u64 {
    let text = String::from_utf8(api.get("/metrics").await.body.to_vec()).unwrap();
    let line = text.lines().find(|line| line.starts_with(&format!("{name} "))).unwrap();
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

/// Returns the number of store reads so far.
async fn reads(api: &Api) -> u64 {
    metric(api, "redrive_store_reads_total").await
}

/// The maximum store reads of a listing, the metrics page, and the node's own background work in between.
const MAX_READS: u64 = 40;

#[tokio::test]
async fn listings_take_few_reads_regardless_of_length() {
    const WEBHOOKS: usize = 120;
    let redrive = Redrive::start().await;
    let api = redrive.api();
    let receiver = Receiver::start().await;
    for n in 0..WEBHOOKS {
        api.create_webhook(&receiver.url_at(&format!("/{n}")), json!({})).await;
    }
    let event = api.publish("order.created", json!({})).await;
    receiver.wait_for(WEBHOOKS).await;
    for path in [
        "/v1/webhooks?limit=500".to_owned(),
        "/v1/deliveries?limit=500".to_owned(),
        format!("/v1/events/{}/deliveries?limit=500", id(&event)),
        format!("/v1/events/{}/attempts", id(&event)),
        "/v1/dlq?limit=500".to_owned(),
    ] {
        let before = reads(&api).await;
        let listed = api.get(&path).await;
        let after = reads(&api).await;
        assert_eq!(listed.status, 200, "{path}");
        println!("{path}: {} reads", after - before);
        assert!(after - before < MAX_READS, "{path}: {} reads", after - before);
    }
}

#[tokio::test]
async fn listings_of_all_tenants_take_few_reads_after_a_start() {
    const TENANTS: usize = 80;
    let mut redrive = Redrive::start().await;
    let api = redrive.api();
    let receiver = Receiver::start().await;
    for n in 0..TENANTS {
        // No node serves the pool, so that deliveries stay pending.
        let tenant = format!("tenant-{n}");
        api.post("/v1/tenants", json!({"id": tenant, "pool": "elsewhere"})).await.expect(201);
        api.create_webhook(&receiver.url(), json!({"tenant_id": tenant})).await;
        let event = json!({"tenant_id": tenant, "event_type": "order.created", "data": n});
        api.post("/v1/events", event).await.expect(202);
    }
    // Nothing is in memory now.
    redrive.restart().await;
    let api = redrive.api();
    let admin = Browser::log_in(&redrive, redrive.key()).await;
    let mut listed = Vec::new();
    for path in [
        "/v1/deliveries?tenant_id=*&limit=500",
        "/v1/webhooks?tenant_id=*&limit=500",
        "/v1/webhooks?tenant_id=*&status=healthy&limit=500",
        "/v1/overview?tenant_id=*",
        "/dashboard/all/deliveries",
        "/dashboard/all/webhooks",
        "/dashboard/all/webhooks?circuit=closed",
    ] {
        let before = reads(&api).await;
        match path.starts_with("/v1/") {
            true => listed.push(api.get(path).await.expect(200)),
            false => assert_eq!(admin.get(path).await.status, 200, "{path}"),
        }
        let after = reads(&api).await;
        println!("{path}: {} reads", after - before);
        assert!(after - before < MAX_READS, "{path}: {} reads", after - before);
    }
    let deliveries = listed[0]["data"].as_array().unwrap();
    assert_eq!(deliveries.len(), TENANTS);
    for delivery in deliveries {
        assert_eq!(delivery["waiting_on"], "pool", "{delivery:#}");
    }
}

mod extended {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn heavy_listings_of_one_tenant_do_not_delay_retries_or_others() {
        let redrive = Redrive::start().await;
        let api = redrive.api();
        let (acme, globex) = (tenant(&api, "acme").await, tenant(&api, "globex").await);
        let receiver = Receiver::start().await;
        for n in 0..150 {
            acme.create_webhook(&receiver.url_at(&format!("/{n}")), json!({"events": ["order.created"]}))
                .await;
        }
        for n in 0..10 {
            acme.publish("order.created", json!({"n": n})).await;
        }
        let stop = Arc::new(AtomicBool::new(false));
        let mut listing = tokio::task::JoinSet::new();
        for n in 0..24 {
            let (acme, stop) = (acme.clone(), stop.clone());
            listing.spawn(async move {
                let paths = ["/v1/deliveries?limit=500&offset=900", "/v1/webhooks?limit=500"];
                while !stop.load(Relaxed) {
                    let response = acme.get(paths[n % 2]).await;
                    assert!([200, 503].contains(&response.status), "{}", response.status);
                }
            });
        }
        // The first attempt fails, and the retry is due a second later.
        let failing = Arc::new(AtomicBool::new(true));
        let fails = failing.clone();
        let retried =
            Receiver::with(move |_| Reply::status(if fails.swap(false, Relaxed) { 503 } else { 200 })).await;
        let retry = json!({"retry_config": {"schedule": [0, "1s", "1s"], "jitter": 0.0}});
        let webhook = globex.post("/v1/webhooks", {
            let mut body = json!({"url": retried.url(), "events": ["*"]});
            body.as_object_mut().unwrap().extend(retry.as_object().unwrap().clone());
            body
        });
        let webhook = webhook.await;
        assert_eq!(webhook.status, 201, "{}", webhook.problem());
        globex.publish("order.created", json!({})).await;
        let mut longest = Duration::ZERO;
        for _ in 0..30 {
            let started = Instant::now();
            globex.get("/v1/deliveries").await.expect(200);
            longest = longest.max(started.elapsed());
        }
        let started = Instant::now();
        retried.wait_for(2).await;
        let waited = started.elapsed();
        // The retry was received while the listings continued.
        stop.store(true, Relaxed);
        while listing.join_next().await.is_some() {}
        println!("longest read of another tenant {longest:?}, waited {waited:?} for a retry");
    }
}
