//! The truth: what Redrive remembers, behind narrow traits whose methods are domain verbs.
//!
//! Every backend passes the same conformance suite. Backends hold no policy: what should happen was
//! decided before; here it is written down, all of it or nothing. No clock is read: `now` is an argument.

mod access_path;
pub mod archive;
mod batch;
mod codes;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod copy;
mod error;
mod model;
mod order;
mod overdue;
pub mod postgres;
mod sealed;
pub mod sqlite;
mod tenant_reads;

use std::{collections::BTreeMap, future::Future, pin::Pin, sync::Arc};

use redrive_core::{
    AuditId, DeliveryId, EventId, KeyId, NoticeId, OperationId, TenantId, Time, WebhookId,
    cluster::clock_discipline::SetBack,
    delivery::bulk_operation::OperationState,
    delivery::lane::Priority,
    maintenance::durability::Durability,
    notification::{Cause, Kind, confirmation::ConfirmedBy, grouping::Folds},
    protection::breaker::SavedCircuit,
    security::vault::MasterKeyId,
    statistics::traffic::{Grain, Traffic},
    tenancy::TenantRules,
    webhook::Webhook,
};

pub use error::{OpenError, StoreError};
pub use model::*;
pub use order::{OrderedPosition, PublishOrder};

/// What a verb answers, later.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// Called once when a batched verb is over; it must not block. It runs even if whoever asked has gone away,
/// so that a committed lease always reaches the one who sends.
pub type Done<T> = Box<dyn FnOnce(Result<T, StoreError>) + Send>;

/// Taking events in.
pub trait Publish {
    /// Stores an event and all its deliveries, or nothing. Commits are shared with whatever else waits.
    fn publish(&self, event: NewEvent, done: Done<Published>);
}

/// Writing down what happened.
pub trait Record {
    /// Records an outcome of a delivery that the caller's epoch has leased.
    fn record(&self, outcome: Arc<Outcome>, done: Done<Recorded>);
}

/// Handing out waiting work.
pub trait Claim {
    /// The lanes of these pools with something due that nobody holds, nothing blocks, and whose webhook is at
    /// home nowhere else than with this epoch.
    fn due_lanes(&self, epoch: Epoch, pools: Vec<String>, now: Time, limit: usize) -> Answer<'_, DueLanes>;
    /// Leases due deliveries from these lanes, as many as each has room for and `max_bytes` of payload in
    /// all. A lane with more due is held by this epoch until a claim from it finds nothing more. An order is
    /// given from its first on, and not at all while somebody has some of it; if the caller has, and more
    /// of it is due, the lane is held and there is more.
    ///
    /// What is claimed `alone` makes the caller the home of its webhook: from then on nobody else is given
    /// anything of it, until the home has left it or is rescued.
    fn claim(
        &self,
        epoch: Epoch,
        now: Time,
        lanes: Vec<LaneRoom>,
        max_bytes: usize,
    ) -> Answer<'_, Vec<LaneClaim>>;
    /// Leases these deliveries, as far as they wait where they should, are due by then, and fit into `max_bytes` of
    /// payload. Left out is whatever is leased or over, in an order, of a webhook that is blocked now, or of one
    /// that is at home elsewhere; and what somebody else is just taking. Nobody's lane is held for it.
    fn take(
        &self,
        epoch: Epoch,
        now: Time,
        by: Time,
        wanted: Vec<Wanted>,
        max_bytes: usize,
    ) -> Answer<'_, Vec<Claimed>>;
    /// Gives leased deliveries back, due at the time named with each. Their lanes are held no longer.
    fn release(&self, epoch: Epoch, now: Time, deliveries: Vec<(DeliveryId, Time)>) -> Answer<'_, usize>;
    /// Is the home of these webhooks no longer, nor holds any of their lanes.
    fn leave(&self, epoch: Epoch, webhooks: Vec<WebhookId>) -> Answer<'_, ()>;
    /// What an epoch owns: up to `limit` leases after this one in the order of their ids and, without `after`, up to
    /// `limit` lanes that it holds and `limit` webhooks that are assigned to it.
    fn owned_by(&self, epoch: Epoch, after: Option<DeliveryId>, limit: usize) -> Answer<'_, Owned>;
    /// Notes that a delivery which was rescued before is about to be sent. False if the lease is lost.
    fn mark_sending(&self, epoch: Epoch, delivery: DeliveryId) -> Answer<'_, bool>;
}

