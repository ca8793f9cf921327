//! Power cuts: on every disk that one could have left the store opens, and what had been promised is there.
//!
//! `DIVVY_TEST_POWER_DISKS` sets how many disks a test builds (10 unless set), `DIVVY_TEST_SEED` which ones, and
//! `DIVVY_TEST_POWER_NAMES=loose` lets each change of a name that no sync of the directory followed be lost by itself,
//! `DIVVY_TEST_POWER_MANIFEST_HOLES=1` leaves holes in the manifest's unsynced end as well.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use divvy::clock::Clock;
use divvy::config::{self, Format};
use divvy::limiter::{CounterNames, Intent, Limiter, PlanBuilder, Policy};
use divvy::metrics::Metrics;
use divvy::rules::Operation;
use divvy::store::{Backend, Durability, RocksOptions, RocksStore, Store};
use rand::rngs::Xoshiro256PlusPlus as Rng;
use rand::{RngExt, SeedableRng};
use tempfile::TempDir;

use super::disk::{FATES, Fate, FileSystem, Model, Names};
use super::in_memory;
use super::interposed::interposed;
use super::trace::{Event, Moment, Trace};
use crate::conformance::wait;
use crate::support::seed::{seed, setting};
use crate::support::{LineClient, RespClient, RulesFile, Server};

const RULES: &str = "
[kind=kept user=*]
creditLimit = 1000000000
resetSeconds = 360000
actorField = user

[kind=brief user=*]
creditLimit = 1000
resetSeconds = 0.2
actorField = user

[default]
creditLimit = 0
resetSeconds = 0
";
const CREDIT: u64 = 1_000_000_000;
const CLIENTS: usize = 4;
const USERS_EACH: usize = 12;
const USERS: usize = CLIENTS * USERS_EACH;
const PIPELINE: usize = 8;
/// Servers one after the other: the second one is killed.
const PROCESSES: usize = 3;
/// Fewer than the load begins, so that the store looks for expired ones and rewrites the counters, not the journal.
const MAX_COUNTERS: &str = "400";

const REFUSED: &str = "it is refused";
/// How many of a disk's files fare otherwise than most.
const OTHERS: f64 = 0.1;

/// A client was told that `used` credits of a user's are taken, and by when.
#[derive(Debug, Clone, Copy)]
struct Acknowledged {
    user: usize,
    used: u64,
    by: Moment,
}

/// A server's life: what it did to its files, and what it said.
struct Recorded {
    _place: TempDir,
    data: PathBuf,
    trace: Trace,
    /// In the order of events: how many had happened by then, and what was acknowledged.
    acknowledged: Vec<(usize, Acknowledged)>,
    /// Credits that were asked for, by user.
    asked: Vec<u64>,
}

#[derive(Default)]
struct Seen {
    acknowledged: Vec<Acknowledged>,
    asked: Vec<u64>,
}

/// Some of the names reach over a sector, and over a page of the log together.
fn user_name(user: usize) -> String {
    format!("user-{user}-{}", "x".repeat(user % 6 * 120))
}

