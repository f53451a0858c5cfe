//! What an operation works on: looked through in slices from the oldest on, a few at a time in memory.

use std::{collections::VecDeque, sync::Arc};

use redrive_core::{
    DeliveryId, TenantId, Time,
    delivery::BY_REQUEST,
    delivery::bulk_operation::{Among, Candidate, OperationKind, takes_on},
    routing::filter::{Filter, Payload},
};
use redrive_store::{Again, EventHead, NewRound, OperationOrder, StoreError, Task, Walk, WalkCursor};

use crate::{Hook, Inner, MAX_INLINE_WORK, clock, replay};

/// Deliveries or events looked at in one go.
const SLICE: usize = 1_000;
/// Slices counted before somebody is asked whether to go on.
const SLICES: usize = 10;
/// How many of the first are remembered while counting.
const FIRST: usize = 100;

/// One that is to be worked on.
enum Item {
    Delivery(DeliveryId, Candidate),
    Event(EventHead),
}

/// A walk under way.
pub(super) struct Source {
    tenant: TenantId,
    order: OperationOrder,
    began: Time,
    /// Up to where has been looked.
    seen: Option<WalkCursor>,
    exhausted: bool,
    found: VecDeque<(WalkCursor, Item)>,
    /// How many were counted, and the first of them.
    pub(super) counted: u64,
    pub(super) first: Vec<DeliveryId>,
}

/// The next few things to do.
pub(super) struct Batch {
    pub(super) tasks: Vec<Task>,
    /// How many need nothing, since nobody would send them.
    pub(super) passed: usize,
    /// Up to where this leads.
    pub(super) cursor: Option<WalkCursor>,
    /// Whether there is nothing after it.
    pub(super) is_last: bool,
}

impl Source {
    pub(super) fn new(
        tenant: TenantId,
        order: OperationOrder,
        began: Time,
        from: Option<WalkCursor>,
    ) -> Self {
        Self {
            tenant,
            order,
            began,
            seen: from,
            exhausted: false,
            found: VecDeque::new(),
            counted: 0,
            first: Vec::new(),
        }
    }

    /// Counts all there are from here on.
    pub(super) async fn count(&mut self, inner: &Inner) -> Result<(), StoreError> {
        while self.count_some(inner).await? {}
        Ok(())
    }

    /// Counts the next few. False: there are no more.
    pub(super) async fn count_some(&mut self, inner: &Inner) -> Result<bool, StoreError> {
        for _ in 0..SLICES {
            if self.exhausted {
                return Ok(false);
            }
            self.look(inner).await?;
            self.counted += self.found.len() as u64;
            for (_, item) in self.found.drain(..) {
                if let Item::Delivery(id, _) = item
                    && self.first.len() < FIRST
                {
                    self.first.push(id);
                }
            }
        }
        Ok(true)
    }

    /// The next things to do, `most` at the most; with none before the end if a slice had none.
    pub(super) async fn next(&mut self, inner: &Inner, most: usize) -> Result<Batch, StoreError> {
        if self.found.is_empty() && !self.exhausted {
            self.look(inner).await?;
        }
        let (mut tasks, mut passed, mut cursor) = (Vec::new(), 0, None);
        while tasks.len() < most
            && let Some((place, item)) = self.found.pop_front()
        {
            cursor = Some(place);
            match self.task(inner, item).await? {
                Some(task) => tasks.push(task),
                None => passed += 1,
            }
        }
        let is_empty = self.found.is_empty();
        let cursor = if is_empty { self.seen } else { cursor };
        Ok(Batch { tasks, passed, cursor, is_last: is_empty && self.exhausted })
    }

    /// Looks at the next slice.
    async fn look(&mut self, inner: &Inner) -> Result<(), StoreError> {
        match self.order.among {
            Among::Events => self.look_at_events(inner).await,
            Among::Dead | Among::Deliveries | Among::Pending => self.look_at_deliveries(inner).await,
        }
    }

