//! The meaning of the number that a window or a token bucket remembers.
//!
//! Usually it is the credits left, as in Divvy and in textbooks. If the limit changes, the meaning of that number
//! changes with it. A number of credits used means the same under every limit. Sliding windows, logs and leaky buckets
//! always remember the credits used.

use std::num::NonZeroU64;

/// The quantity that a state's number stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CountBasis {
    /// Credits left of this capacity. Negative, in two's complement, if more was used, because the limit was higher
    /// then.
    LeftOf(NonZeroU64),
    /// Credits used.
    Used,
}

impl CountBasis {
    /// Returns the credits used, for a state with this `count`.
    #[inline]
    pub(super) fn used(self, count: u64) -> u64 {
        match self {
            Self::LeftOf(credits) => credits.get().wrapping_sub(count),
            Self::Used => count,
        }
    }

    /// Returns the number to remember if `used` credits were used.
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
    fn remainder_is_negative_after_overuse() {
        let of_ten = CountBasis::LeftOf(NonZeroU64::new(10).unwrap());
        assert_eq!([0, 3, 10, 12].map(|used| of_ten.count(used) as i64), [10, 7, 0, -2]);
    }

    proptest! {
        #[test]
        fn count_reads_back(credits in 1..=u64::MAX, used: u64) {
            for basis in [CountBasis::Used, CountBasis::LeftOf(NonZeroU64::new(credits).unwrap())] {
                prop_assert_eq!(basis.used(basis.count(used)), used);
            }
        }
    }
}
