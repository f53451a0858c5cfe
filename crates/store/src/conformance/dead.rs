//! Dead letters, counted.

use std::{collections::BTreeMap, sync::Arc};

use redrive_core::{
    DeadReason, DeliveryId, FailureCategory, TenantId, WebhookId, delivery::bulk_operation::Among,
    delivery::recovery::Recovery, event::Event, webhook::WebhookState,
};

use super::{Bench, at};
use crate::{Birth, DeadCount, DeadGroup, DeliveryFilter, Next, Outcome, PageRequest, Walk};

const TYPES: [&str; 3] = ["order.created", "order.paid", "order.sent"];
/// Between the deaths of a scene.
const BOUNDS: [i64; 2] = [1_040, 1_015];

/// Deaths of every kind, a millisecond apart.
async fn scene(bench: &Bench) -> Vec<(DeliveryId, DeadGroup)> {
    let webhooks = [bench.webhook, bench.webhook_id()];
    let mut dead = Vec::new();
    for n in 0..60_usize {
        let webhook = webhooks[n % 2];
        let event_type = TYPES[n % 3];
        let event = Event { event_type: event_type.into(), ..bench.event(at(n as i64)) };
        let new = bench.fan_out(event, &[(webhook, Birth::Leased)]);
        let id = new.deliveries[0].id;
        bench.publish_new(new).await;
        let reason = [DeadReason::Exhausted, DeadReason::Permanent][n / 2 % 2];
        let category =
            [FailureCategory::ServerError, FailureCategory::ClientError, FailureCategory::Dns][n / 4 % 3];
        let died_at = at(1_000 + n as i64);
        let outcome = bench.outcome(id, 1, Next::Dead { reason }, died_at);
        let mut outcome = Outcome { webhook, ..outcome };
        outcome.attempt.as_mut().unwrap().failure_category = Some(category);
        bench.record(outcome).await;
        let age = BOUNDS.iter().filter(|bound| died_at <= at(**bound)).count() as u8;
        let event_type = event_type.to_owned();
        dead.push((id, DeadGroup { webhook, event_type, category: Some(category), reason, age, count: 1 }));
    }
    dead
}

type Key = (WebhookId, String, Option<String>, String, u8);

fn sums<'a>(groups: impl Iterator<Item = &'a DeadGroup>) -> BTreeMap<Key, u64> {
    let mut sums = BTreeMap::new();
    for group in groups {
        let category = group.category.map(|category| category.name().to_owned());
        let key =
            (group.webhook, group.event_type.clone(), category, group.reason.name().to_owned(), group.age);
        *sums.entry(key).or_default() += group.count;
    }
    sums
}

async fn count(bench: &Bench, tenant: &TenantId, filter: &DeliveryFilter, most: usize) -> DeadCount {
    bench.store().count_dead(tenant.clone(), filter.clone(), BOUNDS.map(at), most).await.unwrap()
}

pub async fn the_dead_are_counted_by_all_that_tells_them_apart(bench: &Arc<Bench>) {
    let mut dead = scene(bench).await;
    let none = DeliveryFilter::default;
    let filters = || {
        [
            none(),
            DeliveryFilter { webhooks: vec![bench.webhook], ..none() },
            DeliveryFilter { event_types: vec!["order.paid".into(), "order.sent".into()], ..none() },
            DeliveryFilter { failure_categories: vec![FailureCategory::Dns], ..none() },
            DeliveryFilter { dead_reasons: vec![DeadReason::Permanent], ..none() },
            DeliveryFilter { recoverable: Some(true), ..none() },
            DeliveryFilter { recoverable: Some(false), webhooks: vec![bench.webhook], ..none() },
            DeliveryFilter { from: Some(at(10)), to: Some(at(50)), ..none() },
        ]
    };
    let check = async |dead: &[(DeliveryId, DeadGroup)]| {
        for filter in filters() {
            let wanted = |(id, group): &&(DeliveryId, DeadGroup)| {
                (filter.webhooks.is_empty() || filter.webhooks.contains(&group.webhook))
                    && (filter.event_types.is_empty() || filter.event_types.contains(&group.event_type))
                    && group.category.is_some_and(|category| {
                        filter.failure_categories.is_empty() || filter.failure_categories.contains(&category)
                    })
                    && (filter.dead_reasons.is_empty() || filter.dead_reasons.contains(&group.reason))
                    && filter
                        .recoverable
                        .is_none_or(|is| Recovery::is_likely(group.reason, group.category) == is)
                    && filter.from.is_none_or(|from| id.time() >= from)
                    && filter.to.is_none_or(|to| id.time() < to)
            };
            let expected = sums(dead.iter().filter(wanted).map(|(_, group)| group));
            let counted = count(bench, &bench.tenant, &filter, 1_000).await;
            assert_eq!((sums(counted.groups.iter()), counted.more), (expected, false), "{filter:?}");
        }
    };
    check(&dead).await;
    // What is sent again is no longer there.
    let (gone, _) = dead.remove(17);
    bench.retry(gone, bench.again(bench.delivery_id(gone.time())), at(2_000)).await;
    check(&dead).await;
    let other = bench.new_tenant("globex").await;
    assert_eq!(count(bench, &other, &none(), 10).await, DeadCount::default());
}

