//! The limits of single actors that a server knows, and how far it has followed those in the store.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};

use tokio::sync::Mutex;

use super::policy::ActorLimits;
use crate::clock::Timestamp;
use crate::store::{LimitChange, LimitCursor};

/// Limits of actors, unless the operator sets another bound.
pub const DEFAULT_MAX_ACTOR_LIMITS: usize = 1_000_000;

/// All limits of single actors.
#[derive(Debug, Default)]
pub struct LimitRegistry {
    pub memory: ActorLimits,
    /// The bound on their number.
    pub max: usize,
    /// Changes are made and followed one at a time.
    pub known: Mutex<FollowState>,
    /// Limits that have ended and left memory, until the store has forgotten them.
    pub over: parking_lot::Mutex<VecDeque<LimitChange>>,
    /// The shards before this one were searched for expired limits.
    pub looked_through: AtomicUsize,
    /// Number of times that all limits were read from the start.
    pub readings: AtomicU32,
    /// When the store's limits were last read, or the server started (nanoseconds since 1970).
    pub followed: AtomicU64,
    pub failures: AtomicU64,
}

/// How far the store's limits have been followed.
#[derive(Debug, Default)]
pub struct FollowState {
    pub followed: LimitCursor,
    /// All of them are being read from the start.
    pub starts_over: bool,
    /// When all of them were last read.
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
