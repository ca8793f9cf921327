//! Chooses the events that are counted.
//!
//! A thread counts its first [`COUNTED_EACH`] events of a second one by one. Of the events after them, it counts one in
//! [`ONE_IN`], at random, and each stands for that many. So counts are exact on a server with little traffic, and a hit
//! on a busy one costs next to nothing. The expected value of a count is its true value. If `n` events of an actor were
//! sampled with this probability, the standard deviation of their number is the square root of `n * (ONE_IN - 1)`.

use std::hash::{BuildHasher, RandomState};

use divvy_core::clock::{NANOS_PER_SECOND, Timestamp};

/// Number of events in a second that a thread counts one by one.
pub const COUNTED_EACH: u32 = 500;
/// Number of later events for each that is counted.
pub const ONE_IN: u64 = 16;

/// The sampling of one thread.
#[derive(Debug, Clone, Copy)]
pub struct Sampler {
    second: u64,
    /// Events of this second that are still counted one by one.
    counted_each: u32,
    /// Events to skip before the next one that is counted.
    skip: usize,
    random: Random,
}

/// An event that is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// Its position among the events.
    pub position: usize,
    /// The number of events that it stands for.
    pub weight: u64,
}

impl Sampler {
    /// Creates a sampler. Its choices are unpredictable.
    pub fn new() -> Self {
        Self::of(Random::new())
    }

    /// Creates a sampler whose choices depend only on `random`.
    pub(super) fn of(mut random: Random) -> Self {
        Self { second: 0, counted_each: COUNTED_EACH, skip: skip(&mut random), random }
    }

    /// Begins the events of a batch.
    #[inline]
    pub fn begin(&mut self, now: Timestamp) {
        let second = now.as_nanos() / NANOS_PER_SECOND;
        if second != self.second {
            self.second = second;
            self.counted_each = COUNTED_EACH;
        }
    }

    /// Returns the next event to count, out of the events at the positions from `first` up to but not including `end`.
    #[inline]
    pub fn next(&mut self, first: usize, end: usize) -> Option<Sample> {
        let rest = end.saturating_sub(first);
        if rest > 0 && self.counted_each > 0 {
            self.counted_each -= 1;
            return Some(Sample { position: first, weight: 1 });
        }
        if self.skip >= rest {
            self.skip -= rest;
            return None;
        }
        let position = first + self.skip;
        self.skip = skip(&mut self.random);
        Some(Sample { position, weight: ONE_IN })
    }

    /// Returns the thread's random numbers.
    pub(super) fn random(&mut self) -> &mut Random {
        &mut self.random
    }
}

impl Default for Sampler {
    fn default() -> Self {
        Self::new()
    }
}

/// Draws the number of events to skip, from a geometric distribution. Each group of four random bits stands for an event,
/// which is counted if all four are 0.
#[inline]
fn skip(random: &mut Random) -> usize {
    let mut skipped = 0;
    loop {
        let bits = random.next();
        let any = bits | (bits >> 1);
        let any = any | (any >> 2);
        let counted = !any & 0x1111_1111_1111_1111;
        if counted != 0 {
            return skipped + counted.trailing_zeros() as usize / 4;
        }
        skipped += 16;
    }
}

/// A generator of 64-bit numbers (SplitMix64; Steele et al., OOPSLA 2014).
#[derive(Debug, Clone, Copy)]
pub struct Random(u64);

impl Random {
    /// Creates a generator that starts at a random state.
    pub fn new() -> Self {
        Self(RandomState::new().hash_one(0_u8))
    }

    /// Creates a generator that starts at this state.
    #[cfg(test)]
    pub fn seeded(seed: u64) -> Self {
        Self(seed)
    }

    #[inline]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number from 0 to `whole - 1`, or 0.
    #[inline]
    pub fn below(&mut self, whole: usize) -> usize {
        self.scaled(whole as u64) as usize
    }

    /// Returns true with the probability `part / whole`.
    #[inline]
    pub fn is_within(&mut self, part: u64, whole: u64) -> bool {
        self.scaled(whole) < part
    }

    #[inline]
    fn scaled(&mut self, whole: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(whole)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every event is counted with the same probability, regardless of the batches that it arrives in.
    #[test]
    fn weights_of_sampled_events_add_up_to_their_number() {
        const SECONDS: u64 = 50;
        const EVENTS: usize = 100_000;
        for batch in [1, 7, 32, 1_000] {
            let mut sampler = Sampler::of(Random::seeded(batch as u64));
            let (mut sum, mut samples) = (0, 0);
            for second in 0..SECONDS {
                let mut left = EVENTS;
                while left > 0 {
                    let end = batch.min(left);
                    left -= end;
                    sampler.begin(Timestamp::from_nanos(second * NANOS_PER_SECOND));
                    let mut first = 0;
                    while let Some(sample) = sampler.next(first, end) {
                        first = sample.position + 1;
                        sum += sample.weight;
                        samples += 1;
                    }
                }
            }
            let sampled = SECONDS * (EVENTS as u64 - u64::from(COUNTED_EACH));
            let deviation = ((sampled * (ONE_IN - 1)) as f64).sqrt();
            let difference = sum as f64 - (SECONDS * EVENTS as u64) as f64;
            assert!(difference.abs() < 5.0 * deviation, "batches of {batch}: {difference} of {deviation}");
            assert!(samples < SECONDS * u64::from(COUNTED_EACH) + sampled / 15, "{samples} samples");
        }
    }

    #[test]
    fn first_events_of_each_second_are_counted_one_by_one() {
        let mut sampler = Sampler::new();
        for second in [7, 8, 3] {
            sampler.begin(Timestamp::from_nanos(second * NANOS_PER_SECOND + 5));
            for position in 0..COUNTED_EACH as usize {
                assert_eq!(sampler.next(position, usize::MAX), Some(Sample { position, weight: 1 }));
            }
            assert_eq!(sampler.next(0, 1_000).map_or(ONE_IN, |sample| sample.weight), ONE_IN);
        }
    }

    /// The distribution of the gaps is that of independent choices: the share of gaps of `k` is `(15/16)^k / 16`.
    #[test]
    fn gaps_are_geometric() {
        const DRAWS: u64 = 200_000;
        let mut random = Random::seeded(3);
        let mut gaps = [0_u64; 40];
        for _ in 0..DRAWS {
            if let Some(count) = gaps.get_mut(skip(&mut random)) {
                *count += 1;
            }
        }
        for (gap, count) in gaps.into_iter().enumerate() {
            let share = (15.0_f64 / 16.0).powi(gap as i32) / 16.0;
            let expected = share * DRAWS as f64;
            let deviation = (expected * (1.0 - share)).sqrt();
            assert!((count as f64 - expected).abs() < 5.0 * deviation, "{gap}: {count}, expected {expected}");
        }
    }
}
