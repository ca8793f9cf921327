//! The compiled form of many rules: for every key, the rules that a value of it satisfies.
//!
//! A request picks sets of rules for each key, and the intersection of these sets matches. The cost of a request
//! therefore does not grow with the number of rules. This is done for the keys that most rules mention; [`RareKeys`]
//! has the others. Values are bytes here, because the reachability check matches a byte that no text contains.
//!
//! [`ConditionIndex`] checks all conditions of one kind on one field at once. It collects the rules with an entry that the
//! value matches. Rules with inverted conditions are then exchanged: a found one does not match, and one that was not found
//! does.
//!
//! [`RareKeys`] has the keys that are too many to look up each one for every request. A rule is filed under its rarest key. A
//! request that has this key tries all rare keys of the rule. The rule costs other requests nothing.
//!
//! [`RuleBits`] is a set of rules as bits, in two levels, so that thousands of small sets stay small and empty stretches are
//! skipped. A word holds 64 rules, and a block 64 words. Each block records which of its words are not zero, and only those
//! are stored.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use super::network_table::NetworkTable;
use super::operation::{Key, Values};
use super::pattern::{GlobIndex, Pattern};
use super::{Condition, List, ListEntry, Network, Rule, UnknownSpelling};

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
    pub(super) blocks: usize,
}

/// The rules that each value of one key satisfies.
#[derive(Debug)]
struct KeyIndex {
    key: Key,
    /// Rules that do not mention the key.
    absent: SetId,
    /// Rules that do not mention the key, or accept any value of it.
    present: SetId,
    exact: Texts,
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
        let rare_keys: HashSet<&str> = rare.iter().copied().collect();

        let mut builder = Builder { sets: Vec::new(), rules: rules.len() };
        let keys =
            common.iter().rev().map(|(key, patterns)| builder.key_index(key, patterns)).collect::<Result<_, _>>()?;
        let rare = (!rare.is_empty()).then(|| {
            let is_rare = |rule: &Rule| rule.operation.iter().any(|(key, _)| rare_keys.contains(key.as_str()));
            let without: Vec<_> = (0..).zip(rules).filter(|(_, rule)| !is_rare(rule)).map(|(index, _)| index).collect();
            let without = builder.add(&without);
            (without, RareKeys::new(rules, &rare, |rule| builder.add(&[rule])))
        });
        let conditions = builder.condition_indexes(rules)?;
        let is_one_word = rules.len() <= RULES_PER_WORD;
        let words = is_one_word.then(|| builder.sets.iter().map(|set| set.word(0, 0)).collect());
        Ok(Self { keys, conditions, rare, words, sets: builder.sets, blocks: block_count(rules.len()) })
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

/// The rules that each text satisfies. Callers choose the values that are looked up but never those that are stored, so a
/// fast hasher is safe.
type Texts = HashMap<Box<[u8]>, SetId, foldhash::fast::RandomState>;

/// Indexes the patterns of a key with their sets: texts, globs, and `*`.
fn index_patterns<'a>(
    key: &str,
    patterns: impl Iterator<Item = (&'a Pattern, SetId)>,
) -> Result<(Texts, GlobIndex, Option<SetId>), RuleSetError> {
    let (mut texts, mut globs, mut any) = (Texts::default(), Vec::new(), None);
    for (pattern, set) in patterns {
        match pattern {
            Pattern::Any => any = Some(set),
            Pattern::Literal(text) => drop(texts.insert(text.as_bytes().into(), set)),
            Pattern::Glob(glob) => globs.push((glob.clone(), set)),
        }
    }
    let globs = GlobIndex::new(globs).map_err(|_| RuleSetError::TooManyGlobs(key.to_owned()))?;
    Ok((texts, globs, any))
}

/// Maximum number of fields with conditions. Each is looked up for every request; one with both kinds counts twice.
pub const MAX_FIELDS: usize = 32;

/// The rules that the values of one field satisfy by their conditions of one kind.
#[derive(Debug)]
struct ConditionIndex {
    key: Key,
    /// The setting of the conditions.
    setting: &'static str,
    /// Rules without such a condition on the field.
    without: SetId,
    /// Rules with an inverted condition.
    inverted: Option<SetId>,
    texts: Texts,
    globs: GlobIndex,
    /// Rules with an entry `*`.
    any: Option<SetId>,
    networks: NetworkTable<SetId>,
}

impl ConditionIndex {
    /// Calls `found` with sets of rules that have an entry which the value matches. `pieces` is scratch space.
    #[inline]
    pub fn for_each_match(&self, value: &[u8], pieces: &mut Vec<usize>, mut found: impl FnMut(SetId)) {
        if !self.networks.is_empty()
            && let Some(set) = self.networks.find(value)
        {
            found(set);
        }
        if let Some(set) = self.texts.get(value) {
            found(*set);
        }
        self.globs.for_each_match(value, pieces, &mut found);
        if let Some(set) = self.any {
            found(set);
        }
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
        let named: HashSet<u32> = patterns.iter().map(|(rule, _)| *rule).collect();
        let mut absent: Vec<u32> = (0..self.rules as u32).filter(|rule| !named.contains(rule)).collect();
        let absent_set = self.add(&absent);
        absent.extend(by_pattern.remove(&Pattern::Any).unwrap_or_default());
        absent.sort_unstable();
        let present_set = self.add(&absent);

        let sets = by_pattern.into_iter().map(|(pattern, rules)| (pattern, self.add(&rules)));
        let (exact, globs, _) = index_patterns(key, sets)?;
        Ok(KeyIndex { key: Key::new(key), absent: absent_set, present: present_set, exact, globs })
    }

