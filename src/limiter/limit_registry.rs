//! The limits of single actors in a server's memory, and how far they have followed those in the store.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};

use tokio::sync::Mutex;

use super::policy::ActorLimits;
use crate::clock::Timestamp;
use crate::store::{LimitChange, LimitCursor};

/// Default for the maximum number of limits of actors.
pub const DEFAULT_MAX_ACTOR_LIMITS: usize = 1_000_000;

/// All limits of single actors.
#[derive(Debug, Default)]
pub struct LimitRegistry {
    pub memory: ActorLimits,
    /// Maximum number of limits.
    pub max: usize,
    /// The state of following the store. Its lock admits one change or reading at a time.
    pub known: Mutex<FollowState>,
    /// Expired limits that have left memory, and that the store has yet to forget.
    pub over: parking_lot::Mutex<VecDeque<LimitChange>>,
    /// Index of the first shard that the search for expired limits has not reached yet.
    pub looked_through: AtomicUsize,
    /// Number of complete readings of all limits.
    pub readings: AtomicU32,
    /// Time when the store's limits were last read, or the server started (nanoseconds since 1970).
    pub followed: AtomicU64,
    pub failures: AtomicU64,
}

/// Progress in following the limits in the store.
#[derive(Debug, Default)]
pub struct FollowState {
    pub followed: LimitCursor,
    /// Whether all limits are being read from the start.
    pub starts_over: bool,
    /// Time when all limits were last read.
    pub read_all: Timestamp,
}

impl LimitRegistry {
    pub fn new(now: Timestamp) -> Self {
        Self { max: DEFAULT_MAX_ACTOR_LIMITS, followed: AtomicU64::new(now.as_nanos()), ..Self::default() }
    }

    /// Puts the change in force.
    pub fn apply(&self, change: &LimitChange) {
        self.memory.apply(change, self.readings.load(Relaxed));
    }
}
