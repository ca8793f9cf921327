//! Requests for decisions to a CrowdSec server, and the bans in its answers.
//!
//! An answer may have hundreds of thousands of decisions, and its sender is not trusted. So the length of an answer is bounded, and
//! only one of its decisions is parsed at a time.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use anyhow::{anyhow, bail};
use divvy_core::clock::{NANOS_PER_SECOND, Timestamp};
use divvy_core::json::Object;
use divvy_core::rules::Network;
use hyper::header::HeaderName;
use hyper::{Method, StatusCode};
use serde::Deserialize;
use serde::de::{Deserializer, SeqAccess, Visitor};
use serde_json::value::RawValue;
use tokio::task::spawn_blocking;

use crate::client::{Client, UnreadRequest};
use crate::decision::RemoteDecision;

/// Header with the key of a bouncer.
pub const API_KEY: HeaderName = HeaderName::from_static("x-api-key");
/// Maximum length of an answer (bytes): more than half a million decisions.
const MAX_ANSWER: usize = 128 << 20;
/// Maximum length of a scenario's name that is kept (bytes).
const MAX_SCENARIO: usize = 128;
/// Maximum number of scenarios that share their memory. CrowdSec's hub has a few hundred.
const MAX_SHARED: usize = 4_096;

/// A CrowdSec server whose decisions divvy follows.
pub struct Upstream {
    /// Sends the key of a bouncer.
    pub client: Client,
}

impl Upstream {
    /// Asks for all decisions (`is_startup`), or for those since the last answer, and adds them to `answer`.
    ///
    /// # Errors
    /// There is no answer, or it is not one of CrowdSec. [`UnreadRequest`] if CrowdSec can't believe that its answer was read.
    pub async fn fetch(&self, is_startup: bool, answer: Answer) -> anyhow::Result<Answer> {
        let path = format!("/v1/decisions/stream?startup={is_startup}&scopes=ip,range");
        match self.client.send(Method::GET, &path, None, MAX_ANSWER).await? {
            // Parsing a long answer takes a while.
            (StatusCode::OK, body) => spawn_blocking(move || parse(&body, answer)).await?,
            (status @ (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN), _) => bail!(UnreadRequest(format!(
                "it refuses the key (status {status}): `cscli bouncers add divvy` makes one"
            ))),
            (status, _) => bail!("it answers with status {status}"),
        }
    }
}

/// The lists of an answer. CrowdSec always writes both, and `null` for an empty one.
#[derive(Deserialize)]
struct Lists<'a> {
    #[serde(borrow, deserialize_with = "Option::deserialize")]
    new: Option<&'a RawValue>,
    #[serde(borrow, deserialize_with = "Option::deserialize")]
    deleted: Option<&'a RawValue>,
}

/// Adds the decisions in an answer.
fn parse(body: &[u8], mut answer: Answer) -> anyhow::Result<Answer> {
    let wrong = |error: serde_json::Error| match error.is_eof() {
        true => anyhow!("the answer ends too early"),
        false => anyhow!("the answer is not JSON with the lists `new` and `deleted`"),
    };
    let lists: Lists<'_> = serde_json::from_slice(body).map_err(wrong)?;
    for (list, text) in [(DecisionList::New, lists.new), (DecisionList::Deleted, lists.deleted)] {
        let Some(text) = text else { continue };
        let add = Add { answer: &mut answer, list };
        serde_json::Deserializer::from_str(text.get()).deserialize_seq(add).map_err(wrong)?;
    }
    Ok(answer)
}

/// Adds each decision of a list.
struct Add<'a> {
    answer: &'a mut Answer,
    list: DecisionList,
}

impl<'de> Visitor<'de> for Add<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of decisions")
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut list: S) -> Result<(), S::Error> {
        while let Some(decision) = list.next_element::<&RawValue>()? {
            self.answer.add(self.list, decision.get());
        }
        Ok(())
    }
}

/// The list that a decision is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DecisionList {
    /// Decisions in force.
    New,
    /// Decisions that have ended.
    Deleted,
}

/// A ban to put in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ban {
    /// Its end.
    pub ends: Timestamp,
    /// The scenario's name.
    pub scenario: Arc<str>,
}

/// The decisions of an answer that divvy follows. Its memory is bounded by the number of networks in it.
#[derive(Debug, Default)]
pub struct Answer {
    /// The bans in force: of each network, the one that ends last.
    pub bans: HashMap<Network, Ban>,
    /// The networks of bans that have ended.
    pub ended: HashSet<Network>,
    /// Number of decisions that divvy does not follow: of another type, or about something else than addresses.
    pub others: u64,
    /// Number of decisions that are not as CrowdSec writes them.
    pub malformed: u64,
    /// Number of bans and of ended ones that found no room.
    pub excess: u64,
    /// The time of the request.
    pub time: Timestamp,
    max: usize,
    scenarios: HashSet<Arc<str>>,
}

impl Answer {
    /// Creates the answer to a request at this time, with room for `max` bans and as many ended ones.
    pub fn new(max: usize, time: Timestamp) -> Self {
        Self { max, time, ..Self::default() }
    }

    fn add(&mut self, list: DecisionList, text: &str) {
        let Ok(Object(decision)) = serde_json::from_str::<Object<RemoteDecision<'_>>>(text) else {
            self.malformed += 1;
            return;
        };
        let Some((network, remaining)) = decision.ban() else {
            self.others += 1;
            return;
        };
        match list {
            DecisionList::Deleted if self.ended.len() < self.max => {
                self.ended.insert(network);
            }
            DecisionList::New if self.bans.len() < self.max || self.bans.contains_key(&network) => {
                let ends = self.time.plus(u64::try_from(remaining.as_nanos()).unwrap_or(u64::MAX));
                if ends > self.bans.get(&network).map_or(self.time, |known| known.ends) {
                    let scenario = self.share(&decision.scenario);
                    self.bans.insert(network, Ban { ends, scenario });
                }
            }
            DecisionList::Deleted | DecisionList::New => self.excess += 1,
        }
    }

    /// Returns the scenario's name, whose memory all its decisions share. A reason for a block has no control characters.
    fn share(&mut self, scenario: &str) -> Arc<str> {
        let scenario = scenario.get(..scenario.floor_char_boundary(MAX_SCENARIO)).unwrap_or_default();
        let scenario = scenario.replace(char::is_control, "?");
        if let Some(known) = self.scenarios.get(scenario.as_str()) {
            return Arc::clone(known);
        }
        let scenario = Arc::<str>::from(scenario);
        if self.scenarios.len() < MAX_SHARED {
            self.scenarios.insert(Arc::clone(&scenario));
        }
        scenario
    }
}

/// Returns whether two ends are the same, as far as answers show it: CrowdSec rounds the remaining time to seconds, and answers
/// take a while.
pub fn is_same_end(one: Timestamp, other: Timestamp) -> bool {
    one.distance(other) <= 5 * NANOS_PER_SECOND
}

#[cfg(test)]
mod tests;
