//! Validation errors: which field is invalid, and how to fix it.

use std::{borrow::Cow, fmt::Display, ops::RangeInclusive};

/// An invalid value, described for the person who sent it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct FieldError {
    /// The path of the invalid field, such as `retry_config.schedule`.
    pub field: Cow<'static, str>,
    /// What is wrong and what is expected.
    pub message: String,
}

impl FieldError {
    /// Returns an error about `field`.
    pub fn new(field: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self { field: field.into(), message: message.into() }
    }
}

/// Returns the known name that is most similar to an unknown one, or `None` if none is similar.
pub fn closest_match<'a>(written: &str, known: &[&'a str]) -> Option<&'a str> {
    let written = written.to_lowercase();
    let distance = |name: &str| strsim::damerau_levenshtein(name, &written);
    let best = known.iter().copied().min_by_key(|name| distance(name))?;
    (distance(best) <= best.len().div_ceil(2)).then_some(best)
}

/// Returns an error for a text that is longer than `max` bytes or contains control characters.
pub(crate) fn check_plain_text(field: &'static str, text: &str, max: usize) -> Result<(), FieldError> {
    if text.len() > max {
        return Err(FieldError::new(
            field,
            format!("is {} bytes long; at most {max} are allowed", text.len()),
        ));
    }
    if text.chars().any(char::is_control) {
        return Err(FieldError::new(field, "must not contain control characters"));
    }
    Ok(())
}

/// Returns an error for a number outside of `range`, including NaN.
pub(crate) fn check_range<T: PartialOrd + Display>(
    field: impl Into<Cow<'static, str>>,
    value: T,
    range: RangeInclusive<T>,
) -> Result<T, FieldError> {
    if range.contains(&value) {
        return Ok(value);
    }
    Err(FieldError::new(field, format!("is {value}; it must be from {} to {}", range.start(), range.end())))
}
