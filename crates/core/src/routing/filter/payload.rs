//! A payload for filters: parsed lazily, only at the paths that are queried, and there only once.
//!
//! The text is known to be JSON. A value that JSON allows but that is not valid text (half a surrogate pair)
//! exists and is equal to nothing.

use std::{borrow::Cow, cell::OnceCell, collections::HashMap};

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};
use serde_json::value::RawValue;

use super::number::Number;

/// A lazily parsed payload.
pub struct Payload<'a> {
    root: Node<'a>,
}

/// A value as filters see it.
#[derive(Debug, PartialEq)]
pub(super) enum Scalar<'a> {
    Null,
    Bool(bool),
    Number(Number),
    Text(Cow<'a, str>),
    /// An object, a list, or a string that is not valid text.
    Other,
}

struct Node<'a> {
    raw: &'a str,
    /// Boxed: there may be very many nodes, and few are parsed.
    inside: OnceCell<Box<ParsedNode<'a>>>,
}

struct ParsedNode<'a> {
    scalar: Scalar<'a>,
    parts: Children<'a>,
}

enum Children<'a> {
    None,
    Object(HashMap<Cow<'a, str>, Node<'a>>),
    List(Vec<Node<'a>>),
}

impl<'a> Payload<'a> {
    /// Wraps data that is known to be JSON. Any other data counts as a value that is equal to nothing.
    pub fn new(data: &'a [u8]) -> Self {
        let raw = std::str::from_utf8(data).unwrap_or_default().trim_ascii();
        Self { root: Node { raw, inside: OnceCell::new() } }
    }

    /// Returns the value at a path.
    pub(super) fn find(&self, steps: &[Box<str>]) -> Option<&Scalar<'a>> {
        self.node(steps).map(|node| &node.inside().scalar)
    }

    /// Returns the raw text of the value at a path.
    pub(super) fn text_at(&self, steps: &[Box<str>]) -> Option<&'a str> {
        self.node(steps).map(|node| node.raw)
    }

    fn node(&self, steps: &[Box<str>]) -> Option<&Node<'a>> {
        let mut node = &self.root;
        for step in steps {
            node = match &node.inside().parts {
                Children::None => return None,
                Children::Object(members) => members.get(&**step)?,
                Children::List(items) => items.get(position(step)?)?,
            };
        }
        Some(node)
    }
}

/// Parses a list index per RFC 6901, without leading zeros. `-`, the position after the last item, never exists.
fn position(step: &str) -> Option<usize> {
    let plain = step.bytes().all(|digit| digit.is_ascii_digit()) && (step == "0" || !step.starts_with('0'));
    if plain { step.parse().ok() } else { None }
}

impl<'a> Node<'a> {
    fn new(raw: &'a RawValue) -> Self {
        Self { raw: raw.get(), inside: OnceCell::new() }
    }

    fn inside(&self) -> &ParsedNode<'a> {
        self.inside.get_or_init(|| Box::new(ParsedNode::parse(self.raw)))
    }
}

impl<'a> ParsedNode<'a> {
    fn parse(raw: &'a str) -> Self {
        let (scalar, parts) = match raw.as_bytes().first() {
            Some(b'{') => (Scalar::Other, object(raw)),
            Some(b'[') => (Scalar::Other, list(raw)),
            _ => (scalar(raw), Children::None),
        };
        Self { scalar, parts }
    }
}

/// Parses a value that is neither an object nor a list.
pub(super) fn scalar(raw: &str) -> Scalar<'_> {
    match raw.as_bytes().first() {
        Some(b'"') => text(raw).map_or(Scalar::Other, Scalar::Text),
        Some(b'-' | b'0'..=b'9') => Scalar::Number(Number::parse(raw)),
        _ => match raw {
            "null" => Scalar::Null,
            "true" => Scalar::Bool(true),
            "false" => Scalar::Bool(false),
            _ => Scalar::Other,
        },
    }
}

/// Returns a string without its quotes, or `None` if it is not a valid string.
pub(super) fn text(raw: &str) -> Option<Cow<'_, str>> {
    let inner = raw.strip_prefix('"')?.strip_suffix('"')?;
    if !inner.contains('\\') {
        return Some(Cow::Borrowed(inner));
    }
    serde_json::from_str(raw).ok().map(Cow::Owned)
}

fn object(raw: &str) -> Children<'_> {
    let Some(members) = members(raw) else { return Children::None };
    // Of two members with the same name the last one counts, as in most JSON parsers.
    let members = members.into_iter().filter_map(|(name, value)| Some((text(name)?, Node::new(value))));
    Children::Object(members.collect())
}

fn list(raw: &str) -> Children<'_> {
    match serde_json::from_str::<Vec<&RawValue>>(raw) {
        Ok(items) => Children::List(items.into_iter().map(Node::new).collect()),
        Err(_) => Children::None,
    }
}

/// Returns the members of an object in order, names as written. Returns `None` if it is not an object.
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
                // Names are kept raw, so that an invalid name affects only its own member.
                while let Some((name, value)) = map.next_entry::<&RawValue, &RawValue>()? {
                    members.push((name.get(), value));
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Collect)
    }
}
