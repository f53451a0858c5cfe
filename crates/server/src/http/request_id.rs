//! Request ids, which appear in the response and in logs.

use std::{
    io::Write,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use redrive_engine::clock;

pub(super) const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Maximum length of an id that is accepted from a client.
const MAX_ID_BYTES: usize = 128;

/// Id of a request. Every request has one as an extension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestId(HeaderValue);

impl RequestId {
    /// Returns the id as text.
    pub fn as_str(&self) -> &str {
        self.0.to_str().unwrap_or_default()
    }

    pub(super) fn header(&self) -> HeaderValue {
        self.0.clone()
    }
}

/// Generator of ids: a random part per process, and a counter.
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

    /// Returns the id that the client sent if it has only plain characters, or else a new one. Any client may choose
    /// its id, since it grants nothing.
    pub(super) fn for_request(&self, headers: &HeaderMap) -> RequestId {
        match headers.get(X_REQUEST_ID) {
            Some(given) if is_plain(given.as_bytes()) => RequestId(given.clone()),
            _ => self.generate(),
        }
    }

    fn generate(&self) -> RequestId {
        let mut text = [0; 4 + 12 + 12];
        let number = self.next.fetch_add(1, Relaxed) & 0xffff_ffff_ffff;
        // The text fits exactly and has only plain characters.
        let _ = write!(&mut text[..], "req_{:012x}{number:012x}", self.process);
        RequestId(HeaderValue::from_bytes(&text).unwrap_or(HeaderValue::from_static("req_unknown")))
    }
}

fn is_plain(id: &[u8]) -> bool {
    (1..=MAX_ID_BYTES).contains(&id.len())
        && id.iter().all(|c| c.is_ascii_alphanumeric() || b"._-".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request_id(given: &[u8]) -> RequestId {
        let headers = HeaderMap::from_iter([(X_REQUEST_ID, HeaderValue::from_bytes(given).unwrap())]);
        RequestIds::new().for_request(&headers)
    }

    #[test]
    fn plain_client_ids_are_kept_and_others_replaced() {
        let longest = "x".repeat(MAX_ID_BYTES);
        for plain in ["a", "0191f7e2-1c5b-7d8a", "trace_1.span-2", &longest] {
            assert_eq!(request_id(plain.as_bytes()).as_str(), plain);
        }
        let too_long = "x".repeat(MAX_ID_BYTES + 1);
        for odd in ["", "two words", "a\"b", "<script>", "\u{fc}", &too_long] {
            assert!(request_id(odd.as_bytes()).as_str().starts_with("req_"), "{odd}");
        }
    }

    #[test]
    fn generated_ids_are_unique() {
        let ids = RequestIds::new();
        let generated = [ids.generate(), ids.generate(), RequestIds::new().generate()];
        assert!(
            generated.iter().all(|id| id.as_str().len() == 28 && is_plain(id.as_str().as_bytes())),
            "{generated:?}"
        );
        assert!(generated[0] != generated[1] && generated[1] != generated[2]);
    }
}
