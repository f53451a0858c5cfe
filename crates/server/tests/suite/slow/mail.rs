//! Notification emails through a real SMTP server: recipients, contents, and handling of its refusals.

use std::{path::Path, sync::Arc, time::Duration};

use redrive_core::{
    NotificationId, TenantId, Time, WebhookId,
    notification::{
        Notification, NotificationKind, Occurrence, OccurrenceDetails,
        confirmation::ConfirmedBy,
        grouping::GroupIntervals,
        preferences::{Language, TenantPreferences},
    },
    tenancy::TenantRules,
    webhook::{Owner, Webhook, WebhookSpec, WebhookState},
};
use redrive_engine::clock::Clock;
use redrive_server::{
    config::{Overrides, Profile, load},
    mail::{MailResult, MailSender},
};
use redrive_store::{
    PageRequest, Store, Tenant,
    sqlite::{Options, Sqlite},
};
use redrive_testkit::{Protection, Smtp, vault};

const BASE: &str = "https://hooks.example.com";

/// A store with a tenant that has email notifications, and a mail sender connected to a test SMTP server.
struct Fixture {
    store: Arc<dyn Store>,
    emails: MailSender,
    tenant_id: TenantId,
    _folder: tempfile::TempDir,
}

impl Fixture {
    async fn new(smtp: &Smtp, protection: Protection, more: &str, preferences: TenantPreferences) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = Sqlite::open(&Options::at(folder.path().join("r.db")).with_vault(vault())).unwrap();
        let store: Arc<dyn Store> = Arc::new(store);
        let tenant_id = TenantId::parse("acme").unwrap();
        let rules = TenantRules { notifications: preferences, ..TenantRules::default() };
        let tenant = Tenant {
            id: tenant_id.clone(),
            metadata: Default::default(),
            name: Some("Acme".into()),
            rules,
            created_at: Time::default(),
        };
        assert!(store.create_tenant(tenant).await.unwrap());
        let mailer = mail_sender(smtp, protection, more, folder.path(), store.clone());
        let fixture = Self { store, emails: mailer, tenant_id, _folder: folder };
        for address in ["jane@example.com", "ops@example.com"] {
            fixture.confirm(address).await;
        }
        fixture
    }

    async fn confirm(&self, address: &str) {
        let by = ConfirmedBy::Holder;
        self.store
            .confirm_address(self.tenant_id.clone(), address.into(), by, Time::default())
            .await
            .unwrap();
    }

    async fn send(&self, notification: &Notification) -> MailResult {
        self.emails.send_notification(notification, Some(&self.webhook())).await.unwrap()
    }

    fn webhook(&self) -> Webhook {
        let owner = Owner {
            id: None,
            email: Some("jane@example.com".into()),
            muted_kinds: vec![NotificationKind::CircuitRecovered],
        };
        let spec = WebhookSpec {
            url: "https://warehouse.example/hush".into(),
            description: Some("orders <b>to</b> the warehouse".into()),
            owner: Some(owner),
            ..WebhookSpec::default()
        };
        Webhook {
            id: WebhookId::from_bytes([2; 16]),
            tenant_id: self.tenant_id.clone(),
            spec,
            secrets: Vec::new(),
            state: WebhookState::Active,
            created_at: Time::default(),
            updated_at: Time::default(),
        }
    }

    fn notification(&self, number: u8, kind: NotificationKind) -> Notification {
        Notification {
            id: NotificationId::from_bytes([number; 16]),
            tenant_id: self.tenant_id.clone(),
            webhook_id: Some(WebhookId::from_bytes([2; 16])),
            kind,
            count: 3,
            first_at: Time::parse("2026-11-16T00:00:00Z").unwrap(),
            last_at: Time::parse("2026-11-16T00:10:00Z").unwrap(),
            details: OccurrenceDetails { reason: Some("exhausted".into()), ..OccurrenceDetails::default() },
        }
    }
}

