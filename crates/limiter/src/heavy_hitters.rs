//! The actors of each rule that take the most and that are denied the most, in the last minute and the last hour.
//!
//! [`Top`] gets events from the [report](super::report): a denial, or credits that were taken. A [`Sampler`] chooses the
//! events of a thread that are counted, so that a hit costs little. Each rule has a [`Sketch`] for each order
//! and window: a table of actors with a count for each slice of the window. All sketches share one [`Budget`].
//!
//! Sketches belong to all threads, and only sampled events lock them. A sketch for each thread would divide the memory by the
//! number of threads, and each would know less about the same actors.
//!
//! A thread counts its first [`COUNTED_EACH`] events of a second one by one. Of the events after them, it counts one in
//! [`ONE_IN`], at random, and each stands for that many. So counts are exact on a server with little traffic, and a hit
//! on a busy one costs next to nothing. The expected value of a count is its true value. If `n` events of an actor were
//! sampled with this probability, the standard deviation of their number is the square root of `n * (ONE_IN - 1)`.

mod sketch;

use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use foldhash::quality::RandomState;
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use self::sketch::{Budget, Grant, Sketch, take};
pub use self::sketch::{Event, Order, Ranked, Window};
use divvy_core::clock::{NANOS_PER_SECOND, Timestamp};

/// Default for the memory of all sketches (bytes).
pub const DEFAULT_TOP_MEMORY: usize = 16 * 1024 * 1024;

/// Minimum time between two searches for idle sketches.
const DROP_INTERVAL_NS: u64 = 60 * NANOS_PER_SECOND;

/// The memory of all sketches, and what their tables have in common.
#[derive(Debug)]
pub struct Top {
    budget: Budget,
    /// The size of the budget (bytes).
    max_memory: usize,
    /// Random, so that no client can choose actors that share a set of a table with another actor.
    hasher: RandomState,
    /// When sketches were last dropped because others had no memory (nanoseconds since 1970).
    dropped: AtomicU64,
}

impl Top {
    /// Creates a budget for sketches; `None` if it is 0, because then nothing is counted.
    pub fn new(memory: usize) -> Option<Self> {
        let memory = memory.min(Semaphore::MAX_PERMITS);
        (memory > 0).then(|| Self {
            budget: Arc::new(Semaphore::new(memory)),
            max_memory: memory,
            hasher: RandomState::default(),
            dropped: AtomicU64::new(0),
        })
    }

    /// Counts an event of a rule. Returns false if there is no memory for the rule's sketches.
    pub fn count(&self, rule: &RuleTop, event: Event<'_>, now: Timestamp, sampler: &mut Sampler) -> bool {
        let hash = self.hasher.hash_one(event.actor);
        let mut sketches = rule.sketches(event.order).lock();
        if sketches.is_none() {
            *sketches = Sketches::new(now, &self.budget).map(Box::new);
            rule.is_without_room.store(sketches.is_none(), Relaxed);
        }
        let Some(sketches) = &mut *sketches else { return false };
        for sketch in &mut sketches.by_window {
            sketch.count(&event, hash, now, &mut sampler.random);
        }
        true
    }

    /// Returns whether idle sketches should be dropped for others, which is so once a minute at most.
    pub fn should_drop_idle(&self, now: Timestamp) -> bool {
        let dropped = self.dropped.load(Relaxed);
        let is_due = now.as_nanos().abs_diff(dropped) >= DROP_INTERVAL_NS;
        is_due && self.dropped.compare_exchange(dropped, now.as_nanos(), Relaxed, Relaxed).is_ok()
    }

    /// Ranks the actors of a rule by their counts in the window that ends at `now`. Returns the highest, at most `max`, or
    /// only the actor `only`; the total is then its own.
    pub fn rank(
        &self,
        rule: &RuleTop,
        (order, window): (Order, Window),
        now: Timestamp,
        max: usize,
        only: Option<&[u8]>,
    ) -> Ranking {
        let mut sketches = rule.sketches(order).lock();
        let has_room = sketches.is_some() || !rule.is_without_room();
        let Some(sketches) = &mut *sketches else {
            return Ranking { has_room, is_sampled: false, total: 0, actors: Vec::new() };
        };
        let [minute, hour] = &mut sketches.by_window;
        let sketch = if window == Window::Minute { minute } else { hour };
        sketch.advance(now);
        let is_sampled = sketch.is_sampled();
        let (total, actors) = match only {
            None => (sketch.total(), sketch.highest(max)),
            Some(actor) => {
                let own = sketch.find_actor(self.hasher.hash_one(actor));
                (own.as_ref().map_or(0, |own| own.count), own.into_iter().collect())
            }
        };
        Ranking { has_room, is_sampled, total, actors }
    }

    /// Returns the memory in use (bytes), at most that of [`Top::new`].
    pub fn memory(&self) -> usize {
        self.max_memory - self.budget.available_permits()
    }
}

/// The sketches of one rule. They are created at its first event, and keep their counts when the rules are reloaded.
#[derive(Debug, Default)]
pub struct RuleTop {
    denied: Mutex<Option<Box<Sketches>>>,
    taken: Mutex<Option<Box<Sketches>>>,
    /// Whether there was no memory for sketches when they were needed last.
    is_without_room: AtomicBool,
}

