//! What cases are made with: a store, a tenant with a webhook, a node, and ids from a counter.
//!
//! No clock and no chance: a case names its times, so that a failure shows itself again.

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
    event::event_type::Pattern,
    event::{Event, PayloadFormat},
    id::Randomness,
    protection::breaker::{CircuitState, Counts, SavedCircuit},
    security::signature::{LiveSecret, Secret},
    tenancy::{DEFAULT_POOL, TenantRules},
    webhook::{ManagedBy, Webhook, WebhookSpec, WebhookState},
};
use tokio::sync::oneshot;

use super::{Opened, Reopen, history};
use crate::{
    Again, Attempt, AttemptStatus, Birth, Cancelled, Changed, Claimed, Delivery, DeliveryCursor,
    DeliveryFilter, DueLanes, Effects, Epoch, LaneClaim, LaneKey, LaneRoom, NewDelivery, NewEvent, NewNode,
    Next, Outcome, PageRequest, PhaseTimings, Published, Recorded, Redriven, StatusFilter, Store, StoreError,
    StoredAttempt, Tenant, Versioned, Visibility,
};

const START: i64 = 1_700_000_000_000;
/// A time after everything that a case does.
pub const END: i64 = 1_000_000_000;

/// The time so many milliseconds after the start of a case.
pub fn at(millis: i64) -> Time {
    Time::from_millis(START + millis)
}

/// A node with this name.
fn named(name: &str) -> NewNode {
    NewNode { name: name.into(), role: Role::All, pools: vec![DEFAULT_POOL.into()], ..NewNode::default() }
}

/// The first so many of a listing.
pub fn page<C>(limit: u32) -> PageRequest<C> {
    PageRequest { after: None, offset: 0, limit }
}

/// The lane of deliveries of usual priority that were never tried.
pub const FRESH: Lane = Lane::Free { priority: Priority::Normal, retry: false };
/// The lane of deliveries of usual priority that were tried before, or are sent again.
pub const RETRY: Lane = Lane::Free { priority: Priority::Normal, retry: true };

/// An order of a webhook.
pub fn order(key: &str) -> Lane {
    Lane::Ordered(key.into())
}

/// Every lane that is no order.
fn free_lanes() -> impl Iterator<Item = Lane> {
    let of = |retry| Priority::ALL.into_iter().map(move |priority| Lane::Free { priority, retry });
    of(false).chain(of(true))
}

/// The ids of what was claimed.
pub fn ids(claimed: &[Claimed]) -> Vec<DeliveryId> {
    claimed.iter().map(|delivery| delivery.id).collect()
}

/// Runs these at the same time and gives their results in their order.
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

/// A circuit that nothing has happened to.
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

/// Where every webhook of a bench sends to.
pub(super) const URL: &str = "https://example.com/hook";

/// A store with a tenant, a webhook and a node in it.
pub struct Bench {
    /// The tenant that events are published for.
    pub tenant: TenantId,
    /// The webhook that they are owed to.
    pub webhook: WebhookId,
    /// The node that publishes, claims and records.
    pub epoch: Epoch,
    store: Option<Arc<dyn Store>>,
    version: AtomicI64,
    counter: AtomicU64,
    undrained: AtomicBool,
    reopen: Reopen,
    _keep: Box<dyn Any + Send + Sync>,
}

/// Setting up.
impl Bench {
    pub async fn new(opened: Opened) -> Arc<Self> {
        let epoch = opened.store.join(named("bench"), at(0)).await.unwrap();
        let mut bench = Self {
            tenant: TenantId::default(),
            webhook: WebhookId::from_bytes([0; 16]),
            epoch,
            store: Some(opened.store),
            version: AtomicI64::new(0),
            counter: AtomicU64::new(0),
            undrained: AtomicBool::new(false),
            reopen: opened.reopen,
            _keep: opened.keep,
        };
        bench.tenant = bench.new_tenant("acme").await;
        bench.webhook = bench.new_webhook().await.id;
        Arc::new(bench)
    }

    /// The store itself.
    pub fn store(&self) -> &dyn Store {
        self.store.as_deref().unwrap()
    }