/// Creates a mail sender for this SMTP server. `more` holds further lines of the `[smtp]` section.
fn mail_sender(
    smtp: &Smtp,
    protection: Protection,
    more: &str,
    folder: &Path,
    store: Arc<dyn Store>,
) -> MailSender {
    let mut lines = vec!["[smtp]".to_owned()];
    for (name, value) in smtp.env(protection) {
        let name = name.trim_start_matches("REDRIVE_SMTP_").to_lowercase();
        let replaced = more.lines().any(|line| line.starts_with(&name));
        let number = value.parse::<u32>().is_ok();
        if !replaced {
            lines.push(if number { format!("{name} = {value}") } else { format!("{name} = {value:?}") });
        }
    }
    lines.push(more.to_owned());
    let file = folder.join("redrive.toml");
    std::fs::write(&file, lines.join("\n")).unwrap();
    let config = load(Profile::Serve, Some(&file), &Overrides::default()).unwrap();
    let base = Some(BASE.to_owned());
    MailSender::new(&config.smtp, base, store, vault(), Clock::system()).unwrap().unwrap()
}

fn preferences(emails: &[&str]) -> TenantPreferences {
    let emails = emails.iter().map(|email| (*email).to_owned()).collect();
    TenantPreferences { emails, muted_kinds: vec![NotificationKind::SecretRotationDue], language: None }
}

#[tokio::test]
async fn email_is_well_formed_and_complete_for_each_recipient() {
    let smtp = Smtp::start(Protection::Plain);
    let fixture = Fixture::new(
        &smtp,
        Protection::Plain,
        "",
        preferences(&["ops@example.com", "JANE@EXAMPLE.COM", "jane@EXAMPLE.com"]),
    )
    .await;
    assert_eq!(
        fixture.send(&fixture.notification(1, NotificationKind::DeliveryDead)).await,
        MailResult::Sent
    );
    let emails = smtp.wait_for(2).await;
    let to: Vec<_> = emails.iter().map(|email| email.to.join(",")).collect();
    assert_eq!(to, ["jane@example.com", "ops@example.com"]);
    let email = &emails[0];
    assert_eq!(email.defects, [""; 0]);
    assert_eq!(email.parts, ["multipart/alternative", "text/plain", "text/html"]);
    assert_eq!(email.from, "redrive@sender.example");
    assert_eq!(email.header("Subject"), "3 deliveries to warehouse.example are dead");
    assert_eq!(email.header("To"), "jane@example.com");
    assert_eq!(email.header("Auto-Submitted"), "auto-generated");
    assert!(email.header("Message-ID").starts_with("<ntf_01010101010101010101010101010101."));
    assert!(email.header("Message-ID").ends_with("@sender.example>"));
    assert_ne!(
        email.header("Message-ID"),
        emails[1].header("Message-ID"),
        "each recipient gets a separate email"
    );
    let message = "3 deliveries to warehouse[.]example were marked dead between 2026-11-16 00:00 UTC and 2026-11-16 00:10 UTC";
    assert!(email.text.starts_with(message), "{}", email.text);
    assert!(email.text.contains("Reason: every attempt failed") && email.text.contains("Tenant: Acme"));
    assert!(email.html.contains("orders &#60;b&#62;to&#60;/b&#62; the warehouse"), "{}", email.html);
    assert!(
        !email.text.contains("hush") && !email.html.contains("hush"),
        "the URL may contain a credential, so it is not shown"
    );
    let link = email.header("List-Unsubscribe").trim_matches(['<', '>']).to_owned();
    assert!(link.starts_with(&format!("{BASE}/unsubscribe/")) && email.text.contains(&link), "{link}");
    assert_eq!(email.header("List-Unsubscribe-Post"), "List-Unsubscribe=One-Click");
}

