//! How webhooks and tenants do: counted in memory as answers come in, added to the store now and then.

use std::{
    collections::{BTreeMap, HashMap, hash_map::Entry},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use redrive_core::{
    DeliveryStatus, FailureCategory, TenantId, Time, WebhookId,
    health::Rollup,
    traffic::{Ended, Grain, Traffic},
};
use redrive_store::{Failures, MinuteRollup, StoreError, TenantRollup};

use crate::{Engine, Inner, ids::ById, registry::Hook};

/// How often counts are added to the store; a crash forgets at most what came since.
const FLUSH: Duration = Duration::from_secs(5);
/// Minutes written or forgotten in one step.
const STEP: usize = 1_000;

/// What was counted and not yet stored: attempts by webhook, and ends of deliveries by tenant and minute.
#[derive(Default)]
pub(crate) struct Health {
    sent: Mutex<Sent>,
    ended: Mutex<BTreeMap<(TenantId, Time), Ended>>,
}

#[derive(Default)]
struct Sent {
    /// Of a webhook there is one minute at a time: the one before it is handed to whoever flushes next.
    webhooks: ById<WebhookId, MinuteRollup>,
    /// Which of them are whose, so that nobody who asks about one tenant looks at all.
    by_tenant: HashMap<TenantId, Vec<WebhookId>>,
}

impl Sent {
    /// What is counted of a webhook, from this minute on if there is nothing yet.
    fn of(&mut self, tenant: &TenantId, webhook: WebhookId, minute: Time) -> &mut MinuteRollup {
        match self.webhooks.entry(webhook) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(vacant) => {
                self.by_tenant.entry(tenant.clone()).or_default().push(webhook);
                let rollup = Rollup::default();
                vacant.insert(MinuteRollup { tenant: tenant.clone(), webhook, minute, rollup })
            }
        }
    }

    fn of_tenant(&self, tenant: &TenantId) -> impl Iterator<Item = &MinuteRollup> {
        self.by_tenant.get(tenant).into_iter().flatten().filter_map(|webhook| self.webhooks.get(webhook))
    }
}

/// What goes into the store in one step.
struct Part {
    minutes: Vec<MinuteRollup>,
    ended: BTreeMap<(TenantId, Time), Ended>,
}

impl Part {
    /// The tenants' minutes and hours that this adds up to.
    fn traffic(&self) -> Vec<TenantRollup> {
        let mut sums: BTreeMap<(TenantId, Grain, Time), Traffic> = BTreeMap::new();
        for grain in Grain::ALL {
            let key = |tenant: &TenantId, at| (tenant.clone(), grain, grain.start(at));
            for one in &self.minutes {
                sums.entry(key(&one.tenant, one.minute)).or_default().sent.merge(&one.rollup);
            }
            for ((tenant, minute), ended) in &self.ended {
                sums.entry(key(tenant, *minute)).or_default().ended.add(*ended);
            }
        }
        let row = |((tenant, grain, start), traffic)| {
            let kept_until = Grain::kept_until(grain, start);
            TenantRollup { tenant, grain, start, kept_until, traffic }
        };
        sums.into_iter().map(row).collect()
    }
}

impl Health {
    /// Counts an answer.
    pub(crate) fn add(&self, hook: &Hook, took: Duration, category: Option<FailureCategory>, now: Time) {
        let mut sent = self.sent.lock();
        // Answers around the turn of a minute may be counted in the one before.
        let counted = sent.of(&hook.tenant.id, hook.id, minute_of(now));
        counted.rollup.add(took.as_micros() as u64, category, now);
    }

    /// Counts so many deliveries of a tenant that are over.
    pub(crate) fn ended(&self, tenant: &TenantId, status: DeliveryStatus, count: u64, now: Time) {
        let mut ended = Ended::default();
        match status {
            DeliveryStatus::Delivered => ended.delivered = count,
            DeliveryStatus::Dead => ended.dead = count,
            DeliveryStatus::Cancelled => ended.cancelled = count,
            DeliveryStatus::Pending | DeliveryStatus::InFlight => return,
        }
        if count == 0 {
            return;
        }
        self.ended.lock().entry((tenant.clone(), minute_of(now))).or_default().add(ended);
    }

    /// What was counted of a tenant and is not stored yet, by the minute.
    fn traffic_of(&self, tenant: &TenantId) -> BTreeMap<Time, Traffic> {
        let mut sums: BTreeMap<Time, Traffic> = BTreeMap::new();
        for one in self.sent.lock().of_tenant(tenant) {
            sums.entry(one.minute).or_default().sent.merge(&one.rollup);
        }
        let ended = self.ended.lock();
        let from = (tenant.clone(), Time::default());
        for ((_, minute), ended) in ended.range(from..).take_while(|((whose, _), _)| whose == tenant) {
            sums.entry(*minute).or_default().ended.add(*ended);
        }
        sums
    }

    fn of(&self, webhooks: &[WebhookId]) -> Vec<MinuteRollup> {
        let sent = self.sent.lock();
        webhooks.iter().filter_map(|webhook| sent.webhooks.get(webhook).cloned()).collect()
    }

