//! W3C Trace Context: the context that a caller sends, the part of it that is stored, and the headers passed on.
//!
//! An invalid context is treated as absent: it must never be a reason to refuse an event. Trace and span ids are
//! derived from the ids of events, deliveries and attempts, so no further random values are generated or stored
//! for them, and every node computes the same id for a span.

use std::fmt;

use crate::id::{AttemptId, DeliveryId, EventId};

/// Maximum length of a stored `tracestate`: the length that W3C asks every participant to propagate.
pub const MAX_TRACESTATE_BYTES: usize = 512;
/// Maximum number of members of a `tracestate`.
const MAX_MEMBERS: usize = 32;
/// Members longer than this are dropped first if a `tracestate` is too long.
const LONG_MEMBER: usize = 128;
/// Number of bytes before the `tracestate` in the stored form of a context.
const HEADER_BYTES: usize = 25;
/// Flag of sampled traces.
const SAMPLED: u8 = 1;
/// Flags with a defined meaning: sampled, and random trace id.
const KNOWN_FLAGS: u8 = 3;

/// Id of a trace.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceId([u8; 16]);

/// Id of a span.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SpanId([u8; 8]);

impl TraceId {
    /// Returns the id of the trace that starts with an event. Its last 62 bits are random, as in every id.
    pub fn for_event(event_id: EventId) -> Self {
        Self(*event_id.as_bytes())
    }

    /// Returns the id in the form sent to a collector.
    pub fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// Returns whether this trace is in a sample of this ratio. Every node gets the same result, and a sample of a
    /// smaller ratio is contained in every larger one.
    pub fn is_within(&self, share: f64) -> bool {
        let random = self.0[9..].iter().fold(0u64, |all, byte| all << 8 | u64::from(*byte));
        // An `f64` represents 52 bits exactly.
        ((random >> 4) as f64) < share * (1u64 << 52) as f64
    }
}

impl SpanId {
    /// Returns the span in which an event was published.
    pub fn for_event(event_id: EventId) -> Self {
        Self::tail(event_id.as_bytes())
    }

    /// Returns the span of a delivery, from its creation to its end.
    pub fn for_delivery(delivery_id: DeliveryId) -> Self {
        Self::tail(delivery_id.as_bytes())
    }

    /// Returns the span of an attempt.
    pub fn for_attempt(attempt: AttemptId) -> Self {
        Self::tail(attempt.as_bytes())
    }

    /// Returns the id in the form sent to a collector.
    pub fn as_bytes(&self) -> &[u8; 8] {
        &self.0
    }

    /// Returns the id of a child of this span.
    pub fn child(&self, number: u8) -> Self {
        let mut id = self.0;
        id[7] ^= number;
        Self(id)
    }

    /// Takes the random half of an id. It begins with the bits `10` and so is never zero, which is no valid span id.
    fn tail(id: &[u8; 16]) -> Self {
        let mut tail = [0; 8];
        tail.copy_from_slice(&id[8..]);
        tail[0] = tail[0] & 0x3f | 0x80;
        Self(tail)
    }
}

fn hex(bytes: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex(&self.0, f)
    }
}

impl fmt::Debug for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex(&self.0, f)
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex(&self.0, f)
    }
}

impl fmt::Debug for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex(&self.0, f)
    }
}

/// Trace that an event belongs to. Stored with the event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// Id of the trace.
    pub id: TraceId,
    /// Span of the caller; `None` if the trace starts with the event.
    pub parent: Option<SpanId>,
    flags: u8,
    state: Option<Box<str>>,
}

impl Trace {
    /// Parses a caller's `traceparent` and `tracestate` headers. Returns `None` if they contain no valid context.
    pub fn from_headers(traceparent: &str, tracestate: &str) -> Option<Self> {
        let (id, parent, flags) = read_parent(traceparent)?;
        Some(Self { id, parent: Some(parent), flags, state: read_state(tracestate) })
    }

