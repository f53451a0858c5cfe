//! Development settings: speed and skew of the clock.

use redrive_core::time::HumanDuration;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::settings::section;

section! {
    /// Development settings.
    #[derive(Clone, Debug, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct Dev {
        /// Factor by which the clock of retries runs faster than the real one; `redrive dev` only.
        pub clock_speed: f64,
        /// Simulated offset of this machine's clock, ahead, or behind with a minus sign: `"-90s"`. To test the effects
        /// of a wrong clock; `redrive dev` only.
        pub clock_skew: Skew,
    }
}

/// A signed duration with millisecond resolution, written as a number of seconds or a string such as `-90s`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Skew(i64);

impl Skew {
    /// Returns the duration in milliseconds.
    pub fn millis(self) -> i64 {
        self.0
    }

    fn parse(text: &str) -> Option<Self> {
        let (sign, length) = match text.strip_prefix('-') {
            Some(length) => (-1, length),
            None => (1, text.strip_prefix('+').unwrap_or(text)),
        };
        let millis = i64::try_from(HumanDuration::parse(length)?.as_duration().as_millis()).ok()?;
        Some(Self(sign * millis))
    }

    fn from_seconds(seconds: f64) -> Option<Self> {
        let max = HumanDuration::MAX.as_duration().as_secs_f64();
        (seconds.abs() <= max).then(|| Self((seconds * 1000.0).round() as i64))
    }
}

impl Serialize for Skew {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 % 1000 {
            0 => serializer.serialize_i64(self.0 / 1000),
            _ => serializer.serialize_f64(self.0 as f64 / 1000.0),
        }
    }
}

impl<'de> Deserialize<'de> for Skew {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Form {
            Seconds(f64),
            Text(String),
        }
        let skew = match Form::deserialize(deserializer) {
            Ok(Form::Seconds(seconds)) => Self::from_seconds(seconds),
            Ok(Form::Text(text)) => Self::parse(&text),
            Err(_) => None,
        };
        skew.ok_or_else(|| {
            de::Error::custom(
                "expected seconds as a number, or a string such as \"-90s\" or \"+250ms\"; at most one year",
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn skew_is_parsed_with_sign() {
        let read = |json: &str| serde_json::from_str::<Skew>(json).ok().map(Skew::millis);
        for (json, millis) in [
            ("0", 0),
            ("-90", -90_000),
            ("0.25", 250),
            ("\"-90s\"", -90_000),
            ("\"+250ms\"", 250),
            ("\"2h\"", 7_200_000),
        ] {
            assert_eq!(read(json), Some(millis), "{json}");
        }
        for json in ["\"\"", "\"-\"", "\"--1s\"", "\"-90\"", "\"366d\"", "1e9", "[]"] {
            assert_eq!(read(json), None, "{json}");
        }
        assert_eq!(serde_json::to_string(&[Skew(-90_000), Skew(-250)]).unwrap(), "[-90,-0.25]");
    }

    proptest! {
        #[test]
        fn parsing_arbitrary_text_as_skew_never_panics(text in prop_oneof!["[+-]{0,2}[0-9.]{0,9}(ms|s|d)?", any::<String>()]) {
            if let Some(skew) = Skew::parse(&text) {
                let shown = serde_json::to_string(&skew).unwrap();
                prop_assert_eq!(serde_json::from_str::<Skew>(&shown).unwrap(), skew);
            }
        }
    }
}
