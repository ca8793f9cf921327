//! Whole numbers: costs, credits, seconds.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, Unexpected, Visitor};

/// 2^64, the first number that is too large.
const TOO_LARGE: f64 = 18_446_744_073_709_551_616.0;

/// A whole number. `2.0` is a whole number, too: in JSON it is the same number as `2`, and some languages write it in
/// this way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WholeNumber(pub u64);

impl<'de> Deserialize<'de> for WholeNumber {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_u64(WholeNumberVisitor)
    }
}

struct WholeNumberVisitor;

impl Visitor<'_> for WholeNumberVisitor {
    type Value = WholeNumber;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a whole number from 0 to {}", u64::MAX)
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<WholeNumber, E> {
        Ok(WholeNumber(number))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<WholeNumber, E> {
        if number.fract() == 0.0 && (0.0..TOO_LARGE).contains(&number) {
            Ok(WholeNumber(number as u64))
        } else {
            Err(E::invalid_value(Unexpected::Float(number), &self))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(json: &str) -> Option<u64> {
        serde_json::from_str::<WholeNumber>(json).ok().map(|whole| whole.0)
    }

    #[test]
    fn whole_numbers_are_read_in_all_forms() {
        for (json, number) in [("0", 0), ("-0.0", 0), ("2.0", 2), ("1e3", 1_000), ("18446744073709551615", u64::MAX)] {
            assert_eq!(whole(json), Some(number), "{json}");
        }
        assert_eq!(whole("9007199254740993"), Some(9_007_199_254_740_993), "not by way of floating point");
    }

    #[test]
    fn other_values_are_refused() {
        for json in ["-1", "-1.0", "1.5", "1e300", "18446744073709551616", "\"1\"", "true", "[]"] {
            assert_eq!(whole(json), None, "{json}");
        }
    }
}
