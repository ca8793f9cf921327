use std::net::Ipv4Addr;

use axum::extract::Query;

use super::*;
use crate::protocol::crowdsec::DecisionQuery;
use crate::rules::Network;
use crate::server::crowdsec::journal::Reason;

/// More than a few pieces.
const COUNT: usize = 3 * PIECE + 7;

/// Returns a journal with blocks of 10.0.0.0, 10.0.0.1 and so on. The last one has the scenario `last`.
fn journal() -> Arc<Mutex<Journal>> {
    let mut journal = Journal::default();
    journal.note_all((0..COUNT).map(|n| {
        let address = Ipv4Addr::from_bits(0x0a00_0000 + n as u32).to_string();
        let scenario = if n + 1 == COUNT { "last" } else { "other" };
        (Network::parse(&address).unwrap(), Reason { ends: None, origin: "divvy", scenario: scenario.into() })
    }));
    assert_eq!(journal.settle(None, COUNT + 1, Timestamp::EPOCH), None);
    Arc::new(Mutex::new(journal))
}

fn filter(query: &str) -> DecisionFilter {
    let uri = format!("http://divvy/v1/decisions?{query}").parse().unwrap();
    Query::<DecisionQuery>::try_from_uri(&uri).unwrap().0.filter().unwrap()
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