#[derive(Debug)]
struct Sketches {
    /// In the order of [`Window::ALL`].
    by_window: [Sketch; 2],
    /// The memory of this struct.
    _own: Grant,
}

/// The actors with the largest counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ranking {
    /// Whether there was memory for the rule's actors.
    pub has_room: bool,
    /// Whether some of the counts are estimates, because a busy thread counts only some of its events.
    pub is_sampled: bool,
    /// Sum over all actors, including those that are left out.
    pub total: u64,
    /// The actors, in descending order.
    pub actors: Vec<Ranked>,
}

impl RuleTop {
    /// Returns whether there was no memory for sketches when they were needed last.
    pub fn is_without_room(&self) -> bool {
        self.is_without_room.load(Relaxed)
    }

    /// Drops sketches whose counts are all too old at `now`. Sketches that another thread uses are not.
    pub fn drop_idle(&self, now: Timestamp) {
        for order in Order::ALL {
            let Some(mut sketches) = self.sketches(order).try_lock() else { continue };
            let is_idle = |Sketches { by_window: [_, hour], .. }: &Sketches| hour.is_over(now);
            if sketches.as_deref().is_some_and(is_idle) {
                *sketches = None;
            }
        }
    }

    fn sketches(&self, order: Order) -> &Mutex<Option<Box<Sketches>>> {
        match order {
            Order::Denied => &self.denied,
            Order::Taken => &self.taken,
        }
    }

    /// Returns the memory that the sketches really have (bytes).
    #[cfg(test)]
    pub fn measured_memory(&self) -> usize {
        let memory = |sketches: &Sketches| {
            size_of::<Sketches>() + sketches.by_window.iter().map(Sketch::measured_memory).sum::<usize>()
        };
        Order::ALL.into_iter().map(|order| self.sketches(order).lock().as_deref().map_or(0, memory)).sum()
    }
}

impl Sketches {
    fn new(now: Timestamp, budget: &Budget) -> Option<Self> {
        let own = take(budget, size_of::<Self>())?;
        let sketch = |window| Some(Sketch::new(window, now, take(budget, Sketch::MIN_MEMORY)?));
        let [minute, hour] = Window::ALL.map(sketch);
        Some(Self { by_window: [minute?, hour?], _own: own })
    }
}

/// Number of events in a second that a thread counts one by one.
pub const COUNTED_EACH: u32 = 500;
/// Number of later events for each that is counted.
pub const ONE_IN: u64 = 16;

/// The sampling of one thread.
#[derive(Debug, Clone, Copy)]
pub struct Sampler {
    second: u64,
    /// Events of this second that are still counted one by one.
    counted_each: u32,
    /// Events to skip before the next one that is counted.
    skip: usize,
    random: Random,
}

/// An event that is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// Its position among the events.
    pub position: usize,
    /// The number of events that it stands for.
    pub weight: u64,
}

impl Sampler {
    /// Creates a sampler. Its choices are unpredictable.
    pub fn new() -> Self {
        Self::of(Random::new())
    }

    /// Creates a sampler whose choices depend only on `random`.
    pub(super) fn of(mut random: Random) -> Self {
        Self { second: 0, counted_each: COUNTED_EACH, skip: skip(&mut random), random }
    }

    /// Begins the events of a batch.
    #[inline]
    pub fn begin(&mut self, now: Timestamp) {
        let second = now.as_nanos() / NANOS_PER_SECOND;
        if second != self.second {
            self.second = second;
            self.counted_each = COUNTED_EACH;
        }
    }

    /// Returns the next event to count, out of the events at the positions from `first` up to but not including `end`.
    #[inline]
    pub fn next(&mut self, first: usize, end: usize) -> Option<Sample> {
        let rest = end.saturating_sub(first);
        if rest > 0 && self.counted_each > 0 {
            self.counted_each -= 1;
            return Some(Sample { position: first, weight: 1 });
        }
        if self.skip >= rest {
            self.skip -= rest;
            return None;
        }
        let position = first + self.skip;
        self.skip = skip(&mut self.random);
        Some(Sample { position, weight: ONE_IN })
    }
}

impl Default for Sampler {
    fn default() -> Self {
        Self::new()
    }
}

/// Draws the number of events to skip, from a geometric distribution. Each group of four random bits stands for an event,
/// which is counted if all four are 0.
#[inline]
fn skip(random: &mut Random) -> usize {
    let mut skipped = 0;
    loop {
        let bits = random.next();
        let any = bits | (bits >> 1);
        let any = any | (any >> 2);
        let counted = !any & 0x1111_1111_1111_1111;
        if counted != 0 {
            return skipped + counted.trailing_zeros() as usize / 4;
        }
        skipped += 16;
    }
}

/// A generator of 64-bit numbers (SplitMix64; Steele et al., OOPSLA 2014).
#[derive(Debug, Clone, Copy)]
pub struct Random(u64);

impl Random {
    /// Creates a generator that starts at a random state.
    pub fn new() -> Self {
        Self(std::hash::RandomState::new().hash_one(0_u8))
    }

    /// Creates a generator that starts at this state.
    #[cfg(test)]
    pub fn seeded(seed: u64) -> Self {
        Self(seed)
    }

    #[inline]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number from 0 to `whole - 1`, or 0.
    #[inline]
    pub fn below(&mut self, whole: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(whole)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests;
