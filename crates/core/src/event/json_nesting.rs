//! Checks how deeply a JSON text is nested in one pass over its bytes, before a parser that recurses or keeps a
//! stack reads it.

/// Maximum nesting of a payload. A parser with a stack of its own, such as the one that checks schemas, can read
/// that much.
pub const MAX_PAYLOAD_NESTING: usize = 120;

/// Returns whether lists and objects are nested more deeply than `max`. The text need not be valid JSON: other
/// errors are left to the parser. The pass ends at the first bracket beyond the limit.
pub fn is_nested_deeper(text: &[u8], max: usize) -> bool {
    // A text with few brackets cannot be nested deeply. Counting takes a fraction of the time of the pass.
    let opening = |byte: &&u8| matches!(byte, b'[' | b'{');
    if text.len() <= max || text.iter().filter(opening).count() <= max {
        return false;
    }
    let mut depth = 0_usize;
    let mut bytes = text.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'[' | b'{' => {
                depth += 1;
                if depth > max {
                    return true;
                }
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            b'"' => skip_text(&mut bytes),
            _ => {}
        }
    }
    false
}

/// Skips the rest of a string literal, with its closing quote.
fn skip_text(bytes: &mut std::slice::Iter<'_, u8>) {
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => return,
            b'\\' => _ = bytes.next(),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    fn depth(value: &Value) -> usize {
        match value {
            Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or_default(),
            Value::Object(members) => 1 + members.values().map(depth).max().unwrap_or_default(),
            _ => 0,
        }
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let text = "[\\[\\]{}\"\\\\a]{0,6}";
        let leaf =
            prop_oneof![Just(Value::Null), any::<i32>().prop_map(Value::from), text.prop_map(Value::from)];
        leaf.prop_recursive(6, 40, 4, move |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                proptest::collection::hash_map(text, inner, 0..4)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn depth_matches_the_parsed_value(value in any_json(), max in 0..8_usize) {
            prop_assert_eq!(is_nested_deeper(value.to_string().as_bytes(), max), depth(&value) > max);
        }

        #[test]
        fn arbitrary_bytes_never_panic(text in "[\\[\\]{}\"\\\\,a]{0,60}", max in 0..8_usize) {
            is_nested_deeper(text.as_bytes(), max);
        }
    }

    #[test]
    fn parser_reads_the_deepest_accepted_payload() {
        let nested = |levels| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        let deepest = nested(MAX_PAYLOAD_NESTING);
        assert!(!is_nested_deeper(deepest.as_bytes(), MAX_PAYLOAD_NESTING));
        assert!(serde_json::from_str::<Value>(&deepest).is_ok());
        assert!(is_nested_deeper(nested(MAX_PAYLOAD_NESTING + 1).as_bytes(), MAX_PAYLOAD_NESTING));
        let wide = format!("[{}[]]", "[],".repeat(10_000));
        assert!(!is_nested_deeper(wide.as_bytes(), 2));
    }
}
