//! Taking an event in: fan out, reserve room, commit, hand over.
//!
//! The handover to dispatch happens when the commit is known, whether or not the
//! publisher still waits for its answer: a lease that was committed always reaches its lane.

use std::{collections::HashSet, sync::Arc, time::Duration};

use bytes::Bytes;
use redrive_core::{
    DeliveryId, EventId, TenantId, Time, WebhookId,
    cluster::ticket::GRACE,
    delivery::lane::{Lane, Priority},
    event::Event,
    event::event_type,
    event::trace::Trace,
    field_error::Invalid,
    routing::filter::{Filter, Payload},
    webhook::WebhookState,
};
use redrive_store::{Birth, KeyClaim, NewDelivery, NewEvent, OrderedPosition, Published, StoreError};
use tokio::sync::oneshot;

use crate::{
    Engine, Inner,
    checking::BatchProgress,
    clock,
    dispatch::Ready,
    membership::Term,
    queue::amqp::Issue,
    registry::{FanOut, Hook},
};

/// How often a fan-out is made again when webhooks keep changing under it.
const MAX_FAN_OUTS: usize = 20;
/// How often a publish waits for another epoch.
const MAX_RENEWALS: usize = 3;

/// An event to be published.
#[derive(Clone, Debug)]
pub struct Draft {
    /// Whose it is.
    pub tenant: TenantId,
    /// Its type.
    pub event_type: Box<str>,
    /// The payload: JSON, kept byte for byte.
    pub data: Bytes,
    /// The publisher's key, if it gave one.
    pub idempotency_key: Option<Box<str>>,
    /// Where it came from.
    pub source: Option<Box<str>>,
    /// What it is about.
    pub subject: Option<Box<str>>,
    /// The publisher's notes, a JSON object.
    pub metadata: Option<Bytes>,
    /// How urgent it is.
    pub priority: Priority,
    /// Send it to this webhook alone, whatever it subscribes to.
    pub only: Option<WebhookId>,
    /// The publisher's trace, if it has one.
    pub trace: Option<Box<Trace>>,
    /// How many deliveries of Redrive it came through.
    pub hops: u8,
}

/// What a publisher gets for its event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// The event's id; the first one's for a repeat.
    pub event: EventId,
    /// When it was published.
    pub timestamp: Time,
    /// Its place in the tenant's sequence; none for a repeat.
    pub sequence_number: Option<i64>,
    /// How many webhooks it goes to; none for a repeat.
    pub deliveries: Option<usize>,
    /// Whether the key had been used before for the same event.
    pub duplicate: bool,
}

