//! Random numbers for sampling and admission: unpredictable for clients, and cheap.

use std::hash::{BuildHasher, RandomState};

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
