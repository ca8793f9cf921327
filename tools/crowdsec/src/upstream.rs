//! Requests for decisions to a CrowdSec server, and the bans in its answers.
//!
//! An answer may have hundreds of thousands of decisions, and its sender is not trusted. So only one decision is in memory at a
//! time, and its length is bounded.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::io::{self, Read};
use std::iter;
use std::sync::Arc;

use anyhow::{anyhow, bail};
use bytes::{Buf, Bytes};
use divvy_core::clock::{NANOS_PER_SECOND, Timestamp};
use divvy_core::json::Object;
use divvy_core::rules::Network;
use divvy_core::units::Approximate;
use hyper::body::{Body, Incoming};
use hyper::header::{HeaderName, HeaderValue};
use hyper::{Method, StatusCode};
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;

use crate::client::{Client, UnreadRequest, next_piece};
use crate::decision::RemoteDecision;

/// Header with the key of a bouncer.
pub const API_KEY: HeaderName = HeaderName::from_static("x-api-key");
/// Maximum length of an answer (bytes): more than a million decisions.
const MAX_ANSWER: u64 = 256 << 20;
/// Maximum length of one decision, and of a name (bytes). CrowdSec's own decisions have about 200.
const MAX_DECISION: usize = 16 * 1024;
/// Maximum length of a member that is not known (bytes). CrowdSec has none.
const MAX_UNKNOWN: usize = 1 << 20;
/// Maximum length of a scenario's name that is kept (bytes).
const MAX_SCENARIO: usize = 128;
/// Maximum number of scenarios that share their memory. CrowdSec's hub has a few hundred.
const MAX_SHARED: usize = 4_096;
/// Maximum number of bans of one network that are remembered.
const MAX_BANS: usize = 8;

/// A CrowdSec server whose decisions divvy follows.
pub struct Upstream {
    pub client: Client,
    /// A bouncer's key.
    pub key: HeaderValue,
}

impl Upstream {
    /// Asks for all decisions (`is_startup`), or for those since the last answer, and adds them to `answer`.
    ///
    /// # Errors
    /// There is no answer, or it is not one of CrowdSec. [`UnreadRequest`] if CrowdSec can't believe that its answer was read.
    pub async fn fetch(&self, is_startup: bool, answer: Answer) -> anyhow::Result<Answer> {
        let path = format!("/v1/decisions/stream?startup={is_startup}&scopes=ip,range");
        let mut request = self.client.request(Method::GET, &path, Bytes::new())?;
        request.headers_mut().insert(API_KEY, self.key.clone());
        let read = async |response: hyper::Response<Incoming>| match response.status() {
            StatusCode::OK => read(response.into_body(), answer).await,
            status @ (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => {
                bail!(UnreadRequest(format!(
                    "it refuses the key (status {status}): `cscli bouncers add divvy` makes one"
                )))
            }
            status => bail!("it answers with status {status}"),
        };
        self.client.send(request, read).await
    }
}

/// Reads a body. The parser waits for each piece on a thread of its own.
async fn read(mut body: Incoming, answer: Answer) -> anyhow::Result<Answer> {
    let too_long = || anyhow!("the answer is longer than {}", Approximate(MAX_ANSWER));
    let mut room = MAX_ANSWER.checked_sub(body.size_hint().lower()).map(|_| MAX_ANSWER).ok_or_else(too_long)?;
    let (pieces, mut received) = mpsc::channel(1);
    let parser = spawn_blocking(move || parse(iter::from_fn(|| received.blocking_recv()), answer));
    while let Some(piece) = next_piece(&mut body).await? {
        room = room.checked_sub(piece.len() as u64).ok_or_else(too_long)?;
        if pieces.send(piece).await.is_err() {
            // The parser has found a mistake.
            break;
        }
    }
    drop(pieces);
    parser.await?
}

/// Adds the decisions in the pieces of an answer. CrowdSec always writes both lists.
fn parse(pieces: impl Iterator<Item = Bytes>, mut answer: Answer) -> anyhow::Result<Answer> {
    let room = Cell::new(MAX_DECISION);
    let mut json = serde_json::Deserializer::from_reader(BoundedReader { pieces, piece: Bytes::new(), room: &room });
    let read = json
        .deserialize_map(AnswerVisitor { answer: &mut answer, room: &room, list: DecisionList::New })
        .and_then(|()| json.end());
    match read {
        Ok(()) => Ok(answer),
        Err(error) if error.is_io() => bail!("a decision in the answer is longer than {MAX_DECISION} bytes"),
        Err(error) if error.is_eof() => bail!("the answer ends too early"),
        Err(_) => bail!("the answer is not JSON with the lists `new` and `deleted`"),
    }
}

/// Reads the pieces of an answer. It is an error to read more than there is room for.
struct BoundedReader<'a, I> {
    pieces: I,
    piece: Bytes,
    room: &'a Cell<usize>,
}

