//! Recording outcomes: once, only by the owner of the lease, with any response bytes.

use redrive_core::delivery::outcome::Outcome;
use std::sync::Arc;

use bytes::Bytes;
use redrive_core::{
    DeadReason, DeliveryId, DeliveryStatus, FailureCategory,
    webhook::{Webhook, WebhookState, verification::Verification},
};

use super::{END, Harness, at, harness::URL};
use crate::{
    CancelResult, DisableWebhook, InitialState, OutcomeRecord, PublishResult, RecordResult, StoreError,
};

const DONE: RecordResult = RecordResult::Recorded { config_version: None };

fn dead() -> Outcome {
    Outcome::Dead(DeadReason::Exhausted)
}

fn cancelled() -> Outcome {
    Outcome::Cancelled("enough".into())
}

async fn ask_to_cancel(harness: &Harness, id: DeliveryId) {
    let request =
        harness.store().cancel(harness.tenant_id.clone(), id, "enough".into(), at(1)).await.unwrap();
    assert_eq!(request, CancelResult::Requested);
}

pub async fn delivered_ends_a_delivery(harness: &Arc<Harness>) {
    let id = harness.leased(at(0)).await;
    let outcome = harness.outcome(id, 1, Outcome::Delivered, at(5));
    assert_eq!(harness.record(outcome.clone()).await, DONE);
    let ended = harness.delivery(id).await;
    assert_eq!((ended.status, ended.ended_at), (DeliveryStatus::Delivered, Some(at(5))));
    assert_eq!((ended.attempt_count, ended.last_status_code), (1, Some(200)));
    assert_eq!((ended.failure_category, ended.last_error), (None, None));
    assert_eq!((ended.dead_reason, ended.cancel_reason, ended.due), (None, None, None));
    let attempts = harness.attempts(id).await;
    assert_eq!(attempts.len(), 1);
    assert_eq!(Some(&attempts[0].attempt), outcome.attempt.as_ref());
    assert_eq!(
        (attempts[0].delivery_id, attempts[0].event_id, attempts[0].webhook_id),
        (id, ended.event_id, harness.webhook_id)
    );
    assert!(!harness.store().mark_sending(harness.epoch, id).await.unwrap(), "the lease has ended");
    assert_eq!(harness.dead_list().await, []);
}

pub async fn retry_returns_a_delivery_to_waiting(harness: &Arc<Harness>) {
    let id = harness.leased(at(0)).await;
    harness.ends(id, Outcome::Retry { at: at(90) }, at(5)).await;
    let waits = harness.delivery(id).await;
    assert_eq!((waits.status, waits.ended_at), (DeliveryStatus::Pending, None));
    assert_eq!((waits.due, waits.attempt_count), (Some(at(90)), 1));
    assert_eq!(waits.last_status_code, Some(503));
    assert_eq!(waits.failure_category, Some(FailureCategory::ServerError));
    assert_eq!(waits.last_error.as_deref(), Some("the endpoint returned 503"));
    assert_eq!(harness.due_lanes(at(89)).await, []);
    let claimed = harness.claim_one(at(90)).await;
    assert_eq!((claimed.id, claimed.attempt_count), (id, 1));
}

pub async fn dead_ends_a_delivery_and_lists_it_as_dead_letter(harness: &Arc<Harness>) {
    let mut died = Vec::new();
    for (n, reason) in (0..).zip(DeadReason::ALL) {
        let id = harness.leased(at(n)).await;
        harness.ends(id, Outcome::Dead(reason), at(100)).await;
        let ended = harness.delivery(id).await;
        assert_eq!((ended.status, ended.ended_at), (DeliveryStatus::Dead, Some(at(100))));
        assert_eq!((ended.dead_reason, ended.due), (Some(reason), None));
        assert_eq!(harness.attempts(id).await.len(), 1);
        died.insert(0, id);
    }
    assert_eq!(harness.dead_list().await, died);
    assert_eq!(harness.due_lanes(at(END)).await, []);
}

