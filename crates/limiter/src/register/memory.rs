//! Exceptions for single actors in memory: limits, blocks and allows. Hits look them up by hash, and listings read an index
//! in the order of their names. A journal has the latest changes of blocks. Stores keep exceptions beyond the process.
//!
//! They belong to an owner, such as a rule's label. So they outlive a removed rule, and apply again to the next rule with
//! its label.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::hash::{BuildHasher, Hasher};
use std::ops::Bound::{Excluded, Included, Unbounded};
use std::ops::Range;
use std::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};
use std::sync::{Arc, OnceLock};

use foldhash::fast::{FixedState, RandomState};
use hashbrown::hash_table::Entry;
use hashbrown::{HashMap, HashTable};
use parking_lot::{Mutex, RwLock};
use tokio::task::yield_now;

use super::owner::{Class, Sought, sought};
use crate::store::{Exception, ExceptionChange, ExceptionKind};
use divvy_core::clock::{NANOS_PER_SECOND, Timestamp};

/// Default for the maximum number of limits of actors.
pub const DEFAULT_MAX_ACTOR_LIMITS: usize = 1_000_000;
/// Default for the maximum number of blocks and allows.
pub const DEFAULT_MAX_OVERRIDES: usize = 1_000_000;

/// Number of shards, each with its own lock.
const SHARDS: usize = 1_024;
/// An exception whose actor and other texts are longer counts as several (bytes).
const USUAL_BYTES: usize = 512;

/// All exceptions. Actors are given as stores keep them, except where requests look them up.
#[derive(Debug)]
pub struct Exceptions {
    shards: Arc<Shards>,
    owners: RwLock<Owners>,
    /// The owner and the actor of each exception.
    index: RwLock<BTreeSet<Cursor>>,
    /// The room for limits.
    pub limits: Room,
    /// The room for blocks and allows.
    pub overrides: Room,
    owners_revision: AtomicU64,
    /// The latest changes of blocks. An allow or the rules may change what many of them do.
    pub(crate) journal: Journal,
}

/// The room for the exceptions of a class. A flood of one class must not take the room of the other.
#[derive(Debug)]
pub struct Room {
    /// Maximum number of exceptions. Long ones count as several.
    pub max: usize,
    /// Number of exceptions, weighted by their length.
    used: AtomicUsize,
    /// Time of the last search for exceptions that make room (nanoseconds since 1970).
    pub searched: AtomicU64,
}

impl Room {
    fn new(max: usize) -> Self {
        Self { max, used: AtomicUsize::new(0), searched: AtomicU64::new(0) }
    }

    /// Returns the number of exceptions. Long ones count as several.
    pub fn used(&self) -> usize {
        self.used.load(Relaxed)
    }

    /// Returns the number of exceptions that there is room for.
    pub fn free(&self) -> usize {
        self.max.saturating_sub(self.used())
    }
}

/// The exceptions of one owner.
#[derive(Debug)]
pub(crate) struct OwnerExceptions {
    pub owner: Arc<str>,
    /// Clients choose the names of actors that rules block. The seed is random, so that they cannot choose names that collide.
    hasher: RandomState,
    len: AtomicUsize,
    shards: Arc<Shards>,
    class: Class,
    sought: Sought,
    /// Whether it stays without exceptions, because rules in force have it.
    is_kept: AtomicBool,
}

type Owners = HashMap<String, Arc<OwnerExceptions>, FixedState>;

/// The exceptions of all owners, by actor.
#[derive(Debug)]
struct Shards {
    tables: [RwLock<HashTable<Known>>; SHARDS],
    /// Chooses the shard. Random, so that clients cannot choose names that share one.
    hasher: RandomState,
    /// The hashes of all exceptions.
    filter: CountingFilter,
}

/// One exception.
#[derive(Debug)]
struct Known {
    of: Arc<OwnerExceptions>,
    actor: Arc<str>,
    /// The hash of the bytes for look-ups by requests.
    hash: u64,
    value: Exception,
    /// Number of the latest complete reading that contained this exception.
    reading: u32,
}

impl Known {
    /// Returns whether requests look it up by these bytes, which have this hash.
    #[inline]
    fn is_of(&self, of: &OwnerExceptions, hash: u64, actor: &[u8]) -> bool {
        // The hashes are compared first, because the bytes may have to be written.
        self.hash == hash && std::ptr::eq(&*self.of, of) && *(of.sought)(&self.actor) == *actor
    }

