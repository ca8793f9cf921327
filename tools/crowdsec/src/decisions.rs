//! The decisions that bouncers get: the blocks of divvy about addresses and networks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use divvy_core::clock::{Clock, NANOS_PER_SECOND, Timestamp};
use divvy_core::rules::Network;
use divvy_telemetry::logging::{Escaped, LogThrottle};
use parking_lot::Mutex;
use tokio::task::yield_now;

use crate::divvy_api::{ALL_RULES, Block, Divvy, DivvyError, Feed, OWNER, Update, network_of};
use crate::filter::DecisionFilter;
use crate::follower::MARK;
use crate::journal::{Journal, Reason};
use crate::listing::{Bouncer, Bouncers, ListAnswer, StreamAnswer};

/// Minimum time between two questions to divvy.
const UPDATE_EVERY_NS: u64 = NANOS_PER_SECOND;
/// Number of decisions that are changed before other tasks of the thread run.
const PAGE: usize = 500;

/// The decisions, and the bouncers that ask for them.
pub struct Decisions {
    divvy: Arc<Divvy>,
    field: Arc<str>,
    clock: Clock,
    journal: Arc<Mutex<Journal>>,
    bouncers: Arc<Mutex<Bouncers>>,
    /// Its lock admits one update at a time.
    feed: tokio::sync::Mutex<Feed>,
    /// Time of the last update (nanoseconds since 1970); 0 before the first one that divvy answered.
    updated: AtomicU64,
}

impl Decisions {
    /// Creates the decisions about the blocks of this field.
    pub fn new(divvy: Arc<Divvy>, field: Arc<str>, clock: Clock) -> Self {
        Self {
            feed: tokio::sync::Mutex::new(Feed::of_addresses(&field)),
            divvy,
            field,
            clock,
            journal: Arc::default(),
            bouncers: Arc::default(),
            updated: AtomicU64::new(0),
        }
    }

    /// Returns whether the journal has the blocks of less than a second ago.
    fn is_current(&self) -> bool {
        let (now, updated) = (self.clock.now().as_nanos(), self.updated.load(Relaxed));
        // After the clock was set back, the last update is no recent one.
        (updated..updated.saturating_add(UPDATE_EVERY_NS)).contains(&now)
    }

    /// Asks divvy for the blocks that have changed, unless it was asked a moment ago. If it does not answer, the known blocks
    /// stay until they end. Run it to its end, because half an update would keep blocks that do not exist anymore.
    ///
    /// # Errors
    /// divvy has never answered.
    pub async fn update(&self) -> Result<(), DivvyError> {
        let mut feed = self.feed.lock().await;
        // Another request may have updated it in the meantime.
        if self.is_current() {
            return Ok(());
        }
        let now = self.clock.now();
        match self.divvy.follow(&mut feed).await {
            Ok(update) => self.apply(update, now).await,
            Err(error) if self.updated.load(Relaxed) == 0 => return Err(error),
            Err(error) => {
                static FAILED: LogThrottle = LogThrottle::new();
                let (divvy, error) = (self.divvy.address(), error.to_string());
                let error = Escaped::error(&error);
                FAILED.say(
                    |more| tracing::warn!(divvy, %error, more, "cannot follow the blocks: bouncers get the known ones"),
                );
            }
        }
        self.updated.store(now.as_nanos(), Relaxed);
        Ok(())
    }

    async fn apply(&self, update: Update, now: Timestamp) {
        let blocks: Vec<_> = update.set.iter().filter_map(|block| with_reason(block, &self.field, now)).collect();
        if !update.is_whole {
            for changed in blocks.chunks(PAGE) {
                changed.iter().cloned().for_each(|(network, reason)| self.journal.lock().set(network, reason, now));
                yield_now().await;
            }
            for removed in &update.removed {
                if let Some(network) = network_of(&removed.rule, &removed.actor, &self.field) {
                    self.journal.lock().remove(network, &name_of(&removed.rule, &removed.actor), now);
                }
            }
            return;
        }
        for noted in blocks.chunks(PAGE) {
            self.journal.lock().note_all(noted.iter().cloned());
            yield_now().await;
        }
        let mut place = self.journal.lock().settle(None, PAGE, now);
        while place.is_some() {
            yield_now().await;
            place = self.journal.lock().settle(place, PAGE, now);
        }
    }

