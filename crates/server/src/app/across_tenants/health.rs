//! Health of all tenants: counted in one pass over the store in bounded steps, since a list of tenants that is sorted by
//! health needs the health of every tenant.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use redrive_core::{
    TenantId, Time, WebhookId,
    statistics::{
        tenant_health::{TenantHealth, TenantKey, TenantSort},
        traffic::recent_since,
    },
};
use redrive_engine::clock::monotonic_now;
use redrive_store::{ActivityLimits, Tenant};

use crate::app::{App, AppError, overview::CircuitCounts};

const HOUR: Duration = Duration::from_secs(3600);
/// Limits of one step of the pass.
const STEP: ActivityLimits = ActivityLimits { tenants: 500, dead_letters: 1_000, failed_minutes: 1_000 };
/// Maximum number of tenants in a pass.
const MAX_TENANTS: usize = 100_000;
/// Webhooks with waiting deliveries counted per step.
const WAITING_STEP: usize = 1_000;
/// Maximum number of such webhooks in a pass.
const MAX_WAITING_WEBHOOKS: usize = 100_000;
/// Waiting deliveries counted per webhook.
const MAX_WAITING_EACH: usize = 1_000;
/// Maximum number of circuits counted that are not closed.
const MAX_CIRCUITS: usize = 10_000;
/// Failing webhooks kept of a pass.
const MAX_WORST_WEBHOOKS: usize = 20;

/// A tenant and its health.
#[derive(Clone, Debug)]
pub struct TenantSummary {
    /// The tenant.
    pub tenant: Tenant,
    /// Its health.
    pub health: TenantHealth,
}

impl TenantSummary {
    fn key(&self) -> TenantKey<'_> {
        TenantKey { id: self.tenant.id.as_str(), name: self.tenant.name.as_deref(), health: &self.health }
    }

    /// Returns whether the id or the name contains a text, which is in lower case.
    fn contains(&self, text: &str) -> bool {
        let name = self.tenant.name.as_deref().unwrap_or_default();
        self.tenant.id.as_str().to_lowercase().contains(text) || name.to_lowercase().contains(text)
    }
}

/// Health of all tenants at one time.
#[derive(Clone, Debug)]
pub struct AllTenantsHealth {
    /// Tenants by id.
    pub tenants: BTreeMap<TenantId, TenantSummary>,
    /// Webhooks with the most failed attempts in the last hour, with their number.
    pub worst_webhooks: Vec<(TenantId, WebhookId, u64)>,
    /// Number of webhooks with failed attempts in the last hour.
    pub webhooks_with_failures: usize,
    /// Circuits that are not closed.
    pub circuits: CircuitCounts,
    /// Whether a counting limit was reached, so that figures are lower than they are.
    pub more: bool,
    /// Time of the pass.
    pub counted_at: Time,
    /// Monotonic time of the pass.
    pub(super) at: Duration,
    /// Duration of the pass.
    pub(super) duration: Duration,
}

/// Change of a tenant that this node has made.
#[derive(Clone, Debug)]
pub(in crate::app) enum TenantChange {
    /// Created, or changed.
    Stored(Tenant),
    /// Deleted.
    Deleted(TenantId),
}

/// Requested order and part of the list of tenants.
#[derive(Clone, Debug, Default)]
pub struct TenantOrder {
    /// Only tenants whose id or name contains this text.
    pub search: Option<String>,
    /// Only tenants whose id starts with this text.
    pub prefix: Option<String>,
    /// Field to sort by.
    pub sort: Option<TenantSort>,
    /// Whether the largest value comes first; the field's default if `None`.
    pub descending: Option<bool>,
}

impl TenantOrder {
    /// Returns whether tenants are listed by id, without a search.
    pub fn is_by_id(&self) -> bool {
        let is_plain = self.sort.is_none_or(|sort| sort == TenantSort::Id) && self.descending != Some(true);
        is_plain && self.search.is_none()
    }
}

impl AllTenantsHealth {
    /// Applies a change of a tenant that was made after the pass. A new tenant has no traffic yet.
    pub(super) fn apply(&mut self, change: TenantChange) {
        match change {
            TenantChange::Stored(tenant) => match self.tenants.get_mut(&tenant.id) {
                Some(one) => one.tenant = tenant,
                None => {
                    let health = TenantHealth::default();
                    self.tenants.insert(tenant.id.clone(), TenantSummary { tenant, health });
                }
            },
            TenantChange::Deleted(tenant_id) => drop(self.tenants.remove(&tenant_id)),
        }
    }

