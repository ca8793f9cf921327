//! Crashes during reservations: acknowledged requests are settled exactly once, and others can be repeated. Each client
//! without an answer repeats its request, and then every balance equals the usage.
//!
//! `DIVVY_TEST_RESERVATION_KILLS` sets the number of kills of divvy and of Redis each (default 4), and
//! `DIVVY_TEST_SEED` their moments.

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
const PIPELINE: usize = 6;
/// Longer than a round of a campaign, in seconds.
const TTL: &str = "TTL 600";

fn rules() -> String {
    let rule = |(algorithm, rhythm): (&str, &str)| {
        // This bucket leaks a credit per month.
        let limit = if algorithm == "leaky" { format!("1\nburst = {CREDITS}") } else { CREDITS.to_string() };
        format!("[by={algorithm} user=*]\ncreditLimit = {limit}\n{rhythm}\nactorField = user\noverrun = debt\n\n")
    };
    RHYTHMS.map(rule).concat() + "[default]\ncreditLimit = 0\n"
}

/// A client's plan for a reservation, and the answer if one arrived.
#[derive(Debug, Clone)]
enum End {
    /// Commits this cost. The answer is the balance.
    Commit(i64, Option<i64>),
    /// Releases it. The answer says whether something was freed.
    Release(Option<bool>),
    /// Renews it, and leaves it open.
    Renew(Option<bool>),
}

/// A reservation from its client's point of view.
#[derive(Debug)]
struct Reservation {
    counter: String,
    name: String,
    amount: i64,
    id: Option<String>,
    end: End,
    /// A separate hit: its cost, and whether it was answered.
    hit: (i64, bool),
}

/// Returns the words of a reply that is a list.
fn words(reply: Option<String>) -> Option<Vec<String>> {
    Some(reply?.strip_prefix('[')?.strip_suffix(']')?.split(' ').map(str::to_owned).collect())
}

fn reserve(counter: &str, name: &str, amount: i64) -> String {
    format!("DIVVY.RESERVE {counter} AMOUNT {amount} {TTL} ID {name}\r\n")
}

/// Makes and settles reservations until it is stopped, or the server is gone.
fn work_until(stop: &Arc<AtomicBool>, server: &Server, seed: u64) -> JoinHandle<Vec<Reservation>> {
    let (stop, mut client) = (Arc::clone(stop), RespClient::connect(server.resp));
    let mut rng = Rng::seed_from_u64(seed);
    thread::spawn(move || {
        let mut all = Vec::new();
        while !stop.load(Relaxed) {
            let mut some: Vec<_> = (0..PIPELINE).map(|_| wanted(&mut rng)).collect();
            let lines = some.iter().map(|Reservation { counter, name, amount, hit: (cost, _), .. }| {
                reserve(counter, name, *amount) + &format!("DIVVY.HIT {counter} COST {cost}\r\n")
            });
            client.try_send(lines.collect::<String>().as_bytes());
            for reservation in &mut some {
                reservation.id = words(client.try_read_reply()).map(|words| {
                    assert_eq!(words[0], "1");
                    words[3].clone()
                });
                reservation.hit.1 = words(client.try_read_reply()).is_some();
            }
            let known: Vec<_> = some.iter_mut().filter(|reservation| reservation.id.is_some()).collect();
            client.try_send(known.iter().map(|known| known.settle()).collect::<String>().as_bytes());
            for reservation in known {
                reservation.note(client.try_read_reply());
            }
            let is_there = some.iter().all(|reservation| reservation.id.is_some());
            all.append(&mut some);
            if !is_there {
                break;
            }
        }
        all
    })
}

fn wanted(rng: &mut Rng) -> Reservation {
    let (algorithm, _) = RHYTHMS[rng.random_range(0..RHYTHMS.len())];
    let end = match rng.random_range(0..6) {
        0 => End::Release(None),
        1 => End::Renew(None),
        _ => End::Commit(rng.random_range(0..150), None),
    };
    Reservation {
        counter: format!("by={algorithm} user=u{}", rng.random_range(0..USERS)),
        name: format!("{:016x}", rng.random::<u64>()),
        amount: rng.random_range(1..100),
        id: None,
        end,
        hit: (rng.random_range(1..20), false),
    }
}

impl Reservation {
    fn settle(&self) -> String {
        let id = self.id.as_deref().unwrap_or_default();
        match self.end {
            End::Commit(cost, _) => format!("DIVVY.COMMIT {id} COST {cost}\r\n"),
            End::Release(_) => format!("DIVVY.RELEASE {id}\r\n"),
            End::Renew(_) => format!("DIVVY.RENEW {id} {TTL}\r\n"),
        }
    }

    fn note(&mut self, reply: Option<String>) {
        match &mut self.end {
            End::Commit(_, balance) => *balance = words(reply).map(|words| words[0].parse().unwrap()),
            End::Release(freed) => *freed = reply.filter(|reply| !reply.starts_with("ERR")).map(|reply| reply == "1"),
            End::Renew(renewed) => *renewed = reply.filter(|reply| !reply.starts_with("ERR")).map(|reply| reply != "0"),
        }
    }

