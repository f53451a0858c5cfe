//! How webhooks and tenants do: counted in memory as answers come in, added to the store now and then.

use std::{
    collections::{BTreeMap, HashMap, hash_map::Entry},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use parking_lot::Mutex;
use redrive_core::{
    DeliveryStatus, FailureCategory, TenantId, Time, WebhookId,
    statistics::rollup::Rollup,
    statistics::traffic::{Ended, Grain, Traffic},
};
use redrive_store::{Answer, Failures, MinuteRollup, StoreError, TenantRollup};

use crate::{Engine, Inner, ids::ById, registry::Hook};

/// How often counts are added to the store; a crash forgets at most what came since.
const FLUSH: Duration = Duration::from_secs(5);
/// Minutes written or forgotten in one step.
const STEP: usize = 1_000;

/// How often a look is taken again that a step to the store came in between.
const LOOKS: usize = 4;

/// What was counted and not yet stored: attempts by webhook, and ends of deliveries by tenant and minute.
#[derive(Default)]
pub(crate) struct Health {
    sent: Mutex<Sent>,
    ended: Mutex<BTreeMap<(TenantId, Time), Ended>>,
    /// What is just being stored.
    going: Mutex<Option<Arc<Part>>>,
    /// Counts up when something begins or ends to be stored. Who has seen it stand still while looking here and in
    /// the store has missed nothing, and seen nothing twice, but for the moment between a commit and its answer.
    steps: AtomicU64,
    /// The turn to store something.
    turn: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Sent {
    /// Of a webhook there is one minute at a time: the one in which its first attempt since the last flush ended. While
    /// the store takes nothing, later minutes are counted in it too.
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
#[derive(Default)]
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
        let mut add = |one: &MinuteRollup| sums.entry(one.minute).or_default().sent.merge(&one.rollup);
        self.sent.lock().of_tenant(tenant).for_each(&mut add);
        let going = self.going();
        going.minutes.iter().filter(|one| one.tenant == *tenant).for_each(add);
        let mut add = |all: &BTreeMap<(TenantId, Time), Ended>| {
            let from = (tenant.clone(), Time::default());
            for ((_, minute), ended) in all.range(from..).take_while(|((whose, _), _)| whose == tenant) {
                sums.entry(*minute).or_default().ended.add(*ended);
            }
        };
        add(&self.ended.lock());
        add(&going.ended);
        sums
    }

    /// How many attempts of a tenant failed that are not stored yet, by webhook; from this minute on.
    fn failures_of(&self, tenant: &TenantId, from: Time) -> Vec<(WebhookId, u64)> {
        let mut failed = Vec::new();
        let mut add = |one: &MinuteRollup| {
            if one.rollup.failures() > 0 && one.minute >= from {
                failed.push((one.webhook, u64::from(one.rollup.failures())));
            }
        };
        self.sent.lock().of_tenant(tenant).for_each(&mut add);
        self.going().minutes.iter().filter(|one| one.tenant == *tenant).for_each(add);
        failed
    }

    fn going(&self) -> Arc<Part> {
        self.going.lock().clone().unwrap_or_default()
    }

    fn of(&self, webhooks: &[WebhookId]) -> Vec<MinuteRollup> {
        let mut found: Vec<_> = {
            let sent = self.sent.lock();
            webhooks.iter().filter_map(|webhook| sent.webhooks.get(webhook).cloned()).collect()
        };
        let going = self.going();
        found.extend(going.minutes.iter().filter(|one| webhooks.contains(&one.webhook)).cloned());
        found
    }

    /// How many steps it takes to store all that is here now.
    fn steps_to_go(&self) -> usize {
        let (sent, ended) = (self.sent.lock().webhooks.len(), self.ended.lock().len());
        // Those of a tenant stay together, so that some steps are not full.
        2 * sent.div_ceil(STEP) + ended.div_ceil(STEP)
    }

    /// Takes out what is to be stored next. Those of one tenant stay together, as far as they fit.
    fn take(&self) -> Option<Arc<Part>> {
        let (mut sent, mut ended) = (self.sent.lock(), self.ended.lock());
        let mut part = Part::default();
        while part.minutes.len() < STEP
            && let Some(tenant) = sent.by_tenant.keys().next().cloned()
        {
            let room = STEP - part.minutes.len();
            let Entry::Occupied(mut whose) = sent.by_tenant.entry(tenant) else { break };
            let left = whose.get().len().saturating_sub(room);
            let taken = whose.get_mut().split_off(left);
            if left == 0 {
                whose.remove();
            }
            part.minutes.extend(taken.iter().filter_map(|webhook| sent.webhooks.remove(webhook)));
        }
        for one in &part.minutes {
            let key = (one.tenant.clone(), one.minute);
            if let Some(ends) = ended.remove(&key) {
                part.ended.insert(key, ends);
            }
        }
        if part.minutes.is_empty() {
            let rest = ended.keys().nth(STEP).cloned().map(|key| ended.split_off(&key)).unwrap_or_default();
            part.ended = std::mem::replace(&mut ended, rest);
        }
        if part.minutes.is_empty() && part.ended.is_empty() {
            return None;
        }
        let part = Arc::new(part);
        *self.going.lock() = Some(part.clone());
        self.steps.fetch_add(1, SeqCst);
        Some(part)
    }

    /// It is in the store, or here again.
    fn gone(&self) {
        self.going.lock().take();
        self.steps.fetch_add(1, SeqCst);
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
            let confirmed_now = self.clock.confirmed_now();
            let old = confirmed_now.back(Grain::Minute.kept());
            while matches!(self.store.forget_rollups(old, STEP).await, Ok(STEP)) {
                tokio::task::yield_now().await;
            }
            while matches!(self.store.forget_traffic(confirmed_now, STEP).await, Ok(STEP)) {
                tokio::task::yield_now().await;
            }
        }
    }

    pub(crate) async fn flush_health(&self) {
        // One at a time: what a stop stores must not be taken for what is being stored already.
        let _turn = self.health.turn.lock().await;
        for _ in 0..self.health.steps_to_go() {
            let Some(part) = self.health.take() else { return };
            let stored = self.store.add_figures(part.minutes.clone(), part.traffic()).await;
            if stored.is_err() {
                self.health.put_back(&part);
            }
            self.health.gone();
            if let Err(error) = stored {
                tracing::debug!(%error, "statistics are added to the store later");
                return;
            }
        }
    }

    /// Looks at what is here and in the store, again if something went from one to the other meanwhile.
    async fn steadily<'a, T>(&self, look: impl Fn() -> Answer<'a, T>) -> Result<T, StoreError> {
        for _ in 1..LOOKS {
            let before = self.health.steps.load(SeqCst);
            let seen = look().await?;
            if self.health.steps.load(SeqCst) == before {
                return Ok(seen);
            }
        }
        look().await
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
        let (inner, tenant, from) = (&self.0, &tenant, grain.start(from));
        let look = || -> Answer<'_, _> {
            Box::pin(async move {
                let counted = inner.health.traffic_of(tenant).into_iter();
                let counted = counted.map(|(minute, counted)| (grain.start(minute), counted));
                let mut traffic = inner.store.traffic(tenant.clone(), grain, from).await?;
                traffic.extend(counted.filter(|(start, _)| *start >= from));
                Ok(traffic)
            })
        };
        inner.steadily(look).await
    }

    /// How many attempts of a tenant failed from some time on, by webhook. Looks at no more than the latest `most`
    /// minutes of webhooks with a failure.
    pub async fn failures(&self, tenant: TenantId, from: Time, most: usize) -> Result<Failures, StoreError> {
        let (inner, tenant, from) = (&self.0, &tenant, minute_of(from));
        let look = || -> Answer<'_, _> {
            Box::pin(async move {
                let counted = inner.health.failures_of(tenant, from);
                let Failures { by_webhook, only_since } =
                    inner.store.failures(tenant.clone(), from, most).await?;
                let mut sums: HashMap<WebhookId, u64> = HashMap::with_capacity(by_webhook.len());
                for (webhook, failures) in by_webhook.into_iter().chain(counted) {
                    *sums.entry(webhook).or_default() += failures;
                }
                Ok(Failures { by_webhook: sums.into_iter().collect(), only_since })
            })
        };
        inner.steadily(look).await
    }

    /// How webhooks did from some time on, to the minute; some minutes perhaps in two parts. `for_tenant` is the tenant
    /// that asked; none for the engine itself.
    pub async fn rollups(
        &self,
        for_tenant: Option<&TenantId>,
        webhooks: Vec<WebhookId>,
        from: Time,
    ) -> Result<Vec<MinuteRollup>, StoreError> {
        let (inner, webhooks, from) = (&self.0, &webhooks, minute_of(from));
        let look = || -> Answer<'_, _> {
            Box::pin(async move {
                let counted = inner.health.of(webhooks);
                let mut rollups = inner.store.rollups(for_tenant.cloned(), webhooks.clone(), from).await?;
                rollups.extend(counted.into_iter().filter(|one| one.minute >= from));
                Ok(rollups)
            })
        };
        inner.steadily(look).await
    }

    /// When each of these webhooks of a tenant last took a delivery; those of which nothing is known are left out.
    pub async fn last_successes(
        &self,
        tenant: &TenantId,
        webhooks: &[WebhookId],
    ) -> Result<HashMap<WebhookId, Time>, StoreError> {
        let inner = &self.0;
        if webhooks.is_empty() {
            return Ok(HashMap::new());
        }
        let asked = |webhook: &WebhookId| {
            // It took nothing while it failed: those minutes need not be looked at, and there may be very many.
            (*webhook, inner.coordination.failing_since(*webhook).unwrap_or(Time::FOREVER))
        };
        let asked = webhooks.iter().map(asked).collect();
        let counted = inner.health.of(webhooks);
        let stored = inner.store.last_successes(tenant.clone(), asked).await?;
        let mut last: HashMap<_, _> = stored.into_iter().collect();
        for (webhook, at) in counted.iter().filter_map(|one| Some((one.webhook, one.rollup.last_success_at?)))
        {
            last.entry(webhook).and_modify(|known: &mut Time| *known = at.max(*known)).or_insert(at);
        }
        Ok(last)
    }

    /// When a webhook last took a delivery.
    pub async fn last_success(
        &self,
        tenant: &TenantId,
        webhook: WebhookId,
    ) -> Result<Option<Time>, StoreError> {
        Ok(self.last_successes(tenant, &[webhook]).await?.remove(&webhook))
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
        let first = health.take();
        assert_eq!(health.traffic_of(&tenant("acme")).len(), 3, "what is going is still seen");
        for part in std::iter::successors(first, |_| health.take()) {
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
        health.gone();
        assert!(health.take().is_none() && health.traffic_of(&tenant("acme")).is_empty());
    }

    #[test]
    fn what_the_store_did_not_take_is_counted_once() {
        let health = Health::default();
        for n in 0..2500u32 {
            let mut sent = health.sent.lock();
            let mut id = [0; 16];
            id[12..].copy_from_slice(&n.to_be_bytes());
            let whose = tenant(if n % 5 == 0 { "acme" } else { "globex" });
            sent.of(&whose, WebhookId::from_bytes(id), at(0)).rollup.add(1000, None, at(1));
        }
        for minute in 0..1500 {
            health.ended(&tenant("acme"), DeliveryStatus::Delivered, 1, at(60 * minute));
        }
        let seen = || {
            let mut sum = Traffic::default();
            health.traffic_of(&tenant("acme")).values().for_each(|one| sum.merge(one));
            (sum.sent.attempts, sum.ended.delivered)
        };
        let steps = health.steps_to_go();
        let mut parts = Vec::new();
        health.put_back(&health.take().unwrap());
        health.gone();
        assert_eq!(seen(), (500, 1500), "it is here again");
        while let Some(part) = health.take() {
            assert!(part.minutes.len() <= STEP && part.ended.len() <= STEP);
            health.gone();
            parts.push(part);
        }
        assert!(parts.len() <= steps, "{} of {steps}", parts.len());
        assert_eq!(seen(), (0, 0));
        let minutes: usize = parts.iter().map(|part| part.minutes.len()).sum();
        assert_eq!((minutes, parts.iter().map(|part| part.ended.len()).sum::<usize>()), (2500, 1500));
        count(&health, "acme", 1, None, at(61));
        health.put_back(&parts[0]);
        assert!(
            health.sent.lock().webhooks.values().all(|one| one.minute <= at(60)),
            "the earlier minute is kept"
        );
    }
}
