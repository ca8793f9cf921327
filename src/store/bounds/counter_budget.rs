//! The budget for counters, and the policy beyond it.
//!
//! Clients that invent actors create counters, and must not fill the memory or the disk with them. Beyond the bound, a
//! policy answers for new counters, which are not stored. Existing counters are not affected.
//!
//! - A counter counts from the change that creates it until it is forgotten or its record is dropped, even if it expires and
//!   begins anew in between.
//! - RocksDB may drop a record that was not a counter's latest, or report a drop late. So each drop reduces the count
//!   by one and leaves one counter in doubt. The true number is never below [`CounterBudget::at_least`] and never above
//!   [`CounterBudget::at_most`]. A recount removes the doubt.
//! - Only [`CounterBudget::at_least`] decides whether a counter is refused. Estimates and doubtful counters never do.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use super::{Bounds, WhenFull};
use crate::algorithm::Outcome;
use crate::metrics::Metric;
use crate::store::contract::{Entry, SHOW, StoreError};

/// Percentage of the bound above which the store searches for expired counters.
const SWEEP_AT_PERCENT: i64 = 90;

/// Lower and upper bound of the number of counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CounterCount {
    pub at_least: u64,
    pub at_most: u64,
}

/// Counts the counters of a store, and refuses those beyond the bound.
#[derive(Debug)]
pub struct CounterBudget {
    max_counters: i64,
    when_full: WhenFull,
    /// Created once, because a flood of new actors must not allocate.
    pub(super) error: StoreError,
    /// Number of counters created since the start, minus the number forgotten.
    begun: AtomicI64,
    /// `begun` plus this is the maximum number of counters: the last count, minus `begun` at that time.
    base: AtomicI64,
    /// Number of records dropped since the start. The last count includes `settled` of these drops.
    dropped: AtomicI64,
    settled: AtomicI64,
    /// Whether `base` was counted. Until then, it is an estimate, and no counter is refused because of it.
    is_counted: AtomicBool,
    /// Whether the files of counters have reached their maximum size on disk.
    pub disk_is_full: AtomicBool,
    /// Number of entries that the policy answered since the start.
    refused: AtomicU64,
}

impl CounterBudget {
    /// Creates the budget of an empty store.
    pub fn new(bounds: Bounds) -> Self {
        Self {
            max_counters: i64::try_from(bounds.max_counters).unwrap_or(i64::MAX),
            when_full: bounds.when_full,
            error: StoreError::new("the store is full: no new counters are created; existing ones still count"),
            begun: AtomicI64::new(0),
            base: AtomicI64::new(0),
            dropped: AtomicI64::new(0),
            settled: AtomicI64::new(0),
            is_counted: AtomicBool::new(true),
            disk_is_full: AtomicBool::new(false),
            refused: AtomicU64::new(0),
        }
    }

    /// Sets the number of counters that the store had when it was closed.
    pub fn remembered(&self, count: CounterCount) {
        let at_most = signed(count.at_most);
        self.counted_as(at_most, signed(count.at_least) - at_most);
    }

    /// Sets an estimate of the number of counters in the store.
    pub fn estimated(&self, counters: u64) {
        self.base.store(signed(counters), Relaxed);
        self.doubt();
    }

    /// Turns the number into an estimate until the counters are counted again.
    pub fn doubt(&self) {
        self.is_counted.store(false, Release);
    }

    /// Sets the result of a count, which found `counters`. When the count began, `begun` counters had begun, and
    /// `dropped` drops of records were complete.
    pub fn counted(&self, counters: u64, begun: i64, dropped: i64) {
        self.counted_as(signed(counters) - begun, dropped);
    }

    fn counted_as(&self, base: i64, settled: i64) {
        self.base.store(base, Relaxed);
        // This is stored last, because a reader that still sees the old number computes too few counters.
        self.settled.store(settled, Release);
        self.is_counted.store(true, Release);
    }

    /// Returns the policy's answer for a counter that does not exist. Returns `None` if there is room for it, or the
    /// entry creates no counter.
    pub fn refusal(&self, entry: &Entry) -> Option<Result<Outcome, StoreError>> {
        (self.is_full() && !entry.action.gives_back() && !matches!(entry.action, SHOW)).then(|| self.refuse(entry))
    }

