//! The leaky bucket, compared with the other form of GCRA: the theoretical arrival time, kept as an exact fraction.

use super::*;

fn bucket(capacity: u64, count: u64, period_ns: u64) -> Bucket {
    Bucket::new(Limit::LeakyBucket(LeakyBucket::new(capacity, count, period_ns).unwrap()))
}

/// A theoretical arrival time, in units of 1/count nanoseconds, so that an emission interval is `period` of them.
struct Model {
    capacity: u128,
    count: u128,
    period: u128,
    arrival: u128,
}

impl Model {
    /// Returns allowed, remaining, retry after, and reset after.
    fn throttle(&mut self, quantity: u128, at: u128) -> (bool, u128, Option<u128>, u128) {
        let now = at * self.count;
        let tolerance = self.capacity * self.period;
        let arrival = self.arrival.max(now);
        let next = arrival + quantity * self.period;
        let allowed = next <= now + tolerance;
        let retry = (!allowed && quantity <= self.capacity).then(|| (next - tolerance - now).div_ceil(self.count));
        if allowed {
            self.arrival = next;
        }
        let ahead = self.arrival.max(now) - now;
        (allowed, (tolerance - ahead) / self.period, retry, ahead.div_ceil(self.count))
    }
}

#[test]
fn largest_numbers_still_count() {
    let largest = i64::MAX as u64;
    let mut huge = bucket(largest + 1, 1, u64::MAX);
    for taken in 1..=1_000 {
        let outcome = huge.take(1, START);
        assert_eq!((outcome.allowed, outcome.left), (true, largest + 1 - taken));
    }
    assert!(huge.take(largest + 1 - 1_000, START).allowed);
    assert!(!huge.take(1, u64::MAX).allowed);

    let mut fast = bucket(largest + 1, largest, 1);
    assert!(fast.take(largest + 1, START).allowed);
    assert_eq!(fast.take(2, START).retry_ns, Some(1));
    assert_eq!(fast.look(0, START + 1).left, largest);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn answers_agree_with_a_theoretical_arrival_time(
        capacity in 1..12u64, count in 1..40u64, period in 1..300u64, hits in hits(0..40),
    ) {
        let mut bucket = bucket(capacity, count, period);
        let mut model = Model { capacity: capacity.into(), count: count.into(), period: period.into(), arrival: 0 };
        for (at, quantity) in hits.0 {
            let outcome = bucket.take(quantity, at);
            let answer = (outcome.allowed, outcome.left.into(), outcome.retry_ns.map(u128::from), outcome.reset_ns.into());
            prop_assert_eq!(answer, model.throttle(quantity.into(), at.into()));
        }
    }

    #[test]
    fn grants_stay_within_the_burst_and_the_average_rate(
        capacity in 1..12u64, count in 1..40u64, period in 1..300u64, hits in hits(0..40),
    ) {
        let granted = hits.granted_by(&mut bucket(capacity, count, period));
        check_spans(&granted, |span| capacity + span * count / period)?;
    }
}
