//! What goes into a store and what comes out: plain data, the same for every backend.

mod dead;
mod event_types;
mod history;
mod keeping;
mod operations;

use std::{net::IpAddr, sync::Arc};

use bytes::Bytes;
use ipnet::IpNet;
use redrive_core::{
    AttemptId, AuditId, DeadReason, DeliveryId, DeliveryStatus, EventId, FailureCategory, KeyId, TenantId,
    Time, WebhookId,
    breaker::{CircuitState, Counts, SavedCircuit},
    event::{Event, PayloadFormat},
    health::Rollup,
    lane::{Lane, Priority},
    tenant::TenantRules,
    webhook::Webhook,
};

pub use dead::*;
pub use event_types::*;
pub use history::*;
pub use keeping::*;
pub use operations::*;

/// Who owns a lease: a number that one start of one node takes and nobody takes again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub i64);

/// An event to be stored together with everything it fans out to.
#[derive(Clone, Debug)]
pub struct NewEvent {
    /// The event.
    pub event: Arc<Event>,
    /// Its claim on an idempotency key; none when the publisher gave no key.
    pub claim: Option<KeyClaim>,
    /// The version of the tenant's webhooks that the fan-out was made from.
    pub config_version: i64,
    /// The node that will send what is born leased.
    pub epoch: Epoch,
    /// One delivery for each webhook that wants it.
    pub deliveries: Vec<NewDelivery>,
}

/// A hold on an idempotency key.
#[derive(Clone, Debug)]
pub struct KeyClaim {
    /// What "the same body" means: a hash over type, subject, source and raw data.
    pub body_hash: [u8; 32],
    /// From when on the key may be used anew.
    pub expires_at: Time,
}

/// A delivery to be made.
#[derive(Clone, Debug)]
pub struct NewDelivery {
    /// Its id, which takes the event's time.
    pub id: DeliveryId,
    /// Who it is owed to.
    pub webhook: WebhookId,
    /// What its body looks like, from now on.
    pub format: PayloadFormat,
    /// Which of the webhook's queues it belongs to.
    pub lane: Lane,
    /// How it is born. What waits in an order is always born waiting.
    pub birth: Birth,
}

/// Where a new delivery goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Birth {
    /// Owned by the publishing node, which has room for it and sends it without asking again.
    Leased,
    /// Waiting in the store until this time.
    Waiting(Time),
}

/// What became of a publish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Published {
    /// Stored, with its place in the tenant's sequence.
    New {
        /// The place.
        sequence_number: i64,
    },
    /// The key was used before for the same body: this is the first event.
    Duplicate {
        /// Its id.
        event: EventId,
    },
    /// The key was used before for another body.
    KeyReused {
        /// The event that has the key.
        event: EventId,
    },
    /// The tenant's webhooks have changed since the fan-out was made: make it again.
    ConfigChanged,
    /// The publishing node's epoch is over: it may not take anything on.
    Fenced,
    /// There is no such tenant.
    NoTenant,
}

/// What one attempt was like.
#[derive(Clone, Debug, PartialEq)]
pub struct Attempt {
    /// Its id; a resend of the same outcome has the same one.
    pub id: AttemptId,
    /// 1 for the first attempt of a delivery.
    pub number: u32,
    /// How it ended.
    pub status: AttemptStatus,
    /// What kind of failure it was.
    pub failure_category: Option<FailureCategory>,
    /// The answer's status code.
    pub http_status_code: Option<u16>,
    /// What went wrong, in words for the webhook's owner.
    pub error_message: Option<String>,
    /// The custom headers sent along, as `name: value` lines with secrets redacted.
    pub custom_headers: Option<Bytes>,
    /// The answer's headers as `name: value` lines.
    pub response_headers: Option<Bytes>,
    /// The first bytes of the answer's body.
    pub response_body_sample: Option<Bytes>,
    /// How long each phase took.
    pub timings: PhaseTimings,
    /// When it was due.
    pub scheduled_at: Time,
    /// When it was sent.
    pub executed_at: Time,
    /// When the next one is due, if there is one.
    pub next_retry_at: Option<Time>,
    /// The state of the webhook's circuit when it was sent.
    pub circuit: CircuitState,
    /// Who sent it.
    pub worker: Arc<str>,
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptStatus {
    /// 2xx.
    Success,
    /// Failed, and the delivery goes on (or was cancelled meanwhile).
    Failed,
    /// Failed, and ended its delivery dead.
    Exhausted,
}

impl AttemptStatus {
    /// The name used everywhere.
    pub fn name(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Failed => "failed",
            Self::Exhausted => "exhausted",
        }
    }
}

