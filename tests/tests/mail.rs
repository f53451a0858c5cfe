//! Mails to owners with the real binary and a real mail server: from a cause to a mail, and out of it again.

// A test that cannot go on should panic.
#![allow(clippy::unwrap_used)]

use std::process::{Command, Output};

use redrive_testkit::{Api, Arrived, Protection, Receiver, Redrive, Setup, Smtp, binary};
use serde_json::{Value, json};

/// A server that sends its mails there.
fn setup(smtp: &Smtp) -> Setup {
    smtp.env(Protection::Plain).into_iter().fold(Setup::new(), |setup, (name, value)| setup.env(name, value))
}

/// The path of a link in a mail.
fn path_of(link: &str) -> String {
    let rest = link.trim_matches(['<', '>']).split_once("://").unwrap().1;
    format!("/{}", rest.split_once('/').unwrap().1)
}

/// A webhook that refuses everything for good, looked after by Jane.
async fn refusing(api: &Api, more: Value) -> (Receiver, Value) {
    let receiver = Receiver::answering(400).await;
    let mut webhook = json!({"description": "orders", "owner": {"email": "jane@example.com"}});
    webhook.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let webhook = api.create_webhook(&receiver.url(), webhook).await;
    (receiver, webhook)
}

fn count_in(mail: &Arrived) -> u64 {
    let subject = mail.header("Subject");
    if subject.starts_with("A delivery") {
        return 1;
    }
    let digits: String = subject.split(' ').next().unwrap().chars().filter(char::is_ascii_digit).collect();
    digits.parse().unwrap_or_else(|_| panic!("no count in {subject:?}"))
}