#[tokio::test]
async fn recipient_gets_one_email_about_an_outage() {
    let smtp = Smtp::start(Protection::Plain);
    let fixture = Fixture::new(&smtp, Protection::Plain, "", preferences(&["ops@example.com"])).await;
    let since = Some(Time::parse("2026-11-15T23:00:00Z").unwrap());
    let mut sent = Vec::new();
    for (number, kind) in [(1, NotificationKind::WebhookFailing), (2, NotificationKind::CircuitOpened)] {
        let Notification { tenant_id, webhook_id, last_at, .. } = fixture.notification(number, kind);
        let details = OccurrenceDetails { since, ..OccurrenceDetails::default() };
        let cause = Occurrence { tenant_id, webhook_id, kind, at: last_at, count: 1, details };
        fixture.store.record_occurrences(vec![cause]).await.unwrap();
        // Two ids for each: it could come with its opposite.
        let ids = [number, number + 100].map(|byte| NotificationId::from_bytes([byte; 16])).to_vec();
        fixture.store.create_notifications(last_at, GroupIntervals::default(), ids).await.unwrap();
        let page = PageRequest { after: None, offset: 0, limit: 1 };
        let listed = fixture.store.list_notifications(fixture.tenant_id.clone(), page).await.unwrap();
        sent.push(listed[0].notification.clone());
    }
    assert_eq!(fixture.send(&sent[0]).await, MailResult::Sent);
    assert_eq!(fixture.send(&sent[1]).await, MailResult::Covered(NotificationKind::WebhookFailing));
    assert_eq!(smtp.wait_for(2).await.len(), 2, "one for each recipient");

    // A recipient that does not want the first kind gets the second.
    let (tenant_id, kind) = (fixture.tenant_id.clone(), NotificationKind::WebhookFailing);
    fixture.store.unsubscribe(tenant_id, "ops@example.com".into(), kind, Time::default()).await.unwrap();
    assert_eq!(fixture.send(&sent[1]).await, MailResult::Sent);
    let emails = smtp.wait_for(3).await;
    assert_eq!(emails[2].to, ["ops@example.com"]);
    assert_eq!(emails[2].header("Subject"), "Circuit opened for warehouse.example: deliveries are paused");
}

#[tokio::test]
async fn muted_and_unsubscribed_kinds_are_not_sent() {
    let smtp = Smtp::start(Protection::Plain);
    let fixture = Fixture::new(&smtp, Protection::Plain, "", preferences(&["ops@example.com"])).await;
    assert_eq!(
        fixture.send(&fixture.notification(1, NotificationKind::SecretRotationDue)).await,
        MailResult::NoRecipients,
        "muted by the tenant"
    );
    assert_eq!(
        fixture.send(&fixture.notification(2, NotificationKind::CircuitRecovered)).await,
        MailResult::NoRecipients,
        "muted by the owner"
    );
    let jane = || "jane@example.com".to_owned();
    let unsubscribe =
        |kind| fixture.store.unsubscribe(fixture.tenant_id.clone(), jane(), kind, Time::default());
    assert!(unsubscribe(NotificationKind::DeliveryDead).await.unwrap());
    assert_eq!(
        fixture.send(&fixture.notification(3, NotificationKind::DeliveryDead)).await,
        MailResult::Sent
    );
    assert_eq!(fixture.send(&fixture.notification(4, NotificationKind::DnsFailing)).await, MailResult::Sent);
    let to: Vec<_> = smtp.wait_for(3).await.into_iter().map(|email| email.to.join(",")).collect();
    assert_eq!(to, ["ops@example.com", "jane@example.com", "ops@example.com"]);
}

#[tokio::test]
async fn emails_use_the_tenant_language() {
    let smtp = Smtp::start(Protection::Plain);
    let german = TenantPreferences { language: Some(Language::De), ..preferences(&[]) };
    let fixture = Fixture::new(&smtp, Protection::Plain, "", german).await;
    assert_eq!(
        fixture.send(&fixture.notification(1, NotificationKind::CircuitOpened)).await,
        MailResult::Sent
    );
    let email = smtp.wait_for(1).await.remove(0);
    assert_eq!(
        email.header("Subject"),
        "Circuit für warehouse.example 3-mal geöffnet: Zustellungen pausieren"
    );
    assert!(email.text.contains("Was zu tun ist: Prüfen Sie die Fehler"), "{}", email.text);
    assert_eq!(email.defects, [""; 0]);
}

#[tokio::test]
async fn smtp_uses_tls_and_login() {
    for protection in [Protection::StartTls, Protection::Tls] {
        let smtp = Smtp::start_with(protection, Some(("me", "pass word")));
        let login = "username = \"me\"\npassword = \"pass word\"";
        let fixture = Fixture::new(&smtp, protection, login, preferences(&[])).await;
        assert_eq!(
            fixture.send(&fixture.notification(1, NotificationKind::DeliveryDead)).await,
            MailResult::Sent,
            "{protection:?}"
        );
        assert!(smtp.wait_for(1).await[0].tls, "{protection:?}");
    }
}

