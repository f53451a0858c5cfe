//! A payload to be asked: taken apart only where somebody asks, and there only once.
//!
//! It is read from text that is known to be JSON. What JSON allows and texts do not (half a surrogate pair) is
//! there, and equal to nothing.

use std::{borrow::Cow, cell::OnceCell, collections::HashMap};

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};
use serde_json::value::RawValue;

use super::number::Number;

/// A payload, as far as it was looked into.
pub struct Payload<'a> {
    root: Node<'a>,
}

/// A value in a filter's eyes.
#[derive(Debug, PartialEq)]
pub(super) enum Scalar<'a> {
    Null,
    Bool(bool),
    Number(Number),
    Text(Cow<'a, str>),
    /// An object, a list, or a text that is none.
    Other,
}

struct Node<'a> {
    raw: &'a str,
    /// Boxed: there may be very many, and few are looked into.
    inside: OnceCell<Box<Inside<'a>>>,
}

struct Inside<'a> {
    scalar: Scalar<'a>,
    parts: Parts<'a>,
}

enum Parts<'a> {
    None,
    Object(HashMap<Cow<'a, str>, Node<'a>>),
    List(Vec<Node<'a>>),
}

impl<'a> Payload<'a> {
    /// A payload that is known to be JSON. Anything else is there, and equal to nothing.
    pub fn new(data: &'a [u8]) -> Self {
        let raw = std::str::from_utf8(data).unwrap_or_default().trim_ascii();
        Self { root: Node { raw, inside: OnceCell::new() } }
    }

    /// What is where these steps lead.
    pub(super) fn find(&self, steps: &[Box<str>]) -> Option<&Scalar<'a>> {
        self.node(steps).map(|node| &node.inside().scalar)
    }

    /// The same as it was written.
    pub(super) fn text_at(&self, steps: &[Box<str>]) -> Option<&'a str> {
        self.node(steps).map(|node| node.raw)
    }

    fn node(&self, steps: &[Box<str>]) -> Option<&Node<'a>> {
        let mut node = &self.root;
        for step in steps {
            node = match &node.inside().parts {
                Parts::None => return None,
                Parts::Object(members) => members.get(&**step)?,
                Parts::List(items) => items.get(place(step)?)?,
            };
        }
        Some(node)
    }
}

/// A place in a list: as RFC 6901 has it, without leading zeros. `-`, the place behind the last, is never there.
fn place(step: &str) -> Option<usize> {
    let plain = step.bytes().all(|digit| digit.is_ascii_digit()) && (step == "0" || !step.starts_with('0'));
    if plain { step.parse().ok() } else { None }
}

impl<'a> Node<'a> {
    fn new(raw: &'a RawValue) -> Self {
        Self { raw: raw.get(), inside: OnceCell::new() }
    }

    fn inside(&self) -> &Inside<'a> {
        self.inside.get_or_init(|| Box::new(Inside::read(self.raw)))
    }
}

impl<'a> Inside<'a> {
    fn read(raw: &'a str) -> Self {
        let (scalar, parts) = match raw.as_bytes().first() {
            Some(b'{') => (Scalar::Other, object(raw)),
            Some(b'[') => (Scalar::Other, list(raw)),
            _ => (scalar(raw), Parts::None),
        };
        Self { scalar, parts }
    }
}

/// Reads what is neither an object nor a list.
pub(super) fn scalar(raw: &str) -> Scalar<'_> {
    match raw.as_bytes().first() {
        Some(b'"') => text(raw).map_or(Scalar::Other, Scalar::Text),
        Some(b'-' | b'0'..=b'9') => Scalar::Number(Number::read(raw)),
        _ => match raw {
            "null" => Scalar::Null,
            "true" => Scalar::Bool(true),
            "false" => Scalar::Bool(false),
            _ => Scalar::Other,
        },
    }
}

/// A text without its quotes; none if it is no text.
pub(super) fn text(raw: &str) -> Option<Cow<'_, str>> {
    let inner = raw.strip_prefix('"')?.strip_suffix('"')?;
    if !inner.contains('\\') {
        return Some(Cow::Borrowed(inner));
    }
    serde_json::from_str(raw).ok().map(Cow::Owned)
}

fn object(raw: &str) -> Parts<'_> {
    let Some(members) = members(raw) else { return Parts::None };
    // Of two members with the same name the last counts, as nearly everywhere.
    let members = members.into_iter().filter_map(|(name, value)| Some((text(name)?, Node::new(value))));
    Parts::Object(members.collect())
}

fn list(raw: &str) -> Parts<'_> {
    match serde_json::from_str::<Vec<&RawValue>>(raw) {
        Ok(items) => Parts::List(items.into_iter().map(Node::new).collect()),
        Err(_) => Parts::None,
    }
}

/// The members of an object in their order, names as they are written. None: it is no object.
pub(super) fn members(raw: &str) -> Option<Vec<(&str, &RawValue)>> {
    serde_json::from_str::<Members<'_>>(raw).ok().map(|members| members.0)
}

struct Members<'a>(Vec<(&'a str, &'a RawValue)>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
                let mut members = Vec::new();
                // Names are taken as they are written: one that is no text spoils nothing but itself.
                while let Some((name, value)) = map.next_entry::<&RawValue, &RawValue>()? {
                    members.push((name.get(), value));
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Collect)
    }
}
