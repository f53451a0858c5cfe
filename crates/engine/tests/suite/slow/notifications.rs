//! Telling owners: operational webhooks hear of what happened, folded, once, and never of themselves.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use crate::cluster_harness::{Fleet, On, on_every_store};
use crate::harness::{SECOND, START, World, breaker, broken, schedule, settings, world, world_with};
use redrive_core::{
    DeliveryStatus, TenantId,
    event::event_type::Pattern,
    notification::{confirmation::MailPolicy, grouping::Folds},
    protection::breaker::{CircuitState, Forced},
    security::signature,
    webhook::{Webhook, WebhookState},
};
use redrive_engine::{CircuitAction, MailError, Mailed, Mailer, Mailing, Post, Settings};
use redrive_store::{MailAddress, PageRequest, StoredNotice, Telling};
use redrive_testkit::{Arrival, Receiver};
use serde_json::Value;

/// A webhook that hears what Redrive has to say, of these kinds.
async fn listener(world: &World, receiver: &Receiver, events: &str) -> Webhook {
    let events = vec![Pattern::parse(events).unwrap()];
    world.hook(&receiver.url(), |hook| hook.spec.events = events).await
}

fn told(arrivals: &[Arrival]) -> Vec<(String, Value)> {
    let told = |arrival: &Arrival| {
        (arrival.json()["type"].as_str().unwrap().to_owned(), arrival.json()["data"].clone())
    };
    arrivals.iter().map(told).collect()
}

