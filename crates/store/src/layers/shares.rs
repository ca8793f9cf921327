//! Shares of hot counters: credits that this server takes ahead from the distant store, and grants without asking it.
//!
//! A hit that may use a share asks the store for more than it needs ([`Ask::Share`]). What it gets beyond its cost is this
//! server's share, and the next hits take from it. The store counts the credits of a share as used, so all shares and the
//! counter together never exceed the limit, on any number of servers. Some of them may be of a version without shares.
//!
//! - **A share ends** with the window that it was taken from, or as [`Ask::Share`] says. The store says how long that is. The
//!   time counts from the moment when the ask was sent, by a clock that no program sets, minus an allowance for the
//!   difference between two clocks ([`usable_ns`]). So a share ends here before it ends in the store.
//! - **Its size** follows demand: what this server's hits need in a second. It is at most half of this server's part of what
//!   is left, as far as it can see what others take.
//! - **A hit that a share does not cover** asks the store, so an empty share never denies.
//! - **Unused credits** go back to their window after a second without a hit, before a share ends, and when the server stops.
//!   A bucket takes nothing back. A server that dies leaves them taken until the window ends, or the bucket has refilled.
//!
//! Known counters are bounded. A counter that is not hit for a second is forgotten, so that those of rare actors do not
//! displace hot ones.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;

use super::denial_cache::DenialCache;
use crate::contract::{Action, Batch, Entry, Store};
use divvy_core::algorithm::{Ask, Limit, Outcome, OutcomeSource};
use divvy_core::clock::{Clock, NANOS_PER_MILLI, NANOS_PER_SECOND, Timestamp};
use divvy_telemetry::metrics::Metric;

/// Interval of [`Shares::tick`].
pub const TICK_NS: u64 = NANOS_PER_SECOND / 10;
/// Number of ticks that a share should last, and after which unused credits go back.
const TICKS: u64 = 10;
/// Most time that a share is used. A reset of its counter through another server takes effect on it after this time.
const LONGEST_SHARE_NS: u64 = 10 * NANOS_PER_SECOND;
/// Most counters that are known, and the longest key of one (bytes): about 3 MB in all, and at most 20 MB.
const MAX_COUNTERS: usize = 16_384;
const MAX_KEY: usize = 1_024;
/// Number of locks.
const SHARDS: usize = 64;
/// The part of what is left that a first share may take, before it is known what other servers take.
const FIRST_PARTS: u64 = 8;
/// The smallest part.
const MOST_PARTS: u64 = 128;

/// Returns how much of a share's life in the store may be used: nanoseconds from the moment when it was asked for.
///
/// The clocks of two machines differ by less than 0.05 %, even while they are slewed (adjtimex(2)), and Redis rounds to
/// milliseconds.
pub fn usable_ns(life_ns: u64) -> u64 {
    (life_ns - life_ns / 500).saturating_sub(2 * NANOS_PER_MILLI).min(LONGEST_SHARE_NS)
}

/// The shares of this server.
pub struct Shares {
    clock: Clock,
    shards: Box<[Shard]>,
    hasher: RandomState,
    ids: AtomicU64,
    granted: AtomicU64,
    asked: AtomicU64,
    taken: AtomicU64,
    returned: AtomicU64,
    lost: AtomicU64,
}

/// Counters by their keys.
type Shard = Mutex<HashMap<Box<[u8]>, Counter>>;

/// A counter whose hits may use a share.
struct Counter {
    /// Another one after a reset, and if the limit changes: an answer to an earlier ask is not for this counter.
    id: u64,
    limit: Limit,
    share: Share,
    /// Whether an ask for a share is under way. Until it is answered, the other hits ask for themselves.
    is_asking: bool,
    /// Whether the last ask for a share failed, and the store has not answered since.
    has_failed: bool,
    /// Credits that hits were granted since the last tick, and in the tick before, or a little less if it had fewer than the ones before.
    demand: u64,
    demand_before: u64,
    /// Credits that the store had left after the last ask, and the credits that this server has granted since.
    left: u64,
    granted: u64,
    /// The number of parts of what is left: the next share is at most one of them. 0: not known yet.
    parts: u64,
    /// Ticks since the last hit.
    idle: u64,
}