pub async fn cancelled_ends_a_delivery_with_its_reason(harness: &Arc<Harness>) {
    let id = harness.leased(at(0)).await;
    harness.ends(id, cancelled(), at(5)).await;
    let ended = harness.delivery(id).await;
    assert_eq!((ended.status, ended.ended_at), (DeliveryStatus::Cancelled, Some(at(5))));
    assert_eq!((ended.cancel_reason.as_deref(), ended.dead_reason), (Some("enough"), None));
    assert_eq!(harness.attempts(id).await.len(), 1);
    assert_eq!(harness.dead_list().await, []);
}

pub async fn delivery_can_end_without_an_attempt(harness: &Arc<Harness>) {
    let id = harness.leased(at(0)).await;
    harness.ends(id, Outcome::Retry { at: at(10) }, at(5)).await;
    harness.claim_one(at(10)).await;
    let next = Outcome::Dead(DeadReason::Expired);
    let outcome = OutcomeRecord { attempt: None, ..harness.outcome(id, 2, next, at(11)) };
    assert_eq!(harness.record(outcome.clone()).await, DONE);
    let ended = harness.delivery(id).await;
    assert_eq!((ended.status, ended.dead_reason), (DeliveryStatus::Dead, Some(DeadReason::Expired)));
    assert_eq!((ended.attempt_count, ended.last_status_code), (1, Some(503)), "the last attempt is kept");
    assert_eq!(harness.attempts(id).await.len(), 1);
    assert_eq!(harness.dead_list().await, [id]);
    assert_eq!(harness.record(outcome).await, RecordResult::AlreadyRecorded);

    let id = harness.leased(at(0)).await;
    let outcome = OutcomeRecord { attempt: None, ..harness.outcome(id, 1, cancelled(), at(12)) };
    assert_eq!(harness.record(outcome.clone()).await, DONE);
    assert_eq!(harness.record(outcome).await, RecordResult::AlreadyRecorded);
    assert_eq!(harness.status(id).await, DeliveryStatus::Cancelled);
    assert_eq!(harness.attempts(id).await, []);
}

pub async fn success_after_failure_clears_the_failure(harness: &Arc<Harness>) {
    let id = harness.leased(at(0)).await;
    harness.ends(id, Outcome::Retry { at: at(10) }, at(5)).await;
    harness.claim_one(at(10)).await;
    assert_eq!(harness.record(harness.outcome(id, 2, Outcome::Delivered, at(11))).await, DONE);
    let ended = harness.delivery(id).await;
    assert_eq!((ended.attempt_count, ended.last_status_code), (2, Some(200)));
    assert_eq!((ended.failure_category, ended.last_error), (None, None));
    let numbers: Vec<_> = harness.attempts(id).await.iter().map(|stored| stored.attempt.number).collect();
    assert_eq!(numbers, [1, 2]);
}

pub async fn repeated_outcome_is_recorded_once(harness: &Arc<Harness>) {
    for next in [Outcome::Delivered, Outcome::Retry { at: at(END) }, dead(), cancelled()] {
        let id = harness.leased(at(0)).await;
        let outcome = harness.outcome(id, 1, next, at(5));
        assert_eq!(harness.record(outcome.clone()).await, DONE);
        let after = harness.delivery(id).await;
        assert_eq!(harness.record(outcome.clone()).await, RecordResult::AlreadyRecorded);
        assert_eq!(harness.record(outcome).await, RecordResult::AlreadyRecorded);
        assert_eq!(harness.delivery(id).await, after);
        assert_eq!(harness.attempts(id).await.len(), 1);
    }
}

pub async fn repeated_outcome_is_detected_after_the_next_lease(harness: &Arc<Harness>) {
    let id = harness.leased(at(0)).await;
    let outcome = harness.outcome(id, 1, Outcome::Retry { at: at(10) }, at(5));
    assert_eq!(harness.record(outcome.clone()).await, DONE);
    harness.claim_one(at(10)).await;
    assert!(harness.store().mark_sending(harness.epoch, id).await.unwrap());
    assert_eq!(harness.record(outcome).await, RecordResult::AlreadyRecorded);
    assert_eq!(harness.attempts(id).await.len(), 1);
    assert_eq!(harness.due_lanes(at(END)).await, [], "the new lease is untouched");
    harness.rescue(harness.epoch, at(20)).await;
    let epoch = harness.new_epoch().await;
    let claimed = harness.claim_as(epoch, at(20)).await;
    assert_eq!(claimed[0].crash_count, 1, "and its sending mark is kept");
    let next = OutcomeRecord { epoch, ..harness.outcome(id, 2, Outcome::Delivered, at(21)) };
    assert_eq!(harness.record(next).await, DONE);
}

