//! Counts the Redrive deliveries that an event has passed through, to end loops of forwarding endpoints.
//!
//! A delivery carries the count in a header. An event that is published with the header keeps it, and its own
//! deliveries carry one more. An event beyond the limit is not published.

use crate::field_error::FieldError;

/// The header that carries the count, in HTTP requests and in queue messages.
pub const HEADER: &str = "redrive-hops";

/// Parses a count from a header. A number that is too large becomes the maximum.
pub fn parse(text: &str) -> Result<u8, FieldError> {
    let digits = text.trim();
    if digits.is_empty() || digits.len() > 20 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(FieldError::new(HEADER, "must be a number such as 1; omit the header for a new event"));
    }
    Ok(digits.parse::<u128>().map_or(u8::MAX, |count| u8::try_from(count).unwrap_or(u8::MAX)))
}

/// Returns the largest of several counts, or 0 if there are none.
pub fn largest<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<u8, FieldError> {
    texts.into_iter().try_fold(0, |max, text| Ok(parse(text)?.max(max)))
}

/// Returns the count that a delivery of an event carries.
pub fn next(hops: u8) -> u8 {
    hops.saturating_add(1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn counts_are_parsed_from_headers() {
        assert_eq!(parse("0"), Ok(0));
        assert_eq!(parse(" 5 "), Ok(5));
        assert_eq!(parse("255"), Ok(255));
        assert_eq!(parse("256"), Ok(255));
        assert_eq!(parse("99999999999999999999"), Ok(255));
        for bad in ["", " ", "-1", "+1", "1.0", "1,2", "x", "１", "999999999999999999999"] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
        assert_eq!(largest([]), Ok(0));
        assert_eq!(largest(["1", "7", "3"]), Ok(7));
        assert!(largest(["1", "x"]).is_err());
    }

    #[test]
    fn forwarded_event_reaches_every_limit() {
        for limit in 0..u8::MAX {
            let mut hops = 0;
            for _ in 0..=limit {
                hops = parse(&next(hops).to_string()).unwrap();
            }
            assert!(hops > limit);
        }
        assert_eq!(next(u8::MAX), u8::MAX);
    }

    proptest! {
        #[test]
        fn parse_never_panics(text in "\\PC{0,30}") {
            let _ = parse(&text);
        }
    }
}
