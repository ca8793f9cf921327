//! Counts denials, and blocks the actors that a rule keeps denying.

use std::sync::atomic::Ordering::Relaxed;

use super::Limiter;
use super::admin::limits::MAX_ACTOR;
use super::denials::DeniedActor;
use crate::algorithm::Ask;
use crate::logging::{Escaped, LogThrottle};
use crate::store::{Action, Batch, ExceptionChange, Override, Repetition, Store, StoreError, outcome_at};

/// Maximum number of actors whose denials are counted in one batch.
const COUNTED_AT_ONCE: usize = 1_000;
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

    /// Counts the denials that were noted, and blocks the actors that a rule has denied too often. If the store fails, the
    /// denials do not count, and the actor's next denial leads to the block that could not be set.
    pub async fn count_denials(&self) {
        let denied = self.observers.denials.take();
        for denied in denied.chunks(COUNTED_AT_ONCE) {
            let due = self.count(denied).await;
            if !due.is_empty() {
                self.penalize(&due).await;
            }
        }
    }

    /// Counts denials. Returns the actors that were denied too often.
    async fn count<'a>(&self, denied: &'a [DeniedActor]) -> Vec<&'a DeniedActor> {
        let mut batch = Batch::default();
        batch.begin(denied.iter().map(|denied| denied.at).max().unwrap_or_default());
        for DeniedActor { penalty, counter, count, .. } in denied {
            let count = Action::Ask(Ask::Count { cost: *count });
            batch.push(penalty.limit, count, batch.now(), |key| key.extend_from_slice(counter));
        }
        self.store.apply(&mut batch).await;
        let is_due = |index| outcome_at(&batch.outcomes, index).is_ok_and(|outcome| outcome.left == 0);
        denied.iter().enumerate().filter(|(index, _)| is_due(*index)).map(|(_, denied)| denied).collect()
    }

    /// Blocks the actors, and forgets their denials.
    async fn penalize(&self, due: &[&DeniedActor]) {
        let registry = &self.overrides.registry;
        if self.store.is_shared() {
            // Other servers may have blocked some of them. If that cannot be read, the blocks known so far apply, and the log of
            // the task that follows the store has the error.
            let _ = registry.follow(&self.store, self.clock).await;
        }
        let mut batch = Batch::default();
        batch.begin(due.iter().map(|denied| denied.at).max().unwrap_or_default());
        for denied in due {
            let Some(actor) = denied.actor().filter(|actor| actor.len() <= MAX_ACTOR) else { continue };
            let blocked = self.block(denied, actor).await;
            self.report_block(denied, actor, &blocked);
            if blocked.is_ok() {
                let write_key = |key: &mut Vec<u8>| key.extend_from_slice(&denied.counter);
                batch.push(denied.penalty.limit, Action::Forget, batch.now(), write_key);
            }
        }
        if !batch.is_empty() {
            self.store.apply(&mut batch).await;
        }
    }

    /// Counts and logs the result of [`Limiter::block`].
    fn report_block(&self, denied: &DeniedActor, actor: &str, blocked: &Result<Option<u32>, NotBlocked>) {
        let rule = &denied.penalty.label;
        match blocked {
            Ok(None) => {}
            Ok(Some(number)) => {
                self.penalties.blocked.fetch_add(1, Relaxed);
                let actor = Escaped::new(actor.as_bytes());
                BLOCKED.say(|more| tracing::info!(rule, %actor, number, more, "a rule blocked an actor"));
            }
            Err(error) => {
                self.penalties.failed.fetch_add(1, Relaxed);
                let error = error.to_string();
                let error = Escaped::error(&error);
                NOT_BLOCKED.say(|more| tracing::warn!(rule, %error, more, "a rule could not block an actor"));
            }
        }
    }

    /// Blocks the actor, unless it is blocked already. Returns the number of the block.
    async fn block(&self, denied: &DeniedActor, actor: &str) -> Result<Option<u32>, NotBlocked> {
        let (registry, DeniedActor { penalty, at, .. }) = (&self.overrides.registry, denied);
        let _alone = registry.known.lock().await;
        let known = registry.memory.find_remembered(&penalty.owner, actor, *at);
        if known.as_ref().is_some_and(|known| known.ends.is_none_or(|ends| ends > *at)) {
            return Ok(None);
        }
        if known.is_none() && !registry.has_room(registry.max / OPERATORS_SHARE, &self.store, *at) {
            return Err(NotBlocked::Full);
        }
        let number = known.and_then(|known| known.repetition).map_or(1, |before| before.number.saturating_add(1));
        let times = penalty.terms.block_times(actor, number, *at, self.penalties.jitter);
        let reason =
            format!("{} denials in {} s, block {number}", penalty.terms.after, penalty.terms.window_seconds(),);
        let repetition = Some(Repetition { number, forgotten: times.forgotten });
        let value = Override { reason: Some(reason.into()), ends: Some(times.ends), repetition };
        let change = ExceptionChange { owner: penalty.owner.clone(), actor: actor.to_owned(), value: Some(value) };
        registry.change(change, &self.store, *at).await?;
        Ok(Some(number))
    }
}