    fn place(&self) -> Cursor {
        Cursor { owner: Arc::clone(&self.of.owner), actor: Arc::clone(&self.actor) }
    }
}

/// Returns the number of exceptions that this one counts as.
pub(crate) fn weight(actor: &str, exception: &Exception) -> usize {
    (actor.len() + exception.reason().map_or(0, |reason| reason.len())) / USUAL_BYTES + 1
}

/// Returns whether the exception is no longer in force.
pub(crate) fn is_over(exception: &Exception, now: Timestamp) -> bool {
    exception.ends.is_some_and(|ends| ends <= now)
}

/// Returns whether the exception need not be remembered.
pub(crate) fn is_forgotten(exception: &Exception, now: Timestamp) -> bool {
    exception.expires().is_some_and(|expires| expires <= now)
}

/// Returns whether two exceptions are the same to clients, who know their ends in seconds. A shared store reports a server's own
/// changes, with ends by another clock.
fn looks_same(one: &Exception, other: &Exception) -> bool {
    let is_same_end = match (one.ends, other.ends) {
        (Some(one), Some(other)) => one.distance(other) < NANOS_PER_SECOND,
        (one, other) => one == other,
    };
    is_same_end && one.effect == other.effect
}

/// Returns the hash of an actor.
#[inline]
fn hash(hasher: &impl BuildHasher, actor: &[u8]) -> u64 {
    // Fewer instructions than `hash_one`, which hashes the length, too.
    let mut hasher = hasher.build_hasher();
    hasher.write(actor);
    hasher.finish()
}

impl Shards {
    /// Returns the actor's shard.
    #[inline]
    fn of(&self, actor: &[u8]) -> Option<&RwLock<HashTable<Known>>> {
        self.tables.get(hash(&self.hasher, actor) as usize % SHARDS)
    }
}

impl OwnerExceptions {
    /// Returns whether there are any exceptions, in force or expired.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len.load(Relaxed) == 0
    }

    /// Returns the exception for the actor that a request names, if it is in force.
    #[inline]
    pub(crate) fn get(&self, actor: &[u8], now: Timestamp) -> Option<Exception> {
        // Fast path: very few rules have exceptions.
        if self.is_empty() {
            return None;
        }
        self.find(actor).filter(|exception| !is_over(exception, now))
    }

    /// Returns whether there is an exception for the actor that a request names, in force or expired.
    // Inlined, because a call costs as much as half of the rest.
    #[inline(always)]
    pub(crate) fn contains(&self, actor: &[u8]) -> bool {
        if self.is_empty() {
            return false;
        }
        let hash = hash(&self.hasher, actor);
        self.shards.filter.may_contain(hash) && self.has(actor, hash)
    }

    #[inline(never)]
    fn has(&self, actor: &[u8], hash: u64) -> bool {
        let shard = self.shards.of(actor);
        shard.is_some_and(|shard| shard.read().find(hash, |known| known.is_of(self, hash, actor)).is_some())
    }

    /// Returns the exception for the actor that a request names, even if it has expired.
    fn find(&self, actor: &[u8]) -> Option<Exception> {
        let hash = hash(&self.hasher, actor);
        if !self.shards.filter.may_contain(hash) {
            return None;
        }
        let shard = self.shards.of(actor)?.read();
        Some(shard.find(hash, |known| known.is_of(self, hash, actor))?.value.clone())
    }

    /// Counts a removed exception. Returns whether it was the last one.
    fn count_removed(&self, hash: u64) -> bool {
        self.shards.filter.remove(hash);
        self.len.fetch_sub(1, Relaxed) == 1
    }
}

impl Default for Exceptions {
    fn default() -> Self {
        let tables = std::array::from_fn(|_| RwLock::default());
        Self {
            shards: Arc::new(Shards { tables, hasher: RandomState::default(), filter: CountingFilter::default() }),
            owners: RwLock::default(),
            index: RwLock::default(),
            limits: Room::new(DEFAULT_MAX_ACTOR_LIMITS),
            overrides: Room::new(DEFAULT_MAX_OVERRIDES),
            owners_revision: AtomicU64::new(0),
            journal: Journal::default(),
        }
    }
}

impl Exceptions {
    /// All shards.
    pub(crate) const ALL: Range<usize> = 0..SHARDS;

