//! Test harness of the cases: a store, a tenant with a webhook, a node, and ids from a counter.
//!
//! It uses no clock and no random values: a case names its times, so that a failure is reproducible.

use redrive_core::delivery::outcome::{AttemptStatus, Outcome};
use std::{
    any::Any,
    collections::BTreeSet,
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use bytes::Bytes;
use redrive_core::{
    AttemptId, DeadReason, DeliveryId, DeliveryStatus, EventId, FailureCategory, Role, TenantId, Time,
    WebhookId,
    delivery::lane::{Lane, Priority},
    event::{Event, PayloadFormat, event_type::Pattern},
    id::RandomBytes,
    protection::breaker::{CircuitState, Counts, SavedCircuit},
    security::signature::{LiveSecret, Secret},
    tenancy::{DEFAULT_POOL, TenantRules},
    webhook::{ManagedBy, Webhook, WebhookSpec, WebhookState},
};
use tokio::sync::oneshot;

use super::{Opened, Reopen, history};
use crate::{
    Attempt, CancelResult, ClaimedDelivery, Delivery, DeliveryCursor, DeliveryFilter, DueLanes, Epoch,
    InitialState, LaneCapacity, LaneClaim, LaneKey, NewDelivery, NewEvent, NewNode, OutcomeRecord,
    PageRequest, PhaseTimings, PublishResult, RecordResult, RedriveOptions, RedriveResult, StatusFilter,
    Store, StoreError, StoredAttempt, Tenant, UpdateResult, Versioned, Visibility, WebhookEffects,
};

const START: i64 = 1_700_000_000_000;
/// A time after everything that a case does.
pub const END: i64 = 1_000_000_000;

/// Returns the time `millis` milliseconds after the start of a case.
pub fn at(millis: i64) -> Time {
    Time::from_millis(START + millis)
}

/// Returns a node with this name.
fn named(name: &str) -> NewNode {
    NewNode { name: name.into(), role: Role::All, pools: vec![DEFAULT_POOL.into()], ..NewNode::default() }
}

/// Returns a request for the first page of `limit` items.
pub fn page<C>(limit: u32) -> PageRequest<C> {
    PageRequest { after: None, offset: 0, limit }
}

/// The lane of deliveries of normal priority that were never attempted.
pub const FRESH: Lane = Lane::Unordered { priority: Priority::Normal, retry: false };
/// The lane of deliveries of normal priority that are retried or redriven.
pub const RETRY: Lane = Lane::Unordered { priority: Priority::Normal, retry: true };

/// Returns an ordered lane.
pub fn order(key: &str) -> Lane {
    Lane::Ordered(key.into())
}

/// Returns every unordered lane.
fn free_lanes() -> impl Iterator<Item = Lane> {
    let of = |retry| Priority::ALL.into_iter().map(move |priority| Lane::Unordered { priority, retry });
    of(false).chain(of(true))
}

/// Returns the ids of the claimed deliveries.
pub fn ids(claimed: &[ClaimedDelivery]) -> Vec<DeliveryId> {
    claimed.iter().map(|delivery| delivery.id).collect()
}

/// Runs the futures concurrently and returns their results in order.
pub async fn together<T: Send + 'static>(
    work: impl IntoIterator<Item = impl Future<Output = T> + Send + 'static>,
) -> Vec<T> {
    let tasks: Vec<_> = work.into_iter().map(tokio::spawn).collect();
    let mut results = Vec::with_capacity(tasks.len());
    for task in tasks {
        results.push(task.await.unwrap());
    }
    results
}

/// Returns a closed circuit in its initial state.
pub fn closed() -> SavedCircuit {
    SavedCircuit {
        state: CircuitState::Closed,
        generation: 0,
        since: at(0),
        until: None,
        sleep_ms: 0,
        consecutive_half_open_failures: 0,
        forced: None,
        counts: Counts::default(),
    }
}

/// The URL of every webhook of a harness.
pub(super) const URL: &str = "https://example.com/webhook";

