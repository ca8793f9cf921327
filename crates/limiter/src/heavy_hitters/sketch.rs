//! A sketch of heavy hitters: the actors of one rule that have the largest counts in a window, in a table of bounded size.
//!
//! The table is the one of "Randomized Admission ActiveRules for Efficient Top-k and Frequency Estimation" (Ben Basat, Einziger,
//! Friedman, Kassner; INFOCOM 2017), in its set-associative form, with weights. An actor in the table is counted exactly. If
//! another one with the amount `v` finds its set full, it replaces the actor with the smallest score `s` of the set, with the
//! probability `v / (s + v)`, and takes over the score. So actors that come once rarely replace anyone: after `n` of them, the
//! scores of `m` places have risen to about the square root of `2n / m`, whereas the count of a real actor grows with `n`.
//!
//! The paper counts since the start. Here an actor has a count for each slice of the window, and loses the oldest one when a
//! slice begins. Scores that were taken over fade at the same pace.
//!
//! A window consists of the current slice, which is not over, and the [`SLICES`] - 1 slices before it. A slice is a sixth
//! of the window's nominal length. So the last minute is between 60 and 70 seconds long, and the last hour between 60 and
//! 70 minutes.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::Random;
use divvy_core::clock::{NANOS_PER_SECOND, Timestamp};
use divvy_telemetry::metrics::named_values;

/// Number of places in a set.
const WAYS: usize = 8;
/// The hash of a free place.
const FREE: u64 = 0;
/// A table doubles only if it then takes at most this share of the free memory, so that later rules have room, too. The same
/// share bounds the names of its actors.
const GROWTH_SHARE: usize = 8;
/// Length of a name that is kept even if the names of the sketch have their share of the memory (bytes).
const SHORT_NAME: usize = 32;
/// Maximum of a count in units. A larger one makes the unit of its actor larger.
const MAX_UNITS: u32 = 1 << 30;
/// Maximum of the numbers in an answer, because JSON readers round larger ones.
const MAX_SHOWN: u64 = (1 << 53) - 1;
/// Maximum amount of an event. A larger one makes no difference, because no answer shows more.
const MAX_AMOUNT: u64 = MAX_SHOWN + 1;
/// Maximum of `unit_bits`. A count that does not fit in such units is far above [`MAX_SHOWN`], and is not increased any more.
const MAX_UNIT_BITS: u8 = 56;
/// Binary digits that an actor's counts lose when the unit becomes larger.
const UNIT_STEP: u8 = 8;

/// The counts of a rule's actors in one window.
#[derive(Debug)]
pub struct Sketch {
    slices: Slices,
    /// Sum of all amounts, per slice.
    totals: [u64; SLICES],
    /// Variance of these sums, which is caused by sampling.
    variances: [f64; SLICES],
    /// The table. The number of sets is a power of two.
    sets: Box<[Set]>,
    /// Memory of all names (bytes).
    names: usize,
    grant: Grant,
}

/// The places of actors whose hashes have the same lowest bits.
#[derive(Debug, Default)]
struct Set {
    hashes: [u64; WAYS],
    places: [Place; WAYS],
}

/// An actor, and its counts in units. Each actor has its own unit, so that a huge amount hides no other actor.
#[derive(Debug, Default)]
struct Place {
    /// The name, or the start of a long one.
    name: Box<[u8]>,
    counts: [u32; SLICES],
    /// Sum of `counts`.
    sum: u32,
    /// The score that the actor took over: an estimate of its count before it was in the table.
    before: u32,
    /// The unit is this power of two.
    unit_bits: u8,
    is_cut: bool,
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

// A place and its hash fill a cache line.
const _: () = assert!(size_of::<Set>() == 64 * WAYS);

impl Sketch {
    /// Memory of a sketch without actors, apart from the struct (bytes).
    pub const MIN_MEMORY: usize = size_of::<Set>();

