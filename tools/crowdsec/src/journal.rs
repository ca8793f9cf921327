//! The decisions in force, and those that have ended, in the order of their changes. A bouncer that names the last change it
//! knows gets the later ones.
//!
//! There is one decision for each address or network, however many blocks it has: of those that the bouncer wants, the one that
//! ends last. Memory is bounded by the number of blocks (divvy's `--max-blocks`) and by [`MAX_ENDED`].
//!
//! Answers are written piece by piece, so that a long answer takes little memory however slowly it is read. A piece is empty if
//! the bouncer wants none of the decisions that were looked at for it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hasher;
use std::iter;
use std::net::IpAddr;
use std::ops::Bound::{Excluded, Included, Unbounded};
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use divvy_core::clock::{NANOS_PER_SECOND, Timestamp, ceil_seconds};
use divvy_core::rules::Network;
use parking_lot::Mutex;
use serde_json::json;
use siphasher::sip::SipHasher13;

use crate::decision::{BAN, DecisionFilter, scope_of, write_duration};
use crate::upstream::{DecisionList, is_same_end};

/// Maximum number of ended decisions that are remembered.
const MAX_ENDED: usize = 50_000;
/// Maximum time that an ended decision is remembered.
const REMEMBER_ENDED_NS: u64 = 24 * 3_600 * NANOS_PER_SECOND;
/// Maximum duration in an answer. The sets of Linux's firewall take 24 days at most.
const MAX_DURATION_NS: u64 = 7 * 24 * 3_600 * NANOS_PER_SECOND;
/// Time after which a decision is announced again, before bouncers drop it.
const ANNOUNCE_AGAIN_NS: u64 = MAX_DURATION_NS / 2;
/// Ids are whole numbers in every language.
const MAX_ID: u64 = (1 << 53) - 1;
/// Maximum number of decisions that are looked at for a piece of an answer. The journal is locked for that long.
const PIECE: usize = 256;
/// Maximum number of bouncers that are known. Others get all decisions with each answer.
const MAX_BOUNCERS: usize = 1_024;
/// Maximum length of a program's name that distinguishes bouncers (bytes).
const MAX_AGENT: usize = 128;

/// The decisions.
#[derive(Debug, Default)]
pub struct Journal {
    entries: BTreeMap<Network, Entry>,
    /// The decisions in force, by their last changes.
    in_force: BTreeMap<u64, Network>,
    /// The ended decisions, by their last changes.
    ended: BTreeMap<u64, Network>,
    /// The ends of the reasons of the decisions in force.
    ends: BTreeSet<(Timestamp, Network)>,
    pub last_change: u64,
    /// The latest change that is not remembered anymore.
    forgotten: u64,
}

/// The decision about one network.
#[derive(Debug)]
pub struct Entry {
    network: Network,
    change: u64,
    /// Time of the change.
    since: Timestamp,
    is_in_force: bool,
    /// The reasons of its blocks, the one that ends last first. Never empty.
    reasons: Vec<Reason>,
    /// Whether it had other reasons before, while it was in force.
    has_lost_reasons: bool,
}

/// The reason for a decision, and its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reason {
    /// The rule and the actor of its block.
    pub block: Box<str>,
    /// Its end; `None` if it is permanent.
    pub ends: Option<Timestamp>,
    /// The program that decided.
    pub origin: &'static str,
    /// The scenario.
    pub scenario: Box<str>,
}

impl Reason {
    /// Returns the end. A permanent block never ends.
    fn end(&self) -> Timestamp {
        self.ends.unwrap_or(Timestamp::from_nanos(u64::MAX))
    }

    /// Returns whether the other reason says the same. Ends that are told in seconds differ a little.
    fn is_same(&self, other: &Self) -> bool {
        let is_same_end = match (self.ends, other.ends) {
            (Some(one), Some(other)) => is_same_end(one, other),
            (one, other) => one == other,
        };
        is_same_end && (&self.block, self.origin, &self.scenario) == (&other.block, other.origin, &other.scenario)
    }
}

