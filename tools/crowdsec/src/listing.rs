//! Answers to bouncers, written piece by piece, so that a long answer takes little memory however slowly it is read, and the
//! last change that each bouncer has got. A piece is empty if the bouncer wants none of the decisions that were looked at for
//! it.

use std::collections::HashMap;
use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use divvy_core::clock::Timestamp;
use parking_lot::Mutex;

use crate::answer_reader::DecisionList;
use crate::filter::{DecisionFilter, NetworkFilter};
use crate::journal::{Journal, Place};

/// Maximum number of decisions that are looked at for a piece. The journal is locked for that long.
const PIECE: usize = 256;

/// The answer to `GET /v1/decisions/stream`: the decisions since the last answer. The bouncer is taken to have them once its
/// connection has accepted the whole answer.
pub struct StreamAnswer {
    journal: Arc<Mutex<Journal>>,
    bouncers: Arc<Mutex<Bouncers>>,
    bouncer: Bouncer,
    filter: DecisionFilter,
    now: Timestamp,
    /// The changes that the answer has.
    after: u64,
    through: u64,
    step: Step,
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Start,
    /// Within a part, after the change at this position.
    Part {
        part: Part,
        at: u64,
        is_first: bool,
    },
    /// Everything is written.
    Written,
    /// The last piece was accepted.
    Accepted,
}

/// The decisions of an answer, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// Decisions in force.
    New,
    /// Decisions that have ended.
    Ended,
    /// Decisions whose reason has changed. The bouncer does not want the present one.
    Unwanted,
}

impl StreamAnswer {
    /// Creates the answer with the changes after the start of the range, up to its end.
    pub fn new(
        journal: Arc<Mutex<Journal>>,
        bouncers: Arc<Mutex<Bouncers>>,
        bouncer: Bouncer,
        filter: DecisionFilter,
        now: Timestamp,
        changes: Range<u64>,
    ) -> Self {
        let Range { start: after, end: through } = changes;
        Self { journal, bouncers, bouncer, filter, now, after, through, step: Step::Start }
    }

    /// Writes decisions of a part after `at`. Returns the step after them.
    fn write(&self, part: Part, at: u64, mut is_first: bool, out: &mut Vec<u8>) -> Step {
        let journal = self.journal.lock();
        let (mut last, mut count) = (at, 0);
        let list = if part == Part::Ended { DecisionList::Deleted } else { DecisionList::New };
        for (change, entry) in journal.changes(list, at, self.through).take(PIECE) {
            (last, count) = (change, count + 1);
            let reason = match part {
                Part::New | Part::Ended => entry.wanted(&self.filter),
                Part::Unwanted => entry.lost(&self.filter),
            };
            if let Some(reason) = reason {
                entry.write(reason, part == Part::New, self.now, is_first, out);
                is_first = false;
            }
        }
        match part {
            _ if count == PIECE => Step::Part { part, at: last, is_first },
            Part::New => {
                out.extend_from_slice(b"],\"deleted\":[");
                Step::Part { part: Part::Ended, at: self.after, is_first: true }
            }
            Part::Ended => Step::Part { part: Part::Unwanted, at: self.after, is_first },
            Part::Unwanted => {
                out.extend_from_slice(b"]}");
                Step::Written
            }
        }
    }
}

impl Iterator for StreamAnswer {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        let mut out = Vec::new();
        self.step = match self.step {
            Step::Start => {
                out.extend_from_slice(b"{\"new\":[");
                self.write(Part::New, self.after, true, &mut out)
            }
            Step::Part { part, at, is_first } => self.write(part, at, is_first, &mut out),
            Step::Written => {
                self.bouncers.lock().advance(self.bouncer.clone(), self.through);
                self.step = Step::Accepted;
                return None;
            }
            Step::Accepted => return None,
        };
        Some(out.into())
    }
}

/// The answer to `GET /v1/decisions`: the decisions in force.
pub struct ListAnswer {
    journal: Arc<Mutex<Journal>>,
    filter: DecisionFilter,
    now: Timestamp,
    after: Option<Place>,
    is_first: bool,
    is_written: bool,
}

impl ListAnswer {
    /// Creates the answer with the decisions that the filter wants.
    pub fn new(journal: Arc<Mutex<Journal>>, filter: DecisionFilter, now: Timestamp) -> Self {
        Self { journal, filter, now, after: None, is_first: true, is_written: false }
    }

    /// Returns whether everything is written.
    pub fn is_written(&self) -> bool {
        self.is_written
    }

