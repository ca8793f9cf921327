//! Exceptions for single actors in memory, such as the credits that an actor has in place of its rule's. Hits look them
//! up by hash, and listings read an index in the order of their names. Stores keep them beyond the process.
//!
//! They belong to an owner, such as a rule's label. So they outlive a removed rule, and apply again to the next rule with
//! its label.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::hash::{BuildHasher, Hasher};
use std::ops::Bound::{Excluded, Included, Unbounded};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};

use foldhash::fast::{FixedState, RandomState};
use hashbrown::hash_table::Entry;
use hashbrown::{HashMap, HashTable};
use parking_lot::RwLock;

use super::filter::CountingFilter;
use crate::clock::Timestamp;
use crate::store::{Exception, ExceptionChange};

/// Number of shards, each with its own lock.
const SHARDS: usize = 1_024;
/// An exception whose actor and other texts are longer counts as several (bytes).
const USUAL_BYTES: usize = 512;

/// A filter for exceptions.
#[derive(Debug, Clone, Copy, Default)]
pub struct ExceptionFilter<'a> {
    /// The owner, such as the rule's label.
    pub owner: Option<&'a str>,
    /// The actor; `None` for the exceptions of all actors.
    pub actor: Option<&'a str>,
}

/// Turns the text of an actor in stores into the bytes for look-ups by requests.
pub(in crate::limiter) type Sought = fn(&str) -> Cow<'_, [u8]>;

/// All exceptions of a register. Actors are given as stores keep them, except where requests look them up.
#[derive(Debug)]
pub struct Exceptions<E> {
    shards: Arc<Shards<E>>,
    owners: RwLock<Owners<E>>,
    /// The owner and the actor of each exception.
    index: RwLock<BTreeSet<Cursor>>,
    /// Number of exceptions, weighted by their length.
    weight: AtomicUsize,
    owners_revision: AtomicU64,
    revision: AtomicU64,
    /// Returns how requests look up the actors of an owner.
    sought: fn(&str) -> Sought,
}

/// The exceptions of one owner.
#[derive(Debug)]
pub(in crate::limiter) struct OwnerExceptions<E> {
    owner: Arc<str>,
    /// Clients choose the names of actors that rules block. The seed is random, so that they cannot choose names that collide.
    hasher: RandomState,
    len: AtomicUsize,
    shards: Arc<Shards<E>>,
    sought: Sought,
    /// Whether it stays without exceptions, because a policy has it.
    is_kept: AtomicBool,
}

type Owners<E> = HashMap<String, Arc<OwnerExceptions<E>>, FixedState>;

/// The exceptions of all owners, by actor.
#[derive(Debug)]
struct Shards<E> {
    tables: [RwLock<HashTable<Known<E>>>; SHARDS],
    /// Chooses the shard. Random, so that clients cannot choose names that share one.
    hasher: RandomState,
    /// The hashes of all exceptions.
    filter: CountingFilter,
}

/// One exception.
#[derive(Debug)]
struct Known<E> {
    of: Arc<OwnerExceptions<E>>,
    actor: Arc<str>,
    /// The hash of the bytes for look-ups by requests.
    hash: u64,
    value: E,
    /// Number of the latest complete reading that contained this exception.
    reading: u32,
}

impl<E: Exception> Known<E> {
    /// Returns whether requests look it up by these bytes, which have this hash.
    #[inline]
    fn is_of(&self, of: &OwnerExceptions<E>, hash: u64, actor: &[u8]) -> bool {
        // The hashes are compared first, because the bytes may have to be written.
        self.hash == hash && std::ptr::eq(&*self.of, of) && *(of.sought)(&self.actor) == *actor
    }

    fn change(&self) -> ExceptionChange<E> {
        ExceptionChange {
            owner: self.of.owner.to_string(),
            actor: self.actor.to_string(),
            value: Some(self.value.clone()),
        }
    }

    fn place(&self) -> Cursor {
        Cursor { owner: Arc::clone(&self.of.owner), actor: Arc::clone(&self.actor) }
    }
}

