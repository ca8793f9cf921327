//! Pauses between two streams.

use std::time::Duration;

/// The first pause.
const FIRST: Duration = Duration::from_secs(1);
/// The growth from pause to pause.
const FACTOR: f64 = 1.6;
/// The longest pause.
const MAX: Duration = Duration::from_secs(120);
/// A pause may be longer or shorter by this share. So clients that lost their streams at once come back one by one.
const JITTER: f64 = 0.2;
/// A stream that lasted this long worked. The next pause is the first one again.
const STABLE: Duration = Duration::from_secs(60);

/// The length of the next pause.
#[derive(Debug)]
pub struct Backoff(Duration);

impl Default for Backoff {
    fn default() -> Self {
        Self(FIRST)
    }
}

impl Backoff {
    /// Returns the pause after a stream that lasted this long. `random` may be any number.
    pub fn pause(&mut self, lasted: Duration, random: u32) -> Duration {
        let pause = if lasted < STABLE { self.0 } else { FIRST };
        self.0 = pause.mul_f64(FACTOR).min(MAX);
        let jitter = 2.0 * f64::from(random) / f64::from(u32::MAX) - 1.0;
        pause.mul_f64(1.0 + JITTER * jitter).min(MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIDDLE: u32 = u32::MAX / 2;

    fn pauses(count: usize, random: u32) -> Vec<u64> {
        let mut backoff = Backoff::default();
        (0..count).map(|_| backoff.pause(Duration::ZERO, random).as_millis() as u64).collect()
    }

    #[test]
    fn pauses_grow_to_a_bound() {
        let grown = pauses(14, MIDDLE);
        assert_eq!(grown[..5], [1_000, 1_600, 2_560, 4_096, 6_553]);
        assert_eq!(grown[11..], [119_999; 3]);
    }

    #[test]
    fn jitter_is_a_fifth_and_never_exceeds_the_bound() {
        assert_eq!(pauses(14, 0)[..2], [800, 1_280]);
        assert_eq!(pauses(14, 0)[13], 96_000);
        assert_eq!(pauses(14, u32::MAX)[..2], [1_200, 1_920]);
        assert_eq!(pauses(14, u32::MAX)[13], 120_000);
    }

    #[test]
    fn stream_of_a_minute_resets_the_pause() {
        let mut backoff = Backoff::default();
        for (lasted, expected) in [(0, 1.0), (59, 1.6), (60, 1.0), (0, 1.6)] {
            let pause = backoff.pause(Duration::from_secs(lasted), MIDDLE).as_secs_f64();
            assert!((pause - expected).abs() < 0.001, "{lasted}: {pause}");
        }
    }
}
