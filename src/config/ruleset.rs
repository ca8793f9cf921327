//! Validates the rules of a document together: the default rule, unreachable rules, labels, shared counters.

use std::collections::HashMap;

use super::document::Document;
use super::problem::{Place, Problems};
use super::validate;
use crate::rules::{MatchPolicy, Quota, Rule, RuleSet, reachability};

/// The compiled rules of `document`. Use them only if no errors were reported.
pub(super) fn compile(document: &Document, problems: &mut Problems) -> Option<RuleSet> {
    let mut rules: Vec<_> = document.rules.iter().filter_map(|raw| validate::rule(raw, problems)).collect();
    check_default(&rules, problems);
    check_labels(document, problems);
    check_actor_fields(document, &rules, problems);
    // A misplaced default rule is reported already; it must not hide other unreachable rules.
    rules.sort_by_key(Rule::is_default);
    let rules = match RuleSet::new(rules) {
        Ok(rules) => rules,
        Err(error) => {
            problems.file_error(error.to_string(), "then load the file again");
            return None;
        }
    };
    check_reachability(&rules, problems);
    check_same_operations(rules.rules(), problems);
    Some(rules)
}

fn check_default(rules: &[Rule], problems: &mut Problems) {
    let mut defaults = rules.iter().enumerate().filter(|(_, rule)| rule.is_default()).peekable();
    if defaults.peek().is_none() {
        let fix =
            "end the file with `[default]` (in JSON, \"default\": {…}) to answer requests that no other rule matches";
        let line = rules.last().map_or(1, |rule| rule.line);
        problems.error(Place::line(line), "there is no default rule", fix);
    }
    for (index, rule) in defaults {
        if index + 1 < rules.len() {
            let what = "the default rule is not the last one, so the rules after it are never reached";
            problems.error(place(rule, &rule.to_string()), what, "move it to the end, and keep only one");
        }
        if rule.match_policy == MatchPolicy::Canary {
            let what = "the default rule is a canary, so no rule answers requests that no other rule matches";
            problems.error(place(rule, &rule.to_string()), what, "remove its `matchPolicy`");
        }
    }
}

fn check_labels(document: &Document, problems: &mut Problems) {
    let mut seen: HashMap<&str, usize> = HashMap::new();
    for raw in &document.rules {
        let Some(setting) = raw.settings.iter().find(|setting| setting.key == validate::LABEL) else { continue };
        let label = setting.value.as_text().filter(|label| !label.is_empty());
        let Some(label) = label else { continue };
        if let Some(first) = seen.get(label) {
            let what = format!("label {label:?} is already used on line {first}");
            let place = Place { line: setting.line, operation: Some(&raw.header) };
            problems.error(place, what, "give each rule its own label, or none");
        } else {
            seen.insert(label, setting.line);
        }
    }
}

fn check_actor_fields(document: &Document, rules: &[Rule], problems: &mut Problems) {
    let lines: HashMap<usize, usize> =
        document.rules.iter().map(|raw| (raw.line, validate::setting_line(raw, validate::ACTOR_FIELD))).collect();
    let fields = rules.iter().flat_map(|rule| rule.actor_fields.iter().map(move |field| (rule, field)));
    for (rule, field) in fields.filter(|(rule, field)| rule.pattern(field).is_none()) {
        let line = lines.get(&rule.line).copied().unwrap_or(rule.line);
        let what =
            format!("actorField {field:?} is not in the operation, so all requests without it share one counter");
        let fix = format!("add {field}=* to the operation, or make sure that every request carries it");
        problems.warning(Place { line, operation: Some(&rule.to_string()) }, what, fix);
    }
}

fn check_reachability(rules: &RuleSet, problems: &mut Problems) {
    for masked in reachability::masked_rules(rules) {
        let (Some(rule), Some(by)) = (rules.rules().get(masked.rule), rules.rules().get(masked.by)) else { continue };
        if !rule.is_default() {
            let what = format!("unreachable: [{by}] on line {} answers every request that this rule matches", by.line);
            problems.error(place(rule, &rule.to_string()), what, "move this rule above that one, or remove it");
        }
    }
}

/// Concerns canaries only: after a stop rule with the same operation, a rule is unreachable.
fn check_same_operations(rules: &[Rule], problems: &mut Problems) {
    let mut canaries: HashMap<Vec<(&str, &str)>, &Rule> = HashMap::new();
    for rule in rules {
        let mut operation: Vec<_> = rule.pairs().collect();
        operation.sort_unstable();
        if let Some(canary) = canaries.get(&operation) {
            let (what, fix) = if share_counters(canary, rule) {
                (same_counters(canary, rule), "give the canary a different limit, or every hit costs two credits")
            } else {
                let what = format!("the canary on line {} has the same operation", canary.line);
                (what, "remove one of them when the trial is over")
            };
            problems.warning(place(rule, &rule.to_string()), what, fix);
        }
        if rule.match_policy == MatchPolicy::Canary {
            canaries.insert(operation, rule);
        }
    }
}

/// For two rules with the same operation. The operation, the limit, and the actor identify a counter.
fn share_counters(one: &Rule, other: &Rule) -> bool {
    let is_same_limit = matches!(one.quota, Quota::Limited(_)) && one.quota == other.quota;
    is_same_limit && one.names_in_actors() == other.names_in_actors()
}

fn same_counters(canary: &Rule, rule: &Rule) -> String {
    let what = format!("this rule and the canary on line {} take from the same counter", canary.line);
    if canary.actor_fields == rule.actor_fields {
        return what;
    }
    let field = |rule: &Rule| rule.actor_field().map_or("not set".to_owned(), |field| format!("{field:?}"));
    let (ours, theirs) = (field(rule), field(canary));
    format!(
        "{what} when their actors have the same value (actorField is {ours} here and {theirs} there, and only the \
         value identifies a counter)"
    )
}

fn place<'a>(rule: &Rule, header: &'a str) -> Place<'a> {
    Place { line: rule.line, operation: Some(header) }
}