    /// Returns the number of exceptions of owners that `is_meant` accepts. Expired ones count until they are dropped.
    pub(crate) fn count(&self, is_meant: impl Fn(&str) -> bool) -> usize {
        let owners = self.owners.read();
        owners.values().filter(|of| !of.is_empty() && is_meant(&of.owner)).map(|of| of.len.load(Relaxed)).sum()
    }

    /// Returns the number of exceptions of a class.
    pub(crate) fn len(&self, class: Class) -> usize {
        self.count(|owner| Class::of(owner) == class)
    }

    /// Returns the room for the exceptions of a class.
    pub(crate) fn room(&self, class: Class) -> &Room {
        match class {
            Class::Limits => &self.limits,
            Class::Overrides => &self.overrides,
        }
    }

    /// Returns whether the owner has exceptions.
    pub(crate) fn has_owner(&self, owner: &str) -> bool {
        self.owners.read().get(owner).is_some_and(|of| !of.is_empty())
    }

    /// Returns the owner's exception for the actor, if it is in force.
    pub(crate) fn find(&self, owner: &str, actor: &str, now: Timestamp) -> Option<Exception> {
        self.find_any(owner, actor).filter(|exception| !is_over(exception, now))
    }

    /// Returns the owner's exception for the actor, if it is in force or remembered.
    pub(crate) fn find_remembered(&self, owner: &str, actor: &str, now: Timestamp) -> Option<Exception> {
        self.find_any(owner, actor).filter(|exception| !is_forgotten(exception, now))
    }

    /// Returns the owner's exception for the actor, in force or expired.
    pub(crate) fn find_any(&self, owner: &str, actor: &str) -> Option<Exception> {
        let owners = self.owners.read();
        let of = owners.get(owner)?;
        of.find(&(of.sought)(actor))
    }

    /// Returns a number that changes whenever owners come or go.
    pub(crate) fn owners_revision(&self) -> u64 {
        self.owners_revision.load(Acquire)
    }

    /// Returns all owners with exceptions, and those that are kept.
    pub(crate) fn all_owners(&self) -> Vec<Arc<OwnerExceptions>> {
        self.owners.read().values().cloned().collect()
    }

    /// Returns the owner's exceptions, including later ones.
    pub(crate) fn of_owner(&self, owner: &str) -> Arc<OwnerExceptions> {
        let of = self.of_owner_among(&mut self.owners.write(), owner);
        of.is_kept.store(true, Relaxed);
        of
    }

    fn of_owner_among(&self, owners: &mut Owners, owner: &str) -> Arc<OwnerExceptions> {
        let new = || OwnerExceptions {
            owner: owner.into(),
            hasher: RandomState::default(),
            len: AtomicUsize::new(0),
            shards: Arc::clone(&self.shards),
            class: Class::of(owner),
            sought: sought(owner),
            is_kept: AtomicBool::new(false),
        };
        let of = owners.entry_ref(owner).or_insert_with(|| {
            self.owners_revision.fetch_add(1, Release);
            Arc::new(new())
        });
        Arc::clone(of)
    }

    /// Drops an owner without exceptions, unless it is kept. So the names of fields in blocks of all rules do not pile up.
    fn drop_if_empty(&self, owners: &mut Owners, of: &Arc<OwnerExceptions>) {
        let is_in_use = |known: &Arc<_>| !Arc::ptr_eq(known, of) || of.is_kept.load(Relaxed) || !of.is_empty();
        if !owners.get(&*of.owner).is_none_or(is_in_use) {
            owners.remove(&*of.owner);
            self.owners_revision.fetch_add(1, Release);
        }
    }

