//! Crashes: servers are killed with SIGKILL at random moments, and no acknowledged hit is lost afterwards. In `lazy`
//! mode, only the most recent ones may be.
//!
//! `DIVVY_TEST_KILLS` sets the number of kills (default 30), `DIVVY_TEST_KILL_LANES` the number of servers that are
//! killed in parallel (3), and `DIVVY_TEST_SEED` the moments. `divvy-kills.json` in the target directory has the totals
//! of all runs.

use std::collections::HashMap;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rand::rngs::Xoshiro256PlusPlus as Rng;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};

use crate::support::{LineClient, Place, RespClient, SERVE, Server, divvy, encode, seed, setting, words};

const RULES: &str = "
[kind=login user=*] creditLimit=1000000000 resetSeconds=36000 actorField=user
[kind=canary user=*] creditLimit=1000000000 resetSeconds=36000 actorField=user matchPolicy=canary
[kind=canary] creditLimit=1000000000 resetSeconds=36000
[kind=sliding-window user=*] creditLimit=1000000000 resetSeconds=360000000 algorithm=sliding-window actorField=user
[kind=sliding-log user=*] creditLimit=1000 resetSeconds=360000 algorithm=sliding-log actorField=user
[kind=token-bucket user=*] creditLimit=1000000000 resetSeconds=360000 algorithm=token-bucket actorField=user
[kind=leaky-bucket user=*] creditLimit=1 resetSeconds=360000 algorithm=leaky-bucket burst=1000000000 actorField=user
[kind=brief user=*] creditLimit=1000 resetSeconds=0.1 actorField=user
[default] creditLimit=0 resetSeconds=0
";
const CREDIT: u64 = 1_000_000_000;
const CLIENTS: usize = 3;
const USERS: u32 = 50;
const PIPELINE: usize = 16;
const DURABILITIES: [&str; 3] = ["wal", "sync", "lazy"];
/// In `lazy` mode, a kill may lose the answers of the last 100 ms. A busy machine may be this late.
const LATE: Duration = Duration::from_secs(2);
/// Maximum number of counters. A load with short windows creates more, so that the store looks for expired counters and
/// rewrites the others.
const FEW_COUNTERS: &str = "1000";

/// Key of all users' requests of this kind, because one counter answers them.
const CANARY: &str = "DIVVY.HIT kind=canary user=any";

/// The server's activity when it is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moment {
    Start,
    Load,
    /// A load that is long enough for the write-back and fsync of every second.
    Housekeeping,
    WriteBack,
    Compaction,
    Backup,
    Reload,
}

/// Each moment is as frequent as its number of entries.
#[rustfmt::skip]
const MOMENTS: [Moment; 16] = {
    use Moment::{Backup, Compaction, Housekeeping, Load, Reload, Start, WriteBack};
    [
        Start, Start, Start, Load, Load, Load, Load, Load, WriteBack, WriteBack, Backup, Backup, Reload, Reload,
        Compaction, Housekeeping,
    ]
};

/// A reply about a bucket.
#[derive(Debug, Clone, Copy)]
struct RecordedReply {
    /// A number in the reply that only decreases, because the bucket's credits take days to come back.
    number: u64,
    /// The seconds left, if the bucket is a window.
    reset: Option<u64>,
    at: Instant,
}

/// Replies to clients, by the request that asks about a bucket: a line of the line protocol, or a command.
type Replies = HashMap<String, Vec<RecordedReply>>;

/// Totals of all runs.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Totals {
    runs: u64,
    kills: u64,
    /// Replies that acknowledge a hit.
    acknowledged: u64,
}

impl Totals {
    /// Adds these totals to the file.
    fn add_to_file(&self) {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("divvy-kills.json");
        let mut all: Self = fs::read(&path).map(|text| serde_json::from_slice(&text).unwrap()).unwrap_or_default();
        all.runs += 1;
        all.kills += self.kills;
        all.acknowledged += self.acknowledged;
        fs::write(&path, serde_json::to_vec_pretty(&all).unwrap()).unwrap();
        println!("{} kills, {} hits acknowledged; all runs: {all:?}", self.kills, self.acknowledged);
    }
}

