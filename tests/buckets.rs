//! Compares `RL.*` and `CL.THROTTLE` with the reference, for random sequences of commands and times, on every store.

use std::cell::Cell;
use std::ops::Range;

use divvy::algorithm::Outcome;
use divvy::clock::{NANOS_PER_MILLI, NANOS_PER_SECOND, Timestamp, ceil_seconds};
use divvy::protocol::command::Command;
use divvy::protocol::resp::{Decoder, Limits};
use divvy::store::key::{Space, write_client_key};
use divvy::store::{Action, Batch, Store};
use proptest::prelude::*;
use tokio::runtime::Runtime;

use crate::conformance::{StoreFixture, at, memory, rocks, rocks_evicting};
use crate::support::encode;

/// A few token buckets, and the requests to them.
#[derive(Debug, Clone)]
pub struct Requests {
    buckets: Vec<Bucket>,
    asks: Vec<TokenRequests>,
}

#[derive(Debug, Clone)]
struct Bucket {
    max: i128,
    /// Omitted from the command if it fills the whole bucket.
    refill: i128,
    interval: i128,
    /// The unit in the command: `P` for milliseconds.
    unit: &'static str,
}

#[derive(Debug, Clone)]
struct TokenRequests {
    bucket: usize,
    verb: &'static str,
    take: i128,
    strict: bool,
    at: i128,
}

fn bucket() -> impl Strategy<Value = Bucket> {
    let refill = |max| prop_oneof![Just(max), 1..=max];
    let numbers = (1..8i128).prop_flat_map(move |max| (Just(max), refill(max), 1..60i128));
    (numbers, prop::sample::select(vec!["", "P"])).prop_map(|((max, refill, interval), unit)| Bucket {
        max,
        refill,
        interval,
        unit,
    })
}

pub fn requests() -> impl Strategy<Value = Requests> {
    // Times mostly increase, but sometimes decrease or jump.
    let passes = prop_oneof![6 => 0..40i128, 2 => -40..0i128, 1 => -5_000..5_000i128];
    let verb = prop::sample::select(vec!["REDUCE", "REDUCE", "GET", "SESSIONIZE"]);
    let asks = prop::collection::vec((0..3usize, verb, 0..5i128, any::<bool>(), passes), 1..25);
    (prop::collection::vec(bucket(), 1..4), asks).prop_map(|(buckets, asks)| {
        let mut now = 1_000;
        let asks = asks.into_iter().map(|(bucket, verb, take, strict, passed)| {
            now = (now + passed).max(0);
            TokenRequests { bucket: bucket % buckets.len(), verb, take, strict, at: now }
        });
        Requests { asks: asks.collect(), buckets }
    })
}

impl Requests {
    /// Returns the commands, for buckets that no other `case` uses.
    pub fn commands(&self, case: u32) -> Vec<String> {
        let command = |asked: &TokenRequests| {
            let Bucket { max, refill, interval, unit } = &self.buckets[asked.bucket];
            let TokenRequests { bucket, verb, take, strict, at } = asked;
            let refill = if refill == max { String::new() } else { format!(" REFILL {refill}") };
            let take = if *verb == "GET" { String::new() } else { format!(" TAKE {take}") };
            let strict = if *strict && *verb != "GET" { " STRICT" } else { "" };
            format!("RL.{unit}{verb} {case}:{bucket} {max} {interval}{refill}{take} AT {at}{strict}")
        };
        self.asks.iter().map(command).collect()
    }

    pub fn expected(&self) -> Vec<String> {
        let new = |bucket: &Bucket| Tokens::new(bucket.max, bucket.refill, bucket.interval);
        let mut models: Vec<_> = self.buckets.iter().map(new).collect();
        let reply = |asked: &TokenRequests| {
            let model = &mut models[asked.bucket];
            let unit_ms = if self.buckets[asked.bucket].unit == "P" { 1 } else { 1_000 };
            match asked.verb {
                "GET" => model.reduce(0, asked.at, false).0.to_string(),
                "REDUCE" => model.reduce(asked.take, asked.at, asked.strict).0.to_string(),
                _ => {
                    let (before, session) = model.reduce(asked.take, asked.at, true);
                    format!("[{before} {}]", session * unit_ms)
                }
            }
        };
        self.asks.iter().map(reply).collect()
    }
}

