//! Notification emails with the real binary and a real SMTP server: from an occurrence to an email, and
//! unsubscribing.

use std::process::{Command, Output};

use redrive_testkit::{Api, Postgres, Protection, ReceivedMail, Receiver, Redrive, Setup, Smtp, binary};
use serde_json::{Value, json};

/// Returns the setup of a server that sends its emails to this SMTP server.
fn setup(smtp: &Smtp) -> Setup {
    smtp.env(Protection::Plain).into_iter().fold(Setup::new(), |setup, (name, value)| setup.env(name, value))
}

/// Returns the same setup, with the tests' addresses trusted without confirmation.
fn trusting_setup(smtp: &Smtp) -> Setup {
    setup(smtp).env("REDRIVE_SMTP_TRUSTED_DOMAINS", "[\"example.com\"]")
}

/// Returns the path of a link in an email.
fn path_of(link: &str) -> String {
    let rest = link.trim_matches(['<', '>']).split_once("://").unwrap().1;
    format!("/{}", rest.split_once('/').unwrap().1)
}

/// Creates a webhook owned by Jane whose endpoint always responds with 400, a permanent failure.
async fn refusing(api: &Api, more: Value) -> (Receiver, Value) {
    let receiver = Receiver::responding(400).await;
    let mut webhook = json!({"description": "orders", "owner": {"email": "jane@example.com"}});
    webhook.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let webhook = api.create_webhook(&receiver.url(), webhook).await;
    (receiver, webhook)
}

fn count_in(email: &ReceivedMail) -> u64 {
    let subject = email.header("Subject");
    if subject.starts_with("A delivery") {
        return 1;
    }
    let digits: String = subject.split(' ').next().unwrap().chars().filter(char::is_ascii_digit).collect();
    digits.parse().unwrap_or_else(|_| panic!("no count in {subject:?}"))
}