    /// Creates a sketch. The grant is of [`Sketch::MIN_MEMORY`].
    pub fn new(window: Window, now: Timestamp, grant: Grant) -> Self {
        let slices = Slices::new(window, now);
        Self { slices, totals: [0; SLICES], variances: [0.0; SLICES], sets: free_sets(1), names: 0, grant }
    }

    /// Counts an event. `hash` is the hash of its actor.
    pub fn count(&mut self, event: &Event<'_>, hash: u64, now: Timestamp, random: &mut Random) {
        self.advance(now);
        let (hash, slice) = (hash.max(FREE + 1), self.slices.index_at(now));
        let amount = event.amount.saturating_mul(event.weight).min(MAX_AMOUNT);
        self.add_to_totals(event, amount, slice);
        if amount == 0 {
            return;
        }
        if let Some(place) = self.find(hash) {
            place.add(amount, slice, random);
        } else if let Some((way, before)) = self.admit(hash, amount, random) {
            let mut new = Place::with_score(before);
            new.add(amount, slice, random);
            self.put((hash, way), event.actor, new);
        }
    }

    fn add_to_totals(&mut self, event: &Event<'_>, amount: u64, slice: usize) {
        if let (Some(total), Some(variance)) = (self.totals.get_mut(slice), self.variances.get_mut(slice)) {
            *total = total.saturating_add(amount);
            // The estimate of Horvitz and Thompson: an event of weight w was chosen with the probability 1 / w.
            *variance += amount as f64 * event.amount as f64 * (event.weight - 1) as f64;
        }
    }

    #[inline]
    fn set_index(&self, hash: u64) -> usize {
        hash as usize & (self.sets.len() - 1)
    }

    #[inline]
    fn set(&mut self, hash: u64) -> Option<&mut Set> {
        let index = self.set_index(hash);
        self.sets.get_mut(index)
    }

    #[inline]
    fn find(&mut self, hash: u64) -> Option<&mut Place> {
        let set = self.set(hash)?;
        let way = set.way_of(hash)?;
        set.places.get_mut(way)
    }

    /// Returns a place for a new actor, and the score that it takes over there. `None` if the actor is not admitted.
    #[inline(never)]
    fn admit(&mut self, hash: u64, amount: u64, random: &mut Random) -> Option<(usize, u64)> {
        loop {
            let set = self.set(hash)?;
            if let Some(way) = set.way_of(FREE) {
                return Some((way, 0));
            }
            let (way, score) = set.lowest()?;
            if !self.grow() {
                let is_admitted = random.below(score.saturating_add(amount)) < amount;
                return is_admitted.then_some((way, score));
            }
        }
    }

    /// Puts an actor in a place, unless there is no memory for its name.
    fn put(&mut self, (hash, way): (u64, usize), actor: &[u8], new: Place) {
        let index = self.set_index(hash);
        let Some(set) = self.sets.get_mut(index) else { return };
        let (Some(place), Some(place_hash)) = (set.places.get_mut(way), set.hashes.get_mut(way)) else { return };
        let old = weight(&place.name);
        let others = self.names - old;
        let share = self.grant.semaphore().available_permits() / GROWTH_SHARE;
        let name = start(actor, share.saturating_sub(others).clamp(old.max(SHORT_NAME), MAX_NAME));
        let needed = weight(name);
        let Some(more) = take(self.grant.semaphore(), needed.saturating_sub(old)) else { return };
        self.grant.merge(more);
        give_back(&mut self.grant, old.saturating_sub(needed));
        self.names = others + needed;
        (*place_hash, *place) = (hash, Place { name: name.into(), is_cut: name.len() < actor.len(), ..new });
    }

