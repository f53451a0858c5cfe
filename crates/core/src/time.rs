//! A point in time, to the millisecond. Time is always passed in: this module must never read a clock.

use std::{fmt, ops, time::Duration};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Milliseconds since the Unix epoch. Displayed as RFC 3339 in UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(i64);

impl Time {
    /// The latest representable time, at the end of the calendar; stands for "never".
    pub const FAR_FUTURE: Time = Time(253_402_207_200_999);

    /// Creates a time from milliseconds since the Unix epoch, clamped to the calendar's range.
    pub fn from_millis(millis: i64) -> Self {
        Self(millis.clamp(0, Self::FAR_FUTURE.0))
    }

    /// Creates a time from seconds since the Unix epoch.
    pub const fn from_secs(secs: u32) -> Self {
        Self(secs as i64 * 1000)
    }

    /// Returns the milliseconds since the Unix epoch.
    pub fn millis(self) -> i64 {
        self.0
    }

    /// Returns the whole seconds since the Unix epoch.
    pub fn secs(self) -> i64 {
        self.0 / 1000
    }

    /// Returns the duration since `earlier`, or zero if this time is not later.
    pub fn duration_since(self, earlier: Time) -> Duration {
        Duration::from_millis(u64::try_from(self.0 - earlier.0).unwrap_or(0))
    }

    /// Parses an RFC 3339 timestamp.
    pub fn parse(text: &str) -> Option<Self> {
        let at: jiff::Timestamp = text.parse().ok()?;
        Some(Self::from_millis(at.as_millisecond()))
    }

    /// Parses an RFC 3339 timestamp, or an RFC 3339 date, which stands for its midnight in UTC.
    ///
    /// ```
    /// use redrive_core::Time;
    ///
    /// assert_eq!(Time::parse_or_date("2024-01-01"), Time::parse("2024-01-01T00:00:00Z"));
    /// assert_eq!(Time::parse_or_date("2024-02-30"), None);
    /// ```
    pub fn parse_or_date(text: &str) -> Option<Self> {
        match is_date(text) {
            true => Self::parse(&format!("{text}T00:00:00Z")),
            false => Self::parse(text),
        }
    }
}

/// Returns whether a text has the form `YYYY-MM-DD`. Whether the calendar has such a day is not checked.
fn is_date(text: &str) -> bool {
    let is_expected = |(index, byte): (usize, u8)| match index {
        4 | 7 => byte == b'-',
        _ => byte.is_ascii_digit(),
    };
    text.len() == "YYYY-MM-DD".len() && text.bytes().enumerate().all(is_expected)
}

impl ops::Add<Duration> for Time {
    type Output = Time;

    fn add(self, wait: Duration) -> Time {
        Time::from_millis(self.0.saturating_add(i64::try_from(wait.as_millis()).unwrap_or(i64::MAX)))
    }
}

impl Time {
    /// Returns the time that is `by` earlier.
    pub fn saturating_sub(self, by: Duration) -> Self {
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
        Time::parse_or_date(&text).ok_or_else(|| {
            de::Error::custom(format!(
                "\"{text}\" is not an RFC 3339 time, such as 2026-01-31T12:00:00Z, nor a date, such as 2026-01-31"
            ))
        })
    }
}

/// A duration in a setting or an API body: a number of seconds (`0.5`) or a text with a unit
/// (`250ms`, `30s`, `5m`, `2h`, `5d`). Stored to the millisecond, displayed as seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HumanDuration(Duration);

impl HumanDuration {
    /// The longest accepted duration: one year.
    pub const MAX: HumanDuration = HumanDuration(Duration::from_secs(365 * 24 * 3600));

    /// Creates a duration from milliseconds.
    pub const fn millis(millis: u64) -> Self {
        Self(Duration::from_millis(millis))
    }

    /// Creates a duration from seconds.
    pub const fn secs(secs: u64) -> Self {
        Self(Duration::from_secs(secs))
    }

