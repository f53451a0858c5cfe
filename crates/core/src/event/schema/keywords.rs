//! Keywords whose usual implementation takes unbounded time for some values, implemented here in bounded time.
//!
//! `multipleOf` divides exact decimals by modular arithmetic instead of building fractions of hundreds of digits.
//! `uniqueItems` sorts instead of hashing: hashes of nested values can be made to collide, which makes a hash set
//! quadratic.

use std::{cmp::Ordering, io::Write};

use jsonschema::{Keyword, ValidationError, paths::Location};
use serde_json::{Map, Number, Value};

/// Result of a keyword's factory.
type Compiled<'a> = Result<Box<dyn for<'i> Keyword<'i>>, ValidationError<'a>>;

/// A positive number or zero: `digits` × 10^`exponent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Decimal {
    digits: u64,
    exponent: i32,
}

impl Decimal {
    /// Returns the magnitude of a number as its shortest decimal representation, or `None` if it is not finite.
    fn from_number(number: &Number) -> Option<Self> {
        let digits = number.as_u64().or_else(|| number.as_i64().map(i64::unsigned_abs));
        if let Some(digits) = digits {
            return Some(Self { digits, exponent: 0 });
        }
        // At most 17 digits, a point, and an exponent of three digits with its sign.
        let mut text = [0_u8; 48];
        let mut rest = &mut text[..];
        write!(rest, "{:e}", number.as_f64()?.abs()).ok()?;
        let unused = rest.len();
        Self::from_scientific(&text[..text.len() - unused])
    }

    fn from_scientific(text: &[u8]) -> Option<Self> {
        let split = text.iter().position(|byte| *byte == b'e')?;
        let (mantissa, exponent) = (&text[..split], &text[split + 1..]);
        let mut exponent: i32 = std::str::from_utf8(exponent).ok()?.parse().ok()?;
        let (mut digits, mut in_fraction) = (0_u64, false);
        for byte in mantissa {
            match byte {
                b'.' => in_fraction = true,
                _ => {
                    digits = digits.checked_mul(10)?.checked_add(u64::from(byte.checked_sub(b'0')?))?;
                    exponent -= i32::from(in_fraction);
                }
            }
        }
        Some(Self { digits, exponent })
    }

    /// Returns whether dividing by `divisor` results in an integer. Takes at most a dozen multiplications.
    fn is_multiple_of(self, divisor: Self) -> bool {
        if self.digits == 0 {
            return true;
        }
        if divisor.digits == 0 {
            return false;
        }
        let (value, modulus) = (u128::from(self.digits), u128::from(divisor.digits));
        let shift = self.exponent - divisor.exponent;
        if shift >= 0 {
            return (value % modulus * power_of_ten(shift.unsigned_abs(), modulus)).is_multiple_of(modulus);
        }
        // The value has at most 20 digits, so it cannot be a multiple of 10^20.
        let positions = shift.unsigned_abs();
        positions < 20 && value.is_multiple_of(modulus * 10_u128.pow(positions))
    }
}

/// Returns 10^`exponent` modulo a modulus of at most 64 bits.
fn power_of_ten(mut exponent: u32, modulus: u128) -> u128 {
    let (mut result, mut square) = (1 % modulus, 10 % modulus);
    while exponent > 0 {
        if exponent & 1 == 1 {
            result = result * square % modulus;
        }
        square = square * square % modulus;
        exponent >>= 1;
    }
    result
}

struct MultipleOf {
    divisor: Decimal,
    /// The divisor as written, for the message.
    text: String,
}

