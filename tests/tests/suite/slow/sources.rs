//! Events that other services put on a queue of RabbitMQ: all of them arrive, each once, whatever breaks meanwhile,
//! and what cannot be published is kept with the reason.

use std::{
    collections::BTreeSet,
    future::Future,
    time::{Duration, Instant},
};

use redrive_testkit::{
    Arrival, PATIENCE, Postgres, Proxy, RabbitMq, Receiver, Redrive, Reply, Setup, Vhost,
    lapin::{
        BasicProperties, Connection, ConnectionProperties,
        options::QueueDeclareOptions,
        types::{AMQPValue, FieldTable},
    },
};
use redrive_tests::entries;
use serde_json::{Value, json};

/// A server with one source, `shop`, which reads the queue `events`.
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

fn numbers(arrivals: &[Arrival]) -> BTreeSet<u64> {
    arrivals.iter().map(|arrival| arrival.json()["data"]["n"].as_u64().unwrap()).collect()
}

/// Waits until all of these have arrived, and says how many requests that took; one event for each.
async fn all_arrive(receiver: &Receiver, count: usize) -> usize {
    let arrivals = receiver
        .wait_until(&format!("{count} different events"), |arrivals| numbers(arrivals).len() >= count)
        .await;
    assert_eq!(numbers(&arrivals), (0..count as u64).collect());
    let events: BTreeSet<_> = arrivals.iter().map(Arrival::webhook_id).collect();
    assert_eq!(events.len(), count, "no message was published twice");
    arrivals.len()
}

async fn eventually<T, F: Future<Output = Option<T>>>(what: &str, look: impl Fn() -> F) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(began.elapsed() < PATIENCE, "waited {PATIENCE:?} in vain for {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn is_empty(vhost: &Vhost, queue: &str) {
    eventually(&format!("{queue} to be empty"), || async {
        (vhost.messages(queue).await == 0).then_some(())
    })
    .await;
}

async fn figure(redrive: &Redrive, line: &str) -> Option<f64> {
    let text = redrive.api().get("/metrics").await.body;
    let text = String::from_utf8_lossy(&text).into_owned();
    text.lines().find_map(|found| found.strip_prefix(line)?.trim().parse().ok())
}

