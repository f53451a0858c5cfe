//! A point in time, to the millisecond. It is only ever handed in: nothing here asks what time it is.

use std::{fmt, ops, time::Duration};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Milliseconds since the Unix epoch. Shown to people as RFC 3339 in UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(i64);

impl Time {
    /// The last time there is, at the end of what a calendar can show: when something never happens.
    pub const FOREVER: Time = Time(253_402_207_200_999);

    /// The time so many milliseconds after the Unix epoch, clamped to what a calendar can show.
    pub fn from_millis(millis: i64) -> Self {
        Self(millis.clamp(0, Self::FOREVER.0))
    }

    /// The time so many seconds after the Unix epoch.
    pub const fn from_secs(secs: u32) -> Self {
        Self(secs as i64 * 1000)
    }

    /// Milliseconds since the Unix epoch.
    pub fn millis(self) -> i64 {
        self.0
    }

    /// Whole seconds since the Unix epoch.
    pub fn secs(self) -> i64 {
        self.0 / 1000
    }

    /// How long after `earlier` this is; zero when it is not after it.
    pub fn since(self, earlier: Time) -> Duration {
        Duration::from_millis(u64::try_from(self.0 - earlier.0).unwrap_or(0))
    }

    /// Reads an RFC 3339 timestamp.
    pub fn parse(text: &str) -> Option<Self> {
        let at: jiff::Timestamp = text.parse().ok()?;
        Some(Self::from_millis(at.as_millisecond()))
    }
}

impl ops::Add<Duration> for Time {
    type Output = Time;

    fn add(self, wait: Duration) -> Time {
        Time::from_millis(self.0.saturating_add(i64::try_from(wait.as_millis()).unwrap_or(i64::MAX)))
    }
}

impl Time {
    /// The time so long before.
    pub fn back(self, by: Duration) -> Self {
        Self(self.0.saturating_sub(i64::try_from(by.as_millis()).unwrap_or(i64::MAX)))
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = jiff::Timestamp::from_millisecond(self.0).unwrap_or(jiff::Timestamp::MAX);
        write!(f, "{at:.3}")
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Time::parse(&text).ok_or_else(|| {
            de::Error::custom(format!("\"{text}\" is no RFC 3339 time, such as 2026-01-31T12:00:00Z"))
        })
    }
}

/// A length of time in a setting or an API body: a number of seconds (`0.5`) or a text with a unit
/// (`250ms`, `30s`, `5m`, `2h`, `5d`). Kept to the millisecond, shown as seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(Duration);

impl Span {
    /// The longest span that is accepted: one year.
    pub const MAX: Span = Span(Duration::from_secs(365 * 24 * 3600));

    /// A span of so many milliseconds.
    pub const fn millis(millis: u64) -> Self {
        Self(Duration::from_millis(millis))
    }

    /// A span of so many seconds.
    pub const fn secs(secs: u64) -> Self {
        Self(Duration::from_secs(secs))
    }

    /// As a duration.
    pub const fn get(self) -> Duration {
        self.0
    }

    /// Reads a text with a unit.
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, unit) = text.split_at(digits);
        let per_unit = match unit {
            "ms" => 1.0,
            "s" => 1e3,
            "m" => 60e3,
            "h" => 3_600e3,
            "d" => 86_400e3,
            _ => return None,
        };
        Self::from_millis(number.parse::<f64>().ok()? * per_unit)
    }

    fn from_millis(millis: f64) -> Option<Self> {
        let fits = millis >= 0.0 && millis <= Self::MAX.0.as_millis() as f64;
        fits.then(|| Self::millis(millis.round() as u64))
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let millis = self.0.as_millis() as u64;
        if millis.is_multiple_of(1000) {
            return serializer.serialize_u64(millis / 1000);
        }
        serializer.serialize_f64(millis as f64 / 1000.0)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Form {
            Seconds(f64),
            Text(String),
        }
        let span = match Form::deserialize(deserializer) {
            Ok(Form::Seconds(seconds)) => Self::from_millis(seconds * 1000.0),
            Ok(Form::Text(text)) => Self::parse(&text),
            Err(_) => None,
        };
        span.ok_or_else(|| {
            de::Error::custom("expected seconds as a number, or a text such as \"250ms\", \"30s\", \"5m\", \"2h\", \"5d\"; at most one year")
        })
    }
}

