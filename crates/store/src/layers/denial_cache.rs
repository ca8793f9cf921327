//! A cache of denials: it answers hits that are known to be denied without asking the distant store.
//!
//! A fixed window with nothing left stays empty until it ends, for every client whose limit is no larger. Its end is
//! computed from the time before the store was asked, so it is slightly early here. The cache never answers for a
//! window that may be over, and never grants a credit. A bucket that is forgotten through this server, or gets credits
//! back, is looked up in the store again at once. Settlements always go to the store. Another server may forget a
//! bucket or raise its limit, so a denial is trusted for at most a second.
//!
//! The cache decides which windows are remembered, and when they answer. A table of bounded size holds their ends, and a keyed
//! hash of each bucket's key.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use siphasher::sip128::SipHasher13;

use crate::contract::{Action, Batch, Entry, Store, StoreError, Unit};
use crate::record_key;
use divvy_core::algorithm::{Ask, Limit, Outcome, OutcomeSource, State};
use divvy_core::clock::{NANOS_PER_SECOND, Timestamp};
use divvy_telemetry::metrics::Metric;

/// Default number of windows that are remembered: 56 bytes each.
pub const DEFAULT_DENIAL_CACHE: usize = 100_000;

/// How long the cache trusts that a window has nothing left.
const TRUST_NS: u64 = NANOS_PER_SECOND;

/// A bucket's window that is used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Denial {
    /// The hash of the bucket's key.
    hash: [u64; 2],
    /// The end of the window.
    until: Timestamp,
    /// Time of the store's answer.
    learned: Timestamp,
    /// Credits of the limit that has nothing left. A larger limit may grant more.
    credits: u64,
    /// Credits used beyond the limit.
    owed: u64,
}

/// Denials of a distant store.
#[derive(Debug)]
pub struct DenialCache {
    /// Used-up windows, each at a place that the hash of its bucket's key determines. A later one takes the place of an earlier
    /// one. All are allocated at the start.
    places: Box<[Mutex<Denial>]>,
    /// Its secret is random, so that no client can choose keys that collide.
    hasher: SipHasher13,
    /// Number of finished batches that forgot a bucket or gave credits back. If it changes while a batch is in the
    /// store, the batch's outcomes may be outdated, and are not cached.
    returns: AtomicU64,
    /// Number of entries that were answered from the cache since the start.
    answered: AtomicU64,
}

impl DenialCache {
    /// Creates a cache of up to `entries` windows. 0 switches it off.
    pub fn new(entries: usize) -> Self {
        let secret = RandomState::new();
        Self {
            places: (0..entries).map(|_| Mutex::default()).collect(),
            hasher: SipHasher13::new_with_keys(secret.hash_one(0), secret.hash_one(1)),
            returns: AtomicU64::new(0),
            answered: AtomicU64::new(0),
        }
    }

    /// Answers the entries that are known to be denied. `store` answers the others, and the cache learns from its
    /// outcomes.
    pub async fn apply(&self, batch: &mut Batch, store: &impl Store) {
        if self.places.is_empty() {
            return store.apply(batch).await;
        }
        let returns = self.returns.load(Ordering::SeqCst);
        let unknown = self.answer_known(batch);
        if unknown.len() == batch.len() {
            store.apply(batch).await;
            self.learn(batch, returns);
        } else if !unknown.is_empty() {
            let mut rest = batch.part(&unknown);
            store.apply(&mut rest).await;
            self.learn(&rest, returns);
            batch.adopt(rest, &unknown);
        }
    }

    pub fn metric(&self) -> Metric {
        let answered = self.answered.load(Ordering::Relaxed);
        Metric::counter("divvy_denial_cache_answers_total", "Denials from the denial cache.", answered)
    }