/// Credits that may be granted until `usable_until`, by the monotonic clock.
#[derive(Debug, Clone, Copy, Default)]
struct Share {
    credits: u64,
    usable_until: u64,
    /// The end in the store, by the store's clock.
    ends: Timestamp,
    /// When the counter holds more credits, by the monotonic clock.
    resets: u64,
}

/// Credits to give back.
struct Returned {
    key: Box<[u8]>,
    limit: Limit,
    share: Share,
}

/// An ask for a share, among the entries of a batch. It ends when this is dropped, answered or not.
struct Asking<'a> {
    shares: &'a Shares,
    /// The index of the entry, and the key and the id of its counter.
    index: usize,
    key: Box<[u8]>,
    id: u64,
}

impl Asking<'_> {
    /// Changes the counter, unless it has been forgotten or its limit has changed. Returns whether it did.
    fn with(&self, change: impl FnOnce(&mut Counter)) -> bool {
        let mut shard = self.shares.shard(&self.key).lock();
        let counter = shard.get_mut(&self.key).filter(|counter| counter.id == self.id);
        counter.map(change).is_some()
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.with(|counter| counter.is_asking = false);
    }
}

impl Shares {
    /// Creates an empty set.
    pub fn new(clock: Clock) -> Self {
        Self {
            clock,
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            hasher: RandomState::default(),
            ids: AtomicU64::new(0),
            granted: AtomicU64::new(0),
            asked: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            returned: AtomicU64::new(0),
            lost: AtomicU64::new(0),
        }
    }

    /// Answers the hits that a share covers. `denials` and `store` answer the others, and give this server its next shares.
    pub async fn apply(&self, batch: &mut Batch, denials: &DenialCache, store: &impl Store) {
        if batch.entries.iter().any(concerns_shares) {
            self.apply_at(batch, denials, store, self.clock.monotonic_ns()).await;
        } else {
            denials.apply(batch, store).await;
        }
    }

    /// Does the same at `sent`, a time of the monotonic clock.
    async fn apply_at(&self, batch: &mut Batch, denials: &DenialCache, store: &impl Store, sent: u64) {
        let Split { unknown, asking, counted } = self.answer_known(batch, sent);
        if unknown.len() == batch.len() {
            denials.apply(batch, store).await;
        } else if !unknown.is_empty() {
            let mut rest = batch.part(&unknown);
            denials.apply(&mut rest, store).await;
            batch.adopt(rest, &unknown);
        }
        for ask in asking {
            self.learn(batch, &ask, &counted, sent);
        }
        self.count_demand(batch, &counted);
        // An ask may have reached the store just before the reset.
        self.end_forgotten(batch);
    }

    /// Counts the costs of the hits at these indexes that the store has granted. Denied hits need no credits.
    fn count_demand(&self, batch: &Batch, counted: &[usize]) {
        for index in counted {
            let (Some(entry), Ok(outcome)) = (batch.entry(*index), batch.outcome(*index)) else { continue };
            let key = entry.key_in(&batch.keys);
            if let Some(counter) = self.shard(key).lock().get_mut(key) {
                let cost = entry.action.ask().map_or(0, Ask::cost);
                counter.demand = counter.demand.saturating_add(if outcome.allowed { cost } else { 0 });
                counter.has_failed &= outcome.source != OutcomeSource::Store;
            }
        }
    }

    /// Forgets the counters that the batch forgets. Then no earlier share of them is used, or taken over.
    fn end_forgotten(&self, batch: &Batch) {
        for entry in batch.entries.iter().filter(|entry| entry.action == Action::Forget) {
            let key = entry.key_in(&batch.keys);
            let forgotten = self.shard(key).lock().remove(key);
            self.lost.fetch_add(forgotten.map_or(0, |counter| counter.share.credits), Relaxed);
        }
    }

