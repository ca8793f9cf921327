//! Limits of single actors in memory: the credits that an actor has in place of its rule's. Hits look them up by hash.
//! Stores keep them beyond the process.
//!
//! They belong to a rule's label. So they outlive a removed rule, and apply again to the next rule with its label.

use std::hash::BuildHasher;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use foldhash::fast::FixedState;
use hashbrown::hash_table::Entry;
use hashbrown::{HashMap, HashTable};
use parking_lot::RwLock;

use crate::clock::Timestamp;
use crate::store::{ActorLimit, LimitChange};

/// Number of shards, each with its own lock.
const SHARDS: usize = 1_024;

/// A filter for limits.
#[derive(Debug, Clone, Copy, Default)]
pub struct LimitFilter<'a> {
    /// The rule's label.
    pub rule: Option<&'a str>,
    /// The actor; `None` for the limits of all actors.
    pub actor: Option<&'a str>,
}

/// All limits of actors.
#[derive(Debug)]
pub struct ActorLimits {
    shards: Arc<Shards>,
    labels: RwLock<HashMap<String, Arc<LabelLimits>, FixedState>>,
}

/// The limits under one label.
#[derive(Debug)]
pub(in crate::limiter) struct LabelLimits {
    label: Box<str>,
    hasher: FixedState,
    len: AtomicUsize,
    shards: Arc<Shards>,
}

#[derive(Debug)]
struct Shards(Box<[RwLock<HashTable<Limit>>]>);

/// One limit.
#[derive(Debug)]
struct Limit {
    of: Arc<LabelLimits>,
    actor: Box<str>,
    limit: ActorLimit,
    /// Number of the latest complete reading that contained this limit.
    reading: u32,
}

impl Limit {
    fn is_of(&self, of: &LabelLimits, actor: &[u8]) -> bool {
        std::ptr::eq(&*self.of, of) && self.actor.as_bytes() == actor
    }

    fn change(&self) -> LimitChange {
        LimitChange { rule: self.of.label.to_string(), actor: self.actor.to_string(), limit: Some(self.limit) }
    }
}

fn is_over(limit: ActorLimit, now: Timestamp) -> bool {
    limit.expires.is_some_and(|expires| expires <= now)
}

impl Shards {
    fn of(&self, hash: u64) -> Option<&RwLock<HashTable<Limit>>> {
        // Hash tables use the lower bits.
        self.0.get(usize::try_from(hash >> 32).unwrap_or_default() % SHARDS)
    }
}

impl LabelLimits {
    /// Returns the limit that the actor has in place of the rule's.
    #[inline]
    pub(in crate::limiter) fn get(&self, actor: &[u8], now: Timestamp) -> Option<ActorLimit> {
        // Fast path: very few rules have limits of actors.
        if self.len.load(Relaxed) == 0 { None } else { self.find(actor).filter(|limit| !is_over(*limit, now)) }
    }

    /// Returns the actor's limit, even if it has expired.
    fn find(&self, actor: &[u8]) -> Option<ActorLimit> {
        let hash = self.hash(actor);
        let shard = self.shards.of(hash)?.read();
        Some(shard.find(hash, |known| known.is_of(self, actor))?.limit)
    }

    fn hash(&self, actor: &[u8]) -> u64 {
        self.hasher.hash_one(actor)
    }
}

impl Default for ActorLimits {
    fn default() -> Self {
        let shards = Shards((0..SHARDS).map(|_| RwLock::default()).collect());
        Self { shards: Arc::new(shards), labels: RwLock::default() }
    }
}

impl ActorLimits {
    /// All shards.
    pub(in crate::limiter) const ALL: Range<usize> = 0..SHARDS;

    /// Returns the number of limits under labels that `is_meant` accepts. Expired limits count until they are dropped.
    pub(in crate::limiter) fn count(&self, is_meant: impl Fn(&str) -> bool) -> usize {
        let labels = self.labels.read();
        labels.values().filter(|of| is_meant(&of.label)).map(|of| of.len.load(Relaxed)).sum()
    }

    /// Returns the number of all limits.
    pub(in crate::limiter) fn len(&self) -> usize {
        self.count(|_| true)
    }

    /// Returns whether there is a limit under this label.
    pub(in crate::limiter) fn has_label(&self, label: &str) -> bool {
        self.labels.read().get(label).is_some_and(|of| of.len.load(Relaxed) > 0)
    }

