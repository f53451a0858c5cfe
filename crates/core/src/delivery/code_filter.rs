//! Filter of status codes: one code, or all codes of a class.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// Filter of status codes of the last response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum CodeFilter {
    /// This code.
    Exactly(u16),
    /// All codes of a class: 5 stands for 500 to 599.
    Class(u16),
}

impl CodeFilter {
    /// Returns the first and the last matching code.
    pub fn range(self) -> (u16, u16) {
        match self {
            Self::Exactly(code) => (code, code),
            Self::Class(class) => (class.saturating_mul(100), class.saturating_mul(100).saturating_add(99)),
        }
    }

    /// Returns whether a status code matches.
    pub fn matches(self, code: u16) -> bool {
        let (first, last) = self.range();
        (first..=last).contains(&code)
    }
}

/// Error of a text that is no filter of status codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be a status code such as 503, or a class such as 5xx")]
pub struct CodeFilterError;

impl FromStr for CodeFilter {
    type Err = CodeFilterError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let filter = match text.strip_suffix("xx") {
            Some(class) => class.parse().ok().filter(|class| (1..=9).contains(class)).map(Self::Class),
            None => text.parse().ok().filter(|code| (100..=999).contains(code)).map(Self::Exactly),
        };
        filter.ok_or(CodeFilterError)
    }
}

impl fmt::Display for CodeFilter {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exactly(code) => write!(formatter, "{code}"),
            Self::Class(class) => write!(formatter, "{class}xx"),
        }
    }
}

impl TryFrom<String> for CodeFilter {
    type Error = CodeFilterError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<CodeFilter> for String {
    fn from(filter: CodeFilter) -> Self {
        filter.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_code_filter_is_exact_or_a_class() {
        for (text, filter) in [
            ("503", Ok(CodeFilter::Exactly(503))),
            ("100", Ok(CodeFilter::Exactly(100))),
            ("5xx", Ok(CodeFilter::Class(5))),
            ("xx", Err(CodeFilterError)),
            ("0xx", Err(CodeFilterError)),
            ("55xx", Err(CodeFilterError)),
            ("99", Err(CodeFilterError)),
            ("1000", Err(CodeFilterError)),
            ("-503", Err(CodeFilterError)),
            ("", Err(CodeFilterError)),
        ] {
            assert_eq!(text.parse(), filter, "{text}");
            if let Ok(filter) = filter {
                assert_eq!(filter.to_string(), text);
            }
        }
        assert_eq!(CodeFilter::Class(5).range(), (500, 599));
        assert_eq!(CodeFilter::Exactly(503).range(), (503, 503));
        assert!(CodeFilter::Class(5).matches(599) && !CodeFilter::Class(5).matches(600));
    }
}
