//! The clock that all threads share. Reading it is as cheap as reading the monotonic clock. Each second, one of the
//! threads that read it corrects it, so there is no background task that could fail.

use std::hint;
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release, Ordering::SeqCst, fence};

use parking_lot::Mutex;
use rustix::time::{ClockId, Timespec, clock_gettime};

use super::anchor::Anchor;
use super::timestamp::{NANOS_PER_SECOND, Timestamp};

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
pub struct SystemSource;

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
pub struct SharedClock<S> {
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
    pub fn new(source: S) -> Self {
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

    pub fn now(&self) -> Timestamp {
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
    use std::sync::Arc;
    use std::thread;

    use super::*;
    use crate::clock::anchor::MAX_STANDSTILL_NS;

    const START: u64 = 1_000_000 * NANOS_PER_SECOND;

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
    fn suspend_that_stops_the_monotonic_clock_is_noticed() {
        let (fake, clock) = clock();
        fake.set(3600);
        fake.pass(1);
        assert_eq!(elapsed_seconds(&clock), 3601);
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