fn record(durability: &str) -> Recorded {
    let place = tempfile::tempdir().unwrap();
    let root = place.path().canonicalize().unwrap().join("root");
    let (data, backups) = (root.join("data"), root.join("backups"));
    fs::create_dir_all(&data).unwrap();
    fs::create_dir(&backups).unwrap();
    let rules = RulesFile::ini(RULES);
    let (mut trace, mut acknowledged, mut asked) = (Trace::default(), Vec::new(), vec![0; USERS]);
    for process in 0..PROCESSES {
        let file = place.path().join(format!("trace.{process}"));
        let mut command = interposed(&root);
        command.env("DIVVY_POWER_TRACE", &file).env("RUST_LOG", "error");
        let args = [rules.path(), "--data-dir", data.to_str().unwrap(), "--durability", durability];
        let bounds = ["--max-counters", MAX_COUNTERS, "--backup-dir", backups.to_str().unwrap()];
        let server = Server::start_as(&mut command, &[&args[..], &bounds].concat());
        let stop = Arc::new(AtomicBool::new(false));
        let clients: Vec<_> = (0..CLIENTS).map(|client| count(&server, client, process, &file, &stop)).collect();
        let churn = churn(&server, process, &stop);
        // Long enough for a write-back, an fsync and a look for expired counters; a backup flushes everything.
        thread::sleep(Duration::from_millis(1_300));
        if process > 0 {
            RespClient::connect(server.resp).command(&format!("DIVVY.BACKUP backup-{process}"));
            thread::sleep(Duration::from_millis(200));
        }
        let is_killed = process == 1;
        stop.store(!is_killed, Relaxed);
        let server = if is_killed {
            server.kill();
            None
        } else {
            Some(server)
        };
        for client in clients {
            let seen = client.join().unwrap();
            acknowledged.extend(seen.acknowledged);
            asked.iter_mut().zip(seen.asked).for_each(|(all, more)| *all += more);
        }
        stop.store(true, Relaxed);
        churn.join().unwrap();
        if let Some(server) = server {
            assert!(server.terminate().success());
        }
        trace.add(&file);
    }
    let mut acknowledged: Vec<_> = acknowledged.into_iter().map(|one| (trace.events_by(one.by), one)).collect();
    acknowledged.sort_by_key(|(happened, _)| *happened);
    Recorded { _place: place, data, trace, acknowledged, asked }
}

/// Hits of a client's own users until it is told to stop or the server is gone.
fn count(server: &Server, client: usize, process: usize, trace: &Path, stop: &Arc<AtomicBool>) -> JoinHandle<Seen> {
    let (trace, stop) = (trace.to_owned(), Arc::clone(stop));
    let mut connection = LineClient::connect(server.line);
    thread::spawn(move || {
        let mut seen = Seen { asked: vec![0; USERS], ..Seen::default() };
        let mut turn = 0;
        while !stop.load(Relaxed) {
            let users: Vec<_> = (turn..turn + PIPELINE).map(|at| client * USERS_EACH + at * 5 % USERS_EACH).collect();
            turn += PIPELINE;
            let burst: String = users.iter().map(|&user| format!("HIT kind=kept user={}\n", user_name(user))).collect();
            for &user in &users {
                seen.asked[user] += 1;
            }
            if std::io::Write::write_all(&mut connection.stream(), burst.as_bytes()).is_err() {
                break;
            }
            let mut told = Vec::new();
            for user in users {
                let Some((allowed, credit, _)) = connection.try_read_verdict() else { return seen };
                assert!(allowed);
                told.push((user, CREDIT - credit));
            }
            // Read after the replies: what is recorded from now on happened after them.
            let by = Moment { process, position: fs::metadata(&trace).unwrap().len() };
            seen.acknowledged.extend(told.into_iter().map(|(user, used)| Acknowledged { user, used, by }));
        }
        seen
    })
}

/// Begins counters that expire at once, so that there is something to reclaim.
fn churn(server: &Server, process: usize, stop: &Arc<AtomicBool>) -> JoinHandle<()> {
    let stop = Arc::clone(stop);
    let mut connection = RespClient::connect(server.resp);
    thread::spawn(move || {
        let mut number = 0;
        while !stop.load(Relaxed) {
            let command = format!("DIVVY.HIT kind=brief user=brief-{process}-{number}\r\n");
            number += 1;
            if connection.try_send(command.as_bytes()).is_none() || connection.try_read_reply().is_none() {
                return;
            }
        }
    })
}

impl Recorded {
    /// What must have been taken of each user's credits on a disk that was cut off before event `cut`. In `sync`, all
    /// that was acknowledged before; in `wal`, what was acknowledged before the first write to a log that has not reached
    /// stable storage, which every fsync of the log moves on; in `lazy`, nothing that can be told from outside.
    fn promised(&self, durability: Durability, cut: usize, first_unsynced: usize) -> Vec<u64> {
        let mut used = vec![0; USERS];
        let until = match durability {
            // One event may have happened before it is recorded.
            Durability::Sync => cut.saturating_sub(1),
            Durability::Wal => cut.saturating_sub(1).min(first_unsynced),
            Durability::Lazy => 0,
        };
        let known = self.acknowledged.partition_point(|(happened, _)| *happened <= until);
        for (_, one) in &self.acknowledged[..known] {
            used[one.user] = one.used.max(used[one.user]);
        }
        used
    }

