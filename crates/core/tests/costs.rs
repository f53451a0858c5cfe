//! Whether counted work agrees with measurement: a unit of the worst input of each keyword of schemas, and of the worst
//! filters, takes no more time than one of plain rules, up to a generous factor.
//!
//! `cargo test --release -p redrive-core --test costs -- --ignored --nocapture` prints the table that the prices in
//! `schema/price.rs` were taken from.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a benchmark reads the clock and prints what it measured"
)]

use std::time::{Duration, Instant};

use redrive_core::{
    filter::{Filter, Payload},
    schema::{MAX_WORK, Schema},
};
use serde_json::{Value, json};

/// How many times as long as plain rules a unit of any keyword may take. Builds without optimization differ more, since
/// some of the code is ours and some of it comes with the compiler.
const MAX_FACTOR: f64 = if cfg!(debug_assertions) { 100.0 } else { 12.0 };
const BYTES: usize = 96 * 1024;

struct Case {
    name: &'static str,
    schema: Value,
    payload: String,
}

fn list(item: impl Fn(usize) -> String) -> String {
    let mut text = "[".to_owned();
    for n in 0.. {
        text.push_str(&item(n));
        if text.len() >= BYTES {
            break;
        }
        text.push(',');
    }
    text + "]"
}

/// A list of different values made of brackets alone, all of which hash alike where lengths are not hashed.
fn bracket_trees(bytes: usize) -> String {
    fn grow(text: &mut String, number: u64, bits: u32) {
        text.push('[');
        let mut first = true;
        for bit in 0..bits {
            if !first {
                text.push(',');
            }
            first = false;
            text.push_str(if number >> bit & 1 == 1 { "[[]]" } else { "[]" });
        }
        text.push(']');
    }
    let mut text = "[".to_owned();
    for number in 0_u64.. {
        grow(&mut text, number, 16);
        if text.len() >= bytes {
            break;
        }
        text.push(',');
    }
    text + "]"
}

/// The same kind of number, which takes a reader of floats longest: a value between two floats.
fn halfway() -> String {
    list(|n| format!("9007199254740993.{:020}e-{}", n, 200 + n % 90))
}

fn object(value: &str) -> String {
    let list = list(|n| format!("\"k{n}\":{value}"));
    format!("{{{}}}", &list[1..list.len() - 1])
}

