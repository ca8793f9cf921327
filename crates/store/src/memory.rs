//! The store in memory: for tests and trials, and in place of a distant store that fails.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Bound;

use parking_lot::Mutex;

use crate::bounds::{Bounds, CounterBudget, RecordBudgets, Records, RoomLog};
use crate::contract::{Batch, Change, Entry, Listing, Outcomes, Page, Store, StoreError, Unit};
use crate::group::{self, Budgets, EntryDecision, Member};
use crate::record_key;
use crate::seal::{Seal, SealKey};
use divvy_core::algorithm::{Outcome, RecordChange, State};
use divvy_core::clock::{NANOS_PER_SECOND, Timestamp};
use divvy_telemetry::metrics::Metric;

/// Number of buckets below which a store does not search for expired ones, unless it is nearly full.
const MIN_SWEEP: usize = 1024;
/// Minimum number of buckets that one batch examines during a sweep. No batch waits for a whole sweep.
const SWEPT_AT_ONCE: usize = 1024;
/// Time between sweeps of a store that is nearly full.
const SWEEP_INTERVAL_NS: u64 = NANOS_PER_SECOND;

/// Buckets in a map that is protected by one mutex.
pub struct MemoryStore {
    /// Boxed, because otherwise every backend would have room for them.
    buckets: Box<Mutex<Buckets>>,
    budget: CounterBudget,
    records: RecordBudgets,
    seal: Seal,
}

impl MemoryStore {
    /// Creates a store with these bounds. While the store is full, the policy answers for new buckets until others have
    /// expired. A bucket in use is not dropped, because that would give its credits back.
    pub fn new(bounds: Bounds) -> Self {
        let (budget, records) = (CounterBudget::new(bounds), RecordBudgets::new(bounds));
        // Without a key, only reservations are refused.
        let seal = SealKey::random().map(Seal::new).inspect_err(|error| tracing::error!("{error}")).unwrap_or_default();
        Self { buckets: Box::default(), budget, records, seal }
    }

    /// Returns the key for ids.
    pub fn seal(&self) -> &Seal {
        &self.seal
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new(Bounds { max_counters: u64::MAX, ..Bounds::default() })
    }
}

#[derive(Default)]
struct Buckets {
    /// In the order of keys, so that a rule's buckets can be listed page by page.
    states: BTreeMap<Box<[u8]>, (State, Timestamp)>,
    records: Records<Box<[u8]>>,
    /// The current sweep continues at this key. `None` if there is no sweep.
    sweeping: Option<Box<[u8]>>,
    /// The next sweep begins at this number of buckets: twice the number that the last one left.
    sweep_at: usize,
    /// Time when the last sweep began.
    swept: Timestamp,
    room_log: RoomLog,
}

impl Buckets {
    /// Continues a sweep, or begins one that is due. Examines up to `count` buckets, and drops the expired ones.
    fn sweep(&mut self, now: Timestamp, count: usize, budget: &CounterBudget) {
        if self.sweeping.is_none() && self.is_sweep_due(now, budget) {
            self.sweeping = Some(Box::default());
            self.swept = now;
        }
        let Some(from) = self.sweeping.take() else { return };
        let mut expired = Vec::new();
        let buckets = self.states.range::<[u8], _>((Bound::Included(&*from), Bound::Unbounded));
        for (looked_at, (key, (_, expires))) in buckets.enumerate() {
            if looked_at == count {
                self.sweeping = Some(key.clone());
                break;
            }
            if *expires <= now {
                expired.push(key.clone());
            }
        }
        for key in expired {
            self.states.remove(&key);
            budget.forget();
        }
        if self.sweeping.is_none() {
            self.sweep_at = self.states.len() * 2;
        }
    }

    fn is_sweep_due(&self, now: Timestamp, budget: &CounterBudget) -> bool {
        // After the clock was set back, the last sweep is in the future.
        let is_time = now < self.swept || now.since(self.swept) >= SWEEP_INTERVAL_NS;
        (budget.is_nearly_full() && is_time) || self.states.len() >= self.sweep_at.max(MIN_SWEEP)
    }

    /// Applies an entry without a record.
    fn act(
        &mut self,
        key: &[u8],
        entry: &Entry,
        now: Timestamp,
        budget: &CounterBudget,
    ) -> Result<Outcome, StoreError> {
        let known = self.states.get_mut(key);
        if known.is_none()
            && let Some(refusal) = budget.refusal(entry)
        {
            return refusal;
        }
        let (outcome, change) = entry.decide(known.as_ref().map(|(state, _)| state));
        match (change, known) {
            (Change::Keep, _) => {}
            (Change::Set(state), Some(known)) => {
                let expires = entry.expiry(&state, now);
                *known = (state, expires);
            }
            (Change::Set(_), None) if !budget.begin() => return budget.refuse(entry),
            (change, _) => self.make(change, key, entry, now, budget),
        }
        Ok(outcome)
    }

