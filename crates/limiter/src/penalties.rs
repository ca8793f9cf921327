//! Denials that count for the blocks that rules set, until they are counted in the store.
//!
//! A report notes whom a rule with a [penalty](divvy_core::rules::Penalty) denied, and hits wait for nothing more. A task takes the
//! notes, counts them, and sets the blocks that are due. So a block holds from a later batch on.
//!
//! A flood of invented actors may be denied faster than a distant store counts. It must not hide an actor that goes on. So each
//! rule has its own notes, those that are due are counted first, and when there is no room for a new actor, one that was denied
//! only once makes room.

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::future::join_all;
use indexmap::IndexMap;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::yield_now;

use super::Limiter;
use super::heavy_hitters::Random;
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

/// Denials that are not counted yet.
#[derive(Debug, Default)]
pub(super) struct Denials {
    /// Denials by the store.
    pub by_store: Mutex<Notes>,
    /// Denials by the denial cache, which are counted later, many at once: the cache saves the store from a flood.
    pub by_cache: Mutex<Notes>,
    has_notes: Notify,
}

/// A denial of an actor by a rule with a penalty.
#[derive(Debug, Clone, Copy)]
pub(super) struct Denial<'a> {
    pub penalty: &'a Arc<RulePenalty>,
    pub actor: &'a [u8],
    /// Whether the denial cache denied.
    pub is_cached: bool,
}

/// Notes of denials, by rule.
#[derive(Debug)]
pub(super) struct Notes {
    /// The notes of each rule, by the prefix of its counters.
    rules: HashMap<Box<[u8]>, RuleNotes>,
    random: Random,
}

/// Notes of denials by one rule.
#[derive(Debug)]
struct RuleNotes {
    penalty: Arc<RulePenalty>,
    /// The notes by actor, in any order, except that those come first that are due.
    by_actor: IndexMap<Box<[u8]>, Note>,
    /// Number of actors that were denied as often as leads to a block.
    due: usize,
}

#[derive(Debug, Clone, Copy)]
struct Note {
    count: u64,
    at: Timestamp,
}

/// Denials of one actor by one rule.
#[derive(Debug)]
pub(super) struct DeniedActor {
    pub penalty: Arc<RulePenalty>,
    actor: Box<[u8]>,
    /// Number of denials.
    pub count: u64,
    /// Time of the latest.
    pub at: Timestamp,
}

impl DeniedActor {
    /// Returns the actor, which is always text.
    pub fn actor(&self) -> &str {
        std::str::from_utf8(&self.actor).unwrap_or_default()
    }

    /// Writes the key of the counter of denials.
    pub fn write_counter(&self, key: &mut Vec<u8>) {
        key.extend_from_slice(self.penalty.counters.as_bytes());
        key.extend_from_slice(&self.actor);
    }
}

impl Denials {
    /// Notes denials at `at`. Returns the number of those that do not count.
    pub fn note<'a>(&self, denials: impl Iterator<Item = Denial<'a>>, at: Timestamp) -> u64 {
        let (mut is_new, mut lost) = (false, 0);
        for denial in denials.filter(|denial| denial.actor.len() <= MAX_ACTOR) {
            let notes = if denial.is_cached { &self.by_cache } else { &self.by_store };
            is_new |= !denial.is_cached;
            lost += u64::from(!notes.lock().add(&denial, at));
        }
        if is_new {
            self.has_notes.notify_one();
        }
        lost
    }

    /// Waits until the store has denied.
    pub async fn wait(&self) {
        self.has_notes.notified().await;
    }
}

impl Default for Notes {
    fn default() -> Self {
        Self { rules: HashMap::new(), random: Random::new() }
    }
}

impl Notes {
    /// Returns the number of notes.
    pub fn len(&self) -> usize {
        self.rules.values().map(|notes| notes.by_actor.len()).sum()
    }