/// Returns the number of exceptions that this one counts as.
pub(in crate::limiter) fn weight(actor: &str, exception: &impl Exception) -> usize {
    (actor.len() + exception.text_bytes()) / USUAL_BYTES + 1
}

/// Returns whether the exception is no longer in force.
fn is_over(exception: &impl Exception, now: Timestamp) -> bool {
    exception.ends().is_some_and(|ends| ends <= now)
}

/// Returns whether the exception need not be remembered.
fn is_forgotten(exception: &impl Exception, now: Timestamp) -> bool {
    exception.expires().is_some_and(|expires| expires <= now)
}

/// Returns the hash of an actor.
#[inline]
fn hash(hasher: &impl BuildHasher, actor: &[u8]) -> u64 {
    // Fewer instructions than `hash_one`, which hashes the length, too.
    let mut hasher = hasher.build_hasher();
    hasher.write(actor);
    hasher.finish()
}

impl<E> Shards<E> {
    /// Returns the actor's shard.
    #[inline]
    fn of(&self, actor: &[u8]) -> Option<&RwLock<HashTable<Known<E>>>> {
        self.tables.get(hash(&self.hasher, actor) as usize % SHARDS)
    }
}

impl<E: Exception> OwnerExceptions<E> {
    /// Returns the owner.
    pub(in crate::limiter) fn owner(&self) -> &str {
        &self.owner
    }

    /// Returns whether there are any exceptions, in force or expired.
    #[inline]
    pub(in crate::limiter) fn is_empty(&self) -> bool {
        self.len.load(Relaxed) == 0
    }

    /// Returns the exception for the actor that a request names.
    #[inline]
    pub(in crate::limiter) fn get(&self, actor: &[u8], now: Timestamp) -> Option<E> {
        // Fast path: very few rules have exceptions.
        if self.is_empty() { None } else { self.find(actor).filter(|exception| !is_over(exception, now)) }
    }

    /// Returns whether there is an exception for the actor that a request names, in force or expired.
    // Inlined, because a call costs as much as half of the rest.
    #[inline(always)]
    pub(in crate::limiter) fn contains(&self, actor: &[u8]) -> bool {
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
    fn find(&self, actor: &[u8]) -> Option<E> {
        let hash = hash(&self.hasher, actor);
        if !self.shards.filter.may_contain(hash) {
            return None;
        }
        let shard = self.shards.of(actor)?.read();
        Some(shard.find(hash, |known| known.is_of(self, hash, actor))?.value.clone())
    }

    fn find_stored(&self, actor: &str) -> Option<E> {
        self.find(&(self.sought)(actor))
    }

    /// Counts an exception with this hash, before it is there.
    fn count_added(&self, hash: u64) {
        self.shards.filter.add(hash);
        self.len.fetch_add(1, Relaxed);
    }

    /// Counts a removed exception. Returns whether it was the last one.
    fn count_removed(&self, hash: u64) -> bool {
        self.shards.filter.remove(hash);
        self.len.fetch_sub(1, Relaxed) == 1
    }
}

impl<E> Default for Exceptions<E> {
    fn default() -> Self {
        Self::new(|_| |actor| actor.as_bytes().into())
    }
}

impl<E> Exceptions<E> {
    /// Creates a register without exceptions. `sought` returns how requests look up the actors of an owner.
    pub(in crate::limiter) fn new(sought: fn(&str) -> Sought) -> Self {
        let tables = std::array::from_fn(|_| RwLock::default());
        Self {
            shards: Arc::new(Shards { tables, hasher: RandomState::default(), filter: CountingFilter::default() }),
            owners: RwLock::default(),
            index: RwLock::default(),
            weight: AtomicUsize::new(0),
            owners_revision: AtomicU64::new(0),
            revision: AtomicU64::new(0),
            sought,
        }
    }
}

impl<E: Exception> Exceptions<E> {
    /// All shards.
    pub(in crate::limiter) const ALL: Range<usize> = 0..SHARDS;

