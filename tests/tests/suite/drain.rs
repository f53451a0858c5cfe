//! Shutdown: Redrive finishes requests in flight, releases queued deliveries, and loses nothing.

use std::{
    collections::{HashMap, HashSet},
    time::{Duration, Instant},
};

use redrive_testkit::{Latch, ReceivedRequest, Receiver, Redrive, Reply, Setup, WAIT_TIMEOUT};
use redrive_tests::{attempts_of, column, delivery_of, id, text, wait_for_event_status, wait_for_status};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinSet,
};

const SHUTTING_DOWN: &str = "shutting down: waiting for requests in flight";
/// The time a process would wait for requests in flight if the tests did not shorten it.
const DEFAULT_DRAIN_TIMEOUT: Duration = Duration::from_secs(30);

/// Starts a receiver that holds every response until the latch opens.
async fn held(gate: &Latch) -> Receiver {
    let gate = gate.clone();
    Receiver::with(move |_| Reply::status(200).latched_by(&gate)).await
}

#[tokio::test]
async fn requests_in_flight_finish_and_queued_deliveries_are_sent_once() {
    let gate = Latch::closed();
    let receiver = held(&gate).await;
    let mut redrive = Redrive::start().await;
    let api = redrive.api();
    api.create_webhook(&receiver.url(), json!({"max_in_flight": 1})).await;
    let mut events = Vec::new();
    for n in 0..6 {
        events.push(api.publish("order.created", json!(n)).await);
    }
    receiver.wait_for(1).await;

    redrive.signal("TERM");
    redrive.wait_output(SHUTTING_DOWN).await;
    gate.open();
    assert_eq!(redrive.wait_exit(WAIT_TIMEOUT).await.code(), Some(0));
    let sent = receiver.count();
    assert!(sent < events.len(), "most deliveries were only queued");

    redrive.restart().await;
    let api = redrive.api();
    for event in &events {
        let delivery = wait_for_event_status(&api, event, "delivered").await;
        assert_eq!(delivery["attempt_count"], 1);
        assert_eq!(column(&attempts_of(&api, id(&delivery)).await, "status"), ["success"]);
    }
    assert_eq!(receiver.count(), events.len(), "each once, the one in flight included");
    let first = wait_for_event_status(&api, &events[0], "delivered").await;
    let worker = attempts_of(&api, id(&first)).await[0]["worker"].clone();
    let last = wait_for_event_status(&api, &events[5], "delivered").await;
    assert_ne!(
        attempts_of(&api, id(&last)).await[0]["worker"],
        worker,
        "another process sent the remaining deliveries"
    );
}

#[tokio::test]
async fn request_past_drain_timeout_is_aborted_and_recorded_failed() {
    let gate = Latch::closed();
    let receiver = held(&gate).await;
    let mut redrive = Redrive::start_with(Setup::new().env("REDRIVE_SERVER_DRAIN_TIMEOUT", "1s")).await;
    let api = redrive.api();
    api.create_webhook(&receiver.url(), json!({"retry_config": {"schedule": [0, 3600]}})).await;
    let event = api.publish("order.created", json!({})).await;
    receiver.wait_for(1).await;
    let reported = Instant::now();
    redrive.signal("TERM");
    assert_eq!(redrive.wait_exit(WAIT_TIMEOUT).await.code(), Some(0));
    let took = reported.elapsed();
    assert!(took >= Duration::from_millis(900) && took < DEFAULT_DRAIN_TIMEOUT, "it took {took:?}");

    receiver.respond_with(|_| Reply::status(200));
    redrive.restart().await;
    let api = redrive.api();
    let delivery = wait_for_status(&api, id(&delivery_of(&api, &event).await), "pending").await;
    assert_eq!((&delivery["waiting_on"], &delivery["attempt_count"]), (&json!("schedule"), &json!(1)));
    let attempts = attempts_of(&api, id(&delivery)).await;
    assert_eq!(column(&attempts, "status"), ["failed"]);
    assert_eq!(attempts[0]["failure_category"], "timeout");
    assert!(text(&attempts[0]["error_message"]).contains("shutting down"), "{:#}", attempts[0]);
    api.post(&format!("/v1/deliveries/{}/retry", id(&delivery)), json!({})).await.expect(202);
    wait_for_status(&api, id(&delivery), "delivered").await;
    assert_eq!(receiver.count(), 2);
}

