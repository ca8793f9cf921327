//! What is set aside in a bucket, by the time at which it ends. Whose it is is not known here.
//!
//! However many reservations there are, a bucket keeps them in at most [`MAX_GROUPS`] groups. A reservation that finds no
//! room for a group of its own joins the next one that ends later. So at any time at least as much is set aside as is
//! reserved; more only where groups were joined, and no longer than until the later of them ends.
//!
//! Ends are kept by the bucket's own clock, which never runs backwards: the server's, and what that was set back by since the
//! bucket's first reservation. So a reservation's record names the same end for good.

use crate::clock::{NANOS_PER_MILLI, Timestamp};

/// Groups of reservations that a bucket keeps, at most.
pub const MAX_GROUPS: usize = 64;
/// A reservation's end is rounded up to such a part of its time,
const PARTS_OF_TTL: u64 = 32;
/// and to so many milliseconds at least.
const SHORTEST_STEP_MS: u64 = 1_000;

/// Credits that are set aside until the same time, by the bucket's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Group {
    pub ends: Timestamp,
    pub credits: u64,
}

/// The bucket's own clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BucketClock {
    /// How far (milliseconds) it is ahead of the server's.
    pub ahead_ms: u64,
}

impl BucketClock {
    /// That time of the bucket's clock, by the server's.
    pub fn by_server(self, time: Timestamp) -> Timestamp {
        Timestamp::from_nanos(time.as_nanos().saturating_sub(self.ahead_ns()))
    }

    /// That time of the server's clock, by the bucket's.
    pub fn by_bucket(self, time: Timestamp) -> Timestamp {
        time.plus(self.ahead_ns())
    }

    /// The server's clock was set back by so much: the bucket's goes on, to the millisecond.
    pub fn set_back(&mut self, by_ns: u64) {
        self.ahead_ms = self.ahead_ms.saturating_add(by_ns / NANOS_PER_MILLI);
    }

    fn ahead_ns(self) -> u64 {
        self.ahead_ms.saturating_mul(NANOS_PER_MILLI)
    }
}

/// What is set aside in a bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reserved {
    /// Tells these reservations from those that the bucket had before it was forgotten.
    pub generation: u64,
    /// When they were changed last, by the server's clock.
    pub time: Timestamp,
    pub clock: BucketClock,
    /// By their ends, of which no two are alike; each of at least one credit.
    groups: Vec<Group>,
}

/// When a reservation of so many seconds ends that begins at `at`: in whole steps, so that few groups hold many of them. All
/// ends are whole milliseconds.
pub fn end(at: Timestamp, ttl_seconds: u32) -> Timestamp {
    let ttl_ms = u64::from(ttl_seconds) * 1_000;
    let at_ms = at.as_nanos().div_ceil(NANOS_PER_MILLI);
    Timestamp::from_millis((at_ms + ttl_ms).next_multiple_of(step(ttl_ms))).unwrap_or(Timestamp::MAX)
}

/// Returns the longest time (nanoseconds) that a reservation of `ttl_seconds` lasts.
pub fn longest_ns(ttl_seconds: u32) -> u64 {
    let ttl_ms = u64::from(ttl_seconds) * 1_000;
    (ttl_ms + step(ttl_ms)).saturating_mul(NANOS_PER_MILLI)
}

/// Returns the step (milliseconds) that ends are rounded up to.
fn step(ttl_ms: u64) -> u64 {
    (ttl_ms / PARTS_OF_TTL).max(SHORTEST_STEP_MS)
}

/// The last end that is not after `at`.
pub fn not_after(at: Timestamp) -> Timestamp {
    Timestamp::from_nanos(at.as_nanos() - at.as_nanos() % NANOS_PER_MILLI)
}

impl Reserved {
    pub fn new(generation: u64) -> Self {
        Self { generation, time: Timestamp::EPOCH, clock: BucketClock::default(), groups: Vec::new() }
    }

    /// As it was stored; `None` unless the groups are in the order of their ends, and not too many.
    pub fn found(
        generation: u64,
        time: Timestamp,
        clock: BucketClock,
        groups: impl IntoIterator<Item = Group>,
    ) -> Option<Self> {
        let groups: Vec<_> = groups.into_iter().take(MAX_GROUPS + 1).collect();
        let is_sound = groups.len() <= MAX_GROUPS && groups.is_sorted_by(|one, next| one.ends < next.ends);
        is_sound.then_some(Self { generation, time, clock, groups })
    }

    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Credits set aside.
    pub fn credits(&self) -> u64 {
        self.groups.iter().fold(0, |credits, group| credits.saturating_add(group.credits))
    }

    /// When the last of them are free, by the server's clock; [`Timestamp::EPOCH`] when all are.
    pub fn last_end(&self) -> Timestamp {
        self.groups.last().map_or(Timestamp::EPOCH, |group| self.clock.by_server(group.ends))
    }

    /// Bytes that it takes beside itself.
    pub fn heap_bytes(&self) -> usize {
        self.groups.capacity() * size_of::<Group>()
    }

    /// Drops what has ended by `at`, a time of the server's clock.
    pub fn advance(&mut self, at: Timestamp) {
        let (now, before) = (self.clock.by_bucket(at), self.groups.len());
        self.groups.retain(|group| group.ends > now);
        if self.groups.len() < before {
            self.time = at;
        }
    }

    /// Sets credits aside at `at`, by the server's clock, until `ends`, by the bucket's.
    pub fn add(&mut self, credits: u64, ends: Timestamp, at: Timestamp) {
        if credits == 0 {
            return;
        }
        self.time = at;
        let place = self.groups.partition_point(|group| group.ends < ends);
        match self.groups.get_mut(place).filter(|group| group.ends == ends) {
            Some(group) => group.credits = group.credits.saturating_add(credits),
            None => self.groups.insert(place, Group { ends, credits }),
        }
        if self.groups.len() > MAX_GROUPS {
            self.join_the_closest();
        }
    }

    /// Joins the two groups whose ends are the closest: what is in the earlier one ends with the later one.
    fn join_the_closest(&mut self) {
        let gap = |pair: &[Group]| match pair {
            [one, next] => next.ends.since(one.ends),
            _ => u64::MAX,
        };
        let closest = self.groups.windows(2).enumerate().min_by_key(|(_, pair)| gap(pair));
        if let Some((place, _)) = closest {
            let earlier = self.groups.remove(place);
            if let Some(later) = self.groups.get_mut(place) {
                later.credits = later.credits.saturating_add(earlier.credits);
            }
        }
    }

    /// Frees credits at `at`, by the server's clock, that were to end at `ends`, by the bucket's: of the groups that end then
    /// or later, the earliest first. Since a group never ends before what was added to it, as much as is reserved until any time
    /// stays set aside until then. Whether there were any.
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
