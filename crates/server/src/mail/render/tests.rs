//! Every kind, in every language, as it is read.

use proptest::prelude::*;
use redrive_core::{DeliveryId, NoticeId, notification::Facts};

use super::*;

fn notice(kind: Kind, count: u64) -> Notice {
    Notice {
        id: NoticeId::from_bytes([1; 16]),
        tenant: TenantId::parse("acme").unwrap(),
        webhook: (kind != Kind::QuotaReached).then(|| WebhookId::from_bytes([2; 16])),
        kind,
        count,
        first_at: Time::parse("2026-11-15T23:59:59.999Z").unwrap(),
        last_at: Time::parse("2026-11-16T00:10:00Z").unwrap(),
        facts: Facts::default(),
    }
}

fn about() -> About {
    About {
        tenant: TenantId::parse("acme").unwrap(),
        tenant_name: Some("Acme Inc.".into()),
        webhook: Some(AboutWebhook {
            id: WebhookId::from_bytes([2; 16]),
            description: Some("orders to the warehouse".into()),
            host: "warehouse.example".into(),
        }),
        base: Some("https://hooks.example.com".into()),
        address: "jane@example.com".into(),
        unsubscribe: Some("https://hooks.example.com/unsubscribe/TOKEN".into()),
    }
}

#[test]
fn a_dead_delivery_reads_like_this() {
    let mut notice = notice(Kind::DeliveryDead, 1);
    notice.facts = Facts {
        reason: Some("exhausted".into()),
        message: Some("the endpoint answered 500".into()),
        delivery: Some(DeliveryId::from_bytes([3; 16])),
        event_type: Some("order.created".into()),
        until: None,
    };
    let mail = render(&notice, &about(), Language::En).unwrap();
    assert_eq!(mail.subject, "A delivery to warehouse.example was given up");
    assert_eq!(
        mail.text,
        "A delivery to warehouse[.]example died at 2026-11-16 00:10 UTC: it is not tried again by itself, and kept \
         among the dead letters.\n\n\
         Webhook: warehouse[.]example (wh_02020202020202020202020202020202)\n\
         Description: orders to the warehouse\n\
         Tenant: Acme Inc. (acme)\n\
         Reason: every attempt failed\n\
         Details: the endpoint answered 500\n\
         When: 2026-11-16 00:10 UTC\n\
         Event type of the last: order[.]created\n\
         Delivery, the last: dlv_03030303030303030303030303030303\n\n\
         What to do: Find out why the endpoint did not take them, repair it, and retry the dead letters before they are \
         forgotten.\n\n\
         Open it in the dashboard: \
         https://hooks.example.com/dashboard/t/acme/dead?webhook_id=wh_02020202020202020202020202020202\n\n\
         -- \n\
         You receive this because jane@example.com is set to receive notifications about acme. It was sent by a program; \
         replies are not read.\n\
         No more mails about deliveries that were given up: https://hooks.example.com/unsubscribe/TOKEN"
    );
}

#[test]
fn many_are_counted_in_the_language_of_the_reader() {
    let notice = notice(Kind::DeliveryDead, 9_999);
    let english = render(&notice, &about(), Language::En).unwrap();
    assert_eq!(english.subject, "9,999 deliveries to warehouse.example were given up");
    let said =
        "9,999 deliveries to warehouse[.]example died between 2026-11-15 23:59 UTC and 2026-11-16 00:10 UTC";
    assert!(english.text.starts_with(said), "{}", english.text);
    let german = render(&notice, &about(), Language::De).unwrap();
    assert_eq!(german.subject, "9.999 Zustellungen an warehouse.example wurden aufgegeben");
    let said = "9.999 Zustellungen an warehouse[.]example sind zwischen 2026-11-15 23:59 UTC und \
                2026-11-16 00:10 UTC endgültig gescheitert";
    assert!(german.text.starts_with(said), "{}", german.text);
    assert!(german.html.contains("<html lang=\"de\">"));
}

#[test]
fn every_kind_has_its_subject() {
    let subject = |kind, count, language| render(&notice(kind, count), &about(), language).unwrap().subject;
    let webhook = "warehouse.example";
    let expected = [
        (Kind::CircuitOpened, format!("Requests to {webhook} are on hold")),
        (Kind::CircuitRecovered, format!("{webhook} works again")),
        (Kind::WebhookDisabled, format!("{webhook} was disabled")),
        (Kind::DeliveryDead, format!("A delivery to {webhook} was given up")),
        (Kind::DnsFailing, format!("The host name of {webhook} cannot be looked up")),
        (Kind::SecretDue, format!("The secret of {webhook} should be changed")),
        (Kind::QuotaReached, "A quota of acme is used up".to_owned()),
    ];
    assert_eq!(expected.len(), Kind::ALL.len());
    for (kind, said) in expected {
        assert_eq!(subject(kind, 1, Language::En), said);
        for language in Language::ALL {
            assert!(subject(kind, 12, language).contains("12"), "{kind:?}");
        }
    }
}

#[test]
fn every_mail_says_what_happened_what_to_do_and_how_to_end_it() {
    for kind in Kind::ALL {
        for language in Language::ALL {
            let words = Words::of(language);
            let mail = render(&notice(kind, 2), &about(), language).unwrap();
            for text in [&mail.text, &mail.html] {
                assert!(text.contains("2026-11-16 00:10 UTC"), "{text}");
                assert!(text.contains(words.what_to_do) && text.contains(words.open), "{text}");
                assert!(text.contains("https://hooks.example.com/dashboard/t/acme"), "{text}");
                assert!(text.contains("https://hooks.example.com/unsubscribe/TOKEN"), "{text}");
                assert!(!text.contains("{"), "a gap was left: {text}");
            }
            // Nothing is fetched from anywhere, and both colour schemes are readable.
            assert!(!mail.html.contains("src=") && !mail.html.contains("url("), "{}", mail.html);
            assert!(!mail.html.contains("<link") && !mail.html.contains("<script"), "{}", mail.html);
            assert!(mail.html.contains("content=\"light dark\""));
        }
    }
}

