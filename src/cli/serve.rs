//! `divvy serve`: opens the store, loads the rules, binds the listeners, and serves until it is stopped.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::Context;
use clap::ArgMatches;
use sd_notify::NotifyState;
use tokio::runtime::Handle;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use self::access::{AccessArgs, load_given, warn_of_open_fronts};
use self::environment::RatelimitEnvironment;
use self::http::HttpArgs;
use self::in_force::RulesInForce;
use self::limiter::LimiterArgs;
use self::listen::{LimitArgs, ListenArgs, inherited_sockets, local_addresses, notify, raise_open_files_limit};
use self::logs::LogArgs;
use self::reload::ReloadedFiles;
use self::rules::{RatelimitFiles, RulesFile};
use self::store::{StoreArgs, StoreChoice};
use self::xds::XdsArgs;
use divvy_core::clock::Clock;
use divvy_core::config::ratelimit::compile::without_file;
use divvy_core::rules::RuleSet;
use divvy_core::units::{self, MAX_SECONDS, Time};
use divvy_limiter::store::Store;
use divvy_limiter::{ActiveRules, Limiter};
#[cfg(feature = "ui")]
use divvy_server::http::page::Page;
use divvy_server::{self as server, Drain, Fronts, Health, RecentReloads, Settings};
use divvy_telemetry::logging;
use divvy_telemetry::metrics::{Metrics, Statsd};
#[cfg(feature = "ui")]
use divvy_ui::Ui;

mod access;
pub mod environment;
mod http;
mod in_force;
mod limiter;
mod listen;
mod logs;
#[cfg(feature = "ui")]
mod page;
mod reload;
mod rules;
mod store;
mod watch;
mod xds;

/// Maximum number of threads that serve connections, far above the number of processors.
const MAX_THREADS: u64 = 1_024;

#[derive(clap::Args)]
pub struct ServeArgs {
    /// Rules file (.ini or .json). Without one, divvy answers only commands that carry their own limits
    #[arg(env = "DIVVY_CONFIG", help_heading = "Rules")]
    config: Option<PathBuf>,
    /// Configuration of envoyproxy/ratelimit: a file, or a directory with files. Requests whose domain is in it see only its
    /// limits
    #[arg(long, value_name = "DIR|FILE", help_heading = "Rules", conflicts_with = "grpc_atomic")]
    ratelimit_config: Option<PathBuf>,
    /// Read the environment variables of envoyproxy/ratelimit as flags, in place of DIVVY_CONFIG. A program that is called
    /// `ratelimit` always does
    #[arg(long, help_heading = "Rules", value_parser = clap::builder::BoolishValueParser::new())]
    pub ratelimit_env: bool,
    /// The settings in these variables.
    #[arg(skip)]
    pub environment: RatelimitEnvironment,
    /// How often to check the rules file with its lists, ratelimit's configuration, the access file, the token key file and the TLS files for
    /// changes. 0: reload only on SIGHUP
    #[arg(long, value_name = "SECONDS", help_heading = "Rules", default_value_t = Time(Duration::from_secs(1)),
          value_parser = units::seconds(0..=MAX_SECONDS))]
    reload_interval: Time,
    #[command(flatten)]
    xds: XdsArgs,
    #[command(flatten)]
    limiter: LimiterArgs,
    #[command(flatten)]
    listen: ListenArgs,
    /// Threads that serve connections. The other processors do RocksDB's background work
    /// [default: half of the processors]
    #[arg(long, value_name = "N", help_heading = "Listeners", default_value_t = server::default_threads(), hide_default_value = true,
          value_parser = units::count::<usize>(1..=MAX_THREADS))]
    threads: usize,
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    http: HttpArgs,
    #[command(flatten)]
    limits: LimitArgs,
    #[command(flatten)]
    access: AccessArgs,
    #[command(flatten)]
    logs: LogArgs,
    /// How long to keep accepting connections after SIGTERM, while /readyz answers 503
    #[arg(long, value_name = "SECONDS", help_heading = "Stopping", default_value_t = Time(Duration::ZERO),
          value_parser = units::seconds(0..=MAX_SECONDS))]
    drain_delay: Time,
    /// Maximum time for answering the requests received by then. Busy connections are closed afterwards
    #[arg(long, value_name = "SECONDS", help_heading = "Stopping", default_value_t = Time(server::DEFAULT_DRAIN_TIMEOUT),
          value_parser = units::seconds(0..=MAX_SECONDS))]
    drain_timeout: Time,
}

