//! Traces as a collector receives them: complete across processes, crashes and retries, and never blocking
//! delivery.

use std::{
    collections::{BTreeMap, HashSet},
    time::Instant,
};

use redrive_testkit::{Api, Collector, Latch, Postgres, ReceivedSpan, Receiver, Redrive, Reply, Setup};
use redrive_tests::{
    attempts_of, cluster::node, delivery_of, id, text, wait_for_event_status, wait_for_status,
};
use serde_json::{Value, json};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CALLER: &str = "00f067aa0ba902b7";

fn parent(flags: &str) -> String {
    format!("00-{TRACE}-{CALLER}-{flags}")
}

fn traced(collector: &Collector, ratio: &str) -> Setup {
    Setup::new()
        .env("REDRIVE_TRACING_OTLP_ENDPOINT", collector.url())
        .env("REDRIVE_TRACING_SAMPLE_RATIO", ratio)
}

/// Publishes with trace headers.
async fn publish(api: &Api, headers: &[(&str, &str)], body: Value) -> Value {
    let mut all = vec![("content-type", "application/json")];
    all.extend(headers);
    api.raw("POST", "/v1/events", &all, body.to_string()).await.expect(202)
}

fn named<'a>(spans: &'a [ReceivedSpan], name: &str) -> Vec<&'a ReceivedSpan> {
    let mut found: Vec<_> = spans.iter().filter(|span| span.name == name).collect();
    found.sort_by_key(|span| span.start);
    found
}

fn the<'a>(spans: &'a [ReceivedSpan], name: &str) -> &'a ReceivedSpan {
    let found = named(spans, name);
    assert_eq!(found.len(), 1, "{name}: {spans:#?}");
    found[0]
}

/// Waits until this many deliveries have ended, and returns all spans.
async fn ended(collector: &Collector, deliveries: usize) -> Vec<ReceivedSpan> {
    collector
        .wait_until("deliveries that have ended", |spans| named(spans, "delivery").len() >= deliveries)
        .await
}

/// Asserts that spans form one complete trace, without missing parents and with none starting before its publish.
fn assert_whole(spans: &[ReceivedSpan], root: &str) {
    let ids: HashSet<_> = spans.iter().map(|span| span.id.as_str()).collect();
    assert_eq!(ids.len(), spans.len(), "each span has its own id: {spans:#?}");
    let publish = the(spans, "publish");
    for span in spans {
        assert_eq!(span.trace, publish.trace, "{span:#?}");
        assert!(span.parent == root || ids.contains(span.parent.as_str()), "{span:#?} in {spans:#?}");
        assert!(span.start <= span.end && publish.start <= span.start, "{span:#?}");
    }
    assert_eq!(publish.parent, root);
}

/// Asserts that a delivery's attempts are complete: a dispatch span, then an attempt span that contains its
/// phases.
fn assert_attempts(spans: &[ReceivedSpan], statuses: &[i64]) {
    let delivery = the(spans, "delivery");
    let (dispatches, attempts) = (named(spans, "dispatch"), named(spans, "attempt"));
    assert_eq!((dispatches.len(), attempts.len()), (statuses.len(), statuses.len()), "{spans:#?}");
    for (n, (dispatch, attempt)) in dispatches.iter().zip(&attempts).enumerate() {
        assert_eq!((&dispatch.parent, &attempt.parent), (&delivery.id, &delivery.id));
        assert_eq!(attempt.number("redrive.attempt"), n as i64 + 1);
        assert_eq!(attempt.number("http.response.status_code"), statuses[n]);
        assert_eq!(attempt.error.is_some(), statuses[n] >= 300, "{attempt:#?}");
        assert!(dispatch.end <= attempt.start && attempt.end <= delivery.end, "{spans:#?}");
        let phases: Vec<_> = spans.iter().filter(|span| span.parent == attempt.id).collect();
        assert!(phases.iter().any(|phase| phase.name == "ttfb"), "{spans:#?}");
        for phase in phases {
            assert!(["dns", "connect", "tls", "ttfb"].contains(&&*phase.name), "{phase:#?}");
            assert!(attempt.start <= phase.start && phase.end <= attempt.end, "{phase:#?} in {attempt:#?}");
        }
    }
}

