//! JSON Schemas of event types (draft 2020-12), as far as checking a payload by one takes a bounded time.
//!
//! A schema refers to nothing outside of itself and never to itself again, so its cost can be told when it is saved.
//! Patterns are matched in linear time. Nothing is fetched, ever.

mod cost;
mod keywords;
mod pattern;
mod price;

use std::fmt;

use jsonschema::{Draft, PatternOptions, Validator, error::ValidationError};
use serde_json::Value;

use crate::field_error::Invalid;

/// The longest schema, as JSON.
pub const MAX_BYTES: usize = 64 * 1024;
/// The most that checking one value by a schema may cost: rules, counted once for each way that leads to them, each at
/// the price of its keyword.
pub const MAX_COST: u64 = 2_000;
/// How deep schemas may be nested, references included.
pub const MAX_DEPTH: usize = 64;

/// What a compiled pattern may take, and what it may remember while it is matched.
const PATTERN_BYTES: usize = 128 * 1024;
/// The most work that one payload may be: the cost of its schema times its bytes. A unit takes one to four
/// nanoseconds.
pub const MAX_WORK: u64 = 1 << 28;
/// Where alternatives are tried, the faults of each are gathered: beyond this much work only that there are some.
const EXPLAINED: u64 = 1 << 20;

/// A schema that is ready to be asked.
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

/// Why a payload does not fit a schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misfit {
    /// Where in the payload: a JSON pointer; empty for all of it.
    pub path: String,
    /// Which rule of the schema: a JSON pointer into it; none if it is not known.
    pub rule: Option<String>,
    /// What is wrong.
    pub message: String,
}

impl Misfit {
    /// A refusal of the value at `field` that was checked.
    pub fn of(self, field: &str) -> Invalid {
        let rule = self.rule.map_or_else(String::new, |rule| format!(" (rule {rule} of the schema)"));
        Invalid::new(format!("{field}{}", self.path), format!("{}{rule}", self.message))
    }
}

impl Schema {
    /// Reads a schema, and says where and why if it cannot be used.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        if text.len() > MAX_BYTES {
            let size = text.len();
            return Err(Invalid::new(
                "schema",
                format!("is {size} bytes long; at most {MAX_BYTES} are allowed"),
            ));
        }
        let schema: Value = serde_json::from_str(text)
            .map_err(|error| Invalid::new("schema", format!("cannot be read: {error}")))?;
        let weight = cost::weigh(&schema)?;
        let validator = jsonschema::options()
            .with_draft(Draft::Draft202012)
            .offline()
            .should_validate_formats(false)
            .with_keyword("multipleOf", keywords::multiple_of)
            .with_keyword("uniqueItems", keywords::unique_items)
            .with_pattern_options(
                PatternOptions::regex().size_limit(PATTERN_BYTES).dfa_size_limit(PATTERN_BYTES),
            )
            .build(&schema)
            .map_err(|error| refused(&error))?;
        Ok(Self { validator, cost: weight.cost, has_alternatives: weight.has_alternatives })
    }

    /// How much work it is to check a payload, at the most.
    pub fn work(&self, data: &[u8]) -> u64 {
        // Each list and each object is kept apart, and may be a single byte.
        let nested = data.iter().filter(|byte| matches!(byte, b'[' | b'{')).count() as u64;
        self.per_byte().saturating_mul(data.len() as u64).saturating_add(price::NESTED * nested)
    }

    fn per_byte(&self) -> u64 {
        price::PARSE + self.cost
    }

    /// Checks a payload.
    pub fn check(&self, data: &[u8]) -> Result<(), Misfit> {
        let work = self.work(data);
        if work > MAX_WORK {
            let most = MAX_WORK / self.per_byte();
            return Err(Misfit {
                path: String::new(),
                rule: None,
                message: format!("is too large to be checked by such a schema: at most {most} bytes are"),
            });
        }
        let value: Value = serde_json::from_slice(data).map_err(|error| Misfit {
            path: String::new(),
            rule: None,
            message: format!("cannot be checked by a schema: {error}"),
        })?;
        if self.validator.is_valid(&value) {
            return Ok(());
        }
        if self.has_alternatives && work > EXPLAINED {
            return Err(Misfit {
                path: String::new(),
                rule: None,
                message: "does not fit, and is too large to say where; try a smaller one".to_owned(),
            });
        }
        self.validator.validate(&value).map_err(|error| Misfit {
            path: error.instance_path().to_string(),
            rule: Some(error.schema_path().to_string()),
            message: shortened(&error.masked().to_string()),
        })
    }
}