/// A store with a tenant, a webhook and a node in it.
pub struct Harness {
    /// The tenant that events are published for.
    pub tenant_id: TenantId,
    /// The webhook that receives them.
    pub webhook_id: WebhookId,
    /// The epoch of the node that publishes, claims and records.
    pub epoch: Epoch,
    store: Option<Arc<dyn Store>>,
    version: AtomicI64,
    counter: AtomicU64,
    undrained: AtomicBool,
    reopen: Reopen,
    _keep: Box<dyn Any + Send + Sync>,
}

/// Setup.
impl Harness {
    pub async fn new(opened: Opened) -> Arc<Self> {
        let epoch = opened.store.join(named("bench"), at(0)).await.unwrap();
        let mut harness = Self {
            tenant_id: TenantId::default(),
            webhook_id: WebhookId::from_bytes([0; 16]),
            epoch,
            store: Some(opened.store),
            version: AtomicI64::new(0),
            counter: AtomicU64::new(0),
            undrained: AtomicBool::new(false),
            reopen: opened.reopen,
            _keep: opened.keep,
        };
        harness.tenant_id = harness.new_tenant("acme").await;
        harness.webhook_id = harness.new_webhook().await.id;
        Arc::new(harness)
    }

    /// Returns the store.
    pub fn store(&self) -> &dyn Store {
        self.store.as_deref().unwrap()
    }

    /// Closes the store and opens its database again.
    pub async fn reopen(harness: &mut Arc<Self>) {
        let harness = Arc::get_mut(harness).expect("the store has no other user");
        let old = harness.store.take().unwrap();
        assert_eq!(Arc::strong_count(&old), 1, "the store has no other user");
        drop(old);
        harness.store = Some((harness.reopen)().await);
    }

    pub async fn new_tenant(&self, name: &str) -> TenantId {
        let id = TenantId::parse(name).unwrap();
        let tenant = Tenant {
            id: id.clone(),
            name: Some(name.to_uppercase()),
            metadata: Default::default(),
            rules: TenantRules::default(),
            created_at: at(0),
        };
        assert!(self.store().create_tenant(tenant).await.unwrap());
        id
    }

    /// Starts another node.
    pub async fn new_epoch(&self) -> Epoch {
        self.store().join(named("another"), at(0)).await.unwrap()
    }

    /// Stores a webhook of the harness's tenant that subscribes to all event types.
    pub async fn new_webhook(&self) -> Webhook {
        let webhook = self.webhook_of(&self.tenant_id);
        self.set_version(&self.store().create_webhook(webhook.clone()).await.unwrap());
        webhook
    }

    /// Stores an operator-managed webhook of the harness's tenant, deleted or not.
    pub async fn operator_webhook(&self, state: WebhookState) -> WebhookId {
        let id = self.new_webhook().await.id;
        let Versioned { mut webhook, revision } = self.stored_webhook(id).await;
        webhook.spec.managed_by = ManagedBy::Operator;
        webhook.state = state;
        self.set_version(&self.store().change_webhook(webhook, revision, None).await.unwrap());
        id
    }

    /// Changes the state of a webhook of the harness's tenant.
    pub async fn set_state(&self, id: WebhookId, state: WebhookState) -> i64 {
        let Versioned { mut webhook, revision } = self.stored_webhook(id).await;
        webhook.state = state;
        self.set_version(&self.store().change_webhook(webhook, revision, None).await.unwrap())
    }

    /// Keeps the configuration version for the following publishes.
    fn set_version(&self, changed: &UpdateResult) -> i64 {
        let UpdateResult::Updated { version } = *changed else { panic!("{changed:?}") };
        self.version.store(version, SeqCst);
        version
    }

    /// Returns the configuration version after the harness's last change.
    pub fn version(&self) -> i64 {
        self.version.load(SeqCst)
    }
}

