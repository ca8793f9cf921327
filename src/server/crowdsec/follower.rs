//! Follows the decisions of a CrowdSec server: its bans are blocks for all rules, and end when CrowdSec says so.
//!
//! Nothing waits for that server. If it does not answer, its blocks stay in force until they end. Blocks that operators set
//! are never touched.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::yield_now;

use super::answer::{Answer, Followed, is_same_end};
use super::blocks::{Blocks, ChangeError, Known};
use super::upstream::{FetchError, Upstream};
use crate::clock::{NANOS_PER_SECOND, Timestamp};
use crate::limiter::Limiter;
use crate::logging::Escaped;
use crate::metrics::{Crowdsec, Effect};
use crate::rules::Network;

/// Maximum time between two requests while they fail, unless the interval is longer.
const MAX_PAUSE: Duration = Duration::from_secs(60);
/// Time after which all decisions are asked for again. This finds what was lost, such as a block that an operator removed.
const ASK_FOR_ALL_NS: u64 = 3_600 * NANOS_PER_SECOND;

/// Follows one CrowdSec.
pub struct Follower {
    upstream: Upstream,
    limiter: Arc<Limiter>,
    blocks: Blocks,
    interval: Duration,
}

/// A request that failed, or whose answer could not be put in force.
#[derive(Debug, thiserror::Error)]
enum PollError {
    #[error(transparent)]
    Fetch(#[from] FetchError),
    #[error("the store did not take all of the blocks: {0}")]
    Change(#[from] ChangeError),
}

/// The state between two requests.
struct Progress {
    /// Whether the next request is for all decisions.
    needs_all: bool,
    /// Time of the last answer with all decisions.
    had_all: Timestamp,
    /// Number of requests in a row that failed.
    failures: u32,
    is_followed: bool,
}

/// Numbers of decisions by their effect.
#[derive(Debug, Default)]
struct Effects {
    set: u64,
    removed: u64,
    kept: u64,
    full: u64,
}

impl Follower {
    /// Creates a follower, which asks once in each `interval`. Its blocks are about this field.
    pub fn new(upstream: Upstream, limiter: Arc<Limiter>, field: Arc<str>, interval: Duration) -> Self {
        Self { upstream, blocks: Blocks::new(Arc::clone(&limiter), field), limiter, interval }
    }

    /// Follows the CrowdSec server, and never returns.
    pub async fn run(&self) {
        let mut progress = Progress { needs_all: true, had_all: Timestamp::EPOCH, failures: 0, is_followed: false };
        loop {
            self.poll(&mut progress).await;
            tokio::time::sleep(self.pause(progress.failures)).await;
        }
    }

    /// Asks once, and puts the answer in force.
    async fn poll(&self, progress: &mut Progress) {
        let now = self.limiter.now();
        let is_for_all = progress.needs_all || now.since(progress.had_all) >= ASK_FOR_ALL_NS;
        let upstream = self.upstream.address();
        match self.ask(is_for_all, now).await {
            Ok(effects) => {
                self.metrics().answered();
                if is_for_all {
                    progress.had_all = now;
                }
                if !progress.is_followed {
                    let Effects { set, kept, removed, full } = effects;
                    tracing::info!(upstream, set, kept, removed, full, "following the decisions of CrowdSec");
                }
                if effects.full > 0 {
                    let full = effects.full;
                    tracing::warn!(upstream, full, "no room for blocks of CrowdSec: raise --max-blocks");
                }
                (progress.needs_all, progress.failures, progress.is_followed) = (false, 0, true);
            }
            Err(error) => {
                self.metrics().failed();
                // The CrowdSec may believe that the changes were read.
                progress.needs_all |= !matches!(&error, PollError::Fetch(error) if !error.may_have_been_answered());
                progress.failures = progress.failures.saturating_add(1);
                progress.is_followed = false;
                let error = error.to_string();
                tracing::warn!(
                    upstream,
                    error = %Escaped::error(&error),
                    "cannot follow the decisions of CrowdSec; its last known ones apply until they end"
                );
            }
        }
    }

    async fn ask(&self, is_for_all: bool, now: Timestamp) -> Result<Effects, PollError> {
        let mut answer = Answer::new(self.blocks.max(), now);
        self.upstream.fetch(is_for_all, |list, text| answer.add(list, text)).await?;
        answer.settle();
        self.metrics().count(Effect::Ignored, answer.others);
        self.metrics().count(Effect::Malformed, answer.malformed);
        let mut effects = Effects { full: answer.excess, ..Effects::default() };
        let done = self.put_in_force(answer, is_for_all, &mut effects).await;
        self.metrics().count(Effect::Set, effects.set);
        self.metrics().count(Effect::Removed, effects.removed);
        self.metrics().count(Effect::Kept, effects.kept);
        self.metrics().count(Effect::Full, effects.full);
        done?;
        Ok(effects)
    }

    /// Removes the blocks whose bans have ended, which makes room, and sets the others.
    async fn put_in_force(&self, answer: Answer, is_for_all: bool, effects: &mut Effects) -> Result<(), PollError> {
        let Answer { bans, ended, .. } = answer;
        let mut ended: Vec<Network> = ended.into_iter().collect();
        if is_for_all {
            ended.extend(self.blocks.followed().await.into_iter().filter(|network| !bans.contains_key(network)));
        }
        for network in ended {
            effects.removed += u64::from(self.remove(network).await?);
            yield_now().await;
        }
        for (network, ban) in bans {
            yield_now().await;
            match self.set(network, &ban).await {
                Ok(Some(Effect::Kept)) => effects.kept += 1,
                Ok(Some(_)) => effects.set += 1,
                Ok(None) => {}
                Err(ChangeError::Full) => effects.full += 1,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Removes the block of a ban. Returns whether there was one.
    async fn remove(&self, network: Network) -> Result<bool, ChangeError> {
        match self.blocks.find(network) {
            Some(Known { scenario: Some(_), .. }) => self.blocks.remove(network).await,
            _ => Ok(false),
        }
    }

    /// Sets the block of a ban. Returns `None` if it is in force already.
    async fn set(&self, network: Network, ban: &Followed) -> Result<Option<Effect>, ChangeError> {
        match self.blocks.find(network) {
            None => {}
            Some(Known { scenario: None, .. }) => return Ok(Some(Effect::Kept)),
            Some(Known { scenario: Some(scenario), ends: Some(ends) })
                if is_same_end(ends, ban.ends) && *scenario == *ban.scenario =>
            {
                return Ok(None);
            }
            Some(_) => {}
        }
        self.blocks.set(network, ban.ends, &ban.scenario).await?;
        Ok(Some(Effect::Set))
    }

    /// Returns the pause after this number of failures in a row.
    fn pause(&self, failures: u32) -> Duration {
        let doubled = self.interval.saturating_mul(1_u32.checked_shl(failures).unwrap_or(u32::MAX));
        doubled.min(self.interval.max(MAX_PAUSE))
    }

    fn metrics(&self) -> &Crowdsec {
        &self.limiter.metrics().crowdsec
    }
}
