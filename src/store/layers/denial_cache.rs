//! A store in front of a distant one that answers, without a round trip, what is known to be denied.
//!
//! A fixed window with nothing left stays so until it ends, for every client whose limit is no larger one. That end is
//! reckoned from the time before the store was asked, so it comes a little early here: the cache never answers for a window
//! that may be over, and as it never grants a credit it cannot let too many through. A bucket that is forgotten through this
//! server, or given back to, is asked about anew at once. What has happened already is always the store's to count. One that another server or a person at the distant store forgets, or whose limit is
//! raised there, may be denied here for a second: what was learned is believed no longer than that.

use std::sync::atomic::{AtomicU64, Ordering};

use super::denials::{Denials, UsedUp};
use crate::algorithm::{Limit, Outcome, State};
use crate::clock::{NANOS_PER_SECOND, Timestamp};
use crate::metrics::Metric;
use crate::store::actor_limits::{Followed, LimitChange, LimitPage};
use crate::store::contract::Store;
use crate::store::contract::{Action, Batch, Entry, Unit};
use crate::store::error::StoreError;
use crate::store::listing::{Listing, Page};
use crate::store::record_key;

/// Windows that are remembered unless the operator says otherwise: 48 bytes each.
pub const DEFAULT_DENIAL_CACHE: usize = 100_000;

/// How long it is believed that a window has nothing left.
const BELIEVED_NS: u64 = NANOS_PER_SECOND;

/// `inner`, with a memory of its denials.
///
/// A future of it that is dropped halfway learns nothing from what the store answers: ask it through
/// [`Uninterrupted`](super::Uninterrupted).
#[derive(Debug)]
pub struct DenialCache<S> {
    inner: S,
    denials: Denials,
    /// Batches that are over in which something was forgotten or given back. What was asked before one of them and answered after it may be
    /// outdated, and is not remembered.
    returns: AtomicU64,
    answered: AtomicU64,
}

impl<S: Store> DenialCache<S> {
    /// Remembers up to `entries` windows, rounded up to a multiple of eight; 0 switches it off.
    pub fn new(inner: S, entries: usize) -> Self {
        Self { inner, denials: Denials::new(entries), returns: AtomicU64::new(0), answered: AtomicU64::new(0) }
    }

    pub fn inner(&self) -> &S {
        &self.inner
    }