    /// Doubles the table, if there is memory.
    fn grow(&mut self) -> bool {
        let (count, old_bytes) = (self.sets.len() * 2, size_of_val(&*self.sets));
        if old_bytes * 2 > self.grant.semaphore().available_permits() / GROWTH_SHARE {
            return false;
        }
        let Some(more) = take(self.grant.semaphore(), old_bytes * 2) else { return false };
        self.grant.merge(more);
        let old = std::mem::replace(&mut self.sets, free_sets(count));
        for set in old {
            for (hash, moved) in set.hashes.into_iter().zip(set.places).filter(|(hash, _)| *hash != FREE) {
                // Each set is divided in two, so there is a free place.
                let Some(set) = self.set(hash) else { continue };
                let Some(way) = set.way_of(FREE) else { continue };
                if let (Some(place_hash), Some(place)) = (set.hashes.get_mut(way), set.places.get_mut(way)) {
                    (*place_hash, *place) = (hash, moved);
                }
            }
        }
        give_back(&mut self.grant, old_bytes);
        true
    }

    /// Moves on to the slice of `now`, and drops the counts that are too old.
    pub fn advance(&mut self, now: Timestamp) {
        let passed = self.slices.advance(now);
        if passed == SLICES {
            self.clear();
        }
        for _ in 0..passed {
            self.begin_slice();
        }
    }

    /// Removes all actors, and returns the memory for them.
    fn clear(&mut self) {
        let bytes = size_of_val(&*self.sets) + std::mem::take(&mut self.names);
        self.sets = free_sets(1);
        give_back(&mut self.grant, bytes - Self::MIN_MEMORY);
        (self.totals, self.variances) = ([0; SLICES], [0.0; SLICES]);
    }

    /// Begins the next slice, and removes the actors whose counts are 0 afterwards.
    #[inline(never)]
    fn begin_slice(&mut self) {
        let index = self.slices.begin_next();
        if let (Some(total), Some(variance)) = (self.totals.get_mut(index), self.variances.get_mut(index)) {
            (*total, *variance) = (0, 0.0);
        }
        let mut freed = 0;
        for set in &mut self.sets {
            for (hash, place) in set.hashes.iter_mut().zip(&mut set.places).filter(|(hash, _)| **hash != FREE) {
                place.sum -= place.counts.get_mut(index).map_or(0, std::mem::take);
                place.before -= place.before.div_ceil(SLICES as u32 - 1);
                if place.sum == 0 {
                    freed += weight(&place.name);
                    (*hash, *place) = (FREE, Place::default());
                }
            }
        }
        self.names -= freed;
        give_back(&mut self.grant, freed);
    }

    /// Returns whether all counts are too old at `now`.
    pub fn is_over(&self, now: Timestamp) -> bool {
        self.slices.are_over(now)
    }

    /// Returns the sum of all amounts in the window, including those of actors that are not in the table.
    pub fn total(&self) -> u64 {
        self.totals.iter().fold(0_u64, |sum, total| sum.saturating_add(*total)).min(MAX_SHOWN)
    }

    /// Returns whether some of the events were sampled.
    pub fn is_sampled(&self) -> bool {
        self.variances.iter().any(|variance| *variance > 0.0)
    }

    /// Returns the actors with the largest counts, at most `max`, in descending order.
    pub fn highest(&self, max: usize) -> Vec<Ranked> {
        let places = self.sets.iter().flat_map(|set| &set.places).filter(|place| place.sum > 0);
        let mut places: Vec<&Place> = places.collect();
        let order =
            |one: &&Place, other: &&Place| other.count().cmp(&one.count()).then_with(|| one.name.cmp(&other.name));
        if max < places.len() {
            // The others need no order.
            places.select_nth_unstable_by(max, order);
            places.truncate(max);
        }
        places.sort_unstable_by(order);
        let variance = self.variance_per_count();
        places.into_iter().map(|place| place.ranked(variance)).collect()
    }

    /// Returns the count of the actor with this hash; `None` if it is not in the table.
    pub fn find_actor(&mut self, hash: u64) -> Option<Ranked> {
        let variance = self.variance_per_count();
        Some(self.find(hash.max(FREE + 1))?.ranked(variance))
    }

