//! The event `rules`: the counts of the last second, for the rules that a page shows.

use std::borrow::Cow;

use serde::Serialize;

use super::history::{RuleHistory, SECONDS, Sample};
use super::view::{Candidates, Shown, View};
use divvy_core::rules::{MatchPolicy, Rule};

/// Maximum length of an operation, a comment or a limit (bytes). Rules come from the operator, but an event must stay short.
const MAX_TEXT: usize = 2_048;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct RulesEvent<'a> {
    total: usize,
    matching: usize,
    first: usize,
    time: u64,
    /// Number of rules that denied a hit in the last minute. Counts are left out for a user whose scope has one actor, because
    /// they are those of all actors.
    #[serde(skip_serializing_if = "Option::is_none")]
    denying: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sum: Option<Sum>,
    rules: Vec<RuleEvent<'a>>,
    /// Left out if the page asks for no rule in detail.
    #[serde(skip_serializing_if = "Option::is_none")]
    selected: Option<Option<RuleEvent<'a>>>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Sum {
    hits: u64,
    denied: u64,
    canary_denied: u64,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct RuleEvent<'a> {
    index: usize,
    name: Cow<'a, str>,
    label: Option<&'a str>,
    #[serde(flatten)]
    counts: Option<Counts>,
    #[serde(flatten)]
    facts: Option<RuleFacts<'a>>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Counts {
    hits: u32,
    denied: u32,
    canary_denied: u32,
}

/// The part of a rule that changes only with the rules, and the last minute.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct RuleFacts<'a> {
    operation: String,
    limit: String,
    algorithm: &'static str,
    actor_field: Option<String>,
    /// The settings `networks` and `list`.
    conditions: Vec<String>,
    actor_prefix: Option<String>,
    /// The blocks of actors that the rule keeps denying.
    penalty: Option<String>,
    stack: bool,
    canary: bool,
    comment: Option<String>,
    line: usize,
    file: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    history: Option<HistoryEvent<'a>>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct HistoryEvent<'a> {
    hits: &'a [u32],
    denied: &'a [u32],
    canary_denied: &'a [u32],
}

/// Histories of the rules in an event, which then has all facts about them.
#[derive(Debug)]
pub struct Histories<'a> {
    /// The histories of the shown rules, in order. The history of the rule that the page shows in detail comes last.
    pub rules: &'a [RuleHistory],
    /// Name of the rules file.
    pub file: Option<&'a str>,
}

/// Writes the event's data.
///
/// # Errors
/// JSON cannot represent a value.
pub fn write(
    sample: &Sample,
    view: &View,
    candidates: &Candidates,
    shown: &Shown,
    histories: Option<&Histories<'_>>,
) -> serde_json::Result<String> {
    let rules = sample.policy.as_ref().map_or(&[][..], |policy| policy.rules().rules());
    let event = |position: usize, index: usize| {
        let facts = histories.and_then(|histories| Some((histories.rules.get(position)?, histories.file)));
        Some(describe(sample, rules.get(index)?, index, candidates.hides_counts, facts))
    };
    let sums = candidates.sum(sample);
    let event = RulesEvent {
        total: candidates.total(),
        matching: shown.matching,
        first: view.first,
        time: sample.time,
        denying: sums.as_ref().map(|sums| sums.denying),
        sum: sums.map(|sums| Sum { hits: sums.hits, denied: sums.denied, canary_denied: sums.canary_denied }),
        rules: shown.indexes.iter().enumerate().filter_map(|(position, &index)| event(position, index)).collect(),
        selected: candidates.selected.map(|selected| event(shown.indexes.len(), selected?)),
    };
    serde_json::to_string(&event)
}

fn describe<'a>(
    sample: &Sample,
    rule: &'a Rule,
    index: usize,
    hides_counts: bool,
    facts: Option<(&'a RuleHistory, Option<&'a str>)>,
) -> RuleEvent<'a> {
    let (second, canary) = (sample.second(index), rule.match_policy == MatchPolicy::Canary);
    let (denied, canary_denied) = if canary { (0, second.denied) } else { (second.denied, 0) };
    let facts = facts.map(|(history, file)| {
        const NONE: &[u32] = &[0; SECONDS];
        let (denied, canary_denied) = if canary { (NONE, &*history.denied) } else { (&*history.denied, NONE) };
        RuleFacts {
            operation: shorten(rule.to_string()),
            limit: shorten(rule.settings.to_string()),
            algorithm: rule.settings.algorithm().name(),
            actor_field: rule.actor_field(),
            conditions: rule.conditions().map(|condition| shorten(condition.to_string())).collect(),
            actor_prefix: rule.actor_prefix.as_ref().map(ToString::to_string),
            penalty: rule.penalty.as_ref().map(ToString::to_string),
            stack: rule.match_policy == MatchPolicy::And,
            canary,
            comment: rule.comment.clone().map(shorten),
            line: rule.line,
            file,
            history: (!hides_counts).then_some(HistoryEvent { hits: &history.hits, denied, canary_denied }),
        }
    });
    let counts = (!hides_counts).then_some(Counts { hits: second.hits, denied, canary_denied });
    RuleEvent { index, name: rule.name(index), label: rule.label.as_deref(), counts, facts }
}

fn shorten(mut text: String) -> String {
    if text.len() > MAX_TEXT {
        text.truncate(text.floor_char_boundary(MAX_TEXT));
        text.push('…');
    }
    text
}
