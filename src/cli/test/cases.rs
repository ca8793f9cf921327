//! The format of a file with test cases, and its reader. Mistakes are reported with their line, or with their path in the file.

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;
use serde::de::{Deserializer, Error};

use divvy_core::clock::Timestamp;
use divvy_core::config::Problem;
use divvy_core::json::{self, Object, WholeNumber};
use divvy_core::units::{self, Time};
use divvy_core::{regular_file, rules};

/// Maximum size of a file: enough for a hundred thousand steps.
const MAX_BYTES: u64 = 64 << 20;
/// Version of the format.
const VERSION: u64 = 1;
/// Maximum time in a case: the longest that a clock can measure.
const MAX_SECONDS: u64 = u64::MAX / 1_000_000_000;
/// Start of a case that states none: 2026-01-01, midnight UTC. Windows shorter than a day begin then, too.
const DEFAULT_START: Timestamp = Timestamp::from_nanos(1_767_225_600_000_000_000);

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CaseFile {
    #[serde(rename = "version", deserialize_with = "version")]
    _version: (),
    pub cases: Vec<Object<Case>>,
}

/// Reads the version of the format. It comes first in a file, because another version may have other fields.
fn version<'de, D: Deserializer<'de>>(deserializer: D) -> Result<(), D::Error> {
    match u64::deserialize(deserializer)? {
        VERSION => Ok(()),
        other => Err(D::Error::custom(format!("version {other} is unknown: this divvy reads version {VERSION}"))),
    }
}

/// A sequence of requests to an empty store.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    pub name: String,
    start: Option<Start>,
    pub steps: Vec<Object<Step>>,
}

impl Case {
    pub fn start(&self) -> Timestamp {
        self.start.map_or(DEFAULT_START, |Start(start)| start)
    }
}

/// The start of a case.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(try_from = "String")]
struct Start(Timestamp);

impl TryFrom<String> for Start {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not a time from 1970 to 2554, such as \"2026-03-01T09:30:00Z\"");
        let moment: jiff::Timestamp = text.parse().map_err(|_| wrong())?;
        let nanos = u64::try_from(moment.as_nanosecond()).map_err(|_| wrong())?;
        Ok(Self(Timestamp::from_nanos(nanos)))
    }
}

/// A request, or an actor's own limit. Displays as both for people.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Step {
    /// Time since the start of the case. A step without it follows the previous step at once.
    #[serde(default, deserialize_with = "time")]
    pub at: Option<Time>,
    pub intent: Option<StepIntent>,
    pub operation: Option<BTreeMap<String, String>>,
    pub cost: Option<WholeNumber>,
    #[serde(default, deserialize_with = "time")]
    pub ttl: Option<Time>,
    /// Name of a reservation within the case.
    pub id: Option<String>,
    pub idempotency_key: Option<String>,
    pub limit: Option<Object<ActorLimit>>,
    pub expect: Option<Object<Expectation>>,
}

/// The kind of request of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StepIntent {
    #[default]
    Hit,
    Peek,
    Charge,
    Refund,
    Reserve,
    Commit,
    Release,
    Renew,
}

/// A limit of one actor.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ActorLimit {
    pub rule: String,
    #[serde(default)]
    pub actor: String,
    /// Credits in place of the rule's. Without them, the actor's limit is removed.
    pub credits: Option<WholeNumber>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expectation {
    pub allowed: Option<bool>,
    pub remaining: Option<WholeNumber>,
    pub balance: Option<i64>,
    #[serde(default, deserialize_with = "time")]
    pub reset: Option<Time>,
    pub rule: Option<String>,
    /// A part of the expected error.
    pub error: Option<String>,
}

/// Reads seconds, or a time with a unit.
fn time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Time>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "expected seconds, or a time such as \"90s\"")]
    enum Written {
        Whole(u64),
        Number(f64),
        Text(String),
    }
    let text = match Written::deserialize(deserializer)? {
        Written::Whole(seconds) => seconds.to_string(),
        Written::Number(seconds) => seconds.to_string(),
        Written::Text(text) => text,
    };
    units::seconds(0..=MAX_SECONDS)(&text).map(Some).map_err(D::Error::custom)
}

