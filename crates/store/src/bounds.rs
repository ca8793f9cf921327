//! Bounds on the content of a store, the budgets that enforce them, and the records of reservations and of answers to idempotent
//! requests, in memory until they end.
//!
//! Clients that invent actors create counters, and must not fill the memory or the disk with them. Beyond the bound, a
//! policy answers for new counters, which are not stored. Existing counters are not affected.
//!
//! A counter counts from the change that creates it until it is forgotten, even if it expires and begins anew in
//! between. Counters that RocksDB's compactions drop still count until the embedded store
//! [counts](CounterBudget::counted) again. So the number may be too high.
//!
//! The algorithms decide the content of a record. A record holds a [`Share`] of its budget while the store remembers it. Dropping
//! the share gives it back.

use std::borrow::Borrow;
use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64};

use crate::contract::{Entry, Outage, SHOW, StoreError};
use divvy_core::algorithm::{Outcome, Record};
use divvy_core::clock::{MAX_STANDSTILL_NS, NANOS_PER_SECOND, Timestamp};
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
const RECLAIM_AT_PERCENT: u64 = 90;
/// Time without a full store after which the log reports that there is room. At the bound, a store becomes full again
/// and again.
const QUIET_NS: u64 = 5 * NANOS_PER_SECOND;

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
        self.base.store(counters.cast_signed(), Relaxed);
        self.is_counted.store(false, Release);
    }

    /// Sets the number of counters that there were when [`begun`](CounterBudget::begun) had this value.
    pub fn counted(&self, counters: u64, begun: i64) {
        self.base.store(counters.cast_signed() - begun, Relaxed);
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
        self.count().saturating_mul(100) >= self.max_counters.unsigned_abs().saturating_mul(RECLAIM_AT_PERCENT)
    }

    /// Returns the metrics of the bound.
    pub fn metrics(&self) -> [Metric; 4] {
        [
            Metric::gauge("divvy_max_counters", "Maximum number of counters.", self.max_counters.unsigned_abs()),
            Metric::gauge(
                "divvy_counters_counted",
                "1 once the counters are counted after a start.",
                self.is_counted().into(),
            ),
            Metric::gauge("divvy_full", "1 while there is no room for a new counter.", self.is_full().into()),
            Metric::counter(
                "divvy_counters_refused_total",
                "Actions that --when-full answered.",
                self.refused.load(Relaxed),
            ),
        ]
    }
}

/// Logs one line when the store gets full, and one when there is room again.
#[derive(Debug)]
pub struct RoomLog {
    outage: Outage,
    full_at: Timestamp,
}

impl Default for RoomLog {
    fn default() -> Self {
        let effect = "new ones are answered as --when-full says (raise --max-counters or --max-disk)";
        Self { outage: Outage::of("capacity for new counters", effect), full_at: Timestamp::EPOCH }
    }
}

impl RoomLog {
    /// Notes whether there is room at `now`.
    pub fn note(&mut self, budget: &CounterBudget, now: Timestamp) {
        if budget.is_full() {
            self.full_at = now;
            self.outage.note(&Err(budget.error.clone()));
        } else if now.distance(self.full_at) >= QUIET_NS {
            self.outage.note(&Ok(()));
        }
    }
}

/// Numbers of reservations and of answers to idempotent requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RecordCount {
    /// Open reservations.
    pub reservations: u64,
    /// Answers to idempotent requests.
    pub answered: u64,
}

/// Budgets for records of each kind.
#[derive(Debug)]
pub struct RecordBudgets {
    reservations: Arc<RecordBudget>,
    answered: Arc<RecordBudget>,
}

impl RecordBudgets {
    /// Creates the budgets for these bounds.
    pub fn new(Bounds { max_reservations, max_idempotency_keys, .. }: Bounds) -> Self {
        let budget = |max, full| Arc::new(RecordBudget { max, full, ..RecordBudget::default() });
        Self {
            reservations: budget(max_reservations, "too many reservations (raise --max-reservations)"),
            answered: budget(
                max_idempotency_keys,
                "too many idempotency keys: nothing was counted (raise --max-idempotency-keys)",
            ),
        }
    }

    fn budget_for(&self, record: &Record) -> &Arc<RecordBudget> {
        if record.is_reservation() { &self.reservations } else { &self.answered }
    }