/// Who is at work, and what the dead left behind.
pub trait Nodes {
    /// Takes a new epoch.
    fn join(&self, node: NewNode, now: Time) -> Answer<'_, Epoch>;
    /// Shows that an epoch is alive, and tells who else claims to be.
    fn beat(&self, epoch: Epoch) -> Answer<'_, Roll>;
    /// Whether several processes may use this store at once. Where not, every other epoch is over.
    fn is_shared(&self) -> bool;
    /// Every epoch but this one that still has a row, a lease or a lane.
    fn others(&self, than: Epoch) -> Answer<'_, Vec<Epoch>>;
    /// Ends an epoch that has not beaten since it was seen to have so many beats. False: it has, or is over.
    fn end(&self, epoch: Epoch, beats: i64) -> Answer<'_, bool>;
    /// Ends an epoch and makes up to `limit` of its deliveries wait again, due now.
    fn rescue(&self, dead: Epoch, now: Time, limit: usize) -> Answer<'_, Step>;
    /// What has changed since a mark, each change once, the caller's own included; without a mark, only a mark to begin
    /// with. The cost does not grow with the age of transactions that other programs keep open. A store that is not shared
    /// reports no changes.
    fn changes(&self, since: Option<Mark>) -> Answer<'_, Changes>;
    /// Forgets changes that everybody has been told by this mark.
    fn forget_changes(&self, before: Mark) -> Answer<'_, ()>;
    /// Has `call` called, soon and at most a few hundred times a second, when another node (or this one) has
    /// given cause to look: a hint, which may be lost. It must not block.
    fn on_hint(&self, call: Box<dyn Fn(Hint) + Send + Sync>);
    /// Has `carry` take hints to the other nodes in the store's stead, each of them; false from it: it cannot just now.
    fn carry_hints(&self, carry: Box<dyn Fn(Hint) -> bool + Send + Sync>);
}

/// What holds webhooks back: stored once on the webhook, never on its deliveries.
pub trait Gates {
    /// Every webhook with a circuit, a hold or a row of failures to remember.
    fn troubled(&self) -> Answer<'_, Vec<Runtime>>;
    /// The same for these webhooks alone, and also those whose circuit has closed, for its generation.
    fn trouble_of(&self, webhooks: Vec<WebhookId>) -> Answer<'_, Vec<Runtime>>;
    /// Stores a circuit after a transition. Returns false if a newer generation is stored, which is kept. A cause is
    /// recorded with it if the stored circuit makes that very transition (`core::notice::of_move`).
    fn set_circuit(
        &self,
        tenant: TenantId,
        webhook: WebhookId,
        circuit: SavedCircuit,
        cause: Option<Cause>,
    ) -> Answer<'_, bool>;
    /// The times for which the circuit of a tenant's webhook was open and that were not over at `from`, oldest first.
    fn circuit_periods(
        &self,
        tenant: TenantId,
        webhook: WebhookId,
        from: Time,
        limit: usize,
    ) -> Answer<'_, Vec<Period>>;
    /// The times for which circuits of a tenant were open, those that opened last first.
    fn incidents(&self, tenant: TenantId, visibility: Visibility, limit: usize) -> Answer<'_, Vec<Incident>>;
    /// Up to `limit` of a tenant's webhooks whose circuits are not closed, or were set manually.
    fn circuits(&self, tenant: TenantId, visibility: Visibility, limit: usize) -> Answer<'_, Vec<Runtime>>;
    /// The times for which the circuits of several webhooks of a tenant were open, in one read; webhooks without such times are left out.
    fn circuit_periods_of(
        &self,
        tenant: TenantId,
        webhooks: Vec<WebhookId>,
        from: Time,
        limit: usize,
    ) -> Answer<'_, Vec<(WebhookId, Vec<Period>)>>;
    /// How much waits for each of these webhooks; counts no further than `most` of each kind. `for_tenant` is the tenant
    /// that asked; none for the engine itself.
    fn backlogs(
        &self,
        for_tenant: Option<TenantId>,
        webhooks: Vec<WebhookId>,
        now: Time,
        most: usize,
    ) -> Answer<'_, Vec<(WebhookId, Backlog)>>;
    /// The webhooks of a tenant for which something waits. Looks at no more than so many webhooks.
    fn backlogged(&self, tenant: TenantId, look_at: usize) -> Answer<'_, Backlogged>;
    /// The webhooks after this one for which something waits, each with the age of its oldest delivery.
    fn oldest(&self, after: Option<WebhookId>, limit: usize) -> Answer<'_, Vec<(WebhookId, Time)>>;
    /// Ends up to `limit` waiting deliveries of a webhook that were made before a time, as expired. A cause is written
    /// down with them, with their number and the last of them; those of Redrive's own events do not count.
    fn expire(
        &self,
        webhook: WebhookId,
        made_before: Time,
        now: Time,
        limit: usize,
        cause: Option<Cause>,
    ) -> Answer<'_, Step>;
    /// Webhooks that were to be disabled or verified by now, the longest due first. Verifications of the tenants in
    /// `except` are left out.
    fn expiring(&self, now: Time, limit: usize, except: Vec<TenantId>) -> Answer<'_, Expiring>;
}

