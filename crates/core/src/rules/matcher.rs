//! The compiled form of many rules: for every key, the rules that a value of it satisfies.
//!
//! A request picks sets of rules for each key, and the intersection of these sets matches. The cost of a request
//! therefore does not grow with the number of rules. This is done for the keys that most rules mention; [`RareKeys`]
//! has the others. Values are bytes here, because the reachability check matches a byte that no text contains.

use std::collections::{BTreeMap, HashMap};

use super::Rule;
use super::glob_index::GlobIndex;
use super::operation::{Key, Values};
use super::pattern::{Glob, Pattern};
use super::rule_index::{self, ConditionIndex, RareKeys, RuleBits, RuleSetError, SetId};

/// Number of keys that are indexed by value, and looked up for every request.
pub const INDEXED_KEYS: usize = 32;

#[derive(Debug, Default)]
pub struct Matcher {
    /// Key indexes. The key that leaves the fewest rules is first, so that an empty intersection is found early.
    keys: Vec<KeyIndex>,
    /// Indexes of conditions.
    conditions: Vec<ConditionIndex>,
    /// The set of rules that mention no rare key, and the index of rare keys; `None` if there are no rare keys.
    rare: Option<(SetId, RareKeys)>,
    sets: Vec<RuleBits>,
    /// Each set as one word, if there are few enough rules.
    words: Option<Box<[u64]>>,
    blocks: usize,
}

/// The rules that each value of one key satisfies.
#[derive(Debug)]
struct KeyIndex {
    key: Key,
    /// Rules that do not mention the key.
    absent: SetId,
    /// Rules that do not mention the key, or accept any value of it.
    present: SetId,
    /// Callers choose the values that are looked up but never those that are stored, so a fast hasher is safe.
    exact: HashMap<Box<[u8]>, SetId, foldhash::fast::RandomState>,
    globs: GlobIndex,
}

/// Collects the sets that a request picks: for each key, a union of sets.
trait PickedSets {
    fn pick(&mut self, set: SetId);
    /// Ends the union of one key, and exchanges the rules of `inverted`: those that were picked are left out, and the
    /// others are in. Returns whether any rule is left. Further keys never add one.
    fn end_key(&mut self, inverted: Option<SetId>) -> bool;
}

/// The sets that a request has picked. Reused from request to request.
#[derive(Debug, Default)]
pub struct Selection {
    picked: Vec<SetId>,
    /// The end of each key's sets in `picked`, and the key's inverted set.
    ends: Vec<(usize, Option<SetId>)>,
    pieces: Vec<usize>,
}

impl PickedSets for (&mut Vec<SetId>, &mut Vec<(usize, Option<SetId>)>) {
    fn pick(&mut self, set: SetId) {
        self.0.push(set);
    }

    fn end_key(&mut self, inverted: Option<SetId>) -> bool {
        self.1.push((self.0.len(), inverted));
        true
    }
}

/// Intersects sets of one word while they are picked.
struct WordIntersection<'a> {
    sets: &'a [u64],
    /// The union for the current key.
    union: u64,
    common: u64,
}

impl PickedSets for WordIntersection<'_> {
    fn pick(&mut self, set: SetId) {
        self.union |= self.sets.get(set as usize).copied().unwrap_or_default();
    }

    #[inline]
    fn end_key(&mut self, inverted: Option<SetId>) -> bool {
        let inverted = inverted.and_then(|set| self.sets.get(set as usize)).copied().unwrap_or_default();
        self.common &= self.union ^ inverted;
        self.union = 0;
        self.common != 0
    }
}

impl Matcher {
    /// Indexes at most `indexed_keys` keys, see [`INDEXED_KEYS`].
    pub fn new(rules: &[Rule], indexed_keys: usize) -> Result<Self, RuleSetError> {
        let mut by_key: BTreeMap<&str, Vec<(u32, &Pattern)>> = BTreeMap::new();
        for (index, rule) in (0..).zip(rules) {
            for (key, pattern) in &rule.operation {
                by_key.entry(key).or_default().push((index, pattern));
            }
        }
        let mut rarest_first: Vec<_> = by_key.into_iter().collect();
        rarest_first.sort_by_key(|(_, patterns)| patterns.len());
        let common = rarest_first.split_off(rarest_first.len().saturating_sub(indexed_keys));
        let rare: Vec<_> = rarest_first.into_iter().map(|(key, _)| key).collect();

        let mut builder = Builder { sets: Vec::new(), rules: rules.len() };
        let keys =
            common.iter().rev().map(|(key, patterns)| builder.key_index(key, patterns)).collect::<Result<_, _>>()?;
        let rare = (!rare.is_empty()).then(|| {
            let without = builder.add(&rule_index::rules_without(&rare, rules));
            (without, RareKeys::new(rules, &rare, |rule| builder.add(&[rule])))
        });
        let conditions = ConditionIndex::all(rules, &mut |rules| builder.add(rules))?;
        let is_one_word = rules.len() <= rule_index::RULES_PER_WORD;
        let words = is_one_word.then(|| builder.sets.iter().map(|set| set.word(0, 0)).collect());
        Ok(Self { keys, conditions, rare, words, sets: builder.sets, blocks: rule_index::block_count(rules.len()) })
    }

