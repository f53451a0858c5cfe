//! One operation, carried on until it is over, held, or somebody else's.

use std::{sync::Arc, time::Duration};

use redrive_core::{
    DeliveryId, DeliveryStatus, OperationId, Time,
    delivery::BY_REQUEST,
    delivery::bulk_operation::{OperationKind, OperationState, Pacer},
};
use redrive_store::{Epoch, Operation, OperationStep, Stepped, StoreError};

use super::{LOOK, candidates::Source};
use crate::Inner;

/// The most that one step does: its transaction holds up the tenant's publishing for as long as it takes.
const STEP: usize = 250;
/// How often a step is taken at a set rate: more often only costs more.
const TICK: Duration = Duration::from_millis(100);
/// How often is looked how queued deliveries went, and at how many at once.
const SETTLE: Duration = Duration::from_millis(200);
const SETTLE_AT_MOST: Duration = Duration::from_secs(15);
const ITEMS: usize = 500;

/// Looking how queued deliveries went, all of them over and over, a slice at a time.
struct Settling {
    after: Option<DeliveryId>,
    /// How many were still open in the pass under way.
    open: usize,
    /// How long to wait after a pass that has found nothing new.
    wait: Duration,
    next: Time,
}

impl Settling {
    /// A first pass, from this time on.
    fn from(next: Time) -> Self {
        Self { after: None, open: 0, wait: SETTLE, next }
    }
}

impl Inner {
    pub(super) async fn run_operation(self: &Arc<Self>, operation: Operation) -> Result<(), StoreError> {
        let epoch = self.fleet.term().epoch;
        let (id, tenant, order) = (operation.id, operation.tenant, operation.order);
        let began = operation.began_at.unwrap_or_else(|| self.clock.now());
        let mut source = Source::new(tenant.clone(), order.clone(), began, operation.cursor);
        let mut pacer = None;
        let mut settling = Settling::from(self.clock.now());
        while !self.stop.is_cancelled() {
            let found = self.store.operation(tenant.clone(), id).await?;
            let Some(now) = found.filter(|found| found.held_by == Some(epoch)) else { return Ok(()) };
            self.operating.is_at_work(id, now.state == OperationState::Running);
            if now.state == OperationState::Running {
                if now.tally.total.is_none() && !self.count(&now, epoch, began).await? {
                    continue;
                }
                let pacer = pacer.get_or_insert_with(|| Pacer::new(order.rate, self.clock.now()));
                self.step(&now, epoch, &mut source, pacer).await?;
                self.look_after(id, epoch, &mut settling).await?;
                continue;
            }
            if pacer.take().is_some() {
                // From here on nothing is queued: what a pass does not find is not there.
                settling = Settling::from(self.clock.now());
            }
            if self.look_after(id, epoch, &mut settling).await? {
                return self.store.close_operation(id, epoch, self.clock.now()).await;
            }
            tokio::select! {
                () = self.clock.sleep_until(settling.next) => {}
                () = tokio::time::sleep(LOOK) => {}
                () = self.stop.cancelled() => {}
            }
        }
        Ok(())
    }

    /// Counts what there is to do. False: it was held or ended meanwhile.
    async fn count(&self, operation: &Operation, epoch: Epoch, began: Time) -> Result<bool, StoreError> {
        let (tenant, id) = (operation.tenant.clone(), operation.id);
        let mut all = Source::new(tenant.clone(), operation.order.clone(), began, None);
        while all.count_some(self).await? {
            let now = self.store.operation(tenant.clone(), id).await?;
            if self.stop.is_cancelled() || now.is_none_or(|now| now.state != OperationState::Running) {
                return Ok(false);
            }
        }
        self.store.count_operation(id, epoch, all.counted).await?;
        Ok(true)
    }

    /// Does as much as its rate allows now, and waits until more may go.
    async fn step(
        self: &Arc<Self>,
        operation: &Operation,
        epoch: Epoch,
        source: &mut Source,
        pacer: &mut Pacer,
    ) -> Result<(), StoreError> {
        let now = self.clock.now();
        let room = pacer.allowed(now, STEP);
        if room == 0 {
            tokio::select! {
                () = self.clock.sleep_until(pacer.next_at().max(now + TICK)) => {}
                () = self.stop.cancelled() => {}
            }
            return Ok(());
        }
        let batch = source.next(self, room).await?;
        let step = OperationStep {
            id: operation.id,
            tenant: operation.tenant.clone(),
            epoch,
            tasks: batch.tasks,
            passed: batch.passed,
            cursor: batch.cursor,
            then: batch.is_last.then_some(OperationState::Delivering),
            at: now,
        };
        match self.store.step_operation(step).await? {
            Stepped::Lost => {
                // Held or ended by a person, which is seen at the next look; what was taken out is read again.
                *source = Source::new(
                    operation.tenant.clone(),
                    operation.order.clone(),
                    operation.began_at.unwrap_or(now),
                    operation.cursor,
                );
            }
            Stepped::Done { done, to_call_off } => {
                pacer.went(done, now);
                self.alarm.ring();
                if operation.order.kind == OperationKind::Cancel {
                    let at_once = done.saturating_sub(to_call_off.len()) as u64;
                    self.health.ended(&operation.tenant, DeliveryStatus::Cancelled, at_once, now);
                }
                for (webhook, delivery) in to_call_off {
                    self.call_off_here(webhook, delivery, BY_REQUEST.to_owned());
                }
            }
        }
        Ok(())
    }

    /// Looks at some of what was queued, now and then. True once a whole pass has found nothing under way.
    async fn look_after(
        &self,
        id: OperationId,
        epoch: Epoch,
        settling: &mut Settling,
    ) -> Result<bool, StoreError> {
        let now = self.clock.now();
        if now < settling.next {
            return Ok(false);
        }
        let settled = self.store.settle_operation(id, epoch, settling.after, ITEMS).await?;
        settling.open += settled.open;
        settling.after = settled.next;
        let is_over = settled.next.is_none();
        let is_through = is_over && settling.open == 0;
        // Where much has ended, more has; what waits for hours is not asked after every second.
        settling.wait = if settled.ended > 0 { SETTLE } else { (settling.wait * 2).min(SETTLE_AT_MOST) };
        if is_over {
            settling.open = 0;
            settling.next = now + settling.wait;
        }
        Ok(is_through)
    }
}