/// How webhooks and tenants do: what was sent, counted by the minute and by the hour.
pub trait Figures {
    /// Adds to what is known of webhooks' minutes and of tenants' minutes and hours: all of it or nothing.
    fn add_figures(&self, minutes: Vec<MinuteRollup>, traffic: Vec<TenantRollup>) -> Answer<'_, ()>;
    /// The minutes of these webhooks from this time on, webhook by webhook, oldest first. `for_tenant` is the tenant that
    /// asked; none for the engine itself.
    fn rollups(
        &self,
        for_tenant: Option<TenantId>,
        webhooks: Vec<WebhookId>,
        from: Time,
    ) -> Answer<'_, Vec<MinuteRollup>>;
    /// When each of these webhooks last took a delivery in a minute that began no later than the time named with
    /// it; those of which nothing is known are left out.
    fn last_successes(
        &self,
        for_tenant: TenantId,
        asked: Vec<(WebhookId, Time)>,
    ) -> Answer<'_, Vec<(WebhookId, Time)>>;
    /// A tenant's minutes or hours from this time on, oldest first.
    fn traffic(&self, tenant: TenantId, grain: Grain, from: Time) -> Answer<'_, Vec<(Time, Traffic)>>;
    /// How many attempts failed from this time on, by webhook. Looks at no more than the latest `most` minutes of
    /// webhooks with a failure.
    fn failures(&self, tenant: TenantId, from: Time, most: usize) -> Answer<'_, Failures>;
    /// Forgets up to `limit` minutes of webhooks that lie before this time.
    fn forget_rollups(&self, before: Time, limit: usize) -> Answer<'_, usize>;
    /// Forgets up to `limit` minutes and hours of tenants that are to be kept no longer.
    fn forget_traffic(&self, now: Time, limit: usize) -> Answer<'_, usize>;
}

/// Webhooks, and the version that fan-out is checked against.
pub trait Webhooks {
    /// Stores a new webhook.
    fn create_webhook(&self, webhook: Webhook) -> Answer<'_, Changed>;
    /// Replaces a webhook that has not changed since `revision`. One that no longer gets events has its
    /// waiting deliveries swept up from then on. A cause is written down with the change.
    fn change_webhook(&self, webhook: Webhook, revision: i64, cause: Option<Cause>) -> Answer<'_, Changed>;
    /// One webhook, unless it was deleted.
    fn webhook(&self, tenant: TenantId, id: WebhookId) -> Answer<'_, Option<Versioned>>;
    /// Webhooks by id, deleted ones too, of whatever tenant: for deliveries that are claimed.
    fn webhooks_by_id(&self, ids: Vec<WebhookId>) -> Answer<'_, Vec<Webhook>>;
    /// Webhooks of a tenant by id, deleted ones too: for the tenant's own users.
    fn tenant_webhooks_by_id(&self, tenant: TenantId, ids: Vec<WebhookId>) -> Answer<'_, Vec<Webhook>>;
    /// A tenant's webhooks, newest first.
    fn list_webhooks(
        &self,
        tenant: TenantId,
        visibility: Visibility,
        page: PageRequest<WebhookId>,
    ) -> Answer<'_, Vec<Webhook>>;
    /// The first `limit` changes after `version`; everything that is not deleted after version 0. None: no
    /// such tenant.
    fn config_changes(
        &self,
        tenant: TenantId,
        version: i64,
        limit: usize,
    ) -> Answer<'_, Option<ConfigChanges>>;
    /// Webhooks whose waiting deliveries are still to be swept up, without what is confidential about them.
    fn sweeping(&self) -> Answer<'_, Vec<Webhook>>;
    /// Cancels up to `limit` waiting deliveries of a webhook that no longer gets events.
    fn sweep(&self, webhook: WebhookId, reason: String, now: Time, limit: usize) -> Answer<'_, Step>;
}