    /// Applies a group, or an entry with a record.
    fn act_together(&mut self, unit: Unit<'_>, now: Timestamp, budgets: Budgets<'_>, outcomes: &mut Outcomes) {
        let Self { states, records, .. } = &*self;
        let members = unit.members().map(|(_, key, entry)| Member {
            entry,
            bucket: states.get(record_key::bucket(key)).map(|(state, _)| Cow::Borrowed(state)),
            record: records.get(key),
        });
        let mut decisions = Vec::new();
        match group::decide(&members.collect::<Vec<_>>(), budgets, &mut decisions) {
            Ok(room) => {
                room.keep();
                for (EntryDecision { outcome, change, record, share }, entry) in decisions.into_iter().zip(unit.entries)
                {
                    let key = unit.key(entry);
                    self.make(change, record_key::bucket(key), entry, now, budgets.counters);
                    match record {
                        RecordChange::Keep => {}
                        RecordChange::Set(record) => self.records.set(key.into(), record, share),
                        RecordChange::Clear => self.records.remove(key),
                    }
                    outcomes.push(Ok(outcome));
                }
            }
            Err(error) => outcomes.extend(unit.entries.iter().map(|_| Err(error.clone()))),
        }
    }

    /// Makes a change. The budget has room for it.
    fn make(&mut self, change: Change, key: &[u8], entry: &Entry, now: Timestamp, budget: &CounterBudget) {
        match change {
            Change::Keep => {}
            Change::Set(state) => {
                let expires = entry.expiry(&state, now);
                self.states.insert(key.into(), (state, expires));
            }
            Change::Clear => {
                self.states.remove(key);
                budget.forget();
            }
        }
    }
}

impl Store for MemoryStore {
    async fn apply(&self, batch: &mut Batch) {
        let now = batch.now();
        let mut buckets = self.buckets.lock();
        buckets.sweep(now, SWEPT_AT_ONCE.max(2 * batch.len()), &self.budget);
        buckets.records.advance(now);
        let budgets = Budgets { counters: &self.budget, records: &self.records };
        batch.outcomes.clear();
        batch.answer_on(|unit, outcomes| {
            match unit.entries {
                [entry] if !entry.action.has_record() => {
                    outcomes.push(buckets.act(unit.key(entry), entry, now, &self.budget));
                }
                _ => buckets.act_together(unit, now, budgets, outcomes),
            }
            true
        });
        buckets.room_log.note(&self.budget, now);
    }

    async fn list(&self, listing: Listing) -> Result<Page, StoreError> {
        let start = match listing.start_after()? {
            Some(key) => Bound::Excluded(key),
            None => Bound::Included(listing.prefix.to_vec()),
        };
        let mut page = Page::default();
        let buckets = self.buckets.lock();
        let from_start = buckets.states.range::<[u8], _>((start.as_ref().map(Vec::as_slice), Bound::Unbounded));
        for (looked_at, (key, (state, _))) in (1..).zip(from_start) {
            let Some(actor) = key.strip_prefix(&*listing.prefix) else { break };
            if !page.add(&listing, actor, Some(state), looked_at) {
                break;
            }
        }
        Ok(page)
    }

    async fn approximate_len(&self) -> Result<u64, StoreError> {
        Ok(self.budget.count())
    }

    fn metrics(&self) -> Vec<Metric> {
        self.budget.metrics().into_iter().chain(self.records.metrics()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{TAKE, at, outcomes, window};

    fn allowed(store: &MemoryStore, seconds: u64, key: &str) -> Result<bool, String> {
        let outcome = outcomes(store, at(seconds), &[(key, window(2, 10), TAKE)]).remove(0);
        outcome.map(|outcome| outcome.allowed).map_err(|error| error.to_string())
    }

    #[test]
    fn full_store_counts_known_buckets_and_takes_new_ones_once_some_expire() {
        let store = MemoryStore::new(Bounds { max_counters: 2, ..Bounds::default() });
        assert_eq!(allowed(&store, 0, "a"), Ok(true));
        assert_eq!(allowed(&store, 5, "b"), Ok(true));
        let full = |result: Result<bool, String>| result.is_err_and(|error| error.contains("full"));
        assert!(full(allowed(&store, 6, "c")));
        assert_eq!(allowed(&store, 6, "a"), Ok(true));
        assert_eq!(allowed(&store, 6, "a"), Ok(false));
        assert_eq!(allowed(&store, 11, "c"), Ok(true));
        assert!(full(allowed(&store, 12, "d")));
    }

    #[test]
    fn full_store_finds_expired_buckets_after_the_clock_was_set_back() {
        let store = MemoryStore::new(Bounds { max_counters: 1, ..Bounds::default() });
        assert_eq!(allowed(&store, 5, "a"), Ok(true));
        // This sweep is in the future, and finds nothing.
        assert!(allowed(&store, 14, "b").is_err());
        store.buckets.lock().states.values_mut().for_each(|(_, expires)| *expires = Timestamp::EPOCH);
        assert_eq!(allowed(&store, 0, "b"), Ok(true));
    }

    #[test]
    fn expired_buckets_are_dropped_before_the_store_is_full_and_a_few_in_each_batch() {
        let store = MemoryStore::new(Bounds { max_counters: 10_000, ..Bounds::default() });
        for key in 0..9_000 {
            assert_eq!(allowed(&store, 0, &format!("{key:04}")), Ok(true));
        }
        let length = || store.budget.count() as usize;
        for batch in 1..=8 {
            let _ = allowed(&store, 20, "later");
            assert_eq!(length(), 9_001 - batch * SWEPT_AT_ONCE);
        }
    }
}
