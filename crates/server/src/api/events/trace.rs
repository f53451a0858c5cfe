//! The publisher's trace, from W3C Trace Context headers. Invalid headers are ignored.

use axum::http::HeaderMap;
use redrive_core::event::trace::Trace;

/// Returns the publisher's trace. Returns `None` if `traceparent` is missing, invalid or sent more than once.
pub(super) fn from_headers(headers: &HeaderMap) -> Option<Box<Trace>> {
    let mut parents = headers.get_all("traceparent").iter();
    let parent = parents.next().filter(|_| parents.next().is_none())?.to_str().ok()?;
    let states: Option<Vec<_>> =
        headers.get_all("tracestate").iter().map(|value| value.to_str().ok()).collect();
    Trace::from_headers(parent, &states.unwrap_or_default().join(",")).map(Box::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn read(headers: &[(&'static str, &'static [u8])]) -> Option<Trace> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, axum::http::HeaderValue::from_bytes(value).unwrap());
        }
        from_headers(&map).map(|trace| *trace)
    }

    #[test]
    fn trace_headers_are_parsed_or_ignored() {
        let parent = ("traceparent", PARENT.as_bytes());
        assert_eq!(read(&[]), None);
        assert_eq!(read(&[parent]), Trace::from_headers(PARENT, ""));
        let states = [parent, ("tracestate", &b"a=1"[..]), ("tracestate", b"b=2")];
        assert_eq!(read(&states), Trace::from_headers(PARENT, "a=1,b=2"));
        assert_eq!(read(&[parent, parent]), None);
        assert_eq!(read(&[("traceparent", b"\xff")]), None);
        assert_eq!(read(&[parent, ("tracestate", b"\xff")]), Trace::from_headers(PARENT, ""));
        assert_eq!(read(&[("tracestate", b"a=1")]), None);
    }
}
