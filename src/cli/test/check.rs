//! Test cases: checks a file with them against the rules. The result is the cases to run, or a list of all problems.
//!
//! Each intent of a step has its own fields, and its own answer.

use std::collections::HashSet;
use std::fmt::{self, Display};

use serde_json::{Map, Value};

use super::file::{CaseFile, Elapsed, LAST_TIME, Pairs, RawCase, RawExpectation, RawStep, StepKeyword, problem};
use divvy_core::clock::Timestamp;
use divvy_core::config::Problem;
use divvy_core::json::{Object, WholeNumber};
use divvy_core::rules::{self, Operation, RuleSet, Scratch};
use divvy_server::DEFAULT_MAX_BODY;
use divvy_server::protocol::DEFAULT_MAX_PAIRS;

/// Start of a case that states none: 2026-01-01, midnight UTC. Windows shorter than a day begin then, too.
const DEFAULT_START: Timestamp = Timestamp::from_nanos(1_767_225_600_000_000_000);

/// A sequence of requests to an empty store.
#[derive(Debug)]
pub struct Case<'a> {
    pub name: &'a str,
    pub start: Timestamp,
    pub steps: Vec<Step<'a>>,
}

/// A step of a case, whose fields fit its intent. Displays as the request.
#[derive(Debug)]
pub struct Step<'a> {
    /// Time since the start of the case.
    pub at: Elapsed,
    /// `None` for a limit of an actor.
    pub word: Option<StepKeyword>,
    pub written: &'a RawStep,
    /// The pairs of the operation, if it has one.
    pub operation: Operation,
}

impl Display for Step<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RawStep { cost, ttl, id, idempotency_key, limit, .. } = self.written;
        if let Some(Object(limit)) = limit {
            write!(f, "limit {} {}", limit.rule, Name(&limit.actor))?;
            return match &limit.credits {
                Some(WholeNumber(credits)) => write!(f, " {credits}"),
                None => f.write_str(", removed"),
            };
        }
        let cost = cost.as_ref().map(|WholeNumber(cost)| *cost);
        let (cost, named) = match self.word {
            Some(StepKeyword::Reserve) => (cost.or(Some(1)), id.as_deref()),
            _ => (cost, None),
        };
        let subject = match id {
            Some(id) if self.word != Some(StepKeyword::Reserve) => Name(id).to_string(),
            _ if self.operation.iter().len() == 0 => "(no pairs)".to_owned(),
            _ => rules::header(self.operation.iter()),
        };
        write!(f, "{} {subject}", self.word.unwrap_or(StepKeyword::Hit))?;
        write_option(f, "cost", cost)?;
        write_option(f, "idempotency key", idempotency_key.as_deref().map(Name))?;
        write_option(f, "ttl", ttl.map(Elapsed::whole_seconds))?;
        write_option(f, "id", named.map(Name))
    }
}

/// A name for people: in quotes if it is empty, or if its end would not be clear without them.
struct Name<'a>(&'a str);

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_clear = |c: char| !c.is_whitespace() && !c.is_control() && c != '"' && c != ',';
        if !self.0.is_empty() && self.0.chars().all(is_clear) { f.write_str(self.0) } else { write!(f, "{:?}", self.0) }
    }
}

fn write_option(f: &mut fmt::Formatter<'_>, name: &str, value: Option<impl fmt::Display>) -> fmt::Result {
    value.map_or(Ok(()), |value| write!(f, ", {name} {value}"))
}

/// Returns the cases in `file`. `name` is its name in messages.
///
/// # Errors
/// All problems.
pub fn check<'a>(file: &'a CaseFile, rules: &RuleSet, name: &str) -> Result<Vec<Case<'a>>, Vec<Problem>> {
    let mut faults = Faults { file: name, found: Vec::new() };
    if file.cases.is_empty() {
        faults.add("cases", "there are no cases", "add one, or remove the file");
    }
    let (mut cases, mut names) = (Vec::new(), HashSet::new());
    for (index, Object(written)) in file.cases.iter().enumerate() {
        let path = format!("cases[{index}]");
        if written.name.trim().is_empty() {
            faults.add(format_args!("{path}.name"), "the name is empty", "say what the case shows");
        } else if !names.insert(&written.name) {
            let what = format!("another case is called {:?}", written.name);
            faults.add(format_args!("{path}.name"), what, "give each case its own name");
        }
        cases.push(check_case(written, rules, &path, &mut faults));
    }
    if faults.found.is_empty() { Ok(cases) } else { Err(faults.found) }
}