    /// Returns the share of a new record.
    ///
    /// # Errors
    /// The budget is used up.
    pub fn begin(&self, record: &Record) -> Result<Share, StoreError> {
        let budget = self.budget_for(record);
        let one_more = |remembered| (remembered < budget.max).then_some(remembered + 1);
        if budget.remembered.fetch_update(Relaxed, Relaxed, one_more).is_ok() {
            return Ok(Share(Arc::clone(budget)));
        }
        budget.refused.fetch_add(1, Relaxed);
        Err(StoreError::new(budget.full))
    }

    /// Returns the share of a record that was found when the store was opened, regardless of the bounds.
    pub fn found(&self, record: &Record) -> Share {
        let budget = self.budget_for(record);
        budget.remembered.fetch_add(1, Relaxed);
        Share(Arc::clone(budget))
    }

    /// Returns how many reservations and answers are remembered.
    pub fn remembered(&self) -> RecordCount {
        RecordCount {
            reservations: self.reservations.remembered.load(Relaxed),
            answered: self.answered.remembered.load(Relaxed),
        }
    }

    /// Returns the metrics of both bounds.
    pub fn metrics(&self) -> [Metric; 6] {
        let Self { reservations, answered } = self;
        let (count, refused) = (self.remembered(), |budget: &RecordBudget| budget.refused.load(Relaxed));
        [
            Metric::gauge("divvy_reservations", "Reservations that are remembered.", count.reservations),
            Metric::gauge("divvy_max_reservations", "Maximum number of reservations.", reservations.max),
            Metric::counter("divvy_reservations_refused_total", "Reservations without room.", refused(reservations)),
            Metric::gauge("divvy_idempotency_keys", "Idempotency keys that are remembered.", count.answered),
            Metric::gauge("divvy_max_idempotency_keys", "Maximum number of idempotency keys.", answered.max),
            Metric::counter(
                "divvy_idempotency_keys_refused_total",
                "Idempotency keys without room.",
                refused(answered),
            ),
        ]
    }
}

/// Counts the records of one kind, and refuses those beyond the bound.
#[derive(Debug, Default)]
struct RecordBudget {
    max: u64,
    remembered: AtomicU64,
    refused: AtomicU64,
    /// The error for a record beyond the bound.
    full: &'static str,
}

/// The part of a budget that a record takes. Dropping it gives it back.
#[derive(Debug)]
pub struct Share(Arc<RecordBudget>);

impl Drop for Share {
    fn drop(&mut self) {
        self.0.remembered.fetch_sub(1, Relaxed);
    }
}

/// Records by key, or by a hash of it.
#[derive(Debug)]
pub struct Records<K, S = RandomState> {
    records: HashMap<K, StoredRecord, S>,
    /// The times when the records may be forgotten.
    ends: BTreeSet<(Timestamp, K)>,
    /// Latest known time of the server's clock.
    time: Timestamp,
}

/// Returns whether the clock was set back between these times. Requests that overtake each other differ by less.
pub fn was_set_back(before: Timestamp, now: Timestamp) -> bool {
    before.since(now) > MAX_STANDSTILL_NS
}

#[derive(Debug)]
struct StoredRecord {
    record: Record,
    /// The record's share. `None` in tests that count no records.
    share: Option<Share>,
}

impl<K: Ord, S: Default> Default for Records<K, S> {
    fn default() -> Self {
        Self { records: HashMap::default(), ends: BTreeSet::new(), time: Timestamp::EPOCH }
    }
}

impl<K: Hash + Ord + Clone, S: BuildHasher> Records<K, S> {
    /// Returns the record with this key.
    pub fn get<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<&Record>
    where
        K: Borrow<Q>,
    {
        Some(&self.records.get(key)?.record)
    }

    /// Sets the record with this key. It gets the share, or the share of the record that it replaces.
    pub fn set(&mut self, key: K, record: Record, share: Option<Share>) {
        self.note_time(record.made_after());
        let Some(stored) = self.records.get_mut(&key) else {
            self.ends.insert((record.until, key.clone()));
            self.records.insert(key, StoredRecord { record, share });
            return;
        };
        let before = std::mem::replace(&mut stored.record, record).until;
        stored.share = share.or(stored.share.take());
        if before != record.until {
            let mut end = (before, key);
            self.ends.remove(&end);
            end.0 = record.until;
            self.ends.insert(end);
        }
    }

