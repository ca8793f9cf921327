//! How the clock follows another clock, which people and programs may set. Pure arithmetic: all times are parameters.

use super::timestamp::{NANOS_PER_SECOND, Timestamp};

/// Maximum step back of the wall clock that divvy's clock waits out. After a larger step, it jumps. Buckets use the
/// same bound: if a request's time is further behind their own, they assume that the clock was set back.
pub const MAX_STANDSTILL_NS: u64 = 10 * NANOS_PER_SECOND;
/// Difference that is not corrected, because reading two clocks one after the other takes time.
const TOLERANCE_NS: u64 = NANOS_PER_SECOND / 1_000;

/// The time of the wall clock at a moment of the monotonic clock. The current time is derived from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Anchor {
    pub wall: Timestamp,
    /// The monotonic clock at that moment, in nanoseconds.
    pub monotonic: u64,
    /// The earliest time that may be returned. The clock stands still until it is reached.
    pub floor: Timestamp,
}

impl Anchor {
    pub fn new(wall: Timestamp, monotonic: u64) -> Self {
        Self { wall, monotonic, floor: Timestamp::EPOCH }
    }

    /// Returns the time at a moment of the monotonic clock.
    pub fn at(&self, monotonic: u64) -> Timestamp {
        self.at_without_floor(monotonic).max(self.floor)
    }

    /// Returns the anchor to use from now on, given the readings of both clocks; `None` if this one is still accurate.
    pub fn corrected(&self, wall: Timestamp, monotonic: u64) -> Option<Self> {
        let expected = self.at_without_floor(monotonic);
        if wall.distance(expected) <= TOLERANCE_NS {
            return None;
        }
        let now = self.at(monotonic);
        let is_waited_for = now.since(wall) <= MAX_STANDSTILL_NS;
        Some(Self { wall, monotonic, floor: if is_waited_for { now } else { Timestamp::EPOCH } })
    }

    fn at_without_floor(&self, monotonic: u64) -> Timestamp {
        self.wall.plus(monotonic.saturating_sub(self.monotonic))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const START: u64 = 1_000_000 * NANOS_PER_SECOND;

    fn anchor() -> Anchor {
        Anchor::new(Timestamp::from_nanos(START), 500)
    }

    /// Returns the anchor after `elapsed` on the monotonic clock, if the wall clock shows `wall`.
    fn after(anchor: Anchor, elapsed: u64, wall: u64) -> Anchor {
        let monotonic = anchor.monotonic + elapsed;
        anchor.corrected(Timestamp::from_nanos(wall), monotonic).unwrap_or(anchor)
    }

    proptest! {
        #[test]
        fn unset_clock_needs_no_correction(
            elapsed in 0..u64::MAX / 4, noise in 0..=2 * TOLERANCE_NS,
        ) {
            let wall = START + elapsed + noise - TOLERANCE_NS.min(elapsed);
            let wall = wall.min(START + elapsed + TOLERANCE_NS);
            prop_assert_eq!(anchor().corrected(Timestamp::from_nanos(wall), 500 + elapsed), None);
            prop_assert_eq!(anchor().at(500 + elapsed).as_nanos(), START + elapsed);
        }

        #[test]
        fn step_forward_is_followed_at_once(elapsed in 0..u64::MAX / 4, step in TOLERANCE_NS + 1..u64::MAX / 4, later in 0..u64::MAX / 4) {
            // A suspend has the same effect: the monotonic clock stands still during it.
            let wall = START + elapsed + step;
            let anchor = after(anchor(), elapsed, wall);
            prop_assert_eq!(anchor.at(500 + elapsed).as_nanos(), wall);
            prop_assert_eq!(anchor.at(500 + elapsed + later).as_nanos(), wall + later);
        }

        #[test]
        fn small_step_back_causes_a_standstill(
            elapsed in 0..u64::MAX / 4, step in TOLERANCE_NS + 1..=MAX_STANDSTILL_NS, later in 0..2 * MAX_STANDSTILL_NS,
        ) {
            let now = START + elapsed;
            let anchor = after(anchor(), elapsed, now - step);
            prop_assert_eq!(anchor.at(500 + elapsed).as_nanos(), now, "it does not run backwards");
            let expected = if later < step { now } else { now - step + later };
            prop_assert_eq!(anchor.at(500 + elapsed + later).as_nanos(), expected);
        }

        #[test]
        fn large_step_back_is_followed_at_once(elapsed in 0..u64::MAX / 4, step in MAX_STANDSTILL_NS + 1..START) {
            let wall = START + elapsed - step;
            let anchor = after(anchor(), elapsed, wall);
            prop_assert_eq!(anchor.at(500 + elapsed).as_nanos(), wall);
        }

        /// The properties hold for any changes of the wall clock, measured every second.
        #[test]
        fn clock_is_at_most_ten_seconds_ahead_never_behind_and_only_goes_back_by_jumps(
            steps in prop::collection::vec((0..2 * NANOS_PER_SECOND, -15..15i64, 0..4u8), 1..60),
        ) {
            let (mut anchor, mut monotonic, mut wall) = (anchor(), 500, START);
            let mut last = anchor.at(monotonic);
            for (elapsed, seconds, kind) in steps {
                monotonic += elapsed;
                // Most of the time, the clock is not set.
                let set = if kind == 0 { seconds * NANOS_PER_SECOND as i64 } else { 0 };
                wall = (wall + elapsed).saturating_add_signed(set);
                let wall = Timestamp::from_nanos(wall);
                let before = anchor.at(monotonic);
                anchor = anchor.corrected(wall, monotonic).unwrap_or(anchor);
                let now = anchor.at(monotonic);
                prop_assert!(now >= wall);
                prop_assert!(now.since(wall) <= MAX_STANDSTILL_NS);
                prop_assert!(before >= last, "between two measurements it does not run backwards");
                if now < before {
                    prop_assert_eq!(now, wall, "a jump");
                    prop_assert!(before.since(wall) > MAX_STANDSTILL_NS);
                }
                last = now;
            }
        }

        #[test]
        fn times_never_overflow(wall in any::<u64>(), set in any::<u64>(), monotonic in any::<u64>(), later in any::<u64>()) {
            let anchor = Anchor::new(Timestamp::from_nanos(wall), monotonic);
            let corrected = anchor.corrected(Timestamp::from_nanos(set), later).unwrap_or(anchor);
            prop_assert!(corrected.at(u64::MAX) >= corrected.at(later));
        }
    }
}
