//! Stacks, as far as the rules alone determine them: which rules must allow one request together.
//!
//! The analysis uses the most general request that each rule matches. A request that happens to match more rules makes
//! a larger stack, and the number of such stacks is unbounded.
//!
//! [`Overlaps`] finds rules that one request may match together, without comparing every pair of rules. Rules with the same
//! keys form one [`Shape`]. For each key of a shape, the rules are sorted by the prefix that a value needs. A search uses the
//! key that leaves the fewest rules.
//!
//! Mistakes in the order of rules are found here, too: a rule that an earlier stop rule masks can never answer, and a limit that a client
//! evades by sending an additional field, which an earlier rule matches.
//!
//! A rule masks another if it matches every operation that the other matches. Containment of their patterns decides
//! this exactly. Rules that mask another rule only in combination are not found.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::ops::Bound;

use indexmap::IndexMap;

use super::{MatchPolicy, Pattern, Quota, Rule, RuleSet, Scratch};

/// Finds every stack of two or more rules, once: the rules, in order, that must allow the most general request of a rule.
pub fn find_stacks(rules: &RuleSet) -> Vec<Vec<usize>> {
    let (mut scratch, mut stacks) = (Scratch::default(), Vec::new());
    for (index, rule) in rules.rules().iter().enumerate() {
        let matched = rules.matches_all_of(rule, &mut scratch);
        let members = matched.filter(|(_, rule)| rule.match_policy != MatchPolicy::Canary).map(|(index, _)| index);
        let members: Vec<_> = members.collect();
        // An earlier rule may stop the request. A canary is no member.
        if members.len() > 1 && members.contains(&index) {
            stacks.push(members);
        }
    }
    stacks.sort_unstable();
    stacks.dedup();
    stacks
}

/// Returns, for each rule, whether it can be in a stack with others: because it has [`MatchPolicy::And`], or because a
/// request that matches such a rule may reach it.
pub fn can_stack(rules: &[Rule]) -> Vec<bool> {
    let partners = EarlierRules::new(rules, |rule| (rule.match_policy == MatchPolicy::And).then_some(()));
    let can_stack = |(index, rule): (usize, &Rule)| match rule.match_policy {
        MatchPolicy::Canary => false,
        MatchPolicy::And => true,
        MatchPolicy::Stop => partners.find((index, rule), partners.groups.values()).is_some(),
    };
    rules.iter().enumerate().map(can_stack).collect()
}

/// A rule with its position.
type Indexed<'a> = (usize, &'a Rule);

/// Rules after which matching continues, in groups.
struct EarlierRules<'a, G> {
    groups: HashMap<G, Overlaps<'a>>,
    stops: Overlaps<'a>,
}

impl<'a, G: Hash + Eq> EarlierRules<'a, G> {
    /// Indexes the rules. `group` returns the group of a rule, or `None` to ignore it.
    fn new(rules: &'a [Rule], group: impl Fn(&'a Rule) -> Option<G>) -> Self {
        let mut earlier = Self { groups: HashMap::new(), stops: Overlaps::default() };
        for indexed @ (_, rule) in rules.iter().enumerate() {
            if rule.match_policy == MatchPolicy::Stop {
                earlier.stops.add(indexed);
            } else if let Some(group) = group(rule) {
                earlier.groups.entry(group).or_default().add(indexed);
            }
        }
        earlier
    }

    /// Returns the first rule of these groups, before this one, that a request may match together with it.
    fn find<'b>(
        &'b self,
        (index, rule): Indexed<'a>,
        groups: impl IntoIterator<Item = &'b Overlaps<'a>>,
    ) -> Option<usize>
    where
        'a: 'b,
    {
        let is_partner = |earlier: &Rule| {
            // An earlier rule may stop every request that matches both.
            let stops = |stop: &Rule| matches_all_of_both(stop, earlier, rule);
            may_overlap(earlier, rule) && self.stops.find_containing((earlier, rule), index, stops).is_none()
        };
        groups.into_iter().filter_map(|group| group.find_overlapping(rule, index, is_partner)).min()
    }
}

/// Finds two rules, by their indexes, that share a named counter and that one request may match. It would be counted
/// twice.
pub(crate) fn find_double_counts(rules: &[Rule]) -> Vec<(usize, usize)> {
    find_sharing(rules, |rule| rule.counter.as_deref().filter(|_| rule.identity().is_some()))
}

/// Finds two rules, by their indexes, that share a quota group and that one request may match.
pub(crate) fn find_quota_partners(rules: &[Rule]) -> Vec<(usize, usize)> {
    find_sharing(rules, |rule| rule.quota_group.as_deref())
}

/// Finds two rules, by their indexes, that have the same `name` and that one request may match.
fn find_sharing<'a>(rules: &'a [Rule], name: fn(&'a Rule) -> Option<&'a str>) -> Vec<(usize, usize)> {
    let sharing = EarlierRules::new(rules, name);
    let partner = |(index, rule): (usize, &'a Rule)| {
        sharing.find((index, rule), sharing.groups.get(name(rule)?)).map(|earlier| (earlier, index))
    };
    rules.iter().enumerate().filter_map(partner).collect()
}