    /// Returns the variance of the total by its size. The variance of an actor's count is taken to be in the same proportion.
    fn variance_per_count(&self) -> f64 {
        let variance: f64 = self.variances.iter().sum();
        variance / self.total().max(1) as f64
    }

    /// Returns the memory that the sketch really has, apart from the struct (bytes).
    #[cfg(test)]
    pub fn measured_memory(&self) -> usize {
        let names = self.sets.iter().flat_map(|set| &set.places).map(|place| place.name.len()).sum::<usize>();
        assert!(size_of_val(&*self.sets) + names <= self.grant.num_permits());
        size_of_val(&*self.sets) + names
    }
}

impl Set {
    #[inline]
    fn way_of(&self, hash: u64) -> Option<usize> {
        self.hashes.iter().position(|known| *known == hash)
    }

    /// Returns the place with the smallest score, and the score.
    fn lowest(&self) -> Option<(usize, u64)> {
        self.places.iter().map(Place::score).enumerate().min_by_key(|(_, score)| *score)
    }
}

impl Place {
    /// Creates a place with a score that was taken over.
    fn with_score(before: u64) -> Self {
        let mut place = Self::default();
        while before >> place.unit_bits > u64::from(MAX_UNITS) {
            place.unit_bits += UNIT_STEP;
        }
        place.before = u32::try_from(before >> place.unit_bits).unwrap_or(MAX_UNITS);
        place
    }

    fn score(&self) -> u64 {
        self.scaled(self.sum.saturating_add(self.before))
    }

    fn count(&self) -> u64 {
        self.scaled(self.sum)
    }

    fn scaled(&self, units: u32) -> u64 {
        u64::try_from(u128::from(units) << self.unit_bits).unwrap_or(u64::MAX).min(MAX_SHOWN)
    }

    /// Adds an amount, which is rounded up or down to units at random.
    #[inline]
    fn add(&mut self, amount: u64, slice: usize, random: &mut Random) {
        while (amount >> self.unit_bits) + u64::from(self.sum) >= u64::from(MAX_UNITS) {
            if self.unit_bits >= MAX_UNIT_BITS {
                return;
            }
            self.enlarge_unit();
        }
        let rest = amount & ((1 << self.unit_bits) - 1);
        let is_rounded_up = rest > 0 && random.below(1 << self.unit_bits) < rest;
        let units = u32::try_from(amount >> self.unit_bits).unwrap_or(MAX_UNITS) + u32::from(is_rounded_up);
        if let Some(count) = self.counts.get_mut(slice) {
            *count += units;
            self.sum += units;
        }
    }

    #[cold]
    fn enlarge_unit(&mut self) {
        self.unit_bits += UNIT_STEP;
        self.counts = self.counts.map(|count| count >> UNIT_STEP);
        self.sum = self.counts.iter().sum();
        self.before >>= UNIT_STEP;
    }

