//! A store that keeps its word when the one behind it fails: the operator's policy answers in its place.
//!
//! The policy speaks for each entry that failed, not for the batch: in a cluster only some of the buckets may be out of
//! reach. A group fails, and is answered, as one. An outage is counted hit by hit, and logged once.
//! What the store refuses because too much is asked of it at once is none: that the policy never lets through.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;

use crate::clock::{Clock, NANOS_PER_SECOND, Timestamp};
use crate::logging::{Escaped, LogThrottle};
use crate::metrics::Metric;
use crate::store::actor_limits::{Followed, LimitChange, LimitPage};
use crate::store::bounds::store_bounds::WhenFull;
use crate::store::contract::Store;
use crate::store::contract::{Action, Batch, Entry};
use crate::store::error::StoreError;
use crate::store::listing::{Listing, Page};
use crate::store::memory::MemoryStore;
use crate::store::outage::Outage;

/// Buckets that [`FailurePolicy::Local`] counts unless the operator says otherwise: some 200 bytes each.
pub const DEFAULT_LOCAL_BUCKETS: usize = 100_000;
/// An outage is over when nothing has failed for so long: while one part of a cluster is down, others answer.
const QUIET_NS: u64 = 10 * NANOS_PER_SECOND;

static REFUSED: LogThrottle = LogThrottle::new();

/// What to answer when the store fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FailurePolicy {
    /// Denied, with nothing left, for a second.
    Deny,
    /// What an unused bucket would answer.
    Allow,
    /// The store's error.
    #[default]
    Error,
    /// By a count of this server's own, of up to `buckets` buckets; past them, new ones get an error.
    Local { buckets: usize },
}

/// `inner`, with a policy for its failures.
///
/// An [`Action::Forget`] that failed is an error under every policy: none can make the store forget. So is what is about a
/// reservation, and the group that it is in: whoever reserves is to know that it is. So is a hit that is too much for the store,
/// unless it is denied: to let it through would make an attack its own remedy. What no store of the kind can do is the client's
/// mistake, and an error as well.
pub struct FallbackStore<S> {
    inner: S,
    policy: Policy,
    failed: AtomicU64,
    stood_in: AtomicU64,
    clock: Clock,
    /// When the store was out of reach last, in nanoseconds; 0 when that was logged to be over.
    failed_at: AtomicU64,
    outage: Mutex<Outage>,
    /// The last check reached the store, which did not take it.
    was_refused: AtomicBool,
}

enum Policy {
    Deny,
    Allow,
    Error,
    Local(Box<MemoryStore>),
}

impl Policy {
    fn name(&self) -> &'static str {
        match self {
            Self::Deny => "deny",
            Self::Allow => "allow",
            Self::Error => "error",
            Self::Local(_) => "local",
        }
    }
}

impl<S: Store> FallbackStore<S> {
    pub fn new(inner: S, policy: FailurePolicy, clock: Clock) -> Self {
        let (policy, meanwhile) = match policy {
            FailurePolicy::Deny => (Policy::Deny, "hits are denied"),
            FailurePolicy::Allow => (Policy::Allow, "hits are allowed"),
            FailurePolicy::Error => (Policy::Error, "hits are answered with an error"),
            FailurePolicy::Local { buckets } => (
                Policy::Local(Box::new(MemoryStore::bounded(buckets as u64, WhenFull::Error))),
                "hits are counted in this server's memory",
            ),
        };
        Self {
            inner,
            policy,
            failed: AtomicU64::new(0),
            stood_in: AtomicU64::new(0),
            clock,
            failed_at: AtomicU64::new(0),
            outage: Mutex::new(Outage::of("the store", meanwhile)),
            was_refused: AtomicBool::new(false),
        }
    }

    pub fn inner(&self) -> &S {
        &self.inner
    }

    /// Actions that the store failed to take since the start, whatever was answered then.
    pub fn failed(&self) -> u64 {
        self.failed.load(Relaxed)
    }

    /// Actions that the policy answered in the store's place since the start.
    pub fn stood_in(&self) -> u64 {
        self.stood_in.load(Relaxed)
    }

    /// Whether the store was out of reach in the last seconds, at `now`: also while no request reaches it. A failure in
    /// the future is one from before the clock was set back.
    pub fn is_out(&self, now: Timestamp) -> bool {
        let failed_at = Timestamp::from_nanos(self.failed_at.load(Relaxed));
        failed_at > Timestamp::EPOCH && now.since(failed_at).max(failed_at.since(now)) <= QUIET_NS
    }

    /// Counts what failed and logs the beginning and the end of an outage; tells whether anything failed.
    fn note(&self, batch: &Batch) -> bool {
        let now = batch.now();
        let is_the_store_s = |error: &&StoreError| !matches!(error, StoreError::Impossible(_));
        let errors = || batch.answers().filter_map(|(_, _, outcome)| outcome.as_ref().err()).filter(is_the_store_s);
        let failed = errors().count();
        if failed == 0 {
            self.note_success(now);
            return false;
        }
        self.failed.fetch_add(failed as u64, Relaxed);
        if let Some(error) = errors().find(|error| matches!(error, StoreError::Unreachable(_))) {
            self.note_outage(error, now);
        } else if let Some(error) = errors().next() {
            log_refusal(error);
        }
        true
    }

