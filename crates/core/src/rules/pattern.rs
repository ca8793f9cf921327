//! Patterns: a rule's condition on one value.
//!
//! Only `*` is special. It stands for any run of characters, including `/`, newlines and no characters at all. Every
//! other character stands for itself.
//!
//! [`GlobIndex`] finds which of many globs a value matches, without trying each of them. Every glob is filed under one of its literal pieces: under its prefix if few other globs have it, otherwise under
//! its rarest piece. One or two look-ups find the prefixes of a value. One pass of an Aho-Corasick automaton finds the
//! other pieces that occur in it. Only globs filed under those pieces are tried.
//!
//! Most globs end in their only `*`. If their prefixes have few different lengths, a look-up per length is cheaper than one
//! pass over the whole value, regardless of the number of prefixes.
//!
//! `globset` is not used. It reads values as file paths, so its `*.` does not match `..`. It also tries globs with the
//! same extension one by one, which takes 15 ms per value for 10,000 globs.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use aho_corasick::{AhoCorasick, BuildError};
use memchr::memmem;

/// Symbol that stands for a pattern's `*` when patterns are compared: no UTF-8 text contains this byte.
const WILDCARD_SYMBOL: u8 = 0xff;

/// A condition on a value. A run of `*` means the same as a single one.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Pattern {
    /// `*`: any value, but the key must be present.
    Any,
    /// Exactly this value.
    Literal(String),
    /// A value that contains `*` and other characters.
    Glob(Glob),
}

/// Literal pieces with `*` between them; at least one piece is not empty.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Glob(Box<str>);

impl Pattern {
    /// Parses a pattern. Every text is one.
    pub fn parse(text: &str) -> Self {
        if !text.contains('*') {
            return Self::Literal(text.to_owned());
        }
        let mut collapsed = text.to_owned();
        while collapsed.contains("**") {
            collapsed = collapsed.replace("**", "*");
        }
        if collapsed == "*" { Self::Any } else { Self::Glob(Glob(collapsed.into())) }
    }

    /// Returns whether the pattern matches the whole value.
    pub fn matches(&self, value: &str) -> bool {
        self.matches_bytes(value.as_bytes())
    }

    /// Returns whether `self` matches every value that `other` matches. The answer is exact.
    ///
    /// Each `*` of `other` is replaced by a symbol that no literal contains. If `self` matches the result, one of its
    /// own `*` consumed that symbol, and would consume anything in its place. If it does not match, the result is the
    /// counterexample.
    pub fn contains(&self, other: &Self) -> bool {
        self.matches_bytes(&other.most_general_value())
    }

    /// Returns whether there is a value that both match. The answer is exact.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        let (one, other) = (self.as_str().as_bytes(), other.as_str().as_bytes());
        // Each row says whether the rest of `one` from the current position overlaps the rest of `other` from each of
        // its positions. The loop starts at the end, where both rests are empty.
        let mut below = vec![false; other.len() + 1];
        for place in (0..=one.len()).rev() {
            let mut row = vec![false; other.len() + 1];
            for other_place in (0..=other.len()).rev() {
                let next = |row: &[bool], place: usize| row.get(place).copied().unwrap_or(false);
                let overlap = match (one.get(place), other.get(other_place)) {
                    (None, None) => true,
                    // A `*` stands for nothing, or for the next symbol of the other pattern.
                    (Some(b'*'), _) if next(&below, other_place) => true,
                    (_, Some(b'*')) if next(&row, other_place + 1) => true,
                    (Some(b'*'), Some(_)) => next(&row, other_place + 1),
                    (Some(_), Some(b'*')) => next(&below, other_place),
                    (Some(byte), Some(other_byte)) => byte == other_byte && next(&below, other_place + 1),
                    (None, Some(_)) | (Some(_), None) => false,
                };
                if let Some(cell) = row.get_mut(other_place) {
                    *cell = overlap;
                }
            }
            below = row;
        }
        below.first().copied().unwrap_or(false)
    }

    pub(super) fn matches_bytes(&self, value: &[u8]) -> bool {
        match self {
            Self::Any => true,
            Self::Literal(literal) => literal.as_bytes() == value,
            Self::Glob(glob) => glob.matches_bytes(value),
        }
    }

    /// Returns a value that this pattern matches, and that other patterns match only if they contain this one.
    pub(super) fn most_general_value(&self) -> Vec<u8> {
        self.as_str().bytes().map(|byte| if byte == b'*' { WILDCARD_SYMBOL } else { byte }).collect()
    }

    /// Returns the text that [`Pattern::parse`] reads as this pattern.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Any => "*",
            Self::Literal(text) => text,
            Self::Glob(glob) => &glob.0,
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Glob {
    /// Returns the literal pieces, in order. The first or last one is empty if the glob begins or ends with `*`.
    pub(super) fn pieces(&self) -> impl Iterator<Item = &str> {
        self.0.split('*')
    }

    /// Returns the prefix that a value needs.
    pub(super) fn prefix(&self) -> &str {
        self.pieces().next().unwrap_or_default()
    }

    /// Returns whether the glob is a prefix followed by `*`.
    pub(super) fn is_prefix(&self) -> bool {
        self.0.find('*') == Some(self.0.len() - 1)
    }

    /// Matches each piece at its first occurrence, which leaves the most text for later pieces.
    pub(super) fn matches_bytes(&self, value: &[u8]) -> bool {
        let glob = self.0.as_bytes();
        let (Some(first), Some(last)) = (memchr::memchr(b'*', glob), memchr::memrchr(b'*', glob)) else {
            return false;
        };
        let (prefix, suffix) = (glob.get(..first).unwrap_or_default(), glob.get(last + 1..).unwrap_or_default());
        let Some(value) = value.strip_prefix(prefix) else { return false };
        let Some(mut value) = value.strip_suffix(suffix) else { return false };
        let Some(middle) = glob.get(first + 1..last) else { return true };
        for piece in middle.split(|byte| *byte == b'*') {
            let Some(at) = memmem::find(value, piece) else { return false };
            value = value.get(at + piece.len()..).unwrap_or_default();
        }
        true
    }
}

