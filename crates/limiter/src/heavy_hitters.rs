//! The actors of each rule that take the most and that are denied the most, in the last minute and the last hour.
//!
//! [`Top`] gets events from the [report](super::report): a denial, or credits that were taken. A [`Sampler`] chooses the
//! events of a thread that are counted, so that a hit costs little. Each rule has a [`Table`] of actors for each order and
//! window. They belong to all threads, and only sampled events lock them. All of them share one bound on memory.
//!
//! A window consists of the current slice, which is not over, and the [`SLICES`] - 1 slices before it. A slice is a sixth of the
//! window's nominal length. So the last minute is between 60 and 70 seconds long, and the last hour between 60 and 70 minutes.
//!
//! An actor in a table is counted for each slice. If a table may not grow, a new actor with the amount `v` meets the one with the
//! smallest score `s` of a few neighbors at a random place. It replaces that actor with the probability `v / (s + v)`, and takes over
//! the score, which fades with the slices (after Ben Basat, Einziger, Friedman, Kassner: Randomized Admission Policy, INFOCOM
//! 2017). So actors that come once rarely replace anyone, whereas the count of a real actor grows.
//!
//! A thread counts its first [`COUNTED_EACH`] events of a second one by one. Of the events after them, it counts one in
//! [`ONE_IN`], at random, and each stands for that many. So counts are exact on a server with little traffic, and a hit
//! on a busy one costs next to nothing. The expected value of a count is its true value. If `n` events of an actor were
//! sampled with this probability, the standard deviation of their number is at most the square root of `n * (ONE_IN - 1)`.

use std::cmp::Reverse;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use foldhash::{fast::FixedState, quality::RandomState};
use indexmap::IndexMap;
use parking_lot::Mutex;

use divvy_core::clock::{NANOS_PER_SECOND, Timestamp};
use divvy_telemetry::metrics::named_values;

/// Default for the memory of all tables (bytes).
pub const DEFAULT_TOP_MEMORY: usize = 16 * 1024 * 1024;
/// A table takes at most this share of the free memory, so that later rules have room, too.
const TABLE_SHARE: usize = 8;
/// Memory that a table may have regardless of its share (bytes).
const SMALL_TABLE: usize = 1_024;
/// Number of neighbors at a random place. The one with the lowest score may make room for a new actor.
const CANDIDATES: usize = 8;
/// Maximum length of the part of an actor's name that is kept (bytes).
const MAX_NAME: usize = 256;
/// Number of slices of a window.
const SLICES: u64 = 7;
/// Maximum of the numbers in an answer, because JSON readers round larger ones.
const MAX_SHOWN: u64 = (1 << 53) - 1;

/// The memory of all tables, and what they have in common.
#[derive(Debug)]
pub struct Top {
    /// Memory that no table has (bytes).
    free: Arc<AtomicUsize>,
    /// Memory for all tables (bytes).
    max_memory: usize,
    /// Random, so that no client can choose actors that count as one.
    hasher: RandomState,
}

impl Top {
    /// Creates the memory for tables; `None` if it is 0, because then nothing is counted.
    pub fn new(max_memory: usize) -> Option<Self> {
        (max_memory > 0).then(|| Self {
            free: Arc::new(AtomicUsize::new(max_memory)),
            max_memory,
            hasher: RandomState::default(),
        })
    }

    /// Counts an event of a rule. Returns false if there is no memory for the rule's actors.
    pub fn count(&self, rule: &RuleTop, event: Event<'_>, now: Timestamp, sampler: &mut Sampler) -> bool {
        let hash = self.hasher.hash_one(event.actor);
        let mut tables = rule.tables(event.order).lock();
        if tables.is_none() {
            let [minute, hour] = Window::ALL.map(|window| Table::new(window, &self.free));
            *tables = minute.zip(hour).map(|(minute, hour)| Box::new([minute, hour]));
        }
        let mut has_room = tables.is_some();
        for table in tables.iter_mut().flat_map(|tables| tables.iter_mut()) {
            has_room &= table.count(&event, hash, now, &mut sampler.random);
        }
        rule.is_without_room.store(!has_room, Relaxed);
        has_room
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
        let mut ranking = Ranking { has_room: !rule.is_without_room(), ..Ranking::default() };
        let mut tables = rule.tables(order).lock();
        let Some([minute, hour]) = tables.as_deref_mut() else { return ranking };
        let table = if window == Window::Minute { minute } else { hour };
        table.advance(now);
        ranking.is_sampled = table.actors.values().any(|place| place.spread > 0);
        if let Some(actor) = only {
            let own = table.actors.get(&self.hasher.hash_one(actor));
            ranking.actors = own.map(Place::ranked).into_iter().collect();
            ranking.total = ranking.actors.first().map_or(0, |own| own.count);
        } else {
            ranking.actors = table.highest(max);
            ranking.total = sum(&table.totals).min(MAX_SHOWN);
        }
        ranking
    }

