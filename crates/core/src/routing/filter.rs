//! Conditions on an event's payload: a small language over JSON pointers, itself written as JSON.
//!
//! The language is total. It has no loops, functions or references, so every filter gives a result for every
//! payload after at most as many steps as it has parts.

mod explain;
mod number;
mod parse;
mod payload;
#[cfg(test)]
mod tests;

use std::cmp::Ordering;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _, ser::Error as _};
use serde_json::value::RawValue;

pub use self::{explain::FilterExplanation, payload::Payload};
use self::{number::Number, payload::Scalar};
use crate::field_error::FieldError;

/// Maximum size of a filter as JSON.
pub const MAX_BYTES: usize = 16 * 1024;
/// Maximum number of parts of a filter: expressions, tests, and the values of lists.
pub const MAX_PARTS: usize = 256;
/// Maximum nesting depth of `all`, `any` and `not`.
pub const MAX_DEPTH: usize = 10;
/// Maximum number of steps of a path.
pub const MAX_STEPS: usize = 32;

/// Units of work, in the same units as for schemas: for one step of a path or one test, for scanning one byte of a
/// payload, and for storing one member or item of it.
const STEP_WORK: u64 = 16;
const BYTE_WORK: u64 = 1;
const MEMBER_WORK: u64 = 32;
/// Bytes of a filter that are compared in one unit of work.
const BYTES_PER_UNIT: u64 = 8;

/// A condition on a payload, as its owner wrote it.
#[derive(Clone, Debug, PartialEq)]
pub struct Filter {
    text: Box<str>,
    root: Expr,
    /// Work of all conditions, and the number of steps of the longest path.
    conditions_work: u64,
    longest_path: u64,
}

#[derive(Clone, Debug, PartialEq)]
enum Expr {
    All(Box<[Expr]>),
    Any(Box<[Expr]>),
    Not(Box<Expr>),
    Where(Box<Pointer>, Box<[Test]>),
}

/// A JSON pointer (RFC 6901), as written and split into steps.
#[derive(Clone, Debug, PartialEq)]
struct Pointer {
    text: Box<str>,
    steps: Box<[Box<str>]>,
}

/// A condition on the value at a path.
#[derive(Clone, Debug, PartialEq)]
enum Test {
    Eq(Literal),
    Ne(Literal),
    Compare(Comparison, Literal),
    In(Box<[Literal]>),
    Exists(bool),
    Prefix(Box<str>),
    Suffix(Box<str>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparison {
    Gt,
    Gte,
    Lt,
    Lte,
}

/// A literal value in a filter.
#[derive(Clone, Debug, PartialEq)]
enum Literal {
    Null,
    Bool(bool),
    Number(Number),
    Text(Box<str>),
}

impl Filter {
    /// Parses a filter. An error says where and why it is invalid.
    pub fn parse(text: &str) -> Result<Self, FieldError> {
        let root = parse::filter(text)?;
        let (mut steps, mut longest_path) = (0, 0);
        root.count_steps(&mut steps, &mut longest_path);
        let conditions_work = STEP_WORK * steps + text.trim().len() as u64 / BYTES_PER_UNIT;
        Ok(Self { root, text: text.trim().into(), conditions_work, longest_path })
    }

    /// Returns an upper bound of the work to evaluate these filters on a payload. The payload is parsed once for all
    /// of them: each level that a path leads to is scanned once.
    pub fn work<'a>(filters: impl Iterator<Item = &'a Self>, data: &[u8]) -> u64 {
        let (mut work, mut longest_path) = (0_u64, 0);
        for filter in filters {
            work = work.saturating_add(filter.conditions_work);
            longest_path = longest_path.max(filter.longest_path);
        }
        let commas = data.iter().filter(|byte| **byte == b',').count() as u64;
        work.saturating_add((1 + longest_path) * (BYTE_WORK * data.len() as u64 + MEMBER_WORK * (1 + commas)))
    }

    /// Returns the filter as it was written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns whether a payload passes.
    ///
    /// ```
    /// use redrive_core::routing::filter::{Filter, Payload};
    ///
    /// let passes = |filter: &str, data: &str| {
    ///     let filter = Filter::parse(filter).unwrap();
    ///     filter.matches(&Payload::new(data.as_bytes()))
    /// };
    /// // Numbers are compared by value, and values of different types are never converted.
    /// assert!(passes(r#"{"path": "/amount", "gte": 100}"#, r#"{"amount": 1e2}"#));
    /// assert!(!passes(r#"{"path": "/amount", "gte": 100}"#, r#"{"amount": "200"}"#));
    /// // A missing value equals nothing, not even null, so `ne` passes.
    /// assert!(!passes(r#"{"path": "/amount", "eq": null}"#, "{}"));
    /// assert!(passes(r#"{"path": "/amount", "ne": null}"#, "{}"));
    /// ```
    pub fn matches(&self, payload: &Payload<'_>) -> bool {
        self.root.holds(payload)
    }
}

impl Expr {
    /// Adds up steps and tests, and determines the longest path.
    fn count_steps(&self, steps: &mut u64, longest_path: &mut u64) {
        match self {
            Self::All(parts) | Self::Any(parts) => {
                parts.iter().for_each(|part| part.count_steps(steps, longest_path));
            }
            Self::Not(part) => part.count_steps(steps, longest_path),
            Self::Where(path, tests) => {
                let length = path.steps.len() as u64;
                let values = tests.iter().map(|test| match test {
                    Test::In(literals) => literals.len() as u64,
                    _ => 1,
                });
                *steps += 1 + length + values.sum::<u64>();
                *longest_path = (*longest_path).max(length);
            }
        }
    }

