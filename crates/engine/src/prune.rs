//! Forgetting what is old, now and then: in short steps with pauses between them, by one node at a time.
//!
//! What is old is decided in `core::retention`; a step that is repeated, or made by two nodes at once, does no
//! harm. So a node that dies on the way costs nothing: the next round goes on from what is there.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use redrive_core::{
    TenantId, Time,
    maintenance::retention::{Cutoffs, Stride, one_by_one_before},
    notification::{confirmation::UNCONFIRMED_RETENTION, mail_limit::USAGE_RETENTION},
};
use redrive_store::{Dropped, Left, Old, StoreError};

use crate::{Engine, Inner, clock::ticks};

/// How often old things are looked for, by the engine's clock, and never more often than this.
const EVERY: Duration = Duration::from_secs(3600);
const AT_MOST_EVERY: Duration = Duration::from_secs(1);
/// The first look comes soon, for nodes that are started often.
const FIRST: Duration = Duration::from_secs(60);
/// Tenants, or webhooks, in one step.
const PAGE: usize = 500;
/// Rows in one step that are packed for the archive.
const PACKED: usize = 500;
/// How long notices are kept.
const NOTICES_KEPT: Duration = Duration::from_secs(30 * 24 * 3600);
/// How much space is given back in one step.
const SPACE: usize = 256 * 1024;
/// How often it is tried to drop a month that others use just then.
const TRIES: usize = 20;
const BEFORE_NEXT_TRY: Duration = Duration::from_millis(500);

impl Inner {
    /// Forgets what is old, for as long as the engine runs.
    pub(crate) async fn keep_pruning(self: Arc<Self>) {
        let mut wait = FIRST;
        loop {
            let next = self.clock.now() + wait;
            tokio::select! {
                () = async { tokio::join!(self.clock.sleep_until(next), tokio::time::sleep(AT_MOST_EVERY)); } => {}
                () = self.stop.cancelled() => return,
            }
            wait = EVERY;
            if self.fleet.is_first()
                && let Err(error) = Pruner::new(&self).round().await
            {
                tracing::warn!(%error, "what is old is forgotten later");
            }
        }
    }
}

impl Engine {
    /// Whether this node does what one node does for all, such as this. Two may think so for a moment.
    pub fn is_first(&self) -> bool {
        self.0.fleet.is_first()
    }

    /// Forgets what is old now, all of it.
    pub async fn prune(&self) -> Result<(), StoreError> {
        Pruner::new(&self.0).round().await
    }
}

/// One round of forgetting.
struct Pruner<'a> {
    inner: &'a Inner,
    stride: Stride,
    left: Left,
    months: usize,
}

impl<'a> Pruner<'a> {
    fn new(inner: &'a Inner) -> Self {
        Self { inner, stride: Stride::default(), left: Left::default(), months: 0 }
    }

    async fn round(mut self) -> Result<(), StoreError> {
        let cutoffs = self.cutoffs().await?;
        // Whole months first: that spares going through their rows. But what is archived is gone through.
        let earliest = earliest(&cutoffs);
        let keeps_months = self.inner.store.keeps_months();
        let by_month = keeps_months && !self.inner.settings.archive;
        if let (true, Some(earliest)) = (by_month, earliest) {
            self.drop_months(earliest, false).await?;
        }
        for (tenant, cutoffs) in &cutoffs {
            self.events_of(tenant, cutoffs, if by_month { Some(earliest) } else { None }).await?;
            if let Some(before) = cutoffs.dead {
                self.dead_of(tenant, before).await?;
            }
            if self.is_over() {
                return Ok(());
            }
        }
        let latest = cutoffs.values().filter_map(|cutoffs| cutoffs.events).max();
        if let (true, Some(latest)) = (keeps_months, latest) {
            self.drop_months(latest, true).await?;
        }
        self.periods(&cutoffs).await?;
        self.notices().await?;
        self.mail_addresses().await?;
        self.note_oldest(&cutoffs).await?;
        self.give_space_back().await?;
        let Left { events, deliveries, attempts } = self.left;
        if self.left.rows() + self.months > 0 {
            tracing::info!(events, deliveries, attempts, months = self.months, "what was old is forgotten");
        }
        Ok(())
    }

    /// What is old now, for each tenant.
    async fn cutoffs(&self) -> Result<BTreeMap<TenantId, Cutoffs>, StoreError> {
        let now = self.inner.clock.confirmed_now();
        let server = self.inner.settings.retention;
        let mut all = BTreeMap::new();
        loop {
            let after = all.last_key_value().map(|(tenant, _): (&TenantId, _)| tenant.clone());
            let page = self.inner.store.retained(after, PAGE).await?;
            let is_last = page.len() < PAGE;
            all.extend(page.into_iter().map(|(id, rules)| (id, server.of(&rules.quotas).cutoffs(now))));
            if is_last {
                return Ok(all);
            }
        }
    }

    /// Whether this is not for this node to do, or no longer.
    fn is_over(&self) -> bool {
        self.inner.stop.is_cancelled() || !self.inner.fleet.is_first()
    }

