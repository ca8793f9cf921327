//! The due times of requests in an open loop.

use crate::clock::NANOS_PER_SECOND;

/// The due times of one connection, in nanoseconds since the run began. The requests of all connections are evenly
/// spaced. Connections take turns, with a block of requests each.
#[derive(Debug, Clone, Copy)]
pub struct Schedule {
    interval_ns: f64,
    turn: u64,
    turns: u64,
    block: u64,
}

impl Schedule {
    /// Creates the schedule of connection number `turn` of `turns`. Together they send `rate` (> 0) requests per
    /// second, in turns of `block` (> 0) requests.
    pub fn new(rate: f64, turn: u64, turns: u64, block: u64) -> Self {
        Self { interval_ns: NANOS_PER_SECOND as f64 / rate, turn, turns, block }
    }

    /// Returns the due time of this connection's request number `index`.
    pub fn due_ns(&self, index: u64) -> u64 {
        let (round, place) = (index / self.block, index % self.block);
        self.due_ns_of_all((round * self.turns + self.turn) * self.block + place)
    }

    /// Returns the number of this connection's requests that are due before `time_ns`.
    pub fn due_before(&self, time_ns: u64) -> u64 {
        let all = self.all_due_before(time_ns);
        let round = self.turns * self.block;
        let in_this_round = (all % round).saturating_sub(self.turn * self.block).min(self.block);
        all / round * self.block + in_this_round
    }

    /// Returns the due time of the request with this index among the requests of all connections. It is exact to the
    /// nanosecond for the first hundred days.
    fn due_ns_of_all(&self, index: u64) -> u64 {
        (index as f64 * self.interval_ns) as u64
    }

    fn all_due_before(&self, time_ns: u64) -> u64 {
        let mut count = (time_ns as f64 / self.interval_ns) as u64;
        // The division is rounded, so the due times themselves correct it.
        while self.due_ns_of_all(count) < time_ns {
            count += 1;
        }
        while count > 0 && self.due_ns_of_all(count - 1) >= time_ns {
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
    fn connections_take_turns_at_even_intervals() {
        let due = |turn| {
            let schedule = Schedule::new(1_000.0, turn, 4, 2);
            [0, 1, 2, 3].map(|index| schedule.due_ns(index) / 1_000_000)
        };
        assert_eq!(due(0), [0, 1, 8, 9]);
        assert_eq!(due(3), [6, 7, 14, 15]);
    }

    #[test]
    fn each_second_has_as_many_requests_as_the_rate() {
        let total: u64 = (0..50).map(|turn| Schedule::new(12_345.0, turn, 50, 32).due_before(NANOS_PER_SECOND)).sum();
        assert_eq!(total, 12_345);
    }

    proptest! {
        #[test]
        fn requests_due_before_a_time_have_earlier_due_times(
            rate in 0.01..1e7_f64, turns in 1..500_u64, turn in 0..500_u64, block in 1..40_u64,
            time_ns in 0..1_000_000_000_000_u64,
        ) {
            let schedule = Schedule::new(rate, turn % turns, turns, block);
            let count = schedule.due_before(time_ns);
            prop_assert!(count == 0 || schedule.due_ns(count - 1) < time_ns);
            prop_assert!(schedule.due_ns(count) >= time_ns);
        }
    }
}