    /// Returns the number of exceptions of owners that `is_meant` accepts. Expired ones count until they are dropped.
    pub(in crate::limiter) fn count(&self, is_meant: impl Fn(&str) -> bool) -> usize {
        let owners = self.owners.read();
        owners.values().filter(|of| !of.is_empty() && is_meant(&of.owner)).map(|of| of.len.load(Relaxed)).sum()
    }

    /// Returns the number of all exceptions.
    pub(in crate::limiter) fn len(&self) -> usize {
        self.count(|_| true)
    }

    /// Returns the number of exceptions. Long ones count as several.
    pub(in crate::limiter) fn weight(&self) -> usize {
        self.weight.load(Relaxed)
    }

    /// Returns whether the owner has exceptions.
    pub(in crate::limiter) fn has_owner(&self, owner: &str) -> bool {
        self.owners.read().get(owner).is_some_and(|of| !of.is_empty())
    }

    /// Returns the owner's exception for the actor, if it is in force.
    pub(in crate::limiter) fn find(&self, owner: &str, actor: &str, now: Timestamp) -> Option<E> {
        let found = self.owners.read().get(owner)?.find_stored(actor);
        found.filter(|exception| !is_over(exception, now))
    }

    /// Returns the owner's exception for the actor, if it is in force or remembered.
    pub(in crate::limiter) fn find_remembered(&self, owner: &str, actor: &str, now: Timestamp) -> Option<E> {
        let found = self.owners.read().get(owner)?.find_stored(actor);
        found.filter(|exception| !is_forgotten(exception, now))
    }

    /// Returns whether the change is about an exception in memory, in force or expired.
    pub(in crate::limiter) fn has(&self, change: &ExceptionChange<E>) -> bool {
        self.owners.read().get(&change.owner).is_some_and(|of| of.find_stored(&change.actor).is_some())
    }

    /// Returns a number that changes whenever exceptions change.
    pub(in crate::limiter) fn revision(&self) -> u64 {
        self.revision.load(Acquire)
    }

    /// Counts a change, after it is in force.
    pub(in crate::limiter) fn count_change(&self) {
        self.revision.fetch_add(1, Release);
    }

    /// Returns a number that changes whenever owners come or go.
    pub(in crate::limiter) fn owners_revision(&self) -> u64 {
        self.owners_revision.load(Acquire)
    }

    /// Returns all owners with exceptions, and those that are kept.
    pub(in crate::limiter) fn all_owners(&self) -> Vec<Arc<OwnerExceptions<E>>> {
        self.owners.read().values().cloned().collect()
    }

    /// Returns the owner's exceptions, including later ones.
    pub(in crate::limiter) fn of_owner(&self, owner: &str) -> Arc<OwnerExceptions<E>> {
        let of = self.of_owner_among(&mut self.owners.write(), owner);
        of.is_kept.store(true, Relaxed);
        of
    }

    fn of_owner_among(&self, owners: &mut Owners<E>, owner: &str) -> Arc<OwnerExceptions<E>> {
        let new = || OwnerExceptions {
            owner: owner.into(),
            hasher: RandomState::default(),
            len: AtomicUsize::new(0),
            shards: Arc::clone(&self.shards),
            sought: (self.sought)(owner),
            is_kept: AtomicBool::new(false),
        };
        let of = owners.entry_ref(owner).or_insert_with(|| {
            self.owners_revision.fetch_add(1, Release);
            Arc::new(new())
        });
        Arc::clone(of)
    }

    /// Drops an owner without exceptions, unless it is kept. So the names of fields in blocks of all rules do not pile up.
    fn drop_if_empty(&self, owners: &mut Owners<E>, of: &Arc<OwnerExceptions<E>>) {
        let is_in_use = |known: &Arc<_>| !Arc::ptr_eq(known, of) || of.is_kept.load(Relaxed) || !of.is_empty();
        if !owners.get(&*of.owner).is_none_or(is_in_use) {
            owners.remove(&*of.owner);
            self.owners_revision.fetch_add(1, Release);
        }
    }

