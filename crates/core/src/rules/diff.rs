//! Differences between two lists of rules, for people: the rules before and after the rules file changed.
//!
//! Rules are paired by their operation. If several rules share an operation, as canaries may, those with the same match
//! policy are paired first, in order. Whether a rule keeps its counters is a separate question, which only its identity
//! decides.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::hash::Hash;

use super::setting_name::LIST;
use super::{Identity, List, Rule};
use crate::algorithm::Kind;

/// A difference. Displays as one line, which starts with the line number in the new rules file, if there is one.
#[derive(Debug, PartialEq, Eq)]
pub enum Change<'a> {
    /// The rule is new. It may still take over counters, if they have a name.
    Added {
        /// The rule in the new list.
        rule: &'a Rule,
        /// Counters that it starts with.
        counters: CounterChange,
    },
    /// The rule is not in the new list.
    Removed(&'a Rule),
    /// Settings of the rule changed. If it moved as well, that is a separate difference.
    Changed {
        /// The rule in the new list.
        rule: &'a Rule,
        /// The changed settings, at least one.
        settings: Vec<SettingChange>,
        /// The effect on the rule's counters.
        counters: CounterChange,
    },
    /// The rule's position among the remaining rules changed.
    Moved(&'a Rule),
}

/// A setting by its name in a rules file; `None` if it is not set.
#[derive(Debug, PartialEq, Eq)]
pub struct SettingChange {
    /// The setting, such as `creditLimit`.
    pub name: &'static str,
    /// Value before the change.
    pub old: Option<String>,
    /// Value after the change.
    pub new: Option<String>,
}

/// The effect of a change on a rule's counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CounterChange {
    /// The rule has no counters, or is new and starts with empty ones.
    None,
    /// The rule keeps the counters that it had, or takes over named ones.
    Kept,
    /// The rule now shares the counters with this name, and abandons its own, if it had any.
    Joined,
    /// The limit, or how actors are named, changed. Both are part of the counters' identity.
    Reset,
    /// `actorField` changed from one field to another. Counters are found by the value alone.
    KeptForSameValues,
}

/// A rule's counters: their identity, their fields, and their place. Without the fields, a single actor field would not
/// matter to the identity, although other actors have other counters.
type Counters<'a, P> = (Identity<'a>, &'a [String], P);

fn counters<P>(rule: &Rule, place: impl Fn(&Rule) -> P) -> Option<Counters<'_, P>> {
    Some((rule.identity()?, &rule.actor_fields, place(rule)))
}

/// Compares the rules `old` and `new`. Returns the removed rules in their old order, then the other changes in the new
/// order. `place` separates counters of rules that have the same identity.
pub fn diff<'a, P: Eq + Hash>(old: &'a [Rule], new: &'a [Rule], place: impl Fn(&Rule) -> P) -> Vec<Change<'a>> {
    let origins = find_origins(old, new);
    let kept: HashSet<usize> = origins.iter().flatten().copied().collect();
    let removed = old.iter().enumerate().filter(|(index, _)| !kept.contains(index));
    let mut changes: Vec<_> = removed.map(|(_, rule)| Change::Removed(rule)).collect();

    let known: HashSet<_> = old.iter().filter_map(|rule| counters(rule, &place)).collect();
    let was_known = |rule: &'a Rule| counters(rule, &place).map(|counters| known.contains(&counters));
    let mut in_order = longest_in_order(&origins);
    for (rule, origin) in new.iter().zip(&origins) {
        let Some(before) = origin.and_then(|origin| old.get(origin)) else {
            let counters = if was_known(rule) == Some(true) { CounterChange::Kept } else { CounterChange::None };
            changes.push(Change::Added { rule, counters });
            continue;
        };
        let settings = compare_settings(before, rule);
        if !settings.is_empty() {
            let counters = match was_known(rule) {
                None => CounterChange::None,
                Some(true) if rule.counter.is_some() && before.counter != rule.counter => CounterChange::Joined,
                Some(true) => CounterChange::Kept,
                Some(false) if has_other_field(before, rule) && place(before) == place(rule) => {
                    CounterChange::KeptForSameValues
                }
                Some(false) => CounterChange::Reset,
            };
            changes.push(Change::Changed { rule, settings, counters });
        }
        if in_order.peek() == origin.as_ref() {
            in_order.next();
        } else {
            changes.push(Change::Moved(rule));
        }
    }
    changes
}

