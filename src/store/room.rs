//! The bound on how many buckets a store remembers, and what is answered beyond it.
//!
//! Whoever invents actors makes buckets, and must not fill the memory or the disk with them. Beyond the bound a bucket
//! that is not there yet is answered by a policy and not remembered; those that are there go on.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};

use super::{Action, Entry, StoreError};
use crate::algorithm::Outcome;
use crate::metrics::Figure;

/// Buckets that a store remembers unless the operator says otherwise, where they are on disk and where they are in
/// memory (some 200 bytes each).
pub const DEFAULT_MAX_COUNTERS: u64 = 100_000_000;
pub const DEFAULT_MAX_COUNTERS_IN_MEMORY: u64 = 1_000_000;
/// Bytes of buckets on disk unless the operator says otherwise.
pub const DEFAULT_MAX_DISK: u64 = 16 << 30;

/// How a bucket is answered for which there is no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WhenFull {
    /// With an error.
    #[default]
    Error,
    /// Denied, with nothing left, for a second.
    Deny,
    /// As a bucket that nobody has asked before; nothing is counted.
    Allow,
}

/// The bounds, and what to do at them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    pub max_counters: u64,
    /// Bytes of buckets on disk; for a store that has one.
    pub max_disk: u64,
    pub when_full: WhenFull,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { max_counters: DEFAULT_MAX_COUNTERS, max_disk: DEFAULT_MAX_DISK, when_full: WhenFull::default() }
    }
}

/// The room for buckets, and what is left of it.
#[derive(Debug)]
pub struct Room {
    max_counters: i64,
    when_full: WhenFull,
    /// Made once: a flood of new actors must not allocate.
    error: StoreError,
    /// Buckets that were made and not forgotten: at least those that live. Expired ones count until they are looked for.
    taken: AtomicI64,
    disk_is_full: AtomicBool,
    refused: AtomicU64,
}

impl Room {
    pub fn new(bounds: Bounds) -> Self {
        Self {
            max_counters: i64::try_from(bounds.max_counters).unwrap_or(i64::MAX),
            when_full: bounds.when_full,
            error: StoreError::new("the store is full: no further counter is begun, those that are there go on"),
            taken: AtomicI64::new(0),
            disk_is_full: AtomicBool::new(false),
            refused: AtomicU64::new(0),
        }
    }

    /// The policy's answer to an ask about a bucket that is not there; `None` where there is room for it, or nothing is
    /// asked of it.
    pub fn refusal(&self, entry: &Entry) -> Option<Result<Outcome, StoreError>> {
        if !self.is_full() || entry.action == Action::Forget {
            return None;
        }
        self.refused.fetch_add(1, Relaxed);
        Some(match self.when_full {
            WhenFull::Error => Err(self.error.clone()),
            WhenFull::Deny => Ok(entry.denied()),
            WhenFull::Allow => Ok(entry.uncounted()),
        })
    }

    pub fn is_full(&self) -> bool {
        self.taken() >= self.max_counters || self.disk_is_full.load(Relaxed)
    }

    /// A bucket was made.
    pub fn take(&self) {
        self.taken.fetch_add(1, Relaxed);
    }

    /// A bucket that was not expired is forgotten.
    pub fn give_back(&self) {
        self.taken.fetch_sub(1, Relaxed);
    }

    pub fn taken(&self) -> i64 {
        self.taken.load(Relaxed)
    }

    /// They were counted: `live` instead of the `supposed` ones that were taken when the counting began.
    pub fn counted(&self, supposed: i64, live: u64) {
        self.taken.fetch_add(i64::try_from(live).unwrap_or(i64::MAX).saturating_sub(supposed), Relaxed);
    }

    pub fn set_disk_is_full(&self, is_full: bool) {
        self.disk_is_full.store(is_full, Relaxed);
    }

    pub fn disk_is_full(&self) -> bool {
        self.disk_is_full.load(Relaxed)
    }

    /// Asks that were answered by the policy since the start.
    pub fn refused(&self) -> u64 {
        self.refused.load(Relaxed)
    }

    pub fn figures(&self) -> [Figure; 3] {
        [
            Figure::gauge("divvy_max_counters", "The bound on counters.", self.max_counters as f64),
            Figure::gauge(
                "divvy_full",
                "1 while there is no room for a new counter.",
                f64::from(u8::from(self.is_full())),
            ),
            Figure::counter(
                "divvy_counters_refused_total",
                "Asks about new counters that --when-full answered.",
                self.refused(),
            ),
        ]
    }

    /// Whether there is none, for the log of an outage.
    pub fn state(&self) -> Result<(), StoreError> {
        if self.is_full() { Err(self.error.clone()) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::Ask;
    use crate::store::testing::{LOOK, TAKE, at, window};

    fn room(max_counters: u64, when_full: WhenFull) -> Room {
        Room::new(Bounds { max_counters, when_full, ..Bounds::default() })
    }

    fn entry(action: Action) -> Entry {
        Entry { key: 0..0, limit: window(5, 60), action, at: at(0) }
    }

    #[test]
    fn there_is_room_until_it_is_taken_and_again_when_it_is_given_back() {
        let room = room(2, WhenFull::Error);
        room.take();
        assert!(room.refusal(&entry(TAKE)).is_none());
        room.take();
        assert!(room.refusal(&entry(TAKE)).unwrap().is_err());
        assert!(room.refusal(&entry(LOOK)).unwrap().is_err(), "a peek tells what a hit would be told");
        assert!(room.refusal(&entry(Action::Forget)).is_none());
        room.give_back();
        assert!(room.refusal(&entry(TAKE)).is_none());
        assert_eq!(room.refused(), 2);
    }

    #[test]
    fn a_full_disk_leaves_no_room() {
        let room = room(2, WhenFull::Error);
        room.set_disk_is_full(true);
        assert!(room.refusal(&entry(TAKE)).is_some());
        room.set_disk_is_full(false);
        assert!(room.refusal(&entry(TAKE)).is_none());
    }

    #[test]
    fn a_count_keeps_what_was_taken_meanwhile() {
        let room = room(100, WhenFull::Error);
        (0..100).for_each(|_| room.take());
        let supposed = room.taken();
        room.take();
        room.counted(supposed, 10);
        assert_eq!(room.taken(), 11);
    }

    #[test]
    fn the_policy_answers() {
        let answer = |when_full| room(0, when_full).refusal(&entry(Action::Ask(Ask::Take { cost: 2 }))).unwrap();
        let denied = answer(WhenFull::Deny).unwrap();
        assert!(!denied.allowed && denied.left == 0 && denied.reset_ns == 1_000_000_000, "{denied:?}");
        let allowed = answer(WhenFull::Allow).unwrap();
        assert!(allowed.allowed && allowed.left == 3, "{allowed:?}");
        assert!(answer(WhenFull::Error).unwrap_err().to_string().contains("full"));
    }
}