/// The name of a kind of step, the fields that it needs, and those that it may have.
type Form = (&'static str, &'static [&'static str], &'static [&'static str]);

impl Step {
    fn form(&self) -> Form {
        match self.intent.unwrap_or_default() {
            _ if self.limit.is_some() => ("limit", &["limit"], &[]),
            StepIntent::Hit => ("hit", &["operation"], &["cost", "idempotencyKey"]),
            StepIntent::Peek => ("peek", &["operation"], &["cost"]),
            StepIntent::Charge => ("charge", &["operation"], &["cost", "idempotencyKey"]),
            StepIntent::Refund => ("refund", &["operation"], &["cost", "idempotencyKey"]),
            StepIntent::Reserve => ("reserve", &["operation"], &["cost", "ttl", "id"]),
            StepIntent::Commit => ("commit", &["id", "cost"], &[]),
            StepIntent::Release => ("release", &["id"], &[]),
            StepIntent::Renew => ("renew", &["id"], &["ttl"]),
        }
    }

    /// Returns what is wrong with the fields together.
    fn faults(&self) -> Vec<String> {
        let (name, required, optional) = self.form();
        let given = [
            ("intent", self.limit.is_some() && self.intent.is_some()),
            ("operation", self.operation.is_some()),
            ("cost", self.cost.is_some()),
            ("ttl", self.ttl.is_some()),
            ("id", self.id.is_some()),
            ("idempotencyKey", self.idempotency_key.is_some()),
            ("limit", self.limit.is_some()),
        ];
        let fault = |(field, is_given): (&str, bool)| match (is_given, required.contains(&field)) {
            (false, true) => Some(format!("a {name} needs `{field}`")),
            (true, false) if !optional.contains(&field) => Some(format!("a {name} has no `{field}`")),
            _ => None,
        };
        let fraction = self.ttl.filter(|ttl| !ttl.is_whole_seconds());
        let fraction = fraction.map(|ttl| format!("the ttl {ttl} is not a whole number of seconds"));
        given.into_iter().filter_map(fault).chain(fraction).collect()
    }

    /// Returns the pairs of the operation.
    pub fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.operation.iter().flatten().map(|(field, value)| (field.as_str(), value.as_str()))
    }
}

impl Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(Object(ActorLimit { rule, actor, credits })) = &self.limit {
            let credits = credits.map_or("removed".to_owned(), |WholeNumber(credits)| credits.to_string());
            return write!(f, "limit {rule} {actor:?} {credits}");
        }
        f.write_str(self.form().0)?;
        if self.operation.is_some() {
            write!(f, " {}", rules::header(self.pairs()))?;
        }
        for (name, value) in [
            ("cost", self.cost.map(|WholeNumber(cost)| cost.to_string())),
            ("idempotency key", self.idempotency_key.clone()),
            ("ttl", self.ttl.map(|ttl| ttl.to_string())),
            ("id", self.id.clone()),
        ] {
            value.map_or(Ok(()), |value| write!(f, ", {name} {value}"))?;
        }
        Ok(())
    }
}

/// Reads the cases at `path`.
///
/// # Errors
/// The problems in the file, or the first one if it cannot be read.
pub fn read(path: &Path) -> Result<CaseFile, Vec<Problem>> {
    let name = path.display().to_string();
    let bytes = regular_file::read(path, MAX_BYTES).map_err(|error| {
        let fix = match error.kind() {
            ErrorKind::NotFound => "write test cases there (docs/rules.md), or name their file with --cases",
            _ => "check its path and its permissions",
        };
        vec![problem(&name, None, format!("cannot read the test cases: {error}"), fix)]
    })?;
    parse(&bytes, &name)
}

/// Reads the cases in `text`. `name` is the file's name in problems.
fn parse(text: &[u8], name: &str) -> Result<CaseFile, Vec<Problem>> {
    let mut json = serde_json::Deserializer::from_slice(text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text));
    let read =
        serde_path_to_error::deserialize(&mut json).map_err(|error| (error.path().to_string(), error.into_inner()));
    let read = read.and_then(|file| json.end().map(|()| file).map_err(|error| (String::new(), error)));
    let Object(file) = read.map_err(|(path, error)| {
        let message = json::message(&error);
        let what = match path.as_str() {
            _ if !error.is_data() => format!("malformed JSON at column {}: {message}", error.column()),
            "" | "." => message,
            path => format!("{path}: {message}"),
        };
        vec![problem(name, Some(error.line().max(1)), what, "correct it there: docs/rules.md describes the fields")]
    })?;
    let problems: Vec<_> = check(&file)
        .into_iter()
        .map(|(path, what)| problem(name, None, format!("{path}: {what}"), "docs/rules.md describes the fields"))
        .collect();
    if problems.is_empty() { Ok(file) } else { Err(problems) }
}

/// Returns the mistakes that the format allows, each with its path.
fn check(file: &CaseFile) -> Vec<(String, String)> {
    let mut faults = Vec::new();
    if file.cases.is_empty() {
        faults.push(("cases".to_owned(), "there are no cases".to_owned()));
    }
    for (index, Object(case)) in file.cases.iter().enumerate() {
        if case.steps.iter().all(|Object(step)| step.expect.is_none()) {
            faults.push((format!("cases[{index}].steps"), "no step expects anything".to_owned()));
        }
        let mut now = Time(Duration::ZERO);
        for (number, Object(step)) in case.steps.iter().enumerate() {
            let path = format!("cases[{index}].steps[{number}]");
            faults.extend(step.faults().into_iter().map(|what| (path.clone(), what)));
            let at = step.at.unwrap_or(now);
            if at.0 < now.0 {
                faults.push((path, format!("its time, {at}, is before that of the step above, {now}")));
            }
            now = at;
        }
    }
    faults
}