/// Returns whether `stop` matches every request that matches both other rules. Only checks whether, for each key, one
/// of them alone implies it.
fn matches_all_of_both(stop: &Rule, one: &Rule, other: &Rule) -> bool {
    count_comparison();
    let is_implied = |(key, pattern): &(String, Pattern)| {
        [one, other].into_iter().filter_map(|rule| rule.pattern(key)).any(|special| pattern.contains(special))
    };
    stop.operation.iter().all(is_implied)
        && stop.conditions().all(|condition| one.implies(condition) || other.implies(condition))
}

/// Returns whether there is a request that both match.
fn may_overlap(one: &Rule, other: &Rule) -> bool {
    count_comparison();
    one.operation.iter().all(|(key, pattern)| other.pattern(key).is_none_or(|other| pattern.overlaps(other)))
        && !one.conditions().any(|condition| other.conditions().any(|other| condition.excludes(other)))
}

/// Finds two rules, by their indexes, that can be in a stack and whose counters a Redis Cluster would keep in different
/// slots. The first of an actor's values determines the slot of its counter.
pub(crate) fn find_slot_conflicts(rules: &[Rule]) -> Vec<(usize, usize)> {
    fn slot(rule: &Rule) -> Option<Option<&str>> {
        match rule.quota {
            Quota::Limited(_) => Some(rule.actor_fields.first().map(String::as_str)),
            Quota::Never | Quota::Always { .. } => None,
        }
    }
    let partners = EarlierRules::new(rules, |rule| slot(rule).filter(|_| rule.match_policy == MatchPolicy::And));
    let torn = |(index, rule): (usize, &Rule)| {
        let own = slot(rule).filter(|_| rule.match_policy != MatchPolicy::Canary)?;
        let torn = partners.groups.iter().filter(|(other, _)| **other != own || own.is_none());
        partners.find((index, rule), torn.map(|(_, group)| group)).map(|earlier| (earlier, index))
    };
    rules.iter().enumerate().filter_map(torn).collect()
}

/// Counts comparisons of rules, for a test.
fn count_comparison() {
    #[cfg(test)]
    tests::COMPARISONS.with(|comparisons| comparisons.set(comparisons.get() + 1));
}

/// Describes the grant of a stack: `100 in 60 s for each key; 5000 a day from 00:00 Europe/Berlin for each key`.
pub fn describe_stack(members: &[&Rule]) -> String {
    let words = |rule: &&&Rule| match rule.quota {
        Quota::Always { .. } => None,
        Quota::Never => Some(format!("[{rule}] denies everything")),
        Quota::Limited(_) if rule.actor_fields.is_empty() => Some(grants(rule)),
        Quota::Limited(_) => Some(format!("{} for each {}", grants(rule), rule.actor_fields.join(" and "))),
    };
    let limits: Vec<_> = members.iter().filter_map(|rule| words(&rule)).collect();
    if limits.is_empty() { "always allows".to_owned() } else { limits.join("; ") }
}

/// Describes the grant of one rule: `5000 a day from 00:00 UTC at the cost in tokens`.
fn grants(rule: &Rule) -> String {
    [rule.settings.describe_limit()].into_iter().chain(rule.cost_words()).collect::<Vec<_>>().join(" ")
}

/// An index of some of the rules: rules with the same sorted keys, in the order of their first rules, so that
/// the first rule that fits is usually among the first tried.
#[derive(Default)]
struct Overlaps<'a>(IndexMap<Vec<&'a str>, Shape<'a>>);

/// Rules with the same keys.
#[derive(Default)]
struct Shape<'a> {
    all: Vec<Indexed<'a>>,
    by_key: HashMap<&'a str, ByPrefix<'a>>,
}

/// Rules by their patterns of one key, under the text that a value begins with. After a literal, a byte stands for the end that
/// no text contains. All rules are in ascending order.
#[derive(Default)]
struct ByPrefix<'a>(BTreeMap<Vec<u8>, Vec<Indexed<'a>>>);

