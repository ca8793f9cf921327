//! Precedence: what decides about an actor at a rule, if several things could.
//!
//! 1. An allow.
//! 2. A block.
//! 3. The actor's own limit.
//! 4. The rule.
//!
//! If several allows apply, or several blocks, the one with the longer prefix wins. A value that is not a network is as
//! long as it can be. Among equals, one for the named rule wins over one for all rules (`*`), and otherwise the one that
//! ends last.

use divvy_core::clock::Timestamp;
use divvy_core::rules::OverrideKind;

/// The prefix of an override for a single value or address.
pub const WHOLE: u8 = u8::MAX;

/// An override that applies to a request at a rule, as far as precedence depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rank {
    pub kind: OverrideKind,
    /// Number of bits that its network fixes; [`WHOLE`] for a single value or address.
    pub prefix: u8,
    /// Whether it is for the named rule, and not for all rules.
    pub is_for_rule: bool,
    /// Its end. `None` if it has none.
    pub ends: Option<Timestamp>,
}

/// Returns whether an override takes precedence over another one, in the order of the module's first lines.
pub fn comes_before(one: &Rank, other: &Rank) -> bool {
    order(one) > order(other)
}

/// Returns what is higher for an override that takes precedence.
fn order(rank: &Rank) -> (OverrideKind, u8, bool, Timestamp) {
    (rank.kind, rank.prefix, rank.is_for_rule, rank.ends.unwrap_or(Timestamp::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(kind: OverrideKind, prefix: u8, is_for_rule: bool) -> Rank {
        Rank { kind, prefix, is_for_rule, ends: None }
    }

    /// Returns the override that decides, as requests find it: one after the other.
    fn decides(overrides: &[Rank]) -> Option<Rank> {
        overrides.iter().copied().reduce(|first, next| if comes_before(&next, &first) { next } else { first })
    }

    /// Tries all combinations of overrides that can apply at one rule, of each kind: for the rule and for all rules, for an
    /// address and for networks. The first that is there decides, in the documented order, however they are found.
    #[test]
    fn first_in_the_documented_order_decides() {
        use OverrideKind::{Allow, Block};
        let documented = [
            rank(Allow, WHOLE, true),
            rank(Allow, WHOLE, false),
            rank(Allow, 56, true),
            rank(Allow, 56, false),
            rank(Allow, 32, false),
            rank(Block, WHOLE, true),
            rank(Block, WHOLE, false),
            rank(Block, 56, true),
            rank(Block, 56, false),
            rank(Block, 32, false),
        ];
        for combination in 0..1_u32 << documented.len() {
            let is_there = |(bit, rank): (usize, &Rank)| (combination & (1 << bit) != 0).then_some(*rank);
            let mut present: Vec<_> = documented.iter().enumerate().filter_map(is_there).collect();
            let expected = present.first().copied();
            assert_eq!(decides(&present), expected, "{combination:b}");
            present.reverse();
            assert_eq!(decides(&present), expected, "{combination:b}, backwards");
        }
    }

    #[test]
    fn among_equals_the_one_that_ends_last_decides() {
        let at = |seconds| Timestamp::from_secs(seconds).unwrap();
        let ending = |ends| Rank { ends, ..rank(OverrideKind::Block, WHOLE, false) };
        assert_eq!(decides(&[ending(Some(at(5))), ending(Some(at(9)))]), Some(ending(Some(at(9)))));
        assert_eq!(decides(&[ending(None), ending(Some(at(9)))]), Some(ending(None)));
        assert!(!comes_before(&ending(None), &ending(None)));
    }
}