    /// Answers known denials, and returns the indexes of the other entries. It goes in order: if a batch forgets a
    /// bucket or gives credits back, a later entry for the same bucket goes to the store.
    fn answer_known(&self, batch: &mut Batch) -> Vec<usize> {
        let now = batch.now();
        let mut unknown = Vec::new();
        batch.outcomes.clear();
        batch.answer_on(|unit, outcomes| {
            match self.answer_unit(unit, now) {
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

    /// Returns the outcomes of a unit if they are known. One known denial denies a group. In that case, each bucket
    /// without a known denial answers like a fresh one. The store answers for units with records.
    fn answer_unit(&self, unit: Unit<'_>, now: Timestamp) -> Option<Vec<Outcome>> {
        for (_, key, _) in unit.members().filter(|(_, _, entry)| entry.action.gives_back()) {
            self.forget(record_key::bucket(key));
        }
        if let [entry] = unit.entries {
            return self.answer(unit.key(entry), entry, now).map(|outcome| vec![outcome]);
        }
        if unit.entries.iter().any(|entry| entry.action.has_record()) {
            return None;
        }
        let known: Vec<_> = unit.members().map(|(_, key, entry)| self.answer(key, entry, now)).collect();
        let is_denied = known.iter().flatten().any(|outcome| !outcome.allowed);
        let answers = known.into_iter().zip(unit.entries);
        is_denied.then(|| answers.map(|(known, entry)| known.unwrap_or_else(|| entry.look(None).0)).collect())
    }

    /// Returns the entry's outcome if its window is known to have nothing left. Entries with a time of their own go to
    /// the store, because the cache uses the server's clock.
    fn answer(&self, key: &[u8], entry: &Entry, now: Timestamp) -> Option<Outcome> {
        let (Limit::FixedWindow(limit), Action::Ask(ask)) = (entry.limit, entry.action) else { return None };
        // A tally counts, even if it is denied.
        if entry.at != now || entry.action.needs_store() || matches!(ask, Ask::Tally { .. }) {
            return None;
        }
        let Denial { until, learned, credits, owed, .. } = self.used_up(key, now)?;
        // The server's clock was set back: the denial is from the future, or lasts longer than a window.
        let is_set_back = now < learned || until.since(now) > limit.window_ns.get();
        if is_set_back || now.since(learned) >= TRUST_NS || limit.credits.get() > credits {
            return None;
        }
        let window = State::FixedWindow(limit.used_up(until, owed));
        Some(Outcome { source: OutcomeSource::DenialCache, ..entry.limit.decide(Some(&window), ask, now).outcome })
    }

    /// Caches the windows that are used up according to the store's outcomes, and drops those that got credits back.
    fn learn(&self, batch: &Batch, returns_before: u64) {
        let mut returned = batch.answers().filter(|(_, entry, _)| entry.action.gives_back()).peekable();
        if returned.peek().is_some() {
            // Counted before the denials are dropped. A denial that is cached at the same time either sees the count,
            // or is dropped.
            self.returns.fetch_add(1, Ordering::SeqCst);
            returned.for_each(|(key, ..)| self.forget(record_key::bucket(key)));
            return;
        }
        for (key, entry, outcome) in batch.answers() {
            if let Some(used_up) = used_up(entry, outcome, batch.now())
                && let Some((place, hash)) = self.place(key)
            {
                let mut place = place.lock();
                // Read once the place is locked, as said above.
                if self.returns.load(Ordering::SeqCst) == returns_before {
                    *place = Denial { hash, ..used_up };
                }
            }
        }
    }

    /// Returns the bucket's window, if it is known to be used up and not over at `now`.
    fn used_up(&self, key: &[u8], now: Timestamp) -> Option<Denial> {
        let (place, hash) = self.place(key)?;
        let known = *place.lock();
        (known.hash == hash && now < known.until).then_some(known)
    }

    /// Forgets the bucket's window.
    fn forget(&self, key: &[u8]) {
        let Some((place, hash)) = self.place(key) else { return };
        let mut known = place.lock();
        if known.hash == hash {
            *known = Denial::default();
        }
    }

    fn place(&self, key: &[u8]) -> Option<(&Mutex<Denial>, [u64; 2])> {
        let hash = self.hasher.hash(key);
        let index = hash.h1.checked_rem(self.places.len() as u64)?;
        Some((self.places.get(usize::try_from(index).ok()?)?, [hash.h1, hash.h2]))
    }
}

/// Returns the window, if this outcome shows that it has nothing left.
fn used_up(entry: &Entry, outcome: &Result<Outcome, StoreError>, now: Timestamp) -> Option<Denial> {
    let (Ok(outcome), Limit::FixedWindow(limit)) = (outcome, entry.limit) else { return None };
    let is_used_up = outcome.left == 0 && outcome.reset_ns > 0;
    // Reserved credits may come back before the window ends.
    let until = now.plus(outcome.retry_ns.map_or(outcome.reset_ns, |retry_ns| retry_ns.min(outcome.reset_ns)));
    let (credits, owed) = (limit.credits.get(), outcome.owed);
    let used_up = Denial { hash: [0; 2], until, learned: now, credits, owed };
    (is_used_up && entry.at == now && !entry.action.has_record()).then_some(used_up)
}

#[cfg(test)]
mod tests;
