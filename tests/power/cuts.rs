//! Power cuts: the store opens on every disk that a power cut could have left, and contains everything that was
//! promised.
//!
//! `DIVVY_TEST_POWER_DISKS` sets the number of disks per test (default 10), and `DIVVY_TEST_SEED` selects them. With
//! `DIVVY_TEST_POWER_NAMES=loose`, each change of a name that was not followed by a sync of its directory may be lost
//! separately. With `DIVVY_TEST_POWER_MANIFEST_HOLES=1`, the unsynced end of the manifest may have holes, too.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use divvy::clock::Clock;
use divvy::config::{self, Format};
use divvy::limiter::{ActiveRules, CounterNames, Intent, Limiter, PlanBuilder, Scope};
use divvy::metrics::Metrics;
use divvy::rules::Operation;
use divvy::store::{Backend, Durability, RocksOptions, RocksStore, Store};
use rand::rngs::Xoshiro256PlusPlus as Rng;
use rand::{RngExt, SeedableRng};

use super::disk::{CUT_EFFECTS, CutEffect, FileSystem, Model, Names};
use super::in_memory;
use super::interposed;
use super::trace::{Event, Moment, Trace};
use crate::conformance::wait;
use crate::support::{Place, Server, expanded, seed, setting};

const RULES: &str = "
[kind=kept user=*] creditLimit=1000000000 resetSeconds=360000 actorField=user
[kind=brief user=*] creditLimit=1000 resetSeconds=0.2 actorField=user
[default] creditLimit=0 resetSeconds=0
";
const CREDIT: u64 = 1_000_000_000;
const CLIENTS: usize = 4;
const USERS_EACH: usize = 12;
const USERS: usize = CLIENTS * USERS_EACH;
const PIPELINE: usize = 8;
/// Number of successive servers. The second one is killed.
const PROCESSES: usize = 3;
/// Maximum number of counters. The load creates more, so that the store looks for expired ones and rewrites the
/// counters instead of the journal.
const MAX_COUNTERS: &str = "400";

const REFUSED: &str = "it is refused";
/// Share of a disk's files that are treated differently from the rest.
const OTHERS: f64 = 0.1;

/// An acknowledgement that `used` of a user's credits are taken, and the moment when it was received.
#[derive(Debug, Clone, Copy)]
struct Acknowledgment {
    user: usize,
    used: u64,
    by: Moment,
}

/// The recorded runs of the servers: changes to files, and acknowledgements.
struct Recording {
    data: PathBuf,
    trace: Trace,
    /// Acknowledgements in order, each with the number of events before it.
    acknowledged: Vec<(usize, Acknowledgment)>,
    /// Requested credits by user.
    asked: Vec<u64>,
}

#[derive(Default)]
struct ReceivedReplies {
    acknowledged: Vec<Acknowledgment>,
    asked: Vec<u64>,
}

/// Returns a user's name. Some names are longer than a sector, and together they exceed a page of the log.
fn user_name(user: usize) -> String {
    format!("user-{user}-{}", "x".repeat(user % 6 * 120))
}

