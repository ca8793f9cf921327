//! The register of exceptions for single actors: limits, blocks and allows. They are in the server's [memory], and
//! this module changes them and follows the store. Requests find blocks and allows through [`overrides`].
//!
//! An exception is stored before it is in force, and is in force before it is acknowledged.

pub mod memory;
pub mod overrides;
pub mod owner;

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};

use arc_swap::ArcSwap;
use tokio::sync::Mutex;
use tokio::task::yield_now;

use self::memory::{Exceptions, is_forgotten, is_over};
use self::overrides::{Everywhere, RuleExceptions};
use self::owner::{Class, ExceptionOwner, OwnerName};
use crate::store::{Backend, Changed, ExceptionChange, ExceptionCursor, ExceptionKind, Replaces, Store, StoreError};
use divvy_core::clock::{Clock, MAX_STANDSTILL_NS, NANOS_PER_SECOND, Timestamp};

/// A server that has not followed the store for longer reads all exceptions again, because the store may have forgotten
/// removals by then.
const TOO_LONG_NS: u64 = 30 * 60 * NANOS_PER_SECOND;
/// Maximum number of expired exceptions that are dropped at once. Setting an exception waits for at most one such batch.
pub(super) const FORGOTTEN_AT_ONCE: usize = 1_000;
/// Minimum time between two searches for exceptions that make room, because each looks at all of them.
const SEARCH_EVERY_NS: u64 = NANOS_PER_SECOND;
/// Number of shards, a sixteenth of all, that a search looks at before other tasks of the thread run.
const SEARCHED_AT_ONCE: usize = 64;
/// Time between two readings of all exceptions. A replica that takes over may have lost changes, and only a complete
/// reading finds them.
const READ_ALL_EVERY_NS: u64 = 60 * 60 * NANOS_PER_SECOND;

/// All exceptions.
#[derive(Debug, Default)]
pub struct Register {
    pub memory: Exceptions,
    /// The blocks and allows of all rules, by field.
    everywhere: ArcSwap<Everywhere>,
    /// The state of following the store. Its lock admits one change or reading at a time.
    pub known: Mutex<FollowState>,
    /// Expired exceptions that have left memory, and that the store has yet to forget.
    pub over: parking_lot::Mutex<VecDeque<ExceptionChange>>,
    /// Index of the first shard that the search for expired exceptions has not reached yet.
    looked_through: AtomicUsize,
    /// Number of complete readings of all exceptions.
    readings: AtomicU32,
    /// Time when the store's exceptions were last read, or the server started (nanoseconds since 1970).
    followed: AtomicU64,
    /// Whether the store's exceptions have been read since the start.
    pub has_been_read: AtomicBool,
    pub failures: AtomicU64,
}

/// Progress in following the store.
#[derive(Debug, Default)]
pub struct FollowState {
    followed: ExceptionCursor,
    /// Whether all exceptions are being read from the start.
    starts_over: bool,
    /// Time when all exceptions were last read.
    read_all: Timestamp,
}

impl Register {
    pub fn new(now: Timestamp) -> Self {
        Self { followed: AtomicU64::new(now.as_nanos()), ..Self::default() }
    }

    /// Returns the exceptions of the rule with this label, including later ones.
    pub(crate) fn of_rule(&self, label: &str) -> RuleExceptions {
        let of_kind = |kind| self.memory.of_owner(&ExceptionOwner::of_rule(kind, label).to_string());
        RuleExceptions {
            limits: of_kind(ExceptionKind::Limit),
            blocks: of_kind(ExceptionKind::Block),
            allows: of_kind(ExceptionKind::Allow),
        }
    }

    /// Returns the fields that overrides of all rules are about.
    pub(crate) fn fields(&self) -> BTreeSet<String> {
        let field = |owner: &Arc<str>| match ExceptionOwner::parse(owner)?.of {
            OwnerName::Field(field, _) => Some(field.to_owned()),
            OwnerName::Rule(_) => None,
        };
        self.memory.owners_in_use().iter().filter_map(field).collect()
    }