    /// Puts the change in force. `reading` is the number of the latest reading of all exceptions.
    pub(crate) fn apply(&self, change: &ExceptionChange, reading: u32) {
        // Locked until the exception is there, so that its owner is not dropped before.
        let mut owners = self.owners.write();
        if change.value.is_none() && !owners.contains_key(&change.owner) {
            return;
        }
        let of = self.of_owner_among(&mut owners, &change.owner);
        let sought = (of.sought)(&change.actor);
        let hash = hash(&of.hasher, &sought);
        let Some(shard) = self.shards.of(&sought) else { return };
        let mut shard = shard.write();
        let is_same = |known: &Known| known.is_of(&of, hash, &sought);
        let entry = shard.entry(hash, is_same, |known| known.hash);
        let is_changed = match (entry, change.value.clone()) {
            (Entry::Occupied(mut known), Some(value)) => {
                let known = known.get_mut();
                let is_changed = !looks_same(&known.value, &value);
                let used = &self.room(of.class).used;
                used.fetch_add(weight(&known.actor, &value), Relaxed);
                used.fetch_sub(weight(&known.actor, &known.value), Relaxed);
                (known.value, known.reading) = (value, reading);
                is_changed
            }
            (Entry::Occupied(known), None) => {
                let (known, _) = known.remove();
                self.drop_from_index(&known);
                of.count_removed(hash);
                true
            }
            (Entry::Vacant(place), Some(value)) => {
                // The filter has it before the table.
                self.shards.filter.add(hash);
                of.len.fetch_add(1, Relaxed);
                let of = Arc::clone(&of);
                let known = Known { of, actor: change.actor.as_str().into(), hash, value, reading };
                self.room(known.of.class).used.fetch_add(weight(&known.actor, &known.value), Relaxed);
                self.index.write().insert(known.place());
                place.insert(known);
                true
            }
            (Entry::Vacant(_), None) => false,
        };
        drop(shard);
        self.drop_if_empty(&mut owners, &of);
        drop(owners);
        // Recorded once it is in force.
        match ExceptionKind::split_owner(&of.owner) {
            Some((ExceptionKind::Block, _)) if is_changed => {
                self.journal.record(Cursor { owner: Arc::clone(&of.owner), actor: change.actor.as_str().into() });
            }
            Some((ExceptionKind::Allow, _)) if is_changed => self.journal.reset(),
            _ => {}
        }
    }

    fn drop_from_index(&self, known: &Known) {
        self.room(known.of.class).used.fetch_sub(weight(&known.actor, &known.value), Relaxed);
        self.index.write().remove(&known.place());
    }

    /// Drops every exception that was not in the complete reading with this number.
    pub(crate) fn keep_read(&self, reading: u32) {
        self.retain(Self::ALL, |known| known.reading == reading);
        self.journal.reset();
    }

    /// Drops at most `most` of the exceptions in these shards that `is_meant` accepts at `now`, of one class or of both, and
    /// returns them.
    pub(crate) fn drop_some(
        &self,
        class: Option<Class>,
        shards: Range<usize>,
        most: usize,
        is_meant: fn(&Exception, Timestamp) -> bool,
        now: Timestamp,
    ) -> Vec<ExceptionChange> {
        let mut dropped = Vec::new();
        self.retain(shards, |known| {
            let is_of_class = class.is_none_or(|class| class == known.of.class);
            let stays = dropped.len() >= most || !is_of_class || !is_meant(&known.value, now);
            if !stays {
                let (owner, actor) = (known.of.owner.to_string(), known.actor.to_string());
                dropped.push(ExceptionChange { owner, actor, value: None });
            }
            stays
        });
        if dropped.iter().any(|dropped| dropped.owner.starts_with("allow:")) {
            self.journal.reset();
        }
        dropped
    }

    fn retain(&self, shards: Range<usize>, mut stays: impl FnMut(&Known) -> bool) {
        let mut emptied = Vec::new();
        for shard in self.shards.tables.get(shards).unwrap_or_default() {
            shard.write().retain(|known| {
                if stays(known) {
                    return true;
                }
                self.drop_from_index(known);
                if known.of.count_removed(known.hash) {
                    emptied.push(Arc::clone(&known.of));
                }
                false
            });
        }
        if !emptied.is_empty() {
            let mut owners = self.owners.write();
            emptied.iter().for_each(|of| self.drop_if_empty(&mut owners, of));
        }
    }

    /// Returns the owners with exceptions, in order.
    pub(crate) fn owners_in_use(&self) -> Vec<Arc<str>> {
        let owners = self.owners.read();
        let mut in_use: Vec<_> = owners.values().filter(|of| !of.is_empty()).map(|of| Arc::clone(&of.owner)).collect();
        in_use.sort_unstable();
        in_use
    }

