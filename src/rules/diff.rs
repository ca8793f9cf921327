//! The differences between two lists of rules, for people: the rules before and after a change of the file.
//!
//! Rules are known by their operation. Where several have the same one (canaries may), those of the same match policy
//! belong together, in their order. Whether counters go on is another question than which rule became which: it is
//! decided by what identifies them alone.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::hash::Hash;

use super::Rule;

/// One difference. Displays as a line, with the line of the rules file where it can be seen.
#[derive(Debug, PartialEq, Eq)]
pub enum Change<'a> {
    /// Its counters may be known by their name.
    Added {
        rule: &'a Rule,
        counters: Counters,
    },
    Removed(&'a Rule),
    Changed {
        rule: &'a Rule,
        settings: Vec<SettingChange>,
        counters: Counters,
    },
    /// It has another place among the rules that stayed.
    Moved(&'a Rule),
}

/// A setting under its name in a rules file; `None` where it is not given.
#[derive(Debug, PartialEq, Eq)]
pub struct SettingChange {
    pub name: &'static str,
    pub old: Option<String>,
    pub new: Option<String>,
}

/// What becomes of a changed rule's counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counters {
    /// It has none, or no others could have been its.
    None,
    GoOn,
    /// It had none or others before, and takes from those of this name now, as other rules do.
    Joins,
    /// The limit became another, and it is part of a bucket's identity.
    StartAfresh,
}

/// The differences between the rules `old` and `new`: those that are gone in their order, then the others in the new
/// order. `place` tells where a rule's counters are apart from others of the same identity.
pub fn diff<'a, P: Eq + Hash>(old: &'a [Rule], new: &'a [Rule], place: impl Fn(&Rule) -> P) -> Vec<Change<'a>> {
    let origins = origins(old, new);
    let kept: HashSet<usize> = origins.iter().flatten().copied().collect();
    let removed = old.iter().enumerate().filter(|(index, _)| !kept.contains(index));
    let mut changes: Vec<_> = removed.map(|(_, rule)| Change::Removed(rule)).collect();

    let counters = |rule: &'a Rule| Some((rule.identity()?, place(rule)));
    let known: HashSet<_> = old.iter().filter_map(counters).collect();
    let goes_on = |rule: &'a Rule| counters(rule).map(|counters| known.contains(&counters));
    let mut in_order = in_order(&origins);
    for (rule, origin) in new.iter().zip(&origins) {
        let Some(before) = origin.and_then(|origin| old.get(origin)) else {
            let counters = if goes_on(rule) == Some(true) { Counters::GoOn } else { Counters::None };
            changes.push(Change::Added { rule, counters });
            continue;
        };
        let settings = changed_settings(before, rule);
        if !settings.is_empty() {
            let counters = match goes_on(rule) {
                None => Counters::None,
                Some(true) if rule.counter.is_some() && before.counter != rule.counter => Counters::Joins,
                Some(true) => Counters::GoOn,
                Some(false) => Counters::StartAfresh,
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

/// For each of the `new` rules the index of the one of the `old` rules that it was.
fn origins(old: &[Rule], new: &[Rule]) -> Vec<Option<usize>> {
    let mut free: HashMap<_, VecDeque<usize>> = HashMap::new();
    for (index, rule) in old.iter().enumerate() {
        free.entry(operation(rule)).or_default().push_back(index);
    }
    let mut origins = vec![None; new.len()];
    for needs_same_policy in [true, false] {
        for (rule, origin) in new.iter().zip(&mut origins).filter(|(_, origin)| origin.is_none()) {
            let Some(candidates) = free.get_mut(&operation(rule)) else { continue };
            let fits = |index: &usize| {
                !needs_same_policy || old.get(*index).is_some_and(|old| old.match_policy == rule.match_policy)
            };
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

/// A longest choice of old indexes that still come in their old order; the rules of the others have moved.
fn in_order(origins: &[Option<usize>]) -> std::iter::Peekable<impl Iterator<Item = usize>> {
    let kept: Vec<usize> = origins.iter().flatten().copied().collect();
    // For each length, the place in `kept` where a run of this length ends with the smallest index, and that index; for
    // each place, the one before it in its run.
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

/// The header is left out: in another order it is the same operation.
fn changed_settings(old: &Rule, new: &Rule) -> Vec<SettingChange> {
    let (old, new) = (old.described(), new.described());
    let value = |settings: &[(&'static str, String)], name: &str| {
        settings.iter().find(|(candidate, _)| *candidate == name).map(|(_, value)| value.clone())
    };
    let added = old.iter().filter(|(name, _)| value(&new, name).is_none());
    let names = new.iter().chain(added).map(|(name, _)| *name).filter(|name| *name != Rule::HEADER);
    names
        .map(|name| SettingChange { name, old: value(&old, name), new: value(&new, name) })
        .filter(|change| change.old != change.new)
        .collect()
}

impl fmt::Display for Change<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Added { rule, counters } => {
                write!(f, "line {}: added [{rule}] {}{counters}", rule.line, rule.summary())
            }
            Self::Removed(rule) => write!(f, "removed [{rule}] {}", rule.summary()),
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
        // Comments may be of several lines.
        let shown = |value: &Option<String>| match value {
            Some(value) => value.escape_debug().to_string(),
            None => "nothing".to_owned(),
        };
        write!(f, "{} from {} to {}", self.name, shown(&self.old), shown(&self.new))
    }
}

impl fmt::Display for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "",
            Self::GoOn => "; its counters are kept",
            Self::Joins => {
                "; it takes from that counter's usage from now on, and what it counted before is left behind"
            }
            Self::StartAfresh => "; its counters start afresh",
        })
    }
}

#[cfg(test)]
mod tests;