    /// Answers from shares. Some of the other entries that may use shares ask for one, and the rest of them become ordinary hits.
    fn answer_known<'a>(&'a self, batch: &mut Batch, now: u64) -> Split<'a> {
        let (mut unknown, mut asking, mut asks) = (Vec::new(), Vec::new(), Vec::new());
        self.end_forgotten(batch);
        batch.outcomes.clear();
        batch.answer_on(|unit, outcomes| {
            let action = unit.entries.first().map(|entry| entry.action);
            if let ([entry], Some(Action::Ask(Ask::Share { cost, extra, .. }))) = (unit.entries, action)
                && cost > 0
            {
                match self.hit(unit.key(entry), entry, (cost, extra), now) {
                    Answer::Granted(outcome) => {
                        outcomes.push(Ok(outcome));
                        return true;
                    }
                    Answer::Ask(ask, id) => {
                        asks.push((unit.first, Action::Ask(ask)));
                        asking.push(Asking { shares: self, index: unit.first, key: unit.key(entry).into(), id });
                    }
                    Answer::Take => asks.push((unit.first, Action::Ask(Ask::Take { cost }))),
                }
            }
            for (index, _, entry) in unit.members() {
                if let Action::Ask(Ask::Share { cost, .. }) = entry.action
                    && unit.entries.len() > 1
                {
                    asks.push((index, Action::Ask(Ask::Take { cost })));
                }
                unknown.push(index);
                outcomes.push(Ok(Outcome::default()));
            }
            true
        });
        let counted = asks.iter().map(|(index, _)| *index).collect();
        for (index, action) in asks {
            if let Some(entry) = batch.entries.get_mut(index) {
                entry.action = action;
            }
        }
        Split { unknown, asking, counted }
    }

    /// Decides a hit that may use a share of at most `most` credits.
    fn hit(&self, key: &[u8], entry: &Entry, (cost, most): (u64, u32), now: u64) -> Answer {
        let mut shard = self.shard(key).lock();
        let Some(counter) = shard.get_mut(key) else {
            if shard.len() < MAX_COUNTERS / SHARDS && key.len() <= MAX_KEY {
                shard.insert(key.into(), Counter::new(self.new_id(), entry.limit));
            }
            return Answer::Take;
        };
        counter.idle = 0;
        if counter.limit != entry.limit {
            // The limit has changed, or is a calendar's and its window has ended.
            self.lost.fetch_add(counter.share.credits, Relaxed);
            *counter = Counter::new(self.new_id(), entry.limit);
            return Answer::Take;
        }
        if let Some(outcome) = counter.grant(cost, now) {
            self.granted.fetch_add(1, Relaxed);
            return Answer::Granted(outcome);
        }
        match counter.wanted(most) {
            extra if extra > 0 && !counter.is_asking && !counter.has_failed => {
                counter.is_asking = true;
                let parts = if counter.parts == 0 { FIRST_PARTS } else { counter.parts };
                let parts = u16::try_from(parts).unwrap_or(u16::MAX);
                Answer::Ask(Ask::Share { cost, extra, parts }, counter.id)
            }
            _ => Answer::Take,
        }
    }

    /// Takes over the share in the answer to an ask that was sent at `sent`, and hides it from the answer: the credits of this
    /// server's share are left, too.
    fn learn(&self, batch: &mut Batch, asking: &Asking<'_>, counted: &[usize], sent: u64) {
        let Some(entry) = batch.entries.get_mut(asking.index) else { return };
        let Action::Ask(Ask::Share { cost, extra, .. }) = entry.action else { return };
        entry.action = Action::Ask(Ask::Take { cost });
        let Some(Ok(outcome)) = batch.outcomes.get_mut(asking.index) else {
            // The credits may be taken all the same, so the next hits ask for none until the store answers.
            self.lost.fetch_add(extra.into(), Relaxed);
            asking.with(|counter| counter.has_failed = true);
            return;
        };
        if outcome.source != OutcomeSource::Store {
            return;
        }
        self.asked.fetch_add(1, Relaxed);
        let credits = outcome.before.saturating_sub(outcome.left).saturating_sub(cost);
        let life_ns = outcome.retry_ns.take_if(|_| outcome.allowed).filter(|_| credits > 0);
        let is_known = asking.with(|counter| {
            counter.note(outcome.before, outcome.left, cost.saturating_add(credits));
            if let Some(life_ns) = life_ns {
                let usable_until = sent.saturating_add(usable_ns(life_ns));
                let resets = sent.saturating_add(outcome.reset_ns);
                let lost = counter.add(Share { credits, usable_until, ends: outcome.session, resets }, sent);
                self.lost.fetch_add(lost, Relaxed);
            }
        });
        if life_ns.is_some() {
            self.lost.fetch_add(if is_known { 0 } else { credits }, Relaxed);
            self.taken.fetch_add(credits, Relaxed);
            outcome.left += credits;
            outcome.session = Timestamp::EPOCH;
            // The same holds for the hits after it on this counter.
            let later =
                counted.iter().filter(|index| **index > asking.index && batch.key_at(**index) == Some(&*asking.key));
            for index in later.copied().collect::<Vec<_>>() {
                if let Some(Ok(outcome)) = batch.outcomes.get_mut(index) {
                    outcome.left += if outcome.allowed { credits } else { 0 };
                }
            }
        }
    }

    /// Gives back what is not needed, and forgets idle counters. Servers call it every [`TICK_NS`].
    pub async fn tick(&self, denials: &DenialCache, store: &impl Store) {
        self.tick_at((denials, store), self.clock.monotonic_ns(), self.clock.now()).await;
    }

    async fn tick_at(&self, behind: (&DenialCache, &impl Store), now: u64, wall: Timestamp) {
        let mut unused = Vec::new();
        for shard in &self.shards {
            shard.lock().retain(|key, counter| {
                let (is_idle, share) = counter.tick(now);
                if let Some(share) = share {
                    if now < share.usable_until && counter.is_window() {
                        unused.push(Returned { key: key.clone(), limit: counter.limit, share });
                    } else {
                        self.lost.fetch_add(share.credits, Relaxed);
                    }
                }
                !is_idle
            });
        }
        self.give_back(unused, behind, wall).await;
    }

    /// Gives back all shares, because the server stops.
    pub async fn return_all(&self, behind: (&DenialCache, &impl Store), wall: Timestamp) {
        let mut unused = Vec::new();
        for shard in &self.shards {
            let is_returned = |counter: &Counter| counter.share.credits > 0 && counter.is_window();
            let counters = shard.lock().drain().filter(|(_, counter)| is_returned(counter)).collect::<Vec<_>>();
            unused.extend(counters.into_iter().map(|(key, Counter { limit, share, .. })| Returned {
                key,
                limit,
                share,
            }));
        }
        self.give_back(unused, behind, wall).await;
    }

    /// If this fails, the credits stay taken until their window ends, or the bucket has refilled.
    async fn give_back(&self, unused: Vec<Returned>, (denials, store): (&DenialCache, &impl Store), wall: Timestamp) {
        if unused.is_empty() {
            return;
        }
        let mut batch = Batch::default();
        batch.begin(wall);
        for Returned { key, limit, share } in &unused {
            let credits = u32::try_from(share.credits).unwrap_or(u32::MAX);
            let action = Action::Ask(Ask::Return { credits, until: share.ends });
            batch.push(*limit, action, batch.now(), |out| out.extend_from_slice(key));
        }
        denials.apply(&mut batch, store).await;
        for (Returned { share, .. }, (.., outcome)) in unused.iter().zip(batch.answers()) {
            let is_back = outcome.as_ref().is_ok_and(|outcome| outcome.left > outcome.before);
            let count = if is_back { &self.returned } else { &self.lost };
            count.fetch_add(share.credits, Relaxed);
        }
    }

    /// Returns the metrics.
    pub fn metrics(&self) -> [Metric; 7] {
        let (mut counters, mut held) = (0, 0);
        for shard in &self.shards {
            for counter in shard.lock().values().filter(|counter| counter.share.credits > 0) {
                counters += 1;
                held += counter.share.credits;
            }
        }
        let of = |count: &AtomicU64| count.load(Relaxed);
        let credits = "Credits of shares: taken ahead, given back, and lost because they were not used in time.";
        let credits_of =
            |fate, count| Metric::counter("divvy_share_credits_total", credits, of(count)).labelled("fate", fate);
        [
            Metric::counter("divvy_share_grants_total", "Hits that were granted from shares.", of(&self.granted)),
            Metric::counter("divvy_share_asks_total", "Calls to Redis that asked for a share.", of(&self.asked)),
            credits_of("taken", &self.taken),
            credits_of("returned", &self.returned),
            credits_of("lost", &self.lost),
            Metric::gauge("divvy_share_counters", "Counters of which this server has a share.", counters),
            Metric::gauge("divvy_share_credits", "Credits in this server's shares.", held),
        ]
    }

    fn shard(&self, key: &[u8]) -> &Shard {
        // The remainder is below the number of shards.
        #[expect(clippy::indexing_slicing, reason = "see above")]
        &self.shards[self.hasher.hash_one(key) as usize % SHARDS]
    }

    /// Returns an id that no other counter has.
    fn new_id(&self) -> u64 {
        self.ids.fetch_add(1, Relaxed)
    }
}

