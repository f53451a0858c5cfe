//! Tests of filter semantics, and property tests of its invariants.

use proptest::{collection::vec, option, prelude::*, sample::select};
use serde_json::{Value, json};

use super::*;

fn filter(filter: &Value) -> Filter {
    Filter::parse(&filter.to_string()).unwrap_or_else(|invalid| panic!("{filter}: {invalid}"))
}

fn passes(condition: &Value, data: &str) -> bool {
    filter(condition).matches(&Payload::new(data.as_bytes()))
}

/// Evaluates a test of `/v` on a payload with this value at `/v`.
fn test(word: &str, wanted: &Value, found: &str) -> bool {
    passes(&json!({"path": "/v", word: wanted}), &format!(r#"{{"v": {found}}}"#))
}

#[test]
fn eq_compares_by_value() {
    for (wanted, found, equal) in [
        (json!(1), "1", true),
        (json!(1), "1.0", true),
        (json!(100), "1e2", true),
        (json!(0), "-0", true),
        (json!(9007199254740993u64), "9007199254740993", true),
        (json!(9007199254740993u64), "9007199254740992", false),
        (json!(18446744073709551615u64), "18446744073709551616", false),
        (json!(1), "\"1\"", false),
        (json!(1), "true", false),
        (json!(null), "null", true),
        (json!(null), "0", false),
        (json!(false), "null", false),
        (json!("ü"), r#""\u00fc""#, true),
        (json!("a"), "\"A\"", false),
        (json!(""), "\"\"", true),
        (json!("a"), "[\"a\"]", false),
        (json!("a"), "{}", false),
    ] {
        assert_eq!(test("eq", &wanted, found), equal, "{wanted} {found}");
        assert_eq!(test("ne", &wanted, found), !equal, "{wanted} {found}");
        assert_eq!(test("in", &json!(["other", wanted]), found), equal, "{wanted} {found}");
    }
}

#[test]
fn numbers_too_large_for_machines_are_exact() {
    let text = r#"{"path": "/v", "eq": 123456789012345678901234567890}"#;
    let exact = Filter::parse(text).unwrap();
    let matches = |data: &str| exact.matches(&Payload::new(data.as_bytes()));
    assert!(matches(r#"{"v": 123456789012345678901234567890}"#));
    assert!(!matches(r#"{"v": 123456789012345678901234567891}"#));
    assert!(!matches(r#"{"v": 1e999}"#));
    assert_eq!(serde_json::to_string(&exact).unwrap(), text, "the stored text is exact");
}

#[test]
fn comparison_requires_equal_types() {
    for (word, wanted, found, holds) in [
        ("gt", json!(10), "10.5", true),
        ("gt", json!(10), "10", false),
        ("gte", json!(10), "10.0", true),
        ("lt", json!(-1), "-1e3", true),
        ("lte", json!(2), "2", true),
        ("lte", json!(2), "\"1\"", false),
        ("lt", json!("2026-01-02"), "\"2026-01-01T10:00:00Z\"", true),
        ("gt", json!("a"), "\"B\"", false),
        ("gt", json!("9"), "10", false),
        ("gte", json!(0), "null", false),
        ("gte", json!(0), "true", false),
        ("gte", json!(0), "[1]", false),
        ("prefix", json!("vip-"), "\"vip-7\"", true),
        ("prefix", json!("vip-"), "\"VIP-7\"", false),
        ("prefix", json!(""), "\"\"", true),
        ("prefix", json!("1"), "12", false),
        ("suffix", json!(".de"), "\"shop.de\"", true),
        ("suffix", json!(".de"), "\".de.\"", false),
        ("exists", json!(true), "null", true),
        ("exists", json!(false), "null", false),
    ] {
        assert_eq!(test(word, &wanted, found), holds, "{word} {wanted} {found}");
    }
}

#[test]
fn missing_value_equals_nothing() {
    for (word, wanted, holds) in [
        ("eq", json!(null), false),
        ("ne", json!(null), true),
        ("in", json!([null, ""]), false),
        ("gt", json!(0), false),
        ("lte", json!(0), false),
        ("prefix", json!(""), false),
        ("exists", json!(true), false),
        ("exists", json!(false), true),
    ] {
        for data in ["{}", "[]", "1", "\"v\"", "null", r#"{"w": 1}"#] {
            assert_eq!(passes(&json!({"path": "/v", word: wanted}), data), holds, "{word} {wanted} {data}");
        }
    }
}

#[test]
fn paths_resolve_per_rfc_6901() {
    // Examples from RFC 6901.
    let data = r#"{"foo": ["bar", "baz"], "": 0, "a/b": 1, "c%d": 2, "e^f": 3, "g|h": 4, "i\\j": 5,
                  "k\"l": 6, " ": 7, "m~n": 8}"#;
    let at = |path: &str, value: Value| passes(&json!({"path": path, "eq": value}), data);
    for (path, value) in [
        ("/", 0),
        ("/a~1b", 1),
        ("/c%d", 2),
        ("/e^f", 3),
        ("/g|h", 4),
        ("/i\\j", 5),
        ("/k\"l", 6),
        ("/ ", 7),
        ("/m~0n", 8),
    ] {
        assert!(at(path, json!(value)), "{path}");
    }
    assert!(at("/foo/0", json!("bar")) && at("/foo/1", json!("baz")));
    for nowhere in ["/foo/2", "/foo/-", "/foo/00", "/foo/+1", "/foo/99999999999999999999", "/foo/0/x", "/bar"]
    {
        assert!(passes(&json!({"path": nowhere, "exists": false}), data), "{nowhere}");
    }
    assert!(passes(&json!({"path": "", "eq": 7}), "7"), "the empty path is the whole payload");
    assert!(passes(&json!({"path": "/a", "eq": 2}), r#"{"a": 1, "a": 2}"#), "the last duplicate key counts");
    assert!(passes(&json!({"path": "/ü", "eq": 1}), r#"{"\u00fc": 1}"#));
}

#[test]
fn unusual_payloads_are_evaluated() {
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    assert!(passes(&json!({"path": "/0/0/0", "exists": true}), &deep));
    assert!(!passes(&json!({"path": "/0/0/0", "eq": 1}), &deep));
    let halves = r#"{"\ud800": 1, "half": "\udc00", "whole": 1e999}"#;
    assert!(passes(&json!({"path": "/half", "exists": true, "ne": "x"}), halves));
    assert!(passes(&json!({"path": "/whole", "gt": 1e300}), halves));
    for no_json in [&b""[..], b"\xff", b"{", b"[1", b"nul"] {
        let payload = Payload::new(no_json);
        assert!(!filter(&json!({"path": "/a", "exists": true})).matches(&payload));
        assert!(!filter(&json!({"path": "", "eq": 1})).matches(&payload));
    }
}

#[test]
fn tests_of_one_path_must_all_hold() {
    let between = json!({"path": "/v", "gte": 10, "lt": 20});
    for (value, holds) in [("9", false), ("10", true), ("19.9", true), ("20", false)] {
        assert_eq!(passes(&between, &format!(r#"{{"v": {value}}}"#)), holds);
    }
}

#[test]
fn parse_errors_name_their_position() {
    let refused = |text: &str| {
        let invalid = Filter::parse(text).unwrap_err();
        assert!(!invalid.message.is_empty());
        (invalid.field.into_owned(), invalid.message)
    };
    for (text, location, expected) in [
        ("null", "filter", "must be an object"),
        ("[]", "filter", "must be an object"),
        ("{}", "filter", "must be an object"),
        ("{", "filter", "cannot be parsed"),
        (r#"{"path": "/a"}"#, "filter", "add a test"),
        (r#"{"eq": 1}"#, "filter.path", "is missing"),
        (r#"{"path": "a.b", "eq": 1}"#, "filter.path", "did you mean \"/a/b\""),
        (r#"{"path": "$.a.b", "eq": 1}"#, "filter.path", "did you mean \"/a/b\""),
        (r#"{"path": "/a~b", "eq": 1}"#, "filter.path", "~0"),
        (r#"{"path": 1, "eq": 1}"#, "filter.path", "must be a string"),
        (r#"{"path": "/a", "gte ": 1}"#, "filter.gte ", "did you mean \"gte\""),
        (r#"{"path": "/a", "prefx": "x"}"#, "filter.prefx", "did you mean \"prefix\""),
        (r#"{"path": "/a", "$where": "x"}"#, "filter.$where", "keywords: all, any"),
        (r#"{"and": [{"path": "/a", "eq": 1}]}"#, "filter.and", "did you mean \"all\""),
        (r#"{"all": []}"#, "filter.all", "at least one"),
        (r#"{"all": {}}"#, "filter.all", "must be a list"),
        (r#"{"all": [{"path": "/a", "eq": 1}], "any": []}"#, "filter.all", "only key"),
        (
            r#"{"all": [{"path": "/a", "eq": 1}, {"not": {"path": "/a", "gt": null}}]}"#,
            "filter.all[1].not.gt",
            "order",
        ),
        (r#"{"any": [{"path": "/a", "in": [1, []]}]}"#, "filter.any[0].in[1]", "use its path"),
        (r#"{"path": "/a", "in": []}"#, "filter.in", "at least one"),
        (r#"{"path": "/a", "exists": 1}"#, "filter.exists", "true or false"),
        (r#"{"path": "/a", "prefix": 1}"#, "filter.prefix", "must be a string"),
        (r#"{"path": "/a", "eq": 1, "eq": 2}"#, "filter.eq", "twice"),
        (r#"{"path": "/a", "eq": 1e999}"#, "filter", "cannot be parsed"),
    ] {
        let (field, message) = refused(text);
        assert_eq!(field, location, "{text}: {message}");
        assert!(message.contains(expected), "{text}: {message}");
    }
}

#[test]
fn filter_limits_are_enforced() {
    let leaf = json!({"path": "/a", "eq": 1});
    let nested = |levels: usize| (1..levels).fold(leaf.clone(), |inner, _| json!({"not": inner}));
    assert!(Filter::parse(&nested(MAX_DEPTH).to_string()).is_ok());
    assert!(Filter::parse(&nested(MAX_DEPTH + 1).to_string()).unwrap_err().message.contains("too deeply"));
    let deepest = format!("{}1{}", r#"{"not":"#.repeat(2000), "}".repeat(2000));
    assert!(Filter::parse(&deepest).is_err());
    let wide = |parts: usize| json!({"path": "/a", "in": vec![1; parts - 2]}).to_string();
    assert!(Filter::parse(&wide(MAX_PARTS)).is_ok());
    assert!(Filter::parse(&wide(MAX_PARTS + 1)).unwrap_err().message.contains("limit of"));
    let long = json!({"path": "/a", "eq": "x".repeat(MAX_BYTES)}).to_string();
    assert!(Filter::parse(&long).unwrap_err().message.contains("bytes long"));
    let far = |steps: usize| json!({"path": "/a".repeat(steps), "eq": 1}).to_string();
    assert!(Filter::parse(&far(MAX_STEPS)).is_ok());
    assert!(Filter::parse(&far(MAX_STEPS + 1)).unwrap_err().message.contains("steps"));
}

#[test]
fn explanation_names_the_deciding_condition() {
    let rule = filter(&json!({"all": [
        {"path": "/currency", "in": ["EUR", "CHF"]},
        {"any": [{"path": "/amount", "gte": 100}, {"path": "/vip", "eq": true}]},
    ]}));
    let why = |data: &str| {
        let explanation = rule.explain(&Payload::new(data.as_bytes()));
        (explanation.matches, explanation.why)
    };
    assert_eq!(
        why(r#"{"currency": "USD", "amount": 500}"#),
        (false, r#"filter.all[0]: /currency is "USD", so in ["EUR", "CHF"] does not hold"#.to_owned())
    );
    assert_eq!(
        why(r#"{"currency": "EUR", "amount": 50}"#),
        (
            false,
            "filter.all[1].any[0]: /amount is 50, so gte 100 does not hold; filter.all[1].any[1]: /vip is \
             missing, so eq true does not hold"
                .to_owned()
        )
    );
    let (matches, message) = why(r#"{"currency": "EUR", "amount": 100.0}"#);
    assert!(matches && message.ends_with("/amount is 100.0, so gte 100 holds"), "{message}");
}

/// Reference implementation of the language on parsed values.
fn naive(filter: &Value, data: &Value) -> bool {
    if let Some(parts) = filter.get("all") {
        return parts.as_array().unwrap().iter().all(|part| naive(part, data));
    }
    if let Some(parts) = filter.get("any") {
        return parts.as_array().unwrap().iter().any(|part| naive(part, data));
    }
    if let Some(part) = filter.get("not") {
        return !naive(part, data);
    }
    let found = data.pointer(filter["path"].as_str().unwrap());
    let same = |wanted: &Value| match (wanted, found) {
        (Value::Array(_) | Value::Object(_), _) | (_, None) => false,
        (Value::Number(wanted), Some(Value::Number(found))) => wanted.as_f64() == found.as_f64(),
        (wanted, Some(found)) => wanted == found,
    };
    let order = |wanted: &Value| match (found?, wanted) {
        (Value::Number(found), Value::Number(wanted)) => found.as_f64()?.partial_cmp(&wanted.as_f64()?),
        (Value::String(found), Value::String(wanted)) => Some(found.as_bytes().cmp(wanted.as_bytes())),
        _ => None,
    };
    let text = || found.and_then(Value::as_str);
    filter.as_object().unwrap().iter().all(|(word, wanted)| match word.as_str() {
        "path" => true,
        "eq" => same(wanted),
        "ne" => !same(wanted),
        "in" => wanted.as_array().unwrap().iter().any(same),
        "gt" => order(wanted) == Some(Ordering::Greater),
        "gte" => matches!(order(wanted), Some(Ordering::Greater | Ordering::Equal)),
        "lt" => order(wanted) == Some(Ordering::Less),
        "lte" => matches!(order(wanted), Some(Ordering::Less | Ordering::Equal)),
        "exists" => found.is_some() == wanted.as_bool().unwrap(),
        "prefix" => text().is_some_and(|text| text.get(..wanted.as_str().unwrap().len()) == wanted.as_str()),
        "suffix" => text().is_some_and(|text| text.strip_suffix(wanted.as_str().unwrap()).is_some()),
        other => panic!("{other}"),
    })
}

fn any_scalar() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-3i32..4).prop_map(Value::from),
        (-6i32..7).prop_map(|half| json!(f64::from(half) / 2.0)),
        "[ab]{0,3}".prop_map(Value::from),
        "\\PC{0,3}".prop_map(Value::from),
    ]
}

/// Generates payloads with few names, so that paths often exist.
fn any_data() -> impl Strategy<Value = Value> {
    any_scalar().prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Value::from),
            vec((select(&["a", "b", "0", "", "/~"]), inner), 0..4).prop_map(|members| members
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value))
                .collect()),
        ]
    })
}

fn any_path() -> impl Strategy<Value = String> {
    vec(select(&["a", "b", "0", "1", "", "~1~0", "-"]), 0..4)
        .prop_map(|steps| steps.iter().map(|step| format!("/{step}")).collect())
}

fn any_test() -> impl Strategy<Value = (String, Value)> {
    let ordered = || any_scalar().prop_filter("has an order", |value| value.is_number() || value.is_string());
    prop_oneof![
        (select(&["eq", "ne"]), any_scalar()),
        (select(&["gt", "gte", "lt", "lte"]), ordered()),
        (Just("in"), vec(any_scalar(), 1..4).prop_map(Value::from)),
        (Just("exists"), any::<bool>().prop_map(Value::from)),
        (select(&["prefix", "suffix"]), "[ab]{0,2}".prop_map(Value::from)),
    ]
    .prop_map(|(word, value)| (word.to_owned(), value))
}

fn any_filter() -> impl Strategy<Value = Value> {
    let leaf = (any_path(), any_test(), option::of(any_test())).prop_map(|(path, one, two)| {
        let tests = [Some(one), two].into_iter().flatten();
        tests.chain([("path".to_owned(), json!(path))]).collect::<Value>()
    });
    leaf.prop_recursive(5, 24, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 1..4).prop_map(|parts| json!({"all": parts})),
            vec(inner.clone(), 1..4).prop_map(|parts| json!({"any": parts})),
            inner.prop_map(|part| json!({"not": part})),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_500))]

    #[test]
    fn filter_matches_reference_implementation(rule in any_filter(), data in any_data()) {
        prop_assert_eq!(passes(&rule, &data.to_string()), naive(&rule, &data));
    }

    #[test]
    fn boolean_laws_hold(a in any_filter(), b in any_filter(), data in any_data()) {
        let data = data.to_string();
        let holds = |rule: Value| passes(&rule, &data);
        let not = |rule: &Value| json!({"not": rule});
        prop_assert_eq!(holds(not(&json!({"all": [a, b]}))), holds(json!({"any": [not(&a), not(&b)]})));
        prop_assert_eq!(holds(not(&json!({"any": [a, b]}))), holds(json!({"all": [not(&a), not(&b)]})));
        prop_assert_eq!(holds(not(&not(&a))), holds(a.clone()));
        prop_assert_eq!(holds(json!({"all": [a]})), holds(a.clone()));
        prop_assert_eq!(holds(json!({"any": [a]})), holds(a.clone()));
        prop_assert_eq!(holds(json!({"all": [a, b]})), holds(json!({"all": [b, a]})));
        prop_assert_eq!(holds(json!({"any": [a, not(&a)]})), true);
    }

    #[test]
    fn explanation_agrees_with_result_and_is_bounded(rule in any_filter(), data in any_data()) {
        let text = data.to_string();
        let payload = Payload::new(text.as_bytes());
        let explanation = filter(&rule).explain(&payload);
        prop_assert_eq!(explanation.matches, filter(&rule).matches(&payload));
        prop_assert!(!explanation.why.is_empty() && explanation.why.chars().count() <= 1001, "{}", explanation.why);
    }

    #[test]
    fn any_text_is_parsed_or_rejected_with_message(
        text in prop_oneof![any::<String>(), any_data().prop_map(|data| data.to_string()),
            (any_filter(), 0..200usize).prop_map(|(rule, cut)| {
                rule.to_string().chars().take(cut).collect()
            })],
        data in prop_oneof![any::<Vec<u8>>(), any_data().prop_map(|data| data.to_string().into_bytes())],
    ) {
        match Filter::parse(&text) {
            Ok(filter) => {
                filter.matches(&Payload::new(&data));
                let stored = serde_json::to_string(&filter).unwrap();
                prop_assert_eq!(serde_json::from_str::<Filter>(&stored).unwrap(), filter);
            }
            Err(invalid) => prop_assert!(invalid.field.starts_with("filter")),
        }
    }
}
