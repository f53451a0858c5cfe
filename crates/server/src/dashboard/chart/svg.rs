//! SVG writer. It escapes all text and attributes, so templates include its output with `|safe`: the escaper of the
//! dashboard does not know which types are safe.

use std::fmt::{self, Write};

/// An SVG drawing, safe to include in a page.
#[derive(Clone, Debug, Default, PartialEq)]
pub(in crate::dashboard) struct Svg(String);

impl fmt::Display for Svg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Formats a number for an attribute: two decimals, without trailing zeros.
pub(super) fn num(n: f64) -> String {
    let text = format!("{:.2}", if n.is_finite() { n } else { 0.0 });
    match text.trim_end_matches('0').trim_end_matches('.') {
        "-0" => "0".to_owned(),
        short => short.to_owned(),
    }
}

/// Formats a share from 0 to 1 as a percentage.
pub(super) fn wide(share: f64) -> String {
    format!("{}%", num(share * 100.0))
}

impl Svg {
    /// Opens an element with these attributes.
    pub(super) fn open(&mut self, name: &str, attributes: &[(&str, &str)]) {
        self.tag(name, attributes);
        self.0.push('>');
    }

    /// Writes an empty element.
    pub(super) fn leaf(&mut self, name: &str, attributes: &[(&str, &str)]) {
        self.tag(name, attributes);
        self.0.push_str("/>");
    }

    /// Closes an element.
    pub(super) fn close(&mut self, name: &str) {
        // Writing to a string cannot fail.
        let _ = write!(self.0, "</{name}>");
    }

    /// Writes an element that contains text.
    pub(super) fn text(&mut self, name: &str, attributes: &[(&str, &str)], text: &str) {
        self.open(name, attributes);
        self.escaped(text);
        self.close(name);
    }

    fn tag(&mut self, name: &str, attributes: &[(&str, &str)]) {
        self.0.push('<');
        self.0.push_str(name);
        for (attribute, value) in attributes {
            let _ = write!(self.0, " {attribute}=\"");
            self.escaped(value);
            self.0.push('"');
        }
    }

    fn escaped(&mut self, text: &str) {
        for c in text.chars() {
            match c {
                '&' => self.0.push_str("&amp;"),
                '<' => self.0.push_str("&lt;"),
                '>' => self.0.push_str("&gt;"),
                '"' => self.0.push_str("&quot;"),
                '\'' => self.0.push_str("&#39;"),
                '\n' => self.0.push_str("&#10;"),
                c => self.0.push(c),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_attributes_are_escaped() {
        let mut svg = Svg::default();
        svg.text("text", &[("data-tip", "\"><script>'a'&\nb")], "</text><script>");
        assert_eq!(
            svg.to_string(),
            "<text data-tip=\"&quot;&gt;&lt;script&gt;&#39;a&#39;&amp;&#10;b\">&lt;/text&gt;&lt;script&gt;</text>"
        );
    }

    #[test]
    fn numbers_are_short_and_finite() {
        let numbers = [0.0, -0.001, 1.0, 100.0, 2.5, 1.0 / 3.0, f64::NAN, f64::INFINITY];
        assert_eq!(numbers.map(num), ["0", "0", "1", "100", "2.5", "0.33", "0", "0"]);
        assert_eq!(wide(0.125), "12.5%");
    }
}