/// The entries of a batch that shares do not answer.
struct Split<'a> {
    /// Their indexes.
    unknown: Vec<usize>,
    /// Its asks for shares.
    asking: Vec<Asking<'a>>,
    /// The indexes of hits whose counters may have shares.
    counted: Vec<usize>,
}

/// The result of a hit.
enum Answer {
    Granted(Outcome),
    /// The store decides, and gives a share of the counter with this id.
    Ask(Ask, u64),
    /// The store decides.
    Take,
}

impl Counter {
    fn new(id: u64, limit: Limit) -> Self {
        let share = Share::default();
        Self {
            id,
            limit,
            share,
            is_asking: false,
            has_failed: false,
            demand: 0,
            demand_before: 0,
            left: 0,
            granted: 0,
            parts: 0,
            idle: 0,
        }
    }

    /// Takes the cost from the share, if it covers it.
    fn grant(&mut self, cost: u64, now: u64) -> Option<Outcome> {
        let share = &mut self.share;
        if now >= share.usable_until {
            return None;
        }
        let credits = share.credits.checked_sub(cost)?;
        let before = self.left.saturating_add(share.credits);
        share.credits = credits;
        self.granted = self.granted.saturating_add(cost);
        self.demand = self.demand.saturating_add(cost);
        Some(Outcome {
            allowed: true,
            before,
            left: before - cost,
            reset_ns: share.resets.saturating_sub(now),
            source: OutcomeSource::Share,
            ..Outcome::default()
        })
    }