fn check_case<'a>(written: &'a RawCase, rules: &RuleSet, path: &str, faults: &mut Faults<'_>) -> Case<'a> {
    if written.steps.iter().all(|Object(step)| step.expect.is_none()) {
        let fix = "add a step with \"expect\", such as {\"allowed\": true}";
        faults.add(format_args!("{path}.steps"), "no step expects anything", fix);
    }
    let start = written.start.map_or(DEFAULT_START, |start| start.0);
    let mut checker = StepChecker::new(rules);
    let (mut steps, mut now): (Vec<Step<'_>>, Elapsed) = (Vec::new(), Elapsed::ZERO);
    for (index, Object(step)) in written.steps.iter().enumerate() {
        let path = format!("{path}.steps[{index}]");
        let at = step.at.unwrap_or(now);
        if at.nanos() < now.nanos() {
            let what = format!("{at} is before the step above, which is at {now}");
            faults.add(format_args!("{path}.at"), what, "write the steps in the order of their times");
        }
        if start.as_nanos().checked_add(at.nanos()).is_none() {
            let what = format!("{at} after the start of the case is later than {LAST_TIME}, the last possible time");
            faults.add(format_args!("{path}.at"), what, "begin the case earlier, or write a shorter time");
        }
        now = at;
        steps.extend(checker.check(step, at, &path, faults));
    }
    if written.start.is_none()
        && let Some(rule) = steps.iter().find_map(|step| calendar_rule(step, rules))
    {
        let what = format!("the window of rule {rule} follows the calendar, but the case has no start");
        faults.add(path, what, "add \"start\": \"2026-03-01T09:30:00Z\", for example");
    }
    Case { name: &written.name, start, steps }
}

/// Returns the name of a rule that has a calendar window and matches the step's operation.
fn calendar_rule(step: &Step<'_>, rules: &RuleSet) -> Option<String> {
    step.written.operation.as_ref()?;
    let mut scratch = Scratch::default();
    let mut matches = rules.matches(&step.operation, &mut scratch);
    let (index, rule) = matches.find(|(_, rule)| rule.settings.calendar.is_some())?;
    Some(rule.name(index).into_owned())
}

/// Maximum number of rule names in one message.
const MAX_NAMES: usize = 20;

/// The problems in a file with test cases.
struct Faults<'a> {
    /// The name of the file.
    file: &'a str,
    found: Vec<Problem>,
}

impl Faults<'_> {
    /// Adds a problem with the value at this path in the file.
    fn add(&mut self, path: impl Display, what: impl Display, fix: &str) {
        self.found.push(problem(self.file, None, format!("{path}: {what}"), fix));
    }
}

/// The fields of an intent and of its answer.
struct IntentFields {
    name: &'static str,
    required: &'static [&'static str],
    optional: &'static [&'static str],
    answer: &'static [&'static str],
}

const ANSWER: &[&str] = &["allowed", "remaining", "balance", "reset", "rule"];

impl IntentFields {
    fn of(word: Option<StepKeyword>) -> Self {
        let form = |name, required, optional, answer| Self { name, required, optional, answer };
        match word {
            None => form("a limit", &["limit"], &[], &[]),
            Some(StepKeyword::Hit) => form("a hit", &["operation"], &["cost", "idempotencyKey"], ANSWER),
            Some(StepKeyword::Peek) => form("a peek", &["operation"], &["cost"], ANSWER),
            Some(StepKeyword::Charge) => form("a charge", &["operation"], &["cost", "idempotencyKey"], ANSWER),
            Some(StepKeyword::Refund) => form("a refund", &["operation"], &["cost", "idempotencyKey"], ANSWER),
            Some(StepKeyword::Reserve) => form("a reserve", &["operation"], &["cost", "ttl", "id"], ANSWER),
            Some(StepKeyword::Commit) => form("a commit", &["id", "cost"], &[], &["remaining", "balance", "reset"]),
            Some(StepKeyword::Release) => form("a release", &["id"], &[], &["allowed"]),
            Some(StepKeyword::Renew) => form("a renew", &["id"], &["ttl"], &["allowed"]),
        }
    }
}