    /// Returns at most `count` of these owners' exceptions that are in force at `now` and that `is_meant` accepts, after the
    /// cursor, and the next cursor if others may follow. The owners are in order, each with a value for `is_meant`.
    pub(crate) async fn page<'a, T>(
        &self,
        owners: impl Iterator<Item = (&'a str, T)>,
        is_meant: impl Fn(&T, &str, &Exception) -> bool,
        cursor: Option<&Cursor>,
        count: usize,
        now: Timestamp,
    ) -> (Vec<ExceptionChange>, Option<Cursor>) {
        /// Maximum number of exceptions that a page examines, listed or not.
        const MOST_LOOKED_AT: usize = 100_000;
        /// Number of them that are read from the index at a time, which waits for no longer.
        const AT_ONCE: usize = 1_000;
        let (mut page, mut looked_at) = (Vec::new(), 0);
        for (owner, of) in owners.filter(|(owner, _)| cursor.is_none_or(|cursor| *owner >= &*cursor.owner)) {
            let mut start = match cursor.filter(|cursor| &*cursor.owner == owner) {
                Some(cursor) => Excluded(cursor.clone()),
                None => Included(Cursor { owner: owner.into(), actor: "".into() }),
            };
            loop {
                let places: Vec<_> = {
                    let index = self.index.read();
                    let of_owner = index.range((start, Unbounded)).take_while(|place| &*place.owner == owner);
                    of_owner.take(AT_ONCE).cloned().collect()
                };
                for place in &places {
                    let found = self.find(owner, &place.actor, now);
                    let Some(value) = found.filter(|value| is_meant(&of, &place.actor, value)) else { continue };
                    let (owner, actor) = (owner.to_owned(), place.actor.to_string());
                    page.push(ExceptionChange { owner, actor, value: Some(value) });
                    if page.len() >= count {
                        return (page, Some(place.clone()));
                    }
                }
                looked_at += places.len();
                let Some(last) = places.into_iter().last() else { break };
                if looked_at >= MOST_LOOKED_AT {
                    return (page, Some(last));
                }
                // Hits on this thread do not wait for the whole page.
                yield_now().await;
                start = Excluded(last);
            }
        }
        (page, None)
    }
}

/// Number of counters. A tenth of them are in use with 100,000 entries, and six tenths with a million.
const COUNTERS: usize = 1 << 20;

/// The filter. From the first entry on, it takes one byte for each of its [`COUNTERS`].
#[derive(Debug, Default)]
pub struct CountingFilter(OnceLock<Box<[AtomicU8]>>);

impl CountingFilter {
    /// Returns whether there may be an entry with this hash.
    #[inline]
    pub fn may_contain(&self, hash: u64) -> bool {
        self.counter(hash).is_some_and(|counter| counter.load(Relaxed) > 0)
    }

    /// Adds an entry. Call this before the table has it.
    pub fn add(&self, hash: u64) {
        self.0.get_or_init(|| std::iter::repeat_with(AtomicU8::default).take(COUNTERS).collect());
        if let Some(counter) = self.counter(hash) {
            counter.update(Relaxed, Relaxed, |count| count.saturating_add(1));
        }
    }

    /// Removes an entry, which is no longer to be found.
    pub fn remove(&self, hash: u64) {
        if let Some(counter) = self.counter(hash) {
            // A full counter does not know the number of its entries anymore.
            counter.update(Relaxed, Relaxed, |count| if count == u8::MAX { count } else { count.saturating_sub(1) });
        }
    }

    /// Returns the counter of this hash. `None` if there has never been an entry.
    #[inline]
    fn counter(&self, hash: u64) -> Option<&AtomicU8> {
        self.0.get()?.get(hash as usize % COUNTERS)
    }
}

/// Maximum memory of the journal's changes (bytes): about 100,000 usual ones.
const MAX_JOURNAL_BYTES: usize = 8 << 20;
/// Memory of a change without the text of its actor (bytes).
const CHANGE_BYTES: usize = 64;

/// The journal of the latest changes of blocks, for clients that follow them.
#[derive(Debug)]
pub struct Journal {
    history: u64,
    latest: Mutex<Latest>,
}

#[derive(Debug, Default)]
struct Latest {
    /// The number of the last change.
    last: u64,
    /// The owners and actors of the changes up to the last one.
    changes: VecDeque<Cursor>,
    bytes: usize,
}

impl Default for Journal {
    fn default() -> Self {
        // Random, because otherwise the histories of two processes would look alike, and a client that follows one of them might
        // miss changes until it lists all blocks again.
        Self { history: std::hash::RandomState::new().hash_one(0), latest: Mutex::default() }
    }
}

