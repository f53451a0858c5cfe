//! Bulk operations as people see them.

use std::collections::BTreeMap;

use redrive_core::{
    OperationId, TenantId, Time,
    delivery::bulk_operation::{OperationKind, OperationState, eta},
    delivery::lane::Priority,
};
use redrive_store::Operation;
use serde::Serialize;
use utoipa::ToSchema;

use super::input::{BatchFilter, BatchRate};
use crate::{api::deliveries::DeliveryView, app::operations::DryRun};

/// A bulk operation.
#[derive(Serialize, ToSchema)]
pub(crate) struct OperationView {
    /// Its id.
    #[schema(value_type = String)]
    id: OperationId,
    /// Whose it is.
    #[schema(value_type = String)]
    tenant_id: TenantId,
    /// What is done to each.
    kind: OperationKind,
    /// Where it stands. `delivering`: all is queued, and not everything has ended yet.
    status: OperationState,
    /// Which ones it was asked for.
    filter: BatchFilter,
    /// How fast it was asked to be.
    rate_limit: Option<BatchRate>,
    /// How urgent they are from then on.
    priority: Option<Priority>,
    /// How far it is.
    pub(crate) progress: ProgressView,
    /// Who asked for it.
    created_by: String,
    /// When it was asked for.
    #[schema(value_type = String, format = DateTime)]
    created_at: Time,
    /// When it begins, or was to begin.
    #[schema(value_type = String, format = DateTime)]
    start_at: Time,
    /// When it began. What has ended since is none of its business.
    #[schema(value_type = Option<String>, format = DateTime)]
    began_at: Option<Time>,
    /// When it was over.
    #[schema(value_type = Option<String>, format = DateTime)]
    finished_at: Option<Time>,
    /// When it last got on.
    #[schema(value_type = String, format = DateTime)]
    updated_at: Time,
}

/// How far an operation is.
#[derive(Serialize, ToSchema)]
pub(crate) struct ProgressView {
    /// How many there were when it began; null until they are counted.
    pub(crate) total: Option<u64>,
    /// How many something was done with.
    pub(crate) done: u64,
    /// How many needed it no more when their turn came, or go to a webhook that gets no events.
    pub(crate) skipped: u64,
    /// How many were queued for sending; null where nothing is sent.
    pub(crate) queued: Option<u64>,
    /// How many of those queued have arrived.
    pub(crate) delivered: u64,
    /// How many of those queued are dead again.
    pub(crate) failed_again: u64,
    /// How many of those queued were cancelled, or are not there any more.
    pub(crate) cancelled: u64,
    /// How those that are dead again failed.
    pub(crate) errors: BTreeMap<String, u64>,
    /// How many were done in a second, since it was last begun or taken up.
    pub(crate) rate_per_second: Option<f64>,
    /// When all will be done at this rate.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub(crate) eta: Option<Time>,
}

impl OperationView {
    pub(crate) fn new(operation: Operation, now: Time) -> Self {
        let tally = operation.tally;
        let is_running = operation.state == OperationState::Running;
        let until = if is_running { now } else { operation.updated_at };
        let per_second = operation.pace_from.and_then(|(from, done)| {
            let seconds = until.since(from).as_secs_f64();
            let rate = (tally.done.saturating_sub(done)) as f64 / seconds;
            (seconds >= 0.1).then(|| (rate * 100.0).round() / 100.0)
        });
        let looked_at = tally.done + tally.skipped;
        Self {
            progress: ProgressView {
                eta: eta(tally.total, looked_at, per_second, now).filter(|_| is_running),
                total: tally.total,
                done: tally.done,
                skipped: tally.skipped,
                queued: operation.order.kind.sends().then_some(tally.done),
                delivered: tally.delivered,
                failed_again: tally.failed,
                cancelled: tally.cancelled,
                errors: tally.errors,
                rate_per_second: per_second.filter(|_| is_running || tally.done > 0),
            },
            id: operation.id,
            tenant_id: operation.tenant,
            kind: operation.order.kind,
            status: operation.state,
            filter: operation.order.selection.into(),
            rate_limit: operation.order.rate.map(|requests_per_second| BatchRate { requests_per_second }),
            priority: operation.order.priority,
            created_by: operation.created_by,
            created_at: operation.created_at,
            start_at: operation.start_at,
            began_at: operation.began_at,
            finished_at: operation.finished_at,
            updated_at: operation.updated_at,
        }
    }
}

/// What an operation would do.
#[derive(Serialize, ToSchema)]
pub(crate) struct DryRunView {
    /// Always true: nothing was done.
    dry_run: bool,
    /// How many it would take on.
    total: u64,
    /// Whether all were counted. If not, there was no time for more, and there are at least so many.
    complete: bool,
    /// The first of them, oldest event first. Of events that were never sent there are none.
    sample: Vec<DeliveryView>,
}

impl From<DryRun> for DryRunView {
    fn from(run: DryRun) -> Self {
        let sample = run.sample.into_iter().map(DeliveryView::from).collect();
        Self { dry_run: true, total: run.total, complete: run.complete, sample }
    }
}