    /// Returns the tenants of a request in its order.
    pub fn sorted(&self, order: &TenantOrder) -> Vec<&TenantSummary> {
        let search = order.search.as_ref().map(|text| text.trim().to_lowercase());
        let prefix = order.prefix.as_deref().unwrap_or_default();
        let wanted = |one: &&TenantSummary| {
            search.as_deref().is_none_or(|text| one.contains(text))
                && one.tenant.id.as_str().starts_with(prefix)
        };
        let mut found: Vec<_> = self.tenants.values().filter(wanted).collect();
        let sort = order.sort.unwrap_or(TenantSort::Id);
        let descending = order.descending.unwrap_or(sort.is_descending_by_default());
        found.sort_by(|a, b| sort.compare(descending, a.key(), b.key()));
        found
    }
}

impl App {
    /// Counts the health of all tenants.
    pub(super) async fn count_tenants(&self) -> Result<AllTenantsHealth, AppError> {
        let started = monotonic_now();
        let counted_at = self.engine.clock().now();
        let mut pass = Pass::default();
        pass.more |= self.count_activity(&mut pass, recent_since(counted_at, HOUR)).await?;
        pass.more |= self.count_backlogs(&mut pass).await?;
        let circuits = self.count_circuits(&mut pass).await?;
        let at = monotonic_now();
        let Pass { tenants, worst, failing, more } = pass;
        Ok(AllTenantsHealth {
            tenants,
            worst_webhooks: worst,
            webhooks_with_failures: failing,
            circuits,
            more,
            counted_at,
            at,
            duration: at.saturating_sub(started),
        })
    }

