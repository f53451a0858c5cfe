//! The trace of whoever publishes, from the headers of W3C Trace Context. What cannot be used is ignored.

use axum::http::HeaderMap;
use redrive_core::event::trace::Trace;

/// The publisher's trace. Nobody can be in two: with more than one `traceparent` there is none.
pub(super) fn of(headers: &HeaderMap) -> Option<Box<Trace>> {
    let mut parents = headers.get_all("traceparent").iter();
    let parent = parents.next().filter(|_| parents.next().is_none())?.to_str().ok()?;
    let states: Option<Vec<_>> =
        headers.get_all("tracestate").iter().map(|value| value.to_str().ok()).collect();
    Trace::of_caller(parent, &states.unwrap_or_default().join(",")).map(Box::new)
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
        of(&map).map(|trace| *trace)
    }

    #[test]
    fn the_publishers_trace_is_read_or_ignored() {
        let parent = ("traceparent", PARENT.as_bytes());
        assert_eq!(read(&[]), None);
        assert_eq!(read(&[parent]), Trace::of_caller(PARENT, ""));
        let states = [parent, ("tracestate", &b"a=1"[..]), ("tracestate", b"b=2")];
        assert_eq!(read(&states), Trace::of_caller(PARENT, "a=1,b=2"));
        assert_eq!(read(&[parent, parent]), None);
        assert_eq!(read(&[("traceparent", b"\xff")]), None);
        assert_eq!(read(&[parent, ("tracestate", b"\xff")]), Trace::of_caller(PARENT, ""));
        assert_eq!(read(&[("tracestate", b"a=1")]), None);
    }
}
