//! Crashes while leases are taken and freed: no acknowledged lease is lost or doubled.
//!
//! `DIVVY_TEST_LEASE_KILLS` sets the number of kills of divvy and of Redis each (default 4), and `DIVVY_TEST_SEED`
//! their moments.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};

use rand::rngs::Xoshiro256PlusPlus as Rng;
use rand::{RngExt, SeedableRng};

use crate::support::kills::{divvy_on_durable_redis, kill_divvy_under, kill_redis_under};
use crate::support::redis::until;
use crate::support::seed::{seed, setting};
use crate::support::{RespClient, RulesFile, Server};

/// Low enough that some requests are denied.
const LEASES: usize = 40;
const PIPELINE: usize = 6;

fn rules() -> RulesFile {
    RulesFile::ini(&format!(
        "[job=*]\ncreditLimit = {LEASES}\nresetSeconds = 600\nalgorithm = concurrency\n\n[default]\ncreditLimit = 0\n"
    ))
}

/// A lease from its client's point of view.
#[derive(Debug)]
struct Lease {
    name: String,
    held: LeaseStatus,
    wants_release: bool,
}

#[derive(Debug, Clone, PartialEq)]
enum LeaseStatus {
    /// No answer arrived, so the lease may exist or not.
    Unknown,
    Held {
        id: String,
    },
    Released,
    Denied,
}

fn reserve(name: &str) -> String {
    format!("DIVVY.RESERVE job=x AMOUNT 1 ID {name}")
}

fn read_reserved(reply: &str) -> LeaseStatus {
    let words: Vec<_> = reply.trim_matches(['[', ']']).split(' ').collect();
    match words.as_slice() {
        ["1", _, _, id] => LeaseStatus::Held { id: (*id).to_owned() },
        ["0", ..] => LeaseStatus::Denied,
        _ => LeaseStatus::Unknown,
    }
}

/// Takes and frees leases until it is stopped, or the server is gone.
fn work_until(stop: &Arc<AtomicBool>, server: &Server, seed: u64) -> JoinHandle<Vec<Lease>> {
    let (stop, mut client) = (Arc::clone(stop), RespClient::connect(server.resp));
    let mut rng = Rng::seed_from_u64(seed);
    thread::spawn(move || {
        let mut all = Vec::new();
        while !stop.load(Relaxed) {
            let new = |rng: &mut Rng| Lease {
                name: format!("{:016x}", rng.random::<u64>()),
                held: LeaseStatus::Unknown,
                wants_release: rng.random_range(0..10) > 0,
            };
            let mut some: Vec<_> = (0..PIPELINE).map(|_| new(&mut rng)).collect();
            client.try_send(some.iter().map(|lease| reserve(&lease.name) + "\r\n").collect::<String>().as_bytes());
            for lease in &mut some {
                lease.held = client.try_read_reply().map_or(LeaseStatus::Unknown, |reply| read_reserved(&reply));
            }
            let is_there = some.iter().all(|lease| lease.held != LeaseStatus::Unknown);
            let released: Vec<_> = some.iter_mut().filter_map(Lease::releasable).collect();
            client.try_send(
                released.iter().map(|(id, _)| format!("DIVVY.RELEASE {id}\r\n")).collect::<String>().as_bytes(),
            );
            for (_, held) in released {
                if client.try_read_reply().as_deref() == Some("1") {
                    *held = LeaseStatus::Released;
                }
            }
            all.append(&mut some);
            if !is_there {
                break;
            }
        }
        all
    })
}

impl Lease {
    fn releasable(&mut self) -> Option<(String, &mut LeaseStatus)> {
        match &self.held {
            LeaseStatus::Held { id } if self.wants_release => Some((id.clone(), &mut self.held)),
            _ => None,
        }
    }
}

/// Repeats unanswered requests, and checks that all leases that no client holds are free. Frees all leases. Returns how
/// many were held.
fn verify(server: &Server, clients: Vec<JoinHandle<Vec<Lease>>>) -> usize {
    let mut client = RespClient::connect(server.resp);
    let mut held = Vec::new();
    let leases: Vec<_> = clients.into_iter().flat_map(|client| client.join().unwrap()).collect();
    for lease in leases {
        match lease.held {
            LeaseStatus::Released | LeaseStatus::Denied => {}
            LeaseStatus::Held { .. } if lease.wants_release => {
                // It may have been freed. If it exists, it is the same lease.
                let LeaseStatus::Held { id } = lease.held else { continue };
                client.command(&format!("DIVVY.RELEASE {id}"));
                assert_eq!(client.command(&format!("DIVVY.RELEASE {id}")), "0");
            }
            LeaseStatus::Held { id } => held.push(id),
            LeaseStatus::Unknown => {
                let again = read_reserved(&client.command(&reserve(&lease.name)));
                assert_ne!(again, LeaseStatus::Unknown, "{}", lease.name);
                if let LeaseStatus::Held { id } = again {
                    held.push(id);
                }
            }
        }
    }
    assert!(held.len() <= LEASES, "{} are held", held.len());
    let free = LEASES - held.len();
    let peek = client.command("DIVVY.PEEK job=x");
    assert_eq!(peek.split(' ').nth(1), Some(free.to_string().as_str()), "{peek}");
    for id in &held {
        assert_eq!(client.command(&format!("DIVVY.RELEASE {id}")), "1", "an acknowledged lease was lost");
    }
    assert!(client.command("DIVVY.PEEK job=x").starts_with(&format!("[1 {LEASES} ")));
    held.len()
}

#[test]
fn sigkill_of_divvy_neither_loses_nor_doubles_leases() {
    let (rules, data) = (rules(), tempfile::tempdir().unwrap());
    let mut rng = Rng::seed_from_u64(seed());
    let serve = |durability: &str| {
        let flags = ["--cache-memory", "1Mi", "--max-journal", "1Mi", "--data-dir", data.path().to_str().unwrap()];
        Server::start(&[&[rules.path(), "--durability", durability][..], &flags].concat())
    };
    let (mut server, mut held) = (serve("wal"), 0);
    for round in 0..setting("DIVVY_TEST_LEASE_KILLS", 4) {
        let restart = || serve(["sync", "wal"][round % 2]);
        let clients;
        (server, clients) = kill_divvy_under(server, &mut rng, work_until, restart);
        held += verify(&server, clients);
    }
    assert!(held > 0);
}

#[test]
fn sigkill_of_redis_neither_loses_nor_doubles_leases() {
    let rules = rules();
    let mut rng = Rng::seed_from_u64(seed());
    let (mut redis, server) = divvy_on_durable_redis(&rules, &[]);
    let mut held = 0;
    for _ in 0..setting("DIVVY_TEST_LEASE_KILLS", 4) {
        let clients = kill_redis_under(&mut redis, &mut rng, |stop, seed| work_until(stop, &server, seed));
        until(|| RespClient::connect(server.resp).command("DIVVY.PEEK job=other").starts_with('['));
        held += verify(&server, clients);
    }
    assert!(held > 0);
}