pub async fn foreign_epoch_records_nothing(harness: &Arc<Harness>) {
    let id = harness.leased(at(0)).await;
    let epoch = harness.new_epoch().await;
    for next in [Outcome::Delivered, Outcome::Retry { at: at(10) }, dead(), cancelled()] {
        let outcome = OutcomeRecord { epoch, ..harness.outcome(id, 1, next, at(5)) };
        assert_eq!(harness.record(outcome).await, RecordResult::NotLeased);
    }
    assert_eq!(harness.attempts(id).await, []);
    assert_eq!(harness.status(id).await, DeliveryStatus::Pending);
    assert_eq!(harness.dead_list().await, []);
    let unknown = harness.delivery_id(at(0));
    assert_eq!(harness.record(harness.outcome(unknown, 1, dead(), at(5))).await, RecordResult::NotLeased);
    harness.ends(id, Outcome::Delivered, at(6)).await;
}

pub async fn rescued_lease_records_nothing(harness: &Arc<Harness>) {
    let id = harness.leased(at(0)).await;
    harness.rescue(harness.epoch, at(1)).await;
    let late = || harness.outcome(id, 1, Outcome::Delivered, at(2));
    assert_eq!(harness.record(late()).await, RecordResult::NotLeased, "while the delivery waits");
    let epoch = harness.new_epoch().await;
    assert_eq!(harness.claim_as(epoch, at(3)).await.len(), 1);
    assert_eq!(harness.record(late()).await, RecordResult::NotLeased, "when another node has the lease");
    assert_eq!(harness.attempts(id).await, []);
    let outcome = OutcomeRecord { epoch, ..harness.outcome(id, 1, Outcome::Delivered, at(4)) };
    assert_eq!(harness.record(outcome).await, DONE);
    assert_eq!(harness.record(late()).await, RecordResult::NotLeased, "when the delivery has ended");
    assert_eq!(harness.attempts(id).await.len(), 1);
}

pub async fn concurrent_cancellation_asks_to_decide_again(harness: &Arc<Harness>) {
    for next in [cancelled(), Outcome::Delivered] {
        let id = harness.leased(at(0)).await;
        ask_to_cancel(harness, id).await;
        let outcome = harness.outcome(id, 1, Outcome::Retry { at: at(10) }, at(5));
        assert_eq!(harness.record(outcome.clone()).await, RecordResult::CancelRequested("enough".into()));
        assert_eq!(harness.attempts(id).await, []);
        assert_eq!(harness.record(outcome).await, RecordResult::CancelRequested("enough".into()));
        assert!(harness.store().mark_sending(harness.epoch, id).await.unwrap(), "the lease is still there");
        let decided =
            OutcomeRecord { record_despite_cancel: true, ..harness.outcome(id, 1, next.clone(), at(6)) };
        assert_eq!(harness.record(decided).await, DONE);
        assert!(harness.status(id).await.is_final());
        assert_eq!(harness.attempts(id).await.len(), 1);
    }
}

fn gone() -> DisableWebhook {
    DisableWebhook { reason: "410 Gone".into(), url: URL.into() }
}