pub async fn the_dead_are_counted_no_further_than_asked(bench: &Arc<Bench>) {
    let dead = scene(bench).await;
    for (most, more) in [(59, true), (60, false), (7, true)] {
        let counted = count(bench, &bench.tenant, &DeliveryFilter::default(), most).await;
        let newest = dead.iter().rev().take(most).map(|(_, group)| group);
        assert_eq!((sums(counted.groups.iter()), counted.more), (sums(newest), more), "{most}");
    }
}

pub async fn webhooks_that_the_operator_manages_are_left_out_where_asked(bench: &Arc<Bench>) {
    let own = bench.new_webhook().await.id;
    let kept = bench.operator_webhook(WebhookState::Active).await;
    let deleted = bench.operator_webhook(WebhookState::Deleted).await;
    // Publishes are made from the newest version.
    let another = bench.new_webhook().await.id;
    let all = [own, kept, deleted, another];
    for webhook in all {
        let new = bench.fan_out(bench.event(at(1)), &[(webhook, Birth::Leased)]);
        let id = new.deliveries[0].id;
        bench.publish_new(new).await;
        let outcome = bench.outcome(id, 1, Next::Dead { reason: DeadReason::Exhausted }, at(2));
        bench.record(Outcome { webhook, ..outcome }).await;
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
            let store = bench.store();
            let listed = store.list_deliveries(bench.tenant.clone(), filter.clone(), page()).await.unwrap();
            let dead = store.list_dead(bench.tenant.clone(), filter.clone(), page()).await.unwrap();
            for listed in [listed, dead] {
                let webhooks = listed.found.iter().map(|delivery| delivery.webhook).collect();
                assert_eq!(sorted(webhooks), sorted(seen.clone()), "{filter:?}");
            }
            let counted = count(bench, &bench.tenant, &filter, 50).await;
            let webhooks = counted.groups.iter().map(|group| group.webhook).collect();
            assert_eq!(sorted(webhooks), sorted(seen.clone()), "{filter:?}");
        }
    }
    for (among, webhook) in [(Among::Dead, None), (Among::Deliveries, None), (Among::Deliveries, Some(kept))]
    {
        let walk = Walk { among, webhook, from: None, to: None, after: None, limit: 50 };
        let walked = bench.store().walk_deliveries(bench.tenant.clone(), walk).await.unwrap();
        assert!(!walked.found.is_empty());
        for (_, candidate) in walked.found {
            let is_operator_managed = [kept, deleted].contains(&candidate.webhook);
            assert_eq!(candidate.is_operator_managed, is_operator_managed, "{among:?}");
        }
    }
}

pub async fn the_size_of_the_list_is_known_up_to_a_bound(bench: &Arc<Bench>) {
    let size = async |tenant: &TenantId, most| bench.store().dead_size(tenant.clone(), most).await.unwrap();
    assert_eq!(size(&bench.tenant, 10).await, 0);
    let dead = scene(bench).await;
    for (most, expected) in [(1_000, 60), (60, 60), (59, 59), (0, 0)] {
        assert_eq!(size(&bench.tenant, most).await, expected);
    }
    let (gone, _) = dead[17];
    bench.retry(gone, bench.again(bench.delivery_id(gone.time())), at(2_000)).await;
    assert_eq!(size(&bench.tenant, 1_000).await, 59);
    let other = bench.new_tenant("globex").await;
    assert_eq!(size(&other, 10).await, 0);
}
