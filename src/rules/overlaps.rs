//! Finds the rules that one request may match together with others, without comparing each rule with each other.
//!
//! Rules that ask about the same keys are one [`Shape`]. Within it, the rules are ordered by what a value of each key must
//! begin with, and the key that leaves the fewest of them is looked at.

use std::borrow::Borrow;
use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;

use super::{Pattern, Rule};

/// Some of the rules, by their indexes.
#[derive(Default)]
pub(super) struct Overlaps<'a> {
    /// In the order of their first rules: then the first rule that fits is most often the first that is looked at.
    shapes: Vec<Shape<'a>>,
    /// The shape with these keys, which are sorted, by its place.
    by_keys: HashMap<Vec<&'a str>, usize>,
}

/// Rules that ask about the same keys.
#[derive(Default)]
struct Shape<'a> {
    all: Vec<usize>,
    by_key: HashMap<&'a str, ByPrefix<'a>>,
}

/// Rules by their patterns of one key. All indexes ascend.
#[derive(Default)]
struct ByPrefix<'a> {
    literals: BTreeMap<&'a [u8], Vec<usize>>,
    /// Each key is the text before the first `*`.
    globs: BTreeMap<&'a [u8], Vec<usize>>,
}

/// Rules to look at.
type Lists<'l> = Vec<&'l [usize]>;

impl<'a> Overlaps<'a> {
    /// Adds a rule after all that were added before.
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

    /// The first rule before `before` that fits, of those that a request which matches `rule` may match, and maybe some others.
    pub(super) fn find_meeting(
        &self,
        rule: &Rule,
        before: usize,
        mut fits: impl FnMut(usize) -> bool,
    ) -> Option<usize> {
        let mut found = None;
        for shape in &self.shapes {
            let asked =
                rule.operation.iter().filter_map(|(key, pattern)| Some((shape.by_key.get(key.as_str())?, pattern)));
            let lists = shape.fewest(asked.map(|(known, pattern)| known.meeting(pattern)));
            found = first(&lists, found.unwrap_or(before), &mut fits).or(found);
        }
        found
    }

    /// The first rule before `before` that fits, of those that match every request which matches both `one` and `other`, and
    /// maybe some others.
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
            found = first(&shape.fewest(lists), found.unwrap_or(before), &mut fits).or(found);
        }
        found
    }
}

impl Shape<'_> {
    /// The shortest of these lists, or all rules; `None` stands for all of them.
    fn fewest<'l>(&'l self, lists: impl Iterator<Item = Option<Lists<'l>>>) -> Lists<'l> {
        let count = |lists: &Lists<'_>| lists.iter().map(|list| list.len()).sum::<usize>();
        let fewest = lists.flatten().min_by_key(count).filter(|lists| count(lists) < self.all.len());
        fewest.unwrap_or_else(|| vec![&self.all])
    }
}

impl ByPrefix<'_> {
    /// The rules with patterns that may overlap this one; `None` if it says nothing of how values begin.
    fn meeting(&self, pattern: &Pattern) -> Option<Lists<'_>> {
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

    /// The rules with patterns that may contain this one.
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

/// The first of these rules before `before` that fits.
fn first(lists: &[&[usize]], before: usize, fits: &mut impl FnMut(usize) -> bool) -> Option<usize> {
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

/// Returns the text that begins every value which the pattern matches.
fn prefix(pattern: &Pattern) -> &[u8] {
    match pattern {
        Pattern::Any => b"",
        Pattern::Literal(text) => text.as_bytes(),
        Pattern::Glob(glob) => glob.prefix().as_bytes(),
    }
}