/// Microseconds that each phase took; none where the phase did not happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PhaseTimings {
    /// Looking the name up.
    pub dns: Option<u32>,
    /// Connecting.
    pub connect: Option<u32>,
    /// The TLS handshake.
    pub tls: Option<u32>,
    /// From sending to the first byte of the answer.
    pub ttfb: Option<u32>,
    /// All of it.
    pub total: u32,
}

/// What is to be recorded about a leased delivery, in one transaction.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The owner of the lease.
    pub epoch: Epoch,
    /// The delivery.
    pub delivery: DeliveryId,
    /// Its tenant.
    pub tenant: TenantId,
    /// Its webhook.
    pub webhook: WebhookId,
    /// The attempt; none when the delivery ended without one.
    pub attempt: Option<Attempt>,
    /// Where the delivery goes.
    pub next: Next,
    /// Whether the decision took a cancellation into account.
    pub knows_cancel: bool,
    /// Whether the webhook is to be disabled.
    pub disable: Option<Disable>,
    /// What else follows for the webhook.
    pub effects: Effects,
    /// The time of the decision.
    pub at: Time,
}

/// What an outcome changes about its webhook, beside the delivery. Most change nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Effects {
    /// The circuit, where it has moved.
    pub circuit: Option<Box<SavedCircuit>>,
    /// Until when the endpoint asked not to be called.
    pub hold_until: Option<Time>,
    /// Whether it has begun to fail, or stopped failing.
    pub failing: Option<Failing>,
}

/// A change in how a webhook does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failing {
    /// It fails since then.
    Since(Time),
    /// It works again.
    Over,
}

/// That a webhook is to be disabled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disable {
    /// Why.
    pub reason: String,
    /// The URL that gave the cause: a webhook that has another by now is left alone.
    pub url: String,
}

/// Where a delivery goes after an outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Over: the endpoint has it.
    Delivered,
    /// Waits for another attempt.
    Retry {
        /// When it is due.
        due: Time,
    },
    /// Over: given up.
    Dead {
        /// Why.
        reason: DeadReason,
    },
    /// Over: called off.
    Cancelled {
        /// Why.
        reason: String,
    },
}

/// What became of an outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// Recorded now.
    Done {
        /// The tenant's new configuration version, where the webhook was disabled.
        config_version: Option<i64>,
    },
    /// It had been recorded before: a resend.
    Again,
    /// The delivery was cancelled meanwhile, for this reason: decide again.
    CancelRequested(String),
    /// The lease is somebody else's, or the delivery is over.
    Fenced,
}

/// One queue of one webhook.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaneKey {
    /// The webhook.
    pub webhook: WebhookId,
    /// Which of its queues.
    pub lane: Lane,
}

/// A node that comes to work.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewNode {
    /// What its operator calls it.
    pub name: String,
    /// The pools of tenants that it sends for; none if it sends nothing.
    pub pools: Vec<String>,
}

/// Who claims to be alive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roll {
    /// Whether the caller's epoch still stands. If not, what it had is somebody else's.
    pub alive: bool,
    /// What time it is by the store's own clock, if it has one that all nodes share.
    pub time: Option<Time>,
    /// Every node in the order of their epochs, the caller too.
    pub nodes: Vec<Node>,
}

/// A node as the others see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its epoch.
    pub epoch: Epoch,
    /// What its operator calls it.
    pub name: String,
    /// The pools that it sends for.
    pub pools: Vec<String>,
    /// How often it has shown that it is alive.
    pub beats: i64,
}

/// A place in the row of changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark(pub i64);

