//! Writing down what happened: once, by the owner of the lease, whatever the endpoint said.

use std::sync::Arc;

use bytes::Bytes;
use redrive_core::{
    DeadReason, DeliveryId, DeliveryStatus, FailureCategory,
    webhook::{Webhook, WebhookState},
};

use super::{Bench, END, at, harness::URL};
use crate::{Birth, Cancelled, Disable, Next, Outcome, Published, Recorded, StoreError};

const DONE: Recorded = Recorded::Done { config_version: None };

fn dead() -> Next {
    Next::Dead { reason: DeadReason::Exhausted }
}

fn cancelled() -> Next {
    Next::Cancelled { reason: "enough".into() }
}

async fn ask_to_cancel(bench: &Bench, id: DeliveryId) {
    let asked = bench.store().cancel(bench.tenant.clone(), id, "enough".into(), at(1)).await.unwrap();
    assert_eq!(asked, Cancelled::Requested);
}

pub async fn delivered_ends_a_delivery(bench: &Arc<Bench>) {
    let id = bench.leased(at(0)).await;
    let outcome = bench.outcome(id, 1, Next::Delivered, at(5));
    assert_eq!(bench.record(outcome.clone()).await, DONE);
    let ended = bench.delivery(id).await;
    assert_eq!((ended.status, ended.ended_at), (DeliveryStatus::Delivered, Some(at(5))));
    assert_eq!((ended.attempt_count, ended.last_status_code), (1, Some(200)));
    assert_eq!((ended.failure_category, ended.last_error), (None, None));
    assert_eq!((ended.dead_reason, ended.cancel_reason, ended.due), (None, None, None));
    let attempts = bench.attempts(id).await;
    assert_eq!(attempts.len(), 1);
    assert_eq!(Some(&attempts[0].attempt), outcome.attempt.as_ref());
    assert_eq!(
        (attempts[0].delivery, attempts[0].event, attempts[0].webhook),
        (id, ended.event, bench.webhook)
    );
    assert!(!bench.store().mark_sending(bench.epoch, id).await.unwrap(), "the lease is over");
    assert_eq!(bench.dead_list().await, []);
}

pub async fn retry_makes_it_wait(bench: &Arc<Bench>) {
    let id = bench.leased(at(0)).await;
    bench.ends(id, Next::Retry { due: at(90) }, at(5)).await;
    let waits = bench.delivery(id).await;
    assert_eq!((waits.status, waits.ended_at), (DeliveryStatus::Pending, None));
    assert_eq!((waits.due, waits.attempt_count), (Some(at(90)), 1));
    assert_eq!(waits.last_status_code, Some(503));
    assert_eq!(waits.failure_category, Some(FailureCategory::ServerError));
    assert_eq!(waits.last_error.as_deref(), Some("the endpoint answered 503"));
    assert_eq!(bench.due_lanes(at(89)).await, []);
    let claimed = bench.claim_one(at(90)).await;
    assert_eq!((claimed.id, claimed.attempt_count), (id, 1));
}

pub async fn dead_ends_it_in_the_dead_list(bench: &Arc<Bench>) {
    let mut died = Vec::new();
    for (n, reason) in (0..).zip(DeadReason::ALL) {
        let id = bench.leased(at(n)).await;
        bench.ends(id, Next::Dead { reason }, at(100)).await;
        let ended = bench.delivery(id).await;
        assert_eq!((ended.status, ended.ended_at), (DeliveryStatus::Dead, Some(at(100))));
        assert_eq!((ended.dead_reason, ended.due), (Some(reason), None));
        assert_eq!(bench.attempts(id).await.len(), 1);
        died.insert(0, id);
    }
    assert_eq!(bench.dead_list().await, died);
    assert_eq!(bench.due_lanes(at(END)).await, []);
}

pub async fn cancelled_ends_it_with_its_reason(bench: &Arc<Bench>) {
    let id = bench.leased(at(0)).await;
    bench.ends(id, cancelled(), at(5)).await;
    let ended = bench.delivery(id).await;
    assert_eq!((ended.status, ended.ended_at), (DeliveryStatus::Cancelled, Some(at(5))));
    assert_eq!((ended.cancel_reason.as_deref(), ended.dead_reason), (Some("enough"), None));
    assert_eq!(bench.attempts(id).await.len(), 1);
    assert_eq!(bench.dead_list().await, []);
}