    fn write(&mut self, out: &mut Vec<u8>) {
        let journal = self.journal.lock();
        let network = match self.filter.network {
            // One for each length of a prefix at most.
            Some(NetworkFilter::Covering(network)) => {
                let wanted = journal.covering(network).filter_map(|entry| Some((entry, entry.wanted(&self.filter)?)));
                for (entry, reason) in wanted {
                    out.extend_from_slice(if self.is_first { b"[" } else { b"" });
                    entry.write(reason, true, self.now, self.is_first, out);
                    self.is_first = false;
                }
                self.is_written = true;
                return;
            }
            Some(NetworkFilter::Within(network)) => Some(network),
            None => None,
        };
        let mut count = 0;
        for (place, entry) in journal.within(network, self.after).take(PIECE) {
            (self.after, count) = (Some(place), count + 1);
            if let Some(reason) = entry.wanted(&self.filter) {
                out.extend_from_slice(if self.is_first { b"[" } else { b"" });
                entry.write(reason, true, self.now, self.is_first, out);
                self.is_first = false;
            }
        }
        self.is_written = count < PIECE;
    }
}

impl Iterator for ListAnswer {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        if self.is_written {
            return None;
        }
        let mut out = Vec::new();
        self.write(&mut out);
        if self.is_written {
            // Bouncers in Lua look for exactly this text.
            out.extend_from_slice(if self.is_first { b"null" } else { b"]" });
        }
        Some(out.into())
    }
}

/// Maximum number of bouncers that are known. Others get all decisions with each answer.
const MAX_BOUNCERS: usize = 1_024;
/// Maximum length of a program's name that distinguishes bouncers (bytes).
const MAX_AGENT: usize = 128;

/// A bouncer. Bouncers with the same key are different if they are on different machines, or are different programs.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Bouncer {
    /// The name of its key; `None` without keys.
    user: Option<Arc<str>>,
    address: Option<IpAddr>,
    agent: Box<[u8]>,
}

impl Bouncer {
    /// Returns the bouncer with the key of this name at this address, whose program is called `agent`.
    pub fn new(user: Option<Arc<str>>, address: Option<IpAddr>, agent: &[u8]) -> Self {
        Self { user, address, agent: agent.get(..MAX_AGENT).unwrap_or(agent).into() }
    }

    /// Returns the name of its key.
    pub fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }
}

/// The positions of all bouncers. The one that has not asked for the longest time is forgotten first.
#[derive(Debug, Default)]
pub struct Bouncers {
    positions: HashMap<Bouncer, Position>,
    uses: u64,
}

#[derive(Debug)]
struct Position {
    change: u64,
    last_use: u64,
}

impl Bouncers {
    /// Returns the last change that the bouncer has got; 0 if it is not known.
    pub fn position(&self, bouncer: &Bouncer) -> u64 {
        self.positions.get(bouncer).map_or(0, |position| position.change)
    }

