//! The token bucket, compared with a plain model that adds one refill after another, for takes and for drains.

use super::*;
use crate::clock::NANOS_PER_SECOND;

fn bucket(capacity: u64, refill: u64, interval_ns: u64) -> Bucket {
    Bucket::new(Limit::TokenBucket(TokenBucket::new(capacity, refill, interval_ns).unwrap()))
}

struct Model {
    capacity: u64,
    refill: u64,
    interval: u64,
    /// Mark, tokens, session; `None` before the first take.
    bucket: Option<(u64, u64, u64)>,
}

impl Model {
    fn refilled(&self, at: u64) -> (u64, u64, u64) {
        let (mut mark, mut tokens, session) = self.bucket.unwrap_or((at, self.capacity, at));
        while mark + self.interval <= at {
            mark += self.interval;
            tokens = self.capacity.min(tokens + self.refill);
        }
        (mark, tokens, session)
    }

    /// Takes tokens. Returns the tokens before, and whether there were enough.
    fn take(&mut self, cost: u64, at: u64) -> (u64, bool) {
        let (mark, tokens, _) = self.refilled(at);
        let mark = if tokens == self.capacity { at } else { mark };
        if 0 < cost && cost <= tokens {
            self.bucket = Some((mark, tokens - cost, at));
        }
        (tokens, cost <= tokens)
    }

    /// Drains tokens. Returns the tokens before, and the session.
    fn drain(&mut self, cost: u64, strict: bool, at: u64) -> (u64, u64) {
        let (mut mark, tokens, mut session) = self.refilled(at);
        if cost == 0 {
            return (tokens, session);
        }
        if cost <= tokens {
            session = at;
        }
        let rest = tokens.saturating_sub(cost);
        if rest == 0 && strict {
            mark = at;
        }
        self.bucket = Some((mark, rest, session));
        (tokens, session)
    }
}

#[test]
fn only_strict_drains_limit_a_caller_that_never_pauses() {
    let (mut strict, mut lenient) = (bucket(1, 1, 100), bucket(1, 1, 100));
    let allowed = |bucket: &mut Bucket, strict: bool| {
        (0..100).filter(|hit| bucket.ask(Ask::Drain { cost: 1, strict }, START + hit * 10).allowed).count()
    };
    assert_eq!(allowed(&mut strict, true), 1);
    assert_eq!(allowed(&mut lenient, false), 10);
    assert_eq!(strict.ask(Ask::Drain { cost: 1, strict: true }, START + 1_000).retry_ns, Some(100));
    assert!(strict.ask(Ask::Drain { cost: 1, strict: true }, START + 1_100).allowed);
}

#[test]
fn drain_by_the_servers_clock_waits_at_most_one_refill_after_the_clock_is_set_back() {
    for strict in [false, true] {
        let mut bucket = bucket(5, 5, 100);
        let drain = Ask::Drain { cost: 5, strict };
        assert_eq!(bucket.ask(drain, START).before, 5);
        let a_day_ago = START - 86_400 * NANOS_PER_SECOND;
        let denied = bucket.ask(drain, a_day_ago);
        assert_eq!((denied.before, denied.retry_ns), (0, Some(100)));
        assert_eq!(bucket.ask(Ask::Drain { cost: 0, strict: false }, a_day_ago + 99).before, 0);
        assert_eq!(bucket.ask(drain, a_day_ago + 100).before, 5);
    }
}

#[test]
fn overtaken_drain_moves_nothing_back() {
    let mut bucket = bucket(5, 5, 100);
    let drain = Ask::Drain { cost: 5, strict: true };
    assert_eq!(bucket.ask(drain, START).before, 5);
    assert_eq!(bucket.ask(drain, START - 10 * NANOS_PER_SECOND).before, 0);
    assert_eq!(bucket.ask(drain, START + 99).before, 0);
}

#[test]
fn bucket_drained_by_a_clock_far_ahead_is_forgotten_after_one_refill_time() {
    let limit = Limit::TokenBucket(TokenBucket::new(5, 1, 100).unwrap());
    let ahead = State::TokenBucket(crate::algorithm::TokenBucketState {
        mark: Timestamp::from_nanos(2 * START),
        count: 2,
        session: Timestamp::from_nanos(2 * START),
        own_capacity: 0,
    });
    assert_eq!(limit.lifetime_ns(&ahead, Timestamp::from_nanos(START)), 300);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn takes_agree_with_a_plain_model(capacity in 1..12u64, refill in 1..15u64, interval in 1..60u64, hits in hits(0..40)) {
        let mut bucket = bucket(capacity, refill, interval);
        let mut model = Model { capacity, refill, interval, bucket: None };
        for (at, cost) in hits.0 {
            let outcome = bucket.take(cost, at);
            prop_assert_eq!((outcome.before, outcome.allowed), model.take(cost, at));
        }
    }

    #[test]
    fn replays_agree_with_a_plain_models_drains_at_any_time(
        capacity in 1..12u64, refill in 1..15u64, interval in 1..60u64,
        drains in prop::collection::vec((0..8u64, any::<bool>(), 0..500u64), 0..60),
    ) {
        let mut bucket = bucket(capacity, refill, interval);
        let mut model = Model { capacity, refill, interval, bucket: None };
        for (cost, strict, at) in drains {
            let outcome = bucket.ask(Ask::Replay { cost, strict }, at);
            let (before, session) = model.drain(cost, strict, at);
            prop_assert_eq!((outcome.before, outcome.session), (before, Timestamp::from_nanos(session)));
        }
    }

    #[test]
    fn grants_stay_within_the_burst_and_the_average_rate(
        capacity in 1..12u64, refill in 1..15u64, interval in 1..60u64, hits in hits(0..40),
    ) {
        let granted = hits.granted_by(&mut bucket(capacity, refill, interval));
        check_spans(&granted, |span| capacity + (span / interval + 1) * refill)?;
    }
}