/// Why an event was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PublishError {
    /// Something about it is wrong.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The type is one that only Redrive publishes.
    #[error("event types beginning with \"redrive.\" are published by Redrive alone")]
    Reserved,
    /// The payload does not fit the schema of its type.
    #[error(transparent)]
    Misfit(Invalid),
    /// The tenant publishes registered types alone, and this is none.
    #[error(
        "the event type {0} is not registered, and this tenant publishes registered types alone; register it with \
         POST /v1/event-types, or publish one that GET /v1/event-types lists"
    )]
    Unregistered(Box<str>),
    /// The type is not to be published any more.
    #[error(
        "the event type {0} is archived; PATCH /v1/event-types/{0} with \"archived\": false to publish it again"
    )]
    Archived(Box<str>),
    /// The key belongs to another event.
    #[error("the idempotency key was used before for another event ({0})")]
    KeyReused(EventId),
    /// The batch that it is part of takes too much work to check.
    #[error(
        "checking the events of this batch by their schemas and filters takes too much work, and this one was not taken; \
         publish it in a smaller batch"
    )]
    BatchTooCostly,
    /// There is no such tenant.
    #[error("there is no such tenant")]
    NoTenant,
    /// The store did not take it: it was not published.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Engine {
    /// Reads a tenant's webhooks if they are not known yet. Events that are published one right after the other
    /// from then on keep their order.
    pub async fn learn(&self, tenant: &TenantId) -> Result<(), StoreError> {
        self.0.registry.learn(&*self.0.store, tenant).await
    }

    /// The webhooks of a tenant that the operator manages, without those that were deleted.
    pub async fn operator_webhooks(&self, tenant: &TenantId) -> Result<HashSet<WebhookId>, StoreError> {
        self.learn(tenant).await?;
        Ok(self.0.registry.operator_webhooks(tenant))
    }

    /// Publishes an event: durable, with all its deliveries, once this returns.
    pub async fn publish(&self, draft: Draft) -> Result<Receipt, PublishError> {
        // A test event goes to one webhook and is Redrive's own.
        if event_type::is_reserved(&draft.event_type) && draft.only.is_none() {
            return Err(PublishError::Reserved);
        }
        self.take_in(draft, Context::default()).await
    }

    /// Publishes an event of a batch.
    pub async fn publish_in_batch(
        &self,
        draft: Draft,
        batch: &BatchProgress,
    ) -> Result<Receipt, PublishError> {
        if event_type::is_reserved(&draft.event_type) {
            return Err(PublishError::Reserved);
        }
        self.take_in(draft, Context { batch: Some(batch), position: None }).await
    }

    /// The same for an event that is stored after everything before it in an order. It fails if one of those fails.
    pub async fn publish_in_order(
        &self,
        draft: Draft,
        position: OrderedPosition,
    ) -> Result<Receipt, PublishError> {
        if event_type::is_reserved(&draft.event_type) {
            return Err(PublishError::Reserved);
        }
        self.take_in(draft, Context { position: Some(&position), batch: None }).await
    }

    /// The same for an event that Redrive itself has to tell.
    pub(crate) async fn publish_own(&self, draft: Draft) -> Result<Receipt, PublishError> {
        self.take_in(draft, Context::default()).await
    }

    async fn take_in(&self, draft: Draft, context: Context<'_>) -> Result<Receipt, PublishError> {
        let inner = &self.0;
        let (event, only) = inner.event(draft);
        event.validate()?;
        let event = Arc::new(event);
        let publishing = inner.trace_publish(&event);
        let published = self.publish_event(&event, only, context).await;
        if let Some(publishing) = publishing {
            publishing.ends(&published);
        }
        published
    }

    async fn publish_event(
        &self,
        event: &Arc<Event>,
        only: Option<WebhookId>,
        context: Context<'_>,
    ) -> Result<Receipt, PublishError> {
        let inner = &self.0;
        let mut renewals = 0;
        for _ in 0..MAX_FAN_OUTS {
            let store = &*inner.store;
            let subject = event.subject.as_deref();
            let fan_out =
                inner.registry.fan_out(store, &event.tenant, &event.event_type, subject, only).await?;
            let Some(mut fan_out) = fan_out else { return Err(PublishError::NoTenant) };
            fan_out.hooks.retain(|hook| !hook.has_expired(inner.clock.confirmed_now()));
            inner.leave_out_filtered(event, only, &mut fan_out.hooks, context.batch).await?;
            let deliveries = fan_out.hooks.len();
            // What is Redrive's own is in nobody's catalogue.
            if only.is_none()
                && !event_type::is_reserved(&event.event_type)
                && let Err(refused) = inner.check_standing(event, &fan_out.standing, context.batch).await
            {
                match inner.reconsidered(event, fan_out, refused, context.batch).await? {
                    Some(receipt) => return Ok(receipt),
                    None => continue,
                }
            }
            // Checks may have taken a while: the epoch is the one of now.
            let term = inner.fleet.term();
            match inner.commit(&term, event, fan_out, context).await? {
                Published::ConfigChanged => inner.registry.refresh(store, &event.tenant).await?,
                Published::New { sequence_number } => {
                    inner.metrics.published.inc();
                    return Ok(Receipt {
                        event: event.id,
                        timestamp: event.timestamp,
                        sequence_number: Some(sequence_number),
                        deliveries: Some(deliveries),
                        duplicate: false,
                    });
                }
                Published::Duplicate { event } => return Ok(inner.repeated(event)),
                Published::KeyReused { event } => return Err(PublishError::KeyReused(event)),
                Published::NoTenant => return Err(PublishError::NoTenant),
                Published::Fenced => {
                    renewals += 1;
                    if renewals > MAX_RENEWALS || !inner.renewed(&term).await {
                        return Err(StoreError::Fenced.into());
                    }
                    true
                }
            };
        }
        Err(PublishError::Store(StoreError::Unavailable("the tenant's webhooks keep changing".into())))
    }
}

/// What a publish is part of.
#[derive(Clone, Copy, Debug, Default)]
struct Context<'a> {
    position: Option<&'a OrderedPosition>,
    batch: Option<&'a BatchProgress>,
}

/// One delivery on its way into the store, with the room it has or has not.
struct Planned {
    id: DeliveryId,
    hook: Arc<Hook>,
    lane: Lane,
    birth: Birth,
    /// Others are told of it by a ticket.
    ticketed: bool,
}

