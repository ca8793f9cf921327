//! What a hit costs, beside Redis: starts the servers that it compares, loads them in turn with `divvy bench`, and
//! prints one table, and the bars that the project has set itself.
//!
//! `cases` say what is compared; `redis` and `divvy` start a server each; `load` runs the generator once; `rounds`
//! repeats loads in turn; `table` prints. Nothing here fails because of a figure: it reports.

#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::string_slice,
    clippy::unwrap_used,
    reason = "a benchmark may panic, and measures"
)]

mod cases;
mod divvy;
mod h2load;
mod load;
mod machine;
mod process;
mod redis;
mod redis_benchmark;
mod rounds;
mod table;

use std::path::PathBuf;

use anyhow::{Context, ensure};
use clap::Parser;

use cases::{CASES, Setting};
use table::Table;

/// Compare Divvy with Redis on this machine
#[derive(Debug, Parser)]
struct Args {
    /// Fewer rounds, shorter, with fewer counters: for a first look
    #[arg(long)]
    quick: bool,
    /// Rounds of each case; figures are medians over them [default: 5, with --quick 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// Seconds of each measurement [default: 3, with --quick 1]
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<f64>,
    /// Only this case; may be repeated
    #[arg(long = "case", value_name = "NAME", value_parser = clap::builder::PossibleValuesParser::new(CASES.map(|case| case.name)))]
    cases: Vec<String>,
    /// Write the table as JSON, too
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Where the servers keep their data, on the disk to be measured [default: the system's temporary directory]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Given by `cargo bench`
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    ensure!(!cfg!(debug_assertions), "measures nothing worth knowing in a debug build: use `cargo bench`");
    let setting = Setting {
        rounds: args.rounds.unwrap_or(if args.quick { 3 } else { 5 }),
        seconds: args.seconds.unwrap_or(if args.quick { 1.0 } else { 3.0 }),
        many_actors: if args.quick { 1_000_000 } else { 10_000_000 },
        directory: args.dir.unwrap_or_else(std::env::temp_dir),
    };
    let mut table = Table::default();
    for case in CASES.iter().filter(|case| args.cases.is_empty() || args.cases.iter().any(|name| name == case.name)) {
        eprintln!("{}: {}", case.name, case.about);
        (case.run)(&setting, &mut table).with_context(|| format!("case {}", case.name))?;
    }
    println!("{}\n{table}", machine::describe());
    if let Some(path) = args.json {
        let report = serde_json::json!({ "machine": machine::facts(), "setting": setting, "table": table });
        std::fs::write(&path, serde_json::to_string_pretty(&report)?)
            .with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}