    /// Counts deliveries, dead letters and failures. Returns whether there are more than the limit.
    async fn count_activity(&self, pass: &mut Pass, since: Time) -> Result<bool, AppError> {
        let mut after = None;
        while pass.tenants.len() < MAX_TENANTS {
            let step = self.store().tenant_activity(after, since, STEP).await?;
            let is_last = step.len() < STEP.tenants;
            after = step.last().map(|one| one.tenant.id.clone());
            for one in step {
                let tenant_id = one.tenant.id.clone();
                pass.add_failures(&tenant_id, one.failures);
                let health = TenantHealth {
                    deliveries: one.ended.all(),
                    attempts: one.attempts,
                    successes: one.successes,
                    dead_letters: one.dead_letters,
                    ..TenantHealth::default()
                };
                pass.more |= one.has_more_failures || one.dead_letters >= STEP.dead_letters as u64;
                pass.tenants.insert(tenant_id, TenantSummary { tenant: one.tenant, health });
            }
            if is_last {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Counts waiting deliveries in the store and in this node's memory. Returns whether there are more than the limit.
    async fn count_backlogs(&self, pass: &mut Pass) -> Result<bool, AppError> {
        for (tenant_id, queued) in self.engine.queued_by_tenant() {
            pass.change(&tenant_id, |health| health.backlog += queued);
        }
        let (mut after, mut counted) = (None, 0);
        while counted < MAX_WAITING_WEBHOOKS {
            let step = self.store().waiting_by_webhook(after, WAITING_STEP, MAX_WAITING_EACH).await?;
            counted += step.len();
            after = step.last().map(|one| one.webhook_id);
            let is_last = step.len() < WAITING_STEP;
            for one in step {
                pass.more |= one.count >= MAX_WAITING_EACH as u64;
                pass.change(&one.tenant_id, |health| health.backlog += one.count);
            }
            if is_last {
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn count_circuits(&self, pass: &mut Pass) -> Result<CircuitCounts, AppError> {
        let found = self.store().circuits_of_all_tenants(MAX_CIRCUITS + 1).await?;
        let mut counts = CircuitCounts { more: found.len() > MAX_CIRCUITS, ..CircuitCounts::default() };
        for runtime in found.into_iter().take(MAX_CIRCUITS) {
            let is_forced = runtime.circuit.as_ref().is_some_and(|circuit| circuit.forced.is_some());
            if counts.add(&runtime) && !is_forced {
                pass.change(&runtime.tenant_id, |health| health.open_circuits += 1);
            }
        }
        Ok(counts)
    }
}

/// What a pass has counted so far.
#[derive(Default)]
struct Pass {
    tenants: BTreeMap<TenantId, TenantSummary>,
    /// Webhooks with the most failures.
    worst: Vec<(TenantId, WebhookId, u64)>,
    failing: usize,
    more: bool,
}

impl Pass {
    /// Changes the health of a tenant, unless it was deleted.
    fn change(&mut self, tenant_id: &TenantId, change: impl FnOnce(&mut TenantHealth)) {
        if let Some(one) = self.tenants.get_mut(tenant_id) {
            change(&mut one.health);
        }
    }

    fn add_failures(&mut self, tenant_id: &TenantId, failures: Vec<(WebhookId, u64)>) {
        let mut sums: HashMap<WebhookId, u64> = HashMap::new();
        for (webhook_id, count) in failures {
            *sums.entry(webhook_id).or_default() += count;
        }
        self.failing += sums.len();
        self.worst.extend(sums.into_iter().map(|(webhook_id, count)| (tenant_id.clone(), webhook_id, count)));
        self.worst.sort_by(|a, b| b.2.cmp(&a.2).then_with(|| a.1.cmp(&b.1)));
        self.worst.truncate(MAX_WORST_WEBHOOKS);
    }
}

#[cfg(test)]
mod tests {
    use redrive_core::tenancy::TenantRules;

    use super::*;

    fn all(tenants: &[(&str, Option<&str>, u64)]) -> AllTenantsHealth {
        let summary = |(id, name, dead_letters): &(&str, Option<&str>, u64)| {
            let id = TenantId::parse(id).unwrap();
            let name = name.map(str::to_owned);
            let tenant = Tenant {
                id: id.clone(),
                metadata: Default::default(),
                name,
                rules: TenantRules::default(),
                created_at: Time::default(),
            };
            let health = TenantHealth { dead_letters: *dead_letters, ..TenantHealth::default() };
            (id, TenantSummary { tenant, health })
        };
        AllTenantsHealth {
            tenants: tenants.iter().map(summary).collect(),
            worst_webhooks: Vec::new(),
            webhooks_with_failures: 0,
            circuits: CircuitCounts::default(),
            more: false,
            counted_at: Time::default(),
            at: Duration::ZERO,
            duration: Duration::ZERO,
        }
    }

    #[test]
    fn tenants_are_searched_by_id_and_name_and_sorted() {
        let all =
            all(&[("acme", Some("Größe GmbH"), 1), ("globex", None, 7), ("initech", Some("ACME two"), 3)]);
        let ids = |order: TenantOrder| -> Vec<String> {
            all.sorted(&order).iter().map(|one| one.tenant.id.to_string()).collect()
        };
        let search = |text: &str| TenantOrder { search: Some(text.into()), ..TenantOrder::default() };
        assert_eq!(ids(TenantOrder::default()), ["acme", "globex", "initech"]);
        assert_eq!(ids(search(" acme ")), ["acme", "initech"]);
        assert_eq!(ids(search("größe")), ["acme"]);
        assert_eq!(ids(search("nothing")), [] as [&str; 0]);
        let by_dead = TenantOrder { sort: Some(TenantSort::DeadLetters), ..TenantOrder::default() };
        assert_eq!(ids(by_dead.clone()), ["globex", "initech", "acme"], "the most first");
        assert_eq!(
            ids(TenantOrder { descending: Some(false), ..by_dead.clone() }),
            ["acme", "initech", "globex"]
        );
        assert_eq!(ids(TenantOrder { prefix: Some("i".into()), ..by_dead.clone() }), ["initech"]);
        assert!(!by_dead.is_by_id() && !search("a").is_by_id() && TenantOrder::default().is_by_id());
    }

    #[test]
    fn webhooks_with_most_failures_are_kept() {
        let mut pass = Pass::default();
        let tenant_id = TenantId::default();
        for n in 0..30 {
            pass.add_failures(&tenant_id, vec![(WebhookId::from_bytes([n; 16]), u64::from(n)); 2]);
        }
        assert_eq!((pass.failing, pass.worst.len()), (30, MAX_WORST_WEBHOOKS));
        assert_eq!((pass.worst[0].2, pass.worst[19].2), (58, 20));
    }
}