    /// Notes a time of the server's clock.
    pub fn note_time(&mut self, time: Timestamp) {
        self.time = self.time.max(time);
    }

    /// Removes the record with this key, and gives its share back.
    pub fn remove<Q: Hash + Eq + ?Sized>(&mut self, key: &Q)
    where
        K: Borrow<Q>,
    {
        if let Some((key, stored)) = self.records.remove_entry(key) {
            self.ends.remove(&(stored.record.until, key));
        }
    }

    /// Drops expired records, as [`Records::sweep`] does. If the clock was set back, all records expire earlier by the
    /// same time. Otherwise they would fill the bound until the clock reaches its old time.
    pub fn advance(&mut self, now: Timestamp) {
        if was_set_back(self.time, now) {
            let by_ns = self.time.since(now);
            self.records.values_mut().for_each(|stored| stored.record.until = stored.record.until.minus(by_ns));
            self.ends = self.records.iter().map(|(key, stored)| (stored.record.until, key.clone())).collect();
            self.time = now;
        }
        self.sweep(now);
    }

    /// Drops records that may be forgotten at `now`.
    pub fn sweep(&mut self, now: Timestamp) {
        self.note_time(now);
        while let Some(first) = self.ends.first()
            && first.0 <= now
        {
            self.records.remove(&first.1);
            self.ends.pop_first();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::Action;
    use crate::testing::{LOOK, TAKE, at, window};
    use divvy_core::algorithm::record::{Content, Reservation};

    fn budget(max_counters: u64, when_full: WhenFull) -> CounterBudget {
        CounterBudget::new(Bounds { max_counters, when_full, ..Bounds::default() })
    }

    fn budgets(max_reservations: u64, max_idempotency_keys: u64) -> RecordBudgets {
        RecordBudgets::new(Bounds { max_reservations, max_idempotency_keys, ..Bounds::default() })
    }

    fn entry(action: Action) -> Entry {
        Entry::new(0..0, window(5, 60), action, at(0))
    }

    #[test]
    fn budget_has_room_up_to_the_bound_and_after_a_forget() {
        let budget = budget(2, WhenFull::Error);
        let refusal = |action| budget.refusal(&entry(action));
        assert!(budget.begin());
        assert!(refusal(TAKE).is_none());
        assert!(budget.begin());
        assert!(!budget.begin());
        assert!(refusal(TAKE).unwrap().is_err());
        assert!(refusal(LOOK).unwrap().is_err(), "a peek gets the answer of a hit");
        assert!(refusal(Action::Forget).is_none() && refusal(SHOW).is_none());
        budget.forget();
        assert!(refusal(TAKE).is_none());
        assert_eq!(budget.refused.load(Relaxed), 2);
        budget.disk_is_full.store(true, Relaxed);
        assert!(refusal(TAKE).is_some() && !budget.begin());
        budget.disk_is_full.store(false, Relaxed);
        assert!(refusal(TAKE).is_none() && budget.begin());
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
    fn estimate_refuses_nothing_and_a_count_includes_counters_created_since_its_start() {
        let budget = budget(10, WhenFull::Error);
        budget.estimated(1_000);
        assert!(!budget.is_full() && budget.is_nearly_full());
        assert_eq!(budget.count(), 1_000);
        (0..7).for_each(|_| assert!(budget.begin()));
        budget.counted(5, 3);
        assert_eq!(budget.count(), 9);
        assert!(budget.begin());
        assert!(!budget.begin(), "new counters are certain");
    }

    const RESERVATION: Reservation = Reservation { credits: 1, ttl_seconds: 1, run: None };

    fn open(ends: u64) -> Record {
        let content = Content::Open { reservation: RESERVATION, ends: at(ends), generation: 0, capacity: 9 };
        Record { until: at(ends), content }
    }

    fn committed(seconds: u64) -> Record {
        let content = Content::Committed { reservation: RESERVATION, left: 0, owed: 0, reset_ns: 0 };
        Record { until: at(seconds + 60), content }
    }

    fn answered(seconds: u64) -> Record {
        Record::new_answer(7, Outcome::default(), false, at(seconds))
    }

    fn of(reservations: u64, answered: u64) -> RecordCount {
        RecordCount { reservations, answered }
    }

    #[test]
    fn records_of_each_kind_are_bounded() {
        let budgets = budgets(2, 1);
        let reserve = || budgets.begin(&open(0));
        let answer = || budgets.begin(&answered(0));
        let refused = |begun: Result<Share, StoreError>| begun.unwrap_err().to_string();
        let first = reserve().unwrap();
        let _others = (reserve().unwrap(), answer().unwrap());
        assert!(refused(reserve()).contains("--max-reservations"));
        assert!(refused(answer()).contains("--max-idempotency-keys"));
        drop(first);
        let _another = reserve().unwrap();
        assert!(answer().is_err());
        assert_eq!(budgets.remembered(), of(2, 1));
        assert_eq!((budgets.reservations.refused.load(Relaxed), budgets.answered.refused.load(Relaxed)), (1, 2));
    }

    fn count<K: Hash + Ord + Clone>(records: &Records<K>) -> RecordCount {
        let reservations = records.records.values().filter(|stored| stored.record.is_reservation()).count() as u64;
        of(reservations, records.records.len() as u64 - reservations)
    }

    /// Sweeps at this time, and returns the number of records left.
    fn left<K: Hash + Ord + Clone>(records: &mut Records<K>, seconds: u64) -> RecordCount {
        records.sweep(at(seconds));
        count(records)
    }

    #[test]
    fn record_expires_at_its_latest_end() {
        let mut records: Records<_> = Records::default();
        for (key, record) in [(1, open(10)), (2, open(20)), (3, answered(0)), (1, open(30))] {
            records.set(key, record, None);
        }
        assert_eq!((left(&mut records, 15), records.get(&1).is_some()), (of(2, 1), true));
        assert_eq!((left(&mut records, 20), records.get(&2).is_some()), (of(1, 1), false));
        assert_eq!([30, 59, 60].map(|seconds| left(&mut records, seconds)), [of(0, 1), of(0, 1), of(0, 0)]);
        assert_eq!(records.ends.len(), 0);
    }

    #[test]
    fn renewed_and_removed_records_take_no_memory() {
        let mut records: Records<_> = Records::default();
        for end in 0..10_000 {
            records.set(1, open(end), None);
            records.set(2 + end, open(end), None);
            records.remove(&(2 + end));
            assert_eq!(records.ends.len(), 1);
        }
        assert_eq!((left(&mut records, 9_998), left(&mut records, 9_999)), (of(1, 0), of(0, 0)));
    }

    #[test]
    fn record_keeps_its_share_until_it_is_dropped() {
        let budgets = budgets(1, 1);
        let mut records: Records<_> = Records::default();
        records.set(1, open(10), Some(budgets.found(&open(0))));
        records.set(2, open(10), Some(budgets.found(&open(0))));
        records.set(1, open(20), None);
        assert_eq!(budgets.remembered(), of(2, 0));
        records.remove(&2);
        assert_eq!(budgets.remembered(), of(1, 0));
        records.sweep(at(20));
        assert_eq!(budgets.remembered(), of(0, 0));
    }

    /// Otherwise, the bound could be exhausted for as long as the clock was set back.
    #[test]
    fn clock_that_is_set_back_keeps_no_record_longer() {
        let mut records: Records<_> = Records::default();
        records.advance(at(10_000));
        for (key, record) in [(1, answered(10_000)), (2, open(10_030)), (3, committed(10_000))] {
            records.set(key, record, None);
        }
        // The first time belongs to a request that was overtaken.
        for seconds in [9_995, 10_010, 0] {
            records.advance(at(seconds));
            assert_eq!(count(&records), of(2, 1));
        }
        let lefts = [19, 20, 49, 50].map(|seconds| left(&mut records, seconds));
        assert_eq!(lefts, [of(2, 1), of(1, 1), of(1, 1), of(0, 0)]);
    }

    /// If the store is opened after the clock was set back, answers and commits show the clock's earlier time.
    #[test]
    fn records_of_a_later_clock_expire_like_new_ones() {
        let mut records: Records<_> = Records::default();
        records.set(1, answered(10_000), None);
        records.set(2, committed(9_990), None);
        records.advance(at(0));
        let lefts = [0, 49, 50, 59, 60].map(|seconds| left(&mut records, seconds));
        assert_eq!(lefts, [of(1, 1), of(1, 1), of(0, 1), of(0, 1), of(0, 0)]);
    }
}