#[test]
fn sigkill_never_loses_an_acknowledged_hit() {
    let lanes = setting("DIVVY_TEST_KILL_LANES", DURABILITIES.len());
    let left = AtomicU32::new(setting("DIVVY_TEST_KILLS", 30));
    let totals = Mutex::new(Totals::default());
    let mut rng = Rng::seed_from_u64(seed());
    let begun = Instant::now();
    let failed = thread::scope(|scope| {
        let run = |number: usize| {
            let mut lane = Lane::new(DURABILITIES[number % DURABILITIES.len()], Rng::seed_from_u64(rng.random()));
            let (left, totals) = (&left, &totals);
            scope.spawn(move || {
                let _all_end = StopOnFailure(left);
                while left.try_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok() {
                    lane.kill_once(totals);
                }
                lane.verify_at_the_end();
            })
        };
        let lanes: Vec<_> = (0..lanes).map(run).collect();
        lanes.into_iter().map(|lane| lane.join()).filter(Result::is_err).count()
    });
    let totals = totals.into_inner().unwrap_or_else(PoisonError::into_inner);
    println!("{:.1} kills a second", totals.kills as f64 / begun.elapsed().as_secs_f64());
    totals.add_to_file();
    assert_eq!(failed, 0, "lanes failed");
    assert!(totals.acknowledged > 0, "hits were acknowledged");
}

/// Stops all lanes when one of them fails.
struct StopOnFailure<'a>(&'a AtomicU32);

impl Drop for StopOnFailure<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.store(0, Relaxed);
        }
    }
}

/// A data directory, and the servers that are killed one after the other while they use it.
struct Lane {
    durability: &'static str,
    rng: Rng,
    place: Place,
    /// The last durable reply about each bucket.
    known: HashMap<String, RecordedReply>,
    round: u32,
}

impl Lane {
    fn new(durability: &'static str, rng: Rng) -> Self {
        let place = Place::new(RULES);
        fs::create_dir(place.path("backups")).unwrap();
        Self { durability, rng, place, known: HashMap::new(), round: 0 }
    }

    fn kill_once(&mut self, totals: &Mutex<Totals>) {
        self.round += 1;
        let moment = MOMENTS[self.rng.random_range(0..MOMENTS.len())];
        let acknowledged = if moment == Moment::Start { self.kill_at_start() } else { self.kill_under_load(moment) };
        let mut totals = totals.lock().unwrap_or_else(PoisonError::into_inner);
        totals.kills += 1;
        totals.acknowledged += acknowledged;
    }

    /// Kills the server at any moment between the start of the process and its first request.
    fn kill_at_start(&mut self) -> u64 {
        let args = self.place.disk_args(&["--durability", self.durability]);
        let mut server = divvy().args(SERVE).args(args).stdout(Stdio::null()).spawn().unwrap();
        self.pause(80_000);
        server.kill().unwrap();
        server.wait().unwrap();
        0
    }

    fn kill_under_load(&mut self, moment: Moment) -> u64 {
        let bound: &[&str] = if moment == Moment::Compaction { &["--max-counters", FEW_COUNTERS] } else { &[] };
        let server = self.place.on_disk(&[&["--durability", self.durability], bound].concat());
        let mut replies = self.verify(&server);
        let mut clients: Vec<_> = (0..CLIENTS).map(|kind| self.client(&server, kind)).collect();
        if moment == Moment::Compaction {
            clients.push(churn(&server, self.round));
        }
        thread::sleep(Duration::from_millis(match moment {
            Moment::Compaction | Moment::Housekeeping => self.rng.random_range(950..1_400),
            _ if self.durability == "lazy" && self.rng.random_bool(0.1) => 300 + LATE.as_millis() as u64,
            _ => self.rng.random_range(30..300),
        }));
        let listed_at = self.begin(moment, &server);
        let killed_at = Instant::now();
        server.kill();
        for client in clients {
            for (request, answer) in client.join().unwrap() {
                replies.entry(request).or_default().extend(answer);
            }
        }
        let acknowledged = replies.values().map(Vec::len).sum::<usize>() as u64;
        self.learn(replies, listed_at, killed_at);
        self.tidy();
        acknowledged
    }

