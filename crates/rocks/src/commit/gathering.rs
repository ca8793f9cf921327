//! The wait of a commit for other connections. A commit that makes many changes durable costs little more than one for a
//! single change.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};

use super::group_commit::GroupCommit;
use crate::sync::yield_now;
use crate::upkeep::timings::Timings;
use divvy_core::clock::{NANOS_PER_MILLI, Timestamp};

/// Maximum number of turns of the leader's event loop that a commit waits for.
const TURNS: usize = 8;
/// Time after which a commit waits for no more connections. A turn takes milliseconds while a flood is being denied, and the few
/// hits that it adds are not worth the wait.
const LONGEST_NS: u64 = NANOS_PER_MILLI / 4;
/// Number of connections beyond which a commit does not become cheaper for each of them. If a thread serves this
/// number, one turn takes milliseconds.
const ENOUGH_WAITERS: usize = 256;
/// If a commit follows another one within this time, hits arrive faster than they can be committed one by one.
const CLOSE_NS: u64 = NANOS_PER_MILLI / 40;

/// Remembers whether commits found others to wait for.
///
/// A lone hit does not wait, because even a single turn takes long while a flood is being denied.
#[derive(Debug, Default)]
pub struct Gathering {
    /// Time of the last commit (nanoseconds).
    last_ns: AtomicU64,
    /// Whether others joined the last commit that waited for them.
    found_others: AtomicBool,
}

impl Gathering {
    /// Waits so that other connections of this thread get their changes into the next commit. Ends when a turn adds no
    /// more of them, when there are enough, or after [`LONGEST_NS`].
    pub async fn wait(&self, commits: &GroupCommit, timings: &Timings) {
        let begun = timings.now();
        let mut waiting = commits.waiting();
        if !self.is_worthwhile(begun, waiting) {
            return;
        }
        for _ in 0..TURNS {
            yield_now().await;
            let before = std::mem::replace(&mut waiting, commits.waiting());
            let has_enough = waiting <= before || waiting >= ENOUGH_WAITERS;
            if has_enough || timings.now().since(begun) >= LONGEST_NS {
                break;
            }
        }
        self.found_others.store(waiting > 0, Relaxed);
    }

    /// Returns whether others will probably join a commit that begins now. `waiting` connections wait for it already.
    fn is_worthwhile(&self, now: Timestamp, waiting: usize) -> bool {
        let last = Timestamp::from_nanos(self.last_ns.swap(now.as_nanos(), Relaxed));
        waiting > 0 || self.found_others.load(Relaxed) || now.since(last) < CLOSE_NS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lone_commits_are_not_worth_a_wait() {
        let gathering = Gathering::default();
        let mut now = Timestamp::from_nanos(NANOS_PER_MILLI);
        for _ in 0..3 {
            assert!(!gathering.is_worthwhile(now, 0));
            now = now.plus(CLOSE_NS);
        }
        assert!(gathering.is_worthwhile(now, 1), "another connection waits");
        assert!(gathering.is_worthwhile(now.plus(CLOSE_NS - 1), 0), "right after another commit");
        gathering.found_others.store(true, Relaxed);
        assert!(gathering.is_worthwhile(now.plus(NANOS_PER_MILLI), 0), "others joined the last one");
    }
}
