use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

const HOUR: u64 = 3_600 * NANOS_PER_SECOND;

fn network(text: &str) -> Network {
    Network::parse(text).unwrap()
}

fn at(hours: u64) -> Timestamp {
    Timestamp::from_nanos((1_000 + hours) * HOUR)
}

fn reason(ends: Option<u64>, scenario: &str) -> Reason {
    Reason { block: scenario.into(), ends: ends.map(at), origin: "divvy", scenario: scenario.into() }
}

/// Updates the journal with these blocks, a few entries at a time. Each has a network, its end in hours and a scenario.
fn update(journal: &mut Journal, now: Timestamp, blocks: &[(&str, Option<u64>, &str)]) {
    for (text, ends, scenario) in blocks {
        let reason = reason(*ends, scenario);
        journal.note(network(text), reason);
    }
    let mut from = journal.settle(None, 2, now);
    while from.is_some() {
        from = journal.settle(from, 2, now);
    }
    while !journal.advance(2, now) {}
}

fn advance(journal: &mut Journal, now: Timestamp) {
    while !journal.advance(1_000, now) {}
}

/// Returns the new and the deleted decisions since a change.
fn changes(journal: &Journal, after: u64, now: Timestamp) -> String {
    let list = |list| {
        let mut out = Vec::new();
        for (_, entry) in journal.changes(list, after, journal.last_change()) {
            let is_in_force = list == DecisionList::New;
            entry.write(&entry.reasons[0], is_in_force, now, out.is_empty(), &mut out);
        }
        let decisions: Vec<serde_json::Value> = serde_json::from_slice(&[b"[", &*out, b"]"].concat()).unwrap();
        let text = |decision: &serde_json::Value| {
            let field = |name: &str| decision[name].as_str().unwrap().to_owned();
            format!("{} {} {}", field("value"), field("duration"), field("scenario"))
        };
        decisions.iter().map(text).collect::<Vec<_>>().join(", ")
    };
    format!("{}; {}", list(DecisionList::New), list(DecisionList::Deleted))
}

#[test]
fn bouncer_gets_what_has_changed_since() {
    let mut journal = Journal::default();
    update(&mut journal, at(0), &[("192.0.2.1", Some(1), "a"), ("10.0.0.0/8", None, "b")]);
    let first = journal.last_change();
    let all = "10.0.0.0/8 168h0m0s b, 192.0.2.1 1h0m0s a; ";
    assert_eq!(changes(&journal, 0, at(0)), all);
    assert_eq!(changes(&journal, first, at(0)), "; ");
    update(&mut journal, at(0), &[("192.0.2.1", Some(1), "a"), ("10.0.0.0/8", None, "b")]);
    assert_eq!(changes(&journal, first, at(0)), "; ", "an update without changes");
    update(&mut journal, at(0), &[("192.0.2.1", Some(2), "a"), ("2001:db8::/32", Some(3), "c")]);
    let second = journal.last_change();
    let expected = "192.0.2.1 2h0m0s a, 2001:db8::/32 3h0m0s c; 10.0.0.0/8 0s b";
    assert_eq!(changes(&journal, first, at(0)), expected);
    assert_eq!(changes(&journal, 0, at(0)), expected, "a bouncer that starts may have kept what has ended");
    advance(&mut journal, at(2));
    assert_eq!(changes(&journal, second, at(2)), "; 192.0.2.1 0s a", "its time has come, without an update");
    update(&mut journal, at(2), &[("192.0.2.1", Some(4), "d")]);
    assert_eq!(changes(&journal, second, at(2)), "192.0.2.1 2h0m0s d; 2001:db8::/32 0s c");
    assert_eq!(journal.len(), 1);
}

#[test]
fn single_changes_have_the_effect_of_an_update() {
    let mut journal = Journal::default();
    journal.set(network("192.0.2.1"), reason(Some(1), "a"), at(0));
    journal.set(network("192.0.2.1"), reason(Some(2), "b"), at(0));
    let first = journal.last_change();
    assert_eq!(changes(&journal, 0, at(0)), "192.0.2.1 2h0m0s b; ");
    let later = Reason { ends: Some(at(2).plus(NANOS_PER_SECOND)), ..reason(None, "b") };
    journal.set(network("192.0.2.1"), later, at(0));
    assert_eq!(changes(&journal, first, at(0)), "; ", "a second is a matter of rounding");
    journal.remove(network("192.0.2.1"), "b", at(0));
    assert_eq!(changes(&journal, first, at(0)), "192.0.2.1 1h0m0s a; ");
    journal.remove(network("192.0.2.1"), "a", at(0));
    journal.remove(network("192.0.2.2"), "a", at(0));
    assert_eq!(changes(&journal, first, at(0)), "; 192.0.2.1 0s a");
}