    /// Takes out all that was counted, in steps. Those of one tenant stay together.
    fn take(&self) -> Vec<Part> {
        let mut sent = std::mem::take(&mut *self.sent.lock());
        let mut ended = std::mem::take(&mut *self.ended.lock());
        let whose = std::mem::take(&mut sent.by_tenant).into_values().flatten();
        let minutes: Vec<_> = whose.filter_map(|webhook| sent.webhooks.remove(&webhook)).collect();
        let mut parts = Vec::new();
        for minutes in minutes.chunks(STEP) {
            let keys: Vec<_> = minutes.iter().map(|one| (one.tenant.clone(), one.minute)).collect();
            let ended = keys.into_iter().filter_map(|key| ended.remove(&key).map(|ended| (key, ended)));
            parts.push(Part { ended: ended.collect(), minutes: minutes.to_vec() });
        }
        while !ended.is_empty() {
            let rest = ended.keys().nth(STEP).cloned().map(|key| ended.split_off(&key));
            parts.push(Part { minutes: Vec::new(), ended });
            ended = rest.unwrap_or_default();
        }
        parts
    }

    /// Takes back what the store did not take.
    fn put_back(&self, part: &Part) {
        let mut sent = self.sent.lock();
        for back in &part.minutes {
            let counted = sent.of(&back.tenant, back.webhook, back.minute);
            counted.minute = back.minute.min(counted.minute);
            counted.rollup.merge(&back.rollup);
        }
        let mut ended = self.ended.lock();
        for (key, back) in &part.ended {
            ended.entry(key.clone()).or_default().add(*back);
        }
    }
}

fn minute_of(time: Time) -> Time {
    Grain::Minute.start(time)
}

impl Inner {
    /// Adds what was counted to the store, now and then, and forgets what is old.
    pub(crate) async fn keep_counting(self: Arc<Self>) {
        loop {
            tokio::select! {
                () = tokio::time::sleep(FLUSH) => {}
                () = self.stop.cancelled() => return,
            }
            self.flush_health().await;
            let now = self.clock.now();
            self.coordination.tidy(now, &|webhook| self.registry.hook(webhook));
            let old = now.back(Grain::Minute.kept());
            while matches!(self.store.forget_rollups(old, STEP).await, Ok(STEP)) {
                tokio::task::yield_now().await;
            }
            while matches!(self.store.forget_traffic(now, STEP).await, Ok(STEP)) {
                tokio::task::yield_now().await;
            }
        }
    }

    pub(crate) async fn flush_health(&self) {
        for part in self.health.take() {
            if let Err(error) = self.store.add_figures(part.minutes.clone(), part.traffic()).await {
                tracing::debug!(%error, "statistics are added to the store later");
                self.health.put_back(&part);
            }
        }
    }
}

impl Engine {
    /// A tenant's traffic by the minute or by the hour from some time on; some of it perhaps in two parts. Of what
    /// other nodes counted in the last seconds nothing is known yet.
    pub async fn traffic(
        &self,
        tenant: TenantId,
        grain: Grain,
        from: Time,
    ) -> Result<Vec<(Time, Traffic)>, StoreError> {
        let from = grain.start(from);
        let counted = self.0.health.traffic_of(&tenant);
        let mut traffic = self.0.store.traffic(tenant, grain, from).await?;
        let counted = counted.into_iter().map(|(minute, counted)| (grain.start(minute), counted));
        traffic.extend(counted.filter(|(start, _)| *start >= from));
        Ok(traffic)
    }

    /// How many attempts of a tenant failed from some time on, by webhook. Looks at no more than the latest `most`
    /// minutes of webhooks with a failure.
    pub async fn failures(&self, tenant: TenantId, from: Time, most: usize) -> Result<Failures, StoreError> {
        let from = minute_of(from);
        let counted: Vec<_> = {
            let sent = self.0.health.sent.lock();
            let failed =
                sent.of_tenant(&tenant).filter(|one| one.rollup.failures() > 0 && one.minute >= from);
            failed.map(|one| (one.webhook, u64::from(one.rollup.failures()))).collect()
        };
        let Failures { by_webhook, only_since } = self.0.store.failures(tenant, from, most).await?;
        let mut sums: HashMap<WebhookId, u64> = HashMap::with_capacity(by_webhook.len());
        for (webhook, failures) in by_webhook.into_iter().chain(counted) {
            *sums.entry(webhook).or_default() += failures;
        }
        Ok(Failures { by_webhook: sums.into_iter().collect(), only_since })
    }

    /// How webhooks did from some time on, to the minute; some minutes perhaps in two parts.
    pub async fn rollups(
        &self,
        webhooks: Vec<WebhookId>,
        from: Time,
    ) -> Result<Vec<MinuteRollup>, StoreError> {
        let counted = self.0.health.of(&webhooks);
        let mut rollups = self.0.store.rollups(webhooks, minute_of(from)).await?;
        rollups.extend(counted);
        Ok(rollups)
    }

