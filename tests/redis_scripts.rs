//! Compares the scripts that decide in Redis with the algorithms in Rust: the outcomes must be the same, for numbers of
//! any size. The conformance suite tests ordinary use. These tests cover the rest.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use divvy::algorithm::{
    Ask, CalendarWindow, Counter, Expiry, FixedWindow, Kind, Limit, MAX_LOG_CREDITS, Outcome, ReservationAsk,
    TokenBucket,
};
use divvy::calendar::{Calendar, Unit, time_of_day};
use divvy::clock::{Clock, Timestamp};
use divvy::store::key::{Prefix, Space};
use divvy::store::{
    Action, Batch, Changed, Effect, Exception, ExceptionChange, ExceptionCursor, RedisOptions, RedisStore, Repetition,
    Replaces, Setter, Store, record_key,
};
use proptest::prelude::*;
use tokio::runtime::Runtime;

use crate::conformance::{Model, dated, expected};
use crate::support::{PATIENCE, RedisServer, until};

/// Generates numbers of 3 to 63 bits. All lengths are equally frequent.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        8 => (0u32..64, any::<u64>()).prop_map(|(shift, number)| number >> shift),
        1 => (0u64..3).prop_map(|below| u64::MAX - below),
    ]
}

/// Generates arbitrary times, often between 2017 and 2033.
fn start() -> impl Strategy<Value = u64> {
    prop_oneof![number(), 1_500_000_000_000_000_000..2_000_000_000_000_000_000_u64]
}

fn positive() -> impl Strategy<Value = u64> {
    number().prop_map(|number| number.max(1))
}

fn any_calendar() -> impl Strategy<Value = Calendar> {
    let zone =
        prop::sample::select(vec!["UTC", "Europe/Berlin", "America/Santiago", "Pacific/Apia", "Australia/Lord_Howe"]);
    (prop::sample::select(Unit::ALL.to_vec()), zone, prop::sample::select(vec!["00:00", "02:30"]))
        .prop_map(|(unit, zone, reset_at)| Calendar::new(unit, zone, time_of_day(reset_at).unwrap()).unwrap())
}

fn calendar_window() -> impl Strategy<Value = Limit> {
    (positive(), any_calendar())
        .prop_map(|(credits, calendar)| Limit::CalendarWindow(CalendarWindow::new(credits, calendar.id()).unwrap()))
}

/// Returns a limit without a calendar.
fn any_limit() -> impl Strategy<Value = Limit> {
    (prop::sample::select(&Kind::ALL[..]), positive(), positive(), positive()).prop_map(
        |(kind, credits, rate, time_ns)| {
            let credits = if kind == Kind::SlidingLog { credits.min(MAX_LOG_CREDITS) } else { credits };
            let time_ns = if kind == Kind::Concurrency { 60_000_000_000 } else { time_ns };
            Limit::new(kind, credits, rate, time_ns).unwrap()
        },
    )
}

/// How one action follows another.
#[derive(Debug, Clone, Copy)]
struct Step {
    kind: u8,
    cost: u64,
    /// The id of the step's reservation, if any.
    id: u8,
    ttl_seconds: u32,
    /// The number of the limit's periods that pass, and the additional nanoseconds, which may be negative.
    periods: u64,
    nanos: u64,
    backwards: bool,
}

fn step(kinds: std::ops::Range<u8>) -> impl Strategy<Value = Step> {
    let nanos = prop_oneof![2 => 0u64..3, 1 => number()];
    let ttl_seconds = (0u32..32, any::<u32>()).prop_map(|(shift, number)| number >> shift);
    let about = (0u8..3, ttl_seconds);
    (kinds, prop_oneof![0u64..4, number()], about, 0u64..4, nanos, any::<bool>()).prop_map(
        |(kind, cost, (id, ttl_seconds), periods, nanos, backwards)| Step {
            kind,
            cost,
            id,
            ttl_seconds,
            periods,
            nanos,
            backwards,
        },
    )
}