pub async fn a_delivery_can_end_without_an_attempt(bench: &Arc<Bench>) {
    let id = bench.leased(at(0)).await;
    bench.ends(id, Next::Retry { due: at(10) }, at(5)).await;
    bench.claim_one(at(10)).await;
    let next = Next::Dead { reason: DeadReason::Expired };
    let outcome = Outcome { attempt: None, ..bench.outcome(id, 2, next, at(11)) };
    assert_eq!(bench.record(outcome.clone()).await, DONE);
    let ended = bench.delivery(id).await;
    assert_eq!((ended.status, ended.dead_reason), (DeliveryStatus::Dead, Some(DeadReason::Expired)));
    assert_eq!((ended.attempt_count, ended.last_status_code), (1, Some(503)), "the last attempt is kept");
    assert_eq!(bench.attempts(id).await.len(), 1);
    assert_eq!(bench.dead_list().await, [id]);
    assert_eq!(bench.record(outcome).await, Recorded::Again);

    let id = bench.leased(at(0)).await;
    let outcome = Outcome { attempt: None, ..bench.outcome(id, 1, cancelled(), at(12)) };
    assert_eq!(bench.record(outcome.clone()).await, DONE);
    assert_eq!(bench.record(outcome).await, Recorded::Again);
    assert_eq!(bench.status(id).await, DeliveryStatus::Cancelled);
    assert_eq!(bench.attempts(id).await, []);
}

pub async fn success_after_failure_clears_the_failure(bench: &Arc<Bench>) {
    let id = bench.leased(at(0)).await;
    bench.ends(id, Next::Retry { due: at(10) }, at(5)).await;
    bench.claim_one(at(10)).await;
    assert_eq!(bench.record(bench.outcome(id, 2, Next::Delivered, at(11))).await, DONE);
    let ended = bench.delivery(id).await;
    assert_eq!((ended.attempt_count, ended.last_status_code), (2, Some(200)));
    assert_eq!((ended.failure_category, ended.last_error), (None, None));
    let numbers: Vec<_> = bench.attempts(id).await.iter().map(|stored| stored.attempt.number).collect();
    assert_eq!(numbers, [1, 2]);
}

pub async fn a_resend_is_known_and_recorded_once(bench: &Arc<Bench>) {
    for next in [Next::Delivered, Next::Retry { due: at(END) }, dead(), cancelled()] {
        let id = bench.leased(at(0)).await;
        let outcome = bench.outcome(id, 1, next, at(5));
        assert_eq!(bench.record(outcome.clone()).await, DONE);
        let after = bench.delivery(id).await;
        assert_eq!(bench.record(outcome.clone()).await, Recorded::Again);
        assert_eq!(bench.record(outcome).await, Recorded::Again);
        assert_eq!(bench.delivery(id).await, after);
        assert_eq!(bench.attempts(id).await.len(), 1);
    }
}

pub async fn a_resend_is_known_even_when_the_delivery_is_leased_again(bench: &Arc<Bench>) {
    let id = bench.leased(at(0)).await;
    let outcome = bench.outcome(id, 1, Next::Retry { due: at(10) }, at(5));
    assert_eq!(bench.record(outcome.clone()).await, DONE);
    bench.claim_one(at(10)).await;
    assert!(bench.store().mark_sending(bench.epoch, id).await.unwrap());
    assert_eq!(bench.record(outcome).await, Recorded::Again);
    assert_eq!(bench.attempts(id).await.len(), 1);
    assert_eq!(bench.due_lanes(at(END)).await, [], "the new lease is untouched");
    bench.rescue(bench.epoch, at(20)).await;
    let epoch = bench.new_epoch().await;
    let claimed = bench.claim_as(epoch, at(20)).await;
    assert_eq!(claimed[0].deaths, 1, "and so is what it says");
    let next = Outcome { epoch, ..bench.outcome(id, 2, Next::Delivered, at(21)) };
    assert_eq!(bench.record(next).await, DONE);
}

pub async fn a_foreign_epoch_records_nothing(bench: &Arc<Bench>) {
    let id = bench.leased(at(0)).await;
    let epoch = bench.new_epoch().await;
    for next in [Next::Delivered, Next::Retry { due: at(10) }, dead(), cancelled()] {
        let outcome = Outcome { epoch, ..bench.outcome(id, 1, next, at(5)) };
        assert_eq!(bench.record(outcome).await, Recorded::Fenced);
    }
    assert_eq!(bench.attempts(id).await, []);
    assert_eq!(bench.status(id).await, DeliveryStatus::Pending);
    assert_eq!(bench.dead_list().await, []);
    let unknown = bench.delivery_id(at(0));
    assert_eq!(bench.record(bench.outcome(unknown, 1, dead(), at(5))).await, Recorded::Fenced);
    bench.ends(id, Next::Delivered, at(6)).await;
}