    /// Notes a denial. Returns whether all denials so far are noted. Otherwise this one is lost, or the one that made room.
    fn add(&mut self, Denial { penalty, actor, .. }: &Denial<'_>, at: Timestamp) -> bool {
        let rule = penalty.counters.as_bytes();
        if !self.rules.contains_key(rule) {
            let notes = RuleNotes { penalty: Arc::clone(penalty), by_actor: IndexMap::new(), due: 0 };
            self.rules.insert(rule.into(), notes);
        }
        let room = (MAX_NOTED_BY_ALL / self.rules.len().max(1)).min(MAX_NOTED);
        let Some(notes) = self.rules.get_mut(rule) else { return false };
        // The rules may have been replaced by others with the same counters.
        notes.penalty = Arc::clone(penalty);
        let is_full = notes.by_actor.len() >= room && !notes.by_actor.contains_key(*actor);
        if is_full && !notes.make_room(&mut self.random) {
            return false;
        }
        notes.add(actor, at);
        !is_full
    }

    /// Takes up to about `most` notes: each rule's share of them, and those that are due first.
    pub fn take(&mut self, most: usize) -> Vec<DeniedActor> {
        let share = most.div_ceil(self.rules.len().max(1));
        let mut taken = Vec::new();
        for notes in self.rules.values_mut() {
            taken.extend((0..share).map_while(|_| notes.take_one(&mut self.random)));
        }
        self.rules.retain(|_, notes| !notes.by_actor.is_empty());
        taken
    }
}

impl RuleNotes {
    fn add(&mut self, actor: &[u8], at: Timestamp) {
        let index = match self.by_actor.get_index_of(actor) {
            Some(index) => index,
            None => self.by_actor.insert_full(actor.into(), Note { count: 0, at }).0,
        };
        let Some((_, note)) = self.by_actor.get_index_mut(index) else { return };
        (note.count, note.at) = (note.count + 1, note.at.max(at));
        if note.count == self.penalty.terms.after {
            self.by_actor.swap_indices(index, self.due);
            self.due += 1;
        }
    }

    /// Drops the note of a random actor that was denied once. Returns whether the first one that it tried was.
    fn make_room(&mut self, random: &mut Random) -> bool {
        let others = self.by_actor.len() - self.due;
        if others == 0 {
            return false;
        }
        let index = self.due + random.below(others as u64) as usize;
        let was_denied_once = self.by_actor.get_index(index).is_some_and(|(_, note)| note.count == 1);
        if was_denied_once {
            self.by_actor.swap_remove_index(index);
        }
        was_denied_once
    }

    fn take_one(&mut self, random: &mut Random) -> Option<DeniedActor> {
        let index = match self.due.checked_sub(1) {
            Some(last) => last,
            None => random.below(self.by_actor.len() as u64) as usize,
        };
        let (actor, Note { count, at }) = self.by_actor.swap_remove_index(index)?;
        self.due = self.due.saturating_sub(1);
        Some(DeniedActor { penalty: Arc::clone(&self.penalty), actor, count, at })
    }
}

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
}

