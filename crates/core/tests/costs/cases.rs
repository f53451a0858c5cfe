//! Worst known inputs of schemas and filters. The tests count the work of each; the benchmark `prices` measures
//! it.

use serde_json::{Value, json};

/// A rule, and a payload that is expensive to check against it.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    /// A schema or a filter.
    pub(crate) rule: Value,
    pub(crate) payload: String,
}

fn list_of(bytes: usize, item: impl Fn(usize) -> String) -> String {
    let mut text = "[".to_owned();
    for n in 0.. {
        text.push_str(&item(n));
        if text.len() >= bytes {
            break;
        }
        text.push(',');
    }
    text + "]"
}

/// Returns a list of distinct values made of brackets only, which all collide if lengths are not hashed.
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

/// Returns numbers halfway between two floats, the slowest case for float parsers.
fn halfway(bytes: usize) -> String {
    list_of(bytes, |n| format!("9007199254740993.{:020}e-{}", n, 200 + n % 90))
}

fn object_of(bytes: usize, value: &str) -> String {
    let list = list_of(bytes, |n| format!("\"k{n}\":{value}"));
    format!("{{{}}}", &list[1..list.len() - 1])
}

/// Returns the worst known input of each schema keyword, of about this size. The first case (plain rules) is the
/// baseline for the others.
pub(crate) fn schema_cases(bytes: usize) -> Vec<Case> {
    let case = |name, rule, payload| Case { name, rule, payload };
    let list = |item: &dyn Fn(usize) -> String| list_of(bytes, item);
    let object = |value: &str| object_of(bytes, value);
    let items = |schema: Value| json!({"items": schema});
    let ones = list(&|_| "1".into());
    let strings = list(&|_| "\"aaaaaaaaaaaaaaaaaaaaaaaa\"".into());
    let empty = list(&|_| "{}".into());
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
    let long_items = list(&|n| format!("[{}{n}]", "1,".repeat(400)));
    vec![
        case("plain rules", items(json!({"allOf": maxima})), ones.clone()),
        case("true", json!(true), ones.clone()),
        case("true, numbers between floats", json!(true), halfway(bytes)),
        case("true, long numbers", json!(true), list(&|n| format!("0.{}{n}", "123456789".repeat(90)))),
        case("true, nested lists", json!(true), list(&|_| format!("{}{}", "[".repeat(100), "]".repeat(100)))),
        case("true, object", json!(true), object("1")),
        case("true, escapes", json!(true), list(&|_| format!("\"{}\"", "\\u00e9".repeat(50)))),
        case("type", items(json!({"type": ["integer", "string"]})), ones.clone()),
        case("minimum", items(json!({"minimum": 0.5, "maximum": 7})), ones.clone()),
        case("multipleOf, integers", items(json!({"multipleOf": 1})), ones.clone()),
        case("multipleOf, extremes", items(json!({"multipleOf": 1e-300})), list(&|_| "1e300".into())),
        case(
            "multipleOf, digits",
            items(json!({"multipleOf": 1.234_567_890_123_456_7e-300})),
            list(&|_| "1.7e308".into()),
        ),
        case(
            "uniqueItems, integers",
            json!({"uniqueItems": true}),
            list(&|n| (n * 7919 % 100_003).to_string()),
        ),
        case("uniqueItems, brackets", json!({"uniqueItems": true}), bracket_trees(bytes)),
        case("uniqueItems, prefixes", json!({"uniqueItems": true}), long_items),
        case(
            "uniqueItems, large integers",
            json!({"uniqueItems": true}),
            list(&|n| (u64::MAX - n as u64).to_string()),
        ),
        case(
            "uniqueItems, objects",
            json!({"uniqueItems": true}),
            list(&|n| format!("{{\"a\":{{}},\"b\":{n}}}")),
        ),
        case("minLength", items(json!({"minLength": 1, "maxLength": 1000})), strings.clone()),
        case(
            "maxLength, one long",
            json!({"maxLength": 10_000_000}),
            format!("\"{}\"", "é".repeat(bytes / 2)),
        ),
        case("pattern, literal", items(json!({"pattern": "b"})), strings.clone()),
        case("pattern, plus", json!({"pattern": "^(a+)+$"}), format!("\"{}b\"", "a".repeat(bytes))),
        case(
            "pattern, states",
            json!({"pattern": "[ab]*a[ab]{60}c"}),
            format!("\"{}\"", "abbab".repeat(bytes / 5)),
        ),
        case(
            "pattern, many states",
            json!({"pattern": "[ab]*a[ab]{600}c"}),
            format!("\"{}\"", "abbab".repeat(bytes / 5)),
        ),
        case(
            "pattern, optional",
            json!({"pattern": "^(a?){300}(a?){300}b"}),
            format!("\"{}\"", "a".repeat(bytes)),
        ),
        case(
            "pattern, letters",
            json!({"pattern": "^(\\w+\\s?)+$"}),
            format!("\"{}!\"", "aé ".repeat(bytes / 4)),
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
            list(&|_| "1.5".into()),
        ),
        case("enum, texts", items(json!({"not": {"enum": names}})), strings),
        case(
            "enum, lists",
            items(json!({"not": {"enum": (0..400).map(|n| json!([[[[[n + 5]]]]])).collect::<Vec<_>>()}})),
            list(&|_| "[[[[[1]]]]]".into()),
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
        case("items, nested", deep_list, list(&|_| format!("{}1{}", "[".repeat(19), "]".repeat(19)))),
        case(
            "prefixItems",
            items(json!({"prefixItems": [true, true, true, true]})),
            list(&|_| "[1,1]".into()),
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

/// Returns the worst known inputs of filters, of about this size where the payload size matters. The first is a
/// plain one.
pub(crate) fn filter_cases(bytes: usize) -> Vec<Case> {
    let path = "/a".repeat(20);
    let deep = |data: &str| (0..20).fold(data.to_owned(), |inner, _| format!("{{\"a\":{inner}}}"));
    let conditions: Vec<_> = (0..120).map(|n| json!({"path": path, "ne": n})).collect();
    let many = json!({"all": conditions});
    let values: Vec<_> = (0..200).map(|n| format!("{}{n}", "x".repeat(60))).collect();
    let case = |name, rule, payload| Case { name, rule, payload };
    let one = json!({"path": "/a", "exists": true});
    vec![
        case("plain list", json!({"path": "/5", "eq": 1}), format!("[{}1]", "1,".repeat(bytes / 2))),
        case("long text", one.clone(), format!("{{\"a\":\"{}\"}}", "x".repeat(bytes))),
        case("many conditions", many.clone(), deep("1")),
        case("deep and large", many, deep(&format!("\"{}\"", "x".repeat(bytes)))),
        case(
            "lists of lists",
            json!({"path": "/0/0/0", "eq": 1}),
            format!("[[[{}1]]]", "1,".repeat(bytes / 2)),
        ),
        case("members", one.clone(), {
            let members: Vec<_> = (0..bytes / 8).map(|n| format!("\"{n}\":0")).collect();
            format!("{{{}}}", members.join(","))
        }),
        case("long number", json!({"path": "/a", "gt": 1}), format!("{{\"a\":{}}}", "9".repeat(bytes))),
        case(
            "escapes",
            json!({"path": "/a", "eq": "x"}),
            format!("{{\"a\":\"{}\"}}", "\\n".repeat(bytes / 2)),
        ),
        case("values", json!({"path": "/a", "in": values}), format!("{{\"a\":\"{}\"}}", "x".repeat(60))),
        case("brackets", one, format!("{{\"a\":{}{}}}", "[".repeat(bytes / 2), "]".repeat(bytes / 2))),
    ]
}
