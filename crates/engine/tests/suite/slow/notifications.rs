//! Notifications: operational webhooks receive them grouped, once, and never about themselves.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use crate::{
    cluster_harness::{On, TestCluster, on_every_store},
    harness::{Harness, SECOND, START, breaker, failing_receiver, schedule, settings, world, world_with},
};
use redrive_core::{
    DeliveryStatus, TenantId,
    event::event_type::Pattern,
    notification::{NotificationKind, confirmation::MailPolicy, grouping::GroupIntervals},
    protection::breaker::{CircuitState, Forced},
    security::signature,
    webhook::{Webhook, WebhookState, failures::FailingRule},
};
use redrive_engine::{CircuitAction, MailError, MailFuture, Mailed, Mailer, MailerHandle, Settings};
use redrive_store::{ChannelStatus, EmailAddress, PageRequest, StoredNotification};
use redrive_testkit::{ReceivedRequest, Receiver};
use serde_json::Value;

/// Creates an operational webhook that subscribes to these event types.
async fn listener(harness: &Harness, receiver: &Receiver, events: &str) -> Webhook {
    let events = vec![Pattern::parse(events).unwrap()];
    harness.create_webhook(&receiver.url(), |webhook| webhook.spec.events = events).await
}

fn sent(arrivals: &[ReceivedRequest]) -> Vec<(String, Value)> {
    let reported = |arrival: &ReceivedRequest| {
        (arrival.json()["type"].as_str().unwrap().to_owned(), arrival.json()["data"].clone())
    };
    arrivals.iter().map(reported).collect()
}

