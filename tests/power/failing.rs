//! A disk that fails temporarily under load: hits get errors, nothing is falsely acknowledged, and the same process
//! serves again within seconds.
//!
//! `DIVVY_TEST_OUTAGES` sets how often each kind of call fails (default 1), `DIVVY_TEST_OUTAGE_SECONDS` the duration of
//! long outages (default 3), and `DIVVY_TEST_SEED` selects the errors.

use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rand::rngs::Xoshiro256PlusPlus as Rng;
use rand::{RngExt, SeedableRng};
use tempfile::NamedTempFile;

use super::in_memory;
use super::interposed;
use crate::support::{LineClient, Place, Server, http, parse_verdict, seed, setting};

const RULES: &str = "
[kind=kept user=*] creditLimit=1000000000 resetSeconds=360000 actorField=user
[default] creditLimit=0 resetSeconds=0
";
const CREDIT: u64 = 1_000_000_000;
const CLIENTS: usize = 3;
const USERS_EACH: usize = 8;
const PIPELINE: usize = 16;
const MOMENT: Duration = Duration::from_millis(200);
/// Maximum duration of recovery. It needs a dozen fsyncs, and an fsync may take two minutes if the directory is not in
/// memory and other programs are using the disk.
const RECOVERY: Duration = Duration::from_secs(180);
/// Maximum growth of memory per minute (bytes). A quarter of it may happen at once.
const MAX_GROWTH: u64 = 50_000_000;

const NO_SPACE: u32 = 28;
const INPUT_OUTPUT: u32 = 5;

/// The bits of `enum call` in interpose.c.
const CALLS: [(&str, u32); 11] = [
    ("open", 1 << 0),
    ("write", 1 << 1),
    ("pwrite", 1 << 2),
    ("fsync", 1 << 3),
    ("fdatasync", 1 << 4),
    ("ftruncate", 1 << 5),
    ("fallocate", 1 << 6),
    ("rename", 1 << 7),
    ("link", 1 << 8),
    ("unlink", 1 << 9),
    ("mkdir", 1 << 10),
];
const ALL_CALLS: u32 = (1 << 11) - 1;
/// Flag that writes half of the data before a write fails.
const HALVES: u32 = 1 << 31;

/// Faults injected into writers: `struct faults` in interpose.c.
struct Faults(NamedTempFile);

impl Faults {
    fn new() -> Self {
        let faults = Self(NamedTempFile::new().unwrap());
        faults.write(&[0; 12], 0);
        faults
    }

    fn write(&self, bytes: &[u8], offset: u64) {
        self.0.as_file().write_all_at(bytes, offset).unwrap();
    }

    fn begin(&self, error: u32, calls: u32) {
        self.write(&calls.to_le_bytes(), 4);
        self.write(&error.to_le_bytes(), 0);
    }

    fn end(&self) {
        self.write(&0u32.to_le_bytes(), 0);
    }

    /// Returns the number of calls that have failed.
    fn met(&self) -> u32 {
        let mut word = [0; 4];
        self.0.as_file().read_exact_at(&mut word, 8).unwrap();
        u32::from_le_bytes(word)
    }
}

/// A data directory on a disk that can fail, and the credits counted there.
struct FailingDirectory {
    place: Place,
    faults: Faults,
    durability: &'static str,
    credits: Arc<UserCredits>,
    backups: u32,
}

/// Credits by user: requested, and acknowledged.
struct UserCredits {
    requested: Vec<AtomicU64>,
    acknowledged: Vec<AtomicU64>,
}

impl FailingDirectory {
    fn new(durability: &'static str) -> Self {
        let place = Place::within(in_memory(), RULES);
        ["data", "backups"].iter().for_each(|name| fs::create_dir(place.path(name)).unwrap());
        let counts = || (0..CLIENTS * USERS_EACH).map(|_| AtomicU64::new(0)).collect();
        let credits = Arc::new(UserCredits { requested: counts(), acknowledged: counts() });
        Self { place, faults: Faults::new(), durability, credits, backups: 0 }
    }