#[tokio::test]
async fn event_is_one_trace_from_publisher_to_receiver() {
    let (collector, receiver) = (Collector::start().await, Receiver::start().await);
    let setup = traced(&collector, "0")
        .env("REDRIVE_NODE", "here")
        .env("REDRIVE_TRACING_SERVICE_NAME", "hooks")
        .env("REDRIVE_TRACING_OTLP_HEADERS", "authorization=Bearer planted-token");
    let redrive = Redrive::start_with(setup).await;
    let api = redrive.api();
    let secret =
        json!({"headers": {"x-api-key": "planted-header"}, "auth": {"type": "bearer", "token": "planted-2"}});
    let webhook = api.create_webhook(&receiver.url_at("/planted-path"), secret).await;
    let body = json!({"event_type": "order.created", "data": {"card": "planted-payload"}, "metadata": {"note": "planted"}});
    let event =
        publish(&api, &[("traceparent", &parent("01")), ("tracestate", "rojo=1, congo=2")], body).await;
    let spans = ended(&collector, 1).await;
    assert_whole(&spans, CALLER);
    assert_attempts(&spans, &[200]);
    let (publish, commit, delivery, attempt) =
        (the(&spans, "publish"), the(&spans, "commit"), the(&spans, "delivery"), the(&spans, "attempt"));
    assert_eq!((&*publish.trace, &commit.parent, &delivery.parent), (TRACE, &publish.id, &publish.id));
    assert!(commit.end <= publish.end && the(&spans, "connect").start >= attempt.start);
    assert!(spans.iter().all(|span| span.state == "rojo=1,congo=2"));
    assert_eq!((publish.text("redrive.event_id"), publish.number("redrive.deliveries")), (id(&event), 1));
    assert_eq!(publish.text("redrive.event_type"), "order.created");
    assert_eq!((delivery.text("redrive.status"), delivery.number("redrive.attempts")), ("delivered", 1));
    let known = delivery_of(&api, &event).await;
    assert_eq!(attempt.text("redrive.delivery_id"), id(&known));
    assert_eq!(
        (attempt.text("redrive.webhook_id"), attempt.text("redrive.tenant")),
        (id(&webhook), "default")
    );
    assert_eq!(attempt.resource["service.name"], "hooks");
    assert_eq!(attempt.resource["service.instance.id"], "here");

    // The receiver gets the span of the attempt, and the history shows it.
    let arrival = &receiver.wait_for(1).await[0];
    let sent = format!("00-{TRACE}-{}-01", attempt.id);
    assert_eq!(
        (arrival.header("traceparent"), arrival.header("tracestate")),
        (Some(&*sent), Some("rojo=1,congo=2"))
    );
    let attempts = attempts_of(&api, id(&known)).await;
    assert!(attempts[0]["request_headers"].to_string().contains(&sent), "{attempts:#?}");

    // Exported spans contain no payload and no secret; the operator's own header is sent with them.
    for arrival in collector.receiver().arrivals() {
        assert_eq!(arrival.header("authorization"), Some("Bearer planted-token"));
        let body = String::from_utf8_lossy(&arrival.body).into_owned();
        assert!(!body.contains("planted") && !body.contains("whsec_"), "{body}");
    }
    let metrics = String::from_utf8(api.get("/metrics").await.body.to_vec()).unwrap();
    let exported = format!("redrive_spans_total{{outcome=\"exported\"}} {}", spans.len());
    assert!(metrics.contains(&exported), "{exported} in {metrics}");
}

#[tokio::test]
async fn trace_is_complete_across_a_crash_and_a_retry() {
    let collector = Collector::start().await;
    let (receiver, gate) = (Receiver::start().await, Latch::closed());
    let held = gate.clone();
    receiver.respond_with(move |_| Reply::status(200).latched_by(&held));
    let mut redrive = Redrive::start_with(traced(&collector, "1")).await;
    let api = redrive.api();
    api.create_webhook(&receiver.url(), json!({"retry_config": {"schedule": [0, 1, 1]}})).await;
    let event = publish(&api, &[], json!({"event_type": "order.created", "data": 1})).await;
    // Killed between the commit and the end of the first request, whose outcome is therefore unknown.
    receiver.wait_for(1).await;
    collector
        .wait_until("the publish", |spans| {
            !named(spans, "publish").is_empty() && !named(spans, "commit").is_empty()
        })
        .await;
    redrive.kill();
    receiver.respond_with(|arrival| Reply::status(if arrival.number < 3 { 500 } else { 200 }));
    gate.open();
    redrive.restart().await;
    let spans = ended(&collector, 1).await;
    assert_whole(&spans, "");
    assert_attempts(&spans, &[500, 200]);
    assert_eq!(format!("evt_{}", spans[0].trace), id(&event), "the trace id is derived from the event id");
    assert_eq!(the(&spans, "delivery").number("redrive.attempts"), 2);
    assert_eq!(named(&spans, "dispatch")[0].number("redrive.rescues"), 1);
    let reported: HashSet<_> =
        receiver.arrivals().iter().map(|one| one.header("traceparent").unwrap().to_owned()).collect();
    assert_eq!(reported.len(), 3, "each request has its own span");
    assert!(reported.iter().all(|parent| parent.starts_with(&format!("00-{}-", spans[0].trace))));
}

