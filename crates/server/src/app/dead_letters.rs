//! Dead letters, counted: how many, since when, where and why.

use std::{collections::HashMap, hash::Hash, time::Duration};

use redrive_core::{FailureCategory, WebhookId, delivery::recovery::Recovery};
use redrive_store::{DeadGroup, DeliveryFilter, Ended};

use super::{App, AppError, TenantView};

/// Dead letters that are looked at for one count. More would take longer than somebody who looks should wait.
const MOST: usize = 50_000;
/// How many of the largest are told by name; the others are told together.
const TOP: usize = 20;
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// Counts by something, the largest first.
#[derive(Clone, Debug)]
pub struct Tally<K> {
    /// The largest.
    pub top: Vec<(K, u64)>,
    /// All others together.
    pub others: u64,
}

/// What is counted of dead letters.
#[derive(Clone, Debug)]
pub struct DeadStats {
    /// How many there are.
    pub size: u64,
    /// How many were looked at, where there are more.
    pub counted_up_to: Option<u64>,
    /// How many died within the last hour, in the day before that, and earlier.
    pub by_age: [u64; 3],
    /// How many are likely to succeed when they are sent again as they are, and how many are not.
    pub by_recoverability: [u64; 2],
    /// By how their last attempts failed.
    pub by_category: Tally<Option<FailureCategory>>,
    /// By event type.
    pub by_event_type: Tally<String>,
    /// By webhook.
    pub by_webhook: Tally<WebhookId>,
    /// What ended within the last hour and the last day, of the tenant as a whole.
    pub ended: [Ended; 2],
}

fn tally<K: Eq + Hash + Ord + Clone>(groups: &[DeadGroup], key: impl Fn(&DeadGroup) -> K) -> Tally<K> {
    let mut sums: HashMap<K, u64> = HashMap::new();
    for group in groups {
        *sums.entry(key(group)).or_default() += group.count;
    }
    let mut top: Vec<_> = sums.into_iter().collect();
    top.sort_by(|(a, of_a), (b, of_b)| of_b.cmp(of_a).then_with(|| a.cmp(b)));
    let others = top.split_off(top.len().min(TOP)).into_iter().map(|(_, count)| count).sum();
    Tally { top, others }
}

impl App {
    /// Counts a tenant's dead letters.
    pub async fn dead_stats(
        &self,
        tenant: impl Into<TenantView>,
        filter: DeliveryFilter,
    ) -> Result<DeadStats, AppError> {
        let view = tenant.into();
        let (filter, tenant) = (view.restrict(filter), view.id);
        let now = self.engine.clock().now();
        let bounds = [now.back(HOUR), now.back(DAY)];
        let counted = self.store().count_dead(tenant.clone(), filter, bounds, MOST).await?;
        let groups = &counted.groups;
        let sum = |of: &dyn Fn(&DeadGroup) -> bool| -> u64 {
            groups.iter().filter(|group| of(group)).map(|group| group.count).sum()
        };
        let likely = |group: &DeadGroup| Recovery::is_likely(group.reason, group.category);
        let mut by_category = tally(groups, |group| group.category.map(|category| category as usize));
        let named = |(index, count): (Option<usize>, u64)| {
            (index.and_then(|index| FailureCategory::ALL.get(index).copied()), count)
        };
        Ok(DeadStats {
            size: sum(&|_| true),
            counted_up_to: counted.more.then_some(MOST as u64),
            by_age: [0, 1, 2].map(|age| sum(&|group| group.age == age)),
            by_recoverability: [sum(&likely), sum(&|group| !likely(group))],
            by_category: Tally {
                top: by_category.top.drain(..).map(named).collect(),
                others: by_category.others,
            },
            by_event_type: tally(groups, |group| group.event_type.clone()),
            by_webhook: tally(groups, |group| group.webhook),
            ended: self.ended_lately(tenant, now).await?,
        })
    }
}

#[cfg(test)]
mod tests {
    use redrive_core::DeadReason;

    use super::*;

    #[test]
    fn the_largest_are_told_by_name_and_the_rest_together() {
        let group = |n: u64| DeadGroup {
            webhook: WebhookId::from_bytes([n as u8; 16]),
            event_type: format!("type.{n}"),
            category: None,
            reason: DeadReason::Expired,
            age: 0,
            count: n,
        };
        let groups: Vec<_> = (1..=25).flat_map(|n| [group(n), group(n)]).collect();
        let by_type = tally(&groups, |group| group.event_type.clone());
        assert_eq!((by_type.top.len(), by_type.top[0].clone()), (20, ("type.25".into(), 50)));
        assert_eq!(by_type.others, 2 * (1 + 2 + 3 + 4 + 5));
        assert_eq!(tally(&groups[..0], |group| group.webhook).top, []);
    }
}
