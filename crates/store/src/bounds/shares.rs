//! Budgets for reservations and idempotency keys.
//!
//! A record holds a [`Share`] of its budget while the store remembers it. Dropping the share gives it back.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use super::RecordCount;
use crate::contract::{Action, Entry, StoreError};
use divvy_core::algorithm::Record;
use divvy_telemetry::metrics::Metric;

/// Budgets for records of each kind.
#[derive(Debug)]
pub struct RecordBudgets {
    reservations: Arc<RecordBudget>,
    answered: Arc<RecordBudget>,
}

impl RecordBudgets {
    /// Creates budgets with these maximum numbers.
    pub fn new(max_reservations: u64, max_idempotency_keys: u64) -> Self {
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

    /// Returns the share of a record that was found when the store was opened, regardless of the bounds.
    pub fn found(&self, record: &Record) -> Arc<Share> {
        let budget = self.budget_for(record);
        budget.remembered.fetch_add(1, Relaxed);
        Arc::new(Share { budget: Arc::clone(budget) })
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
        let count = self.remembered();
        [
            Metric::gauge(
                "divvy_reservations",
                "Reservations that are remembered: open ones, and those committed in the last minute.",
                count.reservations,
            ),
            Metric::gauge("divvy_max_reservations", "Maximum number of reservations.", reservations.max),
            Metric::counter(
                "divvy_reservations_refused_total",
                "Reservations and commits refused because there were too many reservations.",
                reservations.refused.load(Relaxed),
            ),
            Metric::gauge(
                "divvy_idempotency_keys",
                "Idempotency keys that are remembered: one for each idempotent request.",
                count.answered,
            ),
            Metric::gauge("divvy_max_idempotency_keys", "Maximum number of idempotency keys.", answered.max),
            Metric::counter(
                "divvy_idempotency_keys_refused_total",
                "Requests refused because there were too many idempotency keys.",
                answered.refused.load(Relaxed),
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

impl RecordBudget {
    fn begin(self: &Arc<Self>) -> Result<Arc<Share>, StoreError> {
        let one_more = |remembered| (remembered < self.max).then_some(remembered + 1);
        if self.remembered.fetch_update(Relaxed, Relaxed, one_more).is_ok() {
            return Ok(Arc::new(Share { budget: Arc::clone(self) }));
        }
        self.refused.fetch_add(1, Relaxed);
        Err(StoreError::new(self.full))
    }
}

/// The part of a budget that a reservation or an idempotent request takes. Its records share it, and dropping the last one gives
/// it back.
#[derive(Debug)]
pub struct Share {
    budget: Arc<RecordBudget>,
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.remembered.fetch_sub(1, Relaxed);
    }
}

/// The shares of the records that one batch creates.
#[derive(Debug, Default)]
pub struct Shares {
    /// The share of the latest idempotent request, with its number in the batch.
    latest: RefCell<Option<(u32, Weak<Share>)>>,
}

impl Shares {
    /// Returns the share of a new record of this entry. All records of one idempotent request have the same share.
    ///
    /// # Errors
    /// The budget is used up.
    pub fn begin(&self, entry: &Entry, record: &Record, budgets: &RecordBudgets) -> Result<Arc<Share>, StoreError> {
        let budget = budgets.budget_for(record);
        let Entry { action: Action::Idempotent { .. }, request, .. } = *entry else { return budget.begin() };
        let latest =
            self.latest.borrow().as_ref().filter(|(of, _)| *of == request).and_then(|(_, share)| share.upgrade());
        if let Some(share) = latest {
            return Ok(share);
        }
        let share = budget.begin()?;
        self.latest.replace(Some((request, Arc::downgrade(&share))));
        Ok(share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at, window};
    use divvy_core::algorithm::record::{Content, Reservation};
    use divvy_core::algorithm::{Ask, Outcome, ReservationAsk};

    fn reservation() -> Record {
        let reservation = Reservation { credits: 1, ttl_seconds: 1, run: None };
        Record { until: at(0), content: Content::Open { reservation, ends: at(0), generation: 0, capacity: 9 } }
    }

    fn answered() -> Record {
        Record::new_answer(7, Outcome::default(), false, at(0))
    }

    fn entry(action: Action, request: u32) -> Entry {
        Entry { request, ..Entry::new(0..0, window(1, 1), action, at(0)) }
    }

    fn reserve() -> Entry {
        entry(Action::Reservation(ReservationAsk::Release { run: None }), 0)
    }

    fn once(request: u32) -> Entry {
        entry(Action::Idempotent { ask: Ask::Take { cost: 1 }, fingerprint: 7 }, request)
    }

    fn refused(begun: Result<Arc<Share>, StoreError>) -> String {
        begun.unwrap_err().to_string()
    }

    #[test]
    fn records_of_each_kind_are_bounded() {
        let budgets = RecordBudgets::new(2, 1);
        let shares = Shares::default();
        let begin = |entry: Entry, record: Record| shares.begin(&entry, &record, &budgets);
        let first = begin(reserve(), reservation()).unwrap();
        let _others = (begin(reserve(), reservation()).unwrap(), begin(once(0), answered()).unwrap());
        assert!(refused(begin(reserve(), reservation())).contains("--max-reservations"));
        assert!(refused(begin(once(1), answered())).contains("--max-idempotency-keys"));
        drop(first);
        let _another = begin(reserve(), reservation()).unwrap();
        assert!(begin(once(1), answered()).is_err());
        assert_eq!(budgets.remembered(), RecordCount { reservations: 2, answered: 1 });
        assert_eq!((budgets.reservations.refused.load(Relaxed), budgets.answered.refused.load(Relaxed)), (1, 2));
    }

    #[test]
    fn records_of_one_request_count_once_until_the_last_is_dropped() {
        let budgets = RecordBudgets::new(0, 2);
        let shares = Shares::default();
        let begin = |request| shares.begin(&once(request), &answered(), &budgets);
        let of_first = [begin(0).unwrap(), begin(0).unwrap(), begin(0).unwrap()];
        let of_second = begin(1).unwrap();
        assert_eq!((begin(2).is_err(), budgets.remembered().answered), (true, 2));
        let [one, two, three] = of_first;
        drop((one, two));
        assert_eq!(budgets.remembered().answered, 2);
        drop((three, of_second));
        assert_eq!(budgets.remembered().answered, 0);
        assert!(begin(1).is_ok(), "a share that was given back is not used again");
    }
}