/// Checks the steps of one case, in order.
struct StepChecker<'a> {
    rules: &'a RuleSet,
    /// The names of the reservations in the steps so far.
    ids: HashSet<String>,
}

impl<'a> StepChecker<'a> {
    fn new(rules: &'a RuleSet) -> Self {
        Self { rules, ids: HashSet::new() }
    }

    /// Returns the checked step. If it has faults, adds them to `faults` and returns `None`.
    fn check<'b>(&mut self, step: &'b RawStep, at: Elapsed, path: &str, faults: &mut Faults<'_>) -> Option<Step<'b>> {
        let before = faults.found.len();
        let word = if step.limit.is_some() { None } else { Some(step.intent.unwrap_or(StepKeyword::Hit)) };
        let form = IntentFields::of(word);
        check_fields(step, &form, path, faults);
        let operation = step.operation.as_ref().and_then(|Pairs(pairs)| read_operation(pairs, path, faults));
        if let Some(id) = &step.id {
            self.check_id(id, word, path, faults);
        }
        if let Some(ttl) = step.ttl.filter(|ttl| !ttl.is_whole_seconds()) {
            let what = format!("{ttl} is not a whole number of seconds");
            faults.add(format_args!("{path}.ttl"), what, "servers accept whole seconds only");
        }
        if let Some(Object(limit)) = &step.limit {
            self.find_rule(&limit.rule, format!("{path}.limit.rule"), faults);
        }
        if let Some(Object(expect)) = &step.expect {
            self.check_expectation(expect, &form, &format!("{path}.expect"), faults);
        }
        let is_valid = faults.found.len() == before;
        is_valid.then(|| Step { at, word, written: step, operation: operation.unwrap_or_default() })
    }

    fn check_id(&mut self, id: &str, word: Option<StepKeyword>, path: &str, faults: &mut Faults<'_>) {
        let path = format!("{path}.id");
        if word != Some(StepKeyword::Reserve) {
            if !self.ids.contains(id) {
                let what = format!("no step above reserves {id:?}");
                faults.add(path, what, "give the step that reserves this id");
            }
        } else if !self.ids.insert(id.to_owned()) {
            let what = format!("a step above reserves {id:?}, too");
            faults.add(path, what, "give each reservation its own id");
        }
    }

    /// Adds a fault if the expected answer is empty, has a field that the intent's answer lacks, or names an unknown rule.
    fn check_expectation(&self, written: &RawExpectation, form: &IntentFields, path: &str, faults: &mut Faults<'_>) {
        let RawExpectation { allowed, remaining, balance, reset, rule, error } = written;
        let given = [
            ("allowed", allowed.is_some()),
            ("remaining", remaining.is_some()),
            ("balance", balance.is_some()),
            ("reset", reset.is_some()),
            ("rule", rule.is_some()),
        ];
        let given = || given.iter().filter(|(_, is_given)| *is_given).map(|(field, _)| *field);
        if given().next().is_none() && error.is_none() {
            let fix = "state at least one field of the answer, or remove it";
            faults.add(path, "it is empty", fix);
        }
        for field in given() {
            let owner = if error.is_some() { "an error" } else { form.name };
            if error.is_some() || !form.answer.contains(&field) {
                faults.add(format_args!("{path}.{field}"), format!("{owner} has no `{field}`"), "remove it");
            }
        }
        if let Some(name) = rule {
            self.find_rule(name, format!("{path}.rule"), faults);
        }
    }

    /// Adds a fault if no rule has this name.
    fn find_rule(&self, name: &str, path: String, faults: &mut Faults<'_>) {
        if self.rules.find_by_name(name).is_none() {
            let what = format!("no rule is called {name:?}");
            faults.add(path, what, &format!("the names are {}", self.names()));
        }
    }

