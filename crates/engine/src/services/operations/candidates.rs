//! Candidates of a bulk operation: scanned page by page, oldest first, with one page in memory.

use std::{collections::VecDeque, sync::Arc};

use redrive_core::{
    DeliveryId, TenantId, Time,
    delivery::{
        REASON_BY_REQUEST,
        bulk_operation::{
            Candidate, MAX_DELIVERY_IDS, OperationKind, OperationTarget, matches_delivered, selects,
        },
    },
    routing::filter::{Filter, Payload},
};
use redrive_store::{
    EventSummary, NewRound, OperationRequest, RedriveOptions, Scan, ScanCursor, StoreError, Task,
};

use super::OperationRunner;
use crate::{MAX_INLINE_COST_UNITS, ResolvedWebhook, clock, control};

/// Deliveries or events read per store call.
const PAGE_SIZE: usize = 1_000;
const _: () = assert!(PAGE_SIZE >= MAX_DELIVERY_IDS, "named deliveries are read with one page");
/// Pages counted before the caller checks whether to continue.
const PAGES_PER_CHECK: usize = 10;
/// Number of first deliveries kept while counting.
const SAMPLE_SIZE: usize = 100;

/// A delivery or an event to process.
enum Item {
    Delivery(DeliveryId, Candidate),
    Event(EventSummary),
}

/// Scan in progress.
pub(super) struct CandidateScan {
    tenant_id: TenantId,
    order: OperationRequest,
    started_at: Time,
    /// Whether a user waits for the result, whose reads must not delay those of the engine.
    is_for_user: bool,
    /// Position up to which rows have been read.
    scanned: Option<ScanCursor>,
    exhausted: bool,
    found: VecDeque<(ScanCursor, Item)>,
    /// Number of candidates counted, and the ids of the first deliveries.
    pub(super) counted: u64,
    /// Number of matching deliveries that were delivered before, whether or not they are candidates.
    pub(super) already_delivered: u64,
    pub(super) first: Vec<DeliveryId>,
}

/// Next tasks of the operation.
pub(super) struct Batch {
    pub(super) tasks: Vec<Task>,
    /// Number of candidates without a task, because their webhook receives no events.
    pub(super) skipped: usize,
    /// Position after this batch.
    pub(super) cursor: Option<ScanCursor>,
    /// Whether no candidates follow.
    pub(super) is_last: bool,
}

impl CandidateScan {
    pub(super) fn new(
        tenant_id: TenantId,
        order: OperationRequest,
        started: Time,
        from: Option<ScanCursor>,
    ) -> Self {
        Self {
            tenant_id,
            order,
            started_at: started,
            is_for_user: false,
            scanned: from,
            exhausted: false,
            found: VecDeque::new(),
            counted: 0,
            already_delivered: 0,
            first: Vec::new(),
        }
    }

    /// Reads on the connections of users.
    pub(super) fn for_user(self) -> Self {
        Self { is_for_user: true, ..self }
    }

    /// Counts all remaining candidates.
    pub(super) async fn count(&mut self, runner: &OperationRunner) -> Result<(), StoreError> {
        while self.count_page(runner).await? {}
        Ok(())
    }

    /// Counts the next pages. Returns false if there are no more.
    pub(super) async fn count_page(&mut self, runner: &OperationRunner) -> Result<bool, StoreError> {
        for _ in 0..PAGES_PER_CHECK {
            if self.exhausted {
                return Ok(false);
            }
            self.read_page(runner).await?;
            self.counted += self.found.len() as u64;
            for (_, item) in self.found.drain(..) {
                if let Item::Delivery(id, _) = item
                    && self.first.len() < SAMPLE_SIZE
                {
                    self.first.push(id);
                }
            }
        }
        Ok(true)
    }

    /// Returns at most `max` next tasks; the batch may be empty before the end if a page had no candidates.
    pub(super) async fn next(&mut self, runner: &OperationRunner, max: usize) -> Result<Batch, StoreError> {
        if self.found.is_empty() && !self.exhausted {
            self.read_page(runner).await?;
        }
        let (mut tasks, mut passed, mut cursor) = (Vec::new(), 0, None);
        while tasks.len() < max
            && let Some((position, item)) = self.found.pop_front()
        {
            cursor = Some(position);
            match self.task(runner, item).await? {
                Some(task) => tasks.push(task),
                None => passed += 1,
            }
        }
        let is_empty = self.found.is_empty();
        let cursor = if is_empty { self.scanned } else { cursor };
        Ok(Batch { tasks, skipped: passed, cursor, is_last: is_empty && self.exhausted })
    }

    /// Reads the next page.
    async fn read_page(&mut self, runner: &OperationRunner) -> Result<(), StoreError> {
        match self.order.among {
            OperationTarget::Events => self.read_events(runner).await,
            OperationTarget::Dead | OperationTarget::Deliveries | OperationTarget::Pending => {
                self.read_deliveries(runner).await
            }
        }
    }

