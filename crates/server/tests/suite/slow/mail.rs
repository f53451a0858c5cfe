//! Mails over a real mail server: who gets them, what is in them, and what its refusals mean.

use std::{path::Path, sync::Arc, time::Duration};

use redrive_core::{
    NoticeId, TenantId, Time, WebhookId,
    notification::{
        Facts, Kind, Notice,
        confirmation::ConfirmedBy,
        preferences::{Language, Notifications},
    },
    tenancy::TenantRules,
    webhook::{Owner, Webhook, WebhookSpec, WebhookState},
};
use redrive_engine::clock::Clock;
use redrive_server::{
    config::{Overrides, Profile, load},
    mail::{Mails, Posted},
};
use redrive_store::{
    Store, Tenant,
    sqlite::{Options, Sqlite},
};
use redrive_testkit::{Protection, Smtp, vault};

const BASE: &str = "https://hooks.example.com";

/// A store with a tenant that wants to hear of everything, and mails over a server.
struct World {
    store: Arc<dyn Store>,
    mails: Mails,
    tenant: TenantId,
    _folder: tempfile::TempDir,
}

impl World {
    async fn new(smtp: &Smtp, protection: Protection, more: &str, wishes: Notifications) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = Sqlite::open(&Options::at(folder.path().join("r.db")).sealed_by(vault())).unwrap();
        let store: Arc<dyn Store> = Arc::new(store);
        let tenant = TenantId::parse("acme").unwrap();
        let rules = TenantRules { notifications: wishes, ..TenantRules::default() };
        let made =
            Tenant { id: tenant.clone(), name: Some("Acme".into()), rules, created_at: Time::default() };
        assert!(store.create_tenant(made).await.unwrap());
        let mails = mails(smtp, protection, more, folder.path(), store.clone());
        let world = Self { store, mails, tenant, _folder: folder };
        for address in ["jane@example.com", "ops@example.com"] {
            world.confirm(address).await;
        }
        world
    }

    async fn confirm(&self, address: &str) {
        let by = ConfirmedBy::Holder;
        self.store.confirm_address(self.tenant.clone(), address.into(), by, Time::default()).await.unwrap();
    }

    async fn post(&self, notice: &Notice) -> Posted {
        self.mails.post(notice, Some(&self.webhook())).await.unwrap()
    }

    fn webhook(&self) -> Webhook {
        let owner =
            Owner { id: None, email: Some("jane@example.com".into()), mute: vec![Kind::CircuitRecovered] };
        let spec = WebhookSpec {
            url: "https://warehouse.example/hush".into(),
            description: Some("orders <b>to</b> the warehouse".into()),
            owner: Some(owner),
            ..WebhookSpec::default()
        };
        Webhook {
            id: WebhookId::from_bytes([2; 16]),
            tenant: self.tenant.clone(),
            spec,
            secrets: Vec::new(),
            state: WebhookState::Active,
            created_at: Time::default(),
            updated_at: Time::default(),
        }
    }

    fn notice(&self, number: u8, kind: Kind) -> Notice {
        Notice {
            id: NoticeId::from_bytes([number; 16]),
            tenant: self.tenant.clone(),
            webhook: Some(WebhookId::from_bytes([2; 16])),
            kind,
            count: 3,
            first_at: Time::parse("2026-11-16T00:00:00Z").unwrap(),
            last_at: Time::parse("2026-11-16T00:10:00Z").unwrap(),
            facts: Facts { reason: Some("exhausted".into()), ..Facts::default() },
        }
    }
}

/// Mails through this server. `more` are lines of the section `[smtp]`.
fn mails(smtp: &Smtp, protection: Protection, more: &str, folder: &Path, store: Arc<dyn Store>) -> Mails {
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
    Mails::new(&config.smtp, base, store, vault(), Clock::system()).unwrap().unwrap()
}

fn wishes(emails: &[&str]) -> Notifications {
    let emails = emails.iter().map(|email| (*email).to_owned()).collect();
    Notifications { emails, mute: vec![Kind::SecretDue], language: None }
}