    fn names(&self) -> String {
        let rules = self.rules.rules();
        let names = rules.iter().enumerate().take(MAX_NAMES).map(|(index, rule)| rule.name(index).into_owned());
        let mut names: Vec<_> = names.collect();
        if rules.len() > MAX_NAMES {
            names.push("…".to_owned());
        }
        names.join(", ")
    }
}

fn check_fields(step: &RawStep, form: &IntentFields, path: &str, faults: &mut Faults<'_>) {
    let given = [
        ("intent", step.limit.is_some() && step.intent.is_some()),
        ("operation", step.operation.is_some()),
        ("cost", step.cost.is_some()),
        ("ttl", step.ttl.is_some()),
        ("id", step.id.is_some()),
        ("idempotencyKey", step.idempotency_key.is_some()),
        ("limit", step.limit.is_some()),
    ];
    for (field, is_given) in given {
        let (is_required, is_optional) = (form.required.contains(&field), form.optional.contains(&field));
        if is_given && !is_required && !is_optional {
            let what = format!("{} has no `{field}`", form.name);
            faults.add(format_args!("{path}.{field}"), what, "remove it");
        }
        if is_required && !is_given {
            faults.add(path, format!("{} needs `{field}`", form.name), "add it");
        }
    }
}

fn read_operation(pairs: &Map<String, Value>, path: &str, faults: &mut Faults<'_>) -> Option<Operation> {
    let mut operation = Operation::new();
    let mut is_valid = check_size(pairs, path, faults);
    for (key, value) in pairs {
        match value.as_str() {
            Some(value) => {
                operation.set(key, value);
            }
            None => {
                is_valid = false;
                let fix = format!("write it in quotes: {:?}", value.to_string());
                faults.add(format_args!("{path}.operation.{key}"), "the value is not a string", &fix);
            }
        }
    }
    is_valid.then_some(operation)
}

