//! A distant store, with the layers between it and the limiter: this server's shares of hot counters, a cache of denials, and a
//! fallback for failures.
//!
//! The distant store carries out what was sent to it. Its answer must reach the denial cache, the circuit breaker, the counts of hits
//! and failures, and the bound on calls in flight. So callers run in tasks that no client ends.
//!
//! The operator's policy answers for each entry that failed, and not for the whole batch, because in a cluster only some of the
//! buckets may be out of reach. A group fails as a whole, and is answered as a whole. Failures are counted by entry, and an outage is
//! logged once. An overloaded store is not an outage, and the policy never lets such hits through.

mod denial_cache;
mod shares;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;

pub use self::denial_cache::DEFAULT_DENIAL_CACHE;
use self::denial_cache::DenialCache;
use self::shares::Shares;
pub use self::shares::{TICK_NS as SHARE_TICK_NS, usable_ns as usable_share_ns};
use crate::bounds::Bounds;
use crate::contract::{
    Action, Batch, Changed, Entry, ExceptionChange, ExceptionCursor, ExceptionPage, Listing, Outage, Page, Replaces,
    Store, StoreError,
};
use crate::memory::MemoryStore;
use divvy_core::algorithm::OutcomeSource;
use divvy_core::clock::{Clock, NANOS_PER_SECOND, Timestamp};
use divvy_telemetry::logging::{Escaped, LogThrottle};
use divvy_telemetry::metrics::Metric;

/// A store, this server's shares of its counters, its cached denials, and the policy for its failures.
pub struct LayeredStore<S> {
    store: S,
    shares: Shares,
    denials: DenialCache,
    fallback: Fallback,
}

impl<S: Store + 'static> LayeredStore<S> {
    /// Creates the layers around `store`: a cache of up to `denial_cache` denials, and the policy `on_error`.
    pub fn new(store: S, denial_cache: usize, on_error: FailurePolicy, clock: Clock) -> Self {
        let (shares, denials) = (Shares::new(clock), DenialCache::new(denial_cache));
        Self { store, shares, denials, fallback: Fallback::new(on_error, clock) }
    }

    /// Gives back what this server's shares do not need. Servers call it every [`SHARE_TICK_NS`].
    pub async fn tend_shares(&self) {
        self.shares.tick(&self.denials, &self.store).await;
    }

    /// Returns the store behind the layers.
    pub fn inner(&self) -> &S {
        &self.store
    }
}

impl<S: Store + 'static> Store for LayeredStore<S> {
    async fn apply(&self, batch: &mut Batch) {
        self.shares.apply(batch, &self.denials, &self.store).await;
        self.fallback.answer_failed(batch).await;
    }

    async fn list(&self, listing: Listing) -> Result<Page, StoreError> {
        self.store.list(listing).await
    }

    async fn approximate_len(&self) -> Result<u64, StoreError> {
        self.store.approximate_len().await
    }

    /// Checks the store even if the policy would answer in its place, so that an outage is noticed before the first
    /// hit.
    async fn check(&self) -> Result<(), StoreError> {
        self.fallback.check(self.store.check().await)
    }

    async fn change_exceptions(
        &self,
        changes: Vec<ExceptionChange>,
        replaces: Replaces,
        now: Timestamp,
    ) -> Result<Vec<Changed>, StoreError> {
        self.store.change_exceptions(changes, replaces, now).await
    }

    async fn follow_exceptions(&self, known: ExceptionCursor, now: Timestamp) -> Result<ExceptionPage, StoreError> {
        self.store.follow_exceptions(known, now).await
    }

    fn metrics(&self) -> Vec<Metric> {
        let Self { store, shares, denials, fallback } = self;
        let of_layers = shares.metrics().into_iter().chain([denials.metric()]).chain(fallback.metrics());
        store.metrics().into_iter().chain(of_layers).collect()
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.shares.return_all((&self.denials, &self.store), self.fallback.clock.now()).await;
        self.store.close().await
    }
}

/// Number of buckets that a server counts while Redis is away: 20 MB at about 200 bytes each.
pub const LOCAL_BUCKETS: usize = 100_000;
/// Time without a failure after which an outage is over. It is needed because other parts of a cluster answer while one
/// part is down.
const QUIET_NS: u64 = 10 * NANOS_PER_SECOND;

static REFUSED: LogThrottle = LogThrottle::new();

/// The policy for hits while the store fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FailurePolicy {
    /// A denial with nothing left, for a second.
    Deny,
    /// The answer of a fresh bucket.
    Allow,
    /// The store's error.
    #[default]
    Error,
    /// This server counts alone, in at most `buckets` buckets. Beyond that, new buckets get an error.
    Local {
        /// Maximum number of buckets in memory.
        buckets: usize,
    },
}

impl FailurePolicy {
    /// Returns the policy's name in metrics, and its description in the log.
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Deny => ("deny", "hits are denied"),
            Self::Allow => ("allow", "hits are allowed"),
            Self::Error => ("error", "hits are answered with an error"),
            Self::Local { .. } => ("local", "hits are counted in this server's memory"),
        }
    }
}