#[tokio::test]
async fn a_mail_arrives_well_formed_with_the_right_facts_at_each_recipient() {
    let smtp = Smtp::start(Protection::Plain);
    let world = World::new(
        &smtp,
        Protection::Plain,
        "",
        wishes(&["ops@example.com", "JANE@EXAMPLE.COM", "jane@EXAMPLE.com"]),
    )
    .await;
    assert_eq!(world.post(&world.notice(1, Kind::DeliveryDead)).await, Posted::Sent);
    let mails = smtp.wait_for(2).await;
    let to: Vec<_> = mails.iter().map(|mail| mail.to.join(",")).collect();
    assert_eq!(to, ["jane@example.com", "ops@example.com"]);
    let mail = &mails[0];
    assert_eq!(mail.defects, [""; 0]);
    assert_eq!(mail.parts, ["multipart/alternative", "text/plain", "text/html"]);
    assert_eq!(mail.from, "redrive@sender.example");
    assert_eq!(mail.header("Subject"), "3 deliveries to warehouse.example were given up");
    assert_eq!(mail.header("To"), "jane@example.com");
    assert_eq!(mail.header("Auto-Submitted"), "auto-generated");
    assert!(mail.header("Message-ID").starts_with("<ntc_01010101010101010101010101010101."));
    assert!(mail.header("Message-ID").ends_with("@sender.example>"));
    assert_ne!(mail.header("Message-ID"), mails[1].header("Message-ID"), "one mail for each");
    let said =
        "3 deliveries to warehouse[.]example died between 2026-11-16 00:00 UTC and 2026-11-16 00:10 UTC";
    assert!(mail.text.starts_with(said), "{}", mail.text);
    assert!(mail.text.contains("Reason: every attempt failed") && mail.text.contains("Tenant: Acme"));
    assert!(mail.html.contains("orders &#60;b&#62;to&#60;/b&#62; the warehouse"), "{}", mail.html);
    assert!(!mail.text.contains("hush") && !mail.html.contains("hush"), "a URL may be a secret");
    let link = mail.header("List-Unsubscribe").trim_matches(['<', '>']).to_owned();
    assert!(link.starts_with(&format!("{BASE}/unsubscribe/")) && mail.text.contains(&link), "{link}");
    assert_eq!(mail.header("List-Unsubscribe-Post"), "List-Unsubscribe=One-Click");
}

#[tokio::test]
async fn muted_and_unsubscribed_kinds_do_not_arrive() {
    let smtp = Smtp::start(Protection::Plain);
    let world = World::new(&smtp, Protection::Plain, "", wishes(&["ops@example.com"])).await;
    assert_eq!(world.post(&world.notice(1, Kind::SecretDue)).await, Posted::Nobody, "the tenant's choice");
    assert_eq!(world.post(&world.notice(2, Kind::CircuitRecovered)).await, Posted::Nobody, "the owner's");
    let jane = || "jane@example.com".to_owned();
    let unsubscribe = |kind| world.store.unsubscribe(world.tenant.clone(), jane(), kind, Time::default());
    assert!(unsubscribe(Kind::DeliveryDead).await.unwrap());
    assert_eq!(world.post(&world.notice(3, Kind::DeliveryDead)).await, Posted::Sent);
    assert_eq!(world.post(&world.notice(4, Kind::DnsFailing)).await, Posted::Sent);
    let to: Vec<_> = smtp.wait_for(3).await.into_iter().map(|mail| mail.to.join(",")).collect();
    assert_eq!(to, ["ops@example.com", "jane@example.com", "ops@example.com"]);
}

#[tokio::test]
async fn mails_are_in_the_language_of_the_tenant() {
    let smtp = Smtp::start(Protection::Plain);
    let german = Notifications { language: Some(Language::De), ..wishes(&[]) };
    let world = World::new(&smtp, Protection::Plain, "", german).await;
    assert_eq!(world.post(&world.notice(1, Kind::CircuitOpened)).await, Posted::Sent);
    let mail = smtp.wait_for(1).await.remove(0);
    assert_eq!(mail.header("Subject"), "Anfragen an warehouse.example wurden 3-mal angehalten");
    assert!(mail.text.contains("Was zu tun ist: Sehen Sie sich die Fehler an"), "{}", mail.text);
    assert_eq!(mail.defects, [""; 0]);
}