impl RulePenalty {
    /// Returns the penalty of the rule with this label, if it has one.
    pub fn new(rule: &Rule, label: &str) -> Option<Self> {
        let terms = rule.penalty.filter(|_| matches!(rule.quota, Quota::Limited(_)))?;
        let window_ns = terms.window_seconds().saturating_mul(NANOS_PER_SECOND);
        let limit = Limit::SlidingLog(SlidingLog::new(terms.after, window_ns).ok()?);
        let counters = Prefix::new(Space::Rule, [(DENIALS, "of"), (DENIALS, label)], &limit);
        let owner = ExceptionOwner::of_rule(ExceptionKind::Block, label).to_string();
        Some(Self { terms, label: label.to_owned(), owner, limit, counters })
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
    /// Waits until there are denials to count.
    pub async fn wait_for_denials(&self) {
        self.observers.denials.wait().await;
    }

    /// Counts the store's denials that were noted, and blocks the actors that a rule has denied too often. If the store fails,
    /// the denials do not count, and the actor's next denial leads to the block that could not be set.
    pub async fn count_denials(&self) {
        self.count_all(&self.observers.denials.by_store).await;
    }

    /// Does the same for the denials of the denial cache. If this is called once a second, a flood that the cache answers costs
    /// the store little.
    pub async fn count_cached_denials(&self) {
        self.count_all(&self.observers.denials.by_cache).await;
    }

    /// Counts as many denials as there are now. Others may be noted during this. They are counted first once they are due.
    async fn count_all(&self, notes: &Mutex<Notes>) {
        let mut left = notes.lock().len();
        while left > 0 {
            let denied = notes.lock().take(COUNTED_AT_ONCE);
            left = if denied.is_empty() { 0 } else { left.saturating_sub(denied.len()) };
            let due = self.count(&denied).await;
            if !due.is_empty() {
                self.penalize(&due).await;
            }
        }
    }

    /// Counts denials. Returns the actors that were denied too often.
    async fn count<'a>(&self, denied: &'a [DeniedActor]) -> Vec<&'a DeniedActor> {
        let mut batch = Batch::default();
        batch.begin(denied.iter().map(|denied| denied.at).max().unwrap_or_default());
        for denied in denied {
            let count = Action::Ask(Ask::Count { cost: denied.count });
            batch.push(denied.penalty.limit, count, batch.now(), |key| denied.write_counter(key));
        }
        self.store.apply(&mut batch).await;
        let mut due = Vec::new();
        for (index, denied) in denied.iter().enumerate() {
            match outcome_at(&batch.outcomes, index) {
                Ok(outcome) if outcome.source != OutcomeSource::Store => {
                    self.metrics().rule_blocks.lost_denials.inc_by(denied.count)
                }
                Ok(outcome) if outcome.left == 0 => due.push(denied),
                Ok(_) => {}
                Err(_) => self.metrics().rule_blocks.lost_denials.inc_by(denied.count),
            }
        }
        due
    }

    /// Blocks the actors, and forgets their denials.
    async fn penalize(&self, due: &[&DeniedActor]) {
        let register = &self.exceptions;
        if self.store.is_shared() {
            // Other servers may have blocked some of them. If that cannot be read, the blocks known so far apply, and the log of
            // the task that follows the store has the error.
            let _ = register.follow(&self.store, self.clock).await;
        }
        let mut batch = Batch::default();
        batch.begin(due.iter().map(|denied| denied.at).max().unwrap_or_default());
        for due in due.chunks(STORED_AT_ONCE) {
            for (denied, blocked) in due.iter().zip(self.block(due).await) {
                self.report_block(denied, &blocked);
                if blocked.is_ok() {
                    batch.push(denied.penalty.limit, Action::Forget, batch.now(), |key| denied.write_counter(key));
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
    fn report_block(&self, denied: &DeniedActor, blocked: &Result<Option<u32>, String>) {
        let rule = &denied.penalty.label;
        match blocked {
            Ok(None) => {}
            Ok(Some(number)) => {
                self.metrics().rule_blocks.set.inc();
                let actor = Escaped::new(denied.actor().as_bytes());
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
    async fn block(&self, due: &[&DeniedActor]) -> Vec<Result<Option<u32>, String>> {
        let register = &self.exceptions;
        let _alone = register.known.lock().await;
        let mut room = self.room_for_blocks(due).await;
        let stored = due.iter().map(|denied| {
            let next = self.next_block(denied, &mut room);
            async {
                let Some((number, change)) = next? else { return Ok(None) };
                // Another server may know of a block by an operator.
                let changed = register.change(vec![change], &Replaces::OfRules, &self.store, denied.at).await;
                let changed = changed.map_err(|error| error.to_string())?;
                Ok((!changed.contains(&Changed::Kept)).then_some(number))
            }
        });
        join_all(stored.collect::<Vec<_>>()).await
    }

    /// Returns the number of actors that rules may still block.
    async fn room_for_blocks(&self, due: &[&DeniedActor]) -> usize {
        let (register, all) = (&self.exceptions, &self.exceptions.memory.overrides);
        let room = || all.free().saturating_sub(all.max / OPERATORS_SHARE);
        let now = due.iter().map(|denied| denied.at).max().unwrap_or_default();
        if room() < due.len() {
            register.make_room(Class::Overrides, &self.store, now).await;
        }
        room()
    }

    /// Returns the actor's next block and its number, unless the actor is blocked already.
    fn next_block(&self, denied: &DeniedActor, room: &mut usize) -> Result<Option<(u32, ExceptionChange)>, String> {
        let (DeniedActor { penalty, at, .. }, actor) = (denied, denied.actor());
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
    use crate::CounterNames;
    use crate::active_rules::ActiveRules;
    use divvy_core::config::{self, Format};
    use divvy_telemetry::metrics::Metrics;

    /// Returns the penalties of rules with these labels, which block after 10 denials.
    fn penalties(labels: &[&str]) -> Vec<Arc<RulePenalty>> {
        let rule = |label: &&str| {
            format!(
                "[path=/{label} user=*]\ncreditLimit = 1\nresetSeconds = 60\nactorField = user\nlabel = {label}\n\
                 blockAfter = 10\nblockWindow = 1h\nblockSeconds = 1h\n"
            )
        };
        let text = labels.iter().map(rule).collect::<String>() + "[default]\ncreditLimit = 0\n";
        let rules = config::parse(&text, Format::Ini, "rules.ini").unwrap().rules;
        let active = ActiveRules::new(rules, &Metrics::new(), CounterNames::Usual);
        (0..labels.len()).map(|rule| active.penalties[rule].clone().unwrap()).collect()
    }

    fn deny(notes: &mut Notes, penalty: &Arc<RulePenalty>, actor: &str) -> bool {
        notes.add(&Denial { penalty, actor: actor.as_bytes(), is_cached: false }, Timestamp::default())
    }

    #[test]
    fn actor_that_goes_on_is_noted_among_a_flood_of_invented_ones() {
        let penalties = penalties(&["login"]);
        let mut notes = Notes { random: Random::seeded(1), ..Notes::default() };
        for number in 0..200_000 {
            deny(&mut notes, &penalties[0], &number.to_string());
            if number % 200 == 0 {
                deny(&mut notes, &penalties[0], "eve");
            }
        }
        assert_eq!(notes.len(), MAX_NOTED);
        let first = notes.take(1).remove(0);
        assert_eq!(first.actor(), "eve", "those that are due are first");
        assert!(first.count > 900, "{}", first.count);
        assert_eq!(notes.take(usize::MAX).len(), MAX_NOTED - 1);
        assert_eq!((notes.len(), notes.rules.len()), (0, 0));
    }

    #[test]
    fn flood_at_one_rule_leaves_room_for_the_others() {
        let penalties = penalties(&["login", "search"]);
        let mut notes = Notes::default();
        for number in 0..50_000 {
            deny(&mut notes, &penalties[0], &number.to_string());
        }
        assert!((0..1_000).all(|number| deny(&mut notes, &penalties[1], &number.to_string())));
        let taken = notes.take(1_000);
        let of_search = taken.iter().filter(|denied| denied.penalty.label == "search").count();
        assert_eq!((taken.len(), of_search), (1_000, 500));
    }

    #[test]
    fn notes_of_many_rules_are_bounded() {
        let labels: Vec<_> = (0..100).map(|number| format!("r{number}")).collect();
        let penalties = penalties(&labels.iter().map(String::as_str).collect::<Vec<_>>());
        let mut notes = Notes::default();
        for penalty in &penalties {
            for number in 0..12_000 {
                deny(&mut notes, penalty, &number.to_string());
            }
        }
        // A rule may use what later ones do not: the sum of 1, 1/2, 1/3 … is less than 6.
        assert!(notes.len() <= 6 * MAX_NOTED_BY_ALL, "{}", notes.len());
    }
}
