//! Limits of single actors in memory: which credits an actor has in place of its rule's. Hits look here, by hash; what keeps
//! them beyond the process, and who changes them, is not here.
//!
//! They belong to a rule's label, so they outlive a rule that is removed, and are in force again with the next one of that
//! label.

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

/// Parts of the memory, each behind a lock of its own.
const SHARDS: usize = 1_024;

/// A filter for listed limits.
#[derive(Debug, Clone, Copy, Default)]
pub struct ListedLimits<'a> {
    /// The rule's label.
    pub rule: Option<&'a str>,
    pub actor: Option<&'a str>,
}

/// All limits of actors.
#[derive(Debug)]
pub struct ActorLimits {
    shards: Arc<Shards>,
    labels: RwLock<HashMap<String, Arc<LabelLimits>, FixedState>>,
    len: AtomicUsize,
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
struct Shards(Box<[RwLock<HashTable<Kept>>]>);

/// One limit.
#[derive(Debug)]
struct Kept {
    of: Arc<LabelLimits>,
    actor: Box<str>,
    limit: ActorLimit,
    /// When the limits were last told from the start, before this one was told: those that were not told again are gone.
    told: u32,
}

impl Kept {
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
    fn of(&self, hash: u64) -> Option<&RwLock<HashTable<Kept>>> {
        // Tables use the lower bits.
        let place = usize::try_from(hash >> 32).unwrap_or_default() % SHARDS;
        self.0.get(place)
    }
}

impl LabelLimits {
    /// The limit that the actor has in place of the rule's.
    #[inline]
    pub(in crate::limiter) fn get(&self, actor: &[u8], now: Timestamp) -> Option<ActorLimit> {
        // As for nearly all rules: no hash, no lock.
        if self.len.load(Relaxed) == 0 { None } else { self.find(actor, now) }
    }

    fn find(&self, actor: &[u8], now: Timestamp) -> Option<ActorLimit> {
        let hash = self.hash(actor);
        let shard = self.shards.of(hash)?.read();
        let limit = shard.find(hash, |kept| kept.is_of(self, actor))?.limit;
        (!is_over(limit, now)).then_some(limit)
    }

    fn hash(&self, actor: &[u8]) -> u64 {
        self.hasher.hash_one(actor)
    }
}

impl Default for ActorLimits {
    fn default() -> Self {
        let shards = Shards((0..SHARDS).map(|_| RwLock::default()).collect());
        Self { shards: Arc::new(shards), labels: RwLock::default(), len: AtomicUsize::new(0) }
    }
}

impl ActorLimits {
    /// How many there are, those included that are over and not dropped yet.
    pub(in crate::limiter) fn len(&self) -> usize {
        self.len.load(Relaxed)
    }

    /// How many belong to a label that `is_known` does not know.
    pub(in crate::limiter) fn orphans(&self, is_known: impl Fn(&str) -> bool) -> usize {
        let labels = self.labels.read();
        labels.values().filter(|of| !is_known(&of.label)).map(|of| of.len.load(Relaxed)).sum()
    }