    fn serve(&self, flags: &[&str]) -> Server {
        let mut command = interposed(self.place.dir());
        command.env("DIVVY_POWER_FAULTS", self.faults.0.path()).env("RUST_LOG", "off");
        self.place.on_disk_as(&mut command, &[&["--durability", self.durability], flags].concat())
    }

    /// Lets the calls fail for a while under load, and waits until the same process serves again. Returns an error if
    /// it does not.
    fn outage(&mut self, error: u32, calls: u32, length: Duration) -> Result<(), String> {
        let server = self.serve(&[]);
        self.nothing_is_missing(&server);
        let stop = Arc::new(AtomicBool::new(false));
        let clients: Vec<_> = (0..CLIENTS).map(|client| count(&server, client, &self.credits, &stop)).collect();
        until_served(&server)?;
        let met = self.faults.met();
        self.faults.begin(error, calls);
        let begun = Instant::now();
        self.backups += 1;
        // A backup flushes, opens, links and renames files. Its success does not matter here.
        server.resp().command(&format!("DIVVY.BACKUP backup-{}", self.backups));
        while begun.elapsed() < length {
            thread::sleep(Duration::from_millis(20));
        }
        self.faults.end();
        let met = self.faults.met() - met;
        let mut served = until_served(&server);
        stop.store(true, Relaxed);
        clients.into_iter().for_each(|client| client.join().unwrap());
        if self.durability == "lazy" {
            // Hits that were never written are lost, as `lazy` permits.
            served = served.and_then(|()| until_written(&server));
            if served.is_err() {
                self.credits.acknowledged.iter().for_each(|answer| answer.store(0, Relaxed));
            }
        }
        server.kill();
        served.map_err(|error| format!("{error}; {met} calls had failed"))
    }

    /// Checks all counters after a restart, with a healthy disk.
    fn nothing_is_missing(&self, server: &Server) {
        let mut client = server.line();
        for (user, answer) in self.credits.acknowledged.iter().enumerate() {
            let used = CREDIT - client.hit(&format!("kind=kept user=u{user}")).1;
            let asked = self.credits.requested[user].fetch_add(1, Relaxed) + 1;
            let answer = answer.swap(used, Relaxed);
            assert!(answer < used, "user u{user} had an answer that {answer} are used; with one more, {used} are");
            assert!(used <= asked, "user u{user} has used {used}, and asked for {asked}");
        }
    }
}

/// Sends hits of a client's own users, even if they are refused, until it is stopped.
fn count(server: &Server, client: usize, credits: &Arc<UserCredits>, stop: &Arc<AtomicBool>) -> JoinHandle<()> {
    let (credits, stop) = (Arc::clone(credits), Arc::clone(stop));
    let mut connection = server.line();
    thread::spawn(move || {
        while !stop.load(Relaxed) {
            let users: Vec<_> = (0..PIPELINE).map(|at| client * USERS_EACH + at * 3 % USERS_EACH).collect();
            let burst: String = users.iter().map(|user| format!("HIT kind=kept user=u{user}\n")).collect();
            for &user in &users {
                credits.requested[user].fetch_add(1, Relaxed);
            }
            connection.send(burst.as_bytes());
            for user in users {
                let reply = connection.read_line();
                match parse_verdict(&reply) {
                    Some((_, credit, _)) => {
                        credits.acknowledged[user].fetch_max(CREDIT - credit, Relaxed);
                    }
                    None => assert!(reply.starts_with("ERR "), "{reply:?}"),
                }
            }
        }
    })
}

