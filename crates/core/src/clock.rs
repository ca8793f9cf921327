//! The only module that reads the clock.
//!
//! It contains [`Timestamp`] and the system's [`Clock`]; [`Anchor`] determines how the clock follows the machine's, which
//! people and programs may set. Code below the servers never reads a clock. Time is read once per batch of requests and
//! passed down, so that tests, replays and times from clients all take the same path.
//!
//! All threads share one clock. Reading it is as cheap as reading the monotonic clock. Each second, one of the threads that
//! read it corrects it, so there is no background task that could fail.

use std::hint;
use std::sync::LazyLock;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU64, fence};

use parking_lot::Mutex;
use rustix::time::{ClockId, Timespec, clock_gettime};

/// The machine's clock, as divvy uses it. All `Clock`s of a process return the same time.
///
/// It is corrected every second. If the machine's clock was set forward, this one follows at once. If it was set back
/// by up to ten seconds, this one stands still until the machine's has caught up. If it was set back further, this one
/// jumps back, too. Apart from such a jump it never runs backwards.
#[derive(Debug, Clone, Copy)]
pub struct Clock(&'static SharedClock<SystemSource>);

impl Clock {
    /// Returns the process's clock. The first call starts it.
    pub fn system() -> Self {
        static SYSTEM: LazyLock<SharedClock<SystemSource>> = LazyLock::new(|| SharedClock::new(SystemSource));
        Self(&SYSTEM)
    }

    /// Returns the current time. The front reads it once per batch.
    pub fn now(&self) -> Timestamp {
        self.0.now()
    }

    /// Returns nanoseconds since a fixed moment during the life of the process. They never run backwards, no program sets
    /// them, and they go on while the machine is suspended.
    pub fn monotonic_ns(&self) -> u64 {
        self.0.source.monotonic()
    }
}

/// Nanoseconds in one second.
pub const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// Nanoseconds in one millisecond.
pub const NANOS_PER_MILLI: u64 = 1_000_000;

/// A point in time: nanoseconds since the Unix epoch, up to the year 2554.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(u64);

impl Timestamp {
    /// 1970-01-01, 00:00 UTC. Also stands for "no time" where a field says so.
    pub const EPOCH: Self = Self(0);
    /// The latest time, in the year 2554.
    pub const MAX: Self = Self(u64::MAX);

    /// Returns the time this many nanoseconds after the epoch.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Returns the time; `None` after the year 2554.
    pub fn from_millis(millis: u64) -> Option<Self> {
        millis.checked_mul(NANOS_PER_MILLI).map(Self)
    }

    /// Returns the time; `None` after the year 2554.
    pub fn from_secs(seconds: u64) -> Option<Self> {
        seconds.checked_mul(NANOS_PER_SECOND).map(Self)
    }

    /// Returns the nanoseconds since the epoch.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the whole seconds since the epoch.
    pub const fn as_secs(self) -> u64 {
        self.0 / NANOS_PER_SECOND
    }

    /// Returns this time plus `nanos`, or [`Timestamp::MAX`].
    pub const fn plus(self, nanos: u64) -> Self {
        Self(self.0.saturating_add(nanos))
    }

    /// Returns this time minus `nanos`, or [`Timestamp::EPOCH`].
    pub const fn minus(self, nanos: u64) -> Self {
        Self(self.0.saturating_sub(nanos))
    }

    /// Returns the nanoseconds from `earlier` to this time, or 0 if `earlier` is later.
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// Returns the nanoseconds between both times, whichever is later. What was done long ago is not recent if the clock was set
    /// back since.
    pub const fn distance(self, other: Self) -> u64 {
        self.0.abs_diff(other.0)
    }
}

/// Returns `nanos` in whole seconds, rounded up so that a caller who waits this long waits long enough.
pub const fn ceil_seconds(nanos: u64) -> u64 {
    nanos.div_ceil(NANOS_PER_SECOND)
}

/// Maximum step back of the wall clock that divvy's clock waits out. After a larger step, it jumps. Buckets use the
/// same bound: if a request's time is further behind their own, they assume that the clock was set back.
pub const MAX_STANDSTILL_NS: u64 = 10 * NANOS_PER_SECOND;

/// Difference that is not corrected, because reading two clocks one after the other takes time.
const TOLERANCE_NS: u64 = NANOS_PER_SECOND / 1_000;

/// The time of the wall clock at a moment of the monotonic clock. The current time is derived from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Anchor {
    wall: Timestamp,
    /// The monotonic clock at that moment, in nanoseconds.
    monotonic: u64,
    /// The earliest time that may be returned. The clock stands still until it is reached.
    floor: Timestamp,
}

