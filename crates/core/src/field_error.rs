//! What every refused value says: which field, and what to do about it.

use std::{borrow::Cow, fmt::Display, ops::RangeInclusive};

/// A value that was refused, in words for the person who sent it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct Invalid {
    /// The path of the offending field, such as `retry_config.schedule`.
    pub field: Cow<'static, str>,
    /// What is wrong and what would be right.
    pub message: String,
}

impl Invalid {
    /// A refusal of `field` because of `message`.
    pub fn new(field: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self { field: field.into(), message: message.into() }
    }
}

/// What somebody most likely meant who wrote something that is not known; none if nothing is like it.
pub(crate) fn nearest<'a>(written: &str, known: &[&'a str]) -> Option<&'a str> {
    let written = written.to_lowercase();
    let distance = |name: &str| strsim::damerau_levenshtein(name, &written);
    let best = known.iter().copied().min_by_key(|name| distance(name))?;
    (distance(best) <= best.len().div_ceil(2)).then_some(best)
}

/// Refuses a text that is longer than `max` bytes or holds control characters.
pub(crate) fn plain_text(field: &'static str, text: &str, max: usize) -> Result<(), Invalid> {
    if text.len() > max {
        return Err(Invalid::new(field, format!("is {} bytes long; at most {max} are allowed", text.len())));
    }
    if text.chars().any(char::is_control) {
        return Err(Invalid::new(field, "must not contain control characters"));
    }
    Ok(())
}

/// Refuses a number outside of `range`; also one that is no number, which lies in no range.
pub(crate) fn within<T: PartialOrd + Display>(
    field: impl Into<Cow<'static, str>>,
    value: T,
    range: RangeInclusive<T>,
) -> Result<T, Invalid> {
    if range.contains(&value) {
        return Ok(value);
    }
    Err(Invalid::new(field, format!("is {value}; it must be from {} to {}", range.start(), range.end())))
}