    /// Records that the bouncer has got all changes up to this one.
    pub fn advance(&mut self, bouncer: Bouncer, change: u64) {
        self.uses += 1;
        if !self.positions.contains_key(&bouncer) && self.positions.len() >= MAX_BOUNCERS {
            let oldest = self.positions.iter().min_by_key(|(_, position)| position.last_use);
            if let Some(oldest) = oldest.map(|(bouncer, _)| bouncer.clone()) {
                self.positions.remove(&oldest);
            }
        }
        self.positions.insert(bouncer, Position { change, last_use: self.uses });
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use divvy_core::rules::Network;

    use super::*;
    use crate::filter::DecisionQuery;
    use crate::journal::Reason;

    /// More than a few pieces.
    const COUNT: usize = 3 * PIECE + 7;

    /// Returns a journal with blocks of 10.0.0.0, 10.0.0.1 and so on. The last one has the scenario `last`.
    fn journal() -> Arc<Mutex<Journal>> {
        let mut journal = Journal::default();
        journal.note_all((0..COUNT).map(|n| {
            let address = Ipv4Addr::from_bits(0x0a00_0000 + n as u32).to_string();
            let scenario = if n + 1 == COUNT { "last" } else { "other" };
            let reason = Reason { block: "".into(), ends: None, origin: "divvy", scenario: scenario.into() };
            (Network::parse(&address).unwrap(), reason)
        }));
        assert_eq!(journal.settle(None, COUNT + 1, Timestamp::EPOCH), None);
        Arc::new(Mutex::new(journal))
    }

    fn filter(query: &str) -> DecisionFilter {
        DecisionQuery::parse(query).unwrap().filter().unwrap()
    }

    fn listed(query: &str) -> (Vec<Bytes>, serde_json::Value) {
        let pieces: Vec<_> = ListAnswer::new(journal(), filter(query), Timestamp::EPOCH).collect();
        let json = serde_json::from_slice(&pieces.concat()).unwrap();
        (pieces, json)
    }

    #[test]
    fn list_is_written_in_pieces() {
        let (pieces, json) = listed("");
        assert_eq!((pieces.len(), json.as_array().unwrap().len()), (4, COUNT));
        assert!(pieces.iter().all(|piece| piece.len() < PIECE * 200));
        assert_eq!(listed("scenarios_containing=last").1.as_array().unwrap().len(), 1);
        assert_eq!(listed("range=10.0.0.0/28&contains=false").1.as_array().unwrap().len(), 16);
        assert_eq!(listed("ip=10.0.0.5").1[0]["value"], "10.0.0.5");
        let none = listed("scenarios_containing=x").0;
        assert_eq!(none.len(), 4, "other requests run between the pieces, even if they are empty");
        for query in ["ip=192.0.2.1", "scenarios_containing=x", "range=192.0.2.0/24&contains=false", "type=captcha"] {
            let (pieces, _) = listed(query);
            assert_eq!(pieces.concat(), b"null", "{query}");
        }
    }

    #[test]
    fn bouncer_has_the_changes_once_it_took_all_of_them() {
        let (journal, bouncers) = (journal(), Arc::new(Mutex::new(Bouncers::default())));
        let bouncer = Bouncer::new(None, None, b"test");
        let answer = |query: &str, after: u64| {
            let through = journal.lock().last_change();
            let (journal, bouncers) = (Arc::clone(&journal), Arc::clone(&bouncers));
            StreamAnswer::new(journal, bouncers, bouncer.clone(), filter(query), Timestamp::EPOCH, after..through)
        };
        let mut interrupted = answer("", 0);
        let mut text = Vec::new();
        while !text.ends_with(b"]}") {
            text.extend_from_slice(&interrupted.next().unwrap());
        }
        drop(interrupted);
        assert_eq!(bouncers.lock().position(&bouncer), 0);

        let pieces: Vec<_> = answer("", 0).collect();
        let json: serde_json::Value = serde_json::from_slice(&pieces.concat()).unwrap();
        assert_eq!((json["new"].as_array().unwrap().len(), json["deleted"].as_array().unwrap().len()), (COUNT, 0));
        let known = bouncers.lock().position(&bouncer);
        assert_eq!(known, COUNT as u64);

        // An update that finds no block ends all decisions. The bouncer wants to know of one of them.
        assert_eq!(journal.lock().settle(None, COUNT + 1, Timestamp::EPOCH), None);
        let pieces: Vec<_> = answer("scenarios_containing=last", known).collect();
        let json: serde_json::Value = serde_json::from_slice(&pieces.concat()).unwrap();
        assert_eq!((json["new"].as_array().unwrap().len(), json["deleted"].as_array().unwrap().len()), (0, 1));
        assert_eq!(bouncers.lock().position(&bouncer), 2 * COUNT as u64);
    }

    fn bouncer(user: &str, address: u128, agent: &str) -> Bouncer {
        Bouncer::new(Some(user.into()), Some(Ipv6Addr::from_bits(address).into()), agent.as_bytes())
    }

    #[test]
    fn bouncers_differ_by_user_address_and_program() {
        let mut bouncers = Bouncers::default();
        bouncers.advance(bouncer("a", 1, "x"), 7);
        assert_eq!(bouncers.position(&bouncer("a", 1, "x")), 7);
        for other in [bouncer("b", 1, "x"), bouncer("a", 2, "x"), bouncer("a", 1, "y")] {
            assert_eq!(bouncers.position(&other), 0);
        }
        let long = "x".repeat(MAX_AGENT);
        assert_eq!(bouncer("a", 1, &long), bouncer("a", 1, &format!("{long}y")));
    }

    #[test]
    fn number_of_bouncers_is_bounded() {
        let mut bouncers = Bouncers::default();
        for n in 1..=MAX_BOUNCERS as u128 {
            bouncers.advance(bouncer("a", n, ""), 1);
        }
        bouncers.advance(bouncer("a", 1, ""), 2);
        bouncers.advance(bouncer("b", 1, ""), 3);
        assert_eq!(bouncers.positions.len(), MAX_BOUNCERS);
        let position = |address| bouncers.position(&bouncer("a", address, ""));
        assert_eq!((position(1), position(2), position(3)), (2, 0, 1));
        assert_eq!(bouncers.position(&bouncer("b", 1, "")), 3);
    }
}
