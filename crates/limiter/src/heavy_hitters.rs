//! The actors of each rule that take the most and that are denied the most, in the last minute and the last hour.
//!
//! [`Top`] gets events from the [report](super::report): a denial, or credits that were taken. A [`Sampler`] chooses the
//! events of a thread that are counted, so that a hit costs little. Each rule has a [`Board`](board::Board) for each order
//! and window: a table of actors with a count for each slice of the window. All boards share one [`Budget`].
//!
//! Boards belong to all threads, and only sampled events lock them. A board for each thread would divide the memory by the
//! number of threads, and each would know less about the same actors.

mod board;
mod budget;
mod event;
mod random;
mod rule_top;
mod sampler;
mod slices;

use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use foldhash::quality::RandomState;

pub use self::board::Ranked;
use self::budget::Budget;
pub use self::event::{Event, Order, Window};
pub use self::random::Random;
pub use self::rule_top::{Ranking, RuleTop};
pub use self::sampler::Sampler;
use divvy_core::clock::{NANOS_PER_SECOND, Timestamp};

/// Default for the memory of all boards (bytes).
pub const DEFAULT_TOP_MEMORY: usize = 16 * 1024 * 1024;

/// Minimum time between two searches for idle boards.
const DROP_INTERVAL_NS: u64 = 60 * NANOS_PER_SECOND;

/// The memory of all boards, and what their tables have in common.
#[derive(Debug)]
pub struct Top {
    budget: Arc<Budget>,
    /// Random, so that no client can choose actors that share a set of a table with another actor.
    hasher: RandomState,
    /// When boards were last dropped because others had no memory (nanoseconds since 1970).
    dropped: AtomicU64,
}

impl Top {
    /// Creates a budget for boards; `None` if it is 0, because then nothing is counted.
    pub fn new(memory: usize) -> Option<Self> {
        (memory > 0).then(|| Self {
            budget: Arc::new(Budget::new(memory)),
            hasher: RandomState::default(),
            dropped: AtomicU64::new(0),
        })
    }

    /// Counts an event of a rule. Returns false if there is no memory for the rule's boards.
    pub fn count(&self, rule: &RuleTop, event: Event<'_>, now: Timestamp, sampler: &mut Sampler) -> bool {
        rule.count(event, self.hasher.hash_one(event.actor), now, &self.budget, sampler.random())
    }

    /// Returns whether idle boards should be dropped for others, which is so once a minute at most.
    pub fn should_drop_idle(&self, now: Timestamp) -> bool {
        let dropped = self.dropped.load(Relaxed);
        let is_due = now.as_nanos().abs_diff(dropped) >= DROP_INTERVAL_NS;
        is_due && self.dropped.compare_exchange(dropped, now.as_nanos(), Relaxed, Relaxed).is_ok()
    }

    /// Ranks the actors of a rule by their counts in the window that ends at `now`. Returns the highest, at most `max`, or
    /// only the actor `only`.
    pub fn rank(
        &self,
        rule: &RuleTop,
        (order, window): (Order, Window),
        now: Timestamp,
        max: usize,
        only: Option<&[u8]>,
    ) -> Ranking {
        rule.rank(order, window, now, max, only.map(|actor| self.hasher.hash_one(actor)))
    }

    /// Returns the memory in use (bytes), at most that of [`Top::new`].
    pub fn memory(&self) -> usize {
        self.budget.used()
    }
}

#[cfg(test)]
mod tests;
