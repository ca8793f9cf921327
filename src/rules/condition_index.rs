//! Finds the rules whose conditions a value meets: all conditions of one kind on one field at once.
//!
//! A look-up collects the rules with an entry that the value matches. Rules with inverted conditions are then exchanged:
//! a found one does not match, and one that was not found does.

use std::collections::HashMap;
use std::sync::Arc;

use super::glob_index::GlobIndex;
use super::key::Key;
use super::network_table::NetworkTable;
use super::pattern::Glob;
use super::rule_bits::SetId;
use super::ruleset_error::RuleSetError;
use super::{Condition, List, ListEntry, Members, Network, Pattern, Rule};

/// Maximum number of fields with conditions. Each is looked up for every request; one with both kinds counts twice.
pub const MAX_FIELDS: usize = 32;

/// The rules that the values of one field satisfy by their conditions of one kind.
#[derive(Debug)]
pub struct ConditionIndex {
    pub key: Key,
    /// The setting of the conditions.
    pub setting: &'static str,
    /// Rules without such a condition on the field.
    pub without: SetId,
    /// Rules with an inverted condition.
    pub inverted: Option<SetId>,
    /// Callers choose the values that are looked up but never those that are stored, so a fast hasher is safe.
    texts: HashMap<Box<[u8]>, SetId, foldhash::fast::RandomState>,
    globs: GlobIndex,
    /// Rules with an entry `*`.
    any: Option<SetId>,
    networks: NetworkTable<SetId>,
}

/// The entries of all conditions, each with its rules.
#[derive(Default)]
struct Entries<'a> {
    patterns: HashMap<&'a Pattern, Vec<u32>>,
    /// Networks, each with the number of a group of rules.
    networks: Vec<(Network, u32)>,
    groups: Vec<Vec<u32>>,
}

impl ConditionIndex {
    /// Creates the index of each field and kind. `add` stores a set of rules.
    ///
    /// # Errors
    /// Too many fields have conditions, or a list has too many globs.
    pub fn all(rules: &[Rule], add: &mut dyn FnMut(&[u32]) -> SetId) -> Result<Vec<Self>, RuleSetError> {
        let mut kinds: Vec<(&'static str, &str)> =
            rules.iter().flat_map(Rule::conditions).map(|found| (found.setting(), found.field.as_str())).collect();
        kinds.sort_unstable();
        kinds.dedup();
        if kinds.len() > MAX_FIELDS {
            return Err(RuleSetError::TooManyConditionFields { max: MAX_FIELDS });
        }
        kinds.into_iter().map(|(setting, field)| Self::new(setting, field, rules, add)).collect()
    }

    fn new(
        setting: &'static str,
        field: &str,
        rules: &[Rule],
        add: &mut dyn FnMut(&[u32]) -> SetId,
    ) -> Result<Self, RuleSetError> {
        let is_asked = |condition: &&Condition| condition.setting() == setting && condition.field == field;
        let (mut without, mut inverted, mut entries) = (Vec::new(), Vec::new(), Entries::default());
        let mut lists: HashMap<*const List, (&List, Vec<u32>)> = HashMap::new();
        for (index, rule) in (0..).zip(rules) {
            let Some(condition) = rule.conditions().find(is_asked) else {
                without.push(index);
                continue;
            };
            if condition.is_inverted {
                inverted.push(index);
            }
            match &condition.members {
                Members::Networks(set) => entries.add_networks(set.networks().iter().copied(), vec![index]),
                // Rules with the same list are handled together.
                Members::List(list) => {
                    lists.entry(Arc::as_ptr(list)).or_insert_with(|| (list, Vec::new())).1.push(index);
                }
            }
        }
        for (list, rules) in lists.into_values() {
            entries.add_list(list, rules);
        }
        entries.compile(Key::new(field), setting, without, inverted, add)
    }

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

impl<'a> Entries<'a> {
    fn add_networks(&mut self, networks: impl Iterator<Item = Network>, rules: Vec<u32>) {
        let group = self.groups.len() as u32;
        self.networks.extend(networks.map(|network| (network, group)));
        self.groups.push(rules);
    }

    fn add_list(&mut self, list: &'a List, rules: Vec<u32>) {
        for (_, entry) in list.entries() {
            if let ListEntry::Pattern(pattern) | ListEntry::Quoted(pattern) = entry {
                self.patterns.entry(pattern).or_default().extend_from_slice(&rules);
            }
        }
        let networks = list.entries().filter_map(|(_, entry)| match entry {
            ListEntry::Network(network) => Some(*network),
            ListEntry::Pattern(_) | ListEntry::Quoted(_) => None,
        });
        self.add_networks(networks, rules);
    }

    fn compile(
        self,
        key: Key,
        setting: &'static str,
        without: Vec<u32>,
        inverted: Vec<u32>,
        add: &mut dyn FnMut(&[u32]) -> SetId,
    ) -> Result<ConditionIndex, RuleSetError> {
        // Most entries have the same rules as others.
        let mut known: HashMap<Vec<u32>, SetId> = HashMap::new();
        let mut set = |mut rules: Vec<u32>| {
            rules.sort_unstable();
            rules.dedup();
            *known.entry(rules).or_insert_with_key(|rules| add(rules))
        };
        let without = set(without);
        let inverted = (!inverted.is_empty()).then(|| set(inverted));
        let (mut texts, mut globs, mut any): (HashMap<_, _, _>, Vec<(Glob, SetId)>, _) =
            (HashMap::default(), Vec::new(), None);
        for (pattern, rules) in self.patterns {
            let rules = set(rules);
            match pattern {
                Pattern::Any => any = Some(rules),
                Pattern::Literal(text) => drop(texts.insert(text.as_bytes().into(), rules)),
                Pattern::Glob(glob) => globs.push((glob.clone(), rules)),
            }
        }
        let globs = GlobIndex::new(globs).map_err(|_| RuleSetError::TooManyGlobs { key: key.as_str().to_owned() })?;
        let mut of_groups: HashMap<Vec<u32>, SetId> = HashMap::new();
        let networks = NetworkTable::new(self.networks, |groups| {
            let mut groups = groups.to_vec();
            groups.sort_unstable();
            groups.dedup();
            *of_groups.entry(groups).or_insert_with_key(|groups| {
                let rules = groups.iter().filter_map(|group| self.groups.get(*group as usize));
                set(rules.flatten().copied().collect())
            })
        });
        Ok(ConditionIndex { key, setting, without, inverted, texts, globs, any, networks })
    }
}