#[tokio::test]
async fn refused_login_and_untrusted_certificate_errors_name_the_setting() {
    let smtp = Smtp::start_with(Protection::StartTls, Some(("me", "right")));
    let login = "username = \"me\"\npassword = \"wrong\"";
    let fixture = Fixture::new(&smtp, Protection::StartTls, login, preferences(&[])).await;
    let MailResult::Transient(why) =
        fixture.send(&fixture.notification(1, NotificationKind::DeliveryDead)).await
    else {
        panic!("the email was sent")
    };
    assert!(
        why.contains("refused the login") && why.contains("check smtp.username and smtp.password"),
        "{why}"
    );
    assert!(!why.contains("wrong"), "{why}");
    // The CA of another server.
    let other = Smtp::start(Protection::StartTls);
    let ca = format!("ca_file = {:?}", other.ca_file().display().to_string());
    let fixture = Fixture::new(&smtp, Protection::StartTls, &ca, preferences(&[])).await;
    let MailResult::Transient(why) =
        fixture.send(&fixture.notification(1, NotificationKind::DeliveryDead)).await
    else {
        panic!("the email was sent")
    };
    assert!(why.contains("no secure connection") && why.contains("smtp.ca_file"), "{why}");
    assert_eq!(smtp.emails().len(), 0);
}

#[tokio::test]
async fn tls_mode_and_host_mismatch_errors_name_the_fix() {
    let plain = Smtp::start(Protection::Plain);
    let mut fixture =
        Fixture::new(&plain, Protection::StartTls, "timeout = \"300ms\"", preferences(&[])).await;
    let why = |result| match result {
        MailResult::Transient(why) => why,
        other => panic!("{other:?}"),
    };
    let message = why(fixture.send(&fixture.notification(1, NotificationKind::DeliveryDead)).await);
    assert!(message.contains("offers no STARTTLS"), "{message}");
    fixture = Fixture::new(&plain, Protection::Tls, "timeout = \"300ms\"", preferences(&[])).await;
    let message = why(fixture.send(&fixture.notification(1, NotificationKind::DeliveryDead)).await);
    assert!(message.contains("smtp.tls"), "{message}");
    let unknown = "host = \"unknown.invalid\"\nallow_plaintext = true";
    fixture = Fixture::new(&plain, Protection::Plain, unknown, preferences(&[])).await;
    let message = why(fixture.send(&fixture.notification(1, NotificationKind::DeliveryDead)).await);
    assert!(message.contains("unknown.invalid") && message.contains("check"), "{message}");
}

#[tokio::test]
async fn transient_failure_is_retried_with_the_same_message_id() {
    let smtp = Smtp::start(Protection::Plain);
    let fixture =
        Fixture::new(&smtp, Protection::Plain, "timeout = \"500ms\"", preferences(&["ops@example.com"]))
            .await;
    let notification = fixture.notification(1, NotificationKind::DeliveryDead);
    let assert_transient = |result: MailResult, text: &str| match result {
        MailResult::Transient(why) => assert!(why.contains(text), "{why}"),
        other => panic!("{other:?}"),
    };
    smtp.reply_with("451 4.3.0 not now");
    assert_transient(fixture.send(&notification).await, "deferred the email");
    smtp.reply_with("hang");
    assert_transient(fixture.send(&notification).await, "did not respond within");
    smtp.reply_with("");
    smtp.stop_listening();
    assert_transient(fixture.send(&notification).await, "cannot be reached");
    smtp.resume_listening();
    smtp.reply_to("ops@example.com", "451 4.3.0 not now");
    assert_transient(fixture.send(&notification).await, "deferred the email");
    // The server prints emails and replies to commands in order, so the email has been read after this command.
    smtp.reply_to("ops@example.com", "");
    assert_eq!(smtp.emails().len(), 1, "one recipient has received it");
    assert_eq!(fixture.send(&notification).await, MailResult::Sent);
    let emails = smtp.wait_for(2).await;
    let to: Vec<_> = emails.iter().map(|email| email.to.join(",")).collect();
    assert_eq!(to, ["jane@example.com", "ops@example.com"], "no recipient received it twice");
    // Send it again, as if the first result had been lost.
    assert_eq!(fixture.send(&notification).await, MailResult::Sent);
    let again = smtp.wait_for(4).await;
    for (first, second) in [(0, 2), (1, 3)] {
        assert_eq!(again[first].header("Message-ID"), again[second].header("Message-ID"));
    }
}