    /// Closes the store and opens its database again.
    pub async fn reopen(bench: &mut Arc<Self>) {
        let bench = Arc::get_mut(bench).expect("nobody else uses the store");
        let old = bench.store.take().unwrap();
        assert_eq!(Arc::strong_count(&old), 1, "nobody else uses the store");
        drop(old);
        bench.store = Some((bench.reopen)().await);
    }

    pub async fn new_tenant(&self, name: &str) -> TenantId {
        let id = TenantId::parse(name).unwrap();
        let tenant = Tenant {
            id: id.clone(),
            name: Some(name.to_uppercase()),
            rules: TenantRules::default(),
            created_at: at(0),
        };
        assert!(self.store().create_tenant(tenant).await.unwrap());
        id
    }

    /// Another node.
    pub async fn new_epoch(&self) -> Epoch {
        self.store().join(named("another"), at(0)).await.unwrap()
    }

    /// Stores a webhook of the bench's tenant that wants everything.
    pub async fn new_webhook(&self) -> Webhook {
        let webhook = self.webhook_of(&self.tenant);
        self.note(&self.store().create_webhook(webhook.clone()).await.unwrap());
        webhook
    }

    /// Stores a webhook of the bench's tenant that the operator manages, deleted or not.
    pub async fn operator_webhook(&self, state: WebhookState) -> WebhookId {
        let id = self.new_webhook().await.id;
        let Versioned { mut webhook, revision } = self.stored_webhook(id).await;
        webhook.spec.managed_by = ManagedBy::Operator;
        webhook.state = state;
        self.note(&self.store().change_webhook(webhook, revision, None).await.unwrap());
        id
    }

    /// Changes the state of a webhook of the bench's tenant.
    pub async fn set_state(&self, id: WebhookId, state: WebhookState) -> i64 {
        let Versioned { mut webhook, revision } = self.stored_webhook(id).await;
        webhook.state = state;
        self.note(&self.store().change_webhook(webhook, revision, None).await.unwrap())
    }

    /// Remembers the version that publishes are made from.
    fn note(&self, changed: &Changed) -> i64 {
        let Changed::Done { version } = *changed else { panic!("{changed:?}") };
        self.version.store(version, SeqCst);
        version
    }

    /// The version of the tenant's webhooks as the bench last changed them.
    pub fn version(&self) -> i64 {
        self.version.load(SeqCst)
    }
}

/// Making things that are not stored yet.
impl Bench {
    /// The next ten bytes of an id: a counter, so that later ids of one time are greater.
    pub fn next(&self) -> Randomness {
        let mut bytes = [0; 10];
        bytes[2..].copy_from_slice(&(1 + self.counter.fetch_add(1, SeqCst)).to_be_bytes());
        bytes
    }

    /// An id for a delivery of an event of this time.
    pub fn delivery_id(&self, time: Time) -> DeliveryId {
        DeliveryId::new(time, &self.next())
    }

    /// An id for a webhook. Its lanes need no more than that.
    pub fn webhook_id(&self) -> WebhookId {
        WebhookId::new(at(0), &self.next())
    }

    /// The lane that fresh deliveries to the bench's webhook wait in.
    pub fn lane(&self) -> LaneKey {
        self.lane_of(self.webhook)
    }

    /// The lane that fresh deliveries to this webhook wait in.
    pub fn lane_of(&self, webhook: WebhookId) -> LaneKey {
        LaneKey { webhook, lane: FRESH }
    }

    /// A lane of the bench's webhook.
    pub fn own(&self, lane: Lane) -> LaneKey {
        LaneKey { webhook: self.webhook, lane }
    }

    /// How a delivery is sent again, should it be over.
    pub fn again(&self, id: DeliveryId) -> Again {
        Again { id, lane: RETRY, priority: None, unless_purged: false }
    }

    pub fn webhook_of(&self, tenant: &TenantId) -> Webhook {
        let secret = Secret::from_bytes(&[7; 32]);
        Webhook {
            id: self.webhook_id(),
            tenant: tenant.clone(),
            spec: WebhookSpec { url: URL.into(), events: vec![Pattern::All], ..WebhookSpec::default() },
            secrets: vec![LiveSecret { secret, created_at: at(0), expires_at: None }],
            state: WebhookState::Active,
            created_at: at(0),
            updated_at: at(0),
        }
    }

