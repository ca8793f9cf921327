//! Shares: credits that holders take ahead, and grant on their own until the end of the share. Holders die, return what they
//! have not granted, and take new shares, and other asks come between. The grants never exceed the limit.

use std::collections::HashMap;

use super::*;
use crate::clock::{NANOS_PER_MILLI, NANOS_PER_SECOND};

/// One event, after a pause in milliseconds.
#[derive(Debug, Clone)]
enum Event {
    /// The holder takes a share.
    Share {
        holder: usize,
        cost: u64,
        extra: u32,
        parts: u16,
    },
    /// The holder grants as much as this of its share.
    Grant {
        holder: usize,
        credits: u64,
    },
    Return {
        holder: usize,
    },
    Die {
        holder: usize,
    },
    Take {
        cost: u64,
    },
}

const HOLDERS: usize = 3;

fn events() -> impl Strategy<Value = Vec<(u64, Event)>> {
    let holder = || 0..HOLDERS;
    let event = prop_oneof![
        4 => (holder(), 0..3u64, 0..9u32, 1..4u16)
            .prop_map(|(holder, cost, extra, parts)| Event::Share { holder, cost, extra, parts }),
        6 => (holder(), 1..6u64).prop_map(|(holder, credits)| Event::Grant { holder, credits }),
        2 => holder().prop_map(|holder| Event::Return { holder }),
        1 => holder().prop_map(|holder| Event::Die { holder }),
        3 => (1..6u64).prop_map(|cost| Event::Take { cost }),
    ];
    let pause = prop_oneof![4 => 0..300u64, 1 => 0..3_000u64];
    prop::collection::vec((pause, event), 1..60)
}

/// A holder's share: its credits, its end, and the window that it belongs to.
#[derive(Debug, Clone, Copy, Default)]
struct Share {
    credits: u64,
    ends: u64,
}

/// Runs the events. Returns the time, the credits, and the end of the window of everything that was granted.
fn granted(bucket: &mut Bucket, events: Vec<(u64, Event)>) -> Vec<(u64, u64, u64)> {
    let (mut now, mut shares, mut granted) = (START, [Share::default(); HOLDERS], Vec::new());
    let window = |bucket: &Bucket| match &bucket.state {
        Some(State::FixedWindow(window)) => window.ends.as_nanos(),
        _ => 0,
    };
    for (pause, event) in events {
        now += pause * NANOS_PER_MILLI;
        match event {
            Event::Share { holder, cost, extra, parts } => {
                let outcome = bucket.ask(Ask::Share { cost, extra, parts }, now);
                if !outcome.allowed {
                    continue;
                }
                granted.push((now, cost, window(bucket)));
                let credits = outcome.before - outcome.left - cost;
                assert!(credits <= u64::from(extra).min((outcome.before - cost) / u64::from(parts)));
                if credits > 0 {
                    // The holder's earlier share is lost.
                    shares[holder] = Share { credits, ends: outcome.session.as_nanos() };
                    assert!(shares[holder].ends - now >= SHORTEST_SHARE_NS);
                }
            }
            Event::Grant { holder, credits } => {
                let share = &mut shares[holder];
                if now < share.ends && credits <= share.credits {
                    share.credits -= credits;
                    granted.push((now, credits, share.ends));
                }
            }
            Event::Return { holder } => {
                let Share { credits, ends } = std::mem::take(&mut shares[holder]);
                let ends = Timestamp::from_nanos(ends);
                bucket.ask(Ask::Return { credits: credits as u32, until: ends }, now);
            }
            Event::Die { holder } => shares[holder] = Share::default(),
            Event::Take { cost } => {
                if bucket.take(cost, now).allowed {
                    granted.push((now, cost, window(bucket)));
                }
            }
        }
    }
    granted
}

proptest! {
    #[test]
    fn shares_never_exceed_a_window(credits in 1..40u64, seconds in 1..5u64, events in events()) {
        let limit = Limit::new(Kind::FixedWindow, credits, 1, seconds * NANOS_PER_SECOND).unwrap();
        let mut by_window = HashMap::new();
        for (at, credits, ends) in granted(&mut Bucket::new(limit), events) {
            prop_assert!(credits == 0 || at < ends);
            *by_window.entry(ends).or_insert(0) += credits;
        }
        prop_assert!(by_window.values().all(|granted| *granted <= credits), "{by_window:?}");
    }

    #[test]
    fn shares_never_exceed_a_leaky_bucket(capacity in 1..40u64, count in 1..20u64, events in events()) {
        let limit = Limit::new(Kind::LeakyBucket, capacity, count, NANOS_PER_SECOND).unwrap();
        // A bucket without shares grants the same at the same times.
        let mut alone = Bucket::new(limit);
        for (at, credits, _) in granted(&mut Bucket::new(limit), events) {
            prop_assert!(alone.take(credits, at).allowed);
        }
    }

    #[test]
    fn shares_never_exceed_a_token_bucket(
        capacity in 1..40u64, refill in 1..20u64, interval_ms in 100..2_000u64, events in events(),
    ) {
        let interval_ns = interval_ms * NANOS_PER_MILLI;
        let limit = Limit::new(Kind::TokenBucket, capacity, refill, interval_ns).unwrap();
        let granted: Vec<_> =
            granted(&mut Bucket::new(limit), events).into_iter().map(|(at, credits, _)| (at, credits)).collect();
        check_spans(&granted, |span| capacity + (span / interval_ns + 1) * refill)?;
    }

    #[test]
    fn sliding_windows_and_logs_give_no_share(events in events(), kind in 0..2usize) {
        let kind = [Kind::SlidingWindow, Kind::SlidingLog][kind];
        let mut bucket = Bucket::new(Limit::new(kind, 40, 1, 5 * NANOS_PER_SECOND).unwrap());
        for (at, event) in events {
            if let Event::Share { cost, extra, parts, .. } = event {
                let outcome = bucket.ask(Ask::Share { cost, extra, parts }, START + at);
                prop_assert_eq!(outcome.before - outcome.left, if outcome.allowed { cost } else { 0 });
            }
        }
    }
}

/// A share that crosses the end of its window, or comes back late, grants nothing in the next one.
#[test]
fn share_returns_credits_only_to_its_own_window() {
    let mut bucket = Bucket::new(Limit::new(Kind::FixedWindow, 10, 1, NANOS_PER_SECOND).unwrap());
    let share = bucket.ask(Ask::Share { cost: 1, extra: 6, parts: 1 }, START);
    assert_eq!((share.allowed, share.left), (true, 3));
    let give_back = Ask::Return { credits: 2, until: share.session };
    assert_eq!(bucket.clone().ask(give_back, START + 1).left, 5);
    let next = START + NANOS_PER_SECOND;
    assert_eq!(bucket.take(8, next).left, 2);
    assert_eq!(bucket.ask(give_back, next + 1).left, 2);
}