    /// Returns the value as a [`Duration`].
    pub const fn as_duration(self) -> Duration {
        self.0
    }

    /// Parses a text with a unit.
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

impl Serialize for HumanDuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let millis = self.0.as_millis() as u64;
        if millis.is_multiple_of(1000) {
            return serializer.serialize_u64(millis / 1000);
        }
        serializer.serialize_f64(millis as f64 / 1000.0)
    }
}

impl<'de> Deserialize<'de> for HumanDuration {
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
            de::Error::custom("expected seconds as a number, or a string such as \"250ms\", \"30s\", \"5m\", \"2h\", \"5d\"; at most one year")
        })
    }
}

#[cfg(feature = "openapi")]
impl utoipa::PartialSchema for HumanDuration {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
        use utoipa::openapi::schema::{ObjectBuilder, OneOfBuilder, Type};
        let max = Self::MAX.0.as_secs() as f64;
        let seconds = ObjectBuilder::new().schema_type(Type::Number).minimum(Some(0.0)).maximum(Some(max));
        let text = ObjectBuilder::new()
            .schema_type(Type::String)
            .pattern(Some(r"^([0-9]+\.?[0-9]*|\.[0-9]+)(ms|s|m|h|d)$"))
            .examples(["30s"]);
        let description = "Seconds, or a string with a unit: 250ms, 30s, 5m, 2h, 5d. At most a year.";
        OneOfBuilder::new().item(seconds).item(text).description(Some(description)).into()
    }
}