#[test]
fn block_that_ends_last_decides() {
    let mut journal = Journal::default();
    let blocks = [("192.0.2.1", Some(1), "a"), ("192.0.2.1", None, "b"), ("192.0.2.1", Some(3), "c")];
    update(&mut journal, at(0), &blocks);
    assert_eq!(changes(&journal, 0, at(0)), "192.0.2.1 168h0m0s b; ");
    let known = journal.last_change();
    update(&mut journal, at(0), &[blocks[2], blocks[1], blocks[0]]);
    assert_eq!(changes(&journal, known, at(0)), "; ", "the order does not matter");
    update(&mut journal, at(0), &[blocks[0], blocks[2]]);
    assert_eq!(changes(&journal, known, at(0)), "192.0.2.1 3h0m0s c; ");
}

/// A bouncer may want only the decisions of one origin, or none of a scenario.
#[test]
fn bouncer_gets_the_reason_that_it_wants() {
    let filter = |query: &str| crate::filter::DecisionQuery::parse(query).unwrap().filter().unwrap();
    let mut journal = Journal::default();
    update(&mut journal, at(0), &[("192.0.2.1", Some(9), "long"), ("192.0.2.1", Some(2), "short")]);
    let entry = |journal: &Journal, query: &str| {
        let entry = journal.covering(network("192.0.2.1")).next().unwrap();
        let text = |reason: Option<&Reason>| reason.map_or("none".to_owned(), |reason| reason.scenario.to_string());
        (text(entry.wanted(&filter(query))), text(entry.lost(&filter(query))))
    };
    let none = || "none".to_owned();
    assert_eq!(entry(&journal, ""), ("long".to_owned(), none()));
    assert_eq!(entry(&journal, "scenarios_not_containing=long"), ("short".to_owned(), none()));
    assert_eq!(entry(&journal, "origins=crowdsec"), (none(), none()));
    // The wanted one ends. The decision stays, and this bouncer must delete it.
    let known = journal.last_change();
    advance(&mut journal, at(2));
    assert!(journal.last_change() > known);
    assert_eq!(entry(&journal, "scenarios_not_containing=long"), (none(), "long".to_owned()));
    assert_eq!(entry(&journal, ""), ("long".to_owned(), none()));
}

#[test]
fn block_that_has_ended_leaves_nothing_behind() {
    let mut journal = Journal::default();
    update(&mut journal, at(2), &[("192.0.2.1", Some(1), "a")]);
    assert_eq!((journal.last_change(), journal.entries.len(), journal.lengths[32]), (0, 0, 0));
}

#[test]
fn ended_decisions_are_forgotten() {
    let mut journal = Journal::default();
    let texts: Vec<String> = (0..MAX_ENDED as u32 + 10).map(|n| std::net::Ipv4Addr::from_bits(n).to_string()).collect();
    let blocks: Vec<_> = texts.iter().map(|text| (text.as_str(), Some(1), "a")).collect();
    update(&mut journal, at(0), &blocks);
    let known = journal.last_change();
    assert!(journal.remembers_since(known));
    advance(&mut journal, at(1));
    assert_eq!((journal.len(), journal.ended.len(), journal.entries.len()), (0, MAX_ENDED, MAX_ENDED));
    assert!(!journal.remembers_since(known) && journal.remembers_since(journal.last_change()));
    assert!(journal.remembers_since(0), "a bouncer that starts lacks nothing");
    advance(&mut journal, at(26));
    assert_eq!((journal.ended.len(), journal.entries.len(), journal.lengths[32]), (0, 0, 0));
}

