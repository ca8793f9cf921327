//! Operations in JSON: objects whose values are strings, numbers or booleans.

use std::borrow::Cow;
use std::fmt::{self, Display};

use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};

use crate::metrics::Bound;
use crate::rules::Operation;
use crate::server::http::problem::Problem;

/// The pairs of an operation, in order.
#[derive(Debug, Default)]
pub struct Pairs<'a>(Vec<(Text<'a>, Value<'a>)>);

/// A string. Without escapes it is borrowed from the body.
#[derive(Debug)]
struct Text<'a>(Cow<'a, str>);

/// The text of a string, a number or a boolean.
#[derive(Debug)]
struct Value<'a>(Cow<'a, str>);

impl Pairs<'_> {
    /// Copies the pairs into `operation`. `place` is their position in the body.
    ///
    /// # Errors
    /// There are more than `max_pairs`, or a field is given twice.
    pub fn read(&self, max_pairs: usize, pointer: impl Display, operation: &mut Operation) -> Result<(), Problem> {
        // The number is checked first, because finding a repeated key compares each key with all others.
        if self.0.len() > max_pairs {
            return Err(Problem::bad_request(format!("more than {max_pairs} pairs"))
                .with_limit(Bound::Pairs)
                .at(pointer));
        }
        operation.clear();
        for (key, value) in &self.0 {
            if !operation.set(&key.0, &value.0) {
                return Err(Problem::bad_request(format!("the field {:?} is given twice", key.0)).at(pointer));
            }
        }
        Ok(())
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Pairs<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(PairsVisitor)
    }
}

struct PairsVisitor;

impl<'de> Visitor<'de> for PairsVisitor {
    type Value = Pairs<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object whose values are strings, numbers or booleans")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
        let mut pairs = Vec::new();
        while let Some(pair) = map.next_entry()? {
            pairs.push(pair);
        }
        Ok(Pairs(pairs))
    }
}

// This is not derived, because the crate that finds the position of an error does not see keys of a derived newtype.
impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(TextVisitor)
    }
}

struct TextVisitor;

impl<'de> Visitor<'de> for TextVisitor {
    type Value = Text<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Text(Cow::Borrowed(text)))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Text(Cow::Owned(text.to_owned())))
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Value<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string, a number or a boolean")
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Value(Cow::Borrowed(text)))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Value(Cow::Owned(text.to_owned())))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Self::Value, E> {
        Ok(Value(number.to_string().into()))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Self::Value, E> {
        Ok(Value(number.to_string().into()))
    }

    /// Two ids of many digits must not become one.
    fn visit_f64<E: Error>(self, number: f64) -> Result<Self::Value, E> {
        if number.abs() >= LARGEST_EXACT {
            return Err(E::custom("this number has too many digits to be read exactly; write it as a string"));
        }
        Ok(Value(number.to_string().into()))
    }

    fn visit_bool<E: Error>(self, is_true: bool) -> Result<Self::Value, E> {
        Ok(Value(is_true.to_string().into()))
    }
}

/// Floats of 64 bits have all whole numbers up to this one.
const LARGEST_EXACT: f64 = (1_u64 << 53) as f64;

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<Vec<(String, String)>, String> {
        let pairs: Pairs = serde_json::from_str(json).map_err(|error| error.to_string())?;
        let mut operation = Operation::new();
        pairs.read(10, "/operation", &mut operation).map_err(|problem| format!("{problem:?}"))?;
        Ok(operation.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect())
    }

    #[test]
    fn numbers_and_booleans_are_their_text() {
        let json = r#"{"s": "a\u0062", "n": 42, "max": 18446744073709551615, "i": -7, "f": 1.5, "e": 1e3, "b": true, "no": false}"#;
        let expected = [
            ("s", "ab"),
            ("n", "42"),
            ("max", "18446744073709551615"),
            ("i", "-7"),
            ("f", "1.5"),
            ("e", "1000"),
            ("b", "true"),
            ("no", "false"),
        ];
        let expected: Vec<_> = expected.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        assert_eq!(read(json), Ok(expected));
        for json in [r#"{"a": null}"#, r#"{"a": []}"#, r#"{"a": {}}"#] {
            assert!(read(json).unwrap_err().contains("a string, a number or a boolean"), "{json}");
        }
        assert!(read(r#"{"a": 18446744073709551616}"#).unwrap_err().contains("write it as a string"));
    }
}