impl<I: Iterator<Item = Bytes>> Read for BoundedReader<'_, I> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() {
            let Some(piece) = self.pieces.next() else { return Ok(0) };
            self.piece = piece;
        }
        let length = out.len().min(self.piece.len()).min(self.room.get());
        if length == 0 {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.piece.copy_to_slice(out.get_mut(..length).unwrap_or_default());
        self.room.set(self.room.get() - length);
        Ok(length)
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

/// Reads an answer, or the decisions of one of its lists.
struct AnswerVisitor<'a> {
    answer: &'a mut Answer,
    room: &'a Cell<usize>,
    list: DecisionList,
}

impl<'de> DeserializeSeed<'de> for AnswerVisitor<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_option(self)
    }
}

impl<'de> Visitor<'de> for AnswerVisitor<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("lists of decisions")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<(), M::Error> {
        let mut missing = vec![DecisionList::New, DecisionList::Deleted];
        while let Some(name) = map.next_key::<String>()? {
            let list = match name.as_str() {
                "new" => DecisionList::New,
                "deleted" => DecisionList::Deleted,
                _ => {
                    self.room.set(MAX_UNKNOWN);
                    map.next_value::<IgnoredAny>()?;
                    self.room.set(MAX_DECISION);
                    continue;
                }
            };
            let at = missing.iter().position(|missing| *missing == list);
            missing.swap_remove(at.ok_or_else(|| M::Error::custom("a list is given twice"))?);
            map.next_value_seed(AnswerVisitor { answer: &mut *self.answer, room: self.room, list })?;
            self.room.set(MAX_DECISION);
        }
        if missing.is_empty() { Ok(()) } else { Err(M::Error::custom("a list is missing")) }
    }

    /// CrowdSec writes `null` for an empty list.
    fn visit_none<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut list: S) -> Result<(), S::Error> {
        while let Some(decision) = list.next_element::<Box<RawValue>>()? {
            if !decision.get().starts_with('{') {
                return Err(S::Error::custom("a decision is an object"));
            }
            self.answer.add(self.list, decision.get());
            self.room.set(MAX_DECISION);
        }
        Ok(())
    }
}

/// A ban to put in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ban {
    /// CrowdSec's number for it.
    pub id: u64,
    /// Its end.
    pub ends: Timestamp,
    /// The scenario's name.
    pub scenario: Arc<str>,
}

/// The decisions of an answer that divvy follows. Its memory is bounded by the number of networks in it.
#[derive(Debug, Default)]
pub struct Answer {
    /// The bans in force, by network. The ban that ends last comes first.
    pub bans: HashMap<Network, Vec<Ban>>,
    /// The bans that have ended, by network and number.
    pub ended: HashSet<(Network, u64)>,
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
                self.ended.insert((network, decision.id));
            }
            DecisionList::New if self.bans.len() < self.max || self.bans.contains_key(&network) => {
                let nanos = u64::try_from(remaining.as_nanos()).unwrap_or(u64::MAX);
                if nanos > 0 {
                    let scenario = self.share(&decision.scenario);
                    let ban = Ban { id: decision.id, ends: self.time.plus(nanos), scenario };
                    add_ban(self.bans.entry(network).or_default(), ban);
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

/// Adds a ban of a network to its others.
pub fn add_ban(bans: &mut Vec<Ban>, ban: Ban) {
    // A ban without an id cannot be told from others.
    bans.retain(|known| known.id != ban.id || ban.id == 0);
    let at = bans.partition_point(|known| known.ends >= ban.ends);
    bans.insert(at, ban);
    bans.truncate(MAX_BANS);
}

/// Returns whether two ends are the same, as far as answers show it: CrowdSec rounds the remaining time to seconds, and answers
/// take a while.
pub fn is_same_end(one: Timestamp, other: Timestamp) -> bool {
    one.distance(other) <= 5 * NANOS_PER_SECOND
}

#[cfg(test)]
mod tests;