impl Anchor {
    fn new(wall: Timestamp, monotonic: u64) -> Self {
        Self { wall, monotonic, floor: Timestamp::EPOCH }
    }

    /// Returns the time at a moment of the monotonic clock.
    fn at(&self, monotonic: u64) -> Timestamp {
        self.at_without_floor(monotonic).max(self.floor)
    }

    /// Returns the anchor to use from now on, given the readings of both clocks; `None` if this one is still accurate.
    fn corrected(&self, wall: Timestamp, monotonic: u64) -> Option<Self> {
        let expected = self.at_without_floor(monotonic);
        if wall.distance(expected) <= TOLERANCE_NS {
            return None;
        }
        let now = self.at(monotonic);
        let is_waited_for = now.since(wall) <= MAX_STANDSTILL_NS;
        Some(Self { wall, monotonic, floor: if is_waited_for { now } else { Timestamp::EPOCH } })
    }

    fn at_without_floor(&self, monotonic: u64) -> Timestamp {
        self.wall.plus(monotonic.saturating_sub(self.monotonic))
    }
}

/// Interval for reading the wall clock.
const MEASURE_INTERVAL_NS: u64 = NANOS_PER_SECOND;

/// Maximum duration of a useful measurement. A longer one means that the thread had to wait for a processor.
const MAX_MEASURING_NS: u64 = NANOS_PER_SECOND / 4_000;

/// Maximum number of attempts at a measurement before it is postponed to the next second.
const MAX_TRIES: usize = 4;

/// A source of times.
pub trait Source {
    /// Returns nanoseconds since a fixed moment during the life of the process. Never decreases.
    fn monotonic(&self) -> u64;

    /// Returns the machine's current time.
    fn wall(&self) -> Timestamp;
}

/// The machine's clocks.
#[derive(Debug)]
struct SystemSource;

impl Source for SystemSource {
    fn monotonic(&self) -> u64 {
        // This clock continues while the machine is suspended.
        #[cfg(target_os = "linux")]
        const CLOCK: ClockId = ClockId::Boottime;
        #[cfg(not(target_os = "linux"))]
        const CLOCK: ClockId = ClockId::Monotonic;
        nanos(clock_gettime(CLOCK))
    }

    fn wall(&self) -> Timestamp {
        Timestamp::from_nanos(nanos(clock_gettime(ClockId::Realtime)))
    }
}

/// Converts a time to nanoseconds. A time before 1970 becomes the epoch: windows then start there, and still expire.
fn nanos(time: Timespec) -> u64 {
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    seconds.saturating_mul(NANOS_PER_SECOND).saturating_add(nanos)
}

/// An [`Anchor`] that threads read without a lock, even while another thread corrects it (a sequence lock; see Boehm,
/// "Can seqlocks get along with programming language memory models?", 2012).
#[derive(Debug)]
struct SharedClock<S> {
    source: S,
    /// Odd while the anchor is being changed.
    version: AtomicU64,
    wall: AtomicU64,
    monotonic: AtomicU64,
    floor: AtomicU64,
    /// Time of the last measurement, on the monotonic clock.
    measured: AtomicU64,
    /// Held by the thread that corrects the anchor.
    correcting: Mutex<()>,
}