    async fn look_at_deliveries(&mut self, inner: &Inner) -> Result<(), StoreError> {
        let selection = &self.order.selection;
        let webhook = match selection.webhook_ids[..] {
            [webhook] => Some(webhook),
            _ => None,
        };
        let walk = Walk {
            among: self.order.among,
            webhook,
            from: selection.from,
            to: selection.to,
            after: self.seen,
            limit: SLICE,
        };
        let walked = inner.store.walk_deliveries(self.tenant.clone(), walk).await?;
        self.exhausted = walked.next.is_none();
        self.seen = walked.next.or(walked.found.last().map(|(place, _)| *place)).or(self.seen);
        for (place, candidate) in walked.found {
            if let Some(delivery) = place.delivery
                && takes_on(self.order.kind, selection, self.began, &candidate)
            {
                self.found.push_back((place, Item::Delivery(delivery, candidate)));
            }
        }
        Ok(())
    }

    async fn look_at_events(&mut self, inner: &Inner) -> Result<(), StoreError> {
        let selection = &self.order.selection;
        // What is published from then on reaches the webhook anyway.
        let to = selection.to.map_or(self.began, |to| to.min(self.began));
        let (from, after) = (selection.from, self.seen.map(|seen| seen.event));
        let heads = inner.store.walk_events(self.tenant.clone(), from, Some(to), after, SLICE).await?;
        self.exhausted = heads.len() < SLICE;
        if let Some(last) = heads.last() {
            self.seen = Some(WalkCursor { event: last.id, delivery: None });
        }
        let Some(hook) = self.hook(inner).await? else { return Ok(()) };
        for head in heads {
            let subscribed = selection.names_type(&head.event_type)
                && hook.wants(&head.event_type, head.subject.as_deref());
            if subscribed && self.passes_filter(inner, &hook, &head).await? {
                self.found.push_back((WalkCursor { event: head.id, delivery: None }, Item::Event(head)));
            }
        }
        Ok(())
    }

    /// Whether an event's payload is one that the webhook wants. It is read only if that matters.
    async fn passes_filter(
        &self,
        inner: &Inner,
        hook: &Arc<Hook>,
        head: &EventHead,
    ) -> Result<bool, StoreError> {
        let Some(filter) = hook.filter() else { return Ok(true) };
        let Some(stored) = inner.store.event(self.tenant.clone(), head.id).await? else { return Ok(false) };
        let data = stored.event.data.clone();
        if Filter::work([filter].into_iter(), &data) <= MAX_INLINE_WORK {
            return Ok(hook.wants_payload(&Payload::new(&data)));
        }
        let hook = hook.clone();
        inner.run_on_thread(&self.tenant, move || hook.wants_payload(&Payload::new(&data))).await
    }

    /// The webhook that past events are sent to, unless it gets none.
    async fn hook(&self, inner: &Inner) -> Result<Option<Arc<Hook>>, StoreError> {
        let Some(webhook) = self.order.selection.webhook_ids.first() else { return Ok(None) };
        let hook = inner.registry.find(&*inner.store, *webhook).await?;
        Ok(hook.filter(|hook| hook.state.gets_events()))
    }

    /// What to do with one; none if nobody would send it.
    async fn task(&self, inner: &Inner, item: Item) -> Result<Option<Task>, StoreError> {
        let order = &self.order;
        let (id, candidate) = match item {
            Item::Event(head) => {
                let Some(hook) = self.hook(inner).await? else { return Ok(None) };
                let priority = order.priority.unwrap_or(head.priority);
                let round = NewRound {
                    id: DeliveryId::new(head.id.time(), &clock::randomness()),
                    webhook: hook.id,
                    format: hook.payload_format,
                    lane: replay::lane(Some(&hook), &head.event_type, priority),
                };
                return Ok(Some(Task::Send(head.id, round, priority)));
            }
            Item::Delivery(id, candidate) => (id, candidate),
        };
        match order.kind {
            OperationKind::Cancel => Ok(Some(Task::Cancel(id, BY_REQUEST.into()))),
            OperationKind::Purge => Ok(Some(Task::Purge(id))),
            OperationKind::Retry | OperationKind::Backfill => {
                let hook = inner.registry.find(&*inner.store, candidate.webhook).await?;
                let Some(hook) = hook.filter(|hook| hook.state.gets_events()) else { return Ok(None) };
                let priority = order.priority.unwrap_or(candidate.priority);
                let again = Again {
                    // Ids take their event's time, and so does the old one's.
                    id: DeliveryId::new(id.time(), &clock::randomness()),
                    lane: replay::lane(Some(&hook), &candidate.event_type, priority),
                    priority: order.priority,
                    unless_purged: order.among == Among::Dead,
                };
                Ok(Some(Task::Retry(id, again)))
            }
        }
    }
}
