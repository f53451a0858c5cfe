//! What a schema costs at the most, told before it is ever used; and what it must not hold.

use serde_json::{Map, Value};

use super::{MAX_COST, MAX_DEPTH, price};
use crate::field_error::Invalid;

/// Rules whose value is one schema, a list of them, or some by name.
const ONE: [&str; 11] = [
    "not",
    "if",
    "then",
    "else",
    "items",
    "contains",
    "additionalProperties",
    "propertyNames",
    "unevaluatedItems",
    "unevaluatedProperties",
    "contentSchema",
];
const LISTS: [&str; 4] = ["allOf", "anyOf", "oneOf", "prefixItems"];
const MAPS: [&str; 3] = ["properties", "patternProperties", "dependentSchemas"];
/// Where schemas lie that are used by reference alone.
const SHELVES: [&str; 2] = ["$defs", "definitions"];
const DRAFT: &str = "https://json-schema.org/draft/2020-12/schema";

/// Applicators that evaluate the same value once more, which `unevaluated…` has to repeat to find out what they evaluated.
const IN_PLACE: [&str; 9] =
    ["allOf", "anyOf", "oneOf", "if", "then", "else", "not", "dependentSchemas", "$ref"];
/// The longest reference.
const MAX_REFERENCE_BYTES: usize = 1024;

pub(super) struct Weight {
    pub(super) cost: u64,
    pub(super) has_alternatives: bool,
}

/// Adds up what a schema costs, and refuses what must not be in one.
pub(super) fn weigh(schema: &Value) -> Result<Weight, Invalid> {
    let mut scales = Scales { root: schema, under_way: Vec::new(), looked_at: 0, has_alternatives: false };
    let cost = scales.schema(schema, "schema", 1)?;
    Ok(Weight { cost: cost.check, has_alternatives: scales.has_alternatives })
}

/// What a schema costs.
#[derive(Clone, Copy, Default)]
struct Cost {
    /// Checking a value.
    check: u64,
    /// Finding out which of its parts were evaluated.
    mark: u64,
}

impl Cost {
    fn only(check: u64) -> Self {
        Self { check, mark: 0 }
    }

    fn add(&mut self, other: Self) {
        self.check = self.check.saturating_add(other.check);
        self.mark = self.mark.saturating_add(other.mark);
    }
}

struct Scales<'a> {
    root: &'a Value,
    /// The references that led here.
    under_way: Vec<&'a str>,
    looked_at: u64,
    has_alternatives: bool,
}

impl<'a> Scales<'a> {
    fn schema(&mut self, schema: &'a Value, place: &str, depth: usize) -> Result<Cost, Invalid> {
        if depth > MAX_DEPTH {
            return Err(at(place, format!("is nested too deeply; at most {MAX_DEPTH} levels are allowed")));
        }
        self.looked_at += 1;
        within(self.looked_at, place)?;
        match schema {
            Value::Bool(_) => Ok(Cost { check: 1, mark: 1 }),
            Value::Object(rules) => self.rules(rules, place, depth),
            _ => Err(at(place, "must be a JSON Schema: an object, true or false")),
        }
    }

    fn rules(&mut self, rules: &'a Map<String, Value>, place: &str, depth: usize) -> Result<Cost, Invalid> {
        let mut cost = Cost { check: 1, mark: 1 };
        for (rule, value) in rules {
            cost.add(self.rule(rule, value, &below(place, rule), depth)?);
            within(cost.check, place)?;
        }
        if rules.keys().any(|rule| rule.starts_with("unevaluated")) {
            cost.check = cost.check.saturating_add(cost.mark);
        }
        within(cost.check, place)?;
        Ok(cost)
    }