    /// What is wrong with the disk in `place`, if anything is.
    fn fault(&self, durability: Durability, place: &Path, promised: &[u64]) -> Option<String> {
        let found = match used_credits(durability, place) {
            Ok(found) => found,
            Err(refusal) => return Some(format!("{REFUSED}: {refusal}")),
        };
        (0..USERS).find_map(|user| {
            let (promised, found, asked) = (promised[user], found[user], self.asked[user]);
            if found < promised {
                return Some(format!("user {user} has used {found}, and was told {promised}"));
            }
            (found > asked).then(|| format!("user {user} has used {found}, and asked for {asked}"))
        })
    }

    /// Events after which something other than the log's content is different: cuts there are worth more than others.
    fn turning_points(&self) -> Vec<usize> {
        let events = self.trace.events.iter().enumerate();
        events.filter(|(_, event)| !matches!(event, Event::Write { .. })).map(|(index, _)| index + 1).collect()
    }
}

/// Opens the store and asks how much each user has used.
fn used_credits(durability: Durability, place: &Path) -> Result<Vec<u64>, String> {
    let options = RocksOptions { durability, cache_memory: 100_000, ..RocksOptions::default() };
    let store = RocksStore::open(place, options).map_err(|error| error.to_string())?;
    let rules = config::parse(RULES, Format::Ini, "rules.ini").unwrap().rules;
    let metrics = Metrics::new();
    let policy = Policy::new(rules, &metrics, CounterNames::Usual);
    let limiter = Limiter::new(Some(policy), Backend::Rocks(store), Clock::system(), metrics);
    wait(async {
        let mut builder = PlanBuilder::default();
        limiter.begin(&mut builder);
        let operation = |user: &str| [("kind", "kept"), ("user", user)].into_iter().collect::<Operation>();
        builder.add(&operation("of nobody"), Intent::Peek, None);
        (0..USERS).for_each(|user| builder.add(&operation(&user_name(user)), Intent::Peek, None));
        let applied = limiter.apply(builder.build()).await;
        let report = applied.report();
        let credit = |index| report.verdict(index).map(|verdict| verdict.credit).map_err(|error| error.to_string());
        let whole = credit(0)?;
        let used = (0..USERS).map(|user| Ok(whole - credit(user + 1)?)).collect();
        limiter.store().close().await.map_err(|error| format!("it cannot be closed: {error}"))?;
        used
    })
}

fn model() -> Model {
    let names = match std::env::var("DIVVY_TEST_POWER_NAMES").as_deref() {
        Ok("loose") => Names::Loose,
        Ok(other) if other != "ordered" => panic!("DIVVY_TEST_POWER_NAMES is {other:?}, and must be ordered or loose"),
        _ => Names::Ordered,
    };
    Model { names, manifest_holes: setting("DIVVY_TEST_POWER_MANIFEST_HOLES", 0) != 0 }
}

/// Builds a disk for each cut and opens it.
fn open_all(recorded: &Recorded, durability: Durability, mut cuts: Vec<(usize, Fate)>, rng: &mut Rng) {
    cuts.sort_by_key(|(cut, _)| *cut);
    let (place, count) = (in_memory(), cuts.len());
    let mut system = FileSystem::new(&recorded.trace, &recorded.data, model());
    let (mut faults, mut refused) = (Vec::new(), 0);
    for (number, (cut, fate)) in cuts.into_iter().enumerate() {
        system.advance(cut);
        let disk = place.path().join(number.to_string());
        system.cut(fate, OTHERS, rng, &disk);
        let promised = recorded.promised(durability, cut, system.first_unsynced_log_write());
        if let Some(fault) = recorded.fault(durability, &disk, &promised) {
            refused += u32::from(fault.starts_with(REFUSED));
            faults.push(format!("the disk of event {cut} ({fate:?}): {fault}"));
        }
        fs::remove_dir_all(&disk).unwrap();
    }
    let acknowledged = recorded.acknowledged.len();
    println!("{count} disks in {durability:?} mode, of {} events and {acknowledged} hits", recorded.trace.events.len());
    let shown = faults.iter().take(5).cloned().collect::<Vec<_>>().join("\n");
    assert!(faults.is_empty(), "{} of {count} disks, of which {refused} are refused:\n{shown}", faults.len());
}