pub async fn a_rescued_lease_records_nothing(bench: &Arc<Bench>) {
    let id = bench.leased(at(0)).await;
    bench.rescue(bench.epoch, at(1)).await;
    let late = || bench.outcome(id, 1, Next::Delivered, at(2));
    assert_eq!(bench.record(late()).await, Recorded::Fenced, "while it waits");
    let epoch = bench.new_epoch().await;
    assert_eq!(bench.claim_as(epoch, at(3)).await.len(), 1);
    assert_eq!(bench.record(late()).await, Recorded::Fenced, "when somebody else has it");
    assert_eq!(bench.attempts(id).await, []);
    let outcome = Outcome { epoch, ..bench.outcome(id, 1, Next::Delivered, at(4)) };
    assert_eq!(bench.record(outcome).await, DONE);
    assert_eq!(bench.record(late()).await, Recorded::Fenced, "when it is over");
    assert_eq!(bench.attempts(id).await.len(), 1);
}

pub async fn a_cancellation_meanwhile_asks_to_decide_again(bench: &Arc<Bench>) {
    for next in [cancelled(), Next::Delivered] {
        let id = bench.leased(at(0)).await;
        ask_to_cancel(bench, id).await;
        let outcome = bench.outcome(id, 1, Next::Retry { due: at(10) }, at(5));
        assert_eq!(bench.record(outcome.clone()).await, Recorded::CancelRequested("enough".into()));
        assert_eq!(bench.attempts(id).await, []);
        assert_eq!(bench.record(outcome).await, Recorded::CancelRequested("enough".into()));
        assert!(bench.store().mark_sending(bench.epoch, id).await.unwrap(), "the lease is still there");
        let decided = Outcome { knows_cancel: true, ..bench.outcome(id, 1, next.clone(), at(6)) };
        assert_eq!(bench.record(decided).await, DONE);
        assert!(bench.status(id).await.is_final());
        assert_eq!(bench.attempts(id).await.len(), 1);
    }
}

fn gone() -> Disable {
    Disable { reason: "410 Gone".into(), url: URL.into() }
}

pub async fn an_outcome_disables_an_active_webhook(bench: &Arc<Bench>) {
    let id = bench.leased(at(0)).await;
    let stale = bench.new_event(at(1), Birth::Leased);
    let before = bench.version();
    let outcome = Outcome { disable: Some(gone()), ..bench.outcome(id, 1, dead(), at(5)) };
    let version = match bench.record(outcome.clone()).await {
        Recorded::Done { config_version: Some(version) } => version,
        other => panic!("{other:?}"),
    };
    assert!(version > before);
    let stored = bench.stored_webhook(bench.webhook).await;
    assert_eq!((stored.revision, stored.webhook.updated_at), (version, at(5)));
    assert_eq!(stored.webhook.state, WebhookState::Disabled("410 Gone".into()));
    assert_eq!(bench.publish(stale).await, Published::ConfigChanged);
    let changes = bench.store().config_changes(bench.tenant.clone(), before, 1_000).await.unwrap().unwrap();
    assert_eq!((changes.version, changes.webhooks), (version, vec![stored.webhook.clone()]));
    let bare = Webhook { secrets: Vec::new(), ..stored.webhook };
    assert_eq!(bench.store().sweeping().await.unwrap(), [bare], "without its secrets");
    assert_eq!(bench.record(outcome).await, Recorded::Again);
}

pub async fn only_an_active_webhook_is_disabled(bench: &Arc<Bench>) {
    let by_owner = WebhookState::Disabled("by its owner".into());
    for state in [by_owner, WebhookState::Deleted] {
        let id = bench.leased(at(0)).await;
        let version = bench.set_state(bench.webhook, state.clone()).await;
        let outcome = Outcome { disable: Some(gone()), ..bench.outcome(id, 1, dead(), at(5)) };
        assert_eq!(bench.record(outcome).await, DONE);
        assert_eq!(bench.status(id).await, DeliveryStatus::Dead, "the outcome counts all the same");
        let kept = bench.store().webhooks_by_id(vec![bench.webhook]).await.unwrap();
        assert_eq!(kept[0].state, state);
        let now = bench.store().config_changes(bench.tenant.clone(), version, 1_000).await.unwrap().unwrap();
        assert_eq!(now.version, version);
    }
}

pub async fn a_webhook_that_has_moved_is_not_disabled(bench: &Arc<Bench>) {
    let id = bench.leased(at(0)).await;
    let mut moved = bench.stored_webhook(bench.webhook).await;
    moved.webhook.spec.url = "https://example.com/moved".into();
    bench.store().change_webhook(moved.webhook, moved.revision, None).await.unwrap();
    let outcome = Outcome { disable: Some(gone()), ..bench.outcome(id, 1, dead(), at(5)) };
    assert_eq!(bench.record(outcome).await, DONE);
    assert_eq!(bench.stored_webhook(bench.webhook).await.webhook.state, WebhookState::Active);
}