    fn rule(&mut self, rule: &str, value: &'a Value, place: &str, depth: usize) -> Result<Cost, Invalid> {
        self.has_alternatives |= ["anyOf", "oneOf"].contains(&rule);
        let cost = match rule {
            "$ref" => self.reference(value, place, depth)?,
            "$dynamicRef" | "$recursiveRef" => return Err(at(place, ONLY_LOCAL)),
            "$id" if depth > 1 => return Err(at(place, "may stand at the top of a schema alone")),
            "$schema" if value.as_str().map(|text| text.trim_end_matches('#')) != Some(DRAFT) => {
                return Err(at(place, format!("must be {DRAFT}, or left out")));
            }
            // Neither is part of this draft, and the library evaluates both all the same.
            "dependencies" => return Err(at(place, "write dependentRequired or dependentSchemas instead")),
            "additionalItems" => return Err(at(place, "write items beside prefixItems instead")),
            _ if ONE.contains(&rule) => self.schema(value, place, depth + 1)?,
            _ if LISTS.contains(&rule) => self.several(value, place, depth)?,
            _ if MAPS.contains(&rule) => self.named(value, rule == "patternProperties", place, depth)?,
            _ if SHELVES.contains(&rule) => {
                // It costs nothing to have them, but there must be nothing in them either that is refused.
                self.named(value, false, place, depth)?;
                return Ok(Cost::default());
            }
            _ => return Ok(Cost::only(price::keyword(rule, value).map_err(|why| at(place, why))?)),
        };
        Ok(match rule {
            _ if IN_PLACE.contains(&rule) => Cost { mark: cost.mark.saturating_add(cost.check), ..cost },
            "patternProperties" => Cost { mark: cost.check, ..cost },
            _ if rule.starts_with("unevaluated") => Cost { mark: cost.check, ..cost },
            _ => Cost { mark: 1, ..cost },
        })
    }

    fn several(&mut self, value: &'a Value, place: &str, depth: usize) -> Result<Cost, Invalid> {
        let Some(schemas) = value.as_array() else { return Err(at(place, "must be a list of schemas")) };
        let mut cost = Cost::default();
        for (n, schema) in schemas.iter().enumerate() {
            cost.add(self.schema(schema, &below(place, &n.to_string()), depth + 1)?);
            within(cost.check, place)?;
        }
        Ok(cost)
    }

    /// Schemas by name, or by a pattern for the names.
    fn named(
        &mut self,
        value: &'a Value,
        by_pattern: bool,
        place: &str,
        depth: usize,
    ) -> Result<Cost, Invalid> {
        let Some(schemas) = value.as_object() else { return Err(at(place, "must be an object of schemas")) };
        let mut cost = Cost::default();
        for (name, schema) in schemas {
            if by_pattern {
                cost.add(Cost::only(price::pattern(name)));
            }
            cost.add(self.schema(schema, &below(place, name), depth + 1)?);
            // Definitions add up to more than a schema may cost if they are used one by one.
            if by_pattern {
                within(cost.check, place)?;
            }
        }
        Ok(cost)
    }

    fn reference(&mut self, value: &'a Value, place: &str, depth: usize) -> Result<Cost, Invalid> {
        let text = value.as_str().unwrap_or_default();
        if text.len() > MAX_REFERENCE_BYTES {
            return Err(at(place, format!("must be at most {MAX_REFERENCE_BYTES} bytes long")));
        }
        let pointer = match text.strip_prefix('#') {
            Some(pointer) if (pointer.is_empty() || pointer.starts_with('/')) && !pointer.contains('%') => {
                pointer
            }
            _ => return Err(at(place, ONLY_LOCAL)),
        };
        if pointer.is_empty() || self.under_way.contains(&pointer) {
            return Err(at(
                place,
                "leads back to where it is; a schema that contains itself takes as long as somebody likes",
            ));
        }
        let Some(target) = self.root.pointer(pointer) else {
            return Err(at(place, format!("leads nowhere: there is no {pointer} in this schema")));
        };
        self.under_way.push(pointer);
        let cost = self.schema(target, place, depth + 1);
        self.under_way.pop();
        cost
    }
}

const ONLY_LOCAL: &str =
    "must be a path within this schema, such as #/$defs/name; nothing is fetched from elsewhere";

/// Places are cut here: a name may be as long as a schema.
const MAX_PLACE_CHARS: usize = 200;

fn at(place: &str, message: impl Into<String>) -> Invalid {
    Invalid::new(place.chars().take(MAX_PLACE_CHARS).collect::<String>(), message)
}

fn below(place: &str, name: &str) -> String {
    let rest = MAX_PLACE_CHARS.saturating_sub(place.len());
    match rest {
        0 => place.to_owned(),
        _ => format!("{place}/{}", name.chars().take(rest).collect::<String>()),
    }
}

fn within(cost: u64, place: &str) -> Result<(), Invalid> {
    match cost > MAX_COST {
        true => Err(at(
            place,
            format!(
                "takes too much work to check: {MAX_COST} rules are allowed, counted once for each way that leads \
                 to them. A pattern counts for {} and more with each position, uniqueItems for {}, an enum, required \
                 and dependentRequired for each of their values",
                price::PATTERN,
                price::UNIQUE_ITEMS,
            ),
        )),
        false => Ok(()),
    }
}
