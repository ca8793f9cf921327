//! Recorded commands and replies of Smyte's limiter, replayed on bare token buckets.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::*;
use crate::clock::NANOS_PER_MILLI;

const RECORDED: &str = include_str!("../../../../../tests/compat/token-bucket.jsonl");

/// A command of a recorded row.
struct Command<'a> {
    key: &'a str,
    limit: Limit,
    ask: Ask,
    at_ms: u64,
    sessionize: bool,
}

fn parse(line: &str) -> Command<'_> {
    let mut words = line.split(' ');
    let verb = words.next().unwrap().strip_prefix("RL.").unwrap();
    let key = words.next().unwrap();
    // A `P` before the verb stands for milliseconds.
    let (verb, unit_ms) = verb.strip_prefix('P').map_or((verb, 1_000), |verb| (verb, 1));
    let mut number = || words.next().map(|word| word.parse::<u64>().unwrap());
    let capacity = number().unwrap();
    let interval_ms = number().unwrap() * unit_ms;
    let (mut refill, mut cost, mut strict, mut at_ms) = (capacity, 1, verb == "SESSIONIZE", None);
    while let Some(option) = words.next() {
        let mut number = || words.next().unwrap().parse::<u64>().unwrap();
        match option {
            "REFILL" => refill = number(),
            "TAKE" => cost = number(),
            "AT" => at_ms = Some(number() * unit_ms),
            "STRICT" => strict = true,
            _ => panic!("{option} in {line}"),
        }
    }
    Command {
        key,
        limit: Limit::TokenBucket(TokenBucket::new(capacity, refill, interval_ms * NANOS_PER_MILLI).unwrap()),
        ask: if verb == "GET" { Ask::Look { cost: 0 } } else { Ask::Replay { cost, strict } },
        at_ms: at_ms.unwrap(),
        sessionize: verb == "SESSIONIZE",
    }
}

#[test]
fn replies_match_the_recorded_ones() {
    let mut buckets: HashMap<(&str, Limit), Bucket> = HashMap::new();
    let rows: Vec<Value> = RECORDED.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows.len(), 34);
    for row in &rows {
        let line = row["send"].as_str().unwrap();
        let command = parse(line);
        let bucket = buckets.entry((command.key, command.limit)).or_insert_with(|| Bucket::new(command.limit));
        let outcome = bucket.ask(command.ask, command.at_ms * NANOS_PER_MILLI);
        let reply = if command.sessionize {
            json!([outcome.before, outcome.session.as_nanos() / NANOS_PER_MILLI])
        } else {
            json!(outcome.before)
        };
        assert_eq!(reply, row["reply"], "{line}");
    }
}