    /// Brings the journal to the present, which may take long if many blocks have ended. Other tasks run in between. Returns the
    /// time.
    async fn advance(&self) -> Timestamp {
        let now = self.clock.now();
        while !self.journal.lock().advance(PAGE, now) {
            yield_now().await;
        }
        now
    }

    /// Returns the answer with the decisions in force.
    pub async fn list(&self, filter: DecisionFilter) -> ListAnswer {
        let now = self.advance().await;
        ListAnswer::new(Arc::clone(&self.journal), filter, now)
    }

    /// Returns the answer with the decisions that have changed since the bouncer's last request, or with all of them if it
    /// starts or is not known.
    pub async fn stream(&self, bouncer: Bouncer, is_startup: bool, filter: DecisionFilter) -> StreamAnswer {
        let now = self.advance().await;
        let after = if is_startup { 0 } else { self.bouncers.lock().position(&bouncer) };
        let journal = self.journal.lock();
        if !journal.remembers_since(after) {
            static LATE: LogThrottle = LogThrottle::new();
            let user = bouncer.user().unwrap_or("-").to_owned();
            LATE.say(|more| {
                tracing::warn!(
                    user,
                    more,
                    "a CrowdSec bouncer has not asked for long, and may keep decisions that have ended: restart it"
                );
            });
        }
        let through = journal.last_change();
        drop(journal);
        StreamAnswer::new(Arc::clone(&self.journal), Arc::clone(&self.bouncers), bouncer, filter, now, after..through)
    }
}

/// Returns what distinguishes the block of a rule and an actor from others.
fn name_of(rule: &str, actor: &str) -> Box<str> {
    format!("{rule} {actor}").into()
}

fn with_reason(block: &Block, field: &str, now: Timestamp) -> Option<(Network, Reason)> {
    let Block { rule, actor, expires_in, reason, owner } = block;
    let network = network_of(rule, actor, field)?;
    let is_ban = rule == ALL_RULES && owner.as_deref() == Some(OWNER);
    let scenario = reason.as_deref().and_then(|reason| reason.strip_prefix(MARK)).filter(|_| is_ban);
    let (origin, scenario) = match (scenario, reason) {
        (Some(scenario), _) => ("crowdsec", scenario.to_owned()),
        (None, Some(reason)) => ("divvy", format!("divvy/{rule}: {reason}")),
        (None, None) => ("divvy", format!("divvy/{rule}")),
    };
    let ends = expires_in.map(|seconds| now.plus(seconds.saturating_mul(NANOS_PER_SECOND)));
    Some((network, Reason { block: name_of(rule, actor), ends, origin, scenario: scenario.into() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described(rule: &str, owner: Option<&str>, reason: Option<&str>) -> String {
        let actor = if rule == ALL_RULES { "ip=192.0.2.1" } else { "192.0.2.1" };
        let (owner, reason) = (owner.map(str::to_owned), reason.map(str::to_owned));
        let block = Block { rule: rule.into(), actor: actor.into(), expires_in: None, reason, owner };
        let (_, Reason { origin, scenario, .. }) = with_reason(&block, "ip", Timestamp::EPOCH).unwrap();
        format!("{origin} {scenario}")
    }

    #[test]
    fn scenario_names_the_rule_and_the_reason() {
        assert_eq!(described("*", None, None), "divvy divvy/*");
        assert_eq!(described("login", None, Some("5 denials")), "divvy divvy/login: 5 denials");
        assert_eq!(described("*", Some("crowdsec"), Some("crowdsec: ssh-bf")), "crowdsec ssh-bf");
        assert_eq!(described("*", None, Some("crowdsec: x")), "divvy divvy/*: crowdsec: x", "an operator's");
        assert_eq!(described("login", Some("crowdsec"), Some("crowdsec: x")), "divvy divvy/login: crowdsec: x");
    }
}