/// Returns a problem with a file, or with one of its lines, in the form of a problem in a rules file.
fn problem(file: &str, line: Option<usize>, what: String, fix: &str) -> Problem {
    Problem { file: file.into(), line, operation: None, what, fix: fix.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the problems in a file.
    fn found(text: &str) -> String {
        let problems = parse(text.as_bytes(), "x").err().unwrap_or_default();
        problems.iter().map(|problem| format!("{problem}\n")).collect()
    }

    fn found_in(steps: &str) -> String {
        found(&format!("{{\"version\": 1, \"cases\": [\n{{\"name\": \"a\", \"steps\": [\n{steps}]}}]}}"))
    }

    #[test]
    fn byte_order_mark_is_skipped() {
        assert!(found("\u{feff}{\"version\": 1, \"cases\": []}").contains("x: cases: there are no cases"));
    }

    #[test]
    fn malformed_file_is_reported_with_line_and_path() {
        for (text, expected) in [
            ("", "x:1: malformed JSON at column 0: the text is empty"),
            ("{\"version\": 1,\n\"cases\": [}", "x:2: malformed JSON at column 11"),
            ("{\"version\": 1, \"cases\": []} x", "x:1: malformed JSON at column 29: there is more text after the end"),
            ("{\"version\": 2, \"tests\": []}", "x:1: version: version 2 is unknown"),
            ("{\"cases\": []}", "x:1: missing field `version`"),
            ("[1, []]", "x:1: expected an object, got a list"),
            ("{\"version\": 1, \"cases\": [[\"a\", null, []]]}", "x:1: cases[0]: expected an object, got a list"),
        ] {
            let found = found(text);
            assert!(found.starts_with(expected), "{text}: {found}");
        }
        for (step, expected) in [
            ("{\"expct\": {}}", ".expct: unknown field `expct`, expected one of `at`"),
            ("{\"expect\": {\"left\": 1}}", ".expect.left: unknown field `left`"),
            ("{\"intent\": \"take\"}", ".intent: unknown value `take`, expected one of"),
            ("{\"at\": \"1y\"}", ".at: is not a time, such as 90s"),
            ("{\"at\": []}", ".at: expected seconds, or a time"),
            ("{\"expect\": {\"reset\": -1}}", ".expect.reset: is not a time"),
            ("{\"cost\": -1}", ".cost: expected a whole number from 0 to 18446744073709551615, got"),
            ("{\"operation\": [\"a\"]}", ".operation: expected an object, got a list"),
            ("{\"operation\": {\"user\": 1}}", ".operation.user: expected a string, got 1"),
            ("{\"limit\": [\"a\", \"b\", 1]}", ".limit: expected an object, got a list"),
            ("[1, \"hit\"]", ": expected an object, got a list"),
        ] {
            let found = found_in(step);
            assert!(found.starts_with(&format!("x:3: cases[0].steps[0]{expected}")), "{step}: {found}");
        }
    }

    #[test]
    fn steps_that_make_no_sense_are_reported() {
        let operation = "\"operation\": {\"user\": \"a\"}";
        assert_eq!(found_in(&format!("{{{operation}, \"expect\": {{\"allowed\": true}}}}")), "");
        for (step, expected) in [
            ("{}".to_owned(), "cases[0].steps[0]: a hit needs `operation`"),
            (format!("{{{operation}}}"), "cases[0].steps: no step expects anything"),
            (format!("{{{operation}, \"intent\": \"reserve\", \"ttl\": \"1500ms\"}}"), "the ttl 1500ms is not a whole"),
            (format!("{{{operation}, \"ttl\": 1}}"), "cases[0].steps[0]: a hit has no `ttl`"),
            (
                format!("{{{operation}, \"at\": 5}}, {{{operation}, \"at\": 4}}"),
                "steps[1]: its time, 4s, is before that",
            ),
            (format!("{{{operation}, \"intent\": \"release\"}}"), "a release has no `operation`"),
            ("{\"intent\": \"commit\", \"id\": \"a\"}".to_owned(), "a commit needs `cost`"),
            (format!("{{{operation}, \"limit\": {{\"rule\": \"by-user\"}}}}"), "a limit has no `operation`"),
        ] {
            let found = found_in(&step);
            assert!(found.contains(expected), "{step}: {found}");
        }
    }

    #[test]
    fn times_are_seconds_or_have_a_unit() {
        let parse = |json: &str| serde_json::from_str::<Step>(&format!("{{\"at\": {json}}}")).unwrap().at.unwrap().0;
        for (json, nanos) in [("90", 90_000_000_000), ("0.25", 250_000_000), ("\"1.5h\"", 5_400_000_000_000)] {
            assert_eq!(parse(json), Duration::from_nanos(nanos), "{json}");
        }
        let start = |text: &str| Start::try_from(text.to_owned()).map(|Start(start)| start.as_nanos());
        assert_eq!(start("1970-01-01T01:00:01+01:00").unwrap(), 1_000_000_000);
        for text in ["2026-03-01", "1969-12-31T23:59:59Z", "9999-01-01T00:00:00Z", "soon"] {
            assert!(start(text).unwrap_err().contains("is not a time from 1970 to 2554, such as"), "{text}");
        }
    }
}
