//! Crashes during hits with ids: a client without an answer sends its request again, and each hit is counted exactly
//! once.
//!
//! `DIVVY_TEST_ONCE_KILLS` sets the number of kills of divvy and of Redis each (default 4), and `DIVVY_TEST_SEED` their
//! moments.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};

use rand::rngs::Xoshiro256PlusPlus as Rng;
use rand::{RngExt, SeedableRng};

use crate::plans::RHYTHMS;
use crate::support::kills::{divvy_on_durable_redis, kill_divvy_under, kill_redis_under};
use crate::support::redis::until;
use crate::support::seed::{seed, setting};
use crate::support::{RespClient, RulesFile, Server};

const CREDITS: i64 = 1_000_000_000;
const USERS: u64 = 3;
const PIPELINE: usize = 8;

fn rules() -> String {
    let rule = |(algorithm, rhythm): (&str, &str)| {
        // This bucket leaks a credit per month.
        let limit = if algorithm == "leaky" { format!("1\nburst = {CREDITS}") } else { CREDITS.to_string() };
        format!("[by={algorithm} user=*]\ncreditLimit = {limit}\n{rhythm}\nactorField = user\n\n")
    };
    let stacked = |fields: &str, policy: &str| {
        format!(
            "[{fields}]\ncreditLimit = {CREDITS}\nresetSeconds = 2592000\nmatchPolicy = {policy}\nactorField = user\n\n"
        )
    };
    RHYTHMS.map(rule).concat()
        + &stacked("by=stack user=*", "and")
        + &stacked("by=* user=*", "stop")
        + "[default]\ncreditLimit = 0\n"
}

/// A hit or a charge, and its reply if one arrived.
#[derive(Debug)]
struct IdempotentRequest {
    counter: String,
    cost: i64,
    command: String,
    reply: Option<String>,
}

fn random_request(rng: &mut Rng) -> IdempotentRequest {
    let which = rng.random_range(0..=RHYTHMS.len());
    let by = RHYTHMS.get(which).map_or("stack", |(algorithm, _)| algorithm);
    let (counter, cost) = (format!("by={by} user=u{}", rng.random_range(0..USERS)), rng.random_range(1..50));
    let verb = if rng.random_range(0..4) == 0 { "CHARGE" } else { "HIT" };
    let command = format!("DIVVY.{verb} {counter} COST {cost} ID {:016x}", rng.random::<u64>());
    IdempotentRequest { counter, cost, command, reply: None }
}

/// Sends hits until it is stopped, or the server is gone.
fn hit_until(stop: &Arc<AtomicBool>, server: &Server, seed: u64) -> JoinHandle<Vec<IdempotentRequest>> {
    let (stop, mut client) = (Arc::clone(stop), RespClient::connect(server.resp));
    let mut rng = Rng::seed_from_u64(seed);
    thread::spawn(move || {
        let mut all = Vec::new();
        while !stop.load(Relaxed) {
            let mut some: Vec<_> = (0..PIPELINE).map(|_| random_request(&mut rng)).collect();
            let lines: String = some.iter().map(|asked| format!("{}\r\n", asked.command)).collect();
            client.try_send(lines.as_bytes());
            for asked in &mut some {
                asked.reply = client.try_read_reply().filter(|reply| reply.starts_with('['));
            }
            let is_there = some.iter().all(|asked| asked.reply.is_some());
            all.append(&mut some);
            if !is_there {
                break;
            }
        }
        all
    })
}

#[derive(Default)]
struct Campaign {
    used: HashMap<String, i64>,
    hits: usize,
    /// Number of hits without an answer.
    lost: usize,
}

impl Campaign {
    /// Repeats all unanswered requests and some others, as clients do. Then checks that every counter's usage is the
    /// sum of the requests.
    fn verify(&mut self, server: &Server, clients: Vec<JoinHandle<Vec<IdempotentRequest>>>) {
        let mut client = RespClient::connect(server.resp);
        for (place, IdempotentRequest { counter, cost, command, reply }) in
            clients.into_iter().flat_map(|client| client.join().unwrap()).enumerate()
        {
            self.hits += 1;
            self.lost += usize::from(reply.is_none());
            *self.used.entry(counter).or_default() += cost;
            if reply.is_none() || place % 8 == 0 {
                let reported = client.command(&command);
                assert!(reported.starts_with('['), "{command}: {reported}");
                assert!(reply.is_none_or(|reply| reply == reported), "{command}");
                assert_eq!(client.command(&command), reported, "{command}");
            }
        }
        for (counter, used) in &self.used {
            let reply = client.command(&format!("DIVVY.CHARGE {counter} COST 0"));
            let balance: i64 = reply.trim_start_matches('[').split(' ').next().unwrap().parse().expect(&reply);
            assert_eq!(CREDITS - balance, *used, "{counter}");
        }
    }

    fn done(&self) {
        assert!(self.hits > 0);
        println!("{} hits, of which {} had no answer at first", self.hits, self.lost);
    }
}

#[test]
#[cfg_attr(not(feature = "rocksdb"), ignore = "needs the embedded store")]
fn no_sigkill_of_divvy_counts_a_hit_twice_or_never() {
    let rules = RulesFile::ini(&rules());
    let data = tempfile::tempdir().unwrap();
    let mut rng = Rng::seed_from_u64(seed());
    // The table is small and the journal short, so counters are evicted and answers outlive the journal.
    let serve = |durability: &str| {
        let data = data.path().to_str().unwrap();
        let flags = ["--cache-memory", "1Mi", "--max-journal", "1Mi", "--data-dir", data];
        Server::start(&[&[rules.path(), "--durability", durability][..], &flags].concat())
    };
    let mut server = serve("wal");
    let mut campaign = Campaign::default();
    for round in 0..setting("DIVVY_TEST_ONCE_KILLS", 4) {
        let restart = || serve(["sync", "wal"][round % 2]);
        let clients;
        (server, clients) = kill_divvy_under(server, &mut rng, hit_until, restart);
        campaign.verify(&server, clients);
    }
    campaign.done();
}

#[test]
fn sigkill_of_redis_neither_repeats_nor_loses_a_hit() {
    let rules = RulesFile::ini(&rules());
    let mut rng = Rng::seed_from_u64(seed());
    let (mut redis, server) = divvy_on_durable_redis(&rules, &[]);
    let mut campaign = Campaign::default();
    for _ in 0..setting("DIVVY_TEST_ONCE_KILLS", 4) {
        let clients = kill_redis_under(&mut redis, &mut rng, |stop, seed| hit_until(stop, &server, seed));
        until(|| RespClient::connect(server.resp).command("DIVVY.CHARGE by=tokens user=other COST 0").starts_with('['));
        campaign.verify(&server, clients);
    }
    campaign.done();
}