async fn stored_notifications(harness: &Harness) -> Vec<StoredNotification> {
    let page = PageRequest { after: None, offset: 0, limit: 500 };
    harness.store.list_notifications(TenantId::default(), page).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn first_dead_delivery_is_notified_immediately_and_later_ones_grouped() {
    let harness = world().await;
    let operations = Receiver::start().await;
    let listening = listener(&harness, &operations, "redrive.delivery.dead").await;
    let refusing = Receiver::responding(404).await;
    let url = refusing.url_at("/webhooks?token=s3cret");
    let webhook = harness
        .create_webhook(&url, |webhook| {
            webhook.spec.description = Some("orders".into());
            webhook.spec.circuit_breaker_config.enabled = Some(false);
        })
        .await;
    harness.publish(0..1).await;
    let arrivals = operations.wait_for(1).await;
    let secrets: Vec<_> = signature::live_secrets(&listening.secrets, START).collect();
    let signed = signature::sign(
        listening.spec.signature,
        &secrets,
        arrivals[0].webhook_id(),
        START,
        &arrivals[0].body,
    );
    assert_eq!(arrivals[0].header("webhook-signature"), Some(&*signed.webhook_signature));
    let (event_type, data) = sent(&arrivals).remove(0);
    assert_eq!(event_type, "redrive.delivery.dead");
    let dead = harness.deliveries().await.into_iter().find(|one| one.webhook_id == webhook.id).unwrap();
    assert_eq!(data["delivery_id"], dead.id.to_string());
    assert_eq!((&data["kind"], &data["count"]), (&"delivery.dead".into(), &1.into()));
    assert_eq!((&data["reason"], &data["event_type"]), (&"permanent".into(), &"order.created".into()));
    assert_eq!(data["message"], "the endpoint returned 404");
    assert_eq!(data["webhook"]["id"], webhook.id.to_string());
    assert_eq!(
        (&data["webhook"]["host"], &data["webhook"]["description"]),
        (&"127.0.0.1".into(), &"orders".into())
    );
    assert!(!arrivals[0].json().to_string().contains("s3cret"));

    harness.publish(1..301).await;
    harness
        .until("they are dead", |all| {
            all.iter().filter(|one| one.status == DeliveryStatus::Dead).count() == 301
        })
        .await;
    harness.settle_time().await;
    assert_eq!(operations.count(), 1, "later occurrences are grouped");
    harness.clock.advance(Duration::from_secs(3600));
    let arrivals = operations.wait_for(2).await;
    assert_eq!(sent(&arrivals)[1].1["count"], 300);
    harness.clock.advance(Duration::from_secs(7200));
    harness.settle_time().await;
    assert_eq!(operations.count(), 2, "nothing is sent without an occurrence");
    let mut listed = stored_notifications(&harness).await;
    listed.retain(|one| one.notification.kind == NotificationKind::DeliveryDead);
    let combinations: Vec<_> =
        listed.iter().map(|one| (one.webhook_status, one.email_status, one.next_attempt_at)).collect();
    assert_eq!(combinations, [(ChannelStatus::Sent, ChannelStatus::NoRecipients, None); 2]);
}

#[tokio::test(flavor = "multi_thread")]
async fn automatic_circuit_transitions_are_notified_and_forced_ones_not() {
    let harness = world().await;
    let operations = Receiver::start().await;
    listener(&harness, &operations, "redrive.circuit.*").await;
    let (receiver, works) = failing_receiver().await;
    let webhook = harness
        .create_webhook(&receiver.url(), |webhook| webhook.spec.circuit_breaker_config = breaker(5))
        .await;
    harness.publish(0..5).await;
    let (event_type, data) = sent(&operations.wait_for(1).await).remove(0);
    assert_eq!((&*event_type, &data["reason"]), ("redrive.circuit.opened", &"server_error".into()));
    assert_eq!(data["message"], "5 of 5 attempts failed");
    assert_eq!(data["until"], harness.circuit(&webhook).await.next_half_open_at.unwrap().to_string());
    works.store(true, SeqCst);
    harness.clock.advance(30 * SECOND);
    let (event_type, data) = sent(&operations.wait_for(2).await).remove(1);
    assert_eq!(
        (&*event_type, &data["webhook"]["id"]),
        ("redrive.circuit.recovered", &webhook.id.to_string().into())
    );
    harness.clock.advance(Duration::from_secs(3600));
    let force = |open| CircuitAction::Force(Forced { open, until: None, by: "me".into() });
    for action in [force(true), CircuitAction::Reset, force(false)] {
        harness.engine.control_circuit(&webhook.tenant_id, webhook.id, action).await.unwrap();
    }
    harness.settle_time().await;
    assert_eq!(harness.circuit(&webhook).await.state, CircuitState::Closed);
    assert_eq!(operations.count(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn automatic_disable_is_notified_and_manual_disable_not() {
    let harness = world().await;
    let operations = Receiver::start().await;
    listener(&harness, &operations, "redrive.webhook.disabled").await;
    let gone = Receiver::responding(410).await;
    let webhook = harness.create_webhook(&gone.url(), |_| {}).await;
    let manually_disabled = harness.create_webhook("http://127.0.0.1:1/", |_| {}).await;
    harness.set_state(&manually_disabled, WebhookState::Disabled("disabled by its owner".into())).await;
    harness.publish(0..1).await;
    let (_, data) = sent(&operations.wait_for(1).await).remove(0);
    assert_eq!((&data["webhook"]["id"], &data["reason"]), (&webhook.id.to_string().into(), &"gone".into()));
    let end = harness.clock.now() + 60 * SECOND;
    let expiring =
        harness.create_webhook("http://127.0.0.1:1/", |webhook| webhook.spec.expires_at = Some(end)).await;
    harness.clock.advance(60 * SECOND);
    let (_, data) = sent(&operations.wait_for(2).await).remove(1);
    assert_eq!(
        (&data["webhook"]["id"], &data["reason"]),
        (&expiring.id.to_string().into(), &"expired".into())
    );
    assert_eq!(data["message"], "expired");
}

#[tokio::test(flavor = "multi_thread")]
async fn expired_deliveries_are_notified() {
    let harness = world().await;
    let operations = Receiver::start().await;
    listener(&harness, &operations, "redrive.delivery.dead").await;
    let webhook =
        harness.create_webhook("http://127.0.0.1:1/", |webhook| webhook.state = WebhookState::Paused).await;
    harness.publish(0..7).await;
    harness.clock.advance(6 * 24 * 3600 * SECOND);
    let (_, data) = sent(&operations.wait_for(1).await).remove(0);
    assert_eq!(
        (&data["webhook"]["id"], &data["reason"]),
        (&webhook.id.to_string().into(), &"expired".into())
    );
    assert_eq!(data["count"], 7);
}

#[tokio::test(flavor = "multi_thread")]
async fn old_secrets_and_exhausted_quotas_are_notified_periodically() {
    let harness = world().await;
    let operations = Receiver::start().await;
    let ours = listener(&harness, &operations, "redrive.*").await;
    let webhook = harness.create_webhook("http://127.0.0.1:1/", |_| {}).await;
    for _ in 0..100 {
        harness.engine.quota_reached(&TenantId::default(), "max_events_per_day", "enough", None);
    }
    let (event_type, data) = sent(&operations.wait_for(1).await).remove(0);
    assert_eq!((&*event_type, &data["webhook"]), ("redrive.quota.reached", &Value::Null));
    assert_eq!((&data["reason"], &data["message"]), (&"max_events_per_day".into(), &"enough".into()));
    harness.clock.advance(90 * 24 * 3600 * SECOND);
    let (event_type, data) = sent(&operations.wait_for(2).await).remove(1);
    assert_eq!(
        (&*event_type, &data["webhook"]["id"]),
        ("redrive.secret.rotation_due", &webhook.id.to_string().into())
    );
    assert!(data["message"].as_str().unwrap().contains("90 days"), "{data}");
    harness
        .eventually("the secret of the operational webhook is notified by email only", async || {
            stored_notifications(&harness).await.iter().any(|one| {
                one.notification.webhook_id == Some(ours.id)
                    && one.webhook_status == ChannelStatus::NoRecipients
            })
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dns_failures_are_notified() {
    let harness = world().await;
    let operations = Receiver::start().await;
    listener(&harness, &operations, "redrive.dns.failing").await;
    let webhook = harness
        .create_webhook("http://nowhere.invalid/", |webhook| {
            webhook.spec.circuit_breaker_config.enabled = Some(false)
        })
        .await;
    harness.publish(0..12).await;
    harness
        .eventually("all were attempted", async || {
            let attempted = harness
                .deliveries()
                .await
                .into_iter()
                .filter(|one| one.webhook_id == webhook.id && one.attempt_count > 0);
            attempted.count() == 12
        })
        .await;
    harness.clock.advance(60 * SECOND);
    let (_, data) = sent(&operations.wait_for(1).await).remove(0);
    assert_eq!((&data["webhook"]["id"], &data["reason"]), (&webhook.id.to_string().into(), &"dns".into()));
}

/// Waits until this many attempts of a webhook's deliveries were recorded.
async fn attempts_recorded(harness: &Harness, webhook: &Webhook, count: u32) {
    harness
        .eventually("the attempts are recorded", async || {
            let deliveries = harness.deliveries().await.into_iter();
            let own = deliveries.filter(|one| one.webhook_id == webhook.id);
            own.map(|one| one.attempt_count).sum::<u32>() == count
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn failing_webhook_and_its_recovery_are_notified_once() {
    let harness = world().await;
    let operations = Receiver::start().await;
    listener(&harness, &operations, "redrive.webhook.*").await;
    let (receiver, works) = failing_receiver().await;
    let webhook = harness
        .create_webhook(&receiver.url(), |webhook| {
            webhook.spec.circuit_breaker_config.enabled = Some(false);
            webhook.spec.retry_config = schedule(&[0]);
        })
        .await;
    harness.publish(0..4).await;
    attempts_recorded(&harness, &webhook, 4).await;
    harness.settle_time().await;
    assert_eq!(operations.count(), 0);
    harness.publish(4..9).await;
    let (event_type, data) = sent(&operations.wait_for(1).await).remove(0);
    assert_eq!((&*event_type, &data["reason"]), ("redrive.webhook.failing", &"server_error".into()));
    assert_eq!((&data["failures"], &data["count"]), (&5.into(), &1.into()));
    assert_eq!(data["since"], START.to_string());
    attempts_recorded(&harness, &webhook, 9).await;
    works.store(true, SeqCst);
    harness.publish(9..12).await;
    let (event_type, data) = sent(&operations.wait_for(2).await).remove(1);
    assert_eq!(
        (&*event_type, &data["webhook"]["id"]),
        ("redrive.webhook.recovered", &webhook.id.to_string().into())
    );
    attempts_recorded(&harness, &webhook, 12).await;
    harness.clock.advance(Duration::from_secs(7200));
    harness.settle_time().await;
    assert_eq!(operations.count(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn quiet_webhook_is_notified_an_hour_after_its_first_failure() {
    let harness = world().await;
    let operations = Receiver::start().await;
    listener(&harness, &operations, "redrive.webhook.*").await;
    let (receiver, _) = failing_receiver().await;
    let webhook = harness
        .create_webhook(&receiver.url(), |webhook| webhook.spec.retry_config = schedule(&[0, 60]))
        .await;
    harness.publish(0..1).await;
    attempts_recorded(&harness, &webhook, 1).await;
    harness.clock.advance(Duration::from_secs(70));
    attempts_recorded(&harness, &webhook, 2).await;
    harness.clock.advance(Duration::from_secs(3500));
    harness.settle_time().await;
    assert_eq!(operations.count(), 0);
    harness
        .eventually("the owner is notified", async || {
            harness.clock.advance(SECOND);
            operations.count() == 1
        })
        .await;
    let (event_type, data) = sent(&operations.arrivals()).remove(0);
    assert_eq!((&*event_type, &data["failures"]), ("redrive.webhook.failing", &2.into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn paused_webhook_ends_its_failures_without_a_notification() {
    let harness = world().await;
    let operations = Receiver::start().await;
    listener(&harness, &operations, "redrive.webhook.*").await;
    let (receiver, works) = failing_receiver().await;
    let webhook =
        harness.create_webhook(&receiver.url(), |webhook| webhook.spec.retry_config = schedule(&[0])).await;
    harness.publish(0..4).await;
    attempts_recorded(&harness, &webhook, 4).await;
    for state in [WebhookState::Paused, WebhookState::Active] {
        harness.set_state(&webhook, state).await;
    }
    harness.publish(4..8).await;
    attempts_recorded(&harness, &webhook, 8).await;
    works.store(true, SeqCst);
    harness.publish(8..9).await;
    attempts_recorded(&harness, &webhook, 9).await;
    harness.clock.advance(Duration::from_secs(7200));
    harness.settle_time().await;
    assert_eq!(operations.count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn quiet_webhook_is_notified_of_dns_failures() {
    let harness = world().await;
    let operations = Receiver::start().await;
    listener(&harness, &operations, "redrive.dns.failing").await;
    let webhook = harness
        .create_webhook("http://nowhere.invalid/", |webhook| {
            webhook.spec.retry_config = schedule(&[0, 1800]);
        })
        .await;
    harness.publish(0..1).await;
    attempts_recorded(&harness, &webhook, 1).await;
    harness.clock.advance(Duration::from_secs(1800));
    attempts_recorded(&harness, &webhook, 2).await;
    harness
        .eventually("the owner is notified", async || {
            harness.clock.advance(SECOND);
            operations.count() == 1
        })
        .await;
    let (_, data) = sent(&operations.arrivals()).remove(0);
    assert_eq!((&data["webhook"]["id"], &data["reason"]), (&webhook.id.to_string().into(), &"dns".into()));
    assert_eq!(data["message"], "the host name could not be resolved for 2 of the last 2 attempts");
}

#[tokio::test(flavor = "multi_thread")]
async fn failing_operational_webhook_causes_no_event() {
    let harness = world().await;
    let (receiver, _) = failing_receiver().await;
    let failing = harness
        .create_webhook(&receiver.url(), |webhook| {
            webhook.spec.events = vec![Pattern::parse("redrive.*").unwrap()];
            webhook.spec.retry_config = schedule(&[0]);
            webhook.spec.circuit_breaker_config = breaker(3);
        })
        .await;
    let healthy = Receiver::start().await;
    listener(&harness, &healthy, "redrive.*").await;
    let refusing = Receiver::responding(404).await;
    for _ in 0..5 {
        let webhook = harness.create_webhook(&refusing.url(), |_| {}).await;
        harness.publish(0..1).await;
        harness.set_state(&webhook, WebhookState::Paused).await;
    }
    let dead = healthy.wait_for(5).await;
    assert!(sent(&dead).iter().all(|(event_type, _)| event_type == "redrive.delivery.dead"));
    harness
        .eventually("its circuit opened, and no event reports it", async || {
            stored_notifications(&harness).await.iter().any(|one| {
                one.notification.webhook_id == Some(failing.id)
                    && one.notification.kind.name() == "circuit.opened"
                    && one.webhook_status == ChannelStatus::NoRecipients
            })
        })
        .await;
    harness.clock.advance(Duration::from_secs(7200));
    harness.settle_time().await;
    assert_eq!(healthy.count(), 5);
    let about_deaths_of_its_own = stored_notifications(&harness).await.iter().any(|one| {
        one.notification.webhook_id == Some(failing.id) && one.notification.kind.name() == "delivery.dead"
    });
    assert!(!about_deaths_of_its_own);
}

/// Mailer that fails the first attempts.
struct Stubborn(AtomicUsize);

impl Mailer for Stubborn {
    fn send(&self, notification: StoredNotification, webhook: Option<Webhook>) -> MailFuture<'_> {
        assert_eq!(notification.notification.webhook_id, webhook.map(|webhook| webhook.id));
        Box::pin(async {
            match self.0.fetch_add(1, SeqCst) {
                2..1_000 => Ok(Mailed::Sent),
                _ => Err(MailError::Transient("no route".into())),
            }
        })
    }

    fn send_confirmation(&self, _: EmailAddress) -> MailFuture<'_> {
        Box::pin(async { Err(MailError::Transient("no route".into())) })
    }

    fn policy(&self) -> &MailPolicy {
        static POLICY: std::sync::LazyLock<MailPolicy> = std::sync::LazyLock::new(MailPolicy::default);
        &POLICY
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn email_is_retried_until_sent_or_failed() {
    let mailer = Arc::new(Stubborn(AtomicUsize::new(0)));
    // Only the dead deliveries are notified.
    let failing_rule = FailingRule { after: Duration::from_secs(365 * 86_400), ..FailingRule::default() };
    let mailer_setting = Some(MailerHandle(mailer.clone()));
    let harness = world_with(Settings { mailer: mailer_setting, failing_rule, ..settings() }).await;
    let refusing = Receiver::responding(404).await;
    harness.create_webhook(&refusing.url(), |_| {}).await;
    harness.publish(0..1).await;
    harness
        .eventually("it is sent", async || {
            harness.clock.advance(SECOND / 10);
            stored_notifications(&harness)
                .await
                .iter()
                .any(|one| one.email_status == ChannelStatus::Sent && one.next_attempt_at.is_none())
        })
        .await;
    assert_eq!(mailer.0.load(SeqCst), 3);
    assert_eq!(stored_notifications(&harness).await[0].error.as_deref(), Some("no route"));

    mailer.0.store(usize::MAX - 1_000_000, SeqCst);
    harness.clock.advance(3600 * SECOND);
    harness.publish(1..2).await;
    harness
        .eventually("it failed", async || {
            stored_notifications(&harness).await[0].attempts > 0
                && stored_notifications(&harness).await.len() == 2
        })
        .await;
    harness.clock.advance(3 * 24 * 3600 * SECOND);
    harness
        .eventually("the notification is failed", async || {
            harness.clock.advance(SECOND);
            stored_notifications(&harness).await[0].email_status == ChannelStatus::Failed
        })
        .await;
}

on_every_store!(two_nodes_notify_once);

async fn two_nodes_notify_once(on: On) {
    let cluster = TestCluster::on(on).await;
    let intervals = GroupIntervals { usual: Duration::from_secs(60), ..GroupIntervals::default() };
    let (a, b) = (
        cluster.node(Settings { node: "a".into(), group_intervals: intervals, ..settings() }).await,
        cluster.node(Settings { node: "b".into(), group_intervals: intervals, ..settings() }).await,
    );
    let operations = Receiver::start().await;
    listener(&a, &operations, "redrive.delivery.dead").await;
    let refusing = Receiver::responding(404).await;
    a.create_webhook(&refusing.url(), |webhook| webhook.spec.circuit_breaker_config.enabled = Some(false))
        .await;
    for n in 0..100 {
        let node = if n % 2 == 0 { &a } else { &b };
        node.publish(n..n + 1).await;
    }
    let count = |arrivals: &[ReceivedRequest]| {
        sent(arrivals).iter().map(|(_, data)| data["count"].as_u64().unwrap()).sum::<u64>()
    };
    operations.wait_for(1).await;
    a.until("they are dead", |all| {
        all.iter().filter(|one| one.status == DeliveryStatus::Dead).count() == 100
    })
    .await;
    a.clock.advance(60 * SECOND);
    let arrivals = operations.wait_until("all are notified", |arrivals| count(arrivals) >= 100).await;
    a.settle_time().await;
    assert_eq!((count(&operations.arrivals()), arrivals.len()), (100, 2));
}