/// The catalogue of event types. Every change is a change of the tenant's configuration.
pub trait EventTypes {
    /// Registers an event type, unless the tenant has `most` already.
    fn create_event_type(&self, event_type: EventType, most: usize) -> Answer<'_, Registered>;
    /// Replaces an event type that has not changed since `revision`.
    fn change_event_type(&self, event_type: EventType, revision: i64) -> Answer<'_, Changed>;
    /// Forgets an event type; false if there is none of this name.
    fn delete_event_type(&self, tenant: TenantId, name: String) -> Answer<'_, bool>;
    /// One event type.
    fn event_type(&self, tenant: TenantId, name: String) -> Answer<'_, Option<VersionedType>>;
    /// A tenant's event types in the order of their names.
    fn list_event_types(
        &self,
        tenant: TenantId,
        archived: Option<bool>,
        page: PageRequest<String>,
    ) -> Answer<'_, Vec<EventType>>;
    /// The first `limit` that have changed after `revision`, in the order in which they did.
    fn event_types_since(
        &self,
        tenant: TenantId,
        revision: i64,
        limit: usize,
    ) -> Answer<'_, Vec<VersionedType>>;
    /// The names of all of them.
    fn event_type_names(&self, tenant: TenantId) -> Answer<'_, Vec<String>>;
}

/// Tenants and the keys that act for them.
pub trait Tenancy {
    /// Makes a tenant; false if it exists.
    fn create_tenant(&self, tenant: Tenant) -> Answer<'_, bool>;
    /// Replaces a tenant's name and rules; false if there is no such tenant. Fan-outs made before are refused.
    fn change_tenant(&self, tenant: Tenant) -> Answer<'_, bool>;
    /// Ends a tenant: its keys are revoked, it publishes nothing any more, and its name is never used again. Its
    /// webhooks must be gone by then. False: no such tenant.
    fn delete_tenant(&self, id: TenantId, now: Time) -> Answer<'_, bool>;
    /// One tenant.
    fn tenant(&self, id: TenantId) -> Answer<'_, Option<Tenant>>;
    /// Tenants in the order of their names.
    fn list_tenants(&self, page: PageRequest<TenantId>) -> Answer<'_, Vec<Tenant>>;
    /// Stores a key; false if its tenant does not exist.
    fn create_key(&self, key: ApiKey) -> Answer<'_, bool>;
    /// Every key that is not revoked.
    fn live_keys(&self) -> Answer<'_, Vec<ApiKey>>;
    /// The keys of a tenant, or with none the admin keys; revoked ones included, newest first.
    fn list_keys(&self, tenant: Option<TenantId>, page: PageRequest<KeyId>) -> Answer<'_, Vec<ApiKey>>;
    /// Revokes a key; false if there is no such live key of that tenant.
    fn revoke_key(&self, tenant: Option<TenantId>, id: KeyId, now: Time) -> Answer<'_, bool>;
    /// Notes when keys were last used.
    fn note_key_use(&self, uses: Vec<(KeyId, Time)>) -> Answer<'_, ()>;
    /// Forgets up to `limit` keys for sessions that are over since this time.
    fn forget_sessions(&self, before: Time, limit: usize) -> Answer<'_, usize>;
}

/// Sessions of browsers. Revoking a key and deleting a tenant delete the sessions that their keys began.
pub trait BrowserSessions {
    /// Stores a session and deletes the oldest of the same key, so that at most `max_per_key` remain.
    fn create_browser_session(&self, session: BrowserSession, max_per_key: usize) -> Answer<'_, ()>;
    /// The session with this id, whether expired or not.
    fn browser_session(&self, id: [u8; 32]) -> Answer<'_, Option<BrowserSession>>;
    /// Deletes a session; false if there is none with this id.
    fn delete_browser_session(&self, id: [u8; 32]) -> Answer<'_, bool>;
    /// The sessions of a key that expire after `now`, newest first.
    fn browser_sessions_of_key(&self, key_hash: [u8; 32], now: Time) -> Answer<'_, Vec<BrowserSession>>;
    /// Deletes all sessions of a key, and returns their number.
    fn delete_browser_sessions_of_key(&self, key_hash: [u8; 32]) -> Answer<'_, usize>;
    /// Deletes up to `limit` sessions that expired before this time, and returns their number.
    fn prune_browser_sessions(&self, before: Time, limit: usize) -> Answer<'_, usize>;
}

