//! `divvy serve`: opens the store, loads the rules, binds the fronts, and serves until it is told to stop.

mod access;
mod bounds;
mod drain;
mod files;
mod handed;
mod http;
mod limits;
mod listen;
mod log;
mod mask;
mod metrics;
mod notify;
mod redis;
mod reload;
mod rules;
mod store;
mod tls;
mod watch;

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;

use self::access::{AccessArgs, warn_of_open_fronts};
use self::drain::{DrainArgs, Stop};
use self::handed::Handed;
use self::http::HttpArgs;
use self::limits::LimitArgs;
use self::listen::{Addresses, ListenArgs};
use self::log::LogArgs;
use self::metrics::{MetricsArgs, Watched};
use self::reload::ReloadArgs;
use self::rules::{RulesFile, put_in_force};
use self::store::{StoreArgs, StoreChoice};
use self::tls::TlsArgs;
use crate::cli::{environment, units};
use crate::clock::Clock;
use crate::limiter::Limiter;
use crate::metrics::{Metrics, Statsd};
use crate::rules::RuleSet;
use crate::server::{self, Fronts, Limits, Settings};
use crate::store::Store;

/// The most threads that connections may run on: more than there are processors, by far.
const MAX_THREADS: u64 = 1_024;

#[derive(Debug, clap::Args)]
pub struct ServeArgs {
    /// The rules file (.ini or .json); without it only commands that carry their own limits are answered
    #[arg(env = "DIVVY_CONFIG")]
    config: Option<PathBuf>,
    #[command(flatten)]
    reload: ReloadArgs,
    #[command(flatten)]
    listen: ListenArgs,
    #[command(flatten)]
    store: StoreArgs,
    /// Threads that connections run on [default: half of the processors]
    #[arg(long, env = "DIVVY_THREADS", value_name = "N", default_value_t = server::default_threads(), hide_default_value = true,
          value_parser = units::count::<usize>(1..=MAX_THREADS))]
    threads: usize,
    #[command(flatten)]
    access: AccessArgs,
    #[command(flatten)]
    tls: TlsArgs,
    #[command(flatten)]
    limits: LimitArgs,
    #[command(flatten)]
    drain: DrainArgs,
    #[command(flatten)]
    http: HttpArgs,
    #[command(flatten)]
    metrics: MetricsArgs,
    #[command(flatten)]
    log: LogArgs,
}

pub fn run(args: ServeArgs) -> anyhow::Result<ExitCode> {
    args.log.begin(|name| std::env::var(name).ok())?;
    // To the log, of which a program may read every line.
    Ok(start(&args).unwrap_or_else(|error| {
        tracing::error!("{error:#}");
        ExitCode::FAILURE
    }))
}

fn start(args: &ServeArgs) -> anyhow::Result<ExitCode> {
    for line in environment::unknown_settings() {
        tracing::warn!("{line}");
    }
    // Before the store: a mistake in the rules must not leave a data directory behind.
    let rules = match &args.config {
        None => None,
        Some(path) => match RulesFile::load(path) {
            None => return Ok(ExitCode::FAILURE),
            loaded => loaded,
        },
    };
    let variable = |name: &str| std::env::var(name).ok();
    let addresses = args.listen.addresses()?;
    let store = args.store.choose(variable)?;
    let watched = args.metrics.read(variable)?;
    let limits = args.limits.limits();
    files::allow_for(limits.max_connections);
    let handed = Handed::from_env()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start")?;
    let served = runtime.block_on(serve(args, limits, rules, &store, &addresses, handed, watched));
    // Whoever still waits for a name to resolve, for statsd, is not waited for.
    runtime.shutdown_background();
    served.map(|()| ExitCode::SUCCESS)
}

async fn serve(
    args: &ServeArgs,
    limits: Limits,
    rules: Option<(RulesFile, RuleSet)>,
    choice: &StoreChoice,
    addresses: &Addresses,
    handed: Handed,
    watched: Watched,
) -> anyhow::Result<()> {
    let Stop { draining, at_once } = Stop::on_signal()?;
    let metrics = Metrics::new();
    let access = args.access.access(&metrics)?;
    let reloader = args.tls.load(&metrics)?;
    let secured = args.tls.secured(reloader.as_ref());
    let hangups = reload::hangups()?;
    // Before the store: while another process still has it, connections wait instead of being refused.
    let fronts = addresses.bind(handed).await?;
    let clock = Clock::system();
    tokio::select! {
        () = choice.wait_for_lock() => {}
        () = draining.cancelled() => return Ok(()),
    }
    let store = choice.open(clock)?;
    let (file, rules) = rules.unzip();
    announce(args, &fronts, choice, rules.as_ref())?;

    warn_of_open_fronts(&fronts, &access, &secured);
    if let Some(reloader) = reloader {
        tls::keep_fresh(reloader, args.reload.interval(), reload::hangups()?, Arc::clone(&metrics));
    }
    let statsd = watched.statsd.map(|options| Statsd::start(options, Arc::clone(&metrics)));
    let policy = rules.map(|rules| put_in_force(rules, &metrics, clock.now()));
    let limiter = Arc::new(Limiter::new(policy, store, clock, metrics));
    args.reload.start(file, &limiter, hangups, draining.clone())?;
    let settings = Settings {
        limits,
        drain: args.drain.drain(),
        access,
        tls: secured,
        api: args.http.settings(),
        grpc_headers: args.http.grpc_headers(),
        metrics_path: watched.metrics_path,
        threads: args.threads,
    };
    notify::ready();
    let served = tokio::select! {
        served = server::run(Arc::clone(&limiter), fronts, settings, draining) => served,
        () = at_once.cancelled() => Ok(()),
    };
    if let Some(statsd) = statsd {
        statsd.finish().await;
    }
    limiter.store().close().await.context("the last counters may not be on stable storage")?;
    served.with_context(|| format!("cannot start the server's threads (--threads {})", args.threads))?;
    tracing::info!("stopped");
    Ok(())
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
