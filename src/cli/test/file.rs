//! The format of a file with test cases, and its reader, which reports malformed JSON with its line. [`check`](super::check)
//! checks that the values make sense together.

use std::fmt;
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use clap::ValueEnum;
use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use serde_json::{Map, Value};

use divvy_core::clock::Timestamp;
use divvy_core::config::Problem;
use divvy_core::json::{self, Object, WholeNumber};
use divvy_core::regular_file;
use divvy_core::units::{self, Time};

/// Maximum size of a file: enough for a hundred thousand steps.
const MAX_BYTES: u64 = 64 << 20;

/// Reads the cases at `path`.
///
/// # Errors
/// The first problem in the file.
pub fn read(path: &Path) -> Result<CaseFile, Problem> {
    let name = path.display().to_string();
    let bytes = regular_file::read(path, MAX_BYTES).map_err(|error| {
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

/// Maximum time in a case: the longest that a clock can measure.
const MAX_SECONDS: u64 = u64::MAX / 1_000_000_000;

/// The last second that a [`Timestamp`] can represent.
pub const LAST_TIME: &str = "2554-07-21T23:34:33Z";

/// A time since the start of a case, in seconds or with a unit. Displays with its unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(try_from = "Written")]
pub struct Elapsed(Time);

impl Elapsed {
    pub const ZERO: Self = Self(Time(Duration::ZERO));

    pub fn nanos(self) -> u64 {
        u64::try_from(self.0.0.as_nanos()).unwrap_or(u64::MAX)
    }

    /// Returns the seconds, rounded up as in an answer.
    pub fn whole_seconds(self) -> u64 {
        self.0.whole_seconds()
    }

    pub fn is_whole_seconds(self) -> bool {
        self.0.is_whole_seconds()
    }

    pub fn seconds(self) -> f64 {
        self.0.0.as_secs_f64()
    }
}

impl fmt::Display for Elapsed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // 0 would otherwise be shown without a unit.
        if *self == Self::ZERO { f.write_str("0s") } else { self.0.fmt(f) }
    }
}

impl TryFrom<Written> for Elapsed {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        let text = match written {
            Written::Whole(seconds) => seconds.to_string(),
            Written::Number(seconds) => seconds.to_string(),
            Written::Text(text) => text,
        };
        units::seconds(0..=MAX_SECONDS)(&text).map(Self)
    }
}

/// An expected time until the reset, in whole seconds. A number may be as large as the number in any answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(try_from = "Written")]
pub struct ResetSeconds(pub u64);

impl TryFrom<Written> for ResetSeconds {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        match written {
            Written::Whole(seconds) => Ok(Self(seconds)),
            other => Elapsed::try_from(other).map(|time| Self(time.whole_seconds())),
        }
    }
}

/// A time as the file has it.
#[derive(serde::Deserialize)]
#[serde(untagged, expecting = "expected seconds, or a time such as \"90s\"")]
enum Written {
    Whole(u64),
    Number(f64),
    Text(String),
}

/// The start of a case.
#[derive(Debug, Clone, Copy, serde::Deserialize)]
#[serde(try_from = "String")]
pub struct Start(pub Timestamp);

impl TryFrom<String> for Start {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not a time from 1970 to {LAST_TIME}, such as \"2026-03-01T09:30:00Z\"");
        let moment: jiff::Timestamp = text.parse().map_err(|_| wrong())?;
        let nanos = u64::try_from(moment.as_nanosecond()).map_err(|_| wrong())?;
        Ok(Self(Timestamp::from_nanos(nanos)))
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

    #[test]
    fn time_is_a_number_of_seconds_or_has_a_unit() {
        let parse = |json: &str| serde_json::from_str::<Elapsed>(json).unwrap();
        for (json, nanos, shown) in [
            ("0", 0, "0s"),
            ("90", 90_000_000_000, "90s"),
            ("0.25", 250_000_000, "250ms"),
            ("\"1.5h\"", 5_400_000_000_000, "90m"),
            ("\"31d\"", 2_678_400_000_000_000, "31d"),
        ] {
            assert_eq!((parse(json).nanos(), parse(json).to_string().as_str()), (nanos, shown), "{json}");
        }
        assert_eq!(parse("0.25").whole_seconds(), 1);
        for (json, part) in
            [("-1", "is not a time"), ("\"1y\"", "is not a time"), ("1e300", "must be from 0"), ("[]", "seconds, or")]
        {
            let error = serde_json::from_str::<Elapsed>(json).unwrap_err().to_string();
            assert!(error.contains(part), "{json}: {error}");
        }
    }

    #[test]
    fn reset_may_be_as_large_as_in_an_answer() {
        let parse = |json: &str| serde_json::from_str::<ResetSeconds>(json).unwrap().0;
        for (json, seconds) in
            [("18446744073709551615", u64::MAX), ("\"1.5s\"", 2), ("0.5", 1), ("\"40000d\"", 3_456_000_000)]
        {
            assert_eq!(parse(json), seconds, "{json}");
        }
        for (json, part) in [("-1", "is not a time"), ("\"1y\"", "is not a time"), ("[]", "seconds, or")] {
            let error = serde_json::from_str::<ResetSeconds>(json).unwrap_err().to_string();
            assert!(error.contains(part), "{json}: {error}");
        }
    }

    #[test]
    fn last_time_is_the_last_second_of_a_timestamp() {
        let last = Start::try_from(LAST_TIME.to_owned()).unwrap().0;
        assert_eq!(last.as_nanos() / 1_000_000_000, u64::MAX / 1_000_000_000);
    }

    #[test]
    fn start_is_rfc_3339() {
        let nanos = |json: &str| serde_json::from_str::<Start>(json).map(|start| start.0.as_nanos());
        assert_eq!(nanos("\"1970-01-01T01:00:01+01:00\"").unwrap(), 1_000_000_000);
        for json in ["\"2026-03-01\"", "\"1969-12-31T23:59:59Z\"", "\"9999-01-01T00:00:00Z\"", "\"soon\""] {
            assert!(
                nanos(json)
                    .unwrap_err()
                    .to_string()
                    .contains("is not a time from 1970 to 2554-07-21T23:34:33Z, such as"),
                "{json}"
            );
        }
    }
}