    /// Returns the policy's answer, or an error if no policy may answer.
    pub fn refuse(&self, entry: &Entry) -> Result<Outcome, StoreError> {
        self.refused.fetch_add(1, Relaxed);
        match self.when_full {
            WhenFull::Deny if !entry.action.needs_store() => Ok(entry.denied()),
            WhenFull::Allow if !entry.action.needs_store() => Ok(entry.uncounted()),
            WhenFull::Deny | WhenFull::Allow | WhenFull::Error => Err(self.error.clone()),
        }
    }

    pub fn is_full(&self) -> bool {
        !self.has_room(self.begun.load(Relaxed)) || self.disk_is_full.load(Relaxed)
    }

    /// Counts a new counter. Returns false, and counts nothing, if there is no room for it.
    #[must_use]
    pub fn begin(&self) -> bool {
        !self.disk_is_full.load(Relaxed)
            && self.begun.fetch_update(Relaxed, Relaxed, |begun| self.has_room(begun).then_some(begun + 1)).is_ok()
    }

    /// Counts a forgotten counter.
    pub fn forget(&self) {
        self.begun.fetch_sub(1, Relaxed);
    }

    /// Counts a dropped record, which may have been a counter's latest.
    pub fn dropped_record(&self) {
        self.dropped.fetch_add(1, Relaxed);
    }

    /// Returns the number of records dropped since the start.
    pub fn dropped(&self) -> i64 {
        self.dropped.load(Relaxed)
    }

    fn has_room(&self, begun: i64) -> bool {
        self.at_least_with(begun) < self.max_counters
    }

    fn at_least_with(&self, begun: i64) -> i64 {
        let in_doubt = self.dropped.load(Relaxed) - self.settled.load(Acquire);
        let base = if self.is_counted.load(Acquire) { self.base.load(Relaxed) } else { 0 };
        base + begun - in_doubt
    }

    /// Returns the number of counters that exist for certain.
    pub fn at_least(&self) -> u64 {
        unsigned(self.at_least_with(self.begun.load(Relaxed)))
    }

    /// Returns the maximum number of counters, or an estimate before they are counted.
    pub fn at_most(&self) -> u64 {
        unsigned(self.base.load(Relaxed) + self.begun.load(Relaxed))
    }

    /// Returns the number of counters, except those in doubt, or an estimate before they are counted.
    pub fn approximately(&self) -> u64 {
        if self.is_counted() { self.at_least() } else { self.at_most() }
    }

    /// Returns the bounds of the number. `None` before the counters are counted.
    pub fn count(&self) -> Option<CounterCount> {
        self.is_counted().then(|| CounterCount { at_least: self.at_least(), at_most: self.at_most() })
    }

    pub fn is_counted(&self) -> bool {
        self.is_counted.load(Acquire)
    }

    /// Returns whether there may be enough counters to search for expired ones.
    pub fn is_nearly_full(&self) -> bool {
        let sweep_at = i128::from(self.max_counters) * i128::from(SWEEP_AT_PERCENT) / 100;
        i128::from(self.at_most()) >= sweep_at
    }

    pub fn metrics(&self) -> [Metric; 4] {
        [
            Metric::gauge("divvy_max_counters", "Maximum number of counters.", unsigned(self.max_counters)),
            Metric::gauge(
                "divvy_counters_counted",
                "1 once the number of counters is known, 0 while they are being counted after a kill.",
                self.is_counted().into(),
            ),
            Metric::gauge("divvy_full", "1 while there is no room for a new counter.", self.is_full().into()),
            Metric::counter(
                "divvy_counters_refused_total",
                "Actions on new counters that --when-full answered.",
                self.refused.load(Relaxed),
            ),
        ]
    }
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::Ask;
    use crate::store::contract::Action;
    use crate::store::testing::{LOOK, TAKE, at, window};

    fn budget(max_counters: u64, when_full: WhenFull) -> CounterBudget {
        CounterBudget::new(Bounds { max_counters, when_full, ..Bounds::default() })
    }