#[tokio::test]
async fn the_way_is_protected_and_the_login_is_made() {
    for protection in [Protection::StartTls, Protection::Tls] {
        let smtp = Smtp::start_with(protection, Some(("me", "pass word")));
        let login = "username = \"me\"\npassword = \"pass word\"";
        let world = World::new(&smtp, protection, login, wishes(&[])).await;
        assert_eq!(world.post(&world.notice(1, Kind::DeliveryDead)).await, Posted::Sent, "{protection:?}");
        assert!(smtp.wait_for(1).await[0].tls, "{protection:?}");
    }
}

#[tokio::test]
async fn a_refused_login_and_a_foreign_certificate_say_what_to_do() {
    let smtp = Smtp::start_with(Protection::StartTls, Some(("me", "right")));
    let login = "username = \"me\"\npassword = \"wrong\"";
    let world = World::new(&smtp, Protection::StartTls, login, wishes(&[])).await;
    let Posted::Later(why) = world.post(&world.notice(1, Kind::DeliveryDead)).await else { panic!("sent") };
    assert!(
        why.contains("refused the login") && why.contains("check smtp.username and smtp.password"),
        "{why}"
    );
    assert!(!why.contains("wrong"), "{why}");
    // Another server's authority.
    let other = Smtp::start(Protection::StartTls);
    let ca = format!("ca_file = {:?}", other.ca_file().display().to_string());
    let world = World::new(&smtp, Protection::StartTls, &ca, wishes(&[])).await;
    let Posted::Later(why) = world.post(&world.notice(1, Kind::DeliveryDead)).await else { panic!("sent") };
    assert!(why.contains("no secure connection") && why.contains("smtp.ca_file"), "{why}");
    assert_eq!(smtp.mails().len(), 0);
}

#[tokio::test]
async fn what_does_not_fit_the_port_says_what_to_do() {
    let plain = Smtp::start(Protection::Plain);
    let mut world = World::new(&plain, Protection::StartTls, "timeout = \"300ms\"", wishes(&[])).await;
    let why = |posted| match posted {
        Posted::Later(why) => why,
        other => panic!("{other:?}"),
    };
    let said = why(world.post(&world.notice(1, Kind::DeliveryDead)).await);
    assert!(said.contains("offers no STARTTLS"), "{said}");
    world = World::new(&plain, Protection::Tls, "timeout = \"300ms\"", wishes(&[])).await;
    let said = why(world.post(&world.notice(1, Kind::DeliveryDead)).await);
    assert!(said.contains("smtp.tls"), "{said}");
    let nobody = "host = \"nobody.invalid\"\nallow_plaintext = true";
    world = World::new(&plain, Protection::Plain, nobody, wishes(&[])).await;
    let said = why(world.post(&world.notice(1, Kind::DeliveryDead)).await);
    assert!(said.contains("nobody.invalid") && said.contains("check"), "{said}");
}

#[tokio::test]
async fn what_fails_for_now_arrives_later_under_the_same_id() {
    let smtp = Smtp::start(Protection::Plain);
    let world =
        World::new(&smtp, Protection::Plain, "timeout = \"500ms\"", wishes(&["ops@example.com"])).await;
    let notice = world.notice(1, Kind::DeliveryDead);
    let is_later = |posted: Posted, words: &str| match posted {
        Posted::Later(why) => assert!(why.contains(words), "{why}"),
        other => panic!("{other:?}"),
    };
    smtp.answer_with("451 4.3.0 not now");
    is_later(world.post(&notice).await, "cannot take it now");
    smtp.answer_with("hang");
    is_later(world.post(&notice).await, "did not answer within");
    smtp.answer_with("");
    smtp.go_down();
    is_later(world.post(&notice).await, "cannot be reached");
    smtp.come_back();
    smtp.answer_to("ops@example.com", "451 4.3.0 not now");
    is_later(world.post(&notice).await, "cannot take it now");
    assert_eq!(smtp.mails().len(), 1, "one of them has it");
    smtp.answer_to("ops@example.com", "");
    assert_eq!(world.post(&notice).await, Posted::Sent);
    let mails = smtp.wait_for(2).await;
    let to: Vec<_> = mails.iter().map(|mail| mail.to.join(",")).collect();
    assert_eq!(to, ["jane@example.com", "ops@example.com"], "nobody got it twice");
    // As if it were not known whether it was sent.
    assert_eq!(world.post(&notice).await, Posted::Sent);
    let again = smtp.wait_for(4).await;
    for (first, second) in [(0, 2), (1, 3)] {
        assert_eq!(again[first].header("Message-ID"), again[second].header("Message-ID"));
    }
}

