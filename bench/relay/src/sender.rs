//! Sends committed deliveries as signed POSTs, 64 concurrently, and passes their outcomes to the writer.
//! Every delivery is attempted once: the reference relay has no retries.

use std::{
    collections::VecDeque,
    fmt::Write as _,
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

use bytes::Bytes;
use hmac::{Hmac, KeyInit, Mac};
use http_body_util::{BodyExt, Full};
use hyper::{
    Method, Request, Uri,
    header::{CONTENT_TYPE, HeaderName, HeaderValue},
};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use sha2::Sha256;
use tokio::sync::{Semaphore, mpsc::UnboundedReceiver};
use uuid::Uuid;

use crate::writer::{Outcome, Publish, Writer};

const IN_FLIGHT: usize = 64;
const SECRET: &[u8] = b"the reference relay signs with this";

const WEBHOOK_ID: HeaderName = HeaderName::from_static("webhook-id");
const WEBHOOK_TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
const WEBHOOK_SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");

/// A committed delivery that waits for one of the 64 senders.
struct Job {
    event: Uuid,
    delivery: Uuid,
    created_at: i64,
    payload: Bytes,
}

/// Queue of waiting jobs. The semaphore holds one permit per job, so that one call wakes as many senders as a
/// commit has deliveries.
struct JobQueue {
    jobs: Mutex<VecDeque<Job>>,
    waiting: Semaphore,
}

impl JobQueue {
    fn put(&self, jobs: impl ExactSizeIterator<Item = Job>) {
        let count = jobs.len();
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner).extend(jobs);
        self.waiting.add_permits(count);
    }

    async fn take(&self) -> Option<Job> {
        self.waiting.acquire().await.ok()?.forget();
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }
}

/// Starts the senders and the task that feeds them.
pub(crate) fn spawn(sink: &Uri, committed: UnboundedReceiver<Vec<Publish>>, writer: &Writer) {
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    let client = Client::builder(TokioExecutor::new()).pool_max_idle_per_host(IN_FLIGHT).build(connector);
    let lane = Arc::new(JobQueue { jobs: Mutex::default(), waiting: Semaphore::new(0) });
    for _ in 0..IN_FLIGHT {
        let sender = Sender {
            lane: Arc::clone(&lane),
            client: client.clone(),
            sink: sink.clone(),
            mac: Hmac::new_from_slice(SECRET).expect("HMAC takes a key of any length"),
            writer: writer.clone(),
        };
        tokio::spawn(sender.run());
    }
    tokio::spawn(acknowledge_and_send(committed, lane));
}

/// Acknowledges the publishes of each commit, then queues their deliveries.
async fn acknowledge_and_send(mut committed: UnboundedReceiver<Vec<Publish>>, lane: Arc<JobQueue>) {
    while let Some(publishes) = committed.recv().await {
        lane.put(publishes.into_iter().map(|new| {
            // The event is delivered even if the publisher has disconnected.
            let _ = new.ack.send(());
            Job { event: new.event, delivery: new.delivery, created_at: new.created_at, payload: new.payload }
        }));
    }
}

struct Sender {
    lane: Arc<JobQueue>,
    client: Client<HttpConnector, Full<Bytes>>,
    sink: Uri,
    /// Initialized with the key once; each signature starts from a copy.
    mac: Hmac<Sha256>,
    writer: Writer,
}

impl Sender {
    async fn run(self) {
        while let Some(job) = self.lane.take().await {
            let delivery = job.delivery;
            let started = Instant::now();
            let http_status = self.send(job).await.unwrap_or(0);
            let duration_us = i64::try_from(started.elapsed().as_micros()).unwrap_or(i64::MAX);
            self.writer.record(Outcome { delivery, attempt: Uuid::now_v7(), http_status, duration_us });
        }
    }

    async fn send(&self, job: Job) -> Option<u16> {
        let response = self.client.request(self.request(job)).await.ok()?;
        let status = response.status().as_u16();
        // Read the body to its end; otherwise the connection cannot be reused.
        response.into_body().collect().await.ok()?;
        Some(status)
    }

    /// Signs `id.timestamp.payload`, as Standard Webhooks specifies.
    fn request(&self, job: Job) -> Request<Full<Bytes>> {
        let mut text = [0; uuid::fmt::Hyphenated::LENGTH];
        let id = job.event.hyphenated().encode_lower(&mut text);
        let timestamp = job.created_at.to_string();
        let mut mac = self.mac.clone();
        for part in [id.as_bytes(), b".", timestamp.as_bytes(), b".", &job.payload] {
            mac.update(part);
        }
        let mut signature = String::with_capacity(67);
        signature.push_str("v1,");
        for byte in mac.finalize().into_bytes() {
            let _ = write!(signature, "{byte:02x}");
        }
        let mut request = Request::new(Full::new(job.payload));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.sink.clone();
        let headers = request.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        for (name, value) in
            [(WEBHOOK_ID, &*id), (WEBHOOK_TIMESTAMP, &timestamp), (WEBHOOK_SIGNATURE, &signature)]
        {
            headers.insert(name, HeaderValue::from_str(value).expect("digits and letters"));
        }
        request
    }
}