/// Construction of objects that are not stored yet.
impl Harness {
    /// Returns the next ten bytes of an id: a counter, so that later ids of the same time are greater.
    pub fn next(&self) -> RandomBytes {
        let mut bytes = [0; 10];
        bytes[2..].copy_from_slice(&(1 + self.counter.fetch_add(1, SeqCst)).to_be_bytes());
        bytes
    }

    /// Returns an id for a delivery of an event of this time.
    pub fn delivery_id(&self, time: Time) -> DeliveryId {
        DeliveryId::new(time, &self.next())
    }

    /// Returns an id for a webhook. Lanes need no stored webhook.
    pub fn webhook_id(&self) -> WebhookId {
        WebhookId::new(at(0), &self.next())
    }

    /// Returns the lane of fresh deliveries to the harness's webhook.
    pub fn lane(&self) -> LaneKey {
        self.lane_of(self.webhook_id)
    }

    /// Returns the lane of fresh deliveries to this webhook.
    pub fn lane_of(&self, webhook_id: WebhookId) -> LaneKey {
        LaneKey { webhook_id, lane: FRESH }
    }

    /// Returns a lane of the harness's webhook.
    pub fn own(&self, lane: Lane) -> LaneKey {
        LaneKey { webhook_id: self.webhook_id, lane }
    }

    /// Returns the options for redriving a delivery that has ended.
    pub fn redrive_options(&self, id: DeliveryId) -> RedriveOptions {
        RedriveOptions { id, lane: RETRY, priority: None, unless_purged: false }
    }

    pub fn webhook_of(&self, tenant_id: &TenantId) -> Webhook {
        let secret = Secret::from_bytes(&[7; 32]);
        Webhook {
            id: self.webhook_id(),
            tenant_id: tenant_id.clone(),
            spec: WebhookSpec { url: URL.into(), events: vec![Pattern::All], ..WebhookSpec::default() },
            secrets: vec![LiveSecret { secret, created_at: at(0), expires_at: None }],
            state: WebhookState::Active,
            created_at: at(0),
            updated_at: at(0),
        }
    }

