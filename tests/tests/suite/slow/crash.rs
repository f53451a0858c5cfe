//! Repeated kills under load: every acknowledged event is delivered, and nothing else is.
//!
//! Checked from outside, by the responses to publishers, the requests to receivers and the history.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use redrive_testkit::{Api, ApiResponse, ReceivedRequest, Receiver, Redrive, Reply, Setup};
use redrive_tests::{
    attempts_of,
    cluster::{duplicates, wait_until_settled},
    entries, id, text,
};
use serde_json::{Value, json};
use tokio::{sync::watch, task::JoinSet};

const KILLS: usize = 20;
const MAX_IN_FLIGHT: usize = 32;
const PUBLISHERS: usize = 6;
/// The interval between two publishes of one publisher: enough load that work is always in progress.
const PACE: Duration = Duration::from_millis(4);

/// One event, repeated by its publisher until it was acknowledged.
#[derive(Debug)]
struct Acked {
    key: String,
    event: String,
}

/// Publishes one event after the other, each repeated with the same key until it is acknowledged.
async fn publish(
    api: Api,
    publisher: usize,
    mut running: watch::Receiver<bool>,
    stop: Arc<AtomicUsize>,
) -> Vec<Acked> {
    let mut acked = Vec::new();
    while stop.load(Relaxed) == 0 {
        let key = format!("{publisher}-{}", acked.len());
        let event = json!({"event_type": "crash.test", "idempotency_key": key, "data": {"key": key, "pad": "x".repeat(200)}});
        loop {
            running.wait_for(|running| *running).await.unwrap();
            match api.try_post("/v1/events", &event).await {
                Ok(response) if matches!(response.status, 200 | 202) => {
                    acked.push(Acked { key, event: id(&response.json()).to_owned() });
                    break;
                }
                Ok(response) => assert_eq!(response.status, 503, "{:?}", response.json()),
                // Killed during the request: whether the event was stored is unknown, so it is sent again.
                Err(_) => tokio::time::sleep(PACE).await,
            }
        }
        tokio::time::sleep(PACE).await;
    }
    acked
}

