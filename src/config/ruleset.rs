//! Validates the rules of a document together: the default rule, unreachable rules, labels, shared counters.

use std::collections::HashMap;

use super::document::Document;
use super::problem::{Place, Problems};
use super::validate;
use crate::rules::{Identity, MAX_STACK, MatchPolicy, Quota, Rule, RuleSet, reachability, stacks};

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
    if !problems.has_errors() {
        // A limit that could not be read counts as one of 0, which would be blamed for much.
        check_counters(rules.rules(), problems);
        check_stacks(&rules, problems);
    }
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
        let what = match rule.match_policy {
            MatchPolicy::Stop => continue,
            MatchPolicy::Canary => {
                "the default rule is a canary, so no rule answers requests that no other rule matches"
            }
            MatchPolicy::And => "the default rule has `matchPolicy = and`, but no rule comes after it",
        };
        problems.error(place(rule, &rule.to_string()), what, "remove its `matchPolicy`");
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

/// Concerns canaries and stacks: after a stop rule with the same operation, a rule is unreachable.
fn check_same_operations(rules: &[Rule], problems: &mut Problems) {
    let mut canaries: HashMap<Vec<(&str, &str)>, &Rule> = HashMap::new();
    let mut stacked: HashMap<Identity<'_>, &Rule> = HashMap::new();
    for rule in rules {
        let mut operation: Vec<_> = rule.pairs().collect();
        operation.sort_unstable();
        if rule.match_policy != MatchPolicy::Canary {
            // The operation is part of it.
            let identity = rule.identity().filter(|_| rule.counter.is_none());
            if let Some(other) = identity.as_ref().and_then(|identity| stacked.get(identity)) {
                let what = same_counters("the rule", other, rule);
                let fix = if rule.limits_what_runs() {
                    LEASES_OF_ITS_OWN
                } else {
                    "remove one of them, or give it another limit: rules that must allow a request together need \
                     counters of their own"
                };
                problems.error(place(rule, &rule.to_string()), what, fix);
            }
            if let Some(identity) = identity.filter(|_| rule.match_policy == MatchPolicy::And) {
                stacked.entry(identity).or_insert(rule);
            }
        }
        let canary = canaries.get(&operation);
        if let Some(canary) = canary.filter(|canary| rule.limits_what_runs() && share_counters(canary, rule)) {
            let what = same_counters("the canary", canary, rule);
            problems.error(place(rule, &rule.to_string()), what, LEASES_OF_ITS_OWN);
        } else if let Some(canary) = canary {
            let (what, fix) = if share_counters(canary, rule) {
                (
                    same_counters("the canary", canary, rule),
                    "give the canary a different limit, or every hit costs two credits",
                )
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

/// Leases are the same under every limit.
const LEASES_OF_ITS_OWN: &str = "remove one of them, or give it a `counter` of its own: whatever the limits are, both would take the \
                                 same lease";

/// For two rules with the same operation; counters with a name are another matter.
fn share_counters(one: &Rule, other: &Rule) -> bool {
    one.counter.is_none() && one.identity().is_some_and(|identity| other.identity() == Some(identity))
}

/// Concerns rules that count under the same name.
fn check_counters(rules: &[Rule], problems: &mut Problems) {
    let mut first: HashMap<&str, &Rule> = HashMap::new();
    for rule in rules {
        let Some(counter) = rule.counter.as_deref().filter(|_| rule.identity().is_some()) else { continue };
        let known = first.entry(counter).or_insert(rule);
        if known.identity() != rule.identity() {
            let differences = differences(known, rule);
            let what =
                format!("the rule on line {} keeps the counter {counter} with another {differences}", known.line);
            let fix = "let both differ in their credits alone, or give this rule a counter with another name";
            problems.error(place(rule, &rule.to_string()), what, fix);
        }
    }
    for (other, rule) in stacks::counted_twice(rules) {
        let (Some(other), Some(rule)) = (rules.get(other), rules.get(rule)) else { continue };
        let what =
            format!("a request may match this rule and the one on line {}, and both take from one counter", other.line);
        let fix = "let no request match both, or give one of them a counter with another name";
        problems.error(place(rule, &rule.to_string()), what, fix);
    }
}

/// In what the counters differ that these rules keep under one name.
fn differences(one: &Rule, other: &Rule) -> String {
    let (of_one, of_other) = (one.settings.rhythm(), other.settings.rhythm());
    let differences = [
        ("algorithm", of_one.algorithm != of_other.algorithm),
        ("window or refill", of_one.algorithm == of_other.algorithm && of_one != of_other),
        ("actorField", one.actor_fields != other.actor_fields),
    ];
    let differences: Vec<_> = differences.into_iter().filter(|(_, differs)| *differs).map(|(what, _)| what).collect();
    differences.join(" and another ")
}

fn same_counters(kind: &str, other: &Rule, rule: &Rule) -> String {
    let what = format!("this rule and {kind} on line {} take from the same counter", other.line);
    if other.actor_fields == rule.actor_fields {
        return what;
    }
    let field = |rule: &Rule| rule.actor_field().map_or("not set".to_owned(), |field| format!("{field:?}"));
    let (ours, theirs) = (field(rule), field(other));
    format!(
        "{what} when their actors have the same value (actorField is {ours} here and {theirs} there, and only the \
         value identifies a counter)"
    )
}

fn check_stacks(rules: &RuleSet, problems: &mut Problems) {
    let rule_at = |index: &usize| rules.rules().get(*index);
    let mut is_default_told = false;
    for stack in stacks::stacks(rules) {
        let members: Vec<_> = stack.iter().filter_map(rule_at).collect();
        let [first, .., last] = members.as_slice() else { continue };
        if members.len() > MAX_STACK {
            let what = format!("{} rules must allow the same request, and {MAX_STACK} is the most", members.len());
            problems.error(place(last, &last.to_string()), what, "remove `matchPolicy = and` from some of them");
        }
        let denies_all = |rule: &&Rule| rule.quota == Quota::Never;
        let is_denied_by_default =
            last.is_default() && denies_all(last) && !members.iter().rev().skip(1).any(denies_all);
        if is_denied_by_default && !std::mem::replace(&mut is_default_told, true) {
            let what =
                format!("denies every request that matches the rule on line {} and no rule that stops", first.line);
            let fix =
                "let one of the rules that must allow it stop (remove its `matchPolicy`), or give [default] a limit";
            problems.warning(place(last, &last.to_string()), what, fix);
        }
    }
    for idle in stacks::idle_rules(rules) {
        let Some(rule) = rule_at(&idle.rule) else { continue };
        let what = match idle.by.as_ref().and_then(rule_at) {
            Some(by) => {
                format!("never matters: [{by}] on line {} denies every request that this rule would deny", by.line)
            }
            None => "never matters: it allows everything, and others have to allow, too".to_owned(),
        };
        problems.warning(place(rule, &rule.to_string()), what, "remove it, or change its limit");
    }
}

/// Concerns servers whose counters are in a Redis Cluster: rules that must allow a request together need their counters
/// in one slot.
pub(super) fn check_slots(rules: &RuleSet, problems: &mut Problems) {
    for (other, rule) in stacks::torn_by_slots(rules.rules()) {
        let (Some(other), Some(rule)) = (rules.rules().get(other), rules.rules().get(rule)) else { continue };
        let what = format!(
            "a Redis Cluster cannot take from this rule and from the one on line {} together: their counters are in \
             different slots",
            other.line
        );
        let fix = "let the `actorField` of both begin with the same field";
        problems.error(place(rule, &rule.to_string()), what, fix);
    }
}

fn place<'a>(rule: &Rule, header: &'a str) -> Place<'a> {
    Place { line: rule.line, operation: Some(header) }
}