/// Looking back. Every question names its tenant.
pub trait History {
    /// One event.
    fn event(&self, tenant: TenantId, id: EventId) -> Answer<'_, Option<StoredEvent>>;
    /// Events, newest first. A cursor and what follows it stay what they are, whatever is written meanwhile.
    fn list_events(
        &self,
        tenant: TenantId,
        filter: EventFilter,
        page: PageRequest<EventId>,
    ) -> Answer<'_, Listed<StoredEvent, EventId>>;
    /// One delivery.
    fn delivery(&self, tenant: TenantId, id: DeliveryId) -> Answer<'_, Option<Delivery>>;
    /// Deliveries, newest event first.
    fn list_deliveries(
        &self,
        tenant: TenantId,
        filter: DeliveryFilter,
        page: PageRequest<DeliveryCursor>,
    ) -> Answer<'_, Listed<Delivery, DeliveryCursor>>;
    /// Dead deliveries that were not redriven, newest event first.
    fn list_dead(
        &self,
        tenant: TenantId,
        filter: DeliveryFilter,
        page: PageRequest<DeliveryCursor>,
    ) -> Answer<'_, Listed<Delivery, DeliveryCursor>>;
    /// Counts dead letters, no more than `most` of them. Of a filter, only what is about webhooks, event types,
    /// failure categories, reasons, recoverability and times counts. `bounds` are times from the latest to the
    /// earliest, by which ages are told apart.
    fn count_dead(
        &self,
        tenant: TenantId,
        filter: DeliveryFilter,
        bounds: [Time; 2],
        most: usize,
    ) -> Answer<'_, DeadCount>;
    /// How many dead letters a tenant has; counts no further than `most`.
    fn dead_size(&self, tenant: TenantId, most: usize) -> Answer<'_, usize>;
    /// The attempts of a delivery, first to last. None: no such delivery.
    fn attempts(&self, tenant: TenantId, delivery: DeliveryId) -> Answer<'_, Option<Vec<StoredAttempt>>>;
    /// The attempts of all deliveries of an event, oldest delivery first. None: no such event.
    fn attempts_of_event(&self, tenant: TenantId, event: EventId) -> Answer<'_, Option<Vec<StoredAttempt>>>;
}

/// Delivering again, or no more.
pub trait Redrive {
    /// Makes a pending delivery due now, or an ended one a new round.
    fn retry(&self, tenant: TenantId, delivery: DeliveryId, again: Again, now: Time) -> Answer<'_, Redriven>;
    /// Makes a new round for each webhook, or none at all.
    fn replay(
        &self,
        tenant: TenantId,
        event: EventId,
        rounds: Vec<NewRound>,
        priority: Option<Priority>,
        now: Time,
    ) -> Answer<'_, Replayed>;
    /// Calls a delivery off.
    fn cancel(
        &self,
        tenant: TenantId,
        delivery: DeliveryId,
        reason: String,
        now: Time,
    ) -> Answer<'_, Cancelled>;
}

/// Bulk operations. One node at a time carries each on; whoever comes after it goes on where it stopped.
pub trait Operations {
    /// Stores a new one.
    fn create_operation(&self, operation: Operation) -> Answer<'_, ()>;
    /// One operation.
    fn operation(&self, tenant: TenantId, id: OperationId) -> Answer<'_, Option<Operation>>;
    /// A tenant's operations, newest first.
    fn list_operations(&self, tenant: TenantId, page: PageRequest<OperationId>)
    -> Answer<'_, Vec<Operation>>;
    /// Moves an operation from one state to another; false if it is not in that one.
    fn turn_operation(
        &self,
        tenant: TenantId,
        id: OperationId,
        from: OperationState,
        to: OperationState,
        now: Time,
    ) -> Answer<'_, bool>;
    /// Takes on up to `limit` operations that are due and that nobody alive carries on, other than those named.
    fn take_operations(
        &self,
        epoch: Epoch,
        but: Vec<OperationId>,
        now: Time,
        limit: usize,
    ) -> Answer<'_, Vec<Operation>>;
    /// Notes how many there are to do.
    fn count_operation(&self, id: OperationId, epoch: Epoch, total: u64) -> Answer<'_, ()>;
    /// Takes a step.
    fn step_operation(&self, step: OperationStep) -> Answer<'_, Stepped>;
    /// Looks at up to `limit` deliveries that an operation has queued, and notes which have ended how.
    fn settle_operation(
        &self,
        id: OperationId,
        epoch: Epoch,
        after: Option<DeliveryId>,
        limit: usize,
    ) -> Answer<'_, Settled>;
    /// Nothing is left to be known about it: nobody carries it on any more.
    fn close_operation(&self, id: OperationId, epoch: Epoch, now: Time) -> Answer<'_, ()>;
    /// Deliveries, oldest event first.
    fn walk_deliveries(&self, tenant: TenantId, walk: Walk) -> Answer<'_, Walked>;
    /// Events, oldest first.
    fn walk_events(
        &self,
        tenant: TenantId,
        from: Option<Time>,
        to: Option<Time>,
        after: Option<EventId>,
        limit: usize,
    ) -> Answer<'_, Vec<EventHead>>;
    /// Forgets up to `limit` operations that were over before this time.
    fn forget_operations(&self, before: Time, limit: usize) -> Answer<'_, usize>;
}

