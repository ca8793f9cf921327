//! Follows the decisions of a CrowdSec server: its bans are blocks for all rules, and end when CrowdSec says so.
//!
//! Nothing waits for that server. If it does not answer, or this program does not run, its blocks stay in force until they end.
//! Blocks that operators set are never touched: divvy makes a change only to a block with the same owner.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use divvy_core::clock::{NANOS_PER_SECOND, Timestamp};
use divvy_core::rules::Network;
use divvy_telemetry::logging::Escaped;

use crate::Shared;
use crate::client::UnreadRequest;
use crate::divvy_api::{ALL_RULES, Edit, EditCounts, Feed, MARK, OWNER};
use crate::upstream::{Answer, Ban, Upstream, is_same_end};

/// Maximum number of bans that are followed, which bounds the memory of a list. divvy's --max-blocks is 1,000,000 unless it was
/// changed.
const MAX_FOLLOWED: usize = 1_000_000;

/// Maximum time between two requests while they fail, unless the interval is longer.
const MAX_PAUSE: Duration = Duration::from_secs(60);
/// Time after which all decisions are asked for again. This finds what was lost, such as a block that an operator removed.
const ASK_FOR_ALL_NS: u64 = 3_600 * NANOS_PER_SECOND;

/// A list of all decisions that lacks more than one in this many of the known bans is confirmed by the next one.
const MOST_LACKING: usize = 10;

/// The context of an error of divvy.
const DIVVY_FAILED: &str = "divvy did not take all of the blocks, or does not list them";

/// Follows one CrowdSec.
pub struct Follower {
    upstream: Upstream,
    shared: Arc<Shared>,
    /// Time between two requests.
    interval: Duration,
    /// Whether the next request is for all decisions.
    needs_all: bool,
    /// Time of the last answer with all decisions.
    had_all: Timestamp,
    /// Number of requests in a row that failed.
    failures: u32,
    /// The blocks in divvy, and what distinguishes them from later ones.
    own: HashMap<Network, OwnBlock>,
    feed: Feed,
    /// The networks with a block that the last list of all decisions lacked, if they were too many to believe it.
    doubted: HashSet<Network>,
}

/// A block that is a ban of CrowdSec.
#[derive(Debug)]
struct OwnBlock {
    /// Its end; `None` if it is permanent.
    ends: Option<Timestamp>,
    scenario: Box<str>,
}

impl Follower {
    /// Creates a follower, which asks once in each `interval`.
    pub fn new(upstream: Upstream, shared: Arc<Shared>, interval: Duration) -> Self {
        let feed = Feed::new(&[("rule", ALL_RULES), ("owner", OWNER)]);
        let (own, doubted) = (HashMap::new(), HashSet::new());
        let (needs_all, had_all, failures) = (true, Timestamp::EPOCH, 0);
        Self { upstream, shared, interval, needs_all, had_all, failures, own, feed, doubted }
    }

    /// Follows the CrowdSec server, and never returns.
    pub async fn run(mut self) {
        let mut is_followed = false;
        loop {
            is_followed = self.poll(is_followed).await;
            let doubled = self.interval.saturating_mul(1_u32.checked_shl(self.failures).unwrap_or(u32::MAX));
            tokio::time::sleep(doubled.min(self.interval.max(MAX_PAUSE))).await;
        }
    }

    /// Asks once, and puts the answer in force. Returns whether that succeeded.
    async fn poll(&mut self, was_followed: bool) -> bool {
        let asked = self.ask(self.shared.clock.now()).await;
        let upstream = &self.upstream.client.address;
        self.shared.metrics.polls.with_label_values(&[if asked.is_ok() { "ok" } else { "failed" }]).inc();
        self.shared.metrics.failing.set(asked.is_err().into());
        match &asked {
            Ok(EditCounts { set, kept, removed, full }) => {
                if !was_followed {
                    tracing::info!(upstream, set, kept, removed, full, "following the decisions of CrowdSec");
                }
                if *full > 0 {
                    tracing::warn!(upstream, full, "no room for blocks of CrowdSec: raise divvy's --max-blocks");
                }
                self.failures = 0;
            }
            Err(error) => {
                self.failures = self.failures.saturating_add(1);
                let error = format!("{error:#}");
                tracing::warn!(
                    upstream,
                    error = %Escaped::error(&error),
                    "cannot follow the decisions of CrowdSec; its last known ones apply until they end"
                );
            }
        }
        asked.is_ok()
    }