impl<S: Source> SharedClock<S> {
    fn new(source: S) -> Self {
        let anchor = Anchor::new(source.wall(), source.monotonic());
        let shared = Self {
            source,
            version: AtomicU64::new(0),
            wall: AtomicU64::new(anchor.wall.as_nanos()),
            monotonic: AtomicU64::new(anchor.monotonic),
            floor: AtomicU64::new(anchor.floor.as_nanos()),
            measured: AtomicU64::new(anchor.monotonic),
            correcting: Mutex::new(()),
        };
        shared.measure();
        shared
    }

    fn now(&self) -> Timestamp {
        let (monotonic, anchor) = self.read();
        let measured = self.measured.load(Relaxed);
        let is_due = monotonic.saturating_sub(measured) >= MEASURE_INTERVAL_NS;
        // If several threads notice, only one of them measures.
        if is_due && self.measured.compare_exchange(measured, monotonic, Relaxed, Relaxed).is_ok() {
            self.measure();
            let (monotonic, anchor) = self.read();
            return anchor.at(monotonic);
        }
        anchor.at(monotonic)
    }

    /// Returns the monotonic time and the anchor that was in force then.
    fn read(&self) -> (u64, Anchor) {
        loop {
            let version = self.version.load(Acquire);
            if version.is_multiple_of(2) {
                let monotonic = self.source.monotonic();
                let anchor = self.load();
                fence(Acquire);
                if self.version.load(Relaxed) == version {
                    return (monotonic, anchor);
                }
            }
            hint::spin_loop();
        }
    }

    fn load(&self) -> Anchor {
        Anchor {
            wall: Timestamp::from_nanos(self.wall.load(Relaxed)),
            monotonic: self.monotonic.load(Relaxed),
            floor: Timestamp::from_nanos(self.floor.load(Relaxed)),
        }
    }

    /// Reads both clocks, and corrects the anchor.
    fn measure(&self) {
        for _ in 0..MAX_TRIES {
            let before = self.source.monotonic();
            let wall = self.source.wall();
            let after = self.source.monotonic();
            if after.saturating_sub(before) <= MAX_MEASURING_NS {
                return self.correct(wall, after);
            }
        }
    }