impl Step {
    fn action(self) -> Action {
        let (cost, ttl_seconds) = (self.cost, self.ttl_seconds);
        let reserve = ReservationAsk::Reserve { credits: cost.max(1), ttl_seconds };
        match self.kind {
            0..=2 => Action::Ask(Ask::Take { cost }),
            3 if cost == 0 => Action::Ask(Ask::Show),
            3 => Action::Ask(Ask::Look { cost }),
            4 | 5 => Action::Ask(Ask::Drain { cost, strict: false }),
            6 => Action::Ask(Ask::Drain { cost, strict: true }),
            7 | 8 => Action::Ask(Ask::Replay { cost, strict: false }),
            9 => Action::Ask(Ask::Replay { cost, strict: true }),
            10 => Action::Ask(Ask::Overdraw { cost }),
            11 if cost > 1 => Action::Ask(Ask::Count { cost }),
            11 => Action::Ask(Ask::Charge { cost }),
            12 if cost > 1 => Action::Ask(Ask::Tally { cost }),
            12 | 13 => Action::Ask(Ask::Refund { cost }),
            14 => Action::Forget,
            15..=20 => Action::Reservation(reserve),
            21 | 22 => Action::Reservation(ReservationAsk::Commit { cost, charges: true, run: None }),
            23 => Action::Reservation(ReservationAsk::Commit { cost, charges: false, run: None }),
            24 => Action::Reservation(ReservationAsk::Release { run: None }),
            25 => Action::Reservation(ReservationAsk::Renew {
                ttl_seconds: (ttl_seconds > 0).then_some(ttl_seconds),
                run: None,
            }),
            26 | 27 => Action::Idempotent { ask: Ask::Take { cost }, fingerprint: cost },
            28 => Action::Idempotent { ask: Ask::Charge { cost }, fingerprint: cost },
            29 => Action::Idempotent { ask: Ask::Refund { cost }, fingerprint: 7 },
            30 if cost > 2 => Action::Idempotent { ask: Ask::Tally { cost }, fingerprint: cost },
            30 => Action::Idempotent { ask: Ask::Drain { cost, strict: false }, fingerprint: cost },
            _ => Action::Idempotent { ask: Ask::Replay { cost, strict: true }, fingerprint: cost },
        }
    }

    fn after(self, at: Timestamp, limit: &Limit) -> Timestamp {
        let at = at.plus(self.periods.saturating_mul(limit.rate().map_or(1_000_000_000, |(_, time_ns)| time_ns)));
        if self.backwards {
            Timestamp::from_nanos(at.as_nanos().saturating_sub(self.nanos))
        } else {
            at.plus(self.nanos)
        }
    }
}

/// All kinds of asks without a record.
const ASKS: std::ops::Range<u8> = 0..15;
/// All kinds of asks.
const ALL: std::ops::Range<u8> = 0..30;

#[test]
fn numbers_of_any_size_are_decided_as_in_rust() {
    decided_as_in_rust(any_limit(), ASKS, 3_000, Timestamp::MAX);
}

#[test]
fn numbers_of_any_size_are_reserved_as_in_rust() {
    decided_as_in_rust(any_limit(), ALL, 4_000, before_end_of_time());
}

#[test]
fn calendar_windows_are_decided_and_reserved_as_in_rust() {
    decided_as_in_rust(calendar_window(), ASKS, 2_000, before_end_of_time());
    decided_as_in_rust(calendar_window(), ALL, 2_000, before_end_of_time());
}

/// Returns a time after which any reservation and any window of a calendar still ends. At the end of time all ends are equal: in
/// Redis, they are its last whole millisecond.
fn before_end_of_time() -> Timestamp {
    let longest_ns = u64::from(u32::MAX) * 1_000_000_000;
    Timestamp::from_nanos(u64::MAX - 2 * longest_ns)
}

/// A bucket keeps at most 64 groups of reservations.
#[test]
fn many_reservations_are_kept_as_in_rust() {
    let tested = RedisFixture::start();
    let step = (0u8..200, 0usize..8, 1u64..50, 1u32..4_000, 0u64..9_000_000_000).prop_map(
        |(id, kind, cost, ttl_seconds, nanos)| {
            let kind = [15, 15, 15, 15, 21, 24, 25, 0][kind];
            Step { kind, cost, id, ttl_seconds, periods: 0, nanos, backwards: false }
        },
    );
    let limit = Limit::TokenBucket(TokenBucket::new(1_000_000, 1, 1_000_000_000).unwrap());
    proptest!(ProptestConfig::with_cases(20), |(steps in prop::collection::vec(step, 300..400))| {
        let mut case = tested.case(limit, 1_800_000_000_000_000_000);
        for steps in steps.chunks(40) {
            case.take(steps)?;
        }
    });
}

