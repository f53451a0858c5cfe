//! Tests of the rendered emails, for every kind and language.

use proptest::prelude::*;
use redrive_core::{DeliveryId, NotificationId, notification::OccurrenceDetails};

use super::*;

fn notification(kind: NotificationKind, count: u64) -> Notification {
    Notification {
        id: NotificationId::from_bytes([1; 16]),
        tenant_id: TenantId::parse("acme").unwrap(),
        webhook_id: (kind != NotificationKind::QuotaReached).then(|| WebhookId::from_bytes([2; 16])),
        kind,
        count,
        first_at: Time::parse("2026-11-15T23:59:59.999Z").unwrap(),
        last_at: Time::parse("2026-11-16T00:10:00Z").unwrap(),
        details: OccurrenceDetails::default(),
    }
}

fn about() -> MailContext {
    MailContext {
        tenant_id: TenantId::parse("acme").unwrap(),
        tenant_name: Some("Acme Inc.".into()),
        webhook: Some(WebhookLabel {
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
fn dead_delivery_email_has_expected_text() {
    let mut notification = notification(NotificationKind::DeliveryDead, 1);
    notification.details = OccurrenceDetails {
        reason: Some("exhausted".into()),
        message: Some("the endpoint returned 500".into()),
        delivery_id: Some(DeliveryId::from_bytes([3; 16])),
        event_type: Some("order.created".into()),
        ..OccurrenceDetails::default()
    };
    let email = render(&notification, &about(), Language::En).unwrap();
    assert_eq!(email.subject, "A delivery to warehouse.example is dead");
    assert_eq!(
        email.text,
        "A delivery to warehouse[.]example was marked dead at 2026-11-16 00:10 UTC: it is not retried automatically, \
         and is kept as a dead letter.\n\n\
         Webhook: warehouse[.]example (wh_02020202020202020202020202020202)\n\
         Description: orders to the warehouse\n\
         Tenant: Acme Inc. (acme)\n\
         Reason: every attempt failed\n\
         Details: the endpoint returned 500\n\
         Time: 2026-11-16 00:10 UTC\n\
         Last event type: order[.]created\n\
         Last delivery: dlv_03030303030303030303030303030303\n\n\
         What to do: Find out why the endpoint did not accept them, fix it, and resend the dead letters before \
         their retention ends.\n\n\
         Open in the dashboard: \
         https://hooks.example.com/dashboard/t/acme/dead?webhook_id=wh_02020202020202020202020202020202\n\n\
         -- \n\
         You receive this because jane@example.com is set to receive notifications about acme. This is an \
         automated message; replies are not monitored.\n\
         Unsubscribe from dead deliveries: https://hooks.example.com/unsubscribe/TOKEN"
    );
}

#[test]
fn grouped_occurrences_use_plural_and_number_format_of_language() {
    let notification = notification(NotificationKind::DeliveryDead, 9_999);
    let english = render(&notification, &about(), Language::En).unwrap();
    assert_eq!(english.subject, "9,999 deliveries to warehouse.example are dead");
    let message = "9,999 deliveries to warehouse[.]example were marked dead between 2026-11-15 23:59 UTC and 2026-11-16 00:10 UTC";
    assert!(english.text.starts_with(message), "{}", english.text);
    let german = render(&notification, &about(), Language::De).unwrap();
    assert_eq!(german.subject, "9.999 Zustellungen an warehouse.example sind endgültig fehlgeschlagen");
    let message = "9.999 Zustellungen an warehouse[.]example sind zwischen 2026-11-15 23:59 UTC und \
                2026-11-16 00:10 UTC endgültig fehlgeschlagen";
    assert!(german.text.starts_with(message), "{}", german.text);
    assert!(german.html.contains("<html lang=\"de\">"));
}

#[test]
fn every_kind_has_expected_subject() {
    let subject =
        |kind, count, language| render(&notification(kind, count), &about(), language).unwrap().subject;
    let webhook = "warehouse.example";
    let expected = [
        (NotificationKind::CircuitOpened, format!("Circuit opened for {webhook}: deliveries are paused")),
        (NotificationKind::CircuitRecovered, format!("{webhook} has recovered")),
        (NotificationKind::WebhookDisabled, format!("{webhook} was disabled")),
        (NotificationKind::DeliveryDead, format!("A delivery to {webhook} is dead")),
        (NotificationKind::DnsFailing, format!("DNS resolution is failing for {webhook}")),
        (NotificationKind::SecretRotationDue, format!("Rotate the signing secret of {webhook}")),
        (NotificationKind::QuotaReached, "Quota reached: acme".to_owned()),
        (NotificationKind::WebhookFailing, format!("All deliveries to {webhook} are failing")),
        (NotificationKind::WebhookRecovered, format!("{webhook} accepts deliveries again")),
    ];
    assert_eq!(expected.len(), NotificationKind::ALL.len());
    for (kind, message) in expected {
        assert_eq!(subject(kind, 1, Language::En), message);
        for language in Language::ALL {
            assert!(subject(kind, 12, language).contains("12"), "{kind:?}");
        }
    }
}

#[test]
fn every_email_has_time_advice_and_unsubscribe_link() {
    for kind in NotificationKind::ALL {
        for language in Language::ALL {
            let texts = MailTexts::for_language(language);
            let email = render(&notification(kind, 2), &about(), language).unwrap();
            for text in [&email.text, &email.html] {
                assert!(text.contains("2026-11-16 00:10 UTC"), "{text}");
                assert!(text.contains(texts.what_to_do) && text.contains(texts.open), "{text}");
                assert!(text.contains("https://hooks.example.com/dashboard/t/acme"), "{text}");
                assert!(text.contains("https://hooks.example.com/unsubscribe/TOKEN"), "{text}");
                assert!(!text.contains("{"), "a placeholder was not filled: {text}");
            }
            // No external resources are loaded, and light and dark color schemes are supported.
            assert!(!email.html.contains("src=") && !email.html.contains("url("), "{}", email.html);
            assert!(!email.html.contains("<link") && !email.html.contains("<script"), "{}", email.html);
            assert!(email.html.contains("content=\"light dark\""));
        }
    }
}

#[test]
fn email_without_base_url_has_no_links_but_opt_out_text() {
    let about = MailContext { base: None, unsubscribe: None, webhook: None, ..about() };
    let email = render(&notification(NotificationKind::SecretRotationDue, 1), &about, Language::En).unwrap();
    assert!(!email.text.contains("http") && !email.html.contains("href"), "{}", email.text);
    assert!(email.text.contains("ask the administrator of acme to mute them"), "{}", email.text);
    assert_eq!(email.subject, "Rotate the signing secret of wh_02020202020202020202020202020202");
}

#[test]
fn path_and_query_of_webhook_url_are_not_shown() {
    let spec = redrive_core::webhook::WebhookSpec {
        url: "https://hooks.chat.example/services/T0/B0/hush-hush?token=hush".into(),
        ..Default::default()
    };
    let webhook = Webhook {
        id: WebhookId::from_bytes([2; 16]),
        tenant_id: TenantId::default(),
        spec,
        secrets: Vec::new(),
        state: redrive_core::webhook::WebhookState::Active,
        created_at: Time::default(),
        updated_at: Time::default(),
    };
    let about = MailContext { webhook: Some(WebhookLabel::from_webhook(&webhook)), ..about() };
    let email = render(&notification(NotificationKind::DnsFailing, 1), &about, Language::En).unwrap();
    assert!(email.subject.contains("hooks.chat.example"));
    assert!(!format!("{email:?}").contains("hush"), "{email:?}");
}

#[test]
fn tenant_text_is_never_in_subject_or_link() {
    let evil =
        "<img src=x onerror=alert(1)>\r\nBcc: evil@example.com\u{202e}{count}\"' https://evil.example/win";
    let mut about = about();
    about.tenant_name = Some(evil.into());
    if let Some(webhook) = &mut about.webhook {
        webhook.description = Some(evil.into());
        webhook.host = evil.into();
    }
    for kind in NotificationKind::ALL {
        for language in Language::ALL {
            let mut notification = notification(kind, 3);
            notification.details.message = Some(evil.into());
            notification.details.reason = Some(evil.into());
            notification.details.event_type = Some(evil.into());
            let email = render(&notification, &about, language).unwrap();
            assert!(!email.html.contains("<img") && email.html.contains("&#60;img"), "{}", email.html);
            assert!(!email.text.lines().any(|line| line.starts_with("Bcc")), "{}", email.text);
            for part in ["evil", "img", "Bcc", "\u{202e}", "\r", "\n", "{"] {
                assert!(!email.subject.contains(part), "{:?}", email.subject);
            }
            for text in [&email.text, &email.html] {
                for link in ["https://evil", "evil.example", "evil@", "\u{202e}"] {
                    assert!(!text.contains(link), "{text}");
                }
                assert!(text.contains("https[:]//evil[.]example/win"), "{text}");
            }
        }
    }
}

#[test]
fn confirmation_email_has_fixed_text_and_one_link() {
    let tenant_id = TenantId::parse("acme").unwrap();
    let (base, link) =
        ("https://hooks.example.com/redrive", "https://hooks.example.com/redrive/confirm/TOKEN");
    let english = render_confirmation(&tenant_id, base, link, Language::En).unwrap();
    assert_eq!(english.subject, "Confirm this address for notifications from hooks.example.com");
    assert_eq!(
        english.text,
        "The account acme at hooks.example.com asks to send notifications about its webhooks to this address.\n\n\
         hooks.example.com runs Redrive, which delivers webhooks (messages from one program to another) and notifies \
         their owners when deliveries fail.\n\n\
         If you want these emails, open the link and press the button on the page. The link works for 7 days.\n\n\
         Confirm this address: https://hooks.example.com/redrive/confirm/TOKEN\n\n\
         If you did not expect this email, ignore it: without your confirmation no notifications are sent."
    );
    let german = render_confirmation(&tenant_id, base, link, Language::De).unwrap();
    assert_eq!(german.subject, "Bestätigen Sie diese Adresse für Benachrichtigungen von hooks.example.com");
    for email in [english, german] {
        assert_eq!((email.text.matches(link).count(), email.html.matches("href=").count()), (1, 1));
        assert!(!email.html.contains("src=") && !email.html.contains("url("), "{}", email.html);
        assert!(!email.text.contains('{') && email.text.contains("acme"), "{}", email.text);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn arbitrary_text_adds_no_tags_or_subject_lines(text in prop_oneof!["\\PC{0,120}", "[<>&\"'{}a-z/=\r\n ]{0,60}", any::<String>()]) {
        let mut about = about();
        about.tenant_name = Some(text.clone());
        if let Some(webhook) = &mut about.webhook {
            webhook.description = Some(text.clone());
        }
        let mut notification = notification(NotificationKind::DeliveryDead, 2);
        notification.details.message = Some(text);
        let email = render(&notification, &about, Language::En).unwrap();
        prop_assert!(!email.subject.chars().any(char::is_control));
        let tags = |html: &str| html.matches('<').count();
        let about = self::about();
        notification.details.message = Some("plain".into());
        let plain = render(&notification, &about, Language::En).unwrap();
        // Empty texts are omitted, so there may be fewer tags than with plain texts, but never more.
        prop_assert!(tags(&email.html) <= tags(&plain.html), "{}", email.html);
    }
}
