//! The listing of attempts: filters, pages without gaps or repeats, tenant isolation, lookup by id, pruning.

use std::{cmp::Reverse, collections::BTreeMap, sync::Arc};

use redrive_core::{
    AttemptId, DeadReason, DeliveryId, FailureCategory, TenantId, WebhookId,
    delivery::{
        code_filter::CodeFilter,
        outcome::{AttemptStatus, Outcome},
    },
    webhook::WebhookState,
};

use super::{
    Harness, at,
    history::{Noise, walk},
    page,
};
use crate::{
    Attempt, AttemptCursor, AttemptFilter, InitialState, ListedAttempt, OutcomeRecord, PageRequest,
    PruneRequest, StoredAttempt, access_path::MAX_SKIPPED_ROWS,
};

/// Number of events in the sample, ten milliseconds apart.
const EVENTS: i64 = 30;

/// Publishes events to two webhooks, with attempts of every kind.
async fn publish_samples(harness: &Harness) -> [WebhookId; 2] {
    let webhooks = [harness.webhook_id, harness.webhook_id()];
    for n in 0..EVENTS {
        let to = webhooks.map(|webhook_id| (webhook_id, InitialState::Leased));
        let new = harness.fan_out(harness.event(at(10 * n)), &to);
        harness.publish_new(new.clone()).await;
        for (index, (delivery, webhook_id)) in new.deliveries.iter().zip(webhooks).enumerate() {
            record_attempts(harness, delivery.id, webhook_id, n, (n + 2 * index as i64) % 7).await;
        }
    }
    webhooks
}

async fn record_attempts(harness: &Harness, id: DeliveryId, webhook_id: WebhookId, n: i64, variant: i64) {
    let sent = 10 * n + variant;
    match variant {
        0 | 1 => record(harness, id, webhook_id, 1, Outcome::Delivered, sent).await,
        // Succeeds late.
        2 => record(harness, id, webhook_id, 1, Outcome::Delivered, sent + 60_000).await,
        3 => record(harness, id, webhook_id, 1, Outcome::Dead(DeadReason::Permanent), sent).await,
        4 => record(harness, id, webhook_id, 1, Outcome::Cancelled("enough".into()), sent).await,
        5 if webhook_id == harness.webhook_id => {
            let retry_at = at(sent + 1);
            record(harness, id, webhook_id, 1, Outcome::Retry { at: retry_at }, sent).await;
            assert_eq!(harness.claim_one(retry_at).await.id, id);
            record(harness, id, webhook_id, 2, Outcome::Delivered, sent + 500).await;
        }
        // Still leased.
        _ => {}
    }
}

async fn record(
    harness: &Harness,
    id: DeliveryId,
    webhook_id: WebhookId,
    number: u32,
    next: Outcome,
    sent: i64,
) {
    let mut outcome = OutcomeRecord { webhook_id, ..harness.outcome(id, number, next, at(sent)) };
    let attempt = outcome.attempt.as_mut().unwrap();
    (attempt.failure_category, attempt.http_status_code) = match outcome.outcome {
        Outcome::Delivered => (None, Some(200 + (sent % 2) as u16)),
        Outcome::Dead(_) => (Some(FailureCategory::ClientError), Some(422)),
        Outcome::Cancelled(_) => (Some(FailureCategory::Timeout), None),
        Outcome::Retry { .. } => (Some(FailureCategory::ServerError), Some(503)),
    };
    harness.record(outcome).await;
}

async fn list(harness: &Harness, filter: AttemptFilter) -> Vec<ListedAttempt> {
    harness.store().list_attempts(harness.tenant_id.clone(), filter, page(1000)).await.unwrap().found
}

/// Returns filters of every kind, alone and combined.
fn filters(webhooks: [WebhookId; 2]) -> Vec<AttemptFilter> {
    let none = AttemptFilter::default;
    let mut filters = vec![none()];
    for status in AttemptStatus::ALL {
        filters.push(AttemptFilter { statuses: vec![status], ..none() });
    }
    filters
        .push(AttemptFilter { statuses: vec![AttemptStatus::Failed, AttemptStatus::FinalFailure], ..none() });
    for categories in [
        &[FailureCategory::Timeout][..],
        &[FailureCategory::ServerError],
        &[FailureCategory::ClientError, FailureCategory::Timeout],
        &[FailureCategory::Dns],
    ] {
        filters.push(AttemptFilter { failure_categories: categories.to_vec(), ..none() });
    }
    for code in
        [CodeFilter::Exactly(201), CodeFilter::Exactly(503), CodeFilter::Class(2), CodeFilter::Class(4)]
    {
        filters.push(AttemptFilter { status_code: Some(code), ..none() });
    }
    for (from, to) in
        [(Some(100), None), (None, Some(100)), (Some(50), Some(800)), (Some(60_000), Some(60_100))]
    {
        let (from, to) = (from.map(at), to.map(at));
        filters.push(AttemptFilter { from, to, ..none() });
        filters.push(AttemptFilter { from, to, statuses: vec![AttemptStatus::Success], ..none() });
        filters.push(AttemptFilter { from, to, statuses: vec![AttemptStatus::Failed], ..none() });
    }
    let to = |webhook_id| filters.iter().map(move |filter| AttemptFilter { webhook_id, ..filter.clone() });
    [None, Some(webhooks[0]), Some(webhooks[1])].into_iter().flat_map(to).collect()
}