fn cut_the_power(durability: Durability, name: &str) {
    let mut rng = Rng::seed_from_u64(seed());
    let recorded = record(name);
    assert!(recorded.acknowledged.len() > USERS, "hits were acknowledged");
    let (events, turning_points) = (recorded.trace.events.len(), recorded.turning_points());
    let mut cuts = Vec::new();
    for number in 0..setting("DIVVY_TEST_POWER_DISKS", 10) {
        let cut = match rng.random() {
            true => rng.random_range(1..=events),
            false => turning_points[rng.random_range(0..turning_points.len())],
        };
        cuts.push((cut, FATES[number as usize % FATES.len()]));
    }
    open_all(&recorded, durability, cuts, &mut rng);
}

#[test]
fn a_power_cut_in_sync_mode_loses_nothing_that_was_acknowledged() {
    cut_the_power(Durability::Sync, "sync");
}

#[test]
fn a_power_cut_in_wal_mode_loses_nothing_that_was_synced() {
    cut_the_power(Durability::Wal, "wal");
}

#[test]
fn a_power_cut_in_lazy_mode_leaves_a_store_that_opens() {
    cut_the_power(Durability::Lazy, "lazy");
}

/// RocksDB says of some of these that an SST file has data beyond the point of corruption: one family's counters are in
/// a table by then, and the log, which has the others' records, has a hole before that.
#[test]
fn a_hole_in_the_log_before_a_flushed_column_family_is_no_reason_to_refuse() {
    let mut rng = Rng::seed_from_u64(seed());
    let recorded = record("wal");
    let flushes = flushes(&recorded);
    assert!(!flushes.is_empty(), "nothing was flushed under load");
    let fates = [Fate::Hole, Fate::Lost, Fate::Prefix];
    let cuts = (0..setting("DIVVY_TEST_POWER_DISKS", 10) as usize).map(|number| {
        // Until the next second's fsync of the log at most.
        let after = flushes[rng.random_range(0..flushes.len())] + rng.random_range(0..200);
        (after.min(recorded.trace.events.len()), fates[number % fates.len()])
    });
    let cuts = cuts.collect();
    open_all(&recorded, Durability::Wal, cuts, &mut rng);
}

/// The events by which the manifest knew of a table that was made while hits were being counted.
fn flushes(recorded: &Recorded) -> Vec<usize> {
    let (mut tables, mut manifest, mut is_new, mut found) = (Vec::new(), None, false, Vec::new());
    let counted_by = |index| recorded.acknowledged.partition_point(|(happened, _)| *happened <= index);
    let mut counted_before = 0;
    for (index, event) in recorded.trace.events.iter().enumerate() {
        match event {
            Event::NewProcess => {
                (manifest, is_new, counted_before) = (None, false, counted_by(index));
                tables.clear();
            }
            Event::Open { fd, path, flags } if flags & super::trace::O_CREAT != 0 => {
                if path.ends_with(".sst") {
                    tables.push(*fd);
                } else if path.contains("MANIFEST") {
                    manifest = Some(*fd);
                }
            }
            Event::Close { fd } if tables.contains(fd) => {
                tables.retain(|table| table != fd);
                is_new = counted_by(index) > counted_before;
            }
            Event::SyncEnds { fd } if Some(*fd) == manifest && std::mem::take(&mut is_new) => found.push(index + 1),
            _ => {}
        }
    }
    found
}