    fn add(&mut self, rules: &[u32]) -> SetId {
        self.sets.push(RuleBits::new(rules, self.rules));
        (self.sets.len() - 1) as SetId
    }

    /// Creates the index of each field and kind.
    ///
    /// # Errors
    /// Too many fields have conditions, or a list has too many globs.
    fn condition_indexes(&mut self, rules: &[Rule]) -> Result<Vec<ConditionIndex>, RuleSetError> {
        let conditions = rules.iter().flat_map(Rule::conditions);
        let kinds: BTreeSet<_> = conditions.map(|found| (found.setting(), found.field.as_str())).collect();
        if kinds.len() > MAX_FIELDS {
            return Err(RuleSetError::TooManyConditionFields);
        }
        kinds.into_iter().map(|(setting, field)| self.condition_index(setting, field, rules)).collect()
    }

    fn condition_index(
        &mut self,
        setting: &'static str,
        field: &str,
        rules: &[Rule],
    ) -> Result<ConditionIndex, RuleSetError> {
        let (mut without, mut inverted) = (Vec::new(), Vec::new());
        let mut patterns: HashMap<&Pattern, Vec<u32>> = HashMap::new();
        // Networks, each with the number of a group of rules.
        let (mut networks, mut groups): (Vec<(Network, u32)>, Vec<Vec<u32>>) = (Vec::new(), Vec::new());
        // Rules with the same list are handled together.
        let mut lists: HashMap<*const List, (&List, Vec<u32>)> = HashMap::new();
        for (index, rule) in (0..).zip(rules) {
            let is_asked = |condition: &&Condition| condition.setting() == setting && condition.field == field;
            let Some(condition) = rule.conditions().find(is_asked) else {
                without.push(index);
                continue;
            };
            if condition.is_inverted {
                inverted.push(index);
            }
            let list = &condition.members;
            lists.entry(Arc::as_ptr(list)).or_insert_with(|| (list, Vec::new())).1.push(index);
        }
        for (list, rules) in lists.into_values() {
            for (_, entry) in list.entries() {
                match entry {
                    ListEntry::Pattern(pattern) | ListEntry::Quoted(pattern) => {
                        patterns.entry(pattern).or_default().extend_from_slice(&rules);
                    }
                    ListEntry::Network(network) => networks.push((*network, groups.len() as u32)),
                }
            }
            groups.push(rules);
        }
        // Most entries have the same rules as others.
        let mut known: HashMap<Vec<u32>, SetId> = HashMap::new();
        let mut set = |mut rules: Vec<u32>| {
            rules.sort_unstable();
            rules.dedup();
            *known.entry(rules).or_insert_with_key(|rules| self.add(rules))
        };
        let without = set(without);
        let inverted = (!inverted.is_empty()).then(|| set(inverted));
        let (texts, globs, any) =
            index_patterns(field, patterns.into_iter().map(|(pattern, rules)| (pattern, set(rules))))?;
        let mut of_groups: HashMap<Vec<u32>, SetId> = HashMap::new();
        let networks = NetworkTable::new(networks, |numbers| {
            let numbers: BTreeSet<u32> = numbers.iter().copied().collect();
            *of_groups.entry(numbers.into_iter().collect()).or_insert_with_key(|numbers| {
                let rules = numbers.iter().filter_map(|number| groups.get(*number as usize));
                set(rules.flatten().copied().collect())
            })
        });
        Ok(ConditionIndex { key: Key::new(field), setting, without, inverted, texts, globs, any, networks })
    }
}

#[derive(Debug, Default)]
pub struct RareKeys {
    filed: HashMap<String, Vec<FiledRule>>,
}

#[derive(Debug)]
struct FiledRule {
    /// The rule's rare keys. A value must match one of the key's patterns.
    patterns: Vec<(Key, Vec<Pattern>)>,
    /// The set that contains only this rule.
    set: SetId,
}

impl RareKeys {
    /// Files the rules under `rarest_first`, the rare keys. `singleton` creates the set of one rule, given its index.
    pub fn new(rules: &[Rule], rarest_first: &[&str], mut singleton: impl FnMut(u32) -> SetId) -> Self {
        let mut filed: HashMap<String, Vec<FiledRule>> = HashMap::new();
        let ranks: HashMap<&str, usize> = rarest_first.iter().copied().zip(0..).collect();
        for (index, rule) in (0..).zip(rules) {
            let rare = rule.operation.iter().filter_map(|pair| Some((*ranks.get(pair.0.as_str())?, pair)));
            let Some((_, (key, _))) = rare.clone().min_by_key(|(rank, _)| *rank) else { continue };
            let key = key.clone();
            let mut patterns: Vec<(Key, Vec<Pattern>)> = Vec::new();
            for (_, (key, pattern)) in rare {
                match patterns.iter_mut().find(|(earlier, _)| earlier.as_str() == key) {
                    Some((_, patterns)) => patterns.push(pattern.clone()),
                    None => patterns.push((Key::new(key), vec![pattern.clone()])),
                }
            }
            filed.entry(key).or_default().push(FiledRule { patterns, set: singleton(index) });
        }
        Self { filed }
    }

