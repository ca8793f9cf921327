//! The format of a file with test cases, and its reader, which reports malformed JSON with its line. [`check`](super::check)
//! checks that the values make sense together.

use std::fmt;
use std::io::ErrorKind;
use std::path::Path;

use clap::ValueEnum;
use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use serde_json::{Map, Value};

use super::times::{Elapsed, ResetSeconds, Start};
use divvy_core::config::Problem;
use divvy_core::files;
use divvy_core::json::{self, Object, WholeNumber};

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

/// Version of the format.
pub const VERSION: u64 = 1;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CaseFile {
    /// The version. It is checked before the other fields, which depend on it.
    #[serde(rename = "version")]
    _version: u64,
    pub cases: Vec<Object<RawCase>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawCase {
    pub name: String,
    pub start: Option<Start>,
    pub steps: Vec<Object<RawStep>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct RawStep {
    /// Time since the start of the case. A step without it follows the previous step at once.
    pub at: Option<Elapsed>,
    pub intent: Option<StepKeyword>,
    pub operation: Option<Pairs>,
    pub cost: Option<WholeNumber>,
    pub ttl: Option<Elapsed>,
    /// Name of a reservation within the case.
    pub id: Option<String>,
    pub idempotency_key: Option<String>,
    /// A limit of one actor.
    pub limit: Option<Object<RawLimit>>,
    pub expect: Option<Object<RawExpectation>>,
}

/// The pairs of an operation, each field once.
#[derive(Debug)]
pub struct Pairs(pub Map<String, Value>);

/// The keyword for the request of a step. Displays as in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum StepKeyword {
    Hit,
    Peek,
    Charge,
    Refund,
    Reserve,
    Commit,
    Release,
    Renew,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawLimit {
    pub rule: String,
    #[serde(default)]
    pub actor: String,
    /// Credits in place of the rule's. Without them, the actor's limit is removed.
    pub credits: Option<WholeNumber>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawExpectation {
    pub allowed: Option<bool>,
    pub remaining: Option<WholeNumber>,
    pub balance: Option<i64>,
    pub reset: Option<ResetSeconds>,
    pub rule: Option<String>,
    /// A part of the expected error.
    pub error: Option<String>,
}

impl fmt::Display for StepKeyword {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_possible_value().map_or(Ok(()), |word| f.write_str(word.get_name()))
    }
}

impl<'de> Deserialize<'de> for Pairs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(PairsVisitor)
    }
}

struct PairsVisitor;

impl<'de> Visitor<'de> for PairsVisitor {
    type Value = Pairs;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Pairs, M::Error> {
        let mut pairs = Map::new();
        while let Some((field, value)) = map.next_entry::<String, Value>()? {
            if pairs.contains_key(&field) {
                return Err(M::Error::custom(format!("the field {field:?} is given twice")));
            }
            pairs.insert(field, value);
        }
        Ok(Pairs(pairs))
    }
}

// This is not derived, because a derived enum would also accept an object with the keyword, and call any other value
// malformed JSON.
impl<'de> Deserialize<'de> for StepKeyword {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::from_str(&text, false).map_err(|_| {
            let names: Vec<_> = Self::value_variants().iter().map(|word| format!("`{word}`")).collect();
            D::Error::custom(format!("unknown value `{text}`, expected one of {}", names.join(", ")))
        })
    }
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
