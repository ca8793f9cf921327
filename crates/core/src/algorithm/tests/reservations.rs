//! Reservations, compared with a model that lists each of them. In a bucket, many reservations share a few groups.

use super::*;
use crate::algorithm::decide::Algorithm;
use crate::algorithm::groups::{ExpiryGroups, MAX_GROUPS, longest_ns, round_up_end};
use crate::algorithm::limit::AlgorithmState;
use crate::algorithm::limit::with_algorithm;
use crate::algorithm::record::{Content, REMEMBERED_NS};
use crate::clock::{NANOS_PER_MILLI, NANOS_PER_SECOND};

const NAMES: usize = 6;

#[derive(Debug, Clone)]
enum Step {
    Ask(Ask),
    Reserve {
        name: usize,
        credits: u64,
        ttl_seconds: u32,
    },
    Commit {
        name: usize,
        cost: u64,
    },
    Release(usize),
    Renew {
        name: usize,
        ttl_seconds: Option<u32>,
    },
    Forget,
    /// The clock is set back before the step.
    SetBack {
        by_ms: u64,
        next: Box<Step>,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let set_back = (11_000..100_000u64, ordinary_step());
    let set_back = set_back.prop_map(|(by_ms, next)| Step::SetBack { by_ms, next: Box::new(next) });
    prop_oneof![20 => ordinary_step(), 1 => set_back]
}

fn ordinary_step() -> impl Strategy<Value = Step> {
    let name = 0..NAMES;
    prop_oneof![
        3 => (0..6u64).prop_map(|cost| Step::Ask(Ask::Take { cost })),
        1 => (1..15u64).prop_map(|cost| Step::Ask(Ask::Overdraw { cost })),
        1 => (0..15u64).prop_map(|cost| Step::Ask(Ask::Charge { cost })),
        1 => (0..15u64).prop_map(|cost| Step::Ask(Ask::Refund { cost })),
        1 => (0..15u64).prop_map(|cost| Step::Ask(Ask::Look { cost })),
        1 => Just(Step::Ask(Ask::Show)),
        6 => (name.clone(), 1..8u64, 1..40u32)
            .prop_map(|(name, credits, ttl_seconds)| Step::Reserve { name, credits, ttl_seconds }),
        4 => (name.clone(), 0..12u64).prop_map(|(name, cost)| Step::Commit { name, cost }),
        2 => name.clone().prop_map(Step::Release),
        2 => (name, prop::option::of(1..40u32)).prop_map(|(name, ttl_seconds)| Step::Renew { name, ttl_seconds }),
        1 => Just(Step::Forget),
    ]
}

/// Generates limits that support reservations, with windows that overlap the reservations' TTLs.
fn limit() -> impl Strategy<Value = Limit> {
    let seconds = || (1..=30u64).prop_map(|seconds| seconds * NANOS_PER_SECOND / 2);
    let takes = limit_of(|| 1..=20u64, seconds).prop_filter("a log has none", |limit| limit.kind() != Kind::SlidingLog);
    let leases = (1..=20u64).prop_map(|leases| Limit::Concurrency(Concurrency::new(leases, 30).unwrap()));
    prop_oneof![4 => takes, 1 => leases]
}

/// The state of a reservation, by its name.
#[derive(Debug, Clone, Copy)]
enum ModelRecord {
    Open { credits: u64, ttl_seconds: u32, ends: u64, is_held: bool },
    Committed { until: u64, args: Option<(u64, u32)>, answer: (u64, u64, u64) },
}

/// The bucket with its reservations, the records, and a model of both. The model is a bucket without reservations, and
/// a list of all reservations.
struct Both {
    bucket: Bucket,
    records: [Option<Record>; NAMES],
    base: Bucket,
    known: [Option<ModelRecord>; NAMES],
    at: u64,
}

impl Both {
    fn new(limit: Limit) -> Self {
        Self {
            bucket: Bucket::new(limit),
            records: [None; NAMES],
            base: Bucket::new(limit),
            known: [None; NAMES],
            at: START,
        }
    }

    fn aside(&self) -> u64 {
        let aside = |known: &Option<ModelRecord>| match known {
            Some(ModelRecord::Open { credits, ends, is_held: true, .. }) if self.at < *ends => *credits,
            _ => 0,
        };
        self.known.iter().map(aside).sum()
    }