    /// Repeats unanswered requests, and checks that answered ones are still settled. Returns the credits used.
    fn settle_again(&mut self, client: &mut RespClient) -> i64 {
        let had_id = self.id.is_some();
        // A released reservation is forgotten, so repeating it would make a new one.
        if !matches!(self.end, End::Release(Some(_))) || !had_id {
            let again =
                words(Some(client.command(reserve(&self.counter, &self.name, self.amount).trim_end()))).unwrap();
            assert_eq!(again[0], "1", "{self:?}");
            let known = self.id.replace(again[3].clone());
            // A release that was carried out freed the name for another reservation.
            let was_freed = matches!(self.end, End::Release(None));
            assert!(known.is_none() || known == self.id || was_freed, "{self:?}");
        }
        let id = self.id.clone().unwrap();
        match self.end.clone() {
            End::Commit(cost, reported) => {
                let committed = words(Some(client.command(&format!("DIVVY.COMMIT {id} COST {cost}")))).unwrap();
                let (balance, how): (i64, _) = (committed[0].parse().unwrap(), committed[2].as_str());
                match reported {
                    Some(reported) => assert_eq!((balance, how), (reported, "repeated"), "{self:?}"),
                    None => assert!(["settled", "repeated"].contains(&how), "{how}: {self:?}"),
                }
                cost
            }
            End::Release(reported) => {
                let freed = client.command(&format!("DIVVY.RELEASE {id}"));
                assert!(reported != Some(true) || freed == "0", "{self:?}");
                0
            }
            End::Renew(reported) => {
                assert_ne!(reported, Some(false), "{self:?}");
                // The reservation was left open, and still is.
                let committed = words(Some(client.command(&format!("DIVVY.COMMIT {id} COST 7")))).unwrap();
                assert_eq!(committed[2], "settled", "{self:?}");
                7
            }
        }
    }
}

#[derive(Default)]
struct Campaign {
    used: HashMap<String, i64>,
    reservations: usize,
}

impl Campaign {
    /// Settles everything. Then checks that each counter's usage is the acknowledged one, plus hits that may have
    /// counted.
    fn verify(&mut self, server: &Server, clients: Vec<JoinHandle<Vec<Reservation>>>) {
        let mut client = RespClient::connect(server.resp);
        let mut maybe: HashMap<String, i64> = HashMap::new();
        for mut reservation in clients.into_iter().flat_map(|client| client.join().unwrap()) {
            self.reservations += 1;
            let used = self.used.entry(reservation.counter.clone()).or_default();
            *used += reservation.settle_again(&mut client);
            match reservation.hit {
                (cost, true) => *used += cost,
                (cost, false) => *maybe.entry(reservation.counter).or_default() += cost,
            }
        }
        for (counter, used) in &mut self.used {
            let reply = words(Some(client.command(&format!("DIVVY.CHARGE {counter} COST 0")))).unwrap();
            let now = CREDITS - reply[0].parse::<i64>().unwrap();
            let expected = *used..=*used + maybe.get(counter).copied().unwrap_or_default();
            assert!(expected.contains(&now), "{counter}: {now} used, not {expected:?}");
            *used = now;
        }
    }
}

#[test]
#[cfg_attr(not(feature = "rocksdb"), ignore = "needs the embedded store")]
fn no_sigkill_of_divvy_loses_a_commit_or_brings_a_reservation_back() {
    let rules = RulesFile::ini(&rules());
    let data = tempfile::tempdir().unwrap();
    let mut rng = Rng::seed_from_u64(seed());
    // The table is small and the journal short, so buckets are evicted and records outlive the journal.
    let serve = |durability: &str| {
        let data = data.path().to_str().unwrap();
        let flags =
            ["--cache-memory", "1Mi", "--max-journal", "1Mi", "--max-reservation-ttl", "10m", "--data-dir", data];
        Server::start(&[&[rules.path(), "--durability", durability][..], &flags].concat())
    };
    let mut server = serve("wal");
    let mut campaign = Campaign::default();
    for round in 0..setting("DIVVY_TEST_RESERVATION_KILLS", 4) {
        let restart = || serve(["sync", "wal"][round % 2]);
        let clients;
        (server, clients) = kill_divvy_under(server, &mut rng, work_until, restart);
        campaign.verify(&server, clients);
    }
    assert!(campaign.reservations > 0);
    println!("{} reservations", campaign.reservations);
}

#[test]
fn sigkill_of_redis_neither_loses_commits_nor_revives_reservations() {
    let rules = RulesFile::ini(&rules());
    let mut rng = Rng::seed_from_u64(seed());
    let (mut redis, server) = divvy_on_durable_redis(&rules, &["--max-reservation-ttl", "10m"]);
    let mut campaign = Campaign::default();
    for _ in 0..setting("DIVVY_TEST_RESERVATION_KILLS", 4) {
        let clients = kill_redis_under(&mut redis, &mut rng, |stop, seed| work_until(stop, &server, seed));
        until(|| RespClient::connect(server.resp).command("DIVVY.CHARGE by=tokens user=other COST 0").starts_with('['));
        campaign.verify(&server, clients);
    }
    assert!(campaign.reservations > 0);
    println!("{} reservations", campaign.reservations);
}