/// What is stored sealed, and with which master key.
pub trait Secrets {
    /// The master keys that webhooks are sealed with.
    fn sealed_with(&self) -> Answer<'_, Vec<MasterKeyId>>;
    /// Seals the next `limit` webhooks after this one with the current master key, as far as they are not.
    fn rewrap(&self, after: Option<WebhookId>, limit: usize) -> Answer<'_, Rewrapped>;
}

/// Who changed what. Entries are only ever added, and forgotten when they are old.
pub trait Audit {
    /// Notes that somebody is about to change something.
    fn begin_audit(&self, entry: AuditEntry) -> Answer<'_, ()>;
    /// Notes how it went, once.
    fn finish_audit(&self, id: AuditId, end: AuditEnd) -> Answer<'_, ()>;
    /// Entries of a tenant, or with none of all, newest first.
    fn list_audit(&self, filter: AuditFilter, page: PageRequest<AuditId>) -> Answer<'_, Vec<AuditEntry>>;
    /// Forgets up to `limit` entries from before this time.
    fn forget_audit(&self, before: Time, limit: usize) -> Answer<'_, usize>;
}

/// Addresses that notifications are sent to: whether they are confirmed, and how many e-mails were sent. Addresses are
/// deleted with their tenant; the usage of limits is not, so that no limit is reset by that.
pub trait MailAddresses {
    /// Requests a confirmation e-mail for an address, within the limits of the reservation. An address without a request
    /// is stored only if the limits allow one.
    fn request_confirmation(&self, reservation: MailReservation) -> Answer<'_, ConfirmationRequestResult>;
    /// When the next requested confirmation e-mail is to be sent.
    fn next_confirmation(&self) -> Answer<'_, Option<Time>>;
    /// Takes up to `limit` requested confirmation e-mails that are due. Each is taken once: if its taker dies, it is not
    /// sent, so that no crash sends more than the limits allow.
    fn take_confirmations(&self, now: Time, limit: usize) -> Answer<'_, Vec<MailAddress>>;
    /// Schedules a confirmation e-mail that was taken and certainly not sent.
    fn retry_confirmation(&self, tenant: TenantId, address: String, send_at: Time) -> Answer<'_, ()>;
    /// Marks an address as confirmed. Returns false if it was already, or there is no such tenant.
    fn confirm_address(
        &self,
        tenant: TenantId,
        address: String,
        by: ConfirmedBy,
        now: Time,
    ) -> Answer<'_, bool>;
    /// What is known of these addresses of a tenant, by address: for the tenant's own users.
    fn mail_addresses(&self, tenant: TenantId, addresses: Vec<String>) -> Answer<'_, Vec<MailAddress>>;
    /// What is known of these addresses of a tenant, by address: for the sender of notifications, which does not wait
    /// for the reads of the tenant's users.
    fn recipient_addresses(&self, tenant: TenantId, addresses: Vec<String>) -> Answer<'_, Vec<MailAddress>>;
    /// Counts an e-mail against its limits, or returns which one is reached.
    fn reserve_mail(&self, reservation: MailReservation) -> Answer<'_, ReserveResult>;
    /// Returns a reservation whose e-mail was not sent.
    fn release_mail(&self, reservation: MailReservation) -> Answer<'_, ()>;
    /// Deletes up to `limit` unconfirmed addresses whose last request was before the first time, and up to `limit`
    /// records of usage that were last changed before the second.
    fn prune_mail_addresses(&self, unconfirmed: Time, usage: Time, limit: usize) -> Answer<'_, usize>;
}

