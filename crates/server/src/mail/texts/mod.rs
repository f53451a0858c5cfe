//! Texts of emails and of the pages that their links open: one catalogue per language, complete by its type.
//!
//! Placeholders: `{webhook}`, `{tenant}`, `{count}`, `{first}`, `{last}`, `{kind}`, `{address}`, `{host}`,
//! `{days}`.

mod de;
mod en;

use redrive_core::notification::{NotificationKind, preferences::Language};

/// A text in singular and plural.
pub(crate) struct PluralText {
    pub(crate) one: &'static str,
    pub(crate) many: &'static str,
}

impl PluralText {
    /// Returns the text for a count.
    pub(crate) fn for_count(&self, count: u64) -> &'static str {
        if count > 1 { self.many } else { self.one }
    }
}

/// Texts about one kind of notification.
pub(crate) struct KindTexts {
    /// Name of the kind.
    pub(crate) name: &'static str,
    /// Subject of the email.
    pub(crate) subject: PluralText,
    /// Description of what happened.
    pub(crate) happened: PluralText,
    /// Advice on what to do next.
    pub(crate) next: &'static str,
}

/// Texts of one language.
pub(crate) struct MailTexts {
    pub(crate) circuit_opened: KindTexts,
    pub(crate) circuit_recovered: KindTexts,
    pub(crate) webhook_disabled: KindTexts,
    pub(crate) delivery_dead: KindTexts,
    pub(crate) dns_failing: KindTexts,
    pub(crate) secret_due: KindTexts,
    pub(crate) quota_reached: KindTexts,
    pub(crate) webhook_failing: KindTexts,
    pub(crate) webhook_recovered: KindTexts,
    /// Reason codes with their descriptions.
    pub(crate) reasons: &'static [(&'static str, &'static str)],
    /// Thousands separator.
    pub(crate) thousands: char,
    /// Labels of the details.
    pub(crate) webhook: &'static str,
    pub(crate) description: &'static str,
    pub(crate) tenant: &'static str,
    pub(crate) reason: &'static str,
    pub(crate) details: &'static str,
    pub(crate) event_type: &'static str,
    pub(crate) delivery: &'static str,
    pub(crate) when: &'static str,
    pub(crate) how_often: &'static str,
    pub(crate) first: &'static str,
    pub(crate) last: &'static str,
    pub(crate) until: &'static str,
    /// Heading of the advice.
    pub(crate) what_to_do: &'static str,
    /// Label of the link to the dashboard.
    pub(crate) open: &'static str,
    /// Explanation why the recipient gets the email.
    pub(crate) why_you: &'static str,
    /// Label of the unsubscribe link.
    pub(crate) unsubscribe: &'static str,
    /// How to unsubscribe if there is no link.
    pub(crate) ask: &'static str,
    /// Texts of the unsubscribe page.
    pub(crate) page: UnsubscribePageTexts,
    /// Texts of the confirmation email and page.
    pub(crate) confirm: ConfirmTexts,
}

/// Texts of the confirmation email and page.
pub(crate) struct ConfirmTexts {
    pub(crate) subject: &'static str,
    pub(crate) requested: &'static str,
    pub(crate) about: &'static str,
    pub(crate) what_to_do: &'static str,
    pub(crate) open: &'static str,
    pub(crate) ignore: &'static str,
    pub(crate) title: &'static str,
    pub(crate) question: &'static str,
    pub(crate) button: &'static str,
    pub(crate) done_title: &'static str,
    pub(crate) done: &'static str,
    pub(crate) back: &'static str,
    pub(crate) bad_title: &'static str,
    pub(crate) bad: &'static str,
}

/// Texts of the unsubscribe page.
pub(crate) struct UnsubscribePageTexts {
    pub(crate) title: &'static str,
    pub(crate) question: &'static str,
    pub(crate) button: &'static str,
    pub(crate) done_title: &'static str,
    pub(crate) done: &'static str,
    pub(crate) back: &'static str,
    pub(crate) undo: &'static str,
    pub(crate) undone_title: &'static str,
    pub(crate) undone: &'static str,
    pub(crate) bad_title: &'static str,
    pub(crate) bad: &'static str,
}

impl MailTexts {
    /// Returns the texts of a language.
    pub(crate) fn for_language(language: Language) -> &'static Self {
        match language {
            Language::En => &en::TEXTS,
            Language::De => &de::TEXTS,
        }
    }

    /// Returns the texts about a kind of notification.
    pub(crate) fn kind(&self, kind: NotificationKind) -> &KindTexts {
        match kind {
            NotificationKind::CircuitOpened => &self.circuit_opened,
            NotificationKind::CircuitRecovered => &self.circuit_recovered,
            NotificationKind::WebhookDisabled => &self.webhook_disabled,
            NotificationKind::DeliveryDead => &self.delivery_dead,
            NotificationKind::DnsFailing => &self.dns_failing,
            NotificationKind::SecretRotationDue => &self.secret_due,
            NotificationKind::QuotaReached => &self.quota_reached,
            NotificationKind::WebhookFailing => &self.webhook_failing,
            NotificationKind::WebhookRecovered => &self.webhook_recovered,
        }
    }

    /// Returns the description of a reason code, or the code itself if it has none.
    pub(crate) fn reason<'a>(&self, name: &'a str) -> &'a str {
        self.reasons.iter().find(|(known, _)| *known == name).map_or(name, |(_, text)| text)
    }

    /// Formats a number with the language's thousands separator.
    pub(crate) fn number(&self, number: u64) -> String {
        let digits = number.to_string();
        let mut text = String::new();
        for (index, digit) in digits.chars().enumerate() {
            if index > 0 && (digits.len() - index).is_multiple_of(3) {
                text.push(self.thousands);
            }
            text.push(digit);
        }
        text
    }
}