/// What has changed since a mark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changes {
    /// Where to go on from.
    pub mark: Mark,
    /// What has changed, each named once.
    pub changes: Vec<Change>,
}

/// Something that every node should know.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Change {
    /// A webhook was made, changed or deleted.
    Webhook(TenantId, WebhookId),
    /// A tenant's rules.
    Tenant(TenantId),
    /// Which API keys are valid.
    Keys,
    /// What holds a webhook back.
    Gate(WebhookId),
    /// A leased delivery is to be called off.
    Cancel(WebhookId, DeliveryId),
}

/// A reason to look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hint {
    /// Something waits and is due.
    Work,
    /// Something has changed.
    Change,
}

/// A lane to claim from, and how many deliveries there is room for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneRoom {
    /// The lane.
    pub key: LaneKey,
    /// At most so many.
    pub room: usize,
    /// Whether nobody else may send to the webhook meanwhile.
    pub alone: bool,
}

impl LaneRoom {
    /// So much room for a lane, whoever else sends to its webhook.
    pub fn new(key: LaneKey, room: usize) -> Self {
        Self { key, room, alone: false }
    }
}

/// The lanes that have something due.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DueLanes {
    /// The longest overdue first.
    pub lanes: Vec<LaneKey>,
    /// When to look again if nothing else happens.
    pub next_wake: Option<Time>,
}

/// What was claimed from one lane.
#[derive(Clone, Debug)]
pub struct LaneClaim {
    /// The lane.
    pub key: LaneKey,
    /// The deliveries in the lane's order; leased to the caller now.
    pub deliveries: Vec<Claimed>,
    /// Whether more is due. The lane is then held by the caller, who must claim from it again.
    pub more: bool,
}

/// A delivery that was claimed, with all that is needed to send it.
#[derive(Clone, Debug)]
pub struct Claimed {
    /// Its id.
    pub id: DeliveryId,
    /// Its webhook.
    pub webhook: WebhookId,
    /// The event.
    pub event: Arc<Event>,
    /// What its body looks like.
    pub format: PayloadFormat,
    /// Attempts made so far.
    pub attempt_count: u32,
    /// When it was made.
    pub created_at: Time,
    /// When it was due.
    pub due: Time,
    /// Its place in the order of publishing.
    pub seq: i64,
    /// How often its lease was rescued from a dead node.
    pub rescues: u32,
    /// How often a node died while it was known to be sending it.
    pub deaths: u32,
}

/// How far a rescue or a sweep got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Deliveries moved in this step.
    pub moved: usize,
    /// Whether nothing is left.
    pub finished: bool,
}

/// The webhooks of a tenant that changed after some version.
#[derive(Clone, Debug)]
pub struct ConfigChanges {
    /// The version that this leads to.
    pub version: i64,
    /// Whether there are changes after it.
    pub more: bool,
    /// What holds for the tenant as a whole.
    pub rules: TenantRules,
    /// The version at which its event types last changed; 0 if it never had any.
    pub types_version: i64,
    /// What changed; deleted webhooks included unless everything was asked for.
    pub webhooks: Vec<Webhook>,
}

/// What became of a change to a webhook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Changed {
    /// Stored; the tenant's configuration has this version now.
    Done {
        /// The version.
        version: i64,
    },
    /// Somebody changed the webhook since it was read: read it again.
    Stale,
    /// There is no such webhook, or no such tenant.
    Missing,
}

/// A webhook with the version at which it last changed.
#[derive(Clone, Debug, PartialEq)]
pub struct Versioned {
    /// The webhook.
    pub webhook: Webhook,
    /// The tenant's configuration version of its last change.
    pub revision: i64,
}

/// A tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenant {
    /// Its id.
    pub id: TenantId,
    /// A name for people.
    pub name: Option<String>,
    /// Who sends for it, and how fast.
    pub rules: TenantRules,
    /// When it was made.
    pub created_at: Time,
}

