//! What other nodes changed: read from the store every now and then, at once where it gives a hint, and followed
//! as if it had been changed here.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use parking_lot::RwLock;
use redrive_core::{DeliveryId, TenantId, WebhookId};
use redrive_store::{Change, Hint, Mark, StoreError};
use tokio::sync::Notify;

use crate::{Engine, Inner, clock::ticks, coordination::Learnt, registry::Hook};

/// Between two readings: at least so long, however many hints there are, and with the rest at the most so long
/// if there is none.
const BREATH: Duration = Duration::from_millis(50);
const PATIENCE: Duration = Duration::from_millis(450);
/// After so long without a reading everything is read anew: what was missed may be forgotten.
const GAP: Duration = Duration::from_secs(5 * 60);
/// How long changes are kept for those that are behind, and how often the older ones are forgotten.
const KEPT: Duration = Duration::from_secs(10 * 60);
const FORGET: Duration = Duration::from_secs(60);
/// Webhooks asked about at one go.
const STEP: usize = 500;

/// Who is to be told of what.
#[derive(Default)]
pub(crate) struct News {
    /// There is something to read.
    there: Notify,
    /// Changes may have been missed.
    missed: AtomicBool,
    /// What is known may be of another server, whose versions mean nothing on this one.
    is_foreign: AtomicBool,
    on_keys: RwLock<Vec<Box<dyn Fn() + Send + Sync>>>,
}

impl News {
    /// Has what is new read at once.
    pub(crate) fn is_there(&self) {
        self.there.notify_one();
    }

    /// Has everything read anew.
    pub(crate) fn missed_some(&self) {
        self.missed.store(true, Relaxed);
        self.there.notify_one();
    }

    /// Has everything read again, whatever its version.
    pub(crate) fn server_changed(&self) {
        self.is_foreign.store(true, Relaxed);
        self.missed_some();
    }

    fn keys_changed(&self) {
        self.on_keys.read().iter().for_each(|call| call());
    }
}

impl Engine {
    /// Has `call` called whenever API keys may have been made or revoked on another node. It must not block.
    pub fn on_keys_changed(&self, call: Box<dyn Fn() + Send + Sync>) {
        self.0.fleet.news.on_keys.write().push(call);
    }
}

/// Places in the row of changes, from the oldest on, with the times at which they were reached.
#[derive(Default)]
struct Trail(VecDeque<(Duration, Mark)>);

impl Trail {
    /// Notes a place, once in a while. Gives the one before which everybody has read everything.
    fn note(&mut self, now: Duration, mark: &Mark) -> Option<Mark> {
        let age = |at: Duration| now.saturating_sub(at);
        if self.0.back().is_some_and(|(at, _)| age(*at) < FORGET) {
            return None;
        }
        self.0.push_back((now, mark.clone()));
        let mut old = None;
        while let Some((_, mark)) = self.0.pop_front_if(|(at, _)| age(*at) >= KEPT) {
            old = Some(mark);
        }
        old
    }
}

impl Inner {
    /// Has the store ring when there is something to send or to read.
    pub(crate) fn heed_hints(self: &Arc<Self>) {
        // The store must not keep the engine alive that keeps the store.
        let inner = Arc::downgrade(self);
        self.store.on_hint(Box::new(move |hint| {
            let Some(inner) = inner.upgrade() else { return };
            match hint {
                Hint::Work => inner.alarm.ring(),
                Hint::Change => inner.fleet.news.there.notify_one(),
            }
        }));
    }

    /// Follows what others change from a mark on, for as long as the engine runs.
    pub(crate) async fn keep_following(self: Arc<Self>, mut mark: Mark) {
        let mut trail = Trail::default();
        let mut unsure = BTreeSet::new();
        let mut read_at = ticks();
        loop {
            tokio::time::sleep(BREATH).await;
            tokio::select! {
                () = tokio::time::sleep(PATIENCE) => {}
                () = self.fleet.news.there.notified() => {}
                () = self.stop.cancelled() => return,
            }
            let missed = self.fleet.news.missed.swap(false, Relaxed);
            let anew = missed || ticks().saturating_sub(read_at) > GAP;
            let read =
                if anew { self.reread(&mut unsure).await } else { self.read(&mark, &mut unsure).await };
            match read {
                Ok(next) => (mark, read_at) = (next, ticks()),
                Err(error) => {
                    self.fleet.news.missed.fetch_or(anew, Relaxed);
                    tracing::debug!(%error, "what others changed cannot be read yet");
                    continue;
                }
            }
            if let Some(old) = trail.note(ticks(), &mark)
                && let Err(error) = self.store.forget_changes(old).await
            {
                tracing::debug!(%error, "old changes are forgotten later");
            }
        }
    }

    /// Follows the changes since a mark. Gives the next one.
    async fn read(
        self: &Arc<Self>,
        since: &Mark,
        unsure: &mut BTreeSet<WebhookId>,
    ) -> Result<Mark, StoreError> {
        let told = self.store.changes(Some(since.clone())).await?;
        let mut gates = unsure.clone();
        let mut tenants: BTreeMap<TenantId, Vec<WebhookId>> = BTreeMap::new();
        let mut cancelled = Vec::new();
        for change in told.changes {
            match change {
                Change::Webhook(tenant, webhook) => {
                    tenants.entry(tenant).or_default().push(webhook);
                    // Whoever enables a webhook forgives it its failures.
                    gates.insert(webhook);
                }
                Change::Tenant(tenant) => drop(tenants.entry(tenant).or_default()),
                Change::Gate(webhook) => drop(gates.insert(webhook)),
                Change::Cancel(webhook, delivery) => cancelled.push((webhook, delivery)),
                Change::Keys => self.fleet.news.keys_changed(),
            }
        }
        for (tenant, webhooks) in tenants {
            self.follow_tenant(&tenant, &webhooks).await?;
        }
        *unsure = self.learn(gates).await?;
        for (webhook, delivery) in cancelled {
            self.call_off_one(webhook, delivery);
        }
        Ok(told.mark)
    }

