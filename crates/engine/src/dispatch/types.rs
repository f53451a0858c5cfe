//! What the dispatcher handles: deliveries, limits, deferrals, and what it reports about itself.

use std::{sync::Arc, time::Duration};

use redrive_core::{
    DeliveryId, TenantId, Time, WebhookId,
    delivery::lane::{Lane, Priority},
    dispatch::gate::LimitScope,
    event::{Event, PayloadFormat},
    security::egress_rules::HostKey,
};

use crate::cluster::membership::NodeEpoch;

/// A delivery in memory, leased to this node.
#[derive(Clone, Debug)]
pub(crate) struct LeasedDelivery {
    pub(crate) id: DeliveryId,
    /// Epoch that it was leased under.
    pub(crate) epoch: Arc<NodeEpoch>,
    pub(crate) webhook_id: WebhookId,
    pub(crate) lane: Lane,
    pub(crate) event: Arc<Event>,
    pub(crate) format: PayloadFormat,
    /// Number of its next attempt.
    pub(crate) attempt: u32,
    pub(crate) created_at: Time,
    pub(crate) due: Time,
    /// How often its lease ended without an outcome because its node died, its task panicked, or its outcome could
    /// not be stored.
    pub(crate) abnormal_releases: u32,
    /// How often its node died, its task panicked, or its outcome could not be stored, while it was known to be sent.
    pub(crate) crash_count: u32,
    /// Monotonic time at which its publish started, if it was enqueued directly by a publish.
    pub(crate) publish_started_at: Option<Duration>,
}

/// A webhook with the limits that the dispatcher applies to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WebhookLimits<'a> {
    pub(crate) webhook_id: WebhookId,
    pub(crate) tenant_id: &'a TenantId,
    /// Maximum number of requests in flight to the webhook.
    pub(crate) max_in_flight: usize,
    /// Maximum number of unsettled deliveries of the tenant.
    pub(crate) tenant_max_unsettled: usize,
    /// Host of the webhook's URL.
    pub(crate) host: HostKey,
}

/// State of a delivery in this node's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemoryState {
    /// It is at the gate, or its request is in flight. A delivery whose outcome is being recorded has neither state.
    Started,
    /// It is queued.
    Queued,
}

/// Limits of deliveries in memory and of requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DispatchLimits {
    /// Maximum number of unsettled deliveries of the node.
    pub(crate) max_unsettled: usize,
    pub(crate) max_deliveries: usize,
    pub(crate) max_bytes: usize,
    pub(crate) max_lane_deliveries: usize,
    /// Maximum number of requests in flight to one destination host, over all tenants of the node.
    pub(crate) host_max_in_flight: usize,
}

/// A delivery that may not be sent now.
pub(crate) struct DeferredDelivery {
    pub(crate) delivery: LeasedDelivery,
    pub(crate) deferral: Deferral,
}

/// How a delivery is deferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deferral {
    /// It is put back at the front of its lane and may be started again immediately.
    Requeue,
    /// A short pause: it stays in memory, first in its lane, as does everything else in this scope.
    Hold(LimitScope, Time),
    /// A long pause: all deliveries of the webhook are released, and none is enqueued until then.
    ParkWebhook(Time),
    /// Only this delivery is released, due at that time at the earliest.
    ReleaseOne(Time),
    /// The half-open circuit has no probe left: it is released, and no other is enqueued until the circuit changes.
    NoProbe,
    /// The node must not send at all: everything stays in memory until [`Dispatcher::resume_node`].
    SuspendNode,
}

/// Actions that result from a change: deliveries to send now, deliveries to release to the store, and whether to
/// claim more from the store.
#[derive(Default)]
pub(crate) struct DispatchActions {
    pub(crate) start: Vec<LeasedDelivery>,
    /// Their capacity stays reserved until they are back in the store; see [`super::DispatchQueues::on_released`].
    pub(crate) release: Vec<LeasedDelivery>,
    pub(crate) refill: bool,
}

/// Slots in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) webhook: usize,
    /// Deliveries queued in memory for the webhook.
    pub(crate) queued: usize,
    pub(crate) tenant: usize,
    pub(crate) node: usize,
    /// Whether the tenant may have one more request in flight to the webhook's host.
    pub(crate) host_has_slot: bool,
}

/// Deliveries of one tenant in a node's memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TenantInMemory {
    /// Number of queued deliveries of each webhook that has any, by priority, highest first; those of ordered lanes
    /// count as normal.
    pub queued: Vec<(WebhookId, [u64; Priority::ALL.len()])>,
    /// Deliveries that have left their queues and whose outcome is not stored yet.
    pub unsettled: usize,
}

/// Load of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Deliveries in memory, including those for which capacity is reserved.
    pub deliveries: usize,
    /// Their payload bytes.
    pub bytes: usize,
    /// Deliveries that have left their queues and whose outcome is not stored yet.
    pub unsettled: usize,
    /// Maximum of `unsettled`.
    pub slots: usize,
}
