//! A name for every request, in the answer and in the log, so that people can talk about it.

use std::{
    io::Write,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use redrive_engine::clock;

pub(super) const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The longest id that is taken over from a client.
const LONGEST: usize = 128;

/// A request's id. Every request has one as its extension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestId(HeaderValue);

impl RequestId {
    /// The id as a text.
    pub fn as_str(&self) -> &str {
        self.0.to_str().unwrap_or_default()
    }

    pub(super) fn header(&self) -> HeaderValue {
        self.0.clone()
    }
}

/// Where ids come from: a part that is this process's own, and a number.
pub(super) struct RequestIds {
    process: u64,
    next: AtomicU64,
}

impl RequestIds {
    pub(super) fn new() -> Self {
        let random = clock::secret_bytes();
        let process = random[..6].iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
        Self { process, next: AtomicU64::new(0) }
    }

    /// The id that a request came with, if it is a plain one, whoever sent it: it is a name and nothing more.
    /// A new one otherwise.
    pub(super) fn of(&self, headers: &HeaderMap) -> RequestId {
        match headers.get(X_REQUEST_ID) {
            Some(given) if is_plain(given.as_bytes()) => RequestId(given.clone()),
            _ => self.make(),
        }
    }

    fn make(&self) -> RequestId {
        let mut text = [0; 4 + 12 + 12];
        let number = self.next.fetch_add(1, Relaxed) & 0xffff_ffff_ffff;
        // It fits exactly, and is plain.
        let _ = write!(&mut text[..], "req_{:012x}{number:012x}", self.process);
        RequestId(HeaderValue::from_bytes(&text).unwrap_or(HeaderValue::from_static("req_unknown")))
    }
}

fn is_plain(id: &[u8]) -> bool {
    (1..=LONGEST).contains(&id.len()) && id.iter().all(|c| c.is_ascii_alphanumeric() || b"._-".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(given: &[u8]) -> RequestId {
        let headers = HeaderMap::from_iter([(X_REQUEST_ID, HeaderValue::from_bytes(given).unwrap())]);
        RequestIds::new().of(&headers)
    }

    #[test]
    fn plain_ids_are_kept_and_others_replaced() {
        let longest = "x".repeat(LONGEST);
        for plain in ["a", "0191f7e2-1c5b-7d8a", "trace_1.span-2", &longest] {
            assert_eq!(of(plain.as_bytes()).as_str(), plain);
        }
        let too_long = "x".repeat(LONGEST + 1);
        for odd in ["", "two words", "a\"b", "<script>", "\u{fc}", &too_long] {
            assert!(of(odd.as_bytes()).as_str().starts_with("req_"), "{odd}");
        }
    }

    #[test]
    fn no_two_are_the_same() {
        let ids = RequestIds::new();
        let made = [ids.make(), ids.make(), RequestIds::new().make()];
        assert!(
            made.iter().all(|id| id.as_str().len() == 28 && is_plain(id.as_str().as_bytes())),
            "{made:?}"
        );
        assert!(made[0] != made[1] && made[1] != made[2]);
    }
}
