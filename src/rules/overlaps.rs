//! Finds rules that one request may match together, without comparing every pair of rules.
//!
//! Rules with the same keys form one [`Shape`]. For each key of a shape, the rules are sorted by the prefix that a
//! value needs. A search uses the key that leaves the fewest rules.

use std::borrow::Borrow;
use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;

use super::{Pattern, Rule};

/// An index of some of the rules, by their positions.
#[derive(Default)]
pub(super) struct Overlaps<'a> {
    /// In the order of their first rules, so that the first rule that fits is usually among the first tried.
    shapes: Vec<Shape<'a>>,
    /// The position in `shapes` of the shape with these sorted keys.
    by_keys: HashMap<Vec<&'a str>, usize>,
}

/// Rules with the same keys.
#[derive(Default)]
struct Shape<'a> {
    all: Vec<usize>,
    by_key: HashMap<&'a str, ByPrefix<'a>>,
}

/// Rules by their patterns of one key. All indexes are in ascending order.
#[derive(Default)]
struct ByPrefix<'a> {
    literals: BTreeMap<&'a [u8], Vec<usize>>,
    /// Globs by the text before their first `*`.
    globs: BTreeMap<&'a [u8], Vec<usize>>,
}

/// Candidate rules.
type Lists<'l> = Vec<&'l [usize]>;

impl<'a> Overlaps<'a> {
    /// Adds a rule. Its index must be greater than all indexes added before.
    pub(super) fn add(&mut self, index: usize, rule: &'a Rule) {
        let mut keys: Vec<_> = rule.operation.iter().map(|(key, _)| key.as_str()).collect();
        keys.sort_unstable();
        let place = *self.by_keys.entry(keys).or_insert(self.shapes.len());
        if place == self.shapes.len() {
            self.shapes.push(Shape::default());
        }
        let Some(shape) = self.shapes.get_mut(place) else { return };
        shape.all.push(index);
        for (key, pattern) in &rule.operation {
            let by_prefix = shape.by_key.entry(key).or_default();
            let patterns = if is_literal(pattern) { &mut by_prefix.literals } else { &mut by_prefix.globs };
            patterns.entry(prefix(pattern)).or_default().push(index);
        }
    }

    /// Returns the first rule before `before` that fits. Tries at least the rules that one request may match together
    /// with `rule`, and maybe others.
    pub(super) fn find_overlapping(
        &self,
        rule: &Rule,
        before: usize,
        mut fits: impl FnMut(usize) -> bool,
    ) -> Option<usize> {
        let mut found = None;
        for shape in &self.shapes {
            let asked =
                rule.operation.iter().filter_map(|(key, pattern)| Some((shape.by_key.get(key.as_str())?, pattern)));
            let lists = shape.shortest_lists(asked.map(|(known, pattern)| known.overlapping(pattern)));
            found = find_first(&lists, found.unwrap_or(before), &mut fits).or(found);
        }
        found
    }

    /// Returns the first rule before `before` that fits. Tries at least the rules that match every request that matches
    /// both `one` and `other`, and maybe others.
    pub(super) fn find_containing(
        &self,
        (one, other): (&Rule, &Rule),
        before: usize,
        mut fits: impl FnMut(usize) -> bool,
    ) -> Option<usize> {
        let mut found = None;
        for shape in &self.shapes {
            let is_asked = |key: &str| one.pattern(key).is_some() || other.pattern(key).is_some();
            if !shape.by_key.keys().all(|key| is_asked(key)) {
                continue;
            }
            let lists = shape.by_key.iter().map(|(key, known)| {
                let patterns = [one, other].into_iter().filter_map(|rule| rule.pattern(key));
                Some(patterns.flat_map(|pattern| known.containing(pattern)).collect())
            });
            found = find_first(&shape.shortest_lists(lists), found.unwrap_or(before), &mut fits).or(found);
        }
        found
    }
}

impl Shape<'_> {
    /// Returns the shortest of these lists, or all rules. `None` in `lists` stands for all rules.
    fn shortest_lists<'l>(&'l self, lists: impl Iterator<Item = Option<Lists<'l>>>) -> Lists<'l> {
        let count = |lists: &Lists<'_>| lists.iter().map(|list| list.len()).sum::<usize>();
        let fewest = lists.flatten().min_by_key(count).filter(|lists| count(lists) < self.all.len());
        fewest.unwrap_or_else(|| vec![&self.all])
    }
}

impl ByPrefix<'_> {
    /// Returns the rules whose patterns may overlap this one; `None` if the pattern has no prefix.
    fn overlapping(&self, pattern: &Pattern) -> Option<Lists<'_>> {
        let prefix = prefix(pattern);
        if is_literal(pattern) {
            return Some(self.containing(pattern));
        }
        if prefix.is_empty() {
            return None;
        }
        let longer = |patterns| starting_with(patterns, prefix).collect::<Vec<_>>();
        let shorter = (0..prefix.len()).filter_map(|length| self.globs.get(prefix.get(..length)?));
        Some(shorter.map(Vec::as_slice).chain(longer(&self.literals)).chain(longer(&self.globs)).collect())
    }

    /// Returns the rules whose patterns may contain this one.
    fn containing(&self, pattern: &Pattern) -> Lists<'_> {
        let prefix = prefix(pattern);
        let equal = if is_literal(pattern) { self.literals.get(prefix) } else { None };
        let globs = (0..=prefix.len()).filter_map(|length| self.globs.get(prefix.get(..length)?));
        equal.into_iter().chain(globs).map(Vec::as_slice).collect()
    }
}

fn starting_with<'l>(patterns: &'l BTreeMap<&[u8], Vec<usize>>, prefix: &[u8]) -> impl Iterator<Item = &'l [usize]> {
    let from_there = patterns.range::<[u8], _>((Bound::Included(prefix), Bound::Unbounded));
    from_there.take_while(move |(other, _)| other.starts_with(prefix)).map(|(_, indexes)| indexes.borrow())
}

/// Returns the first of these rules before `before` that fits.
fn find_first(lists: &[&[usize]], before: usize, fits: &mut impl FnMut(usize) -> bool) -> Option<usize> {
    let mut found = None;
    for list in lists {
        let earlier = list.iter().copied().take_while(|index| *index < found.unwrap_or(before));
        found = earlier.into_iter().find(|index| fits(*index)).or(found);
    }
    found
}

fn is_literal(pattern: &Pattern) -> bool {
    matches!(pattern, Pattern::Literal(_))
}

/// Returns the prefix of every value that the pattern matches.
fn prefix(pattern: &Pattern) -> &[u8] {
    match pattern {
        Pattern::Any => b"",
        Pattern::Literal(text) => text.as_bytes(),
        Pattern::Glob(glob) => glob.prefix().as_bytes(),
    }
}
