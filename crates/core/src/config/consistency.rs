//! Validates the rules of a document together: the default rule, unreachable rules, labels and shared counters.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::path::Path;

use indexmap::IndexMap;

use super::conditions::{Lists, list_path};
use super::document::RawRule;
use super::{Problems, validate};
use crate::rules::setting_name::{ACTOR_FIELD, LABEL, QUOTA_GROUP};
use crate::rules::{
    Identity, MAX_STACK, MatchPolicy, Overrun, Pattern, Quota, Rule, RuleSet, RuleSetError, Spellings, UnknownSpelling,
    stacks,
};

/// Returns the compiled rules of a file. Use them only if no errors were reported.
pub(super) fn compile(file: &[RawRule], lists: &mut Lists, problems: &mut Problems) -> Option<RuleSet> {
    let mut rules: Vec<_> = file.iter().filter_map(|raw| validate::rule(raw, lists, problems)).collect();
    check_default(&rules, problems);
    check_labels(file, problems);
    check_actor_fields(file, &rules, problems);
    check_shared_counters(file, &rules, problems);
    // A misplaced default rule has already been reported. It must not hide other unreachable rules.
    rules.sort_by_key(Rule::is_default);
    let report = |error: &RuleSetError| problems.file_error(error.to_string(), "then load the file again");
    let rules = RuleSet::new(rules).inspect_err(report).ok()?;
    check_reachability(&rules, &stacks::find_masked_rules(&rules), "request", problems);
    check_same_operations(rules.rules(), problems);
    if !problems.has_errors() {
        // A limit that could not be read counts as 0, which would cause misleading reports.
        check_counters(rules.rules(), problems);
        check_stacks(&rules, problems);
        check_quota_groups(rules.rules(), problems);
        check_bypasses(rules.rules(), problems);
    }
    Some(rules)
}

fn check_default(rules: &[Rule], problems: &mut Problems) {
    let mut defaults = rules.iter().enumerate().filter(|(_, rule)| rule.is_default()).peekable();
    if defaults.peek().is_none() {
        let fix =
            "end the file with `[default]` (in JSON, \"default\": {…}) to answer requests that no other rule matches";
        let line = rules.last().map_or(1, |rule| rule.line);
        problems.error(line, "there is no default rule", fix);
    }
    for (index, rule) in defaults {
        if index + 1 < rules.len() {
            let what = "the default rule is not the last one, so the rules after it are never reached";
            problems.error(rule, what, "move it to the end, and keep only one");
        }
        let what = match rule.match_policy {
            MatchPolicy::Stop => continue,
            MatchPolicy::Canary => {
                "the default rule is a canary, so no rule answers requests that no other rule matches"
            }
            MatchPolicy::And => "the default rule has `matchPolicy = and`, but no rule comes after it",
        };
        problems.error(rule, what, "remove its `matchPolicy`");
    }
}

fn check_labels(file: &[RawRule], problems: &mut Problems) {
    let mut seen: HashMap<&str, usize> = HashMap::new();
    for raw in file {
        let Some(setting) = raw.settings.iter().find(|setting| setting.key == LABEL) else { continue };
        let Some(label) = setting.value.as_text().filter(|label| !label.is_empty()) else { continue };
        if let Some(first) = seen.get(label) {
            let what = format!("label {label:?} is already used on line {first}");
            problems.error((setting.line, raw.header.as_str()), what, "give each rule its own label, or none");
        } else {
            seen.insert(label, setting.line);
        }
    }
}

fn check_actor_fields(file: &[RawRule], rules: &[Rule], problems: &mut Problems) {
    let lines: HashMap<usize, usize> = file.iter().map(|raw| (raw.line, raw.setting_line(ACTOR_FIELD))).collect();
    let fields = rules.iter().flat_map(|rule| rule.actor_fields.iter().map(move |field| (rule, field)));
    for (rule, field) in fields.filter(|(rule, field)| rule.pattern(field).is_none()) {
        let line = lines.get(&rule.line).copied().unwrap_or(rule.line);
        let what =
            format!("actorField {field:?} is not in the operation, so all requests without it share one counter");
        let fix = format!("add {field}=* to the operation, or make sure that every request carries it");
        problems.warning((line, rule.to_string().as_str()), what, fix);
    }
}