/// The window of a rule whose time to live an operator, or a clock that was set back, has changed.
struct ChangedWindow {
    tested: RedisFixture,
    limit: Limit,
}

impl ChangedWindow {
    const WINDOW_MS: u64 = 60_000;

    fn start() -> Self {
        Self {
            tested: RedisFixture::start(),
            limit: Limit::FixedWindow(FixedWindow::new(5, Self::WINDOW_MS * 1_000_000).unwrap()),
        }
    }

    /// Applies the actions as one batch. Returns the outcome of the first.
    fn ask(&self, actions: &[Action]) -> Outcome {
        let prefix = Prefix::new(Space::Rule, [("a", "b")], &self.limit);
        let mut batch = Batch::default();
        batch.begin(Timestamp::from_nanos(0x1234_5678_9abc_def1));
        for action in actions {
            let write_bucket = |out: &mut Vec<u8>| prefix.write_key("x", out);
            batch.push(self.limit, *action, batch.now(), |out| match action.record_space() {
                Some(space) => record_key::write(space, b"it", out, write_bucket),
                None => write_bucket(out),
            });
        }
        self.tested.runtime.block_on(self.tested.store.apply(&mut batch));
        batch.outcome(0).unwrap()
    }

    fn cli(&self, words: &[&str]) -> String {
        self.tested.server.cli(words)
    }

    /// Makes a window without credits left. If `is_reserved`, one credit is reserved, not taken. Returns the window's key.
    fn make(&self, is_reserved: bool) -> String {
        self.cli(&["FLUSHALL"]);
        assert!(self.ask(&[Action::Ask(Ask::Take { cost: 5 })]).allowed);
        let key = self.cli(&["KEYS", "*"]);
        if is_reserved {
            let reserve = ReservationAsk::Reserve { credits: 1, ttl_seconds: 10_000 };
            self.ask(&[Action::Ask(Ask::Refund { cost: 1 }), Action::Reservation(reserve)]);
        }
        key
    }

    fn ttl_ms(&self, key: &str) -> i64 {
        self.cli(&["PTTL", key]).parse().unwrap()
    }
}

#[test]
fn window_says_when_it_ends_and_when_it_may_grant_an_ask() {
    let window = ChangedWindow::start();
    let ask = |ask| window.ask(&[Action::Ask(ask)]);
    let untouched = ask(Ask::Take { cost: 6 });
    assert_eq!(untouched, Outcome { before: 5, left: 5, ..Outcome::default() });
    let taken = ask(Ask::Take { cost: 4 });
    assert_eq!((taken.allowed, taken.before, taken.left, taken.retry_ns), (true, 5, 1, None));
    let denied = ask(Ask::Take { cost: 2 });
    assert_eq!((denied.allowed, denied.before, denied.left, denied.retry_ns), (false, 1, 1, Some(denied.reset_ns)));
    for outcome in [taken, denied] {
        assert!((1..=ChangedWindow::WINDOW_MS * 1_000_000).contains(&outcome.reset_ns), "{outcome:?}");
    }
    let overdrawn = ask(Ask::Overdraw { cost: 3 });
    assert_eq!((overdrawn.allowed, overdrawn.left, overdrawn.owed), (true, 0, 2));
    assert_eq!(ask(Ask::Take { cost: 6 }).retry_ns, None, "more than the window ever has");
}

/// In its last millisecond, a window has 0 ms to live.
#[test]
fn window_still_counts_in_its_last_millisecond() {
    let window = ChangedWindow::start();
    let key = window.make(false);
    window.cli(&["PEXPIRE", &key, "200"]);
    loop {
        let outcome = window.ask(&[Action::Ask(Ask::Take { cost: 1 })]);
        if outcome.allowed {
            break;
        }
        assert!(outcome.retry_ns >= Some(1_000_000), "{outcome:?}");
    }
}