impl Journal {
    /// Returns the reasons of the decision in force about this network.
    pub fn reasons(&self, network: Network) -> &[Reason] {
        self.entries.get(&network).filter(|entry| entry.is_in_force).map_or(&[], |entry| &entry.reasons)
    }

    /// Replaces the reasons of the decision about this network. Without reasons, it ends.
    pub fn replace(&mut self, network: Network, mut reasons: Vec<Reason>, now: Timestamp) {
        reasons.retain(|reason| reason.end() > now);
        reasons.sort_by(|one, other| {
            (other.end(), other.origin, &other.scenario).cmp(&(one.end(), one.origin, &one.scenario))
        });
        let known = self.reasons(network);
        let is_same = known.len() == reasons.len() && known.iter().zip(&reasons).all(|(a, b)| a.is_same(b));
        if !is_same {
            self.change(network, reasons, now);
        }
    }

    fn change(&mut self, network: Network, reasons: Vec<Reason>, now: Timestamp) {
        self.last_change += 1;
        let (change, is_in_force) = (self.last_change, !reasons.is_empty());
        let mut entry = Entry { network, change, since: now, is_in_force, reasons, has_lost_reasons: false };
        if let Some(before) = self.entries.remove(&network) {
            self.in_force.remove(&before.change);
            self.ended.remove(&before.change);
            for ends in before.reasons.iter().filter_map(|reason| reason.ends) {
                self.ends.remove(&(ends, network));
            }
            let is_kept = |old: &Reason| {
                entry.reasons.iter().any(|new| (new.origin, &new.scenario) == (old.origin, &old.scenario))
            };
            let has_lost = is_in_force && before.is_in_force && !before.reasons.iter().all(is_kept);
            entry.has_lost_reasons = before.has_lost_reasons || has_lost;
            if !is_in_force {
                entry.reasons = before.reasons;
            }
        }
        if is_in_force {
            // Each end changes what some bouncer wants.
            self.ends.extend(entry.reasons.iter().filter_map(|reason| Some((reason.ends?, network))));
            self.in_force.insert(change, network);
        } else {
            self.ended.insert(change, network);
        }
        self.entries.insert(network, entry);
    }

    /// Ends decisions whose time has come, forgets old ones, and announces others again: at most `count` of them. Returns whether
    /// none is left. Call it until then before a listing.
    pub fn advance(&mut self, count: usize, now: Timestamp) -> bool {
        (0..count).any(|_| !self.advance_one(now))
    }

    /// Returns whether there was one.
    fn advance_one(&mut self, now: Timestamp) -> bool {
        let is_over = self.ends.first().is_some_and(|(ends, _)| *ends <= now);
        if let Some((_, network)) = is_over.then(|| self.ends.pop_first()).flatten() {
            let rest = self.reasons(network).iter().filter(|reason| reason.end() > now).cloned().collect();
            self.change(network, rest, now);
            return true;
        }
        let age = |network: &Network| self.entries.get(network).map_or(u64::MAX, |entry| now.since(entry.since));
        let is_old = |oldest: &Network| self.ended.len() > MAX_ENDED || age(oldest) > REMEMBER_ENDED_NS;
        if self.ended.first_key_value().is_some_and(|(_, oldest)| is_old(oldest))
            && let Some((change, network)) = self.ended.pop_first()
        {
            self.forgotten = change;
            self.entries.remove(&network);
            return true;
        }
        // Changes are in the order of time.
        match self.in_force.first_key_value() {
            Some((_, oldest)) if age(oldest) >= ANNOUNCE_AGAIN_NS => {
                self.change(*oldest, self.reasons(*oldest).to_vec(), now);
                true
            }
            _ => false,
        }
    }

    /// Returns whether all decisions that ended after this change are remembered.
    pub fn remembers_since(&self, change: u64) -> bool {
        change == 0 || change >= self.forgotten
    }

    /// Returns the decisions of a list whose last change is after `after` and not after `through`.
    fn changes(&self, list: DecisionList, after: u64, through: u64) -> impl Iterator<Item = &Entry> {
        let by_change = match list {
            DecisionList::New => &self.in_force,
            DecisionList::Deleted => &self.ended,
        };
        let range = (after < through).then(|| by_change.range((Excluded(after), Included(through))));
        range.into_iter().flatten().filter_map(|(_, network)| self.entries.get(network))
    }

