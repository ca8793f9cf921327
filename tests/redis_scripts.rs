//! The scripts that decide in Redis, against the algorithms themselves: the same outcomes, whatever the size of the
//! numbers. The conformance suite has what is usual; here is what is not.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use divvy::algorithm::{
    Ask, FixedWindow, LeakyBucket, Limit, MAX_LOG_CREDITS, Outcome, SlidingLog, SlidingWindow, State, TokenBucket,
};
use divvy::clock::Timestamp;
use divvy::store::{Action, Batch, RedisOptions, RedisStore, Store};
use proptest::prelude::*;

use crate::support::PATIENCE;
use crate::support::redis::RedisServer;

/// As many numbers of 3 bits as of 63.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        8 => (0u32..64, any::<u64>()).prop_map(|(shift, number)| number >> shift),
        1 => (0u64..3).prop_map(|below| u64::MAX - below),
    ]
}

fn positive() -> impl Strategy<Value = u64> {
    number().prop_map(|number| number.max(1))
}

fn any_limit() -> impl Strategy<Value = Limit> {
    (0..5, positive(), positive(), positive()).prop_map(|(which, credits, rate, time_ns)| match which {
        0 => Limit::FixedWindow(FixedWindow::new(credits, time_ns).unwrap()),
        1 => Limit::SlidingWindow(SlidingWindow::new(credits, time_ns).unwrap()),
        2 => Limit::SlidingLog(SlidingLog::new(credits.min(MAX_LOG_CREDITS), time_ns).unwrap()),
        3 => Limit::TokenBucket(TokenBucket::new(credits, rate, time_ns).unwrap()),
        _ => Limit::LeakyBucket(LeakyBucket::new(credits, rate, time_ns).unwrap()),
    })
}

/// How one action follows another.
#[derive(Debug, Clone, Copy)]
struct Step {
    kind: u8,
    cost: u64,
    /// So many of the limit's periods pass, and so many nanoseconds more or fewer.
    periods: u64,
    nanos: u64,
    backwards: bool,
}

fn step() -> impl Strategy<Value = Step> {
    let nanos = prop_oneof![2 => 0u64..3, 1 => number()];
    (0u8..15, prop_oneof![0u64..4, number()], 0u64..4, nanos, any::<bool>())
        .prop_map(|(kind, cost, periods, nanos, backwards)| Step { kind, cost, periods, nanos, backwards })
}

impl Step {
    fn action(self) -> Action {
        let cost = self.cost;
        match self.kind {
            0..=2 => Action::Ask(Ask::Take { cost }),
            3 => Action::Ask(Ask::Look { cost }),
            4 | 5 => Action::Ask(Ask::Drain { cost, strict: false }),
            6 => Action::Ask(Ask::Drain { cost, strict: true }),
            7 | 8 => Action::Ask(Ask::Replay { cost, strict: false }),
            9 => Action::Ask(Ask::Replay { cost, strict: true }),
            10 => Action::Ask(Ask::Overdraw { cost }),
            11 => Action::Ask(Ask::Charge { cost }),
            12 | 13 => Action::Ask(Ask::Refund { cost }),
            _ => Action::Forget,
        }
    }

    fn after(self, at: Timestamp, limit: &Limit) -> Timestamp {
        let at = at.plus(self.periods.saturating_mul(limit.rate().1));
        if self.backwards {
            Timestamp::from_nanos(at.as_nanos().saturating_sub(self.nanos))
        } else {
            at.plus(self.nanos)
        }
    }
}

/// What the other stores answer.
fn expected(limit: &Limit, state: &mut Option<State>, action: Action, at: Timestamp) -> Outcome {
    let Action::Ask(ask) = action else {
        let held = state.take_if(|state| limit.lifetime_ns(state, at) > 0).is_some();
        return Outcome { allowed: held, ..Outcome::default() };
    };
    let decision = limit.decide(state.as_ref(), ask, at);
    if decision.state.is_some() {
        // All may have been given back.
        let is_full = |state: &State| matches!(ask, Ask::Refund { .. }) && limit.lifetime_ns(state, at) == 0;
        *state = decision.state.filter(|state| !is_full(state));
    }
    decision.outcome
}

#[test]
fn numbers_of_any_size_are_decided_on_as_elsewhere() {
    let server = RedisServer::start();
    let options = RedisOptions { urls: vec![server.url()], timeout: PATIENCE, ..RedisOptions::default() };
    let store = RedisStore::open(options).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let cases = AtomicU64::new(0);
    let batches = prop::collection::vec(prop::collection::vec(step(), 1..12), 1..4);
    proptest!(ProptestConfig::with_cases(3_000), |(limit in any_limit(), start in number(), batches in batches)| {
        let key = format!("case {}", cases.fetch_add(1, Relaxed));
        let (mut at, mut state) = (Timestamp::from_nanos(start), None);
        for steps in batches {
            let mut batch = Batch::default();
            // None of the actions' times, so that these are taken for clients' own.
            batch.begin(Timestamp::from_nanos(0x1234_5678_9abc_def1));
            let mut wanted = Vec::new();
            for step in steps {
                at = step.after(at, &limit);
                batch.push(limit, step.action(), at, |out| out.extend(key.as_bytes()));
                wanted.push(expected(&limit, &mut state, step.action(), at));
            }
            runtime.block_on(store.apply(&mut batch));
            let outcomes: Vec<_> = (0..batch.len()).map(|index| batch.outcome(index).unwrap()).collect();
            prop_assert_eq!(outcomes, wanted);
        }
    });
}