fn refused(error: &ValidationError<'_>) -> Invalid {
    let place = format!("schema{}", error.instance_path());
    let message = shortened(&error.to_string());
    Invalid::new(place, format!("is no JSON Schema of draft 2020-12 that can be used here: {message}"))
}

/// Values may be as large as payloads.
fn shortened(text: &str) -> String {
    const LONGEST: usize = 300;
    match text.char_indices().nth(LONGEST) {
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
    fn faults_are_named_with_their_path_and_rule() {
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
            let misfit = order.check(data.as_bytes()).unwrap_err();
            (misfit.path, misfit.rule.unwrap_or_default(), misfit.message)
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
    fn nothing_outside_is_ever_asked() {
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
        // What only looks like a reference is none.
        schema(&json!({"properties": {"$ref": {"type": "string"}}, "required": ["$ref"]}));
        schema(
            &json!({"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "https://example.com/order"}),
        );
    }

    #[test]
    fn keywords_of_older_drafts_are_refused() {
        // The library evaluates them, so that a reference inside of them would lead back to where it is.
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
    fn no_schema_comes_back_to_itself() {
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
    fn what_would_take_too_long_is_refused() {
        // Twenty definitions that each lead twice to the next are a million ways.
        let twice = |n: usize| json!({"anyOf": [{"$ref": format!("#/$defs/d{n}")}, {"$ref": format!("#/$defs/d{n}")}]});
        let mut definitions: serde_json::Map<_, _> =
            (0..20).map(|n| (format!("d{n}"), twice(n + 1))).collect();
        definitions.insert("d20".into(), json!(true));
        assert!(refused_at(&json!({"$ref": "#/$defs/d0", "$defs": definitions})).1.contains("too much"));
        let nested =
            (0..30).fold(json!(true), |inner, _| json!({"allOf": [inner], "unevaluatedProperties": false}));
        assert!(refused_at(&nested).1.contains("too much"));
        let patterns: Vec<_> = (0..400).map(|n| json!({"pattern": format!("a{n}")})).collect();
        assert!(refused_at(&json!({"allOf": patterns})).1.contains("too much"));
        assert!(refused_at(&json!({"pattern": "[ab]*a[ab]{9000}"})).1.contains("too much"));
        let names: Vec<_> = (0..2_000).map(|n| format!("n{n}")).collect();
        let lists: serde_json::Map<_, _> = names.iter().map(|name| (name.clone(), json!([]))).collect();
        assert!(refused_at(&json!({"dependentRequired": lists})).1.contains("too much"));
        assert!(refused_at(&json!({"required": names})).1.contains("too much"));
        // What was evaluated is found out level by level, so that each level repeats all below it.
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
    fn the_worst_that_passes_ends_in_time() {
        let began = Instant::now();
        let wide: Vec<_> = (0..900).map(|n| json!({"maximum": n})).collect();
        let ones = format!("[{}1]", "1,".repeat(20_000));
        // Different lists of brackets alone, which hash alike where lengths are not hashed.
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
            assert!(schema.work(data.as_bytes()) > 0);
        }
        assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
    }

    proptest! {
        #[test]
        fn whatever_is_written_is_read_or_refused_in_words(
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