    fn note_outage(&self, error: &StoreError, now: Timestamp) {
        if self.failed_at.swap(now.as_nanos().max(1), Relaxed) == 0 {
            self.outage.lock().note(&Err(error.clone()));
        }
    }

    fn note_success(&self, now: Timestamp) {
        let failed_at = self.failed_at.load(Relaxed);
        let is_over = failed_at > 0 && !self.is_out(now);
        if is_over && self.failed_at.compare_exchange(failed_at, 0, Relaxed, Relaxed).is_ok() {
            self.outage.lock().note(&Ok(()));
        }
    }

    /// Has the policy answer what failed.
    async fn stand_in(&self, batch: &mut Batch) {
        let failed = match self.policy {
            Policy::Deny => failed_asks(batch, |error| !matches!(error, StoreError::Impossible(_))),
            _ => failed_asks(batch, |error| !matches!(error, StoreError::Overloaded(_) | StoreError::Impossible(_))),
        };
        let mut part = batch.part(&failed);
        match &self.policy {
            Policy::Error => return,
            Policy::Deny => part.answer_each(|_, _, entry| Ok(entry.denied())),
            Policy::Allow => part.answer_each(|_, _, entry| Ok(entry.uncounted())),
            Policy::Local(memory) => memory.apply(&mut part).await,
        }
        let answered = part.answers().filter(|(_, _, outcome)| outcome.is_ok()).count();
        self.stood_in.fetch_add(answered as u64, Relaxed);
        batch.adopt(part, &failed);
    }
}

fn log_refusal(error: &StoreError) {
    // It may quote what the other side said.
    let error = error.to_string();
    REFUSED.say(|more| tracing::warn!(error = %Escaped::error(&error), more, "the store refused an action"));
}

/// The indexes of the asks that failed with such an error, and that a policy may answer: of a group all or none.
fn failed_asks(batch: &Batch, is_such: fn(&StoreError) -> bool) -> Vec<usize> {
    let failed = |index: usize| batch.outcomes.get(index).is_some_and(|outcome| outcome.as_ref().is_err_and(is_such));
    let is_policy_s = |entry: &Entry| entry.action != Action::Forget && !entry.action.needs_store();
    let units = batch.units(0).filter(|unit| unit.entries.iter().all(is_policy_s));
    units.flat_map(|unit| unit.first..unit.first + unit.entries.len()).filter(|index| failed(*index)).collect()
}

impl<S: Store> Store for FallbackStore<S> {
    async fn apply(&self, batch: &mut Batch) {
        self.inner.apply(batch).await;
        if self.note(batch) {
            self.stand_in(batch).await;
        }
    }

    async fn list(&self, listing: Listing) -> Result<Page, StoreError> {
        self.inner.list(listing).await
    }

    async fn approximate_len(&self) -> Result<u64, StoreError> {
        self.inner.approximate_len().await
    }

    /// Where the policy answers in the store's place, hits can be answered whatever the store does. It is asked all the
    /// same: an outage is to be noticed before the first hit.
    async fn check(&self) -> Result<(), StoreError> {
        let checked = self.inner.check().await;
        match &checked {
            Ok(()) => self.note_success(self.clock.now()),
            Err(error @ StoreError::Unreachable(_)) => self.note_outage(error, self.clock.now()),
            // Once, not at every check.
            Err(error) if !self.was_refused.load(Relaxed) => log_refusal(error),
            Err(_) => {}
        }
        self.was_refused.store(matches!(&checked, Err(error) if !matches!(error, StoreError::Unreachable(_))), Relaxed);
        match self.policy {
            Policy::Error => checked,
            Policy::Deny | Policy::Allow | Policy::Local(_) => Ok(()),
        }
    }

    async fn change_limit(&self, change: LimitChange, now: Timestamp) -> Result<Option<bool>, StoreError> {
        self.inner.change_limit(change, now).await
    }

    async fn follow_limits(&self, known: Followed) -> Result<LimitPage, StoreError> {
        self.inner.follow_limits(known).await
    }

    fn metrics(&self) -> Vec<Metric> {
        let mut metrics = self.inner.metrics();
        metrics.extend([
            Metric::counter(
                "divvy_redis_failures_total",
                "Actions on counters that Redis failed to perform.",
                self.failed(),
            ),
            Metric::gauge(
                "divvy_redis_outage",
                "1 while Redis fails.",
                f64::from(u8::from(self.is_out(self.clock.now()))),
            ),
            Metric::counter(
                "divvy_redis_stand_ins_total",
                "Actions that --on-store-error answered in Redis's place.",
                self.stood_in(),
            )
            .labelled("policy", self.policy.name()),
        ]);
        metrics
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.inner.close().await
    }
}

#[cfg(test)]
mod tests;