/// Requests to one bucket of `CL.THROTTLE`.
#[derive(Debug, Clone)]
pub struct Throttles {
    max_burst: i128,
    count: i128,
    seconds: i128,
    /// Quantities, and the times of the requests in nanoseconds.
    asks: Vec<(i128, i128)>,
}

pub fn throttles(seconds: Range<i128>) -> impl Strategy<Value = Throttles> {
    (0..10i128, 1..=10i128, seconds).prop_flat_map(|(max_burst, count, seconds)| {
        let credit = seconds * i128::from(NANOS_PER_SECOND) / count;
        // These include times just before, at and after the moment when credits come back.
        let near = (0..4i128, -1..=1i128).prop_map(move |(credits, off)| (credits * credit + off).max(0));
        let passes = prop_oneof![near, 0..3 * credit, Just(0)];
        prop::collection::vec((0..max_burst + 3, passes), 1..25).prop_map(move |asks| {
            let mut now = i128::from(at(0).as_nanos());
            let asks = asks.into_iter().map(|(quantity, passed)| {
                now += passed;
                (quantity, now)
            });
            Throttles { max_burst, count, seconds, asks: asks.collect() }
        })
    })
}

impl Throttles {
    pub fn commands(&self, case: u32) -> Vec<String> {
        let Self { max_burst, count, seconds, .. } = self;
        let command =
            |(quantity, _): &(i128, _)| format!("CL.THROTTLE {case} {max_burst} {count} {seconds} {quantity}");
        self.asks.iter().map(command).collect()
    }

    fn expected(&self) -> Vec<[i128; 5]> {
        let mut model = Throttle::new(self.max_burst, self.count, self.seconds);
        self.asks.iter().map(|(quantity, nanos)| model.throttle(*quantity, *nanos)).collect()
    }
}

/// Adds the request in `command` to the batch, as the server does. Its time is `now` unless the command contains one.
fn push(batch: &mut Batch, command: &str, now: Timestamp) {
    let request = encode(&command.split(' ').map(str::as_bytes).collect::<Vec<_>>());
    let mut decoder = Decoder::new(Limits::default());
    decoder.decode(&request).unwrap().unwrap();
    let (space, asked) = match Command::parse(decoder.arguments(&request)).unwrap() {
        Command::Tokens(asked) | Command::Session(asked) => (Space::TokenBucket, asked),
        Command::Throttle(asked) => (Space::Throttle, asked),
        other => panic!("{other:?}"),
    };
    let at = asked.at.unwrap_or(now);
    batch.push(asked.limit, Action::Ask(asked.ask), at, |out| {
        write_client_key(space, &asked.limit, asked.key, out);
    });
}

fn shown(command: &str, outcome: &Outcome) -> String {
    if command.contains("SESSIONIZE") {
        format!("[{} {}]", outcome.before, outcome.session.as_nanos() / NANOS_PER_MILLI)
    } else {
        outcome.before.to_string()
    }
}

fn five(outcome: &Outcome, capacity: i128) -> [i128; 5] {
    [
        i128::from(!outcome.allowed),
        capacity,
        outcome.left.into(),
        outcome.retry_ns.map_or(-1, |nanos| ceil_seconds(nanos).into()),
        ceil_seconds(outcome.reset_ns).into(),
    ]
}

fn timestamp(nanos: i128) -> Timestamp {
    Timestamp::from_nanos(u64::try_from(nanos).unwrap())
}

