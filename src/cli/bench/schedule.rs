//! When the requests of an open loop are due.

use super::NANOS_PER_SECOND;

/// The due times of one connection, in nanoseconds since the run began: all connections together are due at even
/// distances, in turn.
#[derive(Debug, Clone, Copy)]
pub struct Schedule {
    interval_ns: f64,
    turn: u64,
    turns: u64,
}

impl Schedule {
    /// For connection number `turn` of `turns`, which together send `rate` (> 0) requests a second.
    pub fn new(rate: f64, turn: u64, turns: u64) -> Self {
        Self { interval_ns: NANOS_PER_SECOND as f64 / rate, turn, turns }
    }

    /// When this connection's request number `index` is due.
    pub fn due_ns(&self, index: u64) -> u64 {
        // Exact to the nanosecond for the first hundred days.
        ((self.turn + index * self.turns) as f64 * self.interval_ns) as u64
    }

    /// How many of this connection's requests are due before `time_ns`.
    pub fn due_before(&self, time_ns: u64) -> u64 {
        let estimate = time_ns as f64 / self.interval_ns - self.turn as f64;
        let mut count = (estimate / self.turns as f64).max(0.0) as u64;
        // The division rounds: correct it by the due times themselves.
        while self.due_ns(count) < time_ns {
            count += 1;
        }
        while count > 0 && self.due_ns(count - 1) >= time_ns {
            count -= 1;
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn connections_take_turns_at_even_distances() {
        let due = |turn| {
            let schedule = Schedule::new(1_000.0, turn, 4);
            [schedule.due_ns(0), schedule.due_ns(1), schedule.due_ns(2)]
        };
        assert_eq!(due(0), [0, 4_000_000, 8_000_000]);
        assert_eq!(due(3), [3_000_000, 7_000_000, 11_000_000]);
    }

    #[test]
    fn a_second_holds_the_rate() {
        let total: u64 = (0..50).map(|turn| Schedule::new(12_345.0, turn, 50).due_before(NANOS_PER_SECOND)).sum();
        assert_eq!(total, 12_345);
    }

    proptest! {
        #[test]
        fn what_is_due_before_a_time_is_what_has_an_earlier_due_time(
            rate in 0.01..1e7_f64, turns in 1..500_u64, turn in 0..500_u64, time_ns in 0..1_000_000_000_000_u64,
        ) {
            let schedule = Schedule::new(rate, turn % turns, turns);
            let count = schedule.due_before(time_ns);
            prop_assert!(count == 0 || schedule.due_ns(count - 1) < time_ns);
            prop_assert!(schedule.due_ns(count) >= time_ns);
        }
    }
}