    /// When each of these webhooks last took a delivery; those of which nothing is known are left out.
    pub async fn last_successes(
        &self,
        webhooks: &[WebhookId],
    ) -> Result<HashMap<WebhookId, Time>, StoreError> {
        let inner = &self.0;
        let asked = |webhook: &WebhookId| {
            // It took nothing while it failed: those minutes need not be looked at, and there may be very many.
            (*webhook, inner.coordination.failing_since(*webhook).unwrap_or(Time::FOREVER))
        };
        let asked = webhooks.iter().map(asked).collect();
        let counted = inner.health.of(webhooks);
        let mut last: HashMap<_, _> = inner.store.last_successes(asked).await?.into_iter().collect();
        for (webhook, at) in counted.iter().filter_map(|one| Some((one.webhook, one.rollup.last_success_at?)))
        {
            last.entry(webhook).and_modify(|known: &mut Time| *known = at.max(*known)).or_insert(at);
        }
        Ok(last)
    }

    /// When a webhook last took a delivery.
    pub async fn last_success(&self, webhook: WebhookId) -> Result<Option<Time>, StoreError> {
        Ok(self.last_successes(&[webhook]).await?.remove(&webhook))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: u32) -> Time {
        Time::from_secs(1_700_000_000 / 3600 * 3600 + secs)
    }

    fn hook(n: u8) -> WebhookId {
        WebhookId::from_bytes([n; 16])
    }

    fn tenant(name: &str) -> TenantId {
        TenantId::parse(name).unwrap()
    }

    fn count(health: &Health, name: &str, webhook: u8, category: Option<FailureCategory>, now: Time) {
        let mut sent = health.sent.lock();
        sent.of(&tenant(name), hook(webhook), minute_of(now)).rollup.add(1000, category, now);
    }

    #[test]
    fn minutes_add_up_to_those_and_hours_of_their_tenants() {
        let health = Health::default();
        for webhook in [1, 2, 2] {
            count(&health, "acme", webhook, None, at(10));
        }
        count(&health, "acme", 3, Some(FailureCategory::Dns), at(3599));
        count(&health, "globex", 4, None, at(0));
        health.ended(&tenant("acme"), DeliveryStatus::Delivered, 3, at(12));
        health.ended(&tenant("acme"), DeliveryStatus::Dead, 2, at(3600));
        health.ended(&tenant("initech"), DeliveryStatus::Cancelled, 1, at(5));
        health.ended(&tenant("initech"), DeliveryStatus::Pending, 9, at(5));
        assert_eq!(health.traffic_of(&tenant("acme")).len(), 3);

        let mut rows: BTreeMap<(String, Grain, Time), Traffic> = BTreeMap::new();
        for part in health.take() {
            for row in part.traffic() {
                assert_eq!(row.kept_until, row.start + row.grain.kept());
                let key = (row.tenant.as_str().to_owned(), row.grain, row.start);
                rows.entry(key).or_default().merge(&row.traffic);
            }
        }
        let seen = |name: &str, grain, start| {
            let one = &rows[&(name.to_owned(), grain, start)];
            (one.sent.attempts, one.sent.successes, one.ended.delivered, one.ended.dead, one.ended.cancelled)
        };
        assert_eq!(seen("acme", Grain::Minute, at(0)), (3, 3, 3, 0, 0));
        assert_eq!(seen("acme", Grain::Minute, at(3540)), (1, 0, 0, 0, 0));
        assert_eq!(seen("acme", Grain::Minute, at(3600)), (0, 0, 0, 2, 0));
        assert_eq!(seen("acme", Grain::Hour, at(0)), (4, 3, 3, 0, 0));
        assert_eq!(seen("acme", Grain::Hour, at(3600)), (0, 0, 0, 2, 0));
        assert_eq!(seen("globex", Grain::Minute, at(0)), (1, 1, 0, 0, 0));
        assert_eq!(seen("initech", Grain::Hour, at(0)), (0, 0, 0, 0, 1));
        assert_eq!(rows.len(), 9);
        assert!(health.take().is_empty());
    }

    #[test]
    fn what_the_store_did_not_take_is_counted_once() {
        let health = Health::default();
        for webhook in 0..250 {
            for n in 0..5 {
                count(&health, &format!("t{n}"), webhook, None, at(n));
            }
        }
        // Ids are one tenant's: each webhook was counted for the first that named it.
        for minute in 0..1500 {
            health.ended(&tenant("t0"), DeliveryStatus::Delivered, 1, at(60 * minute));
        }
        let parts = health.take();
        assert!(parts.iter().all(|part| part.minutes.len() <= STEP && part.ended.len() <= STEP));
        parts.iter().for_each(|part| health.put_back(part));
        count(&health, "t0", 0, None, at(61));
        let mut sum = Traffic::default();
        health.traffic_of(&tenant("t0")).values().for_each(|one| sum.merge(one));
        assert_eq!((sum.sent.attempts, sum.ended.delivered), (1251, 1500));
        assert_eq!(health.of(&[hook(0)])[0].minute, at(0), "the earlier minute is kept");
    }
}