    /// Calls `found` with the set of each rule whose rare keys `values` satisfies.
    pub fn for_each_match(&self, values: &impl Values, mut found: impl FnMut(SetId)) {
        for rule in values.keys().filter_map(|key| self.filed.get(key)).flatten() {
            let satisfied = |(key, patterns): &(Key, Vec<Pattern>)| {
                let value = values.value(key);
                value.is_some_and(|value| patterns.iter().any(|pattern| pattern.matches_bytes(value)))
            };
            if rule.patterns.iter().all(satisfied) {
                found(rule.set);
            }
        }
    }
}

/// Index of a set in the matcher's list of sets.
pub type SetId = u32;

/// A set of rule indexes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RuleBits {
    blocks: Box<[Block]>,
    words: Box<[u64]>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Block {
    /// Bit `i` is set if word `i` of this block is not zero.
    summary: u64,
    /// Number of stored words of all earlier blocks.
    rank: u32,
}

const WORDS_PER_BLOCK: usize = u64::BITS as usize;

pub const RULES_PER_WORD: usize = u64::BITS as usize;

const RULES_PER_BLOCK: usize = WORDS_PER_BLOCK * RULES_PER_WORD;

/// Returns the number of blocks in a set of up to `rules` rules.
pub fn block_count(rules: usize) -> usize {
    rules.div_ceil(RULES_PER_BLOCK)
}

/// Returns the index of the rule at bit `bit` of word `word` of block `block`.
pub fn rule_index(block: usize, word: u32, bit: u32) -> usize {
    block * RULES_PER_BLOCK + word as usize * RULES_PER_WORD + bit as usize
}

/// Returns the block, the word, and the bit in the word of the rule with this index: see [`rule_index`].
pub fn place(index: usize) -> (usize, u32, u64) {
    let word = index % RULES_PER_BLOCK / RULES_PER_WORD;
    (index / RULES_PER_BLOCK, word as u32, 1 << (index % RULES_PER_WORD))
}

impl RuleBits {
    /// Creates the set of `indexes`, which must ascend and be below `rules`.
    pub fn new(indexes: &[u32], rules: usize) -> Self {
        let mut blocks = vec![Block::default(); block_count(rules)];
        let mut words = Vec::new();
        for word in indexes.chunk_by(|a, b| word_of(*a) == word_of(*b)) {
            let Some(first) = word.first() else { continue };
            words.push(word.iter().fold(0, |bits, index| bits | 1 << (*index as usize % RULES_PER_WORD)));
            if let Some(block) = blocks.get_mut(word_of(*first) / WORDS_PER_BLOCK) {
                block.summary |= 1 << (word_of(*first) % WORDS_PER_BLOCK);
            }
        }
        let mut rank = 0;
        for block in &mut blocks {
            block.rank = rank;
            rank += block.summary.count_ones();
        }
        Self { blocks: blocks.into(), words: words.into() }
    }

