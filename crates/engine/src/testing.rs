//! A data path without services, on a real store with one webhook, for unit tests of components. A test replaces the port
//! of the component that it tests by a fake.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use redrive_core::{
    DeliveryId, EventId, TenantId, Time, WebhookId,
    delivery::lane::{Lane, Priority},
    event::{Event, PayloadFormat, event_type::Pattern},
    webhook::{Webhook, WebhookSpec, WebhookState},
};
use redrive_egress::Client;
use redrive_store::{
    Store,
    sqlite::{Options, Sqlite},
};
use tempfile::TempDir;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use crate::{
    EventDraft, Metrics, Settings,
    assemble::{Base, DataPath},
    clock::{self, Clock},
    cluster::membership::{self, Membership},
    dispatch::{Admission, DeliveryHandler, EndWithoutAttempt, LeasedDelivery, UnsettledDelivery},
    supervision::Faults,
};

pub(crate) const START: Time = Time::from_secs(1_700_000_000);

/// Keeps what the dispatcher starts, instead of sending it.
#[derive(Default)]
pub(crate) struct Started {
    pub(crate) deliveries: Mutex<Vec<UnsettledDelivery>>,
    pub(crate) ended: Mutex<Vec<UnsettledDelivery>>,
}

impl DeliveryHandler for Started {
    fn start_attempt(self: Arc<Self>, delivery: UnsettledDelivery, _admission: Admission) {
        self.deliveries.lock().push(delivery);
    }

    fn end(&self, delivery: UnsettledDelivery, _end: EndWithoutAttempt) {
        self.ended.lock().push(delivery);
    }
}

/// The components, and what the dispatcher has started.
pub(crate) struct TestPath {
    pub(crate) base: Base,
    pub(crate) path: DataPath,
    pub(crate) started: Arc<Started>,
    pub(crate) webhook_id: WebhookId,
    _folder: TempDir,
}

impl TestPath {
    pub(crate) async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let options = Options::at(folder.path().join("t.db")).with_vault(redrive_testkit::vault());
        let store: Arc<dyn Store> = Arc::new(Sqlite::open(&options).unwrap());
        let (clock, settings) = (Clock::manual(START), Settings::default());
        let joined = membership::join(&*store, &clock, &settings).await.unwrap();
        let (stop, registry) = (CancellationToken::new(), &mut Registry::default());
        let base = Base {
            membership: Arc::new(Membership::new(false, settings.lease, &joined, stop.clone())),
            metrics: Arc::new(Metrics::new(registry, settings.breakdowns, false)),
            settings: Arc::new(settings),
            wakeups: Arc::default(),
            faults: Faults::new(),
            tokio: Handle::current(),
            store,
            clock,
            stop,
        };
        let egress = Client::new(redrive_egress::Config::new(clock::monotonic_now)).unwrap();
        let path = base.build_data_path(egress, None, false);
        let started = Arc::new(Started::default());
        let effects: Arc<dyn DeliveryHandler> = started.clone();
        path.dispatcher.set_handler(Arc::downgrade(&effects));
        let webhook = test_webhook();
        let webhook_id = webhook.id;
        assert!(base.store.create_webhook(webhook).await.is_ok());
        path.router.load_tenant(&TenantId::default()).await.unwrap();
        Self { base, path, started, webhook_id, _folder: folder }
    }

    /// Returns a delivery of the webhook that is leased to this node and unknown to the dispatcher.
    pub(crate) fn leased(&self, tenant_id: &TenantId, n: u8) -> LeasedDelivery {
        LeasedDelivery {
            id: DeliveryId::new(START, &[n; 10]),
            epoch: self.base.membership.current_epoch(),
            webhook_id: self.webhook_id,
            lane: Lane::Unordered { priority: Priority::Normal, retry: false },
            event: Arc::new(Event {
                id: EventId::new(START, &[n; 10]),
                tenant_id: tenant_id.clone(),
                event_type: "order.created".into(),
                data: Bytes::from_static(b"{}"),
                timestamp: START,
                idempotency_key: None,
                source: None,
                subject: None,
                priority: Priority::Normal,
                metadata: None,
                trace: None,
                hops: 0,
            }),
            format: PayloadFormat::Envelope,
            attempt: 1,
            created_at: START,
            due: START,
            abnormal_releases: 0,
            crash_count: 0,
            publish_started_at: None,
        }
    }

    /// Returns a delivery that the dispatcher has started.
    pub(crate) async fn started_delivery(&self) -> UnsettledDelivery {
        let receipt = self.path.publisher.publish_for_tenant(draft(1)).await.unwrap();
        assert_eq!(receipt.deliveries, Some(1));
        self.started.deliveries.lock().pop().unwrap()
    }

    /// Returns how many leases are to be released.
    pub(crate) fn to_release(&self) -> usize {
        let queue = &self.path.dispatcher.release_queue;
        queue.next_batch(&Default::default(), None, usize::MAX).map_or(0, |(_, batch)| batch.len())
    }
}

fn test_webhook() -> Webhook {
    Webhook {
        id: WebhookId::new(START, &clock::random_id_bytes()),
        tenant_id: TenantId::default(),
        spec: WebhookSpec {
            url: "http://127.0.0.1:9/".into(),
            events: vec![Pattern::All],
            ..WebhookSpec::default()
        },
        secrets: Vec::new(),
        state: WebhookState::Active,
        created_at: START,
        updated_at: START,
    }
}

pub(crate) fn draft(n: usize) -> EventDraft {
    EventDraft {
        tenant_id: TenantId::default(),
        event_type: "order.created".into(),
        data: Bytes::from(format!("{{\"n\":{n}}}")),
        idempotency_key: None,
        source: None,
        subject: None,
        metadata: None,
        priority: Priority::Normal,
        only_webhook: None,
        edited: None,
        trace: None,
        hops: 0,
    }
}