    /// Returns the memory in use (bytes), at most that of [`Top::new`].
    pub fn memory(&self) -> usize {
        self.max_memory - self.free.load(Relaxed)
    }
}

/// The tables of one rule. They are created at its first event, and keep their counts when the rules are reloaded.
#[derive(Debug, Default)]
pub struct RuleTop {
    denied: Mutex<Option<Tables>>,
    taken: Mutex<Option<Tables>>,
    /// Whether there was no memory for actors when it was needed last.
    is_without_room: AtomicBool,
}

/// Tables in the order of [`Window::ALL`].
type Tables = Box<[Table; 2]>;

impl RuleTop {
    /// Returns whether there was no memory for actors when it was needed last.
    pub fn is_without_room(&self) -> bool {
        self.is_without_room.load(Relaxed)
    }

    /// Drops tables whose counts are all too old at `now`. Tables that another thread uses are not.
    pub fn drop_idle(&self, now: Timestamp) {
        for order in Order::ALL {
            let Some(mut tables) = self.tables(order).try_lock() else { continue };
            let Some([_, hour]) = tables.as_deref_mut() else { continue };
            hour.advance(now);
            if hour.actors.is_empty() {
                *tables = None;
            }
        }
    }

    fn tables(&self, order: Order) -> &Mutex<Option<Tables>> {
        match order {
            Order::Denied => &self.denied,
            Order::Taken => &self.taken,
        }
    }
}

/// The actors with the largest counts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
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

/// An actor's count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ranked {
    /// The actor, or the beginning of a long name.
    pub actor: Box<[u8]>,
    /// Whether `actor` is only the start of its name.
    pub is_cut: bool,
    /// Number of denials, or of credits.
    pub count: u64,
    /// With a probability of 95 %, the true count differs by at most this much.
    pub error: u64,
}

/// An event of one rule.
#[derive(Debug, Clone, Copy)]
pub struct Event<'a> {
    pub order: Order,
    /// The actor, as the rule's counters name it.
    pub actor: &'a [u8],
    /// The number of denials, which is 1, or of credits.
    pub amount: u64,
    /// The number of events that this one stands for.
    pub weight: u64,
}

named_values! {
    /// The order of a ranking, by the name that clients use.
    Order {
        /// Denied requests.
        Denied = "denied",
        /// Credits that were taken.
        Taken = "taken",
    }
}

/// The time until now over which a table counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Window {
    /// The last minute.
    Minute,
    /// The last hour.
    Hour,
}

impl Window {
    /// All windows.
    pub const ALL: [Self; 2] = [Self::Minute, Self::Hour];

    /// Returns its length.
    pub fn seconds(self) -> u64 {
        match self {
            Self::Minute => 60,
            Self::Hour => 3_600,
        }
    }
}

/// The counts of a rule's actors in one window.
#[derive(Debug)]
struct Table {
    slice_ns: u64,
    /// Number of the current slice since 1970. Counts of the slice with this number are at this index, modulo [`SLICES`].
    current: u64,
    /// Sum of all amounts, per slice.
    totals: [u64; SLICES as usize],
    /// The actors, by the hashes of their names.
    actors: IndexMap<u64, Place, FixedState>,
    grant: Grant,
}

/// An actor, and its counts.
#[derive(Debug)]
struct Place {
    /// The name, or the start of a long one.
    name: Box<[u8]>,
    is_cut: bool,
    /// Sum of the amounts, per slice.
    counts: [u64; SLICES as usize],
    /// The score that the actor took over: an estimate of its count before it was in the table.
    before: u64,
    /// The variance of a count is at most this many times the count. 0 if each event was counted.
    spread: u64,
}

impl Table {
    /// Memory of a table without actors, with the smallest index of an [`IndexMap`] (bytes).
    const MEMORY: usize = size_of::<Self>() + 64;

