//! Checks a file with test cases against the rules. The result is the cases to run, or a list of all problems.
//!
//! Each intent of a step has its own fields, and its own answer.

use std::collections::HashSet;
use std::fmt::Display;

use serde_json::{Map, Value};

use super::case::{Action, Answer, Case, Expectation, Step};
use super::file::{CaseFile, Pairs, RawCase, RawExpectation, RawLimit, RawStep, StepKeyword, problem};
use super::times::{Elapsed, LAST_TIME};
use divvy_core::clock::Timestamp;
use divvy_core::config::Problem;
use divvy_core::json::{Object, WholeNumber};
use divvy_core::rules::{Operation, RuleSet, Scratch};
use divvy_limiter::Settlement;
use divvy_server::DEFAULT_MAX_BODY;
use divvy_server::protocol::DEFAULT_MAX_PAIRS;

/// Start of a case that states none: 2026-01-01, midnight UTC. Windows shorter than a day begin then, too.
const DEFAULT_START: Timestamp = Timestamp::from_nanos(1_767_225_600_000_000_000);

/// Returns the cases in `file`. `name` is its name in messages.
///
/// # Errors
/// All problems.
pub fn check(file: &CaseFile, rules: &RuleSet, name: &str) -> Result<Vec<Case>, Vec<Problem>> {
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

fn check_case(written: &RawCase, rules: &RuleSet, path: &str, faults: &mut Faults<'_>) -> Case {
    if written.steps.iter().all(|Object(step)| step.expect.is_none()) {
        let fix = "add a step with \"expect\", such as {\"allowed\": true}";
        faults.add(format_args!("{path}.steps"), "no step expects anything", fix);
    }
    let start = written.start.map_or(DEFAULT_START, |start| start.0);
    let mut checker = StepChecker::new(rules);
    let (mut steps, mut now): (Vec<Step>, Elapsed) = (Vec::new(), Elapsed::ZERO);
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
    Case { name: written.name.clone(), start, steps }
}

/// Returns the name of a rule that has a calendar window and matches the step's operation.
fn calendar_rule(step: &Step, rules: &RuleSet) -> Option<String> {
    let mut scratch = Scratch::default();
    let mut matches = rules.matches(step.operation()?, &mut scratch);
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
    fn check(&mut self, step: &RawStep, at: Elapsed, path: &str, faults: &mut Faults<'_>) -> Option<Step> {
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
        let expect = match &step.expect {
            None => Expectation::default(),
            Some(Object(expect)) => self.expectation(expect, &form, &format!("{path}.expect"), faults),
        };
        if faults.found.len() > before {
            return None;
        }
        Some(Step { at, word, action: action(step, word, operation)?, expect })
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

    /// Returns the expected answer of a step. Adds a fault if it is empty, has a field that the intent's answer lacks, or names
    /// an unknown rule.
    fn expectation(
        &self,
        written: &RawExpectation,
        form: &IntentFields,
        path: &str,
        faults: &mut Faults<'_>,
    ) -> Expectation {
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
        let rule = rule.as_deref().and_then(|name| self.find_rule(name, format!("{path}.rule"), faults));
        let remaining = remaining.map(|WholeNumber(remaining)| remaining);
        let answer =
            Answer { allowed: *allowed, remaining, balance: *balance, reset: reset.map(|reset| reset.0), rule };
        Expectation { answer, error: error.clone() }
    }

    /// Returns the index of a rule. Adds a fault if no rule has this name.
    fn find_rule(&self, name: &str, path: String, faults: &mut Faults<'_>) -> Option<usize> {
        let found = self.rules.find_by_name(name);
        if found.is_none() {
            let what = format!("no rule is called {name:?}");
            faults.add(path, what, &format!("the names are {}", self.names()));
        }
        found
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

/// Returns the request of a step whose fields are valid.
fn action(step: &RawStep, word: Option<StepKeyword>, operation: Option<Operation>) -> Option<Action> {
    let ttl_seconds = step.ttl.map(|ttl| u32::try_from(ttl.whole_seconds()).unwrap_or(u32::MAX));
    let cost = step.cost.map(|WholeNumber(cost)| cost);
    let settle = |settlement| Some(Action::Settle { id: step.id.clone()?, settlement });
    match word {
        None => step.limit.as_ref().map(|Object(limit)| action_of_limit(limit)),
        Some(StepKeyword::Hit | StepKeyword::Peek | StepKeyword::Charge | StepKeyword::Refund) => {
            Some(Action::Ask { operation: operation?, cost, idempotency_key: step.idempotency_key.clone() })
        }
        Some(StepKeyword::Reserve) => Some(Action::Reserve {
            operation: operation?,
            credits: cost.unwrap_or(1),
            ttl_seconds,
            id: step.id.clone(),
        }),
        Some(StepKeyword::Commit) => settle(Settlement::Commit { cost: cost? }),
        Some(StepKeyword::Release) => settle(Settlement::Release),
        Some(StepKeyword::Renew) => settle(Settlement::Renew { ttl_seconds }),
    }
}

fn action_of_limit(RawLimit { rule, actor, credits }: &RawLimit) -> Action {
    let (rule, actor) = (rule.clone(), actor.clone());
    match *credits {
        Some(WholeNumber(credits)) => Action::SetLimit { rule, actor, credits },
        None => Action::RemoveLimit { rule, actor },
    }
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