    /// Returns the actor's limit under this label, if it is in force.
    pub(in crate::limiter) fn find(&self, label: &str, actor: &str, now: Timestamp) -> Option<ActorLimit> {
        self.labels.read().get(label)?.get(actor.as_bytes(), now)
    }

    /// Returns whether the change is about a limit in memory, in force or expired.
    pub(in crate::limiter) fn has(&self, change: &LimitChange) -> bool {
        self.labels.read().get(&change.rule).is_some_and(|of| of.find(change.actor.as_bytes()).is_some())
    }

    /// Returns the limits under this label.
    pub(in crate::limiter) fn of_label(&self, label: &str) -> Arc<LabelLimits> {
        if let Some(known) = self.labels.read().get(label) {
            return Arc::clone(known);
        }
        let seed = FixedState::default().hash_one(label);
        let new = || LabelLimits {
            label: label.into(),
            hasher: FixedState::with_seed(seed),
            len: AtomicUsize::new(0),
            shards: Arc::clone(&self.shards),
        };
        Arc::clone(self.labels.write().entry_ref(label).or_insert_with(|| Arc::new(new())))
    }

    /// Puts the change in force. `reading` is the number of the latest reading of all limits.
    pub(in crate::limiter) fn apply(&self, change: &LimitChange, reading: u32) {
        let of = self.of_label(&change.rule);
        let actor = change.actor.as_bytes();
        let hash = of.hash(actor);
        let Some(shard) = self.shards.of(hash) else { return };
        let mut shard = shard.write();
        let entry = shard.entry(hash, |known| known.is_of(&of, actor), |known| known.of.hash(known.actor.as_bytes()));
        match (entry, change.limit) {
            (Entry::Occupied(mut known), Some(limit)) => {
                let known = known.get_mut();
                (known.limit, known.reading) = (limit, reading);
            }
            (Entry::Occupied(known), None) => {
                known.remove();
                of.len.fetch_sub(1, Relaxed);
            }
            (Entry::Vacant(place), Some(limit)) => {
                of.len.fetch_add(1, Relaxed);
                place.insert(Limit { of, actor: change.actor.as_str().into(), limit, reading });
            }
            (Entry::Vacant(_), None) => {}
        }
    }

    /// Drops every limit that was not in the complete reading with this number.
    pub(in crate::limiter) fn keep_read(&self, reading: u32) {
        self.retain(Self::ALL, |limit| limit.reading == reading);
    }

    /// Drops at most `most` of the expired limits in these shards, and returns them.
    pub(in crate::limiter) fn drop_expired(
        &self,
        shards: Range<usize>,
        most: usize,
        now: Timestamp,
    ) -> Vec<LimitChange> {
        let mut dropped = Vec::new();
        self.retain(shards, |limit| {
            let stays = dropped.len() >= most || !is_over(limit.limit, now);
            if !stays {
                dropped.push(LimitChange { limit: None, ..limit.change() });
            }
            stays
        });
        dropped
    }

    fn retain(&self, shards: Range<usize>, mut stays: impl FnMut(&Limit) -> bool) {
        for shard in self.shards.0.get(shards).unwrap_or_default() {
            shard.write().retain(|limit| {
                let stays = stays(limit);
                if !stays {
                    limit.of.len.fetch_sub(1, Relaxed);
                }
                stays
            });
        }
    }

    /// Returns the next sixteenth of the shards. `after` is the end of the previous range.
    pub(in crate::limiter) fn next_shards(after: usize) -> Range<usize> {
        let start = after % SHARDS;
        start..(start + SHARDS / 16).min(SHARDS)
    }