/// Addresses that do not want to hear of something any more. They go with their tenant.
pub trait Unsubscribing {
    /// Notes that an address is not told of a kind any more. False: it was not anyway, or there is no such tenant.
    fn unsubscribe(&self, tenant: TenantId, address: String, kind: Kind, now: Time) -> Answer<'_, bool>;
    /// Tells an address of a kind again, or with none of everything. Gives how many kinds that changes.
    fn resubscribe(&self, tenant: TenantId, address: String, kind: Option<Kind>) -> Answer<'_, usize>;
    /// Who is not told of a kind any more, of these addresses.
    fn unsubscribed(&self, tenant: TenantId, kind: Kind, of: Vec<String>) -> Answer<'_, Vec<String>>;
    /// All of a tenant, by address and kind.
    fn list_unsubscribed(
        &self,
        tenant: TenantId,
        page: PageRequest<UnsubscribedCursor>,
    ) -> Answer<'_, Vec<Unsubscribed>>;
}

/// What owners are told without asking: what stands, folded, and the notices that are made of it.
pub trait Notices {
    /// Writes causes down that belong to no other change.
    fn note(&self, causes: Vec<Cause>) -> Answer<'_, ()>;
    /// When there is something to do next: to make a notice, or to send one. What stands may have to wait longer.
    fn next_notice(&self) -> Answer<'_, Option<Time>>;
    /// Makes notices of what is due to be told, as many as there are ids for; nothing more is told of each until its
    /// time is over. Gives how many. See `core::notice::fold`.
    fn make_notices(&self, now: Time, folds: Folds, fresh: Vec<NoticeId>) -> Answer<'_, usize>;
    /// Hands out notices that are to be sent by now, the oldest first. Nobody else gets them until `hold_until`, unless
    /// whoever has them says so.
    fn take_notices(&self, now: Time, hold_until: Time, limit: usize) -> Answer<'_, Vec<StoredNotice>>;
    /// Notes what came of sending one. What is over on every way is not sent again.
    fn notice_told(&self, id: NoticeId, channel: Channel, told: Told) -> Answer<'_, ()>;
    /// A tenant's notices, newest first.
    fn list_notices(&self, tenant: TenantId, page: PageRequest<NoticeId>) -> Answer<'_, Vec<StoredNotice>>;
    /// Forgets up to `limit` notices from before this time, and as many standings that were quiet since then.
    fn forget_notices(&self, before: Time, limit: usize) -> Answer<'_, usize>;
}

/// What nodes remember about their clock, and what they change when time goes back.
pub trait Clocks {
    /// What is stored about the clock.
    fn clock_state(&self) -> Answer<'_, ClockState>;
    /// Stores a confirmed time, for the next start to compare with.
    fn store_confirmed_time(&self, confirmed_at: Time) -> Answer<'_, ()>;
    /// Counts a confirmation by an operator, which every node acts on. Returns their number.
    fn confirm_clock(&self) -> Answer<'_, i64>;
    /// Time went back: moves the due times of up to `limit` lanes after this one, as far as they may have been computed
    /// from the time that is no longer used, and has those lanes looked at now. Returns the last of them, or none if
    /// there were fewer.
    fn set_due_back(
        &self,
        set_back: SetBack,
        now: Time,
        after: Option<LaneCursor>,
        limit: usize,
    ) -> Answer<'_, Option<LaneCursor>>;
    /// Time went back: moves the times until which endpoints asked not to be called.
    fn set_holds_back(&self, set_back: SetBack) -> Answer<'_, usize>;
}

/// Housekeeping and health.
pub trait Upkeep {
    /// Forgets up to `limit` idempotency keys that have expired.
    fn forget_keys(&self, now: Time, limit: usize) -> Answer<'_, usize>;
    /// Makes room for events up to this time, where that has to be made.
    fn prepare(&self, until: Time) -> Answer<'_, ()>;
    /// Whether the store can be written now.
    fn ping(&self) -> Answer<'_, ()>;
    /// The settings of the server on which it depends that commits survive a crash; none where there is no server.
    fn durability(&self) -> Answer<'_, Option<Durability>>;
    /// For each pool with something due in the store, since when its longest overdue delivery is due. Where a node has
    /// taken lanes on, no more than a thousand of them are looked into.
    fn overdue(&self, now: Time) -> Answer<'_, BTreeMap<String, Time>>;
    /// Figures for the metrics page.
    fn vitals(&self) -> Answer<'_, Vitals>;
    /// How many tenants have more dead letters than this.
    fn crowded(&self, dead: usize) -> Answer<'_, u64>;
    /// How many reads this process has run since the store was opened.
    fn read_count(&self) -> u64;
}