#[tokio::test]
async fn deferred_recipient_does_not_delay_the_others() {
    let smtp = Smtp::start(Protection::Plain);
    let fixture = Fixture::new(&smtp, Protection::Plain, "", preferences(&["ops@example.com"])).await;
    let notification = fixture.notification(1, NotificationKind::DeliveryDead);
    smtp.reply_to("jane@example.com", "452 4.2.2 the sender sees a full mailbox");
    let result = fixture.send(&notification).await;
    assert!(
        matches!(&result, MailResult::Transient(why) if why.starts_with("jane@example.com: ")),
        "{result:?}"
    );
    assert_eq!(smtp.wait_for(1).await[0].to, ["ops@example.com"], "the deferral of jane does not block ops");
    smtp.reply_to("jane@example.com", "");
    assert_eq!(fixture.send(&notification).await, MailResult::Sent);
    assert_eq!(smtp.wait_for(2).await[1].to, ["jane@example.com"]);
}

#[tokio::test]
async fn late_smtp_reply_is_not_attributed_to_another_email() {
    let smtp = Smtp::start(Protection::Plain);
    let fixture = Fixture::new(&smtp, Protection::Plain, "timeout = \"10s\"", preferences(&[])).await;
    // The first email opens a connection that the next one reuses.
    assert_eq!(
        fixture.send(&fixture.notification(1, NotificationKind::DeliveryDead)).await,
        MailResult::Sent
    );
    smtp.reply_with("hang");
    let abandoned = fixture.notification(2, NotificationKind::DeliveryDead);
    assert!(tokio::time::timeout(Duration::from_millis(500), fixture.send(&abandoned)).await.is_err());
    smtp.reply_with("550 5.1.1 no such user");
    let result = fixture.send(&fixture.notification(3, NotificationKind::DeliveryDead)).await;
    assert!(matches!(&result, MailResult::Refused(why) if why.contains("no such user")), "{result:?}");
    smtp.reply_with("");
    assert_eq!(
        fixture.send(&fixture.notification(4, NotificationKind::DeliveryDead)).await,
        MailResult::Sent
    );
    assert_eq!(smtp.wait_for(2).await.len(), 2);
}

#[tokio::test]
async fn permanently_refused_recipient_does_not_affect_the_others() {
    let smtp = Smtp::start(Protection::Plain);
    let fixture = Fixture::new(&smtp, Protection::Plain, "", preferences(&["ops@example.com"])).await;
    smtp.reply_to("jane@example.com", "550 5.1.1 no such user");
    assert_eq!(
        fixture.send(&fixture.notification(1, NotificationKind::DeliveryDead)).await,
        MailResult::Sent
    );
    assert_eq!(smtp.wait_for(1).await[0].to, ["ops@example.com"]);
    smtp.reply_with("550 5.1.1 no such user");
    let result = fixture.send(&fixture.notification(2, NotificationKind::DeliveryDead)).await;
    assert!(
        matches!(&result, MailResult::Refused(why) if why.contains("jane@example.com: ") && why.contains("no such user")),
        "{result:?}"
    );
    smtp.reply_to("jane@example.com", "553 5.7.1 sender address rejected: not owned by user");
    let result = fixture.send(&fixture.notification(3, NotificationKind::DeliveryDead)).await;
    assert!(matches!(&result, MailResult::Transient(why) if why.contains("set smtp.from")), "{result:?}");
}

#[tokio::test]
async fn emails_per_minute_are_limited() {
    let smtp = Smtp::start(Protection::Plain);
    let fixture =
        Fixture::new(&smtp, Protection::Plain, "max_per_minute = 1", preferences(&["ops@example.com"])).await;
    let result = fixture.send(&fixture.notification(1, NotificationKind::DeliveryDead)).await;
    assert!(
        matches!(&result, MailResult::Transient(why) if why.contains("smtp.max_per_minute")),
        "{result:?}"
    );
    assert_eq!(smtp.wait_for(1).await.len(), 1);
}

