//! `GET /v1/rules`: the rules in force, in order.

use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};
use serde_json::Number;

use super::json::Json;
use super::state::Api;
use crate::http::problem::Problem;
use crate::net::origin;
use divvy_core::rules::{Rule, SettingValue};
use divvy_limiter::RuleCount;
use divvy_limiter::rules::{hits_of, listed};

#[derive(Serialize)]
struct Rules<'a> {
    rules: Vec<RuleDescription<'a>>,
}

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

pub async fn rules(State(api): State<Arc<Api>>) -> Result<Response, Problem> {
    let policy = api.policy()?;
    let scope = origin::user_scope();
    let describe = |(index, rule)| RuleDescription(index, rule, hits_of(&policy, index, rule, &scope));
    let rules = listed(&policy, &scope).map(describe).collect();
    Ok(Json(Rules { rules }).into_response())
}
