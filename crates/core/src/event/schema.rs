//! JSON Schemas of event types (draft 2020-12), restricted to those that check a payload in bounded time.
//!
//! A schema refers to nothing outside of itself and is not recursive, so its cost is known when it is saved.
//! Patterns are matched in linear time. A schema is never fetched from the network.

mod cost;
mod keywords;
mod pattern;
mod price;

use std::fmt;

use jsonschema::{Draft, PatternOptions, Validator, error::ValidationError};
use serde_json::Value;

use crate::field_error::FieldError;

/// Maximum size of a schema as JSON.
pub const MAX_BYTES: usize = 64 * 1024;
/// Maximum cost of checking one value by a schema: the sum of its rules, each counted once for every path that
/// leads to it and weighted with the price of its keyword.
pub const MAX_COST: u64 = 2_000;
/// Maximum nesting depth of schemas, including references.
pub const MAX_DEPTH: usize = 64;

/// Maximum memory of a compiled pattern, and of its cache while it is matched.
const MAX_PATTERN_BYTES: usize = 128 * 1024;
/// Maximum work for one payload: the cost of its schema times its bytes. A unit takes one to four nanoseconds.
pub const MAX_WORK: u64 = 1 << 28;
/// Maximum work up to which violations are explained if a schema has alternatives, since the violations of each
/// alternative are collected; beyond it, only the fact is reported.
const MAX_EXPLAINED_WORK: u64 = 1 << 20;

/// A compiled schema.
pub struct Schema {
    validator: Validator,
    cost: u64,
    has_alternatives: bool,
}

impl fmt::Debug for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Schema").field("cost", &self.cost).finish_non_exhaustive()
    }
}

/// Why a payload violates a schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchemaViolation {
    /// Position in the payload as a JSON pointer; empty for the whole payload.
    pub path: String,
    /// The violated rule as a JSON pointer into the schema; `None` if it is unknown.
    pub rule: Option<String>,
    /// What is wrong.
    pub message: String,
}

impl SchemaViolation {
    /// Converts it into an error about the value that was checked, at `field`.
    pub fn into_field_error(self, field: &str) -> FieldError {
        let rule = self.rule.map_or_else(String::new, |rule| format!(" (rule {rule} of the schema)"));
        FieldError::new(format!("{field}{}", self.path), format!("{}{rule}", self.message))
    }
}

impl Schema {
    /// Parses a schema. An error says where and why it is invalid.
    ///
    /// ```
    /// use redrive_core::event::schema::Schema;
    ///
    /// let schema = Schema::parse(r#"{"required": ["id"]}"#).unwrap();
    /// assert!(schema.check(br#"{"id": 1}"#).is_ok() && schema.check(b"{}").is_err());
    /// // The cost of a schema must be bounded, so a schema that contains itself is rejected.
    /// let recursive = r##"{"properties": {"child": {"$ref": "#"}}}"##;
    /// assert_eq!(Schema::parse(recursive).unwrap_err().field, "schema/properties/child/$ref");
    /// // A larger payload takes more work, by an upper bound that is known before it is checked.
    /// assert!(schema.max_work(b"[1, 2, 3]") > schema.max_work(b"[]"));
    /// ```
    pub fn parse(text: &str) -> Result<Self, FieldError> {
        if text.len() > MAX_BYTES {
            let size = text.len();
            return Err(FieldError::new(
                "schema",
                format!("is {size} bytes long; at most {MAX_BYTES} are allowed"),
            ));
        }
        let schema: Value = serde_json::from_str(text)
            .map_err(|error| FieldError::new("schema", format!("cannot be parsed as JSON: {error}")))?;
        let cost = cost::compute_cost(&schema)?;
        let validator = jsonschema::options()
            .with_draft(Draft::Draft202012)
            .offline()
            .should_validate_formats(false)
            .with_keyword("multipleOf", keywords::multiple_of)
            .with_keyword("uniqueItems", keywords::unique_items)
            .with_pattern_options(
                PatternOptions::regex().size_limit(MAX_PATTERN_BYTES).dfa_size_limit(MAX_PATTERN_BYTES),
            )
            .build(&schema)
            .map_err(|error| refused(&error))?;
        Ok(Self { validator, cost: cost.cost, has_alternatives: cost.has_alternatives })
    }