/// Returns whether a server with default flags would accept a request with these pairs. If not, adds a fault.
fn check_size(pairs: &Map<String, Value>, path: &str, faults: &mut Faults<'_>) -> bool {
    let length = serde_json::to_string(pairs).unwrap_or_default().len();
    let what = if pairs.len() > DEFAULT_MAX_PAIRS {
        format!("it has {} pairs, but a server accepts at most {DEFAULT_MAX_PAIRS}", pairs.len())
    } else if length > DEFAULT_MAX_BODY {
        format!(
            "it has {length} bytes of JSON, but a server accepts at most {DEFAULT_MAX_BODY} by default (--max-body)"
        )
    } else {
        return true;
    };
    faults.add(format_args!("{path}.operation"), what, "write a smaller operation");
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::test::file;
    use divvy_core::config::{self, Format};

    const RULES: &str = "[user=*]\ncreditLimit = 3\nper = 1m\nactorField = user\nlabel = by-user\n\n\
                         [key=*]\ncreditLimit = 3\nwindow = day\nactorField = key\n\n[default]\ncreditLimit = 0\n";

    fn found(cases: &str) -> String {
        let rules = config::parse(RULES, Format::Ini, "rules.ini").unwrap().rules;
        let file = file::parse(&format!("{{\"version\": 1, \"cases\": {cases}}}"), "x").unwrap();
        let problems = check(&file, &rules, "x").err().unwrap_or_default();
        problems.iter().map(|problem| format!("{problem}\n")).collect()
    }

    fn found_in(steps: &str) -> String {
        found(&format!("[{{\"name\": \"a\", \"steps\": [{steps}]}}]"))
    }

    #[test]
    fn every_problem_of_a_file_is_reported_with_its_path() {
        let step = "{\"operation\": {\"user\": \"a\"}, \"expect\": {\"allowed\": true}}";
        assert_eq!(found_in(step), "");
        let both = found(&format!(
            "[{{\"name\": \"\", \"steps\": []}}, {{\"name\": \"b\", \"steps\": [{step}]}}, {{\"name\": \"b\", \"steps\": [{step}]}}]"
        ));
        for part in [
            "x: cases[0].name: the name is empty; say",
            "x: cases[0].steps: no step expects anything; add a step",
            "x: cases[2].name: another case is called \"b\"; give",
        ] {
            assert!(both.contains(part), "{both}");
        }
        assert!(found("[]").contains("x: cases: there are no cases; add one"));
    }

    #[test]
    fn steps_that_make_no_sense_are_reported() {
        let with =
            |step: &str| found_in(&format!("{step}, {{\"operation\": {{}}, \"expect\": {{\"allowed\": false}}}}"));
        let operation = "\"operation\": {\"user\": \"a\"}";
        for (step, expected) in [
            ("{}".to_owned(), "cases[0].steps[0]: a hit needs `operation`"),
            (
                format!("{{{operation}, \"at\": \"200000d\"}}"),
                "cases[0].steps[0].at: 200000d after the start of the case is later than 2554-07-21T23:34:33Z",
            ),
            (
                format!("{{{operation}, \"intent\": \"reserve\", \"ttl\": \"1500ms\"}}"),
                "cases[0].steps[0].ttl: 1500ms is not a whole number of seconds",
            ),
            (
                format!("{{\"operation\": {{{}}}}}", (0..257).map(|n| format!("\"{n}\": \"\"")).collect::<Vec<_>>().join(", ")),
                "cases[0].steps[0].operation: it has 257 pairs, but a server accepts at most 256",
            ),
            (
                format!("{{\"operation\": {{\"user\": \"{}\"}}}}", "x".repeat(70_000)),
                "cases[0].steps[0].operation: it has 70011 bytes of JSON, but a server accepts at most 65536 by default",
            ),
            (
                "{\"limit\": {\"rule\": \"x\", \"credits\": 1}}".to_owned(),
                "cases[0].steps[0].limit.rule: no rule is called \"x\"; the names are by-user, rule-2, default",
            ),
            ("{\"operation\": {\"user\": 1}}".to_owned(), "cases[0].steps[0].operation.user: the value is not a string"),
            (format!("{{{operation}, \"ttl\": 1}}"), "cases[0].steps[0].ttl: a hit has no `ttl`; remove it"),
            (format!("{{{operation}, \"at\": 5}}, {{{operation}, \"at\": 4}}"), "cases[0].steps[1].at: 4s is before the step"),
            (format!("{{{operation}, \"intent\": \"release\"}}"), "cases[0].steps[0].operation: a release has no"),
            ("{\"intent\": \"release\"}".to_owned(), "cases[0].steps[0]: a release needs `id`"),
            ("{\"intent\": \"commit\", \"id\": \"a\"}".to_owned(), "cases[0].steps[0]: a commit needs `cost`"),
            ("{\"intent\": \"release\", \"id\": \"a\"}".to_owned(), "steps[0].id: no step above reserves \"a\""),
            (
                format!("{{{operation}, \"intent\": \"reserve\", \"id\": \"a\", \"ttl\": 9}}, ").repeat(2) + "{\"operation\": {}}",
                "cases[0].steps[1].id: a step above reserves \"a\", too",
            ),
            (format!("{{{operation}, \"expect\": {{}}}}"), "cases[0].steps[0].expect: it is empty"),
            (
                format!("{{{operation}, \"expect\": {{\"rule\": \"x\"}}}}"),
                "expect.rule: no rule is called \"x\"; the names are by-user, rule-2, default",
            ),
            (
                format!("{{{operation}, \"expect\": {{\"error\": \"x\", \"allowed\": true}}}}"),
                "expect.allowed: an error has no `allowed`",
            ),
            (
                "{\"limit\": {\"rule\": \"by-user\", \"actor\": \"a\", \"credits\": 1}, \"expect\": {\"allowed\": true}}".to_owned(),
                "expect.allowed: a limit has no `allowed`",
            ),
            (format!("{{{operation}, \"limit\": {{\"rule\": \"by-user\"}}}}"), "steps[0].operation: a limit has no"),
            ("{\"operation\": {\"key\": \"a\"}}".to_owned(), "cases[0]: the window of rule rule-2 follows the calendar"),
        ] {
            let found = with(&step);
            assert!(found.contains(expected), "{step}: {found}");
        }
    }
}