/// Maximum number of globs with more than a prefix that are filed under one prefix. All of them are tried.
const MAX_UNDER_PREFIX: usize = 4;

/// Globs, each with a number that the caller chose.
#[derive(Debug, Default)]
pub struct GlobIndex {
    /// The lengths of the prefixes that are looked up, ascending.
    lengths: Vec<usize>,
    /// Callers choose the values that are looked up but never those that are stored, so a fast hasher is safe.
    by_prefix: HashMap<Box<[u8]>, PrefixGlobs, foldhash::fast::RandomState>,
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
        let lengths = common_lengths(globs.iter().map(|(glob, _)| glob.prefix().len()).filter(|length| *length > 0));
        let mut by_prefix: HashMap<Box<[u8]>, PrefixGlobs, _> = HashMap::default();
        let mut by_piece: HashMap<String, Vec<(Glob, u32)>> = HashMap::new();
        let shared = count_pieces(&globs);
        for (glob, number) in globs {
            let prefix = glob.prefix().as_bytes();
            let is_indexed = lengths.binary_search(&prefix.len()).is_ok();
            match is_indexed.then(|| by_prefix.entry(prefix.into()).or_default()) {
                Some(under) if under.bare.is_none() && glob.is_prefix() => under.bare = Some(number),
                Some(under) if under.others.len() < MAX_UNDER_PREFIX => under.others.push((glob, number)),
                _ => by_piece.entry(rarest_piece(&glob, &shared)).or_default().push((glob, number)),
            }
        }
        let (pieces, globs): (Vec<String>, Vec<_>) = by_piece.into_iter().unzip();
        let pieces = if pieces.is_empty() { None } else { Some(AhoCorasick::new(&pieces)?) };
        Ok(Self { lengths, by_prefix, pieces, globs })
    }

    /// Calls `found` with the number of each glob that `value` matches, in any order. `pieces` is scratch space.
    #[inline]
    pub fn for_each_match(&self, value: &[u8], pieces: &mut Vec<usize>, found: impl FnMut(u32)) {
        // Most keys have no globs: their patterns are exact, or match everything.
        if !self.lengths.is_empty() || self.pieces.is_some() {
            self.for_each_filed_match(value, pieces, found);
        }
    }

    fn for_each_filed_match(&self, value: &[u8], pieces: &mut Vec<usize>, mut found: impl FnMut(u32)) {
        let prefixes = self.lengths.iter().map_while(|length| value.get(..*length));
        for under in prefixes.filter_map(|prefix| self.by_prefix.get(prefix)) {
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

/// Returns the most common of these lengths, ascending.
fn common_lengths(lengths: impl Iterator<Item = usize>) -> Vec<usize> {
    let mut counts: BTreeMap<usize, usize> = BTreeMap::new();
    for length in lengths {
        *counts.entry(length).or_default() += 1;
    }
    let mut common: Vec<_> = counts.into_iter().collect();
    common.sort_by_key(|(_, count)| usize::MAX - count);
    let mut common: Vec<_> = common.into_iter().take(MAX_LENGTHS).map(|(length, _)| length).collect();
    common.sort_unstable();
    common
}

#[cfg(test)]
mod globset_comparison;
#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::Pattern;
    use proptest::prelude::*;

    /// Returns all strings over `a`, `b` and `c` of at most six characters. Patterns only use `a` and `b`, so `c`
    /// stands for any other character.
    fn short_strings() -> Vec<String> {
        let mut all = vec![String::new()];
        let mut last = all.clone();
        for _ in 0..6 {
            last = last.iter().flat_map(|s| ['a', 'b', 'c'].map(|c| format!("{s}{c}"))).collect();
            all.extend(last.iter().cloned());
        }
        all
    }

    /// Matches by definition, recursively.
    fn matches_by_definition(pattern: &[u8], value: &[u8]) -> bool {
        match pattern.split_first() {
            None => value.is_empty(),
            Some((b'*', rest)) => (0..=value.len()).any(|taken| matches_by_definition(rest, &value[taken..])),
            Some((byte, rest)) => value.first() == Some(byte) && matches_by_definition(rest, &value[1..]),
        }
    }

    proptest! {
        #[test]
        fn matching_follows_the_definition(pattern in "[ab*]{0,6}", value in "[ab]{0,8}") {
            let expected = matches_by_definition(pattern.as_bytes(), value.as_bytes());
            prop_assert_eq!(Pattern::parse(&pattern).matches(&value), expected);
        }

        #[test]
        fn containment_follows_the_definition(general in "[ab*]{0,4}", special in "[ab*]{0,4}") {
            let (general, special) = (Pattern::parse(&general), Pattern::parse(&special));
            let counterexample = short_strings().into_iter().find(|s| special.matches(s) && !general.matches(s));
            prop_assert_eq!(general.contains(&special), counterexample.is_none(), "{:?}", counterexample);
        }

        /// Two patterns of at most three characters that overlap have a common value of at most six.
        #[test]
        fn overlap_follows_the_definition(one in "[ab*]{0,3}", other in "[ab*]{0,3}") {
            let (one, other) = (Pattern::parse(&one), Pattern::parse(&other));
            let common = short_strings().into_iter().find(|s| one.matches(s) && other.matches(s));
            prop_assert_eq!(one.overlaps(&other), common.is_some(), "{:?}", common);
            prop_assert_eq!(one.overlaps(&other), other.overlaps(&one));
        }

        #[test]
        fn pattern_text_parses_to_the_same_pattern(text in ".*") {
            let pattern = Pattern::parse(&text);
            prop_assert_eq!(Pattern::parse(pattern.as_str()), pattern);
        }
    }

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
            prefixes in prop::collection::btree_set("[ab]{1,12}", 0..40), values in prop::collection::vec("[ab]{0,14}", 1..9),
        ) {
            let globs = prefixes.iter().filter_map(|prefix| glob(&format!("{prefix}*")));
            let index = GlobIndex::new(globs.zip(0..).collect()).unwrap();
            prop_assert!(index.lengths.len() <= MAX_LENGTHS);
            for value in &values {
                let mut found = Vec::new();
                index.for_each_match(value.as_bytes(), &mut Vec::new(), |number| found.push(number));
                found.sort_unstable();
                let expected = (0..).zip(&prefixes).filter(|(_, prefix)| value.starts_with(prefix.as_str()));
                prop_assert_eq!(found, expected.map(|(number, _)| number).collect::<Vec<u32>>());
            }
        }

        #[test]
        fn most_common_lengths_are_indexed(rare in 1..20_usize, common in 20..40_usize) {
            let prefixes: Vec<_> = (1..20).map(|length| "a".repeat(length)).chain(["b".repeat(rare), "b".repeat(common), "c".repeat(common)]).collect();
            let lengths = common_lengths(prefixes.iter().map(String::len));
            prop_assert!(lengths.contains(&rare) && lengths.contains(&common));
        }
    }
}
