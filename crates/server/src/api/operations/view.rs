//! API views of bulk operations.

use std::collections::BTreeMap;

use axum::http::StatusCode;
use redrive_core::{
    OperationId, TenantId, Time,
    delivery::{
        bulk_operation::{OperationKind, OperationState, OperationTarget, eta},
        lane::Priority,
    },
};
use redrive_store::Operation;
use serde::Serialize;
use utoipa::ToSchema;

use super::input::{BatchFilter, BatchRate};
use crate::{
    api::deliveries::DeliveryView,
    app::{named_deliveries::NamedDelivery, operations::DryRun},
    problem::Problem,
};

/// Bulk operation.
#[derive(Serialize, ToSchema)]
pub(crate) struct OperationView {
    /// Unique id of the operation.
    #[schema(value_type = String)]
    id: OperationId,
    /// Tenant that the operation belongs to.
    #[schema(value_type = String)]
    tenant_id: TenantId,
    /// Kind of the operation.
    kind: OperationKind,
    /// Current status. `delivering`: everything is queued, but not all deliveries have ended.
    status: OperationState,
    /// Filter from the request.
    filter: BatchFilter,
    /// Number of deliveries that the request named by id and that the operation took; null if it has a filter.
    delivery_id_count: Option<usize>,
    /// Whether a retry sends delivered deliveries again; null for other operations.
    pub(crate) include_delivered: Option<bool>,
    /// Rate limit from the request.
    rate_limit: Option<BatchRate>,
    /// New priority of the deliveries.
    priority: Option<Priority>,
    /// Current progress.
    pub(crate) progress: ProgressView,
    /// Caller that created the operation.
    created_by: String,
    /// Time at which the operation was created.
    #[schema(value_type = String, format = DateTime)]
    created_at: Time,
    /// Scheduled start time.
    #[schema(value_type = String, format = DateTime)]
    start_at: Time,
    /// Actual start time. Deliveries that ended later are not selected.
    #[schema(value_type = Option<String>, format = DateTime)]
    began_at: Option<Time>,
    /// Time at which the operation ended.
    #[schema(value_type = Option<String>, format = DateTime)]
    finished_at: Option<Time>,
    /// Time of the last progress.
    #[schema(value_type = String, format = DateTime)]
    updated_at: Time,
    /// Result for each delivery that the request named by id; only in the response to that request.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(super) results: Option<Vec<NamedResultView>>,
}

/// Result for a delivery that a bulk operation was asked to take.
#[derive(Serialize, ToSchema)]
pub(crate) struct NamedResultView {
    /// The id as it was given.
    delivery_id: String,
    /// 202: the operation takes it. Otherwise the status code of `error`.
    status: u16,
    /// Reason why the operation does not take it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    error: Option<Problem>,
}

impl From<NamedDelivery> for NamedResultView {
    fn from(named: NamedDelivery) -> Self {
        let error = named.result.err().map(Problem::from);
        let status = error.as_ref().map_or(StatusCode::ACCEPTED.as_u16(), |problem| problem.status);
        Self { delivery_id: named.text, status, error }
    }
}

/// Progress of a bulk operation.
#[derive(Serialize, ToSchema)]
pub(crate) struct ProgressView {
    /// Number of matches when the operation started; null until they are counted.
    pub(crate) total: Option<u64>,
    /// Number of matching deliveries that were already delivered when the operation started: left out, or part of
    /// `total` with `include_delivered`. Null until they are counted.
    pub(crate) already_delivered: Option<u64>,
    /// Number of items processed.
    pub(crate) done: u64,
    /// Number of items skipped: no action was needed any more, or the webhook receives no events.
    pub(crate) skipped: u64,
    /// Number of deliveries queued; null if the operation sends nothing.
    pub(crate) queued: Option<u64>,
    /// Number of queued deliveries that were delivered.
    pub(crate) delivered: u64,
    /// Number of queued deliveries that are dead again.
    pub(crate) dead_again: u64,
    /// Number of queued deliveries that were cancelled or no longer exist.
    pub(crate) cancelled: u64,
    /// Failures of the deliveries that are dead again, counted by kind.
    pub(crate) errors: BTreeMap<String, u64>,
    /// Items processed per second since the operation last started or resumed.
    pub(crate) rate_per_second: Option<f64>,
    /// Estimated completion time at the current rate.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub(crate) eta: Option<Time>,
}

impl OperationView {
    pub(crate) fn new(operation: Operation, now: Time) -> Self {
        let progress = operation.progress;
        let is_running = operation.state == OperationState::Running;
        let until = if is_running { now } else { operation.updated_at };
        let per_second = operation.rate_since.and_then(|(from, done)| {
            let seconds = until.duration_since(from).as_secs_f64();
            let rate = (progress.done.saturating_sub(done)) as f64 / seconds;
            (seconds >= 0.1).then(|| (rate * 100.0).round() / 100.0)
        });
        let looked_at = progress.done + progress.skipped;
        Self {
            progress: ProgressView {
                eta: eta(progress.total, looked_at, per_second, now).filter(|_| is_running),
                total: progress.total,
                already_delivered: progress.already_delivered,
                done: progress.done,
                skipped: progress.skipped,
                queued: operation.order.kind.sends().then_some(progress.done),
                delivered: progress.delivered,
                dead_again: progress.failed,
                cancelled: progress.cancelled,
                errors: progress.errors,
                rate_per_second: per_second.filter(|_| is_running || progress.done > 0),
            },
            id: operation.id,
            tenant_id: operation.tenant_id,
            kind: operation.order.kind,
            status: operation.state,
            delivery_id_count: operation.order.selection.delivery_ids.as_ref().map(Vec::len),
            include_delivered: (operation.order.kind == OperationKind::Retry).then_some(
                operation.order.among != OperationTarget::Dead && !operation.order.selection.undelivered_only,
            ),
            results: None,
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

/// Result of a dry run.
#[derive(Serialize, ToSchema)]
pub(crate) struct DryRunView {
    /// Always `true`: nothing was changed.
    dry_run: bool,
    /// Number of matches.
    total: u64,
    /// Number of matching deliveries that were already delivered: left out, or part of `total` with
    /// `include_delivered`.
    already_delivered: u64,
    /// Whether all matches were counted. If `false`, counting timed out, and the numbers are lower bounds.
    count_complete: bool,
    /// First matching deliveries, oldest event first; empty for a backfill, which selects events.
    sample: Vec<DeliveryView>,
    /// Result for each delivery that the request named by id.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(super) results: Option<Vec<NamedResultView>>,
}

impl From<DryRun> for DryRunView {
    fn from(run: DryRun) -> Self {
        let sample = run.sample.into_iter().map(DeliveryView::from).collect();
        Self {
            dry_run: true,
            total: run.total,
            already_delivered: run.already_delivered,
            count_complete: run.complete,
            sample,
            results: None,
        }
    }
}
