//! Streams of events, and the requests that publish them. A request is prepared once; each call only rewrites the
//! numbers in it.

use crate::{ledger::DIGITS, options::Sender, wire};

/// Digits of the event type's number if a stream has several types.
const TYPE_DIGITS: usize = 3;

/// Which events are published, and how fast.
pub(crate) struct Stream<'a> {
    pub(crate) tenant: Option<&'a str>,
    pub(crate) event_type: &'a str,
    /// If more than one, the events rotate over this many event types, whose names end in the digits of their number.
    pub(crate) types: usize,
    /// Events per second; 0 publishes as fast as acknowledgements come back.
    pub(crate) rate: u32,
    pub(crate) batch: u32,
}

impl<'a> Stream<'a> {
    /// Returns a stream of single events of one type, without a tenant.
    pub(crate) fn new(event_type: &'a str, rate: u32) -> Self {
        Self { tenant: None, event_type, types: 1, rate, batch: 1 }
    }
}

/// A prepared request in which only the numbers of the events and of their types change.
#[derive(Clone)]
pub(crate) struct Call {
    request: Vec<u8>,
    /// Offset of each event's number in the request.
    numbers: Vec<usize>,
    types: usize,
    /// Offset of each event type's number, if there are several types.
    type_numbers: Vec<usize>,
}

impl Call {
    pub(crate) fn new(sender: &Sender, stream: &Stream<'_>, mark: &str) -> Self {
        let event = event(stream, mark, sender.payload);
        let (path, body) = if stream.batch == 1 {
            ("/v1/events", event)
        } else {
            let events = vec![event; stream.batch as usize].join(",");
            ("/v1/events/batch", format!(r#"{{"events":[{events}]}}"#))
        };
        Self::prepare(wire::post(path, sender.api, &sender.key, &body), stream, mark)
    }

    fn prepare(request: String, stream: &Stream<'_>, mark: &str) -> Self {
        let behind = |text: &str| request.match_indices(text).map(|(at, _)| at + text.len()).collect();
        let numbers = behind(mark);
        let type_numbers = if stream.types > 1 { behind(&format!("{}.", stream.event_type)) } else { vec![] };
        Self { numbers, type_numbers, types: stream.types, request: request.into_bytes() }
    }

    pub(crate) fn request(&self) -> &[u8] {
        &self.request
    }

    pub(crate) fn events(&self) -> usize {
        self.numbers.len()
    }

    /// Rewrites the request for the events from number `first` on.
    pub(crate) fn number_from(&mut self, first: usize) {
        for (item, at) in self.numbers.iter().enumerate() {
            write_digits(&mut self.request[*at..at + DIGITS], first + item);
        }
        for (item, at) in self.type_numbers.iter().enumerate() {
            write_digits(&mut self.request[*at..at + TYPE_DIGITS], (first + item) % self.types);
        }
    }
}

fn write_digits(digits: &mut [u8], mut number: usize) {
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
}

/// Returns the name of one of several types of a stream.
pub(crate) fn numbered_type(event_type: &str, number: usize) -> String {
    format!("{event_type}.{number:0TYPE_DIGITS$}")
}

/// Returns an event whose `data` has `payload` bytes, or more if its number needs more.
fn event(stream: &Stream<'_>, mark: &str, payload: usize) -> String {
    let data = |pad: usize| format!(r#"{{"seq":"{mark}{:0DIGITS$}","pad":"{}"}}"#, 0, "x".repeat(pad));
    let data = data(payload.saturating_sub(data(0).len()));
    let tenant = stream.tenant.map_or_else(String::new, |tenant| format!(r#""tenant_id":"{tenant}","#));
    let event_type = match stream.types {
        0 | 1 => stream.event_type.to_owned(),
        _ => numbered_type(stream.event_type, 0),
    };
    format!(r#"{{{tenant}"event_type":"{event_type}","data":{data}}}"#)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn numbers_are_rewritten_in_place() {
        let stream = Stream { types: 100, tenant: Some("a"), ..Stream::new("bench.many", 0) };
        let body = format!("[{0},{0}]", event(&stream, "~ab~", 64));
        let mut call = Call::prepare(body, &stream, "~ab~");
        call.number_from(99);
        let text = String::from_utf8(call.request).unwrap();
        let events: Value = serde_json::from_str(&text).unwrap();
        let reported = [0, 1].map(|at| (events[at]["data"]["seq"].clone(), events[at]["event_type"].clone()));
        assert_eq!(reported[0], ("~ab~0000000099".into(), numbered_type("bench.many", 99).into()));
        assert_eq!(reported[1], ("~ab~0000000100".into(), numbered_type("bench.many", 0).into()));
    }

    #[test]
    fn data_has_the_requested_size() {
        let event: Value =
            serde_json::from_str(&event(&Stream::new("bench.event", 0), "~12345678~", 512)).unwrap();
        assert_eq!(event["data"].to_string().len(), 512);
        assert_eq!((&event["event_type"], event.get("tenant_id")), (&"bench.event".into(), None));
    }
}