    async fn pause(&mut self, began: Duration) {
        let pause = self.stride.after(ticks().saturating_sub(began));
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = self.inner.stop.cancelled() => {}
        }
    }

    fn old<C>(&self, tenant: &TenantId, before: Time, after: Option<C>) -> Old<C> {
        let archive = self.inner.settings.archive;
        let rows = if archive { self.stride.rows().min(PACKED) } else { self.stride.rows() };
        Old { tenant: tenant.clone(), before, after, rows, archive }
    }

    fn note(&mut self, left: Left) {
        self.left.events += left.events;
        self.left.deliveries += left.deliveries;
        self.left.attempts += left.attempts;
        self.inner.metrics.pruned(&left);
    }

    /// `earliest` is given where events are kept by month.
    async fn events_of(
        &mut self,
        tenant: &TenantId,
        cutoffs: &Cutoffs,
        earliest: Option<Option<Time>>,
    ) -> Result<(), StoreError> {
        let Some(cutoff) = cutoffs.events else { return Ok(()) };
        let before = earliest.map_or(cutoff, |earliest| one_by_one_before(cutoff, earliest));
        let store = &self.inner.store;
        if store.oldest_event(tenant.clone()).await?.is_none_or(|oldest| oldest >= before) {
            return Ok(());
        }
        let mut after = None;
        while !self.is_over() {
            let began = ticks();
            let old = self.old(tenant, before, after);
            let step = store.prune_events(old).await?;
            self.note(step.left);
            if step.finished {
                break;
            }
            after = step.last;
            self.pause(began).await;
        }
        Ok(())
    }

    async fn dead_of(&mut self, tenant: &TenantId, before: Time) -> Result<(), StoreError> {
        let mut after = None;
        while !self.is_over() {
            let began = ticks();
            let old = self.old(tenant, before, after);
            let step = self.inner.store.prune_dead(old).await?;
            self.note(step.left);
            if step.finished {
                break;
            }
            after = step.last;
            self.pause(began).await;
        }
        Ok(())
    }

    async fn drop_months(&mut self, before: Time, only_empty: bool) -> Result<(), StoreError> {
        let mut tries = 0;
        while tries < TRIES && !self.is_over() {
            let began = ticks();
            let rows = self.stride.rows();
            match self.inner.store.drop_month(before, only_empty, rows).await? {
                Dropped::None => break,
                Dropped::Some { months } => {
                    self.months += months;
                    self.inner.metrics.months_pruned.inc_by(months as u64);
                    self.pause(began).await;
                }
                Dropped::Busy => {
                    tries += 1;
                    tokio::time::sleep(BEFORE_NEXT_TRY).await;
                }
            }
        }
        Ok(())
    }

    /// Periods of circuits go with the events of their time.
    async fn periods(&mut self, cutoffs: &BTreeMap<TenantId, Cutoffs>) -> Result<(), StoreError> {
        let mut after = None;
        while !self.is_over() {
            let page = self.inner.store.with_periods(after, PAGE).await?;
            let Some((last, _)) = page.last() else { break };
            after = Some(*last);
            let is_last = page.len() < PAGE;
            let before = |tenant| cutoffs.get(tenant).and_then(|cutoffs| cutoffs.events);
            let old: Vec<_> =
                page.iter().filter_map(|(webhook, tenant)| Some((*webhook, before(tenant)?))).collect();
            loop {
                let (began, rows) = (ticks(), self.stride.rows());
                let forgotten = self.inner.store.forget_periods(old.clone(), rows).await?;
                self.pause(began).await;
                if forgotten < rows || self.is_over() {
                    break;
                }
            }
            if is_last {
                break;
            }
        }
        Ok(())
    }

    /// Addresses that were never confirmed, and usage that no limit counts any more.
    async fn mail_addresses(&mut self) -> Result<(), StoreError> {
        let now = self.inner.clock.confirmed_now();
        let (unconfirmed, usage) = (now.back(UNCONFIRMED_RETENTION), now.back(USAGE_RETENTION));
        while !self.is_over() {
            let (began, rows) = (ticks(), self.stride.rows());
            if self.inner.store.prune_mail_addresses(unconfirmed, usage, rows).await? < rows {
                break;
            }
            self.pause(began).await;
        }
        Ok(())
    }

    /// What owners were told.
    async fn notices(&mut self) -> Result<(), StoreError> {
        let before = self.inner.clock.confirmed_now().back(NOTICES_KEPT);
        while !self.is_over() {
            let (began, rows) = (ticks(), self.stride.rows());
            if self.inner.store.forget_notices(before, rows).await? < rows {
                break;
            }
            self.pause(began).await;
        }
        Ok(())
    }

    async fn note_oldest(&self, cutoffs: &BTreeMap<TenantId, Cutoffs>) -> Result<(), StoreError> {
        let mut oldest: Option<Time> = None;
        for tenant in cutoffs.keys() {
            let of_tenant = self.inner.store.oldest_event(tenant.clone()).await?;
            oldest = match (oldest, of_tenant) {
                (Some(oldest), Some(of_tenant)) => Some(oldest.min(of_tenant)),
                (oldest, of_tenant) => oldest.or(of_tenant),
            };
        }
        self.inner.metrics.oldest_event.set(oldest.map_or(0, Time::secs));
        Ok(())
    }

    async fn give_space_back(&mut self) -> Result<(), StoreError> {
        while !self.is_over() {
            let began = ticks();
            if self.inner.store.give_space_back(SPACE).await? == 0 {
                break;
            }
            self.pause(began).await;
        }
        Ok(())
    }
}

/// The time before which nobody needs anything; none if somebody keeps everything.
fn earliest(cutoffs: &BTreeMap<TenantId, Cutoffs>) -> Option<Time> {
    let mut earliest = Time::FOREVER;
    for cutoffs in cutoffs.values() {
        earliest = earliest.min(cutoffs.events?);
    }
    Some(earliest)
}