impl Journal {
    /// Records a change, after it is in force.
    pub fn record(&self, change: Cursor) {
        let latest = &mut *self.latest.lock();
        latest.last += 1;
        latest.bytes += change_bytes(&change);
        latest.changes.push_back(change);
        while latest.bytes > MAX_JOURNAL_BYTES
            && let Some(oldest) = latest.changes.pop_front()
        {
            latest.bytes -= change_bytes(&oldest);
        }
    }

    /// Forgets all changes: clients have to list all blocks again. Call it after a change that concerns many of them.
    pub fn reset(&self) {
        let latest = &mut *self.latest.lock();
        *latest = Latest { last: latest.last + 1, ..Latest::default() };
    }

    /// Returns the sequence number of the last change.
    pub fn sequence(&self) -> String {
        self.text(self.latest.lock().last)
    }

    /// Returns the next `count` changes after a sequence number, each owner and actor once, and the sequence number of the last
    /// one. `None` if the changes after it are not known.
    pub(crate) fn after(&self, sequence: &str, count: usize) -> Option<(BTreeSet<Cursor>, String)> {
        let (history, number) = sequence.split_once('-')?;
        let number: u64 = number.parse().ok().filter(|_| u64::from_str_radix(history, 16) == Ok(self.history))?;
        let latest = self.latest.lock();
        let missing = usize::try_from(latest.last.checked_sub(number)?).ok()?;
        let known = latest.changes.len().checked_sub(missing)?;
        let found = latest.changes.iter().skip(known).take(count).cloned().collect();
        Some((found, self.text(number + missing.min(count) as u64)))
    }

    fn text(&self, number: u64) -> String {
        format!("{:016x}-{number}", self.history)
    }
}

fn change_bytes(change: &Cursor) -> usize {
    change.actor.len() + CHANGE_BYTES
}

/// An exception's owner and actor. In a listing, the next page continues after the last one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Cursor {
    pub owner: Arc<str>,
    pub actor: Arc<str>,
}