    /// Puts the change in force. `reading` is the number of the latest reading of all exceptions.
    pub(in crate::limiter) fn apply(&self, change: &ExceptionChange<E>, reading: u32) {
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
        let is_same = |known: &Known<E>| known.is_of(&of, hash, &sought);
        let entry = shard.entry(hash, is_same, |known| known.hash);
        match (entry, change.value.clone()) {
            (Entry::Occupied(mut known), Some(value)) => {
                let known = known.get_mut();
                self.weight.fetch_add(weight(&known.actor, &value), Relaxed);
                self.weight.fetch_sub(weight(&known.actor, &known.value), Relaxed);
                (known.value, known.reading) = (value, reading);
            }
            (Entry::Occupied(known), None) => {
                let (known, _) = known.remove();
                self.drop_from_index(&known);
                of.count_removed(hash);
            }
            (Entry::Vacant(place), Some(value)) => {
                of.count_added(hash);
                let of = Arc::clone(&of);
                let known = Known { of, actor: change.actor.as_str().into(), hash, value, reading };
                self.weight.fetch_add(weight(&known.actor, &known.value), Relaxed);
                self.index.write().insert(known.place());
                place.insert(known);
            }
            (Entry::Vacant(_), None) => {}
        }
        drop(shard);
        self.drop_if_empty(&mut owners, &of);
        drop(owners);
        self.count_change();
    }

    fn drop_from_index(&self, known: &Known<E>) {
        self.weight.fetch_sub(weight(&known.actor, &known.value), Relaxed);
        self.index.write().remove(&known.place());
    }

    /// Drops every exception that was not in the complete reading with this number.
    pub(in crate::limiter) fn keep_read(&self, reading: u32) {
        self.retain(Self::ALL, |known| known.reading == reading);
        self.count_change();
    }

    /// Drops at most `most` of the expired exceptions in these shards, and returns them.
    pub(in crate::limiter) fn drop_expired(
        &self,
        shards: Range<usize>,
        most: usize,
        now: Timestamp,
    ) -> Vec<ExceptionChange<E>> {
        self.drop_some(shards, most, |exception| is_forgotten(exception, now))
    }

    /// Drops at most `most` of the exceptions in these shards that are no longer in force, and returns them.
    pub(in crate::limiter) fn drop_ended(
        &self,
        shards: Range<usize>,
        most: usize,
        now: Timestamp,
    ) -> Vec<ExceptionChange<E>> {
        self.drop_some(shards, most, |exception| is_over(exception, now))
    }

    fn drop_some(&self, shards: Range<usize>, most: usize, is_meant: impl Fn(&E) -> bool) -> Vec<ExceptionChange<E>> {
        let mut dropped = Vec::new();
        self.retain(shards, |known| {
            let stays = dropped.len() >= most || !is_meant(&known.value);
            if !stays {
                dropped.push(ExceptionChange { value: None, ..known.change() });
            }
            stays
        });
        dropped
    }