async fn notices(world: &World) -> Vec<StoredNotice> {
    let page = PageRequest { after: None, offset: 0, limit: 500 };
    world.store.list_notices(TenantId::default(), page).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_delivery_is_told_at_once_signed_and_what_follows_together() {
    let world = world().await;
    let operations = Receiver::start().await;
    let listening = listener(&world, &operations, "redrive.*").await;
    let refusing = Receiver::answering(404).await;
    let url = refusing.url_at("/hook?token=s3cret");
    let hook = world
        .hook(&url, |hook| {
            hook.spec.description = Some("orders".into());
            hook.spec.circuit_breaker_config.enabled = Some(false);
        })
        .await;
    world.publish(0..1).await;
    let arrivals = operations.wait_for(1).await;
    let secrets: Vec<_> = signature::live(&listening.secrets, START).collect();
    let signed = signature::sign(
        listening.spec.signature,
        &secrets,
        arrivals[0].webhook_id(),
        START,
        &arrivals[0].body,
    );
    assert_eq!(arrivals[0].header("webhook-signature"), Some(&*signed.webhook_signature));
    let (event_type, data) = told(&arrivals).remove(0);
    assert_eq!(event_type, "redrive.delivery.dead");
    let dead = world.deliveries().await.into_iter().find(|one| one.webhook == hook.id).unwrap();
    assert_eq!(data["delivery_id"], dead.id.to_string());
    assert_eq!((&data["kind"], &data["count"]), (&"delivery.dead".into(), &1.into()));
    assert_eq!((&data["reason"], &data["event_type"]), (&"permanent".into(), &"order.created".into()));
    assert_eq!(data["message"], "the endpoint answered 404");
    assert_eq!(data["webhook"]["id"], hook.id.to_string());
    assert_eq!(
        (&data["webhook"]["host"], &data["webhook"]["description"]),
        (&"127.0.0.1".into(), &"orders".into())
    );
    assert!(!arrivals[0].json().to_string().contains("s3cret"));

    world.publish(1..301).await;
    world
        .until("they are dead", |all| {
            all.iter().filter(|one| one.status == DeliveryStatus::Dead).count() == 301
        })
        .await;
    world.a_moment().await;
    assert_eq!(operations.count(), 1, "what follows is gathered");
    world.clock.advance(Duration::from_secs(3600));
    let arrivals = operations.wait_for(2).await;
    assert_eq!(told(&arrivals)[1].1["count"], 300);
    world.clock.advance(Duration::from_secs(7200));
    world.a_moment().await;
    assert_eq!(operations.count(), 2, "and nothing is told of nothing");
    let listed = notices(&world).await;
    let ways: Vec<_> = listed.iter().map(|one| (one.event, one.mail, one.next_at)).collect();
    assert_eq!(ways, [(Telling::Told, Telling::Nobody, None); 2]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_circuit_that_opens_and_recovers_is_told_and_one_that_a_person_moves_is_not() {
    let world = world().await;
    let operations = Receiver::start().await;
    listener(&world, &operations, "redrive.circuit.*").await;
    let (receiver, works) = broken().await;
    let hook = world.hook(&receiver.url(), |hook| hook.spec.circuit_breaker_config = breaker(5)).await;
    world.publish(0..5).await;
    let (event_type, data) = told(&operations.wait_for(1).await).remove(0);
    assert_eq!((&*event_type, &data["reason"]), ("redrive.circuit.opened", &"server_error".into()));
    assert_eq!(data["message"], "5 of 5 calls failed");
    assert_eq!(data["until"], world.circuit(&hook).await.next_half_open_at.unwrap().to_string());
    works.store(true, SeqCst);
    world.clock.advance(30 * SECOND);
    let (event_type, data) = told(&operations.wait_for(2).await).remove(1);
    assert_eq!(
        (&*event_type, &data["webhook"]["id"]),
        ("redrive.circuit.recovered", &hook.id.to_string().into())
    );
    world.clock.advance(Duration::from_secs(3600));
    let force = |open| CircuitAction::Force(Forced { open, until: None, by: "me".into() });
    for action in [force(true), CircuitAction::Reset, force(false)] {
        world.engine.act_on_circuit(&hook.tenant, hook.id, action).await.unwrap();
    }
    world.a_moment().await;
    assert_eq!(world.circuit(&hook).await.state, CircuitState::Closed);
    assert_eq!(operations.count(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_that_redrive_disables_is_told_and_one_that_a_person_disables_is_not() {
    let world = world().await;
    let operations = Receiver::start().await;
    listener(&world, &operations, "redrive.webhook.disabled").await;
    let gone = Receiver::answering(410).await;
    let hook = world.hook(&gone.url(), |_| {}).await;
    let by_hand = world.hook("http://127.0.0.1:1/", |_| {}).await;
    world.set_state(&by_hand, WebhookState::Disabled("disabled by its owner".into())).await;
    world.publish(0..1).await;
    let (_, data) = told(&operations.wait_for(1).await).remove(0);
    assert_eq!((&data["webhook"]["id"], &data["reason"]), (&hook.id.to_string().into(), &"gone".into()));
    let end = world.clock.now() + 60 * SECOND;
    let expiring = world.hook("http://127.0.0.1:1/", |hook| hook.spec.expires_at = Some(end)).await;
    world.clock.advance(60 * SECOND);
    let (_, data) = told(&operations.wait_for(2).await).remove(1);
    assert_eq!(
        (&data["webhook"]["id"], &data["reason"]),
        (&expiring.id.to_string().into(), &"expired".into())
    );
    assert_eq!(data["message"], "expired");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waited_for_too_long_is_told() {
    let world = world().await;
    let operations = Receiver::start().await;
    listener(&world, &operations, "redrive.delivery.dead").await;
    let hook = world.hook("http://127.0.0.1:1/", |hook| hook.state = WebhookState::Paused).await;
    world.publish(0..7).await;
    world.clock.advance(6 * 24 * 3600 * SECOND);
    let (_, data) = told(&operations.wait_for(1).await).remove(0);
    assert_eq!((&data["webhook"]["id"], &data["reason"]), (&hook.id.to_string().into(), &"expired".into()));
    assert_eq!(data["count"], 7);
}

#[tokio::test(flavor = "multi_thread")]
async fn old_secrets_and_quotas_are_told_once_in_a_while() {
    let world = world().await;
    let operations = Receiver::start().await;
    let ours = listener(&world, &operations, "redrive.*").await;
    let hook = world.hook("http://127.0.0.1:1/", |_| {}).await;
    for _ in 0..100 {
        world.engine.quota_reached(&TenantId::default(), "max_events_per_day", "enough", None);
    }
    let (event_type, data) = told(&operations.wait_for(1).await).remove(0);
    assert_eq!((&*event_type, &data["webhook"]), ("redrive.quota.reached", &Value::Null));
    assert_eq!((&data["reason"], &data["message"]), (&"max_events_per_day".into(), &"enough".into()));
    world.clock.advance(90 * 24 * 3600 * SECOND);
    let (event_type, data) = told(&operations.wait_for(2).await).remove(1);
    assert_eq!((&*event_type, &data["webhook"]["id"]), ("redrive.secret.due", &hook.id.to_string().into()));
    assert!(data["message"].as_str().unwrap().contains("90 days"), "{data}");
    world
        .eventually("the listener's own secret is told by mail alone", async || {
            notices(&world)
                .await
                .iter()
                .any(|one| one.notice.webhook == Some(ours.id) && one.event == Telling::Nobody)
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn names_that_are_not_found_are_told() {
    let world = world().await;
    let operations = Receiver::start().await;
    listener(&world, &operations, "redrive.dns.failing").await;
    let hook = world
        .hook("http://nowhere.invalid/", |hook| hook.spec.circuit_breaker_config.enabled = Some(false))
        .await;
    world.publish(0..12).await;
    world
        .eventually("all were tried", async || {
            let tried = world
                .deliveries()
                .await
                .into_iter()
                .filter(|one| one.webhook == hook.id && one.attempt_count > 0);
            tried.count() == 12
        })
        .await;
    world.clock.advance(60 * SECOND);
    let (_, data) = told(&operations.wait_for(1).await).remove(0);
    assert_eq!((&data["webhook"]["id"], &data["reason"]), (&hook.id.to_string().into(), &"dns".into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failing_listener_is_told_about_by_no_event() {
    let world = world().await;
    let (receiver, _) = broken().await;
    let failing = world
        .hook(&receiver.url(), |hook| {
            hook.spec.events = vec![Pattern::parse("redrive.*").unwrap()];
            hook.spec.retry_config = schedule(&[0]);
            hook.spec.circuit_breaker_config = breaker(3);
        })
        .await;
    let healthy = Receiver::start().await;
    listener(&world, &healthy, "redrive.*").await;
    let refusing = Receiver::answering(404).await;
    for _ in 0..5 {
        let hook = world.hook(&refusing.url(), |_| {}).await;
        world.publish(0..1).await;
        world.set_state(&hook, WebhookState::Paused).await;
    }
    let dead = healthy.wait_for(5).await;
    assert!(told(&dead).iter().all(|(event_type, _)| event_type == "redrive.delivery.dead"));
    world
        .eventually("its circuit opened, and that is told by no event", async || {
            notices(&world).await.iter().any(|one| {
                one.notice.webhook == Some(failing.id)
                    && one.notice.kind.name() == "circuit.opened"
                    && one.event == Telling::Nobody
            })
        })
        .await;
    world.clock.advance(Duration::from_secs(7200));
    world.a_moment().await;
    assert_eq!(healthy.count(), 5);
    let about_deaths_of_its_own = notices(&world)
        .await
        .iter()
        .any(|one| one.notice.webhook == Some(failing.id) && one.notice.kind.name() == "delivery.dead");
    assert!(!about_deaths_of_its_own);
}

/// Sends nothing until it is tried often enough.
struct Stubborn(AtomicUsize);

impl Mailer for Stubborn {
    fn send(&self, notice: StoredNotice, webhook: Option<Webhook>) -> Mailing<'_> {
        assert_eq!(notice.notice.webhook, webhook.map(|webhook| webhook.id));
        Box::pin(async {
            match self.0.fetch_add(1, SeqCst) {
                2..1_000 => Ok(Mailed::Sent),
                _ => Err(MailError::Later("no route".into())),
            }
        })
    }

    fn send_confirmation(&self, _: MailAddress) -> Mailing<'_> {
        Box::pin(async { Err(MailError::Later("no route".into())) })
    }

    fn policy(&self) -> &MailPolicy {
        static POLICY: std::sync::LazyLock<MailPolicy> = std::sync::LazyLock::new(MailPolicy::default);
        &POLICY
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mail_is_tried_until_it_is_sent_or_given_up_on() {
    let mailer = Arc::new(Stubborn(AtomicUsize::new(0)));
    let world = world_with(Settings { post: Some(Post(mailer.clone())), ..settings() }).await;
    let refusing = Receiver::answering(404).await;
    world.hook(&refusing.url(), |_| {}).await;
    world.publish(0..1).await;
    world
        .eventually("it is sent", async || {
            world.clock.advance(SECOND / 10);
            notices(&world).await.iter().any(|one| one.mail == Telling::Told && one.next_at.is_none())
        })
        .await;
    assert_eq!(mailer.0.load(SeqCst), 3);
    assert_eq!(notices(&world).await[0].error.as_deref(), Some("no route"));

    mailer.0.store(usize::MAX - 1_000_000, SeqCst);
    world.clock.advance(3600 * SECOND);
    world.publish(1..2).await;
    world
        .eventually("it failed", async || {
            notices(&world).await[0].tries > 0 && notices(&world).await.len() == 2
        })
        .await;
    world.clock.advance(3 * 24 * 3600 * SECOND);
    world
        .eventually("it is given up on, for all to see", async || {
            world.clock.advance(SECOND);
            notices(&world).await[0].mail == Telling::GivenUp
        })
        .await;
}

on_every_store!(two_nodes_tell_once);

async fn two_nodes_tell_once(on: On) {
    let fleet = Fleet::on(on).await;
    let folds = Folds { usual: Duration::from_secs(60), ..Folds::default() };
    let (a, b) = (
        fleet.node(Settings { node: "a".into(), folds, ..settings() }).await,
        fleet.node(Settings { node: "b".into(), folds, ..settings() }).await,
    );
    let operations = Receiver::start().await;
    listener(&a, &operations, "redrive.*").await;
    let refusing = Receiver::answering(404).await;
    a.hook(&refusing.url(), |hook| hook.spec.circuit_breaker_config.enabled = Some(false)).await;
    for n in 0..100 {
        let node = if n % 2 == 0 { &a } else { &b };
        node.publish(n..n + 1).await;
    }
    let count = |arrivals: &[Arrival]| {
        told(arrivals).iter().map(|(_, data)| data["count"].as_u64().unwrap()).sum::<u64>()
    };
    operations.wait_for(1).await;
    a.until("they are dead", |all| {
        all.iter().filter(|one| one.status == DeliveryStatus::Dead).count() == 100
    })
    .await;
    a.clock.advance(60 * SECOND);
    let arrivals = operations.wait_until("all are told", |arrivals| count(arrivals) >= 100).await;
    a.a_moment().await;
    assert_eq!((count(&operations.arrivals()), arrivals.len()), (100, 2));
}