    /// Returns an upper bound of the work to check a payload.
    pub fn max_work(&self, data: &[u8]) -> u64 {
        // Each list and each object is allocated separately, and may be only two bytes long.
        let nested = data.iter().filter(|byte| matches!(byte, b'[' | b'{')).count() as u64;
        self.per_byte().saturating_mul(data.len() as u64).saturating_add(price::NESTED * nested)
    }

    fn per_byte(&self) -> u64 {
        price::PARSE + self.cost
    }

    /// Checks a payload.
    pub fn check(&self, data: &[u8]) -> Result<(), SchemaViolation> {
        let work = self.max_work(data);
        if work > MAX_WORK {
            let max = MAX_WORK / self.per_byte();
            return Err(SchemaViolation {
                path: String::new(),
                rule: None,
                message: format!("is too large for this schema, which can check at most {max} bytes"),
            });
        }
        let value: Value = serde_json::from_slice(data).map_err(|error| SchemaViolation {
            path: String::new(),
            rule: None,
            message: format!("cannot be checked by the schema: {error}"),
        })?;
        if self.validator.is_valid(&value) {
            return Ok(());
        }
        if self.has_alternatives && work > MAX_EXPLAINED_WORK {
            return Err(SchemaViolation {
                path: String::new(),
                rule: None,
                message:
                    "does not match the schema, and is too large to locate the error; test a smaller payload"
                        .to_owned(),
            });
        }
        self.validator.validate(&value).map_err(|error| SchemaViolation {
            path: error.instance_path().to_string(),
            rule: Some(error.schema_path().to_string()),
            message: shortened(&error.masked().to_string()),
        })
    }
}

fn refused(error: &ValidationError<'_>) -> FieldError {
    let location = format!("schema{}", error.instance_path());
    let message = shortened(&error.to_string());
    FieldError::new(location, format!("is not a supported JSON Schema (draft 2020-12): {message}"))
}