/// An API key, without the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiKey {
    /// Its id.
    pub id: KeyId,
    /// Whose it is; none for an admin key.
    pub tenant: Option<TenantId>,
    /// What it is for, in its owner's words.
    pub name: String,
    /// SHA-256 of the key.
    pub hash: [u8; 32],
    /// What it may do, as bits that the server gives meaning to.
    pub scopes: u32,
    /// Whether it is a session: short-lived, and not listed among the keys.
    pub session: bool,
    /// Where it may be used from; anywhere if empty.
    pub networks: Vec<IpNet>,
    /// When it was made.
    pub created_at: Time,
    /// From when on it is of no use.
    pub expires_at: Option<Time>,
    /// When it was revoked.
    pub revoked_at: Option<Time>,
    /// When it was last used, to about a minute.
    pub last_used_at: Option<Time>,
}

/// How far sealing anew has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rewrapped {
    /// The last webhook that was looked at; none if there was none left.
    pub last: Option<WebhookId>,
    /// How many were sealed anew.
    pub changed: usize,
}

/// Something that somebody changed, or tried to.
#[derive(Clone, Debug, PartialEq)]
pub struct AuditEntry {
    /// Its id, which begins with its time.
    pub id: AuditId,
    /// Whose thing it was; none for what belongs to no tenant.
    pub tenant: Option<TenantId>,
    /// Who did it, in words.
    pub actor: String,
    /// By which key; none for the admin key that was configured, or Redrive itself.
    pub key: Option<KeyId>,
    /// From where; none if nowhere in particular.
    pub address: Option<IpAddr>,
    /// What was done, such as `webhook.update`.
    pub action: String,
    /// The id of the thing; none if it had none yet.
    pub object: Option<String>,
    /// How it ended; none if that is not known, since the process was killed meanwhile.
    pub end: Option<AuditEnd>,
}

/// How a change ended.
#[derive(Clone, Debug, PartialEq)]
pub struct AuditEnd {
    /// `done`, or why not.
    pub result: String,
    /// The id of the thing, where it was made.
    pub object: Option<String>,
    /// The thing before, without its secrets, as JSON.
    pub before: Option<String>,
    /// The thing afterwards, without its secrets, as JSON.
    pub after: Option<String>,
}

/// Which entries are wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditFilter {
    /// Of this tenant; of all and of none if left out.
    pub tenant: Option<TenantId>,
    /// With an action that begins like this.
    pub action: Option<String>,
    /// About this thing.
    pub object: Option<String>,
    /// From this time on.
    pub from: Option<Time>,
    /// Before this time.
    pub to: Option<Time>,
}

/// An event with its place in the tenant's sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredEvent {
    /// The event.
    pub event: Event,
    /// Its place.
    pub sequence_number: i64,
    /// When its payload was erased; the event has neither that nor metadata since.
    pub erased_at: Option<Time>,
}

/// A delivery as stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// Its id.
    pub id: DeliveryId,
    /// Whose it is.
    pub tenant: TenantId,
    /// The event.
    pub event: EventId,
    /// The event's type.
    pub event_type: String,
    /// The webhook.
    pub webhook: WebhookId,
    /// 1 for the first delivery of this event to this webhook, counted up by retries and replays.
    pub round: u32,
    /// Where it stands; `Pending` also while it is leased.
    pub status: DeliveryStatus,
    /// Attempts made so far.
    pub attempt_count: u32,
    /// The status code of the last answer.
    pub last_status_code: Option<u16>,
    /// What kind of failure the last one was.
    pub failure_category: Option<FailureCategory>,
    /// What went wrong last.
    pub last_error: Option<String>,
    /// Why it is dead.
    pub dead_reason: Option<DeadReason>,
    /// Why it was cancelled.
    pub cancel_reason: Option<String>,
    /// When it was made.
    pub created_at: Time,
    /// When it ended.
    pub ended_at: Option<Time>,
    /// The delivery that this one repeats.
    pub replay_of: Option<DeliveryId>,
    /// The delivery that repeats this one.
    pub redriven_as: Option<DeliveryId>,
    /// When it was taken off the list of dead letters.
    pub purged_at: Option<Time>,
    /// How urgent it is.
    pub priority: Priority,
    /// When it is due, while it waits in the store; none when a node has it.
    pub due: Option<Time>,
    /// The one that must be over before this one may start, while it waits in an order behind it.
    pub behind: Option<DeliveryId>,
}

