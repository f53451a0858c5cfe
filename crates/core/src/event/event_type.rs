//! Event-type names (`order.created`) and the patterns that webhooks subscribe with (`order.*`, `*`).

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::field_error::FieldError;

/// Maximum length of an event-type name.
pub const MAX_LENGTH: usize = 256;
/// Prefix of event types that only Redrive itself may publish.
pub const RESERVED_PREFIX: &str = "redrive.";

fn is_segment(segment: &str) -> bool {
    !segment.is_empty() && segment.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'_' || c == b'-')
}

/// Returns whether this event type is reserved for Redrive.
pub fn is_reserved(event_type: &str) -> bool {
    event_type.starts_with(RESERVED_PREFIX)
}

/// Validates an event-type name: dot-separated segments of letters, digits, `_` and `-`.
pub fn validate(event_type: &str) -> Result<(), FieldError> {
    if event_type.len() > MAX_LENGTH {
        return Err(FieldError::new("event_type", format!("must be at most {MAX_LENGTH} characters long")));
    }
    if !event_type.split('.').all(is_segment) {
        return Err(FieldError::new(
            "event_type",
            "must be segments of letters, digits, _ and -, separated by single dots, such as order.created",
        ));
    }
    Ok(())
}

/// Name of one event type in a filter, where a pattern would never match.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ExactEventType(String);

impl From<ExactEventType> for String {
    fn from(name: ExactEventType) -> Self {
        name.0
    }
}

impl TryFrom<String> for ExactEventType {
    type Error = FieldError;

    fn try_from(text: String) -> Result<Self, FieldError> {
        if text.contains('*') {
            let message =
                format!("\"{text}\" is a pattern; filters compare whole names, such as order.created");
            return Err(FieldError::new("event_type", message));
        }
        validate(&text).map(|()| Self(text))
    }
}

/// A subscription pattern of a webhook: one type, all types below a prefix, or all types.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Pattern {
    /// `order.created`: exactly that type.
    Exact(Box<str>),
    /// `order.*`: every type with at least one more segment. Holds `order.`, including the dot.
    Prefix(Box<str>),
    /// `*`: every type except the reserved ones.
    All,
}

impl Pattern {
    /// Parses a pattern.
    pub fn parse(text: &str) -> Result<Self, FieldError> {
        if text == "*" {
            return Ok(Self::All);
        }
        let below = text.strip_suffix(".*");
        if validate(below.unwrap_or(text)).is_err() {
            return Err(FieldError::new(
                "events",
                format!(
                    "\"{text}\" is not an event pattern; use a type (order.created), a prefix (order.*) or *"
                ),
            ));
        }
        Ok(match below {
            Some(prefix) => Self::Prefix(format!("{prefix}.").into()),
            None => Self::Exact(text.into()),
        })
    }

    /// Returns whether the pattern matches this event type.
    pub fn matches(&self, event_type: &str) -> bool {
        match self {
            Self::Exact(exact) => **exact == *event_type,
            Self::Prefix(prefix) => event_type.len() > prefix.len() && event_type.starts_with(&**prefix),
            Self::All => !is_reserved(event_type),
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(exact) => f.write_str(exact),
            Self::Prefix(prefix) => write!(f, "{prefix}*"),
            Self::All => f.write_str("*"),
        }
    }
}

impl TryFrom<String> for Pattern {
    type Error = FieldError;

    fn try_from(text: String) -> Result<Self, FieldError> {
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
    fn event_type_names_are_validated() {
        for good in ["a", "order.created", "a.b.c", "A_1.b-2"] {
            assert!(validate(good).is_ok(), "{good}");
        }
        for bad in ["", ".", "a.", ".a", "a..b", "a b", "a/b", "é", "a.*", "*", "a\n", &"x".repeat(257)] {
            assert!(validate(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn filters_reject_patterns() {
        let parse = |text: &str| ExactEventType::try_from(text.to_owned()).map(String::from);
        assert_eq!(parse("order.created"), Ok("order.created".to_owned()));
        for pattern in ["order.*", "*"] {
            assert!(parse(pattern).unwrap_err().message.contains("is a pattern"), "{pattern}");
        }
        assert!(parse("order created").is_err());
    }

    #[test]
    fn patterns_match_expected_event_types() {
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
    fn patterns_are_validated() {
        for bad in ["", "*.a", "a.*.b", "a*", "**", ".*", "a.**"] {
            assert!(Pattern::parse(bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(5_000))]

        #[test]
        fn event_type_matches_only_itself_and_its_prefixes(
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
        fn pattern_parse_never_panics_and_valid_patterns_round_trip(
            text in prop_oneof!["[a-c.*_-]{0,12}", "\\PC{0,20}", any::<String>()], name in "[a-c.*]{0,12}",
        ) {
            if let Ok(pattern) = Pattern::parse(&text) {
                prop_assert_eq!(pattern.to_string(), text.as_str());
                // A pattern matches a valid name exactly as its text says.
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
