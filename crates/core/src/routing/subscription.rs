//! Which webhooks an event goes to, found by hash and never by scanning all webhooks.
//!
//! A webhook is filed under each (pattern, subject) it subscribes to. An event looks under its own type,
//! each of its prefixes and `*`, both for its subject and for "any subject": a handful of look-ups.

use std::collections::{BTreeSet, HashMap};

use crate::{
    event::event_type::{self, Pattern},
    id::WebhookId,
};

/// What one webhook wants to hear about.
#[derive(Clone, Copy, Debug)]
pub struct Interest<'a> {
    /// Which event types.
    pub events: &'a [Pattern],
    /// Only events about these subjects; empty for all.
    pub subjects: &'a [String],
}

impl Interest<'_> {
    /// Whether an event of this type about this subject is wanted. The plain meaning of a subscription;
    /// [`Subscriptions`] gives the same answer for many webhooks at once.
    pub fn wants(&self, event_type: &str, subject: Option<&str>) -> bool {
        let about =
            self.subjects.is_empty() || subject.is_some_and(|s| self.subjects.iter().any(|own| own == s));
        about && self.events.iter().any(|pattern| pattern.matches(event_type))
    }
}

type Shelf = HashMap<Pattern, BTreeSet<WebhookId>>;

/// The subscriptions of one tenant's webhooks.
#[derive(Clone, Debug, Default)]
pub struct Subscriptions {
    any_subject: Shelf,
    by_subject: HashMap<Box<str>, Shelf>,
}

impl Subscriptions {
    /// Files a webhook under everything it wants.
    pub fn add(&mut self, webhook: WebhookId, interest: Interest<'_>) {
        self.for_each_shelf(interest.subjects, |shelf| {
            for pattern in interest.events {
                shelf.entry(pattern.clone()).or_default().insert(webhook);
            }
        });
    }

    /// Takes a webhook out again; `interest` is what it was added with.
    pub fn remove(&mut self, webhook: WebhookId, interest: Interest<'_>) {
        self.for_each_shelf(interest.subjects, |shelf| {
            for pattern in interest.events {
                if let Some(webhooks) = shelf.get_mut(pattern) {
                    webhooks.remove(&webhook);
                }
            }
            shelf.retain(|_, webhooks| !webhooks.is_empty());
        });
        self.by_subject.retain(|_, shelf| !shelf.is_empty());
    }

    /// The webhooks that want this event, each once, in the order of their ids.
    pub fn matching(&self, event_type: &str, subject: Option<&str>) -> Vec<WebhookId> {
        let shelves = [Some(&self.any_subject), subject.and_then(|subject| self.by_subject.get(subject))];
        let mut found = Vec::new();
        for shelf in shelves.into_iter().flatten() {
            for pattern in candidates(event_type) {
                found.extend(shelf.get(&pattern).into_iter().flatten());
            }
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    fn for_each_shelf(&mut self, subjects: &[String], mut visit: impl FnMut(&mut Shelf)) {
        if subjects.is_empty() {
            visit(&mut self.any_subject);
        }
        for subject in subjects {
            visit(self.by_subject.entry(subject.as_str().into()).or_default());
        }
    }
}

/// Every pattern that could match this type: itself, `a.*`, `a.b.*` …, and `*`.
fn candidates(event_type: &str) -> impl Iterator<Item = Pattern> {
    let prefixes = event_type.match_indices('.').map(|(dot, _)| Pattern::Below(event_type[..=dot].into()));
    let all = (!event_type::is_reserved(event_type)).then_some(Pattern::All);
    [Pattern::Exact(event_type.into())].into_iter().chain(prefixes).chain(all)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::time::Time;

    fn id(n: u8) -> WebhookId {
        WebhookId::new(Time::from_millis(1), &[n; 10])
    }

    fn patterns(texts: &[&str]) -> Vec<Pattern> {
        texts.iter().map(|text| Pattern::parse(text).unwrap()).collect()
    }

    #[test]
    fn each_webhook_is_found_once() {
        let mut subscriptions = Subscriptions::default();
        let everything = patterns(&["*", "order.*", "order.created"]);
        subscriptions.add(id(1), Interest { events: &everything, subjects: &[] });
        assert_eq!(subscriptions.matching("order.created", Some("o1")), [id(1)]);
        assert_eq!(subscriptions.matching("redrive.test", None), []);
    }

    #[test]
    fn a_removed_webhook_leaves_nothing_behind() {
        let (events, subjects) = (patterns(&["order.*"]), ["o1".to_owned()]);
        let interest = Interest { events: &events, subjects: &subjects };
        let mut subscriptions = Subscriptions::default();
        subscriptions.add(id(1), interest);
        assert_eq!(subscriptions.matching("order.created", Some("o1")), [id(1)]);
        assert_eq!(subscriptions.matching("order.created", Some("o2")), []);
        assert_eq!(subscriptions.matching("order.created", None), []);
        subscriptions.remove(id(1), interest);
        assert!(subscriptions.any_subject.is_empty() && subscriptions.by_subject.is_empty());
    }

    fn any_pattern() -> impl Strategy<Value = Pattern> {
        prop_oneof![
            Just(Pattern::All),
            "[ab](\\.[ab]){0,2}".prop_map(|name| Pattern::parse(&name).unwrap()),
            "[ab](\\.[ab]){0,2}".prop_map(|name| Pattern::parse(&format!("{name}.*")).unwrap()),
        ]
    }

    fn interest(wants: &(Vec<Pattern>, Vec<String>)) -> Interest<'_> {
        Interest { events: &wants.0, subjects: &wants.1 }
    }

    proptest! {
        #[test]
        fn the_index_agrees_with_asking_each_webhook(
            webhooks in proptest::collection::vec(
                (proptest::collection::vec(any_pattern(), 1..4), proptest::collection::vec("[xy]", 0..3)), 0..12),
            gone in proptest::collection::vec(any::<bool>(), 12),
            event_type in "[ab](\\.[ab]){0,3}", subject in proptest::option::of("[xyz]"),
        ) {
            let mut subscriptions = Subscriptions::default();
            for (n, wants) in webhooks.iter().enumerate() {
                subscriptions.add(id(n as u8), interest(wants));
            }
            for (n, wants) in webhooks.iter().enumerate().filter(|(n, _)| gone[*n]) {
                subscriptions.remove(id(n as u8), interest(wants));
            }
            let expected: Vec<_> = (0..webhooks.len())
                .filter(|n| !gone[*n] && interest(&webhooks[*n]).wants(&event_type, subject.as_deref()))
                .map(|n| id(n as u8))
                .collect();
            prop_assert_eq!(subscriptions.matching(&event_type, subject.as_deref()), expected);
        }
    }
}
