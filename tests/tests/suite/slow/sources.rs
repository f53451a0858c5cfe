//! Sources: messages on a RabbitMQ queue are published as events, each exactly once despite failures, and those
//! that cannot be published move to the reject queue with a reason.

use std::{
    collections::BTreeSet,
    future::Future,
    time::{Duration, Instant},
};

use redrive_testkit::{
    Postgres, Proxy, RabbitMq, ReceivedRequest, Receiver, Redrive, Reply, Setup, Vhost, WAIT_TIMEOUT,
    lapin::{
        BasicProperties, Connection, ConnectionProperties,
        options::QueueDeclareOptions,
        types::{AMQPValue, FieldTable},
    },
};
use redrive_tests::entries;
use serde_json::{Value, json};

/// The most units of work on a Tokio worker thread; see `redrive_engine::MAX_INLINE_COST_UNITS`.
const MAX_INLINE_COST_UNITS: u64 = 1 << 18;

/// Returns the setup of a server with one source, `shop`, which reads the queue `events`.
fn source(url: &str, more: &str) -> Setup {
    let source = format!(r#"[{{type = "amqp", name = "shop", url = "{url}", queue = "events"{more}}}]"#);
    Setup::new().env("REDRIVE_SOURCES", source)
}

async fn queues(vhost: &Vhost) {
    for queue in ["events", "events.rejected"] {
        vhost.declare(queue).await;
    }
}

fn plain() -> BasicProperties {
    BasicProperties::default()
}

fn numbered(n: usize) -> (BasicProperties, Vec<u8>) {
    let body = json!({"event_type": "order.created", "data": {"n": n}});
    (plain().with_message_id(format!("m{n}").into()), body.to_string().into_bytes())
}

fn numbers(arrivals: &[ReceivedRequest]) -> BTreeSet<u64> {
    arrivals.iter().map(|arrival| arrival.json()["data"]["n"].as_u64().unwrap()).collect()
}

/// Waits until `count` different events were received, asserts one event per message, and returns the number of
/// requests.
async fn all_arrive(receiver: &Receiver, count: usize) -> usize {
    let arrivals = receiver
        .wait_until(&format!("{count} different events"), |arrivals| numbers(arrivals).len() >= count)
        .await;
    assert_eq!(numbers(&arrivals), (0..count as u64).collect());
    let events: BTreeSet<_> = arrivals.iter().map(ReceivedRequest::webhook_id).collect();
    assert_eq!(events.len(), count, "no message was published twice");
    arrivals.len()
}

async fn eventually<T, F: Future<Output = Option<T>>>(what: &str, check: impl Fn() -> F) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = check().await {
            return found;
        }
        assert!(started.elapsed() < WAIT_TIMEOUT, "not within {WAIT_TIMEOUT:?}: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn is_empty(vhost: &Vhost, queue: &str) {
    eventually(&format!("{queue} to be empty"), || async {
        (vhost.messages(queue).await == 0).then_some(())
    })
    .await;
}

async fn metric(redrive: &Redrive, line: &str) -> Option<f64> {
    let text = redrive.api().get("/metrics").await.body;
    let text = String::from_utf8_lossy(&text).into_owned();
    text.lines().find_map(|found| found.strip_prefix(line)?.trim().parse().ok())
}

async fn wait_for_metric(redrive: &Redrive, line: &str, value: f64) {
    eventually(&format!("{line} {value}"), || async {
        (metric(redrive, line).await == Some(value)).then_some(())
    })
    .await;
}

fn table(headers: &[(&str, &str)]) -> FieldTable {
    let mut table = FieldTable::default();
    for (name, value) in headers {
        table.insert((*name).into(), AMQPValue::LongString((*value).into()));
    }
    table
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_in_every_format_are_published_in_order() {
    let (vhost, receiver) = (RabbitMq::shared().await, Receiver::start().await);
    queues(&vhost).await;
    let redrive = Redrive::start_with(source(&vhost.url(), "")).await;
    redrive.api().create_webhook(&receiver.url(), json!({"ordering_guarantee": "strict"})).await;
    let cloudevent =
        r#"{"specversion": "1.0", "id": "7", "source": "/shop", "type": "ce.whole", "data": {"n": 3}}"#;
    let attributes = [("specversion", "1.0"), ("id", "8"), ("source", "/shop"), ("type", "ce.parts")]
        .map(|(name, value)| (format!("cloudEvents:{name}"), value));
    let attributes: Vec<_> = attributes.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    let messages = [
        (
            plain().with_app_id("till".into()).with_priority(9),
            r#"{"event_type": "a.document", "data": {"n": 0}}"#,
        ),
        (plain().with_type("by.type".into()).with_message_id("m1".into()), " {\"n\": 1,  \"as\": \"it is\"}"),
        (plain().with_headers(table(&[("event-type", "by.header"), ("subject", "order 2")])), r#"{"n": 2}"#),
        (plain().with_content_type("application/cloudevents+json".into()), cloudevent),
        (plain().with_headers(table(&attributes)), r#"{"n": 4}"#),
    ];
    let messages = messages.into_iter().map(|(properties, body)| (properties, body.into())).collect();
    vhost.publish_all("events", messages).await;
    let arrivals = receiver.wait_for(5).await;
    let types: Vec<_> = arrivals.iter().map(|arrival| arrival.header("x-webhook-event").unwrap()).collect();
    assert_eq!(types, ["a.document", "by.type", "by.header", "ce.whole", "ce.parts"]);
    let sent: Vec<_> = arrivals.iter().map(|arrival| arrival.json()["data"]["n"].as_u64().unwrap()).collect();
    assert_eq!(sent, [0, 1, 2, 3, 4]);
    assert!(arrivals[1].body.ends_with(b"\"data\":{\"n\": 1,  \"as\": \"it is\"}}"), "byte for byte");
    assert_eq!(
        (&arrivals[0].json()["source"], &arrivals[2].json()["subject"]),
        (&json!("till"), &json!("order 2"))
    );
    let events = entries(&redrive.api().get("/v1/events").await.expect(200));
    let of = |name: &str| events.iter().find(|event| event["event_type"] == name).unwrap().clone();
    assert_eq!(
        (&of("a.document")["priority"], &of("by.type")["priority"]),
        (&json!("high"), &json!("normal"))
    );
    assert_eq!(of("by.type")["idempotency_key"], "m1");
    is_empty(&vhost, "events").await;
    assert_eq!(vhost.depth("events.rejected").await, 0);
    wait_for_metric(&redrive, r#"redrive_source_messages_total{source="shop",outcome="published"}"#, 5.0)
        .await;
    wait_for_metric(&redrive, r#"redrive_source_up{source="shop"}"#, 1.0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn large_messages_are_parsed_off_the_runtime_in_order() {
    let (vhost, receiver) = (RabbitMq::shared().await, Receiver::start().await);
    queues(&vhost).await;
    let redrive = Redrive::start_with(source(&vhost.url(), "")).await;
    redrive.api().create_webhook(&receiver.url(), json!({"ordering_guarantee": "strict"})).await;
    let message = |n: usize, bytes: usize| {
        json!({"event_type": "order.created", "data": {"n": n, "padding": "x".repeat(bytes)}}).to_string()
    };
    let small = 20_000;
    for n in 0..6 {
        let bytes = if n % 2 == 0 { 200_000 } else { small };
        vhost.publish("events", plain(), message(n, bytes).as_bytes()).await;
    }
    let arrivals = receiver.wait_for(6).await;
    let order: Vec<_> =
        arrivals.iter().map(|arrival| arrival.json()["data"]["n"].as_u64().unwrap()).collect();
    assert_eq!(order, [0, 1, 2, 3, 4, 5]);
    let inline = metric(&redrive, "redrive_inline_work_max").await.unwrap();
    assert!(inline >= small as f64, "the small messages were counted: {inline}");
    assert!(inline <= MAX_INLINE_COST_UNITS as f64, "{inline} units on the runtime");
}

#[tokio::test(flavor = "multi_thread")]
async fn redelivered_message_is_published_once() {
    let (vhost, receiver) = (RabbitMq::shared().await, Receiver::start().await);
    queues(&vhost).await;
    let redrive = Redrive::start_with(source(&vhost.url(), "")).await;
    redrive.api().create_webhook(&receiver.url(), Value::Null).await;
    let with_key = br#"{"event_type": "order.created", "data": {"n": 1}, "idempotency_key": "own"}"#.to_vec();
    vhost.publish_all("events", vec![numbered(0), numbered(0), numbered(0)]).await;
    // The idempotency key in the document takes precedence over the message id.
    let keyed = |id: &str| (plain().with_message_id(id.into()), with_key.clone());
    vhost.publish_all("events", vec![keyed("x"), keyed("y"), numbered(2)]).await;
    // The same key with another body is an error, so the message is rejected.
    vhost
        .publish("events", plain().with_message_id("m0".into()), br#"{"event_type": "other", "data": 1}"#)
        .await;
    let rejected = eventually("the reject", || vhost.get("events.rejected")).await;
    assert_eq!(rejected.header("x-redrive-code").unwrap(), "idempotency_key_reused");
    assert_eq!(all_arrive(&receiver, 3).await, 3);
    wait_for_metric(&redrive, r#"redrive_source_messages_total{source="shop",outcome="duplicate"}"#, 3.0)
        .await;
    is_empty(&vhost, "events").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_messages_are_rejected_with_the_reason() {
    let (vhost, receiver) = (RabbitMq::shared().await, Receiver::start().await);
    queues(&vhost).await;
    vhost.declare("copies").await;
    let redrive = Redrive::start_with(source(&vhost.url(), "")).await;
    let api = redrive.api();
    api.create_webhook(&receiver.url(), Value::Null).await;
    let schema = json!({"type": "object", "required": ["n"]});
    api.post("/v1/event-types", json!({"name": "strict.type", "schema": schema})).await.expect(201);
    let large = format!(r#"{{"event_type": "large", "data": "{}"}}"#, "x".repeat(300_000));
    for (body, code, says) in [
        ("no json", "invalid_json", "expected"),
        ("[1]", "invalid_body", "JSON object"),
        (r#"{"event_type": "a b", "data": 1}"#, "invalid_field", "event_type"),
        (r#"{"event_type": "a", "data": 1, "tenant_id": "other"}"#, "invalid_field", "tenant_id"),
        (r#"{"event_type": "redrive.x", "data": 1}"#, "invalid_field", "reserved for Redrive"),
        (r#"{"event_type": "strict.type", "data": {}}"#, "schema_violation", "\"n\""),
        (large.as_str(), "payload_too_large", "300002 bytes"),
    ] {
        // The message has a `CC` header, which makes a copy when it is published, and a user id, which the broker checks.
        let mut headers = table(&[("trace", "t1")]);
        headers
            .insert("CC".into(), AMQPValue::FieldArray(vec![AMQPValue::LongString("copies".into())].into()));
        let properties =
            plain().with_message_id("m1".into()).with_user_id("guest".into()).with_headers(headers);
        vhost.publish("events", properties.with_expiration("3600000".into()), body.as_bytes()).await;
        let rejected = eventually("the reject", || vhost.get("events.rejected")).await;
        let header = |name: &str| rejected.header(name).unwrap_or_else(|| panic!("no {name}: {rejected:?}"));
        assert_eq!(header("x-redrive-code"), code, "{rejected:?}");
        assert!(header("x-redrive-reason").contains(says), "{}", header("x-redrive-reason"));
        assert_eq!(
            (header("x-redrive-source").as_str(), header("x-redrive-queue").as_str()),
            ("shop", "events")
        );
        assert_eq!((rejected.body.as_slice(), header("trace").as_str()), (body.as_bytes(), "t1"));
        assert_eq!(rejected.properties.message_id().as_ref().unwrap().as_str(), "m1");
        assert_eq!(rejected.properties.delivery_mode(), &Some(2));
        assert_eq!(rejected.properties.expiration(), &None, "a rejected message does not expire");
    }
    assert_eq!(vhost.depth("copies").await, 7, "one event per message");
    vhost.publish_all("events", vec![numbered(0)]).await;
    all_arrive(&receiver, 1).await;
    is_empty(&vhost, "events").await;
    wait_for_metric(&redrive, r#"redrive_source_messages_total{source="shop",outcome="rejected"}"#, 7.0)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn message_stays_queued_while_reject_queue_is_full() {
    let (vhost, receiver) = (RabbitMq::shared().await, Receiver::start().await);
    vhost.declare("events").await;
    // A reject queue whose limit is one message.
    let connection = Connection::connect(&vhost.url(), ConnectionProperties::default()).await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    let mut full = table(&[("x-overflow", "reject-publish")]);
    full.insert("x-max-length".into(), AMQPValue::LongInt(1));
    let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    channel.queue_declare("events.rejected".into(), durable, full).await.unwrap();
    let redrive = Redrive::start_with(source(&vhost.url(), "")).await;
    redrive.api().create_webhook(&receiver.url(), Value::Null).await;
    vhost
        .publish_all("events", vec![(plain(), b"bad 1".to_vec()), (plain(), b"bad 2".to_vec()), numbered(0)])
        .await;
    redrive.wait_output("moving a message to the reject queue failed").await;
    all_arrive(&receiver, 1).await;
    assert_eq!(vhost.depth("events.rejected").await, 1);
    eventually("one that stays", || async { (vhost.messages("events").await == 1).then_some(()) }).await;
    let mut found = BTreeSet::new();
    for _ in 0..2 {
        let rejected = eventually("a reject", || vhost.get("events.rejected")).await;
        found.insert(String::from_utf8(rejected.body).unwrap());
    }
    assert_eq!(found.iter().map(String::as_str).collect::<Vec<_>>(), ["bad 1", "bad 2"]);
    is_empty(&vhost, "events").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_while_consuming_loses_nothing() {
    const COUNT: usize = 400;
    let vhost = RabbitMq::shared().await;
    let receiver = Receiver::with(|_| Reply::status(200).after(Duration::from_millis(5))).await;
    queues(&vhost).await;
    let mut redrive = Redrive::start_with(source(&vhost.url(), ", prefetch = 50")).await;
    redrive.api().create_webhook(&receiver.url(), Value::Null).await;
    vhost.publish_all("events", (0..COUNT).map(numbered).collect()).await;
    for kill_at in [60, 200] {
        receiver.wait_for(kill_at).await;
        redrive.kill();
        redrive.restart().await;
    }
    let requests = all_arrive(&receiver, COUNT).await;
    println!("{COUNT} messages over two kills: {requests} requests");
    is_empty(&vhost, "events").await;
    assert_eq!(vhost.depth("events.rejected").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_share_a_queue_and_take_over_messages_of_a_killed_node() {
    const COUNT: usize = 300;
    let (vhost, database) = (RabbitMq::shared().await, Postgres::shared().await);
    let receiver = Receiver::with(|_| Reply::status(200).after(Duration::from_millis(5))).await;
    queues(&vhost).await;
    let node = |name: &str, role: &str| {
        let setup = source(&vhost.url(), ", prefetch = 20").database_url(database.url()).role(role);
        Redrive::start_with(setup.env("REDRIVE_NODE", name).env("REDRIVE_CLUSTER_LEASE", "2s"))
    };
    let (mut one, two, worker) =
        (node("one", "api").await, node("two", "all").await, node("three", "worker").await);
    two.api().create_webhook(&receiver.url(), json!({"max_in_flight": 20})).await;
    for api in [&one, &two] {
        wait_for_metric(api, r#"redrive_source_up{source="shop"}"#, 1.0).await;
    }
    vhost.publish_all("events", (0..COUNT).map(numbered).collect()).await;
    receiver.wait_for(30).await;
    one.kill();
    all_arrive(&receiver, COUNT).await;
    is_empty(&vhost, "events").await;
    assert!(!worker.output().contains("source is consuming"), "a worker consumes no messages");
}

#[tokio::test(flavor = "multi_thread")]
async fn repeated_disconnects_neither_lose_nor_duplicate() {
    const COUNT: usize = 600;
    let (vhost, receiver) = (RabbitMq::shared().await, Receiver::start().await);
    queues(&vhost).await;
    let proxy = Proxy::to(vhost.address()).await;
    let redrive = Redrive::start_with(source(&vhost.url_through(&proxy), ", prefetch = 20")).await;
    redrive.api().create_webhook(&receiver.url(), Value::Null).await;
    vhost.publish_all("events", (0..COUNT).map(numbered).collect()).await;
    for cut in 1..6 {
        receiver.wait_for(cut * COUNT / 6).await;
        proxy.cut();
    }
    all_arrive(&receiver, COUNT).await;
    println!("{} connections", proxy.connection_count());
    assert!(proxy.connection_count() >= 5, "some connections were cut");
    is_empty(&vhost, "events").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_wait_while_the_store_is_unavailable() {
    let (vhost, receiver) = (RabbitMq::shared().await, Receiver::start().await);
    let mut postgres = Postgres::start().await;
    queues(&vhost).await;
    let setup = source(&vhost.url(), ", prefetch = 20").database_url(postgres.url());
    let redrive = Redrive::start_with(setup).await;
    redrive.api().create_webhook(&receiver.url(), json!({"ordering_guarantee": "strict"})).await;
    vhost.publish_all("events", (0..10).map(numbered).collect()).await;
    receiver.wait_for(10).await;
    postgres.kill().await;
    vhost.publish_all("events", (10..60).map(numbered).collect()).await;
    redrive.wait_output("source paused: events cannot be stored").await;
    wait_for_metric(&redrive, r#"redrive_source_messages_waiting{source="shop"}"#, 20.0).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!((vhost.messages("events").await, vhost.depth("events.rejected").await), (50, 0));
    assert_eq!(
        redrive.output().matches("source paused: events cannot be stored").count(),
        1,
        "one log record per outage"
    );
    postgres.start_again().await;
    let started = Instant::now();
    assert_eq!(all_arrive(&receiver, 60).await, 60);
    println!("all there {:?} after the store was back", started.elapsed());
    let order: Vec<_> =
        receiver.arrivals().iter().map(|arrival| arrival.json()["data"]["n"].as_u64().unwrap()).collect();
    assert!(order.is_sorted(), "{order:?}");
    is_empty(&vhost, "events").await;
}

/// Returns the numbers of all events of the default tenant, in the order in which they were stored.
async fn stored_numbers(postgres: &Postgres) -> Vec<usize> {
    let rows = postgres.query("SELECT convert_from(data, 'UTF8') FROM events ORDER BY seq").await;
    let number = |row: &Vec<String>| serde_json::from_str::<Value>(&row[0]).unwrap()["n"].as_u64().unwrap();
    rows.iter().map(|row| number(row) as usize).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn queue_order_is_kept_despite_failing_commits() {
    const MESSAGES: usize = 4_000;
    let (vhost, postgres) = (RabbitMq::shared().await, Postgres::start().await);
    queues(&vhost).await;
    let proxy = Proxy::to(postgres.address()).await;
    let setup = source(&vhost.url(), ", prefetch = 500").database_url(postgres.url_through(&proxy));
    let redrive = Redrive::start_with(setup).await;
    wait_for_metric(&redrive, r#"redrive_source_up{source="shop"}"#, 1.0).await;
    vhost.publish_all("events", (0..MESSAGES).map(numbered).collect()).await;
    // Each cut fails the commits in flight; later ones get new connections.
    let (mut next_cut, started) = (200, Instant::now());
    loop {
        let stored = postgres.query("SELECT count(*) FROM events").await[0][0].parse::<usize>().unwrap();
        if stored >= MESSAGES {
            break;
        }
        if stored >= next_cut {
            proxy.cut();
            next_cut = stored + 400;
        }
        assert!(started.elapsed() < 6 * WAIT_TIMEOUT, "only {stored} of {MESSAGES} events are stored");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert_eq!(stored_numbers(&postgres).await, (0..MESSAGES).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_over_quota_or_without_tenant_wait() {
    let (vhost, receiver) = (RabbitMq::shared().await, Receiver::start().await);
    queues(&vhost).await;
    let redrive = Redrive::start_with(source(&vhost.url(), r#", tenant = "acme""#)).await;
    let api = redrive.api();
    vhost.publish_all("events", (0..5).map(numbered).collect()).await;
    redrive.wait_output("there is no such tenant").await;
    assert_eq!(vhost.messages("events").await, 5);
    let quotas = json!({"id": "acme", "quotas": {"max_events_per_day": 3}});
    api.post("/v1/tenants", quotas).await.expect(201);
    api.create_webhook(&receiver.url(), json!({"tenant_id": "acme"})).await;
    eventually("three events", || async {
        let events = entries(&api.get("/v1/events?tenant_id=acme").await.expect(200));
        (events.len() == 3).then_some(())
    })
    .await;
    redrive.wait_output("its quota of 3 events per day").await;
    assert_eq!((vhost.messages("events").await, vhost.depth("events.rejected").await), (2, 0));
    api.patch("/v1/tenants/acme", json!({"quotas": {"max_events_per_day": 100}})).await.expect(200);
    is_empty(&vhost, "events").await;
    let events = entries(&api.get("/v1/events?tenant_id=acme").await.expect(200));
    assert_eq!(events.len(), 5);
    assert!(entries(&api.get("/v1/events").await.expect(200)).is_empty(), "the default tenant has no events");
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_queue_is_reported_and_awaited() {
    let (vhost, receiver) = (RabbitMq::shared().await, Receiver::start().await);
    let redrive = Redrive::start_with(source(&vhost.url(), "")).await;
    redrive.api().create_webhook(&receiver.url(), Value::Null).await;
    redrive.wait_output("no queue \\\"events\\\"; create it, or set declare = true").await;
    vhost.declare("events").await;
    redrive.wait_output("no queue \\\"events.rejected\\\"").await;
    vhost.declare("events.rejected").await;
    redrive.wait_output("source is consuming").await;
    vhost.publish_all("events", vec![numbered(0)]).await;
    all_arrive(&receiver, 1).await;
    // A queue that is deleted at run time is reported, and found again.
    vhost.ctl(&["delete_queue", "events"]).await;
    redrive.wait_output("perhaps the queue was deleted").await;
    vhost.declare("events").await;
    vhost.publish_all("events", vec![numbered(1)]).await;
    all_arrive(&receiver, 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn shutdown_finishes_consumed_messages_and_leaves_the_rest() {
    const COUNT: usize = 500;
    let (vhost, receiver) = (RabbitMq::shared().await, Receiver::start().await);
    queues(&vhost).await;
    let mut redrive = Redrive::start_with(source(&vhost.url(), ", prefetch = 10")).await;
    redrive.api().create_webhook(&receiver.url(), Value::Null).await;
    vhost.publish_all("events", (0..COUNT).map(numbered).collect()).await;
    receiver.wait_for(20).await;
    redrive.signal("TERM");
    let status = redrive.wait_exit(WAIT_TIMEOUT).await;
    assert!(status.success(), "{status}");
    let left = vhost.messages("events").await as usize;
    assert_eq!(vhost.depth("events").await as usize, left, "no message is unacknowledged");
    redrive.restart().await;
    println!("{left} of {COUNT} were left");
    assert!(left > 0, "the shutdown came while messages were left");
    all_arrive(&receiver, COUNT).await;
    // Only the remaining messages are published after the restart, and none twice.
    wait_for_metric(
        &redrive,
        r#"redrive_source_messages_total{source="shop",outcome="published"}"#,
        left as f64,
    )
    .await;
    wait_for_metric(&redrive, r#"redrive_source_messages_total{source="shop",outcome="duplicate"}"#, 0.0)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_settings_are_refused_without_printing_the_password() {
    for (more, says) in [
        (", prefetch = 0", "sources[0].prefetch: must be from 1 to 5000"),
        (r#", reject_queue = "events""#, "sources[0].reject_queue: must be another queue"),
        (r#", event_type = "a b""#, "sources[0].event_type: "),
        (r#", qeue = "x""#, "unknown field `qeue`"),
    ] {
        let output = source("amqp://me:hush@127.0.0.1:1/x", more).run_to_end().await;
        let message =
            String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
        assert!(!output.status.success() && message.contains(says) && !message.contains("hush"), "{message}");
    }
}

mod extended {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn source_reconnects_after_broker_failures() {
        let (mut rabbitmq, receiver) = (RabbitMq::start().await, Receiver::start().await);
        let mut redrive = Redrive::start_with(source(&rabbitmq.url(), ", declare = true")).await;
        redrive.api().create_webhook(&receiver.url(), Value::Null).await;
        wait_for_metric(&redrive, r#"redrive_source_up{source="shop"}"#, 1.0).await;
        rabbitmq.publish_all("events", (0..50).map(numbered).collect()).await;
        receiver.wait_for(10).await;
        rabbitmq.kill().await;
        wait_for_metric(&redrive, r#"redrive_source_up{source="shop"}"#, 0.0).await;
        rabbitmq.start_again().await;
        rabbitmq.publish_all("events", (50..100).map(numbered).collect()).await;
        let started = Instant::now();
        all_arrive(&receiver, 100).await;
        println!("all there {:?} after the broker was back", started.elapsed());
        // A broker that is briefly unresponsive is not treated as disconnected.
        rabbitmq.freeze();
        wait_for_metric(&redrive, r#"redrive_source_up{source="shop"}"#, 1.0).await;
        rabbitmq.thaw();
        rabbitmq.publish_all("events", (100..110).map(numbered).collect()).await;
        all_arrive(&receiver, 110).await;
        // On a broker that restarts empty, the queues are declared again.
        rabbitmq.restart_empty().await;
        wait_for_metric(&redrive, r#"redrive_source_up{source="shop"}"#, 1.0).await;
        rabbitmq.publish_all("events", (110..120).map(numbered).collect()).await;
        all_arrive(&receiver, 120).await;
        // An unresponsive broker does not prevent shutdown.
        rabbitmq.freeze();
        redrive.signal("TERM");
        let status = redrive.wait_exit(WAIT_TIMEOUT / 2).await;
        assert!(status.success(), "{status}");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn broker_memory_alarm_delays_only_rejects() {
        let (rabbitmq, receiver) = (RabbitMq::start_with_tls().await, Receiver::start().await);
        for queue in ["events", "events.rejected"] {
            rabbitmq.declare(queue).await;
        }
        let mut messages: Vec<_> = (0..30).map(numbered).collect();
        messages.insert(3, (plain(), b"bad".to_vec()));
        rabbitmq.publish_all("events", messages).await;
        rabbitmq.ctl(&["set_vm_memory_high_watermark", "absolute", "1MB"]).await;
        // A user that may only read the one queue and publish rejects.
        rabbitmq.ctl(&["add_user", "reader", "s3cret"]).await;
        rabbitmq.ctl(&["set_permissions", "-p", "/", "reader", "^$", r"^amq\.default$", "^events$"]).await;
        let url = rabbitmq.url().replace("guest:guest", "reader:s3cret");
        let url = format!("{url}?cacertfile={}", rabbitmq.ca_path().display());
        let redrive = Redrive::start_with(source(&url, "")).await;
        redrive.api().create_webhook(&receiver.url(), Value::Null).await;
        // The broker blocks publishers, which includes the reject.
        let messages = || async { (rabbitmq.messages("events").await == 1).then_some(()) };
        eventually("one message that is left", messages).await;
        assert_eq!(rabbitmq.messages("events.rejected").await, 0);
        rabbitmq.ctl(&["set_vm_memory_high_watermark", "absolute", "1GB"]).await;
        let rejected = eventually("the reject", || rabbitmq.get("events.rejected")).await;
        assert_eq!(rejected.body, b"bad");
        let empty = || async { (rabbitmq.messages("events").await == 0).then_some(()) };
        eventually("an empty queue", empty).await;
    }
}