    async fn ask(&mut self, now: Timestamp) -> anyhow::Result<EditCounts> {
        // Until the answer is in force: CrowdSec may believe that its changes were read.
        let needed_all = std::mem::replace(&mut self.needs_all, true);
        let is_renewed = self.follow_own(now).await.context(DIVVY_FAILED)?;
        let is_for_all = needed_all || is_renewed || now.distance(self.had_all) >= ASK_FOR_ALL_NS;
        let fetched = self.upstream.fetch(is_for_all, Answer::new(MAX_FOLLOWED, now)).await;
        if fetched.as_ref().is_err_and(anyhow::Error::is::<UnreadRequest>) {
            self.needs_all = needed_all || is_renewed;
        }
        let answer = fetched?;
        let malformed = answer.malformed;
        if is_for_all {
            self.had_all = now;
        }
        let (others, mut edited) = (answer.others, EditCounts { full: answer.excess, ..EditCounts::default() });
        // A damaged answer only adds to what is known.
        let is_confirmed = self.put_in_force(&answer, is_for_all && malformed == 0, &mut edited).await;
        let EditCounts { set, removed, kept, full } = edited;
        for (effect, count) in [
            ("set", set),
            ("removed", removed),
            ("kept", kept),
            ("full", full),
            ("ignored", others),
            ("malformed", malformed),
        ] {
            self.shared.metrics.decisions.with_label_values(&[effect]).inc_by(count);
        }
        let is_confirmed = is_confirmed.context(DIVVY_FAILED)?;
        ensure!(
            malformed == 0,
            "{malformed} of its decisions are not as CrowdSec writes them; no block was lifted because it lacks them"
        );
        self.needs_all = !is_confirmed;
        Ok(edited)
    }

    /// Learns which blocks divvy has. Returns whether it lists all of them. It may have lost some, as after a restart without a
    /// disk, so all decisions are asked for again.
    async fn follow_own(&mut self, now: Timestamp) -> anyhow::Result<bool> {
        let update = self.shared.divvy.follow(&mut self.feed).await?;
        if update.is_whole {
            self.own.clear();
        }
        for block in update.set {
            if let Some(network) = block.network(&self.shared.field) {
                let ends = block.expires_in.map(|seconds| now.plus(seconds.saturating_mul(NANOS_PER_SECOND)));
                let scenario = block.reason.as_deref().and_then(|reason| reason.strip_prefix(MARK)).unwrap_or_default();
                self.own.insert(network, OwnBlock { ends, scenario: scenario.into() });
            }
        }
        for network in update.removed.iter().filter_map(|block| block.network(&self.shared.field)) {
            self.own.remove(&network);
        }
        // divvy does not name blocks that end at their time.
        self.own.retain(|_, own| own.ends.is_none_or(|ends| ends > now));
        Ok(update.is_whole)
    }

    /// Sets blocks for the bans of an answer. One with all decisions also shortens blocks, and removes those whose bans have ended,
    /// which makes room. Returns false if the next request must be for all decisions.
    async fn put_in_force(&mut self, answer: &Answer, is_whole: bool, edited: &mut EditCounts) -> anyhow::Result<bool> {
        let lacking = if is_whole { self.lacking(answer) } else { Vec::new() };
        let actor = |network: &Network| format!("{}={network}", self.shared.field);
        let removals = lacking.iter().map(|network| Edit::remove(actor(network)));
        let sets = answer.bans.iter().filter_map(|(network, Ban { ends, scenario })| {
            let is_known = self.own.get(network).is_some_and(|own| match own.ends {
                Some(known) => is_same_end(known, *ends) && *own.scenario == **scenario || !is_whole && known > *ends,
                None => !is_whole,
            });
            (!is_known).then(|| Edit::set(actor(network), answer.time, *ends, format!("{MARK}{scenario}")))
        });
        // A box, because the compiler cannot prove that a task may hold these closures.
        let edits: Box<dyn Iterator<Item = Edit> + Send + '_> = Box::new(removals.chain(sets));
        self.shared.divvy.edit(edits, edited).await?;
        // The network may have other bans, which a list of all decisions shows. A block at its end needs none.
        let has_ended = |network: &Network| {
            self.own.get(network).is_some_and(|own| own.ends.is_none_or(|ends| !is_same_end(ends, answer.time)))
        };
        Ok(self.doubted.is_empty() && (is_whole || !answer.ended.iter().any(has_ended)))
    }

    /// Returns the networks with a block that a list of all decisions lacks. If it lacks more than a tenth of them, CrowdSec may
    /// have sent a part only: it ends its answer properly after an error of its database. Then only those are returned that
    /// the list before lacked, too. The others are doubted, and the next request is for all decisions again.
    fn lacking(&mut self, answer: &Answer) -> Vec<Network> {
        let doubted = std::mem::take(&mut self.doubted);
        let lacking = self.own.keys().copied().filter(|network| !answer.bans.contains_key(network));
        // CrowdSec says that a ban of the network has ended, and names no other one.
        let (mut believed, unnamed): (Vec<_>, Vec<_>) = lacking.partition(|network| answer.ended.contains(network));
        if unnamed.len().saturating_mul(MOST_LACKING) <= self.own.len() {
            believed.extend(unnamed);
            return believed;
        }
        let (confirmed, unconfirmed): (Vec<_>, Vec<_>) =
            unnamed.into_iter().partition(|network| doubted.contains(network));
        believed.extend(confirmed);
        if !unconfirmed.is_empty() {
            tracing::warn!(
                upstream = &self.upstream.client.address,
                "the list of all decisions lacks {} of {} bans: they stay until the next list lacks them, too",
                unconfirmed.len(),
                self.own.len()
            );
        }
        self.doubted = unconfirmed.into_iter().collect();
        believed
    }
}