    /// Returns which words of a block are not zero, as bits.
    pub fn summary(&self, block: usize) -> u64 {
        self.blocks.get(block).map_or(0, |block| block.summary)
    }

    /// Returns the bits of word `word` (below 64) of a block.
    pub fn word(&self, block: usize, word: u32) -> u64 {
        let Some(block) = self.blocks.get(block) else { return 0 };
        let flag = 1_u64 << word;
        if block.summary & flag == 0 {
            return 0;
        }
        let before = (block.summary & (flag - 1)).count_ones();
        self.words.get((block.rank + before) as usize).copied().unwrap_or(0)
    }
}

fn word_of(index: u32) -> usize {
    index as usize / RULES_PER_WORD
}

/// An error that prevents the rules from being compiled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RuleSetError {
    /// The glob patterns of this key exceed the matcher's size.
    #[error(
        "key {0:?} has too many values with `*`, or too long ones, to match them at once; use fewer or shorter ones"
    )]
    TooManyGlobs(String),
    /// Conditions are about too many fields.
    #[error("`networks` and `list` are about more than {MAX_FIELDS} fields; use fewer fields")]
    TooManyConditionFields,
    /// The number of rules does not fit the index.
    #[error("more than {} rules", u32::MAX)]
    TooManyRules,
    /// Checks never have a value that these patterns match.
    #[error("patterns that no check matches")]
    UnknownSpellings(Vec<UnknownSpelling>),
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn set_has_its_indexes_and_no_others(set in prop::collection::btree_set(0_u32..20_000, 0..200)) {
            let given: Vec<_> = set.iter().copied().collect();
            let bits = RuleBits::new(&given, 20_000);
            let mut found = Vec::new();
            for (block, word) in (0..block_count(20_000)).flat_map(|block| (0..64).map(move |word| (block, word))) {
                let indexes = (0..64).filter(|bit| bits.word(block, word) >> bit & 1 == 1);
                found.extend(indexes.map(|bit| rule_index(block, word, bit) as u32));
                // Words that the summary leaves out are skipped.
                prop_assert_eq!(bits.summary(block) >> word & 1 == 1, bits.word(block, word) != 0);
            }
            prop_assert_eq!(found, given);
        }
    }
}
