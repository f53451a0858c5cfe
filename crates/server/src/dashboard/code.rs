//! JSON in colours, as HTML. All text is escaped here, so templates include it with `|safe`.

use std::fmt;

use askama::filters::Escaper;

use super::untrusted::VisibleHtml;

/// Maximum size of a text that is coloured; the elements around each token would make a longer one slow to show.
const MAX_COLOURED_BYTES: usize = 64 * 1024;

/// A code block, safe to include in a page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct CodeHtml(String);

impl fmt::Display for CodeHtml {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl CodeHtml {
    /// Colours a text if it looks like a JSON object or array. The text itself stays unchanged.
    pub(super) fn from_text(text: &str) -> Self {
        let mut html = Self::default();
        let is_json = text.trim_start().starts_with(['{', '[']);
        if is_json && text.len() <= MAX_COLOURED_BYTES {
            html.colour(text);
        } else {
            html.escape(text);
        }
        html
    }

    fn colour(&mut self, text: &str) {
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            let (kind, length) = match first {
                '"' => string_token(rest),
                '-' | '0'..='9' => {
                    ("number", token_length(rest, |c| matches!(c, '0'..='9' | '+' | '-' | '.' | 'e' | 'E')))
                }
                'a'..='z' => ("word", token_length(rest, |c| c.is_ascii_lowercase())),
                _ => ("", first.len_utf8()),
            };
            let (token, after) = rest.split_at(length);
            match kind {
                "" => self.escape(token),
                kind => self.span(kind, token),
            }
            rest = after;
        }
    }

    fn span(&mut self, class: &str, text: &str) {
        self.0 += &format!("<span class=\"{class}\">");
        self.escape(text);
        self.0 += "</span>";
    }

    fn escape(&mut self, text: &str) {
        // Writing to a string cannot fail.
        let _ = VisibleHtml.write_escaped_str(&mut self.0, text);
    }
}

fn token_length(text: &str, is_part: impl Fn(char) -> bool) -> usize {
    text.find(|c| !is_part(c)).unwrap_or(text.len())
}

/// Returns the class and length of the string that `text` begins with: a name if a colon follows, otherwise a text.
/// A string without an end is as long as the rest.
fn string_token(text: &str) -> (&'static str, usize) {
    let mut is_escaped = false;
    let ends = |(at, c): (usize, char)| {
        let is_end = c == '"' && !is_escaped && at > 0;
        is_escaped = c == '\\' && !is_escaped;
        is_end.then_some(at + 1)
    };
    let length = text.char_indices().find_map(ends).unwrap_or(text.len());
    let is_name = text[length..].trim_start().starts_with(':');
    (if is_name { "name" } else { "text" }, length)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns the text of a code block, as a browser shows it.
    fn shown(html: &str) -> String {
        let mut text = String::new();
        let mut is_tag = false;
        for c in html.chars() {
            match c {
                '<' => is_tag = true,
                '>' if is_tag => is_tag = false,
                c if !is_tag => text.push(c),
                _ => {}
            }
        }
        [
            ("&lt;", "<"),
            ("&#60;", "<"),
            ("&gt;", ">"),
            ("&#62;", ">"),
            ("&quot;", "\""),
            ("&#34;", "\""),
            ("&#39;", "'"),
            ("&#38;", "&"),
            ("&amp;", "&"),
        ]
        .iter()
        .fold(text, |text, (entity, c)| text.replace(entity, c))
    }

    #[test]
    fn tokens_have_colours() {
        let html = CodeHtml::from_text("{\"a\" : [\"x\\\":\", -1.5e3, true]}").to_string();
        let classes: Vec<&str> =
            html.split("class=\"").skip(1).filter_map(|part| part.split('"').next()).collect();
        assert_eq!(classes, ["name", "text", "number", "word"], "{html}");
        assert_eq!(shown(&html), "{\"a\" : [\"x\\\":\", -1.5e3, true]}");
    }

    #[test]
    fn markup_and_deceptive_characters_are_escaped() {
        let html = CodeHtml::from_text("[\"</pre><script>\u{202e}\"]").to_string();
        assert!(!html.contains("<script") && !html.contains("</pre"), "{html}");
        assert!(html.contains("\\u{202e}"), "{html}");
        let plain = CodeHtml::from_text("<b>not JSON</b>").to_string();
        assert!(!plain.contains('<'), "{plain}");
    }

    #[test]
    fn long_text_is_not_coloured() {
        let text = format!("[\"{}\"]", "x".repeat(MAX_COLOURED_BYTES));
        assert!(!CodeHtml::from_text(&text).to_string().contains("<span"));
    }

    proptest! {
        #[test]
        fn text_stays_unchanged(text in "[\\[{][ -~]{0,60}") {
            prop_assert_eq!(shown(&CodeHtml::from_text(&text).to_string()), text);
        }

        #[test]
        fn arbitrary_text_never_panics(text: String) {
            CodeHtml::from_text(&format!("{{{text}"));
        }
    }
}