fn test_email(smtp: &Smtp, protection: Protection, more: &[(&str, &str)]) -> Output {
    Command::new(binary())
        .args(["test-email", "--to", "jane@example.com"])
        .envs(smtp.env(protection))
        .envs(more.iter().copied())
        .output()
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn owner_is_notified_of_dead_delivery_and_can_unsubscribe() {
    let smtp = Smtp::start(Protection::Plain);
    let redrive = Redrive::start_with(setup(&smtp)).await;
    let api = redrive.api();
    let (_receiver, webhook) = refusing(&api, json!({})).await;
    let wishes = json!({"emails": ["ops@example.com", "jane@EXAMPLE.com"], "language": "de"});
    api.patch("/v1/notification-preferences", wishes).await.expect(200);
    for address in ["jane@example.com", "ops@example.com"] {
        smtp.confirm(&api, address).await;
    }
    api.publish("order.created", json!({"n": 1})).await;
    smtp.wait_for(4).await;
    let emails = smtp.notifications();
    let mut to: Vec<_> = emails.iter().map(|email| email.to.join(",")).collect();
    to.sort_unstable();
    assert_eq!(to, ["jane@example.com", "ops@example.com"]);
    let email = emails.iter().find(|email| email.to == ["jane@example.com"]).unwrap();
    assert_eq!(email.header("Subject"), "Eine Zustellung an 127.0.0.1 ist endgültig fehlgeschlagen");
    assert_eq!(email.defects, [""; 0]);
    assert!(email.text.contains("Letzter Ereignistyp: order[.]created"), "{}", email.text);
    assert!(email.text.contains(webhook["id"].as_str().unwrap()), "{}", email.text);
    assert!(
        email.text.contains(&format!("http://{}/dashboard/t/default/dead", redrive.address())),
        "{}",
        email.text
    );

    // Opening the page changes nothing; submitting the form does.
    let link = path_of(email.header("List-Unsubscribe"));
    let visitor = api.without_key();
    let page = visitor.get(&link).await;
    let page = (page.status, String::from_utf8(page.body.to_vec()).unwrap());
    assert!(
        page.0 == 200 && page.1.contains("<form method=\"post\"") && page.1.contains("jane@example.com"),
        "{page:?}"
    );
    assert_eq!(api.get("/v1/notification-preferences/unsubscriptions").await.expect(200)["data"], json!([]));
    let form = [("content-type", "application/x-www-form-urlencoded")];
    for _ in 0..2 {
        let done = visitor.raw("POST", &link, &form, "List-Unsubscribe=One-Click").await;
        assert_eq!(done.status, 200);
    }
    let listed = api.get("/v1/notification-preferences/unsubscriptions").await.expect(200);
    let (data, one) = (&listed["data"], &listed["data"][0]);
    assert_eq!(
        (data.as_array().unwrap().len(), &one["email"], &one["kind"]),
        (1, &json!("jane@example.com"), &json!("delivery.dead"))
    );
    let audit = api.get("/v1/audit-log?action=notifications.unsubscribe").await.expect(200);
    assert_eq!(audit["data"].as_array().unwrap().len(), 1, "{audit}");
    assert_eq!(visitor.get("/unsubscribe/nonsense").await.status, 404);
    assert_eq!(visitor.raw("POST", "/unsubscribe/nonsense", &[], "").await.status, 404);

    // Another webhook of the same owner: only the other addresses are notified, until the owner resubscribes.
    let (_second, _) = refusing(&api, json!({"description": "second", "events": ["second.*"]})).await;
    api.publish("second.created", json!({})).await;
    let emails = smtp.wait_until(|emails| emails.iter().any(|email| email.text.contains("second"))).await;
    assert_eq!(
        emails.iter().map(|email| email.to[0].as_str()).filter(|to| *to == "jane@example.com").count(),
        2,
        "the confirmation and the first notification"
    );
    // Neither the tenant nor the operator can undo an unsubscription; the holder of the address can, with the link.
    let again =
        api.post("/v1/notification-preferences/resubscribe", json!({"email": "jane@example.com"})).await;
    assert_eq!(again.status, 404);
    let undone = visitor.raw("POST", &format!("{link}/undo"), &form, "").await;
    assert_eq!(undone.status, 200);
    assert_eq!(api.get("/v1/notification-preferences/unsubscriptions").await.expect(200)["data"], json!([]));
    let audit = api.get("/v1/audit-log?action=notifications.resubscribe").await.expect(200);
    assert_eq!(audit["data"].as_array().unwrap().len(), 1, "{audit}");
    let (_third, _) = refusing(&api, json!({"description": "third", "events": ["third.*"]})).await;
    api.publish("third.created", json!({})).await;
    smtp.wait_until(|emails| {
        emails.iter().any(|email| email.text.contains("third") && email.to == ["jane@example.com"])
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn email_about_operator_managed_webhook_goes_only_to_its_owner() {
    let smtp = Smtp::start(Protection::Plain);
    let redrive = Redrive::start_with(trusting_setup(&smtp)).await;
    let api = redrive.api();
    api.patch("/v1/notification-preferences", json!({"emails": ["tenant@example.com"]})).await.expect(200);
    let operators =
        json!({"managed_by": "operator", "events": ["first"], "retry_config": {"max_attempts": 1}});
    let (_receiver, hidden) = refusing(&api, operators).await;
    api.publish("first", json!(1)).await;
    smtp.wait_for(1).await;
    // The tenant's address works: it is notified of a webhook that the tenant manages.
    let own = json!({"events": ["second"], "retry_config": {"max_attempts": 1}});
    let (_receiver, _) = refusing(&api, own).await;
    api.publish("second", json!(1)).await;
    smtp.wait_for(3).await;
    let about_hidden: Vec<_> = smtp
        .notifications()
        .into_iter()
        .filter(|email| email.text.contains(hidden["id"].as_str().unwrap()))
        .collect();
    assert_eq!(about_hidden.len(), 1);
    assert_eq!(about_hidden[0].to, ["jane@example.com"]);
    assert!(smtp.notifications().iter().any(|email| email.to == ["tenant@example.com"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn muted_kind_is_not_sent() {
    let smtp = Smtp::start(Protection::Plain);
    let redrive = Redrive::start_with(trusting_setup(&smtp)).await;
    let api = redrive.api();
    let muted = json!({"owner": {"email": "jane@example.com", "muted_kinds": ["delivery.dead"]}, "events": ["muted.*"]});
    let (receiver, _) = refusing(&api, muted).await;
    let (_loud, _) = refusing(&api, json!({"events": ["loud.*"], "description": "loud"})).await;
    api.publish("muted.created", json!({})).await;
    receiver.wait_for(1).await;
    api.wait_until("the delivery is dead", "/v1/dlq", |dlq| dlq["data"].as_array().unwrap().len() == 1).await;
    api.publish("loud.created", json!({})).await;
    let emails = smtp.wait_for(1).await;
    assert!(emails.len() == 1 && emails[0].text.contains("loud"), "{emails:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn email_survives_an_smtp_outage_and_a_kill() {
    let smtp = Smtp::start(Protection::Plain);
    smtp.stop_listening();
    // A minute passes in a second: the claim of a killed node expires after a minute.
    let mut redrive = Redrive::start_with(trusting_setup(&smtp).env("REDRIVE_DEV_CLOCK_SPEED", "60")).await;
    let api = redrive.api();
    let (_receiver, _) = refusing(&api, json!({})).await;
    api.publish("order.created", json!({})).await;
    redrive.wait_output("cannot be reached").await;
    redrive.kill();
    smtp.resume_listening();
    redrive.restart().await;
    let emails = smtp.wait_for(1).await;
    assert_eq!(emails[0].header("Subject"), "A delivery to 127.0.0.1 is dead");
    assert_eq!(emails.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn address_receives_nothing_before_its_holder_confirms_it() {
    let smtp = Smtp::start(Protection::Plain);
    let redrive = Redrive::start_with(setup(&smtp)).await;
    let api = redrive.api();
    let evil = "You won! https://evil.example/prize";
    let off = json!({"description": evil, "circuit_breaker_config": {"enabled": false}});
    let (_receiver, webhook) = refusing(&api, off).await;
    assert_eq!(webhook["owner_email_confirmation"]["status"], "unconfirmed", "{webhook}");
    let email = smtp.wait_for(1).await.remove(0);
    assert_eq!(email.to, ["jane@example.com"]);
    assert_eq!(
        email.header("Subject"),
        format!("Confirm this address for notifications from {}", redrive.address())
    );
    assert!(!format!("{email:?}").contains("evil") && email.defects.is_empty(), "{email:?}");
    assert_eq!((email.text.matches("://").count(), email.html.matches("://").count()), (1, 1));

    api.publish("order.created", json!({})).await;
    let suppressed = |all: &Value| all["data"][0]["channels"]["email"] == "no_recipients";
    let listed = api.wait_until("no address is confirmed", "/v1/notifications", suppressed).await;
    assert_eq!(listed["data"][0]["error"], "no recipient has confirmed its address");

    // Opening the page confirms nothing, and neither does an invented link.
    let (path, visitor) = (email.confirmation_path().unwrap(), api.without_key());
    let page = visitor.get(&path).await;
    let text = String::from_utf8(page.body.to_vec()).unwrap();
    assert!(page.status == 200 && text.contains("<form method=\"post\"") && !text.contains("evil"), "{text}");
    let webhook_path = format!("/v1/webhooks/{}", webhook["id"].as_str().unwrap());
    let seen = api.get(&webhook_path).await.expect(200);
    assert_eq!(seen["owner_email_confirmation"]["status"], "unconfirmed");
    assert_eq!(seen["owner_email_confirmation"]["requests"], 1);
    for bad in ["/confirm/nonsense".to_owned(), path[..path.len() - 2].to_owned()] {
        assert_eq!(visitor.get(&bad).await.status, 404);
        assert_eq!(visitor.raw("POST", &bad, &[], "").await.status, 404);
    }
    smtp.confirm(&api, "jane@example.com").await;
    let seen = api.get(&webhook_path).await.expect(200);
    assert_eq!(seen["owner_email_confirmation"]["status"], "confirmed");
    assert_eq!(seen["owner_email_confirmation"]["confirmed_by"], "holder");
    assert_eq!(
        api.get("/v1/webhooks").await.expect(200)["data"][0]["owner_email_confirmation"]["status"],
        "confirmed"
    );
    let audit = api.get("/v1/audit-log?action=notifications.confirm").await.expect(200);
    assert_eq!(audit["data"].as_array().unwrap().len(), 1, "{audit}");

    // Another webhook: repeats of the first one are grouped for a while.
    let (_second, _) = refusing(&api, json!({"description": evil, "events": ["second.*"]})).await;
    api.publish("second.created", json!({})).await;
    let email = smtp.wait_until(|emails| emails.len() == 2).await.remove(1);
    assert_eq!((email.to.len(), email.header("Subject")), (1, "A delivery to 127.0.0.1 is dead"));
    assert!(email.text.contains("https[:]//evil[.]example/prize"), "{}", email.text);
    assert!(!email.text.contains("https://evil") && !email.html.contains("evil.example"), "{}", email.html);
}

#[tokio::test(flavor = "multi_thread")]
async fn confirmations_are_resent_within_limits_and_admins_may_confirm() {
    let smtp = Smtp::start(Protection::Plain);
    let redrive = Redrive::start_with(setup(&smtp)).await;
    let admin = redrive.api();
    admin.post("/v1/tenants", json!({"id": "acme"})).await.expect(201);
    let key =
        admin.post("/v1/tenants/acme/api-keys", json!({"name": "k", "scopes": ["read", "manage"]})).await;
    let api = admin.with_key(key.expect(201)["key"].as_str().unwrap());
    let preferences = "/v1/notification-preferences";
    let named = json!({"emails": ["ops@example.com", "trusted@example.com"]});
    let changed = api.patch(preferences, named).await.expect(200);
    assert_eq!(changed["addresses"][0]["email"], "ops@example.com", "{changed}");
    assert_eq!(changed["addresses"][0]["status"], "unconfirmed", "{changed}");
    smtp.wait_for(2).await;
    let again = json!({"email": "OPS@example.com"});
    let refused = api.post("/v1/notification-preferences/confirmations", &again).await;
    assert_eq!(refused.status, 429, "one confirmation per hour");
    assert!(refused.header("retry-after").is_some());
    // Setting the address again, adding a tag, or another tenant setting it sends no email either.
    for emails in [json!([]), json!(["ops@example.com"]), json!(["ops+1@example.com"])] {
        api.patch(preferences, json!({"emails": emails})).await.expect(200);
    }
    let other = json!({"emails": ["ops@example.com"]});
    admin.patch(preferences, other).await.expect(200);
    // Only an admin may confirm an address without its holder.
    let trusted = json!({"email": "trusted@example.com"});
    assert_eq!(api.post("/v1/notification-preferences/confirm", &trusted).await.status, 403);
    let trusted = json!({"email": "trusted@example.com", "tenant_id": "acme"});
    let confirmed = admin.post("/v1/notification-preferences/confirm", trusted).await.expect(200);
    assert_eq!((&confirmed["status"], &confirmed["confirmed_by"]), (&json!("confirmed"), &json!("operator")));
    // A tenant may request confirmations from at most 20 addresses a day.
    for batch in 0..3 {
        let emails: Vec<_> = (0..10).map(|n| format!("victim{batch}{n}@example.com")).collect();
        api.patch(preferences, json!({"emails": emails})).await.expect(200);
    }
    let emails = smtp.wait_until(|emails| emails.len() >= 20).await;
    assert!(emails.iter().all(|email| email.confirmation_path().is_some()));
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    assert_eq!(smtp.emails().len(), 20);
    let to_ops = smtp.emails().iter().filter(|email| email.to[0].starts_with("ops")).count();
    assert_eq!(to_ops, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn notifications_over_tenant_budget_are_listed_as_suppressed() {
    let smtp = Smtp::start(Protection::Plain);
    let limited = trusting_setup(&smtp).env("REDRIVE_SMTP_MAX_PER_HOUR_PER_TENANT", "2");
    let redrive = Redrive::start_with(limited).await;
    let api = redrive.api();
    let mut receivers = Vec::new();
    for n in 0..4 {
        receivers.push(refusing(&api, json!({"events": [format!("n{n}.*")]})).await);
        api.publish(&format!("n{n}.created"), json!({})).await;
    }
    let suppressed = |all: &Value| {
        let all = all["data"].as_array().unwrap();
        all.iter().filter(|one| one["channels"]["email"] == "suppressed").count() == 2
    };
    let listed = api.wait_until("two notifications are suppressed", "/v1/notifications", suppressed).await;
    let errors = listed["data"].to_string();
    assert!(errors.contains("smtp.max_per_hour_per_tenant"), "{errors}");
    assert_eq!(smtp.wait_for(2).await.len(), 2);
    let metrics = api.get("/metrics").await;
    let metrics = String::from_utf8(metrics.body.to_vec()).unwrap();
    assert!(
        metrics.contains("redrive_notifications_total{channel=\"email\",outcome=\"suppressed\"} 2"),
        "{metrics}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn test_email_is_sent_or_the_error_explained() {
    let smtp = Smtp::start_with(Protection::StartTls, Some(("me", "right")));
    let message = |output: &Output| {
        String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
    };
    let login = |password| [("REDRIVE_SMTP_USERNAME", "me"), ("REDRIVE_SMTP_PASSWORD", password)];
    let good = test_email(&smtp, Protection::StartTls, &login("right"));
    assert!(good.status.success(), "{}", message(&good));
    assert!(
        message(&good)
            .contains("accepted a test email from Redrive <redrive@sender.example> to jane@example.com")
    );
    assert_eq!(smtp.wait_for(1).await[0].header("Subject"), "Redrive test email");
    let bad = test_email(&smtp, Protection::StartTls, &login("wrong"));
    assert!(
        !bad.status.success() && message(&bad).contains("check smtp.username and smtp.password"),
        "{}",
        message(&bad)
    );
    smtp.stop_listening();
    let down = test_email(&smtp, Protection::StartTls, &login("right"));
    assert!(
        !down.status.success() && message(&down).contains("check smtp.host and smtp.port"),
        "{}",
        message(&down)
    );
    let off = Command::new(binary()).args(["test-email", "--to", "jane@example.com"]).output().unwrap();
    assert!(!off.status.success() && message(&off).contains("email is not configured"), "{}", message(&off));
}

mod extended {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn confirmation_limits_hold_across_nodes_and_kills() {
        let smtp = Smtp::start(Protection::Plain);
        smtp.stop_listening();
        let database = Postgres::shared().await;
        let on = || setup(&smtp).database_url(database.url());
        let (mut one, two) = tokio::join!(Redrive::start_with(on()), Redrive::start_with(on()));
        let (a, b) = (one.api(), two.api());
        for n in 0..4 {
            a.post("/v1/tenants", json!({"id": format!("t{n}")})).await.expect(201);
        }
        // Every tenant sets the same mailbox on both nodes, in several spellings.
        for n in 0..4 {
            let named = |api: &Api, tag: &str| {
                let (api, path) = (api.clone(), format!("/v1/notification-preferences?tenant_id=t{n}"));
                let emails =
                    json!({"emails": [format!("victim+{tag}{n}@example.com"), "Victim@example.com"]});
                async move { api.patch(&path, emails).await }
            };
            tokio::join!(named(&a, "a"), named(&b, "b"));
        }
        one.kill();
        smtp.resume_listening();
        one.restart().await;
        smtp.wait_for(1).await;
        let named = json!({"emails": ["victim@example.com"]});
        for api in [one.api(), two.api()] {
            api.patch("/v1/notification-preferences", &named).await.expect(200);
        }
        tokio::time::sleep(std::time::Duration::from_secs(8)).await;
        assert_eq!(smtp.emails().len(), 1, "one confirmation per hour across tenants, nodes and kills");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn ten_thousand_dead_deliveries_are_grouped_into_few_emails() {
        let smtp = Smtp::start(Protection::Plain);
        let redrive =
            Redrive::start_with(trusting_setup(&smtp).env("REDRIVE_NOTIFICATIONS_GROUP_INTERVAL", "15s"))
                .await;
        let api = redrive.api();
        let off = json!({"circuit_breaker_config": {"enabled": false}});
        let (_receiver, _) = refusing(&api, off).await;
        for batch in 0..10 {
            let event = |n| json!({"event_type": "order.created", "data": {"n": batch * 1000 + n}});
            let events: Vec<_> = (0..1000).map(event).collect();
            api.post("/v1/events/batch", json!({"events": events})).await.expect(202);
        }
        // One email reports that the webhook fails; the others count its dead deliveries.
        let is_dead = |email: &&ReceivedMail| !email.header("Subject").starts_with("All deliveries");
        let counted = |emails: &[ReceivedMail]| emails.iter().filter(is_dead).map(count_in).sum::<u64>();
        let emails = smtp.wait_until(|emails| counted(emails) >= 10_000).await;
        assert_eq!(counted(&emails), 10_000, "each dead delivery is reported once");
        assert!(emails.len() <= 7, "{} emails", emails.len());
        let ids: std::collections::BTreeSet<_> =
            emails.iter().map(|email| email.header("Message-ID")).collect();
        assert_eq!(ids.len(), emails.len());
    }
}
