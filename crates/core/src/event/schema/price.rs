//! Cost of each schema keyword, in units of one plain rule. The benchmark `prices` measures them.

use serde_json::Value;

use super::pattern::positions;

/// Cost of parsing the payload, independent of the schema.
pub(super) const PARSE: u64 = 8;
/// Cost of one list or object of the payload.
pub(super) const NESTED: u64 = 48;
/// Base cost of a pattern.
pub(super) const PATTERN: u64 = 4;
/// Number of pattern positions that cost one more unit.
const POSITIONS_PER_UNIT: u64 = 2;
/// Cost of sorting the items of a list.
pub(super) const UNIQUE_ITEMS: u64 = 16;
/// Cost of reading a number as an exact decimal.
const MULTIPLE_OF: u64 = 16;

/// Returns the cost of a keyword that contains no schemas, or an error if its value cannot be used.
pub(super) fn keyword(keyword: &str, value: &Value) -> Result<u64, &'static str> {
    match keyword {
        "pattern" => Ok(value.as_str().map_or(1, pattern)),
        "multipleOf" => Ok(MULTIPLE_OF),
        "uniqueItems" => Ok(UNIQUE_ITEMS),
        "enum" => Ok(value.as_array().map_or(1, |values| values.len() as u64)),
        "required" => names(value),
        "type" => match value {
            Value::Array(_) => names(value).map(|_| 1),
            _ => Ok(1),
        },
        "dependentRequired" => {
            let Some(entries) = value.as_object() else { return Err("must be an object of lists of names") };
            let mut cost = 1_u64;
            for value in entries.values() {
                cost += 1 + names(value)?;
            }
            Ok(cost)
        }
        _ => Ok(1),
    }
}

/// Returns the cost of matching one pattern.
pub(super) fn pattern(pattern: &str) -> u64 {
    PATTERN + positions(pattern) / POSITIONS_PER_UNIT
}

/// Returns the cost of a list of names. A list of anything else is refused here: finding duplicates in it takes
/// time quadratic in its length.
fn names(value: &Value) -> Result<u64, &'static str> {
    match value.as_array() {
        Some(names) if names.iter().all(Value::is_string) => Ok(1 + names.len() as u64),
        _ => Err("must be a list of names"),
    }
}