/// A long time to live stands for a clock of Redis that was set back. Any request corrects the window's time to live.
#[test]
fn window_that_lives_too_long_gets_its_own_length() {
    let window = ChangedWindow::start();
    for kind in (0..32).filter(|kind| *kind != 14) {
        for is_reserved in [false, true] {
            let step = Step { kind, cost: 1, id: 0, ttl_seconds: 1, periods: 0, nanos: 0, backwards: false };
            let key = window.make(is_reserved);
            window.cli(&["PEXPIRE", &key, "3660000"]);
            let outcome = window.ask(&[step.action()]);
            let ends_ms = window.ttl_ms(&key);
            assert!(ends_ms <= ChangedWindow::WINDOW_MS as i64, "{step:?}: {ends_ms}");
            assert!(outcome.reset_ns <= ChangedWindow::WINDOW_MS * 1_000_000, "{step:?}: {outcome:?}");
        }
    }
}

/// A look changes nothing, not even for the actions after it.
#[test]
fn window_without_an_end_gets_one_from_any_action_but_a_look() {
    let window = ChangedWindow::start();
    let (look, take) = (Action::Ask(Ask::Look { cost: 1 }), Action::Ask(Ask::Take { cost: 1 }));
    for is_reserved in [false, true] {
        for (actions, has_end) in [(&[look][..], false), (&[take], true), (&[look, take], true), (&[look, look], false)]
        {
            let key = window.make(is_reserved);
            window.cli(&["PERSIST", &key]);
            let outcome = window.ask(actions);
            let ends_ms = window.ttl_ms(&key);
            assert_eq!(ends_ms > 0, has_end, "{actions:?}, reserved: {is_reserved}: {ends_ms}");
            assert!((1..=ChangedWindow::WINDOW_MS * 1_000_000).contains(&outcome.reset_ns), "{actions:?}: {outcome:?}");
        }
    }
}

/// Compares random sequences of asks. No ask is later than `latest`.
fn decided_as_in_rust(limits: impl Strategy<Value = Limit>, kinds: std::ops::Range<u8>, cases: u32, latest: Timestamp) {
    let tested = RedisFixture::start();
    let batches = prop::collection::vec(prop::collection::vec(step(kinds), 1..12), 1..4);
    proptest!(ProptestConfig::with_cases(cases), |(limit in limits, start in start(), batches in batches)| {
        let mut case = Case { latest, ..tested.case(limit, start.min(latest.as_nanos())) };
        for steps in batches {
            case.take(&steps)?;
        }
    });
}

fn signed_number() -> impl Strategy<Value = i64> {
    (number(), any::<bool>()).prop_map(|(number, flips)| if flips { !number } else { number }.cast_signed())
}

fn any_counter() -> impl Strategy<Value = Limit> {
    let bound = |usual| prop_oneof![Just(usual), signed_number()];
    let expiry = prop_oneof![
        Just(Expiry::Keep),
        number().prop_map(Expiry::After),
        start().prop_map(|nanos| Expiry::At(Timestamp::from_nanos(nanos))),
    ];
    (bound(i64::MIN), bound(i64::MAX), any::<bool>(), expiry, any::<bool>()).prop_map(
        |(one, other, saturates, expiry, keeps_expiry)| {
            let (lower, upper) = (one.min(other), one.max(other));
            Limit::Counter(Counter { lower, upper, saturates, expiry, keeps_expiry })
        },
    )
}

#[test]
fn counters_are_decided_as_in_rust() {
    let tested = RedisFixture::start();
    let ask = prop_oneof![
        9 => signed_number().prop_map(|by| Action::Ask(Ask::Add { by })),
        1 => Just(Action::Ask(Ask::Show)),
        1 => Just(Action::Forget),
    ];
    let asks = prop::collection::vec((any_counter(), ask, step(ASKS)), 1..12);
    let batches = prop::collection::vec(asks, 1..4);
    proptest!(ProptestConfig::with_cases(3_000), |(start in start(), batches in batches)| {
        // The last nanosecond stands for no expiry.
        let latest = Timestamp::from_nanos(u64::MAX - 1);
        let mut case = Case { latest, ..tested.case(Limit::Counter(Counter::default()), start.min(latest.as_nanos())) };
        for asks in batches {
            case.take_under(&asks)?;
        }
    });
}

/// A store in Redis.
struct RedisFixture {
    store: RedisStore,
    runtime: Runtime,
    cases: AtomicU64,
    server: RedisServer,
}

/// One bucket of the store, and its model.
struct Case<'a> {
    tested: &'a RedisFixture,
    limit: Limit,
    key: String,
    model: Model,
    at: Timestamp,
    latest: Timestamp,
}

