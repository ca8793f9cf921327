//! What is set aside in a bucket, by the time at which it ends. Whose it is is not known here.
//!
//! However many reservations there are, a bucket keeps them in at most [`MAX_GROUPS`] groups. A reservation that finds no
//! room for a group of its own joins the next one that ends later. So at any time at least as much is set aside as is
//! reserved; more only where groups were joined, and no longer than until the later of them ends.

use crate::clock::{NANOS_PER_MILLI, Timestamp};

/// Groups of reservations that a bucket keeps, at most.
pub const MAX_GROUPS: usize = 64;
/// A reservation's end is rounded up to such a part of its time,
const PARTS_OF_TTL: u64 = 32;
/// and to so many milliseconds at least.
const SHORTEST_STEP_MS: u64 = 1_000;

/// Credits that are set aside until the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Group {
    pub ends: Timestamp,
    pub credits: u64,
}

/// What is set aside in a bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reserved {
    /// Tells these reservations from those that the bucket had before it was forgotten.
    pub generation: u64,
    /// By their ends, of which no two are alike; each of at least one credit.
    groups: Vec<Group>,
}

/// When a reservation of so many seconds ends that begins at `at`: in whole steps, so that few groups hold many of them. All
/// ends are whole milliseconds.
pub fn end(at: Timestamp, ttl_seconds: u32) -> Timestamp {
    let ttl_ms = u64::from(ttl_seconds) * 1_000;
    let step = (ttl_ms / PARTS_OF_TTL).max(SHORTEST_STEP_MS);
    let at_ms = at.as_nanos().div_ceil(NANOS_PER_MILLI);
    Timestamp::from_millis((at_ms + ttl_ms).next_multiple_of(step)).unwrap_or(Timestamp::MAX)
}

/// The last end that is not after `at`.
pub fn not_after(at: Timestamp) -> Timestamp {
    Timestamp::from_nanos(at.as_nanos() - at.as_nanos() % NANOS_PER_MILLI)
}

impl Reserved {
    pub fn new(generation: u64) -> Self {
        Self { generation, groups: Vec::new() }
    }

    /// `None` unless the groups are in the order of their ends, and not too many.
    pub fn from_groups(generation: u64, groups: impl IntoIterator<Item = Group>) -> Option<Self> {
        let groups: Vec<_> = groups.into_iter().take(MAX_GROUPS + 1).collect();
        let is_sound = groups.len() <= MAX_GROUPS && groups.is_sorted_by(|one, next| one.ends < next.ends);
        is_sound.then_some(Self { generation, groups })
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

    /// When the last of them are free; [`Timestamp::EPOCH`] when all are.
    pub fn last_end(&self) -> Timestamp {
        self.groups.last().map_or(Timestamp::EPOCH, |group| group.ends)
    }

    /// Bytes that it takes beside itself.
    pub fn heap_bytes(&self) -> usize {
        self.groups.capacity() * size_of::<Group>()
    }

    /// Drops what has ended by `at`.
    pub fn advance(&mut self, at: Timestamp) {
        self.groups.retain(|group| group.ends > at);
    }

    /// Has everything end so much earlier, at a whole millisecond.
    pub fn pull_back(&mut self, by_ns: u64) {
        for group in &mut self.groups {
            let ends_ns = group.ends.as_nanos().saturating_sub(by_ns);
            group.ends = Timestamp::from_millis(ends_ns.div_ceil(NANOS_PER_MILLI)).unwrap_or(Timestamp::MAX);
        }
        self.groups.dedup_by(|later, kept| {
            let is_same = later.ends == kept.ends;
            if is_same {
                kept.credits = kept.credits.saturating_add(later.credits);
            }
            is_same
        });
    }

    /// Sets credits aside until `ends`.
    pub fn add(&mut self, credits: u64, ends: Timestamp) {
        if credits == 0 {
            return;
        }
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

    /// Frees credits that were to end at `ends`: of the groups that end then or later, the earliest first. Since a group
    /// never ends before what was added to it, as much as is reserved until any time stays set aside until then. Whether
    /// there were any.
    pub fn remove(&mut self, credits: u64, ends: Timestamp) -> bool {
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
