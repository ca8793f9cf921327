//! The event `rules`: the counts of the last second, for the rules that a page shows.

use std::borrow::Cow;

use serde::Serialize;

use super::history::{RuleHistory, SECONDS, Sample};
use super::view::{View, VisibleRules};
use crate::rules::{MatchPolicy, Rule};

/// Maximum length of an operation, a comment or a limit (bytes). Rules come from the operator, but an event must stay short.
const MAX_TEXT: usize = 2_048;

#[derive(Debug, Serialize)]
struct RulesEvent<'a> {
    total: usize,
    matching: usize,
    first: usize,
    time: u64,
    rules: Vec<RuleEvent<'a>>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct RuleEvent<'a> {
    index: usize,
    name: Cow<'a, str>,
    label: Option<&'a str>,
    hits: u32,
    denied: u32,
    canary_denied: u32,
    #[serde(flatten)]
    facts: Option<RuleFacts<'a>>,
}

/// The part of a rule that changes only with the rules.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct RuleFacts<'a> {
    operation: Cow<'a, str>,
    limit: Cow<'a, str>,
    algorithm: &'static str,
    actor_field: Option<String>,
    stack: bool,
    canary: bool,
    comment: Option<Cow<'a, str>>,
    line: usize,
    history: HistoryEvent<'a>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct HistoryEvent<'a> {
    hits: &'a [u32],
    denied: &'a [u32],
    canary_denied: &'a [u32],
}

/// Writes the event's data. With `histories`, it has all facts about the rules.
///
/// # Errors
/// JSON cannot represent a value.
pub fn write(
    sample: &Sample,
    view: &View,
    visible: &VisibleRules,
    histories: Option<&[RuleHistory]>,
) -> serde_json::Result<String> {
    let rules = sample.policy.as_ref().map_or(&[][..], |policy| policy.rules().rules());
    let rules = visible.indexes.iter().enumerate().filter_map(|(position, &index)| {
        let history = histories.and_then(|histories| histories.get(position));
        Some(describe(sample, rules.get(index)?, index, history))
    });
    let (total, matching) = (visible.total, visible.matching);
    let event = RulesEvent { total, matching, first: view.first, time: sample.time, rules: rules.collect() };
    serde_json::to_string(&event)
}

fn describe<'a>(sample: &Sample, rule: &'a Rule, index: usize, history: Option<&'a RuleHistory>) -> RuleEvent<'a> {
    let (second, canary) = (sample.second(index), rule.match_policy == MatchPolicy::Canary);
    let (denied, canary_denied) = if canary { (0, second.denied) } else { (second.denied, 0) };
    let facts = history.map(|history| {
        const NONE: &[u32] = &[0; SECONDS];
        let (denied, canary_denied) = if canary { (NONE, &*history.denied) } else { (&*history.denied, NONE) };
        RuleFacts {
            operation: shorten(rule.to_string().into()),
            limit: shorten(rule.summary().into()),
            algorithm: rule.settings.algorithm().name(),
            actor_field: rule.actor_field(),
            stack: rule.match_policy == MatchPolicy::And,
            canary,
            comment: rule.comment.as_deref().map(|comment| shorten(comment.into())),
            line: rule.line,
            history: HistoryEvent { hits: &history.hits, denied, canary_denied },
        }
    });
    let label = rule.label.as_deref();
    RuleEvent { index, name: rule.name(index), label, hits: second.hits, denied, canary_denied, facts }
}

fn shorten(text: Cow<'_, str>) -> Cow<'_, str> {
    if text.len() <= MAX_TEXT {
        return text;
    }
    let mut text = text.into_owned();
    text.truncate(text.floor_char_boundary(MAX_TEXT));
    text.push('…');
    text.into()
}
