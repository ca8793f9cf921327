//! `GET /v1/rules`: the rules in force, in order.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};
use serde_json::Number;

use super::json::Json;
use super::state::Api;
use crate::limiter::Scope;
use crate::limiter::rules::listed;
use crate::rules::{Rule, Seconds, calendar_settings};
use crate::server::http::problem::Problem;

#[derive(Serialize)]
struct Rules<'a> {
    rules: Vec<RuleDescription<'a>>,
}

/// A rule: its name, and its settings under their names in a rules file, without settings that were not given.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct RuleDescription<'a> {
    /// [`Rule::name`].
    name: Cow<'a, str>,
    #[serde(serialize_with = "as_object")]
    operation: &'a Rule,
    credit_limit: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    reset_seconds: Option<Number>,
    #[serde(flatten)]
    calendar: BTreeMap<&'static str, String>,
    algorithm: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    refill_credits: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    refill_seconds: Option<Number>,
    #[serde(skip_serializing_if = "Option::is_none")]
    burst: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    actor_field: Option<ActorField<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cost_field: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    overrun: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hold_field: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    counter: Option<&'a str>,
    match_policy: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    label: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    comment: Option<&'a str>,
}

/// One field, or several. Each combination of their values has its own counter.
#[derive(Serialize)]
#[serde(untagged)]
enum ActorField<'a> {
    One(&'a str),
    Several(&'a [String]),
}

fn as_object<S: Serializer>(rule: &&Rule, serializer: S) -> Result<S::Ok, S::Error> {
    let mut object = serializer.serialize_map(Some(rule.operation.len()))?;
    for (key, pattern) in rule.pairs() {
        object.serialize_entry(key, pattern)?;
    }
    object.end()
}

impl<'a> RuleDescription<'a> {
    fn new(index: usize, rule: &'a Rule) -> Self {
        let settings = &rule.settings;
        Self {
            name: rule.name(index),
            operation: rule,
            credit_limit: settings.credit_limit,
            reset_seconds: settings.calendar.is_none().then(|| number(settings.reset_seconds)),
            calendar: settings.calendar.into_iter().flat_map(calendar_settings).collect(),
            algorithm: settings.algorithm().name(),
            refill_credits: settings.refill_credits,
            refill_seconds: settings.refill_seconds.map(number),
            burst: settings.burst,
            actor_field: match rule.actor_fields.as_slice() {
                [] => None,
                [field] => Some(ActorField::One(field)),
                fields => Some(ActorField::Several(fields)),
            },
            cost_field: rule.cost_field.as_deref(),
            overrun: rule.overrun_word(),
            hold_field: rule.hold_field.as_deref(),
            counter: rule.counter.as_deref(),
            match_policy: rule.match_policy.as_str(),
            label: rule.label.as_deref(),
            comment: rule.comment.as_deref(),
        }
    }
}

/// Returns a whole number if possible. Rounds the fraction of a time that has nine decimals and is years long.
fn number(seconds: Seconds) -> Number {
    match seconds.0.subsec_nanos() {
        0 => Number::from(seconds.0.as_secs()),
        _ => Number::from_f64(seconds.0.as_secs_f64()).unwrap_or_else(|| Number::from(seconds.0.as_secs())),
    }
}

pub async fn rules(State(api): State<Arc<Api>>) -> Result<Response, Problem> {
    let policy = api.policy()?;
    let rules = listed(&policy, &Scope::EVERYTHING).map(|(index, rule)| RuleDescription::new(index, rule)).collect();
    Ok(Json(Rules { rules }).into_response())
}