    /// Returns the decisions in force about networks that contain all of this one.
    fn covering(&self, network: Network) -> impl Iterator<Item = &Entry> {
        let entries = (0..=network.prefix()).map(move |length| Network::of(network.first(), length));
        entries.filter_map(|network| self.entries.get(&network)).filter(|entry| entry.is_in_force)
    }

    /// Returns the decisions in force about networks in this one, or about any, after `after`.
    fn within(&self, network: Option<Network>, after: Option<Network>) -> impl Iterator<Item = &Entry> {
        let start = after.map(Excluded).or(network.map(Included)).unwrap_or(Unbounded);
        let entries = self.entries.range((start, Unbounded)).map(|(_, entry)| entry);
        let entries = entries.take_while(move |entry| network.is_none_or(|network| network.covers(entry.network)));
        entries.filter(|entry| entry.is_in_force)
    }

    /// Returns the networks with decisions in force.
    pub fn networks(&self) -> Vec<Network> {
        self.within(None, None).map(|entry| entry.network).collect()
    }
}

impl Entry {
    /// Returns the reason that the bouncer wants, if it wants one: the one that ends last.
    fn wanted(&self, filter: &DecisionFilter) -> Option<&Reason> {
        self.reasons.iter().find(|reason| filter.admits(self.network, reason.origin, &reason.scenario))
    }

    /// Returns a reason if the bouncer wants none of them, and may have wanted one that the decision had before.
    fn lost(&self, filter: &DecisionFilter) -> Option<&Reason> {
        let may_have_been_wanted = self.has_lost_reasons && filter.admits_network(self.network);
        self.reasons.first().filter(|_| may_have_been_wanted && self.wanted(filter).is_none())
    }

    /// Appends the decision with this reason to `out`, after a comma if others are before it. Without `is_in_force`, it has ended.
    fn write(&self, reason: &Reason, is_in_force: bool, now: Timestamp, has_others: bool, out: &mut Vec<u8>) {
        let remaining = match (is_in_force, reason.ends) {
            (false, _) => 0,
            (true, Some(ends)) => ends.since(now).min(MAX_DURATION_NS),
            (true, None) => MAX_DURATION_NS,
        };
        // In the order of CrowdSec's own.
        let decision = json!({
            "duration": write_duration(ceil_seconds(remaining)), "id": id(self.network), "origin": reason.origin,
            "scenario": reason.scenario, "scope": scope_of(self.network), "type": BAN, "value": self.network.to_string(),
        });
        if has_others {
            out.push(b',');
        }
        // Writing to memory never fails.
        let _ = serde_json::to_writer(out, &decision);
    }
}

/// Returns the id of the decision about a network: the same one on every server, and after a restart.
fn id(network: Network) -> u64 {
    let mut hasher = SipHasher13::new();
    hasher.write(network.to_string().as_bytes());
    hasher.finish() & MAX_ID | 1
}

/// A part of the answer with changes.
struct Part {
    /// The text before its decisions.
    start: &'static [u8],
    list: DecisionList,
    is_in_force: bool,
    /// Finds the reason of a decision that has this part.
    reason: for<'a> fn(&'a Entry, &DecisionFilter) -> Option<&'a Reason>,
}

const PARTS: [Part; 3] = [
    Part { start: b"{\"new\":[", list: DecisionList::New, is_in_force: true, reason: Entry::wanted },
    Part { start: b"],\"deleted\":[", list: DecisionList::Deleted, is_in_force: false, reason: Entry::wanted },
    // Decisions whose reason has changed. The bouncer does not want the present one.
    Part { start: b"", list: DecisionList::New, is_in_force: false, reason: Entry::lost },
];