    /// Whether there is a limit of this label.
    pub(in crate::limiter) fn knows(&self, label: &str) -> bool {
        self.labels.read().get(label).is_some_and(|of| of.len.load(Relaxed) > 0)
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

    /// Makes the change known; whether there was a limit before.
    pub(in crate::limiter) fn apply(&self, change: &LimitChange, told: u32) -> bool {
        let of = self.of_label(&change.rule);
        let actor = change.actor.as_bytes();
        let hash = of.hash(actor);
        let Some(shard) = self.shards.of(hash) else { return false };
        let mut shard = shard.write();
        let entry = shard.entry(hash, |kept| kept.is_of(&of, actor), |kept| kept.of.hash(kept.actor.as_bytes()));
        match (entry, change.limit) {
            (Entry::Occupied(mut known), Some(limit)) => {
                let known = known.get_mut();
                (known.limit, known.told) = (limit, told);
                true
            }
            (Entry::Occupied(known), None) => {
                known.remove();
                self.count(&of, -1);
                true
            }
            (Entry::Vacant(place), Some(limit)) => {
                place.insert(Kept { of: Arc::clone(&of), actor: change.actor.as_str().into(), limit, told });
                self.count(&of, 1);
                false
            }
            (Entry::Vacant(_), None) => false,
        }
    }

    fn count(&self, of: &LabelLimits, change: isize) {
        for len in [&self.len, &of.len] {
            len.fetch_add(change.cast_unsigned(), Relaxed);
        }
    }

    /// Drops all that were not told since the limits were told from the start.
    pub(in crate::limiter) fn keep_told(&self, told: u32) {
        self.retain(Self::ALL, |kept| kept.told == told);
    }

    /// Drops those in some of the shards that are over, at most `most`; returns them.
    pub(in crate::limiter) fn drop_expired(
        &self,
        shards: Range<usize>,
        most: usize,
        now: Timestamp,
    ) -> Vec<LimitChange> {
        let mut dropped = Vec::new();
        for shard in shards {
            if dropped.len() >= most {
                break;
            }
            self.retain(shard..shard + 1, |kept| {
                let goes = is_over(kept.limit, now) && dropped.len() < most;
                if goes {
                    dropped.push(LimitChange { limit: None, ..kept.change() });
                }
                !goes
            });
        }
        dropped
    }

    /// Whether there is a limit that this change is about, in force or over.
    pub(in crate::limiter) fn has(&self, change: &LimitChange) -> bool {
        let of = self.of_label(&change.rule);
        let actor = change.actor.as_bytes();
        let hash = of.hash(actor);
        self.shards.of(hash).is_some_and(|shard| shard.read().find(hash, |kept| kept.is_of(&of, actor)).is_some())
    }

    fn retain(&self, shards: Range<usize>, mut stays: impl FnMut(&Kept) -> bool) {
        for shard in self.shards.0.get(shards).unwrap_or_default() {
            shard.write().retain(|kept| {
                let stays = stays(kept);
                if !stays {
                    self.count(&kept.of, -1);
                }
                stays
            });
        }
    }

    /// All of them.
    pub(in crate::limiter) const ALL: Range<usize> = 0..SHARDS;

    /// The shards that are to be looked through next, when the last ones ended here: one in sixteen.
    pub(in crate::limiter) fn next_shards(after: usize) -> Range<usize> {
        let start = after % SHARDS;
        start..(start + SHARDS / 16).min(SHARDS)
    }

    /// At most `count` of those in force at `now`, after the one where `place` is; and where the last of
    /// them is, if others follow.
    pub(in crate::limiter) fn page(
        &self,
        of: ListedLimits<'_>,
        place: Option<&Cursor>,
        count: usize,
        now: Timestamp,
    ) -> (Vec<LimitChange>, Option<Cursor>) {
        /// So many are looked at for a page, meant or not.
        const MOST_LOOKED_AT: usize = 100_000;
        let mut looked_at = 0;
        let first = place.map_or(0, |place| place.shard);
        let mut page = Vec::new();
        for (shard, limits) in (first..).zip(self.shards.0.get(first..).unwrap_or_default()) {
            if looked_at >= MOST_LOOKED_AT {
                return (page, Some(Cursor { shard, after: None }));
            }
            let after = place.filter(|place| place.shard == shard).and_then(|place| place.after.as_ref());
            let is_meant = |kept: &&Kept| {
                let is_later = after.is_none_or(|(rule, actor)| (&*kept.of.label, &*kept.actor) > (rule, actor));
                is_later
                    && !is_over(kept.limit, now)
                    && of.rule.is_none_or(|label| label == &*kept.of.label)
                    && of.actor.is_none_or(|actor| actor == &*kept.actor)
            };
            let limits = limits.read();
            looked_at += limits.len();
            let mut found: Vec<_> = limits.iter().filter(is_meant).map(Kept::change).collect();
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

/// How far limits are listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::limiter) struct Cursor {
    shard: usize,
    /// The label and the actor of the last one that was listed of the shard.
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
            let (page, next) = limits.page(ListedLimits { rule, actor: None }, place.as_ref(), count, now);
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
                let known = limits.apply(&change, 1);
                let before = match change.limit {
                    Some(limit) => model.insert((rule.clone(), actor.clone()), limit),
                    None => model.remove(&(rule.clone(), actor.clone())),
                };
                prop_assert_eq!(known, before.is_some());
            }
            prop_assert_eq!(limits.len(), model.len());
            prop_assert_eq!(limits.orphans(|label| label == "a"), model.keys().filter(|(rule, _)| rule == "b").count());
            let in_force: Vec<_> = model.iter().filter(|(_, limit)| !is_over(**limit, at(now))).collect();
            for ((rule, actor), limit) in &model {
                let found = limits.of_label(rule).get(actor.as_bytes(), at(now));
                prop_assert_eq!(found, (!is_over(*limit, at(now))).then_some(*limit));
            }
            prop_assert_eq!(limits.of_label("c").get(b"a", at(0)), None);
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
    fn what_is_not_told_again_is_dropped() {
        let limits = ActorLimits::default();
        for (actor, told) in [("a", 1), ("b", 1), ("a", 2), ("c", 2)] {
            limits.apply(&change("r", actor, Some((5, None))), told);
        }
        limits.keep_told(2);
        let left: Vec<_> =
            ["a", "b", "c"].map(|actor| limits.of_label("r").get(actor.as_bytes(), at(0)).is_some()).into();
        assert_eq!((left, limits.len()), (vec![true, false, true], 2));
    }

    #[test]
    fn shards_are_looked_through_in_turn() {
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