    /// Returns at most `count` of the limits that are in force at `now` and in scope by their label and actor, from the
    /// cursor on, and the next cursor if others follow.
    pub(in crate::limiter) fn page(
        &self,
        of: LimitFilter<'_>,
        is_in_scope: impl Fn(&str, &str) -> bool,
        cursor: Option<&Cursor>,
        count: usize,
        now: Timestamp,
    ) -> (Vec<LimitChange>, Option<Cursor>) {
        /// Maximum number of limits that a page examines, listed or not.
        const MOST_LOOKED_AT: usize = 100_000;
        let mut looked_at = 0;
        let first = cursor.map_or(0, |cursor| cursor.shard);
        let mut page = Vec::new();
        for (shard, limits) in (first..).zip(self.shards.0.get(first..).unwrap_or_default()) {
            if looked_at >= MOST_LOOKED_AT {
                return (page, Some(Cursor { shard, after: None }));
            }
            let after = cursor.filter(|cursor| cursor.shard == shard).and_then(|cursor| cursor.after.as_ref());
            let is_meant = |limit: &&Limit| {
                let is_later = after.is_none_or(|(rule, actor)| (&*limit.of.label, &*limit.actor) > (rule, actor));
                is_later
                    && !is_over(limit.limit, now)
                    && of.rule.is_none_or(|label| label == &*limit.of.label)
                    && of.actor.is_none_or(|actor| actor == &*limit.actor)
                    && is_in_scope(&limit.of.label, &limit.actor)
            };
            let limits = limits.read();
            looked_at += limits.len();
            let mut found: Vec<_> = limits.iter().filter(is_meant).map(Limit::change).collect();
            drop(limits);
            found.sort_unstable_by(|one, other| (&one.rule, &one.actor).cmp(&(&other.rule, &other.actor)));
            let room = count.saturating_sub(page.len());
            let is_cut = found.len() > room;
            found.truncate(room);
            page.extend(found);
            if is_cut || page.len() == count {
                let after = page.last().map(|last| (last.rule.clone(), last.actor.clone()));
                return (page, Some(Cursor { shard, after }));
            }
        }
        (page, None)
    }
}

/// A position in a listing of limits. The next page continues there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::limiter) struct Cursor {
    shard: usize,
    /// The label and the actor of the last listed limit of the shard.
    after: Option<(String, String)>,
}

impl Cursor {
    pub(in crate::limiter) fn parse(text: &str) -> Option<Self> {
        let mut words = text.splitn(3, ' ');
        let shard = words.next()?.parse().ok()?;
        let after = words.next().map(|rule| (rule.to_owned(), words.next().unwrap_or_default().to_owned()));
        Some(Self { shard, after })
    }
}

impl std::fmt::Display for Cursor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.after {
            None => write!(f, "{}", self.shard),
            Some((rule, actor)) => write!(f, "{} {rule} {actor}", self.shard),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use proptest::prelude::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_secs(seconds).unwrap()
    }

    fn change(rule: &str, actor: &str, limit: Option<(u64, Option<u64>)>) -> LimitChange {
        let limit = limit.map(|(credits, ends)| ActorLimit { credits, expires: ends.map(at) });
        LimitChange { rule: rule.into(), actor: actor.into(), limit }
    }

    fn all(limits: &ActorLimits, rule: Option<&str>, count: usize, now: Timestamp) -> Vec<LimitChange> {
        let (mut found, mut place) = (Vec::new(), None);
        loop {
            let (page, next) = limits.page(LimitFilter { rule, actor: None }, |_, _| true, place.as_ref(), count, now);
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
            let limits = ActorLimits::default();
            let mut model = BTreeMap::new();
            for (rule, actor, limit) in &changes {
                let change = change(rule, actor, *limit);
                limits.apply(&change, 1);
                match change.limit {
                    Some(limit) => model.insert((rule.clone(), actor.clone()), limit),
                    None => model.remove(&(rule.clone(), actor.clone())),
                };
                prop_assert_eq!(limits.len(), model.len());
                prop_assert_eq!(limits.has(&change), change.limit.is_some());
            }
            prop_assert_eq!(limits.count(|label| label == "b"), model.keys().filter(|(rule, _)| rule == "b").count());
            let in_force: Vec<_> = model.iter().filter(|(_, limit)| !is_over(**limit, at(now))).collect();
            for ((rule, actor), limit) in &model {
                prop_assert_eq!(limits.find(rule, actor, at(now)), (!is_over(*limit, at(now))).then_some(*limit));
            }
            prop_assert_eq!(limits.find("c", "a", at(0)), None);
            let mut listed = all(&limits, None, count, at(now));
            listed.sort_by(|one, other| (&one.rule, &one.actor).cmp(&(&other.rule, &other.actor)));
            let told = |((rule, actor), limit): (&(String, String), &ActorLimit)| {
                LimitChange { rule: rule.clone(), actor: actor.clone(), limit: Some(*limit) }
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
    fn limits_that_the_latest_reading_lacks_are_dropped() {
        let limits = ActorLimits::default();
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
            let shards = ActorLimits::next_shards(after);
            after = shards.end;
            seen.extend(shards);
        }
        assert_eq!(seen, (0..SHARDS).collect::<Vec<_>>());
        assert_eq!(ActorLimits::next_shards(SHARDS).start, 0);
    }
}
