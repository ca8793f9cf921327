//! The bans in an answer of CrowdSec.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use divvy_core::clock::{NANOS_PER_SECOND, Timestamp};
use divvy_core::rules::Network;

use crate::answer_reader::DecisionList;
use crate::decision::RemoteDecision;

/// Maximum length of a scenario's name that is kept (bytes).
const MAX_SCENARIO: usize = 128;
/// Maximum number of scenarios that share their memory. CrowdSec's hub has a few hundred.
const MAX_SHARED: usize = 4_096;

/// A ban to put in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Followed {
    /// CrowdSec's number for it.
    pub id: u64,
    /// Its end.
    pub ends: Timestamp,
    /// The scenario's name.
    pub scenario: Arc<str>,
}

/// The decisions of an answer that divvy follows. Its memory is bounded by the number of networks in it.
#[derive(Debug)]
pub struct Answer {
    /// The bans in force, by network. The ban that ends last comes first.
    pub bans: HashMap<Network, Vec<Followed>>,
    /// The bans that have ended, by network and number.
    pub ended: HashSet<(Network, u64)>,
    /// Number of decisions that divvy does not follow: of another type, or about something else than addresses.
    pub others: u64,
    /// Number of decisions that are not as CrowdSec writes them.
    pub malformed: u64,
    /// Number of bans and of ended ones that found no room.
    pub excess: u64,
    max: usize,
    now: Timestamp,
    scenarios: HashSet<Arc<str>>,
}

impl Answer {
    /// Creates the answer to a request that is sent at `now`, with room for `max` bans and as many ended ones.
    pub fn new(max: usize, now: Timestamp) -> Self {
        Self {
            bans: HashMap::new(),
            ended: HashSet::new(),
            others: 0,
            malformed: 0,
            excess: 0,
            max,
            now,
            scenarios: HashSet::new(),
        }
    }

    /// Returns the time at which it was asked for.
    pub fn time(&self) -> Timestamp {
        self.now
    }

    /// Adds a decision.
    pub fn add(&mut self, list: DecisionList, text: &[u8]) {
        let Some(decision) = RemoteDecision::parse(text) else {
            self.malformed += 1;
            return;
        };
        let Some(ban) = decision.ban() else {
            self.others += 1;
            return;
        };
        match list {
            DecisionList::Deleted if self.ended.len() < self.max => {
                self.ended.insert((ban.network, ban.id));
            }
            DecisionList::New if self.bans.len() < self.max || self.bans.contains_key(&ban.network) => {
                let nanos = u64::try_from(ban.remaining.as_nanos()).unwrap_or(u64::MAX);
                if nanos > 0 {
                    let scenario = self.share(ban.scenario);
                    let found = Followed { id: ban.id, ends: self.now.plus(nanos), scenario };
                    add_ban(self.bans.entry(ban.network).or_default(), found);
                }
            }
            DecisionList::Deleted | DecisionList::New => self.excess += 1,
        }
    }