    /// An event of the bench's tenant.
    pub fn event(&self, time: Time) -> Event {
        Event {
            id: EventId::new(time, &self.next()),
            tenant: self.tenant.clone(),
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

    /// An event with a delivery for each of these webhooks, none of them in an order.
    pub fn fan_out(&self, event: Event, to: &[(WebhookId, Birth)]) -> NewEvent {
        let lane = Lane::Free { priority: event.priority, retry: false };
        let key = |(webhook, birth): &(WebhookId, Birth)| {
            (LaneKey { webhook: *webhook, lane: lane.clone() }, *birth)
        };
        let to: Vec<_> = to.iter().map(key).collect();
        self.fan_out_to(event, &to)
    }

    /// An event with a delivery in each of these lanes.
    pub fn fan_out_to(&self, event: Event, to: &[(LaneKey, Birth)]) -> NewEvent {
        let deliveries = to.iter().map(|(key, birth)| NewDelivery {
            id: self.delivery_id(event.timestamp),
            webhook: key.webhook,
            format: PayloadFormat::Envelope,
            lane: key.lane.clone(),
            birth: *birth,
        });
        NewEvent {
            deliveries: deliveries.collect(),
            event: Arc::new(event),
            claim: None,
            config_version: self.version(),
            epoch: self.epoch,
            order: None,
        }
    }

    /// An event that is owed to the bench's webhook.
    pub fn new_event(&self, time: Time, birth: Birth) -> NewEvent {
        self.fan_out(self.event(time), &[(self.webhook, birth)])
    }

    /// An attempt that ends as a delivery that goes there would have it end.
    pub fn attempt(&self, number: u32, next: &Next, time: Time) -> Attempt {
        let success = *next == Next::Delivered;
        Attempt {
            id: AttemptId::new(time, &self.next()),
            number,
            status: match next {
                Next::Delivered => AttemptStatus::Success,
                Next::Retry { .. } | Next::Cancelled { .. } => AttemptStatus::Failed,
                Next::Dead { .. } => AttemptStatus::Exhausted,
            },
            failure_category: (!success).then_some(FailureCategory::ServerError),
            http_status_code: Some(if success { 200 } else { 503 }),
            error_message: (!success).then(|| "the endpoint answered 503".into()),
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
                Next::Retry { due } => Some(*due),
                _ => None,
            },
            circuit: CircuitState::Closed,
            worker: "bench".into(),
        }
    }

    /// What the bench's node says after the given attempt of a delivery to its webhook.
    pub fn outcome(&self, delivery: DeliveryId, number: u32, next: Next, time: Time) -> Outcome {
        Outcome {
            epoch: self.epoch,
            delivery,
            tenant: self.tenant.clone(),
            webhook: self.webhook,
            attempt: Some(self.attempt(number, &next, time)),
            next,
            knows_cancel: false,
            requires_ended_webhook: false,
            disable: None,
            effects: Effects::default(),
            causes: Vec::new(),
            at: time,
        }
    }
}

/// The verbs, awaited.
impl Bench {
    /// Hands an event in at once; the answer comes later.
    pub fn submit(&self, new: NewEvent) -> oneshot::Receiver<Result<Published, StoreError>> {
        let (answer, answered) = oneshot::channel();
        self.store().publish(new, Box::new(move |result| drop(answer.send(result))));
        answered
    }

    pub async fn try_publish(&self, new: NewEvent) -> Result<Published, StoreError> {
        self.submit(new).await.unwrap()
    }

    pub async fn publish(&self, new: NewEvent) -> Published {
        self.try_publish(new).await.unwrap()
    }

    /// Publishes an event that must be new and gives its place in the sequence.
    pub async fn publish_new(&self, new: NewEvent) -> i64 {
        match self.publish(new).await {
            Published::New { sequence_number } => sequence_number,
            other => panic!("{other:?}"),
        }
    }