    fn left(&mut self) -> (u64, u64) {
        let look = self.base.look(0, self.at);
        let used = self.bucket.limit.capacity() + look.owed - look.left + self.aside();
        (self.bucket.limit.capacity().saturating_sub(used), used.saturating_sub(self.bucket.limit.capacity()))
    }

    fn decide(&mut self, name: usize, ask: ReservationAsk) -> Outcome {
        let at = Timestamp::from_nanos(self.at);
        // After the clock was set back, a commit is remembered for no longer than one that is made now.
        if let Some(ModelRecord::Committed { until, args, .. }) = &mut self.known[name] {
            let latest = self.at + REMEMBERED_NS.max(longest_ns(args.map_or(0, |(_, ttl_seconds)| ttl_seconds)));
            *until = if *until > latest + 10 * NANOS_PER_SECOND { latest } else { *until };
        }
        let (bucket, record) = (self.bucket.state.as_ref(), self.records[name].as_ref());
        let (Decision { outcome, state }, record) =
            self.bucket.limit.decide_reservation(bucket, record, ask, self.at + name as u64, at);
        self.bucket.state = state.or(self.bucket.state.take());
        match record {
            RecordChange::Keep => {}
            RecordChange::Set(record) => self.records[name] = Some(record),
            RecordChange::Clear => self.records[name] = None,
        }
        outcome
    }

    /// Returns the end of the current window.
    fn window_end(&mut self) -> u64 {
        let window_ns = match self.bucket.limit {
            Limit::FixedWindow(limit) => limit.window_ns.get(),
            _ => return u64::MAX,
        };
        match &self.base.state {
            Some(State::FixedWindow(state)) if state.ends.as_nanos() > self.at => state.ends.as_nanos(),
            _ => self.at + window_ns,
        }
    }

    /// Returns the latest time in the state of the bucket without reservations: the start of a window, or the last
    /// refill.
    fn base_time(&self) -> u64 {
        fn time_of<A: Algorithm<State: AlgorithmState>>(limit: &A, state: &State) -> Option<Timestamp> {
            Some(limit.time(A::State::downcast(state)?))
        }
        let state = self.base.state.as_ref().unwrap();
        with_algorithm!(self.bucket.limit, limit => time_of(&limit, state)).unwrap().as_nanos()
    }

    /// Begins a window with the first reservation, as a hit would.
    fn begin_window(&mut self) {
        let ends = self.window_end();
        if let Limit::FixedWindow(limit) = self.bucket.limit {
            let is_open =
                matches!(&self.base.state, Some(State::FixedWindow(state)) if state.ends.as_nanos() > self.at);
            if !is_open {
                let count = limit.credits.get();
                self.base.state = Some(State::FixedWindow(crate::algorithm::WindowState {
                    ends: Timestamp::from_nanos(ends),
                    count,
                }));
            }
        }
    }

    /// Returns the reservation, if it is open.
    fn open(&self, name: usize) -> Option<(u64, u64)> {
        match self.known[name] {
            Some(ModelRecord::Open { credits, ends, is_held: true, .. }) if self.at < ends => Some((credits, ends)),
            _ => None,
        }
    }

    fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        let (left, _) = self.left();
        match *step {
            Step::Ask(ask) => {
                let outcome = self.bucket.ask(ask, self.at);
                let takes = match ask {
                    Ask::Take { .. } | Ask::Overdraw { .. } => ask.wanted() <= left,
                    Ask::Look { .. } | Ask::Show => false,
                    _ => true,
                };
                let before = if ask == Ask::Show { self.aside() } else { left };
                prop_assert_eq!((outcome.before, outcome.allowed), (before, ask.wanted() <= left), "{:?}", ask);
                if takes {
                    let ask =
                        if let Ask::Take { cost } | Ask::Overdraw { cost } = ask { Ask::Charge { cost } } else { ask };
                    self.base.ask(ask, self.at);
                }
            }
            Step::Reserve { name, credits, ttl_seconds } => self.reserve(name, credits, ttl_seconds)?,
            Step::Commit { name, cost } => self.commit(name, cost)?,
            Step::Release(name) => {
                let outcome = self.decide(name, ReservationAsk::Release { run: None });
                let open = self.open(name);
                prop_assert_eq!(outcome.resolution, if open.is_some() { Resolution::Done } else { Resolution::Gone });
                if open.is_some() {
                    self.known[name] = None;
                }
            }
            Step::Renew { name, ttl_seconds } => {
                let window = self.window_end() / NANOS_PER_MILLI * NANOS_PER_MILLI;
                let first = self.records[name].map(|record| match record.content {
                    Content::Open { reservation, .. } | Content::Committed { reservation, .. } => {
                        reservation.ttl_seconds
                    }
                    Content::Answer { .. } => panic!("{name} is no reservation"),
                });
                let outcome = self.decide(name, ReservationAsk::Renew { ttl_seconds, run: None });
                let ttl_seconds = ttl_seconds.or(first).unwrap_or_default();
                match (self.open(name), &mut self.known[name]) {
                    (Some((_, before)), Some(ModelRecord::Open { ends, .. })) => {
                        let wanted = round_up_end(Timestamp::from_nanos(self.at), ttl_seconds).as_nanos();
                        *ends = wanted.max(before).min(window);
                        prop_assert_eq!((outcome.resolution, outcome.session.as_nanos()), (Resolution::Done, *ends));
                    }
                    _ => prop_assert_eq!((outcome.resolution, outcome.allowed), (Resolution::Gone, false)),
                }
            }
            Step::Forget => {
                (self.bucket.state, self.base.state) = (None, None);
                for known in self.known.iter_mut().flatten() {
                    if let ModelRecord::Open { is_held, .. } = known {
                        *is_held = false;
                    }
                }
            }
            Step::SetBack { by_ms, ref next } => {
                // Any ask makes the bucket drop expired reservations.
                self.step(&Step::Ask(Ask::Charge { cost: 1 }))?;
                let before = self.at;
                let time = match &self.bucket.state {
                    Some(State::Reserved(state)) => state.groups.time.as_nanos().max(self.base_time()),
                    _ => self.base_time(),
                };
                self.at = self.base_time() - by_ms * NANOS_PER_MILLI;
                let by_ns = time - self.at;
                self.base.ask(Ask::Charge { cost: 0 }, self.at);
                for known in self.known.iter_mut().flatten() {
                    if let ModelRecord::Open { ends, is_held, .. } = known {
                        *is_held &= *ends > before;
                        *ends -= by_ns / NANOS_PER_MILLI * NANOS_PER_MILLI;
                    }
                }
                self.step(next)?;
                self.step(&Step::Ask(Ask::Charge { cost: 1 }))?;
            }
        }
        let (left, owed) = self.left();
        let look = self.bucket.look(1, self.at);
        prop_assert_eq!((look.left, look.owed), (left, owed), "{:?}", step);
        Ok(())
    }

    fn reserve(&mut self, name: usize, credits: u64, ttl_seconds: u32) -> Result<(), TestCaseError> {
        let (left, _) = self.left();
        let is_lease = self.bucket.limit.kind() == Kind::Concurrency;
        let outcome = self.decide(name, ReservationAsk::Reserve { credits, ttl_seconds });
        let args = match self.known[name] {
            Some(ModelRecord::Open { credits, ttl_seconds, .. }) if self.open(name).is_some() => {
                Some(Some((credits, ttl_seconds)))
            }
            Some(ModelRecord::Committed { until, args, .. }) if self.at < until && !is_lease => Some(args),
            _ => None,
        };
        if let Some(args) = args {
            let is_same = args.is_none_or(|args| args == (credits, if is_lease { args.1 } else { ttl_seconds }));
            let resolution = if is_same { Resolution::Repeated } else { Resolution::Different };
            prop_assert_eq!((outcome.resolution, outcome.allowed), (resolution, is_same));
            return Ok(());
        }
        prop_assert_eq!(
            (outcome.resolution, outcome.allowed, outcome.before),
            (Resolution::Done, credits <= left, left)
        );
        if outcome.allowed {
            let window = self.window_end() / NANOS_PER_MILLI * NANOS_PER_MILLI;
            self.begin_window();
            let ends = round_up_end(Timestamp::from_nanos(self.at), ttl_seconds).as_nanos().min(window);
            prop_assert_eq!(outcome.session.as_nanos(), ends);
            self.known[name] = Some(ModelRecord::Open { credits, ttl_seconds, ends, is_held: true });
        }
        Ok(())
    }