    fn new(window: Window, free: &Arc<AtomicUsize>) -> Option<Self> {
        let mut grant = Grant { free: Arc::clone(free), bytes: 0 };
        let slice_ns = window.seconds() * NANOS_PER_SECOND / (SLICES - 1);
        let actors = IndexMap::default();
        grant.exchange(0, Self::MEMORY).then_some(Self { slice_ns, current: 0, totals: [0; _], actors, grant })
    }

    /// Counts an event. `hash` is the hash of its actor. Returns whether there is memory for actors.
    fn count(&mut self, event: &Event<'_>, hash: u64, now: Timestamp, random: &mut Random) -> bool {
        self.advance(now);
        let slice = self.slice();
        let amount = event.amount.saturating_mul(event.weight);
        add(&mut self.totals, slice, amount);
        if amount == 0 {
            return true;
        }
        if let Some(place) = self.actors.get_mut(&hash) {
            place.count(event, slice, amount);
        } else if let Some(mut place) = self.admit(event.actor, amount, random) {
            place.count(event, slice, amount);
            if self.actors.len() == self.actors.capacity() {
                self.actors.reserve_exact(self.actors.len() / 4 + 1);
            }
            self.actors.insert(hash, place);
        }
        !self.actors.is_empty()
    }

    /// Returns the place of a new actor. `None` if it is not admitted.
    #[inline(never)]
    fn admit(&mut self, actor: &[u8], amount: u64, random: &mut Random) -> Option<Place> {
        let name = start(actor);
        let needed = Place::MEMORY + name.len();
        let share = self.grant.free.load(Relaxed) / TABLE_SHARE;
        let mut before = 0;
        if self.grant.bytes > share.max(SMALL_TABLE) || !self.grant.exchange(0, needed) {
            // Neighbors, because the processor then loads them together.
            let first = random.below((self.actors.len().saturating_sub(CANDIDATES) + 1) as u64) as usize;
            let candidates = self.actors.as_slice().get_range(first..self.actors.len().min(first + CANDIDATES))?;
            let candidates = (first..).zip(candidates.values());
            let (index, lowest) = candidates.min_by_key(|(_, candidate)| candidate.score())?;
            before = lowest.score();
            let is_admitted = random.below(before.saturating_add(amount)) < amount;
            if !is_admitted || !self.grant.exchange(lowest.memory(), needed) {
                return None;
            }
            self.actors.swap_remove_index(index);
        }
        Some(Place { name: name.into(), is_cut: name.len() < actor.len(), counts: [0; _], before, spread: 0 })
    }

    /// Returns the index of the current slice.
    #[inline]
    fn slice(&self) -> usize {
        (self.current % SLICES) as usize
    }

    /// Moves on to the slice of `now`, and drops the counts that are too old. A batch that ends late counts in the current slice.
    /// If the clock was set back by more than a window, all counts are dropped.
    #[inline]
    fn advance(&mut self, now: Timestamp) {
        let slice = now.as_nanos() / self.slice_ns;
        if self.current.abs_diff(slice) > SLICES {
            self.current = slice.saturating_sub(SLICES);
        }
        while self.current < slice {
            self.begin_slice();
        }
    }

    /// Begins the next slice, and removes the actors whose counts are 0 afterwards.
    #[inline(never)]
    fn begin_slice(&mut self) {
        self.current += 1;
        let slice = self.slice();
        let clear = |counts: &mut [u64]| counts.get_mut(slice).map(std::mem::take);
        clear(&mut self.totals);
        let mut freed = 0;
        self.actors.retain(|_, place| {
            clear(&mut place.counts);
            place.before -= place.before.div_ceil(SLICES - 1);
            let is_counted = sum(&place.counts) > 0;
            freed += if is_counted { 0 } else { place.memory() };
            is_counted
        });
        self.actors.shrink_to_fit();
        self.grant.exchange(freed, 0);
    }

    /// Returns the actors with the largest counts, at most `max`, in descending order.
    fn highest(&self, max: usize) -> Vec<Ranked> {
        let mut places: Vec<_> = self.actors.values().map(|place| (Reverse(sum(&place.counts)), place)).collect();
        let order = |(one, of_one): &(_, &Place), (other, of_other): &(_, &Place)| {
            Ord::cmp(one, other).then_with(|| of_one.name.cmp(&of_other.name))
        };
        if max < places.len() {
            // The others need no order.
            places.select_nth_unstable_by(max, order);
            places.truncate(max);
        }
        places.sort_unstable_by(order);
        places.into_iter().map(|(_, place)| place.ranked()).collect()
    }
}