    /// Returns the scenario's name, whose memory all its decisions share. A reason for a block has no control characters.
    fn share(&mut self, scenario: &str) -> Arc<str> {
        let scenario = scenario.get(..scenario.floor_char_boundary(MAX_SCENARIO)).unwrap_or_default();
        let plain;
        let scenario = if scenario.contains(char::is_control) {
            plain = scenario.replace(char::is_control, "?");
            &plain
        } else {
            scenario
        };
        if let Some(known) = self.scenarios.get(scenario) {
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
pub fn add_ban(bans: &mut Vec<Followed>, ban: Followed) {
    // A ban without an id cannot be told from others.
    bans.retain(|known| known.id != ban.id || ban.id == 0);
    let at = bans.partition_point(|known| known.ends >= ban.ends);
    bans.insert(at, ban);
    bans.truncate(MAX_BANS);
}

/// Maximum number of bans of one network that are remembered.
const MAX_BANS: usize = 8;

/// Difference between two ends that may be the same: CrowdSec rounds the remaining time to seconds, and answers take a while.
const SAME_END_NS: u64 = 5 * NANOS_PER_SECOND;

/// Returns whether two ends are the same, as far as answers show it.
pub fn is_same_end(one: Timestamp, other: Timestamp) -> bool {
    one.distance(other) <= SAME_END_NS
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> Timestamp {
        Timestamp::from_nanos(1_000 * NANOS_PER_SECOND)
    }

    fn decision(value: &str, duration: &str, scenario: &str) -> Vec<u8> {
        let id = scenario.bytes().map(u64::from).sum::<u64>();
        let scope = if value.contains('/') { "Range" } else { "Ip" };
        let decision = serde_json::json!({
            "duration": duration, "id": id, "origin": "CAPI", "scenario": scenario, "scope": scope, "type": "ban",
            "value": value,
        });
        decision.to_string().into_bytes()
    }

    fn describe(answer: &Answer) -> String {
        let text = |(network, ban): (&Network, &Vec<Followed>)| {
            let ban = ban.first().unwrap();
            format!("{network} {} {}", ban.ends.since(now()) / NANOS_PER_SECOND, ban.scenario)
        };
        let mut bans: Vec<_> = answer.bans.iter().map(text).collect();
        let mut ended: Vec<_> = answer.ended.iter().map(|(network, id)| format!("{network} {id}")).collect();
        bans.sort();
        ended.sort();
        format!("{}; {}", bans.join(", "), ended.join(", "))
    }

    #[test]
    fn longest_ban_of_a_network_counts() {
        let mut answer = Answer::new(10, now());
        answer.add(DecisionList::New, &decision("192.0.2.1", "2h", "b"));
        answer.add(DecisionList::New, &decision("192.0.2.1", "1h", "a"));
        answer.add(DecisionList::New, &decision("10.0.0.0/8", "4h", "c"));
        answer.add(DecisionList::New, &decision("192.0.2.2", "-4s", "c"));
        answer.add(DecisionList::Deleted, &decision("192.0.2.1", "-4s", "x"));
        answer.add(DecisionList::Deleted, &decision("192.0.2.3", "-4s", "x"));
        assert_eq!(describe(&answer), "10.0.0.0/8 14400 c, 192.0.2.1 7200 b; 192.0.2.1 120, 192.0.2.3 120");
        let ends =
            answer.bans[&Network::parse("192.0.2.1").unwrap()].iter().map(|ban| &*ban.scenario).collect::<Vec<_>>();
        assert_eq!(ends, ["b", "a"]);
        assert_eq!((answer.others, answer.malformed, answer.excess), (0, 0, 0));
    }

    #[test]
    fn other_decisions_are_counted() {
        let mut answer = Answer::new(1, now());
        answer.add(DecisionList::New, b"{}");
        answer.add(DecisionList::New, &decision("nobody", "1h", "a"));
        answer.add(DecisionList::New, &decision("192.0.2.1", "1h", "a"));
        answer.add(DecisionList::New, &decision("192.0.2.2", "1h", "a"));
        answer.add(DecisionList::New, &decision("192.0.2.1", "2h", "a"));
        answer.add(DecisionList::Deleted, &decision("192.0.2.3", "1h", "a"));
        answer.add(DecisionList::Deleted, &decision("192.0.2.4", "1h", "a"));
        assert_eq!(describe(&answer), "192.0.2.1 7200 a; 192.0.2.3 97");
        assert_eq!((answer.others, answer.malformed, answer.excess), (1, 1, 2));
    }

    #[test]
    fn scenarios_are_truncated_and_share_memory() {
        let mut answer = Answer::new(10, now());
        let long = "\u{fc}".repeat(MAX_SCENARIO);
        answer.add(DecisionList::New, &decision("192.0.2.1", "1h", &long));
        answer.add(DecisionList::New, &decision("192.0.2.2", "1h", &long));
        let scenarios: Vec<_> = answer.bans.values().flatten().map(|ban| Arc::clone(&ban.scenario)).collect();
        assert!(Arc::ptr_eq(&scenarios[0], &scenarios[1]) && scenarios[0].len() <= MAX_SCENARIO);
    }

    #[test]
    fn rounded_ends_are_the_same() {
        assert!(is_same_end(now(), now().plus(SAME_END_NS)) && is_same_end(now().plus(SAME_END_NS), now()));
        assert!(!is_same_end(now(), now().plus(SAME_END_NS + 1)));
    }
}