    /// Starts the activity during which the server is killed. If that lists the counters, which writes all of them,
    /// returns the time of the listing.
    fn begin(&mut self, moment: Moment, server: &Server) -> Option<Instant> {
        let mut connection = server.resp();
        match moment {
            Moment::WriteBack => {
                let asked_at = Instant::now();
                connection.try_send(b"DIVVY.COUNTERS kind=login user=*\r\n");
                if self.rng.random() {
                    assert!(connection.read_reply().starts_with('['));
                    return Some(asked_at);
                }
                self.pause(10_000);
            }
            Moment::Backup => {
                connection.try_send(format!("DIVVY.BACKUP backup-{}\r\n", self.round).as_bytes());
                self.pause(40_000);
            }
            Moment::Reload => {
                self.place.write("rules.ini", &format!("{RULES}# {}\n", self.round));
                server.signal("-HUP");
                self.pause(5_000);
            }
            Moment::Start | Moment::Load | Moment::Housekeeping | Moment::Compaction => {}
        }
        None
    }

    /// Sleeps for at most `most` microseconds.
    fn pause(&mut self, most: u64) {
        thread::sleep(Duration::from_micros(self.rng.random_range(0..most)));
    }

    /// Starts a client that pipelines hits on the line protocol, hits on RESP, or commands with their own limits, for
    /// the same few users, until the server is gone.
    fn client(&mut self, server: &Server, kind: usize) -> JoinHandle<Replies> {
        let mut rng = Rng::seed_from_u64(self.rng.random());
        let mut replies = Replies::new();
        // Connected here, because the server may be gone when the thread starts.
        if kind == 0 {
            let mut connection = server.line();
            thread::spawn(move || {
                while ask_lines(&mut connection, &random_requests(&mut rng, hit), &mut replies).is_some() {}
                replies
            })
        } else {
            let request = if kind == 1 { canary_request } else { falling_request };
            let mut connection = server.resp();
            thread::spawn(move || {
                while ask_commands(&mut connection, &random_requests(&mut rng, request), &mut replies).is_some() {}
                replies
            })
        }
    }

    /// Records the replies that must survive from now on.
    fn learn(&mut self, replies: Replies, listed_at: Option<Instant>, killed_at: Instant) {
        let is_kept = |answer: &RecordedReply| {
            self.durability != "lazy"
                || answer.at + LATE < killed_at
                || listed_at.is_some_and(|listed_at| answer.at <= listed_at)
        };
        for (request, answer) in replies {
            for answer in answer.into_iter().filter(is_kept) {
                let known = self.known.entry(request.clone()).or_insert(answer);
                if answer.number < known.number {
                    *known = answer;
                }
            }
        }
    }

    /// Checks that the next request to each bucket finds less than the last durable reply, and that its window
    /// continues.
    fn verify(&self, server: &Server) -> Replies {
        let mut replies = Replies::new();
        let (lines, commands): (Vec<_>, Vec<_>) =
            self.known.keys().cloned().partition(|request| request.starts_with("HIT "));
        ask_lines(&mut server.line(), &lines, &mut replies).unwrap();
        ask_commands(&mut server.resp(), &commands, &mut replies).unwrap();
        for (request, before) in &self.known {
            let context = || format!("{request} in {} mode, round {}", self.durability, self.round);
            let Some(now) = replies.get(request).and_then(|answer| answer.first()) else {
                // A full store rejected the request, because the user's own counter would have been new.
                assert_eq!(request, CANARY, "{}: refused, and it is there", context());
                continue;
            };
            // A bucket that is used up stays used up.
            let has_fallen = now.number < before.number || (now.number, before.number) == (0, 0);
            assert!(has_fallen, "{}: {} after a restart, {} before", context(), now.number, before.number);
            if let (Some(before_s), Some(now_s)) = (before.reset, now.reset) {
                let elapsed = before.at.elapsed().as_secs();
                let expected = before_s.saturating_sub(elapsed + 2)..=before_s;
                assert!(expected.contains(&now_s), "{}: {now_s} s left, {before_s} s {elapsed} s ago", context());
            }
        }
        replies
    }

    fn verify_at_the_end(&self) {
        let server = self.place.on_disk(&["--durability", self.durability]);
        self.verify(&server);
        assert!(server.terminate().success());
        // The write-ahead logs of finished rounds do not accumulate.
        let is_log = |path: &Path| path.extension().is_some_and(|extension| extension == "log");
        let logs =
            fs::read_dir(self.place.path("data")).unwrap().filter(|entry| is_log(&entry.as_ref().unwrap().path()));
        assert!(logs.count() < 10);
    }