    /// Reads everything anew that is known here.
    async fn reread(self: &Arc<Self>, unsure: &mut BTreeSet<WebhookId>) -> Result<Mark, StoreError> {
        let mark = self.store.changes(None).await?.mark;
        let here = self.dispatch.webhooks();
        let mut gates: BTreeSet<WebhookId> = self.coordination.known().into_iter().collect();
        gates.extend(self.store.troubled().await?.into_iter().map(|runtime| runtime.webhook));
        gates.extend(&here);
        let is_foreign = self.fleet.news.is_foreign.swap(false, Relaxed);
        for tenant in self.registry.tenants() {
            let read = match is_foreign {
                true => self.registry.reload_tenant(&*self.store, &tenant).await,
                false => Ok(()),
            };
            let read = match read {
                Ok(()) => self.follow_tenant(&tenant, &[]).await,
                Err(error) => Err(error),
            };
            if let Err(error) = read {
                self.fleet.news.is_foreign.fetch_or(is_foreign, Relaxed);
                return Err(error);
            }
        }
        for webhook in here {
            self.follow(webhook);
        }
        self.fleet.news.keys_changed();
        *unsure = self.learn(gates).await?;
        Ok(mark)
    }

    /// A tenant's rules, or these webhooks of it, have changed.
    async fn follow_tenant(
        self: &Arc<Self>,
        tenant: &TenantId,
        webhooks: &[WebhookId],
    ) -> Result<(), StoreError> {
        if self.registry.knows(tenant) {
            self.registry.refresh(&*self.store, tenant).await?;
            self.tenant_changed(tenant);
            webhooks.iter().for_each(|webhook| self.follow(*webhook));
        }
        Ok(())
    }

    /// Reads what holds these webhooks back. Gives those that are on the move here, and have to be asked about
    /// again.
    pub(crate) async fn learn(
        self: &Arc<Self>,
        webhooks: BTreeSet<WebhookId>,
    ) -> Result<BTreeSet<WebhookId>, StoreError> {
        let mut unsure = BTreeSet::new();
        let webhooks: Vec<_> = webhooks.into_iter().collect();
        for part in webhooks.chunks(STEP) {
            // Whatever moves here from now on may be newer than what is read.
            let since = self.coordination.moves();
            let found = self.store.trouble_of(part.to_vec()).await?;
            let mut found: BTreeMap<_, _> = found.into_iter().map(|one| (one.webhook, one)).collect();
            for webhook in part {
                let runtime = found.remove(webhook);
                let hook = match self.registry.hook(*webhook) {
                    None if runtime.is_some() => self.registry.find(&*self.store, *webhook).await?,
                    hook => hook,
                };
                let Some(hook) = hook else { continue };
                let learnt = self.coordination.learn(&hook, runtime, since, self.clock.now());
                if learnt == Learnt::Unsure {
                    unsure.insert(*webhook);
                }
                self.act_on_learnt(&hook, learnt);
            }
        }
        if !webhooks.is_empty() {
            self.gate_alarm.notify_one();
        }
        Ok(unsure)
    }

    pub(crate) fn act_on_learnt(self: &Arc<Self>, hook: &Hook, learnt: Learnt) {
        match learnt {
            Learnt::Unsure | Learnt::Nothing => {}
            Learnt::Elsewhere => {
                if let (Some(shared), Some(hook)) = (self.shared(), self.registry.hook(hook.id)) {
                    shared.look_soon(hook);
                }
            }
            Learnt::Blocked(until) => self.park(hook, Some(until)),
            Learnt::Free(trickle) => {
                self.leave_to_home(hook);
                let moves = self.dispatch.unpark(self.whom(hook), trickle);
                self.carry_out(moves);
                self.alarm.ring();
            }
        }
    }

    /// A delivery was called off elsewhere. If it is queued here it goes back, and the store, which knows the
    /// reason, ends it. If a request is under way the store says so when its outcome is recorded.
    fn call_off_one(self: &Arc<Self>, webhook: WebhookId, delivery: DeliveryId) {
        if let Some(queued) = self.dispatch.take_cancelled(webhook, delivery) {
            self.give_back(queued);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_kept_for_those_that_are_behind() {
        let mut trail = Trail::default();
        let mut forgotten = Vec::new();
        for second in 0..=1_200 {
            let old = trail.note(Duration::from_secs(second), &Mark::at(second as i64));
            forgotten.extend(old.map(|mark| (second, mark.position)));
        }
        let expected: Vec<_> = (600..=1_200).step_by(60).map(|at| (at, at as i64 - 600)).collect();
        assert_eq!(forgotten, expected);
        assert_eq!(trail.note(Duration::from_secs(9_999), &Mark::at(2_000)), Some(Mark::at(1_200)));
    }
}
