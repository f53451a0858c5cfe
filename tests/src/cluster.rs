//! A cluster of nodes on one PostgreSQL, and publishers that use whichever node responds.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use parking_lot::Mutex;
use redrive_testkit::{Api, ReceivedRequest, Redrive, Setup};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::{entries, id, text};

/// The cluster lease in these suites: how long a node may be silent before the others take over.
pub const LEASE: Duration = Duration::from_secs(2);

/// Returns the setup of one node of a cluster.
pub fn node(url: &str, name: &str) -> Setup {
    Setup::new()
        .database_url(url)
        .env("REDRIVE_NODE", name)
        .env("REDRIVE_CLUSTER_LEASE", format!("{}s", LEASE.as_secs()))
}

/// Starts `count` nodes with all roles, named a, b, c and so on.
pub async fn nodes(url: &str, count: usize) -> Vec<Redrive> {
    let mut nodes = Vec::new();
    for name in ["a", "b", "c", "d"].into_iter().take(count) {
        nodes.push(Redrive::start_with(node(url, name)).await);
    }
    nodes
}

/// An acknowledged event.
#[derive(Clone, Debug)]
pub struct Acked {
    /// The idempotency key, which is also the payload.
    pub key: String,
    /// The event id.
    pub event: String,
}

/// Publishers that run until stopped. Each event is sent again, with the same key and to another node, until it is
/// acknowledged.
pub struct PublishLoad {
    stop: Arc<AtomicBool>,
    publishers: JoinSet<Vec<Acked>>,
    apis: Arc<Mutex<Vec<Api>>>,
    refused: Arc<Mutex<Vec<String>>>,
}

impl PublishLoad {
    /// Starts this many publishers to these nodes, each with a pause between two events.
    pub fn start(apis: Vec<Api>, publishers: usize, pause: Duration) -> Self {
        let (stop, apis) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(apis)));
        let refused = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = JoinSet::new();
        for publisher in 0..publishers {
            tasks.spawn(publish(publisher, apis.clone(), pause, stop.clone(), refused.clone()));
        }
        Self { stop, publishers: tasks, apis, refused }
    }

    /// Makes the publishers use these nodes from now on.
    pub fn use_nodes(&self, apis: Vec<Api>) {
        *self.apis.lock() = apis;
    }

    /// Returns the responses to publishes that were not acknowledged.
    pub fn refused(&self) -> Vec<String> {
        self.refused.lock().clone()
    }

    /// Lets every publisher finish its current event, and returns all acknowledged events.
    pub async fn finish(self) -> Vec<Acked> {
        self.stop.store(true, Relaxed);
        self.publishers.join_all().await.into_iter().flatten().collect()
    }
}

async fn publish(
    publisher: usize,
    apis: Arc<Mutex<Vec<Api>>>,
    pause: Duration,
    stop: Arc<AtomicBool>,
    refused: Arc<Mutex<Vec<String>>>,
) -> Vec<Acked> {
    let mut acked: Vec<Acked> = Vec::new();
    let mut turn = publisher;
    while !stop.load(Relaxed) {
        let key = format!("{publisher}-{}", acked.len());
        let event = json!({"event_type": "fleet.test", "idempotency_key": key, "data": {"key": key}});
        loop {
            turn += 1;
            let api = {
                let apis = apis.lock();
                apis[turn % apis.len()].clone()
            };
            match api.try_post("/v1/events", &event).await {
                Ok(response) if matches!(response.status, 200 | 202) => {
                    acked.push(Acked { key, event: id(&response.json()).to_owned() });
                    break;
                }
                Ok(response) => {
                    assert_eq!(response.status, 503, "{:?}", response.json());
                    refused.lock().push(response.problem());
                }
                Err(error) => refused.lock().push(error),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        tokio::time::sleep(pause).await;
    }
    acked
}

/// Waits until no delivery is pending, and returns all deliveries.
pub async fn wait_until_settled(api: &Api) -> Vec<Value> {
    let over = |page: &Value| page["data"].as_array().is_some_and(Vec::is_empty);
    api.wait_until("every delivery has ended", "/v1/deliveries?status=pending&limit=1", over).await;
    let mut deliveries = Vec::new();
    let mut path = "/v1/deliveries?limit=500".to_owned();
    loop {
        let page = api.get(&path).await.expect(200);
        deliveries.extend(entries(&page));
        match page["next_cursor"].as_str() {
            Some(cursor) => path = format!("/v1/deliveries?limit=500&cursor={cursor}"),
            None => return deliveries,
        }
    }
}

/// Asserts that each acknowledged event was delivered once to each of `webhooks` webhooks, and that every received
/// event was acknowledged.
pub fn assert_no_loss(acked: &[Acked], deliveries: &[Value], arrivals: &[ReceivedRequest], webhooks: usize) {
    let by_event: HashMap<&str, &str> = acked.iter().map(|acked| (&*acked.event, &*acked.key)).collect();
    assert_eq!(by_event.len(), acked.len(), "one event for each key");
    for delivery in deliveries {
        assert_eq!(delivery["status"], "delivered", "{delivery:#}");
        assert!(by_event.contains_key(text(&delivery["event_id"])), "never acknowledged: {delivery:#}");
    }
    assert_eq!(deliveries.len(), webhooks * acked.len(), "one delivery for each event and webhook");
    let arrived: HashSet<_> = arrivals.iter().map(|one| (one.webhook_id(), &*one.path)).collect();
    assert_eq!(arrived.len(), webhooks * acked.len(), "every delivery was received");
    for arrival in arrivals {
        let body = arrival.json();
        assert_eq!(by_event.get(arrival.webhook_id()).copied(), body["data"]["key"].as_str(), "{body}");
    }
}

/// Returns the number of received requests beyond the recorded attempts of their deliveries.
pub fn duplicates(deliveries: &[Value], arrivals: &[ReceivedRequest]) -> usize {
    let mut sent: HashMap<&str, usize> = HashMap::new();
    for arrival in arrivals {
        *sent.entry(arrival.header("x-webhook-delivery").unwrap_or_default()).or_default() += 1;
    }
    let beyond = |delivery: &Value| {
        let recorded = delivery["attempt_count"].as_u64().unwrap_or_default() as usize;
        sent.get(id(delivery)).copied().unwrap_or(0).saturating_sub(recorded)
    };
    deliveries.iter().map(beyond).sum()
}
