//! Event-type names (`order.created`) and the patterns that webhooks subscribe with (`order.*`, `*`).

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::field_error::Invalid;

/// The longest event-type name.
pub const MAX_LENGTH: usize = 256;
/// Event types that Redrive itself publishes begin with this; nobody else may publish them.
pub const RESERVED_PREFIX: &str = "redrive.";

fn is_segment(segment: &str) -> bool {
    !segment.is_empty() && segment.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'_' || c == b'-')
}

/// Whether Redrive keeps this event type for itself.
pub fn is_reserved(event_type: &str) -> bool {
    event_type.starts_with(RESERVED_PREFIX)
}

/// Checks the form of an event-type name: dot-separated segments of letters, digits, `_` and `-`.
pub fn validate(event_type: &str) -> Result<(), Invalid> {
    if event_type.len() > MAX_LENGTH {
        return Err(Invalid::new("event_type", format!("must be at most {MAX_LENGTH} characters long")));
    }
    if !event_type.split('.').all(is_segment) {
        return Err(Invalid::new(
            "event_type",
            "must be segments of letters, digits, _ and -, separated by single dots, such as order.created",
        ));
    }
    Ok(())
}

/// What a webhook subscribes to: one type, everything below a prefix, or everything.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Pattern {
    /// `order.created`: that type alone.
    Exact(Box<str>),
    /// `order.*`: every type with at least one more segment. Holds `order.`, the dot included.
    Below(Box<str>),
    /// `*`: every type but the reserved ones.
    All,
}

impl Pattern {
    /// Reads a pattern.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        if text == "*" {
            return Ok(Self::All);
        }
        let below = text.strip_suffix(".*");
        if validate(below.unwrap_or(text)).is_err() {
            return Err(Invalid::new(
                "events",
                format!(
                    "\"{text}\" is no event pattern; write a type (order.created), a prefix (order.*) or *"
                ),
            ));
        }
        Ok(match below {
            Some(prefix) => Self::Below(format!("{prefix}.").into()),
            None => Self::Exact(text.into()),
        })
    }

    /// Whether an event of this type is meant.
    pub fn matches(&self, event_type: &str) -> bool {
        match self {
            Self::Exact(exact) => **exact == *event_type,
            Self::Below(prefix) => event_type.len() > prefix.len() && event_type.starts_with(&**prefix),
            Self::All => !is_reserved(event_type),
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(exact) => f.write_str(exact),
            Self::Below(prefix) => write!(f, "{prefix}*"),
            Self::All => f.write_str("*"),
        }
    }
}

impl TryFrom<String> for Pattern {
    type Error = Invalid;

    fn try_from(text: String) -> Result<Self, Invalid> {
        Self::parse(&text)
    }
}

impl From<Pattern> for String {
    fn from(pattern: Pattern) -> String {
        pattern.to_string()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_are_checked() {
        for good in ["a", "order.created", "a.b.c", "A_1.b-2"] {
            assert!(validate(good).is_ok(), "{good}");
        }
        for bad in ["", ".", "a.", ".a", "a..b", "a b", "a/b", "é", "a.*", "*", "a\n", &"x".repeat(257)] {
            assert!(validate(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn patterns_match_what_they_say() {
        let matches = |pattern: &str, event_type: &str| Pattern::parse(pattern).unwrap().matches(event_type);
        assert!(matches("order.created", "order.created"));
        assert!(!matches("order.created", "order.created.twice"));
        assert!(matches("order.*", "order.created"));
        assert!(matches("order.*", "order.item.added"));
        assert!(!matches("order.*", "order"));
        assert!(!matches("order.*", "orders.created"));
        assert!(matches("*", "anything.at.all"));
        assert!(!matches("*", "redrive.circuit.opened"));
        assert!(matches("redrive.*", "redrive.circuit.opened"));
    }

    #[test]
    fn patterns_are_checked() {
        for bad in ["", "*.a", "a.*.b", "a*", "**", ".*", "a.**"] {
            assert!(Pattern::parse(bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(5_000))]

        #[test]
        fn a_name_matches_itself_its_prefixes_and_nothing_beside(
            segments in proptest::collection::vec("[a-z0-9_-]{1,8}", 1..6), cut in 1usize..6,
        ) {
            let name = segments.join(".");
            prop_assert!(validate(&name).is_ok());
            prop_assert!(Pattern::parse(&name).unwrap().matches(&name));
            let cut = cut.min(segments.len());
            let prefix = Pattern::parse(&format!("{}.*", segments[..cut].join("."))).unwrap();
            prop_assert_eq!(prefix.matches(&name), cut < segments.len());
            prop_assert_eq!(Pattern::parse(&prefix.to_string()).unwrap(), prefix);
        }

        #[test]
        fn no_text_breaks_a_pattern_and_what_passes_reads_as_it_was_written(
            text in prop_oneof!["[a-c.*_-]{0,12}", "\\PC{0,20}", any::<String>()], name in "[a-c.*]{0,12}",
        ) {
            if let Ok(pattern) = Pattern::parse(&text) {
                prop_assert_eq!(pattern.to_string(), text.as_str());
                // A pattern means names alone, and means them as it is written.
                let means = match text.strip_suffix('*') {
                    Some(prefix) => name.starts_with(prefix) && name.len() > prefix.len(),
                    None => name == text,
                };
                prop_assert!(validate(&name).is_err() || pattern.matches(&name) == means);
            }
            let exact = Pattern::parse(&text) == Ok(Pattern::Exact(text.as_str().into()));
            prop_assert_eq!(validate(&text).is_ok(), exact);
        }
    }
}
