//! The credits that are set aside in a bucket, grouped by the time when they become free.
//!
//! A bucket keeps any number of reservations in at most [`MAX_GROUPS`] groups. If there would be more, two groups are
//! joined, and the credits of the earlier one end with the later one. So the credits set aside are never fewer than
//! those reserved. They are more only until the later of two joined groups ends.
//!
//! Ends are times of the bucket's own clock, which never runs backwards. It is ahead of the server's clock by the total
//! time that this clock was set back since the bucket's first reservation. So the end in a reservation's record stays
//! valid.

use crate::clock::{NANOS_PER_MILLI, Timestamp};

/// Maximum number of groups in a bucket.
pub const MAX_GROUPS: usize = 64;
/// A reservation's end is rounded up to a multiple of its TTL divided by this.
pub const PARTS_OF_TTL: u64 = 32;
/// Shortest step.
pub const SHORTEST_STEP_MS: u64 = 1_000;

/// Credits that are set aside until the same time, by the bucket's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpiryGroup {
    /// End by the bucket's own clock.
    pub ends: Timestamp,
    /// Sum of the group's credits, at least 1.
    pub credits: u64,
}

/// The bucket's own clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BucketClock {
    /// Distance ahead of the server's clock, in milliseconds.
    pub ahead_ms: u64,
}

impl BucketClock {
    /// Converts a time of the bucket's clock to the server's.
    pub(crate) fn by_server(self, time: Timestamp) -> Timestamp {
        Timestamp::from_nanos(time.as_nanos().saturating_sub(self.ahead_ns()))
    }

    /// Converts a time of the server's clock to the bucket's.
    pub fn by_bucket(self, time: Timestamp) -> Timestamp {
        time.plus(self.ahead_ns())
    }

    /// Compensates for a server's clock that was set back: the bucket's clock continues, to the millisecond.
    pub fn set_back(&mut self, by_ns: u64) {
        self.ahead_ms = self.ahead_ms.saturating_add(by_ns / NANOS_PER_MILLI);
    }

    fn ahead_ns(self) -> u64 {
        self.ahead_ms.saturating_mul(NANOS_PER_MILLI)
    }
}

/// The groups of a bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpiryGroups {
    /// Distinguishes these reservations from those that the bucket had before it was forgotten.
    pub generation: u64,
    /// The time of the last change, by the server's clock.
    pub time: Timestamp,
    /// The bucket's own clock, which never runs backwards.
    pub clock: BucketClock,
    /// Sorted by their ends, without duplicates. Each has at least one credit.
    groups: Vec<ExpiryGroup>,
}

/// Returns the end of a reservation that begins at `at`. Ends are rounded up to whole steps, so that few groups hold
/// many reservations, and are whole milliseconds.
pub(crate) fn round_up_end(at: Timestamp, ttl_seconds: u32) -> Timestamp {
    let ttl_ms = u64::from(ttl_seconds) * 1_000;
    let at_ms = at.as_nanos().div_ceil(NANOS_PER_MILLI);
    Timestamp::from_millis((at_ms + ttl_ms).next_multiple_of(step(ttl_ms))).unwrap_or(Timestamp::MAX)
}

/// Returns the maximum time that a new reservation of `ttl_seconds` can last (nanoseconds).
pub fn longest_ns(ttl_seconds: u32) -> u64 {
    let ttl_ms = u64::from(ttl_seconds) * 1_000;
    (ttl_ms + step(ttl_ms)).saturating_mul(NANOS_PER_MILLI)
}

/// Returns the step of ends (milliseconds): they are rounded up to its multiples.
fn step(ttl_ms: u64) -> u64 {
    (ttl_ms / PARTS_OF_TTL).max(SHORTEST_STEP_MS)
}

impl ExpiryGroups {
    /// Creates an empty set of groups.
    pub fn new(generation: u64) -> Self {
        Self { generation, time: Timestamp::EPOCH, clock: BucketClock::default(), groups: Vec::new() }
    }

    /// Restores stored groups. Returns `None` if there are too many, or if they are not in the order of their ends.
    pub fn from_stored(generation: u64, time: Timestamp, clock: BucketClock, groups: Vec<ExpiryGroup>) -> Option<Self> {
        let is_sound = groups.len() <= MAX_GROUPS && groups.is_sorted_by(|one, next| one.ends < next.ends);
        is_sound.then_some(Self { generation, time, clock, groups })
    }

    /// Returns the groups in the order of their ends.
    pub fn groups(&self) -> &[ExpiryGroup] {
        &self.groups
    }

    /// Returns whether no credits are set aside.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Returns the sum of all credits.
    pub fn credits(&self) -> u64 {
        self.groups.iter().fold(0, |credits, group| credits.saturating_add(group.credits))
    }

    /// Returns the time when the last credits become free, by the server's clock; [`Timestamp::EPOCH`] if all are.
    pub(crate) fn last_end(&self) -> Timestamp {
        self.groups.last().map_or(Timestamp::EPOCH, |group| self.clock.by_server(group.ends))
    }

    /// Returns the heap memory (bytes).
    pub fn heap_bytes(&self) -> usize {
        self.groups.capacity() * size_of::<ExpiryGroup>()
    }

    /// Drops the groups that have ended at `at`, by the server's clock.
    pub fn advance(&mut self, at: Timestamp) {
        let (now, before) = (self.clock.by_bucket(at), self.groups.len());
        self.groups.retain(|group| group.ends > now);
        if self.groups.len() < before {
            self.time = at;
        }
    }

    /// Sets credits aside at `at` (by the server's clock) until `ends` (by the bucket's clock).
    pub fn add(&mut self, credits: u64, ends: Timestamp, at: Timestamp) {
        if credits == 0 {
            return;
        }
        self.time = at;
        let place = self.groups.partition_point(|group| group.ends < ends);
        match self.groups.get_mut(place).filter(|group| group.ends == ends) {
            Some(group) => group.credits = group.credits.saturating_add(credits),
            None => self.groups.insert(place, ExpiryGroup { ends, credits }),
        }
        if self.groups.len() > MAX_GROUPS {
            self.join_the_closest();
        }
    }

    /// Joins the two groups whose ends are closest to each other.
    fn join_the_closest(&mut self) {
        let pairs = self.groups.iter().zip(self.groups.iter().skip(1));
        let closest = pairs.enumerate().min_by_key(|(_, (one, next))| next.ends.since(one.ends));
        if let Some((place, _)) = closest {
            let earlier = self.groups.remove(place);
            if let Some(later) = self.groups.get_mut(place) {
                later.credits = later.credits.saturating_add(earlier.credits);
            }
        }
    }

    /// Frees credits at `at` (by the server's clock) that are set aside until `ends` (by the bucket's clock). They are
    /// taken from the groups that end then or later, the earliest first. A group never ends before the credits that
    /// were added to it, so enough stays set aside for all other reservations. Returns whether any credits were freed.
    pub fn remove(&mut self, credits: u64, ends: Timestamp, at: Timestamp) -> bool {
        self.time = at;
        let mut rest = credits;
        for group in self.groups.iter_mut().filter(|group| group.ends >= ends) {
            let freed = rest.min(group.credits);
            group.credits -= freed;
            rest -= freed;
        }
        self.groups.retain(|group| group.credits > 0);
        rest < credits
    }
}