pub async fn every_attempt_filter_matches_the_reference(harness: &Arc<Harness>) {
    let webhooks = publish_samples(harness).await;
    let all = list(harness, AttemptFilter::default()).await;
    let deliveries =
        harness.store().list_deliveries(harness.tenant_id.clone(), Default::default(), page(1000));
    let mut stored: Vec<StoredAttempt> = Vec::new();
    for delivery in deliveries.await.unwrap().found {
        stored.extend(harness.attempts(delivery.id).await);
    }
    let key = |attempt: &StoredAttempt| (attempt.delivery_id, attempt.attempt.number);
    let mut listed: Vec<_> = all.iter().map(|one| one.stored.clone()).collect();
    listed.sort_by_key(key);
    stored.sort_by_key(key);
    assert_eq!(listed, stored, "every attempt is listed once");
    assert!(all.is_sorted_by_key(|one| Reverse(one.cursor)));
    for filter in filters(webhooks) {
        let wanted = |one: &&ListedAttempt| {
            filter.webhook_id.is_none_or(|webhook_id| one.stored.webhook_id == webhook_id)
                && filter.matches(&one.stored.attempt)
        };
        let mut expected: Vec<_> = all.iter().filter(wanted).map(|one| key(&one.stored)).collect();
        let found = list(harness, filter.clone()).await;
        assert!(found.is_sorted_by_key(|one| Reverse(one.cursor)), "{filter:?}");
        let mut found: Vec<_> = found.iter().map(|one| key(&one.stored)).collect();
        // Deliveries of one millisecond are in the order of their own ids if only one webhook is listed.
        found.sort();
        expected.sort();
        assert_eq!(found, expected, "{filter:?}");
    }
}

pub async fn attempts_are_paged_in_order(harness: &Arc<Harness>) {
    let [webhook_id, _] = publish_samples(harness).await;
    for webhook_id in [None, Some(webhook_id)] {
        let filter = AttemptFilter { webhook_id, ..AttemptFilter::default() };
        let all = list(harness, filter.clone()).await;
        for (after, offset, limit, expected) in [
            (None, 0, 5, &all[..5]),
            (None, 7, 5, &all[7..12]),
            (Some(all[4].cursor), 0, 5, &all[5..10]),
            (Some(all[all.len() - 1].cursor), 0, 5, &[]),
            (None, 0, 0, &[]),
        ] {
            let page = PageRequest { after, offset, limit };
            let listed = harness.store().list_attempts(harness.tenant_id.clone(), filter.clone(), page).await;
            assert_eq!(listed.unwrap().found, expected, "{page:?}");
        }
    }
}

pub async fn paging_attempts_neither_skips_nor_repeats(harness: &Arc<Harness>) {
    let webhooks = publish_samples(harness).await;
    let none = AttemptFilter::default;
    for filter in [
        none(),
        AttemptFilter { webhook_id: Some(webhooks[0]), ..none() },
        AttemptFilter { statuses: vec![AttemptStatus::Success], ..none() },
        AttemptFilter { failure_categories: vec![FailureCategory::Timeout], ..none() },
    ] {
        let key = |one: &ListedAttempt| (one.stored.delivery_id, one.stored.attempt.number);
        let there = list(harness, filter.clone()).await.iter().map(key).collect();
        let noise = Noise::start(harness);
        walk(there, async |page: PageRequest<AttemptCursor>| {
            let listed = harness.store().list_attempts(harness.tenant_id.clone(), filter.clone(), page).await;
            listed.unwrap().map(|one| (key(&one), one.cursor))
        })
        .await;
        noise.end().await;
    }
}