fn record(durability: &str) -> Recording {
    let (place, traces) = (Place::new(RULES), tempfile::tempdir().unwrap());
    ["data", "backups"].iter().for_each(|name| fs::create_dir(place.path(name)).unwrap());
    let (mut trace, mut acknowledged, mut asked) = (Trace::default(), Vec::new(), vec![0; USERS]);
    for process in 0..PROCESSES {
        let file = traces.path().join(format!("trace.{process}"));
        let mut command = interposed(place.dir());
        command.env("DIVVY_POWER_TRACE", &file).env("RUST_LOG", "error");
        let flags = ["--durability", durability, "--max-counters", MAX_COUNTERS];
        let server = place.on_disk_as(&mut command, &flags);
        let stop = Arc::new(AtomicBool::new(false));
        let clients: Vec<_> = (0..CLIENTS).map(|client| count(&server, client, process, &file, &stop)).collect();
        let churn = churn(&server, process, &stop);
        // This is long enough for a write-back, an fsync and a search for expired counters. A backup flushes
        // everything.
        thread::sleep(Duration::from_millis(1_300));
        if process > 0 {
            server.resp().command(&format!("DIVVY.BACKUP backup-{process}"));
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
    Recording { data: place.path("data").into(), trace, acknowledged, asked }
}

/// Sends hits of a client's own users until it is stopped or the server is gone.
fn count(
    server: &Server,
    client: usize,
    process: usize,
    trace: &Path,
    stop: &Arc<AtomicBool>,
) -> JoinHandle<ReceivedReplies> {
    let (trace, stop) = (trace.to_owned(), Arc::clone(stop));
    let mut connection = server.line();
    thread::spawn(move || {
        let mut seen = ReceivedReplies { asked: vec![0; USERS], ..ReceivedReplies::default() };
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
            let mut answer = Vec::new();
            for user in users {
                let Some((allowed, credit, _)) = connection.try_read_verdict() else { return seen };
                assert!(allowed);
                answer.push((user, CREDIT - credit));
            }
            // The positions are read after the replies, so that everything recorded later also happened later.
            let by = Moment { process, position: fs::metadata(&trace).unwrap().len() };
            seen.acknowledged.extend(answer.into_iter().map(|(user, used)| Acknowledgment { user, used, by }));
        }
        seen
    })
}

/// Creates counters that expire at once, so that there is something to reclaim.
fn churn(server: &Server, process: usize, stop: &Arc<AtomicBool>) -> JoinHandle<()> {
    let stop = Arc::clone(stop);
    let mut connection = server.resp();
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

impl Recording {
    /// Returns how many of each user's credits must be taken on a disk that was cut off before event `cut`. In `sync`,
    /// all credits acknowledged before. In `wal`, the credits acknowledged before the first write to a log that is not
    /// on stable storage; every fsync of the log moves this point. In `lazy`, none that can be determined from outside.
    fn promised(&self, durability: Durability, cut: usize, first_unsynced: usize) -> Vec<u64> {
        let mut used = vec![0; USERS];
        let until = match durability {
            // The last event may have happened before it was recorded.
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

    /// Returns the error of the disk in `place`, if there is one.
    fn fault(&self, durability: Durability, place: &Path, promised: &[u64]) -> Option<String> {
        let found = match used_credits(durability, place) {
            Ok(found) => found,
            Err(refusal) => return Some(format!("{REFUSED}: {refusal}")),
        };
        (0..USERS).find_map(|user| {
            let (promised, found, asked) = (promised[user], found[user], self.asked[user]);
            if found < promised {
                return Some(format!("user {user} has used {found}, but {promised} were acknowledged"));
            }
            (found > asked).then(|| format!("user {user} has used {found}, and asked for {asked}"))
        })
    }

    /// Returns the events that change more than the content of the log. Cuts after them are the most interesting ones.
    fn turning_points(&self) -> Vec<usize> {
        let events = self.trace.events.iter().enumerate();
        events.filter(|(_, event)| !matches!(event, Event::Write { .. })).map(|(index, _)| index + 1).collect()
    }
}

/// Opens the store and returns each user's usage.
fn used_credits(durability: Durability, place: &Path) -> Result<Vec<u64>, String> {
    let options = RocksOptions { durability, cache_memory: 100_000, ..RocksOptions::default() };
    let store = RocksStore::open(place, options).map_err(|error| error.to_string())?;
    let rules = config::parse(&expanded(RULES), Format::Ini, "rules.ini").unwrap().rules;
    let metrics = Metrics::new();
    let policy = ActiveRules::new(rules, &metrics, CounterNames::Usual);
    let limiter = Limiter::new(Some(policy), Backend::Rocks(store), Clock::system(), metrics);
    wait(async {
        let mut builder = PlanBuilder::default();
        limiter.begin(&mut builder, &Scope::EVERYTHING);
        let operation = |user: &str| [("kind", "kept"), ("user", user)].into_iter().collect::<Operation>();
        builder.add(&operation("of nobody"), Intent::Peek, None);
        (0..USERS).for_each(|user| builder.add(&operation(&user_name(user)), Intent::Peek, None));
        let mut plan = builder.build();
        limiter.apply(&mut plan).await;
        let report = plan.report();
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

/// Builds a disk for each cut, and opens it.
fn open_all(recorded: &Recording, durability: Durability, mut cuts: Vec<(usize, CutEffect)>, rng: &mut Rng) {
    cuts.sort_by_key(|(cut, _)| *cut);
    let (place, count) = (in_memory(), cuts.len());
    let mut system = FileSystem::new(&recorded.trace, &recorded.data, model());
    let (mut faults, mut refused) = (Vec::new(), 0);
    for (number, (cut, effect)) in cuts.into_iter().enumerate() {
        system.advance(cut);
        let disk = place.path().join(number.to_string());
        system.cut(effect, OTHERS, rng, &disk);
        let promised = recorded.promised(durability, cut, system.first_unsynced_log_write());
        if let Some(fault) = recorded.fault(durability, &disk, &promised) {
            refused += u32::from(fault.starts_with(REFUSED));
            faults.push(format!("the disk of event {cut} ({effect:?}): {fault}"));
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
        cuts.push((cut, CUT_EFFECTS[number as usize % CUT_EFFECTS.len()]));
    }
    open_all(&recorded, durability, cuts, &mut rng);
}

#[test]
fn power_cut_in_sync_mode_loses_nothing_acknowledged() {
    cut_the_power(Durability::Sync, "sync");
}

#[test]
fn power_cut_in_wal_mode_loses_nothing_synced() {
    cut_the_power(Durability::Wal, "wal");
}

#[test]
fn power_cut_in_lazy_mode_leaves_a_store_that_opens() {
    cut_the_power(Durability::Lazy, "lazy");
}

/// RocksDB reports that an SST file has data beyond the point of corruption: one family's counters are already in a
/// table, and the log with the other's records has a hole before that point.
#[test]
fn store_opens_despite_a_hole_in_the_log_before_a_flushed_column_family() {
    let mut rng = Rng::seed_from_u64(seed());
    let recorded = record("wal");
    let flushes = flushes(&recorded);
    assert!(!flushes.is_empty(), "nothing was flushed under load");
    let effects = [CutEffect::Hole, CutEffect::Lost, CutEffect::Prefix];
    let cuts = (0..setting("DIVVY_TEST_POWER_DISKS", 10) as usize).map(|number| {
        // At most up to the next fsync of the log, which happens every second.
        let after = flushes[rng.random_range(0..flushes.len())] + rng.random_range(0..200);
        (after.min(recorded.trace.events.len()), effects[number % effects.len()])
    });
    let cuts = cuts.collect();
    open_all(&recorded, Durability::Wal, cuts, &mut rng);
}

/// Returns the events that add a table to the manifest while hits are counted.
fn flushes(recorded: &Recording) -> Vec<usize> {
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
