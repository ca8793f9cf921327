//! Crashes during hits, charges and refunds: afterwards, every acknowledged change is in the balance exactly once, and
//! every other change either completely or not at all.
//!
//! `DIVVY_TEST_DEBT_KILLS` sets the number of kills of divvy and of Redis each (default 4), and `DIVVY_TEST_SEED` their
//! moments.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};

use rand::rngs::Xoshiro256PlusPlus as Rng;
use rand::{RngExt, SeedableRng};

use super::numbers;
use crate::plans::RHYTHMS;
use crate::support::kills::{divvy_on_durable_redis, kill_divvy_under, kill_redis_under};
use crate::support::redis::until;
use crate::support::seed::{seed, setting};
use crate::support::{RespClient, RulesFile, Server};

const CREDITS: i64 = 1_000_000_000;
/// Credits charged at the start, so that refunds never reach the limit.
const CHARGED: i64 = 500_000_000;
const USERS: u64 = 3;
const PIPELINE: usize = 6;

fn rules() -> String {
    let rule = |(algorithm, rhythm): (&str, &str)| {
        // This bucket leaks a credit per month.
        let limit = if algorithm == "leaky" { format!("1\nburst = {CREDITS}") } else { CREDITS.to_string() };
        format!("[by={algorithm} user=*]\ncreditLimit = {limit}\n{rhythm}\nactorField = user\noverrun = debt\n\n")
    };
    RHYTHMS.map(rule).concat() + "[default]\ncreditLimit = 0\n"
}

/// Changes that clients made to a counter.
#[derive(Debug, Clone, Copy, Default)]
struct CounterChanges {
    /// Acknowledged changes: credits taken minus credits given back.
    taken: i64,
    /// Upper bounds for unacknowledged changes, which were unanswered or answered with an error: credits taken, and
    /// credits given back.
    maybe_taken: i64,
    maybe_given_back: i64,
    acknowledged: u64,
}

type ChangesByCounter = HashMap<String, CounterChanges>;

/// Sends hits, charges and refunds until it is stopped, or the server is gone.
fn work_until(stop: &Arc<AtomicBool>, server: &Server, seed: u64) -> JoinHandle<ChangesByCounter> {
    let (stop, mut client) = (Arc::clone(stop), RespClient::connect(server.resp));
    let mut rng = Rng::seed_from_u64(seed);
    thread::spawn(move || {
        let mut all = ChangesByCounter::new();
        let mut is_there = true;
        while is_there && !stop.load(Relaxed) {
            let asked: Vec<_> = (0..PIPELINE)
                .map(|_| {
                    let (algorithm, _) = RHYTHMS[rng.random_range(0..RHYTHMS.len())];
                    let counter = format!("by={algorithm} user=u{}", rng.random_range(0..USERS));
                    (counter, ["HIT", "CHARGE", "REFUND"][rng.random_range(0..3)], rng.random_range(1..100i64))
                })
                .collect();
            let line =
                |(counter, command, cost): &(String, &str, i64)| format!("DIVVY.{command} {counter} COST {cost}\r\n");
            client.try_send(asked.iter().map(line).collect::<String>().as_bytes());
            for (counter, command, cost) in asked {
                let answer = client.try_read_reply();
                is_there &= answer.is_some();
                let done = all.entry(counter).or_default();
                match answer.filter(|answer| answer.starts_with('[')) {
                    Some(answer) if command == "HIT" => {
                        assert!(answer.starts_with("[1 "), "{answer}");
                        done.taken += cost;
                        done.acknowledged += 1;
                    }
                    Some(_) => {
                        done.taken += if command == "CHARGE" { cost } else { -cost };
                        done.acknowledged += 1;
                    }
                    None if command == "REFUND" => done.maybe_given_back += cost,
                    None => done.maybe_taken += cost,
                }
            }
        }
        all
    })
}

/// The known usage of each counter.
#[derive(Default)]
struct Campaign {
    used: HashMap<String, i64>,
    acknowledged: u64,
}

impl Campaign {
    fn begin(server: &Server) -> Self {
        let mut campaign = Self::default();
        let mut client = RespClient::connect(server.resp);
        for (algorithm, _) in RHYTHMS {
            for user in 0..USERS {
                let counter = format!("by={algorithm} user=u{user}");
                let charged = client.command(&format!("DIVVY.CHARGE {counter} COST {CHARGED}"));
                assert_eq!(numbers(&charged)[0], CREDITS - CHARGED);
                campaign.used.insert(counter, CHARGED);
            }
        }
        campaign
    }

    /// Checks that each counter's usage is the acknowledged usage, plus at most the unacknowledged changes.
    fn verify(&mut self, server: &Server, clients: Vec<JoinHandle<ChangesByCounter>>) {
        let mut all = ChangesByCounter::new();
        for (counter, done) in clients.into_iter().flat_map(|client| client.join().unwrap()) {
            let known = all.entry(counter).or_default();
            known.taken += done.taken;
            known.maybe_taken += done.maybe_taken;
            known.maybe_given_back += done.maybe_given_back;
            self.acknowledged += done.acknowledged;
        }
        let mut client = RespClient::connect(server.resp);
        for (counter, used) in &mut self.used {
            let done = all.get(counter).copied().unwrap_or_default();
            let reply = client.command(&format!("DIVVY.CHARGE {counter} COST 0"));
            let now = CREDITS - numbers(&reply)[0];
            let expected = *used + done.taken - done.maybe_given_back..=*used + done.taken + done.maybe_taken;
            assert!(expected.contains(&now), "{counter}: {now} used, not {expected:?}: {done:?}");
            *used = now;
        }
    }
}

#[test]
#[cfg_attr(not(feature = "rocksdb"), ignore = "needs the embedded store")]
fn sigkill_of_divvy_neither_loses_nor_doubles_settled_costs() {
    let rules = RulesFile::ini(&rules());
    let data = tempfile::tempdir().unwrap();
    let mut rng = Rng::seed_from_u64(seed());
    // The table is small, so counters are evicted and read back.
    let serve = |durability: &str| {
        let data = data.path().to_str().unwrap();
        Server::start(&[rules.path(), "--durability", durability, "--cache-memory", "1Mi", "--data-dir", data])
    };
    let mut server = serve("wal");
    let mut campaign = Campaign::begin(&server);
    for round in 0..setting("DIVVY_TEST_DEBT_KILLS", 4) {
        let restart = || serve(["sync", "wal"][round % 2]);
        let clients;
        (server, clients) = kill_divvy_under(server, &mut rng, work_until, restart);
        campaign.verify(&server, clients);
    }
    assert!(campaign.acknowledged > 0);
    println!("{} hits, charges and refunds acknowledged", campaign.acknowledged);
}

#[test]
fn sigkill_of_redis_neither_loses_nor_doubles_settled_costs() {
    let rules = RulesFile::ini(&rules());
    let mut rng = Rng::seed_from_u64(seed());
    let (mut redis, server) = divvy_on_durable_redis(&rules, &[]);
    let mut campaign = Campaign::begin(&server);
    for _ in 0..setting("DIVVY_TEST_DEBT_KILLS", 4) {
        let clients = kill_redis_under(&mut redis, &mut rng, |stop, seed| work_until(stop, &server, seed));
        until(|| RespClient::connect(server.resp).command("DIVVY.CHARGE by=tokens user=other COST 0").starts_with('['));
        campaign.verify(&server, clients);
    }
    assert!(campaign.acknowledged > 0);
    println!("{} hits, charges and refunds acknowledged", campaign.acknowledged);
}