/// Waits until `is_done` is true of a reply.
fn await_reply(mut ask: impl FnMut() -> String, is_done: impl Fn(&str) -> bool) -> Result<(), String> {
    let begun = Instant::now();
    loop {
        let reply = ask();
        if is_done(&reply) {
            return Ok(());
        }
        if begun.elapsed() > RECOVERY {
            return Err(format!("after {RECOVERY:?}: {}", reply.trim_end()));
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// Waits until hits are accepted and the server reports that it is ready.
fn until_served(server: &Server) -> Result<(), String> {
    let mut client = server.line();
    let hit = || {
        client.send(b"HIT kind=kept user=probe\n");
        client.read_line()
    };
    await_reply(hit, |reply| parse_verdict(reply).is_some() && http::get(server.http, "/readyz").status == 200)
}

/// Waits until everything acknowledged is written. A listing writes the rest.
fn until_written(server: &Server) -> Result<(), String> {
    let mut client = server.resp();
    await_reply(|| client.command("DIVVY.COUNTERS kind=kept user=*"), |reply| reply.starts_with('['))
}

fn fail_at_every_call(durability: &'static str) {
    let mut rng = Rng::seed_from_u64(seed());
    let mut place = FailingDirectory::new(durability);
    let (mut failures, mut outages) = (Vec::new(), 0);
    let mut fail = |name: &str, error: u32, calls: u32, length: Duration| {
        outages += 1;
        let error_name = if error == NO_SPACE { "ENOSPC" } else { "EIO" };
        if let Err(failure) = place.outage(error, calls, length) {
            failures.push(format!("{error_name} at {name} for {length:?}: {failure}"));
        }
    };
    let mut halves = |calls| if rng.random() { calls | HALVES } else { calls };
    for round in 0..setting("DIVVY_TEST_OUTAGES", 1) {
        for (index, (name, call)) in CALLS.into_iter().enumerate() {
            let error = [NO_SPACE, INPUT_OUTPUT][(index + round) % 2];
            fail(name, error, halves(call), MOMENT);
        }
        let long = Duration::from_secs(setting("DIVVY_TEST_OUTAGE_SECONDS", 3));
        fail("every call", [NO_SPACE, INPUT_OUTPUT][round % 2], halves(ALL_CALLS), long);
    }
    let server = place.serve(&[]);
    place.nothing_is_missing(&server);
    assert!(server.terminate().success());
    println!("{outages} outages in {durability} mode");
    assert!(failures.is_empty(), "{} of {outages} outages:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn server_recovers_from_disk_failures_in_wal_mode() {
    fail_at_every_call("wal");
}

#[test]
fn server_recovers_from_disk_failures_in_sync_mode() {
    fail_at_every_call("sync");
}

#[test]
fn server_recovers_from_disk_failures_in_lazy_mode() {
    fail_at_every_call("lazy");
}

/// Rejected hits of new actors must not leave their counters in memory permanently.
#[test]
fn hits_rejected_by_a_full_disk_are_not_kept_in_memory() {
    let place = FailingDirectory::new("wal");
    let server = place.serve(&[]);
    let mut client = server.line();
    client.hit("kind=kept user=known");
    place.faults.begin(NO_SPACE, ALL_CALLS);
    let (mut number, mut refused) = (0, 0);
    let mut ask = |client: &mut LineClient| {
        let burst: String = (number..number + 500).map(|user| format!("HIT kind=kept user=new-{user}\n")).collect();
        number += 500;
        client.stream().write_all(burst.as_bytes()).unwrap();
        for _ in 0..500 {
            refused += u32::from(client.read_line().starts_with("ERR "));
        }
    };
    // The first requests allocate buffers that stay.
    (0..20).for_each(|_| ask(&mut client));
    let before = server.resident();
    let seconds = setting("DIVVY_TEST_OUTAGE_SECONDS", 3);
    let until = Instant::now() + Duration::from_secs(seconds);
    while Instant::now() < until {
        ask(&mut client);
    }
    let grown = server.resident().saturating_sub(before);
    println!("{number} asked, {refused} refused, {grown} bytes more");
    assert!(refused > number / 2, "{refused} of {number} were refused");
    let most = MAX_GROWTH * seconds.clamp(15, 60) / 60;
    assert!(grown < most, "{grown} bytes more after {number} hits, of which {refused} were refused");
    place.faults.end();
    until_served(&server).unwrap();
}
