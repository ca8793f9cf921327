//! Finds which of many globs a value matches, without trying each of them.
//!
//! Every glob is filed under one of its literal pieces: under its prefix if few other globs have it, otherwise under
//! its rarest piece. One or two look-ups find the prefixes of a value. One pass of an Aho-Corasick automaton finds the
//! other pieces that occur in it. Only globs filed under those pieces are tried.
//!
//! Most globs end in their only `*`. If their prefixes have few different lengths, a look-up per length is cheaper than one
//! pass over the whole value, regardless of the number of prefixes.
//!
//! `globset` is not used. It reads values as file paths, so its `*.` does not match `..`. It also tries globs with the
//! same extension one by one, which takes 15 ms per value for 10,000 globs.

use std::collections::{BTreeMap, HashMap};

use aho_corasick::{AhoCorasick, BuildError};

use super::pattern::Glob;

/// Maximum number of globs with more than a prefix that are filed under one prefix. All of them are tried.
const MAX_UNDER_PREFIX: usize = 4;

/// Globs, each with a number that the caller chose.
#[derive(Debug, Default)]
pub struct GlobIndex {
    prefixes: PrefixIndex<PrefixGlobs>,
    /// `None` when all globs are filed under their prefixes.
    pieces: Option<AhoCorasick>,
    /// Globs by the index of the piece they are filed under.
    globs: Vec<Vec<(Glob, u32)>>,
}

#[derive(Debug, Default)]
struct PrefixGlobs {
    /// The number of the glob that consists of this prefix and `*`.
    bare: Option<u32>,
    others: Vec<(Glob, u32)>,
}

impl GlobIndex {
    /// # Errors
    /// The globs are too many, or too long, for one automaton.
    pub fn new(globs: Vec<(Glob, u32)>) -> Result<Self, BuildError> {
        let prefixes = globs.iter().map(|(glob, _)| glob.prefix()).filter(|prefix| !prefix.is_empty());
        let mut prefixes: PrefixIndex<PrefixGlobs> = PrefixIndex::new(prefixes);
        let mut by_piece: HashMap<String, Vec<(Glob, u32)>> = HashMap::new();
        let shared = count_pieces(&globs);
        for (glob, number) in globs {
            match prefixes.entry(glob.prefix()) {
                Some(under) if under.bare.is_none() && glob.is_prefix() => under.bare = Some(number),
                Some(under) if under.others.len() < MAX_UNDER_PREFIX => under.others.push((glob, number)),
                _ => by_piece.entry(rarest_piece(&glob, &shared)).or_default().push((glob, number)),
            }
        }
        let (pieces, globs): (Vec<String>, Vec<_>) = by_piece.into_iter().unzip();
        let pieces = if pieces.is_empty() { None } else { Some(AhoCorasick::new(&pieces)?) };
        Ok(Self { prefixes, pieces, globs })
    }

    /// Calls `found` with the number of each glob that `value` matches, in any order. `pieces` is scratch space.
    #[inline]
    pub fn for_each_match(&self, value: &[u8], pieces: &mut Vec<usize>, found: impl FnMut(u32)) {
        // Most keys have no globs: their patterns are exact, or match everything.
        if !self.is_empty() {
            self.for_each_filed_match(value, pieces, found);
        }
    }

    fn is_empty(&self) -> bool {
        self.prefixes.is_empty() && self.pieces.is_none()
    }

    fn for_each_filed_match(&self, value: &[u8], pieces: &mut Vec<usize>, mut found: impl FnMut(u32)) {
        for under in self.prefixes.matches(value) {
            if let Some(number) = under.bare {
                found(number);
            }
            for number in matching(&under.others, value) {
                found(number);
            }
        }
        let Some(automaton) = &self.pieces else { return };
        pieces.clear();
        pieces.extend(automaton.find_overlapping_iter(value).map(|found| found.pattern().as_usize()));
        pieces.sort_unstable();
        pieces.dedup();
        for filed in pieces.iter().filter_map(|piece| self.globs.get(*piece)) {
            for number in matching(filed, value) {
                found(number);
            }
        }
    }
}

/// Returns the numbers of those globs that `value` matches.
fn matching(globs: &[(Glob, u32)], value: &[u8]) -> impl Iterator<Item = u32> {
    globs.iter().filter(|(glob, _)| glob.matches_bytes(value)).map(|(_, number)| *number)
}

/// Counts the globs that contain each piece.
fn count_pieces(globs: &[(Glob, u32)]) -> HashMap<String, usize> {
    let mut counts = HashMap::new();
    for piece in globs.iter().flat_map(|(glob, _)| glob.pieces()) {
        *counts.entry(piece.to_owned()).or_default() += 1;
    }
    counts
}

/// Returns the piece that the fewest globs share. Among equals, the longest piece wins, because it occurs in the fewest
/// values.
fn rarest_piece(glob: &Glob, shared: &HashMap<String, usize>) -> String {
    let pieces = glob.pieces().filter(|piece| !piece.is_empty());
    let rarest = pieces.min_by_key(|piece| (shared.get(*piece).copied(), usize::MAX - piece.len()));
    rarest.unwrap_or_default().to_owned()
}

/// Number of lengths that are looked up for a value.
const MAX_LENGTHS: usize = 8;

/// Prefixes, each with an entry.
#[derive(Debug)]
struct PrefixIndex<T> {
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
    use crate::rules::Pattern;
    use proptest::prelude::*;

    fn glob(text: &str) -> Option<Glob> {
        match Pattern::parse(text) {
            Pattern::Glob(glob) => Some(glob),
            _ => None,
        }
    }

    proptest! {
        #[test]
        fn finds_the_same_globs_as_a_linear_search(
            texts in prop::collection::vec("[ab/.*]{1,5}|[ab*]{8,14}", 0..60), values in prop::collection::vec("[ab/.]{0,9}|[ab]{8,14}", 1..9)
        ) {
            let globs: Vec<_> = texts.iter().filter_map(|text| glob(text)).zip(0..).collect();
            let index = GlobIndex::new(globs.clone()).unwrap();
            for value in values.iter().map(String::as_bytes) {
                let mut found = Vec::new();
                index.for_each_match(value, &mut Vec::new(), |number| found.push(number));
                found.sort_unstable();
                let expected = globs.iter().filter(|(glob, _)| glob.matches_bytes(value)).map(|(_, number)| *number);
                prop_assert_eq!(found, expected.collect::<Vec<_>>());
            }
        }
    }

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
