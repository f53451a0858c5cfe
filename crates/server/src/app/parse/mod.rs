//! Parses what publishers send, through the API or a source, into events.

pub(crate) mod cloudevents;
pub(crate) mod document;
pub(crate) mod json;
pub(crate) mod words;

/// Units of work per byte of a body: for a payload that is only skipped, and for one that is parsed into values.
/// They include the second parse of an invalid body, which locates the error.
pub(crate) const SKIP_WORK_PER_BYTE: u64 = 2;
pub(crate) const PARSE_WORK_PER_BYTE: u64 = 8;