    /// Returns an event of the harness's tenant.
    pub fn event(&self, time: Time) -> Event {
        Event {
            id: EventId::new(time, &self.next()),
            tenant_id: self.tenant_id.clone(),
            event_type: "order.created".into(),
            data: Bytes::from_static(br#"{"n": 1}"#),
            timestamp: time,
            idempotency_key: None,
            source: None,
            subject: None,
            priority: Priority::Normal,
            metadata: None,
            trace: None,
            hops: 0,
        }
    }

    /// Returns an event with an unordered delivery to each of these webhooks.
    pub fn fan_out(&self, event: Event, to: &[(WebhookId, InitialState)]) -> NewEvent {
        let lane = Lane::Unordered { priority: event.priority, retry: false };
        let key = |(webhook_id, initial_state): &(WebhookId, InitialState)| {
            (LaneKey { webhook_id: *webhook_id, lane: lane.clone() }, *initial_state)
        };
        let to: Vec<_> = to.iter().map(key).collect();
        self.fan_out_to(event, &to)
    }

    /// Returns an event with a delivery in each of these lanes.
    pub fn fan_out_to(&self, event: Event, to: &[(LaneKey, InitialState)]) -> NewEvent {
        let deliveries = to.iter().map(|(key, initial_state)| NewDelivery {
            id: self.delivery_id(event.timestamp),
            webhook_id: key.webhook_id,
            format: PayloadFormat::Envelope,
            lane: key.lane.clone(),
            initial_state: *initial_state,
        });
        NewEvent {
            deliveries: deliveries.collect(),
            event: Arc::new(event),
            edited_from: None,
            idempotency: None,
            config_version: self.version(),
            epoch: self.epoch,
            position: None,
        }
    }

    /// Returns an event with a delivery to the harness's webhook.
    pub fn new_event(&self, time: Time, initial_state: InitialState) -> NewEvent {
        self.fan_out(self.event(time), &[(self.webhook_id, initial_state)])
    }

    /// Returns an attempt whose result fits the next state of its delivery.
    pub fn attempt(&self, number: u32, next: &Outcome, time: Time) -> Attempt {
        let success = *next == Outcome::Delivered;
        Attempt {
            id: AttemptId::new(time, &self.next()),
            number,
            status: match next {
                Outcome::Delivered => AttemptStatus::Success,
                Outcome::Retry { .. } | Outcome::Cancelled(_) => AttemptStatus::Failed,
                Outcome::Dead(_) => AttemptStatus::FinalFailure,
            },
            failure_category: (!success).then_some(FailureCategory::ServerError),
            http_status_code: Some(if success { 200 } else { 503 }),
            error_message: (!success).then(|| "the endpoint returned 503".into()),
            custom_headers: None,
            response_headers: Some(Bytes::from_static(b"server: test")),
            response_body_sample: Some(Bytes::from_static(b"hello")),
            timings: PhaseTimings {
                dns: Some(1),
                connect: Some(20),
                tls: None,
                ttfb: Some(300),
                total: 4000,
            },
            scheduled_at: time,
            executed_at: time,
            next_retry_at: match next {
                Outcome::Retry { at: due } => Some(*due),
                _ => None,
            },
            circuit: CircuitState::Closed,
            worker: "bench".into(),
        }
    }

    /// Returns the outcome that the harness's node records after the given attempt of a delivery to its webhook.
    pub fn outcome(&self, delivery_id: DeliveryId, number: u32, next: Outcome, time: Time) -> OutcomeRecord {
        OutcomeRecord {
            epoch: self.epoch,
            delivery_id,
            tenant_id: self.tenant_id.clone(),
            webhook_id: self.webhook_id,
            attempt: Some(self.attempt(number, &next, time)),
            outcome: next,
            record_despite_cancel: false,
            requires_inactive_webhook: false,
            disable: None,
            effects: WebhookEffects::default(),
            occurrences: Vec::new(),
            at: time,
        }
    }
}

/// Store operations, awaited.
impl Harness {
    /// Submits an event without waiting; the result arrives on the channel.
    pub fn submit(&self, new: NewEvent) -> oneshot::Receiver<Result<PublishResult, StoreError>> {
        let (sender, reply) = oneshot::channel();
        self.store().publish(new, Box::new(move |result| drop(sender.send(result))));
        reply
    }

    pub async fn try_publish(&self, new: NewEvent) -> Result<PublishResult, StoreError> {
        self.submit(new).await.unwrap()
    }

    pub async fn publish(&self, new: NewEvent) -> PublishResult {
        self.try_publish(new).await.unwrap()
    }

    /// Publishes an event that must be new and returns its sequence number.
    pub async fn publish_new(&self, new: NewEvent) -> i64 {
        match self.publish(new).await {
            PublishResult::New { sequence_number } => sequence_number,
            other => panic!("{other:?}"),
        }
    }

    /// Creates a delivery to the harness's webhook that waits until `due`.
    pub async fn waiting(&self, time: Time, due: Time) -> DeliveryId {
        self.publish_one(self.new_event(time, InitialState::Waiting(due))).await
    }

    /// Creates a delivery to the harness's webhook that is leased to the harness's node.
    pub async fn leased(&self, time: Time) -> DeliveryId {
        self.publish_one(self.new_event(time, InitialState::Leased)).await
    }

    /// Creates a delivery that waits in a lane of the harness's webhook until `due`.
    pub async fn waiting_in(&self, lane: &Lane, time: Time, due: Time) -> DeliveryId {
        let to = [(self.own(lane.clone()), InitialState::Waiting(due))];
        self.publish_one(self.fan_out_to(self.event(time), &to)).await
    }

    async fn publish_one(&self, new: NewEvent) -> DeliveryId {
        let id = new.deliveries[0].id;
        self.publish_new(new).await;
        id
    }

    /// Creates a dead delivery to the harness's webhook.
    pub async fn dead(&self, time: Time) -> DeliveryId {
        let id = self.leased(time).await;
        self.ends(id, Outcome::Dead(DeadReason::Exhausted), time).await;
        id
    }