pub async fn attempts_of_an_event_with_many_deliveries_are_paged(harness: &Arc<Harness>) {
    const WEBHOOKS: usize = 130;
    let webhooks: Vec<_> = (0..WEBHOOKS).map(|_| harness.webhook_id()).collect();
    let to: Vec<_> = webhooks.iter().map(|id| (*id, InitialState::Leased)).collect();
    let mut sent = Vec::new();
    for time in 0..2 {
        let new = harness.fan_out(harness.event(at(time)), &to);
        harness.publish_new(new.clone()).await;
        for (n, (delivery, webhook_id)) in new.deliveries.iter().zip(&webhooks).enumerate() {
            let outcome = if n % 3 == 0 { Outcome::Dead(DeadReason::Permanent) } else { Outcome::Delivered };
            record(harness, delivery.id, *webhook_id, 1, outcome, time).await;
            sent.push(delivery.id);
        }
    }
    sent.sort_unstable();
    let all = list(harness, AttemptFilter::default()).await;
    assert!(all.is_sorted_by_key(|one| Reverse(one.cursor)));
    let (mut paged, mut after) = (Vec::new(), None);
    loop {
        let page = PageRequest { after, offset: 0, limit: 45 };
        let listed = harness.store().list_attempts(harness.tenant_id.clone(), AttemptFilter::default(), page);
        let listed = listed.await.unwrap().found;
        after = listed.last().map(|one| one.cursor);
        let is_last = listed.len() < 45;
        paged.extend(listed);
        if is_last {
            break;
        }
    }
    assert_eq!(paged, all);
    let mut found: Vec<_> = paged.iter().map(|one| one.stored.delivery_id).collect();
    found.sort_unstable();
    assert_eq!(found, sent);
}

pub async fn attempts_are_isolated_by_tenant(harness: &Arc<Harness>) {
    let webhooks = publish_samples(harness).await;
    let all = list(harness, AttemptFilter::default()).await;
    let other = harness.new_tenant("globex").await;
    for filter in filters(webhooks) {
        let listed = harness.store().list_attempts(other.clone(), filter.clone(), page(100)).await.unwrap();
        assert_eq!(listed.found, [], "{filter:?}");
    }
    for one in all {
        let id = one.stored.attempt.id;
        assert_eq!(harness.store().attempt(other.clone(), id).await.unwrap(), None);
    }
}

pub async fn attempts_to_operator_managed_webhooks_can_be_excluded(harness: &Arc<Harness>) {
    let hidden = harness.operator_webhook(WebhookState::Active).await;
    let to = [harness.webhook_id, hidden].map(|webhook_id| (webhook_id, InitialState::Leased));
    for (time, next) in [(0, Outcome::Delivered), (100, Outcome::Dead(DeadReason::Permanent))] {
        let new = harness.fan_out(harness.event(at(time)), &to);
        harness.publish_new(new.clone()).await;
        for (delivery, (webhook_id, _)) in new.deliveries.iter().zip(to) {
            record(harness, delivery.id, webhook_id, 1, next.clone(), time).await;
        }
    }
    let all = list(harness, AttemptFilter::default()).await;
    let visible = list(harness, AttemptFilter { tenant_managed_only: true, ..Default::default() }).await;
    assert_eq!((all.len(), visible.len()), (4, 2));
    assert!(visible.iter().all(|one| one.stored.webhook_id == harness.webhook_id));
}

pub async fn attempt_is_found_by_its_id(harness: &Arc<Harness>) {
    for (sent, next) in [
        (7, Outcome::Delivered),
        (59_999, Outcome::Delivered),
        (60_000, Outcome::Delivered),
        (9, Outcome::Dead(DeadReason::Permanent)),
    ] {
        let id = harness.leased(at(0)).await;
        let mut outcome = harness.outcome(id, 1, next, at(sent));
        let attempt = outcome.attempt.as_mut().unwrap();
        attempt.id = AttemptId::for_delivery(at(sent), id, &harness.next());
        let attempt_id = attempt.id;
        harness.record(outcome).await;
        let found = harness.store().attempt(harness.tenant_id.clone(), attempt_id).await.unwrap();
        assert_eq!(found, harness.attempts(id).await.pop(), "sent at {sent}");
        let owner = harness.store().tenant_of_attempt(attempt_id).await.unwrap();
        assert_eq!(owner.as_ref(), Some(&harness.tenant_id));
    }
    let unknown = AttemptId::new(at(3), &harness.next());
    assert_eq!(harness.store().tenant_of_attempt(unknown).await.unwrap(), None);
    assert_eq!(harness.store().attempt(harness.tenant_id.clone(), unknown).await.unwrap(), None);
}

