//! Leases: none is lost or doubled.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};

use rand::RngExt;
use rand::rngs::Xoshiro256PlusPlus as Rng;

use super::campaign::{Campaign, kill_divvy, kill_redis, send};
use crate::support::{RespClient, Server, words};

/// Low enough that some requests are denied.
const LEASES: usize = 40;
const RULES: &str =
    "[job=*]\ncreditLimit = 40\nresetSeconds = 600\nalgorithm = concurrency\n\n[default]\ncreditLimit = 0\n";
const PIPELINE: usize = 6;

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
    match words(reply)[..] {
        ["1", _, _, id] => LeaseStatus::Held { id: id.to_owned() },
        ["0", ..] => LeaseStatus::Denied,
        _ => LeaseStatus::Unknown,
    }
}

impl Lease {
    fn new(rng: &mut Rng) -> Self {
        let name = format!("{:016x}", rng.random::<u64>());
        Self { name, held: LeaseStatus::Unknown, wants_release: rng.random_range(0..10) > 0 }
    }

    fn releasable(&mut self) -> Option<(String, &mut LeaseStatus)> {
        match &self.held {
            LeaseStatus::Held { id } if self.wants_release => Some((id.clone(), &mut self.held)),
            _ => None,
        }
    }
}

/// The number of leases that clients held after kills.
struct Leases(usize);

impl Campaign for Leases {
    const VARIABLE: &'static str = "DIVVY_TEST_LEASE_KILLS";
    const PROBE: &'static str = "DIVVY.PEEK job=other";
    type Work = Vec<Lease>;

    fn begin(_: &Server) -> Self {
        Self(0)
    }

    fn work(stop: Arc<AtomicBool>, mut client: RespClient, mut rng: Rng) -> JoinHandle<Vec<Lease>> {
        thread::spawn(move || {
            let mut all = Vec::new();
            let mut is_there = true;
            while is_there && !stop.load(Relaxed) {
                let mut some: Vec<_> = (0..PIPELINE).map(|_| Lease::new(&mut rng)).collect();
                send(&mut client, some.iter().map(|lease| reserve(&lease.name)));
                for lease in &mut some {
                    lease.held = client.try_read_reply().map_or(LeaseStatus::Unknown, |reply| read_reserved(&reply));
                }
                is_there = some.iter().all(|lease| lease.held != LeaseStatus::Unknown);
                let released: Vec<_> = some.iter_mut().filter_map(Lease::releasable).collect();
                send(&mut client, released.iter().map(|(id, _)| format!("DIVVY.RELEASE {id}")));
                for (_, held) in released {
                    if client.try_read_reply().as_deref() == Some("1") {
                        *held = LeaseStatus::Released;
                    }
                }
                all.append(&mut some);
            }
            all
        })
    }

    /// Repeats unanswered requests, and checks that all leases that no client holds are free. Frees all leases.
    fn verify(&mut self, server: &Server, work: Vec<Vec<Lease>>) {
        let mut client = server.resp();
        let mut held = Vec::new();
        for lease in work.into_iter().flatten() {
            match lease.held {
                LeaseStatus::Released | LeaseStatus::Denied => {}
                LeaseStatus::Held { id } if lease.wants_release => {
                    // It may have been freed. If it exists, it is the same lease.
                    client.command(&format!("DIVVY.RELEASE {id}"));
                    assert_eq!(client.command(&format!("DIVVY.RELEASE {id}")), "0");
                }
                LeaseStatus::Held { id } => held.push(id),
                LeaseStatus::Unknown => match read_reserved(&client.command(&reserve(&lease.name))) {
                    LeaseStatus::Held { id } => held.push(id),
                    again => assert_eq!(again, LeaseStatus::Denied, "{}", lease.name),
                },
            }
        }
        assert!(held.len() <= LEASES, "{} are held", held.len());
        assert_eq!(client.left("job=x"), (LEASES - held.len()) as u64);
        for id in &held {
            assert_eq!(client.command(&format!("DIVVY.RELEASE {id}")), "1", "an acknowledged lease was lost");
        }
        assert!(client.command("DIVVY.PEEK job=x").starts_with(&format!("[1 {LEASES} ")));
        self.0 += held.len();
    }
}

#[test]
#[cfg_attr(not(feature = "rocksdb"), ignore = "needs the embedded store")]
fn sigkill_of_divvy_neither_loses_nor_doubles_leases() {
    assert!(kill_divvy::<Leases>(RULES, &[]).0 > 0);
}

#[test]
fn sigkill_of_redis_neither_loses_nor_doubles_leases() {
    assert!(kill_redis::<Leases>(RULES, &[]).0 > 0);
}
