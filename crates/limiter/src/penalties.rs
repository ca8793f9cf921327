//! Denials that count for the blocks that rules set, until they are counted in the store.
//!
//! A report notes whom a rule with a [penalty](divvy_core::rules::Penalty) denied, and hits wait for nothing more. A task takes the
//! notes, counts them, and sets the blocks that are due. So a block holds from a later batch on.
//!
//! A flood of invented actors may be denied faster than a distant store counts. It must not hide an actor that goes on. So each
//! rule has its own notes, the actors with the most denials are counted first, and when there is no room for a new actor, one that
//! was denied only once makes room.

use std::cmp::Reverse;
use std::hash::BuildHasher;

use futures_util::future::join_all;
use indexmap::IndexMap;
use parking_lot::Mutex;
use tokio::task::yield_now;

use super::Limiter;
use super::register::owner::{Class, ExceptionOwner};
use crate::store::key::{Prefix, Space};
use crate::store::{
    Action, Batch, Changed, Effect, Exception, ExceptionChange, ExceptionKind, Repetition, Replaces, Setter, Store,
    outcome_at,
};
use divvy_core::algorithm::{Ask, Limit, OutcomeSource, SlidingLog};
use divvy_core::clock::{NANOS_PER_SECOND, Timestamp};
use divvy_core::rules::{Penalty, Quota, Rule};
use divvy_telemetry::logging::{Escaped, LogThrottle};

/// Maximum number of actors of a rule whose denials are noted at a time.
const MAX_NOTED: usize = 10_000;
/// Number of notes that the rules share, if there are many rules.
const MAX_NOTED_BY_ALL: usize = 10 * MAX_NOTED;
/// Maximum length of an actor that a rule blocks (bytes). Clients choose the names, and blocks stay in memory for long.
const MAX_ACTOR: usize = 256;

/// Denials by one rule that are not counted yet, by actor.
#[derive(Debug, Default)]
pub(super) struct Notes(IndexMap<Box<[u8]>, Note>);

#[derive(Debug, Clone, Copy)]
pub(super) struct Note {
    /// Number of denials.
    count: u64,
    /// Time of the latest.
    at: Timestamp,
}

impl Notes {
    /// Notes a denial. Returns whether all denials so far are noted. Otherwise this one is lost, or the one that made room.
    fn add(&mut self, actor: &[u8], at: Timestamp, room: usize) -> bool {
        if let Some(note) = self.0.get_mut(actor) {
            *note = Note { count: note.count + 1, at: note.at.max(at) };
            return true;
        }
        let is_full = self.0.len() >= room;
        if is_full {
            // The seed of the hash is random, so no client can choose who makes room.
            let index = self.0.hasher().hash_one(actor) as usize % self.0.len().max(1);
            if self.0.get_index(index).is_none_or(|(_, note)| note.count > 1) {
                return false;
            }
            self.0.swap_remove_index(index);
        }
        self.0.insert(actor.into(), Note { count: 1, at });
        !is_full
    }

    /// Takes all notes, those with the most denials first.
    pub fn take(&mut self) -> Vec<DeniedActor> {
        let mut taken: Vec<_> = std::mem::take(&mut self.0).into_iter().collect();
        taken.sort_unstable_by_key(|(_, note)| Reverse(note.count));
        taken
    }
}

/// An actor, and its denials.
pub(super) type DeniedActor = (Box<[u8]>, Note);

/// The key of both pairs that name a counter of denials. No operation has the same key twice.
const DENIALS: &str = "denials";

/// The penalty of a rule.
#[derive(Debug)]
pub struct RulePenalty {
    pub terms: Penalty,
    /// The label of the rule.
    pub label: String,
    /// The owner of the blocks.
    pub owner: String,
    /// The limit that is used up by as many denials as lead to a block.
    pub limit: Limit,
    /// The prefix of the counters of denials. The actor follows.
    pub counters: Prefix,
    /// Maximum number of notes.
    room: usize,
    by_store: Mutex<Notes>,
    /// Denials by the denial cache, which are counted later, many at once: the cache saves the store from a flood.
    by_cache: Mutex<Notes>,
}

