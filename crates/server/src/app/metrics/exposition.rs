//! Formats of metrics, and which of them a client gets.

use prometheus_client::{
    encoding::text::{encode_eof, encode_registry},
    registry::Registry,
};

use super::text_format::from_openmetrics;

/// Format of the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exposition {
    /// Prometheus text format 0.0.4: for every client that does not ask for OpenMetrics.
    Text,
    /// OpenMetrics 1.0.0.
    OpenMetrics,
}

/// Maximum number of media ranges read from `Accept`. Prometheus sends five.
const MAX_MEDIA_RANGES: usize = 32;

impl Exposition {
    /// Returns the media type with its parameters.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }

    /// Encodes all metrics of these registries.
    pub(super) fn encode(self, registries: &[&Registry]) -> String {
        let mut text = String::new();
        let encoded = registries
            .iter()
            .try_for_each(|registry| encode_registry(&mut text, registry))
            .and_then(|()| encode_eof(&mut text));
        debug_assert!(encoded.is_ok(), "writing to memory does not fail");
        match self {
            Self::Text => from_openmetrics(&text),
            Self::OpenMetrics => text,
        }
    }

    /// Selects the format for the values of the header `Accept`: OpenMetrics if its quality is higher than that of the
    /// text format, otherwise the text format, even if the client accepts neither.
    pub fn from_accept<'a>(values: impl IntoIterator<Item = &'a str>) -> Self {
        let ranges = values.into_iter().flat_map(|value| value.split(','));
        let ranges: Vec<_> = ranges.take(MAX_MEDIA_RANGES).filter_map(MediaRange::parse).collect();
        let named = ranges.iter().any(|range| range.subtype.eq_ignore_ascii_case("openmetrics-text"));
        let quality = |kind, subtype, version| {
            let matching = ranges.iter().filter(|range| range.matches(kind, subtype, version));
            matching.max_by_key(|range| range.specificity()).map_or(0, |range| range.quality)
        };
        let openmetrics = quality("application", "openmetrics-text", "1.0.0");
        // A wildcard does not ask for OpenMetrics.
        if named && openmetrics > quality("text", "plain", "0.0.4") { Self::OpenMetrics } else { Self::Text }
    }
}

/// One element of `Accept`.
struct MediaRange<'a> {
    kind: &'a str,
    subtype: &'a str,
    version: Option<&'a str>,
    /// In thousandths.
    quality: u16,
}

impl<'a> MediaRange<'a> {
    /// Parses a media range. Returns `None` if it is malformed.
    fn parse(text: &'a str) -> Option<Self> {
        let mut parts = text.split(';').map(str::trim);
        let (kind, subtype) = parts.next()?.split_once('/')?;
        let mut range = Self { kind, subtype, version: None, quality: 1_000 };
        for parameter in parts {
            let Some((name, value)) = parameter.split_once('=') else { continue };
            match name.trim().to_ascii_lowercase().as_str() {
                "version" => range.version = Some(value.trim().trim_matches('"')),
                "q" => range.quality = parse_quality(value.trim())?,
                // Such as `charset` and `escaping`: both formats are UTF-8, and all names need no escaping.
                _ => {}
            }
        }
        Some(range)
    }

    fn matches(&self, kind: &str, subtype: &str, version: &str) -> bool {
        let is_kind = self.kind == "*" || self.kind.eq_ignore_ascii_case(kind);
        let is_subtype = self.subtype == "*" || self.subtype.eq_ignore_ascii_case(subtype);
        is_kind && is_subtype && self.version.is_none_or(|accepted| accepted == version)
    }

    fn specificity(&self) -> u8 {
        u8::from(self.kind != "*") + u8::from(self.subtype != "*") + u8::from(self.version.is_some())
    }
}

/// Parses a quality from 0 to 1 with up to three decimals, in thousandths.
fn parse_quality(text: &str) -> Option<u16> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
    let is_valid = decimals.len() <= 3 && decimals.bytes().all(|byte| byte.is_ascii_digit());
    let decimals: u16 = is_valid.then(|| format!("{decimals:0<3}"))?.parse().ok()?;
    match (whole, decimals) {
        ("0", decimals) => Some(decimals),
        ("1", 0) => Some(1_000),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::Exposition::{self, OpenMetrics, Text};

    #[test]
    fn openmetrics_is_selected_only_if_it_is_preferred() {
        for (accept, expected) in [
            ("", Text),
            ("*/*", Text),
            ("application/*", Text),
            ("text/html,application/xhtml+xml,*/*;q=0.8", Text),
            ("application/json", Text),
            ("application/openmetrics-text", OpenMetrics),
            ("Application/OpenMetrics-Text; Version=1.0.0", OpenMetrics),
            ("application/openmetrics-text; version=\"1.0.0\"; charset=utf-8", OpenMetrics),
            ("application/openmetrics-text;version=0.0.1", Text),
            ("application/openmetrics-text;q=0", Text),
            ("application/openmetrics-text;q=0,*/*", Text),
            ("application/openmetrics-text;q=0.5,text/plain;q=0.5", Text),
            ("application/openmetrics-text;q=0.5,text/plain;q=0.501", Text),
            ("application/openmetrics-text;q=0.5,text/plain;q=0.499", OpenMetrics),
            ("application/openmetrics-text;q=0.2,*/*;q=0.1", OpenMetrics),
            ("application/openmetrics-text;q=0.2,*/*;q=0.9", Text),
            ("application/openmetrics-text;q=0.2,text/*;q=0.1,*/*;q=0.9", OpenMetrics),
            ("application/openmetrics-text;q=0.2,text/plain;version=0.0.4;q=0,*/*", OpenMetrics),
            ("application/openmetrics-text;q=2,text/plain;q=0.1", Text),
            ("application/openmetrics-text;q=0.1234,text/plain;q=0.1", Text),
            // Prometheus 2.42.
            (
                "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
                 text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
                OpenMetrics,
            ),
            // Prometheus 3.
            (
                "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,\
                 application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;q=0.4,\
                 text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
                OpenMetrics,
            ),
            // Prometheus with `scrape_protocols: [PrometheusText0.0.4, OpenMetricsText1.0.0]`.
            (
                "text/plain;version=0.0.4;q=0.3,application/openmetrics-text;version=1.0.0;q=0.2,*/*;q=0.1",
                Text,
            ),
        ] {
            assert_eq!(Exposition::from_accept([accept]), expected, "{accept}");
        }
    }

    #[test]
    fn accept_may_be_sent_in_several_headers() {
        let values = ["text/plain;q=0.5", "application/openmetrics-text"];
        assert_eq!(Exposition::from_accept(values), OpenMetrics);
        assert_eq!(Exposition::from_accept([]), Text);
        let many = "a/b,".repeat(1_000) + "application/openmetrics-text";
        assert_eq!(Exposition::from_accept([many.as_str()]), Text, "the number of media ranges is bounded");
    }
}
