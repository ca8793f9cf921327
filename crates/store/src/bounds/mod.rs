//! Bounds on the content of a store, and the budgets that enforce them: here for counters, in [`records`] for records.
//!
//! Clients that invent actors create counters, and must not fill the memory or the disk with them. Beyond the bound, a
//! policy answers for new counters, which are not stored. Existing counters are not affected.
//!
//! A counter counts from the change that creates it until it is forgotten, even if it expires and begins anew in
//! between. Counters that RocksDB's compactions drop still count until the embedded store
//! [counts](CounterBudget::counted) again. So the number may be too high.

pub mod records;

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64};

use self::records::RecordBudgets;
use crate::contract::{Entry, SHOW, StoreError};
use divvy_core::algorithm::Outcome;
use divvy_telemetry::metrics::Metric;

/// Default number of counters on disk.
pub const DEFAULT_MAX_COUNTERS: u64 = 100_000_000;
/// Default number of counters in memory, about 200 bytes each.
pub const DEFAULT_MAX_COUNTERS_IN_MEMORY: u64 = 1_000_000;
/// Default size of the counters on disk (bytes).
pub const DEFAULT_MAX_DISK: u64 = 16 << 30;
/// Default number of reservations, about 200 bytes of memory each.
pub const DEFAULT_MAX_RESERVATIONS: u64 = 100_000;
/// Default number of idempotency keys, about 200 bytes of memory each.
pub const DEFAULT_MAX_IDEMPOTENCY_KEYS: u64 = 1_000_000;
/// Percentage of the bound above which the store reclaims expired counters.
const RECLAIM_AT_PERCENT: i64 = 90;

/// The policy for a new counter that exceeds the bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WhenFull {
    /// An error.
    #[default]
    Error,
    /// A denial with nothing left, for a second.
    Deny,
    /// The answer of a fresh counter. Nothing is counted.
    Allow,
}

/// Bounds of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Maximum number of counters.
    pub max_counters: u64,
    /// Maximum number of reservations.
    pub max_reservations: u64,
    /// Maximum number of idempotency keys.
    pub max_idempotency_keys: u64,
    /// Maximum size of the counters on disk (bytes).
    pub max_disk: u64,
    /// The answer to a hit that needs a new counter beyond the bounds.
    pub when_full: WhenFull,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            max_counters: DEFAULT_MAX_COUNTERS,
            max_reservations: DEFAULT_MAX_RESERVATIONS,
            max_idempotency_keys: DEFAULT_MAX_IDEMPOTENCY_KEYS,
            max_disk: DEFAULT_MAX_DISK,
            when_full: WhenFull::default(),
        }
    }
}

impl Bounds {
    /// Creates the budgets for records.
    pub fn records(&self) -> RecordBudgets {
        RecordBudgets::new(self.max_reservations, self.max_idempotency_keys)
    }
}

/// Counts the counters of a store, and refuses those beyond the bound.
#[derive(Debug)]
pub struct CounterBudget {
    max_counters: i64,
    when_full: WhenFull,
    /// Created once, because a flood of new actors must not allocate.
    pub error: StoreError,
    /// Number of counters created since the start, minus the number forgotten.
    begun: AtomicI64,
    /// The number of counters, minus `begun`.
    base: AtomicI64,
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
            is_counted: AtomicBool::new(true),
            disk_is_full: AtomicBool::new(false),
            refused: AtomicU64::new(0),
        }
    }

    /// Sets an estimate of the number of counters in the store, until they are [counted](CounterBudget::counted).
    pub fn estimated(&self, counters: u64) {
        self.base.store(signed(counters), Relaxed);
        self.is_counted.store(false, Release);
    }

    /// Sets the number of counters that there were when [`begun`](CounterBudget::begun) had this value.
    pub fn counted(&self, counters: u64, begun: i64) {
        self.base.store(signed(counters) - begun, Relaxed);
        self.is_counted.store(true, Release);
    }

    /// Returns whether the counters were counted.
    pub fn is_counted(&self) -> bool {
        self.is_counted.load(Acquire)
    }

    /// Returns the number of counters created since the start, minus the number forgotten.
    pub fn begun(&self) -> i64 {
        self.begun.load(Relaxed)
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

    /// Returns whether there is no room for another counter.
    pub fn is_full(&self) -> bool {
        !self.has_room(self.begun()) || self.disk_is_full.load(Relaxed)
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

    fn has_room(&self, begun: i64) -> bool {
        let base = if self.is_counted() { self.base.load(Relaxed) } else { 0 };
        base + begun < self.max_counters
    }

    /// Returns the number of counters, or an estimate before they are counted.
    pub fn count(&self) -> u64 {
        u64::try_from(self.base.load(Relaxed) + self.begun()).unwrap_or_default()
    }

    /// Returns whether the bound is near, so that expired counters should be reclaimed.
    pub fn is_nearly_full(&self) -> bool {
        let reclaim_at = i128::from(self.max_counters) * i128::from(RECLAIM_AT_PERCENT) / 100;
        i128::from(self.count()) >= reclaim_at
    }

    /// Returns the metrics of the bound.
    pub fn metrics(&self) -> [Metric; 4] {
        [
            Metric::gauge(
                "divvy_max_counters",
                "Maximum number of counters.",
                u64::try_from(self.max_counters).unwrap_or_default(),
            ),
            Metric::gauge(
                "divvy_counters_counted",
                "1 once the number of counters is known, 0 while they are being counted after a start.",
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::Action;
    use crate::testing::{LOOK, TAKE, at, window};
    use divvy_core::algorithm::Ask;

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
        assert_eq!((begun, budget.count()), (1_000, 1_000));
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
        assert_eq!(budget.count(), 1_000);
        assert!((0..10).all(|_| budget.begin()));
        assert!(!budget.begin(), "new counters are certain");
    }

    #[test]
    fn counters_created_during_a_count_are_added_to_it() {
        let budget = budget(100, WhenFull::Error);
        budget.estimated(1_000);
        (0..7).for_each(|_| assert!(budget.begin()));
        budget.counted(50, 3);
        assert_eq!(budget.count(), 54);
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