#[test]
fn without_a_base_there_are_no_links_and_a_way_to_end_it_all_the_same() {
    let about = About { base: None, unsubscribe: None, webhook: None, ..about() };
    let mail = render(&notice(Kind::SecretDue, 1), &about, Language::En).unwrap();
    assert!(!mail.text.contains("http") && !mail.html.contains("href"), "{}", mail.text);
    assert!(mail.text.contains("ask the administrator of acme to mute them"), "{}", mail.text);
    assert_eq!(mail.subject, "The secret of wh_02020202020202020202020202020202 should be changed");
}

#[test]
fn what_stands_behind_a_host_is_not_told() {
    let spec = redrive_core::webhook::WebhookSpec {
        url: "https://hooks.chat.example/services/T0/B0/hush-hush?token=hush".into(),
        ..Default::default()
    };
    let webhook = Webhook {
        id: WebhookId::from_bytes([2; 16]),
        tenant: TenantId::default(),
        spec,
        secrets: Vec::new(),
        state: redrive_core::webhook::WebhookState::Active,
        created_at: Time::default(),
        updated_at: Time::default(),
    };
    let about = About { webhook: Some(AboutWebhook::of(&webhook)), ..about() };
    let mail = render(&notice(Kind::DnsFailing, 1), &about, Language::En).unwrap();
    assert!(mail.subject.contains("hooks.chat.example"));
    assert!(!format!("{mail:?}").contains("hush"), "{mail:?}");
}

#[test]
fn text_of_tenants_is_never_in_a_subject_nor_a_link() {
    let evil =
        "<img src=x onerror=alert(1)>\r\nBcc: evil@example.com\u{202e}{count}\"' https://evil.example/win";
    let mut about = about();
    about.tenant_name = Some(evil.into());
    if let Some(webhook) = &mut about.webhook {
        webhook.description = Some(evil.into());
        webhook.host = evil.into();
    }
    for kind in Kind::ALL {
        for language in Language::ALL {
            let mut notice = notice(kind, 3);
            notice.facts.message = Some(evil.into());
            notice.facts.reason = Some(evil.into());
            notice.facts.event_type = Some(evil.into());
            let mail = render(&notice, &about, language).unwrap();
            assert!(!mail.html.contains("<img") && mail.html.contains("&#60;img"), "{}", mail.html);
            assert!(!mail.text.lines().any(|line| line.starts_with("Bcc")), "{}", mail.text);
            for part in ["evil", "img", "Bcc", "\u{202e}", "\r", "\n", "{"] {
                assert!(!mail.subject.contains(part), "{:?}", mail.subject);
            }
            for text in [&mail.text, &mail.html] {
                for link in ["https://evil", "evil.example", "evil@", "\u{202e}"] {
                    assert!(!text.contains(link), "{text}");
                }
                assert!(text.contains("https[:]//evil[.]example/win"), "{text}");
            }
        }
    }
}

#[test]
fn confirmation_has_fixed_words_and_one_link() {
    let tenant = TenantId::parse("acme").unwrap();
    let (base, link) =
        ("https://hooks.example.com/redrive", "https://hooks.example.com/redrive/confirm/TOKEN");
    let english = render_confirmation(&tenant, base, link, Language::En).unwrap();
    assert_eq!(english.subject, "Confirm this address for notifications from hooks.example.com");
    assert_eq!(
        english.text,
        "The account acme at hooks.example.com asks to send notifications about its webhooks to this address.\n\n\
         hooks.example.com runs Redrive, which delivers webhooks (messages from one program to another) and writes to \
         the people who look after them when deliveries fail.\n\n\
         If you want these e-mails, open the link and press the button on the page. The link works for 7 days.\n\n\
         Confirm this address: https://hooks.example.com/redrive/confirm/TOKEN\n\n\
         If you did not expect this e-mail, ignore it: without your confirmation no notifications are sent."
    );
    let german = render_confirmation(&tenant, base, link, Language::De).unwrap();
    assert_eq!(german.subject, "Bestätigen Sie diese Adresse für Nachrichten von hooks.example.com");
    for mail in [english, german] {
        assert_eq!((mail.text.matches(link).count(), mail.html.matches("href=").count()), (1, 1));
        assert!(!mail.html.contains("src=") && !mail.html.contains("url("), "{}", mail.html);
        assert!(!mail.text.contains('{') && mail.text.contains("acme"), "{}", mail.text);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn no_text_makes_a_tag_or_a_line(text in prop_oneof!["\\PC{0,120}", "[<>&\"'{}a-z/=\r\n ]{0,60}", any::<String>()]) {
        let mut about = about();
        about.tenant_name = Some(text.clone());
        if let Some(webhook) = &mut about.webhook {
            webhook.description = Some(text.clone());
        }
        let mut notice = notice(Kind::DeliveryDead, 2);
        notice.facts.message = Some(text);
        let mail = render(&notice, &about, Language::En).unwrap();
        prop_assert!(!mail.subject.chars().any(char::is_control));
        let tags = |html: &str| html.matches('<').count();
        let about = self::about();
        notice.facts.message = Some("plain".into());
        let plain = render(&notice, &about, Language::En).unwrap();
        // A description or a message that is empty says nothing; all others leave the page as it is.
        prop_assert!(tags(&mail.html) <= tags(&plain.html), "{}", mail.html);
    }
}