    fn commit(&mut self, name: usize, cost: u64) -> Result<(), TestCaseError> {
        let outcome = self.decide(name, ReservationAsk::Commit { cost, charges: true, run: None });
        let told = (outcome.left, outcome.owed, outcome.reset_ns);
        let (args, ends) = match self.known[name] {
            Some(ModelRecord::Committed { until, answer, .. }) if self.at < until => {
                prop_assert_eq!((outcome.resolution, told), (Resolution::Repeated, answer));
                return Ok(());
            }
            Some(ModelRecord::Open { credits, ttl_seconds, ends, .. }) if self.open(name).is_some() => {
                (Some((credits, ttl_seconds)), ends)
            }
            _ => (None, 0),
        };
        let is_open = self.open(name).is_some();
        prop_assert_eq!(outcome.resolution, if is_open { Resolution::Done } else { Resolution::Late });
        if cost > 0 {
            self.base.ask(Ask::Charge { cost }, self.at);
        }
        let as_made = self.at + longest_ns(args.map_or(0, |(_, ttl_seconds)| ttl_seconds));
        let until = (self.at + REMEMBERED_NS).max(if is_open { ends.min(as_made) } else { 0 });
        self.known[name] = Some(ModelRecord::Committed { until, args, answer: told });
        prop_assert_eq!((told.0, told.1), self.left());
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn bucket_with_reservations_acts_like_a_plain_bucket_with_credit_set_aside(
        limit in limit(), steps in prop::collection::vec((0..4_000u64, step()), 1..60), cost in 1..15u64,
    ) {
        let mut both = Both::new(limit);
        for (gap_ms, step) in steps {
            both.at += gap_ms * NANOS_PER_MILLI;
            both.step(&step)?;
        }
        let outcome = both.bucket.look(cost, both.at);
        check_retry(&mut both.bucket, outcome, cost, both.at)?;
    }

    /// For any number of reservations and any ends, at least the reserved credits are set aside, in at most
    /// [`MAX_GROUPS`] groups.
    #[test]
    fn few_groups_hold_any_number_of_reservations(
        steps in prop::collection::vec((0..500u64, 1..9u64, 1..2_000u64, any::<prop::sample::Index>(), 0..4u8), 1..400),
    ) {
        let (mut reserved, mut live) = (ExpiryGroups::new(0), Vec::<(u64, u64)>::new());
        let mut at = START;
        let time = Timestamp::from_nanos;
        for (gap, credits, ttl, which, kind) in steps {
            at += gap;
            reserved.advance(time(at));
            live.retain(|(ends, _)| *ends > at);
            if kind == 0 && !live.is_empty() {
                let (ends, credits) = live.swap_remove(which.index(live.len()));
                prop_assert!(reserved.remove(credits, time(ends), time(at)));
            } else {
                reserved.add(credits, time(at + ttl), time(at));
                live.push((at + ttl, credits));
            }
            prop_assert!(reserved.groups().len() <= MAX_GROUPS);
            prop_assert!(reserved.groups().is_sorted_by(|one, next| one.ends < next.ends && one.credits > 0));
            for (ends, _) in &live {
                let set_aside: u64 = reserved.groups().iter().filter(|group| group.ends >= time(*ends)).map(|group| group.credits).sum();
                let wanted: u64 = live.iter().filter(|(other, _)| other >= ends).map(|(_, credits)| credits).sum();
                prop_assert!(set_aside >= wanted);
            }
        }
        let last = live.iter().map(|(ends, _)| *ends).max().unwrap_or(at);
        prop_assert!(reserved.last_end() <= time(last.max(at + 2_000)));
    }
}

#[test]
fn ends_are_rounded_up_to_a_fraction_of_the_ttl_or_a_second() {
    let seconds = |seconds: u64| Timestamp::from_nanos(seconds * NANOS_PER_SECOND);
    assert_eq!(
        round_up_end(seconds(1_000), 60),
        Timestamp::from_millis(1_060_000_u64.next_multiple_of(1_875)).unwrap()
    );
    assert_eq!(round_up_end(seconds(1_000), 5), seconds(1_005));
    assert_eq!(round_up_end(seconds(1_000).plus(1), 5), seconds(1_006));
    assert_eq!(round_up_end(Timestamp::MAX, 60), Timestamp::MAX);
}

/// After RESET, an earlier reservation must not free credits that others have reserved since.
#[test]
fn reservations_before_a_reset_stay_gone_even_if_others_reserve_again() {
    let mut both = Both::new(Limit::TokenBucket(TokenBucket::new(10, 1, 1_000 * NANOS_PER_SECOND).unwrap()));
    for step in [
        Step::Reserve { name: 0, credits: 4, ttl_seconds: 30 },
        Step::Forget,
        Step::Reserve { name: 1, credits: 7, ttl_seconds: 30 },
        Step::Renew { name: 0, ttl_seconds: Some(30) },
        Step::Release(0),
        Step::Commit { name: 0, cost: 2 },
    ] {
        both.step(&step).unwrap();
    }
    assert_eq!(both.bucket.look(0, both.at).left, 1);
    assert!(matches!(both.records[0].unwrap().content, Content::Committed { .. }));
}

/// Regression test: when the groups were moved back, but not the records, a release freed later reservations of others,
/// or nothing.
#[test]
fn reservations_from_before_a_clock_set_back_can_be_released_and_renewed() {
    let mut both = Both::new(Limit::Concurrency(Concurrency::new(4, 30).unwrap()));
    let seconds = |seconds: u64| seconds * NANOS_PER_SECOND;
    let reserve = |name, ttl_seconds| Step::Reserve { name, credits: 1, ttl_seconds };
    for step in [reserve(0, 30), reserve(1, 30), reserve(2, 30)] {
        both.step(&step).unwrap();
    }
    both.at -= seconds(3_600);
    assert_eq!(both.decide(0, ReservationAsk::Release { run: None }).resolution, Resolution::Done);
    assert!(both.decide(3, ReservationAsk::Reserve { credits: 1, ttl_seconds: 300 }).allowed);
    assert_eq!(both.decide(1, ReservationAsk::Release { run: None }).resolution, Resolution::Done);
    let renewed = both.decide(2, ReservationAsk::Renew { ttl_seconds: Some(100), run: None });
    assert_eq!(
        (renewed.resolution, renewed.session.as_nanos()),
        (Resolution::Done, (both.at + seconds(100)).next_multiple_of(3_125_000_000))
    );
    for (later, left) in [(60, 2), (110, 3), (290, 3), (320, 4)] {
        assert_eq!(both.bucket.look(0, both.at + seconds(later)).left, left, "{later} s later");
    }
    both.at += seconds(60);
    assert_eq!(both.decide(0, ReservationAsk::Release { run: None }).resolution, Resolution::Gone);
}

/// A reload may change the number of leases and their TTL. No lease is granted twice.
#[test]
fn leases_stay_held_under_another_limit() {
    let limit = |leases, seconds| Limit::Concurrency(Concurrency::new(leases, seconds).unwrap());
    let mut both = Both::new(limit(3, 30));
    for name in 0..3 {
        assert!(both.decide(name, ReservationAsk::Reserve { credits: 1, ttl_seconds: 30 }).allowed);
    }
    both.bucket.limit = limit(2, 60);
    let denied = both.decide(3, ReservationAsk::Reserve { credits: 1, ttl_seconds: 60 });
    assert_eq!((denied.allowed, denied.left, denied.owed), (false, 0, 1));
    let again = both.decide(0, ReservationAsk::Reserve { credits: 1, ttl_seconds: 60 });
    assert_eq!((again.allowed, again.resolution), (true, Resolution::Repeated));
    for name in 0..2 {
        assert_eq!(both.decide(name, ReservationAsk::Release { run: None }).resolution, Resolution::Done);
    }
    assert!(both.decide(3, ReservationAsk::Reserve { credits: 1, ttl_seconds: 60 }).allowed);
}

/// Leases use nothing up: a cost changes nothing, and a bucket without leases equals a fresh one.
#[test]
fn committed_lease_is_free() {
    let limit = Limit::Concurrency(Concurrency::new(2, 30).unwrap());
    let mut both = Both::new(limit);
    assert!(both.decide(0, ReservationAsk::Reserve { credits: 2, ttl_seconds: 30 }).allowed);
    assert!(!both.bucket.look(1, both.at).allowed);
    let committed = both.decide(0, ReservationAsk::Commit { cost: 1_000, charges: true, run: None });
    assert_eq!((committed.resolution, committed.left, committed.owed, committed.reset_ns), (Resolution::Done, 2, 0, 0));
    let state = both.bucket.state.unwrap();
    assert_eq!(limit.lifetime_ns(&state, Timestamp::from_nanos(both.at)), 0);
}
