//! Formats of strings that the schemas name: what a value must look like beyond its type.

use redrive_core::{
    Time,
    event::event_type::{self, Pattern},
};
use url::Url;

use crate::app::parse::words::quoted;

/// Returns what is wrong with a text that must have a format. Unknown formats allow every text.
pub(super) fn invalid(format: &str, text: &str) -> Option<String> {
    match format {
        "date-time" => Time::parse_or_date(text).is_none().then(|| {
            let text = quoted(text);
            format!(
                "{text} is not an RFC 3339 time, such as 2026-01-31T12:00:00Z, nor a date, such as 2026-01-31"
            )
        }),
        "uri" => Url::parse(text)
            .is_err()
            .then(|| "is not a URL; use the full form, such as https://example.com/webhooks".to_owned()),
        "event-type" => event_type::validate(text).err().map(|error| error.message),
        "event-type-pattern" => Pattern::parse(text).err().map(|error| error.message),
        _ => None,
    }
}
