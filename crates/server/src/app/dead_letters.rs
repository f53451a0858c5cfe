//! Statistics of dead letters: number, age, webhooks and reasons.

use std::{collections::HashMap, hash::Hash, time::Duration};

use redrive_core::{FailureCategory, TenantId, WebhookId, delivery::recovery::Recoverability};
use redrive_store::{DeadGroup, DeliveryFilter, EndedCounts};

use super::{App, AppError, TenantSelection};

/// Maximum number of dead letters read for one count, which bounds the time of a request.
const MAX_COUNTED: usize = 50_000;
/// Number of largest groups listed individually; the others are summed.
const TOP_COUNT: usize = 20;
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// Counts by a key, largest first.
#[derive(Clone, Debug)]
pub struct TopCounts<K> {
    /// Largest groups.
    pub top: Vec<(K, u64)>,
    /// Sum of all other groups.
    pub others: u64,
}

/// Statistics of dead letters.
#[derive(Clone, Debug)]
pub struct DeadStats {
    /// Number of dead letters.
    pub size: u64,
    /// Counting limit, if there are more.
    pub counted_up_to: Option<u64>,
    /// Number that became dead within the last hour, earlier within the last 24 hours, and before that.
    pub by_age: [u64; 3],
    /// Number that can be resent unchanged, and number that needs a fix first.
    pub by_recoverability: [u64; 2],
    /// Counts by failure category of the last attempt.
    pub by_category: TopCounts<Option<FailureCategory>>,
    /// Counts by event type.
    pub by_event_type: TopCounts<String>,
    /// Counts by webhook.
    pub by_webhook: TopCounts<WebhookId>,
    /// Counts by tenant, of those of all tenants.
    pub by_tenant: Option<TopCounts<TenantId>>,
    /// Deliveries of the whole tenant, or of all, that ended within the last hour and the last 24 hours.
    pub ended: [EndedCounts; 2],
}

fn top_counts<K: Eq + Hash + Ord + Clone>(
    groups: &[DeadGroup],
    key: impl Fn(&DeadGroup) -> K,
) -> TopCounts<K> {
    let mut sums: HashMap<K, u64> = HashMap::new();
    for group in groups {
        *sums.entry(key(group)).or_default() += group.count;
    }
    let mut top: Vec<_> = sums.into_iter().collect();
    top.sort_by(|(a, of_a), (b, of_b)| of_b.cmp(of_a).then_with(|| a.cmp(b)));
    let others = top.split_off(top.len().min(TOP_COUNT)).into_iter().map(|(_, count)| count).sum();
    TopCounts { top, others }
}

impl App {
    /// Counts the dead letters of one tenant, or of all.
    pub async fn dead_stats(
        &self,
        tenants: impl Into<TenantSelection>,
        filter: DeliveryFilter,
    ) -> Result<DeadStats, AppError> {
        let tenants = tenants.into();
        let now = self.engine.clock().now();
        let bounds = [now.saturating_sub(HOUR), now.saturating_sub(DAY)];
        let counted = self.read_dead_counts(&tenants, filter, bounds, MAX_COUNTED).await?;
        let groups = &counted.groups;
        let sum = |of: &dyn Fn(&DeadGroup) -> bool| -> u64 {
            groups.iter().filter(|group| of(group)).map(|group| group.count).sum()
        };
        let likely = |group: &DeadGroup| Recoverability::is_likely(group.reason, group.category);
        let mut by_category = top_counts(groups, |group| group.category.map(|category| category as usize));
        let named = |(index, count): (Option<usize>, u64)| {
            (index.and_then(|index| FailureCategory::ALL.get(index).copied()), count)
        };
        Ok(DeadStats {
            size: sum(&|_| true),
            counted_up_to: counted.more.then_some(MAX_COUNTED as u64),
            by_age: [0, 1, 2].map(|age| sum(&|group| group.age == age)),
            by_recoverability: [sum(&likely), sum(&|group| !likely(group))],
            by_category: TopCounts {
                top: by_category.top.drain(..).map(named).collect(),
                others: by_category.others,
            },
            by_event_type: top_counts(groups, |group| group.event_type.clone()),
            by_webhook: top_counts(groups, |group| group.webhook_id),
            by_tenant: tenants
                .tenant_id()
                .is_none()
                .then(|| top_counts(groups, |group| group.tenant_id.clone())),
            ended: self.recent_ends(&tenants, now).await?,
        })
    }
}

#[cfg(test)]
mod tests {
    use redrive_core::DeadReason;

    use super::*;

    #[test]
    fn largest_groups_are_listed_and_rest_is_summed() {
        let group = |n: u64| DeadGroup {
            tenant_id: TenantId::default(),
            webhook_id: WebhookId::from_bytes([n as u8; 16]),
            event_type: format!("type.{n}"),
            category: None,
            reason: DeadReason::Expired,
            age: 0,
            count: n,
        };
        let groups: Vec<_> = (1..=25).flat_map(|n| [group(n), group(n)]).collect();
        let by_type = top_counts(&groups, |group| group.event_type.clone());
        assert_eq!((by_type.top.len(), by_type.top[0].clone()), (20, ("type.25".into(), 50)));
        assert_eq!(by_type.others, 2 * (1 + 2 + 3 + 4 + 5));
        assert_eq!(top_counts(&groups[..0], |group| group.webhook_id).top, []);
    }
}