/// Reports rules that have one counter for all requests, although they look as if each value of a field had its own. An
/// `actorField` without a value shows that one counter is intended, and so does another rule with the same operation
/// that has actors.
fn check_shared_counters(file: &[RawRule], rules: &[Rule], problems: &mut Problems) {
    let with_actors: HashSet<String> =
        rules.iter().filter(|rule| !rule.actor_fields.is_empty()).map(Rule::to_string).collect();
    let without: HashSet<usize> = file.iter().filter(|raw| !raw.has(ACTOR_FIELD)).map(|raw| raw.line).collect();
    for rule in rules.iter().filter(|rule| matches!(rule.quota, Quota::Limited(_)) && without.contains(&rule.line)) {
        // A cost or the name of a lease naturally has another value in each request.
        let has_use = |key: &str| {
            [&rule.cost_field, &rule.hold_field].into_iter().any(|field| field.as_deref() == Some(key))
                || rule.conditions().any(|condition| condition.field == key)
        };
        let any = rule.operation.iter().filter(|(key, pattern)| *pattern == Pattern::Any && !has_use(key));
        let fields: Vec<_> = any.map(|(key, _)| key.as_str()).collect();
        let [first, ..] = fields.as_slice() else { continue };
        if with_actors.contains(&rule.to_string()) {
            continue;
        }
        let what =
            format!("one counter for all requests: `{first}=*` only says that the field {first:?} must be there");
        let fields = fields.join(", ");
        let fix = format!(
            "add `{ACTOR_FIELD} = {fields}` to count each value by itself, or `{ACTOR_FIELD} =` if one counter is meant"
        );
        problems.warning(rule, what, fix);
    }
}

/// Reports limits that a client can evade by sending another field.
fn check_bypasses(rules: &[Rule], problems: &mut Problems) {
    for (limit, by) in stacks::find_bypasses(rules) {
        let field = by.operation.iter().map(|(key, _)| key.as_str()).find(|key| limit.pattern(key).is_none());
        let what = format!(
            "a request with the field {:?} evades [{limit}] on line {}, because this rule answers it first",
            field.unwrap_or_default(),
            limit.line
        );
        problems.warning(by, what, "move this rule below that one, or add `matchPolicy = and` to it");
    }
}

/// Reports rules that others mask for each `asked`: a request, or a check, whose values have one spelling.
fn check_reachability(rules: &RuleSet, masked: &[(usize, usize)], asked: &str, problems: &mut Problems) {
    for (rule, by) in masked {
        let (Some(rule), Some(by)) = (rules.rules().get(*rule), rules.rules().get(*by)) else { continue };
        if !rule.is_default() {
            let what = format!("unreachable: [{by}] on line {} answers every {asked} that this rule matches", by.line);
            let fix = if rule.operation.len() == by.operation.len() && rule.match_pairs() == by.match_pairs() {
                "remove one of them, or add `matchPolicy = and` to the first: then both must allow the request"
            } else {
                "move this rule above that one, or remove it"
            };
            problems.error(rule, what, fix);
        }
    }
}

