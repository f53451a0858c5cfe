//! Counts of dead letters.

use redrive_core::delivery::outcome::Outcome;
use std::{collections::BTreeMap, sync::Arc, time::Duration};

use redrive_core::{
    DeadReason, DeliveryId, FailureCategory, TenantId, WebhookId,
    delivery::{bulk_operation::OperationTarget, recovery::Recoverability},
    event::Event,
    webhook::WebhookState,
};

use super::{Harness, at};
use crate::{DeadCounts, DeadGroup, DeliveryFilter, InitialState, OutcomeRecord, PageRequest, Scan};

const TYPES: [&str; 3] = ["order.created", "order.paid", "order.sent"];
/// Age bounds that lie between the deaths created by `publish_samples`.
const BOUNDS: [i64; 2] = [1_040, 1_015];

/// Creates dead deliveries of every kind, one millisecond apart.
async fn publish_samples(harness: &Harness) -> Vec<(DeliveryId, DeadGroup)> {
    let webhooks = [harness.webhook_id, harness.webhook_id()];
    let mut dead = Vec::new();
    for n in 0..60_usize {
        let webhook_id = webhooks[n % 2];
        let event_type = TYPES[n % 3];
        let event = Event { event_type: event_type.into(), ..harness.event(at(n as i64)) };
        let new = harness.fan_out(event, &[(webhook_id, InitialState::Leased)]);
        let id = new.deliveries[0].id;
        harness.publish_new(new).await;
        let reason = [DeadReason::Exhausted, DeadReason::Permanent][n / 2 % 2];
        let category =
            [FailureCategory::ServerError, FailureCategory::ClientError, FailureCategory::Dns][n / 4 % 3];
        let died_at = at(1_000 + n as i64);
        let outcome = harness.outcome(id, 1, Outcome::Dead(reason), died_at);
        let mut outcome = OutcomeRecord { webhook_id, ..outcome };
        outcome.attempt.as_mut().unwrap().failure_category = Some(category);
        harness.record(outcome).await;
        let age = BOUNDS.iter().filter(|bound| died_at <= at(**bound)).count() as u8;
        let event_type = event_type.to_owned();
        let (tenant_id, category) = (harness.tenant_id.clone(), Some(category));
        dead.push((id, DeadGroup { tenant_id, webhook_id, event_type, category, reason, age, count: 1 }));
    }
    dead
}

type Key = (TenantId, WebhookId, String, Option<String>, String, u8);

fn sums<'a>(groups: impl Iterator<Item = &'a DeadGroup>) -> BTreeMap<Key, u64> {
    let mut sums = BTreeMap::new();
    for group in groups {
        let category = group.category.map(|category| category.name().to_owned());
        let (tenant_id, event_type) = (group.tenant_id.clone(), group.event_type.clone());
        let reason = group.reason.name().to_owned();
        let key = (tenant_id, group.webhook_id, event_type, category, reason, group.age);
        *sums.entry(key).or_default() += group.count;
    }
    sums
}

async fn count(harness: &Harness, tenant_id: &TenantId, filter: &DeliveryFilter, max: usize) -> DeadCounts {
    harness.store().count_dead(tenant_id.clone(), filter.clone(), BOUNDS.map(at), max).await.unwrap()
}

pub async fn dead_letters_are_counted_by_every_group_field(harness: &Arc<Harness>) {
    let mut dead = publish_samples(harness).await;
    let none = DeliveryFilter::default;
    let filters = || {
        [
            none(),
            DeliveryFilter { webhooks: vec![harness.webhook_id], ..none() },
            DeliveryFilter { event_types: vec!["order.paid".into(), "order.sent".into()], ..none() },
            DeliveryFilter { failure_categories: vec![FailureCategory::Dns], ..none() },
            DeliveryFilter { dead_reasons: vec![DeadReason::Permanent], ..none() },
            DeliveryFilter { recoverable: Some(true), ..none() },
            DeliveryFilter { recoverable: Some(false), webhooks: vec![harness.webhook_id], ..none() },
            DeliveryFilter { from: Some(at(10)), to: Some(at(50)), ..none() },
            DeliveryFilter { failed_from: Some(at(1_010)), failed_to: Some(at(1_050)), ..none() },
        ]
    };
    let check = async |dead: &[(DeliveryId, DeadGroup)]| {
        for filter in filters() {
            let wanted = |(id, group): &&(DeliveryId, DeadGroup)| {
                (filter.webhooks.is_empty() || filter.webhooks.contains(&group.webhook_id))
                    && (filter.event_types.is_empty() || filter.event_types.contains(&group.event_type))
                    && group.category.is_some_and(|category| {
                        filter.failure_categories.is_empty() || filter.failure_categories.contains(&category)
                    })
                    && (filter.dead_reasons.is_empty() || filter.dead_reasons.contains(&group.reason))
                    && filter
                        .recoverable
                        .is_none_or(|is| Recoverability::is_likely(group.reason, group.category) == is)
                    && filter.from.is_none_or(|from| id.time() >= from)
                    && filter.to.is_none_or(|to| id.time() < to)
                    // Each died one second after its event.
                    && filter.failed_from.is_none_or(|from| id.time() + Duration::from_secs(1) >= from)
                    && filter.failed_to.is_none_or(|to| id.time() + Duration::from_secs(1) < to)
            };
            let expected = sums(dead.iter().filter(wanted).map(|(_, group)| group));
            let counted = count(harness, &harness.tenant_id, &filter, 1_000).await;
            assert_eq!((sums(counted.groups.iter()), counted.more), (expected, false), "{filter:?}");
        }
    };
    check(&dead).await;
    // A redriven delivery leaves the dead letters.
    let (gone, _) = dead.remove(17);
    harness.retry(gone, harness.redrive_options(harness.delivery_id(gone.time())), at(2_000)).await;
    check(&dead).await;
    let other = harness.new_tenant("globex").await;
    assert_eq!(count(harness, &other, &none(), 10).await, DeadCounts::default());
}

