use std::net::{Ipv4Addr, Ipv6Addr};

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

/// Updates the journal with these blocks, which are all. Each has a network, its end in hours and a scenario.
fn update(journal: &mut Journal, now: Timestamp, blocks: &[(&str, Option<u64>, &str)]) {
    let mut listed: BTreeMap<_, Vec<_>> = journal.networks().into_iter().map(|known| (known, Vec::new())).collect();
    for (text, ends, scenario) in blocks {
        listed.entry(network(text)).or_default().push(reason(*ends, scenario));
    }
    listed.into_iter().for_each(|(network, reasons)| journal.replace(network, reasons, now));
    while !journal.advance(2, now) {}
}

fn filter(query: &str) -> DecisionFilter {
    DecisionFilter::parse(query).unwrap()
}

fn advance(journal: &mut Journal, now: Timestamp) {
    while !journal.advance(1_000, now) {}
}

/// Returns the new and the deleted decisions since a change.
fn changes(journal: &Journal, after: u64, now: Timestamp) -> String {
    let list = |list| {
        let mut out = Vec::new();
        for entry in journal.changes(list, after, journal.last_change) {
            let is_in_force = list == DecisionList::New;
            entry.write(&entry.reasons[0], is_in_force, now, !out.is_empty(), &mut out);
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
    let first = journal.last_change;
    let all = "10.0.0.0/8 168h0m0s b, 192.0.2.1 1h0m0s a; ";
    assert_eq!(changes(&journal, 0, at(0)), all);
    assert_eq!(changes(&journal, first, at(0)), "; ");
    update(&mut journal, at(0), &[("192.0.2.1", Some(1), "a"), ("10.0.0.0/8", None, "b")]);
    assert_eq!(changes(&journal, first, at(0)), "; ", "an update without changes");
    update(&mut journal, at(0), &[("192.0.2.1", Some(2), "a"), ("2001:db8::/32", Some(3), "c")]);
    let second = journal.last_change;
    let expected = "192.0.2.1 2h0m0s a, 2001:db8::/32 3h0m0s c; 10.0.0.0/8 0s b";
    assert_eq!(changes(&journal, first, at(0)), expected);
    assert_eq!(changes(&journal, 0, at(0)), expected, "a bouncer that starts may have kept what has ended");
    advance(&mut journal, at(2));
    assert_eq!(changes(&journal, second, at(2)), "; 192.0.2.1 0s a", "its time has come, without an update");
    update(&mut journal, at(2), &[("192.0.2.1", Some(4), "d")]);
    assert_eq!(changes(&journal, second, at(2)), "192.0.2.1 2h0m0s d; 2001:db8::/32 0s c");
    assert_eq!(journal.in_force.len(), 1);
}

#[test]
fn rounded_end_is_no_change() {
    let mut journal = Journal::default();
    update(&mut journal, at(0), &[("192.0.2.1", Some(1), "a"), ("192.0.2.1", Some(2), "b")]);
    let first = journal.last_change;
    let later = Reason { ends: Some(at(2).plus(NANOS_PER_SECOND)), ..reason(None, "b") };
    journal.replace(network("192.0.2.1"), vec![reason(Some(1), "a"), later], at(0));
    assert_eq!(changes(&journal, first, at(0)), "; ", "a second is a matter of rounding");
}

#[test]
fn block_that_ends_last_decides() {
    let mut journal = Journal::default();
    let blocks = [("192.0.2.1", Some(1), "a"), ("192.0.2.1", None, "b"), ("192.0.2.1", Some(3), "c")];
    update(&mut journal, at(0), &blocks);
    assert_eq!(changes(&journal, 0, at(0)), "192.0.2.1 168h0m0s b; ");
    let known = journal.last_change;
    update(&mut journal, at(0), &[blocks[2], blocks[1], blocks[0]]);
    assert_eq!(changes(&journal, known, at(0)), "; ", "the order does not matter");
    update(&mut journal, at(0), &[blocks[0], blocks[2]]);
    assert_eq!(changes(&journal, known, at(0)), "192.0.2.1 3h0m0s c; ");
}

/// A bouncer may want only the decisions of one origin, or none of a scenario.
#[test]
fn bouncer_gets_the_reason_that_it_wants() {
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
    let known = journal.last_change;
    advance(&mut journal, at(2));
    assert!(journal.last_change > known);
    assert_eq!(entry(&journal, "scenarios_not_containing=long"), (none(), "long".to_owned()));
    assert_eq!(entry(&journal, ""), ("long".to_owned(), none()));
}

#[test]
fn block_that_has_ended_leaves_nothing_behind() {
    let mut journal = Journal::default();
    update(&mut journal, at(2), &[("192.0.2.1", Some(1), "a")]);
    assert_eq!((journal.last_change, journal.entries.len()), (0, 0));
}

#[test]
fn ended_decisions_are_forgotten() {
    let mut journal = Journal::default();
    let texts: Vec<String> = (0..MAX_ENDED as u32 + 10).map(|n| Ipv4Addr::from_bits(n).to_string()).collect();
    let blocks: Vec<_> = texts.iter().map(|text| (text.as_str(), Some(1), "a")).collect();
    update(&mut journal, at(0), &blocks);
    let known = journal.last_change;
    assert!(journal.remembers_since(known));
    advance(&mut journal, at(1));
    assert_eq!((journal.in_force.len(), journal.ended.len(), journal.entries.len()), (0, MAX_ENDED, MAX_ENDED));
    assert!(!journal.remembers_since(known) && journal.remembers_since(journal.last_change));
    assert!(journal.remembers_since(0), "a bouncer that starts lacks nothing");
    advance(&mut journal, at(26));
    assert_eq!((journal.ended.len(), journal.entries.len(), journal.ends.len()), (0, 0, 0));
}

#[test]
fn long_blocks_are_announced_again_before_bouncers_drop_them() {
    let mut journal = Journal::default();
    let blocks = [("192.0.2.1", None, "a"), ("192.0.2.2", Some(400), "a"), ("192.0.2.3", Some(80), "a")];
    update(&mut journal, at(0), &blocks);
    let known = journal.last_change;
    advance(&mut journal, at(83));
    assert_eq!(changes(&journal, known, at(83)), "; 192.0.2.3 0s a");
    advance(&mut journal, at(85));
    assert_eq!(changes(&journal, known, at(85)), "192.0.2.1 168h0m0s a, 192.0.2.2 168h0m0s a; 192.0.2.3 0s a");
    let known = journal.last_change;
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
        while let Some(entry) = journal.within(text.map(network), after).next() {
            texts.push(entry.network.to_string());
            after = Some(entry.network);
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
fn decision_is_written_with_the_fields_of_crowdsec() {
    let mut journal = Journal::default();
    journal.replace(network("2001:db8::/32"), vec![reason(Some(1), "divvy/login")], at(0));
    let pieces: Vec<_> = write_list(Arc::new(Mutex::new(journal)), filter(""), at(0)).collect();
    let id = id(network("2001:db8::/32"));
    let expected = format!(
        r#"[{{"duration":"1h0m0s","id":{id},"origin":"divvy","scenario":"divvy/login","scope":"Range","type":"ban","value":"2001:db8::/32"}}]"#
    );
    assert_eq!(pieces.concat(), expected.as_bytes());
}

#[test]
fn ids_are_stable_and_small() {
    assert_eq!(id(network("192.0.2.1")), id(network("192.0.2.1")));
    assert_ne!(id(network("192.0.2.1")), id(network("192.0.2.0/24")));
    assert!((1..=MAX_ID).contains(&id(network("::1"))));
}

/// More than a few pieces.
const COUNT: usize = 3 * PIECE + 7;

/// Returns a journal with blocks of 10.0.0.0, 10.0.0.1 and so on. The last one has the scenario `last`.
fn long_journal() -> Arc<Mutex<Journal>> {
    let mut journal = Journal::default();
    for n in 0..COUNT {
        let address = Ipv4Addr::from_bits(0x0a00_0000 + n as u32).to_string();
        let scenario = if n + 1 == COUNT { "last" } else { "other" };
        journal.replace(network(&address), vec![reason(None, scenario)], Timestamp::EPOCH);
    }
    Arc::new(Mutex::new(journal))
}

fn listed(query: &str) -> (Vec<Bytes>, serde_json::Value) {
    let pieces: Vec<_> = write_list(long_journal(), filter(query), Timestamp::EPOCH).collect();
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
    let (journal, bouncers) = (long_journal(), Arc::new(Mutex::new(Bouncers::default())));
    let bouncer = Bouncer::new(None, Ipv4Addr::LOCALHOST.into(), b"test");
    let answer = |query: &str, after: u64| {
        let through = journal.lock().last_change;
        let (bouncers, bouncer) = (Arc::clone(&bouncers), bouncer.clone());
        let done = move || bouncers.lock().advance(bouncer.clone(), through);
        write_changes(Arc::clone(&journal), filter(query), Timestamp::EPOCH, after..through, done)
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

    // All decisions end. The bouncer wants to know of one of them.
    let mut all = journal.lock();
    all.networks().into_iter().for_each(|network| all.replace(network, Vec::new(), Timestamp::EPOCH));
    drop(all);
    let pieces: Vec<_> = answer("scenarios_containing=last", known).collect();
    let json: serde_json::Value = serde_json::from_slice(&pieces.concat()).unwrap();
    assert_eq!((json["new"].as_array().unwrap().len(), json["deleted"].as_array().unwrap().len()), (0, 1));
    assert_eq!(bouncers.lock().position(&bouncer), 2 * COUNT as u64);
}

fn bouncer(user: &str, address: u128, agent: &str) -> Bouncer {
    Bouncer::new(Some(user.into()), Ipv6Addr::from_bits(address).into(), agent.as_bytes())
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
            for entry in journal.changes(DecisionList::Deleted, known, journal.last_change) {
                bouncer.remove(&entry.network.to_string());
            }
            for entry in journal.changes(DecisionList::New, known, journal.last_change) {
                bouncer.insert(entry.network.to_string());
            }
            known = journal.last_change;
            let in_force = blocks.iter().filter(|(_, ends, _)| ends.is_none_or(|ends| at(ends) > now));
            let in_force: BTreeSet<_> = in_force.map(|(text, _, _)| (*text).to_owned()).collect();
            prop_assert_eq!(&bouncer, &in_force);
            prop_assert_eq!(journal.in_force.len(), in_force.len());
        }
    }
}