#[tokio::test]
async fn a_recipient_that_has_to_wait_keeps_nobody_else_waiting() {
    let smtp = Smtp::start(Protection::Plain);
    let world = World::new(&smtp, Protection::Plain, "", wishes(&["ops@example.com"])).await;
    let notice = world.notice(1, Kind::DeliveryDead);
    smtp.answer_to("jane@example.com", "452 4.2.2 the sender sees a full mailbox");
    let posted = world.post(&notice).await;
    assert!(matches!(&posted, Posted::Later(why) if why.starts_with("jane@example.com: ")), "{posted:?}");
    assert_eq!(smtp.wait_for(1).await[0].to, ["ops@example.com"], "jane is the first of the two");
    smtp.answer_to("jane@example.com", "");
    assert_eq!(world.post(&notice).await, Posted::Sent);
    assert_eq!(smtp.wait_for(2).await[1].to, ["jane@example.com"]);
}

#[tokio::test]
async fn an_answer_that_nobody_waits_for_is_not_taken_for_that_to_another_mail() {
    let smtp = Smtp::start(Protection::Plain);
    let world = World::new(&smtp, Protection::Plain, "timeout = \"10s\"", wishes(&[])).await;
    // A first mail, so that there is a connection to use again.
    assert_eq!(world.post(&world.notice(1, Kind::DeliveryDead)).await, Posted::Sent);
    smtp.answer_with("hang");
    let cut_off = world.notice(2, Kind::DeliveryDead);
    assert!(tokio::time::timeout(Duration::from_millis(500), world.post(&cut_off)).await.is_err());
    smtp.answer_with("550 5.1.1 no such user");
    let posted = world.post(&world.notice(3, Kind::DeliveryDead)).await;
    assert!(matches!(&posted, Posted::Refused(why) if why.contains("no such user")), "{posted:?}");
    smtp.answer_with("");
    assert_eq!(world.post(&world.notice(4, Kind::DeliveryDead)).await, Posted::Sent);
    assert_eq!(smtp.wait_for(2).await.len(), 2);
}

#[tokio::test]
async fn a_recipient_that_is_refused_for_good_is_given_up_and_the_others_are_not() {
    let smtp = Smtp::start(Protection::Plain);
    let world = World::new(&smtp, Protection::Plain, "", wishes(&["ops@example.com"])).await;
    smtp.answer_to("jane@example.com", "550 5.1.1 no such user");
    assert_eq!(world.post(&world.notice(1, Kind::DeliveryDead)).await, Posted::Sent);
    assert_eq!(smtp.wait_for(1).await[0].to, ["ops@example.com"]);
    smtp.answer_with("550 5.1.1 no such user");
    let posted = world.post(&world.notice(2, Kind::DeliveryDead)).await;
    assert!(
        matches!(&posted, Posted::Refused(why) if why.contains("jane@example.com: ") && why.contains("no such user")),
        "{posted:?}"
    );
    smtp.answer_to("jane@example.com", "553 5.7.1 sender address rejected: not owned by user");
    let posted = world.post(&world.notice(3, Kind::DeliveryDead)).await;
    assert!(matches!(&posted, Posted::Later(why) if why.contains("set smtp.from")), "{posted:?}");
}