    async fn read_deliveries(&mut self, runner: &OperationRunner) -> Result<(), StoreError> {
        let selection = &self.order.selection;
        let webhook_id = match selection.webhook_ids[..] {
            [webhook_id] => Some(webhook_id),
            _ => None,
        };
        let (from, to) = selection.event_times();
        let scan = Scan {
            among: self.order.among,
            webhook_id,
            failing_only: selection.is_failing_only(),
            ids: selection.delivery_ids.clone(),
            from,
            to,
            after: self.scanned,
            limit: PAGE_SIZE,
        };
        let tenant_id = self.tenant_id.clone();
        let page = match self.is_for_user {
            true => runner.operations.scan_deliveries_for_user(tenant_id, scan).await?,
            false => runner.operations.scan_deliveries(tenant_id, scan).await?,
        };
        self.exhausted = page.next.is_none();
        self.scanned = page.next.or(page.found.last().map(|(position, _)| *position)).or(self.scanned);
        for (position, candidate) in page.found {
            if matches_delivered(self.order.kind, selection, self.started_at, &candidate) {
                self.already_delivered += 1;
            }
            // Named deliveries are read whatever is scanned.
            let is_in_target = self.order.among != OperationTarget::Dead || candidate.is_dead_letter();
            if let Some(delivery_id) = position.delivery_id
                && is_in_target
                && selects(self.order.kind, selection, self.started_at, &candidate)
            {
                self.found.push_back((position, Item::Delivery(delivery_id, candidate)));
            }
        }
        Ok(())
    }

    async fn read_events(&mut self, runner: &OperationRunner) -> Result<(), StoreError> {
        let selection = &self.order.selection;
        // Events published after the start reach the webhook anyway.
        let to = selection.to.map_or(self.started_at, |to| to.min(self.started_at));
        let (from, after) = (selection.from, self.scanned.map(|seen| seen.event_id));
        let heads =
            runner.operations.scan_events(self.tenant_id.clone(), from, Some(to), after, PAGE_SIZE).await?;
        self.exhausted = heads.len() < PAGE_SIZE;
        if let Some(last) = heads.last() {
            self.scanned = Some(ScanCursor { event_id: last.id, delivery_id: None });
        }
        let Some(webhook) = self.webhook(runner).await? else { return Ok(()) };
        for head in heads {
            let subscribed = selection.matches_type(&head.event_type)
                && webhook.subscribes_to(&head.event_type, head.subject.as_deref());
            if subscribed && self.passes_filter(runner, &webhook, &head).await? {
                self.found
                    .push_back((ScanCursor { event_id: head.id, delivery_id: None }, Item::Event(head)));
            }
        }
        Ok(())
    }

    /// Returns whether the webhook's filter accepts the payload of an event. Reads the payload only if there is a
    /// filter.
    async fn passes_filter(
        &self,
        runner: &OperationRunner,
        webhook: &Arc<ResolvedWebhook>,
        head: &EventSummary,
    ) -> Result<bool, StoreError> {
        let Some(filter) = webhook.filter() else { return Ok(true) };
        let Some(stored) = runner.history.event(self.tenant_id.clone(), head.id).await? else {
            return Ok(false);
        };
        let data = stored.event.data.clone();
        if Filter::work([filter].into_iter(), &data) <= MAX_INLINE_COST_UNITS {
            return Ok(webhook.passes_filter(&Payload::new(&data)));
        }
        let webhook = webhook.clone();
        runner
            .checker
            .run_on_thread(&self.tenant_id, move || webhook.passes_filter(&Payload::new(&data)))
            .await
    }

    /// Returns the webhook of a backfill; `None` if it receives no events.
    async fn webhook(&self, runner: &OperationRunner) -> Result<Option<Arc<ResolvedWebhook>>, StoreError> {
        let Some(webhook_id) = self.order.selection.webhook_ids.first() else { return Ok(None) };
        let webhook = runner.router.get_or_load(*webhook_id).await?;
        Ok(webhook.filter(|webhook| webhook.state.receives_events()))
    }

    /// Returns the task for a candidate; `None` if its webhook receives no events.
    async fn task(&self, runner: &OperationRunner, item: Item) -> Result<Option<Task>, StoreError> {
        let order = &self.order;
        let (id, candidate) = match item {
            Item::Event(head) => {
                let Some(webhook) = self.webhook(runner).await? else { return Ok(None) };
                let priority = order.priority.unwrap_or(head.priority);
                let round = NewRound {
                    id: DeliveryId::new(head.id.time(), &clock::random_id_bytes()),
                    webhook_id: webhook.id,
                    format: webhook.payload_format,
                    lane: control::redrive_lane(Some(&webhook), &head.event_type, priority),
                };
                return Ok(Some(Task::Send(head.id, round, priority)));
            }
            Item::Delivery(id, candidate) => (id, candidate),
        };
        match order.kind {
            OperationKind::Cancel => Ok(Some(Task::Cancel(id, REASON_BY_REQUEST.into()))),
            OperationKind::Purge => Ok(Some(Task::Purge(id))),
            OperationKind::Retry | OperationKind::Backfill => {
                let webhook = runner.router.get_or_load(candidate.webhook_id).await?;
                let Some(webhook) = webhook.filter(|webhook| webhook.state.receives_events()) else {
                    return Ok(None);
                };
                let priority = order.priority.unwrap_or(candidate.priority);
                let options = RedriveOptions {
                    // A delivery id has the time of its event, as has the id of the previous round.
                    id: DeliveryId::new(id.time(), &clock::random_id_bytes()),
                    lane: control::redrive_lane(Some(&webhook), &candidate.event_type, priority),
                    priority: order.priority,
                    unless_purged: order.among == OperationTarget::Dead,
                };
                Ok(Some(Task::Retry(id, options)))
            }
        }
    }
}