pub async fn outcome_disables_an_active_webhook(harness: &Arc<Harness>) {
    let id = harness.leased(at(0)).await;
    let stale = harness.new_event(at(1), InitialState::Leased);
    let before = harness.version();
    let outcome = OutcomeRecord { disable: Some(gone()), ..harness.outcome(id, 1, dead(), at(5)) };
    let version = match harness.record(outcome.clone()).await {
        RecordResult::Recorded { config_version: Some(version) } => version,
        other => panic!("{other:?}"),
    };
    assert!(version > before);
    let stored = harness.stored_webhook(harness.webhook_id).await;
    assert_eq!((stored.revision, stored.webhook.updated_at), (version, at(5)));
    assert_eq!(stored.webhook.state, WebhookState::Disabled("410 Gone".into()));
    assert_eq!(harness.publish(stale).await, PublishResult::ConfigChanged);
    let changes =
        harness.store().config_changes(harness.tenant_id.clone(), before, 1_000).await.unwrap().unwrap();
    assert_eq!((changes.version, changes.webhooks), (version, vec![stored.webhook.clone()]));
    let bare = Webhook { secrets: Vec::new(), ..stored.webhook };
    assert_eq!(
        harness.store().webhooks_to_cancel_for().await.unwrap(),
        [bare],
        "the webhook is returned without secrets"
    );
    assert_eq!(harness.record(outcome).await, RecordResult::AlreadyRecorded);
}

pub async fn outcome_does_not_disable_an_inactive_webhook(harness: &Arc<Harness>) {
    let by_owner = WebhookState::Disabled("disabled by the owner".into());
    for state in [by_owner, WebhookState::Deleted] {
        let id = harness.leased(at(0)).await;
        let version = harness.set_state(harness.webhook_id, state.clone()).await;
        let outcome = OutcomeRecord { disable: Some(gone()), ..harness.outcome(id, 1, dead(), at(5)) };
        assert_eq!(harness.record(outcome).await, DONE);
        assert_eq!(harness.status(id).await, DeliveryStatus::Dead, "the outcome is recorded anyway");
        let kept = harness.store().webhooks_by_id(vec![harness.webhook_id]).await.unwrap();
        assert_eq!(kept[0].state, state);
        let now =
            harness.store().config_changes(harness.tenant_id.clone(), version, 1_000).await.unwrap().unwrap();
        assert_eq!(now.version, version);
    }
}

pub async fn webhook_with_changed_url_is_not_disabled(harness: &Arc<Harness>) {
    let id = harness.leased(at(0)).await;
    let mut changed = harness.stored_webhook(harness.webhook_id).await;
    changed.webhook.spec.url = "https://example.com/moved".into();
    harness.store().change_webhook(changed.webhook, changed.revision, None).await.unwrap();
    let outcome = OutcomeRecord { disable: Some(gone()), ..harness.outcome(id, 1, dead(), at(5)) };
    assert_eq!(harness.record(outcome).await, DONE);
    assert_eq!(harness.stored_webhook(harness.webhook_id).await.webhook.state, WebhookState::Active);
}

pub async fn webhook_pending_verification_is_not_disabled(harness: &Arc<Harness>) {
    for keeps_events in [true, false] {
        let (id, other) = (harness.leased(at(0)).await, harness.leased(at(0)).await);
        harness.ends(other, Outcome::Retry { at: at(9) }, at(1)).await;
        let pending = WebhookState::PendingVerification(Verification::begin(at(2), keeps_events));
        harness.set_state(harness.webhook_id, pending.clone()).await;
        let outcome = OutcomeRecord { disable: Some(gone()), ..harness.outcome(id, 1, dead(), at(5)) };
        assert_eq!(
            harness.record(outcome).await,
            DONE,
            "the outcome is recorded, the webhook is not disabled"
        );
        assert_eq!(harness.stored_webhook(harness.webhook_id).await.webhook.state, pending);
        let to_cancel = harness.store().webhooks_to_cancel_for().await.unwrap();
        assert!(to_cancel.is_empty(), "{to_cancel:?}");
        assert_eq!(harness.status(other).await, DeliveryStatus::Pending, "its deliveries stay parked");
        harness.set_state(harness.webhook_id, WebhookState::Active).await;
    }
}