    /// Returns the overrides of all rules, if there are any.
    pub(crate) fn everywhere(&self) -> Option<Arc<Everywhere>> {
        let known = self.everywhere.load();
        if known.revision == self.memory.owners_revision() {
            return known.is_in_use().then(|| Arc::clone(&known));
        }
        drop(known);
        let everywhere = Arc::new(Everywhere::new(&self.memory));
        self.everywhere.store(Arc::clone(&everywhere));
        everywhere.is_in_use().then_some(everywhere)
    }

    /// Returns whether there is room for exceptions of this weight, once some of the expired ones have been dropped. Those that
    /// have ended and are only remembered make room, too. They may return with the next reading of all exceptions. Finds nothing
    /// to drop less than a second after the last search.
    pub async fn has_room(&self, class: Class, weight: usize, store: &Backend, now: Timestamp) -> bool {
        let room = self.memory.room(class);
        if room.free() < weight {
            self.make_room(class, store, now).await;
        }
        room.free() >= weight
    }

    /// Drops some of the exceptions of a class that have ended, unless they were searched for less than a second ago.
    pub async fn make_room(&self, class: Class, store: &Backend, now: Timestamp) {
        let searched = &self.memory.room(class).searched;
        if now.distance(Timestamp::from_nanos(searched.load(Relaxed))) < SEARCH_EVERY_NS {
            return;
        }
        searched.store(now.as_nanos(), Relaxed);
        let mut dropped = 0;
        for first in Exceptions::ALL.step_by(SEARCHED_AT_ONCE) {
            let shards = first..first + SEARCHED_AT_ONCE;
            let found = self.memory.drop_some(Some(class), shards, FORGOTTEN_AT_ONCE - dropped, is_over, now);
            dropped += found.len();
            self.forget_later(found, store);
            if dropped == FORGOTTEN_AT_ONCE {
                break;
            }
            // Others must not wait for a search through all of them.
            yield_now().await;
        }
    }

    /// Lets the store forget exceptions that were dropped from memory, unless other servers write to it.
    fn forget_later(&self, dropped: Vec<ExceptionChange>, store: &Backend) {
        if !store.is_shared() && !dropped.is_empty() {
            self.over.lock().extend(dropped);
        }
    }

    /// Stores the changes, then puts them in force. Returns the outcome of each. The caller has locked out other changes.
    pub async fn change(
        &self,
        changes: Vec<ExceptionChange>,
        replaces: &Replaces,
        store: &Backend,
        now: Timestamp,
    ) -> Result<Vec<Changed>, StoreError> {
        // A store that other servers change, too, knows best which exception a change would replace.
        let is_made = |change: &ExceptionChange| {
            let known = self.memory.find_remembered(&change.owner, &change.actor, now);
            store.is_shared() || known.is_none_or(|known| replaces.covers(&known, change))
        };
        let mut changed = vec![Changed::Kept; changes.len()];
        let (places, made): (Vec<_>, Vec<_>) =
            changes.into_iter().enumerate().filter(|(_, change)| is_made(change)).unzip();
        if made.is_empty() {
            return Ok(changed);
        }
        let stored = store.change_exceptions(made.clone(), replaces.clone(), now).await?;
        for ((place, change), outcome) in places.into_iter().zip(&made).zip(stored) {
            if outcome != Changed::Kept {
                self.apply(change);
            }
            if let Some(changed) = changed.get_mut(place) {
                *changed = outcome;
            }
        }
        Ok(changed)
    }

    /// Puts the change in force.
    fn apply(&self, change: &ExceptionChange) {
        self.memory.apply(change, self.readings.load(Relaxed));
    }