/// Returns slow responses for some deliveries and initial failures for others, chosen by a hash of the delivery
/// id.
fn respond(arrival: &ReceivedRequest) -> Reply {
    let rng = arrival
        .header("x-webhook-delivery")
        .unwrap()
        .bytes()
        .fold(0u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
    let attempt = arrival.header("x-webhook-attempt").unwrap();
    match (&*arrival.path, rng % 8) {
        ("/failing", 0 | 1) if attempt == "1" => Reply::status(500),
        ("/failing", 2) if attempt == "1" || attempt == "2" => Reply::status(503),
        ("/slow", 0) => Reply::status(200).after(Duration::from_millis(150)),
        ("/slow", 1 | 2) => Reply::status(204).after(Duration::from_millis(30)),
        _ => Reply::status(200),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_events_survive_kills_under_load() {
    let started = Instant::now();
    let receiver = Receiver::with(respond).await;
    let setup = Setup::new().env("REDRIVE_DELIVERY_MAX_IN_FLIGHT", MAX_IN_FLIGHT.to_string());
    let mut redrive = Redrive::start_with(setup).await;
    let api = redrive.api();
    for path in ["/fast", "/slow", "/failing"] {
        let retries = json!({"schedule": [0, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1], "timeout_ms": 10_000});
        // These initial failures would open a circuit.
        let options = json!({
            "retry_config": retries,
            "max_in_flight": 16,
            "circuit_breaker_config": {"enabled": false},
        });
        api.create_webhook(&receiver.url_at(path), options).await;
    }

    let (running, is_running) = watch::channel(true);
    let stop = Arc::new(AtomicUsize::new(0));
    let mut publishers = JoinSet::new();
    for publisher in 0..PUBLISHERS {
        publishers.spawn(publish(api.clone(), publisher, is_running.clone(), stop.clone()));
    }
    for kill in 0..KILLS {
        // Kills while work is in progress, at a different point each time.
        receiver.wait_for(receiver.count() + 300 + 59 * (kill % 7)).await;
        running.send_replace(false);
        redrive.restart().await;
        running.send_replace(true);
    }
    stop.store(1, Relaxed);
    let acked: Vec<Acked> = publishers.join_all().await.into_iter().flatten().collect();

    let deliveries = wait_until_settled(&api).await;
    let arrivals = receiver.arrivals();
    no_loss(&acked, &deliveries, &arrivals);
    let twice = duplicates(&deliveries, &arrivals);
    assert!(twice <= KILLS * MAX_IN_FLIGHT, "{twice} duplicates");
    attempts_without_gaps(&api, &deliveries).await;
    println!(
        "crash: {} events acknowledged, {} deliveries, {} arrivals, {twice} duplicates (at most {}), \
         0 lost, {KILLS} kills, {:.1} s",
        acked.len(),
        deliveries.len(),
        arrivals.len(),
        KILLS * MAX_IN_FLIGHT,
        started.elapsed().as_secs_f64(),
    );
}

fn no_loss(acked: &[Acked], deliveries: &[Value], arrivals: &[ReceivedRequest]) {
    let keys: HashSet<&str> = acked.iter().map(|acked| &*acked.key).collect();
    let by_event: HashMap<&str, &str> = acked.iter().map(|acked| (&*acked.event, &*acked.key)).collect();
    assert_eq!((keys.len(), by_event.len()), (acked.len(), acked.len()), "one event for each key");

    for delivery in deliveries {
        assert_eq!(delivery["status"], "delivered", "{delivery:#}");
        assert!(by_event.contains_key(text(&delivery["event_id"])), "never acknowledged: {delivery:#}");
    }
    assert_eq!(deliveries.len(), 3 * acked.len(), "one delivery for each event and webhook");

    let mut arrived = HashSet::new();
    for arrival in arrivals {
        // A received event has the id and the payload of an acknowledged publish.
        let body = arrival.json();
        assert_eq!(by_event.get(arrival.webhook_id()).copied(), body["data"]["key"].as_str(), "{body}");
        arrived.insert((arrival.webhook_id(), &*arrival.path));
    }
    let lost: Vec<_> = acked
        .iter()
        .flat_map(|acked| ["/fast", "/slow", "/failing"].map(|path| (&*acked.event, path)))
        .filter(|owed| !arrived.contains(owed))
        .collect();
    assert!(lost.is_empty(), "{} lost: {lost:?}", lost.len());
}

/// Asserts that attempts are numbered from 1 without gaps, and that only the last one succeeded.
async fn attempts_without_gaps(api: &Api, deliveries: &[Value]) {
    let several = deliveries.iter().filter(|delivery| delivery["attempt_count"] != 1);
    for delivery in several.clone().take(300).chain(deliveries.iter().take(50)) {
        let attempts = attempts_of(api, id(delivery)).await;
        let numbers: Vec<_> = attempts.iter().map(|attempt| attempt["number"].as_u64().unwrap()).collect();
        let expected: Vec<_> = (1..=delivery["attempt_count"].as_u64().unwrap()).collect();
        assert_eq!(numbers, expected, "{delivery:#}");
        let successes = attempts.iter().filter(|attempt| attempt["status"] == "success").count();
        assert_eq!(successes, 1, "{attempts:#?}");
        assert_eq!(attempts.last().unwrap()["status"], "success", "{attempts:#?}");
    }
    assert!(several.count() > 0, "some attempts failed on purpose");
}

#[tokio::test]
async fn one_key_creates_one_event_across_kills() {
    let receiver = Receiver::start().await;
    let mut redrive = Redrive::start().await;
    let api = redrive.api();
    api.create_webhook(&receiver.url(), Value::Null).await;
    let event = json!({"event_type": "crash.key", "idempotency_key": "the one", "data": 1});
    let mut ids = HashSet::new();
    for _ in 0..3 {
        let mut publishers = JoinSet::new();
        for _ in 0..20 {
            let (api, event) = (api.clone(), event.clone());
            publishers.spawn(async move { api.try_post("/v1/events", event).await });
        }
        // Killed right after the first response, with the other requests in flight.
        let first = publishers.join_next().await.unwrap().unwrap();
        redrive.restart().await;
        let responses = [first].into_iter().chain(publishers.join_all().await);
        let acked = responses.filter_map(Result::ok).filter(|response: &ApiResponse| response.status < 300);
        ids.extend(acked.map(|response| id(&response.json()).to_owned()));
    }
    ids.insert(id(&api.post("/v1/events", &event).await.expect(200)).to_owned());
    assert_eq!(ids.len(), 1, "{ids:?}");
    let arrivals = receiver.wait_for(1).await;
    assert!(arrivals.iter().all(|arrival| ids.contains(arrival.webhook_id())));
    assert_eq!(entries(&api.get("/v1/events").await.expect(200)).len(), 1);
}