impl RulePenalty {
    /// Returns the penalty of the rule with this label, if it has one. It shares the room for notes with others, so that there
    /// are this `many`.
    pub fn new(rule: &Rule, label: &str, many: usize) -> Option<Self> {
        let terms = rule.penalty.filter(|_| matches!(rule.quota, Quota::Limited(_)))?;
        let window_ns = terms.window_seconds().saturating_mul(NANOS_PER_SECOND);
        let limit = Limit::SlidingLog(SlidingLog::new(terms.after, window_ns).ok()?);
        let counters = Prefix::new(Space::Rule, [(DENIALS, "of"), (DENIALS, label)], &limit);
        let owner = ExceptionOwner::of_rule(ExceptionKind::Block, label).to_string();
        let room = (MAX_NOTED_BY_ALL / many.max(1)).clamp(1, MAX_NOTED);
        let (by_store, by_cache) = Default::default();
        Some(Self { terms, label: label.to_owned(), owner, limit, counters, room, by_store, by_cache })
    }

    /// Notes a denial, by the store or by the denial cache. Returns false if a denial was lost.
    pub fn note(&self, actor: &[u8], is_cached: bool, at: Timestamp) -> bool {
        actor.len() > MAX_ACTOR || self.notes(is_cached).lock().add(actor, at, self.room)
    }

    pub(super) fn notes(&self, are_cached: bool) -> &Mutex<Notes> {
        if are_cached { &self.by_cache } else { &self.by_store }
    }
}

/// Maximum number of actors whose denials are counted in one batch.
const COUNTED_AT_ONCE: usize = 1_000;
/// Maximum number of blocks that are stored at a time. An operator's change waits for them.
const STORED_AT_ONCE: usize = 64;
/// One of this many blocks and allows is left to operators. Rules can use the others.
const OPERATORS_SHARE: usize = 10;

static BLOCKED: LogThrottle = LogThrottle::new();
static NOT_BLOCKED: LogThrottle = LogThrottle::new();

impl Limiter {
    /// Waits until the store has denied.
    pub async fn wait_for_denials(&self) {
        self.has_denials.notified().await;
    }

    /// Counts the denials that were noted, and blocks the actors that a rule has denied too often. If the store fails, the
    /// denials do not count, and the actor's next denial leads to the block that could not be set. `are_cached`: the denials of
    /// the denial cache, and not the store's. If they are counted once a second, a flood that the cache answers costs the store
    /// little.
    pub async fn count_denials(&self, are_cached: bool) {
        let Some(active) = self.active_rules() else { return };
        for penalty in active.penalties.iter().flatten() {
            let noted = penalty.notes(are_cached).lock().take();
            for denied in noted.chunks(COUNTED_AT_ONCE) {
                let due = self.count(penalty, denied).await;
                if !due.is_empty() {
                    self.penalize(penalty, &due).await;
                }
            }
        }
    }