impl Inner {
    fn event(&self, draft: Draft) -> (Event, Option<WebhookId>) {
        let now = self.clock.now();
        let id = EventId::new(now, &clock::randomness());
        let event = Event {
            id,
            tenant: draft.tenant,
            event_type: draft.event_type,
            data: draft.data,
            timestamp: now,
            idempotency_key: draft.idempotency_key,
            source: draft.source,
            subject: draft.subject,
            priority: draft.priority,
            metadata: draft.metadata,
            trace: self.trace_of(id, draft.trace),
            hops: draft.hops,
        };
        (event, draft.only)
    }

    fn repeated(&self, event: EventId) -> Receipt {
        self.metrics.duplicates.inc();
        Receipt { event, timestamp: event.time(), sequence_number: None, deliveries: None, duplicate: true }
    }

    /// What becomes of an event that the catalogue, as it is known here, does not allow. If it repeats one that was
    /// taken before the rules changed, whoever got no answer then gets it now. None: the catalogue was behind.
    async fn reconsidered(
        self: &Arc<Self>,
        event: &Arc<Event>,
        fan_out: FanOut,
        refused: PublishError,
        batch: Option<&BatchProgress>,
    ) -> Result<Option<Receipt>, PublishError> {
        // A check that was not made says nothing about the event.
        if matches!(refused, PublishError::Store(_) | PublishError::BatchTooCostly) {
            return Err(refused);
        }
        let version = fan_out.version;
        if event.idempotency_key.is_some() {
            // Offered by a version that never was, it is only looked up.
            let nowhere = FanOut { version: -1, hooks: Vec::new(), ..fan_out };
            let term = self.fleet.term();
            if let Published::Duplicate { event } =
                self.commit(&term, event, nowhere, Context::default()).await?
            {
                return Ok(Some(self.repeated(event)));
            }
        }
        // One read is enough for all refused events of a batch.
        if batch.is_some_and(|batch| batch.is_current(version)) {
            return Err(refused);
        }
        // No commit would tell that the catalogue is behind.
        self.registry.refresh(&*self.store, &event.tenant).await?;
        match self.registry.version(&event.tenant) == Some(version) {
            true => {
                if let Some(batch) = batch {
                    batch.set_current(version);
                }
                Err(refused)
            }
            false => Ok(None),
        }
    }

    /// Leaves out the webhooks whose filter the payload does not pass. The payload is read only if one of them has a
    /// filter. Redrive's own events, a test for instance, pass always.
    async fn leave_out_filtered(
        &self,
        event: &Arc<Event>,
        only: Option<WebhookId>,
        hooks: &mut Vec<Arc<Hook>>,
        batch: Option<&BatchProgress>,
    ) -> Result<(), PublishError> {
        let passes_always = only.is_some() || event_type::is_reserved(&event.event_type);
        if passes_always || !hooks.iter().any(|hook| hook.has_filter()) {
            return Ok(());
        }
        let work = Filter::work(hooks.iter().filter_map(|hook| hook.filter()), &event.data);
        let (event, mut asked) = (event.clone(), std::mem::take(hooks));
        let tenant = event.tenant.clone();
        let ask = move || {
            let payload = Payload::new(&event.data);
            asked.retain(|hook| hook.wants_payload(&payload));
            asked
        };
        *hooks = self.run_work(&tenant, work, batch, ask).await?;
        Ok(())
    }

    /// Commits an event with one fan-out and hands over what is born leased.
    async fn commit(
        self: &Arc<Self>,
        term: &Arc<Term>,
        event: &Arc<Event>,
        fan_out: FanOut,
        context: Context<'_>,
    ) -> Result<Published, StoreError> {
        let position = context.position;
        if let Some(ordered) = position {
            ordered.order.wait_for_turn(ordered.position).await?;
        }
        let began = clock::ticks();
        let traced = self.nanos_if_recorded(event);
        let transfer = self.transfers.open();
        let planned = self.plan(event, fan_out.hooks);
        let new = NewEvent {
            event: event.clone(),
            claim: event.idempotency_key.as_ref().map(|_| KeyClaim {
                body_hash: event.body_hash(),
                expires_at: event.timestamp + self.settings.idempotency_window,
                confirmed_now: self.clock.confirmed_now(),
            }),
            config_version: fan_out.version,
            epoch: term.epoch,
            deliveries: planned
                .iter()
                .map(|planned| NewDelivery {
                    id: planned.id,
                    webhook: planned.hook.id,
                    format: planned.hook.payload_format,
                    lane: planned.lane.clone(),
                    birth: planned.birth,
                })
                .collect(),
            order: position.cloned(),
        };
        let (answer, answered) = oneshot::channel();
        let (inner, event, term) = (self.clone(), event.clone(), term.clone());
        let done = Box::new(move |result: Result<Published, StoreError>| {
            inner.trace_commit(&event, traced, &result);
            inner.committed(&term, &event, planned, began, &result);
            drop(transfer);
            // The publisher may have gone away; its event is published all the same.
            let _ = answer.send(result);
        });
        self.store.publish(new, done);
        if let Some(batch) = context.batch {
            batch.hand_over();
        }
        if let Some(ordered) = position {
            ordered.order.advance(ordered.position);
        }
        answered.await.unwrap_or_else(|_| Err(StoreError::Unavailable("the store has stopped".into())))
    }