    /// A delivery to the bench's webhook that waits until `due`.
    pub async fn waiting(&self, time: Time, due: Time) -> DeliveryId {
        self.born(self.new_event(time, Birth::Waiting(due))).await
    }

    /// A delivery to the bench's webhook that the bench's node has.
    pub async fn leased(&self, time: Time) -> DeliveryId {
        self.born(self.new_event(time, Birth::Leased)).await
    }

    /// A delivery that waits in a lane of the bench's webhook until `due`.
    pub async fn waiting_in(&self, lane: &Lane, time: Time, due: Time) -> DeliveryId {
        let to = [(self.own(lane.clone()), Birth::Waiting(due))];
        self.born(self.fan_out_to(self.event(time), &to)).await
    }

    async fn born(&self, new: NewEvent) -> DeliveryId {
        let id = new.deliveries[0].id;
        self.publish_new(new).await;
        id
    }

    /// A delivery to the bench's webhook that died.
    pub async fn dead(&self, time: Time) -> DeliveryId {
        let id = self.leased(time).await;
        self.ends(id, Next::Dead { reason: DeadReason::Exhausted }, time).await;
        id
    }

    /// Hands an outcome in at once; the answer comes later.
    pub fn submit_outcome(&self, outcome: Outcome) -> oneshot::Receiver<Result<Recorded, StoreError>> {
        let (answer, answered) = oneshot::channel();
        self.store().record(Arc::new(outcome), Box::new(move |result| drop(answer.send(result))));
        answered
    }

    pub async fn try_record(&self, outcome: Outcome) -> Result<Recorded, StoreError> {
        self.submit_outcome(outcome).await.unwrap()
    }

    pub async fn record(&self, outcome: Outcome) -> Recorded {
        self.try_record(outcome).await.unwrap()
    }

    /// Records where a leased delivery goes after its first attempt.
    pub async fn ends(&self, delivery: DeliveryId, next: Next, time: Time) {
        let outcome = self.outcome(delivery, 1, next, time);
        assert_eq!(self.record(outcome).await, Recorded::Done { config_version: None });
    }

    /// Claims from one lane.
    pub async fn claim_lane(&self, key: LaneKey, now: Time, room: usize) -> LaneClaim {
        self.claim_lane_as(self.epoch, key, now, room).await
    }

    /// Claims from one lane for a node.
    pub async fn claim_lane_as(&self, epoch: Epoch, key: LaneKey, now: Time, room: usize) -> LaneClaim {
        let lanes = vec![LaneRoom::new(key.clone(), room)];
        let mut claims = self.store().claim(epoch, now, lanes, usize::MAX).await.unwrap();
        assert_eq!(claims.len(), 1, "one claim per lane");
        let claim = claims.remove(0);
        assert_eq!(claim.key, key);
        claim
    }

    /// Claims all that is due to the bench's webhook, the most urgent lanes first.
    pub async fn claim(&self, now: Time) -> Vec<Claimed> {
        self.claim_as(self.epoch, now).await
    }

    /// Claims all that is due to the bench's webhook for a node, the most urgent lanes first.
    pub async fn claim_as(&self, epoch: Epoch, now: Time) -> Vec<Claimed> {
        // Asked for whether due or not, but for orders, of which there can be any number.
        let orders = self.due_lanes(now).await.into_iter();
        let orders = orders.filter(|key| key.webhook == self.webhook && key.lane.is_ordered());
        let keys = free_lanes().map(|lane| self.own(lane)).chain(orders);
        let lanes = keys.map(|key| LaneRoom::new(key, 10_000)).collect();
        let claims = self.store().claim(epoch, now, lanes, usize::MAX).await.unwrap();
        assert!(claims.iter().all(|claim| !claim.more));
        claims.into_iter().flat_map(|claim| claim.deliveries).collect()
    }

    /// Claims one delivery that must be the only one due.
    pub async fn claim_one(&self, now: Time) -> Claimed {
        let mut claimed = self.claim(now).await;
        assert_eq!(claimed.len(), 1, "{claimed:?}");
        claimed.remove(0)
    }