fn cases() -> Vec<Case> {
    let case = |name, schema, payload| Case { name, schema, payload };
    let items = |schema: Value| json!({"items": schema});
    let ones = list(|_| "1".into());
    let strings = list(|_| "\"aaaaaaaaaaaaaaaaaaaaaaaa\"".into());
    let empty = list(|_| "{}".into());
    let maxima: Vec<_> = (0..100).map(|n| json!({"maximum": 1000 + n})).collect();
    let names: Vec<_> = (0..500).map(|n| format!("name{n}")).collect();
    let dependent: serde_json::Map<_, _> = names.iter().map(|name| (name.clone(), json!(["x"]))).collect();
    let properties: serde_json::Map<_, _> = names.iter().map(|name| (name.clone(), json!(true))).collect();
    let nested = (0..40).fold(json!({"maximum": 5}), |inner, _| json!({"allOf": [inner]}));
    let any_nested = (0..20).fold(json!({"properties": {"a": true}}), |inner, _| json!({"anyOf": [inner]}));
    let chain: serde_json::Map<_, _> =
        (0..50).map(|n| (format!("d{n}"), json!({"$ref": format!("#/$defs/d{}", n + 1)}))).collect();
    let mut chain = chain;
    chain.insert("d50".into(), json!({"maximum": 9}));
    let deep_list = (0..20).fold(json!({"type": "integer"}), |inner, _| json!({"items": inner}));
    let long_items = list(|n| format!("[{}{n}]", "1,".repeat(400)));
    vec![
        case("plain rules", items(json!({"allOf": maxima})), ones.clone()),
        case("true", json!(true), ones.clone()),
        case("true, numbers between floats", json!(true), halfway()),
        case("true, long numbers", json!(true), list(|n| format!("0.{}{n}", "123456789".repeat(90)))),
        case("true, nested lists", json!(true), list(|_| format!("{}{}", "[".repeat(100), "]".repeat(100)))),
        case("true, object", json!(true), object("1")),
        case("true, escapes", json!(true), list(|_| format!("\"{}\"", "\\u00e9".repeat(50)))),
        case("type", items(json!({"type": ["integer", "string"]})), ones.clone()),
        case("minimum", items(json!({"minimum": 0.5, "maximum": 7})), ones.clone()),
        case("multipleOf, integers", items(json!({"multipleOf": 1})), ones.clone()),
        case("multipleOf, extremes", items(json!({"multipleOf": 1e-300})), list(|_| "1e300".into())),
        case(
            "multipleOf, digits",
            items(json!({"multipleOf": 1.234_567_890_123_456_7e-300})),
            list(|_| "1.7e308".into()),
        ),
        case(
            "uniqueItems, integers",
            json!({"uniqueItems": true}),
            list(|n| (n * 7919 % 100_003).to_string()),
        ),
        case("uniqueItems, brackets", json!({"uniqueItems": true}), bracket_trees(BYTES)),
        case("uniqueItems, prefixes", json!({"uniqueItems": true}), long_items),
        case(
            "uniqueItems, large integers",
            json!({"uniqueItems": true}),
            list(|n| (u64::MAX - n as u64).to_string()),
        ),
        case(
            "uniqueItems, objects",
            json!({"uniqueItems": true}),
            list(|n| format!("{{\"a\":{{}},\"b\":{n}}}")),
        ),
        case("minLength", items(json!({"minLength": 1, "maxLength": 1000})), strings.clone()),
        case(
            "maxLength, one long",
            json!({"maxLength": 10_000_000}),
            format!("\"{}\"", "é".repeat(BYTES / 2)),
        ),
        case("pattern, literal", items(json!({"pattern": "b"})), strings.clone()),
        case("pattern, plus", json!({"pattern": "^(a+)+$"}), format!("\"{}b\"", "a".repeat(BYTES))),
        case(
            "pattern, states",
            json!({"pattern": "[ab]*a[ab]{60}c"}),
            format!("\"{}\"", "abbab".repeat(BYTES / 5)),
        ),
        case(
            "pattern, many states",
            json!({"pattern": "[ab]*a[ab]{600}c"}),
            format!("\"{}\"", "abbab".repeat(BYTES / 5)),
        ),
        case(
            "pattern, optional",
            json!({"pattern": "^(a?){300}(a?){300}b"}),
            format!("\"{}\"", "a".repeat(BYTES)),
        ),
        case(
            "pattern, letters",
            json!({"pattern": "^(\\w+\\s?)+$"}),
            format!("\"{}!\"", "aé ".repeat(BYTES / 4)),
        ),
        case(
            "pattern, many",
            items(
                json!({"allOf": (0..20).map(|n| json!({"pattern": format!("[ab]{{2}}c{n}")})).collect::<Vec<_>>()}),
            ),
            strings.clone(),
        ),
        case(
            "patternProperties",
            json!({"patternProperties": {"[0-9]{3}x": true, "^k[0-9]+y": true}}),
            object("1"),
        ),
        case("properties", items(json!({"properties": properties})), empty.clone()),
        case(
            "additionalProperties",
            json!({"properties": {"k1": true}, "additionalProperties": {"type": "integer"}}),
            object("1"),
        ),
        case("propertyNames", json!({"propertyNames": {"maxLength": 10}}), object("1")),
        case("required, absent", items(json!({"not": {"required": names}})), empty.clone()),
        case(
            "required, present",
            json!({"required": (0..500).map(|n| format!("k{n}")).collect::<Vec<_>>()}),
            object("1"),
        ),
        case("dependentRequired", items(json!({"dependentRequired": dependent})), empty.clone()),
        case("minProperties", items(json!({"maxProperties": 3})), empty.clone()),
        case("contains", json!({"contains": {"const": 2}, "minContains": 1}), ones.clone()),
        case("const, long", items(json!({"not": {"const": "aaaaaaaaaaaaaaaaaaaaaaab"}})), strings.clone()),
        case("enum, numbers", items(json!({"not": {"enum": (2..800).collect::<Vec<_>>()}})), ones.clone()),
        case(
            "enum, floats",
            items(json!({"not": {"enum": (2..800).map(|n| f64::from(n) + 0.5).collect::<Vec<_>>()}})),
            list(|_| "1.5".into()),
        ),
        case("enum, texts", items(json!({"not": {"enum": names}})), strings),
        case(
            "enum, lists",
            items(json!({"not": {"enum": (0..400).map(|n| json!([[[[[n + 5]]]]])).collect::<Vec<_>>()}})),
            list(|_| "[[[[[1]]]]]".into()),
        ),
        case("not", items(json!({"not": {"not": {"not": {"type": "string"}}}})), ones.clone()),
        case(
            "if",
            items(json!({"if": {"minimum": 5}, "then": {"maximum": 9}, "else": {"maximum": 4}})),
            ones.clone(),
        ),
        case(
            "oneOf",
            items(json!({"oneOf": (0..100).map(|n| json!({"minimum": n + 1})).collect::<Vec<_>>()})),
            ones.clone(),
        ),
        case(
            "anyOf",
            items(json!({"anyOf": (0..100).map(|n| json!({"minimum": n + 2})).collect::<Vec<_>>()})),
            ones.clone(),
        ),
        case("allOf, nested", items(nested), ones.clone()),
        case("$ref, chain", json!({"items": {"$ref": "#/$defs/d0"}, "$defs": chain}), ones.clone()),
        case("items, nested", deep_list, list(|_| format!("{}1{}", "[".repeat(19), "]".repeat(19)))),
        case(
            "prefixItems",
            items(json!({"prefixItems": [true, true, true, true]})),
            list(|_| "[1,1]".into()),
        ),
        case(
            "unevaluatedItems",
            json!({"anyOf": [{"prefixItems": [true]}, {"contains": {"type": "integer"}}], "unevaluatedItems": {"type": "integer"}}),
            ones,
        ),
        case(
            "unevaluatedProperties",
            json!({"anyOf": [{"properties": {"k1": true}}, {"required": ["k2"]}], "unevaluatedProperties": {"type": "integer"}}),
            object("1"),
        ),
        case(
            "unevaluatedProperties, nested",
            json!({"allOf": [any_nested], "unevaluatedProperties": {"type": "integer"}}),
            object("1"),
        ),
        case(
            "unevaluatedProperties, of each",
            items(
                json!({"anyOf": [{"properties": {"k1": true}}, {"required": ["k2"]}], "unevaluatedProperties": {"type": "integer"}}),
            ),
            empty,
        ),
    ]
}

