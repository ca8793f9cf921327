//! Follows the decisions of a CrowdSec server: its bans are blocks for all rules, and end when CrowdSec says so.
//!
//! Nothing waits for that server. If it does not answer, or this program does not run, its blocks stay in force until they end.
//! Blocks that operators set are never touched: divvy makes a change only to a block with the same owner.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use divvy_core::clock::{Clock, NANOS_PER_SECOND, Timestamp};
use divvy_core::rules::Network;
use divvy_telemetry::logging::Escaped;

use crate::answer::{Answer, Followed, add_ban, is_same_end};
use crate::divvy_api::{Block, Divvy, DivvyError, Edit, Edited, Feed, network_of};
use crate::metrics::{Effect, Metrics};
use crate::upstream::{FetchError, Upstream};

/// Beginning of the reason of a block that is a ban of CrowdSec.
pub const MARK: &str = "crowdsec: ";
/// Maximum number of bans that are followed, which bounds the memory of a list. divvy's --max-blocks is 1,000,000 unless it was
/// changed.
const MAX_FOLLOWED: usize = 1_000_000;

/// Maximum time between two requests while they fail, unless the interval is longer.
const MAX_PAUSE: Duration = Duration::from_secs(60);
/// Time after which all decisions are asked for again. This finds what was lost, such as a block that an operator removed.
const ASK_FOR_ALL_NS: u64 = 3_600 * NANOS_PER_SECOND;

/// A list of all decisions that lacks more than one in this many of the known bans is confirmed by the next one.
const MOST_LACKING: usize = 10;

/// Time until the next request for all decisions, if the end of one ban may be that of others of its network, too.
const DOUBT_NS: u64 = 60 * NANOS_PER_SECOND;

/// Follows one CrowdSec.
pub struct Follower {
    upstream: Upstream,
    divvy: Arc<Divvy>,
    field: Arc<str>,
    interval: Duration,
    clock: Clock,
    metrics: Arc<Metrics>,
}

/// A block that is a ban of CrowdSec.
#[derive(Debug)]
struct Own {
    /// Its end; `None` if it is permanent.
    ends: Option<Timestamp>,
    scenario: Box<str>,
}