impl Place {
    /// Memory of a place without its name (bytes). Up to a quarter of a map may be free.
    const MEMORY: usize = size_of::<(u64, u64, Self)>() * 5 / 4 + 3 * size_of::<usize>();

    fn memory(&self) -> usize {
        Self::MEMORY + self.name.len()
    }

    #[inline]
    fn count(&mut self, event: &Event<'_>, slice: usize, amount: u64) {
        add(&mut self.counts, slice, amount);
        // The estimate of Horvitz and Thompson: an event of weight w was chosen with the probability 1 / w.
        self.spread = self.spread.max(event.amount.saturating_mul(event.weight - 1));
    }

    fn score(&self) -> u64 {
        sum(&self.counts).saturating_add(self.before)
    }

    fn ranked(&self) -> Ranked {
        let count = sum(&self.counts);
        let deviation = (count as f64 * self.spread as f64).sqrt();
        let error = ((2.0 * deviation).ceil() as u64).saturating_add(self.before);
        Ranked {
            actor: self.name.clone(),
            is_cut: self.is_cut,
            count: count.min(MAX_SHOWN),
            error: error.min(MAX_SHOWN),
        }
    }
}

#[inline]
fn add(counts: &mut [u64], slice: usize, amount: u64) {
    if let Some(count) = counts.get_mut(slice) {
        *count = count.saturating_add(amount);
    }
}

fn sum(counts: &[u64]) -> u64 {
    counts.iter().fold(0, |sum, count| sum.saturating_add(*count))
}

/// Returns the part of a name that is kept. It does not end within a character.
fn start(actor: &[u8]) -> &[u8] {
    let is_inside = |end: &usize| actor.get(*end).is_some_and(|byte| byte & 0xc0 == 0x80);
    let end = (0..=MAX_NAME.min(actor.len())).rev().find(|end| !is_inside(end));
    actor.get(..end.unwrap_or_default()).unwrap_or_default()
}

/// A part of the memory for all tables, which is free again when it is dropped.
#[derive(Debug)]
struct Grant {
    free: Arc<AtomicUsize>,
    bytes: usize,
}

impl Grant {
    /// Returns `old` bytes and takes `new` ones, if there are as many. Otherwise, nothing changes.
    fn exchange(&mut self, old: usize, new: usize) -> bool {
        let has_room = self.free.try_update(Relaxed, Relaxed, |free| (free + old).checked_sub(new)).is_ok();
        if has_room {
            self.bytes = self.bytes + new - old;
        }
        has_room
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        self.free.fetch_add(self.bytes, Relaxed);
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

impl Sampler {
    /// Creates a sampler whose choices depend only on `random`.
    pub fn of(mut random: Random) -> Self {
        Self { second: 0, counted_each: COUNTED_EACH, skip: skip(&mut random), random }
    }

    /// Begins the events of a batch.
    #[inline]
    pub fn begin(&mut self, now: Timestamp) {
        let second = now.as_secs();
        if second != self.second {
            self.second = second;
            self.counted_each = COUNTED_EACH;
        }
    }

    /// Returns the position of the next event to count, out of those from `first` up to but not including `end`, and the number of
    /// events that it stands for.
    #[inline]
    pub fn next(&mut self, first: usize, end: usize) -> Option<(usize, u64)> {
        let rest = end.saturating_sub(first);
        if rest > 0 && self.counted_each > 0 {
            self.counted_each -= 1;
            return Some((first, 1));
        }
        if self.skip >= rest {
            self.skip -= rest;
            return None;
        }
        let position = first + self.skip;
        self.skip = skip(&mut self.random);
        Some((position, ONE_IN))
    }
}

/// Draws the number of events to skip: as often few as many, and `ONE_IN - 1` on average.
#[inline]
fn skip(random: &mut Random) -> usize {
    random.below(2 * ONE_IN - 1) as usize
}

/// A generator of 64-bit numbers (SplitMix64; Steele et al., OOPSLA 2014).
#[derive(Debug, Clone, Copy)]
pub struct Random(u64);

impl Random {
    /// Creates a generator that starts at a random state.
    pub fn new() -> Self {
        Self(std::hash::RandomState::new().hash_one(0_u8))
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
