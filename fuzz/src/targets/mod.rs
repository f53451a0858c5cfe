//! The targets, by what they parse.

pub(crate) mod events;
pub(crate) mod network;
pub(crate) mod rules;

/// The input as text; bytes that are none are replaced.
fn text(input: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(input)
}

/// The input in two parts, at its first zero byte.
fn halves(input: &[u8]) -> (&[u8], &[u8]) {
    let at = input.iter().position(|byte| *byte == 0).unwrap_or(input.len());
    (&input[..at], input.get(at + 1..).unwrap_or_default())
}
