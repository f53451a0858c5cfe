//! What people do: they change webhooks and tenants, force circuits, redeliver, cancel and erase, and ask what a delivery
//! waits for. Each change is stored first, then applied to the cache, then to queued deliveries.

mod circuits;
mod erase;
mod redrive;
mod wait_reason;
mod webhooks;

use std::sync::Arc;

use redrive_store::{Erase, History, Redrive, RuntimeState, Tenancy, WebhookHistory, Webhooks};

pub(crate) use self::redrive::redrive_lane;
pub use self::{
    circuits::CircuitCounts,
    redrive::{PastWebhooks, ReplayCount, ReplayError, ReplayReceipt, ReplayTo},
    wait_reason::{DeliveryState, GateStatus, WaitReason},
    webhooks::ChangeError,
};
use crate::{
    Settings,
    clock::Clock,
    cluster::membership::Membership,
    coordinate::Coordinator,
    dispatch::Dispatcher,
    record::{Recorder, WebhookRuntimeUpdater},
    rollup_buffer::RollupBuffer,
    routing::Router,
    wakeups::Wakeups,
};

/// Carries out what people ask for.
pub(crate) struct Control {
    pub(crate) erase: Arc<dyn Erase>,
    pub(crate) history: Arc<dyn History>,
    pub(crate) redrive: Arc<dyn Redrive>,
    pub(crate) runtime_state: Arc<dyn RuntimeState>,
    pub(crate) tenancy: Arc<dyn Tenancy>,
    pub(crate) webhook_history: Arc<dyn WebhookHistory>,
    pub(crate) webhooks: Arc<dyn Webhooks>,
    pub(crate) clock: Clock,
    pub(crate) settings: Arc<Settings>,
    pub(crate) membership: Arc<Membership>,
    pub(crate) router: Arc<Router>,
    pub(crate) coordinator: Arc<Coordinator>,
    pub(crate) dispatcher: Arc<Dispatcher>,
    pub(crate) runtime_updater: Arc<WebhookRuntimeUpdater>,
    pub(crate) recorder: Arc<Recorder>,
    pub(crate) rollups: Arc<RollupBuffer>,
    pub(crate) wakeups: Arc<Wakeups>,
}
