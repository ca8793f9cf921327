//! Finds which of many prefixes a value begins with, with one look-up per prefix length.
//!
//! Most globs end in their only `*`. If their prefixes have few different lengths, this is cheaper than one pass over
//! the whole value, regardless of the number of prefixes.

use std::collections::{BTreeMap, HashMap};

/// Number of lengths that are looked up for a value.
const MAX_LENGTHS: usize = 8;

/// Prefixes, each with an entry.
#[derive(Debug)]
pub struct PrefixIndex<T> {
    /// The indexed lengths, ascending.
    lengths: Vec<usize>,
    /// Callers choose the values that are looked up but never those that are stored, so a fast hasher is safe.
    by_prefix: HashMap<Box<[u8]>, T, foldhash::fast::RandomState>,
}

impl<T> Default for PrefixIndex<T> {
    fn default() -> Self {
        Self { lengths: Vec::new(), by_prefix: HashMap::default() }
    }
}

impl<T: Default> PrefixIndex<T> {
    /// Creates an index for those `prefixes` that have one of the most common lengths.
    pub fn new<'a>(prefixes: impl Iterator<Item = &'a str>) -> Self {
        let mut counts: BTreeMap<usize, usize> = BTreeMap::new();
        for prefix in prefixes {
            *counts.entry(prefix.len()).or_default() += 1;
        }
        let mut lengths: Vec<_> = counts.into_iter().collect();
        lengths.sort_by_key(|(_, count)| usize::MAX - count);
        let mut lengths: Vec<_> = lengths.into_iter().take(MAX_LENGTHS).map(|(length, _)| length).collect();
        lengths.sort_unstable();
        Self { lengths, ..Self::default() }
    }

    /// Returns the entry of a prefix; `None` if its length is not indexed.
    pub fn entry(&mut self, prefix: &str) -> Option<&mut T> {
        let is_indexed = self.lengths.binary_search(&prefix.len()).is_ok();
        is_indexed.then(|| self.by_prefix.entry(prefix.as_bytes().into()).or_default())
    }

    pub fn is_empty(&self) -> bool {
        self.lengths.is_empty()
    }

    /// Returns the entry of each prefix of `value`.
    pub fn matches<'a>(&'a self, value: &'a [u8]) -> impl Iterator<Item = &'a T> {
        let prefixes = self.lengths.iter().map_while(|length| value.get(..*length));
        prefixes.filter_map(|prefix| self.by_prefix.get(prefix))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn finds_the_same_prefixes_as_a_linear_search(
            prefixes in prop::collection::btree_set("[ab]{0,12}", 0..40), values in prop::collection::vec("[ab]{0,14}", 1..9),
        ) {
            let mut index: PrefixIndex<String> = PrefixIndex::new(prefixes.iter().map(String::as_str));
            prop_assert!(index.lengths.len() <= MAX_LENGTHS);
            let mut indexed = Vec::new();
            for prefix in &prefixes {
                if let Some(stored_prefix) = index.entry(prefix) {
                    stored_prefix.clone_from(prefix);
                    indexed.push(prefix);
                }
            }
            for value in &values {
                let found: Vec<_> = index.matches(value.as_bytes()).collect();
                let mut expected = indexed.clone();
                expected.retain(|prefix| value.starts_with(prefix.as_str()));
                expected.sort_by_key(|prefix| prefix.len());
                prop_assert_eq!(found, expected);
            }
        }

        #[test]
        fn most_common_lengths_are_indexed(rare in 1..20_usize, common in 20..40_usize) {
            let prefixes: Vec<_> = (1..20).map(|length| "a".repeat(length)).chain(["b".repeat(rare), "b".repeat(common), "c".repeat(common)]).collect();
            let mut index: PrefixIndex<u8> = PrefixIndex::new(prefixes.iter().map(String::as_str));
            prop_assert!(index.entry(&"b".repeat(rare)).is_some() && index.entry(&"b".repeat(common)).is_some());
        }
    }
}