pub fn run(args: ServeArgs, given: &ArgMatches, unknown_settings: &[String]) -> anyhow::Result<ExitCode> {
    // Dropping the guard writes the last log lines.
    let _log = args.logs.start(|name| std::env::var(name).ok())?;
    for line in unknown_settings.iter().chain(&args.environment.warnings) {
        tracing::warn!("{line}");
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(server::MAX_BLOCKING_THREADS)
        .thread_keep_alive(server::BLOCKING_KEEP_ALIVE)
        .build()
        .context("cannot start")?;
    let served = runtime.block_on(serve(&args, given));
    // A pending name lookup for statsd must not delay the exit.
    runtime.shutdown_background();
    // The error goes to the log, because a program may parse every line of the output.
    Ok(served.unwrap_or_else(|error| {
        tracing::error!("{error:#}");
        ExitCode::FAILURE
    }))
}

/// Makes the allocator return freed pages at once, and turns off huge pages. Otherwise, if most counters are used only
/// once, freed memory takes as much as everything else, because pages are kept for a second and a huge page cannot be
/// returned in part. This costs no measurable CPU time with 10,000 actors, and a tenth with ten million. If the system
/// has no huge pages, or refuses, nothing else changes.
fn minimize_kept_memory() {
    divvy_sys::keep_no_freed_pages();
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::disable_transparent_huge_pages(true);
}

async fn serve(args: &ServeArgs, given: &ArgMatches) -> anyhow::Result<ExitCode> {
    let variable = |name: &str| std::env::var(name).ok();
    args.http.check()?;
    let choice = args.store.choose(given, variable)?;
    // Loaded before the store is opened, so that a mistake in the rules leaves no data directory behind.
    let load_rules = |path: &Path| RulesFile::load(path, choice.counter_names(), args.http.spellings());
    let Some(rules) = load_given(args.config.as_deref(), load_rules) else { return Ok(ExitCode::FAILURE) };
    let options = Arc::new(args.environment.options.clone());
    let load_domains = |path: &Path| RatelimitFiles::load(path, options.merges_domains);
    let Some(ratelimit) = load_given(args.ratelimit_config.as_deref(), load_domains) else {
        return Ok(ExitCode::FAILURE);
    };
    let xds = args.xds.settings(&choice, &options)?;
    let Some(users) = args.access.read()? else { return Ok(ExitCode::FAILURE) };
    let (metrics_path, statsd) = (args.logs.metrics_path(variable)?, args.logs.statsd(given, variable)?);
    let limits = args.limits.limits();
    raise_open_files_limit(limits.max_connections);
    minimize_kept_memory();
    let inherited = inherited_sockets()?;
    let metrics = Metrics::new();
    metrics.show(
        "divvy_log_lines_dropped_total",
        "Log lines dropped because standard error did not accept them.",
        logging::dropped_lines,
    );
    let (draining, at_once) = stop_signals()?;
    let reloads = args.http.has_page(&metrics_path)?.then(Arc::<RecentReloads>::default);
    if reloads.is_some() {
        metrics.hits.count_each_rule();
    }
    let reloader = args.access.load_tls(&metrics)?;
    let secured = args.access.secured(reloader.as_ref());
    let clock = Clock::system();
    let audit = args.logs.start_audit(clock, &metrics, draining.clone())?;
    // SIGHUP would end the process otherwise.
    let hangups = signal(SignalKind::hangup()).context("cannot listen to SIGHUP")?;
    // Bound before the store is opened. So connections wait, instead of being refused, while another process still uses
    // the store.
    let fronts = args.listen.bind(inherited).await?;
    let sessions = args.http.sessions(&fronts, secured.http.is_some(), &users)?;
    let (guards, watched_access) = args.access.guards(users, sessions, &metrics)?;
    tokio::select! {
        () = choice.wait_for_lock() => {}
        () = draining.cancelled() => return Ok(ExitCode::SUCCESS),
    }
    let store = choice.open(clock)?;
    let (files, rules) = rules.unzip();
    let (ratelimit, domains) = ratelimit.unzip();
    let in_force = Arc::new(RulesInForce::new(
        choice.counter_names(),
        Arc::clone(&options),
        domains.unwrap_or_default(),
        reloads.clone(),
        Handle::current(),
    ));
    let file = if ratelimit.is_some() || xds.is_some() { Some(rules.map_or_else(without_file, Ok)?) } else { rules };
    let policy = file.map(|file| in_force.first(file, &metrics, clock.now())).transpose()?;
    announce(args, &fronts, &choice, policy.as_ref().map(ActiveRules::rules))?;

    warn_of_open_fronts(&fronts, &guards, &secured);
    let statsd = statsd.map(|options| Statsd::start(options, Arc::clone(&metrics)));
    let limiter = Arc::new(args.limiter.bound(Limiter::new(policy, store, clock, metrics)));
    limiter::start(&limiter, &draining).await?;
    let files = ReloadedFiles { rules: files, ratelimit, access: watched_access, tls: reloader };
    reload::start(files, args.reload_interval.0, &in_force, &limiter, &audit, hangups, draining.clone())?;
    let configured = match xds {
        Some(settings) => Some(xds::start(settings, &in_force, &limiter, &audit, draining.clone()).await?),
        None => None,
    };
    let health = Health::start(&limiter, draining.clone(), configured).context("cannot start the server's threads")?;
    #[cfg(feature = "ui")]
    let page = reloads.map(|reloads| -> Arc<dyn Page> {
        let settings = page::settings(args.config.as_deref(), &args.http, &args.limiter, &choice, reloads);
        Ui::new(settings, Arc::clone(&limiter), guards.http.clone(), Arc::clone(&health), limits)
    });
    #[cfg(not(feature = "ui"))]
    let page = None;
    let settings = Settings {
        limits,
        drain: Drain { delay: args.drain_delay.0, timeout: args.drain_timeout.0 },
        guards,
        audit: Arc::clone(&audit),
        tls: secured,
        api: args.http.settings(),
        grpc: args.http.grpc(options),
        metrics_path,
        threads: args.threads,
    };
    tokio::select! {
        () = health.first() => {}
        () = draining.cancelled() => {}
    }
    notify(&[NotifyState::Ready]);
    let served = tokio::select! {
        served = server::run(Arc::clone(&limiter), fronts, settings, page, Arc::clone(&health), draining) => served,
        () = at_once.cancelled() => Ok(()),
    };
    if let Some(statsd) = statsd {
        statsd.finish().await;
    }
    health.over().await;
    audit.finish().await;
    limiter.store().close().await.context("the last counters may not be on stable storage")?;
    served.with_context(|| format!("cannot start the server's threads (--threads {})", args.threads))?;
    tracing::info!("stopped");
    Ok(ExitCode::SUCCESS)
}

/// Announces the listen addresses, the store and the number of rules in the log. Unless the log is for programs, also
/// prints them on standard output, for people and for scripts that wait for them.
fn announce(args: &ServeArgs, fronts: &Fronts, store: &StoreChoice, rules: Option<&RuleSet>) -> anyhow::Result<()> {
    let (line, resp) = (local_addresses(&fronts.line)?, local_addresses(&fronts.resp)?);
    let (http, grpc) = (local_addresses(&fronts.http)?, local_addresses(&fronts.grpc)?);
    let shown = |addresses: &[SocketAddr]| {
        let texts: Vec<_> = addresses.iter().map(SocketAddr::to_string).collect();
        (!texts.is_empty()).then(|| texts.join(","))
    };
    let store = store.describe();
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        line = shown(&line).map(tracing::field::display),
        resp = shown(&resp).map(tracing::field::display),
        http = shown(&http).map(tracing::field::display),
        grpc = shown(&grpc).map(tracing::field::display),
        store,
        rules = rules.map(|rules| rules.rules().len()),
        config = args.config.as_ref().map(|path| tracing::field::display(path.display())),
        "serving"
    );
    if args.logs.is_json() {
        return Ok(());
    }
    let mut lines = String::new();
    for (name, addresses) in [("line protocol", line), ("RESP", resp), ("HTTP", http), ("gRPC", grpc)] {
        for address in addresses {
            writeln!(lines, "{name} on {address}")?;
        }
    }
    writeln!(lines, "store: {store}")?;
    if let (Some(rules), Some(path)) = (rules, &args.ratelimit_config) {
        let limits = rules.rules().len() - rules.file_rules().len();
        writeln!(lines, "ratelimit: {limits} rules from {}", path.display())?;
    }
    if let Some(server) = &args.xds.ratelimit_xds {
        writeln!(lines, "ratelimit: rules from {}", server.address)?;
    }
    match (rules, &args.config) {
        (Some(rules), Some(path)) => writeln!(lines, "rules: {} from {}", rules.file_rules().len(), path.display())?,
        (Some(_), None) => writeln!(lines, "rules: none; requests in other domains have no limit")?,
        (None, _) => writeln!(lines, "rules: none; HIT needs rules: divvy serve CONFIG")?,
    }
    // A thread of its own prints them, so that a full or closed pipe does not stop the server.
    let write = move || {
        if let Err(error) = io::stdout().write_all(lines.as_bytes()) {
            tracing::warn!(%error, "cannot print the listen addresses to standard output");
        }
    };
    if let Err(error) = thread::Builder::new().name("divvy-print".into()).spawn(write) {
        tracing::warn!(%error, "cannot print the listen addresses");
    }
    Ok(())
}