    fn holds(&self, payload: &Payload<'_>) -> bool {
        match self {
            Self::All(parts) => parts.iter().all(|part| part.holds(payload)),
            Self::Any(parts) => parts.iter().any(|part| part.holds(payload)),
            Self::Not(part) => !part.holds(payload),
            Self::Where(path, tests) => {
                let found = payload.find(&path.steps);
                tests.iter().all(|test| test.holds(found))
            }
        }
    }
}

impl Test {
    /// Returns whether the condition holds for the value at its path, or for a missing value.
    fn holds(&self, found: Option<&Scalar<'_>>) -> bool {
        let text = |part: fn(&str, &str) -> bool, wanted: &str| match found {
            Some(Scalar::Text(text)) => part(text, wanted),
            _ => false,
        };
        match self {
            Self::Eq(literal) => literal.equals(found),
            Self::Ne(literal) => !literal.equals(found),
            Self::Compare(comparison, literal) => {
                literal.order_of(found).is_some_and(|order| comparison.allows(order))
            }
            Self::In(literals) => literals.iter().any(|literal| literal.equals(found)),
            Self::Exists(wanted) => found.is_some() == *wanted,
            Self::Prefix(wanted) => text(|text, wanted| text.starts_with(wanted), wanted),
            Self::Suffix(wanted) => text(|text, wanted| text.ends_with(wanted), wanted),
        }
    }
}

impl Comparison {
    fn allows(self, order: Ordering) -> bool {
        match self {
            Self::Gt => order.is_gt(),
            Self::Gte => order.is_ge(),
            Self::Lt => order.is_lt(),
            Self::Lte => order.is_le(),
        }
    }
}

impl Literal {
    fn equals(&self, found: Option<&Scalar<'_>>) -> bool {
        match (self, found) {
            (Self::Null, Some(Scalar::Null)) => true,
            (Self::Bool(wanted), Some(Scalar::Bool(found))) => wanted == found,
            _ => self.order_of(found) == Some(Ordering::Equal),
        }
    }

    /// Compares the value found with this literal: numbers with numbers, texts with texts, otherwise `None`.
    fn order_of(&self, found: Option<&Scalar<'_>>) -> Option<Ordering> {
        match (self, found) {
            (Self::Number(wanted), Some(Scalar::Number(found))) => Some(found.cmp(wanted)),
            (Self::Text(wanted), Some(Scalar::Text(found))) => Some(found.as_ref().cmp(wanted)),
            _ => None,
        }
    }
}

impl Serialize for Filter {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serde_json::from_str::<&RawValue>(&self.text).map_err(S::Error::custom)?.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Filter {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(deserializer)?;
        Self::parse(raw.get()).map_err(D::Error::custom)
    }
}
