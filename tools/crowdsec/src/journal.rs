//! The decisions in force, and those that have ended, in the order of their changes. A bouncer that names the last change it
//! knows gets the later ones.
//!
//! There is one decision for each address or network, however many blocks it has: of those that the bouncer wants, the one that
//! ends last. Memory is bounded by the number of blocks (divvy's `--max-blocks`) and by [`MAX_ENDED`].

use std::collections::{BTreeMap, BTreeSet};
use std::hash::Hasher;
use std::ops::Bound::{Excluded, Included};

use divvy_core::clock::{NANOS_PER_SECOND, Timestamp, ceil_seconds};
use divvy_core::rules::{Address, Network};
use siphasher::sip::SipHasher13;

use crate::answer::is_same_end;
use crate::answer_reader::DecisionList;
use crate::decision::{BAN, Decision, Scope, write_duration};
use crate::filter::DecisionFilter;

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
/// Number of lengths of prefixes, from 0 to 128.
const PREFIXES: usize = 129;

/// A network, in the order of addresses.
pub type Place = (Address, u8);

/// The decisions.
#[derive(Debug)]
pub struct Journal {
    entries: BTreeMap<Place, Entry>,
    /// The decisions in force, by their last changes.
    in_force: BTreeMap<u64, Place>,
    /// The ended decisions, by their last changes.
    ended: BTreeMap<u64, Place>,
    ends: BTreeSet<(Timestamp, Place)>,
    /// Number of entries with each length of prefix. IPv4 and IPv6 share it.
    lengths: [usize; PREFIXES],
    last_change: u64,
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
    /// The reasons of the blocks that the current update has found.
    found: Vec<Reason>,
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
    /// Returns whether the other reason says the same. Ends that are told in seconds differ a little.
    fn is_same(&self, other: &Self) -> bool {
        let is_same_end = match (self.ends, other.ends) {
            (Some(one), Some(other)) => is_same_end(one, other),
            (one, other) => one == other,
        };
        is_same_end && (&self.block, self.origin, &self.scenario) == (&other.block, other.origin, &other.scenario)
    }
}

impl Default for Journal {
    fn default() -> Self {
        Self {
            entries: BTreeMap::new(),
            in_force: BTreeMap::new(),
            ended: BTreeMap::new(),
            ends: BTreeSet::new(),
            lengths: [0; PREFIXES],
            last_change: 0,
            forgotten: 0,
        }
    }
}

impl Journal {
    /// Takes note of blocks that an update of all finds.
    pub fn note_all(&mut self, blocks: impl IntoIterator<Item = (Network, Reason)>) {
        for (network, reason) in blocks {
            self.note(network, reason);
        }
    }

    /// Puts a block in force, in place of an earlier one of the same rule and actor.
    pub fn set(&mut self, network: Network, reason: Reason, now: Timestamp) {
        self.keep_others(network, &reason.block);
        self.note(network, reason);
        self.settle_one(place(network), now);
    }

    /// Removes the block of this rule and actor.
    pub fn remove(&mut self, network: Network, block: &str, now: Timestamp) {
        self.keep_others(network, block);
        self.settle_one(place(network), now);
    }

    /// Takes note of the known blocks of a network, but for one.
    fn keep_others(&mut self, network: Network, block: &str) {
        if let Some(entry) = self.entries.get_mut(&place(network)).filter(|entry| entry.is_in_force) {
            entry.found = entry.reasons.iter().filter(|reason| *reason.block != *block).cloned().collect();
        }
    }

    fn note(&mut self, network: Network, reason: Reason) {
        let entry = self.entries.entry(place(network)).or_insert_with(|| {
            if let Some(count) = self.lengths.get_mut(usize::from(network.prefix())) {
                *count += 1;
            }
            // Not in force until the update is complete.
            Entry {
                network,
                change: 0,
                since: Timestamp::EPOCH,
                is_in_force: false,
                reasons: vec![reason.clone()],
                has_lost_reasons: false,
                found: Vec::new(),
            }
        });
        let is_before = |found: &Reason| {
            (end_of(found), found.origin, &found.scenario) > (end_of(&reason), reason.origin, &reason.scenario)
        };
        let at = entry.found.partition_point(is_before);
        entry.found.insert(at, reason);
    }