    /// Picks the sets for a request.
    pub fn select(&self, selection: &mut Selection, values: &impl Values) {
        let Selection { picked, ends, pieces } = selection;
        picked.clear();
        ends.clear();
        self.pick(&mut (picked, ends), pieces, values);
    }

    /// Returns the rules that a request selects, as the bits of a word; `None` if there are more rules than bits.
    #[inline]
    pub fn select_word(&self, selection: &mut Selection, values: &impl Values) -> Option<u64> {
        let sets = self.words.as_deref()?;
        let mut word = WordIntersection { sets, union: 0, common: u64::MAX };
        self.pick(&mut word, &mut selection.pieces, values);
        Some(word.common)
    }

    // Inlined in both callers, for the usual patterns and the normalized ones. A call takes a tenth more instructions.
    #[inline(always)]
    fn pick(&self, picks: &mut impl PickedSets, pieces: &mut Vec<usize>, values: &impl Values) {
        for index in &self.keys {
            match values.value(&index.key) {
                None => picks.pick(index.absent),
                Some(value) => {
                    picks.pick(index.present);
                    if let Some(set) = index.exact.get(value) {
                        picks.pick(*set);
                    }
                    index.globs.for_each_match(value, pieces, |set| picks.pick(set));
                }
            }
            if !picks.end_key(None) {
                return;
            }
        }
        for index in &self.conditions {
            picks.pick(index.without);
            let value = values.value_for(&index.key, index.setting);
            if let Some(value) = &value {
                index.for_each_match(value, pieces, |set| picks.pick(set));
            }
            // A request without the field never meets a condition.
            if !picks.end_key(index.inverted.filter(|_| value.is_some())) {
                return;
            }
        }
        if let Some((without, rare)) = &self.rare {
            picks.pick(*without);
            rare.for_each_match(values, |set| picks.pick(set));
            picks.end_key(None);
        }
    }

    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// Returns the words of `block` that may hold a selected rule.
    pub fn summary(&self, selection: &Selection, block: usize) -> u64 {
        // Words of a picked set and of an inverted one may cancel each other out, or not.
        self.intersect(selection, |set| set.summary(block), |picked, inverted| picked | inverted)
    }

    /// Returns the selected rules of one word of `block`.
    pub fn word(&self, selection: &Selection, block: usize, word: u32) -> u64 {
        self.intersect(selection, |set| set.word(block, word), |picked, inverted| picked ^ inverted)
    }

    fn intersect(
        &self,
        selection: &Selection,
        bits_of: impl Fn(&RuleBits) -> u64,
        invert: impl Fn(u64, u64) -> u64,
    ) -> u64 {
        let mut common = u64::MAX;
        let mut start = 0;
        for (end, inverted) in &selection.ends {
            let union = selection.picked.get(start..*end).unwrap_or_default();
            let sets = union.iter().filter_map(|set| self.sets.get(*set as usize));
            let picked = sets.fold(0, |bits, set| bits | bits_of(set));
            let inverted = inverted.and_then(|set| self.sets.get(set as usize)).map_or(0, &bits_of);
            common &= invert(picked, inverted);
            if common == 0 {
                break;
            }
            start = *end;
        }
        common
    }
}

struct Builder {
    sets: Vec<RuleBits>,
    rules: usize,
}

impl Builder {
    /// Builds the index of one key. `patterns` has the rules that mention the key, in ascending order, with their
    /// patterns. A rule may have several: a value must match one of them.
    fn key_index(&mut self, key: &str, patterns: &[(u32, &Pattern)]) -> Result<KeyIndex, RuleSetError> {
        let mut by_pattern: HashMap<&Pattern, Vec<u32>> = HashMap::new();
        for (rule, pattern) in patterns {
            by_pattern.entry(pattern).or_default().push(*rule);
        }
        let mut absent = self.complement(patterns.iter().map(|(rule, _)| *rule));
        let absent_set = self.add(&absent);
        absent.extend(by_pattern.remove(&Pattern::Any).unwrap_or_default());
        absent.sort_unstable();
        let present_set = self.add(&absent);

        let mut exact = HashMap::default();
        let mut globs: Vec<(Glob, SetId)> = Vec::new();
        for (pattern, rules) in by_pattern {
            let set = self.add(&rules);
            match pattern {
                Pattern::Any => {}
                Pattern::Literal(literal) => {
                    exact.insert(literal.as_bytes().into(), set);
                }
                Pattern::Glob(glob) => globs.push((glob.clone(), set)),
            }
        }
        let globs = GlobIndex::new(globs).map_err(|_| RuleSetError::TooManyGlobs { key: key.to_owned() })?;
        Ok(KeyIndex { key: Key::new(key), absent: absent_set, present: present_set, exact, globs })
    }

    fn add(&mut self, rules: &[u32]) -> SetId {
        self.sets.push(RuleBits::new(rules, self.rules));
        (self.sets.len() - 1) as SetId
    }

    /// Returns the rules that are not in `rules`, which must not descend.
    fn complement(&self, rules: impl Iterator<Item = u32>) -> Vec<u32> {
        let mut rules = rules.peekable();
        (0..self.rules as u32)
            .filter(|rule| {
                let mut is_named = false;
                while rules.next_if_eq(rule).is_some() {
                    is_named = true;
                }
                !is_named
            })
            .collect()
    }
}