pub async fn dead_letter_count_stops_at_the_limit(harness: &Arc<Harness>) {
    let dead = publish_samples(harness).await;
    for (max, more) in [(59, true), (60, false), (7, true)] {
        let counted = count(harness, &harness.tenant_id, &DeliveryFilter::default(), max).await;
        let newest = dead.iter().rev().take(max).map(|(_, group)| group);
        assert_eq!((sums(counted.groups.iter()), counted.more), (sums(newest), more), "{max}");
    }
}

pub async fn operator_managed_webhooks_can_be_excluded(harness: &Arc<Harness>) {
    let own = harness.new_webhook().await.id;
    let kept = harness.operator_webhook(WebhookState::Active).await;
    let deleted = harness.operator_webhook(WebhookState::Deleted).await;
    // Brings the harness to the newest configuration version, which publishes need.
    let another = harness.new_webhook().await.id;
    let all = [own, kept, deleted, another];
    for webhook_id in all {
        let new = harness.fan_out(harness.event(at(1)), &[(webhook_id, InitialState::Leased)]);
        let id = new.deliveries[0].id;
        harness.publish_new(new).await;
        let outcome = harness.outcome(id, 1, Outcome::Dead(DeadReason::Exhausted), at(2));
        harness.record(OutcomeRecord { webhook_id, ..outcome }).await;
    }
    let page = || PageRequest { after: None, offset: 0, limit: 50 };
    let sorted = |mut webhooks: Vec<WebhookId>| {
        webhooks.sort_unstable();
        webhooks
    };
    for (tenant_managed_only, seen) in [(false, all.to_vec()), (true, vec![own, another])] {
        let filters = [
            DeliveryFilter { tenant_managed_only, ..DeliveryFilter::default() },
            DeliveryFilter { tenant_managed_only, webhooks: all.to_vec(), ..DeliveryFilter::default() },
        ];
        for filter in filters {
            let store = harness.store();
            let listed =
                store.list_deliveries(harness.tenant_id.clone(), filter.clone(), page()).await.unwrap();
            let dead = store.list_dead(harness.tenant_id.clone(), filter.clone(), page()).await.unwrap();
            for listed in [listed, dead] {
                let webhooks = listed.found.iter().map(|delivery| delivery.webhook_id).collect();
                assert_eq!(sorted(webhooks), sorted(seen.clone()), "{filter:?}");
            }
            let counted = count(harness, &harness.tenant_id, &filter, 50).await;
            let webhooks = counted.groups.iter().map(|group| group.webhook_id).collect();
            assert_eq!(sorted(webhooks), sorted(seen.clone()), "{filter:?}");
        }
    }
    for (among, webhook_id) in [
        (OperationTarget::Dead, None),
        (OperationTarget::Deliveries, None),
        (OperationTarget::Deliveries, Some(kept)),
    ] {
        let scan = Scan {
            among,
            webhook_id,
            failing_only: false,
            ids: None,
            from: None,
            to: None,
            after: None,
            limit: 50,
        };
        let walked = harness.store().scan_deliveries(harness.tenant_id.clone(), scan).await.unwrap();
        assert!(!walked.found.is_empty());
        for (_, candidate) in walked.found {
            let is_operator_managed = [kept, deleted].contains(&candidate.webhook_id);
            assert_eq!(candidate.is_operator_managed, is_operator_managed, "{among:?}");
        }
    }
}

pub async fn dead_letters_are_counted_up_to_a_bound(harness: &Arc<Harness>) {
    let size = async |tenant_id: &TenantId, max| {
        harness.store().count_dead_up_to(tenant_id.clone(), max).await.unwrap()
    };
    assert_eq!(size(&harness.tenant_id, 10).await, 0);
    let dead = publish_samples(harness).await;
    for (max, expected) in [(1_000, 60), (60, 60), (59, 59), (0, 0)] {
        assert_eq!(size(&harness.tenant_id, max).await, expected);
    }
    let (gone, _) = dead[17];
    harness.retry(gone, harness.redrive_options(harness.delivery_id(gone.time())), at(2_000)).await;
    assert_eq!(size(&harness.tenant_id, 1_000).await, 59);
    let other = harness.new_tenant("globex").await;
    assert_eq!(size(&other, 10).await, 0);
}