#[test]
fn long_blocks_are_announced_again_before_bouncers_drop_them() {
    let mut journal = Journal::default();
    let blocks = [("192.0.2.1", None, "a"), ("192.0.2.2", Some(400), "a"), ("192.0.2.3", Some(80), "a")];
    update(&mut journal, at(0), &blocks);
    let known = journal.last_change();
    advance(&mut journal, at(83));
    assert_eq!(changes(&journal, known, at(83)), "; 192.0.2.3 0s a");
    advance(&mut journal, at(85));
    assert_eq!(changes(&journal, known, at(85)), "192.0.2.1 168h0m0s a, 192.0.2.2 168h0m0s a; 192.0.2.3 0s a");
    let known = journal.last_change();
    advance(&mut journal, at(170));
    assert_eq!(changes(&journal, known, at(399)), "192.0.2.1 168h0m0s a, 192.0.2.2 1h0m0s a; ");
}

#[test]
fn listings_follow_the_prefixes() {
    let mut journal = Journal::default();
    let all = ["10.0.0.0/8", "10.1.0.0/16", "10.1.2.3", "192.0.2.1", "2001:db8::/32", "2001:db8::1"];
    let blocks: Vec<_> = all.iter().map(|text| (*text, None, "a")).collect();
    update(&mut journal, at(0), &blocks);
    let covering = |text: &str| {
        let texts: Vec<_> = journal.covering(network(text)).map(|entry| entry.network.to_string()).collect();
        texts.join(" ")
    };
    assert_eq!(covering("10.1.2.3"), "10.0.0.0/8 10.1.0.0/16 10.1.2.3");
    assert_eq!(covering("10.1.0.0/16"), "10.0.0.0/8 10.1.0.0/16");
    assert_eq!(covering("2001:db8::2"), "2001:db8::/32");
    assert_eq!(covering("192.0.2.2"), "");
    let within = |text: Option<&str>| {
        let (mut texts, mut after) = (Vec::new(), None);
        while let Some((place, entry)) = journal.within(text.map(network), after).next() {
            texts.push(entry.network.to_string());
            after = Some(place);
        }
        texts.join(" ")
    };
    assert_eq!(within(None), all.join(" "));
    assert_eq!(within(Some("10.0.0.0/8")), "10.0.0.0/8 10.1.0.0/16 10.1.2.3");
    assert_eq!(within(Some("10.1.0.0/16")), "10.1.0.0/16 10.1.2.3");
    assert_eq!(within(Some("::/0")), "2001:db8::/32 2001:db8::1");
    assert_eq!(within(Some("10.1.2.3")), "10.1.2.3");
}

#[test]
fn ids_are_stable_and_small() {
    assert_eq!(id(network("192.0.2.1")), id(network("192.0.2.1")));
    assert_ne!(id(network("192.0.2.1")), id(network("192.0.2.0/24")));
    assert!((1..=MAX_ID).contains(&id(network("::1"))));
}

proptest! {
    /// However often a bouncer asks, it has the blocks in force after each answer.
    #[test]
    fn bouncer_that_applies_changes_has_the_blocks_in_force(
        rounds in prop::collection::vec((prop::collection::vec((0..6_u8, prop::option::of(0..8_u64)), 0..8), any::<bool>()), 1..12)
    ) {
        let mut journal = Journal::default();
        let (mut known, mut bouncer) = (0, BTreeSet::new());
        for (hour, (blocks, asks)) in rounds.iter().enumerate() {
            let now = at(hour as u64);
            let texts: Vec<_> =
                blocks.iter().map(|(last, lasts)| (format!("10.0.0.{last}"), lasts.map(|lasts| hour as u64 + lasts))).collect();
            let blocks: Vec<_> = texts.iter().map(|(text, ends)| (text.as_str(), *ends, "a")).collect();
            update(&mut journal, now, &blocks);
            if !asks {
                continue;
            }
            for (_, entry) in journal.changes(DecisionList::Deleted, known, journal.last_change()) {
                bouncer.remove(&entry.network.to_string());
            }
            for (_, entry) in journal.changes(DecisionList::New, known, journal.last_change()) {
                bouncer.insert(entry.network.to_string());
            }
            known = journal.last_change();
            let in_force = blocks.iter().filter(|(_, ends, _)| ends.is_none_or(|ends| at(ends) > now));
            let in_force: BTreeSet<_> = in_force.map(|(text, _, _)| (*text).to_owned()).collect();
            prop_assert_eq!(&bouncer, &in_force);
            prop_assert_eq!(journal.len(), in_force.len());
        }
    }
}
