//! Reads a file with test cases, and reports malformed JSON with its line.

use std::io::ErrorKind;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use super::format::{CaseFile, VERSION};
use crate::config::Problem;
use crate::files;
use crate::json::{self, Object};

/// Maximum size of a file: enough for a hundred thousand steps.
const MAX_BYTES: u64 = 64 << 20;

/// Reads the cases at `path`.
///
/// # Errors
/// The first problem in the file.
pub fn read(path: &Path) -> Result<CaseFile, Problem> {
    let name = path.display().to_string();
    let bytes = files::read(path, MAX_BYTES).map_err(|error| {
        let fix = match error.kind() {
            ErrorKind::NotFound => "write test cases there (docs/rules.md), or name their file with --cases",
            _ => "check its path and its permissions",
        };
        problem(&name, None, format!("cannot read the test cases: {error}"), fix)
    })?;
    let text = String::from_utf8(bytes)
        .map_err(|_| problem(&name, None, "the file is not UTF-8".to_owned(), "save it as UTF-8"))?;
    parse(&text, &name)
}

/// Reads the cases in `text`. `name` is the file's name in problems.
///
/// # Errors
/// The first problem in the text.
pub fn parse(text: &str, name: &str) -> Result<CaseFile, Problem> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    // The version is checked first, because another version may have other fields.
    if let Ok(Object(Versioned { version: Some(version) })) = serde_json::from_str(text)
        && version != VERSION
    {
        let what = format!("version {version} is unknown: this divvy reads version {VERSION}");
        return Err(problem(name, None, what, "write \"version\": 1, or use a newer divvy"));
    }
    let mut json = serde_json::Deserializer::from_str(text);
    let Object(file) = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        describe(error.inner(), name, &path)
    })?;
    json.end().map_err(|error| describe(&error, name, ""))?;
    Ok(file)
}

#[derive(Deserialize)]
struct Versioned {
    version: Option<Value>,
}

fn describe(error: &serde_json::Error, name: &str, path: &str) -> Problem {
    let message = json::message(error);
    let what = match path {
        _ if !error.is_data() => format!("malformed JSON at column {}: {message}", error.column()),
        "" | "." => message.clone(),
        path => format!("{path}: {message}"),
    };
    let fix = if message.starts_with("unknown field `amount`") {
        "write `cost`: it is also the number of credits that a reserve sets aside"
    } else {
        "correct it there: docs/rules.md describes the fields"
    };
    problem(name, Some(error.line().max(1)), what, fix)
}

/// Returns a problem with a whole file, or with one of its lines, in the form of a problem in a rules file.
pub fn problem(file: &str, line: Option<usize>, what: String, fix: &str) -> Problem {
    Problem { file: file.into(), line, operation: None, what, fix: fix.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_order_mark_is_skipped() {
        assert!(parse("\u{feff}{\"version\": 1, \"cases\": []}", "x").is_ok());
    }

    #[test]
    fn problem_has_its_line_and_its_path() {
        let case =
            |step: &str| format!("{{\"version\": 1, \"cases\": [\n{{\"name\": \"a\", \"steps\": [\n{step}]}}]}}");
        for (text, expected) in [
            (String::new(), "x:1: malformed JSON at column 0: the text is empty"),
            ("{\"version\": 1,\n\"cases\": [}".to_owned(), "x:2: malformed JSON at column 11"),
            (
                "{\"version\": 1, \"cases\": []} x".to_owned(),
                "x:1: malformed JSON at column 29: there is more text after the end",
            ),
            ("{\"version\": 2, \"tests\": []}".to_owned(), "x: version 2 is unknown"),
            ("{\"version\": \"1\", \"cases\": []}".to_owned(), "x: version \"1\" is unknown"),
            ("{\"cases\": []}".to_owned(), "x:1: missing field `version`"),
            ("{\"version\": 1}".to_owned(), "x:1: missing field `cases`"),
            (case("{\"expct\": {}}"), "x:3: cases[0].steps[0].expct: unknown field `expct`, expected one of `at`"),
            (case("{\"expect\": {\"left\": 1}}"), "x:3: cases[0].steps[0].expect.left: unknown field `left`"),
            (case("{\"intent\": \"take\"}"), "x:3: cases[0].steps[0].intent: unknown value `take`, expected one of"),
            (case("{\"at\": \"1y\"}"), "x:3: cases[0].steps[0].at: is not a time, such as 90s"),
            (case("{\"intent\": 5}"), "x:3: cases[0].steps[0].intent: expected a string, got 5"),
            (
                case("{\"cost\": -1}"),
                "x:3: cases[0].steps[0].cost: expected a whole number from 0 to 18446744073709551615, got",
            ),
            (case("{\"amount\": 1}"), "x:3: cases[0].steps[0].amount: unknown field `amount`, expected one of"),
            (case("{\"operation\": [\"a\"]}"), "x:3: cases[0].steps[0].operation: expected an object, got a list"),
            (
                case("{\"operation\": {\"user\": \"a\",\n\"user\": \"b\"}}"),
                "x:4: cases[0].steps[0].operation: the field \"user\" is given twice",
            ),
            (case("{\"expect\": [true]}"), "x:3: cases[0].steps[0].expect: expected an object, got a list"),
            (case("{\"limit\": [\"a\", \"b\", 1]}"), "x:3: cases[0].steps[0].limit: expected an object, got a list"),
            (case("[1, \"hit\"]"), "x:3: cases[0].steps[0]: expected an object, got a list"),
            ("[1, []]".to_owned(), "x:1: expected an object, got a list"),
            (
                "{\"version\": 1, \"cases\": [[\"a\", null, []]]}".to_owned(),
                "x:1: cases[0]: expected an object, got a list",
            ),
            ("{\"version\": 1, \"cases\": {}}".to_owned(), "x:1: cases: expected a list, got an object"),
            ("[".repeat(200), "x:1: expected an object, got a list"),
        ] {
            let found = parse(&text, "x").unwrap_err().to_string();
            assert!(found.starts_with(expected), "{text}: {found}");
        }
    }
}