impl<'i> Keyword<'i> for MultipleOf {
    fn validate(&self, instance: &'i Value) -> Result<(), ValidationError<'i>> {
        match Keyword::is_valid(self, instance) {
            true => Ok(()),
            false => Err(ValidationError::custom(format!("value is not a multiple of {}", self.text))),
        }
    }

    fn is_valid(&self, instance: &'i Value) -> bool {
        let Value::Number(number) = instance else { return true };
        Decimal::from_number(number).is_some_and(|value| value.is_multiple_of(self.divisor))
    }
}

/// Compiles `multipleOf`.
pub(super) fn multiple_of<'a>(_: &'a Map<String, Value>, value: &'a Value, _: Location) -> Compiled<'a> {
    let divisor = match value {
        Value::Number(number) => Decimal::from_number(number).filter(|divisor| divisor.digits > 0),
        _ => None,
    };
    match divisor {
        Some(divisor) => Ok(Box::new(MultipleOf { divisor, text: value.to_string() })),
        None => Err(ValidationError::custom("must be a number greater than zero")),
    }
}

struct UniqueItems {
    required: bool,
}

impl<'i> Keyword<'i> for UniqueItems {
    fn validate(&self, instance: &'i Value) -> Result<(), ValidationError<'i>> {
        match Keyword::is_valid(self, instance) {
            true => Ok(()),
            false => Err(ValidationError::custom("value has duplicate items")),
        }
    }

    fn is_valid(&self, instance: &'i Value) -> bool {
        match instance {
            Value::Array(items) if self.required => is_unique(items),
            _ => true,
        }
    }
}

/// Compiles `uniqueItems`.
pub(super) fn unique_items<'a>(_: &'a Map<String, Value>, value: &'a Value, _: Location) -> Compiled<'a> {
    match value {
        Value::Bool(required) => Ok(Box::new(UniqueItems { required: *required })),
        _ => Err(ValidationError::custom("must be true or false")),
    }
}

fn is_unique(items: &[Value]) -> bool {
    let mut sorted: Vec<&Value> = items.iter().collect();
    sorted.sort_unstable_by(|a, b| compare(a, b));
    sorted.windows(2).all(|pair| compare(pair[0], pair[1]).is_ne())
}

/// Total order of JSON values in which two values are equal exactly if JSON Schema treats them as equal: `1` and
/// `1.0` are, and so are objects with the same members.
fn compare(a: &Value, b: &Value) -> Ordering {
    match (a, b) {
        (Value::Bool(a), Value::Bool(b)) => a.cmp(b),
        (Value::Number(a), Value::Number(b)) => compare_numbers(a, b),
        (Value::String(a), Value::String(b)) => a.cmp(b),
        (Value::Array(a), Value::Array(b)) => a.len().cmp(&b.len()).then_with(|| {
            let items = a.iter().zip(b).map(|(a, b)| compare(a, b));
            items.into_iter().find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
        }),
        (Value::Object(a), Value::Object(b)) => a.len().cmp(&b.len()).then_with(|| {
            // Members are stored in the order of their names.
            let members = a.iter().zip(b).map(|((a, x), (b, y))| a.cmp(b).then_with(|| compare(x, y)));
            members.into_iter().find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
        }),
        _ => rank(a).cmp(&rank(b)),
    }
}

fn rank(value: &Value) -> u8 {
    match value {
        Value::Null => 0,
        Value::Bool(_) => 1,
        Value::Number(_) => 2,
        Value::String(_) => 3,
        Value::Array(_) => 4,
        Value::Object(_) => 5,
    }
}

fn compare_numbers(a: &Number, b: &Number) -> Ordering {
    match (as_integer(a), as_integer(b)) {
        (Some(a), Some(b)) => a.cmp(&b),
        (Some(a), None) => compare_to_float(a, b.as_f64().unwrap_or_default()),
        (None, Some(b)) => compare_to_float(b, a.as_f64().unwrap_or_default()).reverse(),
        (None, None) => {
            let (a, b) = (a.as_f64().unwrap_or_default(), b.as_f64().unwrap_or_default());
            a.partial_cmp(&b).unwrap_or(Ordering::Equal)
        }
    }
}

fn as_integer(number: &Number) -> Option<i128> {
    number.as_u64().map(i128::from).or_else(|| number.as_i64().map(i128::from))
}

/// Compares an integer of at most 64 bits and its sign with a finite float, exactly.
fn compare_to_float(integer: i128, float: f64) -> Ordering {
    // The cast saturates, far beyond every such integer.
    let order = integer.cmp(&(float.trunc() as i128));
    order.then_with(|| 0.0.partial_cmp(&float.fract()).unwrap_or(Ordering::Equal))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn is_multiple(value: &Value, divisor: &Value) -> bool {
        let decimal = |value: &Value| Decimal::from_number(value.as_number().unwrap()).unwrap();
        decimal(value).is_multiple_of(decimal(divisor))
    }

    #[test]
    fn multiples_are_exact_decimals() {
        for (value, divisor) in [
            (json!(0), json!(7)),
            (json!(-0.0), json!(1e-300)),
            (json!(21), json!(7)),
            (json!(-21), json!(7)),
            (json!(0.3), json!(0.1)),
            (json!(1_070_468.14), json!(0.01)),
            (json!(1e300), json!(1e-300)),
            (json!(1e300), json!(3.2e100)),
            (json!(u64::MAX), json!(5)),
            (json!(i64::MIN), json!(2)),
            (json!(1e300), json!(1)),
        ] {
            assert!(is_multiple(&value, &divisor), "{value} of {divisor}");
        }
        for (value, divisor) in [
            (json!(22), json!(7)),
            (json!(0.35), json!(0.1)),
            (json!(1e-300), json!(1e300)),
            (json!(1e300), json!(3)),
            (json!(1e300), json!(7e-300)),
            (json!(u64::MAX), json!(2)),
            (json!(1), json!(1e20)),
        ] {
            assert!(!is_multiple(&value, &divisor), "{value} of {divisor}");
        }
    }

    #[test]
    fn equal_items_are_found_in_any_notation() {
        for unequal in [
            json!([]),
            json!([1, "1", true, null, [1], {"1": 1}]),
            json!([0, false, "", [], {}]),
            json!([9_007_199_254_740_992_u64, 9_007_199_254_740_993_u64]),
            json!([u64::MAX, 18_446_744_073_709_551_615.0]),
            json!([[[]], [], [[], []]]),
            json!([1, 1.5, 2]),
            json!([-1, -1.5, -2]),
        ] {
            assert!(is_unique(unequal.as_array().unwrap()), "{unequal}");
        }
        for equal in [
            json!([1, 2, 1.0]),
            json!([0, -0.0]),
            json!([{"a": 1, "b": [2]}, {"b": [2.0], "a": 1}]),
            json!([null, 1, null]),
            json!([[[], [[]]], [[], [[]]]]),
            json!([18_446_744_073_709_551_616.0, 3, 18_446_744_073_709_551_616.0]),
        ] {
            assert!(!is_unique(equal.as_array().unwrap()), "{equal}");
        }
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            (-3_i64..3).prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            (-8_i32..8).prop_map(|n| Value::from(f64::from(n) / 2.0)),
            "[ab]{0,2}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 12, 3, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                prop::collection::btree_map("[ab]", inner, 0..3)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn compare_is_a_total_order(a in any_json(), b in any_json(), c in any_json()) {
            prop_assert_eq!(compare(&a, &b), compare(&b, &a).reverse());
            prop_assert_eq!(compare(&a, &a), Ordering::Equal);
            if compare(&a, &b).is_le() && compare(&b, &c).is_le() {
                prop_assert!(compare(&a, &c).is_le());
            }
        }

        #[test]
        fn small_multiples_agree_with_integers(value in any::<i64>(), divisor in 1_i64..1000, positions in 0_i32..12) {
            let expected = value % divisor == 0;
            prop_assert_eq!(is_multiple(&json!(value), &json!(divisor)), expected);
            let scaled = |number: i64| Decimal { digits: number.unsigned_abs(), exponent: -positions };
            prop_assert_eq!(scaled(value).is_multiple_of(scaled(divisor)), expected);
        }
    }
}