/// Candidate rules.
type Lists<'l> = Vec<&'l [Indexed<'l>]>;

impl<'a> Overlaps<'a> {
    /// Adds a rule. Its index must be greater than all indexes added before.
    fn add(&mut self, indexed @ (_, rule): Indexed<'a>) {
        let mut keys: Vec<_> = rule.operation.iter().map(|(key, _)| key.as_str()).collect();
        keys.sort_unstable();
        let shape = self.0.entry(keys).or_default();
        shape.all.push(indexed);
        for (key, pattern) in &rule.operation {
            shape.by_key.entry(key).or_default().0.entry(prefix(pattern)).or_default().push(indexed);
        }
    }

    /// Returns the first rule before `before` that fits. Tries at least the rules that one request may match together
    /// with `rule`, and maybe others.
    fn find_overlapping(&self, rule: &Rule, before: usize, fits: impl FnMut(&Rule) -> bool) -> Option<usize> {
        let lists = self.0.values().flat_map(|shape| {
            let asked =
                rule.operation.iter().filter_map(|(key, pattern)| Some((shape.by_key.get(key.as_str())?, pattern)));
            shape.shortest_lists(asked.map(|(known, pattern)| known.overlapping(pattern)))
        });
        find_first(lists, before, fits)
    }

    /// Returns the first rule before `before` that fits. Tries at least the rules that match every request that matches
    /// both `one` and `other`, and maybe others.
    fn find_containing(
        &self,
        (one, other): (&Rule, &Rule),
        before: usize,
        fits: impl FnMut(&Rule) -> bool,
    ) -> Option<usize> {
        let is_asked = |key: &str| one.pattern(key).is_some() || other.pattern(key).is_some();
        let asked = self.0.values().filter(|shape| shape.by_key.keys().all(|key| is_asked(key)));
        let lists = asked.flat_map(|shape| {
            shape.shortest_lists(shape.by_key.iter().map(|(key, known)| {
                let patterns = [one, other].into_iter().filter_map(|rule| rule.pattern(key));
                Some(patterns.flat_map(|pattern| known.containing(pattern)).collect())
            }))
        });
        find_first(lists, before, fits)
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
        let longer = self.0.range::<[u8], _>((Bound::Excluded(prefix.as_slice()), Bound::Unbounded));
        let longer = longer.take_while(|(other, _)| other.starts_with(&prefix)).map(|(_, rules)| rules.as_slice());
        (!prefix.is_empty()).then(|| self.containing(pattern).into_iter().chain(longer).collect())
    }

    /// Returns the rules whose patterns may contain this one.
    fn containing(&self, pattern: &Pattern) -> Lists<'_> {
        let prefix = prefix(pattern);
        let shorter = (0..=prefix.len()).filter_map(|length| self.0.get(prefix.get(..length)?));
        shorter.map(Vec::as_slice).collect()
    }
}

/// Returns the first of these rules before `before` that fits.
fn find_first<'l>(
    lists: impl Iterator<Item = &'l [Indexed<'l>]>,
    before: usize,
    mut fits: impl FnMut(&Rule) -> bool,
) -> Option<usize> {
    let mut found = None;
    for list in lists {
        let mut earlier = list.iter().take_while(|(index, _)| *index < found.unwrap_or(before));
        found = earlier.find(|(_, rule)| fits(rule)).map(|(index, _)| *index).or(found);
    }
    found
}

/// Returns the text that every value of the pattern begins with, and the end of a literal.
fn prefix(pattern: &Pattern) -> Vec<u8> {
    match pattern {
        Pattern::Any => Vec::new(),
        Pattern::Literal(text) => [text.as_bytes(), &[0xff]].concat(),
        Pattern::Glob(glob) => glob.prefix().into(),
    }
}

/// Finds every rule that an earlier stop rule masks, in order, each with the first rule that masks it, by their indexes.
///
/// Matches the most general operation of each rule against the compiled rules, so that the time does not grow with the
/// square of their number.
pub(crate) fn find_masked_rules(rules: &RuleSet) -> Vec<(usize, usize)> {
    let mut scratch = Scratch::default();
    let masked = rules.rules().iter().enumerate().filter_map(|(index, rule)| {
        let mut containing = rules.matches_all_of(rule, &mut scratch).take_while(|(by, _)| *by < index);
        let (by, _) = containing.find(|(_, by)| by.match_policy == MatchPolicy::Stop)?;
        Some((index, by))
    });
    masked.collect()
}

/// Finds rules whose values are all `*`, and that answer requests of a later limit on a certain value. Returns the first
/// such limit for each of them, in order of the limits: the limit and the earlier rule.
///
/// For example, `[api-key=*]` answers a request for `[path=/login ip=*]` if the client sends any `api-key`. A rule all
/// of whose keys the limit also has is not reported here, because it makes the limit unreachable.
pub(crate) fn find_bypasses(rules: &[Rule]) -> Vec<(&Rule, &Rule)> {
    let (mut open, mut found) = (Vec::new(), Vec::new());
    for rule in rules {
        let is_literal = |(_, pattern): &(String, Pattern)| matches!(pattern, Pattern::Literal(_));
        if !matches!(rule.quota, Quota::Always { .. }) && rule.operation.iter().any(is_literal) {
            let is_bypass = |by: &mut &Rule| by.operation.iter().any(|(key, _)| rule.pattern(key).is_none());
            found.extend(open.extract_if(.., is_bypass).map(|by| (rule, by)));
        }
        if is_met_by_any_values(rule) && rule.match_policy == MatchPolicy::Stop && rule.quota != Quota::Never {
            open.push(rule);
        }
    }
    found
}

fn is_met_by_any_values(rule: &Rule) -> bool {
    // A client cannot choose its networks.
    !rule.is_default()
        && rule.conditions().next().is_none()
        && rule.operation.iter().all(|(_, pattern)| *pattern == Pattern::Any)
}

#[cfg(test)]
mod tests;
