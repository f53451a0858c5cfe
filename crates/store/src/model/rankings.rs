//! Tenants and webhooks of the whole store with the highest values.

use std::{cmp::Ordering, collections::HashMap, hash::Hash};

use redrive_core::{DeliveryId, TenantId, Time, WebhookId, protection::breaker::CircuitState};

/// The entries with the highest values, highest first, and what all entries add up to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ranking<K, V> {
    /// The highest entries.
    pub top: Vec<(K, V)>,
    /// Sum over all entries.
    pub total: V,
    /// Number of entries, or of those that meet the condition of the ranking if it has one.
    pub count: u64,
}

impl<K, V: Default> Default for Ranking<K, V> {
    fn default() -> Self {
        Self { top: Vec::new(), total: V::default(), count: 0 }
    }
}

/// A webhook and its tenant.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WebhookOfTenant {
    /// Its tenant.
    pub tenant_id: TenantId,
    /// The webhook.
    pub webhook_id: WebhookId,
}

/// Dead letters by tenant and by webhook.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeadLetterRanking {
    /// By tenant.
    pub tenants: Ranking<TenantId, u64>,
    /// By webhook.
    pub webhooks: Ranking<WebhookOfTenant, u64>,
}

/// Attempts, and those of them that failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttemptSums {
    /// All attempts.
    pub attempts: u64,
    /// Failed attempts.
    pub failures: u64,
}

/// Which attempts and dead letters are ranked, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrafficRankingRequest {
    /// Start of the first minute of which attempts are counted.
    pub attempts_from: Time,
    /// Start of the first minute of which dead deliveries are counted.
    pub dead_from: Time,
    /// Attempts are ranked by the failures beyond this percentage of them.
    pub tolerated_failure_percent: u8,
    /// Number of attempts below which an entry does not count as failing.
    pub min_attempts: u64,
    /// Maximum number of entries of each ranking.
    pub max: usize,
}

/// Recent attempts and dead deliveries. `count` of attempts is the number of failing entries: those with enough attempts
/// and more failures than tolerated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrafficRanking {
    /// Attempts by tenant: only tenants with a failed attempt are in `top`.
    pub tenants: Ranking<TenantId, AttemptSums>,
    /// Attempts by webhook: only webhooks with a failed attempt are in `top`, and failing webhooks are counted by their
    /// minutes with a failed attempt.
    pub webhooks: Ranking<WebhookOfTenant, AttemptSums>,
    /// Deliveries marked dead, by tenant.
    pub dead: Ranking<TenantId, u64>,
}

/// A circuit that is not closed, and not forced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnclosedCircuit {
    /// Its webhook.
    pub webhook: WebhookOfTenant,
    /// Its state: open or half-open.
    pub state: CircuitState,
    /// Time of the first failure since its last success; that of its last transition if it has not failed since.
    pub since: Time,
}

/// Tenants whose rollups one read ranks, so that it ends within its timeout however many tenants there are.
pub(crate) const TENANTS_PER_READ: usize = 500;

/// Dead letters that one read counts, so that it ends within its timeout however many there are.
pub(crate) const DEAD_LETTERS_PER_READ: usize = 5_000;

/// The last dead letter of a read in the order of webhooks, which the next read starts after.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeadLetterCursor {
    pub(crate) webhook_id: WebhookId,
    pub(crate) delivery_id: DeliveryId,
}

impl Default for DeadLetterCursor {
    fn default() -> Self {
        Self { webhook_id: WebhookId::from_bytes([0; 16]), delivery_id: DeliveryId::from_bytes([0; 16]) }
    }
}

/// Dead letters of one webhook that a read has counted.
pub(crate) struct DeadLetterCount {
    pub(crate) webhook: WebhookOfTenant,
    pub(crate) count: u64,
    /// Last of those counted.
    pub(crate) last: DeliveryId,
}

/// Dead letters by tenant and by webhook, added up over the reads of a ranking.
#[derive(Default)]
pub(crate) struct DeadLetterSums {
    tenants: HashMap<TenantId, u64>,
    webhooks: HashMap<WebhookOfTenant, u64>,
}

impl DeadLetterSums {
    /// Adds the counts of one read. Returns where the next one starts; `None` if this was the last.
    pub(crate) fn add(&mut self, counts: Vec<DeadLetterCount>) -> Option<DeadLetterCursor> {
        let counted: u64 = counts.iter().map(|one| one.count).sum();
        let last = counts
            .last()
            .map(|one| DeadLetterCursor { webhook_id: one.webhook.webhook_id, delivery_id: one.last });
        for DeadLetterCount { webhook, count, .. } in counts {
            *self.tenants.entry(webhook.tenant_id.clone()).or_default() += count;
            *self.webhooks.entry(webhook).or_default() += count;
        }
        last.filter(|_| counted >= DEAD_LETTERS_PER_READ as u64)
    }

    /// Returns the `max` highest of each.
    pub(crate) fn into_ranking(self, max: usize) -> DeadLetterRanking {
        DeadLetterRanking {
            tenants: ranking_of(self.tenants, max, TenantId::cmp),
            webhooks: ranking_of(self.webhooks, max, |a, b| a.webhook_id.cmp(&b.webhook_id)),
        }
    }
}

/// Ranks counts, highest first, and those that are equal by their ids.
fn ranking_of<K: Hash + Eq>(
    counts: HashMap<K, u64>,
    max: usize,
    by_id: fn(&K, &K) -> Ordering,
) -> Ranking<K, u64> {
    let (total, count) = (counts.values().sum(), counts.len() as u64);
    let mut top: Vec<_> = counts.into_iter().collect();
    top.sort_unstable_by(|(a, of_a), (b, of_b)| of_b.cmp(of_a).then_with(|| by_id(a, b)));
    top.truncate(max);
    Ranking { top, total, count }
}

impl TrafficRanking {
    /// Adds the ranking of other tenants.
    pub(crate) fn merge(&mut self, other: Self, request: &TrafficRankingRequest) {
        let percent = i64::from(request.tolerated_failure_percent);
        let by_failures = |sums: &AttemptSums| percent * sums.attempts as i64 - 100 * sums.failures as i64;
        self.tenants.merge(other.tenants, request.max, AttemptSums::plus, by_failures);
        self.webhooks.merge(other.webhooks, request.max, AttemptSums::plus, by_failures);
        self.dead.merge(other.dead, request.max, u64::saturating_add, |dead| -(*dead as i64));
    }
}

impl AttemptSums {
    fn plus(self, other: Self) -> Self {
        Self { attempts: self.attempts + other.attempts, failures: self.failures + other.failures }
    }
}

impl<K: Ord, V: Copy> Ranking<K, V> {
    fn merge(&mut self, other: Self, max: usize, plus: fn(V, V) -> V, place: impl Fn(&V) -> i64) {
        self.top.extend(other.top);
        self.top.sort_by(|(key, value), (next_key, next)| {
            place(value).cmp(&place(next)).then_with(|| key.cmp(next_key))
        });
        self.top.truncate(max);
        self.total = plus(self.total, other.total);
        self.count += other.count;
    }
}

/// Returns the first entries by their place, without those that have no value.
pub(crate) fn in_order<K, V>(
    mut placed: Vec<(u64, (K, V))>,
    max: usize,
    has_value: fn(&V) -> bool,
) -> Vec<(K, V)> {
    placed.sort_by_key(|(place, _)| *place);
    let entries = placed.into_iter().take(max).map(|(_, entry)| entry);
    entries.filter(|(_, value)| has_value(value)).collect()
}