    /// Returns the credits that the next share should have. A counter that is hit twice a second or less needs none.
    fn wanted(&self, most: u32) -> u32 {
        let demand = self.demand.max(self.demand_before);
        let wanted = if self.demand_before == 0 && self.demand < 2 { 0 } else { demand.saturating_mul(TICKS) };
        u32::try_from(wanted).unwrap_or(u32::MAX).min(most)
    }

    /// Notes an answer of the store: the credits before and after, and those that this server took. What is missing besides
    /// was taken by others. A share is half of this server's part of the rest.
    fn note(&mut self, before: u64, left: u64, taken: u64) {
        let (by_others, own) = (self.left.saturating_sub(before), self.granted.max(1));
        if self.left >= before && self.left > 0 {
            let servers = 1 + by_others.div_ceil(own);
            // The number falls slowly: others may have been quiet only for a moment.
            self.parts = (2 * servers).clamp(2, MOST_PARTS).max(self.parts - self.parts / 4);
        }
        (self.left, self.granted) = (left, taken.min(1));
    }

    /// Returns whether it is a window's. Only windows take credits back.
    fn is_window(&self) -> bool {
        matches!(self.limit, Limit::FixedWindow(_) | Limit::CalendarWindow(_))
    }

    /// Adds a share that was asked for at `now`. Returns the credits of an earlier one that is over.
    fn add(&mut self, new: Share, now: u64) -> u64 {
        let old = std::mem::replace(&mut self.share, new);
        let is_window = self.is_window();
        if old.credits == 0 || (is_window && old.ends != new.ends) || (!is_window && old.usable_until <= now) {
            return old.credits;
        }
        self.share.credits += old.credits;
        if !is_window {
            // Both end with the one that ends first.
            self.share.usable_until = old.usable_until.min(new.usable_until);
            self.share.ends = old.ends.min(new.ends);
        }
        0
    }

    /// Begins a tick. Returns whether the counter is idle, and the share that is to be given back, if it has credits.
    fn tick(&mut self, now: u64) -> (bool, Option<Share>) {
        self.demand_before = self.demand.max(self.demand_before - self.demand_before.div_ceil(4));
        self.demand = 0;
        self.idle += 1;
        let is_idle = self.idle > TICKS && !self.is_asking;
        // A window needs time to take the credits back.
        let needed = if self.is_window() { 2 * TICK_NS } else { 0 };
        let is_ending = self.share.usable_until <= now.saturating_add(needed);
        let is_over = self.share.credits > 0 && (is_idle || is_ending);
        (is_idle, is_over.then(|| std::mem::take(&mut self.share)))
    }
}

/// Returns whether an entry may use a share, or ends one.
fn concerns_shares(entry: &Entry) -> bool {
    matches!(entry.action, Action::Ask(Ask::Share { .. }) | Action::Forget)
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod model;
