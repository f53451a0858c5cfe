//! All words of mails and of the page that ends them: one catalogue for each language, complete by its type.
//!
//! What is in braces is filled in: `{webhook}`, `{tenant}`, `{count}`, `{first}`, `{last}`, `{kind}`, `{address}`, `{host}`, `{days}`.

mod de;
mod en;

use redrive_core::notification::{Kind, preferences::Language};

/// A text about one thing, and about several.
pub(crate) struct Counted {
    pub(crate) one: &'static str,
    pub(crate) many: &'static str,
}

impl Counted {
    /// The text for so many.
    pub(crate) fn of(&self, count: u64) -> &'static str {
        if count > 1 { self.many } else { self.one }
    }
}

/// What is said about one kind of notice.
pub(crate) struct KindWords {
    /// What it is called in a list.
    pub(crate) name: &'static str,
    /// The mail's subject.
    pub(crate) subject: Counted,
    /// What happened.
    pub(crate) happened: Counted,
    /// What to do next.
    pub(crate) next: &'static str,
}

/// The words of one language.
pub(crate) struct Words {
    pub(crate) circuit_opened: KindWords,
    pub(crate) circuit_recovered: KindWords,
    pub(crate) webhook_disabled: KindWords,
    pub(crate) delivery_dead: KindWords,
    pub(crate) dns_failing: KindWords,
    pub(crate) secret_due: KindWords,
    pub(crate) quota_reached: KindWords,
    /// Names of machines, and what they mean.
    pub(crate) reasons: &'static [(&'static str, &'static str)],
    /// What stands between thousands.
    pub(crate) thousands: char,
    /// The labels of facts.
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
    /// What stands above what to do.
    pub(crate) what_to_do: &'static str,
    /// What the link to the dashboard says.
    pub(crate) open: &'static str,
    /// Why somebody gets this.
    pub(crate) why_you: &'static str,
    /// What the link that ends it says.
    pub(crate) unsubscribe: &'static str,
    /// How to end it where there is no link.
    pub(crate) ask: &'static str,
    /// The page that ends it.
    pub(crate) page: PageWords,
    /// The e-mail and the page that confirm an address.
    pub(crate) confirm: ConfirmWords,
}

/// What the e-mail and the page say that confirm an address.
pub(crate) struct ConfirmWords {
    pub(crate) subject: &'static str,
    pub(crate) asked: &'static str,
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

/// What the page says that ends mails of one kind.
pub(crate) struct PageWords {
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

impl Words {
    /// The words of a language.
    pub(crate) fn of(language: Language) -> &'static Self {
        match language {
            Language::En => &en::WORDS,
            Language::De => &de::WORDS,
        }
    }

    /// What is said about a kind.
    pub(crate) fn kind(&self, kind: Kind) -> &KindWords {
        match kind {
            Kind::CircuitOpened => &self.circuit_opened,
            Kind::CircuitRecovered => &self.circuit_recovered,
            Kind::WebhookDisabled => &self.webhook_disabled,
            Kind::DeliveryDead => &self.delivery_dead,
            Kind::DnsFailing => &self.dns_failing,
            Kind::SecretDue => &self.secret_due,
            Kind::QuotaReached => &self.quota_reached,
        }
    }

    /// What a reason means, or its name if nobody has said so.
    pub(crate) fn reason<'a>(&self, name: &'a str) -> &'a str {
        self.reasons.iter().find(|(known, _)| *known == name).map_or(name, |(_, words)| words)
    }

    /// A number as people write it.
    pub(crate) fn number(&self, number: u64) -> String {
        let digits = number.to_string();
        let mut written = String::new();
        for (place, digit) in digits.chars().enumerate() {
            if place > 0 && (digits.len() - place).is_multiple_of(3) {
                written.push(self.thousands);
            }
            written.push(digit);
        }
        written
    }
}