async fn figure_is(redrive: &Redrive, line: &str, value: f64) {
    eventually(&format!("{line} {value}"), || async {
        (figure(redrive, line).await == Some(value)).then_some(())
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
async fn messages_in_every_form_are_published_in_their_order() {
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
    figure_is(&redrive, r#"redrive_source_messages_total{source="shop",outcome="published"}"#, 5.0).await;
    figure_is(&redrive, r#"redrive_source_up{source="shop"}"#, 1.0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_comes_twice_is_published_once() {
    let (vhost, receiver) = (RabbitMq::shared().await, Receiver::start().await);
    queues(&vhost).await;
    let redrive = Redrive::start_with(source(&vhost.url(), "")).await;
    redrive.api().create_webhook(&receiver.url(), Value::Null).await;
    let with_key = br#"{"event_type": "order.created", "data": {"n": 1}, "idempotency_key": "own"}"#.to_vec();
    vhost.publish_all("events", vec![numbered(0), numbered(0), numbered(0)]).await;
    // Its own key is what counts, whatever the messages are called.
    let keyed = |id: &str| (plain().with_message_id(id.into()), with_key.clone());
    vhost.publish_all("events", vec![keyed("x"), keyed("y"), numbered(2)]).await;
    // The same key for something else is a mistake that somebody has to look at.
    vhost
        .publish("events", plain().with_message_id("m0".into()), br#"{"event_type": "other", "data": 1}"#)
        .await;
    let rejected = eventually("the reject", || vhost.get("events.rejected")).await;
    assert_eq!(rejected.header("x-redrive-code").unwrap(), "idempotency_key_reused");
    assert_eq!(all_arrive(&receiver, 3).await, 3);
    figure_is(&redrive, r#"redrive_source_messages_total{source="shop",outcome="duplicate"}"#, 3.0).await;
    is_empty(&vhost, "events").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_published_is_put_away_with_the_reason() {
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
        (r#"{"event_type": "redrive.x", "data": 1}"#, "invalid_field", "Redrive alone"),
        (r#"{"event_type": "strict.type", "data": {}}"#, "schema_violation", "\"n\""),
        (large.as_str(), "payload_too_large", "300002 bytes"),
    ] {
        // The sender asks for a copy, which it gets when it sends, and has a name that the server checks.
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
        assert_eq!(rejected.properties.expiration(), &None, "it stays until somebody looks");
    }
    assert_eq!(vhost.depth("copies").await, 7, "one for each, and no more");
    vhost.publish_all("events", vec![numbered(0)]).await;
    all_arrive(&receiver, 1).await;
    is_empty(&vhost, "events").await;
    figure_is(&redrive, r#"redrive_source_messages_total{source="shop",outcome="rejected"}"#, 7.0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_put_away_stays_and_holds_nobody_up() {
    let (vhost, receiver) = (RabbitMq::shared().await, Receiver::start().await);
    vhost.declare("events").await;
    // A queue for rejects that is full with one.
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
    redrive.wait_output("cannot be put away either").await;
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
async fn a_server_that_is_killed_in_the_middle_loses_nothing() {
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
async fn nodes_share_a_queue_and_one_that_dies_leaves_its_messages_to_the_others() {
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
        figure_is(api, r#"redrive_source_up{source="shop"}"#, 1.0).await;
    }
    vhost.publish_all("events", (0..COUNT).map(numbered).collect()).await;
    receiver.wait_for(30).await;
    one.kill();
    all_arrive(&receiver, COUNT).await;
    is_empty(&vhost, "events").await;
    assert!(!worker.output().contains("a source takes messages in"), "who only sends takes nothing in");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_is_killed_and_comes_back_is_found_again() {
    let (mut rabbitmq, receiver) = (RabbitMq::start().await, Receiver::start().await);
    let mut redrive = Redrive::start_with(source(&rabbitmq.url(), ", declare = true")).await;
    redrive.api().create_webhook(&receiver.url(), Value::Null).await;
    figure_is(&redrive, r#"redrive_source_up{source="shop"}"#, 1.0).await;
    rabbitmq.publish_all("events", (0..50).map(numbered).collect()).await;
    receiver.wait_for(10).await;
    rabbitmq.kill().await;
    figure_is(&redrive, r#"redrive_source_up{source="shop"}"#, 0.0).await;
    rabbitmq.start_again().await;
    rabbitmq.publish_all("events", (50..100).map(numbered).collect()).await;
    let began = Instant::now();
    all_arrive(&receiver, 100).await;
    println!("all there {:?} after the broker was back", began.elapsed());
    // One that stands still for a moment is waited for.
    rabbitmq.freeze();
    figure_is(&redrive, r#"redrive_source_up{source="shop"}"#, 1.0).await;
    rabbitmq.thaw();
    rabbitmq.publish_all("events", (100..110).map(numbered).collect()).await;
    all_arrive(&receiver, 110).await;
    // One that comes back empty is given its queues again.
    rabbitmq.restart_empty().await;
    figure_is(&redrive, r#"redrive_source_up{source="shop"}"#, 1.0).await;
    rabbitmq.publish_all("events", (110..120).map(numbered).collect()).await;
    all_arrive(&receiver, 120).await;
    // One that never answers does not keep a server from stopping.
    rabbitmq.freeze();
    redrive.signal("TERM");
    let status = redrive.wait_exit(PATIENCE / 2).await;
    assert!(status.success(), "{status}");
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_are_cut_all_the_time_lose_and_double_nothing() {
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
    println!("{} connections", proxy.seen());
    assert!(proxy.seen() >= 5, "some were cut");
    is_empty(&vhost, "events").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_wait_while_the_store_is_away() {
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
    redrive.wait_output("messages of a source wait").await;
    figure_is(&redrive, r#"redrive_source_waiting{source="shop"}"#, 20.0).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!((vhost.messages("events").await, vhost.depth("events.rejected").await), (50, 0));
    assert_eq!(redrive.output().matches("messages of a source wait").count(), 1, "one line, not a flood");
    postgres.start_again().await;
    let began = Instant::now();
    assert_eq!(all_arrive(&receiver, 60).await, 60);
    println!("all there {:?} after the store was back", began.elapsed());
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    let order: Vec<_> =
        receiver.arrivals().iter().map(|arrival| arrival.json()["data"]["n"].as_u64().unwrap()).collect();
    assert!(order.is_sorted(), "{order:?}");
    is_empty(&vhost, "events").await;
}

/// The numbers of all events of the default tenant, in the order in which they were stored.
async fn stored_numbers(postgres: &Postgres) -> Vec<usize> {
    let rows = postgres.query("SELECT convert_from(data, 'UTF8') FROM events ORDER BY seq").await;
    let number = |row: &Vec<String>| serde_json::from_str::<Value>(&row[0]).unwrap()["n"].as_u64().unwrap();
    rows.iter().map(|row| number(row) as usize).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn events_keep_the_order_of_the_queue_through_failing_commits() {
    const MESSAGES: usize = 4_000;
    let (vhost, postgres) = (RabbitMq::shared().await, Postgres::start().await);
    queues(&vhost).await;
    let proxy = Proxy::to(postgres.address()).await;
    let setup = source(&vhost.url(), ", prefetch = 500").database_url(postgres.url_through(&proxy));
    let redrive = Redrive::start_with(setup).await;
    figure_is(&redrive, r#"redrive_source_up{source="shop"}"#, 1.0).await;
    vhost.publish_all("events", (0..MESSAGES).map(numbered).collect()).await;
    // Each cut fails the commits that are in flight; those after them find new connections.
    let (mut next_cut, began) = (200, Instant::now());
    loop {
        let stored = postgres.query("SELECT count(*) FROM events").await[0][0].parse::<usize>().unwrap();
        if stored >= MESSAGES {
            break;
        }
        if stored >= next_cut {
            proxy.cut();
            next_cut = stored + 400;
        }
        assert!(began.elapsed() < 6 * PATIENCE, "only {stored} of {MESSAGES} events are stored");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert_eq!(stored_numbers(&postgres).await, (0..MESSAGES).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_beyond_a_quota_or_without_a_tenant_wait() {
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
    redrive.wait_output("its 3 events of today").await;
    assert_eq!((vhost.messages("events").await, vhost.depth("events.rejected").await), (2, 0));
    api.patch("/v1/tenants/acme", json!({"quotas": {"max_events_per_day": 100}})).await.expect(200);
    is_empty(&vhost, "events").await;
    let events = entries(&api.get("/v1/events?tenant_id=acme").await.expect(200));
    assert_eq!(events.len(), 5);
    assert!(
        entries(&api.get("/v1/events").await.expect(200)).is_empty(),
        "the default tenant has none of it"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_is_missing_is_told_and_waited_for() {
    let (vhost, receiver) = (RabbitMq::shared().await, Receiver::start().await);
    let redrive = Redrive::start_with(source(&vhost.url(), "")).await;
    redrive.api().create_webhook(&receiver.url(), Value::Null).await;
    redrive.wait_output("there is no queue \\\"events\\\"; make it, or set declare = true").await;
    vhost.declare("events").await;
    redrive.wait_output("there is no queue \\\"events.rejected\\\"").await;
    vhost.declare("events.rejected").await;
    redrive.wait_output("a source takes messages in").await;
    vhost.publish_all("events", vec![numbered(0)]).await;
    all_arrive(&receiver, 1).await;
    // Deleted meanwhile: told, and found again.
    vhost.ctl(&["delete_queue", "events"]).await;
    redrive.wait_output("perhaps the queue was deleted").await;
    vhost.declare("events").await;
    vhost.publish_all("events", vec![numbered(1)]).await;
    all_arrive(&receiver, 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_told_to_stop_finishes_what_it_has_and_leaves_the_rest() {
    const COUNT: usize = 500;
    let (vhost, receiver) = (RabbitMq::shared().await, Receiver::start().await);
    queues(&vhost).await;
    let mut redrive = Redrive::start_with(source(&vhost.url(), ", prefetch = 10")).await;
    redrive.api().create_webhook(&receiver.url(), Value::Null).await;
    vhost.publish_all("events", (0..COUNT).map(numbered).collect()).await;
    receiver.wait_for(20).await;
    redrive.signal("TERM");
    let status = redrive.wait_exit(PATIENCE).await;
    assert!(status.success(), "{status}");
    let left = vhost.messages("events").await as usize;
    assert_eq!(vhost.depth("events").await as usize, left, "nobody has any of them");
    redrive.restart().await;
    println!("{left} of {COUNT} were left");
    assert!(left > 0, "it stopped in the middle");
    all_arrive(&receiver, COUNT).await;
    // Every message that was let go of was published, and none besides.
    figure_is(&redrive, r#"redrive_source_messages_total{source="shop",outcome="published"}"#, left as f64)
        .await;
    figure_is(&redrive, r#"redrive_source_messages_total{source="shop",outcome="duplicate"}"#, 0.0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_short_of_memory_holds_up_rejects_alone() {
    let (rabbitmq, receiver) = (RabbitMq::start_with_tls().await, Receiver::start().await);
    for queue in ["events", "events.rejected"] {
        rabbitmq.declare(queue).await;
    }
    let mut messages: Vec<_> = (0..30).map(numbered).collect();
    messages.insert(3, (plain(), b"bad".to_vec()));
    rabbitmq.publish_all("events", messages).await;
    rabbitmq.ctl(&["set_vm_memory_high_watermark", "absolute", "1MB"]).await;
    // A user that may read the one queue and put messages away, and nothing else.
    rabbitmq.ctl(&["add_user", "reader", "s3cret"]).await;
    rabbitmq.ctl(&["set_permissions", "-p", "/", "reader", "^$", r"^amq\.default$", "^events$"]).await;
    let url = rabbitmq.url().replace("guest:guest", "reader:s3cret");
    let url = format!("{url}?cacertfile={}", rabbitmq.ca_path().display());
    let redrive = Redrive::start_with(source(&url, "")).await;
    redrive.api().create_webhook(&receiver.url(), Value::Null).await;
    // Those who publish are stopped, and the reject is one of them.
    let messages = || async { (rabbitmq.messages("events").await == 1).then_some(()) };
    eventually("one message that is left", messages).await;
    assert_eq!(rabbitmq.messages("events.rejected").await, 0);
    rabbitmq.ctl(&["set_vm_memory_high_watermark", "absolute", "1GB"]).await;
    let rejected = eventually("the reject", || rabbitmq.get("events.rejected")).await;
    assert_eq!(rejected.body, b"bad");
    let empty = || async { (rabbitmq.messages("events").await == 0).then_some(()) };
    eventually("an empty queue", empty).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_that_cannot_be_are_refused_at_the_start_without_the_password() {
    for (more, says) in [
        (", prefetch = 0", "sources[0].prefetch: must be from 1 to 5000"),
        (r#", reject_queue = "events""#, "sources[0].reject_queue: must be another queue"),
        (r#", event_type = "a b""#, "sources[0].event_type: "),
        (r#", qeue = "x""#, "unknown field `qeue`"),
    ] {
        let output = source("amqp://me:hush@127.0.0.1:1/x", more).run_to_end().await;
        let said =
            String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
        assert!(!output.status.success() && said.contains(says) && !said.contains("hush"), "{said}");
    }
}