/// Returns whether the only change of the counters is their actors' field.
fn has_other_field(old: &Rule, new: &Rule) -> bool {
    let has_one = |rule: &Rule| rule.actor_fields.len() == 1;
    has_one(old) && has_one(new) && old.identity() == new.identity()
}

/// Returns whether a `counter` in both rules would have kept the usage: only their limits differ, and not in what a named
/// counter depends on.
pub fn would_keep_if_named(old: &Rule, new: &Rule) -> bool {
    let can_have_name = |rule: &Rule| {
        let limit = rule.identity().filter(|_| rule.counter.is_none());
        limit.is_some() && rule.settings.algorithm() != Kind::SlidingLog
    };
    can_have_name(old)
        && can_have_name(new)
        && old.settings.rhythm() == new.settings.rhythm()
        && old.match_pairs() == new.match_pairs()
        && old.actor_fields == new.actor_fields
        && old.actor_prefix == new.actor_prefix
}

/// Returns the indexes of the `old` rules whose counters no `new` rule uses. Everyone starts afresh there, except for actors
/// with the same value if only the field changed.
pub fn find_abandoned<P: Eq + Hash>(old: &[Rule], new: &[Rule], place: impl Fn(&Rule) -> P) -> Vec<usize> {
    let used: HashSet<_> = new.iter().filter_map(|rule| counters(rule, &place)).collect();
    let is_abandoned = |rule: &Rule| counters(rule, &place).is_some_and(|counters| !used.contains(&counters));
    old.iter().enumerate().filter(|(_, rule)| is_abandoned(rule)).map(|(index, _)| index).collect()
}

/// Returns, for each of the `new` rules, the index of the old rule that it was.
pub fn find_origins(old: &[Rule], new: &[Rule]) -> Vec<Option<usize>> {
    let mut free: HashMap<_, VecDeque<usize>> = HashMap::new();
    for (index, rule) in old.iter().enumerate() {
        free.entry(operation(rule)).or_default().push_back(index);
    }
    let mut origins = vec![None; new.len()];
    // Several rules may have the same operation: those that match the same requests are paired first.
    for is_alike in [
        |old: &Rule, new: &Rule| old.match_policy == new.match_policy && old.match_pairs() == new.match_pairs(),
        |old: &Rule, new: &Rule| old.match_policy == new.match_policy,
        |_: &Rule, _: &Rule| true,
    ] {
        for (rule, origin) in new.iter().zip(&mut origins).filter(|(_, origin)| origin.is_none()) {
            let Some(candidates) = free.get_mut(&operation(rule)) else { continue };
            let fits = |index: &usize| old.get(*index).is_some_and(|old| is_alike(old, rule));
            *origin = candidates.iter().position(fits).and_then(|place| candidates.remove(place));
        }
    }
    origins
}

fn operation(rule: &Rule) -> Vec<(&str, &str)> {
    let mut pairs: Vec<_> = rule.pairs().collect();
    pairs.sort_unstable();
    pairs
}

