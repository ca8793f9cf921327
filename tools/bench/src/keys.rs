//! The keys of requests: which one is next, and how it is written.

use std::str::FromStr;

use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use rand_distr::Zipf;

/// Decimal digits of a key, as in redis-benchmark's `__rand_int__`: every request has the same length.
pub const KEY_DIGITS: usize = 12;

/// Returns the last digits of a key.
pub fn decimal(key: u64) -> [u8; KEY_DIGITS] {
    let mut digits = [b'0'; KEY_DIGITS];
    let mut formatted = itoa::Buffer::new();
    let significant = formatted.format(key).bytes().rev();
    for (place, digit) in digits.iter_mut().rev().zip(significant) {
        *place = digit;
    }
    digits
}

/// Largest power of two that [`KEY_DIGITS`] decimal digits can hold.
pub const MAX_KEYS: u64 = 1 << 39;

/// Odd, and near the golden section of [`MAX_KEYS`], so its multiples modulo that number are spread evenly.
const SPREAD: u64 = 339_767_778_497;

/// Returns the actor for `key`. Different keys below [`MAX_KEYS`] have different actors, spread over that whole range.
///
/// Consecutive numbers would compress well in memory and on disk, unlike real addresses or account numbers.
pub fn actor(key: u64) -> u64 {
    key.wrapping_mul(SPREAD) % MAX_KEYS
}

/// An endless sequence of keys in `0..keys` for one thread of the generator.
#[derive(Debug)]
pub struct KeySequence {
    keys: u64,
    random: Xoshiro256PlusPlus,
    order: KeyOrder,
}

#[derive(Debug)]
enum KeyOrder {
    Uniform,
    Zipf(Zipf<f64>),
    /// Threads take turns. Together they request each key once before they request any key twice.
    Sequential {
        next: u64,
        step: u64,
    },
}

impl KeySequence {
    /// Creates the sequence of thread number `thread` of `threads`. The same arguments give the same keys. A sequential
    /// one begins with `first`.
    ///
    /// # Errors
    /// There are no keys, or the exponent of Zipf's law is negative.
    pub fn new(
        distribution: Distribution,
        keys: u64,
        first: u64,
        seed: u64,
        (thread, threads): (u64, u64),
    ) -> Result<Self, rand_distr::ZipfError> {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
        for _ in 0..thread {
            random = random.fork();
        }
        let order = match distribution {
            Distribution::Uniform => KeyOrder::Uniform,
            Distribution::Zipf { exponent } => KeyOrder::Zipf(Zipf::new(keys as f64, exponent)?),
            Distribution::Sequential => KeyOrder::Sequential { next: first.wrapping_add(thread), step: threads },
        };
        Ok(Self { keys, random, order })
    }

    pub fn next_key(&mut self) -> u64 {
        let Self { keys, random, order } = self;
        match order {
            KeyOrder::Uniform => random.random_range(0..*keys),
            // Ranks start at 1, and are floating-point numbers: the last one may be rounded past the end.
            KeyOrder::Zipf(ranks) => (random.sample(*ranks) as u64).clamp(1, *keys) - 1,
            KeyOrder::Sequential { next, step } => {
                let key = *next % *keys;
                *next = next.wrapping_add(*step);
                key
            }
        }
    }
}

/// The distribution of keys over requests.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Distribution {
    Uniform,
    /// The k-th key is requested in proportion to `1 / k^exponent`.
    Zipf {
        exponent: f64,
    },
    Sequential,
}

impl FromStr for Distribution {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "uniform" => Ok(Self::Uniform),
            "sequential" => Ok(Self::Sequential),
            "zipf" => Ok(Self::Zipf { exponent: 0.99 }),
            _ => match text.strip_prefix("zipf:").map(str::parse) {
                Some(Ok(exponent)) if (0.0..=10.0).contains(&exponent) => Ok(Self::Zipf { exponent }),
                Some(_) => Err("the exponent must be a number from 0 to 10".to_owned()),
                None => Err("expected uniform, zipf, zipf:EXPONENT or sequential".to_owned()),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_a_fixed_width() {
        assert_eq!(&decimal(0), b"000000000000");
        assert_eq!(&decimal(999_999_999_999), b"999999999999");
        assert_eq!(&decimal(1_234_567_890_123), b"234567890123");
    }

    fn sample(distribution: Distribution, keys: u64, seed: u64, thread: u64, count: usize) -> Vec<u64> {
        let mut sequence = KeySequence::new(distribution, keys, 0, seed, (thread, 2)).unwrap();
        std::iter::repeat_with(|| sequence.next_key()).take(count).collect()
    }

    #[test]
    fn seed_determines_the_keys_and_threads_differ() {
        for distribution in [Distribution::Uniform, Distribution::Zipf { exponent: 0.99 }] {
            let first = sample(distribution, 10_000, 1, 0, 100);
            assert_eq!(first, sample(distribution, 10_000, 1, 0, 100));
            assert_ne!(first, sample(distribution, 10_000, 2, 0, 100));
            assert_ne!(first, sample(distribution, 10_000, 1, 1, 100));
        }
    }

    #[test]
    fn uniform_keys_are_requested_about_equally_often() {
        let mut counts = [0_u32; 10];
        for key in sample(Distribution::Uniform, 10, 3, 0, 100_000) {
            counts[usize::try_from(key).unwrap()] += 1;
        }
        // The standard deviation of each count is 95.
        assert!(counts.iter().all(|count| (9_500..=10_500).contains(count)), "{counts:?}");
    }

    #[test]
    fn zipf_favors_low_keys_by_its_law() {
        let keys = sample(Distribution::Zipf { exponent: 1.0 }, 1_000, 3, 0, 100_000);
        let asked = |wanted| keys.iter().filter(|key| **key == wanted).count() as f64;
        let harmonic: f64 = (1..=1_000).map(|rank| 1.0 / f64::from(rank)).sum();
        assert!((asked(0) * harmonic / 100_000.0 - 1.0).abs() < 0.05);
        assert!((asked(0) / asked(9) - 10.0).abs() < 1.5);
        assert!(keys.iter().all(|key| *key < 1_000));
    }

    #[test]
    fn sequential_threads_share_the_keys() {
        let mut keys = sample(Distribution::Sequential, 10, 1, 0, 5);
        keys.extend(sample(Distribution::Sequential, 10, 1, 1, 5));
        keys.sort_unstable();
        assert_eq!(keys, (0..10).collect::<Vec<_>>());
        assert_eq!(sample(Distribution::Sequential, 3, 1, 0, 3), [0, 2, 1]);
        let mut later = KeySequence::new(Distribution::Sequential, 10, 4, 1, (1, 2)).unwrap();
        assert_eq!([later.next_key(), later.next_key(), later.next_key(), later.next_key()], [5, 7, 9, 1]);
    }

    #[test]
    fn actors_differ_and_are_spread() {
        let mut actors: Vec<u64> = (0..100_000).map(actor).collect();
        actors.sort_unstable();
        let gaps = actors.windows(2).map(|pair| pair[1] - pair[0]);
        let even = MAX_KEYS / 100_000;
        assert!(gaps.into_iter().all(|gap| (even / 4..even * 4).contains(&gap)));
    }

    #[test]
    fn one_key_is_enough() {
        for distribution in [Distribution::Uniform, Distribution::Zipf { exponent: 0.99 }, Distribution::Sequential] {
            assert_eq!(sample(distribution, 1, 1, 1, 3), [0, 0, 0]);
        }
    }
}