    fn retain(&self, shards: Range<usize>, mut stays: impl FnMut(&Known<E>) -> bool) {
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

    /// Returns the next sixteenth of the shards. `after` is the end of the previous range.
    pub(in crate::limiter) fn next_shards(after: usize) -> Range<usize> {
        let start = after % SHARDS;
        start..(start + SHARDS / 16).min(SHARDS)
    }

    /// Returns at most `count` of the exceptions that are in force at `now` and in scope by their owner and actor, after the
    /// cursor, and the next cursor if others may follow.
    pub(in crate::limiter) fn page(
        &self,
        of: ExceptionFilter<'_>,
        is_in_scope: impl Fn(&str, &str) -> bool,
        cursor: Option<&Cursor>,
        count: usize,
        now: Timestamp,
    ) -> (Vec<ExceptionChange<E>>, Option<Cursor>) {
        /// Maximum number of exceptions that a page examines, listed or not.
        const MOST_LOOKED_AT: usize = 100_000;
        /// Number of them that are read from the index at a time, which waits for no longer.
        const AT_ONCE: usize = 1_000;
        let first = Cursor { owner: of.owner.unwrap_or_default().into(), actor: "".into() };
        let mut start = match cursor {
            Some(cursor) if *cursor >= first => Excluded(cursor.clone()),
            _ => Included(first),
        };
        let (mut page, mut looked_at) = (Vec::new(), 0);
        loop {
            let places: Vec<_> = self.index.read().range((start, Unbounded)).take(AT_ONCE).cloned().collect();
            for place in &places {
                if of.owner.is_some_and(|owner| *owner != *place.owner) {
                    return (page, None);
                }
                let is_meant =
                    of.actor.is_none_or(|actor| *actor == *place.actor) && is_in_scope(&place.owner, &place.actor);
                let Some(value) = is_meant.then(|| self.find(&place.owner, &place.actor, now)).flatten() else {
                    continue;
                };
                page.push(ExceptionChange {
                    owner: place.owner.to_string(),
                    actor: place.actor.to_string(),
                    value: Some(value),
                });
                if page.len() >= count {
                    return (page, Some(place.clone()));
                }
            }
            looked_at += places.len();
            match places.into_iter().last() {
                Some(last) if looked_at >= MOST_LOOKED_AT => return (page, Some(last)),
                Some(last) => start = Excluded(last),
                None => return (page, None),
            }
        }
    }
}

/// A position in a listing of exceptions: the owner and the actor of the last one. The next page continues there.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::limiter) struct Cursor {
    owner: Arc<str>,
    actor: Arc<str>,
}

impl Cursor {
    pub(in crate::limiter) fn parse(text: &str) -> Option<Self> {
        let (owner, actor) = text.split_once(' ')?;
        Some(Self { owner: owner.replace("%20", " ").replace("%25", "%").into(), actor: actor.into() })
    }
}

impl std::fmt::Display for Cursor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Names of fields may have spaces.
        write!(f, "{} {}", self.owner.replace('%', "%25").replace(' ', "%20"), self.actor)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::store::ActorLimit;
    use proptest::prelude::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_secs(seconds).unwrap()
    }

    fn change(rule: &str, actor: &str, limit: Option<(u64, Option<u64>)>) -> ExceptionChange<ActorLimit> {
        let value = limit.map(|(credits, ends)| ActorLimit { credits, expires: ends.map(at) });
        ExceptionChange { owner: rule.into(), actor: actor.into(), value }
    }

    fn all(
        limits: &Exceptions<ActorLimit>,
        owner: Option<&str>,
        count: usize,
        now: Timestamp,
    ) -> Vec<ExceptionChange<ActorLimit>> {
        let (mut found, mut place) = (Vec::new(), None);
        loop {
            let (page, next) =
                limits.page(ExceptionFilter { owner, actor: None }, |_, _| true, place.as_ref(), count, now);
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
            changes in prop::collection::vec(("[ab]", "[a-d ]{0,2}", prop::option::of((0..9u64, prop::option::of(0..20u64)))), 0..60),
            now in 0..20u64, count in 1..9usize,
        ) {
            let limits = Exceptions::default();
            let mut model = BTreeMap::new();
            for (rule, actor, limit) in &changes {
                let change = change(rule, actor, *limit);
                limits.apply(&change, 1);
                match change.value {
                    Some(limit) => model.insert((rule.clone(), actor.clone()), limit),
                    None => model.remove(&(rule.clone(), actor.clone())),
                };
                prop_assert_eq!(limits.len(), model.len());
                prop_assert_eq!(limits.has(&change), change.value.is_some());
            }
            prop_assert_eq!(limits.count(|label| label == "b"), model.keys().filter(|(rule, _)| rule == "b").count());
            let in_force: Vec<_> = model.iter().filter(|(_, limit)| !is_over(*limit, at(now))).collect();
            for ((rule, actor), limit) in &model {
                prop_assert_eq!(limits.find(rule, actor, at(now)), (!is_over(limit, at(now))).then_some(*limit));
            }
            prop_assert_eq!(limits.find("c", "a", at(0)), None);
            let mut listed = all(&limits, None, count, at(now));
            listed.sort_by(|one, other| (&one.owner, &one.actor).cmp(&(&other.owner, &other.actor)));
            let told = |((rule, actor), limit): (&(String, String), &ActorLimit)| {
                ExceptionChange { owner: rule.clone(), actor: actor.clone(), value: Some(*limit) }
            };
            prop_assert_eq!(&listed, &in_force.iter().map(|kept| told(*kept)).collect::<Vec<_>>());
            prop_assert_eq!(all(&limits, Some("a"), count, at(now)).len(), in_force.iter().filter(|((rule, _), _)| rule == "a").count());
            let over = model.len() - in_force.len();
            prop_assert_eq!(limits.drop_expired(0..SHARDS, count, at(now)).len(), over.min(count));
            prop_assert_eq!(limits.drop_expired(0..SHARDS, 60, at(now)).len(), over - over.min(count));
            prop_assert_eq!(limits.len(), in_force.len());
        }
    }

    #[test]
    fn cursor_reads_back() {
        for owner in ["block:login", "block:*/a b%20c/32", "%25 "] {
            let cursor = Cursor { owner: owner.into(), actor: "x y %20".into() };
            assert_eq!(Cursor::parse(&cursor.to_string()), Some(cursor));
        }
    }

    #[test]
    fn long_exceptions_count_as_several() {
        let limits = Exceptions::default();
        let long = "x".repeat(3 * USUAL_BYTES);
        for actor in ["a", &long, "b", &long] {
            limits.apply(&change("r", actor, Some((5, Some(1)))), 1);
        }
        assert_eq!((limits.len(), limits.weight()), (3, 6));
        limits.apply(&change("r", "a", None), 1);
        assert_eq!(limits.drop_expired(0..SHARDS, 9, at(1)).len(), 2);
        assert_eq!((limits.len(), limits.weight(), limits.index.read().len()), (0, 0, 0));
    }

    #[test]
    fn listing_of_an_owner_begins_at_its_first_actor_and_ends_at_its_last() {
        let limits = Exceptions::default();
        for owner in ["a", "b", "c"] {
            (0..2_500).for_each(|actor| limits.apply(&change(owner, &actor.to_string(), Some((5, None))), 1));
        }
        let listed = all(&limits, Some("b"), 999, at(0));
        assert!(listed.len() == 2_500 && listed.iter().all(|listed| listed.owner == "b"));
        assert!(listed.is_sorted_by(|one, other| one.actor < other.actor));
        let of_b = ExceptionFilter { owner: Some("b"), actor: None };
        let after = |owner: &str| Cursor { owner: owner.into(), actor: "5".into() };
        let first = |cursor| limits.page(of_b, |_, _| true, Some(cursor), 1, at(0)).0.pop().map(|found| found.actor);
        assert_eq!([first(&after("a")), first(&after("c"))], [Some("0".to_owned()), None]);
    }

    #[test]
    fn limits_that_the_latest_reading_lacks_are_dropped() {
        let limits = Exceptions::default();
        for (actor, reading) in [("a", 1), ("b", 1), ("a", 2), ("c", 2)] {
            limits.apply(&change("r", actor, Some((5, None))), reading);
        }
        limits.keep_read(2);
        let left = ["a", "b", "c"].map(|actor| limits.find("r", actor, at(0)).is_some());
        assert_eq!((left, limits.len()), ([true, false, true], 2));
    }

    #[test]
    fn shards_are_searched_in_turn() {
        let mut seen = Vec::new();
        let mut after = 0;
        for _ in 0..16 {
            let shards = Exceptions::<ActorLimit>::next_shards(after);
            after = shards.end;
            seen.extend(shards);
        }
        assert_eq!(seen, (0..SHARDS).collect::<Vec<_>>());
        assert_eq!(Exceptions::<ActorLimit>::next_shards(SHARDS).start, 0);
    }
}