    fn correct(&self, wall: Timestamp, monotonic: u64) {
        // A thread that was delayed here for a second leaves the correction to the next one.
        let Some(_correcting) = self.correcting.try_lock() else { return };
        if self.load().corrected(wall, monotonic).is_none() {
            return;
        }
        let version = self.version.load(Relaxed);
        self.version.store(version + 1, Relaxed);
        // From here on no thread gets a time from the old anchor. Its current time is therefore final, and the floor is
        // not earlier than any time that was returned.
        fence(SeqCst);
        let now = self.source.monotonic();
        let wall = wall.plus(now.saturating_sub(monotonic));
        if let Some(anchor) = self.load().corrected(wall, now) {
            self.wall.store(anchor.wall.as_nanos(), Relaxed);
            self.monotonic.store(anchor.monotonic, Relaxed);
            self.floor.store(anchor.floor.as_nanos(), Relaxed);
        }
        self.version.store(version + 2, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::Arc;
    use std::thread;

    const START: u64 = 1_000_000 * NANOS_PER_SECOND;

    fn anchor() -> Anchor {
        Anchor::new(Timestamp::from_nanos(START), 500)
    }

    /// Returns the anchor after `elapsed` on the monotonic clock, if the wall clock shows `wall`.
    fn after(anchor: Anchor, elapsed: u64, wall: u64) -> Anchor {
        let monotonic = anchor.monotonic + elapsed;
        anchor.corrected(Timestamp::from_nanos(wall), monotonic).unwrap_or(anchor)
    }

    proptest! {
        #[test]
        fn unset_clock_needs_no_correction(
            elapsed in 0..u64::MAX / 4, noise in 0..=2 * TOLERANCE_NS,
        ) {
            let wall = START + elapsed + noise - TOLERANCE_NS.min(elapsed);
            let wall = wall.min(START + elapsed + TOLERANCE_NS);
            prop_assert_eq!(anchor().corrected(Timestamp::from_nanos(wall), 500 + elapsed), None);
            prop_assert_eq!(anchor().at(500 + elapsed).as_nanos(), START + elapsed);
        }

        #[test]
        fn step_forward_is_followed_at_once(elapsed in 0..u64::MAX / 4, step in TOLERANCE_NS + 1..u64::MAX / 4, later in 0..u64::MAX / 4) {
            // A suspend has the same effect: the monotonic clock stands still during it.
            let wall = START + elapsed + step;
            let anchor = after(anchor(), elapsed, wall);
            prop_assert_eq!(anchor.at(500 + elapsed).as_nanos(), wall);
            prop_assert_eq!(anchor.at(500 + elapsed + later).as_nanos(), wall + later);
        }

        #[test]
        fn small_step_back_causes_a_standstill(
            elapsed in 0..u64::MAX / 4, step in TOLERANCE_NS + 1..=MAX_STANDSTILL_NS, later in 0..2 * MAX_STANDSTILL_NS,
        ) {
            let now = START + elapsed;
            let anchor = after(anchor(), elapsed, now - step);
            prop_assert_eq!(anchor.at(500 + elapsed).as_nanos(), now, "it does not run backwards");
            let expected = if later < step { now } else { now - step + later };
            prop_assert_eq!(anchor.at(500 + elapsed + later).as_nanos(), expected);
        }

        #[test]
        fn large_step_back_is_followed_at_once(elapsed in 0..u64::MAX / 4, step in MAX_STANDSTILL_NS + 1..START) {
            let wall = START + elapsed - step;
            let anchor = after(anchor(), elapsed, wall);
            prop_assert_eq!(anchor.at(500 + elapsed).as_nanos(), wall);
        }

        /// The properties hold for any changes of the wall clock, measured every second.
        #[test]
        fn clock_is_at_most_ten_seconds_ahead_never_behind_and_only_goes_back_by_jumps(
            steps in prop::collection::vec((0..2 * NANOS_PER_SECOND, -15..15i64, 0..4u8), 1..60),
        ) {
            let (mut anchor, mut monotonic, mut wall) = (anchor(), 500, START);
            let mut last = anchor.at(monotonic);
            for (elapsed, seconds, kind) in steps {
                monotonic += elapsed;
                // Most of the time, the clock is not set.
                let set = if kind == 0 { seconds * NANOS_PER_SECOND as i64 } else { 0 };
                wall = (wall + elapsed).saturating_add_signed(set);
                let wall = Timestamp::from_nanos(wall);
                let before = anchor.at(monotonic);
                anchor = anchor.corrected(wall, monotonic).unwrap_or(anchor);
                let now = anchor.at(monotonic);
                prop_assert!(now >= wall);
                prop_assert!(now.since(wall) <= MAX_STANDSTILL_NS);
                prop_assert!(before >= last, "between two measurements it does not run backwards");
                if now < before {
                    prop_assert_eq!(now, wall, "a jump");
                    prop_assert!(before.since(wall) > MAX_STANDSTILL_NS);
                }
                last = now;
            }
        }

        #[test]
        fn times_never_overflow(wall in any::<u64>(), set in any::<u64>(), monotonic in any::<u64>(), later in any::<u64>()) {
            let anchor = Anchor::new(Timestamp::from_nanos(wall), monotonic);
            let corrected = anchor.corrected(Timestamp::from_nanos(set), later).unwrap_or(anchor);
            prop_assert!(corrected.at(u64::MAX) >= corrected.at(later));
        }
    }

    /// Clocks that tests control.
    #[derive(Debug)]
    struct FakeClocks {
        monotonic: AtomicU64,
        wall: AtomicU64,
    }

    impl Source for Arc<FakeClocks> {
        fn monotonic(&self) -> u64 {
            self.monotonic.load(SeqCst)
        }

        fn wall(&self) -> Timestamp {
            Timestamp::from_nanos(self.wall.load(SeqCst))
        }
    }

    impl FakeClocks {
        fn pass(&self, seconds: u64) {
            self.monotonic.fetch_add(seconds * NANOS_PER_SECOND, SeqCst);
            self.wall.fetch_add(seconds * NANOS_PER_SECOND, SeqCst);
        }

        fn set(&self, seconds: i64) {
            let wall = self.wall.load(SeqCst).saturating_add_signed(seconds * NANOS_PER_SECOND as i64);
            self.wall.store(wall, SeqCst);
        }
    }

    fn clock() -> (Arc<FakeClocks>, SharedClock<Arc<FakeClocks>>) {
        let fake = Arc::new(FakeClocks { monotonic: AtomicU64::new(77), wall: AtomicU64::new(START) });
        (Arc::clone(&fake), SharedClock::new(fake))
    }

    /// Returns the seconds since the start of the test.
    fn elapsed_seconds(clock: &SharedClock<Arc<FakeClocks>>) -> u64 {
        (clock.now().as_nanos() - START) / NANOS_PER_SECOND
    }

    #[test]
    fn wall_clock_is_read_each_second_and_followed() {
        let (fake, clock) = clock();
        fake.set(100);
        assert_eq!(elapsed_seconds(&clock), 0, "not measured again yet");
        fake.pass(1);
        assert_eq!(elapsed_seconds(&clock), 101, "forward at once");
        fake.set(-10);
        fake.pass(1);
        assert_eq!(elapsed_seconds(&clock), 102, "back by standing still");
        fake.pass(9);
        assert_eq!(elapsed_seconds(&clock), 102);
        fake.pass(3);
        assert_eq!(elapsed_seconds(&clock), 104);
        fake.set(-50);
        fake.pass(1);
        assert_eq!(elapsed_seconds(&clock), 55, "back by a jump");
    }

    #[test]
    fn threads_never_see_time_run_backwards_during_corrections() {
        let (fake, clock) = clock();
        let (fake, clock) = (&fake, &clock);
        thread::scope(|scope| {
            let readers: Vec<_> = (0..3)
                .map(|_| {
                    scope.spawn(move || {
                        let mut last = clock.now();
                        while fake.monotonic.load(SeqCst) < 300 * NANOS_PER_SECOND {
                            let now = clock.now();
                            assert!(now >= last, "{now:?} after {last:?}");
                            last = now;
                        }
                    })
                })
                .collect();
            // Each second, the clock is set forward or back, but never far enough to jump.
            for second in 0..300 {
                for _ in 0..100 {
                    fake.monotonic.fetch_add(NANOS_PER_SECOND / 100, SeqCst);
                    fake.wall.fetch_add(NANOS_PER_SECOND / 100, SeqCst);
                }
                if second % 10 == 0 {
                    fake.set(if second % 20 == 0 { 4 } else { -4 });
                }
            }
            fake.pass(1);
            readers.into_iter().for_each(|reader| reader.join().unwrap());
        });
        assert!(clock.now().since(fake.wall()) <= MAX_STANDSTILL_NS);
    }

    #[test]
    fn clock_agrees_with_the_standard_library() {
        let clock = SharedClock::new(SystemSource);
        let elapsed =
            |time: std::time::SystemTime| time.duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64;
        let (before, now, after) =
            (elapsed(std::time::SystemTime::now()), clock.now().as_nanos(), elapsed(std::time::SystemTime::now()));
        // Required accuracy of a measurement.
        let slack = NANOS_PER_SECOND / 500;
        assert!(now + slack >= before && now <= after + slack, "{before} {now} {after}");
        assert!(clock.now() <= clock.now());
    }
}
