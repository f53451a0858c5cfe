//! The fuzz targets, grouped by what they parse.

pub(crate) mod events;
pub(crate) mod login;
pub(crate) mod network;
pub(crate) mod rules;

/// Returns the input as text; bytes that are not UTF-8 are replaced.
fn text(input: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(input)
}

/// Splits the input at its first zero byte.
fn halves(input: &[u8]) -> (&[u8], &[u8]) {
    let at = input.iter().position(|byte| *byte == 0).unwrap_or(input.len());
    (&input[..at], input.get(at + 1..).unwrap_or_default())
}