    /// Starts a sampled trace with an event.
    pub fn start_sampled(event_id: EventId) -> Self {
        Self { id: TraceId::for_event(event_id), parent: None, flags: KNOWN_FLAGS, state: None }
    }

    /// Returns the trace of an event: the caller's if there is one, otherwise a new one if it is in the sample. The
    /// caller's sampling decision is respected.
    pub fn for_event(event_id: EventId, caller: Option<Self>, share: f64) -> Option<Self> {
        caller
            .or_else(|| TraceId::for_event(event_id).is_within(share).then(|| Self::start_sampled(event_id)))
    }

    /// Returns whether its spans are recorded.
    pub fn is_sampled(&self) -> bool {
        self.flags & SAMPLED != 0
    }

    /// Returns the `tracestate` of other systems, passed on unchanged.
    pub fn state(&self) -> Option<&str> {
        self.state.as_deref()
    }

    /// Returns the `traceparent` header of a request sent in this span.
    pub fn traceparent(&self, span: SpanId) -> String {
        format!("00-{}-{}-{:02x}", self.id, span, self.flags)
    }

    /// Encodes the context for storage.
    pub fn to_bytes(&self) -> Vec<u8> {
        let state = self.state.as_deref().unwrap_or_default();
        let mut bytes = Vec::with_capacity(HEADER_BYTES + state.len());
        bytes.extend_from_slice(&self.id.0);
        bytes.extend_from_slice(&self.parent.map_or([0; 8], |parent| parent.0));
        bytes.push(self.flags);
        bytes.extend_from_slice(state.as_bytes());
        bytes
    }

    /// Decodes a stored context.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (head, state) = bytes.split_at_checked(HEADER_BYTES)?;
        let id: [u8; 16] = head[..16].try_into().ok()?;
        let parent: [u8; 8] = head[16..24].try_into().ok()?;
        Some(Self {
            id: TraceId(id),
            parent: (parent != [0; 8]).then_some(SpanId(parent)),
            flags: head[24],
            state: std::str::from_utf8(state).ok().and_then(read_state),
        })
    }
}

/// Parses `traceparent`: version, trace, span, flags. Later versions may append further fields.
fn read_parent(text: &str) -> Option<(TraceId, SpanId, u8)> {
    let text = text.trim_matches([' ', '\t']);
    let (head, more) = text.split_at_checked(55)?;
    let mut parts = head.split('-');
    let [version] = digits::<1>(parts.next()?)?;
    let id = digits::<16>(parts.next()?)?;
    let parent = digits::<8>(parts.next()?)?;
    let [flags] = digits::<1>(parts.next()?)?;
    let ends = parts.next().is_none() && (more.is_empty() || version != 0 && more.starts_with('-'));
    (ends && version != 0xff && id != [0; 16] && parent != [0; 8]).then_some((
        TraceId(id),
        SpanId(parent),
        flags & KNOWN_FLAGS,
    ))
}

/// Parses exactly `N` bytes of lowercase hexadecimal digits.
fn digits<const N: usize>(text: &str) -> Option<[u8; N]> {
    let is_digit = |digit: u8| matches!(digit, b'0'..=b'9' | b'a'..=b'f');
    if text.len() != 2 * N || !text.bytes().all(is_digit) {
        return None;
    }
    let mut bytes = [0; N];
    for (n, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * n..2 * n + 2], 16).ok()?;
    }
    Some(bytes)
}

/// Parses `tracestate`, possibly several headers joined by commas. Returns `None` if it is not a list of
/// `name=value`; a list that is too long loses its long members first, then its last ones.
fn read_state(text: &str) -> Option<Box<str>> {
    // Bounds the work for an oversized header.
    if text.len() > 16 * MAX_TRACESTATE_BYTES {
        return None;
    }
    let mut members: Vec<&str> = text
        .split(',')
        .map(|member| member.trim_matches([' ', '\t']))
        .filter(|one| !one.is_empty())
        .collect();
    if members.len() > MAX_MEMBERS || !members.iter().all(|member| is_member(member)) {
        return None;
    }
    let length = |members: &[&str]| members.iter().map(|member| member.len() + 1).sum::<usize>();
    while length(&members) > MAX_TRACESTATE_BYTES + 1 {
        let long = members.iter().rposition(|member| member.len() > LONG_MEMBER);
        members.remove(long.unwrap_or(members.len() - 1));
    }
    (!members.is_empty()).then(|| members.join(",").into())
}