#[tokio::test]
async fn api_and_worker_nodes_produce_one_trace() {
    let (database, collector, receiver) =
        (Postgres::shared().await, Collector::start().await, Receiver::start().await);
    let start = |name: &'static str| {
        let setup = node(&database.url(), name).role(name);
        setup
            .env("REDRIVE_TRACING_OTLP_ENDPOINT", collector.url())
            .env("REDRIVE_TRACING_SAMPLE_RATIO", if name == "api" { "1" } else { "0" })
    };
    let (api_node, _worker) =
        tokio::join!(Redrive::start_with(start("api")), Redrive::start_with(start("worker")));
    let api = api_node.api();
    api.create_webhook(&receiver.url(), Value::Null).await;
    let event = publish(&api, &[], json!({"event_type": "order.created", "data": 1})).await;
    wait_for_event_status(&api, &event, "delivered").await;
    let spans = ended(&collector, 1).await;
    let spans = match named(&spans, "publish").len() {
        0 => collector.wait_until("the publish", |spans| !named(spans, "publish").is_empty()).await,
        _ => spans,
    };
    assert_whole(&spans, "");
    assert_attempts(&spans, &[200]);
    let made_by: BTreeMap<_, _> =
        spans.iter().map(|span| (&*span.name, text(&span.resource["service.instance.id"]))).collect();
    assert_eq!((made_by["publish"], made_by["commit"]), ("api", "api"));
    assert_eq!(
        (made_by["dispatch"], made_by["attempt"], made_by["delivery"]),
        ("worker", "worker", "worker")
    );
}

#[tokio::test]
async fn publisher_sampling_is_followed_and_the_ratio_applies_otherwise() {
    let (collector, receiver) = (Collector::start().await, Receiver::start().await);
    let sent = async |ratio: &str, headers: &[(&str, &str)]| {
        let redrive = Redrive::start_with(traced(&collector, ratio)).await;
        let (api, before) = (redrive.api(), receiver.count());
        api.create_webhook(&receiver.url(), Value::Null).await;
        let event = publish(&api, headers, json!({"event_type": "a", "data": 1})).await;
        wait_for_event_status(&api, &event, "delivered").await;
        let arrival = receiver.wait_for(before + 1).await.remove(before);
        // All spans are exported by the end of a shutdown.
        let mut redrive = redrive;
        redrive.signal("TERM");
        redrive.wait_exit(redrive_testkit::WAIT_TIMEOUT).await;
        let trace = arrival.header("traceparent").map(str::to_owned);
        let spans = collector.spans();
        let recorded =
            spans.iter().any(|span| span.name == "attempt" && span.text("redrive.event_id") == id(&event));
        (trace, arrival.header("tracestate").map(str::to_owned), recorded)
    };
    let (sampled, unsampled) = (parent("01"), parent("00"));
    assert_eq!(sent("0", &[]).await, (None, None, false));
    let (started, _, recorded) = sent("1", &[]).await;
    assert!(started.unwrap().ends_with("-03") && recorded);
    // An unsampled publisher is not recorded, and its context is forwarded unchanged.
    let passed = sent("1", &[("traceparent", &unsampled), ("tracestate", "a=1")]).await;
    assert_eq!(passed, (Some(unsampled), Some("a=1".into()), false));
    let (followed, _, recorded) = sent("0", &[("traceparent", &sampled)]).await;
    assert!(followed.unwrap().starts_with(&format!("00-{TRACE}-")) && recorded);
    assert_eq!(sent("0", &[("traceparent", "nonsense"), ("tracestate", "a=1")]).await, (None, None, false));
}