fn check_mail(smtp: &Smtp, protection: Protection, more: &[(&str, &str)]) -> Output {
    Command::new(binary())
        .args(["check-mail", "--to", "jane@example.com"])
        .envs(smtp.env(protection))
        .envs(more.iter().copied())
        .output()
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_looks_after_a_webhook_hears_of_a_dead_delivery_and_can_end_that() {
    let smtp = Smtp::start(Protection::Plain);
    let redrive = Redrive::start_with(setup(&smtp)).await;
    let api = redrive.api();
    let (_receiver, webhook) = refusing(&api, json!({})).await;
    let wishes = json!({"emails": ["ops@example.com", "jane@EXAMPLE.com"], "language": "de"});
    api.patch("/v1/notification-preferences", wishes).await.expect(200);
    api.publish("order.created", json!({"n": 1})).await;
    let mails = smtp.wait_for(2).await;
    let mut to: Vec<_> = mails.iter().map(|mail| mail.to.join(",")).collect();
    to.sort_unstable();
    assert_eq!(to, ["jane@example.com", "ops@example.com"]);
    let mail = mails.iter().find(|mail| mail.to == ["jane@example.com"]).unwrap();
    assert_eq!(mail.header("Subject"), "Eine Zustellung an orders wurde aufgegeben");
    assert_eq!(mail.defects, [""; 0]);
    assert!(mail.text.contains("Ereignisart der letzten: order.created"), "{}", mail.text);
    assert!(mail.text.contains(webhook["id"].as_str().unwrap()), "{}", mail.text);
    assert!(
        mail.text.contains(&format!("http://{}/dashboard/t/default/dead", redrive.address())),
        "{}",
        mail.text
    );

    // Looking changes nothing; a click does.
    let link = path_of(mail.header("List-Unsubscribe"));
    let anybody = api.without_key();
    let page = anybody.get(&link).await;
    let page = (page.status, String::from_utf8(page.body.to_vec()).unwrap());
    assert!(
        page.0 == 200 && page.1.contains("<form method=\"post\"") && page.1.contains("jane@example.com"),
        "{page:?}"
    );
    assert_eq!(api.get("/v1/notification-preferences/unsubscribed").await.expect(200)["data"], json!([]));
    let form = [("content-type", "application/x-www-form-urlencoded")];
    for _ in 0..2 {
        let done = anybody.raw("POST", &link, &form, "List-Unsubscribe=One-Click").await;
        assert_eq!(done.status, 200);
    }
    let listed = api.get("/v1/notification-preferences/unsubscribed").await.expect(200);
    let (data, one) = (&listed["data"], &listed["data"][0]);
    assert_eq!(
        (data.as_array().unwrap().len(), &one["email"], &one["kind"]),
        (1, &json!("jane@example.com"), &json!("delivery.dead"))
    );
    let audit = api.get("/v1/audit-log?action=notifications.unsubscribe").await.expect(200);
    assert_eq!(audit["data"].as_array().unwrap().len(), 1, "{audit}");
    assert_eq!(anybody.get("/unsubscribe/nonsense").await.status, 404);
    assert_eq!(anybody.raw("POST", "/unsubscribe/nonsense", &[], "").await.status, 404);

    // Another webhook of the same owner: only the others hear of it, until it is undone.
    let (_second, _) = refusing(&api, json!({"description": "second", "events": ["second.*"]})).await;
    api.publish("second.created", json!({})).await;
    let mails = smtp.wait_until(|mails| mails.iter().any(|mail| mail.text.contains("second"))).await;
    assert_eq!(
        mails.iter().map(|mail| mail.to[0].as_str()).filter(|to| *to == "jane@example.com").count(),
        1
    );
    let back = api
        .post("/v1/notification-preferences/resubscribe", json!({"email": "jane@Example.com"}))
        .await
        .expect(200);
    assert_eq!(back, json!({"resubscribed": 1}));
    let (_third, _) = refusing(&api, json!({"description": "third", "events": ["third.*"]})).await;
    api.publish("third.created", json!({})).await;
    smtp.wait_until(|mails| {
        mails.iter().any(|mail| mail.text.contains("third") && mail.to == ["jane@example.com"])
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_muted_does_not_arrive() {
    let smtp = Smtp::start(Protection::Plain);
    let redrive = Redrive::start_with(setup(&smtp)).await;
    let api = redrive.api();
    let muted =
        json!({"owner": {"email": "jane@example.com", "mute": ["delivery.dead"]}, "events": ["muted.*"]});
    let (receiver, _) = refusing(&api, muted).await;
    let (_loud, _) = refusing(&api, json!({"events": ["loud.*"], "description": "loud"})).await;
    api.publish("muted.created", json!({})).await;
    receiver.wait_for(1).await;
    api.eventually("it is dead", "/v1/dlq", |dlq| dlq["data"].as_array().unwrap().len() == 1).await;
    api.publish("loud.created", json!({})).await;
    let mails = smtp.wait_for(1).await;
    assert!(mails.len() == 1 && mails[0].text.contains("loud"), "{mails:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_dead_deliveries_give_a_handful_of_mails() {
    let smtp = Smtp::start(Protection::Plain);
    let redrive = Redrive::start_with(setup(&smtp).env("REDRIVE_NOTIFICATIONS_FOLD", "15s")).await;
    let api = redrive.api();
    let off = json!({"circuit_breaker_config": {"enabled": false}});
    let (_receiver, _) = refusing(&api, off).await;
    for batch in 0..10 {
        let event = |n| json!({"event_type": "order.created", "data": {"n": batch * 1000 + n}});
        let events: Vec<_> = (0..1000).map(event).collect();
        api.post("/v1/events/batch", json!({"events": events})).await.expect(202);
    }
    let told = |mails: &[Arrived]| mails.iter().map(count_in).sum::<u64>();
    let mails = smtp.wait_until(|mails| told(mails) >= 10_000).await;
    assert_eq!(told(&mails), 10_000, "each is told of once");
    assert!(mails.len() <= 6, "{} mails", mails.len());
    let ids: std::collections::BTreeSet<_> = mails.iter().map(|mail| mail.header("Message-ID")).collect();
    assert_eq!(ids.len(), mails.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mail_survives_a_server_that_is_down_and_a_kill() {
    let smtp = Smtp::start(Protection::Plain);
    smtp.go_down();
    // A minute takes a second: what a node had when it died is left to it for a minute.
    let mut redrive = Redrive::start_with(setup(&smtp).env("REDRIVE_DEV_CLOCK_SPEED", "60")).await;
    let api = redrive.api();
    let (_receiver, _) = refusing(&api, json!({})).await;
    api.publish("order.created", json!({})).await;
    redrive.wait_output("cannot be reached").await;
    redrive.kill();
    smtp.come_back();
    redrive.restart().await;
    let mails = smtp.wait_for(1).await;
    assert_eq!(mails[0].header("Subject"), "A delivery to orders was given up");
    assert_eq!(mails.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_test_mail_goes_out_or_says_what_is_wrong() {
    let smtp = Smtp::start_with(Protection::StartTls, Some(("me", "right")));
    let said = |output: &Output| {
        String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
    };
    let login = |password| [("REDRIVE_SMTP_USERNAME", "me"), ("REDRIVE_SMTP_PASSWORD", password)];
    let good = check_mail(&smtp, Protection::StartTls, &login("right"));
    assert!(good.status.success(), "{}", said(&good));
    assert!(
        said(&good)
            .contains("has taken a test mail from Redrive <redrive@sender.example> to jane@example.com")
    );
    assert_eq!(smtp.wait_for(1).await[0].header("Subject"), "Redrive can send mails");
    let bad = check_mail(&smtp, Protection::StartTls, &login("wrong"));
    assert!(
        !bad.status.success() && said(&bad).contains("check smtp.username and smtp.password"),
        "{}",
        said(&bad)
    );
    smtp.go_down();
    let down = check_mail(&smtp, Protection::StartTls, &login("right"));
    assert!(
        !down.status.success() && said(&down).contains("check smtp.host and smtp.port"),
        "{}",
        said(&down)
    );
    let off = Command::new(binary()).args(["check-mail", "--to", "jane@example.com"]).output().unwrap();
    assert!(!off.status.success() && said(&off).contains("mails are off"), "{}", said(&off));
}
