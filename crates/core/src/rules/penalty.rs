//! Penalties: `blockAfter` blocks an actor that its rule keeps denying. Each further block is longer, until the actor has
//! behaved for long enough.

use std::fmt;
use std::hash::Hasher;

use siphasher::sip::SipHasher13;

use crate::clock::{NANOS_PER_SECOND, Timestamp};

/// The largest `blockAfter`. A store keeps the time of each denial.
pub const MAX_BLOCK_AFTER: u64 = crate::algorithm::MAX_LOG_CREDITS;
/// The largest `blockFactor`.
pub const MAX_BLOCK_FACTOR: u64 = 100;
/// Seconds of a day: the default of `blockMax` and `blockForget`.
const DAY: u64 = 24 * 60 * 60;

/// The settings of a penalty, as the operator wrote them; `None` if a setting was not given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Penalty {
    /// `blockAfter`: the denials within the window that lead to a block. From 1 to [`MAX_BLOCK_AFTER`].
    pub after: u64,
    /// `blockWindow` in seconds, from 1 to [`MAX_RESET_SECONDS`](super::MAX_RESET_SECONDS); if not given, 60.
    pub window: Option<u64>,
    /// `blockSeconds`: the length of the first block. From 1 to [`MAX_RESET_SECONDS`](super::MAX_RESET_SECONDS).
    pub seconds: u64,
    /// `blockFactor`: each block is this many times as long as the one before. From 1 to [`MAX_BLOCK_FACTOR`]; if not
    /// given, 2.
    pub factor: Option<u64>,
    /// `blockMax`: the longest block in seconds. From `blockSeconds` to [`MAX_RESET_SECONDS`](super::MAX_RESET_SECONDS); if not given, a day, or
    /// `blockSeconds` if that is longer.
    pub max: Option<u64>,
    /// `blockForget`: seconds after the end of a block until the actor's blocks are forgotten. Up to
    /// [`MAX_RESET_SECONDS`](super::MAX_RESET_SECONDS); if not given, a day.
    pub forget: Option<u64>,
}

/// Whether blocks differ in length by actor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Jitter {
    /// A block is up to a tenth shorter. The part depends on the actor and on the number of the block, so actors that were
    /// blocked together do not return together.
    #[default]
    ByActor,
    /// Every block has its full length, for tests.
    Off,
}

impl fmt::Display for Penalty {
    /// Describes it for people: `blocks for 900 s after 5 denials in 60 s`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "blocks for {} s after {} denials in {} s", self.seconds, self.after, self.window_seconds())
    }
}

impl Penalty {
    /// Returns the length of the window for denials (seconds).
    pub fn window_seconds(&self) -> u64 {
        self.window.unwrap_or(60)
    }

    /// Returns the growth: each block is this many times as long as the one before.
    pub fn growth(&self) -> u64 {
        self.factor.unwrap_or(2)
    }

    /// Returns the length of the longest block (seconds).
    pub fn max_seconds(&self) -> u64 {
        self.max.unwrap_or(DAY.max(self.seconds))
    }

    /// Returns the time after a block until the actor's blocks are forgotten (seconds).
    pub fn forget_seconds(&self) -> u64 {
        self.forget.unwrap_or(DAY)
    }

    /// Returns the full length of an actor's block with this number, from 1 (seconds): `seconds * growth ^ (number - 1)`,
    /// at most [`Penalty::max_seconds`].
    fn length_seconds(&self, number: u32) -> u64 {
        let growth = self.growth().saturating_pow(number.saturating_sub(1));
        self.seconds.saturating_mul(growth).min(self.max_seconds())
    }

    /// Returns the end of the actor's block with this number, from 1, that begins at `begin`.
    pub fn end_of_block(&self, actor: &str, number: u32, begin: Timestamp, jitter: Jitter) -> Timestamp {
        let length = self.length_seconds(number).saturating_mul(NANOS_PER_SECOND);
        let shorter = match jitter {
            Jitter::ByActor => length / 10_000 * (hash(actor, number) % 1_000),
            Jitter::Off => 0,
        };
        begin.plus(length - shorter)
    }
}

/// Returns the same number for an actor's block on every server.
fn hash(actor: &str, number: u32) -> u64 {
    let mut hasher = SipHasher13::new();
    hasher.write(actor.as_bytes());
    hasher.write_u32(number);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::MAX_RESET_SECONDS;
    use proptest::prelude::*;

    const MINUTE: u64 = 60;

    fn penalty(seconds: u64, factor: u64, max: u64) -> Penalty {
        Penalty { after: 5, window: None, seconds, factor: Some(factor), max: Some(max), forget: None }
    }

    #[test]
    fn blocks_grow_by_the_factor_up_to_the_maximum() {
        let lengths =
            |penalty: Penalty| [1, 2, 3, 4, 5, u32::MAX].map(|number| penalty.length_seconds(number) / MINUTE);
        assert_eq!(lengths(penalty(15 * MINUTE, 2, 100 * MINUTE)), [15, 30, 60, 100, 100, 100]);
        assert_eq!(lengths(penalty(15 * MINUTE, 1, 100 * MINUTE)), [15; 6]);
        let defaults = Penalty { factor: None, max: None, ..penalty(DAY * 2, 2, 0) };
        assert_eq!(defaults.length_seconds(3), DAY * 2, "the longest block is never shorter than the first");
    }

    proptest! {
        #[test]
        fn jitter_shortens_a_block_by_at_most_a_tenth(
            seconds in 1..MAX_RESET_SECONDS, factor in 1..=MAX_BLOCK_FACTOR, number in 1..40u32, actor in ".{0,20}",
        ) {
            let penalty = penalty(seconds, factor, MAX_RESET_SECONDS);
            let begin = Timestamp::from_secs(1_800_000_000).unwrap();
            let full = penalty.end_of_block(&actor, number, begin, Jitter::Off);
            let length = full.since(begin);
            prop_assert_eq!(length, penalty.length_seconds(number) * NANOS_PER_SECOND);
            let shorter = penalty.end_of_block(&actor, number, begin, Jitter::ByActor);
            prop_assert!(shorter <= full && shorter.since(begin) >= length - length / 10);
            prop_assert!(penalty.length_seconds(number + 1) >= penalty.length_seconds(number));
            prop_assert_eq!(shorter, penalty.end_of_block(&actor, number, begin, Jitter::ByActor));
        }
    }

    #[test]
    fn actors_that_are_blocked_together_return_one_after_the_other() {
        let begin = Timestamp::from_secs(1_800_000_000).unwrap();
        let ends = |actor: u32| penalty(900, 2, DAY).end_of_block(&actor.to_string(), 1, begin, Jitter::ByActor);
        let different: std::collections::HashSet<_> = (0..100).map(ends).collect();
        assert!(different.len() > 80, "{} different ends", different.len());
    }
}