    /// Submits an outcome without waiting; the result arrives on the channel.
    pub fn submit_outcome(
        &self,
        outcome: OutcomeRecord,
    ) -> oneshot::Receiver<Result<RecordResult, StoreError>> {
        let (sender, reply) = oneshot::channel();
        self.store().record(Arc::new(outcome), Box::new(move |result| drop(sender.send(result))));
        reply
    }

    pub async fn try_record(&self, outcome: OutcomeRecord) -> Result<RecordResult, StoreError> {
        self.submit_outcome(outcome).await.unwrap()
    }

    pub async fn record(&self, outcome: OutcomeRecord) -> RecordResult {
        self.try_record(outcome).await.unwrap()
    }

    /// Records the state of a leased delivery after its first attempt.
    pub async fn ends(&self, delivery_id: DeliveryId, next: Outcome, time: Time) {
        let outcome = self.outcome(delivery_id, 1, next, time);
        assert_eq!(self.record(outcome).await, RecordResult::Recorded { config_version: None });
    }

    /// Claims from one lane.
    pub async fn claim_lane(&self, key: LaneKey, now: Time, capacity: usize) -> LaneClaim {
        self.claim_lane_as(self.epoch, key, now, capacity).await
    }

    /// Claims from one lane for a node.
    pub async fn claim_lane_as(&self, epoch: Epoch, key: LaneKey, now: Time, capacity: usize) -> LaneClaim {
        let lanes = vec![LaneCapacity::new(key.clone(), capacity)];
        let mut claims = self.store().claim(epoch, now, lanes, usize::MAX).await.unwrap();
        assert_eq!(claims.len(), 1, "one claim per lane");
        let claim = claims.remove(0);
        assert_eq!(claim.key, key);
        claim
    }

    /// Claims all due deliveries to the harness's webhook, the most urgent lanes first.
    pub async fn claim(&self, now: Time) -> Vec<ClaimedDelivery> {
        self.claim_as(self.epoch, now).await
    }

    /// Claims all due deliveries to the harness's webhook for a node, the most urgent lanes first.
    pub async fn claim_as(&self, epoch: Epoch, now: Time) -> Vec<ClaimedDelivery> {
        // Every unordered lane is claimed whether due or not; ordered lanes only if due, since their number is unbounded.
        let orders = self.due_lanes(now).await.into_iter();
        let orders = orders.filter(|key| key.webhook_id == self.webhook_id && key.lane.is_ordered());
        let keys = free_lanes().map(|lane| self.own(lane)).chain(orders);
        let lanes = keys.map(|key| LaneCapacity::new(key, 10_000)).collect();
        let claims = self.store().claim(epoch, now, lanes, usize::MAX).await.unwrap();
        assert!(claims.iter().all(|claim| !claim.has_more_due));
        claims.into_iter().flat_map(|claim| claim.deliveries).collect()
    }

    /// Claims one delivery that must be the only one due.
    pub async fn claim_one(&self, now: Time) -> ClaimedDelivery {
        let mut claimed = self.claim(now).await;
        assert_eq!(claimed.len(), 1, "{claimed:?}");
        claimed.remove(0)
    }

    /// Returns the due lanes for a node of the default pool.
    pub async fn due_lanes_for_default_pool(&self, now: Time) -> DueLanes {
        self.store().due_lanes(self.epoch, vec![DEFAULT_POOL.into()], now, 10_000).await.unwrap()
    }

    pub async fn due_lanes(&self, now: Time) -> Vec<LaneKey> {
        self.due_lanes_for_default_pool(now).await.lanes
    }

    pub async fn next_wake(&self, now: Time) -> Option<Time> {
        self.due_lanes_for_default_pool(now).await.next_wake
    }

    pub async fn cancel(&self, delivery_id: DeliveryId, now: Time) -> CancelResult {
        self.store().cancel(self.tenant_id.clone(), delivery_id, "enough".into(), now).await.unwrap()
    }