/// Returns the pieces of the answer to `GET /v1/decisions/stream`: the decisions with the changes after the start of the range, up
/// to its end. Calls `done` once the connection has accepted the whole answer.
pub fn write_changes(
    journal: Arc<Mutex<Journal>>,
    filter: DecisionFilter,
    now: Timestamp,
    changes: Range<u64>,
    mut done: impl FnMut() + Send + 'static,
) -> impl Iterator<Item = Bytes> + Send + 'static {
    // The place that is reached: the part, and its last change.
    let (mut place, mut has_decisions) = ((0, None), false);
    iter::from_fn(move || {
        let (at, last) = place;
        let Some(part) = PARTS.get(at) else {
            done();
            return None;
        };
        let mut out = Vec::new();
        if last.is_none() {
            out.extend_from_slice(part.start);
            has_decisions &= part.start.is_empty();
        }
        let (journal, mut last, mut count) = (journal.lock(), last.unwrap_or(changes.start), 0);
        for entry in journal.changes(part.list, last, changes.end).take(PIECE) {
            (last, count) = (entry.change, count + 1);
            if let Some(reason) = (part.reason)(entry, &filter) {
                entry.write(reason, part.is_in_force, now, has_decisions, &mut out);
                has_decisions = true;
            }
        }
        place = if count == PIECE { (at, Some(last)) } else { (at + 1, None) };
        if place.0 == PARTS.len() {
            out.extend_from_slice(b"]}");
        }
        Some(out.into())
    })
}

/// Returns the pieces of the answer to `GET /v1/decisions`: the decisions in force.
pub fn write_list(
    journal: Arc<Mutex<Journal>>,
    filter: DecisionFilter,
    now: Timestamp,
) -> impl Iterator<Item = Bytes> + Send + 'static {
    let (mut after, mut has_decisions, mut is_written) = (None, false, false);
    iter::from_fn(move || {
        if is_written {
            return None;
        }
        let (mut out, journal) = (Vec::new(), journal.lock());
        let entries: Vec<&Entry> = match filter.network {
            // At most one for each length of a prefix, which is less than a piece.
            Some(network) if filter.is_covering => journal.covering(network).collect(),
            network => journal.within(network, after).take(PIECE).collect(),
        };
        for entry in &entries {
            after = Some(entry.network);
            if let Some(reason) = entry.wanted(&filter) {
                out.extend_from_slice(if has_decisions { b"" } else { b"[" });
                entry.write(reason, true, now, has_decisions, &mut out);
                has_decisions = true;
            }
        }
        is_written = entries.len() < PIECE;
        if is_written {
            // Bouncers in Lua look for exactly this text.
            out.extend_from_slice(if has_decisions { b"]" } else { b"null" });
        }
        Some(out.into())
    })
}

/// A bouncer. Bouncers with the same key are different if they are on different machines, or are different programs.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Bouncer {
    /// The name of its key; `None` without keys.
    pub user: Option<Arc<str>>,
    address: IpAddr,
    agent: Box<[u8]>,
}

impl Bouncer {
    /// Returns the bouncer with the key of this name at this address, whose program is called `agent`.
    pub fn new(user: Option<Arc<str>>, address: IpAddr, agent: &[u8]) -> Self {
        Self { user, address, agent: agent.get(..MAX_AGENT).unwrap_or(agent).into() }
    }
}

/// The last change that each bouncer has got. The bouncer that has not asked for the longest time is forgotten first.
#[derive(Debug, Default)]
pub struct Bouncers {
    /// The change, and the number of the bouncer's last use.
    positions: HashMap<Bouncer, (u64, u64)>,
    uses: u64,
}

impl Bouncers {
    /// Returns the last change that the bouncer has got; 0 if it is not known.
    pub fn position(&self, bouncer: &Bouncer) -> u64 {
        self.positions.get(bouncer).map_or(0, |(change, _)| *change)
    }

    /// Records that the bouncer has got all changes up to this one.
    pub fn advance(&mut self, bouncer: Bouncer, change: u64) {
        self.uses += 1;
        if !self.positions.contains_key(&bouncer) && self.positions.len() >= MAX_BOUNCERS {
            let oldest = self.positions.iter().min_by_key(|(_, (_, last_use))| *last_use);
            if let Some(oldest) = oldest.map(|(bouncer, _)| bouncer.clone()) {
                self.positions.remove(&oldest);
            }
        }
        self.positions.insert(bouncer, (change, self.uses));
    }
}

#[cfg(test)]
mod tests;