    /// Completes an update for the next `count` entries after `from`: decisions without a block end, and the others get the
    /// block that ends last. Returns the place to go on after; `None` at the end.
    pub fn settle(&mut self, from: Option<Place>, count: usize, now: Timestamp) -> Option<Place> {
        let range = match from {
            None => self.entries.range(..),
            Some(from) => self.entries.range((Excluded(from), std::ops::Bound::Unbounded)),
        };
        let places: Vec<Place> = range.map(|(place, _)| *place).take(count).collect();
        for place in &places {
            self.settle_one(*place, now);
        }
        places.last().copied().filter(|_| places.len() == count)
    }

    fn settle_one(&mut self, place: Place, now: Timestamp) {
        let Some(entry) = self.entries.get_mut(&place) else { return };
        let mut found = std::mem::take(&mut entry.found);
        found.retain(|found| end_of(found) > now);
        if !found.is_empty() {
            let is_same =
                entry.reasons.len() == found.len() && entry.reasons.iter().zip(&found).all(|(a, b)| a.is_same(b));
            if !entry.is_in_force || !is_same {
                self.put_in_force(place, found, now);
            }
        } else if entry.is_in_force {
            self.end(place, now);
        } else if entry.change == 0 {
            // Its only block ended before it was put in force.
            self.forget(place);
        }
    }

    /// Ends decisions whose time has come, forgets old ones, and announces others again: at most `count` of them. Returns whether
    /// none is left. Call it until then before a listing.
    pub fn advance(&mut self, count: usize, now: Timestamp) -> bool {
        (0..count).any(|_| !self.advance_one(now))
    }

    /// Returns whether there was one.
    fn advance_one(&mut self, now: Timestamp) -> bool {
        if let Some(&(ends, place)) = self.ends.first().filter(|(ends, _)| *ends <= now) {
            self.ends.remove(&(ends, place));
            let reasons = self.entries.get(&place).map(|entry| entry.reasons.clone()).unwrap_or_default();
            let rest: Vec<_> = reasons.into_iter().filter(|reason| end_of(reason) > now).collect();
            if rest.is_empty() {
                self.end(place, now)
            } else {
                self.put_in_force(place, rest, now)
            }
            return true;
        }
        let age = |place: &Place| self.entries.get(place).map_or(u64::MAX, |entry| now.since(entry.since));
        if let Some((_, oldest)) = self.ended.first_key_value()
            && (self.ended.len() > MAX_ENDED || age(oldest) > REMEMBER_ENDED_NS)
        {
            self.forget_first_ended();
            return true;
        }
        // Changes are in the order of time.
        let Some((_, oldest)) = self.in_force.first_key_value() else { return false };
        let Some(entry) = self.entries.get(oldest).filter(|_| age(oldest) >= ANNOUNCE_AGAIN_NS) else { return false };
        self.put_in_force(*oldest, entry.reasons.clone(), now);
        true
    }

    /// Returns the last change.
    pub fn last_change(&self) -> u64 {
        self.last_change
    }

    /// Returns whether all decisions that ended after this change are remembered.
    pub fn remembers_since(&self, change: u64) -> bool {
        change == 0 || change >= self.forgotten
    }

