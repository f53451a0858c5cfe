//! What a text pasted into the search box can mean.

use crate::{
    FieldError,
    id::{AttemptId, DeliveryId, EventId, WebhookId},
};

/// Maximum length of a search text.
pub const MAX_TEXT_BYTES: usize = 512;
/// Characters that surround an id or a text where it was copied from.
const QUOTES: [char; 10] = ['"', '\'', '`', '<', '>', '“', '”', '„', '‘', '’'];

/// A search text, and the ids that it can be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SearchText {
    /// The text without surrounding spaces and quotes.
    pub text: String,
    /// The webhook with this id.
    pub webhook_id: Option<WebhookId>,
    /// The event with this id.
    pub event_id: Option<EventId>,
    /// The delivery with this id.
    pub delivery_id: Option<DeliveryId>,
    /// The attempt with this id.
    pub attempt_id: Option<AttemptId>,
}

impl SearchText {
    /// Parses a text. An id is recognised with its prefix, or as 32 hex digits with or without hyphens; then it can be
    /// of any kind. Returns `None` for a text without content.
    pub fn parse(written: &str) -> Result<Option<Self>, FieldError> {
        if written.len() > MAX_TEXT_BYTES {
            return Err(FieldError::new("q", format!("must be at most {MAX_TEXT_BYTES} bytes")));
        }
        let is_around = |c: char| c.is_whitespace() || c == ',' || c == ';' || QUOTES.contains(&c);
        let text = written.trim_matches(is_around);
        if text.is_empty() {
            return Ok(None);
        }
        let lower = text.to_ascii_lowercase();
        let bare: String = lower.chars().filter(|c| *c != '-').collect();
        let is_bare = bare.len() == 32 && bare.bytes().all(|digit| digit.is_ascii_hexdigit());
        let as_id = |prefix: &str| match is_bare {
            true => format!("{prefix}{bare}"),
            false => lower.clone(),
        };
        Ok(Some(Self {
            text: text.to_owned(),
            webhook_id: as_id(WebhookId::PREFIX).parse().ok(),
            event_id: as_id(EventId::PREFIX).parse().ok(),
            delivery_id: as_id(DeliveryId::PREFIX).parse().ok(),
            attempt_id: as_id(AttemptId::PREFIX).parse().ok(),
        }))
    }

    /// Returns whether the text is an id.
    pub fn is_id(&self) -> bool {
        self.webhook_id.is_some()
            || self.event_id.is_some()
            || self.delivery_id.is_some()
            || self.attempt_id.is_some()
    }
}

/// Converts the path of a payload search to a JSON pointer (RFC 6901). A path that begins with `/` is one already;
/// others have names separated by dots, and list positions in brackets, such as `items[0].sku`. A leading `$` is the
/// whole payload.
pub fn payload_pointer(path: &str) -> Result<String, FieldError> {
    let path = path.trim();
    if path.starts_with('/') {
        return Ok(path.to_owned());
    }
    let invalid = |message: &str| FieldError::new("path", message.to_owned());
    let example = "must be a JSON pointer such as /order/id, or names separated by dots such as order.id";
    let rest = path.strip_prefix('$').unwrap_or(path);
    let rest = if rest.len() < path.len() { rest.strip_prefix('.').unwrap_or(rest) } else { rest };
    if rest.is_empty() {
        return match path.is_empty() {
            true => Err(invalid(example)),
            false => Ok(String::new()),
        };
    }
    let mut pointer = String::new();
    for part in rest.split('.') {
        let mut pieces = part.split('[');
        let name = pieces.next().unwrap_or_default();
        let mut positions = pieces.peekable();
        if name.is_empty() && (positions.peek().is_none() || !pointer.is_empty()) {
            return Err(invalid(example));
        }
        if !name.is_empty() {
            pointer += &format!("/{}", name.replace('~', "~0").replace('/', "~1"));
        }
        for position in positions {
            let digits = position
                .strip_suffix(']')
                .filter(|digits| !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit()));
            let Some(digits) = digits else {
                return Err(invalid("has brackets around something else than a list position, such as [0]"));
            };
            pointer += &format!("/{digits}");
        }
    }
    Ok(pointer)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HEX: &str = "018f3c9a7e127000800000000000abcd";

    fn parsed(text: &str) -> SearchText {
        SearchText::parse(text).unwrap().unwrap()
    }

    #[test]
    fn id_is_found_with_and_without_its_prefix_and_what_surrounds_it() {
        let event = format!("evt_{HEX}");
        for written in [
            event.clone(),
            format!("  \"{event}\",\n"),
            format!("'{event}'"),
            event.to_uppercase().replace("EVT_", "evt_"),
            format!("“{event}”"),
        ] {
            let found = parsed(&written);
            assert_eq!(found.event_id.map(|id| id.to_string()), Some(event.clone()), "{written}");
            assert!(found.delivery_id.is_none() && found.webhook_id.is_none() && found.attempt_id.is_none());
        }
        for written in [HEX.to_owned(), "018f3c9a-7e12-7000-8000-00000000abcd".to_owned()] {
            let found = parsed(&written);
            assert!(found.is_id() && found.delivery_id.is_some() && found.attempt_id.is_some(), "{written}");
        }
        for other in ["evt_", "order.created", "https://example.com/018f", &HEX[1..]] {
            assert!(!parsed(other).is_id(), "{other}");
        }
    }

    #[test]
    fn text_is_bounded_and_may_be_empty() {
        assert_eq!(SearchText::parse(" \"\" ").unwrap(), None);
        assert!(SearchText::parse(&"x".repeat(MAX_TEXT_BYTES + 1)).is_err());
        assert_eq!(parsed(" 'a b' ").text, "a b");
    }

    #[test]
    fn dotted_paths_become_pointers() {
        for (path, pointer) in [
            ("/order/id", Some("/order/id")),
            ("order.id", Some("/order/id")),
            ("$.order.id", Some("/order/id")),
            ("items[0].sku", Some("/items/0/sku")),
            ("$[2][3]", Some("/2/3")),
            ("a/b.c~d", Some("/a~1b/c~0d")),
            ("$", Some("")),
            ("", None),
            ("a..b", None),
            (".a", None),
            ("a.", None),
            ("a[x]", None),
            ("a[0", None),
            ("a[]", None),
        ] {
            assert_eq!(payload_pointer(path).ok().as_deref(), pointer, "{path}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_text_never_panics(text in any::<String>()) {
            let _ = SearchText::parse(&text);
            let _ = payload_pointer(&text);
        }
    }
}
