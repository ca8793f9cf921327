//! JSON from operators and clients: stricter types, and messages in JSON's own words.
//!
//! Derived types accept more than one form of a value, and serde's messages name types of Rust. Rules files, test cases and
//! request bodies share the remedies.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Unexpected, Visitor};

/// Words of serde and `serde_json` for an expected value, and better ones.
const EXPECTED: [(&str, &str); 6] = [
    ("a sequence", "a list"),
    ("a map", "an object"),
    ("a boolean", "true or false"),
    ("u64", "a whole number from 0"),
    ("usize", "a whole number from 0"),
    ("i64", "a whole number"),
];

/// serde's words for a value that is given, and better ones.
const GIVEN: [(&str, &str); 2] = [("sequence", "a list"), ("map", "an object")];

/// serde's words before a number or a boolean, which follows in backquotes.
const KINDS: [&str; 3] = ["integer", "floating point", "boolean"];

/// Messages of `serde_json` about malformed JSON, and better ones.
const MALFORMED: [(&str, &str); 8] = [
    ("EOF while parsing a value", "the text ends before a value"),
    ("EOF while parsing a list", "the text ends within a list"),
    ("EOF while parsing an object", "the text ends within an object"),
    ("EOF while parsing a string", "the text ends within a string"),
    ("expected value", "expected a value"),
    ("expected ident", "expected a value"),
    ("trailing characters", "there is more text after the end of the value"),
    ("recursion limit exceeded", "lists and objects are nested too deeply"),
];

/// Returns the message of `error` without its position.
pub fn message(error: &serde_json::Error) -> String {
    if error.is_eof() && error.column() == 0 && error.line() <= 1 {
        return "the text is empty".to_owned();
    }
    let text = error.to_string();
    let position = format!(" at line {} column {}", error.line(), error.column());
    reword(text.strip_suffix(&position).unwrap_or(&text))
}

fn reword(text: &str) -> String {
    let mismatch = ["invalid type: ", "invalid value: "].iter().find_map(|start| text.strip_prefix(start));
    // A given string may contain the separator, too.
    if let Some((given, expected)) = mismatch.and_then(|rest| rest.rsplit_once(", expected ")) {
        return format!("expected {}, got {}", replacement(&EXPECTED, expected), describe_given(given));
    }
    match text.strip_prefix("unknown variant ") {
        Some(rest) => format!("unknown value {rest}"),
        None => replacement(&MALFORMED, text).to_owned(),
    }
}

fn describe_given(given: &str) -> &str {
    if let Some(string) = given.strip_prefix("string ") {
        return string;
    }
    let number = KINDS.iter().find_map(|kind| given.strip_prefix(kind)?.trim_start().strip_prefix('`'));
    match number.and_then(|number| number.strip_suffix('`')) {
        Some(number) => number,
        None => replacement(&GIVEN, given),
    }
}

fn replacement<'a>(table: &[(&str, &'a str)], text: &'a str) -> &'a str {
    table.iter().find(|(theirs, _)| *theirs == text).map_or(text, |(_, ours)| ours)
}

/// A `T` that must be written as an object. A derived `Deserialize` would also accept an array of the fields.
#[derive(Debug)]
pub struct Object<T>(pub T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ObjectVisitor(PhantomData))
    }
}

struct ObjectVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
    type Value = Object<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<Self::Value, M::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(Object)
    }
}

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
    use serde::Deserialize;
    use serde::de::DeserializeOwned;
    use std::collections::BTreeMap;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Fields {
        #[expect(dead_code, reason = "only parsed")]
        size: u64,
    }

    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum Choice {
        One,
        Two,
    }

    fn of<T: DeserializeOwned>(json: &str) -> String {
        message(&serde_json::from_str::<T>(json).err().unwrap_or_else(|| panic!("{json} is valid")))
    }

    #[test]
    fn messages_name_no_types_of_rust() {
        for (found, expected) in [
            (of::<Object<Fields>>("[1]"), "expected an object, got a list"),
            (of::<Object<Fields>>("5"), "expected an object, got 5"),
            (of::<Object<Fields>>("{\"size\": -1}"), "expected a whole number from 0, got -1"),
            (of::<Object<Fields>>("{\"size\": 1.5}"), "expected a whole number from 0, got 1.5"),
            (
                of::<Object<Fields>>("{\"size\": \"a, expected b\"}"),
                "expected a whole number from 0, got \"a, expected b\"",
            ),
            (of::<Object<Fields>>("{\"size\": null}"), "expected a whole number from 0, got null"),
            (of::<Object<Fields>>("{\"length\": 1}"), "unknown field `length`, expected `size`"),
            (of::<Object<Fields>>("{}"), "missing field `size`"),
            (of::<WholeNumber>("true"), "expected a whole number from 0 to 18446744073709551615, got true"),
            (of::<Vec<bool>>("{}"), "expected a list, got an object"),
            (of::<Vec<bool>>("[1]"), "expected true or false, got 1"),
            (of::<BTreeMap<String, bool>>("[]"), "expected an object, got a list"),
            (of::<Choice>("\"three\""), "unknown value `three`, expected `one` or `two`"),
            (of::<Vec<bool>>(""), "the text is empty"),
            (of::<Vec<bool>>("[true"), "the text ends within a list"),
            (of::<Vec<bool>>("[true,"), "the text ends before a value"),
            (of::<Object<Fields>>("{\"size\": 1"), "the text ends within an object"),
            (of::<String>("\"a"), "the text ends within a string"),
            (of::<Vec<bool>>("[] x"), "there is more text after the end of the value"),
            (of::<Vec<bool>>("x"), "expected a value"),
            (of::<serde_json::Value>(&"[".repeat(200)), "lists and objects are nested too deeply"),
        ] {
            assert!(found.contains(expected), "{found} lacks {expected:?}");
        }
    }

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
