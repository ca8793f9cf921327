//! Compares an answer with the expected one.

use serde::Serialize;
use serde_json::Value;

use super::answer::Answer;
use super::case::Expectation;
use crate::rules::RuleSet;

/// A field whose value differs from the expected one. `null` stands for a missing field.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    pub field: &'static str,
    pub expected: Value,
    pub got: Value,
}

/// Returns the differences in the fields that `expect` states. An unexpected error is a difference, too.
pub fn compare(expect: &Expectation, answer: &Result<Answer, String>, rules: &RuleSet) -> Vec<Difference> {
    let answer = match answer {
        Ok(answer) => answer,
        Err(error) if expect.error.as_ref().is_some_and(|part| error.contains(part)) => return Vec::new(),
        Err(error) => {
            let expected = expect.error.clone().map_or(Value::Null, Value::from);
            return vec![Difference { field: "error", expected, got: Value::from(error.as_str()) }];
        }
    };
    let name = |index: usize| rules.rules().get(index).map(|rule| rule.name(index).into_owned());
    let mut differences = Vec::new();
    let mut add = |field, expected: Option<Value>, got: Option<Value>| {
        if let Some(expected) = expected
            && Some(&expected) != got.as_ref()
        {
            differences.push(Difference { field, expected, got: got.unwrap_or_default() });
        }
    };
    add("error", expect.error.as_deref().map(Value::from), None);
    add("allowed", expect.allowed.map(Value::from), answer.allowed.map(Value::from));
    add("remaining", expect.remaining.map(Value::from), answer.remaining.map(Value::from));
    add("balance", expect.balance.map(Value::from), answer.balance.map(Value::from));
    add("reset", expect.reset.map(Value::from), answer.reset.map(Value::from));
    add("rule", expect.rule.and_then(name).map(Value::from), answer.rule.and_then(name).map(Value::from));
    differences
}
