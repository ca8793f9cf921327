//! Counts denials, and blocks the actors that a rule keeps denying.

use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::task::yield_now;

use super::Limiter;
use super::denials::{DeniedActor, Notes};
use super::register::owner::Class;
use crate::store::{
    Action, Batch, Changed, Effect, Exception, ExceptionChange, Repetition, Replaces, Setter, Store, StoreError,
    outcome_at,
};
use divvy_core::algorithm::{Ask, OutcomeSource};
use divvy_telemetry::logging::{Escaped, LogThrottle};

/// Maximum number of actors whose denials are counted in one batch.
const COUNTED_AT_ONCE: usize = 1_000;
/// Maximum number of blocks that are stored at a time. An operator's change waits for them.
const STORED_AT_ONCE: usize = 64;
/// One of this many blocks and allows is left to operators. Rules can use the others.
const OPERATORS_SHARE: usize = 10;

static BLOCKED: LogThrottle = LogThrottle::new();
static NOT_BLOCKED: LogThrottle = LogThrottle::new();

/// The reason why an actor was not blocked.
#[derive(Debug, thiserror::Error)]
enum NotBlocked {
    #[error("nine tenths of --max-blocks are in use; the rest is left to operators")]
    Full,
    #[error(transparent)]
    Store(#[from] StoreError),
}

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
    fn report_block(&self, denied: &DeniedActor, blocked: &Result<Option<u32>, NotBlocked>) {
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
                let error = error.to_string();
                let error = Escaped::error(&error);
                NOT_BLOCKED.say(|more| tracing::warn!(rule, %error, more, "a rule could not block an actor"));
            }
        }
    }

    /// Blocks the actors, unless they are blocked already. Returns the number of each block. They are stored together, because each
    /// takes a round trip to a distant store.
    async fn block(&self, due: &[&DeniedActor]) -> Vec<Result<Option<u32>, NotBlocked>> {
        let register = &self.exceptions;
        let _alone = register.known.lock().await;
        let mut room = self.room_for_blocks(due).await;
        let stored = due.iter().map(|denied| {
            let next = self.next_block(denied, &mut room);
            async {
                let Some((number, change)) = next? else { return Ok(None) };
                // Another server may know of a block by an operator.
                let changed = register.change(vec![change], &Replaces::OfRules, &self.store, denied.at).await?;
                Ok((!changed.contains(&Changed::Kept)).then_some(number))
            }
        });
        join_all(stored.collect::<Vec<_>>()).await
    }

    /// Returns the number of actors that rules may still block.
    async fn room_for_blocks(&self, due: &[&DeniedActor]) -> usize {
        let register = &self.exceptions;
        let room = || register.room(Class::Overrides).saturating_sub(register.bounds.overrides.max / OPERATORS_SHARE);
        let now = due.iter().map(|denied| denied.at).max().unwrap_or_default();
        if room() < due.len() {
            register.make_room(Class::Overrides, &self.store, now).await;
        }
        room()
    }

    /// Returns the actor's next block and its number, unless the actor is blocked already.
    fn next_block(&self, denied: &DeniedActor, room: &mut usize) -> Result<Option<(u32, ExceptionChange)>, NotBlocked> {
        let (DeniedActor { penalty, at, .. }, actor) = (denied, denied.actor());
        let known = self.exceptions.memory.find_remembered(&penalty.owner, actor, *at);
        if known.as_ref().is_some_and(|known| known.ends.is_none_or(|ends| ends > *at)) {
            return Ok(None);
        }
        if known.is_none() {
            *room = room.checked_sub(1).ok_or(NotBlocked::Full)?;
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