    /// Counts denials. Returns the actors that were denied too often.
    async fn count<'a>(&self, penalty: &RulePenalty, denied: &'a [DeniedActor]) -> Vec<&'a DeniedActor> {
        let mut batch = Batch::default();
        batch.begin(denied.iter().map(|(_, note)| note.at).max().unwrap_or_default());
        for (actor, note) in denied {
            let count = Action::Ask(Ask::Count { cost: note.count });
            batch.push(penalty.limit, count, batch.now(), |key| penalty.counters.write_key(actor, key));
        }
        self.store.apply(&mut batch).await;
        let mut due = Vec::new();
        for (index, denied) in denied.iter().enumerate() {
            match outcome_at(&batch.outcomes, index) {
                Ok(outcome) if outcome.source == OutcomeSource::Store && outcome.left == 0 => due.push(denied),
                Ok(outcome) if outcome.source == OutcomeSource::Store => {}
                Ok(_) | Err(_) => self.metrics().rule_blocks.lost_denials.inc_by(denied.1.count),
            }
        }
        due
    }

    /// Blocks the actors, and forgets their denials.
    async fn penalize(&self, penalty: &RulePenalty, due: &[&DeniedActor]) {
        let register = &self.exceptions;
        if self.store.is_shared() {
            // Other servers may have blocked some of them. If that cannot be read, the blocks known so far apply, and the log of
            // the task that follows the store has the error.
            let _ = register.follow(&self.store, self.clock).await;
        }
        let mut batch = Batch::default();
        batch.begin(due.iter().map(|(_, note)| note.at).max().unwrap_or_default());
        for due in due.chunks(STORED_AT_ONCE) {
            for ((actor, _), blocked) in due.iter().zip(self.block(penalty, due, batch.now()).await) {
                self.report_block(&penalty.label, actor, &blocked);
                if blocked.is_ok() {
                    batch
                        .push(penalty.limit, Action::Forget, batch.now(), |key| penalty.counters.write_key(actor, key));
                }
            }
            // Many blocks at once must not keep hits waiting.
            yield_now().await;
        }
        if !batch.is_empty() {
            self.store.apply(&mut batch).await;
        }
    }

    /// Counts and logs the result for an actor of [`Limiter::block`].
    fn report_block(&self, rule: &str, actor: &[u8], blocked: &Result<Option<u32>, String>) {
        match blocked {
            Ok(None) => {}
            Ok(Some(number)) => {
                self.metrics().rule_blocks.set.inc();
                let actor = Escaped::new(actor);
                BLOCKED.say(|more| tracing::info!(rule, %actor, number, more, "a rule blocked an actor"));
            }
            Err(error) => {
                self.metrics().rule_blocks.failed.inc();
                let error = Escaped::error(error);
                NOT_BLOCKED.say(|more| tracing::warn!(rule, %error, more, "a rule could not block an actor"));
            }
        }
    }

    /// Blocks the actors, unless they are blocked already. Returns the number of each block. They are stored together, because each
    /// takes a round trip to a distant store.
    async fn block(
        &self,
        penalty: &RulePenalty,
        due: &[&DeniedActor],
        now: Timestamp,
    ) -> Vec<Result<Option<u32>, String>> {
        let (register, all) = (&self.exceptions, &self.exceptions.memory.overrides);
        let _alone = register.known.lock().await;
        let rules_room = || all.free().saturating_sub(all.max / OPERATORS_SHARE);
        if rules_room() < due.len() {
            register.make_room(Class::Overrides, &self.store, now).await;
        }
        let mut room = rules_room();
        let stored = due.iter().map(|denied| {
            let next = self.next_block(penalty, denied, &mut room);
            async {
                let Some((number, change)) = next? else { return Ok(None) };
                // Another server may know of a block by an operator.
                let changed = register.change(vec![change], &Replaces::OfRules, &self.store, denied.1.at).await;
                let changed = changed.map_err(|error| error.to_string())?;
                Ok((!changed.contains(&Changed::Kept)).then_some(number))
            }
        });
        join_all(stored.collect::<Vec<_>>()).await
    }

    /// Returns the actor's next block and its number, unless the actor is blocked already.
    fn next_block(
        &self,
        penalty: &RulePenalty,
        (actor, Note { at, .. }): &DeniedActor,
        room: &mut usize,
    ) -> Result<Option<(u32, ExceptionChange)>, String> {
        // Actors are always text.
        let actor = std::str::from_utf8(actor).unwrap_or_default();
        let known = self.exceptions.memory.find_remembered(&penalty.owner, actor, *at);
        if known.as_ref().is_some_and(|known| known.ends.is_none_or(|ends| ends > *at)) {
            return Ok(None);
        }
        if known.is_none() {
            *room =
                room.checked_sub(1).ok_or("nine tenths of --max-blocks are in use; the rest is left to operators")?;
        }
        let number = known.and_then(|known| known.repetition()).map_or(1, |before| before.number.saturating_add(1));
        let (after, window) = (penalty.terms.after, penalty.terms.window_seconds());
        let value = Exception {
            effect: Effect::Override {
                reason: Some(format!("{after} denials in {window} s, block {number}").into()),
                setter: Setter::Rule(Repetition { number, remembered_seconds: penalty.terms.forget_seconds() }),
            },
            ends: Some(penalty.terms.end_of_block(actor, number, *at, self.jitter)),
        };
        let change = ExceptionChange { owner: penalty.owner.clone(), actor: actor.to_owned(), value: Some(value) };
        Ok(Some((number, change)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actor_that_goes_on_is_noted_among_a_flood_of_invented_ones() {
        let (mut notes, now) = (Notes::default(), Timestamp::EPOCH);
        for number in 0..200_000 {
            notes.add(number.to_string().as_bytes(), now, MAX_NOTED);
            if number % 200 == 0 {
                notes.add(b"eve", now, MAX_NOTED);
            }
        }
        let taken = notes.take();
        assert_eq!((taken.len(), &*taken[0].0), (MAX_NOTED, &b"eve"[..]), "those with the most denials are first");
        assert!(taken[0].1.count > 900, "{:?}", taken[0]);
        assert!(notes.take().is_empty());
    }

    #[test]
    fn many_rules_share_the_room_for_notes() {
        let limiter = crate::tests::limiter_of(crate::tests::penalties::LOGIN);
        let active = limiter.active_rules().unwrap();
        for (many, room) in [(1, MAX_NOTED), (10, MAX_NOTED), (1_000, MAX_NOTED / 100), (usize::MAX, 1)] {
            let penalty = RulePenalty::new(&active.rules.rules()[0], "login", many).unwrap();
            let is_noted = |actor: usize| penalty.note(&actor.to_be_bytes(), false, Timestamp::EPOCH);
            assert!((0..room).all(is_noted) && !is_noted(room), "{many}");
        }
    }
}
