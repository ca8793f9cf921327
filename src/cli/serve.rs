//! `divvy serve`: opens the store, loads the rules, binds the fronts, and serves until it is told to stop.

mod drain;
mod files;
mod handed;
mod limits;
mod listen;
mod mask;
mod notify;
mod store;

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;

use self::drain::{DrainArgs, Stop};
use self::handed::Handed;
use self::limits::LimitArgs;
use self::listen::{Addresses, ListenArgs};
use self::store::{StoreArgs, StoreChoice};
use super::rules_file;
use crate::clock::Clock;
use crate::config;
use crate::limiter::{Limiter, Policy};
use crate::metrics::Metrics;
use crate::rules::RuleSet;
use crate::server::{self, Fronts, Limits, Settings};
use crate::store::Store;

#[derive(Debug, clap::Args)]
pub struct ServeArgs {
    /// The rules file (.ini or .json); without it only commands that carry their own limits are answered
    #[arg(env = "DIVVY_CONFIG")]
    config: Option<PathBuf>,
    #[command(flatten)]
    listen: ListenArgs,
    #[command(flatten)]
    store: StoreArgs,
    /// Threads that connections run on [default: half of the processors]
    #[arg(long, env = "DIVVY_THREADS", value_name = "N", default_value_t = server::default_threads(), hide_default_value = true)]
    threads: usize,
    #[command(flatten)]
    limits: LimitArgs,
    #[command(flatten)]
    drain: DrainArgs,
}

pub fn run(args: ServeArgs) -> anyhow::Result<ExitCode> {
    // Before the store: a mistake in the rules must not leave a data directory behind.
    let rules = match &args.config {
        None => None,
        Some(path) => match rules_file::load(path)? {
            Some(rules) => Some(rules),
            None => return Ok(ExitCode::FAILURE),
        },
    };
    let addresses = args.listen.addresses()?;
    let store = args.store.choose(|name| std::env::var(name).ok())?;
    let limits = args.limits.limits();
    files::allow_for(limits.max_connections);
    let handed = Handed::from_env()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start")?;
    runtime.block_on(serve(&args, limits, rules, &store, &addresses, handed))?;
    Ok(ExitCode::SUCCESS)
}

async fn serve(
    args: &ServeArgs,
    limits: Limits,
    rules: Option<RuleSet>,
    choice: &StoreChoice,
    addresses: &Addresses,
    handed: Handed,
) -> anyhow::Result<()> {
    let Stop { draining, at_once } = Stop::on_signal()?;
    // Before the store: while another process still has it, connections wait instead of being refused.
    let fronts = addresses.bind(handed).await?;
    let clock = Clock::system();
    tokio::select! {
        () = choice.wait_for_lock() => {}
        () = draining.cancelled() => return Ok(()),
    }
    let store = choice.open(clock)?;
    announce(args, &fronts, choice, rules.as_ref())?;

    let metrics = Metrics::new();
    let policy = rules.map(|rules| put_in_force(rules, &metrics, clock));
    let limiter = Arc::new(Limiter::new(policy, store, clock, metrics));
    let settings = Settings { limits, drain: args.drain.drain(), threads: args.threads };
    notify::ready();
    let served = tokio::select! {
        served = server::run(Arc::clone(&limiter), fronts, settings, draining) => served,
        () = at_once.cancelled() => Ok(()),
    };
    limiter.store().close().await.context("the last counters may not be on stable storage")?;
    served.context("cannot start the server's threads")?;
    tracing::info!("stopped");
    Ok(())
}

/// The policy of these rules, which the metrics show from now on.
fn put_in_force(rules: RuleSet, metrics: &Metrics, clock: Clock) -> Policy {
    let hash = config::fingerprint(rules.rules());
    metrics.config.loaded(&hash, rules.rules().len(), clock.now().as_nanos());
    Policy::new(rules, metrics)
}

/// One line a front, the store, and the number of rules: what a script waits for, and a person checks.
fn announce(args: &ServeArgs, fronts: &Fronts, store: &StoreChoice, rules: Option<&RuleSet>) -> anyhow::Result<()> {
    let mut lines = String::new();
    let listening =
        [("line protocol", &fronts.line), ("RESP", &fronts.resp), ("HTTP", &fronts.http), ("gRPC", &fronts.grpc)];
    for (name, listener) in listening {
        if let Some(listener) = listener {
            writeln!(lines, "{name} on {}", listener.local_addr()?)?;
        }
    }
    writeln!(lines, "store: {}", store.describe())?;
    match (rules, &args.config) {
        (Some(rules), Some(path)) => writeln!(lines, "rules: {} from {}", rules.rules().len(), path.display())?,
        _ => writeln!(lines, "rules: none; a HIT needs them: divvy serve CONFIG")?,
    }
    io::stdout().write_all(lines.as_bytes()).context("cannot print where the server listens")
}
