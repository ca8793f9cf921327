//! Patterns: a rule's condition on one value.
//!
//! Only `*` is special. It stands for any run of characters, including `/`, newlines and no characters at all. Every
//! other character stands for itself. The compiled rule set matches many patterns at once.

use std::fmt;

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
        let collapsed = collapse_stars(text);
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
    pub fn overlaps(&self, other: &Self) -> bool {
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

fn collapse_stars(text: &str) -> String {
    let mut collapsed = String::with_capacity(text.len());
    for c in text.chars() {
        if c != '*' || !collapsed.ends_with('*') {
            collapsed.push(c);
        }
    }
    collapsed
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

#[cfg(test)]
mod globset_comparison;
#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_the_star_is_special() {
        let pattern = Pattern::parse("/a.b?[c]{d}\\*");
        assert!(pattern.matches("/a.b?[c]{d}\\"));
        assert!(pattern.matches("/a.b?[c]{d}\\/e\n/f"));
        assert!(!pattern.matches("/aXb?[c]{d}\\"));
    }

    #[test]
    fn glob_matches_the_whole_value() {
        let pattern = Pattern::parse("/resource/*/first");
        assert!(pattern.matches("/resource/1/2/first"));
        assert!(pattern.matches("/resource//first"));
        assert!(!pattern.matches("/resource/first"));
        assert!(!pattern.matches("/resource/1/first/more"));
    }

    #[test]
    fn pieces_do_not_overlap() {
        assert!(!Pattern::parse("ab*ba").matches("aba"));
        assert!(!Pattern::parse("*aa*a").matches("aa"));
        assert!(Pattern::parse("*.").matches(".."));
    }

    #[test]
    fn run_of_stars_equals_one_star() {
        assert_eq!(Pattern::parse("***"), Pattern::Any);
        assert_eq!(Pattern::parse("a**b"), Pattern::parse("a*b"));
    }

    #[test]
    fn general_path_contains_special_path() {
        let contains = |a, b| Pattern::parse(a).contains(&Pattern::parse(b));
        assert!(contains("/resource/*", "/resource/*/first"));
        assert!(!contains("/resource/*/first", "/resource/*"));
        assert!(contains("*", "literal") && contains("*", "a*b"));
        assert!(!contains("literal", "*") && !contains("a*", "*"));
    }

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
}
