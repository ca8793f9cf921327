//! Messages about JSON, in words that do not depend on the parser.

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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;
    use serde::de::DeserializeOwned;

    use super::*;
    use crate::json::{Object, WholeNumber};

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
}