    /// Follows the changes in the store since the last call.
    ///
    /// # Errors
    /// The store's error. The exceptions in memory stay in force.
    pub async fn follow(&self, store: &Backend, clock: Clock) -> Result<(), StoreError> {
        let mut known = self.known.lock().await;
        let begun = clock.now();
        let followed = Timestamp::from_nanos(self.followed.load(Relaxed));
        if !store.is_shared() && followed.since(begun) > MAX_STANDSTILL_NS {
            self.set_back(followed.since(begun), store, begun).await?;
        }
        let is_due = store.is_shared() && begun.distance(known.read_all) > READ_ALL_EVERY_NS;
        if begun.distance(followed) > TOO_LONG_NS || (is_due && !known.starts_over) {
            known.followed = ExceptionCursor::Nothing;
        }
        loop {
            let page = store.follow_exceptions(known.followed.clone(), clock.now()).await;
            let page = page.inspect_err(|_| _ = self.failures.fetch_add(1, Relaxed))?;
            if page.starts_over {
                known.starts_over = true;
                self.readings.fetch_add(1, Relaxed);
            }
            for change in &page.changes {
                self.apply(change);
            }
            known.followed = page.known;
            if page.is_last {
                break;
            }
        }
        if std::mem::take(&mut known.starts_over) {
            self.memory.keep_read(self.readings.load(Relaxed));
            known.read_all = begun;
        }
        self.followed.store(begun.as_nanos(), Relaxed);
        self.has_been_read.store(true, Relaxed);
        Ok(())
    }

    /// Moves the ends of exceptions whose length counts, after the clock was set back by `nanos`. The caller has locked out other
    /// changes. A shared store has its own clock.
    pub(super) async fn set_back(&self, nanos: u64, store: &Backend, now: Timestamp) -> Result<(), StoreError> {
        let (owners, mut cursor) = (self.memory.owners_in_use(), None);
        loop {
            let all = owners.iter().map(|owner| (&**owner, ()));
            let (page, next) = self.memory.page(all, |(), _, _| true, cursor.as_ref(), FORGOTTEN_AT_ONCE, now).await;
            for change in page {
                if let Some(value) = change.value.as_ref().and_then(|value| value.set_back(nanos)) {
                    let change = ExceptionChange { value: Some(value), ..change };
                    self.change(vec![change], &Replaces::All, store, now).await?;
                }
            }
            cursor = next;
            if cursor.is_none() {
                return Ok(());
            }
            yield_now().await;
        }
    }

    /// Returns the nanoseconds since the store's exceptions were last read, or since the start.
    pub fn age_ns(&self, now: Timestamp) -> u64 {
        now.since(Timestamp::from_nanos(self.followed.load(Relaxed)))
    }

    /// Drops some of the expired exceptions from memory, and from a store that no other server writes to. Exceptions can be
    /// set in between. One that is set again stays.
    ///
    /// # Errors
    /// The store's error. Expired exceptions are not in force, and are dropped later, or after the next start.
    pub async fn drop_expired(&self, store: &Backend, clock: Clock) -> Result<(), StoreError> {
        let first = self.looked_through.fetch_add(SEARCHED_AT_ONCE, Relaxed) % Exceptions::ALL.end;
        let shards = first..first + SEARCHED_AT_ONCE;
        for shard in shards {
            // One shard at a time, so that no caller waits for more than one.
            self.drop_from_memory(shard..shard + 1, store, clock.now());
            yield_now().await;
        }
        while self.forget_some(store).await? {
            yield_now().await;
        }
        Ok(())
    }

    /// Drops from memory some of the exceptions in these shards that have expired by `now`, if there are any.
    pub(super) fn drop_from_memory(&self, shards: Range<usize>, store: &Backend, now: Timestamp) {
        let dropped = self.memory.drop_some(None, shards, FORGOTTEN_AT_ONCE, is_forgotten, now);
        self.forget_later(dropped, store);
    }

    /// Makes the store forget some of the exceptions that were dropped from memory. Returns whether there may be more.
    pub(super) async fn forget_some(&self, store: &Backend) -> Result<bool, StoreError> {
        // An exception that is set during this write must reach the store after it.
        let _alone = self.known.lock().await;
        // Exceptions leave the queue once the store has forgotten them, so nothing is lost if the caller stops waiting.
        let oldest: Vec<_> = self.over.lock().iter().take(FORGOTTEN_AT_ONCE).cloned().collect();
        if oldest.is_empty() {
            return Ok(false);
        }
        let count = oldest.len();
        let forgotten: Vec<_> =
            oldest.into_iter().filter(|change| self.memory.find_any(&change.owner, &change.actor).is_none()).collect();
        if !forgotten.is_empty() {
            store.forget_exceptions(forgotten).await?;
        }
        self.over.lock().drain(..count);
        Ok(true)
    }
}