#[tokio::test]
async fn second_signal_exits_immediately() {
    let gate = Latch::closed();
    let receiver = held(&gate).await;
    let mut redrive = Redrive::start().await;
    let api = redrive.api();
    api.create_webhook(&receiver.url(), Value::Null).await;
    let event = api.publish("order.created", json!({})).await;
    receiver.wait_for(1).await;
    redrive.signal("INT");
    redrive.wait_output(SHUTTING_DOWN).await;
    redrive.signal("TERM");
    assert_eq!(redrive.wait_exit(WAIT_TIMEOUT).await.code(), Some(130));

    // Whether the first request succeeded is unknown, so the delivery is sent again: at least once.
    gate.open();
    redrive.restart().await;
    wait_for_event_status(&redrive.api(), &event, "delivered").await;
    assert_eq!(receiver.count(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn publishes_during_shutdown_are_rejected_or_delivered() {
    let receiver = Receiver::with(|_| Reply::status(200).after(Duration::from_millis(5))).await;
    let mut redrive = Redrive::start().await;
    let api = redrive.api();
    api.create_webhook(&receiver.url(), json!({"max_in_flight": 20})).await;
    let mut publishers = JoinSet::new();
    for publisher in 0..8 {
        let api = api.clone();
        publishers.spawn(async move {
            let mut acked = Vec::new();
            // Publishes until the server stops accepting connections.
            for n in 0.. {
                let event = json!({"event_type": "order.created", "data": [publisher, n]});
                match api.try_post("/v1/events", event).await {
                    Ok(response) if response.status == 202 => acked.push(id(&response.json()).to_owned()),
                    Ok(response) => assert_eq!(response.status, 503, "{response:?}"),
                    Err(_) => break,
                }
            }
            acked
        });
    }
    receiver.wait_for(100).await;
    redrive.signal("TERM");
    assert_eq!(redrive.wait_exit(WAIT_TIMEOUT).await.code(), Some(0));
    let acked: HashSet<String> = publishers.join_all().await.into_iter().flatten().collect();

    redrive.restart().await;
    let over = |page: &Value| page["data"].as_array().unwrap().is_empty();
    redrive.api().wait_until("an end", "/v1/deliveries?status=pending&limit=1", over).await;
    let mut arrived: HashMap<String, usize> = HashMap::new();
    for arrival in receiver.arrivals() {
        *arrived.entry(arrival.webhook_id().to_owned()).or_default() += 1;
    }
    let lost: Vec<_> = acked.iter().filter(|event| !arrived.contains_key(*event)).collect();
    assert!(lost.is_empty(), "{} of {} lost: {lost:?}", lost.len(), acked.len());
    let twice: Vec<_> = arrived.iter().filter(|(_, count)| **count > 1).collect();
    assert!(twice.is_empty(), "sent twice although no request was aborted: {twice:?}");
    println!("drain: {} acknowledged, {} received, none twice", acked.len(), arrived.len());
}

#[tokio::test]
async fn stopping_server_is_not_ready() {
    let gate = Latch::closed();
    let receiver = held(&gate).await;
    let mut redrive = Redrive::start().await;
    let api = redrive.api();
    assert_eq!(api.get("/readyz").await.status, 200);
    assert_eq!(api.get("/healthz").await.status, 200);
    api.create_webhook(&receiver.url(), Value::Null).await;
    api.publish("order.created", json!({})).await;
    receiver.wait_for(1).await;
    redrive.signal("TERM");
    redrive.wait_output(SHUTTING_DOWN).await;
    // A refused connection and a 503 both make a load balancer use another node.
    match api.try_raw("GET", "/readyz", &[], "").await {
        Ok(response) => assert_eq!((response.status, &*response.problem()), (503, "draining")),
        Err(error) => assert!(error.contains("connection") || error.contains("refused"), "{error}"),
    }
    gate.open();
    assert_eq!(redrive.wait_exit(WAIT_TIMEOUT).await.code(), Some(0));
}

#[tokio::test]
async fn slow_client_does_not_extend_drain_timeout() {
    let gate = Latch::closed();
    let receiver = held(&gate).await;
    let mut redrive = Redrive::start_with(Setup::new().env("REDRIVE_SERVER_DRAIN_TIMEOUT", "1s")).await;
    let api = redrive.api();
    api.create_webhook(&receiver.url(), Value::Null).await;
    api.publish("order.created", json!({})).await;
    receiver.wait_for(1).await;
    // A publisher that stalls in the middle of its request.
    let mut slow = TcpStream::connect(redrive.address()).await.unwrap();
    let head = format!(
        "POST /v1/events HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\n\
         content-type: application/json\r\ncontent-length: 100\r\nexpect: 100-continue\r\n\r\n",
        redrive.key()
    );
    slow.write_all(head.as_bytes()).await.unwrap();
    // The server sends `100 Continue`: from here on the request is in progress.
    slow.read_exact(&mut [0; 12]).await.unwrap();
    let reported = Instant::now();
    redrive.signal("TERM");
    assert_eq!(redrive.wait_exit(WAIT_TIMEOUT).await.code(), Some(0));
    let took = reported.elapsed();
    assert!(took < DEFAULT_DRAIN_TIMEOUT, "a deadline of 1 s became {took:?}");
}

#[tokio::test]
async fn scheduled_retries_survive_a_shutdown() {
    let receiver = Receiver::with(|arrival: &ReceivedRequest| match arrival.number {
        1 => Reply::status(500),
        _ => Reply::status(200),
    })
    .await;
    let mut redrive = Redrive::start().await;
    let api = redrive.api();
    api.create_webhook(&receiver.url(), json!({"retry_config": {"schedule": [0, 1], "jitter": 0}})).await;
    let event = api.publish("order.created", json!({})).await;
    let delivery = delivery_of(&api, &event).await;
    let first = redrive_tests::attempts_when(&api, id(&delivery), 1).await.remove(0);
    redrive.signal("TERM");
    assert_eq!(redrive.wait_exit(WAIT_TIMEOUT).await.code(), Some(0));
    redrive.restart().await;
    wait_for_status(&redrive.api(), id(&delivery), "delivered").await;
    let attempts = attempts_of(&redrive.api(), id(&delivery)).await;
    assert_eq!(attempts.len(), 2);
    assert!(
        redrive_tests::millis(&attempts[1]["executed_at"]) >= redrive_tests::millis(&first["next_retry_at"])
    );
}
