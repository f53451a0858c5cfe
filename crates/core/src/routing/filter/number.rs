//! Numbers compared by exact value, independent of size and notation: nothing is rounded.

use std::{cmp::Ordering, fmt};

/// A JSON number: 0.d₁d₂d₃… × 10^magnitude, with neither a leading nor a trailing zero among the digits. Zero
/// has no digits.
#[derive(Clone, Debug)]
pub(super) struct Number {
    negative: bool,
    magnitude: i64,
    digits: Box<[u8]>,
    /// The number as written.
    text: Box<str>,
}

/// Exponents beyond this are treated as equal: no payload is large enough for digits that would make a difference.
const MAX_EXPONENT: i64 = 1 << 60;

impl Number {
    /// Parses a number that is known to be valid JSON.
    pub(super) fn parse(written: &str) -> Self {
        let (negative, text) = match written.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, written),
        };
        let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let all: Vec<u8> = whole.bytes().chain(fraction.bytes()).collect();
        let leading = all.iter().take_while(|digit| **digit == b'0').count();
        let end = all.iter().rposition(|digit| *digit != b'0').map_or(leading, |last| last + 1);
        let digits: Box<[u8]> = all[leading..end].into();
        let magnitude = exponent_of(exponent) + whole.len() as i64 - leading as i64;
        Self { negative, magnitude, digits, text: written.into() }
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn exponent_of(text: &str) -> i64 {
    let far = if text.starts_with('-') { -MAX_EXPONENT } else { MAX_EXPONENT };
    text.parse().unwrap_or(far).clamp(-MAX_EXPONENT, MAX_EXPONENT)
}

impl Ord for Number {
    fn cmp(&self, other: &Self) -> Ordering {
        let sign = |number: &Self| match (number.digits.is_empty(), number.negative) {
            (true, _) => 0,
            (false, true) => -1,
            (false, false) => 1,
        };
        let size = || (self.magnitude, &self.digits).cmp(&(other.magnitude, &other.digits));
        match sign(self).cmp(&sign(other)) {
            Ordering::Equal if sign(self) == 0 => Ordering::Equal,
            Ordering::Equal if self.negative => size().reverse(),
            Ordering::Equal => size(),
            unequal => unequal,
        }
    }
}

impl PartialEq for Number {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Number {}

impl PartialOrd for Number {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn order(a: &str, b: &str) -> Ordering {
        let (a, b) = (Number::parse(a), Number::parse(b));
        assert_eq!(a.cmp(&b), b.cmp(&a).reverse());
        assert_eq!(a == b, a.cmp(&b).is_eq());
        a.cmp(&b)
    }

    #[test]
    fn numbers_compare_by_value_not_by_notation() {
        for (a, b) in [
            ("1", "1.0"),
            ("1", "10e-1"),
            ("0", "-0"),
            ("0", "0.000e5"),
            ("100", "1E2"),
            ("0.001", "1e-3"),
            ("-12.50", "-1.25e+1"),
            ("1e99999999999999999999", "1e99999999999999999998"),
        ] {
            assert_eq!(order(a, b), Ordering::Equal, "{a} {b}");
        }
        for (a, b) in [
            ("9007199254740992", "9007199254740993"),
            ("18446744073709551616", "18446744073709551617"),
            ("0.1", "0.1000000000000000000000000001"),
            ("-2", "-1"),
            ("-1", "0"),
            ("0", "1e-400"),
            ("9", "10"),
            ("1e400", "1.1e400"),
            ("-1e999999999999999999999", "-1e400"),
            ("1e-999999999999999999999", "1e-400"),
        ] {
            assert_eq!(order(a, b), Ordering::Less, "{a} {b}");
        }
    }

    proptest! {
        #[test]
        fn number_order_matches_native_order(a in any::<i64>(), b in any::<i64>(), c in -999i32..999) {
            prop_assert_eq!(order(&a.to_string(), &b.to_string()), a.cmp(&b));
            let (x, y) = (f64::from(c) / 8.0, f64::from(a as i16) / 64.0);
            prop_assert_eq!(order(&x.to_string(), &y.to_string()), x.partial_cmp(&y).unwrap());
        }
    }
}