pub async fn cancel_for_inactive_webhook_requires_an_inactive_webhook(harness: &Arc<Harness>) {
    let because_ended =
        |id| OutcomeRecord { requires_inactive_webhook: true, ..harness.outcome(id, 1, cancelled(), at(5)) };
    let (tried, untried) = (harness.leased(at(0)).await, harness.leased(at(0)).await);
    let without_attempt =
        OutcomeRecord { attempt: None, record_despite_cancel: true, ..because_ended(untried) };
    for outcome in [because_ended(tried), without_attempt.clone()] {
        assert_eq!(harness.record(outcome.clone()).await, RecordResult::WebhookNotInactive);
        assert_eq!(harness.status(outcome.delivery_id).await, DeliveryStatus::Pending);
        assert_eq!(harness.attempts(outcome.delivery_id).await, []);
    }
    harness.set_state(harness.webhook_id, WebhookState::Paused).await;
    assert_eq!(
        harness.record(without_attempt.clone()).await,
        RecordResult::WebhookNotInactive,
        "a paused webhook has not ended"
    );
    let retry = harness.outcome(tried, 1, Outcome::Retry { at: at(END) }, at(6));
    assert_eq!(harness.record(retry).await, DONE, "the lease was kept");

    harness.set_state(harness.webhook_id, WebhookState::Disabled("410 Gone".into())).await;
    assert_eq!(harness.record(without_attempt).await, DONE);
    assert_eq!(harness.status(untried).await, DeliveryStatus::Cancelled);
}

pub async fn expired_webhook_counts_as_ended(harness: &Arc<Harness>) {
    let id = harness.leased(at(0)).await;
    let mut expiring = harness.stored_webhook(harness.webhook_id).await;
    expiring.webhook.spec.expires_at = Some(at(5));
    harness.store().change_webhook(expiring.webhook, expiring.revision, None).await.unwrap();
    let cancel = |time| OutcomeRecord {
        requires_inactive_webhook: true,
        ..harness.outcome(id, 1, cancelled(), at(time))
    };
    assert_eq!(harness.record(cancel(4)).await, RecordResult::WebhookNotInactive);
    assert_eq!(harness.record(cancel(5)).await, DONE);
}

pub async fn invalid_outcome_does_not_fail_its_batch(harness: &Arc<Harness>) {
    let bad = harness.leased(at(0)).await;
    harness.ends(bad, Outcome::Retry { at: at(1) }, at(1)).await;
    harness.claim_one(at(1)).await;
    let mut good = Vec::new();
    for n in 0..100 {
        good.push(harness.leased(at(n)).await);
    }
    // The first attempt again under another id: its number is already used.
    let refused = harness.outcome(bad, 1, Outcome::Delivered, at(5));
    let mut replies = Vec::new();
    let mut bad_reply = None;
    for (n, id) in good.iter().enumerate() {
        if n == 50 {
            bad_reply = Some(harness.submit_outcome(refused.clone()));
        }
        replies.push(harness.submit_outcome(harness.outcome(*id, 1, Outcome::Delivered, at(5))));
    }
    for response in replies {
        assert_eq!(response.await.unwrap(), Ok(DONE));
    }
    let bad_reply = bad_reply.unwrap().await.unwrap();
    assert!(matches!(bad_reply, Err(StoreError::InvalidItem(_))), "{bad_reply:?}");
    assert_eq!(harness.status(bad).await, DeliveryStatus::Pending);
    assert_eq!(harness.attempts(bad).await.len(), 1);
    let outcome = harness.outcome(bad, 2, Outcome::Delivered, at(6));
    assert_eq!(harness.record(outcome).await, DONE, "its lease was kept");
}

pub async fn arbitrary_response_bytes_are_stored_unchanged(harness: &Arc<Harness>) {
    let odd = [&b""[..], b"\0", b"a\0b", b"\xff\xfe\xc3\x28", b"\xed\xa0\x80", b"'; DROP TABLE attempts; --"];
    for bytes in odd {
        let bytes = Bytes::from_static(bytes);
        let id = harness.leased(at(0)).await;
        let mut outcome = harness.outcome(id, 1, dead(), at(5));
        let attempt = outcome.attempt.as_mut().unwrap();
        attempt.response_body_sample = Some(bytes.clone());
        attempt.response_headers = Some(bytes.clone());
        attempt.custom_headers = Some(bytes);
        attempt.error_message = Some("received \u{fffd} \u{1f600} '\"".into());
        assert_eq!(harness.record(outcome.clone()).await, DONE);
        assert_eq!(Some(&harness.attempts(id).await[0].attempt), outcome.attempt.as_ref());
    }
}
