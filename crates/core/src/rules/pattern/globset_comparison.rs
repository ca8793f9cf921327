//! Compares our matcher with the crate globset. Both give a pattern the same meaning if no `*` is next to another `*`
//! (`**` is special in globset) and every other special character is escaped.

use globset::{GlobBuilder, GlobMatcher};
use proptest::prelude::*;

use super::{GlobIndex, Pattern};

/// A small alphabet, so that values match often, with every character that is special in globset.
const PIECE: &str = "[ab/.é?\\[\\]{}!,\\\\ \n-]{1,3}";
const VALUE: &str = "[ab/.é?\\[\\]{}!,\\\\ \n-]{0,10}";

/// Generates literal pieces with `*` between them, and perhaps one at either end.
fn pieces() -> impl Strategy<Value = Vec<String>> {
    let middle = prop::collection::vec(PIECE, 1..4);
    (middle, any::<bool>(), any::<bool>()).prop_map(|(mut pieces, begins, ends)| {
        if begins {
            pieces.insert(0, String::new());
        }
        if ends {
            pieces.push(String::new());
        }
        pieces
    })
}

fn ours(pieces: &[String]) -> Pattern {
    Pattern::parse(&pieces.join("*"))
}

fn theirs(pieces: &[String]) -> GlobMatcher {
    let escaped: Vec<_> = pieces.iter().map(|piece| globset::escape(piece)).collect();
    // `*` matches `/`, and a backslash is an ordinary character, as in our patterns.
    let glob = GlobBuilder::new(&escaped.join("*")).literal_separator(false).backslash_escape(false).build();
    glob.expect("a glob whose special characters are escaped").compile_matcher()
}

/// Returns a value that the pattern matches, with `fill` in place of each `*`.
fn filled(pieces: &[String], fill: &str) -> String {
    pieces.join(fill)
}

proptest! {
    #[test]
    fn globset_matches_the_same_values(pieces in pieces(), value in VALUE, fill in VALUE) {
        let (ours, theirs) = (ours(&pieces), theirs(&pieces));
        for value in [value, filled(&pieces, &fill), filled(&pieces, "")] {
            prop_assert_eq!(ours.matches(&value), theirs.is_match(&value), "{} on {:?}", &ours, &value);
        }
        prop_assert!(theirs.is_match(filled(&pieces, &fill)), "the judge accepts generated matches");
    }

    #[test]
    fn globset_finds_the_same_globs_among_many(globs in prop::collection::vec(pieces(), 1..12), value in VALUE, fill in VALUE) {
        let value = if value.len() % 2 == 0 { filled(&globs[0], &fill) } else { value };
        let mut numbered = Vec::new();
        let mut expected = Vec::new();
        for (number, pieces) in (0..).zip(&globs) {
            // The index only holds globs. Literals are looked up elsewhere.
            if let Pattern::Glob(glob) = ours(pieces) {
                numbered.push((glob, number));
                if theirs(pieces).is_match(&value) {
                    expected.push(number);
                }
            }
        }
        let mut found = Vec::new();
        GlobIndex::new(numbered).unwrap().for_each_match(value.as_bytes(), &mut Vec::new(), |number| found.push(number));
        found.sort_unstable();
        prop_assert_eq!(found, expected, "{:?} on {:?}", globs, value);
    }
}