/// A request that failed, or whose answer could not be put in force.
#[derive(Debug, thiserror::Error)]
enum PollError {
    #[error(transparent)]
    Fetch(#[from] FetchError),
    #[error("divvy did not take all of the blocks, or does not list them: {0}")]
    Divvy(#[from] DivvyError),
    #[error("{0} of its decisions are not as CrowdSec writes them; no block was lifted because it lacks them")]
    Malformed(u64),
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
    /// The blocks in divvy, and what distinguishes them from later ones.
    own: HashMap<Network, Own>,
    feed: Feed,
    /// The bans of each network, because the end of one is not the end of all.
    bans: HashMap<Network, Vec<Followed>>,
    /// The networks with a block that the last list of all decisions lacked, if they were too many to believe it.
    doubted: HashSet<Network>,
}

impl Follower {
    /// Creates a follower, which asks once in each `interval`. Its blocks are about this field.
    pub fn new(
        upstream: Upstream,
        divvy: Arc<Divvy>,
        field: Arc<str>,
        interval: Duration,
        clock: Clock,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self { upstream, divvy, field, interval, clock, metrics }
    }

    /// Follows the CrowdSec server, and never returns.
    pub async fn run(&self) {
        let mut progress = Progress {
            needs_all: true,
            had_all: Timestamp::EPOCH,
            failures: 0,
            is_followed: false,
            own: HashMap::new(),
            feed: Feed::of_own(),
            bans: HashMap::new(),
            doubted: HashSet::new(),
        };
        loop {
            self.poll(&mut progress).await;
            tokio::time::sleep(self.pause(progress.failures)).await;
        }
    }

    /// Asks once, and puts the answer in force.
    async fn poll(&self, progress: &mut Progress) {
        let now = self.clock.now();
        let upstream = self.upstream.address();
        match self.ask(now, progress).await {
            Ok(effects) => {
                self.metrics.answered();
                if !progress.is_followed {
                    let Edited { set, kept, removed, full } = effects;
                    tracing::info!(upstream, set, kept, removed, full, "following the decisions of CrowdSec");
                }
                if effects.full > 0 {
                    let full = effects.full;
                    tracing::warn!(upstream, full, "no room for blocks of CrowdSec: raise divvy's --max-blocks");
                }
                (progress.failures, progress.is_followed) = (0, true);
            }
            Err(error) => {
                self.metrics.failed();
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

    async fn ask(&self, now: Timestamp, progress: &mut Progress) -> Result<Edited, PollError> {
        self.follow_own(now, progress).await?;
        let is_for_all = progress.needs_all || now.distance(progress.had_all) >= ASK_FOR_ALL_NS;
        let mut answer = Answer::new(MAX_FOLLOWED, now);
        self.upstream.fetch(is_for_all, |list, text| answer.add(list, text)).await?;
        progress.needs_all = false;
        let malformed = answer.malformed;
        if malformed > 0 {
            // A damaged answer only adds to what is known. The next request is for all decisions.
            answer.ended.clear();
        }
        self.metrics.count(Effect::Ignored, answer.others);
        self.metrics.count(Effect::Malformed, malformed);
        if is_for_all {
            progress.had_all = now;
        }
        let mut effects = Edited { full: answer.excess, ..Edited::default() };
        let done = self.put_in_force(answer, is_for_all && malformed == 0, progress, &mut effects).await;
        self.metrics.count(Effect::Set, effects.set);
        self.metrics.count(Effect::Removed, effects.removed);
        self.metrics.count(Effect::Kept, effects.kept);
        self.metrics.count(Effect::Full, effects.full);
        done?;
        if malformed > 0 { Err(PollError::Malformed(malformed)) } else { Ok(effects) }
    }

    /// Learns which blocks divvy has. If it has lost some, as after a restart without a disk, all decisions are asked for again.
    async fn follow_own(&self, now: Timestamp, progress: &mut Progress) -> Result<(), DivvyError> {
        let update = self.divvy.follow(&mut progress.feed).await?;
        if update.is_whole {
            progress.own.clear();
            progress.needs_all = true;
        }
        for Block { rule, actor, expires_in, reason, .. } in update.set {
            if let Some(network) = network_of(&rule, &actor, &self.field) {
                let ends = expires_in.map(|seconds| now.plus(seconds.saturating_mul(NANOS_PER_SECOND)));
                let scenario = reason.as_deref().and_then(|reason| reason.strip_prefix(MARK)).unwrap_or_default();
                progress.own.insert(network, Own { ends, scenario: scenario.into() });
            }
        }
        for gone in update.removed {
            if let Some(network) = network_of(&gone.rule, &gone.actor, &self.field) {
                progress.own.remove(&network);
            }
        }
        // divvy does not name blocks that end at their time.
        progress.own.retain(|_, own| own.ends.is_none_or(|ends| ends > now));
        Ok(())
    }

    /// Removes the blocks whose bans have ended, which makes room, and sets the others.
    async fn put_in_force(
        &self,
        answer: Answer,
        is_for_all: bool,
        progress: &mut Progress,
        effects: &mut Edited,
    ) -> Result<(), PollError> {
        let (answer_time, is_damaged) = (answer.time(), answer.malformed > 0);
        let (mut ended, mut changed) = (Vec::new(), answer.bans);
        if is_for_all {
            ended = self.lacking(&changed, &answer.ended, progress);
            progress.bans = changed.clone();
        } else {
            for (network, id) in answer.ended {
                if changed.contains_key(&network) {
                    continue;
                }
                let known = progress.bans.entry(network).or_default();
                known.retain(|ban| ban.id != id);
                if known.is_empty() {
                    progress.bans.remove(&network);
                    ended.push(network);
                } else {
                    // The other bans may have ended, too: CrowdSec may name only one of them. A list of all will show it.
                    progress.had_all = progress.had_all.min(answer_time.minus(ASK_FOR_ALL_NS - DOUBT_NS));
                    changed.insert(network, known.clone());
                }
            }
            for (network, bans) in &mut changed {
                let known = progress.bans.remove(network).unwrap_or_default();
                known.into_iter().for_each(|ban| add_ban(bans, ban));
                if progress.bans.len() < MAX_FOLLOWED {
                    progress.bans.insert(*network, bans.clone());
                }
            }
        }
        let ended = ended.into_iter().filter(|network| progress.own.contains_key(network));
        let removals: Vec<_> = ended.map(|network| Edit::Remove { actor: self.actor(network) }).collect();
        let bans = changed.iter().filter_map(|(network, bans)| Some((*network, bans.first()?)));
        let sets = bans.filter_map(|(network, longest)| {
            let known = progress.own.get(&network);
            if Self::is_set(known, longest) || (is_damaged && Self::lasts_longer(known, longest)) {
                return None;
            }
            let reason = format!("{MARK}{}", longest.scenario);
            Some(Edit::Set { actor: self.actor(network), ends: longest.ends, reason })
        });
        let mut note = |edited: Edited| {
            effects.set += edited.set;
            effects.removed += edited.removed;
            effects.kept += edited.kept;
            effects.full += edited.full;
        };
        // Removed blocks make room for new ones.
        self.divvy.edit(removals.into_iter(), answer_time, &mut note).await?;
        self.divvy.edit(sets, answer_time, &mut note).await?;
        Ok(())
    }

    /// Returns the networks with a block that a list of all decisions lacks. If it lacks more than a tenth of them, CrowdSec may
    /// have sent a part only: it ends its answer properly after an error of its database. Then only those are returned that
    /// the list before lacked, too, and the next request is for all decisions again.
    fn lacking(
        &self,
        bans: &HashMap<Network, Vec<Followed>>,
        ended: &HashSet<(Network, u64)>,
        progress: &mut Progress,
    ) -> Vec<Network> {
        let count = progress.own.len();
        let lacking: Vec<_> = progress.own.keys().copied().filter(|network| !bans.contains_key(network)).collect();
        // CrowdSec says that each known ban of the network has ended.
        let is_named = |network: &Network| {
            let known = progress.bans.get(network).map_or(&[][..], Vec::as_slice);
            !known.is_empty() && known.iter().all(|ban| ended.contains(&(*network, ban.id)))
        };
        let (named, unnamed): (Vec<_>, Vec<_>) = lacking.into_iter().partition(is_named);
        if unnamed.len().saturating_mul(MOST_LACKING) <= count {
            progress.doubted.clear();
            return named.into_iter().chain(unnamed).collect();
        }
        let (believed, doubted): (Vec<_>, HashSet<_>) = {
            let is_confirmed = |network: &&Network| progress.doubted.contains(*network);
            (
                unnamed.iter().filter(is_confirmed).copied().collect(),
                unnamed.iter().filter(|n| !is_confirmed(n)).copied().collect(),
            )
        };
        if !doubted.is_empty() {
            progress.needs_all = true;
            tracing::warn!(
                upstream = self.upstream.address(),
                "the list of all decisions lacks {} of {count} bans: they stay until the next list lacks them, too",
                doubted.len()
            );
        }
        progress.doubted = doubted;
        named.into_iter().chain(believed).collect()
    }

    /// Returns whether the network's block lasts longer than the ban.
    fn lasts_longer(known: Option<&Own>, ban: &Followed) -> bool {
        known.is_some_and(|known| known.ends.is_none_or(|ends| ends > ban.ends))
    }

    /// Returns whether the ban's block is in force already.
    fn is_set(known: Option<&Own>, ban: &Followed) -> bool {
        known.is_some_and(|known| {
            known.ends.is_some_and(|ends| is_same_end(ends, ban.ends)) && *known.scenario == *ban.scenario
        })
    }

    fn actor(&self, network: Network) -> String {
        format!("{}={network}", self.field)
    }

    /// Returns the pause after this number of failures in a row.
    fn pause(&self, failures: u32) -> Duration {
        let doubled = self.interval.saturating_mul(1_u32.checked_shl(failures).unwrap_or(u32::MAX));
        doubled.min(self.interval.max(MAX_PAUSE))
    }
}
