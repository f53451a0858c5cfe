//! Bulk operations, their steps and scans.

use std::collections::BTreeMap;

use redrive_core::{
    DeliveryId, DeliveryStatus, EventId, FailureCategory, OperationId, TenantId, Time, WebhookId,
    delivery::{
        bulk_operation::{Candidate, OperationFilter, OperationKind, OperationState, OperationTarget},
        lane::Priority,
    },
};
use serde::{Deserialize, Serialize};

use crate::{Epoch, NewRound, RedriveOptions};

/// A bulk operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Its id.
    pub id: OperationId,
    /// Its tenant.
    pub tenant_id: TenantId,
    /// The request.
    pub order: OperationRequest,
    /// Its state.
    pub state: OperationState,
    /// Name of the actor who created it.
    pub created_by: String,
    /// Creation time.
    pub created_at: Time,
    /// Earliest start time.
    pub start_at: Time,
    /// Start time: deliveries created or ended later are not selected.
    pub began_at: Option<Time>,
    /// End time.
    pub finished_at: Option<Time>,
    /// Time of the last step or change of state.
    pub updated_at: Time,
    /// Epoch of the node that runs it.
    pub claimed_by: Option<Epoch>,
    /// Position of the scan; `None` before the first step.
    pub cursor: Option<ScanCursor>,
    /// Progress.
    pub progress: OperationProgress,
    /// Time of the last start or resume, and the number done by then: base of the reported rate.
    pub rate_since: Option<(Time, u64)>,
}

/// Request of a bulk operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperationRequest {
    /// Action on each item.
    pub kind: OperationKind,
    /// Set of items that is scanned.
    pub among: OperationTarget,
    /// Selection among them.
    pub selection: OperationFilter,
    /// Maximum number per second.
    pub rate: Option<u32>,
    /// New priority; `None` keeps the priority.
    pub priority: Option<Priority>,
}

/// Progress counters of an operation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OperationProgress {
    /// Number of items when it started; `None` until they are counted.
    pub total: Option<u64>,
    /// Number of matching deliveries that were delivered before it started, whether or not they are among the items;
    /// `None` until they are counted.
    pub already_delivered: Option<u64>,
    /// Number of items that the action changed.
    pub done: u64,
    /// Number of items that no longer needed the action.
    pub skipped: u64,
    /// Number of queued deliveries that were delivered.
    pub delivered: u64,
    /// Number of queued deliveries that are dead again.
    pub failed: u64,
    /// Number of queued deliveries that ended otherwise.
    pub cancelled: u64,
    /// Number of deliveries dead again by failure category.
    pub errors: BTreeMap<String, u64>,
}

impl OperationProgress {
    /// Counts a queued delivery that has ended; one that no longer exists counts as ended otherwise.
    pub(crate) fn record_end(&mut self, status: Option<DeliveryStatus>, category: Option<FailureCategory>) {
        match status {
            Some(DeliveryStatus::Delivered) => self.delivered += 1,
            Some(DeliveryStatus::Dead) => {
                self.failed += 1;
                let kind = category.map_or("none", FailureCategory::name);
                *self.errors.entry(kind.to_owned()).or_default() += 1;
            }
            _ => self.cancelled += 1,
        }
    }
}

/// Position in a scan, oldest first: an event, and a delivery of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ScanCursor {
    /// The event.
    pub event_id: EventId,
    /// The delivery; `None` in a scan of events.
    pub delivery_id: Option<DeliveryId>,
}

/// Request for a scan of deliveries, oldest first.
#[derive(Clone, Debug)]
pub struct Scan {
    /// The set that is scanned.
    pub among: OperationTarget,
    /// Only of this webhook.
    pub webhook_id: Option<WebhookId>,
    /// Only dead letters and pending deliveries with a failed attempt. Applies to a scan of the deliveries of one
    /// webhook.
    pub failing_only: bool,
    /// Only these deliveries, whatever is scanned.
    pub ids: Option<Vec<DeliveryId>>,
    /// Only of events from this time on.
    pub from: Option<Time>,
    /// Only of events before this time.
    pub to: Option<Time>,
    /// Only after this position.
    pub after: Option<ScanCursor>,
    /// Maximum number of rows to read.
    pub limit: usize,
}

impl Scan {
    /// Returns those of the named deliveries that are on the page, each once and sorted, and the position after them
    /// if more follow.
    pub(crate) fn named_page(&self, ids: &[DeliveryId]) -> (Vec<DeliveryId>, Option<ScanCursor>) {
        let after = self.after.and_then(|after| after.delivery_id);
        let mut ids: Vec<_> =
            ids.iter().copied().filter(|id| after.is_none_or(|after| *id > after)).collect();
        ids.sort_unstable();
        ids.dedup();
        let has_more = ids.len() > self.limit;
        ids.truncate(self.limit);
        let position = |last: &DeliveryId| ScanCursor {
            event_id: EventId::first_at(last.time()),
            delivery_id: Some(*last),
        };
        let next = ids.last().map(position).filter(|_| has_more);
        (ids, next)
    }
}

/// Page of a scan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScanPage {
    /// Deliveries with their positions.
    pub found: Vec<(ScanCursor, Candidate)>,
    /// Position to continue from; `None` at the end.
    pub next: Option<ScanCursor>,
}

/// The fields of an event that decide whether a webhook receives it, except its data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventSummary {
    /// The event.
    pub id: EventId,
    /// Its type.
    pub event_type: String,
    /// Its subject.
    pub subject: Option<String>,
    /// Its priority.
    pub priority: Priority,
}

/// One task of a step.
#[derive(Clone, Debug)]
pub enum Task {
    /// Retry a delivery.
    Retry(DeliveryId, RedriveOptions),
    /// Cancel a delivery for this reason.
    Cancel(DeliveryId, String),
    /// Purge a delivery from the dead letters.
    Purge(DeliveryId),
    /// Deliver an event to a webhook that has no delivery of it.
    Send(EventId, NewRound, Priority),
}

/// A step of an operation: applied atomically, and only by the epoch that has claimed it, while it runs.
#[derive(Clone, Debug)]
pub struct OperationStep {
    /// The operation.
    pub id: OperationId,
    /// Its tenant.
    pub tenant_id: TenantId,
    /// Epoch that has claimed it.
    pub epoch: Epoch,
    /// The tasks.
    pub tasks: Vec<Task>,
    /// Number of scanned items that need no task.
    pub passed: usize,
    /// Position of the scan after this step.
    pub cursor: Option<ScanCursor>,
    /// State after this step, if it is the last one.
    pub then: Option<OperationState>,
    /// The time.
    pub at: Time,
}

/// Result of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepResult {
    /// All tasks were applied.
    Applied {
        /// Number of tasks that had an effect.
        done: usize,
        /// Leased deliveries that their node has to cancel.
        to_cancel: Vec<(WebhookId, DeliveryId)>,
    },
    /// Nothing was applied: another node has claimed the operation, or its state was changed.
    ClaimLost,
}

/// Progress of collecting the results of an operation's deliveries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CollectProgress {
    /// Position to continue from; `None` if all were read.
    pub next: Option<DeliveryId>,
    /// Number of read deliveries that are still pending.
    pub open: usize,
    /// Number of deliveries that have ended since the last read.
    pub ended: usize,
}
