//! Checks one step of a case. Each intent has its own fields, and its own answer.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::case::{Action, Expectation, Step};
use super::elapsed::Elapsed;
use super::format::{Pairs, RawExpectation, RawLimit, RawStep, StepKeyword};
use crate::json::{Object, WholeNumber};
use crate::limiter::Settlement;
use crate::protocol::DEFAULT_MAX_PAIRS;
use crate::rules::{Operation, RuleSet};
use crate::server::DEFAULT_MAX_BODY;

/// Maximum number of rule names in one message.
const MAX_NAMES: usize = 20;

/// A fault in a file with test cases.
#[derive(Debug)]
pub struct Fault {
    pub path: String,
    pub what: String,
    pub fix: String,
}

impl Fault {
    pub fn new(path: String, what: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { path, what: what.into(), fix: fix.into() }
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
pub struct StepChecker<'a> {
    rules: &'a RuleSet,
    /// The names of the reservations in the steps so far.
    ids: HashSet<String>,
}

impl<'a> StepChecker<'a> {
    pub fn new(rules: &'a RuleSet) -> Self {
        Self { rules, ids: HashSet::new() }
    }

    /// Returns the checked step. If it has faults, adds them to `faults` and returns `None`.
    pub fn check(&mut self, step: &RawStep, at: Elapsed, path: &str, faults: &mut Vec<Fault>) -> Option<Step> {
        let before = faults.len();
        let word = if step.limit.is_some() { None } else { Some(step.intent.unwrap_or(StepKeyword::Hit)) };
        let form = IntentFields::of(word);
        check_fields(step, &form, path, faults);
        let operation = step.operation.as_ref().and_then(|Pairs(pairs)| read_operation(pairs, path, faults));
        if let Some(id) = &step.id {
            self.check_id(id, word, path, faults);
        }
        if let Some(ttl) = step.ttl.filter(|ttl| !ttl.is_whole_seconds()) {
            let what = format!("{ttl} is not a whole number of seconds");
            faults.push(Fault::new(format!("{path}.ttl"), what, "servers accept whole seconds only"));
        }
        if let Some(Object(limit)) = &step.limit {
            self.find_rule(&limit.rule, format!("{path}.limit.rule"), faults);
        }
        let expect = match &step.expect {
            None => Expectation::default(),
            Some(Object(expect)) => self.expectation(expect, &form, &format!("{path}.expect"), faults),
        };
        if faults.len() > before {
            return None;
        }
        Some(Step { at, word, action: action(step, word, operation)?, expect })
    }

    fn check_id(&mut self, id: &str, word: Option<StepKeyword>, path: &str, faults: &mut Vec<Fault>) {
        let path = format!("{path}.id");
        if word != Some(StepKeyword::Reserve) {
            if !self.ids.contains(id) {
                let what = format!("no step above reserves {id:?}");
                faults.push(Fault::new(path, what, "give the step that reserves this id"));
            }
        } else if !self.ids.insert(id.to_owned()) {
            let what = format!("a step above reserves {id:?}, too");
            faults.push(Fault::new(path, what, "give each reservation its own id"));
        }
    }

    /// Returns the expected answer of a step. Adds a fault if it is empty, has a field that the intent's answer lacks, or names
    /// an unknown rule.
    fn expectation(
        &self,
        written: &RawExpectation,
        form: &IntentFields,
        path: &str,
        faults: &mut Vec<Fault>,
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
            faults.push(Fault::new(path.to_owned(), "it is empty", fix));
        }
        for field in given() {
            let owner = if error.is_some() { "an error" } else { form.name };
            if error.is_some() || !form.answer.contains(&field) {
                faults.push(Fault::new(format!("{path}.{field}"), format!("{owner} has no `{field}`"), "remove it"));
            }
        }
        let rule = rule.as_deref().and_then(|name| self.find_rule(name, format!("{path}.rule"), faults));
        Expectation {
            allowed: *allowed,
            remaining: remaining.map(|WholeNumber(remaining)| remaining),
            balance: *balance,
            reset: reset.map(|reset| reset.0),
            rule,
            error: error.clone(),
        }
    }

    /// Returns the index of a rule. Adds a fault if no rule has this name.
    fn find_rule(&self, name: &str, path: String, faults: &mut Vec<Fault>) -> Option<usize> {
        let found = self.rules.find_by_name(name);
        if found.is_none() {
            let what = format!("no rule is called {name:?}");
            faults.push(Fault::new(path, what, format!("the names are {}", self.names())));
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

fn check_fields(step: &RawStep, form: &IntentFields, path: &str, faults: &mut Vec<Fault>) {
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
            faults.push(Fault::new(format!("{path}.{field}"), what, "remove it"));
        }
        if is_required && !is_given {
            faults.push(Fault::new(path.to_owned(), format!("{} needs `{field}`", form.name), "add it"));
        }
    }
}

fn read_operation(pairs: &Map<String, Value>, path: &str, faults: &mut Vec<Fault>) -> Option<Operation> {
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
                faults.push(Fault::new(format!("{path}.operation.{key}"), "the value is not a string", fix));
            }
        }
    }
    is_valid.then_some(operation)
}

/// Returns whether a server with default flags would accept a request with these pairs. If not, adds a fault.
fn check_size(pairs: &Map<String, Value>, path: &str, faults: &mut Vec<Fault>) -> bool {
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
    faults.push(Fault::new(format!("{path}.operation"), what, "write a smaller operation"));
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