#[cfg(feature = "openapi")]
impl utoipa::ToSchema for HumanDuration {}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn time_round_trips_through_rfc3339() {
        let at = Time::from_millis(1_700_000_000_123);
        assert_eq!(at.to_string(), "2023-11-14T22:13:20.123Z");
        assert_eq!(Time::parse(&at.to_string()), Some(at));
        assert_eq!(Time::parse("2023-11-14T23:13:20.123+01:00"), Some(at));
        assert_eq!(Time::parse("yesterday"), None);
    }

    #[test]
    fn date_is_midnight_utc() {
        let read = |text: &str| serde_json::from_value::<Time>(serde_json::json!(text)).ok();
        assert_eq!(read("2024-01-01"), Time::parse("2024-01-01T00:00:00Z"));
        assert_eq!(read("2024-02-29").unwrap().to_string(), "2024-02-29T00:00:00.000Z");
        assert_eq!(read("2024-01-01T12:30:00+02:00"), Time::parse("2024-01-01T10:30:00Z"));
        for refused in [
            "2023-02-29",
            "2024-13-01",
            "2024-00-01",
            "2024-1-1",
            "20240101",
            "2024-01",
            "24-01-01",
            "2024-01-01 ",
            " 2024-01-01",
            "2024/01/01",
            "+2024-01-01",
            "\u{662}024-01-01",
            "",
        ] {
            assert_eq!(read(refused), None, "{refused}");
        }
        // A time without an offset is ambiguous, and where RFC 3339 is required a date is not one.
        assert_eq!(read("2024-01-01T12:00:00"), None);
        assert_eq!(Time::parse("2024-01-01"), None);
    }

    #[test]
    fn duration_is_parsed_from_seconds_or_text() {
        let read = |json: &str| serde_json::from_str::<HumanDuration>(json).ok();
        assert_eq!(read("5"), Some(HumanDuration::secs(5)));
        assert_eq!(read("0.25"), Some(HumanDuration::millis(250)));
        assert_eq!(read("\"250ms\""), Some(HumanDuration::millis(250)));
        assert_eq!(read("\"1.5h\""), Some(HumanDuration::secs(5400)));
        assert_eq!(read("\"5d\""), Some(HumanDuration::secs(5 * 86_400)));
        for bad in ["-1", "\"5\"", "\"5 s\"", "\"s\"", "\"1.2.3s\"", "null", "[]", "1e30"] {
            assert_eq!(read(bad), None, "{bad}");
        }
        assert_eq!(
            serde_json::to_string(&[HumanDuration::secs(5), HumanDuration::millis(250)]).unwrap(),
            "[5,0.25]"
        );
    }

    #[test]
    fn adding_stays_within_calendar_range() {
        let late = Time::from_millis(i64::MAX) + Duration::MAX;
        assert_eq!(Time::parse(&late.to_string()), Some(late));
        assert_eq!(late, Time::FAR_FUTURE);
        assert_eq!(Time::FAR_FUTURE.millis(), jiff::Timestamp::MAX.as_millisecond());
        assert_eq!(Time::from_millis(5).duration_since(Time::from_millis(9)), Duration::ZERO);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(5_000))]

        #[test]
        fn parsed_durations_round_trip_for_arbitrary_text(
            text in prop_oneof!["[0-9.]{0,12}(ms|s|m|h|d|y)?", "\\PC{0,10}", any::<String>()],
        ) {
            if let Some(span) = HumanDuration::parse(&text) {
                prop_assert!(span <= HumanDuration::MAX);
                let shown = serde_json::to_string(&span).unwrap();
                prop_assert_eq!(serde_json::from_str::<HumanDuration>(&shown).unwrap(), span);
            }
        }

        #[test]
        fn seconds_are_parsed_exactly_or_refused(seconds in prop_oneof![any::<f64>(), -1.0..4e7]) {
            // JSON cannot express infinity or NaN; `json!` turns them into null.
            let read = serde_json::from_value::<HumanDuration>(serde_json::json!(seconds)).ok();
            let fits = (0.0..=HumanDuration::MAX.as_duration().as_secs_f64()).contains(&seconds);
            prop_assert_eq!(read.is_some(), fits);
            if let Some(span) = read {
                prop_assert!((span.as_duration().as_secs_f64() - seconds).abs() <= 0.0005 + f64::EPSILON * seconds);
            }
        }

        #[test]
        fn parsed_times_round_trip_for_arbitrary_text(
            text in prop_oneof![
                "[0-9]{4}-[01][0-9]-[0-3][0-9][Tt ][0-2][0-9]:[0-6][0-9]:[0-6][0-9](\\.[0-9]{1,12})?(Z|[+-][0-2][0-9]:?[0-9]{2})",
                "-?[0-9]{1,7}-\\PC{0,20}", any::<String>(),
            ],
        ) {
            if let Some(time) = Time::parse(&text) {
                prop_assert!((Time::default()..=Time::FAR_FUTURE).contains(&time));
                prop_assert_eq!(Time::parse(&time.to_string()), Some(time));
            }
        }

        #[test]
        fn every_date_is_the_start_of_its_day(days in 0..2_900_000i64) {
            let midnight = Time::from_millis(days * 86_400_000);
            let shown = midnight.to_string();
            prop_assert_eq!(Time::parse_or_date(&shown[..10]), Some(midnight));
            prop_assert_eq!(Time::parse_or_date(&shown), Some(midnight));
        }

        #[test]
        fn only_times_and_dates_are_parsed(
            text in prop_oneof!["[0-9]{4}-[01][0-9]-[0-3][0-9]", "[0-9-]{0,12}", any::<String>()],
        ) {
            let midnight = Time::parse(&format!("{text}T00:00:00Z"));
            match Time::parse(&text) {
                Some(time) => prop_assert_eq!(Time::parse_or_date(&text), Some(time)),
                None if text.len() == 10 => prop_assert_eq!(Time::parse_or_date(&text), midnight),
                None => prop_assert_eq!(Time::parse_or_date(&text), None),
            }
        }

        #[test]
        fn every_millisecond_value_is_displayable(millis: i64, wait: u64) {
            let time = Time::from_millis(millis) + Duration::from_millis(wait);
            prop_assert_eq!(Time::parse(&time.to_string()), Some(time));
        }
    }
}
