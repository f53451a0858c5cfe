//! Splits a JSON object or list into its unparsed members. Only as many as can be reported are kept, so that a large body
//! takes no more memory than a small one.

use std::{borrow::Cow, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::value::RawValue;

/// Maximum number of members of one object or list that are examined.
const MAX_MEMBERS: usize = 1_024;

/// Members of an object, in their order.
pub(super) struct Object<'a>(pub(super) Vec<(Cow<'a, str>, &'a RawValue)>);

/// Items of a list.
pub(super) struct List<'a> {
    /// The first items.
    pub(super) items: Vec<&'a RawValue>,
    /// Number of all items.
    pub(super) len: usize,
}

struct ObjectVisitor;
struct ListVisitor;

/// Name of a member, borrowed if it has no escapes.
struct Name<'a>(Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Name<'a> {
    fn deserialize<D: Deserializer<'de>>(name: D) -> Result<Self, D::Error> {
        struct NameVisitor;
        impl<'de> Visitor<'de> for NameVisitor {
            type Value = Name<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a name")
            }

            fn visit_borrowed_str<E>(self, name: &'de str) -> Result<Name<'de>, E> {
                Ok(Name(Cow::Borrowed(name)))
            }

            fn visit_str<E>(self, name: &str) -> Result<Name<'de>, E> {
                Ok(Name(Cow::Owned(name.to_owned())))
            }
        }
        name.deserialize_str(NameVisitor)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Object<'a> {
    fn deserialize<D: Deserializer<'de>>(object: D) -> Result<Self, D::Error> {
        object.deserialize_map(ObjectVisitor)
    }
}

impl<'de> Visitor<'de> for ObjectVisitor {
    type Value = Object<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Object<'de>, M::Error> {
        let mut members = Vec::new();
        while members.len() < MAX_MEMBERS {
            let Some((Name(name), value)) = map.next_entry()? else { return Ok(Object(members)) };
            members.push((name, value));
        }
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Object(members))
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for List<'a> {
    fn deserialize<D: Deserializer<'de>>(list: D) -> Result<Self, D::Error> {
        list.deserialize_seq(ListVisitor)
    }
}

impl<'de> Visitor<'de> for ListVisitor {
    type Value = List<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut list: S) -> Result<List<'de>, S::Error> {
        let mut items = Vec::new();
        while items.len() < MAX_MEMBERS {
            let Some(item) = list.next_element()? else {
                let len = items.len();
                return Ok(List { items, len });
            };
            items.push(item);
        }
        let mut len = items.len();
        while list.next_element::<IgnoredAny>()?.is_some() {
            len += 1;
        }
        Ok(List { items, len })
    }
}
