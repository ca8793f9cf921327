//! How the one number is read that a window or a token bucket remembers.
//!
//! As a rule it is what is left, as Divvy and the textbooks have it. When the limit changes around it, that would change its
//! meaning; what was used has the same one under every limit. Sliding windows, logs and leaky buckets remember what
//! was used anyway. Nothing here knows a limit or a time.

use std::num::NonZeroU64;

/// What a state's number counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Tally {
    /// What is left of so many credits. Below 0, as in two's complement, when more was used than that: the limit was another
    /// one then.
    LeftOf(NonZeroU64),
    /// What was used.
    Used,
}

impl Tally {
    /// How much was used, as `count` says.
    #[inline]
    pub(super) fn used(self, count: u64) -> u64 {
        match self {
            Self::LeftOf(credits) => credits.get().wrapping_sub(count),
            Self::Used => count,
        }
    }

    /// What to remember when so much was used.
    #[inline]
    pub(super) fn count(self, used: u64) -> u64 {
        match self {
            Self::LeftOf(credits) => credits.get().wrapping_sub(used),
            Self::Used => used,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_left_is_below_zero_when_more_was_used() {
        let of_ten = Tally::LeftOf(NonZeroU64::new(10).unwrap());
        assert_eq!([0, 3, 10, 12].map(|used| of_ten.count(used) as i64), [10, 7, 0, -2]);
    }

    proptest! {
        #[test]
        fn a_count_reads_back(credits in 1..=u64::MAX, used: u64) {
            for tally in [Tally::Used, Tally::LeftOf(NonZeroU64::new(credits).unwrap())] {
                prop_assert_eq!(tally.used(tally.count(used)), used);
            }
        }
    }
}