    /// What a node of the pool that serves everybody would look at.
    pub async fn look(&self, now: Time) -> DueLanes {
        self.store().due_lanes(self.epoch, vec![DEFAULT_POOL.into()], now, 10_000).await.unwrap()
    }

    pub async fn due_lanes(&self, now: Time) -> Vec<LaneKey> {
        self.look(now).await.lanes
    }

    pub async fn next_wake(&self, now: Time) -> Option<Time> {
        self.look(now).await.next_wake
    }

    pub async fn cancel(&self, delivery: DeliveryId, now: Time) -> Cancelled {
        self.store().cancel(self.tenant.clone(), delivery, "enough".into(), now).await.unwrap()
    }

    pub async fn retry(&self, delivery: DeliveryId, again: Again, now: Time) -> Redriven {
        self.store().retry(self.tenant.clone(), delivery, again, now).await.unwrap()
    }

    /// Ends an epoch for good and gives the number of deliveries that wait again.
    pub async fn rescue(&self, dead: Epoch, now: Time) -> usize {
        let step = self.store().rescue(dead, now, 10_000).await.unwrap();
        assert!(step.finished);
        step.moved
    }

    pub async fn delivery(&self, id: DeliveryId) -> Delivery {
        self.store().delivery(self.tenant.clone(), id).await.unwrap().unwrap()
    }

    pub async fn status(&self, id: DeliveryId) -> DeliveryStatus {
        self.delivery(id).await.status
    }

    pub async fn attempts(&self, id: DeliveryId) -> Vec<StoredAttempt> {
        self.store().attempts(self.tenant.clone(), id).await.unwrap().unwrap()
    }

    /// The bench's dead deliveries.
    pub async fn dead_list(&self) -> Vec<DeliveryId> {
        let dead = self.store().list_dead(self.tenant.clone(), DeliveryFilter::default(), page(10_000));
        dead.await.unwrap().found.iter().map(|delivery| delivery.id).collect()
    }

    pub async fn stored_webhook(&self, id: WebhookId) -> Versioned {
        self.store().webhook(self.tenant.clone(), id).await.unwrap().unwrap()
    }
}

/// The end of every case.
impl Bench {
    /// Has this case end without draining: it leaves too much behind.
    pub fn leave_undrained(&self) {
        self.undrained.store(true, SeqCst);
    }

    /// Ends every node and delivers whatever is not over. Fails if something was lost on the way.
    pub async fn drain(&self) {
        if self.undrained.load(SeqCst) {
            return;
        }
        let end = at(END) + Duration::from_secs(3600);
        let epoch = self.new_epoch().await;
        for dead in self.store().others(epoch).await.unwrap() {
            while !self.store().rescue(dead, end, 1000).await.unwrap().finished {}
        }
        self.unblock_all(end).await;
        let tenants = self.store().list_tenants(page(10_000)).await.unwrap();
        let pools: BTreeSet<_> = tenants.iter().map(|tenant| tenant.rules.pool().to_owned()).collect();
        let pools: Vec<_> = pools.into_iter().chain([DEFAULT_POOL.into()]).collect();
        loop {
            let due = self.store().due_lanes(self.epoch, pools.clone(), end, 10_000).await.unwrap();
            if due.lanes.is_empty() {
                assert_eq!(due.next_wake, None, "something would be looked at later");
                break;
            }
            self.deliver_all(epoch, due.lanes, end).await;
        }
        assert_eq!(self.store().others(epoch).await.unwrap(), [], "leases or lanes are left over");
        assert_eq!(self.store().vitals().await.unwrap().waiting, [0; 3], "what waits is on no lane");
        assert_eq!(self.store().oldest(None, 10).await.unwrap(), [], "a lane is left without anything in it");
        for tenant in tenants {
            let mut all = self.all_deliveries(&tenant.id).await;
            all.retain(|delivery| !delivery.status.is_final());
            assert_eq!(all, [], "pending, but neither waiting nor leased");
        }
    }

