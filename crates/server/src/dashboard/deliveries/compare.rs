//! Comparison of two attempts of a delivery: outcome, headers and the stored part of the response.

use redrive_core::event::Event;
use redrive_store::StoredAttempt;

use super::timeline::{describe_response, exchange};
use crate::{
    api::HeaderView,
    dashboard::{
        text_diff::TextDiff,
        untrusted::{BodySample, pretty},
    },
};

/// Maximum size of a formatted response body. At most the first KiB of a body is stored.
const MAX_BODY_BYTES: usize = 16 * 1024;

/// The differences between two attempts.
pub(super) struct Comparison {
    /// Number of the attempt that the other is compared with.
    pub(super) first: u32,
    /// Number of the other attempt.
    pub(super) second: u32,
    /// Title and differences of each part.
    pub(super) parts: [(&'static str, TextDiff); 4],
}

impl Comparison {
    /// Compares two attempts of an event.
    pub(super) fn new(first: &StoredAttempt, second: &StoredAttempt, event: &Event) -> Self {
        let (before, after) = (exchange(first, event), exchange(second, event));
        Self {
            first: first.attempt.number,
            second: second.attempt.number,
            parts: [
                ("Outcome", TextDiff::new(&outcome(first), &outcome(second))),
                ("Request headers", header_diff(&before.request_headers, &after.request_headers)),
                ("Response headers", header_diff(&before.response_headers, &after.response_headers)),
                (
                    "Response body",
                    TextDiff::new(&body_text(first, &before.body), &body_text(second, &after.body)),
                ),
            ],
        }
    }
}

fn outcome(stored: &StoredAttempt) -> String {
    let error = stored.attempt.error_message.as_deref().unwrap_or("none");
    format!("Response: {}\nError: {error}\nNode: {}", describe_response(stored), stored.attempt.worker)
}

fn header_diff(before: &[HeaderView], after: &[HeaderView]) -> TextDiff {
    TextDiff::new(&header_lines(before), &header_lines(after))
}

/// Returns the headers in the order of their names, one on each line.
fn header_lines(headers: &[HeaderView]) -> String {
    let mut lines: Vec<_> =
        headers.iter().map(|header| format!("{}: {}", header.name, header.value)).collect();
    lines.sort_unstable();
    lines.join("\n")
}

/// Returns the stored part of a response body. JSON is formatted, so that each member is a line.
fn body_text(stored: &StoredAttempt, body: &BodySample) -> String {
    match body {
        BodySample::Empty => String::new(),
        BodySample::Binary { dump, .. } => dump.clone(),
        BodySample::Text(text) if text.trim_start().starts_with(['{', '[']) => {
            pretty(stored.attempt.response_body_sample.as_deref().unwrap_or_default(), MAX_BODY_BYTES).0
        }
        BodySample::Text(text) => text.clone(),
    }
}
