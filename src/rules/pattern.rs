//! Patterns: what a rule requires of one value.
//!
//! Only `*` is special, and stands for any run of characters, `/` and newlines included, also an empty one. Every other
//! character is itself. How many patterns are matched at once is the business of the compiled rule set.

use std::fmt;

use memchr::memmem;

/// Stands for a pattern's `*` when patterns are compared: no UTF-8 text contains this byte.
const WILDCARD_SYMBOL: u8 = 0xff;

/// What a value must look like. Runs of `*` are read as one `*`, which means the same.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Pattern {
    /// `*`: any value, as long as there is one.
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
    /// Every text is a pattern.
    pub fn parse(text: &str) -> Self {
        if !text.contains('*') {
            return Self::Literal(text.to_owned());
        }
        let collapsed = collapse_stars(text);
        if collapsed == "*" { Self::Any } else { Self::Glob(Glob(collapsed.into())) }
    }

    pub fn matches(&self, value: &str) -> bool {
        self.matches_bytes(value.as_bytes())
    }

    /// Does every value that `other` matches match `self`? Exact, not a guess.
    ///
    /// `other`'s `*` is replaced by a symbol that no literal contains. If `self` matches the result, its own `*` took
    /// that symbol, and would take whatever stands for it; if not, that very value is the counterexample.
    pub fn contains(&self, other: &Self) -> bool {
        self.matches_bytes(&other.most_general_value())
    }

    /// Is there a value that both match? Exact, too.
    pub fn overlaps(&self, other: &Self) -> bool {
        let (one, other) = (self.as_str().as_bytes(), other.as_str().as_bytes());
        // Whether the rest of `one` from the present place, and the rest of `other` from each of its places, overlap.
        // From the end, where both rests are empty.
        let mut below = vec![false; other.len() + 1];
        for place in (0..=one.len()).rev() {
            let mut row = vec![false; other.len() + 1];
            for other_place in (0..=other.len()).rev() {
                let next = |row: &[bool], place: usize| row.get(place).copied().unwrap_or(false);
                let overlap = match (one.get(place), other.get(other_place)) {
                    (None, None) => true,
                    // A `*` takes nothing, or what the other has next.
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

    /// A value that this pattern matches, and that another pattern matches only if it contains this one.
    pub(super) fn most_general_value(&self) -> Vec<u8> {
        self.as_str().bytes().map(|byte| if byte == b'*' { WILDCARD_SYMBOL } else { byte }).collect()
    }

    /// The text that [`Pattern::parse`] reads as this pattern.
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
    /// The literal pieces, in order; the first and the last are empty where the glob begins or ends with `*`.
    pub(super) fn pieces(&self) -> impl Iterator<Item = &str> {
        self.0.split('*')
    }

    /// What a value has to begin with.
    pub(super) fn prefix(&self) -> &str {
        self.pieces().next().unwrap_or_default()
    }

    /// Whether nothing but the prefix is asked for.
    pub(super) fn is_prefix(&self) -> bool {
        self.0.find('*') == Some(self.0.len() - 1)
    }

    /// Takes each piece where it first fits, which leaves the most room for those after it.
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
mod judged;
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
    fn a_glob_matches_the_whole_value() {
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
    fn runs_of_stars_are_one() {
        assert_eq!(Pattern::parse("***"), Pattern::Any);
        assert_eq!(Pattern::parse("a**b"), Pattern::parse("a*b"));
    }

    #[test]
    fn containment_of_paths() {
        let contains = |a, b| Pattern::parse(a).contains(&Pattern::parse(b));
        assert!(contains("/resource/*", "/resource/*/first"));
        assert!(!contains("/resource/*/first", "/resource/*"));
        assert!(contains("*", "literal") && contains("*", "a*b"));
        assert!(!contains("literal", "*") && !contains("a*", "*"));
    }

    /// All strings over `a`, `b` and `c` of at most six characters. Patterns only use `a` and `b`, so `c` can stand
    /// for what no pattern names.
    fn short_strings() -> Vec<String> {
        let mut all = vec![String::new()];
        let mut last = all.clone();
        for _ in 0..6 {
            last = last.iter().flat_map(|s| ['a', 'b', 'c'].map(|c| format!("{s}{c}"))).collect();
            all.extend(last.iter().cloned());
        }
        all
    }

    /// The definition of matching, by recursion.
    fn matches_by_definition(pattern: &[u8], value: &[u8]) -> bool {
        match pattern.split_first() {
            None => value.is_empty(),
            Some((b'*', rest)) => (0..=value.len()).any(|taken| matches_by_definition(rest, &value[taken..])),
            Some((byte, rest)) => value.first() == Some(byte) && matches_by_definition(rest, &value[1..]),
        }
    }

    proptest! {
        #[test]
        fn matching_is_as_defined(pattern in "[ab*]{0,6}", value in "[ab]{0,8}") {
            let expected = matches_by_definition(pattern.as_bytes(), value.as_bytes());
            prop_assert_eq!(Pattern::parse(&pattern).matches(&value), expected);
        }

        #[test]
        fn containment_is_as_defined(general in "[ab*]{0,4}", special in "[ab*]{0,4}") {
            let (general, special) = (Pattern::parse(&general), Pattern::parse(&special));
            let counterexample = short_strings().into_iter().find(|s| special.matches(s) && !general.matches(s));
            prop_assert_eq!(general.contains(&special), counterexample.is_none(), "{:?}", counterexample);
        }

        /// Two patterns of at most three characters that overlap have a common value of at most six.
        #[test]
        fn overlap_is_as_defined(one in "[ab*]{0,3}", other in "[ab*]{0,3}") {
            let (one, other) = (Pattern::parse(&one), Pattern::parse(&other));
            let common = short_strings().into_iter().find(|s| one.matches(s) && other.matches(s));
            prop_assert_eq!(one.overlaps(&other), common.is_some(), "{:?}", common);
            prop_assert_eq!(one.overlaps(&other), other.overlaps(&one));
        }

        #[test]
        fn the_text_of_a_pattern_is_that_pattern(text in ".*") {
            let pattern = Pattern::parse(&text);
            prop_assert_eq!(Pattern::parse(pattern.as_str()), pattern);
        }
    }
}