    /// Returns the number of decisions in force.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.in_force.len()
    }

    /// Returns the decisions of a list whose last change is after `after` and not after `through`, with their changes.
    pub fn changes(&self, list: DecisionList, after: u64, through: u64) -> impl Iterator<Item = (u64, &Entry)> {
        let by_change = match list {
            DecisionList::New => &self.in_force,
            DecisionList::Deleted => &self.ended,
        };
        let range = (after < through).then(|| by_change.range((Excluded(after), Included(through))));
        range.into_iter().flatten().filter_map(|(change, place)| Some((*change, self.entries.get(place)?)))
    }

    /// Returns the decisions in force about networks that contain all of this one.
    pub fn covering(&self, network: Network) -> impl Iterator<Item = &Entry> {
        let lengths = (0..=network.prefix()).filter(|length| self.lengths.get(usize::from(*length)) > Some(&0));
        let entries = lengths.filter_map(move |length| self.entries.get(&place(Network::of(network.first(), length))));
        entries.filter(|entry| entry.is_in_force)
    }

    /// Returns the decisions in force about networks in this one, or about any, after `after`.
    pub fn within(&self, network: Option<Network>, after: Option<Place>) -> impl Iterator<Item = (Place, &Entry)> {
        let first = network.map(place);
        let last = network.map(|network| (network.last(), u8::MAX));
        let start = match (after, first) {
            (Some(after), _) => Excluded(after),
            (None, Some(first)) => Included(first),
            (None, None) => std::ops::Bound::Unbounded,
        };
        let entries = self.entries.range((start, std::ops::Bound::Unbounded));
        let entries = entries.take_while(move |(place, _)| last.is_none_or(|last| **place <= last));
        entries.filter(|(_, entry)| entry.is_in_force).map(|(place, entry)| (*place, entry))
    }

    fn put_in_force(&mut self, place: Place, reasons: Vec<Reason>, now: Timestamp) {
        let change = self.next_change(place);
        let Some(entry) = self.entries.get_mut(&place) else { return };
        // Each end changes what some bouncer wants.
        let is_kept =
            |old: &Reason| reasons.iter().any(|new| (new.origin, &new.scenario) == (old.origin, &old.scenario));
        entry.has_lost_reasons |= entry.is_in_force && !entry.reasons.iter().all(is_kept);
        self.ends.extend(reasons.iter().filter_map(|reason| Some((reason.ends?, place))));
        (entry.change, entry.since, entry.is_in_force, entry.reasons) = (change, now, true, reasons);
        self.in_force.insert(change, place);
    }

    fn end(&mut self, place: Place, now: Timestamp) {
        let change = self.next_change(place);
        let Some(entry) = self.entries.get_mut(&place) else { return };
        (entry.change, entry.since, entry.is_in_force) = (change, now, false);
        self.ended.insert(change, place);
    }

    /// Begins a change of this entry: removes it from the lists.
    fn next_change(&mut self, place: Place) -> u64 {
        if let Some(entry) = self.entries.get(&place) {
            self.in_force.remove(&entry.change);
            self.ended.remove(&entry.change);
            for ends in entry.reasons.iter().filter_map(|reason| reason.ends) {
                self.ends.remove(&(ends, place));
            }
        }
        self.last_change += 1;
        self.last_change
    }

    fn forget_first_ended(&mut self) {
        let Some((change, place)) = self.ended.pop_first() else { return };
        self.forgotten = change;
        self.forget(place);
    }

    fn forget(&mut self, place: Place) {
        let (_, prefix) = place;
        if self.entries.remove(&place).is_some()
            && let Some(count) = self.lengths.get_mut(usize::from(prefix))
        {
            *count = count.saturating_sub(1);
        }
    }
}

impl Entry {
    /// Returns the reason that the bouncer wants, if it wants one: the one that ends last.
    pub fn wanted(&self, filter: &DecisionFilter) -> Option<&Reason> {
        self.reasons.iter().find(|reason| filter.admits(self.network, reason.origin, &reason.scenario))
    }

    /// Returns a reason if the bouncer wants none of them, and may have wanted one that the decision had before.
    pub fn lost(&self, filter: &DecisionFilter) -> Option<&Reason> {
        let may_have_been_wanted = self.has_lost_reasons && filter.admits_network(self.network);
        self.reasons.first().filter(|_| may_have_been_wanted && self.wanted(filter).is_none())
    }

    /// Appends the decision with this reason to `out`, after a comma unless it is the first. Without `is_in_force`, it has ended.
    pub fn write(&self, reason: &Reason, is_in_force: bool, now: Timestamp, is_first: bool, out: &mut Vec<u8>) {
        let remaining = match (is_in_force, reason.ends) {
            (false, _) => 0,
            (true, Some(ends)) => ends.since(now).min(MAX_DURATION_NS),
            (true, None) => MAX_DURATION_NS,
        };
        let decision = Decision {
            duration: write_duration(ceil_seconds(remaining)),
            id: id(self.network),
            origin: reason.origin,
            scenario: &reason.scenario,
            scope: Scope::of(self.network),
            kind: BAN,
            value: self.network.to_string(),
        };
        if !is_first {
            out.push(b',');
        }
        // Writing to memory never fails.
        let _ = serde_json::to_writer(out, &decision);
    }
}

fn place(network: Network) -> Place {
    (network.first(), network.prefix())
}

/// Returns the id of the decision about a network: the same one on every server, and after a restart.
fn id(network: Network) -> u64 {
    let mut hasher = SipHasher13::new();
    hasher.write(network.to_string().as_bytes());
    hasher.finish() & MAX_ID | 1
}

/// Returns the end of a reason. A permanent block never ends.
fn end_of(reason: &Reason) -> Timestamp {
    reason.ends.unwrap_or(Timestamp::from_nanos(u64::MAX))
}

#[cfg(test)]
mod tests;