    fn entry(action: Action) -> Entry {
        Entry::new(0..0, window(5, 60), action, at(0))
    }

    #[test]
    fn budget_has_room_up_to_the_bound_and_after_a_forget() {
        let budget = budget(2, WhenFull::Error);
        assert!(budget.begin());
        assert!(budget.refusal(&entry(TAKE)).is_none());
        assert!(budget.begin());
        assert!(!budget.begin());
        assert!(budget.refusal(&entry(TAKE)).unwrap().is_err());
        assert!(budget.refusal(&entry(LOOK)).unwrap().is_err(), "a peek gets the answer of a hit");
        assert!(budget.refusal(&entry(Action::Forget)).is_none());
        assert!(budget.refusal(&entry(SHOW)).is_none());
        budget.forget();
        assert!(budget.refusal(&entry(TAKE)).is_none());
        assert_eq!(budget.refused.load(Relaxed), 2);
    }

    #[test]
    fn threads_never_exceed_the_bound() {
        let budget = budget(1_000, WhenFull::Error);
        let begun: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| (0..500).filter(|_| budget.begin()).count())).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!((begun, budget.at_least()), (1_000, 1_000));
    }

    #[test]
    fn full_disk_leaves_no_room() {
        let budget = budget(2, WhenFull::Error);
        budget.disk_is_full.store(true, Relaxed);
        assert!(budget.refusal(&entry(TAKE)).is_some() && !budget.begin());
        budget.disk_is_full.store(false, Relaxed);
        assert!(budget.refusal(&entry(TAKE)).is_none() && budget.begin());
    }

    #[test]
    fn estimate_refuses_nothing() {
        let budget = budget(10, WhenFull::Error);
        budget.estimated(1_000);
        assert!(!budget.is_full() && budget.is_nearly_full());
        assert_eq!((budget.count(), budget.approximately()), (None, 1_000));
        assert!((0..10).all(|_| budget.begin()));
        assert!(!budget.begin(), "new counters are certain");
        budget.counted(12, 10, 0);
        assert_eq!(budget.count(), Some(CounterCount { at_least: 12, at_most: 12 }));
    }

    #[test]
    fn dropped_record_lowers_the_count_and_leaves_one_counter_in_doubt() {
        let budget = budget(10, WhenFull::Error);
        assert!((0..10).all(|_| budget.begin()));
        budget.dropped_record();
        assert_eq!(budget.count(), Some(CounterCount { at_least: 9, at_most: 10 }));
        assert!(!budget.is_full() && budget.is_nearly_full());
        // The dropped record was an older version, so the recount finds all counters.
        budget.counted(10, 10, budget.dropped());
        assert_eq!(budget.count(), Some(CounterCount { at_least: 10, at_most: 10 }));
        assert!(budget.is_full());
    }

    #[test]
    fn count_includes_counters_and_drops_during_the_count() {
        let budget = budget(100, WhenFull::Error);
        budget.estimated(40);
        (0..5).for_each(|_| budget.dropped_record());
        assert!(budget.begin());
        // The count found 50 counters before the others began. At that time, 3 of the 5 drops were known to be
        // complete.
        budget.counted(50, 0, 3);
        assert_eq!(budget.count(), Some(CounterCount { at_least: 49, at_most: 51 }));
    }

    #[test]
    fn stored_count_keeps_its_doubt() {
        let budget = budget(100, WhenFull::Error);
        let count = CounterCount { at_least: 40, at_most: 50 };
        budget.remembered(count);
        assert_eq!(budget.count(), Some(count));
    }

    #[test]
    fn policy_answers_when_the_store_is_full() {
        let answer = |when_full| budget(0, when_full).refusal(&entry(Action::Ask(Ask::Take { cost: 2 }))).unwrap();
        let denied = answer(WhenFull::Deny).unwrap();
        assert!(!denied.allowed && denied.left == 0 && denied.reset_ns == 1_000_000_000, "{denied:?}");
        let allowed = answer(WhenFull::Allow).unwrap();
        assert!(allowed.allowed && allowed.left == 3, "{allowed:?}");
        assert!(answer(WhenFull::Error).unwrap_err().to_string().contains("full"));
    }
}
