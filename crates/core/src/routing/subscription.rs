//! Finds the webhooks that an event goes to by hash lookups, never by scanning all webhooks.
//!
//! A webhook is indexed under each (pattern, subject) it subscribes to. An event looks up its own type, each of
//! its prefixes and `*`, both for its subject and for "any subject".

use std::collections::{BTreeSet, HashMap};

use crate::{
    event::event_type::{self, Pattern},
    id::WebhookId,
};

/// The events that one webhook subscribes to.
#[derive(Clone, Copy, Debug)]
pub struct SubscriptionCriteria<'a> {
    /// Patterns of event types.
    pub events: &'a [Pattern],
    /// Subjects of which it receives events; empty for all.
    pub subjects: &'a [String],
}

impl SubscriptionCriteria<'_> {
    /// Returns whether an event of this type and subject matches. This defines the meaning of a subscription;
    /// [`Subscriptions`] computes the same result for many webhooks.
    pub fn accepts(&self, event_type: &str, subject: Option<&str>) -> bool {
        let about =
            self.subjects.is_empty() || subject.is_some_and(|s| self.subjects.iter().any(|own| own == s));
        about && self.events.iter().any(|pattern| pattern.matches(event_type))
    }
}

type WebhookList = HashMap<Pattern, BTreeSet<WebhookId>>;

/// Index of the subscriptions of one tenant's webhooks.
#[derive(Clone, Debug, Default)]
pub struct Subscriptions {
    any_subject: WebhookList,
    by_subject: HashMap<Box<str>, WebhookList>,
}

impl Subscriptions {
    /// Indexes a webhook under each of its patterns and subjects.
    pub fn add(&mut self, webhook_id: WebhookId, criteria: SubscriptionCriteria<'_>) {
        self.for_each_list(criteria.subjects, |index| {
            for pattern in criteria.events {
                index.entry(pattern.clone()).or_default().insert(webhook_id);
            }
        });
    }

    /// Removes a webhook; the criteria must equal those it was added with.
    pub fn remove(&mut self, webhook_id: WebhookId, criteria: SubscriptionCriteria<'_>) {
        self.for_each_list(criteria.subjects, |index| {
            for pattern in criteria.events {
                if let Some(webhooks) = index.get_mut(pattern) {
                    webhooks.remove(&webhook_id);
                }
            }
            index.retain(|_, webhooks| !webhooks.is_empty());
        });
        self.by_subject.retain(|_, index| !index.is_empty());
    }

    /// Returns the webhooks that this event matches, each once, ordered by id.
    pub fn matching(&self, event_type: &str, subject: Option<&str>) -> Vec<WebhookId> {
        let indexes = [Some(&self.any_subject), subject.and_then(|subject| self.by_subject.get(subject))];
        let mut found = Vec::new();
        for index in indexes.into_iter().flatten() {
            for pattern in candidates(event_type) {
                found.extend(index.get(&pattern).into_iter().flatten());
            }
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    fn for_each_list(&mut self, subjects: &[String], mut visit: impl FnMut(&mut WebhookList)) {
        if subjects.is_empty() {
            visit(&mut self.any_subject);
        }
        for subject in subjects {
            visit(self.by_subject.entry(subject.as_str().into()).or_default());
        }
    }
}

/// Returns every pattern that could match this type: the type itself, `a.*`, `a.b.*` …, and `*`.
fn candidates(event_type: &str) -> impl Iterator<Item = Pattern> {
    let prefixes = event_type.match_indices('.').map(|(dot, _)| Pattern::Prefix(event_type[..=dot].into()));
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
    fn webhook_with_overlapping_patterns_matches_once() {
        let mut subscriptions = Subscriptions::default();
        let everything = patterns(&["*", "order.*", "order.created"]);
        subscriptions.add(id(1), SubscriptionCriteria { events: &everything, subjects: &[] });
        assert_eq!(subscriptions.matching("order.created", Some("o1")), [id(1)]);
        assert_eq!(subscriptions.matching("redrive.test", None), []);
    }

    #[test]
    fn removed_webhook_leaves_no_index_entries() {
        let (events, subjects) = (patterns(&["order.*"]), ["o1".to_owned()]);
        let criteria = SubscriptionCriteria { events: &events, subjects: &subjects };
        let mut subscriptions = Subscriptions::default();
        subscriptions.add(id(1), criteria);
        assert_eq!(subscriptions.matching("order.created", Some("o1")), [id(1)]);
        assert_eq!(subscriptions.matching("order.created", Some("o2")), []);
        assert_eq!(subscriptions.matching("order.created", None), []);
        subscriptions.remove(id(1), criteria);
        assert!(subscriptions.any_subject.is_empty() && subscriptions.by_subject.is_empty());
    }

    fn any_pattern() -> impl Strategy<Value = Pattern> {
        prop_oneof![
            Just(Pattern::All),
            "[ab](\\.[ab]){0,2}".prop_map(|name| Pattern::parse(&name).unwrap()),
            "[ab](\\.[ab]){0,2}".prop_map(|name| Pattern::parse(&format!("{name}.*")).unwrap()),
        ]
    }

    fn criteria_from(criteria: &(Vec<Pattern>, Vec<String>)) -> SubscriptionCriteria<'_> {
        SubscriptionCriteria { events: &criteria.0, subjects: &criteria.1 }
    }

    proptest! {
        #[test]
        fn index_matches_per_webhook_check(
            webhooks in proptest::collection::vec(
                (proptest::collection::vec(any_pattern(), 1..4), proptest::collection::vec("[xy]", 0..3)), 0..12),
            gone in proptest::collection::vec(any::<bool>(), 12),
            event_type in "[ab](\\.[ab]){0,3}", subject in proptest::option::of("[xyz]"),
        ) {
            let mut subscriptions = Subscriptions::default();
            for (n, criteria) in webhooks.iter().enumerate() {
                subscriptions.add(id(n as u8), criteria_from(criteria));
            }
            for (n, criteria) in webhooks.iter().enumerate().filter(|(n, _)| gone[*n]) {
                subscriptions.remove(id(n as u8), criteria_from(criteria));
            }
            let expected: Vec<_> = (0..webhooks.len())
                .filter(|n| !gone[*n] && criteria_from(&webhooks[*n]).accepts(&event_type, subject.as_deref()))
                .map(|n| id(n as u8))
                .collect();
            prop_assert_eq!(subscriptions.matching(&event_type, subject.as_deref()), expected);
        }
    }
}
