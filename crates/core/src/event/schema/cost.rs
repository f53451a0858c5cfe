//! Computes the maximum cost of a schema before it is used, and refuses forbidden constructs.

use serde_json::{Map, Value};

use super::{MAX_COST, MAX_DEPTH, price};
use crate::field_error::FieldError;

/// Rules whose value is one schema.
const SINGLE_SCHEMA_RULES: [&str; 11] = [
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
const SCHEMA_LIST_RULES: [&str; 4] = ["allOf", "anyOf", "oneOf", "prefixItems"];
const SCHEMA_MAP_RULES: [&str; 3] = ["properties", "patternProperties", "dependentSchemas"];
/// Rules that hold schemas used by reference only.
const DEFINITION_RULES: [&str; 2] = ["$defs", "definitions"];
const DRAFT: &str = "https://json-schema.org/draft/2020-12/schema";

/// Applicators that evaluate the same value again; `unevaluated…` repeats them to find which parts they evaluated.
const IN_PLACE: [&str; 9] =
    ["allOf", "anyOf", "oneOf", "if", "then", "else", "not", "dependentSchemas", "$ref"];
/// Maximum length of a reference.
const MAX_REFERENCE_BYTES: usize = 1024;

pub(super) struct SchemaCost {
    pub(super) cost: u64,
    pub(super) has_alternatives: bool,
}

/// Sums the cost of a schema. Fails if the schema contains a forbidden construct or costs too much.
pub(super) fn compute_cost(schema: &Value) -> Result<SchemaCost, FieldError> {
    let mut scales =
        CostVisitor { root: schema, in_progress: Vec::new(), visited: 0, has_alternatives: false };
    let cost = scales.schema(schema, "schema", 1)?;
    Ok(SchemaCost { cost: cost.check, has_alternatives: scales.has_alternatives })
}

/// Cost of a schema.
#[derive(Clone, Copy, Default)]
struct Cost {
    /// Cost of validating a value.
    check: u64,
    /// Cost of finding which parts of a value were evaluated.
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

struct CostVisitor<'a> {
    root: &'a Value,
    /// References being followed, from the root to the current schema.
    in_progress: Vec<&'a str>,
    visited: u64,
    has_alternatives: bool,
}

impl<'a> CostVisitor<'a> {
    fn schema(&mut self, schema: &'a Value, location: &str, depth: usize) -> Result<Cost, FieldError> {
        if depth > MAX_DEPTH {
            return Err(at(
                location,
                format!("is nested too deeply; at most {MAX_DEPTH} levels are allowed"),
            ));
        }
        self.visited += 1;
        within(self.visited, location)?;
        match schema {
            Value::Bool(_) => Ok(Cost { check: 1, mark: 1 }),
            Value::Object(rules) => self.rules(rules, location, depth),
            _ => Err(at(location, "must be a JSON Schema: an object, true or false")),
        }
    }

    fn rules(
        &mut self,
        rules: &'a Map<String, Value>,
        location: &str,
        depth: usize,
    ) -> Result<Cost, FieldError> {
        let mut cost = Cost { check: 1, mark: 1 };
        for (rule, value) in rules {
            cost.add(self.rule(rule, value, &below(location, rule), depth)?);
            within(cost.check, location)?;
        }
        if rules.keys().any(|rule| rule.starts_with("unevaluated")) {
            cost.check = cost.check.saturating_add(cost.mark);
        }
        within(cost.check, location)?;
        Ok(cost)
    }

    fn rule(
        &mut self,
        rule: &str,
        value: &'a Value,
        location: &str,
        depth: usize,
    ) -> Result<Cost, FieldError> {
        self.has_alternatives |= ["anyOf", "oneOf"].contains(&rule);
        let cost = match rule {
            "$ref" => self.reference(value, location, depth)?,
            "$dynamicRef" | "$recursiveRef" => return Err(at(location, ONLY_LOCAL)),
            "$id" if depth > 1 => return Err(at(location, "is allowed only at the top level of a schema")),
            "$schema" if value.as_str().map(|text| text.trim_end_matches('#')) != Some(DRAFT) => {
                return Err(at(location, format!("must be {DRAFT} or omitted")));
            }
            // Neither is part of this draft, but the library evaluates both.
            "dependencies" => {
                return Err(at(
                    location,
                    "is not supported; use dependentRequired or dependentSchemas instead",
                ));
            }
            "additionalItems" => {
                return Err(at(location, "is not supported; use items together with prefixItems instead"));
            }
            _ if SINGLE_SCHEMA_RULES.contains(&rule) => self.schema(value, location, depth + 1)?,
            _ if SCHEMA_LIST_RULES.contains(&rule) => self.several(value, location, depth)?,
            _ if SCHEMA_MAP_RULES.contains(&rule) => {
                self.named(value, rule == "patternProperties", location, depth)?
            }
            _ if DEFINITION_RULES.contains(&rule) => {
                // Definitions cost nothing by themselves but must not contain forbidden constructs.
                self.named(value, false, location, depth)?;
                return Ok(Cost::default());
            }
            _ => return Ok(Cost::only(price::keyword(rule, value).map_err(|why| at(location, why))?)),
        };
        Ok(match rule {
            _ if IN_PLACE.contains(&rule) => Cost { mark: cost.mark.saturating_add(cost.check), ..cost },
            "patternProperties" => Cost { mark: cost.check, ..cost },
            _ if rule.starts_with("unevaluated") => Cost { mark: cost.check, ..cost },
            _ => Cost { mark: 1, ..cost },
        })
    }

    fn several(&mut self, value: &'a Value, location: &str, depth: usize) -> Result<Cost, FieldError> {
        let Some(schemas) = value.as_array() else { return Err(at(location, "must be a list of schemas")) };
        let mut cost = Cost::default();
        for (n, schema) in schemas.iter().enumerate() {
            cost.add(self.schema(schema, &below(location, &n.to_string()), depth + 1)?);
            within(cost.check, location)?;
        }
        Ok(cost)
    }

    /// Sums the cost of schemas keyed by name or by a pattern for names.
    fn named(
        &mut self,
        value: &'a Value,
        by_pattern: bool,
        location: &str,
        depth: usize,
    ) -> Result<Cost, FieldError> {
        let Some(schemas) = value.as_object() else {
            return Err(at(location, "must be an object of schemas"));
        };
        let mut cost = Cost::default();
        for (name, schema) in schemas {
            if by_pattern {
                cost.add(Cost::only(price::pattern(name)));
            }
            cost.add(self.schema(schema, &below(location, name), depth + 1)?);
            // The sum of all definitions may exceed the limit as long as each reference to them stays within it.
            if by_pattern {
                within(cost.check, location)?;
            }
        }
        Ok(cost)
    }

    fn reference(&mut self, value: &'a Value, location: &str, depth: usize) -> Result<Cost, FieldError> {
        let text = value.as_str().unwrap_or_default();
        if text.len() > MAX_REFERENCE_BYTES {
            return Err(at(location, format!("must be at most {MAX_REFERENCE_BYTES} bytes long")));
        }
        let pointer = match text.strip_prefix('#') {
            Some(pointer) if (pointer.is_empty() || pointer.starts_with('/')) && !pointer.contains('%') => {
                pointer
            }
            _ => return Err(at(location, ONLY_LOCAL)),
        };
        if pointer.is_empty() || self.in_progress.contains(&pointer) {
            return Err(at(
                location,
                "refers to a schema that contains this reference; recursive schemas are not supported",
            ));
        }
        let Some(target) = self.root.pointer(pointer) else {
            return Err(at(location, format!("refers to {pointer}, which is not in this schema")));
        };
        self.in_progress.push(pointer);
        let cost = self.schema(target, location, depth + 1);
        self.in_progress.pop();
        cost
    }
}

const ONLY_LOCAL: &str =
    "must be a path within this schema, such as #/$defs/name; external schemas are never fetched";

/// Maximum length of a position in messages: a property name may be as long as the schema.
const MAX_LOCATION_CHARS: usize = 200;

fn at(location: &str, message: impl Into<String>) -> FieldError {
    FieldError::new(location.chars().take(MAX_LOCATION_CHARS).collect::<String>(), message)
}

fn below(location: &str, name: &str) -> String {
    let rest = MAX_LOCATION_CHARS.saturating_sub(location.len());
    match rest {
        0 => location.to_owned(),
        _ => format!("{location}/{}", name.chars().take(rest).collect::<String>()),
    }
}

fn within(cost: u64, location: &str) -> Result<(), FieldError> {
    match cost > MAX_COST {
        true => Err(at(
            location,
            format!(
                "is too expensive to check; simplify it: at most {MAX_COST} rules are allowed, each counted once for \
                 every path of references to it. A pattern counts as {} rules and more with each position, \
                 uniqueItems as {}, and each value of enum, required and dependentRequired as one or more",
                price::PATTERN,
                price::UNIQUE_ITEMS,
            ),
        )),
        false => Ok(()),
    }
}
