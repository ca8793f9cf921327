//! Runs this program's stages under valgrind, and reads the counts.

use std::process::{Command, Stdio};

use crate::stages::{HITS_THAT_COUNT, MANY, Stage};

/// A stage runs for this many hits and for twice as many. The difference does not include its set-up.
const HITS: u64 = 20_000;
/// Caches of a common server, fixed so that counts do not depend on the machine.
const CACHES: [&str; 4] = ["--cache-sim=yes", "--I1=32768,8,64", "--D1=32768,8,64", "--LL=8388608,16,64"];

pub const CALLGRIND: [&str; 2] = ["--tool=callgrind", "--callgrind-out-file=/dev/null"];

/// Returns the named counts of a stage per hit.
pub fn count(at: usize, stage: &Stage) -> Vec<(String, u64)> {
    if stage.has_many_counters {
        return with_caches(at, stage.name);
    }
    let count = |hits| callgrind(at, hits, &[])[0];
    vec![(stage.name.to_owned(), (count(2 * HITS) - count(HITS)) / HITS)]
}

/// Counts cache misses in one run, because the set-up takes long. Only the stage's own thread is counted, without the
/// set-up.
fn with_caches(at: usize, name: &str) -> Vec<(String, u64)> {
    // Exactly this function: a second match inside it would switch the counting off again.
    let toggle = format!("--toggle-collect=*::{HITS_THAT_COUNT}");
    let options = [&["--collect-atstart=no", toggle.as_str()][..], &CACHES].concat();
    let [instructions, _, _, _, first_reads, first_writes, _, last_reads, last_writes] =
        callgrind(at, MANY, &options)[..]
    else {
        panic!("callgrind counts nine events")
    };
    // The counts are per hundred hits, because a single hit has too few misses to show a change of a tenth.
    let misses = |reads: u64, writes: u64| (reads + writes) * 100 / MANY;
    vec![
        (name.to_owned(), instructions / MANY),
        (format!("{name}, misses of the first cache by 100 hits"), misses(first_reads, first_writes)),
        (format!("{name}, misses of the last cache by 100 hits"), misses(last_reads, last_writes)),
    ]
}

/// Returns the events that callgrind counted, instructions first.
fn callgrind(stage: usize, hits: u64, options: &[&str]) -> Vec<u64> {
    let own = std::env::current_exe().expect("this program's path");
    let output = Command::new("valgrind")
        .args(CALLGRIND)
        .args(options)
        .arg(own)
        .args(["run", &stage.to_string(), &hits.to_string()])
        .stdout(Stdio::null())
        .output()
        .expect("valgrind is installed (Debian: apt-get install valgrind)");
    collected(&output.stderr)
}

/// Returns the events in callgrind's report.
pub fn collected(report: &[u8]) -> Vec<u64> {
    let report = String::from_utf8_lossy(report);
    let collected = report.lines().find_map(|line| line.split_once("Collected :")).expect("callgrind's count");
    collected.1.split_whitespace().map(|count| count.parse().expect("a number")).collect()
}