pub async fn pruned_attempts_leave_the_listing(harness: &Arc<Harness>) {
    let old = harness.dead(at(0)).await;
    let kept = harness.dead(at(50)).await;
    let id = harness.attempts(old).await[0].attempt.id;
    let request = PruneRequest {
        tenant_id: harness.tenant_id.clone(),
        before: at(20),
        after: None,
        rows: 100,
        archive: false,
    };
    harness.store().prune_events(request).await.unwrap();
    let failed = AttemptFilter { statuses: vec![AttemptStatus::FinalFailure], ..AttemptFilter::default() };
    let left: Vec<_> = list(harness, failed).await.iter().map(|one| one.stored.delivery_id).collect();
    assert_eq!(left, [kept]);
    assert_eq!(harness.store().attempt(harness.tenant_id.clone(), id).await.unwrap(), None);
}

/// The only match is the oldest of more attempts than one page may scan.
pub async fn rare_attempt_is_found_in_pages_of_bounded_cost(harness: &Arc<Harness>) {
    harness.leave_undrained();
    let rare = harness.leased(at(0)).await;
    record(harness, rare, harness.webhook_id, 1, Outcome::Cancelled("enough".into()), 0).await;
    let many = MAX_SKIPPED_ROWS as i64 + 500;
    for n in 1..=many {
        let id = harness.leased(at(n)).await;
        harness.submit_outcome(harness.outcome(id, 1, Outcome::Dead(DeadReason::Permanent), at(n)));
    }
    harness.dead(at(many + 1)).await;
    for webhook_id in [None, Some(harness.webhook_id)] {
        let statuses = vec![AttemptStatus::Failed];
        let filter = AttemptFilter { webhook_id, statuses, ..AttemptFilter::default() };
        let (mut after, mut pages) = (None, 0);
        let found = loop {
            let page = PageRequest { after, offset: 0, limit: 10 };
            let listed = harness.store().list_attempts(harness.tenant_id.clone(), filter.clone(), page).await;
            let listed = listed.unwrap();
            pages += 1;
            match listed.stopped {
                Some(stopped) => after = Some(stopped),
                None => break listed.found,
            }
        };
        assert_eq!(found.iter().map(|one| one.stored.delivery_id).collect::<Vec<_>>(), [rare]);
        assert_eq!(pages, 2, "a page ends after a bounded number of rows");
    }
}

pub async fn indexed_attempts_are_counted_by_result(harness: &Arc<Harness>) {
    let webhooks = publish_samples(harness).await;
    let other = harness.new_tenant("globex").await;
    let count = async |tenant_id: &TenantId, webhook_id, from, max| {
        let found = harness.store().count_indexed_attempts(tenant_id.clone(), webhook_id, at(from), max);
        let found = found.await.unwrap();
        let by_result: BTreeMap<_, _> =
            found.iter().map(|one| (result_key(one.code, one.category), one.count)).collect();
        assert_eq!(by_result.len(), found.len(), "each result once: {found:?}");
        by_result
    };
    for webhook_id in webhooks {
        let filter = AttemptFilter { webhook_id: Some(webhook_id), ..AttemptFilter::default() };
        let all = list(harness, filter).await;
        // All failures, and the successes that were not prompt.
        let indexed: Vec<_> =
            all.iter().map(|one| &one.stored.attempt).filter(|attempt| !is_prompt(attempt)).collect();
        for from in [0, 100, 60_100, 1_000_000] {
            let mut expected: BTreeMap<_, usize> = BTreeMap::new();
            for attempt in indexed.iter().filter(|attempt| attempt.executed_at >= at(from)) {
                let key = result_key(attempt.http_status_code, attempt.failure_category);
                *expected.entry(key).or_default() += 1;
            }
            assert_eq!(count(&harness.tenant_id, webhook_id, from, 1_000).await, expected, "from {from}");
        }
        let newest = count(&harness.tenant_id, webhook_id, 0, 3).await;
        assert_eq!(newest.values().sum::<usize>(), 3);
        assert!(count(&other, webhook_id, 0, 1_000).await.is_empty(), "the webhook of another tenant");
    }
}

fn result_key(code: Option<u16>, category: Option<FailureCategory>) -> (Option<u16>, Option<&'static str>) {
    (code, category.map(FailureCategory::name))
}

/// Returns whether an attempt of the samples succeeded promptly, so that the index does not have it.
fn is_prompt(attempt: &Attempt) -> bool {
    attempt.status == AttemptStatus::Success && attempt.number == 1 && attempt.executed_at < at(60_000)
}
