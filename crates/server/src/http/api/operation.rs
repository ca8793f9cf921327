//! Operations in JSON: objects whose values are strings, numbers or booleans.

use std::borrow::Cow;
use std::fmt::{self, Display};

use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};

use crate::http::response::Problem;
use divvy_core::rules::Operation;
use divvy_telemetry::metrics::Bound;

/// The pairs of an operation, in order.
#[derive(Debug, Default)]
pub struct Pairs<'a>(Vec<(Text<'a>, Value<'a>)>);

/// A string. Without escapes it is borrowed from the body.
#[derive(Debug)]
struct Text<'a>(Cow<'a, str>);

#[derive(Debug)]
enum Value<'a> {
    /// The text of a string, a whole number or a boolean.
    Text(Cow<'a, str>),
    /// Any other number. The body has its text.
    Number(f64),
}

impl Pairs<'_> {
    /// Copies the pairs of `body` into `operation`. `pointer` is their position in the body.
    ///
    /// # Errors
    /// There are more than `max_pairs`, or a field is given twice.
    pub fn read(
        &self,
        body: &[u8],
        max_pairs: usize,
        pointer: impl Display,
        operation: &mut Operation,
    ) -> Result<(), Problem> {
        // The number is checked first, because finding a repeated key compares each key with all others.
        if self.0.len() > max_pairs {
            return Err(Problem::bad_request(format!("more than {max_pairs} pairs"))
                .with_limit(Bound::Pairs)
                .at(pointer));
        }
        operation.clear();
        for (key, value) in &self.0 {
            let value = match value {
                Value::Text(text) => Cow::Borrowed(&**text),
                // Beside a key with escapes, it is the shortest text of the number.
                Value::Number(number) => match number_after(&key.0, body) {
                    Some(text) => text.into(),
                    None => serde_json::Number::from_f64(*number).map_or_else(String::new, |n| n.to_string()).into(),
                },
            };
            if !operation.set(&key.0, &value) {
                return Err(Problem::bad_request(format!("the field {:?} is given twice", key.0)).at(pointer));
            }
        }
        Ok(())
    }
}

/// Returns the text of the number that follows the key, which is a part of the body unless it has escapes.
fn number_after<'a>(key: &str, body: &'a [u8]) -> Option<&'a str> {
    let key_start = (key.as_ptr() as usize).checked_sub(body.as_ptr() as usize)?;
    let after_key = body.get(key_start.checked_add(key.len())?..)?.strip_prefix(b"\"")?;
    let number = after_key.trim_ascii_start().strip_prefix(b":")?.trim_ascii_start();
    let is_part = |byte: &u8| matches!(byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E');
    let length = number.iter().position(|byte| !is_part(byte)).unwrap_or(number.len());
    str::from_utf8(number.get(..length)?).ok()
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
        Ok(Value::Text(Cow::Borrowed(text)))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Value::Text(Cow::Owned(text.to_owned())))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Self::Value, E> {
        Ok(Value::Text(number.to_string().into()))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Self::Value, E> {
        Ok(Value::Text(number.to_string().into()))
    }

    /// Two ids of many digits must not become one, and `1.0` is not `1` in a rules file either.
    fn visit_f64<E: Error>(self, number: f64) -> Result<Self::Value, E> {
        Ok(Value::Number(number))
    }

    fn visit_bool<E: Error>(self, is_true: bool) -> Result<Self::Value, E> {
        Ok(Value::Text(is_true.to_string().into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<Vec<(String, String)>, String> {
        let pairs: Pairs = serde_json::from_str(json).map_err(|error| error.to_string())?;
        let mut operation = Operation::new();
        pairs.read(json.as_bytes(), 12, "/operation", &mut operation).map_err(|problem| format!("{problem:?}"))?;
        Ok(operation.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect())
    }

    #[test]
    fn numbers_and_booleans_are_their_json_text() {
        let json = r#"{"s": "a\u0062", "n": 42, "max": 18446744073709551615, "i": -7, "f": 1.50, "e": 1e3, "b": true, "no": false,
            "one" : 1.0 , "zero":-0, "long":0.1234567890123456789, "": 18446744073709551616}"#;
        let expected = [
            ("s", "ab"),
            ("n", "42"),
            ("max", "18446744073709551615"),
            ("i", "-7"),
            ("f", "1.50"),
            ("e", "1e3"),
            ("b", "true"),
            ("no", "false"),
            ("one", "1.0"),
            ("zero", "-0"),
            ("long", "0.1234567890123456789"),
            ("", "18446744073709551616"),
        ];
        let expected: Vec<_> = expected.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        assert_eq!(read(json), Ok(expected));
        for json in [r#"{"a": null}"#, r#"{"a": []}"#, r#"{"a": {}}"#] {
            assert!(read(json).unwrap_err().contains("a string, a number or a boolean"), "{json}");
        }
        assert_eq!(read(r#"{"\u0061": 1.50}"#), Ok(vec![("a".to_owned(), "1.5".to_owned())]), "an escaped key");
    }
}