/// The policy for failures, and their metrics.
///
/// Some failures are errors under every policy:
/// - A failed [`Action::Forget`]: no policy can make the store forget.
/// - A failed reservation, and its group: the client must be able to rely on its reservation.
/// - A hit on an overloaded store, unless the policy denies it: otherwise an attack would lift its own limits.
/// - A request that stores of this kind do not support: this is the client's mistake.
struct Fallback {
    policy: FailurePolicy,
    /// This server's own counters, for [`FailurePolicy::Local`].
    local: MemoryStore,
    /// Number of entries that the store failed to apply since the start, regardless of their answers.
    failed: AtomicU64,
    /// Number of entries that the policy answered since the start.
    stood_in: AtomicU64,
    clock: Clock,
    /// Time when the store was last out of reach (nanoseconds). 0 once the end of that outage is logged.
    failed_at: AtomicU64,
    outage: Mutex<Outage>,
}

impl Fallback {
    pub fn new(policy: FailurePolicy, clock: Clock) -> Self {
        let (_, effect) = policy.words();
        let max_counters = if let FailurePolicy::Local { buckets } = policy { buckets as u64 } else { 0 };
        Self {
            policy,
            local: MemoryStore::new(Bounds { max_counters, ..Bounds::default() }),
            failed: AtomicU64::new(0),
            stood_in: AtomicU64::new(0),
            clock,
            failed_at: AtomicU64::new(0),
            outage: Mutex::new(Outage::of("the store", effect)),
        }
    }

    /// Returns whether the store was out of reach in the last seconds before `now`, even if no request reaches it any
    /// more. A failure in the future dates from before the clock was set back.
    pub fn is_out(&self, now: Timestamp) -> bool {
        let failed_at = Timestamp::from_nanos(self.failed_at.load(Relaxed));
        failed_at > Timestamp::EPOCH && now.since(failed_at).max(failed_at.since(now)) <= QUIET_NS
    }

    /// Records the failures in an applied batch. The policy answers for them.
    pub async fn answer_failed(&self, batch: &mut Batch) {
        if !self.note(batch) {
            return;
        }
        let may_answer = |error: &StoreError| match error {
            StoreError::Impossible(_) => false,
            StoreError::Overloaded(_) => self.policy == FailurePolicy::Deny,
            _ => true,
        };
        let has_failed =
            |index: &usize| batch.outcomes.get(*index).is_some_and(|outcome| outcome.as_ref().is_err_and(may_answer));
        // All entries of a group are answered, or none.
        let is_policy_s = |entry: &Entry| entry.action != Action::Forget && !entry.action.needs_store();
        let units = batch.units(0).filter(|unit| unit.entries.iter().all(is_policy_s));
        let indexes = units.flat_map(|unit| unit.first..unit.first + unit.entries.len());
        let failed: Vec<_> = indexes.filter(has_failed).collect();
        let mut part = batch.part(&failed);
        match self.policy {
            FailurePolicy::Error => return,
            FailurePolicy::Deny => part.answer_each(|entry| Ok(entry.denied())),
            FailurePolicy::Allow => part.answer_each(|entry| Ok(entry.uncounted())),
            FailurePolicy::Local { .. } => self.local.apply(&mut part).await,
        }
        for outcome in part.outcomes.iter_mut().flatten() {
            outcome.source = OutcomeSource::FailurePolicy;
            self.stood_in.fetch_add(1, Relaxed);
        }
        batch.adopt(part, &failed);
    }

    /// Counts failures, and logs the beginning and the end of an outage. Returns whether anything failed.
    fn note(&self, batch: &Batch) -> bool {
        let errors = || batch.answers().filter_map(|(_, _, outcome)| outcome.as_ref().err());
        let failures = || errors().filter(|error| !matches!(error, StoreError::Impossible(_)));
        let failed = failures().count();
        if failed == 0 {
            self.note_success(batch.now());
            return false;
        }
        self.failed.fetch_add(failed as u64, Relaxed);
        match failures().find(|error| matches!(error, StoreError::Unreachable(_))) {
            Some(error) => self.note_outage(error, batch.now()),
            None => failures().take(1).for_each(log_refusal),
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

    /// Records the result of a check of the store. Returns whether hits can be answered, which is the case unless the
    /// policy is the error.
    pub fn check(&self, checked: Result<(), StoreError>) -> Result<(), StoreError> {
        match &checked {
            Ok(()) => self.note_success(self.clock.now()),
            Err(error @ StoreError::Unreachable(_)) => self.note_outage(error, self.clock.now()),
            Err(error) => log_refusal(error),
        }
        if self.policy == FailurePolicy::Error { checked } else { Ok(()) }
    }

    pub fn metrics(&self) -> [Metric; 3] {
        let (policy, _) = self.policy.words();
        let (failed, stood_in) = (self.failed.load(Relaxed), self.stood_in.load(Relaxed));
        [
            Metric::counter("divvy_redis_failures_total", "Actions that Redis failed to perform.", failed),
            Metric::gauge("divvy_redis_outage", "1 while Redis fails.", self.is_out(self.clock.now()).into()),
            Metric::counter("divvy_redis_stand_ins_total", "Actions that --on-store-error answered.", stood_in)
                .labelled("policy", policy),
        ]
    }
}

fn log_refusal(error: &StoreError) {
    // The error may quote the other side.
    let error = error.to_string();
    REFUSED.say(|more| tracing::warn!(error = %Escaped::error(&error), more, "the store refused an action"));
}

#[cfg(test)]
mod tests;
