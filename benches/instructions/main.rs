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
    let recorded = read_recorded();
    let stages = STAGES.iter().enumerate().flat_map(|(at, stage)| {
        let counts = valgrind::count(at, stage);
        // Hash tables have random seeds. 3 of 160 runs of `matching` had a collision, which takes 45 instructions of each hit.
        let is_bad = counts.iter().any(|(name, count)| is_worse(*count, before(&recorded, name)));
        if is_bad { valgrind::count(at, stage) } else { counts }
    });
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

/// Returns the recorded counts, by the name of the stage.
fn read_recorded() -> BTreeMap<String, u64> {
    let recorded = std::fs::read_to_string(RECORDED).expect("benches/instructions.txt is there");
    let lines = recorded.lines().filter_map(|line| line.split_once('\t'));
    lines.map(|(name, count)| (name.to_owned(), count.parse().expect("a number"))).collect()
}

fn before(recorded: &BTreeMap<String, u64>, name: &str) -> u64 {
    recorded.get(name).copied().unwrap_or_default()
}

fn is_worse(now: u64, before: u64) -> bool {
    now as f64 > before as f64 * TOLERANCE
}

fn compare(counts: &BTreeMap<String, u64>) -> ExitCode {
    let recorded = read_recorded();
    let mut code = ExitCode::SUCCESS;
    println!("{:<64} {:>10} {:>10}", "instructions per hit", "now", "recorded");
    for (name, count) in counts {
        let before = before(&recorded, name);
        let worse = is_worse(*count, before);
        println!("{name:<64} {count:>10} {before:>10}{}", if worse { "  WORSE" } else { "" });
        if worse {
            code = ExitCode::FAILURE;
        }
    }
    code
}