    /// Checks that each backup is complete, and removes them.
    fn tidy(&self) {
        for entry in fs::read_dir(self.place.path("backups")).unwrap() {
            let path = entry.unwrap().path();
            let is_backup = path.file_name().unwrap().to_str().unwrap().starts_with("backup-");
            assert!(!is_backup || path.join("DIVVY-BACKUP").exists(), "{} is half a backup", path.display());
            fs::remove_dir_all(path).unwrap();
        }
    }
}

/// Returns a random number of requests.
fn random_requests(rng: &mut Rng, request: fn(&mut Rng) -> String) -> Vec<String> {
    (0..PIPELINE).map(|_| request(rng)).collect()
}

fn user(rng: &mut Rng) -> String {
    format!("user-{}", rng.random_range(0..USERS))
}

fn hit(rng: &mut Rng) -> String {
    format!("HIT kind=login user={}", user(rng))
}

/// Returns a hit of a canary with a counter per user, and of an answering rule with one counter for all.
fn canary_request(rng: &mut Rng) -> String {
    format!("DIVVY.HIT kind=canary user={}", user(rng))
}

/// Returns a request that takes from one of a user's buckets, with any algorithm. No bucket gives a credit back within
/// four days.
fn falling_request(rng: &mut Rng) -> String {
    let user = user(rng);
    match rng.random_range(0..7) {
        0 => format!("RL.REDUCE {user} 1000000000 360000"),
        1 => format!("RL.PSESSIONIZE {user} 1000000001 360000000"),
        2 => format!("CL.THROTTLE {user} 1000000000 1 360000"),
        3 => format!("DIVVY.HIT kind=sliding-window user={user}"),
        4 => format!("DIVVY.HIT kind=sliding-log user={user}"),
        5 => format!("DIVVY.HIT kind=token-bucket user={user}"),
        _ => format!("DIVVY.HIT kind=leaky-bucket user={user}"),
    }
}

/// Sends the requests at once and reads their replies; `None` if the server is gone.
fn ask_lines(connection: &mut LineClient, requests: &[String], replies: &mut Replies) -> Option<()> {
    let burst: String = requests.iter().map(|request| format!("{request}\n")).collect();
    connection.stream().write_all(burst.as_bytes()).ok()?;
    for request in requests {
        let (allowed, number, reset) = connection.try_read_verdict()?;
        assert!(allowed && number < CREDIT);
        let answer = RecordedReply { number, reset: Some(reset), at: Instant::now() };
        replies.entry(request.clone()).or_default().push(answer);
    }
    Some(())
}

fn ask_commands(connection: &mut RespClient, requests: &[String], replies: &mut Replies) -> Option<()> {
    let encoded = |request: &String| encode(&request.split(' ').map(str::as_bytes).collect::<Vec<_>>());
    connection.try_send(&requests.iter().flat_map(encoded).collect::<Vec<_>>())?;
    for request in requests {
        let reply = connection.try_read_reply()?;
        if reply.starts_with("-ERR the store is full") {
            // The store has no room for a new bucket until it has dropped an expired one.
            continue;
        }
        let number = falling_number(&reply).unwrap_or_else(|| panic!("{request}: {reply}"));
        let bucket = if request.contains("kind=canary") { CANARY } else { request };
        replies.entry(bucket.to_owned()).or_default().push(RecordedReply { number, reset: None, at: Instant::now() });
    }
    Some(())
}

/// Returns the tokens before the request, or the credits left.
fn falling_number(reply: &str) -> Option<u64> {
    match numbers(reply)[..] {
        [number] | [number, _] | [_, number, _] | [0, _, number, -1, _] => u64::try_from(number).ok(),
        _ => None,
    }
}

/// Returns the integers in a reply, or an empty list for any other reply.
fn numbers(reply: &str) -> Vec<i64> {
    words(reply).into_iter().map_while(|number| number.parse().ok()).collect()
}

/// Creates counters that expire at once, until the server is gone.
fn churn(server: &Server, round: u32) -> JoinHandle<Replies> {
    let mut connection = server.resp();
    thread::spawn(move || {
        for burst in 0.. {
            let commands = (0..PIPELINE).map(|at| format!("DIVVY.HIT kind=brief user={round}-{burst}-{at}\r\n"));
            let sent = connection.try_send(commands.collect::<String>().as_bytes());
            if sent.is_none() || (0..PIPELINE).any(|_| connection.try_read_reply().is_none()) {
                break;
            }
        }
        Replies::new()
    })
}