#[tokio::test]
async fn unconfirmed_address_receives_nothing_unless_its_domain_is_trusted() {
    let smtp = Smtp::start(Protection::Plain);
    let named = ["ops@example.com", "unconfirmed@elsewhere.example", "boss@trusted.example"];
    let trusted = "trusted_domains = [\"trusted.example\"]";
    let fixture = Fixture::new(&smtp, Protection::Plain, trusted, preferences(&named)).await;
    assert_eq!(
        fixture.send(&fixture.notification(1, NotificationKind::DeliveryDead)).await,
        MailResult::Sent
    );
    let to: Vec<_> = smtp.wait_for(3).await.into_iter().map(|email| email.to.join(",")).collect();
    assert_eq!(to, ["jane@example.com", "ops@example.com", "boss@trusted.example"]);
    let unconfirmed =
        TenantPreferences { emails: vec!["unconfirmed@elsewhere.example".into()], ..preferences(&[]) };
    let fixture = Fixture::new(&smtp, Protection::Plain, "", unconfirmed.clone()).await;
    let about_tenant =
        Notification { webhook_id: None, ..fixture.notification(2, NotificationKind::QuotaReached) };
    assert_eq!(fixture.emails.send_notification(&about_tenant, None).await.unwrap(), MailResult::Unconfirmed);
    let off = Fixture::new(&smtp, Protection::Plain, "confirm_addresses = false", unconfirmed).await;
    assert_eq!(off.emails.send_notification(&about_tenant, None).await.unwrap(), MailResult::Sent);
    let emails = smtp.wait_for(4).await;
    assert_eq!((emails.len(), &emails[3].to), (4, &vec!["unconfirmed@elsewhere.example".to_owned()]));
}

#[tokio::test]
async fn notifications_beyond_a_limit_are_suppressed_and_failures_do_not_count() {
    let smtp = Smtp::start(Protection::Plain);
    let limits = "max_per_hour_per_tenant = 3\nmax_per_hour_per_address = 2";
    let fixture = Fixture::new(&smtp, Protection::Plain, limits, preferences(&["ops@example.com"])).await;
    smtp.reply_with("451 4.3.0 not now");
    for _ in 0..5 {
        let result = fixture.send(&fixture.notification(1, NotificationKind::DeliveryDead)).await;
        assert!(matches!(result, MailResult::Transient(_)), "{result:?}");
    }
    smtp.reply_with("");
    assert_eq!(
        fixture.send(&fixture.notification(1, NotificationKind::DeliveryDead)).await,
        MailResult::Sent
    );
    let result = fixture.send(&fixture.notification(2, NotificationKind::DeliveryDead)).await;
    assert!(
        matches!(&result, MailResult::SentToSome(why) if why.contains("max_per_hour_per_tenant")),
        "{result:?}"
    );
    let result = fixture.send(&fixture.notification(3, NotificationKind::DeliveryDead)).await;
    assert!(matches!(&result, MailResult::Suppressed(why) if why.contains("the tenant has")), "{result:?}");
    assert_eq!(smtp.wait_for(3).await.len(), 3);
    // The tenant limit is separate for each tenant; the address limit is shared by all tenants.
    let other = TenantId::parse("globex").unwrap();
    let rules = TenantRules { notifications: preferences(&["jane@example.com"]), ..TenantRules::default() };
    let tenant = Tenant {
        id: other.clone(),
        metadata: Default::default(),
        name: None,
        rules,
        created_at: Time::default(),
    };
    fixture.store.create_tenant(tenant).await.unwrap();
    let jane = "jane@example.com".to_owned();
    fixture.store.confirm_address(other.clone(), jane, ConfirmedBy::Holder, Time::default()).await.unwrap();
    let notification = Notification {
        tenant_id: other,
        webhook_id: None,
        ..fixture.notification(4, NotificationKind::QuotaReached)
    };
    let result = fixture.emails.send_notification(&notification, None).await.unwrap();
    assert!(
        matches!(&result, MailResult::Suppressed(why) if why.contains("max_per_hour_per_address")),
        "{result:?}"
    );
    assert_eq!(smtp.wait_for(3).await.len(), 3);
}