    /// Asks that were answered from memory since the start.
    pub fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }

    /// Answers what is known; returns the indexes of the other entries. In order, so that a caller who forgets a bucket, or gives
    /// back, and asks it again in one batch asks the store.
    fn answer_known(&self, batch: &mut Batch) -> Vec<usize> {
        let now = batch.now();
        let mut unknown = Vec::new();
        batch.forget_outcomes();
        batch.answer_on(|unit, outcomes| {
            match self.known_unit(unit, now) {
                Some(known) => outcomes.extend(known.into_iter().map(Ok)),
                None => {
                    unknown.extend(unit.first..unit.first + unit.entries.len());
                    outcomes.extend(unit.entries.iter().map(|_| Ok(Outcome::default())));
                }
            }
            true
        });
        self.answered.fetch_add((batch.len() - unknown.len()) as u64, Ordering::Relaxed);
        unknown
    }

    /// What the entries come to when that is known. One known denial denies a group; a bucket of it that nothing is known of
    /// answers as one that was never used. What has records is never known.
    fn known_unit(&self, unit: Unit<'_>, now: Timestamp) -> Option<Vec<Outcome>> {
        for (_, key, _) in unit.members().filter(|(_, _, entry)| entry.action.gives_back()) {
            self.denials.forget(record_key::bucket(key));
        }
        if let [entry] = unit.entries {
            return self.known(unit.key(entry), entry, now).map(|outcome| vec![outcome]);
        }
        if unit.entries.iter().any(|entry| entry.action.has_record()) {
            return None;
        }
        let known: Vec<_> = unit.members().map(|(_, key, entry)| self.known(key, entry, now)).collect();
        let is_denied = known.iter().flatten().any(|outcome| !outcome.allowed);
        let answers = known.into_iter().zip(unit.entries);
        is_denied.then(|| answers.map(|(known, entry)| known.unwrap_or_else(|| entry.look(None).0)).collect())
    }

    /// What the entry comes to, when its window is known to have nothing left. An entry with a time of its own is not
    /// answered: what is remembered goes by the server's clock.
    fn known(&self, key: &[u8], entry: &Entry, now: Timestamp) -> Option<Outcome> {
        let (Limit::FixedWindow(limit), Action::Ask(ask)) = (entry.limit, entry.action) else { return None };
        if entry.at != now || entry.action.needs_store() {
            return None;
        }
        let UsedUp { until, learned, credits, owed } = self.denials.used_up(key, now)?;
        // It was learned later, or ends later than a window lasts: the server's clock was set back since.
        let is_set_back = now < learned || until.since(now) > limit.window_ns.get();
        if is_set_back || now.since(learned) >= BELIEVED_NS || limit.credits.get() > credits {
            return None;
        }
        let window = State::FixedWindow(limit.used_up(until, owed));
        Some(entry.limit.decide(Some(&window), ask, now).outcome)
    }

    /// Remembers which windows the store's answers show to be used up, and forgets where something was given back.
    fn learn(&self, batch: &Batch, returns_before: u64) {
        let gives_back = |entry: &Entry| entry.action.gives_back();
        if !batch.answers().any(|(_, entry, _)| gives_back(entry)) {
            for (key, entry, outcome) in batch.answers() {
                if let Some(used_up) = used_up(entry, outcome, batch.now()) {
                    let is_stale = || self.returns.load(Ordering::SeqCst) != returns_before;
                    self.denials.remember(key, used_up, is_stale);
                }
            }
            return;
        }
        // Counted before the places are cleared: a denial remembered meanwhile either sees the count or is cleared.
        self.returns.fetch_add(1, Ordering::SeqCst);
        for (key, ..) in batch.answers().filter(|(_, entry, _)| gives_back(entry)) {
            self.denials.forget(record_key::bucket(key));
        }
    }
}

/// What this outcome shows of a window that has nothing left.
fn used_up(entry: &Entry, outcome: &Result<Outcome, StoreError>, now: Timestamp) -> Option<UsedUp> {
    let (Ok(outcome), Limit::FixedWindow(limit)) = (outcome, entry.limit) else { return None };
    if entry.action.has_record() {
        return None;
    }
    let is_used_up = outcome.left == 0 && outcome.reset_ns > 0 && entry.at == now;
    let (until, credits) = (now.plus(outcome.reset_ns), limit.credits.get());
    let used_up = UsedUp { until, learned: now, credits, owed: outcome.owed };
    is_used_up.then_some(used_up)
}

impl<S: Store> Store for DenialCache<S> {
    async fn apply(&self, batch: &mut Batch) {
        if self.denials.is_off() {
            return self.inner.apply(batch).await;
        }
        let returns = self.returns.load(Ordering::SeqCst);
        let unknown = self.answer_known(batch);
        if unknown.len() == batch.len() {
            self.inner.apply(batch).await;
            self.learn(batch, returns);
        } else if !unknown.is_empty() {
            let mut rest = batch.part(&unknown);
            self.inner.apply(&mut rest).await;
            self.learn(&rest, returns);
            batch.adopt(rest, &unknown);
        }
    }

    async fn list(&self, listing: Listing) -> Result<Page, StoreError> {
        self.inner.list(listing).await
    }

    async fn approximate_len(&self) -> Result<u64, StoreError> {
        self.inner.approximate_len().await
    }

    async fn check(&self) -> Result<(), StoreError> {
        self.inner.check().await
    }

    async fn change_limit(&self, change: LimitChange, now: Timestamp) -> Result<Option<bool>, StoreError> {
        self.inner.change_limit(change, now).await
    }

    async fn follow_limits(&self, known: Followed) -> Result<LimitPage, StoreError> {
        self.inner.follow_limits(known).await
    }

    fn metrics(&self) -> Vec<Metric> {
        let mut metrics = self.inner.metrics();
        metrics.push(Metric::counter(
            "divvy_denial_cache_answers_total",
            "Hits and peeks denied from the denial cache, without asking Redis.",
            self.answered(),
        ));
        metrics
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.inner.close().await
    }
}

#[cfg(test)]
mod tests;
