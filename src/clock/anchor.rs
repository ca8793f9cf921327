//! How a clock follows another one that people and programs set: pure arithmetic, with every time a parameter.

use super::timestamp::{NANOS_PER_SECOND, Timestamp};

/// By how much the wall clock may be set back and be waited for. Beyond it, the clock jumps; buckets take a time that is
/// so much behind theirs for a clock that was set back, too.
pub const MAX_STANDSTILL_NS: u64 = 10 * NANOS_PER_SECOND;
/// A difference that is not worth a correction: reading two clocks one after the other takes some time.
const TOLERANCE_NS: u64 = NANOS_PER_SECOND / 1_000;

/// What the wall clock said at a moment of the monotonic one, from which the present time follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Anchor {
    pub wall: Timestamp,
    /// The monotonic clock then (ns).
    pub monotonic: u64,
    /// No time before it is told: the clock stands still until this one has passed.
    pub floor: Timestamp,
}

impl Anchor {
    pub fn new(wall: Timestamp, monotonic: u64) -> Self {
        Self { wall, monotonic, floor: Timestamp::EPOCH }
    }

    /// The time when the monotonic clock says so.
    pub fn at(&self, monotonic: u64) -> Timestamp {
        self.unheld(monotonic).max(self.floor)
    }

    /// The anchor to go by from now on, when both clocks say so; `None` when this one is still good.
    pub fn corrected(&self, wall: Timestamp, monotonic: u64) -> Option<Self> {
        let expected = self.unheld(monotonic);
        if wall.since(expected).max(expected.since(wall)) <= TOLERANCE_NS {
            return None;
        }
        let now = self.at(monotonic);
        let is_waited_for = now.since(wall) <= MAX_STANDSTILL_NS;
        Some(Self { wall, monotonic, floor: if is_waited_for { now } else { Timestamp::EPOCH } })
    }

    fn unheld(&self, monotonic: u64) -> Timestamp {
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

    /// The anchor after `elapsed` on the monotonic clock, when the wall clock says `wall`.
    fn after(anchor: Anchor, elapsed: u64, wall: u64) -> Anchor {
        let monotonic = anchor.monotonic + elapsed;
        anchor.corrected(Timestamp::from_nanos(wall), monotonic).unwrap_or(anchor)
    }

    proptest! {
        #[test]
        fn a_clock_that_is_never_set_needs_no_correction(
            elapsed in 0..u64::MAX / 4, noise in 0..=2 * TOLERANCE_NS,
        ) {
            let wall = START + elapsed + noise - TOLERANCE_NS.min(elapsed);
            let wall = wall.min(START + elapsed + TOLERANCE_NS);
            prop_assert_eq!(anchor().corrected(Timestamp::from_nanos(wall), 500 + elapsed), None);
            prop_assert_eq!(anchor().at(500 + elapsed).as_nanos(), START + elapsed);
        }

        #[test]
        fn forward_is_followed_at_once(elapsed in 0..u64::MAX / 4, step in TOLERANCE_NS + 1..u64::MAX / 4, later in 0..u64::MAX / 4) {
            // Also a suspend: the monotonic clock stands still meanwhile.
            let wall = START + elapsed + step;
            let anchor = after(anchor(), elapsed, wall);
            prop_assert_eq!(anchor.at(500 + elapsed).as_nanos(), wall);
            prop_assert_eq!(anchor.at(500 + elapsed + later).as_nanos(), wall + later);
        }

        #[test]
        fn a_small_step_back_is_waited_for(
            elapsed in 0..u64::MAX / 4, step in TOLERANCE_NS + 1..=MAX_STANDSTILL_NS, later in 0..2 * MAX_STANDSTILL_NS,
        ) {
            let now = START + elapsed;
            let anchor = after(anchor(), elapsed, now - step);
            prop_assert_eq!(anchor.at(500 + elapsed).as_nanos(), now, "it does not run backwards");
            let expected = if later < step { now } else { now - step + later };
            prop_assert_eq!(anchor.at(500 + elapsed + later).as_nanos(), expected);
        }

        #[test]
        fn a_large_step_back_is_followed_at_once(elapsed in 0..u64::MAX / 4, step in MAX_STANDSTILL_NS + 1..START) {
            let wall = START + elapsed - step;
            let anchor = after(anchor(), elapsed, wall);
            prop_assert_eq!(anchor.at(500 + elapsed).as_nanos(), wall);
        }

        /// Whatever happens to the wall clock, measured each second.
        #[test]
        fn it_is_never_behind_the_wall_clock_nor_more_than_ten_seconds_ahead_and_goes_back_by_jumps_only(
            steps in prop::collection::vec((0..2 * NANOS_PER_SECOND, -15..15i64, 0..4u8), 1..60),
        ) {
            let (mut anchor, mut monotonic, mut wall) = (anchor(), 500, START);
            let mut told = anchor.at(monotonic);
            for (elapsed, seconds, kind) in steps {
                monotonic += elapsed;
                // Most of the time the clock is not set.
                let set = if kind == 0 { seconds * NANOS_PER_SECOND as i64 } else { 0 };
                wall = (wall + elapsed).saturating_add_signed(set);
                let wall = Timestamp::from_nanos(wall);
                let before = anchor.at(monotonic);
                anchor = anchor.corrected(wall, monotonic).unwrap_or(anchor);
                let now = anchor.at(monotonic);
                prop_assert!(now >= wall);
                prop_assert!(now.since(wall) <= MAX_STANDSTILL_NS);
                prop_assert!(before >= told, "between two measurements it does not run backwards");
                if now < before {
                    prop_assert_eq!(now, wall, "a jump");
                    prop_assert!(before.since(wall) > MAX_STANDSTILL_NS);
                }
                told = now;
            }
        }

        #[test]
        fn no_time_overflows(wall in any::<u64>(), set in any::<u64>(), monotonic in any::<u64>(), later in any::<u64>()) {
            let anchor = Anchor::new(Timestamp::from_nanos(wall), monotonic);
            let corrected = anchor.corrected(Timestamp::from_nanos(set), later).unwrap_or(anchor);
            prop_assert!(corrected.at(u64::MAX) >= corrected.at(later));
        }
    }
}
