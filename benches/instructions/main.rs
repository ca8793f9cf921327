//! Instructions per hit of each stage, counted by valgrind. The counts are repeatable, regardless of the machine's
//! load.
//!
//! `make bench-instructions` counts them, prints them next to `benches/instructions.txt`, and fails if a stage needs
//! over a tenth more. `cargo bench --bench instructions -- --write` updates that file, for changes that justify it.
//! `stages` does the work, `served` has a whole server do it, and `valgrind` counts it.

#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::string_slice,
    clippy::unwrap_used,
    reason = "a benchmark may panic, and measures"
)]

mod served;
mod stages;
mod valgrind;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::process::ExitCode;

use served::SERVED;
use stages::STAGES;

const RECORDED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/instructions.txt");
/// Counts above this share of the recorded ones are regressions.
const TOLERANCE: f64 = 1.1;

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args().skip(1).collect();
    if let [mode, stage, hits] = &args[..]
        && mode == "run"
    {
        let stage: usize = stage.parse().expect("a stage's number");
        (STAGES[stage].run)(hits.parse().expect("a number of hits"));
        return ExitCode::SUCCESS;
    }
    let stages = STAGES.iter().enumerate().flat_map(|(at, stage)| valgrind::count(at, stage));
    let counts: BTreeMap<_, _> =
        stages.chain(SERVED.iter().map(|served| (served.name.to_owned(), served::count(served)))).collect();
    if args.iter().any(|arg| arg == "--write") {
        let lines = counts.iter().fold(String::new(), |mut lines, (name, count)| {
            let _ = writeln!(lines, "{name}\t{count}");
            lines
        });
        std::fs::write(RECORDED, lines).expect("benches/instructions.txt can be written");
    }
    compare(&counts)
}

fn compare(counts: &BTreeMap<String, u64>) -> ExitCode {
    let recorded = std::fs::read_to_string(RECORDED).expect("benches/instructions.txt is there");
    let recorded: BTreeMap<_, u64> = recorded
        .lines()
        .filter_map(|line| line.split_once('\t'))
        .map(|(name, count)| (name, count.parse().unwrap()))
        .collect();
    let mut code = ExitCode::SUCCESS;
    println!("{:<64} {:>10} {:>10}", "instructions per hit", "now", "recorded");
    for (name, count) in counts {
        let before = recorded.get(name.as_str()).copied().unwrap_or_default();
        let worse = *count as f64 > before as f64 * TOLERANCE;
        println!("{name:<64} {count:>10} {before:>10}{}", if worse { "  WORSE" } else { "" });
        if worse {
            code = ExitCode::FAILURE;
        }
    }
    code
}
