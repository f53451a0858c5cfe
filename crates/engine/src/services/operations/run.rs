//! Runs one claimed operation until it ends or the claim is lost.

use std::time::Duration;

use redrive_core::{
    DeliveryId, DeliveryStatus, OperationId, Time,
    delivery::{
        REASON_BY_REQUEST,
        bulk_operation::{OperationKind, OperationState, Pacer},
    },
};
use redrive_store::{Epoch, Operation, OperationStep, StepResult, StoreError};

use super::{OperationRunner, POLL_INTERVAL, candidates::CandidateScan};

/// Maximum number of tasks per step; its transaction blocks the tenant's publishes while it runs.
const MAX_STEP_TASKS: usize = 250;
/// Minimum interval between steps of a rate-limited operation; shorter ones only cost more transactions.
const STEP_INTERVAL: Duration = Duration::from_millis(100);
/// Bounds of the interval between passes over queued deliveries, and the number of deliveries checked per store
/// call.
const MIN_SETTLE_INTERVAL: Duration = Duration::from_millis(200);
const MAX_SETTLE_INTERVAL: Duration = Duration::from_secs(15);
const SETTLE_BATCH_SIZE: usize = 500;

/// Progress of the repeated passes that check, page by page, which queued deliveries have ended.
struct Settling {
    after: Option<DeliveryId>,
    /// Deliveries found pending in the current pass.
    open: usize,
    /// Delay after a pass; doubles while no delivery ends.
    wait: Duration,
    next: Time,
}

impl Settling {
    /// Starts a first pass at this time.
    fn from(next: Time) -> Self {
        Self { after: None, open: 0, wait: MIN_SETTLE_INTERVAL, next }
    }
}

impl OperationRunner {
    pub(super) async fn run_operation(&self, operation: Operation) -> Result<(), StoreError> {
        let epoch = self.membership.current_epoch().epoch;
        let (id, tenant_id, order) = (operation.id, operation.tenant_id, operation.order);
        let started = operation.began_at.unwrap_or_else(|| self.clock.now());
        let mut source = CandidateScan::new(tenant_id.clone(), order.clone(), started, operation.cursor);
        let mut pacer = None;
        let mut settling = Settling::from(self.clock.now());
        while !self.stop.is_cancelled() {
            let found = self.operations.operation(tenant_id.clone(), id).await?;
            let Some(now) = found.filter(|found| found.claimed_by == Some(epoch)) else { return Ok(()) };
            self.set_running(id, now.state == OperationState::Running);
            if now.state == OperationState::Running {
                if now.progress.total.is_none() && !self.count(&now, epoch, started).await? {
                    continue;
                }
                let pacer = pacer.get_or_insert_with(|| Pacer::new(order.rate, self.clock.now()));
                self.step(&now, epoch, &mut source, pacer).await?;
                self.settle_deliveries(id, epoch, &mut settling).await?;
                continue;
            }
            if pacer.take().is_some() {
                // Nothing is queued from here on, so a pass that starts now sees every queued delivery.
                settling = Settling::from(self.clock.now());
            }
            if self.settle_deliveries(id, epoch, &mut settling).await? {
                return self.operations.complete_operation(id, epoch, self.clock.now()).await;
            }
            tokio::select! {
                () = self.clock.sleep_until(settling.next) => {}
                () = tokio::time::sleep(POLL_INTERVAL) => {}
                () = self.stop.cancelled() => {}
            }
        }
        Ok(())
    }

    /// Counts the selection. Returns false if the operation was paused or cancelled, or the engine stops.
    async fn count(&self, operation: &Operation, epoch: Epoch, started: Time) -> Result<bool, StoreError> {
        let (tenant_id, id) = (operation.tenant_id.clone(), operation.id);
        let mut all = CandidateScan::new(tenant_id.clone(), operation.order.clone(), started, None);
        while all.count_page(self).await? {
            let now = self.operations.operation(tenant_id.clone(), id).await?;
            if self.stop.is_cancelled() || now.is_none_or(|now| now.state != OperationState::Running) {
                return Ok(false);
            }
        }
        self.operations.set_operation_counts(id, epoch, all.counted, all.already_delivered).await?;
        Ok(true)
    }

    /// Executes as many tasks as the rate allows, or waits until it allows more.
    async fn step(
        &self,
        operation: &Operation,
        epoch: Epoch,
        source: &mut CandidateScan,
        pacer: &mut Pacer,
    ) -> Result<(), StoreError> {
        let now = self.clock.now();
        let capacity = pacer.allowed(now, MAX_STEP_TASKS);
        if capacity == 0 {
            tokio::select! {
                () = self.clock.sleep_until(pacer.next_at().max(now + STEP_INTERVAL)) => {}
                () = self.stop.cancelled() => {}
            }
            return Ok(());
        }
        let batch = source.next(self, capacity).await?;
        let step = OperationStep {
            id: operation.id,
            tenant_id: operation.tenant_id.clone(),
            epoch,
            tasks: batch.tasks,
            passed: batch.skipped,
            cursor: batch.cursor,
            then: batch.is_last.then_some(OperationState::Delivering),
            at: now,
        };
        match self.operations.step_operation(step).await? {
            StepResult::ClaimLost => {
                // The operation was paused or cancelled, or the claim lost; the next read of its state shows which.
                // Tasks taken from the scan are read again.
                *source = CandidateScan::new(
                    operation.tenant_id.clone(),
                    operation.order.clone(),
                    operation.began_at.unwrap_or(now),
                    operation.cursor,
                );
            }
            StepResult::Applied { done, to_cancel } => {
                pacer.record(done, now);
                self.wakeups.claims.wake();
                if operation.order.kind == OperationKind::Cancel {
                    let cancelled_now = done.saturating_sub(to_cancel.len()) as u64;
                    self.rollups.record_ended(
                        &operation.tenant_id,
                        DeliveryStatus::Cancelled,
                        cancelled_now,
                        now,
                    );
                }
                for (webhook_id, delivery_id) in to_cancel {
                    self.recorder.cancel_if_queued(webhook_id, delivery_id, REASON_BY_REQUEST.to_owned());
                }
            }
        }
        Ok(())
    }

    /// Checks one page of queued deliveries if due. Returns true once a whole pass has found none pending.
    async fn settle_deliveries(
        &self,
        id: OperationId,
        epoch: Epoch,
        settling: &mut Settling,
    ) -> Result<bool, StoreError> {
        let now = self.clock.now();
        if now < settling.next {
            return Ok(false);
        }
        let settled =
            self.operations.collect_operation_results(id, epoch, settling.after, SETTLE_BATCH_SIZE).await?;
        settling.open += settled.open;
        settling.after = settled.next;
        let is_over = settled.next.is_none();
        let is_through = is_over && settling.open == 0;
        // Recently ended deliveries suggest that more will end soon; otherwise the interval grows.
        settling.wait = if settled.ended > 0 {
            MIN_SETTLE_INTERVAL
        } else {
            (settling.wait * 2).min(MAX_SETTLE_INTERVAL)
        };
        if is_over {
            settling.open = 0;
            settling.next = now + settling.wait;
        }
        Ok(is_through)
    }
}
