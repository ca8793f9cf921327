//! The rules in force, in order.

use std::collections::HashMap;

use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};
use serde_json::{Number, Value, json};

use divvy_core::rules::{Rule, SettingValue};
use divvy_limiter::inspection::{hits_of, listed};
use divvy_limiter::{Limiter, Refusal, RuleCount, Scope};

/// A rule, its index and its hits: its name, its operation, and its settings under their names in a rules file, without settings
/// that were not given.
struct RuleDescription<'a>(usize, &'a Rule, Option<RuleCount>);

impl Serialize for RuleDescription<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self(index, rule, hits) = self;
        let mut object = serializer.serialize_map(None)?;
        object.serialize_entry("name", &rule.name(*index))?;
        object.serialize_entry("operation", &OperationDescription(rule))?;
        if let Some(RuleCount { allowed, denied }) = hits {
            object.serialize_entry("allowed", allowed)?;
            object.serialize_entry("denied", denied)?;
        }
        for setting in rule.named_settings() {
            match &setting.value {
                SettingValue::Text(text) => object.serialize_entry(setting.name, text)?,
                SettingValue::Number(digits) => object.serialize_entry(setting.name, &number(digits))?,
                SettingValue::OfField(field, text) => {
                    object.serialize_entry(setting.name, &HashMap::from([(field, text)]))?;
                }
                // One field, or several. Each combination of their values has its own counter.
                SettingValue::Fields(fields) => match fields.as_slice() {
                    [field] => object.serialize_entry(setting.name, field)?,
                    fields => object.serialize_entry(setting.name, fields)?,
                },
            }
        }
        object.end()
    }
}

struct OperationDescription<'a>(&'a Rule);

impl Serialize for OperationDescription<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.pairs())
    }
}

/// Returns a whole number if possible. Rounds the fraction of a time that has nine decimals and is years long.
fn number(digits: &str) -> Option<Number> {
    let whole = digits.parse::<u64>().ok().map(Number::from);
    whole.or_else(|| Number::from_f64(digits.parse().ok()?))
}

/// Returns the rules in scope.
///
/// # Errors
/// There are no rules.
pub fn list(limiter: &Limiter, scope: &Scope) -> Result<Value, Refusal> {
    let policy = limiter.policy().ok_or(Refusal::NoRules)?;
    let describe = |(index, rule)| RuleDescription(index, rule, hits_of(&policy, index, rule, scope));
    Ok(json!({ "rules": listed(&policy, scope).map(describe).collect::<Vec<_>>() }))
}