impl Cursor {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (owner, actor) = text.split_once(' ')?;
        Some(Self { owner: owner.replace("%20", " ").replace("%25", "%").into(), actor: actor.into() })
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Names of fields may have spaces.
        write!(f, "{} {}", self.owner.replace('%', "%25").replace(' ', "%20"), self.actor)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::tests::run;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_secs(seconds).unwrap()
    }

    /// Returns a change to a limit, or to a block or an allow whose reason says as much.
    fn change(owner: &str, actor: &str, value: Option<(u64, Option<u64>)>) -> ExceptionChange {
        let value = value.map(|(number, ends)| match Class::of(owner) {
            Class::Limits => Exception::limit(number, ends.map(at)),
            Class::Overrides => Exception::by_hand(Some(&number.to_string()), ends.map(at)),
        });
        ExceptionChange { owner: owner.into(), actor: actor.into(), value }
    }

    /// Returns the exceptions on all pages, of owners whose texts begin like this.
    fn all(exceptions: &Exceptions, beginning: &str, count: usize, now: Timestamp) -> Vec<ExceptionChange> {
        let (mut found, mut place) = (Vec::new(), None);
        let owners = exceptions.owners_in_use();
        loop {
            let of = owners.iter().filter(|owner| owner.starts_with(beginning)).map(|owner| (&**owner, ()));
            let (page, next) = run(exceptions.page(of, |(), _, _| true, place.as_ref(), count, now));
            assert!(page.len() <= count);
            found.extend(page);
            let Some(next) = next else { return found };
            let read = Cursor::parse(&next.to_string());
            assert_eq!(read.as_ref(), Some(&next));
            place = read;
        }
    }

    proptest! {
        #[test]
        fn agrees_with_a_plain_map(
            changes in prop::collection::vec(("limit:[ab]|block:[ab]|allow:a", "[a-d ]{0,2}", prop::option::of((0..9u64, prop::option::of(0..20u64)))), 0..60),
            now in 0..20u64, count in 1..9usize,
        ) {
            let exceptions = Exceptions::default();
            let mut model = BTreeMap::new();
            for (owner, actor, value) in &changes {
                let change = change(owner, actor, *value);
                exceptions.apply(&change, 1);
                match change.value.clone() {
                    Some(value) => model.insert((owner.clone(), actor.clone()), value),
                    None => model.remove(&(owner.clone(), actor.clone())),
                };
                for class in [Class::Limits, Class::Overrides] {
                    let expected = model.keys().filter(|(owner, _)| Class::of(owner) == class).count();
                    prop_assert_eq!((exceptions.len(class), exceptions.room(class).used()), (expected, expected));
                }
                prop_assert_eq!(exceptions.find_any(&change.owner, &change.actor), change.value);
            }
            prop_assert_eq!(exceptions.count(|owner| owner == "block:b"), model.keys().filter(|(owner, _)| owner == "block:b").count());
            let in_force: Vec<_> = model.iter().filter(|(_, value)| !is_over(value, at(now))).collect();
            for ((owner, actor), value) in &model {
                prop_assert_eq!(exceptions.find(owner, actor, at(now)), (!is_over(value, at(now))).then(|| value.clone()));
            }
            prop_assert_eq!(exceptions.find("limit:c", "a", at(0)), None);
            for of in ["", "block:", "limit:", "limit:a"] {
                let mut listed = all(&exceptions, of, count, at(now));
                listed.sort_by(|one, other| (&one.owner, &one.actor).cmp(&(&other.owner, &other.actor)));
                let expected = in_force.iter().filter(|((owner, _), _)| owner.starts_with(of));
                let expected = expected.map(|((owner, actor), value)| {
                    ExceptionChange { owner: owner.clone(), actor: actor.clone(), value: Some((*value).clone()) }
                });
                prop_assert_eq!(listed, expected.collect::<Vec<_>>());
            }
            let over = |class| model.iter().filter(|((owner, _), value)| Class::of(owner) == class && is_over(value, at(now))).count();
            let (limits, overrides) = (over(Class::Limits), over(Class::Overrides));
            let drop = |class, most| exceptions.drop_some(class, 0..SHARDS, most, is_forgotten, at(now)).len();
            prop_assert_eq!(drop(Some(Class::Limits), count), limits.min(count));
            prop_assert_eq!(drop(None, 60), limits - limits.min(count) + overrides);
            prop_assert_eq!(exceptions.count(|_| true), in_force.len());
        }
    }

    #[test]
    fn long_exceptions_count_as_several() {
        let exceptions = Exceptions::default();
        let long = "x".repeat(3 * USUAL_BYTES);
        for actor in ["a", &long, "b", &long] {
            exceptions.apply(&change("limit:r", actor, Some((5, Some(1)))), 1);
        }
        let used =
            || [Class::Limits, Class::Overrides].map(|class| (exceptions.len(class), exceptions.room(class).used()));
        assert_eq!(used(), [(3, 6), (0, 0)]);
        let block = Exception::by_hand(Some(&long), Some(at(1)));
        exceptions.apply(&ExceptionChange { value: Some(block), ..change("block:r", "a", None) }, 1);
        assert_eq!(used(), [(3, 6), (1, 4)]);
        exceptions.apply(&change("limit:r", "a", None), 1);
        assert_eq!(exceptions.drop_some(None, 0..SHARDS, 9, is_forgotten, at(1)).len(), 3);
        assert_eq!((used(), exceptions.index.read().len()), ([(0, 0); 2], 0));
    }

    #[test]
    fn listing_of_an_owner_begins_at_its_first_actor_and_ends_at_its_last() {
        let limits = Exceptions::default();
        for owner in ["limit:a", "limit:b", "limit:c"] {
            (0..2_500).for_each(|actor| limits.apply(&change(owner, &actor.to_string(), Some((5, None))), 1));
        }
        let listed = all(&limits, "limit:b", 999, at(0));
        assert!(listed.len() == 2_500 && listed.iter().all(|listed| listed.owner == "limit:b"));
        assert!(listed.is_sorted_by(|one, other| one.actor < other.actor));
        let first = |owner: &str| {
            let after = Cursor { owner: owner.into(), actor: "5".into() };
            let of_b = std::iter::once(("limit:b", ()));
            run(limits.page(of_b, |(), _, _| true, Some(&after), 1, at(0))).0.pop().map(|found| found.actor)
        };
        assert_eq!([first("limit:a"), first("limit:c")], [Some("0".to_owned()), None]);
    }

    #[test]
    fn limits_that_the_latest_reading_lacks_are_dropped() {
        let limits = Exceptions::default();
        for (actor, reading) in [("a", 1), ("b", 1), ("a", 2), ("c", 2)] {
            limits.apply(&change("limit:r", actor, Some((5, None))), reading);
        }
        limits.keep_read(2);
        let left = ["a", "b", "c"].map(|actor| limits.find("limit:r", actor, at(0)).is_some());
        assert_eq!((left, limits.len(Class::Limits)), ([true, false, true], 2));
    }

    proptest! {
        #[test]
        fn filter_never_denies_an_entry(changes in prop::collection::vec((prop::bool::ANY, 0..4u64, 0..3u64), 0..50)) {
            let (filter, mut entries) = (CountingFilter::default(), Vec::new());
            for (adds, low, high) in changes {
                // Hashes that differ in their high bits share a counter.
                let hash = low + high * COUNTERS as u64;
                if adds {
                    filter.add(hash);
                    entries.push(hash);
                } else if let Some(place) = entries.iter().position(|known| *known == hash) {
                    entries.swap_remove(place);
                    filter.remove(hash);
                }
                for low in 0..4 {
                    let is_there = entries.iter().any(|hash| hash % COUNTERS as u64 == low);
                    prop_assert_eq!(filter.may_contain(low), is_there);
                }
            }
        }
    }

    #[test]
    fn entry_is_found_while_another_of_its_counter_comes_and_goes() {
        let filter = CountingFilter::default();
        let (entry, other) = (7, 7 + COUNTERS as u64);
        filter.add(entry);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..100_000 {
                        filter.add(other);
                        filter.remove(other);
                    }
                });
            }
            for _ in 0..100_000 {
                assert!(filter.may_contain(entry));
            }
        });
    }

    #[test]
    fn full_counter_stays_full() {
        let filter = CountingFilter::default();
        assert!(!filter.may_contain(7));
        (0..300).for_each(|_| filter.add(7));
        (0..299).for_each(|_| filter.remove(7));
        assert!(filter.may_contain(7));
    }

    fn block_change(actor: &str) -> Cursor {
        Cursor::parse(&format!("block:r {actor}")).unwrap()
    }

    fn after(journal: &Journal, sequence: &str, count: usize) -> Option<(String, String)> {
        let (found, next) = journal.after(sequence, count)?;
        Some((found.iter().map(|change| &*change.actor).collect::<Vec<_>>().join(" "), next))
    }

    #[test]
    fn cursor_reads_back() {
        for owner in ["block:login", "block:*/a b%20c/32", "%25 "] {
            let cursor = Cursor { owner: owner.into(), actor: "x y %20".into() };
            assert_eq!(Cursor::parse(&cursor.to_string()), Some(cursor));
        }
    }

    #[test]
    fn changes_after_a_sequence_number_are_found_once_each() {
        let journal = Journal::default();
        let start = journal.sequence();
        ["a", "b", "a", "c"].iter().for_each(|actor| journal.record(block_change(actor)));
        let end = journal.sequence();
        assert_eq!(after(&journal, &start, 9).unwrap(), ("a b c".into(), end.clone()));
        let (found, next) = after(&journal, &start, 3).unwrap();
        assert_eq!(found, "a b");
        assert_eq!(after(&journal, &next, 3).unwrap(), ("c".into(), end.clone()));
        assert_eq!(after(&journal, &end, 3).unwrap(), (String::new(), end));
    }

    #[test]
    fn unknown_sequence_numbers_are_refused() {
        let journal = Journal::default();
        journal.record(block_change("a"));
        let known = journal.sequence();
        let (history, _) = known.split_once('-').unwrap();
        let others =
            [Journal::default().sequence(), format!("{history}-2"), format!("{history}-x"), history.to_owned()];
        for other in others {
            assert_eq!(after(&journal, &other, 9), None, "{other}");
        }
        journal.reset();
        assert_eq!(after(&journal, &known, 9), None, "all blocks may have changed");
        assert!(after(&journal, &journal.sequence(), 9).is_some());
    }

    #[test]
    fn memory_is_bounded() {
        let journal = Journal::default();
        let start = journal.sequence();
        let long = "x".repeat(4_096);
        (0..3_000).for_each(|_| journal.record(block_change(&long)));
        let latest = journal.latest.lock();
        assert!(
            latest.bytes <= MAX_JOURNAL_BYTES
                && latest.bytes == latest.changes.len() * change_bytes(&block_change(&long))
        );
        drop(latest);
        assert_eq!(after(&journal, &start, 9), None);
    }
}