#[cfg(feature = "openapi")]
impl utoipa::PartialSchema for Span {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
        use utoipa::openapi::schema::{ObjectBuilder, OneOfBuilder, Type};
        let max = Self::MAX.0.as_secs() as f64;
        let seconds = ObjectBuilder::new().schema_type(Type::Number).minimum(Some(0.0)).maximum(Some(max));
        let text = ObjectBuilder::new()
            .schema_type(Type::String)
            .pattern(Some(r"^([0-9]+\.?[0-9]*|\.[0-9]+)(ms|s|m|h|d)$"))
            .examples(["30s"]);
        let description = "Seconds, or a text with a unit: 250ms, 30s, 5m, 2h, 5d. At most a year.";
        OneOfBuilder::new().item(seconds).item(text).description(Some(description)).into()
    }
}

#[cfg(feature = "openapi")]
impl utoipa::ToSchema for Span {}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn shows_and_reads_the_same_time() {
        let at = Time::from_millis(1_700_000_000_123);
        assert_eq!(at.to_string(), "2023-11-14T22:13:20.123Z");
        assert_eq!(Time::parse(&at.to_string()), Some(at));
        assert_eq!(Time::parse("2023-11-14T23:13:20.123+01:00"), Some(at));
        assert_eq!(Time::parse("yesterday"), None);
    }

    #[test]
    fn spans_are_seconds_or_text() {
        let read = |json: &str| serde_json::from_str::<Span>(json).ok();
        assert_eq!(read("5"), Some(Span::secs(5)));
        assert_eq!(read("0.25"), Some(Span::millis(250)));
        assert_eq!(read("\"250ms\""), Some(Span::millis(250)));
        assert_eq!(read("\"1.5h\""), Some(Span::secs(5400)));
        assert_eq!(read("\"5d\""), Some(Span::secs(5 * 86_400)));
        for bad in ["-1", "\"5\"", "\"5 s\"", "\"s\"", "\"1.2.3s\"", "null", "[]", "1e30"] {
            assert_eq!(read(bad), None, "{bad}");
        }
        assert_eq!(serde_json::to_string(&[Span::secs(5), Span::millis(250)]).unwrap(), "[5,0.25]");
    }

    #[test]
    fn adding_never_leaves_the_calendar() {
        let late = Time::from_millis(i64::MAX) + Duration::MAX;
        assert_eq!(Time::parse(&late.to_string()), Some(late));
        assert_eq!(late, Time::FOREVER);
        assert_eq!(Time::FOREVER.millis(), jiff::Timestamp::MAX.as_millisecond());
        assert_eq!(Time::from_millis(5).since(Time::from_millis(9)), Duration::ZERO);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(5_000))]

        #[test]
        fn no_text_breaks_a_span_and_what_passes_is_read_back_as_it_is_shown(
            text in prop_oneof!["[0-9.]{0,12}(ms|s|m|h|d|y)?", "\\PC{0,10}", any::<String>()],
        ) {
            if let Some(span) = Span::parse(&text) {
                prop_assert!(span <= Span::MAX);
                let shown = serde_json::to_string(&span).unwrap();
                prop_assert_eq!(serde_json::from_str::<Span>(&shown).unwrap(), span);
            }
        }

        #[test]
        fn a_number_of_seconds_is_that_long_or_refused(seconds in prop_oneof![any::<f64>(), -1.0..4e7]) {
            // JSON has no infinity, and what is none is null there.
            let read = serde_json::from_value::<Span>(serde_json::json!(seconds)).ok();
            let fits = (0.0..=Span::MAX.get().as_secs_f64()).contains(&seconds);
            prop_assert_eq!(read.is_some(), fits);
            if let Some(span) = read {
                prop_assert!((span.get().as_secs_f64() - seconds).abs() <= 0.0005 + f64::EPSILON * seconds);
            }
        }

        #[test]
        fn no_text_breaks_a_time_and_what_passes_is_read_back_as_it_is_shown(
            text in prop_oneof![
                "[0-9]{4}-[01][0-9]-[0-3][0-9][Tt ][0-2][0-9]:[0-6][0-9]:[0-6][0-9](\\.[0-9]{1,12})?(Z|[+-][0-2][0-9]:?[0-9]{2})",
                "-?[0-9]{1,7}-\\PC{0,20}", any::<String>(),
            ],
        ) {
            if let Some(time) = Time::parse(&text) {
                prop_assert!((Time::default()..=Time::FOREVER).contains(&time));
                prop_assert_eq!(Time::parse(&time.to_string()), Some(time));
            }
        }

        #[test]
        fn every_number_is_a_time_that_can_be_shown(millis: i64, wait: u64) {
            let time = Time::from_millis(millis) + Duration::from_millis(wait);
            prop_assert_eq!(Time::parse(&time.to_string()), Some(time));
        }
    }
}