/// An attempt with the delivery it belongs to.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredAttempt {
    /// The delivery.
    pub delivery: DeliveryId,
    /// The event.
    pub event: EventId,
    /// The webhook.
    pub webhook: WebhookId,
    /// The attempt.
    pub attempt: Attempt,
}

/// Which part of a listing to give, newest first.
#[derive(Clone, Copy, Debug)]
pub struct PageRequest<C> {
    /// Only what comes after this one in the listing.
    pub after: Option<C>,
    /// Leave out so many first.
    pub offset: u32,
    /// At most so many.
    pub limit: u32,
}

/// What became of a request to deliver something again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Redriven {
    /// It was still pending and is due now.
    DueNow(DeliveryId),
    /// It was over; a new round was made.
    NewRound(DeliveryId),
    /// It was redriven before: this is the round that it became.
    AlreadyAs(DeliveryId),
    /// There is nothing to send any more: the payload was erased.
    Erased,
    /// There is no such delivery.
    Missing,
}

/// A new round for one webhook.
#[derive(Clone, Debug)]
pub struct NewRound {
    /// The new delivery's id.
    pub id: DeliveryId,
    /// The webhook.
    pub webhook: WebhookId,
    /// The body's format.
    pub format: PayloadFormat,
    /// Which of the webhook's queues it belongs to. In an order it goes to the back.
    pub lane: Lane,
}

/// What became of a replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Replayed {
    /// New rounds were made.
    Done(Vec<DeliveryId>),
    /// This delivery of the event is still pending.
    StillPending(DeliveryId),
    /// There is nothing to send any more: the payload was erased.
    Erased,
    /// There is no such event.
    Missing,
}

/// What became of a cancellation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cancelled {
    /// It is cancelled.
    Done,
    /// A node has it: it will be cancelled unless the request under way succeeds.
    Requested,
    /// It was over before.
    Over(DeliveryStatus),
    /// There is no such delivery.
    Missing,
}

/// How the new round of a delivery is made, should it be over; see [`NewRound`].
#[derive(Clone, Debug)]
pub struct Again {
    /// The id of the new round.
    pub id: DeliveryId,
    /// The lane of the new round.
    pub lane: Lane,
    /// How urgent it is from now on; none for as urgent as it was.
    pub priority: Option<Priority>,
}

/// What holds a webhook back, as far as it must be known after a restart.
#[derive(Clone, Debug, PartialEq)]
pub struct Runtime {
    /// The webhook.
    pub webhook: WebhookId,
    /// Its tenant.
    pub tenant: TenantId,
    /// Until when the endpoint asked not to be called.
    pub hold_until: Option<Time>,
    /// Its circuit, unless it is closed and nobody has forced it.
    pub circuit: Option<SavedCircuit>,
    /// When the first of an unbroken row of failures was.
    pub failing_since: Option<Time>,
}

/// A time for which a circuit was open.
#[derive(Clone, Debug, PartialEq)]
pub struct Period {
    /// When it opened.
    pub opened_at: Time,
    /// When it stopped being open; none while it is.
    pub ended_at: Option<Time>,
    /// Whether a person had forced it open.
    pub forced: bool,
    /// What was in the window that opened it.
    pub counts: Counts,
}

/// What was sent to one webhook in one minute.
#[derive(Clone, Debug, PartialEq)]
pub struct MinuteRollup {
    /// The webhook.
    pub webhook: WebhookId,
    /// The beginning of the minute.
    pub minute: Time,
    /// The figures.
    pub rollup: Rollup,
}

/// How much waits in the store for one webhook.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Due: they go as soon as nothing holds the webhook back.
    pub due: u64,
    /// Not due yet.
    pub scheduled: u64,
    /// Behind another one of their order, which waits or is on its way.
    pub in_order: u64,
    /// Whether there is more than was counted.
    pub more: bool,
}

/// Webhooks whose time is over.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Expiring {
    /// Those that have expired, and still get events.
    pub expired: Vec<(TenantId, WebhookId)>,
    /// When the next one does.
    pub next: Option<Time>,
}