    pub async fn retry(&self, delivery_id: DeliveryId, options: RedriveOptions, now: Time) -> RedriveResult {
        self.store().retry(self.tenant_id.clone(), delivery_id, options, now).await.unwrap()
    }

    /// Ends an epoch and returns the number of deliveries returned to `waiting`.
    pub async fn rescue(&self, dead: Epoch, now: Time) -> usize {
        let step = self.store().rescue(dead, now, 10_000).await.unwrap();
        assert!(step.finished);
        step.changed
    }

    pub async fn delivery(&self, id: DeliveryId) -> Delivery {
        self.store().delivery(self.tenant_id.clone(), id).await.unwrap().unwrap()
    }

    pub async fn status(&self, id: DeliveryId) -> DeliveryStatus {
        self.delivery(id).await.status
    }

    pub async fn attempts(&self, id: DeliveryId) -> Vec<StoredAttempt> {
        self.store().attempts(self.tenant_id.clone(), id).await.unwrap().unwrap()
    }

    /// Returns the dead deliveries of the harness's tenant.
    pub async fn dead_list(&self) -> Vec<DeliveryId> {
        let dead = self.store().list_dead(self.tenant_id.clone(), DeliveryFilter::default(), page(10_000));
        dead.await.unwrap().found.iter().map(|delivery| delivery.id).collect()
    }

    pub async fn stored_webhook(&self, id: WebhookId) -> Versioned {
        self.store().webhook(self.tenant_id.clone(), id).await.unwrap().unwrap()
    }
}

/// The end of every case.
impl Harness {
    /// Makes this case end without draining, because it leaves too many deliveries behind.
    pub fn leave_undrained(&self) {
        self.undrained.store(true, SeqCst);
    }

    /// Ends every node and delivers all deliveries that have not ended. Fails if any was lost.
    pub async fn drain(&self) {
        if self.undrained.load(SeqCst) {
            return;
        }
        let end = at(END) + Duration::from_secs(3600);
        let epoch = self.new_epoch().await;
        for dead in self.store().other_epochs(epoch).await.unwrap() {
            while !self.store().rescue(dead, end, 1000).await.unwrap().finished {}
        }
        self.unblock_all(end).await;
        let tenants = self.store().list_tenants(page(10_000)).await.unwrap();
        let pools: BTreeSet<_> = tenants.iter().map(|tenant| tenant.rules.pool().to_owned()).collect();
        let pools: Vec<_> = pools.into_iter().chain([DEFAULT_POOL.into()]).collect();
        loop {
            let due = self.store().due_lanes(self.epoch, pools.clone(), end, 10_000).await.unwrap();
            if due.lanes.is_empty() {
                assert_eq!(due.next_wake, None, "a lane has a wake time but is never due");
                break;
            }
            self.deliver_all(epoch, due.lanes, end).await;
        }
        assert_eq!(self.store().other_epochs(epoch).await.unwrap(), [], "leases or lanes are left over");
        assert_eq!(self.store().stats().await.unwrap().waiting, [0; 3], "a waiting delivery is in no lane");
        assert_eq!(self.store().oldest_waiting(None, 10).await.unwrap(), [], "an empty lane is left over");
        for tenant in tenants {
            let mut all = self.all_deliveries(&tenant.id).await;
            all.retain(|delivery| !delivery.status.is_final());
            assert_eq!(all, [], "pending, but neither waiting nor leased");
        }
    }

    /// Returns the deliveries of a tenant, page by page, and stops after about 10,000.
    async fn all_deliveries(&self, tenant_id: &TenantId) -> Vec<Delivery> {
        let mut all: Vec<Delivery> = Vec::new();
        loop {
            let after =
                all.last().map(|last| DeliveryCursor { event_id: last.event_id, delivery_id: last.id });
            let page = PageRequest { after, ..page(1_000) };
            let next = self.store().list_deliveries(tenant_id.clone(), DeliveryFilter::default(), page).await;
            let next = next.unwrap().found;
            if next.is_empty() || all.len() > 10_000 {
                return all;
            }
            all.extend(next);
        }
    }