/// Starts to listen for SIGTERM and SIGINT. The first signal cancels the first token, and asks for an orderly shutdown. The
/// second one cancels the second token, and asks for an immediate exit.
///
/// # Errors
/// The system refuses it.
fn stop_signals() -> anyhow::Result<(CancellationToken, CancellationToken)> {
    let (draining, at_once) = (CancellationToken::new(), CancellationToken::new());
    let mut signals = [signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?];
    // A write beyond the limit of a file's size fails then, as it does when the disk is full. The signal would end the
    // server. Its handler stays.
    drop(signal(SignalKind::from_raw(rustix::process::Signal::XFSZ.as_raw()))?);
    let tokens = (draining.clone(), at_once.clone());
    // Each signal takes effect before it is logged.
    tokio::spawn(async move {
        receive_either(&mut signals).await;
        draining.cancel();
        notify(&[NotifyState::Stopping]);
        tracing::info!("stopping: answering requests already received; a second signal stops the process immediately");
        receive_either(&mut signals).await;
        at_once.cancel();
        tracing::warn!("stopping immediately: closing all connections");
    });
    Ok(tokens)
}

async fn receive_either([one, other]: &mut [Signal; 2]) {
    tokio::select! {
        _ = one.recv() => {}
        _ = other.recv() => {}
    }
}