/// The least of several runs, in nanoseconds per unit of work.
fn nanos_per_unit(case: &Case, runs: usize) -> f64 {
    let schema =
        Schema::parse(&case.schema.to_string()).unwrap_or_else(|error| panic!("{}: {error}", case.name));
    let work = schema.work(case.payload.as_bytes());
    assert!(work <= MAX_WORK, "{}: {work}", case.name);
    let mut least = Duration::MAX;
    for _ in 0..runs {
        let began = Instant::now();
        let _ = schema.check(case.payload.as_bytes());
        least = least.min(began.elapsed());
    }
    least.as_nanos() as f64 / work as f64
}

#[test]
fn worst_input_of_each_keyword_costs_what_its_price_says() {
    let cases = cases();
    let plain = nanos_per_unit(&cases[0], 3);
    for case in &cases {
        let nanos = nanos_per_unit(case, 2);
        assert!(
            nanos < MAX_FACTOR * plain,
            "{}: {nanos:.1} ns for a unit, plain rules {plain:.1}",
            case.name
        );
    }
}

#[test]
#[ignore = "a benchmark: it prints what each keyword costs"]
fn prices_as_measured() {
    for case in &cases() {
        let schema = Schema::parse(&case.schema.to_string()).unwrap();
        let nanos = nanos_per_unit(case, 10);
        let micros = nanos * schema.work(case.payload.as_bytes()) as f64 / 1000.0;
        let per_byte = schema.work(case.payload.as_bytes()) / case.payload.len() as u64;
        println!("{:34} {per_byte:5} units/byte  {micros:9.0} µs  {nanos:7.2} ns/unit", case.name);
    }
}

#[test]
fn worst_filters_cost_what_their_work_says() {
    let path = "/a".repeat(20);
    let deep = |data: &str| (0..20).fold(data.to_owned(), |inner, _| format!("{{\"a\":{inner}}}"));
    let conditions: Vec<_> = (0..120).map(|n| json!({"path": path, "ne": n})).collect();
    let many = json!({"all": conditions});
    let values: Vec<_> = (0..200).map(|n| format!("{}{n}", "x".repeat(60))).collect();
    let one = json!({"path": "/a", "exists": true});
    let cases = [
        ("plain list", json!({"path": "/5", "eq": 1}), format!("[{}1]", "1,".repeat(30_000))),
        ("long text", one.clone(), format!("{{\"a\":\"{}\"}}", "x".repeat(60_000))),
        ("many conditions", many.clone(), deep("1")),
        ("deep and large", many, deep(&format!("\"{}\"", "x".repeat(60_000)))),
        ("lists of lists", json!({"path": "/0/0/0", "eq": 1}), format!("[[[{}1]]]", "1,".repeat(30_000))),
        ("members", one.clone(), {
            let members: Vec<_> = (0..8_000).map(|n| format!("\"{n}\":0")).collect();
            format!("{{{}}}", members.join(","))
        }),
        ("long number", json!({"path": "/a", "gt": 1}), format!("{{\"a\":{}}}", "9".repeat(60_000))),
        ("escapes", json!({"path": "/a", "eq": "x"}), format!("{{\"a\":\"{}\"}}", "\\n".repeat(30_000))),
        ("values", json!({"path": "/a", "in": values}), format!("{{\"a\":\"{}\"}}", "x".repeat(60))),
        ("brackets", one, format!("{{\"a\":{}{}}}", "[".repeat(30_000), "]".repeat(30_000))),
    ];
    let nanos_per_unit = |rule: &Value, data: &str| {
        let filter = Filter::parse(&rule.to_string()).unwrap();
        let work = Filter::work([&filter].into_iter(), data.as_bytes());
        let run = || {
            let began = Instant::now();
            filter.matches(&Payload::new(data.as_bytes()));
            began.elapsed()
        };
        let least = (0..5).map(|_| run()).min().unwrap_or_default();
        least.as_nanos() as f64 / work as f64
    };
    let plain = nanos_per_unit(&cases[0].1, &cases[0].2);
    for (name, rule, data) in &cases {
        let nanos = nanos_per_unit(rule, data);
        assert!(nanos < MAX_FACTOR * plain, "{name}: {nanos:.1} ns for a unit, plain {plain:.1}");
    }
}