    /// `variance` is the variance of a count by its size.
    fn ranked(&self, variance: f64) -> Ranked {
        let count = self.count();
        let deviation = (count as f64 * variance).sqrt();
        // Each amount is rounded by less than a unit, and each slice when the unit becomes larger.
        let rounding_units = 2.0 * f64::from(self.sum).sqrt() + SLICES as f64;
        let rounding = if self.unit_bits > 0 { self.scaled(rounding_units as u32) } else { 0 };
        let error = ((2.0 * deviation).ceil() as u64)
            .saturating_add(self.scaled(self.before))
            .saturating_add(rounding)
            .min(MAX_SHOWN);
        Ranked { actor: self.name.clone(), is_cut: self.is_cut, count, error }
    }
}

fn free_sets(count: usize) -> Box<[Set]> {
    (0..count).map(|_| Set::default()).collect()
}

/// Returns the part of a name that is kept, at most `max` bytes. It does not end within a character.
fn start(actor: &[u8], max: usize) -> &[u8] {
    let is_inside = |end: &usize| actor.get(*end).is_some_and(|byte| byte & 0xc0 == 0x80);
    let end = (0..=max.min(actor.len())).rev().find(|end| !is_inside(end));
    actor.get(..end.unwrap_or_default()).unwrap_or_default()
}

/// Returns the memory that a name takes (bytes).
fn weight(name: &[u8]) -> usize {
    name.len().next_multiple_of(16)
}

/// The memory for sketches, with a permit for each free byte. A sketch returns its permits when it is dropped.
pub type Budget = Arc<Semaphore>;
/// A part of the budget.
pub type Grant = OwnedSemaphorePermit;

/// Takes this many bytes from the budget, if they are free.
pub fn take(budget: &Budget, bytes: usize) -> Option<Grant> {
    Arc::clone(budget).try_acquire_many_owned(u32::try_from(bytes).ok()?).ok()
}

/// Returns bytes to the budget.
fn give_back(grant: &mut Grant, bytes: usize) {
    drop(grant.split(bytes));
}

/// Number of slices of a window.
pub const SLICES: usize = 7;

/// The current slice of a window.
#[derive(Debug)]
pub struct Slices {
    length_ns: u64,
    /// Number of the current slice since 1970.
    current: u64,
    /// Index of the current slice. The slice before it has the index before it, and so on, round and round.
    head: usize,
}

impl Slices {
    pub fn new(window: Window, now: Timestamp) -> Self {
        let length_ns = window.seconds() * NANOS_PER_SECOND / (SLICES as u64 - 1);
        Self { length_ns, current: now.as_nanos() / length_ns, head: 0 }
    }

    /// Moves on to the slice of `now`. Returns the number of slices that begin, at most [`SLICES`].
    ///
    /// A batch that ends late may have an earlier time, so an earlier slice changes nothing. If it is before the window, the
    /// clock was set back: then the current slice goes on from there.
    pub fn advance(&mut self, now: Timestamp) -> usize {
        let slice = now.as_nanos() / self.length_ns;
        let passed = slice.saturating_sub(self.current);
        if passed > 0 || self.current.saturating_sub(slice) >= SLICES as u64 {
            self.current = slice;
        }
        usize::try_from(passed).map_or(SLICES, |passed| passed.min(SLICES))
    }

    /// Makes the next slice the current one. Returns its index, whose counts are outdated.
    pub fn begin_next(&mut self) -> usize {
        self.head = (self.head + 1) % SLICES;
        self.head
    }

    /// Returns the index of the slice of an event at `now`, after [`Slices::advance`] to it.
    pub fn index_at(&self, now: Timestamp) -> usize {
        let age = self.current.saturating_sub(now.as_nanos() / self.length_ns);
        let age = usize::try_from(age).map_or(SLICES - 1, |age| age.min(SLICES - 1));
        (self.head + SLICES - age) % SLICES
    }

    /// Returns whether the whole window is over at `now`.
    pub fn are_over(&self, now: Timestamp) -> bool {
        (now.as_nanos() / self.length_ns).saturating_sub(self.current) >= SLICES as u64
    }
}

/// Maximum length of the part of an actor's name that a sketch keeps (bytes).
pub const MAX_NAME: usize = 256;

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

/// The time until now over which a sketch counts.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_nanos(seconds * NANOS_PER_SECOND)
    }

    #[test]
    fn late_batch_counts_in_its_own_slice() {
        let mut slices = Slices::new(Window::Minute, at(1_000));
        let old = slices.index_at(at(1_000));
        for _ in 0..slices.advance(at(1_025)) {
            slices.begin_next();
        }
        assert_eq!((slices.advance(at(1_009)), slices.index_at(at(1_009))), (0, old));
        assert_eq!(slices.index_at(at(1_025)), (old + 2) % SLICES);
    }
}
