//! Cost of a hit compared with Redis. Starts the servers, loads them in turn with `divvy-bench`, and prints a table
//! with the project's performance targets.
//!
//! `cases` contains the comparisons and `bars` the targets. `redis`, `divvy` and `peers` each start servers. `load`
//! runs the generator once, and `rounds` repeats loads in turn. `table` prints. Figures are reported, and never cause a
//! failure.

#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::string_slice,
    clippy::unwrap_used,
    reason = "a benchmark may panic, and measures"
)]

mod bars;
mod cases;
mod disk;
mod divvy;
mod load;
mod machine;
mod peers;
mod process;
mod redis;
mod redis_benchmark;
mod rounds;
mod sample;
mod table;

use std::path::PathBuf;

use anyhow::{Context, ensure};
use clap::Parser;

use cases::{CASES, Case, Setting};
use table::Table;

/// Compare Divvy with Redis on this machine
#[derive(Debug, Parser)]
struct Args {
    /// Fewer rounds, shorter, with fewer counters: for a first look
    #[arg(long)]
    quick: bool,
    /// Rounds of each case; figures are medians over them. Fewer than nine leave bars open [default: 9, with --quick 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// Seconds of each measurement [default: 2, with --quick 1]
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<f64>,
    /// Live actors in the case `actors`, a tenth of those in `hundred-million` [default: 10000000, with --quick 1000000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000_000_000))]
    actors: Option<u64>,
    /// Only this case; may be repeated. `hundred-million` takes long, and runs only if it is named
    #[arg(long = "case", value_name = "NAME", value_parser = clap::builder::PossibleValuesParser::new(CASES.map(|case| case.name)))]
    cases: Vec<String>,
    /// Another build of divvy, measured in the same rounds in the cases `pipelined`, `single` and `actors`
    #[arg(long, value_name = "DIVVY")]
    against: Option<PathBuf>,
    /// Measure a running server of Envoy's rate limit service over gRPC, too; may be repeated
    #[arg(long = "peer", value_name = "NAME=ADDRESS", value_parser = peer)]
    peers: Vec<(String, String)>,
    /// Measure another server of Redis's protocol, too, such as Valkey
    #[arg(long, value_name = "FILE")]
    redis: Option<PathBuf>,
    /// Measure redis-cell, too: its library
    #[arg(long, value_name = "FILE")]
    redis_cell: Option<PathBuf>,
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

fn peer(text: &str) -> Result<(String, String), String> {
    let (name, addr) = text.split_once('=').ok_or("expected NAME=ADDRESS")?;
    Ok((name.to_owned(), addr.to_owned()))
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    ensure!(!cfg!(debug_assertions), "measures nothing worth knowing in a debug build: use `cargo bench`");
    let setting = Setting {
        rounds: args.rounds.unwrap_or(if args.quick { 3 } else { bars::ROUNDS }),
        seconds: args.seconds.unwrap_or(if args.quick { 1.0 } else { 2.0 }),
        actors: args.actors.unwrap_or(if args.quick { 1_000_000 } else { 10_000_000 }),
        directory: args.dir.unwrap_or_else(std::env::temp_dir),
        against: args.against,
        peers: peers::Choice { redis: args.redis, redis_cell: args.redis_cell, grpc: args.peers },
    };
    let mut table = Table::default();
    let is_wanted = |case: &&Case| match &args.cases[..] {
        [] => !case.is_long,
        names => names.iter().any(|name| name == case.name),
    };
    for case in CASES.iter().filter(is_wanted) {
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
