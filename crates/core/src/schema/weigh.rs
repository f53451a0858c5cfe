//! What a schema costs at the most, told before it is ever used; and what it must not hold.

use serde_json::{Map, Value};

use super::{MAX_COST, MAX_DEPTH, PATTERN_COST};
use crate::invalid::Invalid;

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

pub(super) struct Weight {
    pub(super) cost: u64,
    pub(super) has_alternatives: bool,
}

/// Adds up what a schema costs, and refuses what must not be in one.
pub(super) fn weigh(schema: &Value) -> Result<Weight, Invalid> {
    let mut scales = Scales { root: schema, under_way: Vec::new(), looked_at: 0, has_alternatives: false };
    let cost = scales.schema(schema, "schema", 1)?;
    Ok(Weight { cost, has_alternatives: scales.has_alternatives })
}

struct Scales<'a> {
    root: &'a Value,
    /// The references that led here.
    under_way: Vec<&'a str>,
    looked_at: u64,
    has_alternatives: bool,
}

impl<'a> Scales<'a> {
    fn schema(&mut self, schema: &'a Value, place: &str, depth: usize) -> Result<u64, Invalid> {
        if depth > MAX_DEPTH {
            return Err(at(place, format!("is nested too deeply; at most {MAX_DEPTH} levels are allowed")));
        }
        self.looked_at += 1;
        within(self.looked_at, place)?;
        match schema {
            Value::Bool(_) => Ok(1),
            Value::Object(rules) => self.rules(rules, place, depth),
            _ => Err(at(place, "must be a JSON Schema: an object, true or false")),
        }
    }

    fn rules(&mut self, rules: &'a Map<String, Value>, place: &str, depth: usize) -> Result<u64, Invalid> {
        let mut cost = 1;
        for (rule, value) in rules {
            cost += self.rule(rule, value, &format!("{place}/{rule}"), depth)?;
            within(cost, place)?;
        }
        // What was evaluated is found out by evaluating it once more.
        if rules.keys().any(|rule| rule.starts_with("unevaluated")) {
            cost *= 2;
        }
        within(cost, place)?;
        Ok(cost)
    }

    fn rule(&mut self, rule: &str, value: &'a Value, place: &str, depth: usize) -> Result<u64, Invalid> {
        self.has_alternatives |= ["anyOf", "oneOf"].contains(&rule);
        match rule {
            "$ref" => self.reference(value, place, depth),
            "$dynamicRef" | "$recursiveRef" => Err(at(place, ONLY_LOCAL)),
            "$id" if depth > 1 => Err(at(place, "may stand at the top of a schema alone")),
            "$schema" if value.as_str().map(|text| text.trim_end_matches('#')) != Some(DRAFT) => {
                Err(at(place, format!("must be {DRAFT}, or left out")))
            }
            "pattern" => Ok(PATTERN_COST),
            "enum" => Ok(value.as_array().map_or(1, |values| values.len() as u64)),
            _ if ONE.contains(&rule) => self.schema(value, place, depth + 1),
            _ if LISTS.contains(&rule) => self.several(value, place, depth),
            _ if MAPS.contains(&rule) => {
                let each = if rule == "patternProperties" { PATTERN_COST } else { 0 };
                self.named(value, each, place, depth)
            }
            _ if SHELVES.contains(&rule) => {
                // It costs nothing to have them, but there must be nothing in them either that is refused.
                self.named(value, 0, place, depth)?;
                Ok(0)
            }
            _ => Ok(1),
        }
    }

    fn several(&mut self, value: &'a Value, place: &str, depth: usize) -> Result<u64, Invalid> {
        let Some(schemas) = value.as_array() else { return Err(at(place, "must be a list of schemas")) };
        let mut cost = 0;
        for (n, schema) in schemas.iter().enumerate() {
            cost += self.schema(schema, &format!("{place}/{n}"), depth + 1)?;
        }
        Ok(cost)
    }

    fn named(&mut self, value: &'a Value, each: u64, place: &str, depth: usize) -> Result<u64, Invalid> {
        let Some(schemas) = value.as_object() else { return Err(at(place, "must be an object of schemas")) };
        let mut cost = 0;
        for (name, schema) in schemas {
            cost += each + self.schema(schema, &format!("{place}/{name}"), depth + 1)?;
        }
        Ok(cost)
    }

    fn reference(&mut self, value: &'a Value, place: &str, depth: usize) -> Result<u64, Invalid> {
        let text = value.as_str().unwrap_or_default();
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

fn at(place: &str, message: impl Into<String>) -> Invalid {
    let place: String = place.chars().take(200).collect();
    Invalid::new(place, message)
}

fn within(cost: u64, place: &str) -> Result<(), Invalid> {
    match cost > MAX_COST {
        true => Err(at(
            place,
            format!(
                "takes too much work to check: {MAX_COST} rules are allowed, counted once for each way that leads \
                 to them, and a pattern counts for {PATTERN_COST}"
            ),
        )),
        false => Ok(()),
    }
}