    /// Decides how each delivery is born, reserving room for those that are sent at once.
    fn plan(&self, event: &Event, hooks: Vec<Arc<Hook>>) -> Vec<Planned> {
        let weight = event.weight();
        let issues_tickets = self.issues_tickets();
        let plan = |hook: Arc<Hook>| {
            let ordering = hook.ordering;
            let lane = Lane::at_birth(ordering, &event.event_type, event.priority, false);
            let wait = hook.policy.first_delay();
            let ticketed = issues_tickets && wait.is_zero() && self.is_for_a_ticket(&hook, &lane);
            let birth = if !wait.is_zero() {
                Birth::Waiting(event.timestamp + wait)
            } else if ticketed {
                // If nobody takes it by its ticket, it is found in the store.
                Birth::Waiting(event.timestamp + GRACE)
            } else if self.may_go(&hook, &lane) && self.dispatch.reserve(self.whom(&hook), &lane, weight) {
                Birth::Leased
            } else {
                Birth::Waiting(event.timestamp)
            };
            // A delivery's id takes its event's time: they are kept and forgotten together.
            Planned {
                id: DeliveryId::new(event.timestamp, &clock::randomness()),
                hook,
                lane,
                birth,
                ticketed,
            }
        };
        hooks.into_iter().map(plan).collect()
    }

    fn committed(
        self: &Arc<Self>,
        term: &Arc<Term>,
        event: &Arc<Event>,
        planned: Vec<Planned>,
        began: Duration,
        result: &Result<Published, StoreError>,
    ) {
        match result {
            Ok(Published::New { .. }) => self.hand_over(term, event, planned, began),
            _ => {
                let weight = event.weight();
                for planned in planned.iter().filter(|planned| planned.birth == Birth::Leased) {
                    self.dispatch.unreserve(planned.hook.id, &planned.lane, 1, weight);
                }
            }
        }
        match result {
            Ok(_) => drop(self.metrics.store.works()),
            Err(StoreError::Unavailable(_)) => self.store_failed(),
            Err(_) => {}
        }
    }

    fn hand_over(
        self: &Arc<Self>,
        term: &Arc<Term>,
        event: &Arc<Event>,
        planned: Vec<Planned>,
        began: Duration,
    ) {
        let ticketed = planned.iter().filter(|planned| planned.ticketed).map(|planned| Issue {
            pool: planned.hook.tenant.pool(),
            priority: event.priority,
            webhook: planned.hook.id,
            delivery: planned.id,
        });
        self.issue(ticketed.collect());
        for planned in &planned {
            if let Birth::Waiting(due) = planned.birth {
                self.alarm.ring_at(due);
                if due <= event.timestamp && self.may_go(&planned.hook, &planned.lane) {
                    let moves = self.dispatch.fell_behind(planned.hook.id, &planned.lane);
                    self.carry_out(moves);
                }
            }
        }
        let leased =
            planned.into_iter().filter(|planned| planned.birth == Birth::Leased).map(|planned| Ready {
                id: planned.id,
                term: term.clone(),
                webhook: planned.hook.id,
                lane: planned.lane,
                event: event.clone(),
                format: planned.hook.payload_format,
                attempt: 1,
                created_at: event.timestamp,
                due: event.timestamp,
                rescues: 0,
                deaths: 0,
                began: Some(began),
            });
        let moves = self.dispatch.admit(leased);
        self.carry_out(moves);
    }

    /// Whether a delivery may be sent as it is born, as far as its webhook and its lane go. An order is sent from
    /// the store alone, where the sequence is; and so is what one of several nodes alone may send.
    fn may_go(&self, hook: &Hook, lane: &Lane) -> bool {
        hook.state == WebhookState::Active
            && hook.tenant.is_served()
            && !lane.is_ordered()
            && !self.needs_home(hook)
    }
}