    /// Every delivery of a tenant, page by page, unless they are very many.
    async fn all_deliveries(&self, tenant: &TenantId) -> Vec<Delivery> {
        let mut all: Vec<Delivery> = Vec::new();
        loop {
            let after = all.last().map(|last| DeliveryCursor { event: last.event, delivery: last.id });
            let page = PageRequest { after, ..page(1_000) };
            let next = self.store().list_deliveries(tenant.clone(), DeliveryFilter::default(), page).await;
            let next = next.unwrap().found;
            if next.is_empty() || all.len() > 10_000 {
                return all;
            }
            all.extend(next);
        }
    }

    /// Fails unless every way to find deliveries finds those that are meant, and no others.
    pub async fn check_listings(&self) {
        if self.undrained.load(SeqCst) {
            return;
        }
        for tenant in self.store().list_tenants(page(100)).await.unwrap() {
            let all = self.all_deliveries(&tenant.id).await;
            let webhooks = all.iter().map(|delivery| Some(delivery.webhook)).collect::<BTreeSet<_>>();
            for webhook in webhooks.into_iter().take(2).chain([None]) {
                let of: Vec<_> =
                    all.iter().filter(|one| webhook.is_none_or(|id| id == one.webhook)).collect();
                self.check_listings_of(&tenant.id, webhook, &of).await;
            }
        }
    }

    async fn check_listings_of(&self, tenant: &TenantId, webhook: Option<WebhookId>, all: &[&Delivery]) {
        let statuses =
            DeliveryStatus::ALL.map(StatusFilter::Is).into_iter().chain([StatusFilter::Failed]).map(Some);
        let categories = [FailureCategory::ServerError, FailureCategory::Timeout].map(Some);
        let filters =
            statuses.map(|status| (status, None)).chain(categories.map(|category| (None, category)));
        for (status, failure_category) in filters {
            let filter = DeliveryFilter {
                webhooks: webhook.into_iter().collect(),
                status,
                failure_categories: failure_category.into_iter().collect(),
                ..DeliveryFilter::default()
            };
            let expected: BTreeSet<_> =
                all.iter().filter(|one| history::wanted(one, &filter)).map(|one| one.id).collect();
            let found =
                self.store().list_deliveries(tenant.clone(), filter, page(20_000)).await.unwrap().found;
            let found: Vec<_> = found.iter().map(|one| one.id).collect();
            assert!(found.is_sorted_by_key(|id| std::cmp::Reverse(id.time())), "newest first");
            let found: BTreeSet<_> = found.into_iter().collect();
            assert_eq!(found, expected, "{status:?} {failure_category:?} of {webhook:?}");
        }
    }

    /// Takes away whatever holds a webhook back without end.
    async fn unblock_all(&self, now: Time) {
        for runtime in self.store().troubled().await.unwrap() {
            if let Some(circuit) = runtime.circuit {
                let generation = circuit.generation + 1;
                let closed = SavedCircuit { generation, since: now, ..closed() };
                self.store().set_circuit(runtime.tenant, runtime.webhook, closed, None).await.unwrap();
            }
        }
        for webhook in
            self.store().list_webhooks(self.tenant.clone(), Visibility::All, page(10_000)).await.unwrap()
        {
            if webhook.state == WebhookState::Paused {
                self.set_state(webhook.id, WebhookState::Active).await;
            }
        }
    }

    async fn deliver_all(&self, epoch: Epoch, lanes: Vec<LaneKey>, now: Time) {
        let lanes = lanes.into_iter().map(|key| LaneRoom::new(key, 100_000)).collect();
        let claims = self.store().claim(epoch, now, lanes, usize::MAX).await.unwrap();
        assert!(claims.iter().all(|claim| !claim.more), "the room was not used");
        let mut answers = Vec::new();
        for claimed in claims.into_iter().flat_map(|claim| claim.deliveries) {
            let outcome = self.outcome(claimed.id, claimed.attempt_count + 1, Next::Delivered, now);
            let (tenant, webhook) = (claimed.event.tenant.clone(), claimed.webhook);
            answers.push(self.submit_outcome(Outcome { epoch, tenant, webhook, ..outcome }));
        }
        for answer in answers {
            assert_eq!(answer.await.unwrap(), Ok(Recorded::Done { config_version: None }));
        }
    }
}