fn check_agreement_with_the_reference(StoreFixture { store, dir: _dir, .. }: StoreFixture, cases: u32) {
    let runtime = Runtime::new().unwrap();
    let case = Cell::new(0);
    proptest!(ProptestConfig::with_cases(cases), |(requests in requests(), size in 1..30usize)| {
        case.set(case.get() + 1);
        let mut batch = Batch::default();
        let (commands, expected) = (requests.commands(case.get()), requests.expected());
        for (commands, expected) in commands.chunks(size).zip(expected.chunks(size)) {
            batch.begin(at(0));
            commands.iter().for_each(|command| push(&mut batch, command, at(0)));
            runtime.block_on(store.apply(&mut batch));
            for (index, (command, expected)) in commands.iter().zip(expected).enumerate() {
                prop_assert_eq!(&shown(command, &batch.outcome(index).unwrap()), expected, "{}", command);
            }
        }
    });
    proptest!(ProptestConfig::with_cases(cases), |(throttles in throttles(1..100))| {
        case.set(case.get() + 1);
        let mut batch = Batch::default();
        let commands = throttles.commands(case.get()).into_iter().zip(&throttles.asks);
        let asked: Vec<_> = commands.zip(throttles.expected()).collect();
        // The command uses the server's time, and a batch has only one. (A batch with an earlier time than its requests
        // would let the store forget buckets too early, at the time of later batches.)
        for asked in asked.chunk_by(|((_, (_, at)), _), ((_, (_, next)), _)| at == next) {
            let ((_, (_, nanos)), _) = &asked[0];
            batch.begin(timestamp(*nanos));
            asked.iter().for_each(|((command, _), _)| push(&mut batch, command, timestamp(*nanos)));
            runtime.block_on(store.apply(&mut batch));
            for (index, ((command, _), expected)) in asked.iter().enumerate() {
                let outcome = batch.outcome(index).unwrap();
                prop_assert_eq!(&five(&outcome, throttles.max_burst + 1), expected, "{}", command);
            }
        }
    });
}

#[test]
fn local_stores_agree_with_the_reference() {
    let stores: [(fn() -> StoreFixture, u32); 3] = [(memory, 3_000), (rocks, 2_000), (rocks_evicting, 1_000)];
    for (open, cases) in stores {
        check_agreement_with_the_reference(open(), cases);
    }
}

const NANOS: i128 = 1_000_000_000;

/// A token bucket. Times are in the commands' unit.
#[derive(Debug, Clone)]
pub struct Tokens {
    pub max: i128,
    pub refill: i128,
    pub interval: i128,
    /// The refill mark, the tokens and the session's start, once there was a take.
    known: Option<(i128, i128, i128)>,
}

impl Tokens {
    pub fn new(max: i128, refill: i128, interval: i128) -> Self {
        Self { max, refill, interval, known: None }
    }

    /// Takes `take` tokens at `at`. Returns the tokens before, and the session's start after that.
    pub fn reduce(&mut self, take: i128, at: i128, strict: bool) -> (i128, i128) {
        let (mut mark, mut tokens, mut session) = self.known.unwrap_or((at, self.max, at));
        while at - mark >= self.interval {
            mark += self.interval;
            tokens = (tokens + self.refill).min(self.max);
        }
        let before = tokens;
        if take == 0 {
            return (before, session);
        }
        if take <= tokens {
            session = at;
        }
        tokens = (tokens - take).max(0);
        if strict && tokens == 0 {
            mark = at;
        }
        self.known = Some((mark, tokens, session));
        (before, session)
    }
}

/// GCRA as in redis-cell. Times are in nanoseconds multiplied by `count`, so that all are whole numbers.
#[derive(Debug, Clone)]
pub struct Throttle {
    pub max_burst: i128,
    pub count: i128,
    pub seconds: i128,
    theoretical_arrival: i128,
}

impl Throttle {
    pub fn new(max_burst: i128, count: i128, seconds: i128) -> Self {
        Self { max_burst, count, seconds, theoretical_arrival: 0 }
    }

    /// Returns the five numbers of the reply to `quantity` at `nanos`.
    pub fn throttle(&mut self, quantity: i128, nanos: i128) -> [i128; 5] {
        let now = nanos * self.count;
        let increment = self.seconds * NANOS;
        let capacity = self.max_burst + 1;
        let arrival = self.theoretical_arrival.max(now);
        let earliest = arrival + (quantity - capacity) * increment;
        let limited = quantity > 0 && earliest > now;
        if !limited {
            self.theoretical_arrival = arrival + quantity * increment;
        }
        let ahead = self.theoretical_arrival.max(now) - now;
        let retry = if limited && quantity <= capacity { self.whole_seconds(earliest - now) } else { -1 };
        let remaining = (capacity * increment - ahead) / increment;
        [i128::from(limited), capacity, remaining, retry, self.whole_seconds(ahead)]
    }

    fn whole_seconds(&self, span: i128) -> i128 {
        let second = NANOS * self.count;
        (span + second - 1) / second
    }
}