/// Taking payloads away for good, while their history stays.
pub trait Erase {
    /// Takes an event's payload and metadata away. From then on no round of it is made.
    fn erase(&self, tenant: TenantId, event: EventId, now: Time) -> Answer<'_, Erased>;
    /// Takes away what endpoints answered to it, which may repeat it: of up to `limit` deliveries. Gives of how many.
    fn erase_answers(&self, tenant: TenantId, event: EventId, limit: usize) -> Answer<'_, usize>;
    /// Events about a subject whose payloads are still there, the oldest first.
    fn events_to_erase(&self, tenant: TenantId, subject: String, limit: usize) -> Answer<'_, Vec<EventId>>;
}

/// Forgetting what is old, in steps that hold nobody up. What has a delivery that is not over is never old.
pub trait Retain {
    /// The tenants after this one, those that are gone too, with what holds for them.
    fn retained(&self, after: Option<TenantId>, limit: usize) -> Answer<'_, Vec<(TenantId, TenantRules)>>;
    /// When the oldest event of a tenant was published that is still there.
    fn oldest_event(&self, tenant: TenantId) -> Answer<'_, Option<Time>>;
    /// Forgets events that were published before a time, the oldest first, with their deliveries and attempts.
    /// One with a delivery that is not over is passed by.
    fn prune_events(&self, old: Old<EventId>) -> Answer<'_, Pruned<EventId>>;
    /// Forgets dead letters that died before a time, with their attempts. Their events stay.
    fn prune_dead(&self, old: Old<DeliveryId>) -> Answer<'_, Pruned<DeliveryId>>;
    /// The webhooks after this one with periods of their circuits, and whose they are.
    fn with_periods(&self, after: Option<WebhookId>, limit: usize) -> Answer<'_, Vec<(WebhookId, TenantId)>>;
    /// Forgets up to `limit` periods of circuits that were over before the time named with each webhook.
    fn forget_periods(&self, old: Vec<(WebhookId, Time)>, limit: usize) -> Answer<'_, usize>;
    /// Whether events are kept by month, and whole months can be dropped.
    fn keeps_months(&self) -> bool;
    /// Drops the oldest month that was over before this time, unless something in it is not over yet; with
    /// `only_empty` unless there is anything in it. At most about `rows` of what is kept beside it go in one step.
    fn drop_month(&self, before: Time, only_empty: bool, rows: usize) -> Answer<'_, Dropped>;
    /// Gives up to so many bytes of unused space back to the operating system, where it does not come back by
    /// itself. Gives how many.
    fn give_space_back(&self, bytes: usize) -> Answer<'_, usize>;
}

/// What was pruned and waits for the archive.
pub trait Archiving {
    /// The object to be stored next: one that was begun before, or else the oldest of what waits, `most` bytes of one
    /// day or a little more. None if less than `least` bytes wait. It stays the same until it is stored.
    fn next_object(&self, least: usize, most: usize) -> Answer<'_, Option<ArchiveObject>>;
    /// Forgets an object: it is in the archive.
    fn object_stored(&self, name: String) -> Answer<'_, ()>;
}

/// Figures about a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Vitals {
    /// Transactions committed since the start.
    pub commits: u64,
    /// Statements sent to a server since the start; none where there is no server.
    pub statements: u64,
    /// Deliveries waiting in the store, by priority; those in an order count as normal.
    pub waiting: [u64; 3],
    /// Deliveries that a node has.
    pub leased: u64,
    /// Dead deliveries that were not redriven.
    pub dead: u64,
    /// Webhooks that were not deleted.
    pub webhooks: u64,
}

/// All of it: what a backend provides.
pub trait Store:
    Publish
    + Record
    + Claim
    + Nodes
    + Gates
    + Figures
    + Webhooks
    + EventTypes
    + Tenancy
    + BrowserSessions
    + History
    + Redrive
    + Operations
    + Secrets
    + Audit
    + MailAddresses
    + Unsubscribing
    + Notices
    + Clocks
    + Upkeep
    + Retain
    + Erase
    + Archiving
    + Send
    + Sync
{
}

impl<T> Store for T where
    T: Publish
        + Record
        + Claim
        + Nodes
        + Gates
        + Figures
        + Figures
        + Webhooks
        + EventTypes
        + Tenancy
        + BrowserSessions
        + History
        + Redrive
        + Operations
        + Secrets
        + Audit
        + MailAddresses
        + Unsubscribing
        + Notices
        + Clocks
        + Upkeep
        + Retain
        + Erase
        + Archiving
        + Send
        + Sync
{
}