pub async fn a_cancel_because_of_the_webhook_needs_a_webhook_that_has_ended(bench: &Arc<Bench>) {
    let because_ended =
        |id| Outcome { requires_ended_webhook: true, ..bench.outcome(id, 1, cancelled(), at(5)) };
    let (tried, untried) = (bench.leased(at(0)).await, bench.leased(at(0)).await);
    let without_attempt = Outcome { attempt: None, knows_cancel: true, ..because_ended(untried) };
    for outcome in [because_ended(tried), without_attempt.clone()] {
        assert_eq!(bench.record(outcome.clone()).await, Recorded::WebhookNotEnded);
        assert_eq!(bench.status(outcome.delivery).await, DeliveryStatus::Pending);
        assert_eq!(bench.attempts(outcome.delivery).await, []);
    }
    bench.set_state(bench.webhook, WebhookState::Paused).await;
    assert_eq!(
        bench.record(without_attempt.clone()).await,
        Recorded::WebhookNotEnded,
        "a pause ends nothing"
    );
    let retry = bench.outcome(tried, 1, Next::Retry { due: at(END) }, at(6));
    assert_eq!(bench.record(retry).await, DONE, "the lease was kept");

    bench.set_state(bench.webhook, WebhookState::Disabled("410 Gone".into())).await;
    assert_eq!(bench.record(without_attempt).await, DONE);
    assert_eq!(bench.status(untried).await, DeliveryStatus::Cancelled);
}

pub async fn a_webhook_whose_expiry_has_passed_has_ended(bench: &Arc<Bench>) {
    let id = bench.leased(at(0)).await;
    let mut expiring = bench.stored_webhook(bench.webhook).await;
    expiring.webhook.spec.expires_at = Some(at(5));
    bench.store().change_webhook(expiring.webhook, expiring.revision, None).await.unwrap();
    let cancel =
        |time| Outcome { requires_ended_webhook: true, ..bench.outcome(id, 1, cancelled(), at(time)) };
    assert_eq!(bench.record(cancel(4)).await, Recorded::WebhookNotEnded);
    assert_eq!(bench.record(cancel(5)).await, DONE);
}

pub async fn one_bad_outcome_never_fails_its_neighbours(bench: &Arc<Bench>) {
    let bad = bench.leased(at(0)).await;
    bench.ends(bad, Next::Retry { due: at(1) }, at(1)).await;
    bench.claim_one(at(1)).await;
    let mut good = Vec::new();
    for n in 0..100 {
        good.push(bench.leased(at(n)).await);
    }
    // The first attempt once more, under another id: its number is taken.
    let refused = bench.outcome(bad, 1, Next::Delivered, at(5));
    let mut answers = Vec::new();
    let mut bad_answer = None;
    for (n, id) in good.iter().enumerate() {
        if n == 50 {
            bad_answer = Some(bench.submit_outcome(refused.clone()));
        }
        answers.push(bench.submit_outcome(bench.outcome(*id, 1, Next::Delivered, at(5))));
    }
    for answer in answers {
        assert_eq!(answer.await.unwrap(), Ok(DONE));
    }
    let bad_answer = bad_answer.unwrap().await.unwrap();
    assert!(matches!(bad_answer, Err(StoreError::Refused(_))), "{bad_answer:?}");
    assert_eq!(bench.status(bad).await, DeliveryStatus::Pending);
    assert_eq!(bench.attempts(bad).await.len(), 1);
    let outcome = bench.outcome(bad, 2, Next::Delivered, at(6));
    assert_eq!(bench.record(outcome).await, DONE, "its lease was kept");
}

pub async fn odd_bytes_are_kept(bench: &Arc<Bench>) {
    let odd = [&b""[..], b"\0", b"a\0b", b"\xff\xfe\xc3\x28", b"\xed\xa0\x80", b"'; DROP TABLE attempts; --"];
    for bytes in odd {
        let bytes = Bytes::from_static(bytes);
        let id = bench.leased(at(0)).await;
        let mut outcome = bench.outcome(id, 1, dead(), at(5));
        let attempt = outcome.attempt.as_mut().unwrap();
        attempt.response_body_sample = Some(bytes.clone());
        attempt.response_headers = Some(bytes.clone());
        attempt.custom_headers = Some(bytes);
        attempt.error_message = Some("it said \u{fffd} \u{1f600} '\"".into());
        assert_eq!(bench.record(outcome.clone()).await, DONE);
        assert_eq!(Some(&bench.attempts(id).await[0].attempt), outcome.attempt.as_ref());
    }
}