/// A text with its gaps filled, each once: what is filled in may have braces of its own.
pub(crate) fn filled(text: &str, gaps: &[(&str, &str)]) -> String {
    let mut written = String::new();
    let mut rest = text;
    while let Some((before, from)) = rest.split_once('{') {
        written.push_str(before);
        let Some((name, after)) = from.split_once('}') else {
            written.push('{');
            rest = from;
            continue;
        };
        written.push_str(gaps.iter().find(|(gap, _)| *gap == name).map_or("", |(_, value)| value));
        rest = after;
    }
    written + rest
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use redrive_core::DeadReason;

    use super::*;

    fn gaps(text: &str) -> BTreeSet<&str> {
        text.split('{').skip(1).map(|rest| rest.split('}').next().unwrap()).collect()
    }

    /// Every text of a language in one order, with the name of its place.
    fn texts(words: &Words) -> Vec<(String, &'static str)> {
        let mut all = Vec::new();
        for kind in Kind::ALL {
            let said = words.kind(kind);
            for (name, text) in [
                ("name", said.name),
                ("subject.one", said.subject.one),
                ("subject.many", said.subject.many),
                ("happened.one", said.happened.one),
                ("happened.many", said.happened.many),
                ("next", said.next),
            ] {
                all.push((format!("{}.{name}", kind.name()), text));
            }
        }
        let Words {
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
        } = words;
        let Words { first, last, until, what_to_do, open, why_you, unsubscribe, ask, .. } = words;
        let Words { page, confirm, .. } = words;
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
        let PageWords { title, question, button, done_title, done, back, undo, .. } = page;
        let PageWords { undone_title, undone, bad_title, bad, .. } = page;
        let pages =
            [title, question, button, done_title, done, back, undo, undone_title, undone, bad_title, bad];
        let ConfirmWords { subject, asked, about, what_to_do, open, ignore, .. } = confirm;
        let confirming = [subject, asked, about, what_to_do, open, ignore];
        let ConfirmWords { title, question, button, done_title, done, back, bad_title, bad, .. } = confirm;
        let confirm_pages = [title, question, button, done_title, done, back, bad_title, bad];
        let rest =
            labels.into_iter().chain(others).chain(pages).chain(confirming).chain(confirm_pages).enumerate();
        all.extend(rest.map(|(place, text)| (format!("text {place}"), *text)));
        all.extend(words.reasons.iter().map(|(name, text)| (format!("reason {name}"), *text)));
        all
    }

    #[test]
    fn every_language_has_every_text_with_the_same_gaps() {
        let english = texts(Words::of(Language::En));
        for language in Language::ALL {
            let own = texts(Words::of(language));
            assert_eq!(own.len(), english.len(), "{language:?}");
            for ((name, text), (expected, original)) in own.iter().zip(&english) {
                assert_eq!(name, expected, "{language:?}");
                assert!(!text.trim().is_empty(), "{language:?} lacks {name}");
                assert_eq!(gaps(text), gaps(original), "{language:?}: {name}");
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
    fn every_reason_of_death_has_words() {
        for language in Language::ALL {
            let known: BTreeSet<_> = Words::of(language).reasons.iter().map(|(name, _)| *name).collect();
            for reason in DeadReason::ALL {
                assert!(known.contains(reason.name()), "{language:?} lacks {}", reason.name());
            }
        }
    }

    #[test]
    fn gaps_are_filled_once() {
        let gaps = [("webhook", "{tenant}<b>"), ("count", "3")];
        assert_eq!(filled("{count} to {webhook}, {nothing}.", &gaps), "3 to {tenant}<b>, .");
        assert_eq!(filled("an open { is left", &gaps), "an open { is left");
    }

    #[test]
    fn numbers_are_written_as_the_language_does() {
        assert_eq!(Words::of(Language::En).number(1_234_567), "1,234,567");
        assert_eq!(Words::of(Language::De).number(10_000), "10.000");
        assert_eq!(Words::of(Language::De).number(999), "999");
    }
}