/// Fills the placeholders of a text in one pass, so that braces in the values are not filled again.
pub(crate) fn fill_placeholders(text: &str, values: &[(&str, &str)]) -> String {
    let mut filled = String::new();
    let mut rest = text;
    while let Some((before, from)) = rest.split_once('{') {
        filled.push_str(before);
        let Some((name, after)) = from.split_once('}') else {
            filled.push('{');
            rest = from;
            continue;
        };
        filled.push_str(values.iter().find(|(known, _)| *known == name).map_or("", |(_, value)| value));
        rest = after;
    }
    filled + rest
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use redrive_core::{DeadReason, FailureCategory};

    use super::*;

    fn placeholders(text: &str) -> BTreeSet<&str> {
        text.split('{').skip(1).map(|rest| rest.split('}').next().unwrap()).collect()
    }

    /// Returns all texts of a language in a fixed order, each with a name.
    fn texts(texts: &MailTexts) -> Vec<(String, &'static str)> {
        let mut all = Vec::new();
        for kind in NotificationKind::ALL {
            let message = texts.kind(kind);
            for (name, text) in [
                ("name", message.name),
                ("subject.one", message.subject.one),
                ("subject.many", message.subject.many),
                ("happened.one", message.happened.one),
                ("happened.many", message.happened.many),
                ("next", message.next),
            ] {
                all.push((format!("{}.{name}", kind.name()), text));
            }
        }
        let MailTexts {
            webhook,
            description,
            tenant,
            reason,
            details,
            event_type,
            delivery,
            when,
            how_often,
            ..
        } = texts;
        let MailTexts { first, last, until, what_to_do, open, why_you, unsubscribe, ask, .. } = texts;
        let MailTexts { page, confirm, .. } = texts;
        let labels = [
            webhook,
            description,
            tenant,
            reason,
            details,
            event_type,
            delivery,
            when,
            how_often,
            first,
            last,
        ];
        let others = [until, what_to_do, open, why_you, unsubscribe, ask];
        let UnsubscribePageTexts { title, question, button, done_title, done, back, undo, .. } = page;
        let UnsubscribePageTexts { undone_title, undone, bad_title, bad, .. } = page;
        let pages =
            [title, question, button, done_title, done, back, undo, undone_title, undone, bad_title, bad];
        let ConfirmTexts { subject, requested, about, what_to_do, open, ignore, .. } = confirm;
        let confirming = [subject, requested, about, what_to_do, open, ignore];
        let ConfirmTexts { title, question, button, done_title, done, back, bad_title, bad, .. } = confirm;
        let confirm_pages = [title, question, button, done_title, done, back, bad_title, bad];
        let rest =
            labels.into_iter().chain(others).chain(pages).chain(confirming).chain(confirm_pages).enumerate();
        all.extend(rest.map(|(index, text)| (format!("text {index}"), *text)));
        all.extend(texts.reasons.iter().map(|(name, text)| (format!("reason {name}"), *text)));
        all
    }

    #[test]
    fn every_language_has_all_texts_with_same_placeholders() {
        let english = texts(MailTexts::for_language(Language::En));
        for language in Language::ALL {
            let own = texts(MailTexts::for_language(language));
            assert_eq!(own.len(), english.len(), "{language:?}");
            for ((name, text), (expected, original)) in own.iter().zip(&english) {
                assert_eq!(name, expected, "{language:?}");
                assert!(!text.trim().is_empty(), "{language:?} lacks {name}");
                assert_eq!(placeholders(text), placeholders(original), "{language:?}: {name}");
                assert_eq!(text.matches('{').count(), text.matches('}').count(), "{language:?}: {name}");
            }
            if language != Language::En {
                let same: Vec<_> = own
                    .iter()
                    .zip(&english)
                    .filter(|(one, other)| one.1 == other.1)
                    .map(|(one, _)| one)
                    .collect();
                assert!(same.len() <= 4, "{language:?} was not translated: {same:?}");
            }
        }
    }

    #[test]
    fn every_dead_reason_has_description() {
        for language in Language::ALL {
            let known: BTreeSet<_> =
                MailTexts::for_language(language).reasons.iter().map(|(name, _)| *name).collect();
            for reason in DeadReason::ALL {
                assert!(known.contains(reason.name()), "{language:?} lacks {}", reason.name());
            }
        }
    }

    #[test]
    fn every_failure_category_has_description() {
        for language in Language::ALL {
            let texts = MailTexts::for_language(language);
            for category in FailureCategory::ALL {
                assert!(
                    texts.reason(category.name()).contains(' '),
                    "{language:?} lacks {}",
                    category.name()
                );
            }
        }
    }

    #[test]
    fn placeholders_are_filled_once() {
        let values = [("webhook", "{tenant}<b>"), ("count", "3")];
        assert_eq!(fill_placeholders("{count} to {webhook}, {nothing}.", &values), "3 to {tenant}<b>, .");
        assert_eq!(fill_placeholders("an open { is left", &values), "an open { is left");
    }

    #[test]
    fn numbers_use_separator_of_language() {
        assert_eq!(MailTexts::for_language(Language::En).number(1_234_567), "1,234,567");
        assert_eq!(MailTexts::for_language(Language::De).number(10_000), "10.000");
        assert_eq!(MailTexts::for_language(Language::De).number(999), "999");
    }
}
