//! Which tenants and webhooks the metrics name: the worst ones, with their membership kept stable.

use std::{collections::HashSet, hash::Hash};

/// Percentage of failed attempts up to which a webhook or a tenant is not failing.
pub const TOLERATED_FAILURE_PERCENT: u8 = 10;
/// Number of attempts below which a success rate is not significant.
pub const MIN_SIGNIFICANT_ATTEMPTS: u64 = 20;
/// An entry that was named stays named while it is among this multiple of the number of named entries.
pub const STICKY_FACTOR: usize = 2;

/// The named entries of a ranking.
///
/// Entries of nearly equal rank would otherwise alternate between being named and not, and each alternation would look
/// like a recovery.
#[derive(Clone, Debug)]
pub struct NamedEntries<K>(HashSet<K>);

impl<K> Default for NamedEntries<K> {
    fn default() -> Self {
        Self(HashSet::new())
    }
}

impl<K: Clone + Eq + Hash> NamedEntries<K> {
    /// Selects the entries to name: the first `max` of a ranking, and those named before that are among the first
    /// `STICKY_FACTOR * max`. Keeps the order. Returns each with its place, from 0.
    pub fn select<V>(&mut self, ranked: Vec<(K, V)>, max: usize) -> Vec<(usize, K, V)> {
        let named: Vec<_> = ranked
            .into_iter()
            .take(max.saturating_mul(STICKY_FACTOR))
            .enumerate()
            .filter(|(place, (key, _))| *place < max || self.0.contains(key))
            .map(|(place, (key, value))| (place, key, value))
            .collect();
        self.0 = named.iter().map(|(_, key, _)| key.clone()).collect();
        named
    }
}

/// Returns how many of the first `count` entries of a ranking are not named.
pub fn unnamed_count(count: u64, named_places: impl Iterator<Item = usize>) -> u64 {
    let named = named_places.filter(|place| (*place as u64) < count).count();
    count.saturating_sub(named as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(entries: &mut NamedEntries<char>, ranked: &str, max: usize) -> String {
        let ranked = ranked.chars().map(|key| (key, ())).collect();
        entries.select(ranked, max).into_iter().map(|(_, key, ())| key).collect()
    }

    #[test]
    fn entries_stay_named_while_they_are_near_the_worst() {
        let mut entries = NamedEntries::default();
        assert_eq!(named(&mut entries, "abcdef", 2), "ab");
        assert_eq!(named(&mut entries, "cabdef", 2), "cab", "b was named and is third");
        assert_eq!(named(&mut entries, "cdabef", 2), "cdab");
        assert_eq!(named(&mut entries, "cdeabf", 2), "cda", "b is fifth");
        assert_eq!(
            named(&mut entries, "cdebaf", 2),
            "cd",
            "it is not named again before it is among the worst"
        );
        assert_eq!(named(&mut entries, "d", 2), "d", "c has no value any more");
        assert_eq!(named(&mut entries, "", 2), "");
    }

    #[test]
    fn at_most_twice_the_maximum_is_named() {
        let mut entries = NamedEntries::default();
        for ranked in ["abcdefgh", "cdabefgh", "efcdabgh", "ghefabcd"] {
            assert!(named(&mut entries, ranked, 2).len() <= 4);
        }
    }

    #[test]
    fn unnamed_entries_are_counted_by_their_places() {
        assert_eq!(unnamed_count(0, [0, 1].into_iter()), 0);
        assert_eq!(unnamed_count(2, [0, 1, 3].into_iter()), 0);
        assert_eq!(unnamed_count(5, [0, 1, 3].into_iter()), 2);
        assert_eq!(unnamed_count(9, [].into_iter()), 9);
    }
}