#[tokio::test]
async fn no_more_go_out_in_a_minute_than_allowed() {
    let smtp = Smtp::start(Protection::Plain);
    let world =
        World::new(&smtp, Protection::Plain, "max_per_minute = 1", wishes(&["ops@example.com"])).await;
    let posted = world.post(&world.notice(1, Kind::DeliveryDead)).await;
    assert!(matches!(&posted, Posted::Later(why) if why.contains("smtp.max_per_minute")), "{posted:?}");
    assert_eq!(smtp.wait_for(1).await.len(), 1);
}

#[tokio::test]
async fn unconfirmed_address_receives_nothing_unless_its_domain_is_trusted() {
    let smtp = Smtp::start(Protection::Plain);
    let named = ["ops@example.com", "stranger@elsewhere.example", "boss@trusted.example"];
    let trusted = "trusted_domains = [\"trusted.example\"]";
    let world = World::new(&smtp, Protection::Plain, trusted, wishes(&named)).await;
    assert_eq!(world.post(&world.notice(1, Kind::DeliveryDead)).await, Posted::Sent);
    let to: Vec<_> = smtp.wait_for(3).await.into_iter().map(|mail| mail.to.join(",")).collect();
    assert_eq!(to, ["jane@example.com", "ops@example.com", "boss@trusted.example"]);
    let strangers = Notifications { emails: vec!["stranger@elsewhere.example".into()], ..wishes(&[]) };
    let world = World::new(&smtp, Protection::Plain, "", strangers.clone()).await;
    let about_tenant = Notice { webhook: None, ..world.notice(2, Kind::QuotaReached) };
    assert_eq!(world.mails.post(&about_tenant, None).await.unwrap(), Posted::Unconfirmed);
    let off = World::new(&smtp, Protection::Plain, "confirm_addresses = false", strangers).await;
    assert_eq!(off.mails.post(&about_tenant, None).await.unwrap(), Posted::Sent);
    let mails = smtp.wait_for(4).await;
    assert_eq!((mails.len(), &mails[3].to), (4, &vec!["stranger@elsewhere.example".to_owned()]));
}

#[tokio::test]
async fn notifications_beyond_a_limit_are_suppressed_and_failures_do_not_count() {
    let smtp = Smtp::start(Protection::Plain);
    let limits = "max_per_hour_per_tenant = 3\nmax_per_hour_per_address = 2";
    let world = World::new(&smtp, Protection::Plain, limits, wishes(&["ops@example.com"])).await;
    smtp.answer_with("451 4.3.0 not now");
    for _ in 0..5 {
        let posted = world.post(&world.notice(1, Kind::DeliveryDead)).await;
        assert!(matches!(posted, Posted::Later(_)), "{posted:?}");
    }
    smtp.answer_with("");
    assert_eq!(world.post(&world.notice(1, Kind::DeliveryDead)).await, Posted::Sent);
    let posted = world.post(&world.notice(2, Kind::DeliveryDead)).await;
    assert!(
        matches!(&posted, Posted::SentToSome(why) if why.contains("max_per_hour_per_tenant")),
        "{posted:?}"
    );
    let posted = world.post(&world.notice(3, Kind::DeliveryDead)).await;
    assert!(matches!(&posted, Posted::Suppressed(why) if why.contains("the tenant has")), "{posted:?}");
    assert_eq!(smtp.mails().len(), 3);
    // Another tenant has a limit of its own; that of the address is for all.
    let other = TenantId::parse("globex").unwrap();
    let rules = TenantRules { notifications: wishes(&["jane@example.com"]), ..TenantRules::default() };
    let tenant = Tenant { id: other.clone(), name: None, rules, created_at: Time::default() };
    world.store.create_tenant(tenant).await.unwrap();
    let jane = "jane@example.com".to_owned();
    world.store.confirm_address(other.clone(), jane, ConfirmedBy::Holder, Time::default()).await.unwrap();
    let notice = Notice { tenant: other, webhook: None, ..world.notice(4, Kind::QuotaReached) };
    let posted = world.mails.post(&notice, None).await.unwrap();
    assert!(
        matches!(&posted, Posted::Suppressed(why) if why.contains("max_per_hour_per_address")),
        "{posted:?}"
    );
    assert_eq!(smtp.mails().len(), 3);
}
