//! Instructions per hit of each stage, counted by valgrind: repeatable, whatever else the machine is doing.
//!
//! `make bench-instructions` counts them, prints them beside those of `benches/instructions.txt` and fails when a stage
//! needs over a tenth more. `cargo bench --bench instructions -- --write` writes that file anew, after a change that is
//! worth it.

#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::string_slice,
    clippy::unwrap_used,
    reason = "a benchmark may panic, and measures"
)]

use std::collections::BTreeMap;
use std::fmt::Write;
use std::hint::black_box;
use std::process::{Command, ExitCode, Stdio};

use divvy::algorithm::{Ask, FixedWindow, Limit};
use divvy::clock::{Clock, NANOS_PER_SECOND};
use divvy::config::{self, Format};
use divvy::protocol::command;
use divvy::protocol::line::{LineDecoder, parse_request, write_verdict};
use divvy::protocol::resp::{Decoder, Limits, ReplyWriter, Version};
use divvy::rules::{Operation, RuleSet, Scratch};
use divvy::store::{Action, Batch, RocksOptions, RocksStore, Store};

const RECORDED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/instructions.txt");
/// What it is called, and how to run it for so many hits.
type Stage = (&'static str, fn(u64));
const STAGES: [Stage; 5] = [
    ("codec: line protocol", line),
    ("codec: RESP", resp),
    ("matching: 4 rules", |hits| matching(4, hits)),
    ("matching: 10,000 rules", |hits| matching(10_000, hits)),
    ("store: RocksDB's hot table", store),
];
/// A stage is run for so many hits and for twice as many; the difference leaves its set-up out.
const HITS: u64 = 20_000;
/// A count over this share of the recorded one is a regression.
const TOLERANCE: f64 = 1.1;

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args().skip(1).collect();
    if let [mode, stage, hits] = &args[..]
        && mode == "run"
    {
        let stage: usize = stage.parse().expect("a stage's number");
        STAGES[stage].1(hits.parse().expect("a number of hits"));
        return ExitCode::SUCCESS;
    }
    let counts: BTreeMap<_, _> = STAGES.iter().enumerate().map(|(at, (name, _))| (*name, per_hit(at))).collect();
    if args.iter().any(|arg| arg == "--write") {
        let lines = counts.iter().fold(String::new(), |mut lines, (name, count)| {
            let _ = writeln!(lines, "{name}\t{count}");
            lines
        });
        std::fs::write(RECORDED, lines).expect("benches/instructions.txt can be written");
    }
    compare(&counts)
}

fn compare(counts: &BTreeMap<&str, u64>) -> ExitCode {
    let recorded = std::fs::read_to_string(RECORDED).expect("benches/instructions.txt is there");
    let recorded: BTreeMap<_, u64> = recorded
        .lines()
        .filter_map(|line| line.split_once('\t'))
        .map(|(name, count)| (name, count.parse().unwrap()))
        .collect();
    let mut code = ExitCode::SUCCESS;
    println!("{:<28} {:>10} {:>10}", "instructions per hit", "now", "recorded");
    for (name, count) in counts {
        let before = recorded.get(name).copied().unwrap_or_default();
        let worse = *count as f64 > before as f64 * TOLERANCE;
        println!("{name:<28} {count:>10} {before:>10}{}", if worse { "  WORSE" } else { "" });
        if worse {
            code = ExitCode::FAILURE;
        }
    }
    code
}

fn per_hit(stage: usize) -> u64 {
    (counted(stage, 2 * HITS) - counted(stage, HITS)) / HITS
}

fn counted(stage: usize, hits: u64) -> u64 {
    let own = std::env::current_exe().expect("this program's path");
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(own)
        .args(["run", &stage.to_string(), &hits.to_string()])
        .stdout(Stdio::null())
        .output()
        .expect("valgrind is installed (Debian: apt-get install valgrind)");
    let report = String::from_utf8_lossy(&output.stderr);
    let collected = report.lines().find_map(|line| line.split_once("Collected :")).expect("callgrind's count");
    collected.1.trim().parse().expect("a number")
}

fn line(hits: u64) {
    let (mut decoder, mut operation, mut out) = (LineDecoder::new(1 << 14), Operation::new(), Vec::new());
    for _ in 0..hits {
        let line =
            decoder.next_line(black_box(b"HIT method=GET path=/pantry/cookies ip=192.168.1.1\n")).unwrap().unwrap();
        parse_request(line.text, &mut operation, 256).unwrap();
        out.clear();
        write_verdict(&mut out, true, black_box(57), 60);
    }
}

fn resp(hits: u64) {
    const REQUEST: &[u8] =
        b"*4\r\n$9\r\nDIVVY.HIT\r\n$10\r\nmethod=GET\r\n$20\r\npath=/pantry/cookies\r\n$14\r\nip=192.168.1.1\r\n";
    let (mut decoder, mut operation, mut out) = (Decoder::new(Limits::default()), Operation::new(), Vec::new());
    for _ in 0..hits {
        decoder.decode(black_box(REQUEST)).unwrap().unwrap();
        let command::Command::Hit(hit) = command::Command::parse(decoder.arguments(REQUEST)).unwrap() else {
            unreachable!("a hit")
        };
        hit.pairs.read_into(&mut operation, 256).unwrap();
        out.clear();
        ReplyWriter::new(&mut out, Version::Resp2).verdict(true, black_box(57), 60);
    }
}

fn rules(count: usize) -> RuleSet {
    let mut text = String::new();
    for i in 1..count {
        let _ = write!(text, "[method=GET path=/resource-{i}/* ip=*]\ncreditLimit=9\nresetSeconds=60\nactorField=ip\n");
    }
    text.push_str("[default]\ncreditLimit=0\nresetSeconds=0\n");
    config::parse(&text, Format::Ini, "bench.ini").expect("valid rules").rules
}

fn matching(count: usize, hits: u64) {
    let rules = rules(count);
    let mut scratch = Scratch::default();
    let path = format!("/resource-{}/x", count / 2);
    let operation: Operation =
        [("method", "GET"), ("path", path.as_str()), ("ip", "192.168.1.1")].into_iter().collect();
    for _ in 0..hits {
        black_box(rules.matches(black_box(&operation), &mut scratch).last().expect("a rule").0);
    }
}

fn store(hits: u64) {
    const BATCH: u64 = 32;
    let (clock, dir) = (Clock::system(), tempfile::tempdir().expect("a temporary directory"));
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let options = RocksOptions { cache_memory: 64 << 20, clock, ..RocksOptions::default() };
    let store = RocksStore::open(dir.path(), options).expect("a new directory");
    let limit = Limit::FixedWindow(FixedWindow::new(1 << 40, 3600 * NANOS_PER_SECOND).expect("a limit"));
    let mut batch = Batch::default();
    for turn in 0..hits / BATCH {
        let now = clock.now();
        batch.begin(now);
        for i in 0..BATCH {
            batch.push(limit, Action::Ask(Ask::Take { cost: 1 }), now, |key| {
                key.extend_from_slice(b"\x01\x01\x00\x01\x04path\x06/login");
                key.extend_from_slice(&((turn * BATCH + i) % 1000).to_be_bytes());
            });
        }
        runtime.block_on(store.apply(&mut batch));
    }
}