/// Checks canaries and stacks. After a stop rule, a rule with the same operation is unreachable.
fn check_same_operations(rules: &[Rule], problems: &mut Problems) {
    let mut canaries: HashMap<Vec<(&str, Cow<'_, str>)>, &Rule> = HashMap::new();
    let mut stacked: HashMap<Identity<'_>, &Rule> = HashMap::new();
    for rule in rules {
        let operation = rule.match_pairs();
        if rule.match_policy != MatchPolicy::Canary {
            // The operation is part of the identity.
            let identity = rule.identity().filter(|_| rule.counter.is_none());
            if let Some(other) = identity.as_ref().and_then(|identity| stacked.get(identity)) {
                problems.error(rule, describe_shared_counters("the rule", other), SEPARATE_FIX);
            }
            if let Some(identity) = identity.filter(|_| rule.match_policy == MatchPolicy::And) {
                stacked.entry(identity).or_insert(rule);
            }
        }
        match canaries.get(&operation) {
            Some(canary) if share_counters(canary, rule) => {
                let what = describe_shared_counters("the canary", canary);
                if rule.is_concurrency_limit() {
                    problems.error(rule, what, SEPARATE_FIX);
                } else {
                    let fix = "give the canary a different limit, or every hit costs two credits";
                    problems.warning(rule, what, fix);
                }
            }
            Some(canary) => {
                let what = format!("the canary on line {} has the same operation", canary.line);
                problems.warning(rule, what, "remove one of them when the trial is over");
            }
            None => {}
        }
        if rule.match_policy == MatchPolicy::Canary {
            canaries.insert(operation, rule);
        }
    }
}

/// Advice for rules that take from one counter. Leases are the same under every limit.
const SEPARATE_FIX: &str = "remove one of them, or give it another limit, or its own `counter` if it limits concurrency: rules that \
    must allow a request together need separate counters";

/// Returns whether two rules with the same operation share their counters. Named counters are checked elsewhere.
fn share_counters(one: &Rule, other: &Rule) -> bool {
    one.counter.is_none() && one.identity().is_some_and(|identity| other.identity() == Some(identity))
}

/// Checks rules that share a named counter.
fn check_counters(rules: &[Rule], problems: &mut Problems) {
    let mut first: HashMap<&str, &Rule> = HashMap::new();
    for rule in rules {
        let Some(counter) = rule.counter.as_deref().filter(|_| rule.identity().is_some()) else { continue };
        let known = first.entry(counter).or_insert(rule);
        if known.identity() != rule.identity() {
            let what = format!(
                "the rule on line {} keeps the counter {counter} with another algorithm, window, refill, `actorField` or \
                 `actorPrefix`",
                known.line
            );
            let fix = "let them differ only in their credits, or name another counter here";
            problems.error(rule, what, fix);
        }
    }
    for (other, rule) in stacks::find_double_counts(rules) {
        let (Some(other), Some(rule)) = (rules.get(other), rules.get(rule)) else { continue };
        let what =
            format!("a request may match this rule and the one on line {}, and both take from one counter", other.line);
        let fix = "make sure that no request matches both, or give one of them another counter";
        problems.error(rule, what, fix);
    }
}

fn describe_shared_counters(kind: &str, other: &Rule) -> String {
    format!("this rule and {kind} on line {} take from the same counter for each value of their actors", other.line)
}

fn check_stacks(rules: &RuleSet, problems: &mut Problems) {
    for (rule, _) in rules.rules().iter().zip(stacks::can_stack(rules.rules())).filter(|(_, can_stack)| *can_stack) {
        if rule.overrun == Overrun::Count && rule.quota_group.is_none() {
            let what = "`overrun = count` counts hits that it denies, but of rules that must all allow a request, either all count \
                        or none";
            problems.error(
                rule,
                what,
                "remove it, or the `matchPolicy = and` of the rules that match the same requests",
            );
        }
    }
    let rule_at = |index: &usize| rules.rules().get(*index);
    let mut is_default_reported = false;
    for stack in stacks::find_stacks(rules) {
        let members: Vec<_> = stack.iter().filter_map(rule_at).collect();
        let [first, .., last] = members.as_slice() else { continue };
        if members.len() > MAX_STACK {
            let what = format!("{} rules must allow the same request; at most {MAX_STACK} can", members.len());
            problems.error(*last, what, "remove `matchPolicy = and` from some of them");
        }
        let denies_all = |rule: &&Rule| rule.quota == Quota::Never;
        let is_denied_by_default =
            last.is_default() && denies_all(last) && !members.iter().rev().skip(1).any(denies_all);
        if is_denied_by_default && !std::mem::replace(&mut is_default_reported, true) {
            let what = format!(
                "denies every request that matches only rules with `matchPolicy = and`, such as the one on line {}",
                first.line
            );
            let fix =
                "write `matchPolicy = stop` in the last rule that must allow the request, or give [default] a limit";
            problems.warning(*last, what, fix);
        }
    }
}

/// Reports quota groups whose rules never deny together, because no request matches two of them.
fn check_quota_groups(rules: &[Rule], problems: &mut Problems) {
    let mut groups: IndexMap<&str, Vec<usize>> = IndexMap::new();
    for (index, rule) in rules.iter().enumerate() {
        if let Some(group) = &rule.quota_group {
            groups.entry(group).or_default().push(index);
        }
    }
    let partners: HashSet<_> = stacks::find_quota_partners(rules).into_iter().map(|(_, later)| later).collect();
    for (group, members) in groups {
        let Some(last) = members.last().and_then(|index| rules.get(*index)) else { continue };
        if members.len() == 1 {
            let what =
                format!("the quota group {group} has only this rule, which then denies as with `overrun = count`");
            problems.warning(last, what, format!("write that, or add `{QUOTA_GROUP} = {group}` to other rules"));
        } else if members.iter().all(|index| !partners.contains(index)) {
            let what =
                format!("only descriptors of a gRPC call can match two rules of the quota group {group} together");
            let fix = "let the operations of its rules match the same requests, and only the last one stop";
            problems.warning(last, what, fix);
        }
    }
}

/// Checks rules for a server whose counters are in a Redis Cluster: all rules of a stack need their counters in one
/// slot.
pub(super) fn check_slots(rules: &RuleSet, problems: &mut Problems) {
    for (other, rule) in stacks::find_slot_conflicts(rules.rules()) {
        let (Some(other), Some(rule)) = (rules.rules().get(other), rules.rules().get(rule)) else { continue };
        let what = format!(
            "a Redis Cluster cannot take credit from this rule and the one on line {} together: their counters are in \
             different slots",
            other.line
        );
        let fix = "begin the `actorField` of both with the same field";
        problems.error(rule, what, fix);
    }
}

/// Returns the rules of the file at `path` with the spellings of checks.
pub(super) fn spell(rules: RuleSet, spellings: &Spellings, path: &Path, problems: &mut Problems) -> Option<RuleSet> {
    let report = |error: RuleSetError| match error {
        RuleSetError::UnknownSpellings(unknown) => {
            for UnknownSpelling { line, rule, entry, what, fix } in unknown {
                match entry {
                    None => problems.error((line, rule.as_str()), what, fix),
                    Some((list, line)) => {
                        problems.error_in(&list_path(path, &list).display().to_string(), line as usize, what, fix);
                    }
                }
            }
        }
        error => problems.file_error(error.to_string(), "then load the file again"),
    };
    let rules = rules.with_spellings(spellings).map_err(report).ok()?;
    check_reachability(&rules, &stacks::find_masked_rules(rules.normalized()), "check", problems);
    Some(rules)
}