fn is_member(member: &str) -> bool {
    let Some((name, value)) = member.split_once('=') else { return false };
    let begins =
        name.bytes().next().is_some_and(|first| first.is_ascii_lowercase() || first.is_ascii_digit());
    let in_name = |c: u8| matches!(c, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' | b'*' | b'/' | b'@');
    let in_value = |c: u8| matches!(c, 0x20..=0x7e) && c != b'=';
    begins
        && (name.len() <= 256 && name.bytes().all(in_name))
        && (1..=256).contains(&value.len())
        && value.bytes().all(in_value)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::time::Time;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn event(random: u8) -> EventId {
        EventId::new(Time::from_millis(1_700_000_000_000), &[random; 10])
    }

    #[test]
    fn specification_example_round_trips() {
        let trace = Trace::from_headers(PARENT, "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE").unwrap();
        assert_eq!(trace.id.to_string(), "4bf92f3577b34da6a3ce929d0e0e4736");
        assert_eq!(trace.parent.unwrap().to_string(), "00f067aa0ba902b7");
        assert!(trace.is_sampled());
        assert_eq!(trace.state(), Some("rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"));
        assert_eq!(trace.traceparent(trace.parent.unwrap()), PARENT);
        let attempt = SpanId::for_attempt(AttemptId::from_bytes([0xab; 16]));
        assert_eq!(trace.traceparent(attempt), "00-4bf92f3577b34da6a3ce929d0e0e4736-abababababababab-01");
    }

    #[test]
    fn invalid_traceparent_is_ignored() {
        for wrong in [
            "",
            "00",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0x",
            "00-4bf92f3577b34da6a3ce929d0e0e473-600f067aa0ba902b7-01",
            "00 4bf92f3577b34da6a3ce929d0e0e4736 00f067aa0ba902b7 01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-\u{e9}1",
            "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01.more",
        ] {
            assert_eq!(Trace::from_headers(wrong, "a=b"), None, "{wrong}");
        }
        let later = "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more";
        let read = Trace::from_headers(later, "").unwrap();
        assert_eq!(
            read.traceparent(read.parent.unwrap()),
            PARENT,
            "a later version is parsed like this version"
        );
        assert!(!Trace::from_headers(&PARENT.replace("-01", "-00"), "").unwrap().is_sampled());
        assert_eq!(Trace::from_headers(&PARENT.replace("-01", "-ff"), "").unwrap().flags, 3);
    }

    #[test]
    fn tracestate_is_truncated_or_dropped() {
        let state = |text: &str| Trace::from_headers(PARENT, text).unwrap().state().map(str::to_owned);
        assert_eq!(state(" a=1 ,, b@c/d=x y\t"), Some("a=1,b@c/d=x y".into()));
        for wrong in ["", " ", "a", "a=", "=1", "A=1", "a=1=2", "a=\u{e9}", "a=1\r\nx: y", ",", "a=1,b"] {
            assert_eq!(state(wrong), None, "{wrong:?}");
        }
        assert_eq!(state(&["a=1"; 33].join(",")), None);
        assert_eq!(state(&"a=1,".repeat(10_000)), None);
        let (long, short) = (format!("l={}", "x".repeat(200)), format!("s={}", "y".repeat(100)));
        let all = format!("{long},{short},{short},{short},{short},z=1");
        assert_eq!(state(&all), Some(format!("{short},{short},{short},{short},z=1")));
        let all = [short.as_str(); 6].join(",");
        assert_eq!(state(&all), Some([short.as_str(); 4].join(",")));
        assert_eq!(state(&format!("a={}", "x".repeat(MAX_TRACESTATE_BYTES))), None);
    }

    #[test]
    fn caller_sampling_decision_wins_and_rest_is_sampled() {
        let caller = |flags: &str| Trace::from_headers(&PARENT.replace("-01", flags), "");
        for share in [0.0, 0.5, 1.0] {
            assert_eq!(Trace::for_event(event(1), caller("-01"), share), caller("-01"));
            assert_eq!(Trace::for_event(event(1), caller("-00"), share), caller("-00"));
        }
        assert_eq!(Trace::for_event(event(0xff), None, 1.0), Some(Trace::start_sampled(event(0xff))));
        assert_eq!(Trace::for_event(event(0), None, 0.0), None);
        let started = Trace::start_sampled(event(7));
        assert!(
            started.is_sampled() && started.parent.is_none() && started.id == TraceId::for_event(event(7))
        );
        assert_ne!(TraceId::for_event(event(7)).to_string(), TraceId::for_event(event(8)).to_string());
        assert_eq!(format!("evt_{}", started.id), event(7).to_string(), "the trace id is the event id");
    }

    #[test]
    fn child_spans_have_distinct_ids() {
        let span = SpanId::for_event(event(7));
        let parts: std::collections::HashSet<_> = (0..=5).map(|number| span.child(number)).collect();
        assert_eq!((parts.len(), span.child(0)), (6, span));
    }

    proptest! {
        #[test]
        fn trace_round_trips_through_storage_and_headers(
            id: [u8; 16], parent: [u8; 8], flags in 0u8..=3,
            state in proptest::option::of("[a-z]{1,9}=[!-+a-z]{1,40}(,[a-z]{1,9}=[a-z]{1,40}){0,5}"),
        ) {
            prop_assume!(id != [0; 16]);
            let parent = (parent != [0; 8]).then_some(SpanId(parent));
            let trace = Trace { id: TraceId(id), parent, flags, state: state.map(Into::into) };
            prop_assert_eq!(Trace::from_bytes(&trace.to_bytes()), Some(trace.clone()));
            if let Some(parent) = parent {
                let again = Trace::from_headers(&trace.traceparent(parent), trace.state().unwrap_or_default());
                prop_assert_eq!(again, Some(trace));
            }
        }

        #[test]
        fn arbitrary_headers_yield_valid_contexts(
            parent in prop_oneof!["[0-9a-f-]{50,60}", "\\PC{0,80}", any::<String>()], state in any::<String>(),
            bytes in proptest::collection::vec(any::<u8>(), 0..60),
        ) {
            for trace in [Trace::from_headers(&parent, &state), Trace::from_headers(PARENT, &state)].into_iter().flatten() {
                let fits = |text: &str| text.bytes().all(|byte| matches!(byte, 0x20..=0x7e));
                prop_assert!(fits(&trace.traceparent(SpanId([1; 8]))));
                prop_assert!(trace.state().is_none_or(|state| state.len() <= MAX_TRACESTATE_BYTES && fits(state)));
            }
            let _ = Trace::from_bytes(&bytes);
        }

        #[test]
        fn larger_sample_contains_smaller_sample(random: [u8; 10], one in 0.0f64..=1.0, other in 0.0f64..=1.0) {
            let id = TraceId::for_event(EventId::new(Time::from_millis(1), &random));
            let (less, more) = (one.min(other), one.max(other));
            prop_assert!(id.is_within(1.0) && !id.is_within(0.0));
            prop_assert!(!id.is_within(less) || id.is_within(more));
        }
    }

    #[test]
    fn sample_size_matches_its_ratio() {
        let trace_id = |n: u64| {
            let mut random = [0; 10];
            random[2..].copy_from_slice(&n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
            TraceId::for_event(EventId::new(Time::from_millis(1), &random))
        };
        let within = (0..100_000).filter(|n| trace_id(*n).is_within(0.1)).count();
        assert!((9_800..10_200).contains(&within), "{within}");
    }
}