    /// Fails unless every filter of the delivery listing returns exactly the matching deliveries.
    pub async fn check_listings(&self) {
        if self.undrained.load(SeqCst) {
            return;
        }
        for tenant in self.store().list_tenants(page(100)).await.unwrap() {
            let all = self.all_deliveries(&tenant.id).await;
            let webhooks = all.iter().map(|delivery| Some(delivery.webhook_id)).collect::<BTreeSet<_>>();
            for webhook_id in webhooks.into_iter().take(2).chain([None]) {
                let of: Vec<_> =
                    all.iter().filter(|one| webhook_id.is_none_or(|id| id == one.webhook_id)).collect();
                self.check_listings_of(&tenant.id, webhook_id, &of).await;
            }
        }
    }

    async fn check_listings_of(
        &self,
        tenant_id: &TenantId,
        webhook_id: Option<WebhookId>,
        all: &[&Delivery],
    ) {
        let statuses = DeliveryStatus::ALL
            .map(StatusFilter::Exactly)
            .into_iter()
            .chain([StatusFilter::Failed])
            .map(Some);
        let categories = [FailureCategory::ServerError, FailureCategory::Timeout].map(Some);
        let filters =
            statuses.map(|status| (status, None)).chain(categories.map(|category| (None, category)));
        for (status, failure_category) in filters {
            let filter = DeliveryFilter {
                webhooks: webhook_id.into_iter().collect(),
                status,
                failure_categories: failure_category.into_iter().collect(),
                ..DeliveryFilter::default()
            };
            let expected: BTreeSet<_> =
                all.iter().filter(|one| history::wanted(one, &filter)).map(|one| one.id).collect();
            let found =
                self.store().list_deliveries(tenant_id.clone(), filter, page(20_000)).await.unwrap().found;
            let found: Vec<_> = found.iter().map(|one| one.id).collect();
            assert!(found.is_sorted_by_key(|id| std::cmp::Reverse(id.time())), "newest first");
            let found: BTreeSet<_> = found.into_iter().collect();
            assert_eq!(found, expected, "{status:?} {failure_category:?} of {webhook_id:?}");
        }
    }

    /// Closes every circuit and resumes every paused webhook.
    async fn unblock_all(&self, now: Time) {
        for runtime in self.store().list_runtime().await.unwrap() {
            if let Some(circuit) = runtime.circuit {
                let generation = circuit.generation + 1;
                let closed = SavedCircuit { generation, since: now, ..closed() };
                self.store().set_circuit(runtime.tenant_id, runtime.webhook_id, closed, None).await.unwrap();
            }
        }
        for webhook in
            self.store().list_webhooks(self.tenant_id.clone(), Visibility::All, page(10_000)).await.unwrap()
        {
            if webhook.state == WebhookState::Paused {
                self.set_state(webhook.id, WebhookState::Active).await;
            }
        }
    }

    async fn deliver_all(&self, epoch: Epoch, lanes: Vec<LaneKey>, now: Time) {
        let lanes = lanes.into_iter().map(|key| LaneCapacity::new(key, 100_000)).collect();
        let claims = self.store().claim(epoch, now, lanes, usize::MAX).await.unwrap();
        assert!(claims.iter().all(|claim| !claim.has_more_due), "a claim returned less than its capacity");
        let mut replies = Vec::new();
        for claimed in claims.into_iter().flat_map(|claim| claim.deliveries) {
            let outcome = self.outcome(claimed.id, claimed.attempt_count + 1, Outcome::Delivered, now);
            let (tenant_id, webhook_id) = (claimed.event.tenant_id.clone(), claimed.webhook_id);
            replies.push(self.submit_outcome(OutcomeRecord { epoch, tenant_id, webhook_id, ..outcome }));
        }
        for response in replies {
            assert_eq!(response.await.unwrap(), Ok(RecordResult::Recorded { config_version: None }));
        }
    }
}