/// Returns a longest subsequence of old indexes that are still in their old order. All other rules have moved.
fn longest_in_order(origins: &[Option<usize>]) -> std::iter::Peekable<impl Iterator<Item = usize>> {
    let kept: Vec<usize> = origins.iter().flatten().copied().collect();
    // `ends` has, for each run length, the position in `kept` where a run of this length ends with the smallest index,
    // and that index. `before` has, for each position, the previous position in its run.
    let mut ends: Vec<(usize, usize)> = Vec::new();
    let mut before: Vec<Option<usize>> = Vec::with_capacity(kept.len());
    for (place, index) in kept.iter().copied().enumerate() {
        let length = ends.partition_point(|(_, smallest)| *smallest < index);
        let shorter = length.checked_sub(1).and_then(|shorter| ends.get(shorter));
        before.push(shorter.map(|(place, _)| *place));
        match ends.get_mut(length) {
            Some(end) => *end = (place, index),
            None => ends.push((place, index)),
        }
    }
    let last = ends.last().map(|(place, _)| *place);
    let places = std::iter::successors(last, |place| before.get(*place).copied().flatten());
    let mut run: Vec<usize> = places.filter_map(|place| kept.get(place).copied()).collect();
    run.reverse();
    run.into_iter().peekable()
}

/// Compares settings. The same pairs in another order are the same operation.
fn compare_settings(old_rule: &Rule, new_rule: &Rule) -> Vec<SettingChange> {
    let (old, new) = (old_rule.describe(), new_rule.describe());
    let value = |settings: &[(&'static str, String)], name: &str| {
        settings.iter().find(|(candidate, _)| *candidate == name).map(|(_, value)| value.clone())
    };
    let added = old.iter().filter(|(name, _)| value(&new, name).is_none());
    let names = new.iter().chain(added).map(|(name, _)| *name);
    let list = compare_lists(old_rule, new_rule);
    names
        .map(|name| SettingChange { name, old: value(&old, name), new: value(&new, name) })
        .filter(|change| change.old != change.new)
        .chain(list)
        .collect()
}

/// Compares the entries of two rules' list, if it has the same name.
fn compare_lists(old: &Rule, new: &Rule) -> Option<SettingChange> {
    let (old_condition, new_condition) = (old.list.as_ref()?, new.list.as_ref()?);
    let (name, old, new) = (old_condition.to_string(), &old_condition.members, &new_condition.members);
    if name != new_condition.to_string() || old == new {
        return None;
    }
    let entries = |list: &List| list.entries().map(|(_, entry)| entry.clone()).collect::<HashSet<_>>();
    let (old, new) = (entries(old), entries(new));
    let (added, removed) = (new.difference(&old).count(), old.difference(&new).count());
    let words = if added + removed == 0 {
        "the same entries on other lines".to_owned()
    } else {
        let word = if added == 1 { "entry" } else { "entries" };
        format!("{added} {word} added, {removed} removed")
    };
    Some(SettingChange { name: LIST, new: Some(format!("{name} ({words})")), old: Some(name) })
}

impl fmt::Display for Change<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Added { rule, counters } => {
                write!(f, "line {}: added [{rule}] {}{counters}", rule.line, rule.full_summary())
            }
            Self::Removed(rule) => write!(f, "removed [{rule}] {}", rule.full_summary()),
            Self::Moved(rule) => write!(f, "line {}: moved [{rule}]", rule.line),
            Self::Changed { rule, settings, counters } => {
                let settings: Vec<_> = settings.iter().map(SettingChange::to_string).collect();
                write!(f, "line {}: changed [{rule}] {}{counters}", rule.line, settings.join(", "))
            }
        }
    }
}

impl fmt::Display for SettingChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Comments may have several lines.
        let shown = |value: &Option<String>| match value {
            Some(value) => value.escape_debug().to_string(),
            None => "nothing".to_owned(),
        };
        write!(f, "{} from {} to {}", self.name, shown(&self.old), shown(&self.new))
    }
}

impl fmt::Display for CounterChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "",
            Self::Kept => "; its counters are kept",
            Self::Joined => "; it now shares that counter's usage, and abandons what it counted before",
            Self::Reset => "; its counters start afresh",
            Self::KeptForSameValues => {
                "; its counters start afresh, except for actors that have the same value in both"
            }
        })
    }
}

#[cfg(test)]
mod tests;