impl RedisFixture {
    fn start() -> Self {
        let server = RedisServer::start();
        let options = RedisOptions { urls: vec![server.url()], timeout: PATIENCE, ..RedisOptions::default() };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        Self { store: RedisStore::open(options).unwrap(), runtime, cases: AtomicU64::new(0), server }
    }

    fn case(&self, limit: Limit, start: u64) -> Case<'_> {
        let key = format!("case {}", self.cases.fetch_add(1, Relaxed));
        Case {
            tested: self,
            limit,
            key,
            model: Model::default(),
            at: Timestamp::from_nanos(start),
            latest: Timestamp::MAX,
        }
    }
}

impl Case<'_> {
    /// Applies the steps as one batch.
    fn take(&mut self, steps: &[Step]) -> Result<(), TestCaseError> {
        let steps: Vec<_> = steps.iter().map(|step| (self.limit, step.action(), *step)).collect();
        self.take_under(&steps)
    }

    /// Applies actions under several limits as one batch. The steps say how time passes.
    fn take_under(&mut self, steps: &[(Limit, Action, Step)]) -> Result<(), TestCaseError> {
        let mut batch = Batch::default();
        // Differs from the actions' times, so that these count as supplied by clients.
        batch.begin(Timestamp::from_nanos(0x1234_5678_9abc_def1));
        let mut wanted = Vec::new();
        for (limit, action, step) in steps {
            self.at = step.after(self.at, &dated(*limit, self.at)).min(self.latest);
            let limit = dated(*limit, self.at);
            let write_bucket = |out: &mut Vec<u8>| out.extend(self.key.as_bytes());
            batch.push(limit, *action, self.at, |out| match action.record_space() {
                Some(space) => record_key::write(space, &[step.id], out, write_bucket),
                None => write_bucket(out),
            });
            let has_record = action.record_space().is_some();
            let key = if has_record { format!("{}#{}", self.key, step.id) } else { self.key.clone() };
            wanted.push(expected(&mut self.model, key, limit, *action, self.at));
        }
        self.tested.runtime.block_on(self.tested.store.apply(&mut batch));
        // Runs differ from store to store.
        let without_run = |outcome| Outcome { run: None, ..outcome };
        let outcomes: Vec<_> = (0..batch.len()).map(|index| without_run(batch.outcome(index).unwrap())).collect();
        prop_assert_eq!(outcomes, wanted.into_iter().map(without_run).collect::<Vec<_>>());
        Ok(())
    }
}

/// A server may not know of an operator's block yet. A rule's block never replaces it, but follows one that has ended.
#[test]
fn block_by_a_rule_does_not_replace_one_by_an_operator() {
    let redis = RedisServer::start();
    let runtime = Runtime::new().unwrap();
    let _entered = runtime.enter();
    let store =
        RedisStore::open(RedisOptions { urls: vec![redis.url()], timeout: PATIENCE, ..RedisOptions::default() })
            .unwrap();
    let now = Clock::system().now();
    let set = |lasts_ms: u64, setter: Setter| {
        let replaces = if let Setter::Rule(_) = setter { Replaces::OfRules } else { Replaces::All };
        let effect = Effect::Override { reason: Some("one".into()), setter };
        let value = Exception { effect, ends: Some(now.plus(lasts_ms * 1_000_000)) };
        let change = ExceptionChange { owner: "block:r".into(), actor: "eve".into(), value: Some(value) };
        runtime.block_on(store.change_exceptions(vec![change], replaces, now)).unwrap()[0]
    };
    let repetition = |number| Repetition { number, remembered_seconds: 60 };
    let by_rule = |number| Setter::Rule(repetition(number));
    assert_eq!(set(60_000, by_rule(1)), Changed::Added);
    assert_eq!(set(60_000, by_rule(2)), Changed::Replaced);
    assert_eq!(set(300, Setter::Operator), Changed::Replaced, "an operator's block");
    assert_eq!(set(60_000, by_rule(3)), Changed::Kept);
    let kept = || {
        let page = runtime.block_on(store.follow_exceptions(ExceptionCursor::Nothing, now)).unwrap();
        page.changes[0].value.clone().unwrap().repetition()
    };
    assert_eq!(kept(), None);
    until(|| set(60_000, by_rule(3)) != Changed::Kept);
    assert_eq!(kept(), Some(repetition(3)));
}
