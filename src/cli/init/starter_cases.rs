//! Test cases for a new limit. They pass, and show the format.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};

use super::window::Window;
use crate::rules::{DEFAULT_RULE, Rule, RuleSet};

/// Start of cases about a calendar window: the beginning of a day, a month and a year.
const START: &str = "2026-01-01T00:00:00Z";

/// A test case that is not written yet.
struct Case {
    name: String,
    steps: Vec<Value>,
}

/// Returns the text of test cases for the first rule, whose limit has this window, and for the default rule.
pub fn write(rules: &RuleSet, window: Window<'_>) -> String {
    let Some(rule) = rules.rules().first() else { return String::new() };
    let mut cases = vec![limit(rule, window)];
    cases.extend(actors(rule));
    if !rule.is_default() {
        let step = json!({"operation": {}, "expect": {"allowed": false, "rule": DEFAULT_RULE}});
        cases.push(Case { name: "everything else is denied".to_owned(), steps: vec![step] });
    }
    let start = match window {
        Window::Per(_) => String::new(),
        Window::Calendar(..) => format!("      \"start\": \"{START}\",\n"),
    };
    let mut text = "{\n  \"version\": 1,\n  \"cases\": [\n".to_owned();
    for (index, Case { name, steps }) in cases.iter().enumerate() {
        let comma = if index + 1 < cases.len() { "," } else { "" };
        let steps: Vec<_> = steps.iter().map(|step| format!("        {step}")).collect();
        let (name, steps) = (Value::from(name.as_str()), steps.join(",\n"));
        // Writing to a string never fails.
        let _ = writeln!(
            text,
            "    {{\n      \"name\": {name},\n{start}      \"steps\": [\n{steps}\n      ]\n    }}{comma}"
        );
    }
    text.push_str("  ]\n}\n");
    text
}

/// Returns a case that uses the limit up, and waits until its credits are back.
fn limit(rule: &Rule, window: Window<'_>) -> Case {
    let (name, operation) = (rule.name(0), operation(rule, "a"));
    let credits = rule.settings.credit_limit;
    let others = credits.saturating_sub(1);
    let mut first = json!({"allowed": true, "remaining": others, "rule": name});
    let end = match window {
        Window::Per(time) => {
            if let Some(fields) = first.as_object_mut() {
                fields.insert("reset".to_owned(), Value::from(time));
            }
            time
        }
        Window::Calendar(_, time) => time,
    };
    let mut steps = vec![json!({"operation": operation, "expect": first})];
    if credits > 1 {
        let expect = json!({"allowed": true, "remaining": 0});
        steps.push(json!({"operation": operation, "cost": others, "expect": expect}));
    }
    steps.push(json!({"operation": operation, "expect": {"allowed": false, "remaining": 0, "rule": name}}));
    steps.push(json!({"at": end, "operation": operation, "expect": {"allowed": true, "remaining": others}}));
    Case { name: "the limit is used up, and comes back".to_owned(), steps }
}

/// Returns a case that shows that another actor has its own counter. Returns `None` if the rule has only one counter,
/// or only one actor.
fn actors(rule: &Rule) -> Option<Case> {
    let (one, other) = (operation(rule, "a"), operation(rule, "b"));
    let actor = |operation: &Map<String, Value>| {
        rule.actor_fields.iter().map(|field| operation.get(field).cloned()).collect::<Vec<_>>()
    };
    if actor(&one) == actor(&other) {
        return None;
    }
    let credits = rule.settings.credit_limit;
    let steps = vec![
        json!({"operation": one, "cost": credits, "expect": {"allowed": true, "remaining": 0}}),
        json!({"operation": other, "expect": {"allowed": true, "remaining": credits.saturating_sub(1)}}),
    ];
    Some(Case { name: format!("each {} has its own counter", rule.actor_fields.join(" and ")), steps })
}

/// Returns an operation that the rule matches, with `value` for each `*`.
fn operation(rule: &Rule, value: &str) -> Map<String, Value> {
    rule.pairs().map(|(key, pattern)| (key.to_owned(), Value::from(pattern.replace('*', value)))).collect()
}