#[tokio::test]
async fn without_collector_only_the_publishers_context_is_forwarded() {
    let receiver = Receiver::start().await;
    let redrive = Redrive::start().await;
    let api = redrive.api();
    api.create_webhook(&receiver.url(), Value::Null).await;
    let of = async |n: usize| {
        let arrival = receiver.wait_for(n).await.remove(n - 1);
        (arrival.header("traceparent").map(str::to_owned), arrival.header("tracestate").map(str::to_owned))
    };
    publish(&api, &[], json!({"event_type": "a", "data": 1})).await;
    assert_eq!(of(1).await, (None, None));
    let headers = [("traceparent", &*parent("01")), ("tracestate", "a=1"), ("tracestate", "b=2")];
    publish(&api, &headers, json!({"event_type": "a", "data": 1})).await;
    assert_eq!(of(2).await, (Some(parent("01")), Some("a=1,b=2".into())));
    let batch = json!({"events": [{"event_type": "a", "data": 1}]}).to_string();
    let json = ("content-type", "application/json");
    api.raw("POST", "/v1/events/batch", &[json, headers[0]], batch).await.expect(202);
    assert_eq!(of(3).await, (Some(parent("01")), None));
    let cloudevent = json!({
        "specversion": "1.0", "id": "1", "source": "/s", "type": "a", "data": 1,
        "traceparent": parent("00"), "tracestate": "c=3",
    });
    let structured = ("content-type", "application/cloudevents+json");
    api.raw("POST", "/v1/events", &[structured], cloudevent.to_string()).await.expect(202);
    assert_eq!(of(4).await, (Some(parent("00")), Some("c=3".into())));
}

#[tokio::test]
async fn dead_delivery_is_marked_in_its_trace() {
    let (collector, receiver) = (Collector::start().await, Receiver::responding(404).await);
    let redrive = Redrive::start_with(traced(&collector, "1")).await;
    let api = redrive.api();
    api.create_webhook(&receiver.url(), Value::Null).await;
    let event = publish(&api, &[], json!({"event_type": "a", "data": 1})).await;
    let delivery = delivery_of(&api, &event).await;
    wait_for_status(&api, id(&delivery), "dead").await;
    let spans = ended(&collector, 1).await;
    assert_attempts(&spans, &[404]);
    assert_eq!(the(&spans, "attempt").text("error.type"), "client_error");
    let delivery = the(&spans, "delivery");
    assert_eq!((delivery.text("redrive.status"), delivery.error.is_some()), ("dead", true));
}

mod extended {
    use super::*;

    #[tokio::test]
    async fn hanging_or_unavailable_collector_blocks_nothing() {
        let (receiver, gate) = (Receiver::start().await, Latch::closed());
        let held = gate.clone();
        let hanging = Collector::with(move |_| Reply::status(200).latched_by(&held)).await;
        let setup = traced(&hanging, "1").env("REDRIVE_TRACING_TIMEOUT", "500ms");
        let mut redrive = Redrive::start_with(setup).await;
        let api = redrive.api();
        let webhook = json!({"max_in_flight": 50, "circuit_breaker_config": {"enabled": false}});
        api.create_webhook(&receiver.url(), webhook).await;
        // More spans than fit in the export queue: each event has six.
        let started = Instant::now();
        let mut sent = 0;
        for _ in 0..4 {
            let events: Vec<_> = (0..1000).map(|n| json!({"event_type": "a", "data": n})).collect();
            let response = api.post("/v1/events/batch", json!({"events": events})).await.expect(202);
            sent += response["data"].as_array().unwrap().len();
            receiver.wait_until("all of them", |arrivals| arrivals.len() >= sent).await;
        }
        println!("{sent} events delivered in {:?} while the collector hangs", started.elapsed());
        let metric = async |outcome: &str| {
            let metrics = String::from_utf8(api.get("/metrics").await.body.to_vec()).unwrap();
            let line = format!("redrive_spans_total{{outcome=\"{outcome}\"}} ");
            let value = metrics
                .lines()
                .find_map(|one| one.strip_prefix(&line))
                .unwrap_or_else(|| panic!("{metrics}"));
            value.parse::<u64>().unwrap()
        };
        assert!(metric("dropped").await > 0);
        redrive.wait_output("exporting spans failed").await;
        assert_eq!(redrive.output().matches("exporting spans failed").count(), 1);
        // The collector recovers, which is logged once; queued spans are exported.
        gate.open();
        redrive.wait_output("span export recovered").await;
        hanging.wait_until("spans that waited", |spans| spans.len() >= 512).await;
        assert!(metric("exported").await > 0);
        // The collector is gone for good: shutdown does not wait for it.
        drop(hanging);
        publish(&api, &[], json!({"event_type": "a", "data": 1})).await;
        redrive.signal("TERM");
        assert!(redrive.wait_exit(redrive_testkit::WAIT_TIMEOUT).await.success());
    }
}
