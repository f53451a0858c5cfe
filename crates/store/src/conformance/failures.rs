//! Series of failures of webhooks: counted with the outcomes that show them, and reported once.

use std::{sync::Arc, time::Duration};

use redrive_core::{
    FailureCategory, Time,
    delivery::outcome::Outcome,
    notification::NotificationKind,
    statistics::rollup::Rollup,
    webhook::{
        WebhookState,
        failures::{FailingRule, FailureSeries},
    },
};

use super::{
    Harness, at,
    notifications::{create, send_created},
};
use crate::{FailingChange, MinuteRollup, OutcomeRecord, RecordResult, WebhookEffects};

const DONE: RecordResult = RecordResult::Recorded { config_version: None };

/// Returns a failure of a series that started at this time.
pub(super) fn failed(since: i64) -> FailingChange {
    let rule = FailingRule { after_failures: 3, after: Duration::from_millis(600) };
    FailingChange::Failed { since: at(since), category: FailureCategory::Timeout, rule }
}

/// Records an effect on the failures of the harness's webhook at this time.
async fn record_failing(harness: &Arc<Harness>, failing: FailingChange, now: Time) {
    let id = harness.leased(at(0)).await;
    let effects = WebhookEffects { failing: Some(failing), ..WebhookEffects::default() };
    let outcome = OutcomeRecord { effects, ..harness.outcome(id, 1, Outcome::Delivered, now) };
    assert_eq!(harness.record(outcome).await, DONE);
}

async fn stored_failures(harness: &Arc<Harness>) -> Option<FailureSeries> {
    harness.store().list_runtime().await.unwrap().first().and_then(|one| one.failures.clone())
}

/// Returns the kinds of the notifications that are due by now, with the failures that they name.
async fn notified(harness: &Arc<Harness>, now: i64) -> Vec<(NotificationKind, Option<u32>)> {
    create(harness, now).await;
    let sent = send_created(harness, now).await;
    sent.iter().map(|one| (one.kind, one.details.failures)).collect()
}

pub async fn failures_keep_their_start_and_end_with_a_success(harness: &mut Arc<Harness>) {
    record_failing(harness, FailingChange::Recovered, at(1)).await;
    assert_eq!(harness.store().list_runtime().await.unwrap(), []);
    for (since, count) in [(50, 1), (60, 2)] {
        record_failing(harness, failed(since), at(since)).await;
        let series = stored_failures(harness).await.unwrap();
        assert_eq!((series.since, series.counts.failed), (at(50), count), "the first start is kept");
    }
    let stored = stored_failures(harness).await;
    Harness::reopen(harness).await;
    assert_eq!(stored_failures(harness).await, stored);
    record_failing(harness, FailingChange::Recovered, at(65)).await;
    assert_eq!(harness.store().list_runtime().await.unwrap(), []);
    record_failing(harness, failed(70), at(70)).await;
    assert_eq!(stored_failures(harness).await.map(|series| series.since), Some(at(70)));
    assert_eq!(notified(harness, 80).await, [], "no series was reported");
}

pub async fn series_of_failures_is_reported_once_and_its_recovery_once(harness: &mut Arc<Harness>) {
    for time in [10, 11] {
        record_failing(harness, failed(10), at(time)).await;
    }
    assert_eq!(notified(harness, 12).await, []);
    record_failing(harness, failed(10), at(13)).await;
    Harness::reopen(harness).await;
    assert_eq!(notified(harness, 14).await, [(NotificationKind::WebhookFailing, Some(3))]);
    record_failing(harness, failed(10), at(15)).await;
    assert_eq!(
        stored_failures(harness).await.map(|series| series.counts.failed),
        Some(3),
        "counted no further"
    );
    record_failing(harness, FailingChange::Recovered, at(16)).await;
    record_failing(harness, FailingChange::Recovered, at(17)).await;
    assert_eq!(notified(harness, 18).await, [(NotificationKind::WebhookRecovered, None)]);
}

pub async fn series_of_failures_is_reported_by_its_age(harness: &Arc<Harness>) {
    let FailingChange::Failed { rule, .. } = failed(0) else { unreachable!() };
    let report = async |now| {
        let (tenant_id, webhook_id) = (harness.tenant_id.clone(), harness.webhook_id);
        harness.store().report_failing(tenant_id, webhook_id, rule, at(now)).await.unwrap()
    };
    assert!(!report(9_999).await, "nothing failed");
    record_failing(harness, failed(100), at(100)).await;
    assert!(!report(9_999).await, "one failure says nothing");
    record_failing(harness, failed(100), at(101)).await;
    assert!(!report(699).await && report(700).await && !report(701).await);
    assert_eq!(notified(harness, 702).await, [(NotificationKind::WebhookFailing, Some(2))]);
}

pub async fn change_of_state_ends_the_series_of_failures(harness: &Arc<Harness>) {
    for state in [WebhookState::Paused, WebhookState::Disabled("test".into())] {
        for time in [10, 11, 12] {
            record_failing(harness, failed(10), at(time)).await;
        }
        assert!(stored_failures(harness).await.is_some_and(|series| series.is_reported));
        harness.set_state(harness.webhook_id, state.clone()).await;
        assert_eq!(stored_failures(harness).await, None, "{state:?}");
        harness.set_state(harness.webhook_id, WebhookState::Active).await;
        record_failing(harness, FailingChange::Recovered, at(20)).await;
        let kinds = notified(harness, 30).await;
        assert!(kinds.iter().all(|(kind, _)| *kind == NotificationKind::WebhookFailing), "{kinds:?}");
    }
}

pub async fn failure_of_a_paused_webhook_starts_no_series(harness: &Arc<Harness>) {
    let id = harness.leased(at(0)).await;
    harness.set_state(harness.webhook_id, WebhookState::Paused).await;
    let effects = WebhookEffects { failing: Some(failed(5)), ..WebhookEffects::default() };
    let outcome = OutcomeRecord { effects, ..harness.outcome(id, 1, Outcome::Retry { at: at(90) }, at(5)) };
    assert_eq!(harness.record(outcome).await, DONE);
    assert_eq!(stored_failures(harness).await, None);
}

pub async fn failure_after_an_unrecorded_recovery_starts_a_new_series(harness: &Arc<Harness>) {
    for time in [10, 11] {
        record_failing(harness, failed(10), at(time)).await;
    }
    let success = MinuteRollup {
        tenant_id: harness.tenant_id.clone(),
        webhook_id: harness.webhook_id,
        minute: at(0),
        rollup: Rollup { attempts: 1, successes: 1, last_success_at: Some(at(20)), ..Rollup::default() },
    };
    harness.store().add_rollups(vec![success], vec![]).await.unwrap();
    record_failing(harness, failed(10), at(30)).await;
    let series = stored_failures(harness).await.unwrap();
    assert_eq!((series.since, series.counts.failed), (at(30), 1));
}