/// Truncates a message: it may contain values as large as a payload.
fn shortened(text: &str) -> String {
    const MAX_MESSAGE_CHARS: usize = 300;
    match text.char_indices().nth(MAX_MESSAGE_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn schema(value: &Value) -> Schema {
        Schema::parse(&value.to_string()).unwrap_or_else(|invalid| panic!("{value}: {invalid}"))
    }

    #[track_caller]
    fn refused_at(value: &Value) -> (String, String) {
        let invalid = Schema::parse(&value.to_string()).expect_err(&value.to_string());
        (invalid.field.into_owned(), invalid.message)
    }

    #[test]
    fn violations_name_their_path_and_rule() {
        let order = schema(&json!({
            "type": "object",
            "required": ["id", "items"],
            "properties": {
                "id": {"type": "string", "pattern": "^o-[0-9]+$"},
                "items": {"type": "array", "items": {"$ref": "#/$defs/item"}, "minItems": 1},
            },
            "$defs": {"item": {"type": "object", "properties": {"count": {"type": "integer", "minimum": 1}}}},
        }));
        assert_eq!(order.check(br#"{"id": "o-1", "items": [{"count": 1}]}"#), Ok(()));
        let fault = |data: &str| {
            let violation = order.check(data.as_bytes()).unwrap_err();
            (violation.path, violation.rule.unwrap_or_default(), violation.message)
        };
        let (path, rule, message) = fault(r#"{"id": "o-1", "items": [{"count": 1}, {"count": 0}]}"#);
        assert_eq!(path, "/items/1/count");
        assert!(rule.ends_with("/properties/count/minimum"), "{rule}");
        assert!(message.contains("minimum"), "{message}");
        assert_eq!(fault(r#"{"id": "o-1"}"#).0, "");
        assert!(fault(r#"{"id": "o-1"}"#).2.contains("items"));
        assert_eq!(fault(r#"{"id": "x", "items": [1]}"#).0, "/id");
        let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
        assert!(order.check(deep.as_bytes()).unwrap_err().message.contains("cannot be checked"));
    }

    #[test]
    fn external_references_are_never_fetched() {
        for reference in [
            "https://example.com/schema.json",
            "http://127.0.0.1:1/",
            "file:///etc/passwd",
            "other.json",
            "//example.com/x",
            "#anchor",
            "#/$defs/a%20b",
            "https://json-schema.org/draft/2020-12/schema",
        ] {
            for schema in [
                json!({"$ref": reference}),
                json!({"properties": {"a": {"items": {"$ref": reference}}}}),
                json!({"$defs": {"unused": {"$ref": reference}}}),
            ] {
                let (field, message) = refused_at(&schema);
                assert!(field.ends_with("/$ref") && message.contains("#/$defs/"), "{field}: {message}");
            }
        }
        let (field, _) = refused_at(&json!({"$schema": "http://json-schema.org/draft-07/schema#"}));
        assert_eq!(field, "schema/$schema");
        assert_eq!(refused_at(&json!({"items": {"$id": "https://example.com/"}})).0, "schema/items/$id");
        assert_eq!(refused_at(&json!({"$dynamicRef": "#node"})).0, "schema/$dynamicRef");
        // A property named `$ref` is not a reference.
        schema(&json!({"properties": {"$ref": {"type": "string"}}, "required": ["$ref"]}));
        schema(
            &json!({"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "https://example.com/order"}),
        );
    }

    #[test]
    fn keywords_of_older_drafts_are_rejected() {
        // The library evaluates these keywords, so a reference inside of them could recurse.
        for (keyword, schema) in [
            ("dependencies", json!({"dependencies": {"a": {"$ref": "#"}}})),
            ("dependencies", json!({"items": {"dependencies": {"a": ["b"]}}})),
            ("additionalItems", json!({"additionalItems": {"$ref": "#"}})),
        ] {
            let (field, message) = refused_at(&schema);
            assert!(field.ends_with(keyword) && message.contains("instead"), "{field}: {message}");
        }
        for list in
            [json!({"required": [[], [[]]]}), json!({"type": [[]]}), json!({"dependentRequired": {"a": [1]}})]
        {
            assert!(refused_at(&list).1.contains("list of names"), "{list}");
        }
    }

    #[test]
    fn recursive_schema_is_rejected() {
        for endless in [
            json!({"$ref": "#"}),
            json!({"allOf": [{"$ref": "#/allOf/0"}]}),
            json!({"properties": {"a": {"$ref": "#/$defs/b"}}, "$defs": {"b": {"not": {"$ref": "#/$defs/b"}}}}),
            json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}),
            json!({"properties": {"children": {"items": {"$ref": "#/properties/children"}}}}),
        ] {
            let (field, message) = refused_at(&endless);
            assert!(field.contains("$ref"), "{endless}: {field}: {message}");
        }
    }

    #[test]
    fn too_expensive_schema_is_rejected() {
        // Twenty definitions that each refer twice to the next result in a million paths.
        let twice = |n: usize| json!({"anyOf": [{"$ref": format!("#/$defs/d{n}")}, {"$ref": format!("#/$defs/d{n}")}]});
        let mut definitions: serde_json::Map<_, _> =
            (0..20).map(|n| (format!("d{n}"), twice(n + 1))).collect();
        definitions.insert("d20".into(), json!(true));
        assert!(refused_at(&json!({"$ref": "#/$defs/d0", "$defs": definitions})).1.contains("too expensive"));
        let nested =
            (0..30).fold(json!(true), |inner, _| json!({"allOf": [inner], "unevaluatedProperties": false}));
        assert!(refused_at(&nested).1.contains("too expensive"));
        let patterns: Vec<_> = (0..400).map(|n| json!({"pattern": format!("a{n}")})).collect();
        assert!(refused_at(&json!({"allOf": patterns})).1.contains("too expensive"));
        assert!(refused_at(&json!({"pattern": "[ab]*a[ab]{9000}"})).1.contains("too expensive"));
        let names: Vec<_> = (0..2_000).map(|n| format!("n{n}")).collect();
        let lists: serde_json::Map<_, _> = names.iter().map(|name| (name.clone(), json!([]))).collect();
        assert!(refused_at(&json!({"dependentRequired": lists})).1.contains("too expensive"));
        assert!(refused_at(&json!({"required": names})).1.contains("too expensive"));
        // Evaluated items are determined level by level, so that each level repeats all levels below it.
        let levels = (0..30).fold(json!({"enum": [1, 2, 3]}), |inner, _| json!({"allOf": [inner]}));
        let marked = schema(&json!({"allOf": [levels], "unevaluatedProperties": false}));
        assert!(marked.cost > 30 * 30 / 2, "{}", marked.cost);
        let deep = (0..70).fold(json!(true), |inner, _| json!({"items": inner}));
        assert!(Schema::parse(&deep.to_string()).is_err());
        assert!(refused_at(&json!({"description": "x".repeat(MAX_BYTES)})).1.contains("bytes long"));
        for pattern in ["(a{1000}){1000}", "(?=a)b", r"(a)\1", "("] {
            let (field, _) = refused_at(&json!({"properties": {"a": {"pattern": pattern}}}));
            assert!(field.starts_with("schema"), "{pattern}: {field}");
        }
        assert_eq!(refused_at(&json!({"type": "strng"})).0, "schema/type");
        assert_eq!(refused_at(&json!([])).0, "schema");
        assert_eq!(refused_at(&json!({"items": 1})).0, "schema/items");
    }

    #[test]
    #[allow(clippy::disallowed_methods, reason = "a test may read the clock")]
    fn most_expensive_accepted_schema_finishes_in_time() {
        let started = Instant::now();
        let wide: Vec<_> = (0..900).map(|n| json!({"maximum": n})).collect();
        let ones = format!("[{}1]", "1,".repeat(20_000));
        // Different lists that consist of brackets only; they have equal hashes if lengths are not hashed.
        let brackets: Vec<_> = (0..4_000_u32)
            .map(|number| {
                let part = |bit: u32| if number >> bit & 1 == 1 { "[[]]" } else { "[]" };
                format!("[{}]", (0..12).map(part).collect::<Vec<_>>().join(","))
            })
            .collect();
        for (worst, data) in [
            (json!({"items": {"allOf": wide}}), ones.clone()),
            (json!({"items": {"anyOf": wide}}), ones.replace('1', "1000")),
            (json!({"uniqueItems": true}), format!("[{}{{}}]", "{\"a\":[]},".repeat(5_000))),
            (json!({"pattern": "^(a+)+$"}), format!("\"{}b\"", "a".repeat(100_000))),
            (json!({"items": {"multipleOf": 1e-300}}), ones.replace('1', "1e300")),
            (json!({"uniqueItems": true}), format!("[{}]", brackets.join(","))),
        ] {
            let schema = schema(&worst);
            let _ = schema.check(data.as_bytes());
            assert!(schema.max_work(data.as_bytes()) > 0);
        }
        assert!(started.elapsed() < Duration::from_secs(60), "{:?}", started.elapsed());
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_rejected_with_message(
            keyword in prop::sample::select(&["type", "$ref", "items", "properties", "enum", "pattern", "allOf", "$id"][..]),
            value in "\\PC{0,8}|\\[\\]|\\{\\}|1|true|null",
            data in prop::collection::vec(any::<u8>(), 0..20),
        ) {
            let value: Value = serde_json::from_str(&value).unwrap_or(Value::String(value));
            match Schema::parse(&json!({keyword: value}).to_string()) {
                Ok(schema) => drop(schema.check(&data)),
                Err(invalid) => prop_assert!(invalid.field.starts_with("schema")),
            }
        }
    }
}
